//! Random inputs: the same for one seed on every machine.
//!
//! Inputs are drawn again for each comparison, from a seed in the test's settings. Plain floats
//! are in -2..2, where most functions are neither flat nor out of range; special ones (NaN,
//! infinities, both zeros, huge and tiny numbers) are a fourth of the elements if they are asked
//! for.

use inrush_base::{DType, Result, Scalar};
use inrush_interp::Tensor;

/// The values that a tensor is filled with.
#[derive(Copy, Clone, Default)]
pub struct Fill {
    /// Bounds of integers (-8 to 8 where there are none), and of floats where they are given.
    /// Both ends may be drawn. For floats it replaces special and whole values.
    pub range: Option<(f64, f64)>,
    /// Some floats are infinite, no numbers, or far from one.
    pub special: bool,
    /// Floats are small whole numbers.
    pub whole: bool,
}

/// A small xorshift generator.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        // Spreads small seeds over all bits. The state of a xorshift generator must not be zero.
        Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        // The low bits of xorshift are the weakest.
        self.0 >> 8
    }

    /// Uniform in `lo..=hi`.
    pub fn int(&mut self, lo: i64, hi: i64) -> i64 {
        lo + (self.next() % (hi - lo + 1).max(1) as u64) as i64
    }

    /// Uniform in -2..2.
    fn float(&mut self) -> f64 {
        (self.next() % (1 << 20)) as f64 / (1 << 18) as f64 - 2.0
    }

    /// A tensor: floats around zero or in the range, integers in the range.
    pub fn tensor(&mut self, dtype: DType, sizes: &[i64], fill: Fill) -> Result<Tensor> {
        let mut t = Tensor::zeros(dtype, sizes)?;
        let (lo, hi) = fill.range.unwrap_or((-8.0, 8.0));
        for k in 0..t.numel() {
            let v = match dtype {
                DType::Bool => Scalar::Bool(self.next() & 1 == 1),
                d if d.is_float() => Scalar::Float(match fill.range {
                    Some(_) => lo + (hi - lo) * (self.float() + 2.0) / 4.0,
                    None if fill.whole => self.int(-3, 3) as f64,
                    None => self.any_float(fill.special),
                }),
                _ => Scalar::Int(self.int(lo as i64, hi as i64)),
            };
            t.set(k, v.convert(dtype))?;
        }
        Ok(t)
    }

    /// Returns a plain float or, if `special`, one of the special ones in a quarter of the cases.
    fn any_float(&mut self, special: bool) -> f64 {
        const SPECIAL: [f64; 8] = [
            f64::NAN,
            f64::INFINITY,
            f64::NEG_INFINITY,
            0.0,
            -0.0,
            1e30,
            -1e-30,
            0.5,
        ];
        if special && self.next().is_multiple_of(4) {
            SPECIAL[(self.next() % 8) as usize]
        } else {
            self.float()
        }
    }
}
