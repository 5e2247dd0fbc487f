//! Tiles of [`crate::algorithms::split_k`]: rank-1 updates of a block of sums in registers, a few rows by one or two
//! vectors.

use super::{by_isa, sets};
use crate::simd::{self, Element, Portable, Simd};
use inrush_base::Isa;

/// Where some successive products begin in both operands, and how many there are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    pub a: isize,
    pub b: isize,
    pub n: usize,
}

/// A tile: `c[i][..] (+)= sum over pieces p and k < p.n of a[p.a + k * a_step + i] * b[p.b + k * b_step + ..]`.
/// Rows of `c` follow each other.
pub(crate) struct Tile<T> {
    pub a: *const T,
    pub b: *const T,
    pub a_step: isize,
    pub b_step: isize,
    pub pieces: *const Piece,
    pub count: usize,
    pub c: *mut T,
    /// Add to `c` instead of overwriting it.
    pub accumulate: bool,
    /// Elements of the vector, for the functions of a part of one.
    pub n: usize,
}

/// # Safety
/// The processor has the level's features; the operands are readable for as many neighbours and whole vectors as the function
/// has, or `n` elements, at each product; `c` can take whole vectors.
pub(crate) type TileFn<T> = unsafe fn(&Tile<T>);

/// Most rows of a tile, and most vectors.
const MAX_ROWS: usize = 28;
pub(crate) const MAX_VECTORS: usize = 2;

/// The tiles of one level and element type, by vectors and rows, where they exist.
pub(crate) struct Tiles<T: 'static> {
    pub lanes: usize,
    whole: [[Option<TileFn<T>>; MAX_ROWS]; MAX_VECTORS],
    /// Less than a vector.
    part: [Option<TileFn<T>>; MAX_ROWS],
}

impl<T> Tiles<T> {
    /// Returns the height of the tiles that cover `len` rows with the least work, and how many there are. The last one may begin inside the
    /// one before it.
    pub(crate) fn height(&self, vectors: usize, len: usize) -> (usize, usize) {
        let of = &self.whole[vectors - 1];
        let cost = |h: &usize| len.div_ceil(*h) * (*h * vectors + 2);
        let fit = (1..=len.min(MAX_ROWS)).filter(|h| of[h - 1].is_some());
        // The tallest of equals.
        let best = fit.rev().min_by_key(cost).unwrap_or(1);
        (best, len.div_ceil(best))
    }

    /// Returns the tile of so many vectors, or of a part of one.
    pub(crate) fn get(&self, vectors: usize, part: bool, rows: usize) -> TileFn<T> {
        let of = match part {
            true => &self.part,
            false => &self.whole[vectors - 1],
        };
        of[rows - 1].expect("heights come from `height`")
    }
}

#[inline(always)]
#[allow(
    unsafe_op_in_unsafe_fn,
    clippy::needless_range_loop,
    reason = "the contract of `TileFn`; loops of constant length over register arrays"
)]
unsafe fn tile<S: Simd, const ROWS: usize, const NV: usize, const SETS: usize, const PART: bool>(
    t: &Tile<S::T>,
) {
    let mut acc = [[[S::zero(); NV]; ROWS]; SETS];
    if t.accumulate {
        for i in 0..ROWS {
            for j in 0..NV {
                acc[0][i][j] = S::load(t.c.add((i * NV + j) * S::LANES));
            }
        }
    }
    let (a_step, b_step) = (t.a_step, t.b_step);
    for p in 0..t.count {
        let piece = *t.pieces.add(p);
        let mut a = t.a.wrapping_offset(piece.a);
        let mut b = t.b.wrapping_offset(piece.b);
        // Not a closure: the intrinsics would stay calls inside it.
        macro_rules! step {
            ($acc:expr) => {
                let mut v = [S::zero(); NV];
                for j in 0..NV {
                    v[j] = match PART {
                        true => S::load_n(b, t.n),
                        false => S::load(b.wrapping_add(j * S::LANES)),
                    };
                }
                for i in 0..ROWS {
                    let x = S::splat(*a.wrapping_add(i));
                    for j in 0..NV {
                        $acc[i][j] = S::fma(x, v[j], $acc[i][j]);
                    }
                }
                a = a.wrapping_offset(a_step);
                b = b.wrapping_offset(b_step);
            };
        }
        for _ in 0..piece.n / SETS {
            step!(acc[0]);
            if SETS > 1 {
                step!(acc[1 % SETS]);
            }
            if SETS > 2 {
                step!(acc[2 % SETS]);
                step!(acc[3 % SETS]);
            }
        }
        for _ in 0..piece.n % SETS {
            step!(acc[0]);
        }
    }
    for i in 0..ROWS {
        for j in 0..NV {
            let mut sum = acc[0][i][j];
            for s in 1..SETS {
                sum = S::add(sum, acc[s][i][j]);
            }
            S::store(t.c.add((i * NV + j) * S::LANES), sum);
        }
    }
}

/// The tables of a level: its features enabled around the generic tile, and the heights for which it has registers, by vectors.
macro_rules! level {
    ($name:ident $(, $features:literal)?; $($nv:literal: [$($rows:literal)*])*) => {
        pub(crate) mod $name {
            use super::*;
            $( #[target_feature(enable = $features)] )?
            unsafe fn one<S: Simd, const ROWS: usize, const NV: usize, const SETS: usize, const PART: bool>(
                t: &Tile<S::T>,
            ) {
                // SAFETY: the caller's contract.
                unsafe { tile::<S, ROWS, NV, SETS, PART>(t) }
            }
            pub(crate) const fn tiles<S: Simd>() -> Tiles<S::T> {
                let mut whole: [[Option<TileFn<S::T>>; MAX_ROWS]; MAX_VECTORS] = [[None; MAX_ROWS]; MAX_VECTORS];
                let mut part: [Option<TileFn<S::T>>; MAX_ROWS] = [None; MAX_ROWS];
                $( $(
                    whole[$nv - 1][$rows - 1] = Some(one::<S, $rows, $nv, { sets($rows, $nv) }, false>);
                    if $nv == 1 {
                        part[$rows - 1] = Some(one::<S, $rows, 1, { sets($rows, 1) }, true>);
                    }
                )* )*
                Tiles { lanes: S::LANES, whole, part }
            }
        }
    };
}
level! { plain; 1: [1 2 3 4] 2: [1 2 3 4] }
// Sixteen registers: sums, the vectors, one broadcast.
#[cfg(target_arch = "x86_64")]
level! { avx2, "avx2,fma,f16c"; 1: [1 2 3 4 5 6 8 10 12] 2: [1 2 3 4 5 6] }
// Thirty-two; broadcasts come with the multiplication.
#[cfg(target_arch = "x86_64")]
level! { avx512, "avx2,fma,f16c,avx512f,avx512bw,avx512cd,avx512dq,avx512vl";
    1: [1 2 3 4 5 6 7 8 9 10 12 14 16 18 20 24 28] 2: [1 2 3 4 5 6 7 8 9 10 12 14]
}
#[cfg(target_arch = "aarch64")]
level! { neon; 1: [1 2 3 4 5 6 7 8 9 10 12 14 16 18 20 24] 2: [1 2 3 4 5 6 7 8 9 10 12] }

/// Adds `more` to `sums`.
pub(crate) fn add<T: Element>(sums: &mut [T], more: &[T]) {
    for (x, y) in sums.iter_mut().zip(more) {
        *x = x.plus(*y);
    }
}

/// Element types with split-K tiles.
pub(crate) trait SplitKTiles: Element {
    /// Returns the tiles of a level.
    fn split_k(_: Isa) -> Option<&'static Tiles<Self>> {
        None
    }
}

macro_rules! float {
    ($t:ty, $avx2:ident, $avx512:ident, $neon:ident) => {
        impl SplitKTiles for $t {
            fn split_k(isa: Isa) -> Option<&'static Tiles<$t>> {
                Some(by_isa!(isa, Tiles<$t>,
                    avx2: avx2::tiles::<simd::$avx2>(),
                    avx512: avx512::tiles::<simd::$avx512>(),
                    neon: neon::tiles::<simd::$neon>(),
                    plain: plain::tiles::<Portable<$t>>()))
            }
        }
    };
}
float!(f32, Avx2F32, Avx512F32, NeonF32);
float!(f64, Avx2F64, Avx512F64, NeonF64);
impl SplitKTiles for i32 {}
impl SplitKTiles for i64 {}
