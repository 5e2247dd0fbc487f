//! Matrix products, convolutions, pooling, attention.
//!
//! Contractions are written out as sums over their definitions, in `f64`, without packing,
//! blocking or algorithms such as Winograd. A convolution is gathered (each output reads its
//! window); a transposed one is scattered (each input adds to a window), which is its definition
//! as the gradient of the former.
//!
//! `Window` has the arithmetic that convolutions and pools share. Sizes of windows may be
//! anything in a hostile graph, so it computes in 128 bits and narrows the result.

use super::call::{Call, Floats};
use super::reduce::exponentials;
use super::{Eval, broadcast, broadcast_position, broadcasts, points, position};
use crate::tensor::{Tensor, numel};
use inrush_base::{Error, Result, Scalar};

pub(super) const TABLE: &[(&str, Eval)] = &[
    ("mm bmm matmul mv dot _int_mm inrush.product", |c| {
        let product = Product::new(c.floats(0)?, c.floats(1)?)?;
        c.floats_of(&product.sizes, |at| product.at(at))
    }),
    ("addmm baddbmm addmv", |c| {
        let product = Product::new(c.floats(1)?, c.floats(2)?)?;
        let (beta, alpha) = (c.float(3, 1.0)?, c.float(4, 1.0)?);
        let bias = c.floats(0)?;
        broadcasts(&bias.sizes, &product.sizes)?;
        c.floats_of(&product.sizes, |at| {
            // A zero beta ignores even NaN.
            let b = bias.broadcast_at(at)?;
            Ok(alpha * product.at(at)? + if beta == 0.0 { 0.0 } else { beta * b })
        })
    }),
    ("_scaled_mm", |c| {
        let product = Product::new(c.floats(0)?, c.floats(1)?)?;
        let (rows, columns, bias) = (c.floats(2)?, c.floats(3)?, c.opt_floats(4)?);
        c.floats_of(&product.sizes, |at| {
            let scaled = product.at(at)? * rows.broadcast_at(at)? * columns.broadcast_at(at)?;
            let bias = bias.as_ref().map(|b| b.broadcast_at(at)).transpose()?;
            Ok(scaled + bias.unwrap_or(0.0))
        })
    }),
    ("_weight_int8pack_mm", |c| {
        let product = Product::new(c.floats(0)?, transposed(&c.floats(1)?)?)?;
        let scales = c.floats(2)?;
        c.floats_of(&product.sizes, |at| {
            Ok(product.at(at)? * scales.broadcast_at(at)?)
        })
    }),
    ("linear", |c| {
        let product = Product::new(c.floats(0)?, transposed(&c.floats(1)?)?)?;
        let bias = c.opt_floats(2)?;
        if let Some(b) = &bias {
            broadcasts(&b.sizes, &product.sizes)?;
        }
        c.floats_of(&product.sizes, |at| match &bias {
            Some(b) => Ok(product.at(at)? + b.broadcast_at(at)?),
            None => product.at(at),
        })
    }),
    ("convolution", |c| {
        convolution(c, c.bool(6, false)?, c.int(8, 1)?)
    }),
    ("conv1d conv2d conv3d", |c| {
        convolution(c, false, c.int(6, 1)?)
    }),
    ("max_pool1d", |c| max_pool(c, 1, false)),
    ("max_pool2d", |c| max_pool(c, 2, false)),
    ("max_pool3d", |c| max_pool(c, 3, false)),
    ("max_pool2d_with_indices", |c| max_pool(c, 2, true)),
    ("max_pool3d_with_indices", |c| max_pool(c, 3, true)),
    ("avg_pool1d", |c| avg_pool(c, 1)),
    ("avg_pool2d", |c| avg_pool(c, 2)),
    ("avg_pool3d", |c| avg_pool(c, 3)),
    ("adaptive_avg_pool1d", |c| adaptive_avg_pool(c, 1)),
    ("adaptive_avg_pool2d _adaptive_avg_pool2d", |c| {
        adaptive_avg_pool(c, 2)
    }),
    ("adaptive_avg_pool3d", |c| adaptive_avg_pool(c, 3)),
    ("scaled_dot_product_attention", attention),
];

/// Exchanges the last two dimensions.
fn transposed(x: &Floats) -> Result<Floats> {
    let n = x.sizes.len();
    if n < 2 {
        return Ok(x.clone());
    }
    let mut sizes = x.sizes.clone();
    sizes.swap(n - 2, n - 1);
    Floats::build(&sizes, |at| {
        let mut at = at.to_vec();
        at.swap(n - 2, n - 1);
        x.at(&at)
    })
}

/// Matrix product with ATen's rules for vectors and broadcast batches.
struct Product {
    /// Batches of matrices.
    a: Floats,
    b: Floats,
    /// True if `a` was a vector, which is a row then. `column` likewise for `b`.
    /// The dimension that was added does not appear in the result.
    row: bool,
    column: bool,
    /// Sizes of the result.
    sizes: Vec<i64>,
}

impl Product {
    fn new(mut a: Floats, mut b: Floats) -> Result<Product> {
        let (row, column) = (a.sizes.len() == 1, b.sizes.len() == 1);
        if row {
            a.sizes.insert(0, 1);
        }
        if column {
            b.sizes.push(1);
        }
        let sizes = match (a.sizes.as_slice(), b.sizes.as_slice()) {
            // Both are matrices now, with any number of batch dimensions in front.
            ([batches @ .., m, k], [more @ .., l, n]) if k == l => {
                let mut sizes = broadcast(batches, more)?;
                sizes.extend((!row).then_some(*m));
                sizes.extend((!column).then_some(*n));
                sizes
            }
            (a, b) => return Err(Error::input(format!("product of {a:?} and {b:?}"))),
        };
        Ok(Product {
            a,
            b,
            row,
            column,
            sizes,
        })
    }

    /// Returns the element at `at` of the result.
    fn at(&self, at: &[i64]) -> Result<f64> {
        let mut at = at.to_vec();
        if self.row {
            // Coordinates of the added dimensions are restored: the row's before the column, if
            // the result has one.
            at.insert(at.len() - !self.column as usize, 0);
        }
        if self.column {
            at.push(0);
        }
        let (batch, at) = at.split_at(at.len() - 2);
        let (i, j) = (at[0] as usize, at[1] as usize);
        // Where the matrix begins, and its number of columns.
        let matrix = |x: &Floats| {
            let (batches, last) = x.sizes.split_at(x.sizes.len() - 2);
            let start = broadcast_position(batches, batch)? * numel(last)?;
            Ok::<_, Error>((start, last[1] as usize))
        };
        let ((a, k), (b, n)) = (matrix(&self.a)?, matrix(&self.b)?);
        let row = &self.a.data[a + i * k..][..k];
        let column = self.b.data[b..].iter().skip(j).step_by(n);
        Ok(row.iter().zip(column).map(|(x, y)| x * y).sum())
    }
}

/// A sliding window: kernel, stride, padding, dilation for each spatial dimension.
struct Window {
    kernel: Vec<i64>,
    stride: Vec<i64>,
    padding: Vec<i64>,
    dilation: Vec<i64>,
}

impl Window {
    /// Builds a window whose stride, padding and dilation are the arguments `s`, `p` and `d`.
    fn new(c: &Call, kernel: Vec<i64>, [s, p, d]: [usize; 3]) -> Result<Window> {
        let n = kernel.len();
        let w = Window {
            kernel,
            stride: c.per_dim(s, n, 1)?,
            padding: c.per_dim(p, n, 0)?,
            dilation: c.per_dim(d, n, 1)?,
        };
        if w.stride.iter().chain(&w.dilation).any(|s| *s < 1) {
            return Err(Error::input("stride and dilation must be positive"));
        }
        Ok(w)
    }

    /// Returns the input coordinate that kernel position `k` reads for output `o`. It saturates,
    /// since no input has a coordinate beyond 64 bits.
    fn at(&self, d: usize, o: i64, k: i64) -> i64 {
        let moved = o as i128 * self.stride[d] as i128 - self.padding[d] as i128;
        let at = moved + k as i128 * self.dilation[d] as i128;
        at.clamp(i64::MIN.into(), i64::MAX.into()) as i64
    }

    /// Returns the input coordinates that kernel position `k` reads for output `o`, or `None` in
    /// the padding.
    fn seen(&self, o: &[i64], k: &[i64], sizes: &[i64]) -> Option<Vec<i64>> {
        let at = |d: usize| Some(self.at(d, o[d], k[d])).filter(|i| (0..sizes[d]).contains(i));
        (0..sizes.len()).map(at).collect()
    }

    /// Returns the extent of the dilated kernel.
    fn span(&self, d: usize) -> i128 {
        (self.kernel[d] as i128 - 1) * self.dilation[d] as i128 + 1
    }

    /// Returns how often the window fits into a padded input of these sizes, counting a last
    /// partial one if `ceil`.
    fn places(&self, sizes: &[i64], ceil: bool) -> Result<Vec<i64>> {
        let places = |(d, n): (usize, &i64)| {
            let [n, stride, padding] = [*n, self.stride[d], self.padding[d]].map(i128::from);
            let room = n + 2 * padding - self.span(d);
            let last = if ceil {
                // PyTorch's rule for `ceil_mode`: a window that would begin in the padding after
                // the input is left out.
                (room + stride - 1).min(n + padding - 1)
            } else {
                room
            };
            if room < 0 {
                Err(Error::input("a window larger than its padded input"))
            } else {
                narrowed(last.div_euclid(stride) + 1)
            }
        };
        sizes.iter().enumerate().map(places).collect()
    }

    /// Returns the input sizes that have this many window positions, plus `extra`: with strides,
    /// several sizes have the same number.
    fn spread(&self, sizes: &[i64], extra: &[i64]) -> Result<Vec<i64>> {
        let spread = |(d, n): (usize, &i64)| {
            let steps = (*n as i128 - 1) * self.stride[d] as i128;
            narrowed(steps - 2 * self.padding[d] as i128 + self.span(d) + extra[d] as i128)
        };
        sizes.iter().enumerate().map(spread).collect()
    }
}

/// Fails beyond 64 bits.
fn narrowed(size: i128) -> Result<i64> {
    i64::try_from(size).map_err(|_| Error::input(format!("a size of {size}")))
}

/// Weights have sizes `[outputs, inputs / groups, kernel..]`; of a transposed convolution
/// `[inputs, outputs / groups, kernel..]`. Arguments 3 to 5 are stride, padding and dilation, 7
/// is the output padding.
fn convolution(c: &Call, transposed: bool, groups: i64) -> Result<Vec<Tensor>> {
    let (mut x, weight, bias) = (c.floats(0)?, c.floats(1)?, c.opt_floats(2)?);
    // A single image is given a dimension of images.
    let single = (x.sizes.len() + 1 == weight.sizes.len()) as usize;
    if single == 1 {
        x.sizes.insert(0, 1);
    }
    let misfit = || {
        let (x, w) = (&x.sizes, &weight.sizes);
        Error::input(format!("{groups} groups of channels of {x:?} and {w:?}"))
    };
    let (&[images, channels, ref image @ ..], &[rows, columns, ref kernel @ ..]) =
        (x.sizes.as_slice(), weight.sizes.as_slice())
    else {
        return Err(misfit());
    };
    // Channels in a group of the input, channels of the result.
    let (inputs, outputs) = if !transposed {
        (Some(columns), Some(rows))
    } else {
        (rows.checked_div(groups), columns.checked_mul(groups))
    };
    let fits = groups > 0 && rows % groups == 0 && image.len() == kernel.len();
    let (Some(inputs), Some(outputs), true) = (inputs, outputs, fits) else {
        return Err(misfit());
    };
    if inputs.checked_mul(groups) != Some(channels)
        || bias.as_ref().is_some_and(|b| b.sizes != [outputs])
    {
        return Err(misfit());
    }
    let w = Window::new(c, kernel.to_vec(), [3, 4, 5])?;
    let places = if !transposed {
        w.places(image, false)?
    } else {
        w.spread(image, &c.per_dim(7, image.len(), 0)?)?
    };
    let sizes = [&[images, outputs], places.as_slice()].concat();
    let start = |channel: i64| bias.as_ref().map_or(Ok(0.0), |b| b.at(&[channel]));
    if transposed {
        // Each input element adds its window to the output.
        let dtype = c.given(0, &sizes[single..])?;
        let mut out = Floats::build(&sizes, |at| start(at[1]))?;
        for at in points(&x.sizes) {
            for k in points(&weight.sizes[1..]) {
                if let Some(to) = w.seen(&at[2..], &k[1..], &places) {
                    // The group of the input channel, times the outputs of a group, plus the
                    // output within the group.
                    let channel = at[1] / inputs * columns + k[0];
                    let to = position(&sizes, &[&[at[0], channel], to.as_slice()].concat())?;
                    out.data[to] += x.at(&at)? * weight.at(&[&at[1..2], &k].concat())?;
                }
            }
        }
        out.sizes.drain(..single);
        return Ok(vec![out.tensor(dtype)?]);
    }
    c.floats_of(&sizes[single..], |at| {
        let at = [&[0][..single], at].concat();
        let (from, channel) = (at[0], at[1]);
        let mut sum = start(channel)?;
        for k in points(&weight.sizes[1..]) {
            if let Some(seen) = w.seen(&at[2..], &k[1..], image) {
                // The group of the output channel, times the inputs of a group, plus the input
                // within the group.
                let input = channel / (rows / groups) * columns + k[0];
                let v = x.at(&[&[from, input], seen.as_slice()].concat())?;
                sum += v * weight.at(&[&[channel], k.as_slice()].concat())?;
            }
        }
        Ok(sum)
    })
}

/// Returns the dimensions in front of the `n` pooled ones, none of which is empty.
fn lead(x: &Floats, n: usize) -> Result<usize> {
    let lead = x.sizes.len().checked_sub(n);
    lead.filter(|l| !x.sizes[*l..].contains(&0))
        .ok_or_else(|| Error::input(format!("pooling of {n} dimensions of {:?}", x.sizes)))
}

/// Returns the window of a pool, and the sizes of its result. Arguments 1 and 2 are kernel and
/// stride, which is the kernel unless given; `args` are padding and dilation, `ceil` says whether a
/// last partial window counts.
fn pool(
    c: &Call,
    x: &Floats,
    n: usize,
    args: [usize; 2],
    ceil: usize,
) -> Result<(Window, Vec<i64>)> {
    let kernel = c.per_dim(1, n, 1)?;
    let mut w = Window::new(c, kernel, [2, args[0], args[1]])?;
    if c.ints(2)?.is_empty() {
        w.stride = w.kernel.clone();
    }
    if w.kernel.iter().any(|k| *k < 1) {
        return Err(Error::input("a window must have a size"));
    }
    let (front, pooled) = x.sizes.split_at(lead(x, n)?);
    let sizes = [front, &w.places(pooled, c.bool(ceil, false)?)?].concat();
    // Every element of every window is visited.
    numel(&[sizes.as_slice(), &w.kernel].concat())?;
    Ok((w, sizes))
}

/// Padding takes no part, unlike zeros around the input would. A position is that in the
/// flattened pooled dimensions.
fn max_pool(c: &Call, n: usize, with_index: bool) -> Result<Vec<Tensor>> {
    let (x, t) = (c.floats(0)?, c.tensor(0)?);
    let (w, sizes) = pool(c, &x, n, [3, 4], 5)?;
    let lead = lead(&x, n)?;
    let pooled = &x.sizes[lead..];
    let best = |at: &[i64]| -> Result<(f64, i64)> {
        let mut best: Option<(f64, i64)> = None;
        for k in points(&w.kernel) {
            let Some(seen) = w.seen(&at[lead..], &k, pooled) else {
                continue;
            };
            let v = x.at(&[&at[..lead], &seen].concat())?;
            // NaN wins, and the position of the last NaN is kept.
            if best.is_none_or(|(b, _)| v > b || v.is_nan()) {
                best = Some((v, position(pooled, &seen)? as i64));
            }
        }
        // A window that sees padding only.
        Ok(best.unwrap_or((f64::NEG_INFINITY, 0)))
    };
    let value = |at: &[i64]| {
        let v = best(at)?.0;
        Ok(if t.dtype.is_float() {
            Scalar::Float(v)
        } else {
            Scalar::Int(v as i64)
        })
    };
    let mut out = vec![c.build(0, &sizes, value)?];
    if with_index {
        out.push(c.build(1, &sizes, |at| Ok(Scalar::Int(best(at)?.1)))?);
    }
    Ok(out)
}

/// The divisor is the argument's, the number of elements inside, or the window clipped to the
/// padded input (`count_include_pad`).
fn avg_pool(c: &Call, n: usize) -> Result<Vec<Tensor>> {
    let x = c.floats(0)?;
    let (w, sizes) = pool(c, &x, n, [3, usize::MAX], 4)?;
    let include_pad = c.bool(5, true)?;
    let divisor = c.opt_scalar(6)?.map(|s| s.as_f64());
    let lead = lead(&x, n)?;
    let pooled = &x.sizes[lead..];
    c.floats_of(&sizes, |at| {
        let (mut sum, mut inside, mut window) = (0.0, 0.0, 1.0);
        for d in 0..n {
            // The window may reach into the padding. A last partial one does not count elements
            // after the padding.
            let start = w.at(d, at[lead + d], 0);
            let end = pooled[d].saturating_add(w.padding[d]);
            window *= end.saturating_sub(start).min(w.kernel[d]) as f64;
        }
        for k in points(&w.kernel) {
            if let Some(seen) = w.seen(&at[lead..], &k, pooled) {
                sum += x.at(&[&at[..lead], &seen].concat())?;
                inside += 1.0;
            }
        }
        Ok(sum / divisor.unwrap_or(if include_pad { window } else { inside }))
    })
}

/// Windows may overlap and differ in size by one, so that they cover the input for any sizes of
/// the result.
fn adaptive_avg_pool(c: &Call, n: usize) -> Result<Vec<Tensor>> {
    let x = c.floats(0)?;
    let lead = lead(&x, n)?;
    let (front, pooled) = x.sizes.split_at(lead);
    let outputs = c.per_dim(1, n, 1)?;
    c.floats_of(&[front, &outputs].concat(), |at| {
        // Inputs from `i * s / o` to `(i + 1) * s / o` rounded up; no product is beyond that of two tensors' sizes.
        let start = |d: usize| at[lead + d] * pooled[d] / outputs[d];
        let end = |d: usize| ((at[lead + d] + 1) * pooled[d] + outputs[d] - 1) / outputs[d];
        let extents: Vec<i64> = (0..n).map(|d| end(d) - start(d)).collect();
        let (mut sum, mut count) = (0.0, 0.0);
        for k in points(&extents) {
            let mut from = at[..lead].to_vec();
            from.extend((0..n).map(|d| start(d) + k[d]));
            sum += x.at(&from)?;
            count += 1.0;
        }
        Ok(sum / count)
    })
}

/// Returns `softmax(q k^T * scale + mask) v`; a row that is masked everywhere gives zero.
/// Arguments: 3 mask (boolean: true takes part; float: added), 5 causal, 6 scale (`1 /
/// sqrt(width)` if absent), 7 grouped queries. The causal mask is aligned at the upper left
/// corner. Dropout (argument 4) is ignored.
fn attention(c: &Call) -> Result<Vec<Tensor>> {
    let (q, k, v) = (c.floats(0)?, c.floats(1)?, c.floats(2)?);
    if [&q, &k, &v].iter().any(|x| x.sizes.len() < 2) {
        return Err(Error::input("attention of vectors"));
    }
    let mask = c.opt_tensor(3)?;
    let causal = c.bool(5, false)?;
    let width = q.sizes.last().map_or(1.0, |n| *n as f64);
    let scale = c.float(6, 1.0 / width.sqrt())?;
    let (k, v) = if c.bool(7, false)? {
        (repeated(&k, &q)?, repeated(&v, &q)?)
    } else {
        (k, v)
    };
    let product = Product::new(q, transposed(&k)?)?;
    if let Some(m) = mask {
        broadcasts(&m.sizes, &product.sizes)?;
    }
    let rank = product.sizes.len();
    let scores = Floats::build(&product.sizes, |at| {
        let mut s = product.at(at)? * scale;
        if let Some(m) = mask {
            match m.get(broadcast_position(&m.sizes, at)?)? {
                Scalar::Bool(true) => {}
                Scalar::Bool(false) => s = f64::NEG_INFINITY,
                x => s += x.as_f64(),
            }
        }
        Ok(if causal && at[rank - 1] > at[rank - 2] {
            f64::NEG_INFINITY
        } else {
            s
        })
    })?;
    let weights = super::reduce::each_row(&scores, rank - 1, |row| {
        // The formula would give NaN.
        if row.iter().all(|x| *x == f64::NEG_INFINITY) {
            return vec![0.0; row.len()];
        }
        let (exps, sum) = exponentials(row);
        exps.into_iter().map(|e| e / sum).collect()
    })?;
    let product = Product::new(weights, v)?;
    c.floats_of(&product.sizes, |at| product.at(at))
}

/// Heads repeated for grouped queries.
/// Head `h` of the queries uses head `h / times` of keys and values.
fn repeated(x: &Floats, q: &Floats) -> Result<Floats> {
    let heads = |x: &Floats| x.sizes.iter().rev().nth(2).copied();
    let times = match (heads(x), heads(q)) {
        (Some(n), Some(m)) if n > 0 && m % n == 0 => m / n,
        (n, m) => return Err(Error::input(format!("{m:?} heads of queries for {n:?}"))),
    };
    let d = x.sizes.len() - 3;
    let mut sizes = x.sizes.clone();
    sizes[d] *= times;
    Floats::build(&sizes, |at| {
        let mut at = at.to_vec();
        at[d] /= times;
        x.at(&at)
    })
}
