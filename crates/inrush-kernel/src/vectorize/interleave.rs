//! Interleaved stores: lanes over pixels, and a short loop over the channels of a pixel inside of them.
//!
//! Images that become channels last have three channels side by side, which fill no vector. Planes are read along their pixels by whole
//! vectors, and `inrush-c` permutes the vectors of all channels into whole vectors of the result.

use super::Group;
use crate::KBufId;
use crate::nest::{Effect, EffectKind};
use inrush_expr::Expr;
use inrush_loops::{Axis, StoreMode};
use std::ops::RangeInclusive;

/// Turns of a loop inside the lanes whose vectors are interleaved when they are stored.
pub const INTERLEAVED: RangeInclusive<i64> = 2..=4;

/// Returns the axis that runs inside lanes over `lane` such that every store of the group writes neighbouring elements in its turns.
pub(super) fn turns(g: &Group, lane: &Axis) -> Option<Axis> {
    let (at, turns) = g.shared.len().checked_sub(1).map(|n| (n, g.shared[n]))?;
    let mut stores = 0;
    let all = g.b.nests.iter().all(|n| {
        n.axes.is_empty()
            && n.effects.iter().all(|e| {
                stores += 1;
                stored(e).is_some_and(|(buf, offset)| interleaves(g, lane, &turns, buf, offset))
            })
    });
    (all && stores > 0 && g.conflicts.may_be_innermost(at)).then_some(turns)
}

/// Returns buffer and offset of a plain store.
fn stored(e: &Effect) -> Option<(KBufId, Expr)> {
    match e.kind {
        EffectKind::Store {
            buf,
            offset,
            mode: StoreMode::Set,
            mask: None,
            ..
        } => Some((buf, offset)),
        _ => None,
    }
}

/// Returns true if `turns` counts the elements between those of neighbouring points of `lane`.
fn interleaves(g: &Group, lane: &Axis, turns: &Axis, buf: KBufId, offset: Expr) -> bool {
    let exprs = g.b.tables.exprs;
    let Some(n) = exprs.as_int(turns.size).filter(|n| INTERLEAVED.contains(n)) else {
        return false;
    };
    let is = |a: &Axis, n| {
        let c = exprs.coefficient(offset, a.sym);
        c.is_some_and(|c| exprs.is_int(c, n))
    };
    let d = g.b.buffers[buf.index()].dtype;
    lane.sym != turns.sym && d.size() == 4 && is(lane, n) && is(turns, 1)
}
