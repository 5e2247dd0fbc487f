//! Operands that several library calls read are computed once.
//!
//! # What it does
//! Merges equal calls whose results a library reads. Readers take the first of them; what is not read any more is removed.
//!
//! A library reads its operands from memory, and a graph computes them as often as its model says: a mask for each layer's
//! attention, a cast for each of three products. Calls stand between segments, so that no later stage sees two of them.
//!
//! # When
//! On GPUs. The calls have no effect, draw nothing, no write stands between them, and a library reads the result, through
//! views. Results of the graph keep memory of their own. Values that only kernels read are left to fusion, which may compute a
//! value twice rather than store it.
//!
//! # Numerics
//! None: equal calls give equal values.
//!
//! # Example
//! ```text
//! %2 a: f32[4, 4] = aten.sin.default(%0)
//! %3 p: f32[4, 4] = aten.mm.default(%2, %0)
//! %4 b: f32[4, 4] = aten.sin.default(%0)
//! %5 q: f32[4, 4] = aten.mm.default(%3, %4)
//! =>
//! %2 a: f32[4, 4] = aten.sin.default(%0)
//! %3 p: f32[4, 4] = aten.mm.default(%2, %0)
//! %4 q: f32[4, 4] = aten.mm.default(%3, %2)
//! ```

use crate::effects::may_alias;
use crate::readers::Readers;
use crate::{Context, Pass};
use inrush_aten::Prop;
use inrush_graph::alike::{Looks, alike};
use inrush_graph::{Graph, Node, Type, ValueId};
use rustc_hash::{FxHashMap, FxHashSet};

pub(crate) const PASS: Pass = Pass {
    name: "share_library_operands",
    applies: |cx| cx.caps.gpu.is_some(),
    run,
};

/// The freedom that a pass has with a call.
#[derive(Copy, Clone, PartialEq, Eq)]
enum Kind {
    /// Gives equal values for equal arguments, in memory of its own.
    Equal,
    /// Gives a view of its argument, or the argument itself.
    View,
    /// Stays as it is: it draws, its memory holds nothing yet, or nothing is known about it.
    Own,
    /// May write its arguments: nothing is shared across it.
    Write,
}

fn kind(graph: &Graph, cx: &Context, node: &Node) -> Kind {
    if node.op.starts_with("sym.") {
        return Kind::Own;
    }
    if cx.may_write(node) {
        return Kind::Write;
    }
    let Some(op) = inrush_aten::lookup(&node.op) else {
        return Kind::Own;
    };
    let is_number = |v: &ValueId| !matches!(graph.value(*v).ty, Type::Tensor(_) | Type::None);
    if cx.is_kept(node)
        || op.row.draws()
        || node.outs.iter().any(is_number)
        || op.row.has(Prop::Uninitialized)
    {
        return Kind::Own;
    }
    if may_alias(graph, node) {
        Kind::View
    } else {
        Kind::Equal
    }
}

fn run(graph: &mut Graph, cx: &Context) {
    let kinds: Vec<Kind> = graph.nodes.iter().map(|n| kind(graph, cx, n)).collect();
    let mut instead = equal_values(graph, &kinds);
    let readers = Readers::of(graph);
    let written = written(graph, &kinds);
    for (node, kind) in graph.nodes.iter().zip(&kinds) {
        let is_written = |v: &ValueId| written.contains(v) || written.contains(&instead[v.index()]);
        let merges = *kind == Kind::Equal
            && !node.outs.iter().any(is_written)
            && serves_libraries(graph, cx, &kinds, &readers, node);
        if !merges {
            node.outs.iter().for_each(|v| instead[v.index()] = *v);
        }
    }
    for node in &mut graph.nodes {
        node.reads_mut().for_each(|v| *v = instead[v.index()]);
    }
    let gone = (graph.nodes.iter().enumerate())
        .filter(|(_, n)| n.outs.iter().any(|v| instead[v.index()] != *v))
        .map(|(n, _)| n)
        .collect();
    remove_unread(graph, &kinds, gone);
}

/// Returns for each value the first that is equal.
fn equal_values(graph: &Graph, kinds: &[Kind]) -> Vec<ValueId> {
    let mut looks = Looks::new(&graph.values);
    let mut first: Vec<ValueId> = (0..graph.values.len()).map(ValueId::from_index).collect();
    first.iter().for_each(|v| looks.mark(*v, v.index() as u64));
    let mut seen: FxHashMap<u64, &Node> = FxHashMap::default();
    for (node, kind) in graph.nodes.iter().zip(kinds) {
        match kind {
            Kind::Own => continue,
            Kind::Write => {
                seen.clear();
                continue;
            }
            Kind::Equal | Kind::View => {}
        }
        let same = *seen.entry(looks.call(node)).or_insert(node);
        let ty = |v: &ValueId| &graph.value(*v).ty;
        if !std::ptr::eq(same, node)
            && alike(same, node, &|v, w| first[v.index()] == first[w.index()])
            && (same.outs.iter().zip(&node.outs)).all(|(v, w)| ty(v) == ty(w))
        {
            for (v, w) in node.outs.iter().zip(&same.outs) {
                first[v.index()] = first[w.index()];
                looks.copy(*v, *w);
            }
        }
    }
    first
}

/// Returns the values whose memory some node may write, through views too.
fn written(graph: &Graph, kinds: &[Kind]) -> FxHashSet<ValueId> {
    let mut out = FxHashSet::default();
    for (node, kind) in graph.nodes.iter().zip(kinds).rev() {
        if *kind == Kind::Write || *kind == Kind::View && node.outs.iter().any(|v| out.contains(v))
        {
            out.extend(node.reads());
        }
    }
    out
}

/// Returns true if a library reads what the node gives, and it is no result of the graph, which must have memory of its own.
fn serves_libraries(
    graph: &Graph,
    cx: &Context,
    kinds: &[Kind],
    readers: &Readers,
    node: &Node,
) -> bool {
    let mut library = false;
    let mut open: Vec<ValueId> = node.outs.clone();
    while let Some(v) = open.pop() {
        if readers.outputs.contains(&v) {
            return false;
        }
        for &n in &readers.nodes[v.index()] {
            let reader = &graph.nodes[n];
            if kinds[n] == Kind::View {
                open.extend(&reader.outs);
            } else {
                library |= (cx.serves)(&reader.op);
            }
        }
    }
    library
}

/// Removes the nodes in `open`, which nothing reads, and what only they read.
fn remove_unread(graph: &mut Graph, kinds: &[Kind], mut open: Vec<usize>) {
    let readers = Readers::of(graph);
    let mut left: Vec<usize> = readers.nodes.iter().map(Vec::len).collect();
    for v in (0..left.len()).map(ValueId::from_index) {
        left[v.index()] += usize::from(readers.outputs.contains(&v));
    }
    let mut defined = vec![None; graph.values.len()];
    for (n, node) in graph.nodes.iter().enumerate() {
        node.outs.iter().for_each(|v| defined[v.index()] = Some(n));
    }
    let mut stays = vec![true; graph.nodes.len()];
    while let Some(n) = open.pop() {
        let node = &graph.nodes[n];
        let idle = matches!(kinds[n], Kind::Equal | Kind::View)
            && node.outs.iter().all(|v| left[v.index()] == 0);
        if !idle || !std::mem::replace(&mut stays[n], false) {
            continue;
        }
        for v in node.reads() {
            left[v.index()] -= 1;
            open.extend(defined[v.index()]);
        }
    }
    let mut at = stays.iter();
    graph.nodes.retain(|_| at.next() != Some(&false));
}

#[cfg(test)]
mod tests {
    use super::*;
    use inrush_base::{Caps, Isa};
    use inrush_graph::Arg;

    /// The graph of `x: f32[4, 4]` (%0) and `m: bool[4, 4]` (%1) after the pass, and how many nodes are gone.
    fn shared(lines: &str) -> (Graph, usize) {
        let inputs = "%0 x: f32[4, 4] = input 0\n%1 m: bool[4, 4] = input 1\n";
        let lines: Vec<&str> = lines.lines().map(str::trim).collect();
        let text = format!("graph t\n{inputs}{}\n", lines.join("\n").trim());
        let mut graph = inrush_graph::text::parse(&text).expect("a graph");
        let before = graph.nodes.len();
        let caps = Caps::cpu(Isa::Avx2, 1);
        let serves = |op: &str| op == "aten.mm.default";
        let cx = Context {
            serves: &serves,
            ..Context::segment(&caps)
        };
        run(&mut graph, &cx);
        inrush_graph::verify::verify(&graph).expect("a good graph");
        let gone = before - graph.nodes.len();
        (graph, gone)
    }

    fn count(graph: &Graph, op: &str) -> usize {
        graph.nodes.iter().filter(|n| n.op == op).count()
    }

    #[test]
    fn equal_operands_of_products_are_computed_once() {
        let (graph, gone) = shared(
            "%2 a: f32[4, 4] = aten.sin.default(%0)
             %3 at: f32[4, 4] strides [1, 4] = aten.t.default(%2)
             %4 p: f32[4, 4] = aten.mm.default(%3, %0)
             %5 b: f32[4, 4] = aten.sin.default(%0)
             %6 bt: f32[4, 4] strides [1, 4] = aten.t.default(%5)
             %7 q: f32[4, 4] = aten.mm.default(%4, %6)
             output 0: %7",
        );
        // The second view stays, of the first value.
        assert_eq!((gone, count(&graph, "aten.sin.default")), (1, 1));
        assert_eq!(graph.nodes[3].args, [Arg::Value(ValueId::from_index(2))]);
    }

    #[test]
    fn what_no_library_reads_stays() {
        let (_, gone) = shared(
            "%2 a: f32[4, 4] = aten.sin.default(%0)
             %3 b: f32[4, 4] = aten.neg.default(%2)
             %4 c: f32[4, 4] = aten.sin.default(%0)
             %5 d: f32[4, 4] = aten.exp.default(%4)
             %6 p: f32[4, 4] = aten.mm.default(%3, %5)
             output 0: %6",
        );
        assert_eq!(gone, 0);
    }

    #[test]
    fn results_have_memory_of_their_own() {
        let (_, gone) = shared(
            "%2 a: f32[4, 4] = aten.sin.default(%0)
             %3 p: f32[4, 4] = aten.mm.default(%2, %0)
             %4 b: f32[4, 4] = aten.sin.default(%0)
             %5 q: f32[4, 4] = aten.mm.default(%4, %3)
             %6 bt: f32[4, 4] strides [1, 4] = aten.t.default(%4)
             output 0: %5
             output 1: %6",
        );
        assert_eq!(gone, 0);
    }

    #[test]
    fn writes_are_not_crossed() {
        // `%3` would be read after `%2` was written.
        for written in ["%0", "%2"] {
            let (_, gone) = shared(&format!(
                "%2 a: f32[4, 4] = aten.sin.default(%0)
                 %3 b: f32[4, 4] = aten.sin.default(%0)
                 %4 w: f32[4, 4] = aten.neg_.default({written})
                 %5 c: f32[4, 4] = aten.sin.default(%0)
                 %6 p: f32[4, 4] = aten.mm.default(%3, %5)
                 output 0: %6"
            ));
            assert_eq!(gone, usize::from(written == "%0"));
        }
    }

    #[test]
    fn signs_of_zero_and_numbers_of_another_kind_differ() {
        let (_, gone) = shared(
            "%2 a: f32[4, 4] = aten.full.default([4, 4], 0.0)
             %3 b: f32[4, 4] = aten.full.default([4, 4], -0.0)
             %4 c: f32[4, 4] = aten.mul.Scalar(%0, 1)
             %5 d: f32[4, 4] = aten.mul.Scalar(%0, 1.0)
             %6 p: f32[4, 4] = aten.mm.default(%2, %3)
             %7 q: f32[4, 4] = aten.mm.default(%4, %5)
             output 0: %6
             output 1: %7",
        );
        assert_eq!(gone, 0);
    }

    #[test]
    fn random_numbers_are_drawn_each_time() {
        let (_, gone) = shared(
            "%2 a: f32[4, 4] = aten.rand_like.default(%0)
             %3 b: f32[4, 4] = aten.rand_like.default(%0)
             %4 p: f32[4, 4] = aten.mm.default(%2, %3)
             output 0: %4",
        );
        assert_eq!(gone, 0);
    }

    #[test]
    fn what_only_spared_values_read_goes_too() {
        let (graph, gone) = shared(
            "%2 a: f32[4, 4] = aten.sin.default(%0)
             %3 b: f32[4, 4] = aten.sin.default(%0)
             %4 c: f32[4, 4] = aten.cos.default(%3)
             %5 d: f32[4, 4] = aten.cos.default(%2)
             %6 p: f32[4, 4] = aten.mm.default(%4, %5)
             output 0: %6",
        );
        // The first cosine stays, and with it the second sine; the first sine is not read.
        assert_eq!(gone, 2);
        assert_eq!(count(&graph, "aten.cos.default"), 1);
    }
}
