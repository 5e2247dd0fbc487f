//! Minimum and maximum in canonical form: flattened, sorted, without dominated operands.
//!
//! ```text
//! min(min(a, b), min(c, a))   ->  operands a, b, c  ->  min(min(a, b), c)
//! ```
//!
//! An operand is dominated if another is proved to be at least as small (as great, of a maximum).

use crate::rules::{Rule, fired};
use crate::{Expr, Exprs, Node, Op};

/// Up to this many operands are compared pairwise for dominance. Of longer lists only duplicates
/// are dropped.
const MAX_COMPARED: usize = 8;

impl Exprs {
    /// Returns the smaller of two values.
    pub fn min(&self, a: Expr, b: Expr) -> Expr {
        if let (Some(x), Some(y)) = (self.as_int(a), self.as_int(b)) {
            return self.int(x.min(y));
        }
        self.remembered(Op::Min, a, b, || self.extreme(a, b, true))
    }

    /// Returns the greater of two values.
    pub fn max(&self, a: Expr, b: Expr) -> Expr {
        if let (Some(x), Some(y)) = (self.as_int(a), self.as_int(b)) {
            return self.int(x.max(y));
        }
        self.remembered(Op::Max, a, b, || self.extreme(a, b, false))
    }

    /// Builds the canonical minimum or maximum.
    fn extreme(&self, a: Expr, b: Expr, min: bool) -> Expr {
        if a == b {
            return a;
        }
        // True if `x` dominates `y`.
        let wins = |x: Expr, y: Expr| {
            if min {
                self.prove_le(x, y)
            } else {
                self.prove_le(y, x)
            }
        };
        let mut all = Vec::new();
        self.operands(a, min, &mut all);
        self.operands(b, min, &mut all);
        if all.len() > 2 {
            fired(Rule::MinMaxFlat);
        }
        all.sort_by(|x, y| self.compare(*x, *y));
        all.dedup();
        // Two operands that dominate each other have equal values: one of them stays, since the
        // list is searched again after each removal.
        if all.len() <= MAX_COMPARED {
            let mut k = 0;
            while k < all.len() {
                if (0..all.len()).any(|j| j != k && wins(all[j], all[k])) {
                    fired(Rule::MinMaxDrop);
                    all.remove(k);
                } else {
                    k += 1;
                }
            }
        }
        let first = all[0];
        all[1..].iter().fold(first, |x, y| {
            self.intern(if min {
                Node::Min(x, *y)
            } else {
                Node::Max(x, *y)
            })
        })
    }

    /// Collects the operands of nested minima (or maxima).
    fn operands(&self, e: Expr, min: bool, out: &mut Vec<Expr>) {
        match (self.node(e), min) {
            (Node::Min(a, b), true) | (Node::Max(a, b), false) => {
                self.operands(a, min, out);
                self.operands(b, min, out);
            }
            _ => out.push(e),
        }
    }
}
