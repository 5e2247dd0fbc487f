//! Memory planning: one arena per call, by greedy first-fit offset assignment with symbolic sizes.
//!
//! The live interval of a buffer goes from the first step that uses it, which writes it, to the last step that reads or writes
//! it. Buffers whose intervals overlap get disjoint bytes, unless one updates the other in place; others may share bytes, so
//! that the arena is small and stays in the caches. With sizes that are known only at a call, an offset is an expression, and
//! "disjoint" must hold for every value of the symbols. Buffers that load steps write are outside of the arena: they live as
//! long as the weights, one after the other.
//!
//! ```text
//! step      1  2  3  4  5          arena, if b is the smallest by hint and |a|, |c| cannot be compared
//! a         |-----|                0 .. |a|              a and c share bytes: their intervals are disjoint
//! b            |-----|             max(|a|, |c|) ..      b starts where the longer of the two ends
//! c                  |--|          0 .. |c|
//! ```
//!
//! 1. Buffers form blocks, in order of the steps ([`blocks`]). A result joins the block of an operand of equal bytes that its
//!    step reads for the last time, if the step reads each element where it writes the result, or in an earlier body at the
//!    same outer point ([`in_place`]).
//! 2. Blocks are placed from the largest down, by hint ([`pack`]). Candidates are 0 and the ends of the placed blocks whose
//!    intervals overlap; the lowest one, by hint, is taken that the comparison of expressions proves disjoint from all of these
//!    for every size.
//! 3. A block for which no candidate is proved starts after all of these blocks, at the maximum of their ends. So hints choose
//!    between right answers only.

use inrush_base::{Error, Result};
use inrush_expr::{Expr, Exprs, Node as E};
use inrush_loops::{BufId, BufferKind, Bufs, Loops, Output, Stmt};

use crate::layout::position;
use crate::{Group, Memory, Place, Plan, Step};

/// Alignment of every buffer in bytes: a cache line, and the widest vector.
pub(crate) const ALIGN: i64 = 64;

/// A buffer, or several that update each other in place, and its live interval in steps.
struct Block {
    /// In the order in which they take the bytes over from each other.
    bufs: Vec<BufId>,
    /// Of each of them, a multiple of [`ALIGN`].
    bytes: Expr,
    /// `bytes` at the hints, by which blocks are sorted.
    size: i64,
    /// First and last step that uses any of them.
    from: usize,
    to: usize,
}

/// Places every buffer of a plan.
pub fn plan_memory(plan: &mut Plan) -> Result<()> {
    plan.memory = memory(plan)?;
    Ok(())
}

/// Returns a memory plan for the buffers of a plan, whatever it holds so far.
pub fn memory(plan: &Plan) -> Result<Memory> {
    let n = plan.loops.buffers.len();
    let mut places = vec![Place::Unused; n];
    let mut outputs: Vec<Option<usize>> = vec![None; n];
    for (k, o) in plan.loops.outputs.iter().enumerate() {
        if let Output::Tensor { buffer } = o {
            outputs[plan.loops.storage(*buffer).index()].get_or_insert(k);
        }
    }
    for step in plan.load_steps.iter().chain(&plan.steps) {
        if let Step::Kernel(g) = step {
            g.locals
                .iter()
                .for_each(|b| places[b.index()] = Place::Local);
        }
    }
    for (k, b) in plan.loops.buffers.iter().enumerate() {
        let place = match &b.kind {
            BufferKind::Input { index } => Place::Input(*index),
            BufferKind::Weight { .. } => Place::Weight,
            BufferKind::Alias { of } => Place::Alias(*of),
            BufferKind::Temp => match outputs[k] {
                Some(o) => Place::Output(o),
                None => continue,
            },
        };
        places[k] = place;
    }
    // What load steps write stays; everything else lives from its first write to its last use.
    let ex = &plan.loops.exprs;
    let mut load = ex.int(0);
    for step in &plan.load_steps {
        for b in step.writes() {
            if places[b.index()] == Place::Unused {
                let bytes = bytes(&plan.loops, b);
                places[b.index()] = Place::Load {
                    offset: load,
                    bytes,
                };
                load = ex.add(load, bytes);
            }
        }
    }
    let blocks = blocks(plan, &places)?;
    let offsets = pack(ex, &blocks);
    let mut end = ex.int(0);
    for (block, offset) in blocks.iter().zip(offsets) {
        for (k, b) in block.bufs.iter().enumerate() {
            places[b.index()] = Place::Arena {
                offset,
                bytes: block.bytes,
                in_place_of: k.checked_sub(1).map(|k| block.bufs[k]),
            };
        }
        end = ex.max(end, ex.add(offset, block.bytes));
    }
    Ok(Memory {
        places,
        arena_bytes: Some(end),
        load_bytes: Some(load),
    })
}

/// Bytes of a buffer, a multiple of [`ALIGN`] for every value of the symbols.
fn bytes(loops: &Loops, b: BufId) -> Expr {
    let ex = &loops.exprs;
    let buffer = loops.buffer(b);
    // Most sizes are numbers: no expression is built on the way.
    let known = (buffer.sizes.iter()).try_fold(buffer.dtype.size() as i64, |p, s| {
        ex.as_int(*s).and_then(|s| p.checked_mul(s))
    });
    if let Some(bytes) = known.and_then(|b| b.checked_add(ALIGN - 1)) {
        return ex.int(bytes / ALIGN * ALIGN);
    }
    let exact = ex.mul(
        ex.product(buffer.sizes.iter().copied()),
        ex.int(buffer.dtype.size() as i64),
    );
    round_up(ex, exact)
}

/// A multiple of [`ALIGN`] not below `e`. Polynomials in sizes stay polynomials, so that they can be compared: each
/// coefficient is rounded up.
fn round_up(ex: &Exprs, e: Expr) -> Expr {
    let up = |c: i64| c.checked_add(ALIGN - 1).map(|c| c / ALIGN * ALIGN);
    let (base, terms) = match ex.node(e) {
        E::Const(v) => (v, Default::default()),
        E::Sum { base, terms } => (base, terms),
        _ => (0, smallvec::SmallVec::from_slice(&[(1, e)])),
    };
    // Rounding up each coefficient adds less than `ALIGN` for each unit of a term, and keeps the
    // sum comparable.
    // Numbers of chunks are rounded up, which is written with two signs: `-((-n) // 64)`.
    let grows = |(c, t): &(i64, Expr)| {
        let range = ex.range(*t);
        *c > 0 && range.lo >= 0 || *c < 0 && range.hi <= 0
    };
    let simple = base >= 0 && terms.iter().all(grows);
    let rounded = || -> Option<Expr> {
        let mut out = ex.int(up(base)?);
        for (c, t) in &terms {
            let c = up(c.checked_abs()?)? * c.signum();
            out = ex.add(out, ex.mul(ex.int(c), *t));
        }
        Some(out)
    };
    match simple.then(rounded).flatten() {
        Some(e) => e,
        None => ex.mul(ex.ceildiv(e, ex.int(ALIGN)), ex.int(ALIGN)),
    }
}

/// Lives of the arena's buffers, with results put in place of operands where that is right. An error when a step reads what
/// nothing wrote before: such a plan would give numbers that mean nothing.
fn blocks(plan: &Plan, places: &[Place]) -> Result<Vec<Block>> {
    let loops = &plan.loops;
    let n = loops.buffers.len();
    let mut from = vec![usize::MAX; n];
    let mut to = vec![0usize; n];
    let uses: Vec<(Bufs, Bufs)> = (plan.steps.iter())
        .map(|step| (step.reads(), step.writes()))
        .collect();
    let mut written: Vec<bool> = (loops.buffers.iter())
        .map(|b| b.kind != BufferKind::Temp)
        .collect();
    let at_load = plan.load_steps.iter().flat_map(|s| s.writes());
    at_load.for_each(|b| written[loops.storage(b).index()] = true);
    for (k, (reads, writes)) in uses.iter().enumerate() {
        let of = |b: &BufId| loops.storage(*b).index();
        writes.iter().for_each(|b| written[of(b)] = true);
        if let Some(b) = reads.iter().find(|b| !written[of(b)]) {
            let name = &loops.buffer(*b).name;
            let e = format!("step {k} reads {b} `{name}`, which nothing has written");
            return Err(Error::internal(e));
        }
        for b in reads.iter().chain(writes) {
            let b = of(b);
            from[b] = from[b].min(k);
            to[b] = to[b].max(k);
        }
    }
    let aliased = aliased(loops);
    let mut block_of: Vec<Option<usize>> = vec![None; n];
    let mut blocks: Vec<Block> = Vec::new();
    for (k, (step, (reads, writes))) in plan.steps.iter().zip(&uses).enumerate() {
        for b in writes {
            let b = loops.storage(*b);
            let i = b.index();
            if places[i] != Place::Unused || from[i] != k || block_of[i].is_some() {
                continue;
            }
            let bytes = bytes(loops, b);
            let reuse = reads.iter().copied().find(|old| {
                let o = old.index();
                block_of[o].is_some_and(|x| blocks[x].bytes == bytes && blocks[x].to == k)
                    && to[o] == k
                    && from[o] < k
                    && !aliased[o]
                    && !aliased[i]
                    && in_place(loops, step, *old, b)
            });
            if let Some(x) = reuse.and_then(|old| block_of[old.index()]) {
                blocks[x].bufs.push(b);
                blocks[x].to = to[i];
                block_of[i] = Some(x);
                continue;
            }
            block_of[i] = Some(blocks.len());
            blocks.push(Block {
                bufs: vec![b],
                bytes,
                size: loops.exprs.hint(bytes),
                from: k,
                to: to[i],
            });
        }
    }
    Ok(blocks)
}

/// Buffers whose storage is reached through another one.
fn aliased(loops: &Loops) -> Vec<bool> {
    let mut out = vec![false; loops.buffers.len()];
    for b in &loops.buffers {
        if let BufferKind::Alias { of } = b.kind {
            out[loops.storage(of).index()] = true;
        }
    }
    out
}

/// Returns true if a step may write `new` over `old`: it reads `old` for the last time at the very point, in the very loop
/// iteration, where it writes `new`; or, in an earlier body, at the same outer point.
fn in_place(loops: &Loops, step: &Step, old: BufId, new: BufId) -> bool {
    let (a, b) = (loops.buffer(old), loops.buffer(new));
    if a.dtype.size() != b.dtype.size() {
        return false;
    }
    let group = match step {
        Step::Contraction(c) => {
            if c.a.buf == old || c.b.buf == old {
                return false;
            }
            None
        }
        // A library function may write its results before it has read its inputs.
        Step::Library(_) => return false,
        // Programs of other rows read queries, keys and values meanwhile.
        Step::Attention(_) => return false,
        Step::Kernel(g) => Some(g),
    };
    let bodies = step.bodies();
    let writes = |k: usize| bodies[k].writes().contains(&new);
    let Some(first) = (0..bodies.len()).find(|k| writes(*k)) else {
        return false;
    };
    // One plain store, whose place the loads must share, and which they must come before.
    let mut store = None;
    let stores = |s: &Stmt| matches!(s, Stmt::Store { buf, .. } if *buf == new);
    let stored = bodies[first].stmts.iter().position(stores);
    for s in bodies.iter().flat_map(|b| &b.stmts) {
        match s {
            Stmt::Store {
                buf, coords, mask, ..
            } if *buf == new => {
                if store.is_some() || mask.is_some() {
                    return false;
                }
                store = position(&loops.exprs, &loops.buffers, new, coords);
            }
            Stmt::Store { buf, .. } if *buf == old => return false,
            Stmt::Load { buf, .. } if *buf == new => return false,
            _ => {}
        }
    }
    let Some(store) = store else { return false };
    let lane_loop = bodies[first].is_reduction();
    for (k, body) in bodies.iter().enumerate() {
        for (at, s) in body.stmts.iter().enumerate() {
            let Stmt::Load { buf, coords, .. } = s else {
                continue;
            };
            if *buf != old {
                continue;
            }
            let ok = match k.cmp(&first) {
                // A reduction reads ahead of a store that follows it.
                std::cmp::Ordering::Equal => {
                    let before = stored.is_some_and(|s| at < s);
                    let place = || position(&loops.exprs, &loops.buffers, old, coords);
                    !lane_loop && before && place() == Some(store)
                }
                std::cmp::Ordering::Less => {
                    group.is_some_and(|g| same_point(loops, g, old, coords, new, bodies))
                }
                std::cmp::Ordering::Greater => false,
            };
            if !ok {
                return false;
            }
        }
    }
    true
}

/// Returns true if the elements of `old` that a body reads at an outer point are those that another body writes of `new` at that
/// point: the layouts are equal, and each outer axis indexes one dimension alone, the same in both.
fn same_point(
    loops: &Loops,
    g: &Group,
    old: BufId,
    coords: &[Expr],
    new: BufId,
    bodies: &[inrush_loops::Body],
) -> bool {
    let (a, b) = (loops.buffer(old), loops.buffer(new));
    if a.sizes != b.sizes || a.layout != b.layout {
        return false;
    }
    let stores = bodies
        .iter()
        .flat_map(|b| &b.stmts)
        .filter_map(|s| match s {
            Stmt::Store { buf, coords, .. } if *buf == new => Some(coords),
            _ => None,
        });
    let ex = &loops.exprs;
    let outer: Vec<_> = g.axes.iter().map(|a| a.sym).collect();
    let mut all = true;
    for at in stores {
        // Every outer axis longer than one must show, in dimensions that hold outer axes only and are equal.
        let mut shown = Vec::new();
        for (x, y) in coords.iter().zip(at) {
            let syms = ex.free_syms(*y);
            let pure = syms.iter().all(|s| outer.contains(s) || !ex.is_index(*s));
            if x == y && pure {
                shown.extend(syms);
            }
        }
        all &= g
            .axes
            .iter()
            .all(|a| shown.contains(&a.sym) || ex.is_int(a.size, 1));
    }
    all
}

/// Blocks by when they live, so that few are looked at for each.
#[derive(Default)]
struct Placed {
    /// By stretch of [`Placed::STEPS`] steps: the blocks that live in it.
    stretches: Vec<Vec<usize>>,
    /// Blocks that live through many stretches.
    long: Vec<usize>,
}

impl Placed {
    /// Steps of a stretch.
    const STEPS: usize = 16;
    /// Stretches from which on a block is kept in the list of long ones.
    const MANY: usize = 64;

    /// Returns the stretches that a block's life touches.
    fn stretches_of(block: &Block) -> std::ops::RangeInclusive<usize> {
        block.from / Self::STEPS..=block.to / Self::STEPS
    }

    /// Adds a block to the stretches of its life.
    fn insert(&mut self, k: usize, block: &Block) {
        let range = Self::stretches_of(block);
        if range.end() - range.start() > Self::MANY {
            self.long.push(k);
            return;
        }
        if self.stretches.len() <= *range.end() {
            self.stretches.resize_with(range.end() + 1, Vec::new);
        }
        range.for_each(|s| self.stretches[s].push(k));
    }

    /// Every block that may live together with this one, ascending.
    fn during(&self, block: &Block) -> Vec<usize> {
        let mut out = self.long.clone();
        for s in Self::stretches_of(block) {
            out.extend(self.stretches.get(s).into_iter().flatten());
        }
        out.sort_unstable();
        out.dedup();
        out
    }
}

/// Offsets: blocks from the largest down, each at the lowest place where it is proved apart from all that live with it.
fn pack(ex: &Exprs, blocks: &[Block]) -> Vec<Expr> {
    let mut order: Vec<usize> = (0..blocks.len()).collect();
    order.sort_by_key(|k| (std::cmp::Reverse(blocks[*k].size), blocks[*k].from, *k));
    let mut offsets: Vec<Option<Expr>> = vec![None; blocks.len()];
    let mut placed = Placed::default();
    for k in order {
        let block = &blocks[k];
        // Ranges taken by blocks that live at the same time.
        let taken: Vec<(Expr, Expr)> = placed
            .during(block)
            .into_iter()
            .map(|k| (&blocks[k], offsets[k]))
            .filter(|(b, _)| b.from <= block.to && block.from <= b.to)
            .filter_map(|(b, o)| Some((o?, ex.add(o?, b.bytes))))
            .collect();
        placed.insert(k, block);
        // Disjoint from each range for every value of the symbols; what cannot be proved counts as
        // an overlap.
        let free = |at: Expr| {
            let end = ex.add(at, block.bytes);
            taken
                .iter()
                .all(|(lo, hi)| le(ex, end, *lo) || le(ex, *hi, at))
        };
        let mut candidates: Vec<Expr> = vec![ex.int(0)];
        // The lowest free place is at the start or at the end of some range.
        candidates.extend(taken.iter().map(|t| t.1));
        candidates.sort_by_key(|c| ex.hint(*c));
        candidates.dedup();
        let at = candidates.into_iter().find(|c| free(*c));
        // After everything, when nothing in between is proved free.
        let at = at.unwrap_or_else(|| taken.iter().fold(ex.int(0), |m, t| ex.max(m, t.1)));
        offsets[k] = Some(at);
    }
    offsets
        .into_iter()
        .map(|o| o.unwrap_or_else(|| ex.int(0)))
        .collect()
}

/// `a <= b`, with a short way for constants.
fn le(ex: &Exprs, a: Expr, b: Expr) -> bool {
    match (ex.as_int(a), ex.as_int(b)) {
        (Some(a), Some(b)) => a <= b,
        _ => ex.prove_le(a, b),
    }
}
