//! GEMM tiles of one vector and up to 28 rows at even distances, as the pixels of a line have. Few output channels
//! leave one vector of the right operand for each product, which twelve rows are too few for.
//!
//! Rows need no pointer each, so a tile has as many rows as there are registers for their sums.

use crate::simd::{Element, Simd};
use inrush_base::Isa;

/// A tile: `c[i][..] (+)= sum over taps t and k of row[i * step + taps[t] + k] * b[t][k][..]`.
pub(crate) struct TallTile<T> {
    pub row: *const T,
    pub step: isize,
    pub taps: *const isize,
    pub ntaps: usize,
    pub k: usize,
    pub b: *const T,
    pub c: *mut T,
    pub ldc: usize,
    /// Add to `c` instead of overwriting it.
    pub accumulate: bool,
}

/// # Safety
/// The processor has the level's features; rows are readable for `k` elements at each tap; `b` holds `ntaps * k` vectors;
/// `c` can take one for each row.
pub(crate) type TallFn<T> = unsafe fn(&TallTile<T>);

/// Heights are multiples of this, from `GROUP * SMALLEST` on.
pub(crate) const GROUP: usize = 4;
const SMALLEST: usize = 4;
const HEIGHTS: usize = 4;

/// The tiles of [`SMALLEST`] groups and more.
pub(crate) struct Tiles<T>([TallFn<T>; HEIGHTS]);

impl<T> Tiles<T> {
    /// Returns the tile that begins `rows` rows and its height: nearly equal ones, where there are several. `None` for few rows.
    pub(crate) fn next(&self, rows: usize) -> Option<(usize, TallFn<T>)> {
        let groups = rows / GROUP;
        let most = SMALLEST + HEIGHTS - 1;
        let of = groups.div_ceil(groups.div_ceil(most).max(1));
        let f = self.0.get(of.checked_sub(SMALLEST)?)?;
        Some((of * GROUP, *f))
    }
}

/// Some products of a group of rows, and the next row: products of one row follow each other, so that one pointer is enough.
#[inline(always)]
#[allow(
    unsafe_op_in_unsafe_fn,
    clippy::needless_range_loop,
    reason = "the contract of `TallFn`; loops of constant length over register arrays"
)]
unsafe fn group<S: Simd, const K: usize>(
    acc: &mut [S::V; GROUP],
    mut row: *const S::T,
    step: isize,
    v: &[S::V; K],
) -> *const S::T {
    for i in 0..GROUP {
        for k in 0..K {
            acc[i] = S::fma(S::splat(*row.wrapping_add(k)), v[k], acc[i]);
        }
        row = row.wrapping_offset(step);
    }
    row
}

/// A level's tiles. Groups are written out one by one: the compiler leaves loops of this length as they are.
macro_rules! level {
    ($level:ident, $features:literal; $($name:ident [$($g:literal)*])*) => {
        #[cfg(target_arch = "x86_64")]
        pub(crate) mod $level {
            use super::*;
            $(
                #[target_feature(enable = $features)]
                #[allow(
                    unsafe_op_in_unsafe_fn,
                    clippy::needless_range_loop,
                    reason = "the contract of `TallFn`; loops of constant length over register arrays"
                )]
                unsafe fn $name<S: Simd>(t: &TallTile<S::T>) {
                    const UNROLL: usize = 2;
                    let mut acc = [[S::zero(); GROUP]; [$($g),*].len()];
                    let mut b = t.b;
                    let step = t.step;
                    // Sums may have left the caches since they were written.
                    $( for i in 0..GROUP {
                        S::prefetch(t.c.wrapping_add(($g * GROUP + i) * t.ldc).cast());
                    } )*
                    for tap in 0..t.ntaps {
                        let mut a = t.row.wrapping_offset(*t.taps.add(tap));
                        for _ in 0..t.k / UNROLL {
                            let mut v = [S::zero(); UNROLL];
                            for k in 0..UNROLL {
                                v[k] = S::load(b.add(k * S::LANES));
                            }
                            let mut row = a;
                            $( row = group::<S, UNROLL>(&mut acc[$g], row, step, &v); )*
                            let _ = row;
                            a = a.wrapping_add(UNROLL);
                            b = b.wrapping_add(UNROLL * S::LANES);
                        }
                        for _ in 0..t.k % UNROLL {
                            let v = [S::load(b)];
                            let mut row = a;
                            $( row = group::<S, 1>(&mut acc[$g], row, step, &v); )*
                            let _ = row;
                            a = a.wrapping_add(1);
                            b = b.wrapping_add(S::LANES);
                        }
                    }
                    $(
                        for i in 0..GROUP {
                            let c = t.c.wrapping_add(($g * GROUP + i) * t.ldc);
                            let mut sum = acc[$g][i];
                            if t.accumulate {
                                sum = S::add(sum, S::load(c));
                            }
                            S::store(c, sum);
                        }
                    )*
                }
            )*
            pub(crate) const fn tiles<S: Simd>() -> Tiles<S::T> {
                Tiles([$( $name::<S> ),*])
            }
        }
    };
}
level! { avx512, "avx2,fma,avx512f,avx512bw,avx512cd,avx512dq,avx512vl";
    four [0 1 2 3] five [0 1 2 3 4] six [0 1 2 3 4 5] seven [0 1 2 3 4 5 6]
}

/// Element types with tall tiles on some level.
pub(crate) trait TallTiles: Element {
    /// Returns the tiles of a level that has them: 32 registers hold 28 sums.
    fn tall(_: Isa) -> Option<&'static Tiles<Self>> {
        None
    }
}

macro_rules! float {
    ($t:ty, $avx512:ident) => {
        impl TallTiles for $t {
            fn tall(isa: Isa) -> Option<&'static Tiles<$t>> {
                match isa {
                    #[cfg(target_arch = "x86_64")]
                    Isa::Avx512 => {
                        static TILES: Tiles<$t> = avx512::tiles::<crate::simd::$avx512>();
                        Some(&TILES)
                    }
                    _ => None,
                }
            }
        }
    };
}
float!(f32, Avx512F32);
float!(f64, Avx512F64);
impl TallTiles for i32 {}
impl TallTiles for i64 {}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn heights_are_nearly_equal_and_cover_all_but_few_rows() {
        if !crate::available().contains(&Isa::Avx512) {
            return;
        }
        let tiles = f32::tall(Isa::Avx512).unwrap();
        for rows in 1..200 {
            let (mut left, mut heights) = (rows, Vec::new());
            while let Some((height, _)) = tiles.next(left) {
                assert!(height <= left, "{rows}");
                heights.push(height);
                left -= height;
            }
            assert!(left < SMALLEST * GROUP, "{rows}: {left} left");
            if rows >= SMALLEST * GROUP * 4 {
                let apart = heights.iter().max().unwrap() - heights.iter().min().unwrap();
                assert!(left < GROUP && apart <= GROUP, "{rows}: {heights:?}");
            }
        }
    }

    /// Every height, with products left over and several taps; a second time on top of the first.
    #[test]
    fn tiles_of_every_height() {
        if !crate::available().contains(&Isa::Avx512) {
            return;
        }
        let tiles = f64::tall(Isa::Avx512).unwrap();
        let (lanes, taps) = (8, [5isize, 40]);
        let a: Vec<f64> = (0..500).map(|i| ((i * 37) % 19) as f64 - 9.0).collect();
        for height in (SMALLEST * GROUP..).step_by(GROUP).take(HEIGHTS) {
            for k in [1, 2, 7] {
                let b: Vec<f64> = (0..2 * k * lanes)
                    .map(|i| ((i * 53) % 23) as f64 - 11.0)
                    .collect();
                let mut c = vec![0.5; height * (lanes + 1)];
                let mut t = TallTile {
                    row: a.as_ptr(),
                    step: 7,
                    taps: taps.as_ptr(),
                    ntaps: 2,
                    k,
                    b: b.as_ptr(),
                    c: c.as_mut_ptr(),
                    ldc: lanes + 1,
                    accumulate: false,
                };
                let (found, f) = tiles.next(height).unwrap();
                assert_eq!(found, height);
                for times in [1.0, 2.0] {
                    // SAFETY: the level is there; sizes as above.
                    unsafe { f(&t) };
                    for i in 0..height {
                        for j in 0..lanes {
                            let term = |x: usize| {
                                a[i * 7 + taps[x / k] as usize + x % k] * b[x * lanes + j]
                            };
                            let sum: f64 = (0..2 * k).map(term).sum();
                            // SAFETY: an element of `c`.
                            assert_eq!(unsafe { *t.c.add(i * t.ldc + j) }, sum * times);
                        }
                        // SAFETY: as above.
                        assert_eq!(unsafe { *t.c.add(i * t.ldc + lanes) }, 0.5);
                    }
                    t.accumulate = true;
                }
            }
        }
    }
}
