//! The epilogue of a contraction as a kernel over tiles of its result.
//!
//! A contraction hands over a tile of sums, `m0..m1` by `n0..n1`. The epilogue has one linear index
//! for each kind of axis:
//!
//! ```text
//! batch = b, m = (y, x), n = c; stores y[b, c, y, x] (NCHW)
//! lanes over columns     for m, for n by lanes                  a plane of the image for each lane
//! lanes over rows        for piece y, for n, for x by lanes     x is contiguous in the result
//! ```

use crate::build::Builder;
use crate::finish::{Choices, finish, origins};
use crate::flatten::Flat;
use crate::live::liveness;
use crate::nest::GroupLoop;
use crate::place::Placer;
use crate::vectorize;
use crate::{Access, Kernel, Kind, Pieces, Range, Role, access};
use inrush_base::tally::{Way, reached};
use inrush_base::{Caps, Error, Result};
use inrush_expr::SymMap;
use inrush_loops::{Axis, Contraction, Stmt, Tables};

/// Rows in one run of memory from which on lanes go over them.
const SHORTEST: i64 = 8;

/// Makes the kernel that turns tiles of sums into what the epilogue stores. Axes of each kind become one linear index.
pub fn tile_epilogue(tables: Tables, contraction: &Contraction, caps: &Caps) -> Result<Kernel> {
    let c = contraction;
    let axes: Vec<Axis> = (c.batch.iter().chain(&c.m).chain(&c.n)).copied().collect();
    let mut flat = Flat::new(tables, &axes, std::slice::from_ref(&c.epilogue))?;
    let batch = join(&mut flat, &c.batch);
    let batch = linearize(&mut flat, &batch);
    let mut rows = join(&mut flat, &c.m);
    let columns = join(&mut flat, &c.n);
    let row = stores_along(&flat, &rows, &columns)
        // The axis with contiguous stores stays apart: it gets the lanes, and other rows count
        // pieces.
        .then(|| rows.pop())
        .flatten();
    let m = linearize(&mut flat, &rows);
    let n = linearize(&mut flat, &columns);
    let shared: Vec<Axis> = [batch, m, n].into_iter().chain(row).collect();
    flat.shared = shared.clone();
    for body in &mut flat.bodies {
        body.axes = shared.clone();
        body.outer = shared.len();
    }
    let builder = Builder::new(&flat, &[])?;
    if !builder.checks.is_empty() {
        return Err(Error::unsupported(
            "an index that is checked at run time in the epilogue of a contraction",
        ));
    }
    let live = liveness(&builder);
    let lane = row.unwrap_or(n);
    let bit = builder.bits[&lane.sym];
    let kinds = vectorize::kinds(&builder, &live);
    let width = vectorize::width(caps, &kinds, bit);
    let mut choices = Choices::default();
    let mut role = Role::Serial;
    if width > 1 {
        choices.lane_width = Some(width);
        role = Role::Vector { width, unroll: 1 };
    }
    reached(match row {
        None => Way::EpilogueColumns,
        Some(_) => Way::EpilogueRows,
    });
    let a = |axis: Axis, range: Range, role: Role| GroupLoop { axis, range, role };
    let inner = match row {
        None => vec![a(m, Range::Rows, Role::Serial), a(n, Range::Columns, role)],
        Some(r) => vec![
            a(m, Range::Pieces(r.size), Role::Serial),
            a(n, Range::Columns, Role::Serial),
            a(r, Range::Piece(r.size), role),
        ],
    };
    let tree = Placer::new(&builder, &live, &[batch], &inner, None).run()?;
    let origins = origins(std::slice::from_ref(&c.epilogue));
    let kind = Kind::Epilogue {
        batch: batch.sym,
        m: m.sym,
        n: n.sym,
        pieces: row.map(|r| Pieces {
            row: r.sym,
            length: r.size,
        }),
    };
    let one = tables.exprs.int(1);
    Ok(finish(builder, tree, kind, origins, one, choices))
}

/// Returns true if stores are contiguous along the last axis of `rows` and not along `columns`, as in images (NCHW) whose channels
/// are columns: lanes over columns would write a cache line each.
fn stores_along(flat: &Flat, rows: &[Axis], columns: &[Axis]) -> bool {
    let (Some(r), Some(n)) = (rows.last(), columns.last()) else {
        return false;
    };
    let exprs = flat.exprs();
    let mut stores = flat
        .bodies
        .iter()
        .flat_map(|b| &b.stmts)
        .filter_map(|s| match s {
            Stmt::Store { coords, .. } => Some(coords[0]),
            _ => None,
        });
    let along = |at, a: &Axis| access(exprs, at, a.sym, |_| false) == Access::Contiguous;
    exprs.hint(r.size) >= SHORTEST && stores.all(|at| along(at, r) && !along(at, n))
}

/// Removes axes of one point and joins others: neighbours that accesses walk in one stride are one axis.
fn join(flat: &mut Flat, axes: &[Axis]) -> Vec<Axis> {
    let exprs = flat.exprs();
    let mut rest: Vec<Axis> = Vec::new();
    let mut unit = SymMap::default();
    for a in axes {
        if exprs.is_int(a.size, 1) {
            unit.insert(a.sym, exprs.int(0));
        } else {
            rest.push(*a);
        }
    }
    flat.substitute(&unit, |_| true);
    while let Some(at) = (1..rest.len()).find(|i| {
        let (a, b) = (rest[i - 1], rest[*i]);
        flat.bodies.iter().all(|body| flat.joinable(body, &a, &b))
    }) {
        let joined = flat.join(rest[at - 1], rest[at], |_| true);
        rest[at - 1] = joined;
        rest.remove(at);
    }
    rest
}

/// Makes one index for all of `axes`, row-major, which become quotients and remainders of it.
fn linearize(flat: &mut Flat, rest: &[Axis]) -> Axis {
    let exprs = flat.exprs();
    let extent = exprs.product(rest.iter().map(|a| a.size));
    let linear = flat.fresh(extent);
    let index = exprs.sym_expr(linear.sym);
    let mut map = SymMap::default();
    let mut stride = exprs.int(1);
    for (i, a) in rest.iter().enumerate().rev() {
        let quotient = exprs.floordiv(index, stride);
        // The first axis needs no remainder.
        let value = if i == 0 {
            quotient
        } else {
            exprs.modulo(quotient, a.size)
        };
        map.insert(a.sym, value);
        stride = exprs.mul(stride, a.size);
    }
    flat.substitute(&map, |_| true);
    linear
}
