//! The Hurwitz zeta function, and the derivatives of the digamma function that it gives.
//!
//! Both come from the sum of Euler and Maclaurin: the first terms one by one, then an integral and its corrections. That is
//! for positive arguments; negative ones are reflected.
//!
//! ```text
//! zeta(s, q) = sum of (q + k)^-s, k < N
//!            + y^(1-s) / (s - 1) + y^-s / 2                                y = q + N
//!            + sum of B(2j) / (2j)! * s (s+1) .. (s+2j-2) * y^(-s-2j+1)
//! ```

use crate::Pw;
use crate::ops::pointwise::row::pointwise;
use crate::ops::special::functions::{digamma, trigamma};
use inrush_base::{DType, Result};
use inrush_loops::{ScalarOp as S, StmtId};
use std::f64::consts::PI;

/// `B(2j) / (2j)!` from `j = 1` on.
/// Coefficients of the corrections to the integral.
const CORRECTIONS: [f64; 8] = [
    1.0 / 12.0,
    -1.0 / 720.0,
    1.0 / 30240.0,
    -1.0 / 1209600.0,
    1.0 / 47900160.0,
    -691.0 / 1307674368000.0,
    1.0 / 74724249600.0,
    -3617.0 / 10670622842880000.0,
];

/// Terms that are added one by one.
/// Fewer of them do for `f32`, which has fewer digits to bring right.
fn terms(dtype: DType) -> usize {
    if dtype == DType::F64 { 10 } else { 7 }
}

/// `x` to a constant power.
/// Square and multiply, unrolled; cheaper and more precise than `pow` for small integers.
fn power(p: &mut Pw, x: StmtId, e: i64) -> StmtId {
    let (mut result, mut base, mut rest) = (None, x, e);
    while rest > 0 {
        if rest & 1 == 1 {
            result = Some(match result {
                Some(r) => p.mul(r, base),
                None => base,
            });
        }
        rest >>= 1;
        if rest > 0 {
            base = p.mul(base, base);
        }
    }
    result.unwrap_or_else(|| p.c(1.0))
}

/// The sum over `k` of `(q + k)^-s` for a constant integer `s` above 1 and positive `q`.
fn zeta_of_order(p: &mut Pw, s: i64, q: StmtId) -> StmtId {
    let mut sum = p.c(0.0);
    for k in 0..terms(p.dtype) {
        let y = p.opc(S::Add, q, k as f64);
        let inverse = p.op1(S::Reciprocal, y);
        let term = power(p, inverse, s);
        sum = p.add(sum, term);
    }
    let y = p.opc(S::Add, q, terms(p.dtype) as f64);
    let inverse = p.op1(S::Reciprocal, y);
    let square = p.mul(inverse, inverse);
    // y^(1-s) (1 / (s-1) + 1 / (2y) + the corrections).
    let mut rising = s as f64;
    let mut factors = Vec::new();
    for (j, c) in CORRECTIONS.iter().enumerate() {
        factors.push(c * rising);
        let next = s as f64 + 2.0 * j as f64 + 1.0;
        rising *= next * (next + 1.0);
    }
    factors.reverse();
    let series = p.polynomial(square, &factors);
    let series = p.mul(series, square);
    let half = p.opc(S::Mul, inverse, 0.5);
    let tail = p.add(half, series);
    let tail = p.opc(S::Add, tail, 1.0 / (s - 1) as f64);
    let scale = power(p, inverse, s - 1);
    let tail = p.mul(tail, scale);
    p.add(sum, tail)
}

/// The same for any `s` above 1.
/// Costs one `pow` for each term, where [`zeta_of_order`] has products.
fn zeta_of(p: &mut Pw, s: StmtId, q: StmtId) -> StmtId {
    let minus = p.neg(s);
    let mut sum = p.c(0.0);
    for k in 0..terms(p.dtype) {
        let y = p.opc(S::Add, q, k as f64);
        let term = p.op2(S::Pow, y, minus);
        sum = p.add(sum, term);
    }
    let y = p.opc(S::Add, q, terms(p.dtype) as f64);
    let term = p.op2(S::Pow, y, minus);
    let inverse = p.op1(S::Reciprocal, y);
    let square = p.mul(inverse, inverse);
    let mut rising = p.mul(s, inverse);
    let mut series = p.c(0.5);
    for (j, c) in CORRECTIONS.iter().enumerate() {
        let correction = p.opc(S::Mul, rising, *c);
        series = p.add(series, correction);
        let a = p.opc(S::Add, s, 2.0 * j as f64 + 1.0);
        let b = p.opc(S::Add, s, 2.0 * j as f64 + 2.0);
        let both = p.mul(a, b);
        let both = p.mul(both, square);
        rising = p.mul(rising, both);
    }
    let less = p.opc(S::Sub, s, 1.0);
    let integral = p.div(y, less);
    let tail = p.add(integral, series);
    // Where the term vanishes so does the tail, however large the factor.
    let product = p.mul(tail, term);
    let gone = p.opc(S::Eq, term, 0.0);
    let zero = p.c(0.0);
    let tail = p.select(gone, zero, product);
    p.add(sum, tail)
}

/// `zeta(s, q)`. Below zero only whole powers exist: there the terms before zero are a difference of two sums.
/// Infinite at `s = 1` and at poles `q = 0, -1, ..`; NaN for `s < 1` and for negative `q` with a
/// fractional `s`.
fn zeta(p: &mut Pw, x: &[StmtId]) -> Result<StmtId> {
    let (s, q) = (x[0], x[1]);
    let floor = p.op1(S::Floor, q);
    let fraction = p.sub(q, floor);
    let positive = p.opc(S::Gt, q, 0.0);
    let from = p.select(positive, q, fraction);
    // Terms `q + k` that are positive: they start at the fraction of `q`.
    let ahead = zeta_of(p, s, from);
    let rest = p.cop(S::Sub, 1.0, fraction);
    let (near, beyond) = (zeta_of(p, s, rest), p.cop(S::Sub, 1.0, q));
    let far = zeta_of(p, s, beyond);
    let behind = p.sub(near, far);
    let two = p.c(2.0);
    let odd = p.op2(S::Remainder, s, two);
    let odd = p.opc(S::Eq, odd, 1.0);
    let minus = p.neg(behind);
    let behind = p.select(odd, minus, behind);
    let all = p.add(ahead, behind);
    let v = p.select(positive, ahead, all);
    let (nan, inf) = (p.c(f64::NAN), p.c(f64::INFINITY));
    let whole = p.op1(S::Floor, s);
    let whole = p.op2(S::Eq, whole, s);
    let v = {
        let real = p.body.op(S::Or, &[positive, whole]);
        p.select(real, v, nan)
    };
    let pole = p.op2(S::Eq, q, floor);
    let negative = p.op1(S::Not, positive);
    let pole = p.op2(S::And, pole, negative);
    let v = p.select(pole, inf, v);
    let v = p.at(s, 1.0, f64::INFINITY, v);
    Ok(p.below(s, 1.0, f64::NAN, v))
}

/// Derivatives of the cotangent as polynomials of it, lowest power first: each is minus the derivative of the one before
/// times `1 + c^2`.
/// Derivatives by the angle: `c' = -(1 + c^2)`.
fn cotangent(order: i64) -> Vec<f64> {
    let mut now = vec![0.0, 1.0];
    for _ in 0..order {
        let mut next = vec![0.0; now.len() + 1];
        for (k, c) in now.iter().enumerate().skip(1) {
            next[k - 1] -= c * k as f64;
            next[k + 1] -= c * k as f64;
        }
        now = next;
    }
    now
}

/// `(-1)^(n+1) n! zeta(n + 1, x)`; for small and negative arguments by reflection.
fn derivative(p: &mut Pw, n: i64, x: StmtId) -> StmtId {
    let factorial: f64 = (1..=n).map(|k| k as f64).product();
    let low = p.opc(S::Lt, x, 0.5);
    let mirrored = p.cop(S::Sub, 1.0, x);
    let y = p.select(low, mirrored, x);
    let zeta = zeta_of_order(p, n + 1, y);
    let size = p.opc(S::Mul, zeta, factorial);
    let minus = p.neg(size);
    let right = if n % 2 == 1 { size } else { minus };
    let r = p.fraction(x);
    let angle = p.opc(S::Mul, r, PI);
    let tan = p.op1(S::Tan, angle);
    let cot = p.op1(S::Reciprocal, tan);
    let scale = PI.powi(n as i32 + 1);
    let powers: Vec<f64> = cotangent(n).iter().rev().map(|c| -c * scale).collect();
    // `psi_n(1 - x) - (-1)^n psi_n(x)` is `(-1)^n pi` times the `n`th derivative of `cot(pi x)`.
    let reflected = p.polynomial(cot, &powers);
    let left = p.sub(reflected, size);
    let v = p.select(low, left, right);
    // The poles, of which both sides go the same way for odd orders only.
    let whole = p.opc(S::Eq, r, 0.0);
    let pole = p.op2(S::And, low, whole);
    let end = p.c(if n % 2 == 1 {
        f64::INFINITY
    } else {
        f64::NEG_INFINITY
    });
    p.select(pole, end, v)
}

/// The `n`th derivative of digamma. Orders above 20 are refused.
fn polygamma(p: &mut Pw, x: &[StmtId]) -> Result<StmtId> {
    match p.call.const_int("n")? {
        0 => digamma(p, x),
        1 => Ok(trigamma(p, x[0])),
        n @ 2..=20 => Ok(derivative(p, n, x[0])),
        _ => Err(p.call.unsupported("n", "0 to 20")),
    }
}

pointwise! {
    "aten.polygamma.default" "(int n, Tensor self) -> Tensor"
        ["self"] Float polygamma, "(3, f64[40]{-4.4:20})";
    "aten.special_zeta.default" "(Tensor self, Tensor other) -> Tensor"
        ["self", "other"] Float zeta, "(f64[40]{1:9}, f64[40]{0:9})";
    "aten.special_zeta.self_scalar" "(Scalar self, Tensor other) -> Tensor"
        ["self", "other"] Float zeta, "(3, f64[40]{-8.3:9})";
    "aten.special_zeta.other_scalar" "(Tensor self, Scalar other) -> Tensor"
        ["self", "other"] Float zeta, "(f32[40]{1.1:9}, 1)";
}
