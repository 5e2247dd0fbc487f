//! Work that is shared out among threads.
//!
//! The compiler's parallelism is fork and join: a list is cut into runs of about equal weight
//! ([`shares`]), each run goes to a thread ([`side_by_side`]), and results are joined in the order
//! of the list. Which thread does what changes nothing in the output. Waking a thread is cheaper
//! than starting one, so a compilation keeps helpers between its stages ([`with_helpers`]).

mod workers;

pub use workers::with_helpers;

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Cuts a list into runs of about equal weight, one for each thread; fewer where a run would weigh less than `least`.
pub fn shares(weights: &[usize], threads: usize, least: usize) -> Vec<Range<usize>> {
    let total: usize = weights.iter().sum();
    let count = (total / least.max(1)).min(threads).max(1);
    let mut out = Vec::with_capacity(count);
    let (mut start, mut seen) = (0, 0);
    for (k, w) in weights.iter().enumerate() {
        seen += w;
        if seen * count >= total * (out.len() + 1) && out.len() + 1 < count {
            out.push(start..k + 1);
            start = k + 1;
        }
    }
    out.push(start..weights.len());
    out
}

/// Does `first` on this thread and `work` for each of `rest` on others (on this one where the system gives no more threads);
/// results in that order. The others are those of [`with_helpers`] where this is called within it, else new ones.
pub fn side_by_side<P: Send, R: Send>(
    first: impl FnOnce() -> R,
    rest: Vec<P>,
    work: impl Fn(P) -> R + Sync,
) -> Vec<R> {
    let count = rest.len();
    let done: Vec<Mutex<Option<R>>> = (0..count).map(|_| Mutex::new(None)).collect();
    let queue = Mutex::new(rest.into_iter().enumerate());
    // Threads take the next part when they are done with one: a slow thread holds nothing up.
    let drain = || {
        loop {
            let next = lock(&queue).next();
            let Some((k, part)) = next else { return };
            let result = work(part);
            *lock(&done[k]) = Some(result);
        }
    };
    let mut out = Vec::with_capacity(count + 1);
    let here = || {
        out.push(first());
        drain();
    };
    match workers::workers().filter(|_| count > 0) {
        Some(workers) => workers.run(&drain, here),
        None => std::thread::scope(|s| {
            for _ in 0..count {
                if std::thread::Builder::new().spawn_scoped(s, drain).is_err() {
                    break;
                }
            }
            here();
        }),
    }
    let rest = done.into_iter().map(|d| {
        let result = d.into_inner().unwrap_or_else(PoisonError::into_inner);
        result.expect("the queue is empty, and no thread panicked")
    });
    out.extend(rest);
    out
}

/// Does `here` on this thread and `there` on a helper of [`with_helpers`], if one has time, else on this one.
pub fn both<A, B: Send>(here: impl FnOnce() -> A, there: impl FnOnce() -> B + Send) -> (A, B) {
    let Some(workers) = workers::workers() else {
        return (here(), there());
    };
    let (task, result) = (Mutex::new(Some(there)), Mutex::new(None));
    let work = || {
        let task = lock(&task).take();
        if let Some(task) = task {
            *lock(&result) = Some(task());
        }
    };
    let mut own = None;
    workers.run(&work, || {
        own = Some(here());
        work();
    });
    let result = result.into_inner().unwrap_or_else(PoisonError::into_inner);
    match (own, result) {
        (Some(a), Some(b)) => (a, b),
        _ => unreachable!("both are done, and no thread panicked"),
    }
}

/// Locks a mutex. A panic elsewhere leaves nothing half done in these values.
fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_of_about_equal_weight() {
        assert_eq!(shares(&[1; 8], 2, 1), [0..4, 4..8]);
        assert_eq!(shares(&[5, 1, 1, 1, 1, 1], 2, 1), [0..1, 1..6]);
        assert_eq!(shares(&[1, 1, 9], 3, 1), [0..3, 3..3]);
        assert_eq!(shares(&[1; 8], 4, 4), [0..4, 4..8]);
        let one = |weights: &[usize], least| match shares(weights, 4, least).as_slice() {
            [run] => run.clone(),
            runs => panic!("{runs:?}"),
        };
        assert_eq!(one(&[1; 8], 9), 0..8);
        assert_eq!(one(&[], 1), 0..0);
        for threads in 1..9 {
            let weights: Vec<usize> = (0..100).map(|k| k * 7919 % 13).collect();
            let runs = shares(&weights, threads, 1);
            assert_eq!(runs.len(), threads);
            assert_eq!(runs.iter().flat_map(|r| r.clone()).count(), 100);
            assert!(runs.windows(2).all(|w| w[0].end == w[1].start));
            let most = weights.iter().sum::<usize>() / threads + 13;
            assert!(
                runs.iter()
                    .all(|r| weights[r.clone()].iter().sum::<usize>() <= most)
            );
        }
    }

    #[test]
    fn results_come_in_order() {
        let got = side_by_side(|| 0, (1..20).collect(), |k: i32| k * k);
        assert_eq!(got, (0..20).map(|k| k * k).collect::<Vec<_>>());
        assert_eq!(side_by_side(|| 7, Vec::<i32>::new(), |k| k), [7]);
    }

    #[test]
    fn helpers_do_the_same_again_and_again() {
        let got = with_helpers(3, || {
            let once = |n: i32| side_by_side(|| n, (1..20).collect(), |k: i32| n + k * k);
            (0..200).map(once).collect::<Vec<_>>()
        });
        for (n, got) in (0..).zip(got) {
            assert_eq!(got, (0..20).map(|k| n + k * k).collect::<Vec<_>>());
        }
    }

    #[test]
    fn helpers_that_have_left_are_made_again() {
        let square = || side_by_side(|| 0, (1..20).collect(), |k: i32| k * k);
        let expected: Vec<i32> = (0..20).map(|k| k * k).collect();
        for wait in [0, 0, 1500] {
            std::thread::sleep(std::time::Duration::from_millis(wait));
            // More than before, and fewer.
            for count in [1, 3, 2] {
                assert_eq!(with_helpers(count, square), expected);
            }
        }
    }

    #[test]
    fn several_have_helpers_at_once() {
        let run = || with_helpers(2, || side_by_side(|| 1, vec![2, 3, 4], |k| k));
        std::thread::scope(|s| {
            let all: Vec<_> = (0..8)
                .map(|_| s.spawn(|| (0..50).all(|_| run() == [1, 2, 3, 4])))
                .collect();
            assert!(all.into_iter().all(|t| t.join().unwrap()));
        });
    }

    #[test]
    fn work_within_work_has_threads_too() {
        let inner = |n: i32| side_by_side(|| n, vec![n + 1], |k| k).iter().sum::<i32>();
        let got = with_helpers(1, || {
            with_helpers(2, || side_by_side(|| inner(0), vec![10, 20], inner))
        });
        assert_eq!(got, [1, 21, 41]);
    }

    #[test]
    fn both_are_done() {
        let run = || both(|| 1, || "two");
        assert_eq!(run(), (1, "two"));
        with_helpers(1, || (0..100).for_each(|_| assert_eq!(run(), (1, "two"))));
    }

    #[test]
    fn a_panic_arrives_and_the_helpers_stay() {
        let broken = |k: i32| match k {
            3 => panic!("three"),
            k => k,
        };
        with_helpers(2, || {
            for first in [1, 3] {
                let run = || side_by_side(|| broken(first), vec![2, 3, 4], broken);
                let said = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
                assert_eq!(said.unwrap_err().downcast_ref(), Some(&"three"));
            }
            assert_eq!(side_by_side(|| 1, vec![2], |k| k), [1, 2]);
        });
    }
}
