//! Common subexpression elimination over calls.
//!
//! # What it does
//! Redirects readers of a call's results to those of the first equal call. Exporters record every call that Python makes: each
//! block of a transformer makes the same mask and the same rotary angles.
//!
//! # When
//! Always, over functional graphs. Calls have no effects there, and a call that draws random numbers has a stream of its own,
//! so equal calls give equal values. Constants are compared bit by bit: `-0.0` is not `0.0`.
//!
//! # Numerics
//! None.
//!
//! # Example
//! ```text
//! %1 a: f32[4] = aten.exp.default(%0)
//! %2 b: f32[4] = aten.exp.default(%0)
//! %3 c: f32[4] = aten.sub.Tensor(%1, %2, 1)
//! =>
//! %1 a: f32[4] = aten.exp.default(%0)
//! %2 c: f32[4] = aten.sub.Tensor(%1, %1, 1)
//! ```

use crate::{Context, Pass};
use inrush_graph::alike::{Looks, alike};
use inrush_graph::{Graph, Node, OutputValue, ValueId};
use rustc_hash::FxHashMap;

pub(crate) const PASS: Pass = Pass {
    name: "cse",
    applies: |_| true,
    run,
};

fn run(graph: &mut Graph, _: &Context) {
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

/// Returns true if two calls have the same results, types included: each size read from data is a
/// symbol of its own.
fn equal(graph: &Graph, a: &Node, b: &Node) -> bool {
    let ty = |v: &ValueId| &graph.value(*v).ty;
    alike(a, b, &|v, w| v == w) && (a.outs.iter().zip(&b.outs)).all(|(v, w)| ty(v) == ty(w))
}
