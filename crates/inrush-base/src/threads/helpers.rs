//! Threads that stay while one piece of work has several parts to share out, one after the other, and a while longer: a thread
//! that waits is there in a fraction of the time in which one is made, and keeps its memory and what its processor has in the
//! caches.

use super::lock;
use std::any::Any;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

thread_local! {
    /// The helpers of the work that this thread is in.
    static CREW: RefCell<Option<Arc<Crew>>> = const { RefCell::new(None) };
}

/// Helpers that are in no work, with the process that they are of: a process that forks does not take them along.
static IDLE: Mutex<Vec<(u32, Arc<Crew>)>> = Mutex::new(Vec::new());

/// How long a helper waits for more work: reading a model, compiling it and compiling the next follow each other.
const PATIENCE: Duration = Duration::from_secs(1);

/// What is to be done by as many helpers as have time.
type Work = &'static (dyn Fn() + Sync);

#[derive(Default)]
pub(super) struct Crew {
    state: Mutex<State>,
    /// Something is to be done.
    bell: Condvar,
    /// The last helper has left.
    empty: Condvar,
}

#[derive(Default)]
struct State {
    /// How many helpers there may be: nobody is there before the first work.
    count: usize,
    /// How many there are.
    present: usize,
    work: Option<Work>,
    /// Which work it is, so that nobody takes the same twice.
    number: u64,
    /// Helpers that are at it.
    inside: usize,
    panic: Option<Box<dyn Any + Send>>,
}

/// Does `f` with up to this many threads for the parts it shares out by [`super::side_by_side`]; they are made for the first of
/// these, and wait a while for the next work that is done so. Within such work it adds none.
pub fn with_helpers<R>(count: usize, f: impl FnOnce() -> R) -> R {
    if count == 0 || crew().is_some() {
        return f();
    }
    let process = std::process::id();
    let idle = |all: &mut Vec<(u32, Arc<Crew>)>| {
        all.retain(|(of, _)| *of == process);
        all.pop()
    };
    // Who looks at the list just now may be a process's that has forked since.
    let known = IDLE.try_lock().ok().and_then(|mut all| idle(&mut all));
    let crew = known.map_or_else(Arc::default, |(_, crew)| crew);
    lock(&crew.state).count = count;
    CREW.set(Some(crew.clone()));
    let _free = Free(process, crew);
    f()
}

/// Lets others have the helpers, whether the work returns or panics.
struct Free(u32, Arc<Crew>);

impl Drop for Free {
    fn drop(&mut self) {
        CREW.set(None);
        if let Ok(mut idle) = IDLE.try_lock() {
            idle.push((self.0, self.1.clone()));
        }
    }
}

/// The helpers of this thread, if it has some.
pub(super) fn crew() -> Option<Arc<Crew>> {
    CREW.with_borrow(|c| c.clone())
}

impl Crew {
    /// Does `here` on this thread while helpers do `work`; returns, or panics, when nobody is at it any more.
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

    /// What a helper does all its life.
    fn help(&self) {
        let mut seen = 0;
        let mut state = lock(&self.state);
        loop {
            if let Some(work) = state.work.filter(|_| state.number != seen) {
                (seen, state.inside) = (state.number, state.inside + 1);
                drop(state);
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
            if ended.timed_out() && nothing {
                state.present -= 1;
                return;
            }
        }
    }
}

/// Takes the work back when it goes.
struct Closed<'a>(&'a Crew);

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
