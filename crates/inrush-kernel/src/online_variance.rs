//! Online variance: mean and variance of a long row in one pass instead of two.
//!
//! ```text
//! before                          after
//! for i:  sum += x[i]             for i < part:  first += x[i]
//! mean = sum / n                  shift = first / part
//! for i:  d = x[i] - mean         for i:  d = x[i] - shift;  sum += d;  squares += d * d
//!         squares += d * d        mean = shift + sum / n
//!                                 squares = max(squares - sum * (sum / n), 0)
//! ```
//!
//! Squares are summed of distances to a mean of the row's first points, `shift`, and moved to the whole row's mean afterwards:
//! the sum of `(x - mean)^2` is that of `(x - shift)^2` less `n (mean - shift)^2`. What that takes away is at most `n / k` times
//! what is left, with a shift from `k` of `n` points, so the result is as good as that of two walks but for a factor that is a
//! constant here and near 1 unless the first points are unlike the others. Where rows are less a pivot, as variances take them,
//! pivot and shift are taken away in one step.

use crate::{Acc, AccId, Def, Item, Kernel, Loop, Range, Role, ValId, Value};
use inrush_base::tally::{Way, reached};
use inrush_base::{DType, Scalar};
use inrush_expr::Exprs;
use inrush_loops::{ReduceOp, ScalarOp};
use smallvec::smallvec;

/// Shortest row for which a pass counts.
const ROW: i64 = 1024;
/// The share of a row that gives the shift: one in so many points.
const PART: i64 = 32;

/// The places of a variance among the items of one list, and its values.
struct Variance {
    sum: usize,
    squares: usize,
    /// Positions of the lines of the mean and of the sum of squares.
    mean_at: usize,
    total_at: usize,
    x: ValId,
    /// Where `x` is a value less one that is the same for the whole row: both.
    near: Option<(ValId, ValId)>,
    sum_acc: AccId,
    squares_acc: AccId,
    /// How the mean comes from the sum: times `1 / n` or divided by `n`.
    by: ScalarOp,
    /// The sum of the row, its mean, the number that it is made with, and the sum of squares.
    whole: ValId,
    mean: ValId,
    share: ValId,
    total: ValId,
    extent: i64,
}

/// Rewrites the first variance that has this form.
pub(crate) fn rewrite(exprs: &Exprs, kernel: &mut Kernel) {
    if let Some(v) = find(exprs, kernel) {
        reached(Way::OneWalk);
        apply(exprs, kernel, &v);
    }
}

/// Returns the lines before the update, the accumulator and the value of a loop that only sums.
fn summing(l: &Loop) -> Option<(&[Item], AccId, ValId)> {
    let (Item::Update { acc, value }, lets) = l.body.split_last()? else {
        return None;
    };
    let plain = lets.iter().all(|i| matches!(i, Item::Let(_)));
    plain.then_some((lets, *acc, *value))
}

/// Returns the operands of a value that is the wanted operation.
fn operands(kernel: &Kernel, v: ValId, wanted: ScalarOp) -> Option<(ValId, ValId)> {
    match &kernel.value(v).def {
        Def::Op { op, args } if *op == wanted && args.len() == 2 => Some((args[0], args[1])),
        _ => None,
    }
}

/// Matches the mean of `n` values. Returns the operation that makes it, the sum, and the number.
fn average(kernel: &Kernel, mean: ValId, n: i64) -> Option<(ScalarOp, ValId, ValId)> {
    let number = |v: ValId| match kernel.value(v).def {
        Def::Const(c) => Some(c.as_f64()),
        _ => None,
    };
    if let Some((sum, count)) = operands(kernel, mean, ScalarOp::Div) {
        return (number(count) == Some(n as f64)).then_some((ScalarOp::Div, sum, count));
    }
    let (a, b) = operands(kernel, mean, ScalarOp::Mul)?;
    let (sum, share) = if number(a).is_some() { (b, a) } else { (a, b) };
    let close = (number(share)? * n as f64 - 1.0).abs() < 1e-6;
    close.then_some((ScalarOp::Mul, sum, share))
}

/// Finds two vector loops in a row: one sums, the other sums squared distances to the mean.
fn find(exprs: &Exprs, kernel: &Kernel) -> Option<Variance> {
    let items = &kernel.body;
    let loops: Vec<(usize, &Loop)> = (items.iter().enumerate())
        .filter_map(|(k, i)| match i {
            Item::Loop(l) if matches!(l.role, Role::Vector { .. }) => Some((k, l.as_ref())),
            _ => None,
        })
        .collect();
    let line = |v: ValId| items.iter().position(|i| *i == Item::Let(v));
    for pair in loops.windows(2) {
        let ((sum, a), (squares, b)) = (pair[0], pair[1]);
        let (Range::Full(extent), true) = (a.range, a.range == b.range && a.sym == b.sym) else {
            continue;
        };
        let extent = exprs.as_int(extent).filter(|n| *n >= ROW);
        let (Some(extent), Some((lets, sum_acc, x)), Some((more, squares_acc, q))) =
            (extent, summing(a), summing(b))
        else {
            continue;
        };
        let [same @ .., Item::Let(d), Item::Let(last)] = more else {
            continue;
        };
        let f32_sum = |a: AccId| {
            let acc = &kernel.accs[a.index()];
            acc.op == ReduceOp::Sum && acc.dtype == DType::F32
        };
        let squared = *last == q && operands(kernel, q, ScalarOp::Mul) == Some((*d, *d));
        let Some((of, mean)) = operands(kernel, *d, ScalarOp::Sub) else {
            continue;
        };
        let Some((by, whole, share)) = average(kernel, mean, extent) else {
            continue;
        };
        let fits = squared
            && of == x
            && same == lets
            && sum_acc != squares_acc
            && f32_sum(sum_acc)
            && f32_sum(squares_acc)
            && [x, mean, whole]
                .iter()
                .all(|v| kernel.value(*v).dtype == DType::F32)
            && kernel.value(whole).def == Def::Final(sum_acc)
            && uses(kernel, whole) == 1;
        let total = (0..kernel.values.len())
            .map(ValId::from_index)
            .find(|v| kernel.value(*v).def == Def::Final(squares_acc));
        let Some(total) = total.filter(|_| fits) else {
            continue;
        };
        // A pivot that differs from point to point is none.
        let made = |v: ValId| lets.contains(&Item::Let(v));
        let near = operands(kernel, x, ScalarOp::Sub)
            .filter(|(of, pivot)| lets.last() == Some(&Item::Let(x)) && made(*of) && !made(*pivot));
        let started = items.contains(&Item::Acc(squares_acc));
        let between = &items[sum + 1..squares];
        let quiet = (between.iter()).all(|i| matches!(i, Item::Let(_) | Item::Acc(_)));
        if let (Some(mean_at), Some(total_at), true) = (line(mean), line(total), started && quiet) {
            return Some(Variance {
                sum,
                squares,
                mean_at,
                total_at,
                x,
                near,
                sum_acc,
                squares_acc,
                by,
                whole,
                mean,
                share,
                total,
                extent,
            });
        }
    }
    None
}

/// Counts values and effects that use `v`.
fn uses(kernel: &Kernel, v: ValId) -> usize {
    /// Counts effects that use `v`.
    fn effects(items: &[Item], v: ValId) -> usize {
        let one = |i: &Item| match i {
            Item::Loop(l) => effects(&l.body, v),
            Item::Update { value, .. } => usize::from(*value == v),
            Item::Store { value, mask, .. } => usize::from(*value == v || *mask == Some(v)),
            Item::Let(_) | Item::Acc(_) => 0,
        };
        items.iter().map(one).sum()
    }
    let values = kernel
        .values
        .iter()
        .filter(|x| x.def.operands().contains(&v));
    values.count() + effects(&kernel.head, v) + effects(&kernel.body, v)
}

/// Rewrites the two loops as one over a short prefix and one over the whole row.
fn apply(exprs: &Exprs, kernel: &mut Kernel, v: &Variance) {
    let mut value = |def: Def| {
        kernel.values.push(Value {
            def,
            dtype: DType::F32,
        });
        ValId::from_index(kernel.values.len() - 1)
    };
    let op = |op: ScalarOp, a: ValId, b: ValId| Def::Op {
        op,
        args: smallvec![a, b],
    };
    // A multiple of all widths and copies.
    let part = (v.extent / PART + 63) / 64 * 64;
    let first_acc = AccId::from_index(kernel.accs.len());
    kernel.accs.push(Acc {
        op: ReduceOp::Sum,
        dtype: DType::F32,
        index: None,
    });
    let first = value(Def::Final(first_acc));
    let of_part = value(Def::Const(Scalar::Float(1.0 / part as f64)));
    let shift = value(op(ScalarOp::Mul, first, of_part));
    // Of a value less a pivot, both are taken away at once. What rounding changes in the shift is part of the mean.
    let pivoted = v.near.map(|(of, pivot)| {
        let both = value(op(ScalarOp::Add, pivot, shift));
        (of, both, value(op(ScalarOp::Sub, both, pivot)))
    });
    let (from, less_what, offset) = match pivoted {
        Some((of, both, offset)) => (of, both, offset),
        None => (v.x, shift, shift),
    };
    let d = value(op(ScalarOp::Sub, from, less_what));
    let q = value(op(ScalarOp::Mul, d, d));
    let moved = value(op(v.by, v.whole, v.share));
    let squares = value(Def::Final(v.squares_acc));
    let less = value(op(ScalarOp::Mul, v.whole, moved));
    let left = value(op(ScalarOp::Sub, squares, less));
    let zero = value(Def::Const(Scalar::Float(0.0)));
    kernel.values[v.mean.index()].def = op(ScalarOp::Add, offset, moved);
    kernel.values[v.total.index()].def = op(ScalarOp::Maximum, left, zero);

    let mut out = Vec::with_capacity(kernel.body.len() + 12);
    for (at, item) in std::mem::take(&mut kernel.body).into_iter().enumerate() {
        match item {
            Item::Loop(l) if at == v.sum => {
                let mut start = l.clone();
                start.range = Range::Full(exprs.int(part));
                if let Some(Item::Update { acc, .. }) = start.body.last_mut() {
                    *acc = first_acc;
                }
                let mut all = l;
                all.body.pop();
                // The subtraction of the pivot is part of the new one.
                if pivoted.is_some() {
                    all.body.pop();
                }
                let update = |acc, value| Item::Update { acc, value };
                all.body.extend([
                    Item::Let(d),
                    Item::Let(q),
                    update(v.sum_acc, d),
                    update(v.squares_acc, q),
                ]);
                out.extend([Item::Acc(first_acc), Item::Loop(start)]);
                out.extend([first, of_part, shift].map(Item::Let));
                if let Some((_, both, offset)) = pivoted {
                    out.extend([both, offset].map(Item::Let));
                }
                out.extend([Item::Acc(v.squares_acc), Item::Loop(all)]);
            }
            Item::Loop(_) if at == v.squares => {}
            Item::Acc(a) if a == v.squares_acc => {}
            item => {
                if at == v.mean_at {
                    out.push(Item::Let(moved));
                }
                if at == v.total_at {
                    out.extend([squares, less, zero, left].map(Item::Let));
                }
                out.push(item);
            }
        }
    }
    kernel.body = out;
}
