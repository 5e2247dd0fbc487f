//! Reductions over dimensions.
//!
//! A reduction is one body: parallel axes over the dimensions that stay, reduction axes over the
//! others.
//!
//! ```text
//! sum(x: f32[4,6,8], dim=1)      for i0 in 4, i1 in 8:  y[i0,i1] = sum over r0 in 6 of x[i0,r0,i1]
//! ```
//!
//! How it is split, ordered and vectorised is the scheduler's choice. Sums of halves accumulate in
//! `f32`, because loads widen; sums of integers are `i64` unless the call says otherwise.

use crate::call::{Args, Call};
use crate::ops::{decomposed, lowered};
use crate::{Builder, Lower, Row, Tensor, meta};
use inrush_base::{DType, Error, Result};
use inrush_expr::{Expr, Exprs};
use inrush_graph::{Arg, Type, ValueId};
use inrush_loops::{ReduceOp, ScalarOp};

/// Which dimensions a reduction runs over: those that `dim` names, all when it names none (or is not a parameter).
pub(in crate::ops) fn reduced_dims(args: &Args, rank: usize) -> Result<Vec<bool>> {
    let mut reduced = vec![false; rank];
    let named = match args.arg("dim") {
        Ok(Arg::Ints(_)) => args.dims("dim", rank)?,
        Ok(Arg::Int(_)) => vec![args.dim("dim", rank)?],
        _ => Vec::new(),
    };
    if named.is_empty() {
        reduced.fill(true);
    }
    for d in named {
        // Dimension 0 of a zero-dimensional tensor is no dimension.
        if d < rank {
            reduced[d] = true;
        }
    }
    Ok(reduced)
}

/// False for overloads without the parameter.
fn keepdim(args: &Args) -> Result<bool> {
    if args.given("keepdim") {
        args.bool("keepdim")
    } else {
        Ok(false)
    }
}

/// Sizes after a reduction.
pub(in crate::ops) fn reduced_sizes(
    exprs: &Exprs,
    sizes: &[Expr],
    reduced: &[bool],
    keepdim: bool,
) -> Vec<Expr> {
    sizes
        .iter()
        .zip(reduced)
        .filter_map(|(s, r)| match (r, keepdim) {
            (false, _) => Some(*s),
            (true, true) => Some(exprs.int(1)),
            (true, false) => None,
        })
        .collect()
}

/// Type of a reduction of `self` whose result has dtype `dtype(self)`.
pub(in crate::ops) fn reduce_meta(call: &Call, dtype: DType) -> Result<Vec<Type>> {
    let t = call.tensor("self")?;
    let reduced = reduced_dims(call, t.rank())?;
    let sizes = reduced_sizes(call.exprs, &t.sizes, &reduced, keepdim(call)?);
    meta::one(call.exprs, dtype, sizes)
}

/// A reduction in the making: a body whose outer axes are the dimensions that stay, and the indices of the source.
pub(in crate::ops) struct Reduction<'g> {
    /// Outer axes are the dimensions that stay, in order.
    pub body: crate::BodyBuilder<'g>,
    /// Index expression of every dimension of the source.
    pub at: Vec<Expr>,
    /// Sizes of the dimensions that stay.
    pub outer_sizes: Vec<Expr>,
    /// Per dimension of the source: true if it is reduced over.
    reduced: Vec<bool>,
    keepdim: bool,
}

impl<'g> Reduction<'g> {
    /// Starts a reduction of a tensor of these sizes over the dimensions that the call names.
    pub fn start(lw: &Lower<'g>, call: &Call, sizes: &[Expr]) -> Result<Self> {
        let reduced = reduced_dims(call, sizes.len())?;
        let pick = |want: bool| -> Vec<Expr> {
            sizes
                .iter()
                .zip(&reduced)
                .filter(|(_, r)| **r == want)
                .map(|(s, _)| *s)
                .collect()
        };
        let outer_sizes = pick(false);
        let mut body = lw.body(&outer_sizes);
        // Axes are parallel ones first; indices of the source are dealt out in the order of its
        // dimensions.
        let mut outer = body.outer().into_iter();
        let mut inner = body.reduce_axes(&pick(true)).into_iter();
        let at = reduced
            .iter()
            .filter_map(|r| if *r { inner.next() } else { outer.next() })
            .collect();
        Ok(Reduction {
            body,
            at,
            outer_sizes,
            reduced,
            keepdim: keepdim(call)?,
        })
    }

    /// Stores `value` for each outer point; reduced dimensions come back with size 1 if the call keeps them.
    pub fn finish(self, lw: &mut Lower<'g>, value: inrush_loops::StmtId, dtype: DType) -> Tensor {
        let out = lw.store_new(self.body, value, dtype, &self.outer_sizes);
        keep_dims(lw.exprs, out, &self.reduced, self.keepdim)
    }
}

/// Puts dimensions of size 1 where dimensions were reduced, if `keepdim`.
pub(in crate::ops) fn keep_dims(
    exprs: &Exprs,
    t: Tensor,
    reduced: &[bool],
    keepdim: bool,
) -> Tensor {
    if !keepdim {
        return t;
    }
    let mut sizes = Vec::with_capacity(reduced.len());
    // The result has sizes of the dimensions that stay only; those of size 1 are put between them.
    let mut kept = t.sizes.iter();
    for r in reduced {
        sizes.push(match r {
            true => exprs.int(1),
            false => *kept.next().expect("one size for each dimension that stays"),
        });
    }
    let map = crate::view::indices(exprs, &sizes)
        .into_iter()
        .zip(reduced)
        .filter(|(_, r)| !**r)
        .map(|(i, _)| i)
        .collect();
    t.view(exprs, &crate::View { sizes, map })
}

/// Reduces `self`, converted to `dtype`, with `op`.
fn reduce<'g>(
    lw: &mut Lower<'g>,
    call: &Call<'g>,
    op: ReduceOp,
    dtype: DType,
) -> Result<Vec<Tensor>> {
    let t = lw.arg(call, "self")?;
    let mut r = Reduction::start(lw, call, &t.sizes)?;
    let v = r.body.load(&t, &r.at);
    let v = if t.dtype == dtype {
        v
    } else {
        r.body.cast(v, dtype)
    };
    let v = r.body.reduce(op, v);
    let out = call.out(0)?.dtype;
    Ok(vec![r.finish(lw, v, out)])
}

/// dtype of sums and products: the one asked for, `i64` for integers and bools.
fn sum_dtype(call: &Call) -> Result<DType> {
    let own = call.tensor("self")?.dtype;
    let asked = if call.given("dtype") {
        call.dtype("dtype")?
    } else {
        None
    };
    Ok(asked.unwrap_or(if own.is_float() { own } else { DType::I64 }))
}

/// Types of sums and products.
fn sum_meta(call: &Call) -> Result<Vec<Type>> {
    reduce_meta(call, sum_dtype(call)?)
}

/// Type of a reduction that keeps the dtype.
fn same_meta(call: &Call) -> Result<Vec<Type>> {
    reduce_meta(call, call.tensor("self")?.dtype)
}

/// `sum / count`, with the sum in the result's dtype's compute precision.
/// An empty row gives `0 / 0`, NaN.
fn mean(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let x = args.value("self")?;
    let t = b.tensor(x)?;
    let dtype = args.dtype("dtype")?.unwrap_or(t.dtype);
    if !dtype.is_float() {
        return Err(Error::input(format!("mean of {dtype}")));
    }
    let reduced = reduced_dims(args, t.rank())?;
    let count = b.exprs.product(
        t.sizes
            .iter()
            .zip(&reduced)
            .filter(|(_, r)| **r)
            .map(|(s, _)| *s),
    );
    let x = b.cast(x, dtype)?;
    let dims: Vec<i64> = (0..t.rank())
        .filter(|d| reduced[*d])
        .map(|d| d as i64)
        .collect();
    let sum = b.call(
        "aten.sum.dim_IntList",
        &[
            x.into(),
            b.ints(&dims),
            keepdim(args)?.into(),
            dtype.compute().into(),
        ],
    )?;
    let mean = b.div(sum, count)?;
    Ok(vec![b.cast(mean, dtype)?])
}

/// Extremes of nothing have no value.
/// A symbolic size passes: it is not known to be 0.
fn refuse_empty(call: &Call) -> Result<()> {
    let sizes = &call.tensor("self")?.sizes;
    let reduced = reduced_dims(call, sizes.len())?;
    let mut reduced = sizes.iter().zip(&reduced).filter(|(_, r)| **r);
    match reduced.any(|(s, _)| call.exprs.is_int(*s, 0)) {
        true => Err(Error::input("an extreme of no elements")),
        false => Ok(()),
    }
}

/// Type of `amax`, `max` and their kind.
fn extreme_meta(call: &Call) -> Result<Vec<Type>> {
    refuse_empty(call)?;
    same_meta(call)
}

/// NaN wins, as in eager: [`ReduceOp::Max`] and `Min` are defined so.
fn extreme<'g>(lw: &mut Lower<'g>, call: &Call<'g>, op: ReduceOp) -> Result<Vec<Tensor>> {
    let t = lw.arg(call, "self")?;
    reduce(lw, call, op, t.dtype)
}

/// `max.dim`, `min.dim`: the extreme and the index of its first occurrence, in one body.
/// Both reductions read the same load, so one pass over the row gives both.
fn extreme_with_index<'g>(
    lw: &mut Lower<'g>,
    call: &Call<'g>,
    op: ReduceOp,
    arg: ReduceOp,
) -> Result<Vec<Tensor>> {
    let t = lw.arg(call, "self")?;
    let mut r = Reduction::start(lw, call, &t.sizes)?;
    let v = r.body.load(&t, &r.at);
    let value = r.body.reduce(op, v);
    let index = r.body.reduce(arg, v);
    let (values, indices) = (
        lw.temp(t.dtype, &r.outer_sizes),
        lw.temp(DType::I64, &r.outer_sizes),
    );
    let at = r.body.outer();
    r.body.store(values.buf, &at, value);
    r.body.store(indices.buf, &at, index);
    lw.push(r.body);
    Ok([values, indices]
        .map(|t| keep_dims(lw.exprs, t, &r.reduced, r.keepdim))
        .into())
}

/// The type of indices of extremes.
fn index_meta(call: &Call) -> Result<Vec<Type>> {
    refuse_empty(call)?;
    reduce_meta(call, DType::I64)
}

/// Values and `i64` indices, of the same sizes.
fn extreme_with_index_meta(call: &Call) -> Result<Vec<Type>> {
    let mut types = extreme_meta(call)?;
    types.extend(reduce_meta(call, DType::I64)?);
    Ok(types)
}

/// The index of the first extreme; over all dimensions, in row-major order.
fn arg_extreme<'g>(lw: &mut Lower<'g>, call: &Call<'g>, op: ReduceOp) -> Result<Vec<Tensor>> {
    let t = lw.arg(call, "self")?;
    let mut r = Reduction::start(lw, call, &t.sizes)?;
    let v = r.body.load(&t, &r.at);
    let v = r.body.reduce(op, v);
    Ok(vec![r.finish(lw, v, DType::I64)])
}

/// `any`, `all`: of bytes they are bytes, of everything else bools.
fn truth_meta(call: &Call) -> Result<Vec<Type>> {
    let dtype = match call.tensor("self")?.dtype {
        DType::U8 => DType::U8,
        _ => DType::Bool,
    };
    reduce_meta(call, dtype)
}

/// Elements become bools first: NaN is true.
fn truth<'g>(lw: &mut Lower<'g>, call: &Call<'g>, op: ReduceOp) -> Result<Vec<Tensor>> {
    reduce(lw, call, op, DType::Bool)
}

/// Reduces what `map` makes of each element.
/// Always a sum; the map decides what is summed, and must give a value of the compute dtype.
fn reduce_mapped<'g>(
    lw: &mut Lower<'g>,
    call: &Call<'g>,
    map: fn(&mut crate::BodyBuilder<'g>, inrush_loops::StmtId, DType) -> inrush_loops::StmtId,
) -> Result<Vec<Tensor>> {
    let t = lw.arg(call, "self")?;
    let dtype = call.out(0)?.dtype;
    let mut r = Reduction::start(lw, call, &t.sizes)?;
    let v = r.body.load(&t, &r.at);
    let v = map(&mut r.body, v, dtype);
    // Accumulates in the dtype that the map gives.
    let v = r.body.reduce(ReduceOp::Sum, v);
    Ok(vec![r.finish(lw, v, dtype)])
}

fn count_nonzero<'g>(lw: &mut Lower<'g>, call: &Call<'g>) -> Result<Vec<Tensor>> {
    reduce_mapped(lw, call, |b, v, _| {
        let v = b.cast(v, DType::Bool);
        b.cast(v, DType::I64)
    })
}

/// A sum in which NaN counts as zero.
fn nansum<'g>(lw: &mut Lower<'g>, call: &Call<'g>) -> Result<Vec<Tensor>> {
    reduce_mapped(lw, call, |b, v, dtype| {
        let v = if b.dtype(v).is_float() {
            let nan = b.op(ScalarOp::IsNan, &[v]);
            let zero = b.float(0.0, b.dtype(v));
            b.select(nan, zero, v)
        } else {
            v
        };
        b.cast(v, dtype.compute())
    })
}

/// Two reductions of one input, which the scheduler may fuse.
fn aminmax(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let x = args.value("self")?;
    let dims = match args.opt_int("dim")? {
        Some(d) => Arg::Ints(vec![d]),
        None => Arg::Ints(Vec::new()),
    };
    let keep: Arg = args.bool("keepdim")?.into();
    let low = b.call("aten.amin.default", &[x.into(), dims.clone(), keep.clone()])?;
    let high = b.call("aten.amax.default", &[x.into(), dims, keep])?;
    Ok(vec![low, high])
}

fn sum<'g>(lw: &mut Lower<'g>, call: &Call<'g>) -> Result<Vec<Tensor>> {
    let dtype = call.out(0)?.dtype;
    reduce(lw, call, ReduceOp::Sum, dtype)
}

fn prod<'g>(lw: &mut Lower<'g>, call: &Call<'g>) -> Result<Vec<Tensor>> {
    let dtype = call.out(0)?.dtype;
    reduce(lw, call, ReduceOp::Prod, dtype)
}

pub const ROWS: &[Row] = &[
    lowered(
        "aten.sum.default",
        "(Tensor self, *, ScalarType? dtype=None) -> Tensor",
        sum_meta,
        sum,
        "(bool[2,3])",
    ),
    lowered(
        "aten.sum.dim_IntList",
        "(Tensor self, int[1]? dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor",
        sum_meta,
        sum,
        "(f32[2,3,4], [0,-1], true)",
    ),
    lowered(
        "aten.prod.default",
        "(Tensor self, *, ScalarType? dtype=None) -> Tensor",
        sum_meta,
        prod,
        "(f32[2,3])",
    ),
    lowered(
        "aten.prod.dim_int",
        "(Tensor self, int dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor",
        sum_meta,
        prod,
        "(i32[2,3], 1)",
    ),
    lowered(
        "aten.nansum.default",
        "(Tensor self, int[1]? dim=None, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor",
        sum_meta,
        nansum,
        "(f32[2,3], [1])",
    ),
    lowered(
        "aten.count_nonzero.default",
        "(Tensor self, int? dim=None) -> Tensor",
        |c| reduce_meta(c, DType::I64),
        count_nonzero,
        "(f32[2,3])",
    ),
    lowered(
        "aten.count_nonzero.dim_IntList",
        "(Tensor self, int[] dim) -> Tensor",
        |c| reduce_meta(c, DType::I64),
        count_nonzero,
        "(i64[2,3]{0:2}, [1])",
    ),
    lowered(
        "aten.amax.default",
        "(Tensor self, int[1] dim=[], bool keepdim=False) -> Tensor",
        extreme_meta,
        |lw, c| extreme(lw, c, ReduceOp::Max),
        "(f32[2,3], [1])",
    ),
    lowered(
        "aten.amin.default",
        "(Tensor self, int[1] dim=[], bool keepdim=False) -> Tensor",
        extreme_meta,
        |lw, c| extreme(lw, c, ReduceOp::Min),
        "(f32[2,3], [0], true)",
    ),
    lowered(
        "aten.max.default",
        "(Tensor self) -> Tensor",
        extreme_meta,
        |lw, c| extreme(lw, c, ReduceOp::Max),
        "(i64[2,3])",
    ),
    lowered(
        "aten.min.default",
        "(Tensor self) -> Tensor",
        extreme_meta,
        |lw, c| extreme(lw, c, ReduceOp::Min),
        "(f32[2,3])",
    ),
    lowered(
        "aten.max.dim",
        "(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)",
        extreme_with_index_meta,
        |lw, c| extreme_with_index(lw, c, ReduceOp::Max, ReduceOp::ArgMax),
        "(f32[2,3], 1, true)",
    ),
    lowered(
        "aten.min.dim",
        "(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)",
        extreme_with_index_meta,
        |lw, c| extreme_with_index(lw, c, ReduceOp::Min, ReduceOp::ArgMin),
        "(i64[2,3], 0)",
    ),
    lowered(
        "aten.argmax.default",
        "(Tensor self, int? dim=None, bool keepdim=False) -> Tensor",
        index_meta,
        |lw, c| arg_extreme(lw, c, ReduceOp::ArgMax),
        "(f32[2,3], 1)",
    ),
    lowered(
        "aten.argmin.default",
        "(Tensor self, int? dim=None, bool keepdim=False) -> Tensor",
        index_meta,
        |lw, c| arg_extreme(lw, c, ReduceOp::ArgMin),
        "(f32[2,3])",
    ),
    lowered(
        "aten.any.default",
        "(Tensor self) -> Tensor",
        truth_meta,
        |lw, c| truth(lw, c, ReduceOp::Any),
        "(f32[2,3])",
    ),
    lowered(
        "aten.any.dim",
        "(Tensor self, int dim, bool keepdim=False) -> Tensor",
        truth_meta,
        |lw, c| truth(lw, c, ReduceOp::Any),
        "(bool[2,3], 1)",
    ),
    lowered(
        "aten.any.dims",
        "(Tensor self, int[]? dim=None, bool keepdim=False) -> Tensor",
        truth_meta,
        |lw, c| truth(lw, c, ReduceOp::Any),
        "(bool[2,3], [0,1], true)",
    ),
    lowered(
        "aten.all.default",
        "(Tensor self) -> Tensor",
        truth_meta,
        |lw, c| truth(lw, c, ReduceOp::All),
        "(bool[2,3])",
    ),
    lowered(
        "aten.all.dim",
        "(Tensor self, int dim, bool keepdim=False) -> Tensor",
        truth_meta,
        |lw, c| truth(lw, c, ReduceOp::All),
        "(u8[2,3]{0:1}, 1)",
    ),
    lowered(
        "aten.all.dims",
        "(Tensor self, int[]? dim=None, bool keepdim=False) -> Tensor",
        truth_meta,
        |lw, c| truth(lw, c, ReduceOp::All),
        "(bool[2,3], [1])",
    ),
    decomposed(
        "aten.mean.default",
        "(Tensor self, *, ScalarType? dtype=None) -> Tensor",
        mean,
        "(f32[2,3])",
    ),
    decomposed(
        "aten.mean.dim",
        "(Tensor self, int[1]? dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor",
        mean,
        "(f16[2,3], [1], true)",
    ),
    decomposed(
        "aten.aminmax.default",
        "(Tensor self, *, int? dim=None, bool keepdim=False) -> (Tensor min, Tensor max)",
        aminmax,
        "(f32[2,3], dim=1)",
    ),
];
