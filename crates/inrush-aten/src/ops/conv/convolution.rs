//! Convolutions: any number of spatial dimensions, groups, dilation, transposed.
//!
//! A convolution is a contraction with several `m` axes (image and pixels) and several `k`
//! axes (channel and taps): no column matrix is built, since coordinates are affine in output
//! position and tap.
//!
//! ```text
//! out[n, g*O + o, y, x] = bias + sum over c, r, s of
//!     in[n, g*C + c, y*stride + r*dilation, x*stride + s*dilation] * w[g*O + o, c, r, s]
//! ```
//!
//! `in` is a copy with zeros around it, unless nothing is padded: contractions have no masks.
//! Stage fuse may join that copy with what made the input.
//!
//! The choice between four forms, by what bounds the speed:
//!
//! 1. one input channel per group, not transposed: a reduction over taps
//!    (`one_channel_each`);
//! 2. transposed, one channel per group, known sizes: unrolled by phases (`depthwise`);
//! 3. transposed with strides, known kernel: one product per group of phases (`phases`);
//! 4. all others: one contraction, with `stride - 1` zeros between the elements of a
//!    transposed convolution's input (`spread`).

use crate::lower::product::{Product, Role, Target};
use crate::ops::conv::depthwise;
use crate::ops::conv::phases::{self as phases, Phases};
use crate::ops::padding::{in_bounds, load_or_zero, zeros_around};
use crate::ops::window::{Window, per_dimension};
use crate::props::{Library, Prop};
use crate::{Args, BodyBuilder, Call, Lower, Meta, Processor, Route, Row, Tensor, meta};
use inrush_base::{DType, Error, Result, Scalar};
use inrush_expr::{Expr, Exprs};
use inrush_graph::{Arg, Type};
use inrush_loops::{BufferKind, Layout, ReduceOp, ScalarOp, StmtId};

/// A convolution's numbers, whatever operator gave them.
pub(in crate::ops) struct Conv {
    /// One for each spatial dimension; `input` is the size of the operand that is convolved.
    pub windows: Vec<Window>,
    /// Spatial sizes of the result.
    pub output: Vec<Expr>,
    /// The leading dimension; left out for an unbatched input.
    pub batch: Option<Expr>,
    /// Number of groups: channels of one do not meet those of others.
    pub groups: Expr,
    /// Channels of input and output in each group.
    pub group_in: Expr,
    pub group_out: Expr,
    /// Each input element adds a window to the result, instead of each result reading one.
    transposed: bool,
}

impl Conv {
    /// Reads a call's numbers for an input of sizes `x` and a weight of sizes `w`. The weight
    /// is `[out, in / groups, taps]`, or `[in, out / groups, taps]` if transposed.
    ///
    /// # Errors
    ///
    /// If ranks do not fit, groups do not divide channels, or a stride or dilation may be
    /// zero. Channels that are equal for some calls only become demands.
    pub fn new(args: &Args, x: &[Expr], w: &[Expr]) -> Result<Conv> {
        let exprs = args.exprs;
        let spatial = w
            .len()
            .checked_sub(2)
            .filter(|s| *s > 0 && (x.len() == s + 1 || x.len() == s + 2))
            .ok_or_else(|| {
                Error::input(format!(
                    "input {} does not fit weight {}",
                    exprs.show_list(x),
                    exprs.show_list(w)
                ))
            })?;
        // `convolution` says it by an argument, the other operators by their names.
        let transposed = if args.op.schema().position("transposed").is_some() {
            args.bool("transposed")?
        } else {
            args.op.row.name.starts_with("aten.conv_transpose")
        };
        let list = |name: &str| per_dimension(name, args.ints(name)?, spatial);
        let (stride, dilation) = (list("stride")?, list("dilation")?);
        let padding = padding(args, &w[2..], &stride, &dilation)?;
        let groups = args.int("groups")?;
        let (batch, channels) = match x.len() - spatial {
            1 => (None, x[0]),
            _ => (Some(x[0]), x[1]),
        };
        let group_in = exprs
            .divide_exact(channels, groups)
            .ok_or_else(|| Error::input("groups do not divide the input channels"))?;
        let group_out = if transposed {
            w[1]
        } else {
            exprs
                .divide_exact(w[0], groups)
                .ok_or_else(|| Error::input("groups do not divide the output channels"))?
        };
        if transposed {
            args.same(w[0], channels, "the input channels")?;
        } else {
            args.same(w[1], group_in, "the input channels of a group")?;
        }
        let positive = |e: &Expr| exprs.range(*e).lo > 0;
        if !stride.iter().chain(&dilation).all(positive) {
            return Err(Error::input("stride and dilation must be positive"));
        }
        let first = x.len() - spatial;
        let windows: Vec<Window> = (0..spatial)
            .map(|d| Window {
                input: x[first + d],
                kernel: w[2 + d],
                stride: stride[d],
                dilation: dilation[d],
                before: padding[d].0,
                after: padding[d].1,
            })
            .collect();
        let output = if transposed {
            let extra = list("output_padding")?;
            fitting(exprs, &extra, &windows)?;
            windows
                .iter()
                .zip(extra)
                .map(|(v, e)| {
                    let steps = exprs.sub(v.input, exprs.int(1));
                    // The inverse of a window's output size, which several inputs share:
                    // `output_padding` says which.
                    let reach = exprs.add(exprs.mul(steps, v.stride), v.span(exprs));
                    exprs.add(exprs.sub(reach, exprs.add(v.before, v.after)), e)
                })
                .collect()
        } else {
            windows.iter().map(|v| v.output(exprs, false)).collect()
        };
        Ok(Conv {
            windows,
            output,
            batch,
            groups,
            group_in,
            group_out,
            transposed,
        })
    }

    /// Sizes of the result: batch if there is one, channels, spatial dimensions.
    pub fn sizes(&self, exprs: &Exprs) -> Vec<Expr> {
        let mut out: Vec<Expr> = self.batch.into_iter().collect();
        out.push(exprs.mul(self.groups, self.group_out));
        out.extend(&self.output);
        out
    }
}

/// Checks that output padding adds less than a step, which positions beyond the last one could not reach otherwise.
fn fitting(exprs: &Exprs, extra: &[Expr], windows: &[Window]) -> Result<()> {
    for (e, w) in extra.iter().zip(windows) {
        // PyTorch accepts less than the stride or less than the dilation.
        let reached = exprs.prove_le(w.stride, *e) && exprs.prove_le(w.dilation, *e);
        if reached || exprs.range(*e).hi < 0 {
            return Err(Error::input(
                "output padding must be smaller than either stride or dilation, and not negative",
            ));
        }
    }
    Ok(())
}

/// Padding before and after each spatial dimension: numbers, `"valid"`, or `"same"`.
fn padding(
    args: &Args,
    kernel: &[Expr],
    stride: &[Expr],
    dilation: &[Expr],
) -> Result<Vec<(Expr, Expr)>> {
    let exprs = args.exprs;
    let Arg::Str(word) = args.arg("padding")? else {
        let given = per_dimension("padding", args.ints("padding")?, kernel.len())?;
        return Ok(given.into_iter().map(|p| (p, p)).collect());
    };
    match word.as_str() {
        "valid" => Ok(vec![(exprs.int(0), exprs.int(0)); kernel.len()]),
        "same" if stride.iter().any(|s| !exprs.is_int(*s, 1)) => {
            Err(Error::input("padding \"same\" needs stride 1"))
        }
        "same" => Ok(kernel
            .iter()
            .zip(dilation)
            .map(|(k, d)| {
                // An odd amount of padding puts the extra element last, as in PyTorch.
                let total = exprs.mul(*d, exprs.sub(*k, exprs.int(1)));
                let before = exprs.floordiv(total, exprs.int(2));
                (before, exprs.sub(total, before))
            })
            .collect()),
        other => Err(Error::input(format!("unknown padding \"{other}\""))),
    }
}

/// The input with zeros around it, so that no window leaves it.
fn padded<'g>(lw: &mut Lower<'g>, conv: &Conv, x: &Tensor) -> Tensor {
    let amounts: Vec<(Expr, Expr)> = conv.windows.iter().map(|w| (w.before, w.after)).collect();
    zeros_around(lw, x, &amounts)
}

/// The input of a transposed convolution as an ordinary one of stride 1 sees it: `stride - 1` zeros between the elements
/// and zeros around them.
fn spread<'g>(lw: &mut Lower<'g>, conv: &Conv, x: &Tensor) -> Tensor {
    let exprs = lw.exprs;
    let first = x.sizes.len() - conv.windows.len();
    let one = exprs.int(1);
    let reach = |w: &Window| exprs.mul(exprs.sub(w.kernel, one), w.dilation);
    let mut sizes = x.sizes[..first].to_vec();
    sizes.extend(
        conv.windows
            .iter()
            .zip(&conv.output)
            .map(|(w, o)| exprs.add(*o, reach(w))),
    );
    let mut body = lw.body(&sizes);
    let mut at = body.outer();
    let mut checks = Vec::new();
    let mut mask: Option<StmtId> = None;
    for (w, i) in conv.windows.iter().zip(&mut at[first..]) {
        // Distance from the place of the first input element; multiples of the stride hold
        // elements.
        let place = exprs.sub(*i, exprs.sub(reach(w), w.before));
        *i = exprs.floordiv(place, w.stride);
        checks.push((*i, w.input));
        let rest = exprs.modulo(place, w.stride);
        if !exprs.is_int(rest, 0) {
            let (r, zero) = (
                body.index_value(rest),
                body.constant(Scalar::Int(0), DType::I64),
            );
            let c = body.op(ScalarOp::Eq, &[r, zero]);
            mask = Some(match mask {
                Some(m) => body.op(ScalarOp::And, &[m, c]),
                None => c,
            });
        }
    }
    let inside = in_bounds(&mut body, &checks);
    let mask = match (mask, inside) {
        (Some(a), Some(b)) => Some(body.op(ScalarOp::And, &[a, b])),
        (a, b) => a.or(b),
    };
    let v = load_or_zero(&mut body, x, &at, mask);
    lw.store_new(body, v, x.dtype, &sizes)
}

/// Adds the bias of a channel in the dtype of the sum, before the result is rounded.
pub(in crate::ops) fn add_bias(
    body: &mut BodyBuilder,
    sum: StmtId,
    bias: Option<&Tensor>,
    channel: Expr,
) -> StmtId {
    match bias {
        Some(t) => {
            let v = body.load(t, &[channel]);
            let v = body.cast(v, body.dtype(sum));
            body.op(ScalarOp::Add, &[sum, v])
        }
        None => sum,
    }
}

/// Depthwise forms come first: their products would have one column or one summed channel.
fn convolution<'g>(lw: &mut Lower<'g>, call: &Call<'g>) -> Result<Vec<Tensor>> {
    let (x, w) = (lw.arg(call, "input")?, lw.arg(call, "weight")?);
    let bias = lw.opt_arg(call, "bias")?;
    let conv = Conv::new(call, &x.sizes, &w.sizes)?;
    let exprs = lw.exprs;
    let one_channel = exprs.is_int(conv.group_in, 1) && !exprs.is_int(conv.groups, 1);
    let out = if one_channel && !conv.transposed {
        one_channel_each(lw, &conv, &x, &w, bias.as_ref())
    } else if let Some(out) = conv
        .transposed
        .then(|| depthwise::transposed(lw, &conv, &x, &w, bias.as_ref()))
        .flatten()
    {
        out
    } else if let Some(along) = conv
        .transposed
        .then(|| Phases::of(exprs, &conv, x.dtype))
        .flatten()
    {
        phases::products(lw, &conv, &along, &x, &w, bias.as_ref())?
    } else {
        grouped(lw, &conv, &x, &w, bias.as_ref())?
    };
    Ok(vec![out])
}

/// As a contraction: for each group, pixels times kernel taps and channels times output channels.
fn grouped<'g>(
    lw: &mut Lower<'g>,
    conv: &Conv,
    x: &Tensor,
    w: &Tensor,
    bias: Option<&Tensor>,
) -> Result<Tensor> {
    let exprs = lw.exprs;
    let source = if conv.transposed {
        spread(lw, conv, x)
    } else {
        padded(lw, conv, x)
    };
    let mut p = Product::new(exprs);
    let g = p.axis(Role::Batch, conv.groups);
    let image = conv.batch.map(|n| p.axis(Role::M, n));
    let at: Vec<Expr> = conv.output.iter().map(|o| p.axis(Role::M, *o)).collect();
    let co = p.axis(Role::N, conv.group_out);
    let taps: Vec<Expr> = conv
        .windows
        .iter()
        .map(|v| p.axis(Role::K, v.kernel))
        .collect();
    let ci = p.axis(Role::K, conv.group_in);
    let in_channel = exprs.add(exprs.mul(g, conv.group_in), ci);
    let out_channel = exprs.add(exprs.mul(g, conv.group_out), co);

    let mut from: Vec<Expr> = image.into_iter().collect();
    from.push(in_channel);
    // Weights are read in place, whatever their order of dimensions.
    let mut weight = if conv.transposed {
        vec![in_channel, co]
    } else {
        vec![out_channel, ci]
    };
    for ((v, o), tap) in conv.windows.iter().zip(&at).zip(&taps) {
        let step = exprs.mul(*tap, v.dilation);
        if conv.transposed {
            from.push(exprs.add(*o, step));
            // The kernel runs backwards.
            let last = exprs.sub(v.kernel, exprs.int(1));
            weight.push(exprs.sub(last, *tap));
        } else {
            from.push(exprs.add(exprs.mul(*o, v.stride), step));
            weight.push(*tap);
        }
    }
    let mut index: Vec<Expr> = image.into_iter().collect();
    let channel = index.len();
    index.push(out_channel);
    index.extend(&at);
    let target = Target {
        dtype: x.dtype,
        sizes: conv.sizes(exprs),
        index,
    };
    p.lower(lw, (&source, from), (w, weight), target, |body, sum, at| {
        Ok(add_bias(body, sum, bias, at[channel]))
    })
}

/// Taps of one channel from which on a padded copy of its image pays: as often it would be found out for each lane whether it has
/// left the image.
const MANY_TAPS: i64 = 25;

/// Returns true if vector lanes on a CPU will be pixels of a row, which leave the image at
/// different taps. That is so for a given image in row-major layout. Intermediate images mostly
/// have channels last, where all lanes leave the image together.
fn lanes_leave_apart(lw: &Lower, conv: &Conv, x: &Tensor) -> bool {
    let exprs = lw.exprs;
    let buffer = lw.loops.buffer(x.buf);
    let near = |l: &Layout| l.strides.last().is_some_and(|s| exprs.is_int(*s, 1));
    let given = buffer.kind != BufferKind::Temp && x.is_whole(exprs, buffer);
    let taps = exprs.as_int(exprs.product(conv.windows.iter().map(|v| v.kernel)));
    lw.processor == Processor::Cpu
        && given
        && buffer.layout.as_ref().is_none_or(near)
        && taps.is_some_and(|n| n >= MANY_TAPS)
        && conv.windows.iter().all(|v| exprs.is_int(v.stride, 1))
}

/// One input channel for each group: a reduction over the kernel's taps, bound by memory.
fn one_channel_each<'g>(
    lw: &mut Lower<'g>,
    conv: &Conv,
    x: &Tensor,
    w: &Tensor,
    bias: Option<&Tensor>,
) -> Tensor {
    let exprs = lw.exprs;
    let sizes = conv.sizes(exprs);
    let kernel: Vec<Expr> = conv.windows.iter().map(|v| v.kernel).collect();
    let laid_out = lanes_leave_apart(lw, conv, x).then(|| padded(lw, conv, x));
    let mut body = lw.body(&sizes);
    let taps = body.reduce_axes(&kernel);
    let outer = body.outer();
    let channel = conv.batch.iter().count();
    let mut from = outer[..channel].to_vec();
    // Output channel `c` belongs to group `c / group_out`, whose only input channel has that
    // number.
    from.push(exprs.floordiv(outer[channel], conv.group_out));
    let mut checks = Vec::new();
    for ((v, o), tap) in conv.windows.iter().zip(&outer[channel + 1..]).zip(&taps) {
        let at = v.position(exprs, *o, *tap);
        match laid_out {
            Some(_) => from.push(exprs.add(at, v.before)),
            None => {
                checks.push((at, v.input));
                from.push(at);
            }
        }
    }
    let mut weight = vec![outer[channel], exprs.int(0)];
    weight.extend(&taps);
    let mask = in_bounds(&mut body, &checks);
    let a = load_or_zero(&mut body, laid_out.as_ref().unwrap_or(x), &from, mask);
    let b = body.load(w, &weight);
    let product = body.op(ScalarOp::Mul, &[a, b]);
    let sum = body.reduce(ReduceOp::Sum, product);
    let value = add_bias(&mut body, sum, bias, outer[channel]);
    lw.store_new(body, value, x.dtype, &sizes)
}

/// dtype and sizes of the result; the bias must have one element per output channel.
fn convolution_meta(call: &Call) -> Result<Vec<Type>> {
    let (x, w) = (call.tensor("input")?, call.tensor("weight")?);
    let conv = Conv::new(call, &x.sizes, &w.sizes)?;
    if let Some(bias) = call.opt_tensor("bias")? {
        let channels = call.exprs.mul(conv.groups, conv.group_out);
        call.same_sizes(&bias.sizes, &[channels], "the bias")?;
    }
    meta::one(call.exprs, x.dtype, conv.sizes(call.exprs))
}

const fn row(name: &'static str, schema: &'static str, example: &'static str) -> Row {
    Row {
        name,
        schema,
        meta: Meta::Fn(convolution_meta),
        route: Route::Lower(convolution),
        example,
        props: &[],
    }
}

pub const ROWS: &[Row] = &[
    row(
        "aten.convolution.default",
        "(Tensor input, Tensor weight, Tensor? bias, SymInt[] stride, SymInt[] padding, SymInt[] dilation, bool transposed, SymInt[] output_padding, SymInt groups) -> Tensor",
        "(f32[2,4,5,6], f32[6,2,3,3], f32[6], [2,1], [1,0], [1,2], false, [0,0], 2)",
    ).with(&[Prop::Library(Library::Convolution)]),
    row(
        "aten.conv1d.default",
        "(Tensor input, Tensor weight, Tensor? bias=None, SymInt[1] stride=1, SymInt[1] padding=0, SymInt[1] dilation=1, SymInt groups=1) -> Tensor",
        "(f32[2,3,8], f32[4,3,3], f32[4], [2], [1])",
    ),
    row(
        "aten.conv2d.default",
        "(Tensor input, Tensor weight, Tensor? bias=None, SymInt[2] stride=1, SymInt[2] padding=0, SymInt[2] dilation=1, SymInt groups=1) -> Tensor",
        "(f32[1,4,6,6], f32[8,1,3,3], none, [2,2], [1,1], [1,1], 4)",
    ),
    row(
        "aten.conv3d.default",
        "(Tensor input, Tensor weight, Tensor? bias=None, SymInt[3] stride=1, SymInt[3] padding=0, SymInt[3] dilation=1, SymInt groups=1) -> Tensor",
        "(f32[1,2,4,4,4], f32[3,2,2,2,2])",
    ),
    row(
        "aten.conv1d.padding",
        "(Tensor input, Tensor weight, Tensor? bias=None, SymInt[1] stride=1, str padding=\"valid\", SymInt[1] dilation=1, SymInt groups=1) -> Tensor",
        "(f32[2,3,8], f32[4,3,4], f32[4], [1], \"same\")",
    ),
    row(
        "aten.conv2d.padding",
        "(Tensor input, Tensor weight, Tensor? bias=None, SymInt[2] stride=1, str padding=\"valid\", SymInt[2] dilation=1, SymInt groups=1) -> Tensor",
        "(f32[3,5,5], f32[2,3,3,3], none, [1,1], \"same\", [2,1])",
    ),
    row(
        "aten.conv3d.padding",
        "(Tensor input, Tensor weight, Tensor? bias=None, SymInt[3] stride=1, str padding=\"valid\", SymInt[3] dilation=1, SymInt groups=1) -> Tensor",
        "(f32[1,2,4,4,4], f32[3,2,2,2,2], none, [1,1,1], \"valid\")",
    ),
    row(
        "aten.conv_transpose1d.default",
        "(Tensor input, Tensor weight, Tensor? bias=None, SymInt[1] stride=1, SymInt[1] padding=0, SymInt[1] output_padding=0, SymInt groups=1, SymInt[1] dilation=1) -> Tensor",
        "(f32[2,3,4], f32[3,2,3], f32[2], [2], [1], [1])",
    ),
    row(
        "aten.conv_transpose2d.input",
        "(Tensor input, Tensor weight, Tensor? bias=None, SymInt[2] stride=1, SymInt[2] padding=0, SymInt[2] output_padding=0, SymInt groups=1, SymInt[2] dilation=1) -> Tensor",
        "(f32[1,4,3,3], f32[4,3,2,2], none, [2,2], [0,0], [0,0], 2)",
    ),
    row(
        "aten.conv_transpose3d.input",
        "(Tensor input, Tensor weight, Tensor? bias=None, SymInt[3] stride=1, SymInt[3] padding=0, SymInt[3] output_padding=0, SymInt groups=1, SymInt[3] dilation=1) -> Tensor",
        "(f32[1,2,2,2,2], f32[2,1,2,2,2])",
    ),
];
