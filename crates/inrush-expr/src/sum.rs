//! Sums and products in canonical form.
//!
//! A sum is a constant plus terms `coefficient * factor`, sorted by [`Exprs::compare`], with equal
//! factors merged and zero coefficients dropped. Products are expanded over sums, so that every
//! polynomial has one form and equality is a comparison of handles.
//!
//! Two rules reassemble an index that was split by division and modulo (delinearized):
//! `b*(a // b) + a % b -> a`, and `x % k + k*((x // k) % m) -> x % (k*m)`. Both hold for multiples
//! as well, such as by a stride that is a size.

use crate::rules::{Rule, fired};
use crate::{Expr, Exprs, Node, Op};
use smallvec::{SmallVec, smallvec};

pub(crate) type Terms = SmallVec<[(i64, Expr); 4]>;

impl Exprs {
    /// Returns `e` as base plus terms, whatever its node is.
    pub(crate) fn terms(&self, e: Expr) -> (i64, Terms) {
        match self.node(e) {
            Node::Const(v) => (v, smallvec![]),
            Node::Sum { base, terms } => (base, terms),
            _ => (0, smallvec![(1, e)]),
        }
    }

    /// Interns a sum from unsorted, possibly repeated terms. `None` when a coefficient overflows.
    pub(crate) fn make_sum(&self, base: i64, mut terms: Terms) -> Option<Expr> {
        if terms.len() < 2 {
            terms.retain(|t| t.0 != 0);
            return Some(self.canonical_sum(base, terms));
        }
        terms.sort_by(|a, b| self.compare(a.1, b.1));
        let mut merged: Terms = smallvec![];
        for (c, t) in terms {
            match merged.last_mut() {
                Some(last) if last.1 == t => last.0 = last.0.checked_add(c)?,
                _ => merged.push((c, t)),
            }
        }
        merged.retain(|t| t.0 != 0);
        if merged.len() > 1
            && let Some(joined) = self.join(base, &merged)
        {
            return joined;
        }
        Some(self.canonical_sum(base, merged))
    }

    /// Returns the sum of two values.
    pub fn add(&self, a: Expr, b: Expr) -> Expr {
        match (self.as_int(a), self.as_int(b)) {
            (Some(0), _) => b,
            (_, Some(0)) => a,
            (Some(x), Some(y)) => match x.checked_add(y) {
                Some(v) => self.int(v),
                None => self.saturated(),
            },
            (Some(k), None) => self.shift(b, k),
            (None, Some(k)) => self.shift(a, k),
            // Ordered operands: addition commutes, so both orders share one entry.
            (None, None) => self.remembered(Op::Add, a.min(b), a.max(b), || self.add_terms(a, b)),
        }
    }

    fn add_terms(&self, a: Expr, b: Expr) -> Expr {
        let ((ba, mut ta), (bb, tb)) = (self.terms(a), self.terms(b));
        ta.extend_from_slice(&tb);
        let sum = ba.checked_add(bb).and_then(|base| self.make_sum(base, ta));
        sum.unwrap_or_else(|| self.saturated())
    }

    /// Returns `base + sum(factor * expression)`.
    pub(crate) fn weighted(&self, base: i64, parts: impl Iterator<Item = (i64, Expr)>) -> Expr {
        let mut terms: Terms = smallvec![];
        let mut total = Some(base);
        for (c, e) in parts {
            let (base, more) = self.terms(e);
            total = total.and_then(|t| t.checked_add(base.checked_mul(c)?));
            for (d, t) in more {
                match c.checked_mul(d) {
                    Some(cd) => terms.push((cd, t)),
                    None => total = None,
                }
            }
        }
        let sum = total.and_then(|base| self.make_sum(base, terms));
        sum.unwrap_or_else(|| self.saturated())
    }

    /// Returns `e + k`; the terms stay sorted and joined.
    fn shift(&self, e: Expr, k: i64) -> Expr {
        let (base, terms) = self.terms(e);
        match base.checked_add(k) {
            Some(base) => self.canonical_sum(base, terms),
            None => self.saturated(),
        }
    }

    /// Interns a sum whose terms are sorted, distinct and joined.
    fn canonical_sum(&self, base: i64, terms: Terms) -> Expr {
        match (base, terms.as_slice()) {
            (_, []) => self.int(base),
            (0, [(1, t)]) => *t,
            _ => self.intern(Node::Sum { base, terms }),
        }
    }

    pub fn neg(&self, a: Expr) -> Expr {
        self.scale(a, -1)
    }

    /// Returns the difference of two values.
    pub fn sub(&self, a: Expr, b: Expr) -> Expr {
        if a == b {
            return self.int(0);
        }
        self.add(a, self.neg(b))
    }

    /// Returns `k * a`.
    pub(crate) fn scale(&self, a: Expr, k: i64) -> Expr {
        match k {
            0 => return self.int(0),
            1 => return a,
            _ => {}
        }
        if let Some(v) = self.as_int(a) {
            return match v.checked_mul(k) {
                Some(v) => self.int(v),
                None => self.saturated(),
            };
        }
        let (base, mut terms) = self.terms(a);
        let mut ok = true;
        for t in &mut terms {
            t.0 = t.0.checked_mul(k).unwrap_or_else(|| {
                ok = false;
                0
            });
        }
        // Order and joins of terms do not depend on a common factor.
        match base.checked_mul(k) {
            Some(base) if ok => self.canonical_sum(base, terms),
            _ => self.saturated(),
        }
    }

    /// Returns a stand-in for a value beyond `i64`, whose evaluation is an overflow error. Each
    /// stand-in is a distinct product of constants, so that two unknown values are never equal.
    pub(crate) fn saturated(&self) -> Expr {
        let count = {
            let mut inner = self.inner.borrow_mut();
            inner.saturated += 1;
            inner.saturated
        };
        let (big, other) = (self.int(i64::MAX), self.int(i64::MAX - count));
        self.intern(Node::Product(smallvec![other, big]))
    }

    /// Returns the product of two values.
    pub fn mul(&self, a: Expr, b: Expr) -> Expr {
        if let Some(k) = self.as_int(a) {
            return self.scale(b, k);
        }
        if let Some(k) = self.as_int(b) {
            return self.scale(a, k);
        }
        self.remembered(Op::Mul, a, b, || self.expand(a, b))
    }

    /// Expands a product over sums, so that equal polynomials have equal handles.
    fn expand(&self, a: Expr, b: Expr) -> Expr {
        let ((ba, ta), (bb, tb)) = (self.terms(a), self.terms(b));
        let mut out = self.int(0);
        for (ca, x) in ta.iter().copied().chain([(ba, self.int(1))]) {
            for (cb, y) in tb.iter().copied().chain([(bb, self.int(1))]) {
                if ca == 0 || cb == 0 {
                    continue;
                }
                let factor = match ca.checked_mul(cb) {
                    Some(k) => self.scale(self.monomial(x, y), k),
                    None => self.saturated(),
                };
                out = self.add(out, factor);
            }
        }
        out
    }

    /// Returns the product of two factors that are no sums and no constants other than 1.
    fn monomial(&self, x: Expr, y: Expr) -> Expr {
        let factors = |e: Expr| -> SmallVec<[Expr; 2]> {
            match self.node(e) {
                Node::Const(1) => smallvec![],
                Node::Product(f) => f,
                _ => smallvec![e],
            }
        };
        let mut f = factors(x);
        f.extend(factors(y));
        f.sort_by(|a, b| self.compare(*a, *b));
        match f.as_slice() {
            [] => self.int(1),
            [one] => *one,
            _ => self.intern(Node::Product(f)),
        }
    }

    /// Reassembles a split index if the sum holds both of its parts. The inner `None` is an
    /// overflow.
    fn join(&self, base: i64, terms: &Terms) -> Option<Option<Expr>> {
        for (k, (c, t)) in terms.iter().enumerate() {
            let Some((x, b, factor)) = self.remainder_in(*t) else {
                continue;
            };
            if self.range(b).lo < 1 {
                continue;
            }
            let q = self.floordiv(x, b);
            for (j, (c2, t2)) in terms.iter().enumerate() {
                if j == k {
                    continue;
                }
                // Tests that `c2*t2` is `c*factor*b*q`, or `c*factor*b*(q % m)`.
                let is_upper = |part: Expr| {
                    let part = factor.map_or(part, |f| self.mul(f, part));
                    let (zero, whole) = self.terms(self.mul(b, part));
                    matches!(whole.as_slice(), [(w, e)] if zero == 0 && e == t2 && c.checked_mul(*w) == Some(*c2))
                };
                let new = if is_upper(q) {
                    fired(Rule::SumJoin);
                    x
                } else if let Some((part, m)) = self.wrapped(*t2, q)
                    && is_upper(part)
                {
                    fired(Rule::SumWiden);
                    self.modulo(x, self.mul(b, m))
                } else {
                    continue;
                };
                let new = factor.map_or(new, |f| self.mul(f, new));
                let (more, added) = self.terms(self.scale(new, *c));
                let mut rest: Terms = smallvec![];
                rest.extend(
                    (terms.iter().enumerate())
                        .filter_map(|(i, t)| (i != j && i != k).then_some(*t)),
                );
                rest.extend(added);
                return Some(
                    base.checked_add(more)
                        .and_then(|base| self.make_sum(base, rest)),
                );
            }
        }
        None
    }

    /// Returns `x`, `b` and what `x % b` is multiplied by in `t`.
    fn remainder_in(&self, t: Expr) -> Option<(Expr, Expr, Option<Expr>)> {
        match self.node(t) {
            Node::Mod(x, b) => Some((x, b, None)),
            Node::Product(f) => f.iter().enumerate().find_map(|(at, e)| {
                let Node::Mod(x, b) = self.node(*e) else {
                    return None;
                };
                let others = f.iter().enumerate().filter(|(k, _)| *k != at);
                Some((x, b, Some(self.product(others.map(|(_, e)| *e)))))
            }),
            _ => None,
        }
    }

    /// Returns the factor `q % m` of `t`, with its `m`.
    fn wrapped(&self, t: Expr, q: Expr) -> Option<(Expr, Expr)> {
        let of = |e: Expr| match self.node(e) {
            Node::Mod(y, m) if y == q && self.range(m).lo > 0 => Some((e, m)),
            _ => None,
        };
        match self.node(t) {
            Node::Product(f) => f.into_iter().find_map(of),
            _ => of(t),
        }
    }
}
