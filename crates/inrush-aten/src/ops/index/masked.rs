//! Places that data decide: masked writes, unpooling, membership; and lists of places that sizes decide.
//!
//! A mask turns into places by counting: the running sum of the mask, less one, numbers its
//! true elements.
//!
//! ```text
//! mask     0  1  1  0  1
//! cumsum   0  1  2  2  3
//! turn     0  0  1  1  2      element of the source, where the mask is true
//! ```
//!
//! Results whose size depends on data (`masked_select`, `nonzero`) have no rows; PyTorch
//! computes these.

use crate::ops::B;
use crate::ops::decomposed as row;
use crate::{Args, Row};
use inrush_base::{DType, Error, Result};
use inrush_expr::Expr;
use inrush_graph::{Arg, ValueId};

/// Returns `x` as one dimension in row-major order.
fn flat(b: B, x: ValueId) -> Result<ValueId> {
    b.call("aten.reshape.default", &[x.into(), b.ints(&[-1])])
}

/// Returns the index list of `y[x]` for a flat `y`.
fn at(x: ValueId) -> Arg {
    Arg::Values(vec![Some(x)])
}

/// How many of the mask's elements are true before each, for a flat mask: which element of the source it takes.
fn turns(b: B, mask: ValueId) -> Result<ValueId> {
    let count = b.call("aten.cumsum.default", &[mask.into(), b.int(0)])?;
    let before = b.call("aten.sub.Tensor", &[count.into(), b.int(1)])?;
    // Elements that the mask leaves out read some place, which is not used.
    b.call("aten.clamp_min.default", &[before.into(), b.int(0)])
}

/// `out[k] = mask[k] ? source[turn[k]] : self[k]`. A mask with more true elements than the
/// source has fails in the check of the index.
fn masked_scatter(b: B, args: &Args) -> Result<Vec<ValueId>> {
    let (x, mask, source) = (
        args.value("self")?,
        args.value("mask")?,
        args.value("source")?,
    );
    let sizes = crate::meta::broadcast(b.exprs, &b.sizes(x)?, &b.sizes(mask)?)?;
    let mask = b.call("aten.expand.default", &[mask.into(), sizes.clone().into()])?;
    let x = b.call("aten.expand.default", &[x.into(), sizes.clone().into()])?;
    let numbers = b.exprs.product(b.sizes(source)?);
    // Elements that the mask leaves out read place 0 of the source, which must exist.
    if b.exprs.range(numbers).lo < 1 {
        return Err(args.unsupported("source", "it may be empty"));
    }
    let (mask, source) = (flat(b, mask)?, flat(b, source)?);
    let place = turns(b, mask)?;
    let taken = b.call("aten.index.Tensor", &[source.into(), at(place)])?;
    let old = flat(b, x)?;
    let new = b.select(mask, taken, old)?;
    Ok(vec![b.view(new, &sizes)?])
}

/// Computes the gradient of the source: those of the masked elements in order, then zeros.
fn masked_scatter_backward(b: B, args: &Args) -> Result<Vec<ValueId>> {
    let (grad, mask) = (args.value("grad_output")?, args.value("mask")?);
    let sizes = args.ints("sizes")?.to_vec();
    let dtype = b.dtype(grad)?;
    let all = b.sizes(grad)?;
    let mask = b.call("aten.expand.default", &[mask.into(), all.into()])?;
    let (grad, mask) = (flat(b, grad)?, flat(b, mask)?);
    let place = turns(b, mask)?;
    let kept = b.select_or(mask, grad, 0.0)?;
    let numel = b.exprs.product(sizes.iter().copied());
    let zeros = b.full(&[numel], 0.0, dtype)?;
    // Elements that the mask leaves out add a zero to some place.
    let out = b.call(
        "aten.index_put.default",
        &[zeros.into(), at(place), kept.into(), true.into()],
    )?;
    Ok(vec![b.view(out, &sizes)?])
}

/// Positions in storage of the elements of a strided view.
fn strided(b: B, sizes: &[Expr], strides: &[Expr], offset: Expr) -> Result<ValueId> {
    let mut place = b.call("aten.full.default", &[Arg::Ints(Vec::new()), offset.into()])?;
    for (d, (size, stride)) in sizes.iter().zip(strides).enumerate() {
        let i = b.call("aten.arange.default", &[(*size).into()])?;
        let mut column = vec![*size];
        // A column along dimension `d`, which broadcasts over the dimensions after it.
        column.resize(sizes.len() - d, b.exprs.int(1));
        let i = b.view(i, &column)?;
        let i = b.call("aten.mul.Tensor", &[i.into(), (*stride).into()])?;
        place = b.add(place, i)?;
    }
    Ok(place)
}

/// Checks that places in storage are within it, and that no stride of zero gives one to several elements.
fn check_places(
    args: &Args,
    sizes: &[Expr],
    strides: &[Expr],
    offset: Expr,
    numel: Expr,
) -> Result<()> {
    let e = args.exprs;
    if strides.len() != sizes.len() {
        return Err(args.unsupported("stride", "needs one for each dimension"));
    }
    if e.range(offset).hi < 0 || strides.iter().any(|s| e.range(*s).hi < 0) {
        return Err(args.unsupported("stride", "neither strides nor the offset are negative"));
    }
    let shared = |(n, s): (&Expr, &Expr)| e.is_int(*s, 0) && e.range(*n).lo > 1;
    if sizes.iter().zip(strides).any(shared) {
        return Err(args.unsupported("stride", "several elements would be written to one place"));
    }
    if sizes.iter().any(|n| e.is_int(*n, 0)) {
        return Ok(());
    }
    // The greatest position: that of the last element along each dimension.
    let reach = sizes.iter().zip(strides).fold(offset, |sum, (n, s)| {
        e.add(sum, e.mul(e.sub(*n, e.int(1)), *s))
    });
    args.at_most(e.add(reach, e.int(1)), numel, "the places in storage")
}

/// Positions are counted row by row, as `as_strided` does.
fn as_strided_scatter(b: B, args: &Args) -> Result<Vec<ValueId>> {
    let (x, source) = (args.value("self")?, args.value("src")?);
    let t = b.tensor(x)?;
    let (sizes, strides) = (args.ints("size")?.to_vec(), args.ints("stride")?.to_vec());
    let offset = match args.given("storage_offset") {
        true => args.int("storage_offset")?,
        false => b.exprs.int(0),
    };
    let numel = b.exprs.product(t.sizes.iter().copied());
    check_places(args, &sizes, &strides, offset, numel)?;
    let place = strided(b, &sizes, &strides, offset)?;
    let place = b.call("aten.expand.default", &[place.into(), sizes.into()])?;
    let (place, source, old) = (flat(b, place)?, flat(b, source)?, flat(b, x)?);
    // The result has the dtype of `self`, whatever is written.
    let source = b.cast(source, t.dtype)?;
    let out = b.call(
        "aten.index_put.default",
        &[old.into(), at(place), source.into()],
    )?;
    Ok(vec![b.view(out, &t.sizes)?])
}

/// Rows and columns of a triangle, row by row: each row's share is known, and an element's row is found by search.
/// Closed forms with square roots, as PyTorch's kernels for GPUs have, would round for large
/// numbers. Shares of rows are summed up instead, and element `k` stands in the first row
/// whose sum exceeds `k`. The total must be a constant, since it is the size of the result.
fn triangle(b: B, args: &Args, lower: bool) -> Result<Vec<ValueId>> {
    let (rows, columns) = (args.const_int("row")?, args.const_int("col")?);
    let offset = args.const_int("offset")?;
    let dtype = args.dtype("dtype")?.unwrap_or(DType::I64);
    // Refuses sizes beyond 2^31 too, since sums of shares have 64 bits.
    if !(0..=1 << 31).contains(&rows) || !(0..=1 << 31).contains(&columns) {
        return Err(Error::input("a triangle of a negative size"));
    }
    // Columns of row `i` end (lower) or begin (upper) here.
    let bound = |i: i64| (i + offset + i64::from(lower)).clamp(0, columns);
    let share = |i: i64| if lower { bound(i) } else { columns - bound(i) };
    // Between the rows whose bound is clamped shares are an arithmetic progression.
    let sum_to = |from: i64, to: i64| (share(from) + share(to)) * (to - from + 1) / 2;
    let first = (-offset - i64::from(lower)).clamp(0, rows);
    let last = (columns - offset - i64::from(lower)).clamp(first, rows);
    let part = |from: i64, to: i64| if from < to { sum_to(from, to - 1) } else { 0 };
    let total = part(0, first) + part(first, last) + part(last, rows);
    let i = b.call("aten.arange.default", &[b.int(rows)])?;
    let i = b.call(
        "aten.add.Tensor",
        &[i.into(), b.int(offset + i64::from(lower))],
    )?;
    let i = b.call("aten.clamp.default", &[i.into(), b.int(0), b.int(columns)])?;
    let shares = match lower {
        true => i,
        false => b.call("aten.rsub.Scalar", &[i.into(), b.int(columns)])?,
    };
    // Searching in an empty list has no answer.
    if total == 0 {
        let sizes = [b.exprs.int(2), b.exprs.int(0)];
        return Ok(vec![b.full(&sizes, 0.0, dtype)?]);
    }
    let ends = b.call("aten.cumsum.default", &[shares.into(), b.int(0)])?;
    let k = b.call("aten.arange.default", &[b.int(total)])?;
    // The first row whose end is greater than `k`: `right` counts equal ends as before.
    let r = b.call(
        "aten.searchsorted.Tensor",
        &[ends.into(), k.into(), false.into(), true.into()],
    )?;
    let end = b.call("aten.index.Tensor", &[ends.into(), at(r)])?;
    // Columns of an upper triangle are counted from the end of the row.
    let column = if lower {
        let share = b.call("aten.index.Tensor", &[shares.into(), at(r)])?;
        let begin = b.sub(end, share)?;
        b.sub(k, begin)?
    } else {
        let back = b.sub(k, end)?;
        b.call("aten.add.Tensor", &[back.into(), b.int(columns)])?
    };
    let both = Arg::Values(vec![Some(r), Some(column)]);
    let out = b.call("aten.stack.default", &[both])?;
    Ok(vec![b.cast(out, dtype)?])
}

/// Each element at the place of its plane that its index says, zeros elsewhere.
fn unpool(b: B, args: &Args) -> Result<Vec<ValueId>> {
    let (x, indices) = (args.value("self")?, args.value("indices")?);
    let t = b.tensor(x)?;
    let spatial = args.ints("output_size")?.to_vec();
    if t.rank() <= spatial.len() {
        return Err(Error::input("planes need a channel dimension"));
    }
    let crooked = b.exprs.contiguous_strides(&t.sizes) != t.strides;
    if crooked && spatial.len() == 2 && t.rank() == 4 && b.exprs.is_int(t.strides[1], 1) {
        // Eager's result has channels last then, which PyTorch's declaration of it does not say.
        return Err(args.unsupported("self", "channels last"));
    }
    let lead = &t.sizes[..t.rank() - spatial.len()];
    let plane = b.exprs.product(spatial.iter().copied());
    let flat = |last: Expr| -> Vec<Expr> { lead.iter().copied().chain([last]).collect() };
    // Elements of a plane of the input; indices number places in a plane of the result.
    let from = b
        .exprs
        .product(t.sizes[t.rank() - spatial.len()..].iter().copied());
    let (x, indices) = (
        b.call("aten.reshape.default", &[x.into(), flat(from).into()])?,
        b.call("aten.reshape.default", &[indices.into(), flat(from).into()])?,
    );
    let zeros = b.full(&flat(plane), 0.0, t.dtype)?;
    let out = b.call(
        "aten.scatter.src",
        &[zeros.into(), b.int(-1), indices.into(), x.into()],
    )?;
    let sizes: Vec<Expr> = lead.iter().copied().chain(spatial).collect();
    Ok(vec![b.view(out, &sizes)?])
}

/// Tests each element for membership in a list.
/// Compares every element with every entry of the list: work is the product of both sizes,
/// and nothing is sorted.
fn isin(b: B, args: &Args) -> Result<Vec<ValueId>> {
    let (x, list) = (args.value("elements")?, args.value("test_elements")?);
    let list = flat(b, list)?;
    let x = b.call("aten.unsqueeze.default", &[x.into(), b.int(-1)])?;
    let equal = b.call("aten.eq.Tensor", &[x.into(), list.into()])?;
    let found = b.call("aten.any.dim", &[equal.into(), b.int(-1)])?;
    Ok(vec![match args.bool("invert")? {
        true => b.unary("aten.logical_not.default", found)?,
        false => found,
    }])
}

const TRIANGLE: &str = "(int row, int col, int offset=0, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor";

pub const ROWS: &[Row] = &[
    row(
        "aten.masked_scatter.default",
        "(Tensor self, Tensor mask, Tensor source) -> Tensor",
        masked_scatter,
        "(f32[3,4], bool[4], f32[12])",
    ),
    row(
        "aten.masked_scatter_backward.default",
        "(Tensor grad_output, Tensor mask, SymInt[] sizes) -> Tensor",
        masked_scatter_backward,
        "(f32[3,4], bool[3,4], [3,5])",
    ),
    row(
        "aten.as_strided_scatter.default",
        "(Tensor self, Tensor src, SymInt[] size, SymInt[] stride, SymInt? storage_offset=None) -> Tensor",
        as_strided_scatter,
        "(f32[5,6], f32[2,3], [2,3], [7,2], 4)",
    ),
    row(
        "aten.tril_indices.default",
        TRIANGLE,
        |b, a| triangle(b, a, true),
        "(5, 4, 1)",
    ),
    row(
        "aten.triu_indices.default",
        TRIANGLE,
        |b, a| triangle(b, a, false),
        "(5, 4, -1)",
    ),
    row(
        "aten.max_unpool2d.default",
        "(Tensor self, Tensor indices, SymInt[2] output_size) -> Tensor",
        unpool,
        "(f32[2,3,1,1], i64[2,3,1,1]{0:15}, [4,4])",
    ),
    row(
        "aten.max_unpool3d.default",
        "(Tensor self, Tensor indices, SymInt[3] output_size, int[3] stride, int[3] padding) -> Tensor",
        unpool,
        "(f32[2,3,1,1,1], i64[2,3,1,1,1]{0:7}, [2,2,2], [2,2,2], [0,0,0])",
    ),
    row(
        "aten.isin.Tensor_Tensor",
        "(Tensor elements, Tensor test_elements, *, bool assume_unique=False, bool invert=False) -> Tensor",
        isin,
        "(i64[3,4], i64[2,3])",
    ),
];
