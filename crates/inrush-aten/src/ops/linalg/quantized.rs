//! Products of quantised matrices, whose result has another dtype than the factors.
//!
//! ```text
//! _int_mm              i8 @ i8, summed as i32, or exactly as f32
//! _scaled_mm           round((f8 @ f8) * scale_a * scale_b + bias), summed as f32
//! _weight_int8pack_mm  round((x @ w^T) * scales), w: i8 [N, K]
//! ```
//!
//! Scales are one for a matrix, or one for each row of the first and each column of the second.

use super::matmul::{checked_sizes, product};
use crate::lower::product::same_dtype;
use crate::ops::{decomposed, lowered};
use crate::props::{Library, Prop};
use crate::{Args, Builder, Call, Lower, Row, Tensor, meta};
use inrush_base::{DType, Error, Float8, Result};
use inrush_graph::{Arg, Type, ValueId};

/// Returns the type of a product of two matrices, of the dtype that is asked for.
fn product_types(call: &Call) -> Result<Vec<Type>> {
    let (a, b) = (call.tensor("self")?, call.tensor("mat2")?);
    same_dtype(a.dtype, b.dtype)?;
    if [a.rank(), b.rank()] != [2, 2] {
        return Err(Error::input("both factors must be matrices"));
    }
    let dtype = call.dtype("dtype")?.unwrap_or(a.dtype);
    let sizes = checked_sizes(call, &a.sizes, &b.sizes)?;
    meta::one(call.exprs, dtype, sizes)
}

fn lower_product<'g>(lw: &mut Lower<'g>, call: &Call<'g>) -> Result<Vec<Tensor>> {
    let (a, b) = (lw.arg(call, "self")?, lw.arg(call, "mat2")?);
    let dtype = call.dtype("dtype")?.unwrap_or(a.dtype);
    Ok(vec![product(lw, &a, &b, dtype, |_, sum, _| Ok(sum))?])
}

/// Returns `a @ b` summed in `f32`. Factors of two kinds are halves first, which hold the numbers of all kinds.
fn wide_product(b: &mut Builder, x: ValueId, y: ValueId) -> Result<ValueId> {
    let (mut x, mut y) = (x, y);
    if b.dtype(x)? != b.dtype(y)? {
        (x, y) = (b.cast(x, DType::F16)?, b.cast(y, DType::F16)?);
    }
    let args = [x.into(), y.into(), Arg::DType(DType::F32)];
    b.call("inrush.product.default", &args)
}

/// Products of two `i8` of which any sum is a whole number that `f32` has: `2^24 / 2^14`.
const EXACT: i64 = 1024;
/// Most rows whose products are sums along the columns, bound by memory.
const FEW_ROWS: i64 = 4;
/// Most sums of [`EXACT`] products that are worth it.
const MOST_SUMS: i64 = 16;

/// `a @ b` of whole numbers. `bf16` has all of `i8`, so that sums of [`EXACT`] products are those of a product of floats.
fn int_mm(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let (x, y) = (args.value("self")?, args.value("mat2")?);
    for v in [x, y] {
        if b.dtype(v)? != DType::I8 || b.rank(v)? != 2 {
            return Err(Error::unsupported("factors other than matrices of int8"));
        }
    }
    let [of_x, of_y] = [b.sizes(x)?[1], b.sizes(y)?[0]].map(|s| b.exprs.as_int(s));
    let few = b
        .exprs
        .as_int(b.sizes(x)?[0])
        .is_some_and(|m| m <= FEW_ROWS);
    let known = |k: &i64| of_y == Some(*k) && *k <= EXACT * MOST_SUMS;
    let inner = of_x.filter(known).filter(|_| !few);
    let Some(inner) = inner else {
        let args = [x.into(), y.into(), Arg::DType(DType::I32)];
        return Ok(vec![b.call("inrush.product.default", &args)?]);
    };
    let (x, y) = (b.cast(x, DType::BF16)?, b.cast(y, DType::BF16)?);
    let part = |b: &mut Builder, from: i64| -> Result<ValueId> {
        let to = (from + EXACT).min(inner);
        let mut slice = |v: ValueId, dim: i64| -> Result<ValueId> {
            let args = [dim, from, to].map(|n| b.int(n));
            b.call("aten.slice.Tensor", &[&[v.into()], &args[..]].concat())
        };
        let (x, y) = (slice(x, 1)?, slice(y, 0)?);
        let product = wide_product(b, x, y)?;
        b.cast(product, DType::I32)
    };
    let mut sum = part(b, 0)?;
    for from in (EXACT..inner).step_by(EXACT as usize) {
        let product = part(b, from)?;
        sum = b.add(sum, product)?;
    }
    Ok(vec![sum])
}

/// Returns a scale that broadcasts with the product: of one element, or a matrix of `sizes`.
fn scale(
    b: &mut Builder,
    args: &Args,
    name: &str,
    sizes: [inrush_expr::Expr; 2],
) -> Result<ValueId> {
    let v = args.value(name)?;
    let given = b.sizes(v)?;
    if b.dtype(v)? != DType::F32 {
        return Err(Error::unsupported(format!(
            "`{name}` of another dtype than float32"
        )));
    }
    if given.iter().all(|s| b.exprs.is_int(*s, 1)) {
        return b.view(v, &[]);
    }
    if given.len() == 2
        && given
            .iter()
            .zip(sizes)
            .all(|(s, t)| b.exprs.prove_eq(*s, t))
    {
        return Ok(v);
    }
    Err(Error::unsupported(format!(
        "`{name}` for blocks of the matrix"
    )))
}

fn scaled_mm(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let (x, y) = (args.value("self")?, args.value("mat2")?);
    for v in [x, y] {
        let dtype = b.dtype(v)?;
        if Float8::of(dtype).is_none() {
            return Err(Error::unsupported(format!(
                "a scaled product of {dtype} values"
            )));
        }
    }
    let out = args.dtype("out_dtype")?.unwrap_or(b.dtype(x)?);
    if args.given("scale_result") && Float8::of(out).is_some() {
        return Err(Error::unsupported(
            "`scale_result`, which CPUs divide by and GPUs multiply with",
        ));
    }
    let sum = wide_product(b, x, y)?;
    let sizes = b.sizes(sum)?;
    let one = b.exprs.int(1);
    let rows = scale(b, args, "scale_a", [sizes[0], one])?;
    let columns = scale(b, args, "scale_b", [one, sizes[1]])?;
    let by_rows = b.mul(sum, rows)?;
    let mut scaled = b.mul(by_rows, columns)?;
    if let Some(bias) = args.opt_value("bias")? {
        let bias = b.cast(bias, DType::F32)?;
        scaled = b.add(scaled, bias)?;
    }
    Ok(vec![b.cast(scaled, out)?])
}

fn int8_weights(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let (x, w) = (args.value("self")?, args.value("mat2")?);
    let dtype = b.dtype(x)?;
    if !dtype.is_float() || b.dtype(w)? != DType::I8 {
        return Err(Error::unsupported("weights of another dtype than int8"));
    }
    let w = b.cast(w, dtype)?;
    let turned = b.unary("aten.t.default", w)?;
    let sum = wide_product(b, x, turned)?;
    let scales = b.cast(args.value("scales")?, DType::F32)?;
    let scaled = b.mul(sum, scales)?;
    Ok(vec![b.cast(scaled, dtype)?])
}

pub const ROWS: &[Row] = &[
    lowered(
        "inrush.product.default",
        "(Tensor self, Tensor mat2, ScalarType dtype) -> Tensor",
        product_types,
        lower_product,
        "(f16[3,4], f16[4,5], f32)",
    ),
    decomposed(
        "aten._int_mm.default",
        "(Tensor self, Tensor mat2) -> Tensor",
        int_mm,
        "(i8[3,4], i8[4,5])",
    )
    .with(&[Prop::Library(Library::ProductWithBias), Prop::LibraryOnCpu]),
    decomposed(
        "aten._scaled_mm.default",
        "(Tensor self, Tensor mat2, Tensor scale_a, Tensor scale_b, Tensor? bias=None, Tensor? scale_result=None, ScalarType? out_dtype=None, bool use_fast_accum=False) -> Tensor",
        scaled_mm,
        "(f8e4m3fn[3,4], f8e4m3fn[4,5], f32[], f32[1], none, none, f32)",
    )
    .with(&[Prop::Library(Library::ProductWithBias)]),
    decomposed(
        "aten._weight_int8pack_mm.default",
        "(Tensor self, Tensor mat2, Tensor scales) -> Tensor",
        int8_weights,
        "(f32[3,4], i8[5,4], f32[5])",
    )
    .with(&[Prop::Library(Library::ProductWithBias)]),
];
