//! A loaded package: it is called like the module that was exported, and takes new weights while calls run.

use crate::argument::Arguments;
use crate::device::{DeviceTensor, stream_of};
use crate::errors::{InputError, raise, raise_load};
use crate::nesting::{Nesting, Node};
use crate::signature::{Signature, scalar};
use crate::{array, tensor};
use inrush_base::{Error, Result, strides_nest};
use inrush_host::native::{Argument, NewWeight, Options, Output, Stream};
use inrush_host::program::Device;
use inrush_host::{Open, Session};
use inrush_runtime::dlpack::Borrow;
use inrush_runtime::tensor::extent;
use inrush_runtime::{Names, OutputSpec, Package, Pool, Value};
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyDict, PyMemoryView, PyTuple};
use std::path::PathBuf;

/// A loaded package. Calls and updates may come from several threads at once.
#[pyclass(frozen, module = "inrush_runtime")]
pub(crate) struct Model {
    session: Session,
    arguments: Arguments,
    /// How outputs are nested; one output is itself and several are a tuple where the package does not say.
    nesting: Option<Node>,
    outputs: Vec<OutputSpec>,
    /// Inputs, outputs and weights.
    #[pyo3(get)]
    signature: Py<Signature>,
    /// The file, if it came from one.
    name: String,
}

/// Where a package is.
enum Source {
    Path(PathBuf),
    Memory(Vec<u8>),
}

impl Source {
    fn of(obj: &Bound<'_, PyAny>) -> PyResult<Source> {
        let in_memory = obj.is_instance_of::<PyBytes>()
            || obj.is_instance_of::<PyByteArray>()
            || obj.is_instance_of::<PyMemoryView>();
        if in_memory {
            let bytes = obj.py().get_type::<PyBytes>().call1((obj,))?;
            return Ok(Source::Memory(bytes.extract()?));
        }
        Ok(Source::Path(obj.extract()?))
    }

    fn open(self) -> Result<Package> {
        match self {
            Source::Path(path) => Package::open(&path),
            Source::Memory(bytes) => Package::read(bytes),
        }
    }
}

/// Loads a package from a file or from its bytes.
///
/// ``device`` is ``"cpu"``, or a GPU such as ``"cuda:0"``. ``threads`` run each call on the CPU, by default one for each processor.
/// ``seed`` is that of the first call's random numbers if the model draws some. ``flat`` takes inputs and gives outputs in order,
/// without the nesting of the exported module. On a GPU, ``cuda_graphs`` captures calls from the second of the same sizes on,
/// and up to ``concurrent`` calls run at once. Kernels whose source the package holds are built if ``build_kernels`` says so, by this
/// interpreter's Triton, which runs code of the package; ``records`` is a folder that keeps them besides the cache.
#[pyfunction]
#[pyo3(signature = (
    source, threads=None, *, device="cpu", seed=0, flat=false, cuda_graphs=false, concurrent=4, build_kernels=false, records=None
))]
#[allow(clippy::too_many_arguments)]
pub(crate) fn load(
    py: Python<'_>,
    source: &Bound<'_, PyAny>,
    threads: Option<usize>,
    device: &str,
    seed: i64,
    flat: bool,
    cuda_graphs: bool,
    concurrent: usize,
    build_kernels: bool,
    records: Option<PathBuf>,
) -> PyResult<Model> {
    let source = Source::of(source)?;
    let name = match &source {
        Source::Path(path) => path.display().to_string(),
        Source::Memory(_) => "bytes".to_string(),
    };
    // Mistakes in the arguments, which are not the package's.
    Pool::new(threads).map_err(raise)?;
    let cpu = matches!(device, "" | "cpu");
    if !cpu {
        inrush_host::native::device::parse(device).map_err(raise)?;
    } else if cuda_graphs {
        return Err(InputError::new_err(
            "CUDA graphs are for GPUs, not for the CPU",
        ));
    }
    let how = Open {
        device: device.into(),
        threads,
        options: Options {
            concurrent,
            capture: cuda_graphs,
            seed,
            build_kernels,
            python: interpreter(py)?,
            records,
            ..Options::default()
        },
    };
    let open = || -> Result<(Session, Option<Nesting>)> {
        let package = source.open()?;
        let nesting = if flat { None } else { Nesting::of(&package)? };
        Ok((Session::new(package, &how)?, nesting))
    };
    let in_file = |e: Error| raise_load(e.in_file(name.clone()));
    let (session, nesting) = py.detach(open).map_err(in_file)?;
    let signature = session.signature();
    let returned = |o: &&OutputSpec| **o != OutputSpec::Mutation;
    let returned = signature.outputs.iter().filter(returned).count();
    if let Some(n) = nesting
        .as_ref()
        .map(|n| n.outputs.leaves())
        .filter(|n| *n != returned)
    {
        let text = format!("the package's nesting has {n} outputs, its program {returned}");
        return Err(in_file(Error::input(text)));
    }
    let made = Signature::new(py, &signature, &session.weights())?;
    Ok(Model {
        arguments: Arguments::new(signature.inputs, nesting.as_ref()).map_err(in_file)?,
        nesting: nesting.map(|n| n.outputs),
        outputs: signature.outputs,
        signature: Py::new(py, made)?,
        session,
        name,
    })
}

/// Returns the interpreter of this process.
fn interpreter(py: Python<'_>) -> PyResult<Option<PathBuf>> {
    py.import("sys")?.getattr("executable")?.extract()
}

impl Model {
    /// Returns the stream that tensors of GPUs come after: the call's, or one that the model's own streams wait for. `None` on the CPU.
    fn import_stream(&self, stream: Option<Stream>) -> Option<Stream> {
        match &self.session {
            Session::Cpu(_) => None,
            Session::Gpu(m) => Some(stream.unwrap_or_else(|| m.import_stream())),
        }
    }

    /// Nests what a call returns.
    fn nest<'py>(
        &self,
        py: Python<'py>,
        mut flat: Vec<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        match &self.nesting {
            Some(node) => node.build(py, &mut flat.into_iter()),
            None if flat.len() == 1 => Ok(flat.remove(0)),
            None => Ok(PyTuple::new(py, flat)?.into_any()),
        }
    }

    /// Runs a call into arrays of the caller, which it returns.
    fn run_into<'py>(
        &self,
        py: Python<'py>,
        inputs: Vec<Argument>,
        out: &Bound<'py, PyAny>,
        stream: Option<Stream>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let given: Vec<Bound<'py, PyAny>> = out.try_iter()?.collect::<PyResult<_>>()?;
        let wanted = (self.outputs.iter()).filter(|o| **o != OutputSpec::Mutation);
        if wanted.count() != given.len() {
            return Err(InputError::new_err(format!(
                "`out` has {} arrays, the model gives {} outputs",
                given.len(),
                self.outputs.len()
            )));
        }
        let mut arrays = given.iter();
        let mut values = Vec::with_capacity(self.outputs.len());
        let mut spans: Vec<Span> = Vec::new();
        let import = self.import_stream(stream);
        for (k, o) in self.outputs.iter().enumerate() {
            values.push(match o {
                OutputSpec::Mutation => Argument::Value(Value::None),
                OutputSpec::None => {
                    arrays.next();
                    Argument::Value(Value::None)
                }
                OutputSpec::Int | OutputSpec::Scalar(_) => {
                    return Err(InputError::new_err(format!(
                        "output {k} is a number, which `out` cannot take"
                    )));
                }
                OutputSpec::Tensor { .. } => {
                    let place = format!("output {k}");
                    let array = arrays
                        .next()
                        .ok_or_else(|| InputError::new_err(place.clone()))?;
                    let t = array::argument(array, Borrow::Output, import)
                        .map_err(|e| array::at(py, &place, e))?;
                    spans.extend(Span::of(&t));
                    t
                }
            });
        }
        check_apart(&spans).map_err(raise)?;
        // SAFETY: elements of the arrays have memory of their own (checked). The caller leaves them alone during the call, as NumPy
        // asks for its functions without the interpreter's lock.
        let run = || unsafe { self.session.run_into(inputs, values, stream) };
        py.detach(run).map_err(raise)?;
        self.nest(py, given)
    }
}

/// The memory of an output.
struct Span {
    /// `None` for the host.
    device: Option<Device>,
    start: usize,
    bytes: usize,
    /// Strides and sizes above 1.
    dims: Vec<(i64, i64)>,
}

impl Span {
    fn of(a: &Argument) -> Option<Span> {
        let (device, start, sizes, strides, size) = match a {
            Argument::Value(Value::Tensor(t)) => (
                None,
                t.data() as usize,
                &t.sizes,
                &t.strides,
                t.dtype.size(),
            ),
            Argument::Device(t) => (
                Some(t.device()),
                t.address() as usize,
                &t.sizes,
                &t.strides,
                t.dtype.size(),
            ),
            Argument::Value(_) => return None,
        };
        let dims = strides.iter().copied().zip(sizes.iter().copied());
        Some(Span {
            device,
            start,
            bytes: extent(sizes, strides).unwrap_or(0) * size,
            dims: dims.filter(|(_, n)| *n > 1).collect(),
        })
    }
}

/// Checks that no two elements of outputs share memory.
fn check_apart(outputs: &[Span]) -> Result<()> {
    for (k, t) in outputs.iter().enumerate() {
        if !strides_nest(&mut t.dims.clone()) {
            return Err(Error::input(format!(
                "output {k}: elements of the array share memory"
            )));
        }
        for (j, other) in outputs[..k].iter().enumerate() {
            let apart = t.start + t.bytes <= other.start || other.start + other.bytes <= t.start;
            if t.device == other.device && !apart {
                return Err(Error::input(format!("outputs {j} and {k} share memory")));
            }
        }
    }
    Ok(())
}

#[pymethods]
impl Model {
    /// On a GPU, ``stream`` is the stream that all work is issued on: an integer, or an object with ``__cuda_stream__`` or
    /// ``cuda_stream``. The call returns before the work is done then, if no array is in memory of the host. Without it, outputs
    /// are there when the call returns. They are ``DeviceTensor`` objects.
    #[pyo3(signature = (*args, out=None, stream=None, **kwargs))]
    fn __call__<'py>(
        &self,
        py: Python<'py>,
        args: &Bound<'py, PyTuple>,
        out: Option<&Bound<'py, PyAny>>,
        stream: Option<&Bound<'py, PyAny>>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        // An input of this name is the model's.
        let named = match (stream, kwargs) {
            (Some(value), kwargs) if self.arguments.has("stream") => {
                let all = kwargs.map_or_else(|| Ok(PyDict::new(py)), |k| k.copy())?;
                all.set_item("stream", value)?;
                Some(all)
            }
            _ => None,
        };
        let (stream, kwargs) = match &named {
            Some(all) => (None, Some(all)),
            None => (stream, kwargs),
        };
        let stream = stream.map(stream_of).transpose()?;
        let inputs = self
            .arguments
            .bind(args, kwargs, self.import_stream(stream))?;
        if let Some(out) = out {
            return self.run_into(py, inputs, out, stream);
        }
        let outputs = (py.detach(|| self.session.run(inputs, stream))).map_err(raise)?;
        let mut flat = Vec::with_capacity(outputs.len());
        for (value, spec) in outputs.into_iter().zip(&self.outputs) {
            if *spec == OutputSpec::Mutation {
                continue;
            }
            flat.push(match value {
                Output::Device(tensor) => Bound::new(py, DeviceTensor { tensor })?.into_any(),
                Output::Value(Value::Tensor(t)) => tensor::array(py, t)?,
                Output::Value(Value::Int(i)) => i.into_pyobject(py)?.into_any(),
                Output::Value(Value::Scalar(s)) => scalar(py, s)?.into_bound(py),
                Output::Value(Value::None) => py.None().into_bound(py),
            });
        }
        self.nest(py, flat)
    }

    /// Returns copies of all weights and buffers of the active set, as they are now, by name.
    fn weights<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let all = PyDict::new(py);
        for spec in self.session.weights() {
            let weight = py.detach(|| self.session.weight(&spec.name));
            let weight = weight.map_err(raise)?;
            let weight = weight.ok_or_else(|| {
                raise(Error::out_of_memory(format!(
                    "out of memory for a copy of the weight `{}`",
                    spec.name
                )))
            })?;
            all.set_item(spec.name, tensor::array(py, weight)?)?;
        }
        Ok(all)
    }

    /// Replaces weights of the inactive set by copies of arrays, by name. Those of a GPU's memory are copied there. Several updates add up until ``swap_weights``. With
    /// ``all``, every weight must be named. Calls go on meanwhile.
    #[pyo3(signature = (weights, *, all=false))]
    fn update_weights(
        &self,
        py: Python<'_>,
        weights: &Bound<'_, PyAny>,
        all: bool,
    ) -> PyResult<()> {
        let mut given: Vec<(String, Argument)> = Vec::new();
        let import = self.import_stream(None);
        for item in weights.call_method0("items")?.try_iter()? {
            let (name, array): (String, Bound<'_, PyAny>) = item?.extract()?;
            let t = array::argument(&array, Borrow::ReadOnly, import)
                .map_err(|e| array::at(py, &format!("weight `{name}`"), e))?;
            given.push((name, t));
        }
        let names = if all { Names::All } else { Names::Some };
        let update = || {
            let new: Vec<(&str, NewWeight<'_>)> = (given.iter())
                .filter_map(|(name, t)| match t {
                    Argument::Value(Value::Tensor(t)) => {
                        Some((name.as_str(), NewWeight::Host(t.view())))
                    }
                    Argument::Device(t) => Some((name.as_str(), NewWeight::Device(t))),
                    Argument::Value(_) => None,
                })
                .collect();
            self.session.update_weights(&new, names)
        };
        py.detach(update).map_err(raise)
    }

    /// Makes the inactive set the active one. Calls that have begun finish on the old set.
    fn swap_weights(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.session.swap_weights()).map_err(raise)
    }

    /// Forgets the inactive set.
    fn discard_update(&self, py: Python<'_>) {
        py.detach(|| self.session.discard_update());
    }

    /// Sets the seed of the next call's random numbers.
    fn set_seed(&self, py: Python<'_>, seed: i64) -> PyResult<()> {
        if py.detach(|| self.session.set_seed(seed)).map_err(raise)? {
            Ok(())
        } else {
            Err(InputError::new_err("the model draws no random numbers"))
        }
    }

    /// Threads of a call on the CPU; calls that run at once on a GPU.
    #[getter]
    fn threads(&self) -> usize {
        self.session.threads()
    }

    /// The device: ``cpu``, or a GPU such as ``cuda:0``.
    #[getter]
    fn device(&self) -> String {
        self.session.device()
    }

    fn __repr__(&self) -> String {
        format!("inrush_runtime.Model({:?})", self.name)
    }
}
