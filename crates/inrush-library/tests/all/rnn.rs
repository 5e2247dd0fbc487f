//! Recurrent layers against loops over single elements in `f64`.

use crate::support::{Rng, Tensor, call, close, flag, int, refused, tolerance};
use inrush_base::DType;

/// Sizes of a case: steps, batch, input, hidden, projection (0: none).
const CASES: &[(usize, usize, usize, usize, usize)] = &[
    (0, 2, 3, 4, 0),
    (1, 1, 1, 1, 0),
    (3, 0, 2, 5, 0),
    (4, 2, 3, 5, 0),
    (5, 1, 7, 16, 0),
    (7, 5, 3, 17, 4),
    (2, 3, 0, 6, 0),
    (9, 9, 8, 33, 1),
];

struct Layer {
    tensors: Vec<Tensor>,
    values: Vec<Vec<f64>>,
    bias: bool,
    projected: bool,
}

/// Draws the tensors of a layer: input, states, weights, biases, projection.
fn draw(
    dtype: DType,
    (t, b, i, h, p): (usize, usize, usize, usize, usize),
    gates: usize,
    states: usize,
    bias: bool,
    rng: &mut Rng,
) -> Layer {
    let state = if p > 0 { p } else { h };
    let mut sizes = vec![vec![t, b, i], vec![1, b, state]];
    if states == 2 {
        sizes.push(vec![1, b, h]);
    }
    sizes.push(vec![gates * h, i]);
    sizes.push(vec![gates * h, state]);
    if bias {
        sizes.extend([vec![gates * h], vec![gates * h]]);
    }
    if p > 0 {
        sizes.push(vec![p, h]);
    }
    let tensors: Vec<Tensor> = sizes
        .iter()
        .map(|s| {
            let s: Vec<i64> = s.iter().map(|&n| n as i64).collect();
            let n = s.iter().product::<i64>() as usize;
            // Of variance 1 / columns, so that no step makes errors grow.
            let scale = (s[s.len() - 1].max(1) as f64).powf(-0.5);
            let v: Vec<f64> = (0..n).map(|_| scale * rng.value()).collect();
            Tensor::new(dtype, &s, &v)
        })
        .collect();
    let values = tensors.iter().map(Tensor::values).collect();
    Layer {
        tensors,
        values,
        bias,
        projected: p > 0,
    }
}

/// Row `r` of weights with `k` columns, times a vector.
fn dot(w: &[f64], r: usize, v: &[f64]) -> f64 {
    w[r * v.len()..(r + 1) * v.len()]
        .iter()
        .zip(v)
        .map(|(a, b)| a * b)
        .sum()
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// The cells by name.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Cell {
    Lstm,
    Gru,
    Tanh,
    Relu,
}

/// Runs a layer: gives outputs in time, the last state, the last cells.
fn naive(
    cell: Cell,
    l: &Layer,
    (t, b, i, h, p): (usize, usize, usize, usize, usize),
    reverse: bool,
) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
    let state = if p > 0 { p } else { h };
    let lstm = cell == Cell::Lstm;
    let v = &l.values;
    let at = if lstm { 3 } else { 2 };
    let (w_ih, w_hh) = (&v[at], &v[at + 1]);
    let bias = |k: usize, r: usize| if l.bias { v[at + 2 + k][r] } else { 0.0 };
    let (mut hs, mut cs) = (v[1].clone(), if lstm { v[2].clone() } else { Vec::new() });
    let mut y = vec![0.0; t * b * state];
    for step in 0..t {
        let step = if reverse { t - 1 - step } else { step };
        for n in 0..b {
            let x = &v[0][(step * b + n) * i..(step * b + n + 1) * i];
            let last = hs[n * state..(n + 1) * state].to_vec();
            let input = |r: usize| dot(w_ih, r, x) + bias(0, r);
            let hidden = |r: usize| dot(w_hh, r, &last) + bias(1, r);
            let mut next = vec![0.0; h];
            for j in 0..h {
                let gate = |g: usize| input(g * h + j) + hidden(g * h + j);
                next[j] = match cell {
                    Cell::Lstm => {
                        let c = &mut cs[n * h + j];
                        *c = sigmoid(gate(1)) * *c + sigmoid(gate(0)) * gate(2).tanh();
                        sigmoid(gate(3)) * c.tanh()
                    }
                    Cell::Gru => {
                        let (r, z) = (sigmoid(gate(0)), sigmoid(gate(1)));
                        let new = (input(2 * h + j) + r * hidden(2 * h + j)).tanh();
                        (1.0 - z) * new + z * last[j]
                    }
                    Cell::Tanh => gate(0).tanh(),
                    Cell::Relu => gate(0).max(0.0),
                };
            }
            if l.projected {
                let w = &v[v.len() - 1];
                next = (0..p).map(|r| dot(w, r, &next)).collect();
            }
            hs[n * state..(n + 1) * state].copy_from_slice(&next);
            let to = (step * b + n) * state;
            y[to..to + state].copy_from_slice(&next);
        }
    }
    (y, hs, cs)
}

#[test]
fn layers_compute_what_their_formulas_say() {
    let mut rng = Rng::new(40);
    for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
        for &case in CASES {
            for cell in [Cell::Lstm, Cell::Gru, Cell::Tanh, Cell::Relu] {
                let lstm = cell == Cell::Lstm;
                let case = if lstm {
                    case
                } else {
                    (case.0, case.1, case.2, case.3, 0)
                };
                for (bias, reverse) in [(true, false), (false, true)] {
                    let gates = match cell {
                        Cell::Lstm => 4,
                        Cell::Gru => 3,
                        _ => 1,
                    };
                    let layer = draw(dtype, case, gates, 1 + usize::from(lstm), bias, &mut rng);
                    let (y, h, c) = naive(cell, &layer, case, reverse);
                    let inputs: Vec<&Tensor> = layer.tensors.iter().collect();
                    let h_sizes = &layer.tensors[1].sizes;
                    let c_sizes = &layer.tensors[2].sizes;
                    let y_sizes = [case.0 as i64, h_sizes[1], h_sizes[2]];
                    let mut out = vec![(dtype, &y_sizes[..]), (dtype, &h_sizes[..])];
                    let (name, params) = match cell {
                        Cell::Lstm => {
                            out.push((dtype, &c_sizes[..]));
                            (
                                "rnn.lstm",
                                vec![flag(bias), flag(case.4 > 0), flag(reverse)],
                            )
                        }
                        Cell::Gru => ("rnn.gru", vec![flag(bias), flag(reverse)]),
                        _ => (
                            "rnn.elman",
                            vec![flag(bias), flag(reverse), flag(cell == Cell::Relu)],
                        ),
                    };
                    let got = call(name, &inputs, &out, &params).unwrap();
                    let what = format!("{cell:?} {dtype} {case:?} {bias} {reverse}");
                    let tol = tolerance(dtype, 40.0);
                    let tol = if dtype.size() == 2 {
                        tolerance(dtype, 4.0)
                    } else {
                        tol
                    };
                    close(&what, &got[0].values(), &y, tol);
                    close(&what, &got[1].values(), &h, tol);
                    if lstm {
                        close(&what, &got[2].values(), &c, tol);
                    }
                }
            }
        }
    }
}

#[test]
fn malformed_calls_are_refused() {
    let mut rng = Rng::new(41);
    let case = (3, 2, 4, 5, 0);
    let layer = draw(DType::F32, case, 4, 2, true, &mut rng);
    let i: Vec<&Tensor> = layer.tensors.iter().collect();
    let y: (DType, &[i64]) = (DType::F32, &[3, 2, 5]);
    let h: (DType, &[i64]) = (DType::F32, &[1, 2, 5]);
    let good = [flag(true), flag(false), flag(false)];
    call("rnn.lstm", &i, &[y, h, h], &good).unwrap();
    refused("rnn.lstm", &[], &[y, h, h], &good);
    refused("rnn.lstm", &i[..6], &[y, h, h], &good);
    refused("rnn.lstm", &i, &[y, h], &good);
    refused("rnn.lstm", &i, &[h, h, h], &good);
    refused("rnn.lstm", &i, &[y, y, h], &good);
    refused("rnn.lstm", &i, &[y, h, (DType::F64, &[1, 2, 5])], &good);
    refused("rnn.lstm", &i, &[y, h, h], &good[..2]);
    refused(
        "rnn.lstm",
        &i,
        &[y, h, h],
        &[flag(true), flag(true), flag(false)],
    );
    refused(
        "rnn.lstm",
        &i,
        &[y, h, h],
        &[flag(false), flag(false), flag(false)],
    );
    refused(
        "rnn.lstm",
        &i,
        &[y, h, h],
        &[flag(true), flag(false), int(2)],
    );
    // Each input in turn has other sizes.
    let odd = Tensor::draw(DType::F32, &[3, 3], &mut rng);
    let wide = Tensor::draw(DType::F64, &[3, 2, 4], &mut rng);
    for at in 0..i.len() {
        let mut inputs = i.clone();
        inputs[at] = &odd;
        refused("rnn.lstm", &inputs, &[y, h, h], &good);
    }
    let mut inputs = i.clone();
    inputs[0] = &wide;
    refused("rnn.lstm", &inputs, &[y, h, h], &good);
    for (name, gates, params) in [
        ("rnn.gru", 3, vec![flag(false), flag(false)]),
        ("rnn.elman", 1, vec![flag(false), flag(false), flag(true)]),
    ] {
        let layer = draw(DType::F32, case, gates, 1, false, &mut rng);
        let i: Vec<&Tensor> = layer.tensors.iter().collect();
        call(name, &i, &[y, h], &params).unwrap();
        refused(name, &i, &[y, h, h], &params);
        refused(name, &i, &[h, h], &params);
        refused(name, &i, &[y, h], &params[1..]);
        refused(name, &i[..3], &[y, h], &params);
        for at in 0..i.len() {
            let mut inputs = i.clone();
            inputs[at] = &odd;
            refused(name, &inputs, &[y, h], &params);
        }
    }
    // Sizes that no memory bounds: nothing is computed.
    let huge = 1 << 50;
    let none = |sizes: &[i64]| Tensor::unwritten(DType::F32, sizes);
    let (x, state) = (none(&[huge, 1, 0]), none(&[1, 1, 0]));
    let (w_ih, w_hh) = (none(&[0, 0]), none(&[0, 0]));
    let y: (DType, &[i64]) = (DType::F32, &[huge, 1, 0]);
    let h: (DType, &[i64]) = (DType::F32, &[1, 1, 0]);
    let inputs = [&x, &state, &w_ih, &w_hh];
    call("rnn.gru", &inputs, &[y, h], &[flag(false), flag(false)]).unwrap();
    let c0 = Tensor::draw(DType::F32, &[1, 1, 2], &mut rng);
    let (w_ih, w_hh, w_hr) = (none(&[8, 0]), none(&[8, 0]), none(&[0, 2]));
    let inputs = [&x, &state, &c0, &w_ih, &w_hh, &w_hr];
    let c: (DType, &[i64]) = (DType::F32, &[1, 1, 2]);
    refused(
        "rnn.lstm",
        &inputs,
        &[y, h, c],
        &[flag(false), flag(true), flag(false)],
    );
    let ints = Tensor::new(DType::I64, &[1, 1, 1], &[1.0]);
    refused(
        "rnn.gru",
        &[&ints, &ints, &ints, &ints],
        &[],
        &[flag(false), flag(false)],
    );
}
