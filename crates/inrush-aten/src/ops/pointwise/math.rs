//! Functions of one element or two: rounding, exponentials, trigonometry, extremes, choices.
//!
//! Most rows are one scalar operation, chained by the macros below. The functions exist for what
//! eager defines by cases: NaN that loses (`fmax`), zeros times infinities (`xlogy`), infinities of
//! equal sign (`logaddexp2`).

use crate::ops::pointwise::row::pointwise;
use crate::{Operand, Pw, numbers};
use inrush_base::{DType, Error, Result, Scalar};
use inrush_loops::{ScalarOp as S, StmtId};

macro_rules! unary {
    ($($op:ident),*) => { |p, x| p.chain(x[0], &[$(S::$op),*]) };
}
macro_rules! binary {
    ($op:ident) => {
        |p, x| Ok(p.op2(S::$op, x[0], x[1]))
    };
}

/// Rounding, which leaves integers as they are.
fn round(p: &mut Pw, op: S, x: StmtId) -> Result<StmtId> {
    Ok(if p.is_float() { p.op1(op, x) } else { x })
}

/// Rounds to a multiple of `10^-decimals`, ties to even. Negative `decimals` divide first: small
/// powers of ten are exact, their reciprocals are not. From 10^309 on the scale is infinite, so a
/// larger exponent says no more.
fn round_decimals(p: &mut Pw, x: &[StmtId]) -> Result<StmtId> {
    let decimals = p.call.const_int("decimals")?;
    if !p.is_float() {
        return Ok(x[0]);
    }
    let scale = 10f64.powi(decimals.unsigned_abs().min(400) as i32);
    let (there, back) = if decimals >= 0 {
        (S::Mul, S::Div)
    } else {
        (S::Div, S::Mul)
    };
    let scaled = p.opc(there, x[0], scale);
    let rounded = p.op1(S::Round, scaled);
    Ok(p.opc(back, rounded, scale))
}

/// `gcd(0, 0)` is 0. The dtype's least integer may be the result; all others are not negative.
fn gcd(p: &mut Pw, x: &[StmtId]) -> Result<StmtId> {
    if p.is_float() || p.dtype == DType::Bool {
        return Err(Error::input("common divisors are of integers"));
    }
    Ok(p.op2(S::Gcd, x[0], x[1]))
}

/// Least common multiple; zero where either number is.
fn lcm(p: &mut Pw, x: &[StmtId]) -> Result<StmtId> {
    let divisor = gcd(p, x)?;
    // Kernels divide by zero to zero.
    let part = p.op2(S::TruncDiv, x[0], divisor);
    // Eager's products of short numbers are as wide as C's until the sign is gone.
    let wide = if p.dtype.size() < 4 {
        DType::I32
    } else {
        p.dtype
    };
    let (a, b) = (p.body.cast(part, wide), p.body.cast(x[1], wide));
    let product = p.mul(a, b);
    let size = p.op1(S::Abs, product);
    Ok(p.body.cast(size, p.dtype))
}

/// The larger (smaller) of two where a NaN loses.
/// Of two NaNs the result is NaN.
fn extreme_number(p: &mut Pw, op: S, x: &[StmtId]) -> Result<StmtId> {
    let both = p.op2(op, x[0], x[1]);
    if !p.is_float() {
        return Ok(both);
    }
    let (na, nb) = (p.op1(S::IsNan, x[0]), p.op1(S::IsNan, x[1]));
    let b_or = p.select(nb, x[0], both);
    Ok(p.select(na, x[1], b_or))
}

/// `min(max(x, lower), upper)` with the bounds that are given. A bound that is NaN makes everything NaN, but for a number that
/// is the only one: eager compares with that, which is never true.
fn clamp(p: &mut Pw, x: &[StmtId]) -> Result<StmtId> {
    refuse_bools(p)?;
    let is_nan = |name| match p.call.operand(name) {
        Ok(Some(Operand::Scalar(s))) => s.as_f64().is_nan(),
        _ => false,
    };
    if p.call.given("min") != p.call.given("max") && (is_nan("min") || is_nan("max")) {
        return Ok(x[0]);
    }
    // Bounds that are `None` are not among the operands, so positions depend on what is given.
    let mut rest = x[1..].iter();
    let mut v = x[0];
    if p.call.given("min") {
        v = p.max(v, *rest.next().ok_or_else(no_bound)?);
    } else if !p.call.given("max") {
        return Err(no_bound());
    }
    if let Some(upper) = rest.next() {
        v = p.min(v, *upper);
    }
    Ok(v)
}

/// Eager has no bounds of bools.
fn refuse_bools(p: &Pw) -> Result<()> {
    match p.dtype {
        DType::Bool => Err(Error::input("there are no bounds of bools")),
        _ => Ok(()),
    }
}

fn no_bound() -> Error {
    Error::input("clamp needs `min` or `max`")
}

/// Replaces NaN by 0 and infinities by the largest finite numbers of the tensor's own dtype, unless
/// the call names other numbers.
fn nan_to_num(p: &mut Pw, x: &[StmtId]) -> Result<StmtId> {
    if !p.is_float() {
        return Ok(x[0]);
    }
    let largest = numbers::largest(p.dtype);
    let pick = |name: &str, default: f64| match p.call.given(name) {
        true => p.float(name),
        false => Ok(default),
    };
    let (nan, pos, neg) = (
        pick("nan", 0.0)?,
        pick("posinf", largest)?,
        pick("neginf", -largest)?,
    );
    let is_nan = p.op1(S::IsNan, x[0]);
    let is_pos = p.opc(S::Eq, x[0], f64::INFINITY);
    let is_neg = p.opc(S::Eq, x[0], f64::NEG_INFINITY);
    let (nan, pos, neg) = (p.c(nan), p.c(pos), p.c(neg));
    let v = p.select(is_neg, neg, x[0]);
    let v = p.select(is_pos, pos, v);
    Ok(p.select(is_nan, nan, v))
}

/// `eps` and `1 - eps` in the dtype that `eps` is taken in.
pub(in crate::ops) fn inset(p: &Pw) -> Result<(f64, f64)> {
    let eps = p.float("eps")?;
    let number = p.call.number_of("eps", p.processor);
    let rest = number.round(Scalar::Float(1.0 - eps), p.dtype);
    Ok((eps, rest.as_f64()))
}

/// `log(x / (1 - x))`, with `x` kept `eps` away from 0 and 1.
fn logit(p: &mut Pw, x: &[StmtId]) -> Result<StmtId> {
    let mut v = x[0];
    // A number below zero bounds nothing.
    if p.call.given("eps") && !(p.float("eps")? < 0.0) {
        let (lo, hi) = inset(p)?;
        let (low, high) = (p.c(lo), p.c(hi));
        let (below, above) = (p.op2(S::Lt, v, low), p.op2(S::Gt, v, high));
        let upper = p.select(above, high, v);
        v = p.select(below, low, upper);
    }
    let rest = p.cop(S::Sub, 1.0, v);
    let rest = p.step(rest);
    let odds = p.div(v, rest);
    let odds = p.step(odds);
    Ok(p.op1(S::Log, odds))
}

/// `x * log(y)`, which is 0 for `x = 0` unless `y` is NaN.
fn xlogy(p: &mut Pw, x: &[StmtId]) -> Result<StmtId> {
    let log = p.op1(S::Log, x[1]);
    let log = p.step(log);
    let product = p.mul(x[0], log);
    let zero = p.c(0.0);
    let is_zero = p.op2(S::Eq, x[0], zero);
    let v = p.select(is_zero, zero, product);
    let is_nan = p.op1(S::IsNan, x[1]);
    Ok(p.select(is_nan, x[1], v))
}

/// `log2(2^a + 2^b)` without overflow; equal infinities stay what they are.
/// With `m = max(a, b)` it is `m + log2(1 + 2^-|a - b|)`. For equal infinities the difference is
/// NaN.
fn logaddexp2(p: &mut Pw, x: &[StmtId]) -> Result<StmtId> {
    let m = p.max(x[0], x[1]);
    let d = p.sub(x[0], x[1]);
    let d = p.op1(S::Abs, d);
    let d = p.neg(d);
    let tail = p.chain(d, &[S::Exp2, S::Log1p])?;
    let tail = p.opc(S::Mul, tail, std::f64::consts::LOG2_E);
    let sum = p.add(m, tail);
    let same = p.op2(S::Eq, x[0], x[1]);
    let inf = p.op1(S::IsInf, x[0]);
    let keep = p.op2(S::And, same, inf);
    Ok(p.select(keep, x[0], sum))
}

/// 0 below zero, 1 above, the second operand at zero.
fn heaviside(p: &mut Pw, x: &[StmtId]) -> Result<StmtId> {
    let (zero, one) = (p.c(0.0), p.c(1.0));
    let is_zero = p.op2(S::Eq, x[0], zero);
    let positive = p.op2(S::Gt, x[0], zero);
    let v = p.select(positive, one, zero);
    Ok(p.select(is_zero, x[1], v))
}

/// `-x log(x)`, 0 at zero, `-inf` below.
fn entr(p: &mut Pw, x: &[StmtId]) -> Result<StmtId> {
    let zero = p.c(0.0);
    let log = p.op1(S::Log, x[0]);
    let product = p.mul(x[0], log);
    let v = p.neg(product);
    let is_zero = p.op2(S::Eq, x[0], zero);
    let v = p.select(is_zero, zero, v);
    // NaN fails the test and stays.
    let below = p.op2(S::Lt, x[0], zero);
    let inf = p.c(f64::NEG_INFINITY);
    Ok(p.select(below, inf, v))
}

/// `sin(pi x) / (pi x)`, 1 at zero.
fn sinc(p: &mut Pw, x: &[StmtId]) -> Result<StmtId> {
    let t = p.opc(S::Mul, x[0], std::f64::consts::PI);
    let s = p.op1(S::Sin, t);
    let q = p.div(s, t);
    let is_zero = p.opc(S::Eq, x[0], 0.0);
    let one = p.c(1.0);
    Ok(p.select(is_zero, one, q))
}

/// `condition ? self : other`.
fn choose(p: &mut Pw, x: &[StmtId]) -> Result<StmtId> {
    Ok(p.select(x[0], x[1], x[2]))
}

/// `mask ? value : self`.
fn masked_fill(p: &mut Pw, x: &[StmtId]) -> Result<StmtId> {
    Ok(p.select(x[1], x[2], x[0]))
}

/// The second operand in the dtype and sizes of the call: `fill` and `copy` read nothing of the
/// first.
fn second(_: &mut Pw, x: &[StmtId]) -> Result<StmtId> {
    Ok(x[1])
}

/// The angle of a number on the real line: 0 or pi, NaN for NaN.
fn angle(p: &mut Pw, x: &[StmtId]) -> Result<StmtId> {
    let (zero, pi) = (p.c(0.0), p.c(std::f64::consts::PI));
    let negative = p.op2(S::Lt, x[0], zero);
    let v = p.select(negative, pi, zero);
    let is_nan = p.op1(S::IsNan, x[0]);
    Ok(p.select(is_nan, x[0], v))
}

pointwise! {
    "aten.angle.default" "(Tensor self) -> Tensor"
        ["self"] Float angle, "(f32[4])";
    // Rounding.
    "aten.floor.default" "(Tensor self) -> Tensor"
        ["self"] Common |p, x| round(p, S::Floor, x[0]), "(f32[4])";
    "aten.ceil.default" "(Tensor self) -> Tensor"
        ["self"] Common |p, x| round(p, S::Ceil, x[0]), "(i64[4])";
    "aten.trunc.default" "(Tensor self) -> Tensor"
        ["self"] Common |p, x| round(p, S::Trunc, x[0]), "(f32[4])";
    "aten.round.default" "(Tensor self) -> Tensor"
        ["self"] Common |p, x| round(p, S::Round, x[0]), "(f32[9]{-3:3})";
    "aten.round.decimals" "(Tensor self, *, int decimals) -> Tensor"
        ["self"] Common round_decimals, "(f32[4], decimals=1)";
    "aten.frac.default" "(Tensor self) -> Tensor"
        ["self"] Common |p, x| { let t = p.op1(S::Trunc, x[0]); Ok(p.sub(x[0], t)) }, "(f32[4])";
    // Exponentials and logarithms.
    "aten.exp.default" "(Tensor self) -> Tensor"
        ["self"] Float unary!(Exp), "(i64[4])";
    "aten.exp2.default" "(Tensor self) -> Tensor"
        ["self"] Float unary!(Exp2), "(f32[4])";
    "aten.expm1.default" "(Tensor self) -> Tensor"
        ["self"] Float unary!(Expm1), "(f32[4])";
    "aten.log.default" "(Tensor self) -> Tensor"
        ["self"] Float unary!(Log), "(f32[4]{0.1:9})";
    "aten.log2.default" "(Tensor self) -> Tensor"
        ["self"] Float unary!(Log2), "(f32[4]{0.1:9})";
    "aten.log10.default" "(Tensor self) -> Tensor"
        ["self"] Float unary!(Log10), "(f32[4]{0.1:9})";
    "aten.log1p.default" "(Tensor self) -> Tensor"
        ["self"] Float unary!(Log1p), "(f32[4]{0:9})";
    "aten.sqrt.default" "(Tensor self) -> Tensor"
        ["self"] Float unary!(Sqrt), "(f32[4]{0:9})";
    "aten.rsqrt.default" "(Tensor self) -> Tensor"
        ["self"] Float unary!(Rsqrt), "(f32[4]{0.1:9})";
    "aten.reciprocal.default" "(Tensor self) -> Tensor"
        ["self"] Float unary!(Reciprocal), "(i64[4]{1:9})";
    "aten.logit.default" "(Tensor self, float? eps=None) -> Tensor"
        ["self"] Float logit, "(f32[4]{0:1}, 0.01)";
    "aten.xlogy.Tensor" "(Tensor self, Tensor other) -> Tensor"
        ["self", "other"] Float xlogy, "(f32[4], f32[4]{0.1:9})";
    "aten.xlogy.Scalar_Other" "(Tensor self, Scalar other) -> Tensor"
        ["self", "other"] Float xlogy, "(f32[4], 2)";
    "aten.logaddexp.default" "(Tensor self, Tensor other) -> Tensor"
        ["self", "other"] Float |p, x| Ok(p.op2(S::Logaddexp, x[0], x[1])), "(f32[4], f32[4])";
    "aten.logaddexp2.default" "(Tensor self, Tensor other) -> Tensor"
        ["self", "other"] Float logaddexp2, "(f32[4], f32[4])";
    "aten.special_entr.default" "(Tensor self) -> Tensor"
        ["self"] Float entr, "(f32[4]{0:2})";
    // Trigonometry.
    "aten.sin.default" "(Tensor self) -> Tensor"
        ["self"] Float unary!(Sin), "(f32[4])";
    "aten.cos.default" "(Tensor self) -> Tensor"
        ["self"] Float unary!(Cos), "(f32[4])";
    "aten.tan.default" "(Tensor self) -> Tensor"
        ["self"] Float unary!(Tan), "(f32[4]{-1:1})";
    "aten.asin.default" "(Tensor self) -> Tensor"
        ["self"] Float unary!(Asin), "(f32[4]{-1:1})";
    "aten.acos.default" "(Tensor self) -> Tensor"
        ["self"] Float unary!(Acos), "(f32[4]{-1:1})";
    "aten.atan.default" "(Tensor self) -> Tensor"
        ["self"] Float unary!(Atan), "(f32[4])";
    "aten.atan2.default" "(Tensor self, Tensor other) -> Tensor"
        ["self", "other"] Float binary!(Atan2), "(f32[4], f32[4])";
    "aten.sinh.default" "(Tensor self) -> Tensor"
        ["self"] Float unary!(Sinh), "(f32[4])";
    "aten.cosh.default" "(Tensor self) -> Tensor"
        ["self"] Float unary!(Cosh), "(f32[4])";
    "aten.tanh.default" "(Tensor self) -> Tensor"
        ["self"] Float unary!(Tanh), "(f16[4])";
    "aten.asinh.default" "(Tensor self) -> Tensor"
        ["self"] Float unary!(Asinh), "(f32[4])";
    "aten.acosh.default" "(Tensor self) -> Tensor"
        ["self"] Float unary!(Acosh), "(f32[4]{1:9})";
    "aten.atanh.default" "(Tensor self) -> Tensor"
        ["self"] Float unary!(Atanh), "(f32[4]{-0.9:0.9})";
    "aten.hypot.default" "(Tensor self, Tensor other) -> Tensor"
        ["self", "other"] Common binary!(Hypot), "(f32[4], f32[4])";
    "aten.sinc.default" "(Tensor self) -> Tensor"
        ["self"] Float sinc, "(f32[4])";
    "aten.deg2rad.default" "(Tensor self) -> Tensor"
        ["self"] Float |p, x| Ok(p.opc(S::Mul, x[0], std::f64::consts::PI / 180.0)), "(f32[4])";
    "aten.rad2deg.default" "(Tensor self) -> Tensor"
        ["self"] Float |p, x| Ok(p.opc(S::Mul, x[0], 180.0 / std::f64::consts::PI)), "(f32[4])";
    "aten.erf.default" "(Tensor self) -> Tensor"
        ["self"] Float unary!(Erf), "(f32[4])";
    "aten.erfc.default" "(Tensor self) -> Tensor"
        ["self"] Float unary!(Erfc), "(f32[4])";
    "aten.lgamma.default" "(Tensor self) -> Tensor"
        ["self"] Float unary!(Lgamma), "(f32[4]{0.1:9})";
    // Extremes and bounds.
    "aten.maximum.default" "(Tensor self, Tensor other) -> Tensor"
        ["self", "other"] Common binary!(Maximum), "(f32[4], f32[4])";
    "aten.minimum.default" "(Tensor self, Tensor other) -> Tensor"
        ["self", "other"] Common binary!(Minimum), "(i64[4], i64[4])";
    "aten.max.other" "(Tensor self, Tensor other) -> Tensor"
        ["self", "other"] Common binary!(Maximum), "(f32[4], f32[4])";
    "aten.min.other" "(Tensor self, Tensor other) -> Tensor"
        ["self", "other"] Common binary!(Minimum), "(f32[4], f32[4])";
    "aten.fmax.default" "(Tensor self, Tensor other) -> Tensor"
        ["self", "other"] Common |p, x| extreme_number(p, S::Maximum, x), "(f32[4], f32[4])";
    "aten.fmin.default" "(Tensor self, Tensor other) -> Tensor"
        ["self", "other"] Common |p, x| extreme_number(p, S::Minimum, x), "(f32[4], f32[4])";
    "aten.clamp.default" "(Tensor self, Scalar? min=None, Scalar? max=None) -> Tensor"
        ["self", "min", "max"] Common clamp, "(f32[4], -0.5, 0.5)";
    "aten.clamp.Tensor" "(Tensor self, Tensor? min=None, Tensor? max=None) -> Tensor"
        ["self", "min", "max"] Common clamp, "(f32[2,3], none, f32[3])";
    "aten.clamp_min.default" "(Tensor self, Scalar min) -> Tensor"
        ["self", "min"] Common |p, x| { refuse_bools(p)?; Ok(p.max(x[0], x[1])) }, "(f32[4], 0)";
    "aten.clamp_min.Tensor" "(Tensor self, Tensor min) -> Tensor"
        ["self", "min"] Common binary!(Maximum), "(f32[4], f32[])";
    "aten.clamp_max.default" "(Tensor self, Scalar max) -> Tensor"
        ["self", "max"] Common |p, x| { refuse_bools(p)?; Ok(p.min(x[0], x[1])) }, "(f32[4], 0)";
    "aten.clamp_max.Tensor" "(Tensor self, Tensor max) -> Tensor"
        ["self", "max"] Common binary!(Minimum), "(f32[4], f32[])";
    // Signs and special values.
    "aten.copysign.Tensor" "(Tensor self, Tensor other) -> Tensor"
        ["self", "other"] Float binary!(Copysign), "(f32[4], f32[4])";
    "aten.copysign.Scalar" "(Tensor self, Scalar other) -> Tensor"
        ["self", "other"] Float binary!(Copysign), "(f32[4], -1)";
    "aten.gcd.default" "(Tensor self, Tensor other) -> Tensor"
        ["self", "other"] Common |p, x| gcd(p, x), "(i64[9]{-60:60}, i64[9]{-60:60})";
    "aten.lcm.default" "(Tensor self, Tensor other) -> Tensor"
        ["self", "other"] Common lcm, "(i32[9]{-60:60}, i32[9]{-4:60})";
    "aten.nextafter.default" "(Tensor self, Tensor other) -> Tensor"
        ["self", "other"] Common binary!(Nextafter), "(f32[4], f32[4])";
    "aten.nan_to_num.default" "(Tensor self, float? nan=None, float? posinf=None, float? neginf=None) -> Tensor"
        ["self"] Common nan_to_num, "(f32[4], 1.0)";
    "aten.heaviside.default" "(Tensor self, Tensor values) -> Tensor"
        ["self", "values"] Common heaviside, "(f32[4], f32[4])";
    // Choices.
    "inrush.assured.default" "(Tensor self, Tensor holds) -> Tensor"
        ["self", "?holds"] First |p, x| Ok(p.assured(x[0], x[1])), "(f32[2,3], bool[3]{1:1})";
    "aten.where.self" "(Tensor condition, Tensor self, Tensor other) -> Tensor"
        ["?condition", "self", "other"] Common choose, "(bool[3], f32[2,3], i64[])";
    "aten.where.ScalarSelf" "(Tensor condition, Scalar self, Tensor other) -> Tensor"
        ["?condition", "self", "other"] Common choose, "(bool[3], 1.0, f32[2,3])";
    "aten.where.ScalarOther" "(Tensor condition, Tensor self, Scalar other) -> Tensor"
        ["?condition", "self", "other"] Common choose, "(bool[3], f32[2,3], 0)";
    "aten.where.Scalar" "(Tensor condition, Scalar self, Scalar other) -> Tensor"
        ["?condition", "self", "other"] Common choose, "(bool[3], 1, 2.0)";
    "aten.masked_fill.Scalar" "(Tensor self, Tensor mask, Scalar value) -> Tensor"
        ["self", "?mask", "value"] First masked_fill, "(f32[2,3], bool[3], -inf)";
    "aten.masked_fill.Tensor" "(Tensor self, Tensor mask, Tensor value) -> Tensor"
        ["self", "?mask", "value"] First masked_fill, "(f32[2,3], bool[3], f32[])";
    "aten.fill.Scalar" "(Tensor self, Scalar value) -> Tensor"
        ["self", "value"] First second, "(f32[4], 2)";
    "aten.fill.Tensor" "(Tensor self, Tensor value) -> Tensor"
        ["self", "value"] First second, "(f32[4], i64[])";
    "aten.copy.default" "(Tensor self, Tensor src, bool non_blocking=False) -> Tensor"
        ["self", "src"] First second, "(f16[2,3], f32[3])";
    "aten.zero.default" "(Tensor self) -> Tensor"
        ["self"] First |p, _| Ok(p.c(0.0)), "(f32[4])";
}
