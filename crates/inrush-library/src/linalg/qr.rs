//! QR factorisation by Householder reflections, in LAPACK's signs: a diagonal element of R has the sign opposite to the one it
//! replaces, and a column that is zero below its diagonal needs no reflection.
//!
//! Reflections of a block of columns are applied together: `I - V T V^T` with an upper triangular `T` (compact WY).

use super::lu::work;
use super::{Batch, Real, add_product, at, copy, dispatch, mat, mat_mut, product, zeros};
use crate::check::Params;
use crate::parallel::Shared;
use crate::{Call, Function};
use faer::{Mat, MatMut, MatRef};
use inrush_base::Result;
use rustfft::num_traits::Float;

/// Columns whose reflections are applied together.
const BLOCK: usize = 32;

/// Factorises matrices.
pub(crate) const QR: Function = Function {
    name: "linalg.qr",
    doc: "in A [.., m, n]; out Q [.., m, k], R [.., k, n]; params [complete]. A = Q R. k is min(m, n), or m if complete.",
    run: |call| dispatch(call, qr::<f32>, qr::<f64>),
};

/// Computes the triangular factor only.
pub(crate) const QR_R: Function = Function {
    name: "linalg.qr_r",
    doc: "in A [.., m, n]; out R [.., min(m, n), n]. The triangular factor of A = Q R.",
    run: |call| dispatch(call, qr_r::<f32>, qr_r::<f64>),
};

/// Reflections of a block of columns: rows from `start` on.
struct Block<T> {
    start: usize,
    /// Vectors, with ones on the diagonal and zeros above.
    v: Mat<T>,
    t: Mat<T>,
}

impl<T: Real> Block<T> {
    /// Applies the reflections to rows `start..` of a matrix: in order, as `Q^T` does, or in reverse, as `Q` does.
    fn apply(&self, to: MatMut<'_, T>, transposed: bool) -> Result<()> {
        let rows = to.nrows() - self.start;
        let mut to = to.subrows_mut(self.start, rows);
        let w = product(self.v.as_ref().transpose(), to.as_ref())?;
        let t = if transposed {
            self.t.as_ref().transpose()
        } else {
            self.t.as_ref()
        };
        let w = product(t, w.as_ref())?;
        add_product(to.as_mut(), self.v.as_ref(), w.as_ref(), T::of(-1.0));
        Ok(())
    }
}

/// Reflects a column so that what is below `row` becomes zero; returns the factor of the reflection. The vector replaces what was
/// below.
fn reflect<T: Real>(mut column: MatMut<'_, T>, row: usize) -> T {
    let m = column.nrows();
    let alpha = column[(row, 0)];
    // Scaled by the largest element, so that no square overflows or vanishes.
    let below = row + 1..m;
    let largest = below
        .clone()
        .fold(T::of(0.0), |l, i| Float::max(l, Float::abs(column[(i, 0)])));
    let nan = below.clone().any(|i| column[(i, 0)].is_nan());
    if largest == T::of(0.0) && !nan {
        return T::of(0.0);
    }
    let scale = Float::max(largest, Float::abs(alpha));
    let mut sum = (alpha / scale) * (alpha / scale);
    for i in below.clone() {
        let v = column[(i, 0)] / scale;
        sum += v * v;
    }
    let norm = scale * Float::sqrt(sum);
    let beta = if alpha < T::of(0.0) { norm } else { -norm };
    let over = alpha - beta;
    for i in below {
        column[(i, 0)] /= over;
    }
    column[(row, 0)] = beta;
    (beta - alpha) / beta
}

/// Factorises in place: R on and above the diagonal. Returns the reflections.
fn factor<T: Real>(mut a: MatMut<'_, T>) -> Result<Vec<Block<T>>> {
    let (m, n) = (a.nrows(), a.ncols());
    let k = m.min(n);
    let mut blocks = Vec::new();
    let mut start = 0;
    while start < k {
        let width = BLOCK.min(k - start);
        let mut panel = a.as_mut().submatrix_mut(start, start, m - start, width);
        let mut tau = [T::of(0.0); BLOCK];
        for (j, tau) in tau.iter_mut().enumerate().take(width) {
            *tau = reflect(panel.as_mut().subcols_mut(j, 1), j);
            reflect_rest(panel.as_mut(), j, *tau);
        }
        let block = block(panel.as_ref(), start, &tau[..width])?;
        if start + width < n {
            let rest = a.as_mut().subcols_mut(start + width, n - start - width);
            block.apply(rest, true)?;
        }
        blocks.push(block);
        start += width;
    }
    Ok(blocks)
}

/// Applies the reflection of column `j` to the later columns of a panel, row by row.
fn reflect_rest<T: Real>(mut panel: MatMut<'_, T>, j: usize, tau: T) {
    let (m, n) = (panel.nrows(), panel.ncols());
    let mut sums = [T::of(0.0); BLOCK];
    for c in j + 1..n {
        sums[c] = panel[(j, c)];
    }
    for i in j + 1..m {
        let v = panel[(i, j)];
        for c in j + 1..n {
            sums[c] += v * panel[(i, c)];
        }
    }
    for c in j + 1..n {
        sums[c] *= tau;
        panel[(j, c)] -= sums[c];
    }
    for i in j + 1..m {
        let v = panel[(i, j)];
        for c in j + 1..n {
            panel[(i, c)] -= v * sums[c];
        }
    }
}

/// Builds the compact form of a panel's reflections.
fn block<T: Real>(panel: MatRef<'_, T>, start: usize, tau: &[T]) -> Result<Block<T>> {
    let (m, n) = (panel.nrows(), panel.ncols());
    let mut v = zeros(m, n)?;
    for j in 0..n {
        v[(j, j)] = T::of(1.0);
        for i in j + 1..m {
            v[(i, j)] = panel[(i, j)];
        }
    }
    let inner = product(v.as_ref().transpose(), v.as_ref())?;
    let mut t = zeros(n, n)?;
    for j in 0..n {
        // Column j is -tau T (V^T v), of the columns ahead.
        for r in 0..j {
            let sum = (r..j).fold(T::of(0.0), |s, p| s + t[(r, p)] * inner[(p, j)]);
            t[(r, j)] = -tau[j] * sum;
        }
        t[(j, j)] = tau[j];
    }
    Ok(Block { start, v, t })
}

/// Writes the upper triangle of a factorised matrix.
fn write_r<T: Real>(a: MatRef<'_, T>, mut r: MatMut<'_, T>) {
    for i in 0..r.nrows() {
        for j in 0..r.ncols() {
            r[(i, j)] = if i <= j { a[(i, j)] } else { T::of(0.0) };
        }
    }
}

fn qr<T: Real>(call: &mut Call<'_, '_>) -> Result<()> {
    let parts = call.parts::<1, 2>()?;
    let [a] = parts.inputs;
    let batch = Batch::of(a)?;
    let mut params = Params::new(parts.params);
    let complete = params.flag("complete")?;
    params.end()?;
    let (m, n) = (batch.rows, batch.cols);
    let k = if complete { m } else { batch.least() };
    let [q, r] = parts.outputs;
    q.check_sizes(&batch.with(&[m, k]))?;
    r.check_sizes(&batch.with(&[k, n]))?;
    let a = a.elements::<T>()?;
    let q = Shared::new(q.elements::<T>()?);
    let r = Shared::new(r.elements::<T>()?);
    if parts.empty {
        return Ok(());
    }
    batch.each(parts.pool, work(&batch), |i| {
        let mut held = zeros(m, n)?;
        copy(held.as_mut(), mat(&a[at(i, m * n)], m, n));
        let blocks = factor(held.as_mut())?;
        // SAFETY: parts of different matrices are disjoint.
        let (q, r) = unsafe { (q.part(at(i, m * k)), r.part(at(i, k * n))) };
        write_r(held.as_ref(), mat_mut(r, k, n));
        q.fill(T::of(0.0));
        for j in 0..k {
            q[j * k + j] = T::of(1.0);
        }
        let mut q = mat_mut(q, m, k);
        for block in blocks.iter().rev() {
            block.apply(q.as_mut(), false)?;
        }
        Ok(())
    })
}

fn qr_r<T: Real>(call: &mut Call<'_, '_>) -> Result<()> {
    let parts = call.parts::<1, 1>()?;
    let [a] = parts.inputs;
    let batch = Batch::of(a)?;
    Params::new(parts.params).end()?;
    let (m, n, k) = (batch.rows, batch.cols, batch.least());
    let [r] = parts.outputs;
    r.check_sizes(&batch.with(&[k, n]))?;
    let a = a.elements::<T>()?;
    let r = Shared::new(r.elements::<T>()?);
    if parts.empty {
        return Ok(());
    }
    batch.each(parts.pool, work(&batch), |i| {
        let mut held = zeros(m, n)?;
        copy(held.as_mut(), mat(&a[at(i, m * n)], m, n));
        factor(held.as_mut())?;
        // SAFETY: parts of different matrices are disjoint.
        let r = unsafe { r.part(at(i, k * n)) };
        write_r(held.as_ref(), mat_mut(r, k, n));
        Ok(())
    })
}
