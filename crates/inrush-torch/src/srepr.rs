//! Symbolic integers as sympy's `srepr` prints them: `Mul(Integer(2), Symbol('s77', positive=True, integer=True))`.

use inrush_base::{Error, Result};
use inrush_expr::{Expr, Exprs, Sym};

/// Nesting that is accepted; archives are untrusted.
const MAX_DEPTH: usize = 128;

/// Parses an expression; `symbol` gives the symbol of a name.
pub fn parse(exprs: &Exprs, text: &str, symbol: &mut dyn FnMut(&str) -> Sym) -> Result<Expr> {
    let mut p = Parser {
        exprs,
        rest: text,
        symbol,
    };
    let e = p
        .expr(0)
        .map_err(|e| e.context(format!("symbolic expression `{}`", shorten(text))))?;
    if !p.rest.trim().is_empty() {
        return Err(Error::input(format!(
            "symbolic expression `{}`: text after its end",
            shorten(text)
        )));
    }
    Ok(e)
}

fn shorten(text: &str) -> String {
    text.chars().take(200).collect()
}

struct Parser<'a, 'f> {
    exprs: &'a Exprs,
    rest: &'a str,
    symbol: &'f mut dyn FnMut(&str) -> Sym,
}

impl<'a> Parser<'a, '_> {
    fn eat(&mut self, c: char) -> bool {
        self.rest = self.rest.trim_start();
        match self.rest.strip_prefix(c) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn expect(&mut self, c: char) -> Result<()> {
        if self.eat(c) {
            Ok(())
        } else {
            Err(Error::input(format!("expected `{c}`")))
        }
    }

    fn word(&mut self) -> &'a str {
        self.rest = self.rest.trim_start();
        let end = self
            .rest
            .find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
            .unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        word
    }

    fn quoted(&mut self) -> Result<&'a str> {
        self.expect('\'')?;
        let end = self
            .rest
            .find('\'')
            .ok_or_else(|| Error::input("a name that does not end"))?;
        let name = &self.rest[..end];
        self.rest = &self.rest[end + 1..];
        Ok(name)
    }

    fn int(&mut self) -> Result<i64> {
        self.rest = self.rest.trim_start();
        let end = self
            .rest
            .char_indices()
            .find(|(i, c)| !(c.is_ascii_digit() || *i == 0 && *c == '-'))
            .map_or(self.rest.len(), |(i, _)| i);
        let (digits, rest) = self.rest.split_at(end);
        self.rest = rest;
        digits
            .parse()
            .map_err(|_| Error::input(format!("`{digits}` is no 64-bit integer")))
    }

    fn expr(&mut self, depth: usize) -> Result<Expr> {
        if depth > MAX_DEPTH {
            return Err(Error::input("nested too deeply"));
        }
        let ex = self.exprs;
        let name = self.word();
        if name.is_empty() {
            return self.int().map(|v| ex.int(v));
        }
        match name {
            "Symbol" => {
                self.expect('(')?;
                let symbol = self.quoted()?;
                // Assumptions: ranges come from the archive's range constraints.
                while self.eat(',') {
                    self.word();
                    self.expect('=')?;
                    self.word();
                }
                self.expect(')')?;
                Ok(ex.sym_expr((self.symbol)(symbol)))
            }
            "Integer" => {
                self.expect('(')?;
                let v = self.int()?;
                self.expect(')')?;
                Ok(ex.int(v))
            }
            _ if name.bytes().all(|b| b.is_ascii_digit()) => name
                .parse()
                .map(|v| ex.int(v))
                .map_err(|_| Error::input(format!("`{name}` is no 64-bit integer"))),
            _ => {
                let args = self.args(depth)?;
                self.apply(name, &args)
            }
        }
    }

    fn args(&mut self, depth: usize) -> Result<Vec<Expr>> {
        self.expect('(')?;
        let mut args = Vec::new();
        if self.eat(')') {
            return Ok(args);
        }
        loop {
            args.push(self.expr(depth + 1)?);
            if self.eat(')') {
                return Ok(args);
            }
            self.expect(',')?;
        }
    }

    fn apply(&self, name: &str, args: &[Expr]) -> Result<Expr> {
        let ex = self.exprs;
        let fold = |f: fn(&Exprs, Expr, Expr) -> Expr| -> Result<Expr> {
            let (first, rest) = args
                .split_first()
                .ok_or_else(|| Error::input(format!("`{name}` without arguments")))?;
            Ok(rest.iter().fold(*first, |a, b| f(ex, a, *b)))
        };
        let pair = || match args {
            [a, b] => Ok((*a, *b)),
            _ => Err(Error::input(format!("`{name}` takes two arguments"))),
        };
        match name {
            "Add" => fold(Exprs::add),
            "Mul" => fold(Exprs::mul),
            "Min" => fold(Exprs::min),
            "Max" => fold(Exprs::max),
            "FloorDiv" | "CleanDiv" => pair().map(|(a, b)| ex.floordiv(a, b)),
            "Mod" | "PythonMod" => pair().map(|(a, b)| ex.modulo(a, b)),
            "CeilDiv" => pair().map(|(a, b)| ex.ceildiv(a, b)),
            "ModularIndexing" => match args {
                [a, d, m] => Ok(ex.modulo(ex.floordiv(*a, *d), *m)),
                _ => Err(Error::input("`ModularIndexing` takes three arguments")),
            },
            "Pow" | "PowByNatural" => {
                let (base, power) = pair()?;
                match ex.as_int(power) {
                    Some(n @ 0..=16) => Ok((0..n).fold(ex.int(1), |acc, _| ex.mul(acc, base))),
                    _ => Err(Error::unsupported(format!(
                        "the power {} in a size",
                        ex.show(power)
                    ))),
                }
            }
            "LShift" => {
                let (a, b) = pair()?;
                match ex.as_int(b) {
                    Some(n @ 0..=62) => Ok(ex.mul(a, ex.int(1 << n))),
                    _ => Err(Error::unsupported("a shift by a symbolic count in a size")),
                }
            }
            "RShift" => {
                let (a, b) = pair()?;
                match ex.as_int(b) {
                    Some(n @ 0..=62) => Ok(ex.floordiv(a, ex.int(1 << n))),
                    _ => Err(Error::unsupported("a shift by a symbolic count in a size")),
                }
            }
            "Identity" | "TruncToInt" | "FloorToInt" | "CeilToInt" | "RoundToInt"
                if args.len() == 1 =>
            {
                Ok(args[0])
            }
            _ => Err(Error::unsupported(format!(
                "the function `{name}` in a size"
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<String> {
        let ex = Exprs::new();
        let mut symbol = |n: &str| ex.size_sym(n, 0, i64::MAX);
        parse(&ex, text, &mut symbol).map(|e| ex.show(e))
    }

    #[test]
    fn expressions_of_real_archives() {
        assert_eq!(
            read("Symbol('s77', positive=True, integer=True)").unwrap(),
            "s77"
        );
        assert_eq!(
            read("Mul(Integer(2), Symbol('s7', integer=True))").unwrap(),
            "2*s7"
        );
        assert_eq!(
            read("Add(Integer(-1), FloorDiv(Symbol('a'), Integer(2)))").unwrap(),
            "(a // 2) - 1"
        );
        assert_eq!(read("Pow(Symbol('a'), Integer(2))").unwrap(), "a*a");
    }

    #[test]
    fn hostile_text_is_an_error() {
        let deep = "Add(".repeat(5000);
        for bad in [
            "",
            "Add",
            "Add(",
            "Symbol('",
            "Integer(x)",
            "System('rm')",
            "Integer(99999999999999999999)",
            &deep,
        ] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
