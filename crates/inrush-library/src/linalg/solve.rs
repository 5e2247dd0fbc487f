//! Solutions of linear systems, and inverses.

use super::lu::{code_of, factor, swap, work};
use super::{Batch, Real, at, copy, dispatch, mat, mat_mut};
use crate::check::{Params, size};
use crate::parallel::{Shared, scratch};
use crate::{Call, Function};
use faer::linalg::triangular_solve as triangular;
use faer::{MatMut, MatRef, Par};
use inrush_base::{Error, Result};

/// Inverts matrices.
pub(crate) const INV: Function = Function {
    name: "linalg.inv",
    doc: "in A [.., n, n]; out inverse [.., n, n], info [..] (i32). info: the first pivot that is zero, from 1, or 0.",
    run: |call| dispatch(call, inv::<f32>, inv::<f64>),
};

/// Solves systems.
pub(crate) const SOLVE: Function = Function {
    name: "linalg.solve",
    doc: "in A [.., n, n], B; out X, of B's sizes, info [..] (i32); params [left]. A X = B with B [.., n, k]; if not left, X A = B with \
          B [.., k, n]. info: the first pivot that is zero, from 1, or 0.",
    run: |call| dispatch(call, solve::<f32>, solve::<f64>),
};

/// Solves systems of triangular matrices.
pub(crate) const SOLVE_TRIANGULAR: Function = Function {
    name: "linalg.solve_triangular",
    doc: "in A [.., n, n], B; out X, of B's sizes; params [upper, left, unitriangular]. A X = B, or X A = B if not left; the upper or \
          lower triangle of A is read, and its diagonal is taken for ones if unitriangular.",
    run: |call| dispatch(call, solve_triangular::<f32>, solve_triangular::<f64>),
};

/// Solves `A x = b` in place. `a` holds A and is overwritten with its factors. Returns the first pivot that is zero, from 1, or 0.
pub(super) fn solve_in_place<T: Real>(mut a: MatMut<'_, T>, mut b: MatMut<'_, T>) -> Result<usize> {
    let mut pivots = scratch(a.nrows())?;
    let code = factor(a.as_mut(), &mut pivots);
    for (i, &p) in pivots.iter().enumerate() {
        swap(b.as_mut(), i, p);
    }
    triangular::solve_unit_lower_triangular_in_place(a.as_ref(), b.as_mut(), Par::Seq);
    triangular::solve_upper_triangular_in_place(a.as_ref(), b, Par::Seq);
    Ok(code)
}

fn inv<T: Real>(call: &mut Call<'_, '_>) -> Result<()> {
    let parts = call.parts::<1, 2>()?;
    let [a] = parts.inputs;
    let batch = Batch::square(a)?;
    Params::new(parts.params).end()?;
    let n = batch.rows;
    let [inverse, info] = parts.outputs;
    inverse.check_sizes(a.sizes)?;
    info.check_sizes(batch.sizes)?;
    let a = a.elements::<T>()?;
    let inverse = Shared::new(inverse.elements::<T>()?);
    let info = Shared::new(info.elements::<i32>()?);
    if parts.empty {
        return Ok(());
    }
    batch.each(parts.pool, work(&batch), |i| {
        let mut held = scratch::<T>(n * n)?;
        held.copy_from_slice(&a[at(i, n * n)]);
        // SAFETY: parts of different matrices are disjoint.
        let to = unsafe { inverse.part(at(i, n * n)) };
        to.fill(T::of(0.0));
        for j in 0..n {
            to[j * n + j] = T::of(1.0);
        }
        let code = code_of(solve_in_place(mat_mut(&mut held, n, n), mat_mut(to, n, n))?)?;
        // SAFETY: as above.
        unsafe { info.set(i, code) };
        Ok(())
    })
}

/// Reads the sizes of `B` in a system: rows and columns, and the elements of a matrix.
fn right_sides(batch: &Batch<'_>, b: &[i64], left: bool) -> Result<(usize, usize)> {
    let n = batch.rows;
    let rank = batch.sizes.len();
    let good = b.len() == rank + 2
        && b[..rank] == *batch.sizes
        && size(b, if left { rank } else { rank + 1 }) == n;
    if !good {
        return Err(Error::input(format!(
            "right sides of {b:?} for matrices of {:?}",
            batch.with(&[n, n])
        )));
    }
    Ok((size(b, rank), size(b, rank + 1)))
}

fn solve<T: Real>(call: &mut Call<'_, '_>) -> Result<()> {
    let parts = call.parts::<2, 2>()?;
    let [a, b] = parts.inputs;
    let batch = Batch::square(a)?;
    let mut params = Params::new(parts.params);
    let left = params.flag("left")?;
    params.end()?;
    let n = batch.rows;
    let (rows, cols) = right_sides(&batch, b.sizes, left)?;
    let [x, info] = parts.outputs;
    x.check_sizes(b.sizes)?;
    info.check_sizes(batch.sizes)?;
    let (a, b) = (a.elements::<T>()?, b.elements::<T>()?);
    let x = Shared::new(x.elements::<T>()?);
    let info = Shared::new(info.elements::<i32>()?);
    if parts.empty {
        return Ok(());
    }
    batch.each(
        parts.pool,
        work(&batch).saturating_add(n * rows * cols),
        |i| {
            let mut held = scratch::<T>(n * n)?;
            let from = mat(&a[at(i, n * n)], n, n);
            let mut factors = mat_mut(&mut held, n, n);
            // SAFETY: parts of different matrices are disjoint.
            let x = unsafe { x.part(at(i, rows * cols)) };
            x.copy_from_slice(&b[at(i, rows * cols)]);
            let x = mat_mut(x, rows, cols);
            let code = if left {
                copy(factors.as_mut(), from);
                solve_in_place(factors, x)?
            } else {
                // X A = B is A^T X^T = B^T.
                copy(factors.as_mut(), from.transpose());
                solve_in_place(factors, x.transpose_mut())?
            };
            let code = code_of(code)?;
            // SAFETY: as above.
            unsafe { info.set(i, code) };
            Ok(())
        },
    )
}

fn solve_triangular<T: Real>(call: &mut Call<'_, '_>) -> Result<()> {
    let parts = call.parts::<2, 1>()?;
    let [a, b] = parts.inputs;
    let batch = Batch::square(a)?;
    let mut params = Params::new(parts.params);
    let upper = params.flag("upper")?;
    let left = params.flag("left")?;
    let unit = params.flag("unitriangular")?;
    params.end()?;
    let n = batch.rows;
    let (rows, cols) = right_sides(&batch, b.sizes, left)?;
    let [x] = parts.outputs;
    x.check_sizes(b.sizes)?;
    let (a, b) = (a.elements::<T>()?, b.elements::<T>()?);
    let x = Shared::new(x.elements::<T>()?);
    if parts.empty {
        return Ok(());
    }
    batch.each(parts.pool, n * rows * cols, |i| {
        let a = mat(&a[at(i, n * n)], n, n);
        // SAFETY: parts of different matrices are disjoint.
        let x = unsafe { x.part(at(i, rows * cols)) };
        x.copy_from_slice(&b[at(i, rows * cols)]);
        let x = mat_mut(x, rows, cols);
        if left {
            triangle(a, x, upper, unit);
        } else {
            triangle(a.transpose(), x.transpose_mut(), !upper, unit);
        }
        Ok(())
    })
}

/// Solves `A x = b` in place, for a triangle of A.
fn triangle<T: Real>(a: MatRef<'_, T>, x: MatMut<'_, T>, upper: bool, unit: bool) {
    match (upper, unit) {
        (true, true) => triangular::solve_unit_upper_triangular_in_place(a, x, Par::Seq),
        (true, false) => triangular::solve_upper_triangular_in_place(a, x, Par::Seq),
        (false, true) => triangular::solve_unit_lower_triangular_in_place(a, x, Par::Seq),
        (false, false) => triangular::solve_lower_triangular_in_place(a, x, Par::Seq),
    }
}
