//! Arithmetic on elements.

use crate::{Meta, Pointwise, PointwiseFn, Promo, Route, Row, meta};
use inrush_base::Result;
use inrush_loops::{ScalarOp as S, StmtId};

/// A pointwise row.
pub(super) const fn row(
    name: &'static str,
    schema: &'static str,
    operands: &'static [&'static str],
    promo: Promo,
    function: PointwiseFn,
    example: &'static str,
) -> Row {
    Row {
        name,
        schema,
        meta: Meta::Route,
        route: Route::Pointwise(Pointwise {
            operands,
            promo,
            function,
        }),
        example,
    }
}

const SELF: &[&str] = &["self"];
const BINARY: &[&str] = &["self", "other"];

/// `self + alpha * other`, where `alpha` is 1 nearly always.
fn add(p: &mut crate::Pw, x: &[StmtId]) -> Result<StmtId> {
    if p.call.scalar("alpha")?.as_f64() == 1.0 {
        return Ok(p.op2(S::Add, x[0], x[1]));
    }
    let alpha = p.number("alpha")?;
    let scaled = p.op2(S::Mul, alpha, x[1]);
    Ok(p.op2(S::Add, x[0], scaled))
}

pub const ROWS: &[Row] = &[
    row(
        "aten.add.Tensor",
        "(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor",
        BINARY,
        Promo::Common,
        add,
        "(f32[2,3], f32[3], alpha=2)",
    ),
    row(
        "aten.mul.Tensor",
        "(Tensor self, Tensor other) -> Tensor",
        BINARY,
        Promo::Common,
        |p, x| Ok(p.op2(S::Mul, x[0], x[1])),
        "(f32[2,1], i64[3])",
    ),
    row(
        "aten.div.Tensor",
        "(Tensor self, Tensor other) -> Tensor",
        BINARY,
        Promo::Float,
        |p, x| Ok(p.op2(S::Div, x[0], x[1])),
        "(i64[2,3], i64[3])",
    ),
    row(
        "aten.exp.default",
        "(Tensor self) -> Tensor",
        SELF,
        Promo::Float,
        |p, x| Ok(p.op1(S::Exp, x[0])),
        "(i64[4])",
    ),
    Row {
        name: "aten.to.dtype",
        schema: "(Tensor(a) self, ScalarType dtype, bool non_blocking=False, bool copy=False, MemoryFormat? memory_format=None) -> Tensor(a)",
        meta: Meta::Fn(|c| {
            let t = c.tensor("self")?;
            meta::one(
                c.exprs,
                c.dtype("dtype")?.unwrap_or(t.dtype),
                t.sizes.clone(),
            )
        }),
        route: Route::Lower(|lw, call| {
            let t = lw.arg(call, "self")?;
            let to = call.out(0)?.dtype;
            if t.dtype == to {
                return Ok(vec![t]);
            }
            let mut body = lw.body(&t.sizes);
            let at = body.outer();
            let v = body.load(&t, &at);
            Ok(vec![lw.store_new(body, v, to, &t.sizes)])
        }),
        example: "(f32[3], i64)",
    },
];
