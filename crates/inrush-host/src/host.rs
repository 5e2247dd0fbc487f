//! The process that an executor runs in, as one trait.
//!
//! A host is made for each call, or shared by calls: it holds no state of a call but the stream. State of a call that only the
//! host understands (objects of an interpreter, most of all) is its [`Host::Call`], which the executor hands back to it.

use crate::gpu::cublas::Blas;
use crate::gpu::driver::{DevicePtr, Stream};
use crate::gpu::plan::Op;
use crate::gpu::{Frame, Stop};
use crate::program::{Gpu, LibraryOp};
use crate::shape::Shape;
use inrush_base::Error;

/// Results of a library call, by position; operators have this many at most.
pub type Results<T> = [Option<T>; 9];

/// The process around an executor.
///
/// Methods in the first group run without an interpreter and from any thread. Those that take a [`Host::Call`] run on the
/// caller's thread, with the interpreter if the host has one.
pub trait Host: Sync + Sized {
    /// A tensor that the executor owns. Dropping it releases its memory to later work of the same stream.
    type Tensor: Send + Sync + 'static;
    /// The host's part of the state of a call: values by slot, sizes.
    type Call<'c>;
    /// Kernels that the host interprets, where the device is the CPU.
    type Interpreter: Send + Sync;
    /// Errors of steps of the host.
    type Error: Send;
    /// Recordings of the same steps that are kept, each for other addresses.
    const RECORDINGS: usize = 4;

    /// Returns the stream that work is issued on.
    fn stream(&self) -> Stream;

    /// Returns a new tensor with unspecified contents and its address; `None` if the device has too little memory.
    fn allocate(&self, shape: &Shape) -> Option<(Self::Tensor, DevicePtr)>;

    /// Returns a tensor over memory of others, which outlives its uses.
    fn over(&self, at: DevicePtr, shape: &Shape) -> Option<Self::Tensor>;

    /// Returns the address of a tensor's first element.
    fn address(&self, tensor: &Self::Tensor) -> Option<DevicePtr>;

    /// Returns `result` if it has the strides of `shape`, else a copy that does.
    ///
    /// # Errors
    /// Too little memory, or whatever the host's copies fail with.
    fn conform(
        &self,
        result: Self::Tensor,
        shape: &Shape,
    ) -> Result<Self::Tensor, Stop<Self::Error>>;

    /// Issues a library call on the stream; false if the library refuses it. New tensors are left in `results`, in the order
    /// of the operator's results.
    fn library(
        &self,
        op: &LibraryOp,
        inputs: &[Option<&Self::Tensor>],
        out: Option<&Self::Tensor>,
        results: &mut Results<Self::Tensor>,
    ) -> bool;

    /// Runs a launch of a kernel that the host interprets.
    ///
    /// # Errors
    /// What the kernel raises.
    fn interpret(
        &self,
        code: &Self::Interpreter,
        kernel: usize,
        grid: [u32; 3],
        arguments: &[u8],
    ) -> Result<(), Self::Error>;

    /// Returns cuBLAS and a handle for the stream, if products may go to it without the host.
    ///
    /// # Errors
    /// The host's, where it cannot tell.
    fn blas(
        &self,
        call: &mut Self::Call<'_>,
    ) -> Result<Option<(&'static Blas, usize)>, Self::Error>;

    /// Makes the kernels of a program ready to be interpreted.
    ///
    /// # Errors
    /// Those of hosts without an interpreter, and what a kernel's text raises.
    fn interpreter(
        &self,
        call: &mut Self::Call<'_>,
        gpu: &Gpu,
    ) -> Result<Self::Interpreter, Self::Error>;

    /// Returns the values of the symbols and of the sizes, as far as they are known.
    fn known<'a>(call: &'a Self::Call<'_>) -> (&'a [Option<i64>], &'a [Option<i64>]);

    /// Returns memory that the caller brings for outputs, by slot. Kernels write there directly where an output has this layout.
    fn outputs_into(_call: &Self::Call<'_>) -> Vec<(usize, DevicePtr, Shape)> {
        Vec::new()
    }

    /// Reads the symbols that become known after step `after`.
    ///
    /// # Errors
    /// Where a value is not what the program was compiled for.
    fn bind_symbols(&self, call: &mut Self::Call<'_>, after: usize) -> Result<(), Self::Error>;

    /// Runs `f`, which needs no interpreter, while others may have it.
    fn native<R: Send>(call: &mut Self::Call<'_>, f: impl FnOnce() -> R + Send) -> R;

    /// Runs a step that needs the host's values ([`Op::is_host`]).
    ///
    /// # Errors
    /// The host's.
    fn step(
        &self,
        call: &mut Self::Call<'_>,
        frame: &mut Frame<'_, Self>,
        op: &Op,
    ) -> Result<(), Self::Error>;

    /// Drops the host's value in a slot, which nothing reads any more.
    fn release(call: &mut Self::Call<'_>, slot: usize);

    /// Hands over what the steps computed: outputs become values of the call.
    ///
    /// # Errors
    /// The host's.
    fn finish(
        &self,
        call: &mut Self::Call<'_>,
        frame: &mut Frame<'_, Self>,
    ) -> Result<(), Self::Error>;

    /// Returns the error for why steps stopped.
    fn raise(
        &self,
        call: &mut Self::Call<'_>,
        frame: &mut Frame<'_, Self>,
        stop: Stop<Self::Error>,
    ) -> Self::Error;

    /// Returns the error for one of the executor's own.
    fn error(e: Error) -> Self::Error;
}
