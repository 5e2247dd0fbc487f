//! Convolutions of half types with channels last.
//!
//! # What it does
//! Copies the inputs of convolutions, pictures and filters, to NHWC. What follows keeps the layout ([`crate::relayout`]);
//! results of the graph have their strides of before. The copies stand at the beginning, so that one kernel makes all of them.
//!
//! # When
//! On GPUs, if a library computes convolutions: cuDNN's kernels for half types read NHWC and transpose other layouts before and
//! after. In inference graphs that hold mostly convolutions; sizes may be symbols. Not if some convolution is grouped: cuDNN's
//! depthwise kernels for NHWC are the slower ones.
//!
//! # Numerics
//! The library may add in another order.
//!
//! # Example
//! ```text
//! %2 y: f16[2, 4, 6, 6] = aten.convolution.default(%x, %w, ..)
//! =>
//! %2 y.3: f16[2, 3, 8, 8] strides [192, 1, 24, 3] = aten.clone.default(%x, channels_last)
//! %3 y.4: f16[4, 3, 3, 3] strides [27, 1, 9, 3] = aten.clone.default(%w, channels_last)
//! %4 y: f16[2, 4, 6, 6] strides [144, 1, 24, 4] = aten.convolution.default(%2, %3, ..)
//! %5 y.5: f16[2, 4, 6, 6] = aten.clone.default(%4, contiguous)
//! ```

use crate::convolution::{CONVOLUTION, Convolution};
use crate::relayout::{Relayout, is_plain};
use crate::{Context, Pass};
use inrush_aten::layouts::strides;
use inrush_base::DType;
use inrush_graph::{Graph, MemoryFormat, Node, ValueId};
use rustc_hash::{FxHashMap, FxHashSet};

/// Calls and inputs for each convolution, at most: a graph with fewer convolutions is about something else.
const NODES_PER_CONVOLUTION: usize = 60;

pub(crate) const PASS: Pass = Pass {
    name: "channels_last",
    applies: |cx| cx.inference && cx.gpu_serves(CONVOLUTION),
    run,
};

fn run(graph: &mut Graph, cx: &Context) {
    let convolutions: Vec<&Node> = (graph.nodes.iter())
        .filter(|n| n.op == CONVOLUTION)
        .collect();
    let most = NODES_PER_CONVOLUTION * convolutions.len();
    if convolutions.is_empty()
        || graph.nodes.len() + graph.inputs.len() > most
        || !is_plain(graph, cx)
        || !convolutions
            .iter()
            .all(|n| !cx.is_kept(n) && gains(graph, n))
    {
        return;
    }
    if let Some(done) = laid_out(graph, cx) {
        *graph = done;
    }
}

/// Returns true if the convolution is faster over pictures with channels last.
fn gains(graph: &Graph, node: &Node) -> bool {
    let Some(c) = Convolution::of(graph, node) else {
        return false;
    };
    let (Ok(picture), Ok(filters)) = (graph.tensor(c.input), graph.tensor(c.filters)) else {
        return false;
    };
    c.groups == 1
        && !c.transposed
        && picture.rank() == 4
        && matches!(picture.dtype, DType::F16 | DType::BF16)
        && filters.dtype == picture.dtype
}

/// Returns the graph with its convolutions over channels last; `None` where results cannot be laid back.
fn laid_out(graph: &Graph, cx: &Context) -> Option<Graph> {
    let (mut out, nodes) = Relayout::of(graph, cx);
    // Results of calls are in that layout already when their turn comes.
    let inputs: FxHashSet<ValueId> = graph.inputs.iter().map(|i| i.value).collect();
    let mut copies: FxHashMap<ValueId, ValueId> = FxHashMap::default();
    for node in &nodes {
        let Some(c) = Convolution::of(graph, node) else {
            continue;
        };
        for v in [c.input, c.filters] {
            let ty = graph.tensor(v).ok()?;
            let is_last = strides::is_in_order(&graph.exprs, ty, &[0, 2, 3, 1]);
            if inputs.contains(&v) && !is_last && !copies.contains_key(&v) {
                copies.insert(v, out.copy(node, v, MemoryFormat::ChannelsLast)?);
            }
        }
    }
    for mut node in nodes {
        if node.op == CONVOLUTION {
            for v in node.reads_mut() {
                *v = copies.get(v).copied().unwrap_or(*v);
            }
            out.follow_moved(node)?;
        } else {
            out.follow(node)?;
        }
    }
    out.finish()
}
