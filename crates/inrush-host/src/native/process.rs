//! The host of a call: the device's driver, and nothing of PyTorch.

use super::call::CallState;
use super::memory::{Memory, Owner};
use crate::gpu::cublas::{self, Blas};
use crate::gpu::driver::{DevicePtr, Driver, OwnedStream, Stream};
use crate::gpu::plan::Op;
use crate::gpu::{Frame, Stop};
use crate::host::{Host, Results};
use crate::program::{Gpu, LibraryOp, StepKind};
use crate::shape::Shape;
use inrush_base::{Error, Result, same_strides};
use inrush_runtime::tensor::copy_strided;

/// Bytes of cuBLAS's workspace.
const WORKSPACE: u64 = 32 << 20;

/// The device's driver in this process: a stream, memory, and a handle of cuBLAS. One call at a time uses it.
pub struct Process {
    pub(super) driver: Driver,
    /// The stream of the call: the host's own, or the caller's.
    stream: Stream,
    own: OwnedStream,
    memory: Memory,
    blas: Option<Handle>,
}

/// cuBLAS with a handle, and the workspace that the handle uses on the stream.
struct Handle {
    blas: &'static Blas,
    handle: usize,
    _workspace: Owner,
}

/// A tensor: its own memory, or a part of others'.
pub struct Tensor {
    pub(super) address: DevicePtr,
    pub(super) shape: Shape,
    /// `None` for memory of others.
    pub(super) owner: Option<Owner>,
}

impl Process {
    /// Makes a host in the current context; with cuBLAS, matrix products go there.
    ///
    /// # Errors
    /// Those of the driver. A machine error if cuBLAS cannot be used.
    pub(super) fn new(
        driver: Driver,
        memory: Memory,
        blas: Option<&'static Blas>,
    ) -> Result<Process> {
        let own = driver.own_stream()?;
        let stream = own.stream();
        let blas = blas.map(|b| Handle::new(b, &memory, stream)).transpose()?;
        Ok(Process {
            driver,
            stream,
            own,
            memory,
            blas,
        })
    }

    /// Returns true if work on the stream, or on the host's own, needs no other workspace.
    pub(super) fn works_on(&self, stream: Option<Stream>) -> bool {
        self.stream == stream.unwrap_or(self.own.stream())
    }

    /// Issues what follows on a stream, or on the host's own.
    ///
    /// # Errors
    /// Too little memory for a workspace, and what cuBLAS refuses.
    pub(super) fn work_on(&mut self, stream: Option<Stream>) -> Result<()> {
        if self.works_on(stream) {
            return Ok(());
        }
        let stream = stream.unwrap_or(self.own.stream());
        if let Some(h) = &mut self.blas {
            // Earlier work may still use the workspace of the other stream.
            h._workspace = workspace(h.blas, h.handle, &self.memory, stream)?;
        }
        self.stream = stream;
        Ok(())
    }

    /// Returns a tensor that gets `bytes`, in the order of the stream's work. The bytes stay until that is done.
    ///
    /// # Errors
    /// Too little memory, and those of the driver.
    pub(super) fn upload(&self, shape: &Shape, bytes: &[u8]) -> Result<Tensor> {
        if shape.bytes()? < bytes.len() as u64 {
            return Err(Error::internal("more data than memory"));
        }
        let tensor = self.new_tensor(shape)?;
        // SAFETY: the memory was just allocated for this shape, which has as many bytes, on the stream that writes it.
        unsafe {
            self.driver
                .write_later(tensor.address, bytes, self.stream)?
        };
        Ok(tensor)
    }

    /// Copies bytes of the host to the device, in the order of the stream's work.
    ///
    /// # Errors
    /// Those of the driver.
    ///
    /// # Safety
    /// The address is of as many bytes, and the bytes stay until the work is done.
    pub(super) unsafe fn write(&self, to: DevicePtr, bytes: &[u8]) -> Result<()> {
        // SAFETY: by the caller's promise.
        unsafe { self.driver.write_later(to, bytes, self.stream) }
    }

    /// Returns a tensor with the layout of `shape` that gets the bytes at an address, in the order of the stream's work.
    ///
    /// # Errors
    /// Too little memory, and those of the driver.
    ///
    /// # Safety
    /// The bytes of the shape at the address stay until the work is done.
    pub(super) unsafe fn copy_of(&self, shape: &Shape, from: DevicePtr) -> Result<Tensor> {
        let tensor = self.new_tensor(shape)?;
        // SAFETY: by the caller's promise; the tensor has as many bytes.
        unsafe { self.copy(tensor.address, from, shape.bytes()?)? };
        Ok(tensor)
    }

    /// Copies bytes on the device, in the order of the stream's work.
    ///
    /// # Errors
    /// Those of the driver.
    ///
    /// # Safety
    /// Both addresses are of as many bytes until the work is done.
    pub(super) unsafe fn copy(&self, to: DevicePtr, from: DevicePtr, bytes: u64) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: by the caller's promise.
        unsafe { self.driver.copy(to, from, bytes as usize, self.stream) }
    }

    /// Copies a tensor to one of the same dtype and sizes, in the order of the stream's work: see [`Memory::copy`]. Without a
    /// library of tensors, other strides are copied on the host, which waits for the stream.
    ///
    /// # Errors
    /// Those of the driver and of the library that copies between layouts.
    ///
    /// # Safety
    /// As for [`Memory::copy`].
    pub(super) unsafe fn copy_tensor(
        &self,
        to: (DevicePtr, &Shape),
        from: (DevicePtr, &Shape),
    ) -> Result<()> {
        let same = same_strides(&to.1.sizes, &to.1.strides, &from.1.strides);
        match same || self.memory.copies_strides() {
            // SAFETY: by the caller's promise.
            true => unsafe { self.memory.copy(&self.driver, to, from, self.stream) },
            // SAFETY: by the caller's promise.
            false => unsafe { self.copy_on_host(to, from) },
        }
    }

    /// Copies a tensor to one of other strides by way of the host. Elements of the first have memory of their own; what is between
    /// them is kept.
    ///
    /// # Safety
    /// As for [`Memory::copy`].
    unsafe fn copy_on_host(
        &self,
        to: (DevicePtr, &Shape),
        from: (DevicePtr, &Shape),
    ) -> Result<()> {
        let (mut target, mut source) = (
            vec![0u8; to.1.bytes()? as usize],
            vec![0u8; from.1.bytes()? as usize],
        );
        if target.is_empty() {
            return Ok(());
        }
        self.driver.synchronize(self.stream)?;
        // SAFETY: both tensors are valid by the caller's promise, and the stream's work is done.
        unsafe {
            self.driver.read(from.0, &mut source)?;
            self.driver.read(to.0, &mut target)?;
        }
        // SAFETY: each vector has the extent of its tensor.
        unsafe {
            copy_strided(
                source.as_ptr(),
                &from.1.strides,
                target.as_mut_ptr(),
                &to.1.strides,
                &to.1.sizes,
                to.1.element as usize,
            );
            self.driver.write_later(to.0, &target, self.stream)?;
        }
        self.driver.synchronize(self.stream)
    }

    /// Allocates a tensor with unspecified contents.
    ///
    /// # Errors
    /// Too little memory.
    pub(super) fn new_tensor(&self, shape: &Shape) -> Result<Tensor> {
        let made = self.allocate(shape).map(|(tensor, _)| tensor);
        made.ok_or_else(|| {
            Error::out_of_memory(format!(
                "the device has too little memory for {} bytes",
                shape.bytes().unwrap_or(u64::MAX)
            ))
        })
    }
}

impl Handle {
    /// Makes a handle of cuBLAS for a stream.
    fn new(blas: &'static Blas, memory: &Memory, stream: Stream) -> Result<Handle> {
        let handle = blas.create().ok_or_else(refused)?;
        match workspace(blas, handle, memory, stream) {
            Ok(owner) => Ok(Handle {
                blas,
                handle,
                _workspace: owner,
            }),
            Err(e) => {
                // SAFETY: the handle was just made, and nothing uses it.
                unsafe { blas.destroy(handle) };
                Err(e)
            }
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: the handle is this one's alone.
        unsafe { self.blas.destroy(self.handle) };
    }
}

fn refused() -> Error {
    Error::machine("cuBLAS gives no handle")
}

/// Has a handle issue on a stream, with a new workspace there.
fn workspace(blas: &Blas, handle: usize, memory: &Memory, stream: Stream) -> Result<Owner> {
    let shape = Shape::of_bytes(WORKSPACE);
    let (owner, address) = memory.allocate(&shape, stream).ok_or_else(refused)?;
    // The library's own way of computing: products of float32 are not rounded to fewer bits.
    match blas.direct(handle, stream, (address, WORKSPACE), cublas::DEFAULT_MATH) {
        true => Ok(owner),
        false => Err(refused()),
    }
}

impl Host for Process {
    type Tensor = Tensor;
    type Call<'c> = CallState<'c>;
    /// This host interprets nothing.
    type Interpreter = std::convert::Infallible;
    type Error = Error;
    /// Several hosts have memory of their own, and weights alternate between two places.
    const RECORDINGS: usize = 16;

    fn stream(&self) -> Stream {
        self.stream
    }

    fn allocate(&self, shape: &Shape) -> Option<(Tensor, DevicePtr)> {
        let (owner, address) = self.memory.allocate(shape, self.stream)?;
        let tensor = Tensor {
            address,
            shape: shape.clone(),
            owner: Some(owner),
        };
        Some((tensor, address))
    }

    fn over(&self, at: DevicePtr, shape: &Shape) -> Option<Tensor> {
        Some(Tensor {
            address: at,
            shape: shape.clone(),
            owner: None,
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
        Ok(self.blas.as_ref().map(|b| (b.blas, b.handle)))
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

    fn outputs_into(call: &CallState<'_>) -> Vec<(usize, DevicePtr, Shape)> {
        call.outputs_into()
    }

    fn bind_symbols(&self, call: &mut CallState<'_>, after: usize) -> Result<()> {
        call.bind_symbols(self, after)
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
            Op::Call { step, .. } => call.work(self, frame, *step),
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
