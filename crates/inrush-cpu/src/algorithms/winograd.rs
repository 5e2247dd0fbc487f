//! Winograd convolution (minimal filtering) of 3 x 3 filters: each tile of outputs is computed from a transformed tile
//! of inputs.
//!
//! ```text
//! for chunk of tile rows                     // transformed inputs and sums: 2 MiB
//!   inputs[e, tile, ci] = transform(image)   // e: 16 or 36 elements of a tile
//!   sums[e, tile, co]   = inputs[e] * filters[e]          // a batch of e GEMMs
//!   results             = transform back(sums)
//! ```
//!
//! A tile of 4 x 4 outputs needs 36 products instead of 144, one of 2 x 2 needs 16 instead of 36. The constants of the
//! larger transform cost about one decimal digit of precision.

use super::gemm::Gemm;
use crate::Pool;
use crate::kernels::winograd::{FilterIo, LINE, TileIo, Transforms, transforms};
use crate::operand::scratch::{self, ALIGN, Owner};
use crate::operand::{
    Affine, Block, ConvShape, GemmShape, Lhs, Output, PackedB, Rhs, RhsView, Shared, StoreView,
    part, reader,
};
use inrush_base::{DType, Isa, Result};

/// Channels come in multiples of this: the vectors of every level.
pub(crate) const CHANNELS: usize = 16;
/// Transformed inputs and sums of a chunk of tiles.
const CHUNK_BYTES: usize = 2 << 20;
/// The plan: tiles, chunks of tile rows, and the products of a chunk.
#[derive(Clone, Debug)]
pub(crate) struct Winograd {
    shape: ConvShape,
    isa: Isa,
    /// Outputs of a tile along each side.
    pub(crate) out: usize,
    tiles: [usize; 2],
    chunks: usize,
    /// Products of chunks of the smaller and of the larger number of tile rows.
    products: [Gemm; 2],
}

/// Returns the distance of two tiles' transforms: no multiple of a page, so that tiles do not compete for the same cache sets.
fn tile_step(out: usize, channels: usize) -> usize {
    (out + 2) * (out + 2) * channels + CHANNELS
}

/// Returns true if a convolution can be computed so.
pub(crate) fn applies(s: &ConvShape, acc: DType) -> bool {
    acc == DType::F32
        && s.groups == 1
        && s.kernel == [1, 3, 3]
        && s.step == [1; 3]
        && s.dilation == [1; 3]
        && s.input[0] == 1
        && s.c_in.is_multiple_of(CHANNELS)
        && s.c_out.is_multiple_of(CHANNELS)
}

/// Estimates the seconds of a convolution by tiles of `out` outputs a side, or directly for `out == 1`, on `threads` threads.
pub(crate) fn estimate(s: &ConvShape, out: usize, threads: usize, lanes: usize) -> f64 {
    let [_, oh, ow] = s.output();
    let tiles = (s.batch * oh.div_ceil(out) * ow.div_ceil(out)) as f64;
    let (ci, co, threads) = (s.c_in as f64, s.c_out as f64, threads as f64);
    let elements = if out == 1 {
        9.0
    } else {
        ((out + 2) * (out + 2)) as f64
    };
    // Cycles at some 3 GHz: two multiply-adds a cycle; both transforms move each element about three times.
    let multiply = tiles * elements * ci * co / (2.0 * lanes as f64);
    let transform = if out == 1 {
        0.0
    } else {
        tiles * elements * (ci + co) * 3.0 / lanes as f64
    };
    let compute = (multiply + transform) / (3e9 * threads);
    // Filters of a whole network do not stay in the cache between calls.
    let filters = elements * ci * co * 4.0 / 20e9;
    compute.max(filters) + if out == 1 { 0.0 } else { 5e-6 }
}

impl Winograd {
    pub(crate) fn plan(s: &ConvShape, isa: Isa, threads: usize, out: usize) -> Result<Winograd> {
        let [_, oh, ow] = s.output();
        let tiles = [oh.div_ceil(out), ow.div_ceil(out)];
        let rows = s.batch * tiles[0];
        let row_bytes = 4 * tiles[1] * (tile_step(out, s.c_in) + tile_step(out, s.c_out));
        let chunks = (rows * row_bytes)
            .div_ceil(CHUNK_BYTES)
            .clamp(1, rows.max(1));
        let gemm = |rows: usize| {
            let shape = GemmShape::new((out + 2) * (out + 2), rows * tiles[1], s.c_in, s.c_out);
            Gemm::plan(shape, DType::F32, isa, threads, true, false)
        };
        Ok(Winograd {
            shape: *s,
            isa,
            out,
            tiles,
            chunks,
            products: [gemm(rows / chunks)?, gemm(rows.div_ceil(chunks))?],
        })
    }

    /// Transforms and packs filters; `view`: `k` counts height, width, then input channels (one level), `cols` output channels.
    ///
    /// # Safety
    /// Every element of `view` is readable.
    pub(crate) unsafe fn pack(
        pool: &Pool,
        isa: Isa,
        out: usize,
        view: &RhsView,
    ) -> Result<PackedB> {
        let read = reader::<f64>(view.dtype)?;
        let (ci, co) = (view.k.len() / 9, view.cols.len());
        let packed = PackedB::room::<f32>(isa, (out + 2) * (out + 2), ci, co)?;
        let columns = packed.columns();
        let panels = columns.panels();
        let parts = (4 * pool.threads()).div_ceil(panels.max(1)).min(ci).max(1);
        let transform = transforms(isa, out).filter;
        let shared = Shared(&(&packed, view));
        pool.parallel_for(panels * parts, 1, &|units| {
            let (packed, view) = shared.get();
            let columns = packed.columns();
            for unit in units {
                let (p, channels) = (unit / parts, part(ci, parts, unit % parts));
                let width = columns.width_of(p);
                for o in (0..width).step_by(LINE) {
                    let first = p * columns.width + o;
                    let count = LINE.min(width - o).min(co - first);
                    let io = FilterIo {
                        from: view.ptr,
                        dtype: view.dtype,
                        read,
                        taps: std::array::from_fn(|t| view.k.offset(t * ci)),
                        step: view.k.offset(1) - view.k.offset(0),
                        cols: std::array::from_fn(|j| view.cols.offset(first + j % count)),
                        count,
                        channels,
                        to: packed.panel::<f32>(0, p).cast_mut().wrapping_add(o),
                        matrix: columns.padded() * ci,
                        row: width,
                    };
                    // SAFETY: elements of the view; each unit writes its own part of one panel of every matrix.
                    unsafe { transform(&io) };
                }
            }
        })?;
        Ok(packed)
    }

    /// # Safety
    /// As [`crate::Plan::run`]; the input is of floats.
    pub(crate) unsafe fn run(
        &self,
        pool: &Pool,
        input: *const f32,
        filters: &PackedB,
        out: &Output,
    ) -> Result<()> {
        let s = &self.shape;
        self.products[0].check(filters)?;
        let [_, oh, ow] = s.output();
        out.check::<f32>(1, s.batch * oh * ow, s.c_out)?;
        let rows = s.batch * self.tiles[0];
        if rows == 0 || self.tiles[1] == 0 {
            return Ok(());
        }
        let longest = rows.div_ceil(self.chunks) * self.tiles[1];
        let inputs = (longest * tile_step(self.out, s.c_in)).next_multiple_of(ALIGN);
        let sums = longest * tile_step(self.out, s.c_out);
        scratch::with(Owner::Call, 4 * (inputs + sums), |memory| {
            let call = Call {
                plan: self,
                shape: s,
                image: input,
                inputs: memory.cast(),
                // SAFETY: inside the block.
                sums: unsafe { memory.cast::<f32>().add(inputs) },
                transforms: transforms(self.isa, self.out),
                out,
            };
            (0..self.chunks).try_for_each(|i| {
                // SAFETY: the caller's contract; memory holds the longest chunk.
                unsafe { call.chunk(pool, filters, part(rows, self.chunks, i)) }
            })
        })
    }
}

struct Call<'a> {
    plan: &'a Winograd,
    shape: &'a ConvShape,
    image: *const f32,
    inputs: *mut f32,
    sums: *mut f32,
    transforms: Transforms,
    out: &'a Output,
}

impl Call<'_> {
    /// Computes tile rows `rows.0..rows.1`, counted through the batch.
    unsafe fn chunk(&self, pool: &Pool, filters: &PackedB, rows: (usize, usize)) -> Result<()> {
        let (s, plan) = (self.shape, self.plan);
        let count = rows.1 - rows.0;
        let tiles = count * plan.tiles[1];
        let threads = pool.threads();
        let me = Shared(self);
        let parts = channel_parts(s.c_in, count, threads);
        pool.parallel_for(count * parts, 1, &|range| {
            for unit in range {
                // SAFETY: each unit writes its own tiles and channels.
                unsafe {
                    me.get().inputs(
                        rows.0,
                        unit / parts,
                        part(s.c_in / CHANNELS, parts, unit % parts),
                    )
                }
            }
        })?;
        let elements = (plan.out + 2) * (plan.out + 2);
        let (step_in, step_out) = (tile_step(plan.out, s.c_in), tile_step(plan.out, s.c_out));
        let gemm = if plan.products[0].shape().m == tiles {
            &plan.products[0]
        } else {
            &plan.products[1]
        };
        let lhs = Lhs {
            ptr: self.inputs.cast_const().cast(),
            dtype: DType::F32,
            matrices: Affine::linear(elements, s.c_in as isize),
            rows: Affine::linear(tiles, step_in as isize),
            taps: &[0],
            k_step: 1,
        };
        let to = Output::Store(StoreView {
            ptr: self.sums.cast(),
            dtype: DType::F32,
            batch: Affine::linear(elements, s.c_out as isize),
            rows: Affine::linear(tiles, step_out as isize),
            cols: Affine::linear(s.c_out, 1),
        });
        // SAFETY: both operands were just written or packed for these sizes.
        unsafe { gemm.run(pool, &lhs, Rhs::Packed(filters), &to)? };
        let parts = channel_parts(s.c_out, count, threads);
        pool.parallel_for(count * parts, 1, &|range| {
            for unit in range {
                // SAFETY: each unit gives its own lines and channels.
                unsafe {
                    me.get().outputs(
                        rows.0,
                        unit / parts,
                        part(s.c_out / CHANNELS, parts, unit % parts),
                    )
                }
            }
        })
    }

    /// Transforms the inputs of one tile row.
    unsafe fn inputs(&self, first: usize, row: usize, channels: (usize, usize)) {
        let (s, plan) = (self.shape, self.plan);
        let [th, tw] = plan.tiles;
        let (image, ty) = ((first + row) / th, (first + row) % th);
        let [_, ih, iw] = s.input;
        let c = channels.0 * CHANNELS;
        let y = ty * plan.out;
        for tx in 0..tw {
            let x = tx * plan.out;
            let at = image as isize * s.strides[0]
                + y as isize * s.strides[2]
                + x as isize * s.strides[3];
            let tile = (row * tw + tx) * tile_step(plan.out, s.c_in);
            // SAFETY: valid elements are inside the image, the tile inside `inputs`.
            unsafe {
                (self.transforms.input)(&TileIo {
                    image: self.image.wrapping_offset(at).wrapping_add(c).cast_mut(),
                    row: s.strides[2],
                    pixel: s.strides[3],
                    valid: (ih - y, iw - x),
                    transformed: self.inputs.add(tile + c),
                    step: s.c_in,
                    channels: (channels.1 - channels.0) * CHANNELS,
                });
            }
        }
    }

    /// Transforms the sums of one tile row back and hands the lines of pixels on.
    unsafe fn outputs(&self, first: usize, row: usize, channels: (usize, usize)) {
        let (s, plan) = (self.shape, self.plan);
        let [th, tw] = plan.tiles;
        let [_, oh, ow] = s.output();
        let (image, ty) = ((first + row) / th, (first + row) % th);
        let (c0, c1) = (channels.0 * CHANNELS, channels.1 * CHANNELS);
        if c0 == c1 {
            return;
        }
        let ld = c1 - c0;
        let y = ty * plan.out;
        let lines = plan.out.min(oh - y);
        scratch::with(Owner::Unit, lines * ow * ld * 4, |memory| {
            let acc = memory.cast::<f32>();
            for tx in 0..tw {
                let x = tx * plan.out;
                let tile = (row * tw + tx) * tile_step(plan.out, s.c_out);
                // SAFETY: valid elements are inside `memory`, the tile inside `sums`.
                unsafe {
                    (self.transforms.output)(&TileIo {
                        image: acc.add(x * ld),
                        row: (ow * ld) as isize,
                        pixel: ld as isize,
                        valid: (lines, ow - x),
                        transformed: self.sums.add(tile + c0),
                        step: s.c_out,
                        channels: ld,
                    });
                }
            }
            let m = (image * oh + y) * ow;
            // SAFETY: checked by `run`; the block is this unit's own.
            unsafe {
                self.out.put(&Block {
                    acc,
                    ld,
                    batch: 0,
                    m: (m, m + lines * ow),
                    n: (c0, c1),
                });
            }
        });
    }
}

/// Returns how many parts of the channels give the threads enough units, together with `rows`.
fn channel_parts(channels: usize, rows: usize, threads: usize) -> usize {
    (3 * threads)
        .div_ceil(rows.max(1))
        .clamp(1, (channels / CHANNELS).max(1))
}
