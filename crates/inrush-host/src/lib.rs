//! Executes compiled programs on GPUs, over any process that can host them.
//!
//! A [`HostProgram`](inrush_program::host::HostProgram) says as data what a call does. [`gpu::Engine`] runs it: it plans memory and launches for
//! each set of sizes, and issues them. What it needs of the process around it (memory, a stream, library calls, steps that
//! need an interpreter) it asks through [`Host`].
//!
//! ```text
//! shape    dtype, sizes and strides of a tensor
//! host     the trait that a process implements
//! gpu      planning and execution on a device
//! native   a host without Python: the driver's memory, cuBLAS
//! session  a package on the CPU or on a GPU
//! devices  the devices that programs run on
//! ```
//!
//! Does not know: Python, PyTorch's functions.

pub mod devices;
pub mod gpu;
pub mod host;
pub mod native;
pub use inrush_program::host as program;
pub mod session;
pub mod shape;

pub use host::Host;
pub use session::{Open, Session};
pub use shape::{Shape, dtype_code, dtype_of};
