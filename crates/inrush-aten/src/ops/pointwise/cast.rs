//! Conversions between dtypes, and operators that only pass their input on.
//!
//! All spellings of a conversion decompose to `aten.to.dtype`, which is a load and a store:
//! widening halves at the load and rounding at the store are what [`crate::BodyBuilder`] does for
//! every buffer.
//!
//! In a functional graph a copy cannot be told from its source, so `clone`, `contiguous`, `detach`
//! and `alias` are identity views and cost nothing. Which of them share memory in eager is said by
//! their properties ([`Prop`]), for those who have to reproduce it.

use crate::props::Prop;
use crate::{Args, Builder, Call, Lower, Meta, Route, Row, Tensor, View, meta};
use inrush_base::{DType, Error, Result};
use inrush_graph::ValueId;

/// `self` as the declared dtype.
/// Returns the tensor itself if it has the dtype already.
fn convert<'g>(lw: &mut Lower<'g>, call: &Call<'g>) -> Result<Vec<Tensor>> {
    let t = lw.arg(call, "self")?;
    let to = call.out(0)?.dtype;
    if t.dtype == to {
        return Ok(vec![t]);
    }
    // The load widens and the store converts: the body between them is a plain value.
    let mut body = lw.body(&t.sizes);
    let at = body.outer();
    let v = body.load(&t, &at);
    Ok(vec![lw.store_new(body, v, to, &t.sizes)])
}

/// Other spellings of a conversion: `dtype` is where each says it.
/// An absent `dtype` keeps the input's. Devices, layouts and memory formats among the arguments
/// have no effect here.
fn to_dtype(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let x = args.value("self")?;
    let dtype = match args.dtype("dtype")? {
        Some(d) => d,
        None => b.dtype(x)?,
    };
    Ok(vec![b.cast(x, dtype)?])
}

/// The other tensor gives its dtype only.
fn to_other(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let dtype = b.dtype(args.value("other")?)?;
    Ok(vec![b.cast(args.value("self")?, dtype)?])
}

/// The view that is its source.
fn identity(c: &Call) -> Result<Vec<View>> {
    Ok(vec![View::identity(c.exprs, &c.viewed()?.sizes)])
}

/// The bits of `self` read as another dtype of equal size.
/// The stored dtype is named as the source: a load has widened a half, and its bits are not those
/// in memory any more.
fn bit_view<'g>(lw: &mut Lower<'g>, call: &Call<'g>) -> Result<Vec<Tensor>> {
    let t = lw.arg(call, "self")?;
    let to = call.out(0)?.dtype;
    if t.dtype == to {
        return Ok(vec![t]);
    }
    let mut body = lw.body(&t.sizes);
    let at = body.outer();
    let v = body.load(&t, &at);
    let v = body.bitcast(v, t.dtype, to);
    Ok(vec![lw.store_new(body, v, to, &t.sizes)])
}

/// A row whose parameter `dtype` names the result's dtype.
const fn conversion(name: &'static str, schema: &'static str, example: &'static str) -> Row {
    Row {
        name,
        schema,
        meta: Meta::Route,
        route: Route::Decompose(to_dtype),
        example,
        props: &[Prop::Converts],
    }
}

/// A row whose result is its first argument.
const fn same(name: &'static str, schema: &'static str, example: &'static str) -> Row {
    Row {
        name,
        schema,
        meta: Meta::Route,
        route: Route::View(identity),
        example,
        props: &[],
    }
}

/// Refuses a view that would change the last dimension's size.
fn same_size(from: DType, to: DType) -> Result<()> {
    if from.size() == to.size() {
        return Ok(());
    }
    Err(Error::unsupported(format!(
        "a view of {from} as {to}, which has another size"
    )))
}

pub const ROWS: &[Row] = &[
    Row {
        name: "aten.to.dtype",
        schema: "(Tensor(a) self, ScalarType dtype, bool non_blocking=False, bool copy=False, MemoryFormat? memory_format=None) -> Tensor(a)",
        meta: Meta::Fn(|c| {
            let t = c.tensor("self")?;
            let dtype = c.dtype("dtype")?.unwrap_or(t.dtype);
            meta::one(c.exprs, dtype, t.sizes.clone())
        }),
        route: Route::Lower(convert),
        example: "(f32[3], i64)",
        props: &[],
    },
    conversion(
        "aten.to.dtype_layout",
        "(Tensor(a) self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, bool non_blocking=False, bool copy=False, MemoryFormat? memory_format=None) -> Tensor(a)",
        "(i64[3], dtype=f16)",
    ),
    conversion(
        "aten.to.device",
        "(Tensor(a) self, Device device, ScalarType dtype, bool non_blocking=False, bool copy=False, MemoryFormat? memory_format=None) -> Tensor(a)",
        "(bool[3], \"cpu\", f32)",
    ),
    conversion(
        "aten._to_copy.default",
        "(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, bool non_blocking=False, MemoryFormat? memory_format=None) -> Tensor",
        "(f64[3], dtype=f32)",
    ),
    conversion(
        "prims.convert_element_type.default",
        "(Tensor self, ScalarType dtype) -> Tensor",
        "(f32[3], u8)",
    ),
    Row {
        name: "aten.to.other",
        schema: "(Tensor(a) self, Tensor other, bool non_blocking=False, bool copy=False, MemoryFormat? memory_format=None) -> Tensor(a)",
        meta: Meta::Route,
        route: Route::Decompose(to_other),
        example: "(f32[3], i64[])",
        props: &[],
    },
    Row {
        name: "aten.type_as.default",
        schema: "(Tensor self, Tensor other) -> Tensor",
        meta: Meta::Route,
        route: Route::Decompose(to_other),
        example: "(i64[3], f32[2])",
        props: &[],
    },
    Row {
        name: "aten.view.dtype",
        schema: "(Tensor self, ScalarType dtype) -> Tensor",
        meta: Meta::Fn(|c| {
            let t = c.tensor("self")?;
            let dtype = c.dtype("dtype")?.unwrap_or(t.dtype);
            same_size(t.dtype, dtype)?;
            meta::one(c.exprs, dtype, t.sizes.clone())
        }),
        route: Route::Lower(bit_view),
        example: "(f32[3], i32)",
        props: &[Prop::Bitcasts],
    },
    same(
        "aten.clone.default",
        "(Tensor self, *, MemoryFormat? memory_format=None) -> Tensor",
        "(f32[2,3])",
    ),
    same(
        "aten.contiguous.default",
        "(Tensor(a) self, *, MemoryFormat memory_format=contiguous_format) -> Tensor(a)",
        "(f32[2,3])",
    )
    .with(&[Prop::MayAlias]),
    same(
        "aten.alias.default",
        "(Tensor(a) self) -> Tensor(a)",
        "(f32[2,3])",
    )
    .with(&[Prop::Alias]),
    same(
        "aten.alias_copy.default",
        "(Tensor self) -> Tensor",
        "(f32[2,3])",
    ),
    same(
        "aten.detach.default",
        "(Tensor(a) self) -> Tensor(a)",
        "(f32[2,3])",
    )
    .with(&[Prop::Alias]),
    same(
        "aten.detach_copy.default",
        "(Tensor self) -> Tensor",
        "(f32[2,3])",
    ),
    same("aten.lift.default", "(Tensor self) -> Tensor", "(f32[2,3])"),
    same(
        "aten.lift_fresh.default",
        "(Tensor(a) self) -> Tensor(a)",
        "(f32[2,3])",
    ),
    same(
        "aten.lift_fresh_copy.default",
        "(Tensor self) -> Tensor",
        "(f32[2,3])",
    ),
    same(
        "aten.positive.default",
        "(Tensor(a) self) -> Tensor(a)",
        "(f32[3])",
    )
    .with(&[Prop::Alias]),
    same(
        "aten.resolve_conj.default",
        "(Tensor(a) self) -> Tensor(a)",
        "(f32[3])",
    )
    .with(&[Prop::Alias]),
    same(
        "aten.resolve_neg.default",
        "(Tensor(a) self) -> Tensor(a)",
        "(f32[3])",
    )
    .with(&[Prop::Alias]),
];
