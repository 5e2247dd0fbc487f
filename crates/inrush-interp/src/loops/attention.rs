//! Runs attentions: products, scores, then one softmax and one weighted sum for each row.
//!
//! ```text
//! for each point of batch, m, k    product = sum over d of query * key
//! scores over batch, m, k, reading products
//! for each point of batch, m       weights over the keys that are kept; out[n] = sum of weights * value
//! ```
//!
//! Sums are taken in `f64` and rounded once: kernels add tiles in an order of their own.

use super::{Run, for_each_point};
use crate::index::{Index, size};
use crate::softmax::Softmax;
use inrush_base::{DType, Result, Scalar};
use inrush_expr::Sym;
use inrush_loops::{Access, Attention, Axis, BlockList, BufId, Stmt};

impl Run<'_> {
    /// Runs an attention. Holds all scores in memory in between.
    pub(super) fn attention(&mut self, a: &Attention) -> Result<()> {
        let extent = |run: &Self, x: &Axis| size(&run.p.exprs, x.size, &run.symbols);
        let batch: Vec<i64> = (a.batch.iter())
            .map(|x| extent(self, x))
            .collect::<Result<_>>()?;
        let [m, k, d, n] = [a.m, a.k, a.d, a.n].map(|x| extent(self, &x));
        let (m, k, d, n) = (m?, k?, d?, n?);
        let read = Reader::of(a);
        if a.product.is_none() {
            let (query, key) = (read.access(self, &a.query)?, read.access(self, &a.key)?);
            let mut sums = Vec::new();
            let points: Vec<i64> = batch.iter().copied().chain([m, k]).collect();
            for_each_point(&points, |at| {
                let mut sum = 0f64;
                for x in 0..d {
                    let slots = read.slots(at, &[(&a.d, x)]);
                    sum += self.element(&query, &slots)? * self.element(&key, &slots)?;
                }
                sums.push(Scalar::Float(sum).convert(DType::F32));
                Ok(())
            })?;
            self.body(&a.scores, Some(&sums))?;
        } else {
            self.body(&a.scores, None)?;
        }
        let stores = a.scores.stmts.iter().filter_map(|s| match s {
            Stmt::Store { buf, .. } => Some(*buf),
            _ => None,
        });
        let stores: Vec<BufId> = stores.collect();
        let value = read.access(self, &a.value)?;
        let lists = (a.blocks.iter().flat_map(|b| b.lists()))
            .map(|l| {
                Ok((
                    read.access(self, &l.count)?,
                    read.access(self, &l.index)?,
                    l,
                ))
            })
            .collect::<Result<Vec<_>>>()?;
        let rows: Vec<i64> = batch.iter().copied().chain([m]).collect();
        for_each_point(&rows, |at| {
            // How each key is treated: by the lists, or by the scores alone.
            let mut kept = vec![a.blocks.is_none(); k as usize];
            let mut whole = vec![false; k as usize];
            for (which, (count, index, list)) in lists.iter().enumerate() {
                let keys = a.blocks.as_ref().map_or(1, |b| b.keys);
                for block in self.blocks(&read, at, count, index, list)? {
                    let first = block.saturating_mul(keys).clamp(0, k);
                    let last = first.saturating_add(keys).min(k);
                    for key in first..last {
                        kept[key as usize] = true;
                        whole[key as usize] |= which == 1;
                    }
                }
            }
            let mut scores = Vec::new();
            for key in (0..k).filter(|key| kept[*key as usize]) {
                let coords: Vec<i64> = at.iter().copied().chain([key]).collect();
                let keep = match stores.get(1) {
                    Some(b) if !whole[key as usize] => {
                        self.memory.load(b.index(), &coords)?.as_bool()
                    }
                    _ => true,
                };
                let score = self.memory.load(stores[0].index(), &coords)?.as_f64();
                if keep {
                    scores.push((key, score));
                }
            }
            self.row(a, &read, &value, at, &scores, n)
        })
    }

    /// Stores the results of one row of kept keys and their scores.
    fn row(
        &mut self,
        a: &Attention,
        read: &Reader,
        value: &(usize, Vec<Index>),
        at: &[i64],
        scores: &[(i64, f64)],
        n: i64,
    ) -> Result<()> {
        let softmax = Softmax::of(scores.iter().map(|s| s.1));
        for column in 0..n {
            let mut sum = 0f64;
            for ((key, _), w) in scores.iter().zip(&softmax.weights) {
                let at: Vec<i64> = at.iter().copied().chain([*key]).collect();
                sum += w * self.element(value, &read.slots(&at, &[(&a.n, column)]))?;
            }
            let out = softmax.mean(sum);
            let coords: Vec<i64> = at.iter().copied().chain([column]).collect();
            self.memory
                .store(a.out.index(), &coords, Scalar::Float(out))?;
        }
        let (logsumexp, max) = (softmax.logsumexp(), softmax.max());
        (self.memory).store(a.logsumexp.index(), at, Scalar::Float(logsumexp))?;
        (self.memory).store(a.max.index(), at, Scalar::Float(max))
    }

    /// Returns the blocks of a row that a list has.
    fn blocks(
        &self,
        read: &Reader,
        at: &[i64],
        count: &(usize, Vec<Index>),
        index: &(usize, Vec<Index>),
        list: &BlockList,
    ) -> Result<Vec<i64>> {
        let at: Vec<i64> = at.iter().copied().chain([0]).collect();
        let count = self.element(count, &read.slots(&at, &[]))? as i64;
        (0..count)
            .map(|k| Ok(self.element(index, &read.slots(&at, &[(&list.position, k)]))? as i64))
            .collect()
    }

    /// Reads an access.
    fn element(&self, x: &(usize, Vec<Index>), slots: &[i64]) -> Result<f64> {
        let coords: Vec<i64> = (x.1.iter()).map(|c| c.eval(slots)).collect::<Result<_>>()?;
        Ok(self.memory.load(x.0, &coords)?.as_f64())
    }
}

/// Evaluates accesses: one slot for each axis.
struct Reader {
    axes: Vec<Sym>,
    /// Axes of the scores: batch, m, k.
    outer: usize,
}

impl Reader {
    fn of(a: &Attention) -> Reader {
        let positions = a
            .blocks
            .iter()
            .flat_map(|b| b.lists())
            .map(|l| l.position.sym);
        Reader {
            axes: a.axes().map(|x| x.sym).chain(positions).collect(),
            outer: a.batch.len() + 2,
        }
    }

    /// Compiles an access.
    fn access(&self, run: &Run, x: &Access) -> Result<(usize, Vec<Index>)> {
        let slot = |s: Sym| self.axes.iter().position(|t| *t == s);
        let coords = (x.coords.iter())
            .map(|c| Index::new(&run.p.exprs, *c, &run.symbols, &slot))
            .collect::<Result<Vec<_>>>()?;
        Ok((x.buf.index(), coords))
    }

    /// Returns the numbers of all axes, for a point of batch, m, k and some more axes.
    fn slots(&self, at: &[i64], more: &[(&Axis, i64)]) -> Vec<i64> {
        let mut slots = vec![0; self.axes.len()];
        slots[..self.outer].copy_from_slice(at);
        for (axis, v) in more {
            if let Some(k) = self.axes.iter().position(|s| *s == axis.sym) {
                slots[k] = *v;
            }
        }
        slots
    }
}
