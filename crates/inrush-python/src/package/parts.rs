//! Calls of programs in parts: inputs are read where they are, results are copied into tensors of PyTorch.

use crate::errors::raise;
use crate::host::run::scalar;
use crate::host::shim::{Shims, shims};
use inrush_base::Error;
use inrush_host::{dtype_code, dtype_of};
use inrush_program::{InputType, Output};
use inrush_runtime::tensor::extent;
use inrush_runtime::{Model, Storage, Tensor, Value};
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use std::sync::Arc;

/// Runs a model on flat arguments.
pub(super) fn run(
    py: Python<'_>,
    model: &Model,
    args: &Bound<'_, PyTuple>,
) -> PyResult<Vec<Py<PyAny>>> {
    let shims = shims(py)?;
    let program = model.program();
    let mut inputs = Vec::with_capacity(args.len());
    for (k, arg) in args.iter().enumerate() {
        inputs.push(match program.inputs.get(k).map(|i| &i.ty) {
            Some(InputType::Tensor { .. }) => Value::Tensor(input(shims, &arg)?),
            Some(InputType::Int { .. }) => Value::Int(arg.extract()?),
            Some(InputType::Constant { value }) => Value::Scalar((*value).into()),
            Some(InputType::Ignored) | None => Value::None,
        });
    }
    let results = py.detach(|| model.run(&inputs)).map_err(raise)?;
    let mut outputs = Vec::with_capacity(results.len());
    for (o, value) in program.outputs.iter().zip(results) {
        if matches!(o, Output::Mutation) {
            continue;
        }
        outputs.push(match value {
            Value::Tensor(t) => match inputs.iter().position(|i| is_same(i, &t)) {
                Some(k) => args.get_item(k)?.unbind(),
                None => tensor(py, shims, &t)?,
            },
            Value::Int(v) => v.into_pyobject(py)?.into_any().unbind(),
            Value::Scalar(v) => scalar(py, v)?,
            Value::None => py.None(),
        });
    }
    Ok(outputs)
}

/// Returns a tensor of PyTorch in its memory.
fn input(shims: &Shims, arg: &Bound<'_, PyAny>) -> PyResult<Tensor> {
    // Negated when it is read, `z.conj().imag`: its memory does not hold its values.
    let arg = arg.call_method0("resolve_neg")?;
    let h = shims.tensor(&arg)?;
    // SAFETY: the tensor is alive.
    let ((address, code), (sizes, strides)) = unsafe { (shims.data(h)?, shims.shape(h)?) };
    let dtype =
        dtype_of(code).ok_or_else(|| raise(Error::input("an input has no dtype of inrush")))?;
    let bytes = extent(sizes, strides).map_or(0, |n| n * dtype.size());
    let (sizes, strides) = (sizes.to_vec(), strides.to_vec());
    // SAFETY: the elements of a tensor span these bytes, and the storage holds the tensor.
    let storage = unsafe { Storage::foreign(address, bytes, Box::new(arg.unbind())) };
    Ok(Tensor {
        dtype,
        sizes,
        strides,
        offset: 0,
        storage: Arc::new(storage),
    })
}

/// Returns true if a result is an input as it was given.
fn is_same(input: &Value, t: &Tensor) -> bool {
    let Value::Tensor(i) = input else {
        return false;
    };
    Arc::ptr_eq(&i.storage, &t.storage)
        && (i.offset, &i.sizes, &i.strides) == (t.offset, &t.sizes, &t.strides)
}

/// Returns a copy as a tensor of PyTorch.
fn tensor(py: Python<'_>, shims: &Shims, t: &Tensor) -> PyResult<Py<PyAny>> {
    let (made, address) = shims.empty(py, &t.sizes, &t.strides, dtype_code(t.dtype))?;
    let bytes = extent(&t.sizes, &t.strides).map_or(0, |n| n * t.dtype.size());
    if bytes > 0 {
        // SAFETY: both have these sizes and strides, whose elements span these bytes.
        unsafe { std::ptr::copy_nonoverlapping(t.data(), address, bytes) };
    }
    Ok(made)
}
