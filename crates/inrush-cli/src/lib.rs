//! The `inrush` command as a library, so that benchmarks and tests call the same code.
//!
//! One module for each command (`run`, `compile` in `package`, `bench`, `explain`, `inspect`,
//! `doctor` and `cache`) and the parts that they share:
//!
//! ```text
//! args      the command line, as clap reads it
//! session   model file -> model that runs, with times
//! triton    the same for GPUs: programs and kernels
//! source    `compile --emit`: programs as source
//! device    a model on a GPU
//! targets   the targets of a package as text
//! io        safetensors files
//! compare   outputs against expected ones
//! operators operators that users define
//! out       standard output that may be closed early
//! progress  the spinner
//! ```
//!
//! A command returns an exit code, or an error whose kind decides it: 2 for input, 3 for the
//! machine, 4 for a fault of inrush. 1 means that the outputs of a run differ from the expected
//! ones.

pub mod args;
pub mod bench;
pub mod compare;
pub mod device;
pub mod doctor;
pub mod explain;
pub mod inspect;
pub mod io;
pub mod operators;
pub mod out;
pub mod package;
pub mod progress;
pub mod run;
pub mod session;
mod source;
mod targets;
mod triton;
