//! The text form of block programs.
//!
//! ```text
//! size s0 in [1, 64] hint 8
//! block sum from o0 {
//!   x = t1 < 16*s0 by 1 grid exact
//!   r = t2 < 1000 by 1024 persistent
//!   sizes [s0]
//!   programs 16*s0 warps 4 stages 1
//!   tile x1y1r1024w4
//!   b0 = f32 b0 in
//!   b1 = f32 b1 out
//!   a0 = f32 sum
//!   f32[r] v0 = load b0[1000*x + r]
//!   update a0, v0
//!   f32 v1 = final a0
//!   store.set b1[x], v1
//! }
//! ```
//!
//! Each axis has a line: the name that expressions use for it, its symbol, its extent, the points that a program takes at
//! once, its role, and `exact` where no mask is needed. A dtype is followed by the dimensions of the tile that the value
//! spans. `b0 = f32 b7 in` is the program's first argument, the plan's buffer `b7`.

mod parse;
mod print;

pub use parse::parse;

use super::Block;
use crate::KBufId;
use inrush_expr::Exprs;

/// A line of a block program that an error can stand on.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Place {
    /// The header.
    Block,
    /// An axis, by position.
    Dim(usize),
    /// Number of programs, warps and stages.
    Launch,
    /// The chosen tile.
    Tile,
    Buffer(KBufId),
    /// The matrix product.
    Product,
    /// The operands of an attention.
    Attention,
    /// An item, counted as they are printed.
    Item(usize),
}

/// Prints a block program, without the declarations of size symbols.
pub fn print(exprs: &Exprs, block: &Block) -> String {
    print_with_notes(exprs, block, &[])
}

/// Prints declarations and all `blocks`; [`parse`] reads them back.
pub fn print_all<'a>(exprs: &Exprs, blocks: impl IntoIterator<Item = &'a Block>) -> String {
    let mut out = String::new();
    for line in exprs.show_decls() {
        out.push_str(&line);
        out.push('\n');
    }
    for b in blocks {
        out.push_str(&print(exprs, b));
    }
    out
}

/// Prints a block program with each note under its line, after a caret: how verifier reports are shown.
pub fn print_with_notes(exprs: &Exprs, block: &Block, notes: &[(Place, String)]) -> String {
    inrush_base::text::annotate(print::lines(exprs, block), notes)
}
