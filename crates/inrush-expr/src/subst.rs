//! Substitution, free symbols, and affine decomposition.
//!
//! These are the hot queries of the compiler: inlining substitutes axes, layouts ask for strides as
//! coefficients. So each has a fast path: a Bloom filter of symbols skips what does not contain
//! them, a plain sum of symbols is answered from its terms, and the last weighted sums are cached.

use crate::sum::Terms;
use crate::{Expr, Exprs, Inner, Node, Sym, sym_bit};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

/// Factors of symbols, in the order of the symbols.
pub type Coefficients = SmallVec<[Expr; 6]>;

/// A substitution: symbols with their replacements. Few are replaced at once, so this is a list.
/// Other symbols stay.
#[derive(Clone, Default, Debug)]
pub struct SymMap {
    /// Bits of the symbols, see [`sym_bit`].
    mask: u64,
    entries: SmallVec<[(Sym, Expr); 6]>,
}

impl SymMap {
    /// Maps `s` to `e`, replacing an earlier entry.
    pub fn insert(&mut self, s: Sym, e: Expr) {
        match self.entries.iter_mut().find(|(x, _)| *x == s) {
            Some((_, old)) => *old = e,
            None => self.entries.push((s, e)),
        }
        self.mask |= sym_bit(s);
    }

    /// Returns the replacement of a symbol.
    pub fn get(&self, s: Sym) -> Option<Expr> {
        if self.mask & sym_bit(s) == 0 {
            return None;
        }
        self.entries.iter().find(|(x, _)| *x == s).map(|(_, e)| *e)
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Keeps the entries for which `f` holds.
    pub fn retain(&mut self, mut f: impl FnMut(Sym, Expr) -> bool) {
        self.entries.retain(|(s, e)| f(*s, *e));
        self.mask = self.entries.iter().fold(0, |m, (s, _)| m | sym_bit(*s));
    }
}

impl FromIterator<(Sym, Expr)> for SymMap {
    fn from_iter<I: IntoIterator<Item = (Sym, Expr)>>(items: I) -> SymMap {
        let mut out = SymMap::default();
        items.into_iter().for_each(|(s, e)| out.insert(s, e));
        out
    }
}

impl Exprs {
    /// Returns `e` with each symbol of `map` replaced; the result is canonical again.
    pub fn subst(&self, e: Expr, map: &SymMap) -> Expr {
        self.subst_memo(e, map, &mut FxHashMap::default(), true)
    }

    /// Substitutes in many expressions with one memo.
    pub fn subst_all(&self, es: &[Expr], map: &SymMap) -> Vec<Expr> {
        let mut memo = FxHashMap::default();
        es.iter()
            .map(|e| self.subst_memo(*e, map, &mut memo, false))
            .collect()
    }

    /// Substitutes with a memo of subexpressions. The root of a single expression is not memoized:
    /// most are sums of symbols, for which the memo then stays empty and unallocated.
    fn subst_memo(
        &self,
        e: Expr,
        map: &SymMap,
        memo: &mut FxHashMap<Expr, Expr>,
        root: bool,
    ) -> Expr {
        if self.mask(e) & map.mask == 0 {
            return e;
        }
        if let Some(s) = self.as_sym(e) {
            return map.get(s).unwrap_or(e);
        }
        if let Some(&r) = memo.get(&e) {
            return r;
        }
        let mut go = |x: Expr| self.subst_memo(x, map, memo, false);
        let r = match self.node(e) {
            Node::Const(_) | Node::Sym(_) => e,
            Node::Sum { base, terms } => {
                self.weighted(base, terms.into_iter().map(|(c, t)| (c, go(t))))
            }
            Node::Product(f) => {
                let parts: SmallVec<[Expr; 4]> = f.iter().map(|t| go(*t)).collect();
                if parts.as_slice() == f.as_slice() {
                    e
                } else {
                    self.product(parts)
                }
            }
            Node::FloorDiv(a, b) => {
                let (a, b) = (go(a), go(b));
                self.floordiv(a, b)
            }
            Node::Mod(a, b) => {
                let (a, b) = (go(a), go(b));
                self.modulo(a, b)
            }
            Node::Min(a, b) => {
                let (a, b) = (go(a), go(b));
                self.min(a, b)
            }
            Node::Max(a, b) => {
                let (a, b) = (go(a), go(b));
                self.max(a, b)
            }
        };
        if !root {
            memo.insert(e, r);
        }
        r
    }

    /// Returns the symbols that occur in `e`, each once, in order of first occurrence.
    pub fn free_syms(&self, e: Expr) -> SmallVec<[Sym; 6]> {
        let mut out = SmallVec::new();
        self.inner.borrow().each_sym(e, &mut |s| {
            if !out.contains(&s) {
                out.push(s);
            }
        });
        out
    }

    /// Calls `f` for the symbols of `e`, for each as often as it occurs. `f` must not make expressions.
    pub fn each_sym(&self, e: Expr, mut f: impl FnMut(Sym)) {
        self.inner.borrow().each_sym(e, &mut f);
    }

    /// Appends the symbols of `e` that `out` does not hold yet.
    pub fn collect_syms(&self, e: Expr, out: &mut Vec<Sym>) {
        self.inner.borrow().each_sym(e, &mut |s| {
            if !out.contains(&s) {
                out.push(s);
            }
        });
    }

    pub fn contains_sym(&self, e: Expr, s: Sym) -> bool {
        self.inner.borrow().contains_sym(e, s)
    }

    /// Decomposes `e` into `rest + sum(coefficient[k] * syms[k])` where neither `rest` nor a
    /// coefficient contains any of `syms`. `None` if `e` is not affine in them.
    pub fn affine(&self, e: Expr, syms: &[Sym]) -> Option<(Coefficients, Expr)> {
        let mut rest = None;
        let coefs = self.split(e, syms, |r| rest = Some(r))?;
        // Terms that did not join in `e` may join once the others are gone.
        let rest = match rest {
            None => Some(e),
            Some((base, terms)) => self.make_sum(base, terms),
        };
        Some((coefs, rest.unwrap_or_else(|| self.saturated())))
    }

    /// Returns the coefficients of [`Exprs::affine`], without the work for the rest.
    pub fn coefficients(&self, e: Expr, syms: &[Sym]) -> Option<Coefficients> {
        self.split(e, syms, |_| ())
    }

    /// Returns the coefficient of one symbol, as [`Exprs::coefficients`] has it.
    pub fn coefficient(&self, e: Expr, s: Sym) -> Option<Expr> {
        // Most expressions are sums of symbols.
        let plain = self.inner.borrow().plain_coefficient(e, s);
        match plain {
            Some(c) => Some(self.int(c)),
            None => self.coefficients(e, &[s]).map(|c| c[0]),
        }
    }

    /// Returns the coefficients, and calls `take` with the base and terms of the rest, unless the
    /// rest is `e` itself.
    fn split(
        &self,
        e: Expr,
        syms: &[Sym],
        take: impl FnOnce((i64, Terms)),
    ) -> Option<Coefficients> {
        let mut coefs = Coefficients::from_elem(self.int(0), syms.len());
        let mask = syms.iter().fold(0, |m, s| m | sym_bit(*s));
        if self.mask(e) & mask == 0 {
            return Some(coefs);
        }
        if let Some(s) = self.as_sym(e)
            && let Some(k) = syms.iter().position(|x| *x == s)
        {
            coefs[k] = self.int(1);
            take((0, Terms::new()));
            return Some(coefs);
        }
        let (base, terms) = self.terms(e);
        let mut rest = Terms::new();
        for (c, t) in terms {
            if self.mask(t) & mask == 0 {
                rest.push((c, t));
                continue;
            }
            if let Some(s) = self.as_sym(t) {
                match syms.iter().position(|x| *x == s) {
                    Some(k) => coefs[k] = self.add(coefs[k], self.int(c)),
                    None => rest.push((c, t)),
                }
                continue;
            }
            match self.node(t) {
                Node::Product(f) => {
                    let mut at = None;
                    let mut others = self.int(1);
                    for x in f {
                        match self
                            .as_sym(x)
                            .and_then(|s| syms.iter().position(|y| *y == s))
                        {
                            // A product of two of the symbols is not affine.
                            Some(_) if at.is_some() => return None,
                            Some(k) => at = Some(k),
                            None if syms.iter().any(|s| self.contains_sym(x, *s)) => return None,
                            None => others = self.mul(others, x),
                        }
                    }
                    match at {
                        Some(k) => coefs[k] = self.add(coefs[k], self.scale(others, c)),
                        None => rest.push((c, t)),
                    }
                }
                _ if syms.iter().any(|s| self.contains_sym(t, *s)) => return None,
                _ => rest.push((c, t)),
            }
        }
        take((base, rest));
        Some(coefs)
    }

    /// Returns `sum(factor * expression)`.
    pub fn dot(&self, factors: &[Expr], of: &[Expr]) -> Expr {
        if factors.len() != of.len() || !(2..=Dot::MOST).contains(&of.len()) {
            return self.new_dot(factors, of);
        }
        // The same offset is computed again and again, because the accesses of a kernel have few
        // distinct coordinates and strides.
        let place = Dot::place(factors, of);
        let saturated = {
            let inner = self.inner.borrow();
            if let Some(Some(d)) = inner.dots.get(place)
                && d.factors.as_slice() == factors
                && d.of.as_slice() == of
            {
                return d.sum;
            }
            inner.saturated
        };
        let sum = self.new_dot(factors, of);
        let mut inner = self.inner.borrow_mut();
        // A saturated value equals no other one, so it is not cached.
        if inner.saturated == saturated {
            if inner.dots.is_empty() {
                inner.dots.resize_with(Dot::PLACES, || None);
            }
            inner.dots[place] = Some(Dot {
                factors: SmallVec::from_slice(factors),
                of: SmallVec::from_slice(of),
                sum,
            });
        }
        sum
    }

    fn new_dot(&self, factors: &[Expr], of: &[Expr]) -> Expr {
        let pairs = || factors.iter().zip(of);
        if pairs().any(|(f, _)| self.as_int(*f).is_none()) {
            return self.sum(pairs().map(|(f, e)| self.mul(*e, *f)));
        }
        self.weighted(0, pairs().map(|(f, e)| (self.as_int(*f).unwrap_or(0), *e)))
    }
}

/// An entry of the cache of [`Exprs::dot`].
pub(crate) struct Dot {
    factors: SmallVec<[Expr; Dot::MOST]>,
    of: SmallVec<[Expr; Dot::MOST]>,
    sum: Expr,
}

impl Dot {
    /// Most terms of a cached sum.
    const MOST: usize = 4;
    /// Slots of the cache.
    const PLACES: usize = 64;

    fn place(factors: &[Expr], of: &[Expr]) -> usize {
        let pairs = factors.iter().zip(of);
        let mixed = pairs.fold(0u32, |h, (f, e)| {
            (h.rotate_left(5) ^ f.0 ^ e.0 << 3).wrapping_mul(0x9e37_79b9)
        });
        mixed as usize >> 26
    }
}

impl Inner {
    fn each_sym(&self, e: Expr, f: &mut impl FnMut(Sym)) {
        match &self.nodes[e.index()] {
            Node::Const(_) => {}
            Node::Sym(s) => f(*s),
            Node::Sum { terms, .. } => terms.iter().for_each(|(_, t)| self.each_sym(*t, f)),
            Node::Product(x) => x.iter().for_each(|t| self.each_sym(*t, f)),
            Node::FloorDiv(a, b) | Node::Mod(a, b) | Node::Min(a, b) | Node::Max(a, b) => {
                self.each_sym(*a, f);
                self.each_sym(*b, f);
            }
        }
    }

    /// Returns the coefficient of a symbol that occurs only as a plain term; `None` if the
    /// expression needs a closer look.
    fn plain_coefficient(&self, e: Expr, s: Sym) -> Option<i64> {
        let of = |t: Expr| match self.nodes[t.index()] {
            Node::Sym(x) => Some((x == s) as i64),
            _ => (self.masks[t.index()] & sym_bit(s) == 0).then_some(0),
        };
        match &self.nodes[e.index()] {
            Node::Sum { terms, .. } => {
                let mut sum = 0i64;
                for (c, t) in terms {
                    sum += c * of(*t)?;
                }
                Some(sum)
            }
            _ => of(e),
        }
    }

    fn contains_sym(&self, e: Expr, s: Sym) -> bool {
        if self.masks[e.index()] & sym_bit(s) == 0 {
            return false;
        }
        match &self.nodes[e.index()] {
            Node::Const(_) => false,
            Node::Sym(t) => s == *t,
            Node::Sum { terms, .. } => terms.iter().any(|(_, t)| self.contains_sym(*t, s)),
            Node::Product(f) => f.iter().any(|t| self.contains_sym(*t, s)),
            Node::FloorDiv(a, b) | Node::Mod(a, b) | Node::Min(a, b) | Node::Max(a, b) => {
                self.contains_sym(*a, s) || self.contains_sym(*b, s)
            }
        }
    }
}

#[cfg(test)]
mod dots {
    use super::*;

    #[test]
    fn weighted_sums_that_are_remembered_are_those_that_are_made() {
        let ex = Exprs::new();
        let axes: Vec<Expr> = (0..8).map(|k| ex.index(k, ex.int(64))).collect();
        let n = ex.sym_expr(ex.size_sym("s0", 2, 100));
        let strides = [ex.int(64), ex.int(1), n, ex.int(0)];
        // More than have a place, each twice.
        for _ in 0..2 {
            for (x, y) in axes.iter().flat_map(|x| axes.iter().map(move |y| (*x, *y))) {
                for (a, b) in strides.iter().zip(strides.iter().rev()) {
                    let made = ex.add(ex.mul(x, *a), ex.mul(y, *b));
                    assert_eq!(ex.dot(&[*a, *b], &[x, y]), made);
                }
            }
        }
    }

    #[test]
    fn sums_beyond_the_integers_are_not_remembered() {
        let ex = Exprs::new();
        let (big, two) = (ex.int(i64::MAX), ex.int(2));
        let beyond = || ex.dot(&[two, two], &[big, big]);
        assert_ne!(beyond(), beyond());
    }
}
