//! Order: sorting, the greatest few, searching in sorted sequences, running extremes.
//!
//! Loops have no data-dependent control flow, so sorting is by ranks (see docs/sorting.md):
//! each element computes the place that it has in the sorted row, and a store moves it there.
//!
//! ```text
//! row of 100      blocks of 32, ranked by comparing each with each      100 * 32 comparisons
//!                 merge 32 + 32, 32 + 4                                  6 probes per element
//!                 merge 64 + 36                                          7 probes per element
//! ```
//!
//! - Ranking: the place in a block is the number of elements that come before, ties by
//!   position. It is a reduction without branches, which vectorises.
//! - Merging: the place in a merged run is the place in the own run plus the number of
//!   elements of the other run that come before, found by binary search with a fixed number
//!   of steps.
//!
//! Work for a row of `n` is `n * (32 + log2(n / 32) * (log2(n) + 6) / 2)` comparisons. Both
//! steps are stable, and the order is PyTorch's: ascending with NaN last, or exactly reversed
//! with ties still in order of position.
//!
//! On GPUs a program that holds a row sorts it by a network instead (`packed_sort`).
//!
//! The few greatest (`topk` with small `k`) are found by `k` passes over the row, without
//! sorting. Searching (`searchsorted`) is binary search with a number of steps that the
//! extent bounds.

use super::packed_sort::{packed, sorts_in_kernel};
use crate::lower::Processor;
use crate::ops::{decomposed, lowered};
use crate::props::{Library, Prop, SortAxis};
use crate::{Args, BodyBuilder, Builder, Call, Lower, Operand, Row, Tensor, meta};
use inrush_base::{DType, Error, Result, Scalar, promote};
use inrush_expr::{Expr, Exprs};
use inrush_graph::{Type, ValueId};
use inrush_loops::{ReduceOp, ScalarOp as S, StmtId};

/// `a` comes before `b` in ascending order, NaN last.
fn before(body: &mut BodyBuilder, a: StmtId, b: StmtId) -> StmtId {
    let lt = body.op(S::Lt, &[a, b]);
    if !body.dtype(a).is_float() {
        return lt;
    }
    let (na, nb) = (body.op(S::IsNan, &[a]), body.op(S::IsNan, &[b]));
    let number = body.op(S::Not, &[na]);
    // NaN comes after all numbers, and two NaNs are equal.
    let last = body.op(S::And, &[nb, number]);
    body.op(S::Or, &[lt, last])
}

/// The type of places in a row of so many elements and of sums of two of them: more short numbers fit into a vector, and gathers
/// take them as indices.
fn short_int(exprs: &Exprs, length: Expr) -> DType {
    match exprs.range(length).hi {
        ..=0x3fff_ffff => DType::I32,
        _ => DType::I64,
    }
}

/// Elements of a row that are compared each with each; longer rows are merged from such blocks.
const BLOCK: i64 = 32;

/// A row's elements and where they came from, under reorderings of the dimension.
struct Rows {
    values: Tensor,
    /// `None` while every element is where it was.
    from: Option<Tensor>,
    dim: usize,
    descending: bool,
}

impl Rows {
    /// Returns a mask that is true if `a` sorts strictly before `b`. `a` comes later in the row, so
    /// equal elements keep their order.
    fn precedes(&self, body: &mut BodyBuilder, a: StmtId, b: StmtId) -> StmtId {
        match self.descending {
            true => before(body, b, a),
            false => before(body, a, b),
        }
    }

    /// Stores every element at its `place` in the row; `None` for those that belong nowhere.
    /// `at` are the coordinates of the element in the row, and `size` the extent of the new
    /// row. Values and origins move together; before the first move an origin is the position
    /// itself.
    fn moved<'g>(
        &self,
        lw: &mut Lower<'g>,
        mut body: BodyBuilder<'g>,
        place: StmtId,
        at: &[Expr],
        size: Expr,
        mask: Option<StmtId>,
    ) -> Rows {
        let dim = self.dim;
        let value = match mask {
            Some(m) => body.load_masked(&self.values, at, m, Scalar::Int(0)),
            None => body.load(&self.values, at),
        };
        let from = match (&self.from, mask) {
            (Some(t), Some(m)) => body.load_masked(t, at, m, Scalar::Int(0)),
            (Some(t), None) => body.load(t, at),
            (None, _) => body.index_value(at[dim]),
        };
        let mut sizes = self.values.sizes.clone();
        sizes[dim] = size;
        let (values, indices) = (
            lw.temp(self.values.dtype, &sizes),
            lw.temp(DType::I64, &sizes),
        );
        let mut to = at.to_vec();
        to[dim] = body.indirect(place, size, false, false, mask);
        let mode = inrush_loops::StoreMode::Set;
        body.store_with(values.buf, &to, value, mode, mask);
        body.store_with(indices.buf, &to, from, mode, mask);
        lw.push(body);
        Rows {
            values,
            from: Some(indices),
            ..*self
        }
    }

    /// Sorts blocks of the row: an element's place in its block is how many of the block come before it. Equal elements keep
    /// their order.
    fn blocks<'g>(&self, lw: &mut Lower<'g>, block: Expr, count: Expr) -> Rows {
        let (x, dim) = (&self.values, self.dim);
        let e = lw.exprs;
        let n = x.sizes[dim];
        // Otherwise the last block is cut short: elements beyond the row are masked and count
        // nowhere.
        let whole = e.prove_eq(e.mul(count, block), n);
        let mut sizes = x.sizes.clone();
        sizes[dim] = block;
        sizes.insert(dim, count);
        // The place that an index of the block has in the row.
        let join = |at: &[Expr], i: Expr| -> Vec<Expr> {
            let mut out = at.to_vec();
            let start = e.mul(out.remove(dim), block);
            out[dim] = e.add(start, i);
            out
        };
        let inside = |body: &mut BodyBuilder<'g>, at: Expr| -> Option<StmtId> {
            if whole {
                return None;
            }
            let (at, end) = (body.index_value(at), body.index_value(n));
            Some(body.op(S::Lt, &[at, end]))
        };
        let load = |body: &mut BodyBuilder<'g>, at: &[Expr], mask: Option<StmtId>| match mask {
            Some(m) => body.load_masked(x, at, m, Scalar::Int(0)),
            None => body.load(x, at),
        };
        let mut body = lw.body(&sizes);
        let outer = body.outer();
        let other = body.reduce_axes(&[block])[0];
        let (here, there) = (join(&outer, outer[dim + 1]), join(&outer, other));
        let (m, k) = (inside(&mut body, here[dim]), inside(&mut body, there[dim]));
        let (mine, theirs) = (load(&mut body, &here, m), load(&mut body, &there, k));
        // Equal elements are told apart by position: the earlier one counts as before.
        let first = self.precedes(&mut body, theirs, mine);
        let second = self.precedes(&mut body, mine, theirs);
        let short = short_int(e, block);
        let i = body.index_as(outer[dim + 1], short);
        let j = body.index_as(other, short);
        let earlier = body.op(S::Lt, &[j, i]);
        let equal = body.op(S::Not, &[second]);
        let tie = body.op(S::And, &[equal, earlier]);
        let mut counts = body.op(S::Or, &[first, tie]);
        if let Some(k) = k {
            counts = body.op(S::And, &[counts, k]);
        }
        let one = body.cast(counts, short);
        let rank = body.reduce(ReduceOp::Sum, one);
        let ranks = lw.store_new(body, rank, short, &sizes);

        let mut body = lw.body(&sizes);
        let outer = body.outer();
        let rank = body.load(&ranks, &outer);
        let rank = body.cast(rank, DType::I64);
        let here = join(&outer, outer[dim + 1]);
        let m = inside(&mut body, here[dim]);
        let start = body.index_value(e.mul(outer[dim], block));
        let place = body.op(S::Add, &[start, rank]);
        self.moved(lw, body, place, &here, n, m)
    }

    /// Merges neighbouring sorted runs of `run` elements, a power of two. An element's place is its own in its run and how
    /// many of the neighbour come before it, which halving steps find.
    /// The runs are `[.., 0 xxxxx]` and `[.., 1 xxxxx]` in binary: flipping the bit `run` of
    /// a position leads to the other run, and clearing the bits below to its start. The last
    /// run may be short or have no neighbour; `length` is what the other has, at least 0.
    ///
    /// Each step tries whether `step` more elements of the other run come before. It starts
    /// at `run` itself, so that all of the run may count.
    fn merged<'g>(&self, lw: &mut Lower<'g>, run: i64) -> Rows {
        let (x, dim) = (&self.values, self.dim);
        let n = x.sizes[dim];
        let mut body = lw.body(&x.sizes);
        let outer = body.outer();
        let short = short_int(lw.exprs, n);
        let int = |body: &mut BodyBuilder<'g>, v: i64| body.constant(Scalar::Int(v), short);
        let mine = body.load(x, &outer);
        let at = body.index_as(outer[dim], short);
        let (width, one, zero) = (int(&mut body, run), int(&mut body, 1), int(&mut body, 0));
        let flip = body.op(S::Xor, &[at, width]);
        let mask = int(&mut body, !(run - 1));
        let start = body.op(S::And, &[flip, mask]);
        let end = body.index_as(n, short);
        let length = body.op(S::Sub, &[end, start]);
        let length = body.op(S::Maximum, &[length, zero]);
        let length = body.op(S::Minimum, &[length, width]);
        let side = body.op(S::And, &[at, width]);
        let second = body.op(S::Ne, &[side, zero]);
        let before_start = body.op(S::Sub, &[start, one]);
        let mut found = zero;
        let mut step = run;
        // An invariant: the first `found` elements of the other run come before this one.
        while step > 0 {
            let by = int(&mut body, step);
            let next = body.op(S::Add, &[found, by]);
            let fits = body.op(S::Le, &[next, length]);
            let last = body.op(S::Add, &[before_start, next]);
            // Any place will do where there is no such element: a load without a mask is one instruction, or fewer jumps.
            let last = body.select(fits, last, zero);
            let mut there = outer.clone();
            there[dim] = body.indirect(last, n, false, false, None);
            let theirs = body.load(x, &there);
            // Elements of the first run come before equal ones of the second.
            let below = self.precedes(&mut body, theirs, mine);
            let above = self.precedes(&mut body, mine, theirs);
            let not_above = body.op(S::Not, &[above]);
            let counts = body.select(second, not_above, below);
            let go = body.op(S::And, &[counts, fits]);
            found = body.select(go, next, found);
            step /= 2;
        }
        // The run's start without the bit that tells the two runs apart, and the place in the own run.
        let base = int(&mut body, !run);
        let own = body.op(S::And, &[at, base]);
        let place = body.op(S::Add, &[own, found]);
        self.moved(lw, body, place, &outer, n, None)
    }
}

/// The rows of `x` in order: blocks of elements compared each with each, then merged, so that the work is nearly that of a
/// comparison sort. A row of unknown length is one block.
fn in_order<'g>(lw: &mut Lower<'g>, x: &Tensor, dim: usize, descending: bool) -> Rows {
    let rows = Rows {
        values: x.clone(),
        from: None,
        dim,
        descending,
    };
    let n = x.sizes[dim];
    let length = match lw.exprs.as_int(n) {
        Some(n) if n > 2 * BLOCK => n,
        _ => return rows.blocks(lw, n, lw.exprs.int(1)),
    };
    let (block, e) = (lw.exprs.int(BLOCK), lw.exprs);
    let mut rows = rows.blocks(lw, block, e.ceildiv(n, block));
    let mut run = BLOCK;
    while run < length {
        rows = rows.merged(lw, run);
        run *= 2;
    }
    rows
}

/// Longest rows that loops sort on a CPU.
const SORTED_IN_LOOPS: i64 = 64;

/// Returns true if the library sorts rows of this length: its time grows as a sort's does, and the C compiler sees none of it.
fn sorts_in_library(lw: &Lower, length: Expr) -> bool {
    lw.processor == Processor::Cpu && lw.exprs.range(length).hi > SORTED_IN_LOOPS
}

/// The first `count` of each row in order, and where they came from.
fn ordered<'g>(
    lw: &mut Lower<'g>,
    x: &Tensor,
    dim: usize,
    count: Expr,
    descending: bool,
) -> Vec<Tensor> {
    let exprs = lw.exprs;
    // A single number is in order, and came from place 0.
    if x.sizes.is_empty() {
        let mut body = lw.body(&[]);
        let v = body.load(x, &[]);
        let values = lw.store_new(body, v, x.dtype, &[]);
        let mut body = lw.body(&[]);
        let zero = body.constant(Scalar::Int(0), DType::I64);
        return vec![values, lw.store_new(body, zero, DType::I64, &[])];
    }
    if sorts_in_library(lw, x.sizes[dim]) {
        let mut params = vec![Scalar::Int(dim as i64), Scalar::Bool(descending)];
        let function = if exprs.prove_eq(count, x.sizes[dim]) {
            "sort.stable"
        } else {
            params.push(Scalar::Bool(true));
            "topk"
        };
        let mut sizes = x.sizes.clone();
        sizes[dim] = count;
        let types = values_and_places(exprs, x.dtype, sizes);
        return lw.library(function, params, std::slice::from_ref(x), &types);
    }
    let longest = exprs.range(x.sizes[dim]).hi;
    if lw.processor == Processor::Gpu && sorts_in_kernel(x.dtype, longest) {
        return packed(lw, x, dim, count, descending);
    }
    let sorted = in_order(lw, x, dim, descending);
    let mut out = vec![sorted.values];
    out.extend(sorted.from);
    // The whole row is sorted, of which a prefix is kept.
    if !exprs.prove_eq(count, x.sizes[dim]) {
        let mut sizes = x.sizes.clone();
        sizes[dim] = count;
        for t in &mut out {
            let mut body = lw.body(&sizes);
            let at = body.outer();
            let v = body.load(t, &at);
            *t = lw.store_new(body, v, t.dtype, &sizes);
        }
    }
    out
}

fn sort<'g>(lw: &mut Lower<'g>, call: &Call<'g>) -> Result<Vec<Tensor>> {
    let x = lw.arg(call, "self")?;
    let dim = call.dim("dim", x.sizes.len())?;
    let count = x.sizes.get(dim).copied().unwrap_or(lw.exprs.int(1));
    let descending = call.bool("descending")?;
    Ok(ordered(lw, &x, dim, count, descending))
}

/// Types of elements that were moved, and of the places as `i64` that they came from.
fn values_and_places(exprs: &Exprs, dtype: DType, sizes: Vec<Expr>) -> Vec<Type> {
    vec![
        meta::tensor(exprs, dtype, sizes.clone()),
        meta::tensor(exprs, DType::I64, sizes),
    ]
}

/// Values like `self`, and their places.
fn sort_meta(call: &Call) -> Result<Vec<Type>> {
    let t = call.tensor("self")?;
    Ok(values_and_places(call.exprs, t.dtype, t.sizes.clone()))
}

/// Returns true if the `k` greatest are found one after the other instead of by sorting the row.
pub fn selects(k: i64) -> bool {
    (1..=8).contains(&k)
}

/// The `k` greatest of each row, one after the other: each is the greatest of those that come after the one before it, in the
/// order of falling values (NaN first) and rising places.
fn greatest_few<'g>(lw: &mut Lower<'g>, x: &Tensor, dim: usize, k: i64) -> Vec<Tensor> {
    let mut outer_sizes = x.sizes.clone();
    let along = outer_sizes.remove(dim);
    let mut out_sizes = x.sizes.clone();
    out_sizes[dim] = lw.exprs.int(k);
    // Stands for elements that were taken. It cannot be told from a real one of the same
    // value, so places are found by a comparison with the value, among those not yet taken.
    let least = match x.dtype {
        d if d.is_float() => Scalar::Float(f64::NEG_INFINITY),
        DType::Bool => Scalar::Bool(false),
        d => Scalar::Int(d.int_range().map_or(0, |r| r.0 as i64)),
    };
    let mut found: Vec<(Tensor, Tensor)> = Vec::new();
    // The body of a row: an element, its place, and whether it comes after the last one found.
    let start = |lw: &Lower<'g>, last: Option<&(Tensor, Tensor)>| {
        let mut body = lw.body(&outer_sizes);
        let outer = body.outer();
        let axis = body.reduce_axes(&[along])[0];
        let mut at = outer.clone();
        at.insert(dim, axis);
        let v = body.load(x, &at);
        let place = body.index_value(axis);
        let after = last.map(|(value, index)| {
            let (value, index) = (body.load(value, &outer), body.load(index, &outer));
            let below = before(&mut body, v, value);
            let above = before(&mut body, value, v);
            let behind = body.op(S::Gt, &[place, index]);
            let not_above = body.op(S::Not, &[above]);
            let equal = body.op(S::And, &[not_above, behind]);
            body.op(S::Or, &[below, equal])
        });
        (body, outer, v, place, after)
    };
    for _ in 0..k {
        let (mut body, .., v, _, after) = start(lw, found.last());
        let d = body.dtype(v);
        let candidate = match after {
            Some(after) => {
                let least = body.constant(least, d);
                body.select(after, v, least)
            }
            None => v,
        };
        let best = body.reduce(ReduceOp::Max, candidate);
        let value = lw.store_new(body, best, x.dtype, &outer_sizes);
        let (mut body, outer, v, place, after) = start(lw, found.last());
        let best = body.load(&value, &outer);
        let (less, more) = (before(&mut body, v, best), before(&mut body, best, v));
        let other = body.op(S::Or, &[less, more]);
        let mut hit = body.op(S::Not, &[other]);
        if let Some(after) = after {
            hit = body.op(S::And, &[hit, after]);
        }
        let none = body.constant(Scalar::Int(i64::MAX), DType::I64);
        let place = body.select(hit, place, none);
        let index = body.reduce(ReduceOp::Min, place);
        let index = lw.store_new(body, index, DType::I64, &outer_sizes);
        found.push((value, index));
    }
    let (values, indices): (Vec<Tensor>, Vec<Tensor>) = found.into_iter().unzip();
    [values, indices]
        .into_iter()
        .map(|parts| {
            let dtype = parts[0].dtype;
            let mut body = lw.body(&out_sizes);
            let at = body.outer();
            let mut outer = at.clone();
            let which = body.index_value(outer.remove(dim));
            let mut v = body.load(&parts[0], &outer);
            for (j, part) in parts.iter().enumerate().skip(1) {
                let j = body.constant(Scalar::Int(j as i64), DType::I64);
                let here = body.op(S::Eq, &[which, j]);
                let other = body.load(part, &outer);
                v = body.select(here, other, v);
            }
            lw.store_new(body, v, dtype, &out_sizes)
        })
        .collect()
}

/// `sorted=False` leaves the order open, so results in order serve too.
fn topk<'g>(lw: &mut Lower<'g>, call: &Call<'g>) -> Result<Vec<Tensor>> {
    let x = lw.arg(call, "self")?;
    let dim = call.dim("dim", x.sizes.len())?;
    let (largest, k) = (call.bool("largest")?, call.int("k")?);
    match lw.exprs.as_int(k) {
        Some(k) if largest && selects(k) && !x.sizes.is_empty() => Ok(greatest_few(lw, &x, dim, k)),
        _ => Ok(ordered(lw, &x, dim, k, largest)),
    }
}

fn topk_meta(call: &Call) -> Result<Vec<Type>> {
    let t = call.tensor("self")?;
    let dim = call.dim("dim", t.rank())?;
    let mut sizes = t.sizes.clone();
    let k = call.int("k")?;
    if let Some(s) = sizes.get_mut(dim) {
        call.at_most(k, *s, "k of topk")?;
        *s = k;
    }
    Ok(values_and_places(call.exprs, t.dtype, sizes))
}

/// The places that a sort returns.
fn argsort(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let (x, dim) = (args.value("self")?, args.int("dim")?);
    let descending = args.bool("descending")?;
    let sorted = b.call_multi(
        "aten.sort.default",
        &[x.into(), dim.into(), descending.into()],
    )?;
    Ok(vec![sorted[1]])
}

fn msort(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let x = args.value("self")?;
    let sorted = b.call_multi("aten.sort.default", &[x.into(), b.int(0)])?;
    Ok(vec![sorted[0]])
}

/// The `k`th smallest, counting from 1.
/// Sorts the row and selects one element; its place among equal ones is not defined in
/// PyTorch.
fn kthvalue(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let x = args.value("self")?;
    let rank = b.rank(x)?;
    let dim = b.int(args.dim("dim", rank)? as i64);
    let sorted = b.call_multi("aten.sort.default", &[x.into(), dim.clone()])?;
    if rank == 0 {
        return Ok(sorted);
    }
    let at = b.exprs.sub(args.int("k")?, b.exprs.int(1));
    let keep = args.bool("keepdim")?;
    let mut out = Vec::new();
    for v in sorted {
        let v = b.call("aten.select.int", &[v.into(), dim.clone(), at.into()])?;
        out.push(match keep {
            true => b.call("aten.unsqueeze.default", &[v.into(), dim.clone()])?,
            false => v,
        });
    }
    Ok(out)
}

/// The number of elements of a sorted sequence that come before a value, by halving steps.
/// The last dimension of the sequence is searched; the others go with those of the values.
struct Search<'t> {
    sequence: &'t Tensor,
    /// Where the elements stand that are in order.
    sorter: Option<&'t Tensor>,
    /// Elements equal to the value count as before it.
    right: bool,
    dtype: DType,
}

impl Search<'_> {
    /// `lead` are the indices of the sequence's dimensions but the last.
    /// Emits `floor(log2(size)) + 1` halving steps, unrolled. Each probe that would leave the
    /// sequence is masked.
    fn position(&self, body: &mut BodyBuilder, lead: &[Expr], value: StmtId) -> Result<StmtId> {
        let exprs = body.exprs;
        let size = *self
            .sequence
            .sizes
            .last()
            .ok_or_else(|| Error::input("a sequence without dimensions"))?;
        let top = exprs.range(size).hi;
        // The steps are unrolled, and sizes beyond this are symbols without a bound.
        if top > 1 << 40 {
            return Err(Error::unsupported(
                "searching in a sequence of unbounded length",
            ));
        }
        let length = body.index_value(size);
        let mut found = body.constant(Scalar::Int(0), DType::I64);
        if top < 1 {
            return Ok(found);
        }
        let mut step = 1i64 << top.ilog2();
        while step > 0 {
            let c = body.constant(Scalar::Int(step), DType::I64);
            let next = body.op(S::Add, &[found, c]);
            let fits = body.op(S::Le, &[next, length]);
            let one = body.constant(Scalar::Int(1), DType::I64);
            let last = body.op(S::Sub, &[next, one]);
            let i = body.indirect(last, size, false, false, Some(fits));
            let mut at = [lead, &[i]].concat();
            if let Some(sorter) = self.sorter {
                let place = body.load_masked(sorter, &at, fits, Scalar::Int(0));
                let place = body.cast(place, DType::I64);
                // A sorter comes from the user, so that its entries are checked.
                at = [lead, &[body.indirect(place, size, false, true, Some(fits))]].concat();
            }
            let v = body.load_masked(self.sequence, &at, fits, Scalar::Int(0));
            let v = body.cast(v, self.dtype);
            // Negated comparisons, so that NaN comes after everything.
            let after = body.op(if self.right { S::Gt } else { S::Ge }, &[v, value]);
            let go = body.op(S::Not, &[after]);
            let go = body.op(S::And, &[go, fits]);
            found = body.select(go, next, found);
            step /= 2;
        }
        Ok(found)
    }
}

/// `bucketize(self, boundaries)` and `searchsorted(sorted_sequence, self)`.
fn search<'g>(lw: &mut Lower<'g>, call: &Call<'g>, sequence: &str) -> Result<Vec<Tensor>> {
    let sequence = lw.arg(call, sequence)?;
    let has = |p: &str| call.op.schema().position(p).is_some();
    let sorter = match has("sorter") && call.given("sorter") {
        true => Some(lw.arg(call, "sorter")?),
        false => None,
    };
    let right = match has("side") {
        true => match call.opt_str("side")? {
            Some("right") => true,
            Some("left") => false,
            Some(_) => return Err(Error::input("argument `side`: `left` or `right`")),
            None => call.bool("right")?,
        },
        false => call.bool("right")?,
    };
    let value = call
        .operand("self")?
        .ok_or_else(|| Error::input("no value to search for"))?;
    let mut rounds = false;
    let (sizes, dtype) = match value {
        Operand::Tensor(v) => {
            let t = call.type_of(v)?;
            // A tensor without dimensions takes part as a number does.
            rounds = t.sizes.is_empty() && t.dtype.is_float() && sequence.dtype.is_float();
            let dtype = match rounds {
                true => sequence.dtype,
                false => promote(t.dtype, sequence.dtype),
            };
            (t.sizes.clone(), dtype)
        }
        Operand::Scalar(s) if s.default_dtype().is_float() && !sequence.dtype.is_float() => {
            (Vec::new(), DType::F32)
        }
        _ => {
            rounds = sequence.dtype.is_float();
            (Vec::new(), sequence.dtype)
        }
    };
    let dtype = dtype.compute();
    let mut body = lw.body(&sizes);
    let outer = body.outer();
    let mut x = lw.operand(&mut body, value, dtype)?;
    if rounds && sequence.dtype != dtype {
        // Eager converts a number to the dtype of the sequence.
        x = body.cast(x, sequence.dtype);
        x = body.cast(x, dtype);
    }
    let lead: Vec<Expr> = match sequence.sizes.len() {
        1 => Vec::new(),
        n if n == sizes.len() => outer[..n - 1].to_vec(),
        _ => return Err(Error::input("the sequence and the values differ in rank")),
    };
    let search = Search {
        sequence: &sequence,
        sorter: sorter.as_ref(),
        right,
        dtype,
    };
    let found = search.position(&mut body, &lead, x)?;
    let dtype = index_dtype(call)?;
    Ok(vec![lw.store_new(body, found, dtype, &sizes)])
}

fn index_dtype(call: &Call) -> Result<DType> {
    Ok(match call.bool("out_int32")? {
        true => DType::I32,
        false => DType::I64,
    })
}

/// The sizes of the values; none for a number.
fn search_meta(call: &Call) -> Result<Vec<Type>> {
    let sizes = match call.operand("self")? {
        Some(Operand::Tensor(v)) => call.type_of(v)?.sizes.clone(),
        _ => Vec::new(),
    };
    meta::one(call.exprs, index_dtype(call)?, sizes)
}

/// Running extreme and the last place where it was met.
/// Two scans in one body: the extreme so far, then the maximum of the places where an element
/// equals it. NaN is equal to nothing, but is the extreme from its first place on, and each
/// further one takes over.
fn running<'g>(lw: &mut Lower<'g>, call: &Call<'g>, op: ReduceOp) -> Result<Vec<Tensor>> {
    let t = lw.arg(call, "self")?;
    let d = call.dim("dim", t.sizes.len())?;
    let mut outer = t.sizes.clone();
    let along = match outer.is_empty() {
        true => lw.exprs.int(1),
        false => outer.remove(d),
    };
    let mut body = lw.body(&outer);
    let mut at = body.outer();
    let along = body.reduce_axes(&[along]);
    if !t.sizes.is_empty() {
        at.insert(d, along[0]);
    }
    let v = body.load(&t, &at);
    let best = body.scan(op, v);
    // Where an element is the extreme so far, its place is the latest one.
    let mut hit = body.op(S::Eq, &[v, best]);
    if t.dtype.is_float() {
        let nan = body.op(S::IsNan, &[v]);
        hit = body.op(S::Or, &[hit, nan]);
    }
    let place = body.index_value(along[0]);
    let zero = body.constant(Scalar::Int(0), DType::I64);
    let place = body.select(hit, place, zero);
    let place = body.scan(ReduceOp::Max, place);
    let (values, indices) = (lw.temp(t.dtype, &t.sizes), lw.temp(DType::I64, &t.sizes));
    body.store(values.buf, &at, best);
    body.store(indices.buf, &at, place);
    lw.push(body);
    Ok(vec![values, indices])
}

const SORT: &str =
    "(Tensor self, int dim=-1, bool descending=False) -> (Tensor values, Tensor indices)";
const RUNNING: &str = "(Tensor self, int dim) -> (Tensor values, Tensor indices)";

pub const ROWS: &[Row] = &[
    lowered(
        "aten.sort.default",
        SORT,
        sort_meta,
        sort,
        "(f32[3,7], 0, true)",
    ).with(&[Prop::Sorts(SortAxis::Dim), Prop::Library(Library::Sort)]),
    lowered(
        "aten.sort.stable",
        "(Tensor self, *, bool? stable, int dim=-1, bool descending=False) -> (Tensor values, Tensor indices)",
        sort_meta,
        sort,
        "(i64[3,7]{0:3}, stable=true)",
    ).with(&[Prop::Sorts(SortAxis::Dim), Prop::Library(Library::Sort)]),
    lowered(
        "aten.topk.default",
        "(Tensor self, SymInt k, int dim=-1, bool largest=True, bool sorted=True) -> (Tensor values, Tensor indices)",
        topk_meta,
        topk,
        "(f32[3,7], 2)",
    ).with(&[Prop::Sorts(SortAxis::Dim), Prop::TopK, Prop::Library(Library::Sort)]),
    decomposed(
        "aten.argsort.default",
        "(Tensor self, int dim=-1, bool descending=False) -> Tensor",
        argsort,
        "(f32[3,7], 1)",
    ).with(&[Prop::Sorts(SortAxis::Dim)]),
    decomposed(
        "aten.argsort.stable",
        "(Tensor self, *, bool stable, int dim=-1, bool descending=False) -> Tensor",
        argsort,
        "(f32[3,7], stable=true, descending=true)",
    ).with(&[Prop::Sorts(SortAxis::Dim)]),
    decomposed(
        "aten.msort.default",
        "(Tensor self) -> Tensor",
        msort,
        "(f32[7,2])",
    ).with(&[Prop::Sorts(SortAxis::First), Prop::Library(Library::Sort)]),
    decomposed(
        "aten.kthvalue.default",
        "(Tensor self, SymInt k, int dim=-1, bool keepdim=False) -> (Tensor values, Tensor indices)",
        kthvalue,
        "(f32[3,7], 2, 1, true)",
    ).with(&[Prop::Sorts(SortAxis::Dim)]),
    lowered(
        "aten.bucketize.Tensor",
        "(Tensor self, Tensor boundaries, *, bool out_int32=False, bool right=False) -> Tensor",
        search_meta,
        |lw, c| search(lw, c, "boundaries"),
        "(f32[3,4], f32[5])",
    ),
    lowered(
        "aten.bucketize.Scalar",
        "(Scalar self, Tensor boundaries, *, bool out_int32=False, bool right=False) -> Tensor",
        search_meta,
        |lw, c| search(lw, c, "boundaries"),
        "(0.5, f32[5])",
    ),
    lowered(
        "aten.searchsorted.Tensor",
        "(Tensor sorted_sequence, Tensor self, *, bool out_int32=False, bool right=False, str? side=None, Tensor? sorter=None) -> Tensor",
        search_meta,
        |lw, c| search(lw, c, "sorted_sequence"),
        "(f32[3,5], f32[3,4], side=\"right\")",
    ),
    lowered(
        "aten.searchsorted.Scalar",
        "(Tensor sorted_sequence, Scalar self, *, bool out_int32=False, bool right=False, str? side=None, Tensor? sorter=None) -> Tensor",
        search_meta,
        |lw, c| search(lw, c, "sorted_sequence"),
        "(f32[5], 0.25)",
    ),
    lowered(
        "aten.cummax.default",
        RUNNING,
        sort_meta,
        |lw, c| running(lw, c, ReduceOp::Max),
        "(f32[3,5], 1)",
    ),
    lowered(
        "aten.cummin.default",
        RUNNING,
        sort_meta,
        |lw, c| running(lw, c, ReduceOp::Min),
        "(f32[3,5], 0)",
    ),
];
