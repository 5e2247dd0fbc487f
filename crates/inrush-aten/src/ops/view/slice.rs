//! Views of parts: slices, selections, splits, windows, diagonals; and the writes that undo them.
//!
//! Slices are affine maps and cost nothing:
//!
//! ```text
//! x[:, 1:7:2] of x: f32[3,8]       y[i0,i1] reads x[i0, 2 * i1 + 1],  sizes [3, 3]
//! ```
//!
//! `slice_scatter` and its kind are what functionalisation makes of a write to a view: the whole
//! tensor with one part replaced. They are pointwise bodies with two complementary masked loads, so
//! a point reads either the source or the old tensor.
//!
//! Bounds follow Python. An index or length that may be symbolic must be proved in range here,
//! since a view has no place for a check.

use crate::ops::view::shape::view;
use crate::props::Prop;
use crate::view::{index, indices};
use crate::{Call, Lower, Meta, Route, Row, Tensor, View, meta};
use inrush_base::{DType, Error, Result, Scalar};
use inrush_expr::{Expr, Exprs};
use inrush_graph::TensorType;
use inrush_loops::{ScalarOp as S, StmtId};

/// A slice bound: negative ones count from the end, all are clamped to `0..=size`.
/// A symbolic bound that may have either sign counts from the start.
fn bound(exprs: &Exprs, at: Expr, size: Expr) -> Expr {
    // "To the end" is the largest integer.
    if exprs.as_int(at).is_some_and(|v| v > i64::MAX / 2) {
        return size;
    }
    let zero = exprs.int(0);
    let at = if exprs.range(at).hi < 0 {
        exprs.add(at, size)
    } else {
        at
    };
    exprs.min(exprs.max(at, zero), size)
}

/// Start, length and step of a slice of a dimension of this size.
/// An end before the start gives length 0. The step is a constant: it becomes a coefficient.
fn slice_range(c: &Call, size: Expr) -> Result<(Expr, Expr, Expr)> {
    let e = c.exprs;
    let step = c.const_int("step")?;
    if step < 1 {
        return Err(Error::input("a slice needs a positive step"));
    }
    let start = bound(e, c.opt_int("start")?.unwrap_or(e.int(0)), size);
    let end = bound(e, c.opt_int("end")?.unwrap_or(size), size);
    let span = e.max(e.sub(end, start), e.int(0));
    Ok((start, e.ceildiv(span, e.int(step)), e.int(step)))
}

/// `self[start:end:step]` along `dim`.
fn slice(c: &Call) -> Result<Vec<View>> {
    let t = c.viewed()?;
    let d = dimension(c, "dim", t.rank())?;
    let (start, len, step) = slice_range(c, t.sizes[d])?;
    Ok(vec![View::slice(c.exprs, &t.sizes, d, start, len, step)])
}

/// A dimension of a tensor that must have one.
fn dimension(c: &Call, name: &str, rank: usize) -> Result<usize> {
    if rank == 0 {
        return Err(Error::input(
            "a zero-dimensional tensor has no dimension to cut",
        ));
    }
    c.dim(name, rank)
}

/// An index into a dimension: negative ones count from the end; out of range is an error where it is certain.
fn position(exprs: &Exprs, at: Expr, size: Expr) -> Result<Expr> {
    let at = if exprs.range(at).hi < 0 {
        exprs.add(at, size)
    } else {
        at
    };
    if exprs.prove_nonneg(at) && exprs.prove_lt(at, size) {
        Ok(at)
    } else {
        Err(Error::input(format!(
            "index {} is not within size {}",
            exprs.show(at),
            exprs.show(size)
        )))
    }
}

/// Drops `dim` at a fixed index.
fn select(c: &Call) -> Result<Vec<View>> {
    let t = c.viewed()?;
    let d = dimension(c, "dim", t.rank())?;
    let at = position(c.exprs, c.int("index")?, t.sizes[d])?;
    Ok(vec![View::select(c.exprs, &t.sizes, d, at)])
}

/// Elements `start..start + length` of `dim`; refused unless they are proved to exist.
fn narrow(c: &Call) -> Result<Vec<View>> {
    let t = c.viewed()?;
    let d = dimension(c, "dim", t.rank())?;
    let (start, len) = (c.int("start")?, c.int("length")?);
    let start = if c.exprs.range(start).hi < 0 {
        c.exprs.add(start, t.sizes[d])
    } else {
        start
    };
    if !c.exprs.prove_nonneg(start) || !c.exprs.prove_le(c.exprs.add(start, len), t.sizes[d]) {
        return Err(c.unsupported("length", "may reach beyond the dimension"));
    }
    Ok(vec![View::slice(
        c.exprs,
        &t.sizes,
        d,
        start,
        len,
        c.exprs.int(1),
    )])
}

/// Consecutive pieces of dimension `d`.
/// Their lengths must sum to the size, which is proved or becomes a guard.
fn pieces(c: &Call, d: usize, lens: &[Expr]) -> Result<Vec<View>> {
    let (e, t) = (c.exprs, c.viewed()?);
    let total = e.sum(lens.iter().copied());
    c.same(total, t.sizes[d], "the sum of pieces")?;
    let mut start = e.int(0);
    Ok(lens
        .iter()
        .map(|len| {
            let v = View::slice(e, &t.sizes, d, start, *len, e.int(1));
            start = e.add(start, *len);
            v
        })
        .collect())
}

/// Number of pieces that one call may make.
/// A bound for hostile inputs: each piece is a value of the graph.
const MAX_PIECES: i64 = 1 << 16;

/// Pieces of `size` each, the last one smaller. The number of results is fixed, so it must be known.
fn split_every(c: &Call, d: usize, size: i64) -> Result<Vec<View>> {
    let (e, t) = (c.exprs, c.viewed()?);
    // The number of results is a property of the graph, so it cannot depend on a symbol.
    let Some(total) = e.as_int(t.sizes[d]) else {
        // A symbolic dimension in one piece.
        let one_piece = e.prove_le(t.sizes[d], e.int(size));
        return if one_piece {
            pieces(c, d, &[t.sizes[d]])
        } else {
            Err(Error::unsupported("a split of a symbolic size"))
        };
    };
    if size < 0 || (size == 0 && total != 0) {
        return Err(Error::input("pieces must have a positive size"));
    }
    if total == 0 {
        return pieces(c, d, &[e.int(0)]);
    }
    if total / size > MAX_PIECES {
        return Err(Error::input("a split into too many pieces"));
    }
    // The last piece has what is left.
    let lens: Vec<Expr> = (0..(total + size - 1) / size)
        .map(|k| e.int(size.min(total - k * size)))
        .collect();
    pieces(c, d, &lens)
}

/// `split` of a symbolic size works if the number of pieces is known.
fn split(c: &Call) -> Result<Vec<View>> {
    let d = dimension(c, "dim", c.viewed()?.rank())?;
    let size = c.int("split_size")?;
    match c.exprs.as_int(size) {
        Some(size) => split_every(c, d, size),
        None => {
            // A symbolic size is fine as long as it divides the dimension.
            let total = c.viewed()?.sizes[d];
            let count = c
                .exprs
                .divide_exact(total, size)
                .and_then(|n| c.exprs.as_int(n))
                .filter(|n| (0..MAX_PIECES).contains(n))
                .ok_or_else(|| c.unsupported("split_size", "the number of pieces is unknown"))?;
            pieces(c, d, &vec![size; count as usize])
        }
    }
}

/// Pieces whose lengths the call lists under `name`.
fn split_sizes(c: &Call, name: &str) -> Result<Vec<View>> {
    let d = dimension(c, "dim", c.viewed()?.rank())?;
    pieces(c, d, c.ints(name)?)
}

/// At most `chunks` pieces of equal length, the last one shorter. An empty dimension gives all of
/// them empty, as in eager.
fn chunk(c: &Call) -> Result<Vec<View>> {
    let (e, t) = (c.exprs, c.viewed()?);
    let d = dimension(c, "dim", t.rank())?;
    let chunks = c.const_int("chunks")?;
    if !(1..MAX_PIECES).contains(&chunks) {
        return Err(c.unsupported("chunks", "must be positive"));
    }
    match e.as_int(t.sizes[d]) {
        Some(0) => pieces(c, d, &vec![e.int(0); chunks as usize]),
        Some(total) => split_every(c, d, (total + chunks - 1) / chunks),
        None => match e.divide_exact(t.sizes[d], e.int(chunks)) {
            Some(len) => pieces(c, d, &vec![len; chunks as usize]),
            None => Err(Error::unsupported("chunks of a symbolic size")),
        },
    }
}

/// Always `sections` pieces, unlike `chunk`.
fn tensor_split(c: &Call) -> Result<Vec<View>> {
    let d = dimension(c, "dim", c.viewed()?.rank())?;
    nearly_equal(c, d)
}

/// Cuts dimension `d` into nearly equal pieces: the first `size % sections` are one longer.
fn nearly_equal(c: &Call, d: usize) -> Result<Vec<View>> {
    let (e, t) = (c.exprs, c.viewed()?);
    let sections = c.const_int("sections")?;
    if !(1..MAX_PIECES).contains(&sections) {
        return Err(c.unsupported("sections", "must be positive"));
    }
    let lens: Vec<Expr> = match e.as_int(t.sizes[d]) {
        Some(total) => (0..sections)
            .map(|k| e.int(total / sections + (k < total % sections) as i64))
            .collect(),
        None => match e.divide_exact(t.sizes[d], e.int(sections)) {
            Some(len) => vec![len; sections as usize],
            None => return Err(Error::unsupported("a split of a symbolic size")),
        },
    };
    pieces(c, d, &lens)
}

/// Cuts dimension `d` at each of `indices`, which count from the end where they are negative and stop at the ends.
fn at_indices(c: &Call, d: usize) -> Result<Vec<View>> {
    let (e, t) = (c.exprs, c.viewed()?);
    let total = e
        .as_int(t.sizes[d])
        .ok_or_else(|| Error::unsupported("a split of a symbolic size"))?;
    let mut start = 0;
    let mut lens = Vec::new();
    for index in c.const_ints("indices")? {
        let from_start = if index < 0 {
            index.saturating_add(total)
        } else {
            index
        };
        let end = from_start.clamp(0, total);
        // Eager slices each range by itself, so that pieces of indices that do not ascend overlap.
        if end < start {
            return Err(c.unsupported("indices", "pieces that overlap"));
        }
        lens.push(e.int(end - start));
        start = end;
    }
    lens.push(e.int(total - start));
    pieces(c, d, &lens)
}

fn tensor_split_at(c: &Call) -> Result<Vec<View>> {
    let d = dimension(c, "dim", c.viewed()?.rank())?;
    at_indices(c, d)
}

/// The dimension that `hsplit` (1), `vsplit` (0) or `dsplit` (2) cuts: of a vector `hsplit` cuts the only one.
fn fixed_dimension(c: &Call, d: usize) -> Result<usize> {
    let rank = c.viewed()?.rank();
    match (d, rank) {
        (1, 1) => Ok(0),
        (0, 1) | (_, 0) => Err(Error::input("a split of too few dimensions")),
        _ if d >= rank => Err(Error::input("a split of too few dimensions")),
        _ => Ok(d),
    }
}

/// Cuts a fixed dimension into `sections` pieces of the same size.
fn equal_sections(c: &Call, d: usize) -> Result<Vec<View>> {
    let d = fixed_dimension(c, d)?;
    let (sections, size) = (c.const_int("sections")?, c.viewed()?.sizes[d]);
    let divides = sections > 0 && c.exprs.divide_exact(size, c.exprs.int(sections)).is_some();
    if !divides && c.exprs.as_int(size).is_some() {
        return Err(Error::input(format!(
            "{sections} sections of a size that they do not divide"
        )));
    }
    nearly_equal(c, d)
}

fn fixed_at_indices(c: &Call, d: usize) -> Result<Vec<View>> {
    at_indices(c, fixed_dimension(c, d)?)
}

/// One view for each index of `dim`.
fn unbind(c: &Call) -> Result<Vec<View>> {
    let t = c.viewed()?;
    let d = dimension(c, "dim", t.rank())?;
    let n = c
        .exprs
        .as_int(t.sizes[d])
        .filter(|n| *n <= MAX_PIECES)
        .ok_or_else(|| Error::unsupported("unbind of a symbolic size"))?;
    Ok((0..n)
        .map(|k| View::select(c.exprs, &t.sizes, d, c.exprs.int(k)))
        .collect())
}

/// Windows of `size` every `step` along a dimension; their contents are the new last dimension.
/// Windows may overlap: elements are then seen several times, without a copy.
fn unfold(c: &Call) -> Result<Vec<View>> {
    let (e, t) = (c.exprs, c.viewed()?);
    let (size, step) = (c.int("size")?, c.const_int("step")?);
    if t.rank() == 0 && step >= 1 && e.prove_le(size, e.int(1)) {
        // A single element is a dimension of one here.
        return Ok(vec![View {
            sizes: vec![size],
            map: Vec::new(),
        }]);
    }
    let d = dimension(c, "dimension", t.rank())?;
    if step < 1 || !e.prove_le(size, t.sizes[d]) {
        return Err(c.unsupported("size", "a window larger than the dimension"));
    }
    let mut sizes = t.sizes.clone();
    let room = e.sub(t.sizes[d], size);
    sizes[d] = e.add(e.floordiv(room, e.int(step)), e.int(1));
    sizes.push(size);
    let mut map = indices(e, &sizes);
    // The new dimension counts within the window, the old one windows.
    let within = map.pop().unwrap_or(e.int(0));
    map[d] = e.add(e.mul(map[d], e.int(step)), within);
    Ok(vec![View { sizes, map }])
}

/// Start of a diagonal in its two dimensions, and its length.
/// A positive offset moves the start along `d2`, a negative one along `d1`.
fn diagonal_range(c: &Call, sizes: &[Expr], d1: usize, d2: usize) -> Result<(i64, i64, Expr)> {
    let e = c.exprs;
    let offset = c.const_int("offset")?;
    let (r, k) = (0.max(-offset), 0.max(offset));
    let len = e.min(e.sub(sizes[d1], e.int(r)), e.sub(sizes[d2], e.int(k)));
    Ok((r, k, e.max(len, e.int(0))))
}

/// The two dimensions, which must differ.
fn diagonal_dims(c: &Call, rank: usize) -> Result<(usize, usize)> {
    let (d1, d2) = (dimension(c, "dim1", rank)?, dimension(c, "dim2", rank)?);
    if d1 == d2 {
        return Err(Error::input("a diagonal needs two dimensions"));
    }
    Ok((d1, d2))
}

/// The diagonal becomes the last dimension.
fn diagonal(c: &Call) -> Result<Vec<View>> {
    let (e, t) = (c.exprs, c.viewed()?);
    let (d1, d2) = diagonal_dims(c, t.rank())?;
    let (r, k, len) = diagonal_range(c, &t.sizes, d1, d2)?;
    let mut sizes: Vec<Expr> = (0..t.rank())
        .filter(|d| *d != d1 && *d != d2)
        .map(|d| t.sizes[d])
        .collect();
    sizes.push(len);
    let last = index(e, sizes.len() - 1, len);
    let mut rest = indices(e, &sizes).into_iter();
    let map = (0..t.rank())
        .map(|d| {
            if d == d1 {
                e.add(last, e.int(r))
            } else if d == d2 {
                e.add(last, e.int(k))
            } else {
                rest.next().unwrap_or(last)
            }
        })
        .collect();
    Ok(vec![View { sizes, map }])
}

/// Replaces a part of `self` by `src`. For each point of `self`, the callback returns whether it is
/// in the part, and its coordinates in `src`.
fn replace_part<'g>(
    lw: &mut Lower<'g>,
    call: &Call<'g>,
    locate: impl Fn(&mut crate::BodyBuilder<'g>, &[Expr]) -> Result<(Option<StmtId>, Vec<Expr>)>,
) -> Result<Vec<Tensor>> {
    let (t, src) = (lw.arg(call, "self")?, lw.arg(call, "src")?);
    let mut body = lw.body(&t.sizes);
    let at = body.outer();
    let (inside, there) = locate(&mut body, &at)?;
    let value = match inside {
        None => {
            let v = body.load(&src, &there);
            convert(&mut body, v, src.dtype, t.dtype)
        }
        Some(mask) => {
            let new = body.load_masked(&src, &there, mask, Scalar::Int(0));
            let new = convert(&mut body, new, src.dtype, t.dtype);
            // The old value is read where it is kept only: with a mask on both loads, each point
            // reads one.
            let outside = body.op(S::Not, &[mask]);
            let old = body.load_masked(&t, &at, outside, Scalar::Int(0));
            body.select(mask, new, old)
        }
    };
    Ok(vec![lw.store_new(body, value, t.dtype, &t.sizes)])
}

/// Converts to the dtype of the tensor that is written to.
fn convert(b: &mut crate::BodyBuilder, v: StmtId, from: DType, to: DType) -> StmtId {
    if from == to { v } else { b.cast(v, to) }
}

/// The conjunction of conditions; `None` is true.
fn both(b: &mut crate::BodyBuilder, x: Option<StmtId>, y: StmtId) -> Option<StmtId> {
    Some(match x {
        None => y,
        Some(x) => b.op(S::And, &[x, y]),
    })
}

/// Compares two index expressions.
fn compare(b: &mut crate::BodyBuilder, op: S, x: Expr, y: Expr) -> StmtId {
    let (x, y) = (b.index_value(x), b.index_value(y));
    b.op(op, &[x, y])
}

/// A point is in the part if it is in the range and a multiple of `step` from `start`. Tests that
/// ranges prove are left out.
fn slice_scatter<'g>(lw: &mut Lower<'g>, call: &Call<'g>) -> Result<Vec<Tensor>> {
    let t = call.tensor("self")?;
    let d = dimension(call, "dim", t.rank())?;
    let (start, len, step) = slice_range(call, t.sizes[d])?;
    replace_part(lw, call, |b, at| {
        let e = b.exprs;
        // Outside of the part this coordinate may be out of range; the mask keeps it from being
        // read.
        let from_start = e.sub(at[d], start);
        let mut there = at.to_vec();
        there[d] = e.floordiv(from_start, step);
        let mut inside = None;
        if !e.is_int(start, 0) {
            let m = compare(b, S::Ge, at[d], start);
            inside = both(b, inside, m);
        }
        let end = e.add(start, e.mul(len, step));
        if !e.prove_lt(at[d], end) {
            let m = compare(b, S::Lt, at[d], end);
            inside = both(b, inside, m);
        }
        if !e.is_int(step, 1) {
            let m = compare(b, S::Eq, e.modulo(from_start, step), e.int(0));
            inside = both(b, inside, m);
        }
        Ok((inside, there))
    })
}

/// A point is in the part if its coordinate along `dim` is `index`.
fn select_scatter<'g>(lw: &mut Lower<'g>, call: &Call<'g>) -> Result<Vec<Tensor>> {
    let t = call.tensor("self")?;
    let d = dimension(call, "dim", t.rank())?;
    let position = position(call.exprs, call.int("index")?, t.sizes[d])?;
    replace_part(lw, call, |b, at| {
        let mut there = at.to_vec();
        there.remove(d);
        let inside = compare(b, S::Eq, at[d], position);
        Ok((Some(inside), there))
    })
}

/// A point is in the part if its coordinates minus the diagonal's start are equal and in range.
fn diagonal_scatter<'g>(lw: &mut Lower<'g>, call: &Call<'g>) -> Result<Vec<Tensor>> {
    let t = call.tensor("self")?;
    let (d1, d2) = diagonal_dims(call, t.rank())?;
    let (r, k, len) = diagonal_range(call, &t.sizes, d1, d2)?;
    replace_part(lw, call, |b, at| {
        let e = b.exprs;
        let row = e.sub(at[d1], e.int(r));
        let column = e.sub(at[d2], e.int(k));
        let mut there: Vec<Expr> = (0..at.len())
            .filter(|d| *d != d1 && *d != d2)
            .map(|d| at[d])
            .collect();
        there.push(row);
        let same = compare(b, S::Eq, row, column);
        let above = compare(b, S::Ge, row, e.int(0));
        let below = compare(b, S::Lt, row, len);
        let inside = both(b, Some(same), above);
        let inside = inside.and_then(|i| both(b, Some(i), below));
        Ok((inside, there))
    })
}

/// The source must have the sizes of the part that it replaces.
fn part_meta(
    c: &Call,
    part: impl FnOnce(&Call, &TensorType) -> Result<Vec<Expr>>,
) -> Result<Vec<inrush_graph::Type>> {
    let t = c.tensor("self")?;
    let part = part(c, t)?;
    c.same_sizes(&c.tensor("src")?.sizes, &part, "the source")?;
    meta::one(c.exprs, t.dtype, t.sizes.clone())
}

/// Sizes of the part that `slice_scatter` replaces.
fn sliced(c: &Call, t: &TensorType) -> Result<Vec<Expr>> {
    let d = dimension(c, "dim", t.rank())?;
    let (_, len, _) = slice_range(c, t.sizes[d])?;
    let mut sizes = t.sizes.clone();
    sizes[d] = len;
    Ok(sizes)
}

/// Sizes of the part that `select_scatter` replaces.
fn selected(c: &Call, t: &TensorType) -> Result<Vec<Expr>> {
    let mut sizes = t.sizes.clone();
    sizes.remove(dimension(c, "dim", t.rank())?);
    Ok(sizes)
}

/// Sizes of the part that `diagonal_scatter` replaces.
fn diagonal_of(c: &Call, t: &TensorType) -> Result<Vec<Expr>> {
    let (d1, d2) = diagonal_dims(c, t.rank())?;
    let (_, _, len) = diagonal_range(c, &t.sizes, d1, d2)?;
    let kept = (0..t.rank()).filter(|d| *d != d1 && *d != d2);
    Ok(kept.map(|d| t.sizes[d]).chain([len]).collect())
}

pub const ROWS: &[Row] = &[
    view(
        "aten.slice.Tensor",
        "(Tensor(a) self, int dim=0, SymInt? start=None, SymInt? end=None, SymInt step=1) -> Tensor(a)",
        slice,
        "(f32[3,8], 1, 1, -1, 2)",
    ).with(&[Prop::Alias]),
    view(
        "aten.select.int",
        "(Tensor(a) self, int dim, SymInt index) -> Tensor(a)",
        select,
        "(f32[3,8], 1, -1)",
    ).with(&[Prop::Alias]),
    view(
        "aten.narrow.default",
        "(Tensor(a) self, int dim, SymInt start, SymInt length) -> Tensor(a)",
        narrow,
        "(f32[3,8], 1, 2, 4)",
    ).with(&[Prop::Alias]),
    view(
        "aten.split.Tensor",
        "(Tensor(a) self, SymInt split_size, int dim=0) -> Tensor(a)[]",
        split,
        "(f32[3,8], 3, 1)",
    ).with(&[Prop::Alias]),
    // Results that share memory for eager's sake alone: autograd must not see it.
    view(
        "aten.unsafe_split.Tensor",
        "(Tensor self, SymInt split_size, int dim=0) -> Tensor[]",
        split,
        "(f32[3,8], 3, 1)",
    ),
    view(
        "aten.unsafe_split_with_sizes.default",
        "(Tensor self, SymInt[] split_sizes, int dim=0) -> Tensor[]",
        |c| split_sizes(c, "split_sizes"),
        "(f32[3,8], [1,2,5], 1)",
    ),
    view(
        "aten.split.sizes",
        "(Tensor(a) self, SymInt[] split_size, int dim=0) -> Tensor(a)[]",
        |c| split_sizes(c, "split_size"),
        "(f32[3,8], [1,2,5], 1)",
    ).with(&[Prop::Alias]),
    view(
        "aten.split_with_sizes.default",
        "(Tensor(a) self, SymInt[] split_sizes, int dim=0) -> Tensor(a)[]",
        |c| split_sizes(c, "split_sizes"),
        "(f32[3,8], [1,2,5], 1)",
    ).with(&[Prop::Alias]),
    view(
        "aten.chunk.default",
        "(Tensor(a) self, int chunks, int dim=0) -> Tensor(a)[]",
        chunk,
        "(f32[3,8], 3, 1)",
    ).with(&[Prop::Alias]),
    view(
        "aten.tensor_split.sections",
        "(Tensor(a) self, SymInt sections, int dim=0) -> Tensor(a)[]",
        tensor_split,
        "(f32[3,8], 3, 1)",
    ).with(&[Prop::Alias]),
    view(
        "aten.tensor_split.indices",
        "(Tensor(a) self, SymInt[] indices, int dim=0) -> Tensor(a)[]",
        tensor_split_at,
        "(f32[3,8], [2,2,-1], 1)",
    ).with(&[Prop::Alias]),
    // Results that share memory for eager's sake alone: autograd must not see it.
    view(
        "aten.unsafe_chunk.default",
        "(Tensor self, int chunks, int dim=0) -> Tensor[]",
        chunk,
        "(f32[3,8], 3, 1)",
    ),
    view(
        "aten.hsplit.int",
        "(Tensor(a) self, int sections) -> Tensor(a)[]",
        |c| equal_sections(c, 1),
        "(f32[3,8], 2)",
    ).with(&[Prop::Alias]),
    view(
        "aten.hsplit.array",
        "(Tensor(a) self, int[] indices) -> Tensor(a)[]",
        |c| fixed_at_indices(c, 1),
        "(f32[3,8], [1,3])",
    ).with(&[Prop::Alias]),
    view(
        "aten.vsplit.int",
        "(Tensor(a) self, int sections) -> Tensor(a)[]",
        |c| equal_sections(c, 0),
        "(f32[4,3], 2)",
    ).with(&[Prop::Alias]),
    view(
        "aten.vsplit.array",
        "(Tensor(a) self, int[] indices) -> Tensor(a)[]",
        |c| fixed_at_indices(c, 0),
        "(f32[4,3], [1,3])",
    ).with(&[Prop::Alias]),
    view(
        "aten.dsplit.int",
        "(Tensor(a) self, int sections) -> Tensor(a)[]",
        |c| equal_sections(c, 2),
        "(f32[2,3,6], 2)",
    ).with(&[Prop::Alias]),
    view(
        "aten.dsplit.array",
        "(Tensor(a) self, int[] indices) -> Tensor(a)[]",
        |c| fixed_at_indices(c, 2),
        "(f32[2,3,6], [1,3])",
    ).with(&[Prop::Alias]),
    view(
        "aten.unbind.int",
        "(Tensor(a) self, int dim=0) -> Tensor(a)[]",
        unbind,
        "(f32[3,2])",
    ).with(&[Prop::Alias]),
    view(
        "aten.unfold.default",
        "(Tensor(a) self, int dimension, int size, int step) -> Tensor(a)",
        unfold,
        "(f32[3,8], 1, 3, 2)",
    ).with(&[Prop::Alias]),
    view(
        "aten.linalg_diagonal.default",
        "(Tensor(a) A, *, int offset=0, int dim1=-2, int dim2=-1) -> Tensor(a)",
        diagonal,
        "(f32[2,3,4], offset=-1)",
    ).with(&[Prop::Alias]),
    view(
        "aten.diagonal.default",
        "(Tensor(a) self, int offset=0, int dim1=0, int dim2=1) -> Tensor(a)",
        diagonal,
        "(f32[2,3,4], 1, 1, 2)",
    ).with(&[Prop::Alias]),
    Row {
        name: "aten.slice_scatter.default",
        schema: "(Tensor self, Tensor src, int dim=0, SymInt? start=None, SymInt? end=None, SymInt step=1) -> Tensor",
        meta: Meta::Fn(|c| part_meta(c, sliced)),
        route: Route::Lower(slice_scatter),
        example: "(f32[3,8], f32[3,3], 1, 1, 7, 2)", props: &[],
    },
    Row {
        name: "aten.select_scatter.default",
        schema: "(Tensor self, Tensor src, int dim, SymInt index) -> Tensor",
        meta: Meta::Fn(|c| part_meta(c, selected)),
        route: Route::Lower(select_scatter),
        example: "(f32[3,8], f32[3], 1, -1)", props: &[],
    },
    Row {
        name: "aten.diagonal_scatter.default",
        schema: "(Tensor self, Tensor src, int offset=0, int dim1=0, int dim2=1) -> Tensor",
        meta: Meta::Fn(|c| part_meta(c, diagonal_of)),
        route: Route::Lower(diagonal_scatter),
        example: "(f32[3,4], f32[3], 1)", props: &[],
    },
];
