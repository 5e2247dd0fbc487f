//! Transposition in registers: columns that are contiguous in memory become rows of a panel, 8 x 8 or 16 x 16 elements
//! at a time.

use crate::simd::Element;
#[cfg(target_arch = "x86_64")]
use crate::simd::{Avx2F32, Widen};
use inrush_base::{DType, Isa};

/// `columns` columns, `step` elements apart and contiguous themselves, to `k` rows of `dst`, `width` elements apart.
///
/// # Safety
/// The processor has the level's features; `columns` is a multiple of [`COLUMNS`]; `src` can be read for as many columns of
/// `k` elements, `dst` written for `k` rows of as many.
pub(crate) type TransposeFn<T> =
    unsafe fn(src: *const u8, step: isize, dst: *mut T, width: usize, columns: usize, k: usize);

/// Columns come in multiples of this.
pub(crate) const COLUMNS: usize = 8;

/// Element types that columns are transposed to.
pub(crate) trait Transpose: Element {
    /// Returns the transposition of a level for a stored dtype, where there is one that beats element by element.
    fn transpose(_isa: Isa, _stored: DType) -> Option<TransposeFn<Self>> {
        None
    }
}

impl Transpose for f32 {
    fn transpose(isa: Isa, stored: DType) -> Option<TransposeFn<f32>> {
        match (isa, stored) {
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx2, DType::F32) => Some(avx2::<f32>),
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512, DType::F32) => Some(avx512),
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx2 | Isa::Avx512, DType::F16) => Some(avx2::<half::f16>),
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx2 | Isa::Avx512, DType::BF16) => Some(avx2::<half::bf16>),
            _ => None,
        }
    }
}
impl Transpose for f64 {}
impl Transpose for i32 {}
impl Transpose for i64 {}

/// Transposes eight columns after the other.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn avx2<E: Copy>(
    src: *const u8,
    step: isize,
    dst: *mut f32,
    width: usize,
    columns: usize,
    k: usize,
) where
    Avx2F32: Widen<E>,
{
    for j in (0..columns).step_by(COLUMNS) {
        // SAFETY: the caller's contract.
        unsafe {
            let from = src.cast::<E>().offset(j as isize * step);
            eight::<E>(from, step, dst.add(j), width, k)
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn eight<E: Copy>(src: *const E, step: isize, dst: *mut f32, width: usize, k: usize)
where
    Avx2F32: Widen<E>,
{
    use std::arch::x86_64::*;
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

/// Transposes sixteen columns after the other, the rest by [`avx2`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512cd,avx512dq,avx512vl")]
unsafe fn avx512(
    src: *const u8,
    step: isize,
    dst: *mut f32,
    width: usize,
    columns: usize,
    k: usize,
) {
    const SIDE: usize = 16;
    let from = src.cast::<f32>();
    let (wide, tall) = (columns - columns % SIDE, k - k % SIDE);
    // SAFETY: the caller's contract; blocks are inside it.
    unsafe {
        for j in (0..wide).step_by(SIDE) {
            for i in (0..tall).step_by(SIDE) {
                let block = from.offset(j as isize * step).add(i);
                sixteen(block, step, dst.add(i * width + j), width);
            }
        }
        if tall < k {
            let to = dst.add(tall * width);
            avx2::<f32>(from.add(tall).cast(), step, to, width, wide, k - tall);
        }
        if wide < columns {
            let rest = from.offset(wide as isize * step).cast();
            avx2::<f32>(rest, step, dst.add(wide), width, columns - wide, k);
        }
    }
}

/// Transposes sixteen by sixteen elements. A register is filled with four elements each of four columns, so that only quarters of
/// registers are left to be shuffled: loads and inserts use other ports than shuffles.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512cd,avx512dq,avx512vl")]
unsafe fn sixteen(src: *const f32, step: isize, dst: *mut f32, width: usize) {
    use std::arch::x86_64::*;
    // SAFETY: the caller's contract; what is prefetched may be any address.
    unsafe {
        // The neighbours on the right are next but for the rows below, which the processor foresees by itself.
        for j in 16..32 {
            let line = src.wrapping_offset(j * step);
            _mm_prefetch::<_MM_HINT_T1>(line.cast());
        }
        for i in (0..16).step_by(4) {
            macro_rules! quarters {
                ($j:literal) => {{
                    let at = |j: isize| src.offset(j * step).add(i);
                    let v = _mm512_castps128_ps512(_mm_loadu_ps(at($j)));
                    let v = _mm512_insertf32x4::<1>(v, _mm_loadu_ps(at($j + 4)));
                    let v = _mm512_insertf32x4::<2>(v, _mm_loadu_ps(at($j + 8)));
                    _mm512_insertf32x4::<3>(v, _mm_loadu_ps(at($j + 12)))
                }};
            }
            let (a, b, c, d) = (quarters!(0), quarters!(1), quarters!(2), quarters!(3));
            let (ab, cd) = (_mm512_unpacklo_ps(a, b), _mm512_unpacklo_ps(c, d));
            let (ab2, cd2) = (_mm512_unpackhi_ps(a, b), _mm512_unpackhi_ps(c, d));
            let to = dst.add(i * width);
            _mm512_storeu_ps(to, _mm512_shuffle_ps::<0x44>(ab, cd));
            _mm512_storeu_ps(to.add(width), _mm512_shuffle_ps::<0xee>(ab, cd));
            _mm512_storeu_ps(to.add(2 * width), _mm512_shuffle_ps::<0x44>(ab2, cd2));
            _mm512_storeu_ps(to.add(3 * width), _mm512_shuffle_ps::<0xee>(ab2, cd2));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every level's function against element by element, with what is left over in both directions.
    #[test]
    fn columns_become_rows() {
        for isa in crate::available() {
            let Some(transpose) = f32::transpose(isa, DType::F32) else {
                continue;
            };
            for (columns, k) in [
                (8, 8),
                (16, 16),
                (48, 64),
                (24, 37),
                (40, 16),
                (8, 100),
                (16, 3),
                (0, 9),
            ] {
                let (step, width) = (k + 3, columns + 5);
                let src: Vec<f32> = (0..columns * step + k).map(|i| i as f32).collect();
                let mut dst = vec![-1.0; k * width];
                // SAFETY: sizes as above, of a level that the processor has.
                unsafe {
                    transpose(
                        src.as_ptr().cast(),
                        step as isize,
                        dst.as_mut_ptr(),
                        width,
                        columns,
                        k,
                    );
                }
                for i in 0..k {
                    for j in 0..width {
                        let expected = if j < columns { src[j * step + i] } else { -1.0 };
                        assert_eq!(
                            dst[i * width + j],
                            expected,
                            "{isa:?} {columns} x {k} at {j}, {i}"
                        );
                    }
                }
            }
        }
    }
}
