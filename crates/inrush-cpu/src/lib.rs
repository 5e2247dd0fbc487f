//! The CPU's run half: a thread pool, and one engine for matrix products and convolutions.
//!
//! Does not know: any compiler crate. An executor hands it raw pointers, shapes as [`Affine`] index maps and, for fused
//! work on each result, an [`Epilogue`] function that the compiler generated.
//!
//! - [`Pool`]: threads that spin for a moment before they sleep, a dispatch costs about a microsecond; or those of an
//!   OpenMP runtime that the process has.
//! - [`PackedB`]: weights laid out once, at load.
//! - [`Gemm`]: batched products, also with several taps, which is what a convolution is. Right operands that are not
//!   packed are read where they lie by few rows, and packed block by block for many.
//! - [`Planes`]: products that read their right operand where it lies, as convolutions of images of contiguous layout do.
//! - [`Conv`]: channels-last convolutions in one to three dimensions, grouped or depthwise.

mod affine;
mod blocking;
mod conv;
mod convert;
mod depthwise;
mod even;
mod gemm;
mod grouped;
mod in_place;
mod isa;
mod micro;
mod outer;
mod pack;
mod planes;
pub mod poison;
mod pool;
mod scratch;
mod simd;
mod store;
mod thin;
mod transpose;
mod winograd;

pub use affine::Affine;
pub use conv::{Algorithm, Conv, ConvShape, PackedFilters};
pub use gemm::{Gemm, GemmShape, Lhs, Rhs};
pub use isa::{available, detect, limited};
pub use pack::{PackedB, RhsView};
pub use planes::{Left, PackedA, Planes, PlanesShape};
pub use pool::{OpenMp, Pool};
pub use scratch::Bytes;
pub use store::{Epilogue, EpilogueFn, Output, StoreView};
