//! Losses that PyTorch composes of other operators, as exported programs without decompositions hold them.
//!
//! They have no kernel of their own in PyTorch and no gradient: autograd differentiates the
//! parts. The decompositions follow PyTorch's composition.

use crate::ops::decomposed as row;
use crate::ops::loss::losses::reduced;
use crate::{Args, Builder, Row};
use inrush_base::Result;
use inrush_graph::{Arg, ValueId};

/// Rounds to zero what is negative, and reduces.
fn hinge(b: &mut Builder, args: &Args, x: ValueId) -> Result<Vec<ValueId>> {
    let zero = b.int(0);
    let loss = b.call("aten.clamp_min.default", &[x.into(), zero])?;
    let dtype = b.dtype(loss)?;
    reduced(b, args, loss, dtype)
}

/// `x + c` for the number `name`.
fn plus(b: &mut Builder, args: &Args, x: ValueId, name: &str) -> Result<ValueId> {
    let number = args.arg(name)?.clone();
    b.call("aten.add.Tensor", &[x.into(), number])
}

/// `x` where the target is `label`, else 0.
fn where_target(b: &mut Builder, target: ValueId, label: f64, x: ValueId) -> Result<ValueId> {
    let is_label = b.by("aten.eq.Scalar", target, label)?;
    b.select_or(is_label, x, 0.0)
}

/// `max(0, margin - target (input1 - input2))`.
fn margin_ranking_loss(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let d = b.sub(args.value("input1")?, args.value("input2")?)?;
    let minus = b.unary("aten.neg.default", args.value("target")?)?;
    let d = b.mul(minus, d)?;
    let d = plus(b, args, d, "margin")?;
    hinge(b, args, d)
}

/// `x` of target 1 and `max(0, margin - x)` of target -1; of another target both.
fn hinge_embedding_loss(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let (x, target) = (args.value("self")?, args.value("target")?);
    let margin = args.arg("margin")?.clone();
    let rest = b.call("aten.rsub.Scalar", &[x.into(), margin])?;
    let zero = b.int(0);
    let rest = b.call("aten.clamp_min.default", &[rest.into(), zero])?;
    let is_one = b.by("aten.eq.Scalar", target, 1.0)?;
    let other = b.unary("aten.logical_not.default", is_one)?;
    let below = b.select_or(other, rest, 0.0)?;
    let is_minus = b.by("aten.eq.Scalar", target, -1.0)?;
    let other = b.unary("aten.logical_not.default", is_minus)?;
    let above = b.select_or(other, x, 0.0)?;
    let loss = b.add(below, above)?;
    let dtype = b.dtype(loss)?;
    reduced(b, args, loss, dtype)
}

/// `1 - cos` of target 1 and `max(0, cos - margin)` of target -1, for the cosine of the angle between rows.
fn cosine_embedding_loss(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let (x, y) = (args.value("input1")?, args.value("input2")?);
    let target = args.value("target")?;
    // Rows are pairs `[N, D]` for targets `[N]`, or one pair `[D]` for a single target.
    let dim = [b.rank(target)? as i64];
    let sum = |b: &mut Builder, x: ValueId, y: ValueId| {
        let product = b.mul(x, y)?;
        b.sum(product, &dim, false)
    };
    let product = sum(b, x, y)?;
    let (xx, yy) = (sum(b, x, x)?, sum(b, y, y)?);
    let (xx, yy) = (
        // Keeps rows of zeros from dividing by zero; the same number as in PyTorch.
        b.by("aten.add.Tensor", xx, 1e-12)?,
        b.by("aten.add.Tensor", yy, 1e-12)?,
    );
    let lengths = b.mul(xx, yy)?;
    let lengths = b.unary("aten.sqrt.default", lengths)?;
    let cosine = b.div(product, lengths)?;
    let apart = b.by("aten.rsub.Scalar", cosine, 1.0)?;
    let margin = args.arg("margin")?.clone();
    let near = b.call("aten.sub.Tensor", &[cosine.into(), margin])?;
    let zero = b.int(0);
    let near = b.call("aten.clamp_min.default", &[near.into(), zero])?;
    let positive = where_target(b, target, 1.0, apart)?;
    let negative = where_target(b, target, -1.0, near)?;
    let loss = b.add(positive, negative)?;
    let dtype = b.dtype(loss)?;
    reduced(b, args, loss, dtype)
}

/// `max(0, margin + |anchor - positive| - |anchor - negative|)`; with `swap` the nearer of both to the negative counts.
fn triplet_margin_loss(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let distance = |b: &mut Builder, x: &str, y: &str| {
        let (x, y) = (args.value(x)?, args.value(y)?);
        let (p, eps) = (args.arg("p")?.clone(), args.arg("eps")?.clone());
        b.call(
            "aten.pairwise_distance.default",
            &[x.into(), y.into(), p, eps],
        )
    };
    let near = distance(b, "anchor", "positive")?;
    let mut far = distance(b, "anchor", "negative")?;
    if args.bool("swap")? {
        let swapped = distance(b, "positive", "negative")?;
        far = b.call("aten.minimum.default", &[far.into(), swapped.into()])?;
    }
    let d = plus(b, args, near, "margin")?;
    let d = b.sub(d, far)?;
    hinge(b, args, d)
}

/// `exp(x) - t x`, or `x - t log(x + eps)`; with `full` and Stirling's formula for the factorial of `t` above 1.
fn poisson_nll_loss(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let (x, t) = (args.value("input")?, args.value("target")?);
    let mut loss = if args.bool("log_input")? {
        let (e, tx) = (b.unary("aten.exp.default", x)?, b.mul(t, x)?);
        b.sub(e, tx)?
    } else {
        let above = plus(b, args, x, "eps")?;
        let log = b.unary("aten.log.default", above)?;
        let product = b.mul(t, log)?;
        b.sub(x, product)?
    };
    if args.bool("full")? {
        let log = b.unary("aten.log.default", t)?;
        let product = b.mul(t, log)?;
        let rest = b.sub(product, t)?;
        let circle = b.scale(t, std::f64::consts::TAU)?;
        let circle = b.unary("aten.log.default", circle)?;
        let circle = b.scale(circle, 0.5)?;
        let stirling = b.add(rest, circle)?;
        // The formula is for numbers above 1; it is inexact below, and log(0) is infinite.
        let small = b.call("aten.le.Scalar", &[t.into(), Arg::Float(1.0)])?;
        let large = b.unary("aten.logical_not.default", small)?;
        let stirling = b.select_or(large, stirling, 0.0)?;
        loss = b.add(loss, stirling)?;
    }
    let dtype = b.dtype(loss)?;
    reduced(b, args, loss, dtype)
}

pub const ROWS: &[Row] = &[
    row(
        "aten.margin_ranking_loss.default",
        "(Tensor input1, Tensor input2, Tensor target, float margin=0.0, int reduction=1) -> Tensor",
        margin_ranking_loss,
        "(f32[9], f32[9], f32[9], 0.5)",
    ),
    row(
        "aten.hinge_embedding_loss.default",
        "(Tensor self, Tensor target, float margin=1.0, int reduction=1) -> Tensor",
        hinge_embedding_loss,
        "(f32[9], i64[9]{-1:1}, 0.5)",
    ),
    row(
        "aten.cosine_embedding_loss.default",
        "(Tensor input1, Tensor input2, Tensor target, float margin=0.0, int reduction=1) -> Tensor",
        cosine_embedding_loss,
        "(f32[9,4], f32[9,4], i64[9]{-1:1}, 0.2, 0)",
    ),
    row(
        "aten.triplet_margin_loss.default",
        "(Tensor anchor, Tensor positive, Tensor negative, float margin=1.0, float p=2.0, float eps=1e-06, bool swap=False, int reduction=1) -> Tensor",
        triplet_margin_loss,
        "(f32[9,4], f32[9,4], f32[9,4], swap=true, reduction=0)",
    ),
    row(
        "aten.poisson_nll_loss.default",
        "(Tensor input, Tensor target, bool log_input, bool full, float eps, int reduction) -> Tensor",
        poisson_nll_loss,
        "(f32[9], f32[9]{0:3}, true, true, 0.01, 0)",
    ),
];
