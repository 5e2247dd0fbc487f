//! Resampling with a filter as wide as the step: `interpolate(antialias=True)`.
//!
//! Output `o` of a dimension is a weighted mean of the elements near its centre:
//!
//! ```text
//! center = step * (o + 0.5)           support = half the filter's width, times the step if that is above 1
//! first  = max(0, floor(center - support + 0.5))       last = min(input, floor(center + support + 0.5))
//! y[o]   = sum over k of w[o, k] x[first + k]          w[o, k] = filter((first + k - center + 0.5) / max(1, step)), of sum 1
//! ```
//!
//! The filter is separable: the last dimension is resampled first, as eager does. Windows and weights depend on sizes alone, so
//! that their tensors `[output, reach]` are constants. The gradient adds each output's gradient, times the weights, to the
//! elements of its window.

use crate::ops::decomposed as row;
use crate::ops::resample::backward::ALIGNED_2D;
use crate::ops::resample::upsample::{Axis, VEC_ALIGN, axes};
use crate::props::Prop;
use crate::{Args, Builder, Row};
use inrush_base::{DType, Error, Result};
use inrush_expr::Expr;
use inrush_graph::{Arg, ValueId};

/// Constant of Keys' cubic filter that eager takes for antialiased resampling.
const CUBIC: f64 = -0.5;

/// The filter between neighbouring elements.
#[derive(Copy, Clone, PartialEq, Eq)]
enum Filter {
    /// A triangle of width 2.
    Linear,
    /// A cubic of width 4.
    Cubic,
}

impl Filter {
    fn width(self) -> f64 {
        match self {
            Filter::Linear => 2.0,
            Filter::Cubic => 4.0,
        }
    }

    /// Adds the filter at distances `x`.
    fn weights(self, b: &mut Builder, x: ValueId) -> Result<ValueId> {
        let x = b.unary("aten.abs.default", x)?;
        let near = b.by("aten.lt.Scalar", x, 1.0)?;
        match self {
            Filter::Linear => {
                let falls = b.by("aten.rsub.Scalar", x, 1.0)?;
                b.select_or(near, falls, 0.0)
            }
            Filter::Cubic => {
                let a = CUBIC;
                // ((a + 2) x - (a + 3)) x^2 + 1 up to 1, then ((x - 5) x + 8) a x - 4 a up to 2.
                let inner = horner(b, x, &[a + 2.0, -(a + 3.0), 0.0, 1.0])?;
                let outer = horner(b, x, &[a, -5.0 * a, 8.0 * a, -4.0 * a])?;
                let reached = b.by("aten.lt.Scalar", x, 2.0)?;
                let outer = b.select_or(reached, outer, 0.0)?;
                b.select(near, inner, outer)
            }
        }
    }
}

/// Adds a polynomial, the coefficient of the highest power first.
fn horner(b: &mut Builder, x: ValueId, coefficients: &[f64]) -> Result<ValueId> {
    let mut y = b.scale(x, coefficients[0])?;
    for (k, c) in coefficients.iter().enumerate().skip(1) {
        y = b.by("aten.add.Scalar", y, *c)?;
        if k + 1 < coefficients.len() {
            y = b.mul(y, x)?;
        }
    }
    Ok(y)
}

/// The windows of all outputs of one dimension, and the weights of their elements.
struct Windows {
    /// Elements of the longest window.
    reach: i64,
    /// `i64[output, reach]`: elements, the last one of the image past the end.
    index: ValueId,
    /// `[output, reach]`: true for elements of the window.
    within: ValueId,
    /// `[output, reach]`: weights, 0 past the end of a window.
    weights: ValueId,
}

/// Adds the windows of a dimension, computed in `dtype`.
fn windows(b: &mut Builder, axis: &Axis, filter: Filter, dtype: DType) -> Result<Windows> {
    let step = axis.step(dtype);
    let support = filter.width() / 2.0 * step.max(1.0);
    let reach = support.ceil() as i64 * 2 + 1;
    let count = |b: &mut Builder, n: i64, dtype: DType| {
        let end = b.int(n);
        b.call("aten.arange.default", &[end, dtype.into()])
    };
    let o = count(b, axis.output, dtype)?;
    let center = b.by("aten.add.Scalar", o, 0.5)?;
    let center = b.scale(center, step)?;
    let center = b.view(center, &[b.exprs.int(axis.output), b.exprs.int(1)])?;
    let bound = |b: &mut Builder, by: f64| {
        let at = b.by("aten.add.Scalar", center, by)?;
        let at = b.by("aten.add.Scalar", at, 0.5)?;
        b.cast(at, DType::I64)
    };
    let (first, last) = (bound(b, -support)?, bound(b, support)?);
    let first = b.call("aten.clamp_min.default", &[first.into(), b.int(0)])?;
    let last = b.call("aten.clamp_max.default", &[last.into(), b.int(axis.input)])?;
    let k = count(b, reach, DType::I64)?;
    let at = b.add(first, k)?;
    let within = b.call("aten.lt.Tensor", &[at.into(), last.into()])?;
    let end = b.int(axis.input - 1);
    let index = b.call("aten.clamp_max.default", &[at.into(), end])?;

    let from = b.cast(first, dtype)?;
    let from = b.sub(from, center)?;
    let k = b.cast(k, dtype)?;
    let x = b.add(from, k)?;
    let x = b.by("aten.add.Scalar", x, 0.5)?;
    let x = b.scale(x, 1.0 / step.max(1.0))?;
    let weights = filter.weights(b, x)?;
    let weights = b.select_or(within, weights, 0.0)?;
    let total = b.sum(weights, &[-1], true)?;
    let mean = b.div(weights, total)?;
    let some = b.by("aten.ne.Scalar", total, 0.0)?;
    let weights = b.select(some, mean, weights)?;
    Ok(Windows {
        reach,
        index,
        within,
        weights,
    })
}

/// Moves dimension `dim` to the end, or back from there.
fn turned(b: &mut Builder, x: ValueId, dim: usize) -> Result<ValueId> {
    let (dim, last) = (b.int(dim as i64), b.int(-1));
    b.call("aten.transpose.int", &[x.into(), dim, last])
}

/// Adds the means of all windows along the last dimension.
fn means(b: &mut Builder, x: ValueId, w: &Windows) -> Result<ValueId> {
    let mut at = vec![None; b.rank(x)?];
    if let Some(last) = at.last_mut() {
        *last = Some(w.index);
    }
    let x = b.call("aten.index.Tensor", &[x.into(), Arg::Values(at)])?;
    // What is past the end of a window may be infinite.
    let x = b.select_or(w.within, x, 0.0)?;
    let x = b.mul(x, w.weights)?;
    b.sum(x, &[-1], false)
}

/// Adds the gradient of [`means`] for an image of `size` elements along the last dimension.
fn shares(b: &mut Builder, g: ValueId, w: &Windows, axis: &Axis) -> Result<ValueId> {
    let (dtype, mut sizes) = (b.dtype(g)?, b.sizes(g)?);
    let rank = sizes.len();
    let last = b.int(-1);
    let g = b.call("aten.unsqueeze.default", &[g.into(), last])?;
    let g = b.mul(g, w.weights)?;
    let g = b.select_or(w.within, g, 0.0)?;
    sizes[rank - 1] = b.exprs.int(axis.output * w.reach);
    let g = b.view(g, &sizes)?;
    let index = b.view(w.index, &[sizes[rank - 1]])?;
    sizes[rank - 1] = b.exprs.int(axis.input);
    let zeros = b.full(&sizes, 0.0, dtype)?;
    let dim = b.int(rank as i64 - 1);
    b.call(
        "aten.index_add.default",
        &[zeros.into(), dim, index.into(), g.into()],
    )
}

/// Returns the dtype that a picture is resampled in.
fn compute(b: &Builder, x: ValueId) -> Result<DType> {
    match b.dtype(x)? {
        DType::F64 => Ok(DType::F64),
        DType::F32 | DType::F16 | DType::BF16 => Ok(DType::F32),
        other => Err(Error::unsupported(format!(
            "antialiased resampling of {other}, which eager computes in fixed point"
        ))),
    }
}

fn resample(b: &mut Builder, args: &Args, filter: Filter, x: &str) -> Result<Vec<ValueId>> {
    let x = args.value(x)?;
    let (dtype, own) = (compute(b, x)?, b.dtype(x)?);
    let axes = axes(args, &b.sizes(x)?)?;
    let mut y = b.cast(x, dtype)?;
    for (d, axis) in axes.iter().enumerate().rev() {
        let w = windows(b, axis, filter, dtype)?;
        y = turned(b, y, 2 + d)?;
        y = means(b, y, &w)?;
        y = turned(b, y, 2 + d)?;
    }
    Ok(vec![b.cast(y, own)?])
}

fn backward(b: &mut Builder, args: &Args, filter: Filter) -> Result<Vec<ValueId>> {
    let g = args.value("grad_output")?;
    let (dtype, own) = (compute(b, g)?, b.dtype(g)?);
    let sizes: Vec<Expr> = args.ints("input_size")?.to_vec();
    let axes = axes(args, &sizes)?;
    let mut y = b.cast(g, dtype)?;
    for (d, axis) in axes.iter().enumerate() {
        let w = windows(b, axis, filter, dtype)?;
        y = turned(b, y, 2 + d)?;
        y = shares(b, y, &w, axis)?;
        y = turned(b, y, 2 + d)?;
    }
    Ok(vec![b.cast(y, own)?])
}

const SIZES: &str = "(Tensor self, SymInt[2] output_size, bool align_corners, float? scales_h=None, float? scales_w=None) -> Tensor";

pub const ROWS: &[Row] = &[
    row(
        "aten._upsample_bilinear2d_aa.vec",
        VEC_ALIGN,
        |b, a| resample(b, a, Filter::Linear, "input"),
        "(f32[1,2,7,9], [3,11], false, none)",
    )
    .with(&[Prop::Spatial(2)]),
    row(
        "aten._upsample_bicubic2d_aa.vec",
        VEC_ALIGN,
        |b, a| resample(b, a, Filter::Cubic, "input"),
        "(f32[1,2,7,9], none, false, [0.4,1.5])",
    )
    .with(&[Prop::Spatial(2)]),
    row(
        "aten._upsample_bilinear2d_aa.default",
        SIZES,
        |b, a| resample(b, a, Filter::Linear, "self"),
        "(f32[1,2,7,9], [5,4], true)",
    )
    .with(&[Prop::Spatial(2)]),
    row(
        "aten._upsample_bicubic2d_aa.default",
        SIZES,
        |b, a| resample(b, a, Filter::Cubic, "self"),
        "(f32[1,2,7,9], [3,11], true)",
    )
    .with(&[Prop::Spatial(2)]),
    row(
        "aten._upsample_bilinear2d_aa_backward.default",
        ALIGNED_2D,
        |b, a| backward(b, a, Filter::Linear),
        "(f32[1,2,3,11], [3,11], [1,2,7,9], false)",
    )
    .with(&[Prop::Spatial(2)]),
    row(
        "aten._upsample_bicubic2d_aa_backward.default",
        ALIGNED_2D,
        |b, a| backward(b, a, Filter::Cubic),
        "(f32[1,2,5,4], [5,4], [1,2,7,9], true)",
    )
    .with(&[Prop::Spatial(2)]),
];
