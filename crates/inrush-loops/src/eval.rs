//! Evaluates scalar operations. Constant folding and the interpreters share these functions, so
//! this file is the definition of each operation; compiled code is tested against it.
//!
//! Floats are carried as `f64` and rounded to the operation's dtype after each step. For `f32` that
//! is exact: `f64` has more than twice the digits, so double rounding changes nothing. Math
//! functions are correctly rounded except for rare ties. Integers are carried as `i128` and wrap.

use crate::{MOST_STEPS, ReduceOp, ScalarOp, StoreMode};
use inrush_base::{DType, Error, Float8, Result, Scalar};

/// Returns the value of `op` for operands of compute dtype `dtype` (for [`ScalarOp::Where`]: of the
/// second and third).
///
/// Operands are expected in `dtype`'s representation, as [`Scalar::convert`] gives it, and in the row's number.
pub fn op(op: ScalarOp, dtype: DType, args: &[Scalar]) -> Result<Scalar> {
    if args.len() != op.arity() {
        return Err(Error::internal(format!(
            "{} takes {} operands, not {}",
            op.text(),
            op.arity(),
            args.len()
        )));
    }
    if op == ScalarOp::Where {
        return Ok(if args[0].as_bool() { args[1] } else { args[2] });
    }
    let value = match dtype {
        DType::F32 | DType::F64 => {
            let f: Vec<f64> = args.iter().map(|a| a.as_f64()).collect();
            float(op, dtype, &f)
        }
        DType::Bool => logical(op, args),
        d if d.is_int() => {
            let v: Vec<i128> = args.iter().map(|a| wide(*a, d)).collect();
            integer(op, d, &v)
        }
        _ => None,
    };
    value.ok_or_else(|| Error::internal(format!("{} is not defined on {dtype}", op.text())))
}

/// Returns an integer constant of dtype `d` as a number (`u64` constants are held as the `i64` of
/// the same bits).
fn wide(a: Scalar, d: DType) -> i128 {
    match d {
        DType::U64 => a.as_i64() as u64 as i128,
        _ => a.as_i64() as i128,
    }
}

fn wrap(v: i128, d: DType) -> Scalar {
    Scalar::Int(v as i64).convert(d)
}

fn round_to(v: f64, d: DType) -> Scalar {
    Scalar::Float(v).convert(d)
}

fn float(op: ScalarOp, d: DType, x: &[f64]) -> Option<Scalar> {
    use ScalarOp::*;
    let a = x[0];
    let b = x.get(1).copied().unwrap_or(0.0);
    let compared = match op {
        Eq => a == b,
        Ne => a != b,
        Lt => a < b,
        Le => a <= b,
        Gt => a > b,
        Ge => a >= b,
        IsNan => a.is_nan(),
        IsInf => a.is_infinite(),
        Signbit => a.is_sign_negative(),
        _ => {
            let value = float_value(op, a, b, x, d == DType::F32)?;
            return Some(round_to(value, d));
        }
    };
    Some(Scalar::Bool(compared))
}

/// Evaluates an operation whose result is a float, before rounding.
fn float_value(op: ScalarOp, a: f64, b: f64, x: &[f64], single: bool) -> Option<f64> {
    use ScalarOp::*;
    Some(match op {
        Add => a + b,
        Sub => a - b,
        Mul => a * b,
        Div => a / b,
        // Fused in `f32`: by way of `f64` the sum would be rounded twice.
        Fma if single => (a as f32).mul_add(b as f32, x[2] as f32) as f64,
        Fma => a.mul_add(b, x[2]),
        Neg => -a,
        Abs => a.abs(),
        Remainder => {
            let r = libm::fmod(a, b);
            if r != 0.0 && ((r < 0.0) != (b < 0.0)) {
                r + b
            } else {
                r
            }
        }
        Fmod => libm::fmod(a, b),
        Maximum if a.is_nan() || b.is_nan() => f64::NAN,
        Minimum if a.is_nan() || b.is_nan() => f64::NAN,
        Maximum => a.max(b),
        Minimum => a.min(b),
        Reciprocal => 1.0 / a,
        Sqrt => a.sqrt(),
        Rsqrt => 1.0 / a.sqrt(),
        Sign => (a > 0.0) as u8 as f64 - (a < 0.0) as u8 as f64,
        Copysign => a.copysign(b),
        Floor => a.floor(),
        Ceil => a.ceil(),
        Trunc => a.trunc(),
        Round => a.round_ties_even(),
        Exp => libm::exp(a),
        Exp2 => libm::exp2(a),
        Expm1 => libm::expm1(a),
        Log => libm::log(a),
        Log2 => libm::log2(a),
        Log10 => libm::log10(a),
        Log1p => libm::log1p(a),
        Sin => libm::sin(a),
        Cos => libm::cos(a),
        Tan => libm::tan(a),
        Asin => libm::asin(a),
        Acos => libm::acos(a),
        Atan => libm::atan(a),
        Atan2 => libm::atan2(a, b),
        Sinh => libm::sinh(a),
        Cosh => libm::cosh(a),
        Tanh => libm::tanh(a),
        Asinh => libm::asinh(a),
        Acosh => libm::acosh(a),
        Atanh => libm::atanh(a),
        Erf => libm::erf(a),
        Erfc => libm::erfc(a),
        Lgamma => libm::lgamma(a),
        Pow => libm::pow(a, b),
        Hypot => libm::hypot(a, b),
        Logaddexp => logaddexp(a, b),
        Recurrence => recurrence(x, single),
        Kummer => kummer(a, b, x[2], x[3], single),
        GammaFraction => gamma_fraction(a, b, x[2], single),
        Nextafter if single => libm::nextafterf(a as f32, b as f32) as f64,
        Nextafter => libm::nextafter(a, b),
        _ => return None,
    })
}

fn integer(op: ScalarOp, d: DType, x: &[i128]) -> Option<Scalar> {
    use ScalarOp::*;
    let a = x[0];
    let b = x.get(1).copied().unwrap_or(0);
    let bits = 8 * d.size() as i128;
    Some(wrap(
        match op {
            Eq => return Some(Scalar::Bool(a == b)),
            Ne => return Some(Scalar::Bool(a != b)),
            Lt => return Some(Scalar::Bool(a < b)),
            Le => return Some(Scalar::Bool(a <= b)),
            Gt => return Some(Scalar::Bool(a > b)),
            Ge => return Some(Scalar::Bool(a >= b)),
            Add => a + b,
            Sub => a - b,
            Mul => a.wrapping_mul(b),
            Fma => a.wrapping_mul(b).wrapping_add(x[2]),
            Neg => -a,
            Abs => a.abs(),
            // A zero divisor is an error that a check raises; the value only has to exist.
            FloorDiv | TruncDiv | Remainder | Fmod if b == 0 => 0,
            FloorDiv => a.div_euclid(b) - (b < 0 && a.rem_euclid(b) != 0) as i128,
            TruncDiv => a / b,
            Remainder => match a % b {
                r if r != 0 && ((r < 0) != (b < 0)) => r + b,
                r => r,
            },
            Fmod => a % b,
            Maximum => a.max(b),
            Minimum => a.min(b),
            Sign => a.signum(),
            And => a & b,
            Or => a | b,
            Xor => a ^ b,
            Not => !a,
            // PyTorch defines shifts by the width or more, which C does not.
            Shl if !(0..bits).contains(&b) => 0,
            Shl => a << b,
            Shr if !(0..bits).contains(&b) => -((a < 0) as i128),
            Shr => a >> b,
            Gcd => {
                // The least integer has no absolute value: it stays as it is, as in wrapping
                // arithmetic.
                let size = |v: i128| if v == -(1 << (bits - 1)) { v } else { v.abs() };
                let (mut a, mut b) = (size(a), size(b));
                while a != 0 {
                    (a, b) = (b % a, a);
                }
                b
            }
            Philox if d == DType::I32 => {
                let word = |k: usize| x[k] as u32;
                let counter = [word(2), word(3), word(4) >> 2, 0];
                philox([word(0), word(1)], counter)[x[4] as usize & 3] as i128
            }
            _ => return None,
        },
        d,
    ))
}

/// Evaluates [`ScalarOp::Recurrence`], every step rounded to the dtype.
fn recurrence(x: &[f64], single: bool) -> f64 {
    let r = |v: f64| if single { v as f32 as f64 } else { v };
    let &[n, first, a, s, c, d, q] = x else {
        return f64::NAN;
    };
    if n < 1.0 {
        return f64::from(n >= 0.0);
    }
    let (mut before, mut now, mut k) = (1.0, first, 1.0);
    while k < n && !now.is_nan() {
        let (up, down) = (r(r(a + r(k * s)) * now), r(r(c + r(k * d)) * before));
        (before, now) = (now, r(r(up - down) / r(1.0 + r(k * q))));
        k += 1.0;
    }
    now
}

/// Evaluates [`ScalarOp::Logaddexp`].
fn logaddexp(a: f64, b: f64) -> f64 {
    // The greater is taken out, so that the exponential cannot overflow.
    let high = if a > b || a.is_nan() { a } else { b };
    // Infinities of one sign, whose difference would be NaN.
    if a == b {
        return a + std::f64::consts::LN_2;
    }
    high + libm::log1p(libm::exp(-(a - b).abs()))
}

/// Evaluates [`ScalarOp::Kummer`], every step rounded to the dtype.
fn kummer(b: f64, c: f64, x: f64, close: f64, single: bool) -> f64 {
    let r = |v: f64| if single { v as f32 as f64 } else { v };
    let (mut term, mut sum) = (1.0, 0.0);
    for n in 0..MOST_STEPS {
        let n = f64::from(n);
        term = r(term * r(r(r(b + n) * x) / r(r(c + n) * (n + 1.0))));
        sum = r(sum + term);
        if term.abs() <= r(close * sum.abs()) || sum.is_nan() {
            break;
        }
    }
    sum
}

/// Evaluates [`ScalarOp::GammaFraction`], every step rounded to the dtype, by Steed's recursion,
/// which needs one division per term.
fn gamma_fraction(a: f64, x: f64, close: f64, single: bool) -> f64 {
    let r = |v: f64| if single { v as f32 as f64 } else { v };
    let least = if single { 1e-30 } else { 1e-300 };
    let kept = |v: f64| if v.abs() < least { least } else { v };
    let mut b = r(r(x + 1.0) - a);
    let mut d = r(1.0 / kept(b));
    let (mut term, mut sum) = (d, d);
    for n in 1..=MOST_STEPS {
        let n = f64::from(n);
        b = r(b + 2.0);
        let t = r(r(n * r(a - n)) * d);
        d = r(1.0 / kept(r(t + b)));
        term = r(-r(t * d) * term);
        sum = r(sum + term);
        if term.abs() <= r(close * sum.abs()) || sum.is_nan() {
            break;
        }
    }
    sum
}

/// Returns four random words for a key and a counter by Philox 4x32-10 (Salmon, Moraes, Dror, Shaw:
/// "Parallel random numbers: as easy as 1, 2, 3", 2011).
pub fn philox(mut key: [u32; 2], mut c: [u32; 4]) -> [u32; 4] {
    for round in 0..10 {
        if round > 0 {
            key[0] = key[0].wrapping_add(0x9e37_79b9);
            key[1] = key[1].wrapping_add(0xbb67_ae85);
        }
        let p = c[0] as u64 * 0xd251_1f53;
        let q = c[2] as u64 * 0xcd9e_8d57;
        c = [
            (q >> 32) as u32 ^ c[1] ^ key[0],
            q as u32,
            (p >> 32) as u32 ^ c[3] ^ key[1],
            p as u32,
        ];
    }
    c
}

fn logical(op: ScalarOp, x: &[Scalar]) -> Option<Scalar> {
    use ScalarOp::*;
    let a = x[0].as_bool();
    let b = x.get(1).is_some_and(|b| b.as_bool());
    Some(Scalar::Bool(match op {
        And | Minimum => a & b,
        Or | Maximum => a | b,
        Xor | Ne => a ^ b,
        Not => !a,
        Eq => a == b,
        Lt => !a & b,
        Le => !a | b,
        Gt => a & !b,
        Ge => a | !b,
        _ => return None,
    }))
}

/// Returns `value` of dtype `from` converted to `to` with ATen's meaning, in the representation of
/// `to`.
///
/// A float beyond the integer's range is unspecified in ATen; here it saturates at 64 bits and then wraps.
pub fn cast(value: Scalar, from: DType, to: DType) -> Scalar {
    if from == DType::U64 && to.is_float() {
        return round_to(value.as_i64() as u64 as f64, to);
    }
    value.convert(to)
}

/// Returns the bits of `value` of storage dtype `from` read as `to` of equal size.
pub fn bitcast(value: Scalar, from: DType, to: DType) -> Result<Scalar> {
    if from.size() != to.size() {
        return Err(Error::internal(format!("{from} and {to} differ in size")));
    }
    let bits = to_bits(value, from)?;
    from_bits(bits, to)
}

/// Returns the bits of a value of storage dtype `d`, after rounding or wrapping it to `d`.
pub fn to_bits(value: Scalar, d: DType) -> Result<u64> {
    let v = value.convert(d);
    Ok(match d {
        DType::Bool => v.as_bool() as u64,
        DType::F16 => half::f16::from_f64(v.as_f64()).to_bits() as u64,
        DType::BF16 => half::bf16::from_f64(v.as_f64()).to_bits() as u64,
        DType::F32 => (v.as_f64() as f32).to_bits() as u64,
        DType::F64 => v.as_f64().to_bits(),
        _ if d.is_int() => v.as_i64() as u64 & (u64::MAX >> (64 - 8 * d.size())),
        _ => match Float8::of(d) {
            Some(f) => f.encode(v.as_f64() as f32) as u64,
            None => return Err(Error::unsupported(format!("values of dtype {d}"))),
        },
    })
}

/// Returns the value with these bits ([`to_bits`]).
pub fn from_bits(bits: u64, d: DType) -> Result<Scalar> {
    Ok(match d {
        DType::Bool => Scalar::Bool(bits != 0),
        DType::F16 => Scalar::Float(half::f16::from_bits(bits as u16).to_f64()),
        DType::BF16 => Scalar::Float(half::bf16::from_bits(bits as u16).to_f64()),
        DType::F32 => Scalar::Float(f32::from_bits(bits as u32) as f64),
        DType::F64 => Scalar::Float(f64::from_bits(bits)),
        _ if d.is_int() => Scalar::Int(bits as i64).convert(d),
        _ => match Float8::of(d) {
            Some(f) => Scalar::Float(f.decode(bits as u8) as f64),
            None => return Err(Error::unsupported(format!("values of dtype {d}"))),
        },
    })
}

/// Returns the neutral element of a reduction, which an empty reduction gives. Extremes start from
/// the end of the range (for floats from an infinity).
pub fn neutral(op: ReduceOp, d: DType) -> Scalar {
    let limit = |low: bool| match d.int_range() {
        Some((_, 1)) if d == DType::Bool => Scalar::Bool(!low),
        Some((lo, hi)) => Scalar::Int(if low { lo as i64 } else { hi as i64 }),
        None if low => Scalar::Float(f64::NEG_INFINITY),
        None => Scalar::Float(f64::INFINITY),
    };
    match op {
        ReduceOp::Sum | ReduceOp::XorSum => Scalar::Int(0).convert(d),
        ReduceOp::Prod => Scalar::Int(1).convert(d),
        ReduceOp::Any => Scalar::Bool(false),
        ReduceOp::All => Scalar::Bool(true),
        ReduceOp::Max | ReduceOp::LogSumExp => limit(true),
        ReduceOp::Min => limit(false),
        ReduceOp::ArgMax | ReduceOp::ArgMin => Scalar::Int(0),
    }
}

/// Returns the operation that combines two partial results of a reduction that gives values; `None`
/// for the arg kinds, which [`beats`] decides.
pub fn combiner(r: ReduceOp) -> Option<ScalarOp> {
    Some(match r {
        ReduceOp::Sum => ScalarOp::Add,
        ReduceOp::Prod => ScalarOp::Mul,
        ReduceOp::Max => ScalarOp::Maximum,
        ReduceOp::Min => ScalarOp::Minimum,
        ReduceOp::Any => ScalarOp::Or,
        ReduceOp::All => ScalarOp::And,
        ReduceOp::XorSum => ScalarOp::Xor,
        ReduceOp::LogSumExp => ScalarOp::Logaddexp,
        ReduceOp::ArgMax | ReduceOp::ArgMin => return None,
    })
}

/// Returns true if `new` replaces `best` in an arg reduction: it is strictly more extreme, or the
/// first NaN.
pub fn beats(r: ReduceOp, d: DType, new: Scalar, best: Scalar) -> bool {
    if d.is_float() {
        let (n, b) = (new.as_f64(), best.as_f64());
        return !b.is_nan() && (n.is_nan() || if r == ReduceOp::ArgMax { n > b } else { n < b });
    }
    let (n, b) = (wide(new, d), wide(best, d));
    if r == ReduceOp::ArgMax { n > b } else { n < b }
}

/// Returns the operation by which a store combines with what is there; `None` for a plain store.
pub fn store_op(mode: StoreMode) -> Option<ScalarOp> {
    Some(match mode {
        StoreMode::Set => return None,
        StoreMode::Add => ScalarOp::Add,
        StoreMode::Mul => ScalarOp::Mul,
        StoreMode::Max => ScalarOp::Maximum,
        StoreMode::Min => ScalarOp::Minimum,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use DType::*;
    use ScalarOp::*;

    fn i(v: i64) -> Scalar {
        Scalar::Int(v)
    }
    fn f(v: f64) -> Scalar {
        Scalar::Float(v)
    }

    #[test]
    fn integers_wrap_and_divide_as_aten() {
        for (o, d, a, b, want) in [
            (Add, I8, 127, 1, -128),
            (Sub, U8, 0, 1, 255),
            (Mul, I32, 1 << 20, 1 << 20, 0),
            (Mul, I64, i64::MAX, 2, -2),
            (Neg, I64, i64::MIN, 0, i64::MIN),
            (FloorDiv, I32, -7, 2, -4),
            (FloorDiv, I32, 7, -2, -4),
            (FloorDiv, I32, -7, -2, 3),
            (FloorDiv, I64, i64::MIN, -1, i64::MIN),
            (FloorDiv, U64, -1, 2, i64::MAX),
            (TruncDiv, I32, -7, 2, -3),
            (TruncDiv, I32, 5, 0, 0),
            (Remainder, I32, -7, 2, 1),
            (Remainder, I32, 7, -2, -1),
            (Fmod, I32, -7, 2, -1),
            (Shl, I32, 1, 31, i32::MIN as i64),
            (Shl, I32, 1, 32, 0),
            (Shr, I8, -128, 9, -1),
            (Shr, U8, 255, -1, 0),
            (Not, U8, 1, 0, 254),
            (Maximum, U64, -1, 1, -1),
        ] {
            let args = [i(a), i(b)];
            let got = op(o, d, &args[..o.arity()]).unwrap();
            assert_eq!(got, i(want), "{} {d} {a} {b}", o.text());
        }
    }

    #[test]
    fn floats_follow_the_table() {
        let nan = f64::NAN;
        for (o, a, b, want) in [
            (Maximum, nan, 1.0, nan),
            (Minimum, 1.0, nan, nan),
            (Remainder, -7.5, 2.0, 0.5),
            (Remainder, 7.5, -2.0, -0.5),
            (Fmod, -7.5, 2.0, -1.5),
            (Round, 2.5, 0.0, 2.0),
            (Round, -0.5, 0.0, -0.0),
            (Sign, nan, 0.0, 0.0),
            (Sign, -0.5, 0.0, -1.0),
            (Div, 1.0, 3.0, (1.0f32 / 3.0) as f64),
            (Pow, 0.0, 0.0, 1.0),
            (Copysign, 3.0, -0.0, -3.0),
        ] {
            let args = [f(a), f(b)];
            let got = op(o, F32, &args[..o.arity()]).unwrap();
            assert_eq!(got, f(want), "{} {a} {b}", o.text());
        }
        assert!(op(FloorDiv, F32, &[f(1.0), f(2.0)]).is_err());
        assert!(op(Exp, I32, &[i(1)]).is_err());
        assert!(op(Add, F32, &[f(1.0)]).is_err());
    }

    #[test]
    fn incomplete_gamma_functions_follow_from_series_and_fraction() {
        // 1F1(1; 2; x) = (exp(x) - 1) / x, and gamma(1, x) exp(x) / x = 1 / x.
        for x in [0.5, 3.0, 40.0] {
            let series = op(Kummer, F64, &[f(1.0), f(2.0), f(x), f(f64::EPSILON)]);
            let series = series.unwrap().as_f64();
            let want = libm::expm1(x) / x - 1.0;
            assert!((series / want - 1.0).abs() < 1e-12, "{x}: {series} {want}");
            let fraction = op(GammaFraction, F64, &[f(1.0), f(x), f(f64::EPSILON)]);
            let fraction = fraction.unwrap().as_f64();
            assert!((fraction * x - 1.0).abs() < 1e-14, "{x}: {fraction}");
            // A looser tolerance ends the series earlier.
            let series = op(Kummer, F64, &[f(1.0), f(2.0), f(x), f(1e-5)]).unwrap();
            let off = (series.as_f64() / want - 1.0).abs();
            assert!((1e-14..1e-4).contains(&off), "{x}: {off}");
        }
        let none = op(Kummer, F64, &[f(1.0), f(2.0), f(0.0), f(1e-9)]).unwrap();
        assert_eq!(none, f(0.0));
        let lost = op(Kummer, F64, &[f(f64::NAN), f(2.0), f(1.0), f(1e-9)]).unwrap();
        assert!(lost.as_f64().is_nan());
    }

    /// Compares with the test vectors that its authors publish.
    #[test]
    fn philox_gives_its_authors_numbers() {
        assert_eq!(
            philox([0, 0], [0; 4]),
            [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]
        );
        assert_eq!(
            philox([u32::MAX; 2], [u32::MAX; 4]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        let word = op(Philox, I32, &[i(0), i(0), i(0), i(0), i(0)]).unwrap();
        assert_eq!(word, i(0x6627_e8d5));
        let second = op(Philox, I32, &[i(0), i(0), i(0), i(0), i(1)]).unwrap();
        assert_eq!(second, i(0xe169_c58d_u32 as i32 as i64));
    }

    #[test]
    fn every_operation_has_a_value_somewhere() {
        for o in ScalarOp::all() {
            let defined = [F32, I64, I32, Bool].into_iter().any(|d| {
                let args: Vec<Scalar> = (0..o.arity()).map(|_| i(1).convert(d)).collect();
                op(o, d, &args).is_ok()
            });
            assert!(defined, "{}", o.text());
        }
    }

    #[test]
    fn casts_and_bits() {
        assert_eq!(cast(f(-1.9), F32, I32), i(-1));
        assert_eq!(cast(f(300.0), F32, U8), i(44));
        assert_eq!(cast(f(0.5), F32, Bool), Scalar::Bool(true));
        assert_eq!(cast(i(-1), U64, F64), f(18446744073709551615.0));
        assert_eq!(cast(f(1.0 + 1.0 / 256.0), F32, BF16), f(1.0));
        assert_eq!(bitcast(f(1.0), F32, I32).unwrap(), i(0x3f80_0000));
        assert_eq!(bitcast(i(-1), I8, U8).unwrap(), i(255));
        assert!(bitcast(i(1), I8, I16).is_err());
    }

    #[test]
    fn the_first_extreme_wins_and_nan_is_extreme() {
        let nan = f(f64::NAN);
        assert!(beats(ReduceOp::ArgMax, F32, nan, f(1.0)));
        assert!(!beats(ReduceOp::ArgMax, F32, nan, nan));
        assert!(!beats(ReduceOp::ArgMax, F32, f(9.0), nan));
        assert!(!beats(ReduceOp::ArgMin, I64, i(1), i(1)));
        assert!(beats(ReduceOp::ArgMax, U64, i(-1), i(1)));
    }
}
