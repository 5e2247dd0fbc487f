//! Unroll factors of lanes loops: independent vectors hide the latency of what each of them waits for.

use super::Group;
use crate::build::Builder;
use crate::nest::EffectKind;
use crate::{AccId, BufRole, Def, Item, ValId};
use inrush_base::DType;
use inrush_loops::scalar::OpClass;
use inrush_loops::{ScalarOp, StoreMode};

/// Operations besides chained functions up to which a lanes loop handles two vectors at once.
const MOST_WITH_CHAINS: u32 = 24;
/// Operations and loads up to which a body is little more than a copy.
const LIKE_A_COPY: usize = 10;
/// Bytes of a cache line.
const LINE: u32 = 64;

/// Returns true if a value is a function that targets spell out instead of calling: a chain of dependent operations, which
/// leaves room for a second one in parallel.
fn is_chain(b: &Builder, v: ValId) -> bool {
    let value = &b.values[v.index()];
    matches!(&value.def, Def::Op { op: ScalarOp::Exp | ScalarOp::Exp2 | ScalarOp::Erf | ScalarOp::Tanh, .. }
        if value.dtype.compute() == DType::F32)
}

/// Returns the unroll factor of a lanes loop over an axis of the group, a divisor of 8. Loops around reductions have
/// independent accumulators; chained functions overlap; copies use more of each cache line at a time.
pub(super) fn of_group(g: &Group, width: u32) -> u32 {
    let b = g.b;
    let reduces = b.nests.iter().any(|n| !n.splits.is_empty());
    let local = |v: usize| match &b.values[v].def {
        Def::Load { buf, .. } => matches!(b.buffers[buf.index()].role, BufRole::Local { .. }),
        Def::Running { .. } => true,
        _ => false,
    };
    let alive = || g.live.alive();
    if alive().any(local) {
        return 1;
    }
    if !reduces {
        let chains = alive().any(|v| is_chain(b, ValId::from_index(v)));
        let ops = alive()
            .filter(|v| matches!(b.values[*v].def, Def::Op { .. }))
            .count();
        let overlaps = chains && ops as u32 <= MOST_WITH_CHAINS;
        return if overlaps || copies_lines(g, width) {
            2
        } else {
            1
        };
    }
    let ops: u32 = alive()
        .map(|v| match &b.values[v].def {
            Def::Op { op, .. } if op.class() == OpClass::Math => 16,
            Def::Const(_) | Def::Final(_) => 0,
            _ => 1,
        })
        .sum();
    let accs = alive()
        .filter(|v| matches!(b.values[*v].def, Def::Final(_)))
        .count() as u32;
    let copies = match ops {
        // Little more than loads: what counts is how much of each row comes at a time.
        0..=4 => 8,
        5..=12 => 4,
        13..=24 => 2,
        _ => 1,
    };
    // All accumulators in half of the registers.
    let room = 8 / accs.clamp(1, 8);
    copies.min(1 << room.ilog2())
}

/// Returns true if a body waits for memory alone: then both halves of a cache line are best read before either is written, as
/// stores between two loads of a line cost a fifth of the rate.
fn copies_lines(g: &Group, width: u32) -> bool {
    let b = g.b;
    let effects = || {
        let lists = b.nests.iter().zip(&g.live.effects);
        lists.flat_map(|(n, alive)| n.effects.iter().zip(alive).filter(|(_, a)| **a))
    };
    let half_a_line = effects().all(|(e, _)| match &e.kind {
        EffectKind::Store { buf, mode, .. } => {
            *mode == StoreMode::Set && b.buffers[buf.index()].dtype.size() as u32 * width < LINE
        }
        _ => true,
    });
    let mut work = 0;
    for v in g.live.alive() {
        match &b.values[v].def {
            Def::Op { op, .. } if op.class() == OpClass::Math => return false,
            Def::Indirect { .. } => return false,
            Def::Op { .. } | Def::Cast { .. } | Def::Load { .. } => work += 1,
            _ => {}
        }
    }
    half_a_line && work <= LIKE_A_COPY && b.nests.iter().all(|n| n.axes.is_empty())
}

/// Returns the unroll factor of a nest's own lanes loop over `items`, at depth `depth`: cheap bodies wait for the latency of
/// the accumulators' updates, functions for that of their own steps; others do not. `starts` are accumulators with the depths
/// at which they start.
pub(crate) fn of_nest(b: &Builder, items: &[Item], starts: &[(AccId, usize)], depth: usize) -> u32 {
    let mut ops = 0;
    let (mut chains, mut stores) = (false, false);
    for item in items {
        match item {
            Item::Let(v) if is_chain(b, *v) => chains = true,
            Item::Let(v) => {
                ops += match &b.values[v.index()].def {
                    Def::Op { op, .. } if op.class() == OpClass::Math => 16,
                    Def::Op { .. } | Def::Cast { .. } => 1,
                    Def::Load { .. } => 1,
                    _ => 0,
                }
            }
            Item::Update { .. } => ops += 1,
            Item::Acc(_) => {}
            Item::Store { .. } => stores = true,
            Item::Loop(_) => return 1,
        }
    }
    if chains {
        return match ops {
            0..=12 => 4,
            13..=MOST_WITH_CHAINS => 2,
            _ => 1,
        };
    }
    if stores || !starts.iter().any(|(_, s)| *s <= depth) {
        return 1;
    }
    match ops {
        0..=6 => 4,
        7..=12 => 2,
        _ => 1,
    }
}
