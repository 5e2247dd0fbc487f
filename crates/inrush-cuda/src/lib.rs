//! NVIDIA GPUs. The compile half is data: presets. The run half speaks with the driver.
//!
//! Does not know: the other devices, any compiler crate.

mod driver;
mod presets;
mod programmatic;

pub use driver::driver;
pub use presets::caps;

use inrush_base::{Device, Runs};

/// The name of this kind of device.
const KIND: &str = "cuda";

/// The device.
pub static DEVICE: Device = Device {
    name: KIND,
    torch_name: "cuda",
    torch_build: "cuda",
    backend: "cuda",
    backend_package: ("nvidia", "`triton`"),
    binary: "cubin",
    presets: presets::ALL,
    cpp: Some(driver::cpp),
    runs: Some(Runs {
        torch_number: 1,
        tensor_number: 1,
        // `kDLCUDA`, and memory that the host accesses too.
        dlpack: &[2, 13],
        shares_streams: true,
        products: Some(&[
            // Where NVIDIA's installers put the libraries that go with a driver.
            "/usr/local/cuda/lib64",
            "/usr/local/cuda/targets/x86_64-linux/lib",
        ]),
        caps,
    }),
};
