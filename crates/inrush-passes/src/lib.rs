//! Stage rewrite: passes from graph to graph, one pattern a file.
//!
//! A pass's file says *what it does*, *when*, what changes in the *numerics*, and gives an *example*, which is a file test of
//! `tests/rewrite.md`. There are two lists, because a graph is cut between segments that are compiled and operators that
//! libraries compute:
//!
//! - [`CALLS`] runs over the whole graph before it is cut: passes that choose what libraries compute, and in which layout. Such
//!   a graph may hold writes and operators that only the host knows.
//! - [`SEGMENT`] runs over the functional graph of one segment, after stage normalize.
//!
//! A pass reads the device through [`Context`]. A pass that does not apply to a graph leaves it as it is.
//!
//! Does not know: scheduling, languages.

#![forbid(unsafe_code)]

mod channels_last;
mod context;
mod conv_as_matmul;
mod convolution;
mod cse;
mod effects;
mod expand_masked_writes;
mod expand_masks;
mod expand_numbers;
mod expand_repeats;
mod few_rows;
mod half_products;
mod large_products;
mod merge_convolutions;
mod online_attention;
mod planar;
mod product_epilogues;
mod readers;
mod relayout;
mod replace;
mod row_products;
mod share_library_operands;
mod source;
mod split_addmm;
mod split_conv_bias;
mod split_linear;

pub use context::Context;
pub use effects::may_write;
pub use expand_masked_writes::expand_masked_writes;
pub use expand_masks::expand_masks;
pub use expand_numbers::expand_numbers;
pub use expand_repeats::expand_repeats;
pub use few_rows::has_few_rows;
pub use large_products::{FusibleProduct, fusible_products, large_products};
pub use planar::planar;
pub use source::{Source, sources};

use inrush_base::Result;
use inrush_graph::Graph;

/// A rewrite of graphs.
pub struct Pass {
    pub name: &'static str,
    /// Returns true if the device and its libraries gain by the pass.
    pub applies: fn(&Context) -> bool,
    pub run: fn(&mut Graph, &Context),
}

/// Passes over a whole graph before it is cut, in order.
pub const CALLS: &[Pass] = &[
    // First: the products that it makes are operands of the passes after it.
    split_linear::PASS,
    // Ahead of the pass that rounds products before it adds biases.
    row_products::PASS,
    split_addmm::PASS,
    // Ahead of the passes that take `convolution`.
    merge_convolutions::PASS,
    // Ahead of the passes that take convolutions without a bias.
    split_conv_bias::PASS,
    // Layouts matter to the convolutions that are left.
    conv_as_matmul::PASS,
    channels_last::PASS,
    // Once more: convolutions are products now.
    row_products::PASS,
    product_epilogues::PASS,
    // Last: it looks at what all library calls read.
    share_library_operands::PASS,
];

/// Passes over the functional graph of a segment, in order.
pub const SEGMENT: &[Pass] = &[
    // First: causal masks of all blocks are one.
    online_attention::PASS,
    cse::PASS,
    // Merged calls leave dead ones.
    Pass {
        name: "dce",
        applies: |_| true,
        run: |graph, _| inrush_aten::prune(graph),
    },
];

/// Runs the passes that apply. With `verify` the graph is verified after each of them.
///
/// # Errors
/// A broken invariant, with the pass's name.
pub fn rewrite(passes: &[Pass], graph: &mut Graph, cx: &Context, verify: bool) -> Result<()> {
    for pass in passes.iter().filter(|p| (p.applies)(cx)) {
        (pass.run)(graph, cx);
        if verify {
            let checked = inrush_graph::verify::verify(graph);
            checked.map_err(|e| e.context(format!("pass {}", pass.name)))?;
        }
    }
    Ok(())
}
