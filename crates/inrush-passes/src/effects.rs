//! Effects of calls on memory: writes and aliases.

use inrush_aten::Route;
use inrush_graph::{Arg, Graph, Node, Type};

/// Returns true if a called operator may write its arguments: then nothing moves across it. Higher-order and custom operators
/// are not known well enough to say no; kernels of the user's (`triton.`) write into copies.
pub fn may_write(op: &str) -> bool {
    let mut parts = op.split('.');
    match (parts.next(), parts.next(), parts.next()) {
        (Some("aten" | "prims" | "sym" | "_operator"), Some(name), overload) => {
            name.ends_with('_') && !name.ends_with("__")
                || overload.is_some_and(|o| o.contains("out"))
        }
        (Some("triton"), ..) => false,
        _ => true,
    }
}

/// Reads the memory of its argument as another dtype.
pub(crate) const READ_AS: &str = "aten.view.dtype";

/// A view by contract: its argument is used no more, so that PyTorch need not say that memory is shared.
const UNSAFE_VIEW: &str = "aten._unsafe_view.default";

/// Returns true if the results may share memory with the first argument: views, and operators that return their argument where
/// they need not copy.
pub(crate) fn may_alias(graph: &Graph, node: &Node) -> bool {
    let is_tensor =
        |a: &Arg| matches!(a, Arg::Value(v) if matches!(graph.value(*v).ty, Type::Tensor(_)));
    if !node.args.first().is_some_and(is_tensor) {
        return false;
    }
    if node.op == READ_AS || node.op == UNSAFE_VIEW {
        return true;
    }
    let annotated = |op: &inrush_aten::Op| op.schema().returns.iter().any(|r| r.alias.is_some());
    inrush_aten::lookup(&node.op)
        .is_some_and(|op| matches!(op.row.route, Route::View(_)) && annotated(op))
}
