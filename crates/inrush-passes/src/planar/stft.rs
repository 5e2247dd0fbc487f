//! Short-time Fourier transforms and their inverse.
//!
//! `stft` is a view of overlapping frames, times a window, and a transform of each frame. `istft` transforms back, adds the frames
//! where they overlap, and divides by the sum of the squared windows.

use super::context::{Cx, V, Z};
use inrush_base::{DType, Error, Result};
use inrush_expr::Expr;
use inrush_graph::{Arg, ValueId};

/// A sum of squared windows below this has lost the signal there: eager refuses it.
const SMALLEST_ENVELOPE: f64 = 1e-11;

/// Lengths in samples.
struct Frames {
    n_fft: i64,
    hop: i64,
    window: i64,
}

impl Cx<'_, '_> {
    fn frames(&self) -> Result<Frames> {
        let n_fft = self.constants("n_fft")?[0];
        let or = |name: &str, default: i64| {
            if self.given(name) {
                self.constants(name).map(|v| v[0])
            } else {
                Ok(default)
            }
        };
        let (hop, window) = (or("hop_length", n_fft / 4)?, or("win_length", n_fft)?);
        if n_fft < 1 || hop < 1 || !(1..=n_fft).contains(&window) {
            return Err(Error::input(
                "lengths of frames, steps and windows must be positive",
            ));
        }
        Ok(Frames { n_fft, hop, window })
    }

    /// The window in the middle of a frame; `None` for frames as they are.
    fn window(&mut self, f: &Frames, always: bool) -> Result<Option<V>> {
        let dtype = self.dtype()?;
        let window = match self.arg("window")?.clone() {
            Arg::None if f.window == f.n_fft && !always => return Ok(None),
            Arg::None => V::Real(self.filled(f.window, 1.0, dtype)?),
            given => self.lift(&given, dtype)?,
        };
        if f.window == f.n_fft {
            return Ok(Some(window));
        }
        let left = (f.n_fft - f.window) / 2;
        let pad = self.b.ints(&[left, f.n_fft - f.window - left]);
        let padded = |cx: &mut Self, x: ValueId| {
            cx.b.call(
                "aten.constant_pad_nd.default",
                &[x.into(), pad.clone(), Arg::Float(0.0)],
            )
        };
        Ok(Some(match window {
            V::Real(x) => V::Real(padded(self, x)?),
            V::Complex(z) => V::Complex(self.each(z, padded)?),
        }))
    }

    fn filled(&mut self, length: i64, value: f64, dtype: DType) -> Result<ValueId> {
        let size = self.b.ints(&[length]);
        self.b.call(
            "aten.full.default",
            &[size, Arg::Float(value), dtype.into()],
        )
    }

    fn with_ints(&mut self, op: &str, x: ValueId, ints: &[i64]) -> Result<ValueId> {
        let mut args: Vec<Arg> = vec![x.into()];
        args.extend(ints.iter().map(|i| self.b.int(*i)));
        self.b.call(op, &args)
    }

    /// Adds the reflected or padded half of a frame on both sides.
    fn centered(&mut self, v: V, f: &Frames) -> Result<V> {
        let mode = match self.arg("pad_mode")? {
            Arg::Str(s) => s.clone(),
            _ => "reflect".into(),
        };
        let pad = self.b.ints(&[f.n_fft / 2, f.n_fft / 2]);
        self.map(v, |cx, x| {
            // Reflection wants a dimension of channels.
            let x = cx.with_ints("aten.unsqueeze.default", x, &[0])?;
            let x = cx.b.call(
                "aten.pad.default",
                &[x.into(), pad.clone(), mode.clone().into()],
            )?;
            cx.with_ints("aten.squeeze.dim", x, &[0])
        })
    }
}

pub(super) fn stft(cx: &mut Cx) -> Result<Vec<V>> {
    let f = cx.frames()?;
    let mut v = cx.operand("self")?;
    let single = cx.sizes_of(v)?.len() == 1;
    if single {
        v = cx.map(v, |cx, x| cx.with_ints("aten.unsqueeze.default", x, &[0]))?;
    }
    if cx.schema.position("center").is_some() && cx.flag("center")? {
        v = cx.centered(v, &f)?;
    }
    let aligned = cx.given("align_to_window") && cx.flag("align_to_window")?;
    if aligned && f.window != f.n_fft {
        return Err(cx.unsupported("stft with frames aligned to windows"));
    }
    v = cx.map(v, |cx, x| {
        cx.with_ints("aten.unfold.default", x, &[1, f.n_fft, f.hop])
    })?;
    if let Some(window) = cx.window(&f, false)? {
        v = cx.times(v, window)?;
    }
    let norm = cx.flag("normalized")? as i64;
    let onesided = match (cx.given("onesided"), v) {
        (true, _) => cx.flag("onesided")?,
        (false, v) => matches!(v, V::Real(_)),
    };
    let z = match v {
        V::Real(x) => cx.r2c(x, &[2], norm, onesided)?,
        V::Complex(_) if onesided => {
            return Err(Error::input("half a spectrum of a complex signal"));
        }
        V::Complex(z) => cx.c2c(z, &[2], norm, true)?,
    };
    let z = cx.each(z, |cx, x| {
        let x = cx.with_ints("aten.transpose.int", x, &[1, 2])?;
        if single {
            cx.with_ints("aten.squeeze.dim", x, &[0])
        } else {
            Ok(x)
        }
    })?;
    if cx.gives_complex() {
        return Ok(vec![V::Complex(z)]);
    }
    Ok(vec![V::Real(super::parts::interleave(cx.b, z)?)])
}

pub(super) fn istft(cx: &mut Cx) -> Result<Vec<V>> {
    let f = cx.frames()?;
    let mut z = cx.complex("self")?;
    let single = cx.b.rank(z.re)? == 2;
    if single {
        z = cx.each(z, |cx, x| cx.with_ints("aten.unsqueeze.default", x, &[0]))?;
    }
    z = cx.each(z, |cx, x| cx.with_ints("aten.transpose.int", x, &[1, 2]))?;
    // Divided by the number of elements, or by its root where the transform was, too.
    let norm = if cx.flag("normalized")? { 1 } else { 2 };
    let n_fft = cx.b.exprs.int(f.n_fft);
    let mut y = if cx.gives_complex() {
        V::Complex(cx.c2c(z, &[2], norm, false)?)
    } else {
        let half = cx.half(n_fft);
        let V::Complex(z) = cx.resized(V::Complex(z), 2, half)? else {
            return Err(Error::internal("a spectrum that is real"));
        };
        V::Real(cx.c2r(z, &[2], norm, n_fft)?)
    };
    let Some(window) = cx.window(&f, true)? else {
        return Err(Error::internal("no window"));
    };
    y = cx.times(y, window)?;
    let sizes = cx.sizes_of(y)?;
    let ex = cx.b.exprs;
    let steps = ex.sub(sizes[1], ex.int(1));
    let length = ex.add(n_fft, ex.mul(steps, ex.int(f.hop)));
    let square = cx.times(window, window)?;
    let frames = vec![ex.int(1), sizes[1], n_fft];
    let square = cx.map(square, |cx, x| {
        cx.b.call("aten.expand.default", &[x.into(), frames.clone().into()])
    })?;
    let overlap = |cx: &mut Cx, v: V, batch: Expr| {
        let step: Vec<Arg> = [1, f.n_fft, f.hop].iter().map(|i| cx.b.int(*i)).collect();
        cx.map(v, |cx, x| {
            let mut args = vec![x.into(), Arg::Ints(vec![batch, length])];
            args.extend(step.iter().cloned());
            cx.b.call("aten.unfold_backward.default", &args)
        })
    };
    let y = overlap(cx, y, sizes[0])?;
    let envelope = overlap(cx, square, ex.int(1))?;
    finish(cx, &f, y, envelope, length, single)
}

/// Cuts the middle out, and divides by the envelope.
fn finish(
    cx: &mut Cx,
    f: &Frames,
    y: V,
    envelope: V,
    length: Expr,
    single: bool,
) -> Result<Vec<V>> {
    let ex = cx.b.exprs;
    let start = ex.int(if cx.flag("center")? { f.n_fft / 2 } else { 0 });
    let asked = match cx.arg("length")? {
        Arg::Int(e) => Some(*e),
        _ => None,
    };
    let end = match asked {
        Some(n) => ex.add(start, n),
        None => ex.sub(length, start),
    };
    let longer = asked.is_some() && !ex.prove_le(end, length);
    if longer && !ex.prove_lt(length, end) {
        return Err(cx.unsupported("istft of a length that may or may not be padded"));
    }
    let cut = if longer { length } else { end };
    let one = cx.b.int(1);
    let slice = |cx: &mut Cx, x: ValueId| {
        cx.b.call(
            "aten.slice.Tensor",
            &[x.into(), one.clone(), start.into(), cut.into()],
        )
    };
    let y = cx.map(y, slice)?;
    let envelope = cx.map(envelope, slice)?;
    let envelope = match envelope {
        V::Real(x) => {
            let size = cx.un("abs", x)?;
            let holds = cx.is("gt", size, SMALLEST_ENVELOPE)?;
            V::Real(cx.b.call("inrush.assured.default", &[x.into(), holds.into()])?)
        }
        other => other,
    };
    let mut y = cx.over(y, envelope)?;
    if longer {
        let n = ex.sub(end, start);
        y = cx.resized(y, 1, n)?;
    }
    if single {
        y = cx.map(y, |cx, x| cx.with_ints("aten.squeeze.dim", x, &[0]))?;
    }
    Ok(vec![match y {
        V::Complex(Z { re, im }) => V::Complex(Z { re, im }),
        real => real,
    }])
}
