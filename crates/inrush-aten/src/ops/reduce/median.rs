//! Order statistics: medians, modes.
//!
//! Rows are sorted whole, then one element is gathered at a position that is computed per row. A
//! selection would do with `O(n)` steps, but a sort is an operator that exists on all devices, and
//! it gives the index as well.
//!
//! Sorting puts NaN last: `numbers = n - count(NaN)` is the position of the first NaN of a row.

use crate::ops::decomposed as row;
use crate::props::{Prop, SortAxis};
use crate::{Args, Builder, Row};
use inrush_base::{DType, Error, Result};
use inrush_graph::{Arg, ValueId};

/// A row's values in order and where they came from, the dimension last; `x` itself is moved the same way.
/// All three have the same sizes.
struct Sorted {
    x: ValueId,
    values: ValueId,
    indices: ValueId,
}

/// Moves `dim` to the end and sorts along it.
fn sorted(b: &mut Builder, x: ValueId, dim: i64) -> Result<Sorted> {
    let (dim, last) = (b.int(dim), b.int(-1));
    let x = b.call("aten.movedim.int", &[x.into(), dim, last.clone()])?;
    let s = b.call_multi("aten.sort.default", &[x.into(), last])?;
    Ok(Sorted {
        x,
        values: s[0],
        indices: s[1],
    })
}

/// The lower of the middle two. A NaN is the median of its row, unless the operator passes over NaN.
/// Of `n` elements it is number `(n - 1) / 2` in order. With `skip_nan` the number of those that
/// are not NaN takes the place of `n`. Returns values and indices without the last dimension.
fn medians(b: &mut Builder, s: &Sorted, skip_nan: bool) -> Result<Vec<ValueId>> {
    let t = b.tensor(s.x)?;
    let n = *t
        .sizes
        .last()
        .ok_or_else(|| Error::internal("a row without a dimension"))?;
    if b.exprs.range(n).lo < 1 {
        return Err(Error::unsupported("the median of a row that may be empty"));
    }
    let last = b.int(-1);
    let middle = b
        .exprs
        .floordiv(b.exprs.sub(n, b.exprs.int(1)), b.exprs.int(2));
    let dims = b.ints(&[-1]);
    let nan = match t.dtype.is_float() {
        true => Some(b.unary("aten.isnan.default", s.x)?),
        false => None,
    };
    let mut lead = t.sizes.clone();
    *lead.last_mut().ok_or_else(|| Error::internal("no size"))? = b.exprs.int(1);
    let at = match nan {
        Some(nan) => {
            // NaN is sorted last, so that the first of them follows the numbers.
            let count = b.call("aten.sum.dim_IntList", &[nan.into(), dims, true.into()])?;
            let minus = b.unary("aten.neg.default", count)?;
            let numbers = b.add(minus, n)?;
            if skip_nan {
                let less = b.call("aten.sub.Tensor", &[numbers.into(), b.int(1)])?;
                // A row of nothing but NaN: its first element, a NaN.
                let none = b.call("aten.clamp_min.default", &[less.into(), b.int(0)])?;
                b.call(
                    "aten.div.Tensor_mode",
                    &[none.into(), b.int(2), Arg::Str("floor".into())],
                )?
            } else {
                let any = b.call("aten.gt.Scalar", &[count.into(), b.int(0)])?;
                let middle = b.call("aten.full.default", &[lead.into(), middle.into()])?;
                b.select(any, numbers, middle)?
            }
        }
        None => b.call("aten.full.default", &[lead.into(), middle.into()])?,
    };
    let mut out = Vec::new();
    for v in [s.values, s.indices] {
        let v = b.call("aten.gather.default", &[v.into(), last.clone(), at.into()])?;
        out.push(b.call("aten.squeeze.dim", &[v.into(), last.clone()])?);
    }
    Ok(out)
}

/// Without `dim` the median of all elements, and no index.
fn median(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let x = args.value("self")?;
    let skip = args.op.row.name.contains("nanmedian");
    let rank = b.rank(x)?;
    if args.op.schema().position("dim").is_none() {
        let flat = b.call("aten.view.default", &[x.into(), b.ints(&[-1])])?;
        let s = sorted(b, flat, -1)?;
        return Ok(vec![medians(b, &s, skip)?[0]]);
    }
    let dim = args.dim("dim", rank)? as i64;
    // A number is its own median, at index 0.
    if rank == 0 {
        let zero = b.full(&[], 0.0, DType::I64)?;
        return Ok(vec![b.unary("aten.clone.default", x)?, zero]);
    }
    let s = sorted(b, x, dim)?;
    let out = medians(b, &s, skip)?;
    kept(b, args, out, dim)
}

/// The results with the dimension as one of size 1, where the call keeps it.
fn kept(b: &mut Builder, args: &Args, out: Vec<ValueId>, dim: i64) -> Result<Vec<ValueId>> {
    if !args.bool("keepdim")? {
        return Ok(out);
    }
    out.into_iter()
        .map(|v| b.call("aten.unsqueeze.default", &[v.into(), b.int(dim)]))
        .collect()
}

/// The value that is there most often, the smallest of several, and where it stands last.
/// ```text
/// values   1 1 2 2 2 5        places   0 1 2 3 4 5
/// starts   t f t f f t        begin    0 0 2 2 2 5       length = places - begin
/// ```
///
/// The longest run has the greatest `length`, at its last place; `argmax` takes the first of
/// several, which is the smallest value.
fn mode(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let x = args.value("self")?;
    let rank = b.rank(x)?;
    let dim = args.dim("dim", rank)? as i64;
    if rank == 0 {
        let zero = b.full(&[], 0.0, DType::I64)?;
        return Ok(vec![b.unary("aten.clone.default", x)?, zero]);
    }
    let s = sorted(b, x, dim)?;
    let t = b.tensor(s.x)?;
    let n = t.sizes[rank - 1];
    if b.exprs.range(n).lo < 1 {
        return Err(Error::unsupported("the mode of a row that may be empty"));
    }
    let last = b.int(-1);
    // Where each run of equal values begins: at the first place, and where a value differs from the one before.
    let (one, zero) = (b.exprs.int(1), b.exprs.int(0));
    // Number of pairs of neighbours.
    let rest = b.exprs.sub(n, one);
    let before = b.narrow(s.values, rank - 1, zero, rest)?;
    let after = b.narrow(s.values, rank - 1, one, rest)?;
    let differs = b.call("aten.ne.Tensor", &[before.into(), after.into()])?;
    let mut lead = t.sizes.clone();
    lead[rank - 1] = one;
    let first = b.full(&lead, 1.0, DType::Bool)?;
    let starts = b.call(
        "aten.cat.default",
        &[Arg::Values(vec![Some(first), Some(differs)]), last.clone()],
    )?;
    let places = b.call("aten.arange.default", &[n.into()])?;
    let marked = b.select_or(starts, places, 0.0)?;
    // Start of the run that each place belongs to.
    let begin = b.call_multi("aten.cummax.default", &[marked.into(), last.clone()])?[0];
    let length = b.sub(places, begin)?;
    let at = b.call(
        "aten.argmax.default",
        &[length.into(), last.clone(), true.into()],
    )?;
    let mut out = Vec::new();
    for v in [s.values, s.indices] {
        let v = b.call("aten.gather.default", &[v.into(), last.clone(), at.into()])?;
        out.push(b.call("aten.squeeze.dim", &[v.into(), last.clone()])?);
    }
    kept(b, args, out, dim)
}

const ALONG: &str = "(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)";

pub const ROWS: &[Row] = &[
    row(
        "aten.median.default",
        "(Tensor self) -> Tensor",
        median,
        "(f32[3,4])",
    )
    .with(&[Prop::Sorts(SortAxis::Flat)]),
    row(
        "aten.nanmedian.default",
        "(Tensor self) -> Tensor",
        median,
        "(f32[3,5])",
    )
    .with(&[Prop::Sorts(SortAxis::Flat)]),
    row("aten.median.dim", ALONG, median, "(f32[3,4,5], 1)").with(&[Prop::Sorts(SortAxis::Dim)]),
    row("aten.nanmedian.dim", ALONG, median, "(f32[3,4,5], 1, true)")
        .with(&[Prop::Sorts(SortAxis::Dim)]),
    row(
        "aten.mode.default",
        "(Tensor self, int dim=-1, bool keepdim=False) -> (Tensor values, Tensor indices)",
        mode,
        "(i64[3,1]{0:2})",
    )
    .with(&[Prop::Sorts(SortAxis::Dim)]),
];
