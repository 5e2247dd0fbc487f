//! Calls that look alike are decomposed alike: the first one is, and what it became is copied for the others.
//!
//! A memo table from call hashes to ranges of the output. A hit copies the nodes of the first
//! call and renumbers the values that they define; operands are paired position by position:
//!
//! ```text
//! n = layer_norm(x, g, b)  made  values 10..16, nodes 4..9    reads x, g, b
//! m = layer_norm(y, h, c)  gets  values 20..26, a copy of 4..9 with x->y, g->h, b->c
//! ```
//!
//! A pairing must be a bijection: `add(x, x)` is no model for `add(x, y)`, though their types
//! agree. A value that the original read but did not get as an operand makes the copy fail,
//! and the call is decomposed anew. The result equals a fresh decomposition: names, types and
//! order are the same, which a test compares.

use inrush_graph::alike::{Looks, paired};
use inrush_graph::{Graph, Node, Value, ValueId};
use rustc_hash::FxHashMap;
use std::ops::Range;

/// Calls of one look that are remembered.
pub(super) const REMEMBERED: usize = 4;

/// A call that was decomposed: itself, the values and nodes that it made, and its results.
/// The ranges index into the output graph, which only grows while the stage runs.
struct Known {
    node: Node,
    values: Range<usize>,
    nodes: Range<usize>,
    outs: Vec<ValueId>,
}

/// Calls that were decomposed so far, by look.
pub struct Again {
    looks: Looks,
    remembered: usize,
    known: FxHashMap<u64, Vec<Known>>,
}

impl Again {
    /// `values` are those of the graph before anything is decomposed.
    pub fn new(values: &[Value], remembered: usize) -> Again {
        Again {
            remembered,
            looks: Looks::new(values),
            known: FxHashMap::default(),
        }
    }

    /// How a call looks, with the values that it reads as they were called before anything was decomposed.
    pub fn look(&self, node: &Node) -> u64 {
        self.looks.of(node)
    }

    /// Does for `node` what was done for a call like it, and gives the results.
    pub fn copy(
        &self,
        look: u64,
        graph: &mut Graph,
        nodes: &mut Vec<Node>,
        node: &Node,
    ) -> Option<Vec<ValueId>> {
        let ty = |v: ValueId| &graph.values[v.index()].ty;
        let (known, pairs) = self.known.get(&look)?.iter().find_map(|k| {
            let mut outs = k.node.outs.iter().zip(&node.outs);
            let pairs = paired(&k.node, node, &|v, w| ty(v) == ty(w))?;
            outs.all(|(v, w)| ty(*v) == ty(*w)).then_some((k, pairs))
        })?;
        // Values that the original made move by a constant; values that it read go through
        // the pairs.
        let first = graph.values.len();
        let new = |v: ValueId| match v.index().checked_sub(known.values.start) {
            Some(k) if v.index() < known.values.end => Some(ValueId::from_index(first + k)),
            _ => pairs.of(v),
        };
        let outs = known.outs.iter().map(|v| new(*v)).collect::<Option<_>>()?;
        // Nodes are copied into place one by one; a failure half way takes them back.
        let start = nodes.len();
        for at in known.nodes.clone() {
            let mut copy = Node {
                line: node.line,
                ..nodes[at].clone()
            };
            let mut all = true;
            let mut rename = |v: &mut ValueId| match new(*v) {
                Some(w) => *v = w,
                None => all = false,
            };
            copy.reads_mut().for_each(&mut rename);
            copy.outs.iter_mut().for_each(&mut rename);
            if !all {
                nodes.truncate(start);
                return None;
            }
            nodes.push(copy);
        }
        // Names count from 1 under the new call's prefix, as a fresh decomposition would name
        // them.
        let prefix = super::prefix(graph, node);
        for (k, at) in known.values.clone().enumerate() {
            let ty = graph.values[at].ty.clone();
            graph.values.push(Value {
                name: super::numbered(&prefix, k + 1),
                ty,
            });
        }
        Some(outs)
    }

    /// Remembers what a call became.
    pub fn remember(
        &mut self,
        look: u64,
        node: Node,
        values: Range<usize>,
        nodes: Range<usize>,
        outs: Vec<ValueId>,
    ) {
        let known = self.known.entry(look).or_default();
        if known.len() < self.remembered {
            known.push(Known {
                node,
                values,
                nodes,
                outs,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRAPH: &str = "graph again
%0 x: f32[4, 8] = input 0
%1 y: f32[4, 8] = input 1
%2 g: f32[8] = parameter g
%3 b: f32[8] = parameter b
%4 n: f32[4, 8] = aten.layer_norm.default(%0, [8], %2, %3, 1e-5, false)
%5 m: f32[4, 8] = aten.layer_norm.default(%1, [8], %3, %2, 1e-5, false)
%6 o: f32[4, 8] = aten.layer_norm.default(%4, [8], %2, %2, 1e-5, false)
%7 p: f32[4, 8] = aten.layer_norm.default(%5, [8], %3, %3, 1e-5, false)
%8 q: f32[4, 8] = aten.layer_norm.default(%5, [8], %3, %3, 1e-6, false)
%9 e: f32[4, 8] = aten.elu.default(%6, 1.0, 1.0, 1.0)
%10 f: f32[4, 8] = aten.elu.default(%7, 1.0, 1.0, 1.0)
%11 d: f32[4, 8] = aten.dropout.default(%9, 0.5, false)
%12 h: f32[4, 8] = aten.dropout.default(%10, 0.5, false)
output 0: %11
output 1: %12
output 2: %8
output 3: %4
";

    #[test]
    fn copied_calls_are_those_that_would_be_made() {
        let text = |remembered: usize| {
            let graph = inrush_graph::text::parse(GRAPH).unwrap();
            let mut marks = [1, 6];
            let graph =
                super::super::decompose_remembering(graph, &mut marks, remembered, &|_| true);
            (graph.unwrap().print(), marks)
        };
        assert_eq!(text(REMEMBERED), text(0));
    }
}
