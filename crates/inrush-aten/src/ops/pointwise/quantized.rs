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
use inrush_base::{DType, Error, Result, Scalar};
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

/// Returns values within the bounds of an operator, as integers.
fn clamped(b: &mut Builder, args: &Args, y: ValueId, dtype: DType) -> Result<Vec<ValueId>> {
    let bounds = [args.int("quant_min")?, args.int("quant_max")?];
    let y = b.call(
        "aten.clamp.default",
        &[y.into(), bounds[0].into(), bounds[1].into()],
    )?;
    Ok(vec![b.cast(y, dtype)?])
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
    let mut inverse = b.unary("aten.reciprocal.default", scale)?;
    if b.rank(x)? == 0 {
        // A number does not widen a tensor without dimensions.
        inverse = b.cast(inverse, DType::F32)?;
    }
    let y = b.mul(x, inverse)?;
    let mut y = b.unary("aten.round.default", y)?;
    if let Some(zero) = zero {
        y = b.add(y, zero)?;
    }
    clamped(b, args, y, dtype)
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

/// `clamp(round(x * (1 / s) + z), min, max)`, with parameters for each row of the last dimension.
fn quantize_rows(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let (x, zero) = (args.value("input")?, args.value("zero_points")?);
    let dtype = stored(args)?;
    let inverse = b.unary("aten.reciprocal.default", args.value("scales")?)?;
    let y = b.mul(x, inverse)?;
    let y = b.add(y, zero)?;
    let y = b.unary("aten.round.default", y)?;
    clamped(b, args, y, dtype)
}

fn dequantize_rows(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let y = b.sub(args.value("input")?, args.value("zero_points")?)?;
    let y = b.mul(y, args.value("scales")?)?;
    let out = args.dtype("output_dtype")?.unwrap_or(DType::F32);
    Ok(vec![b.cast(y, out)?])
}

/// The range of values, widened to hold 0: its ends, as float32.
fn range(b: &mut Builder, args: &Args, dims: &[i64], keep: bool) -> Result<[ValueId; 2]> {
    let x = args.value("input")?;
    let dtype = b.dtype(x)?;
    if dtype != DType::F32 {
        return Err(Error::unsupported(format!(
            "parameters of quantisation chosen from {dtype}, not float32"
        )));
    }
    let zero = b.scalar(Scalar::Float(0.0));
    let mut end = |reduce: &str, clamp: &str| {
        let dims = b.ints(dims);
        let v = b.call(reduce, &[x.into(), dims, keep.into()])?;
        b.call(clamp, &[v.into(), zero.clone()])
    };
    Ok([
        end("aten.amin.default", "aten.clamp_max.default")?,
        end("aten.amax.default", "aten.clamp_min.default")?,
    ])
}

/// The scale of a range in `steps` steps, at least `least`.
fn step(b: &mut Builder, range: [ValueId; 2], steps: f64, least: f64) -> Result<ValueId> {
    let width = b.sub(range[1], range[0])?;
    let steps = b.scalar(Scalar::Float(steps));
    let scale = b.call("aten.div.Scalar", &[width.into(), steps])?;
    let least = b.scalar(Scalar::Float(least));
    b.call("aten.clamp_min.default", &[scale.into(), least])
}

/// Scale and zero point of a whole tensor: `z = min - round(low / s)`.
fn choose(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let (low, high) = (args.const_int("quant_min")?, args.const_int("quant_max")?);
    if low >= high {
        return Err(Error::input(format!("no integers from {low} to {high}")));
    }
    // The smallest scale is a number of float32 in eager.
    let least = args.float("eps")? as f32 as f64;
    let ends = range(b, args, &[], false)?;
    let scale = step(b, ends, (high - low) as f64, least)?;
    let steps = b.div(ends[0], scale)?;
    let steps = b.unary("aten.round.default", steps)?;
    let steps = b.cast(steps, DType::I32)?;
    let zero = b.unary("aten.neg.default", steps)?;
    let least = b.scalar(Scalar::Int(low));
    let one = b.int(1);
    let zero = b.call("aten.add.Scalar", &[zero.into(), least.clone(), one])?;
    let most = b.scalar(Scalar::Int(high));
    let zero = b.call("aten.clamp.default", &[zero.into(), least, most])?;
    let one = [b.exprs.int(1)];
    let (scale, zero) = (b.view(scale, &one)?, b.view(zero, &one)?);
    Ok(vec![b.cast(scale, DType::F64)?, b.cast(zero, DType::I64)?])
}

/// Scale and zero point of each row of the last dimension, for `int8`. Of the two ends of the range the one counts whose error is
/// larger.
fn choose_rows(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    const LEAST: f64 = -128.0;
    const MOST: f64 = 127.0;
    let ends = range(b, args, &[-1], true)?;
    let scale = step(b, ends, MOST - LEAST, f32::EPSILON as f64)?;
    let mut from = |end: ValueId, bound: f64| -> Result<[ValueId; 2]> {
        let steps = b.div(end, scale)?;
        let (bound, one) = (b.scalar(Scalar::Float(bound)), b.int(1));
        let error = b.call("aten.add.Scalar", &[steps.into(), bound.clone(), one])?;
        let zero = b.unary("aten.neg.default", steps)?;
        let one = b.int(1);
        Ok([
            error,
            b.call("aten.add.Scalar", &[zero.into(), bound, one])?,
        ])
    };
    let ([low_error, low], [high_error, high]) = (from(ends[0], LEAST)?, from(ends[1], MOST)?);
    let error = b.add(low_error, high_error)?;
    let zero = b.scalar(Scalar::Float(0.0));
    let first = b.call("aten.gt.Scalar", &[error.into(), zero])?;
    let zero = b.call("aten.where.self", &[first.into(), low.into(), high.into()])?;
    let bounds = [LEAST, MOST].map(|v| b.scalar(Scalar::Float(v)));
    let [least, most] = bounds;
    let zero = b.call("aten.clamp.default", &[zero.into(), least, most])?;
    let zero = b.unary("aten.round.default", zero)?;
    Ok(vec![b.cast(scale, DType::F64)?, b.cast(zero, DType::I64)?])
}

pub const ROWS: &[Row] = &[
    row(
        "quantized_decomposed.quantize_per_token.default",
        "(Tensor input, Tensor scales, Tensor zero_points, int quant_min, int quant_max, ScalarType dtype) -> Tensor",
        quantize_rows,
        "(f32[3,40], f64[3,1]{0.1:0.3}, i64[3,1], -128, 127, i8)",
    ),
    row(
        "quantized_decomposed.dequantize_per_token.default",
        "(Tensor input, Tensor scales, Tensor zero_points, int quant_min, int quant_max, ScalarType dtype, ScalarType output_dtype) -> Tensor",
        dequantize_rows,
        "(i8[3,40]{-128:127}, f64[3,1]{0.1:0.3}, i64[3,1], -128, 127, i8, f32)",
    ),
    row(
        "quantized_decomposed.choose_qparams.tensor",
        "(Tensor input, int quant_min, int quant_max, float eps, ScalarType dtype) -> (Tensor, Tensor)",
        choose,
        "(f32[3,40], -128, 127, 1e-5, i8)",
    ),
    row(
        "quantized_decomposed.choose_qparams_per_token_asymmetric.default",
        "(Tensor input, ScalarType dtype) -> (Tensor, Tensor)",
        choose_rows,
        "(f32[3,40], i8)",
    ),
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
