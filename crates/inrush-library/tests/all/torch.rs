//! Results of PyTorch's own operators, stored by `torch_cases.py`.

use crate::support::{Rng, Tensor, call, close, tolerance};
use inrush_base::{DType, ErrorKind, Scalar};

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

/// Changes one thing of a tensor's description: its dtype, a size, its rank.
fn damage(dtype: &mut DType, sizes: &mut Vec<i64>, rng: &mut Rng) {
    let dtypes: Vec<DType> = DType::all().collect();
    match rng.below(5) {
        0 => *dtype = dtypes[rng.below(dtypes.len() as u64) as usize],
        1 => sizes.push(rng.below(3) as i64),
        2 => {
            sizes.pop();
        }
        _ if sizes.is_empty() => sizes.push(1),
        _ => {
            let at = rng.below(sizes.len() as u64) as usize;
            sizes[at] = [0, 1, 2, 3, 5, sizes[at] + 1][rng.below(6) as usize];
        }
    }
}

/// Returns a tensor of these sizes with a tensor's first values, as far as it has some.
fn resized(from: &Tensor, dtype: DType, sizes: &[i64]) -> Tensor {
    let mut out = Tensor::unwritten(dtype, sizes);
    let n = from.bytes().len().min(out.bytes().len());
    out.bytes_mut().fill(0);
    out.bytes_mut()[..n].copy_from_slice(&from.bytes()[..n]);
    out
}

#[test]
fn damaged_calls_do_not_panic() {
    let mut rng = Rng::new(60);
    let mut taken = 0;
    for (at, case) in cases().iter().enumerate() {
        for _ in 0..200 {
            let mut inputs = case.inputs.clone();
            let mut outputs: Vec<(DType, Vec<i64>)> = case
                .outputs
                .iter()
                .map(|t| (t.dtype, t.sizes.clone()))
                .collect();
            let mut params = case.params.clone();
            for _ in 0..=rng.below(2) {
                match rng.below(8) {
                    0 if !inputs.is_empty() => {
                        inputs.pop();
                    }
                    1 => outputs.reverse(),
                    2 => params.push(Scalar::Int(rng.below(4) as i64)),
                    3 if !params.is_empty() => {
                        let i = rng.below(params.len() as u64) as usize;
                        params[i] = match rng.below(4) {
                            0 => Scalar::Bool(rng.below(2) == 0),
                            1 => Scalar::Float(0.5),
                            2 => Scalar::Int(i64::MIN),
                            _ => Scalar::Int(rng.below(5) as i64 - 2),
                        };
                    }
                    4 | 5 if !outputs.is_empty() => {
                        let i = rng.below(outputs.len() as u64) as usize;
                        let (dtype, sizes) = &mut outputs[i];
                        damage(dtype, sizes, &mut rng);
                    }
                    _ if !inputs.is_empty() => {
                        let i = rng.below(inputs.len() as u64) as usize;
                        let (mut dtype, mut sizes) = (inputs[i].dtype, inputs[i].sizes.clone());
                        damage(&mut dtype, &mut sizes, &mut rng);
                        inputs[i] = resized(&inputs[i], dtype, &sizes);
                    }
                    _ => {}
                }
            }
            let inputs: Vec<&Tensor> = inputs.iter().collect();
            let outputs: Vec<(DType, &[i64])> = outputs.iter().map(|(d, s)| (*d, &s[..])).collect();
            match call(&case.name, &inputs, &outputs, &params) {
                Ok(_) => taken += 1,
                Err(e) => assert!(
                    matches!(e.kind(), ErrorKind::Input | ErrorKind::InvalidValue),
                    "case {at}, {} {inputs:?} {outputs:?} {params:?}: {e}",
                    case.name
                ),
            }
        }
    }
    // Some damage is none: other values, or outputs in another order.
    assert!(taken > 100, "{taken}");
}
