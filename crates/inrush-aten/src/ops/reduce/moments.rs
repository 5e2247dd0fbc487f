//! Variances, norms and other reductions that are made of several.

use crate::ops::decomposed;
use crate::ops::reduce::reductions::reduced_dims;
use crate::{Args, Builder, Row};
use inrush_base::{Error, Result, Scalar};
use inrush_expr::Expr;
use inrush_graph::{Arg, ValueId};

/// The dimensions that a call reduces, and how many elements each row has.
fn reduced_list(b: &Builder, args: &Args, x: ValueId) -> Result<(Vec<i64>, Expr)> {
    let sizes = b.sizes(x)?;
    let reduced = reduced_dims(args, sizes.len())?;
    let dims: Vec<i64> = (0..sizes.len())
        .filter(|d| reduced[*d])
        .map(|d| d as i64)
        .collect();
    let count = b.exprs.product(dims.iter().map(|d| sizes[*d as usize]));
    Ok((dims, count))
}

/// The dimensions that a call reduces, as an argument for other reductions.
fn dims_arg(b: &Builder, args: &Args, x: ValueId) -> Result<(Arg, Expr)> {
    let (dims, count) = reduced_list(b, args, x)?;
    Ok((b.ints(&dims), count))
}

/// False for overloads without the parameter.
fn keepdim(args: &Args) -> Result<bool> {
    if args.given("keepdim") {
        args.bool("keepdim")
    } else {
        Ok(false)
    }
}

/// The mean over some dimensions, which it keeps, and the distances to it.
pub(in crate::ops) struct Centred {
    /// In the input's dtype, reduced dimensions of size 1.
    pub mean: ValueId,
    /// `x - mean`, of the sizes of `x`.
    pub centred: ValueId,
}

/// Centres `x` in two passes, of which kernels make one where that pays.
///
/// All is computed of distances to a pivot, the first element of each row. Sums are then as large as the deviation, whatever
/// the mean is, so that rounding loses nothing to a large mean; rows of equal elements are exactly 0.
/// ```text
/// near    = x - x[first]           small, whatever the mean
/// offset  = mean(near)
/// centred = near - offset          mean = x[first] + offset
/// ```
pub(in crate::ops) fn centred(b: &mut Builder, x: ValueId, dims: &[i64]) -> Result<Centred> {
    let sizes = b.sizes(x)?;
    let list = b.ints(dims);
    // A row that may be empty has no first element.
    let empty = (dims.iter()).any(|d| b.exprs.range(sizes[*d as usize]).lo < 1);
    let mut pivot = None;
    if !empty {
        let mut first = x;
        for d in dims {
            first = b.call(
                "aten.select.int",
                &[
                    first.into(),
                    Arg::Int(b.exprs.int(*d)),
                    Arg::Int(b.exprs.int(0)),
                ],
            )?;
            first = b.call(
                "aten.unsqueeze.default",
                &[first.into(), Arg::Int(b.exprs.int(*d))],
            )?;
        }
        pivot = Some(first);
    }
    // Without a pivot the distances are to zero: the plain two-pass form.
    let near = match pivot {
        Some(p) => b.sub(x, p)?,
        None => x,
    };
    let offset = b.call("aten.mean.dim", &[near.into(), list, true.into()])?;
    let centred = b.sub(near, offset)?;
    let mean = match pivot {
        Some(p) => b.add(p, offset)?,
        None => offset,
    };
    Ok(Centred { mean, centred })
}

/// Variance and mean in the compute dtype.
/// `sum((x - mean)^2) / max(count - correction, 0)`. `unbiased` of the older overloads is a
/// correction of 1 or 0.
fn variance(b: &mut Builder, args: &Args) -> Result<(ValueId, ValueId)> {
    let x = args.value("self")?;
    if !b.dtype(x)?.is_float() {
        return Err(Error::input(format!("variance of {}", b.dtype(x)?)));
    }
    let keep = keepdim(args)?;
    let (dims, count) = reduced_list(b, args, x)?;
    let correction = if args.op.schema().position("correction").is_some() {
        args.opt_scalar("correction")?.unwrap_or(Scalar::Int(1))
    } else {
        Scalar::Int(args.bool("unbiased")? as i64)
    };
    let x = b.widen(x)?;
    let Centred { mean, centred: d } = centred(b, x, &dims)?;
    let dims = b.ints(&dims);
    let sq = b.mul(d, d)?;
    let sum = b.call(
        "aten.sum.dim_IntList",
        &[sq.into(), dims.clone(), keep.into()],
    )?;
    // A divisor of 0 gives NaN or infinity, as in eager for rows of one element.
    let divisor = match (b.exprs.as_int(count), correction) {
        (Some(n), c) => Arg::Float((n as f64 - c.as_f64()).max(0.0)),
        (None, Scalar::Float(f)) if f.fract() != 0.0 => {
            return Err(args.unsupported("correction", "fractional, over a symbolic size"));
        }
        (None, c) => {
            let n = b.exprs.sub(count, b.exprs.int(c.as_i64()));
            Arg::Int(b.exprs.max(n, b.exprs.int(0)))
        }
    };
    let var = b.call("aten.div.Tensor", &[sum.into(), divisor])?;
    // The statistics keep their dimensions until here, because the centred input needs them.
    let mean = if keep {
        mean
    } else {
        b.call("aten.squeeze.dims", &[mean.into(), dims])?
    };
    Ok((var, mean))
}

/// Rounds a statistic to the dtype of the input.
fn finish(b: &mut Builder, args: &Args, v: ValueId) -> Result<ValueId> {
    let dtype = b.dtype(args.value("self")?)?;
    b.cast(v, dtype)
}

fn var(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let (var, _) = variance(b, args)?;
    Ok(vec![finish(b, args, var)?])
}

fn std(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let (var, _) = variance(b, args)?;
    let std = b.call("aten.sqrt.default", &[var.into()])?;
    Ok(vec![finish(b, args, std)?])
}

fn var_mean(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let (var, mean) = variance(b, args)?;
    Ok(vec![finish(b, args, var)?, finish(b, args, mean)?])
}

fn std_mean(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let (var, mean) = variance(b, args)?;
    let std = b.call("aten.sqrt.default", &[var.into()])?;
    Ok(vec![finish(b, args, std)?, finish(b, args, mean)?])
}

/// `(sum |x|^p)^(1/p)`, with the orders that are something simpler.
/// Orders 2, 1, 0 and the infinities need no power. `x` is not scaled first, so that its squares
/// may overflow.
fn norm_of(b: &mut Builder, args: &Args, order: f64) -> Result<Vec<ValueId>> {
    let x = args.value("self")?;
    let asked = if args.given("dtype") {
        args.dtype("dtype")?
    } else {
        None
    };
    let own = asked.unwrap_or(b.dtype(x)?);
    if !own.is_float() {
        return Err(Error::input(format!("norm of {own}")));
    }
    let (dims, _) = dims_arg(b, args, x)?;
    let keep: Arg = keepdim(args)?.into();
    let x = b.cast(x, own)?;
    let x = b.widen(x)?;
    let v = if order == 2.0 {
        let sq = b.mul(x, x)?;
        let sum = b.call("aten.sum.dim_IntList", &[sq.into(), dims, keep])?;
        b.call("aten.sqrt.default", &[sum.into()])?
    } else if order == 0.0 {
        let nonzero = b.call("aten.ne.Scalar", &[x.into(), Arg::Float(0.0)])?;
        // Counting in a float dtype gives the result's dtype at once.
        let ones = b.cast(nonzero, own.compute())?;
        b.call("aten.sum.dim_IntList", &[ones.into(), dims, keep])?
    } else {
        let size = b.call("aten.abs.default", &[x.into()])?;
        if order == f64::INFINITY {
            b.call("aten.amax.default", &[size.into(), dims, keep])?
        } else if order == f64::NEG_INFINITY {
            b.call("aten.amin.default", &[size.into(), dims, keep])?
        } else if order == 1.0 {
            b.call("aten.sum.dim_IntList", &[size.into(), dims, keep])?
        } else {
            let p = b.call("aten.pow.Tensor_Scalar", &[size.into(), Arg::Float(order)])?;
            let sum = b.call("aten.sum.dim_IntList", &[p.into(), dims, keep])?;
            b.call(
                "aten.pow.Tensor_Scalar",
                &[sum.into(), Arg::Float(1.0 / order)],
            )?
        }
    };
    Ok(vec![b.cast(v, own)?])
}

fn vector_norm(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let order = args.float("ord")?;
    norm_of(b, args, order)
}

fn norm(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let order = args.opt_scalar("p")?.map_or(2.0, Scalar::as_f64);
    norm_of(b, args, order)
}

/// The mean of what is not NaN.
/// The count is a sum too: it depends on data.
fn nanmean(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let x = args.value("self")?;
    let own = args.dtype("dtype")?.unwrap_or(b.dtype(x)?);
    let (dims, _) = dims_arg(b, args, x)?;
    let keep: Arg = keepdim(args)?.into();
    let x = b.cast(x, own)?;
    let x = b.widen(x)?;
    let sum = b.call(
        "aten.nansum.default",
        &[x.into(), dims.clone(), keep.clone()],
    )?;
    let nan = b.call("aten.isnan.default", &[x.into()])?;
    let number = b.call("aten.logical_not.default", &[nan.into()])?;
    let count = b.call("aten.sum.dim_IntList", &[number.into(), dims, keep])?;
    let mean = b.div(sum, count)?;
    Ok(vec![b.cast(mean, own)?])
}

const CORRECTION: &str =
    "(Tensor self, int[1]? dim=None, *, Scalar? correction=None, bool keepdim=False) -> Tensor";
const CORRECTION2: &str = "(Tensor self, int[1]? dim=None, *, Scalar? correction=None, bool keepdim=False) -> (Tensor, Tensor)";
const DIM: &str = "(Tensor self, int[1]? dim, bool unbiased=True, bool keepdim=False) -> Tensor";
const DIM2: &str =
    "(Tensor self, int[1]? dim, bool unbiased=True, bool keepdim=False) -> (Tensor, Tensor)";

pub const ROWS: &[Row] = &[
    decomposed(
        "aten.var.correction",
        CORRECTION,
        var,
        "(f32[2,5], [1], correction=0)",
    ),
    decomposed("aten.var.dim", DIM, var, "(f16[2,5], [1], true, true)"),
    decomposed(
        "aten.var.default",
        "(Tensor self, bool unbiased=True) -> Tensor",
        var,
        "(f32[2,5])",
    ),
    decomposed("aten.std.correction", CORRECTION, std, "(f32[2,5], [0,1])"),
    decomposed("aten.std.dim", DIM, std, "(f32[2,5], [1], false)"),
    decomposed(
        "aten.std.default",
        "(Tensor self, bool unbiased=True) -> Tensor",
        std,
        "(f32[2,5])",
    ),
    decomposed(
        "aten.var_mean.correction",
        CORRECTION2,
        var_mean,
        "(f32[2,5], [1], correction=0, keepdim=true)",
    ),
    decomposed(
        "aten.var_mean.default",
        "(Tensor self, bool unbiased=True) -> (Tensor, Tensor)",
        var_mean,
        "(f32[2,5])",
    ),
    decomposed("aten.var_mean.dim", DIM2, var_mean, "(f32[2,5], [1])"),
    decomposed(
        "aten.std_mean.correction",
        CORRECTION2,
        std_mean,
        "(f32[2,5], [1])",
    ),
    decomposed(
        "aten.std_mean.default",
        "(Tensor self, bool unbiased=True) -> (Tensor, Tensor)",
        std_mean,
        "(f32[2,5], false)",
    ),
    decomposed("aten.std_mean.dim", DIM2, std_mean, "(f32[2,5], [1])"),
    decomposed(
        "aten.linalg_vector_norm.default",
        "(Tensor self, Scalar ord=2, int[1]? dim=None, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor",
        vector_norm,
        "(f32[2,5], 3, [1], true)",
    ),
    decomposed(
        "aten.norm.Scalar",
        "(Tensor self, Scalar p=2) -> Tensor",
        norm,
        "(f32[2,5], 1)",
    ),
    decomposed(
        "aten.norm.ScalarOpt_dim",
        "(Tensor self, Scalar? p, int[1] dim, bool keepdim=False) -> Tensor",
        norm,
        "(f32[2,5], 2, [1], true)",
    ),
    decomposed(
        "aten.norm.ScalarOpt_dim_dtype",
        "(Tensor self, Scalar? p, int[1] dim, bool keepdim, *, ScalarType dtype) -> Tensor",
        norm,
        "(f32[2,5], inf, [1], true, dtype=f64)",
    ),
    decomposed(
        "aten.nanmean.default",
        "(Tensor self, int[1]? dim=None, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor",
        nanmean,
        "(f32[2,5], [1])",
    ),
];
