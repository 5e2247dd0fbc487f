//! Padding without copies: the producer of what is padded writes into the middle of the padded buffer, and a small kernel
//! fills the border. Every other reader reads the middle too, so the unpadded buffer is gone.
//!
//! ```text
//! t[i] = f(x[i])                               border: p[0] = 0, p[65] = 0
//! p[j] = t[j - 1] if 1 <= j < 65 else 0   ->   p[i + 1] = f(x[i])
//! y = conv(p); z = g(t)                        y = conv(p); z = g of p[i + 1]
//! ```

use inrush_base::Scalar;
use inrush_expr::{Expr, Exprs};
use inrush_loops::{
    Axis, Body, BufId, BufferKind, Coords, Loops, Node, ScalarOp, Stmt, StmtId, StoreMode,
};
use smallvec::{SmallVec, smallvec};

use crate::deps::Deps;
use crate::mixed_radix::{covers, invertible};

/// A body that copies `from` into `to`, shifted, with a constant around it.
struct Pad {
    from: BufId,
    to: BufId,
    /// Per dimension: elements before the first.
    before: Vec<i64>,
    fill: Scalar,
}

/// Rewrites every padding whose source is a temporary that one node writes.
pub(crate) fn fuse_pads(loops: &mut Loops) {
    if !loops.nodes.iter().any(|n| recognise(loops, n).is_some()) {
        return;
    }
    let nodes = std::mem::take(&mut loops.nodes);
    let deps = Deps::new(loops, &nodes);
    let mut nodes: Vec<Option<Node>> = nodes.into_iter().map(Some).collect();
    // What to put in front of a node.
    let mut borders: Vec<Vec<Node>> = vec![Vec::new(); nodes.len()];
    let mut moved = vec![false; loops.buffers.len()];
    for k in 0..nodes.len() {
        let Some(pad) = nodes[k].as_ref().and_then(|n| recognise(loops, n)) else {
            continue;
        };
        let (from, to) = (pad.from.index(), pad.to.index());
        let plain = |b: usize| {
            loops.buffers[b].kind == BufferKind::Temp
                && loops.buffers[b].layout.is_none()
                && !deps.output[b]
                && !deps.aliased[b]
                && deps.writers[b].len() == 1
        };
        if !plain(from) || !plain(to) || moved[from] {
            continue;
        }
        let writer = deps.writers[from][0] as usize;
        if writer >= k || !writes_all(loops, nodes[writer].as_ref(), pad.from) {
            continue;
        }
        // A producer that loads would write another buffer than those that its own fusions expect: all of them are moved.
        let ends: SmallVec<[usize; 4]> = deps.readers[from]
            .iter()
            .map(|r| *r as usize)
            .chain([writer])
            .filter(|n| *n != k)
            .collect();
        for n in ends {
            if let Some(node) = &mut nodes[n] {
                shift(&loops.exprs, node, &pad);
            }
        }
        borders[writer].extend(border(loops, &pad, nodes[k].as_ref()));
        nodes[k] = None;
        moved[from] = true;
        moved[to] = true;
    }
    for (node, border) in nodes.into_iter().zip(borders) {
        loops.nodes.extend(border);
        loops.nodes.extend(node);
    }
}

/// The body as a padding, if it is nothing else.
fn recognise(loops: &Loops, node: &Node) -> Option<Pad> {
    let ex = &loops.exprs;
    let Node::Body(body) = node else { return None };
    if body.is_reduction() {
        return None;
    }
    let mut load = None;
    let mut store = None;
    for s in &body.stmts {
        match s {
            Stmt::Load {
                buf,
                coords,
                mask,
                fill,
            } if load.is_none() => load = Some((*buf, coords, (*mask)?, *fill)),
            Stmt::Store {
                buf,
                coords,
                value,
                mode: StoreMode::Set,
                mask: None,
            } if store.is_none() => store = Some((*buf, coords, *value)),
            Stmt::Const { .. } | Stmt::Index { .. } | Stmt::Op { .. } => {}
            _ => return None,
        }
    }
    let ((from, at, mask, fill), (to, out, value)) = (load?, store?);
    let stored = matches!(body.stmt(value), Stmt::Load { .. });
    let (a, b) = (loops.buffer(from), loops.buffer(to));
    if !stored || a.dtype != b.dtype || at.len() != out.len() {
        return None;
    }
    // Coordinates: the same axis of both, moved.
    let mut before = Vec::with_capacity(at.len());
    for (d, (x, y)) in at.iter().zip(out).enumerate() {
        let shift = ex.as_int(ex.sub(*y, *x))?;
        let whole = match ex.as_sym(*y) {
            Some(s) => body
                .axes
                .iter()
                .any(|a| a.sym == s && ex.prove_eq(a.size, b.sizes[d])),
            None => ex.is_int(*y, 0) && ex.is_int(b.sizes[d], 1),
        };
        let inside = shift >= 0 && ex.prove_le(ex.add(a.sizes[d], ex.int(shift)), b.sizes[d]);
        if !whole || !inside {
            return None;
        }
        before.push(shift);
    }
    // The mask: exactly that each coordinate is in range.
    let mut low = vec![false; at.len()];
    let mut high = vec![false; at.len()];
    if !in_range(ex, body, mask, at, &a.sizes, &mut low, &mut high) {
        return None;
    }
    let proved = (0..at.len())
        .all(|d| (low[d] || ex.prove_nonneg(at[d])) && (high[d] || ex.prove_lt(at[d], a.sizes[d])));
    proved.then_some(Pad {
        from,
        to,
        before,
        fill,
    })
}

/// Returns true if the mask is a conjunction of bounds of the coordinates only; marks which.
fn in_range(
    ex: &Exprs,
    body: &Body,
    mask: StmtId,
    at: &[Expr],
    sizes: &[Expr],
    low: &mut [bool],
    high: &mut [bool],
) -> bool {
    let Stmt::Op { op, args, .. } = body.stmt(mask) else {
        return false;
    };
    let index = |s: StmtId| match body.stmt(s) {
        Stmt::Index { expr, .. } => Some(*expr),
        Stmt::Const {
            value: Scalar::Int(v),
            ..
        } => Some(ex.int(*v)),
        _ => None,
    };
    match op {
        ScalarOp::And => args
            .iter()
            .all(|a| in_range(ex, body, *a, at, sizes, low, high)),
        ScalarOp::Ge | ScalarOp::Lt => {
            let (Some(x), Some(y)) = (index(args[0]), index(args[1])) else {
                return false;
            };
            let Some(d) = at.iter().position(|c| *c == x) else {
                return false;
            };
            let (flags, bound) = match op {
                ScalarOp::Ge => (low, ex.int(0)),
                _ => (high, sizes[d]),
            };
            flags[d] |= y == bound;
            y == bound
        }
        _ => false,
    }
}

/// Returns true if the node writes every element of `buf`, once, whatever else it does.
fn writes_all(loops: &Loops, node: Option<&Node>, buf: BufId) -> bool {
    let Some(node) = node else { return false };
    let body = node.body();
    let mut stores = body.stmts.iter().filter_map(|s| match s {
        Stmt::Store {
            buf: b,
            coords,
            mode,
            mask,
            ..
        } if *b == buf => Some((coords, *mode, *mask)),
        _ => None,
    });
    let (Some((coords, StoreMode::Set, None)), None) = (stores.next(), stores.next()) else {
        return false;
    };
    let sizes = &loops.buffer(buf).sizes;
    let reads = body.reads().contains(&buf);
    let axes = if body.is_reduction() && !stores_each_point(loops, body, coords) {
        body.outer_axes()
    } else {
        &body.axes[..]
    };
    !reads
        && invertible(&loops.exprs, coords, axes).is_some_and(|d| covers(&loops.exprs, &d, sizes))
}

/// Returns true if a reduction's body stores at the points that it reduces, too.
fn stores_each_point(loops: &Loops, body: &Body, coords: &[Expr]) -> bool {
    let inner = body.reduction_axes();
    coords.iter().any(|c| {
        let syms = loops.exprs.free_syms(*c);
        inner.iter().any(|a| syms.contains(&a.sym))
    })
}

/// Turns accesses of the padded source into accesses of the middle of the padded buffer.
fn shift(ex: &Exprs, node: &mut Node, pad: &Pad) {
    let middle = |coords: &mut Coords| {
        for (c, b) in coords.iter_mut().zip(&pad.before) {
            *c = ex.add(*c, ex.int(*b));
        }
    };
    if let Node::Contraction(c) = node {
        for x in [&mut c.a, &mut c.b] {
            if x.buf == pad.from {
                x.buf = pad.to;
                middle(&mut x.coords);
            }
        }
    }
    for s in &mut node.body_mut().stmts {
        if let Stmt::Load { buf, coords, .. } | Stmt::Store { buf, coords, .. } = s
            && *buf == pad.from
        {
            *buf = pad.to;
            middle(coords);
        }
    }
}

/// Bodies that fill the border: for each padded dimension the runs before and after the middle, over what earlier dimensions
/// have left.
fn border(loops: &Loops, pad: &Pad, node: Option<&Node>) -> Vec<Node> {
    let ex = &loops.exprs;
    let (from, to) = (loops.buffer(pad.from), loops.buffer(pad.to));
    let origins = node.map(|n| n.body().origins.clone()).unwrap_or_default();
    let dtype = to.dtype.compute();
    let mut out = Vec::new();
    // Per dimension: first coordinate and extent that later bodies run over.
    let mut span: Vec<(Expr, Expr)> = to.sizes.iter().map(|n| (ex.int(0), *n)).collect();
    for d in 0..to.sizes.len() {
        let low = ex.int(pad.before[d]);
        let end = ex.add(low, from.sizes[d]);
        let high = ex.sub(to.sizes[d], end);
        let middle = (low, from.sizes[d]);
        // Equal runs on both sides are one body with one more axis.
        let runs: SmallVec<[(Expr, Expr, bool); 2]> = if ex.prove_eq(low, high) {
            smallvec![(ex.int(0), low, true)]
        } else {
            smallvec![(ex.int(0), low, false), (end, high, false)]
        };
        for (start, extent, both) in runs {
            if ex.is_int(extent, 0) {
                continue;
            }
            let mut axes: Vec<Axis> = Vec::new();
            let mut axis = |size: Expr| {
                let sym = ex.index_sym(axes.len() as u32, size);
                axes.push(Axis { sym, size });
                ex.sym_expr(sym)
            };
            let mut coords: Coords = Coords::new();
            for (e, (first, n)) in span.iter().enumerate() {
                if e != d {
                    let i = axis(*n);
                    coords.push(ex.add(*first, i));
                    continue;
                }
                let side = both.then(|| axis(ex.int(2)));
                let i = axis(extent);
                let mut c = ex.add(start, i);
                if let Some(s) = side {
                    c = ex.add(c, ex.mul(s, end));
                }
                coords.push(c);
            }
            let mut body = Body {
                outer: axes.len(),
                axes,
                stmts: vec![
                    Stmt::Const {
                        value: pad.fill.convert(dtype),
                        dtype,
                    },
                    Stmt::Store {
                        buf: pad.to,
                        coords,
                        value: StmtId(0),
                        mode: StoreMode::Set,
                        mask: None,
                    },
                ],
                origins: origins.clone(),
            };
            crate::canonicalize::unit_axes(ex, &mut body);
            out.push(Node::Body(body));
        }
        span[d] = middle;
    }
    out
}
