//! Views, rearranging copies, and creation of tensors.
//!
//! A view is a copy here, since tensors have no strides. Most functions are a map of coordinates:
//! for each point of the result, the point of the argument (`picked`). `view` and its family keep
//! the elements in row-major order and only take the declared sizes over.

use super::call::{Call, wrap};
use super::{Eval, broadcast_position, broadcasts, points, position};
use crate::tensor::Tensor;
use inrush_base::{DType, Error, Result, Scalar};
use inrush_graph::Arg;

pub(super) const TABLE: &[(&str, Eval)] = &[
    (
        "view reshape _unsafe_view view_as reshape_as flatten.using_ints unflatten.int unsqueeze squeeze squeeze.dim \
         squeeze.dims ravel",
        same_elements,
    ),
    ("permute", |c| {
        let rank = c.tensor(0)?.rank();
        let dims = c.ints(1)?.into_iter().map(|d| wrap(d, rank));
        permuted(c, dims.collect::<Result<_>>()?)
    }),
    ("transpose.int swapaxes swapdims", |c| {
        let rank = c.tensor(0)?.rank();
        swapped(c, c.dim(1, rank)?, c.dim(2, rank)?)
    }),
    ("numpy_T", |c| {
        permuted(c, (0..c.tensor(0)?.rank()).rev().collect())
    }),
    ("t mT adjoint", |c| match c.tensor(0)?.rank() {
        0 | 1 => same_elements(c),
        n => swapped(c, n - 2, n - 1),
    }),
    ("expand broadcast_to expand_as", |c| {
        let x = c.tensor(0)?;
        let mut sizes = match c.arg(1) {
            Arg::Value(_) => c.tensor(1)?.sizes.clone(),
            _ => c.ints(1)?,
        };
        // A size of -1 stays as it is.
        for (n, m) in sizes.iter_mut().rev().zip(x.sizes.iter().rev()) {
            *n = if *n == -1 { *m } else { *n };
        }
        broadcasts(&x.sizes, &sizes)?;
        let out = c.build(0, &sizes, |at| x.get(broadcast_position(&x.sizes, at)?));
        Ok(vec![out?])
    }),
    ("slice.Tensor", |c| {
        let x = c.tensor(0)?;
        let (d, n) = c.axis(1, x)?;
        // As in Python, bounds beyond the ends are clipped, and an end before the start gives an
        // empty slice.
        let (start, end) = (clipped(c.int(2, 0)?, n), clipped(c.int(3, n)?, n));
        let step = c.int(4, 1)?;
        if step < 1 {
            return Err(Error::input(format!("a step of {step}")));
        }
        let len = (end - start).max(0);
        // `len / step` rounded up, without an overflow for the largest steps.
        let sizes = resized(x, d, len / step + (len % step != 0) as i64);
        gathered(c, &sizes, |at| at[d] = start + at[d] * step)
    }),
    ("narrow", |c| {
        let x = c.tensor(0)?;
        let (d, n) = c.axis(1, x)?;
        // Unlike `slice`, nothing is clipped: a part that reaches over the end fails in
        // `position`.
        let (start, len) = (from_end(c.int(2, 0)?, n), c.int(3, 0)?);
        gathered(c, &resized(x, d, len), |at| {
            at[d] = at[d].saturating_add(start)
        })
    }),
    ("select.int", |c| {
        let x = c.tensor(0)?;
        let (d, n) = c.axis(1, x)?;
        let i = from_end(c.int(2, 0)?, n);
        gathered(c, &without(x, &[d]), |at| at.insert(d, i))
    }),
    (
        "split.Tensor split_with_sizes split.sizes chunk tensor_split.sections",
        parts,
    ),
    ("unbind.int", |c| {
        let x = c.tensor(0)?;
        let (d, n) = c.axis(1, x)?;
        if c.outs.len() as i64 != n {
            return Err(Error::input(format!("{} of {n} slices", c.outs.len())));
        }
        (0..n)
            .map(|k| picked(c, k as usize, &without(x, &[d]), |at| at.insert(d, k)))
            .collect()
    }),
    ("diagonal", |c| {
        let x = c.tensor(0)?;
        let offset = c.int(1, 0)?;
        let (a, b) = (c.dim(2, x.rank())?, wrap(c.int(3, 1)?, x.rank())?);
        if a == b {
            return Err(Error::input("the diagonal of one dimension"));
        }
        // A positive offset begins to the right of the corner, a negative one below it.
        let (down, right) = (offset.saturating_neg().max(0), offset.max(0));
        let len = (x.sizes[a] - down).min(x.sizes[b] - right).max(0);
        let sizes = [without(x, &[a, b]), vec![len]].concat();
        gathered(c, &sizes, |at| {
            // The last coordinate walks along the diagonal.
            let i = at.pop().unwrap_or_default();
            at.insert(a.min(b), 0);
            at.insert(a.max(b), 0);
            (at[a], at[b]) = (i + down, i + right);
        })
    }),
    ("flip", |c| {
        let x = c.tensor(0)?;
        let dims = c.dims(1, x.rank())?;
        gathered(c, &x.sizes, |at| {
            dims.iter().for_each(|d| at[*d] = x.sizes[*d] - 1 - at[*d]);
        })
    }),
    ("roll", |c| {
        let x = c.tensor(0)?;
        let (shifts, dims) = (c.ints(1)?, c.ints(2)?);
        let rolled =
            // The element at `i` comes from `i - by`, cyclically. 128 bits, since shifts may be
            // any integers.
            |i: i64, by: i64, n: i64| (i as i128 - by as i128).rem_euclid(n as i128) as i64;
        // Without dimensions the flattened tensor is rolled.
        if let (&[by], []) = (shifts.as_slice(), dims.as_slice()) {
            let n = x.numel() as i64;
            let out = c.build(0, &x.sizes, |at| {
                let p = position(&x.sizes, at)? as i64;
                x.get(rolled(p, by, n) as usize)
            });
            return Ok(vec![out?]);
        }
        if shifts.len() != dims.len() {
            return Err(Error::input("as many shifts as dimensions are needed"));
        }
        let dims = dims.into_iter().map(|d| wrap(d, x.rank()));
        let dims: Vec<usize> = dims.collect::<Result<_>>()?;
        gathered(c, &x.sizes, |at| {
            for (by, d) in shifts.iter().zip(&dims) {
                if let Some(i) = at.get_mut(*d) {
                    *i = rolled(*i, *by, x.sizes[*d]);
                }
            }
        })
    }),
    ("repeat tile", |c| {
        let x = c.tensor(0)?;
        // What is missing in front is one.
        let ones = |n: usize, rank: usize| vec![1; rank.saturating_sub(n)];
        let times = c.ints(1)?;
        let times = [ones(times.len(), x.rank()), times].concat();
        let front = times.len() - x.rank();
        let mut sizes = [ones(x.rank(), times.len()), x.sizes.clone()].concat();
        for (n, t) in sizes.iter_mut().zip(&times) {
            *n = n.saturating_mul(*t);
        }
        gathered(c, &sizes, |at| {
            // Dimensions in front, which the argument lacks, repeat all of it.
            at.drain(..front);
            at.iter_mut().zip(&x.sizes).for_each(|(i, n)| *i %= n);
        })
    }),
    ("cat", cat),
    ("stack", |c| {
        let xs = joined(c)?;
        let first = xs
            .first()
            .ok_or_else(|| Error::input("a stack of nothing"))?;
        let mut sizes = first.sizes.clone();
        let d = c.dim(1, sizes.len() + 1)?;
        sizes.insert(d, xs.len() as i64);
        if xs.iter().any(|x| x.sizes != first.sizes) {
            return Err(Error::input("a stack of tensors of several sizes"));
        }
        let out = c.build(0, &sizes, |at| {
            let mut at = at.to_vec();
            let x = xs[at.remove(d) as usize];
            x.get(position(&x.sizes, &at)?)
        });
        Ok(vec![out?])
    }),
    ("constant_pad_nd", |c| {
        let x = c.tensor(0)?;
        let (pad, value) = (c.ints(1)?, c.opt_scalar(2)?.unwrap_or(Scalar::Int(0)));
        let (pairs, rest) = pad.as_chunks::<2>();
        if !rest.is_empty() || pairs.len() > x.rank() {
            return Err(Error::input(format!("{pad:?} around {:?}", x.sizes)));
        }
        let mut sizes = x.sizes.clone();
        // Pairs count from the last dimension. Negative padding cuts off.
        for (n, [low, high]) in sizes.iter_mut().rev().zip(pairs) {
            *n = n.saturating_add(*low).saturating_add(*high);
        }
        let out = c.build(0, &sizes, |at| {
            let mut at = at.to_vec();
            for (i, [low, _]) in at.iter_mut().rev().zip(pairs) {
                *i = i.saturating_sub(*low);
            }
            // Outside of the argument is padding.
            if at.iter().zip(&x.sizes).all(|(i, n)| (0..*n).contains(i)) {
                x.get(position(&x.sizes, &at)?)
            } else {
                Ok(value)
            }
        });
        Ok(vec![out?])
    }),
    ("tril", |c| {
        triangle(c, |row, col, k| col <= row.saturating_add(k))
    }),
    ("triu", |c| {
        triangle(c, |row, col, k| col >= row.saturating_add(k))
    }),
    ("arange arange.start arange.start_step", arange),
    ("full", |c| filled(c, 0, c.opt_scalar(1)?)),
    ("new_full", |c| filled(c, 1, c.opt_scalar(2)?)),
    ("scalar_tensor", |c| {
        let value = c.opt_scalar(0)?.unwrap_or(Scalar::Int(0));
        Ok(vec![c.build(0, &[], |_| Ok(value))?])
    }),
    ("zeros empty.memory_format", |c| filled(c, 0, None)),
    ("new_zeros new_empty", |c| filled(c, 1, None)),
    ("ones", |c| filled(c, 0, Some(Scalar::Int(1)))),
    ("new_ones", |c| filled(c, 1, Some(Scalar::Int(1)))),
];

/// Returns `value`, zero when there is none, in the sizes that argument `k` lists.
fn filled(c: &Call, k: usize, value: Option<Scalar>) -> Result<Vec<Tensor>> {
    let value = value.unwrap_or(Scalar::Int(0));
    Ok(vec![c.build(0, &c.ints(k)?, |_| Ok(value))?])
}

/// Evaluates `arange(end)`, `arange(start, end)` and `arange(start, end, step)`, told apart by
/// which arguments are numbers.
fn arange(c: &Call) -> Result<Vec<Tensor>> {
    let number = |k: usize| matches!(c.arg(k), Arg::Int(_) | Arg::Float(_));
    let (start, end, step) = match (number(1), number(2)) {
        (false, _) => (0.0, c.float(0, 0.0)?, 1.0),
        (true, false) => (c.float(0, 0.0)?, c.float(1, 0.0)?, 1.0),
        (true, true) => (c.float(0, 0.0)?, c.float(1, 0.0)?, c.float(2, 1.0)?),
    };
    // The length of a range of whole numbers is that between whole ends.
    // PyTorch computes the length of an integer range from ends that are converted to integers
    // first.
    let whole = |v: f64| match c.out(0) {
        Ok((DType::I64, _)) => v.trunc(),
        _ => v,
    };
    let len = ((whole(end) - whole(start)) / whole(step)).ceil();
    c.floats_of(&[len.max(0.0) as i64], |at| Ok(start + step * at[0] as f64))
}

/// Returns the same elements in row-major order, in the sizes that the result is declared with.
fn same_elements(c: &Call) -> Result<Vec<Tensor>> {
    let x = c.tensor(0)?;
    let (_, sizes) = c.out(0)?;
    if crate::tensor::numel(sizes)? != x.numel() {
        return Err(Error::input(format!("{:?} seen as {sizes:?}", x.sizes)));
    }
    Ok(vec![Tensor {
        sizes: sizes.to_vec(),
        ..x.clone()
    }])
}

/// Returns the sizes of `x` with `n` in dimension `d`.
fn resized(x: &Tensor, d: usize, n: i64) -> Vec<i64> {
    let mut sizes = x.sizes.clone();
    sizes[d] = n;
    sizes
}

/// Returns the sizes of the dimensions of `x` but `dims`.
fn without(x: &Tensor, dims: &[usize]) -> Vec<i64> {
    let left = (0..x.rank()).filter(|d| !dims.contains(d));
    left.map(|d| x.sizes[d]).collect()
}

/// Builds result `k` of these sizes. Its elements are the argument's at the coordinates that `from`
/// makes of theirs.
fn picked(c: &Call, k: usize, sizes: &[i64], from: impl Fn(&mut Vec<i64>)) -> Result<Tensor> {
    let x = c.tensor(0)?;
    c.build(k, sizes, |at| {
        let mut at = at.to_vec();
        from(&mut at);
        x.get(position(&x.sizes, &at)?)
    })
}

/// Builds the only result by [`picked`].
fn gathered(c: &Call, sizes: &[i64], from: impl Fn(&mut Vec<i64>)) -> Result<Vec<Tensor>> {
    Ok(vec![picked(c, 0, sizes, from)?])
}

/// Result dimension `i` is argument dimension `dims[i]`.
fn permuted(c: &Call, dims: Vec<usize>) -> Result<Vec<Tensor>> {
    let x = c.tensor(0)?;
    if dims.len() != x.rank() || !(0..x.rank()).all(|d| dims.contains(&d)) {
        return Err(Error::input(format!("{dims:?} is no order of dimensions")));
    }
    let sizes: Vec<i64> = dims.iter().map(|d| x.sizes[*d]).collect();
    gathered(c, &sizes, |at| {
        let given = at.clone();
        dims.iter().zip(given).for_each(|(d, i)| at[*d] = i);
    })
}

/// Exchanges two dimensions.
fn swapped(c: &Call, a: usize, b: usize) -> Result<Vec<Tensor>> {
    let mut dims: Vec<usize> = (0..c.tensor(0)?.rank()).collect();
    // A scalar has no dimensions to exchange.
    if !dims.is_empty() {
        dims.swap(a, b);
    }
    permuted(c, dims)
}

/// Returns an index that counts from the end when it is negative.
fn from_end(i: i64, n: i64) -> i64 {
    if i < 0 { i.saturating_add(n) } else { i }
}

/// Returns a bound of a slice in `0..=n`.
fn clipped(i: i64, n: i64) -> i64 {
    from_end(i, n).clamp(0, n)
}

/// Splits into consecutive pieces along a dimension, of the sizes that the results declare.
fn parts(c: &Call) -> Result<Vec<Tensor>> {
    let x = c.tensor(0)?;
    let (d, n) = c.axis(2, x)?;
    let mut start = 0i64;
    let mut out = Vec::new();
    for k in 0..c.outs.len() {
        let len = c.out(k)?.1.get(d).copied().unwrap_or_default();
        out.push(picked(c, k, &resized(x, d, len), |at| {
            at[d] = at[d].saturating_add(start)
        })?);
        start = start.saturating_add(len);
    }
    if start == n {
        Ok(out)
    } else {
        Err(Error::input(format!("pieces of {start} of {n}")))
    }
}

/// Returns the tensors of a list; entries that are `None` are passed over.
fn joined<'a>(c: &Call<'a>) -> Result<Vec<&'a Tensor>> {
    Ok(c.tensors(0)?.into_iter().flatten().collect())
}

/// Joins along the dimension in argument 1. Elements are converted to the result's dtype, which
/// promotion of all arguments gave.
fn cat(c: &Call) -> Result<Vec<Tensor>> {
    let mut xs = joined(c)?;
    // An empty vector joins anything.
    // A legacy rule of PyTorch: a tensor of sizes [0] is ignored whatever the rank of the others.
    xs.retain(|x| x.sizes != [0]);
    let mut sizes = xs.first().map_or(vec![0], |x| x.sizes.clone());
    let d = c.dim(1, sizes.len())?;
    let along = |x: &Tensor| x.sizes.get(d).copied();
    if xs
        .iter()
        .any(|x| along(x).is_none() || without(x, &[d]) != without(xs[0], &[d]))
    {
        return Err(Error::input("tensors that do not join"));
    }
    sizes[d] = xs
        .iter()
        .filter_map(|x| along(x))
        .fold(0, i64::saturating_add);
    let dtype = c.given(0, &sizes)?;
    let mut out = Tensor::zeros(dtype, &sizes)?;
    let mut start = 0i64;
    for x in xs {
        for (i, mut at) in points(&x.sizes).enumerate() {
            at[d] += start;
            out.set(position(&sizes, &at)?, x.get(i)?.convert(dtype))?;
        }
        start = start.saturating_add(x.sizes[d]);
    }
    Ok(vec![out])
}

/// Keeps elements for which `keep(row, column, diagonal)` is true, over batches of matrices; the
/// others become zero.
fn triangle(c: &Call, keep: impl Fn(i64, i64, i64) -> bool) -> Result<Vec<Tensor>> {
    let x = c.tensor(0)?;
    let k = c.int(1, 0)?;
    let out = c.build(0, &x.sizes, |at| {
        let &[.., row, col] = at else {
            return Err(Error::input("a triangle of no matrix"));
        };
        if keep(row, col, k) {
            x.get(position(&x.sizes, at)?)
        } else {
            Ok(Scalar::Int(0))
        }
    });
    Ok(vec![out?])
}
