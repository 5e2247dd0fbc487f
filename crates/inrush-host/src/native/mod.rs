//! A host without Python: memory from the device's driver, streams of its own or the caller's, products by cuBLAS.
//!
//! ```text
//! device     what a device is, asked of its driver
//! memory     device memory that is used again by later work of the same stream: the driver's, or a tensor library's
//! process    the host of one call: a stream, a handle of cuBLAS
//! hosts      the bounded number of hosts that a model has
//! tensor     tensors in memory of a device; what calls take and give
//! dlpack     these as tensors of other libraries
//! weights    sets of weights on the device
//! building   kernels whose source a package holds: records, or builds in the background
//! executable  a program with its kernels, and those of its control flow
//! work       work of the host between kernels: control flow, functions of the runtime's library
//! complex    complex inputs, outputs and weights as pairs of real numbers
//! call       the state of a call
//! graphs     calls that were captured as graphs of the driver
//! model      calls, updates and swaps of weights
//! signature  inputs and outputs
//! lower      a sequence of segments and library calls -> host program; with the feature `compiler`
//! user_kernels  Triton kernels of users: a configuration for each target, steps; with the feature `compiler`
//! target     targets that packages are asked for
//! package    the target of a package that fits a device
//! ```

mod building;
mod call;
mod complex;
mod custom;
pub mod device;
pub mod dlpack;
mod executable;
mod graphs;
mod hosts;
#[cfg(feature = "compiler")]
mod lower;
mod memory;
mod model;
mod package;
mod process;
mod signature;
mod target;
mod tensor;
#[cfg(feature = "compiler")]
pub mod user_kernels;
mod weights;
mod work;

pub use crate::gpu::driver::Stream;
pub use crate::program::{Lowered, Object};
#[cfg(feature = "compiler")]
pub use lower::{compile, compile_tunable, compile_with};
pub use memory::{Owner, TensorLibrary};
pub use model::{Model, Options};
pub use package::{Form, check_kind, choose};
pub use target::{Wanted, WantedGpu, parts, source_parts};
pub use tensor::{Argument, DeviceTensor, Output};
pub use weights::NewWeight;
