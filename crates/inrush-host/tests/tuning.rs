//! Choices by measurement, over the fake driver: what is kept, and what is left to the rules.
#![cfg(feature = "compiler")]

mod driver;

use driver::{Machine, gpu, with_driver};
use inrush_base::{Error, Result};
use inrush_host::gpu::tune::{Bench, Current, MakeCurrent, Measures};
use inrush_program::GpuTarget;
use inrush_runtime::triton::{Pool, Setup};
use std::path::Path;
use std::time::Duration;

/// A bench on the fake device, which keeps what won in the cache of this process. `free` is the device's free memory.
fn bench(folder: &Path, measures: Measures, free: Option<u64>) -> Bench {
    let pool = Box::leak(Box::new(Pool::new(Setup {
        python: "no-python".into(),
        script: "worker.py".into(),
        folder: folder.join("triton"),
        version: "3.6.0".into(),
        workers: 1,
        patience: Duration::from_secs(1),
        ptx: false,
        shared: false,
    })));
    let current: MakeCurrent = Box::new(move || {
        let driver = inrush_host::devices::driver(gpu())?;
        let entered = driver.enter(driver.primary_context(0)?)?;
        let own = driver.own_stream()?;
        Ok(Current {
            stream: own.stream(),
            free,
            guard: Box::new((own, entered)),
        })
    });
    let target = GpuTarget {
        backend: "cuda".into(),
        arch: "90".into(),
        warp: 32,
    };
    let device = (gpu(), current);
    Bench::new(device, "fake".into(), (target, 1 << 20), pool, measures)
}

#[test]
fn the_faster_way_is_kept() {
    with_driver("the_faster_way_is_kept", Machine::default(), |folder| {
        let names = ("graph product", "product 2 x 2 x 2");
        let mut first = bench(folder, Measures::Now, None);
        assert!(first.measures());
        assert_eq!(first.known_product(names.0, names.1), None);
        let (mut library, mut kernel) = (0, 0);
        let chosen = first.product(
            names,
            &mut || {
                library += 1;
                Ok(())
            },
            &mut || {
                kernel += 1;
                Ok(())
            },
        );
        // Both take as long here, for which the library stays.
        assert!(!chosen.unwrap());
        assert!(library > 10 && library == kernel);
        assert_eq!(first.done.len(), 1, "{:?}", first.done);
        let mut later = bench(folder, Measures::Nothing, None);
        assert!(!later.measures());
        assert_eq!(later.known_product(names.0, names.1), Some(false));
        assert_eq!(later.known_product("graph other", names.1), None);
        assert!(later.done[0].ends_with("library, from the cache"));
    });
}

#[test]
fn a_failure_is_the_callers() {
    with_driver("a_failure_is_the_callers", Machine::default(), |folder| {
        let names = ("graph product", "product 2 x 2 x 2");
        let mut bench = bench(folder, Measures::Now, None);
        let fails = || -> Result<()> { Err(Error::machine("no memory")) };
        let done = bench.product(names, &mut || Ok(()), &mut { fails });
        assert!(done.unwrap_err().to_string().contains("no memory"));
        // Nothing is kept.
        assert_eq!(bench.known_product(names.0, names.1), None);
    });
}

#[test]
fn work_in_the_background_leaves_memory_and_time() {
    with_driver(
        "work_in_the_background_leaves_memory_and_time",
        Machine::default(),
        |folder| {
            let bench = bench(folder, Measures::InBackground, Some(4000));
            assert!(bench.has_room(1000).is_ok());
            let why = bench.has_room(1001).unwrap_err().to_string();
            assert!(
                why.contains("a quarter of the device's free memory"),
                "{why}"
            );
            assert!(bench.measures());
            // The process ends.
            inrush_host::gpu::tune::stop_background();
            assert!(!bench.measures());
        },
    );
}
