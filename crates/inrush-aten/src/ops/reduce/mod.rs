//! Reductions, scans and what is made of them.

pub(super) mod median;
pub(super) mod moments;
pub(super) mod reductions;
pub(super) mod scan;
pub(super) mod softmax;
