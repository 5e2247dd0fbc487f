//! For tests: what a GPU would run for a program, written to a folder where `python/triton_check.py` builds it and runs it in
//! Triton's interpreter.
//!
//! A folder holds `index.json`, one Python module for each distinct kernel, and for each program that can be run its storages
//! before the call and the loop interpreter's results.

#![forbid(unsafe_code)]

mod program;
mod run;
mod sources;

pub use program::{Given, Writer};
pub use sources::{archive, benchmarks, file_tests, operator_cases};

use inrush_base::{Caps, Result};

/// Returns the kernel compiler's name of a target's back end, and the target's capabilities.
///
/// # Errors
/// An input error for names that no device has.
pub fn target(name: &str) -> Result<(&'static str, Caps)> {
    let (device, caps) = inrush_devices::target(name)?;
    Ok((device.backend, caps))
}
