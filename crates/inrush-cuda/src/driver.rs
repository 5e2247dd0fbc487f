//! The CUDA driver, found at run time: modules, functions, launches on a given stream, events.
//!
//! Contexts are the host process's: everything here works in the context that is current on the calling thread, as PyTorch
//! leaves it. [`Driver::make_current`] makes the primary context current where there is no host process.

mod list;
mod map;
mod programmatic;
mod recording;
mod streams;

pub use list::List;
pub use map::{Tensor, TensorMap};
pub use recording::Recording;
pub use streams::{Entered, Marker, OwnedStream};

use inrush_base::{Error, ErrorKind, Result};
use libloading::Library;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::sync::{Arc, OnceLock};

/// The status that the driver's functions return.
type Status = c_int;
type Handle = *mut c_void;
/// An address on the device.
pub type DevicePtr = u64;

/// File name of the driver's library.
pub const LIBRARY: &str = "libcuda.so.1";

/// Folders where NVIDIA's installers put the libraries that go with a driver.
pub const LIBRARY_FOLDERS: [&str; 2] = [
    "/usr/local/cuda/lib64",
    "/usr/local/cuda/targets/x86_64-linux/lib",
];

/// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES` and its neighbours.
const ATTRIBUTE_STATIC_SHARED: c_int = 1;
const ATTRIBUTE_LOCAL: c_int = 3;
const ATTRIBUTE_REGISTERS: c_int = 4;
const ATTRIBUTE_MAX_DYNAMIC_SHARED: c_int = 8;
/// `CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN`.
const DEVICE_MAX_SHARED: c_int = 97;
/// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR` and `_MINOR`.
const DEVICE_MAJOR: c_int = 75;
const DEVICE_MINOR: c_int = 76;
/// `CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT`, `L2_CACHE_SIZE`, `MAX_THREADS_PER_MULTIPROCESSOR` and
/// `MAX_REGISTERS_PER_MULTIPROCESSOR`.
const DEVICE_MULTIPROCESSORS: c_int = 16;
const DEVICE_L2_BYTES: c_int = 38;
const DEVICE_RESIDENT_THREADS: c_int = 39;
const DEVICE_REGISTERS: c_int = 82;
/// Failures of kernels that later calls report.
const OUT_OF_MEMORY: Status = 2;
const ILLEGAL_ADDRESS: Status = 700;
const ASSERT: Status = 710;
/// Entries of the `extra` list of a launch: its end, a buffer of arguments, its size.
const PARAM_END: usize = 0;
const PARAM_BUFFER: usize = 1;
const PARAM_SIZE: usize = 2;
/// Dynamic shared memory that needs no permission.
const SMALL_SHARED: u32 = 48 << 10;

macro_rules! api {
    ($($name:ident = $symbol:literal ($($arg:ty),*);)*) => {
        /// The driver's functions.
        struct Api {
            $($name: unsafe extern "C" fn($($arg),*) -> Status,)*
            /// From CUDA 12 on.
            map_encode: Option<map::Encode>,
            programmatic: Option<programmatic::Api>,
            _library: Library,
        }
        impl Api {
            fn load(library: Library) -> Result<Api> {
                $(
                    // SAFETY: the types are those of the driver's header for these symbols.
                    let $name = *unsafe {
                        library.get::<unsafe extern "C" fn($($arg),*) -> Status>(concat!($symbol, "\0").as_bytes())
                    }
                    .map_err(|_| {
                        Error::machine(concat!("the CUDA driver is too old: it has no `", $symbol, "`"))
                    })?;
                )*
                // SAFETY: likewise.
                let map_encode = unsafe { library.get::<map::Encode>(b"cuTensorMapEncodeTiled\0") };
                let map_encode = map_encode.ok().map(|f| *f);
                let programmatic = programmatic::Api::of(&library);
                Ok(Api { $($name,)* map_encode, programmatic, _library: library })
            }
        }
    };
}

api! {
    init = "cuInit" (c_uint);
    version = "cuDriverGetVersion" (*mut c_int);
    error_name = "cuGetErrorName" (Status, *mut *const c_char);
    error_text = "cuGetErrorString" (Status, *mut *const c_char);
    device_get = "cuDeviceGet" (*mut c_int, c_int);
    device_attribute = "cuDeviceGetAttribute" (*mut c_int, c_int, c_int);
    context_current = "cuCtxGetCurrent" (*mut Handle);
    context_device = "cuCtxGetDevice" (*mut c_int);
    context_set = "cuCtxSetCurrent" (Handle);
    context_synchronize = "cuCtxSynchronize" ();
    primary_retain = "cuDevicePrimaryCtxRetain" (*mut Handle, c_int);
    module_load = "cuModuleLoadData" (*mut Handle, *const c_void);
    module_unload = "cuModuleUnload" (Handle);
    module_function = "cuModuleGetFunction" (*mut Handle, Handle, *const c_char);
    function_attribute = "cuFuncGetAttribute" (*mut c_int, c_int, Handle);
    function_set = "cuFuncSetAttribute" (Handle, c_int, c_int);
    launch = "cuLaunchKernel" (Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *mut Handle, *mut Handle);
    allocate = "cuMemAlloc_v2" (*mut DevicePtr, usize);
    free = "cuMemFree_v2" (DevicePtr);
    copy = "cuMemcpyDtoDAsync_v2" (DevicePtr, DevicePtr, usize, Handle);
    to_device = "cuMemcpyHtoD_v2" (DevicePtr, *const c_void, usize);
    to_device_later = "cuMemcpyHtoDAsync_v2" (DevicePtr, *const c_void, usize, Handle);
    fill = "cuMemsetD8_v2" (DevicePtr, u8, usize);
    fill_later = "cuMemsetD8Async" (DevicePtr, u8, usize, Handle);
    to_host = "cuMemcpyDtoH_v2" (*mut c_void, DevicePtr, usize);
    stream_synchronize = "cuStreamSynchronize" (Handle);
    stream_capturing = "cuStreamIsCapturing" (Handle, *mut c_int);
    stream_create = "cuStreamCreate" (*mut Handle, c_uint);
    stream_destroy = "cuStreamDestroy_v2" (Handle);
    stream_wait = "cuStreamWaitEvent" (Handle, Handle, c_uint);
    capture_begin = "cuStreamBeginCapture_v2" (Handle, c_int);
    capture_end = "cuStreamEndCapture" (Handle, *mut Handle);
    graph_create = "cuGraphCreate" (*mut Handle, c_uint);
    graph_kernel = "cuGraphAddKernelNode" (*mut Handle, Handle, *const Handle, usize, *const c_void);
    graph_instantiate = "cuGraphInstantiateWithFlags" (*mut Handle, Handle, u64);
    graph_set = "cuGraphExecKernelNodeSetParams" (Handle, Handle, *const c_void);
    graph_launch = "cuGraphLaunch" (Handle, Handle);
    graph_destroy = "cuGraphDestroy" (Handle);
    list_destroy = "cuGraphExecDestroy" (Handle);
    event_create = "cuEventCreate" (*mut Handle, c_uint);
    event_record = "cuEventRecord" (Handle, Handle);
    event_synchronize = "cuEventSynchronize" (Handle);
    event_elapsed = "cuEventElapsedTime" (*mut f32, Handle, Handle);
    event_destroy = "cuEventDestroy_v2" (Handle);
}

/// The driver of this process.
#[derive(Clone)]
pub struct Driver(Arc<Api>);

// SAFETY: the driver's functions may be called from any thread.
unsafe impl Send for Api {}
// SAFETY: likewise.
unsafe impl Sync for Api {}

impl Driver {
    /// Finds and starts the driver; once for each process.
    ///
    /// # Errors
    /// A machine error that says what is missing.
    pub fn get() -> Result<Driver> {
        static DRIVER: OnceLock<Result<Driver>> = OnceLock::new();
        DRIVER.get_or_init(Driver::find).clone()
    }

    fn find() -> Result<Driver> {
        Driver::open(LIBRARY.as_ref())
    }

    fn open(path: &std::ffi::OsStr) -> Result<Driver> {
        // SAFETY: the library is NVIDIA's driver, whose initialisers are made to run in any process.
        let library = unsafe { Library::new(path) }.map_err(|e| {
            Error::machine(format!(
                "no CUDA driver: `{}` cannot be loaded ({e}); install NVIDIA's driver",
                path.display()
            ))
        })?;
        let driver = Driver(Arc::new(Api::load(library)?));
        // SAFETY: the flag must be 0.
        driver.check("cuInit", unsafe { (driver.0.init)(0) })?;
        Ok(driver)
    }

    /// The driver's version: 13000 for CUDA 13.0.
    pub fn version(&self) -> Result<i32> {
        let mut v = 0;
        // SAFETY: the pointer is to an int.
        self.check("cuDriverGetVersion", unsafe { (self.0.version)(&mut v) })?;
        Ok(v)
    }

    fn check(&self, what: &str, status: Status) -> Result<()> {
        if status == 0 {
            return Ok(());
        }
        let text = |f: unsafe extern "C" fn(Status, *mut *const c_char) -> Status| {
            let mut p: *const c_char = std::ptr::null();
            // SAFETY: the driver sets the pointer to a string of its own that stays, or leaves it null.
            unsafe {
                match f(status, &mut p) {
                    0 if !p.is_null() => CStr::from_ptr(p).to_string_lossy().into_owned(),
                    _ => format!("status {status}"),
                }
            }
        };
        let (name, why) = (text(self.0.error_name), text(self.0.error_text));
        let kind = match status {
            OUT_OF_MEMORY => ErrorKind::OutOfMemory,
            _ => ErrorKind::Machine,
        };
        let message = format!("{what}: {why} ({name}){}", advice(status));
        Err(Error::new(kind, message))
    }

    /// A context must be current on the calling thread.
    fn context(&self) -> Result<()> {
        let mut c: Handle = std::ptr::null_mut();
        // SAFETY: the pointer is to a handle.
        self.check("cuCtxGetCurrent", unsafe {
            (self.0.context_current)(&mut c)
        })?;
        if c.is_null() {
            Err(Error::machine(
                "no CUDA context is current on this thread: use the device once (for example `torch.cuda.init()`)",
            ))
        } else {
            Ok(())
        }
    }

    /// An attribute of the current device.
    fn device_attribute(&self, which: c_int) -> Result<c_int> {
        let (mut device, mut value) = (0, 0);
        // SAFETY: the pointers are to ints.
        self.check("cuCtxGetDevice", unsafe {
            (self.0.context_device)(&mut device)
        })?;
        // SAFETY: likewise.
        self.check("cuDeviceGetAttribute", unsafe {
            (self.0.device_attribute)(&mut value, which, device)
        })?;
        Ok(value)
    }

    /// Shared memory that one program of the current device may use.
    fn max_shared(&self) -> Result<u32> {
        Ok(self.device_attribute(DEVICE_MAX_SHARED)?.max(0) as u32)
    }

    /// The first number of the current device's compute capability.
    pub fn capability(&self) -> Result<i32> {
        self.device_attribute(DEVICE_MAJOR)
    }

    /// Returns the properties of the current device.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn properties(&self) -> Result<inrush_base::Properties> {
        let number = |which| Ok(self.device_attribute(which)?.max(0) as u32);
        Ok(inrush_base::Properties {
            major: number(DEVICE_MAJOR)?,
            minor: number(DEVICE_MINOR)?,
            multiprocessors: number(DEVICE_MULTIPROCESSORS)?,
            resident_threads: number(DEVICE_RESIDENT_THREADS)?,
            registers: number(DEVICE_REGISTERS)?,
            shared_bytes: number(DEVICE_MAX_SHARED)?,
            l2_bytes: number(DEVICE_L2_BYTES)? as usize,
        })
    }

    /// Returns the primary context of a device, which stays until the process ends.
    pub fn primary_context(&self, device: i32) -> Result<Context> {
        let (mut handle, mut context): (_, Handle) = (0, std::ptr::null_mut());
        // SAFETY: the pointers are to an int and a handle.
        unsafe {
            self.check("cuDeviceGet", (self.0.device_get)(&mut handle, device))
                .map_err(|e| e.context(format!("device {device}")))?;
            self.check(
                "cuDevicePrimaryCtxRetain",
                (self.0.primary_retain)(&mut context, handle),
            )?;
        }
        Ok(Context(context as usize))
    }

    /// Makes a context current on the calling thread.
    pub fn set_current(&self, context: Context) -> Result<()> {
        // SAFETY: contexts are primary ones, which stay.
        self.check("cuCtxSetCurrent", unsafe {
            (self.0.context_set)(context.0 as Handle)
        })
    }

    /// Makes the primary context of a device current: for programs that host no other user of the driver.
    pub fn make_current(&self, device: i32) -> Result<()> {
        self.set_current(self.primary_context(device)?)
    }

    /// Makes the primary context of a device current where the calling thread has none yet: PyTorch sets it at its own first
    /// use of the runtime only.
    pub fn ensure_current(&self, device: i32) -> Result<()> {
        let mut c: Handle = std::ptr::null_mut();
        // SAFETY: the pointer is to a handle.
        self.check("cuCtxGetCurrent", unsafe {
            (self.0.context_current)(&mut c)
        })?;
        if c.is_null() {
            self.make_current(device)
        } else {
            Ok(())
        }
    }

    /// Loads machine code and finds a kernel in it.
    pub fn load(&self, code: &[u8], symbol: &str, threads: u32, shared: u32) -> Result<Kernel> {
        // ELF files say what they are; the driver reads as far as the headers tell it to.
        if code.len() < 64 || code[..4] != *b"\x7fELF" {
            return Err(Error::machine(format!(
                "the machine code of `{symbol}` is damaged"
            )));
        }
        // SAFETY: the code is a whole ELF image.
        unsafe { self.load_image(code.as_ptr().cast(), symbol, threads, shared) }
    }

    /// Has the driver finish PTX for the current device, and finds a kernel in it.
    ///
    /// # Errors
    /// Those of the driver: an old one does not know the PTX of newer releases.
    pub fn load_ptx(&self, ptx: &[u8], symbol: &str, threads: u32, shared: u32) -> Result<Kernel> {
        let damaged = |_| Error::input(format!("the PTX of `{symbol}` is damaged"));
        let text = CString::new(ptx).map_err(damaged)?;
        // SAFETY: the text ends with a zero.
        unsafe { self.load_image(text.as_ptr().cast(), symbol, threads, shared) }
    }

    /// Loads an image and finds a kernel in it.
    ///
    /// # Safety
    /// The image is machine code as long as its headers say, or text that ends with a zero.
    unsafe fn load_image(
        &self,
        image: *const c_void,
        symbol: &str,
        threads: u32,
        shared: u32,
    ) -> Result<Kernel> {
        self.context()?;
        let name = CString::new(symbol).map_err(|_| Error::internal("a name with a zero"))?;
        let mut module: Handle = std::ptr::null_mut();
        // SAFETY: by the caller's promise; the driver copies the image.
        self.check("cuModuleLoadData", unsafe {
            (self.0.module_load)(&mut module, image)
        })
        .map_err(|e| match self.version() {
            Ok(v) => e.context(format!(
                "loading `{symbol}` into a driver for CUDA {}.{}",
                v / 1000,
                v % 1000 / 10
            )),
            Err(_) => e.context(symbol),
        })?;
        let mut kernel = Kernel {
            driver: self.clone(),
            module,
            function: std::ptr::null_mut(),
            threads,
            shared,
            places: Box::default(),
            programmatic: false,
        };
        // SAFETY: the module is loaded, the name ends with a zero.
        self.check("cuModuleGetFunction", unsafe {
            (self.0.module_function)(&mut kernel.function, module, name.as_ptr())
        })
        .map_err(|e| e.context(symbol))?;
        if shared > SMALL_SHARED {
            let limit = self.max_shared()?;
            let fixed = kernel.attribute(ATTRIBUTE_STATIC_SHARED)?.max(0) as u32;
            if shared.saturating_add(fixed) > limit {
                return Err(Error::machine(format!(
                    "`{symbol}` needs {shared} bytes of shared memory, the device has {limit}"
                )));
            }
            // SAFETY: the function is loaded.
            self.check("cuFuncSetAttribute", unsafe {
                (self.0.function_set)(
                    kernel.function,
                    ATTRIBUTE_MAX_DYNAMIC_SHARED,
                    (limit - fixed) as c_int,
                )
            })?;
        }
        Ok(kernel)
    }

    /// An event that takes time stamps.
    pub fn event(&self) -> Result<Event> {
        let mut handle: Handle = std::ptr::null_mut();
        // SAFETY: the pointer is to a handle.
        self.check("cuEventCreate", unsafe {
            (self.0.event_create)(&mut handle, 0)
        })?;
        Ok(Event {
            driver: self.clone(),
            handle,
        })
    }

    /// Waits until all work on the stream is done.
    pub fn synchronize(&self, stream: Stream) -> Result<()> {
        // SAFETY: the caller vouches for the stream.
        self.check("cuStreamSynchronize", unsafe {
            (self.0.stream_synchronize)(stream.0 as Handle)
        })
    }

    /// Returns true if the stream is being captured.
    pub fn is_capturing(&self, stream: Stream) -> Result<bool> {
        let mut status = 0;
        // SAFETY: the pointer is to an int; the caller vouches for the stream.
        self.check("cuStreamIsCapturing", unsafe {
            (self.0.stream_capturing)(stream.0 as Handle, &mut status)
        })?;
        Ok(status != 0)
    }

    /// Copies bytes on the device.
    ///
    /// # Safety
    /// Both addresses are of as many bytes on the device until the work is done; the stream belongs to the current context.
    pub unsafe fn copy(
        &self,
        to: DevicePtr,
        from: DevicePtr,
        bytes: usize,
        stream: Stream,
    ) -> Result<()> {
        // SAFETY: by the caller's contract.
        self.check("cuMemcpyDtoDAsync", unsafe {
            (self.0.copy)(to, from, bytes, stream.0 as Handle)
        })
    }

    /// Copies bytes to the device. They are there when this returns, for all streams.
    ///
    /// # Safety
    /// So many bytes at the address are the caller's, and no work that was issued uses them.
    pub unsafe fn write(&self, to: DevicePtr, data: &[u8]) -> Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        // SAFETY: by the caller's contract.
        self.check("cuMemcpyHtoD", unsafe {
            (self.0.to_device)(to, data.as_ptr().cast(), data.len())
        })?;
        // Small copies from pageable memory may return before the device has the bytes.
        self.synchronize(Stream(0))
    }

    /// Copies bytes from the device, which work that was issued does not write any more.
    ///
    /// # Safety
    /// So many bytes at the address are the caller's.
    pub unsafe fn read(&self, from: DevicePtr, data: &mut [u8]) -> Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        // SAFETY: by the caller's contract.
        self.check("cuMemcpyDtoH", unsafe {
            (self.0.to_host)(data.as_mut_ptr().cast(), from, data.len())
        })
    }

    /// Makes bytes zero, in the order of the stream's work.
    ///
    /// # Safety
    /// So many bytes at the address are the caller's until the work is done.
    pub unsafe fn clear(&self, at: DevicePtr, bytes: usize, stream: Stream) -> Result<()> {
        // SAFETY: by the caller's contract.
        self.check("cuMemsetD8Async", unsafe {
            (self.0.fill_later)(at, 0, bytes, stream.0 as Handle)
        })
    }

    /// Allocates memory of the device.
    pub fn allocate(&self, bytes: usize) -> Result<Memory> {
        let mut at: DevicePtr = 0;
        // SAFETY: the pointer is to an address.
        self.check(&format!("cuMemAlloc of {bytes} bytes"), unsafe {
            (self.0.allocate)(&mut at, bytes.max(1))
        })?;
        Ok(Memory {
            driver: self.clone(),
            at,
            bytes,
        })
    }
}

/// Returns advice that the driver's text for a failure lacks.
fn advice(status: Status) -> &'static str {
    match status {
        ILLEGAL_ADDRESS => {
            "; some kernel before this call is at fault, `CUDA_LAUNCH_BLOCKING=1` tells which; this process cannot use the \
             device any more"
        }
        ASSERT => {
            "; a kernel before this call found an index out of range: what it wrote to stderr names the operator and the line; \
             this process cannot use the device any more"
        }
        _ => "",
    }
}

/// The primary context of a device.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Context(usize);

/// A stream of the host process, as PyTorch's raw stream gives it; 0 is the default one.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Stream(pub usize);

/// A loaded kernel.
pub struct Kernel {
    driver: Driver,
    module: Handle,
    function: Handle,
    threads: u32,
    shared: u32,
    /// Where each argument begins, where the driver is told them one by one.
    places: Box<[u32]>,
    /// It waits for the kernel before it.
    programmatic: bool,
}

// SAFETY: handles of the driver may be used from any thread with the same context.
unsafe impl Send for Kernel {}
// SAFETY: likewise.
unsafe impl Sync for Kernel {}

impl Kernel {
    /// Makes launches pass each argument by itself, given the offsets where these begin. Tensor maps
    /// must be aligned to 64 bytes in the device's argument memory, whose start differs between
    /// machines and is known to the driver only.
    pub fn with_places(self, places: Vec<u32>) -> Kernel {
        let mut kernel = self;
        kernel.places = places.into();
        kernel
    }

    /// Lets launches begin before the kernel before them has ended, if the driver can.
    ///
    /// # Safety
    /// Every thread of the kernel waits for the kernels before it (`griddepcontrol.wait`) before it accesses memory.
    pub unsafe fn programmatic(self) -> Kernel {
        let mut kernel = self;
        kernel.programmatic = kernel.driver.0.programmatic.is_some();
        kernel
    }

    /// Calls `f` with the driver's lists of arguments: of each by itself, and of all as one piece. One of them is null.
    fn hand_over<T>(
        &self,
        arguments: &mut [u8],
        f: impl FnOnce(*mut Handle, *mut Handle) -> T,
    ) -> T {
        if !self.places.is_empty() {
            let begin: *mut u8 = arguments.as_mut_ptr();
            let mut each: Vec<Handle> = (self.places.iter())
                .map(|at| begin.wrapping_add(*at as usize).cast())
                .collect();
            return f(each.as_mut_ptr(), std::ptr::null_mut());
        }
        let mut size = arguments.len();
        let mut extra: [Handle; 5] = [
            PARAM_BUFFER as Handle,
            arguments.as_mut_ptr().cast(),
            PARAM_SIZE as Handle,
            (&raw mut size).cast(),
            PARAM_END as Handle,
        ];
        f(std::ptr::null_mut(), extra.as_mut_ptr())
    }

    fn attribute(&self, which: c_int) -> Result<i32> {
        let mut v = 0;
        // SAFETY: the pointer is to an int.
        self.driver.check("cuFuncGetAttribute", unsafe {
            (self.driver.0.function_attribute)(&mut v, which, self.function)
        })?;
        Ok(v)
    }

    /// Registers of a thread, and bytes that it spills.
    pub fn resources(&self) -> Result<(i32, i32)> {
        Ok((
            self.attribute(ATTRIBUTE_REGISTERS)?,
            self.attribute(ATTRIBUTE_LOCAL)?,
        ))
    }

    /// Starts a grid of programs on a stream.
    ///
    /// # Safety
    /// The arguments are those of the kernel, in order; addresses among them are valid on the device until the work is done,
    /// and the stream belongs to the current context.
    pub unsafe fn launch(
        &self,
        grid: [u32; 3],
        arguments: &mut [u8],
        stream: Stream,
    ) -> Result<()> {
        if grid.contains(&0) {
            return Ok(());
        }
        let overlapped = (self.driver.0.programmatic.as_ref()).filter(|_| self.programmatic);
        // SAFETY: by the caller's contract; the driver copies the arguments before it returns.
        let status = self.hand_over(arguments, |each, all| unsafe {
            if let Some(api) = overlapped {
                return api.launch(self, grid, stream, each, all);
            }
            (self.driver.0.launch)(
                self.function,
                grid[0],
                grid[1],
                grid[2],
                self.threads,
                1,
                1,
                self.shared,
                stream.0 as Handle,
                each,
                all,
            )
        });
        match status {
            0 => Ok(()),
            s => self.driver.check("cuLaunchKernel", s),
        }
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        // SAFETY: nobody else has the module; a failure at the end of the process is of no use to anybody.
        _ = unsafe { (self.driver.0.module_unload)(self.module) };
    }
}

/// Arguments of a launch, packed as the kernel reads them: each at a multiple of its size.
#[derive(Clone, Default, Debug)]
pub struct Arguments {
    bytes: Vec<u8>,
}

impl Arguments {
    /// None yet, with room for these many bytes.
    pub fn with_capacity(bytes: usize) -> Arguments {
        Arguments {
            bytes: Vec::with_capacity(bytes),
        }
    }

    fn push(&mut self, value: &[u8]) -> usize {
        while !self.bytes.len().is_multiple_of(value.len()) {
            self.bytes.push(0);
        }
        self.bytes.extend_from_slice(value);
        self.bytes.len() - value.len()
    }

    /// Adds an address; gives its place, for [`Arguments::set_pointer`].
    pub fn pointer(&mut self, p: DevicePtr) -> usize {
        self.push(&p.to_le_bytes())
    }
    pub fn i32(&mut self, v: i32) -> usize {
        self.push(&v.to_le_bytes())
    }
    pub fn i64(&mut self, v: i64) -> usize {
        self.push(&v.to_le_bytes())
    }
    pub fn f32(&mut self, v: f32) -> usize {
        self.push(&v.to_le_bytes())
    }
    pub fn bool(&mut self, v: bool) -> usize {
        self.push(&[u8::from(v)])
    }
    /// Adds room for a tensor map; gives its place.
    pub fn map(&mut self) -> usize {
        const ALIGNMENT: usize = align_of::<TensorMap>();
        let at = self.bytes.len().next_multiple_of(ALIGNMENT);
        self.bytes.resize(at + TensorMap::BYTES, 0);
        at
    }
    /// Adds what every Triton kernel takes last: its scratch space and the profiler's.
    /// Gives the scratch space's place.
    pub fn finish(&mut self, scratch: DevicePtr) -> usize {
        let at = self.pointer(scratch);
        self.pointer(0);
        at
    }
    /// As the kernel reads them; an address at a place that [`Arguments::pointer`] gave is eight of them.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// A point in a stream's work.
pub struct Event {
    driver: Driver,
    handle: Handle,
}

impl Event {
    pub fn record(&self, stream: Stream) -> Result<()> {
        // SAFETY: the event exists; the caller vouches for the stream.
        self.driver.check("cuEventRecord", unsafe {
            (self.driver.0.event_record)(self.handle, stream.0 as Handle)
        })
    }

    /// Milliseconds since `start`, once both are done.
    pub fn since(&self, start: &Event) -> Result<f32> {
        let mut ms = 0.0;
        // SAFETY: both events exist.
        unsafe {
            self.driver.check(
                "cuEventSynchronize",
                (self.driver.0.event_synchronize)(self.handle),
            )?;
            self.driver.check(
                "cuEventElapsedTime",
                (self.driver.0.event_elapsed)(&mut ms, start.handle, self.handle),
            )?;
        }
        Ok(ms)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: nobody else has the event.
        _ = unsafe { (self.driver.0.event_destroy)(self.handle) };
    }
}

/// Memory of the device.
pub struct Memory {
    driver: Driver,
    at: DevicePtr,
    bytes: usize,
}

impl Memory {
    pub fn address(&self) -> DevicePtr {
        self.at
    }

    pub fn write(&mut self, data: &[u8]) -> Result<()> {
        if data.len() > self.bytes {
            return Err(Error::internal("more data than memory"));
        }
        // SAFETY: both sides hold as many bytes.
        self.driver.check("cuMemcpyHtoD", unsafe {
            (self.driver.0.to_device)(self.at, data.as_ptr().cast(), data.len())
        })
    }

    /// Makes all bytes zero.
    pub fn clear(&mut self) -> Result<()> {
        // SAFETY: the memory is this long.
        self.driver.check("cuMemsetD8", unsafe {
            (self.driver.0.fill)(self.at, 0, self.bytes)
        })
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn read(&self) -> Result<Vec<u8>> {
        let mut out = vec![0u8; self.bytes];
        // SAFETY: both sides hold as many bytes.
        self.driver.check("cuMemcpyDtoH", unsafe {
            (self.driver.0.to_host)(out.as_mut_ptr().cast(), self.at, self.bytes)
        })?;
        Ok(out)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: nobody else has the address.
        _ = unsafe { (self.driver.0.free)(self.at) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_lie_at_multiples_of_their_sizes() {
        let mut a = Arguments::default();
        assert_eq!(a.pointer(1), 0);
        assert_eq!(a.i32(2), 8);
        assert_eq!(a.i64(3), 16);
        assert_eq!(a.i32(4), 24);
        a.finish(0);
        assert_eq!(a.bytes.len(), 48);
        assert_eq!(a.bytes()[8], 2);
        assert_eq!((a.map(), a.i32(5)), (64, 192));
    }

    /// A library in the driver's place, from C.
    fn fake(name: &str, code: &str) -> std::path::PathBuf {
        let folder = std::env::temp_dir().join(format!("inrush-driver-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (source, library) = (folder.join(name).with_extension("c"), folder.join(name));
        std::fs::write(&source, code).unwrap();
        let done = std::process::Command::new("cc")
            .args(["-shared", "-fPIC", "-o"])
            .args([&library, &source])
            .status();
        assert!(done.unwrap().success());
        library
    }

    #[test]
    fn an_old_driver_is_told_by_what_it_lacks() {
        let path = fake("old.so", "int cuInit(unsigned x) { return 0; }\n");
        let Err(e) = Driver::open(path.as_os_str()) else {
            panic!("a driver without functions");
        };
        let text = e.to_string();
        assert!(
            text.contains("too old") && text.contains("cuDriverGetVersion"),
            "{text}"
        );
    }

    #[test]
    fn a_missing_driver_is_told_by_its_name() {
        let Err(e) = Driver::open("/nowhere/libcuda.so.1".as_ref()) else {
            panic!("a driver out of nowhere");
        };
        assert!(e.to_string().contains("no CUDA driver"), "{e}");
    }

    #[test]
    fn failures_of_kernels_say_what_to_do() {
        assert!(advice(ASSERT).contains("stderr") && advice(ILLEGAL_ADDRESS).contains("BLOCKING"));
        assert!(advice(1).is_empty());
    }

    #[test]
    fn a_machine_without_a_driver_says_so() {
        if let Err(e) = Driver::get() {
            assert!(e.to_string().contains("driver"), "{e}");
        }
    }
}
