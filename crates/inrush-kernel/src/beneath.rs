//! An axis of which most work does not depend runs inside the vector lanes: what is found out about a pixel, the indices and
//! weights of its taps, then serves all channels.

use crate::build::Builder;
use crate::lanes::Live;
use crate::{BufRole, Def};
use inrush_loops::scalar::OpClass;
use inrush_loops::{Axis, MATH_OPS};

/// Points of the axis that run inside the lanes at a time: what they read of the others stays in the caches.
pub(crate) const STEP: i64 = 16;
/// Operations that have to be saved at each point. Loops over rows that lie one after the other are what memory is made for;
/// much has to be saved for giving them up.
const WORTH: i64 = 12;

/// The axis of the group, of those that may be `innermost`, that saves most operations where it runs inside lanes over `lane`.
pub(crate) fn beneath(
    b: &Builder,
    live: &Live,
    shared: &[Axis],
    lane: &Axis,
    innermost: impl Fn(usize) -> bool,
) -> Option<usize> {
    let local = |buf: &crate::KernelBuf| matches!(buf.role, BufRole::Local { .. });
    // Bodies with loops of their own evaluate what does not depend on these outside of them already.
    if b.nests.iter().any(|n| !n.axes.is_empty()) || b.buffers.iter().any(local) {
        return None;
    }
    let exprs = b.tables.exprs;
    let lanes = b.bits[&lane.sym];
    let alive: Vec<(u64, i64)> = (0..b.values.len())
        .filter(|v| live.values[*v])
        .map(|v| (b.infos[v].bits, operations(&b.values[v].def)))
        .collect();
    let mut best = None;
    for (at, axis) in shared.iter().enumerate() {
        if axis.sym == lane.sym || !innermost(at) || exprs.hint(axis.size) < 4 {
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

fn operations(def: &Def) -> i64 {
    match def {
        Def::Op { op, .. } if op.class() == OpClass::Math => MATH_OPS,
        Def::Op { .. } | Def::Cast { .. } | Def::Bitcast { .. } | Def::Indirect { .. } => 1,
        _ => 0,
    }
}
