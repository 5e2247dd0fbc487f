//! Matrix products, Einstein summation, distances.
//!
//! All products go through `lower::product`, which takes axes with roles; files differ in how
//! an operator names its axes.

pub(super) mod distance;
pub(super) mod einsum;
pub(super) mod equation;
pub(super) mod factor;
pub(super) mod matmul;
pub(super) mod quantized;
