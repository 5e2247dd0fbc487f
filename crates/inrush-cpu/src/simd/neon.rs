//! AArch64 Advanced SIMD.

use super::Simd;
use std::arch::aarch64::*;

macro_rules! simd {
    ($name:ident, $t:ty, $v:ty, $lanes:literal, $splat:ident, $load:ident, $store:ident, $fma:ident, $add:ident, $sub:ident) => {
        pub(crate) struct $name;
        impl Simd for $name {
            type T = $t;
            type V = $v;
            const LANES: usize = $lanes;
            const REGISTERS: usize = 32;
            #[inline(always)]
            unsafe fn zero() -> $v {
                $splat(0.0)
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
                $fma(c, a, b)
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
            unsafe fn load_n(p: *const $t, n: usize) -> $v {
                let mut lanes = [0.0; $lanes];
                for (i, lane) in lanes.iter_mut().enumerate().take(n) {
                    *lane = p.add(i).read();
                }
                $load(lanes.as_ptr())
            }
        }
    };
}

simd!(
    NeonF32,
    f32,
    float32x4_t,
    4,
    vdupq_n_f32,
    vld1q_f32,
    vst1q_f32,
    vfmaq_f32,
    vaddq_f32,
    vsubq_f32
);
simd!(
    NeonF64,
    f64,
    float64x2_t,
    2,
    vdupq_n_f64,
    vld1q_f64,
    vst1q_f64,
    vfmaq_f64,
    vaddq_f64,
    vsubq_f64
);
