//! The right operand in the order in which tiles read it: panels of a few vectors across, each `[k][width]`.

use crate::convert::CopyFn;
use crate::micro::{Kernel, Kernels, MAX_NV, with_element};
use crate::scratch::Bytes;
use crate::transpose::TransposeFn;
use crate::{Affine, Pool};
use inrush_base::{DType, Error, Isa, Result};

/// A right operand where it lies: element `(matrix, k, n)` at the sum of the three maps' offsets. `k` counts through all
/// taps.
#[derive(Clone, Copy)]
pub struct RhsView {
    pub ptr: *const u8,
    pub dtype: DType,
    pub matrices: Affine,
    pub k: Affine,
    pub cols: Affine,
}

/// How the columns of one matrix are cut into panels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Columns {
    pub n: usize,
    /// Columns of a full panel, and of the last one where it is narrower (else 0); whole vectors.
    pub width: usize,
    pub last: usize,
    pub full: usize,
}

impl Columns {
    /// The cut with the least work: a narrower last panel spares padding, wide panels load less for each product.
    pub(crate) fn choose<T>(kernels: &Kernels<T>, n: usize) -> Columns {
        let mut best = (f64::INFINITY, 1);
        for nv in (1..=MAX_NV).filter(|nv| kernels.rows[nv - 1] > 0) {
            let width = nv * kernels.lanes;
            let last = (n % width).div_ceil(kernels.lanes);
            let mut cost = (n / width * nv) as f64 * kernels.cost[nv - 1];
            if last > 0 {
                cost += last as f64 * kernels.cost[last - 1];
            }
            if cost < best.0 {
                best = (cost, nv);
            }
        }
        let width = best.1 * kernels.lanes;
        Columns {
            n,
            width,
            last: (n % width).next_multiple_of(kernels.lanes),
            full: n / width,
        }
    }

    pub(crate) fn panels(&self) -> usize {
        self.full + usize::from(self.last > 0)
    }

    /// Columns of panel `p`, padding included.
    pub(crate) fn width_of(&self, p: usize) -> usize {
        if p < self.full { self.width } else { self.last }
    }

    /// All columns, padding included.
    pub(crate) fn padded(&self) -> usize {
        self.full * self.width + self.last
    }
}

/// Right operands laid out once, for example a layer's weights at load.
pub struct PackedB {
    isa: Isa,
    dtype: DType,
    matrices: usize,
    k: usize,
    columns: Columns,
    data: Bytes,
}

impl PackedB {
    /// Packs every matrix of `view`, converted to `dtype` (the type in which products are summed).
    ///
    /// # Safety
    /// Every element that `view` describes is readable for the length of the call.
    pub unsafe fn pack(pool: &Pool, isa: Isa, dtype: DType, view: &RhsView) -> Result<PackedB> {
        // SAFETY: the caller's contract.
        with_element!(dtype, T => unsafe { Self::pack_as::<T>(pool, isa, view) })?
    }

    unsafe fn pack_as<T: Kernel>(pool: &Pool, isa: Isa, view: &RhsView) -> Result<PackedB> {
        let copy = reader::<T>(view.dtype)?;
        let columns = Columns::choose(T::kernels(isa), view.cols.len());
        let (matrices, k) = (view.matrices.len(), view.k.len());
        let data = columns
            .padded()
            .checked_mul(k)
            .and_then(|x| x.checked_mul(matrices))
            .and_then(|x| x.checked_mul(size_of::<T>()))
            .and_then(Bytes::new)
            .ok_or_else(|| {
                Error::machine(format!(
                    "no memory for a packed matrix of {matrices} x {k} x {}",
                    view.cols.len()
                ))
            })?;
        let packed = PackedB {
            isa,
            dtype: T::DTYPE,
            matrices,
            k,
            columns,
            data,
        };
        let panels = columns.panels();
        let (from, to) = (Shared(view), Shared(&packed));
        pool.parallel_for(matrices * panels, 1, &|units| {
            for unit in units {
                let (matrix, p) = (unit / panels, unit % panels);
                // SAFETY: each unit writes its own panel; the caller vouches for the source.
                unsafe {
                    let panel = to.get().panel::<T>(matrix, p).cast_mut();
                    pack_panel(
                        copy,
                        T::transpose(isa),
                        from.get(),
                        matrix,
                        &to.get().columns,
                        p,
                        panel,
                    );
                }
            }
        })?;
        Ok(packed)
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.data.len()
    }

    /// Number of matrices.
    pub fn matrices(&self) -> usize {
        self.matrices
    }

    pub(crate) fn check(&self, isa: Isa, dtype: DType, k: usize, columns: &Columns) -> Result<()> {
        if (self.isa, self.dtype, self.k, &self.columns) == (isa, dtype, k, columns) {
            return Ok(());
        }
        Err(Error::internal(format!(
            "a {} operand of {} x {}, packed for {}, meets a {dtype} product of {k} x {} for {}",
            self.dtype,
            self.k,
            self.columns.n,
            self.isa.name(),
            columns.n,
            isa.name()
        )))
    }

    /// Panel `p` of a matrix: `k` rows of `columns.width_of(p)` elements.
    pub(crate) fn panel<T>(&self, matrix: usize, p: usize) -> *const T {
        let elements = (matrix * self.columns.padded() + p * self.columns.width) * self.k;
        self.data.ptr().cast::<T>().wrapping_add(elements)
    }
}

/// Lets a reference with raw pointers inside cross into the pool; the pointers' users keep to their own parts.
pub(crate) struct Shared<'a, T>(pub &'a T);
// SAFETY: see above; every user says why its parts are apart.
unsafe impl<T> Sync for Shared<'_, T> {}
impl<'a, T> Shared<'a, T> {
    pub(crate) fn get(&self) -> &'a T {
        self.0
    }
}

pub(crate) fn reader<T: Kernel>(dtype: DType) -> Result<CopyFn<u8, T>> {
    T::reader(dtype).ok_or_else(|| Error::unsupported(format!("matrix operands of dtype {dtype}")))
}

/// Copies one panel, by `transpose` where eight columns are contiguous each.
///
/// # Safety
/// `view` is readable; `dst` can take `view.k.len()` rows of the panel's width.
pub(crate) unsafe fn pack_panel<T: Kernel>(
    copy: CopyFn<u8, T>,
    transpose: Option<TransposeFn<T>>,
    view: &RhsView,
    matrix: usize,
    columns: &Columns,
    p: usize,
    dst: *mut T,
) {
    let size = view.dtype.size() as isize;
    let base = view
        .ptr
        .wrapping_offset(view.matrices.offset(matrix) * size);
    let (n0, width) = (p * columns.width, columns.width_of(p));
    let valid = width.min(columns.n - n0);
    let k = view.k.len();
    let at = |offset: isize| base.wrapping_offset(offset * size);
    // SAFETY: sources are elements of the view, destinations inside the panel.
    unsafe {
        if valid < width {
            std::ptr::write_bytes(dst, 0, k * width);
        }
        let (k_run, k_step) = view.k.inner();
        let (n_run, n_step) = view.cols.inner();
        if n_step.unsigned_abs() <= k_step.unsigned_abs() && n_run >= valid.min(4) {
            // Neighbours in memory are neighbours in the panel: copy along the row.
            let mut rows = view.k.walk(0);
            for i in 0..k {
                let row = rows.next();
                let mut j = 0;
                while j < valid {
                    let run = (n_run - (n0 + j) % n_run).min(valid - j);
                    let src = at(row + view.cols.offset(n0 + j));
                    copy(src, n_step, dst.add(i * width + j), 1, run);
                    j += run;
                }
            }
            return;
        }
        let transpose = transpose.filter(|_| view.dtype == T::DTYPE && k_step == 1 && k_run >= 8);
        // Down the columns, a stretch of rows at a time so that what is written stays in the first cache.
        const STRETCH: usize = 128;
        let mut i = 0;
        while i < k {
            let run = (k_run - i % k_run).min(STRETCH).min(k - i);
            let row = view.k.offset(i);
            let mut first = 0;
            if let (Some(transpose), Some(step)) = (transpose, view.cols.stride()) {
                first = valid - valid % 8;
                for j in (0..first).step_by(8) {
                    let src = at(row + view.cols.offset(n0 + j)).cast();
                    transpose(src, step, dst.add(i * width + j), width, run);
                }
            }
            let mut cols = view.cols.walk(n0 + first);
            for j in first..valid {
                let src = at(row + cols.next());
                copy(src, k_step, dst.add(i * width + j), width as isize, run);
            }
            i += run;
        }
    }
}
