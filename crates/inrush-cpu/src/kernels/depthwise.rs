//! Depthwise tiles: vectors across channels, up to seven pixels of a line.

use super::by_isa;
use crate::operand::part;
use crate::simd::{self, Element, Portable, Simd};
use inrush_base::Isa;

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

/// Pixels of one tile: with two vectors of channels, as many sums as sixteen registers hold besides the filters.
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

/// Computes one pixel of the last channels, fewer than a vector.
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
unsafe fn pixels_avx2<S: Simd>(t: &Pixels<S::T>) {
    // SAFETY: the caller's contract.
    unsafe { pixels::<S>(t) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512cd,avx512dq,avx512vl")]
unsafe fn pixels_avx512<S: Simd>(t: &Pixels<S::T>) {
    // SAFETY: the caller's contract.
    unsafe { pixels::<S>(t) }
}

unsafe fn pixels_plain<S: Simd>(t: &Pixels<S::T>) {
    // SAFETY: the caller's contract.
    unsafe { pixels::<S>(t) }
}

/// Element types with depthwise tiles: all that products are summed in.
pub(crate) trait DepthwiseTiles: Element {
    /// Returns the function of a level.
    fn depthwise(isa: Isa) -> PixelFn<Self>;
}

macro_rules! float {
    ($t:ty, $avx2:ident, $avx512:ident, $neon:ident) => {
        impl DepthwiseTiles for $t {
            fn depthwise(isa: Isa) -> PixelFn<$t> {
                *by_isa!(isa, PixelFn<$t>,
                    avx2: pixels_avx2::<simd::$avx2>,
                    avx512: pixels_avx512::<simd::$avx512>,
                    neon: pixels_plain::<simd::$neon>,
                    plain: pixels_plain::<Portable<$t>>)
            }
        }
    };
}
float!(f32, Avx2F32, Avx512F32, NeonF32);
float!(f64, Avx2F64, Avx512F64, NeonF64);

macro_rules! int {
    ($t:ty) => {
        impl DepthwiseTiles for $t {
            fn depthwise(_: Isa) -> PixelFn<$t> {
                pixels_plain::<Portable<$t>>
            }
        }
    };
}
int!(i32);
int!(i64);
