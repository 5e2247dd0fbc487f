//! The plan of the whole graph from that of the short one.
//!
//! The short plan has been fused as any other. If the steps of its second block B1 and third block
//! C (the next to last of the whole graph) are equal but for the buffers, fusion treats inner
//! blocks alike, and B1's steps serve for each block that was left out:
//!
//! ```text
//! short plan   ..a.. B0 | B1 |                | C | D ..z..
//! whole plan   ..a.. B0 | B1 | B1+1 .. B1+m   | C | D ..z..      B1+k: buffers moved by k blocks
//! ```
//!
//! Moving by k blocks is arithmetic on ids. Buffers and origins are numbered in the order of the
//! nodes that made them, so a block's temporaries move by k times their number in a block. Inputs
//! move by the table of what each block reads. Buffers of outputs, and those that later stages made
//! (partial results of split reductions, say), have ranges of their own after them.
//!
//! Everything that does not fit gives the short plan back, and the whole graph is compiled without
//! repetition: blocks of unequal numbers of buffers, aliases, steps that mix the last blocks with
//! earlier ones, work of many blocks joined into one kernel.

use super::fold::Folded;
use inrush_aten::{Mark, Marks};
use inrush_graph::{Graph, Type, ValueId};
use inrush_loops::{
    Access, Body, BufId, Buffer, BufferKind, Contraction, LibraryCall, Loops, Origin, OriginId,
    Output, Stmt,
};
use inrush_sched::{Group, Plan, Refusal, Step};
use rustc_hash::FxHashMap;
use std::ops::Range;

/// The plan of the whole graph, without its memory; `Err` gives the short one back when its blocks are not alike.
///
/// `marks` are what stage lower had made at [`Folded::marks`].
pub fn expand_blocks(
    whole: &Graph,
    folded: &Folded,
    marks: &Marks,
    plan: Plan,
) -> Result<Plan, Box<Plan>> {
    let Some(u) = Expand::new(whole, folded, marks, &plan) else {
        return Err(Box::new(plan));
    };
    let (Some(load), Some(run)) = (
        u.repeated(&plan.loops, &plan.load_steps),
        u.repeated(&plan.loops, &plan.steps),
    ) else {
        return Err(Box::new(plan));
    };
    // Blocks without steps have become part of something else.
    if run.first.is_empty() || !u.has_outputs(&plan.loops) {
        return Err(Box::new(plan));
    }
    Ok(u.plan(whole, plan, &load, &run))
}

/// Ids of the short plan and what they are in the whole one.
struct Expand<'a> {
    folded: &'a Folded,
    /// Everything made before the run, and up to the end of each of its four blocks.
    starts: [Mark; 5],
    /// Buffers and origins of one block.
    each: Mark,
    /// By input buffer of the short plan: its number in the whole one.
    inputs: Vec<u32>,
    /// How many inputs the whole plan has.
    all_inputs: usize,
    /// By input buffer of the short plan: its place among what the second block reads, or the first (then 1: one block back).
    /// `None` for one that both read and that later blocks do not share so.
    slots: FxHashMap<u32, Option<(usize, usize)>>,
    /// By place: the number in the whole plan of what each block reads there.
    read: Vec<u32>,
    /// Everything made before each output, and after the last.
    outputs: &'a [Mark],
    /// By output of the short graph: its position in the whole one, and its block in the short one (4 for none).
    places: Vec<(usize, isize)>,
    /// By output of the second block in the short graph, and how many blocks later: its counterpart in the whole graph.
    counterparts: FxHashMap<(usize, usize), usize>,
    /// By output of the whole graph: how much was made for those before it.
    before: Vec<Mark>,
    /// Buffers of the short plan after stage lower.
    lowered: usize,
    /// Buffers that later stages made for the second block.
    extra: Range<usize>,
}

/// The places of the steps that the two inner blocks became: as many, one after the other.
struct Repeated {
    first: Range<usize>,
}

impl<'a> Expand<'a> {
    fn new(whole: &Graph, folded: &'a Folded, marks: &'a Marks, plan: &Plan) -> Option<Expand<'a>> {
        let starts: [Mark; 5] = marks.nodes.as_slice().try_into().ok()?;
        let lowered = marks.outputs.last()?.buffers;
        let each = |k: usize| Mark {
            buffers: starts[k + 1].buffers - starts[k].buffers,
            origins: starts[k + 1].origins - starts[k].origins,
        };
        if each(0) != each(1) || each(1) != each(2) {
            return None;
        }
        let aliases = |b: &Buffer| matches!(b.kind, BufferKind::Alias { .. });
        if plan.loops.buffers.iter().any(aliases) {
            return None;
        }
        // Numbers of input buffers, in both plans, by value.
        let mut number = vec![u32::MAX; whole.values.len()];
        let (mut inputs, mut all_inputs) = (Vec::new(), 0);
        for (input, kept) in whole.inputs.iter().zip(&folded.inputs) {
            if !matches!(whole.value(input.value).ty, Type::Tensor(_)) {
                continue;
            }
            number[input.value.index()] = all_inputs;
            if *kept {
                inputs.push(all_inputs);
            }
            all_inputs += 1;
        }
        let read: Vec<u32> = folded
            .reads
            .iter()
            .map(|v: &ValueId| number[v.index()])
            .collect();
        let short = |b: u32| inputs.binary_search(&b).ok().map(|k| k as u32);
        let at = |block: usize, slot: usize| read[block * folded.slots + slot];
        let mut slots: FxHashMap<u32, Option<(usize, usize)>> = FxHashMap::default();
        for slot in 0..folded.slots {
            let known = short(at(1, slot))?;
            slots.entry(known).or_insert(Some((slot, 0)));
        }
        for slot in 0..if folded.first_reads { folded.slots } else { 0 } {
            let entry = slots.entry(short(at(0, slot))?);
            let entry = entry.or_insert(Some((slot, 1)));
            if let Some((other, 0)) = *entry
                && (1..folded.run.count - 1).any(|k| at(k, slot) != at(k + 1, other))
            {
                *entry = None;
            }
        }
        // Outputs: where each of the short graph stands in the whole one, and how much each of the whole one takes.
        let outputs = marks.outputs.as_slice();
        let missing = folded.missing();
        let mut places = Vec::new();
        let mut counterparts = FxHashMap::default();
        let mut before = vec![Mark {
            buffers: 0,
            origins: 0,
        }];
        for (k, of) in folded.outputs.iter().enumerate() {
            if of.kept.is_some() {
                places.push((
                    k,
                    of.block
                        .map_or(4, |b| if b < 2 { b } else { b - missing } as isize),
                ));
            }
            if let (Some(like), Some(block)) = (of.like, of.block) {
                counterparts.insert((like, block - 1), k);
            }
            let (r, total) = (of.kept.or(of.like)?, before[k]);
            before.push(Mark {
                buffers: total.buffers + outputs[r + 1].buffers - outputs[r].buffers,
                origins: total.origins + outputs[r + 1].origins - outputs[r].origins,
            });
        }
        let mut u = Expand {
            folded,
            outputs,
            places,
            counterparts,
            before,
            starts,
            each: each(1),
            inputs,
            all_inputs: all_inputs as usize,
            slots,
            read,
            lowered,
            extra: lowered..lowered,
        };
        u.extra = u.extras(plan)?;
        Some(u)
    }

    /// Buffers that later stages made for the second block; `None` when those of the third do not follow in the same number,
    /// or another block touches them.
    fn extras(&self, plan: &Plan) -> Option<Range<usize>> {
        let count = plan.loops.buffers.len() - self.lowered;
        // By buffer: the block that touches it.
        let mut owner: Vec<Option<isize>> = vec![None; count];
        for step in plan.load_steps.iter().chain(&plan.steps) {
            let block = self.block(step);
            for b in step.reads().into_iter().chain(step.writes()) {
                let Some(k) = b.index().checked_sub(self.lowered) else {
                    continue;
                };
                match owner[k] {
                    Some(o) if o != block && [o, block].iter().any(|b| *b == 1 || *b == 2) => {
                        return None;
                    }
                    _ => owner[k] = Some(block),
                }
            }
        }
        let of = |block: isize| -> Option<Range<usize>> {
            let mut ks = (0..count).filter(|k| owner[*k] == Some(block));
            let Some(first) = ks.next() else {
                return Some(0..0);
            };
            let n = 1 + ks.clone().count();
            (ks.enumerate().all(|(i, k)| k == first + 1 + i)).then_some(first..first + n)
        };
        let (a, b) = (of(1)?, of(2)?);
        let follows = a.is_empty() && b.is_empty() || (a.end == b.start && a.len() == b.len());
        follows.then_some(self.lowered + a.start..self.lowered + a.end)
    }

    /// The output of the short graph that an origin was made for, and its number among those.
    fn output_of_origin(&self, o: OriginId) -> Option<(usize, usize)> {
        let k = self.outputs.partition_point(|m| m.origins <= o.index());
        let r = k.checked_sub(1).filter(|r| *r < self.places.len())?;
        Some((r, o.index() - self.outputs[r].origins))
    }

    /// The same of a buffer.
    fn output_of_buffer(&self, b: usize) -> Option<(usize, usize)> {
        if b < self.outputs[0].buffers || b >= self.lowered {
            return None;
        }
        let r = self.outputs.partition_point(|m| m.buffers <= b) - 1;
        Some((r, b - self.outputs[r].buffers))
    }

    /// Returns true if the outputs of blocks left out can be told from those of the second.
    fn has_outputs(&self, loops: &Loops) -> bool {
        self.folded.outputs.iter().all(|of| {
            let (None, Some(like), Some(block)) = (of.kept, of.like, of.block) else {
                return of.kept.is_some();
            };
            self.output(&loops.outputs[like], block - 1).is_some()
        })
    }

    /// The output `by` blocks later than one of the second block.
    fn output(&self, o: &Output, by: usize) -> Option<Output> {
        Some(match o {
            Output::Tensor { buffer } => Output::Tensor {
                buffer: self.buffer_of(*buffer, by)?,
            },
            Output::Mutation { .. } => return None,
            other => other.clone(),
        })
    }

    /// The block of the run that a step belongs to, by the last operator in it: -1 before the run, 4 after it.
    fn block(&self, step: &Step) -> isize {
        let last = step.bodies().iter().flat_map(|b| &b.origins).max();
        last.map_or(-1, |o| self.block_of(*o))
    }

    /// Returns the block that an origin belongs to.
    fn block_of(&self, o: OriginId) -> isize {
        if let Some((r, _)) = self.output_of_origin(o) {
            return self.places[r].1;
        }
        self.starts.partition_point(|m| m.origins <= o.index()) as isize - 1
    }

    /// Returns true if a step holds something of the last two blocks and of what is before these: in the whole plan that would be
    /// something else.
    fn reaches_back(&self, step: &Step) -> bool {
        let mut origins = step.bodies().iter().flat_map(|b| &b.origins);
        let late = |o: &OriginId| matches!(self.block_of(*o), 2 | 3);
        let early = |o: &OriginId| matches!(self.block_of(*o), 0 | 1);
        let temps = self.starts[0].buffers..self.starts[2].buffers;
        origins.clone().any(late)
            && (origins.any(early) || step.reads().iter().any(|b| temps.contains(&b.index())))
    }

    /// Returns true if a step writes a buffer of the second block. One that is not among those that repeat would leave the same buffers
    /// of the blocks left out without contents: work of many blocks that was joined into one kernel (masks, scales) does so.
    fn writes_second(&self, step: &Step) -> bool {
        step.writes().iter().any(|b| {
            let at = b.index();
            (self.starts[1].buffers..self.starts[2].buffers).contains(&at)
                || self.extra.contains(&at)
                || (self.output_of_buffer(at)).is_some_and(|(r, _)| self.places[r].1 == 1)
        })
    }

    /// Where the steps repeat: as many as the second block has, from its first on, and as many after those. Among the former
    /// may be late steps of the first block, and among the latter the same ones of the second.
    fn repeated(&self, loops: &Loops, steps: &[Step]) -> Option<Repeated> {
        let blocks: Vec<isize> = steps.iter().map(|s| self.block(s)).collect();
        let all = |block: isize| blocks.iter().filter(|b| **b == block).count();
        let count = all(1);
        if count != all(2) {
            return None;
        }
        let Some(first) = blocks.iter().position(|b| *b == 1) else {
            let any = (steps.iter()).any(|s| self.reaches_back(s) || self.writes_second(s));
            return (!any).then_some(Repeated { first: 0..0 });
        };
        let end = first + 2 * count;
        if blocks[..first].iter().any(|b| matches!(b, 2 | 3))
            || blocks.get(end..)?.iter().any(|b| matches!(b, 0 | 1))
            || steps[end..].iter().any(|s| self.reaches_back(s))
            || (steps[..first].iter().chain(&steps[end..])).any(|s| self.writes_second(s))
        {
            return None;
        }
        let (a, b) = steps[first..end].split_at(count);
        // Buffers that stand for each other lie alike.
        let next = |a: BufId| {
            let b = self.next_buffer(a)?;
            let (x, y) = (loops.buffer(a), loops.buffer(b));
            let alike = x.dtype == y.dtype
                && x.sizes == y.sizes
                && x.layout == y.layout
                && std::mem::discriminant(&x.kind) == std::mem::discriminant(&y.kind);
            alike.then_some(b)
        };
        let alike = (a.iter().zip(b))
            .all(|(a, b)| moved(a, &next, &|o| self.next_origin(o)).as_ref() == Some(b));
        alike.then_some(Repeated {
            first: first..first + count,
        })
    }
}

/// Ids in the whole plan.
impl Expand<'_> {
    /// Returns the number of inputs that were left out: ids after the inputs move by it.
    fn shift(&self) -> usize {
        self.all_inputs - self.inputs.len()
    }

    /// A buffer of the short plan.
    fn buffer(&self, b: BufId) -> BufId {
        let (b, missing) = (b.index(), self.folded.missing());
        if b < self.inputs.len() {
            return BufId(self.inputs[b]);
        }
        let mut to = b + self.shift();
        if b >= self.starts[2].buffers {
            to += missing * self.each.buffers;
        }
        if let Some((r, k)) = self.output_of_buffer(b) {
            to = self.output_buffers() + self.before[self.places[r].0].buffers + k;
        }
        if b >= self.lowered {
            to = self.extra_buffers() + b - self.lowered;
            to += if b >= self.extra.end {
                missing * self.extra.len()
            } else {
                0
            };
        }
        BufId::from_index(to)
    }

    /// Number of the first buffer of the whole plan that was made for an output.
    fn output_buffers(&self) -> usize {
        self.outputs[0].buffers + self.shift() + self.folded.missing() * self.each.buffers
    }

    /// Number of the first buffer of the whole plan that a later stage made.
    fn extra_buffers(&self) -> usize {
        self.output_buffers() + self.before.last().map_or(0, |m| m.buffers)
    }

    /// The origin number `k` of an output of the whole graph.
    fn output_origin(&self, output: usize, k: usize) -> OriginId {
        let first = self.outputs[0].origins + self.folded.missing() * self.each.origins;
        OriginId::from_index(first + self.before[output].origins + k)
    }

    /// Returns the origin in the whole plan of one in the short plan.
    fn origin(&self, o: OriginId) -> OriginId {
        if let Some((r, k)) = self.output_of_origin(o) {
            return self.output_origin(self.places[r].0, k);
        }
        match o.index() < self.starts[2].origins {
            true => o,
            false => OriginId::from_index(o.index() + self.folded.missing() * self.each.origins),
        }
    }

    /// Returns the buffer of the block `by` blocks after the second that corresponds to one of the second; `None` for what an inner block
    /// should not know.
    fn buffer_of(&self, b: BufId, by: usize) -> Option<BufId> {
        let at = b.index();
        if at < self.inputs.len() {
            let (slot, back) = (*self.slots.get(&b.0)?)?;
            return Some(BufId(self.read[(1 + by - back) * self.folded.slots + slot]));
        }
        let to = BufId::from_index(at + self.shift() + by * self.each.buffers);
        if at < self.starts[0].buffers {
            Some(self.buffer(b))
        } else if at < self.starts[2].buffers {
            Some(to)
        } else if self.extra.contains(&at) {
            let at = self.extra_buffers() + at - self.lowered + by * self.extra.len();
            Some(BufId::from_index(at))
        } else {
            let (r, k) = self.output_of_buffer(at)?;
            let output = *self.counterparts.get(&(r, by))?;
            let at = self.output_buffers() + self.before[output].buffers + k;
            Some(BufId::from_index(at))
        }
    }

    /// Returns the origin of the block `by` blocks after the second; as [`Expand::buffer_of`].
    fn origin_of(&self, o: OriginId, by: usize) -> Option<OriginId> {
        if let Some((r, k)) = self.output_of_origin(o) {
            let output = *self.counterparts.get(&(r, by))?;
            return Some(self.output_origin(output, k));
        }
        if o.index() < self.starts[0].origins {
            return Some(o);
        }
        (o.index() < self.starts[2].origins)
            .then(|| OriginId::from_index(o.index() + by * self.each.origins))
    }

    /// Returns the buffer of the third block of the short plan that corresponds to one of the second, both in the short plan.
    fn next_buffer(&self, b: BufId) -> Option<BufId> {
        let at = b.index();
        if at < self.inputs.len() {
            // Before the third block the second one stands.
            let (slot, back) = (*self.slots.get(&b.0)?)?;
            let block = [self.folded.run.count - 2, 1][back];
            let whole = self.read[block * self.folded.slots + slot];
            let short = self.inputs.binary_search(&whole).ok();
            return short.map(BufId::from_index);
        }
        if at < self.starts[0].buffers {
            Some(b)
        } else if at < self.starts[2].buffers {
            Some(BufId::from_index(at + self.each.buffers))
        } else if self.extra.contains(&at) {
            Some(BufId::from_index(at + self.extra.len()))
        } else {
            let (r, k) = self.output_of_buffer(at)?;
            Some(BufId::from_index(
                self.outputs[self.next_output(r)?].buffers + k,
            ))
        }
    }

    /// Returns the origin of the third block that corresponds to one of the second; as
    /// [`Expand::next_buffer`].
    fn next_origin(&self, o: OriginId) -> Option<OriginId> {
        match self.output_of_origin(o) {
            Some((r, k)) => {
                let origins = self.outputs[self.next_output(r)?].origins;
                Some(OriginId::from_index(origins + k))
            }
            None => self.origin_of(o, 1),
        }
    }

    /// The third block's counterpart of an output of the second, both in the short graph.
    fn next_output(&self, r: usize) -> Option<usize> {
        let output = *self.counterparts.get(&(r, self.folded.missing() + 1))?;
        self.folded.outputs[output].kept
    }
}

/// Building the whole plan.
impl Expand<'_> {
    fn plan(&self, whole: &Graph, mut plan: Plan, load: &Repeated, run: &Repeated) -> Plan {
        let loops = std::mem::take(&mut plan.loops);
        Plan {
            load_steps: self.steps(plan.load_steps, load),
            steps: self.steps(plan.steps, run),
            refusals: self.refusals(plan.refusals),
            loops: self.loops(whole, loops),
            memory: Default::default(),
        }
    }

    /// For each output of the whole graph that of the short one it is made from, and how many blocks later (0: it is that one).
    fn outputs_of(&self) -> impl Iterator<Item = (usize, usize)> {
        self.folded.outputs.iter().map(|of| match of.kept {
            Some(r) => (r, 0),
            None => (of.like.unwrap_or(0), of.block.unwrap_or(1) - 1),
        })
    }

    /// Returns all steps of a list: up to the second block as they are, then its copies, then the
    /// rest.
    fn steps(&self, steps: Vec<Step>, repeated: &Repeated) -> Vec<Step> {
        let first = &repeated.first;
        let base = |s: &Step| moved(s, &|b| Some(self.buffer(b)), &|o| Some(self.origin(o)));
        let mut out = Vec::with_capacity(steps.len() + self.folded.missing() * first.len());
        out.extend(steps[..first.end].iter().filter_map(base));
        // The third block too: what it reads of the block before is that of the last one left out.
        for by in 1..=self.folded.missing() + 1 {
            out.extend(
                steps[first.clone()].iter().filter_map(|s| {
                    moved(s, &|b| self.buffer_of(b, by), &|o| self.origin_of(o, by))
                }),
            );
        }
        out.extend(steps[first.end + first.len()..].iter().filter_map(base));
        out
    }

    /// Refusals stand in the order of nodes, once for each pass: what was said of the second block is said of those left out.
    fn refusals(&self, refusals: Vec<Refusal>) -> Vec<Refusal> {
        let mut out = Vec::with_capacity(refusals.len());
        let block = |r: &Refusal| (r.producer.max(r.consumer)).map_or(-1, |o| self.block_of(o));
        let mut at = 0;
        while at < refusals.len() {
            let of = block(&refusals[at]);
            let same = refusals[at..].iter().take_while(|r| block(r) == of).count();
            let group = &refusals[at..at + same];
            // What was said of the third and fourth block and one before them is said of the last one left out.
            let origin = |o: OriginId| match self.block_of(o) {
                0 | 1 if matches!(of, 2 | 3) => {
                    OriginId::from_index(o.index() + self.folded.missing() * self.each.origins)
                }
                _ => self.origin(o),
            };
            out.extend(group.iter().map(|r| Refusal {
                producer: r.producer.map(origin),
                consumer: r.consumer.map(origin),
                reason: r.reason,
            }));
            if of == 1 {
                for by in 1..=self.folded.missing() {
                    out.extend(group.iter().map(|r| Refusal {
                        producer: r.producer.and_then(|o| self.origin_of(o, by)),
                        consumer: r.consumer.and_then(|o| self.origin_of(o, by)),
                        reason: r.reason,
                    }));
                }
            }
            at += same;
        }
        out
    }

    /// Returns the outputs of the whole plan: those of the short one or their counterparts, by the right name. `made` is
    /// what the short one has for all of its own, `place` counts such things in a mark.
    fn for_outputs<T: Clone>(
        &self,
        made: &[T],
        names: &Names,
        place: fn(&Mark) -> usize,
        name: fn(&mut T) -> &mut String,
    ) -> Vec<T> {
        let place = |r: usize| place(&self.outputs[r]) - place(&self.outputs[0]);
        let mut out = Vec::new();
        for (r, by) in self.outputs_of() {
            for item in &made[place(r)..place(r + 1)] {
                let mut item = item.clone();
                if by > 0 {
                    let name = name(&mut item);
                    *name = names.of(&names.find(name), by);
                }
                out.push(item);
            }
        }
        out
    }

    /// Returns buffers, origins and outputs of the whole plan, in the order in which lowering the
    /// whole graph would have numbered them. Expressions are taken over: blocks share their sizes.
    fn loops(&self, whole: &Graph, short: Loops) -> Loops {
        let names = Names::new(whole, self.folded);
        let (first, second) = (self.starts[1], self.starts[2]);
        let missing = self.folded.missing();
        let mut buffers = Vec::with_capacity(
            short.buffers.len() + self.shift() + missing * (self.each.buffers + self.extra.len()),
        );
        let mut old = short.buffers.into_iter().skip(self.inputs.len());
        for input in &whole.inputs {
            buffers.extend(inrush_aten::input_buffer(whole, &short.exprs, input));
        }
        let renamed = |to: &mut Vec<Buffer>, from: Range<usize>| {
            let named: Vec<Name> = to[from.clone()]
                .iter()
                .map(|b| names.find(&b.name))
                .collect();
            for by in 1..=missing {
                for (b, name) in from.clone().zip(&named) {
                    let b = &to[b];
                    let b = Buffer {
                        name: names.of(name, by),
                        dtype: b.dtype,
                        sizes: b.sizes.clone(),
                        layout: b.layout.clone(),
                        kind: b.kind.clone(),
                    };
                    to.push(b);
                }
            }
        };
        buffers.extend(old.by_ref().take(second.buffers - self.inputs.len()));
        renamed(
            &mut buffers,
            first.buffers + self.shift()..second.buffers + self.shift(),
        );
        buffers.extend(old.by_ref().take(self.outputs[0].buffers - second.buffers));
        let made = self.lowered - self.outputs[0].buffers;
        let made: Vec<Buffer> = old.by_ref().take(made).collect();
        buffers.extend(self.for_outputs(&made, &names, |m| m.buffers, |b| &mut b.name));
        let before = buffers.len();
        buffers.extend(old.by_ref().take(self.extra.end - self.lowered));
        let of_extra = |b: usize| before + b - self.lowered;
        renamed(
            &mut buffers,
            of_extra(self.extra.start)..of_extra(self.extra.end),
        );
        buffers.extend(old);

        let mut old = short.origins.into_iter();
        let mut origins: Vec<Origin> = old.by_ref().take(second.origins).collect();
        let of_second: Vec<Name> = (origins[first.origins..].iter())
            .map(|o| names.find(&o.name))
            .collect();
        for by in 1..=missing {
            for (k, name) in of_second.iter().enumerate() {
                let origin = Origin {
                    op: origins[first.origins + k].op.clone(),
                    name: names.of(name, by),
                    line: names.line(name, by),
                };
                origins.push(origin);
            }
        }
        origins.extend(old.by_ref().take(self.outputs[0].origins - second.origins));
        let made: Vec<Origin> = old.collect();
        origins.extend(self.for_outputs(&made, &names, |m| m.origins, |o| &mut o.name));
        let outputs = self.outputs_of().map(|(r, by)| match &short.outputs[r] {
            o if by > 0 => self.output(o, by).unwrap_or(Output::None),
            Output::Tensor { buffer } => Output::Tensor {
                buffer: self.buffer(*buffer),
            },
            Output::Mutation { input, buffer } => Output::Mutation {
                input: self.buffer(*input),
                buffer: self.buffer(*buffer),
            },
            other => other.clone(),
        });
        Loops {
            outputs: outputs.collect(),
            name: short.name,
            exprs: short.exprs,
            buffers,
            nodes: Vec::new(),
            origins,
            num_inputs: inrush_aten::num_inputs(whole),
        }
    }
}

/// A name in the second block: the name of a value of the graph, and what follows.
struct Name {
    value: Option<Named>,
    rest: String,
}

/// A value that the second block names.
#[derive(Copy, Clone)]
enum Named {
    /// By node of the block, and result.
    Result(usize, usize),
    /// By place among the inputs that it reads.
    Read(usize),
}

/// Names of values in the second block.
struct Names<'a> {
    whole: &'a Graph,
    folded: &'a Folded,
    known: FxHashMap<&'a str, Named>,
}

impl<'a> Names<'a> {
    fn new(whole: &'a Graph, folded: &'a Folded) -> Names<'a> {
        let mut known = FxHashMap::default();
        for (slot, v) in folded.reads_of(1).iter().enumerate() {
            known.insert(whole.value(*v).name.as_str(), Named::Read(slot));
        }
        let nodes = &whole.nodes[folded.run.block(1)..folded.run.block(2)];
        for (k, node) in nodes.iter().enumerate() {
            for (out, v) in node.outs.iter().enumerate() {
                known.insert(whole.value(*v).name.as_str(), Named::Result(k, out));
            }
        }
        Names {
            whole,
            folded,
            known,
        }
    }

    /// Stages name what they make after a value, with a point and a suffix.
    fn find(&self, name: &str) -> Name {
        let ends = std::iter::once(name.len());
        let ends = ends.chain(name.rmatch_indices('.').map(|(k, _)| k));
        let found = ends
            .filter_map(|k| Some((k, *self.known.get(&name[..k])?)))
            .next();
        match found {
            Some((k, value)) => Name {
                value: Some(value),
                rest: name[k..].to_string(),
            },
            None => Name {
                value: None,
                rest: name.to_string(),
            },
        }
    }

    /// The name in the block `by` blocks later.
    fn of(&self, name: &Name, by: usize) -> String {
        let value = match name.value {
            Some(Named::Result(node, out)) => self.node(node, by).outs[out],
            Some(Named::Read(slot)) => self.folded.reads_of(1 + by)[slot],
            None => return name.rest.clone(),
        };
        let value = &self.whole.value(value).name;
        let mut out = String::with_capacity(value.len() + name.rest.len());
        out.push_str(value);
        out.push_str(&name.rest);
        out
    }

    /// The Python line of the node that is named.
    fn line(&self, name: &Name, by: usize) -> Option<String> {
        let Some(Named::Result(node, _)) = name.value else {
            return None;
        };
        let line = self.whole.line_of(self.node(node, by))?;
        Some(line.to_string())
    }

    fn node(&self, node: usize, by: usize) -> &inrush_graph::Node {
        &self.whole.nodes[self.folded.run.block(1 + by) + node]
    }
}

/// A step with other buffers and origins; `None` when one has no counterpart.
fn moved(
    step: &Step,
    buffer: &dyn Fn(BufId) -> Option<BufId>,
    origin: &dyn Fn(OriginId) -> Option<OriginId>,
) -> Option<Step> {
    let body = |b: &Body| -> Option<Body> {
        let mut stmts = b.stmts.clone();
        for s in &mut stmts {
            if let Stmt::Load { buf, .. } | Stmt::Store { buf, .. } = s {
                *buf = buffer(*buf)?;
            }
        }
        Some(Body {
            axes: b.axes.clone(),
            outer: b.outer,
            stmts,
            origins: b
                .origins
                .iter()
                .map(|o| origin(*o))
                .collect::<Option<_>>()?,
        })
    };
    let access = |a: &Access| -> Option<Access> {
        Some(Access {
            buf: buffer(a.buf)?,
            coords: a.coords.clone(),
        })
    };
    Some(match step {
        Step::Kernel(g) => Step::Kernel(Group {
            axes: g.axes.clone(),
            bodies: g.bodies.iter().map(body).collect::<Option<_>>()?,
            locals: g.locals.iter().map(|b| buffer(*b)).collect::<Option<_>>()?,
        }),
        Step::Contraction(c) => Step::Contraction(Box::new(Contraction {
            batch: c.batch.clone(),
            m: c.m.clone(),
            n: c.n.clone(),
            k: c.k.clone(),
            a: access(&c.a)?,
            b: access(&c.b)?,
            dtype: c.dtype,
            epilogue: body(&c.epilogue)?,
        })),
        Step::Attention(a) => {
            let mut a = a.clone();
            for x in a.accesses_mut() {
                *x = access(x)?;
            }
            for b in a.buffers_mut() {
                *b = buffer(*b)?;
            }
            a.scores = body(&a.scores)?;
            Step::Attention(a)
        }
        Step::Library(c) => Step::Library(Box::new(LibraryCall {
            function: c.function.clone(),
            params: c.params.clone(),
            inputs: c.inputs.iter().map(|b| buffer(*b)).collect::<Option<_>>()?,
            outputs: c
                .outputs
                .iter()
                .map(|b| buffer(*b))
                .collect::<Option<_>>()?,
            site: body(&c.site)?,
        })),
    })
}
