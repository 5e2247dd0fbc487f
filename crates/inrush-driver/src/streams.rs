//! Streams, their order among each other, and the context of the calling thread.

use crate::recording::while_nothing_is_recorded;
use crate::{Context, DevicePtr, Driver, Handle, Stream, Symbols};
use inrush_base::Result;

/// A context that is current on the calling thread until this is dropped. The one before is current again then.
///
/// Other users of the driver in the process (PyTorch, most of all) count on their context staying current.
pub struct Entered {
    driver: Driver,
    before: Option<Context>,
    /// Another context was made current, or none was there.
    changed: bool,
    /// Contexts are current on one thread.
    _thread: std::marker::PhantomData<*const ()>,
}

/// A stream that is destroyed when this is dropped.
pub struct OwnedStream {
    driver: Driver,
    stream: Stream,
}

/// A point in the work of a stream, which other streams wait for.
pub struct Marker {
    driver: Driver,
    handle: Handle,
}

// SAFETY: events may be used from any thread with the same context.
unsafe impl Send for Marker {}
// SAFETY: likewise.
unsafe impl Sync for Marker {}

impl Driver {
    /// Makes a context current on the calling thread until the result is dropped.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn enter(&self, context: Context) -> Result<Entered> {
        let before = self.api().current()?;
        let changed = before != Some(context);
        if changed {
            self.set_current(context)?;
        }
        Ok(Entered {
            driver: self.clone(),
            before,
            changed,
            _thread: std::marker::PhantomData,
        })
    }

    /// Takes work for a stream of the host process that is an object of another library: see [`crate::Api::adopt`].
    ///
    /// # Errors
    /// An unsupported error where work would be in no order with the process's own.
    ///
    /// # Safety
    /// The stream is one of the process's for its device of this number, and stays until the work that is issued on it is done.
    pub unsafe fn adopt(&self, device: i32, stream: Stream, symbols: Symbols<'_>) -> Result<()> {
        // SAFETY: by the caller's contract.
        unsafe { self.api().adopt(device, stream, symbols) }
    }

    /// Returns true if work was issued on an adopted stream since this was asked last: see [`crate::Api::take_issued`].
    pub fn take_issued(&self, stream: Stream) -> bool {
        self.api().take_issued(stream)
    }

    /// Makes a stream that does not wait for others, in the current context.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn own_stream(&self) -> Result<OwnedStream> {
        Ok(OwnedStream {
            stream: self.api().stream()?,
            driver: self.clone(),
        })
    }

    /// Has what the calling thread does from now on, such as allocations, leave captures of other threads valid: those that were begun
    /// in the global mode end when any thread does so.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn leave_captures_alone(&self) -> Result<()> {
        self.api().leave_captures_alone()
    }

    /// Makes a marker, which stands for no work yet.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn marker(&self) -> Result<Marker> {
        Ok(Marker {
            handle: self.api().event(false)?,
            driver: self.clone(),
        })
    }

    /// Waits until all work in the current context is done, and until no thread records.
    ///
    /// # Errors
    /// Those of the driver, and of work that failed.
    pub fn synchronize_all(&self) -> Result<()> {
        while_nothing_is_recorded(|| self.api().synchronize_all())
    }

    /// Copies bytes to the device, in the order of the stream's work.
    ///
    /// # Safety
    /// So many bytes at the address are the caller's until the work is done, and so are those of `data`: the driver may read them
    /// after this returns, if their pages are pinned.
    pub unsafe fn write_later(&self, to: DevicePtr, data: &[u8], stream: Stream) -> Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        // SAFETY: by the caller's contract.
        unsafe { self.api().write_later(to, data, stream) }
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        if self.changed {
            // A device that failed is of no use any more.
            _ = self.driver.api().set_current(self.before);
        }
    }
}

impl OwnedStream {
    /// Returns the stream.
    pub fn stream(&self) -> Stream {
        self.stream
    }
}

impl Drop for OwnedStream {
    fn drop(&mut self) {
        // SAFETY: the stream is used by its owner alone.
        unsafe { self.driver.api().destroy_stream(self.stream) };
    }
}

impl Marker {
    /// Has the marker stand for all work that was issued on the stream so far.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn record(&self, stream: Stream) -> Result<()> {
        // SAFETY: the event exists.
        unsafe { self.driver.api().record_event(self.handle, stream) }
    }

    /// Has later work of the stream wait for what the marker stands for.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn wait(&self, stream: Stream) -> Result<()> {
        // SAFETY: the event exists.
        unsafe { self.driver.api().wait_for(self.handle, stream) }
    }
}

impl Drop for Marker {
    fn drop(&mut self) {
        // SAFETY: the event is not used any more.
        unsafe { self.driver.api().destroy_event(self.handle) };
    }
}
