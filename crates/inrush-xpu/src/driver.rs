//! Level Zero, found at run time.
//!
//! Streams are immediate command lists that run in order; stream 0 is one of each device. A context is the number of a device.
//! Events stand for one point in the work only, so that each record makes a new one. Memory is freed by hand, and waits for the
//! device first. There are no graphs that take other arguments later: launches in a row are issued one by one.

mod names;

use self::names::{Functions, Status};
use inrush_base::{Error, ErrorKind, Properties, Result};
use inrush_driver::{Api, Code, Context, DevicePtr, Driver, Handle, Launch, Loaded, Stream};
use libloading::Library;
use names::{
    CommandQueueDesc, ContextDesc, DeviceCacheProperties, DeviceComputeProperties,
    DeviceProperties, EventDesc, EventPoolDesc, KernelDesc, KernelProperties, MemoryDesc,
    ModuleDesc,
};
use std::cell::Cell;
use std::ffi::{CStr, OsStr, c_void};
use std::ptr::{null, null_mut};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// File name of Level Zero's loader.
const LIBRARY: &str = "libze_loader.so.1";
/// `ZE_INIT_FLAG_GPU_ONLY`.
const GPU_ONLY: u32 = 1;
/// `ZE_COMMAND_QUEUE_FLAG_IN_ORDER` and `ZE_COMMAND_QUEUE_MODE_ASYNCHRONOUS`.
const IN_ORDER: u32 = 2;
const ASYNCHRONOUS: u32 = 2;
/// `ZE_EVENT_POOL_FLAG_HOST_VISIBLE`, and `ZE_EVENT_SCOPE_FLAG_DEVICE`.
const HOST_VISIBLE: u32 = 1;
const SCOPE_DEVICE: u32 = 2;
/// `ZE_MODULE_FORMAT_IL_SPIRV`, and the first word of SPIR-V.
const SPIRV: u32 = 0;
const MAGIC: [u8; 4] = 0x0723_0203u32.to_le_bytes();
/// `ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY` and `OUT_OF_DEVICE_MEMORY`.
const OUT_OF_MEMORY: [Status; 2] = [0x7000_0002, 0x7000_0003];
/// Waits that have no end.
const FOREVER: u64 = u64::MAX;
/// Alignment of memory: what the arena of a call asks for.
const ALIGNMENT: usize = 512;
/// Events that wait for the device before they are destroyed, at most.
const MAX_RETIRED: usize = 1024;

thread_local! {
    /// The device that is current on this thread.
    static CURRENT: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Returns the driver of this process, which is found and started once.
///
/// # Errors
/// A machine error that says what is missing.
pub fn driver() -> Result<Driver> {
    static DRIVER: OnceLock<Result<Driver>> = OnceLock::new();
    DRIVER.get_or_init(|| open(LIBRARY.as_ref())).clone()
}

/// Starts the driver in a file.
///
/// # Errors
/// A machine error that says what is missing.
pub fn open(path: &OsStr) -> Result<Driver> {
    // SAFETY: the library is Level Zero's loader, whose initialisers are made to run in any process.
    let library = unsafe { Library::new(path) }.map_err(|e| {
        let why = std::error::Error::source(&e).map_or_else(|| e.to_string(), |s| s.to_string());
        Error::machine(format!(
            "no Level Zero: `{}` cannot be loaded ({why}); install Intel's compute runtime and the package `level-zero`",
            path.display()
        ))
    })?;
    Ok(Driver::new(Arc::new(Zero::new(library)?)))
}

/// The driver: one context over all GPUs, which lives as long as the process.
struct Zero {
    functions: Functions,
    driver: Handle,
    context: Handle,
    devices: Vec<Handle>,
    state: Mutex<State>,
    /// Held while work is appended: a list takes it from one thread at a time, and arguments are state of the kernel until then.
    appends: Mutex<()>,
    _library: Library,
}

#[derive(Default)]
struct State {
    /// Command lists of all streams, with the number of their device.
    streams: Vec<(usize, usize)>,
    /// By device: the list of stream 0.
    first: Vec<Option<usize>>,
    /// Events, with their pools, that work may still use.
    retired: Vec<(Handle, Handle)>,
}

/// An event of the executor: the last point that it was recorded at.
#[derive(Default)]
struct Point(Mutex<Option<(Handle, Handle)>>);

// SAFETY: the driver's functions may be called from any thread; handles that must not be used by two at once are behind locks.
unsafe impl Send for Zero {}
// SAFETY: likewise.
unsafe impl Sync for Zero {}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Turns a status into a result.
fn check(what: &str, status: Status) -> Result<()> {
    if status == 0 {
        return Ok(());
    }
    let kind = if OUT_OF_MEMORY.contains(&status) {
        ErrorKind::OutOfMemory
    } else {
        ErrorKind::Machine
    };
    let text = names::text(status);
    Err(Error::new(kind, format!("{what}: {text} ({status:#x})")))
}

/// Calls a function that makes an object.
fn make(what: &str, f: impl FnOnce(*mut Handle) -> Status) -> Result<Handle> {
    let mut handle: Handle = null_mut();
    check(what, f(&mut handle))?;
    Ok(handle)
}

/// Calls a function that lists objects, first for their number.
fn list(what: &str, f: impl Fn(*mut u32, *mut Handle) -> Status) -> Result<Vec<Handle>> {
    let mut count = 0;
    check(what, f(&mut count, null_mut()))?;
    let mut all = vec![null_mut(); count as usize];
    if count > 0 {
        check(what, f(&mut count, all.as_mut_ptr()))?;
    }
    all.truncate(count as usize);
    Ok(all)
}

impl Zero {
    fn new(library: Library) -> Result<Zero> {
        let functions = Functions::find(&library)?;
        let f = &functions;
        // SAFETY: the types are those of the header, here and below.
        check("zeInit", unsafe { (f.init)(GPU_ONLY) })?;
        // SAFETY: the lists are as long as they say.
        let drivers = list("zeDriverGet", |n, all| unsafe { (f.driver_get)(n, all) })?;
        let driver = drivers.first().copied();
        let driver = driver.ok_or_else(|| Error::machine("Level Zero has no driver for a GPU"))?;
        // SAFETY: likewise.
        let devices = list("zeDeviceGet", |n, all| unsafe {
            (f.device_get)(driver, n, all)
        })?;
        let desc = ContextDesc::default();
        // SAFETY: the description is the header's.
        let context = make("zeContextCreate", |c| unsafe {
            (f.context_create)(driver, &desc, c)
        })?;
        let state = State {
            first: vec![None; devices.len()],
            ..State::default()
        };
        Ok(Zero {
            functions,
            driver,
            context,
            devices,
            state: Mutex::new(state),
            appends: Mutex::new(()),
            _library: library,
        })
    }

    /// Returns the number and the handle of the current device.
    fn device(&self) -> Result<(usize, Handle)> {
        let at = CURRENT
            .get()
            .ok_or_else(|| Error::machine("no device of Level Zero is current on this thread"))?;
        let device = self.devices.get(at).copied();
        let device = device.ok_or_else(|| Error::internal("a device that does not exist"))?;
        Ok((at, device))
    }

    /// Makes an immediate command list on the current device.
    fn command_list(&self, state: &mut State) -> Result<usize> {
        let (at, device) = self.device()?;
        let desc = CommandQueueDesc {
            flags: IN_ORDER,
            mode: ASYNCHRONOUS,
            ..CommandQueueDesc::default()
        };
        // SAFETY: the description is the header's.
        let made = make("zeCommandListCreateImmediate", |l| unsafe {
            (self.functions.list_create)(self.context, device, &desc, l)
        })?;
        state.streams.push((at, made as usize));
        Ok(made as usize)
    }

    /// Returns the command list of a stream.
    fn list_of(&self, stream: Stream) -> Result<Handle> {
        if stream.0 != 0 {
            return Ok(stream.0 as Handle);
        }
        let (at, _) = self.device()?;
        let mut state = lock(&self.state);
        let list = match state.first[at] {
            Some(list) => list,
            None => {
                let list = self.command_list(&mut state)?;
                state.first[at] = Some(list);
                list
            }
        };
        Ok(list as Handle)
    }

    /// Copies bytes in the order of a stream's work.
    fn copy_on(
        &self,
        to: *mut c_void,
        from: *const c_void,
        bytes: usize,
        stream: Stream,
    ) -> Result<()> {
        let list = self.list_of(stream)?;
        let _held = lock(&self.appends);
        // SAFETY: the callers vouch for both addresses.
        check("zeCommandListAppendMemoryCopy", unsafe {
            (self.functions.append_copy)(list, to, from, bytes, null_mut(), 0, null_mut())
        })
    }

    /// Builds a module; the error has the compiler's text.
    fn build(&self, device: Handle, code: &[u8], name: &str) -> Result<Handle> {
        let desc = ModuleDesc {
            format: SPIRV,
            input_size: code.len(),
            input: code.as_ptr(),
            ..ModuleDesc::default()
        };
        let mut log: Handle = null_mut();
        // SAFETY: the description names code that outlives the call.
        let made = make("zeModuleCreate", |m| unsafe {
            (self.functions.module_create)(self.context, device, &desc, m, &mut log)
        });
        let text = self.log(log);
        made.map_err(|e| {
            let full = match text.as_str() {
                "" => e.message().to_string(),
                text => format!("{}: {text}", e.message()),
            };
            Error::new(e.kind(), full).context(name)
        })
    }

    /// Reads and destroys the text of a build.
    fn log(&self, log: Handle) -> String {
        if log.is_null() {
            return String::new();
        }
        let mut bytes = 0usize;
        let mut text = Vec::new();
        // SAFETY: the log is one of a build; the text is as long as the driver says.
        unsafe {
            if (self.functions.log_text)(log, &mut bytes, null_mut()) == 0 {
                text = vec![0u8; bytes];
                _ = (self.functions.log_text)(log, &mut bytes, text.as_mut_ptr().cast());
            }
            _ = (self.functions.log_destroy)(log);
        }
        let end = text.iter().position(|b| *b == 0).unwrap_or(text.len());
        String::from_utf8_lossy(&text[..end]).trim().to_string()
    }

    fn kernel_properties(&self, function: Handle) -> Result<KernelProperties> {
        let mut p = KernelProperties::default();
        // SAFETY: the structure is the header's.
        check("zeKernelGetProperties", unsafe {
            (self.functions.kernel_properties)(function, &mut p)
        })?;
        Ok(p)
    }

    /// Has an event be destroyed when no work uses it any more.
    fn retire(&self, event: (Handle, Handle)) {
        let mut state = lock(&self.state);
        state.retired.push(event);
        if state.retired.len() > MAX_RETIRED {
            // Without success they stay.
            _ = self.wait_all(&mut state, None);
        }
    }

    /// Waits for the streams of a device, or of all; in that case destroys what was waiting for it.
    fn wait_all(&self, state: &mut State, device: Option<usize>) -> Result<()> {
        for (at, list) in &state.streams {
            if device.is_none_or(|d| d == *at) {
                // SAFETY: the list exists while it is among the streams.
                check("zeCommandListHostSynchronize", unsafe {
                    (self.functions.list_synchronize)(*list as Handle, FOREVER)
                })?;
            }
        }
        if device.is_none() {
            for (event, pool) in state.retired.drain(..) {
                // SAFETY: nothing uses them any more.
                unsafe {
                    _ = (self.functions.event_destroy)(event);
                    _ = (self.functions.pool_destroy)(pool);
                }
            }
        }
        Ok(())
    }
}

/// Returns the error for what Level Zero cannot do.
fn none<T>(what: &str) -> Result<T> {
    Err(Error::unsupported(format!("Level Zero: {what}")))
}

impl Api for Zero {
    fn version(&self) -> Result<String> {
        let mut v = 0u32;
        // SAFETY: the pointer is to a number.
        check("zeDriverGetApiVersion", unsafe {
            (self.functions.api_version)(self.driver, &mut v)
        })?;
        Ok(format!("Level Zero {}.{}", v >> 16, v & 0xffff))
    }

    fn devices(&self) -> Result<i32> {
        Ok(self.devices.len() as i32)
    }

    fn context(&self, device: i32) -> Result<Context> {
        match usize::try_from(device) {
            Ok(at) if at < self.devices.len() => Ok(Context(at)),
            _ => Err(Error::machine(format!(
                "Level Zero has {} devices, which are counted from 0",
                self.devices.len()
            ))),
        }
    }

    fn current(&self) -> Result<Option<Context>> {
        Ok(CURRENT.get().map(Context))
    }

    fn set_current(&self, context: Option<Context>) -> Result<()> {
        CURRENT.set(context.map(|c| c.0));
        Ok(())
    }

    fn properties(&self) -> Result<Properties> {
        let (_, device) = self.device()?;
        let mut p = DeviceProperties::default();
        let mut compute = DeviceComputeProperties::default();
        // SAFETY: the structures are the header's.
        unsafe {
            let f = &self.functions;
            check(
                "zeDeviceGetProperties",
                (f.device_properties)(device, &mut p),
            )?;
            check(
                "zeDeviceGetComputeProperties",
                (f.compute_properties)(device, &mut compute),
            )?;
        }
        let mut caches = [DeviceCacheProperties::default(); 8];
        let mut count = caches.len() as u32;
        // SAFETY: the list is as long as it says.
        check("zeDeviceGetCacheProperties", unsafe {
            (self.functions.cache_properties)(device, &mut count, caches.as_mut_ptr())
        })?;
        let known = &caches[..(count as usize).min(caches.len())];
        // A Xe core has 64 KiB of registers for each of its vector engines, which run several threads.
        let engines = p.engines_per_core;
        Ok(Properties {
            arch: names::arch(p.device_id).to_string(),
            major: 0,
            minor: 0,
            multiprocessors: p.slices * p.cores_per_slice,
            resident_threads: engines * p.threads_per_engine * p.lanes,
            registers: engines * (64 << 10) / 4,
            shared_bytes: compute.max_shared,
            l2_bytes: known.iter().map(|c| c.bytes).max().unwrap_or(0),
        })
    }

    fn synchronize_all(&self) -> Result<()> {
        self.wait_all(&mut lock(&self.state), None)
    }

    fn load(&self, code: Code<'_>, symbol: &CStr, _shared: u32) -> Result<Loaded> {
        let (_, device) = self.device()?;
        let name = symbol.to_string_lossy();
        let Code::Binary(code) = code else {
            return none("kernels are SPIR-V");
        };
        if !code.starts_with(&MAGIC) || !code.len().is_multiple_of(4) {
            return Err(Error::machine(format!("the SPIR-V of `{name}` is damaged")));
        }
        let module = self.build(device, code, &name)?;
        let desc = KernelDesc {
            name: symbol.as_ptr(),
            ..KernelDesc::default()
        };
        // SAFETY: the module was built, the name ends with a zero.
        let function = make("zeKernelCreate", |k| unsafe {
            (self.functions.kernel_create)(module, &desc, k)
        });
        match function {
            Ok(function) => Ok(Loaded { module, function }),
            Err(e) => {
                // SAFETY: nothing uses the module.
                _ = unsafe { (self.functions.module_destroy)(module) };
                Err(e.context(name.as_ref()))
            }
        }
    }

    unsafe fn unload(&self, loaded: Loaded) {
        // SAFETY: by the caller's promise.
        unsafe {
            _ = (self.functions.kernel_destroy)(loaded.function);
            _ = (self.functions.module_destroy)(loaded.module);
        }
    }

    unsafe fn resources(&self, function: Handle) -> Result<(i32, i32)> {
        // The driver does not tell the number of registers.
        Ok((0, self.kernel_properties(function)?.spilled as i32))
    }

    fn takes_each(&self) -> bool {
        true
    }

    unsafe fn launch(&self, launch: &mut Launch<'_>, stream: Stream) -> Result<()> {
        let list = self.list_of(stream)?;
        let arguments = self.kernel_properties(launch.function)?.arguments as usize;
        // Kernels with dynamic shared memory take it as a further argument.
        let takes_shared = launch.shared > 0 && arguments == launch.places.len() + 1;
        if arguments != launch.places.len() + usize::from(takes_shared) {
            return Err(Error::internal(format!(
                "a kernel of {arguments} arguments gets {}",
                launch.places.len()
            )));
        }
        let _held = lock(&self.appends);
        let f = &self.functions;
        // SAFETY: the kernel is loaded.
        check("zeKernelSetGroupSize", unsafe {
            (f.group_size)(launch.function, launch.threads, 1, 1)
        })?;
        for (k, (at, bytes)) in launch.places.iter().enumerate() {
            let value = (launch.arguments)
                .get(*at as usize..(*at + *bytes) as usize)
                .ok_or_else(|| Error::internal("an argument beyond the others"))?;
            // SAFETY: the driver copies the value, which has these bytes.
            check("zeKernelSetArgumentValue", unsafe {
                (f.set_argument)(
                    launch.function,
                    k as u32,
                    value.len(),
                    value.as_ptr().cast(),
                )
            })?;
        }
        if takes_shared {
            let last = launch.places.len() as u32;
            // SAFETY: no value stands for local memory of so many bytes.
            check("zeKernelSetArgumentValue", unsafe {
                (f.set_argument)(launch.function, last, launch.shared as usize, null())
            })?;
        }
        // SAFETY: by the caller's promise; the driver copies arguments and sizes.
        check("zeCommandListAppendLaunchKernel", unsafe {
            (f.append_launch)(
                list,
                launch.function,
                &launch.grid,
                null_mut(),
                0,
                null_mut(),
            )
        })
    }

    fn allocate(&self, bytes: usize) -> Result<DevicePtr> {
        let (_, device) = self.device()?;
        let desc = MemoryDesc::default();
        let size = bytes.max(1);
        // SAFETY: the description is the header's.
        let made = make(&format!("zeMemAllocDevice of {bytes} bytes"), |at| unsafe {
            (self.functions.allocate)(self.context, &desc, size, ALIGNMENT, device, at)
        })?;
        Ok(made as DevicePtr)
    }

    unsafe fn free(&self, at: DevicePtr) {
        // Unlike other drivers this one does not wait for the device. Memory that work may still use stays.
        if self.synchronize_all().is_ok() {
            // SAFETY: by the caller's promise.
            _ = unsafe { (self.functions.free)(self.context, at as *mut c_void) };
        }
    }

    unsafe fn copy(
        &self,
        to: DevicePtr,
        from: DevicePtr,
        bytes: usize,
        stream: Stream,
    ) -> Result<()> {
        self.copy_on(to as *mut c_void, from as *const c_void, bytes, stream)
    }

    unsafe fn write(&self, to: DevicePtr, data: &[u8]) -> Result<()> {
        let from = data.as_ptr().cast();
        self.copy_on(to as *mut c_void, from, data.len(), Stream(0))?;
        self.synchronize(Stream(0))
    }

    unsafe fn write_later(&self, to: DevicePtr, data: &[u8], stream: Stream) -> Result<()> {
        self.copy_on(to as *mut c_void, data.as_ptr().cast(), data.len(), stream)
    }

    unsafe fn read(&self, from: DevicePtr, data: &mut [u8]) -> Result<()> {
        let (to, bytes) = (data.as_mut_ptr().cast(), data.len());
        self.copy_on(to, from as *const c_void, bytes, Stream(0))?;
        self.synchronize(Stream(0))
    }

    unsafe fn clear(&self, at: DevicePtr, bytes: usize, stream: Option<Stream>) -> Result<()> {
        let on = stream.unwrap_or(Stream(0));
        let (list, zero) = (self.list_of(on)?, 0u8);
        let (at, zero): (*mut c_void, *const u8) = (at as *mut c_void, &zero);
        let held = lock(&self.appends);
        // SAFETY: by the caller's promise; the driver copies the pattern.
        check("zeCommandListAppendMemoryFill", unsafe {
            (self.functions.append_fill)(list, at, zero.cast(), 1, bytes, null_mut(), 0, null_mut())
        })?;
        drop(held);
        stream.map_or_else(|| self.synchronize(on), |_| Ok(()))
    }

    fn stream(&self) -> Result<Stream> {
        self.command_list(&mut lock(&self.state)).map(Stream)
    }

    unsafe fn destroy_stream(&self, stream: Stream) {
        let mut state = lock(&self.state);
        let list = stream.0 as Handle;
        // A list must not be destroyed while its work runs: it stays where that is not known.
        // SAFETY: by the caller's promise.
        let status = unsafe { (self.functions.list_synchronize)(list, FOREVER) };
        if status == 0 {
            state.streams.retain(|(_, other)| *other != stream.0);
            // SAFETY: likewise.
            _ = unsafe { (self.functions.list_destroy)(list) };
        }
    }

    fn synchronize(&self, stream: Stream) -> Result<()> {
        if stream.0 == 0 {
            // As with other drivers, the default stream waits for all of them.
            let (at, _) = self.device()?;
            return self.wait_all(&mut lock(&self.state), Some(at));
        }
        // SAFETY: the caller vouches for the stream.
        check("zeCommandListHostSynchronize", unsafe {
            (self.functions.list_synchronize)(stream.0 as Handle, FOREVER)
        })
    }

    fn event(&self, timed: bool) -> Result<Handle> {
        if timed {
            return none("the time of work is not measured");
        }
        Ok(Box::into_raw(Box::new(Point::default())).cast())
    }

    unsafe fn record_event(&self, event: Handle, stream: Stream) -> Result<()> {
        let (_, mut device) = self.device()?;
        let list = self.list_of(stream)?;
        let f = &self.functions;
        let (pool, desc) = (
            EventPoolDesc {
                flags: HOST_VISIBLE,
                count: 1,
                ..EventPoolDesc::default()
            },
            EventDesc {
                signal: SCOPE_DEVICE,
                wait: SCOPE_DEVICE,
                ..EventDesc::default()
            },
        );
        // SAFETY: the descriptions are the header's.
        let pool = make("zeEventPoolCreate", |p| unsafe {
            (f.pool_create)(self.context, &pool, 1, &mut device, p)
        })?;
        // SAFETY: likewise.
        let made = make("zeEventCreate", |e| unsafe {
            (f.event_create)(pool, &desc, e)
        });
        let signalled = made.and_then(|made| {
            let _held = lock(&self.appends);
            // SAFETY: the event exists.
            let status = unsafe { (f.append_signal)(list, made) };
            check("zeCommandListAppendSignalEvent", status)
                .map(|()| made)
                .inspect_err(|_| {
                    // SAFETY: nothing uses the event.
                    _ = unsafe { (f.event_destroy)(made) };
                })
        });
        let made = signalled.inspect_err(|_| {
            // SAFETY: nothing uses the pool.
            _ = unsafe { (f.pool_destroy)(pool) };
        })?;
        // SAFETY: the event is one of `event`, by the caller's promise.
        let point = unsafe { &*event.cast::<Point>() };
        if let Some(before) = lock(&point.0).replace((made, pool)) {
            self.retire(before);
        }
        Ok(())
    }

    unsafe fn wait_for(&self, event: Handle, stream: Stream) -> Result<()> {
        // SAFETY: the event is one of `event`, by the caller's promise.
        let point = unsafe { &*event.cast::<Point>() };
        let Some((mut event, _)) = *lock(&point.0) else {
            // It stands for no work.
            return Ok(());
        };
        let list = self.list_of(stream)?;
        let _held = lock(&self.appends);
        // SAFETY: the event lives until it is retired, and longer than work that waits for it.
        check("zeCommandListAppendWaitOnEvents", unsafe {
            (self.functions.append_wait)(list, 1, &mut event)
        })
    }

    unsafe fn elapsed(&self, _start: Handle, _end: Handle) -> Result<f32> {
        none("the time of work is not measured")
    }

    unsafe fn destroy_event(&self, event: Handle) {
        // SAFETY: the event is one of `event`, and not used any more.
        let point = unsafe { Box::from_raw(event.cast::<Point>()) };
        let last = lock(&point.0).take();
        if let Some(last) = last {
            self.retire(last);
        }
    }

    fn is_capturing(&self, _stream: Stream) -> Result<bool> {
        Ok(false)
    }

    fn begin_capture(&self, _stream: Stream) -> Result<()> {
        none("work is not captured")
    }

    fn end_capture(&self, _stream: Stream) -> Result<Handle> {
        none("work is not captured")
    }

    fn graph(&self) -> Result<Handle> {
        none("launches are issued one by one")
    }

    unsafe fn add(
        &self,
        _graph: Handle,
        _after: Option<Handle>,
        _launch: &mut Launch<'_>,
    ) -> Result<Handle> {
        none("launches are issued one by one")
    }

    unsafe fn instantiate(&self, _graph: Handle) -> Result<Handle> {
        none("launches are issued one by one")
    }

    unsafe fn set(&self, _ready: Handle, _node: Handle, _launch: &mut Launch<'_>) -> Result<()> {
        none("launches are issued one by one")
    }

    unsafe fn replay(&self, _ready: Handle, _stream: Stream) -> Result<()> {
        none("launches are issued one by one")
    }

    unsafe fn destroy_graph(&self, _graph: Handle) {}

    unsafe fn destroy_ready(&self, _ready: Handle) {}
}
