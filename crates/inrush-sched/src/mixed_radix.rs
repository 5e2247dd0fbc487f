//! Accesses as mixed-radix numbers of axes: when they can be inverted, matched, and which axes to split so that they match.
//!
//! ```text
//! coordinate            digits, slowest first     inverse of writing t[i*56 + j]
//! 56*i + j, j < 56      [i, j]                    i = at // 56, j = at % 56
//! 56*i + j, j < 60      none: places overlap
//! i                     [i]                       i = at
//!
//! i < 3136 against 56*j + k: i is split into 56 x 56, and its digits then mean j and k
//! ```

use inrush_base::{Error, Result};
use inrush_expr::{Expr, Exprs, Node as E, Sym};
use inrush_loops::{Axis, Body, Node};
use smallvec::SmallVec;

use inrush_expr::SymMap;

/// Axes whose digits, fastest last, make up a coordinate: `i0*56 + i1` is `[i0, i1]` when `i1` runs to 56.
/// A constant coordinate has no digits, and an axis of size one is none.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Radix {
    pub digits: SmallVec<[Axis; 2]>,
    pub base: i64,
}

/// One radix a dimension.
pub(crate) type Radices = SmallVec<[Radix; 4]>;

/// `coord` as a mixed-radix number of `axes`. `None` when it is not one.
pub(crate) fn radix(ex: &Exprs, coord: Expr, axes: &[Axis]) -> Option<Radix> {
    let axis = |s: Sym| axes.iter().find(|a| a.sym == s).copied();
    let unit = |a: &Axis| ex.is_int(a.size, 1);
    let mut digits: SmallVec<[Axis; 2]> = SmallVec::new();
    let mut base = 0;
    // Most coordinates are a symbol.
    if let Some(s) = ex.as_sym(coord) {
        let a = axis(s)?;
        if !unit(&a) {
            digits.push(a);
        }
        return Some(Radix { digits, base });
    }
    match ex.node(coord) {
        E::Const(v) => base = v,
        E::Sum { base: b, terms, .. } => {
            base = b;
            // Terms are found by their strides, from the fastest.
            let mut rest: SmallVec<[(Expr, Axis); 4]> = SmallVec::new();
            for (c, t) in terms {
                let mut stride = ex.int(c);
                let mut found = None;
                let factors: SmallVec<[Expr; 2]> = match ex.as_sym(t) {
                    Some(_) => SmallVec::from_slice(&[t]),
                    None => match ex.node(t) {
                        E::Product(f) => f,
                        _ => SmallVec::from_slice(&[t]),
                    },
                };
                for f in factors {
                    match ex.as_sym(f) {
                        Some(s) if ex.is_index(s) => {
                            if found.is_some() {
                                return None;
                            }
                            found = Some(axis(s)?);
                        }
                        _ => stride = ex.mul(stride, f),
                    }
                }
                let found = found?;
                if !unit(&found) {
                    rest.push((stride, found));
                }
            }
            let mut stride = ex.int(1);
            while !rest.is_empty() {
                // The next digit's stride has to be the number of values of those before.
                let at = rest.iter().position(|(s, _)| *s == stride)?;
                let (_, a) = rest.remove(at);
                stride = ex.mul(stride, a.size);
                digits.insert(0, a);
            }
        }
        _ => return None,
    }
    Some(Radix { digits, base })
}

/// Coordinates of a store, one radix a dimension, in which every axis of `axes` longer than one occurs exactly once: what is
/// needed to say at which point of `axes` an element was written.
pub(crate) fn invertible(ex: &Exprs, coords: &[Expr], axes: &[Axis]) -> Option<Radices> {
    let dims: Radices = coords
        .iter()
        .map(|c| radix(ex, *c, axes))
        .collect::<Option<_>>()?;
    let times = |a: &Axis| {
        dims.iter()
            .flat_map(|d| &d.digits)
            .filter(|x| x.sym == a.sym)
            .count()
    };
    axes.iter()
        .all(|a| times(a) == 1 || (times(a) == 0 && ex.is_int(a.size, 1)))
        .then_some(dims)
}

/// Returns true if the store covers its dimensions, so that reading any element reads what it wrote.
pub(crate) fn covers(ex: &Exprs, dims: &[Radix], sizes: &[Expr]) -> bool {
    dims.iter()
        .zip(sizes)
        .all(|(d, n)| d.base == 0 && ex.prove_eq(ex.product(d.digits.iter().map(|a| a.size)), *n))
}

/// The point of the writer's axes at which the element at `at` was written.
pub(crate) fn inverse(ex: &Exprs, dims: &[Radix], axes: &[Axis], at: &[Expr]) -> SymMap {
    let mut map = SymMap::default();
    let mut put = |s: Sym, e: Expr| {
        if ex.as_sym(e) != Some(s) {
            map.insert(s, e);
        }
    };
    for a in axes.iter().filter(|a| ex.is_int(a.size, 1)) {
        put(a.sym, ex.int(0));
    }
    for (d, c) in dims.iter().zip(at) {
        let mut rest = ex.sub(*c, ex.int(d.base));
        for (k, a) in d.digits.iter().enumerate().rev() {
            if k == 0 {
                put(a.sym, rest);
            } else {
                put(a.sym, ex.modulo(rest, a.size));
                rest = ex.floordiv(rest, a.size);
            }
        }
    }
    map
}

/// An axis replaced by several, slowest first.
#[derive(Clone, Debug)]
pub(crate) struct Split {
    pub axis: Sym,
    pub sizes: SmallVec<[Expr; 2]>,
}

/// Digits of one dimension, as two accesses name them.
pub(crate) enum Digits {
    /// Axes that mean the same index, pairwise.
    Same(SmallVec<[(Sym, Sym); 2]>),
    /// They would after splitting an axis of the first, or of the second.
    SplitFirst(Split),
    SplitSecond(Split),
    Different,
}

/// Compares the digits of one dimension.
pub(crate) fn compare(ex: &Exprs, a: &Radix, b: &Radix) -> Digits {
    if a.base != b.base {
        return Digits::Different;
    }
    let mut pairs = SmallVec::new();
    let (mut x, mut y) = (a.digits.iter().rev(), b.digits.iter().rev());
    let (mut p, mut q) = (x.next(), y.next());
    loop {
        match (p, q) {
            (Some(i), Some(j)) if ex.prove_eq(i.size, j.size) => {
                pairs.push((i.sym, j.sym));
                (p, q) = (x.next(), y.next());
            }
            (Some(i), Some(j)) => {
                let split = |from: &Axis, low: Expr| {
                    let high = ex.divide_exact(from.size, low)?;
                    Some(Split {
                        axis: from.sym,
                        sizes: SmallVec::from_slice(&[high, low]),
                    })
                };
                // The lower digit of one side has to divide the extent of the other's.
                return match (split(i, j.size), split(j, i.size)) {
                    (Some(s), _) => Digits::SplitFirst(s),
                    (_, Some(s)) => Digits::SplitSecond(s),
                    _ => Digits::Different,
                };
            }
            (None, None) => return Digits::Same(pairs),
            _ => return Digits::Different,
        }
    }
}

/// Compares two coordinates, each with its axes, digit by digit.
pub(crate) fn corresponding(ex: &Exprs, a: (Expr, &[Axis]), b: (Expr, &[Axis])) -> Digits {
    // Most are axes of one length.
    let axis = |(e, axes): (Expr, &[Axis])| {
        let s = ex.as_sym(e)?;
        axes.iter().find(|a| a.sym == s).copied()
    };
    if let (Some(x), Some(y)) = (axis(a), axis(b))
        && x.size == y.size
        && !ex.is_int(x.size, 1)
    {
        return Digits::Same(SmallVec::from_slice(&[(x.sym, y.sym)]));
    }
    match (radix(ex, a.0, a.1), radix(ex, b.0, b.1)) {
        (Some(x), Some(y)) => compare(ex, &x, &y),
        _ => Digits::Different,
    }
}

/// Symbols that a node uses for axes and indirect indices.
fn used_syms(node: &Node) -> Vec<Sym> {
    let mut out: Vec<Sym> = node.body().axes.iter().map(|a| a.sym).collect();
    if let Node::Contraction(c) = node {
        out.extend(c.k.iter().map(|a| a.sym));
    }
    if let Node::Attention(a) = node {
        let positions = a
            .blocks
            .iter()
            .flat_map(|b| b.lists())
            .map(|l| l.position.sym);
        out.extend(a.axes().map(|a| a.sym).chain(positions));
    }
    out.extend(node.body().stmts.iter().filter_map(|s| match s {
        inrush_loops::Stmt::Indirect { sym, .. } => Some(*sym),
        _ => None,
    }));
    out
}

/// Splits an axis of a node in place; gives the new axes. The order of iteration stays.
pub(crate) fn split_axis(ex: &Exprs, node: &mut Node, split: &Split) -> Result<Vec<Axis>> {
    let mut used = used_syms(node);
    let mut fresh = |size: Expr| {
        let sym = (0..)
            .map(|p| ex.index_sym(p, size))
            .find(|s| !used.contains(s))
            .expect("positions are endless");
        used.push(sym);
        Axis { sym, size }
    };
    let new: Vec<Axis> = split.sizes.iter().map(|s| fresh(*s)).collect();
    let value = new.iter().fold(ex.int(0), |acc, a| {
        ex.add(ex.mul(acc, a.size), ex.sym_expr(a.sym))
    });
    let map = SymMap::from_iter([(split.axis, value)]);
    let mut hit = replace_axis(&mut node.body_mut().axes, split.axis, &new);
    let body = node.body_mut();
    if hit.is_some_and(|at| at < body.outer) {
        body.outer += new.len() - 1;
    }
    for stmt in &mut body.stmts {
        for e in stmt.exprs_mut() {
            *e = ex.subst(*e, &map);
        }
    }
    if let Node::Contraction(c) = node {
        for axes in [&mut c.batch, &mut c.m, &mut c.n, &mut c.k] {
            hit = replace_axis(axes, split.axis, &new).or(hit);
        }
        for e in c.a.coords.iter_mut().chain(c.b.coords.iter_mut()) {
            *e = ex.subst(*e, &map);
        }
    }
    if hit.is_none() {
        return Err(Error::internal(format!("no axis {} to split", split.axis)));
    }
    Ok(new)
}

fn replace_axis(axes: &mut Vec<Axis>, sym: Sym, new: &[Axis]) -> Option<usize> {
    let at = axes.iter().position(|a| a.sym == sym)?;
    axes.splice(at..=at, new.iter().copied());
    Some(at)
}

/// Rewrites the expressions of a body.
pub(crate) fn substitute(ex: &Exprs, body: &mut Body, map: &SymMap) {
    if map.is_empty() {
        return;
    }
    for stmt in &mut body.stmts {
        for e in stmt.exprs_mut() {
            *e = ex.subst(*e, map);
        }
    }
}
