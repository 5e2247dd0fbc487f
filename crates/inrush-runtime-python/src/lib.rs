//! The Python module `inrush_runtime._native`: packages are loaded and run, without PyTorch.
//!
//! ```text
//! model      a loaded package: calls, weights
//! argument   arguments of a call -> tensors, by position and name
//! array      NumPy arrays, DLPack and buffers -> tensors, without copies
//!   buffer   Python's buffer protocol
//!   capsule  DLPack's capsules
//! device     tensors of GPUs, streams
//! tensor     tensors -> NumPy arrays, or an object with DLPack and the buffer protocol
//! nesting    how the exported module nested its inputs and outputs
//! operators  functions of operators that users define
//! signature  names, dtypes and sizes, for readers
//! errors     inrush's errors as Python exceptions
//! ```
//!
//! Lock discipline: calls and updates of weights run without the interpreter's lock. What keeps memory of Python alive takes
//! the lock when it is dropped, because another library may drop it in any thread.
//!
//! Does not know: any compiler crate, PyTorch.

mod argument;
mod array;
mod buffer;
mod capsule;
mod device;
mod errors;
mod model;
mod nesting;
mod operators;
mod signature;
mod tensor;

use pyo3::prelude::*;

/// The native half of `inrush_runtime`; use that.
#[pymodule]
mod _native {
    use super::*;

    #[pymodule_export]
    use super::errors::{
        DivisionError, Error, InputError, InternalError, InvalidValueError, MachineError,
        OutOfMemoryError, OutOfRangeError, PackageError, UnsupportedError,
    };

    #[pymodule_export]
    use super::device::DeviceTensor;

    #[pymodule_export]
    use super::model::{Model, load};

    #[pymodule_export]
    use super::operators::{load_operators, register};

    #[pymodule_export]
    use super::signature::{InputSpec, OutputSpec, Signature, WeightSpec};

    #[pymodule_init]
    fn init(m: &Bound<'_, PyModule>) -> PyResult<()> {
        m.add("Tensor", tensor::class(m.py())?)?;
        m.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
