//! Transposed depthwise convolutions, which gradients of inputs are, and gradients of depthwise filters. What else adds windows
//! up where they overlap goes by phases as well: gradients of average pools, columns that become images.
//!
//! A channel meets no other one, so a product of matrices would have a single column: what there is to do is bound by memory.
//! All taps stand side by side in one body, which reads every element once.
//!
//! ```text
//! stride 2, kernel 3, no padding           y[2*m]     = x[m] w[0] + x[m - 1] w[2]
//!                                          y[2*m + 1] = x[m] w[1]
//! ```
//!
//! A transposed convolution of stride `s` has `s` phases along each dimension, whose elements
//! are reached by different taps. One point of the body computes all phases of a multiple
//! `m`: each store has its own straight-line sum, without tests or remainders, and loads of
//! the input are shared. The unrolled size is bounded (`fits`).

use crate::ops::conv::convolution::{Conv, add_bias};
use crate::ops::padding::{in_bounds, padded_by, zeros_around};
use crate::ops::window::Window;
use crate::{BodyBuilder, Lower, Tensor};
use inrush_base::{DType, Scalar};
use inrush_expr::{Expr, Exprs};
use inrush_loops::{ReduceOp, ScalarOp, StmtId, StoreMode};

/// Products that a body may hold.
const MOST_TERMS: i64 = 64;
/// Most adjacent elements of a transposed convolution's result that one body computes.
const MOST_PHASES: i64 = 16;
/// Sums that a body keeps at once: more do not fit into registers.
const MOST_SUMS: i64 = 25;

/// One spatial dimension of a transposed convolution. Place `stride * m + first` of the result, the place of a phase, gets
/// what each of the phase's taps finds `back` elements before element `m` of the input.
pub(in crate::ops) struct Along {
    /// Distance in the result between windows of adjacent input elements.
    stride: i64,
    /// Multiples of the stride that the result reaches into.
    multiples: i64,
    /// Elements of the result; the last multiple may have phases beyond it, which are masked.
    output: i64,
    /// `min(stride, output)` of them, in order of `first`.
    phases: Vec<Phase>,
    /// Zeros around the input that the taps reach.
    pub around: (i64, i64),
}

/// The elements of the result that are equally far after a multiple of the stride. All are
/// reached by the same taps.
struct Phase {
    /// Place within the multiples of the stride.
    first: i64,
    /// Tap and how far back it reads.
    taps: Vec<(i64, i64)>,
}

impl Along {
    /// Builds a dimension of a result of `output` elements over windows `w`, which the input's
    /// indices number.
    pub fn new(exprs: &Exprs, w: &Window, output: Expr) -> Option<Along> {
        let int = |e: Expr| exprs.as_int(e);
        let (input, output, kernel) = (int(w.input)?, int(output)?, int(w.kernel)?);
        let (stride, dilation, before) = (int(w.stride)?, int(w.dilation)?, int(w.before)?);
        if input < 1 || output < 1 || kernel < 1 || before < 0 || stride > MOST_PHASES {
            return None;
        }
        let multiples = (output + stride - 1) / stride;
        let phases: Vec<Phase> = (0..stride.min(output))
            .map(|first| {
                let place = first + before;
                // Input element `i` and tap `t` meet at `i * stride + t * dilation - before`.
                let reaches = |tap: &i64| (place - tap * dilation).rem_euclid(stride) == 0;
                let back = |tap: i64| (tap, (tap * dilation - place).div_euclid(stride));
                let taps = (0..kernel).filter(reaches).map(back).collect();
                Phase { first, taps }
            })
            .collect();
        let backs = || phases.iter().flat_map(|p| &p.taps).map(|t| t.1);
        let before = backs().max().unwrap_or(0).max(0);
        // Reading before element 0 or after the last one finds zeros of the padded copy.
        let after = multiples - input - backs().min().unwrap_or(0);
        Some(Along {
            stride,
            multiples,
            output,
            phases,
            around: (before, after.max(0)),
        })
    }
}

/// Returns true if one body has room for all products of all adjacent elements.
pub(in crate::ops) fn fits(along: &[Along], terms: i64) -> bool {
    let phases = along.iter().map(|a| a.phases.len() as i64);
    terms <= MOST_TERMS && phases.product::<i64>() <= MOST_PHASES
}

/// A tap that reaches a place: its number and the element that it finds, for each dimension.
pub(in crate::ops) type Tap = (Vec<i64>, Vec<Expr>);

/// Builds a result of `lead` and spatial dimensions by one body, unrolled over the phases of the
/// strides: `value` makes one element from the coordinates of `lead` and all taps that reach it.
/// Input coordinates may be outside of the input by as much as [`Along::around`].
pub(in crate::ops) fn by_phases<'g>(
    lw: &mut Lower<'g>,
    lead: &[Expr],
    along: &[Along],
    dtype: DType,
    mut value: impl FnMut(&mut BodyBuilder<'g>, &[Expr], &[Tap]) -> StmtId,
) -> Tensor {
    let e = lw.exprs;
    let mut sizes = lead.to_vec();
    sizes.extend(along.iter().map(|a| e.int(a.output)));
    let out = lw.temp(dtype, &sizes);
    let mut points = lead.to_vec();
    points.extend(along.iter().map(|a| e.int(a.multiples)));
    let mut body = lw.body(&points);
    let at = body.outer();
    let (lead, multiples) = at.split_at(lead.len());
    let numbers: Vec<Vec<usize>> = (along.iter())
        .map(|a| (0..a.phases.len()).collect())
        .collect();
    for choice in choices(&numbers) {
        let phases: Vec<&Phase> = (along.iter().zip(&choice))
            .map(|(a, p)| &a.phases[*p])
            .collect();
        let each: Vec<Vec<(i64, i64)>> = phases.iter().map(|p| p.taps.clone()).collect();
        let taps: Vec<Tap> = (choices(&each).iter())
            .map(|taps| {
                let found = taps.iter().zip(multiples);
                let found = found.map(|((_, back), m)| e.sub(*m, e.int(*back)));
                (taps.iter().map(|t| t.0).collect(), found.collect())
            })
            .collect();
        let v = value(&mut body, lead, &taps);
        let v = body.cast_for_store(v, dtype);
        let mut to = lead.to_vec();
        let mut checks = Vec::new();
        for ((a, p), m) in along.iter().zip(&phases).zip(multiples) {
            let place = e.add(e.mul(*m, e.int(a.stride)), e.int(p.first));
            checks.push((place, e.int(a.output)));
            to.push(place);
        }
        let mask = in_bounds(&mut body, &checks);
        body.store_with(out.buf, &to, v, StoreMode::Set, mask);
    }
    lw.push(body);
    out
}

/// Every choice of one element for each dimension.
pub(in crate::ops) fn choices<T: Copy>(each: &[Vec<T>]) -> Vec<Vec<T>> {
    let mut out = vec![Vec::new()];
    for options in each {
        let longer = |c: &Vec<T>| {
            let all = options.iter().map(|o| [c.as_slice(), &[*o]].concat());
            all.collect::<Vec<_>>()
        };
        out = out.iter().flat_map(longer).collect();
    }
    out
}

/// The transposed convolution, if each group has one channel on either side and all numbers are known.
pub fn transposed<'g>(
    lw: &mut Lower<'g>,
    conv: &Conv,
    x: &Tensor,
    w: &Tensor,
    bias: Option<&Tensor>,
) -> Option<Tensor> {
    let e = lw.exprs;
    let inner = e.as_int(conv.group_in)?;
    // Input channels of a group are unrolled; its output channels are points of the body.
    let alone = inner == 1 || e.is_int(conv.group_out, 1);
    if !x.dtype.is_float() || !alone || inner < 1 || e.is_int(conv.groups, 1) {
        return None;
    }
    let along: Vec<Along> = (conv.windows.iter().zip(&conv.output))
        .map(|(w, output)| Along::new(e, w, *output))
        .collect::<Option<_>>()?;
    let terms: i64 = (conv.windows.iter())
        .map(|v| e.as_int(v.kernel).unwrap_or(MOST_TERMS))
        .fold(inner, i64::saturating_mul);
    if !fits(&along, terms) {
        return None;
    }
    let around: Vec<(Expr, Expr)> = (along.iter())
        .map(|a| (e.int(a.around.0), e.int(a.around.1)))
        .collect();
    let source = zeros_around(lw, x, &around);
    let sizes = conv.sizes(e);
    let lead = &sizes[..sizes.len() - along.len()];
    Some(by_phases(lw, lead, &along, x.dtype, |body, at, taps| {
        let last = at.len() - 1;
        let group = e.floordiv(at[last], conv.group_out);
        let column = e.modulo(at[last], conv.group_out);
        let mut sum: Option<StmtId> = None;
        for ci in 0..inner {
            let channel = e.add(e.mul(group, conv.group_in), e.int(ci));
            for (taps, found) in taps {
                let mut from = at[..last].to_vec();
                from.push(channel);
                let within = found.iter().zip(&around);
                from.extend(within.map(|(i, (before, _))| e.add(*i, *before)));
                let mut weight = vec![channel, column];
                weight.extend(taps.iter().map(|tap| e.int(*tap)));
                let (a, b) = (body.load(&source, &from), body.load(w, &weight));
                sum = Some(add_product(body, sum, a, b));
            }
        }
        // Places that no tap reaches hold the bias alone.
        let sum = sum.unwrap_or_else(|| body.constant(Scalar::Int(0), x.dtype.compute()));
        add_bias(body, sum, bias, at[last])
    }))
}

/// Adds `a * b` to a sum, in the order of the taps. The first product is the sum: zero plus
/// it would turn -0 into 0.
fn add_product(body: &mut BodyBuilder, sum: Option<StmtId>, a: StmtId, b: StmtId) -> StmtId {
    let product = body.op(ScalarOp::Mul, &[a, b]);
    body.add_to(sum, product)
}

/// The operands of the gradient of the filters.
pub struct Filters<'a> {
    /// The tensor with the sizes of the convolution's result, and the one that its windows move over.
    pub small: &'a Tensor,
    pub large: &'a Tensor,
    /// Channels of a group on either side.
    pub each_small: Expr,
    pub each_large: Expr,
    pub kernel: &'a [Expr],
    pub stride: &'a [Expr],
    pub dilation: &'a [Expr],
    pub padding: &'a [Expr],
}

/// The gradient of the filters, `[channels of small, 1, taps]`, if a group has one channel of `large` and sizes are known.
/// Taps in the last dimensions are unrolled, so that one pass over gradient and input feeds
/// up to `MOST_SUMS` accumulators. With several images each gives a part in the compute
/// dtype, and a second body adds these up in order.
pub fn filters<'g>(lw: &mut Lower<'g>, f: &Filters) -> Option<Tensor> {
    let e = lw.exprs;
    let known = |all: &[Expr]| -> Option<Vec<i64>> { all.iter().map(|n| e.as_int(*n)).collect() };
    let (kernel, stride) = (known(f.kernel)?, known(f.stride)?);
    let (dilation, padding) = (known(f.dilation)?, known(f.padding)?);
    let (inside, outside) = (known(&f.small.sizes[2..])?, known(&f.large.sizes[2..])?);
    let some = |all: &[i64]| all.iter().all(|n| *n > 0);
    let groups = e.divide_exact(f.small.sizes[1], f.each_small)?;
    if !e.is_int(f.each_large, 1)
        || e.is_int(groups, 1)
        || e.is_int(f.small.sizes[0], 0)
        || !f.small.dtype.is_float()
        || !(some(&kernel) && some(&inside) && some(&outside))
        || padding.iter().any(|p| *p < 0)
    {
        return None;
    }
    // As many of the last dimensions' taps as there is room for stand side by side; the others are axes.
    let mut first = kernel.len();
    let mut sums = 1;
    while first > 0 && sums * kernel[first - 1] <= MOST_SUMS {
        first -= 1;
        sums *= kernel[first];
    }
    let rank = kernel.len();
    let source = padded_by(lw, f.large, f.padding);
    let (batch, channels) = (f.small.sizes[0], f.small.sizes[1]);
    let lone = e.is_int(batch, 1);

    let mut points = vec![batch, channels];
    points.extend(&f.kernel[..first]);
    let mut body = lw.body(&points);
    let pixels = body.reduce_axes(&f.small.sizes[2..]);
    let outer = body.outer();
    let group = e.floordiv(outer[1], f.each_small);
    let sizes = [&[channels, e.int(1)], f.kernel].concat();
    // A single image needs no parts: sums are rounded once, when they are stored.
    let target = match lone {
        true => lw.temp(f.small.dtype, &sizes),
        false => lw.temp(
            f.small.dtype.compute(),
            &[&[batch, channels], f.kernel].concat(),
        ),
    };
    let mut own = vec![outer[0], outer[1]];
    own.extend(&pixels);
    let g = body.load(f.small, &own);
    let each: Vec<Vec<i64>> = kernel[first..].iter().map(|k| (0..*k).collect()).collect();
    for tap in choices(&each) {
        let index: Vec<Expr> = (0..rank)
            .map(|d| match d.checked_sub(first) {
                Some(k) => e.int(tap[k]),
                None => outer[2 + d],
            })
            .collect();
        let mut from = vec![outer[0], group];
        for d in 0..rank {
            let start = e.mul(index[d], e.int(dilation[d]));
            from.push(e.add(e.mul(pixels[d], e.int(stride[d])), start));
        }
        let x = body.load(&source, &from);
        let product = body.op(ScalarOp::Mul, &[x, g]);
        let sum = body.reduce(ReduceOp::Sum, product);
        let sum = body.cast_for_store(sum, target.dtype);
        let mut to = match lone {
            true => vec![outer[1], e.int(0)],
            false => vec![outer[0], outer[1]],
        };
        to.extend(index);
        body.store(target.buf, &to, sum);
    }
    lw.push(body);
    if lone {
        return Some(target);
    }
    // Each image gave a part.
    let mut body = lw.body(&sizes);
    let images = body.reduce_axes(&[batch]);
    let outer = body.outer();
    let mut from = vec![images[0], outer[0]];
    from.extend(&outer[2..]);
    let v = body.load(&target, &from);
    let sum = body.reduce(ReduceOp::Sum, v);
    Some(lw.store_new(body, sum, f.small.dtype, &sizes))
}
