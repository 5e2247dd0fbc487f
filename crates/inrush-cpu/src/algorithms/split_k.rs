//! Split-K GEMM: a long sum with few results, as gradients of filters and of weights have. Results are some elements
//! near a pixel of one operand times some near the same pixel of the other, and the sum runs over all pixels.
//!
//! ```text
//! before: for i in 0..m, j in 0..n           after: for part in 0..parts          // shared among threads
//!           for k in 0..depth                        for chunk of part            // both operands in the first cache
//!             c[i, j] += a[k, i] * b[k, j]             copy what is not contiguous
//!                                                      for tile of (i, j)         // sums stay in registers
//!                                                        for k in chunk
//!                                                          c[part][tile] += a[k, i] * b[k, j]
//!                                                  sum c[part] over parts, in order
//! ```
//!
//! The number of parts depends on sizes alone, so that results do not depend on the number of threads.
//!
//! - Operands that are contiguous along the results are read in place.
//! - NCHW operands of few channels are transposed chunk by chunk, where windows read the copy several times.
//! - Several groups of few channels are computed as one product; products between groups are dropped. They cost nothing
//!   where lanes would be idle.

use crate::Pool;
use crate::kernels::split_k::{self as kernel, Piece, SplitKTiles, Tile, Tiles};
use crate::kernels::with_element;
use crate::operand::scratch::{self, ALIGN, Owner};
use crate::operand::{
    Affine, Block, COLUMNS, GemmShape, Lhs, Output, Packable, RhsView, RowCopy, Shared,
    TransposeFn, part,
};
use inrush_base::tally::{Way, reached};
use inrush_base::{DType, Error, Isa, Result};

/// Most results of a matrix, and fewest products of each.
const MOST_RESULTS: usize = 1 << 16;
const FEWEST_PRODUCTS: usize = 256;
/// Most results where no element is read for several products, as pixels are by windows: for more of them what is read is better
/// laid out for the caches.
const MOST_PLAIN_RESULTS: usize = 3 << 10;
/// Fewest successive products at even distances.
const SHORTEST: usize = 4;
/// Most parts of the sum, and most sums of all parts.
const PARTS: usize = 32;
const MOST_SUMS: usize = 1 << 18;
/// Cycles of a part, below which its sums are not worth adding up.
const PART_CYCLES: usize = 10_000;
/// Bytes of both operands that all tiles go over before the next come, and limits of how many products that is.
const CHUNK_BYTES: usize = 32 << 10;
const CHUNK: std::ops::RangeInclusive<usize> = 64..=512;
/// Where both operands are NCHW, plane by plane, most columns of a matrix, or planes that its rows come from: for more of both the
/// pixels of one operand are as well read in order.
const MOST_COLUMNS: usize = 24;
const MOST_PLANES: usize = 8;
/// Planes are at least so many elements apart; products in them at most so many, and windows reach no farther than this for one
/// copy to do.
const FAR: isize = 64;
const MOST_STEP: isize = 4;
const NEAR: isize = 16;
/// Results that are added up or handed on at a time by one thread.
const GRAIN: usize = 1 << 13;

/// Elements of one operand that each product reads: runs of memory.
#[derive(Clone, Debug)]
struct Side {
    /// Where each run begins: which copy, where the operand is transposed, and elements from the product's place in it.
    runs: Vec<(usize, isize)>,
    len: usize,
    /// Row or column of each element of each run, counted through the matrices that are computed as one.
    index: Vec<usize>,
    /// Elements between successive products, and elements of all runs that each product is the first to read.
    step: isize,
    fresh: usize,
    planes: Option<PlaneCopies>,
}

/// An operand whose products are neighbours in memory, as pixels of a plane are: of each chunk a copy has elements of all planes
/// side by side.
#[derive(Clone, Debug)]
struct PlaneCopies {
    count: usize,
    /// Elements between planes.
    between: isize,
    /// Elements between successive products, and how far windows reach along them.
    step: usize,
    reach: usize,
    /// Elements from the product's place to what each copy begins with.
    copies: Vec<isize>,
}

/// Size, stride in memory and stride in the index.
type Level = (usize, isize, usize);

/// Returns all sums of one step along each level, the first level slowest.
fn offsets(levels: &[Level], of: impl Fn(&Level) -> isize) -> Vec<isize> {
    levels.iter().fold(vec![0], |all, level| {
        let (size, step) = (level.0 as isize, of(level));
        let each = |at: isize| (0..size).map(move |x| at + x * step);
        all.into_iter().flat_map(each).collect()
    })
}

/// Sorts levels by their strides and splits off those that are one run; returns how many are left, and the run's length.
fn run(levels: &mut [Level]) -> (usize, usize) {
    levels.sort_by_key(|l| std::cmp::Reverse(l.1));
    let (mut outer, mut len) = (levels.len(), 1);
    while outer > 0 && levels[outer - 1].1 == len as isize {
        len *= levels[outer - 1].0;
        outer -= 1;
    }
    (outer, len)
}

impl Side {
    /// Describes the operand that has rows or columns at `map`, of `merged` matrices `between` elements apart. `None` where they
    /// are no runs.
    fn new(map: &Affine, (merged, between): (usize, isize), step: isize) -> Option<Side> {
        let mut levels: Vec<Level> = map.levels().collect();
        if merged > 1 {
            levels.push((merged, between, map.len()));
        }
        if levels.iter().any(|l| l.1 <= 0) || step <= 0 {
            return None;
        }
        let (outer, len) = run(&mut levels);
        if len == 1 {
            return None;
        }
        let runs = offsets(&levels[..outer], |l| l.1);
        Some(Side {
            fresh: runs.len() * len.min(step as usize),
            runs: runs.into_iter().map(|at| (0, at)).collect(),
            len,
            index: index(&levels),
            step,
            planes: None,
        })
    }

    /// Describes an NCHW operand, plane by plane; `None` where it is none.
    fn planes(map: &Affine, (merged, between): (usize, isize), step: isize) -> Option<Side> {
        let mut levels: Vec<Level> = map.levels().collect();
        if levels.iter().any(|l| l.1 <= 0) || !(1..=MOST_STEP).contains(&step) {
            return None;
        }
        levels.sort_by_key(|l| std::cmp::Reverse(l.1));
        let (planes, apart, place) = *levels.first()?;
        if apart < FAR || merged > 1 && between != apart * planes as isize {
            return None;
        }
        let count = planes * merged;
        let near = |l: &Level| (l.0 - 1) as isize * l.1 <= NEAR;
        let (windows, others): (Vec<Level>, Vec<Level>) = levels[1..].iter().partition(|l| near(l));
        let reach = windows.iter().map(|l| (l.0 - 1) * l.1 as usize).sum();
        let mut inner = vec![(planes, 1, place)];
        if merged > 1 {
            inner.push((merged, planes as isize, map.len()));
        }
        inner.extend(windows.iter().map(|l| (l.0, l.1 * count as isize, l.2)));
        let (outer, len) = run(&mut inner);
        let copies = offsets(&others, |l| l.1);
        let inside = offsets(&inner[..outer], |l| l.1);
        let of = |copy: usize| inside.iter().map(move |at| (copy, *at));
        let runs = (0..copies.len()).flat_map(of).collect();
        Some(Side {
            runs,
            len,
            index: index(&[others, inner].concat()),
            step: step * count as isize,
            fresh: copies.len() * step as usize * count,
            planes: Some(PlaneCopies {
                count,
                between: apart,
                step: step as usize,
                reach,
                copies,
            }),
        })
    }

    /// Returns true if elements are read for several products.
    fn windows(&self) -> bool {
        self.runs.len() > 1 || self.len > self.fresh
    }

    /// Returns how many vectors cover the runs.
    fn vectors(&self, lanes: usize) -> usize {
        self.runs.len() * self.len.div_ceil(lanes)
    }
}

/// Returns the row or column of each element.
fn index(levels: &[Level]) -> Vec<usize> {
    let all = offsets(levels, |l| l.2 as isize);
    all.into_iter().map(|i| i as usize).collect()
}

/// A tile of results: which rows and columns, as the sides count them, and how many of each belong to the tile before.
#[derive(Clone, Debug)]
struct Part {
    /// Vectors of the tile's kernel, and whether it computes a part of one.
    vectors: usize,
    partial: bool,
    /// Run and element of the run, of either side.
    a: (usize, usize),
    b: (usize, usize),
    rows: usize,
    /// Columns that exist, and elements from row to row of sums.
    cols: usize,
    ld: usize,
    shared: (usize, usize),
    /// First of its sums among those of a part.
    sums: usize,
}

/// The plan of a split-K product.
#[derive(Clone, Debug)]
pub(crate) struct SplitK {
    shape: GemmShape,
    acc: DType,
    isa: Isa,
    tiles: Vec<Part>,
    /// Sums of one part.
    sums: usize,
    /// Rows of tiles are of the left operand, vectors of the right one; or the other way round.
    a: Side,
    b: Side,
    swapped: bool,
    /// Matrices that are computed as one.
    merged: usize,
    /// Successive products at even distances in both operands: a line.
    line: usize,
    /// Pieces of a line, pieces of a chunk, chunks of the sum, parts of the sum.
    line_pieces: usize,
    chunk: usize,
    chunks: usize,
    parts: usize,
}

impl SplitK {
    /// Plans a product with a long sum and few results; `None` for others.
    pub(crate) fn plan(
        shape: &GemmShape,
        lhs: &Lhs,
        view: &RhsView,
        acc: DType,
        isa: Isa,
    ) -> Result<Option<SplitK>> {
        with_element!(acc, T => Self::plan_as::<T>(shape, lhs, view, isa))
    }

    fn plan_as<T: Packable + SplitKTiles>(
        shape: &GemmShape,
        lhs: &Lhs,
        view: &RhsView,
        isa: Isa,
    ) -> Option<SplitK> {
        let s = *shape;
        let depth = s.taps * s.k;
        let results = s.m.checked_mul(s.n)?;
        if s.m < 2 || s.n < 2 || results > MOST_RESULTS || depth < FEWEST_PRODUCTS {
            return None;
        }
        let table = T::split_k(isa)?;
        // Both operands advance evenly along the shorter of their runs.
        let (run, b_step) = view.k.inner();
        let line = match (run % s.k, s.k % run) {
            (0, _) => s.k,
            (_, 0) => run,
            _ => return None,
        };
        if line < SHORTEST {
            return None;
        }
        let matrices = s.batch * s.groups;
        let apart = (
            lhs.matrices.stride().unwrap_or(0),
            view.matrices.stride().unwrap_or(0),
        );
        let next = view.cols.inner().1 * s.n as isize;
        let most = match matrices > 1 && apart.1 == next && apart.0 > 0 {
            true => (table.lanes / s.n).clamp(1, matrices),
            false => 1,
        };
        let merged = (1..=most).rev().find(|q| matrices.is_multiple_of(*q))?;
        let side = match view.cols.stride() {
            Some(1) => Side::new,
            _ => Side::planes,
        };
        let rows = side(&lhs.rows, (merged, apart.0), lhs.k_step)?;
        let cols = side(&view.cols, (merged, apart.1), b_step)?;
        let windows = rows.windows() || cols.windows();
        let pays = match &rows.planes {
            Some(planes) => {
                let transposes = |dtype| T::transpose(isa, dtype).is_some();
                windows
                    && (s.n <= MOST_COLUMNS || planes.count <= MOST_PLANES)
                    && transposes(lhs.dtype)
                    && transposes(view.dtype)
            }
            None => windows || results <= MOST_PLAIN_RESULTS,
        };
        if !pays {
            return None;
        }
        let work = |a: &Side, b: &Side| {
            let vectors = if b.len < 2 * table.lanes { 1 } else { 2 };
            let (height, count) = table.height(vectors, a.len);
            a.runs.len() * height * count * b.vectors(table.lanes)
        };
        let (in_order, in_reverse) = (work(&rows, &cols), work(&cols, &rows));
        let swapped = in_reverse < in_order;
        let (a, b) = if swapped { (cols, rows) } else { (rows, cols) };
        let (tiles, sums) = cover(table, &a, &b);

        let bytes = (a.fresh + b.fresh) * size_of::<T>();
        let most = (CHUNK_BYTES / bytes).clamp(*CHUNK.start(), *CHUNK.end());
        let line_pieces = line.div_ceil(most);
        let chunk = (most / line.div_ceil(line_pieces)).max(1);
        let chunks = (depth / line * line_pieces).div_ceil(chunk);
        let blocks = matrices / merged;
        let cycles = in_order.min(in_reverse).saturating_mul(depth) / 2;
        let parts = (PARTS.div_ceil(blocks))
            .min(MOST_SUMS / (blocks * sums).max(1))
            .min(cycles / PART_CYCLES)
            .clamp(1, chunks);
        Some(SplitK {
            shape: s,
            acc: T::DTYPE,
            isa,
            tiles,
            sums,
            a,
            b,
            swapped,
            merged,
            line,
            line_pieces,
            chunk,
            chunks,
            parts,
        })
    }

    fn blocks(&self) -> usize {
        self.shape.batch * self.shape.groups / self.merged
    }

    /// # Safety
    /// As [`crate::Plan::run`], for operands as planned for.
    pub(crate) unsafe fn run(
        &self,
        pool: &Pool,
        lhs: &Lhs,
        view: &RhsView,
        out: &Output,
    ) -> Result<()> {
        reached(Way::Outer);
        // SAFETY: the caller's contract.
        with_element!(self.acc, T => unsafe { self.run_as::<T>(pool, lhs, view, out) })?
    }

    unsafe fn run_as<T: Packable + SplitKTiles>(
        &self,
        pool: &Pool,
        lhs: &Lhs,
        view: &RhsView,
        out: &Output,
    ) -> Result<()> {
        let s = &self.shape;
        let table = T::split_k(self.isa).ok_or_else(|| Error::internal("a plan without tiles"))?;
        let left = self.copy::<T>(lhs.dtype)?;
        let right = self.copy::<T>(view.dtype)?;
        let copies = if self.swapped {
            (right, left)
        } else {
            (left, right)
        };
        let blocks = self.blocks();
        let size = size_of::<T>();
        let sums = (blocks * self.parts * self.sums * size).next_multiple_of(ALIGN);
        let results = s.m * s.n;
        let bytes = sums + blocks * self.merged * results * size;
        scratch::with(Owner::Call, bytes, |memory| {
            let parts = blocks * self.parts;
            let threads = pool.threads();
            let groups = match threads {
                1 => 1,
                _ => (4 * threads).div_ceil(parts).min(self.tiles.len()),
            };
            let call = Call {
                plan: self,
                table,
                lhs,
                view,
                copies,
                sums: memory.cast::<T>(),
                results: memory.wrapping_add(sums).cast::<T>(),
            };
            let shared = (&call, out);
            let shared = Shared(&shared);
            pool.parallel_for(parts * groups, 1, &|range| {
                let call = shared.get().0;
                for unit in range {
                    let (of, group) = (unit / groups, unit % groups);
                    let tiles = part(call.plan.tiles.len(), groups, group);
                    // SAFETY: units are disjoint parts of the sums; the caller vouches for the operands.
                    unsafe { call.add_up(of, &call.plan.tiles[tiles.0..tiles.1]) };
                }
            })?;
            let grain = (GRAIN / (self.sums * self.parts / self.tiles.len()).max(1)).max(1);
            pool.parallel_for(blocks * self.tiles.len(), grain, &|range| {
                let call = shared.get().0;
                let count = call.plan.tiles.len();
                for unit in range {
                    // SAFETY: each result belongs to one tile.
                    unsafe { call.gather(unit / count, &call.plan.tiles[unit % count]) };
                }
            })?;
            let bands = results.div_ceil(GRAIN).min(s.m);
            pool.parallel_for(blocks * self.merged * bands, bands.div_ceil(4), &|range| {
                let (call, out) = shared.get();
                let s = &call.plan.shape;
                for unit in range {
                    let (matrix, band) = (unit / bands, unit % bands);
                    let m = part(s.m, bands, band);
                    let group = matrix % s.groups;
                    // SAFETY: written above; blocks are disjoint.
                    unsafe {
                        out.put(&Block {
                            acc: call.results.add((matrix * s.m + m.0) * s.n),
                            ld: s.n,
                            batch: matrix / s.groups,
                            m,
                            n: (group * s.n, (group + 1) * s.n),
                        });
                    }
                }
            })
        })
    }

    /// Returns how an operand of dtype `dtype` is converted, if it must be.
    fn copy<T: Packable>(&self, dtype: DType) -> Result<Option<RowCopy<T>>> {
        if dtype == T::DTYPE && self.a.planes.is_none() {
            return Ok(None);
        }
        RowCopy::new(dtype, self.isa).map(Some)
    }
}

/// One call of a plan.
struct Call<'a, T: 'static> {
    plan: &'a SplitK,
    table: &'static Tiles<T>,
    lhs: &'a Lhs<'a>,
    view: &'a RhsView,
    /// Conversions of `a` and `b`.
    copies: (Option<RowCopy<T>>, Option<RowCopy<T>>),
    /// Sums of each tile of each part, and results in order.
    sums: *mut T,
    results: *mut T,
}

impl<T: Packable + SplitKTiles> Call<'_, T> {
    /// Returns the address of the first product's elements in the left (or right) operand, for a block.
    fn base(&self, left: bool, block: usize) -> *const u8 {
        let matrix = block * self.plan.merged;
        let (ptr, at, dtype) = if left {
            let lhs = self.lhs;
            (lhs.ptr, lhs.matrices.offset(matrix), lhs.dtype)
        } else {
            let view = self.view;
            (view.ptr, view.matrices.offset(matrix), view.dtype)
        };
        ptr.wrapping_offset(at * dtype.size() as isize)
    }

    /// Returns where piece `i` of all products begins in both operands.
    fn piece(&self, i: usize) -> Piece {
        let plan = self.plan;
        let (line, (k0, k1)) = (
            i / plan.line_pieces,
            part(plan.line, plan.line_pieces, i % plan.line_pieces),
        );
        let k = line * plan.line + k0;
        let (tap, inside) = (k / plan.shape.k, k % plan.shape.k);
        let left = self.lhs.taps[tap] + inside as isize * self.lhs.k_step;
        let right = self.view.k.offset(k);
        let (a, b) = if plan.swapped {
            (right, left)
        } else {
            (left, right)
        };
        Piece { a, b, n: k1 - k0 }
    }

    /// Computes some tiles of one part of the sum.
    ///
    /// # Safety
    /// As [`SplitK::run`]; no other thread has the same tiles of the same part.
    unsafe fn add_up(&self, of: usize, tiles: &[Part]) {
        let plan = self.plan;
        let (block, at) = (of / plan.parts, of % plan.parts);
        let sums = self.sums.wrapping_add(of * plan.sums);
        let (c0, c1) = part(plan.chunks, plan.parts, at);
        let pieces = plan.shape.taps * plan.shape.k / plan.line * plan.line_pieces;
        let longest = plan.line.div_ceil(plan.line_pieces);
        let copied = |of, copy, left: bool| {
            let dtype = if left {
                self.lhs.dtype
            } else {
                self.view.dtype
            };
            let transpose = T::transpose(plan.isa, dtype);
            Copied::new(
                of,
                copy,
                transpose,
                self.base(left, block),
                longest,
                plan.chunk,
            )
        };
        let a = copied(&plan.a, self.copies.0, !plan.swapped);
        let b = copied(&plan.b, self.copies.1, plan.swapped);
        let table = (plan.chunk * size_of::<Piece>()).next_multiple_of(ALIGN);
        scratch::with(Owner::Unit, table + a.bytes() + b.bytes(), |memory| {
            let list = memory.cast::<Piece>();
            let (to_a, to_b) = (
                memory.wrapping_add(table),
                memory.wrapping_add(table + a.bytes()),
            );
            for c in c0..c1 {
                let first = c * plan.chunk;
                let count = plan.chunk.min(pieces - first);
                // SAFETY: scratch is as large as its users need; tiles read what their pieces describe.
                unsafe {
                    for i in 0..count {
                        let mut piece = self.piece(first + i);
                        piece.a = a.take(piece.a, i, piece.n, to_a.cast());
                        piece.b = b.take(piece.b, i, piece.n, to_b.cast());
                        list.add(i).write(piece);
                    }
                    for t in tiles {
                        self.table.get(t.vectors, t.partial, t.rows)(&Tile {
                            a: a.at(t.a, to_a.cast()),
                            b: b.at(t.b, to_b.cast()),
                            a_step: a.step,
                            b_step: b.step,
                            pieces: list,
                            count,
                            c: sums.wrapping_add(t.sums),
                            accumulate: c > c0,
                            n: t.cols,
                        });
                    }
                }
            }
        });
    }

    /// Adds up the parts of one tile's sums and puts them where they belong among the results of a block.
    ///
    /// # Safety
    /// All parts were computed; no other thread has the same tile.
    unsafe fn gather(&self, block: usize, t: &Part) {
        let (plan, s) = (self.plan, &self.plan.shape);
        let first = (self.sums).wrapping_add(block * plan.parts * plan.sums + t.sums);
        // SAFETY: the sums of the tile in each part; results of the block's matrices.
        unsafe {
            let total = std::slice::from_raw_parts_mut(first, t.rows * t.ld);
            for p in 1..plan.parts {
                kernel::add(
                    total,
                    std::slice::from_raw_parts(first.add(p * plan.sums), t.rows * t.ld),
                );
            }
            let to = self.results.add(block * plan.merged * s.m * s.n);
            for i in t.shared.0..t.rows {
                for j in t.shared.1..t.cols {
                    let a = plan.a.index[t.a.0 * plan.a.len + t.a.1 + i];
                    let b = plan.b.index[t.b.0 * plan.b.len + t.b.1 + j];
                    let (m, n) = if plan.swapped { (b, a) } else { (a, b) };
                    // Products between groups are dropped.
                    if m / s.m == n / s.n {
                        *to.add(m * s.n + n % s.n) = total[i * t.ld + j];
                    }
                }
            }
        }
    }
}

/// Covers all pairs of `a` and `b` by tiles; returns them and how many sums they have.
fn cover<T>(table: &Tiles<T>, a: &Side, b: &Side) -> (Vec<Part>, usize) {
    let lanes = table.lanes;
    let mut tiles = Vec::new();
    let mut sums = 0;
    for run in 0..b.runs.len() {
        let mut left = b.len.div_ceil(lanes);
        let mut next = 0;
        while left > 0 {
            let vectors = if left == 1 || b.len < 2 * lanes { 1 } else { 2 };
            // The last vectors end with the run.
            let at = next.min(b.len.saturating_sub(vectors * lanes));
            let cols = (vectors * lanes).min(b.len);
            let (rows, count) = table.height(vectors, a.len);
            for of in 0..a.runs.len() {
                for i in 0..count {
                    let row = (i * rows).min(a.len - rows);
                    tiles.push(Part {
                        vectors,
                        partial: b.len < lanes,
                        a: (of, row),
                        b: (run, at),
                        rows,
                        cols,
                        ld: vectors * lanes,
                        shared: (i * rows - row, next - at),
                        sums,
                    });
                    sums += rows * vectors * lanes;
                }
            }
            next = at + cols;
            left -= vectors;
        }
    }
    // What the rows of a tile read stays in the first cache while the vectors change.
    tiles.sort_by_key(|t| t.a);
    (tiles, sums)
}

/// An operand's elements of one chunk: in place, converted or transposed.
struct Copied<'a, T: 'static> {
    side: &'a Side,
    copy: Option<RowCopy<T>>,
    transpose: Option<TransposeFn<T>>,
    base: *const u8,
    /// Elements between products, from copy to copy and from piece to piece of one.
    step: isize,
    between: usize,
    piece: usize,
}

impl<'a, T: Packable> Copied<'a, T> {
    fn new(
        side: &'a Side,
        copy: Option<RowCopy<T>>,
        transpose: Option<TransposeFn<T>>,
        base: *const u8,
        longest: usize,
        pieces: usize,
    ) -> Self {
        // What is between runs is left out where it is much.
        let step = match copy {
            Some(_) if side.planes.is_none() && side.step as usize > 2 * side.len => {
                side.len as isize
            }
            _ => side.step,
        };
        let piece = match &side.planes {
            Some(p) => p.pixels(longest) * p.count,
            None => (longest - 1) * step as usize + side.len,
        };
        Copied {
            side,
            copy,
            transpose,
            base,
            step,
            between: piece * pieces,
            piece,
        }
    }

    fn bytes(&self) -> usize {
        let copies = match (&self.side.planes, self.copy) {
            (Some(p), _) => p.copies.len(),
            (None, Some(_)) => self.side.runs.len(),
            (None, None) => 0,
        };
        (copies * self.between * size_of::<T>()).next_multiple_of(ALIGN)
    }

    /// Copies `n` products from `at` on, piece `i` of the chunk, if they must be; returns where they are read.
    ///
    /// # Safety
    /// `to` has room for the chunk; the operand is readable there.
    unsafe fn take(&self, at: isize, i: usize, n: usize, to: *mut T) -> isize {
        let Some(copy) = self.copy else {
            return at;
        };
        let side = self.side;
        let room = |r: usize| to.wrapping_add(r * self.between + i * self.piece);
        // SAFETY: elements of the operand and what is between them; the piece's own room.
        unsafe {
            if let Some(p) = &side.planes {
                let eights = match self.transpose {
                    Some(_) => p.count - p.count % COLUMNS,
                    None => 0,
                };
                for (r, from) in p.copies.iter().enumerate() {
                    let src = |plane: usize| {
                        copy.place(self.base, at + from + plane as isize * p.between)
                    };
                    let pixels = p.pixels(n);
                    if let Some(f) = self.transpose.filter(|_| eights > 0) {
                        f(src(0), p.between, room(r), p.count, eights, pixels);
                    }
                    for plane in eights..p.count {
                        copy.scatter(src(plane), room(r).add(plane), p.count, pixels);
                    }
                }
                return (i * self.piece) as isize;
            }
            for (r, (_, run)) in side.runs.iter().enumerate() {
                let dst = room(r);
                let src = |k: usize| copy.place(self.base, at + run + k as isize * side.step);
                if self.step == side.step {
                    copy.run(src(0), 1, dst, (n - 1) * self.step as usize + side.len);
                } else {
                    (0..n).for_each(|k| copy.run(src(k), 1, dst.add(k * side.len), side.len));
                }
            }
        }
        (i * self.piece) as isize
    }

    /// Returns the address of the elements of a run from one on, of the product at place 0.
    fn at(&self, (run, element): (usize, usize), copied: *const T) -> *const T {
        let (copy, at) = self.side.runs[run];
        let first = match (&self.side.planes, self.copy) {
            (Some(_), _) => copied.wrapping_add(copy * self.between).wrapping_offset(at),
            (None, Some(_)) => copied.wrapping_add(run * self.between),
            (None, None) => self.base.cast::<T>().wrapping_offset(at),
        };
        first.wrapping_add(element)
    }
}

impl PlaneCopies {
    /// Returns how many elements of a plane `n` products read.
    fn pixels(&self, n: usize) -> usize {
        (n - 1) * self.step + self.reach + 1
    }
}
