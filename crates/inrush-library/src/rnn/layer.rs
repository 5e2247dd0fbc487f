//! The loop over steps that all recurrent layers share.

use super::activation::Activation;
use crate::check::{Element, count, size};
use crate::parallel::scratch;
use crate::product::{Product, Shape, Strides};
use crate::{Input, Output};
use bytemuck::cast_slice;
use half::{bf16, f16};
use inrush_base::{DType, Error, Result};
use inrush_cpu::Pool;

/// Elements of the products of inputs that are computed together: few enough to stay in a cache until their steps.
const AHEAD: usize = 1 << 18;

/// Types that states are computed in.
pub(super) trait State: Element + Activation + Default + PartialOrd + Into<f64> {
    fn of(value: f64) -> Self;
}

impl State for f32 {
    fn of(value: f64) -> f32 {
        value as f32
    }
}

impl State for f64 {
    fn of(value: f64) -> f64 {
        value
    }
}

/// Sizes of a layer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub steps: usize,
    pub batch: usize,
    /// Size of an input.
    pub input: usize,
    /// Size of a cell.
    pub hidden: usize,
    /// Size of the state that steps hand on: of the projection, if there is one.
    pub state: usize,
    /// Rows of weights for each element of a cell.
    pub gates: usize,
}

impl Sizes {
    /// Reads the sizes of a layer and refuses tensors that do not fit: input, state, weights.
    pub(super) fn read(
        x: &Input<'_>,
        h0: &Input<'_>,
        w_ih: &Input<'_>,
        w_hh: &Input<'_>,
        gates: usize,
    ) -> Result<Sizes> {
        let (&[steps, batch, input], &[_, _, state]) = (x.sizes, h0.sizes) else {
            return Err(Error::input(format!(
                "an input of {:?}, a state of {:?}",
                x.sizes, h0.sizes
            )));
        };
        h0.check_sizes(&[1, batch, state])?;
        let &[rows, _] = w_ih.sizes else {
            return Err(Error::input(format!("weights of {:?}", w_ih.sizes)));
        };
        w_ih.check_sizes(&[rows, input])?;
        w_hh.check_sizes(&[rows, state])?;
        let rows = size(w_ih.sizes, 0);
        if !rows.is_multiple_of(gates) {
            return Err(Error::input(format!(
                "{rows} rows of weights for {gates} gates"
            )));
        }
        let of = |n: i64| size(&[n], 0);
        let out = Sizes {
            steps: of(steps),
            batch: of(batch),
            input: of(input),
            hidden: rows / gates,
            state: of(state),
            gates,
        };
        // Products of sizes below are those of tensors that could be.
        count(&[batch.max(1), i64::try_from(rows.max(1)).unwrap_or(i64::MAX)])?;
        Ok(out)
    }

    /// Returns the rows of weights.
    pub(super) fn rows(&self) -> usize {
        self.gates * self.hidden
    }
}

/// Returns a tensor's elements in the type of states.
pub(super) fn values<S: State>(input: &Input<'_>) -> Result<Vec<S>> {
    let mut out = scratch(input.bytes.len() / input.dtype.size())?;
    read(input.dtype, input.bytes, &mut out)?;
    Ok(out)
}

/// Converts elements to the type of states.
fn read<S: State>(dtype: DType, bytes: &[u8], out: &mut [S]) -> Result<()> {
    if bytes.is_empty() {
        return Ok(());
    }
    match dtype {
        DType::F32 => each(cast_slice::<_, f32>(bytes), out, |v| S::of(f64::from(v))),
        DType::F64 => each(cast_slice::<_, f64>(bytes), out, S::of),
        DType::F16 => each(cast_slice::<_, f16>(bytes), out, |v| S::of(v.to_f64())),
        DType::BF16 => each(cast_slice::<_, bf16>(bytes), out, |v| S::of(v.to_f64())),
        other => return Err(crate::check::refuse_dtype(other)),
    }
    Ok(())
}

/// Converts states to elements of an output.
pub(super) fn write<S: State>(dtype: DType, from: &[S], bytes: &mut [u8]) -> Result<()> {
    if bytes.is_empty() {
        return Ok(());
    }
    match dtype {
        DType::F32 => each(from, bytemuck::cast_slice_mut(bytes), |v| v.into() as f32),
        DType::F64 => each(from, bytemuck::cast_slice_mut(bytes), Into::into),
        DType::F16 => each(from, bytemuck::cast_slice_mut(bytes), |v| {
            f16::from_f64(v.into())
        }),
        DType::BF16 => each(from, bytemuck::cast_slice_mut(bytes), |v| {
            bf16::from_f64(v.into())
        }),
        other => return Err(crate::check::refuse_dtype(other)),
    }
    Ok(())
}

fn each<A: Copy, B>(from: &[A], to: &mut [B], f: impl Fn(A) -> B) {
    for (to, &from) in to.iter_mut().zip(from) {
        *to = f(from);
    }
}

/// The tensors of a layer that its loop needs.
pub(super) struct Layer<'a> {
    pub sizes: Sizes,
    pub reverse: bool,
    pub x: Input<'a>,
    pub h0: Input<'a>,
    pub w_ih: Input<'a>,
    pub w_hh: Input<'a>,
    /// Weights of the projection.
    pub w_hr: Option<Input<'a>>,
}

impl Layer<'_> {
    /// Plans `rows` products with weights that are stored by rows of results.
    fn product<S: State>(
        &self,
        pool: &Pool,
        rows: usize,
        k: usize,
        n: usize,
        weights: &[S],
    ) -> Result<Product> {
        let shape = Shape {
            m: rows,
            k,
            n,
            dtype: S::DTYPE,
            acc: S::DTYPE,
            out: S::DTYPE,
            a: Strides(k, 1),
            b: Strides(1, k),
            c: n,
        };
        Product::with_weights(pool, shape, cast_slice(weights))
    }

    /// Runs all steps. `cell` is given the products of a step's input and of the state, both `[batch, gates * hidden]`, and the
    /// state before and after, `[batch, hidden]`; without a projection the state after is the next step's state before.
    pub(super) fn run<S: State>(
        &self,
        pool: &Pool,
        y: &mut Output<'_>,
        h: &mut Output<'_>,
        mut cell: impl FnMut(&[S], &[S], &[S], &mut [S]) -> Result<()>,
    ) -> Result<()> {
        let s = self.sizes;
        let (rows, width) = (s.rows(), s.batch * s.state);
        let w_ih = values::<S>(&self.w_ih)?;
        let w_hh = values::<S>(&self.w_hh)?;
        let w_hr = self.w_hr.as_ref().map(values::<S>).transpose()?;
        let mut state = values::<S>(&self.h0)?;
        let mut next = scratch::<S>(s.batch * s.hidden)?;
        let mut hidden = scratch::<S>(s.batch * rows)?;
        // The same number of steps each time, but for a few at the end.
        let most = (AHEAD / (s.batch * rows).max(1)).max(1);
        let together = s.steps.div_ceil(s.steps.div_ceil(most).max(1)).max(1);
        let mut ahead = scratch::<S>(together * s.batch * rows)?;
        let mut inputs = scratch::<S>(together * s.batch * s.input)?;
        let of_inputs = self.product(pool, together * s.batch, s.input, rows, &w_ih)?;
        let of_state = self.product(pool, s.batch, s.state, rows, &w_hh)?;
        let project = match &w_hr {
            Some(w) => Some(self.product(pool, s.batch, s.hidden, s.state, w)?),
            None => None,
        };
        let size = self.x.dtype.size();
        let (step_in, step_out) = (s.batch * s.input * size, width * size);
        let mut done = 0;
        while done < s.steps {
            let many = together.min(s.steps - done);
            // The steps in the order of time; in reverse from the last one.
            let first = if self.reverse {
                s.steps - done - many
            } else {
                done
            };
            let from = &self.x.bytes[first * step_in..(first + many) * step_in];
            read(self.x.dtype, from, &mut inputs[..many * s.batch * s.input])?;
            // Rows of steps that are past the last are computed too, and not read.
            of_inputs.run(
                pool,
                cast_slice(&inputs),
                cast_slice(&w_ih),
                bytemuck::cast_slice_mut(&mut ahead),
            )?;
            for i in 0..many {
                let i = if self.reverse { many - 1 - i } else { i };
                of_state.run(
                    pool,
                    cast_slice(&state),
                    cast_slice(&w_hh),
                    bytemuck::cast_slice_mut(&mut hidden),
                )?;
                let step = &ahead[i * s.batch * rows..(i + 1) * s.batch * rows];
                cell(step, &hidden, &state, &mut next)?;
                match (&project, &w_hr) {
                    (Some(project), Some(w)) => project.run(
                        pool,
                        cast_slice(&next),
                        cast_slice(w),
                        bytemuck::cast_slice_mut(&mut state),
                    )?,
                    _ => std::mem::swap(&mut state, &mut next),
                }
                let t = first + i;
                write(
                    y.dtype,
                    &state,
                    &mut y.bytes[t * step_out..(t + 1) * step_out],
                )?;
            }
            done += many;
        }
        write(h.dtype, &state, h.bytes)
    }
}
