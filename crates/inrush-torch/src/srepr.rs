//! Symbolic sizes: the text that sympy's `srepr` gives, read by recursive descent and never evaluated as code.

use crate::arith::{self, Relations};
use crate::lex::{Lexer, Token};
use inrush_base::{Error, Result};
use inrush_expr::{Expr, Exprs};
use inrush_graph::Relation;

/// Nesting and length that are accepted.
const MAX_DEPTH: usize = 64;
const MAX_LEN: usize = 16 << 10;

/// What an expression stands for.
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

/// A symbol as `srepr` writes it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SymbolText<'a> {
    pub name: &'a str,
    /// `positive=True`, `nonnegative=True`.
    pub positive: bool,
    pub nonnegative: bool,
}

/// Reads `text`; `symbol` gives the expression of each symbol.
pub fn parse<'a>(
    exprs: &Exprs,
    text: &'a str,
    symbol: &mut dyn FnMut(SymbolText<'a>) -> Result<Expr>,
) -> Result<Parsed> {
    if text.len() > MAX_LEN {
        return Err(Error::unsupported("a symbolic expression of this length"));
    }
    let mut p = Parser {
        exprs,
        lexer: Lexer::new(text),
        symbol,
    };
    let value = p.value(0)?;
    p.lexer.end()?;
    p.finish(value)
}

/// A value while it is read. Integers may be fractions on the way: `s0*(s0 - 1)/2` is written as a product with `1/2`.
enum Value {
    Ratio(Expr, i64),
    Bool(Relations),
    OtherBool,
    Real(String),
    /// `a / b` as a real number; what rounds it knows how to divide.
    Quotient(Expr, Expr),
}

struct Parser<'a, 'e> {
    exprs: &'e Exprs,
    lexer: Lexer<'a>,
    symbol: &'e mut dyn FnMut(SymbolText<'a>) -> Result<Expr>,
}

impl<'a> Parser<'a, '_> {
    fn finish(&self, v: Value) -> Result<Parsed> {
        Ok(match v {
            Value::Ratio(..) => Parsed::Int(self.int(v, "the expression")?),
            Value::Bool(r) => Parsed::Bool(r),
            Value::OtherBool => Parsed::OtherBool,
            Value::Real(f) => Parsed::Real(f),
            Value::Quotient(..) => Parsed::Real("IntTrueDiv".into()),
        })
    }

    /// The integer that `v` is.
    fn int(&self, v: Value, user: &str) -> Result<Expr> {
        match v {
            Value::Ratio(n, 1) => Ok(n),
            // sympy knows that the quotient is an integer, so rounding does nothing.
            Value::Ratio(n, d) => arith::floordiv(self.exprs, n, self.exprs.int(d)),
            Value::Real(f) => Err(Error::unsupported(format!(
                "`{f}` in a symbolic size (argument of {user})"
            ))),
            Value::Quotient(..) => Err(Error::unsupported(format!(
                "a true division in a symbolic size (argument of {user})"
            ))),
            Value::Bool(_) | Value::OtherBool => Err(self
                .lexer
                .error(format_args!("{user} takes integers, not conditions"))),
        }
    }

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
                        "true" | "True" => Ok(Value::Bool(Vec::new())),
                        "false" | "False" => Ok(Value::OtherBool),
                        _ => Ok(Value::Real(name.into())),
                    };
                }
                if name == "Symbol" {
                    return self.symbol();
                }
                if name == "Float" {
                    self.skip_call()?;
                    return Ok(Value::Real(name.into()));
                }
                let mut args = Vec::new();
                while !self.lexer.eat(")")? {
                    if !args.is_empty() {
                        self.lexer.expect(",")?;
                    }
                    args.push(self.value(depth + 1)?);
                }
                self.call(name, args)
            }
            _ => Err(self.lexer.error("expected an expression")),
        }
    }

    fn number(&mut self, negative: bool) -> Result<Value> {
        let Token::Number(digits) = self.lexer.next()? else {
            return Err(self.lexer.error("expected a number"));
        };
        if digits.contains('.') {
            return Ok(Value::Real("Float".into()));
        }
        let sign = if negative { "-" } else { "" };
        let v = format!("{sign}{digits}")
            .parse::<i64>()
            .map_err(|_| self.lexer.error("an integer beyond 64 bits"))?;
        Ok(Value::Ratio(self.exprs.int(v), 1))
    }

    /// The rest of `Symbol('s0', positive=True, integer=True)`.
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

    /// Skips to the parenthesis that closes a call without nested ones.
    fn skip_call(&mut self) -> Result<()> {
        loop {
            match self.lexer.next()? {
                Token::Punct(")") => return Ok(()),
                Token::End => return Err(self.lexer.error("a call that does not end")),
                _ => {}
            }
        }
    }

    fn call(&mut self, name: &str, args: Vec<Value>) -> Result<Value> {
        let x = self.exprs;
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
        let small = |e: Expr| x.as_int(e).filter(|v| (0..63).contains(v));
        match (name, &ints[..]) {
            ("Integer" | "Identity" | "CeilToInt" | "FloorToInt" | "TruncToInt", [a]) => ratio(*a),
            ("Rational", [p, q]) => match x.as_int(*q).filter(|q| *q > 0) {
                Some(q) => Ok(Value::Ratio(*p, q)),
                None => Err(self.lexer.error("a bad fraction")),
            },
            ("FloorDiv" | "CleanDiv", [a, b]) => ratio(arith::floordiv(x, *a, *b)?),
            ("CeilDiv", [a, b]) => ratio(x.neg(arith::floordiv(x, x.neg(*a), *b)?)),
            ("Mod" | "PythonMod", [a, b]) => ratio(arith::modulo(x, *a, *b)?),
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

    /// Roundings of `a / b`.
    fn round(&self, name: &str, args: &[Value]) -> Result<Option<Expr>> {
        let x = self.exprs;
        let [Value::Quotient(a, b)] = args else {
            return Ok(None);
        };
        let positive = x.range(*a).lo >= 0 && x.range(*b).lo > 0;
        Ok(Some(match name {
            "FloorToInt" => arith::floordiv(x, *a, *b)?,
            "CeilToInt" => x.neg(arith::floordiv(x, x.neg(*a), *b)?),
            "TruncToInt" if positive => arith::floordiv(x, *a, *b)?,
            _ => return Ok(None),
        }))
    }

    /// Sums and products, of fractions too.
    fn fold(&self, name: &str, args: Vec<Value>) -> Result<Value> {
        let x = self.exprs;
        let overflow = || self.lexer.error("a fraction beyond 64 bits");
        let mut acc = (x.int((name == "Mul") as i64), 1i64);
        for a in args {
            let (n, d) = match a {
                Value::Ratio(n, d) => (n, d),
                other => (self.int(other, name)?, 1),
            };
            let den = acc.1.checked_mul(d).ok_or_else(overflow)?;
            acc = if name == "Mul" {
                (arith::mul(x, acc.0, n)?, den)
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

    /// Only constants are decided here: what ranges prove may rest on the very assertion that is being read.
    fn relation(&self, r: (Relation, Expr, Expr)) -> Value {
        let constant = |e: Expr| self.exprs.as_int(e).is_some();
        match arith::decide(self.exprs, r).filter(|_| constant(r.1) && constant(r.2)) {
            Some(true) => Value::Bool(Vec::new()),
            Some(false) => Value::OtherBool,
            None => Value::Bool(vec![r]),
        }
    }

    fn logic(&self, name: &str, args: Vec<Value>) -> Result<Value> {
        let mut all = Vec::new();
        let count = args.len();
        for a in args {
            match a {
                Value::Bool(r) => all.push(r),
                Value::OtherBool => return Ok(Value::OtherBool),
                _ => {
                    return Err(self.lexer.error(format_args!("`{name}` takes conditions")));
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
        ] {
            assert_eq!(show(&text), wants, "{text}");
        }
    }

    #[test]
    fn what_cannot_be_said_is_named() {
        let e = show("Where(true, Integer(1), Integer(2))");
        assert!(e.contains("Where"), "{e}");
        let e = show(&format!(
            "Add({S0}, RoundToInt(Float('1.5', precision=53)))"
        ));
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
