//! Pointwise operators: a scalar function of broadcast operands, computed in `f64` or the common integer dtype.
//!
//! Operands are broadcast and promoted, and a function of scalars gives each element. Promotion
//! follows ATen's three ranks: tensors with dimensions decide; tensors without dimensions, and
//! after them Python numbers, count only if their class (boolean, integer, float, complex) is
//! higher.
//!
//! ```text
//! f16 tensor + 1.5                 f16   a number of the same class changes nothing
//! i32 tensor + 1.5                 f32   a number of a higher class: its default dtype
//! i32 tensor + f64 scalar tensor   f64   a tensor without dimensions of a higher class
//! ```
//!
//! Floats are computed in `f64` and rounded to the result's dtype once. Definitions are the
//! mathematical ones, and the limits of PyTorch (thresholds, NaN rules) where it has any.

use super::call::Call;
use super::{broadcast, broadcast_position, domain};
use crate::tensor::Tensor;
use inrush_base::{DType, DTypeClass, Error, Result, Scalar, promote};
use inrush_graph::Arg;
use inrush_loops::{ScalarOp, eval};

/// A scalar function. `d` is the dtype of the operands, `x` the operands, `p` the call for further arguments.
type Function = fn(&Call, DType, &[Scalar]) -> Result<Scalar>;

/// Names, number of leading arguments that are operands, function.
const TABLE: &[(&str, usize, Function)] = &[
    ("add.Tensor add.Scalar", 2, |p, d, x| {
        scaled(p, d, ScalarOp::Add, x[0], x[1])
    }),
    ("sub.Tensor sub.Scalar", 2, |p, d, x| {
        scaled(p, d, ScalarOp::Sub, x[0], x[1])
    }),
    ("rsub.Tensor rsub.Scalar", 2, |p, d, x| {
        scaled(p, d, ScalarOp::Sub, x[1], x[0])
    }),
    ("mul.Tensor mul.Scalar", 2, |_, d, x| match d {
        DType::Bool => op(ScalarOp::And, d, x),
        _ => op(ScalarOp::Mul, d, x),
    }),
    ("div.Tensor div.Scalar", 2, |_, _, x| {
        Ok(Scalar::Float(f(x, 0) / f(x, 1)))
    }),
    ("div.Tensor_mode div.Scalar_mode", 2, |p, d, x| {
        divide(p.str(2), d, x)
    }),
    ("floor_divide floor_divide.Scalar", 2, |_, d, x| {
        divide("floor", d, x)
    }),
    (
        "remainder.Tensor remainder.Scalar remainder.Scalar_Tensor",
        2,
        |_, d, x| op(ScalarOp::Remainder, d, x),
    ),
    ("fmod.Tensor fmod.Scalar", 2, |_, d, x| {
        op(ScalarOp::Fmod, d, x)
    }),
    ("maximum max.other", 2, |_, d, x| {
        op(ScalarOp::Maximum, d, x)
    }),
    ("minimum min.other", 2, |_, d, x| {
        op(ScalarOp::Minimum, d, x)
    }),
    ("fmax", 2, |_, _, x| Ok(Scalar::Float(f(x, 0).max(f(x, 1))))),
    ("fmin", 2, |_, _, x| Ok(Scalar::Float(f(x, 0).min(f(x, 1))))),
    (
        "pow.Tensor_Tensor pow.Tensor_Scalar pow.Scalar",
        2,
        |_, d, x| power(d, x),
    ),
    ("atan2", 2, |_, _, x| {
        Ok(Scalar::Float(libm::atan2(f(x, 0), f(x, 1))))
    }),
    ("hypot", 2, |_, _, x| {
        Ok(Scalar::Float(libm::hypot(f(x, 0), f(x, 1))))
    }),
    ("copysign.Tensor copysign.Scalar", 2, |_, _, x| {
        Ok(Scalar::Float(f(x, 0).copysign(f(x, 1))))
    }),
    ("logaddexp", 2, |_, _, x| {
        let (m, n) = (f(x, 0).max(f(x, 1)), f(x, 0).min(f(x, 1)));
        Ok(Scalar::Float(if m == n && m.is_infinite() {
            m
        } else {
            m + libm::log1p(libm::exp(n - m))
        }))
    }),
    (
        "bitwise_and.Tensor bitwise_and.Scalar __and__.Tensor __and__.Scalar",
        2,
        |_, d, x| op(ScalarOp::And, d, x),
    ),
    (
        "bitwise_or.Tensor bitwise_or.Scalar __or__.Tensor __or__.Scalar",
        2,
        |_, d, x| op(ScalarOp::Or, d, x),
    ),
    (
        "bitwise_xor.Tensor bitwise_xor.Scalar __xor__.Tensor __xor__.Scalar",
        2,
        |_, d, x| op(ScalarOp::Xor, d, x),
    ),
    (
        "bitwise_left_shift.Tensor bitwise_left_shift.Tensor_Scalar",
        2,
        |_, d, x| op(ScalarOp::Shl, d, x),
    ),
    (
        "bitwise_right_shift.Tensor bitwise_right_shift.Tensor_Scalar",
        2,
        |_, d, x| op(ScalarOp::Shr, d, x),
    ),
    ("bitwise_not", 1, |_, d, x| op(ScalarOp::Not, d, x)),
    ("logical_and", 2, |_, _, x| {
        Ok(Scalar::Bool(x[0].as_bool() && x[1].as_bool()))
    }),
    ("logical_or", 2, |_, _, x| {
        Ok(Scalar::Bool(x[0].as_bool() || x[1].as_bool()))
    }),
    ("logical_xor", 2, |_, _, x| {
        Ok(Scalar::Bool(x[0].as_bool() != x[1].as_bool()))
    }),
    ("logical_not", 1, |_, _, x| {
        Ok(Scalar::Bool(!x[0].as_bool()))
    }),
    ("eq.Tensor eq.Scalar", 2, |_, d, x| op(ScalarOp::Eq, d, x)),
    ("ne.Tensor ne.Scalar", 2, |_, d, x| op(ScalarOp::Ne, d, x)),
    ("lt.Tensor lt.Scalar", 2, |_, d, x| op(ScalarOp::Lt, d, x)),
    ("le.Tensor le.Scalar", 2, |_, d, x| op(ScalarOp::Le, d, x)),
    ("gt.Tensor gt.Scalar", 2, |_, d, x| op(ScalarOp::Gt, d, x)),
    ("ge.Tensor ge.Scalar", 2, |_, d, x| op(ScalarOp::Ge, d, x)),
    ("isnan", 1, |_, _, x| Ok(Scalar::Bool(f(x, 0).is_nan()))),
    ("isinf", 1, |_, _, x| {
        Ok(Scalar::Bool(f(x, 0).is_infinite()))
    }),
    ("isfinite", 1, |_, _, x| {
        Ok(Scalar::Bool(f(x, 0).is_finite()))
    }),
    ("isposinf", 1, |_, _, x| {
        Ok(Scalar::Bool(f(x, 0) == f64::INFINITY))
    }),
    ("isneginf", 1, |_, _, x| {
        Ok(Scalar::Bool(f(x, 0) == f64::NEG_INFINITY))
    }),
    ("heaviside", 2, |_, _, x| {
        Ok(match f(x, 0) {
            // Both zeros match: `heaviside(-0.0)` is the second operand too.
            0.0 => x[1],
            v => Scalar::Float((v > 0.0) as u8 as f64),
        })
    }),
    ("celu", 1, |p, _, x| {
        let (v, alpha) = (f(x, 0), p.float(1, 1.0)?);
        Ok(Scalar::Float(if v > 0.0 {
            v
        } else {
            alpha * libm::expm1(v / alpha)
        }))
    }),
    ("softshrink", 1, |p, _, x| {
        let (v, l) = (f(x, 0), p.float(1, 0.5)?);
        Ok(Scalar::Float(match v {
            v if v > l => v - l,
            v if v < -l => v + l,
            // A NaN is neither above nor below, and must not become zero.
            v if v.is_nan() => v,
            _ => 0.0,
        }))
    }),
    ("logit", 1, |p, _, x| {
        let v = match p.opt_scalar(1)? {
            // `max` and `min` of Rust would replace NaN by the limit.
            Some(e) if !f(x, 0).is_nan() => f(x, 0).max(e.as_f64()).min(1.0 - e.as_f64()),
            _ => f(x, 0),
        };
        Ok(Scalar::Float(libm::log(v / (1.0 - v))))
    }),
    ("signbit", 1, |_, d, x| {
        Ok(Scalar::Bool(if d.is_float() {
            // -0.0 has its sign bit set.
            f(x, 0).is_sign_negative()
        } else {
            f(x, 0) < 0.0
        }))
    }),
    ("neg", 1, |_, d, x| op(ScalarOp::Neg, d, x)),
    ("abs", 1, |_, d, x| match d {
        DType::Bool => Ok(x[0]),
        _ => op(ScalarOp::Abs, d, x),
    }),
    ("sign sgn", 1, |_, d, x| match d {
        DType::Bool => Ok(x[0]),
        _ => op(ScalarOp::Sign, d, x),
    }),
    ("square", 1, |_, d, x| op(ScalarOp::Mul, d, &[x[0], x[0]])),
    ("relu", 1, |_, d, x| {
        op(ScalarOp::Maximum, d, &[x[0], Scalar::Int(0).convert(d)])
    }),
    // Of integers; floats are in the table `FLOATS`, which is asked first.
    ("floor ceil trunc round", 1, |_, _, x| Ok(x[0])),
    (
        "_to_copy to.dtype to.device to.other to.dtype_layout clone alias detach contiguous lift_fresh_copy lift \
         lift_fresh dropout type_as alias_copy detach_copy positive",
        1,
        |_, _, x| Ok(x[0]),
    ),
    ("copy", 2, |_, _, x| Ok(x[1])),
    ("fill.Scalar fill.Tensor", 2, |_, _, x| Ok(x[1])),
    ("full_like", 2, |_, _, x| Ok(x[1])),
    (
        "zeros_like zero",
        1,
        |_, d, _| Ok(Scalar::Int(0).convert(d)),
    ),
    ("ones_like", 1, |_, d, _| Ok(Scalar::Int(1).convert(d))),
    ("clamp", 1, |p, d, x| {
        clamp(d, x[0], limit(p, d, 1)?, limit(p, d, 2)?)
    }),
    ("clamp_min", 1, |p, d, x| {
        clamp(d, x[0], limit(p, d, 1)?, None)
    }),
    ("clamp_max", 1, |p, d, x| {
        clamp(d, x[0], None, limit(p, d, 1)?)
    }),
    ("hardtanh", 1, |p, d, x| {
        let (lo, hi) = (p.float(1, -1.0)?, p.float(2, 1.0)?);
        clamp(
            d,
            x[0],
            Some(Scalar::Float(lo).convert(d)),
            Some(Scalar::Float(hi).convert(d)),
        )
    }),
    ("relu6", 1, |_, d, x| {
        clamp(
            d,
            x[0],
            Some(Scalar::Int(0).convert(d)),
            Some(Scalar::Int(6).convert(d)),
        )
    }),
    (
        "where.self where.ScalarSelf where.ScalarOther where.Scalar",
        3,
        |_, _, x| Ok(if x[0].as_bool() { x[1] } else { x[2] }),
    ),
    ("masked_fill.Scalar masked_fill.Tensor", 3, |_, _, x| {
        Ok(if x[1].as_bool() { x[2] } else { x[0] })
    }),
    ("lerp.Scalar lerp.Tensor", 3, |_, _, x| {
        // ATen has a second form for weights from 0.5 on, which differs by rounding only.
        Ok(Scalar::Float(f(x, 0) + f(x, 2) * (f(x, 1) - f(x, 0))))
    }),
    ("addcmul", 3, |p, _, x| {
        Ok(Scalar::Float(
            f(x, 0) + p.float(3, 1.0)? * f(x, 1) * f(x, 2),
        ))
    }),
    ("addcdiv", 3, |p, _, x| {
        Ok(Scalar::Float(
            f(x, 0) + p.float(3, 1.0)? * f(x, 1) / f(x, 2),
        ))
    }),
    ("leaky_relu", 1, |p, _, x| {
        let slope = p.float(1, 0.01)?;
        Ok(Scalar::Float(if f(x, 0) > 0.0 {
            f(x, 0)
        } else {
            slope * f(x, 0)
        }))
    }),
    ("elu", 1, |p, _, x| {
        let (alpha, scale, inner) = (p.float(1, 1.0)?, p.float(2, 1.0)?, p.float(3, 1.0)?);
        let v = f(x, 0);
        Ok(Scalar::Float(if v > 0.0 {
            scale * v
        } else {
            scale * alpha * libm::expm1(v * inner)
        }))
    }),
    ("softplus", 1, |p, _, x| {
        let (beta, threshold) = (p.float(1, 1.0)?, p.float(2, 20.0)?);
        let v = f(x, 0);
        // Beyond the threshold the function is linear by definition, and `exp` does not overflow.
        Ok(Scalar::Float(if v * beta > threshold {
            v
        } else {
            libm::log1p(libm::exp(v * beta)) / beta
        }))
    }),
    ("gelu", 1, |p, _, x| {
        let v = f(x, 0);
        Ok(Scalar::Float(if p.str(1) == "tanh" {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (v + 0.044715 * v * v * v);
            0.5 * v * (1.0 + libm::tanh(inner))
        } else {
            0.5 * v * (1.0 + libm::erf(v / std::f64::consts::SQRT_2))
        }))
    }),
];

type OfFloat = fn(f64) -> f64;

/// Functions of one float.
/// Integer operands are converted first if the result is a float.
const FLOATS: &[(&str, OfFloat)] = &[
    ("exp", libm::exp),
    ("exp2", libm::exp2),
    ("expm1", libm::expm1),
    ("log", libm::log),
    ("log2", libm::log2),
    ("log10", libm::log10),
    ("log1p", libm::log1p),
    ("sqrt", libm::sqrt),
    ("rsqrt", |x| 1.0 / libm::sqrt(x)),
    ("reciprocal", |x| 1.0 / x),
    ("sin", libm::sin),
    ("cos", libm::cos),
    ("tan", libm::tan),
    ("asin", libm::asin),
    ("acos", libm::acos),
    ("atan", libm::atan),
    ("sinh", libm::sinh),
    ("cosh", libm::cosh),
    ("tanh", libm::tanh),
    ("asinh", libm::asinh),
    ("acosh", libm::acosh),
    ("atanh", libm::atanh),
    ("erf", libm::erf),
    ("erfc", libm::erfc),
    ("lgamma", libm::lgamma),
    ("floor", f64::floor),
    ("ceil", f64::ceil),
    ("trunc", f64::trunc),
    // Ties go to the even neighbour, as in Python.
    ("round", f64::round_ties_even),
    ("frac", |x| x - x.trunc()),
    ("sigmoid", sigmoid),
    ("silu", |x| x * sigmoid(x)),
    ("mish", |x| x * libm::tanh(libm::log1p(libm::exp(x)))),
    ("log_sigmoid", |x| {
        x.min(0.0) - libm::log1p(libm::exp(-x.abs()))
    }),
    ("hardsigmoid", |x| clamp_nan(x + 3.0, 6.0) / 6.0),
    ("hardswish", |x| x * clamp_nan(x + 3.0, 6.0) / 6.0),
    ("selu", |x| {
        let (alpha, scale) = (1.6732632423543772, 1.0507009873554805);
        scale * if x > 0.0 { x } else { alpha * libm::expm1(x) }
    }),
];

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + libm::exp(-x))
}

/// Returns `x` in `0..=hi`; NaN stays.
fn clamp_nan(x: f64, hi: f64) -> f64 {
    if x.is_nan() { x } else { x.clamp(0.0, hi) }
}

/// Returns number of operands and function of an operator.
fn row(name: &str) -> Option<(usize, Function)> {
    let hit = |names: &str| names.split_whitespace().any(|n| n == name);
    TABLE.iter().find(|r| hit(r.0)).map(|r| (r.1, r.2))
}

fn of_float(name: &str) -> Option<OfFloat> {
    FLOATS.iter().find(|r| r.0 == name).map(|r| r.1)
}

pub(super) fn knows(name: &str) -> bool {
    of_float(name).is_some() || row(name).is_some()
}

/// Evaluates an operator for which `knows` is true.
pub(super) fn eval(name: &str, call: &Call) -> Result<Vec<Tensor>> {
    let (dtype, _) = call.out(0)?;
    let arity = row(name).map_or(1, |r| r.0);
    let operands: Vec<Operand> = (0..arity)
        .map(|k| Operand::new(call, k))
        .collect::<Result<_>>()?;
    // Conditions take no part in promotion.
    let numbers: &[usize] = match name.split('.').next() {
        Some("where") => &[1, 2],
        Some("masked_fill") => &[0, 2],
        _ => &[0, 1, 2],
    };
    let part = operands
        .iter()
        .enumerate()
        .filter(|(k, _)| numbers.contains(k));
    let common = common(part.map(|p| p.1));
    // Functions compute in this dtype; the result has the declared one.
    let d = domain(common);
    let sizes = operands
        .iter()
        .try_fold(Vec::new(), |sizes, o| broadcast(&sizes, o.sizes()))?;
    let out = call.build(0, &sizes, |at| {
        let mut x = Vec::with_capacity(arity);
        for (k, o) in operands.iter().enumerate() {
            let v = o.get(at)?;
            // A number is rounded to the common dtype before it is used: `f16 tensor + 0.1` adds
            // the `f16` nearest to 0.1.
            x.push(match numbers.contains(&k) {
                // A Python number takes part in the dtype of the computation, but for factors that of the tensors.
                true if o.is_number() && keeps(name) && k == 1 => v.convert(common.compute()),
                true if o.is_number() => v.convert(common),
                true => v.convert(d),
                false => v,
            });
        }
        match (of_float(name), row(name)) {
            (Some(f), _) if d.is_float() || dtype.is_float() => Ok(Scalar::Float(f(x[0].as_f64()))),
            (_, Some((_, f))) => f(call, d, &x),
            _ => Err(Error::input(format!("`{name}` of {common}"))),
        }
    });
    Ok(vec![out?])
}

/// Returns true if eager keeps the precision of a number on the right of this operator on halves.
/// Eager computes halves in `f32` there and hands such a number to the kernel as `f32`.
fn keeps(name: &str) -> bool {
    let family = name.split('.').next().unwrap_or(name);
    matches!(family, "mul" | "div" | "floor_divide" | "lerp")
}

/// An operand: a tensor, or a Python number or scalar that a node computed.
enum Operand<'a> {
    Tensor(&'a Tensor),
    Number(Scalar),
}

impl<'a> Operand<'a> {
    fn new(call: &Call<'a>, k: usize) -> Result<Operand<'a>> {
        if let Arg::Value(_) = call.arg(k)
            && let Ok(t) = call.tensor(k)
        {
            return Ok(Operand::Tensor(t));
        }
        (call.opt_scalar(k)?)
            .map(Operand::Number)
            .ok_or_else(|| Error::input(format!("argument {k} is missing")))
    }
    fn is_number(&self) -> bool {
        matches!(self, Operand::Number(_))
    }
    fn sizes(&self) -> &[i64] {
        match self {
            Operand::Tensor(t) => &t.sizes,
            Operand::Number(_) => &[],
        }
    }
    fn get(&self, at: &[i64]) -> Result<Scalar> {
        match self {
            Operand::Tensor(t) => t.get(broadcast_position(&t.sizes, at)?),
            Operand::Number(s) => Ok(*s),
        }
    }
}

/// Returns the common dtype by ATen's promotion: tensors with dimensions, then zero-dimensional
/// ones, then numbers. A weaker kind counts only if its class is higher.
fn common<'a, 'b: 'a>(operands: impl Iterator<Item = &'a Operand<'b>>) -> DType {
    let mut by_rank: [Option<DType>; 3] = [None; 3];
    for o in operands {
        let (kind, d) = match o {
            Operand::Tensor(t) if t.rank() > 0 => (0, t.dtype),
            Operand::Tensor(t) => (1, t.dtype),
            Operand::Number(s) => (2, s.default_dtype()),
        };
        // Within a rank all dtypes promote together.
        by_rank[kind] = Some(by_rank[kind].map_or(d, |e| promote(e, d)));
    }
    let stronger = |a: Option<DType>, b: Option<DType>| match (a, b) {
        (Some(a), Some(b)) if class(b) > class(a) => Some(b),
        (Some(a), _) => Some(a),
        (None, b) => b,
    };
    stronger(stronger(by_rank[0], by_rank[1]), by_rank[2]).unwrap_or(DType::F32)
}

fn class(d: DType) -> DTypeClass {
    d.class()
}

fn f(x: &[Scalar], k: usize) -> f64 {
    x[k].as_f64()
}

fn op(o: ScalarOp, d: DType, x: &[Scalar]) -> Result<Scalar> {
    eval::op(o, d, x)
}

/// Returns `a op alpha * b`.
/// `alpha` is argument 2, 1 if absent. Booleans add by or.
fn scaled(p: &Call, d: DType, o: ScalarOp, a: Scalar, b: Scalar) -> Result<Scalar> {
    if d == DType::Bool {
        return op(ScalarOp::Or, d, &[a, b]);
    }
    let alpha = p.opt_scalar(2)?.unwrap_or(Scalar::Int(1)).convert(d);
    match o {
        ScalarOp::Sub => op(o, d, &[a, b]).and_then(|plain| {
            if alpha == Scalar::Int(1).convert(d) {
                Ok(plain)
            } else {
                op(o, d, &[a, op(ScalarOp::Mul, d, &[alpha, b])?])
            }
        }),
        _ => op(o, d, &[a, op(ScalarOp::Mul, d, &[alpha, b])?]),
    }
}

/// Returns the quotient, rounded as `rounding_mode` says: `floor`, `trunc`, or not at all.
fn divide(mode: &str, d: DType, x: &[Scalar]) -> Result<Scalar> {
    match (mode, d.is_float()) {
        ("floor", true) => Ok(Scalar::Float(floor_quotient(f(x, 0), f(x, 1)))),
        ("trunc", true) => Ok(Scalar::Float((f(x, 0) / f(x, 1)).trunc())),
        ("floor", false) => op(ScalarOp::FloorDiv, d, x),
        ("trunc", false) => op(ScalarOp::TruncDiv, d, x),
        _ => Ok(Scalar::Float(f(x, 0) / f(x, 1))),
    }
}

/// Computes Python's `//` from the remainder: `(a - a % b) / b`, so that infinities follow the
/// remainder.
/// This is ATen's `div_floor_floating`, which is not `floor(a / b)`: that rounds first, and is
/// wrong where the quotient rounds up to an integer.
fn floor_quotient(a: f64, b: f64) -> f64 {
    if b == 0.0 {
        return a / b;
    }
    let r = libm::fmod(a, b);
    let q = (a - r) / b;
    let q = if r != 0.0 && (b < 0.0) != (r < 0.0) {
        q - 1.0
    } else {
        q
    };
    match q {
        // A zero keeps the sign of the exact quotient.
        0.0 => 0.0f64.copysign(a / b),
        // The division was exact but for rounding.
        q if q - q.floor() > 0.5 => q.floor() + 1.0,
        q => q.floor(),
    }
}

/// Returns a power; of integers by squaring, wrapping in their dtype as ATen's `powi` does.
fn power(d: DType, x: &[Scalar]) -> Result<Scalar> {
    if d.is_float() {
        return Ok(Scalar::Float(libm::pow(f(x, 0), f(x, 1))));
    }
    let (mut base, mut n) = (x[0], x[1].as_i64());
    if n < 0 {
        // Only 1 and -1 have integer inverses.
        return Ok(Scalar::Int(match (base.as_i64(), n % 2) {
            (1, _) => 1,
            (-1, 0) => 1,
            (-1, _) => -1,
            _ => 0,
        }));
    }
    let mut out = Scalar::Int(1);
    while n > 0 {
        if n & 1 == 1 {
            out = op(ScalarOp::Mul, d, &[out, base])?;
        }
        base = op(ScalarOp::Mul, d, &[base, base])?;
        n >>= 1;
    }
    Ok(out)
}

/// Returns a bound of `clamp` in the dtype of the operands.
fn limit(p: &Call, d: DType, k: usize) -> Result<Option<Scalar>> {
    Ok(p.opt_scalar(k)?.map(|s| s.convert(d)))
}

/// Takes the maximum first, so `hi` wins where `lo > hi`, and NaN propagates.
fn clamp(d: DType, x: Scalar, lo: Option<Scalar>, hi: Option<Scalar>) -> Result<Scalar> {
    let mut v = x;
    if let Some(lo) = lo {
        v = op(ScalarOp::Maximum, d, &[v, lo])?;
    }
    if let Some(hi) = hi {
        v = op(ScalarOp::Minimum, d, &[v, hi])?;
    }
    Ok(v)
}
