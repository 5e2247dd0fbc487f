//! Forks of an arena, so that threads can make expressions without a lock.
//!
//! Each thread interns into a clone of the arena. Handles below the fork point mean the same in
//! both. Afterwards [`Import`] copies the kept expressions into the first arena and translates
//! their handles. Canonical order follows structure and never handles, so the result does not
//! depend on the number of threads.

use crate::{Expr, Exprs, Node, Sym, SymKind};
use rustc_hash::FxHashMap;

impl Exprs {
    /// Returns a clone in which every existing expression and symbol has the same handle. Handles
    /// that either arena adds later mean nothing in the other.
    pub fn fork(&self) -> Exprs {
        let fork = self.clone();
        let mut inner = fork.inner.borrow_mut();
        inner.common = (inner.nodes.len(), inner.syms.len());
        drop(inner);
        fork
    }
}

/// Brings expressions of a fork into the arena that it was forked from. Canonical order goes by structure, so they are
/// canonical there too.
pub struct Import<'a> {
    to: &'a Exprs,
    from: &'a Exprs,
    common: (usize, usize),
    /// Expressions that were brought over.
    known: FxHashMap<Expr, Expr>,
}

impl<'a> Import<'a> {
    pub fn new(to: &'a Exprs, from: &'a Exprs) -> Import<'a> {
        let common = from.inner.borrow().common;
        Import {
            to,
            from,
            common,
            known: FxHashMap::default(),
        }
    }

    /// Returns true if the fork has added nothing, so that all of its handles are valid in both
    /// arenas.
    pub fn is_trivial(&self) -> bool {
        let inner = self.from.inner.borrow();
        self.common == (inner.nodes.len(), inner.syms.len())
    }

    /// Returns the expression in the first arena. Time is linear in the new subexpressions.
    pub fn expr(&mut self, e: Expr) -> Expr {
        if e.index() < self.common.0 {
            return e;
        }
        if let Some(known) = self.known.get(&e) {
            return *known;
        }
        let node = match self.from.node(e) {
            Node::Const(v) => Node::Const(v),
            Node::Sym(s) => Node::Sym(self.sym(s)),
            Node::Sum { base, terms } => Node::Sum {
                base,
                terms: terms.into_iter().map(|(c, t)| (c, self.expr(t))).collect(),
            },
            Node::Product(factors) => {
                Node::Product(factors.into_iter().map(|f| self.expr(f)).collect())
            }
            Node::FloorDiv(a, b) => Node::FloorDiv(self.expr(a), self.expr(b)),
            Node::Mod(a, b) => Node::Mod(self.expr(a), self.expr(b)),
            Node::Min(a, b) => Node::Min(self.expr(a), self.expr(b)),
            Node::Max(a, b) => Node::Max(self.expr(a), self.expr(b)),
        };
        // Only a saturated value has constants as factors, and no two of these are equal.
        let unknown = |f: &Expr| self.to.as_int(*f).is_some();
        let new = match &node {
            Node::Product(factors) if factors.iter().any(unknown) => self.to.saturated(),
            _ => self.to.intern(node),
        };
        self.known.insert(e, new);
        new
    }

    /// Returns the symbol in the first arena; a loop index is found by position and extent.
    pub fn sym(&mut self, s: Sym) -> Sym {
        if s.index() < self.common.1 {
            return s;
        }
        let info = self.from.sym_info(s);
        match info.kind {
            SymKind::Index { position, extent } => self.to.sym_at(position, self.expr(extent)),
            SymKind::Size => self.to.size_sym(&info.name, info.lower, info.upper),
            SymKind::Unbacked => self.to.unbacked_sym(&info.name, info.lower, info.upper),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_fork_makes_is_found_again() {
        let ex = Exprs::new();
        let n = ex.sym_expr(ex.size_sym("s0", 2, 100));
        let before = ex.add(n, ex.int(1));
        let fork = ex.fork();
        // Both arenas grow: the same new handles mean different expressions now.
        let (mine, theirs) = (ex.mul(n, ex.int(3)), fork.mul(n, fork.int(5)));
        assert_eq!(mine, theirs);
        let i = fork.index(70_000, theirs);
        let made = fork.modulo(fork.floordiv(fork.add(i, before), n), fork.int(7));
        let mut import = Import::new(&ex, &fork);
        assert!(!import.is_trivial());
        assert_eq!(import.expr(before), before);
        let here = import.expr(made);
        assert_eq!(ex.show(here).to_string(), fork.show(made).to_string());
        let i = ex.index(70_000, ex.mul(n, ex.int(5)));
        assert_eq!(
            here,
            ex.modulo(ex.floordiv(ex.add(i, before), n), ex.int(7))
        );
        assert_eq!(ex.range(here), fork.range(made));
    }

    #[test]
    fn values_beyond_the_integers_stay_apart() {
        let ex = Exprs::new();
        let big = ex.int(i64::MAX);
        let fork = ex.fork();
        let (a, b) = (ex.add(big, ex.int(1)), fork.add(big, fork.int(2)));
        let mut import = Import::new(&ex, &fork);
        assert_ne!(import.expr(b), a);
        assert_eq!(import.expr(b), import.expr(b));
    }

    #[test]
    fn a_fork_that_made_nothing_is_trivial() {
        let ex = Exprs::new();
        ex.int(3);
        let fork = ex.fork();
        fork.int(3);
        assert!(Import::new(&ex, &fork).is_trivial());
    }
}
