//! C types: scalars by dtype, vectors by dtype and lanes.

use crate::text::joined;
use inrush_base::{DType, Scalar, digits};

/// The typedefs that every unit begins with.
pub(crate) const PRELUDE: &str = "\
typedef signed char i8; typedef unsigned char u8; typedef short i16; typedef unsigned short u16;
typedef int i32; typedef unsigned u32; typedef long long i64; typedef unsigned long long u64;
typedef float f32; typedef double f64;
";

/// Name of the C type of a scalar of this dtype in memory; halves are their bits, bools bytes.
pub(crate) fn memory(d: DType) -> &'static str {
    match d {
        DType::Bool | DType::U8 => "u8",
        DType::F16 | DType::BF16 => "u16",
        DType::F8E4M3FN | DType::F8E5M2 | DType::F8E4M3FNUZ | DType::F8E5M2FNUZ => "u8",
        d => d.name(),
    }
}

/// Name of the C type of a uniform value.
pub(crate) fn scalar(d: DType) -> &'static str {
    match d {
        DType::Bool => "i32",
        d => d.compute().name(),
    }
}

/// Bytes of the C type called `name`.
pub(crate) fn bytes(name: &str) -> u32 {
    match name.as_bytes() {
        [_, b'8'] => 1,
        [_, b'1', b'6'] => 2,
        [_, b'6', b'4'] => 8,
        _ => 4,
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

/// The signed integer type of the same size.
pub(crate) fn int_like(name: &str) -> &'static str {
    match bytes(name) {
        1 => "i8",
        2 => "i16",
        8 => "i64",
        _ => "i32",
    }
}

/// The integer type of so many bytes.
pub(crate) fn int_of(bytes: u32, unsigned: bool) -> &'static str {
    match (bytes, unsigned) {
        (1, false) => "i8",
        (1, true) => "u8",
        (2, false) => "i16",
        (2, true) => "u16",
        (4, false) => "i32",
        (4, true) => "u32",
        (_, false) => "i64",
        (_, true) => "u64",
    }
}

pub(crate) fn is_float(name: &str) -> bool {
    name.starts_with('f')
}

/// A constant of compute dtype `d` as C text.
pub(crate) fn literal(value: Scalar, d: DType) -> String {
    let value = value.convert(d);
    match d {
        DType::F32 | DType::F64 => {
            let v = value.as_f64();
            let suffix = if d == DType::F32 { "f" } else { "" };
            if v.is_sign_positive() && v < 1e6 && v.trunc() == v {
                joined!(digits(v as u32), ".0", suffix)
            } else if v.is_nan() {
                format!("__builtin_nan{suffix}(\"\")")
            } else if v.is_infinite() {
                let sign = if v < 0.0 { "-" } else { "" };
                joined!("(", sign, "__builtin_inf", suffix, "())")
            } else if d == DType::F32 {
                wrap(format!("{:?}f", v as f32))
            } else {
                wrap(format!("{v:?}"))
            }
        }
        DType::Bool => (value.as_bool() as i32).to_string(),
        d => integer(value.as_i64(), d),
    }
}

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

fn wrap(text: String) -> String {
    if text.starts_with('-') {
        format!("({text})")
    } else {
        text
    }
}
