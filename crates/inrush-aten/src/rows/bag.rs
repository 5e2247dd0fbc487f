//! Bags of embeddings: rows of a table, summed or averaged by bag.

use super::decomposed as row;
use crate::{Args, Builder, Row};
use inrush_base::{DType, Result};
use inrush_graph::ValueId;

/// The bags, and what the gradient wants to know: each index' bag, the bags' sizes, the places of greatest elements.
fn embedding_bag(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let (weight, indices) = (args.value("weight")?, args.value("indices")?);
    let mut offsets = args.value("offsets")?;
    let mean = match args.const_int("mode")? {
        0 => false,
        1 => true,
        _ => return Err(args.unsupported("mode", "sums and means")),
    };
    let t = b.tensor(weight)?;
    let (count, features) = (b.sizes(indices)?[0], t.sizes[1]);
    let mut bags = b.sizes(offsets)?[0];
    let zero = b.exprs.int(0);
    if args.bool("include_last_offset")? {
        bags = b.exprs.sub(bags, b.exprs.int(1));
        offsets = b.narrow(offsets, 0, zero, bags)?;
    }
    let kind = b.dtype(offsets)?;
    // Of empty bags, which begin where the next one does, the last one at a place holds the index.
    let places = b.call("aten.arange.default", &[count.into()])?;
    let after = b.call(
        "aten.searchsorted.Tensor",
        &[offsets.into(), places.into(), false.into(), true.into()],
    )?;
    let bag_of = b.call("aten.sub.Tensor", &[after.into(), b.int(1)])?;
    let mut rows = b.call(
        "aten.index_select.default",
        &[weight.into(), b.int(0), indices.into()],
    )?;
    rows = b.widen(rows)?;
    let compute = b.dtype(rows)?;
    let column = [count, b.exprs.int(1)];
    if let Some(w) = args.opt_value("per_sample_weights")? {
        let w = b.cast(w, compute)?;
        let w = b.view(w, &column)?;
        rows = b.mul(rows, w)?;
    }
    // What counts: all but the padding.
    let padding = args.int("padding_idx")?;
    let counted = b.call("aten.ne.Scalar", &[indices.into(), padding.into()])?;
    if !b.exprs.is_int(padding, -1) {
        let mask = b.view(counted, &column)?;
        rows = b.select_or(mask, rows, 0.0)?;
    }
    let sums = b.full(&[bags, features], 0.0, compute)?;
    let mut out = b.call(
        "aten.index_add.default",
        &[sums.into(), b.int(0), bag_of.into(), rows.into()],
    )?;
    let ones = b.cast(counted, DType::I64)?;
    let sizes = b.full(&[bags], 0.0, DType::I64)?;
    let sizes = b.call(
        "aten.index_add.default",
        &[sizes.into(), b.int(0), bag_of.into(), ones.into()],
    )?;
    if mean {
        let some = b.call("aten.clamp_min.default", &[sizes.into(), b.int(1)])?;
        let some = b.cast(some, compute)?;
        let some = b.view(some, &[bags, b.exprs.int(1)])?;
        out = b.div(out, some)?;
    }
    let out = b.cast(out, t.dtype)?;
    let sizes = b.cast(sizes, kind)?;
    // Lists that no gradient will read have sizes of the device's own choice.
    let wanted = |b: &mut Builder, k: usize, v: ValueId| -> Result<ValueId> {
        let own = b.sizes(v)?;
        match b.declared(k).map(|t| t.sizes.clone()) {
            Some(s) if s != own => b.full(&s, 0.0, kind),
            _ => b.cast(v, kind),
        }
    };
    let bag_of = wanted(b, 1, bag_of)?;
    let greatest = wanted(b, 3, sizes)?;
    let sizes = wanted(b, 2, sizes)?;
    Ok(vec![out, bag_of, sizes, greatest])
}

const BAG: &str = "(Tensor weight, Tensor indices, Tensor offsets, bool scale_grad_by_freq=False, int mode=0, bool sparse=False, Tensor? per_sample_weights=None, bool include_last_offset=False, int padding_idx=-1) -> (Tensor, Tensor, Tensor, Tensor)";

pub const ROWS: &[Row] = &[
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
        "(f32[7,4], i64[5]{0:6}, i64[3]{0:0}, false, 1, false, none, false, 2)",
    ),
];
