//! inrush's errors as Python exceptions: one class for each kind, under a common base.
//!
//! ```text
//! RuntimeError
//!   inrush.Error
//!     InputError        the model, file or arguments
//!     UnsupportedError  valid, not done yet
//!     MachineError      compiler, cache, disk, memory
//!     InternalError     a fault of inrush
//! ```
//!
//! Errors of compiling are raised as these. An error inside a call is raised as eager raises it
//! (`host::run::run_error`), because callers of the model catch eager's classes.

use inrush_base::ErrorKind;
use pyo3::create_exception;
use pyo3::exceptions::{PyIndexError, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{IntoPyDict, PyType};

create_exception!(inrush, Error, PyRuntimeError, "What inrush raises.");
create_exception!(
    inrush,
    InputError,
    Error,
    "The model, file or arguments are at fault."
);
create_exception!(
    inrush,
    UnsupportedError,
    Error,
    "Valid, but inrush does not do it yet."
);
create_exception!(
    inrush,
    MachineError,
    Error,
    "The machine is at fault: compiler, cache, disk."
);
create_exception!(inrush, InternalError, Error, "inrush is at fault.");

/// The exception for an error.
pub fn raise(e: inrush_base::Error) -> PyErr {
    let text = e.to_string();
    match e.kind() {
        ErrorKind::Input
        | ErrorKind::OutOfRange
        | ErrorKind::ZeroDivision
        | ErrorKind::InvalidValue => InputError::new_err(text),
        ErrorKind::Unsupported => UnsupportedError::new_err(text),
        ErrorKind::Machine | ErrorKind::OutOfMemory => MachineError::new_err(text),
        ErrorKind::Internal => InternalError::new_err(text),
    }
}

/// Builds the exception for an index out of range. Some of PyTorch's operators raise `IndexError`,
/// others `RuntimeError`, and a kernel fuses both sorts. The class derives from both, so that
/// either `except` clause catches it. `create_exception!` takes one base, so the class is made at
/// its first use.
pub fn out_of_range(text: String) -> PyErr {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    Python::attach(|py| {
        let make = || -> PyResult<Py<PyType>> {
            let bases = (
                py.get_type::<PyIndexError>(),
                py.get_type::<PyRuntimeError>(),
            );
            let named = [("__module__", "inrush")].into_py_dict(py)?;
            let class = (py.get_type::<PyType>()).call1(("OutOfRangeError", bases, named))?;
            Ok(class.cast_into::<PyType>()?.unbind())
        };
        match CLASS.get_or_try_init(py, make) {
            Ok(class) => PyErr::from_type(class.bind(py).clone(), text),
            Err(error) => error,
        }
    })
}
