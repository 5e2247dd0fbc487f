//! Packing: a right operand in the order in which tiles read it, as panels of a few vectors across, each `[k][width]`.

use super::{
    Affine, Bytes, COLUMNS, Columns, CopyFn, Packable, RhsView, Shared, TransposeFn, reader,
};
use crate::Pool;
use crate::kernels::gemm::GemmTiles;
use crate::kernels::pack::{PackLoop, PackRows};
use crate::kernels::prefetch::Prefetch;
use crate::kernels::with_element;
use inrush_base::{DType, Error, Isa, Result};

/// Right operands laid out once, for example a layer's weights at load.
pub struct PackedB {
    isa: Isa,
    dtype: DType,
    matrices: usize,
    k: usize,
    columns: Columns,
    data: Memory,
}

/// The memory of packed operands.
enum Memory {
    Own(Bytes),
    /// Of an owner that keeps it: see [`PackedB::lent`].
    Lent {
        ptr: *const u8,
    },
}

// SAFETY: lent memory is only read.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

/// How a right operand is packed: its maps, and how its columns are cut into panels.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct RhsPanels {
    /// Type of the elements, in memory as in the panels.
    pub dtype: DType,
    pub matrices: Affine,
    pub k: Affine,
    pub cols: Affine,
    /// Columns of a panel, and of a narrower last one, padding included; 0 if there is none.
    pub width: usize,
    pub last: usize,
}

impl RhsPanels {
    /// Returns how an operand is packed for products of `dtype`.
    pub(crate) fn of(
        isa: Isa,
        dtype: DType,
        (matrices, k, cols): (Affine, Affine, Affine),
    ) -> Result<RhsPanels> {
        let columns = with_element!(dtype, T => Columns::choose(T::gemm(isa), cols.len()))?;
        Ok(RhsPanels {
            dtype,
            matrices,
            k,
            cols,
            width: columns.width,
            last: columns.last,
        })
    }
}

impl PackedB {
    /// Takes an operand that is packed already, in `len` bytes at `ptr`.
    ///
    /// # Errors
    /// An internal error for panels of another level, or another number of bytes.
    ///
    /// # Safety
    /// The memory is aligned to its elements, readable while this lives, and nothing writes it.
    pub(crate) unsafe fn lent(
        isa: Isa,
        panels: &RhsPanels,
        ptr: *const u8,
        len: usize,
    ) -> Result<PackedB> {
        let (n, k, matrices) = (panels.cols.len(), panels.k.len(), panels.matrices.len());
        let columns = with_element!(panels.dtype, T => Columns::choose(T::gemm(isa), n))?;
        let bytes = (columns.padded().checked_mul(k))
            .and_then(|x| x.checked_mul(matrices))
            .and_then(|x| x.checked_mul(panels.dtype.size()));
        if bytes != Some(len) || (columns.width, columns.last) != (panels.width, panels.last) {
            return Err(Error::internal(format!(
                "{len} bytes are not the panels of {matrices} x {k} x {n}"
            )));
        }
        Ok(PackedB {
            isa,
            dtype: panels.dtype,
            matrices,
            k,
            columns,
            data: Memory::Lent { ptr },
        })
    }

    /// Packs every matrix of `view`, converted to `dtype` (the type in which products are summed).
    ///
    /// # Safety
    /// Every element that `view` describes is readable for the length of the call.
    pub unsafe fn pack(pool: &Pool, isa: Isa, dtype: DType, view: &RhsView) -> Result<PackedB> {
        // SAFETY: the caller's contract.
        with_element!(dtype, T => unsafe { Self::pack_as::<T>(pool, isa, view) })?
    }

    /// Allocates room for `matrices` operands of `k x n`, of unspecified contents.
    pub(crate) fn room<T: GemmTiles>(
        isa: Isa,
        matrices: usize,
        k: usize,
        n: usize,
    ) -> Result<PackedB> {
        let columns = Columns::choose(T::gemm(isa), n);
        let data = columns
            .padded()
            .checked_mul(k)
            .and_then(|x| x.checked_mul(matrices))
            .and_then(|x| x.checked_mul(size_of::<T>()))
            .and_then(Bytes::new)
            .ok_or_else(|| {
                Error::machine(format!(
                    "no memory for a packed matrix of {matrices} x {k} x {n}"
                ))
            })?;
        Ok(PackedB {
            isa,
            dtype: T::DTYPE,
            matrices,
            k,
            columns,
            data: Memory::Own(data),
        })
    }

    /// Returns how columns are cut into panels.
    pub(crate) fn columns(&self) -> &Columns {
        &self.columns
    }

    unsafe fn pack_as<T: Packable + GemmTiles>(
        pool: &Pool,
        isa: Isa,
        view: &RhsView,
    ) -> Result<PackedB> {
        let (matrices, k) = (view.matrices.len(), view.k.len());
        let packed = Self::room::<T>(isa, matrices, k, view.cols.len())?;
        let columns = packed.columns;
        // Several panels a unit: a row of one of them is a single cache line of the source.
        let panels = columns.panels();
        let some = panels.div_ceil(4 * pool.threads()).clamp(1, 64);
        let groups = panels.div_ceil(some);
        let packing = Packing::<T>::new(view, isa)?;
        let (from, to) = (Shared(&packing), Shared(&packed));
        pool.parallel_for(matrices * groups, 1, &|units| {
            for unit in units {
                let (matrix, first) = (unit / groups, unit % groups * some);
                let p = (first, (first + some).min(panels));
                // SAFETY: each unit writes its own panels; the caller vouches for the source.
                unsafe {
                    let to = to.get();
                    let dst = to.panel::<T>(matrix, first).cast_mut();
                    from.get().panels(matrix, &to.columns, p, (0, k), dst);
                }
            }
        })?;
        if let Memory::Own(data) = &packed.data {
            data.inspect("the engine", &"a packed right operand");
        }
        Ok(packed)
    }

    /// Returns bytes held; none of a lent operand.
    pub fn bytes(&self) -> usize {
        match &self.data {
            Memory::Own(data) => data.len(),
            Memory::Lent { .. } => 0,
        }
    }

    /// Returns the number of matrices.
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

    /// Returns panel `p` of a matrix: `k` rows of `columns.width_of(p)` elements.
    pub(crate) fn panel<T>(&self, matrix: usize, p: usize) -> *const T {
        let elements = (matrix * self.columns.padded() + p * self.columns.width) * self.k;
        let data = match &self.data {
            Memory::Own(data) => data.ptr().cast_const(),
            Memory::Lent { ptr, .. } => *ptr,
        };
        data.cast::<T>().wrapping_add(elements)
    }
}

/// How a view is packed.
pub(crate) struct Packing<'a, T: 'static> {
    view: &'a RhsView,
    copy: CopyFn<u8, T>,
    transpose: Option<TransposeFn<T>>,
    pack: Option<&'static PackLoop<T>>,
}

impl<'a, T: Packable> Packing<'a, T> {
    pub(crate) fn new(view: &'a RhsView, isa: Isa) -> Result<Self> {
        Ok(Packing {
            view,
            copy: reader::<T>(view.dtype)?,
            transpose: T::transpose(isa, view.dtype),
            pack: T::pack(isa, view.dtype),
        })
    }

    /// Returns where rows `k.0..k.1` of panel `p` are; nothing where they are no runs of memory.
    pub(crate) fn prefetch(
        &self,
        matrix: usize,
        columns: &Columns,
        p: usize,
        k: (usize, usize),
    ) -> Prefetch {
        let (Some(down), Some(across)) = (self.view.k.stride(), self.view.cols.stride()) else {
            return Prefetch::NONE;
        };
        let size = self.view.dtype.size();
        let n = columns.of(p);
        let first = self.view.matrices.offset(matrix)
            + self.view.k.offset(k.0)
            + self.view.cols.offset(n.0);
        let at = self.view.ptr.wrapping_offset(first * size as isize);
        let runs = |n: usize, step: isize| Prefetch::runs(at, n * size, step * size as isize);
        match (down, across) {
            (_, 1) => runs(n.1 - n.0, down),
            (1, _) => runs(k.1 - k.0, across),
            _ => Prefetch::NONE,
        }
    }

    /// Returns true if rows are copied through all panels at once, rather than panel by panel.
    fn by_rows(&self) -> bool {
        let (n_run, n_step) = self.view.cols.inner();
        n_step.unsigned_abs() <= self.view.k.inner().1.unsigned_abs()
            && n_run >= self.view.cols.len().min(4)
    }

    /// Copies rows `k.0..k.1` of panels `p.0..p.1`, one panel after the other; by `transpose` where eight columns are
    /// contiguous each.
    ///
    /// # Safety
    /// The view is readable; `dst` can take that many rows of each panel's width.
    pub(crate) unsafe fn panels(
        &self,
        matrix: usize,
        columns: &Columns,
        p: (usize, usize),
        k: (usize, usize),
        dst: *mut T,
    ) {
        let view = self.view;
        let size = view.dtype.size() as isize;
        let base = view
            .ptr
            .wrapping_offset(view.matrices.offset(matrix) * size);
        let from = Source {
            view,
            base,
            copy: self.copy,
        };
        let depth = k.1 - k.0;
        // SAFETY: destinations are inside the panels, sources elements of the view.
        unsafe {
            if columns.last > 0 && p.1 > columns.full {
                let last = dst.add((columns.full - p.0) * columns.width * depth);
                std::ptr::write_bytes(last, 0, depth * columns.last);
            }
            let mut p = p;
            let mut dst = dst;
            if let (Some(pack), Some(step), Some(1)) =
                (self.pack, view.k.stride(), view.cols.stride())
                && p.0 < columns.full
            {
                // Whole panels of plain rows.
                let whole = p.1.min(columns.full) - p.0;
                (pack.run)(&PackRows {
                    src: from.at(view.k.offset(k.0) + (p.0 * columns.width) as isize),
                    step,
                    rows: depth,
                    nv: columns.width / pack.lanes,
                    panels: whole,
                    dst,
                    panel_step: columns.width * depth,
                });
                p.0 += whole;
                dst = dst.add(whole * columns.width * depth);
            }
            if self.by_rows() {
                // A few rows at a time through all panels: as many streams of the source as prefetchers follow, and
                // k_blocks of each panel long enough to be written as one.
                const ROWS: usize = 8;
                for i in (0..depth).step_by(ROWS) {
                    for q in p.0..p.1 {
                        let width = columns.width_of(q);
                        let to = dst.add((q - p.0) * columns.width * depth);
                        let mut rows = view.k.walk(k.0 + i);
                        for i in i..(i + ROWS).min(depth) {
                            from.row(rows.next(), columns.of(q), to.add(i * width));
                        }
                    }
                }
            } else {
                for q in p.0..p.1 {
                    let to = dst.add((q - p.0) * columns.width * depth);
                    from.columns(columns.of(q), k, columns.width_of(q), self.transpose, to);
                }
            }
        }
    }
}

/// One matrix of a view.
struct Source<'a, T> {
    view: &'a RhsView,
    base: *const u8,
    copy: CopyFn<u8, T>,
}

impl<T: Packable> Source<'_, T> {
    fn at(&self, offset: isize) -> *const u8 {
        self.base
            .wrapping_offset(offset * self.view.dtype.size() as isize)
    }

    /// Copies columns `n.0..n.1` of the row at offset `row`: neighbours in memory become neighbours in the panel.
    unsafe fn row(&self, row: isize, n: (usize, usize), to: *mut T) {
        let (run, step) = self.view.cols.inner();
        if run == self.view.cols.len() {
            // SAFETY: the caller's contract.
            unsafe { (self.copy)(self.at(row + n.0 as isize * step), step, to, 1, n.1 - n.0) };
            return;
        }
        let mut j = n.0;
        while j < n.1 {
            let some = (run - j % run).min(n.1 - j);
            // SAFETY: the caller's contract.
            unsafe {
                let from = self.at(row + self.view.cols.offset(j));
                (self.copy)(from, step, to.add(j - n.0), 1, some);
            }
            j += some;
        }
    }

    /// Copies columns `n.0..n.1`, a block of rows at a time so that what is written stays in the first cache.
    unsafe fn columns(
        &self,
        n: (usize, usize),
        k: (usize, usize),
        width: usize,
        transpose: Option<TransposeFn<T>>,
        to: *mut T,
    ) {
        const K_BLOCK: usize = 128;
        let view = self.view;
        let (k_run, k_step) = view.k.inner();
        let transpose = transpose.filter(|_| k_step == 1 && k_run >= 8);
        let valid = n.1 - n.0;
        let (mut at, mut to) = (k.0, to);
        while at < k.1 {
            let run = (k_run - at % k_run).min(K_BLOCK).min(k.1 - at);
            let row = view.k.offset(at);
            let mut first = 0;
            // SAFETY: the caller's contract.
            unsafe {
                if let (Some(transpose), Some(step)) = (transpose, view.cols.stride()) {
                    first = valid - valid % COLUMNS;
                    let from = self.at(row + view.cols.offset(n.0));
                    transpose(from, step, to, width, first, run);
                }
                let mut cols = view.cols.walk(n.0 + first);
                for j in first..valid {
                    let from = self.at(row + cols.next());
                    (self.copy)(from, k_step, to.add(j), width as isize, run);
                }
            }
            at += run;
            to = to.wrapping_add(run * width);
        }
    }
}
