//! Matrix products, Einstein summation, distances.

pub(super) mod distance;
pub(super) mod einsum;
pub(super) mod equation;
pub(super) mod matmul;
