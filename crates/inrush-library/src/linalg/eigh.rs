//! Eigenvalues and eigenvectors of symmetric matrices.

use super::lu::work;
use super::{
    Batch, Real, at, check_finite, copy, dispatch, mat_mut, no_convergence, scale, with_stack,
    zeros,
};
use crate::check::Params;
use crate::parallel::Shared;
use crate::{Call, Function};
use faer::diag::DiagMut;
use faer::linalg::evd::{ComputeEigenvectors, self_adjoint_evd, self_adjoint_evd_scratch};
use faer::{MatMut, Par};
use inrush_base::Result;

/// Computes eigenvalues and eigenvectors.
pub(crate) const EIGH: Function = Function {
    name: "linalg.eigh",
    doc: "in A [.., n, n], symmetric; out values [.., n], ascending, vectors [.., n, n] in columns; params [upper]. The upper or the lower \
          triangle is read. Elements there that are not finite are an error.",
    run: |call| dispatch(call, eigh::<f32>, eigh::<f64>),
};

/// Computes eigenvalues only.
pub(crate) const EIGVALSH: Function = Function {
    name: "linalg.eigvalsh",
    doc: "in A [.., n, n], symmetric; out values [.., n], ascending; params [upper]. As linalg.eigh.",
    run: |call| dispatch(call, eigvalsh::<f32>, eigvalsh::<f64>),
};

/// Decomposes a triangle of a row-major matrix: eigenvalues into `values`, eigenvectors into the columns of `vectors`.
fn decompose<T: Real>(
    elements: &[T],
    upper: bool,
    values: &mut [T],
    vectors: Option<MatMut<'_, T>>,
    which: usize,
) -> Result<()> {
    let n = values.len();
    let mut a = zeros(n, n)?;
    let mut triangle = Vec::with_capacity(n * (n + 1) / 2);
    for r in 0..n {
        for c in 0..=r {
            let v = elements[if upper { c * n + r } else { r * n + c }];
            triangle.push(v);
        }
    }
    check_finite(&triangle, which)?;
    let scale = scale(&triangle);
    let mut next = triangle.into_iter();
    for r in 0..n {
        for (c, v) in (0..=r).zip(next.by_ref()) {
            a[(r, c)] = v * scale;
        }
    }
    let compute = match vectors {
        Some(_) => ComputeEigenvectors::Yes,
        None => ComputeEigenvectors::No,
    };
    let request = self_adjoint_evd_scratch::<T>(n, compute, Par::Seq, Default::default());
    let diagonal = DiagMut::from_slice_mut(values);
    let done = with_stack(request, |stack| {
        self_adjoint_evd(
            a.as_ref(),
            diagonal,
            vectors,
            Par::Seq,
            stack,
            Default::default(),
        )
    })?;
    done.map_err(|_| no_convergence(which))?;
    for v in values {
        *v /= scale;
    }
    Ok(())
}

fn eigh<T: Real>(call: &mut Call<'_, '_>) -> Result<()> {
    let parts = call.parts::<1, 2>()?;
    let [a] = parts.inputs;
    let batch = Batch::square(a)?;
    let mut params = Params::new(parts.params);
    let upper = params.flag("upper")?;
    params.end()?;
    let n = batch.rows;
    let [values, vectors] = parts.outputs;
    values.check_sizes(&batch.with(&[n]))?;
    vectors.check_sizes(a.sizes)?;
    let a = a.elements::<T>()?;
    let values = Shared::new(values.elements::<T>()?);
    let vectors = Shared::new(vectors.elements::<T>()?);
    if parts.empty {
        return Ok(());
    }
    batch.each(parts.pool, work(&batch).saturating_mul(4), |i| {
        if n == 0 {
            return Ok(());
        }
        // SAFETY: parts of different matrices are disjoint.
        let (values, to) = unsafe { (values.part(at(i, n)), vectors.part(at(i, n * n))) };
        let mut columns = zeros(n, n)?;
        decompose(&a[at(i, n * n)], upper, values, Some(columns.as_mut()), i)?;
        copy(mat_mut(to, n, n), columns.as_ref());
        Ok(())
    })
}

fn eigvalsh<T: Real>(call: &mut Call<'_, '_>) -> Result<()> {
    let parts = call.parts::<1, 1>()?;
    let [a] = parts.inputs;
    let batch = Batch::square(a)?;
    let mut params = Params::new(parts.params);
    let upper = params.flag("upper")?;
    params.end()?;
    let n = batch.rows;
    let [values] = parts.outputs;
    values.check_sizes(&batch.with(&[n]))?;
    let a = a.elements::<T>()?;
    let values = Shared::new(values.elements::<T>()?);
    if parts.empty {
        return Ok(());
    }
    batch.each(parts.pool, work(&batch).saturating_mul(2), |i| {
        if n == 0 {
            return Ok(());
        }
        // SAFETY: parts of different matrices are disjoint.
        let values = unsafe { values.part(at(i, n)) };
        decompose(&a[at(i, n * n)], upper, values, None, i)
    })
}
