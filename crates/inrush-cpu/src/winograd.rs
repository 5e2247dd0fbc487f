//! 3 x 3 convolutions with fewer multiplications (Winograd's minimal filtering): each tile of outputs is computed from a
//! transformed tile of inputs by one small product for each transformed element, all channels at once.
//!
//! A tile of 4 x 4 outputs needs 36 products instead of 144, one of 2 x 2 needs 16 instead of 36; the transforms' constants
//! cost about one decimal digit of precision in the larger. Three loops a chunk of tile rows: transform inputs, multiply,
//! transform sums back and hand them on.

use crate::blocking::part;
use crate::conv::ConvShape;
use crate::convert::CopyFn;
use crate::gemm::{Gemm, GemmShape, Lhs, Rhs};
use crate::pack::{PackedB, RhsView, Shared};
use crate::scratch::{self, ALIGN, Owner};
use crate::simd::Simd;
use crate::store::{Block, Output, StoreView};
use crate::{Affine, Pool};
use inrush_base::{DType, Isa, Result};

/// Channels come in multiples of this: the vectors of every level.
pub(crate) const CHANNELS: usize = 16;
/// Transformed inputs and sums of a chunk of tiles.
const CHUNK_BYTES: usize = 2 << 20;
/// Most elements of a tile and of its transform along a line.
const MAX_IN: usize = 6;
const MAX_OUT: usize = 4;

/// Where a tile's elements lie and which of them exist.
pub(crate) struct TileIo {
    /// First element, first of the channels.
    pub image: *mut f32,
    pub row: isize,
    pub pixel: isize,
    /// Elements that exist down and across; fewer at the far edges.
    pub valid: (usize, usize),
    /// Transformed elements, `step` apart.
    pub transformed: *mut f32,
    pub step: usize,
    /// Whole vectors.
    pub channels: usize,
}

/// # Safety
/// The processor has the level's features; valid elements and all transformed ones can be read or written for `channels`.
pub(crate) type TransformFn = unsafe fn(&TileIo);

/// The transforms of a tile size.
#[derive(Clone, Copy)]
pub(crate) struct Transforms {
    pub input: TransformFn,
    pub output: TransformFn,
    pub filter: FilterFn,
}

/// `k * a + b`.
#[inline(always)]
unsafe fn mul_add<S: Simd<T = f32>>(k: f32, a: S::V, b: S::V) -> S::V {
    // SAFETY: the caller's level.
    unsafe { S::fma(S::splat(k), a, b) }
}

/// One line of the input transform, for `OUT` outputs.
#[inline(always)]
unsafe fn line_in<S: Simd<T = f32>, const OUT: usize>(d: [S::V; MAX_IN]) -> [S::V; MAX_IN] {
    // SAFETY: the caller's level.
    unsafe {
        let mut t = d;
        if OUT == 4 {
            let (a, b) = (
                mul_add::<S>(-4.0, d[2], d[4]),
                mul_add::<S>(-4.0, d[1], d[3]),
            );
            let (c, e) = (S::sub(d[4], d[2]), S::sub(d[3], d[1]));
            t[0] = mul_add::<S>(4.0, d[0], mul_add::<S>(-5.0, d[2], d[4]));
            t[1] = S::add(a, b);
            t[2] = S::sub(a, b);
            t[3] = mul_add::<S>(2.0, e, c);
            t[4] = mul_add::<S>(-2.0, e, c);
            t[5] = mul_add::<S>(4.0, d[1], mul_add::<S>(-5.0, d[3], d[5]));
        } else {
            t[0] = S::sub(d[0], d[2]);
            t[1] = S::add(d[1], d[2]);
            t[2] = S::sub(d[2], d[1]);
            t[3] = S::sub(d[3], d[1]);
        }
        t
    }
}

/// One line of the output transform.
#[inline(always)]
unsafe fn line_out<S: Simd<T = f32>, const OUT: usize>(m: [S::V; MAX_IN]) -> [S::V; MAX_OUT] {
    // SAFETY: the caller's level.
    unsafe {
        if OUT == 4 {
            let (a, b) = (S::add(m[1], m[2]), S::sub(m[1], m[2]));
            let (c, d) = (S::add(m[3], m[4]), S::sub(m[3], m[4]));
            [
                S::add(m[0], S::add(a, c)),
                mul_add::<S>(2.0, d, b),
                mul_add::<S>(4.0, c, a),
                mul_add::<S>(8.0, d, S::add(b, m[5])),
            ]
        } else {
            let zero = S::zero();
            [
                S::add(m[0], S::add(m[1], m[2])),
                S::add(S::sub(m[1], m[2]), m[3]),
                zero,
                zero,
            ]
        }
    }
}

/// Filters that are transformed together: neighbours in the result.
const LINE: usize = 16;
type Line = [f64; LINE];

/// Filters of up to [`LINE`] output channels: where they lie, and where their transforms go.
pub(crate) struct FilterIo {
    /// Tap `t` of input channel `i` for output channel `j` lies `taps[t] + i * step + cols[j]` elements from here.
    pub from: *const u8,
    pub dtype: DType,
    pub read: CopyFn<u8, f64>,
    pub taps: [isize; 9],
    pub step: isize,
    pub cols: [isize; LINE],
    pub count: usize,
    /// Input channels.
    pub channels: (usize, usize),
    /// Element `e` of the transform of input channel `i` for the first output channel lies `e * matrix + i * row` from here.
    pub to: *mut f32,
    pub matrix: usize,
    pub row: usize,
}

/// # Safety
/// The processor has the level's features; every tap can be read and every transformed element written.
pub(crate) type FilterFn = unsafe fn(&FilterIo);

/// One line of the filter transform, of three taps each.
#[inline(always)]
fn line_filter<const OUT: usize>(f: [&Line; 3]) -> [Line; MAX_IN] {
    let mut t = [[0.0; LINE]; MAX_IN];
    for j in 0..LINE {
        let (a, b, c) = (f[0][j], f[1][j], f[2][j]);
        if OUT == 4 {
            let (even, odd) = ((a + c) * (-1.0 / 6.0), b * (-1.0 / 6.0));
            let (near, far) = (a * (1.0 / 24.0) + c * (1.0 / 6.0), b * (1.0 / 12.0));
            t[0][j] = a * 0.25;
            t[1][j] = even + odd;
            t[2][j] = even - odd;
            t[3][j] = near + far;
            t[4][j] = near - far;
            t[5][j] = c;
        } else {
            let (even, odd) = ((a + c) * 0.5, b * 0.5);
            t[0][j] = a;
            t[1][j] = even + odd;
            t[2][j] = even - odd;
            t[3][j] = c;
        }
    }
    t
}

#[inline(always)]
#[allow(
    unsafe_op_in_unsafe_fn,
    clippy::needless_range_loop,
    reason = "loops of constant length over register arrays"
)]
unsafe fn filter<const OUT: usize>(f: &FilterIo) {
    let n = OUT + 2;
    let size = f.dtype.size() as isize;
    for i in f.channels.0..f.channels.1 {
        let base = f.from.wrapping_offset(i as isize * f.step * size);
        let mut taps = [[0.0; LINE]; 9];
        for (taps, tap) in taps.iter_mut().zip(f.taps) {
            let tap = base.wrapping_offset(tap * size);
            if f.dtype == DType::F32 {
                let mut line = [0f32; LINE];
                for (to, col) in line.iter_mut().zip(f.cols).take(f.count) {
                    *to = tap.cast::<f32>().wrapping_offset(col).read_unaligned();
                }
                *taps = line.map(f64::from);
            } else {
                for (to, col) in taps.iter_mut().zip(f.cols).take(f.count) {
                    (f.read)(tap.wrapping_offset(col * size), 0, to, 0, 1);
                }
            }
        }
        // Down the columns, then along the rows.
        let half: [[Line; MAX_IN]; 3] =
            std::array::from_fn(|x| line_filter::<OUT>([&taps[x], &taps[3 + x], &taps[6 + x]]));
        for y in 0..n {
            let line = line_filter::<OUT>([&half[0][y], &half[1][y], &half[2][y]]);
            for (x, line) in line.iter().enumerate().take(n) {
                let to = f.to.add((y * n + x) * f.matrix + i * f.row);
                let line = line.map(|v| v as f32);
                if f.count == LINE {
                    to.cast::<[f32; LINE]>().write_unaligned(line);
                } else {
                    std::ptr::copy_nonoverlapping(line.as_ptr(), to, f.count);
                }
            }
        }
    }
}

#[inline(always)]
#[allow(
    unsafe_op_in_unsafe_fn,
    clippy::needless_range_loop,
    reason = "loops of constant length over register arrays"
)]
unsafe fn input<S: Simd<T = f32>, const OUT: usize>(t: &TileIo) {
    let n = OUT + 2;
    let whole = t.valid.0 >= n && t.valid.1 >= n;
    for c in (0..t.channels).step_by(S::LANES) {
        let from = t.image.add(c);
        // Down the columns, then along the rows.
        let mut half = [[S::zero(); MAX_IN]; MAX_IN];
        for x in 0..n {
            let mut d = [S::zero(); MAX_IN];
            for y in 0..n {
                if whole || y < t.valid.0 && x < t.valid.1 {
                    d[y] = S::load(from.offset(y as isize * t.row + x as isize * t.pixel));
                }
            }
            half[x] = line_in::<S, OUT>(d);
        }
        for y in 0..n {
            let mut d = [S::zero(); MAX_IN];
            for x in 0..n {
                d[x] = half[x][y];
            }
            let line = line_in::<S, OUT>(d);
            for x in 0..n {
                S::store(t.transformed.add((y * n + x) * t.step + c), line[x]);
            }
        }
    }
}

#[inline(always)]
#[allow(
    unsafe_op_in_unsafe_fn,
    clippy::needless_range_loop,
    reason = "loops of constant length over register arrays"
)]
unsafe fn output<S: Simd<T = f32>, const OUT: usize>(t: &TileIo) {
    let n = OUT + 2;
    for c in (0..t.channels).step_by(S::LANES) {
        let to = t.image.add(c);
        let mut half = [[S::zero(); MAX_OUT]; MAX_IN];
        for x in 0..n {
            let mut m = [S::zero(); MAX_IN];
            for y in 0..n {
                m[y] = S::load(t.transformed.add((y * n + x) * t.step + c));
            }
            half[x] = line_out::<S, OUT>(m);
        }
        for y in 0..OUT {
            let mut m = [S::zero(); MAX_IN];
            for x in 0..n {
                m[x] = half[x][y];
            }
            let line = line_out::<S, OUT>(m);
            for x in 0..OUT {
                if y < t.valid.0 && x < t.valid.1 {
                    S::store(
                        to.offset(y as isize * t.row + x as isize * t.pixel),
                        line[x],
                    );
                }
            }
        }
    }
}

macro_rules! levels {
    ($($name:ident $(, $features:literal)?;)*) => {$(
        pub(crate) mod $name {
            use super::*;
            $( #[target_feature(enable = $features)] )?
            pub(crate) unsafe fn input<S: Simd<T = f32>, const OUT: usize>(t: &TileIo) {
                // SAFETY: the caller's contract.
                unsafe { super::input::<S, OUT>(t) }
            }
            $( #[target_feature(enable = $features)] )?
            pub(crate) unsafe fn output<S: Simd<T = f32>, const OUT: usize>(t: &TileIo) {
                // SAFETY: the caller's contract.
                unsafe { super::output::<S, OUT>(t) }
            }
            $( #[target_feature(enable = $features)] )?
            pub(crate) unsafe fn filter<const OUT: usize>(f: &FilterIo) {
                // SAFETY: the caller's contract.
                unsafe { super::filter::<OUT>(f) }
            }
        }
    )*};
}
levels! { plain; }
#[cfg(target_arch = "x86_64")]
levels! {
    avx2, "avx2,fma";
    avx512, "avx2,fma,avx512f,avx512bw,avx512cd,avx512dq,avx512vl";
}

fn transforms(isa: Isa, out: usize) -> Transforms {
    macro_rules! pair {
        ($level:ident, $s:ty) => {
            if out == 4 {
                Transforms {
                    input: $level::input::<$s, 4>,
                    output: $level::output::<$s, 4>,
                    filter: $level::filter::<4>,
                }
            } else {
                Transforms {
                    input: $level::input::<$s, 2>,
                    output: $level::output::<$s, 2>,
                    filter: $level::filter::<2>,
                }
            }
        };
    }
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => pair!(avx2, crate::simd::Avx2F32),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => pair!(avx512, crate::simd::Avx512F32),
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => pair!(plain, crate::simd::NeonF32),
        _ => pair!(plain, crate::simd::Portable<f32>),
    }
}

/// The plan: tiles, chunks of tile rows, and the products of a chunk.
#[derive(Clone, Debug)]
pub(crate) struct Winograd {
    /// Outputs of a tile along each side.
    pub(crate) out: usize,
    tiles: [usize; 2],
    chunks: usize,
    /// Products of chunks of the smaller and of the larger number of tile rows.
    products: [Gemm; 2],
}

/// Distance of two tiles' transforms: no multiple of a page, so that tiles do not compete for the same cache sets.
fn tile_step(out: usize, channels: usize) -> usize {
    (out + 2) * (out + 2) * channels + CHANNELS
}

/// Whether a convolution can be computed this way at all.
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

/// Rough seconds of a convolution by tiles of `out` outputs a side, or directly for `out == 1`, on `threads` threads.
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
            Gemm::plan(shape, DType::F32, isa, threads, true)
        };
        Ok(Winograd {
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
        let read = crate::pack::reader::<f64>(view.dtype)?;
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
    /// As [`crate::Conv::run`].
    pub(crate) unsafe fn run(
        &self,
        pool: &Pool,
        s: &ConvShape,
        isa: Isa,
        input: *const f32,
        filters: &PackedB,
        out: &Output,
    ) -> Result<()> {
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
                transforms: transforms(isa, self.out),
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
    /// Tile rows `rows.0..rows.1`, counted through the batch.
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

/// Parts of the channels that give the threads enough units, together with `rows`.
fn channel_parts(channels: usize, rows: usize, threads: usize) -> usize {
    (3 * threads)
        .div_ceil(rows.max(1))
        .clamp(1, (channels / CHANNELS).max(1))
}
