//! Readers of values: the nodes that take them, and the graph's outputs.

use inrush_graph::{Graph, Output, OutputValue, ValueId};
use rustc_hash::FxHashSet;

/// For each value the nodes that read it, in order, and the values that are results of the graph.
pub(crate) struct Readers {
    pub(crate) nodes: Vec<Vec<usize>>,
    pub(crate) outputs: FxHashSet<ValueId>,
}

impl Readers {
    pub(crate) fn of(graph: &Graph) -> Readers {
        let mut nodes = vec![Vec::new(); graph.values.len()];
        for (n, node) in graph.nodes.iter().enumerate() {
            node.reads().for_each(|v| nodes[v.index()].push(n));
        }
        let value = |o: &Output| match o.value {
            OutputValue::Value(v) => Some(v),
            _ => None,
        };
        Readers {
            nodes,
            outputs: graph.outputs.iter().filter_map(value).collect(),
        }
    }
}
