//! Runs attentions: products, scores, then one softmax and one weighted sum for each row.
//!
//! ```text
//! for each point of batch, m, k    product = sum over d of query * key
//! scores over batch, m, k, reading products
//! for each point of batch, m       weights over the keys that are kept; out[n] = sum of weights * value
//! ```
//!
//! Gradients have two products, and weights instead of scores.
//!
//! Sums are taken in `f64` and rounded once: kernels add tiles in an order of their own.

use super::{Run, for_each_point};
use crate::index::{Index, size};
use crate::softmax::Softmax;
use inrush_base::{DType, Result, Scalar};
use inrush_expr::Sym;
use inrush_loops::{Access, Attended, Attention, Axis, BlockList, BufId, Stmt};

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
        let points: Vec<i64> = batch.iter().copied().chain([m, k]).collect();
        let first = match a.product {
            None => Some(self.products(&read, &points, (&a.query, &a.key), (&a.d, d))?),
            Some(_) => None,
        };
        let second = match a.gradients() {
            Some(g) if g.product.is_none() => {
                Some(self.products(&read, &points, (&g.grad, &a.value), (&a.n, n))?)
            }
            _ => None,
        };
        self.body(&a.scores, [first.as_deref(), second.as_deref()])?;
        let stores = a.scores.stmts.iter().filter_map(|s| match s {
            Stmt::Store { buf, .. } => Some(*buf),
            _ => None,
        });
        let stores: Vec<BufId> = stores.collect();
        let (key, value) = (read.access(self, &a.key)?, read.access(self, &a.value)?);
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
            let mut scores: Vec<(i64, [f64; 2])> = Vec::new();
            for at_key in (0..k).filter(|key| kept[*key as usize]) {
                let coords: Vec<i64> = at.iter().copied().chain([at_key]).collect();
                let keep = match stores.get(a.values()) {
                    Some(b) if !whole[at_key as usize] => {
                        self.memory.load(b.index(), &coords)?.as_bool()
                    }
                    _ => true,
                };
                let mut values = [0.0; 2];
                for (v, buf) in values.iter_mut().zip(&stores[..a.values()]) {
                    *v = self.memory.load(buf.index(), &coords)?.as_f64();
                }
                if keep {
                    scores.push((at_key, values));
                }
            }
            match &a.results {
                Attended::Softmax {
                    out,
                    logsumexp,
                    max,
                } => {
                    let softmax = Softmax::of(scores.iter().map(|s| s.1[0]));
                    let weights: Vec<(i64, f64)> = (scores.iter().zip(&softmax.weights))
                        .map(|((key, _), w)| (*key, *w))
                        .collect();
                    let sum = (&value, &a.n, n);
                    self.row(*out, &read, sum, at, &weights, &|x| softmax.mean(x))?;
                    for (buf, x) in [(logsumexp, softmax.logsumexp()), (max, softmax.max())] {
                        self.memory.store(buf.index(), at, Scalar::Float(x))?;
                    }
                }
                Attended::Gradients(g) => {
                    let weights = |which: usize| -> Vec<(i64, f64)> {
                        scores.iter().map(|(key, w)| (*key, w[which])).collect()
                    };
                    let sum = (&key, &a.d, d);
                    self.row(g.by_key, &read, sum, at, &weights(0), &|x| x)?;
                    if let Some(out) = g.by_value {
                        let sum = (&value, &a.n, n);
                        self.row(out, &read, sum, at, &weights(1), &|x| x)?;
                    }
                }
            }
            Ok(())
        })
    }

    /// Returns the sums over an axis of products of two operands, at each point in row-major order.
    fn products(
        &self,
        read: &Reader,
        points: &[i64],
        (a, b): (&Access, &Access),
        (axis, length): (&Axis, i64),
    ) -> Result<Vec<Scalar>> {
        let (a, b) = (read.access(self, a)?, read.access(self, b)?);
        let mut sums = Vec::new();
        for_each_point(points, |at| {
            let mut sum = 0f64;
            for x in 0..length {
                let slots = read.slots(at, &[(axis, x)]);
                sum += self.element(&a, &slots)? * self.element(&b, &slots)?;
            }
            sums.push(Scalar::Float(sum).convert(DType::F32));
            Ok(())
        })?;
        Ok(sums)
    }

    /// Stores one row of a result: the sum of an operand's rows, each with the weight of its key.
    fn row(
        &mut self,
        out: BufId,
        read: &Reader,
        (operand, axis, length): (&(usize, Vec<Index>), &Axis, i64),
        at: &[i64],
        weights: &[(i64, f64)],
        finish: &dyn Fn(f64) -> f64,
    ) -> Result<()> {
        for column in 0..length {
            let mut sum = 0f64;
            for (key, w) in weights {
                let at: Vec<i64> = at.iter().copied().chain([*key]).collect();
                sum += w * self.element(operand, &read.slots(&at, &[(axis, column)]))?;
            }
            let coords: Vec<i64> = at.iter().copied().chain([column]).collect();
            let value = Scalar::Float(finish(sum));
            self.memory.store(out.index(), &coords, value)?;
        }
        Ok(())
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
