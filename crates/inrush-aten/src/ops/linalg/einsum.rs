//! Contractions that say which indices meet: einsum, tensordot.
//!
//! ```text
//! "bhid,bhjd,bj->bhi"      t[b,h,i,j] = sum over d of a * b      Batch b,h  M i  N j  K d
//!                          out        = sum over j of t * c      Batch b    M h,i    K j
//! ```
//!
//! Roles of an index in a product of two operands: in the result and both operands Batch, in
//! the result and one operand M or N, in both operands alone K. An index that one operand
//! alone has, and nothing needs any more, is summed before the product. Eager contracts from
//! left to right too, unless a path is given; `path` is not read, as any order gives the same
//! sums but for rounding.

use crate::lower::product::{Product, Role, Target};
use crate::ops::linalg::equation::{Equation, Index};
use crate::{Call, Lower, Meta, Route, Row, Tensor, meta};
use inrush_base::{Error, Result};
use inrush_expr::{Expr, Exprs};
use inrush_graph::{TensorType, Type};
use inrush_loops::ReduceOp;
use std::collections::BTreeMap;

/// The extent of each index: that of an operand in which it is not 1.
fn extents<'s>(
    call: &Call,
    inputs: &[Vec<Index>],
    sizes: impl Iterator<Item = &'s [Expr]>,
) -> Result<BTreeMap<Index, Expr>> {
    let mut out: BTreeMap<Index, Expr> = BTreeMap::new();
    for (indices, sizes) in inputs.iter().zip(sizes) {
        for (index, size) in indices.iter().zip(sizes) {
            let known = out.entry(*index).or_insert(*size);
            if call.exprs.is_int(*known, 1) {
                *known = *size;
            } else if !call.exprs.is_int(*size, 1) {
                call.same(*known, *size, "an index's extent")?;
            }
        }
    }
    Ok(out)
}

/// An operand with an index for each dimension.
/// An index that occurs twice reads a diagonal.
struct Labelled {
    tensor: Tensor,
    indices: Vec<Index>,
}

fn equation(call: &Call, types: &[&TensorType]) -> Result<Equation> {
    let ranks: Vec<usize> = types.iter().map(|t| t.rank()).collect();
    Equation::parse(call.str("equation")?, &ranks)
}

fn types<'c>(call: &Call<'c>) -> Result<Vec<&'c TensorType>> {
    let list = call.list("tensors")?;
    list.into_iter().map(|v| call.type_of(v)).collect()
}

/// The result has the extents of the output's indices and the dtype of the first operand.
///
/// # Errors
///
/// If the equation does not fit the operands' ranks, or an index has two extents other than
/// 1.
fn einsum_meta(call: &Call) -> Result<Vec<Type>> {
    let types = types(call)?;
    let eq = equation(call, &types)?;
    let of = extents(call, &eq.inputs, types.iter().map(|t| t.sizes.as_slice()))?;
    let first = types
        .first()
        .ok_or_else(|| Error::input("einsum without operands"))?;
    let sizes = eq.output.iter().map(|i| of[i]).collect();
    meta::one(call.exprs, first.dtype, sizes)
}

/// Operands are multiplied from left to right; an index disappears as soon as nothing after needs it.
fn einsum<'g>(lw: &mut Lower<'g>, call: &Call<'g>) -> Result<Vec<Tensor>> {
    let types = types(call)?;
    let eq = equation(call, &types)?;
    let of = extents(call, &eq.inputs, types.iter().map(|t| t.sizes.as_slice()))?;
    let mut operands = Vec::new();
    for (v, indices) in call.list("tensors")?.into_iter().zip(eq.inputs) {
        operands.push(Labelled {
            tensor: lw.tensor(v)?,
            indices,
        });
    }
    let mut rest = operands.into_iter();
    let mut left = rest
        .next()
        .ok_or_else(|| Error::input("einsum without operands"))?;
    while let Some(right) = rest.next() {
        let last = rest.as_slice().is_empty();
        let needed = |i: &Index| {
            eq.output.contains(i) || rest.as_slice().iter().any(|o| o.indices.contains(i))
        };
        let out: Vec<Index> = if last {
            eq.output.clone()
        } else {
            let mut out = Vec::new();
            for i in left.indices.iter().chain(&right.indices) {
                if needed(i) && !out.contains(i) {
                    out.push(*i);
                }
            }
            out
        };
        let left_only = drop_unneeded(lw, left, &right, &out, &of);
        let right_only = drop_unneeded(lw, right, &left_only, &out, &of);
        left = multiply(lw, &left_only, &right_only, out, &of)?;
    }
    // A single operand, which no product has brought into the order of the output.
    if left.indices != eq.output {
        left = sum_to(lw, &left, eq.output, &of);
    }
    Ok(vec![left.tensor])
}

/// The coordinate of each dimension of an operand: 0 where it broadcasts.
fn place(exprs: &Exprs, x: &Labelled, at: &BTreeMap<Index, Expr>) -> Vec<Expr> {
    x.indices
        .iter()
        .zip(&x.tensor.sizes)
        .map(|(i, s)| {
            if exprs.is_int(*s, 1) {
                exprs.int(0)
            } else {
                at[i]
            }
        })
        .collect()
}

/// Sums over the indices that neither the other operand nor the result has.
fn drop_unneeded<'g>(
    lw: &mut Lower<'g>,
    x: Labelled,
    other: &Labelled,
    out: &[Index],
    of: &BTreeMap<Index, Expr>,
) -> Labelled {
    let needed = |i: &Index| out.contains(i) || other.indices.contains(i);
    if x.indices.iter().all(needed) {
        return x;
    }
    let mut keep = Vec::new();
    for i in x.indices.iter().filter(|i| needed(i)) {
        if !keep.contains(i) {
            keep.push(*i);
        }
    }
    sum_to(lw, &x, keep, of)
}

/// `x` with indices `out` only: permuted, its diagonal taken where an index is repeated, summed over the others.
fn sum_to<'g>(
    lw: &mut Lower<'g>,
    x: &Labelled,
    out: Vec<Index>,
    of: &BTreeMap<Index, Expr>,
) -> Labelled {
    let mut summed: Vec<Index> = Vec::new();
    for i in &x.indices {
        if !out.contains(i) && !summed.contains(i) {
            summed.push(*i);
        }
    }
    let sizes: Vec<Expr> = out.iter().map(|i| of[i]).collect();
    let mut body = lw.body(&sizes);
    let mut at: BTreeMap<Index, Expr> = out.iter().copied().zip(body.outer()).collect();
    let inner = body.reduce_axes(&summed.iter().map(|i| of[i]).collect::<Vec<_>>());
    at.extend(summed.iter().copied().zip(inner));
    let mut v = body.load(&x.tensor, &place(lw.exprs, x, &at));
    if !summed.is_empty() {
        v = body.reduce(ReduceOp::Sum, v);
    }
    let tensor = lw.store_new(body, v, x.tensor.dtype, &sizes);
    Labelled {
        tensor,
        indices: out,
    }
}

/// Multiplies two operands and sums over what `out` does not have.
fn multiply<'g>(
    lw: &mut Lower<'g>,
    a: &Labelled,
    b: &Labelled,
    out: Vec<Index>,
    of: &BTreeMap<Index, Expr>,
) -> Result<Labelled> {
    let exprs = lw.exprs;
    // An index in which an operand broadcasts is not one that it has.
    let has = |x: &Labelled, i: &Index| {
        x.indices
            .iter()
            .zip(&x.tensor.sizes)
            .any(|(k, s)| k == i && (!exprs.is_int(*s, 1) || exprs.is_int(of[i], 1)))
    };
    let mut p = Product::new(exprs);
    let mut at: BTreeMap<Index, Expr> = BTreeMap::new();
    // Axes in the order of the result, then the summed ones in the order of the first operand.
    for i in out.iter().chain(&a.indices).chain(&b.indices) {
        if at.contains_key(i) {
            continue;
        }
        let role = match (out.contains(i), has(a, i), has(b, i)) {
            (true, true, true) => Role::Batch,
            (true, true, false) => Role::M,
            (true, false, _) => Role::N,
            (false, ..) => Role::K,
        };
        at.insert(*i, p.axis(role, of[i]));
    }
    let target = Target {
        dtype: a.tensor.dtype,
        sizes: out.iter().map(|i| of[i]).collect(),
        index: out.iter().map(|i| at[i]).collect(),
    };
    let (ia, ib) = (place(exprs, a, &at), place(exprs, b, &at));
    let tensor = p.lower(lw, (&a.tensor, ia), (&b.tensor, ib), target, |_, sum, _| {
        Ok(sum)
    })?;
    Ok(Labelled {
        tensor,
        indices: out,
    })
}

/// Dimensions of both operands that are summed together.
fn summed_dims(call: &Call, a: usize, b: usize) -> Result<(Vec<usize>, Vec<usize>)> {
    let (da, db) = (call.dims("dims_self", a)?, call.dims("dims_other", b)?);
    if da.len() != db.len() {
        return Err(Error::input("dims_self and dims_other differ in length"));
    }
    Ok((da, db))
}

/// Dimensions that are not summed, in order.
fn rest(rank: usize, dims: &[usize]) -> impl Iterator<Item = usize> {
    (0..rank).filter(move |d| !dims.contains(d))
}

fn tensordot_meta(call: &Call) -> Result<Vec<Type>> {
    let (a, b) = (call.tensor("self")?, call.tensor("other")?);
    let (da, db) = summed_dims(call, a.rank(), b.rank())?;
    for (x, y) in da.iter().zip(&db) {
        call.same(a.sizes[*x], b.sizes[*y], "the summed dimension")?;
    }
    let mut sizes: Vec<Expr> = rest(a.rank(), &da).map(|d| a.sizes[d]).collect();
    sizes.extend(rest(b.rank(), &db).map(|d| b.sizes[d]));
    meta::one(call.exprs, a.dtype, sizes)
}

/// Rows are the remaining dimensions of `self`, columns those of `other`, and sums run over
/// the named pairs.
fn tensordot<'g>(lw: &mut Lower<'g>, call: &Call<'g>) -> Result<Vec<Tensor>> {
    let (a, b) = (lw.arg(call, "self")?, lw.arg(call, "other")?);
    let (da, db) = summed_dims(call, a.sizes.len(), b.sizes.len())?;
    let exprs = lw.exprs;
    let mut p = Product::new(exprs);
    let mut ia = vec![exprs.int(0); a.sizes.len()];
    let mut ib = vec![exprs.int(0); b.sizes.len()];
    let (mut sizes, mut index) = (Vec::new(), Vec::new());
    for d in rest(a.sizes.len(), &da) {
        ia[d] = p.axis(Role::M, a.sizes[d]);
        sizes.push(a.sizes[d]);
        index.push(ia[d]);
    }
    for d in rest(b.sizes.len(), &db) {
        ib[d] = p.axis(Role::N, b.sizes[d]);
        sizes.push(b.sizes[d]);
        index.push(ib[d]);
    }
    for (x, y) in da.iter().zip(&db) {
        let k = p.axis(Role::K, a.sizes[*x]);
        (ia[*x], ib[*y]) = (k, k);
    }
    let target = Target {
        dtype: a.dtype,
        sizes,
        index,
    };
    Ok(vec![p.lower(
        lw,
        (&a, ia),
        (&b, ib),
        target,
        |_, sum, _| Ok(sum),
    )?])
}

pub const ROWS: &[Row] = &[
    Row {
        name: "aten.einsum.default",
        schema: "(str equation, Tensor[] tensors, *, int[]? path=None) -> Tensor",
        meta: Meta::Fn(einsum_meta),
        route: Route::Lower(einsum),
        example: "(\"bhid,bhjd,bj->bhi\", [f32[2,3,4,5], f32[2,3,6,5], f32[2,6]])",
        props: &[],
    },
    Row {
        name: "aten.tensordot.default",
        schema: "(Tensor self, Tensor other, int[] dims_self, int[] dims_other) -> Tensor",
        meta: Meta::Fn(tensordot_meta),
        route: Route::Lower(tensordot),
        example: "(f32[2,3,4], f32[4,3,5], [1,2], [1,0])",
        props: &[],
    },
];
