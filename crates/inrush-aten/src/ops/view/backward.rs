//! Gradients of views, paddings and lookups: the gradient laid where its elements came from, zeros elsewhere, sums where
//! an element was read more than once.
//!
//! Where each element was read at most once, the gradient is written into a part of zeros by the
//! scatter form of the view. Paddings fold what was mirrored or repeated back onto the middle part.
//! Where windows overlap (`unfold`, `im2col`) each element gathers from all windows that hold it:
//!
//! ```text
//! unfold_backward   dx[i] = sum over k of dy[i // step - k, i % step + k * step]     masked
//! ```
//!
//! so that nothing is written twice. Only embeddings scatter: their indices are data.

use crate::ops::B;
use crate::ops::conv::depthwise::{Along, by_phases, fits};
use crate::ops::decomposed as row;
use crate::ops::padding::{in_bounds, load_or_zero};
use crate::ops::window::Window;
use crate::{Args, Builder, Call, Lower, Meta, Processor, Route, Row, Tensor, meta};
use inrush_base::{DType, Error, Result, Scalar};
use inrush_expr::{Expr, Exprs};
use inrush_graph::{Arg, Type, ValueId};
use inrush_loops::{ReduceOp, ScalarOp, StmtId};

/// Zeros of the input's sizes, with the gradient written into a part of them by `op`.
fn into_zeros(b: B, args: &Args, op: &str, names: &[&str]) -> Result<Vec<ValueId>> {
    let grad = args.value("grad_output")?;
    let dtype = b.dtype(grad)?;
    let zeros = b.full(args.ints("input_sizes")?, 0.0, dtype)?;
    let mut call: Vec<Arg> = vec![zeros.into(), grad.into()];
    for name in names {
        call.push(args.arg(name)?.clone());
    }
    Ok(vec![b.call(op, &call)?])
}

/// Gradient of `slice`: strided write into zeros.
fn slice(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let names = ["dim", "start", "end", "step"];
    into_zeros(b, args, "aten.slice_scatter.default", &names)
}

/// Gradient of `select`.
fn select(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    into_zeros(b, args, "aten.select_scatter.default", &["dim", "index"])
}

/// Gradient of `diagonal`.
fn diagonal(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let names = ["offset", "dim1", "dim2"];
    into_zeros(b, args, "aten.diagonal_scatter.default", &names)
}

/// Windows of one dimension: how an element finds those that hold it.
struct Windows {
    /// Distance of neighbouring windows' starts.
    step: Expr,
    /// Windows, and elements of each.
    count: Expr,
    size: Expr,
}

impl Windows {
    /// How many windows at most hold an element.
    fn overlap(&self, lw: &Lower) -> Expr {
        lw.exprs.ceildiv(self.size, self.step)
    }

    /// The `k`th window before the last one that starts at or before `at`, and the place in it.
    fn at(&self, lw: &Lower, at: Expr, k: Expr) -> (Expr, Expr) {
        let e = lw.exprs;
        let window = e.sub(e.floordiv(at, self.step), k);
        (window, e.sub(at, e.mul(window, self.step)))
    }
}

/// Each element is the sum over the windows that hold it.
fn unfold<'g>(lw: &mut Lower<'g>, call: &Call<'g>) -> Result<Vec<Tensor>> {
    let grad = lw.arg(call, "grad_in")?;
    let sizes = call.ints("input_sizes")?.to_vec();
    let d = call.dim("dim", sizes.len())?;
    if sizes.is_empty() {
        // The one window of a number is the number.
        let mut body = lw.body(&sizes);
        let first = lw.exprs.int(0);
        let v = body.load(&grad, &[first]);
        return Ok(vec![lw.store_new(body, v, grad.dtype, &sizes)]);
    }
    if d >= sizes.len() || d >= grad.sizes.len() {
        return Err(Error::input("windows along a dimension that is not there"));
    }
    let w = Windows {
        step: call.int("step")?,
        count: grad.sizes[d],
        size: call.int("size")?,
    };
    let mut body = lw.body(&sizes);
    let k = body.reduce_axes(&[w.overlap(lw)])[0];
    let mut at = body.outer();
    let (window, place) = w.at(lw, at[d], k);
    at[d] = window;
    at.push(place);
    let mask = in_bounds(&mut body, &[(window, w.count), (place, w.size)]);
    let v = load_or_zero(&mut body, &grad, &at, mask);
    let sum = body.reduce(ReduceOp::Sum, v);
    Ok(vec![lw.store_new(body, sum, grad.dtype, &sizes)])
}

/// Checks the gradient's sizes against the windows of the input.
fn unfold_meta(call: &Call) -> Result<Vec<Type>> {
    let grad = call.tensor("grad_in")?;
    let sizes = call.ints("input_sizes")?;
    if grad.rank() != sizes.len() + 1 || call.const_int("step")? < 1 || call.const_int("size")? < 1
    {
        return Err(Error::input("windows that do not fit the gradient"));
    }
    let (e, size) = (call.exprs, call.int("size")?);
    let mut windows = sizes.to_vec();
    if !windows.is_empty() {
        let dim = call.dim("dim", windows.len())?;
        let steps = e.floordiv(e.sub(windows[dim], size), call.int("step")?);
        windows[dim] = e.add(steps, e.int(1));
        windows.push(size);
        call.same_sizes(&grad.sizes, &windows, "the gradient")?;
    }
    meta::one(e, grad.dtype, sizes.to_vec())
}

/// Two numbers for height and width; one stands for both.
/// PyTorch's `int[2]`.
fn two(call: &Call, name: &str) -> Result<[Expr; 2]> {
    match call.ints(name)? {
        [a] => Ok([*a, *a]),
        [a, b] => Ok([*a, *b]),
        _ => Err(call.unsupported(name, "two numbers are needed")),
    }
}

/// The windows of patches over an image of `size`.
/// Fails unless kernel, dilation and stride are positive.
fn windows(call: &Call, size: [Expr; 2]) -> Result<[Window; 2]> {
    let e = call.exprs;
    let (kernel, dilation) = (two(call, "kernel_size")?, two(call, "dilation")?);
    let (padding, stride) = (two(call, "padding")?, two(call, "stride")?);
    let positive = |s: &[Expr; 2]| s.iter().all(|s| e.range(*s).lo > 0);
    if !positive(&kernel) || !positive(&dilation) || !positive(&stride) {
        return Err(Error::input("windows need positive numbers"));
    }
    let of = |d: usize| Window {
        input: size[d],
        kernel: kernel[d],
        stride: stride[d],
        dilation: dilation[d],
        before: padding[d],
        after: padding[d],
    };
    Ok([of(0), of(1)])
}

/// Sizes of the image that columns of patches add up to.
/// Checks the number of columns against the number of patches.
fn image_sizes(call: &Call, columns: &[Expr]) -> Result<Vec<Expr>> {
    let e = call.exprs;
    let size = two(call, "output_size")?;
    let kernel = two(call, "kernel_size")?;
    let taps = e.mul(kernel[0], kernel[1]);
    let [lead @ .., rows, count] = columns else {
        return Err(Error::input("columns must have two dimensions or more"));
    };
    let channels = e
        .divide_exact(*rows, taps)
        .ok_or_else(|| Error::input("the kernel does not divide the columns' rows"))?;
    let [rows, columns] = windows(call, size)?.map(|w| w.output(e, false));
    call.same(*count, e.mul(rows, columns), "the number of patches")?;
    Ok([lead, &[channels, size[0], size[1]]].concat())
}

/// The element of columns of patches that one dimension of an image reads: the tap of the kernel
/// and the position of the patch.
struct Reach {
    /// Number of the tap within the kernel's dimension.
    tap: Expr,
    /// Number of the patch along the dimension.
    place: Expr,
    /// Coordinates that must be in `0..size`.
    checks: Vec<(Expr, Expr)>,
    /// Must be zero; otherwise the pixel is between the taps of every patch.
    rest: Expr,
}

/// How many taps of a dimension reach a pixel. Of a gapless kernel those a stride apart do, and each of them by one patch:
/// the others need not be asked.
fn reaching(e: &Exprs, kernel: Expr, dilation: Expr, stride: Expr) -> Expr {
    match e.is_int(dilation, 1) {
        true => e.ceildiv(kernel, stride),
        false => kernel,
    }
}

/// Tap number `k` of those that reach pixel `at`, in ascending order.
/// Without dilation the taps that reach a pixel are `at % stride + k * stride`. With dilation every
/// tap is tried, and `rest` must be zero.
fn reach(e: &Exprs, w: &Window, count: Expr, at: Expr, k: Expr) -> Reach {
    let at = e.add(at, w.before);
    if !e.is_int(w.dilation, 1) {
        let from = e.sub(at, e.mul(k, w.dilation));
        let place = e.floordiv(from, w.stride);
        return Reach {
            tap: k,
            place,
            checks: vec![(place, count)],
            rest: e.modulo(from, w.stride),
        };
    }
    let tap = e.add(e.modulo(at, w.stride), e.mul(k, w.stride));
    let place = e.sub(e.floordiv(at, w.stride), k);
    let mut checks = vec![(place, count)];
    if e.divide_exact(w.kernel, w.stride).is_none() {
        checks.push((tap, w.kernel));
    }
    Reach {
        tap,
        place,
        checks,
        rest: e.int(0),
    }
}

/// Sums overlapping patches by phases of the stride, so that a tap reads adjacent elements for
/// adjacent patches.
/// Returns `None` for a stride of 1, symbolic sizes, and where too many taps would stand in one
/// body.
fn overlapping<'g>(
    lw: &mut Lower<'g>,
    columns: &Tensor,
    sizes: &[Expr],
    windows: &[Window; 2],
) -> Option<Tensor> {
    let e = lw.exprs;
    let rank = sizes.len();
    if windows.iter().all(|w| e.is_int(w.stride, 1)) {
        return None;
    }
    let counts = windows.each_ref().map(|w| w.output(e, false));
    let mut along = Vec::new();
    let mut terms = 1i64;
    for (k, w) in windows.iter().enumerate() {
        let numbers = Window {
            input: counts[k],
            ..*w
        };
        along.push(Along::new(e, &numbers, sizes[rank - 2 + k])?);
        terms = terms.saturating_mul(e.as_int(w.kernel)?);
    }
    if !fits(&along, terms) {
        return None;
    }
    let lead = &sizes[..rank - 2];
    Some(by_phases(
        lw,
        lead,
        &along,
        columns.dtype,
        |body, at, taps| {
            let dtype = columns.dtype.compute();
            let mut sum: Option<StmtId> = None;
            for (taps, places) in taps {
                let checks: Vec<(Expr, Expr)> = places.iter().copied().zip(counts).collect();
                let mask = in_bounds(body, &checks);
                let last = at.len() - 1;
                let mut from = at[..last].to_vec();
                let row = e.add(e.mul(at[last], windows[0].kernel), e.int(taps[0]));
                from.push(e.add(e.mul(row, windows[1].kernel), e.int(taps[1])));
                from.push(e.add(e.mul(places[0], counts[1]), places[1]));
                let v = load_or_zero(body, columns, &from, mask);
                sum = Some(body.add_to(sum, v));
            }
            sum.unwrap_or_else(|| body.constant(Scalar::Int(0), dtype))
        },
    ))
}

/// Patches as columns, added up where they overlap: each pixel is a sum over the taps that reach it.
/// Inverse of `im2col` up to the sums: `[.., c * kh * kw, patches] -> [.., c, h, w]`.
fn col2im<'g>(lw: &mut Lower<'g>, call: &Call<'g>) -> Result<Vec<Tensor>> {
    let columns = lw.arg(call, "self")?;
    let sizes = image_sizes(call, &columns.sizes)?;
    let e = lw.exprs;
    let rank = sizes.len();
    let windows = windows(call, [sizes[rank - 2], sizes[rank - 1]])?;
    let mut body = lw.body(&sizes);
    let reached = windows
        .each_ref()
        .map(|w| reaching(e, w.kernel, w.dilation, w.stride));
    // Where patches do not overlap there is nothing to add.
    // A stride of at least the kernel's size: each pixel is in one patch at most.
    let single = reached.iter().all(|n| e.is_int(*n, 1));
    if lw.processor == Processor::Cpu
        && !single
        && let Some(out) = overlapping(lw, &columns, &sizes, &windows)
    {
        return Ok(vec![out]);
    }
    let taps = match single {
        true => vec![e.int(0); 2],
        false => body.reduce_axes(&reached).to_vec(),
    };
    let outer = body.outer();
    let mut checks = Vec::new();
    let mut aligned: Option<StmtId> = None;
    let (mut row, mut column) = (outer[rank - 3], e.int(0));
    for (d, w) in windows.iter().enumerate() {
        let count = w.output(e, false);
        let r = reach(e, w, count, outer[rank - 2 + d], taps[d]);
        checks.extend(r.checks);
        if !e.is_int(r.rest, 0) {
            let (r, zero) = (
                body.index_value(r.rest),
                body.constant(Scalar::Int(0), DType::I64),
            );
            let c = body.op(ScalarOp::Eq, &[r, zero]);
            aligned = Some(match aligned {
                Some(a) => body.op(ScalarOp::And, &[a, c]),
                None => c,
            });
        }
        row = e.add(e.mul(row, w.kernel), r.tap);
        column = e.add(e.mul(column, count), r.place);
    }
    let inside = in_bounds(&mut body, &checks);
    let mask = match (aligned, inside) {
        (Some(a), Some(b)) => Some(body.op(ScalarOp::And, &[a, b])),
        (a, b) => a.or(b),
    };
    let mut at = outer[..rank - 3].to_vec();
    at.extend([row, column]);
    let mut v = load_or_zero(&mut body, &columns, &at, mask);
    // Without axes to reduce over this adds a zero, which makes -0 positive as eager's sum into zeros does.
    v = body.reduce(ReduceOp::Sum, v);
    Ok(vec![lw.store_new(body, v, columns.dtype, &sizes)])
}

/// A dimension with the amounts before and after it.
/// All three count elements.
type Pad = (usize, Expr, Expr);

/// The gradient with zeros where negative amounts cut something off; amounts before and after each padded dimension, which
/// are not negative any more, and which dimension that is.
fn pads(b: B, args: &Args, rank: usize) -> Result<(ValueId, Vec<Pad>)> {
    let mut g = args.value("grad_output")?;
    let mut all = Vec::new();
    for (k, p) in args.ints("padding")?.chunks(2).enumerate() {
        let ([before, after], Some(d)) = (p, rank.checked_sub(k + 1)) else {
            return Err(
                args.unsupported("padding", "must be a pair for each of the last dimensions")
            );
        };
        let cut = |amount: Expr| {
            let range = b.exprs.range(amount);
            match (range.lo >= 0, range.hi <= 0) {
                (true, _) => Ok((amount, b.exprs.int(0))),
                (_, true) => Ok((b.exprs.int(0), b.exprs.sub(b.exprs.int(0), amount))),
                _ => Err(args.unsupported("padding", "of a sign that is not known")),
            }
        };
        let ((before, at_start), (after, at_end)) = (cut(*before)?, cut(*after)?);
        if !b.exprs.is_int(at_start, 0) || !b.exprs.is_int(at_end, 0) {
            g = zero_padded(b, g, d, at_start, at_end)?;
        }
        all.push((d, before, after));
    }
    Ok((g, all))
}

/// `x` with zeros before and after along one dimension.
fn zero_padded(b: B, x: ValueId, dim: usize, before: Expr, after: Expr) -> Result<ValueId> {
    let mut list = vec![b.exprs.int(0); 2 * (b.rank(x)? - dim - 1)];
    list.extend([before, after]);
    b.call("aten.constant_pad_nd.default", &[x.into(), list.into()])
}

/// Mirrors the padding at either end back, one dimension after the other.
/// Along each dimension: the middle part, plus the left padding flipped and placed from element 1
/// on, plus the right padding flipped and placed up to the element before the last.
fn reflection_pad(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let sizes = b.sizes(args.value("self")?)?;
    let one = b.exprs.int(1);
    let (mut g, pads) = pads(b, args, sizes.len())?;
    for (d, before, after) in pads {
        let n = sizes[d];
        let end = b.exprs.add(before, n);
        let mut sum = b.narrow(g, d, before, n)?;
        let room = |b: &Builder, used: Expr| b.exprs.sub(b.exprs.sub(n, one), used);
        for (start, len, at_start) in [(b.exprs.int(0), before, true), (end, after, false)] {
            if b.exprs.is_int(len, 0) {
                continue;
            }
            let part = b.narrow(g, d, start, len)?;
            let dims = b.ints(&[d as i64]);
            let part = b.call("aten.flip.default", &[part.into(), dims])?;
            // Zeros that place the folded part within the `n` elements of the middle.
            let rest = room(b, len);
            let part = match at_start {
                true => zero_padded(b, part, d, one, rest)?,
                false => zero_padded(b, part, d, rest, one)?,
            };
            sum = b.add(sum, part)?;
        }
        g = sum;
    }
    Ok(vec![g])
}

/// Adds the padding to the first or the last element.
/// Along each dimension: the middle part, plus the sum of each padding at its end.
fn replication_pad(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let sizes = b.sizes(args.value("self")?)?;
    let (mut g, pads) = pads(b, args, sizes.len())?;
    for (d, before, after) in pads {
        let n = sizes[d];
        let end = b.exprs.add(before, n);
        let rest = b.exprs.sub(n, b.exprs.int(1));
        let none = b.exprs.int(0);
        let mut sum = b.narrow(g, d, before, n)?;
        for (start, len, at_start) in [(none, before, true), (end, after, false)] {
            if b.exprs.is_int(len, 0) {
                continue;
            }
            let part = b.narrow(g, d, start, len)?;
            let part = b.sum(part, &[d as i64], true)?;
            let part = match at_start {
                true => zero_padded(b, part, d, none, rest)?,
                false => zero_padded(b, part, d, rest, none)?,
            };
            sum = b.add(sum, part)?;
        }
        g = sum;
    }
    Ok(vec![g])
}

/// Rows of the gradient added up by the index that read them; the row of `padding_idx` gets nothing. Sums of halves are
/// kept in `f32`.
fn embedding(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let (grad, indices) = (args.value("grad_output")?, args.value("indices")?);
    let t = b.tensor(grad)?;
    let rows = args.int("num_weights")?;
    let width = *t
        .sizes
        .last()
        .ok_or_else(|| Error::input("the gradient must have a dimension of features"))?;
    let count = b.exprs.product(b.sizes(indices)?);
    let flat = b.view(indices, &[count])?;
    let g = b.widen(grad)?;
    let mut g = b.view(g, &[count, width])?;
    let padding = args.int("padding_idx")?;
    if b.exprs.range(padding).hi >= 0 {
        let used = b.call("aten.ne.Scalar", &[flat.into(), padding.into()])?;
        let used = b.view(used, &[count, b.exprs.int(1)])?;
        g = b.select_or(used, g, 0.0)?;
    }
    if args.bool("scale_grad_by_freq")? {
        // Each row divided by how often its index occurs.
        let zeros = b.full(&[rows], 0.0, DType::I64)?;
        let ones = b.full(&[count], 1.0, DType::I64)?;
        let zero = b.int(0);
        let n = b.call(
            "aten.index_add.default",
            &[zeros.into(), zero.clone(), flat.into(), ones.into()],
        )?;
        let n = b.call("aten.index_select.default", &[n.into(), zero, flat.into()])?;
        let n = b.view(n, &[count, b.exprs.int(1)])?;
        g = b.div(g, n)?;
    }
    let dtype = b.dtype(g)?;
    let zeros = b.full(&[rows, width], 0.0, dtype)?;
    let zero = b.int(0);
    let sum = b.call(
        "aten.index_add.default",
        &[zeros.into(), zero, flat.into(), g.into()],
    )?;
    Ok(vec![b.cast(sum, t.dtype)?])
}

/// Writes at positions of the flattened input.
/// Indices count in row-major order, whatever the strides; `accumulate` adds instead.
fn put(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let (x, index, source) = (
        args.value("self")?,
        args.value("index")?,
        args.value("source")?,
    );
    let sizes = b.sizes(x)?;
    let numel = b.exprs.product(sizes.iter().copied());
    let flat = b.view(x, &[numel])?;
    let shape = b.sizes(index)?;
    let source = b.view(source, &shape)?;
    let out = b.call(
        "aten.index_put.default",
        &[
            flat.into(),
            Arg::Values(vec![Some(index)]),
            source.into(),
            args.bool("accumulate")?.into(),
        ],
    )?;
    Ok(vec![b.view(out, &sizes)?])
}

pub const ROWS: &[Row] = &[
    row(
        "aten.slice_backward.default",
        "(Tensor grad_output, SymInt[] input_sizes, int dim, SymInt start, SymInt end, SymInt step) -> Tensor",
        slice,
        "(f32[3,3], [3,8], 1, 1, 7, 2)",
    ),
    row(
        "aten.select_backward.default",
        "(Tensor grad_output, SymInt[] input_sizes, int dim, SymInt index) -> Tensor",
        select,
        "(f32[3], [3,8], 1, -1)",
    ),
    row(
        "aten.diagonal_backward.default",
        "(Tensor grad_output, SymInt[] input_sizes, int offset, int dim1, int dim2) -> Tensor",
        diagonal,
        "(f32[2,3], [2,3,4], 1, 1, 2)",
    ),
    Row {
        name: "aten.unfold_backward.default",
        schema: "(Tensor grad_in, SymInt[] input_sizes, int dim, int size, int step) -> Tensor",
        meta: Meta::Fn(unfold_meta),
        route: Route::Lower(unfold),
        example: "(f32[2,3,3], [2,8], 1, 3, 2)",
        props: &[],
    },
    Row {
        name: "aten.col2im.default",
        schema: "(Tensor self, SymInt[2] output_size, int[2] kernel_size, int[2] dilation, int[2] padding, int[2] stride) -> Tensor",
        meta: Meta::Fn(|c| {
            let t = c.tensor("self")?;
            meta::one(c.exprs, t.dtype, image_sizes(c, &t.sizes)?)
        }),
        route: Route::Lower(col2im),
        example: "(f32[2,18,12], [6,5], [2,3], [2,1], [1,0], [1,2])",
        props: &[],
    },
    row(
        "aten.reflection_pad1d_backward.default",
        "(Tensor grad_output, Tensor self, SymInt[2] padding) -> Tensor",
        reflection_pad,
        "(f32[2,7], f32[2,4], [2,1])",
    ),
    row(
        "aten.reflection_pad2d_backward.default",
        "(Tensor grad_output, Tensor self, SymInt[4] padding) -> Tensor",
        reflection_pad,
        "(f32[2,3,6,9], f32[2,3,4,4], [3,2,0,2])",
    ),
    row(
        "aten.reflection_pad3d_backward.default",
        "(Tensor grad_output, Tensor self, SymInt[6] padding) -> Tensor",
        reflection_pad,
        "(f32[2,5,4,5], f32[2,3,3,3], [1,1,0,1,1,1])",
    ),
    row(
        "aten.replication_pad1d_backward.default",
        "(Tensor grad_output, Tensor self, SymInt[2] padding) -> Tensor",
        replication_pad,
        "(f32[2,9], f32[2,4], [2,3])",
    ),
    row(
        "aten.replication_pad2d_backward.default",
        "(Tensor grad_output, Tensor self, SymInt[4] padding) -> Tensor",
        replication_pad,
        "(f32[2,3,6,9], f32[2,3,4,4], [3,2,0,2])",
    ),
    row(
        "aten.replication_pad3d_backward.default",
        "(Tensor grad_output, Tensor self, SymInt[6] padding) -> Tensor",
        replication_pad,
        "(f32[2,5,4,5], f32[2,3,3,3], [1,1,0,1,1,1])",
    ),
    row(
        "aten.embedding_dense_backward.default",
        "(Tensor grad_output, Tensor indices, SymInt num_weights, SymInt padding_idx, bool scale_grad_by_freq) -> Tensor",
        embedding,
        "(f32[2,5,3], i64[2,5]{0:3}, 6, 1, true)",
    ),
    row(
        "aten.put.default",
        "(Tensor self, Tensor index, Tensor source, bool accumulate=False) -> Tensor",
        put,
        "(f32[3,4], i64[5]{-12:11}, f32[5], true)",
    ),
];
