//! Loops of products with few rows, over a right operand that is read in place.
//!
//! - Dot: columns are contiguous, as a linear layer's weight is. Each result is a dot product; a few rows by four
//!   columns at a time.
//! - Axpy: rows are contiguous. Each row, times its factor, is added to the rows of results in the first cache.

use super::by_isa;
use crate::operand::part;
use crate::simd::{self, Element, Portable, Widen};
use inrush_base::{DType, Isa};

/// The loops of one level, element type and stored type of the right operand.
pub(crate) struct Loops<T: 'static> {
    pub dot: unsafe fn(&Dot<T>),
    pub axpy: unsafe fn(&Axpy<T>),
}

/// `c[i][j] (+)= sum over k of x[i][k] * w[cols[j] + k]`.
pub(crate) struct Dot<T> {
    pub x: *const *const T,
    pub rows: usize,
    pub k: usize,
    pub w: *const u8,
    pub cols: *const isize,
    pub n: usize,
    pub c: *mut T,
    pub ldc: usize,
    pub accumulate: bool,
}

/// `c[i][j] += sum over k of x[i][k] * w[k * step + j]`; rows of `c` can take whole vectors.
pub(crate) struct Axpy<T> {
    pub x: *const *const T,
    pub rows: usize,
    pub k: usize,
    pub w: *const u8,
    pub step: isize,
    pub n: usize,
    pub c: *mut T,
    pub ldc: usize,
}

/// Steps of the sum that dot products of several groups of rows take at a time: four columns stay in the first cache.
pub(crate) const DOT_K_BLOCK: usize = 1024;

#[inline(always)]
#[allow(
    unsafe_op_in_unsafe_fn,
    clippy::needless_range_loop,
    reason = "loops of constant length over register arrays"
)]
unsafe fn dot_tile<S: Widen<E>, E, const MR: usize, const NC: usize, const SETS: usize>(
    d: &Dot<S::T>,
    row: usize,
    col: usize,
) {
    let mut acc = [[[S::zero(); NC]; MR]; SETS];
    let mut x = [std::ptr::null::<S::T>(); MR];
    for i in 0..MR {
        x[i] = *d.x.add(row + i);
    }
    let mut w = [std::ptr::null::<E>(); NC];
    for j in 0..NC {
        w[j] = d.w.cast::<E>().offset(*d.cols.add(col + j));
    }
    let mut k = 0;
    while k + SETS * S::LANES <= d.k {
        for s in 0..SETS {
            let at = k + s * S::LANES;
            let mut xv = [S::zero(); MR];
            for i in 0..MR {
                xv[i] = S::load(x[i].add(at));
            }
            for j in 0..NC {
                let wv = S::widen(w[j].add(at));
                for i in 0..MR {
                    acc[s][i][j] = S::fma(xv[i], wv, acc[s][i][j]);
                }
            }
        }
        k += SETS * S::LANES;
    }
    while k < d.k {
        let n = (d.k - k).min(S::LANES);
        for j in 0..NC {
            let wv = if n == S::LANES {
                S::widen(w[j].add(k))
            } else {
                S::widen_n(w[j].add(k), n)
            };
            for i in 0..MR {
                let xv = if n == S::LANES {
                    S::load(x[i].add(k))
                } else {
                    S::load_n(x[i].add(k), n)
                };
                acc[0][i][j] = S::fma(xv, wv, acc[0][i][j]);
            }
        }
        k += n;
    }
    for i in 0..MR {
        let c = d.c.add((row + i) * d.ldc + col);
        for j in 0..NC {
            let mut sum = acc[0][i][j];
            for s in 1..SETS {
                sum = S::add(sum, acc[s][i][j]);
            }
            let sum = S::sum(sum);
            *c.add(j) = if d.accumulate {
                (*c.add(j)).plus(sum)
            } else {
                sum
            };
        }
    }
}

/// Multiplies all rows with `NC` columns, in groups of nearly equal height.
#[inline(always)]
#[allow(unsafe_op_in_unsafe_fn, reason = "the contract of `Dot`")]
unsafe fn dot_columns<S: Widen<E>, E, const NC: usize>(d: &Dot<S::T>, col: usize) {
    let most = if S::REGISTERS > 16 { 6 } else { 3 };
    let parts = d.rows.div_ceil(most);
    for i in 0..parts {
        let (row, end) = part(d.rows, parts, i);
        match end - row {
            1 => dot_tile::<S, E, 1, NC, 2>(d, row, col),
            2 => dot_tile::<S, E, 2, NC, 1>(d, row, col),
            3 => dot_tile::<S, E, 3, NC, 1>(d, row, col),
            4 => dot_tile::<S, E, 4, NC, 1>(d, row, col),
            5 => dot_tile::<S, E, 5, NC, 1>(d, row, col),
            _ => dot_tile::<S, E, 6, NC, 1>(d, row, col),
        }
    }
}

#[inline(always)]
#[allow(unsafe_op_in_unsafe_fn, reason = "the contract of `Dot`")]
unsafe fn dot<S: Widen<E>, E>(d: &Dot<S::T>) {
    let mut col = 0;
    while col + 4 <= d.n {
        dot_columns::<S, E, 4>(d, col);
        col += 4;
    }
    while col < d.n {
        dot_columns::<S, E, 1>(d, col);
        col += 1;
    }
}

/// Adds `KU` rows of the right operand from row `k` to `MR` rows of results from row `row`.
#[inline(always)]
#[allow(
    unsafe_op_in_unsafe_fn,
    clippy::needless_range_loop,
    reason = "loops of constant length over register arrays"
)]
unsafe fn axpy_rows<S: Widen<E>, E, const MR: usize, const KU: usize>(
    t: &Axpy<S::T>,
    row: usize,
    k: usize,
) {
    let mut x = [[S::zero(); KU]; MR];
    for i in 0..MR {
        for u in 0..KU {
            x[i][u] = S::splat(*(*t.x.add(row + i)).add(k + u));
        }
    }
    let mut w = [std::ptr::null::<E>(); KU];
    for u in 0..KU {
        w[u] = t.w.cast::<E>().offset((k + u) as isize * t.step);
    }
    let c = t.c.add(row * t.ldc);
    let mut j = 0;
    while j < t.n {
        let n = t.n - j;
        let mut sum = [S::zero(); MR];
        for i in 0..MR {
            sum[i] = S::load(c.add(i * t.ldc + j));
        }
        for u in 0..KU {
            if row == 0 {
                // The rows that come next: runs are too short for the processor to see them coming.
                S::prefetch(
                    w[u].wrapping_offset(KU as isize * t.step)
                        .wrapping_add(j)
                        .cast(),
                );
            }
            let wv = if n >= S::LANES {
                S::widen(w[u].add(j))
            } else {
                S::widen_n(w[u].add(j), n)
            };
            for i in 0..MR {
                sum[i] = S::fma(x[i][u], wv, sum[i]);
            }
        }
        for i in 0..MR {
            S::store(c.add(i * t.ldc + j), sum[i]);
        }
        j += S::LANES;
    }
}

/// Adds `KU` rows of the right operand to all rows of results.
#[inline(always)]
#[allow(unsafe_op_in_unsafe_fn, reason = "the contract of `Axpy`")]
unsafe fn axpy_step<S: Widen<E>, E, const KU: usize>(t: &Axpy<S::T>, k: usize) {
    let mut row = 0;
    while row + 4 <= t.rows {
        axpy_rows::<S, E, 4, KU>(t, row, k);
        row += 4;
    }
    if row + 2 <= t.rows {
        axpy_rows::<S, E, 2, KU>(t, row, k);
        row += 2;
    }
    if row < t.rows {
        axpy_rows::<S, E, 1, KU>(t, row, k);
    }
}

#[inline(always)]
#[allow(unsafe_op_in_unsafe_fn, reason = "the contract of `Axpy`")]
unsafe fn axpy<S: Widen<E>, E>(t: &Axpy<S::T>) {
    let mut k = 0;
    // As many factors in registers as leave room for the sums.
    if t.rows == 1 {
        while k + 8 <= t.k {
            axpy_rows::<S, E, 1, 8>(t, 0, k);
            k += 8;
        }
    } else if S::REGISTERS > 16 || t.rows < 4 {
        while k + 4 <= t.k {
            axpy_step::<S, E, 4>(t, k);
            k += 4;
        }
    }
    while k + 2 <= t.k {
        axpy_step::<S, E, 2>(t, k);
        k += 2;
    }
    if k < t.k {
        axpy_step::<S, E, 1>(t, k);
    }
}

/// The loops of a level: its features enabled around the generic bodies.
macro_rules! levels {
    ($($name:ident $(, $features:literal)?;)*) => {$(
        pub(crate) mod $name {
            use super::*;
            $( #[target_feature(enable = $features)] )?
            unsafe fn dot<S: Widen<E>, E>(d: &Dot<S::T>) {
                // SAFETY: the caller's contract.
                unsafe { super::dot::<S, E>(d) }
            }
            $( #[target_feature(enable = $features)] )?
            unsafe fn axpy<S: Widen<E>, E>(t: &Axpy<S::T>) {
                // SAFETY: the caller's contract.
                unsafe { super::axpy::<S, E>(t) }
            }
            pub(crate) const fn loops<S: Widen<E>, E>() -> Loops<S::T> {
                Loops { dot: dot::<S, E>, axpy: axpy::<S, E> }
            }
        }
    )*};
}
levels! { plain; }
#[cfg(target_arch = "x86_64")]
levels! {
    avx2, "avx2,fma,f16c";
    avx512, "avx2,fma,f16c,avx512f,avx512bw,avx512cd,avx512dq,avx512vl";
}

/// Element types with loops over a right operand in place.
pub(crate) trait GemvLoops: Element {
    /// Returns the loops of a level over a right operand of dtype `stored`, where there are such.
    fn gemv(isa: Isa, stored: DType) -> Option<&'static Loops<Self>>;
}

macro_rules! float {
    ($t:ty, $avx2:ident, $avx512:ident, $neon:ident; $($stored:ident: $e:ty),*) => {
        impl GemvLoops for $t {
            fn gemv(isa: Isa, stored: DType) -> Option<&'static Loops<$t>> {
                match stored {
                    $( DType::$stored => Some(by_isa!(isa, Loops<$t>,
                        avx2: avx2::loops::<simd::$avx2, $e>(),
                        avx512: avx512::loops::<simd::$avx512, $e>(),
                        neon: plain::loops::<simd::$neon, $e>(),
                        plain: plain::loops::<Portable<$t>, $e>())), )*
                    _ => None,
                }
            }
        }
    };
}
float!(f32, Avx2F32, Avx512F32, NeonF32; F32: f32, F16: half::f16, BF16: half::bf16);
float!(f64, Avx2F64, Avx512F64, NeonF64; F64: f64);

macro_rules! int {
    ($t:ty) => {
        impl GemvLoops for $t {
            fn gemv(_: Isa, stored: DType) -> Option<&'static Loops<$t>> {
                static LOOPS: Loops<$t> = plain::loops::<Portable<$t>, $t>();
                (stored == <$t as Element>::DTYPE).then_some(&LOOPS)
            }
        }
    };
}
int!(i32);
int!(i64);
