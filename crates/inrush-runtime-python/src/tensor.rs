//! Tensors of the runtime as Python objects: NumPy arrays where NumPy is installed and has the dtype, otherwise an object that
//! exports DLPack and the buffer protocol.

use crate::errors::{InputError, raise};
use crate::{array, buffer, capsule};
use inrush_base::DType;
use inrush_runtime::dlpack::Borrow;
use inrush_runtime::tensor::contiguous_strides;
use inrush_runtime::{Tensor, Writes};
use pyo3::exceptions::{PyAttributeError, PyBufferError, PyImportError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple};

/// A tensor in memory of the CPU. Its memory is freed with the last object that uses it.
///
/// ``Tensor(array)`` borrows the memory of an array without a copy.
#[pyclass(subclass, frozen, module = "inrush_runtime", name = "_TensorBase")]
pub(crate) struct TensorBase {
    pub(crate) tensor: Tensor,
}

/// Returns the class of tensors that Python sees: [`TensorBase`] with the buffer protocol.
pub(crate) fn class(py: Python<'_>) -> PyResult<&Bound<'_, PyAny>> {
    static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let make = || {
        let base = py.get_type::<TensorBase>();
        let made = buffer::exporting_class(c"inrush_runtime.Tensor", &base)?;
        made.setattr("__doc__", base.getattr("__doc__")?)?;
        PyResult::Ok(made.unbind())
    };
    Ok(CLASS.get_or_try_init(py, make)?.bind(py))
}

/// Makes a Python object of a tensor.
pub(crate) fn object(py: Python<'_>, tensor: Tensor) -> PyResult<Bound<'_, PyAny>> {
    let base = Bound::new(py, TensorBase { tensor })?;
    class(py)?.call1((base,))
}

/// Makes a NumPy array of a tensor that shares its memory; a [`class`] where NumPy is not installed or lacks the dtype.
pub(crate) fn array(py: Python<'_>, tensor: Tensor) -> PyResult<Bound<'_, PyAny>> {
    let known = numpy_type(tensor.dtype).is_some();
    match numpy(py)?.filter(|_| known) {
        Some(as_array) => as_array.call1((Bound::new(py, TensorBase { tensor })?,)),
        None => object(py, tensor),
    }
}

/// Returns `numpy.asarray`, if NumPy is installed. It is imported at the first use.
fn numpy(py: Python<'_>) -> PyResult<Option<&Bound<'_, PyAny>>> {
    static AS_ARRAY: PyOnceLock<Option<Py<PyAny>>> = PyOnceLock::new();
    let find = || match py.import("numpy") {
        Ok(module) => Ok(Some(module.getattr("asarray")?.unbind())),
        Err(e) if e.is_instance_of::<PyImportError>(py) => Ok(None),
        Err(e) => Err(e),
    };
    Ok((AS_ARRAY.get_or_try_init(py, find)?.as_ref()).map(|f| f.bind(py)))
}

/// Returns NumPy's text of a dtype, if it has it.
fn numpy_type(dtype: DType) -> Option<&'static str> {
    let little = cfg!(target_endian = "little");
    let (here, there) = match dtype {
        DType::Bool => ("|b1", "|b1"),
        DType::I8 => ("|i1", "|i1"),
        DType::U8 => ("|u1", "|u1"),
        DType::I16 => ("<i2", ">i2"),
        DType::U16 => ("<u2", ">u2"),
        DType::I32 => ("<i4", ">i4"),
        DType::U32 => ("<u4", ">u4"),
        DType::I64 => ("<i8", ">i8"),
        DType::U64 => ("<u8", ">u8"),
        DType::F16 => ("<f2", ">f2"),
        DType::F32 => ("<f4", ">f4"),
        DType::F64 => ("<f8", ">f8"),
        DType::C64 => ("<c8", ">c8"),
        DType::C128 => ("<c16", ">c16"),
        _ => return None,
    };
    Some(if little { here } else { there })
}

#[pymethods]
impl TensorBase {
    #[new]
    fn new(array: &Bound<'_, PyAny>) -> PyResult<TensorBase> {
        let tensor = array::borrow(array, Borrow::Input)?;
        Ok(TensorBase { tensor })
    }

    /// The name of the dtype, such as ``bfloat16``.
    #[getter]
    fn dtype(&self) -> &'static str {
        self.tensor.dtype.torch_name()
    }

    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.tensor.sizes)
    }

    /// In elements.
    #[getter]
    fn strides<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.tensor.strides)
    }

    #[getter]
    fn ndim(&self) -> usize {
        self.tensor.sizes.len()
    }

    /// Bytes of the elements.
    #[getter]
    fn nbytes(&self) -> usize {
        self.tensor.numel() * self.tensor.dtype.size()
    }

    /// True if the memory must not be written.
    #[getter]
    fn readonly(&self) -> bool {
        self.tensor.storage.writes() == Writes::Forbidden
    }

    fn __repr__(&self) -> String {
        format!(
            "inrush_runtime.Tensor({}{:?})",
            self.tensor.dtype.torch_name(),
            self.tensor.sizes
        )
    }

    /// The elements in row-major order.
    fn tobytes<'py>(&self, py: Python<'py>) -> Bound<'py, pyo3::types::PyBytes> {
        pyo3::types::PyBytes::new(py, &self.tensor.to_bytes())
    }

    /// A NumPy array that shares the memory.
    fn numpy<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let dtype = slf.get().tensor.dtype;
        if numpy_type(dtype).is_none() {
            return Err(InputError::new_err(format!(
                "NumPy has no {}: pass the tensor to a library that reads DLPack, such as torch.from_dlpack",
                dtype.torch_name()
            )));
        }
        match numpy(slf.py())? {
            Some(as_array) => as_array.call1((slf,)),
            None => Err(PyImportError::new_err("NumPy is not installed")),
        }
    }

    /// How NumPy finds the memory.
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let t = &self.tensor;
        let kind = numpy_type(t.dtype)
            .ok_or_else(|| PyAttributeError::new_err("NumPy lacks the tensor's dtype"))?;
        let d = PyDict::new(py);
        d.set_item(intern!(py, "version"), 3)?;
        d.set_item(intern!(py, "typestr"), kind)?;
        d.set_item(intern!(py, "shape"), PyTuple::new(py, &t.sizes)?)?;
        d.set_item(intern!(py, "data"), (t.data() as usize, self.readonly()))?;
        if !t.lies_as(&contiguous_strides(&t.sizes)) {
            let size = t.dtype.size() as i64;
            let bytes = t.strides.iter().map(|s| s * size);
            d.set_item(
                intern!(py, "strides"),
                PyTuple::new(py, bytes.collect::<Vec<i64>>())?,
            )?;
        }
        Ok(d)
    }

    /// DLPack's type and number of the device: the CPU.
    fn __dlpack_device__(&self) -> (i32, i32) {
        (1, 0)
    }

    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<&Bound<'py, PyAny>>,
        max_version: Option<&Bound<'py, PyTuple>>,
        dl_device: Option<(i64, i64)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if stream.is_some() {
            return Err(PyBufferError::new_err("memory of the CPU has no stream"));
        }
        if dl_device.is_some_and(|d| d != (1, 0)) {
            return Err(PyBufferError::new_err(
                "the tensor stays in memory of the CPU",
            ));
        }
        let t = if copy == Some(true) {
            self.tensor
                .with_strides(&self.tensor.strides)
                .map_err(raise)?
        } else {
            self.tensor.clone()
        };
        capsule::export(py, t, max_version).map_err(|e| PyBufferError::new_err(e.to_string()))
    }
}
