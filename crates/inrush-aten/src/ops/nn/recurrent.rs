//! Recurrent layers and grouped products, by the runtime's library.
//!
//! `lstm`, `gru` and `rnn_*` are decomposed into calls for one layer and one direction each:
//!
//! ```text
//! lstm, 2 layers, both directions
//!   layer 0: y0 = forward(x), y1 = reverse(x)           cat(y0, y1) along the features
//!   layer 1: the same of that, after dropout in training
//! ```
//!
//! A layer's time steps are a loop in the library: unrolled into kernels they would take compile time in the length of the
//! sequence.

use crate::ops::{B, decomposed, lowered};
use crate::props::{Library, Prop};
use crate::{Args, Call, Lower, Row, Tensor, meta};
use inrush_base::{DType, Result, Scalar};
use inrush_graph::{Arg, Type, ValueId};

/// Returns the types of a layer's results: all outputs, then each state.
fn layer_types(call: &Call) -> Result<Vec<Type>> {
    let x = call.tensor("x")?;
    let float = matches!(x.dtype, DType::F32 | DType::F64 | DType::F16 | DType::BF16);
    let [steps, batch, _] = x.sizes.as_slice() else {
        return Err(call.unsupported("x", "not [time, batch, features]"));
    };
    if !float {
        return Err(call.unsupported("x", "not a float"));
    }
    let states = call.list("state")?;
    let mut out = Vec::new();
    for (k, v) in states.iter().enumerate() {
        let state = call.type_of(*v)?;
        let [_, b, features] = state.sizes.as_slice() else {
            return Err(call.unsupported("state", "not [1, batch, features]"));
        };
        call.same(*batch, *b, "the batch")?;
        if k == 0 {
            let sizes = vec![*steps, *batch, *features];
            out.push(meta::tensor(call.exprs, x.dtype, sizes));
        }
        out.push(meta::tensor(call.exprs, x.dtype, state.sizes.clone()));
    }
    Ok(out)
}

fn layer<'g>(lw: &mut Lower<'g>, call: &Call<'g>) -> Result<Vec<Tensor>> {
    let weights = call.list("weights")?;
    let (bias, reverse) = (call.bool("has_biases")?, call.bool("reverse")?);
    let projected = weights.len() > 2 + 2 * usize::from(bias);
    let (function, params) = match call.str("cell")? {
        "lstm" => ("rnn.lstm", vec![bias, projected, reverse]),
        "gru" => ("rnn.gru", vec![bias, reverse]),
        cell => ("rnn.elman", vec![bias, reverse, cell == "relu"]),
    };
    let params = params.into_iter().map(Scalar::Bool).collect();
    let mut inputs = vec![lw.arg(call, "x")?];
    for v in call.list("state")?.into_iter().chain(weights) {
        inputs.push(lw.tensor(v)?);
    }
    Ok(lw.library(function, params, &inputs, &layer_types(call)?))
}

/// All layers and directions of a recurrent operator. `states` are `[layers * directions, batch, features]`.
fn stack(b: B, args: &Args, cell: &str, states: &[ValueId]) -> Result<Vec<ValueId>> {
    let weights = args.list("params")?;
    let layers = args.const_int("num_layers")?.max(0) as usize;
    let directions = 1 + usize::from(args.bool("bidirectional")?);
    let each = weights.len() / (layers * directions).max(1);
    if each < 2 || each * layers * directions != weights.len() {
        return Err(args.unsupported("params", "not as many for each layer"));
    }
    let dropout = args.float("dropout")?;
    let batch_first = args.bool("batch_first")?;
    let mut x = args.value("input")?;
    // Without a batch there is one sequence.
    let single = b.rank(x)? == 2;
    let mut given = states.to_vec();
    if single {
        x = b.call("aten.unsqueeze.default", &[x.into(), b.int(1)])?;
        for s in &mut given {
            *s = b.call("aten.unsqueeze.default", &[(*s).into(), b.int(1)])?;
        }
    } else if batch_first {
        x = b.call("aten.transpose.int", &[x.into(), b.int(0), b.int(1)])?;
    }
    let mut last: Vec<Vec<ValueId>> = vec![Vec::new(); given.len()];
    for layer in 0..layers {
        let mut outputs = Vec::new();
        for direction in 0..directions {
            let at = layer * directions + direction;
            let mut state = Vec::new();
            for s in &given {
                let (one, from) = (b.exprs.int(1), b.exprs.int(at as i64));
                state.push(Some(b.narrow(*s, 0, from, one)?));
            }
            let own = weights[at * each..][..each].iter().map(|w| Some(*w));
            let call = [
                Arg::Str(cell.into()),
                x.into(),
                Arg::Values(state),
                Arg::Values(own.collect()),
                args.bool("has_biases")?.into(),
                (direction == 1).into(),
            ];
            let name = match cell {
                "lstm" => "inrush.lstm_layer.default",
                _ => "inrush.recurrent_layer.default",
            };
            let out = b.call_multi(name, &call)?;
            outputs.push(out[0]);
            for (all, v) in last.iter_mut().zip(&out[1..]) {
                all.push(*v);
            }
        }
        x = joined(b, outputs, 2)?;
        if args.bool("train")? && dropout > 0.0 && layer + 1 < layers {
            let given = [x.into(), Arg::Float(dropout), true.into()];
            x = b.call("aten.dropout.default", &given)?;
        }
    }
    let mut out = vec![x];
    for all in last {
        out.push(joined(b, all, 0)?);
    }
    if single {
        for v in &mut out {
            *v = b.call("aten.squeeze.dim", &[(*v).into(), b.int(1)])?;
        }
    } else if batch_first {
        out[0] = b.call("aten.transpose.int", &[out[0].into(), b.int(0), b.int(1)])?;
    }
    Ok(out)
}

fn joined(b: B, parts: Vec<ValueId>, dim: i64) -> Result<ValueId> {
    if let [one] = parts.as_slice() {
        return Ok(*one);
    }
    let parts = Arg::Values(parts.into_iter().map(Some).collect());
    b.call("aten.cat.default", &[parts, b.int(dim)])
}

fn lstm(b: B, args: &Args) -> Result<Vec<ValueId>> {
    let states = args.list("hx")?;
    if states.len() != 2 {
        return Err(args.unsupported("hx", "not two states"));
    }
    stack(b, args, "lstm", &states)
}

fn gru(b: B, args: &Args) -> Result<Vec<ValueId>> {
    stack(b, args, "gru", &[args.value("hx")?])
}

fn rnn_tanh(b: B, args: &Args) -> Result<Vec<ValueId>> {
    stack(b, args, "tanh", &[args.value("hx")?])
}

fn rnn_relu(b: B, args: &Args) -> Result<Vec<ValueId>> {
    stack(b, args, "relu", &[args.value("hx")?])
}

/// Returns the type of grouped products: which operand has the groups, or both, or none.
fn grouped_types(call: &Call) -> Result<Vec<Type>> {
    let (x, w) = (call.tensor("self")?, call.tensor("mat2")?);
    let dtype = call.dtype("out_dtype")?.unwrap_or(x.dtype);
    let taken = matches!(x.dtype, DType::F32 | DType::F16 | DType::BF16);
    if !taken || w.dtype != x.dtype || dtype != x.dtype {
        return Err(call.unsupported("self", "operands and results of several dtypes"));
    }
    if call.given("bias") {
        return Err(call.unsupported("bias", "a bias"));
    }
    let groups = match call.opt_tensor("offs")? {
        Some(offs) if offs.rank() == 1 => Some(offs.sizes[0]),
        Some(_) => return Err(call.unsupported("offs", "not a vector")),
        None => None,
    };
    let sizes = match (x.sizes.as_slice(), w.sizes.as_slice(), groups) {
        ([m, k], [g, l, n], Some(groups)) => {
            call.same(*k, *l, "the inner size")?;
            call.same(*g, groups, "the number of groups")?;
            vec![*m, *n]
        }
        ([g, m, k], [l, n], Some(groups)) => {
            call.same(*k, *l, "the inner size")?;
            call.same(*g, groups, "the number of groups")?;
            vec![*m, *n]
        }
        ([m, k], [l, n], Some(groups)) => {
            call.same(*k, *l, "the inner size")?;
            vec![groups, *m, *n]
        }
        ([g, m, k], [h, l, n], None) => {
            call.same(*k, *l, "the inner size")?;
            call.same(*g, *h, "the number of groups")?;
            vec![*g, *m, *n]
        }
        _ => return Err(call.unsupported("self", "operands of these ranks")),
    };
    meta::one(call.exprs, dtype, sizes)
}

fn grouped<'g>(lw: &mut Lower<'g>, call: &Call<'g>) -> Result<Vec<Tensor>> {
    let mut inputs = vec![lw.arg(call, "self")?, lw.arg(call, "mat2")?];
    inputs.extend(lw.opt_arg(call, "offs")?);
    Ok(lw.library("grouped_mm", Vec::new(), &inputs, &grouped_types(call)?))
}

const LSTM: &str = "(Tensor input, Tensor[] hx, Tensor[] params, bool has_biases, int num_layers, float dropout, bool train, bool bidirectional, bool batch_first) -> (Tensor, Tensor, Tensor)";
const OTHERS: &str = "(Tensor input, Tensor hx, Tensor[] params, bool has_biases, int num_layers, float dropout, bool train, bool bidirectional, bool batch_first) -> (Tensor, Tensor)";

pub const ROWS: &[Row] = &[
    lowered(
        "inrush.lstm_layer.default",
        "(str cell, Tensor x, Tensor[] state, Tensor[] weights, bool has_biases, bool reverse) -> (Tensor, Tensor, Tensor)",
        layer_types,
        layer,
        "(\"lstm\", f32[3,2,4], [f32[1,2,5], f32[1,2,5]], [f32[20,4], f32[20,5]], false, true)",
    )
    .with(&[Prop::LibraryFunction]),
    lowered(
        "inrush.recurrent_layer.default",
        "(str cell, Tensor x, Tensor[] state, Tensor[] weights, bool has_biases, bool reverse) -> (Tensor, Tensor)",
        layer_types,
        layer,
        "(\"gru\", f32[3,2,4], [f32[1,2,5]], [f32[15,4], f32[15,5], f32[15], f32[15]], true, false)",
    )
    .with(&[Prop::LibraryFunction]),
    decomposed(
        "aten.lstm.input",
        LSTM,
        lstm,
        "(f32[2,3,4], [f32[2,2,5], f32[2,2,5]], [f32[20,4], f32[20,5], f32[20,4], f32[20,5]], false, 1, 0.0, false, true, true)",
    )
    .with(&[Prop::LibraryFunction]),
    decomposed(
        "aten.gru.input",
        OTHERS,
        gru,
        "(f32[3,2,4], f32[1,2,5], [f32[15,4], f32[15,5], f32[15], f32[15]], true, 1, 0.0, false, false, false)",
    )
    .with(&[Prop::LibraryFunction]),
    decomposed(
        "aten.rnn_tanh.input",
        OTHERS,
        rnn_tanh,
        "(f32[3,2,4], f32[1,2,5], [f32[5,4], f32[5,5], f32[5], f32[5]], true, 1, 0.0, false, false, false)",
    )
    .with(&[Prop::LibraryFunction]),
    decomposed(
        "aten.rnn_relu.input",
        OTHERS,
        rnn_relu,
        "(f32[3,2,4], f32[1,2,5], [f32[5,4], f32[5,5], f32[5], f32[5]], true, 1, 0.0, false, false, false)",
    )
    .with(&[Prop::LibraryFunction]),
    lowered(
        "aten._grouped_mm.default",
        "(Tensor self, Tensor mat2, Tensor? offs=None, Tensor? bias=None, ScalarType? out_dtype=None) -> Tensor",
        grouped_types,
        grouped,
        "(bf16[2,16,8], bf16[2,8,16])",
    )
    .with(&[
        Prop::Library(Library::ProductWithBias),
        Prop::LibraryFunction,
    ]),
];
