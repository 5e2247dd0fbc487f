//! Sizes by name: a graph whose sizes are numbers becomes one for every size.
//!
//! Strategies are chosen at the hint of a size and must hold for its whole range. So the hint, the bounds and the size that is run
//! are drawn apart from each other: a sum of 37 elements runs as the kernels for ten million of them would.
//!
//! ```text
//! f32[4, 37] = input 0               f32[4, s0] = input 0, s0 in [1, 1000000] hint 300000, run with s0 = 37 or less
//! ```
//!
//! A name replaces a number among the sizes of inputs, and among arguments. The graph keeps its numbers if types of results cannot be
//! inferred from the name.

use super::shrink::{inferred, order};
use crate::random::Random;
use inrush_expr::{Expr, SymMap};
use inrush_graph::{Arg, Graph, InputKind, Type};

/// Names of sizes, with the values that are run.
pub(super) type Sizes = Vec<(String, i64)>;

/// Hints: where reductions are held whole, looped over, split in two and in many.
const HINTS: [i64; 8] = [1, 40, 700, 5000, 20_000, 70_000, 300_000, 2_000_000];

/// Elements that a value may have.
const LARGEST: i64 = 70_000;
/// The same at the hints of its sizes.
const LARGEST_HINTED: i64 = 4_000_000;

/// Names one or two sizes of a graph. With `free` the values that are run are others than the graph was drawn with.
pub(super) fn name_sizes(g: &Graph, r: &mut Random, free: bool) -> Option<(Graph, Sizes)> {
    let mut out: Option<(Graph, Sizes)> = None;
    for _ in 0..1 + usize::from(r.odds(1, 3)) {
        let from = out.as_ref().map_or(g, |o| &o.0);
        let known = out.as_ref().map(|o| o.1.clone()).unwrap_or_default();
        match name_one(from, r, known) {
            Some(named) => out = Some(named),
            None => break,
        }
    }
    let (graph, mut sizes) = out?;
    if free {
        for k in 0..sizes.len() {
            let n = sizes[k].1;
            let other = r.of(&[n, n, n - 1, n / 2, 1, 0]);
            let mut with = sizes.clone();
            with[k].1 = other;
            // Operators refuse some sizes, which types at those numbers show.
            if runs(&graph, &with) && numbers(&graph, &with).is_some() {
                sizes = with;
            }
        }
    }
    Some((graph, sizes))
}

/// Names one number more than the `known` ones.
fn name_one(g: &Graph, r: &mut Random, known: Sizes) -> Option<(Graph, Sizes)> {
    // Names are for this graph alone: it has expressions of its own.
    let g = inrush_graph::text::parse(&g.print()).ok()?;
    let (mut numbers, mut fixed) = (Vec::new(), Vec::new());
    for i in &g.inputs {
        let Type::Tensor(t) = &g.value(i.value).ty else {
            continue;
        };
        let here = t.sizes.iter().filter_map(|s| g.exprs.as_int(*s));
        match i.kind {
            InputKind::User { .. } => numbers.extend(here.filter(|n| *n > 1)),
            _ => fixed.extend(here),
        }
    }
    numbers.retain(|n| !fixed.contains(n));
    let largest = *numbers.iter().max()?;
    let n = if r.odds(1, 2) {
        largest
    } else {
        r.of(&numbers)
    };
    let hint = if r.odds(1, 6) { n } else { r.of(&HINTS) };
    let low = r.of(&[0, 1, 1, 2]);
    let high = r.of(&[0, 1_000_000, i64::MAX, i64::MAX]).max(hint).max(n);
    let label = format!("s{}", known.len());
    let sym = g.exprs.size_sym(&label, low, high);
    g.exprs.set_hint(sym, hint.max(low));
    let mut sizes = known;
    sizes.push((label, n));
    // A number that is something else by chance gives other types.
    let all = |g: &Graph| -> Vec<i64> {
        let tensors = g.values.iter().filter_map(|v| match &v.ty {
            Type::Tensor(t) => Some(t.sizes.iter().map(|s| size(g, *s, &sizes))),
            _ => None,
        });
        tensors.flatten().collect()
    };
    let name = g.exprs.sym_expr(sym);
    let mut made = ([true, false].into_iter()).filter_map(|a| inferred(with_name(&g, n, name, a)));
    let named = made.find(|named| all(named) == all(&g))?;
    // Chunks of what would be very large take the interpreter long, however few elements there are.
    let largest = named.values.iter().map(|v| match &v.ty {
        Type::Tensor(t) => named.exprs.hint(t.numel(&named.exprs)),
        _ => 1,
    });
    if largest.max() > Some(LARGEST_HINTED) {
        named.exprs.set_hint(sym, n.max(low));
    }
    Some((named, sizes))
}

/// Replaces a number by a name in the types of inputs, and in arguments if `args`. Gaps between rows close; what is expanded stays
/// so.
fn with_name(g: &Graph, n: i64, name: Expr, args: bool) -> Graph {
    let mut g = g.clone();
    // A clone has expressions of its own.
    let ex = &g.exprs;
    let number = ex.int(n);
    for i in &g.inputs {
        let Type::Tensor(t) = &mut g.values[i.value.index()].ty else {
            continue;
        };
        if !t.sizes.contains(&number) {
            continue;
        }
        let order = order(ex, t);
        for s in t.sizes.iter_mut().filter(|s| **s == number) {
            *s = name;
        }
        let mut step = ex.int(1);
        for d in order {
            if !ex.is_int(t.strides[d], 0) {
                t.strides[d] = step;
                step = ex.mul(step, t.sizes[d]);
            }
        }
    }
    let all = g.nodes.iter_mut().filter(|_| args);
    for a in all.flat_map(|n| &mut n.args) {
        match a {
            Arg::Int(e) if *e == number => *e = name,
            Arg::Ints(list) => {
                for e in list.iter_mut().filter(|e| **e == number) {
                    *e = name;
                }
            }
            _ => {}
        }
    }
    g
}

/// Returns true if all values have sizes within their bounds, and few elements.
pub(super) fn runs(g: &Graph, sizes: &Sizes) -> bool {
    let within = sizes.iter().all(|(name, n)| {
        let info = (g.exprs.sym_by_name(name)).map(|s| g.exprs.sym_info(s));
        info.is_some_and(|i| (i.lower..=i.upper).contains(n))
    });
    let fits = |v: &inrush_graph::Value| match &v.ty {
        Type::Tensor(t) => {
            let list: Vec<i64> = t.sizes.iter().map(|s| size(g, *s, sizes)).collect();
            let all = list.iter().fold(1i64, |p, n| p.saturating_mul(*n));
            list.iter().all(|n| *n >= 0) && all <= LARGEST
        }
        _ => true,
    };
    within && !spreads_nothing(g, sizes) && g.values.iter().all(fits)
}

/// Returns true if an input has no elements and is expanded. Running reductions load what all points of a row share ahead of the row,
/// and of such an input there is none.
fn spreads_nothing(g: &Graph, sizes: &Sizes) -> bool {
    g.inputs.iter().any(|i| match &g.value(i.value).ty {
        Type::Tensor(t) => {
            let none = t.sizes.iter().any(|s| size(g, *s, sizes) == 0);
            none && t.strides.iter().any(|s| g.exprs.is_int(*s, 0))
        }
        _ => false,
    })
}

/// Returns the value of a size that is run.
pub(super) fn size(g: &Graph, e: Expr, sizes: &Sizes) -> i64 {
    let value = |s| {
        let name = g.exprs.sym_info(s).name;
        sizes.iter().find(|(n, _)| *n == name).map(|(_, v)| *v)
    };
    g.exprs.eval(e, &value).unwrap_or(-1)
}

/// The graph with its sizes as numbers again.
pub(super) fn numbers(g: &Graph, sizes: &Sizes) -> Option<Graph> {
    let mut out = g.clone();
    let ex = &out.exprs;
    let map: SymMap = (sizes.iter())
        .filter_map(|(name, n)| Some((ex.sym_by_name(name)?, ex.int(*n))))
        .collect();
    let known = |e: &mut Expr| *e = ex.subst(*e, &map);
    for i in &g.inputs {
        if let Type::Tensor(t) = &mut out.values[i.value.index()].ty {
            t.sizes.iter_mut().chain(&mut t.strides).for_each(known);
        }
    }
    for a in out.nodes.iter_mut().flat_map(|n| &mut n.args) {
        match a {
            Arg::Int(e) => known(e),
            Arg::Ints(list) => list.iter_mut().for_each(known),
            _ => {}
        }
    }
    inferred(out)
}
