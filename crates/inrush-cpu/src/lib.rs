//! The CPU's run half: a thread pool, and one engine for matrix products and convolutions.
//!
//! Does not know: any compiler crate. An executor hands it raw pointers, shapes as [`Affine`] index maps and, for fused
//! work on each result, an [`Epilogue`] function that the compiler generated.
//!
//! - [`Pool`]: threads that spin for a moment before they sleep, a dispatch costs about a microsecond; or those of an
//!   OpenMP runtime that the process has.
//! - `operand`: where elements are, how they are converted, packed and stored. [`PackedB`] is a right operand packed once, at
//!   load.
//! - `kernels`: register-blocked loops, compiled for each instruction set level.
//! - `algorithms`: the loop nests around them. [`Gemm`] is a batched product, also with several taps, which is what a
//!   convolution is; [`DirectNchw`] reads its right operand in place, as convolutions of NCHW images do; [`Conv`] computes
//!   NHWC convolutions in one to three dimensions, grouped or depthwise.

mod algorithms;
mod isa;
mod kernels;
mod operand;
pub mod poison;
mod pool;
mod simd;

pub use algorithms::conv::{Algorithm, Conv, PackedFilters};
pub use algorithms::direct_nchw::{DirectNchw, Left, NchwShape, PackedA};
pub use algorithms::gemm::Gemm;
pub use isa::{available, detect, limited};
pub use operand::{
    Affine, Bytes, ConvShape, Epilogue, EpilogueFn, GemmShape, Lhs, Output, PackedB, Rhs, RhsView,
    StoreView,
};
pub use pool::{OpenMp, Pool};
