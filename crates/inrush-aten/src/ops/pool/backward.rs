//! Gradients of pooling. Each input element gathers from the windows that hold it, so that no two write the same place; on CPUs
//! the gradients of greatest elements go to the places that the indices name instead, each of them once.
//!
//! ```text
//! forward   y[o] reads x[o * stride - before + tap * dilation]
//! backward  dx[i] sums dy[o] over the windows o that hold i
//! ```
//!
//! The last window that can hold element `i` is `(i + before) / stride`; `span / stride` windows,
//! rounded up, are candidates, counted down from it by a reduction axis. A mask drops those that
//! are out of range or end before `i`. For greatest elements a candidate counts if its index names
//! `i`.
//!
//! Where windows of averages overlap on a CPU, each window's share is divided once, then the shares
//! are summed by phases of the stride, which turns strided reads into adjacent ones.

use crate::ops::conv::depthwise::{Along, by_phases, fits};
use crate::ops::index::scatter::{arrived, filled};
use crate::ops::lowered;
use crate::ops::padding::{in_bounds, load_or_zero};
use crate::ops::pool::forward::{Adaptive, Pool, divide_by_all};
use crate::ops::window::{Window, adaptive_bounds, adaptive_kernel};
use crate::props::Prop;
use crate::{BodyBuilder, Call, Lower, Processor, Row, Tensor, View, meta};
use inrush_base::{DType, Result, Scalar};
use inrush_expr::{Expr, Exprs};
use inrush_graph::Type;
use inrush_loops::{ReduceOp, ScalarOp, StmtId, StoreMode};

/// The gradient of the input has its type.
fn like_self(call: &Call) -> Result<Vec<Type>> {
    let t = call.tensor("self")?;
    meta::one(call.exprs, t.dtype, t.sizes.clone())
}

/// As [`like_self`], for a pool whose gradient must have the sizes of its result.
fn fixed_meta(call: &Call) -> Result<Vec<Type>> {
    let t = call.tensor("self")?;
    let pool = Pool::new(call, &t.sizes)?;
    let grad = call.tensor("grad_output")?;
    call.same_sizes(&grad.sizes, &pool.sizes(&t.sizes), "the gradient")?;
    like_self(call)
}

/// The candidates among the windows of an input point: for each spatial dimension the window's number, and how many
/// windows there are.
/// Points of the gradient that one point of the input reads.
struct Candidates {
    /// Index into the gradient.
    at: Vec<Expr>,
    /// Positions and sizes that must be in range for the candidate to exist.
    checks: Vec<(Expr, Expr)>,
}

/// The windows that may hold the point `outer`, counted down from the last by the reduction axes `taps`.
fn candidates(body: &BodyBuilder, pool: &Pool, outer: &[Expr], taps: &[Expr]) -> Candidates {
    let e = body.exprs;
    let mut at = outer[..pool.lead].to_vec();
    let mut checks = Vec::new();
    for (k, w) in pool.windows.iter().enumerate() {
        let place = e.add(outer[pool.lead + k], w.before);
        let window = e.sub(e.floordiv(place, w.stride), taps[k]);
        at.push(window);
        checks.push((window, pool.output[k]));
    }
    Candidates { at, checks }
}

/// For each spatial dimension the number of windows that may hold a point.
fn overlaps(lw: &Lower, pool: &Pool) -> Vec<Expr> {
    let e = lw.exprs;
    let each = pool.windows.iter();
    each.map(|w| e.ceildiv(w.span(e), w.stride)).collect()
}

/// Row-major position of a point in the spatial dimensions.
fn position(body: &mut BodyBuilder, outer: &[Expr], sizes: &[Expr]) -> StmtId {
    let flat = crate::View::ravel(body.exprs, outer, sizes);
    body.index_value(flat)
}

/// The gradient of the windows whose index names the point.
/// Zero elsewhere. A masked candidate reads the index -1, which names no point.
fn chosen(
    body: &mut BodyBuilder,
    grad: &Tensor,
    indices: &Tensor,
    at: &[Expr],
    mask: Option<StmtId>,
    here: StmtId,
) -> StmtId {
    let index = match mask {
        Some(m) => body.load_masked(indices, at, m, Scalar::Int(-1)),
        None => body.load(indices, at),
    };
    let index = body.cast(index, DType::I64);
    let hit = body.op(ScalarOp::Eq, &[index, here]);
    let g = load_or_zero(body, grad, at, mask);
    let dtype = body.dtype(g);
    let zero = body.constant(Scalar::Int(0), dtype);
    body.select(hit, g, zero)
}

/// The gradient of each window, added where its index says; `lead` dimensions of `sizes` are not spatial.
/// Sums in the compute dtype. The index is checked: it is an argument of the operator, not
/// something computed here.
fn scattered<'g>(
    lw: &mut Lower<'g>,
    grad: &Tensor,
    indices: &Tensor,
    sizes: &[Expr],
    lead: usize,
) -> Tensor {
    let e = lw.exprs;
    let out = filled(lw, sizes, grad.dtype.compute(), Scalar::Int(0));
    let mut body = lw.body(&grad.sizes);
    let from = body.outer();
    let index = body.load(indices, &from);
    let index = body.cast(index, DType::I64);
    let plane = e.product(sizes[lead..].iter().copied());
    let place = body.indirect(index, plane, false, true, None);
    let mut to = from[..lead].to_vec();
    to.extend(View::unravel(e, place, &sizes[lead..]));
    let v = body.load(grad, &from);
    body.store_with(out.buf, &to, v, StoreMode::Add, None);
    lw.push(body);
    arrived(lw, out, grad.dtype)
}

/// CPUs scatter: one write for each window instead of one comparison for each candidate. GPUs
/// gather, which needs no atomic additions.
fn max_pool<'g>(lw: &mut Lower<'g>, call: &Call<'g>) -> Result<Vec<Tensor>> {
    let (grad, indices) = (lw.arg(call, "grad_output")?, lw.arg(call, "indices")?);
    let sizes = call.tensor("self")?.sizes.clone();
    let pool = Pool::new(call, &sizes)?;
    if lw.processor == Processor::Cpu {
        return Ok(vec![scattered(lw, &grad, &indices, &sizes, pool.lead)]);
    }
    let mut body = lw.body(&sizes);
    let taps = body.reduce_axes(&overlaps(lw, &pool));
    let outer = body.outer();
    let c = candidates(&body, &pool, &outer, &taps);
    let mask = in_bounds(&mut body, &c.checks);
    let here = position(&mut body, &outer[pool.lead..], &sizes[pool.lead..]);
    let v = chosen(&mut body, &grad, &indices, &c.at, mask, here);
    let sum = body.reduce(ReduceOp::Sum, v);
    Ok(vec![lw.store_new(body, sum, grad.dtype, &sizes)])
}

/// Number of elements of an average pool's window, which the sum is divided by, in one dimension: `at` is the window's number.
fn counted(e: &Exprs, w: &Window, at: Expr, padding_counts: bool) -> Expr {
    let start = w.position(e, at, e.int(0));
    let end = e.add(start, w.kernel);
    let (first, last) = match padding_counts {
        true => (start, e.add(w.input, w.after)),
        false => (e.max(start, e.int(0)), w.input),
    };
    e.sub(e.min(end, last), first)
}

/// Where windows overlap: each window's share of the gradient first, with zeros around, then their sums by phases.
/// Returns `None` for symbolic sizes and where too many taps or phases would stand in one body.
fn overlapping<'g>(
    lw: &mut Lower<'g>,
    grad: &Tensor,
    pool: &Pool,
    divisor: Option<Expr>,
    padding_counts: bool,
) -> Option<Tensor> {
    let e = lw.exprs;
    let along: Vec<Along> = (pool.windows.iter().zip(&pool.output))
        .map(|(w, output)| {
            // Window numbers are the coordinates of the summed tensor, so the "input" is the
            // gradient.
            let numbers = Window {
                input: *output,
                ..*w
            };
            Along::new(e, &numbers, w.input)
        })
        .collect::<Option<_>>()?;
    let terms: Vec<i64> = (pool.windows.iter())
        .map(|w| e.as_int(w.kernel))
        .collect::<Option<_>>()?;
    if !fits(&along, terms.into_iter().fold(1, i64::saturating_mul)) {
        return None;
    }
    let lead = pool.lead;
    let mut padded = grad.sizes[..lead].to_vec();
    let outputs = along.iter().zip(&pool.output);
    padded.extend(outputs.map(|(a, n)| e.add(*n, e.int(a.around.0 + a.around.1))));
    let mut body = lw.body(&padded);
    let mut at = body.outer();
    let mut checks = Vec::new();
    let mut count = e.int(1);
    for (k, a) in along.iter().enumerate() {
        at[lead + k] = e.sub(at[lead + k], e.int(a.around.0));
        checks.push((at[lead + k], pool.output[k]));
        count = e.mul(
            count,
            counted(e, &pool.windows[k], at[lead + k], padding_counts),
        );
    }
    let mask = in_bounds(&mut body, &checks);
    let g = load_or_zero(&mut body, grad, &at, mask);
    let v = share(&mut body, g, divisor.unwrap_or(count), mask);
    let shares = lw.store_new(body, v, grad.dtype.compute(), &padded);
    Some(by_phases(
        lw,
        &grad.sizes[..lead],
        &along,
        grad.dtype,
        |body, at, taps| {
            let mut sum: Option<StmtId> = None;
            for (_, windows) in taps {
                let mut from = at.to_vec();
                let within = windows.iter().zip(&along);
                from.extend(within.map(|(i, a)| e.add(*i, e.int(a.around.0))));
                let v = body.load(&shares, &from);
                sum = Some(body.add_to(sum, v));
            }
            sum.unwrap_or_else(|| body.constant(Scalar::Int(0), grad.dtype.compute()))
        },
    ))
}

/// Windows that do not overlap need no sum: the plain form reads one candidate.
fn avg_pool<'g>(lw: &mut Lower<'g>, call: &Call<'g>) -> Result<Vec<Tensor>> {
    let grad = lw.arg(call, "grad_output")?;
    let sizes = call.tensor("self")?.sizes.clone();
    let pool = Pool::new(call, &sizes)?;
    let e = lw.exprs;
    // Every element is in one window at most.
    let apart = overlaps(lw, &pool).iter().all(|n| e.is_int(*n, 1));
    if lw.processor == Processor::Cpu && grad.dtype.is_float() && !apart {
        let divisor = call.opt_int("divisor_override")?;
        let padding_counts = call.bool("count_include_pad")?;
        if let Some(out) = overlapping(lw, &grad, &pool, divisor, padding_counts) {
            return Ok(vec![out]);
        }
    }
    let mut body = lw.body(&sizes);
    let taps = body.reduce_axes(&overlaps(lw, &pool));
    let outer = body.outer();
    let mut c = candidates(&body, &pool, &outer, &taps);
    let divisor = call.opt_int("divisor_override")?;
    let padding_counts = call.bool("count_include_pad")?;
    let mut count = e.int(1);
    for (k, w) in pool.windows.iter().enumerate() {
        let window = c.at[pool.lead + k];
        let start = w.position(e, window, e.int(0));
        // The point must lie before the window's end.
        c.checks
            .push((e.sub(outer[pool.lead + k], start), w.kernel));
        count = e.mul(count, counted(e, w, window, padding_counts));
    }
    let mask = in_bounds(&mut body, &c.checks);
    let g = load_or_zero(&mut body, &grad, &c.at, mask);
    let v = share(&mut body, g, divisor.unwrap_or(count), mask);
    let sum = body.reduce(ReduceOp::Sum, v);
    Ok(vec![lw.store_new(body, sum, grad.dtype, &sizes)])
}

/// `g / count`; where the mask is false the count may be anything, and 0 is the result.
fn share(body: &mut BodyBuilder, g: StmtId, count: Expr, mask: Option<StmtId>) -> StmtId {
    let dtype = body.dtype(g);
    if let Some(n) = body.exprs.as_int(count) {
        let n = body.constant(Scalar::Int(n), dtype);
        return body.op(ScalarOp::Div, &[g, n]);
    }
    let n = body.index_value(count);
    let n = body.cast(n, dtype);
    let v = body.op(ScalarOp::Div, &[g, n]);
    match mask {
        Some(m) => {
            let zero = body.constant(Scalar::Int(0), dtype);
            body.select(m, v, zero)
        }
        None => v,
    }
}

/// Returns the range of windows of an adaptive pool from `input` to `output` elements that hold
/// element `at`.
/// The general case is the adaptive window with input and output exchanged: window `o` holds `i` if
/// and only if window `i` of the exchanged pool holds `o`.
fn holders(e: &Exprs, input: Expr, output: Expr, at: Expr) -> (Expr, Expr) {
    match e.divide_exact(input, output) {
        // Windows side by side.
        Some(size) => {
            let first = e.floordiv(at, size);
            (first, e.add(first, e.int(1)))
        }
        None => adaptive_bounds(e, at, output, input),
    }
}

/// Windows of one dimension of an adaptive pool that may hold an element, where all of them stand side by side in a body.
const MOST_WINDOWS: i64 = 8;

/// Computes the gradient of an adaptive average pool: each window's share first, then, one
/// dimension after the other from the last, the sum over the few windows that hold an element. The
/// sums along a row of windows are shared by all rows of the image.
fn adaptive_shares<'g>(
    lw: &mut Lower<'g>,
    grad: &Tensor,
    pool: &Adaptive,
    kernel: &[i64],
) -> Tensor {
    let e = lw.exprs;
    let (lead, dtype) = (pool.lead, grad.dtype.compute());
    let mut body = lw.body(&grad.sizes);
    let at = body.outer();
    let mut v = body.load(grad, &at);
    let counts: Vec<Expr> = pool.extents(e, &at).into_iter().map(|(_, n)| n).collect();
    v = divide_by_all(&mut body, v, &counts);
    let mut sums = lw.store_new(body, v, dtype, &grad.sizes);
    let mut sizes = grad.sizes.clone();
    for k in (0..kernel.len()).rev() {
        let d = lead + k;
        sizes[d] = pool.input[k];
        let mut body = lw.body(&sizes);
        let outer = body.outer();
        let (first, end) = holders(e, pool.input[k], pool.output[k], outer[d]);
        let mut sum: Option<StmtId> = None;
        for tap in 0..kernel[k] {
            let mut at = outer.clone();
            at[d] = e.add(first, e.int(tap));
            let mask = in_bounds(&mut body, &[(e.int(tap), e.sub(end, first))]);
            let v = load_or_zero(&mut body, &sums, &at, mask);
            sum = Some(body.add_to(sum, v));
        }
        let sum = sum.unwrap_or_else(|| body.constant(Scalar::Int(0), dtype));
        // Only the last pass rounds.
        let into = if k == 0 { grad.dtype } else { dtype };
        sums = lw.store_new(body, sum, into, &sizes);
    }
    sums
}

/// Adaptive pools: which windows hold an element is the same question with input and output exchanged.
fn adaptive<'g>(lw: &mut Lower<'g>, call: &Call<'g>, max: bool) -> Result<Vec<Tensor>> {
    let grad = lw.arg(call, "grad_output")?;
    let sizes = call.tensor("self")?.sizes.clone();
    let e = lw.exprs;
    let pool = Adaptive::of_sizes(call, &sizes, &grad.sizes)?;
    let lead = pool.lead;
    if max && lw.processor == Processor::Cpu {
        let indices = lw.arg(call, "indices")?;
        return Ok(vec![scattered(lw, &grad, &indices, &sizes, lead)]);
    }
    let kernel: Vec<Expr> = (pool.input.iter())
        .zip(&pool.output)
        .map(|(i, o)| adaptive_kernel(e, *o, *i))
        .collect();
    let known: Option<Vec<i64>> = kernel.iter().map(|k| e.as_int(*k)).collect();
    if let Some(known) = known
        && lw.processor == Processor::Cpu
        && grad.dtype.is_float()
        && known.iter().all(|k| *k <= MOST_WINDOWS)
    {
        return Ok(vec![adaptive_shares(lw, &grad, &pool, &known)]);
    }
    let mut body = lw.body(&sizes);
    let taps = body.reduce_axes(&kernel);
    let outer = body.outer();
    let mut at = outer[..lead].to_vec();
    let mut checks = Vec::new();
    let mut count = e.int(1);
    for (k, tap) in taps.iter().enumerate() {
        let (i, o) = (pool.input[k], pool.output[k]);
        let (first, end) = holders(e, i, o, outer[lead + k]);
        let window = e.add(first, *tap);
        checks.push((*tap, e.sub(end, first)));
        // Number of elements that the window's mean was taken of.
        let (start, stop) = match e.divide_exact(i, o) {
            Some(size) => (e.int(0), size),
            None => adaptive_bounds(e, window, i, o),
        };
        count = e.mul(count, e.sub(stop, start));
        at.push(window);
    }
    let mask = in_bounds(&mut body, &checks);
    let v = if max {
        let indices = lw.arg(call, "indices")?;
        let here = position(&mut body, &outer[lead..], &sizes[lead..]);
        chosen(&mut body, &grad, &indices, &at, mask, here)
    } else {
        let g = load_or_zero(&mut body, &grad, &at, mask);
        share(&mut body, g, count, mask)
    };
    let sum = body.reduce(ReduceOp::Sum, v);
    Ok(vec![lw.store_new(body, sum, grad.dtype, &sizes)])
}

pub const ROWS: &[Row] = &[
    lowered(
        "aten.max_pool2d_with_indices_backward.default",
        "(Tensor grad_output, Tensor self, int[2] kernel_size, int[2] stride, int[2] padding, int[2] dilation, bool ceil_mode, Tensor indices) -> Tensor",
        fixed_meta,
        max_pool,
        "(f32[1,2,1,1], f32[1,2,3,3], [3,3], [2,2], [0,0], [1,1], false, i64[1,2,1,1]{0:8})",
    ).with(&[Prop::Spatial(2)]),
    lowered(
        "aten.max_pool3d_with_indices_backward.default",
        "(Tensor grad_output, Tensor self, int[3] kernel_size, int[3] stride, int[3] padding, int[3] dilation, bool ceil_mode, Tensor indices) -> Tensor",
        fixed_meta,
        max_pool,
        "(f32[1,2,1,1,1], f32[1,2,2,2,2], [2,2,2], [2,2,2], [0,0,0], [1,1,1], false, i64[1,2,1,1,1]{0:7})",
    ).with(&[Prop::Spatial(3)]),
    lowered(
        "aten.avg_pool2d_backward.default",
        "(Tensor grad_output, Tensor self, int[2] kernel_size, int[2] stride, int[2] padding, bool ceil_mode, bool count_include_pad, int? divisor_override) -> Tensor",
        fixed_meta,
        avg_pool,
        "(f32[1,2,4,4], f32[1,2,7,7], [3,3], [2,2], [1,1], true, false, none)",
    ).with(&[Prop::Spatial(2)]),
    lowered(
        "aten.avg_pool3d_backward.default",
        "(Tensor grad_output, Tensor self, int[3] kernel_size, int[3] stride, int[3] padding, bool ceil_mode, bool count_include_pad, int? divisor_override) -> Tensor",
        fixed_meta,
        avg_pool,
        "(f32[1,2,2,2,2], f32[1,2,4,4,4], [2,2,2], [2,2,2], [0,0,0], false, true, none)",
    ).with(&[Prop::Spatial(3)]),
    lowered(
        "aten._adaptive_avg_pool2d_backward.default",
        "(Tensor grad_output, Tensor self) -> Tensor",
        like_self,
        |lw, call| adaptive(lw, call, false),
        "(f32[2,3,3,4], f32[2,3,7,8])",
    ).with(&[Prop::Spatial(2)]),
    lowered(
        "aten._adaptive_avg_pool3d_backward.default",
        "(Tensor grad_output, Tensor self) -> Tensor",
        like_self,
        |lw, call| adaptive(lw, call, false),
        "(f32[1,2,2,2,2], f32[1,2,5,4,3])",
    ).with(&[Prop::Spatial(3)]),
    lowered(
        "aten.adaptive_max_pool2d_backward.default",
        "(Tensor grad_output, Tensor self, Tensor indices) -> Tensor",
        like_self,
        |lw, call| adaptive(lw, call, true),
        "(f32[2,3,1,1], f32[2,3,7,8], i64[2,3,1,1]{0:55})",
    ).with(&[Prop::Spatial(2)]),
    lowered(
        "aten.adaptive_max_pool3d_backward.default",
        "(Tensor grad_output, Tensor self, Tensor indices) -> Tensor",
        like_self,
        |lw, call| adaptive(lw, call, true),
        "(f32[1,2,1,1,1], f32[1,2,5,4,3], i64[1,2,1,1,1]{0:59})",
    ).with(&[Prop::Spatial(3)]),
];
