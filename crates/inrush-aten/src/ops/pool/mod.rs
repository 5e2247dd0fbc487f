//! Pooling and its gradients.

pub(super) mod backward;
pub(super) mod forward;
