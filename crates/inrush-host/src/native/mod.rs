//! A host without Python: memory from the device's driver, a stream of its own, products by cuBLAS.
//!
//! ```text
//! device   what a device is, asked of its driver
//! memory   device memory that is used again by later work of the stream
//! process  the host
//! lower    a sequence of segments and library calls -> host program; with the feature `compiler`
//! target   targets that packages are asked for
//! package  the target of a package that fits a device
//! model    weights on the device, and calls
//! ```

pub mod device;
#[cfg(feature = "compiler")]
mod lower;
mod memory;
mod model;
mod package;
mod process;
mod target;

pub use crate::program::{Lowered, Object};
#[cfg(feature = "compiler")]
pub use lower::{compile, lower};
pub use model::Model;
pub use package::{Form, choose};
pub use process::Process;
pub use target::{Wanted, WantedGpu, parts};
