//! The relation between a rewritten graph and its source, for hosts that call operators through nodes of their own.

use inrush_base::{Error, Result};
use inrush_graph::{Arg, Graph, Node, NodeId, ValueId};
use rustc_hash::FxHashMap;
use std::mem::discriminant;

/// The node of the source graph that a node still is, but for its operands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Source {
    pub node: NodeId,
    /// Operands that changed: the source's, and the one that is read instead.
    pub operands: Vec<(ValueId, ValueId)>,
}

/// Returns for each node of a rewritten graph its source among the nodes `before`; `None` for calls that a pass made.
///
/// Passes never renumber values, so that a node is recognised by its results. Nodes without results stay, in order.
///
/// # Errors
/// An internal error if a node without results is gone.
pub fn sources(before: &[Node], after: &Graph) -> Result<Vec<Option<Source>>> {
    let by_result: FxHashMap<ValueId, usize> = (before.iter().enumerate())
        .filter_map(|(n, node)| Some((*node.outs.first()?, n)))
        .collect();
    let mut silent = (0..before.len()).filter(|n| before[*n].outs.is_empty());
    let sources = (after.nodes.iter())
        .map(|node| {
            let n = match node.outs.first() {
                Some(v) => by_result.get(v).copied(),
                None => silent.next(),
            };
            n.and_then(|n| same_call(NodeId::from_index(n), &before[n], node))
        })
        .collect();
    match silent.next() {
        None => Ok(sources),
        Some(n) => Err(Error::internal(format!(
            "a pass lost the call of `{}`",
            before[n].op
        ))),
    }
}

/// Compares a node with the one of the same result before the passes.
fn same_call(id: NodeId, before: &Node, after: &Node) -> Option<Source> {
    let args = |(a, b): (&Arg, &Arg)| match (a, b) {
        (Arg::Value(_), Arg::Value(_)) => true,
        (Arg::Values(v), Arg::Values(w)) => {
            let given = |v: &Option<ValueId>| v.is_some();
            v.iter().map(given).eq(w.iter().map(given))
        }
        // Compares floats by their text: a NaN is itself.
        (a, b) => discriminant(a) == discriminant(b) && format!("{a:?}") == format!("{b:?}"),
    };
    let same = before.op == after.op
        && before.outs == after.outs
        && before.args.len() == after.args.len()
        && before.args.iter().zip(&after.args).all(args);
    same.then(|| {
        let pairs = before.reads().zip(after.reads());
        let mut operands: Vec<_> = pairs.filter(|(v, w)| v != w).collect();
        operands.sort();
        operands.dedup();
        Source { node: id, operands }
    })
}
