//! Values as small integers: the operators of PyTorch's `quantized_decomposed` library, which exported quantised models hold.
//!
//! With `s` the scale and `z` the zero point, one of each for the tensor or for every index of an axis:
//!
//! ```text
//! quantize    q = clamp(round(x * (1 / s)) + z, min, max)
//! dequantize  y = (q - z) * s
//! ```
//!
//! Halves are quantised in `f32`. What is a multiplication by the reciprocal in eager is one here.

use crate::ops::decomposed as row;
use crate::{Args, Builder, Row};
use inrush_base::{DType, Error, Result};
use inrush_graph::{Arg, ValueId};

/// Returns the scale and the zero point of an operator, as tensors that broadcast with its operand.
fn parameters(b: &mut Builder, args: &Args) -> Result<(ValueId, Option<ValueId>)> {
    if args.op.schema().position("axis").is_none() {
        return match args.arg("scale")? {
            Arg::Value(scale) => {
                let zero = b.view(args.value("zero_point")?, &[])?;
                // Eager reads the number, whose reciprocal is then one of doubles.
                let scale = b.view(*scale, &[])?;
                Ok((b.cast(scale, DType::F64)?, Some(zero)))
            }
            _ => {
                let scale = b.full(&[], args.float("scale")?, DType::F64)?;
                let zero = b.full(&[], args.const_int("zero_point")? as f64, DType::I64)?;
                Ok((scale, Some(zero)))
            }
        };
    }
    let rank = b.rank(args.value("input")?)?;
    let mut sizes = vec![b.exprs.int(1); rank];
    let scales = args.value("scales")?;
    sizes[args.dim("axis", rank)?] = b.exprs.product(b.sizes(scales)?);
    let scales = b.view(scales, &sizes)?;
    let zeros = match args.opt_value("zero_points")? {
        Some(z) => Some(b.view(z, &sizes)?),
        None => None,
    };
    Ok((scales, zeros))
}

/// Returns the dtype that a parameter names, the dtype of small integers.
fn stored(args: &Args) -> Result<DType> {
    match args.dtype("dtype")? {
        Some(d @ (DType::U8 | DType::I8 | DType::I16 | DType::U16 | DType::I32)) => Ok(d),
        Some(other) => Err(Error::unsupported(format!("values quantised to {other}"))),
        None => Err(Error::input("a dtype to quantise to is missing")),
    }
}

fn quantize(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let mut x = args.value("input")?;
    let dtype = stored(args)?;
    match b.dtype(x)? {
        DType::F32 => {}
        DType::F16 | DType::BF16 => x = b.cast(x, DType::F32)?,
        other => return Err(Error::input(format!("quantising {other}, not float32"))),
    }
    let (scale, zero) = parameters(b, args)?;
    let inverse = b.unary("aten.reciprocal.default", scale)?;
    let y = b.mul(x, inverse)?;
    let mut y = b.unary("aten.round.default", y)?;
    if let Some(zero) = zero {
        y = b.add(y, zero)?;
    }
    let bounds = [args.int("quant_min")?, args.int("quant_max")?];
    let y = b.call(
        "aten.clamp.default",
        &[y.into(), bounds[0].into(), bounds[1].into()],
    )?;
    Ok(vec![b.cast(y, dtype)?])
}

fn dequantize(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let x = args.value("input")?;
    let (dtype, own) = (stored(args)?, b.dtype(x)?);
    if dtype != own {
        return Err(Error::input(format!("a tensor of {own}, not {dtype}")));
    }
    let out = args.dtype("out_dtype")?.unwrap_or(DType::F32);
    let (scale, zero) = parameters(b, args)?;
    // Integers of channels are subtracted as such, those of tensors as floats.
    let by_channel = args.op.schema().position("axis").is_some();
    let mut y = if by_channel { x } else { b.cast(x, out)? };
    if let Some(zero) = zero {
        y = b.sub(y, zero)?;
    }
    let y = b.mul(y, scale)?;
    Ok(vec![b.cast(y, out)?])
}

pub const ROWS: &[Row] = &[
    row(
        "quantized_decomposed.quantize_per_tensor.default",
        "(Tensor input, float scale, int zero_point, int quant_min, int quant_max, ScalarType dtype) -> Tensor",
        quantize,
        "(f32[3,40], 0.07, 3, -128, 127, i8)",
    ),
    row(
        "quantized_decomposed.quantize_per_tensor.tensor",
        "(Tensor input, Tensor scale, Tensor zero_point, int quant_min, int quant_max, ScalarType dtype) -> Tensor",
        quantize,
        "(f16[3,40], f32[1]{0.1:0.3}, i64[1]{100:140}, 0, 255, u8)",
    ),
    row(
        "quantized_decomposed.quantize_per_channel.default",
        "(Tensor input, Tensor scales, Tensor zero_points, int axis, int quant_min, int quant_max, ScalarType dtype) -> Tensor",
        quantize,
        "(f32[3,40], f32[40]{0.1:0.3}, i64[40], 1, -128, 127, i8)",
    ),
    row(
        "quantized_decomposed.dequantize_per_tensor.default",
        "(Tensor input, float scale, int zero_point, int quant_min, int quant_max, ScalarType dtype, *, ScalarType? out_dtype=None) -> Tensor",
        dequantize,
        "(i8[3,40]{-128:127}, 0.07, 3, -128, 127, i8)",
    ),
    row(
        "quantized_decomposed.dequantize_per_tensor.tensor",
        "(Tensor input, Tensor scale, Tensor zero_point, int quant_min, int quant_max, ScalarType dtype, *, ScalarType? out_dtype=None) -> Tensor",
        dequantize,
        "(u8[3,40]{0:255}, f32[1]{0.1:0.3}, i64[1]{100:140}, 0, 255, u8)",
    ),
    row(
        "quantized_decomposed.dequantize_per_channel.default",
        "(Tensor input, Tensor scales, Tensor? zero_points, int axis, int quant_min, int quant_max, ScalarType dtype, *, ScalarType? out_dtype=None) -> Tensor",
        dequantize,
        "(i8[3,40]{-128:127}, f32[3]{0.1:0.3}, i64[3], 0, -128, 127, i8)",
    ),
];
