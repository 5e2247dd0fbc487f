//! Activation functions.
//!
//! Each function is written with the comparison that sends NaN and the kink where eager sends them;
//! that is why some test `>` and others `<=`. Parameters come through `Pw::float` and `Pw::number`,
//! which round them as eager's kernel for the operator does.

use crate::ops::pointwise::row::pointwise;
use crate::{Processor, Pw};
use inrush_base::{DType, Error, ErrorKind, Result};
use inrush_loops::{ScalarOp as S, StmtId};

/// Limits `x` to `lo..=hi`; NaN stays NaN.
fn clamp(p: &mut Pw, x: StmtId, lo: f64, hi: f64) -> StmtId {
    let (lo, hi) = (p.c(lo), p.c(hi));
    let v = p.max(x, lo);
    p.min(v, hi)
}

fn relu(p: &mut Pw, x: &[StmtId]) -> Result<StmtId> {
    if p.dtype == DType::Bool {
        return Err(Error::input("there is no rectifier of booleans"));
    }
    Ok(p.opc(S::Maximum, x[0], 0.0))
}

/// Refuses bounds that the dtype cannot hold: negative ones of unsigned integers, any of bools.
fn hardtanh(p: &mut Pw, x: &[StmtId]) -> Result<StmtId> {
    let (lo, hi) = (p.float("min_val")?, p.float("max_val")?);
    if p.dtype == DType::Bool || (p.dtype.is_unsigned() && (lo < 0.0 || hi < 0.0)) {
        return Err(Error::input(format!("bounds of {}", p.dtype)));
    }
    Ok(clamp(p, x[0], lo, hi))
}

/// `clamp(x + 3, 0, 6)`.
fn relu6_shifted(p: &mut Pw, x: StmtId) -> StmtId {
    let v = p.opc(S::Add, x, 3.0);
    clamp(p, v, 0.0, 6.0)
}

/// `x * clamp(x + 3, 0, 6) / 6`.
fn hardswish(p: &mut Pw, x: &[StmtId]) -> Result<StmtId> {
    let v = relu6_shifted(p, x[0]);
    let v = p.mul(x[0], v);
    Ok(p.opc(S::Mul, v, 1.0 / 6.0))
}

/// `clamp(x + 3, 0, 6) / 6`.
fn hardsigmoid(p: &mut Pw, x: &[StmtId]) -> Result<StmtId> {
    let v = relu6_shifted(p, x[0]);
    Ok(p.opc(S::Mul, v, 1.0 / 6.0))
}

/// `x > 0 ? a : b`.
/// Zero and NaN take `b`.
fn by_sign(p: &mut Pw, x: StmtId, a: StmtId, b: StmtId) -> StmtId {
    let positive = p.opc(S::Gt, x, 0.0);
    p.select(positive, a, b)
}

/// `x > 0 ? x : negative_slope * x`.
fn leaky_relu(p: &mut Pw, x: &[StmtId]) -> Result<StmtId> {
    let slope = p.number("negative_slope")?;
    let below = p.mul(x[0], slope);
    Ok(by_sign(p, x[0], x[0], below))
}

/// `scale * x` above zero, `scale * alpha * expm1(input_scale * x)` below. Zero itself is above on CPUs and below on GPUs, which
/// shows where `alpha` is negative or no number.
fn exponential(p: &mut Pw, x: StmtId, alpha: f64, scale: f64, input_scale: f64) -> StmtId {
    let above = p.opc(S::Mul, x, scale);
    let e = p.opc(S::Mul, x, input_scale);
    let e = p.op1(S::Expm1, e);
    let below = p.opc(S::Mul, e, alpha * scale);
    if p.processor == Processor::Gpu {
        return by_sign(p, x, above, below);
    }
    let negative = p.opc(S::Lt, x, 0.0);
    p.select(negative, below, above)
}

/// The general form of the family: `celu` and `selu` are it with other scales.
fn elu(p: &mut Pw, x: &[StmtId]) -> Result<StmtId> {
    let (alpha, scale, input) = (
        p.float("alpha")?,
        p.float("scale")?,
        p.float("input_scale")?,
    );
    Ok(exponential(p, x[0], alpha, scale, input))
}

/// `x > 0 ? x : alpha * expm1(x / alpha)`.
fn celu(p: &mut Pw, x: &[StmtId]) -> Result<StmtId> {
    // Take the reciprocal before rounding, as eager does.
    let alpha = p.call.float("alpha")?;
    if alpha == 0.0 {
        return Err(Error::new(
            ErrorKind::ZeroDivision,
            "ZeroDivisionError: `alpha` is zero",
        ));
    }
    Ok(exponential(p, x[0], alpha, 1.0, 1.0 / alpha))
}

/// The constants are those of Klambauer et al. ("Self-Normalizing Neural Networks", 2017), for
/// which a mean of 0 and a variance of 1 are a fixed point.
fn selu(p: &mut Pw, x: &[StmtId]) -> Result<StmtId> {
    let (alpha, scale) = (1.673_263_242_354_377_2, 1.050_700_987_355_480_5);
    Ok(exponential(p, x[0], alpha, scale, 1.0))
}

/// `log(1 + exp(beta * x)) / beta`; linear above the threshold.
/// Without the threshold `exp` would overflow, and the result with it. Both forms are evaluated;
/// the infinite one is not selected.
fn softplus_of(p: &mut Pw, x: StmtId, beta: f64, threshold: f64) -> StmtId {
    let t = p.opc(S::Mul, x, beta);
    let e = p.op1(S::Exp, t);
    let l = p.op1(S::Log1p, e);
    let v = p.opc(S::Mul, l, 1.0 / beta);
    let linear = p.opc(S::Gt, t, threshold);
    p.select(linear, x, v)
}

fn softplus(p: &mut Pw, x: &[StmtId]) -> Result<StmtId> {
    let (beta, threshold) = (p.float("beta")?, p.float("threshold")?);
    Ok(softplus_of(p, x[0], beta, threshold))
}

/// `x * tanh(softplus(x))`, with softplus's default threshold.
fn mish(p: &mut Pw, x: &[StmtId]) -> Result<StmtId> {
    let s = softplus_of(p, x[0], 1.0, 20.0);
    let t = p.op1(S::Tanh, s);
    Ok(p.mul(x[0], t))
}

/// `min(x, 0) - log1p(exp(-|x|))`: the exponential is at most 1, so nothing overflows.
fn log_sigmoid(p: &mut Pw, x: &[StmtId]) -> Result<StmtId> {
    let low = p.opc(S::Minimum, x[0], 0.0);
    let size = p.op1(S::Abs, x[0]);
    let n = p.neg(size);
    let tail = p.chain(n, &[S::Exp, S::Log1p])?;
    Ok(p.sub(low, tail))
}

/// `x / (1 + exp(-x))`: one division, where `x * sigmoid(x)` has a reciprocal and a product.
fn silu(p: &mut Pw, x: &[StmtId]) -> Result<StmtId> {
    let n = p.neg(x[0]);
    let e = p.op1(S::Exp, n);
    let d = p.opc(S::Add, e, 1.0);
    Ok(p.div(x[0], d))
}

/// `x / 2 * (1 + erf(x / sqrt(2)))`, or with `tanh` the approximation of Hendrycks and Gimpel
/// ("Gaussian Error Linear Units", 2016): `x / 2 * (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))`.
fn gelu(p: &mut Pw, x: &[StmtId]) -> Result<StmtId> {
    let x = x[0];
    let half = p.opc(S::Mul, x, 0.5);
    let inner = match p.call.str("approximate")? {
        "none" => {
            let t = p.opc(S::Mul, x, std::f64::consts::FRAC_1_SQRT_2);
            p.op1(S::Erf, t)
        }
        "tanh" => {
            let sq = p.mul(x, x);
            let cube = p.mul(sq, x);
            let c = p.opc(S::Mul, cube, 0.044715);
            let sum = p.add(x, c);
            let t = p.opc(S::Mul, sum, (2.0 / std::f64::consts::PI).sqrt());
            p.op1(S::Tanh, t)
        }
        _ => return Err(p.call.unsupported("approximate", "`none` or `tanh`")),
    };
    let one = p.opc(S::Add, inner, 1.0);
    Ok(p.mul(half, one))
}

/// `x > threshold ? x : value`.
fn threshold(p: &mut Pw, x: &[StmtId]) -> Result<StmtId> {
    let (limit, value) = (p.number("threshold")?, p.number("value")?);
    // A NaN is above every threshold.
    let below = p.op2(S::Le, x[0], limit);
    Ok(p.select(below, value, x[0]))
}

/// `0` in `-lambd..=lambd`, `x` outside. NaN fails both tests and stays.
fn hardshrink(p: &mut Pw, x: &[StmtId]) -> Result<StmtId> {
    let lambda = p.float("lambd")?;
    let (a, b) = (p.opc(S::Ge, x[0], -lambda), p.opc(S::Le, x[0], lambda));
    let inside = p.op2(S::And, a, b);
    let zero = p.c(0.0);
    Ok(p.select(inside, zero, x[0]))
}

/// `x` moved towards zero by `lambd`, `0` where it would cross it.
fn softshrink(p: &mut Pw, x: &[StmtId]) -> Result<StmtId> {
    let lambda = p.float("lambd")?;
    // Not `lambda < 0`, so that NaN is refused too.
    if !(lambda >= 0.0) {
        return Err(Error::input("`lambd` below zero"));
    }
    let (over, under) = (p.opc(S::Sub, x[0], lambda), p.opc(S::Add, x[0], lambda));
    let (is_over, is_under) = (p.opc(S::Gt, x[0], lambda), p.opc(S::Lt, x[0], -lambda));
    // What is in between is 0 without a sign, NaN stays.
    let middle = p.opc(S::Mul, x[0], 0.0);
    let middle = p.op1(S::Abs, middle);
    let v = p.select(is_under, under, middle);
    Ok(p.select(is_over, over, v))
}

/// `x / (1 + |x|)`.
fn softsign(p: &mut Pw, x: &[StmtId]) -> Result<StmtId> {
    let size = p.op1(S::Abs, x[0]);
    let d = p.opc(S::Add, size, 1.0);
    Ok(p.div(x[0], d))
}

pointwise! {
    "aten.relu.default" "(Tensor self) -> Tensor"
        ["self"] Common relu, "(f32[4])";
    "aten.relu6.default" "(Tensor self) -> Tensor"
        ["self"] Common |p, x| Ok(clamp(p, x[0], 0.0, 6.0)), "(f32[4])";
    "aten.hardtanh.default" "(Tensor self, Scalar min_val=-1, Scalar max_val=1) -> Tensor"
        ["self"] Common hardtanh, "(f32[4], -0.5)";
    "aten.hardswish.default" "(Tensor self) -> Tensor"
        ["self"] Common hardswish, "(f32[9]{-5:5})";
    "aten.hardsigmoid.default" "(Tensor self) -> Tensor"
        ["self"] Common hardsigmoid, "(f32[9]{-5:5})";
    "aten.leaky_relu.default" "(Tensor self, Scalar negative_slope=0.01) -> Tensor"
        ["self"] Common leaky_relu, "(f32[4])";
    "aten.elu.default" "(Tensor self, Scalar alpha=1, Scalar scale=1, Scalar input_scale=1) -> Tensor"
        ["self"] Common elu, "(f32[4], 0.5)";
    "aten.celu.default" "(Tensor self, Scalar alpha=1.0) -> Tensor"
        ["self"] Common celu, "(f32[4], 0.5)";
    "aten.selu.default" "(Tensor self) -> Tensor"
        ["self"] Common selu, "(f32[4])";
    "aten.softplus.default" "(Tensor self, Scalar beta=1, Scalar threshold=20) -> Tensor"
        ["self"] Common softplus, "(f32[4], 2)";
    "aten.mish.default" "(Tensor self) -> Tensor"
        ["self"] Common mish, "(f32[4])";
    "aten.log_sigmoid.default" "(Tensor self) -> Tensor"
        ["self"] Common log_sigmoid, "(f32[4])";
    "aten.sigmoid.default" "(Tensor self) -> Tensor"
        ["self"] Float |p, x| Ok(p.sigmoid(x[0])), "(bf16[4])";
    "aten.silu.default" "(Tensor self) -> Tensor"
        ["self"] Common silu, "(f32[4])";
    "aten.gelu.default" "(Tensor self, *, str approximate='none') -> Tensor"
        ["self"] Common gelu, "(f32[4], approximate=\"tanh\")";
    "aten.threshold.default" "(Tensor self, Scalar threshold, Scalar value) -> Tensor"
        ["self"] Common threshold, "(f32[4], 0.1, 20)";
    "aten.hardshrink.default" "(Tensor self, Scalar lambd=0.5) -> Tensor"
        ["self"] Common hardshrink, "(f32[4])";
    "aten.softshrink.default" "(Tensor self, Scalar lambd=0.5) -> Tensor"
        ["self"] Common softshrink, "(f32[4])";
    "aten.softsign.default" "(Tensor self) -> Tensor"
        ["self"] Float softsign, "(f32[4])";
    "aten.tanhshrink.default" "(Tensor self) -> Tensor"
        ["self"] Float |p, x| { let t = p.op1(S::Tanh, x[0]); Ok(p.sub(x[0], t)) }, "(f32[4])";
}
