//! Views that are copied at once; reads and writes by index under a mask or a reduction; the parts of floats.
//!
//! `_copy` forms of views, whose results must not share memory, decompose to the view and a
//! `clone`. The latter is an identity in a functional graph: no copy is made unless something needs
//! one.

use crate::ops::decomposed;
use crate::{Args, Builder, Row};
use inrush_base::{DType, Error, Result};
use inrush_graph::{Arg, ValueId};

/// `aten.<view>_copy.<overload>`: each result of the view as a tensor of its own.
fn copied(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    // The name of the view's own row.
    let view = args.op.row.name.replacen("_copy.", ".", 1);
    let views = b.call_multi(&view, args.args)?;
    views
        .into_iter()
        .map(|v| b.unary("aten.clone.default", v))
        .collect()
}

/// Mantissa in `[0.5, 1)` and exponent, taken from the bits. Zeros, infinities and NaN are their own mantissa.
/// `x = mantissa * 2^exponent`. Works on the bits as integers:
///
/// ```text
/// f32:  sign 1 | exponent 8 | mantissa 23       exponent field 126 is [0.5, 1)
/// ```
fn frexp(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let x = args.value("self")?;
    let dtype = b.dtype(x)?;
    let wide = b.widen(x)?;
    // Bits of the mantissa, of the exponent; the exponent of 0.5; a power of two that makes denormals normal.
    let (bits, mantissa, exponent, half, lift) = match b.dtype(wide)? {
        DType::F32 => (DType::I32, 23u32, 0xffi64, 126i64, 25i32),
        DType::F64 => (DType::I64, 52, 0x7ff, 1022, 54),
        d => return Err(Error::input(format!("frexp of {d}"))),
    };
    // Twice the smallest normal number: lifting normal numbers too is harmless, since the power
    // that was added is taken off again.
    let smallest = 2f64.powi(1 - half as i32);
    let size = b.unary("aten.abs.default", wide)?;
    let small = b.by("aten.lt.Scalar", size, smallest)?;
    let lifted = b.scale(wide, 2f64.powi(lift))?;
    let normal = b.select(small, lifted, wide)?;
    let n = b.call("aten.view.dtype", &[normal.into(), bits.into()])?;
    let int = |b: &mut Builder, op: &str, v: ValueId, c: i64| b.call(op, &[v.into(), b.int(c)]);
    let shifted = int(
        b,
        "aten.bitwise_right_shift.Tensor_Scalar",
        n,
        mantissa as i64,
    )?;
    let field = int(b, "aten.bitwise_and.Scalar", shifted, exponent)?;
    let power = int(b, "aten.sub.Scalar", field, half)?;
    let lowered = int(b, "aten.sub.Scalar", power, lift as i64)?;
    let power = b.select(small, lowered, power)?;
    let keep = int(b, "aten.bitwise_and.Scalar", n, !(exponent << mantissa))?;
    let set = int(b, "aten.bitwise_or.Scalar", keep, half << mantissa)?;
    let wide_dtype = b.dtype(wide)?;
    let fraction = b.call("aten.view.dtype", &[set.into(), wide_dtype.into()])?;
    let finite = b.unary("aten.isfinite.default", wide)?;
    let nonzero = b.by("aten.ne.Scalar", wide, 0.0)?;
    // Zeros, infinities and NaN have no exponent to speak of; theirs is 0.
    let plain = b.call("aten.logical_and.default", &[finite.into(), nonzero.into()])?;
    let fraction = b.select(plain, fraction, wide)?;
    let power = b.mul(power, plain)?;
    Ok(vec![b.cast(fraction, dtype)?, b.cast(power, DType::I32)?])
}

/// Tests each element for equality with a number.
/// `invert` asks for inequality.
fn isin_number(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let op = match args.bool("invert")? {
        true => "aten.ne.Scalar",
        false => "aten.eq.Scalar",
    };
    let (x, number) = (args.value("elements")?, args.arg("test_element")?.clone());
    Ok(vec![b.call(op, &[x.into(), number])?])
}

/// Rows that arrive at one place are combined: the same as element by element, with the index as long as the source.
fn index_reduce(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let (x, index, source) = (
        args.value("self")?,
        args.value("index")?,
        args.value("source")?,
    );
    let sizes = b.sizes(source)?;
    let dim = args.dim("dim", sizes.len())?;
    let mut line = vec![1i64; sizes.len()];
    if let Some(l) = line.get_mut(dim) {
        *l = -1;
    }
    let index = b.call("aten.view.default", &[index.into(), b.ints(&line)])?;
    // One index for each element of the source, as `scatter_reduce` takes them.
    let index = b.call("aten.expand.default", &[index.into(), sizes.into()])?;
    let index = b.cast(index, DType::I64)?;
    let (reduce, own) = (args.arg("reduce")?.clone(), args.bool("include_self")?);
    Ok(vec![b.call(
        "aten.scatter_reduce.two",
        &[
            x.into(),
            b.int(dim as i64),
            index.into(),
            source.into(),
            reduce,
            own.into(),
        ],
    )?])
}

/// Indices brought into range: where the mask is false they may be anything.
fn clamped(b: &mut Builder, args: &Args, sizes: &[inrush_expr::Expr]) -> Result<Arg> {
    let mut out = Vec::new();
    for (index, size) in args.opt_list("indices")?.into_iter().zip(sizes) {
        out.push(match index {
            None => None,
            Some(i) => {
                // Negative indices that count from the end stay as they are.
                let low = b.exprs.mul(*size, b.exprs.int(-1));
                let high = b.exprs.sub(*size, b.exprs.int(1));
                Some(b.call("aten.clamp.default", &[i.into(), low.into(), high.into()])?)
            }
        });
    }
    Ok(Arg::Values(out))
}

/// `mask ? self[indices] : fill`. Reads are evaluated everywhere, so indices are clamped.
fn masked_index(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let (x, mask) = (args.value("self")?, args.value("mask")?);
    let sizes = b.sizes(x)?;
    let indices = clamped(b, args, &sizes)?;
    let read = b.call("aten.index.Tensor", &[x.into(), indices])?;
    let fill = b.full(&[], args.scalar("fill")?.as_f64(), b.dtype(x)?)?;
    Ok(vec![b.select(mask, read, fill)?])
}

/// Adds values where the mask is true; elsewhere it adds 0 at some valid place.
fn masked_index_put(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let (x, mask, values) = (
        args.value("self")?,
        args.value("mask")?,
        args.value("values")?,
    );
    let sizes = b.sizes(x)?;
    if sizes.iter().any(|s| b.exprs.is_int(*s, 0)) {
        // Nothing can be put anywhere: eager does not even look at the values.
        return Ok(vec![x]);
    }
    let indices = clamped(b, args, &sizes)?;
    let values = b.select_or(mask, values, 0.0)?;
    Ok(vec![b.call(
        "aten.index_put.default",
        &[x.into(), indices, values.into(), true.into()],
    )?])
}

/// A row of a view's copying form.
const fn copy(name: &'static str, schema: &'static str, example: &'static str) -> Row {
    decomposed(name, schema, copied, example)
}

pub const ROWS: &[Row] = &[
    copy(
        "aten.permute_copy.default",
        "(Tensor self, int[] dims) -> Tensor",
        "(f32[2,3,4], [2,0,1])",
    ),
    copy(
        "aten.transpose_copy.int",
        "(Tensor self, int dim0, int dim1) -> Tensor",
        "(f32[2,3,4], 1, -1)",
    ),
    copy(
        "aten.t_copy.default",
        "(Tensor self) -> Tensor",
        "(f32[2,3])",
    ),
    copy(
        "aten.squeeze_copy.default",
        "(Tensor self) -> Tensor",
        "(f32[1,3,1])",
    ),
    copy(
        "aten.squeeze_copy.dim",
        "(Tensor self, int dim) -> Tensor",
        "(f32[1,3,1], -1)",
    ),
    copy(
        "aten.squeeze_copy.dims",
        "(Tensor self, int[] dim) -> Tensor",
        "(f32[1,3,1], [0,1])",
    ),
    copy(
        "aten.unsqueeze_copy.default",
        "(Tensor self, int dim) -> Tensor",
        "(f32[2,3], -1)",
    ),
    copy(
        "aten.view_copy.default",
        "(Tensor self, SymInt[] size) -> Tensor",
        "(f32[2,6], [3,-1])",
    ),
    copy(
        "aten.view_copy.dtype",
        "(Tensor self, ScalarType dtype) -> Tensor",
        "(f32[3], i32)",
    ),
    copy(
        "aten.expand_copy.default",
        "(Tensor self, SymInt[] size, *, bool implicit=False) -> Tensor",
        "(f32[3,1], [2,-1,4])",
    ),
    copy(
        "aten.diagonal_copy.default",
        "(Tensor self, int offset=0, int dim1=0, int dim2=1) -> Tensor",
        "(f32[3,4], 1)",
    ),
    copy(
        "aten.as_strided_copy.default",
        "(Tensor self, SymInt[] size, SymInt[] stride, SymInt? storage_offset=None) -> Tensor",
        "(f32[3,4], [2,3], [4,1], 1)",
    ),
    copy(
        "aten.slice_copy.Tensor",
        "(Tensor self, int dim=0, SymInt? start=None, SymInt? end=None, SymInt step=1) -> Tensor",
        "(f32[3,8], 1, 1, 7, 2)",
    ),
    copy(
        "aten.select_copy.int",
        "(Tensor self, int dim, SymInt index) -> Tensor",
        "(f32[3,8], 1, -1)",
    ),
    copy(
        "aten.narrow_copy.default",
        "(Tensor self, int dim, SymInt start, SymInt length) -> Tensor",
        "(f32[3,8], 1, 2, 3)",
    ),
    copy(
        "aten.unfold_copy.default",
        "(Tensor self, int dimension, int size, int step) -> Tensor",
        "(f32[3,8], 1, 3, 2)",
    ),
    copy(
        "aten.unbind_copy.int",
        "(Tensor self, int dim=0) -> Tensor[]",
        "(f32[3,4], 1)",
    ),
    copy(
        "aten.split_copy.Tensor",
        "(Tensor self, SymInt split_size, int dim=0) -> Tensor[]",
        "(f32[5,4], 2)",
    ),
    copy(
        "aten.split_with_sizes_copy.default",
        "(Tensor self, SymInt[] split_sizes, int dim=0) -> Tensor[]",
        "(f32[5,4], [2,3])",
    ),
    decomposed(
        "aten.frexp.Tensor",
        "(Tensor self) -> (Tensor mantissa, Tensor exponent)",
        frexp,
        "(f32[2,3])",
    ),
    decomposed(
        "aten.isin.Tensor_Scalar",
        "(Tensor elements, Scalar test_element, *, bool assume_unique=False, bool invert=False) -> Tensor",
        isin_number,
        "(i64[3,4]{0:3}, 2, invert=true)",
    ),
    decomposed(
        "aten.index_reduce.default",
        "(Tensor self, int dim, Tensor index, Tensor source, str reduce, *, bool include_self=True) -> Tensor",
        index_reduce,
        "(f32[4,3], 0, i64[5]{0:3}, f32[5,3], \"amax\", include_self=false)",
    ),
    decomposed(
        "aten._unsafe_masked_index.default",
        "(Tensor self, Tensor mask, Tensor?[] indices, Scalar fill) -> Tensor",
        masked_index,
        "(f32[4,5], bool[3], [i64[3]{-4:9}, i64[3]{0:7}], 2)",
    ),
    decomposed(
        "aten._unsafe_masked_index_put_accumulate.default",
        "(Tensor self, Tensor mask, Tensor?[] indices, Tensor values) -> Tensor",
        masked_index_put,
        "(f32[4,5], bool[3], [i64[3]{-4:9}, i64[3]{0:7}], f32[3])",
    ),
];
