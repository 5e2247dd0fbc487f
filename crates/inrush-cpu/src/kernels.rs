//! Kernels: loops that keep their sums in registers, written once over [`crate::simd`] and compiled for each instruction set level.
//!
//! A kernel knows pointers, strides and counts. Which kernel computes what, and in which blocks, is the business of
//! [`crate::algorithms`].

pub(crate) mod depthwise;
pub(crate) mod direct_nchw;
pub(crate) mod gemm;
pub(crate) mod gemv;
pub(crate) mod grouped;
pub(crate) mod pack;
pub(crate) mod prefetch;
pub(crate) mod split_k;
pub(crate) mod tall;
pub(crate) mod winograd;

use inrush_base::DType;

/// Returns the table of level `$isa`, as `&'static $table`. Each is a constant, built for the architecture that has the level;
/// `plain` serves all other levels.
macro_rules! by_isa {
    ($isa:expr, $table:ty, avx2: $avx2:expr, avx512: $avx512:expr, neon: $neon:expr, plain: $plain:expr) => {
        match $isa {
            #[cfg(target_arch = "x86_64")]
            inrush_base::Isa::Avx2 => {
                static TABLE: $table = $avx2;
                &TABLE
            }
            #[cfg(target_arch = "x86_64")]
            inrush_base::Isa::Avx512 => {
                static TABLE: $table = $avx512;
                &TABLE
            }
            #[cfg(target_arch = "aarch64")]
            inrush_base::Isa::Neon => {
                static TABLE: $table = $neon;
                &TABLE
            }
            _ => {
                static TABLE: $table = $plain;
                &TABLE
            }
        }
    };
}
pub(crate) use by_isa;

/// Returns how many sets of accumulators keep the multipliers busy in a tile too small for it: at least eight independent sums.
pub(crate) const fn sets(mr: usize, nv: usize) -> usize {
    match mr * nv {
        1 | 2 => 4,
        3..8 => 2,
        _ => 1,
    }
}

/// Runs `$body` with `$t` bound to the Rust type that sums are held in for dtype `$dtype`.
macro_rules! with_element {
    ($dtype:expr, $t:ident => $body:expr) => {
        match $dtype {
            inrush_base::DType::F32 => {
                type $t = f32;
                Ok($body)
            }
            inrush_base::DType::F64 => {
                type $t = f64;
                Ok($body)
            }
            inrush_base::DType::I32 => {
                type $t = i32;
                Ok($body)
            }
            inrush_base::DType::I64 => {
                type $t = i64;
                Ok($body)
            }
            other => Err(crate::kernels::no_kernel(other)),
        }
    };
}
pub(crate) use with_element;

pub(crate) fn no_kernel(dtype: DType) -> inrush_base::Error {
    inrush_base::Error::unsupported(format!(
        "matrix products accumulate in f32, f64, i32 or i64, not {dtype}"
    ))
}
