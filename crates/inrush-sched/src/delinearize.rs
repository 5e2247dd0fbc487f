//! Splits axes whose quotients and remainders occur in coordinates, so that the divisions vanish: with `i0 // 64` and
//! `i0 % 64` the axis `i0` becomes two.

use inrush_base::Result;
use inrush_expr::{Expr, Exprs, Node as E, Sym};
use inrush_loops::{Axis, Node, Stmt};
use smallvec::SmallVec;

use crate::mixed_radix::{Split, split_axis};

/// Splits every axis of the node that it helps to split.
pub(crate) fn delinearize(ex: &Exprs, node: &mut Node) -> Result<()> {
    if !matches!(node, Node::Body(_)) {
        return Ok(());
    }
    // Each split removes a pattern; patterns are few, and the bound only guards against a rule that undoes another.
    for _ in 0..16 {
        let Some(split) = find(ex, node) else {
            return Ok(());
        };
        split_axis(ex, node, &split)?;
    }
    Ok(())
}

/// Returns the first split that removes a quotient or remainder. The last axis of a scan or sort
/// stays whole.
fn find(ex: &Exprs, node: &Node) -> Option<Split> {
    let body = node.body();
    let scans = body.stmts.iter().any(Stmt::is_along_row);
    let axes = if scans {
        body.outer_axes()
    } else {
        &body.axes[..]
    };
    for stmt in &body.stmts {
        for e in stmt.exprs() {
            if let Some(s) = pattern(ex, *e, axes) {
                return Some(s);
            }
        }
    }
    None
}

/// A quotient or remainder of an axis by a divisor of its extent.
fn pattern(ex: &Exprs, e: Expr, axes: &[Axis]) -> Option<Split> {
    if ex.as_sym(e).is_some() || ex.as_int(e).is_some() {
        return None;
    }
    match ex.node(e) {
        E::Const(_) | E::Sym(_) => None,
        E::Sum { terms, .. } => terms.iter().find_map(|(_, t)| pattern(ex, *t, axes)),
        E::Product(f) => f.iter().find_map(|t| pattern(ex, *t, axes)),
        E::Min(a, b) | E::Max(a, b) => pattern(ex, a, axes).or_else(|| pattern(ex, b, axes)),
        E::FloorDiv(a, b) | E::Mod(a, b) => {
            let hit = ex
                .as_sym(a)
                .and_then(|s: Sym| axes.iter().find(|x| x.sym == s))
                .and_then(|x| {
                    let high = ex.divide_exact(x.size, b)?;
                    // A split by the whole extent or by one changes nothing.
                    (!ex.is_int(high, 1) && !ex.is_int(b, 1)).then(|| Split {
                        axis: x.sym,
                        sizes: SmallVec::from_slice(&[high, b]),
                    })
                });
            hit.or_else(|| pattern(ex, a, axes))
                .or_else(|| pattern(ex, b, axes))
        }
    }
}
