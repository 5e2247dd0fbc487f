//! Pooling and its gradients.
//!
//! Forward pools reduce over windows. Gradients turn the question round: an element sums over the
//! windows that hold it.

pub(super) mod backward;
pub(super) mod forward;
