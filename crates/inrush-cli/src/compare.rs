//! Outputs against expected outputs.
//!
//! The measure is the relative error of a whole tensor in the Euclidean norm, `|got - want| /
//! |want|`. Unlike a bound for each element it does not fail where an element is near zero by
//! cancellation, and one tolerance serves tensors of any scale.

use inrush_base::{DType, Error, Result};
use inrush_runtime::Tensor;

/// The elements of a tensor as `f64`, in row-major order.
pub fn to_f64(t: &Tensor) -> Result<Vec<f64>> {
    let bytes = t.to_bytes();
    // Elements are little-endian in files and in tensors.
    fn each<const N: usize>(bytes: &[u8], f: impl Fn([u8; N]) -> f64) -> Vec<f64> {
        bytes
            .chunks_exact(N)
            .map(|c| f(c.try_into().expect("chunks of N")))
            .collect()
    }
    Ok(match t.dtype {
        DType::F64 => each(&bytes, f64::from_le_bytes),
        DType::F32 => each(&bytes, |b| f32::from_le_bytes(b) as f64),
        DType::F16 => each(&bytes, |b| half::f16::from_le_bytes(b).to_f64()),
        DType::BF16 => each(&bytes, |b| half::bf16::from_le_bytes(b).to_f64()),
        DType::I64 => each(&bytes, |b| i64::from_le_bytes(b) as f64),
        DType::I32 => each(&bytes, |b| i32::from_le_bytes(b) as f64),
        DType::I16 => each(&bytes, |b| i16::from_le_bytes(b) as f64),
        DType::I8 => each(&bytes, |b: [u8; 1]| b[0] as i8 as f64),
        DType::U64 => each(&bytes, |b| u64::from_le_bytes(b) as f64),
        DType::U32 => each(&bytes, |b| u32::from_le_bytes(b) as f64),
        DType::U16 => each(&bytes, |b| u16::from_le_bytes(b) as f64),
        DType::U8 | DType::Bool => each(&bytes, |b: [u8; 1]| b[0] as f64),
        other => return Err(Error::unsupported(format!("comparing {other} tensors"))),
    })
}

/// Norm of the difference over the norm of `want` (the norm itself where that is zero). Infinite where NaN or infinity
/// stands in one tensor only.
pub fn relative_error(got: &Tensor, want: &Tensor) -> Result<f64> {
    if got.sizes != want.sizes {
        return Err(Error::input(format!(
            "sizes {:?} instead of {:?}",
            got.sizes, want.sizes
        )));
    }
    if got.dtype != want.dtype {
        return Err(Error::input(format!(
            "{} instead of {}",
            got.dtype.torch_name(),
            want.dtype.torch_name()
        )));
    }
    if !got.dtype.is_float() {
        // Integers are right or wrong; i64 beyond 2^53 must not be compared as floats.
        return Ok(if got.to_bytes() == want.to_bytes() {
            0.0
        } else {
            f64::INFINITY
        });
    }
    let (got, want) = (to_f64(got)?, to_f64(want)?);
    let (mut diff, mut norm) = (0.0, 0.0);
    for (g, w) in got.iter().zip(&want) {
        if g.is_finite() && w.is_finite() {
            diff += (g - w) * (g - w);
            norm += w * w;
        } else if !(g == w || g.is_nan() && w.is_nan()) {
            return Ok(f64::INFINITY);
        }
    }
    Ok(if norm > 0.0 {
        (diff / norm).sqrt()
    } else {
        diff.sqrt()
    })
}

/// How many rows of `scores` (rows × classes) have their first maximum at the label.
pub fn correct(scores: &Tensor, labels: &Tensor) -> Result<(usize, usize)> {
    let [rows, classes] = scores.sizes[..] else {
        return Err(Error::input(
            "accuracy needs an output 0 of two dimensions (rows × classes)",
        ));
    };
    if labels.sizes != [rows] {
        return Err(Error::input(format!(
            "`labels` has sizes {:?}, expected [{rows}]",
            labels.sizes
        )));
    }
    let (scores, labels) = (to_f64(scores)?, to_f64(labels)?);
    let mut right = 0;
    for (row, label) in scores.chunks_exact((classes as usize).max(1)).zip(&labels) {
        // `>` keeps the first of equal maxima.
        let mut best = 0;
        for (i, v) in row.iter().enumerate() {
            if *v > row[best] {
                best = i;
            }
        }
        right += (best as f64 == *label) as usize;
    }
    Ok((right, labels.len()))
}
