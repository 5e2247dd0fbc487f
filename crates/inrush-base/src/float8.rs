//! The floats of eight bits: their numbers in PyTorch's encodings.
//!
//! | dtype | exponent, fraction | bias | beyond the largest number |
//! |---|---|---|---|
//! | `f8e4m3fn` | 4, 3 | 7 | NaN, all bits set; no infinity |
//! | `f8e5m2` | 5, 2 | 15 | infinity, NaN as in `f16` |
//! | `f8e4m3fnuz` | 4, 3 | 8 | NaN, the code of a negative zero; no infinity |
//! | `f8e5m2fnuz` | 5, 2 | 16 | likewise |

use crate::DType;

/// The encoding of a float of eight bits. Magnitudes are bits of an `f32` without its sign.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Float8 {
    /// Bits of the fraction.
    pub fraction: u32,
    /// The exponent's bias.
    pub bias: u32,
    /// Magnitude from which on numbers are not rounded: they have the code `beyond`.
    pub limit: u32,
    /// The code of magnitudes from `limit` on, without the sign.
    pub beyond: u32,
    /// The code of NaN, without the sign.
    pub nan: u32,
    /// The code of the largest number, without the sign. Those above are infinity and NaN, or NaN.
    pub largest: u32,
    /// There is no negative zero: its code is the only NaN.
    pub unsigned_zero: bool,
}

impl Float8 {
    /// Returns the encoding of a dtype; `None` for others.
    pub fn of(d: DType) -> Option<Float8> {
        let zero = |fraction, bias, limit| Float8 {
            fraction,
            bias,
            limit,
            beyond: 0x80,
            nan: 0x80,
            largest: 0x7f,
            unsigned_zero: true,
        };
        Some(match d {
            DType::F8E4M3FN => Float8 {
                fraction: 3,
                bias: 7,
                limit: 480f32.to_bits(),
                beyond: 0x7f,
                nan: 0x7f,
                largest: 0x7e,
                unsigned_zero: false,
            },
            DType::F8E5M2 => Float8 {
                fraction: 2,
                bias: 15,
                limit: 65536f32.to_bits(),
                beyond: 0x7c,
                nan: 0x7f,
                largest: 0x7b,
                unsigned_zero: false,
            },
            DType::F8E4M3FNUZ => zero(3, 8, 256f32.to_bits()),
            DType::F8E5M2FNUZ => zero(2, 16, 65536f32.to_bits()),
            _ => return None,
        })
    }

    /// Returns by how much the bits of a fraction move between an `f32` and a code.
    pub fn shift(self) -> u32 {
        23 - self.fraction
    }

    /// Returns the difference of the exponents' biases, at the place of an `f32`'s exponent.
    pub fn rebias(self) -> u32 {
        (127 - self.bias) << 23
    }

    /// Returns the step of denormals: 2 to the power of `1 - bias - fraction`.
    pub fn step(self) -> f32 {
        f32::from_bits((128 - self.bias - self.fraction) << 23)
    }

    /// Returns the magnitude of the smallest number with an exponent.
    pub fn smallest_normal(self) -> u32 {
        (128 - self.bias) << 23
    }

    /// Returns the nearest code, ties to even.
    pub fn encode(self, x: f32) -> u8 {
        let (bits, sign) = (x.to_bits() & 0x7fff_ffff, (x.to_bits() >> 24 & 0x80) as u8);
        let code = if x.is_nan() {
            self.nan
        } else if bits >= self.limit {
            self.beyond
        } else if bits < self.smallest_normal() {
            // The sum's last place is the step of denormals, so that the addition rounds.
            let place = self.step() * (1 << 23) as f32;
            (x.abs() + place).to_bits() - place.to_bits()
        } else {
            let half = (1 << (self.shift() - 1)) - 1 + (bits >> self.shift() & 1);
            (bits - self.rebias() + half) >> self.shift()
        } as u8;
        match code {
            0 if self.unsigned_zero => 0,
            0x80 => 0x80,
            code => code | sign,
        }
    }

    /// Returns the number of a code.
    pub fn decode(self, code: u8) -> f32 {
        let magnitude = u32::from(code & 0x7f);
        let x = match magnitude {
            0 if self.unsigned_zero && code == 0x80 => return f32::NAN,
            m if m > self.largest => {
                return if m == self.beyond && self.beyond != self.nan {
                    f32::INFINITY.copysign(if code > 0x7f { -1.0 } else { 1.0 })
                } else {
                    f32::NAN
                };
            }
            m if m < 1 << self.fraction => m as f32 * self.step(),
            m => f32::from_bits((m << self.shift()) + self.rebias()),
        };
        if code > 0x7f { -x } else { x }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [DType; 4] = [
        DType::F8E4M3FN,
        DType::F8E5M2,
        DType::F8E4M3FNUZ,
        DType::F8E5M2FNUZ,
    ];

    #[test]
    fn every_number_is_its_own_nearest() {
        for d in ALL {
            let f = Float8::of(d).unwrap();
            for code in 0..=255u8 {
                let x = f.decode(code);
                if x.is_nan() {
                    assert!(f.decode(f.encode(x)).is_nan(), "{d} {code}");
                } else {
                    assert_eq!(f.encode(x), code, "{d} {code} {x}");
                }
            }
        }
    }

    #[test]
    fn numbers_between_go_to_the_nearest_even_one() {
        for d in ALL {
            let f = Float8::of(d).unwrap();
            for code in 0..f.largest as u8 {
                let (low, high) = (f.decode(code), f.decode(code + 1));
                let middle = (low + high) / 2.0;
                assert_eq!(f.encode(middle), code + code % 2, "{d} {code}");
                assert_eq!(f.encode(middle.next_down()), code, "{d} {code}");
                assert_eq!(f.encode(middle.next_up()), code + 1, "{d} {code}");
                assert_eq!(f.encode(-middle.next_up()), (code + 1) | 0x80, "{d} {code}");
            }
        }
    }

    #[test]
    fn the_ends_are_those_of_the_encodings() {
        let largest: Vec<f32> = (ALL.iter())
            .map(|d| Float8::of(*d).unwrap())
            .map(|f| f.decode(f.largest as u8))
            .collect();
        assert_eq!(largest, [448.0, 57344.0, 240.0, 57344.0]);
        let code = |d, x| Float8::of(d).unwrap().encode(x);
        assert_eq!((code(ALL[0], 464.0), code(ALL[0], 465.0)), (0x7e, 0x7f));
        assert_eq!(code(ALL[0], f32::NEG_INFINITY), 0xff);
        assert_eq!((code(ALL[1], 61440.0), code(ALL[1], -1e9)), (0x7c, 0xfc));
        assert_eq!((code(ALL[2], 248.0), code(ALL[2], -248.0)), (0x80, 0x80));
        assert_eq!((code(ALL[3], -0.0), code(ALL[3], -1e-9)), (0, 0));
        assert!(Float8::of(DType::F16).is_none());
    }
}
