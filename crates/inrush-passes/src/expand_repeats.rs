//! Repetitions by a tensor as reads of repeated positions.
//!
//! # What it does
//! Replaces `repeat_interleave` by a tensor by a list of positions, whose length data decide, and a read of these.
//!
//! # When
//! Ahead of time, for graphs whose data decide about sizes, before stage normalize. Inside PyTorch the operator is called.
//!
//! # Numerics
//! None: elements are copied.
//!
//! # Example
//! ```text
//! %2 y: f32[u0, 3] = aten.repeat_interleave.self_Tensor(%0, %1, 0)
//! =>
//! %3 y.1: i64[u0] = aten.repeat_interleave.Tensor(%1)
//! %2 y: f32[u0, 3] = aten.index_select.default(%0, 0, %3)
//! ```

use inrush_aten::replace;
use inrush_base::{Error, Result};
use inrush_graph::{Arg, Graph, Node, TensorType, Type};

/// Replaces repetitions by a tensor.
///
/// # Errors
/// An input error for arguments that do not fit.
pub fn expand_repeats(mut graph: Graph) -> Result<Graph> {
    let nodes = std::mem::take(&mut graph.nodes);
    let mut out = Vec::with_capacity(nodes.len());
    for mut node in nodes {
        if node.op == "aten.repeat_interleave.self_Tensor" {
            let args = read(&mut graph, &mut out, &node);
            let args = args.map_err(|e| graph.locate(&node, e))?;
            (node.op, node.args) = ("aten.index_select.default".into(), args);
        }
        out.push(node);
    }
    graph.nodes = out;
    Ok(graph)
}

/// Returns the arguments of the read.
fn read(graph: &mut Graph, out: &mut Vec<Node>, node: &Node) -> Result<Vec<Arg>> {
    let (Some(Arg::Value(x)), Some(Arg::Value(repeats))) = (node.args.first(), node.args.get(1))
    else {
        return Err(Error::input("a tensor and repeats are missing"));
    };
    let (x, repeats) = (*x, *repeats);
    let dim = match node.args.get(2) {
        Some(Arg::Int(d)) => graph.exprs.as_int(*d),
        _ => None,
    };
    let result = node.outs.first().map(|v| &graph.value(*v).ty);
    let Some(Type::Tensor(result)) = result.cloned() else {
        return Err(Error::input("a read without a result"));
    };
    let output_size = node.args.get(3).cloned().unwrap_or(Arg::None);
    replace(graph, out, node, |b| {
        let (x, dim) = match dim {
            Some(d) => (x, d),
            None => {
                let all = b.exprs.product(b.sizes(x)?);
                (
                    b.call("aten.reshape.default", &[x.into(), vec![all].into()])?,
                    0,
                )
            }
        };
        let rank = b.rank(x)? as i64;
        let at = usize::try_from(if dim < 0 { dim + rank } else { dim }).unwrap_or(usize::MAX);
        let length = b.sizes(x)?.get(at).copied();
        let (Some(length), Some(count)) = (length, result.sizes.get(at).copied()) else {
            return Err(Error::input(format!("dimension {dim} of rank {rank}")));
        };
        // One repeat is that of all elements.
        let given = b.sizes(repeats)?;
        let repeats = match given.as_slice() {
            [] => b.call(
                "aten.expand.default",
                &[repeats.into(), vec![length].into()],
            )?,
            [one] if b.exprs.is_int(*one, 1) && *one != length => b.call(
                "aten.expand.default",
                &[repeats.into(), vec![length].into()],
            )?,
            _ => repeats,
        };
        let ty = TensorType {
            dtype: b.dtype(repeats)?,
            sizes: vec![count],
            strides: vec![b.exprs.int(1)],
        };
        let args = vec![repeats.into(), output_size.clone()];
        let places = b.call_dynamic("aten.repeat_interleave.Tensor", args, ty);
        Ok(vec![x.into(), b.int(at as i64), places.into()])
    })
}
