//! `addmm` as a product and an addition.
//!
//! # What it does
//! `addmm(bias, a, b)` becomes `mm(a, b) + bias`. The addition fuses with the kernel that reads it, and a product alone is the
//! cheaper call too.
//!
//! # When
//! On GPUs, if a library computes `mm`, the bias is a vector, the factors are 1, and some reader of the sum, through views, is
//! compiled. Otherwise the addition would be a kernel of its own. Products of few rows, and large ones with pointwise work on their
//! results, are kernels that add the bias themselves.
//!
//! # Numerics
//! In half precision the product is rounded before the bias is added.
//!
//! # Example
//! ```text
//! %3 y: f16[4, 16] = aten.addmm.default(%b, %x, %w, 1, 1)
//! =>
//! %3 y.product: f16[4, 16] = aten.mm.default(%x, %w)
//! %4 y: f16[4, 16] = aten.add.Tensor(%3, %b, 1)
//! ```

use crate::effects::may_alias;
use crate::few_rows::has_few_rows;
use crate::large_products::large_products;
use crate::readers::Readers;
use crate::{Context, Pass};
use inrush_graph::{Arg, Graph, Node, Type, ValueId};

const ADDMM: &str = "aten.addmm.default";
const MM: &str = "aten.mm.default";
const ADD: &str = "aten.add.Tensor";

pub(crate) const PASS: Pass = Pass {
    name: "split_addmm",
    applies: |cx| cx.gpu_serves(MM),
    run,
};

fn run(graph: &mut Graph, cx: &Context) {
    if !graph.nodes.iter().any(|n| n.op == ADDMM) {
        return;
    }
    let readers = Readers::of(graph);
    let large = large_products(graph, cx.caps, &|n| cx.is_kept(n));
    let splits: Vec<bool> = (graph.nodes.iter().zip(large))
        .map(|(n, large)| {
            is_sum_with_bias(graph, cx, n)
                && !has_few_rows(graph, n)
                && !large
                && is_read_by_kernels(graph, cx, &readers, n.outs[0])
        })
        .collect();
    let nodes = std::mem::take(&mut graph.nodes);
    for (node, splits) in nodes.into_iter().zip(splits) {
        if splits {
            split(graph, node);
        } else {
            graph.nodes.push(node);
        }
    }
}

/// Returns true for `bias + a @ b` with a bias for each column.
pub(crate) fn is_sum_with_bias(graph: &Graph, cx: &Context, node: &Node) -> bool {
    let (&[_], [Arg::Value(bias), Arg::Value(a), Arg::Value(b), factors @ ..]) =
        (&*node.outs, &*node.args)
    else {
        return false;
    };
    let tensor = |v: &ValueId| graph.tensor(*v).is_ok();
    let is_one = |a: &Arg| match a {
        Arg::Int(e) => graph.exprs.is_int(*e, 1),
        Arg::Float(f) => *f == 1.0,
        _ => false,
    };
    node.op == ADDMM
        && !cx.is_kept(node)
        && graph.tensor(*bias).is_ok_and(|t| t.rank() == 1)
        && [a, b, &node.outs[0]].into_iter().all(tensor)
        && factors.iter().all(is_one)
}

/// Returns true if something that is compiled reads the value, through views.
pub(crate) fn is_read_by_kernels(
    graph: &Graph,
    cx: &Context,
    readers: &Readers,
    v: ValueId,
) -> bool {
    let mut open = vec![v];
    while let Some(v) = open.pop() {
        for &n in &readers.nodes[v.index()] {
            let reader = &graph.nodes[n];
            if may_alias(graph, reader) {
                open.extend(&reader.outs);
            } else if !(cx.serves)(&reader.op)
                && !cx.is_kept(reader)
                && gives_tensors(graph, reader)
            {
                return true;
            }
        }
    }
    false
}

/// Returns true unless the call only reads sizes.
fn gives_tensors(graph: &Graph, node: &Node) -> bool {
    node.outs.iter().any(|v| graph.tensor(*v).is_ok())
}

fn split(graph: &mut Graph, node: Node) {
    let out = node.outs[0];
    let ty: Type = graph.value(out).ty.clone();
    let name = format!("{}.product", graph.value(out).name);
    let product = graph.add_value(&name, ty);
    let one = graph.exprs.int(1).into();
    graph.nodes.push(Node {
        op: MM.into(),
        args: node.args[1..3].to_vec(),
        outs: vec![product],
        ..node.clone()
    });
    graph.nodes.push(Node {
        op: ADD.into(),
        args: vec![product.into(), node.args[0].clone(), one],
        ..node
    });
}
