//! Tiles of [`crate::algorithms::direct_nchw`]: rows of results, vectors along what is contiguous in the right operand.

use super::by_isa;
use crate::simd::{self, Element, Portable, Widen};
use inrush_base::{DType, Isa};

/// A tile: `c[i][at[j] + ..] (+)= sum over k of a[i * lda + k] * b[offsets[k] + step * (at[j] + ..)]`, with as many
/// rows `i` and vectors `j` as the function has.
pub(crate) struct Tile<T> {
    pub a: *const T,
    pub lda: usize,
    pub b: *const u8,
    pub offsets: *const isize,
    pub k: usize,
    /// Where vectors begin in `b` and in `c`. They may have elements in common, which are computed in each.
    pub at: *const VectorOffsets,
    pub c: *mut T,
    pub ldc: usize,
    /// Add to `c` instead of overwriting it.
    pub accumulate: bool,
    /// Elements of the vector, for the functions of a part of one.
    pub n: usize,
}

/// Where a vector begins: elements of the right operand and of the sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VectorOffsets {
    pub b: isize,
    pub c: usize,
}

/// # Safety
/// The processor has the level's features; `a` holds `k` elements for each row of the tile, `at` as many places as it has
/// vectors; `b` is readable at each of the `k` offsets for every element of the vectors; `c` can take whole vectors
/// at the places.
pub(crate) type TileFn<T> = unsafe fn(&Tile<T>);

/// Most rows, and most vectors, of a tile.
pub(crate) const MAX_ROWS: usize = 8;
pub(crate) const MAX_VECTORS: usize = 6;

/// The tiles of one level, element type, stored type and step.
pub(crate) struct Tiles<T: 'static> {
    pub lanes: usize,
    /// Most rows of a tile.
    pub rows: usize,
    /// The tile of `i + 1` rows and `j + 1` vectors is `whole[i][j]`, where it exists. Tiles of fewer rows exist for the
    /// same counts of vectors as those of one row more.
    whole: [[Option<TileFn<T>>; MAX_VECTORS]; MAX_ROWS],
    /// Less than a vector.
    part: [Option<TileFn<T>>; MAX_ROWS],
}

impl<T> Tiles<T> {
    /// Returns the vectors of the next tile of `rows` rows where `left` whole vectors remain.
    pub(crate) fn vectors(&self, rows: usize, left: usize) -> usize {
        let of = &self.whole[rows - 1];
        let most = |n: usize| (1..=n.min(MAX_VECTORS)).rev().find(|v| of[v - 1].is_some());
        let most = |n: usize| most(n).unwrap_or(1);
        // Four as two and two, not as three and one: a single vector leaves multipliers idle.
        if left > 2 && left == most(left) + 1 {
            most(left.div_ceil(2))
        } else {
            most(left)
        }
    }

    pub(crate) fn whole(&self, rows: usize, vectors: usize) -> TileFn<T> {
        self.whole[rows - 1][vectors - 1].expect("counts come from `vectors`")
    }

    pub(crate) fn part(&self, rows: usize) -> TileFn<T> {
        self.part[rows - 1].expect("there is one for each height")
    }
}

/// With a step of two the stored elements are those of the vectors.
#[inline(always)]
#[allow(
    unsafe_op_in_unsafe_fn,
    clippy::needless_range_loop,
    reason = "the contract of `TileFn`; loops of constant length over register arrays"
)]
unsafe fn tile<
    S: Widen<E>,
    E: Copy,
    const ROWS: usize,
    const NV: usize,
    const STEP: usize,
    const PART: bool,
>(
    t: &Tile<S::T>,
) {
    let mut acc = [[S::zero(); NV]; ROWS];
    let mut a = [t.a; ROWS];
    for i in 1..ROWS {
        a[i] = a[i - 1].add(t.lda);
    }
    let mut b = [std::ptr::null::<E>(); NV];
    for j in 0..NV {
        b[j] = t.b.cast::<E>().offset((*t.at.add(j)).b);
    }
    for k in 0..t.k {
        let offset = *t.offsets.add(k);
        let mut v = [S::zero(); NV];
        for j in 0..NV {
            let from = b[j].offset(offset);
            v[j] = match (STEP, PART) {
                (1, false) => S::widen(from),
                (1, true) => S::widen_n(from, t.n),
                (_, false) => S::even(from.cast()),
                (_, true) => {
                    let mut some = [S::T::default(); 16];
                    for (i, x) in some.iter_mut().enumerate().take(t.n) {
                        *x = *from.cast::<S::T>().add(2 * i);
                    }
                    S::load(some.as_ptr())
                }
            };
        }
        for i in 0..ROWS {
            let x = S::splat(*a[i].add(k));
            for j in 0..NV {
                acc[i][j] = S::fma(x, v[j], acc[i][j]);
            }
        }
    }
    for i in 0..ROWS {
        let c = t.c.add(i * t.ldc);
        // All sums before any of them is stored: vectors may have elements in common.
        if t.accumulate {
            for j in 0..NV {
                acc[i][j] = S::add(acc[i][j], S::load(c.add((*t.at.add(j)).c)));
            }
        }
        for j in 0..NV {
            S::store(c.add((*t.at.add(j)).c), acc[i][j]);
        }
    }
}

/// The tables of a level: its features enabled around the generic tile, and for each height the counts of vectors for which
/// the level has registers.
macro_rules! level {
    ($name:ident $(, $features:literal)?; $rows:literal: $($mr:literal [$($nv:literal)*])*) => {
        pub(crate) mod $name {
            use super::*;
            $( #[target_feature(enable = $features)] )?
            unsafe fn one<
                S: Widen<E>,
                E: Copy,
                const ROWS: usize,
                const NV: usize,
                const STEP: usize,
                const PART: bool,
            >(
                t: &Tile<S::T>,
            ) {
                // SAFETY: the caller's contract.
                unsafe { tile::<S, E, ROWS, NV, STEP, PART>(t) }
            }
            pub(crate) const fn tiles<S: Widen<E>, E: Copy, const STEP: usize>() -> Tiles<S::T> {
                let mut whole: [[Option<TileFn<S::T>>; MAX_VECTORS]; MAX_ROWS] =
                    [[None; MAX_VECTORS]; MAX_ROWS];
                let mut part: [Option<TileFn<S::T>>; MAX_ROWS] = [None; MAX_ROWS];
                $(
                    $( whole[$mr - 1][$nv - 1] = Some(one::<S, E, $mr, $nv, STEP, false>); )*
                    part[$mr - 1] = Some(one::<S, E, $mr, 1, STEP, true>);
                )*
                Tiles { lanes: S::LANES, rows: $rows, whole, part }
            }
        }
    };
}
level! { plain; 4: 4 [1 2] 3 [1 2] 2 [1 2] 1 [1 2] }
// Sixteen registers: sums, the vectors, one broadcast.
#[cfg(target_arch = "x86_64")]
level! { avx2, "avx2,fma,f16c"; 6:
    6 [1 2] 5 [1 2] 4 [1 2 3] 3 [1 2 3] 2 [1 2 3 4] 1 [1 2 3 4]
}
// Thirty-two; broadcasts come with the multiplication.
#[cfg(target_arch = "x86_64")]
level! { avx512, "avx2,fma,f16c,avx512f,avx512bw,avx512cd,avx512dq,avx512vl"; 8:
    8 [1 2 3] 7 [1 2 3] 6 [1 2 3 4] 5 [1 2 3 4] 4 [1 2 3 4 6] 3 [1 2 3 4 6] 2 [1 2 3 4 6] 1 [1 2 3 4 6]
}
#[cfg(target_arch = "aarch64")]
level! { neon; 8:
    8 [1 2 3] 7 [1 2 3] 6 [1 2 3 4] 5 [1 2 3 4] 4 [1 2 3 4 6] 3 [1 2 3 4 6] 2 [1 2 3 4 6] 1 [1 2 3 4 6]
}

/// Element types with tiles over a right operand in place.
pub(crate) trait NchwTiles: Element {
    /// Returns the tiles of a level for a right operand of dtype `stored` whose columns are `step` elements apart, where there
    /// are such.
    fn direct_nchw(_isa: Isa, _stored: DType, _step: isize) -> Option<&'static Tiles<Self>> {
        None
    }
}

macro_rules! float {
    ($t:ty, $avx2:ident, $avx512:ident, $neon:ident; $($stored:ident: $e:ty),*) => {
        impl NchwTiles for $t {
            fn direct_nchw(isa: Isa, stored: DType, step: isize) -> Option<&'static Tiles<$t>> {
                macro_rules! tiles {
                    ($stored_as:ty, $step:literal) => {
                        Some(by_isa!(isa, Tiles<$t>,
                            avx2: avx2::tiles::<simd::$avx2, $stored_as, $step>(),
                            avx512: avx512::tiles::<simd::$avx512, $stored_as, $step>(),
                            neon: neon::tiles::<simd::$neon, $stored_as, $step>(),
                            plain: plain::tiles::<Portable<$t>, $stored_as, $step>()))
                    };
                }
                match (stored, step) {
                    (_, 2) if stored == <$t as Element>::DTYPE => tiles!($t, 2),
                    $( (DType::$stored, 1) => tiles!($e, 1), )*
                    _ => None,
                }
            }
        }
    };
}
float!(f32, Avx2F32, Avx512F32, NeonF32; F32: f32, F16: half::f16, BF16: half::bf16);
float!(f64, Avx2F64, Avx512F64, NeonF64; F64: f64);
impl NchwTiles for i32 {}
impl NchwTiles for i64 {}

#[cfg(test)]
mod tests {
    use super::NchwTiles;
    use inrush_base::DType;

    #[test]
    fn lower_panels_have_the_tiles_of_taller_ones() {
        for isa in crate::available() {
            let tiles = f32::direct_nchw(isa, DType::F32, 1).unwrap();
            for rows in 1..=tiles.rows {
                assert!(tiles.part[rows - 1].is_some() && tiles.whole[rows - 1][0].is_some());
                let lower = tiles.whole[rows.saturating_sub(2)];
                for (f, other) in tiles.whole[rows - 1].iter().zip(lower) {
                    assert!(f.is_none() || other.is_some(), "{} {rows}", isa.name());
                }
                for left in 1..40 {
                    let vectors = tiles.vectors(rows, left);
                    assert!(vectors <= left && tiles.whole[rows - 1][vectors - 1].is_some());
                }
            }
        }
    }
}
