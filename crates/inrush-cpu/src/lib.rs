//! The CPU's run half: a thread pool, and one engine for matrix products and convolutions.
//!
//! Does not know: any compiler crate. An executor hands it raw pointers, shapes as [`Affine`] index maps and, for fused
//! work on each result, an [`Epilogue`] function that the compiler generated.
//!
//! - [`Pool`]: threads that spin for a moment before they sleep, a dispatch costs about a microsecond; or those of an
//!   OpenMP runtime that the process has, while they do not stall.
//! - `operand`: where elements are, how they are converted, packed and stored. [`PackedB`] is a right operand packed once, at
//!   load.
//! - `kernels`: register-blocked loops, compiled for each instruction set level.
//! - `algorithms`: the loop nests around them.
//! - `choose`: the algorithm of a product or convolution, chosen once. [`Plan`] is a [`Contraction`] of a compiled program, or a
//!   batched product, also with several taps; [`Conv`] is an NHWC convolution in one to three dimensions, grouped or
//!   depthwise.

mod algorithms;
mod choose;
mod isa;
mod kernels;
mod operand;
pub mod poison;
mod pool;
mod simd;

pub use algorithms::conv::ConvAlgorithm;
pub use algorithms::direct_nchw::{DirectNchw, Left, PackedA};
pub use choose::{Conv, Operands, Packed, Plan};
pub use isa::{available, detect, limited};
pub use operand::{
    Affine, Bytes, Contraction, ConvShape, Epilogue, EpilogueFn, GemmShape, Lhs, NchwShape, Output,
    PackedB, RhsPanels, RhsView, StoreView,
};
pub use pool::{OpenMp, Pool};
