//! Counts and repetitions of elements.

use super::{as_elements, signed};
use crate::check::{Params, refuse_dtype};
use crate::{DynamicCall, DynamicFunction, Input};
use inrush_base::{DType, Error, Result};

/// Counts integers.
pub(crate) const BINCOUNT: DynamicFunction = DynamicFunction {
    name: "bincount",
    doc: "in x (integers of one dimension, none negative), weights or none; out counts (i64), or sums of weights (f32 for f32, else \
          f64); params [minlength].",
    run: bincount,
};

/// Repeats positions.
pub(crate) const REPEAT: DynamicFunction = DynamicFunction {
    name: "repeat_interleave",
    doc: "in repeats (i32 or i64, of one dimension, none negative); out positions (of its dtype), each as often as it says; params [output_size or \
          none], which must be their number.",
    run: repeat,
};

/// Returns integers of any width.
fn integers(x: &Input<'_>) -> Result<Vec<i64>> {
    if x.sizes.len() > 1 {
        let message = format!("a tensor of sizes {:?}, not of one dimension", x.sizes);
        return Err(Error::input(message));
    }
    Ok(match x.dtype {
        DType::U8 => x.elements::<u8>()?.iter().map(|v| i64::from(*v)).collect(),
        DType::I8 => x.elements::<i8>()?.iter().map(|v| i64::from(*v)).collect(),
        DType::I16 => x.elements::<i16>()?.iter().map(|v| i64::from(*v)).collect(),
        DType::I32 => x.elements::<i32>()?.iter().map(|v| i64::from(*v)).collect(),
        DType::I64 => x.elements::<i64>()?.to_vec(),
        other => return Err(refuse_dtype(other)),
    })
}

/// Refuses negative numbers.
fn not_negative(all: &[i64], what: &str) -> Result<()> {
    match all.iter().find(|v| **v < 0) {
        Some(v) => Err(Error::input(format!("{what} {v} is negative"))),
        None => Ok(()),
    }
}

fn bincount(call: &mut DynamicCall<'_, '_>) -> Result<()> {
    let (x, weights) = call.one_or_two_inputs()?;
    let mut params = Params::new(call.params);
    let least = params.int("minlength")?;
    params.end()?;
    not_negative(&[least], "minlength")?;
    let values = integers(&x)?;
    not_negative(&values, "an element")?;
    let most = values.iter().copied().max();
    let beyond = || Error::input("an element is too large to count");
    let bins = match most {
        Some(m) => m.checked_add(1).ok_or_else(beyond)?.max(least),
        None => least,
    };
    let Some(w) = weights else {
        let out = (call.results).tensor(DType::I64, &[bins], &[1])?;
        let out: &mut [i64] = as_elements(out)?;
        out.fill(0);
        values.iter().for_each(|v| out[*v as usize] += 1);
        return Ok(());
    };
    w.check_sizes(x.sizes)?;
    if w.dtype == DType::F32 {
        let out = (call.results).tensor(DType::F32, &[bins], &[1])?;
        let out: &mut [f32] = as_elements(out)?;
        out.fill(0.0);
        let weights = w.elements::<f32>()?;
        (values.iter().zip(weights)).for_each(|(v, w)| out[*v as usize] += w);
        return Ok(());
    }
    let weights: Vec<f64> = match w.dtype {
        DType::F64 => w.elements::<f64>()?.to_vec(),
        _ => integers(&w)?.into_iter().map(|v| v as f64).collect(),
    };
    let out = (call.results).tensor(DType::F64, &[bins], &[1])?;
    let out: &mut [f64] = as_elements(out)?;
    out.fill(0.0);
    (values.iter().zip(weights)).for_each(|(v, w)| out[*v as usize] += w);
    Ok(())
}

fn repeat(call: &mut DynamicCall<'_, '_>) -> Result<()> {
    let x = call.one_input()?;
    if !matches!(x.dtype, DType::I32 | DType::I64) || x.sizes.len() != 1 {
        let message = "repeats are i32 or i64 of one dimension";
        return Err(Error::input(message));
    }
    let mut params = Params::new(call.params);
    let wanted = params.optional_int("output_size")?;
    params.end()?;
    let repeats = integers(&x)?;
    not_negative(&repeats, "a repeat")?;
    let total = (repeats.iter()).try_fold(0i64, |sum, r| sum.checked_add(*r));
    let total = total.ok_or_else(|| Error::input("too many repeats"))?;
    if let Some(n) = wanted.filter(|n| *n != total) {
        let message = format!("repeats add up to {total}, not to output_size {n}");
        return Err(Error::input(message));
    }
    let out = (call.results).tensor(x.dtype, &[total], &[1])?;
    if x.dtype == DType::I32 {
        return fill(as_elements::<i32>(out)?, &repeats, |at| {
            i32::try_from(at).map_err(|_| Error::input("too many positions for i32"))
        });
    }
    fill(as_elements::<i64>(out)?, &repeats, signed)
}

/// Writes each position `repeats[position]` times.
fn fill<T: Copy>(
    mut rest: &mut [T],
    repeats: &[i64],
    position: impl Fn(usize) -> Result<T>,
) -> Result<()> {
    for (at, r) in repeats.iter().enumerate() {
        let (these, others) = rest.split_at_mut(*r as usize);
        these.fill(position(at)?);
        rest = others;
    }
    Ok(())
}
