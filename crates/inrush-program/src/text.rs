//! The text form of programs: `inrush inspect --stage wrap`.
//!
//! ```text
//! program mlp
//! symbol s0 in [1, 64] = input 0 dim 0
//! size z0 = 3
//! size z1 = s0
//! size z2 = 3 * s0
//! input 0 x: f32[s0, 3] strides [3, 1]
//! guard s0 <= 3 "the batch is small"
//! b0 x: f32 z2 bytes = input 0
//! b1 y: f32 z2 bytes written = output 0
//! kernel k0 relu_0123 relu checks []
//! arena 0 bytes
//! load arena 0 bytes
//! launch k0 [b0, b1] sizes [s0] units z2 cost 8 scratch 0 from [relu]
//! output 0: b1 f32[s0, 3] strides [3, 1]
//! ```
//!
//! Sizes are lines of arithmetic. Where one is used it stands as `z2`; a constant or a symbol stands for the first line
//! that holds it. Steps that run at load bear the word `load`. A program in parts has a block `parts` after its outputs, see `parts.rs`.

mod parse;
mod parts;
mod print;

pub use parse::parse;

use crate::{Program, Reads, Relation, Size, SizeId};
use std::fmt;

/// A line of the text form that an error can stand on. Steps are counted from the first that runs at load.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Place {
    Symbol(usize),
    Size(usize),
    Input(usize),
    Guard(usize),
    Buffer(usize),
    Arena,
    LoadArena,
    Step(usize),
    Output(usize),
}

/// Names of the assumptions about an input's memory that are stronger than the default.
const READS: [(Reads, &str); 2] = [(Reads::Memory, "memory"), (Reads::Storage, "storage")];

const RELATIONS: [(Relation, &str); 4] = [
    (Relation::Eq, "=="),
    (Relation::Ne, "!="),
    (Relation::Le, "<="),
    (Relation::Lt, "<"),
];

impl Program {
    /// Prints the text form; [`parse`] reads it back.
    pub fn print(&self) -> String {
        let mut out = String::new();
        for (_, line) in print::lines(self) {
            out.push_str(&line);
            out.push('\n');
        }
        out
    }

    /// A size as an expression over symbols, for messages. What nests too deeply is left out.
    pub fn show_size(&self, id: SizeId) -> String {
        self.show_nested(id, 0)
    }

    fn show_nested(&self, id: SizeId, depth: usize) -> String {
        if depth > 8 {
            return "..".into();
        }
        let show = |id| self.show_nested(id, depth + 1);
        match self.sizes.get(id.0 as usize).copied() {
            None => format!("z{}", id.0),
            Some(Size::Const(v)) => v.to_string(),
            Some(Size::Sym(s)) => {
                let symbol = self.symbols.get(s as usize);
                symbol.map_or_else(|| format!("symbol {s}"), |s| s.name.clone())
            }
            Some(Size::Add(a, b)) => format!("({} + {})", show(a), show(b)),
            Some(Size::Mul(a, b)) => format!("({} * {})", show(a), show(b)),
            Some(Size::FloorDiv(a, b)) => format!("({} // {})", show(a), show(b)),
            Some(Size::Mod(a, b)) => format!("({} % {})", show(a), show(b)),
            Some(Size::Min(a, b)) => format!("min({}, {})", show(a), show(b)),
            Some(Size::Max(a, b)) => format!("max({}, {})", show(a), show(b)),
        }
    }

    /// The line of one place.
    pub fn print_place(&self, place: Place) -> Option<String> {
        let mut lines = print::lines(self).into_iter();
        lines.find(|(p, _)| *p == Some(place)).map(|(_, l)| l)
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.print())
    }
}
