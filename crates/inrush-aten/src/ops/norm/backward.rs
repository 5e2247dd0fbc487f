//! Gradients of normalisations: with `h = (x - mean) / std` and `g` the gradient of `h`,
//! `dx = (g - mean(g) - h mean(g h)) / std` over what was normalised together; halves in `f32` throughout.
//!
//! For `y = h w + c` the parts are
//!
//! ```text
//! g  = dy w                        gradient of h
//! dw = sum(dy h)   dc = sum(dy)    over the dimensions that the parameters were broadcast to
//! ```
//!
//! Without centring (`rms`) the term `mean(g)` vanishes. With running statistics, which do not
//! depend on `x`, both means vanish. `h` is recomputed from the input and saved statistics: it was
//! never stored.

use crate::ops::B;
use crate::ops::decomposed as row;
use crate::ops::norm::forward::{channel_dims, dims_from, per_channel};
use crate::{Args, Builder, Row};
use inrush_base::{DType, Error, Result};
use inrush_expr::Expr;
use inrush_graph::{Arg, ValueId};

/// Which of the gradients a call asks for.
/// Fails unless it has `n` flags.
pub(in crate::ops) fn mask(args: &Args, n: usize) -> Result<Vec<bool>> {
    match args.arg("output_mask")? {
        Arg::Bools(m) if m.len() == n => Ok(m.clone()),
        _ => Err(args.unsupported("output_mask", "needs a flag for each gradient")),
    }
}

/// The gradients that were asked for. In the place of others stand zeros of the type that the graph declares, or any value
/// where it declares none; nothing reads them.
pub(in crate::ops) fn masked(b: B, outs: &[Option<ValueId>], any: ValueId) -> Result<Vec<ValueId>> {
    let mut all = Vec::with_capacity(outs.len());
    for (k, out) in outs.iter().enumerate() {
        all.push(match (out, b.declared(k).cloned()) {
            (Some(v), _) => *v,
            (None, Some(t)) => b.full(&t.sizes, 0.0, t.dtype)?,
            (None, None) => any,
        });
    }
    Ok(all)
}

/// `(g - mean(g) - h mean(g h)) rstd` over `dims`; without `centred` the mean of `g` stays.
/// `dims` are those that were normalised together; `rstd` may have the weight in it where that is
/// constant over them.
fn input_gradient(
    b: B,
    g: ValueId,
    h: ValueId,
    rstd: ValueId,
    dims: &[i64],
    centred: bool,
) -> Result<ValueId> {
    let gh = b.mul(g, h)?;
    let along = b.mean(gh, dims, true)?;
    let along = b.mul(h, along)?;
    let mut v = g;
    if centred {
        let mean = b.mean(g, dims, true)?;
        v = b.sub(v, mean)?;
    }
    let v = b.sub(v, along)?;
    b.mul(v, rstd)
}

/// `grad * weight`, where there is a weight.
fn weighted(b: B, grad: ValueId, weight: Option<ValueId>) -> Result<ValueId> {
    match weight {
        Some(w) => b.mul(grad, w),
        None => Ok(grad),
    }
}

/// The dtype of the gradient of a parameter: the parameter's own.
fn parameter_dtype(b: B, args: &Args, name: &str, input: DType) -> Result<DType> {
    match args.op.schema().position(name) {
        Some(_) => match args.opt_value(name)? {
            Some(v) => b.dtype(v),
            None => Ok(input),
        },
        None => Ok(input),
    }
}

/// Returns the first of the normalised dimensions, after a check that the sizes from there on are
/// `normalized_shape`.
fn first_normalized(args: &Args, sizes: &[Expr]) -> Result<usize> {
    let shape = args.ints("normalized_shape")?;
    match sizes.len().checked_sub(shape.len()) {
        Some(first) if !shape.is_empty() => {
            args.same_sizes(shape, &sizes[first..], "the normalized shape")?;
            Ok(first)
        }
        _ => Err(args.unsupported("normalized_shape", "does not fit the input")),
    }
}

/// Gradients of input, weight and bias.
fn layer_norm(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let (input, grad) = (args.value("input")?, args.value("grad_out")?);
    let t = b.tensor(input)?;
    let first = first_normalized(args, &t.sizes)?;
    let (inner, outer) = (dims_from(first, t.rank()), dims_from(0, first));
    let (x, g) = (b.widen(input)?, b.widen(grad)?);
    let mean = b.widen(args.value("mean")?)?;
    let rstd = b.widen(args.value("rstd")?)?;
    let centred = b.sub(x, mean)?;
    let h = b.mul(centred, rstd)?;
    let weight = args.opt_value("weight")?;
    let want = mask(args, 3)?;
    let mut outs = [None; 3];
    if want[0] {
        let w = weight.map(|w| b.widen(w)).transpose()?;
        let gh = weighted(b, g, w)?;
        let v = input_gradient(b, gh, h, rstd, &inner, true)?;
        outs[0] = Some(b.cast(v, t.dtype)?);
    }
    let shape = t.sizes[first..].to_vec();
    if want[1] {
        let v = b.mul(g, h)?;
        let dtype = parameter_dtype(b, args, "weight", t.dtype)?;
        outs[1] = Some(parameter(b, v, &outer, &shape, dtype)?);
    }
    if want[2] {
        let dtype = parameter_dtype(b, args, "bias", t.dtype)?;
        outs[2] = Some(parameter(b, g, &outer, &shape, dtype)?);
    }
    masked(b, &outs, g)
}

/// A parameter's gradient: the sum over all the places where it was used.
fn parameter(b: B, v: ValueId, over: &[i64], shape: &[Expr], dtype: DType) -> Result<ValueId> {
    let v = b.sum(v, over, false)?;
    let v = b.view(v, shape)?;
    b.cast(v, dtype)
}

/// Gradients of input and weight.
fn rms_norm(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let (input, grad) = (args.value("input")?, args.value("grad_out")?);
    let t = b.tensor(input)?;
    let first = first_normalized(args, &t.sizes)?;
    let (x, g) = (b.widen(input)?, b.widen(grad)?);
    let rstd = b.widen(args.value("rstd")?)?;
    let h = b.mul(x, rstd)?;
    let weight = args.opt_value("weight")?;
    let want = mask(args, 2)?;
    let mut outs = [None; 2];
    if want[0] {
        let w = weight.map(|w| b.widen(w)).transpose()?;
        let gh = weighted(b, g, w)?;
        let v = input_gradient(b, gh, h, rstd, &dims_from(first, t.rank()), false)?;
        outs[0] = Some(b.cast(v, t.dtype)?);
    }
    if want[1] {
        let v = b.mul(g, h)?;
        let dtype = parameter_dtype(b, args, "weight", t.dtype)?;
        let shape = t.sizes[first..].to_vec();
        outs[1] = Some(parameter(b, v, &dims_from(0, first), &shape, dtype)?);
    }
    masked(b, &outs, g)
}

/// Serves both overloads. That with a `reserve` calls the flag `update` and the saved statistic
/// `save_var`; the latter holds inverse deviations all the same.
fn batch_norm(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let (input, grad) = (args.value("input")?, args.value("grad_out")?);
    let t = b.tensor(input)?;
    let rank = t.rank();
    let reserved = args.op.schema().position("reserve").is_some();
    let training = args.bool(if reserved { "update" } else { "train" })?;
    let need = |v: Option<ValueId>| v.ok_or_else(|| Error::input("statistics are missing"));
    let (mean, rstd) = if training {
        let rstd = if reserved { "save_var" } else { "save_invstd" };
        let mean = need(args.opt_value("save_mean")?)?;
        (b.widen(mean)?, b.widen(need(args.opt_value(rstd)?)?)?)
    } else {
        let mean = need(args.opt_value("running_mean")?)?;
        let var = b.widen(need(args.opt_value("running_var")?)?)?;
        let var = b.by("aten.add.Tensor", var, args.float("eps")?)?;
        (b.widen(mean)?, b.unary("aten.rsqrt.default", var)?)
    };
    let channels = b.sizes(mean)?;
    let (mean, rstd) = (per_channel(b, mean, rank)?, per_channel(b, rstd, rank)?);
    let (x, g) = (b.widen(input)?, b.widen(grad)?);
    let centred = b.sub(x, mean)?;
    let h = b.mul(centred, rstd)?;
    let dims = channel_dims(rank);
    let want = mask(args, 3)?;
    let mut outs = [None; 3];
    if want[0] {
        let weight = match args.opt_value("weight")? {
            Some(w) => {
                let w = b.widen(w)?;
                Some(per_channel(b, w, rank)?)
            }
            None => None,
        };
        // The weight is the same for all that a channel's statistics are taken over.
        let factor = weighted(b, rstd, weight)?;
        let v = match training {
            true => input_gradient(b, g, h, factor, &dims, true)?,
            false => b.mul(g, factor)?,
        };
        outs[0] = Some(b.cast(v, t.dtype)?);
    }
    let dtype = parameter_dtype(b, args, "weight", t.dtype)?;
    if want[1] {
        let v = b.mul(g, h)?;
        outs[1] = Some(parameter(b, v, &dims, &channels, dtype)?);
    }
    if want[2] {
        outs[2] = Some(parameter(b, g, &dims, &channels, dtype)?);
    }
    masked(b, &outs, g)
}

/// The parameters' gradients need no division into groups: a channel's sum is over batch and
/// pixels.
fn group_norm(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let (input, grad) = (args.value("input")?, args.value("grad_out")?);
    let t = b.tensor(input)?;
    let (n, c, groups) = (args.int("N")?, args.int("C")?, args.int("group")?);
    let each = b
        .exprs
        .divide_exact(c, groups)
        .ok_or_else(|| Error::input("groups do not divide the channels"))?;
    let one = b.exprs.int(1);
    // Everything as [n, groups, channels of a group, pixels].
    let apart = [n, groups, each, args.int("HxW")?];
    let of_group = [n, groups, one, one];
    let of_channel = [one, groups, each, one];
    let (x, g) = (b.widen(input)?, b.widen(grad)?);
    let (x, g) = (b.view(x, &apart)?, b.view(g, &apart)?);
    let mean = b.widen(args.value("mean")?)?;
    let rstd = b.widen(args.value("rstd")?)?;
    let (mean, rstd) = (b.view(mean, &of_group)?, b.view(rstd, &of_group)?);
    let centred = b.sub(x, mean)?;
    let h = b.mul(centred, rstd)?;
    let want = mask(args, 3)?;
    let mut outs = [None; 3];
    if want[0] {
        let weight = match args.opt_value("weight")? {
            Some(w) => {
                let w = b.widen(w)?;
                Some(b.view(w, &of_channel)?)
            }
            None => None,
        };
        let gh = weighted(b, g, weight)?;
        let v = input_gradient(b, gh, h, rstd, &[2, 3], true)?;
        let v = b.view(v, &t.sizes)?;
        // Of a half with parameters in f32 PyTorch's graphs have the gradient in f32, where eager gives the input's dtype. A call
        // would fail: the same graphs have the saved statistics in half, which eager keeps in f32.
        let dtype = b.declared(0).map_or(t.dtype, |declared| declared.dtype);
        outs[0] = Some(b.cast(v, dtype)?);
    }
    let dtype = parameter_dtype(b, args, "weight", t.dtype)?;
    if want[1] {
        let v = b.mul(g, h)?;
        outs[1] = Some(parameter(b, v, &[0, 3], &[c], dtype)?);
    }
    if want[2] {
        outs[2] = Some(parameter(b, g, &[0, 3], &[c], dtype)?);
    }
    masked(b, &outs, g)
}

pub const ROWS: &[Row] = &[
    row(
        "aten.native_layer_norm_backward.default",
        "(Tensor grad_out, Tensor input, SymInt[] normalized_shape, Tensor mean, Tensor rstd, Tensor? weight, Tensor? bias, bool[3] output_mask) -> (Tensor, Tensor, Tensor)",
        layer_norm,
        "(f32[2,3,8], f32[2,3,8], [8], f32[2,3,1], f32[2,3,1]{0.5:2.0}, f32[8], f32[8], [true,true,true])",
    ),
    row(
        "aten._fused_rms_norm_backward.default",
        "(Tensor grad_out, Tensor input, int[] normalized_shape, Tensor rstd, Tensor? weight, bool[2] output_mask) -> (Tensor, Tensor)",
        rms_norm,
        "(f32[3,8], f32[3,8], [8], f32[3,1]{0.5:2.0}, f32[8], [true,true])",
    ),
    row(
        "aten.native_batch_norm_backward.default",
        "(Tensor grad_out, Tensor input, Tensor? weight, Tensor? running_mean, Tensor? running_var, Tensor? save_mean, Tensor? save_invstd, bool train, float eps, bool[3] output_mask) -> (Tensor, Tensor, Tensor)",
        batch_norm,
        "(f32[2,3,4], f32[2,3,4], f32[3], none, none, f32[3], f32[3]{0.5:2.0}, true, 1e-5, [true,true,true])",
    ),
    row(
        "aten.batch_norm_backward.default",
        "(Tensor grad_out, Tensor input, Tensor weight, Tensor? running_mean, Tensor? running_var, Tensor? save_mean, Tensor? save_var, bool update, float eps, bool[3] output_mask, Tensor reserve) -> (Tensor, Tensor, Tensor)",
        batch_norm,
        "(f32[2,3,4], f32[2,3,4], f32[3], f32[3], f32[3]{0.5:2.0}, f32[3], f32[3]{0.5:2.0}, true, 1e-5, [true,true,true], u8[0])",
    ),
    row(
        "aten.native_group_norm_backward.default",
        "(Tensor grad_out, Tensor input, Tensor mean, Tensor rstd, Tensor? weight, SymInt N, SymInt C, SymInt HxW, int group, bool[3] output_mask) -> (Tensor, Tensor, Tensor)",
        group_norm,
        "(f32[2,6,3,3], f32[2,6,3,3], f32[2,2], f32[2,2]{0.5:2.0}, f32[6], 2, 6, 9, 2, [true,true,true])",
    ),
];
