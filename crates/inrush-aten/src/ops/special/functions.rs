//! Special functions, written in scalar operations: every language has them, and they fuse.
//!
//! Where a function has pieces, all are evaluated and one is selected: vectors have no branches. The approximations are the
//! classical ones (coefficients in `special_tables.rs`); what is written here is their evaluation. Values are computed in the
//! operands' compute dtype.
//!
//! Three evaluation schemes recur: polynomials by Horner's rule, quotients of two polynomials, and
//! Chebyshev series by Clenshaw's rule. Symmetries (`f(-x)` from `f(x)`) and recurrences move an
//! argument to where an approximation holds. Arguments outside of a piece may overflow there; what
//! they give is not selected.

use crate::Pw;
use crate::ops::pointwise::row::pointwise;
use crate::ops::special::tables::*;
use inrush_base::{DType, Result};
use inrush_loops::{ScalarOp as S, StmtId};
use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_PI, FRAC_2_SQRT_PI, FRAC_PI_4, LN_2, PI};

impl Pw<'_, '_> {
    /// A polynomial by Horner's rule, highest power first.
    pub(in crate::ops) fn polynomial(&mut self, x: StmtId, c: &[f64]) -> StmtId {
        let mut sum = self.c(c.first().copied().unwrap_or(0.0));
        for k in c.iter().skip(1) {
            let k = self.c(*k);
            sum = self.body.op(S::Fma, &[sum, x, k]);
        }
        sum
    }

    /// A quotient of two polynomials in `x`.
    fn quotient(&mut self, x: StmtId, p: &[f64], q: &[f64]) -> StmtId {
        let (p, q) = (self.polynomial(x, p), self.polynomial(x, q));
        self.div(p, q)
    }

    /// A Chebyshev series by Clenshaw's rule, highest order first; `x` is twice the argument of the polynomials.
    /// Clenshaw: `b[k] = c[k] + x b[k+1] - b[k+2]`, and the sum is `(b[0] - b[2]) / 2`. With `x`
    /// doubled already, a step is one fused multiply-add and a subtraction.
    fn chebyshev(&mut self, x: StmtId, c: &[f64]) -> StmtId {
        // Terms that `f32` has no digits for.
        let least = if self.dtype == DType::F64 { 0.0 } else { 1e-10 };
        let start = c.iter().position(|k| k.abs() > least).unwrap_or(0);
        let c = &c[start..];
        let (mut now, mut last, mut before) = (self.c(c[0]), self.c(0.0), self.c(0.0));
        for k in &c[1..] {
            before = last;
            last = now;
            let k = self.c(*k);
            let product = self.body.op(S::Fma, &[x, last, k]);
            now = self.sub(product, before);
        }
        let twice = self.sub(now, before);
        self.opc(S::Mul, twice, 0.5)
    }

    /// `x^2`.
    fn square(&mut self, x: StmtId) -> StmtId {
        self.mul(x, x)
    }

    /// `c < x ? a : b`.
    fn above(&mut self, x: StmtId, c: f64, a: StmtId, b: StmtId) -> StmtId {
        let test = self.opc(S::Gt, x, c);
        self.select(test, a, b)
    }

    /// `v` where `x == c`, else `otherwise`.
    pub(in crate::ops) fn at(&mut self, x: StmtId, c: f64, v: f64, otherwise: StmtId) -> StmtId {
        let (test, v) = (self.opc(S::Eq, x, c), self.c(v));
        self.select(test, v, otherwise)
    }

    /// `v` where `x < c`, else `otherwise`.
    pub(in crate::ops) fn below(&mut self, x: StmtId, c: f64, v: f64, otherwise: StmtId) -> StmtId {
        let (test, v) = (self.opc(S::Lt, x, c), self.c(v));
        self.select(test, v, otherwise)
    }

    /// `x` less the nearest integer.
    /// In `-0.5..=0.5`; a multiple of pi in this range keeps the digits that a large angle would
    /// lose.
    pub(in crate::ops) fn fraction(&mut self, x: StmtId) -> StmtId {
        let n = self.op1(S::Round, x);
        self.sub(x, n)
    }
}

/// Computes `x` times a function of `w = -log(1 - x^2)`: a polynomial of `w` or, near the ends, of
/// its root, after Giles ("Approximating the erfinv function", 2010). Both polynomials are
/// corrections to `x` and an exact term, so their rounding hardly matters: the result is within 1.3
/// units in the last place of `f32` up to 0.97, within 2 beyond. Newton steps give it the digits of
/// `f64`.
fn erfinv(p: &mut Pw, x: &[StmtId]) -> Result<StmtId> {
    /// `(y / x - sqrt(pi) / 2) / w` up to `w = 5`.
    const CENTRE: &[f64] = &[
        3.205_747_33e-10,
        -1.676_494_14e-8,
        3.053_204_98e-7,
        -2.469_756_51e-6,
        5.728_036_29e-6,
        4.074_454_77e-5,
        -0.000_122_385_769,
        -0.002_338_202_67,
        0.011_550_175,
        0.232_013_583,
    ];
    /// `y / x - sqrt(w)`, by `sqrt(w) - 3`.
    const TAIL: &[f64] = &[
        0.000_129_613_298,
        -0.000_319_775_892,
        -7.692_017_97e-5,
        0.001_496_916_4,
        -0.003_587_101_35,
        0.005_682_846_07,
        -0.007_639_351_77,
        0.009_445_715_7,
        0.001_675_082_49,
        -0.167_023_212,
    ];
    let x = x[0];
    // The function hardly moves with the logarithm near zero, so that this needs no digits of its own there.
    let (minus, one) = (p.neg(x), p.c(1.0));
    let rest = p.body.op(S::Fma, &[minus, x, one]);
    let log = p.op1(S::Log, rest);
    let w = p.neg(log);
    let less = p.c(1.0 / FRAC_2_SQRT_PI - 1.0);
    let near = p.polynomial(w, CENTRE);
    let near = p.body.op(S::Fma, &[near, w, less]);
    let root = p.op1(S::Sqrt, w);
    let far = p.opc(S::Sub, root, 3.0);
    let far = p.polynomial(far, TAIL);
    let most = p.opc(S::Sub, root, 1.0);
    let far = p.add(most, far);
    let more = p.above(w, 5.0, far, near);
    let y = p.body.op(S::Fma, &[more, x, x]);
    // Of zeros of both signs the sum has lost its own.
    let mut y = p.op2(S::Copysign, y, x);
    // Each Newton step doubles the number of right digits: 24 become 48 and then all 53.
    let steps = if p.dtype == DType::F64 { 2 } else { 0 };
    for _ in 0..steps {
        let (size, goal) = (p.op1(S::Abs, y), p.op1(S::Abs, x));
        // The complement keeps its digits near the ends, the function itself near zero.
        let (got, want) = (p.op1(S::Erfc, size), p.cop(S::Sub, 1.0, goal));
        let outer = p.sub(want, got);
        let inner = p.op1(S::Erf, size);
        let inner = p.sub(inner, goal);
        let error = p.above(goal, 0.5, outer, inner);
        let square = p.square(y);
        let minus = p.neg(square);
        let e = p.op1(S::Exp, minus);
        let slope = p.opc(S::Mul, e, FRAC_2_SQRT_PI);
        let step = p.div(error, slope);
        let next = p.sub(size, step);
        y = p.op2(S::Copysign, next, x);
    }
    if steps == 0 {
        // The logarithm is infinite at the ends and NaN beyond, and so is what follows from it.
        return Ok(y);
    }
    let size = p.op1(S::Abs, x);
    let inf = p.c(f64::INFINITY);
    let inf = p.op2(S::Copysign, inf, x);
    let end = p.opc(S::Eq, size, 1.0);
    let y = p.select(end, inf, y);
    let (outside, nan) = (p.opc(S::Gt, size, 1.0), p.c(f64::NAN));
    Ok(p.select(outside, nan, y))
}

/// The asymptotic series from 10 on; below by recurrence, for negative arguments by reflection.
/// ```text
/// psi(x) = psi(x + 1) - 1 / x                               until x >= 10, in 10 steps
/// psi(y) = log y - 1 / (2 y) - sum of B(2k) / (2k y^2k)     for y >= 10
/// psi(x) = psi(1 - x) - pi / tan(pi x)                      for x < 0
/// ```
pub(in crate::ops) fn digamma(p: &mut Pw, x: &[StmtId]) -> Result<StmtId> {
    // B(2k) / (2k), from k = 7 down.
    const SERIES: &[f64] = &[
        1.0 / 12.0,
        -691.0 / 32760.0,
        1.0 / 132.0,
        -1.0 / 240.0,
        1.0 / 252.0,
        -1.0 / 120.0,
        1.0 / 12.0,
    ];
    let x = x[0];
    let negative = p.opc(S::Lt, x, 0.0);
    let mirrored = p.cop(S::Sub, 1.0, x);
    let mut y = p.select(negative, mirrored, x);
    let mut sum = p.c(0.0);
    // Always ten steps: a lane whose argument is large enough keeps its sum.
    for _ in 0..10 {
        let small = p.opc(S::Lt, y, 10.0);
        let inverse = p.op1(S::Reciprocal, y);
        let less = p.sub(sum, inverse);
        sum = p.select(small, less, sum);
        let next = p.opc(S::Add, y, 1.0);
        y = p.select(small, next, y);
    }
    let inverse = p.op1(S::Reciprocal, y);
    let square = p.square(inverse);
    let tail = p.polynomial(square, SERIES);
    let tail = p.mul(tail, square);
    let log = p.op1(S::Log, y);
    let half = p.opc(S::Mul, inverse, 0.5);
    let v = p.add(sum, log);
    let v = p.sub(v, half);
    let v = p.sub(v, tail);
    let r = p.fraction(x);
    let angle = p.opc(S::Mul, r, PI);
    let tan = p.op1(S::Tan, angle);
    let reflected = p.cop(S::Div, PI, tan);
    let reflected = p.sub(v, reflected);
    let v = p.select(negative, reflected, v);
    // Poles: of zero the sign decides, of negative integers nothing.
    let whole = p.opc(S::Eq, r, 0.0);
    let pole = p.op2(S::And, negative, whole);
    let nan = p.c(f64::NAN);
    let v = p.select(pole, nan, v);
    let inf = p.c(f64::INFINITY);
    let minus = p.neg(x);
    let inf = p.op2(S::Copysign, inf, minus);
    let zero = p.opc(S::Eq, x, 0.0);
    Ok(p.select(zero, inf, v))
}

/// The derivative of [`digamma`], in the same three steps:
///
/// ```text
/// psi'(x) = psi'(x + 1) + 1 / x^2                                          6 times
/// psi'(y) = (1 + 1 / 2y + 1 / 6y^2 - 1 / 30y^4 + 1 / 42y^6) / y
/// psi'(x) = pi^2 / sin^2(pi x) - psi'(1 - x)                               for x < 1/2
/// ```
pub(in crate::ops) fn trigamma(p: &mut Pw, x: StmtId) -> StmtId {
    let low = p.opc(S::Lt, x, 0.5);
    let mirrored = p.cop(S::Sub, 1.0, x);
    let mut y = p.select(low, mirrored, x);
    let mut sum = p.c(0.0);
    for _ in 0..6 {
        let square = p.square(y);
        let inverse = p.op1(S::Reciprocal, square);
        sum = p.add(sum, inverse);
        y = p.opc(S::Add, y, 1.0);
    }
    let inverse = p.op1(S::Reciprocal, y);
    let square = p.square(inverse);
    let tail = p.polynomial(square, &[1.0 / 42.0, -1.0 / 30.0, 1.0 / 6.0]);
    let tail = p.mul(tail, square);
    let half = p.opc(S::Mul, inverse, 0.5);
    let head = p.opc(S::Add, half, 1.0);
    let series = p.add(head, tail);
    let series = p.mul(series, inverse);
    let v = p.add(sum, series);
    let r = p.fraction(x);
    let angle = p.opc(S::Mul, r, PI);
    let sine = p.op1(S::Sin, angle);
    let square = p.square(sine);
    let square = p.cop(S::Div, PI * PI, square);
    let reflected = p.sub(square, v);
    p.select(low, reflected, v)
}

/// The sum of `lgamma(x - k / 2)` for `k` from 0 to `p - 1`, plus `p (p - 1) / 4 * log(pi)`.
fn mvlgamma(p: &mut Pw, x: &[StmtId]) -> Result<StmtId> {
    let count = p.call.const_int("p")?;
    if !(1..=64).contains(&count) {
        return Err(p.call.unsupported("p", "1 to 64"));
    }
    let mut sum = p.c((count * (count - 1)) as f64 * PI.ln() / 4.0);
    for k in 0..count {
        let moved = p.opc(S::Sub, x[0], k as f64 / 2.0);
        let term = p.op1(S::Lgamma, moved);
        sum = p.add(sum, term);
    }
    Ok(sum)
}

/// `exp(-|x|) I(x)` of order 0, and of order 1 for positive arguments.
/// Chebyshev series of `|x| / 2 - 2` up to 8, and beyond of `32 / |x| - 2`, over `sqrt(|x|)`. The
/// scale keeps both pieces in range for any argument.
fn scaled_i(p: &mut Pw, x: StmtId, order: usize) -> StmtId {
    let (a, b) = [(I0_A, I0_B), (I1_A, I1_B)][order];
    let size = p.op1(S::Abs, x);
    let y = p.opc(S::Mul, size, 0.5);
    let y = p.opc(S::Sub, y, 2.0);
    let mut near = p.chebyshev(y, a);
    if order == 1 {
        near = p.mul(near, size);
    }
    // At 0 this is infinite; the piece is not selected there.
    let z = p.cop(S::Div, 32.0, size);
    let z = p.opc(S::Sub, z, 2.0);
    let far = p.chebyshev(z, b);
    let root = p.op1(S::Sqrt, size);
    let far = p.div(far, root);
    let v = p.above(size, 8.0, far, near);
    match order {
        0 => v,
        _ => p.op2(S::Copysign, v, x),
    }
}

/// The modified Bessel function of the first kind, of order 0 or 1.
fn bessel_i(p: &mut Pw, x: StmtId, order: usize) -> StmtId {
    let scaled = scaled_i(p, x, order);
    let size = p.op1(S::Abs, x);
    let e = p.op1(S::Exp, size);
    p.mul(scaled, e)
}

/// `K(x)`, or `exp(x) K(x)` when `scaled`.
/// The modified Bessel function of the second kind: up to 2 a series of `x^2` and `log(x / 2)
/// I(x)`, beyond a series of `8 / x`. Infinite at 0, NaN below.
fn bessel_k(p: &mut Pw, x: StmtId, order: usize, scaled: bool) -> StmtId {
    let (a, b) = [(K0_A, K0_B), (K1_A, K1_B)][order];
    let square = p.square(x);
    let y = p.opc(S::Sub, square, 2.0);
    let series = p.chebyshev(y, a);
    let half = p.opc(S::Mul, x, 0.5);
    let log = p.op1(S::Log, half);
    let i = bessel_i(p, x, order);
    let product = p.mul(log, i);
    let mut near = match order {
        0 => p.sub(series, product),
        _ => {
            let series = p.div(series, x);
            p.add(series, product)
        }
    };
    let z = p.cop(S::Div, 8.0, x);
    let z = p.opc(S::Sub, z, 2.0);
    let far = p.chebyshev(z, b);
    let root = p.op1(S::Sqrt, x);
    let mut far = p.div(far, root);
    // Each piece has or lacks the factor `exp(-x)` by nature; the other case multiplies.
    if scaled {
        let e = p.op1(S::Exp, x);
        near = p.mul(near, e);
    } else {
        let minus = p.neg(x);
        let e = p.op1(S::Exp, minus);
        far = p.mul(far, e);
    }
    let v = p.above(x, 2.0, far, near);
    let v = p.at(x, 0.0, f64::INFINITY, v);
    p.below(x, 0.0, f64::NAN, v)
}

/// Modulus and phase of the Bessel functions beyond 5: with `P`, `Q` and `t = x - phase`, `J` is `P cos(t) - Q sin(t)` and `Y`
/// is `P sin(t) + Q cos(t)`, times `sqrt(2 / (pi x))`.
fn asymptotic(p: &mut Pw, x: StmtId, order: usize, second: bool) -> StmtId {
    let (pp, pq, qp, qq) = match order {
        0 => (J0_PP, J0_PQ, J0_QP, J0_QQ),
        _ => (J1_PP, J1_PQ, J1_QP, J1_QQ),
    };
    let w = p.cop(S::Div, 5.0, x);
    let z = p.square(w);
    let (a, b) = (p.quotient(z, pp, pq), p.quotient(z, qp, qq));
    let b = p.mul(b, w);
    // The phase is pi / 4 for order 0 and 3 pi / 4 for order 1.
    let t = p.opc(S::Sub, x, FRAC_PI_4 * (1 + 2 * order) as f64);
    let (sin, cos) = (p.op1(S::Sin, t), p.op1(S::Cos, t));
    let sum = if second {
        let (u, v) = (p.mul(a, sin), p.mul(b, cos));
        p.add(u, v)
    } else {
        let (u, v) = (p.mul(a, cos), p.mul(b, sin));
        p.sub(u, v)
    };
    let root = p.op1(S::Sqrt, x);
    let scaled = p.opc(S::Mul, sum, FRAC_2_PI.sqrt());
    p.div(scaled, root)
}

/// Near zero the two smallest roots are factors.
/// The factors are `x^2` less the squares of the roots: next to a root the result is then as
/// precise as elsewhere. Order 1 is odd.
fn bessel_j(p: &mut Pw, x: StmtId, order: usize) -> StmtId {
    let (rp, rq, first, second) = match order {
        0 => (J0_RP, J0_RQ, 5.783_185_962_946_785, 30.471_262_343_662_087),
        _ => (J1_RP, J1_RQ, 14.681_970_642_123_893, 49.218_456_321_694_6),
    };
    let size = p.op1(S::Abs, x);
    let z = p.square(size);
    let (a, b) = (p.opc(S::Sub, z, first), p.opc(S::Sub, z, second));
    let q = p.quotient(z, rp, rq);
    let near = p.mul(a, b);
    let mut near = p.mul(near, q);
    if order == 1 {
        near = p.mul(near, size);
    }
    let far = asymptotic(p, size, order, false);
    let v = p.above(size, 5.0, far, near);
    if order == 0 {
        return v;
    }
    let minus = p.neg(v);
    let negative = p.opc(S::Lt, x, 0.0);
    p.select(negative, minus, v)
}

/// Near zero it is a quotient of polynomials plus `2 / pi * log(x) J(x)`, for order 1 less `2 / (pi
/// x)`. `-inf` at 0, NaN below.
fn bessel_y(p: &mut Pw, x: StmtId, order: usize) -> StmtId {
    let z = p.square(x);
    let log = p.op1(S::Log, x);
    let j = bessel_j(p, x, order);
    let product = p.mul(log, j);
    let near = match order {
        0 => {
            let q = p.quotient(z, Y0_YP, Y0_YQ);
            let scaled = p.opc(S::Mul, product, FRAC_2_PI);
            p.add(q, scaled)
        }
        _ => {
            let q = p.quotient(z, Y1_YP, Y1_YQ);
            let q = p.mul(q, x);
            let inverse = p.op1(S::Reciprocal, x);
            let rest = p.sub(product, inverse);
            let scaled = p.opc(S::Mul, rest, FRAC_2_PI);
            p.add(q, scaled)
        }
    };
    let far = asymptotic(p, x, order, true);
    let v = p.above(x, 5.0, far, near);
    let v = p.at(x, 0.0, f64::NEG_INFINITY, v);
    p.below(x, 0.0, f64::NAN, v)
}

/// `sin(x) / x`, near zero by its power series, 0 at infinities.
fn spherical_j0(p: &mut Pw, x: &[StmtId]) -> Result<StmtId> {
    let x = x[0];
    let z = p.square(x);
    let near = p.polynomial(
        z,
        &[
            1.0 / 6_227_020_800.0,
            -1.0 / 39_916_800.0,
            1.0 / 362_880.0,
            -1.0 / 5040.0,
            1.0 / 120.0,
            -1.0 / 6.0,
            1.0,
        ],
    );
    let sin = p.op1(S::Sin, x);
    let far = p.div(sin, x);
    let size = p.op1(S::Abs, x);
    let small = p.opc(S::Lt, size, 0.5);
    let v = p.select(small, near, far);
    let (inf, zero) = (p.op1(S::IsInf, x), p.c(0.0));
    Ok(p.select(inf, zero, v))
}

/// `exp(x^2) erfc(x)`: a series in `(x - k) / (x + k)` for positive arguments, by symmetry for the others.
/// The series approximates `(1 + 2 |x|) erfcx(|x|)`, which stays between bounds. For negative
/// arguments `2 exp(x^2) - erfcx(-x)`.
fn scaled_erfc(p: &mut Pw, x: StmtId) -> StmtId {
    const K: f64 = 3.75;
    let size = p.op1(S::Abs, x);
    // One minus twice K over the sum: right for infinite arguments too.
    let sum = p.opc(S::Add, size, K);
    let q = p.cop(S::Div, -4.0 * K, sum);
    let t = p.opc(S::Add, q, 2.0);
    let series = p.chebyshev(t, ERFCX);
    let twice = p.opc(S::Mul, size, 2.0);
    let denominator = p.opc(S::Add, twice, 1.0);
    let positive = p.div(series, denominator);
    let square = p.square(x);
    let e = p.op1(S::Exp, square);
    let e = p.opc(S::Mul, e, 2.0);
    let mirrored = p.sub(e, positive);
    let negative = p.opc(S::Lt, x, 0.0);
    p.select(negative, mirrored, positive)
}

/// The distribution function of the normal distribution: `erfc(-x / sqrt(2)) / 2`.
fn ndtr(p: &mut Pw, x: &[StmtId]) -> Result<StmtId> {
    let t = p.opc(S::Mul, x[0], -FRAC_1_SQRT_2);
    let c = p.op1(S::Erfc, t);
    Ok(p.opc(S::Mul, c, 0.5))
}

/// Far below zero from the scaled function, whose logarithm does not underflow.
/// ```text
/// x < -1      log erfcx(-t) - t^2 - log 2      t = x / sqrt(2)
/// otherwise   log1p(-erfc(t) / 2)
/// ```
fn log_ndtr(p: &mut Pw, x: &[StmtId]) -> Result<StmtId> {
    let t = p.opc(S::Mul, x[0], FRAC_1_SQRT_2);
    let minus = p.neg(t);
    let scaled = scaled_erfc(p, minus);
    let log = p.op1(S::Log, scaled);
    let log = p.opc(S::Sub, log, LN_2);
    let square = p.square(t);
    let low = p.sub(log, square);
    let c = p.op1(S::Erfc, t);
    let c = p.opc(S::Mul, c, -0.5);
    let high = p.op1(S::Log1p, c);
    let below = p.opc(S::Lt, x[0], -1.0);
    Ok(p.select(below, low, high))
}

/// The quantile of the normal distribution, in three pieces of the smaller tail's logarithm.
/// Probabilities above `1 - exp(-2)` are mirrored. The centre is a quotient in the distance from
/// 1/2; tails are `r - log(r) / r` less a quotient in `1 / r`, with `r = sqrt(-2 log y)`. Infinite
/// at 0 and 1, NaN outside.
fn ndtri(p: &mut Pw, x: &[StmtId]) -> Result<StmtId> {
    let tail = (-2.0f64).exp();
    let x = x[0];
    // The three pieces are all of the lower tail; `1 - x` brings the upper one there.
    let upper = p.opc(S::Gt, x, 1.0 - tail);
    let mirrored = p.cop(S::Sub, 1.0, x);
    let y = p.select(upper, mirrored, x);
    let d = p.opc(S::Sub, y, 0.5);
    let z = p.square(d);
    let q = p.quotient(z, NDTRI_P0, NDTRI_Q0);
    let q = p.mul(q, z);
    let centre = p.body.op(S::Fma, &[d, q, d]);
    let centre = p.opc(S::Mul, centre, (2.0 * PI).sqrt());
    let log = p.op1(S::Log, y);
    let twice = p.opc(S::Mul, log, -2.0);
    let r = p.op1(S::Sqrt, twice);
    let log = p.op1(S::Log, r);
    let inverse = p.op1(S::Reciprocal, r);
    let correction = p.mul(log, inverse);
    let first = p.sub(r, correction);
    let near = p.quotient(inverse, NDTRI_P1, NDTRI_Q1);
    let far = p.quotient(inverse, NDTRI_P2, NDTRI_Q2);
    let less = p.opc(S::Lt, r, 8.0);
    let q = p.select(less, near, far);
    let q = p.mul(q, inverse);
    let size = p.sub(first, q);
    let minus = p.neg(size);
    let outer = p.select(upper, size, minus);
    let v = p.above(y, tail, centre, outer);
    let v = p.at(x, 0.0, f64::NEG_INFINITY, v);
    let v = p.at(x, 1.0, f64::INFINITY, v);
    let v = p.below(x, 0.0, f64::NAN, v);
    let (outside, nan) = (p.opc(S::Gt, x, 1.0), p.c(f64::NAN));
    Ok(p.select(outside, nan, v))
}

/// `x log(1 + y)`, which is 0 for `x = 0` unless `y` is NaN.
fn xlog1py(p: &mut Pw, x: &[StmtId]) -> Result<StmtId> {
    let log = p.op1(S::Log1p, x[1]);
    let log = p.step(log);
    let product = p.mul(x[0], log);
    let v = p.at(x[0], 0.0, 0.0, product);
    let is_nan = p.op1(S::IsNan, x[1]);
    Ok(p.select(is_nan, x[1], v))
}

pointwise! {
    "aten.erfinv.default" "(Tensor self) -> Tensor"
        ["self"] Float erfinv, "(f32[40]{-1:1})";
    "aten.digamma.default" "(Tensor self) -> Tensor"
        ["self"] Float digamma, "(f32[40]{0.1:30})";
    "aten.mvlgamma.default" "(Tensor self, int p) -> Tensor"
        ["self"] Float mvlgamma, "(f32[40]{2:9}, 3)";
    "aten.i0.default" "(Tensor self) -> Tensor"
        ["self"] Float |p, x| Ok(bessel_i(p, x[0], 0)), "(f32[40]{-20:20})";
    "aten.special_i0e.default" "(Tensor self) -> Tensor"
        ["self"] Float |p, x| Ok(scaled_i(p, x[0], 0)), "(f64[40]{-20:20})";
    "aten.special_i1.default" "(Tensor self) -> Tensor"
        ["self"] Float |p, x| Ok(bessel_i(p, x[0], 1)), "(f32[40]{-20:20})";
    "aten.special_i1e.default" "(Tensor self) -> Tensor"
        ["self"] Float |p, x| Ok(scaled_i(p, x[0], 1)), "(f64[40]{-20:20})";
    "aten.special_modified_bessel_i0.default" "(Tensor self) -> Tensor"
        ["self"] Float |p, x| Ok(bessel_i(p, x[0], 0)), "(f64[40]{-20:20})";
    "aten.special_modified_bessel_i1.default" "(Tensor self) -> Tensor"
        ["self"] Float |p, x| Ok(bessel_i(p, x[0], 1)), "(f64[40]{-20:20})";
    "aten.special_modified_bessel_k0.default" "(Tensor self) -> Tensor"
        ["self"] Float |p, x| Ok(bessel_k(p, x[0], 0, false)), "(f64[40]{0:20})";
    "aten.special_modified_bessel_k1.default" "(Tensor self) -> Tensor"
        ["self"] Float |p, x| Ok(bessel_k(p, x[0], 1, false)), "(f64[40]{0:20})";
    "aten.special_scaled_modified_bessel_k0.default" "(Tensor x) -> Tensor"
        ["x"] Float |p, x| Ok(bessel_k(p, x[0], 0, true)), "(f64[40]{0:20})";
    "aten.special_scaled_modified_bessel_k1.default" "(Tensor x) -> Tensor"
        ["x"] Float |p, x| Ok(bessel_k(p, x[0], 1, true)), "(f64[40]{0:20})";
    "aten.special_bessel_j0.default" "(Tensor self) -> Tensor"
        ["self"] Float |p, x| Ok(bessel_j(p, x[0], 0)), "(f64[40]{-30:30})";
    "aten.special_bessel_j1.default" "(Tensor self) -> Tensor"
        ["self"] Float |p, x| Ok(bessel_j(p, x[0], 1)), "(f64[40]{-30:30})";
    "aten.special_bessel_y0.default" "(Tensor self) -> Tensor"
        ["self"] Float |p, x| Ok(bessel_y(p, x[0], 0)), "(f64[40]{-1:30})";
    "aten.special_bessel_y1.default" "(Tensor self) -> Tensor"
        ["self"] Float |p, x| Ok(bessel_y(p, x[0], 1)), "(f64[40]{-1:30})";
    "aten.special_spherical_bessel_j0.default" "(Tensor x) -> Tensor"
        ["x"] Float spherical_j0, "(f64[40]{-9:9})";
    "aten.special_erfcx.default" "(Tensor self) -> Tensor"
        ["self"] Float |p, x| Ok(scaled_erfc(p, x[0])), "(f64[40]{-4:30})";
    "aten.special_ndtr.default" "(Tensor self) -> Tensor"
        ["self"] Float ndtr, "(f32[40]{-3:3})";
    "aten.special_log_ndtr.default" "(Tensor self) -> Tensor"
        ["self"] Float log_ndtr, "(f64[40]{-30:6})";
    "aten.special_ndtri.default" "(Tensor self) -> Tensor"
        ["self"] Float ndtri, "(f64[40]{0:1})";
    "aten.special_xlog1py.default" "(Tensor self, Tensor other) -> Tensor"
        ["self", "other"] Float xlog1py, "(f32[4], f32[4]{0:9})";
    "aten.special_xlog1py.other_scalar" "(Tensor self, Scalar other) -> Tensor"
        ["self", "other"] Float xlog1py, "(f32[4], 2)";
    "aten.special_xlog1py.self_scalar" "(Scalar self, Tensor other) -> Tensor"
        ["self", "other"] Float xlog1py, "(2, f32[4]{0:9})";
}
