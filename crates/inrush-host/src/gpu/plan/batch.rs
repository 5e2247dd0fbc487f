//! Gathers launches and products that follow one another, to be issued as one.

use super::{BaseId, Batch, Op, Operand, Recordable};

/// Fewer launches than these are issued one by one.
const MIN_BATCH: usize = 4;

/// Gathers launches that only allocations and releases stand between; memory is made before them and released after them.
pub(super) fn batches(ops: impl Iterator<Item = Op>) -> (Vec<Op>, usize) {
    let mut out = Vec::new();
    let mut count = 0;
    let mut ops = ops.peekable();
    while ops.peek().is_some() {
        let (mut made, mut launches, mut freed) = (Vec::new(), Vec::new(), Vec::new());
        let gathers = |o: &Op| matches!(o, Op::Launch(_) | Op::Allocate(_) | Op::Free { .. });
        while let Some(op) = ops.next_if(gathers) {
            match op {
                Op::Launch(l) => launches.push(l),
                Op::Allocate(_) => made.push(op),
                _ => freed.push(op),
            }
        }
        out.append(&mut made);
        if launches.len() < MIN_BATCH {
            out.extend(launches.into_iter().map(Op::Launch));
        } else {
            let mut bases: Vec<BaseId> = (launches.iter())
                .flat_map(|l| l.addresses.iter().map(|a| a.1))
                .collect();
            bases.sort_unstable();
            bases.dedup();
            out.push(Op::Batch(Batch {
                id: count,
                launches,
                bases,
            }));
            count += 1;
        }
        out.append(&mut freed);
        out.extend(ops.next());
    }
    (out, count)
}

/// Bytes of memory that a recordable run makes before it has to, or releases later than it could.
const MAX_MOVED: u64 = 64 << 20;

/// Gathers launches and products that only allocations and releases stand between, as [`batches`] does with launches alone.
pub(super) fn recordables(ops: Vec<Op>, bytes: impl Fn(usize) -> u64) -> (Vec<Op>, usize) {
    let mut out = Vec::new();
    let mut count = 0;
    let mut ops = ops.into_iter().peekable();
    while ops.peek().is_some() {
        let (mut made, mut steps, mut freed) = (Vec::new(), Vec::new(), Vec::new());
        let mut moved = 0;
        let mut gathers = |o: &Op| {
            moved += match o {
                Op::Launch(_) | Op::Batch(_) => 0,
                Op::Library(l) if l.gemm.is_some() => 0,
                Op::Allocate(a) => a.shape.bytes().unwrap_or(u64::MAX),
                Op::Free { slot } => bytes(*slot),
                _ => return false,
            };
            moved <= MAX_MOVED
        };
        while let Some(op) = ops.next_if(&mut gathers) {
            match op {
                Op::Allocate(_) => made.push(op),
                Op::Free { .. } => freed.push(op),
                _ => steps.push(op),
            }
        }
        out.append(&mut made);
        let launches = |op: &Op| match op {
            Op::Batch(l) => l.launches.len(),
            _ => 1,
        };
        let products = steps.iter().any(|op| matches!(op, Op::Library(_)));
        if products && steps.iter().map(launches).sum::<usize>() >= MIN_BATCH {
            let mut bases = Vec::new();
            steps.iter().for_each(|op| bases_of(op, &mut bases));
            bases.sort_unstable();
            bases.dedup();
            out.push(Op::Recordable(Recordable {
                id: count,
                ops: steps,
                bases,
            }));
            count += 1;
        } else {
            out.append(&mut steps);
        }
        out.append(&mut freed);
        out.extend(ops.next());
    }
    (out, count)
}

/// Adds the bases that a step takes addresses from.
fn bases_of(op: &Op, out: &mut Vec<BaseId>) {
    match op {
        Op::Launch(l) => out.extend(l.addresses.iter().map(|a| a.1)),
        Op::Batch(l) => out.extend(&l.bases),
        Op::Library(l) => {
            for operand in l.inputs.iter().flatten().chain(&l.out) {
                if let Operand::Memory { base, .. } = operand {
                    out.push(*base);
                }
            }
        }
        _ => {}
    }
}
