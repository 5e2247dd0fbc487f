//! A thread of an OpenMP team that gets next to no processor: loops go on without it.

#![cfg(target_os = "linux")]

use inrush_cpu::{OpenMp, Pool};
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The processors that a thread may use, as the kernel's bits.
type Processors = [u64; 16];

unsafe extern "C" {
    fn gettid() -> c_int;
    fn sched_getaffinity(thread: c_int, bytes: usize, set: *mut Processors) -> c_int;
    fn sched_setaffinity(thread: c_int, bytes: usize, set: *const Processors) -> c_int;
    fn setpriority(which: c_int, thread: c_int, nice: c_int) -> c_int;
}

/// Keeps a thread (0 is the calling one) on one processor.
fn pin(thread: c_int, one: &Processors) {
    // SAFETY: the set has the bytes.
    let rc = unsafe { sched_setaffinity(thread, size_of::<Processors>(), one) };
    assert_eq!(rc, 0, "sched_setaffinity");
}

/// Returns one of the processors that this process may use.
fn a_processor() -> Processors {
    let mut all: Processors = [0; 16];
    // SAFETY: the set has the bytes.
    let rc = unsafe { sched_getaffinity(0, size_of::<Processors>(), &raw mut all) };
    assert!(rc >= 0, "sched_getaffinity");
    let word = all.iter().rposition(|w| *w != 0).expect("a processor");
    let mut one: Processors = [0; 16];
    one[word] = 1 << (63 - all[word].leading_zeros());
    one
}

/// Returns the thread of a loop that is not the caller's: the other of two that are inside at the same time.
fn other_thread(pool: &Pool) -> c_int {
    // SAFETY: no arguments.
    let caller = unsafe { gettid() };
    let (arrived, other) = (AtomicUsize::new(0), AtomicI64::new(0));
    pool.parallel_for(2, 1, &|_| {
        arrived.fetch_add(1, Ordering::SeqCst);
        let began = Instant::now();
        while arrived.load(Ordering::SeqCst) < 2 && began.elapsed().as_secs() < 60 {
            std::thread::yield_now();
        }
        // SAFETY: no arguments.
        let me = unsafe { gettid() };
        if me != caller {
            other.store(i64::from(me), Ordering::SeqCst);
        }
    })
    .expect("a loop");
    let other = other.into_inner();
    assert_ne!(other, 0, "one thread ran both units");
    other as c_int
}

#[test]
fn a_starved_team_is_left_for_threads_of_our_own() {
    // SAFETY: the runtime's initialisers are made for this.
    let Ok(library) = (unsafe { libloading::Library::new("libgomp.so.1") }) else {
        eprintln!("skipped: this machine has no libgomp.so.1");
        return;
    };
    // SAFETY: a function of the runtime, with its type.
    unsafe {
        let set = library.get::<unsafe extern "C" fn(c_int)>(b"omp_set_num_threads\0");
        set.expect("a function of OpenMP")(2);
    }
    let pool = Pool::openmp(OpenMp::of_process().expect("a loaded runtime is found"));
    let (worker, one) = (other_thread(&pool), a_processor());
    pin(worker, &one);
    // SAFETY: 0 is PRIO_PROCESS, which on Linux takes a thread.
    assert_eq!(unsafe { setpriority(0, worker, 19) }, 0, "setpriority");

    let (over, left) = (AtomicBool::new(false), AtomicBool::new(false));
    let mut loops = 0;
    std::thread::scope(|s| {
        s.spawn(|| {
            pin(0, &one);
            // Threads of our own take the processor from this one, the worker hardly does. A process that is nicer already keeps
            // its own priority.
            // SAFETY: 0 is PRIO_PROCESS and the calling thread.
            _ = unsafe { setpriority(0, 0, 10) };
            while !over.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        let began = Instant::now();
        while !left.load(Ordering::Relaxed) && began.elapsed() < Duration::from_secs(400) {
            let sum = AtomicUsize::new(0);
            pool.parallel_for(64, 1, &|r| {
                let own = std::thread::current()
                    .name()
                    .is_some_and(|n| n.starts_with("inrush-"));
                left.fetch_or(own, Ordering::Relaxed);
                let began = Instant::now();
                while began.elapsed() < Duration::from_micros(50) {
                    std::hint::spin_loop();
                }
                sum.fetch_add(r.sum::<usize>(), Ordering::Relaxed);
            })
            .expect("a loop");
            assert_eq!(sum.into_inner(), 63 * 32);
            loops += 1;
        }
        over.store(true, Ordering::Relaxed);
    });
    assert!(
        left.into_inner(),
        "{loops} loops waited for a thread without a processor"
    );
}
