//! A thread of an OpenMP team that mostly has no processor: loops go on without it. A signal's handler takes the processor away,
//! since what the scheduler does depends on what else runs.

#![cfg(target_os = "linux")]

use inrush_cpu::{OpenMp, Pool};
use std::ffi::{c_int, c_ulong, c_void};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// A signal that nothing else here uses, and the milliseconds that its handler keeps a thread off its processor.
const SIGUSR1: c_int = 10;
const OFF_MS: c_int = 20;
/// The milliseconds that a thread then has its processor.
const ON_MS: u64 = 5;

unsafe extern "C" {
    fn gettid() -> c_int;
    fn signal(number: c_int, handler: extern "C" fn(c_int)) -> usize;
    fn tgkill(process: c_int, thread: c_int, number: c_int) -> c_int;
    fn poll(files: *mut c_void, count: c_ulong, timeout_ms: c_int) -> c_int;
}

/// Stands for another process that has the processor.
extern "C" fn lose_processor(_: c_int) {
    // SAFETY: a handler may call it, and no files are given.
    _ = unsafe { poll(std::ptr::null_mut(), 0, OFF_MS) };
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
    let worker = other_thread(&pool);
    // SAFETY: the handler calls nothing but `poll`.
    assert_ne!(unsafe { signal(SIGUSR1, lose_processor) }, usize::MAX);

    let (over, left) = (AtomicBool::new(false), AtomicBool::new(false));
    let mut loops = 0;
    std::thread::scope(|s| {
        s.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                // SAFETY: the team's thread lives as long as the process.
                _ = unsafe { tgkill(std::process::id() as c_int, worker, SIGUSR1) };
                std::thread::sleep(Duration::from_millis(OFF_MS as u64 + ON_MS));
            }
        });
        let began = Instant::now();
        while !left.load(Ordering::Relaxed) && began.elapsed() < Duration::from_secs(120) {
            let sum = AtomicUsize::new(0);
            pool.parallel_for(64, 1, &|r| {
                let own = std::thread::current()
                    .name()
                    .is_some_and(|n| n.starts_with("inrush-"));
                left.fetch_or(own, Ordering::Relaxed);
                // Asleep, so that a thread of our own has a processor when it wakes.
                std::thread::sleep(Duration::from_micros(50));
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
