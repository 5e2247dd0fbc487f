//! A loaded package: it is called like the module that was exported, and takes new weights while calls run.

use crate::argument::Arguments;
use crate::errors::{InputError, raise, raise_load};
use crate::nesting::{Nesting, Node};
use crate::signature::{Signature, scalar};
use crate::{array, tensor};
use inrush_base::{Error, Result, strides_nest};
use inrush_runtime::dlpack::Borrow;
use inrush_runtime::tensor::extent;
use inrush_runtime::{
    Model as RuntimeModel, Names, OutputSpec, Package, Pool, Session,
    Signature as RuntimeSignature, Tensor, Value, WeightView,
};
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyDict, PyMemoryView, PyTuple};
use std::path::PathBuf;
use std::sync::Arc;

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
/// ``threads`` run each call, by default one for each processor. ``seed`` is that of the first call's random numbers if the
/// model draws some. ``flat`` takes inputs and gives outputs in order, without the nesting of the exported module.
#[pyfunction]
#[pyo3(signature = (source, threads=None, *, seed=0, flat=false))]
pub(crate) fn load(
    py: Python<'_>,
    source: &Bound<'_, PyAny>,
    threads: Option<usize>,
    seed: i64,
    flat: bool,
) -> PyResult<Model> {
    let source = Source::of(source)?;
    let name = match &source {
        Source::Path(path) => path.display().to_string(),
        Source::Memory(_) => "bytes".to_string(),
    };
    // A mistake in the arguments, which is not the package's.
    let pool = Pool::new(threads).map_err(raise)?;
    let open = || -> Result<(RuntimeModel, Option<Nesting>)> {
        let package = source.open()?;
        let nesting = if flat { None } else { Nesting::of(&package)? };
        let model = RuntimeModel::from_package(package, Arc::new(pool))?;
        // Loading has used the pool. Calls get one whose threads have not started, so that the process can fork before them.
        let model = model.on_pool(Arc::new(Pool::new(threads)?));
        Ok((model, nesting))
    };
    let in_file = |e: Error| raise_load(e.in_file(name.clone()));
    let (model, nesting) = py.detach(open).map_err(in_file)?;
    model.set_seed(seed);
    let signature = RuntimeSignature::of(model.program());
    let session = Session::new(model);
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

impl Model {
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
        inputs: &[Value],
        out: &Bound<'py, PyAny>,
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
        let mut tensors: Vec<Tensor> = Vec::new();
        for (k, o) in self.outputs.iter().enumerate() {
            values.push(match o {
                OutputSpec::Mutation => Value::None,
                OutputSpec::None => {
                    arrays.next();
                    Value::None
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
                    let t = array::borrow(array, Borrow::Output)
                        .map_err(|e| array::at(py, &place, e))?;
                    tensors.push(t.clone());
                    Value::Tensor(t)
                }
            });
        }
        check_apart(&tensors).map_err(raise)?;
        // SAFETY: elements of the arrays have memory of their own (checked). The caller leaves them alone during the call, as NumPy
        // asks for its functions without the interpreter's lock.
        let run = || unsafe { self.session.run_into(inputs, &values) };
        py.detach(run).map_err(raise)?;
        self.nest(py, given)
    }
}

/// Checks that no two elements of outputs share memory.
fn check_apart(outputs: &[Tensor]) -> Result<()> {
    for (k, t) in outputs.iter().enumerate() {
        let mut dims: Vec<(i64, i64)> = (t.strides.iter().copied())
            .zip(t.sizes.iter().copied())
            .filter(|(_, n)| *n > 1)
            .collect();
        if !strides_nest(&mut dims) {
            return Err(Error::input(format!(
                "output {k}: elements of the array share memory"
            )));
        }
        for (j, other) in outputs[..k].iter().enumerate() {
            let (a, b) = (range(t), range(other));
            if a.start < b.end && b.start < a.end {
                return Err(Error::input(format!("outputs {j} and {k} share memory")));
            }
        }
    }
    Ok(())
}

/// Returns the addresses that a tensor spans.
fn range(t: &Tensor) -> std::ops::Range<usize> {
    let start = t.data() as usize;
    start..start + extent(&t.sizes, &t.strides).unwrap_or(0) * t.dtype.size()
}

#[pymethods]
impl Model {
    #[pyo3(signature = (*args, out=None, **kwargs))]
    fn __call__<'py>(
        &self,
        py: Python<'py>,
        args: &Bound<'py, PyTuple>,
        out: Option<&Bound<'py, PyAny>>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let inputs = self.arguments.bind(args, kwargs)?;
        if let Some(out) = out {
            return self.run_into(py, &inputs, out);
        }
        let outputs = py.detach(|| self.session.run(&inputs)).map_err(raise)?;
        let mut flat = Vec::with_capacity(outputs.len());
        for (value, spec) in outputs.into_iter().zip(&self.outputs) {
            if *spec == OutputSpec::Mutation {
                continue;
            }
            flat.push(match value {
                Value::Tensor(t) => tensor::array(py, t)?,
                Value::Int(i) => i.into_pyobject(py)?.into_any(),
                Value::Scalar(s) => scalar(py, s)?.into_bound(py),
                Value::None => py.None().into_bound(py),
            });
        }
        self.nest(py, flat)
    }

    /// Returns copies of all weights and buffers of the active set, as they are now, by name.
    fn weights<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let model = self.session.model();
        let all = PyDict::new(py);
        for spec in self.session.weights() {
            let weight = py.detach(|| model.weight(&spec.name));
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

    /// Replaces weights of the inactive set by copies of arrays, by name. Several updates add up until ``swap_weights``. With
    /// ``all``, every weight must be named. Calls go on meanwhile.
    #[pyo3(signature = (weights, *, all=false))]
    fn update_weights(
        &self,
        py: Python<'_>,
        weights: &Bound<'_, PyAny>,
        all: bool,
    ) -> PyResult<()> {
        let mut given: Vec<(String, Tensor)> = Vec::new();
        for item in weights.call_method0("items")?.try_iter()? {
            let (name, array): (String, Bound<'_, PyAny>) = item?.extract()?;
            let t = array::borrow(&array, Borrow::ReadOnly)
                .map_err(|e| array::at(py, &format!("weight `{name}`"), e))?;
            given.push((name, t));
        }
        let names = if all { Names::All } else { Names::Some };
        let update = || {
            let new: Vec<(&str, WeightView)> =
                given.iter().map(|(n, t)| (n.as_str(), t.view())).collect();
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
        if py.detach(|| self.session.model().set_seed(seed)) {
            Ok(())
        } else {
            Err(InputError::new_err("the model draws no random numbers"))
        }
    }

    /// Threads of a call.
    #[getter]
    fn threads(&self) -> usize {
        self.session.model().threads()
    }

    fn __repr__(&self) -> String {
        format!("inrush_runtime.Model({:?})", self.name)
    }
}
