//! Normalisation: statistics as reductions, the rest pointwise, halves in `f32` throughout.
//!
//! ```text
//! y = (x - mean) * rstd * weight + bias        rstd = 1 / sqrt(variance + eps)
//! ```
//!
//! | operator | mean and variance over | weight and bias per |
//! |---|---|---|
//! | layer | the last dimensions, `normalized_shape` | element of `normalized_shape` |
//! | group | `[n, groups, c / groups, ..]`, from dimension 2 on | channel |
//! | instance | as group, with one channel a group | channel |
//! | batch | all dimensions but 1 | channel |
//! | rms | as layer; no mean is subtracted | element of `normalized_shape` |
//!
//! Variances are biased (divided by the count). Each is written as the mean of squares of the
//! centred input: two passes over a row, of which the scheduler makes one (online variance) where
//! that pays.
//!
//! Batch normalisation in training updates its running statistics. Only the functional overloads
//! return them; the others are refused with running statistics, since the update would be lost.

use crate::ops::B;
use crate::ops::decomposed as row;
use crate::ops::reduce::moments::{Centred, centred};
use crate::{Args, Builder, Row};
use inrush_base::{Error, Result};
use inrush_expr::Expr;
use inrush_graph::{Arg, ValueId};

/// Statistics over the normalised dimensions, in the compute dtype. Reduced dimensions have size 1.
struct Stats {
    mean: ValueId,
    /// `x - mean`, of the sizes of `x`.
    centred: ValueId,
    /// Biased.
    variance: ValueId,
    /// `1 / sqrt(variance + eps)`.
    rstd: ValueId,
}

/// The variance is the mean of squares of the centred input, which loses no digits to a large mean.
fn stats(b: B, x: ValueId, dims: &[i64], eps: f64) -> Result<Stats> {
    let Centred { mean, centred } = centred(b, x, dims)?;
    let dims = b.ints(dims);
    let square = b.mul(centred, centred)?;
    let variance = b.call("aten.mean.dim", &[square.into(), dims, true.into()])?;
    let rstd = inverse_root(b, variance, eps)?;
    Ok(Stats {
        mean,
        centred,
        variance,
        rstd,
    })
}

/// `1 / sqrt(variance + eps)`.
fn inverse_root(b: B, variance: ValueId, eps: f64) -> Result<ValueId> {
    let v = b.call("aten.add.Tensor", &[variance.into(), Arg::Float(eps)])?;
    b.call("aten.rsqrt.default", &[v.into()])
}

/// `x * weight + bias`, each where given, computed in the dtype of `x`.
fn affine(b: B, mut x: ValueId, weight: Option<ValueId>, bias: Option<ValueId>) -> Result<ValueId> {
    if let Some(w) = weight {
        let w = b.widen(w)?;
        x = b.mul(x, w)?;
    }
    if let Some(c) = bias {
        let c = b.widen(c)?;
        x = b.add(x, c)?;
    }
    Ok(x)
}

/// A per-channel vector as it broadcasts over an input of rank `rank` whose channels are dimension 1.
pub(in crate::ops) fn per_channel(b: B, v: ValueId, rank: usize) -> Result<ValueId> {
    let sizes = b.sizes(v)?;
    let [channels] = sizes.as_slice() else {
        return Err(Error::input("a per-channel tensor must have one dimension"));
    };
    let mut shape = vec![*channels];
    shape.resize(rank.saturating_sub(1).max(1), b.exprs.int(1));
    b.call("aten.view.default", &[v.into(), shape.into()])
}

/// [`per_channel`] of a parameter that may be absent.
fn opt_per_channel(b: B, v: Option<ValueId>, rank: usize) -> Result<Option<ValueId>> {
    v.map(|v| per_channel(b, v, rank)).transpose()
}

/// Dimensions `first..rank`, as arguments of reductions.
pub(in crate::ops) fn dims_from(first: usize, rank: usize) -> Vec<i64> {
    (first..rank).map(|d| d as i64).collect()
}

/// All dimensions but 1, which holds the channels.
pub(in crate::ops) fn channel_dims(rank: usize) -> Vec<i64> {
    (0..rank).filter(|d| *d != 1).map(|d| d as i64).collect()
}

/// Returns the result in the input's dtype, and statistics whose reduced dimensions have size 1.
fn layer(b: B, args: &Args) -> Result<(ValueId, Stats)> {
    let x = args.value("input")?;
    let dtype = b.dtype(x)?;
    let rank = b.rank(x)?;
    let shape = args.ints("normalized_shape")?;
    let first = rank
        .checked_sub(shape.len())
        .filter(|_| !shape.is_empty())
        .ok_or_else(|| args.unsupported("normalized_shape", "does not fit the input"))?;
    let x = b.widen(x)?;
    let s = stats(b, x, &dims_from(first, rank), args.float("eps")?)?;
    let y = b.mul(s.centred, s.rstd)?;
    let y = affine(b, y, args.opt_value("weight")?, args.opt_value("bias")?)?;
    Ok((b.cast(y, dtype)?, s))
}

fn layer_norm(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    Ok(vec![layer(b, args)?.0])
}

/// The dtype of saved statistics: what the graph says, else the input's, or the parameters' where those are wider.
fn saved_dtype(b: B, args: &Args) -> Result<inrush_base::DType> {
    if let Some(t) = b.declared(1) {
        return Ok(t.dtype);
    }
    let input = b.dtype(args.value("input")?)?;
    match args.opt_value("weight")? {
        Some(w) if b.dtype(w)? != input => Ok(input.compute()),
        _ => Ok(input),
    }
}

/// Also returns mean and `rstd`, which the gradient reads.
fn native_layer_norm(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let (y, s) = layer(b, args)?;
    let dtype = saved_dtype(b, args)?;
    Ok(vec![y, b.cast(s.mean, dtype)?, b.cast(s.rstd, dtype)?])
}

/// `x / sqrt(mean(x^2) + eps) * weight`; without `eps` the machine epsilon of the dtype that it is computed in.
fn rms(b: B, args: &Args) -> Result<(ValueId, ValueId)> {
    use inrush_base::DType;
    let input = args.value("input")?;
    let (dtype, rank) = (b.dtype(input)?, b.rank(input)?);
    let shape = args.ints("normalized_shape")?;
    let first = rank
        .checked_sub(shape.len())
        .filter(|_| !shape.is_empty())
        .ok_or_else(|| args.unsupported("normalized_shape", "does not fit the input"))?;
    let eps = match args.given("eps") {
        true => args.float("eps")?,
        false if dtype == DType::F64 => f64::EPSILON,
        false => f64::from(f32::EPSILON),
    };
    let x = b.widen(input)?;
    let square = b.mul(x, x)?;
    let dims = b.ints(&dims_from(first, rank));
    let mean = b.call("aten.mean.dim", &[square.into(), dims, true.into()])?;
    let rstd = inverse_root(b, mean, eps)?;
    let mut y = b.mul(x, rstd)?;
    if let Some(w) = args.opt_value("weight")? {
        let w = b.widen(w)?;
        y = b.mul(y, w)?;
    }
    Ok((b.cast(y, dtype)?, rstd))
}

fn rms_norm(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    Ok(vec![rms(b, args)?.0])
}

/// Also returns `rstd` in the compute dtype.
fn fused_rms_norm(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let (y, rstd) = rms(b, args)?;
    Ok(vec![y, rstd])
}

/// Normalises groups of channels: `[n, c, ...]` seen as `[n, groups, c / groups, ...]`.
fn grouped(
    b: B,
    input: ValueId,
    groups: Expr,
    weight: Option<ValueId>,
    bias: Option<ValueId>,
    eps: f64,
) -> Result<(ValueId, Stats)> {
    let t = b.tensor(input)?;
    let (&[n, c, ref rest @ ..], rank) = (t.sizes.as_slice(), t.rank()) else {
        return Err(Error::input("the input must have two dimensions or more"));
    };
    let each = b
        .exprs
        .divide_exact(c, groups)
        .ok_or_else(|| Error::input("groups do not divide the channels"))?;
    let x = b.widen(input)?;
    // Statistics are then over all dimensions from 2 on, whatever the rank.
    let split: Vec<Expr> = [&[n, groups, each], rest].concat();
    let split_rank = split.len();
    let x = b.call("aten.view.default", &[x.into(), split.into()])?;
    let s = stats(b, x, &dims_from(2, split_rank), eps)?;
    let y = b.mul(s.centred, s.rstd)?;
    let y = b.call("aten.view.default", &[y.into(), t.sizes.clone().into()])?;
    let (w, c) = (
        opt_per_channel(b, weight, rank)?,
        opt_per_channel(b, bias, rank)?,
    );
    let y = affine(b, y, w, c)?;
    Ok((b.cast(y, t.dtype)?, s))
}

fn group_norm(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let (y, _) = grouped(
        b,
        args.value("input")?,
        args.int("num_groups")?,
        args.opt_value("weight")?,
        args.opt_value("bias")?,
        args.float("eps")?,
    )?;
    Ok(vec![y])
}

/// Checks the arguments `N`, `C` and `HxW` against the sizes of the input.
pub(in crate::ops) fn check_groups(args: &Args, sizes: &[Expr]) -> Result<()> {
    let &[images, channels, ref rest @ ..] = sizes else {
        return Err(Error::input("the input must have two dimensions or more"));
    };
    args.same(args.int("N")?, images, "the number of images")?;
    args.same(args.int("C")?, channels, "the number of channels")?;
    let each = args.exprs.product(rest.iter().copied());
    args.same(args.int("HxW")?, each, "the elements of a channel")
}

/// Also returns mean and `rstd` as `[n, groups]`. Sizes are arguments too, as in PyTorch, and are
/// checked against the input's.
fn native_group_norm(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let (input, groups) = (args.value("input")?, args.int("group")?);
    check_groups(args, &b.sizes(input)?)?;
    let (y, s) = grouped(
        b,
        input,
        groups,
        args.opt_value("weight")?,
        args.opt_value("bias")?,
        args.float("eps")?,
    )?;
    let dtype = saved_dtype(b, args)?;
    let shape = Arg::Ints(vec![b.sizes(input)?[0], groups]);
    let mut out = vec![y];
    for v in [s.mean, s.rstd] {
        let v = b.call("aten.view.default", &[v.into(), shape.clone()])?;
        out.push(b.cast(v, dtype)?);
    }
    Ok(out)
}

/// A channel is a group of its own; with running statistics it is batch normalisation.
fn instance_norm(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let input = args.value("input")?;
    let (weight, bias) = (args.opt_value("weight")?, args.opt_value("bias")?);
    let eps = args.float("eps")?;
    if !args.bool("use_input_stats")? {
        return Ok(vec![running(b, args, eps)?]);
    }
    if args.given("running_mean") {
        return Err(args.unsupported("running_mean", "running statistics would be updated"));
    }
    let channels = *b
        .sizes(input)?
        .get(1)
        .ok_or_else(|| Error::input("the input must have two dimensions or more"))?;
    Ok(vec![grouped(b, input, channels, weight, bias, eps)?.0])
}

/// Batch normalisation by running statistics. The scale is a node over channels only: it depends on weights alone, so that
/// it can be computed when a model is loaded.
fn running(b: B, args: &Args, eps: f64) -> Result<ValueId> {
    let input = args.value("input")?;
    let (dtype, rank) = (b.dtype(input)?, b.rank(input)?);
    let need = |v: Option<ValueId>| {
        v.ok_or_else(|| Error::input("normalisation without training needs running statistics"))
    };
    let mean = need(args.opt_value("running_mean")?)?;
    let variance = need(args.opt_value("running_var")?)?;
    let (mean, variance) = (b.widen(mean)?, b.widen(variance)?);
    let mut scale = inverse_root(b, variance, eps)?;
    if let Some(w) = args.opt_value("weight")? {
        let w = b.widen(w)?;
        scale = b.mul(scale, w)?;
    }
    let (mean, scale) = (per_channel(b, mean, rank)?, per_channel(b, scale, rank)?);
    let bias = opt_per_channel(b, args.opt_value("bias")?, rank)?;
    let x = b.widen(input)?;
    let y = b.sub(x, mean)?;
    let y = affine(b, y, Some(scale), bias)?;
    b.cast(y, dtype)
}

/// Batch normalisation by the statistics of the batch.
fn batch(b: B, args: &Args, eps: f64) -> Result<(ValueId, Stats)> {
    let input = args.value("input")?;
    let (dtype, rank) = (b.dtype(input)?, b.rank(input)?);
    let x = b.widen(input)?;
    let s = stats(b, x, &channel_dims(rank), eps)?;
    let y = b.mul(s.centred, s.rstd)?;
    let weight = opt_per_channel(b, args.opt_value("weight")?, rank)?;
    let bias = opt_per_channel(b, args.opt_value("bias")?, rank)?;
    let y = affine(b, y, weight, bias)?;
    Ok((b.cast(y, dtype)?, s))
}

/// Operators without the argument are inference only.
fn training(args: &Args) -> Result<bool> {
    match args.op.schema().position("training") {
        Some(_) => args.bool("training"),
        None => Ok(false),
    }
}

/// Uses the batch's statistics in training and running ones otherwise.
fn batch_norm(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let eps = args.float("eps")?;
    if !training(args)? {
        return Ok(vec![running(b, args, eps)?]);
    }
    if args.given("running_mean") || args.given("running_var") {
        return Err(args.unsupported("training", "running statistics would be updated"));
    }
    Ok(vec![batch(b, args, eps)?.0])
}

/// The saved statistics of a call without training are empty.
fn native_batch_norm(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let eps = args.float("eps")?;
    if training(args)? {
        if args.given("running_mean") || args.given("running_var") {
            return Err(args.unsupported("training", "running statistics would be updated"));
        }
        let (y, s) = batch(b, args, eps)?;
        let (mean, rstd) = saved(b, &s)?;
        return Ok(vec![y, mean, rstd]);
    }
    let y = running(b, args, eps)?;
    let (mean, rstd) = (no_stats(b, args)?, no_stats(b, args)?);
    Ok(vec![y, mean, rstd])
}

/// An empty vector, of the dtype that the graph declares for saved statistics.
fn no_stats(b: B, args: &Args) -> Result<ValueId> {
    let dtype = match b.declared(1) {
        Some(t) => t.dtype,
        None => b.dtype(args.value("input")?)?.compute(),
    };
    b.call("aten.full.default", &[b.ints(&[0]), b.int(0), dtype.into()])
}

/// Mean and inverse deviation of each channel, of the dtype that the graph wants them in.
fn saved(b: B, s: &Stats) -> Result<(ValueId, ValueId)> {
    let (mean, rstd) = (flat(b, s.mean)?, flat(b, s.rstd)?);
    match b.declared(1).map(|t| t.dtype) {
        Some(dtype) => Ok((b.cast(mean, dtype)?, b.cast(rstd, dtype)?)),
        None => Ok((mean, rstd)),
    }
}

/// Per-channel statistics as a vector.
fn flat(b: B, v: ValueId) -> Result<ValueId> {
    b.call("aten.view.default", &[v.into(), b.ints(&[-1])])
}

/// Also returns the updated running statistics; the variance among them is the unbiased one.
fn functional_batch_norm(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let (eps, momentum) = (args.float("eps")?, args.float("momentum")?);
    let (old_mean, old_var) = (args.value("running_mean")?, args.value("running_var")?);
    if !args.bool("training")? {
        let y = running(b, args, eps)?;
        let (mean, rstd) = (no_stats(b, args)?, no_stats(b, args)?);
        return as_declared(b, vec![y, mean, rstd, old_mean, old_var]);
    }
    let (y, s) = batch(b, args, eps)?;
    let sizes = b.sizes(args.value("input")?)?;
    let count = b.exprs.product(
        sizes
            .iter()
            .enumerate()
            .filter(|(d, _)| *d != 1)
            .map(|(_, s)| *s),
    );
    let fewer = b.exprs.sub(count, b.exprs.int(1));
    let (mean, variance) = (flat(b, s.mean)?, flat(b, s.variance)?);
    let sum = b.mul(variance, count)?;
    // Eager normalises by the biased variance and records the unbiased one.
    let unbiased = b.div(sum, fewer)?;
    let (saved_mean, rstd) = saved(b, &s)?;
    let mut out = vec![y, saved_mean, rstd];
    for (old, new) in [(old_mean, mean), (old_var, unbiased)] {
        let dtype = b.dtype(old)?;
        // `momentum` is the weight of the new value, unlike in optimisers.
        let kept = b.call("aten.mul.Tensor", &[old.into(), Arg::Float(1.0 - momentum)])?;
        let added = b.call("aten.mul.Tensor", &[new.into(), Arg::Float(momentum)])?;
        let sum = b.add(kept, added)?;
        out.push(b.cast(sum, dtype)?);
    }
    as_declared(b, out)
}

/// Statistics in the dtypes that the graph declares: devices and releases differ in those of halves.
fn as_declared(b: B, outs: Vec<ValueId>) -> Result<Vec<ValueId>> {
    let cast = |(k, v): (usize, ValueId)| match b.declared(k).map(|t| t.dtype) {
        Some(dtype) => b.cast(v, dtype),
        None => Ok(v),
    };
    outs.into_iter().enumerate().map(cast).collect()
}

/// As [`functional_batch_norm`], in training always, with a reserve of bytes that is empty here.
fn batch_norm_with_update(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let mut call: Vec<Arg> = Vec::new();
    for name in ["input", "weight", "bias", "running_mean", "running_var"] {
        call.push(args.arg(name)?.clone());
    }
    call.push(true.into());
    for name in ["momentum", "eps"] {
        call.push(args.arg(name)?.clone());
    }
    let mut outs = b.call_multi("aten._native_batch_norm_legit_functional.default", &call)?;
    outs.insert(3, reserve(b)?);
    as_declared(b, outs)
}

/// The workspace that cuDNN would fill: no bytes.
fn reserve(b: B) -> Result<ValueId> {
    b.full(&[b.exprs.int(0)], 0.0, inrush_base::DType::U8)
}

/// Inference by running statistics, with empty saved ones.
fn batch_norm_no_update(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let eps = args.float("eps")?;
    let y = running(b, args, eps)?;
    Ok(vec![y, no_stats(b, args)?, no_stats(b, args)?, reserve(b)?])
}

pub const ROWS: &[Row] = &[
    row(
        "aten._batch_norm_with_update_functional.default",
        "(Tensor input, Tensor? weight, Tensor? bias, Tensor running_mean, Tensor running_var, float momentum, float eps) -> (Tensor, Tensor, Tensor, Tensor, Tensor running_mean_out, Tensor running_var_out)",
        batch_norm_with_update,
        "(f32[2,3,4], f32[3], f32[3], f32[3], f32[3]{0.5:2.0}, 0.1, 1e-5)",
    ),
    row(
        "aten._batch_norm_no_update.default",
        "(Tensor input, Tensor? weight, Tensor? bias, Tensor? running_mean, Tensor? running_var, float momentum, float eps) -> (Tensor, Tensor, Tensor, Tensor)",
        batch_norm_no_update,
        "(f32[2,3,4], f32[3], f32[3], f32[3], f32[3]{0.5:2.0}, 0.1, 1e-5)",
    ),
    row(
        "aten.batch_norm.default",
        "(Tensor input, Tensor? weight, Tensor? bias, Tensor? running_mean, Tensor? running_var, bool training, float momentum, float eps, bool cudnn_enabled) -> Tensor",
        batch_norm,
        "(f32[2,3,4,4], f32[3], f32[3], f32[3], f32[3]{0.5:2.0}, false, 0.1, 1e-5, false)",
    ),
    row(
        "aten.native_batch_norm.default",
        "(Tensor input, Tensor? weight, Tensor? bias, Tensor? running_mean, Tensor? running_var, bool training, float momentum, float eps) -> (Tensor, Tensor, Tensor)",
        native_batch_norm,
        "(f32[2,3,4], none, none, none, none, true, 0.1, 1e-5)",
    ),
    row(
        "aten._native_batch_norm_legit.default",
        "(Tensor input, Tensor? weight, Tensor? bias, Tensor running_mean, Tensor running_var, bool training, float momentum, float eps) -> (Tensor, Tensor, Tensor)",
        native_batch_norm,
        "(f32[2,3,4], f32[3], f32[3], f32[3], f32[3]{0.5:2.0}, false, 0.1, 1e-5)",
    ),
    // In training always: the running statistics are moved, so that only its functional form is left after normalisation.
    row(
        "aten._batch_norm_with_update.default",
        "(Tensor input, Tensor? weight, Tensor? bias, Tensor running_mean, Tensor running_var, float momentum, float eps) -> (Tensor, Tensor, Tensor, Tensor)",
        |b, args| {
            let mut outs = batch_norm_with_update(b, args)?;
            outs.truncate(4);
            Ok(outs)
        },
        "(f32[2,3,4], f32[3], f32[3], f32[3], f32[3]{0.5:2.0}, 0.1, 1e-5)",
    ),
    row(
        "aten._native_batch_norm_legit.no_stats",
        "(Tensor input, Tensor? weight, Tensor? bias, bool training, float momentum, float eps) -> (Tensor, Tensor, Tensor)",
        |b, args| {
            let (y, s) = batch(b, args, args.float("eps")?)?;
            let (mean, rstd) = saved(b, &s)?;
            Ok(vec![y, mean, rstd])
        },
        "(f32[2,3,4], f32[3], f32[3], true, 0.1, 1e-5)",
    ),
    row(
        "aten._native_batch_norm_legit_no_training.default",
        "(Tensor input, Tensor? weight, Tensor? bias, Tensor running_mean, Tensor running_var, float momentum, float eps) -> (Tensor, Tensor, Tensor)",
        native_batch_norm,
        "(f32[2,3,4], f32[3], f32[3], f32[3], f32[3]{0.5:2.0}, 0.1, 1e-5)",
    ),
    row(
        "aten._native_batch_norm_legit_functional.default",
        "(Tensor input, Tensor? weight, Tensor? bias, Tensor running_mean, Tensor running_var, bool training, float momentum, float eps) -> (Tensor, Tensor, Tensor, Tensor running_mean_out, Tensor running_var_out)",
        functional_batch_norm,
        "(f32[2,3,4], f32[3], f32[3], f32[3], f32[3]{0.5:2.0}, true, 0.1, 1e-5)",
    ),
    row(
        "aten.layer_norm.default",
        "(Tensor input, SymInt[] normalized_shape, Tensor? weight=None, Tensor? bias=None, float eps=1e-05, bool cudnn_enable=True) -> Tensor",
        layer_norm,
        "(f32[2,3,8], [8], f32[8], f32[8])",
    ),
    row(
        "aten.native_layer_norm.default",
        "(Tensor input, SymInt[] normalized_shape, Tensor? weight, Tensor? bias, float eps) -> (Tensor, Tensor, Tensor)",
        native_layer_norm,
        "(f32[2,3,8], [3,8], none, none, 1e-5)",
    ),
    row(
        "aten.rms_norm.default",
        "(Tensor input, SymInt[] normalized_shape, Tensor? weight=None, float? eps=None) -> Tensor",
        rms_norm,
        "(f32[2,8], [8], f32[8])",
    ),
    row(
        "aten._fused_rms_norm.default",
        "(Tensor input, int[] normalized_shape, Tensor? weight, float? eps) -> (Tensor, Tensor)",
        fused_rms_norm,
        "(f32[2,8], [8], f32[8], 1e-6)",
    ),
    row(
        "aten.group_norm.default",
        "(Tensor input, int num_groups, Tensor? weight=None, Tensor? bias=None, float eps=1e-05, bool cudnn_enabled=True) -> Tensor",
        group_norm,
        "(f32[2,6,3,3], 3, f32[6], f32[6])",
    ),
    row(
        "aten.native_group_norm.default",
        "(Tensor input, Tensor? weight, Tensor? bias, SymInt N, SymInt C, SymInt HxW, int group, float eps) -> (Tensor, Tensor, Tensor)",
        native_group_norm,
        "(f32[2,6,3,3], f32[6], f32[6], 2, 6, 9, 2, 1e-5)",
    ),
    row(
        "aten.instance_norm.default",
        "(Tensor input, Tensor? weight, Tensor? bias, Tensor? running_mean, Tensor? running_var, bool use_input_stats, float momentum, float eps, bool cudnn_enabled) -> Tensor",
        instance_norm,
        "(f32[2,3,4,4], f32[3], f32[3], none, none, true, 0.1, 1e-5, false)",
    ),
];
