//! Order and number of the loops of a kernel: contiguous access innermost, neighbours merged where memory allows.
//!
//! The *main* access is the largest store, or else the largest load: its strides order the loops,
//! so that memory is walked in one direction. The axis that makes most accesses contiguous goes
//! innermost, for vectors. Then neighbours `x, y` that every access walks as one (`stride(x) =
//! stride(y) * extent(y)`) become one axis.

use inrush_expr::{Expr, Exprs, Position, Sym};
use inrush_loops::{Axis, Body, BufId, Buffer, Stmt};
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

use crate::Group;
use crate::layout::{accesses, position, stride};
use crate::mixed_radix::substitute;
use inrush_expr::SymMap;
use inrush_loops::builder::ordered_reduction;

/// The strides of one access, or of one index expression, along the loops.
struct Use {
    position: Expr,
    /// Bytes of the buffer, at the hints.
    weight: i64,
    store: bool,
    /// An index expression: no memory, but merging must keep its value.
    value: bool,
}

/// Reorders and merges the axes of a kernel whose buffers all have layouts. With `one_tile` all bodies go over the points of one
/// tile, as programs of GPUs do: what one keeps for another must be read at the place at which it was written.
pub(crate) fn arrange(ex: &Exprs, buffers: &[Buffer], mut group: Group, one_tile: bool) -> Group {
    let shared = group.axes.len();
    let uses: Vec<Vec<Use>> = (group.bodies.iter())
        .map(|b| uses(ex, buffers, b))
        .collect();
    let all: Vec<&Use> = uses.iter().flatten().collect();
    let inner = group.bodies.iter().any(|b| b.axes.len() > shared);
    let order = order(ex, &group.axes, &all, !inner);
    group.axes = order;
    let before: Vec<Vec<Axis>> = (group.bodies.iter())
        .map(|b| b.axes[shared..].to_vec())
        .collect();
    for (body, uses) in group.bodies.iter_mut().zip(&uses) {
        let own: Vec<&Use> = uses.iter().collect();
        let mut axes = group.axes.clone();
        let outer = body.outer;
        axes.extend(self::order(ex, &body.axes[shared..outer], &own, true));
        if ordered_reduction(body) {
            axes.extend(&body.axes[outer..]);
        } else {
            axes.extend(self::order(ex, &body.axes[outer..], &own, true));
        }
        body.axes = axes;
    }
    if one_tile && !group.locals.is_empty() && !reads_where_written(ex, &group) {
        for (body, own) in group.bodies.iter_mut().zip(before) {
            body.axes.truncate(shared);
            body.axes.extend(own);
        }
    }
    merge(ex, &mut group, &uses);
    rename(ex, &mut group);
    group
}

/// Returns true if all bodies access each local at the same place of the tile, which counts through their own axes.
fn reads_where_written(ex: &Exprs, group: &Group) -> bool {
    let shared = group.axes.len();
    let mut at: FxHashMap<BufId, Vec<Expr>> = FxHashMap::default();
    group.bodies.iter().all(|body| {
        let own = &body.axes[shared..];
        let size = ex.product(own.iter().map(|a| a.size));
        let place = ex.sym_expr(ex.sym_at(Position::Fresh(0), size));
        let mut map = SymMap::default();
        let mut stride = ex.int(1);
        for a in own.iter().rev() {
            map.insert(a.sym, ex.modulo(ex.floordiv(place, stride), a.size));
            stride = ex.mul(stride, a.size);
        }
        accesses(body)
            .filter(|(buf, ..)| group.locals.contains(buf))
            .all(|(buf, coords, _)| {
                let here: Vec<Expr> = coords.iter().map(|c| ex.subst(*c, &map)).collect();
                *at.entry(buf).or_insert_with(|| here.clone()) == here
            })
    })
}

/// Lists the accesses and index expressions of a body.
fn uses(ex: &Exprs, buffers: &[Buffer], body: &Body) -> Vec<Use> {
    body.stmts
        .iter()
        .filter_map(|s| match s {
            Stmt::Load { buf, coords, .. } | Stmt::Store { buf, coords, .. } => {
                let b = &buffers[buf.index()];
                let elements = b.sizes.iter().fold(b.dtype.size() as i64, |p, s| {
                    p.saturating_mul(ex.hint(*s).max(0))
                });
                Some(Use {
                    position: position(ex, buffers, *buf, coords)?,
                    weight: elements,
                    store: matches!(s, Stmt::Store { .. }),
                    value: false,
                })
            }
            Stmt::Index { expr, .. } => Some(Use {
                position: *expr,
                weight: 0,
                store: false,
                value: true,
            }),
            _ => None,
        })
        .collect()
}

/// Axes outermost first: by the strides of the main access, with the cheapest axis for vectors innermost if `lanes`.
fn order(ex: &Exprs, axes: &[Axis], uses: &[&Use], lanes: bool) -> Vec<Axis> {
    if axes.len() < 2 {
        return axes.to_vec();
    }
    let distance = |u: &Use, a: &Axis| -> i64 {
        stride(ex, u.position, a.sym).map_or(i64::MAX, |s| ex.hint(s).saturating_abs())
    };
    // Accesses of memory, with how far each moves along each axis.
    let memory: Vec<(&Use, SmallVec<[i64; 6]>)> = (uses.iter())
        .filter(|u| !u.value)
        .map(|u| (*u, axes.iter().map(|a| distance(u, a)).collect()))
        .collect();
    let main = (memory.iter())
        .filter(|(_, moves)| moves.iter().any(|d| *d != 0))
        .max_by_key(|(u, _)| (u.store, u.weight));
    let Some((_, main)) = main else {
        return axes.to_vec();
    };
    let mut out: Vec<usize> = (0..axes.len()).collect();
    // An axis that the main access does not move along goes by the largest access that does.
    let key = |k: usize| -> i64 {
        match main[k] {
            0 => (memory.iter())
                .filter(|(_, moves)| moves[k] != 0)
                .max_by_key(|(u, _)| u.weight)
                .map_or(0, |(_, moves)| moves[k]),
            d => d,
        }
    };
    out.sort_by_cached_key(|k| (std::cmp::Reverse(key(*k)), *k));
    if lanes {
        // Cost of having the axis innermost: strided accesses, stores twice.
        let cost = |k: usize| -> i64 {
            (memory.iter())
                .map(|(u, moves)| match moves[k] {
                    0 | 1 => 0,
                    _ => u.weight.saturating_mul(1 + u.store as i64),
                })
                .fold(0i64, |x, y| x.saturating_add(y))
        };
        // Ties keep the innermost one.
        let best = (0..out.len()).rev().min_by_key(|at| cost(out[*at]));
        if let Some(at) = best {
            let x = out.remove(at);
            out.push(x);
        }
    }
    out.into_iter().map(|k| axes[k]).collect()
}

/// Merges neighbouring axes that every access of their scope walks as one.
fn merge(ex: &Exprs, group: &mut Group, uses: &[Vec<Use>]) {
    let mut used: FxHashSet<Sym> = group
        .bodies
        .iter()
        .flat_map(|b| {
            let indirect = b.stmts.iter().filter_map(|s| match s {
                Stmt::Indirect { sym, .. } => Some(*sym),
                _ => None,
            });
            b.axes.iter().map(|a| a.sym).chain(indirect)
        })
        .collect();
    let shared = group.axes.len();
    let mut positions: Vec<Vec<Expr>> = uses
        .iter()
        .map(|u| u.iter().map(|u| u.position).collect())
        .collect();
    let mut apply = |bodies: &mut [Body], positions: &mut [Vec<Expr>], x: Axis, y: Axis| -> Axis {
        let size = ex.mul(x.size, y.size);
        let sym = (0..)
            .map(|p| ex.index_sym(p, size))
            .find(|s| used.insert(*s))
            .expect("positions are endless");
        let m = ex.sym_expr(sym);
        let map = SymMap::from_iter([
            (x.sym, ex.floordiv(m, y.size)),
            (y.sym, ex.modulo(m, y.size)),
        ]);
        for (body, list) in bodies.iter_mut().zip(positions) {
            substitute(ex, body, &map);
            list.iter_mut().for_each(|p| *p = ex.subst(*p, &map));
        }
        Axis { sym, size }
    };
    // Shared axes: every body must agree.
    let mut k = 0;
    while k + 1 < group.axes.len() {
        let (x, y) = (group.axes[k], group.axes[k + 1]);
        if !positions.iter().flatten().all(|p| walks(ex, *p, x, y)) {
            k += 1;
            continue;
        }
        let new = apply(&mut group.bodies, &mut positions, x, y);
        group.axes.splice(k..k + 2, [new]);
        for b in &mut group.bodies {
            b.axes.splice(k..k + 2, [new]);
            b.outer -= 1;
        }
    }
    let gone = shared - group.axes.len();
    let shared = shared - gone;
    // Axes of one body.
    for (b, list) in group.bodies.iter_mut().zip(&mut positions) {
        let scans = b.stmts.iter().any(Stmt::is_along_row);
        let mut k = shared;
        while k + 1 < b.axes.len() {
            let (x, y) = (b.axes[k], b.axes[k + 1]);
            let same_class = (k + 1 < b.outer) || k >= b.outer;
            let scanned = scans && k + 1 >= b.outer;
            if !same_class || scanned || !list.iter().all(|p| walks(ex, *p, x, y)) {
                k += 1;
                continue;
            }
            let new = apply(std::slice::from_mut(b), std::slice::from_mut(list), x, y);
            b.outer -= (k < b.outer) as usize;
            b.axes.splice(k..k + 2, [new]);
        }
    }
}

/// Returns true if a position moves along `x` as it would by running past the end of `y`.
fn walks(ex: &Exprs, position: Expr, x: Axis, y: Axis) -> bool {
    match ex.coefficients(position, &[x.sym, y.sym]) {
        Some(c) => ex.prove_eq(c[0], ex.mul(c[1], y.size)),
        None => false,
    }
}

/// Numbers the symbols of each body: shared axes from 0, its own axes after them; indirect indices from 0.
fn rename(ex: &Exprs, group: &mut Group) {
    let shared = group.axes.len();
    let fresh: Vec<Axis> = group
        .axes
        .iter()
        .enumerate()
        .map(|(k, a)| Axis {
            sym: ex.index_sym(k as u32, a.size),
            size: a.size,
        })
        .collect();
    for b in &mut group.bodies {
        let mut map = SymMap::default();
        let mut put = |old: Sym, new: Sym| {
            if old != new {
                map.insert(old, ex.sym_expr(new));
            }
        };
        for (k, a) in b.axes.iter_mut().enumerate() {
            let new = ex.index_sym(k as u32, a.size);
            put(a.sym, new);
            a.sym = new;
        }
        let mut next = 0;
        for s in &mut b.stmts {
            if let Stmt::Indirect { sym, size, .. } = s {
                let new = ex.sym_at(Position::Indirect(next), *size);
                next += 1;
                put(*sym, new);
                *sym = new;
            }
        }
        substitute(ex, b, &map);
        debug_assert!(b.axes[..shared] == fresh[..]);
    }
    group.axes = fresh;
}
