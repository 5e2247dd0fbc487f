//! Graphs that take ways of the engine and of kernels which few sizes, layouts and neighbours lead to.
//!
//! Each function aims at the condition of one algorithm: channel counts, image sides and strides
//! are drawn from values that meet it or miss it narrowly. The values follow the conditions in
//! `inrush-cpu`, `inrush-kernel` and `inrush-c`; if a condition changes there, `drawn-graphs
//! --reach yes` says which way is no longer found.

use super::make::Make;
use super::windows::convolved;
use inrush_base::DType;
use inrush_graph::{Arg, ValueId};

/// Filters of 3 x 3 over enough channels for minimal filtering, by tiles of 2 where the image is small.
pub(super) fn minimal(m: &mut Make) -> Option<ValueId> {
    m.parameters = true;
    let (i, o) = m.r.of(&[(32, 32), (64, 32), (64, 64)]);
    let side = m.r.of(&[6, 8, 10, 12, 14, 16]);
    let x = m.channels_last(DType::F32, &[1, i, side, side]);
    let f = m.weight(DType::F32, &[o, i, 3, 3]);
    // Stride and dilation 1: minimal filtering takes no other windows.
    convolved(m, [x, f], Arg::None, 1, 1, 1)
}

/// Depthwise windows over rows of pixels whose channels are vectors, and what a model does with the sums.
pub(super) fn pixels(m: &mut Make) -> Option<ValueId> {
    let dtype = m.r.of(&[DType::F32, DType::F32, DType::BF16]);
    let c = m.r.of(&[32, 48, 64]);
    let k = m.r.of(&[3, 3, 5]);
    let side = m.r.of(&[8, 12, 14, 16, 21]);
    let batch = m.r.of(&[1, 2, 2]);
    let x = m.channels_last(dtype, &[batch, c, side, side]);
    let f = m.weight(dtype, &[c, 1, k, k]);
    let mut v = convolved(m, [x, f], Arg::None, 1, k / 2, c)?;
    if m.r.odds(2, 3) {
        for op in ["aten.mul.Tensor", "aten.add.Tensor"] {
            let w = m.weight(dtype, &[c, 1, 1]);
            v = m.one(op, vec![Arg::Value(v), Arg::Value(w)])?;
        }
        let op = m.r.of(&[
            "aten.silu.default",
            "aten.gelu.default",
            "aten.hardswish.default",
        ]);
        v = m.one(op, vec![Arg::Value(v)])?;
    }
    Some(v)
}

/// Quantised weights and values: numbers of eight bits that are read, scaled, multiplied, summed and rounded again.
pub(super) fn eight_bits(m: &mut Make) -> Option<ValueId> {
    let kind = m.r.of(&[
        DType::F8E4M3FN,
        DType::F8E5M2,
        DType::F8E4M3FNUZ,
        DType::F8E5M2FNUZ,
    ]);
    let [rows, columns] = [m.r.int(1, 20), m.r.of(&[1, 3, 15, 16, 17, 31, 40, 64])];
    let wide = m.r.of(&[DType::F32, DType::F32, DType::BF16, DType::F16]);
    let cast = |m: &mut Make, v: ValueId, to: DType| {
        let none = || Arg::None;
        let args = vec![
            Arg::Value(v),
            Arg::DType(to),
            none(),
            none(),
            none(),
            Arg::Bool(false),
            none(),
        ];
        m.one("aten._to_copy.default", args)
    };
    let packed = m.input(kind, &[rows, columns]);
    let scale = m.weight(wide, &[rows, 1]);
    let read = cast(m, packed, wide)?;
    let scaled = m.one("aten.mul.Tensor", vec![Arg::Value(read), Arg::Value(scale)])?;
    match m.r.below(4) {
        0 => {
            let few = m.r.int(1, 5);
            let x = m.input(wide, &[few, columns]);
            let turned = m.one("aten.t.default", vec![Arg::Value(scaled)])?;
            m.one("aten.mm.default", vec![Arg::Value(x), Arg::Value(turned)])
        }
        1 => {
            let axis = m.r.int(0, 1);
            let axis = m.ints(&[axis]);
            let args = vec![Arg::Value(scaled), axis, Arg::Bool(false)];
            m.one("aten.sum.dim_IntList", args)
        }
        2 => {
            let args = vec![Arg::Value(packed), m.ints(&[1, 0])];
            let turned = m.one("aten.permute.default", args)?;
            m.one("aten.clone.default", vec![Arg::Value(turned), Arg::None])
        }
        _ => cast(m, scaled, kind),
    }
}

/// Products of quantised matrices with their scales, the second factor row-major or turned.
pub(super) fn quantized(m: &mut Make) -> Option<ValueId> {
    let [rows, columns] = [m.r.int(1, 40), m.r.of(&[1, 3, 16, 17, 31, 48])];
    let inner = m.r.of(&[1, 5, 16, 33, 64, 70]);
    let turned = m.r.odds(1, 2);
    let factor = |m: &mut Make, dtype: DType| {
        if !turned {
            return Some(m.input(dtype, &[inner, columns]));
        }
        let rows = m.input(dtype, &[columns, inner]);
        m.one("aten.t.default", vec![Arg::Value(rows)])
    };
    match m.r.below(4) {
        0 => {
            let x = m.input(DType::I8, &[rows, inner]);
            let y = factor(m, DType::I8)?;
            m.one("aten._int_mm.default", vec![Arg::Value(x), Arg::Value(y)])
        }
        1 => {
            let dtype = m.r.of(&[DType::F32, DType::BF16, DType::F16]);
            let x = m.input(dtype, &[rows, inner]);
            let w = m.weight(DType::I8, &[columns, inner]);
            let scales = m.weight(dtype, &[columns]);
            let args = [x, w, scales].map(Arg::Value).to_vec();
            m.one("aten._weight_int8pack_mm.default", args)
        }
        _ => {
            let kinds = [DType::F8E4M3FN, DType::F8E5M2, DType::F8E4M3FNUZ];
            let (a, b) = (m.r.of(&kinds), m.r.of(&kinds));
            let x = m.input(a, &[rows, inner]);
            let y = factor(m, b)?;
            let each = m.r.odds(1, 2);
            let scale =
                |m: &mut Make, sizes: &[i64]| m.weight(DType::F32, if each { sizes } else { &[] });
            let (sa, sb) = (scale(m, &[rows, 1]), scale(m, &[1, columns]));
            // Sums of another order round to another float of eight bits.
            let out = m.r.of(&[DType::F32, DType::BF16]);
            let bias = if m.r.odds(1, 2) {
                Arg::Value(m.weight(DType::BF16, &[columns]))
            } else {
                Arg::None
            };
            let mut args = [x, y, sa, sb].map(Arg::Value).to_vec();
            args.extend([bias, Arg::None, Arg::DType(out), Arg::Bool(false)]);
            m.one("aten._scaled_mm.default", args)
        }
    }
}

/// Reductions over the outer dimension, whose rows are a kilobyte or longer, and over the pixels of images that are channels last.
pub(super) fn columns(m: &mut Make) -> Option<ValueId> {
    m.whole = false;
    let dtype = m.r.of(&[DType::F32, DType::F32, DType::BF16]);
    if m.r.odds(1, 2) {
        let [n, c] = [m.r.int(1, 2), m.r.of(&[20, 96, 130, 240])];
        let [h, w] = [m.r.int(5, 17), m.r.int(5, 17)];
        let x = m.input_with(dtype, &[n, c, h, w], &[h * w * c, 1, w * c, c]);
        let op =
            m.r.of(&["aten.mean.dim", "aten.sum.dim_IntList", "aten.amax.default"]);
        let args = vec![Arg::Value(x), m.ints(&[2, 3]), Arg::Bool(m.r.odds(1, 2))];
        return m.one(op, args);
    }
    let sizes = [m.r.of(&[64, 65, 100, 130]), m.r.of(&[520, 700, 1031])];
    let x = m.input(dtype, &sizes);
    match m.r.below(3) {
        0 => {
            let args = vec![Arg::Value(x), m.ints(&[0]), Arg::Bool(false)];
            m.one("aten.amax.default", args)
        }
        n => {
            let op = ["aten.sum.dim_IntList", "aten.mean.dim"][n - 1];
            let args = vec![Arg::Value(x), m.ints(&[0]), Arg::Bool(m.r.odds(1, 2))];
            m.one(op, args)
        }
    }
}

/// Long rows that are rolled, or reflected at their ends.
pub(super) fn bent(m: &mut Make) -> Option<ValueId> {
    let dtype = m.r.of(&[DType::F32, DType::F32, DType::U8]);
    let width = m.r.of(&[300, 401, 512]);
    let x = m.input(dtype, &[3, width]);
    if m.r.odds(1, 2) && dtype.is_float() {
        let pads = [m.r.int(1, 9), m.r.int(1, 9)];
        let pads = m.ints(&pads);
        return m.one("aten.reflection_pad1d.default", vec![Arg::Value(x), pads]);
    }
    let shift = m.r.int(1, 40);
    let args = vec![Arg::Value(x), m.ints(&[shift]), m.ints(&[1])];
    m.one("aten.roll.default", args)
}

/// Bytes that are rearranged: the only type of which code without vectors has lanes.
pub(super) fn bytes(m: &mut Make) -> Option<ValueId> {
    let sizes = [m.r.of(&[2, 5]), m.r.of(&[16, 33]), m.r.of(&[64, 130])];
    let x = m.input(DType::U8, &sizes);
    let arg = Arg::Value(x);
    match m.r.below(5) {
        0 => {
            let dims = m.ints(&[0, 2, 1]);
            let turned = m.one("aten.permute.default", vec![arg, dims])?;
            let other = m.input(DType::U8, &[sizes[0], sizes[2], sizes[1]]);
            m.one(
                "aten.add.Tensor",
                vec![Arg::Value(turned), Arg::Value(other)],
            )
        }
        1 => {
            let (shift, dim) = (m.r.int(1, 9), m.r.int(1, 2));
            let args = vec![arg, m.ints(&[shift]), m.ints(&[dim])];
            m.one("aten.roll.default", args)
        }
        2 => {
            let args = vec![Arg::Values(vec![Some(x), Some(x)]), m.int(2)];
            m.one("aten.cat.default", args)
        }
        3 => {
            let args = vec![arg, m.ints(&[2]), Arg::Bool(false)];
            m.one("aten.amax.default", args)
        }
        _ => {
            let dims = m.ints(&[2]);
            m.one("aten.flip.default", vec![arg, dims])
        }
    }
}

/// Planes of a few channels, padded or not, that become channels last.
pub(super) fn interleaved(m: &mut Make) -> Option<ValueId> {
    m.whole = false;
    let dtype = m.r.of(&[DType::F32, DType::F32, DType::I32]);
    let sizes = [
        m.r.int(1, 2),
        m.r.int(2, 4),
        m.r.int(3, 9),
        m.r.of(&[15, 16, 33, 70, 128]),
    ];
    let mut v = m.input(dtype, &sizes);
    if m.r.odds(1, 2) {
        let pads: Vec<i64> = (0..4).map(|_| m.r.int(0, 2)).collect();
        let fill = m.r.int(0, 3);
        let args = vec![Arg::Value(v), m.ints(&pads), m.int(fill)];
        v = m.one("aten.constant_pad_nd.default", args)?;
    }
    let dims = m.ints(&[0, 2, 3, 1]);
    let v = m.one("aten.permute.default", vec![Arg::Value(v), dims])?;
    let parts = vec![Some(v); m.r.int(1, 2) as usize];
    m.one("aten.cat.default", vec![Arg::Values(parts), m.int(1)])
}

/// Norms and softmaxes of long rows: a GPU splits those of many elements, and walks in steps those of which so much is read for
/// each point that it cannot hold them whole. Columns are walked as well.
pub(super) fn long_rows(m: &mut Make) -> Option<ValueId> {
    m.whole = false;
    if m.r.odds(1, 3) {
        // Columns, fewer than are split and more than are held whole.
        let sizes = [m.r.of(&[1, 3]), m.r.of(&[260, 300]), m.r.of(&[17, 20])];
        let strides = [sizes[1] * sizes[2], sizes[2], 1];
        let x = m.input_with(DType::F32, &sizes, &strides);
        let row = m.ints(&[1]);
        let args = vec![Arg::Value(x), row, m.int(1), Arg::Bool(m.r.odds(1, 2))];
        return m.one("aten.var.correction", args);
    }
    let split = m.r.odds(1, 2);
    let (rows, width) = if split {
        (m.r.of(&[1, 2, 3]), m.r.of(&[16_389, 20_000]))
    } else {
        (m.r.of(&[1, 2, 5]), m.r.of(&[4099, 4608, 5001]))
    };
    let mut v = m.input_with(DType::F32, &[rows, width], &[width, 1]);
    if !split {
        for op in ["mul", "add", "mul", "sub"] {
            let w = m.input(DType::F32, &[width]);
            let args = vec![Arg::Value(v), Arg::Value(w)];
            v = m.one(&format!("aten.{op}.Tensor"), args)?;
        }
    }
    let row = m.ints(&[1]);
    match m.r.below(3) {
        0 => {
            let args = vec![Arg::Value(v), m.int(1), Arg::Bool(false)];
            m.one("aten._softmax.default", args)
        }
        1 => {
            let args = vec![Arg::Value(v), row, m.int(1), Arg::Bool(m.r.odds(1, 2))];
            m.one("aten.var.correction", args)
        }
        _ => {
            let (w, b) = (
                m.weight(DType::F32, &[width]),
                m.weight(DType::F32, &[width]),
            );
            let args = vec![
                Arg::Value(v),
                m.ints(&[width]),
                Arg::Value(w),
                Arg::Value(b),
                Arg::Float(1e-3),
            ];
            m.one("aten.layer_norm.default", args)
        }
    }
}

/// A norm between two products: its result takes the place of its input, which every thread has to have read by then.
pub(super) fn in_place(m: &mut Make) -> Option<ValueId> {
    m.whole = false;
    let (rows, width) = (m.r.of(&[8, 33]), m.r.of(&[64, 100]));
    let (x, a) = (
        m.input(DType::F32, &[rows, 16]),
        m.weight(DType::F32, &[16, width]),
    );
    let v = m.one("aten.mm.default", vec![Arg::Value(x), Arg::Value(a)])?;
    let args = vec![
        Arg::Value(v),
        m.ints(&[width]),
        Arg::None,
        Arg::None,
        Arg::Float(1e-3),
    ];
    let v = m.one("aten.layer_norm.default", args)?;
    let b = m.weight(DType::F32, &[width, 24]);
    m.one("aten.mm.default", vec![Arg::Value(v), Arg::Value(b)])
}

/// Running sums along few rows, or columns, that GPUs split.
pub(super) fn long_scan(m: &mut Make) -> Option<ValueId> {
    m.whole = false;
    let dtype =
        m.r.of(&[DType::F32, DType::F32, DType::I64, DType::BF16, DType::F64]);
    let n = m.r.of(&[32_768, 32_770, 33_001, 36_864]);
    let (sizes, d) = match m.r.below(3) {
        0 => (vec![n], 0),
        1 => (vec![m.r.of(&[1, 2]), n], 1),
        _ => (vec![n, m.r.of(&[1, 2])], 0),
    };
    let mut x = m.source(dtype, &sizes);
    if m.r.odds(1, 3) {
        x = m.one("aten.neg.default", vec![Arg::Value(x)])?;
    }
    if m.r.odds(1, 3) {
        let dims = m.ints(&[d]);
        x = m.one("aten.flip.default", vec![Arg::Value(x), dims])?;
    }
    let op = if m.dtype(x).is_float() && m.r.odds(1, 3) {
        "aten.logcumsumexp.default"
    } else {
        "aten.cumsum.default"
    };
    let d = m.int(d);
    m.one(op, vec![Arg::Value(x), d])
}

/// A product of halves whose operands tensor maps describe, as rows or as columns, with a bias or a factor for each element.
pub(super) fn halves(m: &mut Make) -> Option<ValueId> {
    m.whole = false;
    let dtype = m.r.of(&[DType::BF16, DType::F16]);
    // Tiles have 128 rows and columns, and a program takes two side by side.
    let (rows, columns) = (
        m.r.of(&[8, 120, 128, 136, 264]),
        m.r.of(&[8, 128, 248, 264, 392]),
    );
    let terms = match rows * columns {
        ..8_192 => m.r.of(&[8, 56, 64, 72, 136]),
        8_192..40_000 => m.r.of(&[8, 16]),
        _ => 8,
    };
    let matrix = |m: &mut Make, a: i64, b: i64| {
        let strides = if m.r.odds(1, 2) { [b, 1] } else { [1, a] };
        m.input_with(dtype, &[a, b], &strides)
    };
    let (x, w) = (matrix(m, rows, terms), matrix(m, terms, columns));
    if m.r.odds(1, 2) {
        let bias = m.input(dtype, &[columns]);
        return m.one("aten.addmm.default", [bias, x, w].map(Arg::Value).to_vec());
    }
    let product = m.one("aten.mm.default", vec![Arg::Value(x), Arg::Value(w)])?;
    let factor = matrix(m, rows, columns);
    m.one(
        "aten.mul.Tensor",
        vec![Arg::Value(product), Arg::Value(factor)],
    )
}

/// A matrix and a transposed one, whose rows start at multiples of 16 bytes or do not.
pub(super) fn turned(m: &mut Make) -> Option<ValueId> {
    let dtype = m.r.of(&[DType::F32, DType::F32, DType::F16, DType::I64]);
    let (a, b) = (m.r.of(&[33, 36, 64, 72]), m.r.of(&[40, 56, 61, 128]));
    let (x, y) = (m.input(dtype, &[a, b]), m.input(dtype, &[b, a]));
    let t = m.one("aten.t.default", vec![Arg::Value(x)])?;
    let op = m.r.of(&["aten.add.Tensor", "aten.mul.Tensor"]);
    m.one(op, vec![Arg::Value(t), Arg::Value(y)])
}

/// The same for tensors of different sizes, as optimisers do.
pub(super) fn list(m: &mut Make) -> Option<ValueId> {
    let mut last = None;
    for _ in 0..2 + m.r.below(4) {
        let n = m.r.of(&[1, 7, 66, 100, 513, 1280]);
        let (x, y) = (m.input(DType::F32, &[n]), m.input(DType::F32, &[n]));
        let v = m.one("aten.sub.Tensor", vec![Arg::Value(x), Arg::Value(y)])?;
        m.kept.extend(last);
        last = Some(v);
    }
    last
}
