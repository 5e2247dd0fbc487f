//! Windows of signals (Bartlett, Blackman, Hamming, Hann), and the frequencies of transforms.
//!
//! A window is a function of the place in the window, in the dtype of the result, in the order in which eager computes it.
//! A periodic window is one longer than asked for, without its last element.

use crate::ops::{B, decomposed};
use crate::{Args, Row};
use inrush_base::{DType, Result};
use inrush_graph::{Arg, ValueId};
use std::f64::consts::PI;

/// The shape of a window.
#[derive(Copy, Clone)]
enum Shape {
    /// `alpha - beta cos(2 pi k / n)`: Hann and Hamming.
    Cosine { alpha: f64, beta: f64 },
    /// `0.42 - 0.5 cos(2 pi k / n) + 0.08 cos(4 pi k / n)`.
    Blackman,
    /// A triangle.
    Bartlett,
}

const HANN: Shape = Shape::Cosine {
    alpha: 0.5,
    beta: 0.5,
};

fn window(b: B, args: &Args, shape: Shape) -> Result<Vec<ValueId>> {
    let length = args.const_int("window_length")?;
    let periodic = !args.given("periodic") || args.bool("periodic")?;
    let dtype = dtype(b, args)?;
    if !dtype.is_float() {
        return Err(args.unsupported("dtype", "a window of integers"));
    }
    let size = [b.exprs.int(length)];
    if length <= 1 {
        return Ok(vec![b.full(&size, 1.0, dtype)?]);
    }
    // Without its last element a window of one more is periodic.
    let steps = (length - i64::from(!periodic)) as f64;
    let places = counted(b, args, length)?;
    let cosine = |b: B, times: f64, scale: f64| -> Result<ValueId> {
        let angle = b.scale(places, times * PI / steps)?;
        let cosine = b.unary("aten.cos.default", angle)?;
        b.scale(cosine, scale)
    };
    Ok(vec![match shape {
        Shape::Cosine { alpha, beta } => {
            let wave = cosine(b, 2.0, -beta)?;
            b.add(wave, Arg::Float(alpha))?
        }
        Shape::Blackman => {
            let (slow, fast) = (cosine(b, 2.0, -0.5)?, cosine(b, 4.0, 0.08)?);
            let sum = b.add(fast, slow)?;
            b.add(sum, Arg::Float(0.42))?
        }
        Shape::Bartlett => {
            let up = b.scale(places, 2.0 / steps)?;
            let down = b.scale(up, -1.0)?;
            let down = b.add(down, Arg::Float(2.0))?;
            b.call("aten.minimum.default", &[up.into(), down.into()])?
        }
    }])
}

fn hann(b: B, args: &Args) -> Result<Vec<ValueId>> {
    window(b, args, HANN)
}

fn hamming(b: B, args: &Args) -> Result<Vec<ValueId>> {
    let or = |name: &str, default: f64| {
        if args.given(name) {
            args.float(name)
        } else {
            Ok(default)
        }
    };
    let shape = Shape::Cosine {
        alpha: or("alpha", 0.54)?,
        beta: or("beta", 0.46)?,
    };
    window(b, args, shape)
}

fn blackman(b: B, args: &Args) -> Result<Vec<ValueId>> {
    window(b, args, Shape::Blackman)
}

fn bartlett(b: B, args: &Args) -> Result<Vec<ValueId>> {
    window(b, args, Shape::Bartlett)
}

/// The frequencies of a transform of `n` numbers, `d` apart: positive ones first, then those below zero.
fn fftfreq(b: B, args: &Args) -> Result<Vec<ValueId>> {
    let n = args.const_int("n")?;
    let places = counted(b, args, n)?;
    let half = (n + 1) / 2;
    let low = b.call("aten.lt.Scalar", &[places.into(), b.int(half)])?;
    let below = b.call("aten.sub.Scalar", &[places.into(), b.int(n)])?;
    let places = b.select(low, places, below)?;
    Ok(vec![b.scale(places, 1.0 / (n as f64 * args.float("d")?))?])
}

/// The frequencies of a transform of `n` real numbers, which are not negative.
fn rfftfreq(b: B, args: &Args) -> Result<Vec<ValueId>> {
    let n = args.const_int("n")?;
    let places = counted(b, args, n / 2 + 1)?;
    Ok(vec![b.scale(places, 1.0 / (n as f64 * args.float("d")?))?])
}

/// The dtype of the result: as asked for, as declared, or PyTorch's default.
fn dtype(b: B, args: &Args) -> Result<DType> {
    let declared = b.declared(0).map(|t| t.dtype);
    Ok(args.dtype("dtype")?.or(declared).unwrap_or(DType::F32))
}

/// `0, 1, .., length - 1` in the dtype of the result.
fn counted(b: B, args: &Args, length: i64) -> Result<ValueId> {
    let dtype = dtype(b, args)?;
    b.call("aten.arange.default", &[b.int(length), dtype.into()])
}

const FREQUENCIES: &str = "(int n, float d=1.0, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor";
const PLAIN: &str = "(int window_length, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor";
const PERIODIC: &str = "(int window_length, bool periodic, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor";

pub const ROWS: &[Row] = &[
    decomposed("aten.fft_fftfreq.default", FREQUENCIES, fftfreq, "(7, 0.5)"),
    decomposed(
        "aten.fft_rfftfreq.default",
        FREQUENCIES,
        rfftfreq,
        "(8, 0.5)",
    ),
    decomposed("aten.hann_window.default", PLAIN, hann, "(7)"),
    decomposed(
        "aten.hann_window.periodic",
        PERIODIC,
        hann,
        "(8, false, dtype=f64)",
    ),
    decomposed("aten.hamming_window.default", PLAIN, hamming, "(7)"),
    decomposed(
        "aten.hamming_window.periodic",
        PERIODIC,
        hamming,
        "(8, false)",
    ),
    decomposed(
        "aten.hamming_window.periodic_alpha",
        "(int window_length, bool periodic, float alpha, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
        hamming,
        "(8, true, 0.6)",
    ),
    decomposed(
        "aten.hamming_window.periodic_alpha_beta",
        "(int window_length, bool periodic, float alpha, float beta, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
        hamming,
        "(8, true, 0.6, 0.4)",
    ),
    decomposed("aten.blackman_window.default", PLAIN, blackman, "(7)"),
    decomposed(
        "aten.blackman_window.periodic",
        PERIODIC,
        blackman,
        "(8, false)",
    ),
    decomposed("aten.bartlett_window.default", PLAIN, bartlett, "(7)"),
    decomposed(
        "aten.bartlett_window.periodic",
        PERIODIC,
        bartlett,
        "(8, false)",
    ),
];
