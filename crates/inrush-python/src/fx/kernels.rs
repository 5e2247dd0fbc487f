//! Triton kernels that users write: calls of `inrush.triton.user_kernels.launch`, which stand for
//! launches.
//!
//! The call's first argument is an object that Python prepared: the kernel's source, and a
//! specialized form (`native`) where signature and constants are known. With the latter, the launch
//! becomes a step that needs no interpreter:
//!
//! ```text
//! launch(kernel, (x, y), (n,), (grid,))  ->  UserKernel { kernel: 3, grid, arguments: [x, y, n] }
//! ```
//!
//! Without it the operator is called from Python, and the object says why.

use crate::errors::raise;
use crate::host::call::Reader;
use inrush_base::Error;
use inrush_host::native::user_kernels::{self, Given};
use inrush_host::program::{Argument, Template, USER_KERNEL, UserKernel};
use inrush_program::GpuKernel;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyFloat, PyInt, PyTuple};

/// The function that FX nodes call.
pub const LAUNCH: &str = "inrush.triton.user_kernels.launch";
/// Why a kernel that is launched like any other is no part of a segment.
pub const NATIVE: &str = "a Triton kernel of the user's";

/// Returns the operator's name, and the reason for which no segment contains it: [`NATIVE`] for a
/// launch without Python, else what Python says.
pub fn describe(args: &Bound<'_, PyTuple>, gpu: bool) -> PyResult<(String, String)> {
    let py = args.py();
    let kernel = args.get_item(0)?;
    let name: String = kernel.getattr(intern!(py, "name"))?.extract()?;
    let native = gpu && !kernel.getattr(intern!(py, "native"))?.is_none();
    let reason = match native {
        true => NATIVE.to_string(),
        false => {
            let why: String = kernel.getattr(intern!(py, "reason"))?.extract()?;
            format!("Triton launches this kernel: {why}")
        }
    };
    Ok((format!("{USER_KERNEL}{name}"), reason))
}

/// Builds the launch of an FX node. Adds the kernel to `kernels` unless an equal one is there.
pub fn launch<'py>(
    reader: &mut Reader<'_, 'py>,
    node: &Bound<'py, PyAny>,
    outs: Vec<usize>,
    kernels: &mut Vec<GpuKernel>,
) -> PyResult<UserKernel> {
    let py = node.py();
    let damaged = || {
        raise(Error::internal(
            "a launch of a Triton kernel with other arguments",
        ))
    };
    let object = node
        .getattr(intern!(py, "args"))?
        .cast::<PyTuple>()?
        .get_item(0)?;
    let native = object.getattr(intern!(py, "native"))?;
    let at = user_kernels::add(&source(&native)?, kernels);
    // The node's arguments as a call would take them: the kernel, tensors, numbers, grids.
    let target = node.getattr(intern!(py, "target"))?;
    let held = reader.objects.len();
    let call = reader.call(node, target, outs)?;
    let [_, tensors, numbers, grids] = call.args.as_slice() else {
        return Err(damaged());
    };
    let items = |t: &Template| match t {
        Template::List(l) | Template::Tuple(l) => Ok(l.clone()),
        _ => Err(damaged()),
    };
    let tensors = (items(tensors)?.iter())
        .map(|t| match t {
            Template::Slot(s) => Ok(Some(*s)),
            Template::Constant(o) if reader.objects[*o].is_none(py) => Ok(None),
            _ => Err(damaged()),
        })
        .collect::<PyResult<Vec<_>>>()?;
    let numbers = items(numbers)?;
    let number = |t: &Template| match t {
        Template::Size(id) => Ok(Argument::Size(*id)),
        Template::Constant(o) => constant(reader.objects[*o].bind(py)),
        _ => Err(damaged()),
    };
    let grids = items(grids)?;
    let grid = items(grids.first().ok_or_else(damaged)?)?;
    let grid = grid.iter().map(number).collect::<PyResult<Vec<_>>>()?;
    let mut arguments = Vec::new();
    for a in given(&native)? {
        arguments.push(match a {
            Given::Tensor(t) => Argument::Tensor(t),
            Given::Descriptor(t) => Argument::Descriptor(t),
            Given::Number(n) => number(numbers.get(n).ok_or_else(damaged)?)?,
            Given::Int(v) => Argument::Int(v),
            Given::Float(v) => Argument::Float(v),
        });
    }
    // Nothing of the call is needed but these numbers.
    reader.objects.truncate(held);
    Ok(UserKernel {
        kernel: at,
        grid: grid.try_into().map_err(|_| damaged())?,
        arguments,
        tensors,
        written: object.getattr(intern!(py, "written"))?.extract()?,
        outs: call.outs,
        aligned: native.getattr("aligned")?.extract()?,
        title: String::new(),
        origin: String::new(),
    })
}

/// Returns the kernel of a `Native` of Python's, without a symbol.
pub fn source(native: &Bound<'_, PyAny>) -> PyResult<GpuKernel> {
    let field = |name: &str| native.getattr(name);
    Ok(GpuKernel {
        symbol: String::new(),
        function: field("function")?.extract()?,
        signature: field("signature")?.extract()?,
        // Those are in the text: not all of them are integers.
        constants: Vec::new(),
        divisible: field("divisible")?.extract()?,
        warps: field("warps")?.extract()?,
        stages: field("stages")?.extract()?,
        debug: false,
        // It may read memory before it waits.
        programmatic: false,
        text: field("text")?.extract()?,
    })
}

/// Returns the arguments of a `Native` of Python's.
pub fn given(native: &Bound<'_, PyAny>) -> PyResult<Vec<Given>> {
    let mut all = Vec::new();
    for a in native.getattr("arguments")?.try_iter()? {
        let a = a?;
        let kind = a.get_type().name()?;
        let position = || a.getattr("at")?.extract::<usize>();
        all.push(match kind.to_str()? {
            "Tensor" => Given::Tensor(position()?),
            "Descriptor" => Given::Descriptor(position()?),
            "Number" => Given::Number(position()?),
            _ => match constant(&a)? {
                Argument::Float(v) => Given::Float(v),
                Argument::Int(v) => Given::Int(v),
                _ => return Err(raise(Error::internal("a constant of another kind"))),
            },
        });
    }
    Ok(all)
}

/// Returns a number whose value is part of the trace. Booleans come first, since Python counts them
/// among the integers.
fn constant(value: &Bound<'_, PyAny>) -> PyResult<Argument> {
    if value.is_instance_of::<PyBool>() {
        return Ok(Argument::Int(i64::from(value.extract::<bool>()?)));
    }
    if value.is_instance_of::<PyInt>() {
        // An unsigned integer of 64 bits is passed by its bits.
        let signed = value.extract::<i64>();
        return signed
            .or_else(|_| value.extract::<u64>().map(|v| v as i64))
            .map(Argument::Int);
    }
    if value.is_instance_of::<PyFloat>() {
        return Ok(Argument::Float(value.extract()?));
    }
    Err(raise(Error::internal(format!(
        "an argument of a Triton kernel is a {}",
        value.get_type().name()?
    ))))
}
