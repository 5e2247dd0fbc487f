//! Gradients of resampling. Each element of the input gathers, along one dimension after the other, from the few outputs that
//! read it: a run of outputs, since sources of neighbouring outputs never change their order. Nothing is written twice, whatever
//! the layout, and what the weights are is known from the sizes alone.
//!
//! ```text
//! forward    y[o]  = sum over taps t of w(t, o) x[source(t, o)]
//! backward   dx[i] = sum over k in 0..reach of W[k, i] dy[first(i) + k]
//!            first(i) = floor((i * slope + shift) / divisor)
//! ```
//!
//! `first` and `reach` come from the sizes when the graph is compiled ([`Run`]). `W` is a small
//! tensor, made for each dimension by the forward pass's own arithmetic, so that both passes agree
//! about which element a rounding chose. Cost: one multiplication for each element and
//! each output of its run, per dimension.

use crate::ops::padding::{in_bounds, load_or_zero};
use crate::ops::resample::upsample::{Axis, Kind, axes, axes_on, taps};
use crate::ops::{Lowering, lowered};
use crate::props::Prop;
use crate::{BodyBuilder, Call, Lower, Row, Tensor, meta};
use inrush_base::{DType, Error, Result, Scalar};
use inrush_expr::{Expr, Exprs};
use inrush_graph::Type;
use inrush_loops::{ReduceOp, ScalarOp as S, StmtId};

/// Outputs of a run that stand side by side in a body; longer runs are loops.
const MOST_BESIDE: i64 = 8;
/// Marks outputs that do not read the element in tables of weights. Weights, and sums of those that
/// meet at a border, are between -1 and 2.
const NOT_READ: f64 = 4.0;
/// Elements along a dimension up to which runs are looked for: all of them are gone through, when a graph is compiled.
const LONGEST: i64 = 1 << 24;
/// Tolerance between a source position computed here and the one that a kernel computes.
const ROUNDING: f64 = 1e-3;

/// Outputs that read an element of one dimension: those of `reach` outputs from `(at * slope +
/// shift) / divisor` on, rounded down, that the dimension has.
///
/// It covers every output that reads the element, and may cover some that do not.
struct Run {
    /// Outputs per `divisor` elements.
    slope: i64,
    /// The greatest number for which no run begins too late.
    shift: i64,
    divisor: i64,
    /// Length of the longest run.
    reach: i64,
    /// True if all of these outputs read the element.
    exact: bool,
}

impl Run {
    /// Tries several slopes and keeps the one of the shortest runs. Linear in the sizes for each
    /// slope.
    fn of(axis: &Axis, kind: Kind, dtype: DType) -> Result<Run> {
        // First and last output that read each element; outputs ascend, so the last one overwrites.
        let mut read: Vec<Option<(i64, i64)>> = vec![None; axis.input as usize];
        let mut certain = true;
        for o in 0..axis.output {
            let (low, high, sure) = axis.reads(o, kind, dtype);
            certain &= sure;
            for i in low..=high {
                let r = read[i as usize].get_or_insert((o, o));
                r.1 = o;
            }
        }
        let runs = || (read.iter().enumerate()).filter_map(|(i, r)| r.map(|r| (i as i64, r)));
        // The inverse of what takes outputs to sources: a quotient of the sizes, or near one.
        // For given scale factors: 20 binary digits of the inverse of the step.
        let fixed = (f64::from(1 << 20) / axis.step(dtype).max(1e-6)).round() as i64;
        let slopes = [
            (axis.output, axis.input),
            (axis.output - 1, (axis.input - 1).max(1)),
            (fixed, 1 << 20),
        ];
        let of = |(slope, divisor): (i64, i64)| {
            let shift =
                (runs().map(|(i, (first, _))| first * divisor + divisor - 1 - i * slope)).min()?;
            let first = |i: i64| (i * slope + shift).div_euclid(divisor);
            let reach = runs().map(|(i, (_, last))| last - first(i) + 1).max()?;
            let whole = |i: i64| {
                // The run as it is cut off at the ends of the dimension.
                let within = (first(i).max(0), (first(i) + reach - 1).min(axis.output - 1));
                match read[i as usize] {
                    Some(run) => run == within,
                    None => within.1 < within.0,
                }
            };
            Some(Run {
                slope,
                shift,
                divisor,
                reach,
                exact: certain && (0..axis.input).all(whole),
            })
        };
        (slopes.into_iter().filter_map(of))
            .min_by_key(|r| (r.reach, !r.exact))
            .ok_or_else(|| Error::internal("outputs that read nothing"))
    }

    /// The first output for element `at`.
    /// It may be negative or beyond the last output; the caller masks.
    fn first(&self, e: &Exprs, at: Expr) -> Expr {
        let scaled = e.add(e.mul(at, e.int(self.slope)), e.int(self.shift));
        e.floordiv(scaled, e.int(self.divisor))
    }
}

impl Axis {
    /// The first and the last element that output `o` reads, perhaps with weight 0, and whether rounding cannot change them.
    fn reads(&self, o: i64, kind: Kind, dtype: DType) -> (i64, i64, bool) {
        let last = self.input - 1;
        let clamp = |i: f64| (i as i64).clamp(0, last);
        match kind {
            Kind::Nearest | Kind::NearestExact => {
                let half = if kind == Kind::NearestExact { 0.5 } else { 0.0 };
                let at = self.nearest(o, half, dtype);
                (at, at, true)
            }
            Kind::Linear | Kind::Cubic => {
                let step = self.step(dtype);
                let source = match self.align_corners {
                    true => o as f64 * step,
                    false => (o as f64 + 0.5) * step - 0.5,
                };
                let reads = |s: f64| match kind {
                    Kind::Linear => (clamp(s.max(0.0).floor()), clamp(s.max(0.0).floor() + 1.0)),
                    _ => (clamp(s.floor() - 1.0), clamp(s.floor() + 2.0)),
                };
                // A position near an integer may fall to either side in the kernel's arithmetic:
                // both are covered.
                let (a, b) = (reads(source - ROUNDING), reads(source + ROUNDING));
                (a.0, b.1, a == b)
            }
        }
    }
}

/// Returns the weight with which output `o` reads element `at`, or `NOT_READ`. `o` may be outside.
fn weight(
    body: &mut BodyBuilder,
    axis: &Axis,
    kind: Kind,
    at: Expr,
    o: Expr,
    dtype: DType,
) -> StmtId {
    let e = body.exprs;
    let here = body.index_value(at);
    let zero = body.float(0.0, dtype);
    let (mut sum, mut read) = (zero, None);
    for (index, weight) in taps(body, axis, kind, o, dtype) {
        let index = body.index_value(index);
        let hit = body.op(S::Eq, &[index, here]);
        let weight = weight.unwrap_or_else(|| body.float(1.0, dtype));
        let weight = body.select(hit, weight, zero);
        sum = body.op(S::Add, &[sum, weight]);
        read = Some(match read {
            Some(r) => body.op(S::Or, &[r, hit]),
            None => hit,
        });
    }
    let none = body.float(NOT_READ, dtype);
    if let Some(r) = read {
        sum = body.select(r, sum, none);
    }
    match in_bounds(body, &[(o, e.int(axis.output))]) {
        Some(m) => body.select(m, sum, none),
        None => sum,
    }
}

/// The gradient of resampling along dimension `d` alone.
/// The results of earlier dimensions stay in `dtype`; the last dimension stores as `into`.
fn along<'g>(
    lw: &mut Lower<'g>,
    grad: &Tensor,
    d: usize,
    axis: &Axis,
    kind: Kind,
    dtype: DType,
    into: DType,
) -> Result<Tensor> {
    let e = lw.exprs;
    let run = Run::of(axis, kind, dtype)?;
    let mut sizes = grad.sizes.clone();
    sizes[d] = e.int(axis.input);
    let plain = matches!(kind, Kind::Nearest | Kind::NearestExact);
    // Weights depend on one dimension only, so that they are found once for all others.
    let table = match plain && run.exact {
        true => None,
        false => {
            let sizes = [e.int(run.reach), e.int(axis.input)];
            let mut body = lw.body(&sizes);
            let at = body.outer();
            let o = e.add(run.first(e, at[1]), at[0]);
            let w = weight(&mut body, axis, kind, at[1], o, dtype);
            Some(lw.store_new(body, w, dtype, &sizes))
        }
    };
    let mut body = lw.body(&sizes);
    let beside = run.reach <= MOST_BESIDE;
    let places: Vec<Expr> = match beside {
        true => (0..run.reach).map(|k| e.int(k)).collect(),
        false => body.reduce_axes(&[e.int(run.reach)]),
    };
    let outer = body.outer();
    let first = run.first(e, outer[d]);
    let mut sum: Option<StmtId> = None;
    for k in places {
        let o = e.add(first, k);
        let w = table.as_ref().map(|t| body.load(t, &[k, outer[d]]));
        // An inexact run with a table asks the weight: outputs that do not read have one above 2.
        let mask = match (run.exact, w) {
            (false, Some(w)) => {
                let most = body.float(2.0, dtype);
                Some(body.op(S::Le, &[w, most]))
            }
            _ => in_bounds(&mut body, &[(o, e.int(axis.output))]),
        };
        let mut at = outer.clone();
        at[d] = o;
        let mut v = load_or_zero(&mut body, grad, &at, mask);
        v = body.cast(v, dtype);
        if let Some(w) = w.filter(|_| !plain) {
            v = body.op(S::Mul, &[v, w]);
        }
        sum = Some(body.add_to(sum, v));
    }
    let mut v = sum.unwrap_or_else(|| body.constant(Scalar::Int(0), dtype));
    if !beside {
        v = body.reduce(ReduceOp::Sum, v);
    }
    Ok(lw.store_new(body, v, into, &sizes))
}

/// Sizes of dimensions beyond 2^24 are refused, since runs are looked for one by one.
fn resample<'g>(lw: &mut Lower<'g>, call: &Call<'g>, kind: Kind) -> Result<Vec<Tensor>> {
    let grad = lw.arg(call, "grad_output")?;
    let axes = axes_on(lw.processor, call, call.ints("input_size")?, kind)?;
    if !grad.dtype.is_float() {
        return Err(Error::unsupported(format!(
            "interpolation of dtype {}",
            grad.dtype
        )));
    }
    if let Some(n) = (axes.iter().map(|a| a.input.max(a.output))).find(|n| *n > LONGEST) {
        return Err(Error::unsupported(format!(
            "gradients of resampling along {n} elements"
        )));
    }
    let dtype = match grad.dtype {
        DType::F64 => DType::F64,
        _ => DType::F32,
    };
    // What makes the gradient smaller goes first, vectors along its lines last; what makes it larger the other way round.
    let shrinks = |d: &usize| axes[*d].output >= axes[*d].input;
    let mut order: Vec<usize> = (0..axes.len()).filter(shrinks).collect();
    order.extend((0..axes.len()).rev().filter(|d| !shrinks(d)));
    let mut out = grad.clone();
    for (k, d) in order.iter().enumerate() {
        let into = if k + 1 == order.len() {
            grad.dtype
        } else {
            dtype
        };
        out = along(lw, &out, 2 + d, &axes[*d], kind, dtype, into)?;
    }
    Ok(vec![out])
}

/// Types of all gradients of resampling.
fn resample_meta(call: &Call) -> Result<Vec<Type>> {
    let (grad, sizes) = (call.tensor("grad_output")?, call.ints("input_size")?);
    let axes = axes(call, sizes)?;
    let mut want = sizes[..2].to_vec();
    want.extend(axes.iter().map(|a| call.exprs.int(a.output)));
    call.same_sizes(&grad.sizes, &want, "the gradient")?;
    meta::one(call.exprs, grad.dtype, sizes.to_vec())
}

const fn row(name: &'static str, schema: &'static str, f: Lowering, example: &'static str) -> Row {
    lowered(name, schema, resample_meta, f, example)
}

const NEAREST_1D: &str = "(Tensor grad_output, SymInt[1] output_size, SymInt[3] input_size, float? scales=None) -> Tensor";
const NEAREST_2D: &str = "(Tensor grad_output, SymInt[2] output_size, SymInt[4] input_size, float? scales_h=None, float? scales_w=None) -> Tensor";
const NEAREST_3D: &str = "(Tensor grad_output, SymInt[3] output_size, SymInt[5] input_size, float? scales_d=None, float? scales_h=None, float? scales_w=None) -> Tensor";
pub(in crate::ops) const ALIGNED_2D: &str = "(Tensor grad_output, SymInt[2] output_size, SymInt[4] input_size, bool align_corners, float? scales_h=None, float? scales_w=None) -> Tensor";

pub const ROWS: &[Row] = &[
    row(
        "aten.upsample_nearest1d_backward.default",
        NEAREST_1D,
        |lw, c| resample(lw, c, Kind::Nearest),
        "(f32[2,3,8], [8], [2,3,5])",
    ).with(&[Prop::Spatial(1)]),
    row(
        "aten._upsample_nearest_exact1d_backward.default",
        NEAREST_1D,
        |lw, c| resample(lw, c, Kind::NearestExact),
        "(f32[2,3,3], [3], [2,3,7])",
    ).with(&[Prop::Spatial(1)]),
    row(
        "aten.upsample_nearest2d_backward.default",
        NEAREST_2D,
        |lw, c| resample(lw, c, Kind::Nearest),
        "(f32[1,2,8,10], [8,10], [1,2,4,5], 2.0, 2.0)",
    ).with(&[Prop::Spatial(2)]),
    row(
        "aten._upsample_nearest_exact2d_backward.default",
        NEAREST_2D,
        |lw, c| resample(lw, c, Kind::NearestExact),
        "(f32[1,2,7,10], [7,10], [1,2,4,5])",
    ).with(&[Prop::Spatial(2)]),
    row(
        "aten.upsample_nearest3d_backward.default",
        NEAREST_3D,
        |lw, c| resample(lw, c, Kind::Nearest),
        "(f32[1,2,4,3,5], [4,3,5], [1,2,2,3,2])",
    ).with(&[Prop::Spatial(3)]),
    row(
        "aten._upsample_nearest_exact3d_backward.default",
        NEAREST_3D,
        |lw, c| resample(lw, c, Kind::NearestExact),
        "(f32[1,2,4,3,5], [4,3,5], [1,2,2,4,7])",
    ).with(&[Prop::Spatial(3)]),
    row(
        "aten.upsample_linear1d_backward.default",
        "(Tensor grad_output, SymInt[1] output_size, SymInt[3] input_size, bool align_corners, float? scales=None) -> Tensor",
        |lw, c| resample(lw, c, Kind::Linear),
        "(f32[2,3,8], [8], [2,3,5], true)",
    ).with(&[Prop::Spatial(1)]),
    row(
        "aten.upsample_bilinear2d_backward.default",
        ALIGNED_2D,
        |lw, c| resample(lw, c, Kind::Linear),
        "(f32[1,2,8,3], [8,3], [1,2,4,5], false)",
    ).with(&[Prop::Spatial(2)]),
    row(
        "aten.upsample_trilinear3d_backward.default",
        "(Tensor grad_output, SymInt[3] output_size, SymInt[5] input_size, bool align_corners, float? scales_d=None, float? scales_h=None, float? scales_w=None) -> Tensor",
        |lw, c| resample(lw, c, Kind::Linear),
        "(f32[1,2,4,3,5], [4,3,5], [1,2,2,3,2], false)",
    ).with(&[Prop::Spatial(3)]),
    row(
        "aten.upsample_bicubic2d_backward.default",
        ALIGNED_2D,
        |lw, c| resample(lw, c, Kind::Cubic),
        "(f32[1,2,8,3], [8,3], [1,2,4,5], true)",
    ).with(&[Prop::Spatial(2)]),
];
