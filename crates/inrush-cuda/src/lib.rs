//! NVIDIA GPUs. The compile half is data: presets. The run half speaks with the driver.
//!
//! Does not know: the other devices, any compiler crate.

pub mod driver;
mod presets;

pub use presets::{Properties, caps};

use inrush_base::Device;

/// The device.
pub static CUDA: Device = Device {
    name: "cuda",
    torch_name: "cuda",
    backend: "cuda",
    binary: "cubin",
    presets: presets::ALL,
};
