//! A driver of a vendor that does not exist: what a kind of device whose functions have the shape of CUDA's must write, and that
//! kernels, memory, streams, events, lists and recordings work over it. The library is that of `inrush-host`'s tests.

use inrush_base::{Error, ErrorKind, Properties, Result};
use inrush_driver::calls::{Calls, Dialect, Parameters, Status, Symbols, function};
use inrush_driver::{
    Api as _, Arguments, Context, DevicePtr, Driver, Handle, Kernel, Stream, Tensor, TensorMap,
};
use libloading::Library;
use std::ffi::{c_int, c_uint};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

/// The functions that have no counterpart.
struct Toy {
    get: unsafe extern "C" fn(*mut c_int) -> Status,
    set: unsafe extern "C" fn(c_int) -> Status,
}

/// A launch in a graph.
#[repr(C)]
struct Node {
    block: [c_uint; 3],
    extra: *mut Handle,
    function: Handle,
    grid: [c_uint; 3],
    parameters: *mut Handle,
    shared: c_uint,
}

impl Dialect for Toy {
    const NAME: &'static str = "Toy";
    const LIBRARIES: &'static [&'static str] = &["libtoy.so.2", "libtoy.so.1"];
    const MISSING: &'static str = "buy a toy";
    const ILLEGAL_ACCESS: &'static str = "; look below the sofa";
    const SYMBOLS: Symbols = Symbols {
        init: "toyInit",
        version: "toyDriverGetVersion",
        error_name: "toyGetErrorName",
        error_text: "toyGetErrorString",
        device_count: "toyDeviceGetCount",
        device_attribute: "toyDeviceGetAttribute",
        synchronize_all: "toyCtxSynchronize",
        module_load: "toyModuleLoadData",
        module_unload: "toyModuleUnload",
        module_function: "toyModuleGetFunction",
        function_attribute: "toyFuncGetAttribute",
        launch: "toyLaunchKernel",
        allocate: "toyMemAlloc_v2",
        free: "toyMemFree_v2",
        copy: "toyMemcpyDtoDAsync_v2",
        to_device: "toyMemcpyHtoD_v2",
        to_device_later: "toyMemcpyHtoDAsync_v2",
        fill: "toyMemsetD8_v2",
        fill_later: "toyMemsetD8Async",
        to_host: "toyMemcpyDtoH_v2",
        stream_create: "toyStreamCreate",
        stream_destroy: "toyStreamDestroy_v2",
        stream_synchronize: "toyStreamSynchronize",
        stream_wait: "toyStreamWaitEvent",
        stream_capturing: "toyStreamIsCapturing",
        capture_begin: "toyStreamBeginCapture_v2",
        capture_end: "toyStreamEndCapture",
        capture_mode: "toyThreadExchangeStreamCaptureMode",
        graph_create: "toyGraphCreate",
        graph_kernel: "hipGraphAddKernelNode",
        graph_instantiate: "toyGraphInstantiateWithFlags",
        graph_set: "hipGraphExecKernelNodeSetParams",
        graph_launch: "toyGraphLaunch",
        graph_destroy: "toyGraphDestroy",
        ready_destroy: "toyGraphExecDestroy",
        event_create: "toyEventCreate",
        event_record: "toyEventRecord",
        event_synchronize: "toyEventSynchronize",
        event_elapsed: "toyEventElapsedTime",
        event_destroy: "toyEventDestroy_v2",
    };
    const PARAM_END: usize = 0;
    const MAX_THREADS: u64 = 1 << 20;
    type Node = Node;

    fn find(library: &Library) -> Result<Toy> {
        // SAFETY: the types are those of the library's source.
        unsafe {
            Ok(Toy {
                get: function(library, "hipGetDevice", Self::NAME)?,
                set: function(library, "hipSetDevice", Self::NAME)?,
            })
        }
    }

    fn version(number: i32) -> String {
        number.to_string()
    }

    fn context(_: &Calls<Toy>, device: i32) -> Result<Context> {
        Ok(Context(device as usize))
    }

    fn current(calls: &Calls<Toy>) -> Result<Option<Context>> {
        let mut device = 0;
        // SAFETY: the pointer is to an int.
        calls.check("get", unsafe { (calls.dialect().get)(&mut device) })?;
        Ok(Some(Context(device as usize)))
    }

    fn set_current(calls: &Calls<Toy>, context: Option<Context>) -> Result<()> {
        let device = context.map_or(0, |c| c.0 as c_int);
        // SAFETY: the function takes a number.
        calls.check("set", unsafe { (calls.dialect().set)(device) })
    }

    fn properties(calls: &Calls<Toy>) -> Result<Properties> {
        Ok(Properties {
            arch: "toy".into(),
            major: 1,
            minor: 0,
            multiprocessors: calls.device_attribute(0, 16)?,
            resident_threads: 1024,
            registers: 65536,
            shared_bytes: 4096,
            l2_bytes: 4096,
        })
    }

    fn permit_shared(_: &Calls<Toy>, _: Handle, symbol: &str, shared: u32) -> Result<()> {
        if shared <= 4096 {
            return Ok(());
        }
        Err(Error::machine(format!(
            "`{symbol}` needs more than there is"
        )))
    }

    fn node(p: &Parameters<'_>) -> Node {
        Node {
            block: [p.launch.threads, 1, 1],
            extra: p.all,
            function: p.launch.function,
            grid: p.launch.grid,
            parameters: p.each,
            shared: p.launch.shared,
        }
    }

    fn tensor_map(_: &Calls<Toy>, _: &Tensor, _: DevicePtr) -> Result<TensorMap> {
        Err(Error::unsupported("toys have no maps"))
    }
}

/// Compiles the library, with the toy's names for CUDA's.
fn library(folder: &Path, code: Option<&str>) -> PathBuf {
    let (source, library) = (folder.join("toy.c"), folder.join("libtoy.so.1"));
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../inrush-host/tests/driver");
    let fake = tests.join("fake.c");
    let text = code.map_or_else(
        || renamed(&std::fs::read_to_string(fake).unwrap()),
        String::from,
    );
    std::fs::write(&source, text).unwrap();
    let done = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-pthread", "-I"])
        .arg(tests)
        .arg("-o")
        .args([&library, &source])
        .status();
    assert!(done.unwrap().success());
    library
}

/// Calls each function `toyXy` that is `cuXy`.
fn renamed(text: &str) -> String {
    let mut parts = text.split("cu");
    let mut out = parts.next().unwrap_or("").to_string();
    for part in parts {
        let is_name = part.starts_with(|c: char| c.is_ascii_uppercase());
        out.push_str(if is_name { "toy" } else { "cu" });
        out.push_str(part);
    }
    out
}

fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// Loads the kernel that the library knows, which doubles floats.
fn twice(driver: &Driver) -> Kernel {
    let mut code = b"\x7fELF".to_vec();
    code.resize(128, 0);
    let damaged = driver.load(&code[..8], "twice", 64, 0).err().unwrap();
    assert!(damaged.to_string().contains("damaged"), "{damaged}");
    assert!(driver.load(&code, "twice", 64, 1 << 20).is_err());
    driver.load(&code, "twice", 64, 128).unwrap()
}

fn floats(memory: &inrush_driver::Memory) -> Vec<f32> {
    let bytes = memory.read().unwrap();
    let each = bytes.chunks_exact(4);
    each.map(|b| f32::from_le_bytes(b.try_into().unwrap()))
        .collect()
}

#[test]
fn a_fourth_vendor_is_one_implementation() {
    let path = library(&folder("toy"), None);
    let driver = Calls::<Toy>::open(path.as_os_str()).unwrap();
    assert_eq!(driver.version().unwrap(), "Toy 12080");
    assert_eq!(driver.devices().unwrap(), 2);
    driver.make_current(0).unwrap();
    assert_eq!(driver.properties().unwrap().multiprocessors, 132);
    let kernel = Arc::new(twice(&driver));
    let (mut x, y) = (driver.allocate(8).unwrap(), driver.allocate(8).unwrap());
    x.write(&[1f32.to_le_bytes(), 2f32.to_le_bytes()].concat())
        .unwrap();
    let arguments = |from: DevicePtr, to: DevicePtr| {
        let mut a = Arguments::default();
        a.pointer(from);
        a.pointer(to);
        a.i32(2);
        a.finish(0);
        a.bytes().to_vec()
    };
    let own = driver.own_stream().unwrap();
    let mut there = arguments(x.address(), y.address());
    let mut back = arguments(y.address(), x.address());
    // SAFETY: the arguments are those of the kernel, over memory that lives.
    unsafe {
        let (start, end) = (driver.event().unwrap(), driver.event().unwrap());
        start.record(own.stream()).unwrap();
        kernel.launch([1, 1, 1], &mut there, own.stream()).unwrap();
        end.record(own.stream()).unwrap();
        driver.synchronize(own.stream()).unwrap();
        assert_eq!(
            (floats(&y), end.since(&start).unwrap()),
            (vec![2.0, 4.0], 1.0)
        );
        // A list of two launches, the second of which is set anew.
        let launches = [there.clone(), back.clone()];
        let launches = launches.into_iter().map(|a| (kernel.clone(), [1, 1, 1], a));
        let mut list = driver.list(launches).unwrap();
        list.launch(own.stream()).unwrap();
        assert_eq!((floats(&x), floats(&y)), (vec![4.0, 8.0], vec![2.0, 4.0]));
        list.set(1, [1, 1, 1], &mut there).unwrap();
        list.launch(own.stream()).unwrap();
        assert_eq!((floats(&x), floats(&y)), (vec![4.0, 8.0], vec![8.0, 16.0]));
        // Grids that the vendor cannot count are refused, in lists too.
        let many = [1 << 20, 1, 1];
        let error = kernel.launch(many, &mut there, own.stream()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(
            error.message().contains("1048576 programs of 64 threads"),
            "{error}"
        );
        assert!(list.set(1, many, &mut there).is_err());
        let launches = [(kernel.clone(), many, there.clone())];
        assert!(driver.list(launches.into_iter()).is_err());
        // Nothing runs while it is recorded.
        let issue = || kernel.launch([1, 1, 1], &mut back, own.stream());
        let recording = driver.record(own.stream(), issue).unwrap();
        assert_eq!(floats(&x), [4.0, 8.0]);
        recording.launch(own.stream()).unwrap();
        assert_eq!(floats(&x), [16.0, 32.0]);
        assert!(!driver.is_capturing(own.stream()).unwrap());
    }
    let marker = driver.marker().unwrap();
    marker.record(own.stream()).unwrap();
    marker.wait(Stream(0)).unwrap();
    driver.synchronize_all().unwrap();
    let map = Tensor::new(10, 2, 0, &[4, 8], &[8, 1], &[1, 8]).unwrap();
    let error = driver.tensor_map(&map, 0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    // The context before is current again.
    let entered = driver.enter(driver.primary_context(1).unwrap()).unwrap();
    drop(entered);
    driver.ensure_current(0).unwrap();
}

#[test]
fn an_old_driver_is_told_by_what_it_lacks() {
    let code = "int toyInit(unsigned x) { return 0; }\n";
    let path = library(&folder("old"), Some(code));
    let error = Calls::<Toy>::open(path.as_os_str()).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Machine);
    let text = error.to_string();
    assert!(
        text.contains("the Toy driver is too old") && text.contains("toyDriverGetVersion"),
        "{text}"
    );
}

#[test]
fn a_missing_driver_is_told_by_its_name_and_how_to_get_it() {
    let error = Calls::<Toy>::start().err().unwrap().to_string();
    for word in ["no Toy driver", "`libtoy.so.2`", "buy a toy"] {
        assert!(error.contains(word), "{error}");
    }
}

#[test]
fn failures_of_kernels_say_what_to_do() {
    let path = library(&folder("failing"), None);
    // SAFETY: the library is that of the tests.
    let library = unsafe { Library::new(&path) }.unwrap();
    let calls = Calls::<Toy>::over(library).unwrap();
    let told = |status| calls.check("toyLaunchKernel", status).unwrap_err();
    assert!(told(700).to_string().contains("look below the sofa"));
    assert!(told(710).to_string().contains("stderr"));
    assert_eq!(told(2).kind(), ErrorKind::OutOfMemory);
    assert_eq!(told(1).to_string().matches(';').count(), 0);
    assert_eq!(calls.devices().unwrap(), 2);
}
