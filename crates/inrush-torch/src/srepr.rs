//! Symbolic sizes: the text that sympy's `srepr` gives, read by recursive descent and never evaluated as code.
//!
//! `srepr` writes an expression as the Python call that would build it again:
//!
//! ```text
//! Add(FloorDiv(Symbol('s0', positive=True, integer=True), Integer(2)), Integer(3))
//! (s0 // 2) + 3
//! ```
//!
//! The parser evaluates while it reads: each call becomes a value of `sympy` as soon as its
//! arguments are read, and no tree is kept. Names of functions are data for `Sympy::call`, so a
//! text such as `__import__('os')` is an unknown function and no more.

use crate::lex::{Lexer, Token};
pub use crate::sympy::Parsed;
use crate::sympy::{Sympy, Value};
use inrush_base::{Error, Result};
use inrush_expr::{Expr, Exprs};

/// Deepest nesting that is accepted.
const MAX_DEPTH: usize = 64;
// In bytes. The time to read a text is about linear in its length, but arithmetic on wide sums is
// not.
const MAX_LEN: usize = 16 << 10;

/// A symbol as `srepr` writes it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SymbolText<'a> {
    pub name: &'a str,
    /// `positive=True`, `nonnegative=True`.
    /// Assumptions that Dynamo gives symbols: sizes of inputs are positive. `symbols` uses them
    /// for symbols without a declared range.
    pub positive: bool,
    pub nonnegative: bool,
}

/// Reads `text`; `symbol` gives the expression of each symbol.
/// Fails on text that is no `srepr`, on functions that no integer of a size can come from, and on
/// sums that expand too far.
pub fn parse<'a>(
    exprs: &Exprs,
    text: &'a str,
    symbol: &mut dyn FnMut(SymbolText<'a>) -> Result<Expr>,
) -> Result<Parsed> {
    if text.len() > MAX_LEN {
        return Err(Error::unsupported("a symbolic expression of this length"));
    }
    let mut p = Parser {
        sympy: Sympy { exprs },
        lexer: Lexer::new(text),
        symbol,
    };
    let value = p.value(0)?;
    p.lexer.end()?;
    p.sympy.finish(value)
}

/// The parser, with the semantics (`sympy`) and the callers' symbols that it applies as it reads.
struct Parser<'a, 'e> {
    sympy: Sympy<'e>,
    lexer: Lexer<'a>,
    symbol: &'e mut dyn FnMut(SymbolText<'a>) -> Result<Expr>,
}

impl<'a> Parser<'a, '_> {
    /// Reads a number, a constant or a call.
    fn value(&mut self, depth: usize) -> Result<Value> {
        if depth > MAX_DEPTH {
            return Err(self.lexer.error("nested too deeply"));
        }
        if self.lexer.eat("-")? {
            return self.number(true);
        }
        match self.lexer.peek()? {
            Token::Number(_) => self.number(false),
            Token::Ident(name) => {
                self.lexer.next()?;
                if !self.lexer.eat("(")? {
                    return match name {
                        // A condition that always holds demands nothing: an empty conjunction.
                        "true" | "True" => Ok(Value::Bool(Vec::new())),
                        "false" | "False" => Ok(Value::OtherBool),
                        // Constants such as `oo`, `pi` and `nan` have no call.
                        _ => Ok(Value::Real(name.into())),
                    };
                }
                if name == "Symbol" {
                    return self.symbol();
                }
                // Its first argument is a string, and a symbol's is a name: neither is an
                // expression.
                if name == "Float" {
                    return self.float();
                }
                let mut args = Vec::new();
                while !self.lexer.eat(")")? {
                    if !args.is_empty() {
                        self.lexer.expect(",")?;
                    }
                    args.push(self.value(depth + 1)?);
                }
                self.sympy.call(name, args)
            }
            _ => Err(self.lexer.error("expected an expression")),
        }
    }

    /// Reads a literal, as inside `Integer(-7)` and `Rational(1, 2)`. The sign is part of the
    /// text that is parsed, since -2^63 has no positive counterpart.
    fn number(&mut self, negative: bool) -> Result<Value> {
        let Token::Number(digits) = self.lexer.next()? else {
            return Err(self.lexer.error("expected a number"));
        };
        if digits.contains('.') {
            let v: f64 = (digits.parse()).map_err(|_| self.lexer.error("a bad number"))?;
            return Ok(self.sympy.float(if negative { -v } else { v }));
        }
        let sign = if negative { "-" } else { "" };
        let v = format!("{sign}{digits}")
            .parse::<i64>()
            .map_err(|_| self.lexer.error("an integer beyond 64 bits"))?;
        Ok(Value::Ratio(self.sympy.exprs.int(v), 1))
    }

    /// Reads the rest of `Symbol('s0', positive=True, integer=True)`.
    fn symbol(&mut self) -> Result<Value> {
        let Token::Str(name) = self.lexer.next()? else {
            return Err(self.lexer.error("a symbol without a name"));
        };
        let mut s = SymbolText {
            name,
            positive: false,
            nonnegative: false,
        };
        while self.lexer.eat(",")? {
            let key = self.lexer.next()?;
            self.lexer.expect("=")?;
            // Other assumptions (`integer=True`, `real=False`) are read and ignored.
            let set = self.lexer.next()? == Token::Ident("True");
            match key {
                Token::Ident("positive") => s.positive = set,
                Token::Ident("nonnegative") => s.nonnegative = set,
                Token::Ident(_) => {}
                _ => return Err(self.lexer.error("expected an assumption")),
            }
        }
        self.lexer.expect(")")?;
        Ok(Value::Ratio((self.symbol)(s)?, 1))
    }

    /// Reads the rest of `Float('2.5', precision=53)`.
    fn float(&mut self) -> Result<Value> {
        // A float that is not exact in binary stays real; a rounding of it is then refused by
        // name.
        let mut value = Value::Real("Float".into());
        loop {
            match self.lexer.next()? {
                Token::Punct(")") => return Ok(value),
                Token::Str(text) => {
                    if let Ok(v) = text.parse() {
                        value = self.sympy.float(v);
                    }
                }
                Token::End => return Err(self.lexer.error("a call that does not end")),
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn show(text: &str) -> String {
        let x = Exprs::new();
        x.size_sym("s0", 1, 100);
        x.size_sym("s1", 0, i64::MAX);
        let parsed = parse(&x, text, &mut |s| {
            (x.sym_by_name(s.name).map(|s| x.sym_expr(s)))
                .ok_or_else(|| Error::input(format!("no symbol `{}`", s.name)))
        });
        match parsed {
            Ok(Parsed::Int(e)) => x.show(e),
            Ok(Parsed::Bool(r)) => r
                .iter()
                .map(|(r, a, b)| format!("{r:?} {} {}", x.show(*a), x.show(*b)))
                .collect::<Vec<_>>()
                .join(" & "),
            Ok(other) => format!("{other:?}"),
            Err(e) => format!("error: {e}"),
        }
    }

    const S0: &str = "Symbol('s0', positive=True, integer=True)";

    #[test]
    fn reads_what_export_writes() {
        let s1 = "Symbol('s1', integer=True)";
        for (text, wants) in [
            ("Integer(-7)".to_string(), "-7"),
            (format!("Mul(Integer(2), {S0})"), "2*s0"),
            (
                format!("Add(FloorDiv({S0}, Integer(2)), Integer(3))"),
                "(s0 // 2) + 3",
            ),
            (
                format!("ModularIndexing({s1}, Integer(4), Integer(3))"),
                "((s1 // 4) % 3)",
            ),
            (
                format!("Mul(Rational(1, 2), {S0}, Add({S0}, Integer(-1)))"),
                "((-s0 + s0*s0) // 2)",
            ),
            (
                format!("Add(Mul(Rational(1, 2), {S0}), Rational(1, 2))"),
                "((s0 + 1) // 2)",
            ),
            (
                format!("CeilToInt(IntTrueDiv({S0}, Integer(3)))"),
                "-((-s0) // 3)",
            ),
            (
                format!("TruncToInt(IntTrueDiv({S0}, Integer(3)))"),
                "(s0 // 3)",
            ),
            (
                format!("Max(Integer(5), Min({S0}, {s1}))"),
                "max(5, min(s0, s1))",
            ),
            (format!("Pow({S0}, Integer(2))"), "s0*s0"),
            (format!("LShift({s1}, Integer(3))"), "8*s1"),
            (format!("GreaterThan({s1}, Integer(3))"), "Le 3 s1"),
            (format!("Not(Equality({s1}, {S0}))"), "Ne s1 s0"),
            (format!("GreaterThan({S0}, Integer(0))"), "Le 0 s0"),
            ("StrictLessThan(Integer(1), Integer(2))".to_string(), ""),
            (
                "IntTrueDiv(Integer(1), Integer(2))".to_string(),
                "Real(\"IntTrueDiv\")",
            ),
            (scaled("2.0", "Trunc"), "2*s0"),
            (scaled("2.5", "Trunc"), "((5*s0) // 2)"),
            (scaled("0.75", "Ceil"), "-((-3*s0) // 4)"),
            (
                format!("FloorToInt(FloatTrueDiv(ToFloat({S0}), ToFloat(Integer(3))))"),
                "(s0 // 3)",
            ),
            (
                format!("TruncToInt(Add(ToFloat({S0}), Float('0.5', precision=53)))"),
                "s0",
            ),
            // Less than zero, truncation is another rounding than that of division.
            (
                scaled("-2.5", "Trunc"),
                "error: a true division in a symbolic size (argument of TruncToInt)",
            ),
        ] {
            assert_eq!(show(&text), wants, "{text}");
        }
    }

    fn scaled(by: &str, rounded: &str) -> String {
        format!("{rounded}ToInt(Mul(Float('{by}', precision=53), ToFloat({S0})))")
    }

    #[test]
    fn what_cannot_be_said_is_named() {
        let e = show("Where(true, Integer(1), Integer(2))");
        assert!(e.contains("Where"), "{e}");
        let e = show(&format!(
            "Add({S0}, RoundToInt(Float('1.5', precision=53)))"
        ));
        assert!(e.contains("RoundToInt"), "{e}");
        // What floating point rounds is no fraction: 100 * 0.29 is less than 29 there.
        let e = show(&scaled("0.29", "Trunc"));
        assert!(e.contains("Float"), "{e}");
    }

    #[test]
    fn hostile_text_is_an_error() {
        let deep = "Add(".repeat(5000);
        let wide = format!("Pow(Add({S0}, Symbol('s1'), Integer(1)), Integer(16))");
        let wide = format!("Pow({wide}, Integer(16))");
        let tower = format!("{}{S0}{}", "Pow(".repeat(30), ", Integer(9))".repeat(30));
        for bad in [
            "",
            "Add",
            "Add(",
            "Integer(99999999999999999999)",
            "Symbol()",
            "Symbol('zz')",
            "FloorDiv(Integer(1), Integer(0))",
            "__import__('os')",
            "Integer('1')",
            "1 2",
            "é",
            "Rational(1, 0)",
            &deep,
            &wide,
            &tower,
        ] {
            let s = show(bad);
            assert!(
                s.starts_with("error") || s.starts_with("Real"),
                "{bad}: {s}"
            );
        }
    }
}
