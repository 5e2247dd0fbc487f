//! Elementwise operators: arithmetic, comparisons, conversions, activations.
//!
//! `row` has the macro that makes rows and the short forms that scalar functions are written in. A
//! function returns the value of one element; broadcasting, promotion and the store are the stage's
//! work (`lower/pointwise.rs`). `cast`, `foreach` and `quantize` stand here for what they mean:
//! their rows are bodies and decompositions.

pub(super) mod activation;
pub(super) mod activation_backward;
pub(super) mod arith;
pub(super) mod cast;
pub(super) mod compare;
pub(super) mod foreach;
pub(super) mod math;
pub(super) mod quantize;
pub(super) mod quantized;
pub(super) mod row;
