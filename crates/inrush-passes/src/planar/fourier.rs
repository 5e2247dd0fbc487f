//! Fourier transforms, as calls of `inrush.fft_*` over parts, which lower to library functions.
//!
//! PyTorch's `fft_*` are a padding or trimming to the length that is asked for, then one of three transforms. `norm` says which
//! of the two directions is divided by the number of elements.

use super::context::{Cx, V, Z};
use inrush_aten::call::wrap_dim;
use inrush_base::{Error, Result};
use inrush_expr::Expr;
use inrush_graph::{Arg, ValueId};

/// Factor of a transform's results: PyTorch's codes.
const NO_FACTOR: i64 = 0;
const BY_ROOT: i64 = 1;
const BY_COUNT: i64 = 2;

impl Cx<'_, '_> {
    pub(super) fn c2c(&mut self, z: Z, dims: &[i64], norm: i64, forward: bool) -> Result<Z> {
        let args = [
            z.re.into(),
            z.im.into(),
            self.b.ints(dims),
            self.b.int(norm),
            forward.into(),
        ];
        let out = self.b.call_multi("inrush.fft_c2c.default", &args)?;
        self.two(&out)
    }

    pub(super) fn r2c(&mut self, x: ValueId, dims: &[i64], norm: i64, onesided: bool) -> Result<Z> {
        let args = [
            x.into(),
            self.b.ints(dims),
            self.b.int(norm),
            onesided.into(),
        ];
        let out = self.b.call_multi("inrush.fft_r2c.default", &args)?;
        self.two(&out)
    }

    pub(super) fn c2r(&mut self, z: Z, dims: &[i64], norm: i64, last: Expr) -> Result<ValueId> {
        let args = [
            z.re.into(),
            z.im.into(),
            self.b.ints(dims),
            self.b.int(norm),
            last.into(),
        ];
        self.b.call("inrush.fft_c2r.default", &args)
    }

    fn two(&self, out: &[ValueId]) -> Result<Z> {
        match *out {
            [re, im] => Ok(Z { re, im }),
            _ => Err(Error::internal("a transform without two parts")),
        }
    }

    /// A transform of real or complex values to complex ones.
    fn transform(&mut self, v: V, dims: &[i64], norm: i64, forward: bool) -> Result<Z> {
        match v {
            V::Real(x) if forward => self.r2c(x, dims, norm, false),
            v => {
                let z = self.widen(v)?;
                self.c2c(z, dims, norm, forward)
            }
        }
    }

    /// The factor that `norm` means for a direction.
    fn factor(&self, forward: bool) -> Result<i64> {
        let name = match self.arg("norm")? {
            Arg::None => "backward",
            Arg::Str(s) => s.as_str(),
            other => return Err(self.unsupported(&format!("norm = {other:?}"))),
        };
        Ok(match (name, forward) {
            ("ortho", _) => BY_ROOT,
            ("backward", true) | ("forward", false) => NO_FACTOR,
            ("backward", false) | ("forward", true) => BY_COUNT,
            _ => return Err(Error::input(format!("norm = `{name}`"))),
        })
    }

    /// Applies a function of real tensors to a real value or to each part.
    pub(super) fn map(
        &mut self,
        v: V,
        f: impl Fn(&mut Self, ValueId) -> Result<ValueId>,
    ) -> Result<V> {
        Ok(match v {
            V::Real(x) => V::Real(f(self, x)?),
            V::Complex(z) => V::Complex(self.each(z, f)?),
        })
    }

    pub(super) fn sizes_of(&self, v: V) -> Result<Vec<Expr>> {
        match v {
            V::Real(x) | V::Complex(Z { re: x, .. }) => self.b.sizes(x),
        }
    }

    /// Pads with zeros or trims dimension `dim` to `size`.
    pub(super) fn resized(&mut self, v: V, dim: i64, size: Expr) -> Result<V> {
        let (sizes, ex) = (self.sizes_of(v)?, self.b.exprs);
        let have = sizes[dim as usize];
        if ex.prove_eq(have, size) {
            return Ok(v);
        }
        let at = self.b.int(dim);
        if ex.prove_lt(size, have) {
            return self.map(v, |cx, x| {
                let (zero, size) = (cx.b.int(0), Arg::Int(size));
                cx.b.call("aten.slice.Tensor", &[x.into(), at.clone(), zero, size])
            });
        }
        if !ex.prove_lt(have, size) {
            return Err(self.unsupported("a transform of a length that may or may not be padded"));
        }
        // Padding counts from the last dimension.
        let mut pad = vec![ex.int(0); 2 * (sizes.len() - dim as usize)];
        if let Some(end) = pad.last_mut() {
            *end = ex.sub(size, have);
        }
        self.map(v, |cx, x| {
            cx.b.call(
                "aten.constant_pad_nd.default",
                &[x.into(), pad.clone().into(), Arg::Float(0.0)],
            )
        })
    }

    /// The one dimension of a transform.
    fn dim(&self, rank: usize) -> Result<i64> {
        match self.arg("dim")? {
            Arg::Int(e) => match self.b.exprs.as_int(*e) {
                Some(d) if rank > 0 => Ok(wrap_dim(d, rank)? as i64),
                _ => Err(self.unsupported("the dimension of a transform")),
            },
            _ => Err(self.unsupported("the dimension of a transform")),
        }
    }

    /// Dimensions of a transform, and the lengths that are asked for.
    fn shape(&self, v: V) -> Result<Vec<(i64, Option<Expr>)>> {
        let rank = self.sizes_of(v)?.len();
        let list = |name: &str| match self.arg(name)? {
            Arg::None => Ok(None),
            Arg::Ints(list) => Ok(Some(list.clone())),
            other => Err(self.unsupported(&format!("{name} = {other:?}"))),
        };
        let lengths = list("s")?;
        let dims: Vec<i64> = match (list("dim")?, &lengths) {
            (Some(dims), _) => (dims.iter())
                .map(|d| match self.b.exprs.as_int(*d) {
                    Some(d) if rank > 0 => wrap_dim(d, rank).map(|d| d as i64),
                    _ => Err(self.unsupported("the dimension of a transform")),
                })
                .collect::<Result<_>>()?,
            (None, Some(s)) if s.len() <= rank => {
                (rank - s.len()..rank).map(|d| d as i64).collect()
            }
            (None, Some(_)) => return Err(Error::input("more lengths than dimensions")),
            (None, None) => (0..rank as i64).collect(),
        };
        if lengths.as_ref().is_some_and(|s| s.len() != dims.len()) {
            return Err(Error::input("as many lengths as dimensions are wanted"));
        }
        let same = |e: &Expr| self.b.exprs.is_int(*e, -1);
        let length = |k: usize| lengths.as_ref().map(|s| s[k]).filter(|e| !same(e));
        Ok(dims
            .iter()
            .enumerate()
            .map(|(k, d)| (*d, length(k)))
            .collect())
    }

    /// Resizes all dimensions of a transform but the last one, if `last` says to what that one is resized.
    fn shaped(&mut self, mut v: V, shape: &[(i64, Option<Expr>)], last: Option<Expr>) -> Result<V> {
        for (k, (dim, length)) in shape.iter().enumerate() {
            let length = if k + 1 == shape.len() {
                last.or(*length)
            } else {
                *length
            };
            if let Some(length) = length {
                v = self.resized(v, *dim, length)?;
            }
        }
        Ok(v)
    }

    /// The length of a real signal: as asked for, or of the shortest even one with such a spectrum.
    fn signal(&self, v: V, dim: i64, asked: Option<Expr>) -> Result<Expr> {
        let ex = self.b.exprs;
        let have = self.sizes_of(v)?[dim as usize];
        Ok(asked.unwrap_or_else(|| ex.mul(ex.int(2), ex.sub(have, ex.int(1)))))
    }

    /// The length of the half of a spectrum.
    pub(super) fn half(&self, n: Expr) -> Expr {
        let ex = self.b.exprs;
        ex.add(ex.floordiv(n, ex.int(2)), ex.int(1))
    }

    /// The operand, the dimension and the length of a transform along one dimension.
    fn along_one(&mut self) -> Result<(V, i64, Option<Expr>)> {
        let v = self.operand("self")?;
        let dim = self.dim(self.sizes_of(v)?.len())?;
        let length = match self.arg("n")? {
            Arg::Int(e) => Some(*e),
            _ => None,
        };
        Ok((v, dim, length))
    }

    fn real_operand(&self, v: V) -> Result<ValueId> {
        match v {
            V::Real(x) => Ok(x),
            V::Complex(_) => Err(Error::input("a real tensor is wanted, not a complex one")),
        }
    }
}

fn one(cx: &mut Cx, forward: bool) -> Result<Vec<V>> {
    let (v, dim, length) = cx.along_one()?;
    let v = cx.shaped(v, &[(dim, length)], None)?;
    let norm = cx.factor(forward)?;
    Ok(vec![V::Complex(cx.transform(v, &[dim], norm, forward)?)])
}

pub(super) fn fft(cx: &mut Cx) -> Result<Vec<V>> {
    one(cx, true)
}

pub(super) fn ifft(cx: &mut Cx) -> Result<Vec<V>> {
    one(cx, false)
}

fn many(cx: &mut Cx, forward: bool) -> Result<Vec<V>> {
    let v = cx.operand("self")?;
    let shape = cx.shape(v)?;
    let v = cx.shaped(v, &shape, None)?;
    let (dims, norm) = (dims(&shape), cx.factor(forward)?);
    if dims.is_empty() {
        return Ok(vec![V::Complex(cx.widen(v)?)]);
    }
    Ok(vec![V::Complex(cx.transform(v, &dims, norm, forward)?)])
}

fn dims(shape: &[(i64, Option<Expr>)]) -> Vec<i64> {
    shape.iter().map(|(d, _)| *d).collect()
}

pub(super) fn fftn(cx: &mut Cx) -> Result<Vec<V>> {
    many(cx, true)
}

pub(super) fn ifftn(cx: &mut Cx) -> Result<Vec<V>> {
    many(cx, false)
}

/// Real to half a spectrum. `conjugate` gives that of the inverse transform.
fn half_spectrum(
    cx: &mut Cx,
    v: V,
    shape: &[(i64, Option<Expr>)],
    forward: bool,
) -> Result<Vec<V>> {
    let Some((last, rest)) = shape.split_last() else {
        return Err(Error::input("no dimension to transform"));
    };
    let v = cx.shaped(v, shape, None)?;
    let (x, norm) = (cx.real_operand(v)?, cx.factor(forward)?);
    if forward {
        return Ok(vec![V::Complex(cx.r2c(x, &dims(shape), norm, true)?)]);
    }
    let z = cx.r2c(x, &[last.0], norm, true)?;
    let z = cx.conjugate(V::Complex(z))?;
    if rest.is_empty() {
        return Ok(vec![z]);
    }
    let z = cx.widen(z)?;
    Ok(vec![V::Complex(cx.c2c(z, &dims(rest), norm, false)?)])
}

pub(super) fn rfft(cx: &mut Cx) -> Result<Vec<V>> {
    let (v, dim, length) = cx.along_one()?;
    half_spectrum(cx, v, &[(dim, length)], true)
}

pub(super) fn ihfft(cx: &mut Cx) -> Result<Vec<V>> {
    let (v, dim, length) = cx.along_one()?;
    half_spectrum(cx, v, &[(dim, length)], false)
}

pub(super) fn rfftn(cx: &mut Cx) -> Result<Vec<V>> {
    let v = cx.operand("self")?;
    let shape = cx.shape(v)?;
    half_spectrum(cx, v, &shape, true)
}

pub(super) fn ihfftn(cx: &mut Cx) -> Result<Vec<V>> {
    let v = cx.operand("self")?;
    let shape = cx.shape(v)?;
    half_spectrum(cx, v, &shape, false)
}

/// Half a spectrum to a real signal. The forward transform (`hfft`) is that of the conjugate.
fn real_signal(cx: &mut Cx, v: V, shape: &[(i64, Option<Expr>)], forward: bool) -> Result<Vec<V>> {
    let Some(((last, asked), rest)) = shape.split_last() else {
        return Err(Error::input("no dimension to transform"));
    };
    let n = cx.signal(v, *last, *asked)?;
    let half = cx.half(n);
    let v = cx.shaped(v, shape, Some(half))?;
    let norm = cx.factor(forward)?;
    let mut z = cx.widen(v)?;
    if !forward {
        return Ok(vec![V::Real(cx.c2r(z, &dims(shape), norm, n)?)]);
    }
    if !rest.is_empty() {
        z = cx.c2c(z, &dims(rest), norm, true)?;
    }
    let z = cx.conjugate(V::Complex(z))?;
    let z = cx.widen(z)?;
    Ok(vec![V::Real(cx.c2r(z, &[*last], norm, n)?)])
}

pub(super) fn irfft(cx: &mut Cx) -> Result<Vec<V>> {
    let (v, dim, length) = cx.along_one()?;
    real_signal(cx, v, &[(dim, length)], false)
}

pub(super) fn hfft(cx: &mut Cx) -> Result<Vec<V>> {
    let (v, dim, length) = cx.along_one()?;
    real_signal(cx, v, &[(dim, length)], true)
}

pub(super) fn irfftn(cx: &mut Cx) -> Result<Vec<V>> {
    let v = cx.operand("self")?;
    let shape = cx.shape(v)?;
    real_signal(cx, v, &shape, false)
}

pub(super) fn hfftn(cx: &mut Cx) -> Result<Vec<V>> {
    let v = cx.operand("self")?;
    let shape = cx.shape(v)?;
    real_signal(cx, v, &shape, true)
}

impl Cx<'_, '_> {
    /// Constants of an argument that is a list, or one integer.
    pub(super) fn constants(&self, name: &str) -> Result<Vec<i64>> {
        let known = |e: &Expr| {
            (self.b.exprs.as_int(*e))
                .ok_or_else(|| self.unsupported(&format!("`{name}` that is not constant")))
        };
        match self.arg(name)? {
            Arg::Int(e) => Ok(vec![known(e)?]),
            Arg::Ints(list) => list.iter().map(known).collect(),
            other => Err(self.unsupported(&format!("{name} = {other:?}"))),
        }
    }

    /// Dimensions and factor of one of PyTorch's own transforms.
    fn own(&self, v: V) -> Result<(Vec<i64>, i64)> {
        let rank = self.sizes_of(v)?.len();
        let dims = self.constants("dim")?.into_iter();
        let dims = dims
            .map(|d| wrap_dim(d, rank).map(|d| d as i64))
            .collect::<Result<_>>()?;
        Ok((dims, self.constants("normalization")?[0]))
    }

    pub(super) fn flag(&self, name: &str) -> Result<bool> {
        Ok(matches!(self.arg(name)?, Arg::Bool(true)))
    }
}

pub(super) fn own_c2c(cx: &mut Cx) -> Result<Vec<V>> {
    let v = cx.operand("self")?;
    let ((dims, norm), forward) = (cx.own(v)?, cx.flag("forward")?);
    let z = cx.widen(v)?;
    Ok(vec![V::Complex(cx.c2c(z, &dims, norm, forward)?)])
}

pub(super) fn own_r2c(cx: &mut Cx) -> Result<Vec<V>> {
    let v = cx.operand("self")?;
    let ((dims, norm), onesided) = (cx.own(v)?, cx.flag("onesided")?);
    let x = cx.real_operand(v)?;
    Ok(vec![V::Complex(cx.r2c(x, &dims, norm, onesided)?)])
}

pub(super) fn own_c2r(cx: &mut Cx) -> Result<Vec<V>> {
    let v = cx.operand("self")?;
    let (dims, norm) = cx.own(v)?;
    let Arg::Int(n) = *cx.arg("last_dim_size")? else {
        return Err(cx.unsupported("the length of a signal"));
    };
    let z = cx.widen(v)?;
    Ok(vec![V::Real(cx.c2r(z, &dims, norm, n)?)])
}
