//! GEMM micro-kernel: a tile of at most twelve rows by four vectors of sums in registers.
//!
//! Rows of the left operand are given by pointers and need not be packed; the right operand is a packed panel. A row's
//! products are summed over several taps, each a run of `k` contiguous elements at its own offset from the row pointer,
//! so that a convolution needs no copy of its input (no im2col). Every tile height has its own unrolled variant.

use super::prefetch::Prefetch;
use super::{by_isa, sets};
use crate::simd::{self, Element, Portable, Simd};
use inrush_base::Isa;

/// A tile: `c[i][..] (+)= sum over taps t and k of rows[i][taps[t] + k] * b[t][k][..]`.
pub(crate) struct Tile<T> {
    pub rows: *const *const T,
    pub taps: *const isize,
    pub ntaps: usize,
    pub k: usize,
    pub b: *const T,
    /// For the tiles of [`Kernels::packing`]: the distance of the rows of `b`, which follow each other for other tiles, and
    /// where to copy them one after the other.
    pub ldb: usize,
    pub copy: *mut T,
    pub c: *mut T,
    pub ldc: usize,
    /// Add to `c` instead of overwriting it.
    pub accumulate: bool,
    /// Memory that will be read next, and how many of its cache lines to ask for in every four steps.
    pub prefetch: Prefetch,
    pub prefetch_lines: usize,
}

/// # Safety
/// The processor has the level's features; `rows` holds as many pointers as the tile has rows, each good for reading
/// `k` elements at each tap; `b` holds `ntaps * k` rows of the tile's width; `c` can take the tile.
pub(crate) type TileFn<T> = unsafe fn(&Tile<T>);

/// Most vectors across a tile, most rows of a tile.
pub(crate) const MAX_NV: usize = 4;
pub(crate) const MAX_MR: usize = 12;

/// The tiles of one level and element type.
pub(crate) struct Kernels<T: 'static> {
    pub lanes: usize,
    /// Most rows of a tile that is `i + 1` vectors across.
    pub rows: [usize; MAX_NV],
    /// Cycles that a tile of `i + 1` vectors needs, relative to its multiplications.
    pub cost: [f64; MAX_NV],
    /// The tile of `i + 1` vectors and `j + 1` rows is `tiles[i][j]`, where it exists.
    pub tiles: Tiles<T>,
    /// The same for a right operand that is read in place and packed on the way for the tiles below: the stores cost
    /// nothing next to the multiplications. Of the widths that are preferred.
    pub packing: Tiles<T>,
}

type Tiles<T> = [[Option<TileFn<T>>; MAX_MR]; MAX_NV];

impl<T> Kernels<T> {
    pub(crate) fn tile(&self, nv: usize, rows: usize) -> TileFn<T> {
        self.tiles[nv - 1][rows - 1].expect("tile heights come from `rows`")
    }
}

#[inline(always)]
#[allow(
    unsafe_op_in_unsafe_fn,
    clippy::needless_range_loop,
    reason = "loops of constant length over register arrays"
)]
unsafe fn tile<S: Simd, const NV: usize, const MR: usize, const SETS: usize, const PACKED: bool>(
    t: &Tile<S::T>,
) {
    const UNROLL: usize = 4;
    let ldb = if PACKED { NV * S::LANES } else { t.ldb };
    let mut acc = [[[S::zero(); NV]; MR]; SETS];
    let mut b = t.b;
    let mut copy = t.copy;
    let mut ahead = t.prefetch;
    // Sums may have left the caches since they were written.
    for i in 0..MR {
        S::prefetch(t.c.wrapping_add(i * t.ldc).cast());
    }
    for tap in 0..t.ntaps {
        let offset = *t.taps.add(tap);
        let mut a = [std::ptr::null::<S::T>(); MR];
        for i in 0..MR {
            a[i] = (*t.rows.add(i)).offset(offset);
        }
        // Not a closure: the intrinsics would stay calls inside it.
        macro_rules! step {
            ($k:expr, $b:expr, $acc:expr) => {
                let mut bv = [S::zero(); NV];
                for j in 0..NV {
                    bv[j] = S::load($b.add(j * S::LANES));
                    if !PACKED {
                        S::store(copy.wrapping_add(j * S::LANES), bv[j]);
                    }
                }
                if !PACKED {
                    copy = copy.wrapping_add(NV * S::LANES);
                }
                for i in 0..MR {
                    let x = S::splat(*a[i].add($k));
                    for j in 0..NV {
                        $acc[i][j] = S::fma(x, bv[j], $acc[i][j]);
                    }
                }
            };
        }
        let mut k = 0;
        while k + UNROLL <= t.k {
            for _ in 0..t.prefetch_lines {
                S::prefetch(ahead.next());
            }
            step!(k, b, acc[0]);
            step!(k + 1, b.wrapping_add(ldb), acc[1 % SETS]);
            step!(k + 2, b.wrapping_add(2 * ldb), acc[2 % SETS]);
            step!(k + 3, b.wrapping_add(3 * ldb), acc[3 % SETS]);
            b = b.wrapping_add(UNROLL * ldb);
            k += UNROLL;
        }
        while k < t.k {
            step!(k, b, acc[0]);
            b = b.wrapping_add(ldb);
            k += 1;
        }
    }
    for i in 0..MR {
        for j in 0..NV {
            let mut sum = acc[0][i][j];
            for s in 1..SETS {
                sum = S::add(sum, acc[s][i][j]);
            }
            let c = t.c.add(i * t.ldc + j * S::LANES);
            if t.accumulate {
                sum = S::add(sum, S::load(c));
            }
            S::store(c, sum);
        }
    }
}

/// Counts repetitions in [`table`].
const fn one(_: usize) -> usize {
    1
}

macro_rules! table {
    // Rows of the table from a list of heights: `None` after the last.
    (@row $f:ident, $s:ty, $packed:literal, $nv:literal, [$($mr:literal)*]) => {{
        #[allow(unused_mut, reason = "a row may be empty")]
        let mut row: [Option<TileFn<<$s as Simd>::T>>; MAX_MR] = [None; MAX_MR];
        $( row[$mr - 1] = Some($f::<$s, $nv, $mr, { sets($mr, $nv) }, $packed>); )*
        row
    }};
    ($f:ident, $s:ty, $cost:expr, $([$($mr:literal)*])*; $([$($packing:literal)*])*) => {
        Kernels {
            lanes: <$s as Simd>::LANES,
            rows: [$( 0 $(+ one($mr))* ),*],
            cost: $cost,
            tiles: table!(@rows $f, $s, true, $([$($mr)*])*),
            packing: table!(@rows $f, $s, false, $([$($packing)*])*),
        }
    };
    (@rows $f:ident, $s:ty, $packed:literal, [$($a:literal)*] [$($b:literal)*] [$($c:literal)*] [$($d:literal)*]) => {
        [
            table!(@row $f, $s, $packed, 1, [$($a)*]),
            table!(@row $f, $s, $packed, 2, [$($b)*]),
            table!(@row $f, $s, $packed, 3, [$($c)*]),
            table!(@row $f, $s, $packed, 4, [$($d)*]),
        ]
    };
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn avx2<S: Simd, const NV: usize, const MR: usize, const SETS: usize, const PACKED: bool>(
    t: &Tile<S::T>,
) {
    // SAFETY: the caller's contract.
    unsafe { tile::<S, NV, MR, SETS, PACKED>(t) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512cd,avx512dq,avx512vl")]
unsafe fn avx512<
    S: Simd,
    const NV: usize,
    const MR: usize,
    const SETS: usize,
    const PACKED: bool,
>(
    t: &Tile<S::T>,
) {
    // SAFETY: the caller's contract.
    unsafe { tile::<S, NV, MR, SETS, PACKED>(t) }
}

unsafe fn plain<
    S: Simd,
    const NV: usize,
    const MR: usize,
    const SETS: usize,
    const PACKED: bool,
>(
    t: &Tile<S::T>,
) {
    // SAFETY: the caller's contract.
    unsafe { tile::<S, NV, MR, SETS, PACKED>(t) }
}

/// Sixteen registers: twelve sums, the panel's vectors, one broadcast.
#[cfg(target_arch = "x86_64")]
macro_rules! avx2_table {
    ($s:ty) => {
        table!(avx2, $s, [1.15, 1.0, 1.05, 9.0], [1 2 3 4 5 6 7 8 9 10 11 12] [1 2 3 4 5 6] [1 2 3 4] [];
               [] [1 2 3 4 5 6] [1 2 3 4] [])
    };
}
/// Thirty-two registers; more than twelve row pointers would not stay in the general ones.
#[cfg(target_arch = "x86_64")]
macro_rules! avx512_table {
    ($s:ty) => {
        table!(avx512, $s, [1.2, 1.05, 1.0, 0.99], [1 2 3 4 5 6 7 8 9 10 11 12] [1 2 3 4 5 6 7 8 9 10 11 12]
               [1 2 3 4 5 6 7 8] [1 2 3 4 5 6]; [] [] [1 2 3 4 5 6 7 8] [1 2 3 4 5 6])
    };
}
/// Few registers are assumed, and few variants built, where speed is not expected.
macro_rules! plain_table {
    ($s:ty) => {
        table!(plain, $s, [1.3, 1.0, 9.0, 9.0], [1 2 3 4] [1 2 3 4] [] []; [] [] [] [])
    };
}
#[cfg(target_arch = "aarch64")]
macro_rules! neon_table {
    ($s:ty) => {
        table!(plain, $s, [1.3, 1.05, 1.0, 1.0], [1 2 3 4 5 6 7 8 9 10 11 12] [1 2 3 4 5 6 7 8 9 10]
               [1 2 3 4 5 6 7 8] [1 2 3 4 5 6]; [] [] [1 2 3 4 5 6 7 8] [1 2 3 4 5 6])
    };
}

/// Element types with GEMM tiles: all that products are summed in.
pub(crate) trait GemmTiles: Element {
    /// Returns the tiles of a level.
    fn gemm(isa: Isa) -> &'static Kernels<Self>;
}

macro_rules! float {
    ($t:ty, $avx2:ident, $avx512:ident, $neon:ident) => {
        impl GemmTiles for $t {
            fn gemm(isa: Isa) -> &'static Kernels<$t> {
                by_isa!(isa, Kernels<$t>,
                    avx2: avx2_table!(simd::$avx2),
                    avx512: avx512_table!(simd::$avx512),
                    neon: neon_table!(simd::$neon),
                    plain: plain_table!(Portable<$t>))
            }
        }
    };
}
float!(f32, Avx2F32, Avx512F32, NeonF32);
float!(f64, Avx2F64, Avx512F64, NeonF64);

macro_rules! int {
    ($t:ty) => {
        impl GemmTiles for $t {
            fn gemm(_: Isa) -> &'static Kernels<$t> {
                static PLAIN: Kernels<$t> = plain_table!(Portable<$t>);
                &PLAIN
            }
        }
    };
}
int!(i32);
int!(i64);

#[cfg(test)]
mod tests {
    use super::*;

    /// Every height and width of the widest table, also those that this machine's levels do not use; tiles that pack leave
    /// what they read in order.
    #[test]
    fn tiles_of_every_size() {
        static TABLE: Kernels<f64> = table!(plain, Portable<f64>, [1.0; 4], [1 2 3 4 5 6 7 8 9 10 11 12]
            [1 2 3 4 5 6 7 8 9 10 11 12] [1 2 3 4 5 6 7 8] [1 2 3 4 5 6]; [] [] [1 2 3 4 5 6 7 8] [1 2 3 4 5 6]);
        let taps = [3isize, 40];
        let a: Vec<f64> = (0..1000).map(|i| ((i * 37) % 19) as f64 - 9.0).collect();
        for nv in 1..=MAX_NV {
            for rows in 1..=TABLE.rows[nv - 1] {
                for k in [1, 4, 7] {
                    let n = nv * TABLE.lanes;
                    let b: Vec<f64> = (0..2 * k * n)
                        .map(|i| ((i * 53) % 23) as f64 - 11.0)
                        .collect();
                    let pointers: Vec<*const f64> =
                        (0..rows).map(|i| a[i * 60..].as_ptr()).collect();
                    let mut c = vec![0.5; rows * (n + 1)];
                    let mut t = Tile {
                        rows: pointers.as_ptr(),
                        taps: taps.as_ptr(),
                        ntaps: 2,
                        k,
                        b: b.as_ptr(),
                        ldb: n,
                        copy: std::ptr::null_mut(),
                        c: c.as_mut_ptr(),
                        ldc: n + 1,
                        accumulate: false,
                        prefetch: Prefetch::runs(a.as_ptr().cast(), 100, 144),
                        prefetch_lines: 1,
                    };
                    for times in [1.0, 2.0] {
                        // SAFETY: sizes as above; `plain` needs no features.
                        unsafe { TABLE.tile(nv, rows)(&t) };
                        for i in 0..rows {
                            for j in 0..n {
                                let sum: f64 = (0..2 * k)
                                    .map(|x| {
                                        a[i * 60 + taps[x / k] as usize + x % k] * b[x * n + j]
                                    })
                                    .sum();
                                // SAFETY: an element of `c`.
                                assert_eq!(unsafe { *t.c.add(i * t.ldc + j) }, sum * times);
                            }
                            // SAFETY: as above.
                            assert_eq!(unsafe { *t.c.add(i * t.ldc + n) }, 0.5);
                        }
                        t.accumulate = true;
                    }
                    if let Some(packing) = TABLE.packing[nv - 1][rows - 1] {
                        let spread: Vec<f64> = b
                            .chunks(n)
                            .flat_map(|row| row.iter().copied().chain([7.0, 7.0]))
                            .collect();
                        let mut copy = vec![0.0; b.len()];
                        t.b = spread.as_ptr();
                        (t.ldb, t.copy) = (n + 2, copy.as_mut_ptr());
                        let before = c.clone();
                        t.c = c.as_mut_ptr();
                        // SAFETY: sizes as above.
                        unsafe { packing(&t) };
                        assert_eq!(copy, b);
                        let thrice: Vec<f64> = before
                            .iter()
                            .map(|x| if *x == 0.5 { 0.5 } else { x * 1.5 })
                            .collect();
                        assert_eq!(c, thrice);
                    }
                }
            }
        }
    }
}
