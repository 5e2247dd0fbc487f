//! Attention with scores that the graph computes: `inrush.attention_product` and `inrush.attention`.

use super::call::{Call, Floats};
use super::{Eval, broadcasts};
use crate::softmax::Softmax;
use crate::tensor::Tensor;
use inrush_base::{Error, Result, Scalar};

pub(super) const TABLE: &[(&str, Eval)] = &[
    ("inrush.attention_product", product),
    ("inrush.attention", attention),
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

/// The keys that a list of blocks has for each row.
struct Blocks {
    rows: i64,
    keys: i64,
    count: Floats,
    index: Floats,
}

impl Blocks {
    /// Reads the list whose count is argument `at`, if it is given.
    fn read(c: &Call, at: usize) -> Result<Option<Blocks>> {
        let (Some(count), Some(index)) = (c.opt_floats(at)?, c.opt_floats(at + 1)?) else {
            return Ok(None);
        };
        let (rows, keys) = (c.int(10, 0)?, c.int(11, 0)?);
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

fn attention(c: &Call) -> Result<Vec<Tensor>> {
    let (q, v, scores) = (c.floats(0)?, c.floats(2)?, c.floats(4)?);
    let s = sizes(&q, &v)?;
    let points = [s.batch, s.heads, s.rows, s.keys];
    broadcasts(&scores.sizes, &points)?;
    let keep = c.opt_floats(5)?;
    if let Some(k) = &keep {
        broadcasts(&k.sizes, &points)?;
    }
    let (partial, full) = (Blocks::read(c, 6)?, Blocks::read(c, 8)?);
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
            let whole = match &full {
                Some(l) => l.has([b, h], m, key)?,
                None => false,
            };
            let listed = match &partial {
                Some(l) => l.has([b, h], m, key)?,
                None => true,
            };
            let masked = match &keep {
                Some(k) => k.broadcast_at(&point)? != 0.0,
                None => true,
            };
            if whole || (listed && masked) {
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
