//! Products of matrices of halves.

use inrush_base::DType;
use inrush_graph::{Arg, Graph, Node, TensorType};

/// Returns both operands of `mm` and `addmm`, if they are matrices of one half type.
pub(crate) fn operands<'g>(graph: &'g Graph, node: &Node) -> Option<[&'g TensorType; 2]> {
    let at = match node.op.as_str() {
        "aten.mm.default" => 0,
        "aten.addmm.default" => 1,
        _ => return None,
    };
    let operand = |at: usize| match node.args.get(at) {
        Some(Arg::Value(v)) => graph.tensor(*v).ok().filter(|t| t.rank() == 2),
        _ => None,
    };
    let [a, b] = [operand(at)?, operand(at + 1)?];
    (is_half(a) && a.dtype == b.dtype).then_some([a, b])
}

/// Returns true for a tensor of halves.
pub(crate) fn is_half(t: &TensorType) -> bool {
    matches!(t.dtype, DType::F16 | DType::BF16)
}
