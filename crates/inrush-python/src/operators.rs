//! Operators that users define, for packages: functions in Python, and declarations for compiling.
//!
//! A function sees tensors as DLPack's capsules. `python/inrush/operators.py` makes PyTorch's of them.

use crate::errors::raise;
use dlpark::ffi::DLManagedTensor;
use inrush_base::schema::Operator;
use inrush_base::{Error, Result};
use inrush_program::parts::Custom;
use inrush_runtime::Writes;
use inrush_runtime::dlpack::{Memory, lend_unversioned};
use inrush_runtime::operators::{
    self, Arg, OperatorCall, OperatorDevice, OperatorTensor, register_operator,
};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyList;
use std::collections::BTreeSet;
use std::ffi::{CStr, c_void};
use std::path::PathBuf;

/// The name of capsules before version 1.0 of DLPack, which all PyTorch versions take.
const CAPSULE: &CStr = c"dltensor";

/// Registers a function for an operator. It is called as `function(args, results, allocate, stream)`: `allocate(k, sizes)` makes
/// result `k`, which is `None` until then.
#[pyfunction]
#[pyo3(name = "register_operator")]
pub fn register(declaration: &str, device: &str, function: Py<PyAny>) -> PyResult<()> {
    let register = || {
        let device = OperatorDevice::parse(device)?;
        register_operator(declaration, device, move |call| {
            Python::attach(|py| run(py, function.bind(py), call))
        })
    };
    register().map_err(raise)
}

/// Registers the functions of a shared library: see `inrush.h`.
#[pyfunction]
pub fn load_operators(py: Python<'_>, path: PathBuf) -> PyResult<()> {
    py.detach(|| operators::load_operators(&path))
        .map_err(raise)
}

/// Returns true if the operator of a declaration has a function for a kind of device.
#[pyfunction]
pub fn is_operator_registered(declaration: &str, device: &str) -> PyResult<bool> {
    let look = || -> Result<bool> {
        let name = Operator::parse(declaration)?.name;
        Ok(operators::is_registered(
            &name,
            OperatorDevice::parse(device)?,
        ))
    };
    look().map_err(raise)
}

/// Returns the declarations in calls of operators, sorted, each once.
pub(crate) fn declared_in(calls: Vec<&Custom>) -> Vec<String> {
    let all: BTreeSet<&str> = calls.into_iter().map(|c| c.operator.as_str()).collect();
    all.into_iter().map(str::to_string).collect()
}

/// Reads declarations of operators, without those that the compiler knows.
///
/// # Errors
/// Those of [`Operator::parse`].
pub(crate) fn declarations(texts: &[String]) -> Result<Vec<Operator>> {
    let mut all = Vec::new();
    for text in texts {
        let name = text.split('(').next().unwrap_or_default();
        let name = name.replace("::", ".");
        let name = match name.matches('.').count() {
            1 => format!("{name}.default"),
            _ => name,
        };
        if inrush_aten::bind::signature(&name).is_none() {
            all.push(Operator::parse(text)?);
        }
    }
    Ok(all)
}

/// Calls a function of Python.
fn run(py: Python<'_>, function: &Bound<'_, PyAny>, call: &mut OperatorCall<'_>) -> Result<()> {
    let failed = |e: PyErr| Error::input(e.to_string());
    let args = arguments(py, &call.args).map_err(failed)?;
    let results = (call.results.iter())
        .map(|t| optional(py, t.as_ref()))
        .collect::<PyResult<Vec<_>>>()
        .map_err(failed)?;
    let allocate = Bound::new(py, Allocate::new(call)).map_err(failed)?;
    let stream = call.stream as usize;
    let outcome = function.call1((args, results, &allocate, stream));
    let error = {
        let mut given = allocate.borrow_mut();
        given.call = std::ptr::null_mut();
        given.error.take()
    };
    match outcome {
        Err(_) if error.is_some() => Err(error.unwrap_or_else(|| Error::internal(""))),
        outcome => outcome.map(|_| ()).map_err(failed),
    }
}

/// Allocates results, for a function in Python.
#[pyclass(unsendable, module = "inrush._native")]
struct Allocate {
    /// The call; null once it is over.
    call: *mut c_void,
    error: Option<Error>,
}

impl Allocate {
    fn new(call: &mut OperatorCall<'_>) -> Allocate {
        let call: *mut OperatorCall<'_> = call;
        Allocate {
            call: call.cast(),
            error: None,
        }
    }
}

#[pymethods]
impl Allocate {
    fn __call__(&mut self, py: Python<'_>, at: usize, sizes: Vec<i64>) -> PyResult<Py<PyAny>> {
        if self.call.is_null() {
            return Err(raise(Error::input("the call of the operator is over")));
        }
        // SAFETY: the call outlives the function, which runs in this thread; `run` clears the address after it.
        let call = unsafe { &mut *self.call.cast::<OperatorCall<'_>>() };
        match call.allocate(at, &sizes) {
            Ok(t) => Ok(tensor(py, t)?.unbind()),
            Err(e) => {
                let raised = raise(Error::input(e.to_string()));
                self.error = Some(e);
                Err(raised)
            }
        }
    }
}

/// Returns arguments as objects of Python: capsules, numbers, texts, lists of these.
fn arguments<'py>(py: Python<'py>, args: &[Arg]) -> PyResult<Bound<'py, PyList>> {
    let list = PyList::empty(py);
    for a in args {
        match a {
            Arg::None => list.append(py.None())?,
            Arg::Tensor(t) => list.append(tensor(py, t)?)?,
            Arg::Tensors(all) => {
                let all: Vec<_> = (all.iter())
                    .map(|t| optional(py, t.as_ref()))
                    .collect::<PyResult<_>>()?;
                list.append(all)?;
            }
            Arg::Int(v) => list.append(*v)?,
            Arg::Ints(all) => list.append(all.clone())?,
            Arg::Float(v) => list.append(*v)?,
            Arg::Floats(all) => list.append(all.clone())?,
            Arg::Bool(v) => list.append(*v)?,
            Arg::Bools(all) => list.append(all.clone())?,
            Arg::Text(t) => list.append(t.as_str())?,
            Arg::DType(d) => list.append(py.import("torch")?.getattr(d.torch_name())?)?,
        }
    }
    Ok(list)
}

fn optional(py: Python<'_>, t: Option<&OperatorTensor>) -> PyResult<Py<PyAny>> {
    match t {
        Some(t) => Ok(tensor(py, t)?.unbind()),
        None => Ok(py.None()),
    }
}

/// Returns a tensor as a capsule of DLPack.
fn tensor<'py>(py: Python<'py>, t: &OperatorTensor) -> PyResult<Bound<'py, PyAny>> {
    let memory = Memory {
        device: t.device,
        data: t.data.cast(),
        dtype: t.dtype,
        sizes: t.sizes.clone(),
        strides: t.strides.clone(),
        writes: Writes::Seen,
        owner: Box::new(t.owner.clone()),
    };
    let managed = lend_unversioned(memory).map_err(raise)?;
    // SAFETY: the name lives as long as the library; the destructor looks whether the content was taken.
    unsafe {
        let made = ffi::PyCapsule_New(managed.cast::<c_void>(), CAPSULE.as_ptr(), Some(destroy));
        Bound::from_owned_ptr_or_err(py, made).inspect_err(|_| delete(managed))
    }
}

/// Deletes what no consumer took.
unsafe extern "C" fn destroy(capsule: *mut ffi::PyObject) {
    // SAFETY: a capsule that `tensor` made, in its destructor.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, CAPSULE.as_ptr()) != 0 {
            delete(ffi::PyCapsule_GetPointer(capsule, CAPSULE.as_ptr()).cast());
        }
    }
}

/// Calls the deleter.
///
/// # Safety
/// `managed` is live, and is not used afterwards.
unsafe fn delete(managed: *mut DLManagedTensor) {
    // SAFETY: the caller's promise.
    if let Some(deleter) = unsafe { (*managed).deleter } {
        // SAFETY: as above.
        unsafe { deleter(managed) };
    }
}
