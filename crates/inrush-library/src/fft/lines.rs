//! Transforms of all lines along one dimension.

use super::{Along, Real};
use crate::parallel::{Shared, grain, scratch, try_for};
use inrush_base::{Error, Result};
use inrush_cpu::Pool;
use rustfft::FftDirection;
use rustfft::num_complex::Complex;

/// Neighbouring lines that are gathered together, so that each cache line that is read is used whole.
const TOGETHER: usize = 8;

/// Transforms the lines along `dim` in place.
pub(super) fn transform<T: Real>(
    pool: &Pool,
    data: &mut [Complex<T>],
    sizes: &[i64],
    dim: usize,
    direction: FftDirection,
) -> Result<()> {
    let along = Along::new(sizes, dim)?;
    if data.is_empty() || along.n == 1 {
        return Ok(());
    }
    let (n, inner) = (along.n, along.inner);
    let fft = T::complex(n, direction);
    let shared = Shared::new(data);
    try_for(pool, along.lines(), grain(n), |range| {
        let mut work = scratch(fft.get_inplace_scratch_len())?;
        if inner == 1 {
            // SAFETY: lines of disjoint ranges are disjoint.
            let lines = unsafe { shared.part(range.start * n..range.end * n) };
            fft.process_with_scratch(lines, &mut work);
            return Ok(());
        }
        let mut lines = scratch(TOGETHER * n)?;
        let mut line = range.start;
        while line < range.end {
            let many = (inner - line % inner).min(range.end - line).min(TOGETHER);
            let start = along.start(line);
            for i in 0..n {
                for j in 0..many {
                    // SAFETY: elements of this range's lines only.
                    lines[j * n + i] = unsafe { shared.get(start + i * inner + j) };
                }
            }
            fft.process_with_scratch(&mut lines[..many * n], &mut work);
            for i in 0..n {
                for j in 0..many {
                    // SAFETY: as above.
                    unsafe { shared.set(start + i * inner + j, lines[j * n + i]) };
                }
            }
            line += many;
        }
        Ok(())
    })
}

/// Transforms real lines along `dim`. The result has the sizes `to`: as many elements there, or half of them and one.
pub(super) fn transform_from_real<T: Real>(
    pool: &Pool,
    x: &[T],
    from: &[i64],
    dim: usize,
    to: &[i64],
) -> Result<Vec<Complex<T>>> {
    let (along, into) = (Along::new(from, dim)?, Along::new(to, dim)?);
    let (n, half) = (along.n, along.n / 2 + 1);
    let fft = T::from_real(n);
    let mut out = scratch::<Complex<T>>(into.lines() * into.n)?;
    let shared = Shared::new(&mut out);
    try_for(pool, along.lines(), grain(n), |range| {
        let mut work = fft.make_scratch_vec();
        let mut line = scratch::<T>(n)?;
        let mut result = scratch::<Complex<T>>(half)?;
        for at in range {
            let start = along.start(at);
            for (i, to) in line.iter_mut().enumerate() {
                *to = x[start + i * along.inner];
            }
            fft.process_with_scratch(&mut line, &mut result, &mut work)
                .map_err(|e| Error::internal(e.to_string()))?;
            let start = into.start(at);
            for i in 0..into.n {
                let value = if i < half {
                    result[i]
                } else {
                    result[n - i].conj()
                };
                // SAFETY: elements of this range's lines only.
                unsafe { shared.set(start + i * into.inner, value) };
            }
        }
        Ok(())
    })?;
    Ok(out)
}

/// Transforms halves of symmetric lines along `dim` to real lines of the sizes `to`, times `factor`.
pub(super) fn transform_to_real<T: Real>(
    pool: &Pool,
    data: &[Complex<T>],
    from: &[i64],
    dim: usize,
    to: &[i64],
    factor: T,
    out: &mut [T],
) -> Result<()> {
    let (along, into) = (Along::new(from, dim)?, Along::new(to, dim)?);
    let (half, n) = (along.n, into.n);
    let fft = T::to_real(n);
    let shared = Shared::new(out);
    try_for(pool, along.lines(), grain(n), |range| {
        let mut work = fft.make_scratch_vec();
        let mut line = scratch::<Complex<T>>(half)?;
        let mut result = scratch::<T>(n)?;
        for at in range {
            let start = along.start(at);
            for (i, to) in line.iter_mut().enumerate() {
                *to = data[start + i * along.inner];
            }
            // A real signal has no imaginary part there; what is given is left out, as PyTorch does.
            line[0].im = T::of(0.0);
            if n % 2 == 0 {
                line[half - 1].im = T::of(0.0);
            }
            fft.process_with_scratch(&mut line, &mut result, &mut work)
                .map_err(|e| Error::internal(e.to_string()))?;
            let start = into.start(at);
            for (i, &value) in result.iter().enumerate() {
                // SAFETY: elements of this range's lines only.
                unsafe { shared.set(start + i * into.inner, value * factor) };
            }
        }
        Ok(())
    })
}
