//! The grid: which axes of a group threads share, in units of which size, and which loops run inside a unit.
//!
//! A unit should cover a few thousand points, so that finding its axes from its number costs nothing, and there should be many
//! units for the threads. From a group over `n, h, c` with lanes over `c`:
//!
//! ```text
//! c is short            c is long                       c and h are short
//! grid n, h             grid n, h, c in blocks          grid n
//!   for c by lanes        for c in the block, by lanes    for h
//!                                                           for c by lanes
//! ```

use crate::flatten::{Flat, LENGTH};
use crate::nest::GroupLoop;
use crate::vectorize::{
    Group, INTERCHANGE_STEP, PIXELS_VECTORS, SharedLanes, Strategy, TILE, Vectorization,
    can_jam_rows,
};
use crate::{GridAxis, Param, Range, Role};
use inrush_base::tally::{Way, reached};
use inrush_expr::{Expr, Exprs, Sym};
use inrush_loops::Axis;

/// Elements that one unit of the grid should cover at least, so that the decomposition of its number costs nothing.
const UNIT_POINTS: i64 = 4096;
/// Elements up to which one unit covers more, where it would cover fewer than these.
const MOST_POINTS: i64 = 16 * UNIT_POINTS;
const LEAST_POINTS: i64 = UNIT_POINTS / 4;
/// Units that are enough for the threads.
const MANY_UNITS: i64 = 64;
/// Units for each thread that take a share of what all units read whole.
const SHARES: i64 = 4;
/// Shortest flat kernel whose length is an argument.
const LEAST_LENGTH: i64 = 17;

/// The grid of a kernel.
pub(crate) struct Grid {
    /// Axes that have one point in a unit, as the loops' offsets know them.
    pub outer: Vec<Axis>,
    /// All axes that units are counted by.
    pub axes: Vec<GridAxis>,
    /// Loops inside a unit, outermost first.
    pub loops: Vec<GroupLoop>,
    pub units: Expr,
    /// The length of a flat kernel, if that is an argument.
    pub length: Option<Param>,
}

/// Shares out the axes of a group.
pub(crate) fn partition(flat: &mut Flat, g: &Group, v: &Vectorization) -> Grid {
    let exprs = flat.exprs();
    // Work of one point of the group, in points of its nests.
    let point: i64 = (g.b.nests.iter())
        .map(|n| (n.axes.iter()).fold(1i64, |a, x| a.saturating_mul(exprs.hint(x.size).max(1))))
        .fold(0i64, i64::saturating_add)
        .max(1);
    let mut p = Partition {
        g,
        exprs,
        outer: g.shared.to_vec(),
        loops: Vec::new(),
        work: point,
        tiles: None,
        row: None,
    };
    if let Vectorization::Shared(lanes) = v {
        p.outer.retain(|a| a.sym != lanes.axis.sym);
        let point = p.inside(flat, lanes, point);
        p.lanes(lanes, point);
    }
    p.absorb();
    let mut axes = p.axes();
    let units = exprs.product(
        axes.iter()
            .map(|a| exprs.ceildiv(a.extent, exprs.int(a.block))),
    );
    let length = p.length(&mut axes);
    Grid {
        outer: p.outer,
        axes,
        loops: p.loops,
        units,
        length,
    }
}

/// A grid in the making.
struct Partition<'p, 'g, 'a> {
    g: &'p Group<'g, 'a>,
    exprs: &'a Exprs,
    outer: Vec<Axis>,
    loops: Vec<GroupLoop>,
    /// Points of a unit.
    work: i64,
    /// The axis that counts tiles to be transposed.
    tiles: Option<Sym>,
    /// The axis of jammed pixels.
    row: Option<Sym>,
}

impl Partition<'_, '_, '_> {
    /// Adds the loop inside the lanes, if the strategy has one. Returns the points inside the lanes.
    fn inside(&mut self, flat: &mut Flat, lanes: &SharedLanes, point: i64) -> i64 {
        match lanes.strategy {
            Strategy::Transpose(across) => {
                reached(Way::TransposedTile);
                let tiles = self.steps(flat, across, TILE);
                self.tiles = Some(tiles);
                TILE * point
            }
            Strategy::Interchange(axis) => {
                reached(Way::Beneath);
                let all = self.exprs.as_int(axis.size);
                match all.filter(|n| *n <= 2 * INTERCHANGE_STEP) {
                    Some(all) => {
                        self.outer.retain(|a| a.sym != axis.sym);
                        self.serial(axis, Range::Full(axis.size));
                        all * point
                    }
                    None => {
                        self.steps(flat, axis, INTERCHANGE_STEP);
                        INTERCHANGE_STEP * point
                    }
                }
            }
            Strategy::Interleave(axis) => {
                let all = self.exprs.as_int(axis.size).unwrap_or(1);
                self.outer.retain(|a| a.sym != axis.sym);
                self.serial(axis, Range::Full(axis.size));
                all * point
            }
            Strategy::JamPixels(row) => {
                reached(Way::Pixels);
                self.row = Some(row.sym);
                point
            }
            Strategy::Plain => point,
        }
    }

    /// Has the grid count steps of an axis, and a loop inside a unit run over one of them. Returns the number of the step.
    fn steps(&mut self, flat: &mut Flat, axis: Axis, step: i64) -> Sym {
        let exprs = self.exprs;
        let steps = flat.fresh(exprs.ceildiv(axis.size, exprs.int(step)));
        for a in self.outer.iter_mut().filter(|a| a.sym == axis.sym) {
            *a = steps;
        }
        let range = Range::Tile {
            start: exprs.mul(exprs.sym_expr(steps.sym), exprs.int(step)),
            step,
            extent: axis.size,
        };
        self.serial(axis, range);
        steps.sym
    }

    /// Puts a serial loop around those there are.
    fn serial(&mut self, axis: Axis, range: Range) {
        let role = Role::Serial;
        self.loops.insert(0, GroupLoop { axis, range, role });
    }

    /// Puts the lanes loop around those there are: over the whole axis, or over a block of it.
    fn lanes(&mut self, lanes: &SharedLanes, point: i64) {
        let axis = lanes.axis;
        // Points that may combine into one element have to be in one unit.
        let stays = |s: Sym| self.g.conflicts.stays(s);
        let hint = |a: &Axis| self.exprs.hint(a.size).max(1);
        let total = hint(&axis).saturating_mul(point);
        // Axes that have to stay in the unit, too.
        let within: i64 = (self.outer.iter().filter(|a| stays(a.sym)))
            .fold(total, |n, a| n.saturating_mul(hint(a)));
        let range;
        if !stays(axis.sym) && within > 2 * UNIT_POINTS {
            let block = self.block(lanes, point);
            self.work = block.saturating_mul(point);
            range = Range::Block {
                extent: axis.size,
                block,
            };
        } else {
            self.work = total;
            range = Range::Full(axis.size);
        }
        let role = Role::Vector {
            width: lanes.width,
            unroll: lanes.unroll,
        };
        self.loops.insert(0, GroupLoop { axis, range, role });
    }

    /// Returns the points of a block of the lanes' axis: whole vectors.
    fn block(&self, lanes: &SharedLanes, point: i64) -> i64 {
        let width = lanes.width as i64;
        if self.g.conflicts.combining {
            // Each unit reads all indices: a few units for each thread, of whole cache lines.
            let line = 4 * width;
            let length = self.exprs.hint(lanes.axis.size).max(1);
            let share = length / (SHARES * self.g.caps.threads.max(1) as i64);
            return (share + line - 1).max(line) / line * line;
        }
        match lanes.strategy {
            // A few tiles a unit: the next unit reads on where these rows ended, and so do the prefetchers.
            Strategy::Transpose(_) => (4 * TILE).max(width),
            Strategy::JamPixels(_) => PIXELS_VECTORS * width,
            Strategy::Plain | Strategy::Interchange(_) | Strategy::Interleave(_) => {
                let step = (lanes.unroll as i64).max(4) * width;
                ((2 * UNIT_POINTS / point) / step * step).max(step)
            }
        }
    }

    /// Takes axes into the unit while it is small. Axes with conflicts come first, then small ones from the last on.
    fn absorb(&mut self) {
        let exprs = self.exprs;
        let hint = |a: &Axis| exprs.hint(a.size).max(1);
        let g = self.g;
        let stays = |a: &Axis| g.conflicts.stays(a.sym);
        // Axes with conflicts first, wherever they stand, then from the last on.
        while let Some(at) =
            (self.outer.iter().rposition(stays)).or(self.outer.len().checked_sub(1))
        {
            let last = self.outer[at];
            let more = self.work.saturating_mul(hint(&last));
            // A unit that does next to nothing takes a whole row, if there are many rows.
            let rows = self.outer[..at].iter().map(hint);
            let rows = rows.fold(1, i64::saturating_mul);
            let room = if self.work < LEAST_POINTS && rows >= MANY_UNITS {
                MOST_POINTS
            } else {
                UNIT_POINTS
            };
            let jams = self.loops.len() == 1
                && (self.row == Some(last.sym)
                    || can_jam_rows(g, &self.loops[0], &last) && rows >= g.caps.threads as i64 * 4);
            if more > room && !stays(&last) && !jams {
                break;
            }
            self.outer.remove(at);
            self.work = more;
            self.serial(last, Range::Full(last.size));
        }
    }

    /// Returns the axes that units are counted by.
    fn axes(&self) -> Vec<GridAxis> {
        let mut axes: Vec<GridAxis> = (self.outer.iter())
            .map(|a| GridAxis {
                sym: a.sym,
                extent: a.size,
                block: 1,
            })
            .collect();
        let blocked = self.loops.iter().find_map(|l| match l.range {
            Range::Block { extent, block } => Some(GridAxis {
                sym: l.axis.sym,
                extent,
                block,
            }),
            _ => None,
        });
        if let Some(blocked) = blocked {
            // Tiles of one block follow each other: they read the same pages.
            let at = (axes.iter())
                .position(|a| Some(a.sym) == self.tiles)
                .unwrap_or(axes.len());
            axes.insert(at, blocked);
        }
        axes
    }

    /// Makes the length of a flat kernel an argument, so that one function serves tensors of all sizes.
    fn length(&mut self, axes: &mut [GridAxis]) -> Option<Param> {
        let exprs = self.exprs;
        let [axis] = self.g.shared else {
            return None;
        };
        let flat = self.g.b.nests.iter().all(|n| n.axes.is_empty());
        if !flat || exprs.as_int(axis.size).is_none_or(|n| n < LEAST_LENGTH) {
            return None;
        }
        reached(Way::FlatLength);
        let sym = exprs.sym_at(LENGTH, exprs.int(i64::MAX));
        // The number of units keeps the real extent, which the caller evaluates.
        let extent = exprs.sym_expr(sym);
        for g in axes {
            g.extent = extent;
        }
        for l in &mut self.loops {
            l.range = match l.range {
                Range::Full(_) => Range::Full(extent),
                Range::Block { block, .. } => Range::Block { extent, block },
                other => other,
            };
        }
        Some(Param {
            sym,
            value: axis.size,
        })
    }
}
