//! Makes a failing graph smaller.
//!
//! Greedy descent: of all candidates that are one step smaller, the first that still fails
//! becomes the next graph, until none fails or the time is over.
//!
//! ```text
//! steps, in this order      one output, an output less, an earlier node as the output
//!                           a node's result as an input
//!                           contiguous inputs, `f32` inputs, smaller sizes
//!                           numbers instead of names of sizes, smaller values of these
//!                           no offset, one thread
//! ```
//!
//! Each step must make `weight` less, so the descent ends. A candidate must fail, but may fail
//! differently: a second fault can take the place of the first, which the report shows by
//! printing both messages. Types of results are inferred again where sizes or dtypes change;
//! candidates that do not fit are dropped.

use super::{Drawn, Level, symbols};
use inrush_aten::decompose::result_types;
use inrush_base::DType;
use inrush_graph::{Arg, Graph, InputKind, OutputKind, OutputValue, TensorType, Type, ValueId};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// The smallest graph found within `time` that fails as well at this level.
pub fn shrink(drawn: &Drawn, level: Level, time: Duration) -> Drawn {
    let end = Instant::now() + time;
    let mut best = drawn.clone();
    loop {
        // Candidates are in an order that removes most first. One that fails is taken at once,
        // and all are made anew for it.
        let mut smaller = None;
        for candidate in candidates(&best) {
            if Instant::now() > end {
                return best;
            }
            if weight(&candidate) < weight(&best) && candidate.check(level).is_err() {
                smaller = Some(candidate);
                break;
            }
        }
        match smaller {
            Some(s) => best = s,
            None => return best,
        }
    }
}

/// The measure that shrinking makes less of: nodes, outputs, inputs, elements, strides that are not contiguous, settings, threads.
fn weight(d: &Drawn) -> (usize, usize, i64, usize, usize) {
    let g = &d.graph;
    let mut elements = 0i64;
    let mut odd = 0;
    for i in &g.inputs {
        let Ok(t) = g.tensor(i.value) else { continue };
        elements += (t.sizes.iter())
            .map(|s| symbols::size(g, *s, &d.sizes))
            .product::<i64>();
        let plain = TensorType::contiguous(&g.exprs, t.dtype, t.sizes.clone());
        odd += usize::from(plain.strides != t.strides) + usize::from(t.dtype != DType::F32);
    }
    let settings = d.settings.len() + d.threads + d.sizes.len();
    (
        g.nodes.len(),
        g.outputs.len() + g.inputs.len(),
        elements,
        odd,
        settings,
    )
}

/// Returns graphs that are one step from `d`, some of which may not be smaller.
fn candidates(d: &Drawn) -> Vec<Drawn> {
    let g = &d.graph;
    let mut out = Vec::new();
    let mut with = |graph: Graph| {
        out.push(Drawn { graph, ..d.clone() });
    };
    // One output alone, the output of an earlier node, an output less.
    for k in 0..g.outputs.len() {
        if g.outputs.len() > 1 {
            let mut one = g.clone();
            one.outputs = vec![g.outputs[k].clone()];
            with(pruned(one));
            let mut less = g.clone();
            less.outputs.remove(k);
            with(pruned(less));
        }
    }
    for n in g.nodes.iter().rev().skip(1) {
        for v in &n.outs {
            // The graph ends at this node: what comes after it has no part in the failure.
            let mut early = g.clone();
            early.outputs.truncate(1);
            early.outputs[0].value = OutputValue::Value(*v);
            early.outputs[0].kind = OutputKind::User { index: 0 };
            with(pruned(early));
        }
    }
    // A node's result becomes an input.
    for k in 0..g.nodes.len() {
        if g.nodes.len() > 1 && g.nodes[k].outs.len() == 1 {
            let mut cut = g.clone();
            let value = cut.nodes.remove(k).outs[0];
            let users = (cut.inputs.iter())
                .filter(|i| matches!(i.kind, InputKind::User { .. }))
                .count();
            // The result keeps its type, strides included, and random contents take the place of
            // computed ones.
            cut.inputs.push(inrush_graph::Input::new(
                value,
                InputKind::User { index: users },
            ));
            with(pruned(cut));
        }
    }
    // Contiguous inputs, float32, smaller sizes wherever they stand.
    for i in &g.inputs {
        let Ok(t) = g.tensor(i.value) else { continue };
        let plain = TensorType::contiguous(&g.exprs, t.dtype, t.sizes.clone());
        let mut changed = g.clone();
        changed.values[i.value.index()].ty = Type::Tensor(plain);
        with(changed);
    }
    for graph in retyped(g) {
        with(graph);
    }
    for graph in resized(g) {
        with(graph);
    }
    if let Some(graph) = symbols::numbers(g, &d.sizes).filter(|_| !d.sizes.is_empty()) {
        out.push(Drawn {
            graph,
            sizes: Vec::new(),
            ..d.clone()
        });
    }
    for (k, (_, n)) in d.sizes.iter().enumerate() {
        for to in [1, 2, n / 2, n - 1] {
            let mut fewer = d.clone();
            fewer.sizes[k].1 = to;
            if symbols::runs(&fewer.graph, &fewer.sizes) {
                out.push(fewer);
            }
        }
    }
    for k in 0..d.settings.len() {
        if d.settings[k].starts_with("offset") {
            let mut fewer = d.clone();
            fewer.settings.remove(k);
            out.push(fewer);
        }
    }
    if d.threads > 1 {
        out.push(Drawn {
            threads: 1,
            ..d.clone()
        });
    }
    out
}

/// Without nodes and inputs that no output needs.
/// Dead code elimination from the outputs, with indices of inputs and outputs closed up. Inputs
/// that the call writes stay.
fn pruned(mut g: Graph) -> Graph {
    let mut needed: BTreeSet<ValueId> = BTreeSet::new();
    for o in &g.outputs {
        if let OutputValue::Value(v) = o.value {
            needed.insert(v);
        }
    }
    let mut nodes = std::mem::take(&mut g.nodes);
    nodes.reverse();
    nodes.retain(|n| {
        let keep = n.outs.iter().any(|v| needed.contains(v));
        if keep {
            n.args.iter().for_each(|a| reads(a, &mut needed));
        }
        keep
    });
    nodes.reverse();
    g.nodes = nodes;
    let old: Vec<ValueId> = g.inputs.iter().map(|i| i.value).collect();
    let written: BTreeSet<usize> = (g.outputs.iter())
        .filter_map(|o| match o.kind {
            OutputKind::Mutation { input } => Some(input),
            OutputKind::User { .. } => None,
        })
        .collect();
    let mut at = 0;
    g.inputs.retain(|i| {
        at += 1;
        needed.contains(&i.value) || written.contains(&(at - 1))
    });
    let mut users = 0;
    for i in &mut g.inputs {
        if let InputKind::User { index } = &mut i.kind {
            *index = users;
            users += 1;
        }
    }
    let mut results = 0;
    for o in &mut g.outputs {
        match &mut o.kind {
            OutputKind::Mutation { input } => {
                let now = g.inputs.iter().position(|i| i.value == old[*input]);
                *input = now.unwrap_or(0);
            }
            OutputKind::User { index } => {
                *index = results;
                results += 1;
            }
        }
    }
    g
}

/// Adds the values of an argument.
fn reads(a: &Arg, to: &mut BTreeSet<ValueId>) {
    match a {
        Arg::Value(v) => {
            to.insert(*v);
        }
        Arg::Values(list) => to.extend(list.iter().flatten()),
        _ => {}
    }
}

/// All inputs of a dtype of floats as float32.
fn retyped(g: &Graph) -> Vec<Graph> {
    let mut changed = g.clone();
    for i in &g.inputs {
        if let Type::Tensor(t) = &mut changed.values[i.value.index()].ty
            && t.dtype.is_float()
        {
            t.dtype = DType::F32;
        }
    }
    inferred(changed).into_iter().collect()
}

/// One number that is a size of inputs becomes a smaller one, there and in arguments that are lists of sizes.
fn resized(g: &Graph) -> Vec<Graph> {
    let mut numbers = BTreeSet::new();
    for i in &g.inputs {
        if let Ok(t) = g.tensor(i.value) {
            numbers.extend(t.sizes.iter().filter_map(|s| g.exprs.as_int(*s)));
        }
    }
    let mut out = Vec::new();
    for n in numbers.iter().rev() {
        // Large steps first.
        for to in [1, 2, n / 2, n - 1] {
            if to < 1 || to >= *n {
                continue;
            }
            // A number among the arguments may be a size (`view`) or something else (a kernel's
            // side): both readings are tried.
            for args in [false, true] {
                out.extend(inferred(with_size(g, *n, to, args)));
            }
        }
        // One dimension of one input, where others need not follow.
        for i in &g.inputs {
            let Ok(t) = g.tensor(i.value) else { continue };
            for d in 0..t.sizes.len() {
                if g.exprs.as_int(t.sizes[d]) == Some(*n) && *n > 1 {
                    let mut changed = g.clone();
                    let mut sizes = t.sizes.clone();
                    sizes[d] = changed.exprs.int(*n / 2);
                    let ty = TensorType::contiguous(&changed.exprs, t.dtype, sizes);
                    changed.values[i.value.index()].ty = Type::Tensor(ty);
                    out.extend(inferred(changed));
                }
            }
        }
    }
    out
}

/// Replaces a size in the types of all inputs, and in arguments if `args`.
fn with_size(g: &Graph, from: i64, to: i64, args: bool) -> Graph {
    let mut g = g.clone();
    let (from, to) = (g.exprs.int(from), g.exprs.int(to));
    for i in &g.inputs {
        if let Type::Tensor(t) = &mut g.values[i.value.index()].ty {
            let order = order(&g.exprs, t);
            for s in &mut t.sizes {
                if *s == from {
                    *s = to;
                }
            }
            // The order of dimensions stays; gaps close.
            let mut step = g.exprs.int(1);
            for d in order {
                t.strides[d] = step;
                step = g.exprs.mul(step, t.sizes[d]);
            }
        }
    }
    if args {
        for n in &mut g.nodes {
            for a in &mut n.args {
                match a {
                    Arg::Int(e) if *e == from => *e = to,
                    Arg::Ints(list) => {
                        for e in list.iter_mut().filter(|e| **e == from) {
                            *e = to;
                        }
                    }
                    _ => {}
                }
            }
        }
    }
    g
}

/// Dimensions from the fastest to the slowest.
pub(super) fn order(exprs: &inrush_expr::Exprs, t: &TensorType) -> Vec<usize> {
    let mut dims: Vec<usize> = (0..t.sizes.len()).rev().collect();
    dims.sort_by_key(|d| exprs.hint(t.strides[*d]));
    dims
}

/// The graph with types of results as its inputs make them; `None` where they do not fit.
pub(super) fn inferred(mut g: Graph) -> Option<Graph> {
    for k in 0..g.nodes.len() {
        let (op, args, outs) = {
            let n = &g.nodes[k];
            (n.op.clone(), n.args.clone(), n.outs.clone())
        };
        let types = result_types(&mut g, &op, &args).ok()?;
        if types.len() != outs.len() {
            return None;
        }
        for (v, ty) in outs.into_iter().zip(types) {
            g.values[v.index()].ty = ty;
        }
    }
    for o in &g.outputs {
        if let (OutputKind::Mutation { input }, OutputValue::Value(v)) = (&o.kind, &o.value) {
            let into = g.tensor(g.inputs[*input].value).ok()?;
            let new = g.tensor(*v).ok()?;
            if into.sizes != new.sizes || into.dtype != new.dtype {
                return None;
            }
        }
    }
    Some(g)
}
