//! The cells: LSTM, GRU, Elman.

use super::layer::{Layer, Sizes, State, values, write};
use crate::check::{Params, refuse_dtype};
use crate::parallel::{Shared, grain};
use crate::{Call, Function, Input, Output};
use inrush_base::{DType, Error, Result};
use inrush_cpu::Pool;
use std::ops::{Add, Mul, Range, Sub};

/// A layer of long short-term memory.
pub(crate) const LSTM: Function = Function {
    name: "rnn.lstm",
    doc: "in x [T, B, I], h0 [1, B, P], c0 [1, B, H], w_ih [4H, I], w_hh [4H, P], b_ih [4H]?, b_hh [4H]?, w_hr [P, H]?; out y [T, B, P], h \
          [1, B, P], c [1, B, H]; params [has_bias, has_projection, reverse]. Without a projection P = H. Gates: input, forget, cell, \
          output. f64, f32, f16, bf16.",
    run: |call| dispatch(call, lstm::<f32>, lstm::<f64>),
};

/// A layer of gated recurrent units.
pub(crate) const GRU: Function = Function {
    name: "rnn.gru",
    doc: "in x [T, B, I], h0 [1, B, H], w_ih [3H, I], w_hh [3H, H], b_ih [3H]?, b_hh [3H]?; out y [T, B, H], h [1, B, H]; params \
          [has_bias, reverse]. Gates: reset, update, new. f64, f32, f16, bf16.",
    run: |call| dispatch(call, gru::<f32>, gru::<f64>),
};

/// A layer of plain recurrent units.
pub(crate) const ELMAN: Function = Function {
    name: "rnn.elman",
    doc: "in x [T, B, I], h0 [1, B, H], w_ih [H, I], w_hh [H, H], b_ih [H]?, b_hh [H]?; out y [T, B, H], h [1, B, H]; params [has_bias, \
          reverse, relu]. The hyperbolic tangent, or the positive part if relu. f64, f32, f16, bf16.",
    run: |call| dispatch(call, elman::<f32>, elman::<f64>),
};

type Run = fn(&mut Call<'_, '_>) -> Result<()>;

fn dispatch(call: &mut Call<'_, '_>, narrow: Run, wide: Run) -> Result<()> {
    call.check_tensors()?;
    let dtype = call.inputs.first().map(|i| i.dtype);
    let dtype = dtype.ok_or_else(|| Error::input("no inputs"))?;
    for input in call.inputs {
        input.check_dtype(dtype)?;
    }
    if let Some(other) = call.outputs.iter().find(|o| o.dtype != dtype) {
        return Err(Error::input(format!(
            "output of {}, not {dtype}",
            other.dtype
        )));
    }
    match dtype {
        DType::F32 | DType::F16 | DType::BF16 => narrow(call),
        DType::F64 => wide(call),
        other => Err(refuse_dtype(other)),
    }
}

/// Arithmetic of states.
trait Number: State + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Copy {}
impl<T: State + Add<Output = T> + Sub<Output = T> + Mul<Output = T> + Copy> Number for T {}

/// Returns true if no output has elements. Nothing bounds the steps then, nor the rows of weights.
fn is_empty(outputs: &[&mut Output<'_>]) -> bool {
    outputs.iter().all(|o| o.bytes.is_empty())
}

/// Refuses another number of inputs.
fn check_inputs(call: &Call<'_, '_>, want: usize) -> Result<()> {
    if call.inputs.len() == want {
        return Ok(());
    }
    Err(Error::input(format!(
        "{} inputs, not {want}",
        call.inputs.len()
    )))
}

/// Reads both biases; zeros if there are none.
fn biases<S: Number>(pair: Option<(&Input<'_>, &Input<'_>)>, rows: usize) -> Result<[Vec<S>; 2]> {
    let Some((ih, hh)) = pair else {
        return Ok([vec![S::of(0.0); rows], vec![S::of(0.0); rows]]);
    };
    let sizes = [i64::try_from(rows).unwrap_or(i64::MAX)];
    ih.check_sizes(&sizes)?;
    hh.check_sizes(&sizes)?;
    Ok([values(ih)?, values(hh)?])
}

/// Adds two lists.
fn sum<S: Number>(a: &[S], b: &[S]) -> Vec<S> {
    a.iter().zip(b).map(|(&a, &b)| a + b).collect()
}

/// Calls `f` with a batch element, the cell's elements from a first to a last one, and where these start in a `[batch, hidden]`
/// state.
fn each_row(
    pool: &Pool,
    sizes: &Sizes,
    cost: usize,
    f: impl Fn(usize, Range<usize>, usize) + Sync,
) -> Result<()> {
    let n = sizes.hidden;
    pool.parallel_for(sizes.batch * n, grain(cost), &|range| {
        let mut at = range.start;
        while at < range.end {
            let (b, j) = (at / n, at % n);
            let end = n.min(j + range.end - at);
            f(b, j..end, at);
            at += end - j;
        }
    })
}

fn lstm<S: Number>(call: &mut Call<'_, '_>) -> Result<()> {
    let mut params = Params::new(call.params);
    let bias = params.flag("has_bias")?;
    let projection = params.flag("has_projection")?;
    let reverse = params.flag("reverse")?;
    params.end()?;
    check_inputs(call, 5 + 2 * usize::from(bias) + usize::from(projection))?;
    let i = call.inputs;
    let sizes = Sizes::read(&i[0], &i[1], &i[3], &i[4], 4)?;
    let [steps, batch, _] = i[0].sizes else {
        return Err(Error::internal("an input without a batch"));
    };
    let hidden = i64::try_from(sizes.hidden).unwrap_or(i64::MAX);
    let state = i64::try_from(sizes.state).unwrap_or(i64::MAX);
    i[2].check_sizes(&[1, *batch, hidden])?;
    if projection && state == 0 {
        return Err(Error::input("a projection to no elements"));
    }
    let w_hr = if projection { i.last().copied() } else { None };
    match &w_hr {
        Some(w) => w.check_sizes(&[state, hidden])?,
        None => i[1].check_sizes(&[1, *batch, hidden])?,
    }
    let [y, h, c] = &mut *call.outputs else {
        return Err(Error::input(format!(
            "{} outputs, not 3",
            call.outputs.len()
        )));
    };
    y.check_sizes(&[*steps, *batch, state])?;
    h.check_sizes(&[1, *batch, state])?;
    c.check_sizes(&[1, *batch, hidden])?;
    if is_empty(&[&mut *y, &mut *h, &mut *c]) {
        return Ok(());
    }
    let [b_ih, b_hh] = biases::<S>(bias.then(|| (&i[5], &i[6])), sizes.rows())?;
    let bias = sum(&b_ih, &b_hh);
    let mut cells = values::<S>(&i[2])?;
    let layer = Layer {
        sizes,
        reverse,
        x: i[0],
        h0: i[1],
        w_ih: i[3],
        w_hh: i[4],
        w_hr,
    };
    let pool = call.pool;
    let (n, rows) = (sizes.hidden, sizes.rows());
    layer.run::<S>(pool, y, h, |x, u, _, next| {
        let (cells, next) = (Shared::new(&mut cells), Shared::new(next));
        each_row(pool, &sizes, 32, |b, js, at| {
            // SAFETY: elements of disjoint ranges are disjoint.
            let (cells, next) =
                unsafe { (cells.part(at..at + js.len()), next.part(at..at + js.len())) };
            let gate = |g: usize| {
                let part = g * n + js.start..g * n + js.end;
                let row = b * rows + part.start..b * rows + part.end;
                (&x[row.clone()], &u[row], &bias[part])
            };
            let [input, forget, cell, output] = [0, 1, 2, 3].map(gate);
            for (j, (c, next)) in cells.iter_mut().zip(next).enumerate() {
                let of = |g: (&[S], &[S], &[S])| g.0[j] + g.1[j] + g.2[j];
                let new = of(forget).sigmoid() * *c + of(input).sigmoid() * of(cell).tanh();
                *c = new;
                *next = of(output).sigmoid() * new.tanh();
            }
        })
    })?;
    write(c.dtype, &cells, c.bytes)
}

/// Reads a layer whose state is its cell's, and refuses outputs that do not fit.
fn layer<'a>(call: &Call<'a, '_>, bias: bool, reverse: bool, gates: usize) -> Result<Layer<'a>> {
    check_inputs(call, 4 + 2 * usize::from(bias))?;
    let i = call.inputs;
    let sizes = Sizes::read(&i[0], &i[1], &i[2], &i[3], gates)?;
    if sizes.hidden != sizes.state {
        return Err(Error::input(format!(
            "a state of {:?} for {} elements",
            i[1].sizes, sizes.hidden
        )));
    }
    let [y, h] = &*call.outputs else {
        return Err(Error::input(format!(
            "{} outputs, not 2",
            call.outputs.len()
        )));
    };
    y.check_sizes(&[i[0].sizes[0], i[0].sizes[1], i[1].sizes[2]])?;
    h.check_sizes(i[1].sizes)?;
    Ok(Layer {
        sizes,
        reverse,
        x: i[0],
        h0: i[1],
        w_ih: i[2],
        w_hh: i[3],
        w_hr: None,
    })
}

fn gru<S: Number>(call: &mut Call<'_, '_>) -> Result<()> {
    let mut params = Params::new(call.params);
    let bias = params.flag("has_bias")?;
    let reverse = params.flag("reverse")?;
    params.end()?;
    let layer = layer(call, bias, reverse, 3)?;
    let sizes = layer.sizes;
    let i = call.inputs;
    let [y, h] = &mut *call.outputs else {
        return Err(Error::internal("outputs that were counted"));
    };
    if is_empty(&[&mut *y, &mut *h]) {
        return Ok(());
    }
    let [b_ih, b_hh] = biases::<S>(bias.then(|| (&i[4], &i[5])), sizes.rows())?;
    let pool = call.pool;
    let (n, rows) = (sizes.hidden, sizes.rows());
    layer.run::<S>(pool, y, h, |x, u, state, next| {
        let next = Shared::new(next);
        each_row(pool, &sizes, 24, |b, js, at| {
            // SAFETY: elements of disjoint ranges are disjoint.
            let next = unsafe { next.part(at..at + js.len()) };
            let state = &state[at..at + js.len()];
            let gate = |g: usize| {
                let part = g * n + js.start..g * n + js.end;
                let row = b * rows + part.start..b * rows + part.end;
                (&x[row.clone()], &u[row], &b_ih[part.clone()], &b_hh[part])
            };
            let [reset, update, new] = [0, 1, 2].map(gate);
            for (j, (next, &h)) in next.iter_mut().zip(state).enumerate() {
                let input = |g: (&[S], &[S], &[S], &[S])| g.0[j] + g.2[j];
                let hidden = |g: (&[S], &[S], &[S], &[S])| g.1[j] + g.3[j];
                let r = (input(reset) + hidden(reset)).sigmoid();
                let z = (input(update) + hidden(update)).sigmoid();
                let n = (input(new) + r * hidden(new)).tanh();
                *next = n + z * (h - n);
            }
        })
    })
}

fn elman<S: Number>(call: &mut Call<'_, '_>) -> Result<()> {
    let mut params = Params::new(call.params);
    let bias = params.flag("has_bias")?;
    let reverse = params.flag("reverse")?;
    let relu = params.flag("relu")?;
    params.end()?;
    let layer = layer(call, bias, reverse, 1)?;
    let sizes = layer.sizes;
    let i = call.inputs;
    let [y, h] = &mut *call.outputs else {
        return Err(Error::internal("outputs that were counted"));
    };
    if is_empty(&[&mut *y, &mut *h]) {
        return Ok(());
    }
    let [b_ih, b_hh] = biases::<S>(bias.then(|| (&i[4], &i[5])), sizes.rows())?;
    let bias = sum(&b_ih, &b_hh);
    let pool = call.pool;
    let zero = S::of(0.0);
    layer.run::<S>(pool, y, h, |x, u, _, next| {
        let next = Shared::new(next);
        each_row(pool, &sizes, 8, |_, js, at| {
            // SAFETY: elements of disjoint ranges are disjoint.
            let next = unsafe { next.part(at..at + js.len()) };
            let (x, u, bias) = (&x[at..at + js.len()], &u[at..at + js.len()], &bias[js]);
            for (j, next) in next.iter_mut().enumerate() {
                let v = x[j] + u[j] + bias[j];
                // NaN stays.
                *next = match (relu, v < zero) {
                    (true, true) => zero,
                    (true, false) => v,
                    (false, _) => v.tanh(),
                };
            }
        })
    })
}
