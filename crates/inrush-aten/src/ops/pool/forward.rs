//! Pooling: reductions over windows.
//!
//! A pool is a reduction over the taps of a window: one parallel axis per dimension of the result,
//! one reduction axis per spatial dimension of the window.
//!
//! ```text
//! max_pool2d(x: f32[1,8,7,7], [3,3], [2,2], [1,1])
//!   for i0 in 1, i1 in 8, i2 in 4, i3 in 4:
//!     y = max over r0 in 3, r1 in 3 of x[i0, i1, 2 * i2 - 1 + r0, 2 * i3 - 1 + r1]   masked
//! ```
//!
//! Padding is a mask with the reduction's identity as fill value; it is not stored. Where greatest
//! elements need their positions, a window of few taps is unrolled: value and position are then
//! found together by selects in vector lanes, and no argument-reduction of 64 bits is needed.
//!
//! Adaptive pools have windows whose bounds depend on the output index. Their loops run over the
//! largest window, and taps beyond a window's end are masked.

use crate::ops::conv::depthwise::choices;
use crate::ops::lowered;
use crate::ops::padding::{in_bounds, load_or};
use crate::ops::window::{Window, adaptive_bounds, adaptive_kernel, per_dimension};
use crate::props::Prop;
use crate::{Args, BodyBuilder, Call, Lower, Processor, Row, Tensor, meta};
use inrush_base::{DType, Error, Result, Scalar};
use inrush_expr::{Expr, Exprs};
use inrush_graph::Type;
use inrush_loops::{ReduceOp, ScalarOp, StmtId};

/// Returns the number of spatial dimensions.
pub(in crate::ops) fn spatial(args: &Args) -> Result<usize> {
    let row = args.op.row;
    row.spatial().ok_or_else(|| {
        Error::internal(format!(
            "the row of {} lacks the number of spatial dimensions",
            row.name
        ))
    })
}

/// The windows of a pool of fixed window size.
pub(in crate::ops) struct Pool {
    /// One for each spatial dimension.
    pub windows: Vec<Window>,
    /// Sizes of the spatial dimensions of the result.
    pub output: Vec<Expr>,
    /// Dimensions before the spatial ones.
    /// Batch and channels, or channels only: 1 or 2 dimensions.
    pub lead: usize,
}

impl Pool {
    /// Reads `kernel_size`, `stride`, `padding`, `dilation` and `ceil_mode` of a call on an input
    /// of sizes `x`. A missing stride is the kernel's size.
    pub fn new(args: &Args, x: &[Expr]) -> Result<Pool> {
        let exprs = args.exprs;
        let spatial = spatial(args)?;
        let lead = x
            .len()
            .checked_sub(spatial)
            // A batch of images or one image; the channels are always there.
            .filter(|l| *l > 0 && *l < 3)
            .ok_or_else(|| Error::input(format!("input of rank {} to a pool", x.len())))?;
        let list = |name: &str| per_dimension(name, args.ints(name)?, spatial);
        let kernel = list("kernel_size")?;
        let stride = match args.ints("stride")? {
            [] => kernel.clone(),
            s => per_dimension("stride", s, spatial)?,
        };
        let padding = list("padding")?;
        let dilation = match args.op.schema().position("dilation") {
            Some(_) => list("dilation")?,
            None => vec![exprs.int(1); spatial],
        };
        if !stride
            .iter()
            .chain(&dilation)
            .all(|e| exprs.range(*e).lo > 0)
        {
            return Err(Error::input("stride and dilation must be positive"));
        }
        let windows: Vec<Window> = (0..spatial)
            .map(|d| Window {
                input: x[lead + d],
                kernel: kernel[d],
                stride: stride[d],
                dilation: dilation[d],
                before: padding[d],
                after: padding[d],
            })
            .collect();
        if args.op.schema().position("divisor_override").is_some()
            && let Some(divisor) = args.opt_int("divisor_override")?
            && exprs.is_int(divisor, 0)
        {
            return Err(Error::input("`divisor_override` must not be zero"));
        }
        let ceil = args.bool("ceil_mode")?;
        let output = windows.iter().map(|w| w.output(exprs, ceil)).collect();
        Ok(Pool {
            windows,
            output,
            lead,
        })
    }

    /// Returns the sizes of the result.
    pub fn sizes(&self, x: &[Expr]) -> Vec<Expr> {
        [&x[..self.lead], &self.output].concat()
    }

    /// Taps of a window in each dimension.
    fn kernel(&self) -> Vec<Expr> {
        self.windows.iter().map(|w| w.kernel).collect()
    }

    /// Index of each input dimension at the window taps `taps` of the output point `outer`, and whether it is inside.
    fn source(
        &self,
        body: &mut BodyBuilder,
        outer: &[Expr],
        taps: &[Expr],
    ) -> (Vec<Expr>, Option<StmtId>) {
        let exprs = body.exprs;
        let mut at = outer[..self.lead].to_vec();
        let mut checks = Vec::new();
        for ((w, o), tap) in self.windows.iter().zip(&outer[self.lead..]).zip(taps) {
            let p = w.position(exprs, *o, *tap);
            checks.push((p, w.input));
            at.push(p);
        }
        let mask = in_bounds(body, &checks);
        (at, mask)
    }
}

/// The value that loses against every other.
fn lowest(dtype: DType) -> Scalar {
    match dtype.int_range() {
        Some((lo, _)) => Scalar::Int(lo as i64),
        None => Scalar::Float(f64::NEG_INFINITY),
    }
}

/// An integer operation on two `i64` values.
fn int_op(body: &mut BodyBuilder, op: ScalarOp, a: StmtId, b: StmtId) -> StmtId {
    body.op(op, &[a, b])
}

/// The number of the tap that a pool's index names: of the greatest element the first, but of several NaNs the last.
fn winning_tap(body: &mut BodyBuilder, v: StmtId, kernel: &[Expr], taps: &[Expr]) -> StmtId {
    let greatest = body.reduce(ReduceOp::ArgMax, v);
    if !body.dtype(v).is_float() {
        return greatest;
    }
    // Eager's loop replaces its maximum by every NaN that it meets, so the last one stays.
    let number = crate::View::ravel(body.exprs, taps, kernel);
    let number = body.index_value(number);
    let none = body.constant(Scalar::Int(-1), DType::I64);
    let nan = body.op(ScalarOp::IsNan, &[v]);
    let nan = body.select(nan, number, none);
    let nan = body.reduce(ReduceOp::Max, nan);
    let found = body.op(ScalarOp::Gt, &[nan, none]);
    body.select(found, nan, greatest)
}

/// Returns the row-major position in the input's spatial dimensions of tap number `tap` (row-major
/// over the taps of a window). `start` and `step` give the position of tap `k` per dimension. In a
/// window of minus infinities the first tap may be in the padding: the first one inside the input
/// replaces it.
fn flat_position(
    body: &mut BodyBuilder,
    tap: StmtId,
    kernel: &[Expr],
    input: &[Expr],
    start: &[Expr],
    step: &[Expr],
) -> StmtId {
    // Mixed-radix digits of the tap's number, last dimension first.
    let mut rest = tap;
    let mut digits = Vec::with_capacity(kernel.len());
    for (d, k) in kernel.iter().enumerate().rev() {
        if d == 0 {
            digits.push(rest);
            break;
        }
        let size = body.index_value(*k);
        digits.push(int_op(body, ScalarOp::Remainder, rest, size));
        rest = int_op(body, ScalarOp::FloorDiv, rest, size);
    }
    digits.reverse();
    let mut flat: Option<StmtId> = None;
    for (d, digit) in digits.into_iter().enumerate() {
        // Taps in the padding are filled with the lowest value and lose, unless all elements are
        // that value.
        let padded = body.exprs.range(start[d]).lo < 0;
        let first = body.exprs.modulo(start[d], step[d]);
        let step = body.index_value(step[d]);
        let start = body.index_value(start[d]);
        let moved = int_op(body, ScalarOp::Mul, digit, step);
        let mut place = int_op(body, ScalarOp::Add, moved, start);
        if padded {
            let first = body.index_value(first);
            let zero = body.constant(Scalar::Int(0), DType::I64);
            let outside = body.op(ScalarOp::Lt, &[place, zero]);
            place = body.select(outside, first, place);
        }
        flat = Some(match flat {
            None => place,
            Some(f) => {
                let size = body.index_value(input[d]);
                let scaled = int_op(body, ScalarOp::Mul, f, size);
                int_op(body, ScalarOp::Add, scaled, place)
            }
        });
    }
    flat.unwrap_or(tap)
}

/// Taps of a window that a body looks for the greatest in one after the other.
/// Each tap costs a load, a test for NaN, a comparison and two selects.
const MOST_TAPS: i64 = 32;

/// The taps of a window of few, if lanes are to hold a position as narrow as a value: then the greatest element and its place
/// are found together, tap by tap.
/// Positions must fit into 32 bits. Other cases keep the reductions.
fn few_taps(lw: &Lower, x: &Tensor, kernel: &[Expr], input: &[Expr]) -> Option<Vec<Vec<i64>>> {
    let known =
        |all: &[Expr]| -> Option<Vec<i64>> { all.iter().map(|n| lw.exprs.as_int(*n)).collect() };
    let product = |all: &[i64]| all.iter().copied().fold(1, i64::saturating_mul);
    let (kernel, input) = (known(kernel)?, known(input)?);
    let few = (1..=MOST_TAPS).contains(&product(&kernel)) && product(&input) <= i32::MAX.into();
    if lw.processor != Processor::Cpu || !x.dtype.is_float() || !few {
        return None;
    }
    let each: Vec<Vec<i64>> = kernel.iter().map(|k| (0..*k).collect()).collect();
    Some(choices(&each))
}

/// The greatest of some elements, each with its position, and where it is: of equal ones the first, but of several NaNs the
/// last. `first` is the position where all are minus infinity.
/// The position is kept as `i32`, half the width of the result's, so that it fills as many lanes as
/// a value of `f32`.
fn greatest(body: &mut BodyBuilder, taps: &[(StmtId, Expr)], first: Expr) -> (StmtId, StmtId) {
    let short = |body: &mut BodyBuilder, e: Expr| {
        let v = body.index_value(e);
        body.cast(v, DType::I32)
    };
    let (mut most, mut place) = (taps[0].0, short(body, first));
    for (k, (v, at)) in taps.iter().enumerate() {
        let at = short(body, *at);
        let nan = body.op(ScalarOp::IsNan, &[*v]);
        let wins = match k {
            0 => nan,
            _ => {
                let more = body.op(ScalarOp::Gt, &[*v, most]);
                body.op(ScalarOp::Or, &[more, nan])
            }
        };
        place = body.select(wins, at, place);
        most = body.select(wins, *v, most);
    }
    (most, body.cast(place, DType::I64))
}

/// The greatest element of each window and, for operators with two results, its position.
fn max_pool<'g>(lw: &mut Lower<'g>, call: &Call<'g>) -> Result<Vec<Tensor>> {
    let x = lw.arg(call, "self")?;
    let pool = Pool::new(call, &x.sizes)?;
    let sizes = pool.sizes(&x.sizes);
    let exprs = lw.exprs;
    let input = &x.sizes[pool.lead..];
    let mut body = lw.body(&sizes);
    // A caller that ignores positions (inference through the overload with indices) gets the plain
    // form.
    if call.outs.get(1).is_some_and(|v| lw.is_read(*v))
        && let Some(taps) = few_taps(lw, &x, &pool.kernel(), input)
    {
        let outer = body.outer();
        let mut found = Vec::new();
        for tap in taps {
            let tap: Vec<Expr> = tap.iter().map(|t| exprs.int(*t)).collect();
            let (at, mask) = pool.source(&mut body, &outer, &tap);
            let v = load_or(&mut body, &x, &at, mask, lowest(x.dtype.compute()));
            found.push((v, crate::View::ravel(exprs, &at[pool.lead..], input)));
        }
        // The first tap inside of the image.
        let first: Vec<Expr> = (pool.windows.iter().zip(&outer[pool.lead..]))
            .map(|(w, o)| {
                let start = w.position(exprs, *o, exprs.int(0));
                // Taps before the image, as a number that is not positive.
                let before = exprs.min(exprs.floordiv(start, w.dilation), exprs.int(0));
                exprs.sub(start, exprs.mul(before, w.dilation))
            })
            .collect();
        let first = crate::View::ravel(exprs, &first, input);
        let found = greatest(&mut body, &found, first);
        return Ok(both(lw, body, found, x.dtype, &sizes));
    }
    let taps = body.reduce_axes(&pool.kernel());
    let outer = body.outer();
    let (at, mask) = pool.source(&mut body, &outer, &taps);
    let v = load_or(&mut body, &x, &at, mask, lowest(x.dtype.compute()));
    let max = body.reduce(ReduceOp::Max, v);
    let values = lw.temp(x.dtype, &sizes);
    let stored = body.cast_for_store(max, x.dtype);
    body.store(values.buf, &outer, stored);
    if call.op.schema().returns.len() == 1 {
        lw.push(body);
        return Ok(vec![values]);
    }
    let tap = winning_tap(&mut body, v, &pool.kernel(), &taps);
    let start: Vec<Expr> = pool
        .windows
        .iter()
        .zip(&outer[pool.lead..])
        .map(|(w, o)| w.position(exprs, *o, exprs.int(0)))
        .collect();
    let of = |f: fn(&Window) -> Expr| -> Vec<Expr> { pool.windows.iter().map(f).collect() };
    let flat = flat_position(
        &mut body,
        tap,
        &pool.kernel(),
        &of(|w| w.input),
        &start,
        &of(|w| w.dilation),
    );
    let indices = lw.temp(DType::I64, &sizes);
    body.store(indices.buf, &outer, flat);
    lw.push(body);
    Ok(vec![values, indices])
}

/// Stores values and their positions.
/// One body stores both results, so that the window is read once.
fn both<'g>(
    lw: &mut Lower<'g>,
    mut body: BodyBuilder<'g>,
    (value, place): (StmtId, StmtId),
    dtype: DType,
    sizes: &[Expr],
) -> Vec<Tensor> {
    let (values, indices) = (lw.temp(dtype, sizes), lw.temp(DType::I64, sizes));
    let outer = body.outer();
    let stored = body.cast_for_store(value, dtype);
    body.store(values.buf, &outer, stored);
    body.store(indices.buf, &outer, place);
    lw.push(body);
    vec![values, indices]
}

/// Types of pools with a window of fixed size.
fn pool_meta(call: &Call) -> Result<Vec<Type>> {
    let t = call.tensor("self")?;
    let sizes = Pool::new(call, &t.sizes)?.sizes(&t.sizes);
    Ok(typed(call, t.dtype, sizes))
}

/// The pooled values and, where the operator returns them, the positions.
fn typed(call: &Call, dtype: DType, sizes: Vec<Expr>) -> Vec<Type> {
    let mut out = vec![meta::tensor(call.exprs, dtype, sizes.clone())];
    if call.op.schema().returns.len() > 1 {
        out.push(meta::tensor(call.exprs, DType::I64, sizes));
    }
    out
}

/// Sum of each window over its number of elements.
fn avg_pool<'g>(lw: &mut Lower<'g>, call: &Call<'g>) -> Result<Vec<Tensor>> {
    let x = lw.arg(call, "self")?;
    let pool = Pool::new(call, &x.sizes)?;
    let sizes = pool.sizes(&x.sizes);
    let exprs = lw.exprs;
    let mut body = lw.body(&sizes);
    let taps = body.reduce_axes(&pool.kernel());
    let outer = body.outer();
    let (at, mask) = pool.source(&mut body, &outer, &taps);
    let v = load_or(&mut body, &x, &at, mask, Scalar::Int(0));
    let sum = body.reduce(ReduceOp::Sum, v);
    let divisor = match call.op.schema().position("divisor_override") {
        Some(_) => call.opt_int("divisor_override")?,
        None => None,
    };
    let padding_counts = call.bool("count_include_pad")?;
    let count = divisor.unwrap_or_else(|| {
        // Windows that reach beyond the padding, as `ceil_mode` allows, count no element there.
        exprs.product(pool.windows.iter().zip(&outer[pool.lead..]).map(|(w, o)| {
            let start = w.position(exprs, *o, exprs.int(0));
            let end = exprs.add(start, w.kernel);
            let limit = |after: Expr| exprs.min(end, exprs.add(w.input, after));
            if padding_counts {
                exprs.sub(limit(w.after), start)
            } else {
                exprs.sub(limit(exprs.int(0)), exprs.max(start, exprs.int(0)))
            }
        }))
    });
    let value = divide(&mut body, sum, count);
    Ok(vec![lw.store_new(body, value, x.dtype, &sizes)])
}

/// `sum / count`, rounded as the dtype of `sum` does.
fn divide(body: &mut BodyBuilder, sum: StmtId, count: Expr) -> StmtId {
    divide_by_all(body, sum, &[count])
}

/// `sum` over the product of `sizes`. Those that are not known are multiplied as values: a product of sums would be written out
/// term by term.
/// Integers divide towards zero, as eager's do.
pub(in crate::ops) fn divide_by_all(body: &mut BodyBuilder, sum: StmtId, sizes: &[Expr]) -> StmtId {
    let dtype = body.dtype(sum);
    let op = if dtype.is_float() {
        ScalarOp::Div
    } else {
        ScalarOp::TruncDiv
    };
    let exprs = body.exprs;
    let known = (sizes.iter()).try_fold(1i64, |n, s| n.checked_mul(exprs.as_int(*s)?));
    let count = match known {
        Some(n) => body.constant(Scalar::Int(n), dtype),
        None => {
            let values: Vec<StmtId> = sizes.iter().map(|s| body.index_value(*s)).collect();
            let n = values[1..]
                .iter()
                .fold(values[0], |n, s| int_op(body, ScalarOp::Mul, n, *s));
            body.cast(n, dtype)
        }
    };
    body.op(op, &[sum, count])
}

/// The windows of an adaptive pool, whose sizes differ by one at most.
pub(in crate::ops) struct Adaptive {
    /// Spatial sizes of the input.
    pub input: Vec<Expr>,
    pub output: Vec<Expr>,
    /// Dimensions before the spatial ones.
    pub lead: usize,
}

impl Adaptive {
    /// Reads `output_size` of a call on an input of sizes `x`.
    fn new(args: &Args, x: &[Expr]) -> Result<Adaptive> {
        let spatial = spatial(args)?;
        let lead = x
            .len()
            .checked_sub(spatial)
            .filter(|l| *l > 0 && *l < 3)
            .ok_or_else(|| Error::input(format!("input of rank {} to a pool", x.len())))?;
        let output = args.ints("output_size")?.to_vec();
        if output.len() != spatial {
            return Err(args.unsupported("output_size", "needs a size for each dimension"));
        }
        Ok(Adaptive {
            input: x[lead..].to_vec(),
            output,
            lead,
        })
    }

    /// The pool that makes a result of sizes `y` from an input of sizes `x`.
    pub fn of_sizes(args: &Args, x: &[Expr], y: &[Expr]) -> Result<Adaptive> {
        let lead = x.len().checked_sub(spatial(args)?).filter(|l| *l > 0);
        match lead {
            Some(lead) if x.len() == y.len() => Ok(Adaptive {
                input: x[lead..].to_vec(),
                output: y[lead..].to_vec(),
                lead,
            }),
            _ => Err(Error::input("gradient and input of a pool differ in rank")),
        }
    }

    /// Sizes of the result.
    fn sizes(&self, x: &[Expr]) -> Vec<Expr> {
        [&x[..self.lead], &self.output].concat()
    }

    /// Taps of the largest window in each dimension.
    fn kernel(&self, exprs: &Exprs) -> Vec<Expr> {
        self.input
            .iter()
            .zip(&self.output)
            .map(|(i, o)| adaptive_kernel(exprs, *i, *o))
            .collect()
    }

    /// First element and number of elements of the window of output point `outer`, for each dimension.
    pub fn extents(&self, exprs: &Exprs, outer: &[Expr]) -> Vec<(Expr, Expr)> {
        self.input
            .iter()
            .zip(&self.output)
            .zip(&outer[self.lead..])
            .map(|((i, o), at)| match exprs.divide_exact(*i, *o) {
                Some(k) => (exprs.mul(*at, k), k),
                None => {
                    let (start, end) = adaptive_bounds(exprs, *at, *i, *o);
                    (start, exprs.sub(end, start))
                }
            })
            .collect()
    }
}

/// Lowers an adaptive average pool over volumes one dimension at a time: sums of slices first,
/// whose rows are contiguous, then sums of rows and of elements.
fn volumes<'g>(lw: &mut Lower<'g>, pool: &Adaptive, x: &Tensor) -> Tensor {
    let e = lw.exprs;
    let lead = pool.lead;
    let kernel = pool.kernel(e);
    let dtype = x.dtype.compute();
    // One sum over the dimensions `along`, of the input that earlier ones have left.
    let sums = |lw: &mut Lower<'g>, from: &Tensor, along: &[usize], divides: bool| -> Tensor {
        let mut sizes = from.sizes.clone();
        for d in along {
            sizes[lead + d] = pool.output[*d];
        }
        let mut body = lw.body(&sizes);
        let each: Vec<Expr> = along.iter().map(|d| kernel[*d]).collect();
        let taps = body.reduce_axes(&each);
        let outer = body.outer();
        let extents = pool.extents(e, &outer);
        let mut at = outer.clone();
        let mut checks = Vec::new();
        for (d, tap) in along.iter().zip(&taps) {
            let (start, count) = extents[*d];
            at[lead + d] = e.add(start, *tap);
            checks.push((*tap, count));
        }
        let mask = in_bounds(&mut body, &checks);
        let v = load_or(&mut body, from, &at, mask, Scalar::Int(0));
        let sum = body.reduce(ReduceOp::Sum, v);
        if !divides {
            return lw.store_new(body, sum, dtype, &sizes);
        }
        let counts: Vec<Expr> = extents.iter().map(|(_, n)| *n).collect();
        let value = divide_by_all(&mut body, sum, &counts);
        lw.store_new(body, value, x.dtype, &sizes)
    };
    // Only the last sum divides, by the product of all three extents.
    let slices = sums(lw, x, &[0], false);
    let rows = sums(lw, &slices, &[1], false);
    sums(lw, &rows, &[2], true)
}

/// Lowers an adaptive pool: greatest elements with their positions if `max`, else means.
fn adaptive<'g>(lw: &mut Lower<'g>, call: &Call<'g>, max: bool) -> Result<Vec<Tensor>> {
    let x = lw.arg(call, "self")?;
    let pool = Adaptive::new(call, &x.sizes)?;
    let sizes = pool.sizes(&x.sizes);
    let exprs = lw.exprs;
    if pool.output.iter().any(|o| exprs.as_int(*o) == Some(0)) {
        // No windows, whose extents are divided by their number.
        let mut body = lw.body(&sizes);
        let v = body.constant(Scalar::Int(0), x.dtype);
        if !max {
            return Ok(vec![lw.store_new(body, v, x.dtype, &sizes)]);
        }
        let place = body.constant(Scalar::Int(0), DType::I64);
        return Ok(both(lw, body, (v, place), x.dtype, &sizes));
    }
    if !max && pool.output.len() == 3 && lw.processor == Processor::Cpu {
        return Ok(vec![volumes(lw, &pool, &x)]);
    }
    let kernel = pool.kernel(exprs);
    let mut body = lw.body(&sizes);
    if max && let Some(taps) = few_taps(lw, &x, &kernel, &pool.input) {
        let outer = body.outer();
        let extents = pool.extents(exprs, &outer);
        let mut found = Vec::new();
        for tap in taps {
            let mut at = outer[..pool.lead].to_vec();
            let mut checks = Vec::new();
            for ((start, count), tap) in extents.iter().zip(tap) {
                at.push(exprs.add(*start, exprs.int(tap)));
                checks.push((exprs.int(tap), *count));
            }
            let mask = in_bounds(&mut body, &checks);
            let v = load_or(&mut body, &x, &at, mask, lowest(x.dtype.compute()));
            found.push((v, crate::View::ravel(exprs, &at[pool.lead..], &pool.input)));
        }
        let first = found[0].1;
        let found = greatest(&mut body, &found, first);
        return Ok(both(lw, body, found, x.dtype, &sizes));
    }
    let taps = body.reduce_axes(&kernel);
    let outer = body.outer();
    // The window's true extent bounds the taps; the loop has those of the largest window.
    let extents = pool.extents(exprs, &outer);
    let mut at = outer[..pool.lead].to_vec();
    let mut checks = Vec::new();
    for ((start, count), tap) in extents.iter().zip(&taps) {
        at.push(exprs.add(*start, *tap));
        checks.push((*tap, *count));
    }
    let mask = in_bounds(&mut body, &checks);
    if !max {
        let v = load_or(&mut body, &x, &at, mask, Scalar::Int(0));
        let sum = body.reduce(ReduceOp::Sum, v);
        let counts: Vec<Expr> = extents.iter().map(|(_, n)| *n).collect();
        let value = divide_by_all(&mut body, sum, &counts);
        return Ok(vec![lw.store_new(body, value, x.dtype, &sizes)]);
    }
    let v = load_or(&mut body, &x, &at, mask, lowest(x.dtype.compute()));
    let greatest = body.reduce(ReduceOp::Max, v);
    let tap = winning_tap(&mut body, v, &kernel, &taps);
    let values = lw.temp(x.dtype, &sizes);
    let stored = body.cast_for_store(greatest, x.dtype);
    body.store(values.buf, &outer, stored);
    let start: Vec<Expr> = extents.iter().map(|(s, _)| *s).collect();
    let ones = vec![exprs.int(1); start.len()];
    let flat = flat_position(&mut body, tap, &kernel, &pool.input, &start, &ones);
    let indices = lw.temp(DType::I64, &sizes);
    body.store(indices.buf, &outer, flat);
    lw.push(body);
    Ok(vec![values, indices])
}

/// Types of adaptive pools.
fn adaptive_meta(call: &Call) -> Result<Vec<Type>> {
    let t = call.tensor("self")?;
    let sizes = Adaptive::new(call, &t.sizes)?.sizes(&t.sizes);
    Ok(typed(call, t.dtype, sizes))
}

pub const ROWS: &[Row] = &[
    lowered(
        "aten.max_pool1d.default",
        "(Tensor self, int[1] kernel_size, int[1] stride=[], int[1] padding=0, int[1] dilation=1, bool ceil_mode=False) -> Tensor",
        pool_meta,
        max_pool,
        "(f32[2,3,8], [3], [2], [1])",
    ).with(&[Prop::Spatial(1)]),
    lowered(
        "aten.max_pool2d.default",
        "(Tensor self, int[2] kernel_size, int[2] stride=[], int[2] padding=0, int[2] dilation=1, bool ceil_mode=False) -> Tensor",
        pool_meta,
        max_pool,
        "(f32[1,2,6,6], [3,3], [2,2], [1,1])",
    ).with(&[Prop::Spatial(2)]),
    lowered(
        "aten.max_pool3d.default",
        "(Tensor self, int[3] kernel_size, int[3] stride=[], int[3] padding=0, int[3] dilation=1, bool ceil_mode=False) -> Tensor",
        pool_meta,
        max_pool,
        "(f32[1,2,4,4,4], [2,2,2])",
    ).with(&[Prop::Spatial(3)]),
    lowered(
        "aten.max_pool1d_with_indices.default",
        "(Tensor self, int[1] kernel_size, int[1] stride=[], int[1] padding=0, int[1] dilation=1, bool ceil_mode=False) -> (Tensor, Tensor)",
        pool_meta,
        max_pool,
        "(f32[2,3,8], [3])",
    ).with(&[Prop::Spatial(1)]),
    lowered(
        "aten.max_pool2d_with_indices.default",
        "(Tensor self, int[2] kernel_size, int[2] stride=[], int[2] padding=0, int[2] dilation=1, bool ceil_mode=False) -> (Tensor, Tensor)",
        pool_meta,
        max_pool,
        "(f32[1,2,7,7], [3,2], [2,2], [1,0], [1,2], true)",
    ).with(&[Prop::Spatial(2)]),
    lowered(
        "aten.max_pool3d_with_indices.default",
        "(Tensor self, int[3] kernel_size, int[3] stride=[], int[3] padding=0, int[3] dilation=1, bool ceil_mode=False) -> (Tensor, Tensor)",
        pool_meta,
        max_pool,
        "(f32[1,2,4,4,4], [2,2,2])",
    ).with(&[Prop::Spatial(3)]),
    lowered(
        "aten.avg_pool1d.default",
        "(Tensor self, int[1] kernel_size, int[1] stride=[], int[1] padding=0, bool ceil_mode=False, bool count_include_pad=True) -> Tensor",
        pool_meta,
        avg_pool,
        "(f32[2,3,8], [3], [2], [1])",
    ).with(&[Prop::Spatial(1)]),
    lowered(
        "aten.avg_pool2d.default",
        "(Tensor self, int[2] kernel_size, int[2] stride=[], int[2] padding=0, bool ceil_mode=False, bool count_include_pad=True, int? divisor_override=None) -> Tensor",
        pool_meta,
        avg_pool,
        "(f32[1,2,7,7], [3,3], [2,2], [1,1], true, false)",
    ).with(&[Prop::Spatial(2)]),
    lowered(
        "aten.avg_pool3d.default",
        "(Tensor self, int[3] kernel_size, int[3] stride=[], int[3] padding=0, bool ceil_mode=False, bool count_include_pad=True, int? divisor_override=None) -> Tensor",
        pool_meta,
        avg_pool,
        "(f32[1,2,4,4,4], [2,2,2])",
    ).with(&[Prop::Spatial(3)]),
    lowered(
        "aten.adaptive_avg_pool1d.default",
        "(Tensor self, int[1] output_size) -> Tensor",
        adaptive_meta,
        |lw, call| adaptive(lw, call, false),
        "(f32[2,3,7], [3])",
    ).with(&[Prop::Spatial(1)]),
    lowered(
        "aten.adaptive_avg_pool2d.default",
        "(Tensor self, SymInt[2] output_size) -> Tensor",
        adaptive_meta,
        |lw, call| adaptive(lw, call, false),
        "(f32[2,3,7,7], [1,1])",
    ).with(&[Prop::Spatial(2)]),
    lowered(
        "aten._adaptive_avg_pool2d.default",
        "(Tensor self, SymInt[2] output_size) -> Tensor",
        adaptive_meta,
        |lw, call| adaptive(lw, call, false),
        "(f32[2,3,7,8], [3,4])",
    ).with(&[Prop::Spatial(2)]),
    lowered(
        "aten.adaptive_avg_pool3d.default",
        "(Tensor self, SymInt[3] output_size) -> Tensor",
        adaptive_meta,
        |lw, call| adaptive(lw, call, false),
        "(f32[1,2,5,4,3], [2,2,2])",
    ).with(&[Prop::Spatial(3)]),
    lowered(
        "aten._adaptive_avg_pool3d.default",
        "(Tensor self, SymInt[3] output_size) -> Tensor",
        adaptive_meta,
        |lw, call| adaptive(lw, call, false),
        "(f32[1,2,5,4,3], [2,2,2])",
    ).with(&[Prop::Spatial(3)]),
    lowered(
        "aten.adaptive_max_pool1d.default",
        "(Tensor self, int[1] output_size) -> (Tensor, Tensor)",
        adaptive_meta,
        |lw, call| adaptive(lw, call, true),
        "(f32[2,3,7], [3])",
    ).with(&[Prop::Spatial(1)]),
    lowered(
        "aten.adaptive_max_pool2d.default",
        "(Tensor self, int[2] output_size) -> (Tensor, Tensor)",
        adaptive_meta,
        |lw, call| adaptive(lw, call, true),
        "(f32[2,3,7,8], [3,4])",
    ).with(&[Prop::Spatial(2)]),
    lowered(
        "aten.adaptive_max_pool3d.default",
        "(Tensor self, int[3] output_size) -> (Tensor, Tensor)",
        adaptive_meta,
        |lw, call| adaptive(lw, call, true),
        "(f32[1,2,5,4,3], [2,2,2])",
    ).with(&[Prop::Spatial(3)]),
];
