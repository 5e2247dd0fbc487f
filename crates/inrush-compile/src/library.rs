//! Operators that libraries do best: on GPUs matrix products, convolutions, attention, sorting; on CPUs attention whose scores
//! leave the caches. They are called between segments.

use inrush_aten::props::{Library, Prop, has};
use inrush_base::DType;
use inrush_expr::Expr;
use inrush_graph::{Arg, Graph, Node};

/// Libraries that a host offers; operators that they do are called between segments.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub enum Libraries {
    /// All of PyTorch's.
    #[default]
    All,
    /// Products of matrices and of batches of matrices.
    Products,
    /// None: every operator is compiled.
    None,
}

impl Libraries {
    /// Returns true if a library does an operator like `aten.mm.default`.
    pub fn serve(self, op: &str) -> bool {
        match self {
            Libraries::All => serves(op),
            Libraries::Products => inrush_aten::props::library(op) == Some(Library::Product),
            Libraries::None => false,
        }
    }
}

impl Libraries {
    /// Returns true if the library takes the operands of a product where they are. PyTorch's functions copy others; a library alone
    /// needs a unit stride along rows or columns, and floats of at most 32 bits. Other products are compiled.
    pub fn takes(self, graph: &Graph, node: &Node) -> bool {
        if self != Libraries::Products {
            return true;
        }
        let ex = &graph.exprs;
        let is_one = |e: Expr| ex.as_int(e) == Some(1);
        let lies = |line: Expr, across: Expr, length: Expr, count: Expr| {
            let apart = ex.hint(across) >= ex.hint(length);
            (is_one(line) || is_one(length)) && (apart || is_one(count))
        };
        let fits = |v| {
            let Ok(t) = graph.tensor(v) else { return false };
            let known = matches!(t.dtype, DType::F32 | DType::F16 | DType::BF16);
            let ([.., rows, columns], [.., outer, inner]) = (&t.sizes[..], &t.strides[..]) else {
                return false;
            };
            known
                && (lies(*inner, *outer, *columns, *rows) || lies(*outer, *inner, *rows, *columns))
        };
        node.reads().all(fits)
    }
}

/// Why they are called, for reports.
pub const REASON: &str = "a library's";

/// Returns true if a library does an operator like `aten.mm.default`.
pub fn serves(op: &str) -> bool {
    inrush_aten::props::library(op).is_some()
}

/// Returns why PyTorch is called on a CPU for an operator that has kernels.
pub fn better_on_cpu(graph: &Graph, node: &Node) -> Option<&'static str> {
    if attends_beyond_caches(graph, node) {
        return Some(KEEPS_NO_SCORES);
    }
    // Processors have instructions for whole numbers: 512 x 1024 x 1024 products take 1.2 ms there, and 8 ms as floats.
    has(&node.op, Prop::LibraryOnCpu).then_some(WHOLE_NUMBERS)
}

/// Why products of whole numbers are called on CPUs.
const WHOLE_NUMBERS: &str = "a library's, which has instructions for whole numbers";

/// Why large attention is called on CPUs.
const KEEPS_NO_SCORES: &str = "a library's, which keeps no scores";

/// Scores of all heads from which on they are written to memory and read again: 16 MiB of `f32`.
const SCORES: i64 = 1 << 22;

/// Returns true if a node is attention on a CPU of which the scores would leave the caches; PyTorch's kernel takes them in blocks.
fn attends_beyond_caches(graph: &Graph, node: &Node) -> bool {
    // Rows describe the operators for CPUs; those for GPUs have none.
    let Some(op) =
        inrush_aten::lookup(&node.op).filter(|op| op.row.library() == Some(Library::Attention))
    else {
        return false;
    };
    let sizes = |name: &str| {
        let at = op.schema().position(name)?;
        match node.args.get(at)? {
            Arg::Value(v) => Some(&graph.tensor(*v).ok()?.sizes),
            _ => None,
        }
    };
    let (Some(q), Some(k)) = (sizes("query"), sizes("key")) else {
        return false;
    };
    // Queries are [.., rows, features], keys [.., rows, features]; scores are [.., query rows, key
    // rows].
    let ([.., _], [.., keys, _]) = (q.as_slice(), k.as_slice()) else {
        return false;
    };
    let points = |sizes: &[Expr]| {
        let hints = sizes.iter().map(|s| graph.exprs.hint(*s).max(0));
        hints.fold(1i64, i64::saturating_mul)
    };
    points(&q[..q.len() - 1]).saturating_mul(graph.exprs.hint(*keys).max(0)) > SCORES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_offer_families_of_operators() {
        assert!(serves("aten.mm.default") && serves("aten.sort.stable"));
        assert!(!serves("aten.add.Tensor") && !serves("prims.mm"));
        assert!(Libraries::All.serve("aten.convolution.default"));
        assert!(Libraries::Products.serve("aten.bmm.default"));
        assert!(!Libraries::Products.serve("aten.convolution.default"));
        assert!(!Libraries::None.serve("aten.mm.default"));
    }
}
