//! Views, rearrangements, concatenation, and their gradients.

pub(super) mod backward;
pub(super) mod cat;
pub(super) mod copies;
pub(super) mod rearrange;
pub(super) mod shape;
pub(super) mod slice;
