//! The rewrite rules of scalar operations, by name and law.
//!
//! Loop bodies and kernels hold values in different forms; a [`Values`] shows either form to the
//! rules. A rule gives an earlier value or one new value without operands that are new, so each
//! operation is simplified once, when it is built.
//!
//! Each rule must fire in a row of the test table (`simplify/tests.rs`), or a test fails; each row
//! is evaluated at chosen and random values of every dtype that it names. To add a rule: a line with
//! its law, the call of [`fired`] where it is applied, and a row that needs it.

#[cfg(test)]
mod tests;

use crate::scalar::OpClass;
use crate::{ScalarOp, eval};
use inrush_base::{DType, Scalar};
use inrush_expr::{Expr, Exprs};

/// Declares the rules: name and law.
macro_rules! rules {
    ($($name:ident $law:literal;)*) => {
        /// A rewrite rule.
        #[derive(Copy, Clone, PartialEq, Eq, Debug)]
        pub enum Rule { $(#[doc = $law] $name,)* }

        impl Rule {
            /// Every rule with its law.
            pub const ALL: &[(Rule, &str)] = &[$((Rule::$name, $law),)*];
        }
    };
}

rules! {
    Constants     "op(1, 2) -> 3, for operations that every machine computes alike";
    WhereConst    "where(true, a, b) -> a; where(false, a, b) -> b";
    WhereSame     "where(p, a, a) -> a";
    AndOrSame     "a and a -> a; a or a -> a";
    AndOrAbsorb   "p and false -> false; p or true -> true";
    AndOrNeutral  "p and true -> p; p or false -> p";
    NotNot        "not not a -> a";
    CompareIndex  "a < b -> true or false, when the ranges of two indices decide; likewise le, gt, ge, eq, ne";
    IndexArith    "index a + index b -> index (a + b), when it cannot wrap; likewise sub, mul";
    IndexConst    "index 3 -> 3";
    MulOne        "a * 1 -> a";
    AddZero       "a + 0 -> a, of integers: -0.0 + 0.0 is 0.0";
    SubZero       "a - 0 -> a; not a - -0.0";
    DivOne        "a / 1 -> a";
    DivPower      "a / 2^k -> a * 2^-k";
    CastSame      "cast(a, dtype of a) -> a";
    CastTwice     "cast(cast(a, t), t) -> cast(a, t), of narrow floats t";
    CastConst     "cast(1, t) -> 1: t, when every machine converts alike";
    CastIndex     "cast(index a, t) -> index a: t, when a fits in both dtypes";
}

#[cfg(test)]
thread_local! {
    static FIRED: std::cell::RefCell<Vec<Rule>> = const { std::cell::RefCell::new(Vec::new()) };
}

/// Records that a rule was applied. Compiled out except in tests.
fn fired<T>(_rule: Rule, result: T) -> Option<T> {
    #[cfg(test)]
    FIRED.with_borrow_mut(|f| f.push(_rule));
    Some(result)
}

/// A value as the rules see it.
#[derive(Copy, Clone, Debug)]
pub enum Known<'a, Id> {
    Const(Scalar),
    Index(Expr),
    Op(ScalarOp, &'a [Id]),
    /// A conversion to the dtype.
    Cast(DType),
    Other,
}

/// The values that operations take as operands.
pub trait Values {
    type Id: Copy + PartialEq;

    fn exprs(&self) -> &Exprs;

    /// Returns the dtype of a value, a compute dtype.
    fn dtype(&self, v: Self::Id) -> DType;

    fn known(&self, v: Self::Id) -> Known<'_, Self::Id>;
}

/// The replacement of an operation.
#[derive(Copy, Clone, PartialEq, Debug)]
pub enum Simple<Id> {
    /// An earlier value.
    Is(Id),
    Const(Scalar, DType),
    Index(Expr, DType),
    /// The product of a value and a constant of its dtype.
    Scaled(Id, Scalar),
}

/// Simplifies an operation of operand dtype `dtype` (for [`ScalarOp::Where`]: of the second and
/// third operand).
pub fn op<V: Values>(v: &V, op: ScalarOp, args: &[V::Id], dtype: DType) -> Option<Simple<V::Id>> {
    use ScalarOp::*;
    let constant = |k: usize| match v.known(args[k]) {
        Known::Const(c) => Some(c),
        _ => None,
    };
    match (op, args) {
        (Where, [_, a, b]) if a == b => fired(Rule::WhereSame, Simple::Is(*a)),
        (Where, [_, a, b]) => {
            let chosen = if constant(0)?.as_bool() { *a } else { *b };
            fired(Rule::WhereConst, Simple::Is(chosen))
        }
        (_, [_]) => unary(v, op, args[0], constant(0), dtype),
        (_, [_, _]) => binary(v, op, [args[0], args[1]], [constant(0), constant(1)], dtype),
        _ => None,
    }
}

fn unary<V: Values>(
    v: &V,
    op: ScalarOp,
    a: V::Id,
    constant: Option<Scalar>,
    dtype: DType,
) -> Option<Simple<V::Id>> {
    if let Some(c) = constant {
        return constants(op, &[c], dtype);
    }
    match (op, v.known(a)) {
        (ScalarOp::Not, Known::Op(ScalarOp::Not, inner)) => {
            fired(Rule::NotNot, Simple::Is(inner[0]))
        }
        _ => None,
    }
}

fn binary<V: Values>(
    v: &V,
    op: ScalarOp,
    [a, b]: [V::Id; 2],
    constant: [Option<Scalar>; 2],
    dtype: DType,
) -> Option<Simple<V::Id>> {
    use ScalarOp::*;
    if let [Some(x), Some(y)] = constant {
        return constants(op, &[x, y], dtype);
    }
    if matches!(op, And | Or) && a == b {
        return fired(Rule::AndOrSame, Simple::Is(a));
    }
    // The one constant, the operand that is none, and whether the constant comes second.
    let known = match constant {
        [Some(c), None] => Some((c, b, false)),
        [None, Some(c)] => Some((c, a, true)),
        _ => None,
    };
    if let Some((c, other, second)) = known
        && let Some(s) = with_constant(op, c, other, second, dtype)
    {
        return Some(s);
    }
    if dtype.is_int() {
        return indices(v, op, a, b, dtype);
    }
    None
}

/// Simplifies `op(other, c)`, or `op(c, other)` unless `second`.
fn with_constant<Id>(
    op: ScalarOp,
    c: Scalar,
    other: Id,
    second: bool,
    dtype: DType,
) -> Option<Simple<Id>> {
    use ScalarOp::*;
    match op {
        And | Or if dtype == DType::Bool => {
            if c.as_bool() == (op == Or) {
                fired(Rule::AndOrAbsorb, Simple::Const(c, dtype))
            } else {
                fired(Rule::AndOrNeutral, Simple::Is(other))
            }
        }
        Mul if is_one(c) => fired(Rule::MulOne, Simple::Is(other)),
        Add if dtype.is_int() && c.as_i64() == 0 => fired(Rule::AddZero, Simple::Is(other)),
        Sub if second && is_zero(c) => fired(Rule::SubZero, Simple::Is(other)),
        Div if second && is_one(c) => fired(Rule::DivOne, Simple::Is(other)),
        Div if second => {
            let r = exact_reciprocal(c.as_f64())?;
            fired(Rule::DivPower, Simple::Scaled(other, Scalar::Float(r)))
        }
        _ => None,
    }
}

/// Simplifies an operation of integers that are index expressions or constants.
fn indices<V: Values>(
    v: &V,
    op: ScalarOp,
    a: V::Id,
    b: V::Id,
    dtype: DType,
) -> Option<Simple<V::Id>> {
    use ScalarOp::*;
    if !matches!(op, Lt | Le | Gt | Ge | Eq | Ne | Add | Sub | Mul) {
        return None;
    }
    let ex = v.exprs();
    let (a, b) = (integer(v, a)?, integer(v, b)?);
    let sum = match op {
        Add => ex.add(a, b),
        Sub => ex.sub(a, b),
        Mul => ex.mul(a, b),
        _ => {
            let known = Scalar::Bool(compare(ex, op, a, b)?);
            return fired(Rule::CompareIndex, Simple::Const(known, DType::Bool));
        }
    };
    let r = ex.range(sum);
    let wraps = r.lo == i64::MIN || r.hi == i64::MAX || !fits(ex, sum, dtype);
    if wraps {
        return None;
    }
    fired(Rule::IndexArith, Simple::Index(sum, dtype))
}

/// Simplifies the value of an index expression.
pub fn index<Id>(ex: &Exprs, e: Expr, dtype: DType) -> Option<Simple<Id>> {
    let value = Scalar::Int(ex.as_int(e)?).convert(dtype);
    fired(Rule::IndexConst, Simple::Const(value, dtype))
}

/// Simplifies a conversion.
pub fn cast<V: Values>(v: &V, arg: V::Id, to: DType) -> Option<Simple<V::Id>> {
    let from = v.dtype(arg);
    if from == to {
        return fired(Rule::CastSame, Simple::Is(arg));
    }
    match v.known(arg) {
        Known::Const(c) if converts_alike(c, to) => fired(
            Rule::CastConst,
            Simple::Const(eval::cast(c, from, to), to.compute()),
        ),
        Known::Cast(t) if t == to => fired(Rule::CastTwice, Simple::Is(arg)),
        Known::Index(e)
            if from.is_int()
                && to.is_int()
                && fits(v.exprs(), e, from)
                && fits(v.exprs(), e, to) =>
        {
            fired(Rule::CastIndex, Simple::Index(e, to))
        }
        _ => None,
    }
}

/// Returns true if every machine converts the constant alike: C leaves floats beyond the integer's
/// range undefined.
fn converts_alike(c: Scalar, to: DType) -> bool {
    match c {
        Scalar::Float(f) if to.is_int() => f.is_finite() && f.abs() < 2f64.powi(31),
        _ => to == DType::Bool || to.is_int() || to.is_float(),
    }
}

/// Folds an operation on constants by [`eval::op`].
fn constants<Id>(op: ScalarOp, args: &[Scalar], dtype: DType) -> Option<Simple<Id>> {
    if !computes_alike(op, args, dtype) {
        return None;
    }
    let value = eval::op(op, dtype, args).ok()?;
    fired(Rule::Constants, Simple::Const(value, op.result(dtype)))
}

/// Returns true if [`eval::op`] gives what every machine gives. Approximations, the sign of a NaN,
/// the extreme of two zeros, and integer division by zero differ.
fn computes_alike(op: ScalarOp, args: &[Scalar], dtype: DType) -> bool {
    use ScalarOp::*;
    let zero = |k: usize| args.get(k).is_some_and(|c| c.as_f64() == 0.0);
    let float = dtype.is_float();
    let nan = float && args.iter().any(|c| c.as_f64().is_nan());
    match op {
        Fma | Rsqrt => false,
        Remainder if float => false,
        FloorDiv | TruncDiv | Remainder => !zero(1),
        Maximum | Minimum if float => !(nan || zero(0) && zero(1)),
        Signbit | Copysign => !nan,
        _ => op.class() == OpClass::Core,
    }
}

fn is_one(c: Scalar) -> bool {
    match c {
        Scalar::Bool(_) => false,
        Scalar::Int(v) => v == 1,
        Scalar::Float(v) => v == 1.0,
    }
}

/// Returns true for 0 and +0.0.
fn is_zero(c: Scalar) -> bool {
    match c {
        Scalar::Bool(_) => false,
        Scalar::Int(v) => v == 0,
        Scalar::Float(v) => v == 0.0 && v.is_sign_positive(),
    }
}

/// Returns `1 / v` if `v` is a power of two and both are far from the ends of the range.
fn exact_reciprocal(v: f64) -> Option<f64> {
    let power = |v: f64| v.is_normal() && v.to_bits() << 12 == 0;
    let r = 1.0 / v;
    (power(v) && power(r) && (1e-30..1e30).contains(&r.abs())).then_some(r)
}

/// Returns true if a value of dtype `dtype` holds the index expression without wrapping.
fn fits(ex: &Exprs, e: Expr, dtype: DType) -> bool {
    let r = ex.range(e);
    dtype
        .int_range()
        .is_some_and(|(lo, hi)| r.lo as i128 >= lo && r.hi as i128 <= hi)
        // Symbols without bounds (sizes) are `i64` values by definition.
        || dtype == DType::I64
}

/// Returns the integer that a value is, as an expression.
fn integer<V: Values>(v: &V, id: V::Id) -> Option<Expr> {
    let dtype = v.dtype(id);
    match v.known(id) {
        Known::Index(e) if dtype.is_int() && fits(v.exprs(), e, dtype) => Some(e),
        // A `u64` constant from 2^63 on is held as a negative number.
        Known::Const(Scalar::Int(i)) if dtype.is_int() && (i >= 0 || dtype != DType::U64) => {
            Some(v.exprs().int(i))
        }
        _ => None,
    }
}

fn compare(ex: &Exprs, op: ScalarOp, a: Expr, b: Expr) -> Option<bool> {
    let decide = |yes: bool, no: &dyn Fn() -> bool| {
        if yes {
            Some(true)
        } else {
            no().then_some(false)
        }
    };
    let lt = |a, b| decide(ex.prove_lt(a, b), &|| ex.prove_le(b, a));
    match op {
        ScalarOp::Lt => lt(a, b),
        ScalarOp::Gt => lt(b, a),
        ScalarOp::Ge => lt(a, b).map(|r| !r),
        ScalarOp::Le => lt(b, a).map(|r| !r),
        ScalarOp::Eq => decide(ex.prove_eq(a, b), &|| ex.prove_ne(a, b)),
        ScalarOp::Ne => decide(ex.prove_ne(a, b), &|| ex.prove_eq(a, b)),
        _ => None,
    }
}
