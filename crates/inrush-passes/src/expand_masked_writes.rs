//! Writes by a mask as choices.
//!
//! # What it does
//! Replaces `index_put` with a mask as its only index by `where`, or by `masked_scatter` for a list of values.
//!
//! # When
//! Ahead of time, before everything else. Inside PyTorch the operator is called.
//!
//! # Numerics
//! None. A list of more values than the mask has elements is taken, which eager refuses.
//!
//! # Example
//! ```text
//! %3 y: f32[4, 5] = aten.index_put.default(%0, [%1], %2)
//! =>
//! %3 y: f32[4, 5] = aten.where.self(%1, %2, %0)
//! ```

use inrush_aten::{Builder, replace};
use inrush_base::{DType, Error, Result};
use inrush_graph::{Arg, Graph, Node, Type, ValueId};

/// Replaces writes by a mask, those of bodies too.
///
/// # Errors
/// An input error for values that do not fit.
pub fn expand_masked_writes(mut graph: Graph) -> Result<Graph> {
    let bodies = std::mem::take(&mut graph.bodies);
    graph.bodies = (bodies.into_iter())
        .map(expand_masked_writes)
        .collect::<Result<_>>()?;
    let nodes = std::mem::take(&mut graph.nodes);
    let mut out = Vec::with_capacity(nodes.len());
    for mut node in nodes {
        let in_place = match node.op.as_str() {
            "aten.index_put.default" => Some(false),
            "aten.index_put_.default" => Some(true),
            _ => None,
        };
        if let Some(in_place) = in_place
            && let Some(new) = write(&mut graph, &mut out, &node)?
        {
            let target = node.args[0].clone();
            (node.op, node.args) = if in_place {
                ("aten.copy_.default".into(), vec![target, new.into()])
            } else {
                ("aten.alias.default".into(), vec![new.into()])
            };
        }
        out.push(node);
    }
    graph.nodes = out;
    Ok(graph)
}

/// Returns the new contents; `None` where the index is no lone mask.
fn write(graph: &mut Graph, out: &mut Vec<Node>, node: &Node) -> Result<Option<ValueId>> {
    let [
        Arg::Value(x),
        Arg::Values(indices),
        Arg::Value(values),
        rest @ ..,
    ] = &node.args[..]
    else {
        return Ok(None);
    };
    let ([Some(mask)], x, values) = (indices.as_slice(), *x, *values) else {
        return Ok(None);
    };
    let mask = *mask;
    let is_mask = |v| matches!(&graph.value(v).ty, Type::Tensor(t) if t.dtype == DType::Bool);
    if !is_mask(mask) {
        return Ok(None);
    }
    let adds = rest.first() == Some(&Arg::Bool(true));
    replace(graph, out, node, |b| contents(b, x, mask, values, adds)).map(Some)
}

fn contents(
    b: &mut Builder,
    x: ValueId,
    mask: ValueId,
    values: ValueId,
    adds: bool,
) -> Result<ValueId> {
    let (sizes, covered) = (b.sizes(x)?, b.sizes(mask)?);
    let inner = sizes.len().checked_sub(covered.len());
    let inner = inner.ok_or_else(|| Error::input("a mask of more dimensions than the tensor"))?;
    let mut shape = covered;
    shape.resize(sizes.len(), b.exprs.int(1));
    let mask = b.call("aten.reshape.default", &[mask.into(), shape.into()])?;
    let given = b.sizes(values)?;
    let one = given.len() == inner + 1 && b.exprs.is_int(given[0], 1);
    if given.len() <= inner || one {
        // The same values for every element of the mask.
        let values = if one {
            b.call("aten.select.int", &[values.into(), b.int(0), b.int(0)])?
        } else {
            values
        };
        let new = if adds {
            b.call("aten.add.Tensor", &[x.into(), values.into()])?
        } else {
            values
        };
        return b.call("aten.where.self", &[mask.into(), new.into(), x.into()]);
    }
    if given.len() > inner + 1 {
        return Err(Error::input(
            "values of more dimensions than the mask selects",
        ));
    }
    let mut all = vec![given[0]];
    all.extend(&sizes[sizes.len() - inner..]);
    let values = b.call("aten.expand.default", &[values.into(), all.into()])?;
    let mask = b.call("aten.expand.default", &[mask.into(), sizes.into()])?;
    if !adds {
        let args = [x.into(), mask.into(), values.into()];
        return b.call("aten.masked_scatter.default", &args);
    }
    let none = b.call("aten.zeros_like.default", &[x.into()])?;
    let args = [none.into(), mask.into(), values.into()];
    let added = b.call("aten.masked_scatter.default", &args)?;
    b.call("aten.add.Tensor", &[x.into(), added.into()])
}
