//! Matrix products, convolutions, pooling, attention.

use super::call::{Call, Floats};
use super::reduce::exponentials;
use super::{Eval, points};
use crate::tensor::Tensor;
use inrush_base::{Error, Result, Scalar};

pub(super) const TABLE: &[(&str, Eval)] = &[
    ("mm bmm matmul mv dot", |c| {
        done(c, matmul(&c.floats(0)?, &c.floats(1)?)?)
    }),
    ("addmm baddbmm addmv", |c| {
        let product = matmul(&c.floats(1)?, &c.floats(2)?)?;
        let (beta, alpha) = (c.float(3, 1.0)?, c.float(4, 1.0)?);
        let bias = c.floats(0)?;
        let scaled = zip(&product, &bias, |p, b| {
            // A zero beta ignores even NaN.
            alpha * p + if beta == 0.0 { 0.0 } else { beta * b }
        })?;
        done(c, scaled)
    }),
    ("linear", |c| {
        let weight = c.floats(1)?;
        let product = matmul(&c.floats(0)?, &transposed(&weight)?)?;
        match c.opt_floats(2)? {
            Some(b) => done(c, zip(&product, &b, |p, b| p + b)?),
            None => done(c, product),
        }
    }),
    ("convolution", |c| {
        let n = c.tensor(1)?.rank().saturating_sub(2);
        let window = Window::new(c, n, [3, 4, 5])?;
        let groups = c.int(8, 1)?;
        match c.bool(6, false)? {
            false => convolution(c, &window, groups),
            true => transposed_convolution(c, &window, groups),
        }
    }),
    ("conv1d conv2d conv3d", |c| {
        let n = c.tensor(1)?.rank().saturating_sub(2);
        let window = Window::new(c, n, [3, 4, 5])?;
        convolution(c, &window, c.int(6, 1)?)
    }),
    ("max_pool2d max_pool1d max_pool3d", |c| max_pool(c, false)),
    ("max_pool2d_with_indices max_pool3d_with_indices", |c| {
        max_pool(c, true)
    }),
    ("avg_pool1d avg_pool2d avg_pool3d", avg_pool),
    (
        "adaptive_avg_pool1d adaptive_avg_pool2d _adaptive_avg_pool2d adaptive_avg_pool3d",
        adaptive_avg_pool,
    ),
    ("scaled_dot_product_attention", attention),
];

fn done(c: &Call, x: Floats) -> Result<Vec<Tensor>> {
    Ok(vec![x.tensor(c.out(0)?.0)?])
}

/// Element by element; `b` broadcasts to `a`.
fn zip(a: &Floats, b: &Floats, f: impl Fn(f64, f64) -> f64) -> Result<Floats> {
    let mut out = a.clone();
    for (k, at) in points(&a.sizes).enumerate() {
        out.data[k] = f(a.data[k], b.data[super::broadcast_position(&b.sizes, &at)]);
    }
    Ok(out)
}

/// The last two dimensions exchanged.
fn transposed(x: &Floats) -> Result<Floats> {
    let n = x.sizes.len();
    if n < 2 {
        return Ok(x.clone());
    }
    let mut sizes = x.sizes.clone();
    sizes.swap(n - 2, n - 1);
    let mut out = Floats::zeros(&sizes)?;
    for (k, mut at) in points(&sizes).enumerate() {
        at.swap(n - 2, n - 1);
        out.data[k] = x.at(&at);
    }
    Ok(out)
}

/// Matrix product with ATen's rules for vectors and broadcast batches.
fn matmul(a: &Floats, b: &Floats) -> Result<Floats> {
    let (va, vb) = (a.sizes.len() == 1, b.sizes.len() == 1);
    let (mut a, mut b) = (a.clone(), b.clone());
    if va {
        a.sizes.insert(0, 1);
    }
    if vb {
        b.sizes.push(1);
    }
    let (na, nb) = (a.sizes.len(), b.sizes.len());
    if na < 2 || nb < 2 || a.sizes[na - 1] != b.sizes[nb - 2] {
        return Err(Error::input(format!(
            "product of {:?} and {:?}",
            a.sizes, b.sizes
        )));
    }
    let (m, k, n) = (a.sizes[na - 2], a.sizes[na - 1], b.sizes[nb - 1]);
    let rank = na.max(nb) - 2;
    let batch: Vec<i64> = (0..rank)
        .map(|d| {
            let of = |s: &[i64]| (s.len() + d).checked_sub(rank + 2).map_or(1, |i| s[i]);
            let (x, y) = (of(&a.sizes), of(&b.sizes));
            if x == 1 { y } else { x }
        })
        .collect();
    let mut sizes = batch.clone();
    sizes.extend([m, n]);
    let mut out = Floats::zeros(&sizes)?;
    let mut at_out = 0;
    for at in points(&batch) {
        let base = |x: &Floats| {
            let nx = x.sizes.len();
            super::broadcast_position(&x.sizes[..nx - 2], &at)
                * (x.sizes[nx - 2] * x.sizes[nx - 1]) as usize
        };
        let (pa, pb) = (base(&a), base(&b));
        for i in 0..m as usize {
            for j in 0..n as usize {
                let row = &a.data[pa + i * k as usize..];
                let sum = (0..k as usize).map(|l| row[l] * b.data[pb + l * n as usize + j]);
                out.data[at_out] = sum.sum();
                at_out += 1;
            }
        }
    }
    if vb {
        out.sizes.pop();
    }
    if va {
        out.sizes.remove(out.sizes.len() - if vb { 1 } else { 2 });
    }
    Ok(out)
}

/// A sliding window: stride, padding, dilation for each spatial dimension.
struct Window {
    stride: Vec<i64>,
    padding: Vec<i64>,
    dilation: Vec<i64>,
}

impl Window {
    fn new(c: &Call, n: usize, [s, p, d]: [usize; 3]) -> Result<Window> {
        Ok(Window {
            stride: c.per_dim(s, n, 1)?,
            padding: c.per_dim(p, n, 0)?,
            dilation: c.per_dim(d, n, 1)?,
        })
    }
    /// Input coordinate that kernel position `k` sees for output `o`.
    fn at(&self, d: usize, o: i64, k: i64) -> i64 {
        o * self.stride[d] - self.padding[d] + k * self.dilation[d]
    }
}

fn convolution(c: &Call, w: &Window, groups: i64) -> Result<Vec<Tensor>> {
    let (mut x, weight, bias) = (c.floats(0)?, c.floats(1)?, c.opt_floats(2)?);
    let single = one_image(&mut x, &weight);
    let per_group = (weight.sizes[0] / groups, weight.sizes[1]);
    let out = c.build(0, |at| {
        let at = [&vec![0; single as usize], at].concat();
        let (image, channel) = (at[0], at[1]);
        let mut sum = bias.as_ref().map_or(0.0, |b| b.data[channel as usize]);
        for k in points(&weight.sizes[1..]) {
            let mut from = vec![image, channel / per_group.0 * per_group.1 + k[0]];
            from.extend((1..k.len()).map(|d| w.at(d - 1, at[d + 1], k[d])));
            let inside = (2..from.len()).all(|d| (0..x.sizes[d]).contains(&from[d]));
            if inside {
                let mut wk = vec![channel];
                wk.extend(&k);
                sum += x.at(&from) * weight.at(&wk);
            }
        }
        Ok(Scalar::Float(sum))
    });
    Ok(vec![out?])
}

/// Gives a single image a dimension of images; says whether it did.
fn one_image(x: &mut Floats, weight: &Floats) -> bool {
    let single = x.sizes.len() + 1 == weight.sizes.len();
    if single {
        x.sizes.insert(0, 1);
    }
    single
}

/// Each input element adds its window to the output.
fn transposed_convolution(c: &Call, w: &Window, groups: i64) -> Result<Vec<Tensor>> {
    let (mut x, weight, bias) = (c.floats(0)?, c.floats(1)?, c.opt_floats(2)?);
    let (dtype, declared) = c.out(0)?;
    let single = one_image(&mut x, &weight);
    let sizes = &[&vec![1; single as usize], declared].concat();
    let mut out = Floats::zeros(sizes)?;
    let (inputs, outputs) = (weight.sizes[0] / groups, weight.sizes[1]);
    for at in points(&x.sizes) {
        let group = at[1] / inputs;
        for k in points(&weight.sizes[1..]) {
            let mut to = vec![at[0], group * outputs + k[0]];
            to.extend((1..k.len()).map(|d| w.at(d - 1, at[d + 1], k[d])));
            if (2..to.len()).all(|d| (0..sizes[d]).contains(&to[d])) {
                let mut wk = vec![at[1]];
                wk.extend(&k);
                out.data[super::position(sizes, &to)] += x.at(&at) * weight.at(&wk);
            }
        }
    }
    if let Some(b) = bias {
        for (k, at) in points(sizes).enumerate() {
            out.data[k] += b.data[at[1] as usize];
        }
    }
    out.sizes = declared.to_vec();
    Ok(vec![out.tensor(dtype)?])
}

/// Number of pooled dimensions: as the operator's name says.
fn pooled(c: &Call) -> Result<usize> {
    let n = c.ints(1)?.len();
    let rank = c.tensor(0)?.rank();
    // A window of one number is for one dimension or stands for all but image and channel.
    Ok(if n == 1 {
        rank.saturating_sub(2).max(1)
    } else {
        n
    })
}

fn stride_or_kernel(c: &Call, n: usize, w: &mut Window, kernel: &[i64]) -> Result<()> {
    if c.ints(2)?.is_empty() {
        w.stride = kernel.to_vec();
    } else {
        w.stride = c.per_dim(2, n, 1)?;
    }
    Ok(())
}

fn max_pool(c: &Call, with_index: bool) -> Result<Vec<Tensor>> {
    let (x, t) = (c.floats(0)?, c.tensor(0)?);
    let n = pooled(c)?;
    let kernel = c.per_dim(1, n, 1)?;
    let mut w = Window::new(c, n, [2, 3, 4])?;
    stride_or_kernel(c, n, &mut w, &kernel)?;
    let lead = x.sizes.len() - n;
    let best = |at: &[i64]| {
        let mut best: Option<(f64, i64)> = None;
        for k in points(&kernel) {
            let mut from = at[..lead].to_vec();
            from.extend((0..n).map(|d| w.at(d, at[lead + d], k[d])));
            if !(0..n).all(|d| (0..x.sizes[lead + d]).contains(&from[lead + d])) {
                continue;
            }
            let v = x.at(&from);
            // NaN wins, and the last NaN's place is kept.
            if best.is_none_or(|(b, _)| v > b || v.is_nan()) {
                best = Some((v, super::position(&x.sizes[lead..], &from[lead..]) as i64));
            }
        }
        best.unwrap_or((f64::NEG_INFINITY, 0))
    };
    let value = |at: &[i64]| {
        let v = best(at).0;
        Ok(if t.dtype.is_float() {
            Scalar::Float(v)
        } else {
            Scalar::Int(v as i64)
        })
    };
    let mut out = vec![c.build(0, value)?];
    if with_index {
        out.push(c.build(1, |at| Ok(Scalar::Int(best(at).1)))?);
    }
    Ok(out)
}

fn avg_pool(c: &Call) -> Result<Vec<Tensor>> {
    let x = c.floats(0)?;
    let n = pooled(c)?;
    let kernel = c.per_dim(1, n, 1)?;
    let mut w = Window::new(c, n, [2, 3, usize::MAX])?;
    stride_or_kernel(c, n, &mut w, &kernel)?;
    let include_pad = c.bool(5, true)?;
    let divisor = c.opt_scalar(6)?.map(|s| s.as_f64());
    let lead = x.sizes.len() - n;
    let out = c.build(0, |at| {
        let (mut sum, mut inside, mut window) = (0.0, 0.0, 1.0);
        for d in 0..n {
            // The window may reach into the padding, but a ceiled one does not count what lies beyond it.
            let start = w.at(d, at[lead + d], 0);
            let end = (start + kernel[d]).min(x.sizes[lead + d] + w.padding[d]);
            window *= (end - start) as f64;
        }
        for k in points(&kernel) {
            let mut from = at[..lead].to_vec();
            from.extend((0..n).map(|d| w.at(d, at[lead + d], k[d])));
            if (0..n).all(|d| (0..x.sizes[lead + d]).contains(&from[lead + d])) {
                sum += x.at(&from);
                inside += 1.0;
            }
        }
        let count = divisor.unwrap_or(if include_pad { window } else { inside });
        Ok(Scalar::Float(sum / count))
    });
    Ok(vec![out?])
}

fn adaptive_avg_pool(c: &Call) -> Result<Vec<Tensor>> {
    let x = c.floats(0)?;
    let (_, sizes) = c.out(0)?;
    let n = c.ints(1)?.len();
    let lead = x.sizes.len() - n;
    let out = c.build(0, |at| {
        let ends = |d: usize| {
            let (i, o, s) = (at[lead + d], sizes[lead + d], x.sizes[lead + d]);
            (i * s / o, ((i + 1) * s + o - 1) / o)
        };
        let extents: Vec<i64> = (0..n).map(|d| ends(d).1 - ends(d).0).collect();
        let (mut sum, mut count) = (0.0, 0.0);
        for k in points(&extents) {
            let mut from = at[..lead].to_vec();
            from.extend((0..n).map(|d| ends(d).0 + k[d]));
            sum += x.at(&from);
            count += 1.0;
        }
        Ok(Scalar::Float(sum / count))
    });
    Ok(vec![out?])
}

/// `softmax(q k^T * scale + mask) v`; a row that is masked everywhere gives zero.
fn attention(c: &Call) -> Result<Vec<Tensor>> {
    let (q, k, v) = (c.floats(0)?, c.floats(1)?, c.floats(2)?);
    let mask = c.opt_tensor(3)?;
    let causal = c.bool(5, false)?;
    let rank = q.sizes.len();
    let scale = c.float(6, 1.0 / (q.sizes[rank - 1] as f64).sqrt())?;
    let (k, v) = match c.bool(7, false)? {
        true => (repeated(&k, &q)?, repeated(&v, &q)?),
        false => (k, v),
    };
    let mut scores = matmul(&q, &transposed(&k)?)?;
    for (i, at) in points(&scores.sizes.clone()).enumerate() {
        let s = &mut scores.data[i];
        *s *= scale;
        if let Some(m) = mask {
            let entry = m.get(super::broadcast_position(&m.sizes, &at))?;
            match entry {
                Scalar::Bool(true) => {}
                Scalar::Bool(false) => *s = f64::NEG_INFINITY,
                x => *s += x.as_f64(),
            }
        }
        if causal && at[rank - 1] > at[rank - 2] {
            *s = f64::NEG_INFINITY;
        }
    }
    let weights = super::reduce::each_row(&scores, rank - 1, |row| {
        if row.iter().all(|x| *x == f64::NEG_INFINITY) {
            return vec![0.0; row.len()];
        }
        let (exps, sum) = exponentials(row);
        exps.into_iter().map(|e| e / sum).collect()
    })?;
    done(c, matmul(&weights, &v)?)
}

/// Heads repeated for grouped queries.
fn repeated(x: &Floats, q: &Floats) -> Result<Floats> {
    let d = x.sizes.len() - 3;
    let times = q.sizes[d] / x.sizes[d].max(1);
    let mut sizes = x.sizes.clone();
    sizes[d] = q.sizes[d];
    let mut out = Floats::zeros(&sizes)?;
    for (k, mut at) in points(&sizes).enumerate() {
        at[d] /= times;
        out.data[k] = x.at(&at);
    }
    Ok(out)
}
