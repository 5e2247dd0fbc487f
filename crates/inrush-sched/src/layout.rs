//! Layouts: strides of every temporary; stage layout: the order and number of loops.
//!
//! Contractions say what they like: operands with the innermost summed axis contiguous, results with the columns contiguous
//! (channels last, for convolutions). Kernels in between follow what they read, as does what only long sums with few results
//! read on CPUs: gradients of filters read images along their channels. Outputs, inputs and weights are as given.
//!
//! A *wish* is an order of dimensions, outermost first. The first wish of a buffer stands: results
//! of contractions, then their operands. A buffer without a wish follows the largest operand of the
//! body that writes it, so that an order spreads along chains of pointwise bodies; without one it
//! is row-major.

use inrush_base::{Caps, Result};
use inrush_expr::{Expr, Exprs, Sym};
use inrush_loops::{
    Axis, Body, BufId, Buffer, BufferKind, Contraction, Coords, Layout, Loops, Node, Stmt,
};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::parallel::par_map;
use crate::{Group, Options, Plan, Step, loop_order};

/// Chooses the layout of every buffer that has none, from what the nodes do. Fusion looks at it: one outer point of a kernel
/// should be a contiguous run.
pub(crate) fn choose(loops: &mut Loops, nodes: &[Node], caps: &Caps) {
    let mut wishes: Vec<Option<Order>> = vec![None; loops.buffers.len()];
    let contractions = || {
        nodes.iter().filter_map(|n| match n {
            Node::Contraction(c) => Some(c),
            Node::Body(_) | Node::Library(_) | Node::Attention(_) => None,
        })
    };
    // What a contraction writes, then what it reads; the first wish of a buffer stands.
    for c in contractions() {
        for (buf, coords, stores) in accesses(&c.epilogue) {
            if stores {
                wish(loops, &mut wishes, buf, coords, &c.epilogue.axes);
            }
        }
    }
    let mut long: FxHashMap<BufId, &Contraction> = FxHashMap::default();
    for c in contractions() {
        let order: Vec<Axis> = (c.batch.iter().chain(&c.m).chain(&c.k)).copied().collect();
        let before = wishes[c.a.buf.index()].is_some();
        wish(loops, &mut wishes, c.a.buf, &c.a.coords, &order);
        if caps.gpu.is_none() && !before && sums_long(&loops.exprs, c) {
            long.insert(c.a.buf, c);
        }
        for (buf, coords, stores) in accesses(&c.epilogue) {
            if !stores {
                wish(loops, &mut wishes, buf, coords, &c.epilogue.axes);
            }
        }
    }
    for b in 0..loops.buffers.len() {
        let given = loops.buffers[b].kind != BufferKind::Temp;
        if given && loops.buffers[b].layout.is_none() {
            row_major(loops, BufId::from_index(b));
        }
    }
    for node in nodes {
        let body = node.body();
        for (buf, coords, stores) in accesses(body) {
            if !stores || loops.buffer(buf).layout.is_some() {
                continue;
            }
            let wished = wishes[buf.index()].take();
            let along = |c: &&Contraction| {
                let order = follow(loops, body, coords)?;
                along_rows(loops, c, *order.last()?).then_some(order)
            };
            // Long sums with few results first: the engine takes such an operand as its producer
            // would store it.
            let order = (long.get(&buf).and_then(along))
                .or(wished)
                .or_else(|| follow(loops, body, coords));
            match order {
                Some(order) => set(loops, buf, order),
                None => row_major(loops, buf),
            }
        }
    }
    // Buffers that nothing writes any more.
    for b in 0..loops.buffers.len() {
        if loops.buffers[b].layout.is_none() {
            row_major(loops, BufId::from_index(b));
        }
    }
}

/// Most results of a long sum that the engine computes without packing operands that are contiguous along rows and columns; the
/// second for products without windows; the third is the fewest products of each.
const FEW_RESULTS: i64 = 1 << 16;
const FEW_PLAIN_RESULTS: i64 = 3 << 10;
const LONG: i64 = 256;

/// Returns true if there are many products to few results.
fn sums_long(ex: &Exprs, c: &Contraction) -> bool {
    let extent =
        |axes: &[Axis]| (axes.iter()).fold(1i64, |p, a| p.saturating_mul(ex.hint(a.size).max(0)));
    let along = |at: &Expr, axes: &[Axis]| axes.iter().any(|a| ex.contains_sym(*at, a.sym));
    let windows = (c.a.coords.iter()).any(|at| along(at, &c.m) && along(at, &c.k));
    let few = if windows {
        FEW_RESULTS
    } else {
        FEW_PLAIN_RESULTS
    };
    extent(&c.k) >= LONG && extent(&c.m).saturating_mul(extent(&c.n)) <= few
}

/// Returns true if the engine takes the left operand equally well with its dimension `d` contiguous along rows of the result,
/// because the right one is contiguous along columns.
fn along_rows(loops: &Loops, c: &Contraction, d: usize) -> bool {
    let ex = &loops.exprs;
    let Some(n) = c.n.last() else {
        return false;
    };
    let along = |axes: &[Axis]| axes.iter().any(|a| ex.contains_sym(c.a.coords[d], a.sym));
    let contiguous = |buf: &Buffer| {
        let at = step(ex, &loops.buffers, c.b.buf, &c.b.coords, n.sym);
        buf.layout.is_none() || at.is_some_and(|s| ex.is_int(s, 1))
    };
    along(&c.m) && !along(&c.k) && contiguous(loops.buffer(c.b.buf))
}

/// Dimensions, outermost first.
type Order = SmallVec<[usize; 6]>;

pub(crate) fn row_major(loops: &mut Loops, buf: BufId) {
    let rank = loops.buffer(buf).sizes.len();
    set(loops, buf, 0..rank);
}

/// Arranges the loops of every kernel for the layouts of its buffers.
pub fn layout(plan: &mut Plan, caps: &Caps, options: &Options) -> Result<()> {
    let one_tile = caps.gpu.is_some();
    let Plan {
        loops,
        steps,
        load_steps,
        ..
    } = plan;
    let mut kernels: Vec<&mut Group> = (load_steps.iter_mut().chain(&mut *steps))
        .filter_map(|s| match s {
            Step::Kernel(g) => Some(g),
            Step::Contraction(_) | Step::Library(_) | Step::Attention(_) => None,
        })
        .collect();
    let groups: Vec<Group> = kernels.iter_mut().map(|g| std::mem::take(*g)).collect();
    let buffers = &loops.buffers;
    let arranged = par_map(
        &loops.exprs,
        groups,
        options.threads,
        |g| g.bodies.iter().map(|b| b.stmts.len()).sum(),
        |ex, g| loop_order::arrange(ex, buffers, g, one_tile),
    );
    for (to, group) in kernels.into_iter().zip(arranged) {
        *to = group;
    }
    if options.fuse {
        crate::prepack::small(loops, steps, load_steps);
    }
    Ok(())
}

/// Accesses of a body: buffer, coordinates, whether it stores.
pub(crate) fn accesses(body: &Body) -> impl Iterator<Item = (BufId, &Coords, bool)> {
    body.stmts.iter().filter_map(|s| match s {
        Stmt::Load { buf, coords, .. } => Some((*buf, coords, false)),
        Stmt::Store { buf, coords, .. } => Some((*buf, coords, true)),
        _ => None,
    })
}

/// Asks for the dimensions of `buf` in the order of the axes (outermost first) that occur in their coordinates, the
/// innermost of several counting.
fn wish(loops: &Loops, wishes: &mut [Option<Order>], buf: BufId, coords: &[Expr], axes: &[Axis]) {
    let b = loops.buffer(buf);
    if b.kind != BufferKind::Temp || b.layout.is_some() || wishes[buf.index()].is_some() {
        return;
    }
    let place = |e: &Expr| {
        let syms = loops.exprs.free_syms(*e);
        axes.iter().rposition(|a| syms.contains(&a.sym))
    };
    // Dimensions without an axis (of size one, or sliced) go outermost.
    let mut order: SmallVec<[(usize, usize); 6]> = coords
        .iter()
        .enumerate()
        .map(|(d, c)| (place(c).map_or(0, |p| p + 1), d))
        .collect();
    order.sort_unstable();
    wishes[buf.index()] = Some(order.into_iter().map(|(_, d)| d).collect());
}

/// Dense strides with the dimensions in this order, outermost first.
pub(crate) fn set(
    loops: &mut Loops,
    buf: BufId,
    order: impl IntoIterator<Item = usize, IntoIter: DoubleEndedIterator>,
) {
    let ex = &loops.exprs;
    let sizes = &loops.buffers[buf.index()].sizes;
    let mut strides = vec![ex.int(1); sizes.len()];
    let mut step = ex.int(1);
    let mut inner = None;
    for d in order.into_iter().rev() {
        if let Some(inner) = inner.replace(d) {
            step = ex.mul(step, sizes[inner]);
        }
        strides[d] = step;
    }
    let offset = ex.int(0);
    loops.buffers[buf.index()].layout = Some(Layout { strides, offset });
}

/// Position in memory of an access, in elements; `None` before its buffer has a layout.
pub(crate) fn position(
    ex: &Exprs,
    buffers: &[Buffer],
    buf: BufId,
    coords: &[Expr],
) -> Option<Expr> {
    let layout = buffers[buf.index()].layout.as_ref()?;
    Some(ex.add(ex.dot(&layout.strides, coords), layout.offset))
}

/// Elements between neighbours along an axis; `None` when the position is not affine in it.
pub(crate) fn stride(ex: &Exprs, position: Expr, axis: Sym) -> Option<Expr> {
    ex.coefficients(position, &[axis]).map(|c| c[0])
}

/// [`stride`] of an access.
pub(crate) fn step(
    ex: &Exprs,
    buffers: &[Buffer],
    buf: BufId,
    coords: &[Expr],
    axis: Sym,
) -> Option<Expr> {
    let layout = buffers[buf.index()].layout.as_ref()?;
    let mut out = ex.int(0);
    for (c, stride) in coords.iter().zip(&layout.strides) {
        // Most coordinates are a symbol or a number: nothing has to be multiplied.
        match ex.as_sym(*c) {
            Some(s) if s == axis => out = ex.add(out, *stride),
            Some(_) => {}
            None if ex.as_int(*c).is_some() => {}
            None => return self::stride(ex, position(ex, buffers, buf, coords)?, axis),
        }
    }
    Some(out)
}

/// Stride of the one dimension that an axis moves along, if not by equal steps, as through windows of different sizes.
fn about(ex: &Exprs, buffers: &[Buffer], buf: BufId, coords: &[Expr], axis: Sym) -> Option<Expr> {
    let layout = buffers[buf.index()].layout.as_ref()?;
    let mut moved =
        (coords.iter().zip(&layout.strides)).filter(|(c, _)| ex.free_syms(**c).contains(&axis));
    let (_, stride) = moved.next()?;
    moved.next().is_none().then_some(*stride)
}

/// Returns true if strides do not grow from one dimension to the next, and none is zero.
fn falls(ex: &Exprs, strides: &[Expr]) -> bool {
    let mut last = i64::MAX;
    strides.iter().all(|k| {
        let step = ex.hint(*k).saturating_abs();
        step != 0 && step <= std::mem::replace(&mut last, step)
    })
}

/// The order of a result's dimensions that follows the largest operand of the body.
fn follow(loops: &Loops, body: &Body, store: &[Expr]) -> Option<Order> {
    let ex = &loops.exprs;
    // The axis of each dimension of the result; dimensions of size one have none.
    let mut dims: SmallVec<[(usize, Option<Sym>); 6]> = SmallVec::new();
    for (d, c) in store.iter().enumerate() {
        if let Some(s) = ex.as_sym(*c).filter(|s| ex.is_index(*s)) {
            dims.push((d, Some(s)));
            continue;
        }
        let mut syms = ex.free_syms(*c);
        syms.retain(|s| ex.is_index(*s));
        match syms.as_slice() {
            [] => dims.push((d, None)),
            [s] => dims.push((d, Some(*s))),
            _ => return None,
        }
    }
    // Where each dimension is an axis of its own, who reads at the same coordinates moves along it by its own stride.
    let plain = |&(d, axis): &(usize, Option<Sym>)| {
        let s = axis.filter(|s| ex.as_sym(store[d]) == Some(*s));
        s.is_some_and(|s| dims[..d].iter().all(|(_, t)| *t != Some(s)))
    };
    let plain = dims.iter().all(plain);
    let elements = |b: BufId| {
        loops
            .buffer(b)
            .sizes
            .iter()
            .fold(1i64, |p, s| p.saturating_mul(ex.hint(*s).max(0)))
    };
    let mut best: Option<(i64, Order)> = None;
    for (buf, coords, stores) in accesses(body) {
        if stores {
            continue;
        }
        let size = elements(buf);
        if best.as_ref().is_some_and(|(b, _)| *b >= size) {
            continue;
        }
        let moves =
            |d: usize, k: Expr| (!ex.is_int(k, 0)).then(|| (d, ex.hint(k).saturating_abs()));
        let strides: Option<SmallVec<[(usize, i64); 6]>> = match &loops.buffer(buf).layout {
            // Most lie row by row.
            Some(layout) if plain && coords.as_slice() == store && falls(ex, &layout.strides) => {
                best = Some((size, (0..store.len()).collect()));
                continue;
            }
            Some(layout) if plain && coords.as_slice() == store => {
                let own = layout.strides.iter().enumerate();
                own.map(|(d, k)| moves(d, *k)).collect()
            }
            _ => {
                let along = |(d, axis): &(usize, Option<Sym>)| match axis {
                    None => Some((*d, i64::MAX)),
                    Some(s) => {
                        let exact = step(ex, &loops.buffers, buf, coords, *s);
                        let about = || about(ex, &loops.buffers, buf, coords, *s);
                        moves(*d, exact.or_else(about)?)
                    }
                };
                dims.iter().map(along).collect()
            }
        };
        let Some(mut strides) = strides else { continue };
        strides.sort_by_key(|(_, s)| std::cmp::Reverse(*s));
        best = Some((size, strides.into_iter().map(|(d, _)| d).collect()));
    }
    best.map(|(_, order)| order)
}
