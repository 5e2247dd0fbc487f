//! Distances between rows, norms of slices and what is scaled by them.
//!
//! ```text
//! cdist(x1: [P, M], x2: [R, M])  =  norm over m of (x1[p, m] - x2[r, m])        [P, R]
//! pdist(x: [N, M])               =  the same for pairs p < r of rows             [N(N-1)/2]
//! ```
//!
//! Differences need no memory: broadcasting, subtraction and norm fuse into one reduction.
//! The gradient of a distance `d` in the p-norm is `sign(d_m) |d_m|^(p-1) / d^(p-1)` for each
//! component, with 0 where `d` is 0.

use crate::ops::B;
use crate::ops::decomposed as row;
use crate::{Args, Builder, Row};
use inrush_base::{Error, Result};
use inrush_graph::{Arg, ValueId};

/// Every row of `x1` less every row of `x2`.
fn differences(b: B, args: &Args) -> Result<ValueId> {
    let (x, y) = (args.value("x1")?, args.value("x2")?);
    let column = b.call("aten.unsqueeze.default", &[x.into(), b.int(-2)])?;
    let row = b.call("aten.unsqueeze.default", &[y.into(), b.int(-3)])?;
    b.sub(column, row)
}

/// Ignores `compute_mode`, which chooses between this form and one by a matrix product.
fn cdist(b: B, args: &Args) -> Result<Vec<ValueId>> {
    let d = differences(b, args)?;
    let p = Arg::Float(args.float("p")?);
    let last = b.ints(&[-1]);
    Ok(vec![b.call(
        "aten.linalg_vector_norm.default",
        &[d.into(), p, last],
    )?])
}

/// How a distance grows with each difference: `sign(d) |d|^(p - 1) / distance^(p - 1)`, 0 where rows are equal.
fn slope(b: B, d: ValueId, distance: ValueId, p: f64) -> Result<ValueId> {
    // The number of differing components is constant almost everywhere. Scaling keeps NaN.
    if p == 0.0 {
        return b.scale(d, 0.0);
    }
    let sign = b.unary("aten.sign.default", d)?;
    if p == 1.0 {
        return Ok(sign);
    }
    let size = b.unary("aten.abs.default", d)?;
    // Only the greatest components move the maximum norm; several that tie all get the slope.
    let ratio = if p.is_infinite() {
        let most = b.call("aten.eq.Tensor", &[size.into(), distance.into()])?;
        b.select_or(most, sign, 0.0)?
    } else if p == 2.0 {
        // `sign(d) |d|` is `d`, without a power.
        b.div(d, distance)?
    } else {
        let q = b.div(size, distance)?;
        let q = b.by("aten.pow.Tensor_Scalar", q, p - 1.0)?;
        b.mul(sign, q)?
    };
    // 0 / 0 of equal rows would be NaN.
    let apart = b.by("aten.ne.Scalar", distance, 0.0)?;
    b.select_or(apart, ratio, 0.0)
}

/// The gradient of the first argument; without elements it has that argument's own sizes, not those of the batch.
fn cdist_backward(b: B, args: &Args) -> Result<Vec<ValueId>> {
    let (g, p) = (args.value("grad")?, args.float("p")?);
    let x = b.tensor(args.value("x1")?)?;
    let both = [b.sizes(g)?, x.sizes.clone()].concat();
    if both.iter().any(|s| b.exprs.is_int(*s, 0)) {
        return Ok(vec![b.full(&x.sizes, 0.0, x.dtype)?]);
    }
    let d = differences(b, args)?;
    let last = b.int(-1);
    let column = |b: B, v: ValueId| b.call("aten.unsqueeze.default", &[v.into(), last.clone()]);
    let (g, distance) = (column(b, g)?, column(b, args.value("cdist")?)?);
    let slope = slope(b, d, distance, p)?;
    let product = b.mul(slope, g)?;
    Ok(vec![b.sum(product, &[-2], false)?])
}

/// The first and the second row of each pair: all pairs of different rows in lexicographic order.
fn pairs(b: B, x: ValueId) -> Result<[ValueId; 2]> {
    let [n, _] = b.sizes(x)?[..] else {
        return Err(Error::input("distances of pairs need a matrix"));
    };
    let both = b.call("aten.triu_indices.default", &[n.into(), n.into(), b.int(1)])?;
    let mut pick = |k| b.call("aten.select.int", &[both.into(), b.int(0), b.int(k)]);
    Ok([pick(0)?, pick(1)?])
}

/// The difference of each pair.
fn between(b: B, x: ValueId, pairs: [ValueId; 2]) -> Result<ValueId> {
    let mut rows = |i: ValueId| {
        let dim = b.int(0);
        b.call("aten.index_select.default", &[x.into(), dim, i.into()])
    };
    let (first, second) = (rows(pairs[0])?, rows(pairs[1])?);
    b.sub(first, second)
}

/// Rows of each pair are gathered by their numbers.
fn pdist(b: B, args: &Args) -> Result<Vec<ValueId>> {
    let x = args.value("self")?;
    let pairs = pairs(b, x)?;
    let d = between(b, x, pairs)?;
    let (p, last) = (Arg::Float(args.float("p")?), b.ints(&[-1]));
    let norm = "aten.linalg_vector_norm.default";
    Ok(vec![b.call(norm, &[d.into(), p, last])?])
}

/// A pair's gradient is added to its first row and subtracted from its second.
fn pdist_backward(b: B, args: &Args) -> Result<Vec<ValueId>> {
    let (g, x) = (args.value("grad")?, args.value("self")?);
    let t = b.tensor(x)?;
    let pairs = pairs(b, x)?;
    let d = between(b, x, pairs)?;
    let last = b.int(-1);
    let column = |b: B, v: ValueId| b.call("aten.unsqueeze.default", &[v.into(), last.clone()]);
    let (g, distance) = (column(b, g)?, column(b, args.value("pdist")?)?);
    let slope = slope(b, d, distance, args.float("p")?)?;
    let given = b.mul(slope, g)?;
    let taken = b.unary("aten.neg.default", given)?;
    let mut sum = b.full(&t.sizes, 0.0, t.dtype)?;
    for (rows, v) in pairs.into_iter().zip([given, taken]) {
        let dim = b.int(0);
        let add = "aten.index_add.default";
        sum = b.call(add, &[sum.into(), dim, rows.into(), v.into()])?;
    }
    Ok(vec![sum])
}

/// `sqrt(|x|^2 + |y|^2 - 2 x y)`, never of a negative number.
/// Cancellation makes this form inexact for close rows; eager has the same, since its cost is
/// that of a matrix product.
fn euclidean(b: B, args: &Args) -> Result<Vec<ValueId>> {
    let (x, y) = (args.value("x1")?, args.value("x2")?);
    let square = |b: B, v: ValueId| {
        let s = b.mul(v, v)?;
        b.sum(s, &[-1], true)
    };
    let (a, c) = (square(b, x)?, square(b, y)?);
    let turn = |b: B, v: ValueId| {
        let (i, j) = (b.int(-2), b.int(-1));
        b.call("aten.transpose.int", &[v.into(), i, j])
    };
    let (c, y) = (turn(b, c)?, turn(b, y)?);
    let product = b.call("aten.matmul.default", &[x.into(), y.into()])?;
    let twice = b.scale(product, 2.0)?;
    let sum = b.add(a, c)?;
    let d = b.sub(sum, twice)?;
    let d = b.by("aten.clamp_min.default", d, 0.0)?;
    Ok(vec![b.unary("aten.sqrt.default", d)?])
}

/// All dimensions but one.
fn others(rank: usize, dim: usize) -> Vec<i64> {
    (0..rank).filter(|d| *d != dim).map(|d| d as i64).collect()
}

/// Slices whose norm is above the limit are scaled to it.
fn renorm(b: B, args: &Args) -> Result<Vec<ValueId>> {
    let x = args.value("self")?;
    let (rank, dtype) = (b.rank(x)?, b.dtype(x)?);
    let dims = b.ints(&others(rank, args.dim("dim", rank)?));
    let (p, limit) = (args.scalar("p")?.as_f64(), args.scalar("maxnorm")?.as_f64());
    let wide = b.widen(x)?;
    let norm = b.call(
        "aten.linalg_vector_norm.default",
        &[wide.into(), Arg::Float(p), dims, true.into()],
    )?;
    // Eager adds the same number before it divides.
    let safe = b.by("aten.add.Scalar", norm, 1e-7)?;
    let real = b.dtype(norm)?;
    let most = b.full(&[], limit, real)?;
    let factor = b.div(most, safe)?;
    let above = b.by("aten.gt.Scalar", norm, limit)?;
    let factor = b.select_or(above, factor, 1.0)?;
    // Eager rounds the factor to the dtype of the input.
    let factor = b.cast(factor, dtype)?;
    Ok(vec![b.mul(x, factor)?])
}

/// The dimensions that the norm of a weight goes over: all but one, which is the first or the last in the fused operators. For
/// the plain one -1 stands for none.
fn summed(b: &Builder, args: &Args, v: ValueId) -> Result<Vec<i64>> {
    let rank = b.rank(v)?;
    let dim = args.const_int("dim")?;
    let fused = args.op.row.name.contains("_interface");
    if fused && dim != 0 && dim + 1 != rank as i64 {
        return Err(args.unsupported("dim", "must be the first dimension or the last"));
    }
    if !fused && dim == -1 {
        return Ok((0..rank as i64).collect());
    }
    Ok(others(rank, args.dim("dim", rank)?))
}

/// `g v / |v|` and the norms.
fn weight_norm(b: B, args: &Args) -> Result<Vec<ValueId>> {
    let (v, g) = (args.value("v")?, args.value("g")?);
    let dims = summed(b, args, v)?;
    let dtype = b.dtype(v)?;
    let (wide, g) = (b.widen(v)?, b.widen(g)?);
    let square = b.mul(wide, wide)?;
    let sum = b.sum(square, &dims, true)?;
    let norm = b.unary("aten.sqrt.default", sum)?;
    let scale = b.div(g, norm)?;
    let w = b.mul(wide, scale)?;
    // CPUs and GPUs save norms of halves in different dtypes.
    let want = b.declared(1).map_or(b.dtype(norm)?, |t| t.dtype);
    Ok(vec![b.cast(w, dtype)?, b.cast(norm, want)?])
}

/// The weight alone.
fn weight_norm_only(b: B, args: &Args) -> Result<Vec<ValueId>> {
    let mut out = weight_norm(b, args)?;
    out.truncate(1);
    Ok(out)
}

/// With `u = v / |v|`: `grad g = sum(grad w * u)`, and
/// `grad v = g / |v| * (grad w - u * grad g)`, the part of the gradient that is orthogonal to
/// `v`.
fn weight_norm_backward(b: B, args: &Args) -> Result<Vec<ValueId>> {
    let (grad, v) = (args.value("grad_w")?, args.value("saved_v")?);
    let (g, norm) = (args.value("saved_g")?, args.value("saved_norms")?);
    let dims = summed(b, args, v)?;
    let (dv, dg) = (b.dtype(v)?, b.dtype(g)?);
    let (grad, v) = (b.widen(grad)?, b.widen(v)?);
    let (g, norm) = (b.widen(g)?, b.widen(norm)?);
    let product = b.mul(grad, v)?;
    let sums = b.sum(product, &dims, true)?;
    let to_g = b.div(sums, norm)?;
    let unit = b.div(v, norm)?;
    let along = b.mul(unit, to_g)?;
    let across = b.sub(grad, along)?;
    let scale = b.div(g, norm)?;
    let to_v = b.mul(scale, across)?;
    Ok(vec![b.cast(to_v, dv)?, b.cast(to_g, dg)?])
}

pub const ROWS: &[Row] = &[
    row(
        "aten._cdist_forward.default",
        "(Tensor x1, Tensor x2, float p, int? compute_mode) -> Tensor",
        cdist,
        "(f32[2,3,4], f32[2,5,4], 2.0, none)",
    ),
    row(
        "aten._cdist_backward.default",
        "(Tensor grad, Tensor x1, Tensor x2, float p, Tensor cdist) -> Tensor",
        cdist_backward,
        "(f32[2,3,5], f32[2,3,4], f32[2,5,4], 3.0, f32[2,3,5]{1:4})",
    ),
    row(
        "aten._pdist_forward.default",
        "(Tensor self, float p=2) -> Tensor",
        pdist,
        "(f32[5,3], 1.5)",
    ),
    row(
        "aten.pdist.default",
        "(Tensor self, float p=2) -> Tensor",
        pdist,
        "(f32[5,3])",
    ),
    row(
        "aten._pdist_backward.default",
        "(Tensor grad, Tensor self, float p, Tensor pdist) -> Tensor",
        pdist_backward,
        "(f32[6], f32[4,3], 3.0, f32[6]{1:4})",
    ),
    row(
        "aten._euclidean_dist.default",
        "(Tensor x1, Tensor x2) -> Tensor",
        euclidean,
        "(f32[3,4], f32[5,4])",
    ),
    row(
        "aten.renorm.default",
        "(Tensor self, Scalar p, int dim, Scalar maxnorm) -> Tensor",
        renorm,
        "(f32[3,4,5], 2, 1, 3.5)",
    ),
    row(
        "aten._weight_norm_interface.default",
        "(Tensor v, Tensor g, int dim=0) -> (Tensor, Tensor)",
        weight_norm,
        "(f32[3,4,5], f32[3,1,1])",
    ),
    row(
        "aten._weight_norm.default",
        "(Tensor v, Tensor g, int dim=0) -> Tensor",
        weight_norm_only,
        "(f32[3,4,5], f32[1,1,5], 2)",
    ),
    row(
        "aten._weight_norm_interface_backward.default",
        "(Tensor grad_w, Tensor saved_v, Tensor saved_g, Tensor saved_norms, int dim) -> (Tensor, Tensor)",
        weight_norm_backward,
        "(f32[3,4,5], f32[3,4,5], f32[3,1,1], f32[3,1,1]{1:4}, 0)",
    ),
];
