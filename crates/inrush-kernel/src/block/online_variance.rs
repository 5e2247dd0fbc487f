//! Online variance (Welford): mean and sum of squared distances in one pass over memory.
//!
//! A sum of squares of distances to a mean needs the mean first, so a program that walks its rows would walk them twice. Here
//! each lane keeps the mean and the squares of what it has seen and updates both with every step; at the end the lanes' means
//! and squares combine exactly. Cancellation is no worse than with two passes.
//!
//! With `n` elements seen by a lane, its mean `m` and squares `q`, and a new element `v`:
//!
//! ```text
//! d = v - m;  m' = m + d / n;  q' = q + d * (v - m')
//! total = sum of n * m;  squares = sum of q + n * (m - total / count)^2      over the lanes
//! ```

use super::{Block, BlockItem, Walk};
use crate::{AccId, Def, ValId};
use inrush_base::DType;
use inrush_expr::{Expr, Exprs};
use inrush_loops::{ReduceOp, ScalarOp};

/// Joins a loop that sums with the next one, which sums squares of distances to the mean.
pub(crate) fn rewrite(ex: &Exprs, block: &mut Block) {
    while let Some(found) = find(ex, block) {
        join(block, &found);
    }
}

/// Two walks that become one.
struct Found {
    /// Positions among the items.
    first: usize,
    second: usize,
    sum: AccId,
    squares: AccId,
    value: ValId,
}

/// Finds the sum of squared distances, then the loop ahead of it that sums the same values.
fn find(ex: &Exprs, block: &Block) -> Option<Found> {
    let count = block.dims[block.reduced()?].extent;
    // Lanes that saw nothing have no mean.
    if ex.range(count).lo < 1 {
        return None;
    }
    for (second, item) in block.items.iter().enumerate() {
        let BlockItem::Loop(w) = item else {
            continue;
        };
        for (squares, distance) in updates(block, &w.body) {
            let Some((value, mean, sum)) = distances(ex, block, distance, count) else {
                continue;
            };
            // A sum that is wanted for itself stays one: means of lanes lose infinities.
            if !only_for(block, &block.items, sum, mean) {
                continue;
            }
            let first = (block.items[..second].iter()).position(|i| match i {
                BlockItem::Loop(w) => updates(block, &w.body).any(|u| u == (sum, value)),
                _ => false,
            });
            let same = block.accs[sum.index()].dtype == block.accs[squares.index()].dtype;
            if let Some(first) = first.filter(|_| same) {
                return Some(Found {
                    first,
                    second,
                    sum,
                    squares,
                    value,
                });
            }
        }
    }
    None
}

/// The sums of floats in a loop.
fn updates<'b>(
    block: &'b Block,
    body: &'b [BlockItem],
) -> impl Iterator<Item = (AccId, ValId)> + 'b {
    body.iter().filter_map(|i| match i {
        BlockItem::Update { acc, value } => {
            let a = &block.accs[acc.index()];
            (a.op == ReduceOp::Sum && a.dtype.is_float()).then_some((*acc, *value))
        }
        _ => None,
    })
}

/// Returns true if nothing but `mean` uses the sum.
fn only_for(block: &Block, items: &[BlockItem], sum: AccId, mean: ValId) -> bool {
    let total = |v: ValId| block.value(v).def == Def::Final(sum);
    items.iter().all(|i| match i {
        BlockItem::Loop(w) => only_for(block, &w.body, sum, mean),
        BlockItem::Let(v) => *v == mean || !block.value(*v).def.operands().into_iter().any(total),
        BlockItem::Update { value, .. } | BlockItem::Moments { value, .. } => !total(*value),
        BlockItem::Store(s) => !total(s.value) && !s.mask.is_some_and(total),
        _ => true,
    })
}

/// Matches `(v - mean)` times itself. Returns `v`, the mean, and the accumulator of the sum.
fn distances(
    ex: &Exprs,
    block: &Block,
    square: ValId,
    count: Expr,
) -> Option<(ValId, ValId, AccId)> {
    let [d, e] = operands(block, square, ScalarOp::Mul)?;
    let [value, mean] = operands(block, d, ScalarOp::Sub)?;
    let total = average(ex, block, mean, count)?;
    match block.value(total).def {
        Def::Final(sum) if d == e => Some((value, mean, sum)),
        _ => None,
    }
}

/// Matches a value divided by `count`, or multiplied by its reciprocal where that is exact, as for powers of two. Returns the
/// value.
fn average(ex: &Exprs, block: &Block, mean: ValId, count: Expr) -> Option<ValId> {
    let number = |v: ValId| match block.value(v).def {
        Def::Const(c) => Some(c.as_f64()),
        _ => None,
    };
    let known = ex.as_int(count).map(|n| n as f64);
    if let Some([total, n]) = operands(block, mean, ScalarOp::Div) {
        let same = match known {
            Some(known) => number(n) == Some(known),
            None => is_size(ex, block, n, count),
        };
        return same.then_some(total);
    }
    let [a, b] = operands(block, mean, ScalarOp::Mul)?;
    let (total, share) = if number(a).is_some() { (b, a) } else { (a, b) };
    (number(share)? * known? == 1.0).then_some(total)
}

/// Returns true if a value is this size as a number of floats.
fn is_size(ex: &Exprs, block: &Block, v: ValId, size: Expr) -> bool {
    match block.value(v).def {
        Def::Index(e) => ex.prove_eq(e, size),
        // Sizes are integers, and floats that can be sums hold them as well as any.
        Def::Cast { arg, to } if to == DType::I64 || to.is_float() => is_size(ex, block, arg, size),
        _ => false,
    }
}

/// The two operands of an operation, if the value is made by it.
fn operands(block: &Block, v: ValId, wanted: ScalarOp) -> Option<[ValId; 2]> {
    match &block.value(v).def {
        Def::Op { op, args } if *op == wanted => args.as_slice().try_into().ok(),
        _ => None,
    }
}

/// Merges both loops into the first, which updates mean and squares at once.
fn join(block: &mut Block, found: &Found) {
    let Found {
        first,
        second,
        sum,
        squares,
        value,
    } = *found;
    let mut items = std::mem::take(&mut block.items);
    if let BlockItem::Loop(Walk { body, .. }) = &mut items[second] {
        body.retain(|i| !matches!(i, BlockItem::Update { acc, .. } if *acc == squares));
        // What is left computes for nothing where it has no effect.
        if body.iter().all(|i| matches!(i, BlockItem::Let(_))) {
            body.clear();
        }
    }
    if let BlockItem::Loop(w) = &mut items[first] {
        for i in &mut w.body {
            if *i == (BlockItem::Update { acc: sum, value }) {
                *i = BlockItem::Moments {
                    sum,
                    squares,
                    value,
                };
            }
        }
    }
    let mut out = Vec::with_capacity(items.len());
    for item in items {
        match item {
            BlockItem::Loop(w) if w.body.is_empty() => {}
            BlockItem::Acc(acc) if acc == squares => {}
            BlockItem::Finish(acc) if acc == squares => {}
            BlockItem::Acc(acc) if acc == sum => {
                out.extend([BlockItem::Acc(sum), BlockItem::Acc(squares)]);
            }
            BlockItem::Finish(acc) if acc == sum => {
                out.push(BlockItem::FinishMoments { sum, squares });
            }
            item => out.push(item),
        }
    }
    block.items = out;
}
