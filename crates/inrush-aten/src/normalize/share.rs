//! What is computed several times from the same values is computed once.
//!
//! Exporters write down every call that Python makes: blocks of a transformer each make the same mask and the same rotary
//! angles. Calls have no effects here, and one that draws random numbers has a stream of its own, so that equal calls give equal
//! values.

use inrush_graph::alike::{Looks, alike};
use inrush_graph::{Graph, Node, OutputValue, ValueId};
use rustc_hash::FxHashMap;

/// Lets readers of a call's results read those of the first call that is equal; the calls that nobody reads are left to
/// [`super::prune`].
pub fn share(graph: &mut Graph) {
    let mut looks = Looks::new(&graph.values);
    for k in 0..graph.values.len() {
        looks.mark(ValueId::from_index(k), k as u64);
    }
    let mut first: Vec<ValueId> = (0..graph.values.len()).map(ValueId::from_index).collect();
    let mut seen: FxHashMap<u64, usize> = FxHashMap::default();
    let mut nodes = std::mem::take(&mut graph.nodes);
    for k in 0..nodes.len() {
        let (before, rest) = nodes.split_at_mut(k);
        let node = &mut rest[0];
        node.reads_mut().for_each(|v| *v = first[v.index()]);
        let at = *seen.entry(looks.call(node)).or_insert(k);
        if let Some(same) = before.get(at)
            && equal(graph, same, node)
        {
            for (v, w) in node.outs.iter().zip(&same.outs) {
                first[v.index()] = *w;
            }
        }
    }
    graph.nodes = nodes;
    for output in &mut graph.outputs {
        if let OutputValue::Value(v) = &mut output.value {
            *v = first[v.index()];
        }
    }
}

/// Whether two calls have the same results, types included: sizes read from data have names of their own.
fn equal(graph: &Graph, a: &Node, b: &Node) -> bool {
    let ty = |v: &ValueId| &graph.value(*v).ty;
    alike(a, b, &|v, w| v == w) && (a.outs.iter().zip(&b.outs)).all(|(v, w)| ty(v) == ty(w))
}
