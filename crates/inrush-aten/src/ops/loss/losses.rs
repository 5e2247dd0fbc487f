//! Losses: an elementwise expression and a reduction, halves in `f32`.
//!
//! Halves are widened once and the result is rounded once, as eager's kernels do, except
//! where a kernel for CPUs rounds each step (`stepwise_knee_loss`).
//!
//! The losses of class numbers (`nll_loss`, `cross_entropy_loss`) gather one log probability
//! per sample:
//!
//! ```text
//! loss[n] = -weight[t[n]] * logs[n, t[n]]        0 where t[n] is ignore_index
//! mean    = sum of loss / sum of weight[t[n]]    over samples that count; NaN if none does
//! ```

use crate::ops::B;
use crate::ops::decomposed as row;
use crate::{Args, Builder, Row};
use inrush_base::{DType, Error, Result, Scalar};
use inrush_expr::Expr;
use inrush_graph::{Arg, ValueId};

/// Input and target in the dtype that the loss is computed in, and the dtype of the result.
fn pair(b: B, args: &Args) -> Result<(ValueId, ValueId, DType)> {
    let (x, t) = (args.value("self")?, args.value("target")?);
    let dtype = inrush_base::promote(b.dtype(x)?, b.dtype(t)?);
    if !dtype.is_float() {
        return Err(Error::input(format!("a loss of dtype {dtype}")));
    }
    // Integer targets promote to the dtype of the input.
    let compute = dtype.compute();
    Ok((b.cast(x, compute)?, b.cast(t, compute)?, dtype))
}

/// The reduction that a call asks for: 0 leaves the elements, 1 is their mean, 2 their sum.
pub(in crate::ops) fn reduced(
    b: B,
    args: &Args,
    loss: ValueId,
    dtype: DType,
) -> Result<Vec<ValueId>> {
    let loss = match args.const_int("reduction")? {
        0 => loss,
        // The mean of no elements is NaN, as in PyTorch.
        1 => {
            let dims: Vec<i64> = (0..b.rank(loss)? as i64).collect();
            b.call("aten.mean.dim", &[loss.into(), b.ints(&dims)])?
        }
        2 => b.total(loss)?,
        _ => return Err(args.unsupported("reduction", "unknown reduction")),
    };
    Ok(vec![b.cast(loss, dtype)?])
}

fn mse_loss(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let (x, t, dtype) = pair(b, args)?;
    let d = b.sub(x, t)?;
    let loss = b.mul(d, d)?;
    reduced(b, args, loss, dtype)
}

fn l1_loss(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let (x, t, dtype) = pair(b, args)?;
    let d = b.sub(x, t)?;
    let loss = b.unary("aten.abs.default", d)?;
    reduced(b, args, loss, dtype)
}

/// Quadratic below `knee`, linear above: `quadratic * d^2` and `linear * (d - knee / 2)`.
fn knee_loss(b: B, args: &Args, knee: f64, quadratic: f64, linear: f64) -> Result<Vec<ValueId>> {
    let (x, t, dtype) = pair(b, args)?;
    let d = b.sub(x, t)?;
    let d = b.unary("aten.abs.default", d)?;
    let square = b.mul(d, d)?;
    let low = b.by("aten.mul.Tensor", square, quadratic)?;
    let moved = b.by("aten.sub.Tensor", d, 0.5 * knee)?;
    let high = b.by("aten.mul.Tensor", moved, linear)?;
    let near = b.by("aten.lt.Scalar", d, knee)?;
    let loss = b.select(near, low, high)?;
    reduced(b, args, loss, dtype)
}

/// A loss with a knee: `d^2 / (2 knee)`, or `d^2 / 2`, below the knee.
#[derive(Copy, Clone, PartialEq, Eq)]
enum Knee {
    SmoothL1,
    Huber,
}

/// The dtype of a loss.
fn own_dtype(b: B, args: &Args) -> Result<DType> {
    let (x, t) = (args.value("self")?, args.value("target")?);
    Ok(inrush_base::promote(b.dtype(x)?, b.dtype(t)?))
}

/// A loss with a knee, the knee and each step rounded to the dtype of halves: eager's kernels for CPUs compute `smooth_l1_loss` of
/// `float16` and `huber_loss` of `bfloat16` so, and each of the other half in `f32`.
fn stepwise_knee_loss(b: B, args: &Args, knee: f64, kind: Knee) -> Result<Vec<ValueId>> {
    let dtype = own_dtype(b, args)?;
    let rounded = |v: f64| Scalar::Float(v).convert(dtype).as_f64();
    let knee = rounded(knee);
    let x = b.cast(args.value("self")?, dtype)?;
    let t = b.cast(args.value("target")?, dtype)?;
    let d = b.sub(x, t)?;
    let d = b.unary("aten.abs.default", d)?;
    let half = b.by("aten.mul.Tensor", d, 0.5)?;
    let mut low = b.mul(half, d)?;
    let mut high = b.by("aten.sub.Tensor", d, rounded(0.5 * knee))?;
    let near = match kind {
        Knee::SmoothL1 => {
            low = b.by("aten.div.Tensor", low, knee)?;
            b.by("aten.lt.Scalar", d, knee)?
        }
        Knee::Huber => {
            high = b.by("aten.mul.Tensor", high, knee)?;
            b.by("aten.le.Scalar", d, knee)?
        }
    };
    let loss = b.select(near, low, high)?;
    let loss = b.widen(loss)?;
    reduced(b, args, loss, dtype)
}

fn smooth_l1_loss(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let beta = args.float("beta")?;
    if beta.is_nan() || beta < 0.0 {
        return Err(Error::input("`beta` below zero"));
    }
    // The quadratic part would divide by zero.
    if beta == 0.0 {
        return l1_loss(b, args);
    }
    if own_dtype(b, args)? == DType::F16 {
        return stepwise_knee_loss(b, args, beta, Knee::SmoothL1);
    }
    knee_loss(b, args, beta, 0.5 / beta, 1.0)
}

fn huber_loss(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let delta = args.float("delta")?;
    if delta.is_nan() || delta <= 0.0 {
        return Err(Error::input("`delta` must be above zero"));
    }
    if own_dtype(b, args)? == DType::BF16 {
        return stepwise_knee_loss(b, args, delta, Knee::Huber);
    }
    knee_loss(b, args, delta, 0.5, delta)
}

/// `loss * weight`, where a weight is given.
fn weighted(b: B, args: &Args, loss: ValueId) -> Result<ValueId> {
    match args.opt_value("weight")? {
        Some(w) => {
            let w = b.widen(w)?;
            b.mul(loss, w)
        }
        None => Ok(loss),
    }
}

/// `-(t log x + (1 - t) log(1 - x))`, logarithms not below -100; of numbers from 0 to 1.
fn binary_cross_entropy(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let (x, t, dtype) = pair(b, args)?;
    let x = b.between(x, Arg::Float(0.0), Arg::Float(1.0))?;
    let t = b.between(t, Arg::Float(0.0), Arg::Float(1.0))?;
    let log = b.unary("aten.log.default", x)?;
    // `log(0)` times a target of 0 would be NaN; PyTorch bounds logarithms by the same
    // number.
    let log = b.by("aten.clamp_min.default", log, -100.0)?;
    let minus = b.unary("aten.neg.default", x)?;
    let other = b.unary("aten.log1p.default", minus)?;
    let other = b.by("aten.clamp_min.default", other, -100.0)?;
    // (t - 1) * other - t * log
    let rest = b.by("aten.sub.Tensor", t, 1.0)?;
    let (a, c) = (b.mul(rest, other)?, b.mul(t, log)?);
    let loss = b.sub(a, c)?;
    let loss = weighted(b, args, loss)?;
    reduced(b, args, loss, dtype)
}

/// `(1 - t) x + p (log(1 + exp(-|x|)) + max(-x, 0))` with `p = 1 + (pos_weight - 1) t`.
/// The form with `|x|` never takes `exp` of a positive number, so that nothing overflows.
fn bce_with_logits(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let (x, t, dtype) = pair(b, args)?;
    let size = b.unary("aten.abs.default", x)?;
    let minus = b.unary("aten.neg.default", size)?;
    let e = b.unary("aten.exp.default", minus)?;
    let log = b.unary("aten.log1p.default", e)?;
    let minus = b.unary("aten.neg.default", x)?;
    let positive = b.unary("aten.relu.default", minus)?;
    let mut soft = b.add(log, positive)?;
    if let Some(w) = args.opt_value("pos_weight")? {
        let w = b.widen(w)?;
        let w = b.by("aten.sub.Tensor", w, 1.0)?;
        let p = b.mul(w, t)?;
        let p = b.by("aten.add.Tensor", p, 1.0)?;
        soft = b.mul(p, soft)?;
    }
    let tx = b.mul(t, x)?;
    let linear = b.sub(x, tx)?;
    let loss = b.add(linear, soft)?;
    let loss = weighted(b, args, loss)?;
    reduced(b, args, loss, dtype)
}

/// `t (log t - x)`, 0 for `t` = 0; with `log_target` `exp(t) (t - x)`.
fn kl_div(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let (x, t, dtype) = pair(b, args)?;
    let loss = if args.bool("log_target")? {
        let (e, d) = (b.unary("aten.exp.default", t)?, b.sub(t, x)?);
        b.mul(e, d)?
    } else {
        // `xlogy` is 0 for `t` = 0, where the product would be NaN.
        let entropy = b.call("aten.xlogy.Tensor", &[t.into(), t.into()])?;
        let cross = b.mul(t, x)?;
        b.sub(entropy, cross)?
    };
    reduced(b, args, loss, dtype)
}

/// For class numbers `target`: what the log probabilities and weights say about each, and which ones count.
struct Picked {
    /// Minus the log probability of the target, times its weight; 0 where the target is ignored.
    loss: ValueId,
    /// The weight of the target; 0 where it is ignored.
    weight: ValueId,
    /// True where the target is not `ignore_index`.
    counts: ValueId,
}

/// The dimension of classes: 1, or 0 for a single sample.
pub(in crate::ops) fn class_dim(rank: usize) -> usize {
    usize::from(rank > 1)
}

/// Reads the log probability and the weight of each target. The gather checks that targets
/// are classes.
fn pick(
    b: B,
    logs: ValueId,
    target: ValueId,
    weight: Option<ValueId>,
    ignore: Expr,
) -> Result<Picked> {
    let sizes = b.sizes(logs)?;
    let dim = class_dim(sizes.len());
    let t = b.tensor(target)?;
    // A class number for each sample: the target has the dimensions of the input but the
    // classes.
    if t.dtype != DType::I64 || t.rank() + 1 != sizes.len() {
        return Err(Error::input("class numbers of a wrong dtype or rank"));
    }
    let counts = b.call("aten.ne.Scalar", &[target.into(), ignore.into()])?;
    // An ignored target may be no class at all; class 0 stands in for it.
    let class = b.select_or(counts, target, 0.0)?;
    let mut column = t.sizes.clone();
    column.insert(dim, b.exprs.int(1));
    let index = b.call("aten.view.default", &[class.into(), column.into()])?;
    let dim_arg = b.int(dim as i64);
    let picked = b.call("aten.gather.default", &[logs.into(), dim_arg, index.into()])?;
    let picked = b.call(
        "aten.view.default",
        &[picked.into(), t.sizes.clone().into()],
    )?;
    let mut loss = b.unary("aten.neg.default", picked)?;
    let dtype = b.dtype(loss)?;
    let weight = match weight {
        Some(w) => {
            let w = b.cast(w, dtype)?;
            let w = b.call(
                "aten.index.Tensor",
                &[w.into(), Arg::Values(vec![Some(class)])],
            )?;
            loss = b.mul(loss, w)?;
            b.select_or(counts, w, 0.0)?
        }
        None => b.cast(counts, dtype)?,
    };
    Ok(Picked {
        // A selection, not a product with 0, so that NaN of ignored samples does not count.
        loss: b.select_or(counts, loss, 0.0)?,
        weight,
        counts,
    })
}

/// Reduces picked losses; their mean is weighted.
fn reduce_picked(b: B, args: &Args, p: &Picked) -> Result<ValueId> {
    match args.const_int("reduction")? {
        0 => Ok(p.loss),
        1 => {
            // Not the mean of the losses: PyTorch divides by the sum of the weights.
            let (sum, weights) = (b.total(p.loss)?, b.total(p.weight)?);
            b.div(sum, weights)
        }
        2 => b.total(p.loss),
        _ => Err(args.unsupported("reduction", "unknown reduction")),
    }
}

/// Reads what the targets pick from the call's arguments, and the dtype of the result.
fn picked(b: B, args: &Args) -> Result<(Picked, DType)> {
    let x = args.value("self")?;
    let dtype = b.dtype(x)?;
    let x = b.widen(x)?;
    let weight = args.opt_value("weight")?;
    let p = pick(
        b,
        x,
        args.value("target")?,
        weight,
        args.int("ignore_index")?,
    )?;
    Ok((p, dtype))
}

fn nll_loss(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let (p, dtype) = picked(b, args)?;
    let loss = reduce_picked(b, args, &p)?;
    Ok(vec![b.cast(loss, dtype)?])
}

/// Also returns the sum of weights; 0 when nothing is reduced.
fn nll_loss_forward(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let (p, dtype) = picked(b, args)?;
    let loss = reduce_picked(b, args, &p)?;
    let weight = match args.const_int("reduction")? {
        0 => b.call(
            "aten.full.default",
            &[b.ints(&[]), b.int(0), b.dtype(p.weight)?.into()],
        )?,
        _ => b.total(p.weight)?,
    };
    Ok(vec![b.cast(loss, dtype)?, b.cast(weight, dtype)?])
}

/// Targets are class numbers, or probabilities where they have the input's shape.
fn cross_entropy_loss(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let (x, target) = (args.value("self")?, args.value("target")?);
    let (t, smoothing) = (b.tensor(x)?, args.float("label_smoothing")?);
    let dim = class_dim(t.rank());
    let classes = *t
        .sizes
        .get(dim)
        .ok_or_else(|| Error::input("the input must have a dimension of classes"))?;
    let classes =
        b.exprs
            .as_int(classes)
            .ok_or_else(|| Error::unsupported("a symbolic number of classes"))? as f64;
    let x = b.widen(x)?;
    let logs = b.call("aten.log_softmax.int", &[x.into(), b.int(dim as i64)])?;
    let weight = args.opt_value("weight")?;
    // Weights as they broadcast over the input.
    let spread = match weight {
        Some(w) => {
            let w = b.widen(w)?;
            let mut shape = vec![b.exprs.int(-1)];
            shape.resize(t.rank() - dim, b.exprs.int(1));
            Some(b.call("aten.view.default", &[w.into(), shape.into()])?)
        }
        None => None,
    };
    let class_sum = |b: B, x: ValueId| {
        let dims = b.ints(&[dim as i64]);
        b.call("aten.sum.dim_IntList", &[x.into(), dims])
    };
    // Probabilities know no `ignore_index`, and their mean divides by samples, not by
    // weights.
    if b.dtype(target)?.is_float() {
        let mut p = b.widen(target)?;
        if smoothing > 0.0 {
            // Mixes the target with the uniform distribution over classes.
            p = b.by("aten.mul.Tensor", p, 1.0 - smoothing)?;
            p = b.by("aten.add.Tensor", p, smoothing / classes)?;
        }
        let mut terms = b.mul(logs, p)?;
        if let Some(w) = spread {
            terms = b.mul(terms, w)?;
        }
        let sum = class_sum(b, terms)?;
        let loss = b.unary("aten.neg.default", sum)?;
        // Weights are in the terms already.
        return reduced(b, args, loss, t.dtype);
    }
    let p = pick(b, logs, target, weight, args.int("ignore_index")?)?;
    let mut loss = reduce_picked(b, args, &p)?;
    if smoothing > 0.0 {
        // Every class gets an equal share of the smoothing.
        let terms = match spread {
            Some(w) => b.mul(logs, w)?,
            None => logs,
        };
        let sum = class_sum(b, terms)?;
        let even = b.unary("aten.neg.default", sum)?;
        let even = Picked {
            loss: b.select_or(p.counts, even, 0.0)?,
            ..p
        };
        let even = reduce_picked(b, args, &even)?;
        let kept = b.by("aten.mul.Tensor", loss, 1.0 - smoothing)?;
        let share = b.by("aten.mul.Tensor", even, smoothing / classes)?;
        loss = b.add(kept, share)?;
    }
    Ok(vec![b.cast(loss, t.dtype)?])
}

pub const ROWS: &[Row] = &[
    row(
        "aten.mse_loss.default",
        "(Tensor self, Tensor target, int reduction=Mean) -> Tensor",
        mse_loss,
        "(f32[3,4], f32[3,4])",
    ),
    row(
        "aten.l1_loss.default",
        "(Tensor self, Tensor target, int reduction=Mean) -> Tensor",
        l1_loss,
        "(f32[3,4], f32[3,4], 2)",
    ),
    row(
        "aten.smooth_l1_loss.default",
        "(Tensor self, Tensor target, int reduction=Mean, float beta=1.0) -> Tensor",
        smooth_l1_loss,
        "(f32[3,4], f32[3,4], 0, 0.5)",
    ),
    row(
        "aten.huber_loss.default",
        "(Tensor self, Tensor target, int reduction=Mean, float delta=1.0) -> Tensor",
        huber_loss,
        "(f32[3,4], f32[3,4], 1, 0.7)",
    ),
    row(
        "aten.binary_cross_entropy.default",
        "(Tensor self, Tensor target, Tensor? weight=None, int reduction=Mean) -> Tensor",
        binary_cross_entropy,
        "(f32[3,4]{0.01:0.99}, f32[3,4]{0.0:1.0}, f32[4])",
    ),
    row(
        "aten.binary_cross_entropy_with_logits.default",
        "(Tensor self, Tensor target, Tensor? weight=None, Tensor? pos_weight=None, int reduction=Mean) -> Tensor",
        bce_with_logits,
        "(f32[3,4], f32[3,4]{0.0:1.0}, none, f32[4]{0.5:2.0})",
    ),
    row(
        "aten.kl_div.default",
        "(Tensor self, Tensor target, int reduction=Mean, *, bool log_target=False) -> Tensor",
        kl_div,
        "(f32[3,4], f32[3,4]{0.0:1.0}, 2)",
    ),
    row(
        "aten.nll_loss.default",
        "(Tensor self, Tensor target, Tensor? weight=None, int reduction=Mean, SymInt ignore_index=-100) -> Tensor",
        nll_loss,
        "(f32[3,4], i64[3]{0:3}, f32[4], 1, 2)",
    ),
    row(
        "aten.nll_loss_nd.default",
        "(Tensor self, Tensor target, Tensor? weight=None, int reduction=Mean, SymInt ignore_index=-100) -> Tensor",
        nll_loss,
        "(f32[4], i64[]{0:3})",
    ),
    row(
        "aten.nll_loss2d.default",
        "(Tensor self, Tensor target, Tensor? weight=None, int reduction=Mean, SymInt ignore_index=-100) -> Tensor",
        nll_loss,
        "(f32[2,4,3,3], i64[2,3,3]{0:3})",
    ),
    row(
        "aten.nll_loss_forward.default",
        "(Tensor self, Tensor target, Tensor? weight, int reduction, SymInt ignore_index) -> (Tensor output, Tensor total_weight)",
        nll_loss_forward,
        "(f32[3,4], i64[3]{0:3}, none, 1, -100)",
    ),
    row(
        "aten.nll_loss2d_forward.default",
        "(Tensor self, Tensor target, Tensor? weight, int reduction, SymInt ignore_index) -> (Tensor output, Tensor total_weight)",
        nll_loss_forward,
        "(f32[2,4,3,3], i64[2,3,3]{0:3}, f32[4], 2, -100)",
    ),
    row(
        "aten.cross_entropy_loss.default",
        "(Tensor self, Tensor target, Tensor? weight=None, int reduction=Mean, SymInt ignore_index=-100, float label_smoothing=0.0) -> Tensor",
        cross_entropy_loss,
        "(f32[3,4], i64[3]{0:3}, f32[4]{0.5:2.0}, 1, -100, 0.1)",
    ),
];
