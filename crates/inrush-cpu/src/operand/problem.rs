//! Sizes of a matrix product and its operands.

use super::{Affine, Columns, PackedB, RhsView};
use inrush_base::{DType, Error, Isa, Result};

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
    /// Returns the sizes of `batch` products of `m x k` with `k x n`.
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

    /// Refuses a right operand that was packed for another product.
    pub(crate) fn check_packed(
        &self,
        b: &PackedB,
        isa: Isa,
        acc: DType,
        columns: &Columns,
    ) -> Result<()> {
        b.check(isa, acc, self.taps * self.k, columns)?;
        if b.matrices() != self.groups && b.matrices() != self.batch * self.groups {
            return Err(Error::internal(format!(
                "{} packed matrices in a product of {self:?}",
                b.matrices()
            )));
        }
        Ok(())
    }
}

/// A left operand in place: element `(matrix, m, t, k)` at
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

/// A left operand without its address: what plans keep of it.
#[derive(Clone, Debug)]
pub(crate) struct LhsLayout {
    pub dtype: DType,
    pub matrices: Affine,
    pub rows: Affine,
    pub taps: Vec<isize>,
    pub k_step: isize,
}

impl LhsLayout {
    pub(crate) fn of(lhs: &Lhs) -> LhsLayout {
        LhsLayout {
            dtype: lhs.dtype,
            matrices: lhs.matrices,
            rows: lhs.rows,
            taps: lhs.taps.to_vec(),
            k_step: lhs.k_step,
        }
    }

    /// Returns the operand at an address.
    pub(crate) fn at(&self, ptr: *const u8) -> Lhs<'_> {
        Lhs {
            ptr,
            dtype: self.dtype,
            matrices: self.matrices,
            rows: self.rows,
            taps: &self.taps,
            k_step: self.k_step,
        }
    }
}

/// A right operand. Packed with one matrix a group, it serves every batch; else it holds `batch * groups` matrices.
#[derive(Clone, Copy)]
pub(crate) enum Rhs<'a> {
    Packed(&'a PackedB),
    View(&'a RhsView),
}

/// Sizes of `C[batch, m, j] = sum over k of A[lefts(batch), m, k] * B[matrices(batch) + k(k) + cols(j)]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NchwShape {
    pub m: usize,
    /// By batch: which left operand. Filters are one for all images.
    pub lefts: Affine,
    /// Elements of the right operand: by batch, by product, by column.
    pub matrices: Affine,
    pub k: Affine,
    pub cols: Affine,
}

impl NchwShape {
    /// Returns true if columns share elements, as windows of an image do: there are more pairs of a product and a column than
    /// elements between the first and the last.
    pub(crate) fn windows(&self) -> bool {
        let span = |a: &Affine| a.span();
        let elements = span(&self.k)
            .saturating_add(span(&self.cols))
            .saturating_add(1);
        self.k.len().saturating_mul(self.cols.len()) > elements.saturating_add(elements / 2)
    }
}
