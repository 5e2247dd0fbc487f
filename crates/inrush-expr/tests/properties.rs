//! Constructors against brute force: random expressions over small ranges, every value of the symbols.

use inrush_base::text::Scanner;
use inrush_expr::{Expr, Exprs, Node, Sym};
use std::collections::HashMap;

/// A small xorshift generator: the same expressions on every machine.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % n
    }
    fn int(&mut self, lo: i64, hi: i64) -> i64 {
        lo + self.below((hi - lo + 1) as u64) as i64
    }
}

/// A random expression as a plain tree, before any rewrite: the reference.
#[derive(Clone, Debug)]
enum Raw {
    Int(i64),
    Sym(usize),
    Add(Box<[Raw; 2]>),
    Sub(Box<[Raw; 2]>),
    Mul(Box<[Raw; 2]>),
    Div(Box<[Raw; 2]>),
    Mod(Box<[Raw; 2]>),
    Min(Box<[Raw; 2]>),
    Max(Box<[Raw; 2]>),
}

struct World {
    ex: Exprs,
    syms: Vec<Sym>,
    /// Every assignment of the symbols.
    points: Vec<Vec<i64>>,
}

impl World {
    /// Two sizes, `s0` at least 1; indices below `s0`, 6, and `s0*s1`.
    fn new() -> World {
        let ex = Exprs::new();
        let (a, b) = (ex.size_sym("s0", 1, 4), ex.size_sym("s1", 0, 3));
        let (n, m) = (ex.sym_expr(a), ex.sym_expr(b));
        let i = ex.index_sym(0, n);
        let j = ex.index_sym(1, ex.int(6));
        let k = ex.index_sym(2, ex.mul(n, m));
        let mut points = Vec::new();
        for s0 in 1..=4i64 {
            for s1 in 0..=3i64 {
                for i0 in 0..s0 {
                    for i1 in 0..6 {
                        for i2 in 0..s0 * s1 {
                            points.push(vec![s0, s1, i0, i1, i2]);
                        }
                    }
                }
            }
        }
        World {
            ex,
            syms: vec![a, b, i, j, k],
            points,
        }
    }

    fn random(&self, r: &mut Random, depth: u32) -> Raw {
        if depth == 0 || r.below(6) == 0 {
            return match r.below(3) {
                0 => Raw::Int(r.int(-7, 12)),
                _ => Raw::Sym(r.below(5) as usize),
            };
        }
        let a = self.random(r, depth - 1);
        let b = match r.below(3) {
            0 => Raw::Int(r.int(1, 12)),
            _ => self.random(r, depth - 1),
        };
        let p = Box::new([a, b]);
        match r.below(12) {
            0 | 1 => Raw::Add(p),
            2 => Raw::Sub(p),
            3..=5 => Raw::Mul(p),
            6 | 7 => Raw::Div(p),
            8 | 9 => Raw::Mod(p),
            10 => Raw::Min(p),
            _ => Raw::Max(p),
        }
    }

    fn build(&self, t: &Raw) -> Expr {
        let ex = &self.ex;
        let both = |p: &[Raw; 2]| (self.build(&p[0]), self.build(&p[1]));
        match t {
            Raw::Int(v) => ex.int(*v),
            Raw::Sym(k) => ex.sym_expr(self.syms[*k]),
            Raw::Add(p) => with(both(p), |a, b| ex.add(a, b)),
            Raw::Sub(p) => with(both(p), |a, b| ex.sub(a, b)),
            Raw::Mul(p) => with(both(p), |a, b| ex.mul(a, b)),
            Raw::Div(p) => with(both(p), |a, b| ex.floordiv(a, b)),
            Raw::Mod(p) => with(both(p), |a, b| ex.modulo(a, b)),
            Raw::Min(p) => with(both(p), |a, b| ex.min(a, b)),
            Raw::Max(p) => with(both(p), |a, b| ex.max(a, b)),
        }
    }

    fn value(&self, e: Expr, at: &[i64]) -> Result<i64, String> {
        let of = |s: Sym| self.syms.iter().position(|t| *t == s).map(|k| at[k]);
        self.ex.eval(e, &of).map_err(|e| e.to_string())
    }

    fn show(&self, e: Expr) -> String {
        self.ex.show(e)
    }
}

fn with<T>(p: (Expr, Expr), f: impl Fn(Expr, Expr) -> T) -> T {
    f(p.0, p.1)
}

/// `None` where a division by zero has no value.
fn direct(t: &Raw, at: &[i64]) -> Option<i64> {
    let both = |p: &[Raw; 2]| Some((direct(&p[0], at)?, direct(&p[1], at)?));
    Some(match t {
        Raw::Int(v) => *v,
        Raw::Sym(k) => at[*k],
        Raw::Add(p) => both(p).map(|(a, b)| a + b)?,
        Raw::Sub(p) => both(p).map(|(a, b)| a - b)?,
        Raw::Mul(p) => both(p).and_then(|(a, b)| a.checked_mul(b))?,
        Raw::Div(p) => both(p).and_then(|(a, b)| floor(a, b))?,
        Raw::Mod(p) => both(p).and_then(|(a, b)| Some(a - floor(a, b)? * b))?,
        Raw::Min(p) => both(p).map(|(a, b)| a.min(b))?,
        Raw::Max(p) => both(p).map(|(a, b)| a.max(b))?,
    })
}

fn floor(a: i64, b: i64) -> Option<i64> {
    (b != 0).then(|| (a as f64 / b as f64).floor() as i64)
}

/// Runs `check` on random expressions.
fn for_random(seed: u64, count: usize, mut check: impl FnMut(&World, &Raw, Expr, &mut Random)) {
    let mut r = Random(seed);
    let mut w = World::new();
    for k in 0..count {
        // A fresh arena now and then, so that one expression's history does not hide another's.
        if k % 200 == 0 {
            w = World::new();
        }
        let depth = 1 + r.below(4) as u32;
        let t = w.random(&mut r, depth);
        let e = w.build(&t);
        check(&w, &t, e, &mut r);
    }
}

const COUNT: usize = 4000;

#[test]
fn rules_preserve_values_and_ranges_hold() {
    for_random(0x9E37_79B9_7F4A_7C15, COUNT, |w, t, e, _| {
        let range = w.ex.range(e);
        for at in &w.points {
            let Some(want) = direct(t, at) else { continue };
            // A rule may remove a division by zero, never change a value.
            let got = w.value(e, at);
            assert_eq!(got, Ok(want), "{t:?}\nbecame {}\nat {at:?}", w.show(e));
            let holds = range.lo <= want && want <= range.hi;
            assert!(holds, "{}: {want} outside {range:?} at {at:?}", w.show(e));
        }
    });
}

#[test]
fn proofs_hold() {
    for_random(77, COUNT, |w, t, a, r| {
        let u = w.random(r, 2);
        let b = w.build(&u);
        let claims = [
            (w.ex.prove_le(a, b), "<="),
            (w.ex.prove_lt(a, b), "<"),
            (w.ex.prove_eq(a, b), "=="),
            (w.ex.prove_ne(a, b), "!="),
            (w.ex.prove_nonneg(a), ">= 0"),
        ];
        let quotient = w.ex.divide_exact(a, b);
        for at in &w.points {
            let (Some(x), Some(y)) = (direct(t, at), direct(&u, at)) else {
                continue;
            };
            let truth = [x <= y, x < y, x == y, x != y, x >= 0];
            for ((claim, op), holds) in claims.iter().zip(truth) {
                let texts = (w.show(a), w.show(b));
                assert!(!claim || holds, "{texts:?} {op} does not hold at {at:?}");
            }
            if let Some(q) = quotient {
                let q = w.value(q, at).unwrap();
                assert_eq!(q * y, x, "{} / {} at {at:?}", w.show(a), w.show(b));
            }
        }
    });
}

#[test]
fn text_reads_back_to_the_same_handle() {
    for_random(4242, COUNT, |w, t, e, _| {
        let text = w.show(e);
        let symbol = |n: &str| {
            let k = ["s0", "s1", "i0", "i1", "i2"]
                .iter()
                .position(|m| *m == n)?;
            Some(w.syms[k])
        };
        let back = w.ex.parse(&mut Scanner::new(&text), &symbol).unwrap();
        assert_eq!(w.show(back), text, "from {t:?}");
        assert_eq!(back, e);
    });
}

#[test]
fn substitution_is_evaluation() {
    for_random(31337, COUNT / 4, |w, t, e, r| {
        // Replace the indices by others that stay inside their ranges.
        let half = w.ex.floordiv(w.ex.sym_expr(w.syms[3]), w.ex.int(2));
        let last = w.ex.sub(w.ex.sym_expr(w.syms[0]), w.ex.int(1));
        let flip = w.ex.sub(last, w.ex.sym_expr(w.syms[2]));
        let map = [(w.syms[3], half), (w.syms[2], flip)].into_iter().collect();
        let replaced = w.ex.subst(e, &map);
        for _ in 0..40 {
            let at = &w.points[r.below(w.points.len() as u64) as usize];
            let mut moved = at.clone();
            (moved[3], moved[2]) = (at[3] / 2, at[0] - 1 - at[2]);
            if let Some(want) = direct(t, &moved) {
                let texts = (w.show(e), w.show(replaced));
                assert_eq!(w.value(replaced, at), Ok(want), "{texts:?} at {at:?}");
            }
        }
    });
}

#[test]
fn the_affine_view_adds_up() {
    for_random(99, COUNT, |w, _, e, _| {
        let idx = &w.syms[2..];
        let Some((coefs, rest)) = w.ex.affine(e, idx) else {
            return;
        };
        let parts = coefs.iter().zip(idx);
        let sum = parts.map(|(c, s)| w.ex.mul(*c, w.ex.sym_expr(*s)));
        let again = w.ex.add(w.ex.sum(sum), rest);
        assert_eq!(again, e, "{}", w.show(e));
        for c in coefs.iter().chain([&rest]) {
            assert!(!idx.iter().any(|s| w.ex.contains_sym(*c, *s)));
        }
    });
}

#[test]
fn nodes_are_canonical() {
    for_random(5, COUNT, |w, _, e, _| {
        let mut seen = HashMap::new();
        canonical(&w.ex, e, &mut seen);
    });
}

fn canonical(ex: &Exprs, e: Expr, seen: &mut HashMap<Expr, ()>) {
    if seen.insert(e, ()).is_some() {
        return;
    }
    match ex.node(e) {
        Node::Const(_) | Node::Sym(_) => {}
        Node::Sum { base, terms } => {
            assert!(!terms.is_empty() && (terms.len() > 1 || base != 0 || terms[0].0 != 1));
            for (c, t) in &terms {
                assert!(*c != 0 && !matches!(ex.node(*t), Node::Const(_) | Node::Sum { .. }));
                canonical(ex, *t, seen);
            }
            assert!(terms.windows(2).all(|w| ex.compare(w[0].1, w[1].1).is_lt()));
        }
        Node::Product(f) => {
            assert!(f.len() > 1);
            for t in &f {
                assert!(!matches!(
                    ex.node(*t),
                    Node::Const(_) | Node::Sum { .. } | Node::Product(_)
                ));
                canonical(ex, *t, seen);
            }
        }
        Node::FloorDiv(a, b) | Node::Mod(a, b) | Node::Min(a, b) | Node::Max(a, b) => {
            canonical(ex, a, seen);
            canonical(ex, b, seen);
        }
    }
}

#[test]
fn the_ends_of_i64_do_not_panic() {
    let ex = Exprs::new();
    let s = ex.sym_expr(ex.size_sym("s0", 0, i64::MAX));
    let edges = [
        i64::MIN,
        i64::MIN + 1,
        -2,
        -1,
        0,
        1,
        2,
        i64::MAX - 1,
        i64::MAX,
    ];
    let mut es: Vec<Expr> = edges.iter().map(|v| ex.int(*v)).collect();
    let more: Vec<Expr> = es
        .iter()
        .flat_map(|c| [ex.mul(*c, s), ex.add(*c, s)])
        .collect();
    es.extend(more);
    for a in &es {
        for b in &es {
            for e in [
                ex.add(*a, *b),
                ex.sub(*a, *b),
                ex.mul(*a, *b),
                ex.floordiv(*a, *b),
                ex.modulo(*a, *b),
                ex.min(*a, *b),
                ex.max(*a, *b),
            ] {
                for v in [0, 1, 2, i64::MAX] {
                    _ = ex.eval(e, &|_| Some(v));
                }
                _ = ex.show(e);
            }
            _ = (
                ex.divide_exact(*a, *b),
                ex.prove_le(*a, *b),
                ex.prove_ne(*a, *b),
            );
        }
    }
}
