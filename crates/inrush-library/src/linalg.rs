//! Linear algebra on batches of matrices: the last two dimensions of a tensor are rows and columns, the others count matrices.
//!
//! Threads share the matrices of a batch; one matrix is one thread's work. Pivots, signs of Householder reflections and `info`
//! codes are LAPACK's, so factorisations of singular matrices are too. Products, triangular solves, singular values and
//! eigenvalues are faer's.

mod cholesky;
mod eig;
mod eigh;
mod exp;
mod lstsq;
mod lu;
mod qr;
mod solve;
mod svd;

pub(crate) use cholesky::CHOLESKY;
pub(crate) use eig::{EIG, EIGVALS};
pub(crate) use eigh::{EIGH, EIGVALSH};
pub(crate) use exp::MATRIX_EXP;
pub(crate) use lstsq::LSTSQ;
pub(crate) use lu::{DET, LU_FACTOR, LU_UNPACK, SLOGDET};
pub(crate) use qr::{QR, QR_R};
pub(crate) use solve::{INV, SOLVE, SOLVE_TRIANGULAR};
pub(crate) use svd::{SVD, SVDVALS};

use crate::check::{Element, count, refuse_dtype, size};
use crate::parallel::{grain, try_for};
use crate::{Call, Input};
use faer::linalg::matmul::matmul;
use faer::{Accum, Mat, MatMut, MatRef, Par};
use inrush_base::{DType, Error, ErrorKind, Result};
use inrush_cpu::Pool;
use std::ops::{AddAssign, DivAssign, MulAssign, Range, SubAssign};

/// Real element types of matrices.
pub(crate) trait Real:
    Element
    + faer::traits::RealField
    + rustfft::num_traits::Float
    + Default
    + AddAssign
    + SubAssign
    + MulAssign
    + DivAssign
{
    fn of(value: f64) -> Self;
}

impl Real for f32 {
    fn of(value: f64) -> f32 {
        value as f32
    }
}

impl Real for f64 {
    fn of(value: f64) -> f64 {
        value
    }
}

type Run = fn(&mut Call<'_, '_>) -> Result<()>;

/// Runs a function for the element type of the first input.
fn dispatch(call: &mut Call<'_, '_>, narrow: Run, wide: Run) -> Result<()> {
    match call.inputs.first().map(|i| i.dtype) {
        Some(DType::F32) => narrow(call),
        Some(DType::F64) => wide(call),
        Some(other) => Err(refuse_dtype(other)),
        None => Err(Error::input("no inputs")),
    }
}

/// Sizes of a batch of matrices.
struct Batch<'a> {
    /// Sizes of the batch.
    sizes: &'a [i64],
    /// Matrices.
    many: usize,
    rows: usize,
    cols: usize,
}

impl<'a> Batch<'a> {
    /// Reads the sizes of an input.
    fn of(input: &Input<'a>) -> Result<Batch<'a>> {
        let sizes = input.sizes;
        let Some(rank) = sizes.len().checked_sub(2) else {
            return Err(Error::input(format!("a matrix of sizes {sizes:?}")));
        };
        Ok(Batch {
            sizes: &sizes[..rank],
            many: count(&sizes[..rank])?,
            rows: size(sizes, rank),
            cols: size(sizes, rank + 1),
        })
    }

    /// Reads the sizes of an input of square matrices.
    fn square(input: &Input<'a>) -> Result<Batch<'a>> {
        let batch = Batch::of(input)?;
        if batch.rows == batch.cols {
            return Ok(batch);
        }
        Err(Error::input(format!(
            "matrices of {:?} are not square",
            input.sizes
        )))
    }

    /// Returns the sizes of a tensor with these dimensions for each matrix.
    fn with(&self, each: &[usize]) -> Vec<i64> {
        let each = each.iter().map(|&n| i64::try_from(n).unwrap_or(i64::MAX));
        self.sizes.iter().copied().chain(each).collect()
    }

    /// Returns the elements of a matrix.
    fn len(&self) -> usize {
        self.rows * self.cols
    }

    /// Returns the smaller size of a matrix.
    fn least(&self) -> usize {
        self.rows.min(self.cols)
    }

    /// Calls `f` with the number of each matrix, on several threads. `work`: about how many operations one takes.
    fn each(&self, pool: &Pool, work: usize, f: impl Fn(usize) -> Result<()> + Sync) -> Result<()> {
        try_for(pool, self.many, grain(work), |range| {
            range.into_iter().try_for_each(&f)
        })
    }
}

/// Returns the places of matrix `i` among matrices of `len` elements.
fn at(i: usize, len: usize) -> Range<usize> {
    i * len..(i + 1) * len
}

/// Returns a row-major matrix.
fn mat<T: Real>(elements: &[T], rows: usize, cols: usize) -> MatRef<'_, T> {
    MatRef::from_row_major_slice(elements, rows, cols)
}

/// Returns a row-major matrix that can be written.
fn mat_mut<T: Real>(elements: &mut [T], rows: usize, cols: usize) -> MatMut<'_, T> {
    MatMut::from_row_major_slice_mut(elements, rows, cols)
}

/// Adds `alpha * a * b` to a matrix.
fn add_product<T: Real>(to: MatMut<'_, T>, a: MatRef<'_, T>, b: MatRef<'_, T>, alpha: T) {
    matmul(to, Accum::Add, a, b, alpha, Par::Seq);
}

/// Returns `a * b`.
fn product<T: Real>(a: MatRef<'_, T>, b: MatRef<'_, T>) -> Result<Mat<T>> {
    let mut to = zeros(a.nrows(), b.ncols())?;
    matmul(to.as_mut(), Accum::Replace, a, b, T::of(1.0), Par::Seq);
    Ok(to)
}

/// Copies a matrix into another of its sizes.
fn copy<T: Real>(mut to: MatMut<'_, T>, from: MatRef<'_, T>) {
    to.copy_from(from);
}

/// Makes a matrix of zeros, or says that there is no memory for it.
fn zeros<T: Real>(rows: usize, cols: usize) -> Result<Mat<T>> {
    let mut out = Mat::new();
    out.try_reserve(rows, cols)
        .map_err(|_| Error::out_of_memory(format!("no memory for a matrix of {rows} x {cols}")))?;
    out.resize_with(rows, cols, |_, _| T::of(0.0));
    Ok(out)
}

/// Runs `f` with scratch of faer's for a factorisation.
fn with_stack<R>(
    request: faer::dyn_stack::StackReq,
    f: impl FnOnce(&mut faer::dyn_stack::MemStack) -> R,
) -> Result<R> {
    let mut memory = faer::dyn_stack::MemBuffer::try_new(request)
        .map_err(|_| Error::out_of_memory("no memory for the scratch of a factorisation"))?;
    Ok(f(faer::dyn_stack::MemStack::new(&mut memory)))
}

/// Refuses a matrix with elements that are not finite, of which no iteration converges.
fn check_finite<T: Real>(elements: &[T], which: usize) -> Result<()> {
    if elements
        .iter()
        .all(|v| rustfft::num_traits::Float::is_finite(*v))
    {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::InvalidValue,
        format!("matrix {which} of the batch has elements that are not finite"),
    ))
}

/// Returns the error of an iteration that did not converge.
fn no_convergence(which: usize) -> Error {
    Error::new(
        ErrorKind::InvalidValue,
        format!("matrix {which} of the batch: the iteration did not converge"),
    )
}

/// Returns a value as `f64`.
fn wide<T: Real>(v: T) -> f64 {
    rustfft::num_traits::ToPrimitive::to_f64(&v).unwrap_or(f64::NAN)
}

/// Returns a power of two that brings the largest element near one where squares of elements could overflow or vanish, else 1.
fn scale<T: Real>(elements: &[T]) -> T {
    let largest = elements.iter().fold(0.0, |m: f64, &v| m.max(wide(v).abs()));
    let bound = if T::DTYPE == DType::F64 { 400 } else { 50 };
    let exponent = largest.log2();
    if largest == 0.0 || !exponent.is_finite() || exponent.abs() < f64::from(bound) {
        return T::of(1.0);
    }
    // One away from the ends, so that the scale and its inverse are normal numbers.
    let most = if T::DTYPE == DType::F64 {
        1021.0
    } else {
        125.0
    };
    T::of((-exponent.round()).clamp(-most, most).exp2())
}
