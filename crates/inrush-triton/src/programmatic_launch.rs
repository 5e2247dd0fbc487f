//! Programmatic dependent launch: the device prepares a kernel while the one before it in the stream ends.
//!
//! # What is written
//! `gdc_wait()`, the first statement of a kernel: all work before the kernel is done then, and its memory is visible.
//!
//! # Why
//! A small kernel ends a microsecond before the next one begins. On an H200 a chain of layer norms over 128 rows takes 0.77 of the
//! time, MobileNetV3 in bfloat16 0.88.
//!
//! # When it is right
//! Every thread waits before its first access to memory, whatever was launched before. The wait ends when the kernels before have
//! ended, those that waited themselves included.
//!
//! # What is left out
//! A kernel that lets the next one start at its own beginning (`gdc_launch_dependents`) saves a little more: 0.93 instead of 0.97
//! of the time of a vision transformer. But kernels that then run in parallel with the end of another lose what the
//! first-level cache gives: a product in float32 takes five times as long, GPT-2 1.16 times.

use inrush_base::Caps;

/// The statement that begins a kernel.
pub(crate) const WAIT: &str = "    gdc_wait()\n";

/// The import that sources with the statement need.
pub(crate) const IMPORT: &str = "from triton.language.extra.cuda import gdc_wait\n";

/// Returns true if kernels of the device wait by themselves for the kernel before them.
pub(crate) fn applies(caps: &Caps) -> bool {
    caps.gpu.as_ref().is_some_and(|g| g.programmatic_launch)
}
