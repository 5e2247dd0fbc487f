//! Persistent products: a program for each multiprocessor, which takes pairs of tiles until none is left.
//!
//! ```text
//! for pair in tl.range(tl.program_id(0), ny * nx, PROGRAMS, flatten=True):
//!     ypid, xpair = ..                        pairs of neighbouring rows share columns in the cache
//!     acc = tl.zeros([YBLOCK, 2 * XBLOCK], tl.float32)
//!     for koffset in range(0, 4096, KBLOCK):
//!         lhs = desc0.load([ypid * YBLOCK, koffset])
//!         rhs = desc1.load([koffset, xpair * (2 * XBLOCK)])
//!         acc = tl.dot(lhs, rhs, acc)
//!     left, right = tl.split(..)              the two tiles
//!     acc, xpid = left, 2 * xpair
//!     ..                                      the epilogue
//!     acc, xpid = right, 2 * xpair + 1
//!     ..                                      the epilogue again
//! ```
//!
//! Triton flattens both loops, so that the pipeline loads the next pair's operands during the epilogue. Elements beyond the ends of
//! operands are zeros.

use crate::descriptors::Strided;
use crate::function::Emitter;
use inrush_base::{Caps, Error, Result};
use inrush_expr::{Expr, Exprs};
use inrush_kernel::block::{Block, Matrix, Operand, Product};

/// Tiles that a program takes at once.
const TILES: i64 = 2;

/// Returns the number of programs that a device runs at the same time.
pub(crate) fn programs(caps: &Caps) -> i64 {
    caps.gpu.as_ref().map_or(1, |g| g.multiprocessors as i64)
}

/// Returns the number of programs to launch: one for each tile, or at most one for each multiprocessor if they are persistent.
pub(crate) fn launched(ex: &Exprs, block: &Block, caps: &Caps) -> Expr {
    let persistent = block.product.as_ref().is_some_and(|p| p.persistent);
    let [.., y, x] = block.dims.as_slice() else {
        return block.programs;
    };
    if !persistent {
        return block.programs;
    }
    let rows = ex.ceildiv(y.extent, ex.int(y.block));
    let pairs = ex.ceildiv(x.extent, ex.int(TILES * x.block));
    ex.min(ex.mul(rows, pairs), ex.int(programs(caps)))
}

impl Emitter<'_> {
    /// Returns true if the block is a persistent product.
    pub(crate) fn is_persistent(&self) -> bool {
        self.block.product.as_ref().is_some_and(|p| p.persistent)
    }

    /// Writes the loop over pairs of tiles.
    pub(crate) fn persistent_product(&mut self, p: &Product) -> Result<()> {
        let (Some(matrices), &[.., rows, columns]) =
            (p.matrices(self.exprs, self.block), &*self.grid())
        else {
            return Err(Error::internal("a persistent product without tensor maps"));
        };
        let dims = [rows, columns].map(|i| self.block.dims[i]);
        let [a, b] = matrices;
        let a = operand(
            &p.a,
            a,
            [dims[0].extent, p.extent],
            [dims[0].block, p.block],
        );
        let across = [dims[1].extent, p.extent];
        let b = operand(&p.b, b, across, [TILES * dims[1].block, p.block]);
        let lhs = load(0, &a, ["ypid * YBLOCK", "koffset"], false);
        let rhs = load(1, &b, ["xpair * (2 * XBLOCK)", "koffset"], true);
        self.descriptors.extend([a, b]);
        self.describe(&self.block.items)?;

        let [ny, nx, extent] = [dims[0].extent, dims[1].extent, p.extent].map(|e| self.offset(e));
        self.line(format!("ny = tl.cdiv({}, YBLOCK)", ny?));
        self.line(format!("nx = tl.cdiv({}, 2 * XBLOCK)", nx?));
        for i in self.grid() {
            if !self.block.dims[i].is_tile() {
                let letter = self.letter(i);
                self.line(format!("{letter}pid = 0"));
            }
        }
        self.line("for pair in tl.range(tl.program_id(0), ny * nx, PROGRAMS, flatten=True):");
        let extent = extent?;
        self.indented(|e| {
            let group = p.group;
            e.line(format!("first = pair // ({group} * nx) * {group}"));
            e.line(format!("rows = tl.minimum(ny - first, {group})"));
            e.line(format!("ypid = first + pair % ({group} * nx) % rows"));
            e.line(format!("xpair = pair % ({group} * nx) // rows"));
            e.line("acc = tl.zeros([YBLOCK, 2 * XBLOCK], tl.float32)");
            e.line(format!("for koffset in range(0, {extent}, KBLOCK):"));
            e.indented(|e| {
                e.line(format!("lhs = {lhs}"));
                e.line(format!("rhs = {rhs}"));
                e.line("acc = tl.dot(lhs, rhs, acc)");
                Ok(())
            })?;
            e.line("halves = tl.permute(tl.reshape(acc, [YBLOCK, 2, XBLOCK]), 0, 2, 1)");
            e.line("left, right = tl.split(halves)");
            if e.block.wide {
                e.line("ypid = ypid.to(tl.int64)");
                e.line("xpair = xpair.to(tl.int64)");
            }
            for (tile, at) in [("left", "2 * xpair"), ("right", "2 * xpair + 1")] {
                e.line(format!("acc = {tile}"));
                e.line(format!("xpid = {at}"));
                e.points()?;
                e.names.values.clear();
                e.items(&e.block.items)?;
            }
            Ok(())
        })
    }
}

/// Returns an operand's tile: its side of the result by steps of `k`.
fn operand(o: &Operand, m: Matrix, extents: [Expr; 2], blocks: [i64; 2]) -> Strided {
    Strided {
        buf: o.buf,
        base: m.base,
        strides: m.strides.to_vec(),
        extents: extents.to_vec(),
        blocks: blocks.to_vec(),
        // The slow one first.
        order: if m.along_k { vec![0, 1] } else { vec![1, 0] },
    }
}

/// Spells the load of an operand by descriptor `at`. `begins`: along the side of the result and along `k`. With `by_k` the tile has
/// `k` first.
fn load(at: usize, s: &Strided, begins: [&str; 2], by_k: bool) -> String {
    let places: Vec<&str> = s.order.iter().map(|i| begins[*i]).collect();
    let text = format!("desc{at}.load([{}])", places.join(", "));
    match s.order.is_sorted() == by_k {
        true => format!("tl.permute({text}, 1, 0)"),
        false => text,
    }
}
