//! LU factorisation with partial pivoting, and determinants.
//!
//! The columns are halved recursively: factorise the left half, solve for the upper right block, update the lower right block by a
//! product, factorise that. Nearly all work is products.

use super::{Batch, Real, add_product, at, dispatch, mat_mut};
use crate::check::{Params, count};
use crate::parallel::{Shared, scratch};
use crate::{Call, Function};
use faer::linalg::triangular_solve::solve_unit_lower_triangular_in_place;
use faer::{MatMut, Par};
use inrush_base::{Error, Result};

/// Columns that are factorised one by one.
const NARROW: usize = 16;

/// Factorises matrices.
pub(crate) const LU_FACTOR: Function = Function {
    name: "linalg.lu_factor",
    doc: "in A [.., m, n]; out LU [.., m, n], pivots [.., min(m, n)] (i32, from 1), info [..] (i32). A = P L U; L has ones on its \
          diagonal. info: the first pivot that is zero, from 1, or 0.",
    run: |call| dispatch(call, lu_factor::<f32>, lu_factor::<f64>),
};

/// Makes three matrices of a factorisation.
pub(crate) const LU_UNPACK: Function = Function {
    name: "linalg.lu_unpack",
    doc: "in LU [.., m, n], pivots [.., min(m, n)] (i32); out P [.., m, m], L [.., m, min(m, n)], U [.., min(m, n), n].",
    run: |call| dispatch(call, lu_unpack::<f32>, lu_unpack::<f64>),
};

/// Computes determinants.
pub(crate) const DET: Function = Function {
    name: "linalg.det",
    doc: "in A [.., n, n]; out det [..].",
    run: |call| dispatch(call, det::<f32>, det::<f64>),
};

/// Computes signs and logarithms of determinants.
pub(crate) const SLOGDET: Function = Function {
    name: "linalg.slogdet",
    doc: "in A [.., n, n]; out sign [..], logabsdet [..]. The determinant's sign and the logarithm of its magnitude.",
    run: |call| dispatch(call, slogdet::<f32>, slogdet::<f64>),
};

/// Factorises a matrix in place. Row `i` was swapped with row `pivots[i]` (from 0). Returns the first pivot that is zero, from 1,
/// or 0.
pub(super) fn factor<T: Real>(mut a: MatMut<'_, T>, pivots: &mut [usize]) -> usize {
    let (m, n) = (a.nrows(), a.ncols());
    let k = m.min(n);
    if k <= NARROW {
        return factor_narrow(a, pivots);
    }
    let left = k / 2;
    let (first, second) = pivots.split_at_mut(left);
    let info = factor(a.as_mut().subcols_mut(0, left), first);
    for (i, &p) in first.iter().enumerate() {
        swap(a.as_mut().subcols_mut(left, n - left), i, p);
    }
    let (top, bottom) = a.as_mut().split_at_row_mut(left);
    let (l, mut upper) = top.split_at_col_mut(left);
    solve_unit_lower_triangular_in_place(l.as_ref(), upper.as_mut(), Par::Seq);
    let (below, mut rest) = bottom.split_at_col_mut(left);
    add_product(rest.as_mut(), below.as_ref(), upper.as_ref(), T::of(-1.0));
    let later = factor(rest, second);
    for (i, p) in second.iter_mut().enumerate() {
        *p += left;
        swap(a.as_mut().subcols_mut(0, left), left + i, *p);
    }
    match (info, later) {
        (0, 0) => 0,
        (0, later) => later + left,
        (info, _) => info,
    }
}

/// Factorises few columns, one by one; or the columns of few rows.
fn factor_narrow<T: Real>(mut a: MatMut<'_, T>, pivots: &mut [usize]) -> usize {
    let (m, n) = (a.nrows(), a.ncols());
    let mut info = 0;
    for (j, pivot) in pivots.iter_mut().enumerate() {
        let mut p = j;
        for i in j + 1..m {
            if magnitude(a[(i, j)]) > magnitude(a[(p, j)]) {
                p = i;
            }
        }
        *pivot = p;
        swap(a.as_mut(), j, p);
        let value = a[(j, j)];
        if value == T::of(0.0) {
            // The column is zero from here on: there is nothing to eliminate.
            info = if info == 0 { j + 1 } else { info };
            continue;
        }
        for i in j + 1..m {
            let factor = a[(i, j)] / value;
            a[(i, j)] = factor;
            for c in j + 1..n {
                let above = a[(j, c)];
                a[(i, c)] -= factor * above;
            }
        }
    }
    info
}

fn magnitude<T: Real>(v: T) -> T {
    rustfft::num_traits::Float::abs(v)
}

/// Swaps two rows.
pub(super) fn swap<T: Real>(mut a: MatMut<'_, T>, i: usize, p: usize) {
    if i != p {
        for c in 0..a.ncols() {
            let held = a[(i, c)];
            a[(i, c)] = a[(p, c)];
            a[(p, c)] = held;
        }
    }
}

/// Operations of a factorisation, about.
pub(super) fn work(batch: &Batch<'_>) -> usize {
    batch
        .rows
        .saturating_mul(batch.cols)
        .saturating_mul(batch.least())
}

fn lu_factor<T: Real>(call: &mut Call<'_, '_>) -> Result<()> {
    let parts = call.parts::<1, 3>()?;
    let [a] = parts.inputs;
    let batch = Batch::of(a)?;
    Params::new(parts.params).end()?;
    let k = batch.least();
    let [lu, pivots, info] = parts.outputs;
    lu.check_sizes(a.sizes)?;
    pivots.check_sizes(&batch.with(&[k]))?;
    info.check_sizes(batch.sizes)?;
    let a = a.elements::<T>()?;
    let lu = Shared::new(lu.elements::<T>()?);
    let pivots = Shared::new(pivots.elements::<i32>()?);
    let info = Shared::new(info.elements::<i32>()?);
    if parts.empty {
        return Ok(());
    }
    batch.each(parts.pool, work(&batch), |i| {
        // SAFETY: parts of different matrices are disjoint.
        let (to, order) = unsafe { (lu.part(at(i, batch.len())), pivots.part(at(i, k))) };
        to.copy_from_slice(&a[at(i, batch.len())]);
        let mut pivots = scratch(k)?;
        let code = factor(mat_mut(to, batch.rows, batch.cols), &mut pivots);
        for (to, p) in order.iter_mut().zip(pivots) {
            *to = code_of(p + 1)?;
        }
        let code = code_of(code)?;
        // SAFETY: as above.
        unsafe { info.set(i, code) };
        Ok(())
    })
}

/// Converts a row or column number to the type of outputs.
pub(super) fn code_of(n: usize) -> Result<i32> {
    i32::try_from(n).map_err(|_| Error::input(format!("a matrix of {n} rows or columns")))
}

fn lu_unpack<T: Real>(call: &mut Call<'_, '_>) -> Result<()> {
    let parts = call.parts::<2, 3>()?;
    let [lu, pivots] = parts.inputs;
    let batch = Batch::of(lu)?;
    Params::new(parts.params).end()?;
    let (m, n, k) = (batch.rows, batch.cols, batch.least());
    pivots.check_sizes(&batch.with(&[k]))?;
    let [p, l, u] = parts.outputs;
    // The permutation can be larger than both inputs: its size is checked against its memory.
    let square = batch.with(&[m, m]);
    count(&square)?;
    p.check_sizes(&square)?;
    l.check_sizes(&batch.with(&[m, k]))?;
    u.check_sizes(&batch.with(&[k, n]))?;
    let (lu, pivots) = (lu.elements::<T>()?, pivots.elements::<i32>()?);
    let p = Shared::new(p.elements::<T>()?);
    let l = Shared::new(l.elements::<T>()?);
    let u = Shared::new(u.elements::<T>()?);
    if parts.empty {
        return Ok(());
    }
    batch.each(parts.pool, batch.len(), |i| {
        // SAFETY: parts of different matrices are disjoint.
        let (p, l, u) = unsafe {
            (
                p.part(at(i, m * m)),
                l.part(at(i, m * k)),
                u.part(at(i, k * n)),
            )
        };
        let lu = &lu[at(i, m * n)];
        for r in 0..m {
            for c in 0..k {
                l[r * k + c] = match r.cmp(&c) {
                    std::cmp::Ordering::Greater => lu[r * n + c],
                    std::cmp::Ordering::Equal => T::of(1.0),
                    std::cmp::Ordering::Less => T::of(0.0),
                };
            }
        }
        for r in 0..k {
            for c in 0..n {
                u[r * n + c] = if r <= c { lu[r * n + c] } else { T::of(0.0) };
            }
        }
        p.fill(T::of(0.0));
        for (c, r) in permutation(&pivots[at(i, k)], m)?.into_iter().enumerate() {
            p[r * m + c] = T::of(1.0);
        }
        Ok(())
    })
}

/// Returns the row of `A` that each row of `L U` is.
fn permutation(pivots: &[i32], m: usize) -> Result<Vec<usize>> {
    let mut rows: Vec<usize> = (0..m).collect();
    for (i, &p) in pivots.iter().enumerate() {
        let p = usize::try_from(p)
            .ok()
            .and_then(|p| p.checked_sub(1))
            .filter(|p| *p < m);
        let p = p.ok_or_else(|| Error::input(format!("pivots {pivots:?} of {m} rows")))?;
        rows.swap(i, p);
    }
    Ok(rows)
}

/// Factorises each matrix and calls `f` with its number, its diagonal, and whether an odd number of rows was swapped.
fn each_diagonal<T: Real>(
    call: &Call<'_, '_>,
    f: impl Fn(usize, &mut dyn Iterator<Item = T>, bool) + Sync,
) -> Result<()> {
    let a = &call.inputs[0];
    let batch = Batch::square(a)?;
    let n = batch.rows;
    let a = a.elements::<T>()?;
    batch.each(call.pool, work(&batch), |i| {
        let mut lu = scratch::<T>(n * n)?;
        lu.copy_from_slice(&a[at(i, n * n)]);
        let mut pivots = scratch(n)?;
        factor(mat_mut(&mut lu, n, n), &mut pivots);
        let swaps = pivots.iter().enumerate().filter(|(i, p)| i != *p).count();
        f(i, &mut (0..n).map(|j| lu[j * n + j]), swaps % 2 == 1);
        Ok(())
    })
}

fn det<T: Real>(call: &mut Call<'_, '_>) -> Result<()> {
    let parts = call.parts::<1, 1>()?;
    Params::new(parts.params).end()?;
    let [det] = parts.outputs;
    det.check_sizes(Batch::square(&parts.inputs[0])?.sizes)?;
    let det = Shared::new(det.elements::<T>()?);
    let call = Call {
        inputs: parts.inputs,
        outputs: &mut [],
        params: &[],
        pool: parts.pool,
    };
    each_diagonal::<T>(&call, |i, diagonal, odd| {
        let start = T::of(if odd { -1.0 } else { 1.0 });
        // SAFETY: one thread has this matrix.
        unsafe { det.set(i, diagonal.fold(start, |p, v| p * v)) };
    })
}

fn slogdet<T: Real>(call: &mut Call<'_, '_>) -> Result<()> {
    let parts = call.parts::<1, 2>()?;
    Params::new(parts.params).end()?;
    let [sign, log] = parts.outputs;
    let sizes = Batch::square(&parts.inputs[0])?.sizes;
    sign.check_sizes(sizes)?;
    log.check_sizes(sizes)?;
    let (sign, log) = (
        Shared::new(sign.elements::<T>()?),
        Shared::new(log.elements::<T>()?),
    );
    let call = Call {
        inputs: parts.inputs,
        outputs: &mut [],
        params: &[],
        pool: parts.pool,
    };
    each_diagonal::<T>(&call, |i, diagonal, odd| {
        let mut s = T::of(if odd { -1.0 } else { 1.0 });
        let mut sum = T::of(0.0);
        for v in diagonal {
            if v.is_nan() {
                s = v;
            } else if v == T::of(0.0) {
                s = T::of(0.0);
            } else if v < T::of(0.0) {
                s = -s;
            }
            sum += rustfft::num_traits::Float::ln(magnitude(v));
        }
        // SAFETY: one thread has this matrix.
        unsafe {
            sign.set(i, s);
            log.set(i, sum);
        }
    })
}
