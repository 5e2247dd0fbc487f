//! inrush's errors as Python exceptions: one class for each kind, under a common base.

use inrush_base::ErrorKind;
use pyo3::create_exception;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

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
        ErrorKind::Input => InputError::new_err(text),
        ErrorKind::Unsupported => UnsupportedError::new_err(text),
        ErrorKind::Machine => MachineError::new_err(text),
        ErrorKind::Internal => InternalError::new_err(text),
    }
}
