//! Calls that look alike are lowered alike: the first one is, and its loops are copied for the others, over their buffers.
//!
//! The twin of the memo in stage decompose, one level down. What is copied are buffers and
//! loop nodes:
//!
//! ```text
//! add(x, x)   made     buffer a,   a[i] = x[i] + x[i]
//! add(y, y)   gets     buffer a',  the same body with x -> y, a -> a'
//! add(x, y)   differs: one buffer would have to stand for two
//! ```
//!
//! Two calls match if their operands agree in type, in coordinates over their buffers, and in
//! what a row can see of these buffers: sizes, kind and layout. A body holds coordinates as
//! interned expressions over index symbols, so it is copied without a rewrite of expressions;
//! buffers, origins and names are all that changes.

use super::{Lower, Tensor};
use inrush_graph::alike::{Looks, Pairs, alike};
use inrush_graph::{Node, ValueId};
use inrush_loops::{self as loops, BufId, Buffer, BufferKind, OriginId, Stmt};
use rustc_hash::FxHashMap;
use std::ops::Range;

/// Calls of one look that are remembered: what is read through views looks alike and may differ.
pub(super) const REMEMBERED: usize = 4;

/// A call that was lowered, and what it made.
/// The ranges index into `Loops`, which only grow during the stage.
struct Known<'g> {
    node: &'g Node,
    origin: OriginId,
    buffers: Range<usize>,
    nodes: Range<usize>,
}

/// Calls that were lowered so far, by look.
pub(super) struct Again<'g> {
    looks: Looks,
    remembered: usize,
    known: FxHashMap<u64, Vec<Known<'g>>>,
}

impl<'g> Again<'g> {
    pub fn new(graph: &'g inrush_graph::Graph, remembered: usize) -> Again<'g> {
        Again {
            remembered,
            looks: Looks::new(&graph.values),
            known: FxHashMap::default(),
        }
    }

    pub fn look(&self, node: &Node) -> u64 {
        self.looks.of(node)
    }

    /// Does for `node`, whose name and origin are set, what was done for a call like it; whether there was one.
    pub fn copy(&self, look: u64, lw: &mut Lower<'g>, node: &'g Node) -> bool {
        let known = self.known.get(&look).map_or(&[][..], |k| k);
        let Some((known, of)) = (known.iter()).find_map(|k| Some((k, buffers(lw, k.node, node)?)))
        else {
            return false;
        };
        let first = lw.loops.buffers.len();
        let new = |b: BufId| match b.index().checked_sub(known.buffers.start) {
            Some(k) if b.index() < known.buffers.end => BufId::from_index(first + k),
            // A call reads what it is given and what it made.
            _ => of.of(b).unwrap_or(b),
        };
        // Names of buffers begin with that of the call's result.
        let own = lw.loops.origins[known.origin.index()].name.len();
        for at in known.buffers.clone() {
            let b = &lw.loops.buffers[at];
            let end = &b.name[own..];
            let mut name = String::with_capacity(lw.name().len() + end.len());
            name.push_str(lw.name());
            name.push_str(end);
            let copy = Buffer {
                name,
                dtype: b.dtype,
                sizes: b.sizes.clone(),
                layout: b.layout.clone(),
                kind: match &b.kind {
                    BufferKind::Alias { of } => BufferKind::Alias { of: new(*of) },
                    kind => kind.clone(),
                },
            };
            lw.loops.buffers.push(copy);
        }
        for at in known.nodes.clone() {
            let mut copy = lw.loops.nodes[at].clone();
            rename(&mut copy, &new, known.origin, lw.origin);
            lw.loops.nodes.push(copy);
        }
        for (v, w) in known.node.outs.iter().zip(&node.outs) {
            lw.tensors[w.index()] = lw.tensors[v.index()].as_ref().map(|t| Tensor {
                buf: new(t.buf),
                ..t.clone()
            });
        }
        true
    }

    /// Remembers what a call has made: all from these buffers and nodes on.
    pub fn remember(
        &mut self,
        look: u64,
        lw: &Lower,
        node: &'g Node,
        buffers: usize,
        nodes: usize,
    ) {
        let known = self.known.entry(look).or_default();
        if known.len() < self.remembered {
            known.push(Known {
                node,
                origin: lw.origin,
                buffers: buffers..lw.loops.buffers.len(),
                nodes: nodes..lw.loops.nodes.len(),
            });
        }
    }
}

/// The buffers that `b` reads in the places of those that `a` reads, if the calls differ in nothing else.
fn buffers(lw: &Lower, a: &Node, b: &Node) -> Option<Pairs<BufId>> {
    let ty = |v: ValueId| &lw.graph.value(v).ty;
    let tensor = |v: ValueId| lw.tensors[v.index()].as_ref();
    let same = |v: ValueId, w: ValueId| {
        ty(v) == ty(w)
            && match (tensor(v), tensor(w)) {
                (Some(x), Some(y)) => {
                    // Rows may ask for the layout of what they are given.
                    let lies = |b: BufId| {
                        let b = &lw.loops.buffers[b.index()];
                        (&b.sizes, b.kind == BufferKind::Temp, &b.layout)
                    };
                    (x.dtype, &x.sizes, &x.coords) == (y.dtype, &y.sizes, &y.coords)
                        && lies(x.buf) == lies(y.buf)
                }
                (x, y) => x.is_none() && y.is_none() && v == w,
            }
    };
    let outs =
        a.outs.len() == b.outs.len() && (a.outs.iter().zip(&b.outs)).all(|(v, w)| ty(*v) == ty(*w));
    if !outs || !alike(a, b, &same) {
        return None;
    }
    let mut pairs = Pairs::default();
    let mut reads = a.reads().zip(b.reads());
    reads
        .all(|(v, w)| match (tensor(v), tensor(w)) {
            (Some(x), Some(y)) => pairs.pair(x.buf, y.buf),
            _ => true,
        })
        .then_some(pairs)
}

/// Lets loops read and write other buffers and come from another operator.
/// Statements of the call itself have origin `from`; others come from elsewhere and keep
/// theirs.
fn rename(node: &mut loops::Node, new: &impl Fn(BufId) -> BufId, from: OriginId, to: OriginId) {
    if let loops::Node::Contraction(c) = node {
        c.a.buf = new(c.a.buf);
        c.b.buf = new(c.b.buf);
    }
    if let loops::Node::Attention(a) = node {
        a.accesses_mut().for_each(|x| x.buf = new(x.buf));
        a.buffers_mut().for_each(|b| *b = new(*b));
    }
    if let loops::Node::Library(c) = node {
        (c.inputs.iter_mut().chain(&mut c.outputs)).for_each(|b| *b = new(*b));
    }
    let body = node.body_mut();
    let origin = |o: &mut OriginId| {
        if *o == from {
            *o = to;
        }
    };
    body.origins.iter_mut().for_each(origin);
    for s in &mut body.stmts {
        match s {
            Stmt::Load { buf, .. } | Stmt::Store { buf, .. } => *buf = new(*buf),
            Stmt::Indirect { check, .. } => check.origin_mut().into_iter().for_each(origin),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRAPH: &str = "graph again
%0 x: f32[4, 8] = input 0
%1 y: f32[4, 8] = input 1
%2 z: f32[8, 4] = input 2
%3 i: i64[5] = input 3
%4 j: i64[5] = input 4
%5 xx: f32[4, 8] = aten.add.Tensor(%0, %0, 1)
%6 xy: f32[4, 8] = aten.add.Tensor(%0, %1, 1)
%7 yy: f32[4, 8] = aten.add.Tensor(%1, %1, 1)
%8 yx: f32[4, 8] = aten.add.Tensor(%1, %0, 1)
%9 t: f32[8, 4] strides [1, 8] = aten.transpose.int(%0, 0, 1)
%10 u: f32[8, 4] strides [1, 8] = aten.transpose.int(%1, 0, 1)
%11 a: f32[8, 4] strides [1, 8] = aten.relu.default(%9)
%12 b: f32[8, 4] strides [1, 8] = aten.relu.default(%10)
%13 c: f32[8, 4] = aten.relu.default(%2)
%14 p: f32[5, 8] = aten.index.Tensor(%0, [%3])
%15 q: f32[5, 8] = aten.index.Tensor(%1, [%4])
%16 m: f32[4, 4] = aten.mm.default(%0, %2)
%17 n: f32[4, 4] = aten.mm.default(%1, %13)
%18 s: f32[4] = aten.sum.dim_IntList(%5, [1], false, none)
%19 w: f32[4] = aten.sum.dim_IntList(%7, [1], false, none)
output 0: %6
output 1: %8
output 2: %11
output 3: %12
output 4: %14
output 5: %15
output 6: %16
output 7: %17
output 8: %18
output 9: %19
";

    #[test]
    fn copied_loops_are_those_that_would_be_made() {
        let loops = |remembered: usize| {
            let graph = inrush_graph::text::parse(GRAPH).unwrap();
            let lowered = super::super::lower_remembering(
                graph,
                super::super::Processor::Cpu,
                &[3, 12],
                remembered,
            )
            .unwrap();
            (lowered.0.print(), lowered.1)
        };
        assert_eq!(loops(REMEMBERED), loops(0));
    }

    #[test]
    fn one_buffer_does_not_stand_for_two() {
        let mut pairs = Pairs::default();
        assert!(pairs.pair(1, 4) && pairs.pair(2, 5) && pairs.pair(1, 4));
        assert!(!pairs.pair(1, 5) && !pairs.pair(3, 4));
        assert_eq!((pairs.of(2), pairs.of(3)), (Some(5), None));
    }
}
