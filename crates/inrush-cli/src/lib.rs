//! The `inrush` command as a library, so that benchmarks and tests call the same code.

pub mod args;
pub mod bench;
pub mod compare;
pub mod device;
pub mod doctor;
pub mod explain;
pub mod inspect;
pub mod io;
pub mod out;
pub mod package;
pub mod progress;
pub mod run;
pub mod session;
