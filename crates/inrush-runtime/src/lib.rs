//! Runs programs: C builds, the content-addressed build cache, the executor, the model container.
//!
//! Does not know: any compiler crate. It is handed a program, C source (or a built object) and weights.

mod arena;
mod bind;
pub mod cache;
pub mod cc;
mod contract;
mod exec;
mod model;
mod planned;
pub mod tensor;
#[cfg(unix)]
pub mod triton;
mod weights;

pub use exec::CallStats;
pub use inrush_cpu::Pool;
pub use model::{Bound, Model, Parts};
pub use planned::{CallPlan, CallShape, OutputPlace, PlannedInput, PlannedOutput};
pub use tensor::{Storage, Tensor, Value};
pub use weights::{MemoryWeights, WeightSource, WeightView};

/// Whether a shared library is on this machine and has a symbol (given with its final zero).
///
/// # Safety
/// The library's initialisers run.
pub unsafe fn has_symbol(library: &str, symbol: &[u8]) -> bool {
    // SAFETY: by the caller's contract; the symbol is not called.
    unsafe { libloading::Library::new(library).is_ok_and(|l| l.get::<*const ()>(symbol).is_ok()) }
}
