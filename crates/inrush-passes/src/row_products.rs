//! A product of one row with a matrix as sums.
//!
//! # What it does
//! `mm(row, t(w))` becomes the sum over `k` of `row[k] * w[n, k]`, and `addmm` that with the bias added. A reduction reads the
//! weights once at the memory's rate, and fuses with what makes them (a cast of quantised weights) and with what follows. The
//! library reads what it is given and writes its result.
//!
//! # When
//! On GPUs, if a library computes products, for floats of up to 32 bits, if the terms of a sum are neighbours in memory on both
//! sides: the weights of a linear layer are. A product of a matrix with one column is taken likewise. On an H200 one row of 4096
//! with 4096 x 4096 weights in bfloat16, with a bias and `relu`, takes 0.70 of the library's time, 1024 x 1024 takes 0.39, and int8
//! weights take 0.36. Sums down columns of weights take as long as the library, and so do two rows.
//!
//! # Numerics
//! Terms are multiplied and added in float32, as the library does it, in another order. The bias is added before halves are
//! rounded.
//!
//! # Example
//! ```text
//! %3 y: f16[1, 16] = aten.addmm.default(%b, %x, %w, 1, 1)
//! =>
//! %3 y.rows: f16[16, 8] = aten.t.default(%w)
//! %4 y.left: f32[1, 8] = prims.convert_element_type.default(%x, f32)
//! %5 y.right: f32[16, 8] = prims.convert_element_type.default(%3, f32)
//! %6 y.terms: f32[16, 8] = aten.mul.Tensor(%5, %4)
//! %7 y.sums: f32[16] = aten.sum.dim_IntList(%6, [1], false, none)
//! %8 y.biased: f32[16] = aten.add.Tensor(%7, %b, 1)
//! %9 y.row: f32[1, 16] = aten.view.default(%8, [1, 16])
//! %10 y: f16[1, 16] = prims.convert_element_type.default(%9, f16)
//! ```

use crate::split_addmm::is_sum_with_bias;
use crate::{Context, Pass};
use inrush_base::DType;
use inrush_expr::Expr;
use inrush_graph::{Arg, Graph, Node, TensorType, Type, ValueId};

const MM: &str = "aten.mm.default";
const CONVERT: &str = "prims.convert_element_type.default";

pub(crate) const PASS: Pass = Pass {
    name: "row_products",
    applies: |cx| cx.gpu_serves(MM),
    run,
};

fn run(graph: &mut Graph, cx: &Context) {
    for node in std::mem::take(&mut graph.nodes) {
        match Row::of(graph, cx, &node) {
            Some(row) => row.expand(graph, node),
            None => graph.nodes.push(node),
        }
    }
}

/// A product with one row, or with one column.
struct Row {
    bias: Option<ValueId>,
    /// The matrix, whose rows are summed, and true if it is to be transposed for that.
    matrix: ValueId,
    transposed: bool,
    /// The row, with the same: it is `[1, k]` then.
    vector: ValueId,
    turned: bool,
    /// Type of the result.
    out: TensorType,
}

impl Row {
    /// Reads a product; `None` for any other.
    fn of(graph: &Graph, cx: &Context, node: &Node) -> Option<Row> {
        let (bias, a, b) = match (node.op.as_str(), node.args.as_slice()) {
            (MM, [Arg::Value(a), Arg::Value(b)]) => (None, *a, *b),
            (_, [Arg::Value(bias), Arg::Value(a), Arg::Value(b), ..])
                if is_sum_with_bias(graph, cx, node) =>
            {
                let same = graph.tensor(*bias).ok()?.dtype == graph.tensor(*a).ok()?.dtype;
                same.then_some((Some(*bias), *a, *b))?
            }
            _ => return None,
        };
        let &[out] = node.outs.as_slice() else {
            return None;
        };
        let [left, right] = [a, b].map(|v| graph.tensor(v).ok().filter(|t| t.rank() == 2));
        let (left, right) = (left?, right?);
        let out = graph.tensor(out).ok()?.clone();
        let is_one = |e: Expr| graph.exprs.is_int(e, 1);
        let same = left.dtype == out.dtype && right.dtype == out.dtype;
        let small = matches!(out.dtype, DType::F32 | DType::F16 | DType::BF16);
        let neighbours = is_one(left.strides[1]) && is_one(right.strides[0]);
        // One number is no matrix, and its strides say nothing.
        let (row, column) = (is_one(left.sizes[0]), is_one(right.sizes[1]));
        if cx.is_kept(node) || !same || !small || !neighbours || row == column {
            return None;
        }
        let (matrix, vector) = if row { (b, a) } else { (a, b) };
        Some(Row {
            bias,
            matrix,
            transposed: row,
            vector,
            turned: column,
            out,
        })
    }

    /// Adds the sums in the place of the product.
    fn expand(self, graph: &mut Graph, node: Node) {
        let dtype = self.out.dtype;
        let mut m = Maker {
            name: graph.value(node.outs[0]).name.clone(),
            graph,
            like: &node,
        };
        let matrix = m.rows("rows", self.matrix, self.transposed);
        let vector = m.rows("turned", self.vector, self.turned);
        let vector = m.widened("left", vector);
        let matrix = m.widened("right", matrix);
        let terms = m.sizes(matrix);
        let count = terms[0];
        let terms = m.add(
            "aten.mul.Tensor",
            "terms",
            vec![matrix.into(), vector.into()],
            terms,
        );
        let one = m.graph.exprs.int(1);
        let args = vec![terms.into(), vec![one].into(), false.into(), Arg::None];
        let mut sums = m.add("aten.sum.dim_IntList", "sums", args, vec![count]);
        if let Some(bias) = self.bias {
            let args = vec![sums.into(), bias.into(), one.into()];
            // A bias of one number is that of every column.
            sums = m.add("aten.add.Tensor", "biased", args, vec![count]);
        }
        let sizes = self.out.sizes;
        let (op, args) = match dtype {
            DType::F32 => ("aten.view.default", vec![sums.into(), sizes.into()]),
            _ => {
                let args = vec![sums.into(), sizes.clone().into()];
                let row = m.add("aten.view.default", "row", args, sizes);
                (CONVERT, vec![row.into(), Arg::DType(dtype)])
            }
        };
        graph.nodes.push(Node {
            op: op.into(),
            args,
            ..node
        });
    }
}

/// Adds calls that stand for `like`, in float32.
struct Maker<'a> {
    graph: &'a mut Graph,
    like: &'a Node,
    name: String,
}

impl Maker<'_> {
    fn sizes(&self, v: ValueId) -> Vec<Expr> {
        self.graph
            .tensor(v)
            .map(|t| t.sizes.clone())
            .unwrap_or_default()
    }

    fn call(&mut self, op: &str, what: &str, args: Vec<Arg>, ty: TensorType) -> ValueId {
        let name = format!("{}.{what}", self.name);
        let out = self.graph.add_value(&name, Type::Tensor(ty));
        self.graph.nodes.push(Node {
            op: op.into(),
            args,
            outs: vec![out],
            ..self.like.clone()
        });
        out
    }

    fn add(&mut self, op: &str, what: &str, args: Vec<Arg>, sizes: Vec<Expr>) -> ValueId {
        let ty = TensorType::contiguous(&self.graph.exprs, DType::F32, sizes);
        self.call(op, what, args, ty)
    }

    /// Returns the transpose of a matrix, or the matrix.
    fn rows(&mut self, what: &str, v: ValueId, transposed: bool) -> ValueId {
        match self.graph.tensor(v).cloned() {
            Ok(mut ty) if transposed => {
                ty.sizes.reverse();
                ty.strides.reverse();
                self.call("aten.t.default", what, vec![v.into()], ty)
            }
            _ => v,
        }
    }

    /// Returns a value in float32.
    fn widened(&mut self, what: &str, v: ValueId) -> ValueId {
        match self.graph.tensor(v).cloned() {
            Ok(mut ty) if ty.dtype != DType::F32 => {
                ty.strides = inrush_aten::layouts::strides::copy_of(&self.graph.exprs, &ty);
                ty.dtype = DType::F32;
                self.call(CONVERT, what, vec![v.into(), Arg::DType(DType::F32)], ty)
            }
            _ => v,
        }
    }
}
