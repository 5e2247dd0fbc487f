//! Vector functions of ours for `f32`: exponentials, logarithm, error function, hyperbolic tangent.
//!
//! The design leaves vector math to the C library. These few are an exception because models spend their time in them and
//! a library call costs more than the arithmetic: it spills every vector register around itself, and glibc's `expf` leaves
//! the vector for scalar code, at twenty times the cost, as soon as one lane underflows, which masked attention scores
//! always do. They are spelled in vector extensions, so every target has them, libmvec or not; the logarithm has a second spelling
//! for AVX-512.
//!
//! Coefficients are least-maximum fits made for this file. Largest errors over every seventh `f32` (with fused multiply-add, against
//! the C library's `f64` functions): `log` 0.9 (0.8 for AVX-512, of all `f32`) and `log1p` 1 ulp, denormals too (every 97th `f32`); `exp` 0.9 and `exp2` 0.95 ulp (every third) with exact overflow and underflow; `erf` 6 ulp and `tanh` 5.7
//! ulp, neither ever beyond 1. NaN gives NaN.
//!
//! Two sums have functions of their own (see [`crate::peephole`]): `1 + tanh(x)` within 4.3 ulp of the sum's true value down to
//! -13 and 10.3 down to -40, by way of the exponential; `1 + erf(x / sqrt(2))` within 8e-7 of itself
//! down to -2 and 3e-8 of 1 below, closer than the sum of 1 and a rounded function, and exactly 0 below -8.2.

use crate::helpers::{Helpers, Name, gcc_only};
use crate::types::CType;
use inrush_base::{Caps, Isa};

/// The quotients grow beyond 1 a little before `end`; what is larger is taken for 1.
const ERF: Odd = Odd {
    end: 4.1,
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
    end: 8.7,
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

/// `1 + erf(x / sqrt(2))`, twice the normal distribution's function.
pub(crate) const ONE_PLUS_ERF: &str = "one_plus_erf";
/// `1 + tanh(x)`.
pub(crate) const ONE_PLUS_TANH: &str = "one_plus_tanh";

/// `erfc(a / sqrt(2))^(1/8)` of `a >= 0`, fit so that its eighth power has the least error relative to itself; negative from 8.1 on.
const NORMAL: &[f32] = &[
    1.0,
    -0.099_735_38,
    -0.034_816_872,
    -0.000_733_682_8,
    0.001_640_746_5,
    3.756_461_2e-5,
    -6.583_367e-5,
    8.185_292e-6,
    -3.250_084e-7,
];

/// An odd function that saturates at 1, as a quotient of polynomials in the square.
struct Odd {
    /// Square root of the largest square that is looked at.
    end: f32,
    /// Coefficients of the numerator, the constant first; the function is `x * p(x^2) / q(x^2)`.
    p: &'static [f32],
    /// Those of the denominator.
    q: &'static [f32],
}

/// Statements in the order in which one vector needs them, and the result. `#` ends the names of variables: two vectors at
/// once have two of each.
struct Body {
    statements: Vec<String>,
    result: String,
}

/// The function over `w` lanes of `f32`, by name; `None` where there is none of ours.
pub(crate) fn function(h: &mut Helpers, f: &'static str, w: u32, caps: &Caps) -> Option<Name> {
    let body = body(f)?;
    let make = |h: &mut Helpers| {
        let body = body(h, w, caps);
        let v = h.vector(CType::F32, w);
        let name = format!("{f}_{v}");
        h.function(&name, format_args!("{v} {name}({v} x)"), |_| {
            let text = body.statements.join(" ");
            format!("{text} return {};", body.result).replace('#', "")
        });
        name
    };
    Some(h.once(("approx", f, CType::F32, w), make))
}

/// Returns a helper that evaluates the function on several vectors at once, results through pointers. The operations of one
/// vector form a dependency chain; interleaving several chains hides its latency, which compilers do not do across calls.
pub(crate) fn together(
    h: &mut Helpers,
    f: &'static str,
    w: u32,
    n: u32,
    caps: &Caps,
) -> Option<Name> {
    // Logarithms stand alone: kernels have one where they have many exponentials.
    if matches!(f, "log" | "log1p") {
        return None;
    }
    let body = body(f)?;
    let make = |h: &mut Helpers| {
        let body = body(h, w, caps);
        let v = h.vector(CType::F32, w);
        // Not `exp2_`, which is another function.
        let name = format!("{f}_of_{n}_{v}");
        let list = |what: &str| -> String {
            let each: Vec<String> = (0..n).map(|k| format!("{v} {what}{k}")).collect();
            each.join(", ")
        };
        let (from, to) = (list("x"), list("*y"));
        h.function(&name, format_args!("void {name}({from}, {to})"), |_| {
            let mut text = String::new();
            let results = format!("*y# = {};", body.result);
            for s in body.statements.iter().chain([&results]) {
                for k in 0..n {
                    text += &s.replace('#', &k.to_string());
                    text.push(' ');
                }
            }
            text
        });
        name
    };
    Some(h.once(("together", f, CType::F32, n << 16 | w), make))
}

/// Returns the generator of a function's body.
fn body(f: &str) -> Option<fn(&mut Helpers, u32, &Caps) -> Body> {
    match f {
        "exp" => Some(exp),
        "exp2" => Some(exp2),
        "log" => Some(log),
        "log1p" => Some(log_1p),
        ONE_PLUS_ERF => Some(one_plus_erf),
        ONE_PLUS_TANH => Some(one_plus_tanh),
        "erf" => Some(|h, w, caps| odd(h, &ERF, w, caps)),
        "tanh" => Some(|h, w, caps| odd(h, &TANH, w, caps)),
        _ => None,
    }
}

/// `sum(c[k] * at^k)` by Horner's rule, as statements that leave the sum in `name`.
fn horner(bc: &str, v: &str, name: &str, c: &[f32], at: &str) -> Vec<String> {
    let step = |(k, c): (usize, &f32)| match k {
        0 => format!("{v} {name} = {bc}({c:?}f);"),
        _ => format!("{name} = {name} * {at} + {bc}({c:?}f);"),
    };
    c.iter().rev().enumerate().map(step).collect()
}

/// Statements of two sums that do not wait for each other.
fn in_turns(a: Vec<String>, b: Vec<String>) -> Vec<String> {
    let (mut a, mut b) = (a.into_iter(), b.into_iter());
    let mut all = Vec::new();
    loop {
        let (x, y) = (a.next(), b.next());
        if x.is_none() && y.is_none() {
            return all;
        }
        all.extend(x);
        all.extend(y);
    }
}

/// `e = erfc(|x| / sqrt(2))` is the result below zero and `2 - e` above: no digits cancel. Its eighth root falls so slowly that a
/// short polynomial gives it, without a division.
fn one_plus_erf(h: &mut Helpers, w: u32, caps: &Caps) -> Body {
    let (v, bc) = (h.vector(CType::F32, w), h.broadcast(CType::F32, w));
    let (i, bi) = (h.vector(CType::I32, w), h.broadcast(CType::I32, w));
    let max = h.clamp("max", CType::F32, w, caps);
    let select = h.select(CType::F32, w, caps);
    let mut statements = vec![format!("const {v} a# = ({v})(({i})x# & {bi}(0x7fffffff));")];
    statements.extend(horner(&bc, &v, "e#", NORMAL, "a#"));
    statements.push(format!("e# = {max}(e#, {bc}(0.0f));"));
    statements.extend(vec!["e# = e# * e#;".to_string(); 3]);
    Body {
        statements,
        result: format!("{select}(({i})x# < 0, e#, {bc}(2.0f) - e#)"),
    }
}

/// `2 / (1 + e)` with `e = exp(-2x)`; `e = 2^n * (a + b) / (a - b)`, an approximant of the exponential of what is left, so that
/// one division does for both.
fn one_plus_tanh(h: &mut Helpers, w: u32, caps: &Caps) -> Body {
    let (v, bc) = (h.vector(CType::F32, w), h.broadcast(CType::F32, w));
    let i = h.vector(CType::I32, w);
    let (min, max) = (
        h.clamp("min", CType::F32, w, caps),
        h.clamp("max", CType::F32, w, caps),
    );
    // Powers of two as in `exp`: n and the exponent of 1 in the low bits. At the ends the power is infinite, or negligible next to 1.
    let statements = vec![
        format!("x# = {max}({min}(x#, {bc}(43.6f)), {bc}(-43.6f));"),
        format!("const {v} t# = x# * {bc}(-2.88539008f) + {bc}(12583039.0f);"),
        format!("const {v} n# = t# - {bc}(12583039.0f);"),
        format!("const {v} r# = x# * {bc}(-2.88539008f) - n#;"),
        format!("const {v} s# = r# * r#;"),
        format!("const {v} a# = s# * {bc}(17.3123405f) + {bc}(360.333685f);"),
        format!("const {v} b# = s# + {bc}(124.882139f);"),
        format!("const {v} d# = a# - r# * b#;"),
        format!("const {v} e# = (a# + r# * b#) * ({v})(({i})t# << 23) + d#;"),
    ];
    Body {
        statements,
        result: "(d# + d#) / e#".into(),
    }
}

fn odd(h: &mut Helpers, f: &Odd, w: u32, caps: &Caps) -> Body {
    let (v, bc) = (h.vector(CType::F32, w), h.broadcast(CType::F32, w));
    let (min, max) = (
        h.clamp("min", CType::F32, w, caps),
        h.clamp("max", CType::F32, w, caps),
    );
    // Beyond the end the quotient of the end, which is at least 1 / end, goes on growing with the factor `x`: exactly 1 after
    // the last step, as `1 + tanh(x)` of a very negative `x` wants it.
    let end = f.end * f.end;
    let mut statements = vec![format!("const {v} s# = {min}(x# * x#, {bc}({end:?}f));")];
    statements.extend(in_turns(
        horner(&bc, &v, "p#", f.p, "s#"),
        horner(&bc, &v, "q#", f.q, "s#"),
    ));
    let one = format!("{bc}(1.0f)");
    let result = format!("{max}({min}(x# * p# / q#, {one}), -{one})");
    Body { statements, result }
}

/// `exp(x) = 2^n * exp(r)` with `|r| <= log(2) / 2`.
fn exp(h: &mut Helpers, w: u32, caps: &Caps) -> Body {
    let (v, bc) = (h.vector(CType::F32, w), h.broadcast(CType::F32, w));
    // log(2) is taken off in two parts, the first of so few bits that its product with n is exact.
    let rest = [
        format!("const {v} n# = t# - {bc}({ROUND});"),
        format!("{v} r# = x# - n# * {bc}(0.693145752f);"),
        format!("r# = r# - n# * {bc}(1.42860677e-6f);"),
    ];
    let c = [
        1.0,
        1.0,
        0.499_999_94,
        0.166_665_21,
        0.041_668_39,
        0.008_368_725,
        0.001_381_458_1,
    ];
    let scaled = format!("x# * {bc}(1.44269504f)");
    exponential(h, w, caps, [-104.0, 89.0], &scaled, &rest, &c)
}

/// `2^x = 2^n * 2^r` with `|r| <= 1/2`, which is exact.
fn exp2(h: &mut Helpers, w: u32, caps: &Caps) -> Body {
    let (v, bc) = (h.vector(CType::F32, w), h.broadcast(CType::F32, w));
    let rest = [format!("const {v} r# = x# - (t# - {bc}({ROUND}));")];
    let c = [
        1.0,
        std::f32::consts::LN_2,
        0.240_226_48,
        0.055_503_324,
        0.009_618_438,
        0.001_339_888_8,
        0.000_153_533_52,
    ];
    exponential(h, w, caps, [-151.0, 129.0], "x#", &rest, &c)
}

/// Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits; 254 more is twice the exponent of 1, so that both
/// halves of the sum are exponents.
const ROUND: &str = "12583166.0f";

/// `2^n * p(r)`, where `n` is `scaled` rounded, `rest` are the statements that make `r` of `x` and of `t = n + ROUND`, and `c` has
/// the coefficients of `p`. The power goes in by two factors, so that denormals round once and what is too large becomes
/// infinite. Beyond `ends` nothing changes any more: lanes below them compute `2^0` and are cleared, as a product
/// that underflows takes Intel's processors a hundred times as long, and masked attention scores all do.
fn exponential(
    h: &mut Helpers,
    w: u32,
    caps: &Caps,
    ends: [f32; 2],
    scaled: &str,
    rest: &[String],
    c: &[f32],
) -> Body {
    let (v, bc) = (h.vector(CType::F32, w), h.broadcast(CType::F32, w));
    let i = h.vector(CType::I32, w);
    let min = h.clamp("min", CType::F32, w, caps);
    let [low, high] = ends;
    let mut statements = vec![
        format!("const {i} d# = ({i})(x# < {bc}({low:?}f));"),
        format!("x# = ({v})(({i}){min}(x#, {bc}({high:?}f)) & ~d#);"),
        format!("const {v} t# = {scaled} + {bc}({ROUND});"),
    ];
    statements.extend_from_slice(rest);
    statements.extend([
        format!("const {i} a# = ({i})t# >> 1;"),
        format!("const {i} b# = ({i})t# - a#;"),
    ]);
    statements.extend(horner(&bc, &v, "p#", c, "r#"));
    Body {
        statements,
        result: format!("({v})(({i})(p# * ({v})(a# << 23) * ({v})(b# << 23)) & ~d#)"),
    }
}

/// `(log(1 + r) - r + r^2 / 2) / r^3` for `|r| <= 1/3`, fit so that the logarithm has the least error relative to itself.
const LOG: &[f32] = &[
    0.333_332_15,
    -0.249_997_97,
    0.200_104_06,
    -0.166_804_88,
    0.140_058_68,
    -0.121_842_62,
    0.139_844_4,
    -0.128_916_79,
];

/// Statements that leave the logarithm of a positive normal number `u` in `y`, less what `left` adds to it: `u = 2^n * (1 + r)`
/// with `1 + r` between 2/3 and 4/3. `scale` is taken off the exponent.
fn log_of(h: &mut Helpers, w: u32, left: &str, scale: &str) -> Vec<String> {
    let (v, bc) = (h.vector(CType::F32, w), h.broadcast(CType::F32, w));
    let (i, bi) = (h.vector(CType::I32, w), h.broadcast(CType::I32, w));
    let mut statements = vec![
        format!("const {i} e# = (({i})u# - {bi}(0x3f2aaaab)) >> 23;"),
        format!("const {v} r# = ({v})(({i})u# - (e# << 23)) - {bc}(1.0f);"),
        format!("const {v} n# = __builtin_convertvector(e#, {v}){scale};"),
    ];
    statements.extend(log_of_parts(h, w, left));
    statements
}

/// The same for `u = 2^n * (1 + r)` taken apart.
fn log_of_parts(h: &mut Helpers, w: u32, left: &str) -> Vec<String> {
    let (v, bc) = (h.vector(CType::F32, w), h.broadcast(CType::F32, w));
    let mut statements = horner(&bc, &v, "p#", LOG, "r#");
    // The power's logarithm comes in two parts, the first of so few bits that its product with n is exact.
    statements.extend([
        format!("p# = (p# * r# - {bc}(0.5f)) * (r# * r#);"),
        format!("p# = n# * {bc}(1.42860677e-6f) + p#{left};"),
        format!("const {v} y# = n# * {bc}(0.693145752f) + (r# + p#);"),
    ]);
    statements
}

/// About `1 / u` for the 32nd parts of 1 to 2, in nine bits; 1 and a half at the ends, where the logarithm is next to nothing.
const RECIPROCALS: [f32; 32] = [
    1.0,
    0.955_078_1,
    0.927_734_4,
    0.902_343_75,
    0.876_953_1,
    0.853_515_6,
    0.832_031_25,
    0.810_546_9,
    0.791_015_6,
    0.771_484_4,
    0.753_906_25,
    0.736_328_1,
    0.718_75,
    0.703_125,
    0.687_5,
    0.673_828_1,
    0.660_156_25,
    0.646_484_4,
    0.632_812_5,
    0.621_093_75,
    0.609_375,
    0.597_656_25,
    0.587_890_6,
    0.576_171_9,
    0.566_406_25,
    0.556_640_6,
    0.546_875,
    0.537_109_4,
    0.529_296_9,
    0.519_531_25,
    0.511_718_75,
    0.5,
];

/// Minus their logarithms, in so few bits that sums with `n * 0.693145752` are exact.
const HIGH: [f32; 32] = [
    0.0,
    0.045_959_473,
    0.075_012_21,
    0.102_752_686,
    0.131_301_88,
    0.158_386_23,
    0.183_883_67,
    0.210_052_49,
    0.234_436_04,
    0.259_445_2,
    0.282_485_96,
    0.306_076_05,
    0.330_245_97,
    0.352_218_63,
    0.374_694_82,
    0.394_775_4,
    0.415_283_2,
    0.436_203,
    0.457_580_57,
    0.476_272_58,
    0.495_315_55,
    0.514_74,
    0.531_219_5,
    0.551_345_8,
    0.568_450_9,
    0.585_830_7,
    0.603_530_9,
    0.621_551_5,
    0.636_199_95,
    0.654_830_93,
    0.669_982_9,
    0.693_145_75,
];

/// Rounding errors of the entries above.
const LOW: [f32; 32] = [
    0.0,
    2.662_908_4e-6,
    -2.386_026_4e-6,
    7.048_410_7e-6,
    -1.425_855_6e-7,
    5.199_475_3e-6,
    1.611_778e-6,
    -6.385_425_4e-6,
    1.522_776_8e-6,
    -6.330_291_4e-6,
    1.293_660_6e-6,
    3.387_786_8e-6,
    -4.284_809e-6,
    1.965_659_7e-6,
    -1.374_777_3e-6,
    4.817_383_3e-6,
    -4.473_568_4e-6,
    3.246_732_8e-6,
    5.428_409_5e-7,
    6.592_515e-7,
    5.885_472e-6,
    -4.671_472_6e-7,
    -5.122_131_4e-6,
    3.443_504_3e-6,
    -7.225_675_3e-6,
    4.756_294_4e-6,
    4.138_081_3e-6,
    2.013_701e-6,
    5.852_988e-6,
    -2.616_359_3e-6,
    -2.788_877_7e-6,
    1.428_606_8e-6,
];

/// `(log(1 + r) - r) / r^2` for `r` from -1/56 to 1/32, fit so that the logarithm has the least error relative to itself.
const NEAR_ONE: [f32; 3] = [-0.500_001_2, 0.333_390_62, -0.244_888_25];

/// Where the machine takes numbers apart itself: denormals need no step of their own, and what has no logarithm is one
/// instruction, by a table of what it is: NaN for NaN, minus infinities and negative numbers, the infinities of zero and infinity.
/// Registers hold tables, so that what is left for the polynomial is within a 32nd of 1.
fn log_by_fields(h: &mut Helpers) -> Body {
    let w = 16;
    let (v, bc) = (h.vector(CType::F32, w), h.broadcast(CType::F32, w));
    let (i, bi) = (h.vector(CType::I32, w), h.broadcast(CType::I32, w));
    let find = look_up(h);
    let mut statements = vec![
        format!("const {v} u# = __builtin_ia32_getmantps512_mask(x#, 0, x#, -1, 4);"),
        format!("const {v} n# = __builtin_ia32_getexpps512_mask(x#, x#, -1, 4);"),
        format!("const {i} k# = (({i})u#) >> 18;"),
    ];
    for (name, table) in [("t", RECIPROCALS), ("h", HIGH), ("l", LOW)] {
        let half = |c: &[f32]| -> String {
            let each: Vec<String> = c.iter().map(|c| format!("{c:?}f")).collect();
            format!("({v}){{{}}}", each.join(","))
        };
        let (first, second) = (half(&table[..16]), half(&table[16..]));
        statements.push(format!("{v} {name}# = {find}({first}, {second}, k#);"));
    }
    statements.extend([
        format!("const {v} r# = u# * t# - {bc}(1.0f);"),
        format!("h# = n# * {bc}(0.693145752f) + h#;"),
        format!("l# = n# * {bc}(1.42860677e-6f) + l#;"),
    ]);
    statements.extend(horner(&bc, &v, "p#", &NEAR_ONE, "r#"));
    // What rounding takes off the greater parts' sum is added to the lesser ones.
    statements.extend([
        format!("const {v} s# = h# + r#;"),
        "l# = p# * (r# * r#) + l# + (r# - (s# - h#));".into(),
        format!("const {v} y# = s# + l#;"),
    ]);
    Body {
        statements,
        result: format!("__builtin_ia32_fixupimmps512_mask(y#, x#, {bi}(0x03530422), 0, -1, 4)"),
    }
}

/// An element of two vectors together for the lowest five bits of each lane's number.
fn look_up(h: &mut Helpers) -> Name {
    let make = |h: &mut Helpers| {
        let (v, i) = (h.vector(CType::F32, 16), h.vector(CType::I32, 16));
        let name = format!("look_up_{v}");
        h.function(
            &name,
            format_args!("{v} {name}({v} a, {v} b, {i} k)"),
            |_| {
                gcc_only(
                    "return __builtin_shuffle(a, b, k);",
                    "return __builtin_ia32_vpermi2varps512(a, k, b);",
                )
            },
        );
        name
    };
    h.once(("approx", "look_up", CType::F32, 16), make)
}

/// Denormals are made normal first.
fn log(h: &mut Helpers, w: u32, caps: &Caps) -> Body {
    if caps.isa == Isa::Avx512 && w == 16 {
        return log_by_fields(h);
    }
    let (v, bc) = (h.vector(CType::F32, w), h.broadcast(CType::F32, w));
    let (i, select) = (h.vector(CType::I32, w), h.select(CType::F32, w, caps));
    let mut statements = vec![
        format!("const {i} d# = ({i})(x# < {bc}(0x1p-126f));"),
        format!("const {v} u# = {select}(d#, x# * {bc}(0x1p23f), x#);"),
    ];
    let scale = format!(" - ({v})(d# & ({i}){bc}(23.0f))");
    statements.extend(log_of(h, w, "", &scale));
    Body {
        statements,
        result: beside_log(h, "x#", "", w, caps),
    }
}

/// The logarithm of the rounded sum, and what rounding took off it.
fn log_1p(h: &mut Helpers, w: u32, caps: &Caps) -> Body {
    let (v, bc) = (h.vector(CType::F32, w), h.broadcast(CType::F32, w));
    let one = format!("{bc}(1.0f)");
    let mut statements = vec![
        format!("const {v} u# = x# + {one}, b# = u# - {one};"),
        format!("const {v} l# = (({one} - (u# - b#)) + (x# - b#)) / u#;"),
    ];
    statements.extend(log_of(h, w, " + l#", ""));
    let unless = format!(" & (x# != {bc}(0.0f))");
    Body {
        statements,
        result: beside_log(h, "u#", &unless, w, caps),
    }
}

/// The logarithm of `u`, and what has none: of zero, of negative numbers; infinities, NaN and what `unless` leaves out stay.
fn beside_log(h: &mut Helpers, u: &str, unless: &str, w: u32, caps: &Caps) -> String {
    let (bc, i) = (h.broadcast(CType::F32, w), h.vector(CType::I32, w));
    let select = h.select(CType::F32, w, caps);
    let infinite = format!("{bc}(__builtin_inff())");
    let zero = format!("{bc}(0.0f)");
    format!(
        "{select}(({i})(({u} > {zero}) & ({u} < {infinite}){unless}), y#, \
         {select}(({i})({u} == {zero}), -{infinite}, {select}(({i})({u} < {zero}), {bc}(__builtin_nanf(\"\")), x#)))"
    )
}
