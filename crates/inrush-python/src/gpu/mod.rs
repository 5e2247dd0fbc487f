//! Graphs on GPUs.
//!
//! A recipe's steps are flattened into a *plan* for each set of sizes: launches with packed arguments, library calls on
//! tensors that were made before, and the few things that need the interpreter. Values that only native steps touch lie in one
//! arena; all that Python sees are tensors of PyTorch's own.
//!
//! ```text
//! homes     which values lie where
//! plan      a recipe's steps at known sizes: its segments, its calls, what is gathered to be issued as one
//! engine    a call: native steps, lists of launches, library calls, steps of the interpreter
//! pack      arguments of launches
//! owned     tensors that belong to a call
//! graphs    calls that were captured, and replays
//! blas      matrix products by cuBLAS itself
//! library   PyTorch's C functions for products, convolutions, attention
//! device    streams, guards, properties of the device
//! build     kernels from the Triton workers
//! tune      measures tiles, where that is asked for
//! ```

mod arena;
mod blas;
pub mod build;
pub mod device;
mod engine;
mod graphs;
mod homes;
pub mod library;
mod owned;
mod pack;
mod plan;
mod runs;
pub mod tune;

pub use engine::Engine;
pub use graphs::Todo;
