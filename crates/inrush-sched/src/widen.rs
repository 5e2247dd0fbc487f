//! Long sums: `f32` terms are added in `f64`.
//!
//! A running sum of n terms loses up to log2(n) bits; eager PyTorch sums in a cascade and loses almost none. Such reductions
//! are bound by memory, so wider additions cost nothing.

use inrush_base::DType;
use inrush_loops::{Body, Loops, Node, ReduceOp, Stmt, StmtId};

/// Elements up to which a sum is left as it is; a group of a normalisation has as many.
pub(crate) const LONG: i64 = 1 << 16;

/// Widens the long sums of all nodes.
pub(crate) fn widen_sums(loops: &mut Loops) {
    let Loops { nodes, exprs, .. } = loops;
    for node in nodes {
        let Node::Body(body) = node else { continue };
        let long = body
            .reduction_axes()
            .iter()
            .fold(1i64, |n, a| n.saturating_mul(exprs.hint(a.size).max(0)))
            > LONG;
        if long && body.stmts.iter().any(is_narrow_sum) {
            widen(body);
        }
    }
}

pub(crate) fn is_narrow_sum(s: &Stmt) -> bool {
    matches!(
        s,
        Stmt::Reduce {
            op: ReduceOp::Sum,
            dtype: DType::F32,
            ..
        }
    )
}

/// Every narrow sum becomes cast, sum, cast; later statements move.
fn widen(body: &mut Body) {
    let mut map: Vec<StmtId> = Vec::with_capacity(body.stmts.len());
    let mut out: Vec<Stmt> = Vec::with_capacity(body.stmts.len() + 4);
    for mut s in std::mem::take(&mut body.stmts) {
        s.map_operands(|v| map[v.index()]);
        if let (true, Stmt::Reduce { op, value, .. }) = (is_narrow_sum(&s), &s) {
            let (op, value) = (*op, *value);
            let wide = StmtId::from_index(out.len());
            out.push(Stmt::Cast {
                arg: value,
                to: DType::F64,
            });
            out.push(Stmt::Reduce {
                op,
                value: wide,
                dtype: DType::F64,
            });
            s = Stmt::Cast {
                arg: StmtId::from_index(out.len() - 1),
                to: DType::F32,
            };
        }
        map.push(StmtId::from_index(out.len()));
        out.push(s);
    }
    body.stmts = out;
}
