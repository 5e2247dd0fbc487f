//! Gradients of losses and of softmax.
//!
//! Each is the derivative of the loss's elements (`slope`) times the incoming gradient. That
//! gradient has one element for reductions to a sum or mean, and broadcasts; for a mean it is
//! divided by the number of elements. `setup` widens halves, and `finish` rounds once.

use crate::ops::B;
use crate::ops::decomposed as row;
use crate::ops::loss::losses::class_dim;
use crate::{Args, Builder, Row};
use inrush_base::{DType, Result, Scalar, promote};
use inrush_graph::{Arg, ValueId};

/// Gradient, input and target as they are computed, and the dtype of the result.
struct Setup {
    grad: ValueId,
    x: ValueId,
    target: ValueId,
    dtype: inrush_base::DType,
}

fn setup(b: B, args: &Args) -> Result<Setup> {
    let (grad, x, target) = (
        args.value("grad_output")?,
        args.value("self")?,
        args.value("target")?,
    );
    let dtype = promote(b.dtype(x)?, b.dtype(target)?);
    let compute = dtype.compute();
    Ok(Setup {
        grad: b.cast(grad, compute)?,
        x: b.cast(x, compute)?,
        target: b.cast(target, compute)?,
        dtype,
    })
}

/// `slope * grad`, over the number of elements where the loss was their mean.
fn finish(b: B, args: &Args, s: &Setup, slope: ValueId) -> Result<Vec<ValueId>> {
    let mut v = b.mul(slope, s.grad)?;
    if args.const_int("reduction")? == 1 {
        let sizes = b.sizes(slope)?;
        // A symbolic number of elements is an operand like others.
        let count = b.exprs.product(sizes);
        v = b.div(v, count)?;
    }
    Ok(vec![b.cast(v, s.dtype)?])
}

/// `2 (x - t)`.
fn mse(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let s = setup(b, args)?;
    let d = b.sub(s.x, s.target)?;
    let slope = b.scale(d, 2.0)?;
    finish(b, args, &s, slope)
}

/// `scale * d` between the knees, `steep` with the sign of `d` outside.
fn knee(b: B, args: &Args, s: &Setup, d: ValueId, numbers: [f64; 3]) -> Result<Vec<ValueId>> {
    let [knee, scale, steep] = numbers;
    let middle = b.scale(d, scale)?;
    let far_up = b.by("aten.ge.Scalar", d, knee)?;
    let far_down = b.by("aten.le.Scalar", d, -knee)?;
    let up = b.call(
        "aten.where.ScalarSelf",
        &[far_up.into(), Arg::Float(steep), middle.into()],
    )?;
    let slope = b.call(
        "aten.where.ScalarSelf",
        &[far_down.into(), Arg::Float(-steep), up.into()],
    )?;
    finish(b, args, s, slope)
}

/// `(x - t) / beta` between `-beta` and `beta`, else the sign.
fn smooth_l1(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let beta = args.float("beta")?;
    // The limit of a narrow knee: an absolute difference, whose slope at 0 is 0.
    if beta == 0.0 {
        let s = setup(b, args)?;
        let d = b.sub(s.x, s.target)?;
        let slope = b.unary("aten.sign.default", d)?;
        return finish(b, args, &s, slope);
    }
    let s = setup(b, args)?;
    let d = b.sub(s.x, s.target)?;
    knee(b, args, &s, d, [beta, 1.0 / beta, 1.0])
}

/// `x - t` between `-delta` and `delta`, else `delta` with its sign.
fn huber(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    // Eager rounds the difference and `delta` to the dtype of halves.
    let s = setup(b, args)?;
    let delta = Scalar::Float(args.float("delta")?);
    let delta = delta.convert(s.dtype).as_f64();
    let d = b.sub(s.x, s.target)?;
    let d = b.cast(d, s.dtype)?;
    let d = b.widen(d)?;
    knee(b, args, &s, d, [delta, 1.0, delta])
}

/// `(x - t) / max(x (1 - x), 1e-12)`.
fn binary_cross_entropy(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let s = setup(b, args)?;
    let d = b.sub(s.x, s.target)?;
    let rest = b.call("aten.rsub.Scalar", &[s.x.into(), Arg::Float(1.0)])?;
    let spread = b.mul(rest, s.x)?;
    // Eager's bound, for probabilities of 0 and 1.
    let spread = b.by("aten.clamp_min.default", spread, 1e-12)?;
    let mut slope = b.div(d, spread)?;
    if let Some(w) = args.opt_value("weight")? {
        let w = b.widen(w)?;
        slope = b.mul(slope, w)?;
    }
    finish(b, args, &s, slope)
}

/// `log(1 + exp(-t x))`.
fn soft_margin(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let (x, t) = (args.value("self")?, args.value("target")?);
    let dtype = b.dtype(x)?;
    let (x, t) = (b.widen(x)?, b.widen(t)?);
    let tx = b.mul(t, x)?;
    let minus = b.unary("aten.neg.default", tx)?;
    let e = b.unary("aten.exp.default", minus)?;
    let loss = b.unary("aten.log1p.default", e)?;
    crate::ops::loss::losses::reduced(b, args, loss, dtype)
}

/// `-t z / (1 + z)` with `z = exp(-t x)`.
fn soft_margin_backward(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let s = setup(b, args)?;
    let minus = b.unary("aten.neg.default", s.target)?;
    let v = b.mul(minus, s.x)?;
    let z = b.unary("aten.exp.default", v)?;
    let over = b.by("aten.add.Tensor", z, 1.0)?;
    let top = b.mul(minus, z)?;
    let slope = b.div(top, over)?;
    finish(b, args, &s, slope)
}

/// Minus the weight of the target at the target's class, 0 at all others: a comparison for each element, so that nothing
/// is scattered.
fn nll(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let (x, target) = (args.value("self")?, args.value("target")?);
    let grad = args.value("grad_output")?;
    let t = b.tensor(x)?;
    let dim = class_dim(t.rank());
    let classes = t.sizes.get(dim).copied().unwrap_or(b.exprs.int(1));
    let along = |b: &Builder| {
        let mut shape = vec![b.exprs.int(1); t.rank() - dim];
        if let Some(s) = shape.first_mut() {
            *s = classes;
        }
        shape
    };
    // Per target: what its element gets.
    let mut per = b.sizes(target)?;
    // The target lacks the dimension of classes; a single sample has a target without
    // dimensions.
    if per.len() + 1 == t.rank() {
        per.insert(dim, b.exprs.int(1));
    }
    let mut g = b.widen(grad)?;
    match args.const_int("reduction")? {
        0 => g = b.view(g, &per)?,
        1 => {
            // The forward direction saved the sum of weights by which it divided.
            let total = b.widen(args.value("total_weight")?)?;
            g = b.div(g, total)?;
        }
        _ => {}
    }
    let g = b.unary("aten.neg.default", g)?;
    let ignore = args.int("ignore_index")?;
    let target = b.view(target, &per)?;
    // Compared in 32 bits, as wide as what is selected: classes that do not fit are none.
    let none = b.exprs.int(-1);
    let ignored = b.call("aten.eq.Scalar", &[target.into(), ignore.into()])?;
    let place = b.call(
        "aten.where.ScalarSelf",
        &[ignored.into(), none.into(), target.into()],
    )?;
    let most = b.exprs.int(i64::from(i32::MAX));
    let place = b.call(
        "aten.clamp.default",
        &[place.into(), none.into(), most.into()],
    )?;
    let place = b.cast(place, DType::I32)?;
    let numbers = b.call("aten.arange.default", &[classes.into()])?;
    let numbers = b.cast(numbers, DType::I32)?;
    let numbers = b.view(numbers, &along(b))?;
    let hit = b.call("aten.eq.Tensor", &[numbers.into(), place.into()])?;
    let mut v = b.select_or(hit, g, 0.0)?;
    if let Some(w) = args.opt_value("weight")? {
        let w = b.widen(w)?;
        let w = b.view(w, &along(b))?;
        v = b.mul(v, w)?;
    }
    Ok(vec![b.cast(v, t.dtype)?])
}

/// Gradient and result of a softmax as they are computed, the summed dimension and the dtype of the input.
fn softmax_parts(b: B, args: &Args) -> Result<(ValueId, ValueId, [i64; 1], inrush_base::DType)> {
    let (grad, y) = (args.value("grad_output")?, args.value("output")?);
    let dim = args.dim("dim", b.rank(y)?)? as i64;
    let dtype = match args.dtype("input_dtype")? {
        Some(d) => d,
        None => b.dtype(grad)?,
    };
    Ok((b.widen(grad)?, b.widen(y)?, [dim], dtype))
}

/// `(g - sum(g y)) y`.
/// From the result `y` alone; the input is not kept.
fn softmax(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let (g, y, dims, dtype) = softmax_parts(b, args)?;
    let gy = b.mul(g, y)?;
    // A number without dimensions is its own sum.
    let total = if b.rank(gy)? == 0 {
        gy
    } else {
        b.sum(gy, &dims, true)?
    };
    let v = b.sub(g, total)?;
    let v = b.mul(v, y)?;
    Ok(vec![b.cast(v, dtype)?])
}

/// `g - exp(y) sum(g)`.
/// `exp(y)` is the softmax of the input.
fn log_softmax(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let (g, y, dims, dtype) = softmax_parts(b, args)?;
    let total = if b.rank(g)? == 0 {
        g
    } else {
        b.sum(g, &dims, true)?
    };
    let e = b.unary("aten.exp.default", y)?;
    let part = b.mul(e, total)?;
    let v = b.sub(g, part)?;
    Ok(vec![b.cast(v, dtype)?])
}

pub const ROWS: &[Row] = &[
    row(
        "aten.mse_loss_backward.default",
        "(Tensor grad_output, Tensor self, Tensor target, int reduction) -> Tensor",
        mse,
        "(f32[], f32[3,4], f32[3,4], 1)",
    ),
    row(
        "aten.smooth_l1_loss_backward.default",
        "(Tensor grad_output, Tensor self, Tensor target, int reduction, float beta) -> Tensor",
        smooth_l1,
        "(f32[3,4], f32[3,4], f32[3,4], 0, 0.5)",
    ),
    row(
        "aten.huber_loss_backward.default",
        "(Tensor grad_output, Tensor self, Tensor target, int reduction, float delta) -> Tensor",
        huber,
        "(f32[], f32[3,4], f32[3,4], 2, 0.7)",
    ),
    row(
        "aten.binary_cross_entropy_backward.default",
        "(Tensor grad_output, Tensor self, Tensor target, Tensor? weight=None, int reduction=Mean) -> Tensor",
        binary_cross_entropy,
        "(f32[], f32[3,4]{0.01:0.99}, f32[3,4]{0.0:1.0}, f32[4])",
    ),
    row(
        "aten.soft_margin_loss.default",
        "(Tensor self, Tensor target, int reduction=Mean) -> Tensor",
        soft_margin,
        "(f32[3,4], f32[3,4])",
    ),
    row(
        "aten.soft_margin_loss_backward.default",
        "(Tensor grad_output, Tensor self, Tensor target, int reduction) -> Tensor",
        soft_margin_backward,
        "(f32[], f32[3,4], f32[3,4], 1)",
    ),
    row(
        "aten.nll_loss_backward.default",
        "(Tensor grad_output, Tensor self, Tensor target, Tensor? weight, int reduction, SymInt ignore_index, Tensor total_weight) -> Tensor",
        nll,
        "(f32[], f32[5,4], i64[5]{0:3}, f32[4], 1, 2, f32[]{1:2})",
    ),
    row(
        "aten.nll_loss2d_backward.default",
        "(Tensor grad_output, Tensor self, Tensor target, Tensor? weight, int reduction, SymInt ignore_index, Tensor total_weight) -> Tensor",
        nll,
        "(f32[2,3,3], f32[2,4,3,3], i64[2,3,3]{0:3}, f32[4], 0, -100, f32[]{1:2})",
    ),
    row(
        "aten._softmax_backward_data.default",
        "(Tensor grad_output, Tensor output, int dim, ScalarType input_dtype) -> Tensor",
        softmax,
        "(f32[3,4], f32[3,4]{0:1}, -1, f32)",
    ),
    row(
        "aten._log_softmax_backward_data.default",
        "(Tensor grad_output, Tensor output, int dim, ScalarType input_dtype) -> Tensor",
        log_softmax,
        "(f32[3,4], f32[3,4]{-4:0}, 0, f32)",
    ),
];
