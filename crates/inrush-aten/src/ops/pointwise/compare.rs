//! Comparisons, logic, bits, and tests of single elements.
//!
//! Comparisons promote their operands together and give bools (`Promo::Compare`); with NaN all but
//! `!=` are false. Logical operators make each operand a bool first (`Promo::Logical`). Bit
//! operators stay in the common dtype, where those of bools are the logical ones.

use crate::Pw;
use crate::ops::pointwise::row::pointwise;
use inrush_base::{DType, Error, Result};
use inrush_loops::{ScalarOp as S, StmtId};

macro_rules! binary {
    ($op:ident) => {
        |p, x| Ok(p.op2(S::$op, x[0], x[1]))
    };
}

/// Applies a bit operation; floats have no bits to operate on.
fn bits(p: &mut Pw, op: S, x: &[StmtId]) -> Result<StmtId> {
    if p.is_float() {
        return Err(Error::input(format!("bit operations on {}", p.dtype)));
    }
    Ok(p.body.op(op, x))
}

/// Applies a shift; a right shift keeps the sign of signed integers.
fn shift(p: &mut Pw, op: S, x: &[StmtId]) -> Result<StmtId> {
    if p.dtype == DType::Bool {
        return Err(Error::input("shifts of bools"));
    }
    bits(p, op, x)
}

/// A test that no integer passes.
fn float_test(p: &mut Pw, op: S, x: StmtId) -> StmtId {
    if p.is_float() {
        p.op1(op, x)
    } else {
        p.bool(false)
    }
}

/// Every integer is finite.
fn isfinite(p: &mut Pw, x: &[StmtId]) -> Result<StmtId> {
    let nan = float_test(p, S::IsNan, x[0]);
    let inf = float_test(p, S::IsInf, x[0]);
    let either = p.op2(S::Or, nan, inf);
    Ok(p.op1(S::Not, either))
}

/// Compares with an infinity of one sign.
fn is_infinity(p: &mut Pw, x: StmtId, value: f64) -> Result<StmtId> {
    if p.is_float() {
        Ok(p.opc(S::Eq, x, value))
    } else {
        Ok(p.bool(false))
    }
}

/// Of floats the sign bit itself, so that -0 and NaN with a sign count.
fn signbit(p: &mut Pw, x: &[StmtId]) -> Result<StmtId> {
    Ok(if p.is_float() {
        p.op1(S::Signbit, x[0])
    } else if p.dtype.is_unsigned() || p.dtype == DType::Bool {
        p.bool(false)
    } else {
        p.opc(S::Lt, x[0], 0.0)
    })
}

/// `|a - b| <= atol + rtol * |b|`, or equal (which infinities of one sign are).
/// Integers are compared as `f64`. Both tolerances may be infinite, and so may the bound: a
/// distance that is infinite is never near.
fn isclose(p: &mut Pw, x: &[StmtId]) -> Result<StmtId> {
    let equal = p.op2(S::Eq, x[0], x[1]);
    if p.call.float("rtol")? < 0.0 || p.call.float("atol")? < 0.0 {
        return Err(Error::input("a tolerance below zero"));
    }
    let (rtol, atol) = (p.float("rtol")?, p.float("atol")?);
    let dtype = if p.is_float() { p.dtype } else { DType::F64 };
    let (a, b) = (p.cast(x[0], dtype), p.cast(x[1], dtype));
    // Eager's steps are operators of their own, which round halves.
    let d = p.op2(S::Sub, a, b);
    let d = p.cast(d, dtype);
    let d = p.op1(S::Abs, d);
    let size = p.op1(S::Abs, b);
    // Constants of the dtype compared in, which for integers is not the operands' own.
    let (rtol, atol) = (p.body.float(rtol, dtype), p.body.float(atol, dtype));
    let rel = p.op2(S::Mul, rtol, size);
    let rel = p.cast(rel, dtype);
    let bound = p.op2(S::Add, atol, rel);
    let bound = p.cast(bound, dtype);
    let near = p.op2(S::Le, d, bound);
    // `inf <= inf` holds, but only equal infinities are close.
    let infinite = p.op1(S::IsInf, d);
    let finite = p.op1(S::Not, infinite);
    let near = p.op2(S::And, near, finite);
    let close = p.op2(S::Or, equal, near);
    if !p.call.bool("equal_nan")? {
        return Ok(close);
    }
    let (na, nb) = (p.op1(S::IsNan, a), p.op1(S::IsNan, b));
    let both = p.op2(S::And, na, nb);
    Ok(p.op2(S::Or, close, both))
}

pointwise! {
    "aten.eq.Tensor" "(Tensor self, Tensor other) -> Tensor"
        ["self", "other"] Compare binary!(Eq), "(i64[4]{0:2}, f32[4]{0:2})";
    "aten.eq.Scalar" "(Tensor self, Scalar other) -> Tensor"
        ["self", "other"] Compare binary!(Eq), "(i64[4]{0:2}, 1)";
    "aten.ne.Tensor" "(Tensor self, Tensor other) -> Tensor"
        ["self", "other"] Compare binary!(Ne), "(bool[4], bool[4])";
    "aten.ne.Scalar" "(Tensor self, Scalar other) -> Tensor"
        ["self", "other"] Compare binary!(Ne), "(i64[4]{0:2}, 1)";
    "aten.lt.Tensor" "(Tensor self, Tensor other) -> Tensor"
        ["self", "other"] Compare binary!(Lt), "(f32[2,3], f32[3])";
    "aten.lt.Scalar" "(Tensor self, Scalar other) -> Tensor"
        ["self", "other"] Compare binary!(Lt), "(i64[4]{0:2}, 0.5)";
    "aten.le.Tensor" "(Tensor self, Tensor other) -> Tensor"
        ["self", "other"] Compare binary!(Le), "(i64[4,1]{0:4}, i64[4]{0:4})";
    "aten.le.Scalar" "(Tensor self, Scalar other) -> Tensor"
        ["self", "other"] Compare binary!(Le), "(f32[4], 0)";
    "aten.gt.Tensor" "(Tensor self, Tensor other) -> Tensor"
        ["self", "other"] Compare binary!(Gt), "(f16[4], f16[4])";
    "aten.gt.Scalar" "(Tensor self, Scalar other) -> Tensor"
        ["self", "other"] Compare binary!(Gt), "(f32[4], 0)";
    "aten.ge.Tensor" "(Tensor self, Tensor other) -> Tensor"
        ["self", "other"] Compare binary!(Ge), "(f32[4], f32[])";
    "aten.ge.Scalar" "(Tensor self, Scalar other) -> Tensor"
        ["self", "other"] Compare binary!(Ge), "(i64[4], 0)";
    "aten.logical_and.default" "(Tensor self, Tensor other) -> Tensor"
        ["self", "other"] Logical binary!(And), "(f32[4]{0:1}, bool[4])";
    "aten.logical_or.default" "(Tensor self, Tensor other) -> Tensor"
        ["self", "other"] Logical binary!(Or), "(i64[4]{0:1}, bool[4])";
    "aten.logical_xor.default" "(Tensor self, Tensor other) -> Tensor"
        ["self", "other"] Logical binary!(Xor), "(bool[4], bool[4])";
    "aten.logical_not.default" "(Tensor self) -> Tensor"
        ["self"] Logical |p, x| Ok(p.op1(S::Not, x[0])), "(i64[4]{0:1})";
    "aten.bitwise_and.Tensor" "(Tensor self, Tensor other) -> Tensor"
        ["self", "other"] Common |p, x| bits(p, S::And, x), "(bool[], bool[4])";
    "aten.bitwise_and.Scalar" "(Tensor self, Scalar other) -> Tensor"
        ["self", "other"] Common |p, x| bits(p, S::And, x), "(i64[4], 6)";
    "aten.bitwise_or.Tensor" "(Tensor self, Tensor other) -> Tensor"
        ["self", "other"] Common |p, x| bits(p, S::Or, x), "(i64[4], u8[4])";
    "aten.bitwise_or.Scalar" "(Tensor self, Scalar other) -> Tensor"
        ["self", "other"] Common |p, x| bits(p, S::Or, x), "(i64[4], 6)";
    "aten.bitwise_xor.Tensor" "(Tensor self, Tensor other) -> Tensor"
        ["self", "other"] Common |p, x| bits(p, S::Xor, x), "(i64[4], i64[4])";
    "aten.bitwise_xor.Scalar" "(Tensor self, Scalar other) -> Tensor"
        ["self", "other"] Common |p, x| bits(p, S::Xor, x), "(i64[4], 6)";
    "aten.bitwise_not.default" "(Tensor self) -> Tensor"
        ["self"] Common |p, x| bits(p, S::Not, x), "(u8[4])";
    "aten.bitwise_left_shift.Tensor" "(Tensor self, Tensor other) -> Tensor"
        ["self", "other"] Common |p, x| shift(p, S::Shl, x), "(i64[4], i64[4]{0:5})";
    "aten.bitwise_left_shift.Tensor_Scalar" "(Tensor self, Scalar other) -> Tensor"
        ["self", "other"] Common |p, x| shift(p, S::Shl, x), "(i32[4], 3)";
    "aten.bitwise_left_shift.Scalar" "(Tensor self, Scalar other) -> Tensor"
        ["self", "other"] Common |p, x| shift(p, S::Shl, x), "(i32[4], 3)";
    "aten.bitwise_left_shift.Scalar_Tensor" "(Scalar self, Tensor other) -> Tensor"
        ["self", "other"] Common |p, x| shift(p, S::Shl, x), "(3, i64[4]{0:5})";
    "aten.bitwise_right_shift.Scalar_Tensor" "(Scalar self, Tensor other) -> Tensor"
        ["self", "other"] Common |p, x| shift(p, S::Shr, x), "(100, i32[4]{0:5})";
    "aten.bitwise_right_shift.Tensor" "(Tensor self, Tensor other) -> Tensor"
        ["self", "other"] Common |p, x| shift(p, S::Shr, x), "(i64[4], i64[4]{0:5})";
    "aten.bitwise_right_shift.Tensor_Scalar" "(Tensor self, Scalar other) -> Tensor"
        ["self", "other"] Common |p, x| shift(p, S::Shr, x), "(i32[4], 3)";
    "aten.bitwise_right_shift.Scalar" "(Tensor self, Scalar other) -> Tensor"
        ["self", "other"] Common |p, x| shift(p, S::Shr, x), "(u8[4], 3)";
    "aten.isnan.default" "(Tensor self) -> Tensor"
        ["self"] Compare |p, x| Ok(float_test(p, S::IsNan, x[0])), "(f32[4])";
    "aten.isinf.default" "(Tensor self) -> Tensor"
        ["self"] Compare |p, x| Ok(float_test(p, S::IsInf, x[0])), "(i64[4])";
    "aten.isfinite.default" "(Tensor self) -> Tensor"
        ["self"] Compare isfinite, "(f32[4])";
    "aten.isposinf.default" "(Tensor self) -> Tensor"
        ["self"] Compare |p, x| is_infinity(p, x[0], f64::INFINITY), "(f32[4])";
    "aten.isneginf.default" "(Tensor self) -> Tensor"
        ["self"] Compare |p, x| is_infinity(p, x[0], f64::NEG_INFINITY), "(f32[4])";
    "aten.signbit.default" "(Tensor self) -> Tensor"
        ["self"] Compare signbit, "(f32[4])";
    "aten.isclose.default" "(Tensor self, Tensor other, float rtol=1e-05, float atol=1e-08, bool equal_nan=False) -> Tensor"
        ["self", "other"] Compare isclose, "(f32[4], f32[4], 0.5)";
}
