//! For tests: what a GPU would run for a program, written to a folder where `python/triton_check.py` builds it and runs it in
//! Triton's interpreter.
//!
//! A folder holds `index.json`, one Python module for each distinct kernel, and for each program that can be run its storages
//! before the call and the loop interpreter's results.

#![forbid(unsafe_code)]

mod program;
mod sources;

pub use program::{Given, Writer};
pub use sources::{archive, benchmarks, file_tests, operator_cases};

use inrush_base::{Caps, Error, Result};

/// Returns a target by the name of its device and, after a colon, of a preset: `cuda:h200`.
pub fn target(name: &str) -> Result<(&'static str, Caps)> {
    let devices = [&inrush_cuda::CUDA, &inrush_rocm::ROCM, &inrush_xpu::XPU];
    let (device, preset) = match name.split_once(':') {
        Some((d, p)) => (d, Some(p)),
        None => (name, None),
    };
    let found = devices.iter().find(|d| d.name == device);
    let caps = found.and_then(|d| Some((d.backend, d.caps(preset)?)));
    caps.ok_or_else(|| Error::input(format!("there is no GPU target `{name}`")))
}
