//! Least squares by singular values: of all solutions that are as good, the one of least norm.

use super::lu::work;
use super::svd::decompose;
use super::{Batch, Real, at, dispatch, mat, mat_mut, product, zeros};
use crate::check::{Params, count, size};
use crate::parallel::{Shared, scratch};
use crate::{Call, Function};
use faer::linalg::matmul::matmul;
use faer::{Accum, Par};
use inrush_base::{Error, Result};
use rustfft::num_traits::Float;

/// Solves systems of any shape.
pub(crate) const LSTSQ: Function = Function {
    name: "linalg.lstsq",
    doc: "in A [.., m, n], B [.., m, k]; out X [.., n, k]. The X of least norm among those of least |A X - B|. Singular values below \
          epsilon max(m, n) times the largest count as zero. Elements of A that are not finite are an error.",
    run: |call| dispatch(call, lstsq::<f32>, lstsq::<f64>),
};

fn lstsq<T: Real>(call: &mut Call<'_, '_>) -> Result<()> {
    let parts = call.parts::<2, 1>()?;
    let [a, b] = parts.inputs;
    let batch = Batch::of(a)?;
    Params::new(parts.params).end()?;
    let (m, n, least) = (batch.rows, batch.cols, batch.least());
    let rank = batch.sizes.len();
    if b.sizes.len() != rank + 2 || b.sizes[..rank] != *batch.sizes || size(b.sizes, rank) != m {
        return Err(Error::input(format!(
            "right sides of {:?} for {:?}",
            b.sizes, a.sizes
        )));
    }
    let k = size(b.sizes, rank + 1);
    let [x] = parts.outputs;
    let sizes = batch.with(&[n, k]);
    count(&sizes)?;
    x.check_sizes(&sizes)?;
    let (a, b) = (a.elements::<T>()?, b.elements::<T>()?);
    let x = Shared::new(x.elements::<T>()?);
    if parts.empty {
        return Ok(());
    }
    batch.each(parts.pool, work(&batch).saturating_mul(8), |i| {
        // SAFETY: parts of different matrices are disjoint.
        let x = unsafe { x.part(at(i, n * k)) };
        if least == 0 || k == 0 {
            x.fill(T::of(0.0));
            return Ok(());
        }
        let (mut u, mut v, mut s) = (zeros(m, least)?, zeros(n, least)?, scratch(least)?);
        let vectors = (u.as_mut(), v.as_mut());
        decompose(&a[at(i, m * n)], m, n, &mut s, Some(vectors), i)?;
        let b = mat(&b[at(i, m * k)], m, k);
        let mut weights = product(u.as_ref().transpose(), b)?;
        let bound = s[0] * T::of(m.max(n) as f64) * <T as Float>::epsilon();
        for (r, &s) in s.iter().enumerate() {
            for c in 0..k {
                let w = weights[(r, c)];
                weights[(r, c)] = if s > bound { w / s } else { T::of(0.0) };
            }
        }
        let x = mat_mut(x, n, k);
        matmul(
            x,
            Accum::Replace,
            v.as_ref(),
            weights.as_ref(),
            T::of(1.0),
            Par::Seq,
        );
        Ok(())
    })
}
