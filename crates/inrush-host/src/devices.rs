//! The devices that programs run on, with what kernels are built for.

use crate::gpu::driver::Driver;
use crate::program::Device;
use inrush_base::{Caps, Error, Result, Runs};
use inrush_program::GpuTarget;

pub use inrush_base::Properties;

/// A kind of device that programs run on.
#[derive(Copy, Clone)]
pub struct Executed {
    pub device: &'static inrush_base::Device,
    runs: &'static Runs,
}

/// Number of kinds in the list of devices; [`executed`] gives as many at most.
pub const KINDS: usize = inrush_devices::ALL.len();

/// Returns all of them, in the order of the list of devices.
pub fn executed() -> impl Iterator<Item = Executed> {
    inrush_devices::that_run().map(|(device, runs)| Executed { device, runs })
}

/// Returns the kind of a device of PyTorch's number.
pub fn by_torch_number(number: i32) -> Option<Executed> {
    executed().find(|d| d.torch_number() == number)
}

/// Returns the name of a device: `cpu`, or the name of its kind with its index.
pub fn name(device: Device) -> String {
    match by_torch_number(device.kind) {
        Some(kind) => format!("{}:{}", kind.device.name, device.index),
        None => "cpu".into(),
    }
}

/// Returns the driver of a device's kind in this process, which is found and started once.
///
/// # Errors
/// A machine error that says what is missing; an internal one for the CPU.
pub fn driver(device: Device) -> Result<Driver> {
    let kind = by_torch_number(device.kind)
        .ok_or_else(|| Error::internal("a device without an executor"))?;
    inrush_devices::driver(kind.device)
}

/// Returns the kind and index of memory that DLPack describes; `None` for memory that no kernel accesses.
pub fn of_dlpack(kind: i32, index: i32) -> Option<Device> {
    let found = executed().find(|d| d.runs.dlpack.contains(&kind))?;
    Some(Device {
        kind: found.torch_number(),
        index,
    })
}

/// Returns true if streams of other libraries are streams of the device's driver. Elsewhere work of one library has to be done
/// before another one uses its results.
pub fn shares_streams(device: Device) -> bool {
    by_torch_number(device.kind).is_some_and(|d| d.runs.shares_streams)
}

/// Returns DLPack's number for memory of a device, its own and not the host's.
pub fn dlpack_number(device: Device) -> Option<i32> {
    by_torch_number(device.kind)?.runs.dlpack.first().copied()
}

/// Returns capabilities and build target of a preset of a device that programs run on.
///
/// # Errors
/// An input error for names that no such device has.
pub fn preset(name: &str) -> Result<(Caps, GpuTarget)> {
    let (device, caps) = inrush_devices::target(name)?;
    let kind = executed().find(|k| std::ptr::eq(k.device, device));
    let kind = kind.ok_or_else(|| Error::input(format!("programs do not run on `{name}`")))?;
    let target = kind.target(&caps)?;
    Ok((caps, target))
}

impl Executed {
    /// Returns PyTorch's number of the device type.
    pub fn torch_number(&self) -> i32 {
        self.runs.torch_number
    }

    /// Returns PyTorch's number of the device type that its tensors have, which kinds may share.
    pub fn tensor_number(&self) -> i32 {
        self.runs.tensor_number
    }

    /// Returns true if streams of other libraries are streams of the kind's driver: see [`shares_streams`].
    pub fn shares_streams(&self) -> bool {
        self.runs.shares_streams
    }

    /// Returns capabilities and build target of a device with these properties.
    ///
    /// # Errors
    /// An unsupported error for devices that kernels cannot be built for.
    pub fn caps(&self, p: &Properties) -> Result<(Caps, GpuTarget)> {
        let caps = (self.runs.caps)(p).ok_or_else(|| {
            Error::unsupported(format!(
                "a GPU of architecture {}: kernels are built for {}",
                p.arch,
                self.known()
            ))
        })?;
        let target = self.target(&caps)?;
        Ok((caps, target))
    }

    /// Returns the architectures of the presets, as a list for readers.
    fn known(&self) -> String {
        let presets = self.device.presets.iter();
        let mut archs: Vec<String> = presets.filter_map(|p| Some((p.caps)().gpu?.arch)).collect();
        archs.sort_unstable();
        archs.dedup();
        format!("those like {}", archs.join(", "))
    }

    /// Returns the folders where the library for matrix products may be; `None` where programs call none.
    pub fn products(&self) -> Option<&'static [&'static str]> {
        self.runs.products
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
        assert!(executed().count() > 0);
        for kind in executed() {
            let number = kind.torch_number();
            let same = |found: Executed| std::ptr::eq(found.device, kind.device);
            // Kinds that share PyTorch's name share its number, and no others.
            for other in executed() {
                let share = other.device.torch_name == kind.device.torch_name;
                assert_eq!(share, other.tensor_number() == kind.tensor_number());
            }
            assert!(by_torch_number(number).is_some_and(same));
            let device = Device {
                kind: number,
                index: 2,
            };
            assert_eq!(name(device), format!("{}:2", kind.device.name));
            let memory = dlpack_number(device).unwrap();
            assert_eq!(of_dlpack(memory, 2), Some(device));
            let (caps, target) = preset(kind.device.name).unwrap();
            assert_eq!(caps.gpu.unwrap().arch, target.arch);
        }
        for d in inrush_devices::ALL.iter().filter(|d| d.runs.is_none()) {
            assert!(preset(d.name).is_err());
        }
        for wrong in ["", "cpu"] {
            assert!(preset(wrong).is_err());
        }
    }
}
