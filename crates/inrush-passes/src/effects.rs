//! Effects of calls on memory: writes and aliases.

use inrush_aten::{Prop, user_kernel};
use inrush_graph::{Arg, Graph, Node, Type};

/// Returns true if a called operator may write its arguments: then nothing moves across it. Higher-order and custom operators
/// are not known well enough to say no; kernels of the user's (`triton.`, [`user_kernel::OPERATOR`]) write into copies.
pub fn may_write(op: &str) -> bool {
    let mut parts = op.split('.');
    match (parts.next(), parts.next(), parts.next()) {
        (Some("aten" | "prims" | "sym" | "_operator"), Some(name), overload) => {
            name.ends_with('_') && !name.ends_with("__")
                || overload.is_some_and(|o| o.contains("out"))
        }
        (Some("triton"), ..) => false,
        _ if op == user_kernel::OPERATOR => false,
        _ => true,
    }
}

/// Properties of operators whose results may share memory with the first argument.
const SHARES: [Prop; 4] = [Prop::Alias, Prop::MayAlias, Prop::Bitcasts, Prop::Restrides];

/// Returns true if the results may share memory with the first argument: views, and operators that return their argument where
/// they need not copy.
pub(crate) fn may_alias(graph: &Graph, node: &Node) -> bool {
    let is_tensor =
        |a: &Arg| matches!(a, Arg::Value(v) if matches!(graph.value(*v).ty, Type::Tensor(_)));
    if !node.args.first().is_some_and(is_tensor) {
        return false;
    }
    inrush_aten::lookup(&node.op).is_some_and(|op| SHARES.iter().any(|p| op.row.has(*p)))
}
