//! Work issued on a stream, kernels of libraries included, recorded to be issued again as one.
//!
//! Unlike a [`super::List`], a recording cannot be updated: it is valid for the addresses that it was made with.

use super::{Driver, Handle, Stream};
use inrush_base::{Error, Result};
use std::cell::Cell;
use std::ffi::c_int;
use std::sync::{Mutex, PoisonError};

/// `CU_STREAM_NON_BLOCKING`.
pub(super) const NON_BLOCKING: u32 = 1;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`: what other threads do, and libraries that load a kernel, does no harm.
const RELAXED: c_int = 2;

/// Held while work is recorded: the driver refuses to wait for a whole context meanwhile.
static RECORDS: Mutex<()> = Mutex::new(());

thread_local! {
    /// This thread records.
    static RECORDING: Cell<bool> = const { Cell::new(false) };
}

/// Ends the recording of this thread when it is dropped.
struct Ends;

impl Drop for Ends {
    fn drop(&mut self) {
        RECORDING.set(false);
    }
}

/// Runs `f` while no thread records.
///
/// # Errors
/// An internal error where this thread records, and those of `f`.
pub(super) fn while_nothing_is_recorded<T>(f: impl FnOnce() -> Result<T>) -> Result<T> {
    if RECORDING.get() {
        return Err(Error::internal(
            "a wait for the device while work is recorded",
        ));
    }
    let _held = RECORDS.lock().unwrap_or_else(PoisonError::into_inner);
    f()
}

/// A recording that can be issued on any stream of its context, by one thread at a time.
pub struct Recording {
    driver: Driver,
    ready: Handle,
}

// SAFETY: handles of the driver may be used from any thread with the same context.
unsafe impl Send for Recording {}

impl Driver {
    /// A stream of its own, which lives as long as the process.
    pub fn stream(&self) -> Result<Stream> {
        let mut stream: Handle = std::ptr::null_mut();
        // SAFETY: the pointer is to a handle.
        self.check("cuStreamCreate", unsafe {
            (self.0.stream_create)(&mut stream, NON_BLOCKING)
        })?;
        Ok(Stream(stream as usize))
    }

    /// Records what `issue` issues on `stream`, none of which runs.
    ///
    /// # Errors
    /// The driver's, and those of `issue`.
    pub fn record(&self, stream: Stream, issue: impl FnOnce() -> Result<()>) -> Result<Recording> {
        while_nothing_is_recorded(|| {
            RECORDING.set(true);
            // A panic ends the recording too.
            let _ends = Ends;
            self.record_alone(stream, issue)
        })
    }

    fn record_alone(
        &self,
        stream: Stream,
        issue: impl FnOnce() -> Result<()>,
    ) -> Result<Recording> {
        // SAFETY: the caller vouches for the stream.
        self.check("cuStreamBeginCapture", unsafe {
            (self.0.capture_begin)(stream.0 as Handle, RELAXED)
        })?;
        let issued = issue();
        let mut graph: Handle = std::ptr::null_mut();
        // SAFETY: likewise; the pointer is to a handle.
        let ended = unsafe { (self.0.capture_end)(stream.0 as Handle, &mut graph) };
        let mut recording = Recording {
            driver: self.clone(),
            ready: std::ptr::null_mut(),
        };
        let made = issued
            .and_then(|()| self.check("cuStreamEndCapture", ended))
            .and_then(|()| {
                // SAFETY: the graph is whole.
                self.check("cuGraphInstantiate", unsafe {
                    (self.0.graph_instantiate)(&mut recording.ready, graph, 0)
                })
            });
        if !graph.is_null() {
            // SAFETY: the graph is not used any more; what is ready has a copy.
            _ = unsafe { (self.0.graph_destroy)(graph) };
        }
        made.map(|()| recording)
    }
}

impl Recording {
    /// Issues all of it.
    ///
    /// # Safety
    /// Addresses that it was recorded with are valid on the device until the work is done, and the stream belongs to the
    /// current context.
    pub unsafe fn launch(&self, stream: Stream) -> Result<()> {
        // SAFETY: by the caller's contract.
        let status = unsafe { (self.driver.0.graph_launch)(self.ready, stream.0 as Handle) };
        self.driver.check("cuGraphLaunch", status)
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        if !self.ready.is_null() {
            // SAFETY: nobody else has the handle; the driver keeps what still runs until it is done.
            _ = unsafe { (self.driver.0.list_destroy)(self.ready) };
        }
    }
}
