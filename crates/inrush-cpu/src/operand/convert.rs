//! Strided runs of elements, converted between the stored dtype and the type that sums are held in.

use crate::simd::Element;
use half::{bf16, f16};
use inrush_base::{DType, Float8};
use std::sync::LazyLock;

/// Reads `n` elements at `src`, `src + src_step`, ... (steps in elements of either side) and writes them to `dst`.
pub(crate) type CopyFn<S, D> =
    unsafe fn(src: *const S, src_step: isize, dst: *mut D, dst_step: isize, n: usize);

/// A conversion by value: C's rules between numbers, round to nearest even into floats.
trait Cast<T> {
    fn cast(self) -> T;
}

#[allow(
    unsafe_op_in_unsafe_fn,
    reason = "the whole body is the contract of `CopyFn`"
)]
unsafe fn copy<S: Copy + Cast<D>, D: Copy>(
    src: *const S,
    src_step: isize,
    dst: *mut D,
    dst_step: isize,
    n: usize,
) {
    if src_step == 1 && dst_step == 1 {
        // Its own loop, so that it becomes vectors.
        for i in 0..n {
            dst.add(i).write(src.add(i).read().cast());
        }
        return;
    }
    let (mut s, mut d) = (src, dst);
    for _ in 0..n {
        d.write(s.read().cast());
        s = s.wrapping_offset(src_step);
        d = d.wrapping_offset(dst_step);
    }
}

/// A stored bool: one byte, nonzero is true.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Bool(u8);

/// A stored float of eight bits: its code, and the position of its dtype in [`FLOATS`].
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Eight<const KIND: usize>(u8);

/// The dtypes of eight bits.
const FLOATS: [DType; 4] = [
    DType::F8E4M3FN,
    DType::F8E5M2,
    DType::F8E4M3FNUZ,
    DType::F8E5M2FNUZ,
];

/// The numbers of all codes, and the encoding, of each of [`FLOATS`].
static EIGHTS: LazyLock<Vec<([f32; 256], Float8)>> = LazyLock::new(|| {
    let known = FLOATS.into_iter().filter_map(Float8::of);
    known
        .map(|f| (std::array::from_fn(|code| f.decode(code as u8)), f))
        .collect()
});

macro_rules! casts {
    ($($s:ty)*) => { $( casts!(@to $s: f32 f64 i32 i64); )* };
    (@to $s:ty: $($t:ty)*) => {$(
        impl Cast<$t> for $s {
            #[inline(always)]
            fn cast(self) -> $t {
                self as $t
            }
        }
    )*};
}
casts!(u8 i8 u16 i16 u32 i32 u64 i64 f32 f64);

macro_rules! casts_back {
    ($($t:ty)*) => { $( casts_back!(@from $t: u8 i8 u16 i16 u32 u64); )* };
    (@from $t:ty: $($d:ty)*) => {$(
        impl Cast<$d> for $t {
            #[inline(always)]
            fn cast(self) -> $d {
                self as $d
            }
        }
    )*};
}
casts_back!(f32 f64 i32 i64);

macro_rules! odd_casts {
    ($($t:ty)*) => {$(
        impl Cast<$t> for f16 {
            #[inline(always)]
            fn cast(self) -> $t {
                self.to_f32() as $t
            }
        }
        impl Cast<$t> for bf16 {
            #[inline(always)]
            fn cast(self) -> $t {
                // Exact, and a shift that vectorises: signalling NaNs stay NaNs.
                f32::from_bits((self.to_bits() as u32) << 16) as $t
            }
        }
        impl Cast<$t> for Bool {
            #[inline(always)]
            fn cast(self) -> $t {
                (self.0 != 0) as u8 as $t
            }
        }
        impl<const KIND: usize> Cast<$t> for Eight<KIND> {
            #[inline(always)]
            fn cast(self) -> $t {
                EIGHTS[KIND].0[usize::from(self.0)] as $t
            }
        }
        impl<const KIND: usize> Cast<Eight<KIND>> for $t {
            #[inline(always)]
            fn cast(self) -> Eight<KIND> {
                Eight(EIGHTS[KIND].1.encode(self as f32))
            }
        }
        impl Cast<f16> for $t {
            #[inline(always)]
            fn cast(self) -> f16 {
                f16::from_f64(self as f64)
            }
        }
        impl Cast<bf16> for $t {
            #[inline(always)]
            fn cast(self) -> bf16 {
                bf16::from_f64(self as f64)
            }
        }
        impl Cast<Bool> for $t {
            #[inline(always)]
            fn cast(self) -> Bool {
                Bool((self != (0 as $t)) as u8)
            }
        }
    )*};
}
odd_casts!(f32 f64 i32 i64);

/// A type that sums are held in, with its conversions from and to every stored dtype.
pub(crate) trait Target: Element {
    /// Returns what reads stored elements; `None` for dtypes that have no reader.
    fn reader(dtype: DType) -> Option<CopyFn<u8, Self>>;
    /// Returns what writes stored elements.
    fn writer(dtype: DType) -> Option<CopyFn<Self, u8>>;
}

/// `$each!(type)` with the Rust type of a stored dtype.
macro_rules! stored {
    ($dtype:expr, $each:ident) => {
        match $dtype {
            DType::Bool => $each!(Bool),
            DType::U8 => $each!(u8),
            DType::I8 => $each!(i8),
            DType::U16 => $each!(u16),
            DType::I16 => $each!(i16),
            DType::U32 => $each!(u32),
            DType::I32 => $each!(i32),
            DType::U64 => $each!(u64),
            DType::I64 => $each!(i64),
            DType::F16 => $each!(f16),
            DType::BF16 => $each!(bf16),
            DType::F8E4M3FN => $each!(Eight<0>),
            DType::F8E5M2 => $each!(Eight<1>),
            DType::F8E4M3FNUZ => $each!(Eight<2>),
            DType::F8E5M2FNUZ => $each!(Eight<3>),
            DType::F32 => $each!(f32),
            DType::F64 => $each!(f64),
            _ => None,
        }
    };
}

macro_rules! target {
    ($($t:ty)*) => {$(
        impl Target for $t {
            fn reader(dtype: DType) -> Option<CopyFn<u8, $t>> {
                macro_rules! from {
                    ($src:ty) => {{
                        unsafe fn read(src: *const u8, ss: isize, dst: *mut $t, ds: isize, n: usize) {
                            // SAFETY: the caller's contract.
                            unsafe { copy::<$src, $t>(src.cast(), ss, dst, ds, n) }
                        }
                        Some(read)
                    }};
                }
                stored!(dtype, from)
            }
            fn writer(dtype: DType) -> Option<CopyFn<$t, u8>> {
                macro_rules! to {
                    ($dst:ty) => {{
                        unsafe fn write(src: *const $t, ss: isize, dst: *mut u8, ds: isize, n: usize) {
                            // SAFETY: the caller's contract.
                            unsafe { copy::<$t, $dst>(src, ss, dst.cast(), ds, n) }
                        }
                        Some(write)
                    }};
                }
                stored!(dtype, to)
            }
        }
    )*};
}
target!(f32 f64 i32 i64);
