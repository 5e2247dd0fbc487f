//! Arithmetic on elements: sums, products, quotients, remainders, powers.
//!
//! Bools: a sum is their disjunction, a product their conjunction, a difference is refused.
//! Integers wrap on overflow. Integer division by zero is an error at compile time for a constant
//! divisor; for a tensor it is a check, which fails the call.

use crate::ops::pointwise::row::pointwise;
use crate::{Operand, Pw};
use inrush_base::{DType, Error, ErrorKind, Result, Scalar};
use inrush_loops::{ScalarOp as S, StmtId};

/// `a + b`; of bools their disjunction.
fn plus(p: &mut Pw, a: StmtId, b: StmtId) -> StmtId {
    let op = if p.dtype == DType::Bool {
        S::Or
    } else {
        S::Add
    };
    p.op2(op, a, b)
}

/// `a * b`; of bools their conjunction.
fn times(p: &mut Pw, a: StmtId, b: StmtId) -> StmtId {
    let op = if p.dtype == DType::Bool {
        S::And
    } else {
        S::Mul
    };
    p.op2(op, a, b)
}

/// `alpha * b`, where `alpha` is 1 nearly always.
/// A bool is an `alpha` for bool tensors only, a float for float tensors only.
fn scaled(p: &mut Pw, b: StmtId) -> Result<StmtId> {
    let alpha = p.call.scalar("alpha")?;
    if matches!(alpha, Scalar::Bool(_)) && p.dtype != DType::Bool {
        return Err(Error::input("`alpha` must be a number"));
    }
    // Nearly every call: no product is emitted.
    if alpha.as_f64() == 1.0 {
        return Ok(b);
    }
    if matches!(alpha, Scalar::Float(_)) && !p.is_float() {
        return Err(Error::input(
            "`alpha` must be an integer for integer tensors",
        ));
    }
    let alpha = p.number("alpha")?;
    Ok(times(p, alpha, b))
}

fn add(p: &mut Pw, x: &[StmtId]) -> Result<StmtId> {
    let b = scaled(p, x[1])?;
    Ok(plus(p, x[0], b))
}

/// `a - alpha * b`. A bool operand is refused even where promotion would make it an integer.
fn minus(p: &mut Pw, a: StmtId, b: StmtId) -> Result<StmtId> {
    let truth = |name| {
        matches!(
            p.call.operand(name),
            Ok(Some(Operand::Scalar(Scalar::Bool(_))))
        )
    };
    if p.dtype == DType::Bool || truth("self") || truth("other") {
        return Err(Error::input("bools cannot be subtracted"));
    }
    let b = scaled(p, b)?;
    Ok(p.sub(a, b))
}

fn sub(p: &mut Pw, x: &[StmtId]) -> Result<StmtId> {
    minus(p, x[0], x[1])
}

/// `other - alpha * self`: the operands change places, `alpha` goes with the second.
fn rsub(p: &mut Pw, x: &[StmtId]) -> Result<StmtId> {
    minus(p, x[1], x[0])
}

fn mul(p: &mut Pw, x: &[StmtId]) -> Result<StmtId> {
    Ok(times(p, x[0], x[1]))
}

fn div(p: &mut Pw, x: &[StmtId]) -> Result<StmtId> {
    Ok(p.div(x[0], x[1]))
}

/// Division under a `rounding_mode`; the row's promotion `Division` keeps integers only with one.
fn div_mode(p: &mut Pw, x: &[StmtId]) -> Result<StmtId> {
    if p.dtype == DType::Bool {
        return Err(Error::input("division of bools"));
    }
    match p.call.opt_str("rounding_mode")? {
        None => div(p, x),
        Some("floor") => floor_divide(p, x),
        Some("trunc") if p.is_float() => {
            let q = p.div(x[0], x[1]);
            // The quotient of halves is a half: 6.999 may be 7. That by a number is not rounded.
            let dtype = p.dtype;
            let q = match p.is_number("other")? {
                true => q,
                false => p.cast(q, dtype),
            };
            Ok(p.op1(S::Trunc, q))
        }
        Some("trunc") => {
            // Integers round towards zero by themselves.
            let b = divisor(p, x[1])?;
            Ok(p.op2(S::TruncDiv, x[0], b))
        }
        Some(_) => Err(p.call.unsupported("rounding_mode", "unknown mode")),
    }
}

/// Returns the divisor of integers with a check for zero: at compile time for a number, else at run
/// time.
fn divisor(p: &mut Pw, b: StmtId) -> Result<StmtId> {
    if p.is_float() || p.dtype == DType::Bool {
        return Ok(b);
    }
    if let Ok(Some(Operand::Scalar(s))) = p.call.operand("other")
        && s.convert(p.dtype).as_i64() == 0
    {
        return Err(Error::new(
            ErrorKind::ZeroDivision,
            "ZeroDivisionError: an integer is divided by zero",
        ));
    }
    Ok(p.divisor(b))
}

/// Floor division. For floats the quotient comes from the remainder, so that it is exact where `floor(a / b)` rounds up.
/// As Python does it: with `r = fmod(a, b)`, which is exact, `(a - r) / b` is an integer up to
/// rounding. One less if `r` and `b` differ in sign, then to the nearest integer. A quotient of
/// zero has the sign of `a / b`, and so have the infinity or NaN of a division by zero.
fn floor_divide(p: &mut Pw, x: &[StmtId]) -> Result<StmtId> {
    let (a, b) = (x[0], x[1]);
    if !p.is_float() {
        let b = divisor(p, b)?;
        return Ok(p.op2(S::FloorDiv, a, b));
    }
    let zero = p.c(0.0);
    let quotient = p.div(a, b);
    let rem = p.op2(S::Fmod, a, b);
    let exact = p.sub(a, rem);
    let q = p.div(exact, b);
    // One less when the remainder has the other sign.
    let nonzero = p.op2(S::Ne, rem, zero);
    let (sb, sr) = (p.op2(S::Lt, b, zero), p.op2(S::Lt, rem, zero));
    let differ = p.op2(S::Xor, sb, sr);
    let adjust = p.op2(S::And, nonzero, differ);
    let less = p.opc(S::Sub, q, 1.0);
    let q = p.select(adjust, less, q);
    // `q` is an integer up to rounding.
    let floor = p.op1(S::Floor, q);
    let gap = p.sub(q, floor);
    let up = p.opc(S::Gt, gap, 0.5);
    let next = p.opc(S::Add, floor, 1.0);
    let rounded = p.select(up, next, floor);
    let is_zero = p.op2(S::Eq, q, zero);
    let signed_zero = p.op2(S::Copysign, zero, quotient);
    let result = p.select(is_zero, signed_zero, rounded);
    let by_zero = p.op2(S::Eq, b, zero);
    Ok(p.select(by_zero, quotient, result))
}

/// The remainder with the divisor's sign.
fn remainder(p: &mut Pw, x: &[StmtId]) -> Result<StmtId> {
    refuse_bools(p)?;
    let b = divisor(p, x[1])?;
    Ok(p.op2(S::Remainder, x[0], b))
}

/// Eager has no remainders of bools.
fn refuse_bools(p: &Pw) -> Result<()> {
    match p.dtype {
        DType::Bool => Err(Error::input("remainders of bools")),
        _ => Ok(()),
    }
}

/// The remainder with the dividend's sign.
fn fmod(p: &mut Pw, x: &[StmtId]) -> Result<StmtId> {
    refuse_bools(p)?;
    let b = divisor(p, x[1])?;
    Ok(p.op2(S::Fmod, x[0], b))
}

/// Computes a power with a constant exponent. Float exponents that are a product, a root or a
/// reciprocal need no call of `pow`; integer ones are unrolled into about `2 log2(e)` products.
fn pow_scalar(p: &mut Pw, x: &[StmtId]) -> Result<StmtId> {
    let e = p.float("exponent")?;
    let x0 = x[0];
    if p.is_float() {
        return Ok(match e {
            0.0 => p.c(1.0),
            1.0 => x0,
            2.0 => p.mul(x0, x0),
            3.0 => {
                let sq = p.mul(x0, x0);
                p.mul(sq, x0)
            }
            0.5 => p.op1(S::Sqrt, x0),
            -0.5 => p.op1(S::Rsqrt, x0),
            -1.0 => p.op1(S::Reciprocal, x0),
            -2.0 => {
                let sq = p.mul(x0, x0);
                p.op1(S::Reciprocal, sq)
            }
            _ => p.op2(S::Pow, x0, x[1]),
        });
    }
    let e = p.call.scalar("exponent")?.as_i64();
    if e < 0 {
        return Err(Error::input("integers to a negative power"));
    }
    // Square and multiply.
    let mut result = p.c(1.0);
    let (mut base, mut rest) = (x0, e);
    while rest > 0 {
        if rest & 1 == 1 {
            result = times(p, result, base);
        }
        rest >>= 1;
        if rest > 0 {
            base = times(p, base, base);
        }
    }
    Ok(result)
}

/// A power with an exponent per element. Integer powers are square-and-multiply over all value bits
/// of the exponent (63 for `i64`): there is no branch to stop early, so each bit selects.
fn pow(p: &mut Pw, x: &[StmtId]) -> Result<StmtId> {
    if p.is_float() {
        return Ok(p.op2(S::Pow, x[0], x[1]));
    }
    let dtype = p.dtype;
    if dtype == DType::Bool {
        // a ** b is false only for a = false, b = true.
        let not_b = p.op1(S::Not, x[1]);
        return Ok(p.op2(S::Or, x[0], not_b));
    }
    let (one, zero) = (p.c(1.0), p.c(0.0));
    let mut result = one;
    let mut base = x[0];
    // The sign bit of the exponent is no value bit; negative exponents are selected below.
    let bits = 8 * dtype.size() - !dtype.is_unsigned() as usize;
    for k in 0..bits {
        let shift = p.c(k as f64);
        let shifted = p.op2(S::Shr, x[1], shift);
        let bit = p.op2(S::And, shifted, one);
        let set = p.op2(S::Ne, bit, zero);
        let product = p.mul(result, base);
        result = p.select(set, product, result);
        if k + 1 < bits {
            base = p.mul(base, base);
        }
    }
    if dtype.is_unsigned() {
        return Ok(result);
    }
    // Negative exponents: 1 and -1 keep their parity, everything else vanishes.
    let minus_one = p.c(-1.0);
    let is_one = p.op2(S::Eq, x[0], one);
    let is_minus = p.op2(S::Eq, x[0], minus_one);
    let odd = p.op2(S::And, x[1], one);
    let is_odd = p.op2(S::Ne, odd, zero);
    let sign = p.select(is_odd, minus_one, one);
    let other = p.select(is_minus, sign, zero);
    let tiny = p.select(is_one, one, other);
    let negative = p.op2(S::Lt, x[1], zero);
    Ok(p.select(negative, tiny, result))
}

fn neg(p: &mut Pw, x: &[StmtId]) -> Result<StmtId> {
    if p.dtype == DType::Bool {
        return Err(Error::input("bools cannot be negated; use logical_not"));
    }
    Ok(p.neg(x[0]))
}

/// Unsigned integers and bools are their own size.
fn abs(p: &mut Pw, x: &[StmtId]) -> Result<StmtId> {
    let unsigned = p.dtype == DType::Bool || p.dtype.is_unsigned();
    Ok(if unsigned { x[0] } else { p.op1(S::Abs, x[0]) })
}

/// -1, 0 or 1 in the operand's dtype; a bool is its own sign.
fn sign(p: &mut Pw, x: &[StmtId]) -> Result<StmtId> {
    if p.dtype == DType::Bool {
        return Ok(x[0]);
    }
    Ok(p.op1(S::Sign, x[0]))
}

fn square(p: &mut Pw, x: &[StmtId]) -> Result<StmtId> {
    Ok(times(p, x[0], x[0]))
}

/// `self + value * tensor1 * tensor2`.
/// The order of the two products is eager's: rounding depends on it.
fn addcmul(p: &mut Pw, x: &[StmtId]) -> Result<StmtId> {
    let value = p.number("value")?;
    let a = p.mul(value, x[1]);
    let b = p.mul(a, x[2]);
    Ok(p.add(x[0], b))
}

/// `self + value * tensor1 / tensor2`, of floats only.
fn addcdiv(p: &mut Pw, x: &[StmtId]) -> Result<StmtId> {
    if !p.is_float() {
        return Err(Error::input("addcdiv of integers"));
    }
    let value = p.number("value")?;
    let a = p.mul(value, x[1]);
    let b = p.div(a, x[2]);
    Ok(p.add(x[0], b))
}

/// Linear interpolation from the nearer end, so that weights 0 and 1 give the ends exactly.
fn lerp(p: &mut Pw, x: &[StmtId]) -> Result<StmtId> {
    let (a, b, w) = (x[0], x[1], x[2]);
    let d = p.sub(b, a);
    let step = p.mul(w, d);
    let from_a = p.add(a, step);
    let back = p.cop(S::Sub, 1.0, w);
    let step = p.mul(d, back);
    let from_b = p.sub(b, step);
    let size = p.op1(S::Abs, w);
    let near = p.opc(S::Lt, size, 0.5);
    Ok(p.select(near, from_a, from_b))
}

pointwise! {
    "aten.add.Tensor" "(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor"
        ["self", "other"] Common add, "(f32[2,3], f32[3], alpha=2)";
    "aten.add.Scalar" "(Tensor self, Scalar other, Scalar alpha=1) -> Tensor"
        ["self", "other"] Common add, "(i64[4], 2.5)";
    "aten.sub.Tensor" "(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor"
        ["self", "other"] Common sub, "(u8[4], u8[4])";
    "aten.sub.Scalar" "(Tensor self, Scalar other, Scalar alpha=1) -> Tensor"
        ["self", "other"] Common sub, "(f16[4], 2)";
    "aten.rsub.Tensor" "(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor"
        ["self", "other"] Common rsub, "(f32[4], f32[1])";
    "aten.rsub.Scalar" "(Tensor self, Scalar other, Scalar alpha=1) -> Tensor"
        ["self", "other"] Common rsub, "(f32[4], 1)";
    "aten.mul.Tensor" "(Tensor self, Tensor other) -> Tensor"
        ["self", "other"] Common mul, "(f32[2,1], i64[3])";
    "aten.mul.Scalar" "(Tensor self, Scalar other) -> Tensor"
        ["self", "other"] Common mul, "(bool[4], 3)";
    "aten.div.Tensor" "(Tensor self, Tensor other) -> Tensor"
        ["self", "other"] Float div, "(i64[2,3], i64[3])";
    "aten.div.Scalar" "(Tensor self, Scalar other) -> Tensor"
        ["self", "other"] Float div, "(bf16[2,3], 7)";
    "aten.div.Tensor_mode" "(Tensor self, Tensor other, *, str? rounding_mode) -> Tensor"
        ["self", "other"] Division div_mode, "(f32[9]{-9:9}, f32[9]{1:4}, rounding_mode=\"floor\")";
    "aten.div.Scalar_mode" "(Tensor self, Scalar other, *, str? rounding_mode) -> Tensor"
        ["self", "other"] Division div_mode, "(i32[9], -3, rounding_mode=\"trunc\")";
    "aten.floor_divide.default" "(Tensor self, Tensor other) -> Tensor"
        ["self", "other"] Common floor_divide, "(i64[9]{-9:9}, i64[9]{1:4})";
    "aten.floor_divide.Scalar" "(Tensor self, Scalar other) -> Tensor"
        ["self", "other"] Common floor_divide, "(f32[9]{-9:9}, -0.5)";
    "aten.remainder.Tensor" "(Tensor self, Tensor other) -> Tensor"
        ["self", "other"] Common remainder, "(i64[9]{-9:9}, i64[9]{1:4})";
    "aten.remainder.Scalar" "(Tensor self, Scalar other) -> Tensor"
        ["self", "other"] Common remainder, "(f32[9], -3)";
    "aten.remainder.Scalar_Tensor" "(Scalar self, Tensor other) -> Tensor"
        ["self", "other"] Common remainder, "(7, i64[9]{1:4})";
    "aten.fmod.Tensor" "(Tensor self, Tensor other) -> Tensor"
        ["self", "other"] Common fmod, "(f32[9]{-9:9}, f32[9]{1:4})";
    "aten.fmod.Scalar" "(Tensor self, Scalar other) -> Tensor"
        ["self", "other"] Common fmod, "(i64[9], 4)";
    "aten.pow.Tensor_Scalar" "(Tensor self, Scalar exponent) -> Tensor"
        ["self", "exponent"] Common pow_scalar, "(f32[4], 3)";
    "aten.pow.Tensor_Tensor" "(Tensor self, Tensor exponent) -> Tensor"
        ["self", "exponent"] Common pow, "(i32[9]{-3:3}, i32[9]{0:9})";
    "aten.pow.Scalar" "(Scalar self, Tensor exponent) -> Tensor"
        ["self", "exponent"] Common pow, "(2.0, f32[9])";
    "aten.neg.default" "(Tensor self) -> Tensor"
        ["self"] Common neg, "(u8[4])";
    "aten.abs.default" "(Tensor self) -> Tensor"
        ["self"] Common abs, "(i64[4])";
    "aten.sign.default" "(Tensor self) -> Tensor"
        ["self"] Common sign, "(f32[4])";
    "aten.square.default" "(Tensor self) -> Tensor"
        ["self"] Common square, "(f32[4])";
    "aten.addcmul.default" "(Tensor self, Tensor tensor1, Tensor tensor2, *, Scalar value=1) -> Tensor"
        ["self", "tensor1", "tensor2"] Common addcmul, "(f32[2,3], f32[3], f32[2,1], value=0.5)";
    "aten.addcdiv.default" "(Tensor self, Tensor tensor1, Tensor tensor2, *, Scalar value=1) -> Tensor"
        ["self", "tensor1", "tensor2"] Common addcdiv, "(f32[2,3], f32[3], f32[2,1]{1:2}, value=0.5)";
    "aten.lerp.Scalar" "(Tensor self, Tensor end, Scalar weight) -> Tensor"
        ["self", "end", "weight"] Common lerp, "(f32[4], f32[4], 0.75)";
    "aten.lerp.Tensor" "(Tensor self, Tensor end, Tensor weight) -> Tensor"
        ["self", "end", "weight"] Common lerp, "(f32[4], f32[4], f32[4])";
}
