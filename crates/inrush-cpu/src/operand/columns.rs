//! Cuts the columns of a right operand into panels.

use crate::kernels::gemm::{Kernels, MAX_NV};

/// How the columns of one matrix are cut into panels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Columns {
    pub n: usize,
    /// Columns of a full panel, and of the last one where it is narrower (else 0); whole vectors.
    pub width: usize,
    pub last: usize,
    pub full: usize,
}

impl Columns {
    /// Picks the panels with the least work: a narrower last panel spares padding, wide panels load less for each product.
    pub(crate) fn choose<T>(kernels: &Kernels<T>, n: usize) -> Columns {
        let mut best = (f64::INFINITY, 1);
        for nv in (1..=MAX_NV).filter(|nv| kernels.rows[nv - 1] > 0) {
            let width = nv * kernels.lanes;
            let last = (n % width).div_ceil(kernels.lanes);
            let mut cost = (n / width * nv) as f64 * kernels.cost[nv - 1];
            if last > 0 {
                cost += last as f64 * kernels.cost[last - 1];
            }
            if cost < best.0 {
                best = (cost, nv);
            }
        }
        let width = best.1 * kernels.lanes;
        Columns {
            n,
            width,
            last: (n % width).next_multiple_of(kernels.lanes),
            full: n / width,
        }
    }

    pub(crate) fn panels(&self) -> usize {
        self.full + usize::from(self.last > 0)
    }

    /// Returns the columns of panel `p`, padding included.
    pub(crate) fn width_of(&self, p: usize) -> usize {
        if p < self.full { self.width } else { self.last }
    }

    /// Returns the columns of panel `p` that exist.
    pub(super) fn of(&self, p: usize) -> (usize, usize) {
        (
            p * self.width,
            (p * self.width + self.width_of(p)).min(self.n),
        )
    }

    /// Counts all columns, padding included.
    pub(crate) fn padded(&self) -> usize {
        self.full * self.width + self.last
    }
}
