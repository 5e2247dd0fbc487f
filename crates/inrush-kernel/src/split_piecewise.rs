//! Index-set splitting: cuts a vector loop where a piecewise linear offset changes direction, so that each part is contiguous.
//!
//! Padding by reflection, repetition or rolling reads a row through `min`, `max`, `//` and `%` of the index. Between the *bends*
//! of such an expression it is linear, and loads are whole vectors instead of gathers. A reflection by 3 of a row of 1024:
//!
//! ```text
//! before                                    after
//! for i in 0..1030                          for i in 0..3        out[i] = in[3 - i]             strided by -1
//!   out[i] = in[1023 - |1023 - |i - 3||]    for i in 0..1024     out[3 + i] = in[i]             contiguous
//!                                           for i in 0..3        out[1027 + i] = in[1022 - i]   strided by -1
//! ```
//!
//! A loop is cut only if most of its points get into linear parts of several vectors each.

use crate::{Def, Item, Kernel, Loop, Range, Role, ValId, Value};
use inrush_base::tally::{Way, reached};
use inrush_expr::{Expr, Exprs, Node, Position, Sym, SymMap};
use rustc_hash::FxHashMap;

/// Number of parts that a loop is cut into at most.
const MOST_PARTS: usize = 5;
/// Vectors that a loop must have, and a part that pays for the cut.
const LEAST_VECTORS: i64 = 4;

/// Splits the loops for which it pays.
pub(crate) fn split(exprs: &Exprs, kernel: &mut Kernel) {
    let mut body = std::mem::take(&mut kernel.body);
    items(exprs, kernel, &mut body);
    kernel.body = body;
}

/// Splits the loops of a list, and loops inside of those that stay.
fn items(exprs: &Exprs, kernel: &mut Kernel, list: &mut Vec<Item>) {
    let mut at = 0;
    while at < list.len() {
        let Item::Loop(l) = &mut list[at] else {
            at += 1;
            continue;
        };
        let Some(parts) = parts(exprs, kernel, l) else {
            items(exprs, kernel, &mut l.body);
            at += 1;
            continue;
        };
        reached(Way::Bends);
        let straight: Vec<Item> = (parts.iter())
            .map(|p| Item::Loop(Box::new(part(exprs, kernel, l, p))))
            .collect();
        let count = straight.len();
        list.splice(at..at + 1, straight);
        at += count;
    }
}

/// Some of a loop's points: their number, the index over them, and the map from the loop's index to it.
struct Part {
    len: i64,
    index: Sym,
    map: SymMap,
}

impl Part {
    /// Describes `len` points from `start` on of the loop over `sym`.
    fn new(exprs: &Exprs, position: Position, sym: Sym, start: i64, len: i64) -> Part {
        let index = exprs.sym_at(position, exprs.int(len));
        let at = exprs.add(exprs.sym_expr(index), exprs.int(start));
        let map = SymMap::from_iter([(sym, at)]);
        Part { len, index, map }
    }

    /// Returns true if an expression is linear in the part's index.
    fn is_straight(&self, exprs: &Exprs, e: Expr) -> bool {
        exprs.coefficient(e, self.index).is_some()
    }
}

/// Returns the parts of a vector loop that only loads, computes and stores, if most of it becomes linear.
fn parts(exprs: &Exprs, kernel: &Kernel, l: &Loop) -> Option<Vec<Part>> {
    let (Role::Vector { width, .. }, Range::Full(extent)) = (l.role, l.range) else {
        return None;
    };
    let least = LEAST_VECTORS * i64::from(width);
    let extent = exprs.as_int(extent).filter(|n| *n >= least)?;
    let mut bent: Vec<Expr> = Vec::new();
    for item in &l.body {
        match item {
            Item::Let(v) => match &kernel.value(*v).def {
                Def::Load { offset, .. } if exprs.coefficient(*offset, l.sym).is_none() => {
                    bent.push(*offset);
                }
                Def::Indirect { .. } | Def::Running { .. } | Def::Sorted { .. } | Def::Final(_) => {
                    return None;
                }
                _ => {}
            },
            Item::Store { .. } => {}
            // The place of an extreme counts on the loop's own index.
            Item::Update { acc, .. } if kernel.accs[acc.index()].index.is_none() => {}
            Item::Update { .. } | Item::Loop(_) | Item::Acc(_) => return None,
        }
    }
    if bent.is_empty() {
        return None;
    }
    let (position, _) = exprs.index_of(l.sym)?;
    let mut out = Vec::new();
    cut(exprs, &bent, position, l.sym, (0, extent), &mut out)?;
    // Short parts at the edges are allowed to stay as they are; they only have to be few points.
    let straight = |p: &Part| {
        p.len >= least && (bent.iter()).all(|e| p.is_straight(exprs, exprs.subst(*e, &p.map)))
    };
    let reached: i64 = out.iter().filter(|p| straight(p)).map(|p| p.len).sum();
    (out.len() > 1 && 2 * reached >= extent).then_some(out)
}

/// Cuts at the first bend, then the points before and after it. `None` where the parts are too many.
fn cut(
    exprs: &Exprs,
    bent: &[Expr],
    position: Position,
    sym: Sym,
    (from, to): (i64, i64),
    out: &mut Vec<Part>,
) -> Option<()> {
    let whole = Part::new(exprs, position, sym, from, to - from);
    let bend = (bent.iter()).find_map(|e| {
        let e = exprs.subst(*e, &whole.map);
        match whole.is_straight(exprs, e) {
            true => None,
            false => bend(exprs, e, whole.index, to - from),
        }
    });
    match bend {
        Some(at) => {
            cut(exprs, bent, position, sym, (from, from + at), out)?;
            cut(exprs, bent, position, sym, (from + at, to), out)
        }
        None if out.len() == MOST_PARTS => None,
        None => {
            out.push(whole);
            Some(())
        }
    }
}

/// Returns the first point, of `1..len`, where an expression changes from one linear form to another, if that is a constant.
fn bend(exprs: &Exprs, e: Expr, index: Sym, len: i64) -> Option<i64> {
    let inside = |at: i64| (1..len).contains(&at).then_some(at);
    // `e` as `step * index + start`.
    let line = |e: Expr| -> Option<(i64, i64)> {
        let (c, rest) = exprs.affine(e, &[index])?;
        Some((exprs.as_int(c[0])?, exprs.as_int(rest)?))
    };
    // Inner expressions first: between their bends they are linear, and `line` applies to this one.
    let of = |e: Expr| match exprs.contains_sym(e, index) {
        true => bend(exprs, e, index, len),
        false => None,
    };
    match exprs.node(e) {
        Node::Const(_) | Node::Sym(_) => None,
        Node::Sum { terms, .. } => terms.iter().find_map(|(_, t)| of(*t)),
        Node::Product(f) => f.iter().find_map(|t| of(*t)),
        Node::Max(a, b) | Node::Min(a, b) => {
            // `a - b = step * i + start` changes its sign near `-start / step`.
            let crossing = || {
                let (zero, step) = match line(exprs.sub(a, b))? {
                    (step, start) if step > 0 => (start.checked_neg()?, step),
                    (step, start) if step < 0 => (start, step.checked_neg()?),
                    _ => return None,
                };
                // Where both are equal the point goes to the longer side.
                let (first, tie) = (zero.div_euclid(step), zero.rem_euclid(step) == 0);
                let at = if tie && first <= len / 2 {
                    first
                } else {
                    first + 1
                };
                inside(at)
            };
            of(a).or_else(|| of(b)).or_else(crossing)
        }
        Node::FloorDiv(a, n) | Node::Mod(a, n) => {
            // A quotient steps, and a remainder wraps, at the first multiple of `n` that the
            // dividend reaches.
            let wrap = || {
                let n = exprs.as_int(n).filter(|n| *n > 0)?;
                match line(a)? {
                    (step, start) if step > 0 => {
                        let left = n - start.rem_euclid(n);
                        inside(left.saturating_add(step - 1) / step)
                    }
                    (step, start) if step < 0 => {
                        inside(start.rem_euclid(n) / step.checked_neg()? + 1)
                    }
                    _ => None,
                }
            };
            of(a).or_else(wrap)
        }
    }
}

/// Builds the loop over a part, with values of its own.
fn part(exprs: &Exprs, kernel: &mut Kernel, l: &Loop, p: &Part) -> Loop {
    let mut news: FxHashMap<ValId, ValId> = FxHashMap::default();
    let mut body = Vec::with_capacity(l.body.len());
    for item in &l.body {
        let new = |v: ValId| news.get(&v).copied().unwrap_or(v);
        let item = match item {
            Item::Let(v) => {
                let Value { mut def, dtype } = kernel.value(*v).clone();
                match &mut def {
                    Def::Index(e) => *e = exprs.subst(*e, &p.map),
                    Def::Load { offset, mask, .. } => {
                        *offset = exprs.subst(*offset, &p.map);
                        *mask = mask.map(new);
                    }
                    Def::Op { args, .. } => args.iter_mut().for_each(|a| *a = new(*a)),
                    Def::Cast { arg, .. } | Def::Bitcast { arg, .. } => *arg = new(*arg),
                    Def::Const(_)
                    | Def::Sum(_)
                    | Def::Final(_)
                    | Def::Running { .. }
                    | Def::Sorted { .. }
                    | Def::Indirect { .. } => {}
                }
                kernel.values.push(Value { def, dtype });
                let id = ValId::from_index(kernel.values.len() - 1);
                news.insert(*v, id);
                Item::Let(id)
            }
            Item::Store {
                buf,
                offset,
                value,
                mode,
                mask,
            } => Item::Store {
                buf: *buf,
                offset: exprs.subst(*offset, &p.map),
                value: new(*value),
                mode: *mode,
                mask: mask.map(new),
            },
            Item::Update { acc, value } => Item::Update {
                acc: *acc,
                value: new(*value),
            },
            other => other.clone(),
        };
        body.push(item);
    }
    Loop {
        sym: p.index,
        range: Range::Full(exprs.int(p.len)),
        role: l.role,
        body,
    }
}
