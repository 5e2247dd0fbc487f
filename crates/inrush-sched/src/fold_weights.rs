//! Constant folding at load: nodes that depend on weights alone run once, when the weights are loaded.
//!
//! Nodes are visited in order, so that what a folded node writes counts as fixed for those after
//! it.

use inrush_loops::{BufferKind, Loops, Node};

use crate::deps::Deps;

/// Marks the nodes that can run at load: they read weights and each other's results, hold no size of the call, and are the only
/// writers of buffers that are no outputs.
pub(crate) fn at_load(loops: &Loops, nodes: &[Node], deps: &Deps) -> Vec<bool> {
    let ex = &loops.exprs;
    // Buffers that hold the same on every call.
    let mut fixed: Vec<bool> = loops
        .buffers
        .iter()
        .map(|b| matches!(b.kind, BufferKind::Weight { .. }))
        .collect();
    for b in deps.writes.iter().flatten() {
        // A mutated weight changes between calls.
        fixed[loops.storage(*b).index()] = false;
    }
    let static_expr = |e: inrush_expr::Expr| ex.free_syms(e).iter().all(|s| ex.is_index(*s));
    nodes
        .iter()
        .enumerate()
        .map(|(at, node)| {
            let body = node.body();
            let reads_fixed = deps.reads[at]
                .iter()
                .all(|b| fixed[b.index()] || fixed[loops.storage(*b).index()]);
            let axes_static = || {
                let of_template = match node {
                    Node::Contraction(c) => c.axes().all(|a| ex.as_int(a.size).is_some()),
                    Node::Body(_) => true,
                    Node::Attention(a) => a.axes().all(|x| ex.as_int(x.size).is_some()),
                    // A factorisation of weights, say, runs once. Its sizes are those of its buffers.
                    Node::Library(c) => (c.inputs.iter().chain(&c.outputs))
                        .flat_map(|b| &loops.buffer(*b).sizes)
                        .all(|n| ex.as_int(*n).is_some()),
                };
                of_template && body.axes.iter().all(|a| ex.as_int(a.size).is_some())
            };
            let ok = reads_fixed
                && axes_static()
                && body
                    .stmts
                    .iter()
                    .all(|s| s.exprs().iter().all(|e| static_expr(*e)))
                && deps.writes[at].iter().all(|b| {
                    let k = loops.storage(*b).index();
                    deps.storage_writers(loops, *b) == 1
                        && !deps.output[k]
                        && !deps.aliased[k]
                        && matches!(loops.buffers[k].kind, BufferKind::Temp)
                });
            if ok {
                for b in &deps.writes[at] {
                    fixed[b.index()] = true;
                }
            }
            ok
        })
        .collect()
}
