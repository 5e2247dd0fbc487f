//! Products that a kernel may compute together with what follows them, each as a graph of its own: compiled both ways and measured,
//! they tell whether a library is faster.

use crate::partition;
use crate::sequence::{Request, rewritten};
use crate::{Observer, Options};
use inrush_base::{Caps, Result};
use inrush_graph::{Graph, Node, NodeId, Type};

/// A product and the pointwise operators on its result.
#[derive(Clone, Debug)]
pub struct Fusible {
    /// Rows, columns and terms: the key among [`inrush_base::Gpu::measured_products`].
    pub sizes: [i64; 3],
    /// Equal work gives equal text: names and lines of the whole graph are left out.
    pub graph: Graph,
}

/// Returns the products of a graph for which that was not measured, one of each size.
///
/// # Errors
/// Those of the passes over the whole graph.
pub fn fusible(
    graph: Graph,
    request: &Request,
    caps: &Caps,
    options: &Options,
    observer: &mut dyn Observer,
) -> Result<Vec<Fusible>> {
    if caps.gpu.is_none() {
        return Ok(Vec::new());
    }
    let (graph, _) = rewritten(graph, request, caps, options, observer)?;
    let called = partition::must_call(&graph, caps.gpu.as_ref());
    let kept = partition::results(&graph, &called);
    let is_kept = |n: &Node| n.outs.iter().any(|v| kept.contains(v));
    let found = inrush_passes::fusible_products(&graph, caps, &is_kept);
    let alone = found.into_iter().filter_map(|p| {
        let nodes: Vec<NodeId> = p.nodes.iter().map(|n| NodeId::from_index(*n)).collect();
        let graph = without_names(partition::region(&graph, &nodes).graph);
        // Inputs are made from their types.
        let tensors = graph
            .inputs
            .iter()
            .all(|i| matches!(graph.value(i.value).ty, Type::Tensor(_)));
        tensors.then_some(Fusible {
            sizes: p.sizes,
            graph,
        })
    });
    Ok(alone.collect())
}

/// Numbers the values of a graph, and forgets where its nodes come from.
fn without_names(mut graph: Graph) -> Graph {
    graph.name = "product".into();
    graph.lines.clear();
    for (n, value) in graph.values.iter_mut().enumerate() {
        value.name = format!("v{n}");
    }
    for node in &mut graph.nodes {
        node.line = None;
    }
    graph
}
