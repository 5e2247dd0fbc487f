//! The text form of loops.
//!
//! ```text
//! loops softmax inputs 1
//! size s0 in [1, 64] hint 8
//! origin o0: aten.softmax.int softmax at "model.py:12"
//! b0 x: f32[s0, 10] = input 0
//! b1 m: f32[s0, 1] = temp
//! body [i0: s0] reduce [i1: 10] from o0 {
//!   v0: f32 = load b0[i0, i1]
//!   v1: f32 = reduce.max v0
//!   store b1[i0, 0] = v1
//! }
//! output b1
//! ```
//!
//! Statement ids are positions: a line that defines no value still counts.

mod parse;
mod print;

pub use parse::{Reader, parse};
pub use print::{axes, lines, node};

use crate::{BufId, Loops, StmtId};

/// A line of the text form that an error can stand on.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Place {
    /// The header.
    Program,
    Buffer(BufId),
    /// Line that opens the node of this position.
    Node(usize),
    Stmt(usize, StmtId),
    Output(usize),
}

impl Loops {
    /// Prints the text form; [`parse`] reads it back.
    pub fn print(&self) -> String {
        let mut out = String::new();
        for (_, line) in print::lines(self) {
            out.push_str(&line);
            out.push('\n');
        }
        out
    }

    /// Returns the text form with each note under its line, after a caret. Verifier reports use it.
    pub fn print_with_notes(&self, notes: &[(Place, String)]) -> String {
        inrush_base::text::annotate(print::lines(self), notes)
    }
}

impl std::fmt::Display for Loops {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.print())
    }
}
