//! Families of graphs that models are made of, and what follows them.
//!
//! Sizes, dtypes and arguments are drawn so that calls mostly fit; a call that does not gives
//! `None` and a new draw. Weights in the table say how often a family is drawn: families of which
//! algorithms are many have more.
//!
//! Families that do not keep whole numbers whole (softmax, norms, resampling) turn `whole` off.

use super::make::Make;
use super::{rare, rows, windows};
use inrush_base::DType;
use inrush_graph::{Arg, ValueId};

/// Draws the core of a graph and returns the value that is followed.
type Family = fn(&mut Make) -> Option<ValueId>;

/// Names, weights and makers.
const FAMILIES: &[(&str, usize, Family)] = &[
    ("convolution", 4, windows::dense),
    ("depthwise convolution", 3, windows::depthwise),
    ("convolution of a model", 4, windows::modelled),
    ("convolution by planes", 2, windows::planes),
    (
        "gradients of a convolution",
        2,
        windows::convolution_backward,
    ),
    ("pool", 2, windows::pool),
    ("gradient of a pool", 1, windows::pool_backward),
    ("product", 5, product),
    ("attention", 2, attention),
    ("norm", 3, norm),
    ("gradient of a norm", 1, norm_backward),
    ("softmax", 2, softmax),
    ("reduction", 4, reduction),
    ("long reduction", 1, long),
    ("scan", 2, scan),
    ("order", 1, order),
    ("index", 3, index),
    ("scatter", 3, scatter),
    ("arrangement", 3, arrange),
    ("resampling", 2, resample),
    ("pointwise", 2, pointwise),
    ("row of the table", 5, rows::row),
    ("minimal filtering", 1, rare::minimal),
    ("row of pixels", 1, rare::pixels),
    ("sums of columns", 1, rare::columns),
    ("bent row", 1, rare::bent),
    ("bytes", 1, rare::bytes),
    ("floats of eight bits", 1, rare::eight_bits),
    ("quantised product", 1, rare::quantized),
    ("planes to pixels", 1, rare::interleaved),
    ("long rows", 1, rare::long_rows),
    ("long scan", 1, rare::long_scan),
    ("norm between products", 1, rare::in_place),
    ("turned tile", 1, rare::turned),
    ("product of halves", 1, rare::halves),
    ("list of tensors", 1, rare::list),
];

/// The names of all families.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    FAMILIES.iter().map(|f| f.0)
}

/// A graph of some family, its followers and outputs.
pub(super) fn draw(m: &mut Make, only: &str) -> Option<&'static str> {
    let mut families = FAMILIES.iter().filter(|f| f.0.contains(only));
    let all = families.clone().map(|f| f.1).sum();
    let mut at = m.r.below(all);
    let (name, _, make) = families.find(|f| {
        let here = at < f.1;
        // Walks along the weights until the drawn number is within one.
        at = at.wrapping_sub(if here { 0 } else { f.1 });
        here
    })?;
    let mut v = make(m)?;
    for _ in 0..m.r.below(4) {
        if m.r.odds(1, 3) {
            m.kept.push(v);
        }
        v = follow(m, v)?;
    }
    // The call writes the last value into an input as well.
    if m.r.odds(1, 8) {
        m.write(v);
    }
    m.kept.push(v);
    // A value is an output once.
    let mut seen = Vec::new();
    m.kept.retain(|k| {
        let new = !seen.contains(k);
        seen.push(*k);
        new
    });
    Some(name)
}

/// Readers of a value: pointwise mostly, a view, a reduction, a norm.
fn follow(m: &mut Make, v: ValueId) -> Option<ValueId> {
    let rank = m.sizes(v).len();
    // The other followers need floats and a dimension.
    if !m.dtype(v).is_float() || rank == 0 {
        return m.pointwise(v);
    }
    let d = m.r.below(rank) as i64;
    match m.r.below(14) {
        0 => {
            let args = vec![Arg::Value(v), m.ints(&[d]), Arg::Bool(m.r.odds(1, 2))];
            let ops = ["aten.sum.dim_IntList", "aten.mean.dim", "aten.amax.default"];
            let op = m.r.of(&ops);
            m.one(op, args)
        }
        1 if !m.whole => {
            let args = vec![Arg::Value(v), m.int(d), Arg::Bool(false)];
            m.one("aten._softmax.default", args)
        }
        2 => view(m, v),
        3 => {
            let other = m.pointwise(v)?;
            let args = vec![Arg::Values(vec![Some(v), Some(other)]), m.int(d)];
            m.one("aten.cat.default", args)
        }
        _ => m.pointwise(v),
    }
}

/// A view or a rearranging copy of a value.
fn view(m: &mut Make, v: ValueId) -> Option<ValueId> {
    let sizes = m.sizes(v);
    let rank = sizes.len();
    let d = m.r.below(rank);
    let x = Arg::Value(v);
    match m.r.below(7) {
        0 => {
            let mut dims: Vec<i64> = (0..rank as i64).collect();
            for k in (1..rank).rev() {
                let other = m.r.below(k + 1);
                dims.swap(k, other);
            }
            let dims = m.ints(&dims);
            m.one("aten.permute.default", vec![x, dims])
        }
        1 => {
            let start = m.r.int(0, sizes[d] / 2);
            let end = m.r.int(start, sizes[d]);
            let step = m.r.of(&[1, 1, 2, 3]);
            let args = [d as i64, start, end, step].map(|i| m.int(i));
            m.one("aten.slice.Tensor", [vec![x], args.to_vec()].concat())
        }
        2 => {
            let dims = m.ints(&[d as i64]);
            m.one("aten.flip.default", vec![x, dims])
        }
        3 => {
            let all = sizes.iter().product();
            let to = m.ints(&[all]);
            m.one("aten.reshape.default", vec![x, to])
        }
        4 => {
            let d = m.int(d as i64);
            m.one("aten.unsqueeze.default", vec![x, d])
        }
        5 if sizes[d] > 0 => {
            let at = m.r.int(0, sizes[d] - 1);
            let args = vec![x, m.int(d as i64), m.int(at)];
            m.one("aten.select.int", args)
        }
        _ => m.one("aten.clone.default", vec![x]),
    }
}

/// Sizes of `rank` dimensions that are not too large together.
pub(super) fn shape(m: &mut Make, rank: usize) -> Vec<i64> {
    loop {
        let sizes: Vec<i64> = (0..rank).map(|_| m.size()).collect();
        if sizes.iter().product::<i64>() <= 12_000 {
            return sizes;
        }
    }
}

/// Returns a number of dimensions; those that images and batches of matrices have are more
/// frequent.
fn rank(m: &mut Make) -> usize {
    m.r.of(&[1, 2, 2, 3, 3, 4, 4, 5])
}

/// Draws a chain of pointwise operators, some of whose values are outputs.
fn pointwise(m: &mut Make) -> Option<ValueId> {
    let dtype = m.float();
    let rank = rank(m);
    let sizes = shape(m, rank);
    let mut v = m.input(dtype, &sizes);
    for _ in 0..1 + m.r.below(5) {
        if m.r.odds(1, 3) {
            m.kept.push(v);
        }
        v = m.pointwise(v)?;
    }
    Some(v)
}

/// Draws a matrix product: plain, batched, with a bias, linear, broadcast, or with a vector.
fn product(m: &mut Make) -> Option<ValueId> {
    let dtype = m.float();
    let side = |m: &mut Make| {
        if m.r.odds(1, 12) {
            m.r.of(&[65, 96, 127, 129, 130, 257])
        } else {
            m.size()
        }
    };
    let (mut rows, mut inner, mut cols) = (side(m), side(m), side(m));
    if m.r.odds(1, 12) {
        // Long sums with few results.
        (rows, inner, cols) = (m.up_to(9), m.r.of(&[700, 1024, 3000]), m.up_to(9));
    }
    // Points that the interpreter visits.
    if rows * inner * cols > 400_000 {
        return None;
    }
    match m.r.below(6) {
        0 => {
            let a = m.source(dtype, &[rows, inner]);
            let dtype = m.dtype(a);
            let b = m.weight(dtype, &[inner, cols]);
            m.one("aten.mm.default", vec![Arg::Value(a), Arg::Value(b)])
        }
        1 => {
            let batch = m.up_to(9);
            let a = m.source(dtype, &[batch, rows, inner]);
            let dtype = m.dtype(a);
            let b = m.operand(dtype, &[batch, inner, cols]);
            m.one("aten.bmm.default", vec![Arg::Value(a), Arg::Value(b)])
        }
        2 => {
            let a = m.source(dtype, &[rows, inner]);
            let dtype = m.dtype(a);
            let b = m.weight(dtype, &[inner, cols]);
            let c = match m.r.below(3) {
                0 => m.weight(dtype, &[cols]),
                1 => m.input(dtype, &[rows, 1]),
                _ => m.input(dtype, &[rows, cols]),
            };
            let args = [c, a, b].map(Arg::Value).to_vec();
            m.one("aten.addmm.default", args)
        }
        3 => {
            let lead = m.up_to(5);
            let a = m.source(dtype, &[lead, rows, inner]);
            let dtype = m.dtype(a);
            let b = m.weight(dtype, &[cols, inner]);
            let bias = if m.r.odds(1, 2) {
                Arg::Value(m.weight(dtype, &[cols]))
            } else {
                Arg::None
            };
            let args = vec![Arg::Value(a), Arg::Value(b), bias];
            m.one("aten.linear.default", args)
        }
        4 => {
            let batch = m.up_to(5);
            let a = m.source(dtype, &[batch, 1, rows, inner]);
            let dtype = m.dtype(a);
            let heads = m.up_to(4);
            let b = m.operand(dtype, &[heads, inner, cols]);
            m.one("aten.matmul.default", vec![Arg::Value(a), Arg::Value(b)])
        }
        _ => {
            let a = m.source(dtype, &[rows, inner]);
            let dtype = m.dtype(a);
            let b = m.weight(dtype, &[inner]);
            m.one("aten.mv.default", vec![Arg::Value(a), Arg::Value(b)])
        }
    }
}

/// Draws attention with a bias, a mask of keys, a causal mask or none; PyTorch refuses two at once. Heads may share keys.
fn attention(m: &mut Make) -> Option<ValueId> {
    m.whole = false;
    let dtype = m.float();
    let (batch, heads) = (m.r.of(&[1, 2]), m.r.of(&[1, 2, 3]));
    let shared = if m.r.odds(1, 4) { 2 } else { 1 };
    let (queries, keys, width) = (m.up_to(33), m.up_to(33).max(1), m.up_to(33).max(1));
    let q = m.source(dtype, &[batch, heads * shared, queries, width]);
    let dtype = m.dtype(q);
    let k = m.input(dtype, &[batch, heads, keys, width]);
    let v = m.input(dtype, &[batch, heads, keys, width]);
    let mask = match m.r.below(3) {
        0 if m.r.odds(1, 2) => Arg::Value(m.input(DType::Bool, &[batch, 1, 1, keys])),
        0 => Arg::Value(m.input(dtype, &[queries, keys])),
        _ => Arg::None,
    };
    let causal = mask == Arg::None && m.r.odds(1, 3);
    let args = vec![
        Arg::Value(q),
        Arg::Value(k),
        Arg::Value(v),
        mask,
        Arg::Float(0.0),
        Arg::Bool(causal),
        Arg::None,
        Arg::Bool(shared > 1),
    ];
    m.one("aten.scaled_dot_product_attention.default", args)
}

/// Draws a layer, RMS, group or batch norm, the latter with running statistics.
fn norm(m: &mut Make) -> Option<ValueId> {
    m.whole = false;
    let dtype =
        m.r.of(&[DType::F32, DType::F32, DType::BF16, DType::F16, DType::F64]);
    match m.r.below(4) {
        0 | 1 => {
            let rank = m.r.of(&[2, 2, 3, 4]);
            let sizes = shape(m, rank);
            let last = m.r.of(&[1, 1, 2]).min(rank);
            let tail = sizes[rank - last..].to_vec();
            let x = m.source(dtype, &sizes);
            let dtype = m.dtype(x);
            let (w, b) = (m.weight(dtype, &tail), m.weight(dtype, &tail));
            if m.r.odds(1, 3) {
                let args = vec![
                    Arg::Value(x),
                    m.ints(&tail),
                    Arg::Value(w),
                    Arg::Float(1e-5),
                ];
                return m.one("aten.rms_norm.default", args);
            }
            let args = vec![
                Arg::Value(x),
                m.ints(&tail),
                Arg::Value(w),
                Arg::Value(b),
                Arg::Float(1e-3),
            ];
            m.one("aten.layer_norm.default", args)
        }
        2 => {
            let groups = m.r.of(&[1, 2, 3, 4]);
            let channels = groups * m.up_to(9).max(1);
            let sizes = [m.r.of(&[1, 2]), channels, m.up_to(17), m.up_to(17)];
            let x = m.source(dtype, &sizes);
            let dtype = m.dtype(x);
            let (w, b) = (m.weight(dtype, &[channels]), m.weight(dtype, &[channels]));
            let args = vec![
                Arg::Value(x),
                m.int(groups),
                Arg::Value(w),
                Arg::Value(b),
                Arg::Float(1e-3),
            ];
            m.one("aten.group_norm.default", args)
        }
        _ => {
            let channels = m.up_to(33);
            let sizes = [m.r.of(&[1, 2, 3]), channels, m.up_to(17), m.up_to(17)];
            let x = m.source(dtype, &sizes);
            let dtype = m.dtype(x);
            let (w, b) = (m.weight(dtype, &[channels]), m.weight(dtype, &[channels]));
            let mean = m.weight(dtype, &[channels]);
            // Variances are positive.
            let var = m.within(dtype, &[channels], 0.5, 2.0);
            let args = vec![
                Arg::Value(x),
                Arg::Value(w),
                Arg::Value(b),
                Arg::Value(mean),
                Arg::Value(var),
                Arg::Bool(false),
                Arg::Float(0.1),
                Arg::Float(1e-3),
                Arg::Bool(false),
            ];
            m.one("aten.batch_norm.default", args)
        }
    }
}

/// Draws the gradients of a layer norm; mean and reciprocal deviation are inputs and need not be
/// those of `x`.
fn norm_backward(m: &mut Make) -> Option<ValueId> {
    m.whole = false;
    let dtype = m.r.of(&[DType::F32, DType::F32, DType::F64]);
    let sizes = shape(m, 3);
    let width = sizes[2];
    let g = m.source(dtype, &sizes);
    if m.dtype(g) != dtype {
        return None;
    }
    let x = m.input(dtype, &sizes);
    let few = [sizes[0], sizes[1], 1];
    let mean = m.input(dtype, &few);
    let rstd = m.within(dtype, &few, 0.5, 2.0);
    let (w, b) = (m.weight(dtype, &[width]), m.weight(dtype, &[width]));
    let args = vec![
        Arg::Value(g),
        Arg::Value(x),
        m.ints(&[width]),
        Arg::Value(mean),
        Arg::Value(rstd),
        Arg::Value(w),
        Arg::Value(b),
        Arg::Bools(vec![true; 3]),
    ];
    let outs = m.call("aten.native_layer_norm_backward.default", args)?;
    m.kept.extend(&outs[1..]);
    Some(outs[0])
}

/// Draws a softmax or log softmax, with its gradient in a third of the draws.
fn softmax(m: &mut Make) -> Option<ValueId> {
    m.whole = false;
    let dtype = m.float();
    let rank = m.r.of(&[1, 2, 2, 3, 4]);
    let sizes = shape(m, rank);
    let d = m.r.below(rank) as i64;
    let x = m.source(dtype, &sizes);
    let args = vec![Arg::Value(x), m.int(d), Arg::Bool(false)];
    let op =
        m.r.of(&["aten._softmax.default", "aten._log_softmax.default"]);
    let y = m.one(op, args)?;
    if m.r.odds(1, 3) {
        let g = m.input(m.dtype(y), &sizes);
        let dtype = Arg::DType(m.dtype(y));
        let args = vec![Arg::Value(g), Arg::Value(y), m.int(d), dtype];
        return m.one("aten._softmax_backward_data.default", args);
    }
    Some(y)
}

/// Draws a reduction over some dimensions, of which one is long in two fifths of the draws.
fn reduction(m: &mut Make) -> Option<ValueId> {
    let dtype = m.float();
    let rank = rank(m);
    let mut sizes = shape(m, rank);
    if m.r.odds(2, 5) {
        // One long dimension, so that threads share it.
        sizes = match m.r.below(4) {
            0 => vec![
                m.r.of(&[1, 1, 2]),
                m.r.of(&[16_384, 32_768, 34_000, 65_536]),
            ],
            1 => vec![m.r.of(&[64, 100, 128, 191]), m.r.of(&[256, 300, 350])],
            2 => vec![m.r.of(&[1, 3, 8]), m.r.of(&[1000, 1024, 4097])],
            _ => vec![m.r.of(&[1000, 1024, 4097]), m.r.of(&[1, 3, 8])],
        };
    }
    let rank = sizes.len();
    let x = m.source(dtype, &sizes);
    let mut dims: Vec<i64> = (0..rank as i64).filter(|_| m.r.odds(1, 2)).collect();
    if dims.is_empty() {
        dims.push(m.r.below(rank) as i64);
    }
    // Sums along what is long, and down the columns of what is wide.
    match *sizes.as_slice() {
        [rows, columns] if rows > 63 && columns > 255 => dims = vec![0],
        [_, columns] if columns > 999 => dims = vec![1],
        _ => {}
    }
    let keep = Arg::Bool(m.r.odds(1, 2));
    let v = Arg::Value(x);
    // Means and extremes of nothing are NaN or refused.
    let empty = sizes.contains(&0);
    match m.r.below(8) {
        0 | 1 => {
            let dims = m.ints(&dims);
            m.one("aten.sum.dim_IntList", vec![v, dims, keep])
        }
        2 if !m.whole && !empty => {
            let dims = m.ints(&dims);
            m.one("aten.mean.dim", vec![v, dims, keep])
        }
        3 if !empty => {
            let op = m.r.of(&["aten.amax.default", "aten.amin.default"]);
            let dims = m.ints(&dims);
            m.one(op, vec![v, dims, keep])
        }
        4 if !empty => {
            let op = m.r.of(&["aten.max.dim", "aten.min.dim"]);
            let d = m.int(dims[0]);
            let outs = m.call(op, vec![v, d, keep])?;
            m.kept.push(outs[1]);
            Some(outs[0])
        }
        5 if !m.whole && !empty => {
            let dims = m.ints(&dims);
            m.one("aten.var.correction", vec![v, dims, m.int(0), keep])
        }
        6 => {
            let d = m.int(dims[0]);
            let positive = m.one("aten.gt.Scalar", vec![v, Arg::Float(0.25)])?;
            m.one("aten.any.dim", vec![Arg::Value(positive), d, keep])
        }
        _ => m.one("aten.sum.default", vec![v]),
    }
}

/// A reduction of so much that threads share it, or of rows long enough for one walk.
fn long(m: &mut Make) -> Option<ValueId> {
    m.whole = false;
    let dtype =
        m.r.of(&[DType::F32, DType::F32, DType::F32, DType::BF16, DType::F64]);
    if m.r.odds(1, 2) {
        let width = m.r.of(&[1024, 1500, 2048, 4096]);
        let rows = m.r.of(&[1, 2, 5]);
        let x = m.source(dtype, &[rows, width]);
        let dtype = m.dtype(x);
        let (w, b) = (m.weight(dtype, &[width]), m.weight(dtype, &[width]));
        let args = vec![
            Arg::Value(x),
            m.ints(&[width]),
            Arg::Value(w),
            Arg::Value(b),
            Arg::Float(1e-3),
        ];
        return m.one("aten.layer_norm.default", args);
    }
    let sizes = if m.r.odds(2, 3) {
        vec![1, m.r.of(&[32_768, 40_000, 65_536])]
    } else {
        vec![m.r.of(&[192, 256]), m.r.of(&[200, 256])]
    };
    let x = m.source(dtype, &sizes);
    match m.r.below(3) {
        0 => m.one("aten.sum.default", vec![Arg::Value(x)]),
        1 => {
            let args = vec![Arg::Value(x), m.ints(&[0, 1]), Arg::Bool(false)];
            m.one("aten.mean.dim", args)
        }
        _ => {
            let args = vec![Arg::Value(x), m.ints(&[0, 1]), Arg::Bool(true)];
            m.one("aten.amax.default", args)
        }
    }
}

/// Draws a running sum or product.
fn scan(m: &mut Make) -> Option<ValueId> {
    let dtype = m.float();
    let rank = m.r.of(&[1, 2, 2, 3]);
    let sizes = shape(m, rank);
    let x = m.source(dtype, &sizes);
    let d = m.r.below(rank) as i64;
    let op = if m.whole {
        "aten.cumsum.default"
    } else {
        m.r.of(&["aten.cumsum.default", "aten.cumprod.default"])
    };
    let d = m.int(d);
    m.one(op, vec![Arg::Value(x), d])
}

/// Draws a sort or the largest elements. Only the values are compared, since equal elements may
/// come in any order.
fn order(m: &mut Make) -> Option<ValueId> {
    let dtype =
        m.r.of(&[DType::F32, DType::I64, DType::BF16, DType::I32, DType::U8]);
    let rank = m.r.of(&[1, 2, 3]);
    let mut sizes: Vec<i64> = (0..rank).map(|_| m.up_to(24).max(1)).collect();
    let d = m.r.below(rank);
    // Programs of GPUs hold rows of up to 1,024.
    if m.r.odds(1, 3) {
        sizes.iter_mut().for_each(|n| *n = (*n).min(4));
        sizes[d] = m.r.int(25, 1100);
    }
    let x = m.input(dtype, &sizes);
    let largest = Arg::Bool(m.r.odds(1, 2));
    let outs = if m.r.odds(1, 2) {
        let k = m.r.int(1, sizes[d].min(5));
        let args = vec![Arg::Value(x), m.int(k), m.int(d as i64), largest];
        m.call("aten.topk.default", args)?
    } else {
        let args = vec![Arg::Value(x), m.int(d as i64), largest];
        m.call("aten.sort.default", args)?
    };
    Some(outs[0])
}

/// Draws a gather: by rows, by elements, from a table, or by index tensors of one or two
/// dimensions.
fn index(m: &mut Make) -> Option<ValueId> {
    let dtype = m.float();
    let rank = m.r.of(&[1, 2, 2, 3, 4]);
    let sizes = shape(m, rank);
    let d = m.r.below(rank);
    if sizes[d] == 0 {
        return None;
    }
    let range = (0, sizes[d] - 1);
    match m.r.below(4) {
        0 => {
            let x = m.source(dtype, &sizes);
            let n = m.up_to(33);
            let at = m.index(&[n], range);
            let args = vec![Arg::Value(x), m.int(d as i64), Arg::Value(at)];
            m.one("aten.index_select.default", args)
        }
        1 => {
            let x = m.source(dtype, &sizes);
            let mut few: Vec<i64> = sizes.iter().map(|s| m.r.int(0, *s)).collect();
            few[d] = m.up_to(24);
            let at = m.input(DType::I64, &few);
            let name = m.g.value(at).name.clone();
            m.ranges.push(format!("{name}={}..{}", range.0, range.1));
            let args = vec![Arg::Value(x), m.int(d as i64), Arg::Value(at)];
            m.one("aten.gather.default", args)
        }
        2 => {
            let (rows, width) = (m.size().max(1), m.size());
            let w = m.weight(dtype, &[rows, width]);
            let shape = shape(m, 2);
            let at = m.index(&shape, (0, rows - 1));
            m.one(
                "aten.embedding.default",
                vec![Arg::Value(w), Arg::Value(at)],
            )
        }
        _ => {
            let x = m.source(dtype, &sizes);
            let n = m.up_to(16);
            let mut list = vec![None; rank];
            // Only `index` accepts negative indices.
            list[d] = Some(m.index(&[n], (-sizes[d], sizes[d] - 1)));
            if rank > 1 && m.r.odds(1, 2) {
                let other = (d + 1) % rank;
                if sizes[other] > 0 {
                    list[other] = Some(m.index(&[n], (0, sizes[other] - 1)));
                }
            }
            m.one("aten.index.Tensor", vec![Arg::Value(x), Arg::Values(list)])
        }
    }
}

/// Draws an accumulating scatter: indices repeat, so plain writes would have no defined result.
fn scatter(m: &mut Make) -> Option<ValueId> {
    let dtype =
        m.r.of(&[DType::F32, DType::F32, DType::F64, DType::I64, DType::BF16]);
    let rank = m.r.of(&[1, 2, 2, 3]);
    let sizes = shape(m, rank);
    let d = m.r.below(rank);
    if sizes[d] == 0 {
        return None;
    }
    let x = m.input(dtype, &sizes);
    let last = sizes[d] - 1;
    match m.r.below(3) {
        0 | 1 => {
            let mut few: Vec<i64> = sizes.iter().map(|s| m.r.int(0, *s)).collect();
            few[d] = m.up_to(33);
            let at = m.input(DType::I64, &few);
            let name = m.g.value(at).name.clone();
            m.ranges.push(format!("{name}=0..{last}"));
            let src = m.source(dtype, &few);
            if m.dtype(src) != dtype {
                return None;
            }
            let args = vec![
                Arg::Value(x),
                m.int(d as i64),
                Arg::Value(at),
                Arg::Value(src),
            ];
            m.one("aten.scatter_add.default", args)
        }
        _ => {
            let n = m.up_to(33);
            let at = m.index(&[n], (0, sizes[0].max(1) - 1));
            if sizes[0] == 0 {
                return None;
            }
            let mut values = sizes.clone();
            values[0] = n;
            let values = m.input(dtype, &values);
            let args = vec![
                Arg::Value(x),
                Arg::Values(vec![Some(at)]),
                Arg::Value(values),
                Arg::Bool(true),
            ];
            m.one("aten.index_put.default", args)
        }
    }
}

/// Draws copies of other order: joined, stacked, padded, rolled, or a view.
fn arrange(m: &mut Make) -> Option<ValueId> {
    let dtype =
        m.r.of(&[DType::F32, DType::F32, DType::BF16, DType::I64, DType::U8]);
    let rank = rank(m);
    let mut sizes = shape(m, rank);
    let d = m.r.below(rank);
    if m.r.odds(1, 3) && rank < 4 {
        // Long enough for loops that are cut.
        sizes[rank - 1] = m.r.of(&[100, 130, 200]);
    }
    let x = m.source(dtype, &sizes);
    let dtype = m.dtype(x);
    match m.r.below(6) {
        0 => {
            let mut parts = vec![Some(x)];
            for _ in 0..1 + m.r.below(3) {
                let mut other = sizes.clone();
                other[d] = m.up_to(17);
                let part = m.source(dtype, &other);
                if m.dtype(part) != dtype {
                    return None;
                }
                parts.push(Some(part));
            }
            let args = vec![Arg::Values(parts), m.int(d as i64)];
            m.one("aten.cat.default", args)
        }
        1 => {
            let other = m.input(dtype, &sizes);
            let d = m.r.below(rank + 1) as i64;
            let args = vec![Arg::Values(vec![Some(x), Some(other)]), m.int(d)];
            m.one("aten.stack.default", args)
        }
        2 => {
            let pads: Vec<i64> = (0..2 * rank.min(2)).map(|_| m.r.int(-1, 3)).collect();
            let args = vec![Arg::Value(x), m.ints(&pads), m.int(1)];
            m.one("aten.constant_pad_nd.default", args)
        }
        3 => {
            let (shift, d) = (m.r.int(-5, 5), d as i64);
            let args = vec![Arg::Value(x), m.ints(&[shift]), m.ints(&[d])];
            m.one("aten.roll.default", args)
        }
        4 if (3..5).contains(&rank) && dtype.is_float() => {
            let n = rank - 2;
            let pads: Vec<i64> = (0..2 * n).map(|_| m.r.int(0, 2)).collect();
            let kind = m.r.of(&["reflection", "replication"]);
            let args = vec![Arg::Value(x), m.ints(&pads)];
            m.one(&format!("aten.{kind}_pad{n}d.default"), args)
        }
        _ => view(m, x),
    }
}

/// Draws an interpolation of images to another size or at the points of a grid.
fn resample(m: &mut Make) -> Option<ValueId> {
    m.whole = false;
    let dtype = m.r.of(&[DType::F32, DType::F32, DType::F64]);
    let sizes = [
        m.r.of(&[1, 2]),
        m.up_to(17).max(1),
        m.up_to(13).max(1),
        m.up_to(13).max(1),
    ];
    let x = m.source(dtype, &sizes);
    let to = [m.up_to(24).max(1), m.up_to(24).max(1)];
    let corners = Arg::Bool(m.r.odds(1, 2));
    let (v, size) = (Arg::Value(x), m.ints(&to));
    match m.r.below(4) {
        0 => m.one("aten.upsample_nearest2d.default", vec![v, size]),
        1 => m.one("aten.upsample_bilinear2d.default", vec![v, size, corners]),
        2 => m.one("aten.upsample_bicubic2d.default", vec![v, size, corners]),
        _ => {
            let dtype = m.dtype(x);
            let grid = m.within(dtype, &[sizes[0], to[0], to[1], 2], -1.5, 1.5);
            let mode = m.r.int(0, 1);
            let padding = m.r.int(0, 2);
            // Coordinates at a half decide by their last bit which pixel is nearest.
            let mode = if mode == 1 { 2 } else { 0 };
            let args = vec![v, Arg::Value(grid), m.int(mode), m.int(padding), corners];
            m.one("aten.grid_sampler_2d.default", args)
        }
    }
}
