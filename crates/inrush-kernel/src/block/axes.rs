//! Which axes of a group become which axes of the tile.
//!
//! A tile has one or two shared axes and at most one own axis, while a group may have any number.
//! Axes that lose their place are *linearized*: one index counts their points in row-major order,
//! and accesses take quotients and remainders of it where neighbours do not join:
//!
//! ```text
//! n: 8, c: 32, h: 100 as x: 25600      c = x // 100 % 32, h = x % 100
//! offset 3200*n + 100*c + h            x: neighbours join, so that nothing is divided
//! ```
//!
//! Consecutive threads take consecutive points of `x`, so that `x` is the axis along which most
//! bytes are contiguous.

use crate::flatten::Flat;
use inrush_base::{Error, Result};
use inrush_expr::{Expr, SymMap};
use inrush_loops::{Axis, Body, BufId, Stmt};

/// How much memory traffic walks which axis in steps of one element, forwards or backwards: bytes, at the hints.
pub(crate) struct Strides {
    bytes: Vec<(Axis, f64)>,
}

impl Strides {
    /// Adds up the traffic of all accesses, those of locals left out.
    pub fn new(flat: &Flat, locals: &[BufId]) -> Strides {
        let ex = flat.exprs();
        let mut bytes: Vec<(Axis, f64)> = Vec::new();
        for body in &flat.bodies {
            for (buf, offset) in accesses(body) {
                if locals.contains(&buf) {
                    continue;
                }
                let syms = ex.free_syms(offset);
                // An axis that the access does not depend on repeats it: the caches take these.
                let used: Vec<&Axis> = body.axes.iter().filter(|a| syms.contains(&a.sym)).collect();
                let points: f64 = used.iter().map(|a| ex.hint(a.size).max(1) as f64).product();
                let size = flat.tables.buffers[buf.index()].dtype.size() as f64;
                for a in used {
                    // Backwards is as good as forwards: a warp reads the same lines.
                    if matches!(step(flat, offset, a), Some(1 | -1)) {
                        match bytes.iter_mut().find(|(x, _)| x == a) {
                            Some((_, b)) => *b += points * size,
                            None => bytes.push((*a, points * size)),
                        }
                    }
                }
            }
        }
        Strides { bytes }
    }

    /// Returns the bytes that walk an axis element by element.
    pub fn of(&self, axis: &Axis) -> f64 {
        (self.bytes.iter().find(|(a, _)| a == axis)).map_or(0.0, |(_, b)| *b)
    }
}

/// Iterates over buffers and offsets of all loads and stores.
fn accesses(body: &Body) -> impl Iterator<Item = (BufId, Expr)> {
    body.stmts.iter().filter_map(|s| match s {
        Stmt::Load { buf, coords, .. } | Stmt::Store { buf, coords, .. } => Some((*buf, coords[0])),
        _ => None,
    })
}

/// Elements between neighbours along `axis`, where that is a known number.
fn step(flat: &Flat, offset: Expr, axis: &Axis) -> Option<i64> {
    let ex = flat.exprs();
    let c = ex.coefficients(offset, &[axis.sym])?;
    ex.as_int(c[0])
}

/// The parallel axes as tile axes: `x` and, where another axis is contiguous too, `y`.
pub(crate) struct Tiles {
    pub x: Vec<Axis>,
    pub y: Vec<Axis>,
    /// Both axes deserve a side of the tile: a transposition.
    pub both: bool,
}

/// Shortest axis that gets a side of its own.
const SIDE: i64 = 8;
/// Shortest one for the fastest side: rows below that are what one thread stores, and need no tile to be gathered in.
const FASTEST: i64 = 16;

/// Chooses for a group without own axes.
pub(crate) fn pointwise(flat: &Flat, strides: &Strides) -> Tiles {
    let ex = flat.exprs();
    let mut shared = flat.shared.clone();
    let Some(last) = shared.last().copied() else {
        return Tiles {
            x: Vec::new(),
            y: Vec::new(),
            both: false,
        };
    };
    // The axis that most bytes are contiguous along goes fastest; the last one where there is a tie.
    let mut fastest = last;
    for a in shared.iter().rev() {
        if strides.of(a) > strides.of(&fastest) {
            fastest = *a;
        }
    }
    let total: f64 = shared.iter().map(|a| strides.of(a)).sum();
    let across = (shared.iter().copied())
        .filter(|a| *a != fastest && ex.hint(a.size) >= SIDE && strides.of(a) > 0.1 * total)
        .max_by(|a, b| strides.of(a).total_cmp(&strides.of(b)));
    shared.retain(|a| *a != fastest);
    match across {
        Some(side) if ex.hint(fastest.size) >= FASTEST => {
            shared.retain(|a| *a != side);
            shared.push(side);
            Tiles {
                x: vec![fastest],
                y: shared,
                both: true,
            }
        }
        _ => {
            shared.push(fastest);
            Tiles {
                x: shared,
                y: Vec::new(),
                both: false,
            }
        }
    }
}

/// One index for `axes` of all bodies, row-major; quotients and remainders of it where accesses do not walk several axes in
/// one stride.
pub(crate) fn linearize(flat: &mut Flat, axes: &[Axis], which: &dyn Fn(usize) -> bool) -> Axis {
    let ex = flat.exprs();
    let extent = ex.product(axes.iter().map(|a| a.size));
    if let [a] = axes {
        return *a;
    }
    let linear = flat.fresh(extent);
    linear_in(flat, axes, linear, which);
    linear
}

/// Makes `linear` stand for `axes` of the bodies for which `which` holds.
pub(crate) fn linear_in(
    flat: &mut Flat,
    axes: &[Axis],
    linear: Axis,
    which: &dyn Fn(usize) -> bool,
) {
    let ex = flat.exprs();
    let mut rest = axes.to_vec();
    while let Some(at) = (1..rest.len()).find(|i| {
        let (a, b) = (rest[i - 1], rest[*i]);
        let all = flat.bodies.iter().enumerate().filter(|(i, _)| which(*i));
        all.into_iter().all(|(_, body)| flat.joinable(body, &a, &b))
    }) {
        let joined = flat.join(rest[at - 1], rest[at], which);
        rest[at - 1] = joined;
        rest.remove(at);
    }
    let index = ex.sym_expr(linear.sym);
    let mut map = SymMap::default();
    let mut stride = ex.int(1);
    for (i, a) in rest.iter().enumerate().rev() {
        let quotient = ex.floordiv(index, stride);
        // The first axis needs no remainder.
        let value = if i == 0 {
            quotient
        } else {
            ex.modulo(quotient, a.size)
        };
        map.insert(a.sym, value);
        stride = ex.mul(stride, a.size);
    }
    flat.substitute(&map, which);
}

/// Makes `shared` (in any order) the group's axes.
pub(crate) fn set_shared(flat: &mut Flat, shared: Vec<Axis>) {
    let before = flat.shared.len();
    for body in &mut flat.bodies {
        let own = body.axes.split_off(before);
        body.outer = body.outer - before + shared.len();
        body.axes = shared.iter().copied().chain(own).collect();
    }
    flat.shared = shared;
}

/// A lone body shares all its parallel axes. Of a running reduction without a total, all axes but the last are parallel.
pub(crate) fn share_all(flat: &mut Flat) {
    let [body] = flat.bodies.as_mut_slice() else {
        return;
    };
    let has = |f: &dyn Fn(&Stmt) -> bool| body.stmts.iter().any(f);
    let scans = has(&Stmt::is_along_row);
    if scans && !has(&|s| matches!(s, Stmt::Reduce { .. })) {
        body.outer = body.axes.len().saturating_sub(1).max(body.outer);
    }
    flat.shared = body.axes[..body.outer].to_vec();
}

/// Gives all bodies one own axis; `None` when no body has own axes.
pub(crate) fn own(flat: &mut Flat) -> Result<Option<Axis>> {
    let ex = flat.exprs();
    let shared = flat.shared.len();
    let mut axis: Option<Axis> = None;
    for at in 0..flat.bodies.len() {
        let body = &flat.bodies[at];
        let own = body.axes[shared..].to_vec();
        if own.is_empty() {
            continue;
        }
        let parallel = body.outer - shared;
        if parallel != 0 && parallel != own.len() {
            return Err(Error::unsupported(
                "a kernel in which one body reduces at several points of its own",
            ));
        }
        let scans = body.stmts.iter().any(Stmt::is_along_row);
        if scans && own.len() > 1 {
            return Err(Error::unsupported(
                "a running reduction or sort along one of several axes of a fused kernel",
            ));
        }
        let extent = ex.product(own.iter().map(|a| a.size));
        let linear = match axis {
            Some(a) if ex.prove_eq(a.size, extent) => a,
            Some(_) => {
                return Err(Error::unsupported(
                    "a kernel whose bodies run over axes of different lengths",
                ));
            }
            None => flat.fresh(extent),
        };
        axis = Some(linear);
        linear_in(flat, &own, linear, &|i| i == at);
        let body = &mut flat.bodies[at];
        body.axes.truncate(shared);
        body.axes.push(linear);
        body.outer = shared + (parallel != 0) as usize;
    }
    Ok(axis)
}
