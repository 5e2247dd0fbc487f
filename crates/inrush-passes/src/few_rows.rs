//! Products of few rows, which kernels of GPUs compute where a library does all others.

use crate::half_products::operands;
use inrush_expr::Expr;
use inrush_graph::{Graph, Node};
use std::ops::RangeInclusive;

/// Most rows of a product that a GPU's kernel takes, and fewest columns and terms of a sum.
const FEW_ROWS: i64 = 16;
const COLUMNS: i64 = 2048;
const TERMS: i64 = 512;

/// Returns true if a node is a product of a few rows of halves with the weights of a linear layer, which a kernel reads as fast as
/// the library does. What follows fuses with the kernel. Fewer columns do not fill a device; one row is a sum before.
pub fn has_few_rows(graph: &Graph, node: &Node) -> bool {
    let Some([a, b]) = operands(graph, node) else {
        return false;
    };
    let ex = &graph.exprs;
    let size =
        |e: Expr, range: RangeInclusive<i64>| ex.as_int(e).is_some_and(|n| range.contains(&n));
    size(a.sizes[0], 2..=FEW_ROWS)
        && size(b.sizes[0], TERMS..=i64::MAX)
        && size(b.sizes[1], COLUMNS..=i64::MAX)
        && ex.is_int(b.strides[0], 1)
}
