//! Accesses in bounds, by range analysis.

use crate::text::Place;
use crate::*;

/// An access with a coordinate that is not proved to be in `0..size`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unproven {
    pub place: Place,
    pub buf: BufId,
    pub dim: usize,
    pub coord: Expr,
}

pub(super) fn unproven(p: &Loops) -> Vec<Unproven> {
    let mut out = Vec::new();
    for (k, node) in p.nodes.iter().enumerate() {
        // A nest of zero points accesses nothing.
        let never = |a: &Axis| p.exprs.is_int(a.size, 0);
        if node.body().axes.iter().any(never) {
            continue;
        }
        if let Node::Contraction(c) = node
            && !c.k.iter().any(never)
        {
            for x in [&c.a, &c.b] {
                access(p, Place::Node(k), x.buf, &x.coords, &mut out);
            }
        }
        for s in node.body().ids() {
            match node.body().stmt(s) {
                Stmt::Load {
                    buf,
                    coords,
                    mask: None,
                    ..
                }
                | Stmt::Store {
                    buf,
                    coords,
                    mask: None,
                    ..
                } => {
                    access(p, Place::Stmt(k, s), *buf, coords, &mut out);
                }
                _ => {}
            }
        }
    }
    out
}

fn access(p: &Loops, place: Place, buf: BufId, coords: &[Expr], out: &mut Vec<Unproven>) {
    let ex = &p.exprs;
    for (dim, (c, n)) in coords.iter().zip(&p.buffer(buf).sizes).enumerate() {
        if !(ex.prove_nonneg(*c) && ex.prove_lt(*c, *n)) {
            out.push(Unproven {
                place,
                buf,
                dim,
                coord: *c,
            });
        }
    }
}
