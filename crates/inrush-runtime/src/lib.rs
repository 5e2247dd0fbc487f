//! Runs programs: C builds, the content-addressed build cache, the executor, the model container.
//!
//! Does not know: any compiler crate. It is handed a program, C source (or a built object) and weights,
//! or a package of all three.

mod arena;
mod bind;
pub mod cache;
pub mod cache_kinds;
pub mod cache_limit;
mod cache_place;
pub mod cc;
mod checked;
mod contract;
pub mod dlpack;
mod exec;
mod hosted;
mod into;
mod library;
mod model;
pub mod operators;
mod package;
mod panels;
mod parts;
mod planned;
pub mod poison;
pub mod remote;
mod session;
mod signature;
pub mod tensor;
mod together;
#[cfg(unix)]
pub mod triton;
mod verify;
pub mod watch;
mod weights;

pub use bind::{check_guard, other_strides};
pub use exec::CallStats;
pub use hosted::{HostedOutput, Memory, View};
pub use inrush_cpu::{OpenMp, Pool};
pub use inrush_package::{Package, TREES};
pub use library::run_library;
pub use model::{Bound, Model, Parts};
pub use package::cpu_target;
pub use panels::panels_for;
pub use parts::{flow, has_dynamic, library_results, run_dynamic, segment_integers};
pub use planned::{CallPlan, CallShape, OutputPlace, PlannedInput, PlannedOutput};
pub use session::{Names, NewWeight, Session, Set, WeightSpec, check_update};
pub use signature::{Dim, InputKind, InputSpec, OutputSpec, Signature};
pub use tensor::{Storage, Tensor, Value, Writes};
pub use verify::verify_is_asked_for;
pub use weights::{MemoryWeights, Pairs, WeightSource, WeightView};
