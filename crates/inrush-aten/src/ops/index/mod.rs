//! Reads and writes at positions that data decide; sorting and searching.

pub(super) mod gather;
pub(super) mod masked;
pub(super) mod scatter;
pub(super) mod sort;
