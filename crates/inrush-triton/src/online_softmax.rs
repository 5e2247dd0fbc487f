//! The maximum of a row and the sum of exponentials of distances to it, in one loop.
//!
//! Each lane has a maximum and a sum of its own. Taking in one element at a time costs some 16 instructions: the maximum may
//! grow with each, and the sum is scaled then. A thread has several neighbours of a row, though, and one maximum and one sum for a *run*
//! of them are enough: one comparison, one distance, one exponential and one addition for an element, the scaling once a run.
//!
//! ```text
//! one by one   m' = max(m, v)                 s' = s * exp(m - m') + exp(v - m')        one of the exponentials is 1
//! runs of 8    m' = max(m, v0, .., v7)        s' = s * exp(m - m') + sum of exp(vi - m')
//! ```
//!
//! Runs are as long as one instruction moves, so that no thread needs another's elements. A sum is in units of `exp(m)` if
//! `m` is finite and of 1 otherwise, so that infinities meet no difference of infinities.

use crate::function::Emitter;
use inrush_base::{DType, Result};
use inrush_kernel::block::BlockItem;
use inrush_kernel::{AccId, Def, ValId};
use rustc_hash::FxHashMap;

/// Shortest run that pays for the scaling.
const SHORTEST: i64 = 4;
/// Bytes that a thread moves at once.
const ACCESS: i64 = 16;

/// Returns the length of the runs that both accumulators of a softmax take in at once, for those that take in runs.
pub(crate) fn runs(e: &Emitter) -> FxHashMap<AccId, i64> {
    let mut out = FxHashMap::default();
    let [at] = e.tile_dims()[..] else {
        return out;
    };
    let each = e.block.dims[at].block / (32 * i64::from(e.block.warps));
    for item in &e.block.items {
        let BlockItem::Loop(walk) = item else {
            continue;
        };
        // Threads have as many neighbours as the widest elements allow.
        let widest = walk.body.iter().filter_map(|i| match i {
            BlockItem::Let(v) if e.block.shapes[v.index()] & (1 << at) != 0 => {
                match e.block.value(*v).def {
                    Def::Load { buf, .. } => Some(e.block.buffers[buf.index()].dtype.size()),
                    _ => None,
                }
            }
            _ => None,
        });
        let Some(widest) = widest.max() else {
            continue;
        };
        let neighbours = e.facts.contiguous.unwrap_or(ACCESS / widest as i64);
        let run = neighbours.min(each);
        for item in &walk.body {
            if let BlockItem::Exponentials { max, sum, .. } = item
                && run >= SHORTEST
                && e.block.accs[max.index()].dtype == DType::F32
            {
                out.extend([(*max, run), (*sum, run)]);
            }
        }
    }
    out
}

impl Emitter<'_> {
    /// One step of a maximum and of the sum of exponentials of distances to it.
    pub(crate) fn exponentials(&mut self, max: AccId, sum: AccId, value: ValId) -> Result<()> {
        let (m, s) = (self.names.accs[&max].clone(), self.names.accs[&sum].clone());
        let tile = self.taken(max, value)?;
        self.line(match self.facts.runs.get(&max) {
            Some(run) => format!("{m}, {s} = exponentials_of_runs({m}, {s}, {tile}, {run})"),
            None => format!("{m}, {s} = exponentials({m}, {s}, {tile})"),
        });
        self.state.kept.insert(max);
        Ok(())
    }

    /// The sum of exponentials of distances to `shift`, from those of the lanes to their maxima.
    pub(crate) fn finish_exponentials(
        &mut self,
        max: AccId,
        sum: AccId,
        shift: ValId,
    ) -> Result<()> {
        let (m, s) = (format!("a{}", max.index()), self.names.accs[&sum].clone());
        let (axis, back, shift) = (self.tile_axis()?, self.back()?, self.text(shift)?);
        self.line(format!(
            "{s} = tl.sum({s} * tl.exp({m} - {shift}), {axis}){back}"
        ));
        Ok(())
    }
}
