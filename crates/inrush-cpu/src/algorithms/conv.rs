//! NHWC convolutions in one to three dimensions: as GEMM over taps, by Winograd's algorithm, or depthwise.

use super::winograd;
use crate::Pool;
use crate::kernels::gemm::GemmTiles;
use crate::operand::scratch::{self, Owner};
use crate::operand::{
    Affine, ConvShape, GemmShape, Geometry, LhsLayout, RhsView, Shared, Target, reader,
};
use inrush_base::{DType, Error, Isa, Result};

/// How a convolution is computed. Filters are packed for one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConvAlgorithm {
    /// GEMM over the taps.
    Direct,
    /// Winograd's algorithm by tiles of this many outputs a side, 2 or 4: fewer multiplications, up to a decimal digit less
    /// precise. Only for dense 3 x 3 convolutions of step 1 over f32, in multiples of 16 channels.
    Winograd(usize),
    /// One filter a channel.
    Depthwise,
}

impl ConvAlgorithm {
    /// Returns the algorithm that is likely to be fastest for these sizes.
    pub(crate) fn choose(shape: &ConvShape, acc: DType, isa: Isa, threads: usize) -> ConvAlgorithm {
        if shape.depthwise() {
            return ConvAlgorithm::Depthwise;
        }
        if !winograd::applies(shape, acc) {
            return ConvAlgorithm::Direct;
        }
        let lanes = f32::gemm(isa).lanes;
        let time = |out| winograd::estimate(shape, out, threads, lanes);
        let (direct, two, four) = (time(1), time(2), time(4));
        if four < two && four < 0.9 * direct {
            ConvAlgorithm::Winograd(4)
        } else if two < 0.9 * direct {
            ConvAlgorithm::Winograd(2)
        } else {
            ConvAlgorithm::Direct
        }
    }

    /// Returns true if a convolution can be computed so.
    pub(crate) fn applies(self, shape: &ConvShape, acc: DType) -> bool {
        match self {
            ConvAlgorithm::Direct => true,
            ConvAlgorithm::Winograd(out) => (out == 2 || out == 4) && winograd::applies(shape, acc),
            ConvAlgorithm::Depthwise => shape.depthwise(),
        }
    }
}

/// Returns where taps are in the input, in the order of packed filters (depth, height, width), and the products of each.
/// Neighbouring taps of a row are one run of memory where pixels are dense.
fn taps(s: &ConvShape) -> (Vec<isize>, usize) {
    let [_, plane, row, pixel] = s.strides;
    let [kd, kh, kw] = s.kernel;
    let channels = s.c_in / s.groups;
    let merged = s.groups == 1 && (kw == 1 || s.dilation[2] == 1 && pixel == channels as isize);
    let (kw_taps, k) = if merged {
        (1, kw * channels)
    } else {
        (kw, channels)
    };
    let mut taps = Vec::with_capacity(kd * kh * kw_taps);
    for d in 0..kd {
        for h in 0..kh {
            for w in 0..kw_taps {
                taps.push(
                    (d * s.dilation[0]) as isize * plane
                        + (h * s.dilation[1]) as isize * row
                        + (w * s.dilation[2]) as isize * pixel,
                );
            }
        }
    }
    (taps, k)
}

/// Returns elements of the input from one output to the next along depth, height or width.
fn along(s: &ConvShape, d: usize) -> isize {
    s.strides[d + 1] * s.step[d] as isize
}

/// Returns a convolution over an input of `dtype` as a GEMM: its sizes and its left operand.
pub(crate) fn lower(s: &ConvShape, dtype: DType) -> Result<(GemmShape, LhsLayout)> {
    let [od, oh, ow] = s.output();
    let (taps, k) = taps(s);
    let rows = Affine::new(&[
        (s.batch, s.strides[0]),
        (od, along(s, 0)),
        (oh, along(s, 1)),
        (ow, along(s, 2)),
    ])?;
    let shape = GemmShape {
        batch: 1,
        groups: s.groups,
        m: rows.len(),
        n: s.c_out / s.groups,
        taps: taps.len(),
        k,
    };
    let lhs = LhsLayout {
        dtype,
        matrices: Affine::linear(s.groups, (s.c_in / s.groups) as isize),
        rows,
        taps,
        k_step: 1,
    };
    Ok((shape, lhs))
}

/// Returns the lines and taps of a depthwise convolution.
pub(crate) fn geometry(s: &ConvShape) -> Result<Geometry> {
    let [od, oh, ow] = s.output();
    let [kd, kh, kw] = s.kernel;
    Ok(Geometry {
        lines: Affine::new(&[
            (s.batch, s.strides[0]),
            (od, along(s, 0)),
            (oh, along(s, 1)),
        ])?,
        width: ow,
        step: along(s, 2),
        taps: taps(s).0,
        channels: s.c_out,
        reach: kd * kh * (ow.saturating_sub(1) * s.step[2] + (kw - 1) * s.dilation[2] + 1),
    })
}

/// Returns filters `[c_out, c_in / groups, depth, height, width]` of the given strides (in elements) as a right operand. That
/// of a depthwise convolution counts taps only.
pub(crate) fn filters(
    s: &ConvShape,
    depthwise: bool,
    ptr: *const u8,
    dtype: DType,
    strides: [isize; 5],
) -> Result<RhsView> {
    let [o, i, d, h, w] = strides;
    let [kd, kh, kw] = s.kernel;
    let n = s.c_out / s.groups;
    let taps = [(kd, d), (kh, h), (kw, w)];
    Ok(if depthwise {
        RhsView {
            ptr,
            dtype,
            matrices: Affine::ONE,
            k: Affine::new(&taps)?,
            cols: Affine::linear(s.c_out, o),
        }
    } else {
        let [td, th, tw] = taps;
        RhsView {
            ptr,
            dtype,
            matrices: Affine::linear(s.groups, o * n as isize),
            k: Affine::new(&[td, th, tw, (s.c_in / s.groups, i)])?,
            cols: Affine::linear(n, o),
        }
    })
}

/// A conversion of an input to the type of the sums, for algorithms that read it several times.
#[derive(Clone, Debug)]
pub(crate) struct InputCopy {
    dtype: DType,
    /// Lines of pixels, and elements of each with those between pixels.
    lines: Affine,
    line: usize,
}

impl InputCopy {
    /// Plans the copy of an input of `dtype`.
    pub(crate) fn plan(s: &ConvShape, dtype: DType) -> Result<InputCopy> {
        let [image, plane, row, pixel] = s.strides;
        let [id, ih, iw] = s.input;
        if s.strides.iter().any(|&x| x < 0) {
            return Err(Error::unsupported(format!(
                "a convolution of {dtype} over an input with negative strides"
            )));
        }
        let line = match iw {
            0 => 0,
            _ => (iw - 1) * pixel as usize + s.c_in,
        };
        Ok(InputCopy {
            dtype,
            lines: Affine::new(&[(s.batch, image), (id, plane), (ih, row)])?,
            line,
        })
    }

    /// Calls `f` with a copy of the same strides in the type of the sums.
    ///
    /// # Safety
    /// Every input element, with what is between pixels of a line, is readable.
    pub(crate) unsafe fn with<T: Target>(
        &self,
        pool: &Pool,
        input: *const u8,
        f: impl FnOnce(*const u8) -> Result<()>,
    ) -> Result<()> {
        let read = reader::<T>(self.dtype)?;
        let (lines, line) = (&self.lines, self.line);
        if lines.is_empty() || line == 0 {
            return f(input);
        }
        let size = self.dtype.size() as isize;
        let last = lines.offset(lines.len() - 1) as usize;
        scratch::with(Owner::Input, (last + line) * size_of::<T>(), |copy| {
            let pointers = (input, copy);
            let pointers = Shared(&pointers);
            pool.parallel_for(lines.len(), 4, &|range| {
                let mut walk = lines.walk(range.start);
                for _ in range {
                    let at = walk.next();
                    let (from, to) = *pointers.get();
                    // SAFETY: a line of the input; no farther than the last one in the copy.
                    unsafe {
                        let from = from.wrapping_offset(at * size);
                        read(from, 1, to.cast::<T>().offset(at), 1, line);
                    }
                }
            })?;
            f(copy)
        })
    }
}
