//! Reference interpreters of graphs and loops: slow and obvious. They define what a program means,
//! and tests compare everything else with them.
//!
//! Does not know: code generation.

#![forbid(unsafe_code)]

mod graph;
mod index;
mod loops;
mod tensor;

pub use graph::{graph, knows};
pub use index::{Symbols, bind, check};
pub use loops::{LoopsOptions, loops};
pub use tensor::{Tensor, Value};
