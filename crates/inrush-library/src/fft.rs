//! Fourier transforms along some dimensions of a tensor.
//!
//! A transform of several dimensions is one of each in turn. Lines along a dimension are gathered, a few neighbours at a
//! time, transformed as contiguous runs, and scattered back. Of real tensors the last listed dimension is transformed first
//! (`r2c`) or last (`c2r`), as lines of half the work.

mod lines;
mod plans;

use crate::check::{Element, Params, count, refuse_dtype, size};
use crate::parallel::{Shared, grain, scratch};
use crate::{Call, Function};
use inrush_base::{DType, Error, Result};
use inrush_cpu::Pool;
use lines::{transform, transform_from_real, transform_to_real};
use rustfft::num_complex::Complex;
use rustfft::{FftDirection, FftNum};

/// Complex to complex.
pub(crate) const C2C: Function = Function {
    name: "fft.c2c",
    doc: "in re, im; out re, im; params [norm, forward, dims...]. Transforms f32 or f64 along the listed dimensions. norm: 0 none, \
          1 by 1/sqrt(n), 2 by 1/n, where n is the product of their sizes.",
    run: |call| dispatch(call, 2, c2c::<f32>, c2c::<f64>),
};

/// Complex to real.
pub(crate) const C2R: Function = Function {
    name: "fft.c2r",
    doc: "in re, im; out x; params [norm, dims...]. The inverse transform of a tensor that is symmetric, with conjugates, along the last \
          listed dimension, of which only the first n/2 + 1 elements are given; n is the output's size there.",
    run: |call| dispatch(call, 2, c2r::<f32>, c2r::<f64>),
};

/// Real to complex.
pub(crate) const R2C: Function = Function {
    name: "fft.r2c",
    doc: "in x; out re, im; params [norm, onesided, dims...]. Transforms a real tensor. onesided: the last listed dimension has its first \
          n/2 + 1 elements in the output, since the others are their conjugates.",
    run: |call| dispatch(call, 1, r2c::<f32>, r2c::<f64>),
};

/// Real element types of transforms.
pub(crate) trait Real: Element + FftNum + Default + plans::Cached {
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

/// Runs a transform of the element type of the first input.
fn dispatch(call: &mut Call<'_, '_>, inputs: usize, narrow: Run, wide: Run) -> Result<()> {
    match call.inputs.first().map(|i| i.dtype) {
        Some(DType::F32) => narrow(call),
        Some(DType::F64) => wide(call),
        Some(other) => Err(refuse_dtype(other)),
        None => Err(Error::input(format!("0 inputs, not {inputs}"))),
    }
}

/// Normalization and dimensions of a transform.
struct Plan {
    norm: i64,
    dims: Vec<usize>,
}

impl Plan {
    /// Reads the dimensions of a tensor of rank `rank`: at least one where `some`, and none twice.
    fn read(norm: i64, mut params: Params<'_>, rank: usize, some: bool) -> Result<Plan> {
        if !(0..=2).contains(&norm) {
            return Err(Error::input(format!("normalization {norm}, not 0, 1 or 2")));
        }
        if params.left() > rank {
            return Err(Error::input(format!(
                "{} dimensions of a tensor of rank {rank}",
                params.left()
            )));
        }
        let mut dims = Vec::new();
        while params.left() > 0 {
            let dim = params.dim(rank)?;
            if dims.contains(&dim) {
                return Err(Error::input(format!("dimension {dim} is listed twice")));
            }
            dims.push(dim);
        }
        if some && dims.is_empty() {
            return Err(Error::input("no dimension to transform"));
        }
        params.end()?;
        Ok(Plan { norm, dims })
    }

    /// Returns the factor of results, for a signal of these sizes.
    fn factor(&self, sizes: &[i64]) -> f64 {
        let n: f64 = self.dims.iter().map(|&d| sizes[d] as f64).product();
        match self.norm {
            0 => 1.0,
            1 => 1.0 / n.sqrt(),
            _ => 1.0 / n,
        }
    }
}

fn direction(forward: bool) -> FftDirection {
    if forward {
        FftDirection::Forward
    } else {
        FftDirection::Inverse
    }
}

fn c2c<T: Real>(call: &mut Call<'_, '_>) -> Result<()> {
    let parts = call.parts::<2, 2>()?;
    let [re, im] = parts.inputs;
    let sizes = re.sizes;
    im.check_sizes(sizes)?;
    let mut params = Params::new(parts.params);
    let norm = params.int("norm")?;
    let forward = params.flag("forward")?;
    let plan = Plan::read(norm, params, sizes.len(), false)?;
    let (re, im) = (re.elements::<T>()?, im.elements::<T>()?);
    let [out_re, out_im] = parts.outputs;
    out_re.check_sizes(sizes)?;
    out_im.check_sizes(sizes)?;
    let (out_re, out_im) = (out_re.elements::<T>()?, out_im.elements::<T>()?);
    let mut data = join(parts.pool, re, im)?;
    for &dim in &plan.dims {
        transform(parts.pool, &mut data, sizes, dim, direction(forward))?;
    }
    part(parts.pool, &data, plan.factor(sizes), out_re, out_im)
}

fn r2c<T: Real>(call: &mut Call<'_, '_>) -> Result<()> {
    let parts = call.parts::<1, 2>()?;
    let [x] = parts.inputs;
    let mut params = Params::new(parts.params);
    let norm = params.int("norm")?;
    let onesided = params.flag("onesided")?;
    let plan = Plan::read(norm, params, x.sizes.len(), true)?;
    let last = plan.dims[plan.dims.len() - 1];
    let n = x.sizes[last];
    let mut sizes = x.sizes.to_vec();
    if onesided {
        sizes[last] = n / 2 + 1;
    }
    let data = x.elements::<T>()?;
    let [out_re, out_im] = parts.outputs;
    out_re.check_sizes(&sizes)?;
    out_im.check_sizes(&sizes)?;
    let (out_re, out_im) = (out_re.elements::<T>()?, out_im.elements::<T>()?);
    if out_re.is_empty() {
        return Ok(());
    }
    if n == 0 {
        return Err(Error::input("a transform of no elements"));
    }
    let mut lines = transform_from_real(parts.pool, data, x.sizes, last, &sizes)?;
    for &dim in &plan.dims[..plan.dims.len() - 1] {
        transform(parts.pool, &mut lines, &sizes, dim, FftDirection::Forward)?;
    }
    part(parts.pool, &lines, plan.factor(x.sizes), out_re, out_im)
}

fn c2r<T: Real>(call: &mut Call<'_, '_>) -> Result<()> {
    let parts = call.parts::<2, 1>()?;
    let [re, im] = parts.inputs;
    let sizes = re.sizes;
    im.check_sizes(sizes)?;
    let mut params = Params::new(parts.params);
    let norm = params.int("norm")?;
    let plan = Plan::read(norm, params, sizes.len(), true)?;
    let last = plan.dims[plan.dims.len() - 1];
    let (re, im) = (re.elements::<T>()?, im.elements::<T>()?);
    let [out] = parts.outputs;
    let real = out.sizes;
    let n = real.get(last).copied().unwrap_or(-1);
    let mut want = sizes.to_vec();
    want[last] = n;
    out.check_sizes(&want)?;
    let out = out.elements::<T>()?;
    if out.is_empty() {
        return Ok(());
    }
    if sizes[last] != n / 2 + 1 {
        return Err(Error::input(format!(
            "{} elements of a spectrum for {n} elements, not {}",
            sizes[last],
            n / 2 + 1
        )));
    }
    let mut data = join(parts.pool, re, im)?;
    for &dim in &plan.dims[..plan.dims.len() - 1] {
        transform(parts.pool, &mut data, sizes, dim, FftDirection::Inverse)?;
    }
    let factor = T::of(plan.factor(real));
    transform_to_real(parts.pool, &data, sizes, last, real, factor, out)
}

/// Joins real and imaginary parts.
fn join<T: Real>(pool: &Pool, re: &[T], im: &[T]) -> Result<Vec<Complex<T>>> {
    let mut out = scratch::<Complex<T>>(re.len())?;
    let shared = Shared::new(&mut out);
    pool.parallel_for(re.len(), grain(1), &|range| {
        // SAFETY: ranges are disjoint.
        let to = unsafe { shared.part(range.clone()) };
        for ((to, &re), &im) in to.iter_mut().zip(&re[range.clone()]).zip(&im[range]) {
            *to = Complex::new(re, im);
        }
    })?;
    Ok(out)
}

/// Splits complex values into real and imaginary parts, times `factor`.
fn part<T: Real>(
    pool: &Pool,
    from: &[Complex<T>],
    factor: f64,
    re: &mut [T],
    im: &mut [T],
) -> Result<()> {
    let factor = T::of(factor);
    let (re, im) = (Shared::new(re), Shared::new(im));
    pool.parallel_for(from.len(), grain(1), &|range| {
        // SAFETY: ranges are disjoint.
        let (re, im) = unsafe { (re.part(range.clone()), im.part(range.clone())) };
        for ((from, re), im) in from[range].iter().zip(re).zip(im) {
            *re = from.re * factor;
            *im = from.im * factor;
        }
    })
}

/// A tensor seen along one dimension: element `i` of line `(o, j)` is at `(o * n + i) * inner + j`.
#[derive(Clone, Copy)]
struct Along {
    outer: usize,
    n: usize,
    inner: usize,
}

impl Along {
    fn new(sizes: &[i64], dim: usize) -> Result<Along> {
        Ok(Along {
            outer: count(&sizes[..dim])?,
            n: size(sizes, dim),
            inner: count(&sizes[dim + 1..])?,
        })
    }

    /// Returns the number of lines.
    fn lines(&self) -> usize {
        self.outer * self.inner
    }

    /// Returns where line `line` starts.
    fn start(&self, line: usize) -> usize {
        line / self.inner * self.n * self.inner + line % self.inner
    }
}
