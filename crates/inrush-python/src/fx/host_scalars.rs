//! Arithmetic on scalar tensors of the host in a graph on a GPU.
//!
//! ATen lets a tensor without dimensions stay on the host in arithmetic on a device. With dynamic sizes, Dynamo passes floats of
//! modules this way, and AOTAutograd converts and combines them before a tensor of the device is computed with them:
//!
//! ```text
//! eps: f64[] on cpu = placeholder
//! e = prims.convert_element_type(eps, f32)     f32[] on cpu
//! y = aten.add.Tensor(x, e)                    on the device
//! ```
//!
//! Kernels do this arithmetic, too, where nothing else reads its results. Otherwise each operator would be called from Python,
//! and so would those of the device that read it.

use super::target::{Role, Target};
use super::types::{Names, is_scalar};
use super::{key, meta};
use inrush_aten::Prop;
use inrush_aten::props::{has, is_elementwise};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyString;
use rustc_hash::FxHashSet;

/// FX nodes, by identity, whose results are scalar tensors of the host that only kernels read.
#[derive(Default)]
pub struct HostScalars(FxHashSet<usize>);

/// The place of a value.
#[derive(Copy, Clone, PartialEq, Eq)]
enum Place {
    /// A scalar tensor of the host.
    Host,
    /// A tensor of a device.
    Device,
    /// Anything else.
    Other,
}

impl HostScalars {
    /// Finds them in the nodes of a graph.
    pub fn of<'py>(names: &Names, nodes: &Bound<'py, PyAny>) -> PyResult<HostScalars> {
        let mut inputs = FxHashSet::default();
        // In order: arithmetic on host scalars alone.
        let mut made: Vec<Bound<'py, PyAny>> = Vec::new();
        let mut known = FxHashSet::default();
        for node in nodes.try_iter()? {
            let node = node?;
            let op = node.getattr(intern!(node.py(), "op"))?;
            match op.cast::<PyString>()?.to_str()? {
                "placeholder" if place(names, &node)? == Place::Host => {
                    inputs.insert(key(&node));
                }
                // Graphs without such inputs, nearly all, end here.
                "call_function" if inputs.is_empty() => return Ok(HostScalars::default()),
                "call_function" => {
                    let from_host = |o| inputs.contains(&o) || known.contains(&o);
                    if place(names, &node)? == Place::Host
                        && all_operands(&node, from_host)?
                        && calls(names, &node, |op| {
                            is_elementwise(op) || has(op, Prop::Scalar)
                        })?
                    {
                        known.insert(key(&node));
                        made.push(node);
                    }
                }
                _ => {}
            }
        }
        // Both ways: what reads a scalar that stays with PyTorch stays there, and so does what only such read.
        let mut joined = known;
        loop {
            let before = joined.len();
            for node in made.iter().rev() {
                if !read_by_kernels(names, node, &joined)? {
                    joined.remove(&key(node));
                }
            }
            for node in &made {
                if !all_operands(node, |o| inputs.contains(&o) || joined.contains(&o))? {
                    joined.remove(&key(node));
                }
            }
            if joined.len() == before {
                break;
            }
        }
        Ok(HostScalars(joined))
    }

    /// Returns true if a node's result may join the graph.
    pub fn joins(&self, node: &Bound<'_, PyAny>) -> bool {
        self.0.contains(&key(node))
    }
}

/// Returns true if all that read a host scalar are elementwise operators of the device, or of the host and among `joined`.
fn read_by_kernels(
    names: &Names,
    node: &Bound<'_, PyAny>,
    joined: &FxHashSet<usize>,
) -> PyResult<bool> {
    for user in node.getattr(intern!(node.py(), "users"))?.try_iter()? {
        let user = user?;
        let fits = joined.contains(&key(&user))
            || place(names, &user)? == Place::Device && calls(names, &user, is_elementwise)?;
        if !fits {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns true if `fits` holds for all nodes, by identity, that a node reads.
fn all_operands(node: &Bound<'_, PyAny>, fits: impl Fn(usize) -> bool) -> PyResult<bool> {
    for o in (node.getattr(intern!(node.py(), "all_input_nodes"))?).try_iter()? {
        if !fits(key(&o?)) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns true if a node calls an operator of such a name.
fn calls(names: &Names, node: &Bound<'_, PyAny>, such: impl Fn(&str) -> bool) -> PyResult<bool> {
    let op = node.getattr(intern!(node.py(), "op"))?;
    if op.cast::<PyString>()?.to_str()? != "call_function" {
        return Ok(false);
    }
    let target = Target::of(names, &node.getattr(intern!(node.py(), "target"))?)?;
    Ok(target.role == Role::Operator && such(&target.name))
}

/// Returns the place of a node's value.
fn place(names: &Names, node: &Bound<'_, PyAny>) -> PyResult<Place> {
    let py = node.py();
    let Some(val) = meta(node, intern!(py, "val"))? else {
        return Ok(Place::Other);
    };
    if !names.is_tensor(&val)? {
        return Ok(Place::Other);
    }
    let device = names.device(&val)?;
    let kind = device.getattr(intern!(py, "type"))?;
    Ok(match kind.cast::<PyString>()?.to_str()? {
        "cpu" if is_scalar(&val)? => Place::Host,
        "cpu" | "meta" => Place::Other,
        _ => Place::Device,
    })
}
