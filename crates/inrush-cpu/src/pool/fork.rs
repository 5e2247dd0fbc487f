//! Detects forks: a child of `fork` has the memory of its parent, but of the parent's threads only the one that forked.
//!
//! A handler that runs in the child counts forks, so that a check is a load and a comparison instead of a system call.

use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

use inrush_base::{Error, Result};

/// Forks between the first process that watched them and this one.
static FORKS: AtomicU64 = AtomicU64::new(0);

/// The process that threads belong to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Process(u64);

impl Process {
    /// Returns the calling process, and watches its forks from now on.
    pub(super) fn watched() -> Process {
        static WATCH: Once = Once::new();
        WATCH.call_once(watch);
        Process::current()
    }

    /// Returns the calling process.
    #[inline]
    pub(super) fn current() -> Process {
        Process(FORKS.load(Ordering::Relaxed))
    }

    /// Returns a number that is not zero and that other processes of the same memory do not have.
    pub(super) fn number(self) -> u64 {
        self.0 + 1
    }
}

/// The error of a call in a child.
#[cold]
pub(super) fn forked() -> Error {
    Error::machine(
        "this process is a fork, and the threads of its model stayed in the parent: fork before the first call, load the model after the fork, or load it with one thread",
    )
}

/// Returns an error in a process that is not the one of the threads.
#[inline]
pub(super) fn check(owner: Process) -> Result<()> {
    if owner == Process::current() {
        Ok(())
    } else {
        Err(forked())
    }
}

#[cfg(unix)]
fn watch() {
    use std::ffi::c_int;
    type Handler = Option<extern "C" fn()>;
    unsafe extern "C" {
        fn pthread_atfork(prepare: Handler, parent: Handler, child: Handler) -> c_int;
    }
    extern "C" fn child() {
        FORKS.fetch_add(1, Ordering::Relaxed);
    }
    // SAFETY: the handler is a function of this library and adds to an integer. It can fail for want of memory only; forks are not
    // noticed then.
    unsafe { pthread_atfork(None, None, Some(child)) };
}

#[cfg(not(unix))]
fn watch() {}
