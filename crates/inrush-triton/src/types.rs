//! Names of element types and constants.
//!
//! `name` is for code (`tl.float32`), `signature` for the types of parameters (`*fp32`), which a
//! build is asked for by. Where Triton lacks a float of eight bits for the device, kernels see its codes as bytes.

use inrush_base::{Caps, DType, Error, Float8, Result, Scalar};

/// `tl`'s name of a type, without the module.
pub(crate) fn name(d: DType) -> Result<&'static str> {
    Ok(match d {
        DType::Bool => "int1",
        DType::U8 => "uint8",
        DType::I8 => "int8",
        DType::U16 => "uint16",
        DType::I16 => "int16",
        DType::U32 => "uint32",
        DType::I32 => "int32",
        DType::U64 => "uint64",
        DType::I64 => "int64",
        DType::F8E4M3FN => "float8e4nv",
        DType::F8E5M2 => "float8e5",
        DType::F8E4M3FNUZ => "float8e4b8",
        DType::F8E5M2FNUZ => "float8e5b16",
        DType::F16 => "float16",
        DType::BF16 => "bfloat16",
        DType::F32 => "float32",
        DType::F64 => "float64",
        DType::C64 | DType::C128 => {
            return Err(Error::unsupported(format!("values of {d} on a GPU")));
        }
    })
}

/// The type in a signature: `fp32`.
pub(crate) fn signature(d: DType) -> Result<&'static str> {
    Ok(match d {
        DType::Bool => "i1",
        DType::U8 => "u8",
        DType::I8 => "i8",
        DType::U16 => "u16",
        DType::I16 => "i16",
        DType::U32 => "u32",
        DType::I32 => "i32",
        DType::U64 => "u64",
        DType::I64 => "i64",
        DType::F8E4M3FN => "fp8e4nv",
        DType::F8E5M2 => "fp8e5",
        DType::F8E4M3FNUZ => "fp8e4b8",
        DType::F8E5M2FNUZ => "fp8e5b16",
        DType::F16 => "fp16",
        DType::BF16 => "bf16",
        DType::F32 => "fp32",
        DType::F64 => "fp64",
        DType::C64 | DType::C128 => {
            return Err(Error::unsupported(format!("values of {d} on a GPU")));
        }
    })
}

/// The encoding of a float of eight bits that Triton has no type for on the device.
pub(crate) fn encoding(d: DType, caps: &Caps) -> Option<Float8> {
    let native = (caps.gpu.as_ref()).is_some_and(|g| g.float8.contains(&d));
    Float8::of(d).filter(|_| !native)
}

/// The type of what a pointer to stored values of `d` points to: `fp32`.
pub(crate) fn stored(d: DType, caps: &Caps) -> Result<&'static str> {
    signature(if encoding(d, caps).is_some() {
        DType::U8
    } else {
        d
    })
}

/// A constant as a literal of the language, which takes the type of the tensor that it meets.
pub(crate) fn literal(value: Scalar, d: DType) -> String {
    match value.convert(d) {
        Scalar::Bool(b) => if b { "True" } else { "False" }.into(),
        Scalar::Int(v) if d == DType::U64 => (v as u64).to_string(),
        Scalar::Int(v) => v.to_string(),
        Scalar::Float(v) if v.is_nan() => "float(\"nan\")".into(),
        Scalar::Float(v) if v == f64::INFINITY => "float(\"inf\")".into(),
        Scalar::Float(v) if v == f64::NEG_INFINITY => "float(\"-inf\")".into(),
        // Triton fills with whatever equals zero by zero's bits, which have no sign.
        Scalar::Float(v) if v == 0.0 && v.is_sign_negative() => {
            let ty = name(d).unwrap_or("fp32");
            format!("(tl.full([], 0.0, tl.{ty}) * -1.0)")
        }
        Scalar::Float(v) => {
            // The shorter of the texts that read back to the same `f32`.
            let short = format!("{:?}", v as f32);
            match short.parse::<f64>() {
                Ok(s) if d == DType::F32 && s as f32 as f64 == v => short,
                _ => format!("{v:?}"),
            }
        }
    }
}
