//! Vector functions of ours for `f32`: exponential, error function, hyperbolic tangent.
//!
//! The design leaves vector math to the C library. These three are an exception because models spend their time in them and
//! a library call costs more than the arithmetic: it spills every vector register around itself, and glibc's `expf` leaves
//! the vector for scalar code, at twenty times the cost, as soon as one lane underflows, which masked attention scores
//! always do. They are spelled in vector extensions only, so every target has them, libmvec or not.
//!
//! Coefficients are least-maximum fits made for this file. Largest errors over every seventh `f32` (with fused multiply-add, against
//! the C library's `f64` functions): `exp` 0.9 ulp with exact overflow, underflow and denormals; `erf` 6 ulp and `tanh` 5.5
//! ulp, neither ever beyond 1. NaN gives NaN.

use crate::helpers::Helpers;
use inrush_base::Caps;
use std::fmt::Write;

/// The quotients grow beyond 1 a little before `end`, from where on the result is 1.
const ERF: Odd = Odd {
    end: "4.1f",
    p: &[
        std::f32::consts::FRAC_2_SQRT_PI,
        0.190_407_63,
        0.052_748_878,
        0.003_765_666,
        0.000_284_883_5,
        2.050_074_7e-6,
    ],
    q: &[
        1.0,
        0.502_077_1,
        0.114_109_6,
        0.014_969_316,
        0.001_162_546_7,
        3.809_163e-5,
    ],
};

const TANH: Odd = Odd {
    end: "8.7f",
    p: &[
        1.0,
        0.129_676_58,
        0.002_973_216,
        9.757_009e-6,
        -1.430_478_8e-8,
        2.235_518_2e-11,
    ],
    q: &[1.0, 0.463_009_7, 0.023_976_775, 0.000_235_417_58],
};

/// An odd function that saturates at 1, as a quotient of polynomials in the square.
struct Odd {
    end: &'static str,
    p: &'static [f32],
    q: &'static [f32],
}

/// The function over `w` lanes of `f32`, by name; `None` where there is none of ours.
pub(crate) fn function(h: &mut Helpers, f: &str, w: u32, caps: &Caps) -> Option<String> {
    let v = h.vector("f32", w);
    let name = format!("{f}_{v}");
    let body = match f {
        "exp" => exp(h, w, caps),
        "erf" => odd(h, &ERF, w, caps),
        "tanh" => odd(h, &TANH, w, caps),
        _ => return None,
    };
    h.function(&name, format!("{v} {name}({v} x)"), |_| body);
    Some(name)
}

/// `sum(c[k] * at^k)` by Horner's rule, as statements that leave the sum in `name`.
fn horner(bc: &str, v: &str, name: &str, c: &[f32], at: &str) -> String {
    let mut out = String::new();
    for (k, c) in c.iter().rev().enumerate() {
        _ = match k {
            0 => write!(out, "{v} {name} = {bc}({c:?}f); "),
            _ => write!(out, "{name} = {name} * {at} + {bc}({c:?}f); "),
        };
    }
    out
}

fn odd(h: &mut Helpers, f: &Odd, w: u32, caps: &Caps) -> String {
    let (v, bc) = (h.vector("f32", w), h.broadcast("f32", w));
    let (min, max) = (
        h.clamp("min", "f32", w, caps),
        h.clamp("max", "f32", w, caps),
    );
    let p = horner(&bc, &v, "p", f.p, "s");
    let q = horner(&bc, &v, "q", f.q, "s");
    let end = f.end;
    // What lies beyond the end is added to the quotient, so that the result is exactly one there: `1 + tanh(x)` of a very
    // negative `x` is zero, which a product with infinity shows.
    format!(
        "const {v} o = x; x = {max}({min}(x, {bc}({end})), {bc}(-{end})); const {v} s = x * x; {p}{q}\
         return {max}({min}(x * p / q + (o - x), {bc}(1.0f)), {bc}(-1.0f));"
    )
}

/// `exp(x) = 2^n * exp(r)` with `|r| <= log(2) / 2`. The power goes in by two factors, so that denormals round once and
/// what is too large becomes infinite.
fn exp(h: &mut Helpers, w: u32, caps: &Caps) -> String {
    let (v, bc) = (h.vector("f32", w), h.broadcast("f32", w));
    let (i, bi) = (h.vector("i32", w), h.broadcast("i32", w));
    let (min, max) = (
        h.clamp("min", "f32", w, caps),
        h.clamp("max", "f32", w, caps),
    );
    let c = [
        1.0,
        1.0,
        0.499_999_94,
        0.166_665_21,
        0.041_668_39,
        0.008_368_725,
        0.001_381_458_1,
    ];
    let p = horner(&bc, &v, "p", &c, "r");
    // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits. log(2) is taken off in two parts, the first of
    // so few bits that its product with n is exact.
    format!(
        "x = {max}({min}(x, {bc}(89.0f)), {bc}(-104.0f)); \
         const {v} t = x * {bc}(1.44269504f) + {bc}(12582912.0f); const {v} n = t - {bc}(12582912.0f); \
         {v} r = x - n * {bc}(0.693145752f); r = r - n * {bc}(1.42860677e-6f); {p}\
         const {i} k = ({i})t - {bi}(0x4b400000); const {i} a = k >> 1; const {i} b = k - a; \
         return p * ({v})((a + {bi}(127)) << 23) * ({v})((b + {bi}(127)) << 23);"
    )
}
