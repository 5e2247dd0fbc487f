//! The device that a graph is for.

use super::meta;
use super::types::{Names, is_exactly};
use inrush_host::devices::by_torch_name;
use inrush_host::program::Device;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyString, PyTuple};
use std::collections::BTreeMap;

/// Returns the GPU that most of the graph's tensors are on; `None` for a graph of the CPU.
pub fn device(py: Python<'_>, gm: &Bound<'_, PyAny>) -> PyResult<Option<Device>> {
    let names = Names::get(py)?;
    let nodes = gm
        .getattr(intern!(py, "graph"))?
        .getattr(intern!(py, "nodes"))?;
    let mut count: BTreeMap<Option<(i32, i32)>, usize> = BTreeMap::new();
    let mut note = |val: &Bound<'_, PyAny>| -> PyResult<()> {
        if names.is_tensor(val)? {
            *count.entry(index(names, val)?).or_default() += 1;
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
        .filter_map(|(device, n)| Some((n, std::cmp::Reverse(device?))))
        .max();
    Ok(most.map(|(_, std::cmp::Reverse((kind, index)))| Device { kind, index }))
}

/// Returns the GPU of a tensor, as PyTorch's numbers of kind and index.
fn index(names: &Names, val: &Bound<'_, PyAny>) -> PyResult<Option<(i32, i32)>> {
    let py = val.py();
    let device = match is_exactly(val, &names.fake) {
        true => val.getattr(intern!(py, "fake_device"))?,
        false => val.getattr(intern!(py, "device"))?,
    };
    let kind = device.getattr(intern!(py, "type"))?;
    let Some(kind) = by_torch_name(kind.cast::<PyString>()?.to_str()?) else {
        return Ok(None);
    };
    // Without a number it is the current device, which tests without a GPU take for the first.
    let index: Option<i32> = device.getattr(intern!(py, "index"))?.extract()?;
    Ok(Some((kind.torch_number(), index.unwrap_or(0))))
}
