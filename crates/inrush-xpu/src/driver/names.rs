//! Level Zero's functions, structures and numbers, as its header `ze_api.h` has them.

use inrush_base::{Error, Result};
use inrush_driver::Handle;
use libloading::Library;
use std::ffi::{c_char, c_void};
use std::ptr::null;

/// `ze_result_t`; 0 for success.
pub(super) type Status = u32;

macro_rules! functions {
    ($(#[$doc:meta])* $all:ident: $($name:ident = $symbol:literal ($($arg:ty),*);)*) => {
        $(#[$doc])*
        #[derive(Clone)]
        pub(super) struct $all {
            $(pub(super) $name: unsafe extern "C" fn($($arg),*) -> Status,)*
        }

        impl $all {
            /// Looks the functions up.
            ///
            /// # Errors
            /// A machine error that names the one that is missing.
            pub(super) fn find(library: &Library) -> Result<$all> {
                Ok($all {
                    $(
                        // SAFETY: the types are those of the header for these symbols.
                        $name: *unsafe { library.get(concat!($symbol, "\0").as_bytes()) }
                            .map_err(|_| Error::machine(concat!(
                                "Level Zero is too old: it has no `", $symbol, "`"
                            )))?,
                    )*
                })
            }
        }
    };
}

functions! {
    /// The functions, looked up.
    Functions:
    init = "zeInit" (u32);
    driver_get = "zeDriverGet" (*mut u32, *mut Handle);
    api_version = "zeDriverGetApiVersion" (Handle, *mut u32);
    device_get = "zeDeviceGet" (Handle, *mut u32, *mut Handle);
    device_properties = "zeDeviceGetProperties" (Handle, *mut DeviceProperties);
    compute_properties = "zeDeviceGetComputeProperties" (Handle, *mut DeviceComputeProperties);
    cache_properties = "zeDeviceGetCacheProperties" (Handle, *mut u32, *mut DeviceCacheProperties);
    context_create = "zeContextCreate" (Handle, *const ContextDesc, *mut Handle);
    module_create = "zeModuleCreate" (Handle, Handle, *const ModuleDesc, *mut Handle, *mut Handle);
    module_destroy = "zeModuleDestroy" (Handle);
    log_text = "zeModuleBuildLogGetString" (Handle, *mut usize, *mut c_char);
    log_destroy = "zeModuleBuildLogDestroy" (Handle);
    kernel_create = "zeKernelCreate" (Handle, *const KernelDesc, *mut Handle);
    kernel_destroy = "zeKernelDestroy" (Handle);
    kernel_properties = "zeKernelGetProperties" (Handle, *mut KernelProperties);
    group_size = "zeKernelSetGroupSize" (Handle, u32, u32, u32);
    set_argument = "zeKernelSetArgumentValue" (Handle, u32, usize, *const c_void);
    list_create = "zeCommandListCreateImmediate" (Handle, Handle, *const CommandQueueDesc, *mut Handle);
    list_destroy = "zeCommandListDestroy" (Handle);
    list_synchronize = "zeCommandListHostSynchronize" (Handle, u64);
    append_launch = "zeCommandListAppendLaunchKernel" (Handle, Handle, *const [u32; 3], Handle, u32, *mut Handle);
    append_copy = "zeCommandListAppendMemoryCopy" (Handle, *mut c_void, *const c_void, usize, Handle, u32, *mut Handle);
    append_fill = "zeCommandListAppendMemoryFill" (Handle, *mut c_void, *const c_void, usize, usize, Handle, u32, *mut Handle);
    append_signal = "zeCommandListAppendSignalEvent" (Handle, Handle);
    append_wait = "zeCommandListAppendWaitOnEvents" (Handle, u32, *mut Handle);
    allocate = "zeMemAllocDevice" (Handle, *const MemoryDesc, usize, usize, Handle, *mut Handle);
    free = "zeMemFree" (Handle, *mut c_void);
    memory_properties = "zeMemGetAllocProperties" (Handle, *const c_void, *mut MemoryProperties, *mut Handle);
    pool_create = "zeEventPoolCreate" (Handle, *const EventPoolDesc, u32, *mut Handle, *mut Handle);
    pool_destroy = "zeEventPoolDestroy" (Handle);
    event_create = "zeEventCreate" (Handle, *const EventDesc, *mut Handle);
    event_destroy = "zeEventDestroy" (Handle);
}

functions! {
    /// Functions that tell of lists that others made, and order work on them; looked up.
    Lists:
    is_immediate = "zeCommandListIsImmediate" (Handle, *mut u8);
    context = "zeCommandListGetContextHandle" (Handle, *mut Handle);
    device = "zeCommandListGetDeviceHandle" (Handle, *mut Handle);
    append_barrier = "zeCommandListAppendBarrier" (Handle, Handle, u32, *mut Handle);
}

/// Returns the function that tells the flags of an immediate list, which older loaders lack.
pub(super) fn flags_of(library: &Library) -> Option<ListFlags> {
    // SAFETY: the type is that of the header for this symbol.
    let found = unsafe { library.get::<ListFlags>(b"zeCommandListImmediateGetFlags\0") };
    found.ok().map(|f| *f)
}

/// The type of `zeCommandListImmediateGetFlags`.
pub(super) type ListFlags = unsafe extern "C" fn(Handle, *mut u32) -> Status;

/// Declares structures that begin with their number and a pointer to extensions; all else is zero at first.
macro_rules! structures {
    ($($(#[$doc:meta])* $name:ident = $number:literal { $($field:ident: $ty:ty = $value:expr,)* })*) => {
        $(
            $(#[$doc])*
            #[derive(Copy, Clone)]
            #[repr(C)]
            pub(super) struct $name {
                pub(super) kind: u32,
                pub(super) next: *const c_void,
                $(pub(super) $field: $ty,)*
            }

            impl Default for $name {
                fn default() -> Self {
                    $name { kind: $number, next: null(), $($field: $value,)* }
                }
            }
        )*
    };
}

structures! {
    /// `ze_context_desc_t`.
    ContextDesc = 0xd { flags: u32 = 0, }
    /// `ze_command_queue_desc_t`.
    CommandQueueDesc = 0xe { ordinal: u32 = 0, index: u32 = 0, flags: u32 = 0, mode: u32 = 0, priority: u32 = 0, }
    /// `ze_event_pool_desc_t`.
    EventPoolDesc = 0x10 { flags: u32 = 0, count: u32 = 0, }
    /// `ze_event_desc_t`.
    EventDesc = 0x11 { index: u32 = 0, signal: u32 = 0, wait: u32 = 0, }
    /// `ze_device_mem_alloc_desc_t`.
    MemoryDesc = 0x15 { flags: u32 = 0, ordinal: u32 = 0, }
    /// `ze_memory_allocation_properties_t`; a type of 0 is memory that the context does not know.
    MemoryProperties = 0x17 { memory_type: u32 = 0, id: u64 = 0, page: u64 = 0, }
    /// `ze_module_desc_t`.
    ModuleDesc = 0x1b {
        format: u32 = 0,
        input_size: usize = 0,
        input: *const u8 = null(),
        build_flags: *const c_char = null(),
        constants: *const c_void = null(),
    }
    /// `ze_kernel_desc_t`.
    KernelDesc = 0x1d { flags: u32 = 0, name: *const c_char = null(), }
    /// `ze_kernel_properties_t`.
    KernelProperties = 0x1e {
        arguments: u32 = 0,
        group: [u32; 3] = [0; 3],
        sub_groups: u32 = 0,
        lanes: u32 = 0,
        max_lanes: u32 = 0,
        max_sub_groups: u32 = 0,
        local_bytes: u32 = 0,
        private_bytes: u32 = 0,
        spilled: u32 = 0,
        uuid: [u8; 32] = [0; 32],
    }
    /// `ze_device_properties_t`.
    DeviceProperties = 0x3 {
        device_type: u32 = 0,
        vendor_id: u32 = 0,
        device_id: u32 = 0,
        flags: u32 = 0,
        subdevice: u32 = 0,
        clock: u32 = 0,
        max_alloc: u64 = 0,
        contexts: u32 = 0,
        priority: u32 = 0,
        threads_per_engine: u32 = 0,
        lanes: u32 = 0,
        engines_per_core: u32 = 0,
        cores_per_slice: u32 = 0,
        slices: u32 = 0,
        timer: u64 = 0,
        bits: [u32; 2] = [0; 2],
        uuid: [u8; 16] = [0; 16],
        name: [u8; 256] = [0; 256],
    }
    /// `ze_device_compute_properties_t`.
    DeviceComputeProperties = 0x4 {
        max_group: [u32; 4] = [0; 4],
        max_count: [u32; 3] = [0; 3],
        max_shared: u32 = 0,
        sub_group_count: u32 = 0,
        sub_groups: [u32; 8] = [0; 8],
    }
    /// `ze_device_cache_properties_t`.
    DeviceCacheProperties = 0x9 { flags: u32 = 0, bytes: usize = 0, }
}

/// Names of statuses, with advice where there is some.
pub(super) const STATUSES: &[(Status, &str)] = &[
    (
        0x7000_0001,
        "the device is lost: some kernel before this call is at fault; this process cannot use the device any more",
    ),
    (0x7000_0002, "too little memory on the host"),
    (0x7000_0003, "too little memory on the device"),
    (0x7000_0004, "a module cannot be built"),
    (
        0x7800_0001,
        "not initialised: no GPU, or no right to use it (the group `render`)",
    ),
    (0x7800_0002, "this version is not supported"),
    (0x7800_0003, "this feature is not supported"),
    (0x7800_0004, "invalid argument"),
    (0x7800_0011, "invalid name of a kernel"),
    (0x7800_000f, "invalid native binary"),
];

/// Returns the name of a status.
pub(super) fn text(status: Status) -> &'static str {
    let found = STATUSES.iter().find(|(n, _)| *n == status);
    found.map_or("failed", |(_, text)| text)
}

/// Returns the architecture of a device by the number of its product; `unknown` for others than those of the presets.
pub(super) fn arch(device_id: u32) -> &'static str {
    match device_id {
        // Data Center GPU Max.
        0x0bd0..=0x0bdb | 0x0b69 | 0x0b6e => "pvc",
        // Arc B-series.
        0xe202..=0xe223 => "bmg",
        // Arc A-series.
        0x5690..=0x56c2 => "dg2",
        _ => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::{offset_of, size_of};

    #[test]
    fn structures_have_the_layout_of_the_header() {
        assert_eq!(size_of::<ContextDesc>(), 24);
        assert_eq!(
            (
                size_of::<CommandQueueDesc>(),
                offset_of!(CommandQueueDesc, flags)
            ),
            (40, 24)
        );
        assert_eq!(offset_of!(CommandQueueDesc, mode), 28);
        assert_eq!(
            (size_of::<EventPoolDesc>(), offset_of!(EventPoolDesc, count)),
            (24, 20)
        );
        assert_eq!(
            (size_of::<EventDesc>(), offset_of!(EventDesc, wait)),
            (32, 24)
        );
        assert_eq!(
            (size_of::<MemoryDesc>(), offset_of!(MemoryDesc, ordinal)),
            (24, 20)
        );
        assert_eq!(
            (
                size_of::<MemoryProperties>(),
                offset_of!(MemoryProperties, memory_type)
            ),
            (40, 16)
        );
        assert_eq!(
            (size_of::<ModuleDesc>(), offset_of!(ModuleDesc, input_size)),
            (56, 24)
        );
        assert_eq!(
            (size_of::<KernelDesc>(), offset_of!(KernelDesc, name)),
            (32, 24)
        );
        assert_eq!(
            (
                size_of::<KernelProperties>(),
                offset_of!(KernelProperties, spilled)
            ),
            (96, 56)
        );
        assert_eq!(offset_of!(KernelProperties, lanes), 36);
        assert_eq!(
            (
                size_of::<DeviceProperties>(),
                offset_of!(DeviceProperties, name)
            ),
            (368, 112)
        );
        assert_eq!(offset_of!(DeviceProperties, device_id), 24);
        assert_eq!(offset_of!(DeviceProperties, threads_per_engine), 56);
        assert_eq!(offset_of!(DeviceProperties, slices), 72);
        let compute = size_of::<DeviceComputeProperties>();
        assert_eq!(
            (compute, offset_of!(DeviceComputeProperties, max_shared)),
            (88, 44)
        );
        assert_eq!(offset_of!(DeviceComputeProperties, sub_groups), 52);
        let cache = size_of::<DeviceCacheProperties>();
        assert_eq!((cache, offset_of!(DeviceCacheProperties, bytes)), (32, 24));
    }

    #[test]
    fn products_have_architectures() {
        let archs = [0x0bd5, 0xe20b, 0x56a0, 0x1234].map(arch);
        assert_eq!(archs, ["pvc", "bmg", "dg2", "unknown"]);
    }
}
