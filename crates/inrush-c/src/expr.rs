//! Index expressions as C text in 64-bit integers.

use crate::function::Emitter;
use inrush_base::{Error, Result};
use inrush_expr::{Expr, Node, Sym};

impl Emitter<'_> {
    /// The text of `e`. With `each`, it is evaluated for lane `k`: the lane index and symbols that vary are per lane.
    pub(crate) fn expr(&mut self, e: Expr, each: bool) -> Result<String> {
        self.expr_at(e, each, 0)
    }

    /// Levels: 0 sum, 1 factor.
    fn expr_at(&mut self, e: Expr, each: bool, level: u8) -> Result<String> {
        let exprs = self.exprs;
        Ok(match exprs.node(e) {
            Node::Const(v) => {
                if v == i64::MIN {
                    "(-9223372036854775807ll-1)".into()
                } else if v < 0 {
                    format!("({v}ll)")
                } else if v > i32::MAX as i64 {
                    format!("{v}ll")
                } else {
                    v.to_string()
                }
            }
            Node::Sym(s) => self.sym(s, each)?,
            Node::Sum { base, terms } => {
                let mut out = String::new();
                for (c, t) in terms {
                    let negative = c < 0;
                    let k = c.unsigned_abs();
                    let text = self.expr_at(t, each, 1)?;
                    if !out.is_empty() || negative {
                        out.push_str(if negative { "-" } else { "+" });
                    }
                    if k != 1 {
                        let suffix = if k > i32::MAX as u64 { "ll" } else { "" };
                        out.push_str(&format!("{k}{suffix}*"));
                    }
                    out.push_str(&text);
                }
                if base != 0 {
                    let sign = if base < 0 { "-" } else { "+" };
                    out.push_str(&format!("{sign}{}ll", base.unsigned_abs()));
                }
                if level > 0 { format!("({out})") } else { out }
            }
            Node::Product(f) => {
                let parts: Vec<String> = f
                    .iter()
                    .map(|t| self.expr_at(*t, each, 1))
                    .collect::<Result<_>>()?;
                parts.join("*")
            }
            Node::FloorDiv(a, b) => self.divide("div", "/", a, b, each)?,
            Node::Mod(a, b) => self.divide("mod", "%", a, b, each)?,
            Node::Min(a, b) => self.pick("<", a, b, each)?,
            Node::Max(a, b) => self.pick(">", a, b, each)?,
        })
    }

    fn divide(
        &mut self,
        name: &'static str,
        op: &str,
        a: Expr,
        b: Expr,
        each: bool,
    ) -> Result<String> {
        let exprs = self.exprs;
        let (ra, rb) = (exprs.range(a), exprs.range(b));
        let plain = exprs.prove_nonneg(a) && rb.lo > 0;
        let small = plain && ra.hi <= u32::MAX as i64 && rb.hi <= u32::MAX as i64;
        let (a, b) = (self.expr_at(a, each, 1)?, self.expr_at(b, each, 1)?);
        Ok(if small {
            // 32-bit division is several times faster.
            format!("((i64)((u32){}{op}(u32){}))", atom(&a), atom(&b))
        } else if plain {
            format!("({}{op}{})", atom(&a), atom(&b))
        } else {
            let f = self.helpers.index_div(name);
            format!("{f}({a}, {b})")
        })
    }

    fn pick(&mut self, op: &str, a: Expr, b: Expr, each: bool) -> Result<String> {
        let (a, b) = (self.expr_at(a, each, 1)?, self.expr_at(b, each, 1)?);
        Ok(format!("({a}{op}{b}?{a}:{b})"))
    }

    pub(crate) fn sym(&mut self, s: Sym, each: bool) -> Result<String> {
        let suffix = self.suffix();
        if self.lane.as_ref().is_some_and(|l| l.sym == s) {
            let name = format!("{}{suffix}", self.names[&s].0);
            return Ok(if each { format!("({name}+k)") } else { name });
        }
        match self.names.get(&s) {
            Some((name, true)) if each => Ok(format!("{name}{suffix}[k]")),
            Some((name, false)) => Ok(name.clone()),
            _ => Err(Error::internal(format!(
                "the symbol `{}` has no value here",
                self.exprs.sym_info(s).name
            ))),
        }
    }
}

/// Parenthesised unless it is one token or one pair of parentheses.
fn atom(text: &str) -> String {
    if text.bytes().all(|b| b.is_ascii_alphanumeric()) || is_wrapped(text) {
        text.into()
    } else {
        format!("({text})")
    }
}

/// The first character's parenthesis closes at the last one: `(a)*(b)` is not wrapped.
fn is_wrapped(text: &str) -> bool {
    let mut depth = 0usize;
    for (at, b) in text.bytes().enumerate() {
        match b {
            b'(' => depth += 1,
            b')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 {
            return at > 0 && at + 1 == text.len();
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::atom;

    #[test]
    fn a_product_of_parentheses_is_no_atom() {
        assert_eq!(atom("(a)*(b)"), "((a)*(b))");
        assert_eq!(atom("(a*(b))"), "(a*(b))");
        assert_eq!(atom("i0"), "i0");
        assert_eq!(atom("i0*4"), "(i0*4)");
        assert_eq!(atom("(i64)(x)"), "((i64)(x))");
    }
}
