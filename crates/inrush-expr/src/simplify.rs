//! Constructors that keep expressions canonical, and the named rules for division and modulo.

use crate::{Expr, Exprs, Node};
use smallvec::{SmallVec, smallvec};

type Terms = SmallVec<[(i64, Expr); 4]>;

impl Exprs {
    /// `e` as base plus terms, whatever its node is.
    fn terms(&self, e: Expr) -> (i64, Terms) {
        match self.node(e) {
            Node::Const(v) => (v, smallvec![]),
            Node::Sum { base, terms } => (base, terms),
            _ => (0, smallvec![(1, e)]),
        }
    }

    /// Interns a sum from unsorted, possibly repeated terms. `None` when a coefficient overflows.
    fn make_sum(&self, base: i64, mut terms: Terms) -> Option<Expr> {
        terms.sort_by(|a, b| self.compare(a.1, b.1));
        let mut merged: Terms = smallvec![];
        for (c, t) in terms {
            match merged.last_mut() {
                Some(last) if last.1 == t => last.0 = last.0.checked_add(c)?,
                _ => merged.push((c, t)),
            }
        }
        merged.retain(|t| t.0 != 0);
        Some(match (base, merged.as_slice()) {
            (_, []) => self.int(base),
            (0, [(1, t)]) => *t,
            _ => self.intern(Node::Sum {
                base,
                terms: merged,
            }),
        })
    }

    pub fn add(&self, a: Expr, b: Expr) -> Expr {
        let ((ba, mut ta), (bb, tb)) = (self.terms(a), self.terms(b));
        ta.extend(tb);
        let sum = ba.checked_add(bb).and_then(|base| self.make_sum(base, ta));
        sum.unwrap_or_else(|| self.saturated())
    }

    pub fn neg(&self, a: Expr) -> Expr {
        self.scale(a, -1)
    }

    pub fn sub(&self, a: Expr, b: Expr) -> Expr {
        self.add(a, self.neg(b))
    }

    fn scale(&self, a: Expr, k: i64) -> Expr {
        if k == 0 {
            return self.int(0);
        }
        let (base, mut terms) = self.terms(a);
        let mut ok = true;
        for t in &mut terms {
            t.0 = t.0.checked_mul(k).unwrap_or_else(|| {
                ok = false;
                0
            });
        }
        match base.checked_mul(k) {
            Some(base) if ok => self
                .make_sum(base, terms)
                .unwrap_or_else(|| self.saturated()),
            _ => self.saturated(),
        }
    }

    /// What stands for a value beyond `i64`: evaluation of it is an overflow error.
    fn saturated(&self) -> Expr {
        let big = self.int(i64::MAX);
        self.intern(Node::Product(smallvec![big, big]))
    }

    pub fn mul(&self, a: Expr, b: Expr) -> Expr {
        if let Some(k) = self.as_int(a) {
            return self.scale(b, k);
        }
        if let Some(k) = self.as_int(b) {
            return self.scale(a, k);
        }
        // Products are expanded, so that equal polynomials are equal handles.
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

    /// Product of two factors that are no sums and no constants other than 1.
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

    /// `e / d` when `d` divides `e` exactly for every value of the symbols.
    pub fn divide_exact(&self, e: Expr, d: Expr) -> Option<Expr> {
        if self.is_int(d, 1) {
            return Some(e);
        }
        if self.is_int(d, 0) {
            return None;
        }
        if e == d {
            return Some(self.int(1));
        }
        let (base, terms) = self.terms(e);
        if let Some(k) = self.as_int(d) {
            if base % k != 0 {
                return None;
            }
            let mut out: Terms = smallvec![];
            for (c, t) in terms {
                if c % k == 0 {
                    out.push((c / k, t));
                } else {
                    return None;
                }
            }
            return self.make_sum(base / k, out);
        }
        if let Node::Sum { .. } = self.node(d) {
            return self.divide_by_sum(e, d);
        }
        // d = product of factors: every term must hold them all.
        let want: SmallVec<[Expr; 2]> = match self.node(d) {
            Node::Product(f) => f,
            _ => smallvec![d],
        };
        if base != 0 {
            return None;
        }
        let mut out = self.int(0);
        for (c, t) in terms {
            let mut have: SmallVec<[Expr; 2]> = match self.node(t) {
                Node::Product(f) => f,
                _ => smallvec![t],
            };
            for w in &want {
                let at = have.iter().position(|h| h == w)?;
                have.remove(at);
            }
            let rest = self.product(have);
            out = self.add(out, self.scale(rest, c));
        }
        Some(out)
    }

    /// Division by a sum: `k * d` for a constant or monomial `k` found from the leading terms.
    fn divide_by_sum(&self, e: Expr, d: Expr) -> Option<Expr> {
        let ((_, te), (_, td)) = (self.terms(e), self.terms(d));
        let (ce, xe) = *te.last()?;
        let (cd, xd) = *td.last()?;
        if ce % cd != 0 {
            return None;
        }
        let lead = self.divide_exact(xe, xd)?;
        let q = self.scale(lead, ce / cd);
        (self.mul(q, d) == e).then_some(q)
    }

    /// `floor(a / b)`. Rules, in order: exact division, range inside one quotient, split of the divisible part,
    /// nested divisions, common factor.
    pub fn floordiv(&self, a: Expr, b: Expr) -> Expr {
        if let (Some(x), Some(y)) = (self.as_int(a), self.as_int(b)) {
            if y != 0 && !(x == i64::MIN && y == -1) {
                let q = x / y;
                return self.int(if x % y != 0 && ((x < 0) != (y < 0)) {
                    q - 1
                } else {
                    q
                });
            }
        }
        // rule exact: (k*b) // b -> k
        if !self.is_int(b, 0) && (self.as_int(b).is_some() || self.range(b).lo > 0) {
            if let Some(q) = self.divide_exact(a, b) {
                return q;
            }
        }
        if self.range(b).lo > 0 {
            // rule inside: 0 <= a < b -> 0
            if self.prove_nonneg(a) && self.prove_lt(a, b) {
                return self.int(0);
            }
            // rule split: (k*b + r) // b -> k + r // b
            if let Some((q, r)) = self.split_divisible(a, b) {
                return self.add(q, self.floordiv(r, b));
            }
            // rule nested: (x // y) // b -> x // (y*b)
            if let Node::FloorDiv(x, y) = self.node(a) {
                if self.range(y).lo > 0 {
                    return self.floordiv(x, self.mul(y, b));
                }
            }
            // rule common: (k*x + r) // (k*m) -> x // m, when 0 <= r < k
            if let Some(q) = self.divide_common(a, b) {
                return q;
            }
        }
        self.intern(Node::FloorDiv(a, b))
    }

    /// `a - b * floor(a / b)`.
    pub fn modulo(&self, a: Expr, b: Expr) -> Expr {
        if let (Some(x), Some(y)) = (self.as_int(a), self.as_int(b)) {
            if y > 0 {
                return self.int(x.rem_euclid(y));
            }
        }
        if self.range(b).lo > 0 {
            // rule exact: (k*b) % b -> 0
            if self.divide_exact(a, b).is_some() {
                return self.int(0);
            }
            // rule inside: 0 <= a < b -> a
            if self.prove_nonneg(a) && self.prove_lt(a, b) {
                return a;
            }
            // rule split: (k*b + r) % b -> r % b
            if let Some((_, r)) = self.split_divisible(a, b) {
                return self.modulo(r, b);
            }
            // rule nested: (x % (k*b)) % b -> x % b
            if let Node::Mod(x, y) = self.node(a) {
                if self.divide_exact(y, b).is_some() {
                    return self.modulo(x, b);
                }
            }
            // rule common: (k*x + r) % (k*m) -> k*(x % m) + r, when 0 <= r < k
            if let Some((x, m, k, r)) = self.common_factor(a, b) {
                return self.add(self.mul(k, self.modulo(x, m)), r);
            }
        }
        self.intern(Node::Mod(a, b))
    }

    /// `a` as `q * b + r` with the terms divisible by `b` in `q`; `None` when no term is.
    fn split_divisible(&self, a: Expr, b: Expr) -> Option<(Expr, Expr)> {
        let (base, terms) = self.terms(a);
        if terms.is_empty() || (terms.len() == 1 && base == 0) {
            return None;
        }
        let mut quotient = self.int(0);
        let mut rest = self.int(0);
        let mut hit = false;
        for (c, t) in terms {
            let term = self.scale(t, c);
            match self.divide_exact(term, b) {
                Some(q) => {
                    quotient = self.add(quotient, q);
                    hit = true;
                }
                None => rest = self.add(rest, term),
            }
        }
        if let Some(k) = self.as_int(b) {
            let q = base.div_euclid(k);
            if q != 0 {
                hit = true;
                quotient = self.add(quotient, self.int(q));
            }
            rest = self.add(rest, self.int(base.rem_euclid(k)));
        } else {
            rest = self.add(rest, self.int(base));
        }
        hit.then_some((quotient, rest))
    }

    fn divide_common(&self, a: Expr, b: Expr) -> Option<Expr> {
        let (x, m, ..) = self.common_factor(a, b)?;
        Some(self.floordiv(x, m))
    }

    /// `(x, m, k, r)` with `a = k*x + r`, `b = k*m`, `0 <= r < k` and `k` not 1.
    fn common_factor(&self, a: Expr, b: Expr) -> Option<(Expr, Expr, Expr, Expr)> {
        let (_, terms) = self.terms(a);
        let mut candidates: SmallVec<[Expr; 4]> = smallvec![];
        if let Some(kb) = self.as_int(b) {
            for (c, _) in &terms {
                let g = gcd(c.unsigned_abs(), kb.unsigned_abs()) as i64;
                if g > 1 {
                    candidates.push(self.int(g));
                }
            }
        } else if let Node::Product(f) = self.node(b) {
            candidates.extend(f);
        } else if let Node::Sum { base: 0, terms } = self.node(b) {
            if let [(c, t)] = terms.as_slice() {
                candidates.push(*t);
                candidates.push(self.int(*c));
                if let Node::Product(f) = self.node(*t) {
                    candidates.extend(f.iter().copied());
                    candidates.extend(f.iter().map(|e| self.scale(*e, *c)));
                }
            }
        }
        for k in candidates {
            if self.range(k).lo < 2
                && !self.as_int(k).is_some_and(|v| v > 1)
                && self.range(k).lo < 1
            {
                continue;
            }
            let Some(m) = self.divide_exact(b, k) else {
                continue;
            };
            let (mut x, mut r) = (self.int(0), self.int(0));
            let (base, terms) = self.terms(a);
            for (c, t) in terms {
                let term = self.scale(t, c);
                match self.divide_exact(term, k) {
                    Some(q) => x = self.add(x, q),
                    None => r = self.add(r, term),
                }
            }
            match self.as_int(k) {
                Some(kc) => {
                    x = self.add(x, self.int(base.div_euclid(kc)));
                    r = self.add(r, self.int(base.rem_euclid(kc)));
                }
                None => r = self.add(r, self.int(base)),
            }
            if !self.is_int(x, 0) && x != a && self.prove_nonneg(r) && self.prove_lt(r, k) {
                return Some((x, m, k, r));
            }
        }
        None
    }

    /// `ceil(a / b)` for positive `b`.
    pub fn ceildiv(&self, a: Expr, b: Expr) -> Expr {
        self.neg(self.floordiv(self.neg(a), b))
    }

    pub fn min(&self, a: Expr, b: Expr) -> Expr {
        if self.prove_le(a, b) {
            return a;
        }
        if self.prove_le(b, a) {
            return b;
        }
        let (a, b) = self.ordered(a, b);
        self.intern(Node::Min(a, b))
    }

    pub fn max(&self, a: Expr, b: Expr) -> Expr {
        if self.prove_le(a, b) {
            return b;
        }
        if self.prove_le(b, a) {
            return a;
        }
        let (a, b) = self.ordered(a, b);
        self.intern(Node::Max(a, b))
    }

    fn ordered(&self, a: Expr, b: Expr) -> (Expr, Expr) {
        if self.compare(a, b).is_le() {
            (a, b)
        } else {
            (b, a)
        }
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
