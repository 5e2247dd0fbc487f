//! Drivers whose C functions have one shape, that of the oldest, which later vendors took over: [`Calls`] implements [`Api`] by
//! their names and by a [`Dialect`], which is all that differs.

use crate::{Api, Code, Context, DevicePtr, Driver, Handle, Launch, Loaded, Stream};
use crate::{Tensor, TensorMap};
use inrush_base::{Error, ErrorKind, Properties, Result};
use libloading::Library;
use std::ffi::{CStr, OsStr, c_char, c_int, c_uint, c_void};
use std::sync::Arc;

/// The status that functions return; 0 for success.
pub type Status = c_int;

/// `OUT_OF_MEMORY`, `ILLEGAL_ADDRESS` and `ASSERT`: numbers that the dialects share. Later calls report the last two.
const OUT_OF_MEMORY: Status = 2;
const ILLEGAL_ADDRESS: Status = 700;
const ASSERT: Status = 710;
/// `FUNC_ATTRIBUTE_SHARED_SIZE_BYTES`, `LOCAL_SIZE_BYTES`, `NUM_REGS`: likewise.
const STATIC_SHARED: c_int = 1;
const LOCAL: c_int = 3;
const REGISTERS: c_int = 4;
/// Flags of streams and events: `NON_BLOCKING`, `DISABLE_TIMING`.
const NON_BLOCKING: c_uint = 1;
const WITHOUT_TIME: c_uint = 2;
/// `STREAM_CAPTURE_MODE_RELAXED`: what other threads do, and libraries that load a kernel, does no harm.
const RELAXED: c_int = 2;
/// Entries of the `extra` list of a launch: a buffer of arguments, its size.
const PARAM_BUFFER: usize = 1;
const PARAM_SIZE: usize = 2;
/// Bytes that machine code has at least: the head of an ELF file.
const ELF_HEAD: usize = 64;

macro_rules! functions {
    ($($name:ident ($($arg:ty),*);)*) => {
        /// The names of a driver's functions.
        pub struct Symbols {
            $(
                #[doc = concat!("Name of `", stringify!($name), "`.")]
                pub $name: &'static str,
            )*
        }

        /// The functions, looked up.
        struct Functions {
            $($name: unsafe extern "C" fn($($arg),*) -> Status,)*
        }

        impl Functions {
            fn find(library: &Library, symbols: &Symbols, kind: &str) -> Result<Functions> {
                Ok(Functions {
                    $(
                        // SAFETY: the types are those of the driver's header for these symbols.
                        $name: unsafe { function(library, symbols.$name, kind)? },
                    )*
                })
            }
        }
    };
}

functions! {
    init (c_uint);
    version (*mut c_int);
    error_name (Status, *mut *const c_char);
    error_text (Status, *mut *const c_char);
    device_count (*mut c_int);
    device_attribute (*mut c_int, c_int, c_int);
    synchronize_all ();
    module_load (*mut Handle, *const c_void);
    module_unload (Handle);
    module_function (*mut Handle, Handle, *const c_char);
    function_attribute (*mut c_int, c_int, Handle);
    launch (Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *mut Handle, *mut Handle);
    allocate (*mut DevicePtr, usize);
    free (DevicePtr);
    copy (DevicePtr, DevicePtr, usize, Handle);
    to_device (DevicePtr, *const c_void, usize);
    to_device_later (DevicePtr, *const c_void, usize, Handle);
    fill (DevicePtr, u8, usize);
    fill_later (DevicePtr, u8, usize, Handle);
    to_host (*mut c_void, DevicePtr, usize);
    stream_create (*mut Handle, c_uint);
    stream_destroy (Handle);
    stream_synchronize (Handle);
    stream_wait (Handle, Handle, c_uint);
    stream_capturing (Handle, *mut c_int);
    capture_begin (Handle, c_int);
    capture_end (Handle, *mut Handle);
    capture_mode (*mut c_int);
    graph_create (*mut Handle, c_uint);
    graph_kernel (*mut Handle, Handle, *const Handle, usize, *const c_void);
    graph_instantiate (*mut Handle, Handle, u64);
    graph_set (Handle, Handle, *const c_void);
    graph_launch (Handle, Handle);
    graph_destroy (Handle);
    ready_destroy (Handle);
    event_create (*mut Handle, c_uint);
    event_record (Handle, Handle);
    event_synchronize (Handle);
    event_elapsed (*mut f32, Handle, Handle);
    event_destroy (Handle);
}

/// Looks a function up.
///
/// # Errors
/// A machine error that names the function that a driver lacks.
///
/// # Safety
/// `F` is the type of the function.
pub unsafe fn function<F: Copy>(library: &Library, symbol: &str, kind: &str) -> Result<F> {
    // SAFETY: the caller's promise.
    let found = unsafe { library.get::<F>(symbol.as_bytes()) };
    found.map(|f| *f).map_err(|_| {
        Error::machine(format!(
            "the {kind} driver is too old: it has no `{symbol}`"
        ))
    })
}

/// A launch as nodes of graphs and further functions take it: the lists of arguments of which one is null.
pub struct Parameters<'a> {
    /// The launch.
    pub launch: &'a Launch<'a>,
    /// Addresses of the arguments, one by one.
    pub each: *mut Handle,
    /// All arguments as one piece.
    pub all: *mut Handle,
}

/// The differences between drivers whose functions have the same shape.
pub trait Dialect: Send + Sync + Sized + 'static {
    /// The name of the driver in messages.
    const NAME: &'static str;
    /// File names of the driver's library, the preferred one first.
    const LIBRARIES: &'static [&'static str];
    /// Advice where there is none.
    const MISSING: &'static str;
    /// Advice after accesses to memory that is not a kernel's own.
    const ILLEGAL_ACCESS: &'static str;
    /// Names of the functions.
    const SYMBOLS: Symbols;
    /// The end of the `extra` list of a launch.
    const PARAM_END: usize;
    /// Threads of a grid along one dimension at most. The driver need not check it.
    const MAX_THREADS: u64;
    /// The driver's description of a launch in a graph.
    type Node;

    /// Looks up the functions that others lack.
    ///
    /// # Errors
    /// A machine error that names the function that the driver lacks.
    fn find(library: &Library) -> Result<Self>;

    /// Returns the driver's version as text, such as `12.8`.
    fn version(number: i32) -> String;

    /// Returns the context of a device.
    ///
    /// # Errors
    /// Those of the driver.
    fn context(calls: &Calls<Self>, device: i32) -> Result<Context>;

    /// Returns the current context.
    ///
    /// # Errors
    /// Those of the driver.
    fn current(calls: &Calls<Self>) -> Result<Option<Context>>;

    /// Makes a context current.
    ///
    /// # Errors
    /// Those of the driver.
    fn set_current(calls: &Calls<Self>, context: Option<Context>) -> Result<()>;

    /// Returns the properties of the current device.
    ///
    /// # Errors
    /// Those of the driver.
    fn properties(calls: &Calls<Self>) -> Result<Properties>;

    /// Lets a function use dynamic shared memory, given the static one.
    ///
    /// # Errors
    /// A machine error that names the kernel for more memory than the device has.
    fn permit_shared(
        calls: &Calls<Self>,
        function: Handle,
        symbol: &str,
        shared: u32,
    ) -> Result<()>;

    /// Describes a launch for a graph.
    fn node(p: &Parameters<'_>) -> Self::Node;

    /// Starts a launch that may begin before the kernel before it has ended; `None` for drivers without such launches.
    ///
    /// # Safety
    /// As for [`Api::launch`].
    unsafe fn launch_overlapped(&self, _p: &Parameters<'_>, _stream: Stream) -> Option<Status> {
        None
    }

    /// Orders two nodes of a graph, the second of which may begin before the first has ended; `None` likewise.
    ///
    /// # Safety
    /// The handles are of the graph and of kernels in it.
    unsafe fn order_overlapped(
        &self,
        _graph: Handle,
        _before: Handle,
        _after: Handle,
    ) -> Option<Status> {
        None
    }

    /// Returns true if the two functions above exist.
    fn can_overlap(&self) -> bool {
        false
    }

    /// Returns the map of a tensor: see [`Api::tensor_map`].
    ///
    /// # Errors
    /// An unsupported error for devices without tensor maps; those of the driver.
    fn tensor_map(calls: &Calls<Self>, tensor: &Tensor, at: DevicePtr) -> Result<TensorMap>;
}

/// A driver of this shape.
pub struct Calls<D: Dialect> {
    functions: Functions,
    dialect: D,
    _library: Library,
}

// SAFETY: the drivers' functions may be called from any thread, and dialects may be sent and shared.
unsafe impl<D: Dialect> Send for Calls<D> {}
// SAFETY: likewise.
unsafe impl<D: Dialect> Sync for Calls<D> {}

impl<D: Dialect> Calls<D> {
    /// Finds and starts the driver.
    ///
    /// # Errors
    /// A machine error that says what is missing.
    pub fn start() -> Result<Driver> {
        let mut first = None;
        for path in D::LIBRARIES {
            match Self::library(path.as_ref()) {
                // A library that is there but does not start says more than one that is not there.
                Ok(library) => return Self::of(library),
                Err(e) => first = first.or(Some(e)),
            }
        }
        Err(first.unwrap_or_else(|| Error::internal("a driver without a library")))
    }

    /// Starts the driver in a file.
    ///
    /// # Errors
    /// A machine error that says what is missing.
    pub fn open(path: &OsStr) -> Result<Driver> {
        Self::of(Self::library(path)?)
    }

    fn library(path: &OsStr) -> Result<Library> {
        // SAFETY: the library is a vendor's driver, whose initialisers are made to run in any process.
        unsafe { Library::new(path) }.map_err(|e| {
            // The loader's own text is the source.
            let why =
                std::error::Error::source(&e).map_or_else(|| e.to_string(), |s| s.to_string());
            Error::machine(format!(
                "no {} driver: `{}` cannot be loaded ({why}); {}",
                D::NAME,
                path.display(),
                D::MISSING
            ))
        })
    }

    fn of(library: Library) -> Result<Driver> {
        Ok(Driver::new(Arc::new(Self::over(library)?)))
    }

    /// Looks the functions up, and starts the driver.
    ///
    /// # Errors
    /// A machine error for a function that the driver lacks; those of the driver.
    pub fn over(library: Library) -> Result<Calls<D>> {
        let calls = Calls {
            functions: Functions::find(&library, &D::SYMBOLS, D::NAME)?,
            dialect: D::find(&library)?,
            _library: library,
        };
        // SAFETY: the flag must be 0.
        calls.check(D::SYMBOLS.init, unsafe { (calls.functions.init)(0) })?;
        Ok(calls)
    }

    /// Returns the functions that this dialect alone has.
    pub fn dialect(&self) -> &D {
        &self.dialect
    }

    /// Turns a status into a result. `what` is the function that gave it.
    ///
    /// # Errors
    /// The driver's text for a status that is no success.
    pub fn check(&self, what: &str, status: Status) -> Result<()> {
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
        let (name, why) = (
            text(self.functions.error_name),
            text(self.functions.error_text),
        );
        let kind = match status {
            OUT_OF_MEMORY => ErrorKind::OutOfMemory,
            _ => ErrorKind::Machine,
        };
        let advice = advice::<D>(status);
        Err(Error::new(kind, format!("{what}: {why} ({name}){advice}")))
    }

    /// Returns an attribute of a device.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn device_attribute(&self, device: i32, which: c_int) -> Result<u32> {
        let mut value = 0;
        // SAFETY: the pointer is to an int.
        self.check(D::SYMBOLS.device_attribute, unsafe {
            (self.functions.device_attribute)(&mut value, which, device)
        })?;
        Ok(value.max(0) as u32)
    }

    /// Returns the bytes of static shared memory of a function.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn static_shared(&self, function: Handle) -> Result<u32> {
        Ok(self.function_attribute(function, STATIC_SHARED)?.max(0) as u32)
    }

    fn function_attribute(&self, function: Handle, which: c_int) -> Result<i32> {
        let mut value = 0;
        // SAFETY: the pointer is to an int, the function one of a loaded module.
        self.check(D::SYMBOLS.function_attribute, unsafe {
            (self.functions.function_attribute)(&mut value, which, function)
        })?;
        Ok(value)
    }

    /// Calls a function that makes an object.
    fn make(&self, what: &str, f: impl FnOnce(*mut Handle) -> Status) -> Result<Handle> {
        let mut handle: Handle = std::ptr::null_mut();
        self.check(what, f(&mut handle))?;
        Ok(handle)
    }

    /// Returns an error where no context is current: the functions' own is of little help.
    fn in_context(&self) -> Result<()> {
        match D::current(self)? {
            Some(_) => Ok(()),
            None => Err(Error::machine(format!(
                "no {} context is current on this thread: use the device once (the first tensor of PyTorch on it does)",
                D::NAME
            ))),
        }
    }

    /// Checks that the driver can count the threads of a launch.
    fn check_threads(launch: &Launch<'_>) -> Result<()> {
        let [x, y, z] = launch.grid.map(u64::from);
        if x * u64::from(launch.threads) <= D::MAX_THREADS && y.max(z) <= D::MAX_THREADS {
            return Ok(());
        }
        Err(Error::unsupported(format!(
            "a grid of {x} programs of {} threads: {} counts up to {} threads",
            launch.threads,
            D::NAME,
            D::MAX_THREADS
        )))
    }

    /// Calls `f` with the lists of arguments of a launch.
    fn hand_over<T>(launch: &mut Launch<'_>, f: impl FnOnce(&Parameters<'_>) -> T) -> T {
        let begin: *mut u8 = launch.arguments.as_mut_ptr();
        if !launch.places.is_empty() {
            let mut each: Vec<Handle> = (launch.places.iter())
                .map(|(at, _)| begin.wrapping_add(*at as usize).cast())
                .collect();
            return f(&Parameters {
                launch,
                each: each.as_mut_ptr(),
                all: std::ptr::null_mut(),
            });
        }
        let mut size = launch.arguments.len();
        let mut all: [Handle; 5] = [
            PARAM_BUFFER as Handle,
            begin.cast(),
            PARAM_SIZE as Handle,
            (&raw mut size).cast(),
            D::PARAM_END as Handle,
        ];
        f(&Parameters {
            launch,
            each: std::ptr::null_mut(),
            all: all.as_mut_ptr(),
        })
    }
}

/// Returns advice that the driver's text for a failure lacks.
fn advice<D: Dialect>(status: Status) -> &'static str {
    match status {
        ILLEGAL_ADDRESS => D::ILLEGAL_ACCESS,
        ASSERT => {
            "; a kernel before this call found an index out of range: what it wrote to stderr names the operator and the line; \
             this process cannot use the device any more"
        }
        _ => "",
    }
}

impl<D: Dialect> Api for Calls<D> {
    fn version(&self) -> Result<String> {
        let mut v = 0;
        // SAFETY: the pointer is to an int.
        self.check(D::SYMBOLS.version, unsafe {
            (self.functions.version)(&mut v)
        })?;
        Ok(format!("{} {}", D::NAME, D::version(v)))
    }

    fn devices(&self) -> Result<i32> {
        let mut count = 0;
        // SAFETY: the pointer is to an int.
        self.check(D::SYMBOLS.device_count, unsafe {
            (self.functions.device_count)(&mut count)
        })?;
        Ok(count)
    }

    fn context(&self, device: i32) -> Result<Context> {
        D::context(self, device)
    }

    fn current(&self) -> Result<Option<Context>> {
        D::current(self)
    }

    fn set_current(&self, context: Option<Context>) -> Result<()> {
        D::set_current(self, context)
    }

    fn properties(&self) -> Result<Properties> {
        D::properties(self)
    }

    fn synchronize_all(&self) -> Result<()> {
        // SAFETY: the function takes nothing.
        self.check(D::SYMBOLS.synchronize_all, unsafe {
            (self.functions.synchronize_all)()
        })
    }

    fn load(&self, code: Code<'_>, symbol: &CStr, shared: u32) -> Result<Loaded> {
        self.in_context()?;
        let name = symbol.to_string_lossy();
        let image: *const c_void = match code {
            // ELF files say what they are; the driver reads as far as the headers tell it to.
            Code::Binary(code) if code.len() < ELF_HEAD || code[..4] != *b"\x7fELF" => {
                return Err(Error::machine(format!(
                    "the machine code of `{name}` is damaged"
                )));
            }
            Code::Binary(code) => code.as_ptr().cast(),
            Code::Text(text) => text.as_ptr().cast(),
        };
        let module = self.make(D::SYMBOLS.module_load, |module| {
            // SAFETY: the image is as long as its headers say, or ends with a zero; the driver copies it.
            unsafe { (self.functions.module_load)(module, image) }
        });
        let module = module.map_err(|e| match self.version() {
            Ok(v) => e.context(format!("loading `{name}` into a driver for {v}")),
            Err(_) => e.context(name.as_ref()),
        })?;
        let function = self.make(D::SYMBOLS.module_function, |function| {
            // SAFETY: the module is loaded, the name ends with a zero.
            unsafe { (self.functions.module_function)(function, module, symbol.as_ptr()) }
        });
        let usable = function.map_err(|e| e.context(name.as_ref()));
        let usable = usable.and_then(|f| {
            D::permit_shared(self, f, &name, shared)?;
            Ok(f)
        });
        match usable {
            Ok(function) => Ok(Loaded { module, function }),
            Err(e) => {
                // SAFETY: the module was just loaded, and nothing uses it.
                _ = unsafe { (self.functions.module_unload)(module) };
                Err(e)
            }
        }
    }

    unsafe fn unload(&self, loaded: Loaded) {
        // SAFETY: by the caller's promise.
        _ = unsafe { (self.functions.module_unload)(loaded.module) };
    }

    unsafe fn resources(&self, function: Handle) -> Result<(i32, i32)> {
        Ok((
            self.function_attribute(function, REGISTERS)?,
            self.function_attribute(function, LOCAL)?,
        ))
    }

    fn can_overlap(&self) -> bool {
        self.dialect.can_overlap()
    }

    unsafe fn launch(&self, launch: &mut Launch<'_>, stream: Stream) -> Result<()> {
        Self::check_threads(launch)?;
        let status = Self::hand_over(launch, |p| {
            let l = p.launch;
            if l.overlaps {
                // SAFETY: by the caller's promise.
                if let Some(status) = unsafe { self.dialect.launch_overlapped(p, stream) } {
                    return status;
                }
            }
            let [x, y, z] = l.grid;
            let stream = stream.0 as Handle;
            // SAFETY: by the caller's promise; the driver copies the arguments before it returns.
            unsafe {
                (self.functions.launch)(
                    l.function, x, y, z, l.threads, 1, 1, l.shared, stream, p.each, p.all,
                )
            }
        });
        match status {
            0 => Ok(()),
            s => self.check(D::SYMBOLS.launch, s),
        }
    }

    fn allocate(&self, bytes: usize) -> Result<DevicePtr> {
        let mut at: DevicePtr = 0;
        // SAFETY: the pointer is to an address.
        match unsafe { (self.functions.allocate)(&mut at, bytes.max(1)) } {
            0 => Ok(at),
            s => {
                let what = format!("{} of {bytes} bytes", D::SYMBOLS.allocate);
                self.check(&what, s).map(|()| at)
            }
        }
    }

    unsafe fn free(&self, at: DevicePtr) {
        // SAFETY: by the caller's promise.
        _ = unsafe { (self.functions.free)(at) };
    }

    unsafe fn copy(
        &self,
        to: DevicePtr,
        from: DevicePtr,
        bytes: usize,
        stream: Stream,
    ) -> Result<()> {
        // SAFETY: by the caller's promise.
        self.check(D::SYMBOLS.copy, unsafe {
            (self.functions.copy)(to, from, bytes, stream.0 as Handle)
        })
    }

    unsafe fn write(&self, to: DevicePtr, data: &[u8]) -> Result<()> {
        // SAFETY: by the caller's promise.
        self.check(D::SYMBOLS.to_device, unsafe {
            (self.functions.to_device)(to, data.as_ptr().cast(), data.len())
        })
    }

    unsafe fn write_later(&self, to: DevicePtr, data: &[u8], stream: Stream) -> Result<()> {
        let stream = stream.0 as Handle;
        // SAFETY: by the caller's promise.
        self.check(D::SYMBOLS.to_device_later, unsafe {
            (self.functions.to_device_later)(to, data.as_ptr().cast(), data.len(), stream)
        })
    }

    unsafe fn read(&self, from: DevicePtr, data: &mut [u8]) -> Result<()> {
        // SAFETY: by the caller's promise.
        self.check(D::SYMBOLS.to_host, unsafe {
            (self.functions.to_host)(data.as_mut_ptr().cast(), from, data.len())
        })
    }

    unsafe fn clear(&self, at: DevicePtr, bytes: usize, stream: Option<Stream>) -> Result<()> {
        match stream {
            // SAFETY: by the caller's promise.
            Some(stream) => self.check(D::SYMBOLS.fill_later, unsafe {
                (self.functions.fill_later)(at, 0, bytes, stream.0 as Handle)
            }),
            // SAFETY: likewise.
            None => self.check(D::SYMBOLS.fill, unsafe {
                (self.functions.fill)(at, 0, bytes)
            }),
        }
    }

    fn stream(&self) -> Result<Stream> {
        let made = self.make(D::SYMBOLS.stream_create, |stream| {
            // SAFETY: the pointer is to a handle.
            unsafe { (self.functions.stream_create)(stream, NON_BLOCKING) }
        })?;
        Ok(Stream(made as usize))
    }

    unsafe fn destroy_stream(&self, stream: Stream) {
        // SAFETY: by the caller's promise; the driver finishes work that was issued.
        _ = unsafe { (self.functions.stream_destroy)(stream.0 as Handle) };
    }

    fn synchronize(&self, stream: Stream) -> Result<()> {
        // SAFETY: the caller vouches for the stream.
        self.check(D::SYMBOLS.stream_synchronize, unsafe {
            (self.functions.stream_synchronize)(stream.0 as Handle)
        })
    }

    fn event(&self, timed: bool) -> Result<Handle> {
        let flags = if timed { 0 } else { WITHOUT_TIME };
        self.make(D::SYMBOLS.event_create, |event| {
            // SAFETY: the pointer is to a handle.
            unsafe { (self.functions.event_create)(event, flags) }
        })
    }

    unsafe fn record_event(&self, event: Handle, stream: Stream) -> Result<()> {
        // SAFETY: by the caller's promise, who vouches for the stream too.
        self.check(D::SYMBOLS.event_record, unsafe {
            (self.functions.event_record)(event, stream.0 as Handle)
        })
    }

    unsafe fn wait_for(&self, event: Handle, stream: Stream) -> Result<()> {
        // SAFETY: likewise; the flags must be 0.
        self.check(D::SYMBOLS.stream_wait, unsafe {
            (self.functions.stream_wait)(stream.0 as Handle, event, 0)
        })
    }

    unsafe fn elapsed(&self, start: Handle, end: Handle) -> Result<f32> {
        let mut ms = 0.0;
        // SAFETY: by the caller's promise.
        self.check(D::SYMBOLS.event_synchronize, unsafe {
            (self.functions.event_synchronize)(end)
        })?;
        // SAFETY: likewise.
        self.check(D::SYMBOLS.event_elapsed, unsafe {
            (self.functions.event_elapsed)(&mut ms, start, end)
        })?;
        Ok(ms)
    }

    unsafe fn destroy_event(&self, event: Handle) {
        // SAFETY: by the caller's promise; the driver keeps what work still needs of it.
        _ = unsafe { (self.functions.event_destroy)(event) };
    }

    fn is_capturing(&self, stream: Stream) -> Result<bool> {
        let mut status = 0;
        // SAFETY: the pointer is to an int; the caller vouches for the stream.
        self.check(D::SYMBOLS.stream_capturing, unsafe {
            (self.functions.stream_capturing)(stream.0 as Handle, &mut status)
        })?;
        Ok(status != 0)
    }

    fn begin_capture(&self, stream: Stream) -> Result<()> {
        // SAFETY: the caller vouches for the stream.
        self.check(D::SYMBOLS.capture_begin, unsafe {
            (self.functions.capture_begin)(stream.0 as Handle, RELAXED)
        })
    }

    fn leave_captures_alone(&self) -> Result<()> {
        let mut mode = RELAXED;
        // SAFETY: the pointer is to a local, which takes the mode before.
        self.check(D::SYMBOLS.capture_mode, unsafe {
            (self.functions.capture_mode)(&mut mode)
        })
    }

    fn end_capture(&self, stream: Stream) -> Result<Handle> {
        self.make(D::SYMBOLS.capture_end, |graph| {
            // SAFETY: the caller vouches for the stream.
            unsafe { (self.functions.capture_end)(stream.0 as Handle, graph) }
        })
    }

    fn graph(&self) -> Result<Handle> {
        self.make(D::SYMBOLS.graph_create, |graph| {
            // SAFETY: the pointer is to a handle; the flags must be 0.
            unsafe { (self.functions.graph_create)(graph, 0) }
        })
    }

    unsafe fn add(
        &self,
        graph: Handle,
        after: Option<Handle>,
        launch: &mut Launch<'_>,
    ) -> Result<Handle> {
        Self::check_threads(launch)?;
        let overlaps = launch.overlaps && self.dialect.can_overlap();
        let before = match (&after, overlaps) {
            (Some(node), false) => std::ptr::from_ref(node),
            _ => std::ptr::null(),
        };
        let count = usize::from(!before.is_null());
        let node = Self::hand_over(launch, |p| {
            let shown = D::node(p);
            self.make(D::SYMBOLS.graph_kernel, |node| {
                let shown: *const D::Node = &shown;
                // SAFETY: by the caller's promise; the driver copies what it is shown.
                unsafe { (self.functions.graph_kernel)(node, graph, before, count, shown.cast()) }
            })
        })?;
        if let (Some(before), true) = (after, overlaps) {
            // SAFETY: both are kernels of this graph.
            let status = unsafe { self.dialect.order_overlapped(graph, before, node) };
            self.check("the order of two launches", status.unwrap_or(0))?;
        }
        Ok(node)
    }

    unsafe fn instantiate(&self, graph: Handle) -> Result<Handle> {
        self.make(D::SYMBOLS.graph_instantiate, |ready| {
            // SAFETY: by the caller's promise; the flags must be 0.
            unsafe { (self.functions.graph_instantiate)(ready, graph, 0) }
        })
    }

    unsafe fn set(&self, ready: Handle, node: Handle, launch: &mut Launch<'_>) -> Result<()> {
        Self::check_threads(launch)?;
        let status = Self::hand_over(launch, |p| {
            let shown = D::node(p);
            let shown: *const D::Node = &shown;
            // SAFETY: by the caller's promise; the driver copies what it is shown.
            unsafe { (self.functions.graph_set)(ready, node, shown.cast()) }
        });
        self.check(D::SYMBOLS.graph_set, status)
    }

    unsafe fn replay(&self, ready: Handle, stream: Stream) -> Result<()> {
        // SAFETY: by the caller's promise.
        self.check(D::SYMBOLS.graph_launch, unsafe {
            (self.functions.graph_launch)(ready, stream.0 as Handle)
        })
    }

    unsafe fn destroy_graph(&self, graph: Handle) {
        // SAFETY: by the caller's promise.
        _ = unsafe { (self.functions.graph_destroy)(graph) };
    }

    unsafe fn destroy_ready(&self, ready: Handle) {
        // SAFETY: by the caller's promise; the driver keeps what still runs until it is done.
        _ = unsafe { (self.functions.ready_destroy)(ready) };
    }

    fn tensor_map(&self, tensor: &Tensor, address: DevicePtr) -> Result<TensorMap> {
        D::tensor_map(self, tensor, address)
    }
}
