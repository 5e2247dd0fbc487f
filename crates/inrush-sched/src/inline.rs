//! Inlining: a pointwise producer's body in place of the loads of its result.
//!
//! First every producer is judged, in order, by numbers alone; then each body that stays is built once, pulling in what was
//! chosen. So the work is linear in the program, whatever the lengths of chains.

use inrush_base::Result;
use inrush_expr::{Expr, Exprs};
use inrush_loops::{
    Axis, Body, BufId, Buffer, BufferKind, Coords, Loops, MATH_OPS, Node, Origins, Stmt, StmtId,
    StoreMode, scalar::OpClass,
};
use rustc_hash::{FxBuildHasher, FxHashMap};
use smallvec::SmallVec;
use std::hash::BuildHasher;

use crate::access::{Radices, covers, inverse, invertible};
use crate::beside::beside;
use crate::deps::Deps;
use crate::emit::{Builder, Load, Splice};
use crate::fold::at_load;
use crate::{Form, Options, Reason, Refusal};

/// How a node's single result is read back: what inlining needs to know.
struct Inverse {
    buf: BufId,
    dims: Radices,
}

/// What is known about a node before anything is built. Counts include what was inlined into it.
struct Info {
    /// Iterations, at the hints, and exactly.
    points: i64,
    exact: Expr,
    ops: i64,
    loads: i64,
    stmts: usize,
    pointwise: bool,
    /// `Ok` when its result can be computed elsewhere.
    /// Of a reduction there is none to speak of: `Err(None)`.
    inverse: Result<Inverse, Option<Reason>>,
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

/// Inlines, and drops what nobody reads any more. In `tiles` of a GPU a short buffer is read once for each tile, whatever the
/// order of axes.
pub(crate) fn inline(
    loops: &mut Loops,
    options: &Options,
    tiles: bool,
    refusals: &mut Vec<Refusal>,
) {
    let nodes = std::mem::take(&mut loops.nodes);
    let deps = Deps::new(loops, &nodes);
    let weights_only = at_load(loops, &nodes, &deps);
    let mut infos: Vec<Info> = Vec::with_capacity(nodes.len());
    let mut uses: Vec<SmallVec<[Use; 2]>> = crate::deps::lists(loops.buffers.len());
    let mut operand_of = vec![false; loops.buffers.len()];
    for (k, node) in nodes.iter().enumerate() {
        collect_uses(loops, k, node, &mut uses, &mut operand_of);
    }
    for (k, node) in nodes.iter().enumerate() {
        infos.push(info(loops, k, node, &deps, weights_only[k]));
    }
    // Which node writes a buffer, when exactly one does.
    let writer = |b: BufId| match deps.writers[b.index()].as_slice() {
        [w] => Some(*w as usize),
        _ => None,
    };
    let judge = Judge {
        loops,
        nodes: &nodes,
        deps: &deps,
        uses: &uses,
        operand_of: &operand_of,
        options,
        tiles,
    };
    for k in 0..nodes.len() {
        for b in &deps.reads[k] {
            let Some(w) = writer(*b).filter(|w| *w < k) else {
                continue;
            };
            let from = infos[w].depth + !infos[w].inlined as u32;
            infos[k].depth = infos[k].depth.max(from);
        }
        if infos[k].pointwise {
            infos[k].anchored = judge.anchored(k, &infos);
        }
        match judge.producer(k, &infos) {
            Ok(()) => {
                infos[k].inlined = true;
                let (ops, loads, stmts) = (infos[k].ops, infos[k].loads, infos[k].stmts);
                let rewritten = infos[k].rewritten.clone();
                let Ok(inverse) = &infos[k].inverse else {
                    continue;
                };
                for u in &uses[inverse.buf.index()] {
                    let to = &mut infos[u.node];
                    to.ops += ops;
                    to.loads += loads - 1;
                    to.stmts += stmts;
                    to.rewritten.extend(rewritten.iter().copied());
                }
            }
            Err(Some((consumer, reason))) => refusals.push(Refusal {
                producer: nodes[k].body().origins.first().copied(),
                consumer: consumer.and_then(|c: usize| nodes[c].body().origins.first().copied()),
                reason,
            }),
            Err(None) => {}
        }
    }
    let inlined: Vec<Option<&Inverse>> = infos
        .iter()
        .map(|i| i.inverse.as_ref().ok().filter(|_| i.inlined))
        .collect();
    let mut out = build_all(loops, &nodes, &deps, &inlined, &infos, options.threads);
    let live = crate::deps::live_nodes(loops, &out);
    let mut flags = live.iter();
    out.retain(|_| *flags.next().expect("one per node"));
    loops.nodes = out;
}

/// The nodes that stay, with everything inlined that was chosen. What is the same over other buffers, with all that goes into it,
/// is built once.
fn build_all(
    loops: &Loops,
    nodes: &[Node],
    deps: &Deps,
    inlined: &[Option<&Inverse>],
    infos: &[Info],
    threads: usize,
) -> Vec<Node> {
    let buffers = &loops.buffers;
    let mut alike: FxHashMap<u64, u32> = FxHashMap::default();
    let looks: Vec<u64> = nodes.iter().map(look).collect();
    for (k, look) in looks.iter().enumerate() {
        *alike.entry(*look).or_default() += !infos[k].inlined as u32;
    }
    let mut forms: FxHashMap<Vec<u64>, (usize, Vec<BufId>)> = FxHashMap::default();
    // For what is not built itself, what it is a copy of.
    let mut copies: Vec<Option<Copy>> = Vec::with_capacity(nodes.len());
    for k in 0..nodes.len() {
        if infos[k].inlined || alike[&looks[k]] < 2 {
            copies.push(None);
            continue;
        }
        let form = form(buffers, nodes, deps, inlined, k);
        copies.push(match forms.get(form.words.as_slice()) {
            Some((of, buffers)) => Some(Copy {
                of: *of,
                rename: buffers.iter().copied().zip(form.buffers).collect(),
            }),
            None => {
                forms.insert(form.words, (k, form.buffers));
                None
            }
        });
    }
    let own = |k: &usize| !infos[*k].inlined && copies[*k].is_none();
    let rest: Vec<usize> = (0..nodes.len()).filter(own).collect();
    let built = beside(
        &loops.exprs,
        &rest,
        threads,
        |k| infos[*k].stmts,
        |ex, k| build(ex, buffers, nodes, deps, inlined, *k),
    );
    let mut built = built.into_iter();
    let mut out: Vec<Node> = Vec::with_capacity(nodes.len());
    // Where each node stands now.
    let mut place = vec![0; nodes.len()];
    for (k, copy) in copies.iter().enumerate() {
        if infos[k].inlined {
            continue;
        }
        place[k] = out.len();
        out.extend(match copy {
            Some(copy) => {
                let mut origins = Origins::new();
                collect_origins(nodes, deps, inlined, k, &mut origins);
                let copy = copy.make(&nodes[k], out[place[copy.of]].body(), origins);
                debug_assert_eq!(copy, build(&loops.exprs, buffers, nodes, deps, inlined, k));
                Some(copy)
            }
            None => built.next(),
        });
    }
    out
}

/// A node whose body is that of an earlier one over other buffers.
struct Copy {
    of: usize,
    rename: SmallVec<[(BufId, BufId); 4]>,
}

impl Copy {
    fn make(&self, node: &Node, of: &Body, origins: Origins) -> Node {
        let mut body = of.clone();
        body.origins = origins;
        for stmt in &mut body.stmts {
            if let Stmt::Load { buf, .. } | Stmt::Store { buf, .. } = stmt
                && let Some((_, to)) = self.rename.iter().find(|(from, _)| from == buf)
            {
                *buf = *to;
            }
        }
        node.clone_with(body)
    }
}

/// Nodes of one form look the same.
fn look(node: &Node) -> u64 {
    let body = node.body();
    FxBuildHasher.hash_one((body.stmts.len(), &body.axes))
}

/// What [`build`] sees of a node and of all that goes into it.
fn form(
    buffers: &[Buffer],
    nodes: &[Node],
    deps: &Deps,
    inlined: &[Option<&Inverse>],
    k: usize,
) -> Form {
    let mut f = Form::default();
    f.body(nodes[k].body());
    if let Node::Contraction(c) = &nodes[k] {
        f.add(&c.k);
    }
    let mut at = 0;
    while at < f.buffers.len() {
        let b = f.buffers[at].index();
        f.add(buffers[b].dtype);
        match deps.writers[b].as_slice() {
            [w] if inlined[*w as usize].is_some() => f.body(nodes[*w as usize].body()),
            _ => f.add(0u8),
        }
        at += 1;
    }
    f
}

fn points(loops: &Loops, axes: &[Axis]) -> i64 {
    axes.iter()
        .map(|a| loops.exprs.hint(a.size).max(0))
        .fold(1i64, |a, b| a.saturating_mul(b))
}

/// Registers every load of a node.
fn collect_uses(
    loops: &Loops,
    k: usize,
    node: &Node,
    uses: &mut [SmallVec<[Use; 2]>],
    operand_of: &mut [bool],
) {
    let ex = &loops.exprs;
    let body = node.body();
    let mut syms = Vec::new();
    for stmt in &body.stmts {
        let Stmt::Load { buf, coords, .. } = stmt else {
            continue;
        };
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
        uses[buf.index()].push(Use {
            node: k,
            evals: points(loops, &body.axes[..last]),
        });
    }
    if let Node::Contraction(c) = node {
        operand_of[c.a.buf.index()] = true;
        operand_of[c.b.buf.index()] = true;
    }
}

fn info(loops: &Loops, k: usize, node: &Node, deps: &Deps, at_load: bool) -> Info {
    let ex = &loops.exprs;
    let body = node.body();
    let (mut ops, mut loads) = (0, 0);
    for s in &body.stmts {
        match s {
            Stmt::Op { op, .. } => {
                ops += match op.class() {
                    OpClass::Core => 1,
                    OpClass::Math => MATH_OPS,
                }
            }
            Stmt::Load { .. } => loads += 1,
            _ => {}
        }
    }
    let pointwise = matches!(node, Node::Body(b) if !b.is_reduction());
    Info {
        points: points(loops, &body.axes),
        exact: ex.product(body.axes.iter().map(|a| a.size)),
        ops,
        loads,
        stmts: body.stmts.len(),
        pointwise,
        inverse: inverse_of(loops, k, node, deps),
        depth: 0,
        anchored: false,
        at_load,
        rewritten: (deps.reads[k].iter())
            .filter(|b| deps.rewritten(loops, **b))
            .map(|b| (*b, k))
            .collect(),
        inlined: false,
    }
}

/// How to read the node's result back, or why that does not work.
fn inverse_of(
    loops: &Loops,
    k: usize,
    node: &Node,
    deps: &Deps,
) -> Result<Inverse, Option<Reason>> {
    let body = match node {
        Node::Contraction(_) => return Err(Some(Reason::IsContraction)),
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
    let b = loops.buffer(buf);
    if deps.aliased[buf.index()]
        || deps.writers[buf.index()].len() != 1
        || b.kind != BufferKind::Temp
        || deps.reads[k].contains(&buf)
    {
        return Err(Some(Reason::Overwritten));
    }
    let dims =
        invertible(&loops.exprs, coords, &body.axes).ok_or(Some(Reason::ReadsOtherPoints))?;
    if !covers(&loops.exprs, &dims, &b.sizes) {
        return Err(Some(Reason::ReadsOtherPoints));
    }
    Ok(Inverse { buf, dims })
}

/// The policy.
struct Judge<'a> {
    loops: &'a Loops,
    nodes: &'a [Node],
    deps: &'a Deps,
    uses: &'a [SmallVec<[Use; 2]>],
    operand_of: &'a [bool],
    options: &'a Options,
    tiles: bool,
}

type Verdict = Result<(), Option<(Option<usize>, Reason)>>;

impl Judge<'_> {
    /// Whether a pointwise node should wait for the contraction or reduction that it reads: the latest of what it reads
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
        }
    }

    /// Whether node `k` is inlined into all of its readers. `Err(None)` when nothing was to be decided.
    fn producer(&self, k: usize, infos: &[Info]) -> Verdict {
        let p = &infos[k];
        if matches!(self.nodes[k], Node::Contraction(_)) {
            return Err(None);
        }
        let inverse = match &p.inverse {
            Ok(i) => i,
            Err(reason) => return Err(reason.map(|r| (None, r))),
        };
        let uses = &self.uses[inverse.buf.index()];
        let Some(first) = uses.first() else {
            return Err(None);
        };
        let refuse = |reason| Err(Some((Some(first.node), reason)));
        if self.operand_of[inverse.buf.index()] {
            return refuse(Reason::IsContraction);
        }
        if self.deps.output[inverse.buf.index()] {
            return refuse(Reason::IsOutput);
        }
        let mut evals = 0i64;
        for u in uses {
            let c = &infos[u.node];
            let refuse = |reason| Err(Some((Some(u.node), reason)));
            if matches!(self.nodes[u.node], Node::Contraction(_)) {
                return refuse(Reason::IsContraction);
            }
            // A cheap value of what stays in memory anyway may still be computed where it is reduced.
            let follows = c.exact == p.exact && (c.pointwise || self.duplicable(k, infos));
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
            if p.at_load && !c.at_load && self.worth_folding(k, infos) {
                return refuse(Reason::RunsAtLoad);
            }
            evals = evals.saturating_add(u.evals);
        }
        // A value without loads is an index computation or a constant: only its operations count.
        let work = p.ops.saturating_add(2 * p.loads);
        let apart = p
            .points
            .saturating_mul(work + 4)
            .saturating_add(evals.saturating_mul(2));
        if evals.saturating_mul(work) > apart.saturating_mul(self.options.inline_repeat) {
            return refuse(if uses.len() > 1 {
                Reason::SeveralReaders
            } else {
                Reason::RepeatsWork
            });
        }
        if uses.len() > 1 && !self.duplicable(k, infos) {
            return refuse(Reason::SeveralReaders);
        }
        Ok(())
    }

    /// Whether a result with several readers is so cheap that each may compute it: few operations, and what it loads stays
    /// in memory anyway.
    fn duplicable(&self, k: usize, infos: &[Info]) -> bool {
        let p = &infos[k];
        if p.ops > self.options.inline_ops || p.loads > self.options.inline_loads as i64 {
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
                .all(|u| u.evals.saturating_mul(4) <= p.points);
            let others = uses.iter().any(|u| u.node != k);
            let elements = || {
                let sizes = self.loops.buffer(*b).sizes.iter();
                sizes.fold(1i64, |n, s| n.saturating_mul(self.loops.exprs.hint(*s)))
            };
            let small = small || self.tiles && elements().saturating_mul(4) <= p.points;
            // What was inlined into this node left no loads of its own here; its producer was judged the same way.
            stays || small || others || self.inlined_cheaply(*b, infos)
        })
    }

    fn inlined_cheaply(&self, b: BufId, infos: &[Info]) -> bool {
        match self.deps.writers[b.index()].as_slice() {
            [w] => {
                let w = *w as usize;
                infos[w].inlined
                    && self.deps.reads[w]
                        .iter()
                        .all(|b| !matches!(self.loops.buffer(*b).kind, BufferKind::Temp))
            }
            _ => false,
        }
    }

    /// Whether computing a weights-only result at load pays: it does work, and does not blow up memory.
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
        if sources == 0 {
            return p.ops >= MATH_OPS && p.points <= (1 << 20);
        }
        p.points <= sources.saturating_mul(2) || (p.ops >= MATH_OPS && p.points <= (1 << 20))
    }
}

/// A load of an inlined result.
type Key = (BufId, Coords, Option<StmtId>);

/// Replaces loads of inlined results while a body is built.
struct Inliner<'a> {
    nodes: &'a [Node],
    deps: &'a Deps,
    inlined: &'a [Option<&'a Inverse>],
    /// Results that the body has so far: loads of inlined results, and their values. Few, so this is a list.
    known: Vec<(Key, StmtId)>,
}

impl Splice for Inliner<'_> {
    fn load(&mut self, b: &mut Builder, load: &Load) -> Option<StmtId> {
        let [w] = self.deps.writers[load.buf.index()].as_slice() else {
            return None;
        };
        let w = *w as usize;
        let inverse = self.inlined[w]?;
        let key = (load.buf, load.coords.clone(), load.mask);
        let value = match self.known.iter().find(|(k, _)| *k == key) {
            Some((_, v)) => *v,
            None => {
                let body = self.nodes[w].body();
                let (at, value) = body
                    .ids()
                    .find_map(|s| match body.stmt(s) {
                        Stmt::Store { value, .. } => Some((s, *value)),
                        _ => None,
                    })
                    .expect("an inlined body stores");
                debug_assert!(at.index() < body.stmts.len());
                let map = inverse_map(b, body, inverse, &load.coords);
                let ids = b.splice(body, Some(value), &map, load.mask, self);
                let v = b.through_memory(ids[value.index()], b.buffers[load.buf.index()].dtype);
                self.known.push((key, v));
                v
            }
        };
        Some(b.masked(value, load.mask, load.fill))
    }
}

fn inverse_map(b: &Builder, body: &Body, inv: &Inverse, at: &[Expr]) -> crate::emit::SymMap {
    inverse(b.ex, &inv.dims, &body.axes, at)
}

/// The node with everything inlined that was chosen.
fn build(
    ex: &Exprs,
    buffers: &[Buffer],
    nodes: &[Node],
    deps: &Deps,
    inlined: &[Option<&Inverse>],
    k: usize,
) -> Node {
    let node = &nodes[k];
    let body = node.body();
    let mut b = Builder::new(ex, buffers, body.axes.iter().map(|a| a.sym));
    if let Node::Contraction(c) = node {
        c.k.iter().for_each(|a| b.reserve(a.sym));
    }
    b.will_write(&deps.writes[k]);
    let mut hook = Inliner {
        nodes,
        deps,
        inlined,
        known: Vec::new(),
    };
    b.splice(body, None, &crate::emit::SymMap::default(), None, &mut hook);
    let mut origins = Origins::new();
    collect_origins(nodes, deps, inlined, k, &mut origins);
    let done = b.finish(Body {
        axes: body.axes.clone(),
        outer: body.outer,
        stmts: Vec::new(),
        origins,
    });
    let mut out = node.clone_with(done);
    if let Node::Body(b) = &mut out {
        crate::prepare::unit_axes(ex, b);
    }
    out
}

/// Origins of a body: its own last, producers first.
fn collect_origins(
    nodes: &[Node],
    deps: &Deps,
    inlined: &[Option<&Inverse>],
    k: usize,
    out: &mut Origins,
) {
    for b in &deps.reads[k] {
        if let [w] = deps.writers[b.index()].as_slice()
            && inlined[*w as usize].is_some()
            && out.len() < 64
        {
            collect_origins(nodes, deps, inlined, *w as usize, out);
        }
    }
    for o in &nodes[k].body().origins {
        if !out.contains(o) {
            out.push(*o);
        }
    }
}

trait CloneWith {
    fn clone_with(&self, body: Body) -> Node;
}

impl CloneWith for Node {
    /// The same node with another body.
    fn clone_with(&self, body: Body) -> Node {
        match self {
            Node::Body(_) => Node::Body(body),
            Node::Contraction(c) => Node::Contraction(inrush_loops::Contraction {
                batch: c.batch.clone(),
                m: c.m.clone(),
                n: c.n.clone(),
                k: c.k.clone(),
                a: c.a.clone(),
                b: c.b.clone(),
                dtype: c.dtype,
                epilogue: body,
            }),
        }
    }
}
