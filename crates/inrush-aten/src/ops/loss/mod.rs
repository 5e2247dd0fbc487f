//! Losses and their gradients.

pub(super) mod backward;
pub(super) mod composite;
pub(super) mod losses;
pub(super) mod margin;
