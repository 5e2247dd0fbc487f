//! Launches that follow one another, made ready as one: the host hands over all of them in the time of a single launch.
//!
//! The driver calls it a graph. It holds what each launch was made with; a launch whose arguments changed is set again before
//! the list is issued, which costs the host a small part of a launch.

use crate::{Driver, Handle, Kernel, Stream};
use inrush_base::Result;
use std::sync::Arc;

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
        list.graph = self.api().graph()?;
        for (kernel, grid, mut arguments) in launches {
            let last = list.nodes.last().copied();
            // SAFETY: by the caller's contract.
            let node =
                unsafe { (self.api()).add(list.graph, last, &mut kernel.of(grid, &mut arguments)) };
            list.nodes.push(node?);
            list.kernels.push(kernel);
        }
        // SAFETY: the graph is whole.
        list.ready = unsafe { self.api().instantiate(list.graph) }?;
        Ok(list)
    }
}

impl List {
    /// Has launch `at` take other arguments from now on.
    ///
    /// # Safety
    /// They are those of the launch's kernel.
    pub unsafe fn set(&mut self, at: usize, grid: [u32; 3], arguments: &mut [u8]) -> Result<()> {
        let mut launch = self.kernels[at].of(grid, arguments);
        // SAFETY: by the caller's contract.
        unsafe { (self.driver.api()).set(self.ready, self.nodes[at], &mut launch) }
    }

    /// Issues all launches.
    ///
    /// # Safety
    /// Addresses among the arguments are valid on the device until the work is done, and the stream belongs to the current
    /// context.
    pub unsafe fn launch(&self, stream: Stream) -> Result<()> {
        // SAFETY: by the caller's contract.
        unsafe { self.driver.api().replay(self.ready, stream) }
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: nothing else has the handles.
        unsafe {
            if !self.ready.is_null() {
                self.driver.api().destroy_ready(self.ready);
            }
            if !self.graph.is_null() {
                self.driver.api().destroy_graph(self.graph);
            }
        }
    }
}
