//! Tensors joined along a dimension.
//!
//! ```text
//! cat([a: f32[2,3], b: f32[2,1]], 1)     y[i0,i1] = i1 < 3 ? a[i0,i1] : b[i0, i1 - 3]
//! ```
//!
//! Every load is masked by its part's range, so that a point reads one part. As a pointwise body
//! the join fuses with producers and consumers like any other.

use crate::ops::decomposed;
use crate::{Args, Builder, Call, Lower, Meta, Route, Row, Tensor, meta};
use inrush_base::{DType, Error, Result, Scalar};
use inrush_expr::Expr;
use inrush_graph::{Arg, TensorType, Type, ValueId};
use inrush_loops::{ScalarOp as S, StmtId};

/// Each point of the result tries every part in turn; more parts than this are joined in groups first.
/// A body over `n` parts has `n` masked loads and `n - 1` selects for each point.
const MAX_PARTS: usize = 8;

/// The parts that count: an empty one-dimensional tensor joins anything.
/// That an empty vector joins anything is a rule that PyTorch keeps for old programs.
fn parts(c: &Call) -> Result<Vec<ValueId>> {
    let list = c.list("tensors")?;
    let mut kept = Vec::new();
    for v in &list {
        let t = c.type_of(*v)?;
        if !(t.rank() == 1 && c.exprs.is_int(t.sizes[0], 0)) {
            kept.push(*v);
        }
    }
    // Nothing but empty vectors: the first one gives rank and size.
    if kept.is_empty() {
        kept.extend(list.first());
    }
    if kept.is_empty() {
        return Err(Error::input("cat of no tensors"));
    }
    Ok(kept)
}

/// All parts promote together, also the empty ones. Sizes of other dimensions must be equal, which
/// is proved or becomes a guard.
fn cat_meta(c: &Call) -> Result<Vec<Type>> {
    let e = c.exprs;
    let all: Vec<&TensorType> = c
        .list("tensors")?
        .into_iter()
        .map(|v| c.type_of(v))
        .collect::<Result<_>>()?;
    let dtype =
        meta::common_dtype(all.iter().copied()).ok_or_else(|| Error::input("cat of no tensors"))?;
    let parts = parts(c)?;
    let first = c.type_of(parts[0])?;
    if first.rank() == 0 {
        return Err(Error::input("zero-dimensional tensors cannot be joined"));
    }
    let d = c.dim("dim", first.rank())?;
    let mut sizes = first.sizes.clone();
    for v in &parts[1..] {
        let t = c.type_of(*v)?;
        if t.rank() != sizes.len() {
            return Err(Error::input(format!(
                "cat of sizes {} and {}",
                e.show_list(&first.sizes),
                e.show_list(&t.sizes)
            )));
        }
        // Only `dim` may differ between parts.
        for k in (0..sizes.len()).filter(|k| *k != d) {
            c.same(sizes[k], t.sizes[k], "another dimension")?;
        }
        sizes[d] = e.add(sizes[d], t.sizes[d]);
    }
    meta::one(e, dtype, sizes)
}

/// More than [`MAX_PARTS`] parts are joined in groups, the groups in groups and so on: a tree of
/// `log8(n)` levels, whose order is that of the list.
fn cat<'g>(lw: &mut Lower<'g>, call: &Call<'g>) -> Result<Vec<Tensor>> {
    let dtype = call.out(0)?.dtype;
    let mut tensors: Vec<Tensor> = parts(call)?
        .into_iter()
        .map(|v| lw.tensor(v))
        .collect::<Result<_>>()?;
    let d = call.dim("dim", tensors[0].sizes.len())?;
    while tensors.len() > MAX_PARTS {
        tensors = tensors
            .chunks(MAX_PARTS)
            .map(|group| match group {
                [one] => one.clone(),
                _ => join(lw, group, d, dtype),
            })
            .collect();
    }
    Ok(vec![join(lw, &tensors, d, dtype)])
}

/// One body: a point reads the part that it falls into, each part under a mask of its range.
/// The first part needs no test of its start and the last one none of its end.
fn join(lw: &mut Lower, parts: &[Tensor], d: usize, dtype: DType) -> Tensor {
    let e = lw.exprs;
    let mut sizes = parts[0].sizes.clone();
    sizes[d] = e.sum(parts.iter().map(|t| t.sizes[d]));
    let mut body = lw.body(&sizes);
    let at = body.outer();
    let here = body.index_value(at[d]);
    let mut start = e.int(0);
    let mut reads: Vec<(Option<StmtId>, StmtId)> = Vec::new();
    for (k, t) in parts.iter().enumerate() {
        let end = e.add(start, t.sizes[d]);
        let before_end = (k + 1 < parts.len()).then(|| {
            let end = body.index_value(end);
            body.op(S::Lt, &[here, end])
        });
        let after_start = (k > 0).then(|| {
            let start = body.index_value(start);
            body.op(S::Ge, &[here, start])
        });
        // A single part has no mask at all.
        let mask = match (after_start, before_end) {
            (Some(a), Some(b)) => Some(body.op(S::And, &[a, b])),
            (a, b) => a.or(b),
        };
        let mut there = at.clone();
        there[d] = e.sub(at[d], start);
        let v = match mask {
            Some(m) => body.load_masked(t, &there, m, Scalar::Int(0)),
            None => body.load(t, &there),
        };
        let v = if t.dtype == dtype {
            v
        } else {
            body.cast(v, dtype)
        };
        reads.push((before_end, v));
        start = end;
    }
    // From the last part to the first: the condition `before_end` of a part is only asked where
    // those of earlier parts have failed.
    let mut value = reads[reads.len() - 1].1;
    for (before_end, v) in reads.iter().rev() {
        if let Some(cond) = before_end {
            value = body.select(*cond, *v, value);
        }
    }
    lw.store_new(body, value, dtype, &sizes)
}

/// `cat` along a new dimension.
fn stack(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let list = args.list("tensors")?;
    let first = list
        .first()
        .ok_or_else(|| Error::input("stack of no tensors"))?;
    let d = args.dim("dim", b.rank(*first)? + 1)?;
    stack_along(b, &list, d).map(|v| vec![v])
}

/// Each tensor gets a dimension of size 1 at `d`, along which they are joined.
fn stack_along(b: &mut Builder, list: &[ValueId], d: usize) -> Result<ValueId> {
    let d = b.int(d as i64);
    let parts: Vec<ValueId> = list
        .iter()
        .map(|v| b.call("aten.unsqueeze.default", &[(*v).into(), d.clone()]))
        .collect::<Result<_>>()?;
    b.call("aten.cat.default", &[parts.into(), d])
}

/// `hstack`, `vstack`, `dstack`: parts of at least `rank` dimensions joined along dimension `d`.
/// `hstack` joins vectors along dimension 0 and everything else along dimension 1.
fn stack_rank(b: &mut Builder, args: &Args, rank: usize, d: usize) -> Result<Vec<ValueId>> {
    let mut parts = Vec::new();
    for v in args.list("tensors")? {
        let sizes = b.sizes(v)?;
        let one = b.exprs.int(1);
        let wide: Vec<Expr> = match (sizes.len(), rank) {
            (0, _) => vec![one; rank],
            (1, 2) => vec![one, sizes[0]],
            (1, 3) => vec![one, sizes[0], one],
            (2, 3) => vec![sizes[0], sizes[1], one],
            _ => sizes,
        };
        parts.push(b.call("aten.view.default", &[v.into(), Arg::Ints(wide)])?);
    }
    let first = parts
        .first()
        .ok_or_else(|| Error::input("stack of no tensors"))?;
    // `hstack` of matrices joins columns.
    let d = if rank == 1 && b.rank(*first)? > 1 {
        1
    } else {
        d
    };
    let d = b.int(d as i64);
    Ok(vec![b.call("aten.cat.default", &[parts.into(), d])?])
}

/// Each tensor spread over the grid of all.
/// `by_row` is the indexing `ij`. For `xy` the first two tensors change places, before and after.
fn meshgrid(b: &mut Builder, args: &Args, by_row: bool) -> Result<Vec<ValueId>> {
    let mut list = args.list("tensors")?;
    let swap = !by_row && list.len() > 1;
    if swap {
        list.swap(0, 1);
    }
    let mut sizes = Vec::new();
    for v in &list {
        // Numbers count as vectors of one.
        sizes.push(b.exprs.product(b.sizes(*v)?));
    }
    let mut out = Vec::new();
    for (k, v) in list.iter().enumerate() {
        let mut shape = vec![b.exprs.int(1); list.len()];
        shape[k] = sizes[k];
        let line = b.call("aten.view.default", &[(*v).into(), Arg::Ints(shape)])?;
        let grid = b.call(
            "aten.expand.default",
            &[line.into(), Arg::Ints(sizes.clone())],
        )?;
        out.push(grid);
    }
    if swap {
        out.swap(0, 1);
    }
    Ok(out)
}

/// Reads `indexing`.
fn meshgrid_indexing(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    match args.str("indexing")? {
        "ij" => meshgrid(b, args, true),
        "xy" => meshgrid(b, args, false),
        _ => Err(args.unsupported("indexing", "`ij` or `xy`")),
    }
}

const LIST: &str = "(Tensor[] tensors) -> Tensor";

/// Each tensor cut along `dim` into as many chunks, the last ones filled up with zeros; chunks of all tensors side by side, flat
/// from `dim` on.
fn chunk_cat(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let list = args.list("tensors")?;
    let chunks = args.const_int("num_chunks")?;
    let first = *list
        .first()
        .ok_or_else(|| Error::input("_chunk_cat of no tensors"))?;
    if chunks < 1 {
        return Err(Error::input("_chunk_cat into no chunks"));
    }
    let dim = args.dim("dim", b.rank(first)?)?;
    let lead = b.sizes(first)?[..dim].to_vec();
    let dtype = b.dtype(first)?;
    let mut parts = Vec::new();
    for v in list {
        let sizes = b.sizes(v)?;
        if sizes.len() <= dim || sizes[..dim] != lead || b.dtype(v)? != dtype {
            return Err(Error::input(
                "_chunk_cat of tensors that differ before the dimension",
            ));
        }
        let (e, n) = (b.exprs, b.exprs.int(chunks));
        let up = e.add(sizes[dim], e.int(chunks - 1));
        let each = e.floordiv(up, n);
        // Zeros that fill the last chunks up to the length of the others.
        let missing = e.sub(e.mul(each, n), sizes[dim]);
        let mut pad = vec![e.int(0); 2 * (sizes.len() - dim)];
        if let Some(last) = pad.last_mut() {
            *last = missing;
        }
        let padded = b.call("aten.constant_pad_nd.default", &[v.into(), Arg::Ints(pad)])?;
        let flat = b
            .exprs
            .product([each].into_iter().chain(sizes[dim + 1..].iter().copied()));
        let sizes: Vec<Expr> = lead.iter().copied().chain([n, flat]).collect();
        parts.push(Some(b.view(padded, &sizes)?));
    }
    let at = b.int(dim as i64 + 1);
    Ok(vec![b.call("aten.cat.default", &[Arg::Values(parts), at])?])
}

pub const ROWS: &[Row] = &[
    Row {
        name: "aten.cat.default",
        schema: "(Tensor[] tensors, int dim=0) -> Tensor",
        meta: Meta::Fn(cat_meta),
        route: Route::Lower(cat),
        example: "([f32[2,3], i64[2,1], f32[2,4]], -1)",
        props: &[],
    },
    Row {
        name: "aten.concatenate.default",
        schema: "(Tensor[] tensors, int dim=0) -> Tensor",
        meta: Meta::Fn(cat_meta),
        route: Route::Lower(cat),
        example: "([f32[2,3], f32[2,1]], -1)",
        props: &[],
    },
    Row {
        name: "aten.concat.default",
        schema: "(Tensor[] tensors, int dim=0) -> Tensor",
        meta: Meta::Fn(cat_meta),
        route: Route::Lower(cat),
        example: "([f32[2,3], f32[1,3]])",
        props: &[],
    },
    decomposed(
        "aten.stack.default",
        "(Tensor[] tensors, int dim=0) -> Tensor",
        stack,
        "([f32[2,3], f32[2,3]], -1)",
    ),
    decomposed(
        "aten._chunk_cat.default",
        "(Tensor[] tensors, int dim, int num_chunks) -> Tensor",
        chunk_cat,
        "([f32[5,3], f32[4,3]], 0, 2)",
    ),
    decomposed(
        "aten.hstack.default",
        LIST,
        |b, a| stack_rank(b, a, 1, 0),
        "([f32[2,3], f32[2,1]])",
    ),
    decomposed(
        "aten.vstack.default",
        LIST,
        |b, a| stack_rank(b, a, 2, 0),
        "([f32[3], f32[2,3]])",
    ),
    decomposed(
        "aten.row_stack.default",
        LIST,
        |b, a| stack_rank(b, a, 2, 0),
        "([f32[3], f32[2,3]])",
    ),
    decomposed(
        "aten.dstack.default",
        LIST,
        |b, a| stack_rank(b, a, 3, 2),
        "([f32[3], f32[3]])",
    ),
    decomposed(
        "aten.meshgrid.default",
        "(Tensor[] tensors) -> Tensor[]",
        |b, a| meshgrid(b, a, true),
        "([f32[2], f32[3]])",
    ),
    decomposed(
        "aten.meshgrid.indexing",
        "(Tensor[] tensors, *, str indexing) -> Tensor[]",
        meshgrid_indexing,
        "([f32[2], f32[3]], indexing=\"xy\")",
    ),
];
