//! Persistent products: one program for each multiprocessor takes tiles until none is left. The loads of the next tile overlap with
//! the epilogue of the last one, and the copy engine (TMA) of Hopper loads the operands.
//!
//! ```text
//! tiles      0 1 | 2 3 | 4 5 | 6 7 | ..     a program takes pairs of neighbours in a row
//! program 0  0 1         4 5                the sums of both are one accumulator
//! program 1        2 3         6 7          the epilogue takes one after the other, so that its tile is half as large
//! ```

use super::{Block, DimRole, Operand, Product};
use crate::BufRole;
use inrush_base::{DType, Gpu};
use inrush_expr::{Expr, Exprs, Sym};

/// An operand as a matrix in memory.
#[derive(Clone, PartialEq, Debug)]
pub struct Matrix {
    /// Offset of the first element.
    pub base: Expr,
    /// Strides along the side of the result, and along `k`. One of them is 1.
    pub strides: [Expr; 2],
    /// Elements that follow each other in memory follow each other along `k`.
    pub along_k: bool,
}

impl Product {
    /// Returns both operands as matrices that tensor maps describe; `None` where one of them is none.
    pub fn matrices(&self, ex: &Exprs, block: &Block) -> Option<[Matrix; 2]> {
        let [batch @ .., y, x] = block.dims.as_slice() else {
            return None;
        };
        if !batch.iter().all(|d| ex.is_int(d.extent, 1)) {
            return None;
        }
        let engine = |o: &Operand, side: Sym| {
            let b = &block.buffers[o.buf.index()];
            let halves = matches!(b.dtype, DType::F16 | DType::BF16);
            // The copy engine bypasses the caches through which a kernel writes.
            (halves && b.role == BufRole::In).then(|| matrix(ex, o, side, self.k))?
        };
        let known = |e: Expr| ex.range(e).lo > 0 && ex.range(e).hi <= i32::MAX as i64;
        let whole = (block.dims.iter()).all(|d| d.role == DimRole::Grid && known(d.extent));
        (whole && known(self.extent))
            .then(|| Some([engine(&self.a, y.sym)?, engine(&self.b, x.sym)?]))?
    }
}

/// Returns an operand as a matrix of halves that the copy engine takes.
fn matrix(ex: &Exprs, o: &Operand, side: Sym, k: Sym) -> Option<Matrix> {
    let (strides, base) = ex.affine(o.offset, &[side, k])?;
    let strides = [strides[0], strides[1]];
    let lanes = ex.int(Gpu::COPY_BYTES / 2);
    let whole = |e: Expr| ex.is_int(ex.modulo(e, lanes), 0);
    let (along_k, far) = match strides.map(|s| ex.is_int(s, 1)) {
        [false, true] => (true, strides[0]),
        [true, false] => (false, strides[1]),
        _ => return None,
    };
    let fits = whole(far) && ex.range(far).lo > 0;
    // What the rest depends on is known to the launch.
    let known = !ex.free_syms(base).iter().any(|s| ex.is_index(*s));
    (fits && known && whole(base)).then_some(Matrix {
        base,
        strides,
        along_k,
    })
}
