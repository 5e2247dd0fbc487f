//! Strides that eager's allocations have.
//!
//! Each function reproduces one rule of ATen: `TensorIterator` for pointwise results and
//! indexing (`pointwise`, `index`), `suggest_memory_format` (`format_like`), and `empty_like`
//! with the format preserved (`copy_of`). Sizes and strides may be symbolic. Equality is
//! proved; an order that is not decided compares hints, since the exporter traced with the
//! same numbers.

use inrush_expr::{Expr, Exprs};
use inrush_graph::TensorType;
use std::cmp::Ordering;

/// Compares sizes or strides; where symbols leave it open, by their hints, as the exporter did.
fn compare(ex: &Exprs, a: Expr, b: Expr) -> Ordering {
    match (ex.as_int(a), ex.as_int(b)) {
        (Some(a), Some(b)) => a.cmp(&b),
        _ if a == b || ex.prove_eq(a, b) => Ordering::Equal,
        _ => ex.hint(a).cmp(&ex.hint(b)),
    }
}

/// Strides of a result of an operator of [`crate::dynamic`]: `nonzero` writes its coordinates column by column, others declare
/// what they give.
pub fn of_dynamic(ex: &Exprs, op: &str, declared: &TensorType) -> Vec<Expr> {
    match (op, declared.sizes.as_slice()) {
        ("aten.nonzero.default", [count, _]) => vec![ex.int(1), *count],
        _ => declared.strides.clone(),
    }
}

/// Dense strides with the dimensions in this order, outermost first.
pub fn permuted(ex: &Exprs, sizes: &[Expr], order: &[usize]) -> Vec<Expr> {
    let inner: Vec<Expr> = order.iter().map(|d| sizes[*d]).collect();
    let mut strides = vec![ex.int(1); sizes.len()];
    for (d, s) in order.iter().zip(ex.contiguous_strides(&inner)) {
        strides[*d] = s;
    }
    strides
}

/// Returns true if the strides look like those of images with channels last; ambiguous ones do not.
/// Strides must grow from channels over columns and rows to images.
fn is_channels_last(ex: &Exprs, t: &TensorType) -> bool {
    // Innermost first, as `is_channels_last_strides_2d_s4` and its form for volumes go.
    let order: &[usize] = match t.rank() {
        4 => &[1, 3, 2, 0],
        5 => &[1, 4, 3, 2, 0],
        _ => return false,
    };
    if ex.is_int(t.strides[1], 0) {
        return false;
    }
    let mut least = ex.int(0);
    for d in order {
        let (size, stride) = (t.sizes[*d], t.strides[*d]);
        if ex.is_int(size, 0) || compare(ex, stride, least).is_lt() {
            return false;
        }
        // Images of one channel whose rows have one pixel: row-major.
        if *d == 0 && compare(ex, least, t.strides[1]).is_eq() {
            return false;
        }
        least = match ex.is_int(size, 1) {
            true => stride,
            false => ex.mul(stride, size),
        };
    }
    true
}

/// Row-major strides, or channels last if those of `t` look so.
pub fn format_like(ex: &Exprs, t: &TensorType, sizes: &[Expr]) -> Vec<Expr> {
    if t.rank() != sizes.len() || !is_channels_last(ex, t) {
        return ex.contiguous_strides(sizes);
    }
    let order: Vec<usize> = [0].into_iter().chain(2..t.rank()).chain([1]).collect();
    permuted(ex, sizes, &order)
}

/// Returns true if the elements fill a piece of memory with the dimensions in this order, outermost first.
/// Strides of dimensions of size 1 may be anything.
pub fn is_in_order(ex: &Exprs, t: &TensorType, order: &[usize]) -> bool {
    let dense = permuted(ex, &t.sizes, order);
    (0..t.rank()).all(|d| ex.is_int(t.sizes[d], 1) || ex.prove_eq(t.strides[d], dense[d]))
}

/// Returns true if the elements fill a piece of memory without gaps, each its own place.
pub fn is_dense(ex: &Exprs, t: &TensorType) -> bool {
    dense_order(ex, &t.sizes, &t.strides).is_some()
}

/// The dimensions of dense strides, outermost first; those of size 1 stand anywhere.
/// Returns `None` for tensors with gaps, with overlaps, or whose density is not proved.
/// Quadratic in the rank, since each step looks for the dimension whose stride is the extent
/// so far.
pub fn dense_order(ex: &Exprs, sizes: &[Expr], strides: &[Expr]) -> Option<Vec<usize>> {
    let (mut order, mut rest): (Vec<usize>, Vec<usize>) =
        (0..sizes.len()).partition(|d| ex.is_int(sizes[*d], 1));
    let mut inner = Vec::with_capacity(rest.len());
    let mut step = ex.int(1);
    while !rest.is_empty() {
        let at =
            (rest.iter()).position(|d| strides[*d] == step || ex.prove_eq(strides[*d], step))?;
        let d = rest.remove(at);
        step = ex.mul(step, sizes[d]);
        inner.push(d);
    }
    inner.reverse();
    // A row-major tensor gets the identity, wherever its dimensions of size 1 stand.
    if inner.is_sorted() {
        return Some((0..sizes.len()).collect());
    }
    order.extend(inner);
    Some(order)
}

/// Returns the strides that eager's pointwise iteration allocates. Operands of one dense layout
/// keep it. Otherwise dimensions are sorted by the first operand that orders two of them.
pub fn pointwise(ex: &Exprs, sizes: &[Expr], operands: &[&TensorType]) -> Vec<Expr> {
    let same = operands.iter().all(|t| t.sizes == sizes);
    if let (true, Some(first)) = (same, operands.first())
        && is_dense(ex, first)
        && operands.iter().all(|t| agree(ex, t, first))
    {
        return first.strides.clone();
    }
    let strides: Vec<Vec<Expr>> = operands.iter().map(|t| strides_in(ex, t, sizes)).collect();
    permuted(ex, sizes, &order_of(ex, sizes, &strides))
}

/// Returns true if two layouts of the same sizes differ at most in dimensions of size 1.
fn agree(ex: &Exprs, a: &TensorType, b: &TensorType) -> bool {
    (0..a.rank()).all(|d| a.strides[d] == b.strides[d] || ex.is_int(a.sizes[d], 1))
}

/// Strides of an operand that is broadcast to `sizes`.
fn strides_in(ex: &Exprs, t: &TensorType, sizes: &[Expr]) -> Vec<Expr> {
    let zero = ex.int(0);
    let lead = sizes.len().saturating_sub(t.rank());
    let own = (t.sizes.iter().zip(&t.strides)).zip(&sizes[lead..]);
    let own = own.map(|((n, s), m)| match ex.is_int(*n, 1) && !ex.is_int(*m, 1) {
        true => zero,
        false => *s,
    });
    std::iter::repeat_n(zero, lead).chain(own).collect()
}

/// Dimensions from the outermost to the innermost, for operands of these strides: an insertion sort in which the first operand
/// that can tell two dimensions apart decides.
/// This is `TensorIteratorBase::reorder_dimensions`. Dimensions start with the last
/// innermost. Broadcast dimensions (stride 0) decide nothing, and of equal strides the larger
/// size is outer. The relation is not transitive, so only the same sort gives the same order.
fn order_of(ex: &Exprs, sizes: &[Expr], operands: &[Vec<Expr>]) -> Vec<usize> {
    let is_outer = |a: usize, b: usize| {
        for strides in operands {
            let (s, t) = (strides[a], strides[b]);
            if ex.is_int(s, 0) || ex.is_int(t, 0) {
                continue;
            }
            match compare(ex, s, t) {
                Ordering::Equal if compare(ex, sizes[a], sizes[b]).is_gt() => return Some(true),
                Ordering::Equal => {}
                told => return Some(told.is_gt()),
            }
        }
        None
    };
    let mut inner_first: Vec<usize> = (0..sizes.len()).rev().collect();
    for i in 1..sizes.len() {
        let mut at = i;
        for before in (0..i).rev() {
            match is_outer(inner_first[before], inner_first[at]) {
                Some(true) => {
                    inner_first.swap(before, at);
                    at = before;
                }
                Some(false) => break,
                // Undecided: a dimension further in may still decide.
                None => {}
            }
        }
    }
    inner_first.reverse();
    inner_first
}

/// Returns the strides that a copy of `t` allocates.
pub fn copy_of(ex: &Exprs, t: &TensorType) -> Vec<Expr> {
    match is_dense(ex, t) {
        true => t.strides.clone(),
        false => {
            let order = order_of(ex, &t.sizes, std::slice::from_ref(&t.strides));
            permuted(ex, &t.sizes, &order)
        }
    }
}

/// Returns true if a stride of zero puts several elements in one place.
pub fn repeats(ex: &Exprs, t: &TensorType) -> bool {
    let none = t.sizes.iter().any(|n| ex.is_int(*n, 0));
    let zero = |(n, s): (&Expr, &Expr)| ex.is_int(*s, 0) && !ex.is_int(*n, 1);
    !none && t.sizes.iter().zip(&t.strides).any(zero)
}

/// Strides of a copy of all that a tensor's memory holds.
pub fn storage(ex: &Exprs, t: &TensorType) -> Vec<Expr> {
    match repeats(ex, t) {
        true => copy_of(ex, t),
        false => t.strides.clone(),
    }
}

/// The layout that `roll` gives: pieces that are joined along each dimension keep channels last where they agree on it.
pub fn roll(ex: &Exprs, t: &TensorType, shifts: &[Expr], dims: &[usize]) -> Vec<Expr> {
    if dims.is_empty() {
        return ex.contiguous_strides(&t.sizes);
    }
    let mut at = t.clone();
    for (shift, d) in shifts.iter().zip(dims) {
        let piece = |size: Expr| {
            let mut piece = at.clone();
            piece.sizes[*d] = size;
            is_channels_last(ex, &piece)
        };
        let size = at.sizes[*d];
        let start = ex.modulo(ex.sub(size, *shift), size);
        at.strides = match (piece(ex.sub(size, start)), piece(start)) {
            (true, true) => format_like(ex, &at, &at.sizes),
            _ => ex.contiguous_strides(&at.sizes),
        };
    }
    at.strides
}

/// The layout that indexing by tensors gives: an iteration over the source, with strides of zero where it is indexed, then the
/// indices.
/// Returns `None` without an index tensor. The index dimensions stand in place of the indexed
/// ones if these are adjacent, and in front otherwise.
pub fn index(
    ex: &Exprs,
    t: &TensorType,
    indices: &[Option<&TensorType>],
    sizes: &[Expr],
) -> Option<Vec<Expr>> {
    let at: Vec<usize> = (0..indices.len())
        .filter(|d| indices[*d].is_some())
        .collect();
    let (first, last) = (*at.first()?, *at.last()?);
    let common = sizes.len().checked_sub(t.rank() - at.len())?;
    let lead = if last - first + 1 == at.len() {
        first
    } else {
        0
    };
    let kept: Vec<usize> = (0..t.rank()).filter(|d| !at.contains(d)).collect();
    // The source contributes no stride along indexed dimensions, the indices none along kept
    // ones.
    let zeros = |n: usize| std::iter::repeat_n(ex.int(0), n);
    let (before, after) = kept.split_at(lead);
    let own = |dims: &[usize]| dims.iter().map(|d| t.strides[*d]).collect::<Vec<_>>();
    let source = own(before)
        .into_iter()
        .chain(zeros(common))
        .chain(own(after));
    let mut operands: Vec<Vec<Expr>> = vec![source.collect()];
    for i in indices.iter().flatten() {
        let middle = strides_in(ex, i, &sizes[lead..lead + common]);
        operands.push(
            zeros(lead)
                .chain(middle)
                .chain(zeros(after.len()))
                .collect(),
        );
    }
    Some(permuted(ex, sizes, &order_of(ex, sizes, &operands)))
}
