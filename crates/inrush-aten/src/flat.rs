//! Time per operator must not grow with the graph.
//!
//! Guards against quadratic steps in normalize, decompose and lower: a graph of twenty times
//! as many operators may take at most a hundred times as long, which leaves room for noise
//! and caches.

use crate::{decompose, lower, normalize};
use inrush_base::DType;
use inrush_graph::{
    Arg, Graph, Input, InputKind, Node, Output, OutputKind, OutputValue, TensorType, Type,
};
use std::time::{Duration, Instant};

/// A chain of `n` operators of several kinds, some in place through views.
fn chain(n: usize) -> Graph {
    let mut g = Graph::default();
    let b = g.exprs.sym_expr(g.exprs.size_sym("b", 1, 64));
    let (wide, e) = (g.exprs.int(32), |v| g.exprs.int(v));
    let zero = e(0);
    let ty = Type::Tensor(TensorType::contiguous(&g.exprs, DType::F32, vec![b, wide]));
    let row = Type::Tensor(TensorType::contiguous(&g.exprs, DType::F32, vec![wide]));
    let mut at = g.add_value("x", ty.clone());
    g.inputs.push(Input::new(at, InputKind::User { index: 0 }));
    for k in 0..n {
        let (op, args, ty) = match k % 5 {
            0 => (
                "aten.add.Tensor",
                vec![at.into(), Arg::Float(1.0)],
                ty.clone(),
            ),
            1 => (
                "aten.layer_norm.default",
                vec![at.into(), Arg::Ints(vec![wide])],
                ty.clone(),
            ),
            2 => ("aten.gelu.default", vec![at.into()], ty.clone()),
            3 => (
                "aten.select.int",
                vec![at.into(), zero.into(), zero.into()],
                row.clone(),
            ),
            _ => ("aten.relu_.default", vec![at.into()], row.clone()),
        };
        let v = g.add_value(&format!("v{k}"), ty);
        g.nodes.push(Node {
            op: op.into(),
            args,
            outs: vec![v],
            line: None,
            made_for: None,
        });
        // The select and the in-place write are side branches: the chain goes on from the base.
        if k % 5 < 4 {
            at = v;
        } else {
            at = g.nodes[k - 2].outs[0];
        }
    }
    g.outputs.push(Output {
        value: OutputValue::Value(at),
        kind: OutputKind::User { index: 0 },
    });
    g
}

fn time(n: usize) -> Duration {
    let g = chain(n);
    let t = Instant::now();
    let loops = normalize(g)
        .and_then(decompose)
        .and_then(|g| lower(g, crate::Processor::Cpu))
        .expect("the chain lowers");
    assert!(loops.nodes.len() > n / 2);
    t.elapsed()
}

#[test]
fn time_per_operator_is_flat() {
    time(500);
    let (small, large) = (time(1_000), time(20_000));
    // Twenty times the operators; a quadratic step would make it four hundred times as long.
    assert!(
        large < small * 100,
        "1,000 operators take {small:?}, 20,000 take {large:?}"
    );
    eprintln!("1,000 operators: {small:?}; 20,000: {large:?}");
}
