//! Arithmetic on untrusted expressions: products are expanded, so a short text could stand for a huge sum.
//!
//! `inrush_expr` keeps integers as sums of products. `Pow(Add(a, b, 1), 16)` is a sum of 153
//! terms, and each further `Pow` around it multiplies the degree by 16. So each operation bounds
//! the size of its result from the sizes of its operands, before it builds it. The bound is an
//! upper one (like terms may cancel), and so refuses a little more than it must.
//!
//! Relations are kept in the four forms of `inrush_graph::Relation`: `a >= b` is `b <= a`.

use inrush_base::{Error, Result};
use inrush_expr::{Expr, Exprs, Node};
use inrush_graph::Relation;

/// Terms of a sum and factors of a product that are accepted.
/// Far above what the sizes of a model need: `n*c*h*w` has a degree of 4.
const MOST_TERMS: usize = 128;
const MOST_FACTORS: usize = 16;

/// A conjunction of relations.
pub type Relations = Vec<(Relation, Expr, Expr)>;

/// Returns `a + b`; fails if the sum could exceed `MOST_TERMS`.
pub fn add(x: &Exprs, a: Expr, b: Expr) -> Result<Expr> {
    limit(terms(x, a) + terms(x, b), 1)?;
    Ok(x.add(a, b))
}

/// Returns `a * b`, expanded: terms multiply, degrees add up.
pub fn mul(x: &Exprs, a: Expr, b: Expr) -> Result<Expr> {
    limit(terms(x, a) * terms(x, b), degree(x, a) + degree(x, b))?;
    Ok(x.mul(a, b))
}

/// Returns `base` to a constant power. Multiplies one factor at a time, so that the limit is met
/// before an intermediate result is large. A negative power is no integer and is refused.
pub fn pow(x: &Exprs, base: Expr, exponent: i64) -> Result<Expr> {
    if !(0..=MOST_FACTORS as i64).contains(&exponent) {
        return Err(Error::unsupported(format!("a power of {exponent}")));
    }
    let mut out = x.int(1);
    for _ in 0..exponent {
        out = mul(x, out, base)?;
    }
    Ok(out)
}

/// Returns `floor(a / b)`. Only a divisor that is the constant zero is refused here; a symbolic
/// one may be zero at a call, which guards must exclude.
pub fn floordiv(x: &Exprs, a: Expr, b: Expr) -> Result<Expr> {
    nonzero(x, b)?;
    Ok(x.floordiv(a, b))
}

/// Returns Python's `a % b`, which has the sign of `b`.
pub fn modulo(x: &Exprs, a: Expr, b: Expr) -> Result<Expr> {
    nonzero(x, b)?;
    Ok(x.modulo(a, b))
}

fn nonzero(x: &Exprs, b: Expr) -> Result<()> {
    if x.is_int(b, 0) {
        Err(Error::input("a division by zero"))
    } else {
        Ok(())
    }
}

fn limit(terms: usize, degree: usize) -> Result<()> {
    if terms > MOST_TERMS || degree > MOST_FACTORS {
        return Err(Error::unsupported("an expression of this many terms"));
    }
    Ok(())
}

/// Returns an upper bound of the terms of `e`, its constant included.
fn terms(x: &Exprs, e: Expr) -> usize {
    match x.node(e) {
        Node::Sum { terms, .. } => terms.len() + 1,
        _ => 1,
    }
}

/// Returns the largest number of factors in a term. A quotient, remainder, minimum or maximum is
/// one factor.
fn degree(x: &Exprs, e: Expr) -> usize {
    let of = |e: Expr| match x.node(e) {
        Node::Const(_) => 0,
        Node::Product(f) => f.len(),
        _ => 1,
    };
    match x.node(e) {
        Node::Sum { terms, .. } => terms.iter().map(|(_, t)| of(*t)).max().unwrap_or(0),
        _ => of(e),
    }
}

/// Returns `a RELATION b` for Python's six comparison operators, or sympy's names of them.
pub fn relation(op: &str, a: Expr, b: Expr) -> Option<(Relation, Expr, Expr)> {
    Some(match op {
        "==" | "Equality" | "Eq" => (Relation::Eq, a, b),
        "!=" | "Unequality" | "Ne" => (Relation::Ne, a, b),
        "<=" | "LessThan" | "Le" => (Relation::Le, a, b),
        "<" | "StrictLessThan" | "Lt" => (Relation::Lt, a, b),
        ">=" | "GreaterThan" | "Ge" => (Relation::Le, b, a),
        ">" | "StrictGreaterThan" | "Gt" => (Relation::Lt, b, a),
        _ => return None,
    })
}

/// Returns the relation that holds exactly where `r` does not.
pub fn negated((r, a, b): (Relation, Expr, Expr)) -> (Relation, Expr, Expr) {
    match r {
        Relation::Eq => (Relation::Ne, a, b),
        Relation::Ne => (Relation::Eq, a, b),
        Relation::Le => (Relation::Lt, b, a),
        Relation::Lt => (Relation::Le, b, a),
    }
}

/// Decides a relation: true if it holds for every value of the symbols, false if for none, `None`
/// if that is not proved.
pub fn decide(x: &Exprs, (r, a, b): (Relation, Expr, Expr)) -> Option<bool> {
    let holds = |r: Relation, a: Expr, b: Expr| match r {
        Relation::Eq => x.prove_eq(a, b),
        Relation::Ne => x.prove_ne(a, b),
        Relation::Le => x.prove_le(a, b),
        Relation::Lt => x.prove_lt(a, b),
    };
    // Ranges prove in one direction only: a relation that is not proved need not be false. Its
    // negation is tried as well.
    if holds(r, a, b) {
        return Some(true);
    }
    let (r, a, b) = negated((r, a, b));
    holds(r, a, b).then_some(false)
}
