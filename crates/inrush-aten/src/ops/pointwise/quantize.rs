//! Numbers in classes: histograms of equal bins, and values rounded to the steps that a small integer type would have.
//!
//! Fake quantisation computes, with `s` the scale and `z` the zero point,
//!
//! ```text
//! q = round(x * (1 / s)) + z        y = (clamp(q, min, max) - z) * s        mask = min <= q <= max
//! ```
//!
//! It multiplies by the reciprocal, as eager does: a division rounds differently. The mask is what
//! a straight-through gradient is multiplied by.

use crate::ops::decomposed as row;
use crate::{Args, Builder, Row};
use inrush_base::{DType, Error, Result};
use inrush_graph::{Arg, ValueId};

/// Where both hold.
fn both(b: &mut Builder, x: ValueId, y: ValueId) -> Result<ValueId> {
    b.call("aten.logical_and.default", &[x.into(), y.into()])
}

/// Counts the elements in each of `bins` equal parts of `min..=max`; the end belongs to the last
/// part. Elements outside, and NaN, are not counted. Refuses ranges that are computed from the
/// data.
fn histc(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let x = args.value("self")?;
    let dtype = b.dtype(x)?;
    let (bins, min, max) = (
        args.const_int("bins")?,
        args.float("min")?,
        args.float("max")?,
    );
    if !matches!(dtype, DType::F32 | DType::F64) {
        return Err(Error::unsupported(format!("a histogram of {dtype}")));
    }
    // Bounds and width as eager has them: of the tensor's dtype before anything is computed from
    // them.
    let (low, high) = match dtype {
        DType::F32 => (f64::from(min as f32), f64::from(max as f32)),
        _ => (min, max),
    };
    let width = match dtype {
        DType::F32 => f64::from(high as f32 - low as f32),
        _ => high - low,
    };
    if bins < 1 || !(width > 0.0 && width.is_finite()) {
        return Err(Error::unsupported(
            "a histogram whose range is not given by its arguments",
        ));
    }
    let flat = [b.exprs.product(b.sizes(x)?)];
    let x = b.view(x, &flat)?;
    // NaN fails both tests.
    let above = b.by("aten.ge.Scalar", x, low)?;
    let below = b.by("aten.le.Scalar", x, high)?;
    let inside = both(b, above, below)?;
    // In this order eager rounds.
    let place = b.by("aten.sub.Scalar", x, low)?;
    let place = b.scale(place, bins as f64)?;
    let place = b.by("aten.div.Scalar", place, width)?;
    let place = b.select_or(inside, place, 0.0)?;
    let place = b.cast(place, DType::I64)?;
    // Elements equal to `max` would open a part of their own.
    let last = b.int(bins - 1);
    let place = b.call("aten.clamp_max.default", &[place.into(), last])?;
    let one = b.cast(inside, dtype)?;
    let none = b.full(&[b.exprs.int(bins)], 0.0, dtype)?;
    let dim = b.int(0);
    Ok(vec![b.call(
        "aten.scatter_add.default",
        &[none.into(), dim, place.into(), one.into()],
    )?])
}

/// Rounds `x` to steps of `scale` around `zero`, clamped to the bounds, and returns also a mask of
/// the elements within them. A step number beyond 64 bits is the least one for channels, as in
/// eager's conversion.
fn stepped(
    b: &mut Builder,
    args: &Args,
    scale: ValueId,
    zero: ValueId,
    wraps: bool,
) -> Result<(ValueId, ValueId)> {
    let x = args.value("self")?;
    let (low, high) = (
        args.const_int("quant_min")? as f64,
        args.const_int("quant_max")? as f64,
    );
    if b.dtype(x)? != DType::F32 {
        let d = b.dtype(x)?;
        return Err(Error::unsupported(format!("steps of {d}")));
    }
    let scale = b.cast(scale, DType::F32)?;
    let zero = b.cast(zero, DType::F32)?;
    let inverse = b.unary("aten.reciprocal.default", scale)?;
    let step = b.mul(x, inverse)?;
    let step = b.unary("aten.round.default", step)?;
    let step = b.add(step, zero)?;
    let known = match wraps {
        true => b.by("aten.lt.Scalar", step, 2f64.powi(63))?,
        false => b.call("aten.eq.Tensor", &[step.into(), step.into()])?,
    };
    let step = b.select_or(known, step, f64::NEG_INFINITY)?;
    let above = b.by("aten.ge.Scalar", step, low)?;
    let below = b.by("aten.le.Scalar", step, high)?;
    let mask = both(b, above, below)?;
    let kept = b.call(
        "aten.clamp.default",
        &[step.into(), Arg::Float(low), Arg::Float(high)],
    )?;
    let kept = b.sub(kept, zero)?;
    Ok((b.mul(kept, scale)?, mask))
}

/// Scale and zero point are numbers, one for the whole tensor.
fn by_tensor(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let scale = b.full(&[], args.float("scale")?, DType::F32)?;
    let zero = b.full(&[], args.const_int("zero_point")? as f64, DType::F32)?;
    let (y, mask) = stepped(b, args, scale, zero, false)?;
    Ok(vec![y, mask])
}

/// Scale and zero are tensors of one element; where the third one is 0, `x` is left as it is.
fn by_tensor_of_tensors(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let x = args.value("self")?;
    let one = |b: &mut Builder, name: &str| {
        let v = args.value(name)?;
        b.view(v, &[])
    };
    let (scale, zero) = (one(b, "scale")?, one(b, "zero_point")?);
    let on = one(b, "fake_quant_enabled")?;
    let on = b.by("aten.ne.Scalar", on, 0.0)?;
    let (y, mask) = stepped(b, args, scale, zero, false)?;
    let off = b.unary("aten.logical_not.default", on)?;
    let mask = b.call("aten.logical_or.default", &[mask.into(), off.into()])?;
    Ok(vec![b.select(on, y, x)?, mask])
}

/// Scale and zero point are vectors along `axis`. An integer zero point outside of the bounds fails
/// the call, as in eager.
fn by_channel(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let rank = b.rank(args.value("self")?)?;
    let axis = args.dim("axis", rank)?;
    let (low, high) = (args.int("quant_min")?, args.int("quant_max")?);
    let along = |b: &mut Builder, name: &str| {
        let mut v = args.value(name)?;
        if name == "zero_point" && b.dtype(v)? == DType::I32 {
            v = b.between(v, low.into(), high.into())?;
        }
        let mut sizes = vec![b.exprs.int(1); rank];
        sizes[axis] = b.exprs.product(b.sizes(v)?);
        b.view(v, &sizes)
    };
    let (scale, zero) = (along(b, "scale")?, along(b, "zero_point")?);
    let (y, mask) = stepped(b, args, scale, zero, true)?;
    Ok(vec![y, mask])
}

/// The first result alone.
fn first(mut all: Vec<ValueId>) -> Vec<ValueId> {
    all.truncate(1);
    all
}

/// Scale and zero point are tensors of one element.
fn by_tensor_of_scales(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let (scale, zero) = (args.value("scale")?, args.value("zero_point")?);
    let (scale, zero) = (b.view(scale, &[])?, b.view(zero, &[])?);
    let (y, _) = stepped(b, args, scale, zero, false)?;
    Ok(vec![y])
}

pub const ROWS: &[Row] = &[
    row(
        "aten.fake_quantize_per_tensor_affine.default",
        "(Tensor self, float scale, int zero_point, int quant_min, int quant_max) -> Tensor",
        |b, a| by_tensor(b, a).map(first),
        "(f32[3,40], 0.1, 3, -10, 12)",
    ),
    row(
        "aten.fake_quantize_per_tensor_affine.tensor_qparams",
        "(Tensor self, Tensor scale, Tensor zero_point, int quant_min, int quant_max) -> Tensor",
        by_tensor_of_scales,
        "(f32[3,40], f32[1]{0.1:0.3}, i32[1], -10, 12)",
    ),
    row(
        "aten.fake_quantize_per_channel_affine.default",
        "(Tensor self, Tensor scale, Tensor zero_point, int axis, int quant_min, int quant_max) -> Tensor",
        |b, a| by_channel(b, a).map(first),
        "(f32[3,40], f32[3]{0.1:0.3}, i32[3], 0, -10, 12)",
    ),
    row(
        "aten.histc.default",
        "(Tensor self, int bins=100, Scalar min=0, Scalar max=0) -> Tensor",
        histc,
        "(f32[3,40], 7, -1.0, 1.5)",
    ),
    row(
        "aten.fake_quantize_per_tensor_affine_cachemask.default",
        "(Tensor self, float scale, int zero_point, int quant_min, int quant_max) -> (Tensor output, Tensor mask)",
        by_tensor,
        "(f32[3,40], 0.1, 3, -10, 12)",
    ),
    row(
        "aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default",
        "(Tensor self, Tensor scale, Tensor zero_point, Tensor fake_quant_enabled, int quant_min, int quant_max) -> (Tensor output, Tensor mask)",
        by_tensor_of_tensors,
        "(f32[3,40], f32[1]{0.1:0.3}, i32[1], i64[1]{1:1}, -10, 12)",
    ),
    row(
        "aten.fake_quantize_per_channel_affine_cachemask.default",
        "(Tensor self, Tensor scale, Tensor zero_point, int axis, int quant_min, int quant_max) -> (Tensor output, Tensor mask)",
        by_channel,
        "(f32[3,40], f32[3]{0.1:0.3}, i32[3], 0, -10, 12)",
    ),
];
