//! CUDA graphs: whole calls are captured, one graph for each set of sizes, and replayed.
//!
//! The first calls at given sizes run as usual, which also shows which arguments stay where they are (parameters, most often).
//! The next one is captured. The graph reads arguments that stay in place, and a replay checks that their addresses are the
//! same; the others are copied into memory of the graph. A call returns copies of the graph's results, so that no replay
//! writes memory that a caller holds. Memory that is allocated during the capture comes from a pool of PyTorch's, which all
//! graphs of one stream share: no value in it outlives a replay.

use super::run::Call;
use super::shim::{Handle, Shims};
use super::steps::out_of_memory;
use super::tensor::Owned;
use crate::errors::raise;
use inrush_host::devices;
use inrush_host::dtype_of;
use inrush_host::gpu::driver::Stream;
use inrush_host::gpu::plan::written;
use inrush_host::program::{Device, Out};
use pyo3::exceptions::PyRuntimeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyInt;
use smallvec::SmallVec;
use std::sync::{Mutex, OnceLock, PoisonError};

/// Calls before the one that is captured.
const WARM: usize = 2;
/// Graphs kept for one compiled graph: each holds memory.
const MAX_GRAPHS: usize = 8;

/// The graphs of one program.
#[derive(Default)]
pub struct Graphs {
    entries: Mutex<Vec<Entry>>,
    /// The reason for which nothing is captured.
    refused: Mutex<Option<String>>,
    /// By slot: steps write it.
    written: OnceLock<Vec<bool>>,
}

/// Values of the symbols and the stream.
type Key = (SmallVec<[Option<i64>; 8]>, usize);

/// The calls at one set of sizes and one stream.
struct Entry {
    key: Key,
    calls: usize,
    /// Addresses of the arguments at the last call, and whether they were the same at all calls.
    seen: Vec<(u64, bool)>,
    captured: Option<Captured>,
}

/// A captured call.
struct Captured {
    /// PyTorch's `CUDAGraph`.
    graph: Py<PyAny>,
    inputs: Vec<Input>,
    outputs: Vec<Result>,
}

/// An argument of a captured call.
struct Input {
    slot: usize,
    address: u64,
    /// The graph's own memory for it.
    copy: Option<Owned>,
    /// Steps write it.
    written: bool,
    /// Holds the memory that replays read in place of a scalar of the host.
    _lent: Option<Py<PyAny>>,
}

/// An output of a captured call.
enum Result {
    /// The argument in this slot.
    Argument(usize),
    /// A tensor in the graph's memory, of which the caller gets a copy.
    Tensor(Made),
    /// A number or a constant, the same at each replay of these sizes.
    Other(Py<PyAny>),
}

/// A tensor that a replay fills.
struct Made {
    object: Py<PyAny>,
    address: u64,
    dtype: i32,
    device: Device,
    sizes: SmallVec<[i64; 6]>,
    strides: SmallVec<[i64; 6]>,
    /// Bytes from its first to its last element, if it is dense; such a tensor is copied as bytes.
    dense: Option<usize>,
}

impl Made {
    fn of(py: Python<'_>, shims: &Shims, object: &Py<PyAny>) -> PyResult<Made> {
        let h = shims.tensor(object.bind(py))?;
        // SAFETY: the tensor is held by its object.
        let ((sizes, strides), (dtype, device)) = unsafe { (shims.shape(h)?, shims.kind(h)?) };
        // SAFETY: likewise.
        let (address, _, _) = unsafe { shims.data_on(h, device)? };
        Ok(Made {
            object: object.clone_ref(py),
            address,
            dtype,
            device,
            sizes: sizes.into(),
            strides: strides.into(),
            dense: dense(sizes, strides, dtype),
        })
    }

    /// Returns a copy of a replay's result, which the caller owns.
    fn copy(&self, py: Python<'_>, shims: &'static Shims, stream: Stream) -> PyResult<Py<PyAny>> {
        let (sizes, strides, dtype) = (&self.sizes, &self.strides, self.dtype);
        let made = shims.allocate(sizes, strides, dtype, self.device);
        let (handle, to) = made.ok_or_else(|| too_large(py, self.device, sizes, dtype))?;
        let owned = Owned { handle, shims };
        match self.dense {
            Some(0) => {}
            Some(bytes) => {
                let driver = devices::driver(self.device).map_err(raise)?;
                // SAFETY: both tensors are as long; the graph's stays, the other is the stream's until it is released.
                unsafe { driver.copy(to, self.address, bytes, stream) }.map_err(raise)?;
            }
            None => {
                let h = shims.tensor(self.object.bind(py))?;
                // SAFETY: both are live.
                if !unsafe { shims.copy(owned.handle, h) } {
                    return Err(failed());
                }
            }
        }
        // SAFETY: the tensor is owned.
        unsafe { shims.object(py, owned.handle) }
    }
}

/// Bytes of a tensor without holes and overlaps; `None` for others.
fn dense(sizes: &[i64], strides: &[i64], dtype: i32) -> Option<usize> {
    let element = dtype_of(dtype)?.size();
    if sizes.contains(&0) {
        return Some(0);
    }
    let mut axes: SmallVec<[(i64, i64); 6]> = (strides.iter().copied())
        .zip(sizes.iter().copied())
        .filter(|a| a.1 > 1)
        .collect();
    axes.sort_unstable();
    let mut next = 1i64;
    for (stride, size) in axes {
        if stride != next {
            return None;
        }
        next = next.checked_mul(size)?;
    }
    usize::try_from(next).ok()?.checked_mul(element)
}

fn failed() -> PyErr {
    PyRuntimeError::new_err("PyTorch refused to copy a tensor")
}

/// The caller's next step.
pub enum Todo {
    /// Nothing: the outputs.
    Done(SmallVec<[Py<PyAny>; 8]>),
    /// Run the steps as usual.
    Run,
}

impl Graphs {
    /// Why calls are not captured, if they are not.
    fn refused(&self) -> Option<String> {
        self.refused
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn refuse(&self, py: Python<'_>, why: String) -> PyResult<()> {
        let log = py.import("inrush.log")?.getattr("compile")?;
        let text = "calls are not captured as CUDA graphs: %s";
        log.call_method1("warning", (text, &why))?;
        *self.refused.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
        Ok(())
    }

    /// Gives up all graphs, once the device's work is done: other code takes the calls.
    pub fn forget(&self, py: Python<'_>, device: Device) -> PyResult<()> {
        *self.refused.lock().unwrap_or_else(PoisonError::into_inner) =
            Some("other code takes the calls".into());
        // Without the interpreter's lock, which a call that holds the entries may wait for.
        let entries = py.detach(|| {
            let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
            let on = devices::driver(device)?;
            let _entered = on.enter(on.primary_context(device.index)?)?;
            on.synchronize_all()?;
            Ok::<_, inrush_base::Error>(std::mem::take(&mut *entries))
        });
        drop(entries.map_err(raise)?);
        Ok(())
    }

    /// Replays a call, or captures it first; `run` runs the steps.
    pub fn call(
        &self,
        py: Python<'_>,
        shims: &'static Shims,
        (device, stream): (Device, Stream),
        call: &mut Call<'_>,
        run: &dyn Fn(Python<'_>, &mut Call<'_>) -> PyResult<()>,
    ) -> PyResult<Todo> {
        if self.refused().is_some() || capturing(device, stream)? {
            return Ok(Todo::Run);
        }
        let written = self.written.get_or_init(|| written(&call.runner.program));
        let addresses = match addresses(py, shims, (device, stream), call, written)? {
            Ok(a) => a,
            Err(why) => {
                self.refuse(py, why)?;
                return Ok(Todo::Run);
            }
        };
        let key: Key = (call.symbols.clone(), stream.0);
        // One call at a time: replays of one graph share its memory.
        // A call from a second thread runs uncaptured. Waiting here could deadlock: the owner runs
        // Python code, and this thread holds the interpreter's lock.
        let mut entries = match self.entries.try_lock() {
            Ok(e) => e,
            Err(_) => return Ok(Todo::Run),
        };
        let at = match entries.iter().position(|e| e.key == key) {
            Some(at) => at,
            None => {
                if entries.len() == MAX_GRAPHS {
                    entries.remove(0);
                }
                entries.push(Entry {
                    key,
                    calls: 0,
                    seen: addresses.iter().map(|a| (a.address, true)).collect(),
                    captured: None,
                });
                entries.len() - 1
            }
        };
        let entry = &mut entries[at];
        for (seen, a) in entry.seen.iter_mut().zip(&addresses) {
            seen.1 &= seen.0 == a.address;
            seen.0 = a.address;
        }
        entry.calls += 1;
        if entry.calls <= WARM {
            return Ok(Todo::Run);
        }
        // An argument that was read in place has moved: its address is part of the recorded
        // launches. The next capture copies it, since `seen` says by now that it does not stay.
        let moved = entry.captured.as_ref().is_some_and(|c| {
            (c.inputs.iter().zip(&addresses))
                .any(|(i, a)| i.copy.is_none() && i.address != a.address)
        });
        if moved {
            entry.captured = None;
        }
        if entry.captured.is_none() {
            match capture(py, shims, (device, stream), call, entry, &addresses, run) {
                Ok(c) => entry.captured = Some(c),
                Err(e) => {
                    self.refuse(py, e.to_string())?;
                    return Ok(Todo::Run);
                }
            }
        }
        let Some(captured) = &entry.captured else {
            return Ok(Todo::Run);
        };
        (captured.replay(py, shims, &addresses, call, stream)).map(Todo::Done)
    }
}

/// A tensor among the arguments, or the copy of one that is the host's.
struct Address {
    slot: usize,
    address: u64,
    handle: Handle,
    /// The copy on the device of a scalar of the host.
    lent: Option<Py<PyAny>>,
}

/// The tensors among the arguments, by position.
type Addresses = SmallVec<[Address; 32]>;

/// Returns them, or why the graph cannot be captured.
fn addresses(
    py: Python<'_>,
    shims: &'static Shims,
    on: (Device, Stream),
    call: &Call<'_>,
    written: &[bool],
) -> PyResult<std::result::Result<Addresses, String>> {
    let program = &call.runner.program;
    let mut out = Addresses::new();
    let slots = program.inputs.iter().copied();
    for slot in slots.chain(program.constants.iter().map(|c| c.0)) {
        let object = call.value(slot)?.bind(py);
        let Some(h) = shims.handle(object) else {
            if object.is_exact_instance_of::<PyInt>() {
                continue;
            }
            return Ok(Err(format!(
                "an argument is a {}",
                object.get_type().name()?
            )));
        };
        // SAFETY: the tensor is held by its slot.
        let (address, _, here) = unsafe { shims.data_on(h, on.0)? };
        if !here {
            let engine = call.runner.code.engine().filter(|_| !written[slot]);
            let copy = match engine {
                Some(e) => e.scalars.copy(py, shims, on, slot, (object, h))?,
                None => None,
            };
            let Some(copy) = copy else {
                return Ok(Err("an argument is on another device".into()));
            };
            out.push(Address {
                slot,
                address: copy.address,
                handle: shims.tensor(copy.object.bind(py))?,
                lent: Some(copy.object),
            });
            continue;
        }
        // SAFETY: as above.
        let (plain, (sizes, _)) = unsafe {
            let plain = shims.is_materialized(h, address as *const u8);
            (plain, shims.shape(h)?)
        };
        if !plain && !sizes.contains(&0) {
            return Ok(Err("an argument is negated where it is read".into()));
        }
        out.push(Address {
            slot,
            address,
            handle: h,
            lent: None,
        });
    }
    Ok(Ok(out))
}

/// Returns true if the stream is captured already. The steps become part of that capture.
fn capturing(device: Device, stream: Stream) -> PyResult<bool> {
    let driver = devices::driver(device).map_err(raise)?;
    driver.is_capturing(stream).map_err(raise)
}

/// Records the steps of a call. Nothing is computed meanwhile: the replay that follows does this.
///
/// # Errors
/// Errors of the steps or of PyTorch: an operation that waits for the device cannot be recorded.
fn capture(
    py: Python<'_>,
    shims: &'static Shims,
    (device, stream): (Device, Stream),
    call: &mut Call<'_>,
    entry: &Entry,
    addresses: &Addresses,
    run: &dyn Fn(Python<'_>, &mut Call<'_>) -> PyResult<()>,
) -> PyResult<Captured> {
    let program = &call.runner.program;
    let given: Vec<Option<Py<PyAny>>> = (call.slots.iter())
        .map(|s| s.as_ref().map(|s| s.clone_ref(py)))
        .collect();
    let mut inputs = Vec::with_capacity(addresses.len());
    let written = written(program);
    for (a, (_, stays)) in addresses.iter().zip(&entry.seen) {
        let h = a.handle;
        // Addresses of parameters are the same at all calls; of activations they are not.
        let copy = match stays {
            true => {
                if let Some(lent) = &a.lent {
                    call.slots[a.slot] = Some(lent.clone_ref(py));
                }
                None
            }
            false => {
                // SAFETY: the tensor is held by its slot.
                let (sizes, strides) = unsafe { shims.shape(h)? };
                let (_, dtype, _) = unsafe { shims.data_on(h, device)? };
                let made = shims.allocate(sizes, strides, dtype, device);
                let (handle, _) = made.ok_or_else(|| too_large(py, device, sizes, dtype))?;
                let owned = Owned { handle, shims };
                // SAFETY: both are live.
                if !unsafe { shims.copy(owned.handle, h) } {
                    return Err(PyRuntimeError::new_err("an argument cannot be copied"));
                }
                // SAFETY: the tensor is owned.
                call.slots[a.slot] = Some(unsafe { shims.object(py, owned.handle)? });
                Some(owned)
            }
        };
        inputs.push(Input {
            slot: a.slot,
            address: a.address,
            copy,
            written: written[a.slot],
            _lent: a.lent.as_ref().map(|l| l.clone_ref(py)),
        });
    }
    let begin = py.import("inrush.cuda_graphs")?.getattr("capture")?;
    let context = begin.call1((device.index, stream.0))?;
    let graph = context.call_method0("__enter__")?.unbind();
    let ran = run(py, call);
    let none = py.None();
    let closed = match &ran {
        Ok(()) => context.call_method1("__exit__", (&none, &none, &none)),
        Err(e) => context.call_method1("__exit__", (e.get_type(py), e.value(py), &none)),
    };
    let outputs = ran.and_then(|()| closed.map(drop)).and_then(|()| {
        (program.outputs.iter())
            .map(|o| match o {
                Out::Slot(s) => match &call.slots[*s] {
                    Some(v) if shims.handle(v.bind(py)).is_some() => {
                        // An output that is an argument is returned as the caller's own tensor.
                        let same = |a: &&Address| {
                            call.slots[a.slot].as_ref().is_some_and(|x| x.is(v)) || a.slot == *s
                        };
                        Ok(match addresses.iter().find(same) {
                            Some(a) => Result::Argument(a.slot),
                            None => Result::Tensor(Made::of(py, shims, v)?),
                        })
                    }
                    Some(v) => Ok(Result::Other(v.clone_ref(py))),
                    None => Ok(Result::Other(py.None())),
                },
                Out::Size(id) => {
                    let size = super::call::Frame::size(call, *id)?;
                    Ok(Result::Other(size.into_pyobject(py)?.into_any().unbind()))
                }
                Out::Constant(c) => Ok(Result::Other(call.runner.objects[*c].clone_ref(py))),
                Out::Mutation { .. } => Err(raise(inrush_base::Error::internal(
                    "new contents of an argument, which packages have",
                ))),
            })
            .collect::<PyResult<Vec<_>>>()
    });
    // The call's own slots again, for a run as usual if this did not work.
    for (slot, object) in call.slots.iter_mut().zip(given) {
        *slot = object;
    }
    Ok(Captured {
        graph,
        inputs,
        outputs: outputs?,
    })
}

/// The exception for a tensor that the device has no memory for.
fn too_large(py: Python<'_>, device: Device, sizes: &[i64], dtype: i32) -> PyErr {
    let elements = sizes.iter().map(|n| *n as u64).product::<u64>();
    let size = dtype_of(dtype);
    let bytes = elements.saturating_mul(size.map_or(1, |d| d.size() as u64));
    out_of_memory(py, device, bytes)
}

impl Captured {
    /// Copies arguments in, launches the graph, and copies written arguments and results out, all
    /// on the stream of the call.
    fn replay(
        &self,
        py: Python<'_>,
        shims: &'static Shims,
        addresses: &Addresses,
        call: &Call<'_>,
        stream: Stream,
    ) -> PyResult<SmallVec<[Py<PyAny>; 8]>> {
        for (i, a) in self.inputs.iter().zip(addresses) {
            debug_assert_eq!(i.slot, a.slot);
            if let Some(copy) = &i.copy
                // SAFETY: both are live.
                && !unsafe { shims.copy(copy.handle, a.handle) }
            {
                return Err(failed());
            }
        }
        self.graph.call_method0(py, intern!(py, "replay"))?;
        for (i, a) in self.inputs.iter().zip(addresses) {
            if let Some(copy) = i.copy.as_ref().filter(|_| i.written)
                // SAFETY: both are live.
                && !unsafe { shims.copy(a.handle, copy.handle) }
            {
                return Err(failed());
            }
        }
        (self.outputs.iter())
            .map(|o| match o {
                Result::Other(v) => Ok(v.clone_ref(py)),
                Result::Argument(slot) => Ok(call.value(*slot)?.clone_ref(py)),
                Result::Tensor(t) => t.copy(py, shims, stream),
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use inrush_base::DType;
    use inrush_host::dtype_code;

    #[test]
    fn tensors_without_holes_are_told_from_others() {
        let f32 = dtype_code(DType::F32);
        assert_eq!(dense(&[2, 3], &[3, 1], f32), Some(24));
        assert_eq!(dense(&[2, 3], &[1, 2], f32), Some(24));
        assert_eq!(dense(&[2, 1, 3], &[3, 77, 1], f32), Some(24));
        assert_eq!(dense(&[2, 3], &[4, 1], f32), None);
        assert_eq!(dense(&[2, 3], &[0, 1], f32), None);
        assert_eq!(dense(&[0, 3], &[3, 1], f32), Some(0));
        assert_eq!(dense(&[], &[], f32), Some(4));
    }
}
