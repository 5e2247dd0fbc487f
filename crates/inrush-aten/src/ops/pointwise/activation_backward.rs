//! Gradients of activation functions.
//!
//! Operand 0 is the gradient of the result. Operand 1 is the forward input `x`; for `tanh` and
//! `sigmoid`, and for `elu` with `is_result`, it is the forward result `y`, from which the slope
//! follows without another exponential.
//!
//! At a kink the slope is one-sided, and NaN takes one side as well: both follow eager, so that the
//! tests below look alike but are not interchangeable.

use crate::Pw;
use crate::ops::pointwise::row::pointwise;
use inrush_base::{Error, Result};
use inrush_loops::{ScalarOp as S, StmtId};

/// `cond ? grad : 0`.
/// NaN among the tested values gives 0, since the test is false.
fn keep(p: &mut Pw, cond: StmtId, grad: StmtId) -> StmtId {
    let zero = p.c(0.0);
    p.select(cond, grad, zero)
}

/// Returns the gradient where `x` is strictly between two numbers or NaN, and 0 elsewhere.
fn inside(p: &mut Pw, x: StmtId, lo: f64, hi: f64, grad: StmtId) -> StmtId {
    let (below, above) = (p.opc(S::Le, x, lo), p.opc(S::Ge, x, hi));
    let outside = p.op2(S::Or, below, above);
    let zero = p.c(0.0);
    p.select(outside, zero, grad)
}

/// 0 up to the threshold, `grad` above it and for NaN.
fn threshold(p: &mut Pw, x: &[StmtId]) -> Result<StmtId> {
    let limit = p.number("threshold")?;
    let below = p.op2(S::Le, x[1], limit);
    let zero = p.c(0.0);
    Ok(p.select(below, zero, x[0]))
}

/// `grad * (1 - y^2)`.
fn tanh(p: &mut Pw, x: &[StmtId]) -> Result<StmtId> {
    let square = p.mul(x[1], x[1]);
    let slope = p.cop(S::Sub, 1.0, square);
    Ok(p.mul(x[0], slope))
}

/// `grad * (1 - y) * y`.
fn sigmoid(p: &mut Pw, x: &[StmtId]) -> Result<StmtId> {
    let rest = p.cop(S::Sub, 1.0, x[1]);
    let v = p.mul(x[0], rest);
    Ok(p.mul(v, x[1]))
}

/// `grad * s * (1 + x * (1 - s))` with `s = sigmoid(x)`.
fn silu(p: &mut Pw, x: &[StmtId]) -> Result<StmtId> {
    let s = p.sigmoid(x[1]);
    let rest = p.cop(S::Sub, 1.0, s);
    let v = p.mul(x[1], rest);
    let v = p.opc(S::Add, v, 1.0);
    let v = p.mul(s, v);
    Ok(p.mul(x[0], v))
}

/// `grad` times the derivative of the form that `approximate` names.
fn gelu(p: &mut Pw, x: &[StmtId]) -> Result<StmtId> {
    use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI, PI};
    let (grad, x) = (x[0], x[1]);
    let slope = match p.call.str("approximate")? {
        "none" => {
            // The distribution function, plus x times its density.
            let t = p.opc(S::Mul, x, FRAC_1_SQRT_2);
            let t = p.op1(S::Erf, t);
            let t = p.opc(S::Add, t, 1.0);
            let cdf = p.opc(S::Mul, t, 0.5);
            let t = p.mul(x, x);
            let t = p.opc(S::Mul, t, -0.5);
            let t = p.op1(S::Exp, t);
            // The factor is `1 / sqrt(2 pi)`.
            let pdf = p.opc(S::Mul, t, 0.5 * FRAC_2_SQRT_PI * FRAC_1_SQRT_2);
            let v = p.mul(x, pdf);
            p.add(cdf, v)
        }
        "tanh" => {
            // y = x (1 + t) / 2, t = tanh(a (x + b x^3)).
            let (a, b) = ((2.0 / PI).sqrt(), 0.044715);
            let square = p.mul(x, x);
            let cube = p.mul(square, x);
            let v = p.opc(S::Mul, cube, b);
            let v = p.add(x, v);
            let v = p.opc(S::Mul, v, a);
            let t = p.op1(S::Tanh, v);
            let left = p.opc(S::Add, t, 1.0);
            let left = p.opc(S::Mul, left, 0.5);
            let t2 = p.mul(t, t);
            let dt = p.cop(S::Sub, 1.0, t2);
            let inner = p.opc(S::Mul, square, 3.0 * b);
            let inner = p.opc(S::Add, inner, 1.0);
            let inner = p.opc(S::Mul, inner, a);
            let right = p.opc(S::Mul, x, 0.5);
            let right = p.mul(right, dt);
            let right = p.mul(right, inner);
            p.add(left, right)
        }
        _ => return Err(p.call.unsupported("approximate", "`none` or `tanh`")),
    };
    Ok(p.mul(grad, slope))
}

/// `grad * scale` above zero. Below, with `n = alpha * scale`, it is `grad * input_scale * n *
/// exp(input_scale * x)`, which is `grad * input_scale * (y + n)` in terms of the result.
fn elu(p: &mut Pw, x: &[StmtId]) -> Result<StmtId> {
    let c = p.call;
    let (alpha, scale) = (p.float("alpha")?, p.float("scale")?);
    let input = p.float("input_scale")?;
    let (grad, x) = (x[0], x[1]);
    let negative = alpha * scale;
    let above = p.opc(S::Mul, grad, scale);
    // With a negative slope the result's sign no longer tells which branch made it.
    if c.bool("is_result")? && negative < 0.0 {
        return Err(Error::input(
            "the gradient from a result needs a slope that is not negative",
        ));
    }
    let below = if c.bool("is_result")? {
        let v = p.opc(S::Add, x, negative);
        let g = p.opc(S::Mul, grad, input);
        p.mul(g, v)
    } else {
        let v = p.opc(S::Mul, x, input);
        let e = p.op1(S::Exp, v);
        let g = p.opc(S::Mul, grad, input * negative);
        p.mul(g, e)
    };
    let under = p.opc(S::Le, x, 0.0);
    Ok(p.select(under, below, above))
}

/// The sign of a result is that of its input as long as the slope is positive, so `self_is_result`
/// changes nothing.
fn leaky_relu(p: &mut Pw, x: &[StmtId]) -> Result<StmtId> {
    let slope = p.number("negative_slope")?;
    if p.call.bool("self_is_result")? && p.float("negative_slope")? < 0.0 {
        return Err(Error::input(
            "the gradient of a leaky_relu in place needs a slope that is not negative",
        ));
    }
    let below = p.mul(x[0], slope);
    let above = p.opc(S::Gt, x[1], 0.0);
    Ok(p.select(above, x[0], below))
}

/// `grad` strictly between the bounds, 0 at them.
fn hardtanh(p: &mut Pw, x: &[StmtId]) -> Result<StmtId> {
    let (lo, hi) = (p.float("min_val")?, p.float("max_val")?);
    Ok(inside(p, x[1], lo, hi, x[0]))
}

/// 0 up to -3, `grad` from 3 on, `grad * (x / 3 + 1 / 2)` in between.
fn hardswish(p: &mut Pw, x: &[StmtId]) -> Result<StmtId> {
    let slope = p.opc(S::Div, x[1], 3.0);
    let slope = p.opc(S::Add, slope, 0.5);
    let middle = p.mul(x[0], slope);
    let (low, high) = (p.opc(S::Le, x[1], -3.0), p.opc(S::Ge, x[1], 3.0));
    let v = p.select(high, x[0], middle);
    let zero = p.c(0.0);
    Ok(p.select(low, zero, v))
}

/// `grad / 6` strictly between -3 and 3.
fn hardsigmoid(p: &mut Pw, x: &[StmtId]) -> Result<StmtId> {
    // Eager's sixth is one of single precision, for doubles too.
    let g = p.opc(S::Mul, x[0], f64::from(1.0f32 / 6.0));
    let (above, below) = (p.opc(S::Gt, x[1], -3.0), p.opc(S::Lt, x[1], 3.0));
    let within = p.op2(S::And, above, below);
    Ok(keep(p, within, g))
}

/// `grad * z / (z + 1)` with `z = exp(beta x)`; `grad` above the threshold.
fn softplus(p: &mut Pw, x: &[StmtId]) -> Result<StmtId> {
    let (beta, threshold) = (p.float("beta")?, p.float("threshold")?);
    let t = p.opc(S::Mul, x[1], beta);
    let z = p.op1(S::Exp, t);
    let over = p.opc(S::Add, z, 1.0);
    let v = p.mul(x[0], z);
    let v = p.div(v, over);
    let linear = p.opc(S::Gt, t, threshold);
    Ok(p.select(linear, x[0], v))
}

/// `grad * (t + x s (1 - t^2))` with `s = sigmoid(x)`, `t = tanh(log(1 + exp(x)))`.
fn mish(p: &mut Pw, x: &[StmtId]) -> Result<StmtId> {
    let s = p.sigmoid(x[1]);
    let t = p.chain(x[1], &[S::Exp, S::Log1p, S::Tanh])?;
    let square = p.mul(t, t);
    let rest = p.cop(S::Sub, 1.0, square);
    let v = p.mul(x[1], s);
    let v = p.mul(v, rest);
    let v = p.add(t, v);
    Ok(p.mul(x[0], v))
}

/// `grad * (1 - sigmoid(x))`, from `z = exp(-|x|)`, which does not overflow.
/// The `buffer` of the forward operator is not read: on some devices it is empty, and recomputing
/// it costs one exponential.
fn log_sigmoid(p: &mut Pw, x: &[StmtId]) -> Result<StmtId> {
    let size = p.op1(S::Abs, x[1]);
    let n = p.neg(size);
    let z = p.op1(S::Exp, n);
    let over = p.opc(S::Add, z, 1.0);
    let part = p.div(z, over);
    let rest = p.cop(S::Sub, 1.0, part);
    let negative = p.opc(S::Lt, x[1], 0.0);
    let slope = p.select(negative, rest, part);
    Ok(p.mul(x[0], slope))
}

/// 0 in `[-lambd, lambd]`, `grad` outside.
fn shrink(p: &mut Pw, x: &[StmtId]) -> Result<StmtId> {
    let lambda = p.float("lambd")?;
    let (a, b) = (p.opc(S::Ge, x[1], -lambda), p.opc(S::Le, x[1], lambda));
    let dead = p.op2(S::And, a, b);
    let zero = p.c(0.0);
    Ok(p.select(dead, zero, x[0]))
}

/// `grad / (x (1 - x))`; outside of `[eps, 1 - eps]` 0, without `eps` NaN outside of `[0, 1]`.
fn logit(p: &mut Pw, x: &[StmtId]) -> Result<StmtId> {
    // A number below zero bounds nothing.
    let given = p.call.given("eps") && !(p.float("eps")? < 0.0);
    let (low, high) = match given {
        true => crate::ops::pointwise::math::inset(p)?,
        false => (0.0, 1.0),
    };
    let rest = p.cop(S::Sub, 1.0, x[1]);
    // Eager's kernel for CPUs stores each of these steps in the tensors' dtype.
    let rest = p.step(rest);
    let d = p.mul(x[1], rest);
    let d = p.step(d);
    let v = p.div(x[0], d);
    let (a, b) = (p.opc(S::Lt, x[1], low), p.opc(S::Gt, x[1], high));
    let out = p.op2(S::Or, a, b);
    let other = p.c(if given { 0.0 } else { f64::NAN });
    Ok(p.select(out, other, v))
}

/// With noise in training `noise * grad`, else as `leaky_relu` with the middle of the slopes.
fn rrelu(p: &mut Pw, x: &[StmtId]) -> Result<StmtId> {
    let c = p.call;
    let (lower, upper) = (p.float("lower")?, p.float("upper")?);
    if c.bool("training")? && upper - lower > 1e-6 {
        return Ok(p.mul(x[2], x[0]));
    }
    let below = p.opc(S::Mul, x[0], (lower + upper) / 2.0);
    let above = p.opc(S::Gt, x[1], 0.0);
    Ok(p.select(above, x[0], below))
}

pointwise! {
    "aten.threshold_backward.default" "(Tensor grad_output, Tensor self, Scalar threshold) -> Tensor"
        ["grad_output", "self"] Common threshold, "(f32[9], f32[9], 0.1)";
    "aten.tanh_backward.default" "(Tensor grad_output, Tensor output) -> Tensor"
        ["grad_output", "output"] Common tanh, "(f32[9], f32[9]{-1:1})";
    "aten.sigmoid_backward.default" "(Tensor grad_output, Tensor output) -> Tensor"
        ["grad_output", "output"] Common sigmoid, "(f32[9], f32[9]{0:1})";
    "aten.silu_backward.default" "(Tensor grad_output, Tensor self) -> Tensor"
        ["grad_output", "self"] Common silu, "(bf16[9], bf16[9])";
    "aten.gelu_backward.default" "(Tensor grad_output, Tensor self, *, str approximate='none') -> Tensor"
        ["grad_output", "self"] Common gelu, "(f32[9], f32[9])";
    "aten.elu_backward.default" "(Tensor grad_output, Scalar alpha, Scalar scale, Scalar input_scale, bool is_result, Tensor self_or_result) -> Tensor"
        ["grad_output", "self_or_result"] Common elu, "(f32[9], 0.5, 2.0, 1.5, false, f32[9])";
    "aten.leaky_relu_backward.default" "(Tensor grad_output, Tensor self, Scalar negative_slope, bool self_is_result) -> Tensor"
        ["grad_output", "self"] Common leaky_relu, "(f32[9], f32[9], 0.2, false)";
    "aten.hardtanh_backward.default" "(Tensor grad_output, Tensor self, Scalar min_val, Scalar max_val) -> Tensor"
        ["grad_output", "self"] Common hardtanh, "(f32[9], f32[9], -1.0, 1.0)";
    "aten.hardswish_backward.default" "(Tensor grad_output, Tensor self) -> Tensor"
        ["grad_output", "self"] Common hardswish, "(f32[19], f32[19]{-5:5})";
    "aten.hardsigmoid_backward.default" "(Tensor grad_output, Tensor self) -> Tensor"
        ["grad_output", "self"] Common hardsigmoid, "(f32[19], f32[19]{-5:5})";
    "aten.softplus_backward.default" "(Tensor grad_output, Tensor self, Scalar beta, Scalar threshold) -> Tensor"
        ["grad_output", "self"] Common softplus, "(f32[9], f32[9], 2.0, 2.0)";
    "aten.mish_backward.default" "(Tensor grad_output, Tensor self) -> Tensor"
        ["grad_output", "self"] Common mish, "(f32[9], f32[9])";
    "aten.log_sigmoid_backward.default" "(Tensor grad_output, Tensor self, Tensor buffer) -> Tensor"
        ["grad_output", "self"] Common log_sigmoid, "(f32[4], f32[4]{0:0}, f32[4]{1:1})";
    "aten.softshrink_backward.default" "(Tensor grad_output, Tensor self, Scalar lambd) -> Tensor"
        ["grad_output", "self"] Common shrink, "(f32[9], f32[9], 0.5)";
    "aten.hardshrink_backward.default" "(Tensor grad_out, Tensor self, Scalar lambd) -> Tensor"
        ["grad_out", "self"] Common shrink, "(f32[9], f32[9], 0.5)";
    "aten.logit_backward.default" "(Tensor grad_output, Tensor self, float? eps=None) -> Tensor"
        ["grad_output", "self"] Common logit, "(f32[9], f32[9]{-0.5:1.5}, 0.1)";
    "aten.rrelu_with_noise_backward.default" "(Tensor grad_output, Tensor self, Tensor noise, Scalar lower, Scalar upper, bool training, bool self_is_result) -> Tensor"
        ["grad_output", "self", "noise"] Common rrelu, "(f32[9], f32[9], f32[9], 0.1, 0.3, true, false)";
    "aten._prelu_kernel.default" "(Tensor self, Tensor weight) -> Tensor"
        ["self", "weight"] Common prelu, "(f32[2,3,4], f32[1,3,1])";
}

/// The forward function, whose weight was reshaped to broadcast over the channels.
fn prelu(p: &mut Pw, x: &[StmtId]) -> Result<StmtId> {
    let below = p.mul(x[1], x[0]);
    let above = p.opc(S::Gt, x[0], 0.0);
    Ok(p.select(above, x[0], below))
}
