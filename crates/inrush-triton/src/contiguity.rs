//! Rows whose elements move one at a time.
//!
//! Triton gives each thread as many neighbours as the widest access of a kernel takes in one instruction, and every other access
//! follows. The weights of a norm begin at multiples of 16 bytes; the rows that they scale begin anywhere where their length is
//! odd, and its mask, which changes at an odd place, keeps even the weights from moving as vectors. Each thread would then go
//! through its neighbours one by one, 16 bytes from those of the next thread: each instruction of a warp would touch four cache
//! lines for what lies in one, and layouts would be exchanged through shared memory.

use crate::function::Emitter;
use inrush_expr::Expr;
use inrush_kernel::Def;
use inrush_kernel::block::{BlockItem, DimRole};

/// The largest power of two, up to `most`, that divides `e`.
fn divisor(e: &Emitter, of: Expr, most: i64) -> i64 {
    let ex = e.exprs;
    let mut n = most;
    while n > 1 && !ex.is_int(ex.modulo(of, ex.int(n)), 0) {
        n /= 2;
    }
    n
}

/// Neighbours that a thread is to have in a block whose tile is a stretch of one row, where Triton would give it more than move
/// at once.
pub(crate) fn neighbours(e: &Emitter) -> Option<i64> {
    let at = (e.block.reduced()).filter(|_| e.tile_dims().len() == 1)?;
    let d = e.block.dims[at];
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
            let begin = ex.sub(offset, ex.sym_expr(d.sym));
            found.push((grid(offset), lanes, divisor(e, begin, lanes)));
        }
    }
    let rows: Vec<_> = found.iter().filter(|f| f.0).collect();
    if rows.iter().any(|(_, lanes, n)| n.min(&masked) == lanes) {
        return None;
    }
    let moved = rows.iter().map(|f| f.2.min(masked)).max()?;
    let given = found.iter().map(|f| f.2).max()?;
    (moved < given).then_some(moved)
}

/// Offsets of loads and stores, with the sizes of elements.
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
