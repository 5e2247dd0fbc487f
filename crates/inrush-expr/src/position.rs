//! Positions of index symbols: which loop index a symbol is.

use std::fmt;

/// The role of an index symbol, with its number. Symbols of different roles are never equal, so
/// that an axis of one body cannot be taken for an indirect index of another.
///
/// The order is that of terms in sums: axes, indirect indices, fresh indices.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Position {
    /// An axis of a loop nest, `i3`.
    Axis(u32),
    /// An index that is read from data, `j3`.
    Indirect(u32),
    /// An axis that a later stage makes of others, `t3`: no body that comes in has it.
    Fresh(u32),
}

impl Position {
    /// Reads the name of an index: `i3`, `j3`, `t3`. What follows a dot tells apart indices of one
    /// position and different extents, as in `i3.1`.
    pub fn parse(name: &str) -> Option<Position> {
        let role = match name.as_bytes().first()? {
            b'i' => Position::Axis,
            b'j' => Position::Indirect,
            b't' => Position::Fresh,
            _ => return None,
        };
        let number = name[1..].split('.').next()?;
        number.parse().ok().map(role)
    }

    /// Returns true for an index that is read from data.
    pub fn is_indirect(self) -> bool {
        matches!(self, Position::Indirect(_))
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Position::Axis(n) => write!(f, "i{n}"),
            Position::Indirect(n) => write!(f, "j{n}"),
            Position::Fresh(n) => write!(f, "t{n}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Exprs;

    #[test]
    fn names_read_back() {
        for p in [
            Position::Axis(0),
            Position::Indirect(12),
            Position::Fresh(u32::MAX),
        ] {
            assert_eq!(Position::parse(&p.to_string()), Some(p));
            assert_eq!(Position::parse(&format!("{p}.1")), Some(p));
        }
        for name in ["", "i", "i-1", "x3", "3", "i3a", "i4294967296", "\u{e9}3"] {
            assert_eq!(Position::parse(name), None, "{name}");
        }
    }

    #[test]
    fn roles_of_one_number_are_different_symbols() {
        let ex = Exprs::new();
        let n = ex.int(5);
        let roles = [Position::Axis(1), Position::Indirect(1), Position::Fresh(1)];
        let [a, b, c] = roles.map(|p| ex.sym_at(p, n));
        assert!(a != b && b != c && a != c);
        assert_eq!(roles.map(|p| ex.sym_at(p, n)), [a, b, c]);
        assert_eq!(
            [a, b, c].map(|s| ex.index_of(s)),
            roles.map(|p| Some((p, n)))
        );
        let sum = ex.sum([c, b, a].map(|s| ex.sym_expr(s)));
        assert_eq!(ex.show(sum), "i1 + j1 + t1");
    }
}
