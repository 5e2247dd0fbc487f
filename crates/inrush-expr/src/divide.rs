//! Floor division and modulo.
//!
//! Both try the rewrite rules of [`Rule`] in one order, cheapest first: constants, exact division,
//! a quotient that ranges determine, splitting off divisible terms, nested divisions, and common
//! factors. An expression that no rule rewrites is interned as it is. All rules but the first two
//! need a divisor that is proved positive.

use crate::rules::{Rule, fired};
use crate::sum::Terms;
use crate::{Expr, Exprs, Node, Op, floor_div};
use smallvec::{SmallVec, smallvec};

impl Exprs {
    /// Returns `e / d` when `d` divides `e` exactly for every value of the symbols.
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
            let exact = |v: i64| (v.checked_rem(k)? == 0).then(|| v / k);
            let mut out: Terms = smallvec![];
            for (c, t) in terms {
                out.push((exact(c)?, t));
            }
            return self.make_sum(exact(base)?, out);
        }
        if let Node::Sum { .. } = self.node(d) {
            return self.divide_by_sum(e, d);
        }
        // Every term must contain all factors of `d`.
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

    /// Divides by a sum. Guesses the quotient, a constant or monomial `k`, from the leading terms,
    /// and checks that `k * d` is `e`.
    fn divide_by_sum(&self, e: Expr, d: Expr) -> Option<Expr> {
        let ((_, te), (_, td)) = (self.terms(e), self.terms(d));
        // Terms are in canonical order, so the last ones mostly correspond. If they do not, the
        // product below differs from `e`.
        let (ce, xe) = *te.last()?;
        let (cd, xd) = *td.last()?;
        if ce.checked_rem(cd)? != 0 {
            return None;
        }
        let lead = self.divide_exact(xe, xd)?;
        let q = self.scale(lead, ce / cd);
        (self.mul(q, d) == e).then_some(q)
    }

    /// Returns `floor(a / b)`.
    pub fn floordiv(&self, a: Expr, b: Expr) -> Expr {
        self.remembered(Op::FloorDiv, a, b, || self.divide(a, b))
    }

    fn divide(&self, a: Expr, b: Expr) -> Expr {
        if let (Some(x), Some(y)) = (self.as_int(a), self.as_int(b))
            && let Some(q) = floor_div(x, y)
        {
            fired(Rule::DivConst);
            return self.int(q);
        }
        let positive = self.range(b).lo > 0;
        if (positive || self.as_int(b).is_some_and(|v| v != 0))
            && let Some(q) = self.divide_exact(a, b)
        {
            fired(Rule::DivExact);
            return q;
        }
        // The sign of the divisor decides about rounding, so the rules below do not hold.
        if !positive {
            return self.intern(Node::FloorDiv(a, b));
        }
        if let Some(q) = self.one_quotient(a, b) {
            fired(Rule::DivRange);
            return self.int(q);
        }
        if let Some((q, r)) = self.split_divisible(a, b) {
            fired(Rule::DivSplit);
            return self.add(q, self.floordiv(r, b));
        }
        match self.node(a) {
            Node::FloorDiv(x, y) if self.range(y).lo > 0 => {
                fired(Rule::DivNested);
                return self.floordiv(x, self.mul(y, b));
            }
            Node::Mod(x, y) if self.range(y).lo > 0 => {
                if let Some(k) = self.divide_exact(y, b)
                    && self.range(k).lo > 0
                {
                    fired(Rule::DivOfMod);
                    return self.modulo(self.floordiv(x, b), k);
                }
            }
            _ => {}
        }
        if let Some((x, m, ..)) = self.common_factor(a, b) {
            fired(Rule::DivCommon);
            return self.floordiv(x, m);
        }
        self.intern(Node::FloorDiv(a, b))
    }

    /// Returns `a - b * floor(a / b)`.
    pub fn modulo(&self, a: Expr, b: Expr) -> Expr {
        self.remembered(Op::Mod, a, b, || self.remainder(a, b))
    }

    fn remainder(&self, a: Expr, b: Expr) -> Expr {
        if let (Some(x), Some(y)) = (self.as_int(a), self.as_int(b))
            && y > 0
        {
            fired(Rule::ModConst);
            return self.int(x.rem_euclid(y));
        }
        if self.range(b).lo < 1 {
            return self.intern(Node::Mod(a, b));
        }
        if self.divide_exact(a, b).is_some() {
            fired(Rule::ModExact);
            return self.int(0);
        }
        if let Some(q) = self.one_quotient(a, b) {
            fired(Rule::ModRange);
            return self.sub(a, self.scale(b, q));
        }
        if let Some((_, r)) = self.split_divisible(a, b) {
            fired(Rule::ModSplit);
            return self.modulo(r, b);
        }
        if let Node::Mod(x, y) = self.node(a)
            && self.divide_exact(y, b).is_some()
        {
            fired(Rule::ModNested);
            return self.modulo(x, b);
        }
        if let Some((x, m, k, r)) = self.common_factor(a, b) {
            fired(Rule::ModCommon);
            return self.add(self.mul(k, self.modulo(x, m)), r);
        }
        self.intern(Node::Mod(a, b))
    }

    /// Returns the quotient of `a` by a positive `b` if it is the same over the whole range: a
    /// constant from the ranges' ends, or 0 if `0 <= a < b` is proved.
    fn one_quotient(&self, a: Expr, b: Expr) -> Option<i64> {
        let (ra, rb) = (self.range(a), self.range(b));
        if ra.lo != i64::MIN && ra.hi != i64::MAX && rb.lo == rb.hi {
            let (low, high) = (ra.lo.div_euclid(rb.lo), ra.hi.div_euclid(rb.lo));
            if low == high {
                return Some(low);
            }
        }
        (self.prove_nonneg(a) && self.prove_lt(a, b)).then_some(0)
    }

    /// Returns `a` as `q * b + r` with the terms divisible by `b` in `q`; `None` when no term is.
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

    /// Returns `(x, m, k, r)` with `a = k*x + r`, `b = k*m`, `0 <= r < k` and `k` not 1.
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
        } else if let Node::Sum { base: 0, terms } = self.node(b)
            && let [(c, t)] = terms.as_slice()
        {
            candidates.push(*t);
            candidates.push(self.int(*c));
            if let Node::Product(f) = self.node(*t) {
                candidates.extend(f.iter().copied());
                candidates.extend(f.iter().map(|e| self.scale(*e, *c)));
            }
        }
        for k in candidates {
            if self.range(k).lo < 1 {
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
            // Progress is required: otherwise the rule would apply to its own result.
            if !self.is_int(x, 0) && x != a && self.prove_nonneg(r) && self.prove_lt(r, k) {
                return Some((x, m, k, r));
            }
        }
        None
    }

    /// Returns `ceil(a / b)` for positive `b`.
    pub fn ceildiv(&self, a: Expr, b: Expr) -> Expr {
        self.neg(self.floordiv(self.neg(a), b))
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
