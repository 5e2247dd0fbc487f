//! Reads `guards_code`: Python conditions on the sizes of inputs, such as `L['x'].size()[0] % 2 ==
//! 0`.
//!
//! Only comparisons of integer arithmetic are read. The caller notes the others.
//!
//! Export generates one Python function that checks the inputs of a call; `guards_code` holds its
//! conditions. They restrict the sizes for which the graph is valid: `x.size(0) % 2 == 0` lets
//! the tracer simplify a reshape, and the graph itself does not repeat it. A relation becomes a
//! guard of the graph, checked at each call.
//!
//! Grammar, by recursive descent with Python's precedences:
//!
//! ```text
//! conjunction = comparison { "and" comparison }
//! comparison  = sum { ("==" | "!=" | "<=" | "<" | ">=" | ">") sum }     a chain is a conjunction
//! sum         = product { ("+" | "-") product }
//! product     = unary { ("*" | "//" | "%") unary }
//! unary       = "-" unary | atom [ "**" NUMBER ]
//! atom        = NUMBER | NAME | "(" sum ")" | ("min" | "max") "(" sum { "," sum } ")" | input
//! input       = "L[" STRING "]" { "[" (STRING | NUMBER) "]" } [ ".size()[" NUMBER "]" ]
//! ```
//!
//! The same parser reads the keys of `range_constraints`, sympy's printed form of an expression.

use crate::arith::{self, Relations};
use crate::lex::{Lexer, Token};
use inrush_base::{Error, Result};
use inrush_expr::{Expr, Exprs};

// Recursion is bounded, because the text is untrusted and a thread's stack is not growable. A
// text of this many bytes is no guard that export writes.
const MAX_DEPTH: usize = 64;
const MAX_LEN: usize = 16 << 10;

/// A step from an input's name to a part of it.
#[derive(Clone, PartialEq, Debug)]
pub enum Step<'a> {
    /// An item of a tuple or list.
    Index(usize),
    /// An item of a dictionary.
    Key(&'a str),
}

/// The part of an input that a condition reads.
#[derive(Copy, Clone, PartialEq, Debug)]
pub enum Part {
    /// The integer itself.
    Value,
    /// The size of a dimension; `Stride` is in elements.
    Size(usize),
    Stride(usize),
}

/// Gives the expression of a part of the input at `path` below the argument called `name`.
/// `None` means that there is no such input, dimension or symbol, and the condition cannot be
/// read.
pub type Resolve<'r> = dyn Fn(&str, &[Step], Part) -> Option<Expr> + 'r;

/// Reads the relations that `text` demands.
/// Fails on anything but a conjunction of integer comparisons; a disjunction or a condition on a
/// type or value is such a case. The relations read so far are dropped then, since half a
/// condition is none.
pub fn parse(exprs: &Exprs, text: &str, resolve: &Resolve) -> Result<Relations> {
    if text.len() > MAX_LEN {
        return Err(Error::unsupported("a guard of this length"));
    }
    let mut p = Parser {
        exprs,
        lexer: Lexer::new(text),
        resolve,
    };
    let mut out = Vec::new();
    loop {
        p.comparison(&mut out)?;
        match p.lexer.next()? {
            Token::Ident("and") => {}
            Token::End => return Ok(out),
            _ => return Err(p.lexer.error("not a conjunction of comparisons")),
        }
    }
}

/// Reads an arithmetic expression over symbols, as sympy prints it: `2*s0 + 1`.
pub fn arithmetic(exprs: &Exprs, text: &str, symbol: &Resolve) -> Result<Expr> {
    if text.len() > MAX_LEN {
        return Err(Error::unsupported("an expression of this length"));
    }
    let mut p = Parser {
        exprs,
        lexer: Lexer::new(text),
        resolve: symbol,
    };
    let e = p.sum(0)?;
    p.lexer.end()?;
    Ok(e)
}

struct Parser<'a, 'e> {
    exprs: &'e Exprs,
    lexer: Lexer<'a>,
    resolve: &'e Resolve<'e>,
}

impl Parser<'_, '_> {
    /// Reads `a < b`, or a chain `a <= b < c`.
    fn comparison(&mut self, out: &mut Relations) -> Result<()> {
        let mut left = self.sum(0)?;
        let mut any = false;
        while let Token::Punct(op @ ("==" | "!=" | "<=" | "<" | ">=" | ">")) = self.lexer.peek()? {
            self.lexer.next()?;
            let right = self.sum(0)?;
            out.extend(arith::relation(op, left, right));
            (left, any) = (right, true);
        }
        if any {
            Ok(())
        } else {
            Err(self.lexer.error("not a comparison"))
        }
    }

    /// Reads a sum. `depth` counts parentheses and calls around it.
    fn sum(&mut self, depth: usize) -> Result<Expr> {
        if depth > MAX_DEPTH {
            return Err(self.lexer.error("nested too deeply"));
        }
        let x = self.exprs;
        let mut acc = self.product(depth)?;
        loop {
            if self.lexer.eat("+")? {
                acc = arith::add(x, acc, self.product(depth)?)?;
            } else if self.lexer.eat("-")? {
                acc = arith::add(x, acc, x.neg(self.product(depth)?))?;
            } else {
                return Ok(acc);
            }
        }
    }

    fn product(&mut self, depth: usize) -> Result<Expr> {
        let x = self.exprs;
        let mut acc = self.unary(depth)?;
        loop {
            if self.lexer.eat("*")? {
                acc = arith::mul(x, acc, self.unary(depth)?)?;
            } else if self.lexer.eat("//")? {
                acc = arith::floordiv(x, acc, self.unary(depth)?)?;
            } else if self.lexer.eat("%")? {
                acc = arith::modulo(x, acc, self.unary(depth)?)?;
            } else {
                return Ok(acc);
            }
        }
    }

    fn unary(&mut self, depth: usize) -> Result<Expr> {
        if depth > MAX_DEPTH {
            return Err(self.lexer.error("nested too deeply"));
        }
        if self.lexer.eat("-")? {
            return Ok(self.exprs.neg(self.unary(depth + 1)?));
        }
        let base = self.atom(depth)?;
        // In Python a power binds closer than a sign to its left, so `unary` reads the sign
        // first. The exponent must be a literal: expressions have no symbolic powers.
        if self.lexer.eat("**")? {
            let Token::Number(n) = self.lexer.next()? else {
                return Err(self.lexer.error("a symbolic exponent"));
            };
            let n = self.number(n)?;
            return arith::pow(self.exprs, base, n);
        }
        Ok(base)
    }

    fn number(&self, digits: &str) -> Result<i64> {
        (digits.parse()).map_err(|_| self.lexer.error("not an integer of 64 bits"))
    }

    fn atom(&mut self, depth: usize) -> Result<Expr> {
        if self.lexer.eat("(")? {
            let e = self.sum(depth + 1)?;
            self.lexer.expect(")")?;
            return Ok(e);
        }
        match self.lexer.next()? {
            Token::Number(n) => Ok(self.exprs.int(self.number(n)?)),
            Token::Ident("L") => self.input(),
            // Capitals are sympy's, the others Python's.
            Token::Ident(f @ ("min" | "max" | "Min" | "Max")) => {
                self.lexer.expect("(")?;
                let mut acc = self.sum(depth + 1)?;
                while self.lexer.eat(",")? {
                    let b = self.sum(depth + 1)?;
                    acc = match f {
                        "min" | "Min" => self.exprs.min(acc, b),
                        _ => self.exprs.max(acc, b),
                    };
                }
                self.lexer.expect(")")?;
                Ok(acc)
            }
            // A lone symbol, `s0`, in keys of range constraints.
            Token::Ident(name) => self.find(name, &[], Part::Value),
            _ => Err(self.lexer.error("expected integer arithmetic")),
        }
    }

    /// Reads the rest of `L['args'][0].size()[1]`.
    fn input(&mut self) -> Result<Expr> {
        self.lexer.expect("[")?;
        let Token::Str(name) = self.lexer.next()? else {
            return Err(self.lexer.error("expected an argument's name"));
        };
        self.lexer.expect("]")?;
        let mut path = Vec::new();
        while self.lexer.eat("[")? {
            path.push(match self.lexer.next()? {
                Token::Str(key) => Step::Key(key),
                Token::Number(n) => Step::Index(self.index(n)?),
                _ => return Err(self.lexer.error("expected an index or a key")),
            });
            self.lexer.expect("]")?;
        }
        // An integer argument is read by its value: `L['n']`.
        if !self.lexer.eat(".")? {
            return self.find(name, &path, Part::Value);
        }
        let what = self.lexer.next()?;
        self.lexer.expect("(")?;
        self.lexer.expect(")")?;
        self.lexer.expect("[")?;
        let Token::Number(n) = self.lexer.next()? else {
            return Err(self.lexer.error("expected a dimension"));
        };
        let d = self.index(n)?;
        self.lexer.expect("]")?;
        match what {
            Token::Ident("size") => self.find(name, &path, Part::Size(d)),
            Token::Ident("stride") => self.find(name, &path, Part::Stride(d)),
            _ => Err(self.lexer.error("neither a size nor a stride")),
        }
    }

    fn index(&self, digits: &str) -> Result<usize> {
        (digits.parse()).map_err(|_| self.lexer.error("not an index"))
    }

    fn find(&self, name: &str, path: &[Step], part: Part) -> Result<Expr> {
        (self.resolve)(name, path, part).ok_or_else(|| {
            self.lexer
                .error(format_args!("`{name}` is not an input's size"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_export_writes() {
        let x = Exprs::new();
        let s = x.sym_expr(x.size_sym("s", 0, i64::MAX));
        let t = x.sym_expr(x.size_sym("t", 0, i64::MAX));
        let resolve = |name: &str, path: &[Step], part: Part| match (name, path, part) {
            ("args", [Step::Index(0)], Part::Size(0)) => Some(s),
            ("y", [Step::Key("k")], Part::Stride(1)) => Some(t),
            ("n", [], Part::Value) => Some(t),
            _ => None,
        };
        let show = |text: &str| {
            parse(&x, text, &resolve).map(|r| {
                let all = r
                    .iter()
                    .map(|(r, a, b)| format!("{r:?} {} {}", x.show(*a), x.show(*b)));
                all.collect::<Vec<_>>().join("; ")
            })
        };
        for (text, wants) in [
            (
                "((1 + L['args'][0].size()[0]) // 2) == L['n']",
                "Eq ((s + 1) // 2) t",
            ),
            ("((3*L['args'][0].size()[0]) % 6) == 0", "Eq 3*(s % 2) 0"),
            (
                "(((-2) + L['y']['k'].stride()[1]) % 2) != 0",
                "Ne (t % 2) 0",
            ),
            ("2 <= L['n'] < 9 and L['n'] > 3", "Le 2 t; Lt t 9; Lt 3 t"),
        ] {
            assert_eq!(show(text).unwrap(), wants, "{text}");
        }
        for bad in [
            "",
            "L['n']",
            "L['q'] == 1",
            "L['n'] == 1 or True",
            "1 ==",
            "L[",
            "(((",
            "n.a()",
        ] {
            assert!(show(bad).is_err(), "{bad}");
        }
    }
}
