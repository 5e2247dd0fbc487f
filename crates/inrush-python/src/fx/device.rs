//! The device that a graph is for.

use super::meta;
use super::types::Names;
use crate::host::kinds::Kinds;
use inrush_host::program::Device;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyString, PyTuple};
use std::collections::BTreeMap;

/// The devices of a graph.
pub struct Found {
    /// The GPU that most tensors are on; `None` for a graph of the CPU.
    pub gpu: Option<Device>,
    /// PyTorch's name of a device that is neither the CPU nor a known GPU.
    pub other: Option<String>,
}

/// Returns the devices that the graph's tensors are on.
pub fn device(py: Python<'_>, gm: &Bound<'_, PyAny>, kinds: &Kinds) -> PyResult<Found> {
    let names = Names::get(py)?;
    let nodes = gm
        .getattr(intern!(py, "graph"))?
        .getattr(intern!(py, "nodes"))?;
    let mut count: BTreeMap<(i32, i32), usize> = BTreeMap::new();
    let mut other = None;
    let mut note = |val: &Bound<'_, PyAny>| -> PyResult<()> {
        if names.is_tensor(val)? {
            match place(names, val, kinds)? {
                On::Cpu => {}
                On::Gpu(kind, index) => *count.entry((kind, index)).or_default() += 1,
                On::Other(name) => other = Some(name),
            }
        }
        Ok(())
    };
    for node in nodes.try_iter()? {
        let Some(val) = meta(&node?, intern!(py, "val"))? else {
            continue;
        };
        if let Ok(t) = val.cast::<PyTuple>() {
            t.iter().try_for_each(|v| note(&v))?;
        } else if let Ok(l) = val.cast::<PyList>() {
            l.iter().try_for_each(|v| note(&v))?;
        } else {
            note(&val)?;
        }
    }
    // Ties go to the lowest kind and index, hence the reversed order: `max` takes the greatest
    // pair.
    let most = (count.into_iter())
        .map(|(device, n)| (n, std::cmp::Reverse(device)))
        .max();
    Ok(Found {
        gpu: most.map(|(_, std::cmp::Reverse((kind, index)))| Device { kind, index }),
        other,
    })
}

/// The device of a tensor.
enum On {
    /// Also tensors without memory, which are on no device.
    Cpu,
    /// Number of the kind, and index.
    Gpu(i32, i32),
    /// PyTorch's name of another one.
    Other(String),
}

/// Returns the device of a tensor.
fn place(names: &Names, val: &Bound<'_, PyAny>, kinds: &Kinds) -> PyResult<On> {
    let py = val.py();
    let device = names.device(val)?;
    let kind = device.getattr(intern!(py, "type"))?;
    let name = kind.cast::<PyString>()?.to_str()?;
    if matches!(name, "cpu" | "meta") {
        return Ok(On::Cpu);
    }
    let Some(kind) = kinds.by_torch_name(name) else {
        return Ok(On::Other(name.into()));
    };
    // Without a number it is the current device, which tests without a GPU take for the first.
    let index: Option<i32> = device.getattr(intern!(py, "index"))?.extract()?;
    Ok(On::Gpu(kind.torch_number(), index.unwrap_or(0)))
}
