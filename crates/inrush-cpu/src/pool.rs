//! The executor's threads.
//!
//! A dispatch publishes one job; workers that are awake join it, the others are woken and join if any of it is left. The
//! caller works too and never waits for a thread that has not joined, so a sleeping or descheduled worker costs nothing.
//! Each thread starts in its own share of the units, so that successive kernels find their data in the same core's
//! caches, and then helps the others.

use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use inrush_base::{Error, Result};

/// How long a worker looks for work before it sleeps: longer than the gaps between the kernels of one model.
const SPIN: Duration = Duration::from_micros(150);
/// The same where there are more threads than processors, which would only keep each other from working.
const SPIN_CROWDED: Duration = Duration::from_micros(2);
/// Pieces that a thread's share is cut into, so that others can take some when it falls behind.
const PIECES: usize = 6;

/// Low bits of the state word: workers inside the job. Then the open bit, then the number of the job.
const ACTIVE: u64 = (1 << 31) - 1;
const OPEN: u64 = 1 << 31;

type Task<'a> = &'a (dyn Fn(Range<usize>) + Sync);

/// One thread's share of the units; on its own cache line pair.
#[repr(align(128))]
struct Share {
    next: AtomicUsize,
    end: AtomicUsize,
}

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

thread_local! {
    /// Set while this thread runs a part of a job, of any pool: nested loops run serially.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// A fixed set of threads that share loops; the calling thread is one of them.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    dispatch: Mutex<()>,
}

impl Pool {
    /// A pool of `threads` threads, the caller's included; by default as many as the process may run at once.
    pub fn new(threads: Option<usize>) -> Result<Pool> {
        let processors = std::thread::available_parallelism().map_or(1, |n| n.get());
        let threads = match threads {
            Some(0) => return Err(Error::input("a thread pool needs at least one thread")),
            Some(n) if n > 4096 => {
                return Err(Error::input(format!("{n} threads are more than 4096")));
            }
            Some(n) => n,
            None => processors,
        };
        let shared = Arc::new(Shared {
            state: AtomicU64::new(0),
            job: UnsafeCell::new(None),
            shares: (0..threads)
                .map(|_| Share {
                    next: AtomicUsize::new(0),
                    end: AtomicUsize::new(0),
                })
                .collect(),
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
        let mut pool = Pool {
            shared: shared.clone(),
            workers: Vec::with_capacity(threads - 1),
            dispatch: Mutex::new(()),
        };
        for me in 1..threads {
            let shared = shared.clone();
            let worker = std::thread::Builder::new()
                .name(format!("inrush-{me}"))
                .spawn(move || work(&shared, me))
                .map_err(|e| Error::machine(format!("cannot start a thread: {e}")))?;
            pool.workers.push(worker);
        }
        Ok(pool)
    }

    /// Number of threads, the caller's included.
    pub fn threads(&self) -> usize {
        self.shared.shares.len()
    }

    /// Wakes sleeping workers ahead of work that is about to come; returns at once.
    pub fn wake(&self) {
        if self.shared.sleepers.load(Ordering::SeqCst) > 0 {
            let _bed = lock(&self.shared.bed);
            self.shared.bell.notify_all();
        }
    }

    /// Calls `task` on ranges that together cover `0..units`, each unit once, no range shorter than `grain` but the last
    /// of a thread's share. Returns when all is done. Inside another loop, or while another thread uses the pool, the
    /// calling thread does everything itself.
    ///
    /// A panic in `task` ends the loop and is an error; units not yet begun may be left out.
    pub fn parallel_for(&self, units: usize, grain: usize, task: Task<'_>) -> Result<()> {
        if units == 0 {
            return Ok(());
        }
        let grain = grain.max(1);
        let serial = self.workers.is_empty() || units <= grain || INSIDE.get();
        let turn = if serial {
            None
        } else {
            self.dispatch.try_lock().ok()
        };
        let Some(_turn) = turn else {
            return inside(|| task(0..units)).map_err(|p| panicked(&message(&*p)));
        };
        self.publish(units, grain, task);
        let shared = &*self.shared;
        take_part(shared, 0);
        shared.state.fetch_and(!OPEN, Ordering::AcqRel);
        let mut spins = 0u32;
        while shared.state.load(Ordering::Acquire) & ACTIVE != 0 {
            spins = spins.wrapping_add(1);
            if spins & 0xfff == 0 {
                // A worker was descheduled in the middle of its part: leave it a core.
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
        match lock(&shared.panic).take() {
            Some(what) => Err(panicked(&what)),
            None => Ok(()),
        }
    }

    fn publish(&self, units: usize, grain: usize, task: Task<'_>) {
        let shared = &*self.shared;
        let threads = shared.shares.len();
        // Shares are multiples of the grain.
        let grains = units.div_ceil(grain);
        let chunk = grain * grains.div_ceil(threads * PIECES);
        let mut start = 0;
        for (i, share) in shared.shares.iter().enumerate() {
            let end = if i + 1 == threads {
                units
            } else {
                (grains * (i + 1) / threads * grain).min(units)
            };
            share.next.store(start, Ordering::Relaxed);
            share.end.store(end, Ordering::Relaxed);
            start = end;
        }
        // SAFETY: the lifetime ends in `parallel_for`, which does not return while a worker is inside the job.
        let task = unsafe { std::mem::transmute::<Task<'_>, Task<'static>>(task) };
        // SAFETY: the dispatch lock is held and no worker is inside a job.
        unsafe { *shared.job.get() = Some(Job { task, chunk }) };
        let number = (shared.state.load(Ordering::Relaxed) >> 32).wrapping_add(1) & 0xffff_ffff;
        shared.state.store(number << 32 | OPEN, Ordering::SeqCst);
        self.wake();
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        {
            let _bed = lock(&self.shared.bed);
            self.shared.bell.notify_all();
        }
        for worker in self.workers.drain(..) {
            // A worker catches every panic of a task, so there is none to pass on.
            let _ = worker.join();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The guarded values are replaced whole, so a poisoned one is still good.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn panicked(what: &str) -> Error {
    Error::internal(format!("a kernel panicked: {what}"))
}

fn message(payload: &(dyn Any + Send)) -> String {
    if let Some(s) = payload.downcast_ref::<&str>() {
        s.to_string()
    } else if let Some(s) = payload.downcast_ref::<String>() {
        s.clone()
    } else {
        "no message".to_string()
    }
}

fn inside(f: impl FnOnce()) -> std::thread::Result<()> {
    let before = INSIDE.replace(true);
    let result = catch_unwind(AssertUnwindSafe(f));
    INSIDE.set(before);
    result
}

/// Runs units of the current job until none is left: the own share first, then the others'.
fn take_part(shared: &Shared, me: usize) {
    // SAFETY: the caller published the job, or this worker joined it.
    let Some(job) = (unsafe { *shared.job.get() }) else {
        return;
    };
    let result = inside(|| {
        let n = shared.shares.len();
        for i in 0..n {
            let share = &shared.shares[(me + i) % n];
            let end = share.end.load(Ordering::Relaxed);
            // The load spares a shared write for each share that is already done.
            while share.next.load(Ordering::Relaxed) < end {
                let start = share.next.fetch_add(job.chunk, Ordering::Relaxed);
                if start >= end {
                    break;
                }
                (job.task)(start..(start + job.chunk).min(end));
            }
        }
    });
    if let Err(payload) = result {
        for share in &shared.shares {
            share.next.store(usize::MAX / 2, Ordering::Relaxed);
        }
        lock(&shared.panic).get_or_insert_with(|| message(&*payload));
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
