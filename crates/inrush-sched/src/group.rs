//! From the members of a fused kernel to its bodies: loops over the same axes become one body, values that a later body
//! would load are forwarded, results without other readers become locals or vanish.
//!
//! ```text
//! members over i, j                       one body, after append
//!   t[i, j] = exp(x[i, j])                  v0 = exp(x[i, j])
//!   y[i, j] = t[i, j] * 2          ->       t[i, j] = v0              dead if nothing else reads t
//!                                           y[i, j] = v0 * 2          forwarded
//! ```
//!
//! Bodies with axes of their own merge if the axes pair up and no statement needs the result of a
//! reduction inside of it ([`one_pass`]). What is left between two bodies of a kernel is a *local*:
//! a buffer that spans one outer point, a value or a row of scratch.

use inrush_expr::{Expr, Exprs, Position, Sym};
use inrush_loops::{
    Axis, Body, BufId, Buffer, BufferKind, Bufs, Coords, Layout, Origins, Phase, Stmt, StmtId,
    StoreMode,
};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::cell::OnceCell;

use crate::layout::accesses;
use crate::mixed_radix::{Digits, corresponding, substitute};
use crate::{Group, Options};
use inrush_expr::SymMap;
use inrush_loops::builder::{Builder, Load, LoadHook, Plain, ordered_reduction, sweep};

/// Hands values that were stored to the loads of them.
struct Forward<'a> {
    buffers: &'a [Buffer],
    /// Stores of the first body: coordinates and value; `None` after a store that is masked or combines. Few, so this is a
    /// list.
    stored: Vec<(BufId, Option<(Coords, StmtId)>)>,
    /// A load at other coordinates than the store's was met: the two bodies cannot share a loop.
    clash: bool,
}

impl<'a> Forward<'a> {
    fn new(buffers: &'a [Buffer]) -> Forward<'a> {
        Forward {
            buffers,
            stored: Vec::new(),
            clash: false,
        }
    }

    /// Notes the stores of a body whose statements have become those of `ids`.
    fn note(&mut self, body: &Body, ids: &[StmtId]) {
        for stmt in &body.stmts {
            if let Stmt::Store {
                buf,
                coords,
                value,
                mode,
                mask,
            } = stmt
            {
                let known = self.stored.iter_mut().find(|s| s.0 == *buf);
                let plain = *mode == StoreMode::Set && mask.is_none() && known.is_none();
                let entry = plain.then(|| (Coords::from_slice(coords), ids[value.index()]));
                match known {
                    Some(known) => known.1 = entry,
                    None => self.stored.push((*buf, entry)),
                }
            }
        }
    }
}

impl LoadHook for Forward<'_> {
    fn load(&mut self, b: &mut Builder, load: &Load) -> Option<StmtId> {
        let (_, stored) = self.stored.iter().find(|s| s.0 == load.buf)?;
        match stored {
            Some((coords, value)) if coords == load.coords => {
                let v = b.through_memory(*value, self.buffers[load.buf.index()].dtype);
                Some(b.masked(v, load.mask, load.fill))
            }
            _ => {
                self.clash = true;
                None
            }
        }
    }
}

/// The body that others are appended to.
pub(crate) struct First<'a> {
    pub body: &'a Body,
    /// How many of its axes are parallel in the result.
    pub outer: usize,
    /// [`append`] gave it: its statements stay as they are.
    pub appended: bool,
}

/// The statements of `first`, then those of `second` with symbols renamed, in one loop over the axes of `first`. `None` when
/// that would not mean the same: `second` reads other points of what `first` writes, or overwrites what it reads elsewhere.
pub(crate) fn append(
    ex: &Exprs,
    buffers: &[Buffer],
    first: First,
    second: &Body,
    rename: &SymMap,
    reserved: impl Iterator<Item = Sym>,
) -> Option<Body> {
    let First {
        body: first,
        outer,
        appended,
    } = first;
    // Overwriting in one loop what the first body reads or writes: only at the same point.
    for stmt in &second.stmts {
        if let Stmt::Store {
            buf, coords, mode, ..
        } = stmt
        {
            let elsewhere = |at: &Coords| {
                let renamed = coords.iter().map(|c| ex.subst(*c, rename));
                *mode != StoreMode::Set || !renamed.eq(at.iter().copied())
            };
            if accesses(first).any(|(t, at, _)| t == *buf && elsewhere(at)) {
                return None;
            }
        }
    }
    let mut b = Builder::new(ex, buffers, first.axes.iter().map(|a| a.sym));
    b.make_room(first.stmts.len() + second.stmts.len());
    reserved.for_each(|s| b.reserve(s));
    b.will_write(&first.writes());
    b.will_write(&second.writes());
    let ids = if appended {
        b.resume(first);
        first.ids().collect()
    } else {
        b.splice(first, None, &SymMap::default(), None, &mut Plain)
    };
    let mut hook = Forward::new(buffers);
    hook.note(first, &ids);
    b.splice(second, None, rename, None, &mut hook);
    if hook.clash {
        return None;
    }
    let mut origins = first.origins.clone();
    for o in &second.origins {
        if !origins.contains(o) {
            origins.push(*o);
        }
    }
    let body = b.finish(Body {
        axes: first.axes.clone(),
        outer,
        stmts: Vec::new(),
        origins,
    });
    one_pass(ex, &body).then_some(body)
}

/// Returns true if no statement needs a reduction's result inside the reduction.
fn one_pass(ex: &Exprs, body: &Body) -> bool {
    if !body.is_reduction() {
        return true;
    }
    let late = late(ex, body);
    if !late.contains(&true) {
        return true;
    }
    let phases = body.phases(ex);
    for (k, stmt) in body.stmts.iter().enumerate() {
        let reduces = matches!(stmt, Stmt::Reduce { .. });
        if !late[k] || (phases[k] != Phase::Inside && !reduces) {
            continue;
        }
        let mut uses = !reduces;
        stmt.each_operand(|o| uses |= late[o.index()]);
        if uses {
            return false;
        }
    }
    true
}

/// A member of a kernel: its body and its symbols of the shared axes.
pub(crate) struct Member<'a> {
    pub body: Body,
    pub shared: &'a [Sym],
}

/// Forms the kernel, still without [`locals`]. `outside` tells whether a buffer is read after the kernel or by another step.
pub(crate) fn group(
    ex: &Exprs,
    buffers: &[Buffer],
    members: Vec<Member>,
    sizes: &[Expr],
    outside: &dyn Fn(BufId) -> bool,
) -> Group {
    let axes: Vec<Axis> = sizes
        .iter()
        .enumerate()
        .map(|(k, size)| Axis {
            sym: ex.index_sym(k as u32, *size),
            size: *size,
        })
        .collect();
    let renamed: Vec<Body> = members
        .into_iter()
        .map(|m| rename_shared(ex, m, &axes))
        .collect();
    let bodies = match pointwise(ex, buffers, &renamed, &axes) {
        Some(one) => vec![one],
        None => {
            let mut bodies: Vec<Merged> = Vec::with_capacity(renamed.len());
            for body in renamed {
                let next = Merged::new(body, false);
                if !merge_into(ex, buffers, &mut bodies, &next, axes.len()) {
                    bodies.push(next);
                }
            }
            bodies.into_iter().map(|m| m.body).collect()
        }
    };
    let mut group = Group {
        axes,
        bodies,
        locals: Vec::new(),
    };
    dead_stores(ex, &mut group.bodies, outside);
    group.bodies.retain(|b| !b.stmts.is_empty());
    group
}

/// The member over the kernel's axes first, then its own in their order, all with symbols of this kernel.
fn rename_shared(ex: &Exprs, m: Member, axes: &[Axis]) -> Body {
    let Member { mut body, shared } = m;
    let mut map = SymMap::default();
    let mut used: SmallVec<[Sym; 12]> = axes.iter().map(|a| a.sym).collect();
    for (old, new) in shared.iter().zip(axes) {
        map.insert(*old, ex.sym_expr(new.sym));
    }
    let mut out = Vec::with_capacity(axes.len() + body.axes.len() - shared.len());
    out.extend_from_slice(axes);
    let mut outer = axes.len();
    let mut fresh = |size: Expr| {
        let sym = (axes.len() as u32..)
            .map(|p| ex.index_sym(p, size))
            .find(|s| !used.contains(s))
            .expect("positions are endless");
        used.push(sym);
        Axis { sym, size }
    };
    for (k, a) in body.axes.iter().enumerate() {
        if shared.contains(&a.sym) {
            continue;
        }
        let new = fresh(a.size);
        outer += (k < body.outer) as usize;
        map.insert(a.sym, ex.sym_expr(new.sym));
        out.push(new);
    }
    let mut next = 0;
    for s in &mut body.stmts {
        if let Stmt::Indirect { sym, size, .. } = s {
            let new = ex.sym_at(Position::Indirect(next), *size);
            next += 1;
            map.insert(*sym, ex.sym_expr(new));
            *sym = new;
        }
    }
    map.retain(|s, e| ex.as_sym(e) != Some(s));
    body.axes = out;
    body.outer = outer;
    substitute(ex, &mut body, &map);
    body
}

/// All bodies as one, when none has axes of its own: what [`append`] gives one by one, in linear time.
fn pointwise(ex: &Exprs, buffers: &[Buffer], bodies: &[Body], axes: &[Axis]) -> Option<Body> {
    if bodies.len() < 2 || bodies.iter().any(|b| b.axes.len() > axes.len()) {
        return None;
    }
    let mut b = Builder::new(ex, buffers, axes.iter().map(|a| a.sym));
    let mut hook = Forward::new(buffers);
    // Where earlier bodies touch each buffer; `None` for more than one place.
    let mut touched: FxHashMap<BufId, Option<Coords>> = FxHashMap::default();
    let mut origins = Origins::new();
    for body in bodies {
        for stmt in &body.stmts {
            if let Stmt::Store {
                buf, coords, mode, ..
            } = stmt
                && let Some(at) = touched.get(buf)
                && (*mode != StoreMode::Set || at.as_ref() != Some(coords))
            {
                return None;
            }
        }
        // Loads before this body's stores may be shared; from here on they are forwarded.
        b.will_write(&body.writes());
        let ids = b.splice(body, None, &SymMap::default(), None, &mut hook);
        if hook.clash {
            return None;
        }
        for stmt in &body.stmts {
            let (Stmt::Load { buf, coords, .. } | Stmt::Store { buf, coords, .. }) = stmt else {
                continue;
            };
            touched
                .entry(*buf)
                .and_modify(|at| {
                    if at.as_ref() != Some(coords) {
                        *at = None;
                    }
                })
                .or_insert_with(|| Some(Coords::from_slice(coords)));
        }
        hook.note(body, &ids);
        for o in &body.origins {
            if !origins.contains(o) {
                origins.push(*o);
            }
        }
    }
    Some(b.finish(Body {
        axes: axes.to_vec(),
        outer: axes.len(),
        stmts: Vec::new(),
        origins,
    }))
}

/// A body of the kernel in the making, and whether [`append`] gave it.
struct Merged {
    body: Body,
    appended: bool,
    /// Of `body`, kept since pairs of bodies are compared often.
    reads: Bufs,
    writes: Bufs,
    /// Buffers that get what its reductions give, or what follows from that; see [`Merged::late`].
    late: OnceCell<Bufs>,
}

impl Merged {
    fn new(body: Body, appended: bool) -> Merged {
        Merged {
            reads: body.reads(),
            writes: body.writes(),
            body,
            appended,
            late: OnceCell::new(),
        }
    }

    fn late(&self, ex: &Exprs) -> &Bufs {
        self.late.get_or_init(|| {
            let body = &self.body;
            let late = late(ex, body);
            let stored = (body.stmts.iter()).filter_map(|s| match s {
                Stmt::Store { buf, value, .. } if late[value.index()] => Some(*buf),
                _ => None,
            });
            stored.collect()
        })
    }
}

/// By statement: it is a reduction's result or follows from one.
fn late(ex: &Exprs, body: &Body) -> Vec<bool> {
    let mut late: Vec<bool> = Vec::with_capacity(body.stmts.len());
    let mut syms: SmallVec<[Sym; 4]> = SmallVec::new();
    for stmt in &body.stmts {
        let mut here = matches!(stmt, Stmt::Reduce { .. });
        stmt.each_operand(|o| here |= late[o.index()]);
        let uses = |e: &Expr| ex.free_syms(*e).iter().any(|s| syms.contains(s));
        here |= !syms.is_empty() && stmt.exprs().iter().any(uses);
        if let (true, Stmt::Indirect { sym, .. }) = (here, stmt) {
            syms.push(*sym);
        }
        late.push(here);
    }
    late
}

/// Returns true if `second`, with the axes from `outer` on as those of a reduction, needs results of `first`'s reductions inside
/// of its own. The two cannot be one loop then (see [`one_pass`]), and building it is not needed to know.
fn waits(ex: &Exprs, first: &Merged, second: &Body, outer: usize) -> bool {
    let stored = first.late(ex);
    let reads = |s: &Stmt| matches!(s, Stmt::Load { buf, .. } if stored.contains(buf));
    if stored.is_empty() || !second.stmts.iter().any(reads) {
        return false;
    }
    let phases = second.phases_from(ex, outer);
    // What `second` reduces itself does not count here.
    let mut needs = vec![false; second.stmts.len()];
    for (k, stmt) in second.stmts.iter().enumerate() {
        let mut uses = false;
        stmt.each_operand(|o| uses |= needs[o.index()]);
        if uses && (phases[k] == Phase::Inside || matches!(stmt, Stmt::Reduce { .. })) {
            return true;
        }
        needs[k] = uses || reads(stmt);
    }
    false
}

/// Tries to put `body` into one of the earlier bodies, from the last to the first that it may move up to.
fn merge_into(
    ex: &Exprs,
    buffers: &[Buffer],
    bodies: &mut [Merged],
    next: &Merged,
    shared: usize,
) -> bool {
    // From the last body back, past those that the new one is independent of.
    for k in (0..bodies.len()).rev() {
        if let Some(merged) = merge_two(ex, buffers, &bodies[k], next, shared) {
            bodies[k] = Merged::new(merged, true);
            return true;
        }
        if conflict(&bodies[k], next) {
            return false;
        }
    }
    false
}

/// Returns true if the order of two bodies matters.
fn conflict(a: &Merged, b: &Merged) -> bool {
    let mut used = b.reads.iter().chain(&b.writes);
    used.any(|x| a.writes.contains(x)) || a.reads.iter().any(|x| b.writes.contains(x))
}

/// `b` after `a` in one loop nest.
fn merge_two(
    ex: &Exprs,
    buffers: &[Buffer],
    earlier: &Merged,
    next: &Merged,
    shared: usize,
) -> Option<Body> {
    let (a, b) = (&earlier.body, &next.body);
    let first = |outer: usize| First {
        body: a,
        outer,
        appended: earlier.appended,
    };
    let inner_a = &a.axes[shared..];
    let inner_b = &b.axes[shared..];
    let none = std::iter::empty();
    if inner_b.is_empty() {
        // Values of one outer point: beside others of that kind, or after the reductions that they need.
        let parallel_inside = a.outer > shared;
        if parallel_inside || (!inner_a.is_empty() && !conflict(earlier, next)) {
            return None;
        }
        return append(ex, buffers, first(a.outer), b, &SymMap::default(), none);
    }
    // Loops merge one to one.
    if inner_a.len() != inner_b.len() {
        return None;
    }
    // A reduction's axes may run along with the parallel axes of a body that is parallel throughout.
    let classes = (a.outer - shared, b.outer - shared, inner_a.len());
    // Axes of a body without a reduction may become reduced ones of the pair: it runs at each of
    // their points.
    let all_parallel = |outer: usize| outer == inner_a.len();
    let (outer, mixed) = match classes {
        (x, y, _) if x == y => (x, false),
        (x, 0, _) if all_parallel(x) => (0, true),
        (0, y, _) if all_parallel(y) => (0, true),
        _ => return None,
    };
    let pairs = inner_pairs(ex, a, b, shared)?;
    if mixed || outer < inner_a.len() {
        // Reductions that count positions keep their order of axes.
        let in_order = pairs
            .iter()
            .zip(inner_a)
            .zip(inner_b)
            .all(|((p, x), y)| p.0 == x.sym && p.1 == y.sym);
        if !in_order && (ordered_reduction(a) || ordered_reduction(b)) {
            return None;
        }
        // Parallel axes pair with parallel ones.
        if !mixed
            && pairs.iter().any(|(x, y)| {
                let at = |axes: &[Axis], s: &Sym| axes.iter().position(|a| a.sym == *s);
                (at(inner_a, x) < Some(outer)) != (at(inner_b, y) < Some(outer))
            })
        {
            return None;
        }
    }
    let rename: SymMap = pairs
        .iter()
        .filter(|(x, y)| x != y)
        .map(|(x, y)| (*y, ex.sym_expr(*x)))
        .collect();
    // A scan's statements see the point they are at; mixing keeps that only with its own loop order.
    let build = || append(ex, buffers, first(shared + outer), b, &rename, none.clone());
    if outer < inner_a.len() && waits(ex, earlier, b, shared + outer) {
        debug_assert!(build().is_none(), "nothing in these bodies waits");
        return None;
    }
    build()
}

/// Which inner axis of `b` runs along with which of `a`, in the order of `a`'s: told by what both touch, else by extents.
fn inner_pairs(ex: &Exprs, a: &Body, b: &Body, shared: usize) -> Option<Vec<(Sym, Sym)>> {
    let (inner_a, inner_b) = (&a.axes[shared..], &b.axes[shared..]);
    let mut found: Vec<Option<Sym>> = vec![None; inner_a.len()];
    for (buf, at, _) in accesses(a) {
        for (_, to, _) in accesses(b).filter(|(x, ..)| *x == buf) {
            for (x, y) in at.iter().zip(to) {
                let Digits::Same(pairs) = corresponding(ex, (*x, &a.axes), (*y, &b.axes)) else {
                    continue;
                };
                for (p, q) in pairs {
                    if let Some(k) = inner_a.iter().position(|z| z.sym == p)
                        && inner_b.iter().any(|z| z.sym == q)
                        && found[k].is_none()
                        && !found.contains(&Some(q))
                    {
                        found[k] = Some(q);
                    }
                }
            }
        }
    }
    for (k, x) in inner_a.iter().enumerate() {
        if found[k].is_none() {
            found[k] = inner_b
                .iter()
                .find(|y| ex.prove_eq(x.size, y.size) && !found.contains(&Some(y.sym)))
                .map(|y| y.sym);
        }
    }
    inner_a
        .iter()
        .zip(found)
        .map(|(x, y)| {
            let y = y?;
            let size = inner_b.iter().find(|z| z.sym == y)?.size;
            ex.prove_eq(size, x.size).then_some((x.sym, y))
        })
        .collect()
}

/// Removes stores into buffers that no body and no other step reads.
pub(crate) fn dead_stores(ex: &Exprs, bodies: &mut [Body], outside: &dyn Fn(BufId) -> bool) {
    let mut read: Vec<BufId> = Vec::new();
    loop {
        // Removing a store may leave loads without a use, and their stores dead in turn.
        read.clear();
        for s in bodies.iter().flat_map(|b| &b.stmts) {
            if let Stmt::Load { buf, .. } = s
                && !read.contains(buf)
            {
                read.push(*buf);
            }
        }
        let mut changed = false;
        for body in bodies.iter_mut() {
            let mut dead = false;
            for s in &mut body.stmts {
                if matches!(s, Stmt::Store { buf, .. } if !read.contains(buf) && !outside(*buf)) {
                    // Nothing refers to a store: a constant in its place is swept away.
                    *s = Stmt::Const {
                        value: inrush_base::Scalar::Int(0),
                        dtype: inrush_base::DType::I64,
                    };
                    dead = true;
                }
            }
            if dead {
                changed = true;
                sweep(ex, body);
            }
        }
        if !changed {
            return;
        }
    }
}

/// A kernel, and what becomes of the buffers that are its [`Group::locals`].
pub(crate) struct Formed {
    pub group: Group,
    pub locals: Vec<Local>,
}

/// A buffer that spans one outer point.
pub(crate) struct Local {
    pub buf: BufId,
    pub sizes: Vec<Expr>,
    pub layout: Layout,
}

/// Makes buffers that live within one outer point locals: sizes and coordinates of one point only.
pub(crate) fn locals(
    ex: &Exprs,
    buffers: &[Buffer],
    mut group: Group,
    outside: &dyn Fn(BufId) -> bool,
    options: &Options,
) -> Formed {
    // Where each of them is accessed, in the order in which they are first written.
    let mut found: Vec<(BufId, Places)> = Vec::new();
    for b in &group.bodies {
        for w in b.writes() {
            if buffers[w.index()].kind == BufferKind::Temp
                && !outside(w)
                && !found.iter().any(|f| f.0 == w)
            {
                found.push((w, Places::new()));
            }
        }
    }
    let mut locals = Vec::with_capacity(found.len());
    if found.is_empty() {
        return Formed { group, locals };
    }
    for (at, b) in group.bodies.iter().enumerate() {
        for (k, stmt) in b.stmts.iter().enumerate() {
            if let Stmt::Load { buf, .. } | Stmt::Store { buf, .. } = stmt
                && let Some((_, places)) = found.iter_mut().find(|f| f.0 == *buf)
            {
                places.push((at, k));
            }
        }
    }
    let mut room = options.local_bytes;
    for (buf, places) in found {
        let buffer = &buffers[buf.index()];
        if let Some((sizes, bytes)) = localise(ex, buffer, &mut group, &places, room) {
            room -= bytes;
            group.locals.push(buf);
            let (strides, offset) = (ex.contiguous_strides(&sizes), ex.int(0));
            let layout = Layout { strides, offset };
            locals.push(Local { buf, sizes, layout });
        }
    }
    Formed { group, locals }
}

/// Accesses of a buffer: body and statement.
type Places = SmallVec<[(usize, usize); 4]>;

/// Rewrites the accesses of a buffer to span one outer point, if every dimension is either all outer or all inner, and the
/// bytes of one point fit into `room`. Gives the sizes of one point, and its bytes.
fn localise(
    ex: &Exprs,
    buffer: &Buffer,
    group: &mut Group,
    places: &[(usize, usize)],
    room: i64,
) -> Option<(Vec<Expr>, i64)> {
    let is_outer = |s: &Sym| group.axes.iter().any(|a| a.sym == *s);
    let of = |e: &Expr| -> (bool, bool) {
        let syms = ex.free_syms(*e);
        (
            syms.iter().any(is_outer),
            syms.iter().any(|s| ex.is_index(*s) && !is_outer(s)),
        )
    };
    let rank = buffer.sizes.len();
    let coords = |place: &(usize, usize)| group.bodies[place.0].stmts[place.1].exprs();
    // A dimension is dropped when it is the same function of the outer point in every access.
    let mut keep: SmallVec<[bool; 8]> = SmallVec::from_elem(true, rank);
    for (d, keep) in keep.iter_mut().enumerate() {
        let first = coords(&places[0])[d];
        // The dimension is an outer index in all accesses, or an own one in all; a mixture has no
        // place in one point.
        let (has_outer, has_inner) = of(&first);
        if !has_inner && places.iter().all(|p| coords(p)[d] == first) {
            *keep = false;
        } else if has_outer || places.iter().any(|p| of(&coords(p)[d]).0) {
            return None;
        }
    }
    // What is dropped must name the outer point, or there is one point only.
    let sizes: Vec<Expr> = (0..rank)
        .filter(|d| keep[*d])
        .map(|d| buffer.sizes[d])
        .collect();
    // By the upper bounds of sizes, so that one point fits at every call.
    let elements = sizes
        .iter()
        .try_fold(1i64, |p, s| p.checked_mul(ex.range(*s).hi.max(0)))?;
    let bytes = elements.checked_mul(buffer.dtype.size() as i64)?;
    if bytes > room {
        return None;
    }
    for (body, stmt) in places {
        let stmt = &mut group.bodies[*body].stmts[*stmt];
        if let Stmt::Load { coords, .. } | Stmt::Store { coords, .. } = stmt {
            let mut d = 0;
            coords.retain(|_| {
                d += 1;
                keep[d - 1]
            });
        }
    }
    Some((sizes, bytes))
}
