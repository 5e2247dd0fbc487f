//! Products whose sum is long and whose results are few, as gradients of filters and of weights are: pixels are summed over, and
//! what is multiplied with each other are some neighbours of one operand with some of the other.
//!
//! Where both operands are contiguous along their results, nothing is laid out: sums of a few neighbours times a vector or two
//! stay in registers while the loop runs along the products. Threads share the sum: each part of it has results of its own,
//! which are added up in order. How many parts there are depends on sizes alone, so that results do not depend on threads.
//!
//! Several groups of few channels are computed as one with the products between groups, which cost nothing where lanes would be
//! idle.

mod tile;

use crate::gemm::{GemmShape, Lhs};
use crate::micro::Kernel;
use crate::pack::{RhsView, RowCopy, Shared};
use crate::scratch::{self, ALIGN, Owner};
use crate::store::{Block, Output};
use crate::{Affine, Pool, blocking::part};
use inrush_base::{Isa, Result};
use tile::{Piece, Tile, TileFn};

pub(crate) use tile::Tiles;
pub(crate) mod levels {
    #[cfg(target_arch = "aarch64")]
    pub(crate) use super::tile::neon;
    pub(crate) use super::tile::plain;
    #[cfg(target_arch = "x86_64")]
    pub(crate) use super::tile::{avx2, avx512};
}

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
/// Results that are added up or handed on at a time by one thread.
const GRAIN: usize = 1 << 13;

/// What one operand gives for each product: runs of memory.
struct Side {
    /// Elements from the product's place to each run.
    runs: Vec<isize>,
    len: usize,
    /// Row or column of each element of each run, counted through the matrices that are computed as one.
    index: Vec<usize>,
    /// Elements between successive products, and between matrices.
    step: isize,
    /// Distinct elements of a run for each product.
    fresh: usize,
}

impl Side {
    /// `map` says where rows or columns lie, of `together` matrices that lie `between` elements apart. `None` where they are no runs.
    fn new(map: &Affine, (together, between): (usize, isize), step: isize) -> Option<Side> {
        let mut levels: Vec<(usize, isize, usize)> = map.levels().collect();
        if together > 1 {
            levels.push((together, between, map.len()));
        }
        if levels.iter().any(|l| l.1 <= 0) || step <= 0 {
            return None;
        }
        levels.sort_by_key(|l| std::cmp::Reverse(l.1));
        let mut outer = levels.len();
        let mut len = 1;
        while outer > 0 && levels[outer - 1].1 == len as isize {
            len *= levels[outer - 1].0;
            outer -= 1;
        }
        if len == 1 {
            return None;
        }
        let (mut runs, mut index) = (vec![0], vec![0]);
        for (i, &(size, stride, place)) in levels.iter().enumerate() {
            if i < outer {
                let each = |at: &isize| {
                    (0..size as isize)
                        .map(move |x| x * stride)
                        .map({
                            let at = *at;
                            move |x| at + x
                        })
                        .collect::<Vec<_>>()
                };
                runs = runs.iter().flat_map(each).collect();
            }
            let each = |at: &usize| {
                let at = *at;
                (0..size).map(move |x| at + x * place)
            };
            index = index.iter().flat_map(each).collect();
        }
        Some(Side {
            runs,
            len,
            index,
            step,
            fresh: len.min(step as usize),
        })
    }

    /// Vectors that cover the runs.
    fn vectors(&self, lanes: usize) -> usize {
        self.runs.len() * self.len.div_ceil(lanes)
    }
}

/// A tile and its place: elements from the place of the product, the first row and column as the sides count them, and how many of
/// each belong to the tile before.
struct Part<T> {
    f: TileFn<T>,
    /// Run and place in it, of either side.
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

/// A product that is computed this way.
pub(crate) struct Outer<'a, T: 'static> {
    shape: GemmShape,
    lhs: &'a Lhs<'a>,
    view: &'a RhsView,
    isa: Isa,
    tiles: Vec<Part<T>>,
    /// Sums of one part.
    sums: usize,
    /// Rows of tiles are of the left operand, vectors of the right one; or the other way round.
    a: Side,
    b: Side,
    swapped: bool,
    /// Matrices that are computed as one.
    together: usize,
    /// Products that lie evenly in both operands; pieces that these lines are cut into, pieces of a chunk, chunks, parts of the sum.
    line: usize,
    cut: usize,
    chunk: usize,
    chunks: usize,
    parts: usize,
}

impl<'a, T: Kernel> Outer<'a, T> {
    /// The product, if it is one for this way.
    pub(crate) fn new(
        shape: &GemmShape,
        lhs: &'a Lhs,
        view: &'a RhsView,
        isa: Isa,
    ) -> Option<Self> {
        let s = *shape;
        let depth = s.taps * s.k;
        let results = s.m.checked_mul(s.n)?;
        if s.m < 2 || s.n < 2 || results > MOST_RESULTS || depth < FEWEST_PRODUCTS {
            return None;
        }
        let table = T::outer(isa)?;
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
        let most = match matrices > 1 && apart.1 == s.n as isize && apart.0 > 0 {
            true => (table.lanes / s.n).clamp(1, matrices),
            false => 1,
        };
        let together = (1..=most).rev().find(|q| matrices.is_multiple_of(*q))?;
        let rows = Side::new(&lhs.rows, (together, apart.0), lhs.k_step)?;
        let cols = Side::new(&view.cols, (together, apart.1), b_step)?;
        let windows = |side: &Side| side.runs.len() > 1 || side.len > side.fresh;
        if results > MOST_PLAIN_RESULTS && !windows(&rows) && !windows(&cols) {
            return None;
        }
        let work = |a: &Side, b: &Side| {
            let vectors = if b.len < 2 * table.lanes { 1 } else { 2 };
            let (height, count) = table.height(vectors, a.len);
            a.runs.len() * height * count * b.vectors(table.lanes)
        };
        let (straight, turned) = (work(&rows, &cols), work(&cols, &rows));
        let swapped = turned < straight;
        let (a, b) = if swapped { (cols, rows) } else { (rows, cols) };
        let (tiles, sums) = cover(table, &a, &b);

        let bytes = (a.runs.len() * a.fresh + b.runs.len() * b.fresh) * size_of::<T>();
        let most = (CHUNK_BYTES / bytes).clamp(*CHUNK.start(), *CHUNK.end());
        let cut = line.div_ceil(most);
        let chunk = (most / line.div_ceil(cut)).max(1);
        let chunks = (depth / line * cut).div_ceil(chunk);
        let blocks = matrices / together;
        let cycles = straight.min(turned).saturating_mul(depth) / 2;
        let parts = (PARTS.div_ceil(blocks))
            .min(MOST_SUMS / (blocks * sums).max(1))
            .min(cycles / PART_CYCLES)
            .clamp(1, chunks);
        Some(Outer {
            shape: s,
            lhs,
            view,
            isa,
            tiles,
            sums,
            a,
            b,
            swapped,
            together,
            line,
            cut,
            chunk,
            chunks,
            parts,
        })
    }

    fn blocks(&self) -> usize {
        self.shape.batch * self.shape.groups / self.together
    }

    /// # Safety
    /// As [`crate::Gemm::run`], for operands that were checked.
    pub(crate) unsafe fn run(&self, pool: &Pool, out: &Output) -> Result<()> {
        let s = &self.shape;
        let copies = (self.copy(!self.swapped)?, self.copy(self.swapped)?);
        let blocks = self.blocks();
        let size = size_of::<T>();
        let sums = (blocks * self.parts * self.sums * size).next_multiple_of(ALIGN);
        let results = s.m * s.n;
        let bytes = sums + blocks * self.together * results * size;
        scratch::with(Owner::Call, bytes, |memory| {
            let parts = blocks * self.parts;
            let threads = pool.threads();
            let groups = match threads {
                1 => 1,
                _ => (4 * threads).div_ceil(parts).min(self.tiles.len()),
            };
            let job = (
                self,
                copies,
                memory.cast::<T>(),
                memory.wrapping_add(sums).cast::<T>(),
                out,
            );
            let job = Shared(&job);
            pool.parallel_for(parts * groups, 1, &|range| {
                let (me, copies, to, ..) = job.get();
                for unit in range {
                    let (of, group) = (unit / groups, unit % groups);
                    let tiles = part(me.tiles.len(), groups, group);
                    // SAFETY: units are disjoint parts of the sums; the caller vouches for the operands.
                    unsafe { me.add_up(of, &me.tiles[tiles.0..tiles.1], copies, *to) };
                }
            })?;
            let grain = (GRAIN / (self.sums * self.parts / self.tiles.len()).max(1)).max(1);
            pool.parallel_for(blocks * self.tiles.len(), grain, &|range| {
                let (me, _, sums, to, _) = job.get();
                let count = me.tiles.len();
                for unit in range {
                    // SAFETY: each result belongs to one tile.
                    unsafe { me.gather(unit / count, &me.tiles[unit % count], *sums, *to) };
                }
            })?;
            let bands = results.div_ceil(GRAIN).min(s.m);
            pool.parallel_for(
                blocks * self.together * bands,
                bands.div_ceil(4),
                &|range| {
                    let (me, _, _, results, out) = job.get();
                    let s = &me.shape;
                    for unit in range {
                        let (matrix, band) = (unit / bands, unit % bands);
                        let m = part(s.m, bands, band);
                        let group = matrix % s.groups;
                        // SAFETY: written above; blocks are disjoint.
                        unsafe {
                            out.put(&Block {
                                acc: results.add((matrix * s.m + m.0) * s.n),
                                ld: s.n,
                                batch: matrix / s.groups,
                                m,
                                n: (group * s.n, (group + 1) * s.n),
                            });
                        }
                    }
                },
            )
        })
    }

    /// How the left (or right) operand is converted, if it must be.
    fn copy(&self, left: bool) -> Result<Option<RowCopy<T>>> {
        let dtype = if left {
            self.lhs.dtype
        } else {
            self.view.dtype
        };
        if dtype == T::DTYPE {
            return Ok(None);
        }
        RowCopy::new(dtype, self.isa).map(Some)
    }

    /// Address of the first product's elements in the left (or right) operand, for a block.
    fn base(&self, left: bool, block: usize) -> *const u8 {
        let matrix = block * self.together;
        let (ptr, at, dtype) = match left {
            true => (
                self.lhs.ptr,
                self.lhs.matrices.offset(matrix),
                self.lhs.dtype,
            ),
            false => (
                self.view.ptr,
                self.view.matrices.offset(matrix),
                self.view.dtype,
            ),
        };
        ptr.wrapping_offset(at * dtype.size() as isize)
    }

    /// Where piece `i` of all products lies.
    fn piece(&self, i: usize) -> Piece {
        let (line, (k0, k1)) = (i / self.cut, part(self.line, self.cut, i % self.cut));
        let k = line * self.line + k0;
        let (tap, inside) = (k / self.shape.k, k % self.shape.k);
        let left = self.lhs.taps[tap] + inside as isize * self.lhs.k_step;
        let right = self.view.k.offset(k);
        let (a, b) = if self.swapped {
            (right, left)
        } else {
            (left, right)
        };
        Piece { a, b, n: k1 - k0 }
    }

    /// Some tiles of one part of the sum.
    ///
    /// # Safety
    /// As [`Outer::run`]; no other thread has the same tiles of the same part.
    unsafe fn add_up(
        &self,
        of: usize,
        tiles: &[Part<T>],
        copies: &(Option<RowCopy<T>>, Option<RowCopy<T>>),
        sums: *mut T,
    ) {
        let (block, at) = (of / self.parts, of % self.parts);
        let sums = sums.wrapping_add(of * self.sums);
        let (c0, c1) = part(self.chunks, self.parts, at);
        let pieces = self.shape.taps * self.shape.k / self.line * self.cut;
        let longest = self.line.div_ceil(self.cut);
        let copied =
            |of, copy, left| Copied::new(of, copy, self.base(left, block), longest, self.chunk);
        let a = copied(&self.a, copies.0, !self.swapped);
        let b = copied(&self.b, copies.1, self.swapped);
        let table = (self.chunk * size_of::<Piece>()).next_multiple_of(ALIGN);
        scratch::with(Owner::Unit, table + a.bytes() + b.bytes(), |memory| {
            let list = memory.cast::<Piece>();
            let (to_a, to_b) = (
                memory.wrapping_add(table),
                memory.wrapping_add(table + a.bytes()),
            );
            for c in c0..c1 {
                let first = c * self.chunk;
                let count = self.chunk.min(pieces - first);
                // SAFETY: scratch is as large as its users need; tiles read what their pieces describe.
                unsafe {
                    for i in 0..count {
                        let mut piece = self.piece(first + i);
                        piece.a = a.take(piece.a, i, piece.n, to_a.cast());
                        piece.b = b.take(piece.b, i, piece.n, to_b.cast());
                        list.add(i).write(piece);
                    }
                    for t in tiles {
                        (t.f)(&Tile {
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
    unsafe fn gather(&self, block: usize, t: &Part<T>, sums: *mut T, to: *mut T) {
        let s = &self.shape;
        let first = sums.wrapping_add(block * self.parts * self.sums + t.sums);
        // SAFETY: the sums of the tile in each part; results of the block's matrices.
        unsafe {
            let total = std::slice::from_raw_parts_mut(first, t.rows * t.ld);
            for p in 1..self.parts {
                tile::add(
                    total,
                    std::slice::from_raw_parts(first.add(p * self.sums), t.rows * t.ld),
                );
            }
            let to = to.add(block * self.together * s.m * s.n);
            for i in t.shared.0..t.rows {
                for j in t.shared.1..t.cols {
                    let a = self.a.index[t.a.0 * self.a.len + t.a.1 + i];
                    let b = self.b.index[t.b.0 * self.b.len + t.b.1 + j];
                    let (m, n) = if self.swapped { (b, a) } else { (a, b) };
                    // Products between groups are nobody's.
                    if m / s.m == n / s.n {
                        *to.add(m * s.n + n % s.n) = total[i * t.ld + j];
                    }
                }
            }
        }
    }
}

/// Tiles that cover all pairs of `a` and `b`, those with the same vectors after each other, and how many sums they have.
fn cover<T>(table: &Tiles<T>, a: &Side, b: &Side) -> (Vec<Part<T>>, usize) {
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
            let f = table.get(vectors, b.len < lanes, rows);
            for of in 0..a.runs.len() {
                for i in 0..count {
                    let row = (i * rows).min(a.len - rows);
                    tiles.push(Part {
                        f,
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

/// An operand's elements of one chunk, where they lie or converted.
struct Copied<'a, T: 'static> {
    side: &'a Side,
    copy: Option<RowCopy<T>>,
    base: *const u8,
    /// Elements between products, from run to run and from piece to piece of the copy.
    step: isize,
    between: usize,
    piece: usize,
}

impl<'a, T: Kernel> Copied<'a, T> {
    fn new(
        side: &'a Side,
        copy: Option<RowCopy<T>>,
        base: *const u8,
        longest: usize,
        pieces: usize,
    ) -> Self {
        // What lies between runs is left out where it is much.
        let step = match copy {
            Some(_) if side.step as usize > 2 * side.len => side.len as isize,
            _ => side.step,
        };
        let piece = (longest - 1) * step as usize + side.len;
        Copied {
            side,
            copy,
            base,
            step,
            between: piece * pieces,
            piece,
        }
    }

    fn bytes(&self) -> usize {
        match self.copy {
            Some(_) => {
                (self.between * self.side.runs.len() * size_of::<T>()).next_multiple_of(ALIGN)
            }
            None => 0,
        }
    }

    /// Where `n` products from `at` on, piece `i` of the chunk, are read.
    ///
    /// # Safety
    /// `to` has room for the chunk; the operand is readable there.
    unsafe fn take(&self, at: isize, i: usize, n: usize, to: *mut T) -> isize {
        let Some(copy) = self.copy else {
            return at;
        };
        let side = self.side;
        for (r, run) in side.runs.iter().enumerate() {
            let dst = to.wrapping_add(r * self.between + i * self.piece);
            let src = |k: usize| copy.place(self.base, at + run + k as isize * side.step);
            // SAFETY: elements of the operand and what lies between them; the piece's own room.
            unsafe {
                if self.step == side.step {
                    copy.run(src(0), 1, dst, (n - 1) * self.step as usize + side.len);
                } else {
                    (0..n).for_each(|k| copy.run(src(k), 1, dst.add(k * side.len), side.len));
                }
            }
        }
        (i * self.piece) as isize
    }

    /// Address of the elements of a run from one on, of the product at place 0.
    fn at(&self, (run, element): (usize, usize), copied: *const T) -> *const T {
        match self.copy {
            Some(_) => copied.wrapping_add(run * self.between + element),
            None => self
                .base
                .cast::<T>()
                .wrapping_offset(self.side.runs[run])
                .wrapping_add(element),
        }
    }
}
