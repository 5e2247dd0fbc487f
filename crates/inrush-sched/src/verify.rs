//! The verifier of plans: rules of the level, checked from scratch.

use inrush_base::{Error, Result};
use inrush_expr::{Expr, Sym};
use inrush_loops::{BufId, BufferKind, Stmt};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;

use crate::text::Line;
use crate::{Group, Place, Plan, Step};

/// Checks a plan: its nodes are valid loops in a valid order, kernels keep the rule of one outer point, locals stay local,
/// no two live buffers share storage,
/// and no two elements of what is written.
pub fn verify(plan: &Plan) -> Result<()> {
    inrush_loops::verify::verify_scheduled(&plan.to_loops())?;
    rules(plan).map_err(|p| {
        Error::internal(format!(
            "the plan of `{}` breaks a rule: {}\n{}",
            plan.loops.name,
            p.message,
            plan.print_with_notes(&[(p.line, p.message.clone())])
        ))
    })
}

/// A broken rule and the line of the text form that it stands on.
struct Problem {
    line: Line,
    message: String,
}

type Checked = std::result::Result<(), Problem>;

/// Checks kernels, then locals, places, and memory once it is planned.
fn rules(plan: &Plan) -> Checked {
    for (k, step) in plan.load_steps.iter().chain(&plan.steps).enumerate() {
        if let Step::Kernel(g) = step {
            kernel(plan, k, g)?;
        }
    }
    local_use(plan)?;
    places(plan)?;
    match plan.memory.arena_bytes {
        Some(_) => memory(plan),
        None => Ok(()),
    }
}

/// Makes a problem of a line.
fn broken(line: Line, what: impl Into<String>) -> Problem {
    Problem {
        line,
        message: what.into(),
    }
}

/// Checks one kernel: its bodies begin with its axes, and meet in memory at the same point of these
/// only.
fn kernel(plan: &Plan, at: usize, g: &Group) -> Checked {
    let ex = &plan.loops.exprs;
    let outer: Vec<Sym> = g.axes.iter().map(|a| a.sym).collect();
    for (k, b) in g.bodies.iter().enumerate() {
        if b.axes.get(..g.axes.len()) != Some(&g.axes[..]) || b.outer < g.axes.len() {
            return Err(broken(
                Line::Body(at, k),
                "the body does not start with the kernel's axes",
            ));
        }
    }
    // Accesses to each buffer that one body writes and another touches.
    let mut all: BTreeMap<BufId, Vec<(usize, bool, &inrush_loops::Coords)>> = BTreeMap::new();
    for (k, b) in g.bodies.iter().enumerate() {
        for s in &b.stmts {
            match s {
                Stmt::Load { buf, coords, .. } => {
                    all.entry(*buf).or_default().push((k, false, coords))
                }
                Stmt::Store { buf, coords, .. } => {
                    all.entry(*buf).or_default().push((k, true, coords))
                }
                _ => {}
            }
        }
    }
    for (buf, uses) in &all {
        if g.locals.contains(buf) {
            for (_, _, coords) in uses {
                let syms = coords.iter().flat_map(|c| ex.free_syms(*c));
                if syms.into_iter().any(|s| outer.contains(&s)) {
                    return Err(broken(
                        Line::Step(at),
                        format!("the local {buf} is indexed by an outer axis"),
                    ));
                }
            }
            continue;
        }
        let strict = uses.iter().any(|u| u.1);
        let bodies = uses
            .iter()
            .map(|u| u.0)
            .collect::<std::collections::BTreeSet<_>>();
        if !strict || bodies.len() < 2 {
            continue;
        }
        // Every axis of the kernel must be pinned by dimensions that are the same function of the outer point everywhere.
        for a in g.axes.iter().filter(|a| !ex.is_int(a.size, 1)) {
            let pinned = (0..uses[0].2.len()).any(|d| {
                let first = uses[0].2[d];
                let syms = ex.free_syms(first);
                syms.contains(&a.sym)
                    && syms.iter().all(|s| outer.contains(s) || !ex.is_index(*s))
                    && uses.iter().all(|u| u.2[d] == first)
            });
            // Digits of one dimension may mix outer and inner axes after loops were merged; those were proved when the
            // kernel was formed.
            let mixes = |c: Expr| {
                let syms = ex.free_syms(c);
                let inner = |s: &Sym| ex.is_index(*s) && !outer.contains(s);
                syms.contains(&a.sym) && syms.iter().any(inner)
            };
            let mixed = uses.iter().all(|u| u.2.iter().any(|c| mixes(*c)));
            if !pinned && !mixed {
                return Err(broken(
                    Line::Step(at),
                    format!("bodies touch {buf} at different points of an outer axis"),
                ));
            }
        }
    }
    Ok(())
}

/// No result that a step writes may have two elements in one place.
fn places(plan: &Plan) -> Checked {
    for (k, step) in plan.load_steps.iter().chain(&plan.steps).enumerate() {
        for b in step.writes() {
            let buffer = plan.loops.buffer(b);
            if let Some(l) = &buffer.layout
                && plan.loops.exprs.overlaps(&buffer.sizes, &l.strides)
            {
                return Err(broken(
                    Line::Step(k),
                    format!("{b} is written, and elements of it share a place"),
                ));
            }
        }
    }
    Ok(())
}

/// Locals belong to one kernel.
fn local_use(plan: &Plan) -> Checked {
    let mut owner: FxHashMap<BufId, usize> = FxHashMap::default();
    let steps = || plan.load_steps.iter().chain(&plan.steps).enumerate();
    for (k, step) in steps() {
        if let Step::Kernel(g) = step {
            for l in &g.locals {
                if owner.insert(*l, k).is_some() {
                    return Err(broken(
                        Line::Step(k),
                        format!("{l} is local to two kernels"),
                    ));
                }
                if plan.loops.buffer(*l).kind != BufferKind::Temp {
                    return Err(broken(
                        Line::Step(k),
                        format!("the local {l} is no temporary"),
                    ));
                }
            }
        }
    }
    for (k, step) in steps() {
        for b in step.reads().into_iter().chain(step.writes()) {
            if owner.get(&b).is_some_and(|o| *o != k) {
                return Err(broken(
                    Line::Step(k),
                    format!("the step uses the local {b} of another"),
                ));
            }
        }
    }
    Ok(())
}

/// Buffers that live together do not overlap; what shares bytes in place says so.
fn memory(plan: &Plan) -> Checked {
    let ex = &plan.loops.exprs;
    let loads = plan.load_steps.len();
    let n = plan.loops.buffers.len();
    let mut from = vec![usize::MAX; n];
    let mut to = vec![0; n];
    for (k, step) in plan.steps.iter().enumerate() {
        for b in step.reads().into_iter().chain(step.writes()) {
            let b = plan.loops.storage(b);
            if plan.memory.places[b.index()] == Place::Unused {
                return Err(broken(
                    Line::Step(loads + k),
                    format!("the step uses {b}, which has no place"),
                ));
            }
            from[b.index()] = from[b.index()].min(k);
            to[b.index()] = to[b.index()].max(k);
        }
    }
    let placed: Vec<_> = (0..n)
        .filter_map(|k| match plan.memory.places[k] {
            Place::Arena {
                offset,
                bytes,
                in_place_of,
            } => Some((k, offset, bytes, in_place_of)),
            _ => None,
        })
        .collect();
    for (i, a) in placed.iter().enumerate() {
        let need = ex.mul(
            ex.product(plan.loops.buffers[a.0].sizes.iter().copied()),
            ex.int(plan.loops.buffers[a.0].dtype.size() as i64),
        );
        if !ex.prove_le(need, a.2) {
            return Err(broken(
                Line::Place(BufId::from_index(a.0)),
                format!("b{} does not fit its bytes", a.0),
            ));
        }
        for b in &placed[i + 1..] {
            let apart_in_time = to[a.0] < from[b.0] || to[b.0] < from[a.0];
            if apart_in_time {
                continue;
            }
            let apart = ex.prove_le(ex.add(a.1, a.2), b.1) || ex.prove_le(ex.add(b.1, b.2), a.1);
            let taken = |x: usize, y: Option<BufId>| y == Some(BufId::from_index(x));
            let in_place = (taken(a.0, b.3) && to[a.0] == from[b.0])
                || (taken(b.0, a.3) && to[b.0] == from[a.0]);
            if !apart && !in_place {
                return Err(broken(
                    Line::Place(BufId::from_index(b.0)),
                    format!("b{} and b{} share bytes", a.0, b.0),
                ));
            }
        }
    }
    Ok(())
}
