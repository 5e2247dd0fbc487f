//! Reductions, scans and what is made of them.
//!
//! `reductions` and `scan` have loops of their own. `moments` and `softmax` decompose into several
//! reductions, written so that the scheduler can merge their passes; `median` decomposes into a
//! sort and a gather.

pub(super) mod median;
pub(super) mod moments;
pub(super) mod reductions;
pub(super) mod scan;
pub(super) mod softmax;
