//! Memory that a thread keeps between calls: accumulators, copies of operands.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::cell::UnsafeCell;

/// Cache line and widest vector.
pub(crate) const ALIGN: usize = 64;

/// A block of uninitialised bytes, aligned to [`ALIGN`].
pub(crate) struct Bytes {
    ptr: *mut u8,
    len: usize,
}

// SAFETY: plain memory with one owner.
unsafe impl Send for Bytes {}
// SAFETY: shared access only hands out the address.
unsafe impl Sync for Bytes {}

impl Bytes {
    pub(crate) const EMPTY: Bytes = Bytes {
        ptr: ALIGN as *mut u8,
        len: 0,
    };

    /// `None` where the size is beyond what can be allocated.
    pub(crate) fn new(len: usize) -> Option<Bytes> {
        if len == 0 {
            return Some(Bytes::EMPTY);
        }
        let layout = Layout::from_size_align(len, ALIGN).ok()?;
        // SAFETY: the layout is not empty.
        let ptr = unsafe { alloc(layout) };
        (!ptr.is_null()).then_some(Bytes { ptr, len })
    }

    pub(crate) fn ptr(&self) -> *mut u8 {
        self.ptr
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Bytes {
    fn drop(&mut self) {
        if self.len > 0 {
            // SAFETY: allocated with this layout.
            unsafe { dealloc(self.ptr, Layout::from_size_align_unchecked(self.len, ALIGN)) }
        }
    }
}

/// Whose memory: a unit of work on some thread, or a call made of several loops, on the thread that makes it.
#[derive(Clone, Copy)]
pub(crate) enum Owner {
    Unit,
    Call,
}

thread_local! {
    static SCRATCH: [UnsafeCell<Bytes>; 2] = const { [UnsafeCell::new(Bytes::EMPTY), UnsafeCell::new(Bytes::EMPTY)] };
}

/// Calls `f` with at least `len` bytes of this thread's scratch, of unspecified contents. A call inside `f` for the same
/// owner gets memory of its own.
pub(crate) fn with<R>(owner: Owner, len: usize, f: impl FnOnce(*mut u8) -> R) -> R {
    SCRATCH.with(|cells| {
        let cell = cells[owner as usize].get();
        // SAFETY: the cell holds this thread's block except while a caller of `with` uses it; taking it out keeps nested
        // calls apart.
        let mut block = unsafe { std::mem::replace(&mut *cell, Bytes::EMPTY) };
        if block.len() < len {
            drop(block);
            // No room to grow: the plans of a model settle on their largest need after one call.
            block = Bytes::new(len).unwrap_or_else(|| {
                handle_alloc_error(
                    Layout::from_size_align(len, ALIGN).unwrap_or(Layout::new::<u8>()),
                )
            });
        }
        let result = f(block.ptr());
        // SAFETY: as above.
        unsafe { *cell = block };
        result
    })
}
