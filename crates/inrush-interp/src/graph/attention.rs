//! Attention with scores that the graph computes, and its gradients: `inrush.attention_product`, `inrush.attention` and others.

use super::call::{Call, Floats};
use super::{Eval, broadcasts};
use crate::softmax::Softmax;
use crate::tensor::Tensor;
use inrush_base::{Error, Result, Scalar};

pub(super) const TABLE: &[(&str, Eval)] = &[
    ("inrush.attention_product", product),
    ("inrush.attention", attention),
    ("inrush.attention_grad_query", grad_query),
    ("inrush.attention_grad_key_value", grad_key_value),
];

/// The sizes of an attention.
struct Sizes {
    batch: i64,
    heads: i64,
    rows: i64,
    keys: i64,
    features: i64,
}

/// Checks queries and what is read for each key: the batch is equal or 1, and heads divide those of the queries.
fn sizes(query: &Floats, key: &Floats) -> Result<Sizes> {
    let ([batch, heads, rows, features], [kb, kh, keys, _]) =
        (query.sizes.as_slice(), key.sizes.as_slice())
    else {
        return Err(Error::input("attention of tensors without four dimensions"));
    };
    if (kb != batch && *kb != 1) || *kh < 1 || heads % kh != 0 {
        return Err(Error::input(format!(
            "attention of {:?} over {:?}",
            query.sizes, key.sizes
        )));
    }
    Ok(Sizes {
        batch: *batch,
        heads: *heads,
        rows: *rows,
        keys: *keys,
        features: *features,
    })
}

impl Sizes {
    /// Returns an element of a tensor of keys or values, for a batch and head of queries.
    fn of_key(&self, x: &Floats, [b, h]: [i64; 2], key: i64, column: i64) -> Result<f64> {
        let head = h / (self.heads / x.sizes[1]);
        x.at(&[if x.sizes[0] == 1 { 0 } else { b }, head, key, column])
    }
}

fn product(c: &Call) -> Result<Vec<Tensor>> {
    let (q, k) = (c.floats(0)?, c.floats(1)?);
    let s = sizes(&q, &k)?;
    if k.sizes[3] != s.features {
        return Err(Error::input("queries and keys of different features"));
    }
    c.floats_of(&[s.batch, s.heads, s.rows, s.keys], |at| {
        let [b, h, m, key] = *at else {
            return Err(Error::internal("a point of four dimensions"));
        };
        (0..s.features).try_fold(0.0, |sum, d| {
            Ok(sum + q.at(&[b, h, m, d])? * s.of_key(&k, [b, h], key, d)?)
        })
    })
}

/// The keys that a list of blocks has for each row. Lists of gradients may hold the queries that a row of keys has.
struct Blocks {
    rows: i64,
    keys: i64,
    count: Floats,
    index: Floats,
}

impl Blocks {
    /// Reads the list whose count is argument `at`, if it is given. `sizes` are those of a block.
    fn read(c: &Call, at: usize, [rows, keys]: [i64; 2]) -> Result<Option<Blocks>> {
        let (Some(count), Some(index)) = (c.opt_floats(at)?, c.opt_floats(at + 1)?) else {
            return Ok(None);
        };
        if rows < 1 || keys < 1 || count.sizes.len() != 3 || index.sizes.len() != 4 {
            return Err(Error::input("lists of blocks of these sizes"));
        }
        Ok(Some(Blocks {
            rows,
            keys,
            count,
            index,
        }))
    }

    /// Returns true if the list has the block of a row and key.
    fn has(&self, [b, h]: [i64; 2], row: i64, key: i64) -> Result<bool> {
        let of = |x: &Floats, more: &[i64]| {
            let lead = [b, h, row / self.rows];
            let lead = lead
                .iter()
                .zip(&x.sizes)
                .map(|(at, n)| if *n == 1 { 0 } else { *at });
            x.at(&lead.chain(more.iter().copied()).collect::<Vec<_>>())
        };
        let count = of(&self.count, &[])? as i64;
        for position in 0..count {
            if of(&self.index, &[position])? as i64 == key / self.keys {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Which keys a query attends to.
struct Mask {
    keep: Option<Floats>,
    partial: Option<Blocks>,
    full: Option<Blocks>,
    /// The lists are those of blocks of keys.
    exchanged: bool,
}

impl Mask {
    /// Reads the arguments from `at` on: a mask of the points, lists, sizes of blocks.
    fn read(c: &Call, at: usize, points: [i64; 4], exchanged: bool) -> Result<Mask> {
        let keep = c.opt_floats(at)?;
        if let Some(k) = &keep {
            broadcasts(&k.sizes, &points)?;
        }
        let mut sizes = [c.int(at + 5, 0)?, c.int(at + 6, 0)?];
        if exchanged {
            sizes.swap(0, 1);
        }
        Ok(Mask {
            keep,
            partial: Blocks::read(c, at + 1, sizes)?,
            full: Blocks::read(c, at + 3, sizes)?,
            exchanged,
        })
    }

    /// Returns true if a key is kept for a query.
    fn keeps(&self, point: [i64; 4]) -> Result<bool> {
        let [b, h, query, key] = point;
        let (row, walked) = if self.exchanged {
            (key, query)
        } else {
            (query, key)
        };
        let has = |list: &Option<Blocks>, otherwise| {
            (list.as_ref()).map_or(Ok(otherwise), |l| l.has([b, h], row, walked))
        };
        Ok(has(&self.full, false)?
            || has(&self.partial, true)?
                && match &self.keep {
                    Some(k) => k.broadcast_at(&point)? != 0.0,
                    None => true,
                })
    }
}

/// Returns the weight of each point in row-major order; `None` for keys that are not kept.
fn kept_weights(c: &Call, at: usize, points: [i64; 4], mask: &Mask) -> Result<Vec<Option<f64>>> {
    let weights = c.floats(at)?;
    broadcasts(&weights.sizes, &points)?;
    (super::points(&points))
        .map(|p| {
            let point = <[i64; 4]>::try_from(p.as_slice())
                .map_err(|_| Error::internal("a point of four dimensions"))?;
            if mask.keeps(point)? {
                weights.broadcast_at(&point).map(Some)
            } else {
                Ok(None)
            }
        })
        .collect()
}

/// The gradient of queries: the sum of keys with the weights of a row.
fn grad_query(c: &Call) -> Result<Vec<Tensor>> {
    let (q, k) = (c.floats(0)?, c.floats(1)?);
    let s = sizes(&q, &k)?;
    let points = [s.batch, s.heads, s.rows, s.keys];
    let weights = kept_weights(c, 6, points, &Mask::read(c, 7, points, false)?)?;
    let results = [s.batch, s.heads, s.rows, s.features];
    c.floats_of(&results, |at| {
        let [b, h, m, d] = *at else {
            return Err(Error::internal("a point of four dimensions"));
        };
        let row = ((b * s.heads + h) * s.rows + m) * s.keys;
        (0..s.keys).try_fold(0.0, |sum, key| {
            Ok(match weights[(row + key) as usize] {
                Some(w) => sum + w * s.of_key(&k, [b, h], key, d)?,
                None => sum,
            })
        })
    })
}

/// The gradients of keys and values for each head of the queries: sums of queries and of the result's gradient.
fn grad_key_value(c: &Call) -> Result<Vec<Tensor>> {
    let (q, k, grad) = (c.floats(0)?, c.floats(1)?, c.floats(3)?);
    let s = sizes(&q, &k)?;
    if grad.sizes.len() != 4 || grad.sizes[..3] != [s.batch, s.heads, s.rows] {
        return Err(Error::input("a gradient of other sizes than the result"));
    }
    let points = [s.batch, s.heads, s.rows, s.keys];
    let mask = Mask::read(c, 8, points, true)?;
    let mut out = Vec::new();
    for (number, (operand, weights)) in [(&q, 6), (&grad, 7)].into_iter().enumerate() {
        let weights = kept_weights(c, weights, points, &mask)?;
        let columns = operand.sizes[3];
        let results = [s.batch, s.heads, s.keys, columns];
        let mut result = Tensor::zeros(c.given(number, &results)?, &results)?;
        for (at, point) in super::points(&results).enumerate() {
            let [b, h, key, column] = *point.as_slice() else {
                return Err(Error::internal("a point of four dimensions"));
            };
            let mut sum = 0.0;
            for m in 0..s.rows {
                let row = (b * s.heads + h) * s.rows + m;
                if let Some(w) = weights[(row * s.keys + key) as usize] {
                    sum += w * operand.at(&[b, h, m, column])?;
                }
            }
            result.set(at, Scalar::Float(sum).convert(result.dtype))?;
        }
        out.push(result);
    }
    Ok(out)
}

fn attention(c: &Call) -> Result<Vec<Tensor>> {
    let (q, v, scores) = (c.floats(0)?, c.floats(2)?, c.floats(4)?);
    let s = sizes(&q, &v)?;
    let points = [s.batch, s.heads, s.rows, s.keys];
    broadcasts(&scores.sizes, &points)?;
    let mask = Mask::read(c, 5, points, false)?;
    let columns = v.sizes[3];
    let rows = &points[..3];
    let results = [rows, &[columns]].concat();
    let mut out = Tensor::zeros(c.given(0, &results)?, &results)?;
    let mut logsumexp = Tensor::zeros(c.given(1, rows)?, rows)?;
    let mut max = Tensor::zeros(c.given(2, rows)?, rows)?;
    for (at, point) in super::points(rows).enumerate() {
        let [b, h, m] = *point.as_slice() else {
            return Err(Error::internal("a row of three dimensions"));
        };
        let mut kept: Vec<(i64, f64)> = Vec::new();
        for key in 0..s.keys {
            let point = [b, h, m, key];
            if mask.keeps(point)? {
                kept.push((key, scores.broadcast_at(&point)?));
            }
        }
        let softmax = Softmax::of(kept.iter().map(|k| k.1));
        for n in 0..columns {
            let sum = (kept.iter().zip(&softmax.weights)).try_fold(0.0, |sum, ((key, _), w)| {
                Ok::<_, Error>(sum + w * s.of_key(&v, [b, h], *key, n)?)
            })?;
            let value = Scalar::Float(softmax.mean(sum)).convert(out.dtype);
            out.set(at * columns as usize + n as usize, value)?;
        }
        logsumexp.set(at, Scalar::Float(softmax.logsumexp()))?;
        max.set(at, Scalar::Float(softmax.max()))?;
    }
    Ok(vec![out, logsumexp, max])
}
