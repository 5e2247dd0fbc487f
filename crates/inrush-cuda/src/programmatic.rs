//! Programmatic dependent launch: launches that begin before the kernel before them has ended. The kernel waits by itself.
//!
//! The driver's functions for it exist from CUDA 12.3 on. An older driver launches such kernels one after the other.

use inrush_driver::calls::{Parameters, Status};
use inrush_driver::{Handle, Stream};
use libloading::Library;
use std::ffi::{c_int, c_uint, c_void};

/// `CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION`.
const PROGRAMMATIC_STREAM_SERIALIZATION: c_int = 6;

/// The driver's `CUlaunchAttribute`.
#[repr(C, align(8))]
struct Attribute {
    id: c_int,
    _padding: c_int,
    /// The first word of a union of 64 bytes.
    value: c_int,
    _rest: [c_int; 15],
}

/// The driver's `CUlaunchConfig`.
#[repr(C)]
struct Config {
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared: c_uint,
    stream: Handle,
    attributes: *const Attribute,
    count: c_uint,
}

/// The driver's `CUgraphEdgeData`.
#[repr(C)]
struct Edge {
    from_port: u8,
    to_port: u8,
    kind: u8,
    _reserved: [u8; 5],
}

/// `CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC` and `CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC`.
const PROGRAMMATIC: Edge = Edge {
    from_port: 1,
    to_port: 0,
    kind: 1,
    _reserved: [0; 5],
};

type Launch = unsafe extern "C" fn(*const Config, Handle, *mut Handle, *mut Handle) -> Status;
type AddDependencies =
    unsafe extern "C" fn(Handle, *const Handle, *const Handle, *const c_void, usize) -> Status;

/// The functions of a driver that has them.
pub(super) struct Api {
    launch: Launch,
    add_dependencies: AddDependencies,
}

impl Api {
    pub(super) fn of(library: &Library) -> Option<Api> {
        // SAFETY: the types are those of the driver's header for these symbols.
        unsafe {
            Some(Api {
                launch: *library.get(b"cuLaunchKernelEx\0").ok()?,
                add_dependencies: *library.get(b"cuGraphAddDependencies_v2\0").ok()?,
            })
        }
    }

    /// Starts a grid that may overlap with the kernel before it in the stream.
    ///
    /// # Safety
    /// Those of [`inrush_driver::Api::launch`].
    pub(super) unsafe fn launch(&self, p: &Parameters<'_>, stream: Stream) -> Status {
        let attribute = Attribute {
            id: PROGRAMMATIC_STREAM_SERIALIZATION,
            _padding: 0,
            value: 1,
            _rest: [0; 15],
        };
        let config = Config {
            grid: p.launch.grid,
            block: [p.launch.threads, 1, 1],
            shared: p.launch.shared,
            stream: stream.0 as Handle,
            attributes: &attribute,
            count: 1,
        };
        // SAFETY: by the caller's contract; the driver copies what it is shown.
        unsafe { (self.launch)(&config, p.launch.function, p.each, p.all) }
    }

    /// Orders two kernels of a graph, the second of which may overlap with the first.
    ///
    /// # Safety
    /// The handles are of the graph and of kernels in it.
    pub(super) unsafe fn order(&self, graph: Handle, before: Handle, after: Handle) -> Status {
        let edge: *const Edge = &PROGRAMMATIC;
        // SAFETY: by the caller's contract; the driver copies what it is shown.
        unsafe { (self.add_dependencies)(graph, &before, &after, edge.cast(), 1) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::{offset_of, size_of};

    #[test]
    fn structures_have_the_layout_of_the_header() {
        assert_eq!(
            (size_of::<Attribute>(), offset_of!(Attribute, value)),
            (72, 8)
        );
        assert_eq!(size_of::<Config>(), 56);
        assert_eq!(offset_of!(Config, stream), 32);
        assert_eq!(offset_of!(Config, attributes), 40);
        assert_eq!(size_of::<Edge>(), 8);
    }
}
