//! DLPack's capsules, in both directions and in both formats: with a version since 1.0, and without.

use crate::errors::{InputError, raise};
use dlpark::DlpackFlags;
use dlpark::ffi::{DLDeviceType, DLManagedTensor, DLManagedTensorVersioned};
use inrush_host::native::{Argument, Stream, dlpack as device};
use inrush_runtime::dlpack::{self, Borrow, Memory};
use inrush_runtime::{Tensor, Value};
use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyDict, PyTuple};
use std::ffi::{CStr, c_void};

/// The version of DLPack that is asked for.
const VERSION: (u32, u32) = (1, 1);
/// Devices whose memory the processor reads: itself, and what is pinned for a GPU.
const CPU: i64 = 1;
const PINNED: i64 = 3;
/// DLPack's type of GPUs whose default stream has number 0. It has number 1 on the others.
pub(crate) const STREAMS_FROM_ZERO: i64 = 10;

/// A structure of DLPack that a capsule holds.
trait Managed {
    const NAME: &'static CStr;
    /// The capsule's name after its content was taken.
    const USED: &'static CStr;

    /// Calls the deleter.
    ///
    /// # Safety
    /// `this` is live, and is not used afterwards.
    unsafe fn delete(this: *mut Self);
}

impl Managed for DLManagedTensorVersioned {
    const NAME: &'static CStr = c"dltensor_versioned";
    const USED: &'static CStr = c"used_dltensor_versioned";

    unsafe fn delete(this: *mut Self) {
        // SAFETY: the caller's promise.
        if let Some(delete) = unsafe { (*this).deleter } {
            // SAFETY: as above.
            unsafe { delete(this) };
        }
    }
}

impl Managed for DLManagedTensor {
    const NAME: &'static CStr = c"dltensor";
    const USED: &'static CStr = c"used_dltensor";

    unsafe fn delete(this: *mut Self) {
        // SAFETY: the caller's promise.
        if let Some(delete) = unsafe { (*this).deleter } {
            // SAFETY: as above.
            unsafe { delete(this) };
        }
    }
}

/// A tensor of another library, given back when it is dropped.
struct Taken<M: Managed>(*mut M);

// SAFETY: the structure is only read; its deleter is called with the interpreter's lock held.
unsafe impl<M: Managed> Send for Taken<M> {}
// SAFETY: as above.
unsafe impl<M: Managed> Sync for Taken<M> {}

impl<M: Managed> Drop for Taken<M> {
    fn drop(&mut self) {
        // SAFETY: taken from a capsule that no longer owns it, and deleted once.
        Python::try_attach(|_| unsafe { M::delete(self.0) });
    }
}

/// Returns DLPack's type of the device that an object with `__dlpack__` is on.
fn device_of(obj: &Bound<'_, PyAny>) -> PyResult<i64> {
    let device = obj.call_method0(intern!(obj.py(), "__dlpack_device__"));
    let device = device.and_then(|d| d.extract::<(i64, i64)>());
    Ok(device.map_err(|e| refused(&e))?.0)
}

fn refused(e: &PyErr) -> PyErr {
    InputError::new_err(format!("its library does not export it: {e}"))
}

/// Returns true for an object with `__dlpack__` whose memory is a GPU's.
pub(crate) fn is_of_device(obj: &Bound<'_, PyAny>) -> PyResult<bool> {
    if !obj.hasattr(intern!(obj.py(), "__dlpack__"))? {
        return Ok(false);
    }
    let device = i32::try_from(device_of(obj)?).unwrap_or(0);
    Ok(device::is_of_device(DLDeviceType(device as _)))
}

/// Borrows the memory of an object that has `__dlpack__`.
///
/// # Errors
/// An input error for a tensor that is not in memory of the CPU or that its library does not export.
pub(crate) fn import(obj: &Bound<'_, PyAny>, how: Borrow) -> PyResult<Tensor> {
    let device = device_of(obj)?;
    if device != CPU && device != PINNED {
        return Err(InputError::new_err(format!(
            "it is in the memory of DLPack device {device}, the model takes memory of the CPU"
        )));
    }
    match borrow(obj, how, None)? {
        Argument::Value(Value::Tensor(t)) => Ok(t),
        _ => Err(InputError::new_err(
            "it says that it is in memory of the CPU, and is not",
        )),
    }
}

/// Borrows the memory of an object on a GPU: its library has the stream wait for the work that writes it. Where libraries share no
/// streams that work has to be done.
///
/// # Errors
/// An input error for a tensor that its library does not export.
pub(crate) fn import_device(
    obj: &Bound<'_, PyAny>,
    how: Borrow,
    stream: Stream,
) -> PyResult<Argument> {
    borrow(obj, how, Some(stream))
}

/// Borrows the memory of an object that has `__dlpack__`, of the host or of a device.
fn borrow(obj: &Bound<'_, PyAny>, how: Borrow, stream: Option<Stream>) -> PyResult<Argument> {
    let py = obj.py();
    let name = intern!(py, "__dlpack__");
    let asked = [("max_version", VERSION)].into_py_dict(py)?;
    let plain = PyDict::new(py);
    if let Some(stream) = stream {
        let kind = device_of(obj)?;
        let number = match kind {
            STREAMS_FROM_ZERO => stream.0,
            _ => stream.0.max(1),
        };
        // Libraries whose streams are other things cannot wait on it, nor have it wait.
        if device::shares_streams(DLDeviceType(kind as _)) {
            for d in [&asked, &plain] {
                d.set_item("stream", number)?;
            }
        }
    }
    let capsule = match obj.call_method(name, (), Some(&asked)) {
        // Libraries before DLPack 1.0.
        Err(e) if e.is_instance_of::<PyTypeError>(py) => obj.call_method(name, (), Some(&plain)),
        other => other,
    }
    .map_err(|e| refused(&e))?;
    if let Some(taken) = take::<DLManagedTensorVersioned>(&capsule)? {
        // SAFETY: live until `taken` is dropped. The version comes first in every version of the structure.
        let (version, flags) = unsafe { ((*taken.0).version, (*taken.0).flags) };
        if version.major != VERSION.0 {
            return Err(InputError::new_err(format!(
                "it has version {}.{} of DLPack, version {} is read",
                version.major, version.minor, VERSION.0
            )));
        }
        // Writes into a copy would be lost, so that it is not written either.
        let how = if flags.intersects(DlpackFlags::READ_ONLY | DlpackFlags::IS_COPIED) {
            Borrow::ReadOnly
        } else {
            how
        };
        // SAFETY: as above; the major version is that of this structure.
        let tensor = unsafe { &(*taken.0).dl_tensor };
        // SAFETY: the library keeps the memory until its deleter is called.
        return unsafe { device::borrow(tensor, how, Box::new(taken)) }.map_err(raise);
    }
    if let Some(taken) = take::<DLManagedTensor>(&capsule)? {
        // SAFETY: live until `taken` is dropped.
        let tensor = unsafe { &(*taken.0).dl_tensor };
        // SAFETY: as above.
        return unsafe { device::borrow(tensor, how, Box::new(taken)) }.map_err(raise);
    }
    Err(InputError::new_err(
        "its `__dlpack__` gives no capsule of DLPack",
    ))
}

/// Takes the content of a capsule, if it has such a one.
fn take<M: Managed>(capsule: &Bound<'_, PyAny>) -> PyResult<Option<Taken<M>>> {
    let capsule = capsule.as_ptr();
    // SAFETY: a live object; other types than capsules are not valid ones.
    if unsafe { ffi::PyCapsule_IsValid(capsule, M::NAME.as_ptr()) } == 0 {
        return Ok(None);
    }
    // SAFETY: a capsule of this name, whose content is of this type.
    let content = unsafe { ffi::PyCapsule_GetPointer(capsule, M::NAME.as_ptr()) };
    // SAFETY: the name lives as long as the library.
    unsafe { ffi::PyCapsule_SetName(capsule, M::USED.as_ptr()) };
    Ok(Some(Taken(content.cast())))
}

/// Lends a tensor through a capsule, in the newest format that the consumer knows.
pub(crate) fn export<'py>(
    py: Python<'py>,
    t: impl Into<Memory>,
    max_version: Option<&Bound<'py, PyTuple>>,
) -> PyResult<Bound<'py, PyAny>> {
    let major = match max_version {
        Some(v) => v.get_item(0)?.extract::<u32>()?,
        None => 0,
    };
    if major >= VERSION.0 {
        capsule(py, dlpack::lend(t))
    } else {
        capsule(py, dlpack::lend_unversioned(t).map_err(raise)?)
    }
}

fn capsule<M: Managed>(py: Python<'_>, managed: *mut M) -> PyResult<Bound<'_, PyAny>> {
    // SAFETY: the name lives as long as the library; the destructor looks whether the content was taken.
    unsafe {
        let made = ffi::PyCapsule_New(
            managed.cast::<c_void>(),
            M::NAME.as_ptr(),
            Some(destroy::<M>),
        );
        Bound::from_owned_ptr_or_err(py, made).inspect_err(|_| M::delete(managed))
    }
}

/// Deletes what no consumer took.
unsafe extern "C" fn destroy<M: Managed>(capsule: *mut ffi::PyObject) {
    // SAFETY: a capsule that `capsule` made, in its destructor.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, M::NAME.as_ptr()) != 0 {
            M::delete(ffi::PyCapsule_GetPointer(capsule, M::NAME.as_ptr()).cast());
        }
    }
}
