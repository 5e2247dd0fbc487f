//! Products with pointwise work on their results that kernels of GPUs compute where a library does all others: large ones, which are
//! persistent, and those for which that was measured.

use crate::effects::may_alias;
use crate::few_rows::has_few_rows;
use crate::half_products::{is_half, operands};
use crate::product_epilogues::VIEWS;
use crate::readers::Readers;
use inrush_aten::props::{is_elementwise, library};
use inrush_base::{Caps, Gpu, PersistentProducts};
use inrush_expr::Expr;
use inrush_graph::{Graph, Node, TensorType, ValueId};

/// Halves that the copy engine takes at once: rows begin at multiples of them.
const LANES: i64 = Gpu::COPY_BYTES / 2;

/// Returns for each node of a graph whether it is a product of matrices of halves that is to be a kernel together with the pointwise
/// operators that follow it. `is_kept` tells which nodes are called.
pub fn large_products(graph: &Graph, caps: &Caps, is_kept: &dyn Fn(&Node) -> bool) -> Vec<bool> {
    let mut large: Vec<bool> = (graph.nodes.iter())
        .map(|n| caps.gpu.as_ref().is_some_and(|g| is_candidate(graph, g, n)))
        .collect();
    let always =
        (caps.gpu.as_ref()).is_some_and(|g| g.persistent_products == PersistentProducts::Always);
    if !always && large.contains(&true) {
        let readers = Readers::of(graph);
        for (is_large, node) in large.iter_mut().zip(&graph.nodes) {
            *is_large = *is_large && epilogue(graph, &readers, is_kept, node.outs[0]).is_some();
        }
    }
    large
}

/// A product of halves of known sizes, and the pointwise operators that a kernel would compute with it.
#[derive(Clone, Debug)]
pub struct FusibleProduct {
    /// Rows and columns of the result, and terms of its sums.
    pub sizes: [i64; 3],
    /// Positions of the product and of what follows it, in their order.
    pub nodes: Vec<usize>,
}

/// Returns the products that may be fused with pointwise operators on their results, one for each size that was not measured.
pub fn fusible_products(
    graph: &Graph,
    caps: &Caps,
    is_kept: &dyn Fn(&Node) -> bool,
) -> Vec<FusibleProduct> {
    let mut out: Vec<FusibleProduct> = Vec::new();
    let Some(gpu) = &caps.gpu else { return out };
    let readers = Readers::of(graph);
    for (n, node) in graph.nodes.iter().enumerate() {
        let Some(sizes) =
            sizes(graph, node).filter(|s| is_matrix(*s) && !has_few_rows(graph, node))
        else {
            continue;
        };
        if gpu.measured_products.contains_key(&sizes) || out.iter().any(|p| p.sizes == sizes) {
            continue;
        }
        if let Some(mut nodes) = epilogue(graph, &readers, is_kept, node.outs[0]) {
            nodes.push(n);
            nodes.sort_unstable();
            out.push(FusibleProduct { sizes, nodes });
        }
    }
    out
}

/// Returns rows, columns and terms of a product of halves, if they are known.
fn sizes(graph: &Graph, node: &Node) -> Option<[i64; 3]> {
    let [a, b] = operands(graph, node)?;
    let int = |e: Expr| graph.exprs.as_int(e);
    Some([int(a.sizes[0])?, int(b.sizes[1])?, int(b.sizes[0])?])
}

/// Returns true for sizes of which no side is so short that products are sums of rows.
fn is_matrix(sizes: [i64; 3]) -> bool {
    sizes.iter().all(|n| *n > 16)
}

/// Returns true if a node is a product whose sizes a kernel takes, by what was measured or else by rules. A symbolic number of rows
/// counts by its least value: of few rows a library chooses other kernels.
fn is_candidate(graph: &Graph, gpu: &Gpu, node: &Node) -> bool {
    let Some([a, b]) = operands(graph, node) else {
        return false;
    };
    let sizes = sizes(graph, node);
    if let Some(measured) = sizes.and_then(|s| gpu.measured_products.get(&s)) {
        return *measured;
    }
    if sizes.is_some_and(|[m, n, k]| gpu.prefers_small_epilogue(m, n, k)) {
        return !has_few_rows(graph, node);
    }
    let ex = &graph.exprs;
    let (Some(k), Some(n)) = (ex.as_int(b.sizes[0]), ex.as_int(b.sizes[1])) else {
        return false;
    };
    [a, b].into_iter().all(|t| has_aligned_rows(graph, t))
        && n % LANES == 0
        && gpu.prefers_epilogue(ex.range(a.sizes[0]).lo, n, k)
}

/// Pointwise operators after a product that are looked at.
const MOST: usize = 64;

/// Returns the pointwise operators on halves that read a value through views, and these views, if their results go to libraries or out
/// of the graph. `None` where there are none: a reduction that follows would compute what is pointwise itself, and a library adds a bias
/// too.
fn epilogue(
    graph: &Graph,
    readers: &Readers,
    is_kept: &dyn Fn(&Node) -> bool,
    v: ValueId,
) -> Option<Vec<usize>> {
    let (mut seen, mut views, mut found): (Vec<usize>, Vec<usize>, bool) = Default::default();
    let mut open = vec![(v, false)];
    while let Some((v, is_pointwise)) = open.pop() {
        if !is_pointwise && readers.outputs.contains(&v) {
            return None;
        }
        for &n in &readers.nodes[v.index()] {
            let reader = &graph.nodes[n];
            // Of a product's result only views of all elements in their order fuse with what reads them.
            if may_alias(graph, reader) && (is_pointwise || VIEWS.contains(&reader.op.as_str())) {
                views.push(n);
                open.extend(reader.outs.iter().map(|v| (*v, is_pointwise)));
                continue;
            }
            let mut values = reader.reads().chain(reader.outs.iter().copied());
            let halves = values.all(|v| graph.tensor(v).is_ok_and(is_half));
            if halves && is_elementwise(&reader.op) && !is_kept(reader) {
                if !seen.contains(&n) {
                    seen.push(n);
                    // The library adds a bias too.
                    let pointwise = is_pointwise || !adds_bias(graph, reader);
                    found |= pointwise;
                    open.extend(reader.outs.iter().map(|v| (*v, pointwise)));
                }
            } else if !is_pointwise || library(&reader.op).is_none() {
                return None;
            }
        }
        if seen.len() > MOST {
            return None;
        }
    }
    seen.append(&mut views);
    found.then_some(seen)
}

/// Returns true for the sum of a matrix and a number for each column.
fn adds_bias(graph: &Graph, node: &Node) -> bool {
    let mut ranks = node
        .reads()
        .map(|v| graph.tensor(v).map_or(0, |t| t.rank()));
    node.op == "aten.add.Tensor" && ranks.any(|r| r == 1)
}

/// Returns true if a matrix has no gaps, and its rows or columns begin at multiples of 16 bytes. Of one with gaps the type does not
/// tell where it begins.
fn has_aligned_rows(graph: &Graph, t: &TensorType) -> bool {
    let ex = &graph.exprs;
    let whole = |e: Expr| ex.as_int(e).is_some_and(|n| n > 0 && n % LANES == 0);
    let dense = |line: usize, across: usize| {
        ex.is_int(t.strides[line], 1)
            && ex.prove_eq(t.strides[across], t.sizes[line])
            && whole(t.sizes[line])
    };
    dense(1, 0) || dense(0, 1)
}
