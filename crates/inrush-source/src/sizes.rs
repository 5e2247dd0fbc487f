//! Size arithmetic as expressions of Python or C++.
//!
//! A short expression stands where it is used. A long one becomes a line of its own, which is printed once its symbols are known:
//! no text is longer than the program's arithmetic.

use inrush_base::{Error, Result};
use inrush_program::{Size, SizeId};

/// Characters of an expression that still stands where it is used.
const INLINE: usize = 28;

/// The language of expressions.
#[derive(Copy, Clone, PartialEq, Eq)]
enum Language {
    Python,
    /// Over `Size`, whose operators check for overflows.
    Cpp,
}

/// How tightly an expression binds.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Binds {
    Sum,
    Product,
    Atom,
}

/// The text of a line of size arithmetic.
struct Text {
    /// The expression where it is used: itself, or the name of its line.
    used: String,
    binds: Binds,
    /// The expression of a line of its own.
    line: Option<String>,
    /// The step after which all symbols are known: 0 for those that a call begins with.
    known: usize,
}

/// Sizes of a scope.
pub(crate) struct Sizes<'a> {
    lines: &'a [Size],
    texts: Vec<Text>,
    /// Lines that the text names.
    wanted: Vec<bool>,
    language: Language,
}

impl<'a> Sizes<'a> {
    /// Builds the texts. `symbols` are the names of symbols, and the step after which each is known.
    ///
    /// # Errors
    /// An input error for a line that names no earlier one, or no symbol.
    pub(crate) fn new(lines: &'a [Size], symbols: &[(String, usize)]) -> Result<Sizes<'a>> {
        Self::of(lines, symbols, Language::Python)
    }

    /// Builds the texts in C++. All symbols are known at the beginning.
    ///
    /// # Errors
    /// As [`Sizes::new`].
    pub(crate) fn cpp(lines: &'a [Size], symbols: &[String]) -> Result<Sizes<'a>> {
        let symbols: Vec<(String, usize)> = symbols.iter().map(|s| (s.clone(), 0)).collect();
        Self::cpp_after(lines, &symbols)
    }

    /// Builds the texts in C++. `symbols` are as in [`Sizes::new`].
    ///
    /// # Errors
    /// As [`Sizes::new`].
    pub(crate) fn cpp_after(lines: &'a [Size], symbols: &[(String, usize)]) -> Result<Sizes<'a>> {
        Self::of(lines, symbols, Language::Cpp)
    }

    fn of(lines: &'a [Size], symbols: &[(String, usize)], language: Language) -> Result<Sizes<'a>> {
        let mut texts: Vec<Text> = Vec::with_capacity(lines.len());
        for (at, line) in lines.iter().enumerate() {
            if line.operands().iter().any(|o| o.0 as usize >= at) {
                return Err(damaged());
            }
            let known = (line.operands().iter())
                .map(|o| texts[o.0 as usize].known)
                .max();
            let (text, binds) = match language {
                Language::Python => expression(line, &texts, symbols)?,
                Language::Cpp => cpp_expression(line, &texts, symbols)?,
            };
            let known = match line {
                Size::Sym(s) => symbols[*s as usize].1,
                _ => known.unwrap_or(0),
            };
            let is_line = text.len() > INLINE && binds != Binds::Atom || text.len() > 2 * INLINE;
            texts.push(if is_line {
                Text {
                    used: format!("z{at}"),
                    binds: Binds::Atom,
                    line: Some(text),
                    known,
                }
            } else {
                Text {
                    used: text,
                    binds,
                    line: None,
                    known,
                }
            });
        }
        Ok(Sizes {
            wanted: vec![false; lines.len()],
            lines,
            texts,
            language,
        })
    }

    /// Returns the expression of a size.
    ///
    /// # Errors
    /// An input error for a size that is not there.
    pub(crate) fn get(&mut self, id: SizeId) -> Result<String> {
        let at = id.0 as usize;
        let text = self.texts.get(at).ok_or_else(damaged)?;
        self.wanted[at] = true;
        Ok(text.used.clone())
    }

    /// Returns the expressions of several sizes.
    pub(crate) fn all(&mut self, ids: &[SizeId]) -> Result<Vec<String>> {
        ids.iter().map(|id| self.get(*id)).collect()
    }

    /// Returns a size divided by a number of bytes that divides it.
    pub(crate) fn divided(&mut self, id: SizeId, by: usize) -> Result<String> {
        let line = self.lines.get(id.0 as usize).ok_or_else(damaged)?;
        let whole = by.max(1) as i64;
        if let Size::Const(n) = line {
            return Ok((n / whole).to_string());
        }
        // A product with a number that the divisor divides.
        let factors = match *line {
            Size::Mul(a, b) if self.constant(a).is_some() => Some((a, b)),
            Size::Mul(a, b) => Some((b, a)),
            _ => None,
        };
        if let Some((factor, other)) = factors
            && let Some(n) = self.constant(factor).filter(|n| n % whole == 0)
        {
            let text = self.get(other)?;
            // Quotients and remainders bind as products do, from the left.
            let is_atom = self.texts[other.0 as usize].binds == Binds::Atom;
            return Ok(match n / whole {
                1 => text,
                n if is_atom => format!("{n} * {text}"),
                n => format!("{n} * ({text})"),
            });
        }
        let text = self.get(id)?;
        let binds = self.texts[id.0 as usize].binds;
        Ok(match by {
            0 | 1 => text,
            _ if binds < Binds::Product => format!("({text}) // {by}"),
            _ => format!("{text} // {by}"),
        })
    }

    /// Returns the step after which a size is known: 0 for what a call begins with.
    pub(crate) fn known(&self, id: SizeId) -> usize {
        self.texts.get(id.0 as usize).map_or(0, |t| t.known)
    }

    /// Returns the value of a size that is a number.
    pub(crate) fn constant(&self, id: SizeId) -> Option<i64> {
        match self.lines.get(id.0 as usize)? {
            Size::Const(n) => Some(*n),
            _ => None,
        }
    }

    /// Returns the lines that the text so far names and that are known after a step, in order.
    pub(crate) fn definitions(&self, known: usize) -> Vec<String> {
        let mut wanted = self.wanted.clone();
        for at in (0..wanted.len()).rev() {
            if wanted[at] {
                for o in self.lines[at].operands() {
                    wanted[o.0 as usize] = true;
                }
            }
        }
        let texts = self.texts.iter().zip(wanted);
        texts
            .filter(|(t, wanted)| *wanted && t.known == known)
            .filter_map(|(t, _)| {
                let line = t.line.as_ref()?;
                Some(match self.language {
                    Language::Python => format!("{} = {line}", t.used),
                    Language::Cpp => format!("const Size {} = {line};", t.used),
                })
            })
            .collect()
    }
}

fn damaged() -> Error {
    Error::input("the program is damaged: a size that is not there")
}

/// Returns the expression of a line, from those of earlier lines.
fn expression(line: &Size, texts: &[Text], symbols: &[(String, usize)]) -> Result<(String, Binds)> {
    let side = |id: inrush_program::SizeId, least: Binds| {
        let t = &texts[id.0 as usize];
        if t.binds < least {
            format!("({})", t.used)
        } else {
            t.used.clone()
        }
    };
    let two = |a, op: &str, b, left, right| format!("{} {op} {}", side(a, left), side(b, right));
    let call = |f: &str, a, b| format!("{f}({}, {})", side(a, Binds::Sum), side(b, Binds::Sum));
    Ok(match *line {
        Size::Const(v) => (v.to_string(), Binds::Atom),
        Size::Sym(s) => {
            let name = symbols.get(s as usize).ok_or_else(damaged)?;
            (name.0.clone(), Binds::Atom)
        }
        Size::Add(a, b) => {
            let right = side(b, Binds::Product);
            let text = match right.strip_prefix('-').filter(|r| !r.contains(' ')) {
                Some(rest) => format!("{} - {rest}", side(a, Binds::Sum)),
                None => format!("{} + {right}", side(a, Binds::Sum)),
            };
            (text, Binds::Sum)
        }
        Size::Mul(a, b) => (two(a, "*", b, Binds::Product, Binds::Atom), Binds::Product),
        Size::FloorDiv(a, b) => (two(a, "//", b, Binds::Product, Binds::Atom), Binds::Product),
        Size::Mod(a, b) => (two(a, "%", b, Binds::Product, Binds::Atom), Binds::Product),
        Size::Min(a, b) => (call("min", a, b), Binds::Atom),
        Size::Max(a, b) => (call("max", a, b), Binds::Atom),
    })
}

/// Returns an integer as a literal of C++.
pub(crate) fn cpp_literal(n: i64) -> String {
    match n {
        // The literal without its sign is too large.
        i64::MIN => "std::numeric_limits<i64>::min()".into(),
        n if i32::try_from(n).is_ok() => n.to_string(),
        n => format!("{n}LL"),
    }
}

/// Returns the expression of a line in C++. One operand of each operator is a `Size`, so that no arithmetic is unchecked.
fn cpp_expression(
    line: &Size,
    texts: &[Text],
    symbols: &[(String, usize)],
) -> Result<(String, Binds)> {
    let used = |id: SizeId| texts[id.0 as usize].used.clone();
    let side = |id: SizeId, least: Binds| match texts[id.0 as usize].binds {
        binds if binds < least => format!("({})", used(id)),
        _ => used(id),
    };
    let is_literal = |text: &str| text.starts_with(|c: char| c.is_ascii_digit() || c == '-');
    let two = |a: SizeId, op: &str, b: SizeId, left, right| {
        let (mut left, right) = (side(a, left), side(b, right));
        if is_literal(&left) && is_literal(&right) {
            left = format!("Size({left})");
        }
        format!("{left} {op} {right}")
    };
    let call = |f: &str, a, b| format!("{f}({}, {})", used(a), used(b));
    Ok(match *line {
        Size::Const(i64::MIN) => (format!("Size({})", cpp_literal(i64::MIN)), Binds::Atom),
        Size::Const(v) => (cpp_literal(v), Binds::Atom),
        Size::Sym(s) => {
            let name = symbols.get(s as usize).ok_or_else(damaged)?;
            (name.0.clone(), Binds::Atom)
        }
        Size::Add(a, b) => {
            let negative = used(b).strip_prefix('-').map(str::to_string);
            let text = match negative.filter(|r| r.bytes().all(|c| c.is_ascii_digit())) {
                Some(rest) if !is_literal(&used(a)) => {
                    format!("{} - {rest}", side(a, Binds::Sum))
                }
                _ => two(a, "+", b, Binds::Sum, Binds::Product),
            };
            (text, Binds::Sum)
        }
        Size::Mul(a, b) => (two(a, "*", b, Binds::Product, Binds::Atom), Binds::Product),
        Size::FloorDiv(a, b) => (call("floordiv", a, b), Binds::Atom),
        Size::Mod(a, b) => (call("mod", a, b), Binds::Atom),
        Size::Min(a, b) => (call("smaller", a, b), Binds::Atom),
        Size::Max(a, b) => (call("larger", a, b), Binds::Atom),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_keep_their_meaning() {
        let id = SizeId;
        let lines = [
            Size::Sym(0),
            Size::Const(-3),
            Size::Add(id(0), id(1)),
            Size::Mul(id(2), id(0)),
            Size::FloorDiv(id(0), id(3)),
            Size::Mul(id(0), id(4)),
            Size::Mod(id(3), id(1)),
            Size::Min(id(2), id(6)),
            Size::Mul(id(1), id(0)),
            Size::Add(id(0), id(8)),
            Size::Add(id(7), id(3)),
            Size::Const(16),
            Size::Mod(id(0), id(11)),
            Size::Mul(id(11), id(12)),
        ];
        let mut sizes = Sizes::new(&lines, &[("n".into(), 0)]).unwrap();
        let got: Vec<String> = (2..11).map(|k| sizes.get(id(k)).unwrap()).collect();
        let expected = [
            "n - 3",
            "(n - 3) * n",
            "n // ((n - 3) * n)",
            "n * (n // ((n - 3) * n))",
            "(n - 3) * n % -3",
            "min(n - 3, (n - 3) * n % -3)",
            "-3 * n",
            "n + -3 * n",
            "z10",
        ];
        assert_eq!(got, expected);
        assert_eq!(
            sizes.definitions(0),
            ["z10 = min(n - 3, (n - 3) * n % -3) + (n - 3) * n"]
        );
        assert_eq!(sizes.divided(id(2), 4).unwrap(), "(n - 3) // 4");
        assert_eq!(sizes.divided(id(13), 4).unwrap(), "4 * (n % 16)");
        assert_eq!(sizes.divided(id(13), 16).unwrap(), "n % 16");
    }

    #[test]
    fn expressions_of_cpp_are_checked_sizes() {
        let id = SizeId;
        let lines = [
            Size::Sym(0),
            Size::Const(-3),
            Size::Add(id(0), id(1)),
            Size::Mul(id(2), id(0)),
            Size::FloorDiv(id(0), id(3)),
            Size::Mod(id(0), id(1)),
            Size::Min(id(2), id(5)),
            Size::Const(1 << 40),
            Size::Mul(id(1), id(7)),
            Size::Add(id(0), id(8)),
            Size::Const(i64::MIN),
            Size::Add(id(4), id(9)),
        ];
        let mut sizes = Sizes::cpp(&lines, &["n".into()]).unwrap();
        let got: Vec<String> = (2..12).map(|k| sizes.get(id(k)).unwrap()).collect();
        let expected = [
            "n - 3",
            "(n - 3) * n",
            "floordiv(n, (n - 3) * n)",
            "mod(n, -3)",
            "smaller(n - 3, mod(n, -3))",
            "1099511627776LL",
            "Size(-3) * 1099511627776LL",
            "z9",
            "Size(std::numeric_limits<i64>::min())",
            "z11",
        ];
        assert_eq!(got, expected);
        assert_eq!(
            sizes.definitions(0),
            [
                "const Size z9 = n + Size(-3) * 1099511627776LL;",
                "const Size z11 = floordiv(n, (n - 3) * n) + z9;"
            ]
        );
    }

    #[test]
    fn lines_that_refer_forward_are_damage() {
        assert!(Sizes::new(&[Size::Add(SizeId(0), SizeId(0))], &[]).is_err());
        assert!(Sizes::new(&[Size::Sym(1)], &[("n".into(), 0)]).is_err());
    }
}
