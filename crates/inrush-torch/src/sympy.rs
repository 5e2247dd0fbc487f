//! The semantics of sympy's functions on symbolic sizes, whether these come as text or as Python
//! objects.
//!
//! Sizes are integers, but sympy writes some of them through fractions and real numbers:
//! `s0*(s0 - 1)/2` is a product with `1/2`, and `int(0.5*s0)` truncates a float. So a [`Value`] may be
//! a ratio, an integer with a fraction on the way, or a quotient, an exact real number `a / b`, which
//! a rounding turns into an integer expression. Any other real number is refused with the name of the
//! function that made it.
//!
//! Levels of exactness, and how they combine:
//!
//! ```text
//! Ratio(n, d)      n / d, proved by sympy to be an integer   Add, Mul keep fractions
//! Quotient(a, b)   the exact real number a / b               IntTrueDiv, ToFloat, short floats
//! Real(f)          any other real number, made by f          refused where an integer is needed
//!
//! int(2.5 * s0)    TruncToInt(Mul(Float(2.5), ToFloat(s0)))
//!                  Quotient(5, 2) * Quotient(s0, 1) = Quotient(5*s0, 2)  ->  (5*s0) // 2
//! int(0.29 * s0)   Float(0.29) is no short binary fraction              ->  refused, names `Float`
//! ```
//!
//! Floating point rounds where fractions do not: with `s0 = 100`, `int(0.29 * s0)` is 28 in
//! Python and 29 as a fraction. Products of floats become quotients only where floating point is
//! exact too, so that both agree.

use crate::arith::{self, Relations};
use inrush_base::{Error, Result};
use inrush_expr::{Expr, Exprs};
use inrush_graph::Relation;

/// The meaning of an expression.
#[derive(Clone, Debug)]
pub enum Parsed {
    Int(Expr),
    /// A conjunction of relations; empty when it always holds.
    Bool(Relations),
    /// A condition that is no conjunction of relations, or one that never holds.
    OtherBool,
    /// Something that is no integer; with the name of the function that makes it so.
    Real(String),
}

/// A value while it is read. Integers may be fractions on the way: `s0*(s0 - 1)/2` is written as a product with `1/2`.
#[derive(Clone, Debug)]
pub enum Value {
    /// Numerator and positive denominator. The denominator is 1 unless a `Rational` was read.
    Ratio(Expr, i64),
    Bool(Relations),
    OtherBool,
    Real(String),
    /// `a / b` as a real number. A rounding turns it into an integer division.
    /// The divisor may be symbolic, and then also zero or negative; `round` looks at its range.
    Quotient(Expr, Expr),
}

/// Powers of two up to this may divide in products of real numbers, and integers up to it multiply: of sizes below `2^33` such a
/// product has no more than the 53 bits of a `f64`, so that fractions say exactly what floating point computes.
const EXACT: i64 = 1 << 20;

/// Builds expressions from calls of sympy's functions and classes.
/// Used by the reader of `srepr` and by the importer of FX graphs, which walks sympy's objects.
#[derive(Copy, Clone)]
pub struct Sympy<'e> {
    pub exprs: &'e Exprs,
}

impl Sympy<'_> {
    /// Returns the meaning of a whole expression. A fraction that is left becomes the integer
    /// that sympy has proved it to be.
    pub fn finish(&self, v: Value) -> Result<Parsed> {
        Ok(match v {
            Value::Ratio(..) => Parsed::Int(self.int(v, "the expression")?),
            Value::Bool(r) => Parsed::Bool(r),
            Value::OtherBool => Parsed::OtherBool,
            Value::Real(f) => Parsed::Real(f),
            Value::Quotient(..) => Parsed::Real("IntTrueDiv".into()),
        })
    }

    /// Returns the integer that `v` is.
    /// Fails on real numbers and conditions; `user` is the function that the error names.
    pub fn int(&self, v: Value, user: &str) -> Result<Expr> {
        match v {
            Value::Ratio(n, 1) => Ok(n),
            // sympy has proved that the quotient is an integer, so rounding changes nothing.
            Value::Ratio(n, d) => arith::floordiv(self.exprs, n, self.exprs.int(d)),
            Value::Real(f) => Err(Error::unsupported(format!(
                "`{f}` in a symbolic size (argument of {user})"
            ))),
            Value::Quotient(..) => Err(Error::unsupported(format!(
                "a true division in a symbolic size (argument of {user})"
            ))),
            Value::Bool(_) | Value::OtherBool => Err(Error::input(format!(
                "{user} takes integers, not conditions"
            ))),
        }
    }

    /// Returns the value of a float literal. A short binary fraction (2.0, 0.5, 1.25) becomes a
    /// quotient; others stay real.
    pub fn float(&self, v: f64) -> Value {
        // A product with a power of two is exact, so `fract` tests for at most 20 binary places.
        let scaled = v * EXACT as f64;
        if scaled.fract() != 0.0 || v.abs() > EXACT as f64 {
            return Value::Real("Float".into());
        }
        // In lowest terms; no more than 40 bits.
        let n = scaled as i64;
        let common = if n == 0 {
            EXACT
        } else {
            EXACT.min(1 << n.trailing_zeros())
        };
        let (n, d) = (n / common, EXACT / common);
        if n.abs() > EXACT {
            return Value::Real("Float".into());
        }
        Value::Quotient(self.exprs.int(n), self.exprs.int(d))
    }

    /// Returns the value of a call of a function of sympy or of `torch.utils._sympy.functions`.
    ///
    /// The order of cases matters: exact real arithmetic, roundings of quotients, functions that
    /// stay real, conditions, fractions, and then functions of integers only.
    pub fn call(&self, name: &str, args: Vec<Value>) -> Result<Value> {
        let x = self.exprs;
        if let Some(real) = self.real(name, &args)? {
            return Ok(real);
        }
        let ratio = |e: Expr| Ok(Value::Ratio(e, 1));
        // A real argument makes most results real; those that round it are met first.
        if let Some(rounded) = self.round(name, &args)? {
            return ratio(rounded);
        }
        match name {
            "FloatTrueDiv" | "FloatPow" | "RoundDecimal" | "ToFloat" | "TruncToFloat" => {
                return Ok(Value::Real(name.into()));
            }
            "Add" | "Mul" | "Min" | "Max" | "Pow" | "Identity" => {
                if let Some(Value::Real(f)) = args.iter().find(|a| matches!(a, Value::Real(_))) {
                    return Ok(Value::Real(f.clone()));
                }
                if args.iter().any(|a| matches!(a, Value::Quotient(..))) {
                    return Ok(Value::Real("IntTrueDiv".into()));
                }
            }
            "And" | "Or" | "Not" => return self.logic(name, args),
            _ => {}
        }
        if matches!(name, "Add" | "Mul") {
            return self.fold(name, args);
        }
        let count = args.len();
        let mut ints = Vec::with_capacity(count);
        let real = |a: &Value| matches!(a, Value::Real(_) | Value::Quotient(..));
        // A comparison of real numbers is a condition, but not one of integer relations.
        if arith::relation(name, x.int(0), x.int(0)).is_some() && args.iter().any(real) {
            return Ok(Value::OtherBool);
        }
        for a in args {
            ints.push(self.int(a, name)?);
        }
        if let [a, b] = ints[..]
            && let Some(r) = arith::relation(name, a, b)
        {
            return Ok(self.relation(r));
        }
        // Distances of shifts; larger ones and negative ones are refused.
        let small = |e: Expr| x.as_int(e).filter(|v| (0..63).contains(v));
        match (name, &ints[..]) {
            // The argument is an integer here: rounding it changes nothing.
            ("Integer" | "Identity" | "CeilToInt" | "FloorToInt" | "TruncToInt", [a]) => ratio(*a),
            ("Rational", [p, q]) => match x.as_int(*q).filter(|q| *q > 0) {
                Some(q) => Ok(Value::Ratio(*p, q)),
                None => Err(Error::input("a bad fraction")),
            },
            ("FloorDiv" | "CleanDiv", [a, b]) => ratio(arith::floordiv(x, *a, *b)?),
            // `ceil(a / b) = -floor(-a / b)`.
            ("CeilDiv", [a, b]) => ratio(x.neg(arith::floordiv(x, x.neg(*a), *b)?)),
            ("Mod" | "PythonMod", [a, b]) => ratio(arith::modulo(x, *a, *b)?),
            // Inductor's name for `(a // b) % c`.
            ("ModularIndexing", [a, b, c]) => {
                let q = arith::floordiv(x, *a, *b)?;
                ratio(arith::modulo(x, q, *c)?)
            }
            ("IntTrueDiv", [a, b]) => Ok(Value::Quotient(*a, *b)),
            ("Pow" | "PowByNatural", [a, b]) => match x.as_int(*b) {
                Some(n) => ratio(arith::pow(x, *a, n).map_err(|e| e.context(name))?),
                None => Err(Error::unsupported(format!(
                    "`{name}` with a symbolic exponent in a symbolic size"
                ))),
            },
            // `a << b` is `a * 2^b` and `a >> b` is `floor(a / 2^b)`, for negative `a` too.
            ("LShift", [a, b]) if small(*b).is_some() => {
                let by = x.int(1 << small(*b).unwrap_or(0));
                ratio(arith::mul(x, *a, by)?)
            }
            ("RShift", [a, b]) if small(*b).is_some() => {
                let by = x.int(1 << small(*b).unwrap_or(0));
                ratio(arith::floordiv(x, *a, by)?)
            }
            ("Min", [first, rest @ ..]) => ratio(rest.iter().fold(*first, |a, b| x.min(a, *b))),
            ("Max", [first, rest @ ..]) => ratio(rest.iter().fold(*first, |a, b| x.max(a, *b))),
            _ => Err(Error::unsupported(format!(
                "`{name}` of {count} arguments in a symbolic size"
            ))),
        }
    }

    /// Evaluates functions of real numbers whose result is exact: integers, quotients of
    /// these, sums and products of short binary fractions.
    /// Returns `None` if the function is not one of these, or its result would not be exact in
    /// floating point.
    fn real(&self, name: &str, args: &[Value]) -> Result<Option<Value>> {
        let x = self.exprs;
        let whole = |v: &Value| match v {
            Value::Ratio(n, 1) => Some(*n),
            Value::Quotient(n, d) if x.as_int(*d) == Some(1) => Some(*n),
            _ => None,
        };
        match (name, args) {
            ("ToFloat", [a]) => return Ok(whole(a).map(|n| Value::Quotient(n, x.int(1)))),
            ("FloatTrueDiv", [a, b]) => {
                let both = whole(a).zip(whole(b));
                return Ok(both.map(|(a, b)| Value::Quotient(a, b)));
            }
            ("Add" | "Mul", _) if args.iter().any(|a| matches!(a, Value::Quotient(..))) => {}
            _ => return Ok(None),
        }
        let mut fractions = Vec::with_capacity(args.len());
        for a in args {
            let fraction = match a {
                Value::Ratio(n, d) => Some((*n, *d)),
                Value::Quotient(n, d) => x.as_int(*d).map(|d| (*n, d)),
                _ => None,
            };
            let short = |(n, d): &(Expr, i64)| {
                // A numerator that is symbolic is a size or a product of sizes.
                let factor = x.as_int(*n).is_none_or(|n| n.abs() <= EXACT);
                factor && (1..=EXACT).contains(d) && d.count_ones() == 1
            };
            match fraction.filter(short) {
                Some((n, d)) => fractions.push(Value::Ratio(n, d)),
                None => return Ok(None),
            }
        }
        match self.fold(name, fractions)? {
            // The product of several short denominators may be too long.
            Value::Ratio(n, d) if d <= EXACT => Ok(Some(Value::Quotient(n, x.int(d)))),
            _ => Ok(None),
        }
    }

    /// Evaluates roundings of `a / b`.
    fn round(&self, name: &str, args: &[Value]) -> Result<Option<Expr>> {
        let x = self.exprs;
        let [Value::Quotient(a, b)] = args else {
            return Ok(None);
        };
        // Truncation rounds towards zero, floor division downwards: they agree from zero on.
        let positive = x.range(*a).lo >= 0 && x.range(*b).lo > 0;
        Ok(Some(match name {
            "FloorToInt" => arith::floordiv(x, *a, *b)?,
            "CeilToInt" => x.neg(arith::floordiv(x, x.neg(*a), *b)?),
            "TruncToInt" if positive => arith::floordiv(x, *a, *b)?,
            _ => return Ok(None),
        }))
    }

    /// Evaluates sums and products, of fractions too.
    fn fold(&self, name: &str, args: Vec<Value>) -> Result<Value> {
        let x = self.exprs;
        let overflow = || Error::input("a fraction beyond 64 bits");
        let mut acc = (x.int((name == "Mul") as i64), 1i64);
        for a in args {
            let (n, d) = match a {
                Value::Ratio(n, d) => (n, d),
                other => (self.int(other, name)?, 1),
            };
            // Fractions are not reduced, because sympy writes few of them.
            let den = acc.1.checked_mul(d).ok_or_else(overflow)?;
            acc = if name == "Mul" {
                (arith::mul(x, acc.0, n)?, den)
            // Equal denominators add without growing: `s0/2 + 1/2` is `(s0 + 1)/2`.
            } else if d == acc.1 {
                (arith::add(x, acc.0, n)?, d)
            } else {
                let left = arith::mul(x, acc.0, x.int(d))?;
                let right = arith::mul(x, n, x.int(acc.1))?;
                (arith::add(x, left, right)?, den)
            };
        }
        Ok(Value::Ratio(acc.0, acc.1))
    }

    /// Builds a relation. Decides constants only: a proof from ranges may depend on the very
    /// assertion that is being read.
    fn relation(&self, r: (Relation, Expr, Expr)) -> Value {
        let constant = |e: Expr| self.exprs.as_int(e).is_some();
        match arith::decide(self.exprs, r).filter(|_| constant(r.1) && constant(r.2)) {
            Some(true) => Value::Bool(Vec::new()),
            Some(false) => Value::OtherBool,
            None => Value::Bool(vec![r]),
        }
    }

    /// Evaluates `And`, and `Not` of a single relation. `Or`, and `Not` of several relations, are
    /// no conjunctions.
    fn logic(&self, name: &str, args: Vec<Value>) -> Result<Value> {
        let mut all = Vec::new();
        let count = args.len();
        for a in args {
            match a {
                Value::Bool(r) => all.push(r),
                Value::OtherBool => return Ok(Value::OtherBool),
                _ => {
                    return Err(Error::input(format!("`{name}` takes conditions")));
                }
            }
        }
        Ok(match (name, count) {
            ("And", _) => Value::Bool(all.concat()),
            ("Not", 1) if all[0].len() == 1 => Value::Bool(vec![arith::negated(all[0][0])]),
            _ => Value::OtherBool,
        })
    }
}
