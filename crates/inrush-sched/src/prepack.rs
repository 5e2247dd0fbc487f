//! Small tensors that a kernel would gather across its vector lanes, and reads many times, are laid out so that lanes are
//! contiguous: weights once, at load; inputs (a weight is one where the caller may change it) at the start of a call.

use inrush_base::Scalar;
use inrush_loops::{Axis, Body, BufId, Buffer, BufferKind, Loops, Stmt, StmtId, StoreMode};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::layout::{accesses, set, step};
use crate::{Group, Step, loop_order};

/// Elements above which a second copy of a weight costs more than gathers.
const LARGEST: i64 = 1 << 20;

/// Reads of each element from which on a copy pays: one at load is free, one at each call is not.
const READS_OF_WEIGHT: i64 = 4;
const READS_OF_INPUT: i64 = 32;

/// Copies what pays, and lets the kernels read the copies.
pub(crate) fn small(loops: &mut Loops, steps: &mut Vec<Step>, load_steps: &mut Vec<Step>) {
    let mut copies: FxHashMap<(BufId, usize), BufId> = FxHashMap::default();
    let mut first = Vec::new();
    // A copy of a buffer that a step writes would go stale.
    let mutated: Vec<BufId> = steps.iter().flat_map(|s| s.writes()).collect();
    let mutated: FxHashSet<BufId> = mutated.into_iter().collect();
    for step in steps.iter_mut() {
        let Step::Kernel(g) = step else { continue };
        for body in &mut g.bodies {
            // Which axis runs over lanes, while that stays so.
            let mut known: Option<Option<Axis>> = None;
            for at in 0..body.stmts.len() {
                let Stmt::Load { buf, .. } = body.stmts[at] else {
                    continue;
                };
                if mutated.contains(&buf) {
                    continue;
                }
                let lane = || *known.get_or_insert_with(|| lane(loops, body));
                let Some(lane) = gathered(loops, body, at, lane) else {
                    continue;
                };
                let copy = *copies.entry((buf, lane)).or_insert_with(|| {
                    let at_load = matches!(loops.buffer(buf).kind, BufferKind::Weight { .. });
                    let to = if at_load {
                        &mut *load_steps
                    } else {
                        &mut first
                    };
                    copy(loops, buf, lane, body, to)
                });
                if let Stmt::Load { buf, .. } = &mut body.stmts[at] {
                    *buf = copy;
                    known = None;
                }
            }
        }
    }
    steps.splice(0..0, first);
}

/// The dimension of a tensor that should be contiguous for this load: the kernel's vectors run along it.
fn gathered(
    loops: &Loops,
    body: &Body,
    at: usize,
    lane: impl FnOnce() -> Option<Axis>,
) -> Option<usize> {
    let ex = &loops.exprs;
    let Stmt::Load { buf, coords, .. } = &body.stmts[at] else {
        return None;
    };
    let b = loops.buffer(*buf);
    let reads = match b.kind {
        BufferKind::Weight { .. } => READS_OF_WEIGHT,
        BufferKind::Input { .. } => READS_OF_INPUT,
        _ => return None,
    };
    let elements = b
        .sizes
        .iter()
        .try_fold(1i64, |p, s| p.checked_mul(ex.as_int(*s)?))?;
    let times = body
        .axes
        .iter()
        .fold(1i64, |p, a| p.saturating_mul(ex.hint(a.size).max(0)));
    // Each element has to be read often enough to pay for its copy.
    if elements > LARGEST || times / reads < elements {
        return None;
    }
    let lane = lane()?;
    let moves = step(ex, &loops.buffers, *buf, coords, lane.sym)?;
    if ex.is_int(moves, 0) || ex.is_int(moves, 1) {
        return None;
    }
    // One dimension moves with the lane, by one.
    let mut dims = (0..coords.len()).filter(|d| ex.contains_sym(coords[*d], lane.sym));
    let d = dims.next()?;
    let moves = ex.coefficients(coords[d], &[lane.sym])?[0];
    (dims.next().is_none() && ex.is_int(moves, 1)).then_some(d)
}

/// The axis along which the largest buffer of the body is contiguous.
fn lane(loops: &Loops, body: &Body) -> Option<Axis> {
    let ex = &loops.exprs;
    let size = |b: BufId| {
        loops
            .buffer(b)
            .sizes
            .iter()
            .fold(1i64, |p, s| p.saturating_mul(ex.hint(*s).max(0)))
    };
    let (buf, coords, _) = accesses(body)
        .filter(|a| !matches!(loops.buffer(a.0).kind, BufferKind::Weight { .. }))
        // The largest is what vectors should run along, so it never asks for a copy of itself.
        .max_by_key(|a| (size(a.0), a.2))?;
    let step = |a: &Axis| step(ex, &loops.buffers, buf, coords, a.sym);
    body.axes
        .iter()
        .find(|a| step(a).is_some_and(|s| ex.is_int(s, 1)))
        .copied()
}

/// A temporary with the dimension innermost, filled by a step of its own.
fn copy(loops: &mut Loops, buf: BufId, lane: usize, user: &Body, steps: &mut Vec<Step>) -> BufId {
    let from = loops.buffer(buf).clone();
    let new = BufId::from_index(loops.buffers.len());
    loops.buffers.push(Buffer {
        name: format!("{}.lanes", from.name),
        kind: BufferKind::Temp,
        layout: None,
        ..from.clone()
    });
    let rank = from.sizes.len();
    set(loops, new, (0..rank).filter(|d| *d != lane).chain([lane]));
    let ex = &loops.exprs;
    let axes: Vec<Axis> = from
        .sizes
        .iter()
        .enumerate()
        .map(|(d, size)| Axis {
            sym: ex.index_sym(d as u32, *size),
            size: *size,
        })
        .collect();
    let coords: inrush_loops::Coords = axes.iter().map(|a| ex.sym_expr(a.sym)).collect();
    let body = Body {
        outer: rank,
        axes: axes.clone(),
        stmts: vec![
            Stmt::Load {
                buf,
                coords: coords.clone(),
                mask: None,
                fill: Scalar::Int(0).convert(from.dtype.compute()),
            },
            Stmt::Store {
                buf: new,
                coords,
                value: StmtId(0),
                mode: StoreMode::Set,
                mask: None,
            },
        ],
        origins: user.origins.first().copied().into_iter().collect(),
    };
    let mut body = body;
    crate::canonicalize::unit_axes(ex, &mut body);
    let group = Group {
        axes: body.axes.clone(),
        bodies: vec![body],
        locals: Vec::new(),
    };
    let group = loop_order::arrange(ex, &loops.buffers, group, false);
    steps.push(Step::Kernel(group));
    new
}
