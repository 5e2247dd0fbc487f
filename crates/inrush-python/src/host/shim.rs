//! libtorch's stable C functions, looked up in the running process.
//!
//! PyTorch has been imported already, so its libraries are loaded; nothing is linked. Three things go beyond the stable
//! functions, and all are checked when they are set up: where a Python tensor object keeps its `at::Tensor` (found by
//! looking for the address that the tensor itself reports), `THPVariable_Wrap`, which makes a Python object of one, and
//! `at::native::is_neg` and `is_conj`, which read flags that the stable functions do not tell.

use super::kinds::{self, Kinds};
use inrush_base::DType;
use inrush_host::dtype_code;
use inrush_host::program::{CPU, Device};
use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use std::ffi::c_void;

/// A pointer to an `at::Tensor`: in a Python object, or owned.
pub type Handle = *mut c_void;

type Rc = i32;
type EmptyStrided =
    unsafe extern "C" fn(i64, *const i64, *const i64, i32, i32, i32, *mut Handle) -> Rc;
type Reinterpret =
    unsafe extern "C" fn(Handle, i64, *const i64, *const i64, i64, *mut Handle) -> Rc;
type Flag = unsafe extern "C" fn(Handle) -> bool;

type FromBlob = unsafe extern "C" fn(
    *mut c_void,
    i64,
    *const i64,
    *const i64,
    i64,
    i32,
    i32,
    i32,
    *mut Handle,
) -> Rc;

/// The functions, and the layout of Python's tensor objects in this process.
pub struct Shims {
    /// Bytes from the start of a Python tensor object to its `at::Tensor`.
    tensor_at: usize,
    /// `torch._C.TensorBase`, which every tensor's type derives from.
    base: *mut ffi::PyTypeObject,
    /// `torch.Tensor`, the type of most tensors.
    plain: *mut ffi::PyTypeObject,
    /// `torch.nn.Parameter`, the type of most others.
    parameter: *mut ffi::PyTypeObject,
    empty_strided: EmptyStrided,
    reinterpret: Reinterpret,
    view_dtype: unsafe extern "C" fn(Handle, i32, *mut Handle) -> Rc,
    is_neg: Flag,
    is_conj: Flag,
    delete: unsafe extern "C" fn(Handle) -> Rc,
    data_ptr: unsafe extern "C" fn(Handle, *mut *mut c_void) -> Rc,
    dim: unsafe extern "C" fn(Handle, *mut i64) -> Rc,
    sizes: unsafe extern "C" fn(Handle, *mut *mut i64) -> Rc,
    strides: unsafe extern "C" fn(Handle, *mut *mut i64) -> Rc,
    dtype: unsafe extern "C" fn(Handle, *mut i32) -> Rc,
    element_size: unsafe extern "C" fn(i32) -> usize,
    device_type: unsafe extern "C" fn(Handle, *mut i32) -> Rc,
    device_index: unsafe extern "C" fn(Handle, *mut i32) -> Rc,
    from_blob: FromBlob,
    copy: unsafe extern "C" fn(Handle, Handle, i32) -> Rc,
    zero: unsafe extern "C" fn(Handle) -> Rc,
    wrap: unsafe extern "C" fn(Handle) -> *mut ffi::PyObject,
    threads: Option<unsafe extern "C" fn(*mut u32) -> Rc>,
    /// Tells which devices PyTorch's numbers stand for.
    kinds: &'static Kinds,
    _libraries: [libloading::os::unix::Library; 2],
}

// SAFETY: function addresses and type objects of a process-wide library; all are used with the GIL held.
unsafe impl Send for Shims {}
unsafe impl Sync for Shims {}

static SHIMS: PyOnceLock<Shims> = PyOnceLock::new();

/// Returns the process's shims, which the first call looks up.
pub fn shims(py: Python<'_>) -> PyResult<&'static Shims> {
    if let Some(s) = SHIMS.get(py) {
        return Ok(s);
    }
    let s = Shims::find(py)?;
    Ok(SHIMS.get_or_init(py, || s))
}

fn failed(what: &str) -> PyErr {
    PyRuntimeError::new_err(format!("PyTorch refused to {what}"))
}

/// Returns one of PyTorch's libraries, which the process has loaded.
pub fn library(py: Python<'_>, name: &str) -> PyResult<libloading::os::unix::Library> {
    let file: String = py.import("torch")?.getattr("__file__")?.extract()?;
    let folder = std::path::Path::new(&file).with_file_name("lib");
    let path = folder.join(format!(
        "{}{name}{}",
        std::env::consts::DLL_PREFIX,
        std::env::consts::DLL_SUFFIX
    ));
    let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD;
    // SAFETY: the library is loaded already (`NOLOAD`), so no initialiser runs.
    unsafe { libloading::os::unix::Library::open(Some(&path), flags) }
        .map_err(|e| PyRuntimeError::new_err(format!("`{}` is not loaded: {e}", path.display())))
}

impl Shims {
    fn find(py: Python<'_>) -> PyResult<Shims> {
        let torch = py.import("torch")?;
        let cpu = library(py, "torch_cpu")?;
        let python = library(py, "torch_python")?;
        let base = torch.getattr("_C")?.getattr("TensorBase")?;
        let plain = torch.getattr("Tensor")?;
        let parameter = torch.getattr("nn")?.getattr("Parameter")?;
        // SAFETY: names and types are those of PyTorch's `shim.h`; `THPVariable_Wrap` takes a reference to a tensor.
        unsafe {
            macro_rules! get {
                ($lib:expr, $name:expr) => {
                    *$lib.get($name).map_err(|e| {
                        PyRuntimeError::new_err(format!(
                            "this PyTorch has no `{}`: {e}",
                            String::from_utf8_lossy($name)
                        ))
                    })?
                };
            }
            Ok(Shims {
                tensor_at: locate(&torch)?,
                base: base.as_ptr().cast(),
                plain: plain.as_ptr().cast(),
                parameter: parameter.as_ptr().cast(),
                empty_strided: get!(cpu, b"aoti_torch_empty_strided"),
                reinterpret: get!(cpu, b"aoti_torch__reinterpret_tensor"),
                view_dtype: get!(cpu, b"aoti_torch_view_dtype"),
                is_neg: get!(cpu, b"_ZN2at6native6is_negERKNS_6TensorE"),
                is_conj: get!(cpu, b"_ZN2at6native7is_conjERKNS_6TensorE"),
                delete: get!(cpu, b"aoti_torch_delete_tensor_object"),
                data_ptr: get!(cpu, b"aoti_torch_get_data_ptr"),
                dim: get!(cpu, b"aoti_torch_get_dim"),
                sizes: get!(cpu, b"aoti_torch_get_sizes"),
                strides: get!(cpu, b"aoti_torch_get_strides"),
                dtype: get!(cpu, b"aoti_torch_get_dtype"),
                element_size: get!(cpu, b"aoti_torch_dtype_element_size"),
                device_type: get!(cpu, b"aoti_torch_get_device_type"),
                device_index: get!(cpu, b"aoti_torch_get_device_index"),
                from_blob: get!(cpu, b"aoti_torch_create_tensor_from_blob"),
                copy: get!(cpu, b"aoti_torch_copy_"),
                zero: get!(cpu, b"aoti_torch_zero_"),
                wrap: get!(python, b"_Z16THPVariable_WrapRKN2at10TensorBaseE"),
                threads: cpu.get(b"torch_get_num_threads").ok().map(|f| *f),
                kinds: kinds::kinds(py)?,
                _libraries: [cpu, python],
            })
        }
    }

    /// Returns the `at::Tensor` inside a Python object, or `None` for anything else.
    pub fn handle(&self, object: &Bound<'_, PyAny>) -> Option<Handle> {
        let ptr = object.as_ptr();
        // SAFETY: the object is alive; the offset was found to be right for tensors, which all derive from `base`.
        unsafe {
            let ty = ffi::Py_TYPE(ptr);
            if ty != self.plain && ty != self.parameter && ffi::PyType_IsSubtype(ty, self.base) == 0
            {
                return None;
            }
            Some(ptr.cast::<u8>().add(self.tensor_at).cast())
        }
    }

    /// As [`Shims::handle`], with an error that gives the object's type.
    pub fn tensor(&self, object: &Bound<'_, PyAny>) -> PyResult<Handle> {
        match self.handle(object) {
            Some(h) => Ok(h),
            None => Err(PyTypeError::new_err(format!(
                "a compiled graph takes a tensor here, not {}",
                object.get_type()
            ))),
        }
    }

    /// Returns true if a tensor's memory holds its values: they are not negated when they are read (the negative bit of
    /// `z.conj().imag`), and there is memory (`torch._efficientzerotensor` has none). Without elements there is no address.
    ///
    /// # Safety
    /// `h` is the handle of a live tensor, whose first element is at `address`.
    pub unsafe fn is_materialized<T>(&self, h: Handle, address: *const T) -> bool {
        // SAFETY: by the caller's promise; the function reads a flag.
        !address.is_null() && !unsafe { (self.is_neg)(h) || (self.is_conj)(h) }
    }

    /// Returns the address of a CPU tensor's first element, and PyTorch's number of its dtype.
    ///
    /// # Safety
    /// `h` is the handle of a live tensor.
    pub unsafe fn data(&self, h: Handle) -> PyResult<(*mut u8, i32)> {
        let (mut p, mut dtype, mut device) = (std::ptr::null_mut(), 0, 0);
        // SAFETY: by the caller's promise; results are locals.
        let rc = unsafe {
            (self.dtype)(h, &mut dtype)
                | (self.device_type)(h, &mut device)
                | if device == CPU {
                    (self.data_ptr)(h, &mut p)
                } else {
                    0
                }
        };
        if rc != 0 {
            return Err(failed("give a tensor's address"));
        }
        if device != CPU {
            return Err(PyRuntimeError::new_err(
                "a graph that was compiled for the CPU got a tensor on another device",
            ));
        }
        Ok((p.cast(), dtype))
    }

    /// Returns the address of a tensor's first element on any device, PyTorch's number of its dtype, and true if the tensor is
    /// on `device`.
    ///
    /// # Safety
    /// `h` is the handle of a live tensor.
    pub unsafe fn data_on(&self, h: Handle, device: Device) -> PyResult<(u64, i32, bool)> {
        let (mut p, mut dtype, mut kind, mut index) = (std::ptr::null_mut(), 0, 0, 0);
        // SAFETY: by the caller's promise; results are locals.
        let rc = unsafe {
            (self.dtype)(h, &mut dtype)
                | (self.device_type)(h, &mut kind)
                | (self.device_index)(h, &mut index)
                | (self.data_ptr)(h, &mut p)
        };
        if rc != 0 {
            return Err(failed("give a tensor's address"));
        }
        let here = kind == kinds::number(device) && (kind == CPU || index == device.index);
        Ok((p as u64, dtype, here))
    }

    /// Returns PyTorch's number of a tensor's dtype, and its device.
    ///
    /// # Safety
    /// `h` is the handle of a live tensor.
    pub unsafe fn kind(&self, h: Handle) -> PyResult<(i32, Device)> {
        let (mut dtype, mut kind, mut index) = (0, 0, 0);
        // SAFETY: by the caller's promise; results are locals.
        let rc = unsafe {
            (self.dtype)(h, &mut dtype)
                | (self.device_type)(h, &mut kind)
                | (self.device_index)(h, &mut index)
        };
        match rc {
            0 => Ok((dtype, self.kinds.of_torch(kind, index))),
            _ => Err(failed("tell a tensor's device")),
        }
    }

    /// Returns the bytes of an element.
    ///
    /// # Safety
    /// `h` is the handle of a live tensor.
    pub unsafe fn width(&self, h: Handle) -> PyResult<u64> {
        let mut dtype = 0;
        // SAFETY: by the caller's promise; the size is asked of a dtype that PyTorch gave.
        unsafe {
            match (self.dtype)(h, &mut dtype) {
                0 => Ok((self.element_size)(dtype) as u64),
                _ => Err(failed("tell a tensor's dtype")),
            }
        }
    }

    /// Returns a new tensor on a device, owned by the caller, and its address. Needs no lock.
    pub fn allocate(
        &self,
        sizes: &[i64],
        strides: &[i64],
        dtype: i32,
        device: Device,
    ) -> Option<(Handle, u64)> {
        let mut h = std::ptr::null_mut();
        let mut p = std::ptr::null_mut();
        // SAFETY: sizes and strides have the same length; results are locals.
        unsafe {
            let rank = sizes.len() as i64;
            let rc = (self.empty_strided)(
                rank,
                sizes.as_ptr(),
                strides.as_ptr(),
                dtype,
                kinds::number(device),
                device.index,
                &mut h,
            );
            if rc != 0 {
                return None;
            }
            if (self.data_ptr)(h, &mut p) != 0 {
                (self.delete)(h);
                return None;
            }
        }
        Some((h, p as u64))
    }

    /// Returns a tensor over memory of others, which must outlive its uses. The caller owns the tensor.
    pub fn blob(
        &self,
        address: u64,
        sizes: &[i64],
        strides: &[i64],
        dtype: i32,
        device: Device,
    ) -> Option<Handle> {
        let mut h = std::ptr::null_mut();
        // SAFETY: sizes and strides have the same length; the address is not read here.
        let rc = unsafe {
            (self.from_blob)(
                address as *mut c_void,
                sizes.len() as i64,
                sizes.as_ptr(),
                strides.as_ptr(),
                0,
                dtype,
                kinds::number(device),
                device.index,
                &mut h,
            )
        };
        (rc == 0).then_some(h)
    }

    /// Returns the address of a tensor's first element.
    ///
    /// # Safety
    /// `h` is the handle of a live tensor.
    pub unsafe fn address(&self, h: Handle) -> Option<u64> {
        let mut p = std::ptr::null_mut();
        // SAFETY: by the caller's promise.
        (unsafe { (self.data_ptr)(h, &mut p) } == 0).then_some(p as u64)
    }

    /// Copies elements from one tensor to another.
    ///
    /// # Safety
    /// Both are handles of live tensors.
    pub unsafe fn copy(&self, to: Handle, from: Handle) -> bool {
        // SAFETY: by the caller's promise.
        unsafe { (self.copy)(to, from, 1) == 0 }
    }

    /// Has PyTorch issue one piece of work on its current stream of a device; false if it refuses.
    pub fn issue_one(&self, device: Device) -> bool {
        let Some((h, _)) = self.allocate(&[1], &[1], dtype_code(DType::F32), device) else {
            return false;
        };
        // SAFETY: the tensor is owned, and forgotten here. Its memory goes to later work of the same stream.
        unsafe {
            let done = (self.zero)(h) == 0;
            self.release(h);
            done
        }
    }

    /// Releases an owned tensor.
    ///
    /// # Safety
    /// `h` is owned by the caller, who forgets it.
    pub unsafe fn release(&self, h: Handle) {
        // SAFETY: by the caller's promise.
        unsafe { (self.delete)(h) };
    }

    /// Returns a Python object of an owned tensor, which stays owned.
    ///
    /// # Safety
    /// `h` is the handle of a live tensor.
    pub unsafe fn object(&self, py: Python<'_>, h: Handle) -> PyResult<Py<PyAny>> {
        // SAFETY: by the caller's promise; wrapping takes a reference of its own.
        unsafe { Bound::from_owned_ptr_or_err(py, (self.wrap)(h)).map(Bound::unbind) }
    }

    /// Returns sizes and strides of a tensor.
    ///
    /// # Safety
    /// `h` is the handle of a tensor that outlives the result.
    pub unsafe fn shape<'a>(&self, h: Handle) -> PyResult<(&'a [i64], &'a [i64])> {
        let (mut rank, mut sizes, mut strides) = (0, std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: by the caller's promise; what is borrowed lives in the tensor.
        unsafe {
            let rc = (self.dim)(h, &mut rank)
                | (self.sizes)(h, &mut sizes)
                | (self.strides)(h, &mut strides);
            if rc != 0 {
                return Err(failed("tell a tensor's sizes"));
            }
            if rank == 0 {
                return Ok((&[], &[]));
            }
            Ok((
                std::slice::from_raw_parts(sizes, rank as usize),
                std::slice::from_raw_parts(strides, rank as usize),
            ))
        }
    }

    /// Returns a new CPU tensor with unspecified contents, and the address of its first element.
    pub fn empty(
        &self,
        py: Python<'_>,
        sizes: &[i64],
        strides: &[i64],
        dtype: i32,
    ) -> PyResult<(Py<PyAny>, *mut u8)> {
        let here = Device {
            kind: CPU,
            index: 0,
        };
        let (h, p) = self
            .allocate(sizes, strides, dtype, here)
            .ok_or_else(|| failed(&format!("allocate a tensor of sizes {sizes:?}")))?;
        // SAFETY: the new tensor is owned until it is wrapped.
        Ok((unsafe { self.wrap(py, h)? }, p as *mut u8))
    }

    /// Returns a tensor over the storage of `base`, starting `offset` elements after its first. Its elements are read as
    /// `dtype`, which has the size of the base's.
    pub fn view(
        &self,
        py: Python<'_>,
        base: Handle,
        sizes: &[i64],
        strides: &[i64],
        offset: i64,
        dtype: Option<i32>,
    ) -> PyResult<Py<PyAny>> {
        let mut h = std::ptr::null_mut();
        if let Some(dtype) = dtype {
            let mut read = std::ptr::null_mut();
            // SAFETY: the base is alive, the result a local.
            if unsafe { (self.view_dtype)(base, dtype, &mut read) } != 0 {
                return Err(failed("read a tensor's memory as another dtype"));
            }
            let view = self.view(py, read, sizes, strides, offset, None);
            // SAFETY: `read` is owned here and not used again.
            unsafe { self.release(read) };
            return view;
        }
        // SAFETY: as in `empty`; PyTorch checks that the view stays inside the storage when it is used.
        unsafe {
            let rank = sizes.len() as i64;
            let rc =
                (self.reinterpret)(base, rank, sizes.as_ptr(), strides.as_ptr(), offset, &mut h);
            if rc != 0 {
                return Err(failed("make a view"));
            }
            self.wrap(py, h)
        }
    }

    /// Makes a Python object of an owned tensor.
    unsafe fn wrap(&self, py: Python<'_>, h: Handle) -> PyResult<Py<PyAny>> {
        // SAFETY: `h` is owned by the caller's caller; wrapping takes a reference of its own.
        unsafe {
            let object = (self.wrap)(h);
            (self.delete)(h);
            Bound::from_owned_ptr_or_err(py, object).map(Bound::unbind)
        }
    }

    /// Returns the number of threads that PyTorch's operators use now.
    pub fn threads(&self) -> Option<usize> {
        let mut n = 0u32;
        // SAFETY: a function without preconditions.
        let rc = unsafe { (self.threads?)(&mut n) };
        (rc == 0 && n > 0).then_some(n as usize)
    }
}

/// Returns the offset of the `at::Tensor` in a Python tensor: that of the word which holds the address that `_cdata` gives.
fn locate(torch: &Bound<'_, PyAny>) -> PyResult<usize> {
    const WORD: usize = size_of::<usize>();
    let unknown = || {
        PyRuntimeError::new_err(
            "this PyTorch keeps tensors in Python objects in a way that inrush does not know",
        )
    };
    let mut found = None;
    for n in 1..=3i64 {
        let t = torch.getattr("empty")?.call1((n,))?;
        let want: usize = t.getattr("_cdata")?.extract()?;
        // The object's head (count and type), then the tensor, perhaps after a flag.
        let at = (2..6).map(|w| w * WORD).find(|at| {
            // SAFETY: a tensor object is larger than six words (hooks follow the tensor).
            unsafe { t.as_ptr().cast::<u8>().add(*at).cast::<usize>().read() == want }
        });
        let at = at.ok_or_else(unknown)?;
        if found.is_some_and(|f| f != at) {
            return Err(unknown());
        }
        found = Some(at);
    }
    found.ok_or_else(unknown)
}
