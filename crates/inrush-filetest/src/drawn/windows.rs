//! Convolutions and pools, forward and backward.
//!
//! Sizes are drawn from the window outwards: kernel, stride, padding and dilation first, and then
//! an image that gives a chosen number of results. Drawn the other way round most images would
//! not fit, and results would rarely have the 8 or 16 pixels a row that vector code is made for.

use super::make::Make;
use inrush_base::DType;
use inrush_graph::{Arg, ValueId};

/// The window of a convolution of `dims` dimensions.
/// One entry a spatial dimension in each list.
struct Windows {
    kernel: Vec<i64>,
    stride: Vec<i64>,
    padding: Vec<i64>,
    dilation: Vec<i64>,
    image: Vec<i64>,
}

/// Draws a window. `dilated` is false for pools, whose gradients take no dilation.
fn windows(m: &mut Make, dims: usize, dilated: bool) -> Windows {
    // The interpreter visits each pixel of each window.
    let largest = [40, 18, 8][dims - 1];
    // The same window along all dimensions, as in most models.
    let same = m.r.odds(3, 4);
    // Most windows of models are odd, centred, and leave nothing out.
    let usual = m.r.odds(3, 5);
    let mut w = Windows {
        kernel: Vec::new(),
        stride: Vec::new(),
        padding: Vec::new(),
        dilation: Vec::new(),
        image: Vec::new(),
    };
    for d in 0..dims {
        if same && d > 0 {
            for list in [
                &mut w.kernel,
                &mut w.stride,
                &mut w.padding,
                &mut w.dilation,
                &mut w.image,
            ] {
                list.push(list[0]);
            }
            continue;
        }
        let k = m.r.of(&[1, 2, 3, 3, 3, 5, 7]);
        let step = m.r.of(&[1, 1, 1, 2, 2, 3]);
        let dilation = if dilated { m.r.of(&[1, 1, 1, 1, 2]) } else { 1 };
        let (k, step, dilation) = if usual {
            (m.r.of(&[3, 3, 3, 5, 7]), step.min(2), 1)
        } else {
            (k, step, dilation)
        };
        let pad = if usual {
            (k - 1) / 2
        } else {
            m.r.of(&[0, (k - 1) / 2, k / 2, k - 1])
        };
        // Rows of results that vectors and tiles are cut by, more often than not.
        let image = if m.r.odds(3, 4) {
            let out = m.r.of(&[4, 7, 8, 8, 8, 9, 14, 16, 16, 17]).min(largest);
            (out - 1) * step + (k - 1) * dilation + 1 - 2 * pad
        } else {
            m.up_to(largest)
        };
        // The window must fit into the padded image at least once.
        let image = image.max((k - 1) * dilation + 1 - 2 * pad);
        w.kernel.push(k);
        w.stride.push(step);
        w.padding.push(pad);
        w.dilation.push(dilation);
        w.image.push(image.max(1));
    }
    w
}

/// Groups and channels a group.
/// Returns groups, input channels of a group and output channels of a group.
fn channels(m: &mut Make, depthwise: bool) -> (i64, i64, i64) {
    if depthwise {
        let all = if m.r.odds(2, 3) {
            m.r.of(&[8, 16, 16, 24, 32, 48, 64, 64])
        } else {
            m.up_to(64).max(1)
        };
        return (all, 1, m.r.of(&[1, 1, 1, 1, 2, 3]));
    }
    match m.r.below(3) {
        0 | 1 => (1, m.up_to(48).max(1), m.up_to(48).max(1)),
        _ => {
            let g = m.r.of(&[2, 3, 4, 8]);
            (g, m.up_to(9).max(1), m.up_to(12).max(1))
        }
    }
}

/// Convolutions as the engine has ways of its own for: minimal filtering, groups that share a vector, pixels of a row side by side,
/// images by planes.
pub(super) fn modelled(m: &mut Make) -> Option<ValueId> {
    m.parameters = true;
    let k = m.r.of(&[3, 3, 3, 1, 5]);
    let side = m.r.of(&[7, 8, 9, 10, 12, 14, 16]);
    let (groups, i, o) = match m.r.below(3) {
        0 => {
            let wide = [16, 32, 64, 64];
            (1, m.r.of(&wide), m.r.of(&wide))
        }
        1 => {
            let each = m.r.of(&[2, 4, 4, 8]);
            (m.r.of(&[4, 8, 16]), each, each)
        }
        _ => (m.r.of(&[16, 32, 48, 64]), 1, 1),
    };
    // Interpreted in a tenth of a second.
    if side * side * k * k * i * o * groups > 9_000_000 {
        return None;
    }
    let batch = m.r.of(&[1, 2]);
    let sizes = [batch, groups * i, side, side];
    let x = if m.r.odds(2, 3) {
        m.channels_last(DType::F32, &sizes)
    } else {
        let strides = inrush_runtime::tensor::contiguous_strides(&sizes);
        m.input_with(DType::F32, &sizes, &strides)
    };
    let f = m.weight(DType::F32, &[groups * o, i, k, k]);
    let bias = if m.r.odds(1, 2) {
        Arg::Value(m.weight(DType::F32, &[groups * o]))
    } else {
        Arg::None
    };
    let step = m.r.of(&[1, 1, 1, 2]);
    convolved(m, [x, f], bias, step, k / 2, groups)
}

/// Convolutions of images of contiguous layout: by planes.
pub(super) fn planes(m: &mut Make) -> Option<ValueId> {
    m.parameters = m.r.odds(1, 2);
    let k = m.r.of(&[1, 3, 3, 5]);
    let sides = [m.r.of(&[16, 17, 19, 24]), m.r.of(&[16, 20, 24, 31])];
    let (i, o) = (m.r.of(&[1, 3, 5, 8, 16]), m.r.of(&[1, 3, 7, 8, 16, 24]));
    let dtype = m.r.of(&[DType::F32, DType::F32, DType::F64]);
    let sizes = [m.r.of(&[1, 2]), i, sides[0], sides[1]];
    let strides = inrush_runtime::tensor::contiguous_strides(&sizes);
    let x = m.input_with(dtype, &sizes, &strides);
    let f = m.weight(dtype, &[o, i, k, k]);
    convolved(m, [x, f], Arg::None, 1, k / 2, 1)
}

/// The convolution of images with a filter: the same stride and padding along both sides.
pub(super) fn convolved(
    m: &mut Make,
    [x, f]: [ValueId; 2],
    bias: Arg,
    stride: i64,
    padding: i64,
    groups: i64,
) -> Option<ValueId> {
    let args = vec![
        Arg::Value(x),
        Arg::Value(f),
        bias,
        m.ints(&[stride, stride]),
        m.ints(&[padding, padding]),
        m.ints(&[1, 1]),
        Arg::Bool(false),
        m.ints(&[0, 0]),
        m.int(groups),
    ];
    m.one("aten.convolution.default", args)
}

/// Draws a convolution over groups of few or many channels.
pub(super) fn dense(m: &mut Make) -> Option<ValueId> {
    convolution(m, false)
}

/// Draws a convolution with one input channel a group.
pub(super) fn depthwise(m: &mut Make) -> Option<ValueId> {
    convolution(m, true)
}

/// Draws a convolution of 1 to 3 dimensions, transposed in a fifth of the draws.
fn convolution(m: &mut Make, depthwise: bool) -> Option<ValueId> {
    let dims = m.r.of(&[1, 2, 2, 2, 2, 3]);
    let w = windows(m, dims, true);
    let (groups, i, o) = channels(m, depthwise);
    let transposed = m.r.odds(1, 5);
    let batch = m.r.of(&[1, 1, 2, 3]);
    let dtype = m.float();
    let image: Vec<i64> = [&[batch, groups * i], w.image.as_slice()].concat();
    let filter: Vec<i64> = if transposed {
        [&[groups * i, o], w.kernel.as_slice()].concat()
    } else {
        [&[groups * o, i], w.kernel.as_slice()].concat()
    };
    let x = m.image(dtype, &image);
    let dtype = m.dtype(x);
    let f = m.weight(dtype, &filter);
    let bias = if m.r.odds(1, 2) {
        Arg::Value(m.weight(dtype, &[groups * o]))
    } else {
        Arg::None
    };
    let extra: Vec<i64> = (w.stride.iter().zip(&w.dilation))
        .map(|(s, d)| {
            if transposed && m.r.odds(1, 3) {
                // The output padding must be smaller than the stride or the dilation.
                (s.max(d) - 1).min(1)
            } else {
                0
            }
        })
        .collect();
    let args = vec![
        Arg::Value(x),
        Arg::Value(f),
        bias,
        m.ints(&w.stride),
        m.ints(&w.padding),
        m.ints(&w.dilation),
        Arg::Bool(transposed),
        m.ints(&extra),
        m.int(groups),
    ];
    m.one("aten.convolution.default", args)
}

/// Draws the gradients of a convolution: of the weight always, of input and bias in half of the
/// draws.
pub(super) fn convolution_backward(m: &mut Make) -> Option<ValueId> {
    let dims = m.r.of(&[1, 2, 2, 2, 3]);
    let w = windows(m, dims, true);
    let depthwise = m.r.odds(1, 2);
    let (groups, i, o) = channels(m, depthwise);
    let batch = m.r.of(&[1, 2, 3]);
    let dtype = m.float();
    let image: Vec<i64> = [&[batch, groups * i], w.image.as_slice()].concat();
    let filter: Vec<i64> = [&[groups * o, i], w.kernel.as_slice()].concat();
    let mut out = vec![batch, groups * o];
    for d in 0..dims {
        let span = w.dilation[d] * (w.kernel[d] - 1) + 1;
        out.push((w.image[d] + 2 * w.padding[d] - span) / w.stride[d] + 1);
    }
    let (gradient, x) = (m.image(dtype, &out), m.image(dtype, &image));
    // A pointwise operator in front may have converted one of them.
    if m.dtype(gradient) != dtype || m.dtype(x) != dtype {
        return None;
    }
    let f = m.weight(dtype, &filter);
    let mask = [m.r.odds(1, 2), true, m.r.odds(1, 2)];
    let args = vec![
        Arg::Value(gradient),
        Arg::Value(x),
        Arg::Value(f),
        m.ints(&[groups * o]),
        m.ints(&w.stride),
        m.ints(&w.padding),
        m.ints(&w.dilation),
        Arg::Bool(false),
        m.ints(&vec![0; dims]),
        m.int(groups),
        Arg::Bools(mask.to_vec()),
    ];
    let outs = m.call("aten.convolution_backward.default", args)?;
    for (k, v) in outs.iter().enumerate() {
        if mask[k] && k != 1 {
            m.kept.push(*v);
        }
    }
    Some(outs[1])
}

/// Draws a maximum, average or adaptive pool.
pub(super) fn pool(m: &mut Make) -> Option<ValueId> {
    let dims = m.r.of(&[1, 2, 2, 2, 3]);
    let mut w = windows(m, dims, false);
    for (p, k) in w.padding.iter_mut().zip(&w.kernel) {
        // PyTorch refuses more padding than half of the kernel.
        *p = (*p).min(k / 2);
    }
    let sizes = [m.r.of(&[1, 2]), m.up_to(33)];
    let sizes: Vec<i64> = [sizes.as_slice(), &w.image].concat();
    let dtype = m.float();
    let x = m.image(dtype, &sizes);
    let ceil = Arg::Bool(m.r.odds(1, 4));
    let head = vec![
        Arg::Value(x),
        m.ints(&w.kernel),
        m.ints(&w.stride),
        m.ints(&w.padding),
    ];
    match m.r.below(4) {
        0 | 1 if dims > 1 => {
            let args = [head, vec![m.ints(&w.dilation), ceil]].concat();
            let outs = m.call(&format!("aten.max_pool{dims}d_with_indices.default"), args)?;
            if m.r.odds(1, 2) {
                m.kept.push(outs[1]);
            }
            Some(outs[0])
        }
        0 | 1 => {
            let args = [head, vec![m.ints(&w.dilation), ceil]].concat();
            m.one("aten.max_pool1d.default", args)
        }
        2 => {
            let args = [head, vec![ceil, Arg::Bool(m.r.odds(1, 2))]].concat();
            m.one(&format!("aten.avg_pool{dims}d.default"), args)
        }
        _ => {
            let to: Vec<i64> = (0..dims).map(|_| m.r.of(&[1, 2, 3, 5, 7])).collect();
            let args = vec![Arg::Value(x), m.ints(&to)];
            m.one(&format!("aten.adaptive_avg_pool{dims}d.default"), args)
        }
    }
}

/// Draws the gradient of a pool. The forward pool is in the graph too, as its positions or sizes
/// are needed.
pub(super) fn pool_backward(m: &mut Make) -> Option<ValueId> {
    let mut w = windows(m, 2, false);
    for (p, k) in w.padding.iter_mut().zip(&w.kernel) {
        *p = (*p).min(k / 2);
    }
    let sizes = [m.r.of(&[1, 2]), m.up_to(33)];
    let sizes: Vec<i64> = [sizes.as_slice(), &w.image].concat();
    let dtype = m.r.of(&[DType::F32, DType::F32, DType::BF16, DType::F64]);
    let x = m.image(dtype, &sizes);
    let dtype = m.dtype(x);
    if m.r.odds(1, 2) {
        let args = vec![
            Arg::Value(x),
            m.ints(&w.kernel),
            m.ints(&w.stride),
            m.ints(&w.padding),
            m.ints(&w.dilation),
            Arg::Bool(false),
        ];
        let outs = m.call("aten.max_pool2d_with_indices.default", args.clone())?;
        let out = m.sizes(outs[0]);
        let g = m.image(dtype, &out);
        if m.dtype(g) != dtype {
            return None;
        }
        let args = [vec![Arg::Value(g)], args, vec![Arg::Value(outs[1])]].concat();
        m.one("aten.max_pool2d_with_indices_backward.default", args)
    } else {
        let tail = vec![
            m.ints(&w.kernel),
            m.ints(&w.stride),
            m.ints(&w.padding),
            Arg::Bool(false),
            Arg::Bool(m.r.odds(1, 2)),
        ];
        let all = [vec![Arg::Value(x)], tail.clone()].concat();
        let y = m.one("aten.avg_pool2d.default", all)?;
        let out = m.sizes(y);
        let g = m.image(dtype, &out);
        if m.dtype(g) != dtype {
            return None;
        }
        let args = [vec![Arg::Value(g), Arg::Value(x)], tail, vec![Arg::None]].concat();
        m.one("aten.avg_pool2d_backward.default", args)
    }
}
