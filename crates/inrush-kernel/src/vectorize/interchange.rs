//! Loop interchange: runs a parallel axis inside the vector loop when most work is invariant along it. `grid_sample` then
//! computes a pixel's indices and weights once for all channels.
//!
//! ```text
//! before                                      after
//! for c                                       for w by 16 lanes
//!   for w by 16 lanes                           x, y = grid[w]
//!     x, y = grid[w]                            indices, weights = f(x, y)
//!     indices, weights = f(x, y)                for c in steps of 16
//!     out[c, w] = sum of in[c, index] * weight    out[c, w] = sum of in[c, index] * weight
//! ```

use super::Group;
use crate::{BufRole, Def, KernelBuf};
use inrush_loops::scalar::OpClass;
use inrush_loops::{Axis, MATH_OPS};

/// Points of the axis that run inside the lanes at a time: what they read of the others stays in the caches.
pub(crate) const STEP: i64 = 16;
/// Shortest axis that runs inside.
const SHORTEST: i64 = 4;
/// Operations that have to be saved at each point. Loops along consecutive rows are what memory is made for; much has to be
/// saved for giving them up.
const WORTH: i64 = 12;

/// Returns the position of the axis that saves most operations where it runs inside lanes over `lane`.
pub(super) fn inner_axis(g: &Group, lane: &Axis) -> Option<usize> {
    let b = g.b;
    let local = |buf: &KernelBuf| matches!(buf.role, BufRole::Local { .. });
    // Bodies with loops of their own evaluate what does not depend on these outside of them already.
    if b.nests.iter().any(|n| !n.axes.is_empty()) || b.buffers.iter().any(local) {
        return None;
    }
    let exprs = b.tables.exprs;
    let lanes = b.bits[&lane.sym];
    let alive: Vec<(u64, i64)> = (g.live.alive())
        .map(|v| (b.infos[v].bits, operations(&b.values[v].def)))
        .collect();
    let mut best = None;
    for (at, axis) in g.shared.iter().enumerate() {
        if axis.sym == lane.sym
            || !g.conflicts.may_be_innermost(at)
            || exprs.hint(axis.size) < SHORTEST
        {
            continue;
        }
        let bit = b.bits[&axis.sym];
        let saved: i64 = (alive.iter())
            .map(|(bits, ops)| match (bits & lanes != 0, bits & bit != 0) {
                (true, false) => *ops,
                // It was evaluated once for all lanes, and would be at each step.
                (false, true) => -*ops,
                _ => 0,
            })
            .sum();
        if saved >= WORTH && best.is_none_or(|(most, _)| saved > most) {
            best = Some((saved, at));
        }
    }
    best.map(|(_, at)| at)
}

/// Weighs the operation that a definition performs.
fn operations(def: &Def) -> i64 {
    match def {
        Def::Op { op, .. } if op.class() == OpClass::Math => MATH_OPS,
        Def::Op { .. } | Def::Cast { .. } | Def::Bitcast { .. } | Def::Indirect { .. } => 1,
        _ => 0,
    }
}
