//! Corrects types that PyTorch's shape functions declare otherwise than its operators compute.

use inrush_graph::{Graph, Type, ValueId};

/// Takes the dimension of size 1 out of the states of `aten.lstm.input`, which `torch.export` declares as
/// `[layers, 1, batch, features]` on CPUs; eager computes `[layers, batch, features]`. A node that was traced with the wrong
/// sizes is refused when its own types are checked.
pub(super) fn correct(graph: &mut Graph) {
    let states: Vec<ValueId> = (graph.nodes.iter())
        .filter(|n| n.op == "aten.lstm.input")
        .flat_map(|n| n.outs.iter().skip(1).copied())
        .collect();
    for v in states {
        if let Type::Tensor(t) = &mut graph.values[v.index()].ty
            && t.sizes.len() == 4
            && graph.exprs.is_int(t.sizes[1], 1)
        {
            t.sizes.remove(1);
            t.strides.remove(1);
        }
    }
}
