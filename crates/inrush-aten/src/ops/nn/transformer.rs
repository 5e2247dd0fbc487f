//! Whole blocks of transformers that PyTorch has as one operator, which its modules call in inference.
//!
//! ```text
//! norm_first:  x = src + attention(norm_1(src))      y = x + ffn(norm_2(x))
//! otherwise:   x = norm_1(src + attention(src))      y = norm_2(x + ffn(x))
//! ```

use crate::ops::decomposed as row;
use crate::ops::nn::attention::attend;
use crate::ops::reduce::softmax::exponents;
use crate::{Args, Builder, Row};
use inrush_base::{Error, Result};
use inrush_graph::{Arg, ValueId};

/// `x` times the weight that the call has under this name, and its bias.
/// For `layer = "ffn"` and `number = "_1"` the parameters are `ffn_weight_1` and `ffn_bias_1`.
fn linear(b: &mut Builder, args: &Args, x: ValueId, layer: &str, number: &str) -> Result<ValueId> {
    let of = |what: &str| args.value(&format!("{layer}_{what}{number}"));
    let (weight, bias) = (of("weight")?, of("bias")?);
    b.call(
        "aten.linear.default",
        &[x.into(), weight.into(), bias.into()],
    )
}

/// Layer normalisation number 1 or 2 of the layer, over the features.
fn norm(b: &mut Builder, args: &Args, x: ValueId, number: u32) -> Result<ValueId> {
    let (weight, bias) = (
        args.value(&format!("norm_weight_{number}"))?,
        args.value(&format!("norm_bias_{number}"))?,
    );
    let features = b.sizes(weight)?;
    let eps = Arg::Float(args.float("eps")?);
    b.call(
        "aten.layer_norm.default",
        &[x.into(), features.into(), weight.into(), bias.into(), eps],
    )
}

/// Which scores count, to be spread over `[batch, heads, queries, keys]`: a mask of any dtype forbids what it is not zero at.
/// `mask_type` is PyTorch's: 0 for queries by keys, 1 for padding of keys, 2 for the full shape.
/// The result is inverted: true keeps a score.
fn allowed(b: &mut Builder, args: &Args) -> Result<Option<ValueId>> {
    let Some(mask) = args.opt_value("mask")? else {
        return Ok(None);
    };
    let sizes = b.sizes(mask)?;
    let one = b.exprs.int(1);
    let mask = match (args.const_int("mask_type")?, sizes.as_slice()) {
        // Of queries and keys, or of everything.
        (0, [_, _]) | (2, [_, _, _, _]) => mask,
        // Padding of the keys.
        (1, &[batch, keys]) => b.view(mask, &[batch, one, one, keys])?,
        _ => return Err(args.unsupported("mask", "a kind of mask that its sizes fit")),
    };
    b.unary("aten.logical_not.default", mask).map(Some)
}

/// Queries, keys and values come from one product with `qkv_weight`; a permutation brings the three
/// and the heads to the front: `[batch, length, 3 * features] -> [3, batch, heads, length, each]`.
fn self_attention(b: &mut Builder, args: &Args, x: ValueId) -> Result<ValueId> {
    let t = b.tensor(x)?;
    let &[batch, length, features] = t.sizes.as_slice() else {
        return Err(Error::input("`src` must have three dimensions"));
    };
    let heads = args.int("num_heads")?;
    let each = (b.exprs.divide_exact(features, heads))
        .ok_or_else(|| Error::input("`num_heads` does not divide the features"))?;
    let size = (b.exprs.as_int(each))
        .ok_or_else(|| Error::unsupported("a symbolic number of features"))?;
    let qkv = linear(b, args, x, "qkv", "")?;
    let qkv = b.view(qkv, &[batch, length, b.exprs.int(3), heads, each])?;
    let order = b.ints(&[2, 0, 3, 1, 4]);
    let qkv = b.call("aten.permute.default", &[qkv.into(), order])?;
    let part = |b: &mut Builder, k: i64| {
        let (dim, k) = (b.int(0), b.int(k));
        let x = b.call("aten.select.int", &[qkv.into(), dim, k])?;
        b.widen(x)
    };
    let (q, k, v) = (part(b, 0)?, part(b, 1)?, part(b, 2)?);
    let (i, j) = (b.int(-2), b.int(-1));
    let turned = b.call("aten.transpose.int", &[k.into(), i.clone(), j])?;
    let scores = b.call("aten.matmul.default", &[q.into(), turned.into()])?;
    let mut scores = b.scale(scores, 1.0 / (size as f64).sqrt())?;
    if let Some(keep) = allowed(b, args)? {
        scores = b.select_or(keep, scores, f64::NEG_INFINITY)?;
    }
    // A query without keys gives NaN, as eager has it here.
    let out = attend(b, scores, v, t.dtype, exponents)?.output;
    let out = b.call("aten.transpose.int", &[out.into(), b.int(1), i])?;
    let out = b.call("aten.reshape.default", &[out.into(), t.sizes.into()])?;
    linear(b, args, out, "proj", "")
}

/// The layer of the header, with `relu` or `gelu` between the two products of `ffn`.
fn encoder_layer(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let src = args.value("src")?;
    if !b.dtype(src)?.is_float() {
        return Err(Error::input("`src` must be of a floating dtype"));
    }
    let first = args.bool("norm_first")?;
    let before = |b: &mut Builder, x: ValueId, k: u32| match first {
        true => norm(b, args, x, k),
        false => Ok(x),
    };
    let after = |b: &mut Builder, x: ValueId, k: u32| match first {
        true => Ok(x),
        false => norm(b, args, x, k),
    };
    let x = before(b, src, 1)?;
    let x = self_attention(b, args, x)?;
    let x = b.add(x, src)?;
    let x = after(b, x, 1)?;
    let y = before(b, x, 2)?;
    let y = linear(b, args, y, "ffn", "_1")?;
    let y = match args.bool("use_gelu")? {
        true => b.unary("aten.gelu.default", y)?,
        false => b.unary("aten.relu.default", y)?,
    };
    let y = linear(b, args, y, "ffn", "_2")?;
    let y = b.add(y, x)?;
    Ok(vec![after(b, y, 2)?])
}

pub const ROWS: &[Row] = &[row(
    "aten._transformer_encoder_layer_fwd.default",
    "(Tensor src, int embed_dim, int num_heads, Tensor qkv_weight, Tensor qkv_bias, Tensor proj_weight, Tensor proj_bias, bool use_gelu, bool norm_first, float eps, Tensor norm_weight_1, Tensor norm_bias_1, Tensor norm_weight_2, Tensor norm_bias_2, Tensor ffn_weight_1, Tensor ffn_bias_1, Tensor ffn_weight_2, Tensor ffn_bias_2, Tensor? mask=None, int? mask_type=None) -> Tensor",
    encoder_layer,
    "(f32[2,3,8], 8, 2, f32[24,8], f32[24], f32[8,8], f32[8], true, false, 1e-5, f32[8], f32[8], f32[8], f32[8], f32[12,8], f32[12], f32[8,12], f32[8], bool[3,3], 0)",
)];
