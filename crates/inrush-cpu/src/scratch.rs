//! Memory that a thread keeps between calls: accumulators, copies of operands.

use std::alloc::{GlobalAlloc, Layout, System, handle_alloc_error};
use std::cell::UnsafeCell;

/// Cache line and widest vector.
pub(crate) const ALIGN: usize = 64;

/// Large blocks begin at a huge page, so that the first touch of them is one fault for each instead of hundreds.
const HUGE: usize = 2 << 20;

/// Size and alignment of a block of `len` bytes: from some megabytes on, whole huge pages. Blocks of tensors, packed weights
/// and scratch come from the system: a program's allocator for many small things divides what it maps, and leaves fewer whole.
pub fn layout(len: usize) -> Option<Layout> {
    let align = if len >= 2 * HUGE { HUGE } else { ALIGN };
    Layout::from_size_align(len, align).ok()
}

/// Asks for huge pages where [`layout`] aligns to them; a hint, which the system may ignore.
pub fn advise(ptr: *mut u8, len: usize) {
    if len >= 2 * HUGE && (ptr as usize).is_multiple_of(HUGE) {
        huge_pages(ptr, len);
    }
}

fn huge_pages(ptr: *mut u8, len: usize) {
    #[cfg(target_os = "linux")]
    {
        const MADV_HUGEPAGE: std::ffi::c_int = 14;
        unsafe extern "C" {
            fn madvise(ptr: *mut u8, len: usize, advice: std::ffi::c_int) -> std::ffi::c_int;
        }
        // SAFETY: whole pages of a block of this process; what they hold does not change.
        unsafe { madvise(ptr, len - len % 4096, MADV_HUGEPAGE) };
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (ptr, len);
}

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
        let layout = layout(len)?;
        // SAFETY: the layout is not empty.
        let ptr = unsafe { System.alloc(layout) };
        if ptr.is_null() {
            return None;
        }
        advise(ptr, len);
        Some(Bytes { ptr, len })
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
        if self.len > 0
            && let Some(layout) = layout(self.len)
        {
            // SAFETY: allocated with this layout.
            unsafe { System.dealloc(self.ptr, layout) }
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
