//! Tensors in memory of a GPU as Python objects, and streams.

use crate::errors::{InputError, raise};
use crate::{capsule, tensor};
use inrush_host::devices;
use inrush_host::native::{self, Stream, dlpack};
use inrush_runtime::dlpack::Memory;
use pyo3::exceptions::PyBufferError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyTuple};

/// A tensor in memory of a GPU. Its memory is freed with the last object that uses it.
///
/// ``torch.from_dlpack(t)`` and others share the memory; ``numpy()`` copies it to the host.
#[pyclass(frozen, module = "inrush_runtime")]
pub(crate) struct DeviceTensor {
    pub(crate) tensor: native::DeviceTensor,
}

/// Reads a stream: an integer, an object with `__cuda_stream__`, or one with `cuda_stream` such as PyTorch's.
///
/// # Errors
/// An input error for other objects.
pub(crate) fn stream_of(obj: &Bound<'_, PyAny>) -> PyResult<Stream> {
    let py = obj.py();
    let wrong = || {
        InputError::new_err(format!(
            "`stream` takes an integer or an object with `__cuda_stream__` or `cuda_stream`, not {}",
            crate::array::type_name(obj)
        ))
    };
    if obj.hasattr(intern!(py, "sycl_queue"))? {
        return Err(InputError::new_err(
            "`stream` is a queue of SYCL, which is no command list of Level Zero: call without a stream, once the work that \
             writes the inputs is done",
        ));
    }
    let handle = if let Ok(protocol) = obj.getattr(intern!(py, "__cuda_stream__")) {
        let (version, handle): (i64, usize) = protocol.call0()?.extract().map_err(|_| wrong())?;
        if version != 0 {
            return Err(InputError::new_err(format!(
                "`__cuda_stream__` of version {version}, version 0 is read"
            )));
        }
        handle
    } else if let Ok(handle) = obj.getattr(intern!(py, "cuda_stream")) {
        handle.extract().map_err(|_| wrong())?
    } else if obj.is_instance_of::<PyBool>() {
        return Err(wrong());
    } else {
        obj.extract().map_err(|_| wrong())?
    };
    Ok(Stream(handle))
}

/// Returns true if both are one stream: the default one has two numbers.
fn same(a: Stream, b: Stream) -> bool {
    a.0.max(1) == b.0.max(1)
}

#[pymethods]
impl DeviceTensor {
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
        let elements: i64 = self.tensor.sizes.iter().product();
        elements as usize * self.tensor.dtype.size()
    }

    /// The device, such as ``cuda:0``.
    #[getter]
    fn device(&self) -> String {
        devices::name(self.tensor.device())
    }

    /// The address of the first element on the device.
    #[getter]
    fn data_ptr(&self) -> u64 {
        self.tensor.address()
    }

    fn __repr__(&self) -> String {
        format!(
            "inrush_runtime.DeviceTensor({}{:?}, {})",
            self.tensor.dtype.torch_name(),
            self.tensor.sizes,
            self.device()
        )
    }

    /// A NumPy array with a copy of the elements, once the work that writes them is done. A ``Tensor`` where NumPy is not installed
    /// or lacks the dtype.
    fn numpy<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let copied = py.detach(|| self.tensor.download()).map_err(raise)?;
        tensor::array(py, copied)
    }

    /// The elements in row-major order.
    fn tobytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let copied = py.detach(|| self.tensor.download()).map_err(raise)?;
        Ok(PyBytes::new(py, &copied.to_bytes()))
    }

    /// DLPack's type and number of the device.
    fn __dlpack_device__(&self) -> (i32, i32) {
        let device = self.tensor.device();
        (devices::dlpack_number(device).unwrap_or(0), device.index)
    }

    /// ``stream`` is the consumer's: work that is issued there later comes after the work that writes the tensor. ``None`` stands for
    /// the default stream, -1 for no order. On Intel GPUs, whose streams are queues of SYCL, it is not looked at: the work is done
    /// when this returns.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<&Bound<'py, PyAny>>,
        max_version: Option<&Bound<'py, PyTuple>>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if dl_device.is_some_and(|d| d != self.__dlpack_device__()) {
            return Err(PyBufferError::new_err(
                "the tensor stays on its device: `numpy()` copies it to the host",
            ));
        }
        if copy == Some(true) {
            return Err(PyBufferError::new_err(
                "the tensor is shared, not copied, by DLPack",
            ));
        }
        if !devices::shares_streams(self.tensor.device()) {
            let wait = || self.tensor.wait();
            py.detach(wait).map_err(raise)?;
            return self.lend(py, true, max_version);
        }
        let stream: Option<isize> = stream.map(PyAnyMethods::extract).transpose()?;
        let first =
            isize::from(i64::from(self.__dlpack_device__().0) != capsule::STREAMS_FROM_ZERO);
        let consumer = match stream {
            Some(-1) => None,
            Some(n) if n < first => {
                let device = self.device();
                return Err(PyBufferError::new_err(format!(
                    "{n} is no stream of `{device}`"
                )));
            }
            Some(n) => Some(Stream(n as usize)),
            None => Some(Stream(first as usize)),
        };
        if let Some(consumer) = consumer {
            let order = || self.tensor.order_before(consumer);
            py.detach(order).map_err(raise)?;
        }
        // Work of another stream than the call's may still use the memory when it comes back.
        let (by, to) = (self.tensor.stream(), consumer);
        let waits = !matches!((by, to), (Some(by), Some(to)) if same(by, to));
        self.lend(py, waits, max_version)
    }
}

impl DeviceTensor {
    /// Returns a capsule of the tensor's memory. With `waits` it comes back when all work of the device is done.
    fn lend<'py>(
        &self,
        py: Python<'py>,
        waits: bool,
        max_version: Option<&Bound<'py, PyTuple>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let memory: Memory = dlpack::lend(self.tensor.clone(), waits);
        capsule::export(py, memory, max_version).map_err(|e| PyBufferError::new_err(e.to_string()))
    }
}
