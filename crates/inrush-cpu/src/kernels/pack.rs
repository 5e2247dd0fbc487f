//! Packing loop: rows of whole vectors, widened to the type of the sums, become rows of panels.

use super::by_isa;
use crate::simd::{self, Element, Portable, Widen};
use inrush_base::{DType, Isa};

/// Rows of the right operand, `step` elements apart, to panels of `nv` vectors: element `j` of row `i` goes to row `i` of
/// the panel that `j` falls in. Panels are `panel_step` elements apart.
pub(crate) struct PackRows<T> {
    pub src: *const u8,
    pub step: isize,
    pub rows: usize,
    pub nv: usize,
    pub panels: usize,
    pub dst: *mut T,
    pub panel_step: usize,
}

/// # Safety
/// The processor has the level's features; every element of the rows is readable; panels can take whole rows.
pub(crate) type PackFn<T> = unsafe fn(&PackRows<T>);

/// The loop of one level, element type and stored type.
pub(crate) struct PackLoop<T: 'static> {
    /// Elements of a vector.
    pub lanes: usize,
    pub run: PackFn<T>,
}

#[inline(always)]
#[allow(unsafe_op_in_unsafe_fn, reason = "the contract of `PackRows`")]
unsafe fn pack_panels<S: Widen<E>, E, const NV: usize>(t: &PackRows<S::T>) {
    const ROWS: usize = 4;
    const PREFETCH: isize = 8;
    let width = NV * S::LANES;
    for i in (0..t.rows).step_by(ROWS) {
        let rows = ROWS.min(t.rows - i);
        for p in 0..t.panels {
            let src = t.src.cast::<E>().offset(i as isize * t.step).add(p * width);
            let dst = t.dst.add(p * t.panel_step + i * width);
            for r in 0..rows {
                let from = src.offset(r as isize * t.step);
                // Rows that come soon; their distance may be one at which the first cache holds few of them.
                S::prefetch_far(from.wrapping_offset(PREFETCH * t.step).cast());
                for v in 0..NV {
                    let x = S::widen(from.add(v * S::LANES));
                    S::store(dst.add(r * width + v * S::LANES), x);
                }
            }
        }
    }
}

#[inline(always)]
#[allow(unsafe_op_in_unsafe_fn, reason = "the contract of `PackRows`")]
unsafe fn pack<S: Widen<E>, E>(t: &PackRows<S::T>) {
    match t.nv {
        1 => pack_panels::<S, E, 1>(t),
        2 => pack_panels::<S, E, 2>(t),
        3 => pack_panels::<S, E, 3>(t),
        _ => pack_panels::<S, E, 4>(t),
    }
}

/// The loop of a level: its features enabled around the generic body.
macro_rules! levels {
    ($($name:ident $(, $features:literal)?;)*) => {$(
        mod $name {
            use super::*;
            $( #[target_feature(enable = $features)] )?
            unsafe fn pack<S: Widen<E>, E>(t: &PackRows<S::T>) {
                // SAFETY: the caller's contract.
                unsafe { super::pack::<S, E>(t) }
            }
            pub(super) const fn loops<S: Widen<E>, E>() -> PackLoop<S::T> {
                PackLoop { lanes: S::LANES, run: pack::<S, E> }
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

/// Element types that operands are widened to by instructions.
pub(crate) trait PackLoops: Element {
    /// Returns the loop of a level for an operand of dtype `stored`, where there is one.
    fn pack(isa: Isa, stored: DType) -> Option<&'static PackLoop<Self>>;
}

macro_rules! float {
    ($t:ty, $avx2:ident, $avx512:ident, $neon:ident; $($stored:ident: $e:ty),*) => {
        impl PackLoops for $t {
            fn pack(isa: Isa, stored: DType) -> Option<&'static PackLoop<$t>> {
                match stored {
                    $( DType::$stored => Some(by_isa!(isa, PackLoop<$t>,
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
        impl PackLoops for $t {
            fn pack(_: Isa, stored: DType) -> Option<&'static PackLoop<$t>> {
                static LOOPS: PackLoop<$t> = plain::loops::<Portable<$t>, $t>();
                (stored == <$t as Element>::DTYPE).then_some(&LOOPS)
            }
        }
    };
}
int!(i32);
int!(i64);
