//! Normalisations and their gradients.

pub(super) mod backward;
pub(super) mod forward;
