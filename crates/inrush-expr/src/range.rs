//! Value ranges: constant bounds of every expression, and proofs that go through them.

use crate::{Expr, Exprs, Node, SymKind};

/// Inclusive bounds; `i64::MIN` and `i64::MAX` stand for "unbounded".
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Range {
    pub lo: i64,
    pub hi: i64,
}

const NEG: i64 = i64::MIN;
const POS: i64 = i64::MAX;

impl Range {
    pub fn new(lo: i64, hi: i64) -> Range {
        Range { lo, hi }
    }
    fn add(self, o: Range) -> Range {
        let lo = if self.lo == NEG || o.lo == NEG {
            NEG
        } else {
            self.lo.saturating_add(o.lo)
        };
        let hi = if self.hi == POS || o.hi == POS {
            POS
        } else {
            self.hi.saturating_add(o.hi)
        };
        Range { lo, hi }
    }
    fn mul(self, o: Range) -> Range {
        let corner = |a: i64, b: i64| -> i64 {
            if a == 0 || b == 0 {
                0
            } else {
                a.saturating_mul(b)
            }
        };
        let c = [
            corner(self.lo, o.lo),
            corner(self.lo, o.hi),
            corner(self.hi, o.lo),
            corner(self.hi, o.hi),
        ];
        Range {
            lo: *c.iter().min().expect("four"),
            hi: *c.iter().max().expect("four"),
        }
    }
    fn scale(self, k: i64) -> Range {
        self.mul(Range::new(k, k))
    }
    /// Floor division, for a divisor that is known to be positive; the full range otherwise.
    fn floordiv(self, d: Range) -> Range {
        if d.lo < 1 {
            return Range { lo: NEG, hi: POS };
        }
        let div = |a: i64, b: i64| {
            if a == NEG || a == POS {
                if b == POS {
                    0.max(a.signum()) - (a < 0) as i64
                } else {
                    a
                }
            } else {
                a.div_euclid(b)
            }
        };
        let lo = div(self.lo, d.lo).min(div(self.lo, d.hi));
        let hi = div(self.hi, d.lo).max(div(self.hi, d.hi));
        Range { lo, hi }
    }
}

impl Exprs {
    /// Constant bounds of `e`.
    pub fn range(&self, e: Expr) -> Range {
        self.inner.borrow().ranges[e.index()]
    }

    pub(crate) fn range_of_node(&self, node: &Node) -> Range {
        let inner = self.inner.borrow();
        let r = |e: &Expr| inner.ranges[e.index()];
        match node {
            Node::Const(v) => Range::new(*v, *v),
            Node::Sym(s) => {
                let info = &inner.syms[s.index()];
                Range::new(info.lower, info.upper)
            }
            Node::Sum { base, terms } => {
                terms.iter().fold(Range::new(*base, *base), |acc, (c, t)| {
                    acc.add(r(t).scale(*c))
                })
            }
            Node::Product(f) => f.iter().fold(Range::new(1, 1), |acc, t| acc.mul(r(t))),
            Node::FloorDiv(a, b) => r(a).floordiv(r(b)),
            Node::Mod(a, b) => {
                let (ra, rb) = (r(a), r(b));
                if rb.lo < 1 {
                    Range::new(NEG, POS)
                } else {
                    let hi = rb.hi.saturating_sub((rb.hi != POS) as i64);
                    Range::new(0, if ra.lo >= 0 { hi.min(ra.hi) } else { hi })
                }
            }
            Node::Min(a, b) => Range::new(r(a).lo.min(r(b).lo), r(a).hi.min(r(b).hi)),
            Node::Max(a, b) => Range::new(r(a).lo.max(r(b).lo), r(a).hi.max(r(b).hi)),
        }
    }

    /// `e >= 0` for every value of the symbols. `false` means "not proved".
    pub fn prove_nonneg(&self, e: Expr) -> bool {
        self.range(e).lo >= 0 || self.lower_bound_nonneg(e)
    }

    /// Replaces every loop index in a sum by the end of its range that makes the sum smallest, then looks again:
    /// this is what knows that `n - 1 - i >= 0` for `i` in `0..n` with symbolic `n`.
    fn lower_bound_nonneg(&self, e: Expr) -> bool {
        let Node::Sum { terms, .. } = self.node(e) else {
            return false;
        };
        let mut low = e;
        let mut changed = false;
        for (c, t) in &terms {
            let Some((sym, cofactor)) = self.index_factor(*t) else {
                continue;
            };
            let SymKind::Index { extent } = self.sym_info(sym).kind else {
                continue;
            };
            // Smallest at 0 for a positive coefficient (cofactors are sizes, so non-negative), at extent - 1 otherwise.
            if self.range(cofactor).lo < 0 {
                return false;
            }
            let at = if *c > 0 {
                self.int(0)
            } else {
                self.sub(extent, self.int(1))
            };
            let term = self.mul(self.int(*c), *t);
            let new = self.mul(self.mul(self.int(*c), cofactor), at);
            low = self.add(self.sub(low, term), new);
            changed = true;
        }
        changed && (self.range(low).lo >= 0)
    }

    /// `t` as `index symbol * cofactor`, where the cofactor holds no loop index.
    fn index_factor(&self, t: Expr) -> Option<(crate::Sym, Expr)> {
        match self.node(t) {
            Node::Sym(s) if self.is_index(s) => Some((s, self.int(1))),
            Node::Product(f) => {
                let mut found = None;
                let mut rest = self.int(1);
                for e in f {
                    match self.as_sym(e) {
                        Some(s) if self.is_index(s) && found.is_none() => found = Some(s),
                        _ => rest = self.mul(rest, e),
                    }
                }
                found
                    .map(|s| (s, rest))
                    .filter(|(_, r)| !self.free_syms(*r).iter().any(|s| self.is_index(*s)))
            }
            _ => None,
        }
    }

    /// `a <= b`, proved.
    pub fn prove_le(&self, a: Expr, b: Expr) -> bool {
        a == b || self.prove_nonneg(self.sub(b, a))
    }

    /// `a < b`, proved.
    pub fn prove_lt(&self, a: Expr, b: Expr) -> bool {
        self.prove_nonneg(self.sub(self.sub(b, a), self.int(1)))
    }

    /// `a == b`, proved: canonical forms make this a comparison of handles.
    pub fn prove_eq(&self, a: Expr, b: Expr) -> bool {
        a == b || self.is_int(self.sub(a, b), 0)
    }

    /// `a != b`, proved by ranges.
    pub fn prove_ne(&self, a: Expr, b: Expr) -> bool {
        let r = self.range(self.sub(a, b));
        r.lo > 0 || r.hi < 0 || self.prove_lt(a, b) || self.prove_lt(b, a)
    }

    /// A typical value of `e`: symbols at their hints, else at their lower bound or 8192 at most. For cost estimates.
    pub fn hint(&self, e: Expr) -> i64 {
        self.eval(e, &|s| {
            let info = self.sym_info(s);
            Some(match (&info.kind, info.hint) {
                (_, Some(h)) => h,
                (SymKind::Index { .. }, None) => 0,
                _ => 32.clamp(info.lower.max(1), info.upper.max(1)),
            })
        })
        .unwrap_or(i64::MAX)
    }
}
