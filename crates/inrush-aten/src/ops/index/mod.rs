//! Reads and writes at positions that data decide; sorting and searching.
//!
//! Indices that data decide become indirect indices of loops: checked against the extent, and
//! wrapped where PyTorch takes negative ones. Reads are `gather`, writes are `scatter`;
//! `masked` decomposes further operators into these two, and `sort` holds what orders rows.

pub(super) mod gather;
pub(super) mod masked;
pub(super) mod scatter;
pub(super) mod sort;
