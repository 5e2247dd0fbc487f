//! Operators that act on each part: views, selections, sums, fills and conversions.

use super::context::{Cx, V, Z};
use inrush_aten::Builder;
use inrush_base::{DTypeClass, Result};
use inrush_graph::{Arg, ValueId};

/// Operators that are the same on each part, with the parameters that hold elements of the result. Where such an argument is
/// real, its imaginary part is 0.
pub(super) const EACH: &[(&str, &[&str])] = &[
    ("_unsafe_index", &["self"]),
    ("_unsafe_index_put", &["self", "values"]),
    ("block_diag", &["tensors"]),
    ("broadcast_tensors", &["tensors"]),
    ("cat", &["tensors"]),
    ("clone", &["self"]),
    ("column_stack", &["tensors"]),
    ("concat", &["tensors"]),
    ("concatenate", &["tensors"]),
    ("constant_pad_nd", &["self", "value"]),
    ("contiguous", &["self"]),
    ("copy", &["self", "src"]),
    ("cumsum", &["self"]),
    ("detach", &["self"]),
    ("diag", &["self"]),
    ("diag_embed", &["self"]),
    ("diagflat", &["self"]),
    ("diagonal_scatter", &["self", "src"]),
    ("diff", &["self"]),
    ("dstack", &["tensors"]),
    ("empty", &[]),
    ("empty_like", &["self"]),
    ("fft_fftshift", &["self"]),
    ("fft_ifftshift", &["self"]),
    ("fill", &["self", "value"]),
    ("flip", &["self"]),
    ("fliplr", &["self"]),
    ("flipud", &["self"]),
    ("full", &["fill_value"]),
    ("full_like", &["self", "fill_value"]),
    ("gather", &["self"]),
    ("hstack", &["tensors"]),
    ("index", &["self"]),
    ("index_add", &["self", "source"]),
    ("index_copy", &["self", "source"]),
    ("index_fill", &["self", "value"]),
    ("index_put", &["self", "values"]),
    ("index_select", &["self"]),
    ("lift_fresh", &["self"]),
    ("lift_fresh_copy", &["self"]),
    ("masked_fill", &["self", "value"]),
    ("mean", &["self"]),
    ("meshgrid", &["tensors"]),
    ("neg", &["self"]),
    ("negative", &["self"]),
    ("new_empty", &["self"]),
    ("new_full", &["self", "fill_value"]),
    ("new_zeros", &["self"]),
    ("pad", &["self", "value"]),
    ("positive", &["self"]),
    ("reflection_pad1d", &["self"]),
    ("reflection_pad2d", &["self"]),
    ("reflection_pad3d", &["self"]),
    ("repeat", &["self"]),
    ("repeat_interleave", &["self"]),
    ("replication_pad1d", &["self"]),
    ("replication_pad2d", &["self"]),
    ("replication_pad3d", &["self"]),
    ("roll", &["self"]),
    ("rot90", &["self"]),
    ("row_stack", &["tensors"]),
    ("scalar_tensor", &["s"]),
    ("scatter", &["self", "src", "value"]),
    ("scatter_add", &["self", "src"]),
    ("select_scatter", &["self", "src"]),
    ("slice_scatter", &["self", "src"]),
    ("stack", &["tensors"]),
    ("sum", &["self"]),
    ("sum_to_size", &["self"]),
    ("take", &["self"]),
    ("take_along_dim", &["self"]),
    ("tile", &["self"]),
    ("trace", &["self"]),
    ("tril", &["self"]),
    ("triu", &["self"]),
    ("vstack", &["tensors"]),
    ("where", &["self", "other"]),
    ("zero", &["self"]),
    ("zeros", &[]),
    ("zeros_like", &["self"]),
];

/// The part that a call is written for.
#[derive(Copy, Clone, PartialEq)]
enum Part {
    Re,
    Im,
}

impl Cx<'_, '_> {
    /// Writes the call for one part. `data` are the parameters that hold elements of the result.
    fn part(&mut self, data: &[&str], part: Part) -> Result<Vec<ValueId>> {
        let dtype = self.dtype()?;
        let mut args = Vec::with_capacity(self.args.len());
        for (p, arg) in self.schema.params.iter().zip(self.args) {
            let element = data.contains(&p.name.as_str());
            args.push(match arg {
                _ if p.name == "dtype" && self.gives_complex() => Arg::DType(dtype),
                Arg::Values(list) => {
                    let one = |cx: &mut Self, v: &Option<ValueId>| match v {
                        Some(v) => cx.tensor_part(*v, element, part).map(Some),
                        None => Ok(None),
                    };
                    Arg::Values(list.iter().map(|v| one(self, v)).collect::<Result<_>>()?)
                }
                Arg::Value(v) => self.tensor_part(*v, element, part)?.into(),
                Arg::Complex(re, im) => Arg::Float(if part == Part::Re { *re } else { *im }),
                Arg::Int(_) | Arg::Float(_) | Arg::Bool(_) if element && part == Part::Im => {
                    Arg::Float(0.0)
                }
                other => other.clone(),
            });
        }
        self.b.call_multi(self.op, &args)
    }

    /// Returns the part of a tensor that is an argument. A real one that holds elements of the result is its own real part;
    /// others, such as indices and masks, are the same for both.
    fn tensor_part(&mut self, v: ValueId, element: bool, part: Part) -> Result<ValueId> {
        let wanted = self.gives_complex().then(|| self.dtype()).transpose()?;
        let (v, zero) = match (self.parts.get(&v), part) {
            (Some(z), Part::Re) => (z.re, false),
            (Some(z), Part::Im) => (z.im, false),
            (None, _) if !element => return Ok(v),
            (None, part) => (v, part == Part::Im),
        };
        let v = match wanted {
            Some(dtype) => self.b.cast(v, dtype)?,
            None => v,
        };
        if zero { self.zeros(v) } else { Ok(v) }
    }

    /// Writes the call for both parts.
    fn both(&mut self, data: &[&str]) -> Result<Vec<V>> {
        let re = self.part(data, Part::Re)?;
        if !self.gives_complex() {
            return Ok(re.into_iter().map(V::Real).collect());
        }
        let im = self.part(data, Part::Im)?;
        let pairs = re.into_iter().zip(im);
        Ok(pairs.map(|(re, im)| V::Complex(Z { re, im })).collect())
    }
}

/// An operator of [`EACH`].
pub(super) fn each(cx: &mut Cx) -> Result<Vec<V>> {
    let base = base(cx.op);
    let at = EACH.binary_search_by_key(&base, |(name, _)| name);
    both_of(cx, at.map_or(&[], |at| EACH[at].1))
}

fn both_of(cx: &mut Cx, data: &[&str]) -> Result<Vec<V>> {
    cx.both(data)
}

/// A view: of each part, if its source is complex.
pub(super) fn view(cx: &mut Cx) -> Result<Vec<V>> {
    cx.both(&[])
}

/// `aten.sum.dim_IntList` -> `sum`.
pub(super) fn base(op: &str) -> &str {
    let name = op.strip_prefix("aten.").unwrap_or(op);
    name.split('.').next().unwrap_or(name)
}

/// Ones and unit matrices: the imaginary part is 0.
pub(super) fn unit(cx: &mut Cx) -> Result<Vec<V>> {
    let re = cx.part(&["self"], Part::Re)?;
    let Some(re) = re.first().copied() else {
        return Err(cx.unsupported("no result"));
    };
    if !cx.gives_complex() {
        return Ok(vec![V::Real(re)]);
    }
    Ok(vec![V::Complex(Z {
        re,
        im: cx.zeros(re)?,
    })])
}

/// Dropout that is switched off.
pub(super) fn dropout(cx: &mut Cx) -> Result<Vec<V>> {
    match cx.arg("train")? {
        Arg::Bool(false) => Ok(vec![super::arith::first(cx)?]),
        _ => Err(cx.unsupported("dropout while training")),
    }
}

/// A conversion: the declared type of the result says to what.
pub(super) fn convert(cx: &mut Cx) -> Result<Vec<V>> {
    let v = super::arith::first(cx)?;
    let Some(inrush_graph::Type::Tensor(want)) = cx.declared.first() else {
        return Err(cx.unsupported("a conversion without a tensor"));
    };
    let want = want.dtype;
    Ok(vec![match (v, want.class()) {
        (V::Complex(z), DTypeClass::Complex) => {
            let dtype = cx.dtype()?;
            V::Complex(cx.each(z, |cx, part| cx.b.cast(part, dtype))?)
        }
        (V::Complex(z), DTypeClass::Bool) => {
            let (re, im) = (cx.is("ne", z.re, 0.0)?, cx.is("ne", z.im, 0.0)?);
            let either =
                cx.b.call("aten.logical_or.default", &[re.into(), im.into()])?;
            V::Real(either)
        }
        // The imaginary part is dropped, as in eager.
        (V::Complex(z), _) => V::Real(cx.b.cast(z.re, want)?),
        (V::Real(x), DTypeClass::Complex) => {
            let dtype = cx.dtype()?;
            let re = cx.b.cast(x, dtype)?;
            V::Complex(Z {
                re,
                im: cx.zeros(re)?,
            })
        }
        (V::Real(x), _) => V::Real(cx.b.cast(x, want)?),
    }])
}

/// The parts of pairs of numbers in the last dimension: two views.
pub(super) fn of_interleaved(b: &mut Builder, v: ValueId) -> Result<Z> {
    let last = b.int(b.rank(v)? as i64 - 1);
    let part = |b: &mut Builder, k: i64| {
        let index = b.int(k);
        b.call("aten.select.int", &[v.into(), last.clone(), index])
    };
    Ok(Z {
        re: part(b, 0)?,
        im: part(b, 1)?,
    })
}

/// The parts next to each other in a new last dimension.
pub(super) fn interleave(b: &mut Builder, z: Z) -> Result<ValueId> {
    let parts: Vec<ValueId> = vec![z.re, z.im];
    let dim = b.int(-1);
    b.call("aten.stack.default", &[parts.into(), dim])
}

pub(super) fn view_as_complex(cx: &mut Cx) -> Result<Vec<V>> {
    match super::arith::first(cx)? {
        V::Real(v) => Ok(vec![V::Complex(of_interleaved(cx.b, v)?)]),
        V::Complex(_) => Err(cx.unsupported("view_as_complex of a complex tensor")),
    }
}

pub(super) fn view_as_real(cx: &mut Cx) -> Result<Vec<V>> {
    let z = cx.complex("self")?;
    Ok(vec![V::Real(interleave(cx.b, z)?)])
}

/// `complex(real, imag)`.
pub(super) fn complex(cx: &mut Cx) -> Result<Vec<V>> {
    let (V::Real(re), V::Real(im)) = (cx.operand("real")?, cx.operand("imag")?) else {
        return Err(cx.unsupported("parts that are complex"));
    };
    Ok(vec![V::Complex(Z { re, im })])
}

pub(super) fn polar(cx: &mut Cx) -> Result<Vec<V>> {
    let (V::Real(abs), V::Real(angle)) = (cx.operand("abs")?, cx.operand("angle")?) else {
        return Err(cx.unsupported("a length or an angle that is complex"));
    };
    Ok(vec![V::Complex(cx.polar(abs, angle)?)])
}

pub(super) fn real(cx: &mut Cx) -> Result<Vec<V>> {
    Ok(vec![match super::arith::first(cx)? {
        V::Complex(z) => V::Real(z.re),
        x => x,
    }])
}

pub(super) fn imag(cx: &mut Cx) -> Result<Vec<V>> {
    match super::arith::first(cx)? {
        V::Complex(z) => Ok(vec![V::Real(z.im)]),
        V::Real(_) => Err(cx.unsupported("the imaginary part of a real tensor")),
    }
}

/// The value itself.
pub(super) fn same(cx: &mut Cx) -> Result<Vec<V>> {
    Ok(vec![super::arith::first(cx)?])
}

/// The conjugate of the transpose.
pub(super) fn adjoint(cx: &mut Cx) -> Result<Vec<V>> {
    let all = cx.both(&[])?;
    all.into_iter().map(|v| cx.conjugate(v)).collect()
}

/// Replaces the first argument by the absolute values: norms.
pub(super) fn of_modulus(cx: &mut Cx) -> Result<Vec<V>> {
    let z = cx.complex("self")?;
    let modulus = cx.modulus(z)?;
    let mut args = cx.args.to_vec();
    args[0] = modulus.into();
    Ok(vec![V::Real(cx.b.call(cx.op, &args)?)])
}

/// The variance of a complex number: that of its parts, added.
pub(super) fn variance(cx: &mut Cx) -> Result<Vec<V>> {
    let op = cx.op.to_string();
    Ok(vec![V::Real(variance_by(cx, &op)?)])
}

pub(super) fn deviation(cx: &mut Cx) -> Result<Vec<V>> {
    // Overloads of both operators have the same parameters.
    let op = cx.op.replace("aten.std.", "aten.var.");
    let variance = variance_by(cx, &op)?;
    Ok(vec![V::Real(cx.un("sqrt", variance)?)])
}

fn variance_by(cx: &mut Cx, op: &str) -> Result<ValueId> {
    let z = cx.complex("self")?;
    let args = cx.args.to_vec();
    let z = cx.each(z, |cx, part| {
        let mut args = args.clone();
        args[0] = part.into();
        cx.b.call(op, &args)
    })?;
    cx.bin("add", z.re, z.im)
}
