//! Direct convolution in NCHW: swaps the operands of a contraction whose image is contiguous along its pixels.
//!
//! A convolution is a contraction of an image (pixels x channels and taps) with a filter (channels and taps x output channels).
//! The engine vectorises along the columns of the product. With channels last (NHWC), output channels are the columns: filters are
//! packed, and an image's channels are contiguous. With planes (NCHW), neighbouring pixels are contiguous, and the same order would
//! gather the image and scatter the result. So the operands are swapped: output channels become rows, pixels become columns. The
//! engine then reads lines of the image in place, one for each channel and tap, and stores along lines of the result.
//!
//! ```text
//! for pixel in rows                            for channel in rows
//!   for channel in columns, by vectors   ->      for pixel in columns, by vectors
//!     acc = 0                                      acc = 0
//!     for k in input channels, taps                for k in input channels, taps
//!       acc += image[pixel + k] * filter[k]          acc += filter[k] * image[pixel + k]
//!     out[channel, pixel] = acc                    out[channel, pixel] = acc
//! ```
//!
//! Row axes ahead of the pixels (the batch) become batch axes, because a row of columns must be one run of memory.
//!
//! The rule, by layouts and sizes, for CPUs only:
//!
//! - The image, or the copy that pads it, has stride one along pixels; or stride two, if sums have the stored type. Everything that
//!   is made of the results is stored along the pixels too.
//! - A line has at least [`SHORTEST`] pixels, or [`SHORTEST_OF_TWO`] at stride two, whose vectors take a shuffle. There are at least
//!   [`FEWEST`] pixels in all, or [`FEW`] for windows of filters that are no weights, which would otherwise be packed in each call.
//!   A sum has at most [`MOST`] products.
//! - Not for weights that take Winograd's minimal filtering: 3 x 3, and multiples of 16 channels from [`FILTERED`] on.

use inrush_base::tally::{Way, reached};
use inrush_base::{Caps, DType};
use inrush_expr::{Expr, Exprs, Sym};
use inrush_loops::{Access, Axis, BufId, BufferKind, Contraction, Loops, Node};

use crate::deps::Deps;
use crate::layout::{accesses, row_major, step};

/// Fewest pixels of a line.
const SHORTEST: i64 = 7;
/// Fewest pixels of a line at stride two.
const SHORTEST_OF_TWO: i64 = 60;
/// Fewest pixels of the result.
const FEWEST: i64 = 256;
/// Fewest pixels of the result if filters would be packed in each call.
const FEW: i64 = 49;
/// Most products of a sum.
const MOST: i64 = 1 << 13;
/// Fewest channels for which Winograd is faster.
const FILTERED: i64 = 32;
/// Most bodies through which a result is followed to its stores.
const DEEPEST: usize = 8;

/// How to swap the operands of a contraction.
struct Swap {
    /// The first row axis that becomes a column axis; those before it become batch axes.
    first: usize,
    /// The image, if it is a copy that has no layout yet.
    copy: Option<BufId>,
}

/// Swaps the operands of every contraction for which it pays.
pub(crate) fn swap_operands(loops: &mut Loops, nodes: &mut [Node], caps: &Caps) {
    let found = |n: &Node| matches!(n, Node::Contraction(_));
    if caps.gpu.is_some() || !nodes.iter().any(found) {
        return;
    }
    let deps = Deps::new(loops, nodes);
    for at in 0..nodes.len() {
        let Node::Contraction(c) = &nodes[at] else {
            continue;
        };
        let Some(swap) = pays(loops, nodes, &deps, c) else {
            continue;
        };
        reached(Way::TurnedPlanes);
        if let Some(copy) = swap.copy {
            row_major(loops, copy);
        }
        if let Node::Contraction(c) = &mut nodes[at] {
            let columns = c.m.split_off(swap.first);
            c.batch.append(&mut c.m);
            c.m = std::mem::replace(&mut c.n, columns);
            std::mem::swap(&mut c.a, &mut c.b);
            let order = c.batch.iter().chain(&c.m).chain(&c.n);
            c.epilogue.axes = order.copied().collect();
        }
    }
}

/// Applies the rule above.
fn pays(loops: &Loops, nodes: &[Node], deps: &Deps, c: &Contraction) -> Option<Swap> {
    let ex = &loops.exprs;
    let pixel = c.m.last()?;
    let extent =
        |axes: &[Axis]| (axes.iter()).fold(1i64, |p, a| p.saturating_mul(ex.hint(a.size).max(0)));
    let windows = c.k.iter().filter(|a| !ex.is_int(a.size, 1)).count() > 1;
    let fewest = if !is_weight(loops, c.b.buf) && windows {
        FEW
    } else {
        FEWEST
    };
    if c.n.is_empty()
        || !matches!(c.dtype, DType::F32 | DType::F64)
        || ex.hint(pixel.size) < SHORTEST
        || extent(&c.m) < fewest
        || extent(&c.k) > MOST
        || filtered(loops, c)
    {
        return None;
    }
    let (moves, copy) = image(loops, nodes, deps, &c.a, pixel.sym)?;
    let far = loops.buffer(c.a.buf).dtype != c.dtype || ex.hint(pixel.size) < SHORTEST_OF_TWO;
    if moves == 2 && far {
        return None;
    }
    let mut stores = accesses(&c.epilogue).filter(|a| a.2).peekable();
    stores.peek()?;
    let along = |(buf, coords, _): (BufId, &inrush_loops::Coords, bool)| {
        stored_along(loops, nodes, deps, buf, coords, pixel.sym, DEEPEST)
    };
    stores.all(along).then_some(())?;
    let joined = |i: usize| {
        (accesses(&c.epilogue).filter(|a| a.2))
            .all(|(buf, coords, _)| follows(loops, buf, coords, &c.m[i - 1], &c.m[i]))
    };
    let first = (1..c.m.len()).rev().take_while(|i| joined(*i)).last();
    let first = first.map_or(c.m.len() - 1, |i| i - 1);
    Some(Swap { first, copy })
}

/// Returns true for a weight, which is packed once when it is loaded.
fn is_weight(loops: &Loops, buf: BufId) -> bool {
    matches!(loops.buffer(buf).kind, BufferKind::Weight { .. })
}

/// Returns true if the runtime transforms these filters for Winograd's minimal filtering.
fn filtered(loops: &Loops, c: &Contraction) -> bool {
    let ex = &loops.exprs;
    let channels = |e: Expr| ex.as_int(e).is_some_and(|n| n >= FILTERED && n % 16 == 0);
    let threes = c.k.iter().filter(|a| ex.is_int(a.size, 3)).count();
    let wide = |axes: &[Axis]| axes.iter().any(|a| channels(a.size));
    is_weight(loops, c.b.buf)
        && c.dtype == DType::F32
        && threes == 2
        && c.k.len() == 3
        && wide(&c.k)
        && wide(&c.n)
}

/// Returns the image's stride along `pixel`, one or two, and the image if it is a copy that has no layout.
fn image(
    loops: &Loops,
    nodes: &[Node],
    deps: &Deps,
    a: &Access,
    pixel: Sym,
) -> Option<(i64, Option<BufId>)> {
    let ex = &loops.exprs;
    let b = loops.buffer(a.buf);
    let near = |e: Expr| ex.as_int(e).filter(|s| *s == 1 || *s == 2);
    if b.layout.is_some() {
        let moves = step(ex, &loops.buffers, a.buf, &a.coords, pixel)?;
        return Some((near(moves)?, None));
    }
    // Row by row then, for this reader alone.
    let (last, before) = a.coords.split_last()?;
    if b.kind != BufferKind::Temp
        || deps.aliased[a.buf.index()]
        || deps.readers[a.buf.index()].len() != 1
        || before.iter().any(|c| ex.contains_sym(*c, pixel))
    {
        return None;
    }
    let moves = near(ex.coefficients(*last, &[pixel])?[0])?;
    let [writer] = deps.writers[a.buf.index()].as_slice() else {
        return None;
    };
    let Node::Body(body) = &nodes[*writer as usize] else {
        return None;
    };
    let mut written = accesses(body).filter(|(buf, _, stores)| *stores && *buf == a.buf);
    let line = ex.as_sym(*written.next()?.1.last()?)?;
    let mut lines = 0;
    for (buf, coords, stores) in accesses(body) {
        if stores || !coords.iter().any(|c| ex.contains_sym(*c, line)) {
            continue;
        }
        let moves = step(ex, &loops.buffers, buf, coords, line)?;
        if !ex.is_int(moves, 1) {
            return None;
        }
        lines += 1;
    }
    (lines > 0 && !body.is_reduction()).then_some((moves, Some(a.buf)))
}

/// Returns true if the store at `coords` is contiguous along `axis`: in the buffer's layout or, without one, in everything that
/// pointwise readers make of it.
fn stored_along(
    loops: &Loops,
    nodes: &[Node],
    deps: &Deps,
    buf: BufId,
    coords: &[Expr],
    axis: Sym,
    deepest: usize,
) -> bool {
    let ex = &loops.exprs;
    if loops.buffer(buf).layout.is_some() {
        let moves = step(ex, &loops.buffers, buf, coords, axis);
        return moves.is_some_and(|s| ex.is_int(s, 1));
    }
    let readers = &deps.readers[buf.index()];
    let place = coords.iter().position(|c| ex.as_sym(*c) == Some(axis));
    let (Some(place), Some(deepest)) = (place, deepest.checked_sub(1)) else {
        return false;
    };
    !readers.is_empty()
        && readers.iter().all(|r| {
            let Node::Body(body) = &nodes[*r as usize] else {
                return false;
            };
            let mut read = accesses(body).filter(|(b, _, stores)| !stores && *b == buf);
            let Some(axis) = read.next().and_then(|(_, at, _)| ex.as_sym(at[place])) else {
                return false;
            };
            !body.is_reduction()
                && (accesses(body).filter(|a| a.2)).all(|(buf, coords, _)| {
                    stored_along(loops, nodes, deps, buf, coords, axis, deepest)
                })
        })
}

/// Returns true if a step of `outer` equals all steps of `inner` in the stored buffer: the two axes are one run of memory.
fn follows(loops: &Loops, buf: BufId, coords: &[Expr], outer: &Axis, inner: &Axis) -> bool {
    let ex: &Exprs = &loops.exprs;
    let b = loops.buffer(buf);
    if b.layout.is_some() {
        let along = |a: &Axis| step(ex, &loops.buffers, buf, coords, a.sym);
        return match (along(outer), along(inner)) {
            (Some(o), Some(i)) => ex.prove_eq(o, ex.mul(i, inner.size)),
            _ => false,
        };
    }
    let place = |a: &Axis| coords.iter().position(|c| ex.as_sym(*c) == Some(a.sym));
    match (place(outer), place(inner)) {
        (Some(o), Some(i)) => i == o + 1 && ex.prove_eq(b.sizes[i], inner.size),
        _ => false,
    }
}
