//! Normalisations.
//!
//! Each element is computed from all elements of its row: mean and variance are formed again for
//! every one. That is quadratic in the length of a row, and independent of how lowerings share
//! statistics.
//!
//! All use the biased variance (`correction` 0). Weight and bias may be missing.

use super::call::{Call, Floats};
use super::reduce::{mean, variance};
use super::{Eval, points, position};
use crate::tensor::{Tensor, numel};
use inrush_base::{Error, Result, Scalar};
use std::ops::Range;

pub(super) const TABLE: &[(&str, Eval)] = &[
    ("layer_norm native_layer_norm", layer_norm),
    ("rms_norm", |c| {
        let (x, weight) = (c.floats(0)?, c.opt_floats(2)?);
        let n = c.ints(1)?.len();
        let dtype = c.tensor(0)?.dtype;
        // The default of eps is that of the dtype that the mean is computed in.
        // Halves are computed in `f32`, so their default is that of `f32`.
        let eps = match dtype.size() {
            8 => f64::EPSILON,
            _ => f32::EPSILON as f64,
        };
        let eps = c.float(3, eps)?;
        let lead = x.sizes.len().saturating_sub(n);
        fits(&x, lead..lead + n, &[weight.as_ref()])?;
        c.floats_of(&x.sizes, |at| {
            let row = row(&x, lead, at)?;
            let squares: Vec<f64> = row.iter().map(|v| v * v).collect();
            let scale = parameter(&weight, &at[lead..], 1.0)?;
            Ok(x.at(at)? / (mean(&squares) + eps).sqrt() * scale)
        })
    }),
    ("group_norm", |c| {
        let (x, groups) = (c.floats(0)?, c.int(1, 1)?);
        let (weight, bias) = (c.opt_floats(2)?, c.opt_floats(3)?);
        let eps = c.float(4, 1e-5)?;
        fits(&x, 1..2, &[weight.as_ref(), bias.as_ref()])?;
        if groups < 1 || x.sizes[1] % groups != 0 {
            return Err(Error::input(format!(
                "{} channels in {groups} groups",
                x.sizes[1]
            )));
        }
        let per = x.sizes[1] / groups;
        c.floats_of(&x.sizes, |at| {
            let first = at[1] / per * per;
            let mut extents = x.sizes[1..].to_vec();
            extents[0] = per;
            // A group is some channels and all positions of an image.
            let group = points(&extents)
                .map(|k| {
                    let mut from = vec![at[0], first + k[0]];
                    from.extend(&k[1..]);
                    x.at(&from)
                })
                .collect::<Result<Vec<f64>>>()?;
            let w = parameter(&weight, &at[1..2], 1.0)?;
            let b = parameter(&bias, &at[1..2], 0.0)?;
            let unit = (x.at(at)? - mean(&group)) / (variance(&group, 0.0) + eps).sqrt();
            Ok(unit * w + b)
        })
    }),
    ("batch_norm", |c| batch_norm(c, 7)),
    ("_native_batch_norm_legit_no_training", |c| {
        let mut out = batch_norm(c, 6)?;
        // Saved statistics are empty without training.
        for k in 1..c.outs.len() {
            out.push(c.build(k, &[0], |_| Ok(Scalar::Int(0)))?);
        }
        Ok(out)
    }),
];

/// Checks that the input has the dimensions `dims`, and that `others` have their sizes.
fn fits(x: &Floats, dims: Range<usize>, others: &[Option<&Floats>]) -> Result<()> {
    let sizes = x.sizes.get(dims);
    let fit = |o: &&Floats| sizes.is_some_and(|s| o.sizes == s);
    if sizes.is_none() || !others.iter().flatten().all(fit) {
        return Err(Error::input("sizes of a normalisation that do not fit"));
    }
    Ok(())
}

/// Returns an element of a weight or bias, which may be missing.
fn parameter(p: &Option<Floats>, at: &[i64], missing: f64) -> Result<f64> {
    p.as_ref().map_or(Ok(missing), |p| p.at(at))
}

/// Returns the elements that share the leading coordinates of `at`.
fn row<'a>(x: &'a Floats, lead: usize, at: &[i64]) -> Result<&'a [f64]> {
    let inner = numel(&x.sizes[lead..])?;
    let start = position(&x.sizes[..lead], &at[..lead])? * inner;
    Ok(&x.data[start..start + inner])
}

/// Normalises over the last dimensions, as many as argument 1 has. `native_layer_norm` gives mean
/// and reciprocal deviation as well.
fn layer_norm(c: &Call) -> Result<Vec<Tensor>> {
    let (x, weight, bias) = (c.floats(0)?, c.opt_floats(2)?, c.opt_floats(3)?);
    let n = c.ints(1)?.len();
    let lead = x.sizes.len().saturating_sub(n);
    fits(&x, lead..lead + n, &[weight.as_ref(), bias.as_ref()])?;
    let eps = c.float(4, 1e-5)?;
    let mut out = c.floats_of(&x.sizes, |at| {
        let row = row(&x, lead, at)?;
        let unit = (x.at(at)? - mean(row)) / (variance(row, 0.0) + eps).sqrt();
        let w = parameter(&weight, &at[lead..], 1.0)?;
        let b = parameter(&bias, &at[lead..], 0.0)?;
        Ok(unit * w + b)
    })?;
    if c.outs.len() > 1 {
        // The statistics keep the normalised dimensions.
        let sizes = [&x.sizes[..lead], &vec![1; n]].concat();
        out.push(c.build(1, &sizes, |at| Ok(Scalar::Float(mean(row(&x, lead, at)?))))?);
        out.push(c.build(2, &sizes, |at| {
            let v = variance(row(&x, lead, at)?, 0.0);
            Ok(Scalar::Float(1.0 / (v + eps).sqrt()))
        })?);
    }
    Ok(out)
}

/// Normalises with running statistics (arguments 3 and 4); `eps` is argument `k`.
fn batch_norm(c: &Call, k: usize) -> Result<Vec<Tensor>> {
    let (x, weight, bias) = (c.floats(0)?, c.opt_floats(1)?, c.opt_floats(2)?);
    let (mean, var) = (c.floats(3)?, c.floats(4)?);
    let eps = c.float(k, 1e-5)?;
    let others = [weight.as_ref(), bias.as_ref(), Some(&mean), Some(&var)];
    fits(&x, 1..2, &others)?;
    c.floats_of(&x.sizes, |at| {
        let channel = &at[1..2];
        let unit = (x.at(at)? - mean.at(channel)?) / (var.at(channel)? + eps).sqrt();
        let w = parameter(&weight, channel, 1.0)?;
        let b = parameter(&bias, channel, 0.0)?;
        Ok(unit * w + b)
    })
}
