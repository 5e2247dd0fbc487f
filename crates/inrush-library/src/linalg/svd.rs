//! Singular values and vectors.

use super::lu::work;
use super::{
    Batch, Real, at, check_finite, copy, dispatch, mat, no_convergence, scale, with_stack, zeros,
};
use crate::check::{Params, count};
use crate::parallel::Shared;
use crate::{Call, Function};
use faer::diag::DiagMut;
use faer::linalg::svd::{ComputeSvdVectors, svd as faer_svd, svd_scratch};
use faer::{MatMut, Par};
use inrush_base::Result;

/// Computes singular values and vectors.
pub(crate) const SVD: Function = Function {
    name: "linalg.svd",
    doc: "in A [.., m, n]; out U [.., m, m or k], S [.., k], Vh [.., n or k, n], where k = min(m, n); params [full_matrices]. A = U S Vh; \
          S descends. Elements that are not finite are an error.",
    run: |call| dispatch(call, svd::<f32>, svd::<f64>),
};

/// Computes singular values only.
pub(crate) const SVDVALS: Function = Function {
    name: "linalg.svdvals",
    doc: "in A [.., m, n]; out S [.., min(m, n)], descending. Elements that are not finite are an error.",
    run: |call| dispatch(call, svdvals::<f32>, svdvals::<f64>),
};

/// Decomposes a row-major matrix: singular values into `s`, vectors into the columns of `u` and `v`, all of them or as many as `s`
/// has.
pub(super) fn decompose<T: Real>(
    elements: &[T],
    rows: usize,
    cols: usize,
    s: &mut [T],
    vectors: Option<(MatMut<'_, T>, MatMut<'_, T>)>,
    which: usize,
) -> Result<()> {
    check_finite(elements, which)?;
    let scale = scale(elements);
    let mut a = zeros(rows, cols)?;
    copy(a.as_mut(), mat(elements, rows, cols));
    if scale != T::of(1.0) {
        a.as_mut()
            .col_iter_mut()
            .for_each(|c| c.iter_mut().for_each(|v| *v *= scale));
    }
    let k = rows.min(cols);
    let compute = match &vectors {
        None => ComputeSvdVectors::No,
        Some((u, v)) if u.ncols() == k && v.ncols() == k => ComputeSvdVectors::Thin,
        Some(_) => ComputeSvdVectors::Full,
    };
    let (u, v) = vectors.unzip();
    let request = svd_scratch::<T>(rows, cols, compute, compute, Par::Seq, Default::default());
    let diagonal = DiagMut::from_slice_mut(s);
    let done = with_stack(request, |stack| {
        faer_svd(
            a.as_ref(),
            diagonal,
            u,
            v,
            Par::Seq,
            stack,
            Default::default(),
        )
    })?;
    done.map_err(|_| no_convergence(which))?;
    for s in s {
        *s /= scale;
    }
    Ok(())
}

fn svd<T: Real>(call: &mut Call<'_, '_>) -> Result<()> {
    let parts = call.parts::<1, 3>()?;
    let [a] = parts.inputs;
    let batch = Batch::of(a)?;
    let mut params = Params::new(parts.params);
    let full = params.flag("full_matrices")?;
    params.end()?;
    let (m, n, k) = (batch.rows, batch.cols, batch.least());
    let (left, right) = if full { (m, n) } else { (k, k) };
    let [u, s, vh] = parts.outputs;
    // Square ones can be larger than the input: their sizes are checked against their memory.
    let (u_sizes, vh_sizes) = (batch.with(&[m, left]), batch.with(&[right, n]));
    count(&u_sizes)?;
    count(&vh_sizes)?;
    u.check_sizes(&u_sizes)?;
    s.check_sizes(&batch.with(&[k]))?;
    vh.check_sizes(&vh_sizes)?;
    let a = a.elements::<T>()?;
    let u = Shared::new(u.elements::<T>()?);
    let s = Shared::new(s.elements::<T>()?);
    let vh = Shared::new(vh.elements::<T>()?);
    if parts.empty {
        return Ok(());
    }
    batch.each(parts.pool, work(&batch).saturating_mul(8), |i| {
        // SAFETY: parts of different matrices are disjoint.
        let (u, s, vh) = unsafe {
            (
                u.part(at(i, m * left)),
                s.part(at(i, k)),
                vh.part(at(i, right * n)),
            )
        };
        if k == 0 {
            // Without singular values any orthogonal matrices do.
            identity(u, left);
            identity(vh, n);
            return Ok(());
        }
        // Of a tall or wide matrix, faer leaves some elements of all vectors as they were: these are to be zero.
        let mut columns = zeros(m, left)?;
        vh.fill(T::of(0.0));
        // Rows of `Vh` are the columns that are computed.
        let v = MatMut::from_column_major_slice_mut(vh, n, right);
        decompose(&a[at(i, m * n)], m, n, s, Some((columns.as_mut(), v)), i)?;
        copy(
            MatMut::from_row_major_slice_mut(u, m, left),
            columns.as_ref(),
        );
        Ok(())
    })
}

/// Writes ones to the diagonal of a row-major matrix of `cols` columns, zeros elsewhere.
fn identity<T: Real>(elements: &mut [T], cols: usize) {
    for (i, v) in elements.iter_mut().enumerate() {
        *v = T::of(if i / cols == i % cols { 1.0 } else { 0.0 });
    }
}

fn svdvals<T: Real>(call: &mut Call<'_, '_>) -> Result<()> {
    let parts = call.parts::<1, 1>()?;
    let [a] = parts.inputs;
    let batch = Batch::of(a)?;
    Params::new(parts.params).end()?;
    let (m, n, k) = (batch.rows, batch.cols, batch.least());
    let [s] = parts.outputs;
    s.check_sizes(&batch.with(&[k]))?;
    let a = a.elements::<T>()?;
    let s = Shared::new(s.elements::<T>()?);
    if parts.empty {
        return Ok(());
    }
    batch.each(parts.pool, work(&batch).saturating_mul(4), |i| {
        if k == 0 {
            return Ok(());
        }
        // SAFETY: parts of different matrices are disjoint.
        let s = unsafe { s.part(at(i, k)) };
        decompose(&a[at(i, m * n)], m, n, s, None, i)
    })
}
