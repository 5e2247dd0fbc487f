//! libtorch's functions for streams and memory of a GPU, and PyTorch as the library that lends calls its memory.

use crate::torch::{Handle, Owned, Rc, Torch, checked, get, of_process};
use inrush_base::{Error, Result};
use inrush_host::gpu::driver::DevicePtr;
use inrush_host::native::{Owner, Stream, TensorLibrary};
use inrush_host::program::Device;
use inrush_host::{Shape, devices};
use libloading::os::unix::Library;
use std::ffi::c_void;
use std::fmt;
use std::sync::{Arc, OnceLock};

type Guard = *mut c_void;
type FromBlob = unsafe extern "C" fn(
    *mut c_void,
    i64,
    *const i64,
    *const i64,
    i64,
    i32,
    i32,
    i32,
    *mut Handle,
) -> Rc;

/// Functions of the libtorch that the process has loaded.
struct Functions {
    current_stream: unsafe extern "C" fn(i32, *mut *mut c_void) -> Rc,
    create_stream_guard: unsafe extern "C" fn(*mut c_void, i32, *mut Guard) -> Rc,
    delete_stream_guard: unsafe extern "C" fn(Guard) -> Rc,
    /// A release without it has a current device all the same; the first one is used then.
    current_device: Option<unsafe extern "C" fn(*mut i32) -> Rc>,
    from_blob: FromBlob,
    copy: unsafe extern "C" fn(Handle, Handle, i32) -> Rc,
    view_dtype: unsafe extern "C" fn(Handle, i32, *mut Handle) -> Rc,
    /// Stay open, so that the functions stay where they are.
    _libraries: [Library; 2],
}

impl Functions {
    fn of_process() -> Result<&'static Functions> {
        static FUNCTIONS: OnceLock<std::result::Result<Functions, String>> = OnceLock::new();
        let found = FUNCTIONS.get_or_init(|| Functions::find().map_err(|e| e.to_string()));
        found.as_ref().map_err(|e| Error::machine(e.clone()))
    }

    fn find() -> Result<Functions> {
        let (cpu, cuda) = (of_process("torch_cpu"), of_process("torch_cuda"));
        Ok(Functions {
            current_stream: get(&cuda, "aoti_torch_get_current_cuda_stream")?,
            create_stream_guard: get(&cuda, "aoti_torch_create_cuda_stream_guard")?,
            delete_stream_guard: get(&cuda, "aoti_torch_delete_cuda_stream_guard")?,
            current_device: get(&cpu, "aoti_torch_get_current_device_index").ok(),
            from_blob: get(&cpu, "aoti_torch_create_tensor_from_blob")?,
            copy: get(&cpu, "aoti_torch_copy_")?,
            view_dtype: get(&cpu, "aoti_torch_view_dtype")?,
            _libraries: [cpu, cuda],
        })
    }
}

/// PyTorch on one GPU.
#[derive(Clone, Copy)]
pub(crate) struct Cuda {
    torch: &'static Torch,
    functions: &'static Functions,
    device: Device,
}

/// A stream that is PyTorch's current one until this is dropped.
pub(crate) struct OnStream {
    functions: &'static Functions,
    /// Null where the stream was current already.
    guard: Guard,
}

impl Drop for OnStream {
    fn drop(&mut self) {
        if !self.guard.is_null() {
            // SAFETY: the guard was made by `enter` and is given back once.
            unsafe { (self.functions.delete_stream_guard)(self.guard) };
        }
    }
}

impl fmt::Debug for Cuda {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PyTorch on {}", devices::name(self.device))
    }
}

impl Cuda {
    /// Returns PyTorch on the device that a name gives; one without an index is the current device.
    ///
    /// # Errors
    /// An input error for other names; a machine error for a PyTorch without CUDA.
    pub(crate) fn new(torch: &'static Torch, name: &str) -> Result<Cuda> {
        let mut device = inrush_host::native::device::parse(name)?;
        let functions = Functions::of_process().map_err(|e| e.context(format!("`{name}`")))?;
        if let (false, Some(current)) = (name.contains(':'), functions.current_device) {
            let mut index = 0;
            // SAFETY: the result is a local.
            if unsafe { current(&raw mut index) } == 0 {
                device.index = index;
            }
        }
        Ok(Cuda {
            torch,
            functions,
            device,
        })
    }

    pub(crate) fn device(&self) -> Device {
        self.device
    }

    /// Returns PyTorch's current stream of the device.
    pub(crate) fn stream(&self) -> Result<Stream> {
        let mut stream = std::ptr::null_mut();
        // SAFETY: the result is a local.
        let rc = unsafe { (self.functions.current_stream)(self.device.index, &raw mut stream) };
        checked(rc, "tell its stream")?;
        Ok(Stream(stream as usize))
    }

    /// Makes a stream PyTorch's current one.
    pub(crate) fn enter(&self, stream: Stream) -> Result<OnStream> {
        let mut guard = std::ptr::null_mut();
        if self.stream()? != stream {
            let (raw, index) = (stream.0 as *mut c_void, self.device.index);
            // SAFETY: the stream is one of the device's; the result is a local.
            let rc = unsafe { (self.functions.create_stream_guard)(raw, index, &raw mut guard) };
            checked(rc, "use a stream")?;
        }
        Ok(OnStream {
            functions: self.functions,
            guard,
        })
    }

    /// Returns the memory of a tensor read as another dtype.
    ///
    /// # Safety
    /// `h` is a live tensor.
    pub(crate) unsafe fn read_as(&self, h: Handle, dtype: i32) -> Result<Owned> {
        let mut read = std::ptr::null_mut();
        // SAFETY: the caller's promise; the result is a local.
        let rc = unsafe { (self.functions.view_dtype)(h, dtype, &raw mut read) };
        checked(rc, "read a tensor's memory as another dtype")?;
        Ok(Owned::new(read))
    }

    /// Returns a tensor over memory of others.
    fn over(&self, at: DevicePtr, s: &Shape) -> Result<Owned> {
        let mut h = std::ptr::null_mut();
        // SAFETY: both lists have the rank's length; the address is not read here.
        let rc = unsafe {
            (self.functions.from_blob)(
                at as *mut c_void,
                s.sizes.len() as i64,
                s.sizes.as_ptr(),
                s.strides.as_ptr(),
                0,
                s.dtype,
                self.device.kind,
                self.device.index,
                &raw mut h,
            )
        };
        checked(rc, "make a tensor over memory")?;
        Ok(Owned::new(h))
    }
}

impl TensorLibrary for Cuda {
    fn allocate(&self, s: &Shape, stream: Stream) -> Option<(Owner, DevicePtr)> {
        // PyTorch gives freed memory to later work of the stream that was current at the allocation.
        let _on = self.enter(stream).ok()?;
        let device = (self.device.kind, self.device.index);
        let (owned, address) = (self.torch).empty_on(device, s.dtype, &s.sizes, &s.strides)?;
        Some((Arc::new(owned), address as DevicePtr))
    }

    unsafe fn copy(
        &self,
        (to, to_shape): (DevicePtr, &Shape),
        (from, from_shape): (DevicePtr, &Shape),
        stream: Stream,
    ) -> Result<()> {
        let _on = self.enter(stream)?;
        let (to, from) = (self.over(to, to_shape)?, self.over(from, from_shape)?);
        // SAFETY: both handles are owned; the memory is the caller's by its promise.
        let rc = unsafe { (self.functions.copy)(to.handle(), from.handle(), 1) };
        checked(rc, "copy a tensor into another layout")
    }
}
