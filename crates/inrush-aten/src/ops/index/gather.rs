//! Reading by index tensors.
//!
//! Advanced indexing (`x[i, :, j]`) follows NumPy. Index tensors broadcast together; their
//! common shape replaces the dimensions that they index, in place if these are adjacent and
//! in front otherwise:
//!
//! ```text
//! x: [A, B, C, D]    x[:, i, j]     i, j: [n]   ->  [A, n, D]
//!                    x[i, :, j]                 ->  [n, B, D]
//! ```
//!
//! The body runs over the result. Each index is loaded at the point's coordinates within the
//! common shape, made an indirect index, and used as the source's coordinate. A failed check
//! names the operator and its Python line.
//!
//! Negative indices wrap in `index`, where Python counts from the end, and are errors in
//! `gather`, `index_select` and `embedding`, as in PyTorch.

use crate::lower::body::broadcast_index;
use crate::{Args, BodyBuilder, Builder, Call, Lower, Meta, Route, Row, Tensor, meta};
use inrush_base::{DType, Error, Result};
use inrush_expr::Expr;
use inrush_graph::{Arg, TensorType, Type, ValueId};
use inrush_loops::StmtId;

/// An index tensor's dtype must be an integer; a mask selects a number of elements that only the data knows.
fn check_index(dtype: DType) -> Result<()> {
    match dtype {
        DType::I64 | DType::I32 | DType::I16 | DType::I8 => Ok(()),
        DType::Bool | DType::U8 => Err(Error::unsupported(
            "indexing by a mask: the number of elements depends on the data",
        )),
        d => Err(Error::input(format!("an index tensor of dtype {d}"))),
    }
}

/// Reads an index of dtype `i64`.
pub(in crate::ops) fn load_index(body: &mut BodyBuilder, t: &Tensor, at: &[Expr]) -> StmtId {
    let v = body.load(t, at);
    body.cast(v, DType::I64)
}

/// Where the dimensions of `self[indices]` come from.
pub(in crate::ops) struct Advanced {
    /// Position among the result's dimensions of the broadcast index shape.
    pub at: usize,
    /// The broadcast index shape.
    /// Empty for indices without dimensions, which remove a dimension each.
    pub shape: Vec<Expr>,
    /// For each dimension of the source: the index tensor, or `None`.
    pub picks: Vec<Option<ValueId>>,
    /// Sizes of the result.
    pub sizes: Vec<Expr>,
}

impl Advanced {
    /// Finds where each dimension of the result comes from, for a source of these sizes.
    ///
    /// # Errors
    ///
    /// If there are more indices than dimensions, none at all, one is a mask, or they do not
    /// broadcast.
    pub fn new(call: &Call, indices: &[Option<ValueId>], source: &[Expr]) -> Result<Advanced> {
        if indices.len() > source.len() {
            return Err(Error::input(format!(
                "{} indices for a tensor of rank {}",
                indices.len(),
                source.len()
            )));
        }
        let mut picks = indices.to_vec();
        picks.resize(source.len(), None);
        let mut shape: Vec<Expr> = Vec::new();
        for v in picks.iter().flatten() {
            let t = call.type_of(*v)?;
            check_index(t.dtype)?;
            shape = meta::broadcast(call.exprs, &shape, &t.sizes)?;
        }
        let picked: Vec<usize> = (0..picks.len()).filter(|d| picks[*d].is_some()).collect();
        let (Some(&first), Some(&last)) = (picked.first(), picked.last()) else {
            return Err(Error::input("indexing without an index tensor"));
        };
        // Index tensors side by side put their shape in their place; apart, in front.
        let at = if last - first + 1 == picked.len() {
            first
        } else {
            0
        };
        let mut sizes: Vec<Expr> = (0..source.len())
            .filter(|d| picks[*d].is_none())
            .map(|d| source[d])
            .collect();
        sizes.splice(at..at, shape.iter().copied());
        Ok(Advanced {
            at,
            shape,
            picks,
            sizes,
        })
    }

    /// The index of each dimension of the source, at the point `outer` of the result.
    /// Emits a load and a check for each index tensor.
    pub fn source<'g>(
        &self,
        lw: &Lower<'g>,
        body: &mut BodyBuilder<'g>,
        outer: &[Expr],
        source: &[Expr],
    ) -> Result<Vec<Expr>> {
        let (before, rest) = outer.split_at(self.at);
        let (inner, after) = rest.split_at(self.shape.len());
        let mut kept = before.iter().chain(after);
        let mut out = Vec::with_capacity(source.len());
        for (pick, size) in self.picks.iter().zip(source) {
            out.push(match pick {
                None => *kept
                    .next()
                    .ok_or_else(|| Error::internal("too few dimensions"))?,
                Some(v) => {
                    let t = lw.tensor(*v)?;
                    let at = broadcast_index(lw.exprs, &t, inner);
                    let v = load_index(body, &t, &at);
                    body.indirect(v, *size, true, true, None)
                }
            });
        }
        Ok(out)
    }
}

fn index_meta(call: &Call) -> Result<Vec<Type>> {
    let t = call.tensor("self")?;
    let a = Advanced::new(call, &call.opt_list("indices")?, &t.sizes)?;
    meta::one(call.exprs, t.dtype, a.sizes)
}

/// One load per element of the result, at coordinates that other loads give.
fn index<'g>(lw: &mut Lower<'g>, call: &Call<'g>) -> Result<Vec<Tensor>> {
    let t = lw.arg(call, "self")?;
    let a = Advanced::new(call, &call.opt_list("indices")?, &t.sizes)?;
    let mut body = lw.body(&a.sizes);
    let outer = body.outer();
    let at = a.source(lw, &mut body, &outer, &t.sizes)?;
    let v = body.load(&t, &at);
    Ok(vec![lw.store_new(body, v, t.dtype, &a.sizes)])
}

/// Sizes of `self` with dimension `dim` replaced by the index's elements.
fn selected_sizes(call: &Call, t: &TensorType, index: &TensorType) -> Result<(usize, Vec<Expr>)> {
    check_index(index.dtype)?;
    if index.rank() > 1 {
        return Err(Error::input("the index must have one dimension"));
    }
    let dim = call.dim("dim", t.rank())?;
    let mut sizes = t.sizes.clone();
    if let Some(s) = sizes.get_mut(dim) {
        *s = index.numel(call.exprs);
    }
    Ok((dim, sizes))
}

/// An index without dimensions selects one element, and the dimension stays with size 1.
fn index_select<'g>(lw: &mut Lower<'g>, call: &Call<'g>) -> Result<Vec<Tensor>> {
    let (t, index) = (lw.arg(call, "self")?, lw.arg(call, "index")?);
    let (dim, sizes) = selected_sizes(call, call.tensor("self")?, call.tensor("index")?)?;
    let mut body = lw.body(&sizes);
    let mut at = body.outer();
    if let Some(i) = at.get_mut(dim) {
        let place: Vec<Expr> = index.sizes.iter().map(|_| *i).collect();
        let v = load_index(&mut body, &index, &place);
        *i = body.indirect(v, t.sizes[dim], false, true, None);
    }
    let v = body.load(&t, &at);
    Ok(vec![lw.store_new(body, v, t.dtype, &sizes)])
}

/// The indices' sizes and the width of a row.
fn embedding_sizes(weight: &[Expr], indices: &[Expr]) -> Result<Vec<Expr>> {
    match weight {
        [_, width] => Ok([indices, &[*width]].concat()),
        _ => Err(Error::input(
            "an embedding's weight must have two dimensions",
        )),
    }
}

/// Row `indices[..]` of the weight. `padding_idx` matters to the gradient only.
fn embedding<'g>(lw: &mut Lower<'g>, call: &Call<'g>) -> Result<Vec<Tensor>> {
    let (w, indices) = (lw.arg(call, "weight")?, lw.arg(call, "indices")?);
    check_index(indices.dtype)?;
    let sizes = embedding_sizes(&w.sizes, &indices.sizes)?;
    let mut body = lw.body(&sizes);
    let mut outer = body.outer();
    let column = outer
        .pop()
        .ok_or_else(|| Error::internal("an embedding without dimensions"))?;
    let v = load_index(&mut body, &indices, &outer);
    let row = body.indirect(v, w.sizes[0], false, true, None);
    let v = body.load(&w, &[row, column]);
    Ok(vec![lw.store_new(body, v, w.dtype, &sizes)])
}

/// `out[i, j] = self[index[i, j], j]` for `dim` 0. The index may be smaller than the input
/// along other dimensions: the loop is over the index.
fn gather<'g>(lw: &mut Lower<'g>, call: &Call<'g>) -> Result<Vec<Tensor>> {
    let (t, index) = (lw.arg(call, "self")?, lw.arg(call, "index")?);
    // An index without elements may be of any dtype and rank.
    if index.sizes.iter().any(|s| lw.exprs.is_int(*s, 0)) {
        let mut body = lw.body(&index.sizes);
        let zero = body.constant(inrush_base::Scalar::Int(0), t.dtype);
        return Ok(vec![lw.store_new(body, zero, t.dtype, &index.sizes)]);
    }
    check_index(index.dtype)?;
    let dim = call.dim("dim", t.sizes.len())?;
    if t.sizes.len().max(1) != index.sizes.len().max(1) {
        return Err(Error::input(
            "the index must have as many dimensions as the input",
        ));
    }
    let mut body = lw.body(&index.sizes);
    let outer = body.outer();
    let v = load_index(&mut body, &index, &outer);
    let mut at = outer;
    at.truncate(t.sizes.len());
    if let Some(size) = t.sizes.get(dim) {
        let i = body.indirect(v, *size, false, true, None);
        // Ranks 0 and 1 mix: an index of one element may have either.
        at.resize(t.sizes.len(), lw.exprs.int(0));
        at[dim] = i;
    }
    let v = body.load(&t, &at);
    Ok(vec![lw.store_new(body, v, t.dtype, &index.sizes)])
}

/// `self` seen as one dimension, read at `index`.
fn take(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let (x, index) = (args.value("self")?, args.value("index")?);
    let flat = b.call("aten.view.default", &[x.into(), b.ints(&[-1])])?;
    Ok(vec![b.call(
        "aten.index.Tensor",
        &[flat.into(), Arg::Values(vec![Some(index)])],
    )?])
}

/// Unlike `gather`, broadcasts both operands along the other dimensions first; without `dim`
/// both are flat.
fn take_along_dim(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let (mut x, mut index) = (args.value("self")?, args.value("indices")?);
    let dim = match args.given("dim") {
        false => {
            x = b.call("aten.view.default", &[x.into(), b.ints(&[-1])])?;
            index = b.call("aten.view.default", &[index.into(), b.ints(&[-1])])?;
            0
        }
        true => {
            let (xs, is) = (b.sizes(x)?, b.sizes(index)?);
            let dim = args.dim("dim", xs.len())?;
            if xs.len() != is.len() {
                return Err(Error::input(
                    "the indices must have as many dimensions as the input",
                ));
            }
            let one = b.exprs.int(1);
            let without = |s: &[Expr]| {
                let mut s = s.to_vec();
                s[dim] = one;
                s
            };
            let common = meta::broadcast(b.exprs, &without(&xs), &without(&is))?;
            let with = |size: Expr| {
                let mut s = common.clone();
                s[dim] = size;
                s
            };
            let (to_x, to_i) = (with(xs[dim]), with(is[dim]));
            x = b.call("aten.expand.default", &[x.into(), to_x.into()])?;
            index = b.call("aten.expand.default", &[index.into(), to_i.into()])?;
            dim as i64
        }
    };
    let out = b.call("aten.gather.default", &[x.into(), b.int(dim), index.into()])?;
    Ok(vec![out])
}

/// 1 where the class number is the value.
fn one_hot(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let x = args.value("self")?;
    let classes = args.int("num_classes")?;
    if b.exprs.is_int(classes, -1) {
        return Err(args.unsupported("num_classes", "the number of classes depends on the data"));
    }
    let mut sizes = b.sizes(x)?;
    sizes.push(b.exprs.int(1));
    let numbers = b.call("aten.arange.default", &[classes.into()])?;
    // The number of a class, looked up by itself: this refuses numbers that are none.
    let flat = b.call("aten.view.default", &[x.into(), b.ints(&[-1])])?;
    let x = b.call(
        "aten.index_select.default",
        &[numbers.into(), b.int(0), flat.into()],
    )?;
    let x = b.call("aten.view.default", &[x.into(), sizes.into()])?;
    let hit = b.call("aten.eq.Tensor", &[x.into(), numbers.into()])?;
    Ok(vec![b.cast(hit, DType::I64)?])
}

/// The result has the sizes of the index and the dtype of the input.
///
/// # Errors
///
/// If the index is larger than the input along a dimension other than `dim`; a relation that
/// is not known becomes a guard.
fn gather_meta(call: &Call) -> Result<Vec<Type>> {
    let (t, index) = (call.tensor("self")?, call.tensor("index")?);
    let dim = call.dim("dim", t.rank())?;
    for (d, (i, s)) in index.sizes.iter().zip(&t.sizes).enumerate() {
        if d != dim {
            call.at_most(*i, *s, "the index")?;
        }
    }
    meta::one(call.exprs, t.dtype, index.sizes.clone())
}

pub const ROWS: &[Row] = &[
    Row {
        name: "aten.embedding.default",
        schema: "(Tensor weight, Tensor indices, SymInt padding_idx=-1, bool scale_grad_by_freq=False, bool sparse=False) -> Tensor",
        meta: Meta::Fn(|c| {
            let w = c.tensor("weight")?;
            let sizes = embedding_sizes(&w.sizes, &c.tensor("indices")?.sizes)?;
            meta::one(c.exprs, w.dtype, sizes)
        }),
        route: Route::Lower(embedding),
        example: "(f32[7,4], i64[2,3]{0:6})",
        props: &[],
    },
    Row {
        name: "aten.index.Tensor",
        schema: "(Tensor self, Tensor?[] indices) -> Tensor",
        meta: Meta::Fn(index_meta),
        route: Route::Lower(index),
        example: "(f32[4,5,6], [i64[3,1]{-4:3}, none, i64[2]{0:5}])",
        props: &[],
    },
    Row {
        name: "aten._unsafe_index.Tensor",
        schema: "(Tensor self, Tensor?[] indices) -> Tensor",
        meta: Meta::Fn(index_meta),
        route: Route::Lower(index),
        example: "(f32[4,5], [none, i64[3]{0:4}])",
        props: &[],
    },
    Row {
        name: "aten.index_select.default",
        schema: "(Tensor self, int dim, Tensor index) -> Tensor",
        meta: Meta::Fn(|c| {
            let t = c.tensor("self")?;
            let (_, sizes) = selected_sizes(c, t, c.tensor("index")?)?;
            meta::one(c.exprs, t.dtype, sizes)
        }),
        route: Route::Lower(index_select),
        example: "(f32[4,5], 1, i64[3]{0:4})",
        props: &[],
    },
    Row {
        name: "aten.gather.default",
        schema: "(Tensor self, int dim, Tensor index, *, bool sparse_grad=False) -> Tensor",
        meta: Meta::Fn(gather_meta),
        route: Route::Lower(gather),
        example: "(f32[4,5], 1, i64[3,2]{0:4})",
        props: &[],
    },
    Row {
        name: "aten.take.default",
        schema: "(Tensor self, Tensor index) -> Tensor",
        meta: Meta::Route,
        route: Route::Decompose(take),
        example: "(f32[4,5], i64[3,2]{-20:19})",
        props: &[],
    },
    Row {
        name: "aten.take_along_dim.default",
        schema: "(Tensor self, Tensor indices, int? dim=None) -> Tensor",
        meta: Meta::Route,
        route: Route::Decompose(take_along_dim),
        example: "(f32[4,5], i64[1,2]{0:4}, 1)",
        props: &[],
    },
    Row {
        name: "aten.one_hot.default",
        schema: "(Tensor self, int num_classes=-1) -> Tensor",
        meta: Meta::Route,
        route: Route::Decompose(one_hot),
        example: "(i64[3]{0:4}, 5)",
        props: &[],
    },
];
