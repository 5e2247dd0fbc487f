//! Writing by index tensors: a copy of the input, then a body that stores where the index says.
//!
//! ```text
//! scatter_add(self, 0, index, src)
//!
//!     out[i, j]            = self[i, j]          copy, over self
//!     out[index[i, j], j] += src[i, j]           over index, the store adds
//! ```
//!
//! The loop is over the index, so the points of the second body may store to one place. With
//! `Add`, `Mul`, `Max` and `Min` the order does not matter but for rounding. With `Set`
//! PyTorch leaves the winner open. Later stages decide how such stores are kept from racing.
//!
//! Sums and products of halves are collected in `f32` and rounded once at the end.

use crate::ops::index::gather::{Advanced, load_index};
use crate::ops::lowered;
use crate::{Call, Lower, Operand, Row, Tensor, meta};
use inrush_base::{DType, Error, Result, Scalar};
use inrush_expr::Expr;
use inrush_graph::{TensorType, Type, ValueId};
use inrush_loops::{ScalarOp, StmtId, StoreMode};

fn same_meta(call: &Call) -> Result<Vec<Type>> {
    let t = call.tensor("self")?;
    meta::one(call.exprs, t.dtype, t.sizes.clone())
}

/// Checks that the source has the dtype of the destination, as PyTorch does.
fn same_dtype(t: &TensorType, source: &TensorType, what: &str) -> Result<()> {
    if t.dtype == source.dtype {
        return Ok(());
    }
    let (want, is) = (t.dtype, source.dtype);
    Err(Error::input(format!("{what} must be {want}, is {is}")))
}

/// Checks that the index is no larger than the source, and except in `dim` no larger than the
/// input.
fn scatter_meta(call: &Call) -> Result<Vec<Type>> {
    let (t, index) = (call.tensor("self")?, call.tensor("index")?);
    let dim = call.dim("dim", t.rank())?;
    let within = |sizes: &[Expr], skip: Option<usize>| -> Result<()> {
        for (d, (i, s)) in index.sizes.iter().zip(sizes).enumerate() {
            if skip != Some(d) {
                call.at_most(*i, *s, "the index")?;
            }
        }
        Ok(())
    };
    // Along `dim` any number of values may arrive.
    within(&t.sizes, Some(dim))?;
    if let Ok(Some(Operand::Tensor(v))) = call.operand("src") {
        within(&call.type_of(v)?.sizes, None)?;
    }
    same_meta(call)
}

/// A row of the source for each element of the index.
fn rows_meta(call: &Call) -> Result<Vec<Type>> {
    let (t, index) = (call.tensor("self")?, call.tensor("index")?);
    let dim = call.dim("dim", t.rank())?;
    let source = call.tensor("source")?;
    same_dtype(t, source, "the source")?;
    let mut want = t.sizes.clone();
    if let Some(s) = want.get_mut(dim) {
        *s = index.numel(call.exprs);
        call.same_sizes(&source.sizes, &want, "the source")?;
    }
    same_meta(call)
}

/// The values must broadcast to what the indices name.
fn put_meta(call: &Call) -> Result<Vec<Type>> {
    let (t, values) = (call.tensor("self")?, call.tensor("values")?);
    same_dtype(t, values, "the values")?;
    let indices = call.opt_list("indices")?;
    let mut masks = indices.iter().flatten();
    // How many elements a mask names, the lowering asks.
    if !masks.any(|v| call.type_of(*v).is_ok_and(|t| t.dtype == DType::Bool)) {
        let a = Advanced::new(call, &indices, &t.sizes)?;
        let lead = a.sizes.len().checked_sub(values.rank());
        let lead = lead.ok_or_else(|| Error::input("values with more dimensions than places"))?;
        for (s, place) in values.sizes.iter().zip(&a.sizes[lead..]) {
            if !call.exprs.is_int(*s, 1) {
                call.same(*s, *place, "the values")?;
            }
        }
    }
    same_meta(call)
}

/// A fresh buffer with the elements of `t` for values to arrive in by `mode`: sums and products of halves are kept in `f32`
/// until all have arrived.
fn target<'g>(lw: &mut Lower<'g>, t: &Tensor, mode: StoreMode) -> Tensor {
    let dtype = match mode {
        StoreMode::Add | StoreMode::Mul => t.dtype.compute(),
        _ => t.dtype,
    };
    let mut body = lw.body(&t.sizes);
    let at = body.outer();
    let v = body.load(t, &at);
    lw.store_new(body, v, dtype, &t.sizes)
}

/// The target in the dtype of the result.
pub(in crate::ops) fn arrived<'g>(lw: &mut Lower<'g>, target: Tensor, dtype: DType) -> Tensor {
    if target.dtype == dtype {
        return target;
    }
    let mut body = lw.body(&target.sizes);
    let at = body.outer();
    let v = body.load(&target, &at);
    let sizes = target.sizes;
    lw.store_new(body, v, dtype, &sizes)
}

/// A fresh buffer filled with one number.
pub(in crate::ops) fn filled<'g>(
    lw: &mut Lower<'g>,
    sizes: &[Expr],
    dtype: DType,
    value: Scalar,
) -> Tensor {
    let mut body = lw.body(sizes);
    let v = body.constant(value, dtype);
    lw.store_new(body, v, dtype, sizes)
}

/// The source of a scatter: a tensor of the index's shape (or larger), or a number.
#[derive(Clone)]
enum Source {
    Tensor(Tensor),
    Number(Scalar),
}

/// A tensor without dimensions is a tensor; a symbolic number is not supported.
fn source<'g>(lw: &Lower<'g>, call: &Call<'g>, name: &str) -> Result<Source> {
    match call.operand(name)? {
        Some(Operand::Tensor(v)) => Ok(Source::Tensor(lw.tensor(v)?)),
        Some(Operand::Scalar(s)) => Ok(Source::Number(s)),
        _ => Err(call.unsupported(name, "must be a tensor or a constant number")),
    }
}

/// For each point of `index`: stores the source's element into `out`, at the same point but with `dim` from the index.
fn scatter_into<'g>(
    lw: &mut Lower<'g>,
    out: &Tensor,
    dim: usize,
    index: &Tensor,
    source: &Source,
    mode: StoreMode,
) -> Result<()> {
    let rank = out.sizes.len();
    // An index without elements may have any number of dimensions.
    if (index.sizes.iter()).any(|n| lw.exprs.is_int(*n, 0)) {
        return Ok(());
    }
    if rank.max(1) != index.sizes.len().max(1) {
        return Err(Error::input(
            "the index must have as many dimensions as the input",
        ));
    }
    let mut body = lw.body(&index.sizes);
    let outer = body.outer();
    let v = load_index(&mut body, index, &outer);
    let mut at = outer.clone();
    at.resize(rank, lw.exprs.int(0));
    if let Some(size) = out.sizes.get(dim) {
        at[dim] = body.indirect(v, *size, false, true, None);
    }
    let value = match source {
        Source::Tensor(t) => {
            // The target of halves is `f32` already.
            if t.dtype.compute() != out.dtype.compute() {
                return Err(Error::input(format!(
                    "source of dtype {}, input of dtype {}",
                    t.dtype, out.dtype
                )));
            }
            let mut from = outer;
            from.resize(t.sizes.len(), lw.exprs.int(0));
            body.load(t, &from)
        }
        Source::Number(s) => body.constant(*s, out.dtype),
    };
    // Coordinates of the buffer, should the tensor be a view of it.
    let coords = out.at(lw.exprs, &at);
    body.store_with(out.buf, &coords, value, mode, None);
    lw.push(body);
    Ok(())
}

/// `from` names the parameter with the values.
fn scatter<'g>(
    lw: &mut Lower<'g>,
    call: &Call<'g>,
    from: &str,
    mode: StoreMode,
) -> Result<Vec<Tensor>> {
    let (t, index) = (lw.arg(call, "self")?, lw.arg(call, "index")?);
    let dim = call.dim("dim", t.sizes.len())?;
    let source = source(lw, call, from)?;
    let out = target(lw, &t, mode);
    scatter_into(lw, &out, dim, &index, &source, mode)?;
    Ok(vec![arrived(lw, out, t.dtype)])
}

/// The mode called `add` or `multiply`.
fn named_mode(call: &Call) -> Result<StoreMode> {
    match call.str("reduce")? {
        "add" => Ok(StoreMode::Add),
        "multiply" => Ok(StoreMode::Mul),
        _ => Err(call.unsupported("reduce", "unknown reduction")),
    }
}

/// The number that changes nothing under `mode`, and the extreme ones for integers.
fn neutral(mode: StoreMode, dtype: DType) -> Scalar {
    let range = dtype.int_range();
    match (mode, range) {
        (StoreMode::Mul, _) => Scalar::Int(1),
        (StoreMode::Max, Some((lo, _))) => Scalar::Int(lo as i64),
        (StoreMode::Min, Some((_, hi))) => Scalar::Int(hi as i64),
        (StoreMode::Max, None) => Scalar::Float(f64::NEG_INFINITY),
        (StoreMode::Min, None) => Scalar::Float(f64::INFINITY),
        _ => Scalar::Int(0),
    }
}

fn scatter_reduce<'g>(lw: &mut Lower<'g>, call: &Call<'g>) -> Result<Vec<Tensor>> {
    let (t, index) = (lw.arg(call, "self")?, lw.arg(call, "index")?);
    let dim = call.dim("dim", t.sizes.len())?;
    let source = source(lw, call, "src")?;
    // A mean is a sum and a count; elements where nothing arrives divide by 1.
    let mean = call.str("reduce")? == "mean";
    let mode = match call.str("reduce")? {
        "sum" | "mean" => StoreMode::Add,
        "prod" => StoreMode::Mul,
        "amax" => StoreMode::Max,
        "amin" => StoreMode::Min,
        _ => return Err(call.unsupported("reduce", "unknown reduction")),
    };
    let include = call.bool("include_self")?;
    let out = target(lw, &t, mode);
    if !include {
        // Former contents do not count where something arrives.
        let nothing = Source::Number(neutral(mode, t.dtype));
        scatter_into(lw, &out, dim, &index, &nothing, StoreMode::Set)?;
    }
    scatter_into(lw, &out, dim, &index, &source, mode)?;
    if !mean {
        return Ok(vec![arrived(lw, out, t.dtype)]);
    }
    let one = Source::Number(Scalar::Int(1));
    let count = filled(lw, &t.sizes, DType::I64, Scalar::Int(include as i64));
    scatter_into(lw, &count, dim, &index, &one, StoreMode::Add)?;
    let mut body = lw.body(&t.sizes);
    let at = body.outer();
    let (sum, n) = (body.load(&out, &at), body.load(&count, &at));
    let one = body.constant(Scalar::Int(1), DType::I64);
    let n = body.op(ScalarOp::Maximum, &[n, one]);
    let n = body.cast(n, body.dtype(sum));
    let op = if t.dtype.is_float() {
        ScalarOp::Div
    } else {
        // PyTorch rounds means of integers towards minus infinity.
        ScalarOp::FloorDiv
    };
    let v = body.op(op, &[sum, n]);
    Ok(vec![lw.store_new(body, v, t.dtype, &t.sizes)])
}

/// `out[.., index[i], ..] <mode>= value(i)` over the points of `sizes`, whose dimension `dim` numbers the index.
/// `sizes` gives the extents of the loop from input, index and `dim`; `value` emits what is
/// stored at a point. `wrap` says if negative indices count from the end.
fn write_rows<'g>(
    lw: &mut Lower<'g>,
    call: &Call<'g>,
    wrap: bool,
    mode: StoreMode,
    sizes: impl FnOnce(&Tensor, &Tensor, usize) -> Vec<Expr>,
    value: impl FnOnce(&mut crate::BodyBuilder<'g>, &[Expr], DType) -> Result<StmtId>,
) -> Result<Vec<Tensor>> {
    let (t, index) = (lw.arg(call, "self")?, lw.arg(call, "index")?);
    let dim = call.dim("dim", t.sizes.len())?;
    if index.sizes.len() > 1 {
        return Err(Error::input("the index must have one dimension"));
    }
    let out = target(lw, &t, mode);
    let mut body = lw.body(&sizes(&t, &index, dim));
    let outer = body.outer();
    let place: Vec<Expr> = index
        .sizes
        .iter()
        .map(|_| outer.get(dim).copied().unwrap_or(lw.exprs.int(0)))
        .collect();
    let v = load_index(&mut body, &index, &place);
    let mut at = outer.clone();
    at.resize(t.sizes.len(), lw.exprs.int(0));
    if let Some(size) = t.sizes.get(dim) {
        at[dim] = body.indirect(v, *size, wrap, true, None);
    }
    let v = value(&mut body, &outer, t.dtype)?;
    let coords = out.at(lw.exprs, &at);
    body.store_with(out.buf, &coords, v, mode, None);
    lw.push(body);
    Ok(vec![arrived(lw, out, t.dtype)])
}

/// The sizes of the input with as many rows as the index names.
fn indexed_rows(exprs: &inrush_expr::Exprs, t: &Tensor, index: &Tensor, dim: usize) -> Vec<Expr> {
    let mut sizes = t.sizes.clone();
    if let Some(s) = sizes.get_mut(dim) {
        *s = exprs.product(index.sizes.iter().copied());
    }
    sizes
}

/// `out[index[i], ..] += alpha * source[i, ..]`.
fn index_add<'g>(lw: &mut Lower<'g>, call: &Call<'g>) -> Result<Vec<Tensor>> {
    let source = lw.arg(call, "source")?;
    if source.sizes.len() != lw.arg(call, "self")?.sizes.len() {
        return Err(Error::input(
            "the source must have as many dimensions as the input",
        ));
    }
    let alpha = call.rounded("alpha", source.dtype, lw.processor)?;
    let exprs = lw.exprs;
    write_rows(
        lw,
        call,
        false,
        StoreMode::Add,
        |t, index, dim| indexed_rows(exprs, t, index, dim),
        |body, at, dtype| {
            let v = body.load(&source, at);
            if alpha.as_f64() == 1.0 {
                return Ok(v);
            }
            let c = body.constant(alpha, dtype);
            Ok(body.op(ScalarOp::Mul, &[v, c]))
        },
    )
}

/// `out[index[i], ..] = source[i, ..]`.
fn index_copy<'g>(lw: &mut Lower<'g>, call: &Call<'g>) -> Result<Vec<Tensor>> {
    let source = lw.arg(call, "source")?;
    let exprs = lw.exprs;
    write_rows(
        lw,
        call,
        false,
        StoreMode::Set,
        |t, index, dim| indexed_rows(exprs, t, index, dim),
        |body, at, _| {
            // Either may have one element and no dimension.
            let mut at = at.to_vec();
            at.resize(source.sizes.len(), exprs.int(0));
            Ok(body.load(&source, &at))
        },
    )
}

/// `out[index[i], ..] = value`. Unlike its siblings, it takes negative indices.
fn index_fill<'g>(lw: &mut Lower<'g>, call: &Call<'g>) -> Result<Vec<Tensor>> {
    let value = source(lw, call, "value")?;
    let exprs = lw.exprs;
    write_rows(
        lw,
        call,
        true,
        StoreMode::Set,
        |t, index, dim| indexed_rows(exprs, t, index, dim),
        |body, _, dtype| match &value {
            Source::Number(s) => Ok(body.constant(*s, dtype)),
            Source::Tensor(t) if t.sizes.is_empty() => {
                let v = body.load(t, &[]);
                Ok(body.cast(v, dtype.compute()))
            }
            Source::Tensor(_) => Err(Error::input("the value must be a number")),
        },
    )
}

/// `self[indices] = values`, or `+=`.
fn index_put<'g>(lw: &mut Lower<'g>, call: &Call<'g>) -> Result<Vec<Tensor>> {
    let t = lw.arg(call, "self")?;
    let indices = call.opt_list("indices")?;
    let values = lw.arg(call, "values")?;
    let accumulate = call.bool("accumulate")?;
    if let [Some(mask)] = indices.as_slice()
        && matches!(call.type_of(*mask)?.dtype, DType::Bool)
    {
        return put_masked(lw, &t, *mask, &values, accumulate);
    }
    let a = Advanced::new(call, &indices, &t.sizes)?;
    let mode = if accumulate {
        StoreMode::Add
    } else {
        StoreMode::Set
    };
    let out = target(lw, &t, mode);
    let mut body = lw.body(&a.sizes);
    let outer = body.outer();
    let at = a.source(lw, &mut body, &outer, &t.sizes)?;
    let v = body.load_broadcast(&values);
    let v = body.cast(v, t.dtype.compute());
    let coords = out.at(lw.exprs, &at);
    body.store_with(out.buf, &coords, v, mode, None);
    lw.push(body);
    Ok(vec![arrived(lw, out, t.dtype)])
}

/// `self[mask] = value` for one value: a choice for each element. More values than one would have to be counted off.
fn put_masked<'g>(
    lw: &mut Lower<'g>,
    t: &Tensor,
    mask: ValueId,
    values: &Tensor,
    accumulate: bool,
) -> Result<Vec<Tensor>> {
    let exprs = lw.exprs;
    let mask = lw.tensor(mask)?;
    let one_value = values.sizes.iter().all(|s| exprs.is_int(*s, 1));
    if !one_value || mask.sizes.len() > t.sizes.len() {
        return Err(Error::unsupported(
            "writing several values by a mask: their places depend on the data",
        ));
    }
    let mut body = lw.body(&t.sizes);
    let at = body.outer();
    // A mask of fewer dimensions covers the leading ones.
    let m = body.load(&mask, &at[..mask.sizes.len()]);
    let old = body.load(t, &at);
    let zeros = vec![exprs.int(0); values.sizes.len()];
    let mut new = body.load(values, &zeros);
    new = body.cast(new, t.dtype.compute());
    if accumulate {
        new = body.op(ScalarOp::Add, &[old, new]);
    }
    let v = body.select(m, new, old);
    Ok(vec![lw.store_new(body, v, t.dtype, &t.sizes)])
}

pub const ROWS: &[Row] = &[
    lowered(
        "aten.scatter.src",
        "(Tensor self, int dim, Tensor index, Tensor src) -> Tensor",
        scatter_meta,
        |lw, call| scatter(lw, call, "src", StoreMode::Set),
        "(f32[4,5], 0, i64[1,3]{0:3}, f32[2,3])",
    ),
    lowered(
        "aten.scatter.value",
        "(Tensor self, int dim, Tensor index, Scalar value) -> Tensor",
        scatter_meta,
        |lw, call| scatter(lw, call, "value", StoreMode::Set),
        "(f32[4,5], 1, i64[3,2]{0:4}, 2.5)",
    ),
    lowered(
        "aten.scatter.reduce",
        "(Tensor self, int dim, Tensor index, Tensor src, *, str reduce) -> Tensor",
        scatter_meta,
        |lw, call| scatter(lw, call, "src", named_mode(call)?),
        "(f32[4,5], 1, i64[3,2]{0:4}, f32[3,2], reduce=\"multiply\")",
    ),
    lowered(
        "aten.scatter.value_reduce",
        "(Tensor self, int dim, Tensor index, Scalar value, *, str reduce) -> Tensor",
        scatter_meta,
        |lw, call| scatter(lw, call, "value", named_mode(call)?),
        "(f32[4,5], 1, i64[3,2]{0:4}, 2.5, reduce=\"add\")",
    ),
    lowered(
        "aten.scatter_add.default",
        "(Tensor self, int dim, Tensor index, Tensor src) -> Tensor",
        scatter_meta,
        |lw, call| scatter(lw, call, "src", StoreMode::Add),
        "(f32[4,5], 0, i64[6,5]{0:3}, f32[6,5])",
    ),
    lowered(
        "aten.scatter_reduce.two",
        "(Tensor self, int dim, Tensor index, Tensor src, str reduce, *, bool include_self=True) -> Tensor",
        scatter_meta,
        scatter_reduce,
        "(f32[4], 0, i64[6]{0:3}, f32[6], \"mean\", include_self=false)",
    ),
    lowered(
        "aten.index_add.default",
        "(Tensor self, int dim, Tensor index, Tensor source, *, Scalar alpha=1) -> Tensor",
        rows_meta,
        index_add,
        "(f32[4,3], 0, i64[5]{0:3}, f32[5,3], alpha=2)",
    ),
    lowered(
        "aten.index_copy.default",
        "(Tensor self, int dim, Tensor index, Tensor source) -> Tensor",
        rows_meta,
        index_copy,
        "(f32[3,4], 1, i64[1]{0:3}, f32[3,1])",
    ),
    lowered(
        "aten.index_fill.int_Scalar",
        "(Tensor self, int dim, Tensor index, Scalar value) -> Tensor",
        same_meta,
        index_fill,
        "(f32[3,4], 1, i64[2]{-4:3}, 7)",
    ),
    lowered(
        "aten.index_fill.int_Tensor",
        "(Tensor self, int dim, Tensor index, Tensor value) -> Tensor",
        same_meta,
        index_fill,
        "(f32[3,4], 0, i64[2]{0:2}, f32[])",
    ),
    lowered(
        "aten.index_put.default",
        "(Tensor self, Tensor?[] indices, Tensor values, bool accumulate=False) -> Tensor",
        put_meta,
        index_put,
        "(f32[4,5], [i64[3]{-4:3}, i64[3]{0:4}], f32[3], true)",
    ),
    lowered(
        "aten._unsafe_index_put.default",
        "(Tensor self, Tensor?[] indices, Tensor values, bool accumulate=False) -> Tensor",
        put_meta,
        index_put,
        "(f32[4,5], [bool[4]], f32[])",
    ),
];
