//! Stencils: windows that slide over an image, as in pooling and depthwise convolutions.
//!
//! Neighbouring results read nearly the same elements and the same filter. Unroll-and-jam computes some of them in one
//! inner loop, so that each element of the filter is loaded once, and what windows share once. This file decides only whether
//! it may be done, and has the grid leave such loops to one unit; the language that spells the kernel jams them.
//!
//! ```text
//! before                              rows jammed, lanes over pixels         pixels jammed, lanes over channels
//! for y                               for y by 4                             for y
//!   for x                               for x by 16 lanes                      for x by 7
//!     for c                               for ky, kx                             for c by 16 lanes
//!       for ky, kx                          w = filter[ky, kx]                     for ky, kx
//!         acc += in[y+ky, x+kx]             acc0 += in[y+ky, x+kx] * w               w = filter[c, ky, kx]
//!                * filter[ky, kx]           acc1 += in[y+1+ky, x+kx] * w             acc0 += in[y+ky, x+kx, c] * w
//!                                           ..                                       acc1 += in[y+ky, x+1+kx, c] * w
//! ```

use super::Group;
use crate::build::Builder;
use crate::nest::{EffectKind, GroupLoop, Nest};
use crate::{Access, Def, Role, access};
use inrush_base::{DType, Isa};
use inrush_expr::{Expr, Sym};
use inrush_loops::Axis;

/// Rows of a plane that a unit takes at most, and pixels of each.
const MOST_ROWS: i64 = 64;

/// Returns the numbers of rows or pixels to jam, best first: few enough for the registers. One of them is taken that leaves no
/// row over.
pub fn jam_factors(isa: Isa) -> &'static [i64] {
    match isa {
        Isa::Avx512 => &[7, 6, 5, 4],
        _ => &[4, 3],
    }
}

/// Returns bits of the axes over which a nest reduces, if lanes over `axis` keep sums of their own: a value that depends on
/// them and not on the lanes is one broadcast in every turn.
pub(super) fn invariant_reduced(b: &Builder, nest: &Nest, axis: &Axis) -> u64 {
    let first = nest.splits.iter().copied().min();
    let reduced = first.map_or(&[][..], |at| &nest.axes[at..]);
    if reduced.iter().any(|a| a.sym == axis.sym) {
        return 0;
    }
    reduced.iter().fold(0, |bits, a| bits | b.bits[&a.sym])
}

/// Returns true if vectors are wide enough for jamming to pay.
fn is_wide(isa: Isa) -> bool {
    matches!(isa, Isa::Avx2 | Isa::Avx512)
}

/// Narrows vectors of `full` lanes to 4 or 8 where `axis` would leave them half empty: rows of small images. Only over the
/// pixels of a stencil in single floats, where every product is one with a broadcast filter element.
pub(super) fn narrowed(g: &Group, at: usize, axis: &Axis, full: u32) -> u32 {
    let b = g.b;
    let exprs = b.tables.exprs;
    // Rows of 4 to 8 pixels fit one such vector.
    let fits = match exprs.as_int(axis.size) {
        Some(4) => 4,
        Some(5..=8) => 8,
        _ => return full,
    };
    let again = invariant_reduced(b, &b.nests[at], axis);
    if !is_wide(g.caps.isa) || fits >= full || again == 0 {
        return full;
    }
    let bit = b.bits[&axis.sym];
    let varies = |s: Sym| b.indirect.contains_key(&s) && b.bits[&s] & bit != 0;
    let near = |def: &Def| match def {
        Def::Load { offset, .. } => match access(exprs, *offset, axis.sym, varies) {
            Access::Strided(c) => exprs.is_int(c, 2),
            found => found != Access::Gather,
        },
        _ => true,
    };
    let mut under_filter = false;
    let plain = g.live.alive().all(|v| {
        let bits = b.infos[v].bits;
        let load = matches!(b.values[v].def, Def::Load { .. });
        under_filter |= load && bits & again != 0 && bits & bit == 0;
        let dtype = b.values[v].dtype;
        bits & bit == 0
            || near(&b.values[v].def) && matches!(dtype, DType::F32 | DType::I32 | DType::Bool)
    });
    if plain && under_filter { fits } else { full }
}

/// Returns true if this is a stencil vectorised over output pixels whose loads depend on `rows` through their offset only. Such
/// rows can be jammed, so one grid unit takes all of them.
pub(crate) fn can_jam_rows(g: &Group, lanes: &GroupLoop, rows: &Axis) -> bool {
    let b = g.b;
    let exprs = b.tables.exprs;
    let (Role::Vector { .. }, Some(pixels), Some(count)) = (
        lanes.role,
        exprs.as_int(lanes.axis.size),
        exprs.as_int(rows.size),
    ) else {
        return false;
    };
    let again = (b.nests.iter()).fold(0, |bits, n| bits | invariant_reduced(b, n, &lanes.axis));
    let few = pixels <= MOST_ROWS && (2..=MOST_ROWS).contains(&count);
    if again == 0 || !few || !is_wide(g.caps.isa) {
        return false;
    }
    let (lane, row) = (b.bits[&lanes.axis.sym], b.bits[&rows.sym]);
    let varies = |s: Sym| b.indirect.contains_key(&s);
    let mut under_filter = false;
    let alike = g.live.alive().all(|v| {
        let bits = b.infos[v].bits;
        match b.values[v].def {
            Def::Load { offset, .. } => {
                under_filter |= bits & again != 0 && bits & (lane | row) == 0;
                bits & row == 0
                    || access(exprs, offset, lanes.axis.sym, varies) == Access::Contiguous
            }
            Def::Index(_) | Def::Indirect { .. } => bits & row == 0,
            _ => true,
        }
    });
    alike && under_filter
}

/// Returns true if lanes are channels, each under its own filter that slides along `row`. Pixels of the row can be jammed then:
/// they load a filter's elements once, and share what is under several windows.
pub(super) fn can_jam_pixels(g: &Group, lane: &Axis, row: &Axis) -> bool {
    let b = g.b;
    let exprs = b.tables.exprs;
    let [nest] = b.nests.as_slice() else {
        return false;
    };
    let again = invariant_reduced(b, nest, lane);
    let jams = is_wide(g.caps.isa) && again != 0;
    let Some(tap) = nest.axes.last().filter(|_| jams) else {
        return false;
    };
    let known = exprs.as_int(row.size);
    if exprs.hint(row.size) < 2 {
        return false;
    }
    let varies = |s: Sym| b.indirect.contains_key(&s);
    let along = |at: Expr| access(exprs, at, lane.sym, varies) == Access::Contiguous;
    let step = |at: Expr, s: Sym| exprs.coefficient(at, s).and_then(|c| exprs.as_int(c));
    let (channel, pixel) = (b.bits[&lane.sym], b.bits[&row.sym]);
    let (mut slides, mut under_filter) = (false, false);
    let alike = g.live.alive().all(|v| {
        let bits = b.infos[v].bits;
        match b.values[v].def {
            Def::Load { offset, .. } => {
                // Windows of neighbours share elements if one stride divides the other.
                slides |= match (step(offset, row.sym), step(offset, tap.sym)) {
                    (Some(r), Some(t)) => {
                        t != 0 && r != 0 && (r.wrapping_rem(t) == 0 || t.wrapping_rem(r) == 0)
                    }
                    _ => false,
                };
                under_filter |= bits & again != 0 && bits & channel != 0 && bits & pixel == 0;
                bits & pixel == 0 || along(offset)
            }
            // A pixel's position tells whether a tap is in the image; peeling needs to know the row's length to use it.
            Def::Index(_) => bits & pixel == 0 || bits & channel == 0 && known.is_some(),
            Def::Indirect { .. } | Def::Running { .. } => false,
            _ => true,
        }
    });
    let effects = nest.effects.iter().zip(&g.live.effects[0]);
    let stores = (effects.filter(|(_, alive)| **alive)).all(|(e, _)| match &e.kind {
        EffectKind::Store { offset, .. } => along(*offset),
        EffectKind::Update { .. } => true,
        EffectKind::Check { .. } => false,
    });
    alike && stores && slides && under_filter
}
