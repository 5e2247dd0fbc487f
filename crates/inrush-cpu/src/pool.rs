//! Loops shared by threads: those of the executor itself, or those of an OpenMP runtime that the process runs anyway, while
//! they do not stall.
//!
//! Each thread starts in its own share of the units, so that successive kernels find their data in the same core's
//! caches, and then helps the others.

mod fork;
mod hosted;
mod openmp;
mod own;

use std::any::Any;
use std::cell::Cell;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use inrush_base::{Error, Result};

pub use openmp::OpenMp;

/// Pieces that a thread's share is cut into, so that others can take some when it is late.
const PIECES: usize = 6;

type Task<'a> = &'a (dyn Fn(Range<usize>) + Sync);

/// Threads that share loops; the calling thread is one of them.
pub struct Pool(Kind);

enum Kind {
    Own(own::Threads),
    Hosted(Box<hosted::Hosted>),
}

impl Pool {
    /// Makes a pool of `threads` threads, the caller's included; by default as many as the process may run at once. They start
    /// with the first loop that they share, so that a process may fork before it.
    pub fn new(threads: Option<usize>) -> Result<Pool> {
        let threads = match threads {
            Some(0) => return Err(Error::input("a thread pool needs at least one thread")),
            Some(n) if n > 4096 => {
                return Err(Error::input(format!("{n} threads are more than 4096")));
            }
            Some(n) => n,
            None => std::thread::available_parallelism().map_or(1, |n| n.get()),
        };
        Ok(Pool(Kind::Own(own::Threads::new(threads))))
    }

    /// Makes a pool that runs loops as parallel regions of `runtime`. Other users of that runtime share the process then with
    /// one set of threads, where two would spin on the same processors. While other processes keep those threads from
    /// running, loops use as many threads of our own, which wait for no thread without work.
    pub fn openmp(runtime: OpenMp) -> Pool {
        Pool(Kind::Hosted(Box::new(hosted::Hosted::new(runtime))))
    }

    /// Returns the number of threads, the caller's included. Under OpenMP it is what the runtime gives the calling thread now, and
    /// may be another in the next call.
    pub fn threads(&self) -> usize {
        match &self.0 {
            Kind::Own(own) => own.count(),
            Kind::Hosted(hosted) => hosted.threads(),
        }
    }

    /// Checks that the threads of the pool, if they have started, are threads of this process.
    ///
    /// # Errors
    /// A machine error in a process that was forked after the pool's first use.
    #[inline]
    pub fn check_fork(&self) -> Result<()> {
        match &self.0 {
            Kind::Own(own) => own.check_fork(),
            Kind::Hosted(hosted) => hosted.check_fork(),
        }
    }

    /// Wakes sleeping workers ahead of work that is about to come; returns at once.
    pub fn wake(&self) {
        match &self.0 {
            Kind::Own(own) => own.wake(),
            Kind::Hosted(hosted) => hosted.wake(),
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
        if units > grain && !INSIDE.get() {
            let shared = match &self.0 {
                Kind::Own(own) => own.run(units, grain, task),
                Kind::Hosted(hosted) => hosted.run(units, grain, task),
            };
            if let Some(result) = shared {
                return result;
            }
        }
        inside(|| task(0..units)).map_err(|p| panicked(&message(&*p)))
    }
}

thread_local! {
    /// Set while this thread runs a part of a job, of any pool: nested loops run serially.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// One thread's share of the units; on its own cache line pair.
#[repr(align(128))]
struct Share {
    next: AtomicUsize,
    end: AtomicUsize,
}

impl Share {
    const fn new() -> Share {
        Share {
            next: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
        }
    }
}

/// Shares out `0..units` in multiples of the grain; returns what a thread takes at a time.
fn deal(shares: &[Share], units: usize, grain: usize) -> usize {
    let threads = shares.len();
    let grains = units.div_ceil(grain);
    let mut start = 0;
    for (i, share) in shares.iter().enumerate() {
        let end = if i + 1 == threads {
            units
        } else {
            (grains * (i + 1) / threads * grain).min(units)
        };
        share.next.store(start, Ordering::Relaxed);
        share.end.store(end, Ordering::Relaxed);
        start = end;
    }
    grain * grains.div_ceil(threads * PIECES)
}

/// Runs units until none is left: the own share first, then the others'. A panic ends the loop for all.
fn drain(shares: &[Share], me: usize, chunk: usize, task: Task<'_>, panic: &Mutex<Option<String>>) {
    let result = inside(|| {
        let n = shares.len();
        for i in 0..n {
            let share = &shares[(me + i) % n];
            let end = share.end.load(Ordering::Relaxed);
            // The load spares a shared write for each share that is already done.
            while share.next.load(Ordering::Relaxed) < end {
                let start = share.next.fetch_add(chunk, Ordering::Relaxed);
                if start >= end {
                    break;
                }
                task(start..(start + chunk).min(end));
            }
        }
    });
    if let Err(payload) = result {
        for share in shares {
            share.next.store(usize::MAX / 2, Ordering::Relaxed);
        }
        lock(panic).get_or_insert_with(|| message(&*payload));
    }
}

/// Waits for threads that hold pieces of a loop.
fn wait_until(done: impl Fn() -> bool) {
    let mut spins = 0u32;
    while !done() {
        spins = spins.wrapping_add(1);
        if spins & 0xfff == 0 {
            // A thread was descheduled in the middle of its piece: leave it a core.
            std::thread::yield_now();
        } else {
            std::hint::spin_loop();
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
