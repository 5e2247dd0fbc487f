//! Steps that need the interpreter, arguments and results, and exceptions.

use super::kinds;
use super::run::{Call, laid_out, run_error, scalar, share};
use super::scalars::DeviceScalar;
use super::shim::Handle;
use super::tensor::Owned;
use super::torch::{Frame, Torch};
use crate::errors::raise;
use inrush_base::same_strides;
use inrush_host::devices;
use inrush_host::gpu::plan::{CheckInput, Op, Plain};
use inrush_host::gpu::{POINTER_ALIGNMENT, Stop};
use inrush_host::program::{Device, Out, StepKind};
use inrush_host::shape::Shape;
use pyo3::exceptions::PyRuntimeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Runs a step that needs the interpreter.
pub fn step(
    torch: &Torch,
    py: Python<'_>,
    call: &mut Call<'_>,
    frame: &mut Frame<'_>,
    op: &Op,
) -> PyResult<()> {
    match op {
        Op::CheckInput(t) => check_input(torch, py, call, frame, t),
        Op::Call { step, reads } => {
            copy_back(py, call)?;
            for s in reads {
                show(torch, py, call, frame, *s)?;
            }
            let c = match &frame.program.steps[*step].kind {
                StepKind::Call(c) => c,
                _ => return Err(PyRuntimeError::new_err("no called operator")),
            };
            if let Some(teller) = torch.teller {
                // The operator may have other streams wait for this one.
                teller.tell(torch.shims, torch.device, torch.stream);
            }
            super::call::run(c, py, call)
        }
        Op::View(v) => {
            show(torch, py, call, frame, v.base)?;
            let mut base = call.value(v.base)?.bind(py).clone();
            if let Some((sizes, strides)) = &v.base_layout
                && let Some(copy) = laid_out(torch.shims, &base, sizes, strides)?
            {
                base = copy;
            }
            let view = match v.dtype {
                None => share(torch.shims, &base, &v.sizes, &v.strides, v.offset)?,
                dtype => {
                    let base = torch.shims.tensor(&base)?;
                    (torch.shims).view(py, base, &v.sizes, &v.strides, v.offset, dtype)?
                }
            };
            call.slots[v.slot] = Some(view);
            Ok(())
        }
        Op::Set { slot, value } => {
            let value = match value {
                Plain::Int(i) => i.into_pyobject(py)?.into_any().unbind(),
                Plain::Scalar(s) => scalar(py, *s)?,
                Plain::None => py.None(),
            };
            call.slots[*slot] = Some(value);
            Ok(())
        }
        _ => Err(PyRuntimeError::new_err("a native step")),
    }
}

/// Makes a Python object of a tensor that the call owns, unless there is one.
fn show(
    torch: &Torch,
    py: Python<'_>,
    call: &mut Call<'_>,
    frame: &Frame<'_>,
    slot: usize,
) -> PyResult<()> {
    if let Some(own) = &frame.own[slot]
        && call.slots[slot].is_none()
    {
        // SAFETY: the tensor is owned by the frame.
        let object = unsafe { torch.shims.object(py, own.handle)? };
        call.slots[slot] = Some(object);
    }
    Ok(())
}

/// Takes the address of a tensor: of a copy if it has another layout, dtype or device than the graph was compiled for.
fn check_input(
    torch: &Torch,
    py: Python<'_>,
    call: &mut Call<'_>,
    frame: &mut Frame<'_>,
    t: &CheckInput,
) -> PyResult<()> {
    let shims = torch.shims;
    let object = call.value(t.slot)?.bind(py);
    let h = shims.tensor(object)?;
    let want = &t.shape;
    // SAFETY: the tensor is held by its slot.
    let ((address, dtype, here), (sizes, strides)) =
        unsafe { (shims.data_on(h, torch.device)?, shims.shape(h)?) };
    if sizes != want.sizes.as_slice() {
        return Err(PyRuntimeError::new_err(format!(
            "a tensor of sizes {sizes:?} where the graph was compiled for {:?}",
            want.sizes
        )));
    }
    let same = same_strides(sizes, strides, &want.strides);
    // SAFETY: as above.
    let plain = unsafe { torch.shims.is_materialized(h, address as *const u8) };
    let fits = here && dtype == want.dtype && same && address % POINTER_ALIGNMENT == 0 && plain;
    if fits || sizes.contains(&0) {
        frame.bases[t.slot] = address;
        return Ok(());
    }
    if !here
        && !t.written
        && dtype == want.dtype
        && let Some(copy) = lent(torch, py, call, t.slot, h)?
    {
        frame.bases[t.slot] = copy.address;
        call.lent.push(copy.object);
        return Ok(());
    }
    let made = shims.allocate(&want.sizes, &want.strides, want.dtype, torch.device);
    let (handle, address) = made.ok_or_else(|| {
        let bytes = want.bytes().unwrap_or(u64::MAX);
        out_of_memory(py, torch.device, bytes)
    })?;
    let owned = Owned { handle, shims };
    // SAFETY: the tensor is owned.
    let copy = unsafe { shims.object(py, owned.handle)? };
    // `fill_` passes a number of the host with its launch; a copy would wait for the device.
    let how = match !here && sizes.is_empty() {
        true => intern!(py, "fill_"),
        false => intern!(py, "copy_"),
    };
    let same_places = here && same && dtype == want.dtype;
    match same_places && want.may_share_elements() {
        true => copy_memory(copy.bind(py), object, want)?,
        false => drop(copy.bind(py).call_method1(how, (object,))?),
    }
    frame.bases[t.slot] = address;
    if t.written {
        call.copies.push((object.clone().unbind(), copy));
    }
    // Kept to the end: native steps read it.
    frame.own[t.slot] = Some(owned);
    Ok(())
}

/// Returns the copy that is kept of the host's scalar in a slot; `None` for other tensors, and in a capture.
fn lent(
    torch: &Torch,
    py: Python<'_>,
    call: &Call<'_>,
    slot: usize,
    h: Handle,
) -> PyResult<Option<DeviceScalar>> {
    let Some(engine) = call.runner.code.engine() else {
        return Ok(None);
    };
    let driver = devices::driver(torch.device).map_err(raise)?;
    if driver.is_capturing(torch.stream).map_err(raise)? {
        return Ok(None);
    }
    let on = (torch.device, torch.stream);
    let argument = (call.value(slot)?.bind(py), h);
    engine.scalars.copy(py, torch.shims, on, slot, argument)
}

/// Copies the memory that a tensor spans, element by element of memory. `copy_` refuses to write tensors whose elements share
/// memory, as those of an expanded tensor do.
fn copy_memory<'py>(
    copy: &Bound<'py, PyAny>,
    from: &Bound<'py, PyAny>,
    shape: &Shape,
) -> PyResult<()> {
    let py = copy.py();
    let span = (shape.sizes.iter().zip(&shape.strides))
        .map(|(n, stride)| (n - 1) * stride)
        .sum::<i64>()
        + 1;
    let flat = |tensor: &Bound<'py, PyAny>| {
        let start = tensor.call_method0(intern!(py, "storage_offset"))?;
        tensor.call_method1(intern!(py, "as_strided"), ((span,), (1,), start))
    };
    flat(copy)?.call_method1(intern!(py, "copy_"), (flat(from)?,))?;
    Ok(())
}

/// Writes the copies of arguments that steps wrote back to the arguments.
fn copy_back(py: Python<'_>, call: &Call<'_>) -> PyResult<()> {
    for (original, copy) in &call.copies {
        original.bind(py).call_method1("copy_", (copy,))?;
    }
    Ok(())
}

/// Makes Python objects of outputs, and writes back to arguments that were copied.
pub fn finish(
    torch: &Torch,
    py: Python<'_>,
    call: &mut Call<'_>,
    frame: &Frame<'_>,
) -> PyResult<()> {
    for o in &frame.program.outputs {
        if let Out::Slot(s) = o {
            show(torch, py, call, frame, *s)?;
        }
    }
    copy_back(py, call)
}

fn stop_error(torch: &Torch, py: Python<'_>, stop: Stop<PyErr>) -> PyErr {
    match stop {
        Stop::Failed(e) => run_error(&e),
        Stop::Memory(bytes) => out_of_memory(py, torch.device, bytes),
        Stop::Host(e) => e,
        Stop::Library(_) => PyRuntimeError::new_err("a library call failed"),
    }
}

/// Returns the exception for a stop. A library call that failed is made again from Python, which raises what PyTorch raises.
pub fn raise_stop(
    torch: &Torch,
    py: Python<'_>,
    call: &mut Call<'_>,
    frame: &Frame<'_>,
    stop: Stop<PyErr>,
) -> PyErr {
    let Stop::Library(step) = stop else {
        return stop_error(torch, py, stop);
    };
    let StepKind::Library(l) = &frame.program.steps[step].kind else {
        return PyRuntimeError::new_err("no library call");
    };
    let name = format!("{:?}", l.op);
    let name = name
        .split([' ', '{'])
        .next()
        .unwrap_or_default()
        .to_string();
    let refused = || PyRuntimeError::new_err(format!("PyTorch refused a library call ({name})"));
    let Some(c) = &l.call else {
        return refused();
    };
    for s in c.reads() {
        if show(torch, py, call, frame, s).is_err() || call.slots[s].is_none() {
            return PyRuntimeError::new_err(format!(
                "PyTorch refused a library call ({name}); what it wrote to stderr says why"
            ));
        }
    }
    match super::call::run(c, py, call) {
        Err(e) => e,
        Ok(()) => refused(),
    }
}

/// Returns PyTorch's exception for too little memory, by asking for the memory once more: its message tells how the rest is
/// used.
pub fn out_of_memory(py: Python<'_>, device: Device, bytes: u64) -> PyErr {
    let name = kinds::name(device);
    let ask = || -> PyResult<PyErr> {
        let torch = py.import("torch")?;
        let options = PyDict::new(py);
        options.set_item("dtype", torch.getattr("uint8")?)?;
        options.set_item("device", &name)?;
        torch.call_method("empty", (bytes,), Some(&options))?;
        let text = format!("a compiled graph needs {bytes} bytes that `{name}` did not have");
        let error = torch.getattr("OutOfMemoryError")?.call1((text,))?;
        Ok(PyErr::from_value(error))
    };
    ask().unwrap_or_else(|e| e)
}
