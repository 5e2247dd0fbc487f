//! Tiles near a given one that may run faster: what tuning by measurement tries.
//!
//! Neighbours differ in one or two fields. Those that a device refuses, or that the block program cannot have, are told apart when
//! they are made.

use super::plan::STAGES;
use super::{Block, Pointers, Tile};
use inrush_base::Gpu;

/// The work that a tile is of: products and attentions have rules of their own.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum TileOf {
    /// Fused loops.
    Loops,
    /// A product of matrices: `y` rows by `x` columns, steps of `r` terms.
    Product,
    /// An attention: `x` queries, steps of `r` keys.
    Attention,
}

/// Sides that tensor cores take.
const SIDES: std::ops::RangeInclusive<i64> = 16..=256;
/// Elements of a sum that a thread keeps in registers.
const SUMS: i64 = 256;

impl Block {
    /// Returns what the tile is of.
    pub fn tile_of(&self) -> TileOf {
        match (&self.product, &self.attention) {
            (Some(_), _) => TileOf::Product,
            (_, Some(_)) => TileOf::Attention,
            _ => TileOf::Loops,
        }
    }
}

impl Tile {
    /// Returns the tiles near this one.
    pub fn neighbours(&self, of: TileOf) -> Vec<Tile> {
        match of {
            TileOf::Loops => self.of_loops(),
            TileOf::Product => self.of_product(),
            TileOf::Attention => self.of_attention(),
        }
    }

    /// A persistent product has tiles of one size; others differ in all. Both are neighbours of each other.
    fn of_product(&self) -> Vec<Tile> {
        let mut out = Vec::new();
        let (rows, pair) = Gpu::PAIR;
        if self.pointers == Pointers::Map {
            add_stages(self, &mut out);
            out.push(Tile {
                pointers: Pointers::Plain,
                ..*self
            });
            return out;
        }
        add_sides(
            self,
            &mut out,
            &[(self.y * 2, self.x), (self.y / 2, self.x)],
        );
        add_sides(
            self,
            &mut out,
            &[(self.y, self.x * 2), (self.y, self.x / 2)],
        );
        let turned = [(self.y * 2, self.x / 2), (self.y / 2, self.x * 2)];
        add_sides(self, &mut out, &turned);
        for r in [self.r * 2, self.r / 2] {
            out.push(Tile { r, ..*self });
        }
        add_stages(self, &mut out);
        add_warps(self, &mut out);
        out.retain(|t| {
            SIDES.contains(&t.x)
                && SIDES.contains(&t.y)
                && (16..=512).contains(&t.r)
                && t.x * t.y <= SUMS * 32 * i64::from(t.warps)
        });
        if self.y >= rows / 2 && self.x >= rows / 2 {
            out.push(Tile {
                x: pair / 2,
                y: rows,
                warps: 8,
                pointers: Pointers::Map,
                ..*self
            });
        }
        out
    }

    fn of_attention(&self) -> Vec<Tile> {
        let mut out = Vec::new();
        for x in [self.x * 2, self.x / 2] {
            out.push(Tile { x, ..*self });
            // Warps have rows of their own.
            let warps = (i64::from(self.warps) * x / self.x) as u32;
            out.push(Tile { x, warps, ..*self });
        }
        for r in [self.r * 2, self.r / 2] {
            out.push(Tile { r, ..*self });
        }
        add_stages(self, &mut out);
        add_warps(self, &mut out);
        out.retain(|t| SIDES.contains(&t.x) && SIDES.contains(&t.r) && (1..=8).contains(&t.warps));
        out.dedup();
        out
    }

    fn of_loops(&self) -> Vec<Tile> {
        let mut out: Vec<Tile> = Vec::new();
        let mut add = |t: Tile| {
            let elements = t.x * t.y * t.r;
            let fine = t.x >= 1
                && t.y >= 1
                && t.r >= 1
                && (1..=32).contains(&t.warps)
                && (1..=4).contains(&t.stages)
                && elements >= 32
                // A thread holds its elements in registers.
                && elements / (32 * t.warps as i64) <= 128;
            if fine && t != *self && !out.contains(&t) {
                out.push(t);
            }
        };
        // Blocks and descriptors are for tiles of several sides.
        let several = [self.x, self.y, self.r].iter().filter(|n| **n > 1).count() > 1;
        for pointers in Pointers::ALL.into_iter().filter(|_| several) {
            add(Tile { pointers, ..*self });
        }
        for warps in [self.warps / 2, self.warps, self.warps * 2] {
            let t = Tile { warps, ..*self };
            add(t);
            add(Tile { x: t.x * 2, ..t });
            add(Tile { x: t.x / 2, ..t });
            if t.r > 1 && !t.looped {
                add(Tile {
                    preload: !t.preload,
                    ..t
                });
            }
            if t.y > 1 {
                add(Tile { y: t.y / 2, ..t });
                add(Tile { y: t.y * 2, ..t });
                add(Tile {
                    x: t.x * 2,
                    y: t.y / 2,
                    ..t
                });
                add(Tile {
                    x: t.x / 2,
                    y: t.y * 2,
                    ..t
                });
            }
            if t.looped {
                for stages in [1, 2, 3, 4] {
                    add(Tile { stages, ..t });
                }
                add(Tile { r: t.r / 2, ..t });
                add(Tile { r: t.r * 2, ..t });
                add(Tile {
                    x: t.x * 2,
                    r: t.r / 2,
                    ..t
                });
                add(Tile {
                    x: t.x / 2,
                    r: t.r * 2,
                    ..t
                });
            }
        }
        out
    }
}

/// Adds tiles of other sides.
fn add_sides(tile: &Tile, out: &mut Vec<Tile>, sides: &[(i64, i64)]) {
    out.extend(sides.iter().map(|(y, x)| Tile {
        x: *x,
        y: *y,
        ..*tile
    }));
}

/// Adds a shallower and a deeper pipeline.
fn add_stages(tile: &Tile, out: &mut Vec<Tile>) {
    let stages = [tile.stages + 1, tile.stages.saturating_sub(1)];
    let stages = stages.into_iter().filter(|s| (1..=STAGES).contains(s));
    out.extend(stages.map(|stages| Tile { stages, ..*tile }));
}

/// Adds twice and half as many warps.
fn add_warps(tile: &Tile, out: &mut Vec<Tile>) {
    let warps = [tile.warps * 2, tile.warps / 2];
    let warps = warps.into_iter().filter(|w| (1..=8).contains(w));
    out.extend(warps.map(|warps| Tile { warps, ..*tile }));
}
