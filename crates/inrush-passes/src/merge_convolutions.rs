//! Convolutions of modules as the one operator that the other passes know.
//!
//! # What it does
//! `conv1d`, `conv2d` and `conv3d` become `convolution`, with a number for each spatial dimension.
//!
//! # When
//! On GPUs, in inference graphs. Graphs of `torch.export` hold such calls; inside PyTorch they are decomposed before.
//! Padding by name and pictures without a batch stay.
//!
//! # Numerics
//! None.
//!
//! # Example
//! ```text
//! %2 y: f32[2, 4, 4, 4] = aten.conv2d.default(%x, %w, none, [1], [0], [1], 1)
//! =>
//! %2 y: f32[2, 4, 4, 4] = aten.convolution.default(%x, %w, none, [1, 1], [0, 0], [1, 1], false, [0, 0], 1)
//! ```

use crate::convolution::CONVOLUTION;
use crate::{Context, Pass};
use inrush_aten::bind;
use inrush_graph::{Arg, Graph, Node};

pub(crate) const PASS: Pass = Pass {
    name: "merge_convolutions",
    applies: |cx| cx.inference && cx.caps.gpu.is_some(),
    run,
};

fn run(graph: &mut Graph, cx: &Context) {
    for at in 0..graph.nodes.len() {
        let node = &graph.nodes[at];
        if cx.is_kept(node) {
            continue;
        }
        if let Some(args) = arguments(graph, node) {
            let node = &mut graph.nodes[at];
            node.op = CONVOLUTION.into();
            node.args = args;
        }
    }
}

/// Returns the arguments of `convolution` for a call of `conv1d`, `conv2d` or `conv3d`.
fn arguments(graph: &Graph, node: &Node) -> Option<Vec<Arg>> {
    let spatial = match node.op.as_str() {
        "aten.conv1d.default" => 1,
        "aten.conv2d.default" => 2,
        "aten.conv3d.default" => 3,
        _ => return None,
    };
    let ex = &graph.exprs;
    let schema = inrush_aten::lookup(&node.op)?.schema();
    let args = bind::complete(ex, schema, node.args.clone()).ok()?;
    let [input, filters, bias, stride, padding, dilation, groups] =
        <[Arg; 7]>::try_from(args).ok()?;
    let has_batch = |a: &Arg| match a {
        Arg::Value(v) => (graph.tensor(*v)).is_ok_and(|t| t.rank() == spatial + 2),
        _ => false,
    };
    if !has_batch(&input) || !has_batch(&filters) {
        return None;
    }
    let numbers = |a: Arg| match a {
        Arg::Ints(all) if all.len() == 1 => Some(Arg::Ints(vec![all[0]; spatial])),
        Arg::Ints(all) if all.len() == spatial => Some(Arg::Ints(all)),
        _ => None,
    };
    Some(vec![
        input,
        filters,
        bias,
        numbers(stride)?,
        numbers(padding)?,
        numbers(dilation)?,
        Arg::Bool(false),
        Arg::Ints(vec![ex.int(0); spatial]),
        groups,
    ])
}
