//! NVIDIA GPUs. The compile half is data: presets. The run half speaks with the driver.
//!
//! Does not know: the other devices, any compiler crate.

pub mod driver;
mod presets;

pub use presets::caps;

use inrush_base::{Device, Runs};

/// The name of this kind of device.
const KIND: &str = "cuda";

/// The device.
pub static CUDA: Device = Device {
    name: KIND,
    torch_name: "cuda",
    backend: "cuda",
    binary: "cubin",
    presets: presets::ALL,
    runs: Some(Runs {
        torch_number: 1,
        driver_library: driver::LIBRARY,
        caps,
    }),
};
