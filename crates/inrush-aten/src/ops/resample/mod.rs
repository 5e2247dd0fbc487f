//! Interpolation, sampling by a grid, and their gradients.

pub(super) mod backward;
pub(super) mod grid_sample;
pub(super) mod upsample;
