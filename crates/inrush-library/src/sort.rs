//! Sorts along one dimension, and the largest or smallest elements of it.
//!
//! A line's elements become unsigned keys in the order that is wanted, each packed with its index below it. All packed values
//! differ, so any sort of them is stable. Long lines are sorted by digits (least significant first), which start from the
//! order of indices and so need no pass over the index's digits.

mod digits;
mod keys;

use crate::check::{Params, count, refuse_dtype, size};
use crate::parallel::{Shared, grain, scratch, try_for};
use crate::{Call, Function};
use digits::sort;
use half::{bf16, f16};
use inrush_base::{DType, Error, Result};
use inrush_cpu::Pool;
pub(crate) use keys::Key;
use keys::Packed;

/// Sorts a dimension.
pub(crate) const STABLE: Function = Function {
    name: "sort.stable",
    doc: "in x; out values, indices (i64); params [dim, descending]. Sorts a dimension. Equal elements keep their order; NaN is the \
          greatest. Every dtype but narrow eight-bit floats and complex ones.",
    run: |call| dispatch(call, true),
};

/// Finds the first elements of a sorted dimension.
pub(crate) const TOPK: Function = Function {
    name: "topk",
    doc: "in x; out values, indices (i64); params [dim, largest, sorted]. The largest or smallest elements of a dimension, as many as \
          the output has there, in order; among equal ones those of lower index. NaN is the greatest.",
    run: |call| dispatch(call, false),
};

fn dispatch(call: &mut Call<'_, '_>, whole: bool) -> Result<()> {
    let dtype = call.inputs.first().map(|i| i.dtype);
    let dtype = dtype.ok_or_else(|| Error::input("0 inputs, not 1"))?;
    match dtype {
        DType::Bool | DType::U8 => run::<u8>(call, whole),
        DType::I8 => run::<i8>(call, whole),
        DType::U16 => run::<u16>(call, whole),
        DType::I16 => run::<i16>(call, whole),
        DType::U32 => run::<u32>(call, whole),
        DType::I32 => run::<i32>(call, whole),
        DType::U64 => run::<u64>(call, whole),
        DType::I64 => run::<i64>(call, whole),
        DType::F16 => run::<f16>(call, whole),
        DType::BF16 => run::<bf16>(call, whole),
        DType::F32 => run::<f32>(call, whole),
        DType::F64 => run::<f64>(call, whole),
        other => Err(refuse_dtype(other)),
    }
}

/// The lines of a call: element `i` of line `(o, j)` is at `(o * n + i) * inner + j`, result `i` at `(o * k + i) * inner + j`.
struct Lines {
    outer: usize,
    inner: usize,
    n: usize,
    k: usize,
    /// Order of results: descending where true.
    descending: bool,
}

fn run<T: Key>(call: &mut Call<'_, '_>, whole: bool) -> Result<()> {
    let parts = call.parts::<1, 2>()?;
    let [x] = parts.inputs;
    // A tensor of no dimension is sorted as one element.
    let sizes = if x.sizes.is_empty() {
        &[1][..]
    } else {
        x.sizes
    };
    let mut params = Params::new(parts.params);
    let dim = params.dim(sizes.len())?;
    let descending = params.flag(if whole { "descending" } else { "largest" })?;
    if !whole {
        // Results are in order in either case.
        params.flag("sorted")?;
    }
    params.end()?;
    let [values, indices] = parts.outputs;
    let n = sizes[dim];
    let mut want = x.sizes.to_vec();
    let k = if whole {
        n
    } else {
        values.sizes.get(dim).copied().unwrap_or(1)
    };
    if !(0..=n).contains(&k) {
        return Err(Error::input(format!(
            "{k} elements of a dimension of size {n}"
        )));
    }
    if !want.is_empty() {
        want[dim] = k;
    }
    values.check_sizes(&want)?;
    indices.check_sizes(&want)?;
    if values.dtype != x.dtype {
        return Err(Error::input(format!(
            "values of {}, not {}",
            values.dtype, x.dtype
        )));
    }
    if u32::try_from(n).is_err() {
        return Err(Error::input(format!("a line of {n} elements is too long")));
    }
    let lines = Lines {
        outer: count(&sizes[..dim])?,
        inner: count(&sizes[dim + 1..])?,
        n: size(sizes, dim),
        k: usize::try_from(k).unwrap_or(0),
        descending,
    };
    let (x, values) = (x.elements_as::<T>()?, values.elements_as::<T>()?);
    sort_lines(parts.pool, &lines, x, values, indices.elements::<i64>()?)
}

fn sort_lines<T: Key>(
    pool: &Pool,
    lines: &Lines,
    x: &[T],
    values: &mut [T],
    indices: &mut [i64],
) -> Result<()> {
    let &Lines {
        outer,
        inner,
        n,
        k,
        descending,
    } = lines;
    if values.is_empty() {
        return Ok(());
    }
    let (values, indices) = (Shared::new(values), Shared::new(indices));
    // A comparison or a pass costs several elements' worth.
    try_for(pool, outer * inner, grain(4 * n), |range| {
        let mut packed: Vec<T::Packed> = scratch(if k == n { n } else { kept(k).min(n) })?;
        let mut other: Vec<T::Packed> = scratch(if k == n { n } else { 0 })?;
        for line in range {
            let start = line / inner * n * inner + line % inner;
            let key = |i: usize| {
                let key = x[start + i * inner].key();
                T::Packed::new(if descending { !key & T::MASK } else { key }, i)
            };
            let first = if k == n {
                packed.iter_mut().enumerate().for_each(|(i, p)| *p = key(i));
                sort(&mut packed, &mut other, T::BITS);
                &packed[..]
            } else {
                select(&mut packed, n, k, key);
                &packed[..k]
            };
            let to = line / inner * k * inner + line % inner;
            for (i, p) in first.iter().enumerate() {
                let at = p.index();
                // SAFETY: results of this range's lines only.
                unsafe {
                    values.set(to + i * inner, x[start + at * inner]);
                    indices.set(to + i * inner, at as i64);
                }
            }
        }
        Ok(())
    })
}

/// Returns the positions of elements in ascending order. Equal elements keep their order; NaN is the greatest.
pub(crate) fn ascending<T: Key>(x: &[T]) -> Result<Vec<usize>> {
    if u32::try_from(x.len()).is_err() {
        let message = format!("a tensor of {} elements is too long to sort", x.len());
        return Err(Error::input(message));
    }
    let mut packed: Vec<T::Packed> = scratch(x.len())?;
    let mut other: Vec<T::Packed> = scratch(x.len())?;
    let keys = x
        .iter()
        .enumerate()
        .map(|(i, e)| T::Packed::new(e.key(), i));
    packed.iter_mut().zip(keys).for_each(|(p, k)| *p = k);
    sort(&mut packed, &mut other, T::BITS);
    Ok(packed.into_iter().map(Packed::index).collect())
}

/// Candidates that are collected for `k` results before most of them are dropped.
fn kept(k: usize) -> usize {
    (2 * k).max(k + 64)
}

/// Puts the `k` least of `n` packed values first into `found`, in order. Values that are not below the `k`-th least so far
/// are dropped at once, so that most of a long line costs one comparison each.
fn select<P: Packed>(found: &mut [P], n: usize, k: usize, key: impl Fn(usize) -> P) {
    let mut many = 0;
    let mut bound = None;
    for i in 0..n {
        let p = key(i);
        if bound.is_some_and(|b| p > b) {
            continue;
        }
        found[many] = p;
        many += 1;
        if many == found.len() && i + 1 < n {
            found.select_nth_unstable(k - 1);
            bound = Some(found[k - 1]);
            many = k;
        }
    }
    if many > k {
        found[..many].select_nth_unstable(k - 1);
    }
    found[..k].sort_unstable();
}
