//! The CPU's run half: a thread pool, and one engine for matrix products and convolutions.
//!
//! Does not know: any compiler crate. An executor hands it raw pointers, shapes as [`Affine`] index maps and, for fused
//! work on each result, an [`Epilogue`] function that the compiler generated.
//!
//! - [`Pool`]: threads that spin for a moment before they sleep, a dispatch costs about a microsecond; or those of an
//!   OpenMP runtime that the process has.
//! - [`PackedB`]: weights laid out once, at load.
//! - [`Gemm`]: batched products, also with several taps, which is what a convolution is.
//! - [`Conv`]: channels-last convolutions in one to three dimensions, grouped or depthwise.

mod affine;
mod blocking;
mod conv;
mod convert;
mod depthwise;
mod gemm;
mod isa;
mod micro;
mod pack;
mod pool;
mod scratch;
mod simd;
mod store;
mod transpose;
mod winograd;

pub use affine::Affine;
pub use conv::{Algorithm, Conv, ConvShape, PackedFilters};
pub use gemm::{Gemm, GemmShape, Lhs, Rhs};
pub use isa::{available, detect};
pub use pack::{PackedB, RhsView};
pub use pool::{OpenMp, Pool};
pub use store::{Epilogue, EpilogueFn, Output, StoreView};
