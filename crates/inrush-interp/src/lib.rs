//! Reference interpreters of graphs, loops and block programs: slow and obvious. They define what a
//! program means, and tests compare everything else with them.
//!
//! Does not know: how programs are scheduled, tiled or spelled.
//!
//! Three levels have an interpreter, so that a wrong result can be traced to the stage that made
//! it:
//!
//! ```text
//! Graph  -> graph()    operators from their definitions    what PyTorch means
//! Loops  -> loops()    statements at every point           what lowering, fusion and splits made
//! blocks -> blocks()   lanes of tiles, program by program  what stage tile made for GPUs
//! ```
//!
//! Kernels for CPUs have none: their C code is compiled and run. `loops` runs the result of stage
//! fuse too, since that is again a list of bodies and contractions over buffers.
//!
//! Speed does not matter here, and clarity does. Elements are scalars of one enum, coordinates
//! are lists, and each access is checked. `inrush_loops::eval` gives the value of a scalar
//! operation; all interpreters share it, and operators of graphs that need more are written out
//! in `graph`.

#![forbid(unsafe_code)]

mod blocks;
mod graph;
mod index;
mod loops;
mod softmax;
mod tensor;

pub use blocks::{BlockMemory, Spot, blocks};
pub use graph::{graph, graph_with, knows};
pub use index::{Symbols, bind, check};
pub use loops::{LoopsOptions, loops};
pub use tensor::{Tensor, Value};
