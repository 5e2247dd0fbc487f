//! Orthogonal polynomials, by their recurrences.
//!
//! A degree that is a number is so many steps. Those of Chebyshev have closed forms, so that a degree may be a tensor: the first
//! degrees by the recurrence, one selected, the others by angles. Degrees below zero give zero, fractions are cut off, as in
//! eager; eager's sums overflow to NaN where these forms still say infinity.

use super::pointwise::pointwise;
use crate::Pw;
use inrush_base::{DType, Result, Scalar};
use inrush_loops::{ScalarOp as S, StmtId};

/// Degrees of numbers up to this one are written out.
const LONGEST: i64 = 64;
/// Degrees of tensors up to this one come from the recurrence.
const NEAR: usize = 8;

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    T,
    U,
    V,
    W,
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
fn first(p: &mut Pw, y: StmtId, kind: Kind) -> StmtId {
    let twice = p.add(y, y);
    match kind {
        Kind::T => y,
        Kind::U => twice,
        Kind::V => p.opc(S::Sub, twice, 1.0),
        Kind::W => p.opc(S::Add, twice, 1.0),
    }
}

/// A quotient of two functions of an angle, `f(a * (n + shift)) / f(a * part)`; T has no denominator.
fn ratio(p: &mut Pw, f: S, a: StmtId, n: StmtId, kind: Kind) -> StmtId {
    let (shift, part) = match kind {
        Kind::T => (0.0, 0.0),
        Kind::U => (1.0, 1.0),
        Kind::V | Kind::W => (0.5, 0.5),
    };
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

/// Any degree, in `f64`: trigonometric within the interval, hyperbolic outside, known values at its ends.
fn closed(p: &mut Pw, y: StmtId, n: StmtId, kind: Kind) -> StmtId {
    let (inner, outer) = match kind {
        Kind::T => (S::Cos, [S::Cosh, S::Cosh]),
        Kind::U => (S::Sin, [S::Sinh, S::Sinh]),
        // For arguments below the interval V and W change places.
        Kind::V => (S::Cos, [S::Cosh, S::Sinh]),
        Kind::W => (S::Sin, [S::Sinh, S::Cosh]),
    };
    let size = p.op1(S::Abs, y);
    let angle = p.op1(S::Acos, y);
    let inside = ratio(p, inner, angle, n, kind);
    let angle = p.op1(S::Acosh, size);
    let negative = p.opc(S::Lt, y, 0.0);
    let mut outside = ratio(p, outer[0], angle, n, kind);
    if outer[0] != outer[1] {
        let mirrored = ratio(p, outer[1], angle, n, kind);
        outside = p.select(negative, mirrored, outside);
    }
    // The ends: one, or as much as the degree says.
    let twice = p.add(n, n);
    let (one, next, double) = (p.c(1.0), p.opc(S::Add, n, 1.0), p.opc(S::Add, twice, 1.0));
    let end = match kind {
        Kind::T => one,
        Kind::U => next,
        Kind::V => p.select(negative, double, one),
        Kind::W => p.select(negative, one, double),
    };
    let at_end = p.opc(S::Eq, size, 1.0);
    let outside = p.select(at_end, end, outside);
    let two = p.c(2.0);
    let odd = p.op2(S::Remainder, n, two);
    let odd = p.opc(S::Eq, odd, 1.0);
    let flipped = p.op2(S::And, odd, negative);
    let minus = p.neg(outside);
    let outside = p.select(flipped, minus, outside);
    let is_inside = p.opc(S::Lt, size, 1.0);
    p.select(is_inside, inside, outside)
}

fn chebyshev(p: &mut Pw, x: &[StmtId], kind: Kind, shifted: bool) -> Result<StmtId> {
    if let Some(degree) = degree(p)? {
        return Ok(by_steps(p, x[0], degree, |p, x| {
            let y = argument(p, x, shifted);
            (first(p, y, kind), Step::Chebyshev(p.add(y, y)))
        }));
    }
    let y = argument(p, x[0], shifted);
    let n = p.op1(S::Trunc, x[1]);
    let dtype = p.dtype;
    let (wide_y, wide_n) = (p.body.cast(y, DType::F64), p.body.cast(n, DType::F64));
    p.dtype = DType::F64;
    let far = closed(p, wide_y, wide_n, kind);
    p.dtype = dtype;
    let mut value = p.body.cast(far, dtype);
    let twice = p.add(y, y);
    let (mut before, mut now) = (p.c(1.0), first(p, y, kind));
    for k in 0..=NEAR {
        let here = p.opc(S::Eq, n, k as f64);
        value = p.select(here, before, value);
        let product = p.mul(twice, now);
        let next = p.sub(product, before);
        before = now;
        now = next;
    }
    // Neither degrees below zero nor those that are no numbers.
    let (low, high) = (p.opc(S::Ge, n, 0.0), p.opc(S::Lt, n, 9.0e18));
    let there = p.op2(S::And, low, high);
    let zero = p.c(0.0);
    Ok(p.select(there, value, zero))
}

/// The degree, where it is a number.
fn degree(p: &Pw) -> Result<Option<i64>> {
    if p.call.tensor("n").is_ok() {
        return Ok(None);
    }
    let n = match p.call.scalar("n")? {
        Scalar::Float(f) if !f.is_finite() => -1,
        Scalar::Float(f) => f as i64,
        s => s.as_i64(),
    };
    match n <= LONGEST {
        true => Ok(Some(n)),
        false => Err(p.call.unsupported("n", "a number up to 64")),
    }
}

/// How a degree follows from the two before it.
enum Step {
    /// `t * now - before`, with `t` given.
    Chebyshev(StmtId),
    /// `2 (x * now - k * before)`.
    HermiteH,
    HermiteHe,
    Laguerre,
    Legendre,
}

/// Degree `n` from degrees 0 and 1; `start` gives the latter and the rule.
fn by_steps<'a, 'g>(
    p: &mut Pw<'a, 'g>,
    x: StmtId,
    n: i64,
    start: impl FnOnce(&mut Pw<'a, 'g>, StmtId) -> (StmtId, Step),
) -> StmtId {
    if n < 1 {
        return p.c(if n < 0 { 0.0 } else { 1.0 });
    }
    let (mut now, step) = start(p, x);
    let mut before = p.c(1.0);
    for k in 1..n {
        let k = k as f64;
        let next = match step {
            Step::Chebyshev(t) => {
                let product = p.mul(t, now);
                p.sub(product, before)
            }
            Step::HermiteH => {
                let (twice, less) = (p.add(x, x), p.opc(S::Mul, before, 2.0 * k));
                let product = p.mul(twice, now);
                p.sub(product, less)
            }
            Step::HermiteHe => {
                let (product, less) = (p.mul(x, now), p.opc(S::Mul, before, k));
                p.sub(product, less)
            }
            Step::Laguerre => {
                let factor = p.cop(S::Sub, 1.0, x);
                let factor = p.opc(S::Add, factor, 2.0 * k);
                quotient(p, factor, now, before, k)
            }
            Step::Legendre => {
                let factor = p.opc(S::Mul, x, 2.0 * k + 1.0);
                quotient(p, factor, now, before, k)
            }
        };
        before = now;
        now = next;
    }
    now
}

/// `(factor * now - k * before) / (k + 1)`.
fn quotient(p: &mut Pw, factor: StmtId, now: StmtId, before: StmtId, k: f64) -> StmtId {
    let (product, less) = (p.mul(factor, now), p.opc(S::Mul, before, k));
    let difference = p.sub(product, less);
    p.opc(S::Div, difference, k + 1.0)
}

/// A family that has no closed form: its degrees are numbers.
fn numbered(p: &mut Pw, x: StmtId, step: Step) -> Result<StmtId> {
    let Some(n) = degree(p)? else {
        return Err(p.call.unsupported("n", "a number"));
    };
    Ok(by_steps(p, x, n, |p, x| {
        let one = match step {
            Step::HermiteH => p.add(x, x),
            Step::Laguerre => p.cop(S::Sub, 1.0, x),
            _ => x,
        };
        (one, step)
    }))
}

/// Airy's function of the first kind: a power series around zero, rational functions of the phase beyond (`AIRY_*`).
fn airy(p: &mut Pw, x: &[StmtId]) -> Result<StmtId> {
    use super::special_tables::*;
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
    "aten.special_hermite_polynomial_h.n_scalar" "(Tensor x, Scalar n) -> Tensor"
        ["x"] Float |p, x| numbered(p, x[0], Step::HermiteH), "(f32[40]{-2:2}, 6)";
    "aten.special_hermite_polynomial_he.n_scalar" "(Tensor x, Scalar n) -> Tensor"
        ["x"] Float |p, x| numbered(p, x[0], Step::HermiteHe), "(f32[40]{-2:2}, 6)";
    "aten.special_laguerre_polynomial_l.n_scalar" "(Tensor x, Scalar n) -> Tensor"
        ["x"] Float |p, x| numbered(p, x[0], Step::Laguerre), "(f32[40]{-2:9}, 6)";
    "aten.special_legendre_polynomial_p.n_scalar" "(Tensor x, Scalar n) -> Tensor"
        ["x"] Float |p, x| numbered(p, x[0], Step::Legendre), "(f32[40]{-1.5:1.5}, 6)";
}
