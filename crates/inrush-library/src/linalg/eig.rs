//! Eigenvalues and eigenvectors of any real matrices, as complex values in two parts.

use super::lu::work;
use super::{
    Batch, Real, at, check_finite, dispatch, mat, no_convergence, scale, with_stack, zeros,
};
use crate::check::Params;
use crate::parallel::{Shared, scratch};
use crate::{Call, Function};
use faer::diag::DiagMut;
use faer::linalg::evd::{ComputeEigenvectors, evd_real, evd_scratch};
use faer::{MatMut, MatRef, Par};
use inrush_base::Result;
use rustfft::num_traits::Float;

/// Computes eigenvalues and eigenvectors.
pub(crate) const EIG: Function = Function {
    name: "linalg.eig",
    doc: "in A [.., n, n]; out values re, im [.., n], vectors re, im [.., n, n] in columns. A vector has norm 1, and its largest element is \
          real. Elements that are not finite are an error.",
    run: |call| dispatch(call, eig::<f32>, eig::<f64>),
};

/// Computes eigenvalues only.
pub(crate) const EIGVALS: Function = Function {
    name: "linalg.eigvals",
    doc: "in A [.., n, n]; out values re, im [.., n]. As linalg.eig.",
    run: |call| dispatch(call, eigvals::<f32>, eigvals::<f64>),
};

/// Decomposes a row-major matrix: eigenvalues into `re` and `im`. Of a pair of conjugate ones, two columns of `vectors` have the
/// parts of the first one's vector.
fn decompose<T: Real>(
    elements: &[T],
    re: &mut [T],
    im: &mut [T],
    vectors: Option<MatMut<'_, T>>,
    which: usize,
) -> Result<()> {
    check_finite(elements, which)?;
    let n = re.len();
    let scale = scale(elements);
    let mut scaled = scratch(n * n)?;
    for (to, &v) in scaled.iter_mut().zip(elements) {
        *to = v * scale;
    }
    let compute = match vectors {
        Some(_) => ComputeEigenvectors::Yes,
        None => ComputeEigenvectors::No,
    };
    let no = ComputeEigenvectors::No;
    let request = evd_scratch::<T>(n, no, compute, Par::Seq, Default::default());
    let (to_re, to_im) = (DiagMut::from_slice_mut(re), DiagMut::from_slice_mut(im));
    let a = mat(&scaled, n, n);
    let done = with_stack(request, |stack| {
        evd_real(
            a,
            to_re,
            to_im,
            None,
            vectors,
            Par::Seq,
            stack,
            Default::default(),
        )
    })?;
    done.map_err(|_| no_convergence(which))?;
    for v in re.iter_mut().chain(im) {
        *v /= scale;
    }
    Ok(())
}

fn eig<T: Real>(call: &mut Call<'_, '_>) -> Result<()> {
    let parts = call.parts::<1, 4>()?;
    let [a] = parts.inputs;
    let batch = Batch::square(a)?;
    Params::new(parts.params).end()?;
    let n = batch.rows;
    let [re, im, vectors_re, vectors_im] = parts.outputs;
    for values in [&re, &im] {
        values.check_sizes(&batch.with(&[n]))?;
    }
    for vectors in [&vectors_re, &vectors_im] {
        vectors.check_sizes(a.sizes)?;
    }
    let a = a.elements::<T>()?;
    let re = Shared::new(re.elements::<T>()?);
    let im = Shared::new(im.elements::<T>()?);
    let vectors_re = Shared::new(vectors_re.elements::<T>()?);
    let vectors_im = Shared::new(vectors_im.elements::<T>()?);
    if parts.empty {
        return Ok(());
    }
    batch.each(parts.pool, work(&batch).saturating_mul(16), |i| {
        if n == 0 {
            return Ok(());
        }
        // SAFETY: parts of different matrices are disjoint.
        let (re, im, vectors_re, vectors_im) = unsafe {
            let square = at(i, n * n);
            (
                re.part(at(i, n)),
                im.part(at(i, n)),
                vectors_re.part(square.clone()),
                vectors_im.part(square),
            )
        };
        let mut vectors = zeros(n, n)?;
        decompose(&a[at(i, n * n)], re, im, Some(vectors.as_mut()), i)?;
        write_vectors(vectors.as_ref(), im, vectors_re, vectors_im);
        Ok(())
    })
}

/// Writes eigenvectors, normalised.
fn write_vectors<T: Real>(vectors: MatRef<'_, T>, im: &[T], to_re: &mut [T], to_im: &mut [T]) {
    let n = im.len();
    let zero = T::of(0.0);
    let mut j = 0;
    while j < n {
        let pair = im[j] != zero && j + 1 < n;
        let part = |i: usize| {
            (
                vectors[(i, j)],
                if pair { vectors[(i, j + 1)] } else { zero },
            )
        };
        // By the largest element first, so that no square overflows.
        let size = |(a, b): (T, T)| Float::hypot(a, b);
        let largest = (0..n).fold(0, |l, i| if size(part(i)) > size(part(l)) { i } else { l });
        let most = size(part(largest));
        let most = if most > zero { most } else { T::of(1.0) };
        let sum = (0..n).fold(zero, |s, i| {
            let v = size(part(i)) / most;
            s + v * v
        });
        let norm = most * Float::sqrt(sum);
        let norm = if norm > zero { norm } else { T::of(1.0) };
        // Turned by the largest element's phase.
        let (c, s) = if pair {
            let (a, b) = part(largest);
            (a / most, b / most)
        } else {
            (T::of(1.0), zero)
        };
        for i in 0..n {
            let (a, b) = part(i);
            let (a, b) = (a / norm, b / norm);
            let turned = (
                a * c + b * s,
                if i == largest { zero } else { b * c - a * s },
            );
            (to_re[i * n + j], to_im[i * n + j]) = turned;
            if pair {
                (to_re[i * n + j + 1], to_im[i * n + j + 1]) = (turned.0, -turned.1);
            }
        }
        j += if pair { 2 } else { 1 };
    }
}

fn eigvals<T: Real>(call: &mut Call<'_, '_>) -> Result<()> {
    let parts = call.parts::<1, 2>()?;
    let [a] = parts.inputs;
    let batch = Batch::square(a)?;
    Params::new(parts.params).end()?;
    let n = batch.rows;
    let [re, im] = parts.outputs;
    re.check_sizes(&batch.with(&[n]))?;
    im.check_sizes(&batch.with(&[n]))?;
    let a = a.elements::<T>()?;
    let re = Shared::new(re.elements::<T>()?);
    let im = Shared::new(im.elements::<T>()?);
    if parts.empty {
        return Ok(());
    }
    batch.each(parts.pool, work(&batch).saturating_mul(8), |i| {
        if n == 0 {
            return Ok(());
        }
        // SAFETY: parts of different matrices are disjoint.
        let (re, im) = unsafe { (re.part(at(i, n)), im.part(at(i, n))) };
        decompose(&a[at(i, n * n)], re, im, None, i)
    })
}
