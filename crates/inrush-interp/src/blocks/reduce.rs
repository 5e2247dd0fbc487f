//! Reductions of tiles: each lane keeps a partial result, the lanes of a row are combined in halves.
//!
//! ```text
//! looped       begin; for each step: update each lane; finish: combine lanes
//! persistent   the same with one step
//!
//! lanes of r:  0 1 2 3 4 5 6 7      halves:  0+4 1+5 2+6 3+7  ->  0+2 1+3  ->  0+1
//! ```
//!
//! Compiled programs combine in an order that Triton chooses, so sums agree within rounding only.
//! Extremes, positions among equal extremes and NaN must agree exactly.
//!
//! One-pass variance (Welford) keeps mean and squared distances by lane and merges lanes at the
//! end by Chan's formula. One-pass softmax keeps maximum and scaled sum by lane and rescales the
//! sums to the common maximum.

use super::program::Program;
use inrush_base::{DType, Error, Result, Scalar};
use inrush_kernel::{AccId, ValId};
use inrush_loops::{ReduceOp, eval};

/// An accumulator.
#[derive(Clone, Debug, Default)]
pub(super) struct Partial {
    /// By point of the grid's dimensions and lane of the reduced one; empty until the accumulator is started.
    pub lanes: Vec<Kept>,
    /// By point of the grid's dimensions, once it is finished.
    pub totals: Vec<Scalar>,
}

/// The partial result of a lane.
#[derive(Copy, Clone, Debug)]
pub(super) struct Kept {
    pub value: Scalar,
    /// The position of an extreme.
    at: i64,
    /// Elements taken in.
    /// Zero for a lane beyond the end of a short axis; `combine` ignores such a lane.
    seen: i64,
}

impl Program<'_, '_> {
    /// Points of the grid's dimensions, and lanes that a full block has of the reduced one.
    fn room(&self) -> Result<(usize, usize)> {
        let block = self.block.dims[self.axis()?].block;
        Ok((self.lanes_of(self.grid()).len(), block as usize))
    }

    /// Starts an accumulator: all lanes of a full block, none of which has seen an element.
    pub(super) fn begin(&mut self, acc: AccId) -> Result<()> {
        let a = &self.block.accs[acc.index()];
        let op = match a.op {
            // The arg kinds keep the extreme itself as well; their neutral element as such is a
            // position.
            ReduceOp::ArgMax => ReduceOp::Max,
            ReduceOp::ArgMin => ReduceOp::Min,
            op => op,
        };
        let (points, lanes) = self.room()?;
        let kept = Kept {
            value: eval::neutral(op, a.dtype),
            at: i64::MAX,
            seen: 0,
        };
        self.accs[acc.index()] = Partial {
            lanes: vec![kept; points * lanes],
            totals: Vec::new(),
        };
        Ok(())
    }

    /// Calls `f` with the number of each lane of the tile and the element that it takes in.
    fn each(
        &mut self,
        value: ValId,
        mut f: impl FnMut(&mut Self, usize, Scalar, &[usize; 4]) -> Result<()>,
    ) -> Result<()> {
        let (axis, grid) = (self.axis()?, self.grid());
        let (_, room) = self.room()?;
        for lane in self.lanes_of(grid | 1 << axis) {
            let at = self.number(grid, &lane) * room + lane[axis];
            let v = self.value(value, &lane)?;
            f(self, at, v, &lane)?;
        }
        Ok(())
    }

    /// Returns the partial result of a lane.
    fn lane(&mut self, acc: AccId, at: usize) -> Result<&mut Kept> {
        let kept = self.accs[acc.index()].lanes.get_mut(at);
        kept.ok_or_else(|| Error::internal(format!("{acc} is not started")))
    }

    /// Combines a tile into the lanes of an accumulator.
    pub(super) fn update(&mut self, acc: AccId, value: ValId) -> Result<()> {
        let a = self.block.accs[acc.index()].clone();
        self.each(value, |p, at, v, lane| {
            let position = a.index.map_or(Ok(0), |e| p.index(e, lane))?;
            let new = Kept {
                value: v,
                at: position,
                seen: 1,
            };
            let old = *p.lane(acc, at)?;
            *p.lane(acc, at)? = combine(a.op, a.dtype, old, new)?;
            Ok(())
        })
    }

    /// Combines the lanes of each row to its total.
    pub(super) fn finish(&mut self, acc: AccId) -> Result<()> {
        let a = self.block.accs[acc.index()].clone();
        let (_, room) = self.room()?;
        let rows: Vec<Vec<Kept>> = (self.accs[acc.index()].lanes.chunks(room))
            .map(|row| row.to_vec())
            .collect();
        let mut totals = Vec::new();
        for row in rows {
            let total = halves(row, &|x, y| combine(a.op, a.dtype, x, y))?;
            totals.push(match a.op.is_arg() {
                // An empty row: eager refuses it, and a position must be inside something.
                true if total.seen == 0 => Scalar::Int(0),
                true => Scalar::Int(total.at),
                false => total.value,
            });
        }
        self.accs[acc.index()].totals = totals;
        // The lanes stay: a one-pass softmax asks for their maxima again.
        Ok(())
    }

    /// A step of mean and squares of distances to it, by lane.
    pub(super) fn moments(&mut self, sum: AccId, squares: AccId, value: ValId) -> Result<()> {
        let d = self.dtype(sum);
        // Steps serve as the count, because each lane takes one element a step. So a short tile
        // must be the last: the verifier refuses moments in a loop that goes back.
        let seen = (self.steps + 1) as f64;
        self.each(value, |p, at, v, _| {
            let (mean, v) = (p.lane(sum, at)?.value.as_f64(), v.as_f64());
            let distance = round(v - mean, d);
            // Welford: `mean' = mean + (v - mean) / n`, `squares' = squares + (v - mean) * (v -
            // mean')`.
            let next = round(mean + round(distance / seen, d), d);
            let grown = round(distance * round(v - next, d), d);
            *p.lane(sum, at)? = Kept {
                value: Scalar::Float(next),
                at: 0,
                seen: p.steps + 1,
            };
            let kept = p.lane(squares, at)?;
            kept.value = Scalar::Float(round(kept.value.as_f64() + grown, d));
            Ok(())
        })
    }

    /// The sum of all and the squares of distances to its mean, from the lanes' means and squares.
    pub(super) fn finish_moments(&mut self, sum: AccId, squares: AccId) -> Result<()> {
        let d = self.dtype(sum);
        let (_, room) = self.room()?;
        let (mut sums, mut all_squares) = (Vec::new(), Vec::new());
        let means = self.accs[sum.index()].lanes.clone();
        let lanes = self.accs[squares.index()].lanes.clone();
        for (means, squares) in means.chunks(room).zip(lanes.chunks(room)) {
            let count: i64 = means.iter().map(|k| k.seen).sum();
            let parts = means.iter().map(|k| k.value.as_f64() * k.seen as f64);
            let total = tree(parts.collect(), d);
            let mean = round(total / count as f64, d);
            let parts = means.iter().zip(squares).map(|(m, s)| {
                // Chan: squares of a part grow by `n * (its mean - common mean)^2`.
                let off = m.value.as_f64() - mean;
                s.value.as_f64() + m.seen as f64 * off * off
            });
            all_squares.push(Scalar::Float(tree(parts.collect(), d)));
            sums.push(Scalar::Float(total));
        }
        self.accs[sum.index()].totals = sums;
        self.accs[squares.index()].totals = all_squares;
        Ok(())
    }

    /// A step of a maximum and of the sum of exponentials of distances to it, by lane.
    pub(super) fn exponentials(&mut self, max: AccId, sum: AccId, value: ValId) -> Result<()> {
        let d = self.dtype(max);
        self.each(value, |p, at, v, _| {
            let old = *p.lane(max, at)?;
            let new = Kept {
                value: v,
                at: 0,
                seen: 1,
            };
            let greatest = combine(ReduceOp::Max, d, old, new)?;
            let (m, before, v) = (greatest.value.as_f64(), old.value.as_f64(), v.as_f64());
            // What is as great as the maximum counts one, infinities too.
            let scale = |x: f64| {
                if x == m {
                    1.0
                } else {
                    round(libm::exp(x - m), d)
                }
            };
            let kept = p.lane(sum, at)?;
            let total = kept.value.as_f64() * scale(before) + scale(v);
            kept.value = Scalar::Float(round(total, d));
            *p.lane(max, at)? = greatest;
            Ok(())
        })
    }

    /// The sum of exponentials of distances to `shift`, from the lanes' sums and maxima.
    pub(super) fn finish_exponentials(
        &mut self,
        max: AccId,
        sum: AccId,
        shift: ValId,
    ) -> Result<()> {
        let d = self.dtype(sum);
        let (_, room) = self.room()?;
        let maxima = self.accs[max.index()].lanes.clone();
        let sums = self.accs[sum.index()].lanes.clone();
        let points = self.lanes_of(self.grid());
        let mut totals = Vec::new();
        for ((m, s), lane) in maxima.chunks(room).zip(sums.chunks(room)).zip(points) {
            let shift = self.value(shift, &lane)?.as_f64();
            let parts = m.iter().zip(s).map(|(m, s)| {
                // With a finite shift a lane that saw nothing (maximum -inf, sum 0) adds 0.
                let scaled = s.value.as_f64() * round(libm::exp(m.value.as_f64() - shift), d);
                round(scaled, d)
            });
            totals.push(Scalar::Float(tree(parts.collect(), d)));
        }
        self.accs[sum.index()].totals = totals;
        Ok(())
    }

    /// A running reduction along the rows of the tile; in a loop the accumulator carries what came before.
    pub(super) fn running(&mut self, acc: AccId, value: ValId) -> Result<Vec<Scalar>> {
        let a = self.block.accs[acc.index()].clone();
        if a.op.is_arg() {
            return Err(Error::unsupported("a running argmax or argmin"));
        }
        let (axis, grid) = (self.axis()?, self.grid());
        // Across the steps of a loop, the first lane carries.
        let (_, room) = self.room()?;
        let carries = !self.accs[acc.index()].lanes.is_empty();
        if !carries {
            self.begin(acc)?;
        }
        let mut out = Vec::new();
        for lane in self.lanes_of(grid | 1 << axis) {
            let new = Kept {
                value: self.value(value, &lane)?,
                at: 0,
                seen: 1,
            };
            let row = self.number(grid, &lane) * room;
            let old = *self.lane(acc, row)?;
            let next = combine(a.op, a.dtype, old, new)?;
            *self.lane(acc, row)? = next;
            out.push(next.value);
        }
        if !carries {
            self.accs[acc.index()].lanes.clear();
        }
        Ok(out)
    }
}

impl Program<'_, '_> {
    /// The rows of the tile in ascending order.
    pub(super) fn sorted(&self, value: ValId) -> Result<Vec<Scalar>> {
        let (axis, grid) = (self.axis()?, self.grid());
        let mut out = Vec::new();
        // The sorted axis is the last one, so rows follow each other.
        for point in self.lanes_of(grid) {
            let keys = (0..self.lanes[axis]).map(|at| {
                let mut lane = point;
                lane[axis] = at;
                self.value(value, &lane)
            });
            let mut row = keys.collect::<Result<Vec<Scalar>>>()?;
            row.sort_by_key(|v| v.as_i64());
            out.append(&mut row);
        }
        Ok(out)
    }
}

/// Rounds to `d`, as each operation of a program does.
fn round(v: f64, d: DType) -> f64 {
    Scalar::Float(v).convert(d).as_f64()
}

/// Combines two partial results, of which either may have seen nothing.
fn combine(op: ReduceOp, d: DType, a: Kept, b: Kept) -> Result<Kept> {
    if a.seen == 0 {
        return Ok(b);
    }
    if b.seen == 0 {
        return Ok(a);
    }
    let seen = a.seen + b.seen;
    let Some(combine) = eval::combiner(op) else {
        let (new, old) = (b.value, a.value);
        // Used only where `new` does not beat `old` either. The smaller position wins, so that
        // the order of lanes does not matter.
        let equal = !eval::beats(op, d, old, new);
        let better = eval::beats(op, d, new, old) || equal && b.at < a.at;
        return Ok(Kept {
            seen,
            ..if better { b } else { a }
        });
    };
    Ok(Kept {
        value: eval::op(combine, d, &[a.value, b.value])?,
        at: 0,
        seen,
    })
}

/// Combines neighbours until one is left.
/// Element `k` meets `k + half`, as in a tree over a warp.
fn halves(mut list: Vec<Kept>, combine: &dyn Fn(Kept, Kept) -> Result<Kept>) -> Result<Kept> {
    while list.len() > 1 {
        let half = list.len().div_ceil(2);
        for k in half..list.len() {
            list[k - half] = combine(list[k - half], list[k])?;
        }
        list.truncate(half);
    }
    (list.pop()).ok_or_else(|| Error::internal("a block of no lanes"))
}

/// Sums in halves, every step rounded.
fn tree(mut list: Vec<f64>, d: DType) -> f64 {
    while list.len() > 1 {
        let half = list.len().div_ceil(2);
        for k in half..list.len() {
            list[k - half] = round(list[k - half] + list[k], d);
        }
        list.truncate(half);
    }
    list.first().map_or(0.0, |v| round(*v, d))
}
