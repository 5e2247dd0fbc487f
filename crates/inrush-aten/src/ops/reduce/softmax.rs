//! Softmax and its relatives.
//!
//! Subtracting a row's maximum first keeps `exp` at most 1:
//!
//! ```text
//! e = exp(x - max(x))       softmax = e / sum(e)       log_softmax = x - max(x) - log(sum(e))
//! ```
//!
//! Written so, it is three passes over a row; the scheduler fuses them and may make the first two
//! one (online softmax). Halves are computed in `f32` and rounded once. The three forms differ in a
//! row of nothing but `-inf` only: `softmax` gives NaN, `_safe_softmax` zeros, `logsumexp` `-inf`.

use crate::ops::B;
use crate::ops::decomposed as row;
use crate::{Args, Builder, Row};
use inrush_base::{DType, Error, Result};
use inrush_expr::Expr;
use inrush_graph::{Arg, ValueId};

/// The input as it is computed, the dimension, and the dtype of the result.
/// Common to the operators with one dimension.
struct Setup {
    /// In the compute dtype of `dtype`.
    x: ValueId,
    /// A list of one dimension, for reductions.
    dim: Arg,
    /// The one that the call asks for, else the input's.
    dtype: DType,
    /// The dimension has no elements, so that there is nothing to compute.
    empty: bool,
}

/// Fails for a result that is not a float. `half_to_float` of the internal operators takes the
/// place of `dtype`: it asks for `f32`.
fn setup(b: B, args: &Args) -> Result<Setup> {
    let x = args.value("self")?;
    let t = b.tensor(x)?;
    let dim = args.dim("dim", t.rank())?;
    let asked = match args.op.schema().position("half_to_float") {
        Some(_) if args.bool("half_to_float")? => Some(DType::F32),
        Some(_) => None,
        None => args.dtype("dtype")?,
    };
    let dtype = asked.unwrap_or(t.dtype);
    if !dtype.is_float() {
        return Err(Error::input(format!("there is no softmax of {dtype}")));
    }
    let x = b.cast(x, dtype)?;
    let empty = t.sizes.get(dim).is_some_and(|s| b.exprs.is_int(*s, 0));
    Ok(Setup {
        x: b.widen(x)?,
        dim: b.ints(&[dim as i64]),
        dtype,
        empty,
    })
}

/// A sum that keeps its dimensions.
fn sum(b: B, x: ValueId, dims: &Arg) -> Result<ValueId> {
    b.call(
        "aten.sum.dim_IntList",
        &[x.into(), dims.clone(), true.into()],
    )
}

/// `x - max(x)`.
fn shifted(b: B, x: ValueId, dims: &Arg) -> Result<ValueId> {
    let max = b.call("aten.amax.default", &[x.into(), dims.clone(), true.into()])?;
    b.sub(x, max)
}

/// Divides the exponents by their sum.
fn normalized(b: B, e: Exponents, dtype: DType) -> Result<Vec<ValueId>> {
    // One division for each row rather than for each element.
    let scale = b.call("aten.reciprocal.default", &[e.total.into()])?;
    let y = b.mul(e.values, scale)?;
    Ok(vec![b.cast(y, dtype)?])
}

fn softmax(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let s = setup(b, args)?;
    if s.empty {
        return Ok(vec![b.cast(s.x, s.dtype)?]);
    }
    let e = exponents(b, s.x, &s.dim)?;
    normalized(b, e, s.dtype)
}

/// The logarithm is never taken of a quotient, which may underflow to 0.
fn log_softmax(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let s = setup(b, args)?;
    if s.empty {
        return Ok(vec![b.cast(s.x, s.dtype)?]);
    }
    let d = shifted(b, s.x, &s.dim)?;
    let e = b.call("aten.exp.default", &[d.into()])?;
    let total = sum(b, e, &s.dim)?;
    let log = b.call("aten.log.default", &[total.into()])?;
    let y = b.sub(d, log)?;
    Ok(vec![b.cast(y, s.dtype)?])
}

/// Exponents of the distance to the maximum, over some dimensions, which sum and maximum keep.
pub(in crate::ops) struct Exponents {
    /// `exp(x - max)`, of the sizes of `x`.
    pub values: ValueId,
    /// Sum of `values`; at least 1 for finite rows, since the maximum itself counts 1.
    pub total: ValueId,
    /// The subtracted number.
    pub max: ValueId,
}

/// [`Exponents`] with the extremes left as they are: a row of nothing but `-inf` gives NaN.
pub(in crate::ops) fn exponents(b: B, x: ValueId, dims: &Arg) -> Result<Exponents> {
    let max = b.call("aten.amax.default", &[x.into(), dims.clone(), true.into()])?;
    let d = b.sub(x, max)?;
    let values = b.call("aten.exp.default", &[d.into()])?;
    let total = sum(b, values, dims)?;
    Ok(Exponents { values, total, max })
}

/// [`Exponents`] where a row of nothing but `-inf` gives zeros and a sum of 1, so that dividing by
/// the sum gives zeros instead of NaN.
pub(in crate::ops) fn safe_exponents(b: B, x: ValueId, dims: &Arg) -> Result<Exponents> {
    let max = b.call("aten.amax.default", &[x.into(), dims.clone(), true.into()])?;
    let nothing = b.call(
        "aten.eq.Scalar",
        &[max.into(), Arg::Float(f64::NEG_INFINITY)],
    )?;
    let max = where_scalar(b, nothing, 0.0, max)?;
    let d = b.sub(x, max)?;
    let values = b.call("aten.exp.default", &[d.into()])?;
    let total = sum(b, values, dims)?;
    Ok(Exponents {
        values,
        total: where_scalar(b, nothing, 1.0, total)?,
        max,
    })
}

/// `value` where `mask` is true, `other` elsewhere.
pub(in crate::ops) fn where_scalar(
    b: B,
    mask: ValueId,
    value: f64,
    other: ValueId,
) -> Result<ValueId> {
    b.call(
        "aten.where.ScalarSelf",
        &[mask.into(), Arg::Float(value), other.into()],
    )
}

/// Softmax in which a row of nothing but `-inf` gives zeros, as attention wants it of a query
/// without keys.
fn safe_softmax(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let s = setup(b, args)?;
    if s.empty {
        return Ok(vec![b.cast(s.x, s.dtype)?]);
    }
    let e = safe_exponents(b, s.x, &s.dim)?;
    normalized(b, e, s.dtype)
}

/// `max + log(sum(exp(x - max)))`; a maximum that is infinite is not subtracted.
fn logsumexp(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let x = args.value("self")?;
    let t = b.tensor(x)?;
    let dtype = if t.dtype.is_float() {
        t.dtype
    } else {
        DType::F32
    };
    let mut dims = args.dims("dim", t.rank())?;
    if dims.is_empty() && t.rank() > 0 && !args.bool("keepdim")? {
        return Err(args.unsupported("dim", "eager refuses an empty list without `keepdim`"));
    }
    // Dimension 0 of a tensor without dimensions is the tensor itself.
    dims.retain(|d| *d < t.rank());
    if dims.is_empty() {
        dims = (0..t.rank()).collect();
    }
    let list = b.ints(&dims.iter().map(|d| *d as i64).collect::<Vec<_>>());
    let x = b.cast(x, dtype)?;
    let x = b.widen(x)?;
    let empty = dims.iter().any(|d| b.exprs.is_int(t.sizes[*d], 0));
    let mut y = if empty {
        // No terms: the logarithm of zero.
        let total = sum(b, x, &list)?;
        b.call("aten.log.default", &[total.into()])?
    } else {
        let max = b.call("aten.amax.default", &[x.into(), list.clone(), true.into()])?;
        let infinite = b.call("aten.isinf.default", &[max.into()])?;
        // `inf - inf` would be NaN; without the shift the sum is infinite and its logarithm right.
        let max = where_scalar(b, infinite, 0.0, max)?;
        let d = b.sub(x, max)?;
        let e = b.call("aten.exp.default", &[d.into()])?;
        let total = sum(b, e, &list)?;
        let log = b.call("aten.log.default", &[total.into()])?;
        b.add(log, max)?
    };
    if !args.bool("keepdim")? {
        let sizes: Vec<Expr> = t
            .sizes
            .iter()
            .enumerate()
            .filter(|(d, _)| !dims.contains(d))
            .map(|(_, s)| *s)
            .collect();
        y = b.call("aten.view.default", &[y.into(), sizes.into()])?;
    }
    Ok(vec![b.cast(y, dtype)?])
}

pub const ROWS: &[Row] = &[
    row(
        "aten.softmax.int",
        "(Tensor self, int dim, ScalarType? dtype=None) -> Tensor",
        softmax,
        "(f32[2,3,4], 1)",
    ),
    row(
        "aten._softmax.default",
        "(Tensor self, int dim, bool half_to_float) -> Tensor",
        softmax,
        "(f16[3,4], -1, false)",
    ),
    row(
        "aten.log_softmax.int",
        "(Tensor self, int dim, ScalarType? dtype=None) -> Tensor",
        log_softmax,
        "(f32[3,4], -1, f64)",
    ),
    row(
        "aten._log_softmax.default",
        "(Tensor self, int dim, bool half_to_float) -> Tensor",
        log_softmax,
        "(f32[3,4], 0, false)",
    ),
    row(
        "aten._safe_softmax.default",
        "(Tensor self, int dim, ScalarType? dtype=None) -> Tensor",
        safe_softmax,
        "(f32[3,4], -1)",
    ),
    row(
        "aten.logsumexp.default",
        "(Tensor self, int[1] dim, bool keepdim=False) -> Tensor",
        logsumexp,
        "(f32[3,4], [1])",
    ),
];
