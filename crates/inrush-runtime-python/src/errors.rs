//! inrush's errors as Python exceptions: one class for each kind, under a common base.
//!
//! ```text
//! RuntimeError
//!   Error
//!     PackageError         a file that is not a whole package
//!     InputError           arguments, arrays or weights
//!       OutOfRangeError    an index, found inside the model
//!       DivisionError      an integer divided by zero, likewise
//!       InvalidValueError  an element that an operator does not take, likewise
//!     UnsupportedError     valid, not done yet
//!     MachineError         another processor, a fork, disk
//!       OutOfMemoryError
//!     InternalError        a fault of inrush
//! ```

use inrush_base::ErrorKind;
use pyo3::PyErr;
use pyo3::create_exception;
use pyo3::exceptions::PyRuntimeError;

macro_rules! exceptions {
    ($($name:ident $base:ident $doc:literal;)*) => {
        $(create_exception!(inrush_runtime, $name, $base, $doc);)*
    };
}

exceptions! {
    Error PyRuntimeError "Everything that inrush_runtime raises.";
    PackageError Error "The file or its bytes are not a whole package of this version.";
    InputError Error "Arguments, arrays or weights are not what the model takes.";
    OutOfRangeError InputError "An index inside the model is out of range.";
    DivisionError InputError "An integer inside the model is divided by zero.";
    InvalidValueError InputError "An element of an argument is one that an operator does not take.";
    UnsupportedError Error "Valid, but inrush does not do it yet.";
    MachineError Error "The machine or the process: another processor, a fork, the disk.";
    OutOfMemoryError MachineError "There is not enough memory.";
    InternalError Error "inrush is at fault.";
}

/// Returns the exception for an error.
pub(crate) fn raise(e: inrush_base::Error) -> PyErr {
    let text = e.to_string();
    match e.kind() {
        ErrorKind::Input => InputError::new_err(text),
        ErrorKind::OutOfRange => OutOfRangeError::new_err(text),
        ErrorKind::ZeroDivision => DivisionError::new_err(text),
        ErrorKind::InvalidValue => InvalidValueError::new_err(text),
        ErrorKind::Unsupported => UnsupportedError::new_err(text),
        ErrorKind::Machine => MachineError::new_err(text),
        ErrorKind::OutOfMemory => OutOfMemoryError::new_err(text),
        ErrorKind::Internal => InternalError::new_err(text),
    }
}

/// Likewise for an error of loading: a file that cannot be read is the package's fault.
pub(crate) fn raise_load(e: inrush_base::Error) -> PyErr {
    match e.kind() {
        ErrorKind::Input => PackageError::new_err(e.to_string()),
        _ => raise(e),
    }
}
