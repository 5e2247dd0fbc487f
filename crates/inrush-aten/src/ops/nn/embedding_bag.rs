//! Bags of embeddings: rows of a table, summed, averaged or reduced to the greatest elements by bag; and the gradients.
//!
//! ```text
//! indices   3  1  4 | 1  5 |  | 9        rows of the table, `count` of them
//! offsets   0         3      5  5         starts of `bags` bags; the third one is empty
//! bag_of    0  0  0   1  1      3         bag of each index, found by a binary search
//! ```
//!
//! Sums and means are then a scatter-add of gathered rows, without a loop over bags whose length
//! depends on data. Greatest elements take a second scatter to find the first index that has them,
//! with the NaN of eager's loop: NaN is the result only as a bag's first row that counts.
//!
//! The three lists that are returned next to the bags exist for the gradient. Where a device leaves
//! one of them empty, the graph declares its sizes, and zeros of those sizes are returned.

use crate::ops::decomposed as row;
use crate::{Args, Builder, Row};
use inrush_base::{DType, Error, Result};
use inrush_expr::Expr;
use inrush_graph::{Arg, ValueId};

/// Values of the argument `mode`.
const SUM: i64 = 0;
const MEAN: i64 = 1;
const MAX: i64 = 2;

/// Returns the mode; refuses numbers that are none.
fn mode(args: &Args) -> Result<i64> {
    match args.const_int("mode")? {
        m @ SUM..=MAX => Ok(m),
        _ => Err(args.unsupported("mode", "sums, means and greatest elements")),
    }
}

/// The bag of each index: of empty bags, which begin where the next one does, the last one at a place holds it.
/// `offsets` ascend, so the bag of position `i` is the number of offsets up to `i`, less one.
fn bag_of(b: &mut Builder, offsets: ValueId, count: Expr) -> Result<ValueId> {
    let places = b.call("aten.arange.default", &[count.into()])?;
    let after = b.call(
        "aten.searchsorted.Tensor",
        &[offsets.into(), places.into(), false.into(), true.into()],
    )?;
    b.call("aten.sub.Tensor", &[after.into(), b.int(1)])
}

/// The offsets; a call fails where one is less than the one before it, as eager's sums and means do on CPUs.
/// The first offset has no predecessor: the roll brings it the last one, which is not compared.
fn ascending(b: &mut Builder, offsets: ValueId, bags: Expr) -> Result<ValueId> {
    let before = b.call(
        "aten.roll.default",
        &[offsets.into(), b.ints(&[1]), b.ints(&[0])],
    )?;
    let places = b.call("aten.arange.default", &[bags.into()])?;
    let first = b.call("aten.eq.Scalar", &[places.into(), b.int(0)])?;
    let follows = b.call("aten.ge.Tensor", &[offsets.into(), before.into()])?;
    let holds = b.call("aten.logical_or.default", &[first.into(), follows.into()])?;
    b.assured(offsets, holds)
}

/// Returns the starts of bags, without the end of the last one, which some lists have. Later
/// indices belong to the last bag all the same.
fn without_end(b: &mut Builder, offsets: ValueId, bags: Expr) -> Result<ValueId> {
    if b.sizes(offsets)? == [bags] {
        return Ok(offsets);
    }
    let zero = b.exprs.int(0);
    b.narrow(offsets, 0, zero, bags)
}

/// Rows of `x` by a list of indices.
fn rows_of(b: &mut Builder, x: ValueId, index: ValueId) -> Result<ValueId> {
    let dim = b.int(0);
    b.call("aten.index_select.default", &[x.into(), dim, index.into()])
}

/// Zeros of `sizes` with rows of `x` added where `index` says.
/// Several rows for one index are summed: `index_add` accumulates.
fn gathered(b: &mut Builder, sizes: &[Expr], index: ValueId, x: ValueId) -> Result<ValueId> {
    let (zeros, dim) = (b.full(sizes, 0.0, b.dtype(x)?)?, b.int(0));
    b.call(
        "aten.index_add.default",
        &[zeros.into(), dim, index.into(), x.into()],
    )
}

/// A list as a column.
fn column(b: &mut Builder, x: ValueId) -> Result<ValueId> {
    let sizes = [b.sizes(x)?[0], b.exprs.int(1)];
    b.view(x, &sizes)
}

/// Returns a mask of the indices that are no padding; `None` without padding.
fn counted(b: &mut Builder, args: &Args, indices: ValueId) -> Result<Option<ValueId>> {
    let schema = args.op.schema();
    let Some(at) = schema.position("padding_idx") else {
        return Ok(None);
    };
    let Some(mut padding) = args.opt_int("padding_idx")? else {
        return Ok(None);
    };
    if b.exprs.range(padding).hi < 0 {
        // Where none has a word of its own, a negative row is counted from the end.
        if !schema.params[at].optional {
            return Ok(None);
        }
        let rows = b.sizes(args.value("weight")?)?[0];
        padding = b.exprs.add(padding, rows);
    }
    let ne = b.call("aten.ne.Scalar", &[indices.into(), padding.into()])?;
    Ok(Some(ne))
}

/// The rows with negative infinity in the place of NaN, but for the first row of each bag that counts: nothing is found
/// greater than NaN, and NaN is not found greater than anything.
fn without_nan(
    b: &mut Builder,
    rows: ValueId,
    bag: ValueId,
    counted: Option<ValueId>,
    bags: Expr,
) -> Result<ValueId> {
    let count = b.sizes(rows)?[0];
    let last = b.exprs.sub(count, b.exprs.int(1));
    let places = b.call("aten.arange.default", &[count.into()])?;
    let end = |sizes: Vec<Expr>| [sizes.into(), last.into(), DType::I64.into()];
    // Positions that lose against every candidate of `amin`; an index below `count` keeps the later
    // gather in range.
    let far = b.call("aten.full.default", &end(Vec::new()))?;
    let none = b.call("aten.full.default", &end(vec![bags]))?;
    let candidates = match counted {
        Some(mask) => b.select(mask, places, far)?,
        None => places,
    };
    let amin = Arg::Str("amin".into());
    let first = b.call(
        "aten.scatter_reduce.two",
        &[none.into(), b.int(0), bag.into(), candidates.into(), amin],
    )?;
    let first = rows_of(b, first, bag)?;
    let later = b.call("aten.ne.Tensor", &[places.into(), first.into()])?;
    let later = column(b, later)?;
    let nan = b.unary("aten.isnan.default", rows)?;
    let passed = b.call("aten.logical_and.default", &[nan.into(), later.into()])?;
    let lowest = b.full(&[], f64::NEG_INFINITY, b.dtype(rows)?)?;
    b.select(passed, lowest, rows)
}

/// The greatest row of each bag, element by element, and which index it has; zeros of empty bags.
/// Bags of padding alone are empty too: `sizes` does not count padding.
fn greatest(
    b: &mut Builder,
    indices: ValueId,
    bag: ValueId,
    rows: ValueId,
    counted: Option<ValueId>,
    sizes: ValueId,
) -> Result<(ValueId, ValueId)> {
    let (bags, &[count, features]) = (b.sizes(sizes)?[0], b.sizes(rows)?.as_slice()) else {
        return Err(Error::input("a table of embeddings has two dimensions"));
    };
    let whole = [bags, features];
    let rows = without_nan(b, rows, bag, counted, bags)?;
    let wide = column(b, bag)?;
    let wide = b.call(
        "aten.expand.default",
        &[wide.into(), vec![count, features].into()],
    )?;
    let reduce = |b: &mut Builder, start: ValueId, x: ValueId, how: &str| {
        let dim = b.int(0);
        b.call(
            "aten.scatter_reduce.two",
            &[
                start.into(),
                dim,
                wide.into(),
                x.into(),
                Arg::Str(how.into()),
            ],
        )
    };
    // The identity of `amax`; rows that are padding hold it as well.
    let start = b.full(&whole, f64::NEG_INFINITY, b.dtype(rows)?)?;
    let most = reduce(b, start, rows, "amax")?;
    // The first place that has it.
    let there = rows_of(b, most, bag)?;
    let mut hit = b.call("aten.eq.Tensor", &[rows.into(), there.into()])?;
    let nan = b.unary("aten.isnan.default", rows)?;
    hit = b.call("aten.logical_or.default", &[hit.into(), nan.into()])?;
    if let Some(mask) = counted {
        let mask = column(b, mask)?;
        hit = b.call("aten.logical_and.default", &[hit.into(), mask.into()])?;
    }
    let places = b.call("aten.arange.default", &[count.into()])?;
    let places = column(b, places)?;
    let last = b.exprs.sub(count, b.exprs.int(1));
    let none = b.call(
        "aten.full.default",
        &[whole.to_vec().into(), last.into(), DType::I64.into()],
    )?;
    let far = b.call(
        "aten.full.default",
        &[Vec::<Expr>::new().into(), last.into(), DType::I64.into()],
    )?;
    let places = b.select(hit, places, far)?;
    let first = reduce(b, none, places, "amin")?;
    let count = b.exprs.mul(bags, features);
    let flat = b.view(first, &[count])?;
    let index = rows_of(b, indices, flat)?;
    let index = b.view(index, &whole)?;
    let some = b.by("aten.gt.Scalar", sizes, 0.0)?;
    let some = column(b, some)?;
    Ok((
        b.select_or(some, most, 0.0)?,
        b.select_or(some, index, 0.0)?,
    ))
}

/// Returns whether the sizes of bags are zeros: those of sums on CPUs, whose gradient does not read them. GPUs count them, and
/// are known by the list of greatest elements, which has no places there.
fn counts_nothing(b: &Builder, mode: i64) -> bool {
    // Result 3, the list of greatest elements.
    let places = b.declared(3).and_then(|t| t.sizes.first().copied());
    mode == SUM && !places.is_some_and(|n| b.exprs.is_int(n, 0))
}

/// The bags, and what the gradient wants to know: each index' bag, the bags' sizes, the indices of greatest elements.
/// Results: `[bags, features]`, bag of each index, sizes of bags, indices of greatest elements.
fn embedding_bag(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let (weight, indices) = (args.value("weight")?, args.value("indices")?);
    let mut offsets = args.value("offsets")?;
    let mode = mode(args)?;
    let t = b.tensor(weight)?;
    let (count, features) = (b.sizes(indices)?[0], t.sizes[1]);
    let mut bags = b.sizes(offsets)?[0];
    if args.bool("include_last_offset")? {
        let zero = b.exprs.int(0);
        bags = b.exprs.sub(bags, b.exprs.int(1));
        offsets = b.narrow(offsets, 0, zero, bags)?;
    }
    let kind = b.dtype(offsets)?;
    // Offsets are data: a bad one must fail the call instead of reading outside of the table.
    let mut offsets = b.between(offsets, b.int(0), count.into())?;
    if mode != MAX {
        offsets = ascending(b, offsets, bags)?;
    }
    let bag_of = bag_of(b, offsets, count)?;
    let mut rows = rows_of(b, weight, indices)?;
    rows = b.widen(rows)?;
    let compute = b.dtype(rows)?;
    if let Some(w) = args.opt_value("per_sample_weights")? {
        let w = b.cast(w, compute)?;
        let w = column(b, w)?;
        rows = b.mul(rows, w)?;
    }
    let counted = counted(b, args, indices)?;
    if let Some(mask) = counted {
        let mask = column(b, mask)?;
        let nothing = if mode == MAX { f64::NEG_INFINITY } else { 0.0 };
        rows = b.select_or(mask, rows, nothing)?;
    }
    let sizes = if counts_nothing(b, mode) {
        b.full(&[bags], 0.0, DType::I64)?
    } else {
        let ones = match counted {
            Some(mask) => b.cast(mask, DType::I64)?,
            None => b.full(&[count], 1.0, DType::I64)?,
        };
        gathered(b, &[bags], bag_of, ones)?
    };
    let (mut out, mut which) = match mode {
        MAX if b.exprs.is_int(count, 0) => (
            b.full(&[bags, features], 0.0, compute)?,
            b.full(&[bags, features], 0.0, kind)?,
        ),
        MAX => greatest(b, indices, bag_of, rows, counted, sizes)?,
        _ => (gathered(b, &[bags, features], bag_of, rows)?, sizes),
    };
    if mode == MEAN {
        // An empty bag is zero, not zero by zero.
        let some = b.call("aten.clamp_min.default", &[sizes.into(), b.int(1)])?;
        let some = b.cast(some, compute)?;
        let some = column(b, some)?;
        out = b.div(out, some)?;
    }
    out = b.cast(out, t.dtype)?;
    which = b.cast(which, kind)?;
    let sizes = b.cast(sizes, kind)?;
    // On GPUs the list of sizes has a place for the end of the last bag too.
    let places = b.declared(2).and_then(|t| t.sizes.first().copied());
    // Zeros after the sizes of the bags; a symbolic difference is left alone.
    let more = places.and_then(|n| b.exprs.as_int(b.exprs.sub(n, bags)));
    let sizes = match more {
        Some(more) if more > 0 => {
            let pad = b.ints(&[0, more]);
            b.call("aten.constant_pad_nd.default", &[sizes.into(), pad])?
        }
        _ => sizes,
    };
    // Lists that no gradient will read have sizes of the device's own choice.
    let wanted = |b: &mut Builder, k: usize, v: ValueId| -> Result<ValueId> {
        let own = b.sizes(v)?;
        match b.declared(k).map(|t| t.sizes.clone()) {
            Some(s) if s != own => b.full(&s, 0.0, kind),
            _ => b.cast(v, kind),
        }
    };
    let bag_of = wanted(b, 1, bag_of)?;
    let which = wanted(b, 3, which)?;
    let sizes = wanted(b, 2, sizes)?;
    Ok(vec![out, bag_of, sizes, which])
}

/// The table's gradient: each bag's goes to the rows it was made of.
/// Sums give each row the gradient of its bag, means divide it by the bag's size, and greatest
/// elements send it to the one row that was chosen.
fn backward(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let (grad, indices) = (args.value("grad")?, args.value("indices")?);
    let mode = mode(args)?;
    if args.op.schema().position("sparse").is_some() && args.bool("sparse")? {
        return Err(args.unsupported("sparse", "gradients are dense"));
    }
    let t = b.tensor(grad)?;
    let (rows, features) = (args.int("num_weights")?, t.sizes[1]);
    let (sizes, first) = (args.value("bag_size")?, b.exprs.int(0));
    let sizes = b.narrow(sizes, 0, first, t.sizes[0])?;
    let mut g = b.widen(grad)?;
    let compute = b.dtype(g)?;
    if mode == MAX {
        // Empty bags read nothing.
        let some = b.by("aten.ne.Scalar", sizes, 0.0)?;
        let some = column(b, some)?;
        g = b.select_or(some, g, 0.0)?;
        let (zeros, dim) = (b.full(&[rows, features], 0.0, compute)?, b.int(0));
        let which = b.cast(args.value("maximum_indices")?, DType::I64)?;
        let sum = b.call(
            "aten.scatter_add.default",
            &[zeros.into(), dim, which.into(), g.into()],
        )?;
        return Ok(vec![b.cast(sum, t.dtype)?]);
    }
    let count = b.sizes(indices)?[0];
    let bag = match args.opt_value("offsets") {
        Ok(Some(offsets)) => {
            let offsets = without_end(b, offsets, t.sizes[0])?;
            bag_of(b, offsets, count)?
        }
        _ => args.value("offset2bag")?,
    };
    if mode == MEAN {
        let some = b.call("aten.clamp_min.default", &[sizes.into(), b.int(1)])?;
        let some = b.cast(some, compute)?;
        let some = column(b, some)?;
        g = b.div(g, some)?;
    }
    g = rows_of(b, g, bag)?;
    if let Some(w) = args.opt_value("per_sample_weights")? {
        let w = b.cast(w, compute)?;
        let w = column(b, w)?;
        g = b.mul(g, w)?;
    }
    if let Some(mask) = counted(b, args, indices)? {
        let mask = column(b, mask)?;
        g = b.select_or(mask, g, 0.0)?;
    }
    if args.bool("scale_grad_by_freq")? {
        let ones = b.full(&[count], 1.0, DType::I64)?;
        // How often each row of the table is named in the whole batch.
        let often = gathered(b, &[rows], indices, ones)?;
        let often = rows_of(b, often, indices)?;
        let often = b.cast(often, compute)?;
        let often = column(b, often)?;
        g = b.div(g, often)?;
    }
    let sum = gathered(b, &[rows, features], indices, g)?;
    Ok(vec![b.cast(sum, t.dtype)?])
}

/// The gradient of the weights of samples: each row read, times the gradient of its bag.
fn weights_backward(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let (grad, weight) = (args.value("grad")?, args.value("weight")?);
    let indices = args.value("indices")?;
    let dtype = b.dtype(weight)?;
    let count = b.sizes(indices)?[0];
    let bags = b.sizes(grad)?[0];
    let offsets = without_end(b, args.value("offsets")?, bags)?;
    let bag = bag_of(b, offsets, count)?;
    let (g, rows) = (rows_of(b, grad, bag)?, rows_of(b, weight, indices)?);
    let (g, rows) = (b.widen(g)?, b.widen(rows)?);
    let product = b.mul(g, rows)?;
    let mut sum = b.sum(product, &[-1], false)?;
    if let Some(mask) = counted(b, args, indices)? {
        sum = b.select_or(mask, sum, 0.0)?;
    }
    Ok(vec![b.cast(sum, dtype)?])
}

/// Schema that both forward operators share.
const BAG: &str = "(Tensor weight, Tensor indices, Tensor offsets, bool scale_grad_by_freq=False, int mode=0, bool sparse=False, Tensor? per_sample_weights=None, bool include_last_offset=False, int padding_idx=-1) -> (Tensor, Tensor, Tensor, Tensor)";

/// The same with a row that may be absent, or counted from the end.
const BAG_PADDED: &str = "(Tensor weight, Tensor indices, Tensor offsets, bool scale_grad_by_freq, int mode, bool sparse, Tensor? per_sample_weights, bool include_last_offset, int? padding_idx) -> (Tensor, Tensor, Tensor, Tensor)";

/// Returns the table with the named rows scaled down to a norm of `max_norm` where theirs is
/// greater. Rows that are not named stay, whatever their norm.
fn renorm(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let (table, indices) = (args.value("self")?, args.value("indices")?);
    let t = b.tensor(table)?;
    if t.rank() != 2 {
        return Err(Error::input("embedding_renorm of what is not a table"));
    }
    let count = b.exprs.product(b.sizes(indices)?);
    let indices = b.call(
        "aten.reshape.default",
        &[indices.into(), vec![count].into()],
    )?;
    let named = b.full(&[t.sizes[0]], 0.0, DType::Bool)?;
    let named = b.call(
        "aten.index_fill.int_Scalar",
        &[named.into(), b.int(0), indices.into(), true.into()],
    )?;
    let named = b.call("aten.unsqueeze.default", &[named.into(), b.int(1)])?;
    let (order, along) = (Arg::Float(args.float("norm_type")?), b.ints(&[1]));
    let norm = b.call(
        "aten.linalg_vector_norm.default",
        &[table.into(), order, along, true.into()],
    )?;
    // Eager's factor is a number of the host.
    let norm = b.cast(norm, DType::F64)?;
    let most = args.float("max_norm")?;
    let over = b.call("aten.gt.Scalar", &[norm.into(), Arg::Float(most)])?;
    let over = b.call("aten.logical_and.default", &[over.into(), named.into()])?;
    // Eager's guard against a division by zero; part of the factor, so it is reproduced.
    let safe = b.call("aten.add.Scalar", &[norm.into(), Arg::Float(1e-7)])?;
    let factor = b.unary("aten.reciprocal.default", safe)?;
    let factor = b.scale(factor, most)?;
    let wide = b.widen(table)?;
    let factor = b.cast(factor, t.dtype.compute())?;
    let short = b.mul(wide, factor)?;
    let short = b.cast(short, t.dtype)?;
    Ok(vec![b.select(over, short, table)?])
}

pub const ROWS: &[Row] = &[
    row(
        "aten.embedding_renorm.default",
        "(Tensor self, Tensor indices, float max_norm, float norm_type) -> Tensor",
        renorm,
        "(f32[7,4], i64[2,3]{0:6}, 1.2, 2.0)",
    ),
    row(
        "aten._embedding_bag.default",
        BAG,
        embedding_bag,
        "(f32[7,4], i64[5]{0:6}, i64[3]{0:0}, false, 1)",
    ),
    row(
        "aten._embedding_bag_forward_only.default",
        BAG,
        embedding_bag,
        "(f32[7,4], i64[5]{0:6}, i64[3]{0:0}, false, 2, false, none, false, 2)",
    ),
    row(
        "aten.embedding_bag.default",
        "(Tensor weight, Tensor indices, Tensor offsets, bool scale_grad_by_freq=False, int mode=0, bool sparse=False, Tensor? per_sample_weights=None, bool include_last_offset=False) -> (Tensor, Tensor, Tensor, Tensor)",
        embedding_bag,
        "(f32[7,4], i64[5]{0:6}, i64[3]{0:0}, true, 1)",
    ),
    row(
        "aten.embedding_bag.padding_idx",
        BAG_PADDED,
        embedding_bag,
        "(f32[7,4], i64[5]{0:6}, i64[3]{0:0}, false, 1, false, none, false, -5)",
    ),
    row(
        "aten._embedding_bag_backward.default",
        "(Tensor grad, Tensor indices, Tensor offsets, Tensor offset2bag, Tensor bag_size, Tensor maximum_indices, SymInt num_weights, bool scale_grad_by_freq, int mode, bool sparse, Tensor? per_sample_weights, int padding_idx=-1) -> Tensor",
        backward,
        "(f32[3,4], i64[5]{0:6}, i64[3]{0:0}, i64[5]{2:2}, i64[3]{5:5}, i64[3]{0:0}, 7, true, 1, false, none, 2)",
    ),
    row(
        "aten._embedding_bag_dense_backward.default",
        "(Tensor grad, Tensor indices, Tensor offset2bag, Tensor bag_size, Tensor maximum_indices, SymInt num_weights, bool scale_grad_by_freq, int mode, Tensor? per_sample_weights, int padding_idx=-1) -> Tensor",
        backward,
        "(f32[3,4], i64[5]{0:6}, i64[5]{2:2}, i64[3]{1:3}, i64[3,4]{0:6}, 7, false, 2, none)",
    ),
    row(
        "aten._embedding_bag_per_sample_weights_backward.default",
        "(Tensor grad, Tensor weight, Tensor indices, Tensor offsets, Tensor offset2bag, int mode, int padding_idx=-1) -> Tensor",
        weights_backward,
        "(f32[3,4], f32[7,4], i64[5]{0:6}, i64[3]{0:0}, i64[5]{2:2}, 0, 3)",
    ),
];

#[cfg(test)]
mod tests {
    use crate::{decompose, example};
    use inrush_base::DType;

    /// As floats, indices into tables of more than 2^24 rows would be rounded.
    #[test]
    fn indices_of_greatest_elements_stay_integers() {
        let call = "(f32[7,4], i64[5]{0:6}, i64[3]{0:0}, false, 2)";
        let example = example::parse("aten._embedding_bag.default", call).expect("a call");
        let graph = decompose(example.graph).expect("a bag");
        let selections = graph
            .nodes
            .iter()
            .filter(|n| n.op == "aten.where.ScalarOther");
        let dtypes: Vec<DType> = selections
            .map(|n| graph.tensor(n.outs[0]).expect("a tensor").dtype)
            .collect();
        assert_eq!(dtypes, [DType::F32, DType::I64]);
    }
}
