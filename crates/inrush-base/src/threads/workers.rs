//! A thread pool for fork-join parallelism inside one compile. Threads are made for the first
//! parallel section and kept for the next ones: waking a thread takes a fraction of the time of
//! making one, and it keeps its memory and its processor's caches.
//!
//! A pool has at most one work at a time. The work is a closure that every helper calls once; it
//! takes its share from a queue of the caller's until the queue is empty. So a helper that wakes
//! late finds nothing to do, and the caller need not wait for helpers that never began:
//!
//! ```text
//! caller   work = f, number += 1, ring --- f ------- work = none, wait until inside = 0
//! helper                        wakes: inside += 1 --- f --- inside -= 1
//! ```
//!
//! The closure borrows from the caller's stack. This is sound because the caller takes the work
//! back and waits for those inside before it returns, by a guard that runs during a panic as well.

use super::lock;
use std::any::Any;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

thread_local! {
    /// The pool of the work that this thread is in.
    static WORKERS: RefCell<Option<Arc<Workers>>> = const { RefCell::new(None) };
}

/// Helpers that are in no work, with the process that they are of: a process that forks does not take them along.
static IDLE: Mutex<Vec<(u32, Arc<Workers>)>> = Mutex::new(Vec::new());

/// How long a helper waits for more work: reading a model, compiling it and compiling the next follow each other.
const PATIENCE: Duration = Duration::from_secs(1);

/// Work for as many helpers as are free: each calls it once.
type Work = &'static (dyn Fn() + Sync);

#[derive(Default)]
pub(super) struct Workers {
    state: Mutex<State>,
    /// Something is to be done.
    bell: Condvar,
    /// The last helper has left.
    empty: Condvar,
}

#[derive(Default)]
struct State {
    /// Most helpers. None is made before the first work.
    count: usize,
    /// Helpers that have been made.
    present: usize,
    /// The present work, while helpers may begin it.
    work: Option<Work>,
    /// Number of the work, so that no helper takes the same twice.
    number: u64,
    /// Helpers that are at it.
    inside: usize,
    /// The first panic of a helper, which the caller goes on with.
    panic: Option<Box<dyn Any + Send>>,
}

/// Does `f` with up to this many threads for the parts it shares out by [`super::side_by_side`]; they are made for the first of
/// these, and wait a while for the next work that is done so. Within such work it adds none.
pub fn with_helpers<R>(count: usize, f: impl FnOnce() -> R) -> R {
    if count == 0 || workers().is_some() {
        return f();
    }
    let process = std::process::id();
    let idle = |all: &mut Vec<(u32, Arc<Workers>)>| {
        all.retain(|(of, _)| *of == process);
        all.pop()
    };
    // Who looks at the list just now may be a process's that has forked since.
    let known = IDLE.try_lock().ok().and_then(|mut all| idle(&mut all));
    let workers = known.map_or_else(Arc::default, |(_, workers)| workers);
    lock(&workers.state).count = count;
    WORKERS.set(Some(workers.clone()));
    let _free = Free(process, workers);
    f()
}

/// Lets others have the helpers, whether the work returns or panics.
struct Free(u32, Arc<Workers>);

impl Drop for Free {
    fn drop(&mut self) {
        WORKERS.set(None);
        if let Ok(mut idle) = IDLE.try_lock() {
            idle.push((self.0, self.1.clone()));
        }
    }
}

/// The helpers of this thread, if it has some.
pub(super) fn workers() -> Option<Arc<Workers>> {
    WORKERS.with_borrow(|c| c.clone())
}

impl Workers {
    /// Does `here` on this thread while helpers do `work`. Returns, or panics, after the last helper has left it.
    pub(super) fn run(self: &Arc<Self>, work: &(dyn Fn() + Sync), here: impl FnOnce()) {
        // SAFETY: the work ends with `Closed`, which waits until no helper is at it, also where `here` panics.
        let work = unsafe { std::mem::transmute::<&(dyn Fn() + Sync), Work>(work) };
        {
            let mut state = lock(&self.state);
            state.work = Some(work);
            state.number += 1;
        }
        let closed = Closed(self);
        self.wake();
        here();
        drop(closed);
        let panic = lock(&self.state).panic.take();
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }

    /// Tells the helpers that there is work; makes those that are missing, as many as the system gives.
    fn wake(self: &Arc<Self>) {
        self.bell.notify_all();
        let mut state = lock(&self.state);
        while state.present < state.count {
            let own = self.clone();
            if std::thread::Builder::new()
                .spawn(move || own.help())
                .is_err()
            {
                break;
            }
            state.present += 1;
        }
    }

    /// Runs a helper's loop: waits for work, does it, leaves after [`PATIENCE`].
    fn help(&self) {
        let mut seen = 0;
        let mut state = lock(&self.state);
        loop {
            if let Some(work) = state.work.filter(|_| state.number != seen) {
                (seen, state.inside) = (state.number, state.inside + 1);
                drop(state);
                // A panic must not end the helper: `inside` would stay too high, and the caller
                // would wait forever.
                let said = catch_unwind(AssertUnwindSafe(work));
                state = lock(&self.state);
                state.inside -= 1;
                if let Err(panic) = said {
                    state.panic.get_or_insert(panic);
                }
                if state.inside == 0 {
                    self.empty.notify_all();
                }
                continue;
            }
            let waited = self.bell.wait_timeout(state, PATIENCE);
            let (now, ended) = waited.unwrap_or_else(PoisonError::into_inner);
            state = now;
            let nothing = state.work.is_none() || state.number == seen;
            // Asked under the lock: work that was announced during the wait is not missed.
            if ended.timed_out() && nothing {
                state.present -= 1;
                return;
            }
        }
    }
}

/// Takes the work back when it goes.
struct Closed<'a>(&'a Workers);

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.0.state);
        state.work = None;
        while state.inside > 0 {
            state = (self.0.empty.wait(state)).unwrap_or_else(PoisonError::into_inner);
        }
        if std::thread::panicking() {
            // The panic that is under way is the one that arrives.
            state.panic = None;
        }
    }
}
