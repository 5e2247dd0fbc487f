//! Complex inputs, outputs and weights: the program sees pairs of real numbers, in the same memory.
//!
//! ```text
//! z: c64[4, 2] strides [2, 1]   <=>   z: f32[4, 2, 2] strides [4, 2, 1]
//! ```

use super::call::Given;
use super::tensor::{Argument, DeviceTensor, Output};
use super::weights::NewWeight;
use crate::program::Lowered;
use inrush_base::{DType, Error, Result};
use inrush_runtime::{Pairs, Tensor, Value};

/// Returns sizes and strides with a last dimension of the two parts.
fn split(sizes: &[i64], strides: &[i64]) -> Option<(Vec<i64>, Vec<i64>)> {
    let doubled = strides.iter().map(|s| s.checked_mul(2));
    let mut strides = doubled.collect::<Option<Vec<i64>>>()?;
    strides.push(1);
    let sizes = sizes.iter().copied().chain([2]).collect();
    Some((sizes, strides))
}

/// Returns a tensor of the host as pairs.
fn split_host(t: &Tensor) -> Option<Tensor> {
    let (sizes, strides) = split(&t.sizes, &t.strides)?;
    Some(Tensor {
        dtype: t.dtype.part()?,
        sizes,
        strides,
        offset: t.offset.checked_mul(2)?,
        storage: t.storage.clone(),
    })
}

/// Returns a tensor of the device as pairs.
pub(super) fn split_device(t: &DeviceTensor) -> Option<DeviceTensor> {
    let (sizes, strides) = split(&t.sizes, &t.strides)?;
    Some(DeviceTensor {
        dtype: t.dtype.part()?,
        sizes,
        strides,
        ..t.clone()
    })
}

/// Returns the complex inputs of a call as pairs, by position; `None` for others.
///
/// # Errors
/// An input error that names an input of another dtype.
pub(super) fn inputs(lowered: &Lowered, given: &[Given<'_>]) -> Result<Vec<Option<Argument>>> {
    (given.iter().enumerate())
        .map(|(at, given)| {
            let Some(wanted) = lowered.complex.input(at) else {
                return Ok(None);
            };
            let (dtype, pairs) = match given {
                Given::Value(Value::Tensor(t)) => {
                    let pairs = || split_host(t).map(|t| Argument::Value(Value::Tensor(t)));
                    (Some(t.dtype), pairs())
                }
                Given::Device(t) => (Some(t.dtype), split_device(t).map(Argument::Device)),
                Given::Value(_) => (None, None),
            };
            match pairs.filter(|_| dtype == Some(wanted.0)) {
                Some(pairs) => Ok(Some(pairs)),
                None => {
                    let name = lowered.inputs.get(at).map_or("", String::as_str);
                    let found = dtype.map_or("no tensor", DType::torch_name);
                    Err(Error::input(format!(
                        "input `{name}`: it is {found}, the model was compiled for {}",
                        wanted.0.torch_name()
                    )))
                }
            }
        })
        .collect()
}

/// Returns the caller's memory for a complex output as pairs.
///
/// # Errors
/// An input error for memory of another dtype.
pub(super) fn into(lowered: &Lowered, at: usize, t: &DeviceTensor) -> Result<DeviceTensor> {
    match lowered.complex.output(at) {
        None => Ok(t.clone()),
        Some(wanted) if t.dtype == wanted.0 => split_device(t)
            .ok_or_else(|| Error::input(format!("output {at}: its strides overflow"))),
        Some(wanted) => Err(Error::input(format!(
            "output {at}: it is {}, the memory given is {}",
            wanted.0.torch_name(),
            t.dtype.torch_name()
        ))),
    }
}

/// Returns the outputs of a call with those complex that are so for callers.
///
/// # Errors
/// An internal error for one that is no pairs.
pub(super) fn outputs(lowered: &Lowered, outputs: Vec<Output>) -> Result<Vec<Output>> {
    let join = |(at, output)| match (lowered.complex.output(at), output) {
        (Some(dtype), Output::Device(t)) => joined(t, dtype.0).map(Output::Device),
        (_, output) => Ok(output),
    };
    outputs.into_iter().enumerate().map(join).collect()
}

/// Returns pairs as complex numbers.
fn joined(mut t: DeviceTensor, dtype: DType) -> Result<DeviceTensor> {
    let part = match dtype {
        DType::C64 => DType::F32,
        _ => DType::F64,
    };
    let pairs = t.dtype == part
        && t.sizes.pop() == Some(2)
        && t.strides.pop() == Some(1)
        && (t.sizes.iter().zip(&t.strides)).all(|(n, s)| *n <= 1 || s % 2 == 0);
    if !pairs {
        return Err(Error::internal("a complex output is not in pairs"));
    }
    t.strides.iter_mut().for_each(|s| *s /= 2);
    t.dtype = dtype;
    Ok(t)
}

/// New weights as a program takes them.
pub(super) struct SplitWeights {
    host: Vec<Option<Pairs>>,
    device: Vec<Option<DeviceTensor>>,
}

impl SplitWeights {
    /// Splits the complex ones among new weights.
    pub(super) fn of(new: &[(&str, NewWeight<'_>)]) -> SplitWeights {
        let host = |w: &NewWeight<'_>| match w {
            NewWeight::Host(v) => Pairs::of(v),
            NewWeight::Device(_) | NewWeight::Shared(_) => None,
        };
        let device = |w: &NewWeight<'_>| match w {
            NewWeight::Host(_) => None,
            NewWeight::Device(t) | NewWeight::Shared(t) => split_device(t),
        };
        SplitWeights {
            host: new.iter().map(|(_, w)| host(w)).collect(),
            device: new.iter().map(|(_, w)| device(w)).collect(),
        }
    }

    /// Returns the weights, of which complex ones are pairs.
    pub(super) fn weights<'a>(
        &'a self,
        new: &[(&'a str, NewWeight<'a>)],
    ) -> Vec<(&'a str, NewWeight<'a>)> {
        (new.iter().zip(self.host.iter().zip(&self.device)))
            .map(|((name, w), split)| {
                let w = match (w, split) {
                    (NewWeight::Host(v), (Some(p), _)) => NewWeight::Host(p.view(v.bytes)),
                    (NewWeight::Device(_), (_, Some(t))) => NewWeight::Device(t),
                    (NewWeight::Shared(_), (_, Some(t))) => NewWeight::Shared(t),
                    (w, _) => *w,
                };
                (*name, w)
            })
            .collect()
    }
}
