//! Resampling of images: nearest, linear and cubic interpolation.
//!
//! Where output `o` of a dimension reads:
//!
//! ```text
//! nearest                floor(o * step)
//! nearest exact          floor((o + 0.5) * step)
//! linear, cubic          (o + 0.5) * step - 0.5     step = input / output, or 1 / scale factor
//!   with align_corners   o * step                   step = (input - 1) / (output - 1)
//! ```
//!
//! Linear interpolation then blends 2 taps a dimension, cubic 4. Positions are computed in `f32`
//! (`f64` for doubles) as eager does, because a rounding decides which element the nearest mode
//! reads. Where integer division gives the same elements for all outputs, it is used instead: such
//! an index is analysable, and the load needs no indirect access.
//!
//! Sizes must be known. Cubic interpolation of rows of adjacent elements is separated: first along
//! rows, then across them, which turns 16 loads an output into 4 and 4.

use crate::Prop;
use crate::ops::pool::forward::spatial;
use crate::ops::{Lowering, lowered};
use crate::{Args, BodyBuilder, Call, Lower, Processor, Row, Tensor, meta};
use inrush_base::{DType, Error, Result, Scalar};
use inrush_expr::Expr;
use inrush_graph::Type;
use inrush_loops::{ScalarOp as S, StmtId};

/// How the source position of an output point is found and what is read around it.
#[derive(Copy, Clone, PartialEq, Eq)]
pub(in crate::ops) enum Kind {
    /// `floor(i * scale)`.
    Nearest,
    /// `floor((i + 0.5) * scale)`.
    NearestExact,
    /// 2 taps. A position before the first element reads that element.
    Linear,
    /// 4 taps, each of them clamped to the image.
    Cubic,
}

/// One spatial dimension: sizes, and the step between neighbouring outputs in the input.
pub(in crate::ops) struct Axis {
    /// Elements of the input.
    pub input: i64,
    /// Elements of the result.
    pub output: i64,
    /// Step without `align_corners`.
    scale: f64,
    pub align_corners: bool,
    /// Take each output from the input of the same index, whatever scale is given.
    copies: bool,
}

/// The spatial dimensions of a call. Sizes must be known: the scale is a constant of the kernel.
/// Reads `output_size` and the scale factors, of which overloads have either a list or one
/// parameter a dimension. A size wins over a factor for the result; a factor wins for the step.
pub(in crate::ops) fn axes(args: &Args, x: &[Expr]) -> Result<Vec<Axis>> {
    let spatial = spatial(args)?;
    if x.len() != spatial + 2 {
        return Err(Error::input(format!(
            "an input of rank {} for {spatial} spatial dimensions",
            x.len()
        )));
    }
    let has = |p: &str| args.op.schema().position(p).is_some();
    let vector = has("scale_factors");
    let factors: Vec<Option<f64>> = if vector {
        match args.floats("scale_factors")? {
            [] => vec![None; spatial],
            f if f.len() == spatial => f.iter().copied().map(Some).collect(),
            _ => return Err(args.unsupported("scale_factors", "one for each dimension is needed")),
        }
    } else {
        let names: &[&str] = match spatial {
            1 => &["scales"],
            2 => &["scales_h", "scales_w"],
            _ => &["scales_d", "scales_h", "scales_w"],
        };
        names
            .iter()
            .map(|n| Ok(args.opt_scalar(n)?.map(Scalar::as_f64)))
            .collect::<Result<_>>()?
    };
    let align_corners = has("align_corners") && args.bool("align_corners")?;
    // An absent `output_size` is an empty list.
    let sizes = args.const_ints("output_size")?;
    if !sizes.is_empty() && sizes.len() != spatial {
        return Err(args.unsupported("output_size", "needs a size for each dimension"));
    }
    let exprs = args.exprs;
    (0..spatial)
        .map(|d| {
            let input = exprs
                .as_int(x[2 + d])
                .ok_or_else(|| Error::unsupported("resampling of a dimension of symbolic size"))?;
            // Eager rounds the result's size down.
            let output = match (sizes.get(d), factors[d]) {
                (Some(n), _) => *n,
                (None, Some(f)) => (input as f64 * f).floor() as i64,
                (None, None) => return Err(Error::input("neither output_size nor scale_factors")),
            };
            if input < 1 || output < 1 {
                return Err(Error::input("resampling needs sizes of at least 1"));
            }
            Ok(Axis {
                input,
                output,
                scale: match factors[d].filter(|f| *f > 0.0) {
                    Some(f) => 1.0 / f,
                    None => input as f64 / output as f64,
                },
                align_corners,
                copies: false,
            })
        })
        .collect()
}

/// The spatial dimensions of a call as a processor resamples them: eager's linear modes copy along a dimension of the same size on
/// CPUs, also where the given scale is another.
pub(in crate::ops) fn axes_on(
    processor: Processor,
    args: &Args,
    x: &[Expr],
    kind: Kind,
) -> Result<Vec<Axis>> {
    let mut axes = axes(args, x)?;
    for axis in &mut axes {
        if processor == Processor::Cpu && kind == Kind::Linear && axis.input == axis.output {
            (axis.copies, axis.scale, axis.align_corners) = (true, 1.0, false);
        }
    }
    Ok(axes)
}

impl Axis {
    /// The step in the precision of `dtype`, in which PyTorch computes positions.
    pub fn step(&self, dtype: DType) -> f64 {
        let step = match (self.align_corners, self.output) {
            (true, 1) => 0.0,
            (true, n) => (self.input - 1) as f64 / (n - 1) as f64,
            (false, _) => self.scale,
        };
        Scalar::Float(step).convert(dtype).as_f64()
    }

    /// The nearest source of output `i` in the arithmetic of `dtype`.
    /// Each operation is rounded on its own, as a kernel's would be.
    pub fn nearest(&self, i: i64, half: f64, dtype: DType) -> i64 {
        let round = |v: f64| Scalar::Float(v).convert(dtype).as_f64();
        let at = round(round(i as f64 + half) * self.step(dtype)).floor() as i64;
        at.min(self.input - 1)
    }

    /// The nearest source as an index expression, where a quotient of integers says the same for every output.
    fn exact_nearest(&self, body: &BodyBuilder, i: Expr, half: bool, dtype: DType) -> Option<Expr> {
        let exprs = body.exprs;
        let (num, den) = (self.input, self.output);
        // Every output is checked while the graph is compiled.
        if self.output > 1 << 16 {
            return None;
        }
        let half_f = if half { 0.5 } else { 0.0 };
        let quotient = |i: i64| match half {
            false => i * num / den,
            true => (2 * i + 1) * num / (2 * den),
        };
        // Rounding may move a position across an integer; then floats decide, and the index is
        // indirect.
        let agrees = (0..den).all(|i| self.nearest(i, half_f, dtype) == quotient(i));
        agrees.then(|| {
            let (i, num, den) = match half {
                false => (i, num, den),
                true => {
                    let odd = exprs.add(exprs.mul(exprs.int(2), i), exprs.int(1));
                    (odd, num, 2 * den)
                }
            };
            exprs.floordiv(exprs.mul(i, exprs.int(num)), exprs.int(den))
        })
    }
}

/// A source index and its weight; no weight is a weight of one.
pub(in crate::ops) type Tap = (Expr, Option<StmtId>);

/// `value`, a float, as an index in `0..size`.
fn clamped(body: &mut BodyBuilder, value: StmtId, size: i64) -> Expr {
    let dtype = body.dtype(value);
    let (lo, hi) = (body.float(0.0, dtype), body.float((size - 1) as f64, dtype));
    let v = body.op(S::Maximum, &[value, lo]);
    let v = body.op(S::Minimum, &[v, hi]);
    let v = body.cast(v, DType::I64);
    body.indirect(v, body.exprs.int(size), false, false, None)
}

/// The sources of output index `i` along one dimension.
pub(in crate::ops) fn taps(
    body: &mut BodyBuilder,
    axis: &Axis,
    kind: Kind,
    i: Expr,
    dtype: DType,
) -> Vec<Tap> {
    let half = kind == Kind::NearestExact;
    if matches!(kind, Kind::Nearest | Kind::NearestExact)
        && let Some(at) = axis.exact_nearest(body, i, half, dtype)
    {
        return vec![(at, None)];
    }
    if axis.copies {
        // Eager multiplies by zero too, which makes NaN of an infinite element.
        let (one, zero) = (body.float(1.0, dtype), body.float(0.0, dtype));
        return vec![(i, Some(one)), (i, Some(zero))];
    }
    let step = body.float(axis.step(dtype), dtype);
    let at = body.index_value(i);
    let at = body.cast(at, dtype);
    let add = |body: &mut BodyBuilder, x: StmtId, c: f64| {
        let c = body.float(c, dtype);
        body.op(S::Add, &[x, c])
    };
    let source = match kind {
        Kind::Nearest => body.op(S::Mul, &[at, step]),
        Kind::NearestExact => {
            let moved = add(body, at, 0.5);
            body.op(S::Mul, &[moved, step])
        }
        _ if axis.align_corners => body.op(S::Mul, &[at, step]),
        _ => {
            let moved = add(body, at, 0.5);
            let scaled = body.op(S::Mul, &[moved, step]);
            add(body, scaled, -0.5)
        }
    };
    match kind {
        Kind::Nearest | Kind::NearestExact => {
            let v = body.op(S::Floor, &[source]);
            vec![(clamped(body, v, axis.input), None)]
        }
        Kind::Linear => {
            let zero = body.float(0.0, dtype);
            let source = body.op(S::Maximum, &[source, zero]);
            let low = body.op(S::Floor, &[source]);
            let last = body.float((axis.input - 1) as f64, dtype);
            // A step that is rounded up may reach beyond the last element.
            let low = body.op(S::Minimum, &[low, last]);
            let high = add(body, low, 1.0);
            let w1 = body.op(S::Sub, &[source, low]);
            let one = body.float(1.0, dtype);
            let w0 = body.op(S::Sub, &[one, w1]);
            let (a, b) = (
                clamped(body, low, axis.input),
                clamped(body, high, axis.input),
            );
            vec![(a, Some(w0)), (b, Some(w1))]
        }
        Kind::Cubic => {
            let low = body.op(S::Floor, &[source]);
            let t = body.op(S::Sub, &[source, low]);
            let weights = cubic_weights(body, t);
            weights
                .into_iter()
                .enumerate()
                .map(|(k, w)| {
                    let at = add(body, low, k as f64 - 1.0);
                    (clamped(body, at, axis.input), Some(w))
                })
                .collect()
        }
    }
}

/// Weights of the four points around position `t` between the middle two: Keys' cubic with `a = -0.75`.
/// At distances `1 + t`, `t`, `1 - t` and `2 - t`; the far two have another polynomial than the
/// near ones.
fn cubic_weights(body: &mut BodyBuilder, t: StmtId) -> [StmtId; 4] {
    let dtype = body.dtype(t);
    let a = -0.75;
    // Horner's scheme, highest power first.
    let poly = |body: &mut BodyBuilder, x: StmtId, c: [f64; 4]| {
        let mut v = body.float(c[0], dtype);
        for c in &c[1..] {
            let scaled = body.op(S::Mul, &[v, x]);
            let c = body.float(*c, dtype);
            v = body.op(S::Add, &[scaled, c]);
        }
        v
    };
    let one = body.float(1.0, dtype);
    let far = body.op(S::Add, &[t, one]);
    let back = body.op(S::Sub, &[one, t]);
    let far_back = body.op(S::Add, &[back, one]);
    let near = [a + 2.0, -(a + 3.0), 0.0, 1.0];
    let outer = [a, -5.0 * a, 8.0 * a, -4.0 * a];
    [
        poly(body, far, outer),
        poly(body, t, near),
        poly(body, back, near),
        poly(body, far_back, outer),
    ]
}

/// The weighted sum over the taps of all dimensions, first dimension outermost.
/// Recursion over dimensions: `at` holds the coordinates chosen so far. A dimension's weight is
/// applied to the blend of those after it, which is the order of eager's sums.
fn blend(
    body: &mut BodyBuilder,
    x: &Tensor,
    at: &mut Vec<Expr>,
    taps: &[Vec<Tap>],
    dtype: DType,
) -> StmtId {
    let Some((first, rest)) = taps.split_first() else {
        let v = body.load(x, at);
        return body.cast(v, dtype);
    };
    let mut sum: Option<StmtId> = None;
    for (index, weight) in first {
        at.push(*index);
        let mut v = blend(body, x, at, rest, dtype);
        at.pop();
        if let Some(w) = weight {
            v = body.op(S::Mul, &[v, *w]);
        }
        sum = Some(body.add_to(sum, v));
    }
    sum.unwrap_or_else(|| body.float(0.0, dtype))
}

/// Overloads `vec` call their operand `input`.
fn source_name(args: &Args) -> &'static str {
    match args.op.schema().position("self") {
        Some(_) => "self",
        None => "input",
    }
}

/// One body, but for cubic interpolation of rows.
fn resample<'g>(lw: &mut Lower<'g>, call: &Call<'g>, kind: Kind) -> Result<Vec<Tensor>> {
    let x = lw.arg(call, source_name(call))?;
    let axes = axes_on(lw.processor, call, &x.sizes, kind)?;
    let interpolates = matches!(kind, Kind::Linear | Kind::Cubic);
    if interpolates && !x.dtype.is_float() {
        return Err(Error::unsupported(format!(
            "interpolation of dtype {}",
            x.dtype
        )));
    }
    let dtype = match x.dtype {
        DType::F64 => DType::F64,
        _ => DType::F32,
    };
    let mut sizes = x.sizes[..2].to_vec();
    sizes.extend(axes.iter().map(|a| lw.exprs.int(a.output)));
    // With channels last these run over the lanes, to which weights of a pixel are all the same.
    let strides = &call.tensor(source_name(call))?.strides;
    let rows_lie = strides.last().is_some_and(|s| lw.exprs.is_int(*s, 1));
    if kind == Kind::Cubic
        && rows_lie
        && let [down, along] = axes.as_slice()
        // Where most rows are skipped they are not interpolated for nothing.
        && down.input <= 3 * down.output
    {
        return Ok(vec![cubic_by_rows(lw, &x, down, along, dtype)]);
    }
    let mut body = lw.body(&sizes);
    let outer = body.outer();
    let taps: Vec<Vec<Tap>> = axes
        .iter()
        .zip(&outer[2..])
        .map(|(a, i)| taps(&mut body, a, kind, *i, dtype))
        .collect();
    let mut at = outer[..2].to_vec();
    let v = if interpolates {
        blend(&mut body, &x, &mut at, &taps, dtype)
    } else {
        // The nearest modes copy elements, of any dtype, without arithmetic.
        at.extend(taps.iter().map(|t| t[0].0));
        body.load(&x, &at)
    };
    Ok(vec![lw.store_new(body, v, x.dtype, &sizes)])
}

/// Cubic interpolation of each row, then between rows: what several rows of the result read of one is found once, unless the
/// scheduler finds that too little to keep it. Sums have the terms and the order that one body for both would have.
fn cubic_by_rows<'g>(
    lw: &mut Lower<'g>,
    x: &Tensor,
    down: &Axis,
    along: &Axis,
    dtype: DType,
) -> Tensor {
    let mut sizes = x.sizes.clone();
    let (row, column) = (sizes.len() - 2, sizes.len() - 1);
    // The intermediate has all rows of the input, each of the result's width, and stays in `dtype`.
    let mut rows = x.clone();
    for (d, axis, into) in [(column, along, dtype), (row, down, x.dtype)] {
        sizes[d] = lw.exprs.int(axis.output);
        let mut body = lw.body(&sizes);
        let outer = body.outer();
        let taps = taps(&mut body, axis, Kind::Cubic, outer[d], dtype);
        let mut sum = None;
        for (index, weight) in taps {
            let mut at = outer.clone();
            at[d] = index;
            let v = body.load(&rows, &at);
            let mut v = body.cast(v, dtype);
            if let Some(w) = weight {
                v = body.op(S::Mul, &[v, w]);
            }
            sum = Some(match sum {
                Some(s) => body.op(S::Add, &[s, v]),
                None => v,
            });
        }
        let v = sum.unwrap_or_else(|| body.float(0.0, dtype));
        rows = lw.store_new(body, v, into, &sizes);
    }
    rows
}

/// Types of all resampling operators.
fn resample_meta(call: &Call) -> Result<Vec<Type>> {
    let t = call.tensor(source_name(call))?;
    let axes = axes(call, &t.sizes)?;
    let mut sizes = t.sizes[..2].to_vec();
    sizes.extend(axes.iter().map(|a| call.exprs.int(a.output)));
    meta::one(call.exprs, t.dtype, sizes)
}

const fn row(name: &'static str, schema: &'static str, f: Lowering, example: &'static str) -> Row {
    lowered(name, schema, resample_meta, f, example)
}

const VEC: &str = "(Tensor input, SymInt[]? output_size, float[]? scale_factors) -> Tensor";
pub(in crate::ops) const VEC_ALIGN: &str =
    "(Tensor input, SymInt[]? output_size, bool align_corners, float[]? scale_factors) -> Tensor";

const NEAREST_3D: &str = "(Tensor self, SymInt[3] output_size, float? scales_d=None, float? scales_h=None, float? scales_w=None) -> Tensor";

pub const ROWS: &[Row] = &[
    row(
        "aten.upsample_nearest1d.vec",
        VEC,
        |lw, c| resample(lw, c, Kind::Nearest),
        "(f32[2,3,5], [8], none)",
    ).with(&[Prop::Spatial(1)]),
    row(
        "aten.upsample_nearest2d.vec",
        VEC,
        |lw, c| resample(lw, c, Kind::Nearest),
        "(f32[1,2,4,5], none, [2.0,2.0])",
    ).with(&[Prop::Spatial(2)]),
    row(
        "aten.upsample_nearest3d.vec",
        VEC,
        |lw, c| resample(lw, c, Kind::Nearest),
        "(f32[1,2,2,3,2], [4,3,5], none)",
    ).with(&[Prop::Spatial(3)]),
    row(
        "aten._upsample_nearest_exact1d.vec",
        VEC,
        |lw, c| resample(lw, c, Kind::NearestExact),
        "(f32[2,3,5], [8], none)",
    ).with(&[Prop::Spatial(1)]),
    row(
        "aten._upsample_nearest_exact2d.vec",
        VEC,
        |lw, c| resample(lw, c, Kind::NearestExact),
        "(f32[1,2,4,5], [3,11], none)",
    ).with(&[Prop::Spatial(2)]),
    row(
        "aten.upsample_linear1d.vec",
        VEC_ALIGN,
        |lw, c| resample(lw, c, Kind::Linear),
        "(f32[2,3,5], [8], true, none)",
    ).with(&[Prop::Spatial(1)]),
    row(
        "aten.upsample_bilinear2d.vec",
        VEC_ALIGN,
        |lw, c| resample(lw, c, Kind::Linear),
        "(f32[1,2,4,5], none, false, [1.5,2.0])",
    ).with(&[Prop::Spatial(2)]),
    row(
        "aten.upsample_trilinear3d.vec",
        VEC_ALIGN,
        |lw, c| resample(lw, c, Kind::Linear),
        "(f32[1,2,2,3,2], [4,3,5], false, none)",
    ).with(&[Prop::Spatial(3)]),
    row(
        "aten.upsample_bicubic2d.vec",
        VEC_ALIGN,
        |lw, c| resample(lw, c, Kind::Cubic),
        "(f32[1,2,4,5], [6,7], false, none)",
    ).with(&[Prop::Spatial(2)]),
    row(
        "aten.upsample_nearest1d.default",
        "(Tensor self, SymInt[1] output_size, float? scales=None) -> Tensor",
        |lw, c| resample(lw, c, Kind::Nearest),
        "(f32[2,3,5], [8])",
    ).with(&[Prop::Spatial(1)]),
    row(
        "aten._upsample_nearest_exact1d.default",
        "(Tensor self, SymInt[1] output_size, float? scales=None) -> Tensor",
        |lw, c| resample(lw, c, Kind::NearestExact),
        "(f32[2,3,5], [8])",
    ).with(&[Prop::Spatial(1)]),
    row(
        "aten.upsample_nearest3d.default",
        NEAREST_3D,
        |lw, c| resample(lw, c, Kind::Nearest),
        "(f32[1,2,2,3,2], [4,3,5])",
    ).with(&[Prop::Spatial(3)]),
    row(
        "aten._upsample_nearest_exact3d.vec",
        VEC,
        |lw, c| resample(lw, c, Kind::NearestExact),
        "(f32[1,2,2,3,2], [4,3,5], none)",
    ).with(&[Prop::Spatial(3)]),
    row(
        "aten._upsample_nearest_exact3d.default",
        NEAREST_3D,
        |lw, c| resample(lw, c, Kind::NearestExact),
        "(f32[1,2,2,3,2], [4,3,5])",
    ).with(&[Prop::Spatial(3)]),
    row(
        "aten.upsample_trilinear3d.default",
        "(Tensor self, SymInt[3] output_size, bool align_corners, float? scales_d=None, float? scales_h=None, float? scales_w=None) -> Tensor",
        |lw, c| resample(lw, c, Kind::Linear),
        "(f32[1,2,2,3,2], [4,3,5], true)",
    ).with(&[Prop::Spatial(3)]),
    row(
        "aten.upsample_nearest2d.default",
        "(Tensor self, SymInt[2] output_size, float? scales_h=None, float? scales_w=None) -> Tensor",
        |lw, c| resample(lw, c, Kind::Nearest),
        "(f32[1,2,4,5], [7,10])",
    ).with(&[Prop::Spatial(2)]),
    row(
        "aten._upsample_nearest_exact2d.default",
        "(Tensor self, SymInt[2] output_size, float? scales_h=None, float? scales_w=None) -> Tensor",
        |lw, c| resample(lw, c, Kind::NearestExact),
        "(f32[1,2,4,5], [7,10])",
    ).with(&[Prop::Spatial(2)]),
    row(
        "aten.upsample_linear1d.default",
        "(Tensor self, SymInt[1] output_size, bool align_corners, float? scales=None) -> Tensor",
        |lw, c| resample(lw, c, Kind::Linear),
        "(f32[2,3,5], [8], false)",
    ).with(&[Prop::Spatial(1)]),
    row(
        "aten.upsample_bilinear2d.default",
        "(Tensor self, SymInt[2] output_size, bool align_corners, float? scales_h=None, float? scales_w=None) -> Tensor",
        |lw, c| resample(lw, c, Kind::Linear),
        "(f32[1,2,4,5], [8,3], false)",
    ).with(&[Prop::Spatial(2)]),
    row(
        "aten.upsample_bicubic2d.default",
        "(Tensor self, SymInt[2] output_size, bool align_corners, float? scales_h=None, float? scales_w=None) -> Tensor",
        |lw, c| resample(lw, c, Kind::Cubic),
        "(f32[1,2,4,5], [8,3], true)",
    ).with(&[Prop::Spatial(2)]),
];
