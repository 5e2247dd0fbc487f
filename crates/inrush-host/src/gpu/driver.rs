//! The device driver that the executor speaks with: the one place of this crate that names a device crate.

pub use inrush_cuda::driver::*;
