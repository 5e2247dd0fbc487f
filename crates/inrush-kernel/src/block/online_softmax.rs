//! Online softmax: the maximum of a row and the sum of exponentials of distances to it, in one pass over memory.
//!
//! A softmax subtracts a row's maximum before it sums, so a program that walks its rows would walk them once for each. Here each
//! lane keeps the maximum of what it has seen and the sum of exponentials of distances to that, which is scaled anew when the
//! maximum grows; at the end the lanes' sums are brought to what the program subtracts. That need not be the maximum itself:
//! `logsumexp` subtracts zero where that is infinite.
//!
//! With `m` and `s` of a lane and a new element `v`, where `m' = max(m, v)`:
//!
//! ```text
//! s' = s * exp(m - m') + exp(v - m')           one of the two exponentials is 1
//! total = sum over lanes of s * exp(m - shift)
//! ```

use super::{Block, BlockItem};
use crate::{AccId, Def, ValId};
use inrush_loops::{ReduceOp, ScalarOp};

/// Joins a loop that finds a maximum with the next one, which sums exponentials of distances to it.
pub(crate) fn rewrite(block: &mut Block) {
    while let Some(found) = find(block) {
        join(block, &found);
    }
}

/// Two walks that become one, and the values of the second.
struct Found {
    /// Positions among the items.
    first: usize,
    second: usize,
    max: AccId,
    sum: AccId,
    value: ValId,
    /// The subtrahend of the exponent.
    shift: ValId,
}

/// Finds the sum of exponentials, then the loop ahead of it that finds the maximum of the same values.
fn find(block: &Block) -> Option<Found> {
    for (second, item) in block.items.iter().enumerate() {
        if !only_sums(item) {
            continue;
        }
        for (sum, exponential) in updates(block, item, ReduceOp::Sum) {
            let Some((value, shift, max)) = distances(block, exponential) else {
                continue;
            };
            let first = (block.items[..second].iter())
                .position(|i| updates(block, i, ReduceOp::Max).any(|u| u == (max, value)));
            // Both accumulators meet in one expression.
            let same = block.accs[max.index()].dtype == block.accs[sum.index()].dtype;
            if let Some(first) = first.filter(|_| same) {
                return Some(Found {
                    first,
                    second,
                    max,
                    sum,
                    value,
                    shift,
                });
            }
        }
    }
    None
}

/// Returns true if a loop does nothing but one reduction: only then a pass is saved.
fn only_sums(item: &BlockItem) -> bool {
    let BlockItem::Loop(w) = item else {
        return false;
    };
    let effects = w.body.iter().filter(|i| !matches!(i, BlockItem::Let(_)));
    effects.count() == 1
}

/// The reductions of floats in a loop.
fn updates<'b>(
    block: &'b Block,
    item: &'b BlockItem,
    op: ReduceOp,
) -> impl Iterator<Item = (AccId, ValId)> + 'b {
    let body = match item {
        BlockItem::Loop(w) => w.body.as_slice(),
        _ => &[],
    };
    body.iter().filter_map(move |i| match i {
        BlockItem::Update { acc, value } => {
            let a = &block.accs[acc.index()];
            (a.op == op && a.dtype.is_float()).then_some((*acc, *value))
        }
        _ => None,
    })
}

/// Of `exp(value - shift)`: the value, the shift, and the maximum that it is.
fn distances(block: &Block, exponential: ValId) -> Option<(ValId, ValId, AccId)> {
    let args = |v: ValId, wanted: ScalarOp| match &block.value(v).def {
        Def::Op { op, args } if *op == wanted => Some(args.clone()),
        _ => None,
    };
    let [d] = *args(exponential, ScalarOp::Exp)?.as_slice() else {
        return None;
    };
    let [value, shift] = *args(d, ScalarOp::Sub)?.as_slice() else {
        return None;
    };
    let greatest = |v: ValId| match block.value(v).def {
        Def::Final(acc) => Some(acc),
        _ => None,
    };
    let finite = |v: ValId| matches!(block.value(v).def, Def::Const(c) if c.as_f64().is_finite());
    let max = greatest(shift).or_else(|| match args(shift, ScalarOp::Where)?.as_slice() {
        [_, a, b] if finite(*a) => greatest(*b),
        [_, a, b] if finite(*b) => greatest(*a),
        _ => None,
    })?;
    Some((value, shift, max))
}

/// Merges both loops into the first, and finishes the sum by the shift where the second one ended.
fn join(block: &mut Block, found: &Found) {
    let Found {
        first,
        second,
        max,
        sum,
        value,
        shift,
    } = *found;
    let mut items = std::mem::take(&mut block.items);
    if let BlockItem::Loop(w) = &mut items[first] {
        for i in &mut w.body {
            if *i == (BlockItem::Update { acc: max, value }) {
                *i = BlockItem::Exponentials { max, sum, value };
            }
        }
    }
    let mut out = Vec::with_capacity(items.len());
    for (at, item) in items.into_iter().enumerate() {
        match item {
            BlockItem::Loop(_) if at == second => {}
            BlockItem::Acc(acc) if acc == sum => {}
            BlockItem::Acc(acc) if acc == max => {
                out.extend([BlockItem::Acc(max), BlockItem::Acc(sum)]);
            }
            BlockItem::Finish(acc) if acc == sum => {
                out.push(BlockItem::FinishExponentials { max, sum, shift });
            }
            item => out.push(item),
        }
    }
    block.items = out;
}
