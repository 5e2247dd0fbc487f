//! Different elements: of a whole tensor, of its neighbours, and of its slices along a dimension.
//!
//! ```text
//! x        3 1 3 2
//! order    1 3 0 2      positions, stably sorted; as they are for neighbours
//! groups   1 | 2 | 3    one for each run of equal elements in that order
//! ```

use super::{as_elements, signed};
use crate::check::{Params, count, refuse_dtype, size};
use crate::parallel::scratch;
use crate::sort::{Key, ascending};
use crate::{DynamicCall, DynamicFunction};
use half::{bf16, f16};
use inrush_base::{DType, Error, Result};
use std::cmp::Ordering;

/// Finds the different elements of a tensor.
pub(crate) const UNIQUE: DynamicFunction = DynamicFunction {
    name: "unique",
    doc: "in x; out values in ascending order, inverse (i64, of the sizes of x, or empty), counts (i64, or empty); params [sorted, \
          return_inverse, return_counts]. Each NaN differs from all others.",
    run: |call| dispatch(call, Of::Elements),
};

/// Finds the elements that differ from the one before them.
pub(crate) const CONSECUTIVE: DynamicFunction = DynamicFunction {
    name: "unique_consecutive",
    doc: "in x; out values, inverse (i64, of the sizes of x, or empty), counts (i64, or empty); params [return_inverse, return_counts, \
          dim or none]. With a dimension slices are compared, and inverse and counts are always given.",
    run: |call| dispatch(call, Of::Neighbours),
};

/// Finds the different slices of a tensor.
pub(crate) const DIM: DynamicFunction = DynamicFunction {
    name: "unique_dim",
    doc: "in x; out slices in ascending order, one after the other in memory, inverse (i64), counts (i64); params [dim, sorted, return_inverse, return_counts]. Slices \
          are ordered by their first elements that differ.",
    run: |call| dispatch(call, Of::Slices),
};

/// The things that are compared.
#[derive(Copy, Clone, PartialEq, Eq)]
enum Of {
    Elements,
    Neighbours,
    Slices,
}

fn dispatch(call: &mut DynamicCall<'_, '_>, of: Of) -> Result<()> {
    match call.one_input()?.dtype {
        DType::Bool | DType::U8 => run::<u8>(call, of),
        DType::I8 => run::<i8>(call, of),
        DType::U16 => run::<u16>(call, of),
        DType::I16 => run::<i16>(call, of),
        DType::U32 => run::<u32>(call, of),
        DType::I32 => run::<i32>(call, of),
        DType::U64 => run::<u64>(call, of),
        DType::I64 => run::<i64>(call, of),
        DType::F16 => run::<f16>(call, of),
        DType::BF16 => run::<bf16>(call, of),
        DType::F32 => run::<f32>(call, of),
        DType::F64 => run::<f64>(call, of),
        other => Err(refuse_dtype(other)),
    }
}

/// Slices of a tensor along a dimension: element `j` of outer part `o` of slice `i` is at `(o * n + i) * inner + j`.
struct Slices<'a, T> {
    x: &'a [T],
    outer: usize,
    n: usize,
    inner: usize,
}

impl<T: Key + PartialEq> Slices<'_, T> {
    fn elements(&self, slice: usize) -> impl Iterator<Item = T> + '_ {
        let start = move |o: usize| (o * self.n + slice) * self.inner;
        (0..self.outer).flat_map(move |o| self.x[start(o)..start(o) + self.inner].iter().copied())
    }

    fn same(&self, a: usize, b: usize) -> bool {
        match self.outer * self.inner {
            1 => self.x[a] == self.x[b],
            _ => self.elements(a).eq(self.elements(b)),
        }
    }

    fn compare(&self, a: usize, b: usize) -> Ordering {
        let keys = |s| self.elements(s).map(Key::key);
        keys(a).cmp(keys(b))
    }

    /// Returns the slices in ascending order, or as they are.
    fn order(&self, sort: bool) -> Result<Vec<usize>> {
        if sort && self.outer * self.inner == 1 {
            return ascending(self.x);
        }
        let mut order: Vec<usize> = scratch(self.n)?;
        order.iter_mut().enumerate().for_each(|(i, o)| *o = i);
        if sort {
            order.sort_by(|a, b| self.compare(*a, *b));
        }
        Ok(order)
    }
}

fn run<T: Key + PartialEq>(call: &mut DynamicCall<'_, '_>, of: Of) -> Result<()> {
    let x = call.one_input()?;
    let mut params = Params::new(call.params);
    let dim = match of {
        Of::Slices => Some(params.dim(x.sizes.len())?),
        Of::Elements | Of::Neighbours => None,
    };
    if of != Of::Neighbours {
        // Sorting is what finds them.
        params.flag("sorted")?;
    }
    let (mut inverse, mut counts) = (
        params.flag("return_inverse")?,
        params.flag("return_counts")?,
    );
    let dim = match of {
        Of::Neighbours => params.optional_dim(x.sizes.len())?,
        Of::Elements | Of::Slices => dim,
    };
    params.end()?;
    if dim.is_some() {
        (inverse, counts) = (true, true);
    }
    let slices = match dim {
        Some(d) => Slices {
            x: x.elements_as::<T>()?,
            outer: count(&x.sizes[..d])?,
            n: size(x.sizes, d),
            inner: count(&x.sizes[d + 1..])?,
        },
        None => Slices {
            x: x.elements_as::<T>()?,
            outer: 1,
            n: count(x.sizes)?,
            inner: 1,
        },
    };
    let order = slices.order(of != Of::Neighbours)?;
    // Where each run of equal slices begins in that order.
    let mut begins: Vec<usize> = Vec::new();
    for (k, at) in order.iter().enumerate() {
        if k == 0 || !slices.same(order[k - 1], *at) {
            begins.push(k);
        }
    }
    write_values(call, dim, &slices, &order, &begins)?;
    write_inverse(
        call,
        if dim.is_some() { None } else { Some(x.sizes) },
        inverse,
        &order,
        &begins,
    )?;
    let groups = signed(begins.len())?;
    let sizes = [if counts { groups } else { 0 }];
    let out = (call.results).tensor(DType::I64, &sizes, &[1])?;
    let ends = begins.iter().skip(1).copied().chain([order.len()]);
    for (to, (begin, end)) in as_elements::<i64>(out)?
        .iter_mut()
        .zip(begins.iter().zip(ends))
    {
        *to = signed(end - begin)?;
    }
    Ok(())
}

/// Writes the first slice of each run.
fn write_values<T: Key + PartialEq>(
    call: &mut DynamicCall<'_, '_>,
    dim: Option<usize>,
    s: &Slices<'_, T>,
    order: &[usize],
    begins: &[usize],
) -> Result<()> {
    let x = call.one_input()?;
    let groups = signed(begins.len())?;
    let sizes = match dim {
        Some(d) => {
            let mut sizes = x.sizes.to_vec();
            sizes[d] = groups;
            sizes
        }
        None => vec![groups],
    };
    // One slice after the other in memory.
    let mut strides = vec![1i64; sizes.len()];
    let mut next = 1i64;
    for d in (0..sizes.len())
        .rev()
        .filter(|d| Some(*d) != dim)
        .chain(dim)
    {
        strides[d] = next;
        next = next.saturating_mul(sizes[d].max(1));
    }
    let out = (call.results).tensor(x.dtype, &sizes, &strides)?;
    let out: &mut [T] = as_elements(out)?;
    if out.is_empty() {
        return Ok(());
    }
    let length = s.outer * s.inner;
    for (to, begin) in out.chunks_exact_mut(length).zip(begins) {
        let from = s.elements(order[*begin]);
        to.iter_mut().zip(from).for_each(|(to, from)| *to = from);
    }
    Ok(())
}

/// Writes the number of each slice's run; nothing unless it is wanted.
fn write_inverse(
    call: &mut DynamicCall<'_, '_>,
    sizes: Option<&[i64]>,
    wanted: bool,
    order: &[usize],
    begins: &[usize],
) -> Result<()> {
    let one = [signed(order.len())?];
    let sizes = match (wanted, sizes) {
        (false, _) => &[0][..],
        (true, Some(sizes)) => sizes,
        (true, None) => &one[..],
    };
    let mut strides = vec![1i64; sizes.len()];
    for d in (1..sizes.len()).rev() {
        strides[d - 1] = strides[d].saturating_mul(sizes[d].max(1));
    }
    let out = (call.results).tensor(DType::I64, sizes, &strides)?;
    let out: &mut [i64] = as_elements(out)?;
    if out.is_empty() {
        return Ok(());
    }
    if out.len() != order.len() {
        return Err(Error::internal("a tensor has other elements than sizes"));
    }
    let mut run = 0;
    for (k, at) in order.iter().enumerate() {
        if begins.get(run + 1) == Some(&k) {
            run += 1;
        }
        out[*at] = signed(run)?;
    }
    Ok(())
}
