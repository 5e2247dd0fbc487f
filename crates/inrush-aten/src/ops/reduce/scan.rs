//! Running sums and products, and differences.
//!
//! A scan is a statement of its own (`Stmt::Scan`) over the body's last axis, which makes that axis
//! sequential. All other dimensions are parallel axes, whatever their order in the tensor.

use crate::{Args, BodyBuilder, Builder, Call, Lower, Meta, Route, Row, Tensor, meta};
use inrush_base::{DType, Error, Result};
use inrush_graph::{Arg, Type, ValueId};
use inrush_loops::{ReduceOp, ScalarOp, StmtId};

/// Integers and bools are summed as `i64`.
fn scan_meta(c: &Call) -> Result<Vec<Type>> {
    let t = c.tensor("self")?;
    c.dim("dim", t.rank())?;
    let dtype = match c.dtype("dtype")? {
        Some(d) => d,
        None if t.dtype.is_float() => t.dtype,
        None => DType::I64,
    };
    meta::one(c.exprs, dtype, t.sizes.clone())
}

/// Returns a value with +0 in place of -0, as the logarithm of a sum of exponentials gives it.
fn positive_zero(body: &mut BodyBuilder, v: StmtId) -> StmtId {
    let zero = body.float(0.0, body.dtype(v));
    body.op(ScalarOp::Add, &[v, zero])
}

/// Converts before it scans, so that the running value has the result's dtype.
fn scan<'g>(lw: &mut Lower<'g>, call: &Call<'g>, op: ReduceOp) -> Result<Vec<Tensor>> {
    let t = lw.arg(call, "self")?;
    let dtype = call.out(0)?.dtype;
    let d = call.dim("dim", t.sizes.len())?;
    // The axis of the scan comes last; a zero-dimensional tensor has one of size 1.
    // Coordinates keep the source's order; only the axis numbers change.
    let mut outer = t.sizes.clone();
    let along = if outer.is_empty() {
        lw.exprs.int(1)
    } else {
        outer.remove(d)
    };
    let mut body = lw.body(&outer);
    let mut at = body.outer();
    let along = body.reduce_axes(&[along]);
    if !t.sizes.is_empty() {
        at.insert(d, along[0]);
    }
    let v = body.load(&t, &at);
    let v = if t.dtype == dtype {
        v
    } else {
        body.cast(v, dtype)
    };
    let v = match (op, dtype) {
        // As eager has it.
        // Eager's running value is a double.
        (ReduceOp::LogSumExp, DType::F32) => {
            let wide = body.cast(v, DType::F64);
            let v = positive_zero(&mut body, wide);
            let v = body.scan(op, v);
            body.cast(v, dtype)
        }
        (ReduceOp::LogSumExp, _) => {
            let v = positive_zero(&mut body, v);
            body.scan(op, v)
        }
        _ => body.scan(op, v),
    };
    let out = lw.temp(dtype, &t.sizes);
    body.store(out.buf, &at, v);
    lw.push(body);
    Ok(vec![out])
}

/// Floats only; there is no `dtype` parameter.
fn logcumsumexp_meta(c: &Call) -> Result<Vec<Type>> {
    let t = c.tensor("self")?;
    c.dim("dim", t.rank())?;
    if !t.dtype.is_float() {
        return Err(Error::input(format!(
            "there is no logcumsumexp of {}",
            t.dtype
        )));
    }
    meta::one(c.exprs, t.dtype, t.sizes.clone())
}

/// Differences of neighbours, `n` times over.
fn diff(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let mut x = args.value("self")?;
    let n = args.const_int("n")?;
    if !(0..=64).contains(&n) {
        return Err(args.unsupported("n", "between 0 and 64"));
    }
    let rank = b.rank(x)?;
    if rank == 0 {
        return Err(Error::input("differences of a zero-dimensional tensor"));
    }
    let dim = args.dim("dim", rank)?;
    let d = b.int(dim as i64);
    // They are joined once, ahead of the first round.
    if n > 0 && (args.given("prepend") || args.given("append")) {
        let parts: Vec<ValueId> = [
            args.opt_value("prepend")?,
            Some(x),
            args.opt_value("append")?,
        ]
        .into_iter()
        .flatten()
        .collect();
        x = b.call("aten.cat.default", &[parts.into(), d.clone()])?;
    }
    // Bools cannot be subtracted: neighbours differ or not.
    let op = if b.dtype(x)? == DType::Bool {
        "aten.logical_xor.default"
    } else {
        "aten.sub.Tensor"
    };
    // Each round shortens the dimension by one; a dimension that is too short ends empty.
    for _ in 0..n {
        let later = b.call("aten.slice.Tensor", &[x.into(), d.clone(), b.int(1)])?;
        let earlier = b.call(
            "aten.slice.Tensor",
            &[x.into(), d.clone(), b.int(0), b.int(-1)],
        )?;
        x = b.call(op, &[later.into(), Arg::Value(earlier)])?;
    }
    Ok(vec![x])
}

pub const ROWS: &[Row] = &[
    Row {
        name: "aten.cumsum.default",
        schema: "(Tensor self, int dim, *, ScalarType? dtype=None) -> Tensor",
        meta: Meta::Fn(scan_meta),
        route: Route::Lower(|lw, c| scan(lw, c, ReduceOp::Sum)),
        example: "(bool[2,5], -1)",
        props: &[],
    },
    Row {
        name: "aten.cumprod.default",
        schema: "(Tensor self, int dim, *, ScalarType? dtype=None) -> Tensor",
        meta: Meta::Fn(scan_meta),
        route: Route::Lower(|lw, c| scan(lw, c, ReduceOp::Prod)),
        example: "(f32[3,4], 0)",
        props: &[],
    },
    Row {
        name: "aten.logcumsumexp.default",
        schema: "(Tensor self, int dim) -> Tensor",
        meta: Meta::Fn(logcumsumexp_meta),
        route: Route::Lower(|lw, c| scan(lw, c, ReduceOp::LogSumExp)),
        example: "(f32[3,4], 1)",
        props: &[],
    },
    Row {
        name: "aten.diff.default",
        schema: "(Tensor self, int n=1, int dim=-1, Tensor? prepend=None, Tensor? append=None) -> Tensor",
        meta: Meta::Route,
        route: Route::Decompose(diff),
        example: "(i64[2,5], 1, -1, i64[2,1])",
        props: &[],
    },
];
