//! A convolution's bias as an addition.
//!
//! # What it does
//! `convolution(x, w, bias, ..)` becomes `convolution(x, w, none, ..) + view(bias)`. The addition fuses with the kernel that
//! reads it; the library would add the bias in a launch of its own.
//!
//! # When
//! On GPUs, if the bias has the result's dtype and a library computes convolutions, or products, which
//! [`crate::conv_as_matmul`] makes of them.
//!
//! # Numerics
//! In half precision the sum over the window is rounded before the bias is added.
//!
//! # Example
//! ```text
//! %3 y: f16[2, 4, 6, 6] = aten.convolution.default(%x, %w, %b, [1, 1], [0, 0], [1, 1], false, [0, 0], 1)
//! =>
//! %3 y.sums: f16[2, 4, 6, 6] = aten.convolution.default(%x, %w, none, [1, 1], [0, 0], [1, 1], false, [0, 0], 1)
//! %4 y.bias: f16[1, 4, 1, 1] = aten.view.default(%b, [1, 4, 1, 1])
//! %5 y: f16[2, 4, 6, 6] = aten.add.Tensor(%3, %4, 1)
//! ```

use crate::convolution::{CONVOLUTION, Convolution};
use crate::{Context, Pass};
use inrush_graph::{Arg, Graph, Node, TensorType, Type, ValueId};

pub(crate) const PASS: Pass = Pass {
    name: "split_conv_bias",
    applies: |cx| cx.gpu_serves(CONVOLUTION) || (cx.inference && cx.gpu_serves("aten.mm.default")),
    run,
};

fn run(graph: &mut Graph, cx: &Context) {
    for node in std::mem::take(&mut graph.nodes) {
        match bias(graph, cx, &node) {
            Some(bias) => split(graph, node, bias),
            None => graph.nodes.push(node),
        }
    }
}

/// Returns the bias of a convolution that is split.
fn bias(graph: &Graph, cx: &Context, node: &Node) -> Option<ValueId> {
    let bias = Convolution::of(graph, node)?.bias?;
    let (value, out) = (graph.tensor(bias).ok()?, graph.tensor(node.outs[0]).ok()?);
    let splits =
        !cx.is_kept(node) && out.dtype.is_float() && value.dtype == out.dtype && value.rank() == 1;
    splits.then_some(bias)
}

fn split(graph: &mut Graph, node: Node, bias: ValueId) {
    let out = node.outs[0];
    let (Ok(ty), Ok(of_bias)) = (graph.tensor(out).cloned(), graph.tensor(bias).cloned()) else {
        return graph.nodes.push(node);
    };
    let name = graph.value(out).name.clone();
    let one = graph.exprs.int(1);
    let mut sizes = vec![one; ty.rank()];
    sizes[1] = of_bias.sizes[0];
    let spread = TensorType::contiguous(&graph.exprs, ty.dtype, sizes.clone());
    let sums = graph.add_value(&format!("{name}.sums"), Type::Tensor(ty));
    let spread = graph.add_value(&format!("{name}.bias"), Type::Tensor(spread));
    let mut convolution = Node {
        outs: vec![sums],
        ..node.clone()
    };
    convolution.args[2] = Arg::None;
    graph.nodes.push(convolution);
    graph.nodes.push(Node {
        op: "aten.view.default".into(),
        args: vec![bias.into(), sizes.into()],
        outs: vec![spread],
        ..node.clone()
    });
    graph.nodes.push(Node {
        op: "aten.add.Tensor".into(),
        args: vec![sums.into(), spread.into(), one.into()],
        ..node
    });
}
