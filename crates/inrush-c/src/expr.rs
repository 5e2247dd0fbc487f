//! Index expressions as C text in 64-bit integers.
//!
//! ```text
//! s0*4 + i0 // 3         4*s0+((i64)((u32)i0/(u32)3))       operands that fit 32 bits
//! (i0 - 3) mod s0        ixmod((i0-3ll), s0)                a dividend that may be negative
//! min(i0, s0)            (i0<s0?i0:s0)
//! ```
//!
//! Index arithmetic floors, while C truncates towards zero. The ranges of symbols tell where both
//! agree, which is almost everywhere.

use crate::kernel::Emitter;
use crate::text::Text;
use crate::types::CType;
use inrush_base::{Error, Result, digits};
use inrush_expr::{Expr, Node, Sym};
use std::fmt::Write;

impl Emitter<'_> {
    /// The text of `e`. With `each`, it is evaluated for lane `k`: the lane index and symbols that vary are per lane.
    pub(crate) fn expr(&mut self, e: Expr, each: bool) -> Result<String> {
        let mut out = String::with_capacity(32);
        self.expr_at(&mut out, e, each, 0)?;
        Ok(out)
    }

    /// Adds the text of `e`. Levels: 0 sum, 1 factor.
    fn expr_at(&mut self, out: &mut String, e: Expr, each: bool, level: u8) -> Result<()> {
        let exprs = self.exprs;
        match exprs.node(e) {
            Node::Const(i64::MIN) => out.push_str("(-9223372036854775807ll-1)"),
            Node::Const(v) => {
                let number = digits(v.unsigned_abs());
                match v {
                    ..0 => ["(-", &number, "ll)"].put(out),
                    _ if v > i32::MAX as i64 => [&*number, "ll"].put(out),
                    _ => out.push_str(&number),
                }
            }
            Node::Sym(s) => self.sym_at(out, s, each)?,
            Node::Sum { base, terms } => {
                if level > 0 {
                    out.push('(');
                }
                // A coefficient of one is left out, and a minus takes the place of the plus.
                for (at, (c, t)) in terms.into_iter().enumerate() {
                    if at > 0 || c < 0 {
                        out.push(if c < 0 { '-' } else { '+' });
                    }
                    let k = c.unsigned_abs();
                    if k != 1 {
                        let suffix = if k > i32::MAX as u64 { "ll" } else { "" };
                        [&*digits(k), suffix, "*"].put(out);
                    }
                    self.expr_at(out, t, each, 1)?;
                }
                if base != 0 {
                    let sign = if base < 0 { "-" } else { "+" };
                    [sign, &digits(base.unsigned_abs()), "ll"].put(out);
                }
                if level > 0 {
                    out.push(')');
                }
            }
            Node::Product(f) => {
                for (at, t) in f.into_iter().enumerate() {
                    if at > 0 {
                        out.push('*');
                    }
                    self.expr_at(out, t, each, 1)?;
                }
            }
            Node::FloorDiv(a, b) => self.divide(out, "div", "/", a, b, each)?,
            Node::Mod(a, b) => self.divide(out, "mod", "%", a, b, each)?,
            Node::Min(a, b) => self.pick(out, "<", a, b, each)?,
            Node::Max(a, b) => self.pick(out, ">", a, b, each)?,
        }
        Ok(())
    }

    /// The terms of `e` that are the same for all lanes, and the others.
    pub(crate) fn parted(&self, e: Expr) -> (Expr, Expr) {
        let exprs = self.exprs;
        let Node::Sum { base, terms } = exprs.node(e) else {
            return if self.expr_varies(e) {
                (exprs.int(0), e)
            } else {
                (e, exprs.int(0))
            };
        };
        // Gathers and scatters add the first to the pointer, and take the others as 32-bit offsets.
        let (varying, same): (Vec<_>, Vec<_>) =
            (terms.into_iter()).partition(|(_, t)| self.expr_varies(*t));
        let sum = |terms: Vec<(i64, Expr)>, base: i64| {
            let terms = terms.iter().map(|(c, t)| exprs.mul(exprs.int(*c), *t));
            exprs.add(exprs.sum(terms), exprs.int(base))
        };
        (sum(same, base), sum(varying, 0))
    }

    /// `e` as a vector of `i32`; `None` where it may need more bits, or holds a symbol that lanes have as 64 bits only.
    pub(crate) fn short_expr(&mut self, e: Expr) -> Result<Option<String>> {
        let exprs = self.exprs;
        // The whole has to fit; parts may wrap, which cancels.
        let fits = |e: Expr| {
            let r = exprs.range(e);
            r.lo >= i32::MIN.into() && r.hi <= i32::MAX.into()
        };
        if fits(e) { self.low_bits(e) } else { Ok(None) }
    }

    /// The low 32 bits of `e` by lanes: sums and products of such bits are those of the sum and the product.
    fn low_bits(&mut self, e: Expr) -> Result<Option<String>> {
        let exprs = self.exprs;
        let w = self.width();
        let broadcast = self.helpers.broadcast(CType::I32, w);
        if !self.expr_varies(e) {
            let text = self.expr(e, false)?;
            return Ok(Some(format!("{broadcast}((i32)({text}))")));
        }
        let mut out = String::from("(");
        match exprs.node(e) {
            Node::Sym(s) => {
                if self.state.lane.as_ref().is_some_and(|l| l.sym == s) {
                    let iota = self.helpers.iota(CType::I32, w);
                    let first = self.sym(s, false)?;
                    return Ok(Some(format!("({broadcast}((i32){first}) + {iota})")));
                }
                let short = self.short.get(&s).copied();
                let name = short.map(|v| self.lanes_name('n', v));
                return Ok(name.map(|n| n.to_string()));
            }
            Node::Sum { base, terms } => {
                let mut plus = "";
                for (c, t) in terms {
                    let Some(t) = self.low_bits(t)? else {
                        return Ok(None);
                    };
                    out += plus;
                    out += &t;
                    if c != 1 {
                        _ = write!(out, " * {broadcast}({})", c as i32);
                    }
                    plus = " + ";
                }
                if base != 0 {
                    _ = write!(out, " + {broadcast}({})", base as i32);
                }
            }
            Node::Product(factors) => {
                let mut times = "";
                for t in factors {
                    let Some(t) = self.low_bits(t)? else {
                        return Ok(None);
                    };
                    out += times;
                    out += &t;
                    times = " * ";
                }
            }
            // Numbers known to the compiler, which has no instruction for other quotients.
            Node::FloorDiv(a, n) | Node::Mod(a, n) => {
                let n = exprs
                    .as_int(n)
                    .filter(|n| (1..=i32::MAX.into()).contains(n));
                let Some(n) = n else { return Ok(None) };
                let Some((a, more)) = self.dividend(a, n)? else {
                    return Ok(None);
                };
                _ = match exprs.node(e) {
                    Node::Mod(..) => write!(out, "{a} % {n}"),
                    _ if more == 0 => write!(out, "{a} / {n}"),
                    _ => write!(out, "{a} / {n} - {broadcast}({more})"),
                };
            }
            Node::Const(_) | Node::Min(..) | Node::Max(..) => return Ok(None),
        }
        Ok(Some(out + ")"))
    }

    /// A dividend, as all bits of it, made one that is not negative by so many times the divisor.
    fn dividend(&mut self, a: Expr, n: i64) -> Result<Option<(String, i64)>> {
        let exprs = self.exprs;
        // Quotients do not survive wrapping: the dividend itself has to fit, and be nonnegative,
        // where truncation floors.
        let range = exprs.range(a);
        if exprs.prove_nonneg(a) {
            return Ok(self.short_expr(a)?.map(|a| (a, 0)));
        }
        if range.lo < i32::MIN.into() || range.hi > i32::MAX.into() {
            return Ok(None);
        }
        let more = (n - 1 - range.lo) / n;
        let moved = exprs.add(a, exprs.int(more * n));
        Ok(self.short_expr(moved)?.map(|a| (a, more)))
    }

    /// The text of a factor.
    fn factor(&mut self, e: Expr, each: bool) -> Result<String> {
        let mut out = String::new();
        self.expr_at(&mut out, e, each, 1)?;
        Ok(out)
    }

    /// Writes a quotient or remainder: an operator of C where the dividend is known to be
    /// nonnegative and the divisor positive, else a helper that floors.
    fn divide(
        &mut self,
        out: &mut String,
        name: &'static str,
        op: &str,
        a: Expr,
        b: Expr,
        each: bool,
    ) -> Result<()> {
        let exprs = self.exprs;
        let (ra, rb) = (exprs.range(a), exprs.range(b));
        let plain = exprs.prove_nonneg(a) && rb.lo > 0;
        let small = plain && ra.hi <= u32::MAX as i64 && rb.hi <= u32::MAX as i64;
        let (a, b) = (self.factor(a, each)?, self.factor(b, each)?);
        _ = if small {
            // 32-bit division is several times faster.
            write!(out, "((i64)((u32){}{op}(u32){}))", atom(&a), atom(&b))
        } else if plain {
            write!(out, "({}{op}{})", atom(&a), atom(&b))
        } else {
            let f = self.helpers.index_div(name);
            write!(out, "{f}({a}, {b})")
        };
        Ok(())
    }

    /// Writes a minimum or maximum. Both operands stand twice in the text, which is short for most.
    fn pick(&mut self, out: &mut String, op: &str, a: Expr, b: Expr, each: bool) -> Result<()> {
        let (a, b) = (self.factor(a, each)?, self.factor(b, each)?);
        _ = write!(out, "({a}{op}{b}?{a}:{b})");
        Ok(())
    }

    /// The text of a symbol; an error if it has no value in the open loops.
    pub(crate) fn sym(&mut self, s: Sym, each: bool) -> Result<String> {
        let mut out = String::new();
        self.sym_at(&mut out, s, each)?;
        Ok(out)
    }

    /// Adds the text of a symbol. The open loop's own is its name plus the lane; one from data is
    /// an element of a vector. Without `each` a symbol that varies has no text.
    fn sym_at(&mut self, out: &mut String, s: Sym, each: bool) -> Result<()> {
        let Some((name, varies)) = self.names.get(&s) else {
            return Err(self.no_symbol(s));
        };
        let is_lane = self.state.lane.as_ref().is_some_and(|l| l.sym == s);
        let open = if is_lane && each { "(" } else { "" };
        let close = match (is_lane, varies, each) {
            (true, _, true) => "+k)",
            (true, _, false) | (false, false, _) => "",
            (false, true, true) => "[k]",
            (false, true, false) => return Err(self.no_symbol(s)),
        };
        out.push_str(open);
        out.push_str(name);
        if let Some(l) = &self.state.lane
            && (l.copied(s) || *varies && l.copies > 1)
        {
            ["_", &digits(l.copy)].put(out);
        }
        out.push_str(close);
        Ok(())
    }

    fn no_symbol(&self, s: Sym) -> Error {
        Error::internal(format!(
            "the symbol `{}` has no value here",
            self.exprs.sym_info(s).name
        ))
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
