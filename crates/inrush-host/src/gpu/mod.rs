//! Programs on GPUs.
//!
//! A program's steps are flattened into a *plan* for each set of sizes: launches with packed arguments, library calls, and
//! the few steps that need the host's values. Values that only native steps touch share one arena; all that the host sees are
//! tensors of its own.
//!
//! ```text
//! placement  which values share memory, and how long each is needed
//! arena      offsets of values in one block
//! plan       a program's steps at known sizes: segments, calls, batches of launches
//! arguments  packed arguments of launches
//! engine     a call: native steps, batches, library calls, steps of the host
//! replay     launches and products recorded as one
//! cublas     matrix products
//! driver     the device driver
//! build      kernels from Triton workers
//! kernels    the kernels of a program, built or being built
//! choose     measures kernels that take the same launch, at their first one
//! tune       measures tiles, where that is asked for; with the feature `compiler`
//! ```

mod arena;
mod arguments;
pub mod build;
mod choose;
pub mod cublas;
pub mod driver;
mod engine;
mod kernels;
mod placement;
pub mod plan;
mod replay;
#[cfg(feature = "compiler")]
pub mod tune;

pub use engine::{Engine, Frame, Stop, TuneAtCall};
pub use kernels::{Builds, Provided};

/// Addresses that kernels are promised to be multiples of.
pub const POINTER_ALIGNMENT: u64 = 16;
