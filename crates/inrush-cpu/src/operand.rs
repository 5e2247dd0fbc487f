//! Operands and results: where elements are, how they are converted, packed, transposed and stored.

mod affine;
mod columns;
mod contraction;
mod convert;
mod geometry;
mod output;
mod pack;
mod part;
mod problem;
pub(crate) mod scratch;
pub(crate) mod transpose;
mod view;

pub use affine::Affine;
pub(crate) use columns::Columns;
pub use contraction::Contraction;
pub(crate) use convert::{CopyFn, Target};
pub use geometry::ConvShape;
pub(crate) use geometry::Geometry;
pub(crate) use output::Block;
pub use output::{Epilogue, EpilogueFn, Output, StoreView};
pub(crate) use pack::Packing;
pub use pack::{PackedB, RhsPanels};
pub(crate) use part::part;
pub use problem::{GemmShape, Lhs, NchwShape};
pub(crate) use problem::{LhsLayout, Rhs};
pub use scratch::Bytes;
pub(crate) use transpose::{COLUMNS, Transpose, TransposeFn};
pub use view::RhsView;
pub(crate) use view::{RhsLayout, RowCopy, Shared, reader};

/// Element types that operands of any dtype are converted, packed and transposed to.
pub(crate) trait Packable: Target + Transpose + crate::kernels::pack::PackLoops {}
impl<T: Target + Transpose + crate::kernels::pack::PackLoops> Packable for T {}
