//! Sums, products, quotients and comparisons of complex numbers.

use super::context::{Cx, V, Z};
use inrush_base::Result;
use inrush_graph::{Arg, ValueId};

impl Cx<'_, '_> {
    pub(super) fn plus(&mut self, x: V, y: V) -> Result<V> {
        Ok(match (x, y) {
            (V::Real(x), V::Real(y)) => V::Real(self.bin("add", x, y)?),
            (V::Complex(z), V::Real(x)) | (V::Real(x), V::Complex(z)) => {
                let re = self.bin("add", z.re, x)?;
                let im = self.broadcast(z.im, re)?;
                V::Complex(Z { re, im })
            }
            (V::Complex(x), V::Complex(y)) => V::Complex(Z {
                re: self.bin("add", x.re, y.re)?,
                im: self.bin("add", x.im, y.im)?,
            }),
        })
    }

    pub(super) fn minus(&mut self, x: V, y: V) -> Result<V> {
        Ok(match (x, y) {
            (V::Complex(z), V::Real(y)) => {
                let re = self.bin("sub", z.re, y)?;
                let im = self.broadcast(z.im, re)?;
                V::Complex(Z { re, im })
            }
            (V::Complex(x), V::Complex(y)) => V::Complex(Z {
                re: self.bin("sub", x.re, y.re)?,
                im: self.bin("sub", x.im, y.im)?,
            }),
            (V::Real(x), V::Real(y)) => V::Real(self.bin("sub", x, y)?),
            (V::Real(x), V::Complex(z)) => {
                let re = self.bin("sub", x, z.re)?;
                let im = self.un("neg", z.im)?;
                let im = self.broadcast(im, re)?;
                V::Complex(Z { re, im })
            }
        })
    }

    pub(super) fn times(&mut self, x: V, y: V) -> Result<V> {
        Ok(match (x, y) {
            (V::Real(x), V::Real(y)) => V::Real(self.bin("mul", x, y)?),
            (V::Complex(z), V::Real(x)) | (V::Real(x), V::Complex(z)) => {
                V::Complex(self.each(z, |cx, part| cx.bin("mul", part, x))?)
            }
            (V::Complex(x), V::Complex(y)) => {
                let (a, b) = (self.bin("mul", x.re, y.re)?, self.bin("mul", x.im, y.im)?);
                let (c, d) = (self.bin("mul", x.re, y.im)?, self.bin("mul", x.im, y.re)?);
                V::Complex(Z {
                    re: self.bin("sub", a, b)?,
                    im: self.bin("add", c, d)?,
                })
            }
        })
    }

    /// The quotient by Smith's algorithm: the smaller part of the divisor is taken relative to the larger one, so that no
    /// square overflows.
    pub(super) fn over(&mut self, x: V, y: V) -> Result<V> {
        let y = match y {
            V::Real(y) => {
                return Ok(match x {
                    V::Real(x) => V::Real(self.bin("div", x, y)?),
                    V::Complex(z) => V::Complex(self.each(z, |cx, part| cx.bin("div", part, y))?),
                });
            }
            V::Complex(y) => y,
        };
        let x = self.widen(x)?;
        let (c, d) = (self.un("abs", y.re)?, self.un("abs", y.im)?);
        let wide = self.bin("ge", c, d)?;
        // `large` and `small` part of the divisor; the numerator's parts change places with them.
        let large = self.select(wide, y.re, y.im)?;
        let small = self.select(wide, y.im, y.re)?;
        let ratio = self.bin("div", small, large)?;
        let scaled = self.bin("mul", small, ratio)?;
        let denominator = self.bin("add", large, scaled)?;
        let (p, q) = (
            self.select(wide, x.re, x.im)?,
            self.select(wide, x.im, x.re)?,
        );
        let qr = self.bin("mul", q, ratio)?;
        let pr = self.bin("mul", p, ratio)?;
        let re = self.bin("add", p, qr)?;
        let re = self.bin("div", re, denominator)?;
        let im = self.bin("sub", q, pr)?;
        let im = self.bin("div", im, denominator)?;
        let negated = self.un("neg", im)?;
        let im = self.select(wide, im, negated)?;
        // A zero divisor: the ratio is 0 / 0, the quotient that of the parts by zero.
        let zero = self.is("eq", large, 0.0)?;
        let (a, b) = (self.bin("div", x.re, c)?, self.bin("div", x.im, c)?);
        Ok(V::Complex(Z {
            re: self.select(zero, a, re)?,
            im: self.select(zero, b, im)?,
        }))
    }

    pub(super) fn negated(&mut self, v: V) -> Result<V> {
        Ok(match v {
            V::Real(x) => V::Real(self.un("neg", x)?),
            V::Complex(z) => V::Complex(self.each(z, |cx, part| cx.un("neg", part))?),
        })
    }

    pub(super) fn conjugate(&mut self, v: V) -> Result<V> {
        Ok(match v {
            V::Real(_) => v,
            V::Complex(z) => V::Complex(Z {
                re: z.re,
                im: self.un("neg", z.im)?,
            }),
        })
    }

    pub(super) fn modulus(&mut self, z: Z) -> Result<ValueId> {
        self.b
            .call("aten.hypot.default", &[z.re.into(), z.im.into()])
    }

    pub(super) fn argument(&mut self, z: Z) -> Result<ValueId> {
        self.b
            .call("aten.atan2.default", &[z.im.into(), z.re.into()])
    }

    /// The constant 1.
    pub(super) fn one(&mut self) -> Result<V> {
        let dtype = self.dtype()?;
        Ok(V::Real(self.number(Arg::Float(1.0), dtype)?))
    }

    /// Returns `other * alpha`.
    fn scaled(&mut self, name: &str, alpha: &str) -> Result<V> {
        let other = self.operand(name)?;
        if self.is_one(alpha) {
            return Ok(other);
        }
        let alpha = self.operand(alpha)?;
        self.times(other, alpha)
    }

    fn is_one(&self, name: &str) -> bool {
        match self.arg(name) {
            Ok(Arg::Int(e)) => self.b.exprs.is_int(*e, 1),
            Ok(Arg::Float(f)) => *f == 1.0,
            Ok(_) => false,
            // A schema without such a factor.
            Err(_) => true,
        }
    }
}

pub(super) fn add(cx: &mut Cx) -> Result<Vec<V>> {
    let (x, y) = (cx.operand("self")?, cx.scaled("other", "alpha")?);
    Ok(vec![cx.plus(x, y)?])
}

pub(super) fn sub(cx: &mut Cx) -> Result<Vec<V>> {
    let (x, y) = (cx.operand("self")?, cx.scaled("other", "alpha")?);
    Ok(vec![cx.minus(x, y)?])
}

pub(super) fn rsub(cx: &mut Cx) -> Result<Vec<V>> {
    let (x, y) = (cx.scaled("self", "alpha")?, cx.operand("other")?);
    Ok(vec![cx.minus(y, x)?])
}

pub(super) fn mul(cx: &mut Cx) -> Result<Vec<V>> {
    let (x, y) = (cx.operand("self")?, cx.operand("other")?);
    Ok(vec![cx.times(x, y)?])
}

pub(super) fn div(cx: &mut Cx) -> Result<Vec<V>> {
    let (x, y) = (cx.operand("self")?, cx.operand("other")?);
    Ok(vec![cx.over(x, y)?])
}

pub(super) fn reciprocal(cx: &mut Cx) -> Result<Vec<V>> {
    let (one, z) = (cx.one()?, cx.operand("self")?);
    Ok(vec![cx.over(one, z)?])
}

pub(super) fn square(cx: &mut Cx) -> Result<Vec<V>> {
    let z = cx.operand("self")?;
    Ok(vec![cx.times(z, z)?])
}

/// `self + value * tensor1 * tensor2`, or with a quotient.
fn add_term(cx: &mut Cx, term: fn(&mut Cx<'_, '_>, V, V) -> Result<V>) -> Result<Vec<V>> {
    let (x, y) = (cx.operand("tensor1")?, cx.operand("tensor2")?);
    let value = cx.operand("value")?;
    let x = cx.times(value, x)?;
    let (term, base) = (term(cx, x, y)?, cx.operand("self")?);
    Ok(vec![cx.plus(base, term)?])
}

pub(super) fn addcmul(cx: &mut Cx) -> Result<Vec<V>> {
    add_term(cx, |cx, x, y| cx.times(x, y))
}

pub(super) fn addcdiv(cx: &mut Cx) -> Result<Vec<V>> {
    add_term(cx, |cx, x, y| cx.over(x, y))
}

pub(super) fn lerp(cx: &mut Cx) -> Result<Vec<V>> {
    let (from, to, weight) = (
        cx.operand("self")?,
        cx.operand("end")?,
        cx.operand("weight")?,
    );
    let step = cx.minus(to, from)?;
    let step = cx.times(weight, step)?;
    Ok(vec![cx.plus(from, step)?])
}

pub(super) fn abs(cx: &mut Cx) -> Result<Vec<V>> {
    let z = cx.complex("self")?;
    Ok(vec![V::Real(cx.modulus(z)?)])
}

pub(super) fn angle(cx: &mut Cx) -> Result<Vec<V>> {
    let z = cx.complex("self")?;
    Ok(vec![V::Real(cx.argument(z)?)])
}

/// `z / |z|`, and 0 at 0.
pub(super) fn sgn(cx: &mut Cx) -> Result<Vec<V>> {
    let z = cx.complex("self")?;
    let modulus = cx.modulus(z)?;
    let zero = cx.is("eq", modulus, 0.0)?;
    Ok(vec![V::Complex(cx.each(z, |cx, part| {
        let unit = cx.bin("div", part, modulus)?;
        cx.select(zero, part, unit)
    })?)])
}

pub(super) fn conj(cx: &mut Cx) -> Result<Vec<V>> {
    let z = first(cx)?;
    Ok(vec![cx.conjugate(z)?])
}

/// Returns the first argument unchanged.
pub(super) fn first(cx: &Cx) -> Result<V> {
    match cx.args.first() {
        Some(Arg::Value(v)) => Ok(cx.parts.get(v).map_or(V::Real(*v), |z| V::Complex(*z))),
        _ => Err(cx.unsupported("the first argument is no tensor")),
    }
}

/// Compares both parts and joins the answers.
fn compare(cx: &mut Cx, op: &str, join: &str) -> Result<Vec<V>> {
    let (x, y) = (cx.complex("self")?, cx.complex("other")?);
    let (re, im) = (cx.bin(op, x.re, y.re)?, cx.bin(op, x.im, y.im)?);
    join_parts(cx, join, re, im)
}

fn join_parts(cx: &mut Cx, join: &str, re: ValueId, im: ValueId) -> Result<Vec<V>> {
    let op = format!("aten.{join}.default");
    Ok(vec![V::Real(cx.b.call(&op, &[re.into(), im.into()])?)])
}

pub(super) fn eq(cx: &mut Cx) -> Result<Vec<V>> {
    compare(cx, "eq", "logical_and")
}

pub(super) fn ne(cx: &mut Cx) -> Result<Vec<V>> {
    compare(cx, "ne", "logical_or")
}

/// A test of which both parts' answers are joined.
fn test(cx: &mut Cx, op: &str, join: &str) -> Result<Vec<V>> {
    let z = cx.complex("self")?;
    let (re, im) = (cx.un(op, z.re)?, cx.un(op, z.im)?);
    join_parts(cx, join, re, im)
}

pub(super) fn isnan(cx: &mut Cx) -> Result<Vec<V>> {
    test(cx, "isnan", "logical_or")
}

pub(super) fn isinf(cx: &mut Cx) -> Result<Vec<V>> {
    test(cx, "isinf", "logical_or")
}

pub(super) fn isfinite(cx: &mut Cx) -> Result<Vec<V>> {
    test(cx, "isfinite", "logical_and")
}

pub(super) fn logical_not(cx: &mut Cx) -> Result<Vec<V>> {
    test(cx, "logical_not", "logical_and")
}

pub(super) fn isreal(cx: &mut Cx) -> Result<Vec<V>> {
    let z = cx.complex("self")?;
    Ok(vec![V::Real(cx.is("eq", z.im, 0.0)?)])
}
