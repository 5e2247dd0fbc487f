//! Blocking: parts of a product for the threads, blocks for the caches, chosen by a rough count of cycles.

use crate::operand::Columns;

/// One k block of the sum: `taps` taps from `tap`, of each `k` elements from `k0`, starting at row `row` of the packed
/// operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KBlock {
    pub tap: usize,
    pub taps: usize,
    pub k0: usize,
    pub k: usize,
    pub row: usize,
}

/// Cuts a sum of `taps` times `k` products into k blocks of about `limit`.
pub(crate) fn k_blocks(taps: usize, k: usize, limit: usize) -> Vec<KBlock> {
    let mut out = Vec::new();
    if taps == 0 || k == 0 {
        return out;
    }
    if k > limit {
        let parts = k.div_ceil(limit);
        let step = k.div_ceil(parts).next_multiple_of(4);
        for tap in 0..taps {
            for k0 in (0..k).step_by(step) {
                let row = tap * k + k0;
                out.push(KBlock {
                    tap,
                    taps: 1,
                    k0,
                    k: step.min(k - k0),
                    row,
                });
            }
        }
        return out;
    }
    let parts = (taps * k).div_ceil(limit).min(taps);
    for part in 0..parts {
        let (tap, end) = (taps * part / parts, taps * (part + 1) / parts);
        out.push(KBlock {
            tap,
            taps: end - tap,
            k0: 0,
            k,
            row: tap * k,
        });
    }
    out
}

/// Sizes that the blocking depends on.
pub(crate) struct Problem<'a> {
    pub matrices: usize,
    pub m: usize,
    pub k: usize,
    pub columns: &'a Columns,
    pub lanes: usize,
    pub bytes: usize,
    /// Rows of a full tile.
    pub tile_rows: usize,
    pub threads: usize,
    /// The right operand is packed again by every unit that needs it.
    pub packs: bool,
    /// The left operand is copied by every unit that needs it.
    pub copies: bool,
}

/// How a product is cut. Units are numbered by matrix, then by columns, then by rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Blocking {
    /// Parts of the rows, and of the panels.
    pub row_parts: usize,
    pub panel_parts: usize,
    /// Most rows of a block inside a unit.
    pub block_rows: usize,
    /// Most rows whose sums are held while a right operand is packed k_block by k_block.
    pub held_rows: usize,
    /// Too little work to share.
    pub serial: bool,
}

/// Longest k_block of the sum, in bytes of one column: a panel's k_block and a block of rows share the second cache.
const K_BLOCK_BYTES: usize = 3072;
/// The same where the right operand is packed on the way and used by many rows: sums are fetched again for each k_block.
const VIEW_K_BLOCK_BYTES: usize = 4096;
/// The same for few rows, which pay more for a panel that leaves the first cache, and the panel's bytes there.
const FEW_K_BLOCK_BYTES: usize = 1280;
const FIRST_CACHE_BYTES: usize = 40 << 10;
/// Most rows that count as few.
const FEW_ROWS: usize = 256;

/// Returns the most bytes of one column in a k block, for panels of `width` columns; `packs`: on the way.
pub(crate) fn longest(packs: bool, m: usize, width: usize) -> usize {
    match packs {
        false => K_BLOCK_BYTES,
        true if m <= FEW_ROWS => (FIRST_CACHE_BYTES / width.max(1)).min(FEW_K_BLOCK_BYTES),
        true => VIEW_K_BLOCK_BYTES,
    }
}
/// The packed panels of a unit then: in the third cache, one at a time in the first.
const PANEL_BYTES: usize = 1 << 20;
/// The sums of a unit then; touched once a k_block, so that the third cache will do.
const HELD_BYTES: usize = 1 << 20;
/// A block of the left operand stays in the second cache.
const LHS_BYTES: usize = 256 << 10;
/// A block of sums too.
const SUM_BYTES: usize = 128 << 10;
/// Cycles; below this a dispatch costs more than it gives.
const SERIAL: f64 = 8000.0;

/// Cycles of packing one element.
const PACK: f64 = 0.8;

/// The same for copying one of the left operand.
const COPY: f64 = 1.5;

/// Cycles of fetching one byte from another core's cache.
const FOREIGN: f64 = 0.25;

/// No more parts of the rows than this for each thread.
const MOST_PARTS: usize = 8;

/// Picks the cheapest blocking by a rough count of cycles.
pub(crate) fn choose(p: &Problem) -> Blocking {
    let panels = p.columns.panels();
    let longest = longest(p.packs, p.m, p.columns.width);
    let k_block = p.k.min(longest / p.bytes).max(1);
    let advances = p.packs && p.k > longest / p.bytes;
    let block_rows = (LHS_BYTES / (k_block * p.bytes)).max(p.tile_rows);
    let block_rows = block_rows - block_rows % p.tile_rows;
    let mut best = Blocking {
        row_parts: 1,
        panel_parts: 1,
        block_rows,
        held_rows: block_rows,
        serial: true,
    };
    let mut best_cost = f64::INFINITY;
    let tiles = p.m.div_ceil(p.tile_rows).max(1);
    let most = tiles.min(MOST_PARTS * p.threads.max(1));
    let mut row_parts = 1;
    while row_parts <= most {
        let rows = p.m.div_ceil(row_parts).max(1);
        let sums = rows.min(block_rows) * p.columns.padded() * p.bytes;
        let fewest = if p.packs {
            (k_block * p.columns.padded() * p.bytes).div_ceil(PANEL_BYTES)
        } else {
            sums.div_ceil(SUM_BYTES)
        };
        for more in [4, 5, 6, 8, 12, 16, 24, 32] {
            let panel_parts = (fewest * more).div_ceil(4).clamp(1, panels.max(1));
            let cols = panels.div_ceil(panel_parts) * p.columns.width;
            let held_rows = (HELD_BYTES / (cols * p.bytes).max(1)).max(p.tile_rows);
            let block_rows = if p.packs {
                block_rows.min(held_rows - held_rows % p.tile_rows)
            } else {
                block_rows
            };
            let packings = if advances {
                rows.div_ceil(held_rows)
            } else {
                1
            };
            let parts = (row_parts, panel_parts);
            let (unit, cost) = cost(p, rows, cols, parts, packings);
            if cost < best_cost {
                best_cost = cost;
                best = Blocking {
                    row_parts,
                    panel_parts,
                    block_rows,
                    held_rows,
                    serial: unit * ((p.matrices * row_parts * panel_parts) as f64) < SERIAL,
                };
            }
            if panel_parts >= panels {
                break;
            }
        }
        row_parts = next(row_parts);
    }
    best
}

/// Returns the next count to try: all small ones, then steps of a quarter.
fn next(n: usize) -> usize {
    n + (n / 4).max(1)
}

/// Estimates cycles of one unit, and of the whole on all threads. `parts` of the rows and of the panels.
fn cost(
    p: &Problem,
    rows: usize,
    cols: usize,
    parts: (usize, usize),
    packings: usize,
) -> (f64, f64) {
    let (rows_f, cols_f, k) = (rows as f64, cols as f64, p.k as f64);
    let bytes = p.bytes as f64;
    let multiply = rows_f * cols_f * k / (2.0 * p.lanes as f64);
    let read_lhs = rows_f * k * if p.copies { COPY } else { bytes / 16.0 };
    let read = if p.packs {
        PACK * packings as f64
    } else {
        bytes / 10.0
    };
    let read_rhs = cols_f * k * read;
    let mut unit = multiply + read_lhs + read_rhs + rows_f * cols_f / p.lanes as f64 + 500.0;
    let units = p.matrices * parts.0 * parts.1;
    if p.matrices == 1 && parts.1 > 1 {
        // The kernels before and after share rows out: what other threads wrote, or will read, is in their caches.
        let foreign = 1.0 - 1.0 / p.threads.max(1) as f64;
        unit += foreign * rows_f * (k + cols_f) * bytes * FOREIGN;
    }
    let waves = units.div_ceil(p.threads.max(1)) as f64;
    // A quarter of a unit is what threads wait for each other at the end.
    (unit, unit * (waves + 0.25))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stretches_cover_the_sum_once() {
        for (taps, k) in [
            (1, 1),
            (1, 1000),
            (9, 64),
            (3, 192),
            (49, 3),
            (2, 700),
            (0, 5),
            (4, 0),
        ] {
            let blocks = k_blocks(taps, k, 256);
            let mut row = 0;
            for s in &blocks {
                assert_eq!(s.row, row);
                assert_eq!(s.row, s.tap * k + s.k0);
                assert!(s.taps == 1 || s.k == k);
                row += s.taps * s.k;
            }
            assert_eq!(row, taps * k);
        }
    }

    #[test]
    fn enough_units_for_the_threads() {
        let columns = Columns {
            n: 1024,
            width: 16,
            last: 0,
            full: 64,
        };
        for threads in [1, 2, 4, 16, 64] {
            let blocking = choose(&Problem {
                matrices: 1,
                m: 1024,
                k: 1024,
                columns: &columns,
                lanes: 8,
                bytes: 4,
                tile_rows: 6,
                threads,
                packs: false,
                copies: false,
            });
            assert!(
                !blocking.serial && blocking.row_parts * blocking.panel_parts >= threads,
                "{blocking:?}"
            );
        }
    }
}
