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
use inrush_loops::{Attended, Attention, Axis, Loops, Node, Stmt};

use crate::deps::drop_dead;

/// Replaces products in memory by those that attentions compute, and drops contractions that have no reader left.
pub(crate) fn inline_products(loops: &mut Loops) {
    let mut nodes = std::mem::take(&mut loops.nodes);
    let mut inlined = false;
    for node in &mut nodes {
        if let Node::Attention(a) = node {
            for of in 0..a.products().len() {
                inlined |= inline_product(&loops.exprs, a, of);
            }
        }
    }
    if inlined {
        drop_dead(loops, &mut nodes);
    }
    loops.nodes = nodes;
}

/// Reads product `of` from the attention itself, if the scores read it at their own point only.
fn inline_product(ex: &Exprs, a: &mut Attention, of: usize) -> bool {
    let Some(product) = a.products()[of] else {
        return false;
    };
    let mut axes: Vec<Axis> = a.scores.axes.clone();
    if a.gradients().is_some_and(|g| g.exchanged) {
        // Products are over batch, k, m.
        let rank = axes.len();
        axes.swap(rank - 2, rank - 1);
    }
    let own: Vec<_> = (axes.iter())
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
            let unit = |(c, x): (&_, &Axis)| *c == ex.sym_expr(x.sym);
            let same = coords.iter().zip(&own).zip(&axes);
            mask.is_none() && same.into_iter().all(|((c, o), x)| c == o || unit((c, x)))
        }
        _ => true,
    };
    if !a.scores.stmts.iter().all(at_own_point) {
        return false;
    }
    for s in &mut a.scores.stmts {
        if matches!(s, Stmt::Load { buf, .. } if *buf == product) {
            *s = Stmt::Acc {
                dtype: DType::F32,
                of: of as u8,
            };
        }
    }
    match &mut a.results {
        Attended::Gradients(g) if of == 1 => g.product = None,
        _ => a.product = None,
    }
    true
}
