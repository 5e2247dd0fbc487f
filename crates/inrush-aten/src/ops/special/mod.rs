//! Special functions.

pub(super) mod functions;
pub(super) mod incomplete_gamma;
pub(super) mod polynomials;
pub(super) mod tables;
pub(super) mod zeta;
