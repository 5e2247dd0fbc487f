//! AVX2 with FMA, and AVX-512.

use super::Simd;
use std::arch::x86_64::*;

macro_rules! simd {
    ($name:ident, $t:ty, $v:ty, $lanes:literal, $zero:ident, $splat:ident, $load:ident, $store:ident, $fma:ident,
     $add:ident, $sub:ident, |$p:ident, $n:ident| $load_n:expr) => {
        pub(crate) struct $name;
        impl Simd for $name {
            type T = $t;
            type V = $v;
            const LANES: usize = $lanes;
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
        }
    };
}

simd!(
    Avx2F32,
    f32,
    __m256,
    8,
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
    }
);
simd!(
    Avx2F64,
    f64,
    __m256d,
    4,
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
    }
);
simd!(
    Avx512F32,
    f32,
    __m512,
    16,
    _mm512_setzero_ps,
    _mm512_set1_ps,
    _mm512_loadu_ps,
    _mm512_storeu_ps,
    _mm512_fmadd_ps,
    _mm512_add_ps,
    _mm512_sub_ps,
    |p, n| _mm512_maskz_loadu_ps(((1u32 << n) - 1) as __mmask16, p)
);
simd!(
    Avx512F64,
    f64,
    __m512d,
    8,
    _mm512_setzero_pd,
    _mm512_set1_pd,
    _mm512_loadu_pd,
    _mm512_storeu_pd,
    _mm512_fmadd_pd,
    _mm512_add_pd,
    _mm512_sub_pd,
    |p, n| _mm512_maskz_loadu_pd(((1u32 << n) - 1) as __mmask8, p)
);
