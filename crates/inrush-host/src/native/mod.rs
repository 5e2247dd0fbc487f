//! A host without Python: memory from the device's driver, a stream of its own, products by cuBLAS.
//!
//! ```text
//! device   what a device is, asked of its driver
//! memory   device memory that is used again by later work of the stream
//! process  the host
//! lower    a sequence of segments and library calls -> host program
//! model    weights on the device, and calls
//! ```

pub mod device;
mod lower;
mod memory;
mod model;
mod process;

pub use crate::program::{Lowered, Object};
pub use lower::lower;
pub use model::Model;
pub use process::Process;
