//! Layouts: strides of every temporary; stage layout: the order and number of loops.
//!
//! Contractions say what they like: operands with the innermost summed axis contiguous, results with the columns contiguous
//! (channels last, for convolutions). Kernels in between follow what they read. Outputs, inputs and weights are as given.

use inrush_base::{Caps, Result};
use inrush_expr::{Expr, Exprs, Sym};
use inrush_loops::{Axis, Body, BufId, Buffer, BufferKind, Coords, Layout, Loops, Node, Stmt};
use smallvec::SmallVec;

use crate::beside::beside;
use crate::{Group, Options, Plan, Step, axes};

/// Chooses the layout of every buffer that has none, from what the nodes do. Fusion looks at it: one outer point of a kernel
/// should be a contiguous run.
pub(crate) fn choose(loops: &mut Loops, nodes: &[Node]) {
    let mut wishes: Vec<Option<Order>> = vec![None; loops.buffers.len()];
    let contractions = || {
        nodes.iter().filter_map(|n| match n {
            Node::Contraction(c) => Some(c),
            Node::Body(_) => None,
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
    for c in contractions() {
        let order: Vec<Axis> = (c.batch.iter().chain(&c.m).chain(&c.k)).copied().collect();
        wish(loops, &mut wishes, c.a.buf, &c.a.coords, &order);
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
            match wishes[buf.index()]
                .take()
                .or_else(|| follow(loops, body, coords))
            {
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

/// Dimensions, outermost first.
type Order = SmallVec<[usize; 6]>;

pub(crate) fn row_major(loops: &mut Loops, buf: BufId) {
    let rank = loops.buffer(buf).sizes.len();
    set(loops, buf, 0..rank);
}

/// Arranges the loops of every kernel for the layouts of its buffers.
pub fn layout(plan: &mut Plan, caps: &Caps, options: &Options) -> Result<()> {
    let _ = caps;
    let Plan {
        loops,
        steps,
        load_steps,
        ..
    } = plan;
    let mut kernels: Vec<&mut Group> = (load_steps.iter_mut().chain(&mut *steps))
        .filter_map(|s| match s {
            Step::Kernel(g) => Some(g),
            Step::Contraction(_) => None,
        })
        .collect();
    let groups: Vec<Group> = kernels.iter_mut().map(|g| std::mem::take(*g)).collect();
    let buffers = &loops.buffers;
    let arranged = beside(
        &loops.exprs,
        groups,
        options.threads,
        |g| g.bodies.iter().map(|b| b.stmts.len()).sum(),
        |ex, g| axes::arrange(ex, buffers, g),
    );
    for (to, group) in kernels.into_iter().zip(arranged) {
        *to = group;
    }
    if options.fuse {
        crate::relayout::small(loops, steps, load_steps);
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

/// Whether no dimension is stepped along in longer strides than the one before, and none in no stride at all.
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
