//! Elementwise operators: arithmetic, comparisons, conversions, activations.

pub(super) mod activation;
pub(super) mod activation_backward;
pub(super) mod arith;
pub(super) mod cast;
pub(super) mod compare;
pub(super) mod foreach;
pub(super) mod math;
pub(super) mod quantize;
pub(super) mod row;
