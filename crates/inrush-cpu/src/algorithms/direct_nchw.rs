//! Direct convolution over NCHW images: a product whose right operand is read in place, through a table of offsets.
//!
//! Rows of results are output channels, columns are pixels, and `k` counts the filter's taps and input channels:
//!
//! ```text
//! before: pack b[k, n]                       after: for (strip of pixels, panels of channels)  // shared among threads
//!         GEMM                                        for vectors of the strip                 // along a line of pixels
//!                                                       for k_block                            // 256 products
//!                                                         for panel of channels
//!                                                           registers += a[panel, k] * image[pixel + offsets[k]]
//! ```
//!
//! Whatever a convolution's kernel, dilation or number of dimensions, it is a table of offsets, and nothing is packed
//! but the filters. Short lines that are close to each other are computed as one with the elements between them: a line
//! of 7 pixels would leave half of a vector idle.

use crate::Pool;
use crate::kernels::direct_nchw::{NchwTiles, Tile, Tiles, VectorOffsets};
use crate::kernels::with_element;
use crate::operand::scratch::{self, ALIGN, Bytes, Owner};
use crate::operand::{
    Affine, Block, NchwShape, Output, RhsView, Shared, StoreView, Target, part, reader,
};
use inrush_base::tally::{Way, reached};
use inrush_base::{DType, Error, Isa, Result};

/// Sums of a unit: they and what they are made of share the first two caches.
const SUM_BYTES: usize = 128 << 10;
/// Most rows of a unit, and most columns.
const ROWS: usize = 64;
const COLUMNS: usize = 1024;
/// Products that are summed in registers before they are added up: what several rows read for them stays in the first cache,
/// and long sums lose less.
const K_BLOCK: usize = 256;
/// Products beyond which the table of offsets is not worth keeping in a cache.
const MOST_PRODUCTS: usize = 1 << 14;
/// Without windows every element is a factor of each row just once: up to so many rows laying it out costs more than it saves,
/// from so many products on their places, a cache line each in as many pages, do not stay in the caches.
const PLAIN_ROWS: usize = 64;
const PLAIN_PRODUCTS: usize = 256;
/// Cycles; below this a dispatch costs more than it gives.
const SERIAL: usize = 8000;

/// How the columns are cut into strips: whole lines, or parts of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Strips {
    /// Columns of a line, and elements between neighbours.
    width: usize,
    step: usize,
    lines: usize,
    /// Lines at even distances, and that distance in elements.
    group: usize,
    between: isize,
    /// Strips of a group.
    strips: usize,
    /// Sums from line to line.
    pitch: usize,
    /// Lines are computed as one with the elements between them.
    joined: bool,
}

/// Lines of a group, or part of a line.
struct Strip {
    line: usize,
    lines: usize,
    x: usize,
    /// Columns of each line.
    width: usize,
}

impl Strips {
    /// Cuts columns into strips of about `most`. `None` where vectors would mostly be idle, or elements are too far apart.
    fn new(cols: &Affine, lanes: usize, most: usize) -> Option<Strips> {
        let (width, step) = cols.inner();
        let step = usize::try_from(step).ok().filter(|s| *s == 1 || *s == 2)?;
        let lines = cols.len().checked_div(width)?;
        let (group, between) = cols.outer().unwrap_or((1, 0));
        let alone = width.next_multiple_of(lanes);
        let near = usize::try_from(between).unwrap_or(0);
        // Parts of vectors are slower than whole ones.
        let closer = near / step < alone || near / step == alone && width < lanes;
        let joined = group > 1 && near.is_multiple_of(step) && near / step >= width && closer;
        let pitch = if joined { near / step } else { alone };
        if 2 * width < pitch {
            return None;
        }
        let (of, strips) = if width > most {
            (1, width.div_ceil(most))
        } else {
            (group, group.div_ceil(most / pitch.min(most)))
        };
        Some(Strips {
            width,
            step,
            lines,
            group: of,
            between,
            strips,
            pitch,
            joined,
        })
    }

    fn len(&self) -> usize {
        self.lines / self.group * self.strips
    }

    fn strip(&self, i: usize, lanes: usize) -> Strip {
        let (group, at) = (i / self.strips, i % self.strips);
        if self.group > 1 {
            let (l0, l1) = part(self.group, self.strips, at);
            return Strip {
                line: group * self.group + l0,
                lines: l1 - l0,
                x: 0,
                width: self.width,
            };
        }
        let (v0, v1) = part(self.width.div_ceil(lanes), self.strips, at);
        let (x0, x1) = (v0 * lanes, (v1 * lanes).min(self.width));
        Strip {
            line: group,
            lines: 1,
            x: x0,
            width: x1 - x0,
        }
    }

    /// Returns the sums of the longest strip, in whole vectors.
    fn longest(&self, lanes: usize) -> usize {
        match self.group {
            1 => self.width.div_ceil(lanes).div_ceil(self.strips) * lanes,
            n => (n.div_ceil(self.strips) * self.pitch).next_multiple_of(lanes),
        }
    }

    /// Returns where the vectors of a strip begin, with `pitch` sums from line to line; the last one of a line ends with it. Lines
    /// shorter than a vector have one each.
    fn places(&self, s: &Strip, lanes: usize, pitch: usize) -> impl Iterator<Item = VectorOffsets> {
        let Strips { step, between, .. } = *self;
        let width = self.fills(s);
        let lines = if self.joined { 1 } else { s.lines };
        (0..lines).flat_map(move |line| {
            (0..width).step_by(lanes).map(move |x| {
                let x = x.min(width.saturating_sub(lanes));
                VectorOffsets {
                    b: line as isize * between + (x * step) as isize,
                    c: line * pitch + x,
                }
            })
        })
    }

    /// Returns how many columns vectors run along.
    fn fills(&self, s: &Strip) -> usize {
        match self.joined {
            true => (s.lines - 1) * self.pitch + s.width,
            false => s.width,
        }
    }
}

/// The rows of a left operand in panels of nearly equal heights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Panels {
    m: usize,
    count: usize,
}

impl Panels {
    fn new(m: usize, tallest: usize) -> Panels {
        Panels {
            m,
            count: m.div_ceil(tallest),
        }
    }

    /// Returns the rows of panel `p`: taller ones first.
    fn rows(&self, p: usize) -> (usize, usize) {
        let (low, more) = (self.m / self.count, self.m % self.count);
        let at = |p: usize| p * low + p.min(more);
        (at(p), at(p + 1))
    }
}

/// A left operand laid out for [`DirectNchw::run`], for example a layer's filters at load.
pub struct PackedA {
    isa: Isa,
    dtype: DType,
    matrices: usize,
    m: usize,
    k: usize,
    data: Bytes,
}

impl PackedA {
    /// Packs every matrix of `view`, whose columns are the rows of the left operand, converted to `dtype` (the type in
    /// which products are summed). `None` where that type has no such products, or the operand can be read in place.
    ///
    /// # Safety
    /// Every element that `view` describes is readable for the length of the call.
    pub unsafe fn pack(
        pool: &Pool,
        isa: Isa,
        dtype: DType,
        view: &RhsView,
    ) -> Result<Option<PackedA>> {
        with_element!(dtype, T => {
            if T::direct_nchw(isa, dtype, 1).is_none() || Lefts::<T>::in_place(view).is_some() {
                return Ok(None);
            }
            let (matrices, m, k) = (view.matrices.len(), view.cols.len(), view.k.len());
            let elements = matrices.checked_mul(m).and_then(|x| x.checked_mul(k));
            let data = elements
                .and_then(|x| x.checked_mul(size_of::<T>()))
                .and_then(Bytes::new)
                .ok_or_else(|| Error::machine(format!("no memory for {matrices} x {m} x {k} filter values")))?;
            // SAFETY: room for every element; the caller's contract.
            unsafe { lay_out::<T>(pool, view, data.ptr().cast())? };
            data.inspect("the engine", &"a packed left operand");
            Ok(Some(PackedA { isa, dtype, matrices, m, k, data }))
        })?
    }

    /// Returns bytes held.
    pub fn bytes(&self) -> usize {
        self.data.len()
    }
}

/// A left operand: packed before, or in place (its rows are the view's columns).
#[derive(Clone, Copy)]
pub enum Left<'a> {
    Packed(&'a PackedA),
    View(&'a RhsView),
}

/// Where left operands are in the type of the sums: each row's products one after the other, rows evenly.
#[derive(Clone, Copy)]
struct Lefts<T> {
    ptr: *const T,
    matrices: Affine,
    /// Elements between rows.
    row: usize,
}

impl<T: Target> Lefts<T> {
    /// Returns the operands that [`lay_out`] wrote.
    fn dense(ptr: *const T, matrices: usize, m: usize, k: usize) -> Lefts<T> {
        Lefts {
            ptr,
            matrices: Affine::linear(matrices, (m * k) as isize),
            row: k,
        }
    }

    /// Returns the operands of a view, if they are in memory so.
    fn in_place(view: &RhsView) -> Option<Lefts<T>> {
        let near = view.k.stride() == Some(1) && view.dtype == T::DTYPE;
        let row = view.cols.stride().filter(|_| near)?;
        Some(Lefts {
            ptr: view.ptr.cast(),
            matrices: view.matrices,
            row: usize::try_from(row).ok()?,
        })
    }
}

/// Copies the rows of every matrix, one after the other.
///
/// # Safety
/// The view is readable; `to` has room for all of its elements.
unsafe fn lay_out<T: Target>(pool: &Pool, view: &RhsView, to: *mut T) -> Result<()> {
    let copy = reader::<T>(view.dtype)?;
    let (m, k) = (view.cols.len(), view.k.len());
    if m == 0 || k == 0 {
        return Ok(());
    }
    let size = view.dtype.size() as isize;
    let (run, step) = view.k.inner();
    let shared = (view, to);
    let shared = Shared(&shared);
    let grain = (SERIAL / k).max(1);
    pool.parallel_for(view.matrices.len() * m, grain, &|range| {
        let (view, to) = *shared.get();
        for row in range {
            let offset = view.matrices.offset(row / m) + view.cols.offset(row % m);
            let mut at = 0;
            while at < k {
                let some = run.min(k - at);
                let from = (offset + view.k.offset(at)) * size;
                // SAFETY: elements of the view; a place in the row for each.
                unsafe {
                    let dst = to.add(row * k + at);
                    copy(view.ptr.wrapping_offset(from), step, dst, 1, some);
                }
                at += some;
            }
        }
    })
}

/// The plan of a product: cheap to make, so that sizes may change between calls.
#[derive(Clone, Debug)]
pub struct DirectNchw {
    shape: NchwShape,
    dtype: DType,
    isa: Isa,
    acc: DType,
    lanes: usize,
    strips: Strips,
    panels: Panels,
    /// Panels of a unit.
    tall: usize,
    offsets: Vec<isize>,
    serial: bool,
}

impl DirectNchw {
    /// Plans a product that is summed in `acc` with a right operand of `dtype`; `None` where it is better computed as a
    /// GEMM: few columns are neighbours, or many rows are worth a copy of what they share.
    pub fn plan(
        shape: NchwShape,
        acc: DType,
        dtype: DType,
        isa: Isa,
    ) -> Result<Option<DirectNchw>> {
        crate::isa::check(isa)?;
        let s = &shape;
        let (m, k, n) = (s.m, s.k.len(), s.cols.len());
        if m == 0 || n == 0 || k == 0 || k > MOST_PRODUCTS || s.matrices.is_empty() {
            return Ok(None);
        }
        let step = s.cols.inner().1;
        let found =
            with_element!(acc, T => T::direct_nchw(isa, dtype, step).map(|t| (t.lanes, t.rows)))?;
        let Some((lanes, tallest)) = found else {
            return Ok(None);
        };
        if !s.windows() && (m <= 4 || m > PLAIN_ROWS || k > PLAIN_PRODUCTS) {
            return Ok(None);
        }
        let panels = Panels::new(m, tallest);
        let tall = panels.count.div_ceil(panels.count.div_ceil(ROWS / tallest));
        let rows = (tall * tallest).min(m);
        let most = (SUM_BYTES / (rows * acc.size())).clamp(4 * lanes, COLUMNS);
        let Some(strips) = Strips::new(&s.cols, lanes, most) else {
            return Ok(None);
        };
        let mut walk = s.k.walk(0);
        let offsets = (0..k).map(|_| walk.next()).collect();
        let cycles = (m * n).saturating_mul(k).saturating_mul(s.matrices.len()) / (2 * lanes);
        Ok(Some(DirectNchw {
            shape,
            dtype,
            isa,
            acc,
            lanes,
            strips,
            panels,
            tall,
            offsets,
            serial: cycles < SERIAL,
        }))
    }

    /// Returns true if sums go from the registers to where they are stored, for stores like this: vectors end with
    /// the lines that are stored.
    pub fn stores(&self, view: &StoreView) -> bool {
        let whole = self.strips.width >= self.lanes && !self.strips.joined;
        view.dtype == self.acc && view.in_rows().is_some() && whole
    }

    /// Computes the product with the right operand at `ptr`.
    ///
    /// # Safety
    /// Every element that the shape and `left` describe, and what is between the columns of the right operand, is
    /// readable, and every place that `out` describes is valid for the length of the call; results overlap neither operand
    /// nor each other.
    pub unsafe fn run(&self, pool: &Pool, left: Left, ptr: *const u8, out: &Output) -> Result<()> {
        // SAFETY: the caller's contract.
        with_element!(self.acc, T => unsafe { self.run_as::<T>(pool, left, ptr, out) })?
    }

    unsafe fn run_as<T: Target + NchwTiles>(
        &self,
        pool: &Pool,
        left: Left,
        ptr: *const u8,
        out: &Output,
    ) -> Result<()> {
        let s = &self.shape;
        let k = self.offsets.len();
        let tiles = T::direct_nchw(self.isa, self.dtype, self.strips.step as isize);
        let tiles = tiles.ok_or_else(|| Error::internal("a plan without tiles"))?;
        out.check::<T>(s.matrices.len(), s.m, s.cols.len())?;
        let lefts = 1
            + (0..s.matrices.len())
                .map(|b| s.lefts.offset(b))
                .max()
                .unwrap_or(0) as usize;
        let have = match left {
            Left::Packed(p) if (p.isa, p.dtype) == (self.isa, self.acc) => (p.matrices, p.m, p.k),
            Left::Packed(_) => (0, 0, 0),
            Left::View(v) => (v.matrices.len(), v.cols.len(), v.k.len()),
        };
        if have.0 < lefts || (have.1, have.2) != (s.m, k) {
            return Err(Error::internal(format!(
                "a left operand of {have:?} in a product of {s:?}"
            )));
        }
        let run = |left: Lefts<T>| {
            let job = Job {
                plan: self,
                tiles,
                left,
                ptr,
                out,
            };
            let job = Shared(&job);
            let units = s.matrices.len() * self.strips.len() * self.parts();
            let grain = if self.serial { units } else { 1 };
            pool.parallel_for(units, grain, &|range| {
                // SAFETY: units are disjoint parts of the result; the caller vouches for the pointers.
                range.for_each(|unit| unsafe { job.get().unit(unit) })
            })
        };
        let view = match left {
            Left::Packed(p) => {
                reached(Way::PlanesPacked);
                return run(Lefts::dense(p.data.ptr().cast(), have.0, s.m, k));
            }
            Left::View(v) => v,
        };
        if let Some(left) = Lefts::in_place(view) {
            reached(Way::Planes);
            return run(left);
        }
        reached(Way::PlanesCopied);
        let bytes = have.0 * s.m * k * size_of::<T>();
        scratch::with(Owner::Call, bytes.next_multiple_of(ALIGN), |memory| {
            // SAFETY: room for every element; the caller's contract.
            unsafe { lay_out::<T>(pool, view, memory.cast())? };
            run(Lefts::dense(memory.cast(), have.0, s.m, k))
        })
    }

    /// Returns how many units share a strip.
    fn parts(&self) -> usize {
        self.panels.count.div_ceil(self.tall)
    }
}

/// One call of a plan.
struct Job<'a, T: 'static> {
    plan: &'a DirectNchw,
    tiles: &'static Tiles<T>,
    left: Lefts<T>,
    ptr: *const u8,
    out: &'a Output,
}

impl<T: Target + NchwTiles> Job<'_, T> {
    /// Returns the address of column `n` of row `m` of a batch's results and the distance of rows, where tiles may be written there.
    fn direct_store(&self, batch: usize, m: usize, n: usize) -> Option<(*mut T, usize)> {
        let Output::Store(view) = self.out else {
            return None;
        };
        let step = view.in_rows().filter(|_| self.plan.stores(view))?;
        let at = view.batch.offset(batch) + view.rows.offset(m) + n as isize;
        Some((view.ptr.cast::<T>().wrapping_offset(at), step))
    }

    /// Computes some panels of one strip of one batch.
    ///
    /// # Safety
    /// As [`DirectNchw::run`]; `unit` is below the number of units, and each is run by one thread.
    unsafe fn unit(&self, unit: usize) {
        let plan = self.plan;
        let (s, strips, panels) = (&plan.shape, &plan.strips, &plan.panels);
        let lanes = self.tiles.lanes;
        let (rest, panel_part) = (unit / plan.parts(), unit % plan.parts());
        let (batch, at) = (rest / strips.len(), rest % strips.len());
        let (p0, p1) = part(panels.count, plan.parts(), panel_part);
        let strip = strips.strip(at, lanes);
        if p0 == p1 || strip.width == 0 {
            return;
        }
        let m = (panels.rows(p0).0, panels.rows(p1 - 1).1);
        let k = plan.offsets.len();
        let left = self
            .left
            .ptr
            .wrapping_offset(self.left.matrices.offset(s.lefts.offset(batch) as usize));
        let first = strip.line * strips.width + strip.x;
        let size = plan.dtype.size() as isize;
        let offset = s.matrices.offset(batch) + s.cols.offset(first);
        let base = self.ptr.wrapping_offset(offset * size);
        let direct_store = self.direct_store(batch, m.0, first);
        let ld = strips.longest(lanes);
        let held = if direct_store.is_some() { 0 } else { m.1 - m.0 };
        let sums = (held * ld * size_of::<T>()).next_multiple_of(ALIGN);
        let parts = k.div_ceil(K_BLOCK);
        let fills = strips.fills(&strip);
        let whole = fills >= lanes;
        let bytes = sums + ld / lanes * size_of::<VectorOffsets>();
        scratch::with(Owner::Unit, bytes, |memory| {
            let places = memory.wrapping_add(sums).cast::<VectorOffsets>();
            let (c, ldc) = direct_store.unwrap_or((memory.cast::<T>(), ld));
            let pitch = match direct_store {
                Some(_) => strips.width,
                None => strips.pitch,
            };
            let mut count = 0;
            for place in strips.places(&strip, lanes, pitch) {
                // SAFETY: as many places as the longest strip has vectors.
                unsafe { places.add(count).write(place) };
                count += 1;
            }
            // SAFETY: written above.
            let mut rest = unsafe { std::slice::from_raw_parts(places, count) };
            while !rest.is_empty() {
                let vectors = match whole {
                    true => self.tiles.vectors(panels.rows(p0).1 - m.0, rest.len()),
                    false => 1,
                };
                for i in 0..parts {
                    let (k0, k1) = part(k, parts, i);
                    for p in p0..p1 {
                        let (r0, r1) = panels.rows(p);
                        let f = match whole {
                            true => self.tiles.whole(r1 - r0, vectors),
                            false => self.tiles.part(r1 - r0),
                        };
                        // SAFETY: the strip's columns, at most what is between its lines; the unit's own sums or results.
                        unsafe {
                            f(&Tile {
                                a: left.wrapping_add(r0 * self.left.row + k0),
                                lda: self.left.row,
                                b: base,
                                offsets: plan.offsets.as_ptr().add(k0),
                                k: k1 - k0,
                                at: rest.as_ptr(),
                                c: c.wrapping_add((r0 - m.0) * ldc),
                                ldc,
                                accumulate: i > 0,
                                n: fills,
                            });
                        }
                    }
                }
                rest = &rest[vectors..];
            }
            if direct_store.is_some() {
                return;
            }
            for line in 0..strip.lines {
                let n = first + line * strips.width;
                // SAFETY: checked above; the block is this unit's own.
                unsafe {
                    self.out.put(&Block {
                        acc: c.add(line * strips.pitch),
                        ld,
                        batch,
                        m,
                        n: (n, n + strip.width),
                    });
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strips_cover_the_columns_once() {
        for levels in [
            vec![(16384, 1)],
            vec![(56, 58), (56, 1)],
            vec![(64, 260), (64, 2)],
            vec![(3, 900), (7, 9), (7, 1)],
            vec![(3, 900), (7, 18), (7, 2)],
            vec![(5, 2000), (1030, 1)],
        ] {
            let cols = Affine::new(&levels).unwrap();
            for most in [64, 200, 1024] {
                let strips = Strips::new(&cols, 16, most).unwrap();
                let mut seen = vec![0; cols.len()];
                for i in 0..strips.len() {
                    let s = strips.strip(i, 16);
                    let first = s.line * strips.width + s.x;
                    let places: Vec<VectorOffsets> = strips.places(&s, 16, strips.pitch).collect();
                    let lanes = strips.fills(&s).min(16);
                    for line in 0..s.lines {
                        for x in 0..s.width {
                            let sum = line * strips.pitch + x;
                            assert!(sum < strips.longest(16), "{levels:?}");
                            let (n, from) = (first + line * strips.width + x, cols.offset(first));
                            let computes = |p: &&VectorOffsets| (p.c..p.c + lanes).contains(&sum);
                            let mut by = places.iter().filter(computes).peekable();
                            assert!(by.peek().is_some(), "{levels:?} {most}");
                            for p in by {
                                let at = p.b + ((sum - p.c) * strips.step) as isize;
                                assert_eq!(from + at, cols.offset(n), "{levels:?} {most}");
                            }
                            seen[n] += 1;
                        }
                    }
                    let end = places.iter().map(|p| p.c + 16).max();
                    assert!(end <= Some(strips.longest(16)), "{levels:?} {most}");
                }
                assert!(seen.iter().all(|s| *s == 1), "{levels:?} {most}");
            }
        }
    }

    #[test]
    fn columns_far_apart_or_few_are_left_to_others() {
        for levels in [vec![(100, 3)], vec![(100, -1)], vec![(64, 100), (5, 1)]] {
            let cols = Affine::new(&levels).unwrap();
            assert_eq!(Strips::new(&cols, 16, 1024), None, "{levels:?}");
        }
    }
}
