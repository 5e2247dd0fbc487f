//! Winograd's transforms of tiles of inputs, of sums and of filters.

use crate::operand::CopyFn;
use crate::simd::Simd;
use inrush_base::{DType, Isa};

/// Most elements of a tile and of its transform along a line.
const MAX_IN: usize = 6;
const MAX_OUT: usize = 4;

/// Where a tile's elements are and which of them exist.
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

/// Computes `k * a + b`.
#[inline(always)]
unsafe fn mul_add<S: Simd<T = f32>>(k: f32, a: S::V, b: S::V) -> S::V {
    // SAFETY: the caller's level.
    unsafe { S::fma(S::splat(k), a, b) }
}

/// Computes one line of the input transform, for `OUT` outputs.
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

/// Computes one line of the output transform.
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
pub(crate) const LINE: usize = 16;
type Line = [f64; LINE];

/// Filters of up to [`LINE`] output channels: where they are, and where their transforms go.
pub(crate) struct FilterIo {
    /// Tap `t` of input channel `i` for output channel `j` is `taps[t] + i * step + cols[j]` elements from here.
    pub from: *const u8,
    pub dtype: DType,
    pub read: CopyFn<u8, f64>,
    pub taps: [isize; 9],
    pub step: isize,
    pub cols: [isize; LINE],
    pub count: usize,
    /// Input channels.
    pub channels: (usize, usize),
    /// Element `e` of the transform of input channel `i` for the first output channel is `e * matrix + i * row` from here.
    pub to: *mut f32,
    pub matrix: usize,
    pub row: usize,
}

/// # Safety
/// The processor has the level's features; every tap can be read and every transformed element written.
pub(crate) type FilterFn = unsafe fn(&FilterIo);

/// Computes one line of the filter transform, of three taps each.
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

pub(crate) fn transforms(isa: Isa, out: usize) -> Transforms {
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
