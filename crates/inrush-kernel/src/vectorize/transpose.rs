//! Tiles that are transposed: loads are contiguous along one axis of the group, stores along the lanes.
//!
//! ```text
//! before                              after
//! for h                               for h in tiles of 16
//!   for c by 16 lanes                   for c by 16 lanes
//!     b[c + 64*h] = a[h + 32*c]           for h in the tile     a 16 x 16 tile, transposed in registers
//!                   a gather                b[..] = a[..]
//! ```

use super::Group;
use crate::build::Builder;
use crate::{BufRole, Def};
use inrush_expr::Expr;
use inrush_loops::Axis;

/// Shortest axis that is worth a tile.
const SHORTEST: i64 = 4;

/// Returns the axis along which a load is contiguous that lanes over `lane` would gather. Only where all work of the group is
/// at the points of its own axes.
pub(super) fn transposed_axis(g: &Group, lane: &Axis) -> Option<Axis> {
    let b = g.b;
    let exprs = b.tables.exprs;
    if b.nests.iter().any(|n| !n.axes.is_empty()) || exprs.hint(lane.size) < SHORTEST {
        return None;
    }
    g.live.alive().find_map(|v| match &b.values[v].def {
        Def::Load {
            buf,
            offset,
            mask: None,
            ..
        } if matches!(b.buffers[buf.index()].role, BufRole::In) => g
            .shared
            .iter()
            .find(|a| exprs.hint(a.size) >= SHORTEST && transposes(b, *offset, lane, a))
            .copied(),
        _ => None,
    })
}

/// Returns true if `offset` is strided over `lane` and contiguous along `axis`.
pub(super) fn transposes(b: &Builder, offset: Expr, lane: &Axis, axis: &Axis) -> bool {
    let exprs = b.tables.exprs;
    axis.sym != lane.sym
        && b.expr_values(offset).is_empty()
        && exprs
            .coefficients(offset, &[lane.sym, axis.sym])
            .is_some_and(|c| {
                exprs.is_int(c[1], 1) && !exprs.is_int(c[0], 1) && !exprs.is_int(c[0], 0)
            })
}
