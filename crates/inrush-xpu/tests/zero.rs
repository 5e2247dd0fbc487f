//! The driver over a library of the tests in the place of Level Zero's loader.

use inrush_base::{Error, ErrorKind, Result};
use inrush_driver::{Arguments, DevicePtr, Driver, Kernel, Memory, Stream};
use libloading::Library;
use std::ffi::{CStr, CString, c_char, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The library holds one state for the process.
static ALONE: Mutex<()> = Mutex::new(());

/// The library of the tests.
struct Zero {
    library: Library,
    path: PathBuf,
    _alone: MutexGuard<'static, ()>,
}

impl Zero {
    fn new(name: &str) -> Zero {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("libze_{name}.so"));
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/zero.c");
        let done = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .args([&path, &source])
            .status();
        assert!(done.unwrap().success());
        // SAFETY: the library is that of the tests.
        let library = unsafe { Library::new(&path) }.unwrap();
        Zero {
            library,
            path,
            _alone: alone,
        }
    }

    fn open(&self) -> Result<Driver> {
        let driver = inrush_xpu::open(self.path.as_os_str())?;
        driver.make_current(0)?;
        Ok(driver)
    }

    /// Has calls of a function fail from now on.
    fn fail(&self, name: &str) {
        let name = CString::new(name).unwrap();
        // SAFETY: the type is that of the source.
        unsafe {
            let fail = self
                .library
                .get::<unsafe extern "C" fn(*const c_char)>(b"fake_fail");
            fail.unwrap()(name.as_ptr());
        }
    }

    /// Returns what the library saw since the last look.
    fn seen(&self) -> Vec<String> {
        // SAFETY: the types are those of the source.
        unsafe {
            let seen = self
                .library
                .get::<unsafe extern "C" fn() -> *const c_char>(b"fake_seen");
            let text = CStr::from_ptr(seen.unwrap()())
                .to_string_lossy()
                .into_owned();
            self.library
                .get::<unsafe extern "C" fn()>(b"fake_forget")
                .unwrap()();
            text.lines().map(str::to_string).collect()
        }
    }
}

/// SPIR-V as far as the driver looks.
fn code(words: usize) -> Vec<u8> {
    let mut code = vec![0; 4 * words];
    code[..4].copy_from_slice(&0x0723_0203u32.to_le_bytes());
    code
}

/// Loads a kernel that doubles floats, with its arguments.
fn twice(driver: &Driver, name: &str, shared: u32) -> Result<Kernel> {
    assert!(driver.takes_each());
    let places = vec![(0, 8), (8, 8), (16, 4), (24, 8), (32, 8)];
    Ok(driver
        .load(&code(8), name, 128, shared)?
        .with_places(places))
}

fn arguments(from: DevicePtr, to: DevicePtr, n: i32) -> Vec<u8> {
    let mut a = Arguments::default();
    a.pointer(from);
    a.pointer(to);
    a.i32(n);
    a.finish(0);
    a.bytes().to_vec()
}

fn floats(memory: &Memory) -> Result<Vec<f32>> {
    let bytes = memory.read()?;
    let each = bytes.chunks_exact(4);
    Ok(each
        .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
        .collect())
}

/// Doubles two floats on a stream, doubles the result on another one that waits for the first, and reads it.
fn work(driver: &Driver) -> Result<Vec<f32>> {
    let kernel = twice(driver, "twice", 0)?;
    let (mut x, mut y, z) = (
        driver.allocate(8)?,
        driver.allocate(8)?,
        driver.allocate(8)?,
    );
    x.write(&[1f32.to_le_bytes(), 2f32.to_le_bytes()].concat())?;
    y.clear()?;
    let (a, b) = (driver.own_stream()?, driver.own_stream()?);
    let marker = driver.marker()?;
    // It stands for no work yet.
    marker.wait(a.stream())?;
    // SAFETY: the arguments are those of the kernel, over memory that lives until the work is done.
    unsafe {
        kernel.launch(
            [1, 1, 1],
            &mut arguments(x.address(), y.address(), 2),
            a.stream(),
        )?;
        marker.record(a.stream())?;
        marker.wait(b.stream())?;
        kernel.launch(
            [3, 1, 1],
            &mut arguments(y.address(), z.address(), 2),
            b.stream(),
        )?;
        // A marker that is recorded again stands for the later work.
        marker.record(b.stream())?;
        marker.wait(a.stream())?;
        driver.copy(x.address(), z.address(), 8, a.stream())?;
    }
    driver.synchronize(a.stream())?;
    driver.synchronize_all()?;
    floats(&x)
}

#[test]
fn kernels_run_on_streams_that_wait_for_each_other() {
    let zero = Zero::new("streams");
    let driver = zero.open().unwrap();
    assert_eq!(
        (driver.version().unwrap(), driver.devices().unwrap()),
        ("Level Zero 1.9".into(), 2)
    );
    let p = driver.properties().unwrap();
    assert_eq!(
        (p.arch.as_str(), p.multiprocessors, p.resident_threads),
        ("pvc", 64, 1024)
    );
    assert_eq!((p.shared_bytes, p.l2_bytes), (128 << 10, 204 << 20));
    for _ in 0..3 {
        assert_eq!(work(&driver).unwrap(), [4.0, 8.0]);
    }
    let seen = zero.seen();
    let launches: Vec<&String> = seen.iter().filter(|l| l.starts_with("launch")).collect();
    assert_eq!(launches.len(), 6);
    assert_eq!(launches[1], "launch twice grid=3,1,1 group=128 shared=0");
    // The default list is made once, and lists of streams each time.
    assert_eq!(seen.iter().filter(|l| *l == "list on 0").count(), 7);
    driver.make_current(1).unwrap();
    assert_eq!(work(&driver).unwrap(), [4.0, 8.0]);
    assert!(zero.seen().contains(&"list on 1".to_string()));
    assert!(driver.primary_context(2).is_err());
}

#[test]
fn local_memory_is_a_further_argument() {
    let zero = Zero::new("local");
    let driver = zero.open().unwrap();
    let kernel = twice(&driver, "twice_local", 2048).unwrap();
    assert_eq!(kernel.resources().unwrap(), (0, 64));
    let memory = driver.allocate(4).unwrap();
    let at = memory.address();
    let stream = driver.own_stream().unwrap();
    // SAFETY: the arguments are those of the kernel.
    unsafe { kernel.launch([1, 1, 1], &mut arguments(at, at, 1), stream.stream()) }.unwrap();
    driver.synchronize(stream.stream()).unwrap();
    assert!(
        zero.seen()
            .contains(&"launch twice_local grid=1,1,1 group=128 shared=2048".into())
    );
    // Memory of another context is not known.
    assert!(driver.can_access(at).unwrap() && !driver.can_access(at + 1).unwrap());
    // One that takes other arguments than it gets is not launched.
    let wrong = twice(&driver, "twice", 0)
        .unwrap()
        .with_places(vec![(0, 8)]);
    // SAFETY: likewise.
    let error = unsafe { wrong.launch([1, 1, 1], &mut arguments(at, at, 1), stream.stream()) };
    assert!(error.unwrap_err().message().contains("5 arguments gets 1"));
}

#[test]
fn mistakes_and_limits_are_told() {
    let zero = Zero::new("mistakes");
    let driver = zero.open().unwrap();
    let message = |e: Option<Error>| e.unwrap().to_string();
    let damaged = driver.load(b"\x7fELF and so on", "twice", 32, 0);
    assert!(message(damaged.err()).contains("SPIR-V of `twice` is damaged"));
    let long = message(driver.load(&code(32), "twice", 32, 0).err());
    assert!(
        long.contains("error: too long a text") && long.contains("twice"),
        "{long}"
    );
    let other = message(driver.load(&code(8), "thrice", 32, 0).err());
    assert!(
        other.contains("invalid name of a kernel") && other.contains("thrice"),
        "{other}"
    );
    let ptx = driver.load_ptx(b".version 8.7", "twice", 32, 0);
    assert_eq!(ptx.err().unwrap().kind(), ErrorKind::Unsupported);
    let much = driver.allocate(1 << 30).err().unwrap();
    assert_eq!(much.kind(), ErrorKind::OutOfMemory);
    assert!(much.message().contains("1073741824 bytes"), "{much}");
    assert_eq!(driver.event().err().unwrap().kind(), ErrorKind::Unsupported);
    let stream = driver.own_stream().unwrap();
    let recorded = driver.record(stream.stream(), || Ok(()));
    assert_eq!(recorded.err().unwrap().kind(), ErrorKind::Unsupported);
    // SAFETY: there are no launches.
    let list = unsafe { driver.list(std::iter::empty()) };
    assert_eq!(list.err().unwrap().kind(), ErrorKind::Unsupported);
    std::thread::scope(|s| {
        let other = s.spawn(|| message(driver.allocate(8).err()));
        assert!(
            other
                .join()
                .unwrap()
                .contains("no device of Level Zero is current")
        );
    });
}

/// All functions but those whose failures nothing can be done about.
const FUNCTIONS: &[&str] = &[
    "zeInit",
    "zeDriverGet",
    "zeDeviceGet",
    "zeContextCreate",
    "zeModuleCreate",
    "zeKernelCreate",
    "zeKernelGetProperties",
    "zeKernelSetGroupSize",
    "zeKernelSetArgumentValue",
    "zeCommandListCreateImmediate",
    "zeCommandListHostSynchronize",
    "zeCommandListAppendLaunchKernel",
    "zeCommandListAppendMemoryCopy",
    "zeCommandListAppendMemoryFill",
    "zeCommandListAppendSignalEvent",
    "zeCommandListAppendWaitOnEvents",
    "zeMemAllocDevice",
    "zeEventPoolCreate",
    "zeEventCreate",
];

/// Likewise where queues are adopted.
const OF_QUEUES: &[&str] = &[
    "zeCommandListIsImmediate",
    "zeCommandListGetContextHandle",
    "zeCommandListGetDeviceHandle",
    "zeCommandListAppendBarrier",
];

#[test]
fn functions_for_queues_may_fail_and_are_named() {
    let zero = Zero::new("queues_fail");
    for function in OF_QUEUES {
        zero.fail(function);
        let driver = inrush_xpu::open(zero.path.as_os_str()).unwrap();
        let queue = Queue {
            any_order: 1,
            ..GOOD
        };
        let failed = (zero.adopt(&driver, 0, &queue, "")).and_then(|stream| {
            driver.make_current(0)?;
            let memory = driver.allocate(8)?;
            // SAFETY: the memory is so long.
            unsafe { driver.clear(memory.address(), 8, stream) }
        });
        zero.fail("");
        let error = failed.expect_err(function);
        assert_eq!(error.kind(), ErrorKind::Machine, "{error}");
        assert!(error.to_string().contains(function), "{error}");
    }
}

#[test]
fn every_function_may_fail_and_is_named() {
    let zero = Zero::new("failing");
    for function in FUNCTIONS {
        zero.fail(function);
        let failed = zero.open().and_then(|driver| {
            let result = work(&driver);
            // What was appended still runs, so that memory may be freed.
            zero.fail("");
            driver.synchronize_all()?;
            result
        });
        zero.fail("");
        let error = failed.expect_err(function);
        assert_eq!(error.kind(), ErrorKind::Machine, "{error}");
        assert!(error.to_string().contains(function), "{error}");
    }
}

#[test]
fn a_missing_or_old_library_is_told() {
    let missing = inrush_xpu::open("/nowhere/libze_loader.so.1".as_ref())
        .err()
        .unwrap();
    let text = missing.to_string();
    assert!(
        text.contains("no Level Zero: `/nowhere/") && text.contains("compute runtime"),
        "{text}"
    );
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (source, path) = (folder.join("old_zero.c"), folder.join("libold_zero.so"));
    std::fs::write(&source, "int zeInit(unsigned f) { return 0; }\n").unwrap();
    let done = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .args([&path, &source])
        .status();
    assert!(done.unwrap().success());
    let old = inrush_xpu::open(path.as_os_str())
        .err()
        .unwrap()
        .to_string();
    assert!(
        old.contains("too old") && old.contains("zeDriverGet"),
        "{old}"
    );
}

/// A queue of SYCL as the library of the tests has it.
#[repr(C)]
#[derive(Copy, Clone)]
struct Queue {
    backend: i32,
    is_in_order: i32,
    state: i32,
    is_batched: i32,
    description: i32,
    any_order: i32,
    device: i32,
    context: i32,
    list: usize,
}

/// One that work can be appended to.
const GOOD: Queue = Queue {
    backend: 2,
    is_in_order: 1,
    state: 0,
    is_batched: 0,
    description: 1,
    any_order: 0,
    device: 0,
    context: 0,
    list: 0,
};

impl Zero {
    /// Has a driver take work for a queue, as device `device` of the host process; symbols named `without` are missing.
    fn adopt(&self, driver: &Driver, device: i32, queue: &Queue, without: &str) -> Result<Stream> {
        let symbols = |name: &CStr| {
            let bytes = name.to_bytes_with_nul();
            // SAFETY: the address of a function.
            let found = unsafe { self.library.get::<*const c_void>(bytes) };
            let found = found.ok().filter(|_| name.to_bytes() != without.as_bytes());
            // SAFETY: the library stays.
            found.and_then(|f| unsafe { f.into_raw() }.as_raw_ptr().cast_const().into())
        };
        let stream = Stream(std::ptr::from_ref(queue) as usize);
        // SAFETY: the queue is one of the library's.
        unsafe { driver.adopt(device, stream, &symbols) }?;
        Ok(stream)
    }

    /// Has the adapter that is not for OpenCL be another one.
    fn set_adapter(&self, backend: u32, version: u32) {
        type Set = unsafe extern "C" fn(u32, u32);
        // SAFETY: the type is that of the source.
        unsafe { self.library.get::<Set>(b"fake_adapter").unwrap()(backend, version) };
    }

    /// Returns how many adapters were not given back.
    fn adapters_held(&self) -> i32 {
        type Held = unsafe extern "C" fn() -> i32;
        // SAFETY: the type is that of the source.
        unsafe { self.library.get::<Held>(b"fake_adapters_held").unwrap()() }
    }

    /// Has the queue itself copy bytes.
    fn copy(&self, queue: &Queue, to: DevicePtr, from: DevicePtr, bytes: usize) {
        type Copy = unsafe extern "C" fn(*const Queue, DevicePtr, DevicePtr, usize);
        // SAFETY: the type is that of the source.
        unsafe { self.library.get::<Copy>(b"fake_queue_copy").unwrap()(queue, to, from, bytes) };
    }
}

#[test]
fn work_is_in_order_with_that_of_a_queue() {
    // Without its flags a list may run work in another order.
    for any_order in [0, 1] {
        let zero = Zero::new("queue");
        let driver = inrush_xpu::open(zero.path.as_os_str()).unwrap();
        let queue = Queue {
            any_order,
            device: 1,
            ..GOOD
        };
        let stream = zero.adopt(&driver, 0, &queue, "").unwrap();
        // The process counts its devices in another order.
        driver.make_current(0).unwrap();
        assert!(driver.primary_context(1).is_err());
        let kernel = twice(&driver, "twice", 0).unwrap();
        let mut memory: Vec<Memory> = (0..4).map(|_| driver.allocate(8).unwrap()).collect();
        memory[0]
            .write(&[1f32.to_le_bytes(), 2f32.to_le_bytes()].concat())
            .unwrap();
        assert!(zero.seen().contains(&"list on 1".to_string()));
        let at: Vec<DevicePtr> = memory.iter().map(Memory::address).collect();
        assert!(!driver.take_issued(stream));
        zero.copy(&queue, at[1], at[0], 8);
        // SAFETY: the arguments are those of the kernel, over memory that lives until the work is done.
        unsafe {
            kernel
                .launch([1, 1, 1], &mut arguments(at[1], at[2], 2), stream)
                .unwrap();
            kernel
                .launch([1, 1, 1], &mut arguments(at[2], at[1], 2), stream)
                .unwrap();
        }
        zero.copy(&queue, at[3], at[1], 8);
        let marker = driver.marker().unwrap();
        marker.record(stream).unwrap();
        let own = driver.own_stream().unwrap();
        marker.wait(own.stream()).unwrap();
        // SAFETY: likewise.
        unsafe { driver.copy(at[0], at[3], 8, own.stream()) }.unwrap();
        driver.synchronize(own.stream()).unwrap();
        assert_eq!(
            floats(&memory[0]).unwrap(),
            [4.0, 8.0],
            "any order: {any_order}"
        );
        // The host is told once.
        assert!(driver.take_issued(stream) && !driver.take_issued(stream));
        // Memory waits for work of queues, too: freeing it aborts otherwise.
        // SAFETY: likewise.
        unsafe { driver.copy(at[1], at[2], 8, stream) }.unwrap();
    }
}

/// Waits for all work and tells the host of it, on another thread.
extern "C" fn wait_for_all(with: *mut c_void) {
    // SAFETY: the test's own, which outlives the call.
    let (driver, stream) = unsafe { &*with.cast::<(Driver, Stream)>() };
    std::thread::scope(|s| {
        s.spawn(|| {
            driver.synchronize_all().unwrap();
            assert!(driver.take_issued(*stream));
        });
    });
}

#[test]
fn work_that_is_appended_while_another_thread_waits_is_waited_for_later() {
    type Before = unsafe extern "C" fn(Option<extern "C" fn(*mut c_void)>, *mut c_void);
    let zero = Zero::new("threads");
    let driver = inrush_xpu::open(zero.path.as_os_str()).unwrap();
    let queue = GOOD;
    let stream = zero.adopt(&driver, 0, &queue, "").unwrap();
    driver.make_current(0).unwrap();
    let memory = driver.allocate(8).unwrap();
    let with = (driver, stream);
    let driver = &with.0;
    // SAFETY: the type is that of the source; the memory is so long.
    unsafe {
        let before = zero.library.get::<Before>(b"fake_before_fill").unwrap();
        before(
            Some(wait_for_all),
            (&raw const with).cast_mut().cast::<c_void>(),
        );
        driver.clear(memory.address(), 8, stream).unwrap();
        before(None, std::ptr::null_mut());
    }
    assert!(driver.take_issued(stream));
    driver.synchronize_all().unwrap();
    // Reads wait for a list of their own alone.
    assert_eq!(floats(&memory).unwrap(), [0.0, 0.0]);
}

#[test]
fn queues_without_an_order_are_refused_with_the_reason() {
    let zero = Zero::new("refused");
    let driver = inrush_xpu::open(zero.path.as_os_str()).unwrap();
    let refused = |queue: Queue, without: &str| {
        let e = zero.adopt(&driver, 0, &queue, without).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unsupported);
        e.to_string()
    };
    // Functions are looked up until all are found.
    for function in [
        "_ZNK4sycl3_V15queue9getNativeERi",
        "urAdapterGet",
        "urAdapterGetInfo",
        "urAdapterRelease",
    ] {
        let text = refused(GOOD, function);
        assert!(text.contains(&format!("`{function}`")), "{text}");
    }
    // The adapter is asked for until it is one that is taken.
    for function in ["urAdapterGet", "urAdapterGetInfo"] {
        zero.fail(function);
        let text = refused(GOOD, "");
        assert!(text.contains(&format!("{function} gives")), "{text}");
    }
    zero.fail("");
    for (backend, version, reason) in [
        (1, 1, "SYCL_UR_USE_LEVEL_ZERO_V2=1"),
        (1, 3, "adapter of version 3"),
        (4, 2, "no adapter for Level Zero"),
    ] {
        zero.set_adapter(backend, version);
        let text = refused(GOOD, "");
        assert!(text.contains(reason), "{text}");
    }
    zero.set_adapter(1, 2);
    for (queue, reason) in [
        (Queue { backend: 1, ..GOOD }, "another driver"),
        (
            Queue {
                is_in_order: 0,
                ..GOOD
            },
            "in any order",
        ),
        (Queue { state: 1, ..GOOD }, "is captured"),
        (
            Queue {
                is_batched: 1,
                ..GOOD
            },
            "UR_L0_V2_FORCE_BATCHED",
        ),
        (
            Queue {
                description: 0,
                ..GOOD
            },
            "unset UR_L0_USE_IMMEDIATE_COMMANDLISTS",
        ),
        (
            Queue {
                description: -1,
                ..GOOD
            },
            "before oneAPI 2025.3",
        ),
        (Queue { context: 2, ..GOOD }, "no immediate command list"),
    ] {
        let text = refused(queue, "");
        assert!(text.contains(reason), "{text}");
    }
    let good = GOOD;
    zero.adopt(&driver, 0, &good, "").unwrap();
    // Again, as before each call.
    zero.adopt(&driver, 0, &good, "").unwrap();
    assert_eq!(zero.adapters_held(), 0);
    let text = refused(Queue { context: 1, ..GOOD }, "");
    assert!(text.contains("another context"), "{text}");
    // A stream that was not adopted takes no work.
    driver.make_current(0).unwrap();
    let e = driver.synchronize(Stream(8)).unwrap_err();
    assert!(e.message().contains("is none"), "{e}");
}
