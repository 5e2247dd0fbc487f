//! Shows the values of a kernel to the rewrite rules of scalar operations.

use crate::{Def, ValId, Value};
use inrush_base::{DType, Scalar};
use inrush_expr::Exprs;
use inrush_loops::ScalarOp;
use inrush_loops::simplify::{self, Known, Simple, Values};

/// The outcome of the rewrite rules for one definition.
pub(crate) enum Folded {
    /// The value is an earlier one.
    Is(ValId),
    /// Another definition, which is to be numbered as any other.
    To(Value),
    /// The product of an earlier value and a constant of its dtype.
    Scaled(ValId, Scalar),
    No,
}

/// The values of a kernel that come before the one under construction.
struct Before<'a> {
    exprs: &'a Exprs,
    values: &'a [Value],
}

impl Values for Before<'_> {
    type Id = ValId;

    fn exprs(&self) -> &Exprs {
        self.exprs
    }

    fn dtype(&self, v: ValId) -> DType {
        self.values[v.index()].dtype
    }

    fn known(&self, v: ValId) -> Known<'_, ValId> {
        match &self.values[v.index()].def {
            Def::Const(c) => Known::Const(*c),
            Def::Index(e) => Known::Index(*e),
            Def::Op { op, args } => Known::Op(*op, args),
            Def::Cast { to, .. } => Known::Cast(*to),
            _ => Known::Other,
        }
    }
}

/// Returns what `value` may be replaced by, given the values before it.
pub(crate) fn fold(exprs: &Exprs, values: &[Value], value: &Value) -> Folded {
    let before = Before { exprs, values };
    let simple = match &value.def {
        Def::Op { op, args } => {
            // The condition of a selection comes first: the dtype is that of what it selects.
            let operand = args[usize::from(*op == ScalarOp::Where)];
            simplify::op(&before, *op, args, before.dtype(operand))
        }
        Def::Cast { arg, to } => simplify::cast(&before, *arg, *to),
        Def::Index(e) => simplify::index(exprs, *e, value.dtype),
        _ => None,
    };
    let to = |def, dtype| Folded::To(Value { def, dtype });
    match simple {
        None => Folded::No,
        Some(Simple::Is(v)) => Folded::Is(v),
        Some(Simple::Const(c, dtype)) => to(Def::Const(c), dtype),
        Some(Simple::Index(e, dtype)) => match exprs.as_int(e) {
            Some(v) => to(Def::Const(Scalar::Int(v).convert(dtype)), dtype),
            None => to(Def::Index(e), dtype),
        },
        Some(Simple::Scaled(v, c)) => Folded::Scaled(v, c),
    }
}

/// Returns the definition of `v * c`, given the id of the constant `c`.
pub(crate) fn scaled(v: ValId, c: ValId, dtype: DType) -> Value {
    let def = Def::Op {
        op: ScalarOp::Mul,
        args: smallvec::smallvec![v, c],
    };
    Value { def, dtype }
}
