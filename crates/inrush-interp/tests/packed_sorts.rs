//! Sorts by packed keys give what sorts by comparing values give: drawn shapes, dtypes, dimensions, NaN, both zeros, ties.

mod common;

use common::Random;
use inrush_aten::Processor;
use inrush_base::{DType, Scalar};
use inrush_interp::{LoopsOptions, Tensor, Value};
use inrush_loops::{Loops, Node, Stmt};
use std::collections::BTreeMap;

const DTYPES: [DType; 10] = [
    DType::Bool,
    DType::U8,
    DType::I8,
    DType::U16,
    DType::I16,
    DType::U32,
    DType::I32,
    DType::F16,
    DType::BF16,
    DType::F32,
];

/// Few distinct values, so that most have equals, and the ends of the dtype.
fn value(random: &mut Random, dtype: DType) -> Scalar {
    const FLOATS: [f64; 12] = [
        f64::NAN,
        f64::INFINITY,
        f64::NEG_INFINITY,
        0.0,
        -0.0,
        1.5,
        -1.5,
        2.0,
        -2.0,
        6e-8,
        -6e-8,
        6e4,
    ];
    let value = match dtype.int_range() {
        None => Scalar::Float(FLOATS[random.below(FLOATS.len())]),
        Some((lo, hi)) => match random.below(4) {
            0 => Scalar::Int(lo as i64),
            1 => Scalar::Int(hi as i64),
            _ => Scalar::Int((lo.max(-3) + random.below(6) as i128).min(hi) as i64),
        },
    };
    value.convert(dtype)
}

/// A graph of one sort or topk.
fn graph(dtype: DType, sizes: &[usize], dim: usize, descending: bool, k: Option<usize>) -> String {
    let list = |sizes: &[usize]| {
        let text: Vec<String> = sizes.iter().map(usize::to_string).collect();
        format!("[{}]", text.join(", "))
    };
    let mut out = sizes.to_vec();
    let call = match k {
        Some(k) => {
            out[dim] = k;
            format!("aten.topk.default(%0, {k}, {dim}, {descending}, true)")
        }
        None => format!("aten.sort.stable(%0, true, {dim}, {descending})"),
    };
    let (x, out) = (list(sizes), list(&out));
    format!(
        "graph t\n%0 x: {dtype}{x} = input 0\n%1 v: {dtype}{out}, %2 i: i64{out} = {call}\noutput 0: %1\noutput 1: %2\n"
    )
}

fn lowered(text: &str, processor: Processor) -> Loops {
    let graph = inrush_graph::text::parse(text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let graph = inrush_aten::decompose(graph).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let loops = inrush_aten::lower(graph, processor).unwrap_or_else(|e| panic!("{e}\n{text}"));
    inrush_loops::verify::verify(&loops).unwrap_or_else(|e| panic!("{e}\n{text}"));
    loops
}

/// Text that tells zeros apart, and has one NaN.
fn shown(values: &[Value]) -> Vec<Vec<String>> {
    let text = |s: Scalar| match s {
        Scalar::Float(f) if f.is_nan() => "nan".to_string(),
        Scalar::Float(f) => format!("{f:?}"),
        s => s.to_string(),
    };
    (values.iter())
        .map(|v| {
            let tensor = v.tensor().expect("a tensor");
            let values = tensor.scalars().expect("values");
            values.into_iter().map(text).collect()
        })
        .collect()
}

fn sorts(loops: &Loops) -> bool {
    (loops.nodes.iter()).any(|n| match n {
        Node::Body(b) => b.stmts.iter().any(|s| matches!(s, Stmt::Sort { .. })),
        _ => false,
    })
}

#[test]
fn packed_keys_sort_as_comparisons_do() {
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    for turn in 0..240 {
        let dtype = DTYPES[turn % DTYPES.len()];
        let rank = 1 + random.below(3);
        let dim = random.below(rank);
        let mut sizes: Vec<usize> = (0..rank).map(|_| 1 + random.below(4)).collect();
        sizes[dim] = match turn % 24 {
            0 => 1024,
            1..4 => 65 + random.below(300),
            _ => 1 + random.below(40),
        };
        let descending = random.below(2) == 1;
        // What is found one after the other is not sorted.
        let k = (random.below(3) == 0 && sizes[dim] > 9).then(|| 9 + random.below(sizes[dim] - 9));
        let text = graph(dtype, &sizes, dim, descending, k);
        let points: usize = sizes.iter().product();
        let values: Vec<Scalar> = (0..points).map(|_| value(&mut random, dtype)).collect();
        let sizes: Vec<i64> = sizes.iter().map(|n| *n as i64).collect();
        let x = Tensor::from_scalars(dtype, &sizes, &values).expect("a tensor");
        let run = |loops: &Loops| {
            let inputs = [Value::Tensor(x.clone())];
            let none = BTreeMap::new();
            let options = LoopsOptions::default();
            let got = inrush_interp::loops(loops, &inputs, &BTreeMap::new(), &none, options);
            shown(&got.unwrap_or_else(|e| panic!("{e}\n{text}")))
        };
        let (compared, packed) = (
            lowered(&text, Processor::Cpu),
            lowered(&text, Processor::Gpu),
        );
        assert!(sorts(&packed) && !sorts(&compared), "{text}");
        assert_eq!(run(&packed), run(&compared), "{text}\n{values:?}");
    }
}

#[test]
fn values_of_eight_bytes_and_longer_rows_have_no_packed_keys() {
    for (dtype, n) in [(DType::F64, 20), (DType::I64, 20), (DType::F32, 1025)] {
        let loops = lowered(&graph(dtype, &[n], 0, false, None), Processor::Gpu);
        assert!(!sorts(&loops), "{dtype} x {n}");
    }
}
