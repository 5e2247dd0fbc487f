//! Tensors made from numbers: fills, ranges, triangles.
//!
//! Fills and ranges read no memory: bodies of constants or of index arithmetic, which
//! inlining can put into their consumers. Triangles and diagonals read `self` under a mask of
//! row and column. dtype and size are found in `meta`: the dtype that the call asks for, else
//! that of the fill value, of `self`, or the default float `f32`.
//!
//! Values reproduce eager's arithmetic where that is visible. `arange` multiplies rather than
//! adds up steps, in `f64` for floats. `linspace` counts from the nearer end.

use crate::ops::lowered;
use crate::props::Prop;
use crate::{Call, Lower, Operand, Processor, Row, Tensor, meta};
use inrush_base::{DType, Error, Result, Scalar};
use inrush_expr::Expr;
use inrush_graph::Type;
use inrush_loops::{ScalarOp as S, StmtId};

/// The fill value of a tensor: an argument, or a constant of the operator.
/// `Arg` names the parameter whose number fills.
#[derive(Copy, Clone)]
enum Fill {
    Zero,
    One,
    Arg(&'static str),
}

/// The dtype asked for, else `default`.
fn asked(c: &Call, default: DType) -> Result<DType> {
    Ok(match c.op.schema().position("dtype") {
        Some(_) => c.dtype("dtype")?.unwrap_or(default),
        None => default,
    })
}

/// Refuses a size that is negative for sure; one that may be negative passes.
fn nonnegative(c: &Call, sizes: &[Expr]) -> Result<()> {
    match sizes.iter().find(|s| c.exprs.range(**s).hi < 0) {
        Some(s) => Err(Error::input(format!("negative size {}", c.exprs.show(*s)))),
        None => Ok(()),
    }
}

/// The dtype that a number argument has by itself.
fn number_dtype(c: &Call, name: &str) -> Result<DType> {
    Ok(match c.operand(name)? {
        Some(Operand::Scalar(s)) => s.default_dtype(),
        Some(Operand::Int(_)) => DType::I64,
        _ => DType::F32,
    })
}

/// Sizes from `size`, dtype asked for or by default.
fn fresh_meta(c: &Call) -> Result<Vec<Type>> {
    let sizes = c.ints("size")?.to_vec();
    nonnegative(c, &sizes)?;
    let default = if c.op.schema().position("fill_value").is_some() {
        number_dtype(c, "fill_value")?
    } else {
        DType::F32
    };
    meta::one(c.exprs, asked(c, default)?, sizes)
}

/// Sizes from `size`, dtype asked for or that of `self`.
fn new_meta(c: &Call) -> Result<Vec<Type>> {
    let sizes = c.ints("size")?.to_vec();
    nonnegative(c, &sizes)?;
    meta::one(c.exprs, asked(c, c.tensor("self")?.dtype)?, sizes)
}

/// Sizes and, unless another is asked for, dtype of `self`.
fn like_meta(c: &Call) -> Result<Vec<Type>> {
    let t = c.tensor("self")?;
    meta::one(c.exprs, asked(c, t.dtype)?, t.sizes.clone())
}

/// Every element gets one value: a body of a constant and a store.
fn fill<'g>(lw: &mut Lower<'g>, call: &Call<'g>, fill: Fill) -> Result<Vec<Tensor>> {
    let t = call.out(0)?;
    let mut body = lw.body(&t.sizes);
    let value = match fill {
        Fill::Zero => body.constant(Scalar::Int(0), t.dtype),
        Fill::One => body.constant(Scalar::Int(1), t.dtype),
        Fill::Arg(name) => match call.operand(name)? {
            Some(operand) => lw.operand(&mut body, operand, t.dtype)?,
            None => return Err(Error::input(format!("argument `{name}` is missing"))),
        },
    };
    Ok(vec![lw.store_new(body, value, t.dtype, &t.sizes)])
}

/// A bound of a range: an integer that may be symbolic, or a float.
enum Bound {
    Int(Expr),
    Float(f64),
}

/// Returns `default` if the schema has no such parameter or the call leaves it out.
fn bound(c: &Call, name: &str, default: i64) -> Result<Bound> {
    if c.op.schema().position(name).is_none() {
        return Ok(Bound::Int(c.exprs.int(default)));
    }
    Ok(match c.operand(name)? {
        None => Bound::Int(c.exprs.int(default)),
        Some(Operand::Int(e)) => Bound::Int(e),
        Some(Operand::Scalar(Scalar::Float(f))) => Bound::Float(f),
        Some(Operand::Scalar(s)) => Bound::Int(c.exprs.int(s.as_i64())),
        Some(Operand::Tensor(_)) => return Err(c.unsupported(name, "a number")),
    })
}

/// Returns a bound of a range that counts in floats.
///
/// # Errors
///
/// If the bound is symbolic: the number of steps of a float range must be known.
fn as_float(c: &Call, b: &Bound) -> Result<f64> {
    match b {
        Bound::Float(f) => Ok(*f),
        Bound::Int(e) => c
            .exprs
            .as_int(*e)
            .map(|i| i as f64)
            .ok_or_else(|| Error::unsupported("a range of floats with a symbolic bound")),
    }
}

/// The length is `ceil((end - start) / step)`, in integers as long as all three are integers,
/// which may be symbolic then. Other lengths are computed in `f64`, as eager does.
fn arange_meta(c: &Call) -> Result<Vec<Type>> {
    let (mut start, mut end, mut step) = (
        bound(c, "start", 0)?,
        bound(c, "end", 0)?,
        bound(c, "step", 1)?,
    );
    if asked(c, DType::F32)? == DType::I64 {
        // Of this dtype alone the length is that of the range in whole numbers.
        (start, end, step) = (whole(start), whole(end), whole(step));
    }
    let e = c.exprs;
    let (len, natural) = match (&start, &end, &step) {
        (Bound::Int(a), Bound::Int(b), Bound::Int(s)) => {
            let (num, den) = match e.as_int(*s) {
                Some(s) if s > 0 => (e.sub(*b, *a), s),
                // A step downwards counts from the end up: both differences and steps change
                // sign.
                Some(s) if s < 0 && s != i64::MIN => (e.sub(*a, *b), -s),
                _ => return Err(c.unsupported("step", "a constant other than 0")),
            };
            // PyTorch refuses bounds that the step leads away from.
            if e.range(num).hi < 0 {
                return Err(Error::input("a range whose end lies behind its start"));
            }
            (e.ceildiv(e.max(num, e.int(0)), e.int(den)), DType::I64)
        }
        _ => {
            let (a, b, s) = (
                as_float(c, &start)?,
                as_float(c, &end)?,
                as_float(c, &step)?,
            );
            let len = ((b - a) / s).ceil();
            // NaN, infinite and negative lengths fail here; none of 1e15 elements would fit
            // into memory.
            if !(0.0..1e15).contains(&len) {
                return Err(Error::input("a range that has no length"));
            }
            (e.int(len as i64), DType::F32)
        }
    };
    meta::one(e, asked(c, natural)?, vec![len])
}

/// Element `i` is `start + i * step`: in integers if start and step are integers, else in
/// `f64`.
fn arange<'g>(lw: &mut Lower<'g>, call: &Call<'g>) -> Result<Vec<Tensor>> {
    let t = call.out(0)?;
    let (start, step) = (bound(call, "start", 0)?, bound(call, "step", 1)?);
    let mut body = lw.body(&t.sizes);
    let i = body.outer()[0];
    // Ranges of integers count in whole steps from a whole number, whatever was given.
    let (start, step) = match t.dtype.is_float() {
        true => (start, step),
        false => (whole(start), whole(step)),
    };
    let value = match (&start, &step) {
        (Bound::Int(a), Bound::Int(s)) => {
            let e = body.exprs;
            body.index_value(e.add(*a, e.mul(i, *s)))
        }
        _ => {
            let (a, s) = (as_float(call, &start)?, as_float(call, &step)?);
            let i = body.index_value(i);
            let i = body.cast(i, DType::F64);
            let (a, s) = (body.float(a, DType::F64), body.float(s, DType::F64));
            let scaled = body.op(S::Mul, &[i, s]);
            body.op(S::Add, &[a, scaled])
        }
    };
    let value = body.cast(value, t.dtype);
    Ok(vec![lw.store_new(body, value, t.dtype, &t.sizes)])
}

/// A bound without its fraction.
fn whole(b: Bound) -> Bound {
    match b {
        Bound::Float(f) => Bound::Float(f.trunc()),
        b => b,
    }
}

fn linspace_meta(c: &Call) -> Result<Vec<Type>> {
    let steps = c.int("steps")?;
    nonnegative(c, &[steps])?;
    meta::one(c.exprs, asked(c, DType::F32)?, vec![steps])
}

/// Counted from the nearer end, so that both ends are exact.
fn linspace<'g>(lw: &mut Lower<'g>, call: &Call<'g>) -> Result<Vec<Tensor>> {
    let t = call.out(0)?;
    let (mut start, mut end) = (call.float("start")?, call.float("end")?);
    if !t.dtype.is_float() {
        (start, end) = (start.trunc(), end.trunc());
    }
    let steps = call.const_int("steps")?;
    let dtype = if t.dtype.is_float() {
        t.dtype.compute()
    } else {
        DType::F64
    };
    // Eager's kernel for CPUs stores the ends and each of its steps in the dtype of halves.
    let stored = match lw.processor {
        Processor::Cpu if t.dtype.is_float() => t.dtype,
        _ => dtype,
    };
    let rounded = |v: f64| Scalar::Float(v).convert(stored).as_f64();
    (start, end) = (rounded(start), rounded(end));
    // Each operation is rounded on its own, as eager's scalar arithmetic in that dtype.
    let step = if steps > 1 {
        rounded(rounded(end - start) / rounded((steps - 1) as f64))
    } else {
        0.0
    };
    let mut body = lw.body(&t.sizes);
    let e = body.exprs;
    let i = body.outer()[0];
    let here = body.index_value(i);
    let back = body.index_value(e.sub(e.int(steps - 1), i));
    // Elements before the middle count up from the start, the others down from the end.
    let half = body.index_value(e.int(steps / 2));
    let first_half = body.op(S::Lt, &[here, half]);
    let step = body.float(step, dtype);
    let (a, b) = (body.float(start, dtype), body.float(end, dtype));
    let (here, back) = (body.cast(here, stored), body.cast(back, stored));
    let up = body.op(S::Mul, &[here, step]);
    let up = body.cast(up, stored);
    let up = body.op(S::Add, &[a, up]);
    let down = body.op(S::Mul, &[back, step]);
    let down = body.cast(down, stored);
    let down = body.op(S::Sub, &[b, down]);
    let v = match steps {
        // A single element is the start.
        1 => a,
        _ => body.select(first_half, up, down),
    };
    let v = body.cast(v, t.dtype);
    Ok(vec![lw.store_new(body, v, t.dtype, &t.sizes)])
}

/// Compares row and column of the last two dimensions, moved by `diagonal`.
fn by_diagonal(body: &mut crate::BodyBuilder, op: S, diagonal: i64) -> StmtId {
    let e = body.exprs;
    let at = body.outer();
    let (row, column) = (at[at.len() - 2], at[at.len() - 1]);
    let (row, column) = (
        body.index_value(e.add(row, e.int(diagonal))),
        body.index_value(column),
    );
    body.op(op, &[column, row])
}

fn eye_meta(c: &Call) -> Result<Vec<Type>> {
    let n = c.int("n")?;
    let m = match c.op.schema().position("m") {
        Some(_) => c.int("m")?,
        None => n,
    };
    nonnegative(c, &[n, m])?;
    meta::one(c.exprs, asked(c, DType::F32)?, vec![n, m])
}

/// 1 where row and column are equal: the comparison itself, converted.
fn eye<'g>(lw: &mut Lower<'g>, call: &Call<'g>) -> Result<Vec<Tensor>> {
    let t = call.out(0)?;
    let mut body = lw.body(&t.sizes);
    let on = by_diagonal(&mut body, S::Eq, 0);
    let v = body.cast(on, t.dtype);
    Ok(vec![lw.store_new(body, v, t.dtype, &t.sizes)])
}

/// `self` where the comparison of column with row holds, 0 elsewhere.
fn triangle<'g>(lw: &mut Lower<'g>, call: &Call<'g>, op: S) -> Result<Vec<Tensor>> {
    let t = lw.arg(call, "self")?;
    if t.sizes.len() < 2 {
        return Err(Error::input("a triangle needs two dimensions"));
    }
    let diagonal = call.const_int("diagonal")?;
    let mut body = lw.body(&t.sizes);
    let at = body.outer();
    let inside = by_diagonal(&mut body, op, diagonal);
    let v = body.load_masked(&t, &at, inside, Scalar::Int(0));
    Ok(vec![lw.store_new(body, v, t.dtype, &t.sizes)])
}

/// The last dimension on a diagonal of two.
fn diag_embed_meta(c: &Call) -> Result<Vec<Type>> {
    let t = c.tensor("self")?;
    let (d1, d2) = (c.dim("dim1", t.rank() + 1)?, c.dim("dim2", t.rank() + 1)?);
    if t.rank() == 0 || d1 == d2 {
        return Err(Error::input("a diagonal needs two dimensions"));
    }
    let offset = c.const_int("offset")?.abs();
    let n = c.exprs.add(t.sizes[t.rank() - 1], c.exprs.int(offset));
    let mut sizes = t.sizes[..t.rank() - 1].to_vec();
    let (low, high) = (d1.min(d2), d1.max(d2));
    sizes.insert(low, n);
    sizes.insert(high, n);
    meta::one(c.exprs, t.dtype, sizes)
}

/// Reads element `r` of the source where row and column, moved by the offset, are both `r`,
/// and gives 0 elsewhere.
fn diag_embed<'g>(lw: &mut Lower<'g>, call: &Call<'g>) -> Result<Vec<Tensor>> {
    let t = lw.arg(call, "self")?;
    let sizes = call.out(0)?.sizes.clone();
    let rank = sizes.len();
    let (d1, d2) = (call.dim("dim1", rank)?, call.dim("dim2", rank)?);
    let offset = call.const_int("offset")?;
    let mut body = lw.body(&sizes);
    let e = body.exprs;
    let at = body.outer();
    let row = e.add(at[d1], e.int(offset.min(0)));
    // Moved back along one of the two dimensions, so that both coordinates count the
    // diagonal.
    let column = e.sub(at[d2], e.int(offset.max(0)));
    let mut there: Vec<Expr> = (0..rank)
        .filter(|d| *d != d1 && *d != d2)
        .map(|d| at[d])
        .collect();
    there.push(row);
    let (r, c, zero) = (
        body.index_value(row),
        body.index_value(column),
        body.index_value(e.int(0)),
    );
    let same = body.op(S::Eq, &[r, c]);
    let inside = body.op(S::Ge, &[r, zero]);
    let mask = body.op(S::And, &[same, inside]);
    let v = body.load_masked(&t, &there, mask, Scalar::Int(0));
    Ok(vec![lw.store_new(body, v, t.dtype, &sizes)])
}

/// Parameters that say where and how a tensor is made.
macro_rules! factory {
    ($params:literal) => {
        concat!(
            "(",
            $params,
            ", *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor"
        )
    };
}

/// The same with a memory format.
macro_rules! like {
    ($params:literal) => {
        concat!(
            "(",
            $params,
            ", *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor"
        )
    };
}

pub const ROWS: &[Row] = &[
    lowered(
        "aten.zeros.default",
        factory!("SymInt[] size"),
        fresh_meta,
        |l, c| fill(l, c, Fill::Zero),
        "([2,3])",
    ),
    lowered(
        "aten._efficientzerotensor.default",
        factory!("SymInt[] size"),
        fresh_meta,
        |l, c| fill(l, c, Fill::Zero),
        "([2,3])",
    ),
    lowered(
        "aten.ones.default",
        factory!("SymInt[] size"),
        fresh_meta,
        |l, c| fill(l, c, Fill::One),
        "([s0,3], dtype=i64)",
    ),
    lowered(
        "aten.full.default",
        factory!("SymInt[] size, Scalar fill_value"),
        fresh_meta,
        |l, c| fill(l, c, Fill::Arg("fill_value")),
        "([2,3], -inf)",
    ),
    // What an empty tensor holds is anybody's guess; zeros are reproducible.
    lowered(
        "aten.empty.memory_format",
        like!("SymInt[] size"),
        fresh_meta,
        |l, c| fill(l, c, Fill::Zero),
        "([2,3])",
    )
    .with(&[Prop::Uninitialized]),
    lowered(
        "aten.empty_permuted.default",
        factory!("SymInt[] size, int[] physical_layout"),
        fresh_meta,
        |l, c| fill(l, c, Fill::Zero),
        "([2,3], [1,0])",
    )
    .with(&[Prop::Uninitialized]),
    lowered(
        "aten.empty_strided.default",
        factory!("SymInt[] size, SymInt[] stride"),
        fresh_meta,
        |l, c| fill(l, c, Fill::Zero),
        "([2,3], [3,1])",
    )
    .with(&[Prop::Uninitialized]),
    lowered(
        "aten.zeros_like.default",
        like!("Tensor self"),
        like_meta,
        |l, c| fill(l, c, Fill::Zero),
        "(f32[2,3])",
    ),
    lowered(
        "aten.ones_like.default",
        like!("Tensor self"),
        like_meta,
        |l, c| fill(l, c, Fill::One),
        "(f32[2,3], dtype=bool)",
    ),
    lowered(
        "aten.empty_like.default",
        like!("Tensor self"),
        like_meta,
        |l, c| fill(l, c, Fill::Zero),
        "(f32[2,3])",
    )
    .with(&[Prop::Uninitialized]),
    lowered(
        "aten.full_like.default",
        like!("Tensor self, Scalar fill_value"),
        like_meta,
        |l, c| fill(l, c, Fill::Arg("fill_value")),
        "(f16[2,3], 0.1)",
    ),
    lowered(
        "aten.new_zeros.default",
        factory!("Tensor self, SymInt[] size"),
        new_meta,
        |l, c| fill(l, c, Fill::Zero),
        "(i64[2], [3])",
    ),
    lowered(
        "aten.new_ones.default",
        factory!("Tensor self, SymInt[] size"),
        new_meta,
        |l, c| fill(l, c, Fill::One),
        "(i64[2], [], dtype=bool)",
    ),
    lowered(
        "aten.new_empty.default",
        factory!("Tensor self, SymInt[] size"),
        new_meta,
        |l, c| fill(l, c, Fill::Zero),
        "(f32[2], [3])",
    )
    .with(&[Prop::Uninitialized]),
    lowered(
        "aten.new_empty_strided.default",
        factory!("Tensor self, SymInt[] size, SymInt[] stride"),
        new_meta,
        |l, c| fill(l, c, Fill::Zero),
        "(f32[2], [3], [1])",
    )
    .with(&[Prop::Uninitialized]),
    lowered(
        "aten.new_full.default",
        factory!("Tensor self, SymInt[] size, Scalar fill_value"),
        new_meta,
        |l, c| fill(l, c, Fill::Arg("fill_value")),
        "(f32[2], [3], 7)",
    ),
    lowered(
        "aten.scalar_tensor.default",
        factory!("Scalar s"),
        |c| {
            let dtype = asked(c, DType::F32)?;
            meta::one(c.exprs, dtype, Vec::new())
        },
        |l, c| fill(l, c, Fill::Arg("s")),
        "(3, dtype=i64)",
    )
    .with(&[Prop::Scalar]),
    lowered(
        "aten.arange.default",
        factory!("Scalar end"),
        arange_meta,
        arange,
        "(7)",
    ),
    lowered(
        "aten.arange.start",
        factory!("Scalar start, Scalar end"),
        arange_meta,
        arange,
        "(2, s0, dtype=f32)",
    ),
    lowered(
        "aten.arange.start_step",
        factory!("Scalar start, Scalar end, Scalar step=1"),
        arange_meta,
        arange,
        "(1.0, 0.0, -0.3)",
    ),
    lowered(
        "aten.linspace.default",
        factory!("Scalar start, Scalar end, int steps"),
        linspace_meta,
        linspace,
        "(-1, 2, 7)",
    ),
    lowered(
        "aten.eye.default",
        factory!("SymInt n"),
        eye_meta,
        eye,
        "(3)",
    ),
    lowered(
        "aten.eye.m",
        factory!("SymInt n, SymInt m"),
        eye_meta,
        eye,
        "(2, 4, dtype=bool)",
    ),
    lowered(
        "aten.tril.default",
        "(Tensor self, int diagonal=0) -> Tensor",
        like_meta,
        |l, c| triangle(l, c, S::Le),
        "(f32[3,4], 1)",
    ),
    lowered(
        "aten.triu.default",
        "(Tensor self, int diagonal=0) -> Tensor",
        like_meta,
        |l, c| triangle(l, c, S::Ge),
        "(bool[2,3,4], 1)",
    ),
    lowered(
        "aten.diag_embed.default",
        "(Tensor self, int offset=0, int dim1=-2, int dim2=-1) -> Tensor",
        diag_embed_meta,
        diag_embed,
        "(f32[2,3], 1)",
    ),
];
