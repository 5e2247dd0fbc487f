//! The trait that drivers implement.
//!
//! A kind of device implements [`Api`] in its crate, over a library that is looked up at run time. The executor holds a
//! [`crate::Driver`] and never names a kind. Methods work in the context that is current on the calling thread.

use crate::{Tensor, TensorMap};
use inrush_base::{Error, Properties, Result};
use std::ffi::{CStr, c_void};

/// An object of a driver: a module, a function, an event, a graph.
pub type Handle = *mut c_void;

/// An address on the device.
pub type DevicePtr = u64;

/// A context of a device that stays until the process ends, as its driver counts them.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Context(pub usize);

/// A stream of the host process, as PyTorch's raw stream gives it; 0 is the default one.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Stream(pub usize);

/// Looks up a function of the library whose objects a host process has for streams.
pub type Symbols<'a> = &'a dyn Fn(&CStr) -> Option<*const c_void>;

/// Code of a kernel.
#[derive(Copy, Clone, Debug)]
pub enum Code<'a> {
    /// Machine code for the device.
    Binary(&'a [u8]),
    /// Text that the driver finishes, such as PTX.
    Text(&'a CStr),
}

/// A kernel as its driver has it.
#[derive(Copy, Clone, Debug)]
pub struct Loaded {
    /// The module that was loaded.
    pub module: Handle,
    /// The kernel in it.
    pub function: Handle,
}

/// A launch of a kernel.
pub struct Launch<'a> {
    /// The kernel.
    pub function: Handle,
    /// Programs along each dimension, none of them zero.
    pub grid: [u32; 3],
    /// Threads of a program.
    pub threads: u32,
    /// Bytes of dynamic shared memory.
    pub shared: u32,
    /// Arguments as the kernel reads them: each at a multiple of its size.
    pub arguments: &'a mut [u8],
    /// Where each argument begins, and its bytes; empty where the driver may take them as one piece.
    pub places: &'a [(u32, u32)],
    /// It may begin before the kernel before it has ended; the kernel waits by itself.
    pub overlaps: bool,
}

/// A driver of one kind of device.
///
/// # Errors
/// All methods return errors of the driver, which name its function. Too little memory is an error of kind `OutOfMemory`.
pub trait Api: Send + Sync {
    /// Returns the name of the driver with its version, for readers.
    fn version(&self) -> Result<String>;

    /// Returns the number of devices.
    fn devices(&self) -> Result<i32>;

    /// Returns the context of a device that all users in the process share.
    fn context(&self, device: i32) -> Result<Context>;

    /// Returns the context that is current on the calling thread.
    fn current(&self) -> Result<Option<Context>>;

    /// Makes a context current on the calling thread, or none.
    fn set_current(&self, context: Option<Context>) -> Result<()>;

    /// Takes work for a stream of the host process that is an object of another library. Drivers whose streams such processes use
    /// themselves need not. A host calls it before each call, since the object may stand for another stream of the driver by then.
    ///
    /// # Errors
    /// An unsupported error, with the reason, where work would be in no order with the process's own.
    ///
    /// # Safety
    /// The stream is one of the process's for its device of this number, and stays until the work that is issued on it is done.
    unsafe fn adopt(&self, _device: i32, _stream: Stream, _symbols: Symbols<'_>) -> Result<()> {
        Ok(())
    }

    /// Returns true if work was issued on an adopted stream since this was asked last. The stream's library does not know of that
    /// work until the host issues work of its own after it.
    fn take_issued(&self, _stream: Stream) -> bool {
        false
    }

    /// Returns the properties of the current device.
    fn properties(&self) -> Result<Properties>;

    /// Waits until all work of the current device is done.
    fn synchronize_all(&self) -> Result<()>;

    /// Loads code and finds a kernel in it, which may use `shared` bytes of dynamic shared memory.
    fn load(&self, code: Code<'_>, symbol: &CStr, shared: u32) -> Result<Loaded>;

    /// Unloads a kernel. Failures are of no use to a caller.
    ///
    /// # Safety
    /// The kernel is loaded, and not used any more.
    unsafe fn unload(&self, loaded: Loaded);

    /// Returns the registers of a thread, and the bytes that it spills.
    ///
    /// # Safety
    /// The function is one of a loaded module.
    unsafe fn resources(&self, function: Handle) -> Result<(i32, i32)>;

    /// Returns true if launches may begin before the kernel before them has ended.
    fn can_overlap(&self) -> bool {
        false
    }

    /// Returns the threads of a warp that a kernel was built for; `None` where it is the same for all kernels of a device.
    ///
    /// # Safety
    /// The function is one of a loaded module.
    unsafe fn lanes(&self, _function: Handle) -> Result<Option<u32>> {
        Ok(None)
    }

    /// Returns true if kernels can access memory of the device at an address, whoever allocated it.
    fn can_access(&self, _at: DevicePtr) -> Result<bool> {
        Ok(true)
    }

    /// Returns true if work on a stream can be captured.
    fn can_capture(&self) -> bool {
        true
    }

    /// Returns true if events measure the time of work.
    fn can_time(&self) -> bool {
        true
    }

    /// Returns true if launches must say where each argument is.
    fn takes_each(&self) -> bool {
        false
    }

    /// Starts a grid on a stream. The arguments are copied before this returns.
    ///
    /// # Safety
    /// The arguments are those of the kernel; addresses among them are valid on the device until the work is done.
    unsafe fn launch(&self, launch: &mut Launch<'_>, stream: Stream) -> Result<()>;

    /// Allocates memory, of one byte at least.
    fn allocate(&self, bytes: usize) -> Result<DevicePtr>;

    /// Frees memory.
    ///
    /// # Safety
    /// It was allocated here, and nothing uses it.
    unsafe fn free(&self, at: DevicePtr);

    /// Copies bytes on the device.
    ///
    /// # Safety
    /// Both addresses are of so many bytes until the work is done.
    unsafe fn copy(
        &self,
        to: DevicePtr,
        from: DevicePtr,
        bytes: usize,
        stream: Stream,
    ) -> Result<()>;

    /// Copies bytes to the device, which may be on their way when this returns: waiting for the default stream ends that.
    ///
    /// # Safety
    /// So many bytes at the address are the caller's.
    unsafe fn write(&self, to: DevicePtr, data: &[u8]) -> Result<()>;

    /// Copies bytes to the device, in the order of the stream's work.
    ///
    /// # Safety
    /// So many bytes at the address, and `data`, stay until the work is done.
    unsafe fn write_later(&self, to: DevicePtr, data: &[u8], stream: Stream) -> Result<()>;

    /// Copies bytes to the host.
    ///
    /// # Safety
    /// The address is of so many bytes, and no work writes them.
    unsafe fn read(&self, from: DevicePtr, data: &mut [u8]) -> Result<()>;

    /// Sets bytes to zero, at once or in the order of a stream's work.
    ///
    /// # Safety
    /// So many bytes at the address are the caller's until the work is done.
    unsafe fn clear(&self, at: DevicePtr, bytes: usize, stream: Option<Stream>) -> Result<()>;

    /// Makes a stream that does not wait for the default one.
    fn stream(&self) -> Result<Stream>;

    /// Destroys a stream, whose work is finished.
    ///
    /// # Safety
    /// The stream was made here, and is not used any more.
    unsafe fn destroy_stream(&self, stream: Stream);

    /// Waits until all work on the stream is done.
    fn synchronize(&self, stream: Stream) -> Result<()>;

    /// Makes an event, which takes time stamps if `timed`.
    fn event(&self, timed: bool) -> Result<Handle>;

    /// Has an event stand for all work that was issued on the stream so far.
    ///
    /// # Safety
    /// The event exists.
    unsafe fn record_event(&self, event: Handle, stream: Stream) -> Result<()>;

    /// Has later work of the stream wait for an event.
    ///
    /// # Safety
    /// The event exists.
    unsafe fn wait_for(&self, event: Handle, stream: Stream) -> Result<()>;

    /// Returns the milliseconds from one event to another, once both are done.
    ///
    /// # Safety
    /// Both events take time stamps.
    unsafe fn elapsed(&self, start: Handle, end: Handle) -> Result<f32>;

    /// Destroys an event.
    ///
    /// # Safety
    /// It is not used any more.
    unsafe fn destroy_event(&self, event: Handle);

    /// Returns true if work on the stream is captured instead of run.
    fn is_capturing(&self, stream: Stream) -> Result<bool>;

    /// Begins to capture work on the stream.
    fn begin_capture(&self, stream: Stream) -> Result<()>;

    /// Has what the calling thread does from now on, such as allocations, leave captures of other threads valid.
    fn leave_captures_alone(&self) -> Result<()>;

    /// Ends a capture; gives its graph.
    fn end_capture(&self, stream: Stream) -> Result<Handle>;

    /// Makes an empty graph.
    fn graph(&self) -> Result<Handle>;

    /// Adds a launch to a graph, after another one of it. Returns its node.
    ///
    /// # Safety
    /// As for [`Api::launch`]; `after` is a node of the graph.
    unsafe fn add(
        &self,
        graph: Handle,
        after: Option<Handle>,
        launch: &mut Launch<'_>,
    ) -> Result<Handle>;

    /// Makes a graph ready to be issued.
    ///
    /// # Safety
    /// The graph exists.
    unsafe fn instantiate(&self, graph: Handle) -> Result<Handle>;

    /// Has a launch of a ready graph be another one of the same kernel.
    ///
    /// # Safety
    /// As for [`Api::launch`]; the node is one of the graph that was made ready.
    unsafe fn set(&self, ready: Handle, node: Handle, launch: &mut Launch<'_>) -> Result<()>;

    /// Issues a ready graph.
    ///
    /// # Safety
    /// As for [`Api::launch`], for all of its launches.
    unsafe fn replay(&self, ready: Handle, stream: Stream) -> Result<()>;

    /// Destroys a graph.
    ///
    /// # Safety
    /// It is not used any more; what was made ready of it stays.
    unsafe fn destroy_graph(&self, graph: Handle);

    /// Destroys a ready graph, once what runs of it is done.
    ///
    /// # Safety
    /// It is not issued any more.
    unsafe fn destroy_ready(&self, ready: Handle);

    /// Returns the map of a tensor at an address.
    ///
    /// # Errors
    /// An unsupported error for devices whose copy engine takes none.
    fn tensor_map(&self, _tensor: &Tensor, _address: DevicePtr) -> Result<TensorMap> {
        Err(Error::unsupported(
            "tensor maps: the device has no copy engine that takes them",
        ))
    }
}
