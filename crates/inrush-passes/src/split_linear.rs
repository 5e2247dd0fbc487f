//! Linear layers as matrix products, for hosts whose libraries multiply matrices.
//!
//! # What it does
//! `linear(x, w, b)` becomes `view(mm(view(x), t(w))) + b`: a product that a library does, and an addition that fuses with what
//! reads it. `matmul` of matrices, and of batches of them, becomes `mm` and `bmm`.
//!
//! # When
//! On GPUs, if the host's libraries multiply matrices and have no `addmm`: cuBLAS without PyTorch. PyTorch decomposes layers
//! itself. Operands are row-major and of a type that cuBLAS takes.
//!
//! # Numerics
//! In half precision the product is rounded before the bias is added.
//!
//! # Example
//! ```text
//! %3 y: f32[2, 3, 4] = aten.linear.default(%x, %w, %b)
//! =>
//! %3 y.weight: f32[8, 4] strides [1, 8] = aten.t.default(%w)
//! %4 y.rows: f32[6, 8] = aten.view.default(%x, [6, 8])
//! %5 y.product: f32[6, 4] = aten.mm.default(%4, %3)
//! %6 y.columns: f32[2, 3, 4] = aten.view.default(%5, [2, 3, 4])
//! %7 y: f32[2, 3, 4] = aten.add.Tensor(%6, %b, 1)
//! ```

use crate::replace::Builder;
use crate::{Context, Pass};
use inrush_base::DType;
use inrush_graph::{Arg, Graph, Node, TensorType, ValueId};

pub(crate) const PASS: Pass = Pass {
    name: "split_linear",
    applies: |cx| cx.gpu_serves("aten.mm.default") && !cx.gpu_serves("aten.addmm.default"),
    run,
};

fn run(graph: &mut Graph, _: &Context) {
    let nodes = std::mem::take(&mut graph.nodes);
    for node in nodes {
        match node.op.as_str() {
            "aten.linear.default" => linear(graph, node),
            "aten.matmul.default" => matmul(graph, node),
            _ => graph.nodes.push(node),
        }
    }
}

/// Returns the type of a tensor that libraries multiply.
fn operand(graph: &Graph, a: Option<&Arg>) -> Option<(ValueId, TensorType)> {
    let Some(Arg::Value(v)) = a else { return None };
    let t = graph.tensor(*v).ok()?.clone();
    matches!(t.dtype, DType::F32 | DType::F16 | DType::BF16).then_some((*v, t))
}

fn linear(graph: &mut Graph, node: Node) {
    let (x, w) = (
        operand(graph, node.args.first()),
        operand(graph, node.args.get(1)),
    );
    let (Some((x, xt)), Some((w, wt)), &[out]) = (x, w, node.outs.as_slice()) else {
        return graph.nodes.push(node);
    };
    let rank = xt.sizes.len();
    let flat = graph.exprs.contiguous_strides(&xt.sizes) == xt.strides;
    if rank < 2 || wt.sizes.len() != 2 || xt.dtype != wt.dtype || !flat {
        return graph.nodes.push(node);
    }
    let name = graph.value(out).name.clone();
    let bias = match node.args.get(2) {
        Some(Arg::Value(b)) => Some(*b),
        _ => None,
    };
    let rows = graph.exprs.product(xt.sizes[..rank - 1].iter().copied());
    let columns = wt.sizes[0];
    let dtype = xt.dtype;
    let mut sizes = xt.sizes[..rank - 1].to_vec();
    sizes.push(columns);
    let mut b = Builder {
        graph,
        line: node.line,
        name: &name,
    };
    let transposed = TensorType {
        dtype,
        sizes: vec![wt.sizes[1], wt.sizes[0]],
        strides: vec![wt.strides[1], wt.strides[0]],
    };
    let w = b.push("aten.t.default", vec![Arg::Value(w)], "weight", transposed);
    let x = match rank {
        2 => x,
        _ => b.view(x, "rows", dtype, vec![rows, xt.sizes[rank - 1]]),
    };
    let product = b.contiguous(dtype, vec![rows, columns]);
    let arguments = vec![Arg::Value(x), Arg::Value(w)];
    let mut y = b.push("aten.mm.default", arguments, "product", product);
    if rank > 2 {
        y = b.view(y, "columns", dtype, sizes);
    }
    let (op, args) = match bias {
        Some(bias) => {
            let one = Arg::Int(graph.exprs.int(1));
            (
                "aten.add.Tensor",
                vec![Arg::Value(y), Arg::Value(bias), one],
            )
        }
        None => ("aten.alias.default", vec![Arg::Value(y)]),
    };
    graph.nodes.push(Node {
        op: op.into(),
        args,
        ..node
    });
}

fn matmul(graph: &mut Graph, node: Node) {
    let (a, b) = (
        operand(graph, node.args.first()),
        operand(graph, node.args.get(1)),
    );
    let op = match (a, b) {
        (Some((_, a)), Some((_, b))) if a.dtype == b.dtype => match (&*a.sizes, &*b.sizes) {
            ([_, _], [_, _]) => Some("aten.mm.default"),
            ([n, _, _], [m, _, _]) if n == m => Some("aten.bmm.default"),
            _ => None,
        },
        _ => None,
    };
    let op = op.map_or(node.op.clone(), String::from);
    graph.nodes.push(Node { op, ..node });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(text: &str) -> String {
        let mut graph = inrush_graph::text::parse(text).unwrap();
        let caps = inrush_base::Caps::cpu(inrush_base::Isa::Avx2, 1);
        run(&mut graph, &Context::segment(&caps));
        inrush_graph::verify::verify(&graph).unwrap();
        graph.print()
    }

    #[test]
    fn linear_becomes_a_product_and_an_addition() {
        let text = "graph g\n\
            %0 x: f32[2, 3, 8] = input 0\n\
            %1 w: f32[4, 8] = input 1\n\
            %2 b: f32[4] = input 2\n\
            %3 y: f32[2, 3, 4] = aten.linear.default(%0, %1, %2)\n\
            output 0: %3\n";
        let out = split(text);
        for part in [
            "y.weight: f32[8, 4] strides [1, 8] = aten.t.default(%1)",
            "y.rows: f32[6, 8] = aten.view.default(%0, [6, 8])",
            "y.product: f32[6, 4] = aten.mm.default",
            "y: f32[2, 3, 4] = aten.add.Tensor",
        ] {
            assert!(out.contains(part), "{part}\n{out}");
        }
    }

    #[test]
    fn what_no_library_takes_stays() {
        let text = "graph g\n\
            %0 x: f64[3, 8] = input 0\n\
            %1 w: f64[4, 8] = input 1\n\
            %2 y: f64[3, 4] = aten.linear.default(%0, %1, none)\n\
            output 0: %2\n";
        assert!(split(text).contains("aten.linear.default"));
        let text = "graph g\n\
            %0 x: f32[2, 5, 3, 8] = input 0\n\
            %1 y: f32[2, 5, 8, 4] = input 1\n\
            %2 z: f32[2, 5, 3, 4] = aten.matmul.default(%0, %1)\n\
            output 0: %2\n";
        assert!(split(text).contains("aten.matmul.default"));
        let text = "graph g\n\
            %0 x: f16[5, 3, 8] = input 0\n\
            %1 y: f16[5, 8, 4] = input 1\n\
            %2 z: f16[5, 3, 4] = aten.matmul.default(%0, %1)\n\
            output 0: %2\n";
        assert!(split(text).contains("aten.bmm.default(%0, %1)"));
    }
}
