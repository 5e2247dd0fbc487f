//! Orthogonal polynomials, by their recurrences: a scalar operation of its own takes as many steps as the degree says, which may be
//! a tensor.
//!
//! Those of Chebyshev have closed forms, which high degrees within the interval take, as in eager. Degrees below zero give zero,
//! fractions are cut off.
//!
//! ```text
//! Chebyshev   p[k+1] = 2 x p[k] - p[k-1]                     T, U, V, W differ in p[1]
//! Hermite     p[k+1] = f x p[k] - f k p[k-1]                 f = 2 (physicists), 1 (probabilists)
//! Laguerre    (k+1) p[k+1] = (2 k + 1 - x) p[k] - k p[k-1]
//! Legendre    (k+1) p[k+1] = (2 k + 1) x p[k] - k p[k-1]
//! ```
//!
//! All begin with `p[0] = 1` and fit one [`Rule`].

use crate::Pw;
use crate::ops::pointwise::row::pointwise;
use inrush_base::{DType, Result};
use inrush_loops::{ScalarOp as S, StmtId};

/// Degrees of Chebyshev's polynomials up to this one come from the recurrence.
const NEAR: f64 = 8.0;

/// Chebyshev polynomials of the first to the fourth kind. With `x = cos a`: `T = cos(n a)`, `U =
/// sin((n + 1) a) / sin(a)`, `V = cos((n + 1/2) a) / cos(a / 2)`, `W = sin((n + 1/2) a) / sin(a /
/// 2)`.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    T,
    U,
    V,
    W,
}

/// How a degree follows from the two before it: `((a + k s) p[k] - (c + k r) p[k-1]) / (1 + k q)`.
struct Rule {
    /// Degree 1.
    first: StmtId,
    a: StmtId,
    s: StmtId,
    c: f64,
    r: f64,
    q: f64,
}

/// Degree `n`, by the scalar operation that loops.
fn recur(p: &mut Pw, n: StmtId, rule: Rule) -> StmtId {
    let (c, r, q) = (p.c(rule.c), p.c(rule.r), p.c(rule.q));
    (p.body).op(S::Recurrence, &[n, rule.first, rule.a, rule.s, c, r, q])
}

/// The degree as a whole number, and whether it is one that eager counts to.
fn degree(p: &mut Pw, n: StmtId) -> (StmtId, StmtId) {
    let n = p.op1(S::Trunc, n);
    let (low, high) = (p.opc(S::Ge, n, 0.0), p.opc(S::Lt, n, 9.0e18));
    (n, p.op2(S::And, low, high))
}

/// One for odd numbers, zero for even ones.
fn parity(p: &mut Pw, n: StmtId) -> StmtId {
    let half = p.opc(S::Mul, n, 0.5);
    let half = p.op1(S::Floor, half);
    let even = p.add(half, half);
    p.sub(n, even)
}

/// `x`, moved from the interval from 0 to 1 to that from -1 to 1 when `shifted`.
fn argument(p: &mut Pw, x: StmtId, shifted: bool) -> StmtId {
    if !shifted {
        return x;
    }
    let twice = p.add(x, x);
    p.opc(S::Sub, twice, 1.0)
}

/// Degree 1.
/// The one thing in which the recurrences of the four kinds differ.
fn first(p: &mut Pw, y: StmtId, kind: Kind) -> StmtId {
    let twice = p.add(y, y);
    match kind {
        Kind::T => y,
        Kind::U => twice,
        Kind::V => p.opc(S::Sub, twice, 1.0),
        Kind::W => p.opc(S::Add, twice, 1.0),
    }
}

/// Any degree within the interval: a quotient of two functions of an angle, `f(a * (n + shift)) / f(a * part)`; T has no
/// denominator.
fn closed(p: &mut Pw, y: StmtId, n: StmtId, kind: Kind) -> StmtId {
    let (f, shift, part) = match kind {
        Kind::T => (S::Cos, 0.0, 0.0),
        Kind::U => (S::Sin, 1.0, 1.0),
        Kind::V => (S::Cos, 0.5, 0.5),
        Kind::W => (S::Sin, 0.5, 0.5),
    };
    let a = p.op1(S::Acos, y);
    let order = p.opc(S::Add, n, shift);
    let angle = p.mul(order, a);
    let above = p.op1(f, angle);
    if kind == Kind::T {
        return above;
    }
    let angle = p.opc(S::Mul, a, part);
    let below = p.op1(f, angle);
    p.div(above, below)
}

/// At the ends of the interval: one, or as much as the degree says.
fn at_ends(p: &mut Pw, y: StmtId, n: StmtId, kind: Kind) -> StmtId {
    let negative = p.opc(S::Lt, y, 0.0);
    let twice = p.add(n, n);
    let (one, next, double) = (p.c(1.0), p.opc(S::Add, n, 1.0), p.opc(S::Add, twice, 1.0));
    let end = match kind {
        Kind::T => one,
        Kind::U => next,
        Kind::V => p.select(negative, double, one),
        Kind::W => p.select(negative, one, double),
    };
    let odd = parity(p, n);
    let odd = p.opc(S::Eq, odd, 1.0);
    let flipped = p.op2(S::And, odd, negative);
    let minus = p.neg(end);
    p.select(flipped, minus, end)
}

/// The value is 0 for degrees that are not counted to, the closed form inside the interval beyond
/// degree [`NEAR`], a known number at its ends, and the recurrence elsewhere.
fn chebyshev(p: &mut Pw, x: &[StmtId], kind: Kind, shifted: bool) -> Result<StmtId> {
    let y = argument(p, x[0], shifted);
    let (n, there) = degree(p, x[1]);
    let size = p.op1(S::Abs, y);
    let (inside, far) = (p.opc(S::Lt, size, 1.0), p.opc(S::Gt, n, NEAR));
    let is_closed = p.op2(S::And, inside, far);
    let is_end = p.opc(S::Eq, size, 1.0);
    let known = p.op2(S::Or, is_closed, is_end);
    let zero = p.c(0.0);
    let steps = p.select(there, n, zero);
    // The loop runs until the slowest lane is done: lanes that do not need it take no steps.
    let steps = p.select(known, zero, steps);
    let twice = p.add(y, y);
    let rule = Rule {
        first: first(p, y, kind),
        a: twice,
        s: zero,
        c: 1.0,
        r: 0.0,
        q: 0.0,
    };
    let value = recur(p, steps, rule);
    // The cosine of a large multiple of an angle needs the angle's digits.
    let dtype = p.dtype;
    let (wide_y, wide_n) = (p.body.cast(y, DType::F64), p.body.cast(n, DType::F64));
    p.dtype = DType::F64;
    let angular = closed(p, wide_y, wide_n, kind);
    p.dtype = dtype;
    let angular = p.body.cast(angular, dtype);
    let value = p.select(is_closed, angular, value);
    let end = at_ends(p, y, n, kind);
    let value = p.select(is_end, end, value);
    Ok(p.select(there, value, zero))
}

/// Returns the recurrence after `steps`, or zero for degrees beyond eager's limit.
fn counted(p: &mut Pw, steps: StmtId, there: StmtId, rule: Rule) -> StmtId {
    let zero = p.c(0.0);
    let steps = p.select(there, steps, zero);
    let value = recur(p, steps, rule);
    p.select(there, value, zero)
}

/// Sums that overflow become NaN soon, as in eager, which has no numbers beyond a degree of its choice.
/// `factor` is 2 for the physicists' and 1 for the probabilists' polynomials.
fn hermite(p: &mut Pw, x: &[StmtId], factor: f64) -> Result<StmtId> {
    let (n, there) = degree(p, x[1]);
    let slope = p.opc(S::Mul, x[0], factor);
    let rule = Rule {
        first: slope,
        a: slope,
        s: p.c(0.0),
        c: 0.0,
        r: factor,
        q: 0.0,
    };
    Ok(counted(p, n, there, rule))
}

/// Returns the recurrence of polynomials that divide by the degree: `((first + k s) p[k] - k
/// p[k-1]) / (1 + k)`.
fn divided(first: StmtId, s: StmtId) -> Rule {
    Rule {
        first,
        a: first,
        s,
        c: 0.0,
        r: 1.0,
        q: 1.0,
    }
}

/// By `divided(1 - x, 2)`.
fn laguerre(p: &mut Pw, x: &[StmtId]) -> Result<StmtId> {
    let (n, there) = degree(p, x[1]);
    // One at zero, whatever the degree.
    let (zero, two) = (p.c(0.0), p.c(2.0));
    let origin = p.opc(S::Eq, x[0], 0.0);
    let steps = p.select(origin, zero, n);
    let one = p.cop(S::Sub, 1.0, x[0]);
    Ok(counted(p, steps, there, divided(one, two)))
}

/// By `divided(x, 2 x)`.
fn legendre(p: &mut Pw, x: &[StmtId]) -> Result<StmtId> {
    let (n, there) = degree(p, x[1]);
    // At the ends of the interval only the parity counts.
    let size = p.op1(S::Abs, x[0]);
    let end = p.opc(S::Eq, size, 1.0);
    let odd = parity(p, n);
    let steps = p.select(end, odd, n);
    let twice = p.add(x[0], x[0]);
    Ok(counted(p, steps, there, divided(x[0], twice)))
}

/// Airy's function of the first kind: a power series around zero, rational functions of the phase beyond (`AIRY_*`).
/// ```text
/// |x| < 2.09   Ai(0) f(x^3) + Ai'(0) x g(x^3)
/// x >= 2.09    quotient(1 / zeta) exp(-zeta) / (2 sqrt(pi) x^1/4)          zeta = 2/3 |x|^3/2
/// x < -2.09    (sin(t) even - cos(t) odd) / (sqrt(pi) |x|^1/4)             t = zeta + pi / 4
/// ```
fn airy(p: &mut Pw, x: &[StmtId]) -> Result<StmtId> {
    use crate::ops::special::tables::*;
    const NEXT: f64 = 2.09;
    const SCALE: f64 = 0.564_189_583_547_756_3;
    let x = x[0];
    let size = p.op1(S::Abs, x);
    let root = p.op1(S::Sqrt, size);
    let zeta = p.opc(S::Mul, size, 2.0);
    let zeta = p.mul(zeta, root);
    let zeta = p.opc(S::Div, zeta, 3.0);
    let inverse = p.op1(S::Reciprocal, zeta);
    let fourth = p.op1(S::Sqrt, root);

    let top = p.polynomial(inverse, AIRY_N);
    let bottom = p.polynomial(inverse, AIRY_D);
    let quotient = p.div(top, bottom);
    let quotient = p.opc(S::Mul, quotient, SCALE);
    let growth = p.op1(S::Exp, zeta);
    let twice = p.opc(S::Mul, fourth, 2.0);
    let growth = p.mul(twice, growth);
    let right = p.div(quotient, growth);

    let square = p.mul(inverse, inverse);
    let even = (p.polynomial(square, AIRY_FN), p.polynomial(square, AIRY_FD));
    let even = p.div(even.0, even.1);
    let even = p.mul(even, square);
    let even = p.opc(S::Add, even, 1.0);
    let odd = (p.polynomial(square, AIRY_GN), p.polynomial(square, AIRY_GD));
    let odd = p.div(odd.0, odd.1);
    let odd = p.mul(odd, inverse);
    let phase = p.opc(S::Add, zeta, std::f64::consts::FRAC_PI_4);
    let (sin, cos) = (p.op1(S::Sin, phase), p.op1(S::Cos, phase));
    let (a, b) = (p.mul(sin, even), p.mul(cos, odd));
    let wave = p.sub(a, b);
    let wave = p.opc(S::Mul, wave, SCALE);
    let left = p.div(wave, fourth);

    // Ai(x) = Ai(0) f(x^3) + Ai'(0) x g(x^3).
    let terms = if p.dtype == DType::F64 { 16 } else { 10 };
    // Coefficients follow from `y'' = x y`: each is the one before over `3k (3k - 1)`, or over `(3k
    // + 1) 3k`.
    let series = |offset: f64| {
        let mut all = vec![1.0];
        for k in 1..terms {
            let top = 3.0 * k as f64 + offset;
            let last = all[all.len() - 1];
            all.push(last / (top * (top - 1.0)));
        }
        all.reverse();
        all
    };
    let cube = p.mul(x, x);
    let cube = p.mul(cube, x);
    let (f, g) = (
        p.polynomial(cube, &series(0.0)),
        p.polynomial(cube, &series(1.0)),
    );
    let g = p.mul(g, x);
    let (f, g) = (
        p.opc(S::Mul, f, 0.355_028_053_887_817_2),
        p.opc(S::Mul, g, 0.258_819_403_792_806_8),
    );
    let near = p.sub(f, g);

    let (beyond, before) = (p.opc(S::Ge, x, NEXT), p.opc(S::Lt, x, -NEXT));
    let v = p.select(beyond, right, near);
    let v = p.select(before, left, v);
    // There the function is below the least `f64`.
    let (gone, zero) = (p.opc(S::Gt, x, 103.892), p.c(0.0));
    let v = p.select(gone, zero, v);
    // As eager has it, on either side.
    let (infinite, nan) = (p.op1(S::IsInf, x), p.c(f64::NAN));
    Ok(p.select(infinite, nan, v))
}

pointwise! {
    "aten.special_airy_ai.default" "(Tensor x) -> Tensor"
        ["x"] Float airy, "(f64[40]{-30:20})";
    "aten.special_chebyshev_polynomial_t.default" "(Tensor x, Tensor n) -> Tensor"
        ["x", "n"] Float |p, x| chebyshev(p, x, Kind::T, false), "(f64[40]{-1.5:1.5}, i64[40]{-1:14})";
    "aten.special_chebyshev_polynomial_t.x_scalar" "(Scalar x, Tensor n) -> Tensor"
        ["x", "n"] Float |p, x| chebyshev(p, x, Kind::T, false), "(0.3, f32[14]{-1:9})";
    "aten.special_chebyshev_polynomial_t.n_scalar" "(Tensor x, Scalar n) -> Tensor"
        ["x", "n"] Float |p, x| chebyshev(p, x, Kind::T, false), "(f32[40]{-1.5:1.5}, 5)";
    "aten.special_chebyshev_polynomial_u.default" "(Tensor x, Tensor n) -> Tensor"
        ["x", "n"] Float |p, x| chebyshev(p, x, Kind::U, false), "(f64[40]{-1.5:1.5}, i64[40]{-1:14})";
    "aten.special_chebyshev_polynomial_u.x_scalar" "(Scalar x, Tensor n) -> Tensor"
        ["x", "n"] Float |p, x| chebyshev(p, x, Kind::U, false), "(0.3, f32[14]{-1:9})";
    "aten.special_chebyshev_polynomial_u.n_scalar" "(Tensor x, Scalar n) -> Tensor"
        ["x", "n"] Float |p, x| chebyshev(p, x, Kind::U, false), "(f32[40]{-1.5:1.5}, 5)";
    "aten.special_chebyshev_polynomial_v.default" "(Tensor x, Tensor n) -> Tensor"
        ["x", "n"] Float |p, x| chebyshev(p, x, Kind::V, false), "(f64[40]{-1.5:1.5}, i64[40]{-1:14})";
    "aten.special_chebyshev_polynomial_v.x_scalar" "(Scalar x, Tensor n) -> Tensor"
        ["x", "n"] Float |p, x| chebyshev(p, x, Kind::V, false), "(0.3, f32[14]{-1:9})";
    "aten.special_chebyshev_polynomial_v.n_scalar" "(Tensor x, Scalar n) -> Tensor"
        ["x", "n"] Float |p, x| chebyshev(p, x, Kind::V, false), "(f32[40]{-1.5:1.5}, 5)";
    "aten.special_chebyshev_polynomial_w.default" "(Tensor x, Tensor n) -> Tensor"
        ["x", "n"] Float |p, x| chebyshev(p, x, Kind::W, false), "(f64[40]{-1.5:1.5}, i64[40]{-1:14})";
    "aten.special_chebyshev_polynomial_w.x_scalar" "(Scalar x, Tensor n) -> Tensor"
        ["x", "n"] Float |p, x| chebyshev(p, x, Kind::W, false), "(0.3, f32[14]{-1:9})";
    "aten.special_chebyshev_polynomial_w.n_scalar" "(Tensor x, Scalar n) -> Tensor"
        ["x", "n"] Float |p, x| chebyshev(p, x, Kind::W, false), "(f32[40]{-1.5:1.5}, 5)";
    "aten.special_shifted_chebyshev_polynomial_t.default" "(Tensor x, Tensor n) -> Tensor"
        ["x", "n"] Float |p, x| chebyshev(p, x, Kind::T, true), "(f64[40]{-0.2:1.2}, i64[40]{-1:14})";
    "aten.special_shifted_chebyshev_polynomial_t.x_scalar" "(Scalar x, Tensor n) -> Tensor"
        ["x", "n"] Float |p, x| chebyshev(p, x, Kind::T, true), "(0.3, f32[14]{-1:9})";
    "aten.special_shifted_chebyshev_polynomial_t.n_scalar" "(Tensor x, Scalar n) -> Tensor"
        ["x", "n"] Float |p, x| chebyshev(p, x, Kind::T, true), "(f32[40]{-0.2:1.2}, 5)";
    "aten.special_shifted_chebyshev_polynomial_u.default" "(Tensor x, Tensor n) -> Tensor"
        ["x", "n"] Float |p, x| chebyshev(p, x, Kind::U, true), "(f64[40]{-0.2:1.2}, i64[40]{-1:14})";
    "aten.special_shifted_chebyshev_polynomial_u.x_scalar" "(Scalar x, Tensor n) -> Tensor"
        ["x", "n"] Float |p, x| chebyshev(p, x, Kind::U, true), "(0.3, f32[14]{-1:9})";
    "aten.special_shifted_chebyshev_polynomial_u.n_scalar" "(Tensor x, Scalar n) -> Tensor"
        ["x", "n"] Float |p, x| chebyshev(p, x, Kind::U, true), "(f32[40]{-0.2:1.2}, 5)";
    "aten.special_shifted_chebyshev_polynomial_v.default" "(Tensor x, Tensor n) -> Tensor"
        ["x", "n"] Float |p, x| chebyshev(p, x, Kind::V, true), "(f64[40]{-0.2:1.2}, i64[40]{-1:14})";
    "aten.special_shifted_chebyshev_polynomial_v.x_scalar" "(Scalar x, Tensor n) -> Tensor"
        ["x", "n"] Float |p, x| chebyshev(p, x, Kind::V, true), "(0.3, f32[14]{-1:9})";
    "aten.special_shifted_chebyshev_polynomial_v.n_scalar" "(Tensor x, Scalar n) -> Tensor"
        ["x", "n"] Float |p, x| chebyshev(p, x, Kind::V, true), "(f32[40]{-0.2:1.2}, 5)";
    "aten.special_shifted_chebyshev_polynomial_w.default" "(Tensor x, Tensor n) -> Tensor"
        ["x", "n"] Float |p, x| chebyshev(p, x, Kind::W, true), "(f64[40]{-0.2:1.2}, i64[40]{-1:14})";
    "aten.special_shifted_chebyshev_polynomial_w.x_scalar" "(Scalar x, Tensor n) -> Tensor"
        ["x", "n"] Float |p, x| chebyshev(p, x, Kind::W, true), "(0.3, f32[14]{-1:9})";
    "aten.special_shifted_chebyshev_polynomial_w.n_scalar" "(Tensor x, Scalar n) -> Tensor"
        ["x", "n"] Float |p, x| chebyshev(p, x, Kind::W, true), "(f32[40]{-0.2:1.2}, 5)";
    "aten.special_hermite_polynomial_h.default" "(Tensor x, Tensor n) -> Tensor"
        ["x", "n"] Float |p, x| hermite(p, x, 2.0), "(f64[40]{-2:2}, i64[40]{-1:14})";
    "aten.special_hermite_polynomial_h.x_scalar" "(Scalar x, Tensor n) -> Tensor"
        ["x", "n"] Float |p, x| hermite(p, x, 2.0), "(0.3, f32[14]{-1:9})";
    "aten.special_hermite_polynomial_h.n_scalar" "(Tensor x, Scalar n) -> Tensor"
        ["x", "n"] Float |p, x| hermite(p, x, 2.0), "(f32[40]{-2:2}, 5)";
    "aten.special_hermite_polynomial_he.default" "(Tensor x, Tensor n) -> Tensor"
        ["x", "n"] Float |p, x| hermite(p, x, 1.0), "(f64[40]{-2:2}, i64[40]{-1:14})";
    "aten.special_hermite_polynomial_he.x_scalar" "(Scalar x, Tensor n) -> Tensor"
        ["x", "n"] Float |p, x| hermite(p, x, 1.0), "(0.3, f32[14]{-1:9})";
    "aten.special_hermite_polynomial_he.n_scalar" "(Tensor x, Scalar n) -> Tensor"
        ["x", "n"] Float |p, x| hermite(p, x, 1.0), "(f32[40]{-2:2}, 5)";
    "aten.special_laguerre_polynomial_l.default" "(Tensor x, Tensor n) -> Tensor"
        ["x", "n"] Float laguerre, "(f64[40]{-2:9}, i64[40]{-1:14})";
    "aten.special_laguerre_polynomial_l.x_scalar" "(Scalar x, Tensor n) -> Tensor"
        ["x", "n"] Float laguerre, "(0.3, f32[14]{-1:9})";
    "aten.special_laguerre_polynomial_l.n_scalar" "(Tensor x, Scalar n) -> Tensor"
        ["x", "n"] Float laguerre, "(f32[40]{-2:9}, 5)";
    "aten.special_legendre_polynomial_p.default" "(Tensor x, Tensor n) -> Tensor"
        ["x", "n"] Float legendre, "(f64[40]{-1.5:1.5}, i64[40]{-1:14})";
    "aten.special_legendre_polynomial_p.x_scalar" "(Scalar x, Tensor n) -> Tensor"
        ["x", "n"] Float legendre, "(0.3, f32[14]{-1:9})";
    "aten.special_legendre_polynomial_p.n_scalar" "(Tensor x, Scalar n) -> Tensor"
        ["x", "n"] Float legendre, "(f32[40]{-1.5:1.5}, 5)";
}
