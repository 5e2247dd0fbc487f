//! Reductions, scans, softmax.
//!
//! Two kinds of functions. Those that combine (`fold`) use the scalar operations of loops in the
//! domain of the result, so integers wrap and NaN propagates as there. Those of a whole row
//! (`rows`) get its elements as floats in order, and are plain formulas.
//!
//! Rows are summed in order in `f64`. For `f32` and halves that is exact enough to serve as the
//! reference of any order of summation.

use super::call::{Call, Floats};
use super::{Eval, domain, points, position};
use crate::tensor::Tensor;
use inrush_base::{DType, Error, Result, Scalar};
use inrush_loops::{ReduceOp, ScalarOp, eval};

pub(super) const TABLE: &[(&str, Eval)] = &[
    ("sum.dim_IntList", |c| folded(c, 1, ReduceOp::Sum)),
    ("sum", |c| folded(c, usize::MAX, ReduceOp::Sum)),
    ("prod.dim_int", |c| folded(c, 1, ReduceOp::Prod)),
    ("prod", |c| folded(c, usize::MAX, ReduceOp::Prod)),
    ("amax", |c| folded(c, 1, ReduceOp::Max)),
    ("amin", |c| folded(c, 1, ReduceOp::Min)),
    ("max", |c| folded(c, usize::MAX, ReduceOp::Max)),
    ("min", |c| folded(c, usize::MAX, ReduceOp::Min)),
    ("any.dim any.dims", |c| folded(c, 1, ReduceOp::Any)),
    ("any", |c| folded(c, usize::MAX, ReduceOp::Any)),
    ("all.dim all.dims", |c| folded(c, 1, ReduceOp::All)),
    ("all", |c| folded(c, usize::MAX, ReduceOp::All)),
    ("argmax", |c| extreme_at(c, ReduceOp::ArgMax, &[0])),
    ("argmin", |c| extreme_at(c, ReduceOp::ArgMin, &[0])),
    ("max.dim", |c| {
        with_index(c, ReduceOp::Max, ReduceOp::ArgMax)
    }),
    ("min.dim", |c| {
        with_index(c, ReduceOp::Min, ReduceOp::ArgMin)
    }),
    ("mean.dim", |c| {
        let dims = c.dims(1, c.tensor(0)?.rank())?;
        rows(c, &dims, |v| v.iter().sum::<f64>() / v.len() as f64)
    }),
    ("mean", |c| {
        let dims: Vec<usize> = (0..c.tensor(0)?.rank()).collect();
        rows(c, &dims, |v| v.iter().sum::<f64>() / v.len() as f64)
    }),
    ("var.dim", |c| {
        // `unbiased` is a correction of one.
        let n = c.bool(2, true)? as u8 as f64;
        spread(c, |v| variance(v, n))
    }),
    ("std.dim", |c| {
        let n = c.bool(2, true)? as u8 as f64;
        spread(c, |v| variance(v, n).sqrt())
    }),
    ("aminmax", |c| {
        let x = c.tensor(0)?;
        let dims = match c.opt_scalar(1)? {
            None => (0..x.rank()).collect(),
            Some(_) => c.dims(1, x.rank())?,
        };
        let mut out = fold(c, 0, &dims, ReduceOp::Min)?;
        out.extend(fold(c, 1, &dims, ReduceOp::Max)?);
        Ok(out)
    }),
    ("var.correction", |c| {
        let n = c.float(2, 1.0)?;
        spread(c, |v| variance(v, n))
    }),
    ("std.correction", |c| {
        let n = c.float(2, 1.0)?;
        spread(c, |v| variance(v, n).sqrt())
    }),
    ("var_mean.correction", |c| {
        let (n, dims) = (c.float(2, 1.0)?, c.dims(1, c.tensor(0)?.rank())?);
        let mut out = row_values(c, 0, &dims, 3, |v| variance(v, n))?;
        out.extend(row_values(c, 1, &dims, 3, mean)?);
        Ok(out)
    }),
    ("logsumexp", |c| {
        let dims = c.dims(1, c.tensor(0)?.rank())?;
        rows(c, &dims, |v| {
            let m = v.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            // An infinite maximum would give `inf - inf`. Without a shift `exp` gives 0 or
            // infinity, and the logarithm is right.
            let shift = if m.is_finite() { m } else { 0.0 };
            let sum: f64 = v.iter().map(|x| libm::exp(x - shift)).sum();
            libm::log(sum) + shift
        })
    }),
    ("cumsum", |c| running(c, ScalarOp::Add)),
    ("cumprod", |c| running(c, ScalarOp::Mul)),
    ("softmax.int _softmax", |c| {
        along(c, |v| {
            let (exps, sum) = exponentials(v);
            exps.into_iter().map(|e| e / sum).collect()
        })
    }),
    ("log_softmax.int _log_softmax", |c| {
        along(c, |v| {
            let m = v.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let (_, sum) = exponentials(v);
            v.iter().map(|x| x - m - libm::log(sum)).collect()
        })
    }),
];

/// Returns NaN for an empty row, as eager does.
pub(super) fn mean(v: &[f64]) -> f64 {
    v.iter().sum::<f64>() / v.len() as f64
}

/// Returns the sum of squared deviations over `n - correction`, at least zero.
pub(super) fn variance(v: &[f64], correction: f64) -> f64 {
    let m = mean(v);
    let sum: f64 = v.iter().map(|x| (x - m) * (x - m)).sum();
    sum / (v.len() as f64 - correction).max(0.0)
}

/// Returns `exp(x - max)` of each element, and their sum. A row of infinities gives NaN, as in
/// eager.
pub(super) fn exponentials(v: &[f64]) -> (Vec<f64>, f64) {
    let m = v.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let exps: Vec<f64> = v.iter().map(|x| libm::exp(x - m)).collect();
    let sum = exps.iter().sum();
    (exps, sum)
}

/// Builds result `k`: each element is `f` of the positions in the argument that it reduces, in
/// row-major order. Argument `keep` says whether reduced dimensions are kept as ones.
fn reduced(
    c: &Call,
    k: usize,
    dims: &[usize],
    keep: usize,
    mut f: impl FnMut(&[usize]) -> Result<Scalar>,
) -> Result<Tensor> {
    let x = &c.tensor(0)?.sizes;
    let kept = c.bool(keep, false)?;
    // Row-major order of the reduced elements needs ascending dimensions; `insert` below as well.
    let dims = dims_sorted(dims);
    let extents: Vec<i64> = dims.iter().map(|d| x[*d]).collect();
    let left = |(d, n): (usize, &i64)| {
        if dims.contains(&d) {
            kept.then_some(1)
        } else {
            Some(*n)
        }
    };
    let sizes: Vec<i64> = x.iter().enumerate().filter_map(left).collect();
    c.build(k, &sizes, |at| {
        let mut full = at.to_vec();
        // Reduced dimensions come back one by one from the front, so each insertion is at its
        // final place.
        if !kept {
            dims.iter().for_each(|d| full.insert(*d, 0));
        }
        let place = |inner: Vec<i64>| {
            for (d, i) in dims.iter().zip(&inner) {
                full[*d] = *i;
            }
            position(x, &full)
        };
        f(&points(&extents).map(place).collect::<Result<Vec<_>>>()?)
    })
}

fn dims_sorted(dims: &[usize]) -> Vec<usize> {
    let mut d = dims.to_vec();
    d.sort();
    d.dedup();
    d
}

/// Reduces with a combining operation over the dimensions in argument `k` (all if there is none).
/// `usize::MAX` stands for an overload without dimensions.
fn folded(c: &Call, k: usize, r: ReduceOp) -> Result<Vec<Tensor>> {
    let x = c.tensor(0)?;
    let dims = match k {
        usize::MAX => (0..x.rank()).collect(),
        _ => c.dims(k, x.rank())?,
    };
    fold(c, 0, &dims, r)
}

/// Builds result `k` as the reduction over `dims`.
fn fold(c: &Call, k: usize, dims: &[usize], r: ReduceOp) -> Result<Vec<Tensor>> {
    let x = c.tensor(0)?;
    let (dtype, _) = c.out(k)?;
    let d = match r {
        ReduceOp::Any | ReduceOp::All => DType::Bool,
        _ => domain(dtype),
    };
    let combine = eval::combiner(r).ok_or_else(|| Error::internal("an arg reduction"))?;
    // Extremes of booleans are their disjunction and conjunction.
    let combine = match (combine, d) {
        (ScalarOp::Maximum, DType::Bool) => ScalarOp::Or,
        (ScalarOp::Minimum, DType::Bool) => ScalarOp::And,
        (o, _) => o,
    };
    let out = reduced(c, k, dims, 2, |from| {
        // The result of an empty reduction. `amax` of no elements, which eager refuses, gives the
        // lowest value.
        let mut acc = eval::neutral(r, d);
        for p in from {
            acc = eval::op(combine, d, &[acc, x.get(*p)?.convert(d)])?;
        }
        Ok(acc)
    });
    Ok(vec![out?])
}

/// Returns the row-major index of the first extreme among the reduced elements.
fn first_extreme(x: &Tensor, r: ReduceOp, from: &[usize]) -> Result<usize> {
    let mut best: Option<(usize, Scalar)> = None;
    for (k, p) in from.iter().enumerate() {
        let v = x.get(*p)?;
        // Strictly: the first of equal elements wins, and the first NaN beats all numbers.
        if best.is_none_or(|(_, b)| eval::beats(r, x.dtype, v, b)) {
            best = Some((k, v));
        }
    }
    best.map(|b| b.0)
        .ok_or_else(|| Error::input("the extreme of no elements"))
}

/// Builds these results as positions of extremes, along the dimensions in argument 1. Without
/// dimensions a position is that in the flattened tensor.
fn extreme_at(c: &Call, r: ReduceOp, outs: &[usize]) -> Result<Vec<Tensor>> {
    let x = c.tensor(0)?;
    let dims = c.dims(1, x.rank())?;
    (outs.iter())
        .map(|k| {
            reduced(c, *k, &dims, 2, |from| {
                Ok(Scalar::Int(first_extreme(x, r, from)? as i64))
            })
        })
        .collect()
}

/// Builds an extreme and its position, the two results of `max.dim` and `min.dim`.
fn with_index(c: &Call, value: ReduceOp, at: ReduceOp) -> Result<Vec<Tensor>> {
    let mut out = folded(c, 1, value)?;
    out.extend(extreme_at(c, at, &[1])?);
    Ok(out)
}

/// Builds result `k` as `f` of the reduced elements; argument `keep` says if reduced dimensions
/// stay.
fn row_values(
    c: &Call,
    k: usize,
    dims: &[usize],
    keep: usize,
    f: impl Fn(&[f64]) -> f64,
) -> Result<Vec<Tensor>> {
    let x = c.floats(0)?;
    let out = reduced(c, k, dims, keep, |from| Ok(Scalar::Float(f(&x.all(from)?))));
    Ok(vec![out?])
}

fn rows(c: &Call, dims: &[usize], f: impl Fn(&[f64]) -> f64) -> Result<Vec<Tensor>> {
    row_values(c, 0, dims, 2, f)
}

/// Builds variances or deviations. `keepdim` is argument 3, after the correction.
fn spread(c: &Call, f: impl Fn(&[f64]) -> f64) -> Result<Vec<Tensor>> {
    let dims = c.dims(1, c.tensor(0)?.rank())?;
    row_values(c, 0, &dims, 3, f)
}

/// Builds running results along the dimension in argument 1. The accumulator stays in `f64` and
/// is rounded at each output.
fn running(c: &Call, op: ScalarOp) -> Result<Vec<Tensor>> {
    let x = c.tensor(0)?;
    let sizes = &x.sizes;
    let dtype = c.given(0, sizes)?;
    let d = domain(dtype);
    let mut out = Tensor::zeros(dtype, sizes)?;
    if x.rank() == 0 {
        out.set(0, x.get(0)?.convert(dtype))?;
        return Ok(vec![out]);
    }
    let dim = c.dim(1, x.rank())?;
    let mut heads = sizes.to_vec();
    // The first point of each row; none if the dimension is empty.
    heads[dim] = heads[dim].min(1);
    for mut at in points(&heads) {
        let mut acc: Option<Scalar> = None;
        for i in 0..sizes[dim] {
            at[dim] = i;
            let p = position(sizes, &at)?;
            let v = x.get(p)?.convert(d);
            let next = match acc {
                None => v,
                Some(a) => eval::op(op, d, &[a, v])?,
            };
            acc = Some(next);
            out.set(p, next.convert(dtype))?;
        }
    }
    Ok(vec![out])
}

/// Applies a function to each row along the dimension in argument 1.
fn along(c: &Call, f: impl Fn(&[f64]) -> Vec<f64>) -> Result<Vec<Tensor>> {
    let x = c.floats(0)?;
    let dim = c.dim(1, x.sizes.len())?;
    Ok(vec![each_row(&x, dim, f)?.tensor(c.given(0, &x.sizes)?)?])
}

/// `f` gives as many elements as it gets. A scalar is a row of one.
pub(super) fn each_row(x: &Floats, dim: usize, f: impl Fn(&[f64]) -> Vec<f64>) -> Result<Floats> {
    let mut out = Floats::zeros(&x.sizes)?;
    let mut heads = x.sizes.clone();
    if let Some(n) = heads.get_mut(dim) {
        *n = (*n).min(1);
    }
    for mut at in points(&heads) {
        let n = x.sizes.get(dim).copied().unwrap_or(1);
        let places: Vec<usize> = (0..n)
            .map(|i| {
                if let Some(a) = at.get_mut(dim) {
                    *a = i;
                }
                position(&x.sizes, &at)
            })
            .collect::<Result<_>>()?;
        let row = x.all(&places)?;
        for (p, v) in places.iter().zip(f(&row)) {
            out.data[*p] = v;
        }
    }
    Ok(out)
}
