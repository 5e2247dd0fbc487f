//! Normalisations and their gradients.
//!
//! `forward` has a table of the normalisations and the dimensions that each reduces over,
//! `backward` the one formula that their gradients share.

pub(super) mod backward;
pub(super) mod forward;
