//! Tensors of the interpreters: logical, row-major, owned.
//!
//! Strides and storages do not exist at this level. Layouts are a matter of buffers, which
//! `loops::memory` and `blocks::memory` give them; views of a graph become copies here.

use inrush_base::{DType, Error, Result, Scalar};
use inrush_loops::eval;

/// A tensor in row-major order, little-endian elements of its storage dtype.
/// `data` has `numel * dtype.size()` bytes. A boolean is a byte of 0 or 1.
#[derive(Clone, PartialEq, Debug)]
pub struct Tensor {
    pub dtype: DType,
    pub sizes: Vec<i64>,
    pub data: Vec<u8>,
}

/// An input or output of a program.
/// Integers of symbolic size are scalars; `None` is an input that nothing reads or an output that
/// is absent.
#[derive(Clone, PartialEq, Debug)]
pub enum Value {
    Tensor(Tensor),
    Scalar(Scalar),
    None,
}

/// Most elements of an interpreter's tensor. Elements are computed one by one, so a larger tensor
/// is a mistake.
const MAX_ELEMENTS: i64 = 1 << 31;

/// Returns the number of elements of `sizes`, refused when negative or beyond what an interpreter
/// can hold.
pub(crate) fn numel(sizes: &[i64]) -> Result<usize> {
    let mut n = 1i64;
    for s in sizes {
        if *s < 0 {
            return Err(Error::input(format!("a size is negative: {sizes:?}")));
        }
        n = n.saturating_mul(*s);
    }
    if n > MAX_ELEMENTS && !sizes.contains(&0) {
        return Err(Error::input(format!(
            "{sizes:?} is too large for the interpreter"
        )));
    }
    // A zero makes the tensor empty however large the other sizes are, also where their product
    // has saturated.
    Ok(if sizes.contains(&0) { 0 } else { n as usize })
}

impl Tensor {
    /// Fails if a size is negative or there are too many elements.
    pub fn zeros(dtype: DType, sizes: &[i64]) -> Result<Tensor> {
        Ok(Tensor {
            dtype,
            sizes: sizes.to_vec(),
            data: vec![0; numel(sizes)? * dtype.size()],
        })
    }

    /// Builds a row-major tensor from strided `bytes`, which start at the element with coordinates
    /// zero.
    ///
    /// # Errors An element outside of `bytes`.
    pub fn from_strided(
        dtype: DType,
        sizes: &[i64],
        strides: &[i64],
        bytes: &[u8],
    ) -> Result<Tensor> {
        let mut t = Tensor::zeros(dtype, sizes)?;
        let size = dtype.size();
        for (k, to) in t.data.chunks_exact_mut(size).enumerate() {
            // Delinearizes `k`, last dimension first. No size is zero here, since there is an
            // element.
            let (mut rest, mut at) = (k as i64, 0i64);
            for (n, s) in sizes.iter().zip(strides).rev() {
                at = at.saturating_add((rest % n).saturating_mul(*s));
                rest /= n;
            }
            let from = usize::try_from(at)
                .ok()
                .and_then(|at| bytes.get(at.checked_mul(size)?..)?.get(..size))
                .ok_or_else(|| Error::input("a tensor lies outside its bytes"))?;
            to.copy_from_slice(from);
        }
        Ok(t)
    }

    /// Returns a tensor of the given elements, each converted to `dtype`.
    pub fn from_scalars(dtype: DType, sizes: &[i64], values: &[Scalar]) -> Result<Tensor> {
        let mut t = Tensor::zeros(dtype, sizes)?;
        if t.numel() != values.len() {
            return Err(Error::internal(format!(
                "{} elements for {sizes:?}",
                values.len()
            )));
        }
        for (k, v) in values.iter().enumerate() {
            t.set(k, *v)?;
        }
        Ok(t)
    }

    pub fn numel(&self) -> usize {
        self.data.len() / self.dtype.size()
    }

    /// Returns the number of dimensions; zero for a scalar tensor.
    pub fn rank(&self) -> usize {
        self.sizes.len()
    }

    /// Returns element `k` in row-major order.
    /// Complex dtypes have no scalar and are unsupported.
    pub fn get(&self, k: usize) -> Result<Scalar> {
        let size = self.dtype.size();
        let Some(bytes) = self.data.get(k * size..(k + 1) * size) else {
            return Err(Error::internal(format!(
                "element {k} of {:?} is read",
                self.sizes
            )));
        };
        let mut word = [0u8; 8];
        if size > 8 {
            return Err(Error::unsupported(format!(
                "values of dtype {}",
                self.dtype
            )));
        }
        word[..size].copy_from_slice(bytes);
        eval::from_bits(u64::from_le_bytes(word), self.dtype)
    }

    /// Writes element `k`, rounding or wrapping `v` to the dtype.
    pub fn set(&mut self, k: usize, v: Scalar) -> Result<()> {
        let size = self.dtype.size();
        let bits = eval::to_bits(v, self.dtype)?.to_le_bytes();
        match self.data.get_mut(k * size..(k + 1) * size) {
            Some(bytes) => bytes.copy_from_slice(&bits[..size]),
            None => {
                return Err(Error::internal(format!(
                    "element {k} of {:?} is written",
                    self.sizes
                )));
            }
        }
        Ok(())
    }

    /// Returns all elements.
    pub fn scalars(&self) -> Result<Vec<Scalar>> {
        (0..self.numel()).map(|k| self.get(k)).collect()
    }

    /// Returns [`Tensor::error_above`] with a negligible floor.
    /// Zero tensors agree only with zeros: any difference from them is huge.
    pub fn max_error(&self, want: &Tensor) -> Result<f64> {
        self.error_above(want, 1e-30)
    }

    /// Returns the largest error relative to the largest finite magnitude of `want` (at least
    /// `floor`). Infinite if one element is NaN or infinite and the other is not the same, or if
    /// the types differ.
    /// The error is relative to the whole tensor and not to each element, because sums that
    /// cancel have elements without any correct digit. Integers and booleans must be equal.
    pub fn error_above(&self, want: &Tensor, floor: f64) -> Result<f64> {
        if self.dtype != want.dtype || self.sizes != want.sizes {
            return Ok(f64::INFINITY);
        }
        let (mut worst, mut norm) = (0f64, 0f64);
        for k in 0..self.numel() {
            let (a, b) = (self.get(k)?, want.get(k)?);
            if !self.dtype.is_float() {
                if a != b {
                    return Ok(f64::INFINITY);
                }
                continue;
            }
            let (a, b) = (a.as_f64(), b.as_f64());
            if b.is_finite() {
                norm = norm.max(b.abs());
            }
            // Equal infinities end here, and -0.0 equals 0.0.
            if a == b || (a.is_nan() && b.is_nan()) {
                continue;
            }
            worst = worst.max((a - b).abs());
            if !a.is_finite() || !b.is_finite() {
                return Ok(f64::INFINITY);
            }
        }
        Ok(if worst == 0.0 {
            0.0
        } else {
            worst / norm.max(floor)
        })
    }
}

impl Value {
    /// Fails on scalars and `None`.
    pub fn tensor(&self) -> Result<&Tensor> {
        match self {
            Value::Tensor(t) => Ok(t),
            other => Err(Error::input(format!("expected a tensor, got {other:?}"))),
        }
    }
}
