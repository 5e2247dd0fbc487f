//! Substitution, free symbols, and the affine view of an expression.

use crate::{Expr, Exprs, Node, Sym};
use rustc_hash::FxHashMap;

impl Exprs {
    /// `e` with each symbol of `map` replaced; the result is canonical again.
    pub fn subst(&self, e: Expr, map: &FxHashMap<Sym, Expr>) -> Expr {
        if map.is_empty() {
            return e;
        }
        let mut memo = FxHashMap::default();
        self.subst_memo(e, map, &mut memo)
    }

    /// [`Exprs::subst`] over many expressions with one memo.
    pub fn subst_all(&self, es: &[Expr], map: &FxHashMap<Sym, Expr>) -> Vec<Expr> {
        let mut memo = FxHashMap::default();
        es.iter()
            .map(|e| self.subst_memo(*e, map, &mut memo))
            .collect()
    }

    fn subst_memo(
        &self,
        e: Expr,
        map: &FxHashMap<Sym, Expr>,
        memo: &mut FxHashMap<Expr, Expr>,
    ) -> Expr {
        if let Some(&r) = memo.get(&e) {
            return r;
        }
        let mut go = |x: Expr| self.subst_memo(x, map, memo);
        let r = match self.node(e) {
            Node::Const(_) => e,
            Node::Sym(s) => map.get(&s).copied().unwrap_or(e),
            Node::Sum { base, terms } => {
                let parts: Vec<(i64, Expr, Expr)> =
                    terms.iter().map(|(c, t)| (*c, *t, go(*t))).collect();
                if parts.iter().all(|(_, t, r)| t == r) {
                    e
                } else {
                    parts.into_iter().fold(self.int(base), |acc, (c, _, r)| {
                        self.add(acc, self.mul(self.int(c), r))
                    })
                }
            }
            Node::Product(f) => {
                let parts: Vec<Expr> = f.iter().map(|t| go(*t)).collect();
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
        memo.insert(e, r);
        r
    }

    /// Symbols that occur in `e`, each once, in order of first occurrence.
    pub fn free_syms(&self, e: Expr) -> Vec<Sym> {
        let mut out = Vec::new();
        self.collect_syms(e, &mut out);
        out
    }

    /// Appends the symbols of `e` that `out` does not hold yet.
    pub fn collect_syms(&self, e: Expr, out: &mut Vec<Sym>) {
        match self.node(e) {
            Node::Const(_) => {}
            Node::Sym(s) => {
                if !out.contains(&s) {
                    out.push(s);
                }
            }
            Node::Sum { terms, .. } => terms.iter().for_each(|(_, t)| self.collect_syms(*t, out)),
            Node::Product(f) => f.iter().for_each(|t| self.collect_syms(*t, out)),
            Node::FloorDiv(a, b) | Node::Mod(a, b) | Node::Min(a, b) | Node::Max(a, b) => {
                self.collect_syms(a, out);
                self.collect_syms(b, out);
            }
        }
    }

    pub fn contains_sym(&self, e: Expr, s: Sym) -> bool {
        match self.node(e) {
            Node::Const(_) => false,
            Node::Sym(t) => s == t,
            Node::Sum { terms, .. } => terms.iter().any(|(_, t)| self.contains_sym(*t, s)),
            Node::Product(f) => f.iter().any(|t| self.contains_sym(*t, s)),
            Node::FloorDiv(a, b) | Node::Mod(a, b) | Node::Min(a, b) | Node::Max(a, b) => {
                self.contains_sym(a, s) || self.contains_sym(b, s)
            }
        }
    }

    /// `e` as `rest + sum(coefficient[k] * syms[k])` where neither `rest` nor a coefficient holds any of `syms`.
    /// `None` when `e` is not affine in them.
    pub fn affine(&self, e: Expr, syms: &[Sym]) -> Option<(Vec<Expr>, Expr)> {
        let mut coefs = vec![self.int(0); syms.len()];
        let mut rest = self.int(0);
        let parts: Vec<(i64, Expr)> = match self.node(e) {
            Node::Sum { base, terms } => {
                rest = self.int(base);
                terms.to_vec()
            }
            _ => vec![(1, e)],
        };
        for (c, t) in parts {
            let scaled = |x: Expr| self.mul(self.int(c), x);
            match self.node(t) {
                Node::Sym(s) if syms.contains(&s) => {
                    let k = syms.iter().position(|x| *x == s)?;
                    coefs[k] = self.add(coefs[k], scaled(self.int(1)));
                }
                Node::Product(f) => {
                    let mut at = None;
                    let mut others = self.int(1);
                    for x in f {
                        match self
                            .as_sym(x)
                            .and_then(|s| syms.iter().position(|y| *y == s))
                        {
                            Some(_) if at.is_some() => return None,
                            Some(k) => at = Some(k),
                            None if syms.iter().any(|s| self.contains_sym(x, *s)) => return None,
                            None => others = self.mul(others, x),
                        }
                    }
                    match at {
                        Some(k) => coefs[k] = self.add(coefs[k], scaled(others)),
                        None => rest = self.add(rest, scaled(others)),
                    }
                }
                _ if syms.iter().any(|s| self.contains_sym(t, *s)) => return None,
                _ => rest = self.add(rest, scaled(t)),
            }
        }
        Some((coefs, rest))
    }
}
