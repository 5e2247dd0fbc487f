//! Steps of the interpreter, arguments and results, and what is raised.

use super::{ALIGNMENT, Copies, Frame, Stop, out_of_memory};
use crate::gpu::owned::Owned;
use crate::gpu::plan::{Op, Plain, Shape, Take};
use crate::recipe::What;
use crate::run::{Call, scalar, share};
use pyo3::exceptions::PyRuntimeError;
use pyo3::intern;
use pyo3::prelude::*;

impl Frame<'_> {
    pub(super) fn python(
        &mut self,
        py: Python<'_>,
        call: &mut Call<'_>,
        op: &Op,
        copies: &mut Copies,
    ) -> PyResult<()> {
        match op {
            Op::Take(t) => self.take(py, call, t, copies),
            Op::Python { step, reads } => {
                self.copy_back(py, copies)?;
                for s in reads {
                    self.show(py, call, *s)?;
                }
                let c = match &self.recipe.steps[*step].what {
                    What::Call(c) => c,
                    _ => return Err(PyRuntimeError::new_err("no called operator")),
                };
                c.run(py, call)
            }
            Op::View(v) => {
                self.show(py, call, v.base)?;
                let base = call.value(v.base)?;
                let view = match v.dtype {
                    None => share(py, self.shims, base, &v.sizes, &v.strides, v.offset)?,
                    dtype => {
                        let base = self.shims.tensor(base.bind(py))?;
                        (self.shims).view(py, base, &v.sizes, &v.strides, v.offset, dtype)?
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

    /// Has a tensor of its own be an object too.
    pub(super) fn show(&self, py: Python<'_>, call: &mut Call<'_>, slot: usize) -> PyResult<()> {
        let own = &self.own[slot];
        if call.slots[slot].is_none() && !own.is_none() {
            // SAFETY: the tensor is owned by the frame.
            let object = unsafe { self.shims.object(py, own.handle)? };
            call.slots[slot] = Some(object);
        }
        Ok(())
    }

    fn take(
        &mut self,
        py: Python<'_>,
        call: &mut Call<'_>,
        t: &Take,
        copies: &mut Copies,
    ) -> PyResult<()> {
        let shims = self.shims;
        let object = call.value(t.slot)?.bind(py);
        let h = shims.tensor(object)?;
        let want = &t.shape;
        // SAFETY: the tensor is held by its slot.
        let ((address, dtype, here), (sizes, strides)) =
            unsafe { (shims.data_on(h, self.engine.device)?, shims.shape(h)?) };
        if sizes != want.sizes.as_slice() {
            return Err(PyRuntimeError::new_err(format!(
                "a tensor of sizes {sizes:?} where the graph was compiled for {:?}",
                want.sizes
            )));
        }
        let lies = (sizes.iter().zip(strides.iter().zip(&want.strides)))
            .all(|(n, (a, b))| *n <= 1 || a == b);
        // SAFETY: as above.
        let plain = unsafe { self.shims.is_materialized(h, address as *const u8) };
        let fits = here && dtype == want.dtype && lies && address % ALIGNMENT == 0 && plain;
        if fits || sizes.contains(&0) {
            self.bases[t.slot] = address;
            return Ok(());
        }
        let made = shims.allocate(&want.sizes, &want.strides, want.dtype, self.engine.device);
        let (handle, address) = made.ok_or_else(|| {
            let bytes = want.bytes().unwrap_or(u64::MAX);
            out_of_memory(py, self.engine.device, bytes)
        })?;
        let owned = Owned { handle, shims };
        // SAFETY: the tensor is owned.
        let copy = unsafe { shims.object(py, owned.handle)? };
        // A number of the host's goes along with a launch; a copy would wait for the device.
        let how = match !here && sizes.is_empty() {
            true => intern!(py, "fill_"),
            false => intern!(py, "copy_"),
        };
        let same_places = here && lies && dtype == want.dtype;
        match same_places && want.may_share_elements() {
            true => copy_memory(copy.bind(py), object, want)?,
            false => drop(copy.bind(py).call_method1(how, (object,))?),
        }
        self.bases[t.slot] = address;
        if t.written {
            copies.push((object.clone().unbind(), copy));
        }
        // Kept to the end: native steps read it.
        self.own[t.slot] = owned;
        Ok(())
    }

    /// What steps wrote into copies of arguments goes to the arguments.
    pub(super) fn copy_back(&self, py: Python<'_>, copies: &Copies) -> PyResult<()> {
        for (original, copy) in copies.iter() {
            original.bind(py).call_method1("copy_", (copy,))?;
        }
        Ok(())
    }

    pub(super) fn stop(&self, py: Python<'_>, stop: Stop) -> PyErr {
        match stop {
            Stop::Failed(e) => crate::run::run_error(&e),
            Stop::Memory(bytes) => out_of_memory(py, self.engine.device, bytes),
            Stop::Python(e) => e,
            Stop::Library(_) => PyRuntimeError::new_err("a library call failed"),
        }
    }

    /// The exception for a stop. A library call that failed is made again from Python, which raises what PyTorch raises.
    pub(super) fn raise(&self, py: Python<'_>, call: &mut Call<'_>, stop: Stop) -> PyErr {
        let Stop::Library(step) = stop else {
            return self.stop(py, stop);
        };
        let What::Library(l) = &self.recipe.steps[step].what else {
            return PyRuntimeError::new_err("no library call");
        };
        let name = format!("{:?}", l.op);
        let name = name
            .split([' ', '{'])
            .next()
            .unwrap_or_default()
            .to_string();
        for s in l.call.reads() {
            if self.show(py, call, s).is_err() || call.slots[s].is_none() {
                return PyRuntimeError::new_err(format!(
                    "PyTorch refused a library call ({name}); what it wrote to stderr says why"
                ));
            }
        }
        match l.call.run(py, call) {
            Err(e) => e,
            Ok(()) => PyRuntimeError::new_err(format!("PyTorch refused a library call ({name})")),
        }
    }
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
