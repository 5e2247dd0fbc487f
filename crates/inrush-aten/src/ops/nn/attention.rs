//! Scaled dot-product attention: two contractions around a softmax.
//!
//! ```text
//! s = q k^T * scale, masked          [.., queries, keys]
//! e = exp(s - max(s))                weights before they are normalised
//! o = (e v) / sum(e)                 [.., queries, features of a value]
//! ```
//!
//! The division comes after the second product: it then touches one number per query and feature
//! rather than one per query and key. Scores and weights stay in `f32` for halves; only the result
//! is rounded.
//!
//! Grouped queries (several heads of queries share one head of keys) expand keys and values as
//! views, so nothing is copied. Dropout inside attention is refused.

use crate::ops::B;
use crate::ops::reduce::softmax::{Exponents, exponents, safe_exponents};
use crate::props::{Library, Prop};
use crate::{Args, Builder, Meta, Route, Row};
use inrush_base::{DType, Error, Result};
use inrush_expr::Expr;
use inrush_graph::{Arg, ValueId};

/// Values of one attention. `max` and `total` are what a backward pass needs to make the weights
/// again without a reduction: `logsumexp = max + log(total)`.
pub(in crate::ops) struct Attention {
    /// `[.., queries, features]` in the dtype that the caller asked for.
    pub(in crate::ops) output: ValueId,
    /// Subtracted maximum of each query's scores, `[.., queries, 1]`, in the compute dtype.
    max: ValueId,
    /// Sum of each query's exponents, `[.., queries, 1]`, in the compute dtype.
    total: ValueId,
}

/// For how many heads of queries each head of keys or values stands.
fn copies(b: B, queries: Expr, keys: Expr) -> Result<Expr> {
    (b.exprs.divide_exact(queries, keys))
        .ok_or_else(|| Error::input("key heads do not divide query heads"))
}

/// Keys or values repeated for each query head, as a view.
/// `[b, h, n, f]` becomes `[b, h, 1, n, f]`, is expanded to `[b, h, times, n, f]` and merged to
/// `[b, h * times, n, f]`.
fn repeat_heads(b: B, x: ValueId, queries: ValueId) -> Result<ValueId> {
    let (sizes, want) = (b.sizes(x)?, b.sizes(queries)?);
    let rank = sizes.len();
    let (Some(h), true) = (rank.checked_sub(3), want.len() == rank) else {
        return Err(Error::input("grouped queries need a dimension of heads"));
    };
    if sizes[h] == want[h] {
        return Ok(x);
    }
    let times = copies(b, want[h], sizes[h])?;
    let mut apart = sizes.clone();
    apart.insert(h + 1, b.exprs.int(1));
    let mut wide = apart.clone();
    wide[h + 1] = times;
    let mut joined = sizes;
    joined[h] = want[h];
    let x = b.call("aten.view.default", &[x.into(), apart.into()])?;
    let x = b.call("aten.expand.default", &[x.into(), wide.into()])?;
    b.call("aten.view.default", &[x.into(), joined.into()])
}

/// The gradient of what [`repeat_heads`] was given: that of a repeated head is the sum over its copies.
fn sum_heads(b: B, grad: ValueId, of: ValueId) -> Result<ValueId> {
    let (sizes, want) = (b.sizes(grad)?, b.sizes(of)?);
    let h = want.len() - 3;
    if sizes[h] == want[h] {
        return Ok(grad);
    }
    let times = copies(b, sizes[h], want[h])?;
    let mut apart = sizes;
    apart[h] = want[h];
    apart.insert(h + 1, times);
    let grad = b.call("aten.view.default", &[grad.into(), apart.into()])?;
    b.sum(grad, &[h as i64 + 1], false)
}

/// `column <= row` over the last two dimensions of `scores`.
/// Query `i` sees the keys up to `i`: the mask is aligned with the upper left corner, as in PyTorch
/// also where there are more keys than queries.
fn causal_mask(b: B, scores: ValueId) -> Result<ValueId> {
    let sizes = b.sizes(scores)?;
    let [.., rows, columns] = sizes.as_slice() else {
        return Err(Error::input("queries and keys must have two dimensions"));
    };
    let r = b.call("aten.arange.default", &[(*rows).into()])?;
    let column_of = vec![*rows, b.exprs.int(1)];
    let r = b.call("aten.view.default", &[r.into(), column_of.into()])?;
    let c = b.call("aten.arange.default", &[(*columns).into()])?;
    b.call("aten.le.Tensor", &[c.into(), r.into()])
}

/// Scaled products of queries and keys, minus infinity where a mask forbids them; factors are of a compute dtype.
/// A bool mask keeps where it is true, a float one is added.
fn scores(b: B, args: &Args, q: ValueId, k: ValueId, features: Expr) -> Result<ValueId> {
    let kt = b.call("aten.transpose.int", &[k.into(), b.int(-2), b.int(-1)])?;
    let scores = b.call("aten.matmul.default", &[q.into(), kt.into()])?;
    let scale = scale(b, args, features)?;
    let scores = b.scale(scores, scale)?;
    let mask = args.opt_value("attn_mask")?;
    if args.bool("is_causal")? {
        if mask.is_some() {
            return Err(Error::input("a mask together with is_causal"));
        }
        let keep = causal_mask(b, scores)?;
        return b.select_or(keep, scores, f64::NEG_INFINITY);
    }
    match mask {
        Some(mask) if b.dtype(mask)? == DType::Bool => b.select_or(mask, scores, f64::NEG_INFINITY),
        Some(mask) => {
            let m = b.widen(mask)?;
            b.add(scores, m)
        }
        None => Ok(scores),
    }
}

/// The factor of the scores: given, or one over the root of the number of features.
/// The root is taken at compile time, so that a symbolic number of features needs an explicit
/// scale.
fn scale(b: B, args: &Args, features: Expr) -> Result<f64> {
    match (args.given("scale"), b.exprs.as_int(features)) {
        (true, _) => args.float("scale"),
        (false, Some(n)) => Ok(1.0 / (n as f64).sqrt()),
        (false, None) => Err(Error::unsupported(
            "a symbolic number of features without a scale",
        )),
    }
}

/// A probability of 0 is what inference passes.
fn no_dropout(args: &Args) -> Result<()> {
    if args.float("dropout_p")? != 0.0 {
        return Err(args.unsupported("dropout_p", "random numbers are not supported"));
    }
    Ok(())
}

/// The common part of the forward operators.
fn attention(b: B, args: &Args) -> Result<Attention> {
    let (query, key) = (args.value("query")?, args.value("key")?);
    let value = args.value("value")?;
    no_dropout(args)?;
    let dtype = b.dtype(query)?;
    // Kernels for one device that PyTorch chooses are given grouped heads as they are.
    // The public operator repeats heads only when it is asked to; otherwise they must match, or
    // broadcast in the product.
    let grouped = match args.op.schema().position("enable_gqa") {
        Some(_) => args.bool("enable_gqa")?,
        None => true,
    };
    let (key, value) = match grouped {
        true => (repeat_heads(b, key, query)?, repeat_heads(b, value, query)?),
        false => (key, value),
    };
    let features = *b
        .sizes(query)?
        .last()
        .ok_or_else(|| Error::input("queries must have two dimensions or more"))?;
    // Scores stay in `f32`, so the factors of half dtypes are widened.
    let (q, k, v) = (b.widen(query)?, b.widen(key)?, b.widen(value)?);
    let scores = scores(b, args, q, k, features)?;
    // Only a mask can leave a query without keys.
    // A causal mask always leaves the first key.
    let kind = match args.opt_value("attn_mask")? {
        Some(_) => safe_exponents,
        None => exponents,
    };
    attend(b, scores, v, dtype, kind)
}

/// Values weighed by the softmax of the scores, as `dtype`.
/// `exponents` decides what a query without any allowed key gives: NaN, or zeros by
/// [`safe_exponents`].
pub(in crate::ops) fn attend(
    b: B,
    scores: ValueId,
    v: ValueId,
    dtype: DType,
    exponents: fn(B, ValueId, &Arg) -> Result<Exponents>,
) -> Result<Attention> {
    let last = b.ints(&[-1]);
    let e = exponents(b, scores, &last)?;
    // Dividing the product instead of the weights saves a pass over the scores.
    let sum = b.call("aten.matmul.default", &[e.values.into(), v.into()])?;
    let scale = b.call("aten.reciprocal.default", &[e.total.into()])?;
    let output = b.mul(sum, scale)?;
    Ok(Attention {
        output: b.cast(output, dtype)?,
        max: e.max,
        total: e.total,
    })
}

/// The public operator: the output alone.
fn sdpa(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    Ok(vec![attention(b, args)?.output])
}

/// Output and `logsumexp` of shape `[batch, heads, queries]`, which the gradient reads.
fn flash_for_cpu(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let a = attention(b, args)?;
    let log = b.call("aten.log.default", &[a.total.into()])?;
    let lse = b.add(log, a.max)?;
    let mut sizes = b.sizes(lse)?;
    sizes.pop();
    let lse = b.call("aten.view.default", &[lse.into(), sizes.into()])?;
    Ok(vec![a.output, lse])
}

/// With `p = exp(scores - logsumexp)`: `dv = p^T do`, `ds = p (do v^T - sum(do o)) scale`, `dq = ds k`, `dk = ds^T q`.
/// The backward pass of Dao et al. ("FlashAttention", 2022): the weights are recomputed from the
/// saved `logsumexp`, and `sum(do o)` stands for `sum(p dp)`, which it equals.
fn flash_for_cpu_backward(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    no_dropout(args)?;
    let (query, key) = (args.value("query")?, args.value("key")?);
    let t = b.tensor(query)?;
    let value = args.value("value")?;
    let &[.., features] = t.sizes.as_slice() else {
        return Err(Error::input("queries and keys must have four dimensions"));
    };
    let (k, v) = (repeat_heads(b, key, query)?, repeat_heads(b, value, query)?);
    let (q, k, v) = (b.widen(query)?, b.widen(k)?, b.widen(v)?);
    let grad = b.widen(args.value("grad_out")?)?;
    let out = b.widen(args.value("out")?)?;
    let lse = b.widen(args.value("logsumexp")?)?;
    let scores = scores(b, args, q, k, features)?;
    let last = b.int(-1);
    let lse = b.call("aten.unsqueeze.default", &[lse.into(), last])?;
    let p = b.sub(scores, lse)?;
    let p = b.unary("aten.exp.default", p)?;
    let turn = |b: &mut Builder, x: ValueId| {
        let (i, j) = (b.int(-2), b.int(-1));
        b.call("aten.transpose.int", &[x.into(), i, j])
    };
    let times = |b: &mut Builder, x: ValueId, y: ValueId| {
        b.call("aten.matmul.default", &[x.into(), y.into()])
    };
    let pt = turn(b, p)?;
    let dv = times(b, pt, grad)?;
    let vt = turn(b, v)?;
    let dp = times(b, grad, vt)?;
    // Row sums of `p * dp`, without a pass over queries times keys.
    let both = b.mul(grad, out)?;
    let delta = b.sum(both, &[-1], true)?;
    let ds = b.sub(dp, delta)?;
    let ds = b.mul(p, ds)?;
    let factor = scale(b, args, features)?;
    let ds = b.scale(ds, factor)?;
    let dq = times(b, ds, k)?;
    let dst = turn(b, ds)?;
    let dk = times(b, dst, q)?;
    let (dk, dv) = (sum_heads(b, dk, key)?, sum_heads(b, dv, value)?);
    let mut outs = Vec::new();
    for x in [dq, dk, dv] {
        outs.push(b.cast(x, t.dtype)?);
    }
    Ok(outs)
}

pub const ROWS: &[Row] = &[
    Row {
        name: "aten._scaled_dot_product_flash_attention_for_cpu_backward.default",
        schema: "(Tensor grad_out, Tensor query, Tensor key, Tensor value, Tensor out, Tensor logsumexp, float dropout_p, bool is_causal, *, Tensor? attn_mask=None, float? scale=None) -> (Tensor grad_query, Tensor grad_key, Tensor grad_value)",
        meta: Meta::Route,
        route: Route::Decompose(flash_for_cpu_backward),
        example: "(f32[1,2,1,4], f32[1,2,1,4], f32[1,1,1,4], f32[1,1,1,4], f32[1,2,1,4], f32[1,2,1], 0.0, false, scale=0.7)",
        props: &[Prop::Library(Library::Attention)],
    },
    Row {
        name: "aten.scaled_dot_product_attention.default",
        schema: "(Tensor query, Tensor key, Tensor value, Tensor? attn_mask=None, float dropout_p=0.0, bool is_causal=False, *, float? scale=None, bool enable_gqa=False) -> Tensor",
        meta: Meta::Route,
        route: Route::Decompose(sdpa),
        example: "(f32[2,4,5,8], f32[2,2,6,8], f32[2,2,6,8], bool[5,6], enable_gqa=true)",
        props: &[],
    },
    Row {
        name: "aten._scaled_dot_product_flash_attention_for_cpu.default",
        schema: "(Tensor query, Tensor key, Tensor value, float dropout_p=0.0, bool is_causal=False, *, Tensor? attn_mask=None, float? scale=None) -> (Tensor output, Tensor logsumexp)",
        meta: Meta::Route,
        route: Route::Decompose(flash_for_cpu),
        example: "(f32[2,4,5,8], f32[2,2,5,8], f32[2,2,5,8], 0.0, true)",
        props: &[Prop::Library(Library::Attention)],
    },
];
