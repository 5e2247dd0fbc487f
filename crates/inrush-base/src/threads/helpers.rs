//! Threads that stay while one piece of work has several parts to share out, one after the other: a thread that waits is there
//! in a fraction of the time in which one is made, and keeps its memory and what its processor has in the caches.

use super::lock;
use std::any::Any;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

thread_local! {
    /// The helpers of the work that this thread is in.
    static CREW: RefCell<Option<Arc<Crew>>> = const { RefCell::new(None) };
}

/// What is to be done by as many helpers as have time.
type Work = &'static (dyn Fn() + Sync);

pub(super) struct Crew {
    /// How many there may be.
    count: usize,
    /// Who is there: nobody before the first work.
    threads: Mutex<Vec<JoinHandle<()>>>,
    state: Mutex<State>,
    /// Something is to be done, or all is over.
    bell: Condvar,
    /// The last helper has left.
    empty: Condvar,
}

#[derive(Default)]
struct State {
    work: Option<Work>,
    /// Which work it is, so that nobody takes the same twice.
    number: u64,
    /// Helpers that are at it.
    inside: usize,
    panic: Option<Box<dyn Any + Send>>,
    over: bool,
}

/// Does `f` with up to this many threads for the parts it shares out by [`super::side_by_side`]; they are made for the first of
/// these. Within such work it adds none.
pub fn with_helpers<R>(count: usize, f: impl FnOnce() -> R) -> R {
    if count == 0 || crew().is_some() {
        return f();
    }
    let crew = Arc::new(Crew {
        count,
        threads: Mutex::default(),
        state: Mutex::default(),
        bell: Condvar::new(),
        empty: Condvar::new(),
    });
    CREW.set(Some(crew.clone()));
    let _home = Home(crew);
    f()
}

/// Sends the helpers home, whether the work returns or panics.
struct Home(Arc<Crew>);

impl Drop for Home {
    fn drop(&mut self) {
        CREW.set(None);
        lock(&self.0.state).over = true;
        self.0.bell.notify_all();
        for thread in lock(&self.0.threads).drain(..) {
            // What work panics with goes to who shared it out.
            let _ = thread.join();
        }
    }
}

/// The helpers of this thread, if it has some.
pub(super) fn crew() -> Option<Arc<Crew>> {
    CREW.with_borrow(|c| c.clone())
}

impl Crew {
    /// Does `here` on this thread while helpers do `work`; returns, or panics, when nobody is at it any more.
    pub fn run(self: &Arc<Self>, work: &(dyn Fn() + Sync), here: impl FnOnce()) {
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

    /// Tells the helpers that there is work; makes them, as many as the system gives, where nobody is there.
    fn wake(self: &Arc<Self>) {
        let mut threads = lock(&self.threads);
        if !threads.is_empty() {
            self.bell.notify_all();
            return;
        }
        for _ in 0..self.count {
            let own = self.clone();
            match std::thread::Builder::new().spawn(move || own.help()) {
                Ok(thread) => threads.push(thread),
                Err(_) => break,
            }
        }
    }

    /// What a helper does all its life.
    fn help(&self) {
        let mut seen = 0;
        let mut state = lock(&self.state);
        loop {
            match state.work.filter(|_| state.number != seen) {
                Some(work) => {
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
                }
                None if state.over => return,
                None => {
                    state = self
                        .bell
                        .wait(state)
                        .unwrap_or_else(PoisonError::into_inner)
                }
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
