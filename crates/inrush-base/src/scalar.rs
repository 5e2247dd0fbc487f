//! A number outside any tensor: an operator's scalar argument or a constant in a loop body.

use crate::{DType, Float8};
use std::fmt;

/// A Python number. Floats compare by bits so that `NaN == NaN` and `0.0 != -0.0`: constants are told apart by what they are.
#[derive(Copy, Clone, Debug)]
pub enum Scalar {
    Bool(bool),
    Int(i64),
    Float(f64),
}

impl Scalar {
    /// The dtype that the number brings to type promotion when no tensor of its class takes part.
    pub fn default_dtype(self) -> DType {
        match self {
            Scalar::Bool(_) => DType::Bool,
            Scalar::Int(_) => DType::I64,
            Scalar::Float(_) => DType::F32,
        }
    }

    pub fn as_f64(self) -> f64 {
        match self {
            Scalar::Bool(b) => b as u8 as f64,
            Scalar::Int(i) => i as f64,
            Scalar::Float(f) => f,
        }
    }

    /// The number as an integer, truncating floats toward zero (saturating at the ends).
    pub fn as_i64(self) -> i64 {
        match self {
            Scalar::Bool(b) => b as i64,
            Scalar::Int(i) => i,
            Scalar::Float(f) => f as i64,
        }
    }

    /// Returns false for zero of either sign, as Python does.
    pub fn as_bool(self) -> bool {
        match self {
            Scalar::Bool(b) => b,
            Scalar::Int(i) => i != 0,
            Scalar::Float(f) => f != 0.0,
        }
    }

    /// The same number in the representation that `dtype` constants use: bool, integer (wrapped) or float (rounded).
    pub fn convert(self, dtype: DType) -> Scalar {
        if dtype == DType::Bool {
            return Scalar::Bool(self.as_bool());
        }
        if dtype.is_int() {
            let v = self.as_i64();
            return Scalar::Int(match dtype {
                DType::U8 => v as u8 as i64,
                DType::I8 => v as i8 as i64,
                DType::U16 => v as u16 as i64,
                DType::I16 => v as i16 as i64,
                DType::U32 => v as u32 as i64,
                DType::I32 => v as i32 as i64,
                _ => v,
            });
        }
        let v = self.as_f64();
        Scalar::Float(match dtype {
            DType::F32 => v as f32 as f64,
            // As PyTorch's halves are made from a double: by way of a float, which rounds twice.
            DType::F16 => half::f16::from_f32(v as f32).to_f64(),
            DType::BF16 => half::bf16::from_f32(v as f32).to_f64(),
            d => match Float8::of(d) {
                Some(f) => f64::from(f.decode(f.encode(v as f32))),
                None => v,
            },
        })
    }

    /// Returns what equality and hashes look at. All NaNs are one value.
    fn key(self) -> (u8, u64) {
        match self {
            Scalar::Bool(b) => (0, b as u64),
            Scalar::Int(i) => (1, i as u64),
            Scalar::Float(f) => (2, if f.is_nan() { u64::MAX } else { f.to_bits() }),
        }
    }
}

impl PartialEq for Scalar {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}
impl Eq for Scalar {}
impl std::hash::Hash for Scalar {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.key().hash(state)
    }
}

impl fmt::Display for Scalar {
    /// `true`, `3`, `2.5`, `1.0`, `inf`, `-inf`, `nan`: what the scanner reads back to the same value.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scalar::Bool(b) => write!(f, "{b}"),
            Scalar::Int(i) => write!(f, "{i}"),
            Scalar::Float(v) if v.is_nan() => f.write_str("nan"),
            Scalar::Float(v) => write!(f, "{v:?}"),
        }
    }
}
