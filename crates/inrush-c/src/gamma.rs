//! The logarithm of the gamma function over vectors of `f32`, computed in `f64`: near its zeros, where digits cancel, those of
//! `f32` are still right. The C library has it for scalars only, at four times the time.

use crate::helpers::Helpers;
use crate::types::CType;
use inrush_base::{Caps, Isa};
use std::fmt::Write;

/// Of Stirling's series, in odd powers of `1 / y`, the last one first: Bernoulli numbers over `2k (2k - 1)`.
const STIRLING: &[&str] = &[
    "-3617.0 / 122400.0",
    "1.0 / 156.0",
    "-691.0 / 360360.0",
    "1.0 / 1188.0",
    "-1.0 / 1680.0",
    "1.0 / 1260.0",
    "-1.0 / 360.0",
    "1.0 / 12.0",
];

/// `sin(pi r) / (pi r)` in powers of `r^2` up to `r = 1/2`, from Taylor's series, whose first term left out is 3e-14.
const SINE: &[f64] = &[
    2.531_217_404_137_026e-7,
    -6.975_873_661_656_377e-6,
    1.484_287_930_310_709_2e-4,
    -2.346_081_035_455_822_6e-3,
    0.026_147_847_817_654_79,
    -0.190_751_824_122_084_2,
    0.811_742_425_283_353_5,
    -1.644_934_066_848_226_4,
    1.0,
];

/// The function over as many lanes as a vector of `f64` has, four or eight: its name, and how many.
///
/// Arguments below 8 are moved up by 8 steps, `gamma(t) = gamma(t + 8) / (t (t + 1) ... (t + 7))`; those below zero are reflected,
/// `gamma(-t) = pi / (-t sin(pi t) gamma(t))`. Whatever is not Stirling's is one product, so that there are two logarithms.
pub(crate) fn log_gamma(h: &mut Helpers, w: u32, caps: &Caps) -> (String, u32) {
    let n = match caps.isa {
        Isa::Avx512 if w.is_multiple_of(8) => 8,
        _ => 4,
    };
    let (x, d, l) = (
        h.vector(CType::F32, n),
        h.vector(CType::F64, n),
        h.vector(CType::I64, n),
    );
    let bc = h.broadcast(CType::F64, n);
    let log = h.math("log", CType::F64, n, 1, caps);
    let round = h.rounding("rint", CType::F64, n, caps);
    let select = h.select(CType::F64, n, caps);
    let name = format!("log_gamma_f32x{n}");
    h.function(&name, format_args!("{x} {name}({x} a)"), |_| {
        let abs = |v: &str| format!("({d})(({l}){v} & 0x7fffffffffffffffll)");
        let mut text = format!(
            "const {d} x = __builtin_convertvector(a, {d}), t = {}; \
             const {l} low = t < {bc}(8.0), below = x < {bc}(0.0); {d} p = t; ",
            abs("x")
        );
        for k in 1..8 {
            _ = write!(text, "p *= t + {bc}({k}.0); ");
        }
        _ = write!(
            text,
            "p = {select}(low, p, {bc}(1.0)); \
             const {d} y = {select}(low, t + {bc}(8.0), t), z = {bc}(1.0) / y, zz = z * z; {d} s = {bc}(0.0); "
        );
        for c in STIRLING {
            _ = write!(text, "s = s * zz + {bc}({c}); ");
        }
        _ = write!(
            text,
            "s = (y - {bc}(0.5)) * {log}(y) - y + {bc}(0.91893853320467274178) + s * z; \
             const {d} r = x - {round}(x), rr = r * r; {d} w = {bc}(0.0); "
        );
        for c in SINE {
            _ = write!(text, "w = w * rr + {bc}({c:?}); ");
        }
        _ = write!(
            text,
            "const {d} q = {select}(below, t * ({}) * w / p, p), g = {log}(q), \
             all = s + {select}(below, g, -g); \
             {d} v = {select}(below, -all, all); \
             v = {select}(t == {bc}(__builtin_inf()), t, v); \
             v = {select}((x == {bc}(1.0)) | (x == {bc}(2.0)), {bc}(0.0), v); return __builtin_convertvector(v, {x});",
            abs("r")
        );
        text
    });
    (name, n)
}
