//! Fusion: which nodes become one kernel.
//!
//! Nodes are visited in order. A pointwise node first tries to become part of the epilogue of a contraction that it reads,
//! then each node tries to join the kernels of its producers, then kernels that read the same data. What joins must run over
//! the same outer points: axes are matched through the coordinates by which the two touch the same buffers, and split where
//! one side counts them as one and the other as several.
//!
//! A *unit* is a kernel in the making: members, and the sizes of the axes that all of them share.
//! `a` and `b` join if
//!
//! 1. no limit is broken ([`Fuser::misfit`]), and no third unit has to run between them
//!    ([`Dag::merge`]);
//! 2. whatever one reads of the other's results it reads at the point of the shared axes where it
//!    was written. Pairs of accesses to one buffer (edges) tell which axes mean the same
//!    ([`Fuser::align`], [`Fuser::partners`]);
//! 3. enough shared points are left for the threads, and each of them is a contiguous run of memory
//!    ([`Fuser::decide`]).
//!
//! ```text
//! member 0: t[64*i + j] = exp(x[i, j])        shared i, j
//! member 1: s[i] = sum over j of x[i, j]      shared i; member 0 keeps j as an axis of its own
//! member 2: y[k] = t[k] * 2                   k is split into i and j, then joins at i
//! ```
//!
//! Work is near linear: each node looks at its producers and at [`SIBLINGS`] readers of each
//! buffer.

mod epilogue;

use inrush_base::{Caps, Result};
use inrush_expr::{Expr, Exprs, Position, Sym, SymMap};
use inrush_loops::{Axis, Body, BufId, Bufs, Coords, Loops, Node, Stmt};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::dag::Dag;
use crate::deps::Deps;
use crate::mixed_radix::{self, Digits, corresponding};
use crate::{Options, Reason, Refusal};

/// Iterations below which a kernel is too short to be spread over threads.
const SMALL_WORK: i64 = 32 << 10;
/// Iterations of a kernel that may run as a single outer point.
const TINY_WORK: i64 = 2048;
/// How many users of a buffer are looked at one by one.
const SEARCHED: usize = 4;
/// How many earlier readers of a buffer are considered for horizontal fusion.
const SIBLINGS: usize = 3;

/// Symbols of the shared axes.
pub(crate) type Syms = SmallVec<[Sym; 6]>;

/// A fused kernel in the making.
#[derive(Default)]
pub(crate) struct Unit {
    /// Extents of the shared axes, outermost first.
    pub sizes: SmallVec<[Expr; 6]>,
    /// It is led by a contraction, whose epilogue its other members are part of, or is a library call. No kernel joins it.
    pub contraction: bool,
    /// Its members depend on weights alone.
    at_load: bool,
    /// Statements of all members, for the limit.
    stmts: usize,
    /// Ascending.
    buffers: Bufs,
    /// Iterations, at the hints, of the longest member.
    work: i64,
    /// The epilogue is as [`crate::group::append`] gave it.
    appended: bool,
}

/// The outcome: nodes (contractions with their final epilogues) and how they are grouped.
pub(crate) struct Fused {
    pub nodes: Vec<Node>,
    pub units: Vec<Unit>,
    /// By node: its symbols of the axes that its unit shares. Empty for contractions.
    pub shared: Vec<Syms>,
    /// Order of units that merging keeps valid.
    pub dag: Dag,
    /// Of the nodes as they were: what a contraction has absorbed is a member of its unit.
    pub deps: Deps,
}

pub(crate) struct Fuser<'a> {
    loops: &'a Loops,
    caps: &'a Caps,
    options: &'a Options,
    refusals: &'a mut Vec<Refusal>,
    /// Number of axes split so far, to see whether one was.
    splits: usize,
    f: Fused,
}

/// The outcome of an attempt to fuse two units.
#[must_use]
enum Verdict {
    Fused,
    Kept(Reason),
}

/// Pairs of symbols that mean the same index.
type SymPairs = SmallVec<[(Sym, Sym); 6]>;

/// A pair of accesses to one buffer.
struct Edge {
    /// Members of the first and of the second unit.
    a: usize,
    b: usize,
    /// Coordinates of the two accesses.
    at_a: Coords,
    at_b: Coords,
    /// One of the two writes.
    strict: bool,
    /// `b` reads what `a` wrote.
    data: bool,
}

/// Symbols that mean the same index on both sides of an edge.
struct Aligned {
    pairs: SymPairs,
    /// The coordinates correspond in every dimension.
    whole: bool,
}

impl Aligned {
    fn new() -> Aligned {
        Aligned {
            pairs: SmallVec::new(),
            whole: true,
        }
    }
}

/// How a shared axis of one unit appears in another.
#[derive(Copy, Clone, PartialEq)]
enum Partner {
    /// No edge has said anything yet.
    Unknown,
    None,
    /// It means the same as the shared axis at this position.
    Axis(usize),
}

/// Groups the nodes into units, each of which becomes a kernel. `refusals` gets the reasons why
/// not, one after another.
pub(crate) fn fuse(
    loops: &Loops,
    nodes: Vec<Node>,
    deps: Deps,
    at_load: &[bool],
    caps: &Caps,
    options: &Options,
    refusals: &mut Vec<Refusal>,
) -> Result<Fused> {
    let before = (0..nodes.len()).map(|k| deps.before(loops, k)).collect();
    let units = (0..nodes.len())
        .map(|k| unit(loops, &deps, &nodes[k], k, at_load[k]))
        .collect();
    let shared = nodes
        .iter()
        .map(|n| outer(n).iter().map(|a| a.sym).collect())
        .collect();
    let n = nodes.len();
    let mut fuser = Fuser {
        loops,
        caps,
        options,
        refusals,
        splits: 0,
        f: Fused {
            nodes,
            units,
            shared,
            dag: Dag::new(before),
            deps,
        },
    };
    if options.fuse {
        for k in 0..n {
            fuser.visit(k)?;
        }
    }
    Ok(fuser.f)
}

/// The axes that a node may share.
fn outer(n: &Node) -> &[Axis] {
    match n {
        Node::Contraction(_) | Node::Library(_) | Node::Attention(_) => &[],
        Node::Body(body) => body.outer_axes(),
    }
}

/// Makes the unit of a node that is alone.
fn unit(loops: &Loops, deps: &Deps, n: &Node, k: usize, at_load: bool) -> Unit {
    let body = n.body();
    Unit {
        sizes: outer(n).iter().map(|a| a.size).collect(),
        contraction: !matches!(n, Node::Body(_)),
        at_load,
        stmts: body.stmts.len(),
        appended: false,
        buffers: {
            let mut all = Bufs::new();
            add(&mut all, &deps.reads[k]);
            add(&mut all, &deps.writes[k]);
            all
        },
        work: product(&loops.exprs, body.axes.iter()),
    }
}

/// Multiplies extents at the hints.
fn product<'x>(ex: &Exprs, axes: impl Iterator<Item = &'x Axis>) -> i64 {
    axes.fold(1i64, |p, a| p.saturating_mul(ex.hint(a.size).max(0)))
}

impl Fuser<'_> {
    fn ex(&self) -> &Exprs {
        &self.loops.exprs
    }

    fn body(&self, node: usize) -> &Body {
        self.f.nodes[node].body()
    }

    /// Notes a refusal, with the operators of both sides.
    fn refuse(&mut self, producer: usize, consumer: usize, reason: Reason) {
        let origin = |n: usize| self.body(n).origins.first().copied();
        // The last operator of a producer is the one whose result would have stayed out of memory.
        let refusal = Refusal {
            producer: self.body(producer).origins.last().copied(),
            consumer: origin(consumer),
            reason,
        };
        if self.refusals.last() != Some(&refusal) {
            self.refusals.push(refusal);
        }
    }

    /// Tries everything for node `k`: epilogues of contractions that it reads, kernels of its other
    /// producers, constants, readers of the same data.
    fn visit(&mut self, k: usize) -> Result<()> {
        let own = match self.f.nodes[k] {
            Node::Contraction(_) => Some(Reason::IsContraction),
            Node::Library(_) => Some(Reason::IsLibraryCall),
            Node::Attention(_) => Some(Reason::IsAttention),
            Node::Body(_) => None,
        };
        if let Some(reason) = own {
            for p in self.producers(k) {
                self.refuse(p, k, reason);
            }
            return Ok(());
        }
        let producers = self.producers(k);
        for p in producers.iter().rev() {
            let u = self.f.dag.unit_of(*p);
            if !self.f.units[u].contraction {
                continue;
            }
            match self.epilogue(u, k)? {
                Verdict::Fused => return Ok(()),
                Verdict::Kept(reason) => self.refuse(*p, k, reason),
            }
        }
        for p in producers.iter().rev() {
            let (u, own) = (self.f.dag.unit_of(*p), self.f.dag.unit_of(k));
            if u == own || self.f.units[u].contraction {
                continue;
            }
            if let Verdict::Kept(reason) = self.join(u, own, false)? {
                self.refuse(*p, k, reason);
            }
        }
        self.parts(k)?;
        self.siblings(k)
    }

    /// Joins a node that only stores constants with its like just before it: borders of one padded buffer.
    fn parts(&mut self, k: usize) -> Result<()> {
        // Such bodies run over different points, which one program of a GPU cannot.
        if self.caps.gpu.is_some() {
            return Ok(());
        }
        // What reads nothing no contraction has absorbed.
        let fills = |f: &Fused, n: usize| {
            f.deps.reads[n].is_empty()
                && !f.deps.writes[n].is_empty()
                && matches!(f.nodes[n], Node::Body(_))
        };
        if k == 0 || !fills(&self.f, k) || !fills(&self.f, k - 1) {
            return Ok(());
        }
        let (u, own) = (self.f.dag.unit_of(k - 1), self.f.dag.unit_of(k));
        let work = self.f.units[u].work.max(self.f.units[own].work);
        if u != own && work <= SMALL_WORK {
            _ = self.join_tiny(u, own);
        }
        Ok(())
    }

    /// Joins two units to one kernel without shared axes, if limits and order allow.
    fn join_tiny(&mut self, a: usize, b: usize) -> Verdict {
        match self.misfit(a, b) {
            Some(reason) => Verdict::Kept(reason),
            None => self.absorb(a, b, &[], &[]),
        }
    }

    /// Nodes that write what `k` reads, ascending.
    fn producers(&self, k: usize) -> SmallVec<[usize; 8]> {
        let mut out: SmallVec<[usize; 8]> = SmallVec::new();
        for b in &self.f.deps.reads[k] {
            for w in &self.f.deps.writers[b.index()] {
                if (*w as usize) < k && !out.contains(&(*w as usize)) {
                    out.push(*w as usize);
                }
            }
        }
        out.sort_unstable();
        out
    }

    /// Joins `k` with kernels that read the same data over the same domain.
    fn siblings(&mut self, k: usize) -> Result<()> {
        for at in 0..self.f.deps.reads[k].len() {
            let b = self.f.deps.reads[k][at];
            let readers = &self.f.deps.readers[b.index()];
            let at = readers.partition_point(|r| (*r as usize) < k);
            let near: SmallVec<[u32; 4]> = readers[at.saturating_sub(SIBLINGS)..at].into();
            for r in near.into_iter().rev() {
                let (u, own) = (self.f.dag.unit_of(r as usize), self.f.dag.unit_of(k));
                if u != own && !self.f.units[u].contraction {
                    // Siblings that do not fit are no missed fusion worth a word.
                    _ = self.join(u, own, true)?;
                }
            }
        }
        Ok(())
    }

    /// Pairs of accesses of units `a` and `b` that touch one buffer; `None` when storage is shared in another way.
    fn edges(&self, a: usize, b: usize, siblings: bool) -> Option<Vec<Edge>> {
        let mut out = Vec::with_capacity(4);
        let owner = |m: u32, unit: usize| {
            if self.f.units[unit].contraction {
                self.f.dag.members[unit][0]
            } else {
                m
            }
        };
        let (ma, mb) = (&self.f.dag.members[a], &self.f.dag.members[b]);
        // Members of `a` by the buffers that they touch.
        for &n in mb {
            let n_body = self.body(n as usize);
            for (b_buf, at_b, b_writes) in accesses(n_body) {
                // Two views of one storage: coordinates of different buffers cannot be compared.
                if self.f.deps.aliased[b_buf.index()] && self.shares_storage(a, b_buf) {
                    return None;
                }
                let (writers, readers) = (
                    &self.f.deps.writers[b_buf.index()],
                    &self.f.deps.readers[b_buf.index()],
                );
                // Most buffers that one of the units reads are none of the other's.
                let inside = |m: &u32| self.f.dag.unit_of(*m as usize) == a;
                let outside = |list: &[u32]| list.len() <= SEARCHED && !list.iter().any(inside);
                if outside(writers) && (!(b_writes || siblings) || outside(readers)) {
                    continue;
                }
                let mut near: SmallVec<[u32; 4]> = SmallVec::new();
                let mut put = |m: u32| {
                    let m = owner(m, a);
                    if !near.contains(&m) {
                        near.push(m);
                    }
                };
                self.members_among(a, writers, &self.f.deps.writes, b_buf, &mut put);
                if b_writes || siblings {
                    self.members_among(a, readers, &self.f.deps.reads, b_buf, &mut put);
                }
                for m in near {
                    debug_assert!(ma.contains(&m));
                    for (a_buf, at_a, a_writes) in accesses(self.body(m as usize)) {
                        if a_buf == b_buf && (a_writes || b_writes || siblings) {
                            out.push(Edge {
                                a: m as usize,
                                b: n as usize,
                                at_a: Coords::from_slice(at_a),
                                at_b: Coords::from_slice(at_b),
                                strict: a_writes || b_writes,
                                data: a_writes && !b_writes,
                            });
                        }
                    }
                }
            }
        }
        Some(out)
    }

    /// Calls `f` with the members of a unit that touch `buf`: `nodes` do, and `touched` says what each node touches. The
    /// shorter list is searched, since a weight may have readers all over the program.
    fn members_among(
        &self,
        unit: usize,
        nodes: &[u32],
        touched: &[Bufs],
        buf: BufId,
        f: &mut dyn FnMut(u32),
    ) {
        let members = &self.f.dag.members[unit];
        let touches = |m: &&u32| touched[**m as usize].contains(&buf);
        let inside = |m: &&u32| self.f.dag.unit_of(**m as usize) == unit;
        if nodes.len() <= members.len() {
            nodes.iter().filter(inside).for_each(|m| f(*m));
        } else {
            members.iter().filter(touches).for_each(|m| f(*m));
        }
    }

    /// Returns true if unit `a` touches the storage of `b` through another buffer, one of them writing.
    fn shares_storage(&self, a: usize, b: BufId) -> bool {
        let s = self.loops.storage(b);
        self.f.dag.members[a].iter().any(|m| {
            let n = &self.f.nodes[*m as usize];
            n.reads()
                .into_iter()
                .chain(n.writes())
                .any(|x| x != b && self.loops.storage(x) == s)
        })
    }

    /// Symbols that mean the same index on both sides of an edge, splitting axes where needed.
    fn align(&mut self, edges: &mut [Edge], i: usize, may_split: bool) -> Result<Aligned> {
        let mut out = Aligned::new();
        let mut d = 0;
        let mut splits = 0;
        while d < edges[i].at_a.len() {
            let e = &edges[i];
            let (a, b) = (&self.body(e.a).axes, &self.body(e.b).axes);
            let (node, split) = match corresponding(self.ex(), (e.at_a[d], a), (e.at_b[d], b)) {
                Digits::Same(pairs) => {
                    out.pairs.extend_from_slice(&pairs);
                    d += 1;
                    continue;
                }
                // Each split leaves shorter axes. The bound ends the search for certain.
                Digits::SplitFirst(s) if may_split && splits < 8 => (e.a, s),
                Digits::SplitSecond(s) if may_split && splits < 8 => (e.b, s),
                _ => {
                    out.whole = false;
                    d += 1;
                    continue;
                }
            };
            splits += 1;
            self.splits += 1;
            if !self.split(node, &split, edges)? {
                out.whole = false;
                d += 1;
            } else {
                // Earlier dimensions may hold the axis that was split.
                d = 0;
                out = Aligned::new();
            }
        }
        Ok(out)
    }

    /// Splits an axis of a node; a shared axis in every member of its unit. Keeps `edges` up to date.
    fn split(
        &mut self,
        node: usize,
        split: &mixed_radix::Split,
        edges: &mut [Edge],
    ) -> Result<bool> {
        let u = self.f.dag.unit_of(node);
        let place = (self.f.shared[node].iter()).position(|s| *s == split.axis);
        let targets: Vec<(usize, Sym)> = match place {
            Some(at) => self.f.dag.members[u]
                .iter()
                .map(|m| (*m as usize, self.f.shared[*m as usize][at]))
                .collect(),
            None => vec![(node, split.axis)],
        };
        for (n, sym) in &targets {
            match &self.f.nodes[*n] {
                // Columns are the lanes of the epilogue, one axis in memory.
                Node::Contraction(c) if c.n.iter().any(|a| a.sym == *sym) => return Ok(false),
                Node::Body(b)
                    if b.stmts.iter().any(Stmt::is_along_row)
                        && b.reduction_axes().iter().any(|a| a.sym == *sym) =>
                {
                    return Ok(false);
                }
                _ => {}
            }
        }
        for (n, sym) in targets {
            let one = mixed_radix::Split {
                axis: sym,
                sizes: split.sizes.clone(),
            };
            let new = mixed_radix::split_axis(&self.loops.exprs, &mut self.f.nodes[n], &one)?;
            self.f.units[u].appended = false;
            let list = &mut self.f.shared[n];
            if let Some(at) = list.iter().position(|s| *s == sym) {
                list.remove(at);
                list.insert_many(at, new.iter().map(|a| a.sym));
                let sizes = &mut self.f.units[u].sizes;
                if sizes.len() + split.sizes.len() - 1 == list.len() {
                    sizes.remove(at);
                    sizes.insert_many(at, split.sizes.iter().copied());
                }
            }
            // Coordinates in the edges are copies of the node's.
            let ex = &self.loops.exprs;
            let value = new.iter().fold(ex.int(0), |acc, a| {
                ex.add(ex.mul(acc, a.size), ex.sym_expr(a.sym))
            });
            let map = SymMap::from_iter([(sym, value)]);
            for e in edges.iter_mut() {
                if e.a == n {
                    e.at_a.iter_mut().for_each(|c| *c = ex.subst(*c, &map));
                }
                if e.b == n {
                    e.at_b.iter_mut().for_each(|c| *c = ex.subst(*c, &map));
                }
            }
        }
        Ok(true)
    }

    /// Merges unit `b` into the same kernel as unit `a`, if that is right and pays.
    fn join(&mut self, a: usize, b: usize, siblings: bool) -> Result<Verdict> {
        if let Some(reason) = self.misfit(a, b) {
            return Ok(Verdict::Kept(reason));
        }
        let Some(mut edges) = self.edges(a, b, siblings) else {
            return Ok(Verdict::Kept(Reason::Overwritten));
        };
        if edges.is_empty() {
            return Ok(Verdict::Kept(Reason::NotSameDomain));
        }
        // Splitting renames axes, so all edges are split before any is judged.
        let splits = self.splits;
        let mut aligned: SmallVec<[Aligned; 4]> = SmallVec::new();
        for i in 0..edges.len() {
            aligned.push(self.align(&mut edges, i, !siblings)?);
        }
        if self.splits != splits {
            for (i, dims) in aligned.iter_mut().enumerate() {
                *dims = self.align(&mut edges, i, false)?;
            }
        }
        Ok(match self.partners(a, &edges, &aligned) {
            Some(pairs) => self.decide(a, b, &edges, &pairs, siblings),
            None => Verdict::Kept(Reason::ReadsOtherPoints),
        })
    }

    /// Returns the pairs of shared axes of `a` and of another unit that mean the same in all edges; `None` when the other unit
    /// reads what `a` wrote at other points.
    fn partners(
        &self,
        a: usize,
        edges: &[Edge],
        aligned: &[Aligned],
    ) -> Option<SmallVec<[(usize, usize); 6]>> {
        // For each shared axis of `a`, the shared axis of the other unit that means the same.
        let count = self.f.units[a].sizes.len();
        let mut partner: SmallVec<[Partner; 6]> = SmallVec::from_elem(Partner::Unknown, count);
        for (e, same) in edges.iter().zip(aligned) {
            // Some dimension is read at other coordinates than it is written at.
            if e.data && !same.whole {
                return None;
            }
            let (sa, sb) = (&self.f.shared[e.a], &self.f.shared[e.b]);
            let mut mine: SmallVec<[Option<usize>; 6]> = SmallVec::from_elem(None, sa.len());
            for (x, y) in &same.pairs {
                if let (Some(p), Some(q)) = (
                    sa.iter().position(|s| s == x),
                    sb.iter().position(|s| s == y),
                ) && !mine.contains(&Some(q))
                {
                    mine[p] = Some(q);
                }
            }
            for (p, m) in partner.iter_mut().zip(mine) {
                *p = match (*p, m) {
                    (Partner::Unknown, Some(q)) => Partner::Axis(q),
                    // Two reads of one buffer show what corresponds, but demand nothing.
                    (p, _) if !e.strict => p,
                    (Partner::Axis(q), Some(r)) if q == r => Partner::Axis(q),
                    _ => Partner::None,
                };
            }
        }
        let mut pairs: SmallVec<[(usize, usize); 6]> = SmallVec::new();
        for (p, q) in partner.iter().enumerate() {
            if let Partner::Axis(q) = q
                && !pairs.iter().any(|(_, r)| r == q)
            {
                pairs.push((p, *q));
            }
        }
        Some(pairs)
    }

    /// Returns the limit that a fused kernel would break, whatever axes match.
    fn misfit(&self, a: usize, b: usize) -> Option<Reason> {
        let (ua, ub) = (&self.f.units[a], &self.f.units[b]);
        if ua.at_load != ub.at_load {
            return Some(Reason::RunsAtLoad);
        }
        if ua.stmts + ub.stmts > self.options.max_stmts {
            return Some(Reason::TooManyStatements);
        }
        // Seldom are they so many that it matters how many both name.
        let (some, more) = (&ua.buffers, &ub.buffers);
        let most = self.options.max_buffers;
        if some.len() + more.len() > most && both(some, more) > most {
            return Some(Reason::TooManyBuffers);
        }
        None
    }

    /// Decides by policy over the axes that are left, then by the order of kernels.
    fn decide(
        &mut self,
        a: usize,
        b: usize,
        edges: &[Edge],
        pairs: &[(usize, usize)],
        siblings: bool,
    ) -> Verdict {
        let ex = self.ex();
        let (ua, ub) = (&self.f.units[a], &self.f.units[b]);
        let all = pairs.len() == ua.sizes.len() && pairs.len() == ub.sizes.len();
        if siblings && !(all && self.same_inner(edges)) {
            return Verdict::Kept(Reason::NotSameDomain);
        }
        // Points that the joined kernel has to share out.
        let points = pairs
            .iter()
            .fold(1i64, |p, (i, _)| p.saturating_mul(ex.hint(ua.sizes[*i])));
        let work = ua.work.max(ub.work);
        if pairs.is_empty() && !all && work > TINY_WORK {
            return Verdict::Kept(Reason::NotSameDomain);
        }
        let enough = points >= 4 * self.caps.threads as i64 || work <= SMALL_WORK;
        let before = |u: &Unit| {
            u.sizes
                .iter()
                .fold(1i64, |p, s| p.saturating_mul(ex.hint(*s)))
        };
        // A kernel that has few points already loses nothing.
        if !enough && points < before(ua).min(before(ub)) {
            return Verdict::Kept(Reason::TooFewPoints);
        }
        let keep_a: SmallVec<[usize; 6]> = pairs.iter().map(|(i, _)| *i).collect();
        let keep_b: SmallVec<[usize; 6]> = pairs.iter().map(|(_, i)| *i).collect();
        if work > TINY_WORK && !(self.leads(a, &keep_a) && self.leads(b, &keep_b)) {
            return Verdict::Kept(Reason::StridedPoints);
        }
        if self.caps.gpu.is_some() && !self.one_tile((a, &keep_a), (b, &keep_b), edges) {
            return Verdict::Kept(Reason::SeveralTiles);
        }
        self.absorb(a, b, &keep_a, &keep_b)
    }

    /// Returns true if one program of a GPU can run all members: apart from the shared axes each runs over the same tile, and a
    /// value is read at the point of the tile at which it was written.
    fn one_tile(&self, a: (usize, &[usize]), b: (usize, &[usize]), edges: &[Edge]) -> bool {
        let ex = self.ex();
        let mut tile: Option<Expr> = None;
        let mut maps: FxHashMap<u32, SymMap> = FxHashMap::default();
        for (unit, kept) in [a, b] {
            for m in &self.f.dag.members[unit] {
                let shared = &self.f.shared[*m as usize];
                let kept: Vec<Sym> = kept.iter().map(|i| shared[*i]).collect();
                let body = self.body(*m as usize);
                let is_own = |a: &&Axis| !kept.contains(&a.sym) && !ex.is_int(a.size, 1);
                let own: Vec<&Axis> = body.axes.iter().filter(is_own).collect();
                let parallel = body.outer_axes().iter().filter(is_own).count();
                if parallel != 0 && parallel != own.len() {
                    return false;
                }
                if own.len() > 1 && body.stmts.iter().any(Stmt::is_along_row) {
                    return false;
                }
                // Places of the tile count through all own axes; shared axes are called by their number.
                let at = |k, size| ex.sym_expr(ex.sym_at(Position::Fresh(k), size));
                let mut map = SymMap::default();
                for (k, s) in kept.iter().enumerate() {
                    if let Some(axis) = body.axes.iter().find(|a| a.sym == *s) {
                        map.insert(*s, at(1 + k as u32, axis.size));
                    }
                }
                if !own.is_empty() {
                    let size = ex.product(own.iter().map(|a| a.size));
                    if *tile.get_or_insert(size) != size {
                        return false;
                    }
                    let place = at(0, size);
                    let mut stride = ex.int(1);
                    for a in own.iter().rev() {
                        let digit = ex.modulo(ex.floordiv(place, stride), a.size);
                        map.insert(a.sym, digit);
                        stride = ex.mul(stride, a.size);
                    }
                }
                maps.insert(*m, map);
            }
        }
        edges.iter().filter(|e| e.strict).all(|e| {
            let (Some(p), Some(q)) = (maps.get(&(e.a as u32)), maps.get(&(e.b as u32))) else {
                return false;
            };
            let mut pairs = e.at_a.iter().zip(&e.at_b);
            pairs.all(|(x, y)| ex.subst(*x, p) == ex.subst(*y, q))
        })
    }

    /// Makes unit `b` part of unit `a`, which keeps these of the shared axes, unless the order of units forbids it.
    fn absorb(&mut self, a: usize, b: usize, keep_a: &[usize], keep_b: &[usize]) -> Verdict {
        let Some(of_b) = self.f.dag.merge(a, b) else {
            return Verdict::Kept(Reason::WouldCycle);
        };
        let keeps_all = |keep: &[usize], count: usize| keep.iter().copied().eq(0..count);
        // Axes that are not kept become the members' own.
        let gone = std::mem::take(&mut self.f.units[b]);
        if !keeps_all(keep_b, gone.sizes.len()) {
            for m in &of_b {
                let list = &mut self.f.shared[*m as usize];
                *list = keep_b.iter().map(|i| list[*i]).collect();
            }
        }
        let unit = &mut self.f.units[a];
        if !keeps_all(keep_a, unit.sizes.len()) {
            unit.sizes = keep_a.iter().map(|i| unit.sizes[*i]).collect();
            for m in self.f.dag.members[a].iter().filter(|m| !of_b.contains(m)) {
                let list = &mut self.f.shared[*m as usize];
                *list = keep_a.iter().map(|i| list[*i]).collect();
            }
        }
        unit.stmts += gone.stmts;
        add(&mut unit.buffers, &gone.buffers);
        unit.work = unit.work.max(gone.work);
        Verdict::Fused
    }

    /// Siblings pay when they share their whole loop nests.
    fn same_inner(&self, edges: &[Edge]) -> bool {
        let inner = |m: usize| -> SmallVec<[Expr; 4]> {
            let shared = &self.f.shared[m];
            let body = self.body(m);
            body.axes
                .iter()
                .filter(|x| !shared.contains(&x.sym))
                .map(|x| x.size)
                .collect()
        };
        edges.iter().all(|e| inner(e.a) == inner(e.b))
    }

    /// Returns true if one outer point stays a contiguous run of memory with only the axes of `keep` shared: strides along the
    /// other axes are smaller than along those.
    fn leads(&self, u: usize, keep: &[usize]) -> bool {
        let ex = self.ex();
        let unit = &self.f.units[u];
        if keep.len() == unit.sizes.len() {
            return true;
        }
        self.f.dag.members[u].iter().all(|m| {
            let list = &self.f.shared[*m as usize];
            let kept = |s: &Sym| keep.iter().any(|i| list[*i] == *s);
            let demoted = |s: &Sym| list.contains(s) && !kept(s);
            accesses(self.body(*m as usize)).all(|(buf, coords, _)| {
                let Some(layout) = &self.loops.buffer(buf).layout else {
                    return true;
                };
                let mut outer_below = i64::MAX;
                let mut inner_above = 0;
                for (c, stride) in coords.iter().zip(&layout.strides) {
                    let syms = ex.free_syms(*c);
                    let stride = ex.hint(*stride).saturating_abs();
                    if syms.iter().any(kept) {
                        outer_below = outer_below.min(stride);
                    }
                    if syms.iter().any(demoted) {
                        inner_above = inner_above.max(stride);
                    }
                }
                inner_above == 0 || outer_below >= inner_above
            })
        })
    }
}

/// How many buffers two ascending lists name.
fn both(a: &[BufId], b: &[BufId]) -> usize {
    let (mut i, mut j, mut count) = (0, 0, 0);
    while i < a.len() && j < b.len() {
        let order = a[i].cmp(&b[j]);
        i += order.is_le() as usize;
        j += order.is_ge() as usize;
        count += 1;
    }
    count + (a.len() - i) + (b.len() - j)
}

/// Adds ascending buffers to ascending ones.
fn add(to: &mut Bufs, more: &[BufId]) {
    // A node that joins adds few, most of them behind all others.
    for b in more {
        if to.last().is_none_or(|last| last < b) {
            to.push(*b);
        } else if let Err(at) = to.binary_search(b) {
            to.insert(at, *b);
        }
    }
}

/// Buffers that a body touches: coordinates, and whether it writes.
fn accesses(body: &Body) -> impl Iterator<Item = (BufId, &Coords, bool)> {
    body.stmts.iter().filter_map(|s| match s {
        Stmt::Load { buf, coords, .. } => Some((*buf, coords, false)),
        Stmt::Store { buf, coords, .. } => Some((*buf, coords, true)),
        _ => None,
    })
}
