//! Reads and writes at positions that data decide; sorting and searching.
//!
//! Indices that data decide become indirect indices of loops: checked against the extent, and
//! wrapped where PyTorch takes negative ones. Reads are `gather`, writes are `scatter`;
//! `masked` decomposes further operators into these two, and `sort` holds what orders rows, `packed_sort` how GPUs do.

pub(super) mod gather;
pub(super) mod masked;
pub(super) mod packed_sort;
pub(super) mod scatter;
pub(super) mod sort;
