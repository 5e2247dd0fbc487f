//! Operators that users define: functions in Python, on NumPy arrays.

use crate::errors::raise;
use crate::{array, tensor};
use inrush_base::{Error, Result};
use inrush_runtime::dlpack::Borrow;
use inrush_runtime::operators::{
    self, Arg, OperatorCall, OperatorDevice, OperatorTensor, register_operator,
};
use inrush_runtime::tensor::{copy_strided, extent};
use inrush_runtime::{Storage, Tensor};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use std::path::PathBuf;
use std::sync::Arc;

/// Registers the function that packages on the CPU call for an operator, for models that are loaded afterwards.
///
/// ``schema`` is the operator's with its name: ``"mylib::scale(Tensor x, float by=2.0) -> Tensor"``. The function takes NumPy arrays
/// (or `Tensor` where NumPy lacks the dtype) and numbers in the order of the schema, and gives arrays. It may write an argument that
/// the schema says is written: ``Tensor(a!) x``.
#[pyfunction]
#[pyo3(name = "register_operator")]
pub(crate) fn register(schema: &str, function: Py<PyAny>) -> PyResult<()> {
    register_operator(schema, OperatorDevice::CPU, move |call| {
        Python::attach(|py| run(py, function.bind(py), call))
    })
    .map_err(raise)
}

/// Registers the functions of a shared library, which exports ``inrush_operators``: see ``inrush.h``. For the CPU and for GPUs.
#[pyfunction]
pub(crate) fn load_operators(py: Python<'_>, path: PathBuf) -> PyResult<()> {
    py.detach(|| operators::load_operators(&path))
        .map_err(raise)
}

/// Calls a function of Python.
fn run(py: Python<'_>, function: &Bound<'_, PyAny>, call: &mut OperatorCall<'_>) -> Result<()> {
    let failed = |e: PyErr| Error::input(e.to_string());
    let args = arguments(py, &call.args).and_then(|all| PyTuple::new(py, all));
    let given = function.call1(args.map_err(failed)?).map_err(failed)?;
    let mut arrays = Vec::new();
    flatten(&given, &mut arrays).map_err(failed)?;
    if arrays.len() != call.results.len() {
        return Err(Error::input(format!(
            "the function gives {} arrays, the package takes {}",
            arrays.len(),
            call.results.len()
        )));
    }
    for (at, a) in arrays.iter().enumerate() {
        let from = array::borrow(a, Borrow::ReadOnly).map_err(failed)?;
        if call.results[at].is_none() {
            call.allocate(at, &from.sizes)?;
        }
        if let Some(to) = &call.results[at] {
            copy(&from, to, at)?;
        }
    }
    Ok(())
}

/// Lists arrays, those of tuples and lists too.
fn flatten<'py>(given: &Bound<'py, PyAny>, all: &mut Vec<Bound<'py, PyAny>>) -> PyResult<()> {
    if given.is_none() {
        return Ok(());
    }
    if given.is_instance_of::<PyTuple>() || given.is_instance_of::<PyList>() {
        for entry in given.try_iter()? {
            flatten(&entry?, all)?;
        }
        return Ok(());
    }
    all.push(given.clone());
    Ok(())
}

fn copy(from: &Tensor, to: &OperatorTensor, at: usize) -> Result<()> {
    if from.dtype != to.dtype || from.sizes != to.sizes {
        return Err(Error::input(format!(
            "result {at} is {} of sizes {:?}, the package declares {} of {:?}",
            from.dtype.torch_name(),
            from.sizes,
            to.dtype.torch_name(),
            to.sizes
        )));
    }
    if from.numel() > 0 {
        let size = from.dtype.size();
        // SAFETY: both hold every coordinate; results share no memory with what a function gives.
        unsafe {
            copy_strided(
                from.data(),
                &from.strides,
                to.data,
                &to.strides,
                &from.sizes,
                size,
            );
        }
    }
    Ok(())
}

/// Returns arguments as objects of Python.
fn arguments<'py>(py: Python<'py>, args: &[Arg]) -> PyResult<Vec<Bound<'py, PyAny>>> {
    args.iter().map(|a| argument(py, a)).collect()
}

fn argument<'py>(py: Python<'py>, a: &Arg) -> PyResult<Bound<'py, PyAny>> {
    Ok(match a {
        Arg::None => py.None().into_bound(py),
        Arg::Tensor(t) => shared(py, t)?,
        Arg::Tensors(all) => {
            let one = |t: &Option<OperatorTensor>| match t {
                Some(t) => shared(py, t),
                None => Ok(py.None().into_bound(py)),
            };
            let all: Vec<_> = all.iter().map(one).collect::<PyResult<_>>()?;
            PyList::new(py, all)?.into_any()
        }
        Arg::Int(v) => v.into_pyobject(py)?.into_any(),
        Arg::Ints(all) => PyList::new(py, all)?.into_any(),
        Arg::Float(v) => v.into_pyobject(py)?.into_any(),
        Arg::Floats(all) => PyList::new(py, all)?.into_any(),
        Arg::Bool(v) => v.into_pyobject(py)?.to_owned().into_any(),
        Arg::Bools(all) => PyList::new(py, all)?.into_any(),
        Arg::Text(t) => t.into_pyobject(py)?.into_any(),
        Arg::DType(d) => d.torch_name().into_pyobject(py)?.into_any(),
    })
}

/// Returns an array over a tensor's memory.
fn shared<'py>(py: Python<'py>, t: &OperatorTensor) -> PyResult<Bound<'py, PyAny>> {
    let bytes = extent(&t.sizes, &t.strides).unwrap_or(0) * t.dtype.size();
    // SAFETY: the tensor's elements are in this range, which the owner keeps.
    let storage = unsafe { Storage::foreign(t.data, bytes, Box::new(t.owner.clone())) };
    let shared = Tensor {
        dtype: t.dtype,
        sizes: t.sizes.clone(),
        strides: t.strides.clone(),
        offset: 0,
        storage: Arc::new(storage),
    };
    tensor::array(py, shared)
}
