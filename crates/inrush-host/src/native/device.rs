//! Properties of a device, from its driver.

use crate::devices;
use crate::program::Device;
use inrush_base::{Caps, Error, Result};
use inrush_program::GpuTarget;

/// Reads a device's name: its kind's, followed by `:1` for the second one.
///
/// # Errors
/// An input error for names of devices that have no executor.
pub fn parse(name: &str) -> Result<Device> {
    let (kind, index) = name.split_once(':').unwrap_or((name, "0"));
    let known: Vec<&str> = devices::executed().map(|d| d.device.name).collect();
    if inrush_devices::by_name(kind).is_some_and(|d| d.runs.is_none()) {
        return Err(Error::unsupported(format!(
            "`{name}`: there is no executor for devices of kind `{kind}`; programs run on: {}",
            known.join(", ")
        )));
    }
    let found = devices::executed().find(|d| d.device.name == kind);
    let index = index.parse().ok().filter(|n| (0..=i32::MAX).contains(n));
    match (found, index) {
        (Some(d), Some(index)) => Ok(Device {
            kind: d.torch_number(),
            index,
        }),
        _ => Err(Error::input(format!(
            "unknown device `{name}`: cpu, or one of {} with an index (`{}:0`)",
            known.join(", "),
            known.first().unwrap_or(&"")
        ))),
    }
}

/// Makes a device current on the calling thread, and returns its capabilities and what kernels are built for.
///
/// # Errors
/// A machine error without a driver or such a device; an unsupported one for devices that kernels cannot be built for.
pub fn caps(device: Device) -> Result<(Caps, GpuTarget)> {
    let driver = devices::driver(device)?;
    driver.make_current(device.index)?;
    let found = devices::by_torch_number(device.kind)
        .ok_or_else(|| Error::internal("a device without an executor"))?;
    found.current(&driver)
}
