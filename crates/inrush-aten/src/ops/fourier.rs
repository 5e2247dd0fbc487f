//! Fourier transforms over real and imaginary parts: calls of library functions.
//!
//! The pass that replaces complex values by their parts makes these calls. PyTorch has no such operators.

use crate::ops::lowered;
use crate::props::Prop;
use crate::{Call, Lower, Row, Tensor, meta};
use inrush_base::{DType, Error, Result, Scalar};
use inrush_expr::Expr;
use inrush_graph::{TensorType, Type};

/// The dimensions of a transform, each once.
fn dims(c: &Call, t: &TensorType) -> Result<Vec<usize>> {
    if t.rank() == 0 {
        return Err(Error::input("a transform of a number"));
    }
    match t.dtype {
        DType::F32 | DType::F64 => c.dims("dim", t.rank()),
        other => Err(Error::unsupported(format!(
            "a Fourier transform of {other}"
        ))),
    }
}

/// The parameters of the library function: normalization, a flag where it has one, dimensions.
fn params(c: &Call, flag: Option<&str>, dims: &[usize]) -> Result<Vec<Scalar>> {
    let norm = c.int("norm")?;
    let norm = c
        .exprs
        .as_int(norm)
        .ok_or_else(|| c.unsupported("norm", "a constant"))?;
    let mut out = vec![Scalar::Int(norm)];
    if let Some(flag) = flag {
        out.push(Scalar::Bool(c.bool(flag)?));
    }
    out.extend(dims.iter().map(|d| Scalar::Int(*d as i64)));
    Ok(out)
}

fn both(c: &Call, t: &TensorType, sizes: Vec<Expr>) -> Vec<Type> {
    let part = meta::tensor(c.exprs, t.dtype, sizes);
    vec![part.clone(), part]
}

fn c2c_meta(c: &Call) -> Result<Vec<Type>> {
    let t = c.tensor("re")?;
    dims(c, t)?;
    Ok(both(c, t, t.sizes.clone()))
}

/// The last dimension of a transform, whose size changes.
fn last(dims: &[usize]) -> Result<usize> {
    let last = dims.last().copied();
    last.ok_or_else(|| Error::input("no dimension to transform"))
}

/// Half of a spectrum has `n / 2 + 1` elements.
fn r2c_meta(c: &Call) -> Result<Vec<Type>> {
    let t = c.tensor("self")?;
    let last = last(&dims(c, t)?)?;
    let mut sizes = t.sizes.clone();
    if c.bool("onesided")? {
        let half = c.exprs.floordiv(sizes[last], c.exprs.int(2));
        sizes[last] = c.exprs.add(half, c.exprs.int(1));
    }
    Ok(both(c, t, sizes))
}

fn c2r_meta(c: &Call) -> Result<Vec<Type>> {
    let t = c.tensor("re")?;
    let last = last(&dims(c, t)?)?;
    let mut sizes = t.sizes.clone();
    sizes[last] = c.int("last")?;
    meta::one(c.exprs, t.dtype, sizes)
}

fn c2c<'g>(lw: &mut Lower<'g>, c: &Call<'g>) -> Result<Vec<Tensor>> {
    let params = params(c, Some("forward"), &dims(c, c.tensor("re")?)?)?;
    let inputs = [lw.arg(c, "re")?, lw.arg(c, "im")?];
    Ok(lw.library("fft.c2c", params, &inputs, &c2c_meta(c)?))
}

fn r2c<'g>(lw: &mut Lower<'g>, c: &Call<'g>) -> Result<Vec<Tensor>> {
    let params = params(c, Some("onesided"), &dims(c, c.tensor("self")?)?)?;
    let inputs = [lw.arg(c, "self")?];
    Ok(lw.library("fft.r2c", params, &inputs, &r2c_meta(c)?))
}

fn c2r<'g>(lw: &mut Lower<'g>, c: &Call<'g>) -> Result<Vec<Tensor>> {
    let params = params(c, None, &dims(c, c.tensor("re")?)?)?;
    let inputs = [lw.arg(c, "re")?, lw.arg(c, "im")?];
    Ok(lw.library("fft.c2r", params, &inputs, &c2r_meta(c)?))
}

pub(super) const ROWS: &[Row] = &[
    lowered(
        "inrush.fft_c2c.default",
        "(Tensor re, Tensor im, int[] dim, int norm, bool forward) -> (Tensor, Tensor)",
        c2c_meta,
        c2c,
        "(f32[3,6], f32[3,6], [1, 0], 0, true)",
    )
    .with(&[Prop::LibraryFunction]),
    lowered(
        "inrush.fft_c2r.default",
        "(Tensor re, Tensor im, int[] dim, int norm, SymInt last) -> Tensor",
        c2r_meta,
        c2r,
        "(f32[3,4], f32[3,4], [0, 1], 2, 6)",
    )
    .with(&[Prop::LibraryFunction]),
    lowered(
        "inrush.fft_r2c.default",
        "(Tensor self, int[] dim, int norm, bool onesided) -> (Tensor, Tensor)",
        r2c_meta,
        r2c,
        "(f32[3,6], [0, 1], 0, true)",
    )
    .with(&[Prop::LibraryFunction]),
];
