//! Random inputs: the same for one seed on every machine.

use inrush_base::{DType, Result, Scalar};
use inrush_interp::Tensor;

/// A small xorshift generator.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
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

    /// A tensor: floats around zero (some of them special, where asked for), integers in `range`.
    pub fn tensor(
        &mut self,
        dtype: DType,
        sizes: &[i64],
        range: (i64, i64),
        special: bool,
    ) -> Result<Tensor> {
        let mut t = Tensor::zeros(dtype, sizes)?;
        for k in 0..t.numel() {
            let v = match dtype {
                DType::Bool => Scalar::Bool(self.next() & 1 == 1),
                d if d.is_float() => Scalar::Float(self.any_float(special)),
                _ => Scalar::Int(self.int(range.0, range.1)),
            };
            t.set(k, v.convert(dtype))?;
        }
        Ok(t)
    }

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
        match special && self.next() % 4 == 0 {
            true => SPECIAL[(self.next() % 8) as usize],
            false => self.float(),
        }
    }
}
