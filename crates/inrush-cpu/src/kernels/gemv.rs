//! Loops of products with few rows, over a right operand that is read in place.
//!
//! - Dot: columns are contiguous, as a linear layer's weight is. Each result is a dot product; a few rows by four
//!   columns at a time.
//! - Axpy: rows are contiguous. Each row, times its factor, is added to the rows of results in the first cache.

use crate::operand::{Affine, RhsView, part};
use crate::simd::{Element, Widen};

/// The loops of one level, element type and stored type of the right operand.
pub(crate) struct Loops<T: 'static> {
    pub dot: unsafe fn(&Dot<T>),
    pub axpy: unsafe fn(&Axpy<T>),
    /// Not for thin products alone: see [`Spread`].
    pub spread: unsafe fn(&Spread<T>),
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

/// Rows of the right operand, `step` elements apart, to panels of `nv` vectors: element `j` of row `i` goes to row `i` of
/// the panel that `j` falls in. Panels lie `panel_step` elements apart.
pub(crate) struct Spread<T> {
    pub src: *const u8,
    pub step: isize,
    pub rows: usize,
    pub nv: usize,
    pub panels: usize,
    pub dst: *mut T,
    pub panel_step: usize,
}

/// How a right operand can be read in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Dot,
    Axpy { step: isize },
}

/// Most rows for which reading in place beats packing.
const DOT_ROWS: usize = 12;
const AXPY_ROWS: usize = 16;

/// The form for `rows` rows, if any.
pub(crate) fn form(rows: usize, view: &RhsView) -> Option<Form> {
    let unit = |map: &Affine| map.len() == 1 || map.stride() == Some(1);
    match view.k.stride() {
        Some(step) if rows <= AXPY_ROWS && unit(&view.cols) => Some(Form::Axpy { step }),
        Some(_) if rows <= DOT_ROWS && unit(&view.k) => Some(Form::Dot),
        _ => None,
    }
}

/// Columns of one unit of work, so that threads have enough units and a unit's results stay in the first cache.
pub(crate) fn chunk(matrices: usize, rows: usize, n: usize, threads: usize) -> usize {
    let most = (4096 / rows.max(1)).clamp(64, 1024);
    let parts = n.div_ceil(most);
    let wanted = (4 * threads).div_ceil(matrices.max(1));
    let parts = parts.max(wanted.min(n.div_ceil(64))).max(1);
    n.div_ceil(parts).next_multiple_of(16)
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

/// All rows against `NC` columns, in groups of nearly equal height.
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

/// `KU` rows of the right operand from row `k`, added to `MR` rows of results from row `row`.
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

/// `KU` rows of the right operand, added to all rows of results.
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

#[inline(always)]
#[allow(unsafe_op_in_unsafe_fn, reason = "the contract of `Spread`")]
unsafe fn spread_panels<S: Widen<E>, E, const NV: usize>(t: &Spread<S::T>) {
    const ROWS: usize = 4;
    const AHEAD: isize = 8;
    let width = NV * S::LANES;
    for i in (0..t.rows).step_by(ROWS) {
        let rows = ROWS.min(t.rows - i);
        for p in 0..t.panels {
            let src = t.src.cast::<E>().offset(i as isize * t.step).add(p * width);
            let dst = t.dst.add(p * t.panel_step + i * width);
            for r in 0..rows {
                let from = src.offset(r as isize * t.step);
                // Rows that come soon; their distance may be one at which the first cache holds few of them.
                S::prefetch_far(from.wrapping_offset(AHEAD * t.step).cast());
                for v in 0..NV {
                    let x = S::widen(from.add(v * S::LANES));
                    S::store(dst.add(r * width + v * S::LANES), x);
                }
            }
        }
    }
}

#[inline(always)]
#[allow(unsafe_op_in_unsafe_fn, reason = "the contract of `Spread`")]
unsafe fn spread<S: Widen<E>, E>(t: &Spread<S::T>) {
    match t.nv {
        1 => spread_panels::<S, E, 1>(t),
        2 => spread_panels::<S, E, 2>(t),
        3 => spread_panels::<S, E, 3>(t),
        _ => spread_panels::<S, E, 4>(t),
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
            $( #[target_feature(enable = $features)] )?
            unsafe fn spread<S: Widen<E>, E>(t: &Spread<S::T>) {
                // SAFETY: the caller's contract.
                unsafe { super::spread::<S, E>(t) }
            }
            pub(crate) const fn loops<S: Widen<E>, E>() -> Loops<S::T> {
                Loops { dot: dot::<S, E>, axpy: axpy::<S, E>, spread: spread::<S, E> }
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
