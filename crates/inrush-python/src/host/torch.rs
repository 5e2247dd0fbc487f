//! The executor's host in PyTorch's process, over libtorch's C functions.

use super::aten_library::Functions;
use super::device;
use super::run::Call;
use super::shim::{Handle, Shims};
use super::steps;
use super::tensor::Owned;
use crate::errors::raise;
use inrush_base::Error;
use inrush_host::devices;
use inrush_host::gpu::cublas::{self, Blas};
use inrush_host::gpu::driver::{DevicePtr, Stream};
use inrush_host::gpu::plan::Op;
use inrush_host::gpu::{self, Stop};
use inrush_host::host::{Host, Results};
use inrush_host::program::{Device, Gpu, LibraryOp};
use inrush_host::shape::Shape;
use pyo3::intern;
use pyo3::prelude::*;
use smallvec::SmallVec;

/// PyTorch's process during a call.
pub struct Torch {
    pub shims: &'static Shims,
    pub library: &'static Functions,
    pub device: Device,
    pub stream: Stream,
    /// Tells PyTorch of work, where it has to be told.
    pub teller: Option<&'static device::Functions>,
}

/// The native part of a call's state.
pub type Frame<'a> = gpu::Frame<'a, Torch>;

/// Triton's interpreter: the function that interprets, and its form of each kernel.
pub struct Interpreter {
    launch: Py<PyAny>,
    kernels: Vec<Py<PyAny>>,
}

impl Torch {
    pub fn owned(&self, handle: Handle) -> Owned {
        Owned {
            handle,
            shims: self.shims,
        }
    }
}

impl Host for Torch {
    type Tensor = Owned;
    type Call<'c> = Call<'c>;
    type Interpreter = Interpreter;
    type Error = PyErr;

    fn stream(&self) -> Stream {
        self.stream
    }

    fn allocate(&self, s: &Shape) -> Option<(Owned, DevicePtr)> {
        let made = (self.shims).allocate(&s.sizes, &s.strides, s.dtype, self.device);
        made.map(|(handle, address)| (self.owned(handle), address))
    }

    fn over(&self, at: DevicePtr, s: &Shape) -> Option<Owned> {
        let made = (self.shims).blob(at, &s.sizes, &s.strides, s.dtype, self.device);
        made.map(|handle| self.owned(handle))
    }

    fn address(&self, tensor: &Owned) -> Option<DevicePtr> {
        // SAFETY: the tensor is owned.
        unsafe { self.shims.address(tensor.handle) }
    }

    // Returns the result itself, or a copy in the layout that later kernels were compiled for.
    fn conform(&self, result: Owned, shape: &Shape) -> Result<Owned, Stop<PyErr>> {
        let failed = |_| Stop::Failed(Error::internal("a result tells no sizes"));
        // SAFETY: the tensor is owned.
        let (sizes, strides) = unsafe { self.shims.shape(result.handle) }.map_err(failed)?;
        let same = sizes == shape.sizes.as_slice()
            && (sizes.iter().zip(strides.iter().zip(&shape.strides)))
                .all(|(n, (a, b))| *n <= 1 || a == b);
        if same || sizes != shape.sizes.as_slice() {
            return Ok(result);
        }
        let (copy, _) = self.allocate(shape).ok_or_else(|| Stop::memory(shape))?;
        // SAFETY: both are owned.
        match unsafe { self.shims.copy(copy.handle, result.handle) } {
            true => Ok(copy),
            false => Err(Stop::Failed(Error::internal("a result cannot be copied"))),
        }
    }

    fn library(
        &self,
        op: &LibraryOp,
        inputs: &[Option<&Owned>],
        out: Option<&Owned>,
        results: &mut Results<Owned>,
    ) -> bool {
        let handle = |t: Option<&Owned>| t.map_or(std::ptr::null_mut(), |t| t.handle);
        let inputs: SmallVec<[Handle; 4]> = inputs.iter().map(|t| handle(*t)).collect();
        // Nine: the most results that an operator has (attention).
        let mut made = [std::ptr::null_mut(); 9];
        // SAFETY: operands are live tensors over memory that lives through the call.
        let done = unsafe { (self.library).call(op, &inputs, handle(out), &mut made) };
        for (result, handle) in results.iter_mut().zip(made) {
            *result = (!handle.is_null()).then(|| self.owned(handle));
        }
        done
    }

    fn interpret(
        &self,
        code: &Interpreter,
        kernel: usize,
        grid: [u32; 3],
        arguments: &[u8],
    ) -> PyResult<()> {
        Python::attach(|py| {
            let args = (&code.kernels[kernel], grid, arguments);
            code.launch.call1(py, args).map(drop)
        })
    }

    /// Returns PyTorch's handle for the thread, device and stream, if the process has cuBLAS and the device uses it. Other products
    /// are PyTorch's own functions.
    fn blas(&self, call: &mut Call<'_>) -> PyResult<Option<(&'static Blas, usize)>> {
        let has_library =
            devices::by_torch_number(self.device.kind).is_some_and(|k| k.products().is_some());
        let Some(blas) = cublas::loaded().filter(|_| has_library) else {
            return Ok(None);
        };
        let handle = (call.py.import(intern!(call.py, "torch._C"))?)
            .call_method0(intern!(call.py, "_cuda_getCurrentBlasHandle"))?
            .extract()?;
        Ok(Some((blas, handle)))
    }

    fn interpreter(&self, call: &mut Call<'_>, gpu: &Gpu) -> PyResult<Interpreter> {
        let module = call.py.import("inrush.triton.interpreter")?;
        let make = module.getattr("kernel")?;
        let kernels = (gpu.kernels.iter())
            .map(|k| {
                let signature: Vec<(&str, &str)> = (k.signature.iter())
                    .map(|(n, t)| (n.as_str(), t.as_str()))
                    .collect();
                let constants = k.constants.clone();
                let made = make.call1((&k.text, &k.function, signature, constants))?;
                Ok(made.unbind())
            })
            .collect::<PyResult<_>>()?;
        let launch = module.getattr("launch")?.unbind();
        Ok(Interpreter { launch, kernels })
    }

    fn known<'a>(call: &'a Call<'_>) -> (&'a [Option<i64>], &'a [Option<i64>]) {
        (&call.symbols, call.sizes())
    }

    fn bind_symbols(&self, call: &mut Call<'_>, after: usize) -> PyResult<()> {
        call.bind_symbols(call.py, self.shims, Some(after))
    }

    fn native<R: Send>(call: &mut Call<'_>, f: impl FnOnce() -> R + Send) -> R {
        call.py.detach(f)
    }

    fn step(&self, call: &mut Call<'_>, frame: &mut Frame<'_>, op: &Op) -> PyResult<()> {
        steps::step(self, call.py, call, frame, op)
    }

    fn release(call: &mut Call<'_>, slot: usize) {
        call.slots[slot] = None;
    }

    fn finish(&self, call: &mut Call<'_>, frame: &mut Frame<'_>) -> PyResult<()> {
        steps::finish(self, call.py, call, frame)
    }

    fn raise(&self, call: &mut Call<'_>, frame: &mut Frame<'_>, stop: Stop<PyErr>) -> PyErr {
        steps::raise_stop(self, call.py, call, frame, stop)
    }

    fn error(e: Error) -> PyErr {
        raise(e)
    }
}
