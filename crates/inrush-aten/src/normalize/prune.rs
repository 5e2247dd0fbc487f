//! Dead code elimination: removes nodes without read results, and values that nothing defines.
//!
//! One sweep backwards: a node is live if an output or a live node reads one of its results.
//! Nodes have no effects once the graph is functional, so all others go. Values keep their
//! order of definition, which printed graphs and positions rely on.

use crate::dynamic;
use inrush_graph::{Graph, OutputValue, Value, ValueId};

/// Dead code removal; values are renumbered in order of definition.
pub fn prune(graph: &mut Graph) {
    prune_marked(graph, &mut []);
}

/// [`prune`]; `marks` are positions between nodes, in ascending order, and stay between the same nodes.
pub(crate) fn prune_marked(graph: &mut Graph, marks: &mut [usize]) {
    let mut live = vec![false; graph.values.len()];
    for output in &graph.outputs {
        if let OutputValue::Value(v) = output.value {
            live[v.index()] = true;
        }
    }
    let mut nodes = std::mem::take(&mut graph.nodes);
    let mut gone: Vec<usize> = Vec::new();
    let mut at = nodes.len();
    nodes.reverse();
    nodes.retain(|node| {
        at -= 1;
        // The types of other values may name a symbol that such a node reads from data.
        let used = node.outs.iter().any(|v| live[v.index()])
            || dynamic::find(&node.op).is_some()
            || dynamic::is_control(&node.op)
            // What a function of the user's does besides, and the symbols of its results, are not known.
            || graph.operator(&node.op).is_some();
        if used {
            for v in node.reads() {
                live[v.index()] = true;
            }
        } else {
            gone.push(at);
        }
        used
    });
    nodes.reverse();
    gone.reverse();
    for mark in marks {
        // A mark moves down by the nodes before it that are gone.
        *mark -= gone.partition_point(|g| g < mark);
    }
    graph.nodes = nodes;
    renumber(graph);
}

fn renumber(graph: &mut Graph) {
    let mut new_id = vec![None; graph.values.len()];
    let mut defined: Vec<ValueId> = Vec::with_capacity(graph.values.len());
    let all = graph
        .inputs
        .iter()
        .map(|i| i.value)
        .chain(graph.nodes.iter().flat_map(|n| n.outs.iter().copied()))
        // An output may name a symbolic integer that no node defines any more.
        .chain(graph.outputs.iter().filter_map(|o| match o.value {
            OutputValue::Value(v) => Some(v),
            _ => None,
        }));
    for v in all {
        if new_id[v.index()].is_none() {
            new_id[v.index()] = Some(ValueId::from_index(defined.len()));
            defined.push(v);
        }
    }
    // Most graphs have nothing to remove and number their values as they define them.
    if (defined.iter().enumerate()).all(|(k, v)| v.index() == k) {
        graph.values.truncate(defined.len());
        return;
    }
    let mut old: Vec<Option<Value>> = std::mem::take(&mut graph.values)
        .into_iter()
        .map(Some)
        .collect();
    graph.values.reserve_exact(defined.len());
    let in_order = defined.iter().filter_map(|v| old[v.index()].take());
    graph.values.extend(in_order);
    let fix = |v: &mut ValueId| {
        if let Some(n) = new_id[v.index()] {
            *v = n;
        }
    };
    graph.inputs.iter_mut().for_each(|i| fix(&mut i.value));
    for node in &mut graph.nodes {
        node.outs.iter_mut().for_each(fix);
        node.reads_mut().for_each(fix);
    }
    for output in &mut graph.outputs {
        if let OutputValue::Value(v) = &mut output.value {
            fix(v);
        }
    }
}
