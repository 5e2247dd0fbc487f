//! Folding: what depends on weights alone is computed once, when they are loaded.

use inrush_loops::{BufferKind, Loops, Node, Output};

/// Which nodes can run at load: they read weights and each other's results, no size of the call occurs in them, and what
/// they write is no output and written by nobody else.
pub(crate) fn at_load(loops: &Loops, nodes: &[Node]) -> Vec<bool> {
    let ex = &loops.exprs;
    let n = loops.buffers.len();
    // Buffers that hold the same on every call.
    let mut fixed: Vec<bool> = loops
        .buffers
        .iter()
        .map(|b| matches!(b.kind, BufferKind::Weight { .. }))
        .collect();
    let mut writes = vec![0u32; n];
    for node in nodes {
        for b in node.writes() {
            writes[loops.storage(b).index()] += 1;
        }
    }
    for (k, w) in writes.iter().enumerate() {
        // A mutated weight changes between calls.
        if *w > 0 {
            fixed[k] = false;
        }
    }
    let mut output = vec![false; n];
    for o in &loops.outputs {
        if let Output::Tensor { buffer } | Output::Mutation { buffer, .. } = o {
            output[loops.storage(*buffer).index()] = true;
        }
    }
    let aliased: Vec<bool> = {
        let mut a = vec![false; n];
        for b in &loops.buffers {
            if let BufferKind::Alias { of } = b.kind {
                a[loops.storage(of).index()] = true;
            }
        }
        a
    };
    let static_expr = |e: inrush_expr::Expr| ex.free_syms(e).iter().all(|s| ex.is_index(*s));
    nodes
        .iter()
        .map(|node| {
            let body = node.body();
            let reads_fixed = node
                .reads()
                .iter()
                .all(|b| fixed[b.index()] || fixed[loops.storage(*b).index()]);
            let mut axes_static = body.axes.iter().all(|a| ex.as_int(a.size).is_some());
            if let inrush_loops::Node::Contraction(c) = node {
                axes_static &= c.axes().all(|a| ex.as_int(a.size).is_some());
            }
            let ok = reads_fixed
                && axes_static
                && body
                    .stmts
                    .iter()
                    .all(|s| s.exprs().iter().all(|e| static_expr(*e)))
                && node.writes().iter().all(|b| {
                    let k = loops.storage(*b).index();
                    writes[k] == 1
                        && !output[k]
                        && !aliased[k]
                        && matches!(loops.buffers[k].kind, BufferKind::Temp)
                });
            if ok {
                for b in node.writes() {
                    fixed[b.index()] = true;
                }
            }
            ok
        })
        .collect()
}
