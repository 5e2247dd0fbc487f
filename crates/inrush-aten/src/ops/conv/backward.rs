//! Gradients of convolutions: of the input a convolution the other way round, of the weight a contraction over images and
//! pixels, of the bias a sum.
//!
//! For `y = conv(x, w)` with stride `s`, dilation `d` and padding `p`:
//!
//! ```text
//! y[n, o, t]    = sum over i, k of  x[n, i, t*s + k*d - p] * w[o, i, k]
//! grad x        = transposed convolution of grad y with the same w, s, d, p
//! grad w[o,i,k] = sum over n, t of  grad y[n, o, t] * x[n, i, t*s + k*d - p]
//! grad bias[o]  = sum over n, t of  grad y[n, o, t]
//! ```
//!
//! For a transposed convolution `x` and `grad y` change roles: the gradient of `x` is an
//! ordinary convolution, and the windows of the weight's gradient move over `grad y`. Hence
//! the operator below names its operands by size: `small` has the positions of windows,
//! `large` is what windows move over.

use crate::lower::product::{Product, Role, Target};
use crate::ops::conv::convolution::Conv;
use crate::ops::conv::depthwise::{Filters, filters};
use crate::ops::norm::backward::{mask, masked};
use crate::ops::norm::forward::channel_dims;
use crate::ops::padding::padded_by;
use crate::ops::window::per_dimension;
use crate::props::{Library, Prop};
use crate::{Args, Builder, Call, Lower, Meta, Route, Row, Tensor, meta};
use inrush_base::{Error, Result};
use inrush_expr::Expr;
use inrush_graph::{Arg, Type, ValueId};

/// Gradients that `output_mask` does not ask for are not computed.
fn convolution(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let grad = args.value("grad_output")?;
    let (x, w) = (args.value("input")?, args.value("weight")?);
    let (xt, wt) = (b.tensor(x)?, b.tensor(w)?);
    let spatial = wt
        .rank()
        .checked_sub(2)
        .filter(|s| *s > 0 && xt.rank() == s + 2 && b.rank(grad).is_ok_and(|r| r == s + 2))
        .ok_or_else(|| Error::unsupported("gradients of a convolution without a batch"))?;
    let transposed = args.bool("transposed")?;
    let list = |name: &str| per_dimension(name, args.ints(name)?, spatial);
    let (stride, padding) = (list("stride")?, list("padding")?);
    let (dilation, groups) = (list("dilation")?, args.int("groups")?);
    let forward = Conv::new(args, &xt.sizes, &wt.sizes)?;
    args.same_sizes(&b.sizes(grad)?, &forward.sizes(b.exprs), "the gradient")?;
    if !transposed
        && list("output_padding")?
            .iter()
            .any(|e| !b.exprs.is_int(*e, 0))
    {
        return Err(args.unsupported("output_padding", "only transposed convolutions have it"));
    }
    // The mask has an entry for input, weight and bias.
    let want = mask(args, 3)?;
    let mut outs = [None; 3];
    if want[0] {
        // Elements that the strides skipped at the end come back as output padding.
        let gt = b.sizes(grad)?;
        let e = b.exprs;
        // A transposed convolution without output padding gives `reach` elements; the forward
        // floor division dropped the rest.
        let one = e.int(1);
        let extra: Vec<Expr> = (0..spatial)
            .map(|d| match transposed {
                true => e.int(0),
                false => {
                    let steps = e.mul(e.sub(gt[2 + d], one), stride[d]);
                    let span = e.add(e.mul(e.sub(wt.sizes[2 + d], one), dilation[d]), one);
                    let reach = e.sub(e.add(steps, span), e.add(padding[d], padding[d]));
                    e.sub(xt.sizes[2 + d], reach)
                }
            })
            .collect();
        let mut back = b.call(
            "aten.convolution.default",
            &[
                grad.into(),
                w.into(),
                Arg::None,
                stride.clone().into(),
                padding.clone().into(),
                dilation.clone().into(),
                (!transposed).into(),
                extra.into(),
                groups.into(),
            ],
        )?;
        // Output padding of a transposed convolution may have room for a step more than there was input.
        for (d, size) in xt.sizes.iter().enumerate().skip(2) {
            if transposed && b.sizes(back)?[d] != *size {
                let zero = b.exprs.int(0);
                back = b.narrow(back, d, zero, *size)?;
            }
        }
        outs[0] = Some(back);
    }
    if want[1] {
        // Windows are numbered by the elements of `small` and move over `large`.
        let (small, large) = if transposed { (x, grad) } else { (grad, x) };
        let kernel = wt.sizes[2..].to_vec();
        outs[1] = Some(b.call(
            "inrush.convolution_weight_gradient.default",
            &[
                small.into(),
                large.into(),
                kernel.into(),
                stride.into(),
                padding.into(),
                dilation.into(),
                groups.into(),
            ],
        )?);
    }
    if want[2] {
        let g = b.widen(grad)?;
        let sum = b.sum(g, &channel_dims(xt.rank()), false)?;
        let dtype = b.declared(2).map_or(wt.dtype, |t| t.dtype);
        outs[2] = Some(b.cast(sum, dtype)?);
    }
    masked(b, &outs, grad)
}

/// Channels of each group on either side, and the sizes of the gradient.
struct Shape {
    small: Expr,
    large: Expr,
    sizes: Vec<Expr>,
}

/// Checks that gradient and input fit each other, and divides their channels into groups.
///
/// # Errors
///
/// If ranks differ, batches cannot be equal, or groups do not divide the channels.
fn shape(args: &Args, small: &[Expr], large: &[Expr]) -> Result<Shape> {
    let (kernel, groups) = (args.ints("kernel")?, args.int("groups")?);
    if small.len() != kernel.len() + 2 || large.len() != small.len() {
        return Err(Error::input("gradient and input differ in rank"));
    }
    args.same(small[0], large[0], "the number of images")?;
    let each = |channels: Expr| {
        args.exprs
            .divide_exact(channels, groups)
            .ok_or_else(|| Error::input("groups do not divide the channels"))
    };
    let inner = each(large[1])?;
    Ok(Shape {
        small: each(small[1])?,
        large: inner,
        sizes: [&[small[1], inner], kernel].concat(),
    })
}

/// `sum over images n and pixels o of small[n, s, o] * large[n, l, o * stride + k * dilation - padding]` for each pair of
/// channels `s`, `l` of a group and each tap `k`.
fn weight_gradient<'g>(lw: &mut Lower<'g>, call: &Call<'g>) -> Result<Vec<Tensor>> {
    let (small, large) = (lw.arg(call, "small")?, lw.arg(call, "large")?);
    let s = shape(call, &small.sizes, &large.sizes)?;
    let e = lw.exprs;
    let (kernel, groups) = (call.ints("kernel")?, call.int("groups")?);
    let (stride, dilation) = (call.ints("stride")?, call.ints("dilation")?);
    let padding = call.ints("padding")?;
    let one_channel = Filters {
        small: &small,
        large: &large,
        each_small: s.small,
        each_large: s.large,
        kernel,
        stride,
        dilation,
        padding,
    };
    // Depthwise filters: the product of a group would have no more rows than there are taps.
    if let Some(out) = filters(lw, &one_channel) {
        return Ok(vec![out]);
    }
    let large = padded_by(lw, &large, padding);
    let mut p = Product::new(e);
    let g = p.axis(Role::Batch, groups);
    let l = p.axis(Role::M, s.large);
    // Taps are rows: the result is `channels * taps` by `channels`, summed over images and
    // pixels, a product with a long sum and few results.
    let taps: Vec<Expr> = kernel.iter().map(|k| p.axis(Role::M, *k)).collect();
    let c = p.axis(Role::N, s.small);
    let image = p.axis(Role::K, small.sizes[0]);
    let pixels: Vec<Expr> = (small.sizes[2..].iter())
        .map(|o| p.axis(Role::K, *o))
        .collect();
    let channel = e.add(e.mul(g, s.small), c);
    let mut from = vec![image, e.add(e.mul(g, s.large), l)];
    for (d, (o, k)) in pixels.iter().zip(&taps).enumerate() {
        from.push(e.add(e.mul(*o, stride[d]), e.mul(*k, dilation[d])));
    }
    let with = [&[image, channel], pixels.as_slice()].concat();
    let target = Target {
        dtype: small.dtype,
        sizes: s.sizes,
        index: [&[channel, l], taps.as_slice()].concat(),
    };
    let out = p.lower(lw, (&large, from), (&small, with), target, |_, sum, _| {
        Ok(sum)
    })?;
    Ok(vec![out])
}

fn weight_meta(call: &Call) -> Result<Vec<Type>> {
    let (small, large) = (call.tensor("small")?, call.tensor("large")?);
    let s = shape(call, &small.sizes, &large.sizes)?;
    meta::one(call.exprs, small.dtype, s.sizes)
}

pub const ROWS: &[Row] = &[
    crate::ops::decomposed(
        "aten.convolution_backward.default",
        "(Tensor grad_output, Tensor input, Tensor weight, SymInt[]? bias_sizes, SymInt[] stride, SymInt[] padding, SymInt[] dilation, bool transposed, SymInt[] output_padding, SymInt groups, bool[3] output_mask) -> (Tensor, Tensor, Tensor)",
        convolution,
        "(f32[2,6,3,6], f32[2,4,5,8], f32[6,2,3,3], [6], [2,1], [1,0], [1,1], false, [0,0], 2, [true,true,true])",
    )
    .with(&[Prop::Library(Library::Convolution)]),
    // Only the gradient of a convolution calls this.
    Row {
        name: "inrush.convolution_weight_gradient.default",
        schema: "(Tensor small, Tensor large, SymInt[] kernel, SymInt[] stride, SymInt[] padding, SymInt[] dilation, SymInt groups) -> Tensor",
        meta: Meta::Fn(weight_meta),
        route: Route::Lower(weight_gradient),
        example: "(f32[2,6,3,6], f32[2,4,5,8], [3,3], [2,1], [1,0], [1,1], 2)", props: &[],
    },
];
