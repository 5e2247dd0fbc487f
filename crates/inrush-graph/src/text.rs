//! The text form of graphs.
//!
//! ```text
//! graph mlp
//! size s0 in [1, 64] hint 8
//! line0: "model.py:12 in forward"
//! %0 x: f32[s0, 3] = input 0
//! %1 w: f32[4, 3] = parameter fc.weight
//! %2 t: f32[3, 4] strides [1, 3] = aten.t.default(%1) at line0
//! %3 mm: f32[s0, 4] = aten.mm.default(%0, %2) at line0
//! output 0: %3
//! ```
//!
//! Values are numbered by appearance; what no line defines is not printed. Strides are written unless they are row-major.
//! A value's name may be left out. ` for aten.take.default` at the end of a call is the operator that its errors name.

mod parse;
mod print;

pub use parse::parse;

use crate::{Graph, NodeId};

/// A line of the text form that an error can stand on.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Place {
    Program,
    Input(usize),
    Node(NodeId),
    Guard(usize),
    Output(usize),
}

impl Graph {
    /// Prints the text form; [`parse`] reads it back.
    pub fn print(&self) -> String {
        self.print_with_notes(&[])
    }

    /// Returns the text form with each note under its line, after a caret. Verifier reports use it.
    pub fn print_with_notes(&self, notes: &[(Place, String)]) -> String {
        inrush_base::text::annotate(print::lines(self), notes)
    }
}

/// Names of the assumptions about an input's memory that are stronger than the default.
const READS: [(crate::Reads, &str); 2] = [
    (crate::Reads::Memory, "memory"),
    (crate::Reads::Storage, "storage"),
];

const FORMATS: [(crate::MemoryFormat, &str); 4] = [
    (crate::MemoryFormat::Contiguous, "contiguous"),
    (crate::MemoryFormat::ChannelsLast, "channels_last"),
    (crate::MemoryFormat::ChannelsLast3d, "channels_last_3d"),
    (crate::MemoryFormat::Preserve, "preserve"),
];

const RELATIONS: [(crate::Relation, &str); 4] = [
    (crate::Relation::Eq, "=="),
    (crate::Relation::Ne, "!="),
    (crate::Relation::Le, "<="),
    (crate::Relation::Lt, "<"),
];

impl std::fmt::Display for Graph {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.print())
    }
}
