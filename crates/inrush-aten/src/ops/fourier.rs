//! Fourier transforms over real and imaginary parts: calls of library functions.
//!
//! The pass that replaces complex values by their parts makes these calls. PyTorch has no such operators.

use crate::ops::lowered;
use crate::{Call, Lower, Row, Tensor, meta};
use inrush_base::{DType, Error, Result, Scalar};
use inrush_expr::Expr;
use inrush_graph::{TensorType, Type};

/// The dimensions of a transform, each once.
fn dims(c: &Call, t: &TensorType) -> Result<Vec<usize>> {
    let dims = c.dims("dim", t.rank())?;
    let twice = (dims.iter().enumerate()).any(|(k, d)| dims[..k].contains(d));
    if twice || dims.iter().any(|d| *d >= t.rank()) {
        return Err(Error::input("a transform wants dimensions that differ"));
    }
    match t.dtype {
        DType::F32 | DType::F64 => Ok(dims),
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

/// Half of a spectrum has `n / 2 + 1` elements.
fn r2c_sizes(c: &Call) -> Result<(Vec<usize>, Vec<Expr>)> {
    let t = c.tensor("self")?;
    let dims = dims(c, t)?;
    let mut sizes = t.sizes.clone();
    match dims.last() {
        Some(last) if c.bool("onesided")? => {
            let half = c.exprs.floordiv(sizes[*last], c.exprs.int(2));
            sizes[*last] = c.exprs.add(half, c.exprs.int(1));
        }
        Some(_) => {}
        None => return Err(Error::input("no dimension to transform")),
    }
    Ok((dims, sizes))
}

fn r2c_meta(c: &Call) -> Result<Vec<Type>> {
    let (_, sizes) = r2c_sizes(c)?;
    Ok(both(c, c.tensor("self")?, sizes))
}

fn c2r_sizes(c: &Call) -> Result<(Vec<usize>, Vec<Expr>)> {
    let t = c.tensor("re")?;
    let dims = dims(c, t)?;
    let mut sizes = t.sizes.clone();
    match dims.last() {
        Some(last) => sizes[*last] = c.int("last")?,
        None => return Err(Error::input("no dimension to transform")),
    }
    Ok((dims, sizes))
}

fn c2r_meta(c: &Call) -> Result<Vec<Type>> {
    let (_, sizes) = c2r_sizes(c)?;
    meta::one(c.exprs, c.tensor("re")?.dtype, sizes)
}

fn c2c<'g>(lw: &mut Lower<'g>, c: &Call<'g>) -> Result<Vec<Tensor>> {
    let t = c.tensor("re")?;
    let params = params(c, Some("forward"), &dims(c, t)?)?;
    let inputs = [lw.tensor(c.value("re")?)?, lw.tensor(c.value("im")?)?];
    let part = (t.dtype, t.sizes.clone());
    Ok(lw.library("fft.c2c", params, &inputs, &[part.clone(), part]))
}

fn r2c<'g>(lw: &mut Lower<'g>, c: &Call<'g>) -> Result<Vec<Tensor>> {
    let t = c.tensor("self")?;
    let (dims, sizes) = r2c_sizes(c)?;
    let params = params(c, Some("onesided"), &dims)?;
    let inputs = [lw.tensor(c.value("self")?)?];
    let part = (t.dtype, sizes);
    Ok(lw.library("fft.r2c", params, &inputs, &[part.clone(), part]))
}

fn c2r<'g>(lw: &mut Lower<'g>, c: &Call<'g>) -> Result<Vec<Tensor>> {
    let t = c.tensor("re")?;
    let (dims, sizes) = c2r_sizes(c)?;
    let params = params(c, None, &dims)?;
    let inputs = [lw.tensor(c.value("re")?)?, lw.tensor(c.value("im")?)?];
    Ok(lw.library("fft.c2r", params, &inputs, &[(t.dtype, sizes)]))
}

pub(super) const ROWS: &[Row] = &[
    lowered(
        "inrush.fft_c2c.default",
        "(Tensor re, Tensor im, int[] dim, int norm, bool forward) -> (Tensor, Tensor)",
        c2c_meta,
        c2c,
        "(f32[3,6], f32[3,6], [1, 0], 0, true)",
    ),
    lowered(
        "inrush.fft_c2r.default",
        "(Tensor re, Tensor im, int[] dim, int norm, SymInt last) -> Tensor",
        c2r_meta,
        c2r,
        "(f32[3,4], f32[3,4], [0, 1], 2, 6)",
    ),
    lowered(
        "inrush.fft_r2c.default",
        "(Tensor self, int[] dim, int norm, bool onesided) -> (Tensor, Tensor)",
        r2c_meta,
        r2c,
        "(f32[3,6], [0, 1], 0, true)",
    ),
];
