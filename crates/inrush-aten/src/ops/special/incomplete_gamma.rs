//! The incomplete gamma functions: their shares of the whole, below and above the second argument.
//!
//! Everything is computed in `f64`, as precise as eager or more. Where the two arguments are large and near each other it is Temme's
//! expansion ("The asymptotic expansion of the incomplete gamma functions", 1979), with coefficients computed for this file from
//! the recursion that he gives; for small ones and below the first argument series, beyond it a continued fraction.
//!
//! ```text
//!                           lower share P(a, x)                    upper share Q(a, x)
//! a > 200, |x - a| < a/4    Temme's expansion                      Temme's expansion
//! a < 1, x < 1.1            x^a / Gamma(a+1) * M(a, a+1, -x)       by `expm1`, see `small`
//! x < a + 1                 density / a * M(1, a+1, x)             1 - P
//! otherwise                 1 - Q                                  density * continued fraction
//! ```
//!
//! with `density = x^a exp(-x) / Gamma(a)` and Kummer's function `M`. Each region computes the
//! share that is small there, so that its complement loses little. All regions are evaluated; loops
//! (`Kummer`, `GammaFraction`) get arguments that end them at once in lanes that need another
//! region.

use crate::Pw;
use crate::ops::pointwise::row::pointwise;
use inrush_base::{DType, Result};
use inrush_loops::{ScalarOp as S, StmtId};
use std::f64::consts::PI;

/// From here on and within [`NEAR`] of it, the expansion has the digits of `f64`.
const LARGE: f64 = 200.0;
const NEAR: f64 = 0.25;

/// Tolerance of series and continued fractions whose result is not `f64`: far below the last place
/// of `f32`, even if the result is the complement of a value fifty times as large.
const CLOSE: f64 = 1.0 / (1u64 << 36) as f64;
/// Second arguments below which small first ones have a series of their own: the upper share is small there.
const SMALL: f64 = 1.1;

/// `C[k]` of the expansion, highest power first.
const TEMME: [&[f64]; 7] = [
    &[
        -2.551_419_399_494_624_8e-11,
        9.147_699_582_236_79e-10,
        -4.382_036_018_453_353e-09,
        1.026_180_978_424_030_9e-08,
        6.707_853_543_401_498e-09,
        -1.766_595_273_682_607_8e-07,
        8.296_711_340_953_087e-07,
        -1.854_062_210_715_16e-06,
        -2.185_448_510_679_992e-06,
        3.919_263_178_522_438e-05,
        -0.000_178_755_144_032_921_8,
        0.000_352_733_686_067_019_4,
        0.001_157_407_407_407_407_3,
        -0.014_814_814_814_814_815,
        0.083_333_333_333_333_33,
        -0.333_333_333_333_333_3,
    ],
    &[
        -1.754_324_171_974_764_7e-11,
        1.195_162_859_977_814_8e-08,
        -5.752_545_603_517_705e-08,
        1.378_633_446_915_721e-07,
        4.647_127_802_807_434e-09,
        -1.612_090_089_456_344_6e-06,
        7.649_160_916_081_11e-06,
        -1.809_855_033_448_997_7e-05,
        -4.018_775_720_164_609e-07,
        0.000_205_761_316_872_427_98,
        -0.000_990_226_337_448_559_6,
        0.002_645_502_645_502_645_4,
        -0.003_472_222_222_222_222,
        -0.001_851_851_851_851_852,
    ],
    &[
        -2.047_709_842_199_086_6e-10,
        1.428_061_420_606_424_2e-07,
        -6.298_992_138_380_055e-07,
        1.372_195_730_906_293_4e-06,
        3.423_578_734_096_138e-08,
        -1.276_063_518_861_872_8e-05,
        5.292_344_882_912_012_5e-05,
        -0.000_107_366_532_263_651_6,
        2.009_387_860_082_304_7e-06,
        0.000_771_604_938_271_604_9,
        -0.002_681_327_160_493_827_3,
        0.004_133_597_883_597_883,
    ],
    &[
        -2.786_108_029_152_814_3e-11,
        1.423_090_073_243_588_3e-06,
        -5.674_952_826_991_596_5e-06,
        1.108_265_411_534_730_2e-05,
        -2.396_505_113_867_297e-07,
        -7.561_801_671_883_977e-05,
        0.000_267_720_632_062_838_85,
        -0.000_469_189_494_395_255_7,
        0.000_229_472_093_621_399_17,
        0.000_649_434_156_378_600_8,
    ],
    &[
        2.507_497_226_237_533e-10,
        1.137_572_697_067_841_9e-05,
        -3.968_365_047_179_435e-05,
        6.641_498_215_465_122e-05,
        -1.463_845_257_884_341_8e-06,
        -0.000_299_072_480_303_190_2,
        0.000_784_039_221_720_066_6,
        -0.000_861_888_290_916_711_7,
    ],
    &[
        1.419_062_920_643_967e-07,
        6.797_780_477_937_208e-05,
        -0.000_199_325_705_161_888_47,
        0.000_277_275_324_495_939_2,
        -6.972_813_758_365_857e-05,
        -0.000_336_798_553_366_358_13,
    ],
    &[
        7.902_353_232_660_328e-07,
        0.000_270_878_209_671_804_5,
        -0.000_592_166_437_353_693_9,
        0.000_531_307_936_463_992_2,
    ],
];

/// How far arguments of the gamma function below this are moved up.
const STEPS: i32 = 10;

/// `log(gamma(a) / (sqrt(2 pi / a) (a / e)^a))` as a series of `1 / a^2`, times `a`, highest power first.
/// Seven terms have the digits of `f64` from 10 on.
const STIRLING: [f64; 7] = [
    1.0 / 156.0,
    -691.0 / 360_360.0,
    1.0 / 1188.0,
    -1.0 / 1680.0,
    1.0 / 1260.0,
    -1.0 / 360.0,
    1.0 / 12.0,
];

/// `log(gamma(1 + a)) / a` of `a` from 0 to 1 in powers of `a - 1/2`, highest first: a least-maximum fit made for this file, 6e-17 off.
const LOG_GAMMA: [f64; 20] = [
    3.736_192_871_980_867e-05,
    -5.878_659_496_854_181e-05,
    4.602_039_857_584_312e-05,
    -7.316_316_828_357_507e-05,
    0.000_141_540_557_985_770_95,
    -0.000_226_031_866_328_852_94,
    0.000_355_220_110_759_161_4,
    -0.000_572_843_635_817_953_4,
    0.000_930_576_251_465_835_5,
    -0.001_520_264_031_424_720_8,
    0.002_505_119_554_205_264,
    -0.004_173_526_156_864_678,
    0.007_052_495_031_334_374,
    -0.012_148_851_602_932_532,
    0.021_509_909_852_513_3,
    -0.039_707_036_812_047_326,
    0.078_565_644_825_092_53,
    -0.177_415_596_451_623_16,
    0.556_108_898_498_133_9,
    -0.241_564_475_270_490_4,
];

/// The shares below and above.
/// They sum to 1; both are kept because a difference from 1 would lose the smaller one's digits.
struct Shares {
    lower: StmtId,
    upper: StmtId,
}

impl Shares {
    /// The upper share as a complement.
    fn of_lower(p: &mut Pw, lower: StmtId) -> Shares {
        let upper = p.cop(S::Sub, 1.0, lower);
        Shares { lower, upper }
    }
    /// The lower share as a complement.
    fn of_upper(p: &mut Pw, upper: StmtId) -> Shares {
        let lower = p.cop(S::Sub, 1.0, upper);
        Shares { lower, upper }
    }
    /// `test ? a : b`, of both shares.
    fn select(p: &mut Pw, test: StmtId, a: &Shares, b: &Shares) -> Shares {
        Shares {
            lower: p.select(test, a.lower, b.lower),
            upper: p.select(test, a.upper, b.upper),
        }
    }
}

/// Half of the normal distribution's complement at a distance that says how far `x` is from `a`, and a correction.
/// ```text
/// eta^2 / 2 = mu - log(1 + mu),  mu = x / a - 1,  eta has the sign of mu
/// Q = erfc(eta sqrt(a / 2)) / 2 + exp(-a eta^2 / 2) / sqrt(2 pi a) * sum of C[k](eta) / a^k
/// ```
fn near(p: &mut Pw, a: StmtId, mu: StmtId, log: StmtId) -> Shares {
    let half_square = p.sub(mu, log);
    let twice = p.add(half_square, half_square);
    let size = p.op1(S::Sqrt, twice);
    let eta = p.op2(S::Copysign, size, mu);
    let mut sum = p.c(0.0);
    for row in TEMME.iter().rev() {
        let c = p.polynomial(eta, row);
        let rest = p.div(sum, a);
        sum = p.add(rest, c);
    }
    let power = p.mul(a, half_square);
    let power = p.neg(power);
    let power = p.op1(S::Exp, power);
    let scale = p.opc(S::Mul, a, 2.0 * PI);
    let scale = p.op1(S::Sqrt, scale);
    let correction = p.div(power, scale);
    let correction = p.mul(correction, sum);
    let root = p.opc(S::Mul, a, 0.5);
    let root = p.op1(S::Sqrt, root);
    let at = p.mul(eta, root);
    let minus = p.neg(at);
    let (above, below) = (p.op1(S::Erfc, at), p.op1(S::Erfc, minus));
    let (above, below) = (p.opc(S::Mul, above, 0.5), p.opc(S::Mul, below, 0.5));
    Shares {
        lower: p.sub(below, correction),
        upper: p.add(above, correction),
    }
}

/// `x^a exp(-x) / gamma(a)`.
/// Large `a` take Stirling's series directly. With `mu = x / a - 1` the exponent is then
/// `a (log(1 + mu) - mu)`, whose terms are small where `x` is near `a`. Smaller `a` are moved up by
/// [`STEPS`] first.
fn density(p: &mut Pw, a: StmtId, x: StmtId, mu: StmtId, log: StmtId, log_x: StmtId) -> StmtId {
    let is_large = p.opc(S::Ge, a, f64::from(STEPS));
    // `gamma(a) = gamma(a + n) / (a (a + 1) ... (a + n - 1))`, and of such arguments it has few terms.
    let mut rising = a;
    for k in 1..STEPS {
        let factor = p.opc(S::Add, a, f64::from(k));
        rising = p.mul(rising, factor);
    }
    let moved = p.opc(S::Add, a, f64::from(STEPS));
    let z = p.select(is_large, a, moved);
    let inverse = p.op1(S::Reciprocal, z);
    let square = p.mul(inverse, inverse);
    let series = p.polynomial(square, &STIRLING);
    let series = p.mul(series, inverse);
    let log_z = p.op1(S::Log, z);
    // sqrt(2 pi / z) (z / e)^z is gamma(z) but for the series.
    let log_power = p.mul(a, log_x);
    let log_power = p.sub(log_power, x);
    let less = p.opc(S::Sub, z, 0.5);
    let less = p.mul(less, log_z);
    let less = p.sub(less, z);
    let small = p.sub(log_power, less);
    // The logarithms are near each other there.
    let distance = p.sub(log, mu);
    let distance = p.mul(distance, a);
    let half = p.opc(S::Mul, log_z, 0.5);
    let large = p.add(distance, half);
    let exponent = p.select(is_large, large, small);
    let exponent = p.sub(exponent, series);
    let exponent = p.opc(S::Sub, exponent, 0.5 * (2.0 * PI).ln());
    let power = p.op1(S::Exp, exponent);
    let scaled = p.mul(power, rising);
    p.select(is_large, power, scaled)
}

/// The first argument below 1, the second below [`SMALL`].
/// `tail` is Kummer's series without its first term. With `w = x^a / Gamma(a + 1)` the lower share
/// is `w + w tail`, and the upper one `-(expm1(log w) + w tail)`.
fn small(p: &mut Pw, a: StmtId, log_x: StmtId, tail: StmtId) -> Shares {
    let at = p.opc(S::Sub, a, 0.5);
    let gamma = p.polynomial(at, &LOG_GAMMA);
    let gamma = p.mul(gamma, a);
    let power = p.mul(a, log_x);
    let power = p.sub(power, gamma);
    let (less, whole) = (p.op1(S::Expm1, power), p.op1(S::Exp, power));
    let part = p.mul(whole, tail);
    let upper = p.add(less, part);
    Shares {
        lower: p.add(whole, part),
        upper: p.neg(upper),
    }
}

/// Expects positive finite arguments. `close` is the relative tolerance of series and fractions.
fn shares(p: &mut Pw, a: StmtId, x: StmtId, close: f64) -> Shares {
    let (one, zero, close) = (p.c(1.0), p.c(0.0), p.c(close));
    let away = p.sub(x, a);
    let distance = p.op1(S::Abs, away);
    let limit = p.opc(S::Mul, a, NEAR);
    let is_large = p.opc(S::Gt, a, LARGE);
    let is_close = p.op2(S::Lt, distance, limit);
    let is_near = p.op2(S::And, is_large, is_close);
    let (a_small, x_small) = (p.opc(S::Lt, a, 1.0), p.opc(S::Lt, x, SMALL));
    let is_small = p.op2(S::And, a_small, x_small);
    let above = p.opc(S::Add, a, 1.0);
    let is_below = p.op2(S::Lt, x, above);

    let mu = p.div(away, a);
    let log_x = p.op1(S::Log, x);
    let ratio = p.div(x, a);
    let log = p.op1(S::Log, ratio);
    let log_near = p.op1(S::Log1p, mu);
    let far = p.opc(S::Lt, mu, -0.5);
    let log = p.select(far, log, log_near);
    let near = near(p, a, mu, log);
    let density = density(p, a, x, mu, log, log_x);

    // One series serves both: lanes for which it is not are given the end of it.
    let minus = p.neg(x);
    let first = p.select(is_small, a, one);
    let argument = p.select(is_small, minus, x);
    let summed = p.op2(S::Or, is_small, is_below);
    let skipped = p.op1(S::Not, is_near);
    let summed = p.op2(S::And, summed, skipped);
    let argument = p.select(summed, argument, zero);
    let sum = p.body.op(S::Kummer, &[first, above, argument, close]);
    let small = small(p, a, log_x, sum);
    let series = p.opc(S::Add, sum, 1.0);
    let series = p.div(series, a);
    let series = p.mul(series, density);
    let below = Shares::of_lower(p, series);

    let done = p.op2(S::Or, summed, is_near);
    let (safe_a, safe_x) = (p.select(done, one, a), p.select(done, one, x));
    let fraction = p.body.op(S::GammaFraction, &[safe_a, safe_x, close]);
    let fraction = p.mul(fraction, density);
    let beyond = Shares::of_upper(p, fraction);

    let v = Shares::select(p, is_below, &below, &beyond);
    let v = Shares::select(p, is_small, &small, &v);
    Shares::select(p, is_near, &near, &v)
}

/// The function of the wanted share: 1 at one end of the second argument, 0 at the other.
fn incomplete(p: &mut Pw, x: &[StmtId], upper: bool) -> Result<StmtId> {
    let dtype = p.dtype;
    let (a, x) = (p.body.cast(x[0], DType::F64), p.body.cast(x[1], DType::F64));
    p.dtype = DType::F64;
    let (one, nan) = (p.c(1.0), p.c(f64::NAN));
    let inside = |p: &mut Pw, v: StmtId| {
        let (low, high) = (p.opc(S::Gt, v, 0.0), p.opc(S::Lt, v, f64::INFINITY));
        p.op2(S::And, low, high)
    };
    let (a_inside, x_inside) = (inside(p, a), inside(p, x));
    let regular = p.op2(S::And, a_inside, x_inside);
    let (safe_a, safe_x) = (p.select(regular, a, one), p.select(regular, x, one));
    let close = if dtype == DType::F64 {
        f64::EPSILON
    } else {
        CLOSE
    };
    let both = shares(p, safe_a, safe_x, close);
    let v = if upper { both.upper } else { both.lower };
    // At the ends the greater argument has it all; where none is greater nothing is known.
    let (a_greater, x_greater) = (p.op2(S::Gt, a, x), p.op2(S::Gt, x, a));
    let known = p.op2(S::Or, a_greater, x_greater);
    let (whole, nothing) = (p.c(1.0), p.c(0.0));
    let end = match upper {
        true => p.select(a_greater, whole, nothing),
        false => p.select(a_greater, nothing, whole),
    };
    let end = p.select(known, end, nan);
    let v = p.select(regular, v, end);
    let (a_there, x_there) = (p.opc(S::Ge, a, 0.0), p.opc(S::Ge, x, 0.0));
    let there = p.op2(S::And, a_there, x_there);
    let v = p.select(there, v, nan);
    p.dtype = dtype;
    Ok(p.body.cast(v, dtype))
}

pointwise! {
    "aten.igamma.default" "(Tensor self, Tensor other) -> Tensor"
        ["self", "other"] Float |p, x| incomplete(p, x, false), "(f64[60]{0:9}, f64[60]{0:9})";
    "aten.igammac.default" "(Tensor self, Tensor other) -> Tensor"
        ["self", "other"] Float |p, x| incomplete(p, x, true), "(f32[60]{0:9}, f32[60]{0:9})";
}
