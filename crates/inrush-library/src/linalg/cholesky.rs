//! Cholesky factorisation, by blocks of columns.

use super::lu::{code_of, work};
use super::{Batch, Real, add_product, at, dispatch, mat_mut};
use crate::check::Params;
use crate::parallel::Shared;
use crate::{Call, Function};
use faer::linalg::triangular_solve::solve_lower_triangular_in_place;
use faer::{MatMut, Par};
use inrush_base::Result;
use rustfft::num_traits::Float;

/// Columns that are factorised one by one.
const NARROW: usize = 16;

/// Factorises symmetric positive matrices.
pub(crate) const CHOLESKY: Function = Function {
    name: "linalg.cholesky",
    doc: "in A [.., n, n]; out L [.., n, n], info [..] (i32); params [upper]. A = L L^T, of which the lower triangle of A is read; with \
          upper, A = U^T U and the upper one. info: the first leading minor that is not positive, from 1, or 0.",
    run: |call| dispatch(call, cholesky::<f32>, cholesky::<f64>),
};

fn cholesky<T: Real>(call: &mut Call<'_, '_>) -> Result<()> {
    let parts = call.parts::<1, 2>()?;
    let [a] = parts.inputs;
    let batch = Batch::square(a)?;
    let mut params = Params::new(parts.params);
    let upper = params.flag("upper")?;
    params.end()?;
    let n = batch.rows;
    let [l, info] = parts.outputs;
    l.check_sizes(a.sizes)?;
    info.check_sizes(batch.sizes)?;
    let a = a.elements::<T>()?;
    let l = Shared::new(l.elements::<T>()?);
    let info = Shared::new(info.elements::<i32>()?);
    if parts.empty {
        return Ok(());
    }
    batch.each(parts.pool, work(&batch), |i| {
        // SAFETY: parts of different matrices are disjoint.
        let to = unsafe { l.part(at(i, n * n)) };
        let from = &a[at(i, n * n)];
        for r in 0..n {
            for c in 0..n {
                let read = if upper { c >= r } else { c <= r };
                to[r * n + c] = if read { from[r * n + c] } else { T::of(0.0) };
            }
        }
        let to = mat_mut(to, n, n);
        // The upper factor is the transpose of the lower one of the transposed matrix.
        let code = code_of(factor(if upper { to.transpose_mut() } else { to }))?;
        // SAFETY: as above.
        unsafe { info.set(i, code) };
        Ok(())
    })
}

/// Factorises the lower triangle in place. Returns the first leading minor that is not positive, from 1, or 0.
fn factor<T: Real>(mut a: MatMut<'_, T>) -> usize {
    let n = a.nrows();
    let mut start = 0;
    while start < n {
        let rest = n - start;
        let width = rest.min(NARROW);
        let at = a.as_mut().submatrix_mut(start, start, rest, rest);
        let (top, bottom) = at.split_at_row_mut(width);
        let mut diagonal = top.subcols_mut(0, width);
        let code = factor_narrow(diagonal.as_mut());
        if code != 0 {
            return start + code;
        }
        let (mut below, mut corner) = bottom.split_at_col_mut(width);
        // below := below / L^T
        let transposed = below.as_mut().transpose_mut();
        solve_lower_triangular_in_place(diagonal.as_ref(), transposed, Par::Seq);
        // Only the lower triangle is needed: products by strips of columns.
        let below = below.as_ref();
        let mut at = 0;
        while at < corner.nrows() {
            let rows = corner.nrows() - at;
            let cols = rows.min(4 * NARROW);
            let strip = corner.as_mut().submatrix_mut(at, at, rows, cols);
            let left = below.subrows(at, rows);
            let right = below.subrows(at, cols).transpose();
            let upper = keep_upper(&strip);
            let mut strip = strip;
            add_product(strip.as_mut(), left, right, T::of(-1.0));
            restore_upper(strip, &upper);
            at += cols;
        }
        start += width;
    }
    0
}

/// Returns the elements above the diagonal, which stay zero in the factor.
fn keep_upper<T: Real>(strip: &MatMut<'_, T>) -> Vec<T> {
    let n = strip.ncols();
    let above = (0..n).flat_map(|r| (r + 1..n).map(move |c| (r, c)));
    above.map(|at| strip[at]).collect()
}

/// Puts elements above the diagonal back.
fn restore_upper<T: Real>(mut strip: MatMut<'_, T>, upper: &[T]) {
    let n = strip.ncols();
    let above = (0..n).flat_map(|r| (r + 1..n).map(move |c| (r, c)));
    for (at, &v) in above.zip(upper) {
        strip[at] = v;
    }
}

/// Factorises few columns, one by one.
fn factor_narrow<T: Real>(mut a: MatMut<'_, T>) -> usize {
    let n = a.nrows();
    for j in 0..n {
        let mut d = a[(j, j)];
        for p in 0..j {
            d -= a[(j, p)] * a[(j, p)];
        }
        // Also true of NaN.
        if d.partial_cmp(&T::of(0.0)) != Some(std::cmp::Ordering::Greater) {
            return j + 1;
        }
        let d = Float::sqrt(d);
        a[(j, j)] = d;
        for i in j + 1..n {
            let mut v = a[(i, j)];
            for p in 0..j {
                v -= a[(i, p)] * a[(j, p)];
            }
            a[(i, j)] = v / d;
        }
    }
    0
}
