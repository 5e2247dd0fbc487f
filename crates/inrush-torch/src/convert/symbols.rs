//! Symbolic sizes of an archive as expressions.
//!
//! An archive repeats an expression's text at each tensor that has such a size, so texts are
//! parsed once. A symbol is declared when a text first names it, and the place where that happens
//! decides its kind: sizes and integers of inputs are bound when a call begins, symbols that
//! nodes introduce (`u0`, the number of nonzero elements) are read from data. So the inputs must
//! be converted before the nodes.

use crate::arith::Relations;

use crate::json::{Pairs, Text};
use crate::schema::{Hint, RangeConstraint, SymExpr, SymInt};
use crate::srepr::{self, Parsed, SymbolText};
use inrush_base::{Error, Result};
use inrush_expr::{Expr, Exprs, Sym, SymKind};
use rustc_hash::FxHashMap;

/// Declares symbols at their first occurrence, and memoizes the expression of each text.
pub struct Symbols<'a> {
    /// Inclusive bounds of symbols and of expressions such as `2*s0`, by sympy's printed form;
    /// `i64::MIN` and `i64::MAX` where there is none.
    ranges: FxHashMap<&'a str, (i64, i64)>,
    /// By the text of `srepr`.
    parsed: FxHashMap<&'a str, Parsed>,
    /// Symbols met now are sizes of inputs, or integer inputs; those met later come from data.
    pub meeting: Meeting,
}

/// The part of the program that is being converted.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Meeting {
    /// Sizes and strides of inputs: not negative.
    InputSize,
    /// An integer that the caller passes: may be negative.
    InputInteger,
    /// Results of nodes: the value is known only when the node has run.
    Body,
}

impl<'a> Symbols<'a> {
    /// Reads the declared ranges; an empty one is an error.
    pub fn new(constraints: &'a Pairs<'a, RangeConstraint>) -> Result<Symbols<'a>> {
        let mut ranges = FxHashMap::default();
        for (name, r) in &constraints.0 {
            // Floats saturate, so that anything near the ends is no bound.
            let lower = r.min_val.map_or(i64::MIN, |v| v.0 as i64);
            let upper = r.max_val.map_or(i64::MAX, |v| v.0 as i64);
            if lower > upper {
                return Err(Error::input(format!(
                    "range_constraints: the range of `{name}` is empty: {lower} to {upper}"
                )));
            }
            ranges.insert(&**name, (lower, upper));
        }
        Ok(Symbols {
            ranges,
            parsed: FxHashMap::default(),
            meeting: Meeting::InputSize,
        })
    }

    /// Returns the symbols of a body: the same ranges, and expressions of its own.
    pub fn of_body(&self) -> Symbols<'a> {
        Symbols {
            ranges: self.ranges.clone(),
            parsed: FxHashMap::default(),
            meeting: Meeting::InputSize,
        }
    }

    /// Constraints on expressions that are no lone symbol, such as `2*s0`.
    /// Sorted, as the order of a hash map must not reach the output. Symbols that the graph does
    /// not use are among them.
    pub fn derived(&self, exprs: &Exprs) -> Vec<(&'a str, i64, i64)> {
        let mut out: Vec<_> = (self.ranges.iter())
            .filter(|(name, _)| exprs.sym_by_name(name).is_none())
            .map(|(name, (lower, upper))| (*name, *lower, *upper))
            .collect();
        out.sort_unstable();
        out
    }

    /// Returns the meaning of an expression, and declares its new symbols.
    fn parse(&mut self, exprs: &Exprs, e: &'a SymExpr<'a>) -> Result<&Parsed> {
        let text: &'a str = &e.expr_str;
        if !self.parsed.contains_key(text) {
            let (ranges, meeting) = (&self.ranges, self.meeting);
            let parsed = srepr::parse(exprs, text, &mut |s| {
                Ok(exprs.sym_expr(symbol(exprs, ranges, meeting, &s)))
            })?;
            // The hint of an expression that is a lone symbol is that symbol's.
            if let (Parsed::Int(v), Some(Hint::Int(hint))) = (&parsed, &e.hint)
                && let Some(sym) = exprs.as_sym(*v)
            {
                exprs.set_hint(sym, *hint);
            }
            self.parsed.insert(text, parsed);
        }
        Ok(&self.parsed[text])
    }

    /// Returns the expression of a size or stride. Fails if it is a real number or a condition.
    pub fn int(&mut self, exprs: &Exprs, s: &'a SymInt<'a>) -> Result<Expr> {
        match s {
            SymInt::Int(v) => Ok(exprs.int(*v)),
            SymInt::Expr(e) => match self.parse(exprs, e)? {
                Parsed::Int(v) => Ok(*v),
                Parsed::Real(f) => Err(Error::unsupported(format!(
                    "`{f}` in the symbolic integer `{}`",
                    crate::lex::shorten(&e.expr_str)
                ))),
                _ => Err(Error::input(format!(
                    "the symbolic integer `{}` is a condition",
                    crate::lex::shorten(&e.expr_str)
                ))),
            },
            SymInt::Unknown(k) => Err(unknown("symbolic integer", k)),
        }
    }

    /// Returns the relations that the condition demands; `None` when it is no conjunction of
    /// relations.
    pub fn relations(&mut self, exprs: &Exprs, e: &'a SymExpr<'a>) -> Result<Option<Relations>> {
        match self.parse(exprs, e)? {
            Parsed::Bool(r) => Ok(Some(r.clone())),
            _ => Ok(None),
        }
    }
}

/// Returns the error about a key that the schema of this reader does not have.
pub fn unknown(what: &str, key: &Text) -> Error {
    Error::unsupported(format!("an unknown kind of {what}: `{key}`"))
}

/// Returns the symbol of this name, declared if it is new: a later occurrence changes neither
/// kind nor range.
fn symbol(
    exprs: &Exprs,
    ranges: &FxHashMap<&str, (i64, i64)>,
    meeting: Meeting,
    s: &SymbolText,
) -> Sym {
    if let Some(sym) = exprs.sym_by_name(s.name) {
        return sym;
    }
    let assumed = match (s.positive, s.nonnegative) {
        (true, _) => 1,
        (_, true) => 0,
        _ => i64::MIN,
    };
    let (lower, upper) = match ranges.get(s.name) {
        // A declared range wins: export assumes positive sizes even where it accepts zero.
        Some(range) => *range,
        None => (assumed, i64::MAX),
    };
    match meeting {
        // Without a declared range and assumption the lower bound is `i64::MIN`, which no size
        // has.
        Meeting::InputSize => exprs.size_sym(s.name, lower.max(0), upper.max(0)),
        Meeting::InputInteger => exprs.size_sym(s.name, lower, upper),
        Meeting::Body => exprs.unbacked_sym(s.name, lower, upper),
    }
}

/// Returns true if all symbols of the relations are known when a call begins.
pub fn known_at_call(exprs: &Exprs, relations: &Relations) -> bool {
    relations.iter().all(|(_, a, b)| {
        [a, b]
            .into_iter()
            .all(|e| (exprs.free_syms(*e).iter()).all(|s| exprs.sym_info(*s).kind == SymKind::Size))
    })
}
