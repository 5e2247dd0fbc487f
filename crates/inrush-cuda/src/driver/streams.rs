//! Streams, their order among each other, and the context of the calling thread.

use super::recording::{NON_BLOCKING, while_nothing_is_recorded};
use super::{Context, DevicePtr, Driver, Handle, Stream};
use inrush_base::Result;

/// `CU_EVENT_DISABLE_TIMING`.
const WITHOUT_TIME: u32 = 2;

/// A context that is current on the calling thread until this is dropped. The one before is current again then.
///
/// Other users of the driver in the process (PyTorch, most of all) count on their context staying current.
pub struct Entered {
    driver: Driver,
    /// The context that was current; null for none.
    before: usize,
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
        let mut before: Handle = std::ptr::null_mut();
        // SAFETY: the pointer is to a handle.
        self.check("cuCtxGetCurrent", unsafe {
            (self.0.context_current)(&mut before)
        })?;
        let changed = before as usize != context.0;
        if changed {
            self.set_current(context)?;
        }
        Ok(Entered {
            driver: self.clone(),
            before: before as usize,
            changed,
            _thread: std::marker::PhantomData,
        })
    }

    /// Makes a stream that does not wait for others, in the current context.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn own_stream(&self) -> Result<OwnedStream> {
        let mut stream: Handle = std::ptr::null_mut();
        // SAFETY: the pointer is to a handle.
        self.check("cuStreamCreate", unsafe {
            (self.0.stream_create)(&mut stream, NON_BLOCKING)
        })?;
        Ok(OwnedStream {
            driver: self.clone(),
            stream: Stream(stream as usize),
        })
    }

    /// Makes a marker, which stands for no work yet.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn marker(&self) -> Result<Marker> {
        let mut handle: Handle = std::ptr::null_mut();
        // SAFETY: the pointer is to a handle.
        self.check("cuEventCreate", unsafe {
            (self.0.event_create)(&mut handle, WITHOUT_TIME)
        })?;
        Ok(Marker {
            driver: self.clone(),
            handle,
        })
    }

    /// Waits until all work in the current context is done, and until no thread records.
    ///
    /// # Errors
    /// Those of the driver, and of work that failed.
    pub fn synchronize_all(&self) -> Result<()> {
        while_nothing_is_recorded(|| {
            // SAFETY: the function takes nothing.
            self.check("cuCtxSynchronize", unsafe {
                (self.0.context_synchronize)()
            })
        })
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
        self.check("cuMemcpyHtoDAsync", unsafe {
            (self.0.to_device_later)(to, data.as_ptr().cast(), data.len(), stream.0 as Handle)
        })
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        if self.changed {
            // SAFETY: the context was current before, or there was none.
            _ = unsafe { (self.driver.0.context_set)(self.before as Handle) };
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
        // SAFETY: the stream is used by its owner alone; the driver finishes work that was issued.
        _ = unsafe { (self.driver.0.stream_destroy)(self.stream.0 as Handle) };
    }
}

impl Marker {
    /// Has the marker stand for all work that was issued on the stream so far.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn record(&self, stream: Stream) -> Result<()> {
        // SAFETY: the event exists; the caller vouches for the stream.
        self.driver.check("cuEventRecord", unsafe {
            (self.driver.0.event_record)(self.handle, stream.0 as Handle)
        })
    }

    /// Has later work of the stream wait for what the marker stands for.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn wait(&self, stream: Stream) -> Result<()> {
        // SAFETY: the event exists; the caller vouches for the stream.
        self.driver.check("cuStreamWaitEvent", unsafe {
            (self.driver.0.stream_wait)(stream.0 as Handle, self.handle, 0)
        })
    }
}

impl Drop for Marker {
    fn drop(&mut self) {
        // SAFETY: the event is not used any more; the driver keeps what work still needs of it.
        _ = unsafe { (self.driver.0.event_destroy)(self.handle) };
    }
}
