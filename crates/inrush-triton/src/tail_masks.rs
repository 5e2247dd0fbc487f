//! Tail masks: bounds checks that only the last chunk of a split reduction needs.
//!
//! A chunk compares the position of each element with the end of the row. The mask may change within a vector, which keeps all
//! accesses from being vectors. For all chunks but the last one comparison of the last position answers for all:
//!
//! ```text
//! before                               after
//! x = load(p + i, mask=i < end)        if last < end:
//!                                          x = load(p + i)                  vectors
//!                                      else:
//!                                          x = load(p + i, mask=i < end)    elements
//! ```

use crate::function::{Emitter, Role, TWICE};
use crate::fused::{effects, visit};
use inrush_expr::Expr;
use inrush_kernel::block::{BlockItem, DimRole};
use inrush_kernel::{Def, ValId};
use inrush_loops::ScalarOp;

/// A comparison of positions with the end.
#[derive(Copy, Clone)]
pub(crate) struct TailMask {
    /// The comparison.
    pub holds: ValId,
    /// The positions, where nothing else asks for them.
    index: Option<ValId>,
    /// The last position of a program's tile, which must be less than `end`.
    pub last: Expr,
    pub end: i64,
}

impl TailMask {
    /// Returns true if a value is not needed where the comparison is known to hold.
    pub fn needs_no_line(&self, v: ValId) -> bool {
        v == self.holds || self.index == Some(v)
    }
}

impl Emitter<'_> {
    /// Returns what is left of an operation whose condition is known to hold.
    pub(crate) fn simplified(&self, op: ScalarOp, args: &[ValId]) -> Option<ValId> {
        let holds = self.state.tail_mask?.holds;
        match (op, args) {
            (ScalarOp::Where, [c, x, _]) if *c == holds => Some(*x),
            (ScalarOp::And, [a, b]) if *a == holds => Some(*b),
            (ScalarOp::And, [a, b]) if *b == holds => Some(*a),
            _ => None,
        }
    }
}

/// Finds the comparison by which loads of one row for each program are masked, if the row's place would let them be wide.
pub(crate) fn find(e: &Emitter) -> Option<TailMask> {
    let (ex, block) = (e.exprs, e.block);
    let at = block.reduced()?;
    let fits = e.tile_dims() == [at]
        && e.facts.contiguous.is_none()
        && e.role != Role::Foreach
        && block.product.is_none()
        && block.stages == 1;
    let mut items: Vec<BlockItem> = Vec::new();
    visit(&block.items, &mut |i| items.push(i.clone()));
    if !fits || items.len() > TWICE || items.iter().any(|i| e.checks(i)) {
        return None;
    }
    let values = || {
        items.iter().filter_map(|i| match i {
            BlockItem::Let(v) => Some(*v),
            _ => None,
        })
    };
    let masks = |m: ValId| {
        values().any(|v| matches!(block.value(v).def, Def::Load { mask: Some(x), .. } if x == m))
    };
    let r = block.dims[at];
    let extent = ex.as_int(r.extent)?;
    for v in values() {
        let Def::Op {
            op: ScalarOp::Lt,
            args,
        } = &block.value(v).def
        else {
            continue;
        };
        let (Def::Index(e), Some(end)) = (&block.value(args[0]).def, number(e, args[1])) else {
            continue;
        };
        let grid = |s| (block.dims.iter()).any(|d| d.role == DimRole::Grid && d.sym == s);
        let known = ex.free_syms(*e).iter().all(|s| *s == r.sym || grid(*s));
        let rises = (ex.coefficient(*e, r.sym)).and_then(|c| ex.as_int(c));
        if !known || rises.is_none_or(|c| c < 1) || !masks(v) {
            continue;
        }
        // Positions rise along the tile: if the last one is inside, all are.
        let to = [(r.sym, ex.int(extent - 1))].into_iter().collect();
        let asks = items.iter().flat_map(|i| match i {
            BlockItem::Let(v) => block.value(*v).def.operands().to_vec(),
            item => effects(item),
        });
        // Positions that nothing but the comparison asks for need no line either.
        let only = asks.filter(|a| *a == args[0]).count() == 1;
        return Some(TailMask {
            holds: v,
            index: only.then_some(args[0]),
            last: ex.subst(*e, &to),
            end,
        });
    }
    None
}

/// A value that is a known integer.
/// Constants and index expressions both occur as the end of a row.
fn number(e: &Emitter, v: ValId) -> Option<i64> {
    match e.block.value(v).def {
        Def::Index(i) => e.exprs.as_int(i),
        Def::Const(c) => Some(c.as_i64()),
        _ => None,
    }
}
