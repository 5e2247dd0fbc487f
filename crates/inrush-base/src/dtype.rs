//! Element types, their sizes and names, and ATen's type promotion.

use std::fmt;

/// Element type of a tensor or of a value inside a loop body.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum DType {
    Bool,
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    U64,
    I64,
    F8E4M3FN,
    F8E5M2,
    F8E4M3FNUZ,
    F8E5M2FNUZ,
    F16,
    BF16,
    F32,
    F64,
    C64,
    C128,
}

/// Promotion category, weakest first (ATen: bool < integral < floating < complex).
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum DTypeClass {
    Bool,
    Int,
    Float,
    Complex,
}

/// One line a dtype: short text-form name, PyTorch's name, bytes.
const TABLE: &[(DType, &str, &str, usize)] = &[
    (DType::Bool, "bool", "bool", 1),
    (DType::U8, "u8", "uint8", 1),
    (DType::I8, "i8", "int8", 1),
    (DType::U16, "u16", "uint16", 2),
    (DType::I16, "i16", "int16", 2),
    (DType::U32, "u32", "uint32", 4),
    (DType::I32, "i32", "int32", 4),
    (DType::U64, "u64", "uint64", 8),
    (DType::I64, "i64", "int64", 8),
    (DType::F8E4M3FN, "f8e4m3fn", "float8_e4m3fn", 1),
    (DType::F8E5M2, "f8e5m2", "float8_e5m2", 1),
    (DType::F8E4M3FNUZ, "f8e4m3fnuz", "float8_e4m3fnuz", 1),
    (DType::F8E5M2FNUZ, "f8e5m2fnuz", "float8_e5m2fnuz", 1),
    (DType::F16, "f16", "float16", 2),
    (DType::BF16, "bf16", "bfloat16", 2),
    (DType::F32, "f32", "float32", 4),
    (DType::F64, "f64", "float64", 8),
    (DType::C64, "c64", "complex64", 8),
    (DType::C128, "c128", "complex128", 16),
];

impl DType {
    /// Every dtype, in table order.
    pub fn all() -> impl Iterator<Item = DType> {
        TABLE.iter().map(|row| row.0)
    }

    fn row(self) -> &'static (DType, &'static str, &'static str, usize) {
        &TABLE[self as usize]
    }

    /// Name in inrush's text forms: `f32`, `i64`, `bool`.
    pub fn name(self) -> &'static str {
        self.row().1
    }

    /// PyTorch's number (`c10::ScalarType`, which is stable).
    pub fn torch_code(self) -> i32 {
        match self {
            DType::U8 => 0,
            DType::I8 => 1,
            DType::I16 => 2,
            DType::I32 => 3,
            DType::I64 => 4,
            DType::F16 => 5,
            DType::F32 => 6,
            DType::F64 => 7,
            DType::C64 => 9,
            DType::C128 => 10,
            DType::Bool => 11,
            DType::BF16 => 15,
            DType::F8E5M2 => 23,
            DType::F8E4M3FN => 24,
            DType::F8E5M2FNUZ => 25,
            DType::F8E4M3FNUZ => 26,
            DType::U16 => 27,
            DType::U32 => 28,
            DType::U64 => 29,
        }
    }

    /// Returns the dtype with a number of PyTorch's.
    pub fn of_torch_code(code: i32) -> Option<DType> {
        DType::all().find(|d| d.torch_code() == code)
    }

    /// PyTorch's name: `float32`, `int64`, `bool`.
    pub fn torch_name(self) -> &'static str {
        self.row().2
    }

    /// Bytes of one element.
    pub fn size(self) -> usize {
        self.row().3
    }

    /// The dtype with this text-form or PyTorch name.
    pub fn parse(name: &str) -> Option<DType> {
        TABLE
            .iter()
            .find(|row| row.1 == name || row.2 == name)
            .map(|row| row.0)
    }

    pub fn class(self) -> DTypeClass {
        match self {
            DType::Bool => DTypeClass::Bool,
            DType::C64 | DType::C128 => DTypeClass::Complex,
            d if d.is_float() => DTypeClass::Float,
            _ => DTypeClass::Int,
        }
    }

    pub fn is_float(self) -> bool {
        (DType::F8E4M3FN..=DType::F64).contains(&self)
    }

    pub fn is_int(self) -> bool {
        (DType::U8..=DType::I64).contains(&self)
    }

    pub fn is_unsigned(self) -> bool {
        matches!(self, DType::U8 | DType::U16 | DType::U32 | DType::U64)
    }

    /// Floats of two bytes or fewer: loaded and stored as they are, computed in `f32`.
    pub fn is_narrow_float(self) -> bool {
        self.is_float() && self.size() < 4
    }

    /// The dtype in which values of this dtype are held between a load and a store.
    pub fn compute(self) -> DType {
        if self.is_narrow_float() {
            DType::F32
        } else {
            self
        }
    }

    /// Returns the dtype of the real and imaginary parts of a complex dtype; `None` for others.
    pub fn part(self) -> Option<DType> {
        match self {
            DType::C64 => Some(DType::F32),
            DType::C128 => Some(DType::F64),
            _ => None,
        }
    }

    /// Smallest and largest value of an integer dtype or bool, as `i128`.
    pub fn int_range(self) -> Option<(i128, i128)> {
        if self == DType::Bool {
            return Some((0, 1));
        }
        if !self.is_int() {
            return None;
        }
        let bits = 8 * self.size() as u32;
        Some(if self.is_unsigned() {
            (0, (1i128 << bits) - 1)
        } else {
            (-(1i128 << (bits - 1)), (1i128 << (bits - 1)) - 1)
        })
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The common dtype of two tensors of equal standing (ATen's promotion lattice).
///
/// Two different narrow floats meet in `f32`; `u8` with a signed type meets in the next wider signed type.
pub fn promote(a: DType, b: DType) -> DType {
    use DType::*;
    if a == b {
        return a;
    }
    let (lo, hi) = if a.class() <= b.class() {
        (a, b)
    } else {
        (b, a)
    };
    match (lo.class(), hi.class()) {
        (DTypeClass::Complex, _) => C128,
        (_, DTypeClass::Complex) => {
            if lo == F64 || hi == C128 {
                C128
            } else {
                C64
            }
        }
        (DTypeClass::Float, DTypeClass::Float) => {
            if a == F64 || b == F64 {
                F64
            } else {
                // Unequal floats below f64 share no narrower common type than f32.
                F32
            }
        }
        (_, DTypeClass::Float) => hi,
        (DTypeClass::Bool, _) => hi,
        _ => match (a.is_unsigned(), b.is_unsigned()) {
            (true, true) | (false, false) => {
                if a.size() >= b.size() {
                    a
                } else {
                    b
                }
            }
            // A signed type holds an unsigned one only if it is wider. Of 64 bits there is none:
            // `i64`.
            (ua, _) => {
                let (u, s) = if ua { (a, b) } else { (b, a) };
                if s.size() > u.size() {
                    s
                } else {
                    match u.size() {
                        1 => I16,
                        2 => I32,
                        _ => I64,
                    }
                }
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_is_in_enum_order() {
        for d in DType::all() {
            assert_eq!(d.row().0, d);
            assert_eq!(DType::parse(d.name()), Some(d));
            assert_eq!(DType::parse(d.torch_name()), Some(d));
        }
    }

    #[test]
    fn promotion_follows_aten() {
        use DType::*;
        for (a, b, want) in [
            (Bool, U8, U8),
            (U8, I8, I16),
            (I32, I64, I64),
            (I64, F16, F16),
            (F16, BF16, F32),
            (BF16, F32, F32),
            (F32, F64, F64),
            (F64, C64, C128),
            (U8, I32, I32),
        ] {
            assert_eq!(promote(a, b), want);
            assert_eq!(promote(b, a), want);
        }
    }
}
