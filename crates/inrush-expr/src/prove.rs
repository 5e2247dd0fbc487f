//! Proofs of inequalities, which decide whether an access is in bounds and a branch is dead.
//!
//! All are reduced to `e >= 0`. Three steps, each sound and none complete:
//!
//! 1. The constant range of `e`.
//! 2. Interval arithmetic over loop indices with symbolic extents: each index is replaced by the end
//!    of its range that makes `e` smallest. This proves `n - 1 - i >= 0` for `i` in `0..n`.
//! 3. Relaxation: a minimum, maximum, quotient or remainder is replaced by a simpler lower bound, at
//!    most [`MAX_STEPS`] times.

use crate::{Expr, Exprs, Node, SymKind};

/// Most terms that one proof relaxes.
const MAX_STEPS: u32 = 4;

impl Exprs {
    /// Returns true if `e >= 0` is proved for every value of the symbols. False means "not proved".
    pub fn prove_nonneg(&self, e: Expr) -> bool {
        if self.range(e).lo >= 0 {
            return true;
        }
        if self.range(e).hi < 0 {
            return false;
        }
        let low = self.bound(e, false);
        self.relaxed_nonneg(low, MAX_STEPS)
    }

    /// Returns an upper (`up`) or lower bound of `e` over all loop indices: each index is replaced
    /// by the end of its range that makes `e` largest or smallest.
    fn bound(&self, e: Expr, up: bool) -> Expr {
        match self.node(e) {
            Node::Const(_) => e,
            Node::Sym(s) => match self.sym_kind(s) {
                SymKind::Index { extent, .. } if up => self.sub(extent, self.int(1)),
                SymKind::Index { .. } => self.int(0),
                _ => e,
            },
            Node::Sum { base, terms } => {
                let parts = terms.iter().map(|(c, t)| {
                    let at_end = self.bound(*t, up ^ (*c < 0));
                    self.mul(self.int(*c), at_end)
                });
                self.add(self.int(base), self.sum(parts))
            }
            // Monotone in each factor when none is negative.
            Node::Product(f) if f.iter().all(|t| self.range(*t).lo >= 0) => {
                self.product(f.iter().map(|t| self.bound(*t, up)))
            }
            Node::FloorDiv(a, b) if self.is_positive_size(b) => self.floordiv(self.bound(a, up), b),
            Node::Mod(a, b) if self.is_positive_size(b) && self.has_index(a) => {
                if up {
                    self.sub(b, self.int(1))
                } else {
                    self.int(0)
                }
            }
            Node::Min(a, b) => self.min(self.bound(a, up), self.bound(b, up)),
            Node::Max(a, b) => self.max(self.bound(a, up), self.bound(b, up)),
            _ => e,
        }
    }

    fn is_positive_size(&self, e: Expr) -> bool {
        self.range(e).lo > 0 && !self.has_index(e)
    }

    fn has_index(&self, e: Expr) -> bool {
        self.free_syms(e).iter().any(|s| self.is_index(*s))
    }

    /// Proves `e >= 0` by replacing terms, one after the other, with simpler lower bounds.
    fn relaxed_nonneg(&self, e: Expr, steps: u32) -> bool {
        if self.range(e).lo >= 0 {
            return true;
        }
        if steps == 0 {
            return false;
        }
        let (_, terms) = self.terms(e);
        for (c, t) in terms {
            let rest = self.sub(e, self.scale(t, c));
            let holds_with = |x: Expr| {
                let low = self.add(rest, self.scale(x, c));
                self.relaxed_nonneg(low, steps - 1)
            };
            let proved = match (self.node(t), c > 0) {
                // A maximum is at least either operand; minus a minimum likewise.
                (Node::Max(a, b), true) | (Node::Min(a, b), false) => {
                    holds_with(a) || holds_with(b)
                }
                (Node::Min(a, b), true) | (Node::Max(a, b), false) => {
                    holds_with(a) && holds_with(b)
                }
                // a - (b - 1) <= b*(a // b) <= a
                (Node::FloorDiv(a, b), up) => match self.as_int(b) {
                    Some(k) if k > 0 && c % k == 0 => {
                        let slack = if up { k - 1 } else { 0 };
                        let x = self.sub(a, self.int(slack));
                        let low = self.add(rest, self.scale(x, c / k));
                        self.relaxed_nonneg(low, steps - 1)
                    }
                    // a - a // b grows with a, so a // b <= a - (lo - lo // b) for a >= lo >= 0
                    _ if !up && self.range(a).lo >= 0 && self.range(b).lo > 0 => {
                        let (lo, least) = (self.range(a).lo, self.range(b).lo);
                        holds_with(self.sub(a, self.int(lo - lo / least)))
                    }
                    _ => false,
                },
                (Node::Mod(_, b), false) if self.range(b).lo > 0 => {
                    holds_with(self.sub(b, self.int(1)))
                }
                (Node::Mod(_, b), true) if self.range(b).lo > 0 => holds_with(self.int(0)),
                _ => false,
            };
            if proved {
                return true;
            }
        }
        false
    }

    /// Returns true if `a <= b` is proved.
    pub fn prove_le(&self, a: Expr, b: Expr) -> bool {
        a == b || self.prove_nonneg(self.sub(b, a))
    }

    /// Returns true if `a < b` is proved.
    pub fn prove_lt(&self, a: Expr, b: Expr) -> bool {
        self.prove_nonneg(self.sub(self.sub(b, a), self.int(1)))
    }

    /// Returns true if `a == b` is proved, which canonical forms make a comparison of handles.
    pub fn prove_eq(&self, a: Expr, b: Expr) -> bool {
        a == b || self.is_int(self.sub(a, b), 0)
    }

    /// Returns true if `a != b` is proved.
    pub fn prove_ne(&self, a: Expr, b: Expr) -> bool {
        if let (Some(x), Some(y)) = (self.as_int(a), self.as_int(b)) {
            return x != y;
        }
        let r = self.range(self.sub(a, b));
        r.lo > 0 || r.hi < 0 || self.prove_lt(a, b) || self.prove_lt(b, a)
    }
}
