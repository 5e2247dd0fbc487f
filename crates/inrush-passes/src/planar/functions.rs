//! Powers, exponentials and their relatives.

use super::context::{Cx, V, Z};
use inrush_base::{Result, Scalar};
use inrush_graph::{Arg, ValueId};

/// Powers up to this exponent are products.
const MOST_PRODUCTS: i64 = 32;

impl Cx<'_, '_> {
    /// `e^a (cos b + i sin b)`.
    pub(super) fn exponential(&mut self, z: Z) -> Result<Z> {
        let modulus = self.un("exp", z.re)?;
        self.polar(modulus, z.im)
    }

    /// `abs (cos angle + i sin angle)`.
    pub(super) fn polar(&mut self, abs: ValueId, angle: ValueId) -> Result<Z> {
        let (cos, sin) = (self.un("cos", angle)?, self.un("sin", angle)?);
        Ok(Z {
            re: self.bin("mul", abs, cos)?,
            im: self.bin("mul", abs, sin)?,
        })
    }

    pub(super) fn logarithm(&mut self, z: Z) -> Result<Z> {
        let modulus = self.modulus(z)?;
        Ok(Z {
            re: self.un("log", modulus)?,
            im: self.argument(z)?,
        })
    }

    /// The principal root. The larger part is `t = sqrt((|a| + |z|) / 2)`, the other one `b / 2t`, which does not cancel.
    pub(super) fn root(&mut self, z: Z) -> Result<Z> {
        let (modulus, a) = (self.modulus(z)?, self.un("abs", z.re)?);
        // Halved ahead of the sum, which does not overflow then.
        let (p, q) = (self.by("mul", modulus, 0.5)?, self.by("mul", a, 0.5)?);
        let half = self.bin("add", p, q)?;
        let t = self.un("sqrt", half)?;
        let twice = self.by("mul", t, 2.0)?;
        let other = self.bin("div", z.im, twice)?;
        let right = self.is("ge", z.re, 0.0)?;
        let (size, signed) = (self.un("abs", other)?, self.bin("copysign", t, z.im)?);
        let (re, im) = (
            self.select(right, t, size)?,
            self.select(right, other, signed)?,
        );
        let zero = self.is("eq", modulus, 0.0)?;
        Ok(Z {
            re: self.select(zero, modulus, re)?,
            im: self.select(zero, z.im, im)?,
        })
    }

    /// `(f(a) g(b), h(a) k(b))`: sines and cosines of a complex number.
    fn crossed(&mut self, z: Z, re: [&str; 2], im: [&str; 2]) -> Result<Z> {
        let (f, g) = (self.un(re[0], z.re)?, self.un(re[1], z.im)?);
        let (h, k) = (self.un(im[0], z.re)?, self.un(im[1], z.im)?);
        Ok(Z {
            re: self.bin("mul", f, g)?,
            im: self.bin("mul", h, k)?,
        })
    }

    /// `(T (1 + t²) + i t (1 - T²)) / (1 + T² t²)` of `T = tanh a`, `t = tan b`.
    fn hyperbolic_tangent(&mut self, z: Z) -> Result<Z> {
        let (large, small) = (self.un("tanh", z.re)?, self.un("tan", z.im)?);
        let (l2, s2) = (
            self.bin("mul", large, large)?,
            self.bin("mul", small, small)?,
        );
        let product = self.bin("mul", l2, s2)?;
        let denominator = self.by("add", product, 1.0)?;
        let growth = self.by("add", s2, 1.0)?;
        let re = self.bin("mul", large, growth)?;
        let squared = self.un("neg", l2)?;
        let rest = self.by("add", squared, 1.0)?;
        let im = self.bin("mul", small, rest)?;
        Ok(Z {
            re: self.bin("div", re, denominator)?,
            im: self.bin("div", im, denominator)?,
        })
    }

    fn times_i(&mut self, z: Z) -> Result<Z> {
        Ok(Z {
            re: self.un("neg", z.im)?,
            im: z.re,
        })
    }

    fn over_i(&mut self, z: Z) -> Result<Z> {
        Ok(Z {
            re: z.im,
            im: self.un("neg", z.re)?,
        })
    }

    /// A power by repeated squaring.
    fn integral_power(&mut self, z: V, exponent: i64) -> Result<V> {
        let mut left = exponent.unsigned_abs();
        let (mut square, mut out) = (z, None);
        while left > 0 {
            if left & 1 == 1 {
                out = Some(match out {
                    None => square,
                    Some(out) => self.times(out, square)?,
                });
            }
            left >>= 1;
            if left > 0 {
                square = self.times(square, square)?;
            }
        }
        let one = self.one()?;
        match out {
            // Eager gives 1 whatever the base.
            None => {
                let z = self.widen(z)?;
                let re = self.un("ones_like", z.re)?;
                Ok(V::Complex(Z {
                    re,
                    im: self.zeros(re)?,
                }))
            }
            Some(out) if exponent < 0 => self.over(one, out),
            Some(out) => Ok(out),
        }
    }

    /// `e^(w log z)`; 0 to a power is 0, or 1 if the exponent is 0.
    fn general_power(&mut self, z: Z, w: V) -> Result<V> {
        let log = self.logarithm(z)?;
        let product = self.times(V::Complex(log), w)?;
        let product = self.widen(product)?;
        let power = self.exponential(product)?;
        let w = self.widen(w)?;
        let (base, exponent) = (self.modulus(z)?, self.modulus(w)?);
        let base = self.is("eq", base, 0.0)?;
        let at_zero = self.is("eq", exponent, 0.0)?;
        let at_zero = self.b.cast(at_zero, self.dtype()?)?;
        let zero = self.zeros(at_zero)?;
        Ok(V::Complex(Z {
            re: self.select(base, at_zero, power.re)?,
            im: self.select(base, zero, power.im)?,
        }))
    }
}

/// Applies a function of a complex tensor.
fn of(cx: &mut Cx, f: impl FnOnce(&mut Cx, Z) -> Result<Z>) -> Result<Vec<V>> {
    let z = cx.complex("self")?;
    Ok(vec![V::Complex(f(cx, z)?)])
}

pub(super) fn exp(cx: &mut Cx) -> Result<Vec<V>> {
    of(cx, |cx, z| cx.exponential(z))
}

pub(super) fn exp2(cx: &mut Cx) -> Result<Vec<V>> {
    of(cx, |cx, z| {
        let scaled = cx.each(z, |cx, part| cx.by("mul", part, std::f64::consts::LN_2))?;
        cx.exponential(scaled)
    })
}

pub(super) fn log(cx: &mut Cx) -> Result<Vec<V>> {
    of(cx, |cx, z| cx.logarithm(z))
}

fn log_of_base(cx: &mut Cx, ln: f64) -> Result<Vec<V>> {
    of(cx, |cx, z| {
        let log = cx.logarithm(z)?;
        cx.each(log, |cx, part| cx.by("div", part, ln))
    })
}

pub(super) fn log2(cx: &mut Cx) -> Result<Vec<V>> {
    log_of_base(cx, std::f64::consts::LN_2)
}

pub(super) fn log10(cx: &mut Cx) -> Result<Vec<V>> {
    log_of_base(cx, std::f64::consts::LN_10)
}

pub(super) fn sqrt(cx: &mut Cx) -> Result<Vec<V>> {
    of(cx, |cx, z| cx.root(z))
}

pub(super) fn rsqrt(cx: &mut Cx) -> Result<Vec<V>> {
    let z = cx.complex("self")?;
    let (one, root) = (cx.one()?, cx.root(z)?);
    Ok(vec![cx.over(one, V::Complex(root))?])
}

pub(super) fn sin(cx: &mut Cx) -> Result<Vec<V>> {
    of(cx, |cx, z| cx.crossed(z, ["sin", "cosh"], ["cos", "sinh"]))
}

pub(super) fn cos(cx: &mut Cx) -> Result<Vec<V>> {
    of(cx, |cx, z| {
        let z = cx.crossed(z, ["cos", "cosh"], ["sin", "sinh"])?;
        let im = cx.un("neg", z.im)?;
        Ok(Z { re: z.re, im })
    })
}

pub(super) fn sinh(cx: &mut Cx) -> Result<Vec<V>> {
    of(cx, |cx, z| cx.crossed(z, ["sinh", "cos"], ["cosh", "sin"]))
}

pub(super) fn cosh(cx: &mut Cx) -> Result<Vec<V>> {
    of(cx, |cx, z| cx.crossed(z, ["cosh", "cos"], ["sinh", "sin"]))
}

pub(super) fn tanh(cx: &mut Cx) -> Result<Vec<V>> {
    of(cx, |cx, z| cx.hyperbolic_tangent(z))
}

/// `tan z = -i tanh(i z)`.
pub(super) fn tan(cx: &mut Cx) -> Result<Vec<V>> {
    of(cx, |cx, z| {
        let turned = cx.times_i(z)?;
        let tangent = cx.hyperbolic_tangent(turned)?;
        cx.over_i(tangent)
    })
}

pub(super) fn sigmoid(cx: &mut Cx) -> Result<Vec<V>> {
    let z = cx.operand("self")?;
    let negated = cx.negated(z)?;
    let negated = cx.widen(negated)?;
    let (one, exp) = (cx.one()?, cx.exponential(negated)?);
    let denominator = cx.plus(one, V::Complex(exp))?;
    Ok(vec![cx.over(one, denominator)?])
}

pub(super) fn pow(cx: &mut Cx) -> Result<Vec<V>> {
    let exponent = match cx.arg("exponent")? {
        Arg::Int(e) => cx.b.exprs.as_int(*e),
        Arg::Float(f) if f.fract() == 0.0 => Some(Scalar::Float(*f).as_i64()),
        _ => None,
    };
    let z = cx.operand("self")?;
    if let Some(n) = exponent.filter(|n| n.unsigned_abs() <= MOST_PRODUCTS as u64) {
        return Ok(vec![cx.integral_power(z, n)?]);
    }
    if matches!(cx.arg("exponent")?, Arg::Float(f) if *f == 0.5) {
        let z = cx.widen(z)?;
        return Ok(vec![V::Complex(cx.root(z)?)]);
    }
    let w = cx.operand("exponent")?;
    let z = cx.widen(z)?;
    Ok(vec![cx.general_power(z, w)?])
}
