//! Indices by masks as coordinates.
//!
//! # What it does
//! Replaces a mask among the indices of a read by the coordinates of its elements, and `masked_select` likewise. The coordinates
//! are a tensor whose size data decide; the read is then one by indices.
//!
//! # When
//! Ahead of time, for graphs whose data decide about sizes, before stage normalize. Inside PyTorch these operators are called.
//!
//! # Numerics
//! None: elements are copied, in the order of the mask's elements.
//!
//! # Example
//! ```text
//! %2 y: f32[u0] = aten.index.Tensor(%0, [%1])
//! =>
//! %3 y.1: i64[u0, 2] = aten.nonzero.default(%1)
//! %4 y.2: i64[u0] = aten.select.int(%3, 1, 0)
//! %5 y.3: i64[u0] = aten.select.int(%3, 1, 1)
//! %2 y: f32[u0] = aten.index.Tensor(%0, [%4, %5])
//! ```

use inrush_aten::{Builder, replace};
use inrush_base::{DType, Error, Result};
use inrush_expr::Expr;
use inrush_graph::{Arg, Graph, Node, TensorType, Type, ValueId};

/// Replaces masks by coordinates.
///
/// # Errors
/// An unsupported error for several masks in one read.
pub fn expand_masks(mut graph: Graph) -> Result<Graph> {
    let nodes = std::mem::take(&mut graph.nodes);
    let mut out = Vec::with_capacity(nodes.len());
    for mut node in nodes {
        let args = match node.op.as_str() {
            "aten.index.Tensor" => read(&mut graph, &mut out, &node)?,
            "aten.masked_select.default" => Some(select(&mut graph, &mut out, &node)?),
            _ => None,
        };
        if let Some(args) = args {
            (node.op, node.args) = ("aten.index.Tensor".into(), args);
        }
        out.push(node);
    }
    graph.nodes = out;
    Ok(graph)
}

/// Returns the arguments of a read by coordinates; `None` where no index is a mask.
fn read(graph: &mut Graph, out: &mut Vec<Node>, node: &Node) -> Result<Option<Vec<Arg>>> {
    let (Some(x), Some(Arg::Values(given))) = (node.args.first(), node.args.get(1)) else {
        return Ok(None);
    };
    let masks = given.iter().flatten().filter(|v| is_mask(graph, **v));
    let locate = |e: Error| graph.locate(node, e);
    match masks.count() {
        0 => return Ok(None),
        1 => {}
        _ => return Err(locate(Error::unsupported("several masks in one read"))),
    }
    let count = counted(graph, node, given).map_err(locate)?;
    let (x, given) = (x.clone(), given.clone());
    let is_mask: Vec<bool> = (given.iter())
        .map(|v| v.is_some_and(|v| is_mask(graph, v)))
        .collect();
    replace(graph, out, node, |b| {
        let mut indices = Vec::new();
        for (v, is_mask) in given.iter().zip(is_mask) {
            match v {
                Some(mask) if is_mask => {
                    indices.extend(coordinates(b, *mask, count)?.into_iter().map(Some));
                }
                other => indices.push(*other),
            }
        }
        Ok(Some(vec![x, Arg::Values(indices)]))
    })
}

/// Returns the arguments of a read that is a `masked_select`.
fn select(graph: &mut Graph, out: &mut Vec<Node>, node: &Node) -> Result<Vec<Arg>> {
    let [Arg::Value(x), Arg::Value(mask), ..] = node.args[..] else {
        let e = Error::input("a tensor and a mask are missing");
        return Err(graph.locate(node, e));
    };
    let result = node.outs.first().map(|v| &graph.value(*v).ty);
    let count = match result {
        Some(Type::Tensor(t)) if t.rank() == 1 => t.sizes[0],
        _ => return Err(graph.locate(node, Error::input("the result is no list"))),
    };
    replace(graph, out, node, |b| {
        let all = b.call_multi(
            "aten.broadcast_tensors.default",
            &[Arg::Values(vec![Some(x), Some(mask)])],
        )?;
        let [x, mask] = all[..] else {
            return Err(Error::internal("two tensors are broadcast to others"));
        };
        let indices = coordinates(b, mask, count)?.into_iter().map(Some).collect();
        Ok(vec![x.into(), Arg::Values(indices)])
    })
}

fn is_mask(graph: &Graph, v: ValueId) -> bool {
    matches!(&graph.value(v).ty, Type::Tensor(t) if matches!(t.dtype, DType::Bool | DType::U8))
}

/// Returns the number of elements of the mask of a read, which is a size of its result: the last of those that the indices give.
fn counted(graph: &Graph, node: &Node, given: &[Option<ValueId>]) -> Result<Expr> {
    let rank = |v: ValueId| graph.tensor(v).map(TensorType::rank);
    // Dimensions of the source before the first index, and of the broadcast indices.
    let (mut first, mut broadcast, mut parts, mut at) = (0, 1, 0, 0);
    let mut before = false;
    for v in given {
        let wide = match v {
            Some(v) if is_mask(graph, *v) => rank(*v)?,
            Some(v) => {
                broadcast = broadcast.max(rank(*v)?);
                1
            }
            None => 1,
        };
        if v.is_some() && !before {
            parts += 1;
            if parts == 1 {
                first = at;
            }
        }
        before = v.is_some();
        at += wide;
    }
    // Indices with dimensions between them put theirs in front.
    let start = if parts > 1 { 0 } else { first };
    let out = node
        .outs
        .first()
        .ok_or_else(|| Error::input("a read without a result"))?;
    let sizes = &graph.tensor(*out)?.sizes;
    (sizes.get(start + broadcast - 1).copied())
        .ok_or_else(|| Error::input("the result has too few dimensions"))
}

/// Returns the coordinates of a mask's elements, a list for each dimension.
fn coordinates(b: &mut Builder, mask: ValueId, count: Expr) -> Result<Vec<ValueId>> {
    let rank = b.rank(mask)?;
    let one = b.exprs.int(1);
    let ty = TensorType {
        dtype: DType::I64,
        sizes: vec![count, b.exprs.int(rank as i64)],
        strides: vec![one, count],
    };
    let at = b.call_dynamic("aten.nonzero.default", vec![mask.into()], ty);
    (0..rank)
        .map(|k| {
            let k = b.int(k as i64);
            b.call("aten.select.int", &[at.into(), b.int(1), k])
        })
        .collect()
}
