//! The graph with all but four blocks of its longest run left out.
//!
//! ```text
//! whole   a  [B0] [B1] [B2] [B3] [B4] [B5]  z
//! short   a  [B0] [B1]           [B4] [B5]  z      B4 reads from B1 what it read from B3
//! ```
//!
//! Two blocks at each end, because fusion reaches across the edges of the run: the first block may
//! fuse with `a` and the last with `z`. The second and the next to last have blocks of the run on
//! both sides, as those left out have, so these two must come out alike.
//!
//! A run is given up if the short graph would not stand for the whole: its blocks read inputs in
//! different patterns, an inner block reads an input that gets new contents, or an inner block
//! computes the new contents of an input.

use super::find::{Def, Run, defs, find};
use inrush_graph::{Arg, Graph, Input, InputKind, Node, Output, OutputKind, OutputValue, ValueId};
use rustc_hash::FxHashMap;
use std::ops::Range;

/// Blocks that stay: two at each end.
const KEPT: usize = 4;

/// The blocks that were left out, and how to find them again.
pub struct Folded {
    pub run: Run,
    /// By position in the whole graph's inputs: whether the short graph has it.
    pub inputs: Vec<bool>,
    /// Inputs that blocks read, by place of reading: block after block, from the first on.
    pub reads: Vec<ValueId>,
    /// True if the first block, too, reads as many in the same way; if not, those of the second stand in its place.
    pub first_reads: bool,
    /// How many each block reads.
    pub slots: usize,
    /// By position in the whole graph's outputs.
    pub outputs: Vec<OutputOf>,
}

/// Where an output of the whole graph comes from.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct OutputOf {
    /// Its position in the outputs of the short graph, if it is there.
    pub kept: Option<usize>,
    /// The block that gives it.
    pub block: Option<usize>,
    /// For a block after the second: the position of what the second block has in its place.
    pub like: Option<usize>,
}

impl Folded {
    /// Blocks that were left out: after the second.
    pub fn missing(&self) -> usize {
        self.run.count - KEPT
    }

    /// Inputs that block `k` reads.
    pub fn reads_of(&self, k: usize) -> &[ValueId] {
        &self.reads[k * self.slots..][..self.slots]
    }

    /// Positions between nodes of the short graph: the start of the run, and the end of each of its blocks.
    pub fn marks(&self) -> [usize; 1 + KEPT] {
        std::array::from_fn(|k| self.run.block(k))
    }
}

/// Leaves out the inner blocks of the longest run, if there is one. Expressions move over to the short
/// graph.
pub fn fold_blocks(whole: &mut Graph) -> Option<(Graph, Folded)> {
    let defs = defs(whole);
    let run = find(whole, &defs)?;
    let (reads, slots, first_reads) = reads(whole, &defs, &run)?;
    if overwritten(whole, &run, &reads, slots) {
        return None;
    }
    let inputs = kept_inputs(whole, &run)?;
    let mut fold = Fold::new(whole, &defs, &run);
    let position = fold.inputs(&inputs);
    fold.nodes()?;
    let mut outputs = fold.outputs(&position)?;
    let mut short = fold.short;
    short.guards = whole.guards.clone();
    short.exprs = std::mem::take(&mut whole.exprs);
    short.lines = whole.lines.clone();
    liken(whole, &defs, &run, &mut outputs)?;
    let folded = Folded {
        run,
        inputs,
        reads,
        first_reads,
        slots,
        outputs,
    };
    Some((short, folded))
}

/// Nodes of the blocks that are left out.
fn gap(run: &Run) -> Range<usize> {
    run.block(2)..run.block(run.count - 2)
}

/// Returns for each input whether the short graph has it: all but those that only blocks left out read.
fn kept_inputs(whole: &Graph, run: &Run) -> Option<Vec<bool>> {
    let gap = gap(run);
    // Read by what stays, and by blocks that are left out.
    let mut read = vec![(false, false); whole.values.len()];
    for (k, node) in whole.nodes.iter().enumerate() {
        for v in node.reads() {
            if gap.contains(&k) {
                read[v.index()].1 = true;
            } else {
                read[v.index()].0 = true;
            }
        }
    }
    for o in &whole.outputs {
        let OutputValue::Value(v) = o.value else {
            continue;
        };
        read[v.index()].0 = true;
        if let OutputKind::Mutation { input } = o.kind {
            read[whole.inputs.get(input)?.value.index()].0 = true;
        }
    }
    let kept = |i: &Input| read[i.value.index()].0 || !read[i.value.index()].1;
    Some(whole.inputs.iter().map(kept).collect())
}

/// The short graph in the making.
struct Fold<'a> {
    whole: &'a Graph,
    defs: &'a [Def],
    run: &'a Run,
    /// Its expressions are those of the whole graph, which move over at the end.
    short: Graph,
    /// Values of the short graph by those of the whole.
    new: Vec<Option<ValueId>>,
}

impl<'a> Fold<'a> {
    fn new(whole: &'a Graph, defs: &'a [Def], run: &'a Run) -> Fold<'a> {
        let short = Graph {
            name: whole.name.clone(),
            ..Graph::default()
        };
        let new = vec![None; whole.values.len()];
        Fold {
            whole,
            defs,
            run,
            short,
            new,
        }
    }

    /// Adds a value of the whole graph.
    fn take(&mut self, v: ValueId) -> ValueId {
        let id = ValueId::from_index(self.short.values.len());
        self.short.values.push(self.whole.value(v).clone());
        self.new[v.index()] = Some(id);
        id
    }

    /// Adds the inputs that stay. Returns their positions by those of before.
    fn inputs(&mut self, kept: &[bool]) -> FxHashMap<usize, usize> {
        let mut position = FxHashMap::default();
        for (at, input) in self.whole.inputs.iter().enumerate() {
            if !kept[at] {
                continue;
            }
            position.insert(at, self.short.inputs.len());
            let value = self.take(input.value);
            self.short.inputs.push(Input {
                value,
                ..input.clone()
            });
        }
        position
    }

    /// Finds a value for what stays. A value of a block that was left out stands for the one that takes its place before the
    /// third block.
    fn at(&self, v: ValueId) -> Option<ValueId> {
        if let Some(v) = self.new[v.index()] {
            return Some(v);
        }
        let gap = gap(self.run);
        match self.defs[v.index()] {
            Def::Node(k, out) if gap.contains(&(k as usize)) => {
                let k = (k as usize).checked_sub(gap.len())?;
                let within = k >= self.run.block(0);
                within
                    .then(|| self.whole.nodes[k].outs[out as usize])
                    .and_then(|v| self.new[v.index()])
            }
            _ => None,
        }
    }

    /// Adds the nodes that stay.
    fn nodes(&mut self) -> Option<()> {
        let gap = gap(self.run);
        for (k, node) in self.whole.nodes.iter().enumerate() {
            if gap.contains(&k) {
                continue;
            }
            // Only the blocks left may read across the gap.
            let across = k < self.run.block(self.run.count);
            let rename = |v: ValueId| {
                if across {
                    self.at(v)
                } else {
                    self.new[v.index()]
                }
            };
            let args = node.args.iter().map(|a| renamed(a, &rename));
            let args = args.collect::<Option<Vec<Arg>>>()?;
            let outs = node.outs.iter().map(|v| self.take(*v)).collect();
            self.short.nodes.push(Node {
                op: node.op.clone(),
                args,
                outs,
                line: node.line,
                made_for: node.made_for.clone(),
            });
        }
        Some(())
    }

    /// Adds the outputs whose values are there. Returns where each comes from.
    fn outputs(&mut self, position: &FxHashMap<usize, usize>) -> Option<Vec<OutputOf>> {
        let run = self.run;
        let mut outputs = Vec::with_capacity(self.whole.outputs.len());
        for o in &self.whole.outputs {
            let mut of = OutputOf {
                kept: Some(self.short.outputs.len()),
                block: None,
                like: None,
            };
            let value = match &o.value {
                OutputValue::Value(v) => {
                    let def = self.defs[v.index()];
                    if let Def::Node(k, _) = def {
                        let at = (k as usize).checked_sub(run.block(0));
                        of.block = at.map(|at| at / run.period).filter(|b| *b < run.count);
                    }
                    match self.new[v.index()] {
                        Some(v) => OutputValue::Value(v),
                        // A symbolic integer that no node makes.
                        None if def == Def::Input => OutputValue::Value(self.take(*v)),
                        None if matches!(o.kind, OutputKind::Mutation { .. }) => return None,
                        None => {
                            of.kept = None;
                            outputs.push(of);
                            continue;
                        }
                    }
                }
                other => other.clone(),
            };
            outputs.push(of);
            let kind = match &o.kind {
                OutputKind::Mutation { input } => OutputKind::Mutation {
                    input: *position.get(input)?,
                },
                user => user.clone(),
            };
            self.short.outputs.push(Output { value, kind });
        }
        Some(outputs)
    }
}

/// Finds for the outputs of later blocks those of the second: the same result of the same node, and of several outputs of one
/// result the one at the same place.
fn liken(whole: &Graph, defs: &[Def], run: &Run, outputs: &mut [OutputOf]) -> Option<()> {
    let mut seen: FxHashMap<ValueId, usize> = FxHashMap::default();
    // Value of the second block, and how many outputs of it came before.
    let mut second: FxHashMap<(ValueId, usize), usize> = FxHashMap::default();
    let mut later = Vec::new();
    for (k, (o, of)) in whole.outputs.iter().zip(outputs.iter()).enumerate() {
        let (OutputValue::Value(v), Some(block)) = (&o.value, of.block) else {
            continue;
        };
        let times = seen.entry(*v).or_insert(0);
        let nth = *times;
        *times += 1;
        match (block, of.kept) {
            (1, Some(kept)) => {
                second.insert((*v, nth), kept);
            }
            (2.., _) => later.push((k, *v, nth, block)),
            _ => {}
        }
    }
    for (k, v, nth, block) in later {
        let Def::Node(node, out) = defs[v.index()] else {
            continue;
        };
        let node = node as usize - (block - 1) * run.period;
        let like = whole.nodes[node].outs[out as usize];
        outputs[k].like = second.get(&(like, nth)).copied();
        // The last block may be unlike the others.
        if outputs[k].like.is_none() && block < run.count - 1 {
            return None;
        }
    }
    Some(())
}

/// Returns an argument with other values; `None` if one has no counterpart.
fn renamed(arg: &Arg, rename: &impl Fn(ValueId) -> Option<ValueId>) -> Option<Arg> {
    Some(match arg {
        Arg::Value(v) => Arg::Value(rename(*v)?),
        Arg::Values(vs) => {
            let one = |v: &Option<ValueId>| match v {
                Some(v) => rename(*v).map(Some),
                None => Some(None),
            };
            Arg::Values(vs.iter().map(one).collect::<Option<_>>()?)
        }
        other => other.clone(),
    })
}

/// Returns true if a block that is to be left out reads an input that gets new contents, unless the last block reads it too and so
/// keeps it as it was until then.
fn overwritten(graph: &Graph, run: &Run, reads: &[ValueId], slots: usize) -> bool {
    let inner = &reads[2 * slots..(run.count - 2) * slots];
    let last = &reads[(run.count - 1) * slots..];
    graph.outputs.iter().any(|o| match o.kind {
        OutputKind::Mutation { input } => {
            let v = graph.inputs.get(input).map(|i| i.value);
            v.is_some_and(|v| inner.contains(&v) && !last.contains(&v))
        }
        OutputKind::User { .. } => false,
    })
}

/// The inputs that blocks read, how many each does, and whether the first does as the others; `None` when one of the others
/// reads an input twice where another reads two, or a weight where another reads what the user gives.
fn reads(graph: &Graph, defs: &[Def], run: &Run) -> Option<(Vec<ValueId>, usize, bool)> {
    let mut user = vec![false; graph.values.len()];
    for i in &graph.inputs {
        user[i.value.index()] = matches!(i.kind, InputKind::User { .. });
    }
    let of = |block: usize, out: &mut Vec<ValueId>| {
        for node in &graph.nodes[run.block(block)..run.block(block + 1)] {
            out.extend(node.reads().filter(|v| defs[v.index()] == Def::Input));
        }
    };
    // For each place the first one of the block that reads the same, and whether the user gives it.
    let pattern = |reads: &[ValueId]| -> Vec<(usize, bool)> {
        let mut seen: FxHashMap<ValueId, usize> = FxHashMap::default();
        let places = reads.iter().enumerate();
        places
            .map(|(k, v)| (*seen.entry(*v).or_insert(k), user[v.index()]))
            .collect()
    };
    let (mut first, mut second) = (Vec::new(), Vec::new());
    of(0, &mut first);
    of(1, &mut second);
    let same = pattern(&second);
    let slots = second.len();
    let first_reads = pattern(&first) == same;
    let mut out = if first_reads { first } else { second };
    for block in 1..run.count {
        let from = out.len();
        of(block, &mut out);
        if pattern(&out[from..]) != same {
            return None;
        }
    }
    Some((out, slots, first_reads))
}
