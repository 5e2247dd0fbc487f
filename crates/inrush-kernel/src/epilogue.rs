//! The epilogue of a contraction as a kernel over tiles of its result.

use crate::build::Builder;
use crate::flatten::Flat;
use crate::lanes::{self, Lanes};
use crate::tile::{GroupLoop, Placer, finish, liveness, origins};
use crate::{Kernel, Kind, Range, Role};
use inrush_base::{Caps, Error, Result};
use inrush_expr::SymMap;
use inrush_loops::{Axis, Contraction, Tables};

/// Makes the kernel that turns tiles of sums into what the epilogue stores. Axes of each kind become one linear index.
pub fn tile_epilogue(tables: Tables, contraction: &Contraction, caps: &Caps) -> Result<Kernel> {
    let c = contraction;
    let axes: Vec<Axis> = (c.batch.iter().chain(&c.m).chain(&c.n)).copied().collect();
    let mut flat = Flat::new(tables, &axes, std::slice::from_ref(&c.epilogue))?;
    let linear = [
        linearize(&mut flat, &c.batch),
        linearize(&mut flat, &c.m),
        linearize(&mut flat, &c.n),
    ];
    let [batch, m, n] = linear;
    flat.shared = linear.to_vec();
    for body in &mut flat.bodies {
        body.axes = linear.to_vec();
        body.outer = 3;
    }
    let builder = Builder::new(&flat, &[])?;
    if !builder.checks.is_empty() {
        return Err(Error::unsupported(
            "an index that is checked at run time in the epilogue of a contraction",
        ));
    }
    let live = liveness(&builder);
    let bit = builder.bits[&n.sym];
    let width = lanes::width(caps, &lanes::kinds(&builder, &live), bit);
    let (choice, role) = if width < 2 {
        (Lanes::None, Role::Serial)
    } else {
        (
            Lanes::Shared { axis: 2, width },
            Role::Lanes { width, unroll: 1 },
        )
    };
    let inner = [
        GroupLoop {
            axis: m,
            range: Range::Rows,
            role: Role::Serial,
        },
        GroupLoop {
            axis: n,
            range: Range::Columns,
            role,
        },
    ];
    let tree = Placer::new(&builder, &live, &[batch], &inner, None).run()?;
    let origins = origins(std::slice::from_ref(&c.epilogue));
    let kind = Kind::Epilogue {
        batch: batch.sym,
        m: m.sym,
        n: n.sym,
    };
    let one = tables.exprs.int(1);
    finish(builder, tree, kind, origins, one, choice)
}

/// One index for all of `axes`, row-major. Where accesses walk several axes in one stride nothing is left of them;
/// otherwise they are quotients and remainders of the linear index.
fn linearize(flat: &mut Flat, axes: &[Axis]) -> Axis {
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
