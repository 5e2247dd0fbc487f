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
    let [Arg::Value(input), Arg::Value(filters), rest @ ..] = node.args.as_slice() else {
        return None;
    };
    let rank = spatial + 2;
    if graph.tensor(*input).ok()?.rank() != rank || graph.tensor(*filters).ok()?.rank() != rank {
        return None;
    }
    let ex = &graph.exprs;
    let numbers = |at: usize, default: i64| match rest.get(at) {
        None => Some(Arg::Ints(vec![ex.int(default); spatial])),
        Some(Arg::Int(one)) => Some(Arg::Ints(vec![*one; spatial])),
        Some(Arg::Ints(all)) => match all.as_slice() {
            [one] => Some(Arg::Ints(vec![*one; spatial])),
            all => (all.len() == spatial).then(|| Arg::Ints(all.to_vec())),
        },
        Some(_) => None,
    };
    Some(vec![
        Arg::Value(*input),
        Arg::Value(*filters),
        rest.first().cloned().unwrap_or(Arg::None),
        numbers(1, 1)?,
        numbers(2, 0)?,
        numbers(3, 1)?,
        Arg::Bool(false),
        Arg::Ints(vec![ex.int(0); spatial]),
        rest.get(4).cloned().unwrap_or_else(|| Arg::Int(ex.int(1))),
    ])
}
