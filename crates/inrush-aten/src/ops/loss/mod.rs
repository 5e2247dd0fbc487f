//! Losses and their gradients.

pub(super) mod backward;
pub(super) mod composite;
pub(super) mod loss;
pub(super) mod margin;
