//! Attention with a softmax over scores that the caller computes: what `flex_attention` becomes.
//!
//! ```text
//! product = attention_product(query, key)                     f32[batch, heads, rows, keys]
//! scores, keep = any pointwise functions of product and of the positions
//! out, logsumexp, max = attention(query, key, value, product, scores, keep, blocks ..)
//! d_query = attention_grad_query(query, key, value, grad, product, grad_product, weights, keep, blocks ..)
//! d_key, d_value = attention_grad_key_value(query, key, value, grad, product, grad_product, weights, value_weights, keep, ..)
//! ```
//!
//! Gradients read two products, `grad_product` of the result's gradient and the values, and pointwise functions of them:
//! `weights` is the gradient of each score times the scale, `value_weights` its softmax.
//!
//! Stage fuse moves the functions and the product into the attention, so that `product`, `scores` and `keep` never reach
//! memory. Heads of keys and values may be fewer than those of queries, and their batch may be 1.

use crate::lower::product::{Product, Role, Target};
use crate::lower::{Lower, Tensor};
use crate::ops::lowered;
use crate::{Call, Row, meta};
use inrush_base::{DType, Error, Result};
use inrush_expr::Expr;
use inrush_graph::Type;
use inrush_loops::{
    Access, Attended, Attention, Axis, BlockList, BlockMask, BufId, Coords, Gradients,
};

/// Sizes of an attention.
struct Sizes {
    batch: Expr,
    heads: Expr,
    rows: Expr,
    keys: Expr,
    features: Expr,
    columns: Expr,
}

/// Reads and checks the sizes of queries, keys and, where the operator has them, values.
fn sizes(call: &Call) -> Result<Sizes> {
    let of = |name: &str| -> Result<Vec<Expr>> { Ok(call.tensor(name)?.sizes.clone()) };
    let (query, key) = (of("query")?, of("key")?);
    let value = match call.op.schema().position("value") {
        Some(_) => of("value")?,
        None => key.clone(),
    };
    let ([b, h, m, d], [kb, kh, k, kd], [vb, vh, vk, n]) =
        (query.as_slice(), key.as_slice(), value.as_slice())
    else {
        return Err(call.unsupported("query", "operands that have not four dimensions"));
    };
    let ex = call.exprs;
    let fits = (kb == b || ex.is_int(*kb, 1))
        && vb == kb
        && vh == kh
        && vk == k
        && kd == d
        && ex.divide_exact(*h, *kh).is_some();
    if !fits {
        return Err(Error::input("sizes of query, key and value do not match"));
    }
    if call.op.schema().position("grad").is_some() && of("grad")? != [*b, *h, *m, *n] {
        return Err(Error::input("a gradient of other sizes than the result"));
    }
    Ok(Sizes {
        batch: *b,
        heads: *h,
        rows: *m,
        keys: *k,
        features: *d,
        columns: *n,
    })
}

/// Returns the position in a batch of `size` elements: 0 if it is broadcast.
fn of_batch(call: &Call, size: Expr, at: Expr) -> Expr {
    if call.exprs.is_int(size, 1) {
        call.exprs.int(0)
    } else {
        at
    }
}

/// Returns the indices of a tensor of keys or values: batch and head of the query's `b` and `h`, then `rest`.
fn grouped(
    call: &Call,
    name: &str,
    heads: Expr,
    b: Expr,
    h: Expr,
    rest: [Expr; 2],
) -> Result<Vec<Expr>> {
    let ex = call.exprs;
    let t = call.tensor(name)?;
    let (batch, own) = (t.sizes[0], t.sizes[1]);
    let times = (ex.divide_exact(heads, own))
        .ok_or_else(|| Error::input("key heads do not divide query heads"))?;
    let head = if own == heads {
        h
    } else {
        ex.floordiv(h, times)
    };
    Ok([of_batch(call, batch, b), head]
        .into_iter()
        .chain(rest)
        .collect())
}

fn product_types(call: &Call) -> Result<Vec<Type>> {
    let s = sizes(call)?;
    meta::one(
        call.exprs,
        DType::F32,
        vec![s.batch, s.heads, s.rows, s.keys],
    )
}

/// Products of queries and keys in `f32`, without a scale.
fn product<'g>(lw: &mut Lower<'g>, call: &Call<'g>) -> Result<Vec<Tensor>> {
    let s = sizes(call)?;
    let mut p = Product::new(call.exprs);
    let b = p.axis(Role::Batch, s.batch);
    let h = p.axis(Role::Batch, s.heads);
    let m = p.axis(Role::M, s.rows);
    let k = p.axis(Role::N, s.keys);
    let d = p.axis(Role::K, s.features);
    let (query, key) = (lw.arg(call, "query")?, lw.arg(call, "key")?);
    let target = Target {
        dtype: DType::F32,
        sizes: vec![s.batch, s.heads, s.rows, s.keys],
        index: vec![b, h, m, k],
    };
    let of_key = grouped(call, "key", s.heads, b, h, [k, d])?;
    let a = (&query, vec![b, h, m, d]);
    Ok(vec![p.lower(
        lw,
        a,
        (&key, of_key),
        target,
        |_, sum, _| Ok(sum),
    )?])
}

fn attention_types(call: &Call) -> Result<Vec<Type>> {
    let s = sizes(call)?;
    let ex = call.exprs;
    let rows = vec![s.batch, s.heads, s.rows];
    let out = vec![s.batch, s.heads, s.rows, s.columns];
    let dtype = call.tensor("query")?.dtype;
    Ok(
        [(dtype, out), (DType::F32, rows.clone()), (DType::F32, rows)]
            .into_iter()
            .map(|(dtype, sizes)| meta::tensor(ex, dtype, sizes))
            .collect(),
    )
}

/// The attention. Its scores read tensors that are made for it.
fn attention<'g>(lw: &mut Lower<'g>, call: &Call<'g>) -> Result<Vec<Tensor>> {
    let s = sizes(call)?;
    let points = [s.batch, s.heads, s.rows, s.keys];
    let out = lw.temp(
        call.tensor("query")?.dtype,
        &[s.batch, s.heads, s.rows, s.columns],
    );
    let logsumexp = lw.temp(DType::F32, &points[..3]);
    let max = lw.temp(DType::F32, &points[..3]);
    let results = Attended::Softmax {
        out: out.buf,
        logsumexp: logsumexp.buf,
        max: max.buf,
    };
    attend(lw, call, &s, &["scores"], false, |_| Ok(results))?;
    Ok(vec![out, logsumexp, max])
}

/// Axes of an attention whose rows are queries.
struct Axes {
    /// Batch and head.
    batch: [Axis; 2],
    queries: Axis,
    keys: Axis,
    features: Axis,
    columns: Axis,
}

impl Axes {
    /// Makes the axes, numbered in the order batch, rows, walked keys: with `exchanged` roles keys come first.
    fn new(call: &Call, s: &Sizes, exchanged: bool) -> Axes {
        let ex = call.exprs;
        let mut next = 0;
        let mut axis = |size: Expr| {
            next += 1;
            Axis {
                sym: ex.index_sym(next - 1, size),
                size,
            }
        };
        let batch = [axis(s.batch), axis(s.heads)];
        let (queries, keys) = if exchanged {
            let keys = axis(s.keys);
            (axis(s.rows), keys)
        } else {
            let queries = axis(s.rows);
            (queries, axis(s.keys))
        };
        Axes {
            batch,
            queries,
            keys,
            features: axis(s.features),
            columns: axis(s.columns),
        }
    }
}

/// Operands of an operator as accesses over the axes.
struct Operands {
    query: Access,
    key: Access,
    value: Access,
    /// Of gradients: that of the result.
    grad: Option<Access>,
}

fn operands<'g>(lw: &mut Lower<'g>, call: &Call<'g>, s: &Sizes, axes: &Axes) -> Result<Operands> {
    let ex = call.exprs;
    let at = |x: &Axis| ex.sym_expr(x.sym);
    let [b, h] = axes.batch.map(|x| at(&x));
    let (m, k, d, n) = (axes.queries, axes.keys, axes.features, axes.columns);
    let [query, key, value] = ["query", "key", "value"].map(|name| lw.arg(call, name));
    let (query, key, value) = (query?, key?, value?);
    let query = operand(lw, query, &[b, h, at(&m), at(&d)], [m, d]);
    let of_key = grouped(call, "key", s.heads, b, h, [at(&k), at(&d)])?;
    let key = operand(lw, key, &of_key, [k, d]);
    let of_value = grouped(call, "value", s.heads, b, h, [at(&k), at(&n)])?;
    let value = operand(lw, value, &of_value, [k, n]);
    let grad = match call.op.schema().position("grad") {
        Some(_) => {
            let grad = lw.arg(call, "grad")?;
            Some(operand(lw, grad, &[b, h, at(&m), at(&n)], [m, n]))
        }
        None => None,
    };
    Ok(Operands {
        query,
        key,
        value,
        grad,
    })
}

/// Adds an attention, whose body stores the arguments `values`, then `keep`. With `exchanged` roles, its rows are keys and it
/// walks the queries. `results` gets the gradient of the result where the operator has one.
fn attend<'g>(
    lw: &mut Lower<'g>,
    call: &Call<'g>,
    s: &Sizes,
    values: &[&str],
    exchanged: bool,
    results: impl FnOnce(Option<Access>) -> Result<Attended>,
) -> Result<()> {
    let ex = call.exprs;
    let axes = Axes::new(call, s, exchanged);
    let operands = operands(lw, call, s, &axes)?;
    let product = lw.arg(call, "product")?;
    let at = |x: &Axis| ex.sym_expr(x.sym);
    let [b, h] = axes.batch.map(|x| at(&x));
    let (m, k) = if exchanged {
        (axes.keys, axes.queries)
    } else {
        (axes.queries, axes.keys)
    };
    let blocks = blocks(lw, call, [b, h, at(&m)], exchanged)?;
    let points = [s.batch, s.heads, m.size, k.size];
    let mut body = lw.body(&points);
    let names = values.iter().map(|name| (*name, DType::F32));
    let own = [b, h, at(&m), at(&k)];
    let point = [b, h, at(&axes.queries), at(&axes.keys)];
    for (name, dtype) in names.chain([("keep", DType::Bool)]) {
        let Some(t) = lw.opt_arg(call, name)? else {
            continue;
        };
        let coords: Vec<Expr> = (t.sizes.iter().zip(&point))
            .map(|(size, at)| of_batch(call, *size, *at))
            .collect();
        let v = body.load(&t, &coords);
        let v = body.cast(v, dtype);
        let to = lw.temp(dtype, &points);
        body.store(to.buf, &own, v);
    }
    let Operands {
        query,
        key,
        value,
        grad,
    } = operands;
    let (query, key, value, grad) = match (exchanged, grad) {
        (true, Some(grad)) => (key, query, grad, Some(value)),
        (_, grad) => (query, key, value, grad),
    };
    lw.push_attention(Attention {
        batch: axes.batch.to_vec(),
        m,
        k,
        d: axes.features,
        n: axes.columns,
        query,
        key,
        value,
        product: Some(product.buf),
        scores: body.finish(),
        blocks,
        results: results(grad)?,
    });
    Ok(())
}

/// Returns the dtype of the gradients of keys and values: each head and batch of the queries has its own, which are rounded once
/// added up if there are several for one of the keys.
fn key_grad_dtype(call: &Call, s: &Sizes) -> Result<DType> {
    let (query, key) = (call.tensor("query")?, call.tensor("key")?);
    let own = key.sizes[0] == s.batch && key.sizes[1] == s.heads;
    Ok(if own { query.dtype } else { DType::F32 })
}

fn grad_query_types(call: &Call) -> Result<Vec<Type>> {
    let s = sizes(call)?;
    let dtype = call.tensor("query")?.dtype;
    let out = vec![s.batch, s.heads, s.rows, s.features];
    meta::one(call.exprs, dtype, out)
}

fn grad_query<'g>(lw: &mut Lower<'g>, call: &Call<'g>) -> Result<Vec<Tensor>> {
    let s = sizes(call)?;
    let sizes = [s.batch, s.heads, s.rows, s.features];
    let out = lw.temp(call.tensor("query")?.dtype, &sizes);
    let product = lw.arg(call, "grad_product")?;
    let results = gradients(call, product.buf, false, [Some(out.buf), None]);
    attend(lw, call, &s, &["weights"], false, results)?;
    Ok(vec![out])
}

fn grad_key_value_types(call: &Call) -> Result<Vec<Type>> {
    let s = sizes(call)?;
    let (ex, dtype) = (call.exprs, key_grad_dtype(call, &s)?);
    let of = |n: Expr| meta::tensor(ex, dtype, vec![s.batch, s.heads, s.keys, n]);
    Ok(vec![of(s.features), of(s.columns)])
}

fn grad_key_value<'g>(lw: &mut Lower<'g>, call: &Call<'g>) -> Result<Vec<Tensor>> {
    let s = sizes(call)?;
    let dtype = key_grad_dtype(call, &s)?;
    let [key, value] =
        [s.features, s.columns].map(|n| lw.temp(dtype, &[s.batch, s.heads, s.keys, n]));
    let product = lw.arg(call, "grad_product")?;
    let results = gradients(call, product.buf, true, [Some(key.buf), Some(value.buf)]);
    attend(lw, call, &s, &["weights", "value_weights"], true, results)?;
    Ok(vec![key, value])
}

/// Returns what makes the results of gradients of the result's gradient.
fn gradients<'a>(
    call: &'a Call,
    product: BufId,
    exchanged: bool,
    [by_key, by_value]: [Option<BufId>; 2],
) -> impl FnOnce(Option<Access>) -> Result<Attended> + 'a {
    move |grad| {
        let (Some(grad), Some(by_key)) = (grad, by_key) else {
            return Err(call.unsupported("grad", "gradients of nothing"));
        };
        Ok(Attended::Gradients(Gradients {
            grad,
            product: Some(product),
            exchanged,
            by_key,
            by_value,
        }))
    }
}

/// Returns the access of an operand, which is copied if its coordinates are not affine in the axes of a tile.
fn operand(lw: &mut Lower, t: Tensor, index: &[Expr], own: [Axis; 2]) -> Access {
    let ex = lw.exprs;
    let syms = own.map(|a| a.sym);
    let coords = t.at(ex, index);
    if coords.iter().all(|c| ex.coefficients(*c, &syms).is_some()) {
        return Access { buf: t.buf, coords };
    }
    let copy = lw.materialize(&t);
    Access {
        buf: copy.buf,
        coords: copy.at(ex, index),
    }
}

/// Returns the lists of blocks, if the call has any. With `exchanged` roles they hold blocks of queries for those of keys.
fn blocks(
    lw: &Lower,
    call: &Call,
    [b, h, m]: [Expr; 3],
    exchanged: bool,
) -> Result<Option<BlockMask>> {
    let ex = call.exprs;
    let (mut rows, mut keys) = (call.const_int("rows")?, call.const_int("keys")?);
    let mut lists = ["kv_num_blocks", "kv_indices"];
    if exchanged {
        (rows, keys) = (keys, rows);
        lists = ["q_num_blocks", "q_indices"];
    }
    // After batch, head, queries, keys, features, columns.
    let mut next = 6;
    let mut axis = |size: Expr| {
        next += 1;
        Axis {
            sym: ex.index_sym(next - 1, size),
            size,
        }
    };
    let mut list = |name: &str, index: &str| -> Result<Option<BlockList>> {
        let (Some(count), Some(index)) = (lw.opt_arg(call, name)?, lw.opt_arg(call, index)?) else {
            return Ok(None);
        };
        let (3, [.., last]) = (count.sizes.len(), index.sizes.as_slice()) else {
            return Err(call.unsupported(name, "lists of these ranks"));
        };
        let position = axis(*last);
        let at = |t: &Tensor, more: Option<Expr>| -> Coords {
            let lead = [b, h, ex.floordiv(m, ex.int(rows))];
            let mut all: Vec<Expr> = (lead.iter().zip(&t.sizes))
                .map(|(e, size)| of_batch(call, *size, *e))
                .collect();
            all.extend(more);
            t.at(ex, &all)
        };
        Ok(Some(BlockList {
            count: Access {
                buf: count.buf,
                coords: at(&count, None),
            },
            index: Access {
                buf: index.buf,
                coords: at(&index, Some(ex.sym_expr(position.sym))),
            },
            position,
        }))
    };
    let Some(partial) = list(lists[0], lists[1])? else {
        return Ok(None);
    };
    if rows < 1 || keys < 1 {
        return Err(Error::input("blocks without rows or keys"));
    }
    Ok(Some(BlockMask {
        rows,
        keys,
        partial,
        full: list(&format!("full_{}", lists[0]), &format!("full_{}", lists[1]))?,
    }))
}

pub const ROWS: &[Row] = &[
    lowered(
        "inrush.attention_product.default",
        "(Tensor query, Tensor key) -> Tensor",
        product_types,
        product,
        "(f32[2,4,5,8], f32[1,2,6,8])",
    ),
    lowered(
        "inrush.attention.default",
        "(Tensor query, Tensor key, Tensor value, Tensor product, Tensor scores, Tensor? keep, Tensor? kv_num_blocks, Tensor? kv_indices, Tensor? full_kv_num_blocks, Tensor? full_kv_indices, int rows, int keys) -> (Tensor, Tensor, Tensor)",
        attention_types,
        attention,
        "(f32[2,4,5,8], f32[2,2,6,8], f32[2,2,6,8], f32[2,4,5,6], f32[2,4,5,6], bool[2,1,5,6], none, none, none, none, 0, 0)",
    ),
    lowered(
        "inrush.attention_grad_query.default",
        "(Tensor query, Tensor key, Tensor value, Tensor grad, Tensor product, Tensor grad_product, Tensor weights, Tensor? keep, Tensor? kv_num_blocks, Tensor? kv_indices, Tensor? full_kv_num_blocks, Tensor? full_kv_indices, int rows, int keys) -> Tensor",
        grad_query_types,
        grad_query,
        "(f32[2,4,5,8], f32[2,2,6,8], f32[2,2,6,3], f32[2,4,5,3], f32[2,4,5,6], f32[2,4,5,6], f32[2,4,5,6], bool[2,1,5,6], none, none, none, none, 0, 0)",
    ),
    lowered(
        "inrush.attention_grad_key_value.default",
        "(Tensor query, Tensor key, Tensor value, Tensor grad, Tensor product, Tensor grad_product, Tensor weights, Tensor value_weights, Tensor? keep, Tensor? q_num_blocks, Tensor? q_indices, Tensor? full_q_num_blocks, Tensor? full_q_indices, int rows, int keys) -> (Tensor, Tensor)",
        grad_key_value_types,
        grad_key_value,
        "(f32[2,4,5,8], f32[2,2,6,8], f32[2,2,6,3], f32[2,4,5,3], f32[2,4,5,6], f32[2,4,5,6], f32[2,4,5,6], f32[2,4,5,6], bool[2,1,5,6], none, none, none, none, 0, 0)",
    ),
];
