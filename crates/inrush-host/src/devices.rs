//! The devices that programs run on: the one list outside of the devices' crates.

use crate::gpu::driver::Driver;
use inrush_base::{Caps, Device, Error, Result};

/// A kind of device with an executor.
pub struct Executed {
    pub device: &'static Device,
    /// PyTorch's number of the device type (`c10::DeviceType`, which is stable).
    pub torch_number: i32,
    /// Returns the capabilities of the current device.
    pub caps: fn(&Driver) -> Result<Caps>,
}

/// All of them.
pub static EXECUTED: &[Executed] = &[Executed {
    device: &inrush_cuda::CUDA,
    torch_number: 1,
    caps: cuda_caps,
}];

/// Returns the device of a number of PyTorch's.
pub fn by_torch_number(number: i32) -> Option<&'static Executed> {
    EXECUTED.iter().find(|d| d.torch_number == number)
}

/// Returns the device of PyTorch's name.
pub fn by_torch_name(name: &str) -> Option<&'static Executed> {
    EXECUTED.iter().find(|d| d.device.torch_name == name)
}

fn cuda_caps(driver: &Driver) -> Result<Caps> {
    let p = driver.properties()?;
    inrush_cuda::caps(&p).ok_or_else(|| {
        Error::unsupported(format!(
            "a GPU of compute capability {}.{}: Triton builds for 7.0 and later",
            p.major, p.minor
        ))
    })
}
