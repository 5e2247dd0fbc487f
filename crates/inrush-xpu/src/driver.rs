//! Level Zero, found at run time.
//!
//! Streams are immediate command lists that run in order, and are made here, or those of queues of SYCL that were adopted (`queues`).
//! Stream 0 is one of each device. A context is the number of a device; all devices share one context of the driver, that of the
//! adopted queues or else one of its own.
//! Events stand for one point in the work only, so that each record makes a new one; they are destroyed once nothing waits for
//! them any more. Memory is freed by hand, and waits for the device first. There are no graphs that take other arguments later: launches in a row are issued one by one.

mod adapters;
mod names;
mod printed;
mod queues;

pub(crate) use printed::cpp;

use self::names::{Functions, ListFlags, Lists, Status};
use self::queues::{Adopted, Sycl};
use inrush_base::{Error, ErrorKind, Properties, Result};
use inrush_driver::{
    Api, Code, Context, DevicePtr, Driver, Handle, Launch, Loaded, Stream, Symbols,
};
use libloading::Library;
use names::{
    CommandQueueDesc, ContextDesc, DeviceCacheProperties, DeviceComputeProperties,
    DeviceProperties, EventDesc, EventPoolDesc, KernelDesc, KernelProperties, MemoryDesc,
    MemoryProperties, ModuleDesc,
};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::{CStr, OsStr, c_void};
use std::ptr::{null, null_mut};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// File name of Level Zero's loader.
const LIBRARY: &str = "libze_loader.so.1";
/// Advice for machines without it.
const MISSING: &str = "install Intel's compute runtime and the package `level-zero`";
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
            "no Level Zero: `{}` cannot be loaded ({why}); {MISSING}",
            path.display()
        ))
    })?;
    Ok(Driver::new(Arc::new(Zero::new(library)?)))
}

/// The driver, which lives as long as the process.
struct Zero {
    functions: Functions,
    driver: Handle,
    devices: Vec<Handle>,
    state: Mutex<State>,
    /// Locked after the state where both are.
    shared: Mutex<Shared>,
    /// Functions that only adopted queues need, looked up at the first one.
    lists: OnceLock<Result<Lists>>,
    list_flags: OnceLock<Option<ListFlags>>,
    sycl: OnceLock<Sycl>,
    /// Held while work is appended: a list takes it from one thread at a time, and arguments are state of the kernel until then.
    appends: Mutex<()>,
    library: Library,
}

/// Objects that modules, memory and lists have in common.
#[derive(Default)]
struct Shared {
    /// One context over all GPUs: that of the first adopted queue, or one that the driver makes when it needs one.
    context: Option<Handle>,
    /// By number in the host process: the devices of adopted queues. Such a process may count devices in an order of its own.
    devices: BTreeMap<usize, Handle>,
}

#[derive(Default)]
struct State {
    /// Command lists of all streams that were made here.
    streams: Vec<usize>,
    /// Queues of the host process.
    adopted: Vec<Adopted>,
    /// By device: the list of stream 0.
    first: BTreeMap<usize, usize>,
    /// Events that work may still use.
    retired: Vec<Signal>,
}

/// An event of the driver, which one list signals once, with its pool.
#[derive(Copy, Clone)]
struct Signal {
    event: Handle,
    pool: Handle,
}

/// An event of the executor: the last point that it was recorded at. The lock is held while a wait for it is appended, so that
/// another thread that records it again does not destroy it meanwhile.
#[derive(Default)]
struct Point(Mutex<Option<Signal>>);

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
        Ok(Zero {
            functions,
            driver,
            devices,
            state: Mutex::default(),
            shared: Mutex::default(),
            lists: OnceLock::new(),
            list_flags: OnceLock::new(),
            sycl: OnceLock::new(),
            appends: Mutex::new(()),
            library,
        })
    }

    /// Returns the context of modules, memory and lists, which is made if no adopted queue has brought one.
    fn context_of_all(&self) -> Result<Handle> {
        let mut shared = lock(&self.shared);
        if let Some(context) = shared.context {
            return Ok(context);
        }
        let desc = ContextDesc::default();
        // SAFETY: the description is the header's.
        let made = make("zeContextCreate", |c| unsafe {
            (self.functions.context_create)(self.driver, &desc, c)
        })?;
        shared.context = Some(made);
        Ok(made)
    }

    /// Returns the handle of a device by its number.
    fn numbered(&self, at: usize) -> Option<Handle> {
        let shared = lock(&self.shared);
        if shared.devices.is_empty() {
            self.devices.get(at).copied()
        } else {
            shared.devices.get(&at).copied()
        }
    }

    /// Returns the number and the handle of the current device.
    fn device(&self) -> Result<(usize, Handle)> {
        let at = CURRENT
            .get()
            .ok_or_else(|| Error::machine("no device of Level Zero is current on this thread"))?;
        let device = self.numbered(at);
        let device = device.ok_or_else(|| Error::internal("a device that does not exist"))?;
        Ok((at, device))
    }

    /// Makes an immediate command list on the current device.
    fn command_list(&self, state: &mut State) -> Result<usize> {
        let (_, device) = self.device()?;
        let context = self.context_of_all()?;
        let desc = CommandQueueDesc {
            flags: IN_ORDER,
            mode: ASYNCHRONOUS,
            ..CommandQueueDesc::default()
        };
        // SAFETY: the description is the header's.
        let made = make("zeCommandListCreateImmediate", |l| unsafe {
            (self.functions.list_create)(context, device, &desc, l)
        })?;
        state.streams.push(made as usize);
        Ok(made as usize)
    }

    /// Returns the command list of a stream, and true if work needs barriers around it there.
    fn list_of(&self, stream: Stream) -> Result<(Handle, bool)> {
        let mut state = lock(&self.state);
        if stream.0 != 0 {
            if state.streams.contains(&stream.0) {
                return Ok((stream.0 as Handle, false));
            }
            if let Some(a) = state.adopted.iter().find(|a| a.queue == stream.0) {
                return Ok((a.list as Handle, a.needs_barriers));
            }
            return none(
                "work is issued on command lists of this driver only, a stream of the caller's is none",
            );
        }
        let (at, _) = self.device()?;
        let list = match state.first.get(&at) {
            Some(list) => *list,
            None => {
                let list = self.command_list(&mut state)?;
                state.first.insert(at, list);
                list
            }
        };
        Ok((list as Handle, false))
    }

    /// Appends work to the list of a stream, one thread at a time.
    fn append(
        &self,
        stream: Stream,
        work: impl FnOnce(&Functions, Handle) -> Result<()>,
    ) -> Result<()> {
        let (list, needs_barriers) = self.list_of(stream)?;
        let _held = lock(&self.appends);
        self.note_work(stream);
        let barrier = || {
            if needs_barriers {
                // SAFETY: the list is that of the stream, and the lock is held.
                unsafe { self.lists()?.barrier(list) }
            } else {
                Ok(())
            }
        };
        let done = barrier()
            .and_then(|()| work(&self.functions, list))
            .and_then(|()| barrier());
        // Another thread may have waited for all work in between, or told the host: neither knew of this work.
        self.note_work(stream);
        done
    }

    /// Has waits and the host know of work on an adopted queue.
    fn note_work(&self, stream: Stream) {
        if let Some(a) = (lock(&self.state).adopted.iter_mut()).find(|a| a.queue == stream.0) {
            (a.is_issued, a.is_pending) = (true, true);
        }
    }

    /// Copies bytes in the order of a stream's work.
    fn copy_on(
        &self,
        to: *mut c_void,
        from: *const c_void,
        bytes: usize,
        stream: Stream,
    ) -> Result<()> {
        self.append(stream, |f, list| {
            // SAFETY: the callers vouch for both addresses.
            check("zeCommandListAppendMemoryCopy", unsafe {
                (f.append_copy)(list, to, from, bytes, null_mut(), 0, null_mut())
            })
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
        let context = self.context_of_all()?;
        // SAFETY: the description names code that outlives the call.
        let made = make("zeModuleCreate", |m| unsafe {
            (self.functions.module_create)(context, device, &desc, m, &mut log)
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

    /// Makes an event, with a pool of its own.
    fn signal(&self) -> Result<Signal> {
        let (_, mut device) = self.device()?;
        let f = &self.functions;
        let context = self.context_of_all()?;
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
            (f.pool_create)(context, &pool, 1, &mut device, p)
        })?;
        // SAFETY: likewise.
        let made = make("zeEventCreate", |e| unsafe {
            (f.event_create)(pool, &desc, e)
        });
        match made {
            Ok(event) => Ok(Signal { event, pool }),
            Err(e) => {
                // SAFETY: nothing uses the pool.
                _ = unsafe { (f.pool_destroy)(pool) };
                Err(e)
            }
        }
    }

    /// Has a stream signal a new event after all that was appended to its list.
    fn signal_after(&self, stream: Stream) -> Result<Signal> {
        let made = self.signal()?;
        let done = self.append(stream, |f, list| {
            // SAFETY: the event exists.
            check("zeCommandListAppendSignalEvent", unsafe {
                (f.append_signal)(list, made.event)
            })
        });
        match done {
            Ok(()) => Ok(made),
            Err(e) => {
                self.destroy(made);
                Err(e)
            }
        }
    }

    /// Destroys an event that nothing uses.
    fn destroy(&self, signal: Signal) {
        // SAFETY: the callers vouch that nothing uses it; both handles are this event's alone.
        unsafe {
            _ = (self.functions.event_destroy)(signal.event);
            _ = (self.functions.pool_destroy)(signal.pool);
        }
    }

    /// Has an event be destroyed when no work uses it any more.
    fn retire(&self, event: Signal) {
        let mut state = lock(&self.state);
        state.retired.push(event);
        if state.retired.len() > MAX_RETIRED {
            // Without success they stay.
            _ = self.wait_all(&mut state);
        }
    }

    /// Waits for all streams, and destroys the events that no work uses any more.
    fn wait_all(&self, state: &mut State) -> Result<()> {
        let pending = state.adopted.iter().filter(|a| a.is_pending);
        for list in state.streams.iter().copied().chain(pending.map(|a| a.list)) {
            // SAFETY: the list exists while it is among the streams; an adopted one does while work of this driver is pending.
            check("zeCommandListHostSynchronize", unsafe {
                (self.functions.list_synchronize)(list as Handle, FOREVER)
            })?;
        }
        for a in &mut state.adopted {
            a.is_pending = false;
        }
        for event in state.retired.drain(..) {
            self.destroy(event);
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
            Ok(at) if self.numbered(at).is_some() => Ok(Context(at)),
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

    unsafe fn adopt(&self, device: i32, stream: Stream, symbols: Symbols<'_>) -> Result<()> {
        // SAFETY: by the caller's promise.
        unsafe { self.adopt_queue(device, stream, symbols) }
    }

    fn take_issued(&self, stream: Stream) -> bool {
        let mut state = lock(&self.state);
        let found = state.adopted.iter_mut().find(|a| a.queue == stream.0);
        found.is_some_and(|a| std::mem::take(&mut a.is_issued))
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
        self.wait_all(&mut lock(&self.state))
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

    unsafe fn lanes(&self, function: Handle) -> Result<Option<u32>> {
        let lanes = self.kernel_properties(function)?.lanes;
        // Zero stands for a kernel that runs in sub-groups of any size.
        Ok((lanes > 0).then_some(lanes))
    }

    /// Memory of another context, such as that of queues that were not adopted, is not known in this one.
    fn can_access(&self, at: DevicePtr) -> Result<bool> {
        let context = self.context_of_all()?;
        let mut p = MemoryProperties::default();
        // SAFETY: the structure is the header's; the address is looked up and not read.
        check("zeMemGetAllocProperties", unsafe {
            (self.functions.memory_properties)(context, at as *const c_void, &mut p, null_mut())
        })?;
        Ok(p.memory_type != 0)
    }

    fn can_capture(&self) -> bool {
        false
    }

    fn can_time(&self) -> bool {
        false
    }

    unsafe fn launch(&self, launch: &mut Launch<'_>, stream: Stream) -> Result<()> {
        let arguments = self.kernel_properties(launch.function)?.arguments as usize;
        // Kernels with dynamic shared memory take it as a further argument.
        let takes_shared = launch.shared > 0 && arguments == launch.places.len() + 1;
        if arguments != launch.places.len() + usize::from(takes_shared) {
            return Err(Error::internal(format!(
                "a kernel of {arguments} arguments gets {}",
                launch.places.len()
            )));
        }
        self.append(stream, |f, list| {
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
        })
    }

    fn allocate(&self, bytes: usize) -> Result<DevicePtr> {
        let (_, device) = self.device()?;
        let desc = MemoryDesc::default();
        let size = bytes.max(1);
        let context = self.context_of_all()?;
        // SAFETY: the description is the header's.
        let made = make(&format!("zeMemAllocDevice of {bytes} bytes"), |at| unsafe {
            (self.functions.allocate)(context, &desc, size, ALIGNMENT, device, at)
        })?;
        Ok(made as DevicePtr)
    }

    unsafe fn free(&self, at: DevicePtr) {
        // Unlike other drivers this one does not wait for the device. Memory that work may still use stays.
        if let (Ok(()), Ok(context)) = (self.synchronize_all(), self.context_of_all()) {
            // SAFETY: by the caller's promise.
            _ = unsafe { (self.functions.free)(context, at as *mut c_void) };
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
        let zero = 0u8;
        let (at, pattern): (*mut c_void, *const u8) = (at as *mut c_void, &zero);
        self.append(on, |f, list| {
            // SAFETY: by the caller's promise; the driver copies the pattern.
            check("zeCommandListAppendMemoryFill", unsafe {
                (f.append_fill)(
                    list,
                    at,
                    pattern.cast(),
                    1,
                    bytes,
                    null_mut(),
                    0,
                    null_mut(),
                )
            })
        })?;
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
            state.streams.retain(|other| *other != stream.0);
            // SAFETY: likewise.
            _ = unsafe { (self.functions.list_destroy)(list) };
        }
    }

    fn synchronize(&self, stream: Stream) -> Result<()> {
        let (list, _) = self.list_of(stream)?;
        // SAFETY: the caller vouches for the stream.
        check("zeCommandListHostSynchronize", unsafe {
            (self.functions.list_synchronize)(list, FOREVER)
        })
    }

    fn event(&self, timed: bool) -> Result<Handle> {
        if timed {
            return none("the time of work is not measured");
        }
        Ok(Box::into_raw(Box::new(Point::default())).cast())
    }

    unsafe fn record_event(&self, event: Handle, stream: Stream) -> Result<()> {
        let made = self.signal_after(stream)?;
        // SAFETY: the event is one of `event`, by the caller's promise.
        let point = unsafe { &*event.cast::<Point>() };
        let before = lock(&point.0).replace(made);
        if let Some(before) = before {
            self.retire(before);
        }
        Ok(())
    }

    unsafe fn wait_for(&self, event: Handle, stream: Stream) -> Result<()> {
        // SAFETY: the event is one of `event`, by the caller's promise.
        let point = unsafe { &*event.cast::<Point>() };
        let point = lock(&point.0);
        let Some(mut signal) = *point else {
            // It stands for no work.
            return Ok(());
        };
        self.append(stream, |f, list| {
            // SAFETY: the event is not retired while the lock of the point is held, and lives longer than work that waits for it.
            check("zeCommandListAppendWaitOnEvents", unsafe {
                (f.append_wait)(list, 1, &mut signal.event)
            })
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

    fn leave_captures_alone(&self) -> Result<()> {
        Ok(())
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
