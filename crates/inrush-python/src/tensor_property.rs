//! Sizes and strides of tensors, for the code that Dynamo writes.
//!
//! Where sizes are dynamic, captured code reads each size that a graph takes from a tensor. PyTorch's function for it turns Dynamo off and
//! on again in Python, which takes longer than many kernels. Of plain tensors nothing runs that Dynamo could see.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple};

/// A function of a tensor and further arguments that calls a method of the tensor.
#[pyclass(frozen, module = "inrush._native")]
pub struct TensorProperty {
    method: Py<PyString>,
    /// PyTorch's function, for subclasses of tensors: their methods may be written in Python.
    #[pyo3(get, name = "__wrapped__")]
    original: Py<PyAny>,
    /// Types of tensors without methods of their own.
    plain: [Py<PyAny>; 2],
}

#[pymethods]
impl TensorProperty {
    #[new]
    fn new(py: Python<'_>, method: Py<PyString>, original: Py<PyAny>) -> PyResult<TensorProperty> {
        let torch = py.import("torch")?;
        Ok(TensorProperty {
            method,
            original,
            plain: [
                torch.getattr("Tensor")?.unbind(),
                torch.getattr("nn")?.getattr("Parameter")?.unbind(),
            ],
        })
    }

    #[pyo3(signature = (*args))]
    fn __call__<'py>(
        &self,
        py: Python<'py>,
        args: &Bound<'py, PyTuple>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let Ok(tensor) = args.get_item(0) else {
            return Err(PyTypeError::new_err("a tensor is expected"));
        };
        let kind = tensor.get_type();
        if !self.plain.iter().any(|p| kind.is(p)) {
            return self.original.bind(py).call1(args);
        }
        tensor.call_method1(&self.method, args.get_slice(1, args.len()))
    }
}
