//! The product of queries and keys becomes part of the attention that weighs values by its scores.
//!
//! Lowering writes the product as a contraction, the scores as bodies that read it, and an attention that reads the scores.
//! Inlining has moved the bodies into the attention. If the scores read the product at their own row and key only, the
//! attention computes it itself, and no element for each row and key is left in memory:
//!
//! ```text
//! before                                          after
//! contraction: s[b, m, k] = sum over d q * k      attention { query, key
//! attention { product = s                           v0: f32 = acc
//!   v0: f32 = load s[b, m, k]                       ..
//!   .. }                                          }
//! ```

use inrush_base::DType;
use inrush_expr::Exprs;
use inrush_loops::{Attention, Loops, Node, Stmt};

use crate::deps::drop_dead;

/// Replaces products in memory by those that attentions compute, and drops contractions that have no reader left.
pub(crate) fn inline_products(loops: &mut Loops) {
    let mut nodes = std::mem::take(&mut loops.nodes);
    let mut inlined = false;
    for node in &mut nodes {
        if let Node::Attention(a) = node {
            inlined |= inline_product(&loops.exprs, a);
        }
    }
    if inlined {
        drop_dead(loops, &mut nodes);
    }
    loops.nodes = nodes;
}

/// Reads the product from the attention itself, if the scores read it at their own point only.
fn inline_product(ex: &Exprs, a: &mut Attention) -> bool {
    let Some(product) = a.product else {
        return false;
    };
    let own: Vec<_> = (a.scores.axes.iter())
        .map(|x| {
            if ex.is_int(x.size, 1) {
                ex.int(0)
            } else {
                ex.sym_expr(x.sym)
            }
        })
        .collect();
    let at_own_point = |s: &Stmt| match s {
        Stmt::Load {
            buf, coords, mask, ..
        } if *buf == product => {
            let unit = |(c, x): (&_, &inrush_loops::Axis)| *c == ex.sym_expr(x.sym);
            let same = coords.iter().zip(&own).zip(&a.scores.axes);
            mask.is_none() && same.into_iter().all(|((c, o), x)| c == o || unit((c, x)))
        }
        _ => true,
    };
    if !a.scores.stmts.iter().all(at_own_point) {
        return false;
    }
    for s in &mut a.scores.stmts {
        if matches!(s, Stmt::Load { buf, .. } if *buf == product) {
            *s = Stmt::Acc { dtype: DType::F32 };
        }
    }
    a.product = None;
    true
}
