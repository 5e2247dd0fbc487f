//! Brings loops into the form that the other stages expect: mutations are copies, axes of size one are gone.

use inrush_base::{Error, Result, Scalar};
use inrush_expr::Exprs;
use inrush_loops::{Axis, Body, BufferKind, Loops, Node, Output, Stmt, StmtId, StoreMode};

use smallvec::SmallVec;

use crate::mixed_radix::substitute;
use inrush_expr::SymMap;

/// Makes each mutation a body that copies the new contents into the input, at the end, after every read of the
/// old contents.
pub(crate) fn mutations(loops: &mut Loops) -> Result<()> {
    for k in 0..loops.outputs.len() {
        let Output::Mutation { input, buffer } = loops.outputs[k] else {
            continue;
        };
        // The copy is there already.
        if input == buffer {
            continue;
        }
        let to = loops.buffer(input);
        if !matches!(
            to.kind,
            BufferKind::Input { .. } | BufferKind::Weight { .. }
        ) {
            return Err(Error::unsupported(format!(
                "mutation of `{}`, which is a view",
                to.name
            )));
        }
        let dtype = loops.buffer(buffer).dtype;
        if dtype != to.dtype || loops.buffer(buffer).sizes != to.sizes {
            return Err(Error::internal(format!(
                "the new contents of `{}` have another type",
                to.name
            )));
        }
        let axes: Vec<Axis> = to
            .sizes
            .iter()
            .enumerate()
            .map(|(d, size)| Axis {
                sym: loops.exprs.index_sym(d as u32, *size),
                size: *size,
            })
            .collect();
        let coords: inrush_loops::Coords =
            axes.iter().map(|a| loops.exprs.sym_expr(a.sym)).collect();
        let fill = Scalar::Int(0).convert(dtype.compute());
        // The copy belongs to the operator that made the new contents.
        let origins = loops
            .nodes
            .iter()
            .rev()
            .find(|n| n.writes().contains(&buffer))
            .map(|n| n.body().origins.clone())
            .unwrap_or_default();
        loops.nodes.push(Node::Body(Body {
            outer: axes.len(),
            axes,
            stmts: vec![
                Stmt::Load {
                    buf: buffer,
                    coords: coords.clone(),
                    mask: None,
                    fill,
                },
                Stmt::Store {
                    buf: input,
                    coords,
                    value: StmtId(0),
                    mode: StoreMode::Set,
                    mask: None,
                },
            ],
            origins,
        }));
        loops.outputs[k] = Output::Mutation {
            input,
            buffer: input,
        };
    }
    Ok(())
}

/// Replaces axes of size one by the index 0. A reduction over nothing but such axes is no reduction.
pub(crate) fn unit_axes(ex: &Exprs, body: &mut Body) {
    if !body.axes.iter().any(|a| ex.is_int(a.size, 1)) {
        return;
    }
    let scans = body.stmts.iter().any(Stmt::is_along_row);
    let keep: SmallVec<[bool; 8]> = body
        .axes
        .iter()
        .enumerate()
        // A scan or sort runs along its last axis even if that has one point.
        .map(|(k, a)| !ex.is_int(a.size, 1) || (scans && k >= body.outer))
        .collect();
    if keep.iter().all(|k| *k) {
        return;
    }
    let was_reduction = body.is_reduction();
    let map: SymMap = (body.axes.iter().zip(&keep))
        .filter(|(_, k)| !**k)
        .map(|(a, _)| (a.sym, ex.int(0)))
        .collect();
    body.outer = keep[..body.outer].iter().filter(|k| **k).count();
    let mut flags = keep.iter();
    body.axes.retain(|_| *flags.next().expect("one per axis"));
    substitute(ex, body, &map);
    if was_reduction && !body.is_reduction() {
        let mut same: Vec<StmtId> = body.ids().collect();
        for k in 0..body.stmts.len() {
            let stmt = &mut body.stmts[k];
            stmt.map_operands(|s| same[s.index()]);
            if let Stmt::Reduce { op, value, dtype } = *stmt {
                if op.is_arg() {
                    *stmt = Stmt::Const {
                        value: Scalar::Int(0),
                        dtype,
                    };
                } else {
                    same[k] = value;
                }
            }
        }
        // The reductions themselves are left without users.
        for (k, to) in same.iter().enumerate() {
            if to.index() != k {
                body.stmts[k] = Stmt::Const {
                    value: Scalar::Int(0),
                    dtype: inrush_base::DType::I64,
                };
            }
        }
        inrush_loops::builder::sweep(ex, body);
    }
}
