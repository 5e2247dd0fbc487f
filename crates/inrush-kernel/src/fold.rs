//! Values that need no evaluation: comparisons that ranges decide, arithmetic on indices and constants, selections by a
//! constant, conversions that change nothing.

use crate::{Def, ValId, Value};
use inrush_base::{DType, Scalar};
use inrush_expr::{Expr, Exprs};
use inrush_loops::ScalarOp;

pub(crate) enum Folded {
    /// The value is an earlier one.
    Is(ValId),
    To(Value),
    No,
}

fn constant(v: bool) -> Folded {
    Folded::To(Value {
        def: Def::Const(Scalar::Bool(v)),
        dtype: DType::Bool,
    })
}

/// Returns what may replace `value`, given the values before it.
pub(crate) fn fold(exprs: &Exprs, values: &[Value], value: &Value) -> Folded {
    match &value.def {
        Def::Op { op, args } => {
            let arg = |i: usize| &values[args[i].index()];
            if let Some(f) = fold_bools(*op, args, values) {
                return f;
            }
            if args.len() == 2
                && let (Some(a), Some(b)) = (integer(exprs, arg(0)), integer(exprs, arg(1)))
            {
                return fold_integers(exprs, *op, a, b, value.dtype);
            }
            Folded::No
        }
        Def::Cast { arg, to } => {
            let from = &values[arg.index()];
            match &from.def {
                Def::Const(c) if !to.is_narrow_float() && !is_float_to_int(*c, *to) => {
                    Folded::To(Value {
                        def: Def::Const(c.convert(*to)),
                        dtype: to.compute(),
                    })
                }
                Def::Index(e)
                    if to.is_int()
                        && fits(exprs, *e, *to)
                        && from.dtype.is_int()
                        && fits(exprs, *e, from.dtype) =>
                {
                    Folded::To(Value {
                        def: Def::Index(*e),
                        dtype: *to,
                    })
                }
                _ if from.dtype == *to => Folded::Is(*arg),
                _ => Folded::No,
            }
        }
        Def::Index(e) => match exprs.as_int(*e) {
            Some(v) => Folded::To(Value {
                def: Def::Const(Scalar::Int(v).convert(value.dtype)),
                dtype: value.dtype,
            }),
            None => Folded::No,
        },
        _ => Folded::No,
    }
}

fn is_float_to_int(c: Scalar, to: DType) -> bool {
    matches!(c, Scalar::Float(_)) && to.is_int()
}

fn fits(exprs: &Exprs, e: Expr, dtype: DType) -> bool {
    let r = exprs.range(e);
    dtype
        .int_range()
        .is_some_and(|(lo, hi)| r.lo as i128 >= lo && r.hi as i128 <= hi)
        // Unbounded symbols (sizes) are `i64` values by definition.
        || dtype == DType::I64
}

/// The integer expression of a value, if it is one.
fn integer(exprs: &Exprs, v: &Value) -> Option<Expr> {
    match &v.def {
        Def::Index(e) if v.dtype.is_int() && fits(exprs, *e, v.dtype) => Some(*e),
        Def::Const(Scalar::Int(i)) if v.dtype.is_int() => Some(exprs.int(*i)),
        _ => None,
    }
}

fn fold_integers(exprs: &Exprs, op: ScalarOp, a: Expr, b: Expr, dtype: DType) -> Folded {
    let decide = |yes: bool, no: bool| match (yes, no) {
        (true, _) => constant(true),
        (_, true) => constant(false),
        _ => Folded::No,
    };
    match op {
        ScalarOp::Lt => decide(exprs.prove_lt(a, b), exprs.prove_le(b, a)),
        ScalarOp::Le => decide(exprs.prove_le(a, b), exprs.prove_lt(b, a)),
        ScalarOp::Gt => decide(exprs.prove_lt(b, a), exprs.prove_le(a, b)),
        ScalarOp::Ge => decide(exprs.prove_le(b, a), exprs.prove_lt(a, b)),
        ScalarOp::Eq => decide(exprs.prove_eq(a, b), exprs.prove_ne(a, b)),
        ScalarOp::Ne => decide(exprs.prove_ne(a, b), exprs.prove_eq(a, b)),
        ScalarOp::Add | ScalarOp::Sub | ScalarOp::Mul => {
            let e = match op {
                ScalarOp::Add => exprs.add(a, b),
                ScalarOp::Sub => exprs.sub(a, b),
                _ => exprs.mul(a, b),
            };
            let r = exprs.range(e);
            // Wrapping must not matter.
            let exact = r.lo > i64::MIN && r.hi < i64::MAX && fits(exprs, e, dtype);
            if exact {
                Folded::To(Value {
                    def: Def::Index(e),
                    dtype,
                })
            } else {
                Folded::No
            }
        }
        _ => Folded::No,
    }
}

fn fold_bools(op: ScalarOp, args: &[ValId], values: &[Value]) -> Option<Folded> {
    let known = |i: usize| match values[args[i].index()].def {
        Def::Const(Scalar::Bool(b)) => Some(b),
        _ => None,
    };
    match op {
        ScalarOp::Where => known(0).map(|c| Folded::Is(args[if c { 1 } else { 2 }])),
        ScalarOp::Not => known(0).map(|c| constant(!c)),
        ScalarOp::And | ScalarOp::Or => {
            let absorbing = op == ScalarOp::Or;
            match (known(0), known(1)) {
                (Some(c), _) if c == absorbing => Some(constant(c)),
                (_, Some(c)) if c == absorbing => Some(constant(c)),
                (Some(_), _) => Some(Folded::Is(args[1])),
                (_, Some(_)) => Some(Folded::Is(args[0])),
                _ => None,
            }
        }
        _ => None,
    }
}
