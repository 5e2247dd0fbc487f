//! Reductions down columns, once layouts are known.
//!
//! A mean over the pixels of each channel, with channels last, reads rows of channels. Threads that share the channels would each read
//! a piece of every row, most of which another thread has just written. Where threads share the rows instead, as kernels around it do,
//! what they read is in their own caches, and stays theirs for kernels that write in place.

use super::{chunk_axes, gpu, split, splittable};
use inrush_base::tally::{Way, reached};
use inrush_base::{Caps, Result};
use inrush_loops::{Body, BufId, Layout, Loops, Node, ReduceOp, Stmt};

/// Elements from which it pays: fewer are summed faster than a second kernel starts.
const ELEMENTS: i64 = 8 << 10;
/// Elements of each thread up to which it pays: more leave its caches before they are read.
const MOST: i64 = 256 << 10;
/// Rows of a thread.
const ROWS: i64 = 4;

/// Splits reductions down columns by rows on CPUs. Nodes stay in a valid order.
pub(crate) fn split_columns(loops: &mut Loops, nodes: Vec<Node>, caps: &Caps) -> Result<Vec<Node>> {
    if caps.gpu.is_some() || caps.threads < 2 {
        return Ok(nodes);
    }
    let mut out = Vec::with_capacity(nodes.len());
    for mut node in nodes {
        let threads = caps.threads as i64;
        let count = match &node {
            Node::Body(body) if pays(loops, body, threads) => {
                chunk_axes(&loops.exprs, &mut node, threads)?
            }
            _ => None,
        };
        match (count, node) {
            (Some(count), Node::Body(body)) => {
                reached(Way::SplitColumns);
                let (partial, last, sums) = split(loops, &body, count, None);
                for (_, buf) in sums {
                    rows_first(loops, buf, body.outer);
                }
                out.extend([Node::Body(partial), Node::Body(last)]);
            }
            (_, node) => out.push(node),
        }
    }
    Ok(out)
}

/// Returns true if a body reduces columns, and threads would rather share its rows.
fn pays(loops: &Loops, body: &Body, threads: i64) -> bool {
    let ex = &loops.exprs;
    let Some((_, above)) = body.outer_axes().split_last() else {
        return false;
    };
    let rows = gpu::points(ex, body.reduction_axes());
    let all = rows.saturating_mul(gpu::points(ex, body.outer_axes()));
    // Products of a part of the rows may be beyond what a partial result holds, where those of all are not.
    let whole =
        |s: &Stmt| matches!(s, Stmt::Reduce { op, .. } if op.is_arg() || *op == ReduceOp::Prod);
    // Bodies without reductions count one row.
    gpu::points(ex, above) < threads
        && rows >= ROWS * threads
        && (ELEMENTS..=MOST * threads).contains(&all)
        && gpu::reduces_columns(loops, body)
        && !body.stmts.iter().any(whole)
        && splittable(ex, body)
}

/// Lays partial results out with the chunks' dimensions, those from `outer` on, outermost.
fn rows_first(loops: &mut Loops, buf: BufId, outer: usize) {
    let ex = &loops.exprs;
    let sizes = &loops.buffers[buf.index()].sizes;
    let mut strides = vec![ex.int(1); sizes.len()];
    let mut stride = ex.int(1);
    for d in (0..outer).rev().chain((outer..sizes.len()).rev()) {
        strides[d] = stride;
        stride = ex.mul(stride, sizes[d]);
    }
    let offset = ex.int(0);
    loops.buffers[buf.index()].layout = Some(Layout { strides, offset });
}
