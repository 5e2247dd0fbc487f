//! Reads outside of a tensor: masks of positions that are in range, reads under such a mask, and
//! copies with zeros around them.
//!
//! Loads take a mask and a fill value. Where ranges prove that a position is inside, no mask is
//! made, so that an unpadded pool or convolution has plain loads.

use crate::{BodyBuilder, Lower, Tensor};
use inrush_base::{DType, Scalar};
use inrush_expr::Expr;
use inrush_loops::{ScalarOp, StmtId};

/// Returns a mask that is true if every position is in `0..size`; `None` if ranges prove this.
/// Each pair is a position and a size. Only the half of a test that is not proved is emitted.
pub(in crate::ops) fn in_bounds(body: &mut BodyBuilder, checks: &[(Expr, Expr)]) -> Option<StmtId> {
    let exprs = body.exprs;
    let mut all: Option<StmtId> = None;
    let join = |body: &mut BodyBuilder, all: &mut Option<StmtId>, c: StmtId| {
        *all = Some(match *all {
            Some(a) => body.op(ScalarOp::And, &[a, c]),
            None => c,
        });
    };
    for (at, size) in checks {
        if !exprs.prove_nonneg(*at) {
            let (v, zero) = (
                body.index_value(*at),
                body.constant(Scalar::Int(0), DType::I64),
            );
            let c = body.op(ScalarOp::Ge, &[v, zero]);
            join(body, &mut all, c);
        }
        if !exprs.prove_lt(*at, *size) {
            let (v, end) = (body.index_value(*at), body.index_value(*size));
            let c = body.op(ScalarOp::Lt, &[v, end]);
            join(body, &mut all, c);
        }
    }
    all
}

/// Reads `t` at `at` where `mask` is true and gives zero elsewhere.
pub(in crate::ops) fn load_or_zero(
    body: &mut BodyBuilder,
    t: &Tensor,
    at: &[Expr],
    mask: Option<StmtId>,
) -> StmtId {
    load_or(body, t, at, mask, Scalar::Int(0))
}

/// Reads `t` at `at` where `mask` is true and gives `fill` elsewhere.
pub(in crate::ops) fn load_or(
    body: &mut BodyBuilder,
    t: &Tensor,
    at: &[Expr],
    mask: Option<StmtId>,
    fill: Scalar,
) -> StmtId {
    match mask {
        Some(m) => body.load_masked(t, at, m, fill),
        None => body.load(t, at),
    }
}

/// Copies `t` with zeros around its last dimensions, the same number before and after.
pub(in crate::ops) fn padded_by<'g>(lw: &mut Lower<'g>, t: &Tensor, amounts: &[Expr]) -> Tensor {
    let amounts: Vec<(Expr, Expr)> = amounts.iter().map(|p| (*p, *p)).collect();
    zeros_around(lw, t, &amounts)
}

/// Copies `x` with these numbers of zeros before and after its last dimensions. A negative number
/// cuts elements off.
/// Returns `x` itself if all numbers are known to be zero.
pub(in crate::ops) fn zeros_around<'g>(
    lw: &mut Lower<'g>,
    x: &Tensor,
    amounts: &[(Expr, Expr)],
) -> Tensor {
    let exprs = lw.exprs;
    let none = |e: &Expr| exprs.is_int(*e, 0);
    if amounts
        .iter()
        .all(|(before, after)| none(before) && none(after))
    {
        return x.clone();
    }
    let first = x.sizes.len() - amounts.len();
    let mut sizes = x.sizes.clone();
    for (size, (before, after)) in sizes[first..].iter_mut().zip(amounts) {
        *size = exprs.sum([*size, *before, *after]);
    }
    let mut body = lw.body(&sizes);
    let mut at = body.outer();
    let mut checks = Vec::new();
    for (d, (before, _)) in amounts.iter().enumerate() {
        at[first + d] = exprs.sub(at[first + d], *before);
        checks.push((at[first + d], x.sizes[first + d]));
    }
    let mask = in_bounds(&mut body, &checks);
    let v = load_or_zero(&mut body, x, &at, mask);
    lw.store_new(body, v, x.dtype, &sizes)
}
