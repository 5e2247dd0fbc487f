//! Results of PyTorch's own operators, stored by `torch_cases.py`.

use crate::support::{Tensor, call, close, tolerance};
use inrush_base::{DType, Scalar};

/// A stored call: function, parameters, inputs, outputs.
struct Case {
    name: String,
    params: Vec<Scalar>,
    inputs: Vec<Tensor>,
    outputs: Vec<Tensor>,
}

fn tensor(words: &[&str]) -> Tensor {
    let dtype = DType::parse(words[0]).unwrap();
    let sizes: Vec<i64> = match words[1] {
        "-" => Vec::new(),
        sizes => sizes.split('x').map(|n| n.parse().unwrap()).collect(),
    };
    let values: Vec<f64> = words[2..].iter().map(|v| v.parse().unwrap()).collect();
    Tensor::new(dtype, &sizes, &values)
}

fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    for line in include_str!("../torch_cases.txt").lines() {
        let words: Vec<&str> = line.split(' ').filter(|w| !w.is_empty()).collect();
        match words[0] {
            "case" => {
                let param = |w: &&str| match *w {
                    "true" => Scalar::Bool(true),
                    "false" => Scalar::Bool(false),
                    n => Scalar::Int(n.parse().unwrap()),
                };
                cases.push(Case {
                    name: words[1].to_string(),
                    params: words[2..].iter().map(param).collect(),
                    inputs: Vec::new(),
                    outputs: Vec::new(),
                });
            }
            "in" => cases.last_mut().unwrap().inputs.push(tensor(&words[1..])),
            _ => cases.last_mut().unwrap().outputs.push(tensor(&words[1..])),
        }
    }
    cases
}

#[test]
fn results_are_those_of_pytorch() {
    let cases = cases();
    assert!(cases.len() > 50, "{} cases", cases.len());
    for (at, case) in cases.iter().enumerate() {
        let inputs: Vec<&Tensor> = case.inputs.iter().collect();
        let outputs: Vec<(DType, &[i64])> = case
            .outputs
            .iter()
            .map(|t| (t.dtype, &t.sizes[..]))
            .collect();
        let got = call(&case.name, &inputs, &outputs, &case.params);
        let got = got.unwrap_or_else(|e| panic!("case {at}, {}: {e}", case.name));
        for (i, (got, want)) in got.iter().zip(&case.outputs).enumerate() {
            let what = format!("case {at}, {} {:?}, output {i}", case.name, case.params);
            let (got, want) = (got.values(), want.values());
            if case.name == "sort.stable" || case.name == "topk" {
                let same = got
                    .iter()
                    .zip(&want)
                    .all(|(a, b)| a == b || (a.is_nan() && b.is_nan()));
                assert!(same, "{what}: {got:?}, not {want:?}");
                continue;
            }
            let finite = |v: &[f64]| {
                v.iter()
                    .map(|v| if v.is_finite() { *v } else { 0.0 })
                    .collect::<Vec<_>>()
            };
            let kinds = |v: &[f64]| {
                v.iter()
                    .map(|v| (v.is_nan(), v.is_infinite(), v.is_infinite() && *v < 0.0))
                    .collect::<Vec<_>>()
            };
            assert_eq!(kinds(&got), kinds(&want), "{what}: {got:?}, not {want:?}");
            close(
                &what,
                &finite(&got),
                &finite(&want),
                tolerance(case.outputs[i].dtype, 200.0).min(0.01),
            );
        }
    }
}
