//! Runs programs: C builds, the content-addressed build cache, the executor, the model container.
//!
//! Does not know: any compiler crate. It is handed a program, C source (or a built object) and weights.

pub mod cache;
pub mod cc;
pub mod tensor;

pub use tensor::{Storage, Tensor, Value};
