//! AVX2 with FMA, and AVX-512.

use super::Permute;
use super::{Simd, Widen};
use half::{bf16, f16};
use std::arch::x86_64::*;

macro_rules! simd {
    ($name:ident, $t:ty, $v:ty, $lanes:literal, $registers:literal, $zero:ident, $splat:ident, $load:ident, $store:ident, $fma:ident,
     $add:ident, $sub:ident, |$p:ident, $n:ident| $load_n:expr, |$x:ident| $sum:expr, |$q:ident| $even:expr) => {
        pub(crate) struct $name;
        impl Simd for $name {
            type T = $t;
            type V = $v;
            const LANES: usize = $lanes;
            const REGISTERS: usize = $registers;
            #[inline(always)]
            unsafe fn zero() -> $v {
                $zero()
            }
            #[inline(always)]
            unsafe fn splat(x: $t) -> $v {
                $splat(x)
            }
            #[inline(always)]
            unsafe fn load(p: *const $t) -> $v {
                $load(p)
            }
            #[inline(always)]
            unsafe fn store(p: *mut $t, v: $v) {
                $store(p, v)
            }
            #[inline(always)]
            unsafe fn fma(a: $v, b: $v, c: $v) -> $v {
                $fma(a, b, c)
            }
            #[inline(always)]
            unsafe fn add(a: $v, b: $v) -> $v {
                $add(a, b)
            }
            #[inline(always)]
            unsafe fn sub(a: $v, b: $v) -> $v {
                $sub(a, b)
            }
            #[inline(always)]
            unsafe fn load_n($p: *const $t, $n: usize) -> $v {
                $load_n
            }
            #[inline(always)]
            unsafe fn sum($x: $v) -> $t {
                $sum
            }
            // The second load begins at the last element of the first, so that none after the last one is read.
            #[inline(always)]
            unsafe fn even($q: *const $t) -> $v {
                $even
            }
        }
    };
}

simd!(
    Avx2F32,
    f32,
    __m256,
    8,
    16,
    _mm256_setzero_ps,
    _mm256_set1_ps,
    _mm256_loadu_ps,
    _mm256_storeu_ps,
    _mm256_fmadd_ps,
    _mm256_add_ps,
    _mm256_sub_ps,
    |p, n| {
        let lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        _mm256_maskload_ps(p, _mm256_cmpgt_epi32(_mm256_set1_epi32(n as i32), lane))
    },
    |x| {
        let half = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
        let pair = _mm_add_ps(half, _mm_movehl_ps(half, half));
        _mm_cvtss_f32(_mm_add_ss(pair, _mm_shuffle_ps::<1>(pair, pair)))
    },
    |p| {
        let (low, high) = (_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(7)));
        let mixed = _mm256_castps_pd(_mm256_shuffle_ps::<0b11_01_10_00>(low, high));
        _mm256_castpd_ps(_mm256_permute4x64_pd::<0b11_01_10_00>(mixed))
    }
);
simd!(
    Avx2F64,
    f64,
    __m256d,
    4,
    16,
    _mm256_setzero_pd,
    _mm256_set1_pd,
    _mm256_loadu_pd,
    _mm256_storeu_pd,
    _mm256_fmadd_pd,
    _mm256_add_pd,
    _mm256_sub_pd,
    |p, n| {
        let lane = _mm256_setr_epi64x(0, 1, 2, 3);
        _mm256_maskload_pd(p, _mm256_cmpgt_epi64(_mm256_set1_epi64x(n as i64), lane))
    },
    |x| {
        let half = _mm_add_pd(_mm256_castpd256_pd128(x), _mm256_extractf128_pd::<1>(x));
        _mm_cvtsd_f64(_mm_add_sd(half, _mm_unpackhi_pd(half, half)))
    },
    |p| {
        let (low, high) = (_mm256_loadu_pd(p), _mm256_loadu_pd(p.add(3)));
        _mm256_permute4x64_pd::<0b11_01_10_00>(_mm256_shuffle_pd::<0b1010>(low, high))
    }
);
simd!(
    Avx512F32,
    f32,
    __m512,
    16,
    32,
    _mm512_setzero_ps,
    _mm512_set1_ps,
    _mm512_loadu_ps,
    _mm512_storeu_ps,
    _mm512_fmadd_ps,
    _mm512_add_ps,
    _mm512_sub_ps,
    |p, n| _mm512_maskz_loadu_ps(((1u32 << n) - 1) as __mmask16, p),
    |x| _mm512_reduce_add_ps(x),
    |p| {
        let at = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 17, 19, 21, 23, 25, 27, 29, 31);
        _mm512_permutex2var_ps(_mm512_loadu_ps(p), at, _mm512_loadu_ps(p.add(15)))
    }
);
simd!(
    Avx512F64,
    f64,
    __m512d,
    8,
    32,
    _mm512_setzero_pd,
    _mm512_set1_pd,
    _mm512_loadu_pd,
    _mm512_storeu_pd,
    _mm512_fmadd_pd,
    _mm512_add_pd,
    _mm512_sub_pd,
    |p, n| _mm512_maskz_loadu_pd(((1u32 << n) - 1) as __mmask8, p),
    |x| _mm512_reduce_add_pd(x),
    |p| {
        let at = _mm512_setr_epi64(0, 2, 4, 6, 9, 11, 13, 15);
        _mm512_permutex2var_pd(_mm512_loadu_pd(p), at, _mm512_loadu_pd(p.add(7)))
    }
);

/// Halves of either format: `$wide` makes a vector of `$n` of them.
macro_rules! widen {
    ($name:ident, $half:ty, |$p:ident| $wide:expr) => {
        impl Widen<$half> for $name {
            #[inline(always)]
            unsafe fn widen(p: *const $half) -> Self::V {
                let $p = p;
                $wide
            }
            #[inline(always)]
            unsafe fn widen_n(p: *const $half, n: usize) -> Self::V {
                let mut some = [<$half>::ZERO; Self::LANES];
                std::ptr::copy_nonoverlapping(p, some.as_mut_ptr(), n);
                let $p = some.as_ptr();
                $wide
            }
        }
    };
}
widen!(Avx2F32, f16, |p| _mm256_cvtph_ps(_mm_loadu_si128(p.cast())));
widen!(Avx2F32, bf16, |p| _mm256_castsi256_ps(_mm256_slli_epi32::<
    16,
>(
    _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()))
)));
widen!(Avx512F32, f16, |p| _mm512_cvtph_ps(_mm256_loadu_si256(
    p.cast()
)));
widen!(Avx512F32, bf16, |p| _mm512_castsi512_ps(
    _mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast())))
));

macro_rules! permute {
    ($($name:ident, $at:ty, |$p:ident| $load:expr, |$v:ident, $i:ident| $permute:expr;)*) => {$(
        impl Permute for $name {
            type At = $at;
            #[inline(always)]
            unsafe fn at($p: *const u32) -> $at {
                $load
            }
            #[inline(always)]
            unsafe fn permute($v: Self::V, $i: $at) -> Self::V {
                $permute
            }
        }
    )*};
}
permute! {
    Avx2F32, __m256i, |p| _mm256_loadu_si256(p.cast()), |v, i| _mm256_permutevar8x32_ps(v, i);
    // Only halves of doubles are moved by numbers: both of each.
    Avx2F64, __m256i, |p| {
        let low = _mm256_slli_epi64::<1>(_mm256_cvtepu32_epi64(_mm_loadu_si128(p.cast())));
        let high = _mm256_slli_epi64::<32>(_mm256_add_epi64(low, _mm256_set1_epi64x(1)));
        _mm256_or_si256(low, high)
    }, |v, i| _mm256_castps_pd(_mm256_permutevar8x32_ps(_mm256_castpd_ps(v), i));
    Avx512F32, __m512i, |p| _mm512_loadu_si512(p.cast()), |v, i| _mm512_permutexvar_ps(i, v);
    Avx512F64, __m512i, |p| _mm512_cvtepu32_epi64(_mm256_loadu_si256(p.cast())),
        |v, i| _mm512_permutexvar_pd(i, v);
}
