//! Corrects types that PyTorch's shape functions declare otherwise than its operators compute.

use inrush_base::DType;
use inrush_graph::{Arg, Graph, Node, Type, ValueId};

/// Corrects the declared types of a graph's values.
pub(super) fn correct(graph: &mut Graph) {
    states_of_lstm(graph);
    counts(graph);
    slices(graph);
}

/// Gives results that count elements or name their places the dtypes that they have: `torch.export` declares most in the dtype of
/// the elements.
fn counts(graph: &mut Graph) {
    let dtype = |n: &Node, k: usize| match (n.op.as_str(), n.args.get(1)) {
        (
            "aten._unique2.default" | "aten.unique_dim.default" | "aten.unique_consecutive.default",
            _,
        ) if k > 0 => Some(DType::I64),
        ("aten.bincount.default", Some(Arg::Value(w))) => match &graph.value(*w).ty {
            Type::Tensor(t) if t.dtype == DType::F32 => Some(DType::F32),
            _ => Some(DType::F64),
        },
        ("aten.bincount.default", _) => Some(DType::I64),
        _ => None,
    };
    let found: Vec<(ValueId, DType)> = (graph.nodes.iter())
        .flat_map(|n| n.outs.iter().enumerate().map(move |(k, v)| (n, k, *v)))
        .filter_map(|(n, k, v)| Some((v, dtype(n, k)?)))
        .collect();
    for (v, dtype) in found {
        if let Type::Tensor(t) = &mut graph.values[v.index()].ty {
            t.dtype = dtype;
        }
    }
}

/// Gives different slices along a dimension their strides: eager puts one slice after the other in memory.
fn slices(graph: &mut Graph) {
    let dim = |n: &Node| match (n.op.as_str(), n.args.get(1), n.args.get(3)) {
        ("aten.unique_dim.default", Some(Arg::Int(d)), _)
        | ("aten.unique_consecutive.default", _, Some(Arg::Int(d))) => graph.exprs.as_int(*d),
        _ => None,
    };
    let found: Vec<(ValueId, i64)> = (graph.nodes.iter())
        .filter_map(|n| Some((*n.outs.first()?, dim(n)?)))
        .collect();
    for (v, dim) in found {
        let Type::Tensor(t) = &mut graph.values[v.index()].ty else {
            continue;
        };
        let rank = t.sizes.len() as i64;
        let Some(at) = usize::try_from(if dim < 0 { dim + rank } else { dim })
            .ok()
            .filter(|d| *d < t.sizes.len())
        else {
            continue;
        };
        let mut sizes = t.sizes.clone();
        let first = sizes.remove(at);
        sizes.insert(0, first);
        let mut strides = graph.exprs.contiguous_strides(&sizes);
        let first = strides.remove(0);
        strides.insert(at, first);
        t.strides = strides;
    }
}

/// Takes the dimension of size 1 out of the states of `aten.lstm.input`, which `torch.export` declares as
/// `[layers, 1, batch, features]` on CPUs; eager computes `[layers, batch, features]`. A node that was traced with the wrong
/// sizes is refused when its own types are checked.
fn states_of_lstm(graph: &mut Graph) {
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
