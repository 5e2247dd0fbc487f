//! Columns that are contiguous in memory become rows of a panel: eight by eight elements at a time.

use crate::simd::Element;
#[cfg(target_arch = "x86_64")]
use crate::simd::{Avx2F32, Widen};
use inrush_base::{DType, Isa};

/// Eight columns, `step` elements apart and contiguous themselves, to `k` rows of `dst`, `width` elements apart.
///
/// # Safety
/// The processor has AVX2; `src` can be read for eight columns of `k` elements, `dst` written for `k` rows of eight.
pub(crate) type TransposeFn<T> =
    unsafe fn(src: *const u8, step: isize, dst: *mut T, width: usize, k: usize);

/// The transposition of a level for a stored dtype, where there is one that beats element by element.
pub(crate) fn f32(isa: Isa, stored: DType) -> Option<TransposeFn<f32>> {
    match (isa, stored) {
        #[cfg(target_arch = "x86_64")]
        (Isa::Avx2 | Isa::Avx512, DType::F32) => Some(avx2::<f32>),
        #[cfg(target_arch = "x86_64")]
        (Isa::Avx2 | Isa::Avx512, DType::F16) => Some(avx2::<half::f16>),
        #[cfg(target_arch = "x86_64")]
        (Isa::Avx2 | Isa::Avx512, DType::BF16) => Some(avx2::<half::bf16>),
        _ => None,
    }
}

/// For element types without one.
pub(crate) fn none<T: Element>(_: Isa, _: DType) -> Option<TransposeFn<T>> {
    None
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn avx2<E: Copy>(src: *const u8, step: isize, dst: *mut f32, width: usize, k: usize)
where
    Avx2F32: Widen<E>,
{
    use std::arch::x86_64::*;
    let src = src.cast::<E>();
    let mut i = 0;
    // SAFETY: the caller's contract; `i + 8 <= k` in the blocks.
    unsafe {
        while i + 8 <= k {
            // Not a closure: the loads would stay calls inside it.
            macro_rules! row {
                ($j:literal) => {
                    <Avx2F32 as Widen<E>>::widen(src.offset($j * step).add(i))
                };
            }
            let (a0, a1, a2, a3) = (row!(0), row!(1), row!(2), row!(3));
            let (a4, a5, a6, a7) = (row!(4), row!(5), row!(6), row!(7));
            // Pairs, then quadruples, then the halves of the registers.
            let (b0, b1) = (_mm256_unpacklo_ps(a0, a1), _mm256_unpackhi_ps(a0, a1));
            let (b2, b3) = (_mm256_unpacklo_ps(a2, a3), _mm256_unpackhi_ps(a2, a3));
            let (b4, b5) = (_mm256_unpacklo_ps(a4, a5), _mm256_unpackhi_ps(a4, a5));
            let (b6, b7) = (_mm256_unpacklo_ps(a6, a7), _mm256_unpackhi_ps(a6, a7));
            let low = |x, y| _mm256_shuffle_ps::<0x44>(x, y);
            let high = |x, y| _mm256_shuffle_ps::<0xee>(x, y);
            let c = [low(b0, b2), high(b0, b2), low(b1, b3), high(b1, b3)];
            let d = [low(b4, b6), high(b4, b6), low(b5, b7), high(b5, b7)];
            let to = dst.add(i * width);
            for j in 0..4 {
                _mm256_storeu_ps(
                    to.add(j * width),
                    _mm256_permute2f128_ps::<0x20>(c[j], d[j]),
                );
                let lower = to.add((j + 4) * width);
                _mm256_storeu_ps(lower, _mm256_permute2f128_ps::<0x31>(c[j], d[j]));
            }
            i += 8;
        }
        while i < k {
            for j in 0..8 {
                let one = <Avx2F32 as Widen<E>>::widen_n(src.offset(j as isize * step).add(i), 1);
                *dst.add(i * width + j) = _mm256_cvtss_f32(one);
            }
            i += 1;
        }
    }
}
