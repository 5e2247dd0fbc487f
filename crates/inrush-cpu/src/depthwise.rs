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

/// Pixels of one tile: enough sums to keep the multipliers busy, and registers for them on every level.
const TILE: usize = 8;

#[inline(always)]
#[allow(
    unsafe_op_in_unsafe_fn,
    clippy::needless_range_loop,
    reason = "loops of constant length over register arrays"
)]
unsafe fn tile<S: Simd, const P: usize>(t: &Pixels<S::T>, pixel: usize, channel: usize) {
    let mut acc = [S::zero(); P];
    let x = t.x.offset(pixel as isize * t.step).add(channel);
    let w = t.w.add(channel);
    let left = t.channels - channel;
    if left >= S::LANES {
        for tap in 0..t.ntaps {
            let weight = S::load(w.add(tap * t.w_step));
            let x = x.offset(*t.taps.add(tap));
            for p in 0..P {
                acc[p] = S::fma(S::load(x.offset(p as isize * t.step)), weight, acc[p]);
            }
        }
    } else {
        for tap in 0..t.ntaps {
            let weight = S::load(w.add(tap * t.w_step));
            let x = x.offset(*t.taps.add(tap));
            for p in 0..P {
                let v = S::load_n(x.offset(p as isize * t.step), left);
                acc[p] = S::fma(v, weight, acc[p]);
            }
        }
    }
    for p in 0..P {
        S::store(t.c.add((pixel + p) * t.ldc + channel), acc[p]);
    }
}

#[inline(always)]
#[allow(unsafe_op_in_unsafe_fn, reason = "the contract of `PixelFn`")]
unsafe fn pixels<S: Simd>(t: &Pixels<S::T>) {
    let parts = t.pixels.div_ceil(TILE);
    for i in 0..parts {
        let (p0, p1) = part(t.pixels, parts, i);
        for channel in (0..t.channels).step_by(S::LANES) {
            match p1 - p0 {
                1 => tile::<S, 1>(t, p0, channel),
                2 => tile::<S, 2>(t, p0, channel),
                3 => tile::<S, 3>(t, p0, channel),
                4 => tile::<S, 4>(t, p0, channel),
                5 => tile::<S, 5>(t, p0, channel),
                6 => tile::<S, 6>(t, p0, channel),
                7 => tile::<S, 7>(t, p0, channel),
                _ => tile::<S, TILE>(t, p0, channel),
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
/// As [`crate::Conv::run`]; `dtype` of the input is `T`'s or one that converts to it.
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
    dtype: DType,
    filters: &Filters,
    out: &Output,
) -> Result<()> {
    let g = geometry;
    if (filters.dtype, filters.taps, filters.channels) != (T::DTYPE, g.taps.len(), g.channels) {
        return Err(Error::internal(
            "filters were packed for another convolution",
        ));
    }
    if dtype != T::DTYPE {
        return Err(Error::unsupported(format!(
            "a depthwise convolution of {dtype} summed in {}",
            T::DTYPE
        )));
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
                let mut walk = g.lines.walk(l0);
                for line in 0..l1 - l0 {
                    let x = at
                        .get()
                        .cast::<T>()
                        .wrapping_offset(walk.next() + c0 as isize);
                    // SAFETY: a line of the input at each tap; whole vectors of filters and sums.
                    unsafe {
                        f(&Pixels {
                            x,
                            step: g.step,
                            pixels: g.width,
                            taps: g.taps.as_ptr(),
                            ntaps: g.taps.len(),
                            w: filters.get().data.ptr().cast::<T>().add(c0),
                            w_step: filters.get().step,
                            channels: c1 - c0,
                            c: sums.add(line * g.width * ld),
                            ldc: ld,
                        });
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
