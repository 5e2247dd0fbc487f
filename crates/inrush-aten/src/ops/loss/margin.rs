//! Losses that ask for a margin between classes.
//!
//! ```text
//! multi margin, class t        sum over c != t of max(0, margin - x[t] + x[c])^p / classes
//! multilabel margin, labels L  sum over l in L, c not in L of max(0, 1 - x[l] + x[c]) / classes
//! ```
//!
//! Both compare each score with others of its row. Comparisons are made by broadcasting, and
//! what does not count is selected away, so that each loss is one reduction over
//! `[rows, classes]` or `[rows, labels, classes]`. Scores without a row dimension get one of
//! size 1, which the result loses again.

use crate::ops::B;
use crate::ops::decomposed as row;
use crate::ops::loss::losses::reduced;
use crate::{Args, Builder, Row};
use inrush_base::{Error, Result};
use inrush_expr::Expr;
use inrush_graph::{Arg, ValueId};

/// Scores `[rows, classes]` in the compute dtype, and whether a row dimension was added.
fn scores(b: B, x: ValueId) -> Result<(ValueId, bool)> {
    let x = b.widen(x)?;
    match b.rank(x)? {
        1 => Ok((
            b.call("aten.unsqueeze.default", &[x.into(), b.int(0)])?,
            true,
        )),
        2 => Ok((x, false)),
        n => Err(Error::input(format!("scores of {n} dimensions"))),
    }
}

/// The number of classes of scores `[rows, classes]`.
fn classes(b: &Builder, x: ValueId) -> Result<Expr> {
    Ok(b.sizes(x)?[1])
}

/// Row numbers against class numbers: true at a row's own class.
fn own(b: B, target: ValueId, classes: Expr) -> Result<ValueId> {
    let numbers = b.call("aten.arange.default", &[classes.into()])?;
    b.call("aten.eq.Tensor", &[numbers.into(), target.into()])
}

/// By how much each wrong class violates the margin, if positive; 0 for the right class.
/// Shared by loss and gradient, so that both agree about which classes count.
struct Missed {
    /// `[rows, classes]`, in the compute dtype.
    by: ValueId,
    /// True at a row's right class.
    own: ValueId,
    /// The weight of a row's right class, `[rows, 1]`.
    weight: Option<ValueId>,
    /// The scores had no row dimension.
    single: bool,
    classes: Expr,
}

/// Computes `max(0, margin - x[t] + x[c])` for each class `c` other than the right one `t`.
fn missed(b: B, args: &Args) -> Result<Missed> {
    let (x, single) = scores(b, args.value("self")?)?;
    let classes = classes(b, x)?;
    let column = [b.exprs.int(-1), b.exprs.int(1)];
    let target = b.view(args.value("target")?, &column)?;
    let one = b.int(1);
    // Also refuses numbers that are no class.
    let right = b.call("aten.gather.default", &[x.into(), one, target.into()])?;
    let d = b.sub(x, right)?;
    let z = b.by("aten.add.Scalar", d, args.scalar("margin")?.as_f64())?;
    let own = own(b, target, classes)?;
    let wrong = b.unary("aten.logical_not.default", own)?;
    let z = b.by("aten.clamp_min.default", z, 0.0)?;
    let by = b.select_or(wrong, z, 0.0)?;
    let weight = match args.opt_value("weight")? {
        Some(w) => {
            let w = b.widen(w)?;
            Some(b.call(
                "aten.index.Tensor",
                &[w.into(), Arg::Values(vec![Some(target)])],
            )?)
        }
        None => None,
    };
    Ok(Missed {
        by,
        own,
        weight,
        single,
        classes,
    })
}

/// The number of classes as a constant; at least 1, so that no classes do not divide by zero.
fn count(b: &Builder, classes: Expr) -> Result<f64> {
    b.exprs
        .as_int(classes)
        .map(|n| n.max(1) as f64)
        .ok_or_else(|| Error::unsupported("a symbolic number of classes"))
}

/// Reads the exponent, for which eager has two kernels.
fn power(args: &Args) -> Result<f64> {
    match args.scalar("p")?.as_f64() {
        p if p == 1.0 || p == 2.0 => Ok(p),
        _ => Err(Error::input("`p` must be 1 or 2")),
    }
}

/// Rows are weighted by their right class, before the reduction.
fn multi_margin(b: B, args: &Args) -> Result<Vec<ValueId>> {
    let dtype = b.dtype(args.value("self")?)?;
    let m = missed(b, args)?;
    let mut term = match power(args)? {
        2.0 => b.mul(m.by, m.by)?,
        _ => m.by,
    };
    if let Some(w) = m.weight {
        term = b.mul(term, w)?;
    }
    let sum = b.sum(term, &[1], false)?;
    let n = count(b, m.classes)?;
    let mut loss = b.scale(sum, 1.0 / n)?;
    if m.single {
        loss = b.call("aten.squeeze.dim", &[loss.into(), b.int(0)])?;
    }
    reduced(b, args, loss, dtype)
}

/// The gradient of the loss with respect to each row's loss, as a column.
fn row_gradient(b: B, args: &Args, rows: Expr) -> Result<ValueId> {
    let g = b.widen(args.value("grad_output")?)?;
    // Without a reduction each row has its own gradient.
    if args.const_int("reduction")? == 0 && b.rank(g)? == 1 {
        return b.call("aten.unsqueeze.default", &[g.into(), b.int(1)]);
    }
    if args.const_int("reduction")? != 1 {
        return Ok(g);
    }
    let rows = b
        .exprs
        .as_int(rows)
        .ok_or_else(|| Error::unsupported("a symbolic number of rows"))?;
    b.scale(g, 1.0 / rows.max(1) as f64)
}

fn multi_margin_backward(b: B, args: &Args) -> Result<Vec<ValueId>> {
    let x = args.value("self")?;
    let (dtype, sizes) = (b.dtype(x)?, b.sizes(x)?);
    let m = missed(b, args)?;
    let n = count(b, m.classes)?;
    let mut slope = match power(args)? {
        2.0 => b.scale(m.by, 2.0 / n)?,
        // The hinge has slope 1 where it is positive.
        _ => {
            let hit = b.by("aten.gt.Scalar", m.by, 0.0)?;
            let compute = b.dtype(m.by)?;
            let hit = b.cast(hit, compute)?;
            b.scale(hit, 1.0 / n)?
        }
    };
    if let Some(w) = m.weight {
        slope = b.mul(slope, w)?;
    }
    // The right class gains what the wrong ones lose.
    let sum = b.sum(slope, &[1], true)?;
    let gain = b.unary("aten.neg.default", sum)?;
    let d = b.select(m.own, gain, slope)?;
    let rows = b.sizes(d)?[0];
    let g = row_gradient(b, args, rows)?;
    let out = b.mul(d, g)?;
    let out = b.view(out, &sizes)?;
    Ok(vec![b.cast(out, dtype)?])
}

/// For rows of class numbers that end at the first negative one: which numbers count, and the numbers (0 for the others).
/// PyTorch ends a row of labels at the first -1; numbers after it do not count.
fn labels(b: B, target: ValueId) -> Result<(ValueId, ValueId)> {
    let target = match b.rank(target)? {
        1 => b.call("aten.unsqueeze.default", &[target.into(), b.int(0)])?,
        _ => target,
    };
    let negative = b.by("aten.lt.Scalar", target, 0.0)?;
    let seen = b.call("aten.cumsum.default", &[negative.into(), b.int(1)])?;
    let valid = b.call("aten.eq.Scalar", &[seen.into(), b.int(0)])?;
    let number = b.select_or(valid, target, 0.0)?;
    Ok((valid, number))
}

/// Which classes the numbers that count name.
fn named_classes(b: B, valid: ValueId, number: ValueId, classes: Expr) -> Result<ValueId> {
    let column = b.call("aten.unsqueeze.default", &[number.into(), b.int(-1)])?;
    let hit = own(b, column, classes)?;
    let counted = b.call("aten.unsqueeze.default", &[valid.into(), b.int(-1)])?;
    let hit = b.call("aten.logical_and.default", &[hit.into(), counted.into()])?;
    b.call("aten.any.dim", &[hit.into(), b.int(1)])
}

/// For each label and each class that is no label `1 - (label's score - score)` where it is positive; `[rows, labels, classes]`.
/// Which classes are labels may be known already.
fn label_margins(
    b: B,
    x: ValueId,
    target: ValueId,
    known: Option<ValueId>,
) -> Result<(ValueId, ValueId, ValueId)> {
    let (valid, number) = labels(b, target)?;
    let named = match known {
        Some(k) => {
            let k = b.by("aten.ne.Scalar", k, 0.0)?;
            match b.rank(k)? {
                1 => b.call("aten.unsqueeze.default", &[k.into(), b.int(0)])?,
                _ => k,
            }
        }
        None => named_classes(b, valid, number, classes(b, x)?)?,
    };
    let picked = b.call("aten.gather.default", &[x.into(), b.int(1), number.into()])?;
    let picked = b.call("aten.unsqueeze.default", &[picked.into(), b.int(2)])?;
    let all = b.call("aten.unsqueeze.default", &[x.into(), b.int(1)])?;
    let d = b.sub(all, picked)?;
    let z = b.by("aten.add.Scalar", d, 1.0)?;
    let z = b.by("aten.clamp_min.default", z, 0.0)?;
    let free = b.unary("aten.logical_not.default", named)?;
    let free = b.call("aten.unsqueeze.default", &[free.into(), b.int(1)])?;
    let counted = b.call("aten.unsqueeze.default", &[valid.into(), b.int(2)])?;
    let both = b.call("aten.logical_and.default", &[free.into(), counted.into()])?;
    Ok((b.select_or(both, z, 0.0)?, number, named))
}

/// Also returns which classes are labels, which the gradient reads.
fn multilabel_margin(b: B, args: &Args) -> Result<Vec<ValueId>> {
    let x = args.value("self")?;
    let (dtype, sizes) = (b.dtype(x)?, b.sizes(x)?);
    let (x, single) = scores(b, x)?;
    let (z, _, named) = label_margins(b, x, args.value("target")?, None)?;
    let sum = b.sum(z, &[1, 2], false)?;
    let classes = classes(b, x)?;
    let n = count(b, classes)?;
    let mut loss = b.scale(sum, 1.0 / n)?;
    if single {
        loss = b.call("aten.squeeze.dim", &[loss.into(), b.int(0)])?;
    }
    let out = reduced(b, args, loss, dtype)?[0];
    let named = b.view(named, &sizes)?;
    Ok(vec![out, b.cast(named, dtype)?])
}

/// For each pair of a label and another class with a positive margin, the class gains 1 and
/// the label loses 1. A label that is listed twice loses twice, hence the scatter adds.
fn multilabel_margin_backward(b: B, args: &Args) -> Result<Vec<ValueId>> {
    let x = args.value("self")?;
    let (dtype, sizes) = (b.dtype(x)?, b.sizes(x)?);
    let (x, _) = scores(b, x)?;
    let (z, number, _) = label_margins(b, x, args.value("target")?, args.opt_value("is_target")?)?;
    let compute = b.dtype(x)?;
    let hit = b.by("aten.gt.Scalar", z, 0.0)?;
    let hit = b.cast(hit, compute)?;
    let gain = b.sum(hit, &[1], false)?;
    let loss = b.sum(hit, &[2], false)?;
    let minus = b.unary("aten.neg.default", loss)?;
    let d = b.call(
        "aten.scatter_add.default",
        &[gain.into(), b.int(1), number.into(), minus.into()],
    )?;
    let classes = classes(b, x)?;
    let n = count(b, classes)?;
    let rows = b.sizes(d)?[0];
    let g = row_gradient(b, args, rows)?;
    let out = b.mul(d, g)?;
    let out = b.scale(out, 1.0 / n)?;
    let out = b.view(out, &sizes)?;
    Ok(vec![b.cast(out, dtype)?])
}

/// The loss alone.
fn multilabel_margin_only(b: B, args: &Args) -> Result<Vec<ValueId>> {
    let mut out = multilabel_margin(b, args)?;
    out.truncate(1);
    Ok(out)
}

pub const ROWS: &[Row] = &[
    row(
        "aten.multi_margin_loss.default",
        "(Tensor self, Tensor target, Scalar p=1, Scalar margin=1, Tensor? weight=None, int reduction=Mean) -> Tensor",
        multi_margin,
        "(f32[3,4], i64[3]{0:3}, 2, 0.5, f32[4])",
    ),
    row(
        "aten.multi_margin_loss_backward.default",
        "(Tensor grad_output, Tensor self, Tensor target, Scalar p, Scalar margin, Tensor? weight=None, int reduction=Mean) -> Tensor",
        multi_margin_backward,
        "(f32[], f32[3,4], i64[3]{0:3}, 1, 1, f32[4])",
    ),
    row(
        "aten.multilabel_margin_loss_forward.default",
        "(Tensor self, Tensor target, int reduction) -> (Tensor output, Tensor is_target)",
        multilabel_margin,
        "(f32[3,4], i64[3,4]{-1:3}, 1)",
    ),
    row(
        "aten.multilabel_margin_loss.default",
        "(Tensor self, Tensor target, int reduction=Mean) -> Tensor",
        multilabel_margin_only,
        "(f32[3,4], i64[3,4]{-1:3})",
    ),
    row(
        "aten.multilabel_margin_loss_backward.default",
        "(Tensor grad_output, Tensor self, Tensor target, int reduction, Tensor is_target) -> Tensor",
        multilabel_margin_backward,
        "(f32[3], f32[3,4], i64[3,4]{0:1}, 0, f32[3,4]{0:1})",
    ),
];
