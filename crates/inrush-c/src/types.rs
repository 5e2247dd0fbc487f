//! C types: scalars by dtype, vectors by dtype and lanes.
//!
//! A dtype has two C types. In *memory* ([`memory`]) halves are `u16` bits and bools bytes. As a
//! *value* ([`scalar`]) halves are `f32`, a uniform bool is an `i32` of 0 or 1, and a bool that
//! varies over lanes is a mask: a vector of integers, -1 where it is true, as the comparisons of
//! vector extensions give it.

use crate::text::joined;
use inrush_base::{DType, Scalar, digits};

/// The typedefs that every unit begins with.
pub(crate) const PRELUDE: &str = "\
typedef signed char i8; typedef unsigned char u8; typedef short i16; typedef unsigned short u16;
typedef int i32; typedef unsigned u32; typedef long long i64; typedef unsigned long long u64;
typedef float f32; typedef double f64;
";

/// A scalar type of C, by its name in [`PRELUDE`].
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum CType {
    I8,
    U8,
    I16,
    U16,
    I32,
    U32,
    I64,
    U64,
    F32,
    F64,
}

impl CType {
    /// Returns its name in [`PRELUDE`].
    pub(crate) fn name(self) -> &'static str {
        match self {
            CType::I8 => "i8",
            CType::U8 => "u8",
            CType::I16 => "i16",
            CType::U16 => "u16",
            CType::I32 => "i32",
            CType::U32 => "u32",
            CType::I64 => "i64",
            CType::U64 => "u64",
            CType::F32 => "f32",
            CType::F64 => "f64",
        }
    }

    /// Returns its size, which is the same on all targets.
    pub(crate) fn bytes(self) -> u32 {
        match self {
            CType::I8 | CType::U8 => 1,
            CType::I16 | CType::U16 => 2,
            CType::I32 | CType::U32 | CType::F32 => 4,
            CType::I64 | CType::U64 | CType::F64 => 8,
        }
    }

    pub(crate) fn is_float(self) -> bool {
        matches!(self, CType::F32 | CType::F64)
    }

    pub(crate) fn is_unsigned(self) -> bool {
        matches!(self, CType::U8 | CType::U16 | CType::U32 | CType::U64)
    }

    /// Returns the signed integer type of the same size.
    pub(crate) fn int_like(self) -> CType {
        int_of(self.bytes(), false)
    }
}

impl std::fmt::Display for CType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Returns the C type of a scalar of this dtype in memory; halves are their bits, bools bytes. Complex numbers have none: they
/// are refused where they are loaded or stored.
pub(crate) fn memory(d: DType) -> CType {
    match d {
        DType::I8 => CType::I8,
        DType::U16 => CType::U16,
        DType::I16 => CType::I16,
        DType::U32 => CType::U32,
        DType::I32 => CType::I32,
        DType::U64 => CType::U64,
        DType::I64 => CType::I64,
        DType::F32 => CType::F32,
        DType::F64 | DType::C64 | DType::C128 => CType::F64,
        DType::Bool | DType::U8 => CType::U8,
        DType::F16 | DType::BF16 => CType::U16,
        DType::F8E4M3FN | DType::F8E5M2 | DType::F8E4M3FNUZ | DType::F8E5M2FNUZ => CType::U8,
    }
}

/// Returns the C type of a uniform value.
pub(crate) fn scalar(d: DType) -> CType {
    match d {
        DType::Bool => CType::I32,
        d => memory(d.compute()),
    }
}

/// The head of a loop over lanes, each a `k`. A number of them is written out, whatever the compiler thinks of its length: a lane
/// whose number is not known goes through memory.
pub(crate) fn each_lane(count: &str) -> String {
    let unrolled = match count.parse::<u32>() {
        Ok(_) => "_Pragma(\"GCC unroll 64\") ",
        Err(_) => "",
    };
    format!("{unrolled}for (i32 k = 0; k < {count}; k++)")
}

/// Returns the integer type of so many bytes.
pub(crate) fn int_of(bytes: u32, unsigned: bool) -> CType {
    match (bytes, unsigned) {
        (1, false) => CType::I8,
        (1, true) => CType::U8,
        (2, false) => CType::I16,
        (2, true) => CType::U16,
        (4, false) => CType::I32,
        (4, true) => CType::U32,
        (_, false) => CType::I64,
        (_, true) => CType::U64,
    }
}

/// A constant of compute dtype `d` as C text.
pub(crate) fn literal(value: Scalar, d: DType) -> String {
    let value = value.convert(d);
    match d {
        DType::F32 | DType::F64 => {
            let v = value.as_f64();
            let suffix = if d == DType::F32 { "f" } else { "" };
            // Small whole numbers, which most constants are, without the slower printing of floats.
            // -0.0 is none of them.
            if v.is_sign_positive() && v < 1e6 && v.trunc() == v {
                joined!(digits(v as u32), ".0", suffix)
            } else if v.is_nan() {
                format!("__builtin_nan{suffix}(\"\")")
            } else if v.is_infinite() {
                let sign = if v < 0.0 { "-" } else { "" };
                joined!("(", sign, "__builtin_inf", suffix, "())")
            } else if d == DType::F32 {
                // The shortest digits that read back to the same number.
                wrap(format!("{:?}f", v as f32))
            } else {
                wrap(format!("{v:?}"))
            }
        }
        DType::Bool => (value.as_bool() as i32).to_string(),
        d => integer(value.as_i64(), d),
    }
}

/// C has no negative literals: `-2147483648` negates a number that does not fit an `int`. The least
/// numbers are spelled as sums.
fn integer(v: i64, d: DType) -> String {
    match d {
        DType::U64 => format!("{}ull", v as u64),
        DType::U32 => format!("{}u", v as u32),
        DType::I64 if v == i64::MIN => "(-9223372036854775807ll-1)".into(),
        DType::I64 => wrap(format!("{v}ll")),
        DType::I32 if v == i32::MIN as i64 => "(-2147483647-1)".into(),
        _ => wrap(v.to_string()),
    }
}

/// Parenthesises a negative number, so that `a -(-1)` never becomes `a--1`.
fn wrap(text: String) -> String {
    if text.starts_with('-') {
        format!("({text})")
    } else {
        text
    }
}
