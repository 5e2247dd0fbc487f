//! The driver of a device that the executor speaks with.

pub use inrush_driver::*;
