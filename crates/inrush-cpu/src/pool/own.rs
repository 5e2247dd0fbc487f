//! Threads of our own.
//!
//! A dispatch publishes one job; workers that are awake join it, the others are woken and join if any of it is left. The
//! caller works too and never waits for a thread that has not joined, so a sleeping or descheduled worker costs nothing.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::fork::{self, Process};
use super::{Share, Task, deal, drain, lock, panicked, wait_until};
use inrush_base::{Error, Result};

/// How long a worker looks for work before it sleeps: longer than the gaps between the kernels of one model.
const SPIN: Duration = Duration::from_micros(150);
/// The same where there are more threads than processors, which would only keep each other from working.
const SPIN_CROWDED: Duration = Duration::from_micros(2);
/// Low bits of the state word: workers inside the job. Then the open bit, then the number of the job.
const ACTIVE: u64 = (1 << 31) - 1;
const OPEN: u64 = 1 << 31;

#[derive(Clone, Copy)]
struct Job {
    task: Task<'static>,
    chunk: usize,
}

#[repr(align(128))]
struct Shared {
    state: AtomicU64,
    job: UnsafeCell<Option<Job>>,
    shares: Box<[Share]>,
    sleepers: AtomicUsize,
    spin: Duration,
    stop: AtomicBool,
    bed: Mutex<()>,
    bell: Condvar,
    panic: Mutex<Option<String>>,
}

// SAFETY: `job` is written by the one caller that holds the dispatch lock while no worker is inside a job, and read by
// workers between joining and leaving.
unsafe impl Sync for Shared {}
// SAFETY: as above; the task it points to is `Sync`.
unsafe impl Send for Shared {}

/// A fixed set of threads; the calling one is the first of them. The others start with the first loop.
pub(super) struct Threads {
    count: usize,
    started: OnceLock<Workers>,
    /// Held while workers start.
    starting: Mutex<()>,
}

/// Threads that have started.
struct Workers {
    shared: Arc<Shared>,
    handles: Vec<JoinHandle<()>>,
    dispatch: Mutex<()>,
    /// The process that has them.
    process: Process,
}

impl Threads {
    pub(super) fn new(count: usize) -> Threads {
        Threads {
            count,
            started: OnceLock::new(),
            starting: Mutex::new(()),
        }
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    #[inline]
    pub(super) fn check_fork(&self) -> Result<()> {
        self.started
            .get()
            .map_or(Ok(()), |w| fork::check(w.process))
    }

    pub(super) fn wake(&self) {
        if let Some(workers) = self.started.get() {
            workers.wake();
        }
    }

    /// Runs a loop; `None`, with nothing done, where there are no workers or another thread uses them.
    pub(super) fn run(&self, units: usize, grain: usize, task: Task<'_>) -> Option<Result<()>> {
        if self.count == 1 {
            return None;
        }
        match self.workers() {
            Ok(workers) => workers.run(units, grain, task),
            Err(e) => Some(Err(e)),
        }
    }

    /// Returns the workers of this process, which start now if they have not.
    fn workers(&self) -> Result<&Workers> {
        if let Some(workers) = self.started.get() {
            fork::check(workers.process)?;
            return Ok(workers);
        }
        let _turn = lock(&self.starting);
        if self.started.get().is_none() {
            // Stored below by this thread alone, which holds the lock.
            let workers = Workers::start(self.count)?;
            return Ok(self.started.get_or_init(|| workers));
        }
        self.workers()
    }
}

impl Workers {
    fn start(threads: usize) -> Result<Workers> {
        let processors = std::thread::available_parallelism().map_or(1, |n| n.get());
        let shared = Arc::new(Shared {
            state: AtomicU64::new(0),
            job: UnsafeCell::new(None),
            shares: (0..threads).map(|_| Share::new()).collect(),
            sleepers: AtomicUsize::new(0),
            spin: if threads > processors {
                SPIN_CROWDED
            } else {
                SPIN
            },
            stop: AtomicBool::new(false),
            bed: Mutex::new(()),
            bell: Condvar::new(),
            panic: Mutex::new(None),
        });
        let mut pool = Workers {
            shared: shared.clone(),
            handles: Vec::with_capacity(threads - 1),
            dispatch: Mutex::new(()),
            process: Process::watched(),
        };
        for me in 1..threads {
            let shared = shared.clone();
            let worker = std::thread::Builder::new()
                .name(format!("inrush-{me}"))
                .spawn(move || work(&shared, me))
                .map_err(|e| Error::machine(format!("cannot start a thread: {e}")))?;
            pool.handles.push(worker);
        }
        Ok(pool)
    }

    fn wake(&self) {
        if self.shared.sleepers.load(Ordering::SeqCst) > 0 {
            let _bed = lock(&self.shared.bed);
            self.shared.bell.notify_all();
        }
    }

    /// Runs a loop; `None`, with nothing done, where another thread uses the workers.
    fn run(&self, units: usize, grain: usize, task: Task<'_>) -> Option<Result<()>> {
        let _turn = self.dispatch.try_lock().ok()?;
        self.publish(units, grain, task);
        let shared = &*self.shared;
        take_part(shared, 0);
        shared.state.fetch_and(!OPEN, Ordering::AcqRel);
        wait_until(|| shared.state.load(Ordering::Acquire) & ACTIVE == 0);
        Some(match lock(&shared.panic).take() {
            Some(what) => Err(panicked(&what)),
            None => Ok(()),
        })
    }

    fn publish(&self, units: usize, grain: usize, task: Task<'_>) {
        let shared = &*self.shared;
        let chunk = deal(&shared.shares, units, grain);
        // SAFETY: the lifetime ends in `run`, which does not return while a worker is inside the job.
        let task = unsafe { std::mem::transmute::<Task<'_>, Task<'static>>(task) };
        // SAFETY: the dispatch lock is held and no worker is inside a job.
        unsafe { *shared.job.get() = Some(Job { task, chunk }) };
        let number = (shared.state.load(Ordering::Relaxed) >> 32).wrapping_add(1) & 0xffff_ffff;
        shared.state.store(number << 32 | OPEN, Ordering::SeqCst);
        self.wake();
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        if fork::check(self.process).is_err() {
            // They are threads of another process: there is nothing to join, and their locks may be held for ever.
            self.handles.drain(..).for_each(std::mem::forget);
            return;
        }
        self.shared.stop.store(true, Ordering::SeqCst);
        {
            let _bed = lock(&self.shared.bed);
            self.shared.bell.notify_all();
        }
        for worker in self.handles.drain(..) {
            // A worker catches every panic of a task, so there is none to pass on.
            let _ = worker.join();
        }
    }
}

fn take_part(shared: &Shared, me: usize) {
    // SAFETY: the caller published the job, or this worker joined it.
    if let Some(job) = unsafe { *shared.job.get() } {
        drain(&shared.shares, me, job.chunk, job.task, &shared.panic);
    }
}

fn work(shared: &Shared, me: usize) {
    let mut seen = 0u64;
    while join_next(shared, &mut seen) {
        take_part(shared, me);
        shared.state.fetch_sub(1, Ordering::Release);
    }
}

/// Waits for a job that this worker has not been in, and joins it; false when the pool ends.
fn join_next(shared: &Shared, seen: &mut u64) -> bool {
    let mut began: Option<Instant> = None;
    let mut spins = 0u32;
    loop {
        let state = shared.state.load(Ordering::Acquire);
        if state >> 32 != *seen && state & OPEN != 0 {
            let joined = shared.state.compare_exchange(
                state,
                state + 1,
                Ordering::AcqRel,
                Ordering::Relaxed,
            );
            if joined.is_ok() {
                *seen = state >> 32;
                return true;
            }
            continue;
        }
        spins = spins.wrapping_add(1);
        std::hint::spin_loop();
        if spins & 0x3f != 0 {
            continue;
        }
        if shared.stop.load(Ordering::Relaxed) {
            return false;
        }
        if began.get_or_insert_with(Instant::now).elapsed() < shared.spin {
            continue;
        }
        sleep(shared, *seen);
        began = None;
    }
}

fn sleep(shared: &Shared, seen: u64) {
    let bed = lock(&shared.bed);
    shared.sleepers.fetch_add(1, Ordering::SeqCst);
    // The caller publishes, then looks for sleepers; this worker is counted, then looks for a job: one of them sees the
    // other. A single wait is enough, as the caller of `sleep` looks again and `wake` may ring without a job.
    let state = shared.state.load(Ordering::SeqCst);
    let work = state >> 32 != seen && state & OPEN != 0;
    if !work && !shared.stop.load(Ordering::SeqCst) {
        drop(
            shared
                .bell
                .wait(bed)
                .unwrap_or_else(PoisonError::into_inner),
        );
    }
    shared.sleepers.fetch_sub(1, Ordering::SeqCst);
}
