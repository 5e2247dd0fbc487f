//! Vectorisation: which loop runs over vector lanes, and how the loops around it change for it.
//!
//! A group is a loop nest over *shared* axes, inside of which nests may have axes of their own. [`choose`] weighs lanes over
//! each shared axis against lanes over the best own axis of every nest ([`score`]), then looks what the loops around the lanes
//! can do for them. For a group over `n, h, c`:
//!
//! ```text
//! written        Plain                  Transpose{h}             Interchange{h}           JamPixels{h}         Own
//! for n          grid n, h              grid n, tiles of h       grid n                   grid n               grid n, h, c
//!   for h          for c by 16 lanes      for c by 16 lanes        for c by 16 lanes        for h in sevens      for r by 16 lanes
//!     for c          body                   for h in the tile        what h leaves as is      for c by 16          body
//!       body                                  body                   for h                      body
//!                                                                      the rest
//! ```
//!
//! The result is data. `grid.rs` builds the loops from it.

mod interchange;
mod interleave;
mod score;
mod stencil;
mod transpose;
mod unroll;

use crate::build::Builder;
use crate::conflicts::{Conflicts, can_run_in_lanes};
use crate::live::Live;
use crate::nest::{EffectKind, Nest};
use crate::{Access, Def, access};
use inrush_base::{Caps, DType};
use inrush_expr::{Expr, Exprs, Sym};
use inrush_loops::{Axis, ScalarOp};
use score::score;

pub(crate) use interchange::STEP as INTERCHANGE_STEP;
pub use interleave::INTERLEAVED;
pub(crate) use stencil::can_jam_rows;
pub use stencil::jam_factors;
pub(crate) use unroll::of_nest as unroll_of_nest;

/// Points of a side of a tile that is transposed: a cache line of `f32`.
pub(crate) const TILE: i64 = 16;
/// Vectors of channels that a unit takes along a row of jammed pixels.
pub(crate) const PIXELS_VECTORS: i64 = 4;

/// A group and what is known of it.
pub(crate) struct Group<'g, 'a> {
    pub b: &'g Builder<'a>,
    pub live: &'g Live,
    /// The group's axes, outermost first.
    pub shared: &'g [Axis],
    pub conflicts: &'g Conflicts,
    pub caps: &'g Caps,
}

/// Which loops run over lanes.
#[derive(Debug)]
pub(crate) enum Vectorization {
    /// None does.
    Scalar,
    /// Each nest has one of its own, or none.
    Own(Vec<Option<OwnAxis>>),
    /// One over an axis of the group: everything runs inside.
    Shared(SharedLanes),
}

/// Lanes over an axis of the group.
#[derive(Debug)]
pub(crate) struct SharedLanes {
    pub axis: Axis,
    pub width: u32,
    /// Vectors that the loop handles at once.
    pub unroll: u32,
    pub strategy: Strategy,
}

/// How the loops around and inside the lanes change for them.
#[derive(Copy, Clone, Debug)]
pub(crate) enum Strategy {
    Plain,
    /// A tile of this axis runs inside the lanes and is transposed in registers.
    Transpose(Axis),
    /// This axis runs inside the lanes, since most work is invariant along it.
    Interchange(Axis),
    /// This short axis runs inside the lanes, and its turns store neighbouring elements.
    Interleave(Axis),
    /// Pixels of this axis, which runs around the lanes, are jammed.
    JamPixels(Axis),
}

/// An axis of a nest's own, by position, with its lanes and worth.
#[derive(Copy, Clone, Debug)]
pub(crate) struct OwnAxis {
    pub axis: usize,
    pub width: u32,
    pub worth: f64,
}

/// Chooses between an axis of the group and axes of the nests.
pub(crate) fn choose(g: &Group) -> Vectorization {
    let kinds = kinds(g.b, g.live);
    let own: Vec<Option<OwnAxis>> = (0..g.b.nests.len())
        .map(|n| own_axis(g, &kinds, n))
        .collect();
    let worth: f64 = own.iter().flatten().map(|x| x.worth).sum();
    match shared_axis(g, &kinds, worth) {
        Some((at, width)) => Vectorization::Shared(shared_lanes(g, at, width)),
        None if worth > 0.0 => Vectorization::Own(own),
        None => match contiguous_axis(g, &kinds) {
            Some((at, width)) => Vectorization::Shared(shared_lanes(g, at, width)),
            None => Vectorization::Scalar,
        },
    }
}

/// Returns position and lanes of the best axis of the group that may be innermost and is worth more than `own`. Between equals
/// the last one wins: it is the most contiguous in most layouts.
fn shared_axis(g: &Group, kinds: &[(u64, DType)], own: f64) -> Option<(usize, u32)> {
    let exprs = g.b.tables.exprs;
    let nests = 0..g.b.nests.len();
    let mut best = None;
    let mut most = if own > 0.0 { own } else { 0.0 };
    for (at, axis) in g.shared.iter().enumerate() {
        let w = width(g.caps, kinds, g.b.bits[&axis.sym]);
        let lanes = |n: &Nest| can_run_in_lanes(g.b, n, axis.sym);
        if w < 2 || !g.conflicts.may_be_innermost(at) || !g.b.nests.iter().all(lanes) {
            continue;
        }
        let w = (nests.clone())
            .map(|n| stencil::narrowed(g, n, axis, w))
            .min()
            .unwrap_or(w);
        let worth: f64 = (nests.clone())
            .map(|n| score(g, n, axis, g.shared))
            .sum::<f64>()
            * efficiency(exprs, axis.size, w);
        if worth > most || (worth == most && best.is_some()) {
            (best, most) = (Some((at, w)), worth);
        }
    }
    best
}

/// Finds what the loops around lanes over an axis can do for them.
fn shared_lanes(g: &Group, at: usize, width: u32) -> SharedLanes {
    let axis = g.shared[at];
    let strategy = strategy(g, &axis, width);
    let unroll = match strategy {
        Strategy::JamPixels(_) | Strategy::Interleave(_) => 1,
        // Whole cache lines of a transposed tile.
        Strategy::Transpose(_) if TILE % width as i64 == 0 => {
            (TILE / width as i64).clamp(1, 4) as u32
        }
        _ => {
            let copies = unroll::of_group(g, width);
            // Wide columns only where there are still enough of them for the threads.
            let wide = 8 * width as i64 * 4 * g.caps.threads as i64;
            if copies == 8 && g.b.tables.exprs.hint(axis.size) < wide {
                4
            } else {
                copies
            }
        }
    };
    SharedLanes {
        axis,
        width,
        unroll,
        strategy,
    }
}

/// Chooses the first strategy that applies: transposition, interleaving, interchange, jamming.
fn strategy(g: &Group, lane: &Axis, width: u32) -> Strategy {
    let exprs = g.b.tables.exprs;
    let place = |a: &Axis| g.shared.iter().position(|s| s.sym == a.sym);
    let across = transpose::transposed_axis(g, lane)
        .filter(|a| place(a).is_some_and(|at| g.conflicts.may_be_innermost(at)));
    if let Some(across) = across {
        return Strategy::Transpose(across);
    }
    if g.conflicts.combining {
        return Strategy::Plain;
    }
    if let Some(turns) = interleave::turns(g, lane) {
        return Strategy::Interleave(turns);
    }
    if let Some(at) = interchange::inner_axis(g, lane) {
        return Strategy::Interchange(g.shared[at]);
    }
    let others: Vec<Axis> = (g.shared.iter().copied())
        .filter(|a| a.sym != lane.sym)
        .collect();
    let Some((row, others)) = others.split_last() else {
        return Strategy::Plain;
    };
    // A few vectors of channels for a row of pixels: their filters and what is under these stay in the nearest cache.
    let strip = PIXELS_VECTORS * width as i64;
    let strips = (exprs.hint(lane.size).max(1) - 1) / strip + 1;
    let units = (others.iter()).map(|a| exprs.hint(a.size).max(1));
    let many = units.fold(strips, i64::saturating_mul) >= 2 * g.caps.threads as i64;
    if many && stencil::can_jam_pixels(g, lane, row) {
        Strategy::JamPixels(*row)
    } else {
        Strategy::Plain
    }
}

/// Returns the lanes of a loop over the axes of `bits`: a vector register of the widest type that does real work.
pub(crate) fn width(caps: &Caps, kinds: &[(u64, DType)], bits: u64) -> u32 {
    let (mut float, mut other) = (0, 1);
    for (_, d) in kinds.iter().filter(|k| k.0 & bits != 0) {
        if d.is_float() {
            float = float.max(d.compute().size());
        } else {
            other = other.max(d.size());
        }
    }
    // Integers and masks that serve floats follow their width.
    let bytes = if float > 0 { float } else { other };
    caps.lanes(bytes) as u32
}

/// Returns bits of the axes that live values and stores depend on, with their dtypes: each pair once, and they are few.
pub(crate) fn kinds(b: &Builder, live: &Live) -> Vec<(u64, DType)> {
    // Random bits are most of the work of what draws them, and they are words of 32.
    let draws = (live.alive())
        .filter(|v| is_random(&b.values[*v].def))
        .fold(0, |bits, v| bits | b.infos[v].bits);
    let mut out = Vec::new();
    let mut add = |bits: u64, dtype: DType| {
        let dtype = match dtype {
            DType::I64 if bits & draws != 0 => DType::I32,
            d => d,
        };
        if !out.contains(&(bits, dtype)) {
            out.push((bits, dtype));
        }
    };
    for (nest, live) in b.nests.iter().zip(&live.effects) {
        for (e, _) in nest.effects.iter().zip(live).filter(|(_, l)| **l) {
            if let EffectKind::Store { offset, value, .. } = &e.kind {
                add(b.expr_bits(*offset), b.values[value.index()].dtype);
            }
        }
    }
    for v in live.alive() {
        // Indices and masks follow the width of what they serve.
        if !matches!(b.values[v].def, Def::Indirect { .. } | Def::Index(_)) {
            add(b.infos[v].bits, b.values[v].dtype);
        }
    }
    out
}

/// Returns true for random bits.
fn is_random(def: &Def) -> bool {
    matches!(
        def,
        Def::Op {
            op: ScalarOp::Philox,
            ..
        }
    )
}

/// Returns the share of full vectors when `extent` points run in vectors of `width`.
fn efficiency(exprs: &Exprs, extent: Expr, width: u32) -> f64 {
    let n = exprs.hint(extent).max(1) as f64;
    let w = width as f64;
    // At least half of the vector would be dead lanes.
    if n * 2.0 <= w {
        return 0.0;
    }
    n / ((n / w).ceil() * w)
}

/// Returns true if all ordered accumulators of a nest are running extremes of numbers.
fn has_only_running_extremes(b: &Builder, nest: &Nest) -> bool {
    nest.effects.iter().all(|e| match e.kind {
        EffectKind::Update { acc, .. } => {
            let acc = &b.accs[acc.index()];
            acc.op.is_extreme() && acc.dtype != DType::Bool
        }
        _ => true,
    })
}

/// Returns the best axis of a nest's own.
fn own_axis(g: &Group, kinds: &[(u64, DType)], at: usize) -> Option<OwnAxis> {
    let b = g.b;
    let nest: &Nest = &b.nests[at];
    let first_reduction = nest.splits.iter().copied().min().unwrap_or(nest.axes.len());
    let mut best: Option<OwnAxis> = None;
    let last = nest.axes.len().saturating_sub(1);
    for (i, axis) in nest.axes.iter().enumerate() {
        // Lanes would change the order. Running extremes are the same in any, and are found along a vector.
        let along = i == last && first_reduction == last && has_only_running_extremes(b, nest);
        if nest.ordered && i >= first_reduction && !along {
            continue;
        }
        if !can_run_in_lanes(b, nest, axis.sym) {
            continue;
        }
        let w = width(g.caps, kinds, b.bits[&axis.sym]);
        let w = stencil::narrowed(g, at, axis, w);
        let worth = if w < 2 {
            0.0
        } else {
            score(g, at, axis, &[]) * efficiency(b.tables.exprs, axis.size, w)
        };
        if worth > best.map_or(0.0, |x| x.worth) {
            best = Some(OwnAxis {
                axis: i,
                width: w,
                worth,
            });
        }
    }
    best
}

/// Returns the conflict-free axis along which all loads and stores are contiguous: its lanes read whole vectors where another
/// order would take one element of each. For scatter stores, whose score is low along any axis.
fn contiguous_axis(g: &Group, kinds: &[(u64, DType)]) -> Option<(usize, u32)> {
    let b = g.b;
    let exprs = b.tables.exprs;
    if b.nests.iter().any(|n| !n.axes.is_empty()) {
        return None;
    }
    g.shared.iter().enumerate().find_map(|(at, axis)| {
        let bit = b.bits[&axis.sym];
        let varies = |s: Sym| b.indirect.contains_key(&s) && b.bits[&s] & bit != 0;
        let mut contiguous = false;
        let loads = g.live.alive().all(|v| {
            let Def::Load { offset, .. } = b.values[v].def else {
                return true;
            };
            let access = access(exprs, offset, axis.sym, varies);
            contiguous |= access == Access::Contiguous;
            matches!(access, Access::Contiguous | Access::Uniform)
        });
        let mut effects = b.nests.iter().flat_map(|n| &n.effects);
        let stores = effects.all(|e| match &e.kind {
            EffectKind::Store { offset, .. } => exprs
                .coefficient(*offset, axis.sym)
                .is_some_and(|c| exprs.is_int(c, 1)),
            EffectKind::Update { .. } | EffectKind::Check { .. } => true,
        });
        let width = width(g.caps, kinds, bit);
        let filled = width > 1 && efficiency(exprs, axis.size, width) > 0.5;
        let fits = g.conflicts.is_free(axis.sym) && loads && stores && contiguous && filled;
        fits.then_some((at, width))
    })
}
