//! Nests: bodies that share one set of loops inside a point of the group's axes.
//!
//! A nest is what `place.rs` turns into a loop nest: axes, and the effects at their points. Values
//! are not part of it; each effect pulls in those that it needs. For `y = x - mean(x)` over `i` and
//! own axis `r` there are two:
//!
//! ```text
//! nest 0: axes [r], splits [0]      update a0, x[i, r]                     depth 1
//! nest 1: axes [r], splits []       store y[i, r], x[i, r] - a0 / n        depth 1
//! ```

use crate::{AccId, KBufId, Range, Role, ValId};
use inrush_expr::Expr;
use inrush_loops::{Axis, StoreMode};

/// A loop over an axis of the group inside a unit.
#[derive(Copy, Clone, Debug)]
pub(crate) struct GroupLoop {
    pub axis: Axis,
    pub range: Range,
    pub role: Role,
}

/// Loops over `axes` with what happens at their points.
#[derive(Default, Debug)]
pub(crate) struct Nest {
    /// Axes besides the group's, outermost first; empty where everything happens at a point of the
    /// group.
    pub axes: Vec<Axis>,
    /// In the order of the bodies. Effects of one point run in this order.
    pub effects: Vec<Effect>,
    /// Numbers of leading axes after which a reduction of some body begins; loops move only between them.
    pub splits: Vec<usize>,
    /// Reductions or scans whose result depends on the order of the axes.
    pub ordered: bool,
    /// Some effect is a running reduction, along the last axis.
    pub scans: bool,
}

/// Something that a nest does, inside its first `depth` axes.
#[derive(Clone, Debug)]
pub(crate) struct Effect {
    /// Number of the nest's leading axes that are open where it happens.
    pub depth: usize,
    /// How many values existed when the effect was placed: a load among them sees memory as it was before the effect.
    pub at: usize,
    pub kind: EffectKind,
}

#[derive(Clone, Debug)]
pub(crate) enum EffectKind {
    Update {
        acc: AccId,
        value: ValId,
        /// Leading axes outside of the reduction.
        start: usize,
    },
    Store {
        buf: KBufId,
        offset: Expr,
        value: ValId,
        mode: StoreMode,
        mask: Option<ValId>,
    },
    /// Evaluates a checked index. What it indexes need not tell: a dimension may have one element, or be expanded.
    Check { value: ValId },
}

impl Nest {
    /// The loops in the order in which they run when `lane` is to be the innermost one that it may be, and its position.
    pub fn order(&self, lane: Option<usize>) -> (Vec<usize>, Option<usize>) {
        let mut order: Vec<usize> = (0..self.axes.len()).collect();
        let Some(lane) = lane else {
            return (order, None);
        };
        // The lanes stop at the edge of the reduction that they are in: parallel axes stay outside
        // of reduced ones.
        let end = (self.splits.iter().copied())
            .filter(|s| *s > lane)
            .min()
            .unwrap_or(self.axes.len());
        order.remove(lane);
        order.insert(end - 1, lane);
        (order, Some(end - 1))
    }
}
