//! Tiles of [`crate::algorithms::grouped`]: pixels at even distances, times a vector of output channels of several
//! groups.
//!
//! A vector of a pixel's input channels is loaded once. Each product permutes it so that every lane has a channel of
//! its own group: one permutation for every multiplication.

use crate::simd::{Element, Permute};
use inrush_base::Isa;

/// A tile, for each lane `l`:
/// `c[i][l] = sum over taps t and k of row[i * step + taps[t] + at[k][l]] * b[t][k][l]`.
pub(crate) struct Tile<T> {
    pub row: *const T,
    pub step: isize,
    pub taps: *const isize,
    pub ntaps: usize,
    pub k: usize,
    pub at: *const u32,
    pub b: *const T,
    pub c: *mut T,
    pub ldc: usize,
}

/// # Safety
/// The processor has the level's features; rows are readable for a vector at each tap; `at` holds `k` permutations, `b` holds
/// `ntaps * k` vectors; `c` can take one for each row.
pub(crate) type TileFn<T> = unsafe fn(&Tile<T>);

/// Tiles by height, from one row on.
pub(crate) struct Tiles<T: 'static> {
    pub lanes: usize,
    by_height: &'static [TileFn<T>],
}

impl<T> Tiles<T> {
    /// Returns nearly equal heights that cover `rows` rows: how many, the lower height, and how many are one higher.
    pub(crate) fn heights(&self, rows: usize) -> (usize, usize, usize) {
        let parts = rows.div_ceil(self.by_height.len()).max(1);
        (parts, rows / parts, rows % parts)
    }

    /// Returns the tile of so many rows.
    pub(crate) fn of(&self, rows: usize) -> TileFn<T> {
        self.by_height[rows - 1]
    }
}

/// A level's tiles; `$unroll` products at a time stay in registers. Rows are written out one by one: the compiler leaves loops of
/// this length as they are, and the sums in memory.
macro_rules! level {
    ($level:ident, $features:literal, $unroll:literal; $($name:ident [$($row:literal)*])*) => {
        #[cfg(target_arch = "x86_64")]
        pub(crate) mod $level {
            use super::*;
            $(
                #[target_feature(enable = $features)]
                #[allow(
                    unsafe_op_in_unsafe_fn,
                    clippy::needless_range_loop,
                    reason = "the contract of `TileFn`; loops of constant length over register arrays"
                )]
                unsafe fn $name<S: Permute>(t: &Tile<S::T>) {
                    let mut acc = [S::zero(); [$($row),*].len()];
                    let (mut b, step) = (t.b, t.step);
                    for tap in 0..t.ntaps {
                        let a = t.row.wrapping_offset(*t.taps.add(tap));
                        let mut at = t.at;
                        // Not a closure: the intrinsics would stay calls inside it.
                        macro_rules! products {
                            ($count:literal) => {
                                let mut w = [S::zero(); $count];
                                let mut from = [S::at(at); $count];
                                for u in 0..$count {
                                    w[u] = S::load(b.wrapping_add(u * S::LANES));
                                    from[u] = S::at(at.wrapping_add(u * S::LANES));
                                }
                                let mut row = a;
                                $(
                                    let v = S::load(row);
                                    for u in 0..$count {
                                        acc[$row] = S::fma(S::permute(v, from[u]), w[u], acc[$row]);
                                    }
                                    row = row.wrapping_offset(step);
                                )*
                                let _ = row;
                                b = b.wrapping_add($count * S::LANES);
                                at = at.wrapping_add($count * S::LANES);
                            };
                        }
                        let rounds = t.k / $unroll;
                        for _ in 0..rounds {
                            products!($unroll);
                        }
                        for _ in rounds * $unroll..t.k {
                            products!(1);
                        }
                        let _ = at;
                    }
                    $( S::store(t.c.wrapping_add($row * t.ldc), acc[$row]); )*
                }
            )*
            pub(crate) const fn tiles<S: Permute>() -> Tiles<S::T> {
                Tiles { lanes: S::LANES, by_height: &[$( $name::<S> ),*] }
            }
        }
    };
}
// Sixteen registers: sums, and what a product takes.
level! { avx2, "avx2,fma,f16c", 1;
    one [0] two [0 1] three [0 1 2] four [0 1 2 3] five [0 1 2 3 4] six [0 1 2 3 4 5] seven [0 1 2 3 4 5 6]
    eight [0 1 2 3 4 5 6 7] nine [0 1 2 3 4 5 6 7 8] ten [0 1 2 3 4 5 6 7 8 9] eleven [0 1 2 3 4 5 6 7 8 9 10]
    twelve [0 1 2 3 4 5 6 7 8 9 10 11]
}
// Thirty-two: sixteen sums, four products and their permutations.
level! { avx512, "avx2,fma,f16c,avx512f,avx512bw,avx512cd,avx512dq,avx512vl", 4;
    one [0] two [0 1] three [0 1 2] four [0 1 2 3] five [0 1 2 3 4] six [0 1 2 3 4 5] seven [0 1 2 3 4 5 6]
    eight [0 1 2 3 4 5 6 7] nine [0 1 2 3 4 5 6 7 8] ten [0 1 2 3 4 5 6 7 8 9] eleven [0 1 2 3 4 5 6 7 8 9 10]
    twelve [0 1 2 3 4 5 6 7 8 9 10 11] thirteen [0 1 2 3 4 5 6 7 8 9 10 11 12]
    fourteen [0 1 2 3 4 5 6 7 8 9 10 11 12 13] fifteen [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14]
    sixteen [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15]
}

/// Element types with grouped tiles on some level.
pub(crate) trait GroupedTiles: Element {
    /// Returns the tiles of a level that can permute vectors.
    fn grouped(_: Isa) -> Option<&'static Tiles<Self>> {
        None
    }
}

macro_rules! float {
    ($t:ty, $avx2:ident, $avx512:ident) => {
        impl GroupedTiles for $t {
            fn grouped(isa: Isa) -> Option<&'static Tiles<$t>> {
                match isa {
                    #[cfg(target_arch = "x86_64")]
                    Isa::Avx2 => {
                        static TILES: Tiles<$t> = avx2::tiles::<crate::simd::$avx2>();
                        Some(&TILES)
                    }
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
float!(f32, Avx2F32, Avx512F32);
float!(f64, Avx2F64, Avx512F64);
impl GroupedTiles for i32 {}
impl GroupedTiles for i64 {}
