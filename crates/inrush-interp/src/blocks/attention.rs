//! Attentions of block programs: scores of all steps, then the softmax and the weighted sum of each row.
//!
//! Sums are taken in `f64` and rounded once, since a tile adds in no order of its own.

use super::program::{Lane, Program};
use crate::softmax::Softmax;
use inrush_base::{DType, Error, Result, Scalar};
use inrush_kernel::block::{Attention, BlockItem, Operand, Results};

impl Program<'_, '_> {
    /// Runs the attention of a program.
    pub(super) fn attention(&mut self, a: &Attention) -> Result<()> {
        let block = self.block;
        let rows = self.lanes[Attention::ROWS];
        // Of each row the keys that are kept, with their scores.
        let mut kept: Vec<Vec<(i64, [f64; 2])>> = vec![Vec::new(); rows];
        for item in &block.items {
            match item {
                BlockItem::Loop(w) => {
                    for (start, full) in self.steps_of(a)? {
                        self.start[Attention::KEYS] = start;
                        self.lanes[Attention::KEYS] = self.present(Attention::KEYS);
                        for item in &w.body {
                            if let BlockItem::Attend {
                                score,
                                second,
                                keep,
                            } = item
                            {
                                let keep = keep.filter(|_| !full);
                                for lane in
                                    self.lanes_of(1 << Attention::ROWS | 1 << Attention::KEYS)
                                {
                                    if self.holds(keep, &lane)? {
                                        let score = self.value(*score, &lane)?.as_f64();
                                        let second = match second {
                                            Some(v) => self.value(*v, &lane)?.as_f64(),
                                            None => 0.0,
                                        };
                                        let key = start + lane[Attention::KEYS] as i64;
                                        kept[lane[Attention::ROWS]].push((key, [score, second]));
                                    }
                                }
                            } else {
                                self.items(std::slice::from_ref(item))?;
                            }
                        }
                    }
                }
                item => self.items(std::slice::from_ref(item))?,
            }
        }
        self.lanes[Attention::KEYS] = 1;
        (0..rows).try_for_each(|row| self.row(a, row, &kept[row]))
    }

    /// The first key of each step, and whether all of its keys are kept.
    fn steps_of(&mut self, a: &Attention) -> Result<Vec<(i64, bool)>> {
        let step = self.block.dims[Attention::KEYS].block;
        let Some(b) = &a.blocks else {
            let keys = self.extents[Attention::KEYS];
            let (whole, end) = match a.causal {
                None => (0, keys),
                Some(after) => {
                    let first = self.start[Attention::ROWS] + after;
                    let last = first + self.block.dims[Attention::ROWS].block;
                    let whole = (first + 1).clamp(0, keys);
                    (whole - whole % step, last.clamp(0, keys))
                }
            };
            let steps = |from: i64, to: i64, kept| {
                let starts = (from..to).step_by(step as usize);
                starts.map(move |s| (s, kept))
            };
            return Ok(steps(0, whole, true)
                .chain(steps(whole, end, false))
                .collect());
        };
        let mut out = Vec::new();
        for (which, list) in b.lists().enumerate() {
            let count = self.read(&list.count, &[0; 4])?.as_i64();
            for position in 0..count {
                self.slots[self.block.dims.len() + 2 + which] = position;
                let first = self.read(&list.index, &[0; 4])?.as_i64() * b.keys;
                let steps = (0..b.keys).step_by(step as usize);
                out.extend(steps.map(|s| (first + s, which == 1)));
            }
        }
        Ok(out)
    }

    /// Returns the product of the query and the key of a lane; of gradients, product 1 is that of `grad` and the value.
    pub(super) fn query_by_key(&mut self, a: &Attention, of: u8, lane: &Lane) -> Result<Scalar> {
        let (side, left, right, slot) = match a.grad() {
            Some(grad) if of == 1 => (a.n, grad, &a.value, 1),
            _ => (a.d, &a.query, &a.key, 0),
        };
        let slot = self.block.dims.len() + slot;
        let mut sum = 0f64;
        for x in 0..self.depth(side.extent)? {
            self.slots[slot] = x;
            sum += self.read(left, lane)?.as_f64() * self.read(right, lane)?.as_f64();
        }
        Ok(Scalar::Float(sum).convert(DType::F32))
    }

    /// Stores the results of one row.
    fn row(&mut self, a: &Attention, row: usize, scores: &[(i64, [f64; 2])]) -> Result<()> {
        let mut lane = [0; 4];
        lane[Attention::ROWS] = row;
        let slots = [0, 1].map(|k| self.block.dims.len() + k);
        match &a.results {
            Results::Softmax {
                out,
                logsumexp,
                max,
            } => {
                let softmax = Softmax::of(scores.iter().map(|s| s.1[0]));
                for n in 0..self.depth(a.n.extent)? {
                    self.slots[slots[1]] = n;
                    let keys = scores.iter().zip(&softmax.weights);
                    let sum = self.weighted(&a.value, &lane, keys.map(|(s, w)| (s.0, *w)))?;
                    self.write(out, &lane, softmax.mean(sum))?;
                }
                self.write(logsumexp, &lane, softmax.logsumexp())?;
                self.write(max, &lane, softmax.max())
            }
            Results::Gradients {
                by_key, by_value, ..
            } => {
                let results = [
                    (Some(by_key), &a.key, a.d),
                    (by_value.as_ref(), &a.value, a.n),
                ];
                for (which, (out, operand, side)) in results.into_iter().enumerate() {
                    let Some(out) = out else { continue };
                    for x in 0..self.depth(side.extent)? {
                        self.slots[slots[which]] = x;
                        let keys = scores.iter().map(|s| (s.0, s.1[which]));
                        let sum = self.weighted(operand, &lane, keys)?;
                        self.write(out, &lane, sum)?;
                    }
                }
                Ok(())
            }
        }
    }

    /// Returns the sum of an operand's elements at keys, each with its weight.
    fn weighted(
        &mut self,
        operand: &Operand,
        lane: &Lane,
        keys: impl Iterator<Item = (i64, f64)>,
    ) -> Result<f64> {
        let mut sum = 0f64;
        for (key, w) in keys {
            self.start[Attention::KEYS] = key;
            sum += w * self.read(operand, lane)?.as_f64();
        }
        Ok(sum)
    }

    fn read(&mut self, o: &Operand, lane: &Lane) -> Result<Scalar> {
        let at = self.index(o.offset, lane)?;
        self.run.memory.load(self.buffer(o.buf)?, at)
    }

    fn write(&mut self, o: &Operand, lane: &Lane, value: f64) -> Result<()> {
        let at = self.index(o.offset, lane)?;
        let buf = self.buffer(o.buf)?;
        self.run.memory.store(buf, at, Scalar::Float(value))
    }

    /// Points along an axis that operands have.
    fn depth(&self, extent: inrush_expr::Expr) -> Result<i64> {
        let n = self.run.p.exprs.as_int(extent);
        n.ok_or_else(|| Error::internal("an attention of unknown head sizes"))
    }
}
