//! Size arithmetic of the program, built from symbolic expressions.
//!
//! The program holds a list of lines in static single assignment, each over earlier lines:
//!
//! ```text
//! 4 * (s0 // 8) + 1   ->   0: 1   1: s0   2: 8   3: 1 // 2   4: 4   5: 4 * 3   6: 0 + 5
//! ```
//!
//! A call evaluates all lines once, in order. Common subexpressions are shared twice: expressions
//! by their identity in the arena, lines by their contents.

use inrush_base::{Error, Result};
use inrush_expr::{Expr, Exprs, Node, Sym};
use inrush_program::{Size, SizeId};
use rustc_hash::FxHashMap;

/// Appends lines for expressions, each expression and each line once.
pub struct Sizes<'a> {
    exprs: &'a Exprs,
    symbols: FxHashMap<Sym, u32>,
    /// Lines by expression.
    known: FxHashMap<Expr, SizeId>,
    lines: Vec<Size>,
    /// Lines by contents, for expressions that reach the same line in different ways.
    by_line: FxHashMap<Size, SizeId>,
}

impl<'a> Sizes<'a> {
    /// `symbols` are the program's symbols by position.
    pub fn new(exprs: &'a Exprs, symbols: &[Sym]) -> Self {
        let symbols = symbols
            .iter()
            .enumerate()
            .map(|(i, s)| (*s, i as u32))
            .collect();
        Sizes {
            exprs,
            symbols,
            known: FxHashMap::default(),
            lines: Vec::new(),
            by_line: FxHashMap::default(),
        }
    }

    pub fn finish(self) -> Vec<Size> {
        self.lines
    }

    fn line(&mut self, line: Size) -> SizeId {
        let lines = &mut self.lines;
        *self.by_line.entry(line).or_insert_with(|| {
            lines.push(line);
            SizeId(lines.len() as u32 - 1)
        })
    }

    /// Returns the line of a constant.
    pub fn int(&mut self, v: i64) -> SizeId {
        self.line(Size::Const(v))
    }

    /// Returns the lines of several expressions.
    pub fn all(&mut self, es: &[Expr]) -> Result<Vec<SizeId>> {
        es.iter().map(|e| self.of(*e)).collect()
    }

    /// Returns the line whose value is `e`.
    ///
    /// # Errors
    /// When `e` holds a symbol that no input determines.
    pub fn of(&mut self, e: Expr) -> Result<SizeId> {
        if let Some(id) = self.known.get(&e) {
            return Ok(*id);
        }
        let id = match self.exprs.node(e) {
            Node::Const(v) => self.int(v),
            Node::Sym(s) => match self.symbols.get(&s) {
                Some(at) => self.line(Size::Sym(*at)),
                None => {
                    return Err(Error::unsupported(format!(
                        "the size `{}` is determined by no input (it depends on data)",
                        self.exprs.sym_info(s).name
                    )));
                }
            },
            Node::Sum { base, terms } => {
                let mut acc: Option<SizeId> = (base != 0).then(|| self.int(base));
                for (c, t) in terms {
                    let mut term = self.of(t)?;
                    if c != 1 {
                        let c = self.int(c);
                        term = self.line(Size::Mul(c, term));
                    }
                    acc = Some(match acc {
                        Some(a) => self.line(Size::Add(a, term)),
                        None => term,
                    });
                }
                acc.expect("a sum has terms")
            }
            Node::Product(factors) => {
                let mut acc: Option<SizeId> = None;
                for f in factors {
                    let f = self.of(f)?;
                    acc = Some(match acc {
                        Some(a) => self.line(Size::Mul(a, f)),
                        None => f,
                    });
                }
                acc.expect("a product has factors")
            }
            Node::FloorDiv(a, b) => self.pair(a, b, Size::FloorDiv)?,
            Node::Mod(a, b) => self.pair(a, b, Size::Mod)?,
            Node::Min(a, b) => self.pair(a, b, Size::Min)?,
            Node::Max(a, b) => self.pair(a, b, Size::Max)?,
        };
        self.known.insert(e, id);
        Ok(id)
    }

    fn pair(&mut self, a: Expr, b: Expr, op: fn(SizeId, SizeId) -> Size) -> Result<SizeId> {
        let (a, b) = (self.of(a)?, self.of(b)?);
        Ok(self.line(op(a, b)))
    }
}
