//! Blocked GEMM: batched matrix products, also with several taps, which is what a convolution over NHWC images is.
//!
//! The textbook nest reads the right operand with a stride of a whole row and each sum from memory:
//!
//! ```text
//! for i in 0..m                            // rows
//!   for j in 0..n                          // columns
//!     for t in 0..taps, k in 0..k          // the sum
//!       c[i, j] += a[i, t, k] * b[t, k, j]
//! ```
//!
//! The blocked nest keeps sums in registers, a panel of the right operand in the first cache and a block of rows of the
//! left one in the second:
//!
//! ```text
//! for (rows, panels) in units              // shared among threads; see `blocking`
//!   for row_block in rows                  // sums of these rows are kept through all k blocks
//!     for k_block in sum                   // several taps, or a part of one
//!       pack panels of b for k_block       // unless packed at load; a panel at a time where it is used once
//!       for block of rows                  // its k block of a: 256 KiB
//!         copy or transpose a              // where rows are not contiguous or have another dtype
//!         for panel                        // 1 to 4 vectors across
//!           for tile of rows               // at most 12 rows; `kernels::gemm`, one call
//!             registers += a[tile, k_block] * panel
//!     epilogue or store of row_block
//! ```
//!
//! Full panels of results that are only stored go to memory from the registers ("direct store"). The others pass
//! through a buffer of sums, from which the epilogue takes them.

use super::blocking::{self, Blocking, KBlock, Problem};
use crate::Pool;
use crate::kernels::gemm::{GemmTiles, Kernels, Tile, TileFn};
use crate::kernels::prefetch::Prefetch;
use crate::kernels::tall::{self, TallTile, TallTiles};
use crate::kernels::with_element;
use crate::operand::scratch::{self, ALIGN, Owner};
use crate::operand::{
    Block, COLUMNS, Columns, GemmShape, Lhs, Output, Packable, PackedB, Packing, Rhs, RhsView,
    RowCopy, Shared, TransposeFn, part,
};
use inrush_base::tally::{Way, reached};
use inrush_base::{DType, Isa, Result};

/// The plan of a blocked GEMM: blocks for the caches and parts for the threads.
#[derive(Clone, Debug)]
pub(crate) struct Gemm {
    shape: GemmShape,
    isa: Isa,
    acc: DType,
    columns: Columns,
    k_blocks: Vec<KBlock>,
    blocking: Blocking,
}

impl Gemm {
    /// Plans a product that is summed in `acc` on `threads` threads. `packed`: the right operand is a [`PackedB`]. `copies`:
    /// rows of the left operand are copied before they are used.
    pub(crate) fn plan(
        shape: GemmShape,
        acc: DType,
        isa: Isa,
        threads: usize,
        packed: bool,
        copies: bool,
    ) -> Result<Gemm> {
        with_element!(acc, T => {
            let kernels = T::gemm(isa);
            let columns = Columns::choose(kernels, shape.n);
            let blocking = blocking::choose(&Problem {
                matrices: shape.batch * shape.groups,
                m: shape.m,
                k: shape.taps * shape.k,
                columns: &columns,
                lanes: kernels.lanes,
                bytes: size_of::<T>(),
                tile_rows: kernels.rows[columns.width.max(columns.last).max(1).div_ceil(kernels.lanes) - 1],
                threads,
                packs: !packed,
                copies,
            });
            let limit = blocking::longest(!packed, shape.m, columns.width) / size_of::<T>();
            let k_blocks = blocking::k_blocks(shape.taps, shape.k, limit);
            Gemm { shape, isa, acc, columns, k_blocks, blocking }
        })
    }

    /// Returns the sizes planned for.
    pub(crate) fn shape(&self) -> &GemmShape {
        &self.shape
    }

    /// Returns the panels that a packed right operand has.
    pub(crate) fn columns(&self) -> &Columns {
        &self.columns
    }

    /// Refuses a right operand that was packed for another product.
    pub(crate) fn check(&self, b: &PackedB) -> Result<()> {
        (self.shape).check_packed(b, self.isa, self.acc, &self.columns)
    }

    /// Computes the product.
    ///
    /// # Safety
    /// As [`crate::Plan::run`], for operands as planned for; a packed right operand was checked.
    pub(crate) unsafe fn run(&self, pool: &Pool, lhs: &Lhs, rhs: Rhs, out: &Output) -> Result<()> {
        // SAFETY: the caller's contract.
        with_element!(self.acc, T => unsafe { self.run_as::<T>(pool, lhs, rhs, out) })?
    }

    unsafe fn run_as<T: Packable + GemmTiles + TallTiles>(
        &self,
        pool: &Pool,
        lhs: &Lhs,
        rhs: Rhs,
        out: &Output,
    ) -> Result<()> {
        let s = &self.shape;
        let matrices = s.batch * s.groups;
        if matrices == 0 || s.m == 0 || s.n == 0 {
            return Ok(());
        }
        let copy_lhs = RowCopy::<T>::new(lhs.dtype, self.isa)?;
        let packing = match rhs {
            Rhs::Packed(_) => None,
            Rhs::View(v) => Some(Packing::new(v, self.isa)?),
        };
        let direct =
            lhs.dtype == T::DTYPE && (lhs.k_step == 1 || s.k == 1) && (s.k >= 4 || s.taps == 1);
        let rows_step = match rhs {
            Rhs::View(v) if v.dtype == T::DTYPE && v.cols.stride() == Some(1) => v.k.stride(),
            _ => None,
        };
        let job = Job {
            plan: self,
            rows_step: rows_step.and_then(|step| usize::try_from(step).ok()),
            kernels: T::gemm(self.isa),
            tall: T::tall(self.isa),
            lhs,
            copy_lhs: (!direct).then_some(copy_lhs),
            transpose_lhs: T::transpose(self.isa, lhs.dtype).filter(|_| lhs.k_step != 1),
            rhs,
            packing,
            out,
        };
        job.count();
        let job = Shared(&job);
        let units = matrices * self.blocking.row_parts * self.blocking.panel_parts;
        let body = |range: std::ops::Range<usize>| {
            // SAFETY: units are disjoint parts of the result; the caller vouches for the pointers.
            range.for_each(|unit| unsafe { job.get().unit(unit) })
        };
        let grain = if self.blocking.serial { units } else { 1 };
        pool.parallel_for(units, grain, &body)
    }
}

/// One call of a plan.
struct Job<'a, T: 'static> {
    plan: &'a Gemm,
    kernels: &'static Kernels<T>,
    /// Tiles for panels of one vector.
    tall: Option<&'static tall::Tiles<T>>,
    lhs: &'a Lhs<'a>,
    /// Set where rows cannot be read in place.
    copy_lhs: Option<RowCopy<T>>,
    /// The same, where rows are contiguous along `m`.
    transpose_lhs: Option<TransposeFn<T>>,
    rhs: Rhs<'a>,
    /// Set where the right operand is packed on the form.
    packing: Option<Packing<'a, T>>,
    /// Distance of its rows where tiles can pack it.
    rows_step: Option<usize>,
    out: &'a Output,
}

/// Where a block of sums goes.
struct Target<T> {
    m: (usize, usize),
    /// Returns the address of column 0 of the first row and distance of rows, for full panels that are stored as they are.
    direct_store: Option<(*mut T, usize)>,
    /// Column 0 of the first panel.
    sums: *mut T,
    ld: usize,
}

/// Rows of a block in place, or their copies.
struct Rows<T> {
    pointers: *const *const T,
    count: usize,
    run: Run,
}

/// Runs of rows at even distances, `step` elements; the first row is number `at` of its run.
#[derive(Clone, Copy)]
struct Run {
    at: usize,
    length: usize,
    step: isize,
}

/// One unit of work: some panels of one matrix for some rows, and its scratch memory.
struct Unit<T> {
    matrix: usize,
    panels: (usize, usize),
    /// Rows whose sums are held at a time, and rows of a block, whose left operand stays in the second cache.
    held_rows: usize,
    block_rows: usize,
    /// Every panel is used once, right after it was packed, in the same memory.
    transient: bool,
    pointers: *mut *const T,
    sums: *mut T,
    lhs: *mut T,
    rhs: *mut T,
}

impl<T: Packable> Job<'_, T> {
    /// Tallies what is special about this call.
    fn count(&self) {
        let (s, blocking) = (&self.plan.shape, &self.plan.blocking);
        let several = blocking.row_parts * blocking.panel_parts > 1 && !blocking.serial;
        let tall = self.tall.is_some() && self.plan.columns.panels() == 1 && !self.packs();
        for (way, taken) in [
            (Way::GemmPacked, !self.packs()),
            (Way::GemmPacking, self.packs()),
            (Way::GemmCopying, self.copy_lhs.is_some()),
            (
                Way::GemmTransposing,
                self.copy_lhs.is_some() && self.transpose_lhs.is_some(),
            ),
            (Way::GemmEven, tall),
            (Way::GemmTaps, s.taps > 1),
            (Way::GemmStretches, self.plan.k_blocks.len() > 1),
            (Way::GemmParts, several),
        ] {
            if taken {
                reached(way);
            }
        }
    }

    fn packs(&self) -> bool {
        self.packing.is_some()
    }

    /// # Safety
    /// As [`Gemm::run`]; `unit` is below the number of units, and each is run by one thread.
    unsafe fn unit(&self, unit: usize) {
        let (s, blocking) = (&self.plan.shape, &self.plan.blocking);
        let columns = &self.plan.columns;
        let (rest, row_part) = (unit / blocking.row_parts, unit % blocking.row_parts);
        let (matrix, panel_part) = (rest / blocking.panel_parts, rest % blocking.panel_parts);
        let rows = part(s.m, blocking.row_parts, row_part);
        let panels = part(columns.panels(), blocking.panel_parts, panel_part);
        if rows.0 == rows.1 || panels.0 == panels.1 {
            return;
        }
        let count = rows.1 - rows.0;
        // Where k_blocks are packed one after the other, all rows advance by one before the next is packed.
        let advance = self.packs() && self.plan.k_blocks.len() > 1;
        let limit = if advance {
            blocking.held_rows
        } else {
            blocking.block_rows
        };
        let row_blocks = count.div_ceil(limit);
        let held_rows = count.div_ceil(row_blocks);
        let block_rows = held_rows.div_ceil(held_rows.div_ceil(blocking.block_rows));
        let transient = self.packs() && held_rows == block_rows && (advance || row_blocks == 1);

        let longest = self.plan.k_blocks.iter().map(|s| s.taps * s.k).max();
        let longest = longest.unwrap_or(0);
        let padded = (panels.1 - panels.0) * columns.width;
        let mut end = 0;
        let mut take = |wanted: bool, bytes: usize| {
            let at = end;
            end += if wanted {
                bytes.next_multiple_of(ALIGN)
            } else {
                0
            };
            at
        };
        let size = size_of::<T>();
        let pointers = take(true, block_rows * size_of::<*const T>());
        let sums = take(true, held_rows * padded * size);
        let lhs = take(self.copy_lhs.is_some(), block_rows * longest * size);
        let packed = if transient { columns.width } else { padded };
        let rhs = take(self.packs(), longest * packed * size);
        scratch::with(Owner::Unit, end, |scratch| {
            // SAFETY: the parts do not overlap and are large enough for their users.
            unsafe {
                let unit = Unit {
                    matrix,
                    panels,
                    held_rows,
                    block_rows,
                    transient,
                    pointers: scratch.add(pointers).cast(),
                    sums: scratch.add(sums).cast(),
                    lhs: scratch.add(lhs).cast(),
                    rhs: scratch.add(rhs).cast(),
                };
                for h in 0..row_blocks {
                    let (m0, m1) = part(count, row_blocks, h);
                    let first = self.packs() && (advance || h == 0);
                    self.row_block(&unit, (rows.0 + m0, rows.0 + m1), first);
                }
            }
        });
    }

    /// Computes rows `m.0..m.1` of a unit, all of the sum; `pack`: its panels have yet to be packed.
    ///
    /// # Safety
    /// As [`Job::unit`].
    unsafe fn row_block(&self, unit: &Unit<T>, m: (usize, usize), pack: bool) {
        let (s, columns) = (&self.plan.shape, &self.plan.columns);
        let (rows, panels) = (m.1 - m.0, unit.panels);
        debug_assert!(rows <= unit.held_rows);
        let ld = (panels.1 - panels.0) * columns.width;
        // Full panels go direct_store to where results are stored, if nothing else is to be done with them.
        let direct_store = self.direct_store(unit.matrix, m.0);
        let blocks = rows.div_ceil(unit.block_rows);
        // SAFETY: see the steps; together with the contract they keep every access in its operand or part of scratch.
        unsafe {
            for i in 0..self.plan.k_blocks.len() {
                for b in 0..blocks {
                    let (m0, m1) = part(rows, blocks, b);
                    let to = Target {
                        m: (m.0 + m0, m.0 + m1),
                        direct_store: direct_store
                            .map(|(to, step)| (to.wrapping_add(m0 * step), step)),
                        sums: unit.sums.add(m0 * ld),
                        ld,
                    };
                    self.k_block(unit, i, &to, pack && b == 0);
                }
            }
            if self.plan.k_blocks.is_empty() {
                std::slice::from_raw_parts_mut(unit.sums, rows * ld).fill(T::default());
            }
            let done = if direct_store.is_some() && !self.plan.k_blocks.is_empty() {
                columns.full
            } else {
                0
            };
            let first = panels.0 * columns.width;
            let n = (
                first.max(done * columns.width),
                (panels.1 * columns.width).min(s.n),
            );
            if n.0 >= n.1 {
                return;
            }
            let group = unit.matrix % s.groups;
            self.out.put(&Block {
                acc: unit.sums.add((n.0 - first).min(ld)),
                ld,
                batch: unit.matrix / s.groups,
                m,
                n: (group * s.n + n.0, group * s.n + n.1),
            });
        }
    }

    /// Computes one k block of the sum for a block of rows.
    ///
    /// # Safety
    /// As [`Job::unit`].
    unsafe fn k_block(&self, unit: &Unit<T>, i: usize, to: &Target<T>, pack: bool) {
        let columns = &self.plan.columns;
        let k_block = &self.plan.k_blocks[i];
        let depth = k_block.taps * k_block.k;
        let (panels, rows) = (unit.panels, to.m.1 - to.m.0);
        // SAFETY: see [`Job::row_block`].
        unsafe {
            let size = self.lhs.dtype.size() as isize;
            let offset = self.lhs.matrices.offset(unit.matrix);
            let base = self.lhs.ptr.wrapping_offset(offset * size);
            let shifted = [self.lhs.taps[k_block.tap] + k_block.k0 as isize];
            let mut tile = Tile {
                rows: unit.pointers,
                taps: if k_block.k0 == 0 {
                    self.lhs.taps[k_block.tap..].as_ptr()
                } else {
                    shifted.as_ptr()
                },
                ntaps: k_block.taps,
                k: k_block.k,
                b: std::ptr::null(),
                ldb: 0,
                copy: std::ptr::null_mut(),
                c: to.sums,
                ldc: to.ld,
                accumulate: i > 0,
                prefetch: Prefetch::NONE,
                prefetch_lines: 0,
            };
            if let Some(copy) = self.copy_lhs {
                self.copy_rows(copy, base, to.m, k_block, unit.lhs, unit.pointers);
                tile.taps = NO_TAP.as_ptr();
                tile.ntaps = 1;
                tile.k = depth;
            } else {
                // Run by run: most products have too few sums for each row to hide a walk over all levels.
                let (length, step) = self.lhs.rows.inner();
                let mut i = 0;
                while i < rows {
                    let m = to.m.0 + i;
                    let near = (length - m % length).min(rows - i);
                    let first = base.wrapping_offset(self.lhs.rows.offset(m) * size);
                    for j in 0..near {
                        let row = first.wrapping_offset(j as isize * step * size);
                        *unit.pointers.add(i + j) = row.cast();
                    }
                    i += near;
                }
            }
            // Copies are at even distances; other rows are in runs.
            let run = match self.copy_lhs {
                Some(_) => Run {
                    at: 0,
                    length: rows,
                    step: depth as isize,
                },
                None => {
                    let (length, step) = self.lhs.rows.inner();
                    Run {
                        at: to.m.0 % length,
                        length,
                        step,
                    }
                }
            };
            let packing = self.packing.as_ref().filter(|_| pack);
            let k = (k_block.row, k_block.row + depth);
            if let Some(packing) = packing.filter(|_| !unit.transient) {
                packing.panels(unit.matrix, columns, panels, k, unit.rhs);
            }
            // The panel after `p`, and the first row of it that is read then.
            let next = |p: usize| {
                if p + 1 < panels.1 {
                    return Some((p + 1, k_block.row));
                }
                let after = self.plan.k_blocks.get(i + 1)?;
                Some((panels.0, after.row))
            };
            for p in panels.0..panels.1 {
                let width = columns.width_of(p);
                let nv = width / self.kernels.lanes;
                // Where the first tile finds the panel that it packs.
                let mut first = None;
                match self.rhs {
                    Rhs::Packed(b) => {
                        let matrix = self.packed_index(b, unit.matrix);
                        let panel = |p: usize| b.panel::<T>(matrix, p);
                        tile.b = panel(p).add(k_block.row * width);
                        tile.prefetch = next(p).map_or(Prefetch::NONE, |(p, row)| {
                            Prefetch::one(panel(p).add(row * columns.width_of(p)).cast())
                        });
                    }
                    Rhs::View(view) if unit.transient => {
                        tile.b = unit.rhs;
                        if let Some(packing) = packing {
                            first = self.unpacked(view, unit.matrix, p, k_block.row);
                            if first.is_none() {
                                packing.panels(unit.matrix, columns, (p, p + 1), k, unit.rhs);
                            }
                            tile.prefetch = next(p).map_or(Prefetch::NONE, |(p, row)| {
                                packing.prefetch(unit.matrix, columns, p, (row, row + depth))
                            });
                        }
                    }
                    Rhs::View(_) => {
                        tile.b = unit.rhs.add((p - panels.0) * columns.width * depth);
                    }
                }
                let at = match to.direct_store {
                    Some((at, step)) if p < columns.full => {
                        tile.ldc = step;
                        at.wrapping_add(p * columns.width)
                    }
                    _ => {
                        tile.ldc = to.ld;
                        to.sums.add((p - panels.0) * columns.width)
                    }
                };
                let rows = Rows {
                    pointers: unit.pointers,
                    count: rows,
                    run,
                };
                self.panel(&mut tile, &rows, nv, first, at);
            }
        }
    }

    /// Returns the address of column 0 of row `m` of a matrix's results and the distance of rows, where tiles may be written there.
    fn direct_store(&self, matrix: usize, m: usize) -> Option<(*mut T, usize)> {
        let Output::Store(view) = self.out else {
            return None;
        };
        let step = view.in_rows().filter(|_| view.dtype == T::DTYPE)?;
        let s = &self.plan.shape;
        let column = (matrix % s.groups * s.n) as isize;
        let at = view.batch.offset(matrix / s.groups) + view.rows.offset(m) + column;
        Some((view.ptr.cast::<T>().wrapping_offset(at), step))
    }

    /// Returns the address of row `row` of panel `p` in the operand and the distance of its rows, where a tile can pack it.
    fn unpacked(
        &self,
        view: &RhsView,
        matrix: usize,
        p: usize,
        row: usize,
    ) -> Option<(*const T, usize)> {
        let columns = &self.plan.columns;
        let nv = columns.width_of(p) / self.kernels.lanes;
        let step = self.rows_step?;
        if (p + 1) * columns.width > self.plan.shape.n || self.kernels.packing[nv - 1][0].is_none()
        {
            return None;
        }
        let at =
            view.matrices.offset(matrix) + view.k.offset(row) + view.cols.offset(p * columns.width);
        Some((view.ptr.cast::<T>().wrapping_offset(at), step))
    }

    fn packed_index(&self, b: &PackedB, matrix: usize) -> usize {
        if b.matrices() == self.plan.shape.groups {
            matrix % self.plan.shape.groups
        } else {
            matrix
        }
    }

    /// Multiplies all rows of a block with one k block of one panel.
    ///
    /// # Safety
    /// As [`TileFn`], for the rows.
    #[inline]
    unsafe fn panel(
        &self,
        tile: &mut Tile<T>,
        rows: &Rows<T>,
        nv: usize,
        packs: Option<(*const T, usize)>,
        sums: *mut T,
    ) {
        let Some(tall) = self.tall.filter(|_| nv == 1 && packs.is_none()) else {
            // SAFETY: the caller's contract.
            unsafe { self.tiles(tile, (0, rows.count), nv, packs, rows.pointers, sums) };
            return;
        };
        let mut row = 0;
        while row < rows.count {
            let run = &rows.run;
            let near = (run.length - (run.at + row) % run.length).min(rows.count - row);
            // SAFETY: the caller's contract; rows of a run are at even distances.
            unsafe {
                if let Some((height, f)) = tall.next(near) {
                    f(&TallTile {
                        row: *rows.pointers.add(row),
                        step: run.step,
                        taps: tile.taps,
                        ntaps: tile.ntaps,
                        k: tile.k,
                        b: tile.b,
                        c: sums.add(row * tile.ldc),
                        ldc: tile.ldc,
                        accumulate: tile.accumulate,
                    });
                    row += height;
                } else {
                    self.tiles(tile, (row, row + near), nv, None, rows.pointers, sums);
                    row += near;
                }
            }
        }
    }

    /// Multiplies some rows by tiles of nearly equal height: six and one would leave most of the multipliers idle in the second.
    ///
    /// # Safety
    /// As [`TileFn`], for these rows.
    #[inline]
    unsafe fn tiles(
        &self,
        tile: &mut Tile<T>,
        rows: (usize, usize),
        nv: usize,
        packs: Option<(*const T, usize)>,
        pointers: *const *const T,
        sums: *mut T,
    ) {
        let mut row = rows.0;
        let rows = rows.1 - rows.0;
        let parts = rows.div_ceil(self.kernels.rows[nv - 1]);
        let (low, more) = (rows / parts, rows % parts);
        let short: Option<TileFn<T>> = (low > 0).then(|| self.kernels.tile(nv, low));
        let tall: Option<TileFn<T>> = (more > 0).then(|| self.kernels.tile(nv, low + 1));
        // The next panel comes while this one is used: each tile asks for a part of it.
        let begin = tile.prefetch;
        let steps = tile.ntaps * (tile.k / 4);
        let bytes = tile.ntaps * tile.k * nv * self.kernels.lanes * size_of::<T>();
        let lines = bytes.div_ceil(Prefetch::LINE);
        let each = lines.div_ceil(parts * steps.max(1));
        for i in 0..parts {
            let (height, f) = if i < more {
                (low + 1, tall)
            } else {
                (low, short)
            };
            let asked = i * each * steps;
            tile.prefetch_lines = if asked < lines { each } else { 0 };
            tile.prefetch = begin.advanced(asked);
            // SAFETY: the caller's contract.
            unsafe {
                tile.rows = pointers.add(row);
                tile.c = sums.add(row * tile.ldc);
                if let Some((b, step)) = packs.filter(|_| i == 0) {
                    let packed = std::mem::replace(&mut tile.b, b);
                    (tile.ldb, tile.copy) = (step, packed.cast_mut());
                    if let Some(f) = self.kernels.packing[nv - 1][height - 1] {
                        f(tile);
                    }
                    tile.b = packed;
                } else if let Some(f) = f {
                    f(tile);
                }
            }
            row += height;
        }
    }

    /// Copies one k_block of rows to scratch, converted and with its products in order, and points at them.
    ///
    /// # Safety
    /// As [`Job::block`].
    unsafe fn copy_rows(
        &self,
        copy: RowCopy<T>,
        base: *const u8,
        m: (usize, usize),
        k_block: &KBlock,
        to: *mut T,
        pointers: *mut *const T,
    ) {
        let size = self.lhs.dtype.size() as isize;
        let ld = k_block.taps * k_block.k;
        let (rows, step) = (m.1 - m.0, self.lhs.k_step);
        // Eight products at a time of as many rows as are contiguous; the rest row by row.
        let (run, along) = self.lhs.rows.inner();
        let transpose = self.transpose_lhs.filter(|_| along == 1 && run >= COLUMNS);
        let eights = if transpose.is_some() {
            k_block.k - k_block.k % COLUMNS
        } else {
            0
        };
        // SAFETY: reads elements of the operand, writes `rows * ld` elements of scratch.
        unsafe {
            let at = |row: isize, tap: usize, k: usize| {
                let offset = row + self.lhs.taps[tap] + (k_block.k0 + k) as isize * step;
                base.wrapping_offset(offset * size)
            };
            if let Some(transpose) = transpose {
                // Some cache lines of the source at a time, which share its pages.
                const ROWS: usize = 64;
                let mut i = 0;
                while i < rows {
                    let some = ROWS.min(rows - i).min(run - (m.0 + i) % run);
                    let row = self.lhs.rows.offset(m.0 + i);
                    for t in 0..k_block.taps {
                        let dst = to.add(i * ld + t * k_block.k);
                        transpose(at(row, k_block.tap + t, 0), step, dst, ld, eights, some);
                    }
                    i += some;
                }
            }
            let mut walk = self.lhs.rows.walk(m.0);
            for i in 0..rows {
                let row = walk.next();
                *pointers.add(i) = to.add(i * ld);
                if eights == k_block.k {
                    continue;
                }
                for t in 0..k_block.taps {
                    let dst = to.add(i * ld + t * k_block.k + eights);
                    copy.run(
                        at(row, k_block.tap + t, eights),
                        step,
                        dst,
                        k_block.k - eights,
                    );
                }
            }
        }
    }
}

/// Rows that were copied have their taps side by side.
static NO_TAP: [isize; 1] = [0];
