//! Every unit once, whatever the counts; panics become errors; nested and concurrent loops end.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use inrush_base::ErrorKind;
use inrush_cpu::{OpenMp, Pool};

#[test]
fn every_unit_runs_once() {
    for threads in 1..=5 {
        let pool = Pool::new(Some(threads)).unwrap();
        assert_eq!(pool.threads(), threads);
        for units in [0, 1, 2, 3, 7, 64, 1000] {
            for grain in [0, 1, 3, 50, 2000] {
                let seen: Vec<AtomicUsize> = (0..units).map(|_| AtomicUsize::new(0)).collect();
                pool.parallel_for(units, grain, &|range| {
                    range.for_each(|i| {
                        seen[i].fetch_add(1, Ordering::Relaxed);
                    })
                })
                .unwrap();
                assert!(
                    seen.iter().all(|s| s.load(Ordering::Relaxed) == 1),
                    "{threads} {units} {grain}"
                );
            }
        }
    }
}

/// A runtime that this process loads as a plug-in would bring it: visible to no other library.
fn openmp() -> Option<OpenMp> {
    static LIBRARY: std::sync::OnceLock<Option<libloading::Library>> = std::sync::OnceLock::new();
    // SAFETY: the runtime's initialisers are made for this.
    let library = LIBRARY.get_or_init(|| unsafe { libloading::Library::new("libgomp.so.1").ok() });
    if library.is_none() {
        eprintln!("skipped: this machine has no libgomp.so.1");
        return None;
    }
    Some(OpenMp::of_process().expect("a loaded runtime is found"))
}

/// Sets the number of threads of regions that the calling thread begins.
fn set_threads(n: i32) {
    let library = unsafe { libloading::Library::new("libgomp.so.1").unwrap() };
    unsafe {
        library
            .get::<unsafe extern "C" fn(i32)>(b"omp_set_num_threads\0")
            .unwrap()(n)
    };
}

#[test]
fn openmp_runs_every_unit_once() {
    let Some(runtime) = openmp() else { return };
    let pool = Pool::openmp(runtime);
    for threads in [1, 2, 3, 40, 2] {
        set_threads(threads);
        assert_eq!(pool.threads(), threads as usize);
        for units in [1, 2, 7, 64, 1000] {
            for grain in [1, 3, 50] {
                let seen: Vec<AtomicUsize> = (0..units).map(|_| AtomicUsize::new(0)).collect();
                let inner = AtomicUsize::new(0);
                pool.parallel_for(units, grain, &|range| {
                    for i in range {
                        seen[i].fetch_add(1, Ordering::Relaxed);
                        // Inside a loop there is one thread.
                        pool.parallel_for(5, 1, &|r| {
                            inner.fetch_add(r.len(), Ordering::Relaxed);
                        })
                        .unwrap();
                    }
                })
                .unwrap();
                assert!(seen.iter().all(|s| s.load(Ordering::Relaxed) == 1));
                assert_eq!(inner.load(Ordering::Relaxed), 5 * units);
            }
        }
    }
}

#[test]
fn openmp_shares_its_threads_and_survives_panics() {
    let Some(runtime) = openmp() else { return };
    set_threads(2);
    let pool = Pool::openmp(runtime);
    // Both threads are inside at the same time.
    let arrived = AtomicUsize::new(0);
    pool.parallel_for(2, 1, &|_| {
        arrived.fetch_add(1, Ordering::SeqCst);
        let began = std::time::Instant::now();
        while arrived.load(Ordering::SeqCst) < 2 && began.elapsed().as_secs() < 10 {
            std::thread::yield_now();
        }
        assert_eq!(arrived.load(Ordering::SeqCst), 2);
    })
    .unwrap();
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let result = pool.parallel_for(100, 1, &|r| assert!(!r.contains(&57), "unit {}", 57));
    std::panic::set_hook(before);
    assert!(result.unwrap_err().message().contains("unit 57"));
    pool.parallel_for(100, 1, &|_| {}).unwrap();
}

#[test]
fn many_dispatches_with_pauses_between() {
    let pool = Pool::new(Some(3)).unwrap();
    let total = AtomicUsize::new(0);
    for i in 0..3000 {
        pool.parallel_for(9, 1, &|r| {
            total.fetch_add(r.len(), Ordering::Relaxed);
        })
        .unwrap();
        if i % 500 == 0 {
            // Long enough for the workers to fall asleep.
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
    }
    assert_eq!(total.load(Ordering::Relaxed), 27_000);
}

#[test]
fn a_panic_is_an_error_and_the_pool_lives_on() {
    for threads in [1, 4] {
        let pool = Pool::new(Some(threads)).unwrap();
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        let result = pool.parallel_for(100, 1, &|r| assert!(!r.contains(&57), "unit {}", 57));
        std::panic::set_hook(before);
        let error = result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Internal);
        assert!(error.message().contains("unit 57"), "{error}");
        let sum = AtomicUsize::new(0);
        pool.parallel_for(100, 1, &|r| {
            sum.fetch_add(r.sum::<usize>(), Ordering::Relaxed);
        })
        .unwrap();
        assert_eq!(sum.load(Ordering::Relaxed), 4950);
    }
}

#[test]
fn nested_and_concurrent_loops_end() {
    let pool = Arc::new(Pool::new(Some(3)).unwrap());
    let total = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..200 {
                    pool.parallel_for(8, 1, &|outer| {
                        for _ in outer {
                            pool.parallel_for(5, 1, &|inner| {
                                total.fetch_add(inner.len(), Ordering::Relaxed);
                            })
                            .unwrap();
                        }
                    })
                    .unwrap();
                }
            });
        }
    });
    assert_eq!(total.load(Ordering::Relaxed), 4 * 200 * 8 * 5);
}

#[test]
fn thread_counts_out_of_range_are_refused() {
    assert_eq!(Pool::new(Some(0)).err().unwrap().kind(), ErrorKind::Input);
    assert_eq!(
        Pool::new(Some(1 << 20)).err().unwrap().kind(),
        ErrorKind::Input
    );
    assert!(Pool::new(None).unwrap().threads() >= 1);
}
