//! Convolutions and their gradients.

pub(super) mod backward;
pub(super) mod convolution;
pub(super) mod depthwise;
pub(super) mod phases;
