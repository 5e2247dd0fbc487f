//! The longest run of equal blocks in a graph.
//!
//! The search is for a periodic stretch of the node list. Each node gets a hash of what it looks
//! like without the identity of its operands. The most frequent distances between neighbours of
//! equal hash are candidates for the period:
//!
//! ```text
//! hashes  p m a r m a r m a r m a r q      distance 3 occurs 9 times: period 3
//!           '---' '---' '---' '---'
//! ```
//!
//! For each candidate the longest stretch of equal hashes at that distance is found, and only
//! within it are nodes compared in full ([`Run`] says what has to hold). All steps are linear in
//! the nodes; the number of candidates and of restarts is bounded.

use inrush_graph::alike::{Looks, alike};
use inrush_graph::{Graph, OutputKind, OutputValue, ValueId};
use rustc_hash::FxHashMap;

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
    /// First node.
    pub start: usize,
    /// Nodes of a block.
    pub period: usize,
    /// Number of blocks.
    pub count: usize,
}

impl Run {
    /// First node of block `k`, or the end of the last block.
    pub fn block(&self, k: usize) -> usize {
        self.start + k * self.period
    }

    /// Returns the number of nodes that need not be compiled.
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

/// Returns where each value of a graph is made.
pub fn defs(graph: &Graph) -> Vec<Def> {
    let mut defs = vec![Def::Input; graph.values.len()];
    for (k, node) in graph.nodes.iter().enumerate() {
        for (out, v) in node.outs.iter().enumerate() {
            defs[v.index()] = Def::Node(k as u32, out as u32);
        }
    }
    defs
}

/// Returns the run that saves most; `None` where none saves enough.
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

/// A number for each node that is equal for nodes that look alike. Inputs look unlike anything made.
fn words(graph: &Graph, defs: &[Def]) -> Vec<u64> {
    let mut looks = Looks::new(&graph.values);
    for i in &graph.inputs {
        looks.mark(i.value, 1);
    }
    // Blocks give as many outputs; what is the new contents of an input is unlike anything else, so that it stays.
    for (k, o) in graph.outputs.iter().enumerate() {
        if let OutputValue::Value(v) = o.value
            && defs[v.index()] != Def::Input
        {
            let mark = match o.kind {
                OutputKind::User { .. } => 2,
                OutputKind::Mutation { .. } => 3 + k as u64,
            };
            looks.mark(v, mark);
        }
    }
    graph.nodes.iter().map(|n| looks.of(n)).collect()
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

/// The longest stretch of nodes each of which has its like `period` nodes later: its first node, and the one after its last.
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

/// Returns the longest run within a stretch. Where a node does not follow, the next try begins one
/// period before the node after it: an earlier start would break at the same node.
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

/// Returns true if node `k + period` follows node `k` as [`Run`] says.
fn like(graph: &Graph, defs: &[Def], start: usize, period: usize, k: usize) -> bool {
    let (a, b) = (&graph.nodes[k], &graph.nodes[k + period]);
    let ty = |v: ValueId| &graph.value(v).ty;
    let follows = |v: ValueId, w: ValueId| match (defs[v.index()], defs[w.index()]) {
        (Def::Input, Def::Input) => v == w || ty(v) == ty(w),
        (Def::Node(i, x), Def::Node(j, y)) if (i as usize) < start => i == j && x == y,
        (Def::Node(i, x), Def::Node(j, y)) => i as usize + period == j as usize && x == y,
        _ => false,
    };
    alike(a, b, &follows) && (a.outs.iter().zip(&b.outs)).all(|(v, w)| ty(*v) == ty(*w))
}
