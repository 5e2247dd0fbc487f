//! Batched matrix products with taps.

use crate::blocking::{self, Cut, Problem, STRETCH_BYTES, Stretch, part};
use crate::convert::CopyFn;
use crate::micro::{Kernel, Kernels, Tile, TileFn, with_element};
use crate::pack::{Columns, PackedB, RhsView, Shared, pack_panels, reader};
use crate::scratch::{self, ALIGN, Owner};
use crate::store::{Block, Output};
use crate::transpose::TransposeFn;
use crate::{Affine, Pool};
use inrush_base::{DType, Error, Isa, Result};

/// Sizes of `C[batch, m, group * n + j] = sum over taps t and k of A[batch, group, m, t, k] * B[batch, group, t, k, j]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GemmShape {
    pub batch: usize,
    /// Products that share their rows' results: each gives the next `n` columns.
    pub groups: usize,
    pub m: usize,
    /// Columns of one group.
    pub n: usize,
    pub taps: usize,
    /// Products of one tap.
    pub k: usize,
}

impl GemmShape {
    /// `batch` products of `m x k` with `k x n`.
    pub fn new(batch: usize, m: usize, k: usize, n: usize) -> GemmShape {
        GemmShape {
            batch,
            groups: 1,
            m,
            n,
            taps: 1,
            k,
        }
    }
}

/// A left operand where it lies: element `(matrix, m, t, k)` at
/// `matrices(matrix) + rows(m) + taps[t] + k * k_step` elements from `ptr`, where `matrix = batch * groups + group`.
#[derive(Clone, Copy)]
pub struct Lhs<'a> {
    pub ptr: *const u8,
    pub dtype: DType,
    pub matrices: Affine,
    pub rows: Affine,
    pub taps: &'a [isize],
    pub k_step: isize,
}

/// A right operand. Packed with one matrix a group, it serves every batch; else it holds `batch * groups` matrices.
#[derive(Clone, Copy)]
pub enum Rhs<'a> {
    Packed(&'a PackedB),
    View(&'a RhsView),
}

/// The plan of a product: cheap to make (microseconds), so that sizes may change between calls.
#[derive(Clone, Debug)]
pub struct Gemm {
    shape: GemmShape,
    isa: Isa,
    acc: DType,
    columns: Columns,
    stretches: Vec<Stretch>,
    cut: Cut,
}

impl Gemm {
    /// Plans a product that is summed in `acc` (f32, f64, i32 or i64) on `threads` threads. `packed`: the right operand
    /// will be a [`PackedB`], which the plan counts on but does not require.
    pub fn plan(
        shape: GemmShape,
        acc: DType,
        isa: Isa,
        threads: usize,
        packed: bool,
    ) -> Result<Gemm> {
        Self::plan_with(shape, acc, isa, threads, packed, false)
    }

    /// As [`Gemm::plan`], but every block handed to the epilogue spans all columns of a group, for epilogues that reduce
    /// along rows.
    pub fn plan_whole_rows(
        shape: GemmShape,
        acc: DType,
        isa: Isa,
        threads: usize,
        packed: bool,
    ) -> Result<Gemm> {
        Self::plan_with(shape, acc, isa, threads, packed, true)
    }

    fn plan_with(
        shape: GemmShape,
        acc: DType,
        isa: Isa,
        threads: usize,
        packed: bool,
        whole_rows: bool,
    ) -> Result<Gemm> {
        if !crate::available().contains(&isa) {
            return Err(Error::machine(format!(
                "this processor has no {}",
                isa.name()
            )));
        }
        with_element!(acc, T => {
            let kernels = T::kernels(isa);
            let columns = Columns::choose(kernels, shape.n);
            let cut = blocking::choose(&Problem {
                matrices: shape.batch * shape.groups,
                m: shape.m,
                k: shape.taps * shape.k,
                columns: &columns,
                lanes: kernels.lanes,
                bytes: size_of::<T>(),
                tile_rows: kernels.rows[columns.width.max(columns.last).max(1).div_ceil(kernels.lanes) - 1],
                threads,
                packs: !packed,
                whole_rows,
            });
            let limit = STRETCH_BYTES / size_of::<T>();
            let stretches = blocking::stretches(shape.taps, shape.k, limit);
            Gemm { shape, isa, acc, columns, stretches, cut }
        })
    }

    /// The sizes planned for.
    pub fn shape(&self) -> &GemmShape {
        &self.shape
    }

    /// Computes the product.
    ///
    /// # Safety
    /// Every element that `lhs`, `rhs` and `out` describe is valid for the length of the call; results overlap neither
    /// operand nor each other.
    pub unsafe fn run(&self, pool: &Pool, lhs: &Lhs, rhs: Rhs, out: &Output) -> Result<()> {
        // SAFETY: the caller's contract.
        with_element!(self.acc, T => unsafe { self.run_as::<T>(pool, lhs, rhs, out) })?
    }

    unsafe fn run_as<T: Kernel>(
        &self,
        pool: &Pool,
        lhs: &Lhs,
        rhs: Rhs,
        out: &Output,
    ) -> Result<()> {
        let s = &self.shape;
        let matrices = s.batch * s.groups;
        if (lhs.matrices.len(), lhs.rows.len(), lhs.taps.len()) != (matrices, s.m, s.taps) {
            return Err(Error::internal(format!(
                "a left operand of {} matrices, {} rows, {} taps in a product of {s:?}",
                lhs.matrices.len(),
                lhs.rows.len(),
                lhs.taps.len()
            )));
        }
        out.check::<T>(s.batch, s.m, s.groups * s.n)?;
        let copy_lhs = reader::<T>(lhs.dtype)?;
        let depth = s.taps * s.k;
        let copy_rhs = match rhs {
            Rhs::Packed(b) => {
                b.check(self.isa, self.acc, depth, &self.columns)?;
                if b.matrices() != s.groups && b.matrices() != matrices {
                    return Err(Error::internal(format!(
                        "{} packed matrices in a product of {s:?}",
                        b.matrices()
                    )));
                }
                None
            }
            Rhs::View(v) => {
                if (v.matrices.len(), v.k.len(), v.cols.len()) != (matrices, depth, s.n) {
                    return Err(Error::internal(format!(
                        "a right operand of {} x {} x {} in a product of {s:?}",
                        v.matrices.len(),
                        v.k.len(),
                        v.cols.len()
                    )));
                }
                Some(reader::<T>(v.dtype)?)
            }
        };
        if matrices == 0 || s.m == 0 || s.n == 0 {
            return Ok(());
        }
        let direct =
            lhs.dtype == T::DTYPE && (lhs.k_step == 1 || s.k == 1) && (s.k >= 4 || s.taps == 1);
        let job = Job {
            plan: self,
            kernels: T::kernels(self.isa),
            lhs,
            copy_lhs: (!direct).then_some(copy_lhs),
            rhs,
            copy_rhs,
            transpose: T::transpose(self.isa),
            out,
        };
        let job = Shared(&job);
        let units = matrices * self.cut.row_parts * self.cut.panel_parts;
        let body = |range: std::ops::Range<usize>| {
            // SAFETY: units are disjoint parts of the result; the caller vouches for the pointers.
            range.for_each(|unit| unsafe { job.get().unit(unit) })
        };
        let grain = if self.cut.serial { units } else { 1 };
        pool.parallel_for(units, grain, &body)
    }
}

/// One call of a plan.
struct Job<'a, T: 'static> {
    plan: &'a Gemm,
    kernels: &'static Kernels<T>,
    lhs: &'a Lhs<'a>,
    /// Set where rows cannot be read in place.
    copy_lhs: Option<CopyFn<u8, T>>,
    rhs: Rhs<'a>,
    copy_rhs: Option<CopyFn<u8, T>>,
    transpose: Option<TransposeFn<T>>,
    out: &'a Output,
}

/// Where the parts of a unit's scratch memory begin, in bytes.
struct ScratchMap {
    pointers: usize,
    sums: usize,
    lhs: usize,
    rhs: usize,
    end: usize,
}

impl<T: Kernel> Job<'_, T> {
    fn scratch_map(&self, block_rows: usize, panels: (usize, usize)) -> ScratchMap {
        let round = |bytes: usize| bytes.next_multiple_of(ALIGN);
        let plan = self.plan;
        let columns = (panels.1 - panels.0) * plan.columns.width;
        let pointers = 0;
        let sums = pointers + round(block_rows * size_of::<*const T>());
        let lhs = sums + round(block_rows * columns * size_of::<T>());
        let longest = plan
            .stretches
            .iter()
            .map(|s| s.taps * s.k)
            .max()
            .unwrap_or(0);
        let copied = if self.copy_lhs.is_some() {
            block_rows * longest
        } else {
            0
        };
        let rhs = lhs + round(copied * size_of::<T>());
        let packed = if self.copy_rhs.is_some() {
            plan.shape.taps * plan.shape.k * columns
        } else {
            0
        };
        ScratchMap {
            pointers,
            sums,
            lhs,
            rhs,
            end: rhs + round(packed * size_of::<T>()),
        }
    }

    /// # Safety
    /// As [`Gemm::run`]; `unit` is below the number of units, and each is run by one thread.
    unsafe fn unit(&self, unit: usize) {
        let (s, cut) = (&self.plan.shape, &self.plan.cut);
        let columns = &self.plan.columns;
        let (rest, row_part) = (unit / cut.row_parts, unit % cut.row_parts);
        let (matrix, panel_part) = (rest / cut.panel_parts, rest % cut.panel_parts);
        let rows = part(s.m, cut.row_parts, row_part);
        let panels = part(columns.panels(), cut.panel_parts, panel_part);
        if rows.0 == rows.1 || panels.0 == panels.1 {
            return;
        }
        let blocks = (rows.1 - rows.0).div_ceil(cut.block_rows);
        let block_rows = (rows.1 - rows.0).div_ceil(blocks);
        let map = self.scratch_map(block_rows, panels);
        scratch::with(Owner::Unit, map.end, |scratch| {
            // SAFETY: the parts of the map do not overlap and are large enough for their users.
            unsafe {
                let packed = scratch.add(map.rhs).cast::<T>();
                if let (Some(copy), Rhs::View(view)) = (self.copy_rhs, self.rhs) {
                    pack_panels(copy, self.transpose, view, matrix, columns, panels, packed);
                }
                for b in 0..blocks {
                    let (m0, m1) = part(rows.1 - rows.0, blocks, b);
                    let m = (rows.0 + m0, rows.0 + m1);
                    self.block(scratch, &map, packed, matrix, m, panels);
                }
            }
        });
    }

    /// # Safety
    /// As [`Job::unit`]; `scratch` follows `map`; `packed` holds the panels where the operand is not packed already.
    unsafe fn block(
        &self,
        scratch: *mut u8,
        map: &ScratchMap,
        packed: *const T,
        matrix: usize,
        m: (usize, usize),
        panels: (usize, usize),
    ) {
        let (s, columns) = (&self.plan.shape, &self.plan.columns);
        let depth = s.taps * s.k;
        let rows = m.1 - m.0;
        let ld = (panels.1 - panels.0) * columns.width;
        let n = (
            panels.0 * columns.width,
            (panels.1 * columns.width).min(s.n),
        );
        // SAFETY: see the steps; together with the contract they keep every access in its operand or part of scratch.
        unsafe {
            let pointers = scratch.add(map.pointers).cast::<*const T>();
            let sums = scratch.add(map.sums).cast::<T>();
            let size = self.lhs.dtype.size() as isize;
            let base = self
                .lhs
                .ptr
                .wrapping_offset(self.lhs.matrices.offset(matrix) * size);
            if self.copy_lhs.is_none() {
                let mut walk = self.lhs.rows.walk(m.0);
                for i in 0..rows {
                    *pointers.add(i) = base.wrapping_offset(walk.next() * size).cast();
                }
            }
            // Full panels go straight to where results are stored, if nothing else is to be done with them.
            let straight = self.straight(matrix, m.0);
            for (i, stretch) in self.plan.stretches.iter().enumerate() {
                let shifted = [self.lhs.taps[stretch.tap] + stretch.k0 as isize];
                let mut tile = Tile {
                    rows: pointers,
                    taps: if stretch.k0 == 0 {
                        self.lhs.taps[stretch.tap..].as_ptr()
                    } else {
                        shifted.as_ptr()
                    },
                    ntaps: stretch.taps,
                    k: stretch.k,
                    b: packed,
                    c: sums,
                    ldc: ld,
                    accumulate: i > 0,
                    ahead: std::ptr::null(),
                    ahead_lines: 0,
                };
                if let Some(copy) = self.copy_lhs {
                    let copied = scratch.add(map.lhs).cast::<T>();
                    self.copy_rows(copy, base, m, stretch, copied, pointers);
                    tile.taps = NO_TAP.as_ptr();
                    tile.ntaps = 1;
                    tile.k = stretch.taps * stretch.k;
                }
                let panel = |p: usize| match self.rhs {
                    Rhs::Packed(b) => b.panel::<T>(self.packed_index(b, matrix), p),
                    Rhs::View(_) => packed.add((p - panels.0) * columns.width * depth),
                };
                for p in panels.0..panels.1 {
                    let width = columns.width_of(p);
                    tile.b = panel(p).add(stretch.row * width);
                    if p + 1 < panels.1 {
                        tile.ahead = panel(p + 1)
                            .add(stretch.row * columns.width_of(p + 1))
                            .cast();
                    } else if let Some(next) = self.plan.stretches.get(i + 1) {
                        tile.ahead = panel(panels.0)
                            .add(next.row * columns.width_of(panels.0))
                            .cast();
                    }
                    let to = match &straight {
                        Some((to, step)) if p < columns.full => {
                            tile.ldc = *step;
                            to.wrapping_add(p * columns.width)
                        }
                        _ => {
                            tile.ldc = ld;
                            sums.add((p - panels.0) * columns.width)
                        }
                    };
                    self.panel(&mut tile, rows, width / self.kernels.lanes, pointers, to);
                }
            }
            if self.plan.stretches.is_empty() {
                std::slice::from_raw_parts_mut(sums, rows * ld).fill(T::default());
            }
            let done = if straight.is_some() && !self.plan.stretches.is_empty() {
                columns.full
            } else {
                0
            };
            let n = (n.0.max(done * columns.width), n.1);
            if n.0 >= n.1 {
                return;
            }
            let group = matrix % s.groups;
            let sums = sums.add((n.0 - panels.0 * columns.width).min(ld));
            self.out.put(&Block {
                acc: sums,
                ld,
                batch: matrix / s.groups,
                m,
                n: (group * s.n + n.0, group * s.n + n.1),
            });
        }
    }

    /// Address of column 0 of row `m` of a matrix's results and the distance of rows, where tiles may be written there.
    fn straight(&self, matrix: usize, m: usize) -> Option<(*mut T, usize)> {
        let Output::Store(view) = self.out else {
            return None;
        };
        let (Some(step), Some(1)) = (view.rows.stride(), view.cols.stride()) else {
            return None;
        };
        let s = &self.plan.shape;
        if view.dtype != T::DTYPE || step < 0 {
            return None;
        }
        let column = (matrix % s.groups * s.n) as isize;
        let at = view.batch.offset(matrix / s.groups) + view.rows.offset(m) + column;
        Some((view.ptr.cast::<T>().wrapping_offset(at), step as usize))
    }

    fn packed_index(&self, b: &PackedB, matrix: usize) -> usize {
        if b.matrices() == self.plan.shape.groups {
            matrix % self.plan.shape.groups
        } else {
            matrix
        }
    }

    /// All rows of a block against one stretch of one panel, in tiles of nearly equal height: six and one would leave
    /// most of the multipliers idle in the second.
    ///
    /// # Safety
    /// As [`TileFn`], for `rows` rows.
    #[inline]
    unsafe fn panel(
        &self,
        tile: &mut Tile<T>,
        rows: usize,
        nv: usize,
        pointers: *const *const T,
        sums: *mut T,
    ) {
        let parts = rows.div_ceil(self.kernels.rows[nv - 1]);
        let (low, more) = (rows / parts, rows % parts);
        let short: Option<TileFn<T>> = (low > 0).then(|| self.kernels.tile(nv, low));
        let tall: Option<TileFn<T>> = (more > 0).then(|| self.kernels.tile(nv, low + 1));
        // The next panel comes while this one is used: each tile asks for a part of it.
        let begin = tile.ahead;
        let steps = tile.ntaps * (tile.k / 4);
        let lines = (tile.ntaps * tile.k * nv * self.kernels.lanes * size_of::<T>()).div_ceil(64);
        let each = lines.div_ceil(parts * steps.max(1));
        let mut row = 0;
        for i in 0..parts {
            let (height, f) = if i < more {
                (low + 1, tall)
            } else {
                (low, short)
            };
            let asked = i * each * steps;
            tile.ahead_lines = if asked < lines { each } else { 0 };
            tile.ahead = begin.wrapping_add(asked * 64);
            // SAFETY: the caller's contract.
            unsafe {
                tile.rows = pointers.add(row);
                tile.c = sums.add(row * tile.ldc);
                if let Some(f) = f {
                    f(tile);
                }
            }
            row += height;
        }
    }

    /// Copies one stretch of rows to scratch, converted and with its products in order, and points at them.
    ///
    /// # Safety
    /// As [`Job::block`].
    unsafe fn copy_rows(
        &self,
        copy: CopyFn<u8, T>,
        base: *const u8,
        m: (usize, usize),
        stretch: &Stretch,
        to: *mut T,
        pointers: *mut *const T,
    ) {
        let size = self.lhs.dtype.size() as isize;
        let ld = stretch.taps * stretch.k;
        let step = self.lhs.k_step;
        let mut walk = self.lhs.rows.walk(m.0);
        // SAFETY: reads elements of the operand, writes `rows * ld` elements of scratch.
        unsafe {
            for i in 0..m.1 - m.0 {
                let row = walk.next();
                for t in 0..stretch.taps {
                    let tap = self.lhs.taps[stretch.tap + t];
                    let from =
                        base.wrapping_offset((row + tap + stretch.k0 as isize * step) * size);
                    copy(from, step, to.add(i * ld + t * stretch.k), 1, stretch.k);
                }
                *pointers.add(i) = to.add(i * ld);
            }
        }
    }
}

/// Rows that were copied have their taps side by side.
static NO_TAP: [isize; 1] = [0];
