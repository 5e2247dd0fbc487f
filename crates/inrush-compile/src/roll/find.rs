//! The longest run of equal blocks in a graph.

use inrush_graph::{Arg, Graph, Node, OutputValue, Type, ValueId};
use rustc_hash::{FxHashMap, FxHasher};
use std::hash::{Hash, Hasher};

/// Blocks below which a run is not worth a closer look: four of them are compiled anyway.
const FEWEST: usize = 6;
/// Nodes that must be saved.
const SAVED: usize = 24;
/// Distances between equal nodes that are tried as the length of a block.
const TRIED: usize = 4;
/// How often a run may break before the search ends.
const BREAKS: usize = 4;

/// Blocks of `period` nodes each, `count` times, from node `start` on.
///
/// From the second block on, node `i` does what node `i - period` does: of a value made within the run it reads the one made
/// `period` nodes later, of values made before the run the same, of inputs any of equal type.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Run {
    pub start: usize,
    pub period: usize,
    pub count: usize,
}

impl Run {
    /// First node of block `k`, or the end of the last block.
    pub fn block(&self, k: usize) -> usize {
        self.start + k * self.period
    }

    fn saved(&self) -> usize {
        self.count.saturating_sub(4) * self.period
    }
}

/// Where a value is made: node and result, or an input.
#[derive(Copy, Clone, PartialEq, Eq)]
pub enum Def {
    Input,
    Node(u32, u32),
}

/// Where each value of a graph is made.
pub fn defs(graph: &Graph) -> Vec<Def> {
    let mut defs = vec![Def::Input; graph.values.len()];
    for (k, node) in graph.nodes.iter().enumerate() {
        for (out, v) in node.outs.iter().enumerate() {
            defs[v.index()] = Def::Node(k as u32, out as u32);
        }
    }
    defs
}

/// The run that saves most.
pub fn find(graph: &Graph, defs: &[Def]) -> Option<Run> {
    let n = graph.nodes.len();
    if n < SAVED + 4 {
        return None;
    }
    let words = words(graph, defs);
    let mut best: Option<Run> = None;
    for period in periods(&words) {
        let Some((from, to)) = stretch(&words, period) else {
            continue;
        };
        let found = check(graph, defs, period, from, to);
        if let Some(run) = found
            && best.is_none_or(|b| run.saved() > b.saved())
        {
            best = Some(run);
        }
    }
    best.filter(|b| b.count >= FEWEST && b.saved() >= SAVED)
}

/// A number for each node that is equal for nodes that do the same to values of equal types.
fn words(graph: &Graph, defs: &[Def]) -> Vec<u64> {
    let mut types = vec![0u64; graph.values.len()];
    for (k, v) in graph.values.iter().enumerate() {
        let mut h = FxHasher::default();
        (defs[k] == Def::Input).hash(&mut h);
        match &v.ty {
            Type::Tensor(t) => {
                t.dtype.hash(&mut h);
                t.sizes.iter().for_each(|e| h.write_u32(e.0));
                t.strides.iter().for_each(|e| h.write_u32(e.0));
            }
            Type::Int(e) => h.write_u32(e.0),
            _ => {}
        }
        types[k] = h.finish();
    }
    // What is an output is unlike anything else, so that it stays.
    for o in &graph.outputs {
        if let OutputValue::Value(v) = o.value {
            types[v.index()] = u64::from(v.0) | 1 << 63;
        }
    }
    let node = |node: &Node| {
        let mut h = FxHasher::default();
        h.write(node.op.as_bytes());
        for arg in &node.args {
            std::mem::discriminant(arg).hash(&mut h);
            match arg {
                Arg::Value(v) => h.write_u64(types[v.index()]),
                Arg::Values(vs) => vs
                    .iter()
                    .for_each(|v| h.write_u64(v.map_or(0, |v| types[v.index()]))),
                Arg::Int(e) => h.write_u32(e.0),
                Arg::Ints(es) => es.iter().for_each(|e| h.write_u32(e.0)),
                // The rest is compared where words are equal.
                _ => {}
            }
        }
        node.outs.iter().for_each(|v| h.write_u64(types[v.index()]));
        h.finish()
    };
    graph.nodes.iter().map(node).collect()
}

/// The most frequent distances between a node and the next of its like, most frequent first.
fn periods(words: &[u64]) -> Vec<usize> {
    let mut last: FxHashMap<u64, usize> = FxHashMap::default();
    last.reserve(64);
    let longest = words.len() / FEWEST;
    let mut times = vec![0usize; longest + 1];
    for (k, w) in words.iter().enumerate() {
        if let Some(before) = last.insert(*w, k)
            && k - before <= longest
        {
            times[k - before] += 1;
        }
    }
    let mut out: Vec<usize> = (1..=longest).filter(|d| times[*d] > 0).collect();
    out.sort_by_key(|d| (std::cmp::Reverse(times[*d]), *d));
    out.truncate(TRIED);
    out
}

/// The longest stretch of nodes each of which has its like `period` nodes later: its first node, and the one behind its last.
fn stretch(words: &[u64], period: usize) -> Option<(usize, usize)> {
    let (mut best, mut from) = ((0, 0), 0);
    let mut end = |from: usize, to: usize| {
        if to - from > best.1 - best.0 {
            best = (from, to);
        }
    };
    for k in 0..words.len() - period {
        if words[k] != words[k + period] {
            end(from, k);
            from = k + 1;
        }
    }
    end(from, words.len() - period);
    (best.1 - best.0 >= (FEWEST - 1) * period).then_some(best)
}

/// The longest run within a stretch.
fn check(graph: &Graph, defs: &[Def], period: usize, from: usize, to: usize) -> Option<Run> {
    let mut best: Option<Run> = None;
    let mut start = from;
    for _ in 0..BREAKS {
        let good = |k: &usize| like(graph, defs, start, period, *k);
        let broken = (start + period..to).find(|k| !good(k));
        let run = Run {
            start,
            period,
            count: (broken.unwrap_or(to) + period - start) / period,
        };
        if best.is_none_or(|b| run.count > b.count) {
            best = Some(run);
        }
        match broken {
            Some(k) if k + period < to => start = k + 1 - period,
            _ => break,
        }
    }
    best
}

/// Whether node `k + period` follows node `k` as [`Run`] says.
fn like(graph: &Graph, defs: &[Def], start: usize, period: usize, k: usize) -> bool {
    let (a, b) = (&graph.nodes[k], &graph.nodes[k + period]);
    let ty = |v: ValueId| &graph.value(v).ty;
    let follows = |v: ValueId, w: ValueId| match (defs[v.index()], defs[w.index()]) {
        (Def::Input, Def::Input) => v == w || ty(v) == ty(w),
        (Def::Node(i, x), Def::Node(j, y)) if (i as usize) < start => i == j && x == y,
        (Def::Node(i, x), Def::Node(j, y)) => i as usize + period == j as usize && x == y,
        _ => false,
    };
    let args = |x: &Arg, y: &Arg| match (x, y) {
        (Arg::Value(v), Arg::Value(w)) => follows(*v, *w),
        (Arg::Values(v), Arg::Values(w)) => {
            v.len() == w.len()
                && v.iter().zip(w).all(|p| match p {
                    (Some(v), Some(w)) => follows(*v, *w),
                    (v, w) => v == w,
                })
        }
        // Bits tell -0.0 from 0.0, and one NaN is like another.
        (Arg::Float(v), Arg::Float(w)) => v.to_bits() == w.to_bits(),
        (Arg::Floats(v), Arg::Floats(w)) => v
            .iter()
            .map(|f| f.to_bits())
            .eq(w.iter().map(|f| f.to_bits())),
        (x, y) => x == y,
    };
    a.op == b.op
        && a.args.len() == b.args.len()
        && a.outs.len() == b.outs.len()
        && a.args.iter().zip(&b.args).all(|(x, y)| args(x, y))
        && (a.outs.iter().zip(&b.outs)).all(|(v, w)| ty(*v) == ty(*w))
}
