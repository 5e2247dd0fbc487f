//! Slow and obvious interpreters of graphs and loops. They say what a program means; everything else is measured by them.
//!
//! Does not know: code generation.

mod graph;
mod index;
mod loops;
mod tensor;

pub use graph::{graph, knows};
pub use index::{Symbols, bind, check};
pub use loops::{LoopsOptions, loops};
pub use tensor::{Tensor, Value};
