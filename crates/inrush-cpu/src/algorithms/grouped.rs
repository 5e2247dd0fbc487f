//! Grouped GEMM: groups of few columns, as grouped convolutions of NHWC images have. One group would leave most lanes
//! of a vector idle, so a vector holds the columns of as many groups as fit.
//!
//! ```text
//! before: for group                          after: for vector of groups
//!           for pixel                                 for pixels                  // up to 16 sums in registers
//!             for k                                     v = channels of all groups of the vector
//!               c[pixel, group] += ..                   for k
//!                                                         c[pixel] += permute(v, at[k]) * w[k]
//! ```
//!
//! The permutation gives each lane the channel of its own group. No product between groups is computed, not even with
//! zeros: an infinity in one group must not become a NaN in another.

use crate::Pool;
use crate::kernels::grouped::{GroupedTiles, Tile, Tiles};
use crate::kernels::with_element;
use crate::operand::scratch::{self, ALIGN, Owner};
use crate::operand::{
    Block, GemmShape, Lhs, Output, Packable, Rhs, RowCopy, Shared, StoreView, part,
};
use inrush_base::tally::{Way, reached};
use inrush_base::{DType, Error, Isa, Result};

/// Rows of a unit of work.
const ROWS: usize = 256;
/// Cycles; below this a dispatch costs more than it gives.
const SERIAL: usize = 8000;

/// Returns how many groups share a vector of so many lanes; `None` where they do not fill whole vectors.
pub(crate) fn groups_per_vector(s: &GemmShape, lanes: usize) -> Option<usize> {
    let matrices = s.batch * s.groups;
    let fits = s.n > 0 && 2 * s.n <= lanes && lanes.is_multiple_of(s.n);
    let per_vector = lanes.checked_div(s.n)?;
    let alone = s.batch == 1 || s.groups == 1;
    (fits && alone && matrices > 0 && matrices.is_multiple_of(per_vector)).then_some(per_vector)
}

/// The plan of a grouped product.
#[derive(Clone, Debug)]
pub(crate) struct Grouped {
    shape: GemmShape,
    acc: DType,
    isa: Isa,
    lanes: usize,
    per_vector: usize,
    /// Vectors that cover the columns of all groups.
    vectors: usize,
    /// Elements between the groups of a row, and elements from the first to the last that a row has at each tap.
    between: usize,
    extent: usize,
}

/// One call of a plan; all of its units share this.
struct Call<'a, T: 'static> {
    plan: &'a Grouped,
    tiles: &'static Tiles<T>,
    lhs: &'a Lhs<'a>,
    /// Permutations and weights of every vector.
    at: *const u32,
    weights: *const T,
    out: &'a Output,
    row_parts: usize,
    vector_parts: usize,
}

impl Grouped {
    /// Plans a product whose groups fill whole vectors; `None` where they do not, or the level cannot permute vectors.
    pub(crate) fn plan(
        shape: &GemmShape,
        lhs: &Lhs,
        acc: DType,
        isa: Isa,
    ) -> Result<Option<Grouped>> {
        let lanes = with_element!(acc, T => T::grouped(isa).map(|t| t.lanes))?;
        Ok(lanes.and_then(|lanes| Self::of_lanes(shape, lhs, acc, isa, lanes)))
    }

    fn of_lanes(
        shape: &GemmShape,
        lhs: &Lhs,
        acc: DType,
        isa: Isa,
        lanes: usize,
    ) -> Option<Grouped> {
        let s = *shape;
        let per_vector = groups_per_vector(&s, lanes)?;
        if lhs.dtype != acc || s.k == 0 || s.taps == 0 || lhs.k_step != 1 && s.k > 1 {
            return None;
        }
        let between = usize::try_from(lhs.matrices.stride()?).ok()?;
        // A vector holds what all of its groups read, and ends where the last group does at the latest.
        let span = |groups: usize| (groups - 1).checked_mul(between)?.checked_add(s.k);
        let matrices = s.batch * s.groups;
        let extent = span(matrices)?;
        if between == 0 || span(per_vector)? > lanes || extent < lanes {
            return None;
        }
        Some(Grouped {
            shape: s,
            acc,
            isa,
            lanes,
            per_vector,
            vectors: matrices / per_vector,
            between,
            extent,
        })
    }

    /// Returns where in a row vector `v` is loaded from, and how far after that its first group begins.
    fn first(&self, v: usize) -> (usize, usize) {
        let at = v * self.per_vector * self.between;
        let from = at.min(self.extent - self.lanes);
        (from, at - from)
    }

    /// # Safety
    /// As [`crate::Plan::run`], for operands as planned for.
    pub(crate) unsafe fn run(&self, pool: &Pool, lhs: &Lhs, rhs: Rhs, out: &Output) -> Result<()> {
        reached(Way::Grouped);
        // SAFETY: the caller's contract.
        with_element!(self.acc, T => unsafe { self.run_as::<T>(pool, lhs, rhs, out) })?
    }

    unsafe fn run_as<T: Packable + GroupedTiles>(
        &self,
        pool: &Pool,
        lhs: &Lhs,
        rhs: Rhs,
        out: &Output,
    ) -> Result<()> {
        let s = &self.shape;
        let tiles = T::grouped(self.isa).ok_or_else(|| Error::internal("a plan without tiles"))?;
        let (lanes, depth) = (self.lanes, s.taps * s.k);
        let copy = match rhs {
            Rhs::View(view) => Some(RowCopy::<T>::new(view.dtype, self.isa)?),
            Rhs::Packed(_) => None,
        };
        let weights = (self.vectors * depth * lanes * size_of::<T>()).next_multiple_of(ALIGN);
        let bytes = weights + self.vectors * s.k * lanes * size_of::<u32>();
        scratch::with(Owner::Call, bytes, |memory| {
            let (weights, at) = (
                memory.cast::<T>(),
                memory.wrapping_add(weights).cast::<u32>(),
            );
            // SAFETY: both parts are as large as this writes; the caller vouches for the operand.
            unsafe {
                self.permutations(at);
                self.weights(rhs, copy, weights);
            }
            let row_parts = s.m.div_ceil(ROWS);
            let vector_parts = match pool.threads() {
                1 => 1,
                threads => (4 * threads).div_ceil(row_parts).min(self.vectors),
            };
            let units = row_parts * vector_parts;
            let cycles = s.m.saturating_mul(self.vectors * depth);
            let call = Call {
                plan: self,
                tiles,
                lhs,
                at,
                weights,
                out,
                row_parts,
                vector_parts,
            };
            let call = Shared(&call);
            let grain = if cycles < SERIAL { units } else { 1 };
            pool.parallel_for(units, grain, &|range| {
                // SAFETY: units are disjoint parts of the result; the caller vouches for the pointers.
                range.for_each(|unit| unsafe { call.get().unit(unit) });
            })
        })
    }

    /// Writes the permutations: for each product, the lane that each lane's factor comes from.
    ///
    /// # Safety
    /// `to` can take a vector for each product of a tap and each vector of columns.
    unsafe fn permutations(&self, to: *mut u32) {
        let (lanes, k, n) = (self.lanes, self.shape.k, self.shape.n);
        for v in 0..self.vectors {
            let (_, shift) = self.first(v);
            for i in 0..k * lanes {
                let group = i % lanes / n;
                let lane = shift + group * self.between + i / lanes;
                // SAFETY: the caller's contract.
                unsafe { *to.add(v * k * lanes + i) = lane as u32 };
            }
        }
    }

    /// Copies the right operand as vectors of the columns of several groups, product by product.
    ///
    /// # Safety
    /// `to` can take it, and it is readable.
    unsafe fn weights<T: Packable>(&self, rhs: Rhs, copy: Option<RowCopy<T>>, to: *mut T) {
        let s = &self.shape;
        let (lanes, depth) = (self.lanes, s.taps * s.k);
        for matrix in 0..s.batch * s.groups {
            let (v, group) = (matrix / self.per_vector, matrix % self.per_vector);
            let to = to.wrapping_add(v * depth * lanes + group * s.n);
            // SAFETY: elements of the operand; the caller's contract.
            unsafe {
                match (rhs, copy) {
                    (Rhs::View(view), Some(copy)) => {
                        let mut k = view.k.walk(0);
                        let matrix = view.matrices.offset(matrix);
                        // Few columns are one level, or few elements.
                        match view.cols.stride() {
                            Some(step) => (0..depth).for_each(|i| {
                                let from = copy.place(view.ptr, matrix + k.next());
                                copy.run(from, step, to.add(i * lanes), s.n);
                            }),
                            None => (0..depth).for_each(|i| {
                                let row = matrix + k.next();
                                for j in 0..s.n {
                                    let from = copy.place(view.ptr, row + view.cols.offset(j));
                                    copy.run(from, 1, to.add(i * lanes + j), 1);
                                }
                            }),
                        }
                    }
                    (Rhs::Packed(b), _) => {
                        // Fewer columns than a vector has are one panel.
                        let from = b.panel::<T>(matrix % b.matrices(), 0);
                        let width = b.columns().width_of(0);
                        (0..depth).for_each(|i| {
                            to.add(i * lanes)
                                .copy_from_nonoverlapping(from.add(i * width), s.n)
                        });
                    }
                    (Rhs::View(_), None) => {}
                }
            }
        }
    }
}

/// Returns the elements between rows, where the columns of all groups follow each other in each.
pub(crate) fn rows_of_groups(view: &StoreView, s: &GemmShape) -> Option<usize> {
    let follow = s.batch == 1 || view.batch.stride() == Some(s.n as isize);
    view.in_rows().filter(|_| follow)
}

impl<T: Packable + GroupedTiles> Call<'_, T> {
    /// Returns the address of the first row's columns of group 0 and the distance of rows, where whole vectors may be written
    /// there.
    fn direct_store(&self) -> Option<(*mut T, usize)> {
        let Output::Store(view) = self.out else {
            return None;
        };
        let step = rows_of_groups(view, &self.plan.shape).filter(|_| view.dtype == T::DTYPE)?;
        Some((view.ptr.cast(), step))
    }

    /// Computes some rows of some vectors.
    ///
    /// # Safety
    /// As [`Grouped::run`]; each unit is run by one thread.
    unsafe fn unit(&self, unit: usize) {
        let (me, s) = (self.plan, &self.plan.shape);
        let lanes = me.lanes;
        let rows = part(s.m, self.row_parts, unit / self.vector_parts);
        let vectors = part(me.vectors, self.vector_parts, unit % self.vector_parts);
        let direct_store = self.direct_store();
        let bytes = match direct_store {
            Some(_) => 0,
            None => (rows.1 - rows.0) * lanes * size_of::<T>(),
        };
        scratch::with(Owner::Unit, bytes, |memory| {
            for v in vectors.0..vectors.1 {
                let (c, ldc) = match direct_store {
                    Some((to, step)) => (to.wrapping_add(rows.0 * step + v * lanes), step),
                    None => (memory.cast::<T>(), lanes),
                };
                // SAFETY: the caller's contract; sums of these rows have room at `c`.
                unsafe {
                    self.vector(rows, v, c, ldc);
                    if direct_store.is_none() {
                        self.put(rows, v, c);
                    }
                }
            }
        });
    }

    /// Computes all rows of a unit for one vector.
    ///
    /// # Safety
    /// As [`Call::unit`]; `c` can take the sums.
    unsafe fn vector(&self, (begin, end): (usize, usize), v: usize, c: *mut T, ldc: usize) {
        let (me, s) = (self.plan, &self.plan.shape);
        let (lanes, depth) = (me.lanes, s.taps * s.k);
        let from = self.lhs.ptr.cast::<T>().wrapping_add(me.first(v).0);
        let mut tile = Tile {
            row: from,
            step: 0,
            taps: self.lhs.taps.as_ptr(),
            ntaps: s.taps,
            k: s.k,
            at: self.at.wrapping_add(v * s.k * lanes),
            b: self.weights.wrapping_add(v * depth * lanes),
            c,
            ldc,
        };
        // Rows are at even distances in runs.
        let (length, step) = self.lhs.rows.inner();
        tile.step = step;
        let mut m = begin;
        while m < end {
            let run = (length - m % length).min(end - m);
            let (parts, low, more) = self.tiles.heights(run);
            tile.row = from.wrapping_offset(self.lhs.rows.offset(m));
            for i in 0..parts {
                let height = low + usize::from(i < more);
                // SAFETY: the caller's contract.
                unsafe { (self.tiles.of(height))(&tile) };
                tile.row = tile.row.wrapping_offset(height as isize * step);
                tile.c = tile.c.wrapping_add(height * ldc);
            }
            m += run;
        }
    }

    /// Hands on the sums of a vector: group by group, where groups are batches.
    ///
    /// # Safety
    /// As [`Call::unit`].
    unsafe fn put(&self, m: (usize, usize), v: usize, sums: *mut T) {
        let (me, s) = (self.plan, &self.plan.shape);
        let (lanes, first) = (me.lanes, v * me.per_vector);
        let block = |acc, batch, n| Block {
            acc,
            ld: lanes,
            batch,
            m,
            n,
        };
        // SAFETY: the caller's contract.
        unsafe {
            if s.batch == 1 {
                self.out.put(&block(sums, 0, (v * lanes, (v + 1) * lanes)));
                return;
            }
            for group in 0..me.per_vector {
                let acc = sums.wrapping_add(group * s.n);
                self.out.put(&block(acc, first + group, (0, s.n)));
            }
        }
    }
}
