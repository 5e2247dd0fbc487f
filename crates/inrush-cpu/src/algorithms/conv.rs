//! NHWC convolutions in one to three dimensions: as GEMM over taps, by Winograd's algorithm, or depthwise.

use super::depthwise::{self, Filters};
use super::gemm::Gemm;
use super::winograd::{self, Winograd};
use crate::Pool;
use crate::kernels::gemm::GemmTiles;
use crate::kernels::with_element;
use crate::operand::scratch::{self, Owner};
use crate::operand::{
    Affine, ConvShape, GemmShape, Geometry, Lhs, Output, PackedB, Rhs, RhsView, Shared, Target,
    reader,
};
use inrush_base::{DType, Error, Isa, Result};

/// The plan of a convolution: cheap to make, so that sizes may change between calls. Filters are packed by any plan of the
/// same channels, groups, kernel and [`Algorithm`], for whatever input sizes.
#[derive(Clone, Debug)]
pub struct Conv {
    shape: ConvShape,
    isa: Isa,
    acc: DType,
    kind: Kind,
}

#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant, reason = "one for each plan")]
enum Kind {
    Product {
        gemm: Gemm,
        matrices: Affine,
        rows: Affine,
        taps: Vec<isize>,
    },
    Winograd(Winograd),
    Depthwise {
        geometry: Geometry,
        blocking: depthwise::Blocking,
    },
}

/// How a convolution is computed. Filters are laid out for one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// Matrix products over the taps.
    Direct,
    /// Minimal filtering by tiles of this many outputs a side, 2 or 4: fewer multiplications, up to a decimal digit less
    /// precise. Only for dense 3 x 3 convolutions of step 1 over f32, in multiples of 16 channels.
    Winograd(usize),
    /// One filter a channel.
    Depthwise,
}

/// Filters laid out for [`Conv::run`].
pub struct PackedFilters(PackedKind);

enum PackedKind {
    Product(PackedB),
    Winograd(usize, PackedB),
    Depthwise(Filters),
}

impl PackedFilters {
    /// What they were laid out for: plans for other input sizes are made with it.
    pub fn algorithm(&self) -> Algorithm {
        match &self.0 {
            PackedKind::Product(_) => Algorithm::Direct,
            PackedKind::Winograd(out, _) => Algorithm::Winograd(*out),
            PackedKind::Depthwise(_) => Algorithm::Depthwise,
        }
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        match &self.0 {
            PackedKind::Product(p) | PackedKind::Winograd(_, p) => p.bytes(),
            PackedKind::Depthwise(f) => f.bytes(),
        }
    }
}

impl Conv {
    /// The way that is likely to be fastest for these sizes.
    pub fn choose(shape: &ConvShape, acc: DType, isa: Isa, threads: usize) -> Algorithm {
        if shape.depthwise() {
            return Algorithm::Depthwise;
        }
        if !winograd::applies(shape, acc) {
            return Algorithm::Direct;
        }
        let lanes = f32::gemm(isa).lanes;
        let time = |out| winograd::estimate(shape, out, threads, lanes);
        let (direct, two, four) = (time(1), time(2), time(4));
        if four < two && four < 0.9 * direct {
            Algorithm::Winograd(4)
        } else if two < 0.9 * direct {
            Algorithm::Winograd(2)
        } else {
            Algorithm::Direct
        }
    }

    /// Plans a convolution that is summed in `acc` on `threads` threads, by the way that [`Conv::choose`] gives.
    pub fn plan(shape: ConvShape, acc: DType, isa: Isa, threads: usize) -> Result<Conv> {
        let algorithm = Self::choose(&shape, acc, isa, threads);
        Self::plan_with(shape, acc, isa, threads, algorithm)
    }

    /// Plans a convolution by a given way: that of the filters, where they are packed already.
    pub fn plan_with(
        shape: ConvShape,
        acc: DType,
        isa: Isa,
        threads: usize,
        algorithm: Algorithm,
    ) -> Result<Conv> {
        shape.check()?;
        if !crate::available().contains(&isa) {
            return Err(Error::machine(format!(
                "this processor has no {}",
                isa.name()
            )));
        }
        let applies = match algorithm {
            Algorithm::Direct => true,
            Algorithm::Winograd(out) => (out == 2 || out == 4) && winograd::applies(&shape, acc),
            Algorithm::Depthwise => shape.depthwise(),
        };
        if !applies {
            return Err(Error::internal(format!(
                "{algorithm:?} does not apply to {shape:?}"
            )));
        }
        if let Algorithm::Winograd(out) = algorithm {
            let kind = Kind::Winograd(Winograd::plan(&shape, isa, threads, out)?);
            return Ok(Conv {
                shape,
                isa,
                acc,
                kind,
            });
        }
        let s = &shape;
        let [od, oh, ow] = s.output();
        let [image, plane, row, pixel] = s.strides;
        let along = |d: usize| s.strides[d + 1] * s.step[d] as isize;
        // Taps in the order of the packed filters: depth, height, width.
        let [kd, kh, kw] = s.kernel;
        let channels = s.c_in / s.groups;
        // Neighbouring taps of a row are one run of memory where pixels are dense.
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
        let lines = Affine::new(&[(s.batch, image), (od, along(0)), (oh, along(1))])?;
        let kind = if algorithm == Algorithm::Depthwise {
            let geometry = Geometry {
                lines,
                width: ow,
                step: along(2),
                taps,
                channels: s.c_out,
                reach: kd * kh * (ow.saturating_sub(1) * s.step[2] + (kw - 1) * s.dilation[2] + 1),
            };
            let blocking = depthwise::choose(
                geometry.lines.len(),
                ow,
                s.c_out,
                geometry.taps.len(),
                threads,
            );
            // The accumulator is checked here, as a product's is.
            let _ = with_element!(acc, T => size_of::<T>())?;
            Kind::Depthwise { geometry, blocking }
        } else {
            let rows = Affine::new(&[
                (s.batch, image),
                (od, along(0)),
                (oh, along(1)),
                (ow, along(2)),
            ])?;
            let gemm = GemmShape {
                batch: 1,
                groups: s.groups,
                m: rows.len(),
                n: s.c_out / s.groups,
                taps: taps.len(),
                k,
            };
            Kind::Product {
                gemm: Gemm::plan(gemm, acc, isa, threads, true)?,
                matrices: Affine::linear(s.groups, channels as isize),
                rows,
                taps,
            }
        };
        Ok(Conv {
            shape,
            isa,
            acc,
            kind,
        })
    }

    /// The sizes planned for.
    pub fn shape(&self) -> &ConvShape {
        &self.shape
    }

    /// Lays out filters `[c_out, c_in / groups, depth, height, width]` of the given strides (in elements).
    ///
    /// # Safety
    /// Every filter element is readable for the length of the call.
    pub unsafe fn pack(
        &self,
        pool: &Pool,
        ptr: *const u8,
        dtype: DType,
        strides: [isize; 5],
    ) -> Result<PackedFilters> {
        let s = &self.shape;
        let [o, i, d, h, w] = strides;
        let [kd, kh, kw] = s.kernel;
        let n = s.c_out / s.groups;
        if let Kind::Depthwise { .. } = self.kind {
            let view = RhsView {
                ptr,
                dtype,
                matrices: Affine::ONE,
                k: Affine::new(&[(kd, d), (kh, h), (kw, w)])?,
                cols: Affine::linear(s.c_out, o),
            };
            // SAFETY: the caller's contract.
            let filters = with_element!(self.acc, T => unsafe { Filters::pack::<T>(&view) })??;
            return Ok(PackedFilters(PackedKind::Depthwise(filters)));
        }
        let view = RhsView {
            ptr,
            dtype,
            matrices: Affine::linear(s.groups, o * n as isize),
            k: Affine::new(&[(kd, d), (kh, h), (kw, w), (s.c_in / s.groups, i)])?,
            cols: Affine::linear(n, o),
        };
        if let Kind::Winograd(w) = &self.kind {
            // SAFETY: the caller's contract.
            let packed = unsafe { Winograd::pack(pool, self.isa, w.out, &view)? };
            return Ok(PackedFilters(PackedKind::Winograd(w.out, packed)));
        }
        // SAFETY: the caller's contract.
        let packed = unsafe { PackedB::pack(pool, self.isa, self.acc, &view)? };
        Ok(PackedFilters(PackedKind::Product(packed)))
    }

    /// Convolves `input`, an element pointer of the plan's strides. Results are rows of `batch * depth * height * width`
    /// output pixels (`m`) and columns of output channels (`n`), in one batch.
    ///
    /// # Safety
    /// Every input element that the shape describes, with what lies between pixels of a line, and every place that `out` describes is valid for the length of the
    /// call; results overlap no input.
    pub unsafe fn run(
        &self,
        pool: &Pool,
        input: *const u8,
        dtype: DType,
        filters: &PackedFilters,
        out: &Output,
    ) -> Result<()> {
        if dtype != self.acc && !matches!(self.kind, Kind::Product { .. }) {
            // SAFETY: the caller's contract; the copy has the same strides.
            return with_element!(self.acc, T => unsafe {
                self.converted::<T>(pool, input, dtype, |copy| {
                    self.run(pool, copy, self.acc, filters, out)
                })
            })?;
        }
        match (&self.kind, &filters.0) {
            (
                Kind::Product {
                    gemm,
                    matrices,
                    rows,
                    taps,
                },
                PackedKind::Product(b),
            ) => {
                let lhs = Lhs {
                    ptr: input,
                    dtype,
                    matrices: *matrices,
                    rows: *rows,
                    taps,
                    k_step: 1,
                };
                // SAFETY: the caller's contract.
                unsafe { gemm.run(pool, &lhs, Rhs::Packed(b), out) }
            }
            (Kind::Depthwise { geometry, blocking }, PackedKind::Depthwise(f)) => {
                // SAFETY: the caller's contract.
                with_element!(self.acc, T => unsafe {
                    depthwise::run::<T>(pool, geometry, blocking, self.isa, input, f, out)
                })?
            }
            (Kind::Winograd(w), PackedKind::Winograd(size, b)) if w.out == *size => {
                // SAFETY: the caller's contract.
                unsafe { w.run(pool, &self.shape, self.isa, input.cast(), b, out) }
            }
            _ => Err(Error::internal(
                "filters were packed for another kind of convolution",
            )),
        }
    }

    /// Calls `f` with a copy of the input in the type of the sums, for the ways that read it several times.
    ///
    /// # Safety
    /// As [`Conv::run`].
    unsafe fn converted<T: Target>(
        &self,
        pool: &Pool,
        input: *const u8,
        dtype: DType,
        f: impl FnOnce(*const u8) -> Result<()>,
    ) -> Result<()> {
        let read = reader::<T>(dtype)?;
        let s = &self.shape;
        let [image, plane, row, pixel] = s.strides;
        let [id, ih, iw] = s.input;
        let lines = Affine::new(&[(s.batch, image), (id, plane), (ih, row)])?;
        if s.strides.iter().any(|&x| x < 0) {
            return Err(Error::unsupported(format!(
                "a convolution of {dtype} over an input with negative strides"
            )));
        }
        if lines.is_empty() || iw == 0 {
            return f(input);
        }
        // One line of pixels, with what lies between them.
        let line = (iw - 1) * pixel as usize + s.c_in;
        let last = lines.offset(lines.len() - 1) as usize;
        scratch::with(Owner::Call, (last + line) * size_of::<T>(), |copy| {
            let pointers = (input, copy);
            let pointers = Shared(&pointers);
            pool.parallel_for(lines.len(), 4, &|range| {
                let mut walk = lines.walk(range.start);
                for _ in range {
                    let at = walk.next();
                    let (from, to) = *pointers.get();
                    // SAFETY: a line of the input; no farther than the last one in the copy.
                    unsafe {
                        let from = from.wrapping_offset(at * dtype.size() as isize);
                        read(from, 1, to.cast::<T>().offset(at), 1, line);
                    }
                }
            })?;
            f(copy)
        })
    }
}
