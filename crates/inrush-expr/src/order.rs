//! The canonical order of expressions: by structure and symbol, never by when they were interned, so that text that is
//! printed and parsed again keeps its order.

use crate::{Expr, Exprs, Inner, Node, SymKind};
use std::cmp::Ordering;

/// Returns the place of a kind among the kinds. Symbols come before what is made of them, so that a
/// printed sum begins with its plain terms.
fn rank(n: &Node) -> u8 {
    match n {
        Node::Const(_) => 0,
        Node::Sym(_) => 1,
        Node::Product(_) => 2,
        Node::FloorDiv(..) => 3,
        Node::Mod(..) => 4,
        Node::Min(..) => 5,
        Node::Max(..) => 6,
        Node::Sum { .. } => 7,
    }
}

impl Exprs {
    /// Compares two expressions by structure: a total order.
    pub fn compare(&self, a: Expr, b: Expr) -> Ordering {
        if a == b {
            return Ordering::Equal;
        }
        self.inner.borrow().compare(a, b)
    }
}

impl Inner {
    fn compare(&self, a: Expr, b: Expr) -> Ordering {
        if a == b {
            return Ordering::Equal;
        }
        let (na, nb) = (&self.nodes[a.index()], &self.nodes[b.index()]);
        match (na, nb) {
            (Node::Const(x), Node::Const(y)) => x.cmp(y),
            (Node::Sym(x), Node::Sym(y)) => {
                let (ix, iy) = (&self.syms[x.index()], &self.syms[y.index()]);
                // Sizes before indices; `s2` before `s10`.
                let by_name =
                    || (ix.name.len().cmp(&iy.name.len())).then_with(|| ix.name.cmp(&iy.name));
                match (&ix.kind, &iy.kind) {
                    (
                        SymKind::Index {
                            position: p,
                            extent: x,
                        },
                        SymKind::Index {
                            position: q,
                            extent: y,
                        },
                    ) => p.cmp(q).then_with(|| self.compare(*x, *y)),
                    (SymKind::Index { .. }, _) => Ordering::Greater,
                    (_, SymKind::Index { .. }) => Ordering::Less,
                    _ => by_name(),
                }
            }
            (Node::Product(x), Node::Product(y)) => self.compare_lists(x, y),
            (Node::FloorDiv(a0, a1), Node::FloorDiv(b0, b1))
            | (Node::Mod(a0, a1), Node::Mod(b0, b1))
            | (Node::Min(a0, a1), Node::Min(b0, b1))
            | (Node::Max(a0, a1), Node::Max(b0, b1)) => {
                self.compare(*a0, *b0).then_with(|| self.compare(*a1, *b1))
            }
            (Node::Sum { base: x, terms: tx }, Node::Sum { base: y, terms: ty }) => {
                // Terms decide before the constant: sums that differ in it stay neighbours.
                for (p, q) in tx.iter().zip(ty) {
                    let o = self.compare(p.1, q.1).then(p.0.cmp(&q.0));
                    if o.is_ne() {
                        return o;
                    }
                }
                tx.len().cmp(&ty.len()).then(x.cmp(y))
            }
            _ => rank(na).cmp(&rank(nb)),
        }
    }

    fn compare_lists(&self, x: &[Expr], y: &[Expr]) -> Ordering {
        for (p, q) in x.iter().zip(y) {
            let o = self.compare(*p, *q);
            if o.is_ne() {
                return o;
            }
        }
        x.len().cmp(&y.len())
    }
}
