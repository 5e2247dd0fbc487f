//! Packages on a GPU, in PyTorch's process.
//!
//! Calls read PyTorch's tensors where they are, on PyTorch's current stream, and return before the work is done. All memory
//! of calls and weights is from PyTorch's allocator, so that outputs are tensors like any other. The interpreter is needed for
//! the arguments and the results; the call itself runs without its lock.

use super::{Inputs, SignatureLines, signature_lines, weight_copy, weight_view};
use crate::errors::raise;
use crate::host::device::{Functions, OnStream, functions, present};
use crate::host::kinds;
use crate::host::run::{scalar, share};
use crate::host::shim::{Shims, shims};
use crate::host::tensor::Owned;
use inrush_base::{Error, ErrorKind};
use inrush_host::gpu::driver::{DevicePtr, Driver};
use inrush_host::native::{
    Argument, DeviceTensor, Model, NewWeight, Options, Output, Owner, Stream, TensorLibrary,
    check_kind,
};
use inrush_host::program::Device;
use inrush_host::{Shape, devices, dtype_code, dtype_of};
use inrush_package::Package;
use inrush_program::Reads;
use inrush_runtime::{InputKind, Names, OutputSpec, Signature, Value};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use smallvec::SmallVec;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

/// PyTorch, as the library that lends calls its memory.
#[derive(Clone, Copy)]
struct Torch {
    shims: &'static Shims,
    streams: &'static Functions,
    device: Device,
}

impl fmt::Debug for Torch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PyTorch on {}", devices::name(self.device))
    }
}

impl TensorLibrary for Torch {
    fn allocate(&self, s: &Shape, stream: Stream) -> Option<(Owner, DevicePtr)> {
        // PyTorch gives freed memory to later work of the stream that was current at the allocation.
        let on = self.enter(stream).ok()?;
        let made = (self.shims).allocate(&s.sizes, &s.strides, s.dtype, self.device);
        let (handle, address) = made?;
        let owned = Owned {
            handle,
            shims: self.shims,
        };
        match on {
            Entered::Stream(_) => Some((Arc::new(owned), address)),
            Entered::Apart(driver, current) => {
                driver.synchronize(current).ok()?;
                let lent = Lent {
                    owned,
                    driver,
                    device: self.device,
                };
                Some((Arc::new(lent), address))
            }
        }
    }

    unsafe fn copy(
        &self,
        (to, to_shape): (DevicePtr, &Shape),
        (from, from_shape): (DevicePtr, &Shape),
        stream: Stream,
    ) -> inrush_base::Result<()> {
        let failed = || Error::machine("PyTorch refuses to copy a tensor into another layout");
        let on = self.enter(stream)?;
        if let Entered::Apart(driver, _) = &on {
            driver.synchronize(stream)?;
        }
        let over = |at, s: &Shape| {
            let made = (self.shims).blob(at, &s.sizes, &s.strides, s.dtype, self.device);
            made.map(|handle| Owned {
                handle,
                shims: self.shims,
            })
        };
        let to = over(to, to_shape).ok_or_else(failed)?;
        let from = over(from, from_shape).ok_or_else(failed)?;
        // SAFETY: both handles are owned; the memory is the caller's by its promise.
        if !unsafe { self.shims.copy(to.handle, from.handle) } {
            return Err(failed());
        }
        match &on {
            Entered::Apart(driver, current) => driver.synchronize(*current),
            Entered::Stream(_) => Ok(()),
        }
    }
}

/// A stream that PyTorch works on.
enum Entered {
    /// The one that was asked for, which is PyTorch's current one while this lives.
    Stream(#[allow(dead_code, reason = "dropped at the end")] OnStream),
    /// One of the driver's own, which is none of PyTorch's. PyTorch works on its current one, and one of both is waited for before the
    /// other one goes on.
    Apart(Driver, Stream),
}

/// Memory that PyTorch lends to work of streams that it does not know.
struct Lent {
    owned: Owned,
    driver: Driver,
    device: Device,
}

impl Drop for Lent {
    fn drop(&mut self) {
        let context = self.driver.primary_context(self.device.index);
        let entered = context.and_then(|c| self.driver.enter(c));
        // PyTorch gives the memory to other work at once. After a failure of the device nothing runs.
        _ = entered.map(|_entered| self.driver.synchronize_all());
    }
}

impl Torch {
    /// Has PyTorch work on a stream.
    fn enter(&self, stream: Stream) -> inrush_base::Result<Entered> {
        let failed = || Error::machine("PyTorch does not take a stream of the device");
        if self.streams.knows(self.device, stream) {
            let on = self.streams.enter(self.device, stream).ok_or_else(failed)?;
            return Ok(Entered::Stream(on));
        }
        let current = self.streams.current(self.device)?;
        Ok(Entered::Apart(devices::driver(self.device)?, current))
    }
}

/// Marks memory of an argument, by position.
struct OfArgument(usize);

/// A package that was loaded for a GPU: a callable of flat arguments.
#[pyclass(frozen, module = "inrush._native")]
pub struct DevicePackage {
    model: Model,
    signature: Signature,
    torch: Torch,
}

/// Arguments as the model takes them, and the Python objects whose memory they are.
type Arguments<'py> = (Vec<Argument>, SmallVec<[Bound<'py, PyAny>; 16]>);

impl DevicePackage {
    /// Returns PyTorch's current stream of the device.
    fn stream(&self) -> PyResult<Stream> {
        (self.torch.streams.current(self.torch.device)).map_err(raise)
    }

    /// Reads the arguments of a call.
    fn arguments<'py>(&self, args: &Bound<'py, PyTuple>) -> PyResult<Arguments<'py>> {
        let inputs = &self.signature.inputs;
        if args.len() != inputs.len() {
            return Err(raise(Error::input(format!(
                "the program takes {} inputs, not {}",
                inputs.len(),
                args.len()
            ))));
        }
        let mut values = Vec::with_capacity(inputs.len());
        let mut held = SmallVec::new();
        for (k, (arg, spec)) in args.iter().zip(inputs).enumerate() {
            let named = |e: Error| raise(e.context(format!("input `{}`", spec.name)));
            let mut arg = arg;
            values.push(match spec.kind {
                InputKind::Tensor { .. } => {
                    if !self.is_materialized(&arg)? {
                        if spec.written {
                            let text =
                                "the program writes it, and its memory does not hold its values";
                            return Err(named(Error::input(text)));
                        }
                        arg = materialized(&arg)?;
                    }
                    Argument::Device(self.tensor(&arg, Arc::new(OfArgument(k)), &named)?)
                }
                InputKind::Int => Argument::Value(Value::Int(arg.extract()?)),
                InputKind::Constant(_) | InputKind::Ignored => Argument::Value(Value::None),
            });
            held.push(arg);
        }
        Ok((values, held))
    }

    /// Returns true if a tensor's memory holds its values.
    fn is_materialized(&self, arg: &Bound<'_, PyAny>) -> PyResult<bool> {
        let shims = self.torch.shims;
        let h = shims.tensor(arg)?;
        // SAFETY: the caller holds the tensor.
        unsafe {
            let (address, ..) = shims.data_on(h, self.torch.device)?;
            let (sizes, _) = shims.shape(h)?;
            Ok(sizes.contains(&0) || shims.is_materialized(h, address as *const u8))
        }
    }

    /// Returns a tensor of PyTorch where it is.
    fn tensor(
        &self,
        arg: &Bound<'_, PyAny>,
        owner: Owner,
        named: &dyn Fn(Error) -> PyErr,
    ) -> PyResult<DeviceTensor> {
        let shims = self.torch.shims;
        let h = shims.tensor(arg)?;
        // SAFETY: the caller holds the tensor.
        let ((address, code, here), (sizes, strides)) =
            unsafe { (shims.data_on(h, self.torch.device)?, shims.shape(h)?) };
        if !here {
            let on: String = arg.getattr("device")?.str()?.extract()?;
            return Err(named(Error::input(format!(
                "it is on {on}, the package was loaded for {}",
                devices::name(self.torch.device)
            ))));
        }
        let dtype =
            dtype_of(code).ok_or_else(|| named(Error::input("it has no dtype of inrush")))?;
        let layout = (sizes.to_vec(), strides.to_vec());
        let at = (address, self.torch.device);
        // SAFETY: the tensor is on the device, and the caller holds it.
        unsafe { DeviceTensor::foreign(dtype, layout, at, owner) }.map_err(named)
    }

    /// Returns an output as a tensor of PyTorch in the memory that it is in.
    fn output(
        &self,
        py: Python<'_>,
        t: &DeviceTensor,
        held: &[Bound<'_, PyAny>],
    ) -> PyResult<Py<PyAny>> {
        let shims = self.torch.shims;
        let code = dtype_code(t.dtype);
        let steps = |from: DevicePtr| t.address().wrapping_sub(from) as i64 / t.dtype.size() as i64;
        if let Some((of, _)) = t.owner::<OfArgument>() {
            let base = &held[of.0];
            let h = shims.tensor(base)?;
            // SAFETY: the caller holds the argument.
            let (from, base_code, _) = unsafe { shims.data_on(h, self.torch.device)? };
            if base_code == code {
                return share(shims, base, &t.sizes, &t.strides, steps(from));
            }
            return shims.view(py, h, &t.sizes, &t.strides, steps(from), Some(code));
        }
        let lent = t.owner::<Lent>().map(|(lent, from)| (&lent.owned, from));
        let Some((own, Some(from))) = t.owner::<Owned>().or(lent) else {
            return Err(raise(Error::internal("an output in memory of no tensor")));
        };
        // SAFETY: the output holds the tensor.
        let ((_, base_code, _), (sizes, strides)) = unsafe {
            (
                shims.data_on(own.handle, self.torch.device)?,
                shims.shape(own.handle)?,
            )
        };
        let dtype = (base_code != code).then_some(code);
        if dtype.is_none() && steps(from) == 0 && sizes == t.sizes && strides == t.strides {
            // SAFETY: as above; the object takes a reference of its own.
            return unsafe { shims.object(py, own.handle) };
        }
        shims.view(py, own.handle, &t.sizes, &t.strides, steps(from), dtype)
    }
}

#[pymethods]
impl DevicePackage {
    /// Says which records of kernels were not used, and what could not be kept.
    fn notes(&self) -> Vec<String> {
        self.model.notes()
    }

    #[pyo3(signature = (*args))]
    fn __call__<'py>(
        &self,
        py: Python<'py>,
        args: &Bound<'py, PyTuple>,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let stream = self.stream()?;
        let (values, held) = self.arguments(args)?;
        let outputs = py.detach(|| {
            let outputs = self.model.call(&values, Some(stream));
            let t = &self.torch;
            t.streams.tell(t.shims, t.device, stream);
            outputs
        });
        let outputs = outputs.map_err(|e| call_error(py, &e))?;
        let mut results: SmallVec<[Py<PyAny>; 8]> = SmallVec::new();
        for (value, spec) in outputs.iter().zip(&self.signature.outputs) {
            if *spec == OutputSpec::Mutation {
                continue;
            }
            results.push(match value {
                Output::Device(t) => self.output(py, t, &held)?,
                Output::Value(Value::Int(v)) => v.into_pyobject(py)?.into_any().unbind(),
                Output::Value(Value::Scalar(v)) => scalar(py, *v)?,
                Output::Value(Value::None) => py.None(),
                Output::Value(Value::Tensor(_)) => {
                    return Err(raise(Error::internal("an output in memory of the host")));
                }
            });
        }
        PyTuple::new(py, results)
    }

    /// Replaces weights of the inactive set by copies of dense tensors of the CPU or of the device.
    fn update_weights(
        &self,
        py: Python<'_>,
        weights: Vec<(String, Bound<'_, PyAny>)>,
        all: bool,
    ) -> PyResult<()> {
        let (shims, stream) = (self.torch.shims, self.stream()?);
        let mut on_device: Vec<Option<DeviceTensor>> = Vec::with_capacity(weights.len());
        for (name, t) in &weights {
            let named = |e: Error| raise(e.context(format!("weight `{name}`")));
            // SAFETY: the list holds the tensor.
            let (_, on) = unsafe { shims.kind(shims.tensor(t)?)? };
            on_device.push(match on.is_gpu() {
                true => Some(self.tensor(t, Arc::new(()), &named)?.written_on(stream)),
                false => None,
            });
        }
        let mut new: Vec<(&str, NewWeight<'_>)> = Vec::with_capacity(weights.len());
        for ((name, t), on_device) in weights.iter().zip(&on_device) {
            let weight = match on_device {
                Some(t) => NewWeight::Device(t),
                // SAFETY: the list holds the tensor.
                None => NewWeight::Host(unsafe { weight_view(shims, name, t) }?),
            };
            new.push((name, weight));
        }
        let names = if all { Names::All } else { Names::Some };
        py.detach(|| self.model.update_weights(&new, names))
            .map_err(raise)
    }

    /// Makes the inactive set the active one. Calls that have begun finish on the old set.
    fn swap_weights(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.model.swap_weights()).map_err(raise)
    }

    /// Forgets the inactive set.
    fn discard_update(&self, py: Python<'_>) {
        py.detach(|| self.model.discard_update());
    }

    /// Returns copies of all weights and buffers of the active set, as they are now, in memory of the CPU.
    fn weights<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let all = PyDict::new(py);
        for spec in self.model.weights() {
            let weight = py.detach(|| self.model.weight(&spec.name)).map_err(raise)?;
            all.set_item(spec.name, weight_copy(py, self.torch.shims, weight)?)?;
        }
        Ok(all)
    }

    /// Returns the lines of the signature.
    fn signature(&self) -> SignatureLines {
        signature_lines(&self.signature, self.model.weights())
    }
}

/// Returns the exception for an error of a call: PyTorch's for too little memory.
fn call_error(py: Python<'_>, e: &Error) -> PyErr {
    if e.kind() != ErrorKind::OutOfMemory {
        return raise(e.clone());
    }
    let made = || -> PyResult<PyErr> {
        let class = py.import("torch")?.getattr("OutOfMemoryError")?;
        Ok(PyErr::from_value(class.call1((e.to_string(),))?))
    };
    made().unwrap_or_else(|e| e)
}

/// Returns a copy of a tensor whose memory does not hold its values, such as a negated view, with the same strides.
fn materialized<'py>(arg: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = arg.py();
    let layout = (arg.getattr("shape")?, arg.call_method0("stride")?);
    let copy = arg.call_method1(intern!(py, "new_empty_strided"), layout)?;
    copy.call_method1(intern!(py, "copy_"), (arg,))?;
    Ok(copy)
}

/// Loads a package for the GPU `on`, such as `cuda:0`: a callable of flat arguments, and what these are. Kernels whose source the package
/// holds are built by this interpreter's Triton if `build_kernels` is true; `records` is a folder that keeps them besides the cache.
#[pyfunction]
pub fn load_device_package(
    py: Python<'_>,
    path: PathBuf,
    on: &str,
    seed: i64,
    cuda_graphs: bool,
    concurrent: usize,
    build_kernels: bool,
    records: Option<PathBuf>,
) -> PyResult<(DevicePackage, Inputs)> {
    let device = kinds::kinds(py)?.parse(on)?;
    let in_file = |e: Error| raise(e.in_file(path.display().to_string()));
    let package = py.detach(|| Package::open(&path)).map_err(raise)?;
    check_kind(&package, device).map_err(in_file)?;
    if !present(py, device)? {
        return Err(raise(Error::machine(format!(
            "`{on}`: PyTorch sees no such device on this machine; without PyTorch `inrush_runtime.load` runs packages on all kinds"
        ))));
    }
    if let Some(e) = kinds::refusal(py, device) {
        return Err(raise(e));
    }
    let torch = Torch {
        shims: shims(py)?,
        streams: functions(py, device)?,
        device,
    };
    let options = Options {
        concurrent,
        capture: cuda_graphs,
        seed,
        library: Some(Arc::new(torch)),
        build_kernels,
        python: py.import("sys")?.getattr("executable")?.extract()?,
        records,
    };
    let model = py
        .detach(|| Model::from_package(&package, device, options))
        .map_err(in_file)?;
    let signature = model.signature().clone();
    let inputs = (signature.inputs.iter().zip(model.input_reads()))
        .map(|(i, reads)| {
            let tensor = match &i.kind {
                InputKind::Tensor { dtype, sizes } => Some((dtype.torch_name(), sizes.len())),
                _ => None,
            };
            (i.name.clone(), tensor, None, reads == Reads::Storage)
        })
        .collect();
    let loaded = DevicePackage {
        model,
        signature,
        torch,
    };
    Ok((loaded, inputs))
}
