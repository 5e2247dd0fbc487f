//! Work issued on a stream, kernels of libraries included, recorded to be issued again as one.
//!
//! Unlike a [`crate::List`], a recording cannot be updated: it is valid for the addresses that it was made with.

use crate::{Driver, Handle, Stream};
use inrush_base::{Error, Result};
use std::cell::Cell;
use std::sync::{Mutex, PoisonError};

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
    /// Makes a stream of its own, which lives as long as the process.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn stream(&self) -> Result<Stream> {
        self.api().stream()
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
        let api = self.api();
        api.begin_capture(stream)?;
        let issued = issue();
        let ended = api.end_capture(stream);
        // SAFETY: the graph is whole.
        let ready = issued
            .and_then(|()| unsafe { api.instantiate(*ended.as_ref().map_err(Clone::clone)?) });
        if let Ok(graph) = ended
            && !graph.is_null()
        {
            // SAFETY: the graph is not used any more; what is ready has a copy.
            unsafe { api.destroy_graph(graph) };
        }
        Ok(Recording {
            driver: self.clone(),
            ready: ready?,
        })
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
        unsafe { self.driver.api().replay(self.ready, stream) }
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        // SAFETY: nothing else has the handle.
        unsafe { self.driver.api().destroy_ready(self.ready) };
    }
}
