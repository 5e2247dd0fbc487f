//! Reductions over dimensions.

use crate::call::{Args, Call};
use crate::{Builder, Lower, Meta, Route, Row, Tensor, meta};
use inrush_base::{DType, Result};
use inrush_expr::{Expr, Exprs};
use inrush_graph::{Arg, Type, ValueId};
use inrush_loops::ReduceOp;

/// Which dimensions a reduction runs over: those that `dim` names, all when it names none (or is not a parameter).
pub(super) fn reduced_dims(args: &Args, rank: usize) -> Result<Vec<bool>> {
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

fn keepdim(args: &Args) -> Result<bool> {
    if args.given("keepdim") {
        args.bool("keepdim")
    } else {
        Ok(false)
    }
}

/// Sizes after a reduction.
pub(super) fn reduced_sizes(
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
pub(super) fn reduce_meta(call: &Call, dtype: DType) -> Result<Vec<Type>> {
    let t = call.tensor("self")?;
    let reduced = reduced_dims(call, t.rank())?;
    let sizes = reduced_sizes(call.exprs, &t.sizes, &reduced, keepdim(call)?);
    meta::one(call.exprs, dtype, sizes)
}

/// A reduction in the making: a body whose outer axes are the dimensions that stay, and the indices of the source.
pub(super) struct Reduction<'g> {
    pub body: crate::BodyBuilder<'g>,
    /// Index expression of every dimension of the source.
    pub at: Vec<Expr>,
    pub outer_sizes: Vec<Expr>,
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
pub(super) fn keep_dims(exprs: &Exprs, t: Tensor, reduced: &[bool], keepdim: bool) -> Tensor {
    if !keepdim {
        return t;
    }
    let mut sizes = Vec::with_capacity(reduced.len());
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

fn sum_meta(call: &Call) -> Result<Vec<Type>> {
    reduce_meta(call, sum_dtype(call)?)
}

fn same_meta(call: &Call) -> Result<Vec<Type>> {
    reduce_meta(call, call.tensor("self")?.dtype)
}

/// `sum / count`, with the sum in the result's dtype's compute precision.
fn mean(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let x = args.value("self")?;
    let t = b.tensor(x)?;
    let dtype = args.dtype("dtype")?.unwrap_or(t.dtype);
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
    let mean = match b.exprs.as_int(count) {
        Some(n) => b.call("aten.div.Tensor", &[sum.into(), Arg::Float(n as f64)])?,
        None => b.call("aten.div.Tensor", &[sum.into(), count.into()])?,
    };
    Ok(vec![b.cast(mean, dtype)?])
}

pub const ROWS: &[Row] = &[
    Row {
        name: "aten.sum.dim_IntList",
        schema: "(Tensor self, int[1]? dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor",
        meta: Meta::Fn(sum_meta),
        route: Route::Lower(|lw, call| {
            let dtype = call.out(0)?.dtype;
            reduce(lw, call, ReduceOp::Sum, dtype)
        }),
        example: "(f32[2,3,4], [0,-1], true)",
    },
    Row {
        name: "aten.amax.default",
        schema: "(Tensor self, int[1] dim=[], bool keepdim=False) -> Tensor",
        meta: Meta::Fn(same_meta),
        route: Route::Lower(|lw, call| {
            let dtype = call.out(0)?.dtype;
            reduce(lw, call, ReduceOp::Max, dtype)
        }),
        example: "(f32[2,3], [1])",
    },
    Row {
        name: "aten.mean.dim",
        schema: "(Tensor self, int[1]? dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor",
        meta: Meta::Fn(|c| {
            let own = c.tensor("self")?.dtype;
            reduce_meta(c, c.dtype("dtype")?.unwrap_or(own))
        }),
        route: Route::Decompose(mean),
        example: "(f16[2,3], [1], true)",
    },
];
