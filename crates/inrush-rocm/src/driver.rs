//! HIP, found at run time: its names, the current device, properties. `inrush-driver` holds the rest.
//!
//! HIP has no contexts of its own: each thread has a current device, the first one to begin with. A
//! [`Context`] is the number of a device.

use inrush_base::{Error, Properties, Result};
use inrush_driver::calls::{Calls, Dialect, Parameters, Status, Symbols, function};
use inrush_driver::cpp;
use inrush_driver::{Context, DevicePtr, Driver, Handle, Tensor, TensorMap};
use libloading::Library;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::OnceLock;

/// `hipDeviceAttributeComputeCapabilityMajor` and `Minor`.
const MAJOR: c_int = 23;
const MINOR: c_int = 61;
/// `hipDeviceAttributeMultiprocessorCount`, `L2CacheSize`, `MaxThreadsPerMultiProcessor`, `MaxRegistersPerMultiprocessor` and
/// `MaxSharedMemoryPerBlock`.
const MULTIPROCESSORS: c_int = 63;
const L2_BYTES: c_int = 19;
const RESIDENT_THREADS: c_int = 57;
const REGISTERS: c_int = 72;
const SHARED_BYTES: c_int = 74;
/// Bytes of `hipDeviceProp_tR0600`, and where its `gcnArchName` of 256 bytes begins.
const PROPERTIES_BYTES: usize = 1472;
const ARCH: std::ops::Range<usize> = 1160..1416;

/// Returns the driver of this process, which is found and started once.
///
/// # Errors
/// A machine error that says what is missing.
pub fn driver() -> Result<Driver> {
    static DRIVER: OnceLock<Result<Driver>> = OnceLock::new();
    DRIVER.get_or_init(Calls::<Hip>::start).clone()
}

/// Returns the declarations of this driver for printed C++.
pub(crate) fn cpp() -> String {
    let own = [("set_device", "hipSetDevice", "int")];
    cpp::declarations::<Hip>(&own, include_str!("driver.cpp"))
}

/// The functions that this driver alone has.
struct Hip {
    get_device: unsafe extern "C" fn(*mut c_int) -> Status,
    set_device: unsafe extern "C" fn(c_int) -> Status,
    get_properties: unsafe extern "C" fn(*mut c_void, c_int) -> Status,
}

impl Hip {
    /// Returns the number of the current device.
    fn device(calls: &Calls<Hip>) -> Result<c_int> {
        let mut device = 0;
        // SAFETY: the pointer is to an int.
        calls.check("hipGetDevice", unsafe {
            (calls.dialect().get_device)(&mut device)
        })?;
        Ok(device)
    }

    /// Returns the architecture of a device, such as `gfx942`, without its features (`:xnack-`).
    fn arch(calls: &Calls<Hip>, device: c_int) -> Result<String> {
        // Aligned as the structure, and longer, so that later releases may add fields.
        let mut properties = [0u64; 2 * PROPERTIES_BYTES / 8];
        // SAFETY: the structure has this layout in HIP 6 and 7, by its versioned name.
        calls.check("hipGetDevicePropertiesR0600", unsafe {
            (calls.dialect().get_properties)(properties.as_mut_ptr().cast(), device)
        })?;
        let bytes: Vec<u8> = properties.iter().flat_map(|w| w.to_ne_bytes()).collect();
        Ok(arch_name(&bytes[ARCH]))
    }
}

/// Reads the name of an architecture, up to its features or the first zero.
fn arch_name(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|b| matches!(b, 0 | b':'));
    String::from_utf8_lossy(&bytes[..end.unwrap_or(bytes.len())]).into_owned()
}

/// The driver's description of a launch in a graph: `hipKernelNodeParams`.
#[repr(C)]
struct Node {
    block: [c_uint; 3],
    extra: *mut Handle,
    function: Handle,
    grid: [c_uint; 3],
    parameters: *mut Handle,
    shared: c_uint,
}

impl Dialect for Hip {
    const NAME: &'static str = "HIP";
    const LIBRARIES: &'static [&'static str] =
        &["libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so"];
    const MISSING: &'static str =
        "install ROCm 6 or 7, and name the folder of its libraries in LD_LIBRARY_PATH";
    const ILLEGAL_ACCESS: &'static str = "; some kernel before this call is at fault, `AMD_SERIALIZE_KERNEL=3` tells which; \
        this process cannot use the device any more";
    const SYMBOLS: Symbols = Symbols {
        init: "hipInit",
        version: "hipDriverGetVersion",
        error_name: "hipDrvGetErrorName",
        error_text: "hipDrvGetErrorString",
        device_count: "hipGetDeviceCount",
        device_attribute: "hipDeviceGetAttribute",
        synchronize_all: "hipDeviceSynchronize",
        module_load: "hipModuleLoadData",
        module_unload: "hipModuleUnload",
        module_function: "hipModuleGetFunction",
        function_attribute: "hipFuncGetAttribute",
        launch: "hipModuleLaunchKernel",
        allocate: "hipMalloc",
        free: "hipFree",
        copy: "hipMemcpyDtoDAsync",
        to_device: "hipMemcpyHtoD",
        to_device_later: "hipMemcpyHtoDAsync",
        fill: "hipMemsetD8",
        fill_later: "hipMemsetD8Async",
        to_host: "hipMemcpyDtoH",
        stream_create: "hipStreamCreateWithFlags",
        stream_destroy: "hipStreamDestroy",
        stream_synchronize: "hipStreamSynchronize",
        stream_wait: "hipStreamWaitEvent",
        stream_capturing: "hipStreamIsCapturing",
        capture_begin: "hipStreamBeginCapture",
        capture_end: "hipStreamEndCapture",
        capture_mode: "hipThreadExchangeStreamCaptureMode",
        graph_create: "hipGraphCreate",
        graph_kernel: "hipGraphAddKernelNode",
        graph_instantiate: "hipGraphInstantiateWithFlags",
        graph_set: "hipGraphExecKernelNodeSetParams",
        graph_launch: "hipGraphLaunch",
        graph_destroy: "hipGraphDestroy",
        ready_destroy: "hipGraphExecDestroy",
        event_create: "hipEventCreateWithFlags",
        event_record: "hipEventRecord",
        event_synchronize: "hipEventSynchronize",
        event_elapsed: "hipEventElapsedTime",
        event_destroy: "hipEventDestroy",
    };
    /// `HIP_LAUNCH_PARAM_END`.
    const PARAM_END: usize = 3;
    /// Sizes of a grid in threads are numbers of 32 bits, in graphs without a check.
    const MAX_THREADS: u64 = u32::MAX as u64;
    type Node = Node;

    fn find(library: &Library) -> Result<Hip> {
        let kind = Self::NAME;
        // SAFETY: the types are those of HIP's header for these symbols.
        unsafe {
            Ok(Hip {
                get_device: function(library, "hipGetDevice", kind)?,
                set_device: function(library, "hipSetDevice", kind)?,
                get_properties: function(library, "hipGetDevicePropertiesR0600", kind)?,
            })
        }
    }

    /// 60342131 is 6.3.
    fn version(number: i32) -> String {
        format!("{}.{}", number / 10_000_000, number % 10_000_000 / 100_000)
    }

    fn context(calls: &Calls<Hip>, device: i32) -> Result<Context> {
        use inrush_driver::Api as _;
        match (usize::try_from(device), calls.devices()?) {
            (Ok(number), count) if device < count => Ok(Context(number)),
            (_, count) => Err(Error::machine(format!(
                "HIP has {count} devices, which are counted from 0"
            ))),
        }
    }

    fn current(calls: &Calls<Hip>) -> Result<Option<Context>> {
        Ok(Some(Context(Hip::device(calls)? as usize)))
    }

    fn set_current(calls: &Calls<Hip>, context: Option<Context>) -> Result<()> {
        let device = context.map_or(0, |c| c.0 as c_int);
        // SAFETY: the function takes a number.
        calls.check("hipSetDevice", unsafe {
            (calls.dialect().set_device)(device)
        })
    }

    fn properties(calls: &Calls<Hip>) -> Result<Properties> {
        let device = Hip::device(calls)?;
        let number = |which| calls.device_attribute(device, which);
        Ok(Properties {
            arch: Hip::arch(calls, device)?,
            major: number(MAJOR)?,
            minor: number(MINOR)?,
            multiprocessors: number(MULTIPROCESSORS)?,
            resident_threads: number(RESIDENT_THREADS)?,
            registers: number(REGISTERS)?,
            shared_bytes: number(SHARED_BYTES)?,
            l2_bytes: number(L2_BYTES)? as usize,
        })
    }

    /// Programs may use all shared memory that a device has without asking.
    fn permit_shared(
        calls: &Calls<Hip>,
        function: Handle,
        symbol: &str,
        shared: u32,
    ) -> Result<()> {
        if shared == 0 {
            return Ok(());
        }
        let limit = calls.device_attribute(Hip::device(calls)?, SHARED_BYTES)?;
        if shared.saturating_add(calls.static_shared(function)?) <= limit {
            return Ok(());
        }
        Err(Error::machine(format!(
            "`{symbol}` needs {shared} bytes of shared memory, the device has {limit}"
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

    fn tensor_map(_: &Calls<Hip>, _: &Tensor, _: DevicePtr) -> Result<TensorMap> {
        Err(Error::unsupported(
            "tensor maps: AMD GPUs have no copy engine that takes them",
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::{offset_of, size_of};

    #[test]
    fn nodes_have_the_layout_of_the_header() {
        assert_eq!((size_of::<Node>(), offset_of!(Node, extra)), (64, 16));
        assert_eq!(
            (offset_of!(Node, function), offset_of!(Node, grid)),
            (24, 32)
        );
        assert_eq!(
            (offset_of!(Node, parameters), offset_of!(Node, shared)),
            (48, 56)
        );
    }

    #[test]
    fn architectures_are_named_without_their_features() {
        assert_eq!(arch_name(b"gfx942:sramecc+:xnack-\0\0"), "gfx942");
        assert_eq!(arch_name(b"gfx90a\0 "), "gfx90a");
        assert_eq!(arch_name(b"gfx950"), "gfx950");
        assert_eq!(Hip::version(60_342_131), "6.3");
    }

    #[test]
    fn a_machine_without_a_driver_says_so() {
        if let Err(e) = driver() {
            let text = e.to_string();
            assert!(text.contains("no HIP driver: `libamdhip64.so.7`"), "{text}");
            assert!(text.contains("install ROCm"), "{text}");
        }
    }
}
