//! A product's bias and activation as the library's epilogue.
//!
//! # What it does
//! `relu(mm(a, b) + bias)`, and `gelu` by `tanh` likewise, become one call of the library, `_addmm_activation`. Otherwise the product
//! is written, read by a kernel, and written again.
//!
//! # When
//! On GPUs, if the host's library has the operator (PyTorch's has), for halves, for products so large that what memory takes for
//! the kernel exceeds what the call takes of the host, and if libraries or results alone read the activation: a kernel that reads
//! it would compute it anyway.
//!
//! # Numerics
//! The bias is added and the activation taken before the sum is rounded.
//!
//! # Example
//! ```text
//! %3 p: f16[4096, 4096] = aten.mm.default(%x, %w)
//! %4 s: f16[4096, 4096] = aten.add.Tensor(%3, %b, 1)
//! %5 y: f16[4096, 4096] = aten.relu.default(%4)
//! =>
//! %3 y: f16[4096, 4096] = aten._addmm_activation.default(%b, %x, %w, 1, 1, false)
//! ```

use crate::readers::Readers;
use crate::split_addmm::{is_read_by_kernels, is_sum_with_bias};
use crate::{Context, Pass};
use inrush_base::DType;
use inrush_graph::{Arg, Graph, Node, TensorType, Type, ValueId};
use rustc_hash::FxHashMap;

const ACTIVATION: &str = "aten._addmm_activation.default";
const RELU: &str = "aten.relu.default";
const GELU: &str = "aten.gelu.default";
const MM: &str = "aten.mm.default";
/// Views of all elements in their order.
pub(crate) const VIEWS: [&str; 2] = ["aten.view.default", "aten._unsafe_view.default"];

/// Fewest elements of a product: 8 MiB of halves, whose kernel takes an H200 4 us.
const ELEMENTS: i64 = 1 << 22;

pub(crate) const PASS: Pass = Pass {
    name: "product_epilogues",
    applies: |cx| cx.gpu_serves(ACTIVATION),
    run,
};

fn run(graph: &mut Graph, cx: &Context) {
    if !graph.nodes.iter().any(|n| n.op == RELU || n.op == GELU) {
        return;
    }
    let readers = Readers::of(graph);
    let makers: FxHashMap<ValueId, usize> = (graph.nodes.iter().enumerate())
        .flat_map(|(at, n)| n.outs.iter().map(move |v| (*v, at)))
        .collect();
    let search = Search {
        graph,
        cx,
        readers: &readers,
        makers: &makers,
    };
    let found: Vec<(usize, Found)> = (0..graph.nodes.len())
        .filter_map(|at| Some((at, search.activation(at)?)))
        .collect();
    let mut dropped = vec![false; graph.nodes.len()];
    for (_, f) in &found {
        f.steps.iter().for_each(|at| dropped[*at] = true);
    }
    let mut found = found.into_iter().peekable();
    for (at, node) in std::mem::take(&mut graph.nodes).into_iter().enumerate() {
        if let Some((_, f)) = found.next_if(|f| f.0 == at) {
            f.write(graph, node);
        } else if !dropped[at] {
            graph.nodes.push(node);
        }
    }
}

/// A product that takes its bias and activation along.
#[derive(Default)]
struct Found {
    gelu: bool,
    /// Nodes that compute what nothing else reads: the product, the sum, views of both.
    steps: Vec<usize>,
    /// Bias and operands.
    operands: Vec<ValueId>,
    /// Type of the product.
    out: Option<TensorType>,
}

struct Search<'a> {
    graph: &'a Graph,
    cx: &'a Context<'a>,
    readers: &'a Readers,
    makers: &'a FxHashMap<ValueId, usize>,
}

impl Search<'_> {
    /// Returns the product under an activation.
    fn activation(&self, at: usize) -> Option<Found> {
        let node = &self.graph.nodes[at];
        let mut found = Found::default();
        let x = match (node.op.as_str(), node.args.as_slice()) {
            (RELU, [Arg::Value(x)]) => *x,
            (GELU, [Arg::Value(x), Arg::Str(way)]) if way.as_str() == "tanh" => {
                found.gelu = true;
                *x
            }
            _ => return None,
        };
        let x = self.under_views(x, &mut found)?;
        let sum = self.step(x, &mut found)?;
        if is_sum_with_bias(self.graph, self.cx, sum) {
            found.take(self.graph, sum, &sum.args[..3])?;
        } else {
            self.sum(sum, &mut found)?;
        }
        let out = found.out.as_ref()?;
        let ex = &self.graph.exprs;
        let elements = (out.sizes.iter()).fold(1i64, |n, s| n.saturating_mul(ex.hint(*s)));
        let first = *found.steps.iter().min()?;
        let between = &self.graph.nodes[first..at];
        let fits = matches!(out.dtype, DType::F16 | DType::BF16)
            && elements >= ELEMENTS
            && !self.cx.is_kept(node)
            && !between.iter().any(|n| self.cx.may_write(n))
            && !is_read_by_kernels(self.graph, self.cx, self.readers, node.outs[0]);
        fits.then_some(found)
    }

    /// Reads `product + bias`, in either order.
    fn sum(&self, node: &Node, found: &mut Found) -> Option<()> {
        let ("aten.add.Tensor", [Arg::Value(x), Arg::Value(y), Arg::Int(one)]) =
            (node.op.as_str(), node.args.as_slice())
        else {
            return None;
        };
        let rank = |v: &ValueId| self.graph.tensor(*v).map_or(0, |t| t.rank());
        let (product, bias) = match (rank(x), rank(y)) {
            (2.., 1) => (*x, *y),
            (1, 2..) => (*y, *x),
            _ => return None,
        };
        let product = self.under_views(product, found)?;
        let mm = self.step(product, found)?;
        let [Arg::Value(a), Arg::Value(b)] = mm.args.as_slice() else {
            return None;
        };
        (mm.op == MM && self.graph.exprs.is_int(*one, 1)).then_some(())?;
        found.take(self.graph, mm, &[bias.into(), (*a).into(), (*b).into()])
    }

    /// Returns the node that computes a value, if one node alone reads it.
    fn step(&self, v: ValueId, found: &mut Found) -> Option<&Node> {
        let at = *self.makers.get(&v)?;
        let node = &self.graph.nodes[at];
        let lone = self.readers.nodes[v.index()].len() == 1 && !self.readers.outputs.contains(&v);
        (lone && !self.cx.is_kept(node)).then(|| {
            found.steps.push(at);
            node
        })
    }

    /// Returns the value under views that keep its rows.
    fn under_views(&self, mut v: ValueId, found: &mut Found) -> Option<ValueId> {
        let columns = |v: ValueId| self.graph.tensor(v).ok()?.sizes.last().copied();
        loop {
            let at = *self.makers.get(&v)?;
            let node = &self.graph.nodes[at];
            let Some(Arg::Value(inner)) = node.args.first() else {
                return Some(v);
            };
            if !VIEWS.contains(&node.op.as_str()) || columns(*inner) != columns(v) {
                return Some(v);
            }
            self.step(v, found)?;
            v = *inner;
        }
    }
}

impl Found {
    /// Notes the operands of a product with a bias for each column.
    fn take(&mut self, graph: &Graph, product: &Node, operands: &[Arg]) -> Option<()> {
        let out = graph.tensor(product.outs[0]).ok()?;
        self.operands = operands
            .iter()
            .filter_map(|a| match a {
                Arg::Value(v) => Some(*v),
                _ => None,
            })
            .collect();
        let types: Vec<&TensorType> = (self.operands.iter())
            .filter_map(|v| graph.tensor(*v).ok())
            .collect();
        let [bias, a, b] = types.as_slice() else {
            return None;
        };
        let same = [bias, a, b].iter().all(|t| t.dtype == out.dtype);
        // Of empty sums PyTorch gives the bias without the activation.
        let depth = a.sizes.last().and_then(|k| graph.exprs.as_int(*k));
        (same && depth.is_some_and(|k| k > 0) && bias.sizes.last() == out.sizes.last())
            .then_some(())?;
        self.out = Some(out.clone());
        Some(())
    }

    /// Adds the call in the place of the activation.
    fn write(self, graph: &mut Graph, node: Node) {
        let one: Arg = graph.exprs.int(1).into();
        let mut args: Vec<Arg> = self.operands.iter().map(|v| (*v).into()).collect();
        args.extend([one.clone(), one, self.gelu.into()]);
        let result = node.outs[0];
        let (Some(ty), Ok(wanted)) = (self.out, graph.tensor(result).cloned()) else {
            return;
        };
        let mut call = Node {
            op: ACTIVATION.into(),
            args,
            ..node.clone()
        };
        if ty.sizes == wanted.sizes {
            return graph.nodes.push(call);
        }
        let name = format!("{}.rows", graph.value(result).name);
        let rows = graph.add_value(&name, Type::Tensor(ty));
        call.outs = vec![rows];
        graph.nodes.push(call);
        graph.nodes.push(Node {
            op: VIEWS[0].into(),
            args: vec![rows.into(), wanted.sizes.into()],
            ..node
        });
    }
}
