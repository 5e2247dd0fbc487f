//! Special functions.
//!
//! `functions` has most of them and the evaluation schemes; `incomplete_gamma`, `zeta` and
//! `polynomials` have algorithms of their own; `tables` holds coefficients.

pub(super) mod functions;
pub(super) mod incomplete_gamma;
pub(super) mod polynomials;
pub(super) mod tables;
pub(super) mod zeta;
