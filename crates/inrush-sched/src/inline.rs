//! Inlining: a pointwise producer's body in place of the loads of its result.
//!
//! First every producer is judged, in order, by numbers alone; then each body that stays is built once, pulling in what was
//! chosen. So the work is linear in the program, whatever the lengths of chains.
//!
//! ```text
//! t[i, j] = exp(x[i, j])
//! y[k] = t[k // 64, k % 64] + 1    ->    y[k] = exp(x[k // 64, k % 64]) + 1
//! ```
//!
//! A producer is inlined into all of its readers, or not at all: a result that one of them still
//! loads has to be written anyway. It must be pointwise, with one plain store that covers its
//! buffer and can be inverted ([`invertible`]), so that the element at any coordinates can be
//! computed where it is read.
//!
//! The policy compares costs in operations. Inlined, the producer's work is done once for each
//! evaluation of a load of it. Apart, it is done once for each element, which is also stored and
//! loaded again. Nodes that a contraction or reduction which they read could take along
//! ([`Info::anchored`]) wait for fusion.

use inrush_base::both;
use inrush_expr::Expr;
use inrush_loops::{
    Axis, BufId, BufferKind, Coords, Loops, MATH_OPS, Node, Stmt, StmtId, StoreMode,
    scalar::OpClass,
};
use smallvec::SmallVec;

use crate::dedup::Classes;
use crate::deps::{Deps, Uses, drop_dead};
use crate::fold_weights::at_load;
use crate::mixed_radix::{Radices, covers, invertible};
use crate::split::has_few_rows;
use crate::{Options, Reason, Refusal};

mod build;

use build::Inlining;

/// Nodes from which on two threads look at them.
const MANY: usize = 1024;

/// Elements along one dimension that interpolation reads.
const MOST_TAPS: i64 = 4;

/// Readers that evaluate a value equally often and count: as many as there are of a run of equal blocks that stands for a longer one.
const MOST_ALIKE: usize = 4;

/// Elements of a result whose kernel takes a GPU no longer than its launch.
const LAUNCH_BOUND: i64 = 1 << 16;

/// Evaluations in a kernel of a GPU that is bound by memory, which take less time than a launch.
const HIDDEN_EVALS: i64 = 1 << 24;

/// A load is evaluated for few of a body's points where it is for one in this many, at most.
const FEW: i64 = 4;

/// Facts that hold for all nodes of a class.
struct Kind {
    /// Iterations, at the hints, and exactly.
    points: i64,
    exact: Expr,
    ops: i64,
    stmts: usize,
    /// It is no contraction and reduces nothing.
    pointwise: bool,
    /// It reads elements by computed indices.
    indirect: bool,
    /// Loads: the place of the buffer among those of the node, and evaluations.
    loads: SmallVec<[(u32, i64); 4]>,
    result: Result<Single, Option<Reason>>,
}

/// The single result of a pointwise node.
struct Single {
    /// The place of its buffer among those of the node.
    buf: u32,
    /// How it is read back, where that works.
    dims: Option<Radices>,
    /// The dimensions cover a buffer of these sizes.
    covered: Vec<Expr>,
}

/// Facts about a node before anything is built. Counts include what was inlined into it.
struct Info {
    /// Iterations, at the hints, and exactly.
    points: i64,
    exact: Expr,
    /// As in [`Kind`], with those of all that was inlined so far.
    ops: i64,
    loads: i64,
    /// Loads that change along the innermost axes. Of the others, those of a channel's mean, say, there are few.
    wide: i64,
    stmts: usize,
    pointwise: bool,
    indirect: bool,
    /// The buffer of its result, when that can be computed elsewhere.
    /// Of a reduction there is none to speak of: `Err(None)`.
    result: Result<BufId, Option<Reason>>,
    /// Longest chain of nodes that stay before it.
    depth: u32,
    /// Result that is computed by a contraction or reduction over this node's domain: fusing with that comes first.
    anchored: bool,
    /// Can run when weights are loaded.
    at_load: bool,
    /// Buffers read, by this node or what was inlined into it, that some node overwrites; and the first node that reads.
    rewritten: SmallVec<[(BufId, usize); 1]>,
    inlined: bool,
}

/// A load of a producer's result.
struct Use {
    node: usize,
    /// Evaluations that the load stands for, at the hints.
    evals: i64,
}

/// Inlines producers, and drops those that have no reader left. In `tiles` of a GPU a short buffer is read once for each tile, whatever the
/// order of axes; their number is how many programs run at a time. `node_uses` are those of the nodes as they are.
pub(crate) fn inline(
    loops: &mut Loops,
    node_uses: Uses,
    options: &Options,
    tiles: Option<i64>,
    refusals: &mut Vec<Refusal>,
) {
    let nodes = std::mem::take(&mut loops.nodes);
    let dependencies = || {
        let deps = Deps::of(loops, node_uses);
        let weights_only = at_load(loops, &nodes, &deps);
        (deps, weights_only)
    };
    let classes = || Classes::new(&nodes);
    let ((deps, weights_only), classes) = match nodes.len() {
        0..MANY => (dependencies(), classes()),
        _ => both(dependencies, classes),
    };
    let kinds: Vec<Kind> = (classes.firsts())
        .map(|k| kind(loops, &nodes[k], classes.buffers(k)))
        .collect();
    let mut infos: Vec<Info> = Vec::with_capacity(nodes.len());
    let mut uses: Vec<SmallVec<[Use; 2]>> = crate::deps::lists(loops.buffers.len());
    let mut operand_of = vec![false; loops.buffers.len()];
    for (k, node) in nodes.iter().enumerate() {
        let (kind, buffers) = (&kinds[classes.of(k)], classes.buffers(k));
        for (buf, evals) in &kind.loads {
            uses[buffers[*buf as usize].index()].push(Use {
                node: k,
                evals: *evals,
            });
        }
        if let Node::Contraction(c) = node {
            operand_of[c.a.buf.index()] = true;
            operand_of[c.b.buf.index()] = true;
        }
        if let Node::Attention(a) = node {
            (a.accesses()).for_each(|x| operand_of[x.buf.index()] = true);
        }
        if let Node::Library(c) = node {
            (c.inputs.iter()).for_each(|b| operand_of[b.index()] = true);
        }
        infos.push(info(loops, k, kind, buffers, &deps, weights_only[k]));
    }
    let judge = Judge {
        loops,
        nodes: &nodes,
        deps: &deps,
        uses: &uses,
        operand_of: &operand_of,
        scores: &scores_points(loops, &nodes, &deps),
        options,
        tiles,
    };
    judge.all(&mut infos, refusals);
    let inlined: Vec<Option<&Radices>> = (infos.iter().enumerate())
        .map(|(k, i)| match &kinds[classes.of(k)].result {
            Ok(single) if i.inlined => single.dims.as_ref(),
            _ => None,
        })
        .collect();
    let inlining = Inlining {
        buffers: &loops.buffers,
        deps: &deps,
        classes: &classes,
        inlined: &inlined,
    };
    let weight = |k: usize| infos[k].stmts;
    let mut out = inlining.build_all(&loops.exprs, nodes, weight, options.threads);
    drop_dead(loops, &mut out);
    loops.nodes = out;
}

/// By node: how many scores a head has, for attentions and for what nothing but their scores is computed from.
fn scores_points(loops: &Loops, nodes: &[Node], deps: &Deps) -> Vec<Option<i64>> {
    let mut out: Vec<Option<i64>> = vec![None; nodes.len()];
    if !nodes.iter().any(|n| matches!(n, Node::Attention(_))) {
        return out;
    }
    for (k, node) in nodes.iter().enumerate().rev() {
        out[k] = match node {
            Node::Attention(a) => Some(points(loops, &[a.m, a.k])),
            Node::Body(_) => (deps.writes[k].iter()).try_fold(0, |most, b| {
                let readers = &deps.readers[b.index()];
                let read = !readers.is_empty() && !deps.output[b.index()];
                let of = |r: &u32| out[*r as usize].filter(|_| read);
                readers
                    .iter()
                    .try_fold(most, |most: i64, r| Some(most.max(of(r)?)))
            }),
            Node::Contraction(_) | Node::Library(_) => None,
        }
        .filter(|n| *n > 0);
    }
    out
}

/// Multiplies the extents of axes, at the hints.
fn points(loops: &Loops, axes: &[Axis]) -> i64 {
    axes.iter()
        .map(|a| loops.exprs.hint(a.size).max(0))
        .fold(1i64, |a, b| a.saturating_mul(b))
}

/// Returns the facts of a node that hold for its whole class.
fn kind(loops: &Loops, node: &Node, buffers: &[BufId]) -> Kind {
    let ex = &loops.exprs;
    let body = node.body();
    let place = |b: BufId| {
        let at = buffers.iter().position(|x| *x == b);
        at.expect("the list has all buffers of the body") as u32
    };
    let (mut ops, mut loads) = (0, SmallVec::new());
    let mut syms = Vec::new();
    // Equal loads are one: simplification merges them, and what is read twice at a point is computed once.
    let mut seen: SmallVec<[(BufId, &Coords, Option<StmtId>); 4]> = SmallVec::new();
    for s in &body.stmts {
        match s {
            Stmt::Op { op, .. } => {
                ops += match op.class() {
                    OpClass::Core => 1,
                    OpClass::Math => MATH_OPS,
                }
            }
            Stmt::Load {
                buf, coords, mask, ..
            } => {
                let load = (*buf, coords, *mask);
                if seen.contains(&load) {
                    continue;
                }
                seen.push(load);
                // A value that does not change along the innermost axes is computed once for all of them.
                syms.clear();
                coords.iter().for_each(|c| ex.collect_syms(*c, &mut syms));
                let foreign = syms
                    .iter()
                    .any(|s| ex.is_index(*s) && !body.axes.iter().any(|a| a.sym == *s));
                let last = match body.axes.iter().rposition(|a| syms.contains(&a.sym)) {
                    _ if foreign => body.axes.len(),
                    Some(p) => p + 1,
                    None => 0,
                };
                loads.push((place(*buf), points(loops, &body.axes[..last])));
            }
            _ => {}
        }
    }
    Kind {
        points: points(loops, &body.axes),
        exact: ex.product(body.axes.iter().map(|a| a.size)),
        ops,
        stmts: body.stmts.len(),
        pointwise: matches!(node, Node::Body(b) if !b.is_reduction()),
        indirect: (body.stmts.iter()).any(|s| matches!(s, Stmt::Indirect { .. })),
        loads,
        result: single(loops, node).map(|(buf, dims)| {
            let sizes = &loops.buffer(buf).sizes;
            let dims = dims.filter(|d| covers(ex, d, sizes));
            let covered = dims.iter().flat_map(|_| sizes).copied().collect();
            Single {
                buf: place(buf),
                dims,
                covered,
            }
        }),
    }
}

/// The buffer of a pointwise node's single result, and how that is read back.
fn single(loops: &Loops, node: &Node) -> Result<(BufId, Option<Radices>), Option<Reason>> {
    let body = match node {
        Node::Contraction(_) => return Err(Some(Reason::IsContraction)),
        Node::Library(_) => return Err(Some(Reason::IsLibraryCall)),
        Node::Attention(_) => return Err(Some(Reason::IsAttention)),
        Node::Body(b) if b.is_reduction() => return Err(None),
        Node::Body(b) => b,
    };
    let mut stores = body.stmts.iter().filter_map(|s| match s {
        Stmt::Store {
            buf,
            coords,
            mode,
            mask,
            ..
        } => Some((*buf, coords, *mode, *mask)),
        _ => None,
    });
    let (Some((buf, coords, StoreMode::Set, None)), None) = (stores.next(), stores.next()) else {
        return Err(Some(Reason::SeveralResults));
    };
    Ok((buf, invertible(&loops.exprs, coords, &body.axes)))
}

/// Returns the facts of a node: those of its class, and what depends on its buffers.
fn info(
    loops: &Loops,
    k: usize,
    kind: &Kind,
    buffers: &[BufId],
    deps: &Deps,
    at_load: bool,
) -> Info {
    let mut rewritten = SmallVec::new();
    for b in &deps.reads[k] {
        if deps.rewritten(loops, *b) {
            rewritten.push((*b, k));
        }
    }
    Info {
        points: kind.points,
        exact: kind.exact,
        ops: kind.ops,
        loads: kind.loads.len() as i64,
        wide: (kind.loads.iter())
            .filter(|(_, evals)| evals.saturating_mul(FEW) > kind.points)
            .count() as i64,
        stmts: kind.stmts,
        pointwise: kind.pointwise,
        indirect: kind.indirect,
        result: match &kind.result {
            Ok(single) => readable(loops, k, single, buffers[single.buf as usize], deps),
            Err(reason) => Err(*reason),
        },
        depth: 0,
        anchored: false,
        at_load,
        rewritten,
        inlined: false,
    }
}

/// The buffer, if its element at any place can be computed where it is read.
fn readable(
    loops: &Loops,
    k: usize,
    single: &Single,
    buf: BufId,
    deps: &Deps,
) -> Result<BufId, Option<Reason>> {
    let b = loops.buffer(buf);
    if deps.aliased[buf.index()]
        || deps.writers[buf.index()].len() != 1
        || b.kind != BufferKind::Temp
        || deps.reads[k].contains(&buf)
    {
        return Err(Some(Reason::Overwritten));
    }
    let covers = |dims| single.covered == b.sizes || covers(&loops.exprs, dims, &b.sizes);
    match &single.dims {
        Some(dims) if covers(dims) => Ok(buf),
        _ => Err(Some(Reason::ReadsOtherPoints)),
    }
}

/// The policy.
struct Judge<'a> {
    loops: &'a Loops,
    nodes: &'a [Node],
    deps: &'a Deps,
    /// By buffer: loads of it, in the order of nodes.
    uses: &'a [SmallVec<[Use; 2]>],
    /// By buffer: a contraction reads it as an operand, from memory.
    operand_of: &'a [bool],
    /// By node: see [`scores_points`].
    scores: &'a [Option<i64>],
    options: &'a Options,
    /// Programs of a GPU that run at a time; `None` on CPUs.
    tiles: Option<i64>,
}

/// The result to compute where it is read, or why not and for whom.
type Verdict = Result<BufId, Option<(Option<usize>, Reason)>>;

impl Judge<'_> {
    /// Judges every producer, in order: what is inlined into a reader counts for that reader's own verdict.
    fn all(&self, infos: &mut [Info], refusals: &mut Vec<Refusal>) {
        let first = |k: usize| self.nodes[k].body().origins.first().copied();
        for k in 0..self.nodes.len() {
            infos[k].depth = self.depth(k, infos);
            if infos[k].pointwise {
                infos[k].anchored = self.anchored(k, infos);
            }
            match self.producer(k, infos) {
                Ok(buf) => self.count_in_readers(k, buf, infos),
                Err(Some((consumer, reason))) => refusals.push(Refusal {
                    producer: first(k),
                    consumer: consumer.and_then(first),
                    reason,
                }),
                Err(None) => {}
            }
        }
    }

    /// Returns the length of the longest chain of nodes that stay before node `k`.
    fn depth(&self, k: usize, infos: &[Info]) -> u32 {
        let mut depth = infos[k].depth;
        for b in &self.deps.reads[k] {
            // A buffer that several nodes write orders nothing here.
            let [w] = self.deps.writers[b.index()].as_slice() else {
                continue;
            };
            let w = *w as usize;
            if w < k {
                depth = depth.max(infos[w].depth + !infos[w].inlined as u32);
            }
        }
        depth
    }

    /// Marks node `k` as inlined and adds its counts to those of the readers of its result.
    fn count_in_readers(&self, k: usize, buf: BufId, infos: &mut [Info]) {
        infos[k].inlined = true;
        let (ops, stmts) = (infos[k].ops, infos[k].stmts);
        let (loads, wide) = (infos[k].loads, infos[k].wide);
        let rewritten = std::mem::take(&mut infos[k].rewritten);
        for u in &self.uses[buf.index()] {
            let to = &mut infos[u.node];
            to.ops += ops;
            // The load itself is gone, and the producer's are there instead.
            to.loads += loads - 1;
            if u.evals.saturating_mul(FEW) > to.points {
                to.wide += wide - 1;
            }
            to.stmts += stmts;
            to.rewritten.extend_from_slice(&rewritten);
        }
    }

    /// Returns true if a pointwise node should wait for the contraction or reduction that it reads: the latest of its operands
    /// is one, and both have the same points, so that it can become part of it.
    fn anchored(&self, k: usize, infos: &[Info]) -> bool {
        let mut latest: Option<(u32, usize)> = None;
        for b in &self.deps.reads[k] {
            let [w] = self.deps.writers[b.index()].as_slice() else {
                continue;
            };
            let w = *w as usize;
            if w >= k {
                continue;
            }
            // An inlined producer passes its own anchor on.
            let depth = infos[w].depth + !infos[w].inlined as u32;
            if latest.is_none_or(|(d, _)| depth >= d) {
                latest = Some((depth, w));
            }
        }
        let Some((_, w)) = latest else { return false };
        match &self.nodes[w] {
            Node::Contraction(c) => {
                self.loops
                    .exprs
                    .product(c.epilogue.axes.iter().map(|a| a.size))
                    == infos[k].exact
            }
            Node::Body(b) if b.is_reduction() => {
                self.loops
                    .exprs
                    .product(b.outer_axes().iter().map(|a| a.size))
                    == infos[k].exact
            }
            Node::Body(_) => infos[w].anchored && infos[w].exact == infos[k].exact,
            Node::Library(_) | Node::Attention(_) => false,
        }
    }

    /// Decides if node `k` is inlined into all of its readers. `Err(None)` when nothing was to be decided.
    fn producer(&self, k: usize, infos: &[Info]) -> Verdict {
        let p = &infos[k];
        if !matches!(self.nodes[k], Node::Body(_)) {
            return Err(None);
        }
        let buf = match p.result {
            Ok(buf) => buf,
            Err(reason) => return Err(reason.map(|r| (None, r))),
        };
        let uses = &self.uses[buf.index()];
        let Some(first) = uses.first() else {
            return Err(None);
        };
        let refuse = |reason| Err(Some((Some(first.node), reason)));
        if self.operand_of[buf.index()] {
            return refuse(Reason::IsContraction);
        }
        if self.deps.output[buf.index()] {
            return refuse(Reason::IsOutput);
        }
        // Kept in memory, a value of each row and key would take as much as the scores, which never reach it.
        let tile = (uses.iter()).all(|u| self.scores[u.node].is_some_and(|n| p.points >= n));
        let mut evals = 0i64;
        let mut alike: SmallVec<[(i64, usize); 4]> = SmallVec::new();
        for u in uses {
            let c = &infos[u.node];
            let refuse = |reason| Err(Some((Some(u.node), reason)));
            if matches!(self.nodes[u.node], Node::Contraction(_)) {
                return refuse(Reason::IsContraction);
            }
            // A cheap value of what stays in memory anyway may still be computed where it is reduced.
            let attends = matches!(self.nodes[u.node], Node::Attention(_));
            let follows =
                c.exact == p.exact && (c.pointwise || attends || self.duplicable(k, infos));
            if p.anchored && !follows {
                return refuse(Reason::FusesWithProducer);
            }
            if c.stmts + p.stmts > self.options.max_stmts
                || c.loads + p.loads > self.options.max_buffers as i64
            {
                return refuse(Reason::TooManyStatements);
            }
            for (b, from) in &p.rewritten {
                if self.deps.written_between(self.loops, *b, *from, u.node) {
                    return refuse(Reason::Overwritten);
                }
            }
            if !tile && p.at_load && !c.at_load && self.worth_folding(k, infos) {
                return refuse(Reason::RunsAtLoad);
            }
            let same = match alike.iter_mut().find(|(evals, _)| *evals == u.evals) {
                Some((_, readers)) => readers,
                None => {
                    alike.push((u.evals, 0));
                    &mut alike.last_mut().expect("it was added").1
                }
            };
            *same += 1;
            // Of a model's equal blocks all read what some of them read: how many there are may not matter.
            if *same <= MOST_ALIKE {
                evals = evals.saturating_add(u.evals);
            }
        }
        // A value without loads is an index computation or a constant: only its operations count.
        let work = p.ops.saturating_add(2 * self.loads(p));
        let apart = p
            .points
            .saturating_mul(work + 4)
            .saturating_add(evals.saturating_mul(2));
        // A reduction that is split has launches of its own: what it reads is rather computed twice than written for it.
        let split = self.tiles.is_some_and(|units| {
            (uses.iter()).any(|u| match &self.nodes[u.node] {
                Node::Body(b) => has_few_rows(self.loops, b, units),
                Node::Contraction(_) | Node::Library(_) | Node::Attention(_) => false,
            })
        });
        let repeat = self.options.inline_repeat.saturating_mul(1 + split as i64);
        // A few elements around a place that is computed, interpolated twice: a GPU finds them in its caches, and the launch
        // and the memory of a result in between would take longer.
        let taps = self.tiles.is_some()
            && p.indirect
            && (uses.iter()).all(|u| {
                let c = &infos[u.node];
                c.indirect && u.evals <= c.points.saturating_mul(MOST_TAPS)
            });
        let hidden = uses.len() == 1 && self.is_hidden(p, &uses[0], infos);
        if !taps && !tile && !hidden && evals.saturating_mul(work) > apart.saturating_mul(repeat) {
            return refuse(if uses.len() > 1 {
                Reason::SeveralReaders
            } else {
                Reason::RepeatsWork
            });
        }
        if uses.len() > 1 && !taps && !tile && !self.cheap(k, infos, split) {
            return refuse(Reason::SeveralReaders);
        }
        Ok(buf)
    }

    /// Returns true if a GPU computes a producer again in less time than a launch of its own takes: a value of each channel, such as
    /// the scale of a batch norm, in a pointwise kernel, which waits for memory.
    fn is_hidden(&self, p: &Info, reader: &Use, infos: &[Info]) -> bool {
        self.tiles.is_some()
            && infos[reader.node].pointwise
            && p.ops <= 2 * MATH_OPS
            && p.points <= LAUNCH_BOUND
            && reader.evals <= HIDDEN_EVALS
    }

    /// Loads that take time. Tiles of a GPU load what is the same for a row once each, too, but few of them are a row.
    fn loads(&self, p: &Info) -> i64 {
        match self.tiles {
            Some(_) => p.loads,
            None => p.wide,
        }
    }

    /// Returns how many loads a GPU may repeat besides [`Options::inline_loads`], where all but one are of values of a row. A
    /// normalisation's distance reads an element, the row's first element and a mean: written for its second reader, it would be
    /// more memory than the elements.
    fn row_loads(&self, p: &Info) -> i64 {
        i64::from(self.tiles.is_some() && p.wide <= 1)
    }

    /// Returns true if a result with several readers is so cheap that each may compute it: few operations, and what it loads stays
    /// in memory anyway.
    fn duplicable(&self, k: usize, infos: &[Info]) -> bool {
        self.cheap(k, infos, false)
    }

    /// As [`Judge::duplicable`]; where launches are `split`, a math function may be computed twice, and what is loaded for each
    /// row once.
    fn cheap(&self, k: usize, infos: &[Info], split: bool) -> bool {
        let p = &infos[k];
        let elements = |b: BufId| {
            let sizes = self.loops.buffer(b).sizes.iter();
            sizes.fold(1i64, |n, s| n.saturating_mul(self.loops.exprs.hint(*s)))
        };
        let short = |b: BufId| elements(b).saturating_mul(4) <= p.points;
        let most = self.options.inline_ops + if split { MATH_OPS } else { 0 };
        let most_loads = self.options.inline_loads as i64 + self.row_loads(p);
        if p.ops > most || self.loads(p) > most_loads {
            return false;
        }
        self.deps.reads[k].iter().all(|b| {
            let stays = !matches!(self.loops.buffer(*b).kind, BufferKind::Temp)
                || self.deps.output[b.index()]
                || self.operand_of[b.index()];
            // Uses stand in the order of nodes.
            let uses = &self.uses[b.index()];
            let first = uses.partition_point(|u| u.node < k);
            let small = (uses[first..].iter())
                .take_while(|u| u.node == k)
                .all(|u| u.evals.saturating_mul(FEW) <= p.points);
            let others = uses.iter().any(|u| u.node != k);
            let small = small || self.tiles.is_some() && short(*b);
            // What was inlined into this node left no loads of its own here; its producer was judged the same way.
            let known = |b| split && (short(b) || self.inlined_cheaply(b, infos, &short));
            stays || small || others || self.inlined_cheaply(*b, infos, &known)
        })
    }

    /// Returns true if a result was computed where it is read, of what stays in memory, or is `short`, anyway.
    fn inlined_cheaply(&self, b: BufId, infos: &[Info], short: &dyn Fn(BufId) -> bool) -> bool {
        match self.deps.writers[b.index()].as_slice() {
            [w] => {
                let w = *w as usize;
                infos[w].inlined
                    && self.deps.reads[w].iter().all(|b| {
                        !matches!(self.loops.buffer(*b).kind, BufferKind::Temp) || short(*b)
                    })
            }
            _ => false,
        }
    }

    /// Returns true if computing a weights-only result at load pays: it does work, and does not blow up memory.
    fn worth_folding(&self, k: usize, infos: &[Info]) -> bool {
        let p = &infos[k];
        if p.ops == 0 {
            return false;
        }
        let sources: i64 = self.deps.reads[k]
            .iter()
            .map(|b| {
                let sizes = &self.loops.buffer(*b).sizes;
                sizes
                    .iter()
                    .map(|s| self.loops.exprs.hint(*s))
                    .fold(1i64, |a, b| a.saturating_mul(b))
            })
            .fold(0i64, |a, b| a.saturating_add(b));
        // Made of nothing: only work that is worth remembering, and not too much memory.
        if sources == 0 {
            return p.ops >= MATH_OPS && p.points <= (1 << 20);
        }
        p.points <= sources.saturating_mul(2) || (p.ops >= MATH_OPS && p.points <= (1 << 20))
    }
}
