//! The host: a process with the device's driver, and nothing of PyTorch.

use super::memory::{Block, Pool};
use super::model::CallState;
use crate::gpu::cublas::{self, Blas};
use crate::gpu::driver::{Context, DevicePtr, Driver, Stream};
use crate::gpu::plan::Op;
use crate::gpu::{Frame, Stop};
use crate::host::{Host, Results};
use crate::program::{Device, Gpu, LibraryOp, StepKind};
use crate::shape::Shape;
use inrush_base::{Error, Result};
use std::sync::Arc;

/// Bytes of cuBLAS's workspace.
const WORKSPACE: u64 = 32 << 20;

/// The device's driver in this process, with a stream of its own.
pub struct Process {
    pub(super) driver: Driver,
    context: Context,
    stream: Stream,
    pool: Arc<Pool>,
    /// cuBLAS, its handle for the stream, and the workspace that the handle uses.
    blas: Option<(&'static Blas, usize, Block)>,
}

/// A tensor: its own memory, or a part of others'.
pub struct Tensor {
    address: DevicePtr,
    shape: Shape,
    _block: Option<Block>,
}

impl Process {
    /// Takes a device and makes it current on the calling thread; with cuBLAS, matrix products go there.
    ///
    /// # Errors
    /// Those of the driver. A machine error if cuBLAS cannot be used.
    pub fn new(device: Device, blas: Option<&'static Blas>) -> Result<Process> {
        let driver = Driver::get()?;
        let context = driver.primary_context(device.index)?;
        driver.set_current(context)?;
        let stream = driver.stream()?;
        let pool = Pool::new(driver.clone());
        let blas = blas.map(|b| handle(b, &pool, stream)).transpose()?;
        Ok(Process {
            driver,
            context,
            stream,
            pool,
            blas,
        })
    }

    /// Makes the device current on the calling thread, as calls of the driver need.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn make_current(&self) -> Result<()> {
        self.driver.set_current(self.context)
    }

    /// Returns a tensor that holds `bytes`.
    ///
    /// # Errors
    /// Too little memory, and those of the driver.
    pub fn upload(&self, shape: &Shape, bytes: &[u8]) -> Result<Tensor> {
        let (tensor, address) = self.allocate(shape).ok_or_else(|| {
            Error::out_of_memory(format!(
                "the device has too little memory for {} bytes",
                bytes.len()
            ))
        })?;
        if shape.bytes()? < bytes.len() as u64 {
            return Err(Error::internal("more data than memory"));
        }
        // Earlier work of the stream may still read this memory.
        self.driver.synchronize(self.stream)?;
        // SAFETY: the memory was just allocated for this shape, which has as many bytes.
        unsafe { self.driver.write(address, bytes)? };
        Ok(tensor)
    }

    /// Returns `bytes` bytes from an address, once all work that was issued is done.
    ///
    /// # Safety
    /// So many bytes at the address are this process's.
    pub unsafe fn download(&self, from: DevicePtr, bytes: usize) -> Result<Vec<u8>> {
        self.driver.synchronize(self.stream)?;
        let mut out = vec![0; bytes];
        // SAFETY: by the caller's promise.
        unsafe { self.driver.read(from, &mut out)? };
        Ok(out)
    }
}

/// Makes a handle of cuBLAS's for a stream.
fn handle(
    blas: &'static Blas,
    pool: &Arc<Pool>,
    stream: Stream,
) -> Result<(&'static Blas, usize, Block)> {
    let refused = || Error::machine("cuBLAS gives no handle");
    let handle = blas.create().ok_or_else(refused)?;
    let workspace = pool.take(WORKSPACE as usize).ok_or_else(refused)?;
    // The library's own way of computing: products of float32 are not rounded to fewer bits.
    let memory = (workspace.address(), WORKSPACE);
    match blas.direct(handle, stream, memory, cublas::DEFAULT_MATH) {
        true => Ok((blas, handle, workspace)),
        false => Err(refused()),
    }
}

impl Host for Process {
    type Tensor = Tensor;
    type Call<'c> = CallState<'c>;
    /// This host interprets nothing.
    type Interpreter = std::convert::Infallible;
    type Error = Error;

    fn stream(&self) -> Stream {
        self.stream
    }

    fn allocate(&self, shape: &Shape) -> Option<(Tensor, DevicePtr)> {
        let bytes = usize::try_from(shape.bytes().ok()?).ok()?;
        let block = self.pool.take(bytes)?;
        let address = block.address();
        let tensor = Tensor {
            address,
            shape: shape.clone(),
            _block: Some(block),
        };
        Some((tensor, address))
    }

    fn over(&self, at: DevicePtr, shape: &Shape) -> Option<Tensor> {
        Some(Tensor {
            address: at,
            shape: shape.clone(),
            _block: None,
        })
    }

    fn address(&self, tensor: &Tensor) -> Option<DevicePtr> {
        Some(tensor.address)
    }

    /// Products have the layout that they were asked for.
    fn conform(&self, result: Tensor, _shape: &Shape) -> Result<Tensor, Stop<Error>> {
        Ok(result)
    }

    /// Does products that cuBLAS refuses: those without elements, and those over an empty sum, which are zeros.
    fn library(
        &self,
        _op: &LibraryOp,
        inputs: &[Option<&Tensor>],
        out: Option<&Tensor>,
        _results: &mut Results<Tensor>,
    ) -> bool {
        let Some(out) = out else { return false };
        if out.shape.sizes.contains(&0) {
            return true;
        }
        let empty = inputs.iter().flatten().any(|t| t.shape.sizes.contains(&0));
        let bytes = out.shape.bytes().unwrap_or(0) as usize;
        // SAFETY: the result has memory of its own of so many bytes.
        empty && unsafe { self.driver.clear(out.address, bytes, self.stream) }.is_ok()
    }

    fn interpret(
        &self,
        code: &std::convert::Infallible,
        _kernel: usize,
        _grid: [u32; 3],
        _arguments: &[u8],
    ) -> Result<()> {
        match *code {}
    }

    fn blas(&self, _call: &mut CallState<'_>) -> Result<Option<(&'static Blas, usize)>> {
        Ok(self.blas.as_ref().map(|b| (b.0, b.1)))
    }

    fn interpreter(
        &self,
        _call: &mut CallState<'_>,
        _gpu: &Gpu,
    ) -> Result<std::convert::Infallible> {
        Err(Error::internal("kernels that would have to be interpreted"))
    }

    fn known<'a>(call: &'a CallState<'_>) -> (&'a [Option<i64>], &'a [Option<i64>]) {
        (&call.symbols, &call.sizes)
    }

    fn bind_symbols(&self, _call: &mut CallState<'_>, _after: usize) -> Result<()> {
        Err(Error::internal("a size that depends on data"))
    }

    fn native<R: Send>(_call: &mut CallState<'_>, f: impl FnOnce() -> R + Send) -> R {
        f()
    }

    fn step(&self, call: &mut CallState<'_>, frame: &mut Frame<'_, Self>, op: &Op) -> Result<()> {
        match op {
            Op::CheckInput(c) => call.check_input(self, frame, c),
            Op::View(v) => call.view(self, frame, v),
            Op::Set { slot, value } => {
                call.set(*slot, value);
                Ok(())
            }
            _ => Err(Error::internal("a step that needs an interpreter")),
        }
    }

    fn release(call: &mut CallState<'_>, slot: usize) {
        call.release(slot);
    }

    fn finish(&self, call: &mut CallState<'_>, frame: &mut Frame<'_, Self>) -> Result<()> {
        call.finish(self, frame)
    }

    fn raise(
        &self,
        _call: &mut CallState<'_>,
        frame: &mut Frame<'_, Self>,
        stop: Stop<Error>,
    ) -> Error {
        match stop {
            Stop::Failed(e) | Stop::Host(e) => e,
            Stop::Memory(bytes) => Error::out_of_memory(format!(
                "the device has too little memory for {bytes} bytes"
            )),
            Stop::Library(step) => {
                let op = match &frame.program.steps[step].kind {
                    StepKind::Library(l) => format!("{:?}", l.op),
                    _ => String::new(),
                };
                Error::machine(format!("cuBLAS refused a product ({op})"))
            }
        }
    }

    fn error(e: Error) -> Error {
        e
    }
}
