//! Contiguity: how many neighbours of a row a thread should have, so that accesses of a warp are coalesced.
//!
//! Triton gives each thread as many neighbours as the widest access of a kernel takes in one instruction, and every other access
//! follows. The weights of a norm begin at multiples of 16 bytes. The rows that they scale begin anywhere where their length is
//! odd, and the mask of such rows, which changes at an odd place, keeps even the weights from moving as vectors:
//!
//! ```text
//! element    0 1 2 3  4 5 6 7  8 ..
//! 4 a thread t0       t1       t2        each instruction of a warp: elements 0, 4, 8, .. in four cache lines
//! 1 a thread t0 t1 t2 t3 ..              elements 0, 1, 2, .. in one
//! ```
//!
//! With four neighbours a layout would also be exchanged through shared memory between accesses of different width.

use crate::function::Emitter;
use inrush_expr::Expr;
use inrush_kernel::Def;
use inrush_kernel::block::{BlockItem, DimRole};

/// Returns the largest power of two, up to `most`, that divides `e`.
fn divisor(e: &Emitter, of: Expr, most: i64) -> i64 {
    let ex = e.exprs;
    let mut n = most;
    while n > 1 && !ex.is_int(ex.modulo(of, ex.int(n)), 0) {
        n /= 2;
    }
    n
}

/// Returns the neighbours that a thread should have in a block whose tile is a part of one row, where Triton would give it more
/// than one instruction moves.
pub(crate) fn neighbours(e: &Emitter) -> Option<i64> {
    let at = (e.block.reduced()).filter(|_| e.tile_dims().len() == 1)?;
    let d = e.block.dims[at];
    // Neighbours up to the mask's change: a vector must not cross the end of the row.
    let masked = match d.exact {
        true => 16,
        false => divisor(e, d.extent, 16),
    };
    let ex = e.exprs;
    let grid = |offset: Expr| {
        let mut dims = e.block.dims.iter();
        dims.any(|g| g.role == DimRole::Grid && ex.contains_sym(offset, g.sym))
    };
    let mut accesses = Vec::new();
    collect(e, &e.block.items, &mut accesses);
    // Whether each program has a row of its own, elements of 16 bytes, and how many of them the address allows.
    let mut found: Vec<(bool, i64, i64)> = Vec::new();
    for (offset, bytes) in accesses {
        let along = ex.coefficients(offset, &[d.sym]);
        if along.is_some_and(|c| ex.is_int(c[0], 1)) {
            let lanes = 16 / bytes.clamp(1, 16);
            // Rows begin where `r` is zero.
            let begin = ex.sub(offset, ex.sym_expr(d.sym));
            found.push((grid(offset), lanes, divisor(e, begin, lanes)));
        }
    }
    let rows: Vec<_> = found.iter().filter(|f| f.0).collect();
    // Some row moves as whole vectors: Triton's own choice is right.
    if rows.iter().any(|(_, lanes, n)| n.min(&masked) == lanes) {
        return None;
    }
    let moved = rows.iter().map(|f| f.2.min(masked)).max()?;
    let given = found.iter().map(|f| f.2).max()?;
    (moved < given).then_some(moved)
}

/// Offsets of loads and stores, with the sizes of elements.
/// Appends the accesses of walks too.
fn collect(e: &Emitter, items: &[BlockItem], out: &mut Vec<(Expr, i64)>) {
    let bytes = |b: inrush_kernel::KBufId| e.block.buffers[b.index()].dtype.size() as i64;
    for item in items {
        match item {
            BlockItem::Loop(w) => collect(e, &w.body, out),
            BlockItem::Let(v) => {
                if let Def::Load { buf, offset, .. } = e.block.value(*v).def {
                    out.push((offset, bytes(buf)));
                }
            }
            BlockItem::Store(s) => out.push((s.offset, bytes(s.buf))),
            _ => {}
        }
    }
}
