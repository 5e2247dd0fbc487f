//! Sizes of a matrix product and its operands.

use super::{Affine, PackedB, RhsView};
use inrush_base::DType;

/// Sizes of `C[batch, m, group * n + j] = sum over taps t and k of A[batch, group, m, t, k] * B[batch, group, t, k, j]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GemmShape {
    pub batch: usize,
    /// Products that share their rows' results: each gives the next `n` columns.
    pub groups: usize,
    pub m: usize,
    /// Columns of one group.
    pub n: usize,
    pub taps: usize,
    /// Products of one tap.
    pub k: usize,
}

impl GemmShape {
    /// `batch` products of `m x k` with `k x n`.
    pub fn new(batch: usize, m: usize, k: usize, n: usize) -> GemmShape {
        GemmShape {
            batch,
            groups: 1,
            m,
            n,
            taps: 1,
            k,
        }
    }
}

/// A left operand where it lies: element `(matrix, m, t, k)` at
/// `matrices(matrix) + rows(m) + taps[t] + k * k_step` elements from `ptr`, where `matrix = batch * groups + group`.
#[derive(Clone, Copy)]
pub struct Lhs<'a> {
    pub ptr: *const u8,
    pub dtype: DType,
    pub matrices: Affine,
    pub rows: Affine,
    pub taps: &'a [isize],
    pub k_step: isize,
}

/// A right operand. Packed with one matrix a group, it serves every batch; else it holds `batch * groups` matrices.
#[derive(Clone, Copy)]
pub enum Rhs<'a> {
    Packed(&'a PackedB),
    View(&'a RhsView),
}
