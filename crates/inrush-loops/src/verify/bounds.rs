//! Accesses in bounds, by range analysis.
//!
//! A masked access is skipped: the mask is what keeps it in bounds, and ranges do not see it. An
//! indirect index has the range of its extent, which the run-time check or the mask enforces. So
//! the list holds accesses that are neither proved nor guarded.

use crate::text::Place;
use crate::*;

/// An access with a coordinate that is not proved to be in `0..size`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unproven {
    pub place: Place,
    pub buf: BufId,
    /// Dimension of the buffer.
    pub dim: usize,
    /// The coordinate in it.
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
        if let Node::Attention(a) = node
            && ![a.d, a.n].iter().any(never)
        {
            for x in a.accesses() {
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

/// Adds the coordinates of one access that are not proved.
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
