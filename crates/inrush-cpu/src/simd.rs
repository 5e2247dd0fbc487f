//! The few vector operations that the kernels are written in, once for each instruction set level.
//!
//! Every method is inlined into a kernel that enables the level's features; calling one anywhere else is not sound.
#![allow(
    unsafe_op_in_unsafe_fn,
    reason = "each body is the one intrinsic that its contract is about"
)]

use inrush_base::DType;

/// A type in which products are accumulated; integers wrap.
pub(crate) trait Element: Copy + Default + Send + Sync + 'static {
    const DTYPE: DType;
    fn plus(self, b: Self) -> Self;
    fn times(self, b: Self) -> Self;
    fn minus(self, b: Self) -> Self;
}

macro_rules! element {
    ($($t:ty, $d:ident, $plus:expr, $times:expr, $minus:expr;)*) => {$(
        impl Element for $t {
            const DTYPE: DType = DType::$d;
            #[inline(always)]
            fn plus(self, b: Self) -> Self {
                $plus(self, b)
            }
            #[inline(always)]
            fn times(self, b: Self) -> Self {
                $times(self, b)
            }
            #[inline(always)]
            fn minus(self, b: Self) -> Self {
                $minus(self, b)
            }
        }
    )*};
}
element! {
    f32, F32, |a: f32, b| a + b, |a: f32, b| a * b, |a: f32, b| a - b;
    f64, F64, |a: f64, b| a + b, |a: f64, b| a * b, |a: f64, b| a - b;
    i32, I32, i32::wrapping_add, i32::wrapping_mul, i32::wrapping_sub;
    i64, I64, i64::wrapping_add, i64::wrapping_mul, i64::wrapping_sub;
}

/// A vector register of one level and element type.
///
/// # Safety of every method
/// The processor has the level's features; pointers are good for `LANES` elements (`n` of them in the `_n` forms).
pub(crate) trait Simd: 'static {
    type T: Element;
    type V: Copy;
    const LANES: usize;
    /// Vector registers of the level.
    const REGISTERS: usize;
    unsafe fn zero() -> Self::V;
    unsafe fn splat(x: Self::T) -> Self::V;
    unsafe fn load(p: *const Self::T) -> Self::V;
    unsafe fn store(p: *mut Self::T, v: Self::V);
    /// `a * b + c`.
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V;
    /// All lanes added up.
    #[inline(always)]
    unsafe fn sum(v: Self::V) -> Self::T {
        let mut lanes = [Self::T::default(); 16];
        Self::store(lanes.as_mut_ptr(), v);
        let mut n = Self::LANES;
        while n > 1 {
            n /= 2;
            for i in 0..n {
                lanes[i] = lanes[i].plus(lanes[i + n]);
            }
        }
        lanes[0]
    }
    /// Asks for a cache line; any address will do.
    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        #[cfg(target_arch = "x86_64")]
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(p.cast());
        #[cfg(not(target_arch = "x86_64"))]
        let _ = p;
    }
    /// The same, but no nearer than the second cache.
    #[inline(always)]
    unsafe fn prefetch_far(p: *const u8) {
        #[cfg(target_arch = "x86_64")]
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T1 }>(p.cast());
        #[cfg(not(target_arch = "x86_64"))]
        let _ = p;
    }
    /// The first `n < LANES` elements, zeros after them.
    unsafe fn load_n(p: *const Self::T, n: usize) -> Self::V;
    /// Every second one of `2 * LANES - 1` elements.
    #[inline(always)]
    unsafe fn even(p: *const Self::T) -> Self::V {
        let mut some = [Self::T::default(); 16];
        for (i, x) in some.iter_mut().enumerate().take(Self::LANES) {
            *x = *p.add(2 * i);
        }
        Self::load(some.as_ptr())
    }
}

/// Loads of stored elements of type `E` as elements of the vector.
pub(crate) trait Widen<E>: Simd {
    unsafe fn widen(p: *const E) -> Self::V;
    /// The first `n < LANES` elements, zeros after them.
    unsafe fn widen_n(p: *const E, n: usize) -> Self::V;
}

/// A level that permutes vectors.
pub(crate) trait Permute: Simd {
    /// A permutation in a register.
    type At: Copy;
    /// Loads a permutation: the lane that each lane comes from.
    ///
    /// # Safety
    /// As [`Simd`]; `p` is good for as many numbers as there are lanes.
    unsafe fn at(p: *const u32) -> Self::At;
    /// # Safety
    /// As [`Simd`].
    unsafe fn permute(v: Self::V, at: Self::At) -> Self::V;
}

/// Elements of the vector's own type.
macro_rules! widen_same {
    ($($name:ty, $t:ty;)*) => {$(
        impl Widen<$t> for $name {
            #[inline(always)]
            unsafe fn widen(p: *const $t) -> Self::V {
                Self::load(p)
            }
            #[inline(always)]
            unsafe fn widen_n(p: *const $t, n: usize) -> Self::V {
                Self::load_n(p, n)
            }
        }
    )*};
}
/// Halves, element by element, for levels without instructions for them.
macro_rules! widen_halves {
    ($($name:ty, $half:ty;)*) => {$(
        impl Widen<$half> for $name {
            #[inline(always)]
            unsafe fn widen(p: *const $half) -> Self::V {
                let lanes: [f32; Self::LANES] = std::array::from_fn(|i| p.add(i).read().to_f32());
                Self::load(lanes.as_ptr())
            }
            #[inline(always)]
            unsafe fn widen_n(p: *const $half, n: usize) -> Self::V {
                let mut lanes = [0f32; Self::LANES];
                for (i, lane) in lanes.iter_mut().enumerate().take(n) {
                    *lane = p.add(i).read().to_f32();
                }
                Self::load(lanes.as_ptr())
            }
        }
    )*};
}
widen_same! {
    Portable<f32>, f32; Portable<f64>, f64; Portable<i32>, i32; Portable<i64>, i64;
}
widen_halves! { Portable<f32>, half::f16; Portable<f32>, half::bf16; }
#[cfg(target_arch = "x86_64")]
widen_same! { Avx2F32, f32; Avx2F64, f64; Avx512F32, f32; Avx512F64, f64; }
#[cfg(target_arch = "aarch64")]
widen_same! { NeonF32, f32; NeonF64, f64; }
#[cfg(target_arch = "aarch64")]
widen_halves! { NeonF32, half::f16; NeonF32, half::bf16; }

#[cfg(target_arch = "x86_64")]
mod x86;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{Avx2F32, Avx2F64, Avx512F32, Avx512F64};
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "aarch64")]
pub(crate) use neon::{NeonF32, NeonF64};

/// Arrays of four: what the compiler makes of them on a machine of which nothing is assumed.
pub(crate) struct Portable<T>(std::marker::PhantomData<T>);

impl<T: Element> Simd for Portable<T> {
    type T = T;
    type V = [T; 4];
    const LANES: usize = 4;
    const REGISTERS: usize = 16;
    #[inline(always)]
    unsafe fn zero() -> [T; 4] {
        [T::default(); 4]
    }
    #[inline(always)]
    unsafe fn splat(x: T) -> [T; 4] {
        [x; 4]
    }
    #[inline(always)]
    unsafe fn load(p: *const T) -> [T; 4] {
        p.cast::<[T; 4]>().read_unaligned()
    }
    #[inline(always)]
    unsafe fn store(p: *mut T, v: [T; 4]) {
        p.cast::<[T; 4]>().write_unaligned(v)
    }
    #[inline(always)]
    unsafe fn fma(a: [T; 4], b: [T; 4], c: [T; 4]) -> [T; 4] {
        // Not the fused operation: without the instruction it is a library call.
        std::array::from_fn(|i| a[i].times(b[i]).plus(c[i]))
    }
    #[inline(always)]
    unsafe fn add(a: [T; 4], b: [T; 4]) -> [T; 4] {
        std::array::from_fn(|i| a[i].plus(b[i]))
    }
    #[inline(always)]
    unsafe fn sub(a: [T; 4], b: [T; 4]) -> [T; 4] {
        std::array::from_fn(|i| a[i].minus(b[i]))
    }
    #[inline(always)]
    unsafe fn load_n(p: *const T, n: usize) -> [T; 4] {
        std::array::from_fn(|i| if i < n { p.add(i).read() } else { T::default() })
    }
}
