//! Interpolation, sampling by a grid, and their gradients.
//!
//! `upsample` reads at positions that follow from sizes alone, `grid_sample` at positions that are
//! data. Therefore the gradient of the former gathers and that of the latter scatters.

pub(super) mod antialias;
pub(super) mod backward;
pub(super) mod grid_sample;
pub(super) mod upsample;
