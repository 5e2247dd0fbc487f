//! The kinds of GPUs that this process's PyTorch is built for.
//!
//! Kinds share PyTorch's names: in builds for one vendor tensors have the name of another vendor's devices. This module
//! alone maps a name of PyTorch's to a kind.

use super::device;
use crate::errors::raise;
use inrush_base::Error;
use inrush_host::devices::{self, Executed};
use inrush_host::program::{CPU, Device};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

/// Kinds of GPUs, those of the build first.
pub struct Kinds {
    /// Those that PyTorch is built for.
    built: Vec<Executed>,
    /// PyTorch's name of an accelerator that no kind stands for.
    other: Option<String>,
}

/// Returns the kinds of this process's PyTorch, which it is asked for once.
pub fn kinds(py: Python<'_>) -> PyResult<&'static Kinds> {
    static KINDS: PyOnceLock<Kinds> = PyOnceLock::new();
    KINDS.get_or_try_init(py, || {
        let torch = py.import("torch")?;
        let version = torch.getattr("version")?;
        let mut built = Vec::new();
        for kind in devices::executed() {
            // Older releases do not name all builds.
            let found = version.getattr_opt(kind.device.torch_build)?;
            if found.is_some_and(|v| !v.is_none()) {
                built.push(kind);
            }
        }
        let other = other(&torch)?.filter(|name| built.iter().all(|k| k.device.torch_name != name));
        Ok(Kinds { built, other })
    })
}

/// Returns PyTorch's name of the accelerator that it was built for.
fn other(torch: &Bound<'_, PyAny>) -> PyResult<Option<String>> {
    let Some(module) = torch.getattr_opt("accelerator")? else {
        return Ok(None);
    };
    let current = module.call_method0("current_accelerator")?;
    match current.is_none() {
        true => Ok(None),
        false => current.getattr("type")?.extract().map(Some),
    }
}

impl Kinds {
    /// Returns true if tensors of this PyTorch may be on a device other than the CPU.
    pub fn has_gpus(&self) -> bool {
        !self.built.is_empty() || self.other.is_some()
    }

    /// Returns the kind that a name of PyTorch's stands for. Builds without GPUs know none: there it is the first of this name, which
    /// fake tensors may have.
    pub fn by_torch_name(&self, name: &str) -> Option<Executed> {
        let built = self.built.iter().copied();
        (built.chain(devices::executed())).find(|k| k.device.torch_name == name)
    }

    /// Returns the device of PyTorch's number and index.
    pub fn of_torch(&self, number: i32, index: i32) -> Device {
        let built = self.built.iter().copied();
        let found = (built.chain(devices::executed())).find(|k| k.tensor_number() == number);
        Device {
            kind: found.map_or(number, |k| k.torch_number()),
            index,
        }
    }

    /// Reads a device's name: PyTorch's, which stands for the kind of the build, or a kind's own.
    ///
    /// # Errors
    /// An input error for other names.
    pub fn parse(&self, name: &str) -> PyResult<Device> {
        let (kind, index) = name.split_once(':').unwrap_or((name, "0"));
        let mut built = self.built.iter();
        let full = match built.find(|k| k.device.torch_name == kind) {
            Some(k) => format!("{}:{index}", k.device.name),
            None => name.into(),
        };
        inrush_host::native::device::parse(&full).map_err(raise)
    }

    /// Returns true if PyTorch is built for the kind of a device.
    pub fn is_built_for(&self, device: Device) -> bool {
        self.built.iter().any(|k| k.torch_number() == device.kind)
    }
}

/// Returns PyTorch's number of the type of a device.
pub fn number(device: Device) -> i32 {
    match device.kind {
        CPU => CPU,
        kind => devices::by_torch_number(kind).map_or(kind, |k| k.tensor_number()),
    }
}

/// Returns PyTorch's name of a device.
pub fn name(device: Device) -> String {
    match devices::by_torch_number(device.kind) {
        Some(kind) => format!("{}:{}", kind.device.torch_name, device.index),
        None => "cpu".into(),
    }
}

/// Returns the reason for which calls of a device cannot be issued in PyTorch's process; `None` if they can. PyTorch's current stream
/// tells where its streams are objects of another library.
pub fn refusal(py: Python<'_>, device: Device) -> Option<Error> {
    let kind = devices::by_torch_number(device.kind)?;
    if kind.shares_streams() {
        return None;
    }
    let why = match device::functions(py, device) {
        Ok(functions) => functions.current(device).err()?.message().to_string(),
        Err(e) => e.value(py).to_string(),
    };
    let name = kind.device.name;
    Some(Error::unsupported(format!(
        "kernels of inrush cannot be put in order with PyTorch's on `{}`: {why}. Programs run on these GPUs outside of PyTorch: `inrush \
         run M.pt2 --device {name}:0`, or `inrush_runtime.load(.., device=\"{name}:0\")`",
        kind.device.torch_name
    )))
}
