//! Index expressions.
//!
//! Offsets have 32 bits unless some offset of the block needs more (`Block::wide`). A value of 64
//! bits whose parts all fit 32 is computed in these and widened at the end; otherwise each symbol
//! is widened first.

use crate::function::Emitter;
use inrush_base::{Error, Result};
use inrush_expr::{Expr, Node, Sym};

/// How tightly the text around an expression binds.
#[derive(Copy, Clone, PartialEq, PartialOrd)]
enum Level {
    Sum,
    Factor,
}

impl Emitter<'_> {
    /// An offset in the kernel's index type.
    pub(crate) fn offset(&self, e: Expr) -> Result<String> {
        self.expr_at(e, Level::Sum, false)
    }

    /// A value of 64 bits: in 32 where nothing on the way exceeds them.
    pub(crate) fn wide_expr(&self, e: Expr) -> Result<(String, bool)> {
        let widen = !self.block.wide && !self.fits(e);
        Ok((
            self.expr_at(e, Level::Sum, widen)?,
            widen || self.block.wide,
        ))
    }

    /// Returns true if `e` and all its parts stay below 2^31.
    pub(crate) fn fits(&self, e: Expr) -> bool {
        let r = self.exprs.range(e);
        let own = r.lo >= i32::MIN as i64 && r.hi <= i32::MAX as i64;
        own && match self.exprs.node(e) {
            Node::Const(_) | Node::Sym(_) => true,
            Node::Sum { terms, .. } => terms.iter().all(|(_, t)| self.fits(*t)),
            Node::Product(f) => f.iter().all(|t| self.fits(*t)),
            Node::FloorDiv(a, b) | Node::Mod(a, b) | Node::Min(a, b) | Node::Max(a, b) => {
                self.fits(a) && self.fits(b)
            }
        }
    }

    fn expr_at(&self, e: Expr, level: Level, widen: bool) -> Result<String> {
        let ex = self.exprs;
        let wrap = |text: String, own: Level| match own < level {
            true => format!("({text})"),
            false => text,
        };
        Ok(match ex.node(e) {
            Node::Const(v) if v < 0 => format!("({v})"),
            Node::Const(v) => v.to_string(),
            Node::Sym(s) => self.sym(s, widen)?,
            Node::Sum { base, terms } => {
                let mut out = String::new();
                for (c, t) in terms {
                    let text = self.expr_at(t, Level::Factor, widen)?;
                    let (sign, k) = (c < 0, c.unsigned_abs());
                    match (out.is_empty(), sign) {
                        (true, true) => out.push('-'),
                        (true, false) => {}
                        (false, true) => out.push_str(" - "),
                        (false, false) => out.push_str(" + "),
                    }
                    match k {
                        1 => out.push_str(&text),
                        k => out.push_str(&format!("{k} * {text}")),
                    }
                }
                match base {
                    0 => {}
                    b if b < 0 => out.push_str(&format!(" - {}", b.unsigned_abs())),
                    b => out.push_str(&format!(" + {b}")),
                }
                wrap(out, Level::Sum)
            }
            Node::Product(f) => {
                let parts: Vec<String> = (f.iter())
                    .map(|t| self.expr_at(*t, Level::Factor, widen))
                    .collect::<Result<_>>()?;
                format!("({})", parts.join(" * "))
            }
            Node::FloorDiv(a, b) => self.divide("//", "floor_div", a, b, widen)?,
            Node::Mod(a, b) => self.divide("%", "int_remainder", a, b, widen)?,
            Node::Min(a, b) => self.call("tl.minimum", a, b, widen)?,
            Node::Max(a, b) => self.call("tl.maximum", a, b, widen)?,
        })
    }

    /// Division of the language truncates: the same where nothing is negative.
    fn divide(&self, op: &str, helper: &str, a: Expr, b: Expr, widen: bool) -> Result<String> {
        if self.exprs.prove_nonneg(a) && self.exprs.range(b).lo > 0 {
            let a = self.expr_at(a, Level::Factor, widen)?;
            let b = self.expr_at(b, Level::Factor, widen)?;
            return Ok(format!("({a} {op} {b})"));
        }
        self.call(helper, a, b, widen)
    }

    /// Spells a call with two operands.
    fn call(&self, f: &str, a: Expr, b: Expr, widen: bool) -> Result<String> {
        let a = self.expr_at(a, Level::Sum, widen)?;
        let b = self.expr_at(b, Level::Sum, widen)?;
        Ok(format!("{f}({a}, {b})"))
    }

    /// Returns the name of a symbol; an error if nothing has defined it yet.
    fn sym(&self, s: Sym, widen: bool) -> Result<String> {
        let Some(name) = self.names.symbols.get(&s) else {
            let info = self.exprs.sym_info(s);
            return Err(Error::internal(format!(
                "the symbol `{}` has no value here",
                info.name
            )));
        };
        Ok(match widen {
            true => format!("{name}.to(tl.int64)"),
            false => name.clone(),
        })
    }
}
