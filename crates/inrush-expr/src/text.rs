//! Text form: `2*s0 + 1`, `i0 // 4`, `i1 % s0`, `min(a, b)`.

use crate::{Expr, Exprs, Node, Sym};
use inrush_base::Result;
use inrush_base::text::{Scanner, Token};
use std::fmt::Write;

/// Deepest nesting that the parser accepts, because text is untrusted.
const MAX_DEPTH: usize = 200;
/// Most terms that a parsed product may expand to.
const MAX_TERMS: usize = 1000;

impl Exprs {
    /// Returns the text of `e`.
    pub fn show(&self, e: Expr) -> String {
        self.show_with(e, &|s| self.sym_info(s).name)
    }

    /// Returns the text of `e` with symbols named by the caller (two loop indices may bear one
    /// name).
    pub fn show_with(&self, e: Expr, name: &dyn Fn(Sym) -> String) -> String {
        let mut out = String::new();
        self.write(e, 0, name, &mut out);
        out
    }

    /// Returns `[a, b, c]`.
    pub fn show_list(&self, es: &[Expr]) -> String {
        let parts: Vec<String> = es.iter().map(|e| self.show(*e)).collect();
        format!("[{}]", parts.join(", "))
    }

    /// Levels: 0 sum, 1 product, 2 atom.
    fn write(&self, e: Expr, level: u8, name: &dyn Fn(Sym) -> String, out: &mut String) {
        match self.node(e) {
            Node::Const(v) if v < 0 && level > 0 => _ = write!(out, "({v})"),
            Node::Const(v) => _ = write!(out, "{v}"),
            Node::Sym(s) => out.push_str(&name(s)),
            Node::Sum { base, terms } => {
                // A lone scaled term needs parentheses only where an atom is wanted.
                let alone = terms.len() == 1 && base == 0;
                let wrap = level > if alone { 1 } else { 0 };
                if wrap {
                    out.push('(');
                }
                let mut first = true;
                for (c, t) in &terms {
                    match (first, *c < 0) {
                        (true, true) => out.push('-'),
                        // Its magnitude alone is no number of 64 bits.
                        (false, true) if *c == i64::MIN => out.push_str(" + -"),
                        (false, true) => out.push_str(" - "),
                        (false, false) => out.push_str(" + "),
                        _ => {}
                    }
                    first = false;
                    let k = c.unsigned_abs();
                    if k != 1 {
                        _ = write!(out, "{k}*");
                    }
                    self.write(*t, if k == 1 { 1 } else { 2 }, name, out);
                }
                match base {
                    0 => {}
                    i64::MIN => _ = write!(out, " + {}", i64::MIN),
                    b if b < 0 => _ = write!(out, " - {}", b.unsigned_abs()),
                    b => _ = write!(out, " + {b}"),
                }
                if wrap {
                    out.push(')');
                }
            }
            Node::Product(f) => {
                if level > 1 {
                    out.push('(');
                }
                for (k, t) in f.iter().enumerate() {
                    if k > 0 {
                        out.push('*');
                    }
                    self.write(*t, 2, name, out);
                }
                if level > 1 {
                    out.push(')');
                }
            }
            Node::FloorDiv(a, b) => self.write_infix(a, " // ", b, name, out),
            Node::Mod(a, b) => self.write_infix(a, " % ", b, name, out),
            Node::Min(a, b) => self.write_call("min", a, b, name, out),
            Node::Max(a, b) => self.write_call("max", a, b, name, out),
        }
    }

    /// Writes `(a // b)`. Parentheses are always written, since floor division and remainder do not
    /// associate.
    fn write_infix(
        &self,
        a: Expr,
        op: &str,
        b: Expr,
        name: &dyn Fn(Sym) -> String,
        out: &mut String,
    ) {
        out.push('(');
        self.write(a, 2, name, out);
        out.push_str(op);
        self.write(b, 2, name, out);
        out.push(')');
    }

    /// Writes `min(a, b)`.
    fn write_call(
        &self,
        f: &str,
        a: Expr,
        b: Expr,
        name: &dyn Fn(Sym) -> String,
        out: &mut String,
    ) {
        _ = write!(out, "{f}(");
        self.write(a, 0, name, out);
        out.push_str(", ");
        self.write(b, 0, name, out);
        out.push(')');
    }

    /// Reads an expression; `symbol` resolves names (loop indices and sizes are in different scopes at different levels).
    pub fn parse(&self, s: &mut Scanner, symbol: &dyn Fn(&str) -> Option<Sym>) -> Result<Expr> {
        self.parse_sum(s, symbol, 0)
    }

    fn parse_sum(
        &self,
        s: &mut Scanner,
        symbol: &dyn Fn(&str) -> Option<Sym>,
        depth: usize,
    ) -> Result<Expr> {
        if depth > MAX_DEPTH {
            return Err(s.error("expression nested too deeply"));
        }
        let mut acc = self.parse_product(s, symbol, depth)?;
        loop {
            if s.eat("+")? {
                acc = self.add(acc, self.parse_product(s, symbol, depth)?);
            } else if s.eat("-")? {
                acc = self.sub(acc, self.parse_product(s, symbol, depth)?);
            } else {
                return Ok(acc);
            }
        }
    }

    fn parse_product(
        &self,
        s: &mut Scanner,
        symbol: &dyn Fn(&str) -> Option<Sym>,
        mut depth: usize,
    ) -> Result<Expr> {
        let mut acc = self.parse_atom(s, symbol, depth)?;
        loop {
            // A chain of divisions nests as deeply as it is long.
            depth += 1;
            if depth > 2 * MAX_DEPTH {
                return Err(s.error("expression nested too deeply"));
            }
            if s.eat("*")? {
                let b = self.parse_atom(s, symbol, depth)?;
                // Products are expanded.
                if self.terms(acc).1.len() * self.terms(b).1.len() > MAX_TERMS {
                    return Err(s.error("product of sums that are too long"));
                }
                acc = self.mul(acc, b);
            } else if s.eat("//")? {
                let b = self.parse_atom(s, symbol, depth)?;
                acc = self.floordiv(acc, b);
            } else if s.eat("%")? {
                let b = self.parse_atom(s, symbol, depth)?;
                acc = self.modulo(acc, b);
            } else {
                return Ok(acc);
            }
        }
    }

    fn parse_atom(
        &self,
        s: &mut Scanner,
        symbol: &dyn Fn(&str) -> Option<Sym>,
        depth: usize,
    ) -> Result<Expr> {
        if s.eat("-")? {
            if let Token::Int(v) = s.peek()? {
                let v = v.wrapping_neg();
                s.next_token()?;
                return Ok(self.int(v));
            }
            if depth > MAX_DEPTH {
                return Err(s.error("expression nested too deeply"));
            }
            return Ok(self.neg(self.parse_atom(s, symbol, depth + 1)?));
        }
        if s.eat("(")? {
            let e = self.parse_sum(s, symbol, depth + 1)?;
            s.expect(")")?;
            return Ok(e);
        }
        match s.next_token()? {
            Token::Int(v) => Ok(self.int(v)),
            Token::Ident(name) if (name == "min" || name == "max") && s.eat("(")? => {
                let a = self.parse_sum(s, symbol, depth + 1)?;
                s.expect(",")?;
                let b = self.parse_sum(s, symbol, depth + 1)?;
                s.expect(")")?;
                Ok(if name == "min" {
                    self.min(a, b)
                } else {
                    self.max(a, b)
                })
            }
            Token::Ident(name) => match symbol(&name) {
                Some(sym) => Ok(self.sym_expr(sym)),
                None => Err(s.error(format!("unknown symbol `{name}`"))),
            },
            _ => Err(s.error("expected an expression")),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::Exprs;
    use inrush_base::text::Scanner;

    #[test]
    fn index_arithmetic_collapses() {
        let ex = Exprs::new();
        let s = ex.sym_expr(ex.size_sym("s0", 1, i64::MAX));
        let (i, j) = (ex.index(0, s), ex.index(1, ex.int(64)));
        let flat = ex.add(ex.mul(i, ex.int(64)), j);
        assert_eq!(ex.floordiv(flat, ex.int(64)), i);
        assert_eq!(ex.modulo(flat, ex.int(64)), j);
        let k = ex.index(2, s);
        let flat = ex.add(ex.mul(j, s), k);
        assert_eq!(ex.floordiv(flat, s), j);
        assert_eq!(ex.modulo(flat, s), k);
        let both = ex.add(ex.mul(i, ex.int(64)), ex.int(8));
        assert_eq!(ex.show(ex.floordiv(both, ex.int(16))), "4*i0");
        assert_eq!(ex.show(ex.modulo(both, ex.int(16))), "8");
        assert_eq!(
            ex.divide_exact(ex.mul(s, ex.int(12)), ex.mul(s, ex.int(4))),
            Some(ex.int(3))
        );
    }

    #[test]
    fn hostile_text_is_an_error() {
        let ex = Exprs::new();
        ex.size_sym("s0", 0, i64::MAX);
        let symbol = |n: &str| ex.sym_by_name(n);
        let wide = (0..200).map(|k| format!("s0 // {}", k + 2));
        let wide = format!("({})", wide.collect::<Vec<_>>().join(" + "));
        for t in [
            "(".repeat(100_000),
            "-".repeat(100_000),
            format!("s0{}", " % 7 // 3".repeat(100_000)),
            "min(s0, ".repeat(100_000),
            format!("{wide} * {wide}"),
            "s0 +".into(),
        ] {
            assert!(
                ex.parse(&mut Scanner::new(&t), &symbol).is_err(),
                "{:.40}",
                t
            );
        }
    }

    #[test]
    fn text_reads_back() {
        let ex = Exprs::new();
        ex.size_sym("s0", 2, 100);
        ex.size_sym("s1", 0, i64::MAX);
        let symbol = |n: &str| ex.sym_by_name(n);
        for t in [
            "2*s0 + 1",
            "(s0 // 3)",
            "((s0 + s1) % 7)",
            "s0*s1 - 4",
            "min(s0, s1)",
            "-s0",
            "3*(s0 // (2*s1 + 2))",
            "s0 + -9223372036854775808*s1",
            "s0 + -9223372036854775808",
        ] {
            let e = ex.parse(&mut Scanner::new(t), &symbol).unwrap();
            assert_eq!(ex.show(e), t);
            assert_eq!(
                ex.parse(&mut Scanner::new(&ex.show(e)), &symbol).unwrap(),
                e
            );
        }
    }
}
