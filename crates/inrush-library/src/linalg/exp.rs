//! The exponential of a matrix, by scaling and squaring: a matrix is halved until its norm is small, a Pade approximant of the
//! exponential is evaluated there, and its square is taken as often.

use super::lu::work;
use super::solve::solve_in_place;
use super::{Batch, Real, add_product, at, copy, dispatch, mat, mat_mut, product, wide};
use crate::check::Params;
use crate::parallel::Shared;
use crate::{Call, Function};
use faer::Mat;
use inrush_base::{DType, Result};

/// Computes exponentials.
pub(crate) const MATRIX_EXP: Function = Function {
    name: "linalg.matrix_exp",
    doc: "in A [.., n, n]; out exp(A) [.., n, n]. A matrix with elements that are not finite gives NaN.",
    run: |call| dispatch(call, matrix_exp::<f32>, matrix_exp::<f64>),
};

/// Degrees of approximants for `f64`, with the largest 1-norm for which each is accurate to rounding (Higham 2005).
const WIDE: &[(usize, f64)] = &[
    (3, 1.495_585_217_958_292e-2),
    (5, 2.539_398_330_063_23e-1),
    (7, 9.504_178_996_162_932e-1),
    (9, 2.097_847_961_257_068),
    (13, 5.371_920_351_148_152),
];

/// The same for `f32`.
const NARROW: &[(usize, f64)] = &[
    (3, 4.258_730_016_922_831e-1),
    (5, 1.880_152_677_804_762),
    (7, 3.925_724_783_138_66),
];

fn matrix_exp<T: Real>(call: &mut Call<'_, '_>) -> Result<()> {
    let parts = call.parts::<1, 1>()?;
    let [a] = parts.inputs;
    let batch = Batch::square(a)?;
    Params::new(parts.params).end()?;
    let n = batch.rows;
    let [out] = parts.outputs;
    out.check_sizes(a.sizes)?;
    let a = a.elements::<T>()?;
    let out = Shared::new(out.elements::<T>()?);
    if parts.empty {
        return Ok(());
    }
    batch.each(parts.pool, work(&batch).saturating_mul(16), |i| {
        // SAFETY: parts of different matrices are disjoint.
        let to = unsafe { out.part(at(i, n * n)) };
        exponential(&a[at(i, n * n)], n, to)
    })
}

fn exponential<T: Real>(elements: &[T], n: usize, to: &mut [T]) -> Result<()> {
    let column = |c: usize| (0..n).fold(0.0, |s, r| s + wide(elements[r * n + c]).abs());
    let norm = (0..n)
        .map(column)
        .fold(0.0, |m: f64, v| if v > m || v.is_nan() { v } else { m });
    if !norm.is_finite() {
        to.fill(T::of(f64::NAN));
        return Ok(());
    }
    let table = if T::DTYPE == DType::F64 { WIDE } else { NARROW };
    let (most, bound) = table[table.len() - 1];
    let degree = table
        .iter()
        .find(|(_, b)| norm <= *b)
        .map_or(most, |(d, _)| *d);
    // At most the exponents of a float: the loop ends for every finite norm.
    let halvings = (norm / bound).log2().ceil().max(0.0);
    let mut a = super::zeros(n, n)?;
    copy(a.as_mut(), mat(elements, n, n));
    // In two steps, since the factor itself may be too small for a float.
    let half = T::of((-(halvings / 2.0).floor()).exp2());
    let other = T::of((-(halvings - (halvings / 2.0).floor())).exp2());
    a.as_mut()
        .col_iter_mut()
        .for_each(|c| c.iter_mut().for_each(|v| *v = *v * half * other));
    let mut x = approximant(&a, degree)?;
    for _ in 0..halvings as usize {
        x = product(x.as_ref(), x.as_ref())?;
    }
    copy(mat_mut(to, n, n), x.as_ref());
    Ok(())
}

/// Evaluates the approximant `(V - U)^-1 (V + U)` of a degree. `V` has the even powers of `A`, `U` the odd ones.
fn approximant<T: Real>(a: &Mat<T>, degree: usize) -> Result<Mat<T>> {
    let n = a.nrows();
    let b = coefficients(degree);
    let square = product(a.as_ref(), a.as_ref())?;
    let mut odd = diagonal::<T>(n, b[1])?;
    let mut even = diagonal::<T>(n, b[0])?;
    let mut power = None;
    for i in (2..=degree).step_by(2) {
        let next = match &power {
            None => square.clone(),
            Some(power) => product(Mat::as_ref(power), square.as_ref())?,
        };
        add_scaled(&mut even, &next, b[i]);
        if i < degree {
            add_scaled(&mut odd, &next, b[i + 1]);
        }
        power = Some(next);
    }
    // Right side and left side of the system.
    let mut right = even.clone();
    add_product(right.as_mut(), a.as_ref(), odd.as_ref(), T::of(1.0));
    let mut left = even;
    add_product(left.as_mut(), a.as_ref(), odd.as_ref(), T::of(-1.0));
    solve_in_place(left.as_mut(), right.as_mut())?;
    Ok(right)
}

/// Returns the coefficients of the approximant's numerator, divided by the first.
fn coefficients(degree: usize) -> Vec<f64> {
    let mut out = vec![1.0];
    for i in 1..=degree {
        let last = out[i - 1];
        out.push(last * (degree + 1 - i) as f64 / ((2 * degree + 1 - i) * i) as f64);
    }
    out
}

fn diagonal<T: Real>(n: usize, value: f64) -> Result<Mat<T>> {
    let mut out = super::zeros(n, n)?;
    for i in 0..n {
        out[(i, i)] = T::of(value);
    }
    Ok(out)
}

fn add_scaled<T: Real>(to: &mut Mat<T>, from: &Mat<T>, factor: f64) {
    let factor = T::of(factor);
    for (to, from) in to.as_mut().col_iter_mut().zip(from.as_ref().col_iter()) {
        for (to, from) in to.iter_mut().zip(from.iter()) {
            *to += *from * factor;
        }
    }
}
