//! Matrix products of every rank.
//!
//! ```text
//! mm  [M,K] @ [K,N]          bmm  [B,M,K] @ [B,K,N]         mv [M,K] @ [K]       dot [K] @ [K]
//! matmul [.., M, K] @ [.., K, N]: leading dimensions broadcast
//! linear x[.., K], w[N, K]: w is read in place, transposed by its coordinates
//! ```
//!
//! All are one function over ranks. If only the first factor has leading dimensions, they are
//! rows of a single product, which is faster than a batch of small ones. `addmm` and its kin
//! scale and add in the epilogue, on the sum in `f32`, before the one rounding to the
//! result's dtype.

use crate::lower::body::broadcast_index;
use crate::lower::product::{Product, Role, Target, same_dtype};
use crate::props::{Library, Prop};
use crate::{BodyBuilder, Builder, Call, Lower, Meta, Route, Row, Tensor, meta};
use inrush_base::{DType, Error, Result, Scalar};
use inrush_expr::{Expr, Exprs};
use inrush_graph::{Arg, Type, ValueId};
use inrush_loops::{ScalarOp, StmtId};

/// Sizes of `a @ b`, and those of its leading (batch) dimensions.
///
/// # Errors
///
/// If a factor has no dimensions, the summed sizes differ for sure, or batches do not
/// broadcast.
fn matmul_sizes(exprs: &Exprs, a: &[Expr], b: &[Expr]) -> Result<(Vec<Expr>, Vec<Expr>)> {
    let wrong = || {
        Error::input(format!(
            "sizes {} and {} do not multiply",
            exprs.show_list(a),
            exprs.show_list(b)
        ))
    };
    let (&ka, _) = a.split_last().ok_or_else(wrong)?;
    // A vector is summed over its only dimension.
    let kb = match b {
        [] => return Err(wrong()),
        [k] => *k,
        [.., k, _] => *k,
    };
    if exprs.prove_ne(ka, kb) {
        return Err(wrong());
    }
    let lead = |s: &[Expr]| s[..s.len().saturating_sub(2)].to_vec();
    let lead = meta::broadcast(exprs, &lead(a), &lead(b))?;
    let mut out = lead.clone();
    if a.len() > 1 {
        out.push(a[a.len() - 2]);
    }
    if b.len() > 1 {
        out.push(b[b.len() - 1]);
    }
    Ok((out, lead))
}

/// The names of the two factors, which operators call differently: the first two tensors, or the two after `self`.
fn factors<'c>(call: &Call<'c>, first: usize) -> (&'c str, &'c str) {
    let p = &call.op.schema().params;
    (&p[first].name, &p[first + 1].name)
}

/// dtype and sizes of a product; both factors must have one dtype.
fn matmul_meta(call: &Call) -> Result<Vec<Type>> {
    let (a, b) = factors(call, 0);
    let (a, b) = (call.tensor(a)?, call.tensor(b)?);
    same_dtype(a.dtype, b.dtype)?;
    let sizes = checked_sizes(call, &a.sizes, &b.sizes)?;
    meta::one(call.exprs, a.dtype, sizes)
}

/// Sizes of `a @ b`, whose summed dimensions must agree at each call.
pub(super) fn checked_sizes(call: &Call, a: &[Expr], b: &[Expr]) -> Result<Vec<Expr>> {
    let (sizes, _) = matmul_sizes(call.exprs, a, b)?;
    if let (Some(ka), Some(kb)) = (a.last(), b.get(b.len().saturating_sub(2))) {
        call.same(*ka, *kb, "the summed dimension")?;
    }
    Ok(sizes)
}

/// `a @ b` of dtype `dtype`, with the stored value made by `finish`.
pub(super) fn product<'g>(
    lw: &mut Lower<'g>,
    a: &Tensor,
    b: &Tensor,
    dtype: DType,
    finish: impl FnOnce(&mut BodyBuilder<'g>, StmtId, &[Expr]) -> Result<StmtId>,
) -> Result<Tensor> {
    let exprs = lw.exprs;
    let (sizes, lead) = matmul_sizes(exprs, &a.sizes, &b.sizes)?;
    let mut p = Product::new(exprs);
    // Size of `t` along leading dimension `d`; `None` where it broadcasts. Leading dimensions
    // that only the first factor has are more rows of one product.
    let shared = |t: &Tensor, d: usize| -> Option<Expr> {
        let rank = t.sizes.len().saturating_sub(2);
        (d + rank)
            .checked_sub(lead.len())
            .map(|k| t.sizes[k])
            .filter(|s| !exprs.is_int(*s, 1))
    };
    let folds = (0..lead.len()).all(|d| shared(b, d).is_none());
    let role = if folds { Role::M } else { Role::Batch };
    let mut index: Vec<Expr> = lead.iter().map(|s| p.axis(role, *s)).collect();
    // Broadcast dimensions are read at 0.
    let of_lead = |t: &Tensor, index: &[Expr]| -> Vec<Expr> {
        let rank = t.sizes.len().saturating_sub(2);
        (lead.len() - rank..lead.len())
            .map(|d| match shared(t, d) {
                Some(_) => index[d],
                None => exprs.int(0),
            })
            .collect()
    };
    let (mut ia, mut ib) = (of_lead(a, &index), of_lead(b, &index));
    if let [.., m, _] = a.sizes.as_slice() {
        let i = p.axis(Role::M, *m);
        ia.push(i);
        index.push(i);
    }
    let k = p.axis(Role::K, a.sizes[a.sizes.len() - 1]);
    ia.push(k);
    ib.push(k);
    if let [.., _, n] = b.sizes.as_slice() {
        let j = p.axis(Role::N, *n);
        ib.push(j);
        index.push(j);
    }
    let target = Target {
        dtype,
        sizes,
        index,
    };
    p.lower(lw, (a, ia), (b, ib), target, finish)
}

/// A product without an epilogue.
fn matmul<'g>(lw: &mut Lower<'g>, call: &Call<'g>) -> Result<Vec<Tensor>> {
    let (a, b) = factors(call, 0);
    let (a, b) = (lw.arg(call, a)?, lw.arg(call, b)?);
    Ok(vec![product(lw, &a, &b, a.dtype, |_, sum, _| Ok(sum))?])
}

/// A summand must broadcast to the product.
fn expands(call: &Call, from: &[Expr], to: &[Expr]) -> Result<()> {
    let Some(lead) = to.len().checked_sub(from.len()) else {
        return Err(Error::input(
            "the summand has more dimensions than the product",
        ));
    };
    for (s, t) in from.iter().zip(&to[lead..]) {
        if !call.exprs.is_int(*s, 1) {
            call.same(*s, *t, "the summand")?;
        }
    }
    Ok(())
}

/// A weight of one dimension gives a result without features.
fn linear_sizes(exprs: &Exprs, x: &[Expr], w: &[Expr]) -> Result<Vec<Expr>> {
    match (x, w) {
        ([lead @ .., kx], [n @ .., kw]) if n.len() < 2 && !exprs.prove_ne(*kx, *kw) => {
            Ok([lead, n].concat())
        }
        _ => Err(Error::input(format!(
            "input {} does not fit weight {}",
            exprs.show_list(x),
            exprs.show_list(w)
        ))),
    }
}

/// Checks that features agree and that the bias broadcasts to the result.
fn linear_meta(call: &Call) -> Result<Vec<Type>> {
    let (x, w) = (call.tensor("input")?, call.tensor("weight")?);
    same_dtype(x.dtype, w.dtype)?;
    let sizes = linear_sizes(call.exprs, &x.sizes, &w.sizes)?;
    if let (Some(kx), Some(kw)) = (x.sizes.last(), w.sizes.last()) {
        call.same(*kx, *kw, "the summed dimension")?;
    }
    if let Some(bias) = call.opt_tensor("bias")? {
        expands(call, &bias.sizes, &sizes)?;
    }
    meta::one(call.exprs, x.dtype, sizes)
}

/// Lowers `x @ w^T + bias`; the weight is read in place.
fn linear<'g>(lw: &mut Lower<'g>, call: &Call<'g>) -> Result<Vec<Tensor>> {
    let (x, w) = (lw.arg(call, "input")?, lw.arg(call, "weight")?);
    let bias = lw.opt_arg(call, "bias")?;
    let sizes = linear_sizes(lw.exprs, &x.sizes, &w.sizes)?;
    let out = rows_by_rows(lw, &x, &w, sizes, |body, sum, at| match &bias {
        Some(t) => add_broadcast(body, sum, t, at, Scalar::Int(1)),
        None => Ok(sum),
    })?;
    Ok(vec![out])
}

/// `sum over k of x[..., k] * w[..., k]`: every leading dimension of `x` with every leading dimension of `w`.
fn rows_by_rows<'g>(
    lw: &mut Lower<'g>,
    x: &Tensor,
    w: &Tensor,
    sizes: Vec<Expr>,
    finish: impl FnOnce(&mut BodyBuilder<'g>, StmtId, &[Expr]) -> Result<StmtId>,
) -> Result<Tensor> {
    let mut p = Product::new(lw.exprs);
    let mut lead = |t: &Tensor, role: Role| -> Vec<Expr> {
        let lead = &t.sizes[..t.sizes.len() - 1];
        lead.iter().map(|s| p.axis(role, *s)).collect()
    };
    let (mut ia, mut ib) = (lead(x, Role::M), lead(w, Role::N));
    let index = [ia.as_slice(), ib.as_slice()].concat();
    let k = p.axis(Role::K, x.sizes[x.sizes.len() - 1]);
    ia.push(k);
    ib.push(k);
    let target = Target {
        dtype: x.dtype,
        sizes,
        index,
    };
    p.lower(lw, (x, ia), (w, ib), target, finish)
}

/// `sum + scale * t`, with `t` broadcast to the result.
fn add_broadcast(
    body: &mut BodyBuilder,
    sum: StmtId,
    t: &Tensor,
    at: &[Expr],
    scale: Scalar,
) -> Result<StmtId> {
    let dtype = body.dtype(sum);
    let index = broadcast_index(body.exprs, t, at);
    let mut v = body.load(t, &index);
    v = body.cast(v, dtype);
    if scale.as_f64() != 1.0 {
        let c = body.constant(scale, dtype);
        v = body.op(ScalarOp::Mul, &[v, c]);
    }
    Ok(body.op(ScalarOp::Add, &[sum, v]))
}

/// Leading dimensions of both operands, one after the other.
fn inner_sizes(a: &[Expr], b: &[Expr]) -> Result<Vec<Expr>> {
    match (a, b) {
        ([la @ .., _], [lb @ .., _]) => Ok([la, lb].concat()),
        _ => Err(Error::unsupported(
            "inner product of a 0-dimensional tensor",
        )),
    }
}

/// Every row of one operand with every row of the other.
fn inner<'g>(lw: &mut Lower<'g>, call: &Call<'g>) -> Result<Vec<Tensor>> {
    let (a, b) = (lw.arg(call, "self")?, lw.arg(call, "other")?);
    let sizes = inner_sizes(&a.sizes, &b.sizes)?;
    Ok(vec![rows_by_rows(lw, &a, &b, sizes, |_, sum, _| Ok(sum))?])
}

/// The summand may broadcast; the dtype is that of the factors.
fn addmm_meta(call: &Call) -> Result<Vec<Type>> {
    let (a, b) = factors(call, 1);
    let (a, b) = (call.tensor(a)?, call.tensor(b)?);
    same_dtype(a.dtype, b.dtype)?;
    let mut sizes = checked_sizes(call, &a.sizes, &b.sizes)?;
    // The batch is summed over.
    if call.op.row.name == "aten.addbmm.default" {
        sizes.remove(0);
    }
    expands(call, &call.tensor("self")?.sizes, &sizes)?;
    meta::one(call.exprs, a.dtype, sizes)
}

/// `beta * self + alpha * (a @ b)`.
fn addmm<'g>(lw: &mut Lower<'g>, call: &Call<'g>) -> Result<Vec<Tensor>> {
    let (a, b) = factors(call, 1);
    let (a, b) = (lw.arg(call, a)?, lw.arg(call, b)?);
    let finish = scaled_sum(lw, call)?;
    Ok(vec![product(lw, &a, &b, a.dtype, finish)?])
}

/// `addmm` with `relu`. Its `gelu` is by `erf` on CPUs and by `tanh` on GPUs, so that is left to PyTorch.
fn addmm_activation(b: &mut Builder, args: &crate::Args) -> Result<Vec<ValueId>> {
    if args.bool("use_gelu")? {
        return Err(Error::unsupported(
            "`gelu` in `_addmm_activation`, which differs between devices",
        ));
    }
    let names = ["self", "mat1", "mat2", "beta", "alpha"];
    let of_sum = (names.iter()).map(|n| args.arg(n).cloned());
    let sum = b.call("aten.addmm.default", &of_sum.collect::<Result<Vec<Arg>>>()?)?;
    Ok(vec![b.unary("aten.relu.default", sum)?])
}

/// `beta * self + alpha * sum`. With `beta` 0 the summand is not read: its NaNs do not count.
fn scaled_sum<'g>(
    lw: &Lower<'g>,
    call: &Call<'g>,
) -> Result<impl FnOnce(&mut BodyBuilder<'g>, StmtId, &[Expr]) -> Result<StmtId> + use<'g>> {
    let added = lw.arg(call, "self")?;
    let number = |name| call.rounded(name, added.dtype, lw.processor);
    let (alpha, beta) = (number("alpha")?, number("beta")?);
    Ok(
        move |body: &mut BodyBuilder<'g>, mut sum: StmtId, at: &[Expr]| {
            if alpha.as_f64() != 1.0 {
                let c = body.constant(alpha, body.dtype(sum));
                sum = body.op(ScalarOp::Mul, &[sum, c]);
            }
            if beta.as_f64() == 0.0 {
                return Ok(sum);
            }
            add_broadcast(body, sum, &added, at, beta)
        },
    )
}

/// `beta * self + alpha * sum over the batch of (a @ b)`.
/// Batch and inner dimension are both summed, so this is a single product with two `k` axes.
fn addbmm<'g>(lw: &mut Lower<'g>, call: &Call<'g>) -> Result<Vec<Tensor>> {
    let (a, b) = (lw.arg(call, "batch1")?, lw.arg(call, "batch2")?);
    let (&[batch, m, k], &[_, _, n]) = (a.sizes.as_slice(), b.sizes.as_slice()) else {
        return Err(Error::input("batch1 and batch2 must have three dimensions"));
    };
    let mut p = Product::new(lw.exprs);
    let (i, j) = (p.axis(Role::M, m), p.axis(Role::N, n));
    let (q, r) = (p.axis(Role::K, batch), p.axis(Role::K, k));
    let finish = scaled_sum(lw, call)?;
    let target = Target {
        dtype: a.dtype,
        sizes: vec![m, n],
        index: vec![i, j],
    };
    Ok(vec![p.lower(
        lw,
        (&a, vec![q, i, r]),
        (&b, vec![q, r, j]),
        target,
        finish,
    )?])
}

/// `a[i] * b[j]`.
fn outer(b: &mut Builder, args: &crate::Args) -> Result<Vec<ValueId>> {
    let (x, y) = (args.value("self")?, args.value("vec2")?);
    let mut sizes = b.sizes(x)?;
    sizes.push(b.exprs.int(1));
    let column = b.call("aten.view.default", &[x.into(), Arg::Ints(sizes)])?;
    Ok(vec![b.mul(column, y)?])
}

const fn product_row(name: &'static str, schema: &'static str, example: &'static str) -> Row {
    Row {
        name,
        schema,
        meta: Meta::Fn(matmul_meta),
        route: Route::Lower(matmul),
        example,
        props: &[],
    }
}

const fn sum_row(name: &'static str, schema: &'static str, example: &'static str) -> Row {
    Row {
        name,
        schema,
        meta: Meta::Fn(addmm_meta),
        route: Route::Lower(addmm),
        example,
        props: &[],
    }
}

pub const ROWS: &[Row] = &[
    product_row(
        "aten.mm.default",
        "(Tensor self, Tensor mat2) -> Tensor",
        "(f32[3,4], f32[4,5])",
    )
    .with(&[Prop::Library(Library::Product)]),
    product_row(
        "aten.bmm.default",
        "(Tensor self, Tensor mat2) -> Tensor",
        "(f32[2,3,4], f32[2,4,5])",
    )
    .with(&[Prop::Library(Library::Product)]),
    product_row(
        "aten.matmul.default",
        "(Tensor self, Tensor other) -> Tensor",
        "(f32[2,1,3,4], f32[5,4,2])",
    ),
    product_row(
        "aten.mv.default",
        "(Tensor self, Tensor vec) -> Tensor",
        "(f32[3,4], f32[4])",
    ),
    product_row(
        "aten.dot.default",
        "(Tensor self, Tensor tensor) -> Tensor",
        "(f32[4], f32[4])",
    ),
    product_row(
        "aten.vdot.default",
        "(Tensor self, Tensor other) -> Tensor",
        "(f32[4], f32[4])",
    ),
    sum_row(
        "aten.addmm.default",
        "(Tensor self, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar alpha=1) -> Tensor",
        "(f32[5], f32[3,4], f32[4,5], beta=0.5, alpha=2.0)",
    )
    .with(&[Prop::Library(Library::ProductWithBias)]),
    sum_row(
        "aten.baddbmm.default",
        "(Tensor self, Tensor batch1, Tensor batch2, *, Scalar beta=1, Scalar alpha=1) -> Tensor",
        "(f32[2,3,5], f32[2,3,4], f32[2,4,5], beta=0.0)",
    )
    .with(&[Prop::Library(Library::ProductWithBias)]),
    sum_row(
        "aten.addmv.default",
        "(Tensor self, Tensor mat, Tensor vec, *, Scalar beta=1, Scalar alpha=1) -> Tensor",
        "(f32[3], f32[3,4], f32[4], alpha=0.5)",
    ),
    Row {
        name: "aten._addmm_activation.default",
        schema: "(Tensor self, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar alpha=1, bool use_gelu=False) -> Tensor",
        meta: Meta::Fn(addmm_meta),
        route: Route::Decompose(addmm_activation),
        example: "(f32[5], f32[3,4], f32[4,5], beta=0.5, alpha=2.0)",
        props: &[Prop::Library(Library::ProductWithBias)],
    },
    Row {
        name: "aten.addbmm.default",
        schema: "(Tensor self, Tensor batch1, Tensor batch2, *, Scalar beta=1, Scalar alpha=1) -> Tensor",
        meta: Meta::Fn(addmm_meta),
        route: Route::Lower(addbmm),
        example: "(f32[3,5], f32[2,3,4], f32[2,4,5])",
        props: &[Prop::Library(Library::ProductWithBias)],
    },
    Row {
        name: "aten.linear.default",
        schema: "(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor",
        meta: Meta::Fn(linear_meta),
        route: Route::Lower(linear),
        example: "(f32[2,3,4], f32[5,4], f32[5])",
        props: &[],
    },
    Row {
        name: "aten.inner.default",
        schema: "(Tensor self, Tensor other) -> Tensor",
        meta: Meta::Fn(|c| {
            let (a, b) = (c.tensor("self")?, c.tensor("other")?);
            if let (Some(ka), Some(kb)) = (a.sizes.last(), b.sizes.last()) {
                c.same(*ka, *kb, "the summed dimension")?;
            }
            meta::one(c.exprs, a.dtype, inner_sizes(&a.sizes, &b.sizes)?)
        }),
        route: Route::Lower(inner),
        example: "(f32[2,3,4], f32[5,4])",
        props: &[],
    },
    Row {
        name: "aten.outer.default",
        schema: "(Tensor self, Tensor vec2) -> Tensor",
        meta: Meta::Route,
        route: Route::Decompose(outer),
        example: "(f32[3], f32[4])",
        props: &[],
    },
    Row {
        name: "aten.ger.default",
        schema: "(Tensor self, Tensor vec2) -> Tensor",
        meta: Meta::Route,
        route: Route::Decompose(outer),
        example: "(f32[3], f32[4])",
        props: &[],
    },
];
