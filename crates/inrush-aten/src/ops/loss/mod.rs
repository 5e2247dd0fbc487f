//! Losses and their gradients.
//!
//! A loss is a decomposition into pointwise operators and a reduction, which the scheduler
//! fuses. `reduction` is 0 (none), 1 (mean) or 2 (sum) everywhere.

pub(super) mod backward;
pub(super) mod composite;
pub(super) mod losses;
pub(super) mod margin;
