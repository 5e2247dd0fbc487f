//! Pools in a process that was forked: an error, never a wait for threads that stayed in the parent.

#![cfg(unix)]

use inrush_cpu::Pool;
use std::ffi::c_int;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

unsafe extern "C" {
    fn fork() -> c_int;
    fn _exit(code: c_int) -> !;
    fn waitpid(child: c_int, status: *mut c_int, options: c_int) -> c_int;
    fn kill(child: c_int, signal: c_int) -> c_int;
}

/// Runs `f` in a child. Returns its bits, or nothing if it does not end.
fn in_child(f: impl FnOnce() -> c_int) -> Option<c_int> {
    // SAFETY: this test has no other thread that allocates or holds a lock.
    let child = unsafe { fork() };
    if child == 0 {
        let bits = f();
        // SAFETY: ends the child without what the parent would run at its end.
        unsafe { _exit(bits) };
    }
    let (began, mut status) = (Instant::now(), 0);
    while began.elapsed() < Duration::from_secs(30) {
        // SAFETY: the child of above; 1 is WNOHANG.
        if unsafe { waitpid(child, &mut status, 1) } == child {
            assert_eq!(status & 0x7f, 0, "a signal ended the child");
            return Some(status >> 8 & 0xff);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    // SAFETY: the child of above, which has not ended.
    unsafe {
        kill(child, 9);
        waitpid(child, &mut status, 0);
    }
    None
}

/// Sums `0..100` on a pool.
fn sum(pool: &Pool) -> inrush_base::Result<usize> {
    let sum = AtomicUsize::new(0);
    pool.parallel_for(100, 1, &|r| {
        sum.fetch_add(r.sum::<usize>(), Ordering::Relaxed);
    })?;
    Ok(sum.into_inner())
}

#[test]
fn a_pool_that_was_used_before_a_fork_is_an_error_in_the_child() {
    let (used, unused, alone) = (Pool::new(Some(3)), Pool::new(Some(3)), Pool::new(Some(1)));
    let (used, unused, alone) = (used.unwrap(), unused.unwrap(), alone.unwrap());
    assert_eq!(sum(&used).unwrap(), 4950);
    assert_eq!(sum(&alone).unwrap(), 4950);
    let bits = in_child(|| {
        let text = sum(&used).err().map_or(String::new(), |e| e.to_string());
        used.wake();
        let refused = text.contains("this process is a fork") && used.check_fork().is_err();
        // Its threads are those of the parent: to drop it must not wait for them.
        drop(used);
        let started = unused.check_fork().is_ok() && sum(&unused).is_ok_and(|n| n == 4950);
        let serial = alone.check_fork().is_ok() && sum(&alone).is_ok_and(|n| n == 4950);
        let made = Pool::new(Some(2))
            .and_then(|p| sum(&p))
            .is_ok_and(|n| n == 4950);
        // A pool that started in the child is one that its own child refuses.
        let again = in_child(|| c_int::from(sum(&unused).is_err()));
        [refused, started, serial, made, again == Some(1)]
            .iter()
            .rev()
            .fold(0, |bits, b| bits << 1 | c_int::from(*b))
    });
    assert_eq!(bits, Some(0b11111), "{bits:?}");
}
