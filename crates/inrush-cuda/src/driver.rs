//! The CUDA driver, found at run time: its names, contexts, properties and tensor maps. `inrush-driver` holds the rest.

use crate::programmatic;
use inrush_base::{Error, Properties, Result};
use inrush_driver::calls::{Calls, Dialect, Parameters, Status, Symbols, function};
use inrush_driver::cpp;
use inrush_driver::{
    Api as _, Context, DevicePtr, Driver, Handle, MAX_RANK, Stream, Tensor, TensorMap,
};
use libloading::Library;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::OnceLock;

/// `CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN`.
const MAX_SHARED: c_int = 97;
/// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR` and `_MINOR`.
const MAJOR: c_int = 75;
const MINOR: c_int = 76;
/// `CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT`, `L2_CACHE_SIZE`, `MAX_THREADS_PER_MULTIPROCESSOR` and
/// `MAX_REGISTERS_PER_MULTIPROCESSOR`.
const MULTIPROCESSORS: c_int = 16;
const L2_BYTES: c_int = 38;
const RESIDENT_THREADS: c_int = 39;
const REGISTERS: c_int = 82;
/// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`.
const MAX_DYNAMIC_SHARED: c_int = 8;
/// Dynamic shared memory that needs no permission.
const SMALL_SHARED: u32 = 48 << 10;
/// `CU_TENSOR_MAP_INTERLEAVE_NONE`, `CU_TENSOR_MAP_L2_PROMOTION_L2_128B`, `CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE`: Triton's choices,
/// which its code relies on.
const INTERLEAVE: c_int = 0;
const PROMOTION: c_int = 2;
const FILL: c_int = 0;

/// `cuTensorMapEncodeTiled`: the map, element type, rank, address, sizes, strides, box, steps between elements, interleaving,
/// swizzle, promotion in the second cache, what stands for elements beyond the end.
type Encode = unsafe extern "C" fn(
    *mut TensorMap,
    c_int,
    u32,
    *mut c_void,
    *const u64,
    *const u64,
    *const u32,
    *const u32,
    c_int,
    c_int,
    c_int,
    c_int,
) -> Status;

/// Returns the driver of this process, which is found and started once.
///
/// # Errors
/// A machine error that says what is missing.
pub fn driver() -> Result<Driver> {
    static DRIVER: OnceLock<Result<Driver>> = OnceLock::new();
    DRIVER.get_or_init(Calls::<Cuda>::start).clone()
}

/// Returns the declarations of this driver for printed C++.
pub(crate) fn cpp() -> String {
    let own = [
        ("device_get", "cuDeviceGet", "int *, int"),
        (
            "context_retain",
            "cuDevicePrimaryCtxRetain",
            "Handle *, int",
        ),
        ("context_set", "cuCtxSetCurrent", "Handle"),
        ("function_set", "cuFuncSetAttribute", "Handle, int, int"),
    ];
    cpp::declarations::<Cuda>(&own, include_str!("driver.cpp"))
}

/// The functions that this driver alone has.
struct Cuda {
    device_get: unsafe extern "C" fn(*mut c_int, c_int) -> Status,
    context_current: unsafe extern "C" fn(*mut Handle) -> Status,
    context_device: unsafe extern "C" fn(*mut c_int) -> Status,
    context_set: unsafe extern "C" fn(Handle) -> Status,
    primary_retain: unsafe extern "C" fn(*mut Handle, c_int) -> Status,
    function_set: unsafe extern "C" fn(Handle, c_int, c_int) -> Status,
    /// From CUDA 12 on.
    map_encode: Option<Encode>,
    programmatic: Option<programmatic::Api>,
}

impl Cuda {
    /// Returns the number of the current device.
    fn device(calls: &Calls<Cuda>) -> Result<c_int> {
        let mut device = 0;
        // SAFETY: the pointer is to an int.
        calls.check("cuCtxGetDevice", unsafe {
            (calls.dialect().context_device)(&mut device)
        })?;
        Ok(device)
    }
}

/// The driver's description of a launch in a graph: `CUDA_KERNEL_NODE_PARAMS` of the first version.
#[repr(C)]
struct Node {
    function: Handle,
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared: c_uint,
    parameters: *mut Handle,
    extra: *mut Handle,
}

impl Dialect for Cuda {
    const NAME: &'static str = "CUDA";
    const LIBRARIES: &'static [&'static str] = &["libcuda.so.1"];
    const MISSING: &'static str = "install NVIDIA's driver";
    const ILLEGAL_ACCESS: &'static str = "; some kernel before this call is at fault, `CUDA_LAUNCH_BLOCKING=1` tells which; \
        this process cannot use the device any more";
    const SYMBOLS: Symbols = Symbols {
        init: "cuInit",
        version: "cuDriverGetVersion",
        error_name: "cuGetErrorName",
        error_text: "cuGetErrorString",
        device_count: "cuDeviceGetCount",
        device_attribute: "cuDeviceGetAttribute",
        synchronize_all: "cuCtxSynchronize",
        module_load: "cuModuleLoadData",
        module_unload: "cuModuleUnload",
        module_function: "cuModuleGetFunction",
        function_attribute: "cuFuncGetAttribute",
        launch: "cuLaunchKernel",
        allocate: "cuMemAlloc_v2",
        free: "cuMemFree_v2",
        copy: "cuMemcpyDtoDAsync_v2",
        to_device: "cuMemcpyHtoD_v2",
        to_device_later: "cuMemcpyHtoDAsync_v2",
        fill: "cuMemsetD8_v2",
        fill_later: "cuMemsetD8Async",
        to_host: "cuMemcpyDtoH_v2",
        stream_create: "cuStreamCreate",
        stream_destroy: "cuStreamDestroy_v2",
        stream_synchronize: "cuStreamSynchronize",
        stream_wait: "cuStreamWaitEvent",
        stream_capturing: "cuStreamIsCapturing",
        capture_begin: "cuStreamBeginCapture_v2",
        capture_end: "cuStreamEndCapture",
        capture_mode: "cuThreadExchangeStreamCaptureMode",
        graph_create: "cuGraphCreate",
        graph_kernel: "cuGraphAddKernelNode",
        graph_instantiate: "cuGraphInstantiateWithFlags",
        graph_set: "cuGraphExecKernelNodeSetParams",
        graph_launch: "cuGraphLaunch",
        graph_destroy: "cuGraphDestroy",
        ready_destroy: "cuGraphExecDestroy",
        event_create: "cuEventCreate",
        event_record: "cuEventRecord",
        event_synchronize: "cuEventSynchronize",
        event_elapsed: "cuEventElapsedTime",
        event_destroy: "cuEventDestroy_v2",
    };
    /// `CU_LAUNCH_PARAM_END`.
    const PARAM_END: usize = 0;
    /// The driver refuses grids beyond its own limits.
    const MAX_THREADS: u64 = u64::MAX;
    type Node = Node;

    fn find(library: &Library) -> Result<Cuda> {
        let kind = Self::NAME;
        // SAFETY: the types are those of the driver's header for these symbols.
        unsafe {
            Ok(Cuda {
                device_get: function(library, "cuDeviceGet", kind)?,
                context_current: function(library, "cuCtxGetCurrent", kind)?,
                context_device: function(library, "cuCtxGetDevice", kind)?,
                context_set: function(library, "cuCtxSetCurrent", kind)?,
                primary_retain: function(library, "cuDevicePrimaryCtxRetain", kind)?,
                function_set: function(library, "cuFuncSetAttribute", kind)?,
                map_encode: function(library, "cuTensorMapEncodeTiled", kind).ok(),
                programmatic: programmatic::Api::of(library),
            })
        }
    }

    /// 13000 is 13.0.
    fn version(number: i32) -> String {
        format!("{}.{}", number / 1000, number % 1000 / 10)
    }

    fn context(calls: &Calls<Cuda>, device: i32) -> Result<Context> {
        let (mut handle, mut context): (_, Handle) = (0, std::ptr::null_mut());
        // SAFETY: the pointers are to an int and a handle.
        unsafe {
            calls.check(
                "cuDeviceGet",
                (calls.dialect().device_get)(&mut handle, device),
            )?;
            calls.check(
                "cuDevicePrimaryCtxRetain",
                (calls.dialect().primary_retain)(&mut context, handle),
            )?;
        }
        Ok(Context(context as usize))
    }

    fn current(calls: &Calls<Cuda>) -> Result<Option<Context>> {
        let mut context: Handle = std::ptr::null_mut();
        // SAFETY: the pointer is to a handle.
        calls.check("cuCtxGetCurrent", unsafe {
            (calls.dialect().context_current)(&mut context)
        })?;
        Ok((!context.is_null()).then_some(Context(context as usize)))
    }

    fn set_current(calls: &Calls<Cuda>, context: Option<Context>) -> Result<()> {
        let context = context.map_or(std::ptr::null_mut(), |c| c.0 as Handle);
        // SAFETY: contexts are primary ones, which stay; null is none.
        calls.check("cuCtxSetCurrent", unsafe {
            (calls.dialect().context_set)(context)
        })
    }

    fn properties(calls: &Calls<Cuda>) -> Result<Properties> {
        let device = Cuda::device(calls)?;
        let number = |which| calls.device_attribute(device, which);
        let (major, minor) = (number(MAJOR)?, number(MINOR)?);
        Ok(Properties {
            arch: format!("{major}{minor}"),
            major,
            minor,
            multiprocessors: number(MULTIPROCESSORS)?,
            resident_threads: number(RESIDENT_THREADS)?,
            registers: number(REGISTERS)?,
            shared_bytes: number(MAX_SHARED)?,
            l2_bytes: number(L2_BYTES)? as usize,
        })
    }

    fn permit_shared(
        calls: &Calls<Cuda>,
        function: Handle,
        symbol: &str,
        shared: u32,
    ) -> Result<()> {
        if shared <= SMALL_SHARED {
            return Ok(());
        }
        let limit = calls.device_attribute(Cuda::device(calls)?, MAX_SHARED)?;
        let fixed = calls.static_shared(function)?;
        if shared.saturating_add(fixed) > limit {
            return Err(Error::machine(format!(
                "`{symbol}` needs {shared} bytes of shared memory, the device has {limit}"
            )));
        }
        // SAFETY: the function is loaded.
        calls.check("cuFuncSetAttribute", unsafe {
            (calls.dialect().function_set)(function, MAX_DYNAMIC_SHARED, (limit - fixed) as c_int)
        })
    }

    fn node(p: &Parameters<'_>) -> Node {
        Node {
            function: p.launch.function,
            grid: p.launch.grid,
            block: [p.launch.threads, 1, 1],
            shared: p.launch.shared,
            parameters: p.each,
            extra: p.all,
        }
    }

    unsafe fn launch_overlapped(&self, p: &Parameters<'_>, stream: Stream) -> Option<Status> {
        // SAFETY: the caller's promise.
        (self.programmatic.as_ref()).map(|api| unsafe { api.launch(p, stream) })
    }

    unsafe fn order_overlapped(
        &self,
        graph: Handle,
        before: Handle,
        after: Handle,
    ) -> Option<Status> {
        // SAFETY: the caller's promise.
        (self.programmatic.as_ref()).map(|api| unsafe { api.order(graph, before, after) })
    }

    fn can_overlap(&self) -> bool {
        self.programmatic.is_some()
    }

    fn tensor_map(calls: &Calls<Cuda>, tensor: &Tensor, address: DevicePtr) -> Result<TensorMap> {
        let encode = calls.dialect().map_encode.ok_or_else(|| {
            let version = calls.version().unwrap_or_else(|_| Self::NAME.into());
            Error::machine(format!(
                "the driver for {version} is too old: it has no `cuTensorMapEncodeTiled`"
            ))
        })?;
        let mut map = TensorMap([0; TensorMap::BYTES]);
        let steps = [1u32; MAX_RANK];
        // SAFETY: the map is aligned as the driver wants it; the lists hold as many numbers as any rank needs. The address is
        // written down, not read.
        calls.check("cuTensorMapEncodeTiled", unsafe {
            encode(
                &mut map,
                tensor.element as c_int,
                tensor.rank as u32,
                address as *mut c_void,
                tensor.sizes.as_ptr(),
                tensor.strides.as_ptr(),
                tensor.block.as_ptr(),
                steps.as_ptr(),
                INTERLEAVE,
                tensor.swizzle as c_int,
                PROMOTION,
                FILL,
            )
        })?;
        Ok(map)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_have_the_layout_of_the_header() {
        assert_eq!(std::mem::size_of::<Node>(), 56);
        assert_eq!(std::mem::offset_of!(Node, shared), 32);
        assert_eq!(std::mem::offset_of!(Node, parameters), 40);
        assert_eq!(std::mem::offset_of!(Node, extra), 48);
    }

    #[test]
    fn versions_are_read() {
        assert_eq!(
            (Cuda::version(12080), Cuda::version(13000)),
            ("12.8".into(), "13.0".into())
        );
    }

    #[test]
    fn a_machine_without_a_driver_says_so() {
        if let Err(e) = driver() {
            let text = e.to_string();
            assert!(text.contains("no CUDA driver: `libcuda.so.1`"), "{text}");
            assert!(text.contains("install NVIDIA's driver"), "{text}");
        }
    }
}
