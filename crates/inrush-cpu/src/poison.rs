//! Poisoned memory: a mode for tests in which a wrong kernel is seen at once.
//!
//! Fresh blocks hold a pattern that is NaN in every float type and huge in every integer type, so that a read of what nothing
//! wrote shows in the result. A guard in front of each block and one after it hold the same pattern; who lends a block looks
//! whether they still do. A write outside of scratch is noted here, since workers have no result to give: the executor
//! asks after each step and names the kernel.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

/// State of the mode.
static MODE: AtomicU8 = AtomicU8::new(UNKNOWN);
const UNKNOWN: u8 = 0;
const OFF: u8 = 1;
const ON: u8 = 2;

static FOUND: AtomicBool = AtomicBool::new(false);
static NOTES: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Bytes of each guard.
pub const GUARD: usize = 4096;
/// NaN as a half, `bfloat16`, `f32` and `f64`; beyond 32,000 as an integer of any width from 16 bits on.
const PATTERN: u16 = 0x7ff5;

/// Turns the mode on for the process, unless its environment has `INRUSH_POISON=0`.
pub fn enable() {
    MODE.store(by_environment().unwrap_or(ON), Ordering::Relaxed);
}

/// Returns true if the mode is on: by [`enable`] or by `INRUSH_POISON=1`.
pub fn enabled() -> bool {
    match MODE.load(Ordering::Relaxed) {
        UNKNOWN => {
            let mode = by_environment().unwrap_or(OFF);
            MODE.store(mode, Ordering::Relaxed);
            mode == ON
        }
        mode => mode == ON,
    }
}

fn by_environment() -> Option<u8> {
    match std::env::var("INRUSH_POISON").ok()?.as_str() {
        "0" => Some(OFF),
        "1" => Some(ON),
        _ => None,
    }
}

/// Returns the bytes of guards for a block that is made now.
pub(crate) fn guard() -> usize {
    if enabled() { GUARD } else { 0 }
}

/// Fills memory with the pattern, which begins at `ptr`.
///
/// # Safety
/// `ptr` is valid for writes of `len` bytes.
pub unsafe fn fill(ptr: *mut u8, len: usize) {
    for at in 0..len / 2 {
        // SAFETY: the caller's promise.
        unsafe { ptr.cast::<u16>().add(at).write_unaligned(PATTERN) };
    }
    if len % 2 == 1 {
        // SAFETY: as above.
        unsafe { ptr.add(len - 1).write(PATTERN as u8) };
    }
}

/// Returns true if this guard is what [`fill`] wrote.
pub(crate) fn intact(guard: &[u8]) -> bool {
    static WHOLE: [u16; GUARD / 2] = [PATTERN; GUARD / 2];
    // SAFETY: any bytes of a static are bytes.
    guard == unsafe { std::slice::from_raw_parts(WHOLE.as_ptr().cast::<u8>(), GUARD) }
}

/// Notes a write outside of some memory.
pub(crate) fn note(text: String) {
    NOTES.lock().unwrap_or_else(|e| e.into_inner()).push(text);
    FOUND.store(true, Ordering::Release);
}

/// Returns what was noted since the last time.
pub fn noted() -> Option<String> {
    if !FOUND.swap(false, Ordering::Acquire) {
        return None;
    }
    let notes = std::mem::take(&mut *NOTES.lock().unwrap_or_else(|e| e.into_inner()));
    (!notes.is_empty()).then(|| notes.join("; "))
}
