//! Convolutions in which every channel has its own filter: vectors across channels, tiles along a line of pixels.

use crate::Pool;
use crate::blocking::part;
use crate::conv::Geometry;
use crate::micro::Kernel;
use crate::pack::{RhsView, Shared};
use crate::scratch::{self, ALIGN, Bytes, Owner};
use crate::simd::Simd;
use crate::store::{Block, Output};
use inrush_base::{DType, Error, Result};

/// A line of output pixels for some channels: `c[p][..] = sum over taps t of x[p * step + taps[t]][..] * w[t][..]`.
pub(crate) struct Pixels<T> {
    pub x: *const T,
    pub step: isize,
    pub pixels: usize,
    pub taps: *const isize,
    pub ntaps: usize,
    pub w: *const T,
    /// Elements between the weights of two taps.
    pub w_step: usize,
    pub channels: usize,
    pub c: *mut T,
    pub ldc: usize,
}

/// # Safety
/// The processor has the level's features; pointers are good for what [`Pixels`] says; `w` and `c` rows can be read and
/// written up to the next whole vector.
pub(crate) type PixelFn<T> = unsafe fn(&Pixels<T>);

/// Pixels of one tile: with two vectors of channels, as many sums as sixteen registers hold beside the filters.
const TILE: usize = 7;

/// `P` pixels of `NV` whole vectors of channels. Two vectors share a cache line, so that their loads use different banks.
#[inline(always)]
#[allow(
    unsafe_op_in_unsafe_fn,
    clippy::needless_range_loop,
    reason = "loops of constant length over register arrays"
)]
unsafe fn tile<S: Simd, const P: usize, const NV: usize>(
    t: &Pixels<S::T>,
    pixel: usize,
    channel: usize,
) {
    let mut acc = [[S::zero(); NV]; P];
    let x = t.x.offset(pixel as isize * t.step).add(channel);
    let w = t.w.add(channel);
    for tap in 0..t.ntaps {
        let x = x.offset(*t.taps.add(tap));
        let mut weight = [S::zero(); NV];
        for v in 0..NV {
            weight[v] = S::load(w.add(tap * t.w_step + v * S::LANES));
        }
        for p in 0..P {
            let x = x.offset(p as isize * t.step);
            for v in 0..NV {
                acc[p][v] = S::fma(S::load(x.add(v * S::LANES)), weight[v], acc[p][v]);
            }
        }
    }
    for p in 0..P {
        for v in 0..NV {
            S::store(
                t.c.add((pixel + p) * t.ldc + channel + v * S::LANES),
                acc[p][v],
            );
        }
    }
}

/// One pixel of the last channels, fewer than a vector.
#[inline(always)]
#[allow(unsafe_op_in_unsafe_fn, reason = "as above")]
unsafe fn tail<S: Simd>(t: &Pixels<S::T>, pixel: usize, channel: usize) {
    let mut acc = S::zero();
    let x = t.x.offset(pixel as isize * t.step).add(channel);
    for tap in 0..t.ntaps {
        let weight = S::load(t.w.add(tap * t.w_step + channel));
        let v = S::load_n(x.offset(*t.taps.add(tap)), t.channels - channel);
        acc = S::fma(v, weight, acc);
    }
    S::store(t.c.add(pixel * t.ldc + channel), acc);
}

#[inline(always)]
#[allow(unsafe_op_in_unsafe_fn, reason = "the contract of `PixelFn`")]
unsafe fn pixels<S: Simd>(t: &Pixels<S::T>) {
    macro_rules! tiles {
        ($nv:literal, $p0:expr, $p1:expr, $channel:expr) => {
            match $p1 - $p0 {
                1 => tile::<S, 1, $nv>(t, $p0, $channel),
                2 => tile::<S, 2, $nv>(t, $p0, $channel),
                3 => tile::<S, 3, $nv>(t, $p0, $channel),
                4 => tile::<S, 4, $nv>(t, $p0, $channel),
                5 => tile::<S, 5, $nv>(t, $p0, $channel),
                6 => tile::<S, 6, $nv>(t, $p0, $channel),
                _ => tile::<S, TILE, $nv>(t, $p0, $channel),
            }
        };
    }
    let parts = t.pixels.div_ceil(TILE);
    let pairs = t.channels / (2 * S::LANES) * 2 * S::LANES;
    let whole = t.channels / S::LANES * S::LANES;
    for i in 0..parts {
        let (p0, p1) = part(t.pixels, parts, i);
        for channel in (0..pairs).step_by(2 * S::LANES) {
            tiles!(2, p0, p1, channel);
        }
        for channel in (pairs..whole).step_by(S::LANES) {
            tiles!(1, p0, p1, channel);
        }
        if whole < t.channels {
            for p in p0..p1 {
                tail::<S>(t, p, whole);
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
pub(crate) unsafe fn pixels_avx2<S: Simd>(t: &Pixels<S::T>) {
    // SAFETY: the caller's contract.
    unsafe { pixels::<S>(t) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512cd,avx512dq,avx512vl")]
pub(crate) unsafe fn pixels_avx512<S: Simd>(t: &Pixels<S::T>) {
    // SAFETY: the caller's contract.
    unsafe { pixels::<S>(t) }
}

pub(crate) unsafe fn pixels_plain<S: Simd>(t: &Pixels<S::T>) {
    // SAFETY: the caller's contract.
    unsafe { pixels::<S>(t) }
}

/// Filters as `[tap][channel]`, channels rounded up to whole vectors of any level.
pub struct Filters {
    dtype: DType,
    taps: usize,
    channels: usize,
    step: usize,
    data: Bytes,
}

impl Filters {
    /// `view`: `k` counts taps, `cols` channels.
    ///
    /// # Safety
    /// Every element of `view` is readable.
    pub(crate) unsafe fn pack<T: Kernel>(view: &RhsView) -> Result<Filters> {
        let copy = crate::pack::reader::<T>(view.dtype)?;
        let (taps, channels) = (view.k.len(), view.cols.len());
        let step = channels.next_multiple_of(16);
        let data = step
            .checked_mul(taps)
            .and_then(|x| x.checked_mul(size_of::<T>()))
            .and_then(Bytes::new)
            .ok_or_else(|| Error::machine(format!("no memory for {channels} filters of {taps}")))?;
        let size = view.dtype.size() as isize;
        let to = data.ptr().cast::<T>();
        let (run, run_step) = view.cols.inner();
        // SAFETY: `step >= channels`, and the caller vouches for the source.
        unsafe {
            std::ptr::write_bytes(to, 0, step * taps);
            for tap in 0..taps {
                for c in (0..channels).step_by(run) {
                    let offset = view.k.offset(tap) + view.cols.offset(c);
                    let from = view.ptr.wrapping_offset(offset * size);
                    copy(
                        from,
                        run_step,
                        to.add(tap * step + c),
                        1,
                        run.min(channels - c),
                    );
                }
            }
        }
        data.inspect("the engine", &"packed filters");
        Ok(Filters {
            dtype: T::DTYPE,
            taps,
            channels,
            step,
            data,
        })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.data.len()
    }
}

/// How lines of output and channels are shared among threads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut {
    line_parts: usize,
    channel_parts: usize,
    serial: bool,
}

/// Channels are cut at multiples of this: the vectors of every level.
const CHANNELS: usize = 16;
const SUM_BYTES: usize = 64 << 10;
const L1_BYTES: usize = 16 << 10;

pub(crate) fn choose(
    lines: usize,
    width: usize,
    channels: usize,
    taps: usize,
    threads: usize,
) -> Cut {
    let vectors = channels.div_ceil(CHANNELS).max(1);
    let sums = width * channels * 4;
    // Blocks of sums fit the cache; then enough units to even out the threads' ends.
    let mut line_parts = (lines * sums)
        .div_ceil(SUM_BYTES)
        .max((4 * threads).min(lines))
        .min(lines)
        .max(1);
    let mut channel_parts = (sums / SUM_BYTES).clamp(1, vectors);
    if line_parts * channel_parts < 4 * threads {
        channel_parts = (4 * threads)
            .div_ceil(line_parts)
            .min(vectors.div_ceil(4))
            .max(channel_parts);
    }
    let serial = lines * width * channels * taps < 64 << 10;
    if serial {
        line_parts = (lines * sums).div_ceil(SUM_BYTES).clamp(1, lines.max(1));
        channel_parts = 1;
    }
    Cut {
        line_parts,
        channel_parts,
        serial,
    }
}

/// # Safety
/// As [`crate::Conv::run`]; the input is of `T`.
#[allow(
    clippy::too_many_arguments,
    reason = "one caller, which has checked them"
)]
pub(crate) unsafe fn run<T: Kernel>(
    pool: &Pool,
    geometry: &Geometry,
    cut: &Cut,
    isa: inrush_base::Isa,
    input: *const u8,
    filters: &Filters,
    out: &Output,
) -> Result<()> {
    let g = geometry;
    if (filters.dtype, filters.taps, filters.channels) != (T::DTYPE, g.taps.len(), g.channels) {
        return Err(Error::internal(
            "filters were packed for another convolution",
        ));
    }
    let pixels = g.lines.len() * g.width;
    out.check::<T>(1, pixels, g.channels)?;
    if pixels == 0 || g.channels == 0 {
        return Ok(());
    }
    let f = T::depthwise(isa);
    let vectors = g.channels.div_ceil(CHANNELS);
    let at = Shared(&input);
    let (filters, out) = (Shared(filters), Shared(out));
    let unit = |unit: usize| {
        let (l0, l1) = part(g.lines.len(), cut.line_parts, unit / cut.channel_parts);
        let (v0, v1) = part(vectors, cut.channel_parts, unit % cut.channel_parts);
        let (c0, c1) = (v0 * CHANNELS, (v1 * CHANNELS).min(g.channels));
        if l0 == l1 || c0 >= c1 {
            return;
        }
        let ld = (v1 - v0) * CHANNELS;
        let m = (l0 * g.width, l1 * g.width);
        scratch::with(
            Owner::Unit,
            ((m.1 - m.0) * ld * size_of::<T>()).next_multiple_of(ALIGN),
            |sums| {
                let sums = sums.cast::<T>();
                // A few channels at a time, so that lines shared by neighbouring outputs stay in the first cache.
                let few = L1_BYTES / (g.reach * size_of::<T>()).max(1);
                let few = (few - few % CHANNELS).max(CHANNELS);
                for c in (c0..c1).step_by(few) {
                    let mut walk = g.lines.walk(l0);
                    for line in 0..l1 - l0 {
                        let x = at
                            .get()
                            .cast::<T>()
                            .wrapping_offset(walk.next() + c as isize);
                        // SAFETY: a line of the input at each tap; whole vectors of filters and sums.
                        unsafe {
                            f(&Pixels {
                                x,
                                step: g.step,
                                pixels: g.width,
                                taps: g.taps.as_ptr(),
                                ntaps: g.taps.len(),
                                w: filters.get().data.ptr().cast::<T>().add(c),
                                w_step: filters.get().step,
                                channels: few.min(c1 - c),
                                c: sums.add(line * g.width * ld + (c - c0)),
                                ldc: ld,
                            });
                        }
                    }
                }
                // SAFETY: checked above; the block is this unit's own.
                unsafe {
                    out.get().put(&Block {
                        acc: sums,
                        ld,
                        batch: 0,
                        m,
                        n: (c0, c1),
                    });
                }
            },
        );
    };
    let units = cut.line_parts * cut.channel_parts;
    let grain = if cut.serial { units } else { 1 };
    pool.parallel_for(units, grain, &|range| range.for_each(unit))
}
