//! Views, rearrangements, concatenation, and their gradients.
//!
//! `shape` and `slice` are views in eager too; `rearrange` is a view here only. `cat` and the
//! `scatter` forms in `slice` have bodies of their own. `copies` decomposes what eager copies at
//! once, and `backward` holds the gradients.

pub(super) mod backward;
pub(super) mod cat;
pub(super) mod copies;
pub(super) mod rearrange;
pub(super) mod shape;
pub(super) mod slice;
