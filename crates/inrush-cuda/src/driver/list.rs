//! Launches that follow one another, made ready as one: the host hands over all of them in the time of a single launch.
//!
//! The driver calls it a graph. It holds what each launch was made with; a launch whose arguments changed is set again before
//! the list is issued, which costs the host a small part of a launch.

use super::{Driver, Handle, Kernel, Stream};
use inrush_base::Result;
use std::ffi::{c_uint, c_void};
use std::sync::Arc;

/// The driver's description of a launch in a graph.
#[repr(C)]
pub(super) struct Node {
    function: Handle,
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared: c_uint,
    parameters: *mut Handle,
    extra: *mut Handle,
}

/// A list that can be issued on any stream of its context, by one thread at a time.
pub struct List {
    driver: Driver,
    graph: Handle,
    ready: Handle,
    nodes: Vec<Handle>,
    /// Keeps the nodes' kernels loaded.
    kernels: Vec<Arc<Kernel>>,
}

// SAFETY: handles of the driver may be used from any thread with the same context.
unsafe impl Send for List {}

/// Calls `f` with the driver's description of a launch.
fn describe<T>(
    kernel: &Kernel,
    grid: [u32; 3],
    arguments: &mut [u8],
    f: impl FnOnce(*const Node) -> T,
) -> T {
    kernel.hand_over(arguments, |parameters, extra| {
        let node = Node {
            function: kernel.function,
            grid,
            block: [kernel.threads, 1, 1],
            shared: kernel.shared,
            parameters,
            extra,
        };
        f(&node)
    })
}

impl Driver {
    /// Makes a list of launches, each after the one before: kernels, grids, arguments.
    ///
    /// # Errors
    /// The driver's, for lack of memory most of all.
    ///
    /// # Safety
    /// The arguments are those of the kernels, in order; no grid is empty.
    pub unsafe fn list(
        &self,
        launches: impl Iterator<Item = (Arc<Kernel>, [u32; 3], Vec<u8>)>,
    ) -> Result<List> {
        let mut list = List {
            driver: self.clone(),
            graph: std::ptr::null_mut(),
            ready: std::ptr::null_mut(),
            nodes: Vec::new(),
            kernels: Vec::new(),
        };
        // SAFETY: the pointer is to a handle; the flags must be 0.
        self.check("cuGraphCreate", unsafe {
            (self.0.graph_create)(&mut list.graph, 0)
        })?;
        for (kernel, grid, mut arguments) in launches {
            let mut node: Handle = std::ptr::null_mut();
            let last = list.nodes.last().copied();
            let overlapped = (self.0.programmatic.as_ref()).filter(|_| kernel.programmatic);
            let before = match (&last, overlapped) {
                (Some(last), None) => std::ptr::from_ref(last),
                _ => std::ptr::null(),
            };
            let status = describe(&kernel, grid, &mut arguments, |d| {
                // SAFETY: by the caller's contract; the driver copies what it is shown.
                unsafe {
                    (self.0.graph_kernel)(
                        &mut node,
                        list.graph,
                        before,
                        usize::from(!before.is_null()),
                        d.cast::<c_void>(),
                    )
                }
            });
            self.check("cuGraphAddKernelNode", status)?;
            if let (Some(last), Some(api)) = (last, overlapped) {
                // SAFETY: both are kernels of this graph.
                let status = unsafe { api.order(list.graph, last, node) };
                self.check("cuGraphAddDependencies", status)?;
            }
            list.nodes.push(node);
            list.kernels.push(kernel);
        }
        // SAFETY: the graph is whole.
        self.check("cuGraphInstantiate", unsafe {
            (self.0.graph_instantiate)(&mut list.ready, list.graph, 0)
        })?;
        Ok(list)
    }
}

impl List {
    /// Has launch `at` take other arguments from now on.
    ///
    /// # Safety
    /// They are those of the launch's kernel.
    pub unsafe fn set(&mut self, at: usize, grid: [u32; 3], arguments: &mut [u8]) -> Result<()> {
        let status = describe(&self.kernels[at], grid, arguments, |d| {
            // SAFETY: by the caller's contract; the driver copies what it is shown.
            unsafe { (self.driver.0.graph_set)(self.ready, self.nodes[at], d.cast::<c_void>()) }
        });
        self.driver.check("cuGraphExecKernelNodeSetParams", status)
    }

    /// Issues all launches.
    ///
    /// # Safety
    /// Addresses among the arguments are valid on the device until the work is done, and the stream belongs to the current
    /// context.
    pub unsafe fn launch(&self, stream: Stream) -> Result<()> {
        // SAFETY: by the caller's contract.
        let status = unsafe { (self.driver.0.graph_launch)(self.ready, stream.0 as Handle) };
        self.driver.check("cuGraphLaunch", status)
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: nobody else has the handles; the driver keeps what still runs until it is done.
        unsafe {
            if !self.ready.is_null() {
                _ = (self.driver.0.list_destroy)(self.ready);
            }
            if !self.graph.is_null() {
                _ = (self.driver.0.graph_destroy)(self.graph);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_lie_as_the_driver_reads_them() {
        assert_eq!(std::mem::size_of::<Node>(), 56);
        assert_eq!(std::mem::offset_of!(Node, shared), 32);
        assert_eq!(std::mem::offset_of!(Node, parameters), 40);
        assert_eq!(std::mem::offset_of!(Node, extra), 48);
    }
}
