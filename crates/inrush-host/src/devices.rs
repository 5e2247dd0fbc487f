//! The devices that programs run on: the one list outside of the devices' crates.

use crate::gpu::driver::Driver;
use crate::program::Device;
use inrush_base::{Caps, Error, Result};
use inrush_program::GpuTarget;

pub use inrush_cuda::Properties;

/// A kind of device with an executor.
pub struct Executed {
    pub device: &'static inrush_base::Device,
    /// PyTorch's number of the device type (`c10::DeviceType`, which is stable).
    pub torch_number: i32,
    /// Returns the capabilities of a device with these properties; `None` if kernels cannot be built for it.
    caps: fn(&Properties) -> Option<Caps>,
}

/// All of them.
pub const EXECUTED: &[Executed] = &[Executed {
    device: &inrush_cuda::CUDA,
    torch_number: 1,
    caps: inrush_cuda::caps,
}];

/// Returns the kind of a device of PyTorch's number.
pub fn by_torch_number(number: i32) -> Option<&'static Executed> {
    EXECUTED.iter().find(|d| d.torch_number == number)
}

/// Returns the kind of a device of PyTorch's name.
pub fn by_torch_name(name: &str) -> Option<&'static Executed> {
    EXECUTED.iter().find(|d| d.device.torch_name == name)
}

/// Returns PyTorch's name of a device: `cpu`, or the name of its kind with its index.
pub fn torch_name(device: Device) -> String {
    match by_torch_number(device.kind) {
        Some(kind) => format!("{}:{}", kind.device.torch_name, device.index),
        None => "cpu".into(),
    }
}

/// Returns capabilities and build target of a preset such as `cuda:h100`.
///
/// # Errors
/// An input error for names that no device has.
pub fn preset(name: &str) -> Result<(Caps, GpuTarget)> {
    let (kind, preset) = match name.split_once(':') {
        Some((d, p)) => (d, Some(p)),
        None => (name, None),
    };
    let kind = EXECUTED.iter().find(|d| d.device.name == kind);
    let found = kind.and_then(|k| Some((k, k.device.caps(preset)?)));
    let (kind, caps) =
        found.ok_or_else(|| Error::input(format!("there is no GPU preset `{name}`")))?;
    let target = kind.target(&caps)?;
    Ok((caps, target))
}

impl Executed {
    /// Returns capabilities and build target of a device with these properties.
    ///
    /// # Errors
    /// An unsupported error for devices that kernels cannot be built for.
    pub fn caps(&self, p: &Properties) -> Result<(Caps, GpuTarget)> {
        let caps = (self.caps)(p).ok_or_else(|| {
            Error::unsupported(format!(
                "a GPU of compute capability {}.{}: Triton builds for 7.0 and later",
                p.major, p.minor
            ))
        })?;
        let target = self.target(&caps)?;
        Ok((caps, target))
    }

    /// Returns capabilities and build target of the current device.
    ///
    /// # Errors
    /// Those of the driver, and of [`Executed::caps`].
    pub fn current(&self, driver: &Driver) -> Result<(Caps, GpuTarget)> {
        self.caps(&driver.properties()?)
    }

    fn target(&self, caps: &Caps) -> Result<GpuTarget> {
        let gpu = (caps.gpu.as_ref()).ok_or_else(|| Error::internal("a GPU without properties"))?;
        Ok(GpuTarget {
            backend: self.device.backend.into(),
            arch: gpu.arch.clone(),
            warp: gpu.warp,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_found_by_number_and_name_and_presets_by_theirs() {
        for (k, kind) in EXECUTED.iter().enumerate() {
            let name = kind.device.torch_name;
            assert!(by_torch_name(name).is_some_and(|d| d.torch_number == kind.torch_number));
            let again = EXECUTED
                .iter()
                .position(|d| d.torch_number == kind.torch_number);
            assert_eq!(again, Some(k));
            let device = Device {
                kind: kind.torch_number,
                index: 2,
            };
            assert_eq!(torch_name(device), format!("{name}:2"));
            let (caps, target) = preset(kind.device.name).unwrap();
            assert_eq!(caps.gpu.unwrap().arch, target.arch);
        }
        for wrong in ["", "cpu", "rocm", "cuda:h1"] {
            assert!(preset(wrong).is_err());
        }
    }
}
