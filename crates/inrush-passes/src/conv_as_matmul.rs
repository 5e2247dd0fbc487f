//! Convolutions as matrix products, or as sums over the window.
//!
//! # What it does
//! A convolution becomes `im2col`, one row for each window, and a product with the filters. Its result has channels last
//! ([`crate::relayout`] carries that on). A depthwise convolution becomes a sum over the window, which fuses like any
//! arithmetic.
//!
//! # When
//! On GPUs, if a library computes products, in inference graphs, for convolutions without a bias of their own. Filters have constant
//! sizes; pictures may have symbolic ones within bounds, as those of a program for near sizes have, and their hints then count:
//!
//! - If a library computes convolutions too, only if every convolution of the graph is small. Over a picture or two cuDNN takes
//!   the host longer than the device, and in float32 its kernels leave most of the device idle: a layer of ResNet-18 takes 57 us
//!   on an H200, its product 15 us.
//! - If none does, for each convolution that has work enough for a product's launches and whose windows fit in memory well.
//!   A kernel of its own computes the others, with what is fused into it.
//!
//! # Numerics
//! The product adds in another order. Sums of halves are made in float32, as the library makes them.
//!
//! # Example
//! ```text
//! %2 y: f32[2, 4, 6, 6] = aten.convolution.default(%x, %w, none, [1, 1], [0, 0], [1, 1], false, [0, 0], 1)
//! =>
//! %2 y.3: f32[2, 27, 36] = aten.im2col.default(%x, [3, 3], [1, 1], [0, 0], [1, 1])
//! %3 y.4: f32[2, 36, 27] strides [972, 1, 36] = aten.permute.default(%2, [0, 2, 1])
//! %4 y.5: f32[2, 36, 27] = aten.clone.default(%3, contiguous)
//! %5 y.6: f32[72, 27] = aten.view.default(%4, [72, 27])
//! %6 y.7: f32[4, 27] = aten.view.default(%w, [4, 27])
//! %7 y.8: f32[27, 4] strides [1, 27] = aten.t.default(%6)
//! %8 y.9: f32[72, 4] = aten.mm.default(%5, %7)
//! %9 y.10: f32[2, 6, 6, 4] = aten.view.default(%8, [2, 6, 6, 4])
//! %10 y: f32[2, 4, 6, 6] strides [144, 1, 24, 4] = aten.permute.default(%9, [0, 3, 1, 2])
//! ```

use crate::convolution::{CONVOLUTION, Convolution};
use crate::relayout::{Relayout, is_plain};
use crate::{Context, Pass};
use inrush_base::DType;
use inrush_expr::{Expr, Exprs};
use inrush_graph::{Arg, Graph, Node, TensorType, ValueId};

/// Sizes of convolutions that become products.
#[derive(Copy, Clone)]
struct Limits {
    /// Most elements of all windows.
    elements: i64,
    /// Most elements for any value of symbolic sizes.
    always: i64,
    /// Fewest and most multiplications.
    work: (i64, i64),
    /// Most results of a convolution in float32 with fewer multiplications.
    results: i64,
    /// True if depthwise ones become sums.
    depthwise: bool,
}

/// Where a library computes convolutions: sizes up to which a product is the faster one.
const SMALL: Limits = Limits {
    elements: 1 << 21,
    always: 1 << 25,
    work: (0, 1 << 29),
    results: 0,
    depthwise: true,
};

/// Where none does: windows of at most 256 MiB in float32. A layer of ResNet-18 has 115 million multiplications for a picture, a
/// layer of MobileNetV3 one million: in bfloat16 on an H200 products take 0.65 of the time of kernels for the former, twice that of
/// kernels for the latter. Kernels in float32 without tensor cores need many programs: of one picture products of MobileNetV3
/// take 0.78 of their time, of 32 pictures 1.3.
const IN_MEMORY: Limits = Limits {
    elements: 1 << 26,
    always: 1 << 26,
    work: (1 << 24, i64::MAX),
    results: 1 << 17,
    depthwise: false,
};

const MM: &str = "aten.mm.default";
const PERMUTE: &str = "aten.permute.default";

pub(crate) const PASS: Pass = Pass {
    name: "conv_as_matmul",
    applies: |cx| cx.inference && cx.gpu_serves(MM),
    run,
};

fn run(graph: &mut Graph, cx: &Context) {
    let has_library = cx.gpu_serves(CONVOLUTION);
    let limits = if has_library { SMALL } else { IN_MEMORY };
    let shape = |graph: &Graph, node: &Node| {
        let free = !cx.is_kept(node);
        free.then(|| Shape::of(graph, node, limits)).flatten()
    };
    let convolutions = graph.nodes.iter().filter(|n| n.op == CONVOLUTION);
    let fit: Vec<bool> = convolutions.map(|n| shape(graph, n).is_some()).collect();
    let some = fit.contains(&true) && !(has_library && fit.contains(&false));
    if !some || !is_plain(graph, cx) {
        return;
    }
    let (mut out, nodes) = Relayout::of(graph, cx);
    let steps = nodes
        .into_iter()
        .try_for_each(|node| match shape(out.graph(), &node) {
            Some(s) if s.depthwise => sums(&mut out, node, &s),
            Some(s) => product(&mut out, node, &s),
            None => out.follow(node),
        });
    if let Some(done) = steps.and_then(|()| out.finish()) {
        *graph = done;
    }
}

/// A convolution of pictures within the limits.
struct Shape {
    c: Convolution,
    dtype: DType,
    images: Expr,
    channels: i64,
    filters: i64,
    /// Height and width of the window, and of the result.
    window: [i64; 2],
    out: [Expr; 2],
    depthwise: bool,
}

impl Shape {
    /// Reads a convolution; `None` where it is large, or of another kind.
    fn of(graph: &Graph, node: &Node, limits: Limits) -> Option<Shape> {
        let c = Convolution::of(graph, node)?;
        let (picture, filters) = (graph.tensor(c.input).ok()?, graph.tensor(c.filters).ok()?);
        let float = matches!(picture.dtype, DType::F32 | DType::F16 | DType::BF16);
        if !float || filters.dtype != picture.dtype || c.bias.is_some() || c.transposed {
            return None;
        }
        let ex = &graph.exprs;
        let [images, channels, ..] = sizes(graph, c.input)?;
        let [count, of_group, h, w] = sizes(graph, c.filters)?.map(|e| ex.as_int(e));
        let [count, of_group, h, w] = [count?, of_group?, h?, w?];
        let channels = ex.as_int(channels)?;
        let [_, _, high, wide] = sizes(graph, node.outs[0])?;
        let product = |all: &[i64]| all.iter().copied().fold(1i64, i64::saturating_mul);
        let (least, results, most) = bounds(ex, &[images, high, wide]);
        if product(&[least, count, of_group, h, w]) <= 0 {
            return None;
        }
        let window = product(&[if c.groups == 1 { of_group } else { count }, h, w]);
        if product(&[most, window]) > limits.always {
            return None;
        }
        let depthwise = c.groups != 1;
        let fits = if depthwise {
            limits.depthwise
                && c.groups == count
                && c.groups == channels
                && of_group == 1
                && product(&[results, count, h, w]) <= limits.elements
        } else {
            let elements = product(&[results, of_group, h, w]);
            let work = product(&[elements, count]);
            let few = picture.dtype == DType::F32
                && product(&[results, count]) <= limits.results
                && work <= limits.work.1;
            elements <= limits.elements && (few || (limits.work.0..=limits.work.1).contains(&work))
        };
        fits.then_some(Shape {
            dtype: picture.dtype,
            images,
            channels,
            filters: count,
            window: [h, w],
            out: [high, wide],
            depthwise,
            c,
        })
    }
}

impl Shape {
    /// Pixels of the result.
    fn pixels(&self, ex: &Exprs) -> Expr {
        ex.mul(self.out[0], self.out[1])
    }
}

/// Returns the four sizes of a picture or of filters.
fn sizes(graph: &Graph, v: ValueId) -> Option<[Expr; 4]> {
    graph.tensor(v).ok()?.sizes.as_slice().try_into().ok()
}

/// Returns the least product of these sizes, the one that hints give, and the greatest.
fn bounds(ex: &Exprs, sizes: &[Expr]) -> (i64, i64, i64) {
    let product = |of: &dyn Fn(Expr) -> i64| {
        let all = sizes.iter().map(|e| of(*e).max(0));
        all.fold(1i64, i64::saturating_mul)
    };
    (
        product(&|e| ex.range(e).lo),
        product(&|e| ex.hint(e)),
        product(&|e| ex.range(e).hi),
    )
}

/// Calls in the place of one convolution.
struct Maker<'a, 'b> {
    out: &'a mut Relayout<'b>,
    like: &'a Node,
}

impl Maker<'_, '_> {
    fn ex(&self) -> &Exprs {
        &self.out.graph().exprs
    }

    fn int(&self, i: i64) -> Expr {
        self.ex().int(i)
    }

    fn ints(&self, of: &[i64]) -> Arg {
        Arg::Ints(of.iter().map(|i| self.int(*i)).collect())
    }

    /// Adds a call with a row-major result.
    fn call(&mut self, op: &str, args: Vec<Arg>, dtype: DType, sizes: &[Expr]) -> ValueId {
        let ty = TensorType::contiguous(self.ex(), dtype, sizes.to_vec());
        self.out.call(self.like, op, args, ty)
    }

    fn permute(&mut self, v: ValueId, order: &[i64]) -> Option<ValueId> {
        let of = self.out.graph().tensor(v).ok()?;
        let at = |of: &[inrush_expr::Expr]| order.iter().map(|d| of[*d as usize]).collect();
        let ty = TensorType {
            dtype: of.dtype,
            sizes: at(&of.sizes),
            strides: at(&of.strides),
        };
        let args = vec![v.into(), self.ints(order)];
        Some(self.out.call(self.like, PERMUTE, args, ty))
    }

    /// Adds a view of a row-major copy.
    fn view(&mut self, v: ValueId, sizes: &[Expr]) -> Option<ValueId> {
        let v = self.out.contiguous(self.like, v)?;
        let dtype = self.out.graph().tensor(v).ok()?.dtype;
        let args = vec![v.into(), Arg::Ints(sizes.to_vec())];
        Some(self.call("aten.view.default", args, dtype, sizes))
    }

    fn convert(&mut self, v: ValueId, dtype: DType) -> Option<ValueId> {
        let mut ty = self.out.graph().tensor(v).ok()?.clone();
        if ty.dtype == dtype {
            return Some(v);
        }
        ty.strides = inrush_aten::layouts::strides::copy_of(&self.out.graph().exprs, &ty);
        ty.dtype = dtype;
        let args = vec![v.into(), Arg::DType(dtype)];
        let op = "prims.convert_element_type.default";
        Some(self.out.call(self.like, op, args, ty))
    }

    /// Adds `im2col`: a column for each window.
    fn windows(&mut self, s: &Shape) -> ValueId {
        let numbers = [&s.window[..], &s.c.dilation, &s.c.padding, &s.c.stride];
        let mut args = vec![s.c.input.into()];
        args.extend(numbers.map(|n| self.ints(n)));
        let length = self.int(s.channels * s.window[0] * s.window[1]);
        let sizes = [s.images, length, s.pixels(self.ex())];
        self.call("aten.im2col.default", args, s.dtype, &sizes)
    }

    /// Adds every `stride`th pixel: the windows of a 1x1 convolution without padding.
    fn pixels(&mut self, s: &Shape) -> Option<ValueId> {
        let mut v = s.c.input;
        for (k, stride) in s.c.stride.iter().enumerate().filter(|(_, s)| **s != 1) {
            let mut ty = self.out.graph().tensor(v).ok()?.clone();
            let ex = &self.out.graph().exprs;
            ty.sizes[2 + k] = s.out[k];
            ty.strides[2 + k] = ex.mul(ty.strides[2 + k], ex.int(*stride));
            let numbers = [2 + k as i64, 0, i64::MAX, *stride].map(|i| Arg::Int(ex.int(i)));
            let mut args = vec![v.into()];
            args.extend(numbers);
            v = self.out.call(self.like, "aten.slice.Tensor", args, ty);
        }
        Some(v)
    }
}

/// Adds the product of windows and filters.
fn product(out: &mut Relayout, node: Node, s: &Shape) -> Option<()> {
    let like = node.clone();
    let mut m = Maker { out, like: &like };
    let rows = if s.window == [1, 1] && s.c.padding == [0, 0] {
        let pixels = m.pixels(s)?;
        m.permute(pixels, &[0, 2, 3, 1])?
    } else {
        let windows = m.windows(s);
        m.permute(windows, &[0, 2, 1])?
    };
    let length = m.int(s.channels * s.window[0] * s.window[1]);
    let count = m.ex().mul(s.images, s.pixels(m.ex()));
    let rows = m.view(rows, &[count, length])?;
    let filters = m.view(s.c.filters, &[m.int(s.filters), length])?;
    let mut turned = m.out.graph().tensor(filters).ok()?.clone();
    turned.sizes.reverse();
    turned.strides.reverse();
    let filters = (m.out).call(m.like, "aten.t.default", vec![filters.into()], turned);
    let sizes = [count, m.int(s.filters)];
    let sums = m.call(MM, vec![rows.into(), filters.into()], s.dtype, &sizes);
    result(m, node, s, sums, s.filters)
}

/// Adds the sum over the window of each channel.
fn sums(out: &mut Relayout, node: Node, s: &Shape) -> Option<()> {
    let like = node.clone();
    let mut m = Maker { out, like: &like };
    let (taps, pixels) = (m.int(s.window[0] * s.window[1]), s.pixels(m.ex()));
    let channels = m.int(s.channels);
    let windows = m.windows(s);
    let windows = m.view(windows, &[s.images, channels, taps, pixels])?;
    let windows = m.permute(windows, &[0, 3, 1, 2])?;
    let windows = m.convert(windows, DType::F32)?;
    let filters = m.view(s.c.filters, &[channels, taps])?;
    let filters = m.convert(filters, DType::F32)?;
    let terms = [s.images, pixels, channels, taps];
    let args = vec![windows.into(), filters.into()];
    let terms = m.call("aten.mul.Tensor", args, DType::F32, &terms);
    let args = vec![terms.into(), m.ints(&[3]), Arg::Bool(false), Arg::None];
    let sizes = [s.images, pixels, channels];
    let sums = m.call("aten.sum.dim_IntList", args, DType::F32, &sizes);
    let sums = m.convert(sums, s.dtype)?;
    result(m, node, s, sums, s.channels)
}

/// Adds the convolution's result: a view of the sums, which have channels last.
fn result(mut m: Maker, node: Node, s: &Shape, sums: ValueId, channels: i64) -> Option<()> {
    let sizes = [s.images, s.out[0], s.out[1], m.int(channels)];
    let picture = m.view(sums, &sizes)?;
    let strides = m.out.graph().tensor(picture).ok()?.strides.clone();
    let strides = [0, 3, 1, 2].iter().map(|d| strides[*d]).collect();
    let args = vec![picture.into(), m.ints(&[0, 3, 1, 2])];
    m.out.replace(node, PERMUTE, args, strides);
    Some(())
}
