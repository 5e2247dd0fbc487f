//! Memory that a thread keeps between calls: accumulators, copies of operands.

use crate::poison;
use std::alloc::{GlobalAlloc, Layout, System, handle_alloc_error};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU64, Ordering};

/// Blocks allocated so far.
static ALLOCATED: AtomicU64 = AtomicU64::new(0);

/// Cache line and widest vector.
pub(crate) const ALIGN: usize = 64;

/// Large blocks begin at a huge page, so that the first touch of them is one fault for each instead of hundreds.
const HUGE: usize = 2 << 20;

/// Returns size and alignment of a block of `len` bytes: from some megabytes on, whole huge pages. Blocks of tensors, packed weights
/// and scratch come from the system: a program's allocator for many small things divides what it maps, and leaves fewer whole.
fn layout(len: usize) -> Option<Layout> {
    let align = if len >= 2 * HUGE { HUGE } else { ALIGN };
    Layout::from_size_align(len, align).ok()
}

/// Asks for huge pages where [`layout`] aligns to them; a hint, which the system may ignore.
fn advise(ptr: *mut u8, len: usize) {
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

/// A block of uninitialised bytes, aligned to [`ALIGN`]; poisoned where [`poison`] is on.
pub struct Bytes {
    ptr: *mut u8,
    len: usize,
    /// Bytes in front of the block and after it.
    guard: usize,
}

// SAFETY: plain memory with one owner.
unsafe impl Send for Bytes {}
// SAFETY: shared access only hands out the address.
unsafe impl Sync for Bytes {}

impl Bytes {
    pub const EMPTY: Bytes = Bytes {
        ptr: ALIGN as *mut u8,
        len: 0,
        guard: 0,
    };

    /// Allocates a block; `None` where the size is beyond what can be allocated.
    pub fn new(len: usize) -> Option<Bytes> {
        if len == 0 {
            return Some(Bytes::EMPTY);
        }
        let guard = poison::guard();
        let whole = len.checked_add(2 * guard)?;
        let layout = layout(whole)?;
        // SAFETY: the layout is not empty.
        let start = unsafe { System.alloc(layout) };
        if start.is_null() {
            return None;
        }
        ALLOCATED.fetch_add(1, Ordering::Relaxed);
        advise(start, whole);
        let ptr = start.wrapping_add(guard);
        if guard > 0 {
            // SAFETY: the parts of a fresh block. Each begins with the pattern's first byte.
            unsafe {
                poison::fill(start, guard);
                poison::fill(ptr, len);
                poison::fill(ptr.wrapping_add(len), guard);
            }
        }
        Some(Bytes { ptr, len, guard })
    }

    /// Returns how many blocks this process has allocated. They come from the system, past the process's allocator, so that a
    /// test of what a call allocates asks here too.
    pub fn allocated() -> u64 {
        ALLOCATED.load(Ordering::Relaxed)
    }

    pub fn ptr(&self) -> *mut u8 {
        self.ptr
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the block with its guards, where it has such.
    pub fn guarded(&self) -> Option<(*mut u8, usize)> {
        (self.guard > 0).then(|| (self.start(), self.len + 2 * self.guard))
    }

    fn start(&self) -> *mut u8 {
        self.ptr.wrapping_sub(self.guard)
    }

    /// Returns which guard was written, in words.
    pub fn broken(&self) -> Option<&'static str> {
        if self.guard == 0 {
            return None;
        }
        let intact = |at: *const u8| {
            // SAFETY: guards are parts of the block, and were filled when it was made.
            poison::intact(unsafe { std::slice::from_raw_parts(at, self.guard) })
        };
        let after = self.ptr.wrapping_add(self.len);
        match (intact(self.start()), intact(after)) {
            (true, true) => None,
            (false, _) => Some("in front of"),
            (true, false) => Some("after"),
        }
    }

    /// Notes where a guard was written, by whom.
    pub fn inspect(&self, who: &str, what: &dyn std::fmt::Display) {
        if let Some(side) = self.broken() {
            let len = self.len;
            poison::note(format!("{who} wrote {side} the {len} bytes of {what}"));
        }
    }
}

impl Drop for Bytes {
    fn drop(&mut self) {
        if self.len > 0
            && let Some(layout) = layout(self.len + 2 * self.guard)
        {
            // SAFETY: allocated with this layout.
            unsafe { System.dealloc(self.start(), layout) }
        }
    }
}

/// Whose memory. Each has a block of its own on each thread, so that one may be used inside another.
#[derive(Clone, Copy)]
pub(crate) enum Owner {
    /// A unit of work.
    Unit,
    /// A call made of several loops, on the thread that makes it.
    Call,
    /// An input that is converted before a call.
    Input,
}

thread_local! {
    static SCRATCH: [UnsafeCell<Bytes>; 3] = const { [const { UnsafeCell::new(Bytes::EMPTY) }; 3] };
}

/// Calls `f` with at least `len` bytes of this thread's scratch, of unspecified contents. A call inside `f` for the same
/// owner gets memory of its own.
#[track_caller]
pub(crate) fn with<R>(owner: Owner, len: usize, f: impl FnOnce(*mut u8) -> R) -> R {
    if poison::enabled() {
        return poisoned(len, std::panic::Location::caller(), f);
    }
    SCRATCH.with(|cells| {
        let cell = cells[owner as usize].get();
        // SAFETY: the cell holds this thread's block except while a caller of `with` uses it; taking it out keeps nested
        // calls apart.
        let mut block = unsafe { std::mem::replace(&mut *cell, Bytes::EMPTY) };
        if block.len() < len {
            drop(block);
            // No room to grow: the plans of a model reach their largest need in one call.
            block = block_of(len);
        }
        let result = f(block.ptr());
        // SAFETY: as above.
        unsafe { *cell = block };
        result
    })
}

fn block_of(len: usize) -> Bytes {
    Bytes::new(len).unwrap_or_else(|| {
        handle_alloc_error(Layout::from_size_align(len, ALIGN).unwrap_or(Layout::new::<u8>()))
    })
}

/// Calls `f` with a block of exactly this length, whose guards are looked at afterwards.
fn poisoned<R>(len: usize, who: &std::panic::Location, f: impl FnOnce(*mut u8) -> R) -> R {
    let block = block_of(len);
    let result = f(block.ptr());
    let (file, line) = (who.file(), who.line());
    block.inspect(
        "the engine",
        &format_args!("its scratch ({file}, line {line})"),
    );
    result
}
