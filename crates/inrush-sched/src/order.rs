//! Stage order: kernels in an order that keeps little alive.
//!
//! List scheduling: a step is ready once all that it waits for has run. The greedy order takes the
//! ready step that adds least to the bytes alive. It can be worse than the written order, since it
//! does not look ahead; both are measured.

use inrush_expr::Exprs;
use inrush_loops::{BufferKind, Bufs, Loops};
use smallvec::SmallVec;

use crate::fuse::Fused;

/// Units in order. Two candidates are compared by the bytes alive at their worst moment, at the hints: the order in which the
/// program was written, and one that prefers what frees most.
pub(crate) fn order(loops: &Loops, fused: &Fused) -> Vec<usize> {
    let written = fused.dag.order();
    let life = Life::new(loops, fused, &written);
    let greedy = life.greedy(fused, &written);
    if life.peak(&greedy) < life.peak(&written) {
        greedy
    } else {
        written
    }
}

/// Uses of temporaries by unit.
struct Life {
    /// By buffer, at the hints; 0 for buffers that live outside of the arena.
    bytes: Vec<i64>,
    /// By unit: temporaries that it reads or writes, each once.
    uses: Vec<Bufs>,
    /// By buffer: units that use it.
    users: Vec<u32>,
}

impl Life {
    fn new(loops: &Loops, fused: &Fused, units: &[usize]) -> Life {
        let mut life = Life {
            bytes: loops
                .buffers
                .iter()
                .map(|b| match b.kind {
                    BufferKind::Temp => bytes(&loops.exprs, b),
                    _ => 0,
                })
                .collect(),
            uses: vec![Bufs::new(); fused.units.len()],
            users: vec![0; loops.buffers.len()],
        };
        for o in &loops.outputs {
            if let inrush_loops::Output::Tensor { buffer } = o {
                // An output stays alive anyway.
                life.bytes[loops.storage(*buffer).index()] = 0;
            }
        }
        for u in units {
            let mut used = Bufs::new();
            for m in &fused.dag.members[*u] {
                let (reads, writes) = (&fused.deps.reads, &fused.deps.writes);
                for b in reads[*m as usize].iter().chain(&writes[*m as usize]) {
                    let b = loops.storage(*b);
                    if life.bytes[b.index()] > 0 && !used.contains(&b) {
                        used.push(b);
                    }
                }
            }
            for b in &used {
                life.users[b.index()] += 1;
            }
            life.uses[*u] = used;
        }
        life
    }

    /// Bytes alive at the worst moment.
    fn peak(&self, order: &[usize]) -> i64 {
        let mut left = self.users.clone();
        let mut seen = vec![false; left.len()];
        let (mut now, mut peak) = (0i64, 0i64);
        for u in order {
            for b in &self.uses[*u] {
                if !std::mem::replace(&mut seen[b.index()], true) {
                    now = now.saturating_add(self.bytes[b.index()]);
                }
            }
            peak = peak.max(now);
            for b in &self.uses[*u] {
                left[b.index()] -= 1;
                if left[b.index()] == 0 {
                    now = now.saturating_sub(self.bytes[b.index()]);
                }
            }
        }
        peak
    }

    /// Among ready units, the one that adds least to what is alive; ties in program order. Units of more than a few ready
    /// candidates are compared in program order only, which keeps this near linear.
    fn greedy(&self, fused: &Fused, written: &[usize]) -> Vec<usize> {
        const CANDIDATES: usize = 8;
        let dag = &fused.dag;
        // By unit: its place in program order.
        let mut rank = vec![usize::MAX; fused.units.len()];
        for (k, u) in written.iter().enumerate() {
            rank[*u] = k;
        }
        // Dependencies between units, each pair counted as often as nodes have it.
        let mut waits = vec![0u32; written.len()];
        let mut after: Vec<SmallVec<[usize; 4]>> = crate::deps::lists(written.len());
        for (k, u) in written.iter().enumerate() {
            for m in &dag.members[*u] {
                for b in &dag.before[*m as usize] {
                    let v = rank[dag.unit_of(*b as usize)];
                    if v != k {
                        waits[k] += 1;
                        after[v].push(k);
                    }
                }
            }
        }
        let mut ready: std::collections::BTreeSet<usize> =
            (0..written.len()).filter(|k| waits[*k] == 0).collect();
        let mut left = self.users.clone();
        let mut alive = vec![false; left.len()];
        let mut out = Vec::with_capacity(written.len());
        while !ready.is_empty() {
            let change = |k: usize| -> i64 {
                self.uses[written[k]]
                    .iter()
                    .map(|b| {
                        let size = self.bytes[b.index()];
                        let born = if alive[b.index()] { 0 } else { size };
                        let dies = if left[b.index()] == 1 { size } else { 0 };
                        born - dies
                    })
                    .fold(0i64, |a, b| a.saturating_add(b))
            };
            let Some(next) = ready
                .iter()
                .copied()
                .take(CANDIDATES)
                .min_by_key(|k| (change(*k), *k))
            else {
                break;
            };
            ready.remove(&next);
            for b in &self.uses[written[next]] {
                alive[b.index()] = true;
                left[b.index()] -= 1;
            }
            for a in &after[next] {
                waits[*a] -= 1;
                if waits[*a] == 0 {
                    ready.insert(*a);
                }
            }
            out.push(written[next]);
        }
        out
    }
}

/// Returns the bytes of a buffer, at the hints.
fn bytes(ex: &Exprs, b: &inrush_loops::Buffer) -> i64 {
    b.sizes.iter().fold(b.dtype.size() as i64, |p, s| {
        p.saturating_mul(ex.hint(*s).max(0))
    })
}
