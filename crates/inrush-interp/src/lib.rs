//! Reference interpreters of graphs, loops and block programs: slow and obvious. They define what a
//! program means, and tests compare everything else with them.
//!
//! Does not know: how programs are scheduled, tiled or spelled.

#![forbid(unsafe_code)]

mod blocks;
mod graph;
mod index;
mod loops;
mod tensor;

pub use blocks::{BlockMemory, Spot, blocks};
pub use graph::{graph, knows};
pub use index::{Symbols, bind, check};
pub use loops::{LoopsOptions, loops};
pub use tensor::{Tensor, Value};
