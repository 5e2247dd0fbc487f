//! Python's buffer protocol, in both directions: how NumPy arrays come in without NumPy, and how tensors go out.
//!
//! The stable ABI has these functions since Python 3.11. They have been the same since 3.3, so that this module declares them
//! itself and works with 3.10 too. The slots of the protocol can be set by number since 3.9.

use crate::errors::{InputError, raise};
use crate::tensor::TensorBase;
use dlpark::ffi::{DLDevice, DLDeviceType, DLTensor};
use inrush_base::DType;
use inrush_runtime::dlpack::{self, Borrow};
use inrush_runtime::tensor::contiguous_strides;
use inrush_runtime::{Storage, Tensor, Writes};
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::Arc;

/// `Py_buffer`.
#[repr(C)]
pub(crate) struct View {
    buf: *mut c_void,
    obj: *mut ffi::PyObject,
    len: isize,
    itemsize: isize,
    readonly: c_int,
    ndim: c_int,
    format: *mut c_char,
    shape: *mut isize,
    strides: *mut isize,
    suboffsets: *mut isize,
    internal: *mut c_void,
}

/// The exporter may give read-only memory with any strides, and says its format.
const RECORDS_RO: c_int = STRIDES | FORMAT;
const WRITABLE: c_int = 0x1;
const FORMAT: c_int = 0x4;
const ND: c_int = 0x8;
const STRIDES: c_int = 0x10 | ND;
const C_CONTIGUOUS: c_int = 0x20;
const F_CONTIGUOUS: c_int = 0x40;
const ANY_CONTIGUOUS: c_int = 0x80;

/// Numbers of the slots of a type, and of its end.
const GET_BUFFER: c_int = 1;
const RELEASE_BUFFER: c_int = 2;

unsafe extern "C" {
    fn PyObject_CheckBuffer(obj: *mut ffi::PyObject) -> c_int;
    fn PyObject_GetBuffer(obj: *mut ffi::PyObject, view: *mut View, flags: c_int) -> c_int;
    fn PyBuffer_Release(view: *mut View);
}

/// A buffer that is held until it is dropped.
struct Held(Box<View>);

// SAFETY: the exporter keeps the memory; the lock is taken where it is released.
unsafe impl Send for Held {}
// SAFETY: as above; shared access only reads the structure.
unsafe impl Sync for Held {}

impl Drop for Held {
    fn drop(&mut self) {
        // An interpreter that has ended takes nothing back.
        Python::try_attach(|_| {
            // SAFETY: a view that `PyObject_GetBuffer` filled, released once.
            unsafe { PyBuffer_Release(&mut *self.0) }
        });
    }
}

/// Returns true if the object exports a buffer.
pub(crate) fn has_buffer(obj: &Bound<'_, PyAny>) -> bool {
    // SAFETY: a live object.
    unsafe { PyObject_CheckBuffer(obj.as_ptr()) != 0 }
}

/// Borrows the memory of an object that exports a buffer.
///
/// # Errors
/// An input error for elements that no dtype has.
pub(crate) fn import(obj: &Bound<'_, PyAny>, how: Borrow) -> PyResult<Tensor> {
    let mut view = Box::new(View {
        buf: std::ptr::null_mut(),
        obj: std::ptr::null_mut(),
        len: 0,
        itemsize: 0,
        readonly: 0,
        ndim: 0,
        format: std::ptr::null_mut(),
        shape: std::ptr::null_mut(),
        strides: std::ptr::null_mut(),
        suboffsets: std::ptr::null_mut(),
        internal: std::ptr::null_mut(),
    });
    // SAFETY: a live object and a structure of the protocol's layout.
    if unsafe { PyObject_GetBuffer(obj.as_ptr(), &mut *view, RECORDS_RO) } != 0 {
        let e = PyErr::fetch(obj.py());
        return Err(InputError::new_err(format!(
            "its memory cannot be read: {e}"
        )));
    }
    let held = Held(view);
    let view = &*held.0;
    let format = if view.format.is_null() {
        "B".into()
    } else {
        // SAFETY: a text that ends with a zero byte.
        unsafe { CStr::from_ptr(view.format) }.to_string_lossy()
    };
    let dtype = dtype(&format, view.itemsize).ok_or_else(|| {
        InputError::new_err(format!(
            "elements of format `{format}` ({} bytes) have no dtype",
            view.itemsize
        ))
    })?;
    let rank = usize::try_from(view.ndim).unwrap_or(0);
    let list = |p: *mut isize| -> Option<Vec<i64>> {
        // SAFETY: the protocol's lists have an entry for each dimension.
        let list = || unsafe { std::slice::from_raw_parts(p, rank) };
        (rank == 0 || !p.is_null()).then(|| match rank {
            0 => Vec::new(),
            _ => list().iter().map(|n| *n as i64).collect(),
        })
    };
    let sizes = list(view.shape).ok_or_else(|| InputError::new_err("a buffer without a shape"))?;
    let size = view.itemsize as i64;
    let in_bytes = list(view.strides).unwrap_or_else(|| {
        contiguous_strides(&sizes)
            .iter()
            .map(|s| s * size)
            .collect()
    });
    let how = if view.readonly != 0 {
        Borrow::ReadOnly
    } else {
        how
    };
    let (buf, whole) = (view.buf, in_bytes.iter().all(|s| s % size == 0));
    if whole {
        let strides = in_bytes.iter().map(|s| s / size).collect();
        return borrow(buf, dtype, sizes, strides, how, held);
    }
    // Elements inside of records: seen as bytes, then copied.
    let (mut wide, mut strides) = (sizes.clone(), in_bytes);
    wide.push(size);
    strides.push(1);
    let bytes = borrow(buf, DType::U8, wide, strides, Borrow::ReadOnly, held)?.to_bytes();
    let storage = Storage::from_bytes(&bytes).map_err(raise)?;
    Ok(Tensor {
        dtype,
        strides: contiguous_strides(&sizes),
        sizes,
        offset: 0,
        storage: Arc::new(storage.with_writes(Writes::Lost)),
    })
}

/// Borrows a buffer's memory as DLPack describes it.
fn borrow(
    data: *mut c_void,
    dtype: DType,
    mut sizes: Vec<i64>,
    mut strides: Vec<i64>,
    how: Borrow,
    held: Held,
) -> PyResult<Tensor> {
    let tensor = DLTensor {
        data,
        device: DLDevice {
            device_type: DLDeviceType::CPU,
            device_id: 0,
        },
        ndim: sizes.len() as i32,
        dtype: dlpack::data_type(dtype),
        shape: sizes.as_mut_ptr(),
        strides: strides.as_mut_ptr(),
        byte_offset: 0,
    };
    // SAFETY: the exporter keeps the memory for as long as the buffer is held, and says in `readonly` what may be written.
    unsafe { dlpack::borrow(&tensor, how, Box::new(held)) }.map_err(raise)
}

/// Returns the dtype of a format of Python's module `struct`.
fn dtype(format: &str, size: isize) -> Option<DType> {
    let (order, kind) = match format.strip_prefix(['@', '=', '<', '>', '!', '|']) {
        Some(kind) => (format.as_bytes()[0], kind),
        None => (b'@', format),
    };
    let little = cfg!(target_endian = "little");
    let swapped = (order == b'<' && !little) || (matches!(order, b'>' | b'!') && little);
    if swapped && size > 1 {
        return None;
    }
    Some(match (kind, size) {
        ("?", 1) => DType::Bool,
        ("b", 1) => DType::I8,
        ("B", 1) => DType::U8,
        ("h" | "i" | "l" | "q" | "n", 2) => DType::I16,
        ("h" | "i" | "l" | "q" | "n", 4) => DType::I32,
        ("h" | "i" | "l" | "q" | "n", 8) => DType::I64,
        ("H" | "I" | "L" | "Q" | "N", 2) => DType::U16,
        ("H" | "I" | "L" | "Q" | "N", 4) => DType::U32,
        ("H" | "I" | "L" | "Q" | "N", 8) => DType::U64,
        ("e", 2) => DType::F16,
        ("f", 4) => DType::F32,
        ("d", 8) => DType::F64,
        ("Zf", 8) => DType::C64,
        ("Zd", 16) => DType::C128,
        _ => return None,
    })
}

/// Returns the format of a dtype, if Python has one.
fn format(dtype: DType) -> Option<&'static CStr> {
    Some(match dtype {
        DType::Bool => c"?",
        DType::I8 => c"b",
        DType::U8 => c"B",
        DType::I16 => c"h",
        DType::U16 => c"H",
        DType::I32 => c"i",
        DType::U32 => c"I",
        DType::I64 => c"q",
        DType::U64 => c"Q",
        DType::F16 => c"e",
        DType::F32 => c"f",
        DType::F64 => c"d",
        DType::C64 => c"Zf",
        DType::C128 => c"Zd",
        _ => return None,
    })
}

/// Makes a subclass of `base`, whose instances are tensors, that exports buffers.
pub(crate) fn exporting_class<'py>(
    name: &'static CStr,
    base: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let slot = |slot, pfunc| ffi::PyType_Slot { slot, pfunc };
    let mut slots = [
        slot(GET_BUFFER, get as *mut c_void),
        slot(RELEASE_BUFFER, release as *mut c_void),
        slot(0, std::ptr::null_mut()),
    ];
    let mut spec = ffi::PyType_Spec {
        name: name.as_ptr(),
        basicsize: 0,
        itemsize: 0,
        flags: ffi::Py_TPFLAGS_DEFAULT as u32,
        slots: slots.as_mut_ptr(),
    };
    // SAFETY: slots have the types that their numbers say and end with zero; sizes are inherited.
    unsafe {
        let made = ffi::PyType_FromSpecWithBases(&mut spec, base.as_ptr());
        Bound::from_owned_ptr_or_err(base.py(), made)
    }
}

/// Lists that an exported buffer points to.
struct Lists {
    sizes: Vec<isize>,
    strides: Vec<isize>,
}

/// `bf_getbuffer`.
unsafe extern "C" fn get(obj: *mut ffi::PyObject, view: *mut View, flags: c_int) -> c_int {
    // SAFETY: the interpreter calls this with its lock held and a live object.
    let (py, obj) = unsafe {
        let py = Python::assume_attached();
        (py, Bound::from_borrowed_ptr(py, obj))
    };
    // SAFETY: the consumer's structure.
    match unsafe { fill(&obj, view, flags) } {
        Ok(()) => 0,
        Err(e) => {
            if !view.is_null() {
                // SAFETY: as above; the protocol wants it so after an error.
                unsafe { (*view).obj = std::ptr::null_mut() };
            }
            e.restore(py);
            -1
        }
    }
}

/// Describes a tensor's memory in a consumer's structure.
///
/// # Safety
/// `view` is null or can be written.
unsafe fn fill(obj: &Bound<'_, PyAny>, view: *mut View, flags: c_int) -> PyResult<()> {
    let refuse = |why: &'static str| Err(PyBufferError::new_err(why));
    let held = obj.cast::<TensorBase>()?.get();
    let t = &held.tensor;
    if view.is_null() {
        return refuse("a buffer without a view");
    }
    let readonly = t.storage.writes() == Writes::Forbidden;
    if readonly && flags & WRITABLE != 0 {
        return refuse("the tensor's memory is read-only");
    }
    let Some(format) = format(t.dtype) else {
        return refuse("Python has no format for elements of this dtype: use DLPack");
    };
    let forwards = |s: &[i64]| t.lies_as(&contiguous_strides(s));
    let dense = forwards(&t.sizes);
    let columns = {
        let turned: Vec<i64> = t.sizes.iter().rev().copied().collect();
        let strides: Vec<i64> = contiguous_strides(&turned).into_iter().rev().collect();
        t.lies_as(&strides)
    };
    let wanted = |flag: c_int| flags & flag == flag;
    if (wanted(C_CONTIGUOUS) && !dense)
        || (wanted(F_CONTIGUOUS) && !columns)
        || (wanted(ANY_CONTIGUOUS) && !dense && !columns)
        || (!wanted(STRIDES) && !dense)
    {
        return refuse("the tensor's elements are not contiguous");
    }
    let size = t.dtype.size() as isize;
    let lists = Box::into_raw(Box::new(Lists {
        sizes: t.sizes.iter().map(|n| *n as isize).collect(),
        strides: t.strides.iter().map(|n| *n as isize * size).collect(),
    }));
    let or_null = |yes: bool, p: *mut isize| if yes { p } else { std::ptr::null_mut() };
    // SAFETY: the consumer's structure; the lists live until `release`, the memory as long as the object, which is held.
    unsafe {
        view.write(View {
            buf: t.data().cast(),
            obj: obj.clone().into_ptr(),
            len: t.numel() as isize * size,
            itemsize: size,
            readonly: readonly.into(),
            ndim: t.sizes.len() as c_int,
            format: if wanted(FORMAT) {
                format.as_ptr().cast_mut()
            } else {
                std::ptr::null_mut()
            },
            shape: or_null(wanted(ND), (*lists).sizes.as_mut_ptr()),
            strides: or_null(wanted(STRIDES), (*lists).strides.as_mut_ptr()),
            suboffsets: std::ptr::null_mut(),
            internal: lists.cast(),
        });
    }
    Ok(())
}

/// `bf_releasebuffer`.
unsafe extern "C" fn release(_: *mut ffi::PyObject, view: *mut View) {
    // SAFETY: a structure that `fill` wrote, released once.
    drop(unsafe { Box::from_raw((*view).internal.cast::<Lists>()) });
}
