//! Declarations of size symbols in text forms: `size s0 in [1, 64] hint 8`, `unbacked u0 in [0, inf]`.

use crate::{Exprs, Sym, SymKind};
use inrush_base::Result;
use inrush_base::text::{Scanner, show_name};

impl Exprs {
    /// Returns one line for each size and unbacked symbol, in order of declaration.
    pub fn show_decls(&self) -> Vec<String> {
        self.symbols().into_iter().map(|s| self.decl(s)).collect()
    }

    /// Returns the declaration of one symbol.
    fn decl(&self, s: Sym) -> String {
        let info = self.sym_info(s);
        let kind = match info.kind {
            SymKind::Unbacked => "unbacked",
            _ => "size",
        };
        let lower = match info.lower {
            i64::MIN => "-inf".to_string(),
            v => v.to_string(),
        };
        let upper = match info.upper {
            i64::MAX => "inf".to_string(),
            v => v.to_string(),
        };
        let mut out = format!("{kind} {} in [{lower}, {upper}]", show_name(&info.name));
        if let Some(h) = info.hint {
            out.push_str(&format!(" hint {h}"));
        }
        out
    }

    /// Reads a declaration line if one comes next.
    pub fn parse_decl(&self, s: &mut Scanner) -> Result<bool> {
        let unbacked = s.eat_word("unbacked")?;
        if !unbacked && !s.eat_word("size")? {
            return Ok(false);
        }
        let name = s.name()?;
        if self.sym_by_name(&name).is_some() {
            return Err(s.error(format!("the symbol `{name}` is declared twice")));
        }
        s.expect_word("in")?;
        s.expect("[")?;
        let lower = bound(s)?;
        s.expect(",")?;
        let upper = bound(s)?;
        s.expect("]")?;
        if lower > upper {
            return Err(s.error(format!("the range of `{name}` is empty")));
        }
        let sym = if unbacked {
            self.unbacked_sym(&name, lower, upper)
        } else {
            self.size_sym(&name, lower, upper)
        };
        if s.eat_word("hint")? {
            self.set_hint(sym, s.int()?);
        }
        s.end_of_line()?;
        Ok(true)
    }
}

/// Reads a bound; infinities are the ends of `i64`.
fn bound(s: &mut Scanner) -> Result<i64> {
    if s.eat("-")? {
        if s.eat_word("inf")? {
            return Ok(i64::MIN);
        }
        return Ok(s.int()?.wrapping_neg());
    }
    if s.eat_word("inf")? {
        return Ok(i64::MAX);
    }
    s.int()
}
