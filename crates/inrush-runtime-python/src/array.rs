//! Objects of Python as tensors, without a copy where strides and alignment permit.

use crate::device::DeviceTensor;
use crate::errors::InputError;
use crate::tensor::TensorBase;
use crate::{buffer, capsule};
use inrush_host::native::{Argument, Stream};
use inrush_runtime::dlpack::Borrow;
use inrush_runtime::{Tensor, Value};
use pyo3::intern;
use pyo3::prelude::*;

/// Borrows the memory of a tensor, of an object with a buffer such as a NumPy array, or of one with `__dlpack__`.
///
/// # Errors
/// An input error for other objects, other devices and elements without a dtype.
pub(crate) fn borrow(obj: &Bound<'_, PyAny>, how: Borrow) -> PyResult<Tensor> {
    if let Ok(t) = obj.cast::<TensorBase>() {
        return Ok(t.get().tensor.clone());
    }
    if buffer::has_buffer(obj) {
        return buffer::import(obj, how);
    }
    if obj.hasattr(intern!(obj.py(), "__dlpack__"))? {
        return capsule::import(obj, how);
    }
    Err(InputError::new_err(format!(
        "an array is needed (NumPy, DLPack or a buffer), not {}",
        type_name(obj)
    )))
}

/// Likewise in memory of the host or of a GPU. With `stream`, tensors of GPUs come after what that stream waits for.
///
/// # Errors
/// As for [`borrow`]; an input error for memory of a GPU without a stream, which is for models on the CPU.
pub(crate) fn argument(
    obj: &Bound<'_, PyAny>,
    how: Borrow,
    stream: Option<Stream>,
) -> PyResult<Argument> {
    if let Ok(t) = obj.cast::<DeviceTensor>() {
        return Ok(Argument::Device(t.get().tensor.clone()));
    }
    let host = obj.cast::<TensorBase>().is_ok() || buffer::has_buffer(obj);
    if let (Some(stream), false) = (stream, host)
        && capsule::is_of_device(obj)?
    {
        return capsule::import_device(obj, how, stream);
    }
    borrow(obj, how).map(|t| Argument::Value(Value::Tensor(t)))
}

/// Returns the name of an object's type.
pub(crate) fn type_name(obj: &Bound<'_, PyAny>) -> String {
    let name = obj.get_type().name();
    name.map_or_else(|_| "an object".into(), |n| n.to_string())
}

/// Puts a place before the text of an input error.
pub(crate) fn at(py: Python<'_>, place: &str, e: PyErr) -> PyErr {
    if e.is_instance_of::<InputError>(py) {
        InputError::new_err(format!("{place}: {}", e.value(py)))
    } else {
        e
    }
}
