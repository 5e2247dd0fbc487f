//! Value ranges: constant bounds of every expression.
//!
//! Interval arithmetic over the operands' ranges, computed once when an expression is interned. It
//! forgets relations between operands: `s0 - s0 // 2` gets bounds as if the two were independent.
//! `prove.rs` does better where symbols cancel.
//!
//! The ends of `i64` mean "unbounded" and absorb: an unbounded side stays unbounded under addition,
//! and saturation ends there as well.

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
    /// Multiplies: the extremes are at corners. Zero times an unbounded side is zero, since every
    /// value is finite.
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
    /// Returns the range of a floor division by a positive divisor; the full range for other
    /// divisors.
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

/// Returns the largest value of an index whose extent has range `r`.
pub(crate) fn index_upper(r: Range) -> i64 {
    match r.hi {
        POS => POS,
        hi => hi.saturating_sub(1).max(0),
    }
}

impl Exprs {
    /// Returns constant bounds of `e`.
    pub fn range(&self, e: Expr) -> Range {
        self.inner.borrow().ranges[e.index()]
    }

    /// Returns the bounds of a node from those of its operands.
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
            // A product with constants is a saturated value.
            Node::Product(f)
                if f.iter()
                    .any(|t| matches!(inner.nodes[t.index()], Node::Const(_))) =>
            {
                Range::new(NEG, POS)
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

    /// Recomputes every range after the bounds of a symbol have changed.
    pub(crate) fn refresh_ranges(&self) {
        let count = self.inner.borrow().nodes.len();
        for k in 0..count {
            // Operands are interned before what is made of them.
            let node = self.inner.borrow().nodes[k].clone();
            if let Node::Sym(s) = node {
                let mut inner = self.inner.borrow_mut();
                if let SymKind::Index { extent, .. } = inner.syms[s.index()].kind {
                    inner.syms[s.index()].upper = index_upper(inner.ranges[extent.index()]);
                }
            }
            let range = self.range_of_node(&node);
            self.inner.borrow_mut().ranges[k] = range;
        }
    }

    /// Returns a typical value of `e` for cost estimates. A symbol counts by its hint; without one
    /// a loop index counts 0 and a size 32, moved into its bounds. Returns `i64::MAX` if the value
    /// overflows.
    pub fn hint(&self, e: Expr) -> i64 {
        if let Some(v) = self.as_int(e) {
            return v;
        }
        self.eval(e, &|s| {
            let inner = self.inner.borrow();
            let info = &inner.syms[s.index()];
            Some(match (&info.kind, info.hint) {
                (_, Some(h)) => h,
                (SymKind::Index { .. }, None) => 0,
                _ => 32.min(info.upper).max(info.lower).max(1),
            })
        })
        .unwrap_or(i64::MAX)
    }
}
