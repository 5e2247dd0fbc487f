//! Operands that several library calls read are computed once.
//!
//! What a library reads has to lie in memory, and a graph computes it as often as its model says so: a mask for each layer's
//! attention, a cast for each of three products. Calls stand between segments, so that no stage sees two of them together; this
//! pass looks at the whole graph before it is cut. What kernels read among themselves is left to fusion, which may well compute
//! a value twice rather than store it.

use crate::{library, partition};
use inrush_graph::alike::{Looks, alike};
use inrush_graph::{Graph, Node, OutputValue, Type, ValueId};
use rustc_hash::{FxHashMap, FxHashSet};

/// What [`share_operands`] did.
pub struct SharedOperands {
    /// For each value the one that is read in its place; most are their own.
    pub instead: Vec<ValueId>,
    /// For each node that the graph had whether it still has it.
    pub stays: Vec<bool>,
}

/// What may be done with calls of an operator.
#[derive(Copy, Clone, PartialEq, Eq)]
enum Kind {
    /// Equal for equal arguments, in memory of its own.
    Equal,
    /// Looks at its argument's memory.
    Look,
    /// Stays as it is: it draws, its memory holds nothing yet, or nothing is known about it.
    Own,
    /// May write what it is given: nothing is shared across it.
    Write,
}

fn kind(graph: &Graph, node: &Node) -> Kind {
    if node.op.starts_with("sym.") {
        return Kind::Own;
    }
    if partition::may_write(&node.op) {
        return Kind::Write;
    }
    let Some(op) = inrush_aten::lookup(&node.op) else {
        return Kind::Own;
    };
    let numbers = |v: &ValueId| !matches!(graph.value(*v).ty, Type::Tensor(_) | Type::None);
    if op.row.draws() || node.outs.iter().any(numbers) || is_empty(&node.op) {
        return Kind::Own;
    }
    match partition::is_view(graph, node) {
        true => Kind::Look,
        false => Kind::Equal,
    }
}

/// Whether an operator gives memory for others to write.
fn is_empty(op: &str) -> bool {
    ["aten.empty", "aten.new_empty"]
        .iter()
        .any(|name| op.starts_with(name))
}

/// Has calls of libraries read the first of equal values, and takes out what nobody reads any more. Nodes for which
/// `is_opaque` holds have arguments that the graph does not know.
pub fn share_operands(graph: &mut Graph, is_opaque: impl Fn(usize) -> bool) -> SharedOperands {
    let kinds: Vec<Kind> = (graph.nodes.iter().enumerate())
        .map(|(n, node)| match kind(graph, node) {
            Kind::Equal | Kind::Look if is_opaque(n) => Kind::Own,
            kind => kind,
        })
        .collect();
    let mut instead = equal_values(graph, &kinds);
    let readers = Readers::of(graph);
    let written = written(graph, &kinds);
    for (node, kind) in graph.nodes.iter().zip(&kinds) {
        let spared = *kind == Kind::Equal
            && (node.outs.iter())
                .all(|v| ![*v, instead[v.index()]].iter().any(|v| written.contains(v)))
            && readers.only_read(graph, &kinds, node);
        if !spared {
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
    let stays = unread(graph, &kinds, gone);
    let mut at = stays.iter();
    graph.nodes.retain(|_| at.next() != Some(&false));
    SharedOperands { instead, stays }
}

/// For each value the first that is equal.
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
            Kind::Equal | Kind::Look => {}
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

/// Values whose memory some node may write, through views too.
fn written(graph: &Graph, kinds: &[Kind]) -> FxHashSet<ValueId> {
    let mut out = FxHashSet::default();
    for (node, kind) in graph.nodes.iter().zip(kinds).rev() {
        if *kind == Kind::Write || *kind == Kind::Look && node.outs.iter().any(|v| out.contains(v))
        {
            out.extend(node.reads());
        }
    }
    out
}

/// Which nodes read a value.
struct Readers {
    nodes: Vec<Vec<usize>>,
    outputs: FxHashSet<ValueId>,
}

impl Readers {
    fn of(graph: &Graph) -> Readers {
        let mut nodes = vec![Vec::new(); graph.values.len()];
        for (n, node) in graph.nodes.iter().enumerate() {
            node.reads().for_each(|v| nodes[v.index()].push(n));
        }
        let value = |o: &inrush_graph::Output| match o.value {
            OutputValue::Value(v) => Some(v),
            _ => None,
        };
        Readers {
            nodes,
            outputs: graph.outputs.iter().filter_map(value).collect(),
        }
    }

    /// Whether a library reads what the node gives, and it is no result of the graph, which must have memory of its own.
    fn only_read(&self, graph: &Graph, kinds: &[Kind], node: &Node) -> bool {
        let mut library = false;
        let mut open: Vec<ValueId> = node.outs.clone();
        while let Some(v) = open.pop() {
            if self.outputs.contains(&v) {
                return false;
            }
            for &n in &self.nodes[v.index()] {
                let reader = &graph.nodes[n];
                match kinds[n] {
                    Kind::Look => open.extend(&reader.outs),
                    _ => library |= library::serves(&reader.op),
                }
            }
        }
        library
    }
}

/// Takes out the nodes in `open`, which nobody reads, and what only they read; gives for each node whether it stays.
fn unread(graph: &Graph, kinds: &[Kind], mut open: Vec<usize>) -> Vec<bool> {
    let readers = Readers::of(graph);
    let mut left: Vec<usize> = readers.nodes.iter().map(Vec::len).collect();
    readers.outputs.iter().for_each(|v| left[v.index()] += 1);
    let mut defined = vec![None; graph.values.len()];
    for (n, node) in graph.nodes.iter().enumerate() {
        node.outs.iter().for_each(|v| defined[v.index()] = Some(n));
    }
    let mut stays = vec![true; graph.nodes.len()];
    while let Some(n) = open.pop() {
        let node = &graph.nodes[n];
        let idle = matches!(kinds[n], Kind::Equal | Kind::Look)
            && node.outs.iter().all(|v| left[v.index()] == 0);
        if !idle || !std::mem::replace(&mut stays[n], false) {
            continue;
        }
        for v in node.reads() {
            left[v.index()] -= 1;
            open.extend(defined[v.index()]);
        }
    }
    stays
}

#[cfg(test)]
mod tests {
    use super::*;
    use inrush_graph::Arg;

    /// The graph of `x: f32[4, 4]` (%0) and `m: bool[4, 4]` (%1) after the pass, and how many nodes are gone.
    fn shared(lines: &str) -> (Graph, usize) {
        let inputs = "%0 x: f32[4, 4] = input 0\n%1 m: bool[4, 4] = input 1\n";
        let lines: Vec<&str> = lines.lines().map(str::trim).collect();
        let text = format!("graph t\n{inputs}{}\n", lines.join("\n").trim());
        let mut graph = inrush_graph::text::parse(&text).expect("a graph");
        let before = graph.nodes.len();
        let shared = share_operands(&mut graph, |_| false);
        let stay = shared.stays.iter().filter(|s| **s).count();
        assert_eq!((shared.stays.len(), stay), (before, graph.nodes.len()));
        inrush_graph::verify::verify(&graph).expect("a good graph");
        (graph, before - stay)
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
        // The first cosine stays, and with it the second sine; the first sine is read by nobody.
        assert_eq!(gone, 2);
        assert_eq!(count(&graph, "aten.cos.default"), 1);
    }
}
