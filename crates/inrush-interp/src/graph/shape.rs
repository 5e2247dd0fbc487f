//! Views, copies in another arrangement, and tensors from nothing.

use super::call::{Call, wrap};
use super::{Eval, points, position};
use crate::tensor::Tensor;
use inrush_base::{Error, Result, Scalar};

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
    ("t numpy_T mT adjoint", |c| match c.tensor(0)?.rank() {
        0 | 1 => same_elements(c),
        n => swapped(c, n - 2, n - 1),
    }),
    ("expand broadcast_to expand_as", |c| {
        let x = c.tensor(0)?;
        gathered(c, |at| Ok(at_broadcast(&x.sizes, at)))
    }),
    ("slice.Tensor", |c| {
        let x = c.tensor(0)?;
        let d = c.dim(1, x.rank())?;
        let n = x.sizes[d];
        let start = clipped(c.int(2, 0)?, n);
        let step = c.int(4, 1)?;
        gathered(c, move |at| {
            let mut at = at.to_vec();
            at[d] = start + at[d] * step;
            Ok(at)
        })
    }),
    ("narrow", |c| {
        let x = c.tensor(0)?;
        let d = c.dim(1, x.rank())?;
        let start = c.int(2, 0)?;
        let start = if start < 0 { start + x.sizes[d] } else { start };
        gathered(c, move |at| {
            let mut at = at.to_vec();
            at[d] += start;
            Ok(at)
        })
    }),
    ("select.int", |c| {
        let x = c.tensor(0)?;
        let d = c.dim(1, x.rank())?;
        let i = c.int(2, 0)?;
        let i = if i < 0 { i + x.sizes[d] } else { i };
        gathered(c, move |at| {
            let mut at = at.to_vec();
            at.insert(d, i);
            Ok(at)
        })
    }),
    (
        "split.Tensor split_with_sizes split.sizes chunk tensor_split.sections",
        parts,
    ),
    ("unbind.int", |c| {
        let x = c.tensor(0)?;
        let d = c.dim(1, x.rank())?;
        (0..c.outs.len())
            .map(|k| {
                c.build(k, |at| {
                    let mut at = at.to_vec();
                    at.insert(d, k as i64);
                    x.get(position(&x.sizes, &at))
                })
            })
            .collect()
    }),
    ("diagonal", |c| {
        let x = c.tensor(0)?;
        let offset = c.int(1, 0)?;
        let (a, b) = (c.dim(2, x.rank())?, wrap(c.int(3, 1)?, x.rank())?);
        gathered(c, move |at| {
            // The last coordinate walks along the diagonal.
            let (lead, i) = at.split_at(at.len() - 1);
            let mut rest = lead.iter();
            let place = |d: usize, rest: &mut std::slice::Iter<i64>| match d {
                _ if d == a => i[0] + (-offset).max(0),
                _ if d == b => i[0] + offset.max(0),
                _ => *rest.next().unwrap_or(&0),
            };
            Ok((0..at.len() + 1).map(|d| place(d, &mut rest)).collect())
        })
    }),
    ("flip", |c| {
        let x = c.tensor(0)?;
        let dims = c.dims(1, x.rank())?;
        gathered(c, move |at| {
            let mut at = at.to_vec();
            dims.iter().for_each(|d| at[*d] = x.sizes[*d] - 1 - at[*d]);
            Ok(at)
        })
    }),
    ("roll", |c| {
        let x = c.tensor(0)?;
        let (shifts, dims) = (c.ints(1)?, c.ints(2)?);
        if dims.is_empty() {
            let n = x.numel() as i64;
            let out = c.build(0, |at| {
                let p = position(&x.sizes, at) as i64;
                x.get((p - shifts[0]).rem_euclid(n) as usize)
            });
            return Ok(vec![out?]);
        }
        gathered(c, move |at| {
            let mut at = at.to_vec();
            for (s, d) in shifts.iter().zip(&dims) {
                let d = wrap(*d, at.len())?;
                at[d] = (at[d] - s).rem_euclid(x.sizes[d]);
            }
            Ok(at)
        })
    }),
    ("repeat tile", |c| {
        let x = c.tensor(0)?;
        gathered(c, move |at| {
            let tail = &at[at.len() - x.rank()..];
            Ok(tail.iter().zip(&x.sizes).map(|(i, n)| i % n).collect())
        })
    }),
    ("cat", cat),
    ("stack", |c| {
        let xs = given(c)?;
        let (_, sizes) = c.out(0)?;
        let d = c.dim(1, sizes.len())?;
        let out = c.build(0, |at| {
            let mut at = at.to_vec();
            let x = xs[at.remove(d) as usize];
            x.get(position(&x.sizes, &at))
        });
        Ok(vec![out?])
    }),
    ("constant_pad_nd", |c| {
        let x = c.tensor(0)?;
        let (pad, value) = (c.ints(1)?, c.opt_scalar(2)?.unwrap_or(Scalar::Int(0)));
        let out = c.build(0, |at| {
            let mut at = at.to_vec();
            for (k, low) in pad.iter().step_by(2).enumerate() {
                let d = at.len() - 1 - k;
                at[d] -= low;
                if !(0..x.sizes[d]).contains(&at[d]) {
                    return Ok(value);
                }
            }
            x.get(position(&x.sizes, &at))
        });
        Ok(vec![out?])
    }),
    ("tril", |c| triangle(c, |row, col, k| col <= row + k)),
    ("triu", |c| triangle(c, |row, col, k| col >= row + k)),
    ("arange arange.start arange.start_step", |c| {
        // `arange(end)`, `arange(start, end)`, `arange(start, end, step)`: told apart by what is a number.
        let number = |k: usize| {
            matches!(
                c.arg(k),
                inrush_graph::Arg::Int(_) | inrush_graph::Arg::Float(_)
            )
        };
        let (start, step) = match (number(1), number(2)) {
            (false, _) => (0.0, 1.0),
            (true, false) => (c.float(0, 0.0)?, 1.0),
            (true, true) => (c.float(0, 0.0)?, c.float(2, 1.0)?),
        };
        Ok(vec![c.build(0, |at| {
            Ok(Scalar::Float(start + step * at[0] as f64))
        })?])
    }),
    ("full new_full", |c| {
        let at = if c.opt_tensor(0).is_ok_and(|t| t.is_some()) {
            2
        } else {
            1
        };
        let value = c.opt_scalar(at)?.unwrap_or(Scalar::Int(0));
        Ok(vec![c.build(0, |_| Ok(value))?])
    }),
    ("scalar_tensor", |c| {
        let value = c.opt_scalar(0)?.unwrap_or(Scalar::Int(0));
        Ok(vec![c.build(0, |_| Ok(value))?])
    }),
    ("zeros new_zeros empty.memory_format new_empty", |c| {
        Ok(vec![c.build(0, |_| Ok(Scalar::Int(0)))?])
    }),
    ("ones new_ones", |c| {
        Ok(vec![c.build(0, |_| Ok(Scalar::Int(1)))?])
    }),
];

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

/// The result whose element at `at` is the argument's at `from(at)`.
fn gathered(c: &Call, from: impl Fn(&[i64]) -> Result<Vec<i64>>) -> Result<Vec<Tensor>> {
    let x = c.tensor(0)?;
    let out = c.build(0, |at| {
        let at = from(at)?;
        let inside =
            at.len() == x.rank() && at.iter().zip(&x.sizes).all(|(i, n)| (0..*n).contains(i));
        if !inside {
            return Err(Error::input(format!("reads {at:?} of {:?}", x.sizes)));
        }
        x.get(position(&x.sizes, &at))
    });
    Ok(vec![out?])
}

fn permuted(c: &Call, dims: Vec<usize>) -> Result<Vec<Tensor>> {
    gathered(c, |at| {
        let mut from = vec![0; at.len()];
        for (k, d) in dims.iter().enumerate() {
            from[*d] = at[k];
        }
        Ok(from)
    })
}

fn swapped(c: &Call, a: usize, b: usize) -> Result<Vec<Tensor>> {
    let mut dims: Vec<usize> = (0..c.tensor(0)?.rank()).collect();
    dims.swap(a, b);
    permuted(c, dims)
}

fn at_broadcast(sizes: &[i64], at: &[i64]) -> Vec<i64> {
    let at = &at[at.len() - sizes.len()..];
    (sizes.iter().zip(at))
        .map(|(n, i)| if *n == 1 { 0 } else { *i })
        .collect()
}

fn clipped(i: i64, n: i64) -> i64 {
    (if i < 0 { i.saturating_add(n) } else { i }).clamp(0, n)
}

/// Consecutive pieces along a dimension, as long as the results say.
fn parts(c: &Call) -> Result<Vec<Tensor>> {
    let x = c.tensor(0)?;
    let d = c.dim(2, x.rank())?;
    let mut start = 0;
    let mut out = Vec::new();
    for k in 0..c.outs.len() {
        out.push(c.build(k, |at| {
            let mut at = at.to_vec();
            at[d] += start;
            x.get(position(&x.sizes, &at))
        })?);
        start += c.out(k)?.1[d];
    }
    Ok(out)
}

fn given<'a>(c: &Call<'a>) -> Result<Vec<&'a Tensor>> {
    Ok(c.tensors(0)?.into_iter().flatten().collect())
}

fn cat(c: &Call) -> Result<Vec<Tensor>> {
    let xs = given(c)?;
    let (dtype, sizes) = c.out(0)?;
    let d = c.dim(1, sizes.len())?;
    let mut out = Tensor::zeros(dtype, sizes)?;
    let mut start = 0;
    for x in xs {
        // An empty vector joins anything.
        if x.sizes == [0] && sizes.len() != 1 {
            continue;
        }
        for (i, mut at) in points(&x.sizes).enumerate() {
            at[d] += start;
            out.set(position(sizes, &at), x.get(i)?.convert(dtype))?;
        }
        start += x.sizes[d];
    }
    Ok(vec![out])
}

fn triangle(c: &Call, keep: impl Fn(i64, i64, i64) -> bool) -> Result<Vec<Tensor>> {
    let x = c.tensor(0)?;
    let k = c.int(1, 0)?;
    let out = c.build(0, |at| {
        let n = at.len();
        match keep(at[n - 2], at[n - 1], k) {
            true => x.get(position(&x.sizes, at)),
            false => Ok(Scalar::Int(0)),
        }
    });
    Ok(vec![out?])
}
