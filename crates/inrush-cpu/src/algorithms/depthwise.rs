//! Depthwise convolution of NHWC images, one filter a channel: vectors across channels, tiles of seven pixels along a
//! line.

use crate::Pool;
use crate::kernels::depthwise::{DepthwiseTiles, Pixels};
use crate::kernels::with_element;
use crate::operand::scratch::{self, ALIGN, Bytes, Owner};
use crate::operand::{Block, Geometry, Output, RhsView, Shared, Target, part, reader};
use inrush_base::{DType, Error, Isa, Result};

/// Filters as `[tap][channel]`, channels rounded up to whole vectors of any level.
pub struct Filters {
    dtype: DType,
    taps: usize,
    channels: usize,
    step: usize,
    data: Bytes,
}

impl Filters {
    /// Packs filters, of which `k` counts taps and `cols` channels.
    ///
    /// # Safety
    /// Every element of `view` is readable.
    pub(crate) unsafe fn pack<T: Target>(view: &RhsView) -> Result<Filters> {
        let copy = reader::<T>(view.dtype)?;
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
struct Blocking {
    line_parts: usize,
    channel_parts: usize,
    serial: bool,
}

/// Channels are blocking at multiples of this: the vectors of every level.
const CHANNELS: usize = 16;
const SUM_BYTES: usize = 64 << 10;
const L1_BYTES: usize = 16 << 10;

fn choose(lines: usize, width: usize, channels: usize, taps: usize, threads: usize) -> Blocking {
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
    Blocking {
        line_parts,
        channel_parts,
        serial,
    }
}

/// The plan of a depthwise convolution.
#[derive(Clone, Debug)]
pub(crate) struct Depthwise {
    geometry: Geometry,
    blocking: Blocking,
    acc: DType,
    isa: Isa,
}

impl Depthwise {
    /// Plans a convolution of such lines and taps.
    pub(crate) fn plan(
        geometry: Geometry,
        acc: DType,
        isa: Isa,
        threads: usize,
    ) -> Result<Depthwise> {
        // Refuses a type that has no sums.
        with_element!(acc, T => size_of::<T>())?;
        let g = &geometry;
        let blocking = choose(g.lines.len(), g.width, g.channels, g.taps.len(), threads);
        Ok(Depthwise {
            geometry,
            blocking,
            acc,
            isa,
        })
    }

    /// # Safety
    /// As [`crate::Plan::run`]; the input is of the type of the sums.
    pub(crate) unsafe fn run(
        &self,
        pool: &Pool,
        input: *const u8,
        filters: &Filters,
        out: &Output,
    ) -> Result<()> {
        // SAFETY: the caller's contract.
        with_element!(self.acc, T => unsafe { self.run_as::<T>(pool, input, filters, out) })?
    }

    unsafe fn run_as<T: Target + DepthwiseTiles>(
        &self,
        pool: &Pool,
        input: *const u8,
        filters: &Filters,
        out: &Output,
    ) -> Result<()> {
        let blocking = &self.blocking;
        let g = &self.geometry;
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
        let f = T::depthwise(self.isa);
        let vectors = g.channels.div_ceil(CHANNELS);
        let at = Shared(&input);
        let (filters, out) = (Shared(filters), Shared(out));
        let unit = |unit: usize| {
            let (l0, l1) = part(
                g.lines.len(),
                blocking.line_parts,
                unit / blocking.channel_parts,
            );
            let (v0, v1) = part(
                vectors,
                blocking.channel_parts,
                unit % blocking.channel_parts,
            );
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
        let units = blocking.line_parts * blocking.channel_parts;
        let grain = if blocking.serial { units } else { 1 };
        pool.parallel_for(units, grain, &|range| range.for_each(unit))
    }
}
