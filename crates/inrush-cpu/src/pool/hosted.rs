//! Loops on the OpenMP team of a host process, and on threads of our own while that team stalls.
//!
//! A region of OpenMP begins and ends with a barrier of the whole team. If another process takes the core of one thread, every
//! region waits until the scheduler runs that thread again, some milliseconds each time, even if all work is done. Our
//! own threads have no barrier: a loop waits only for threads that hold a piece of it.
//!
//! The team is preferred nevertheless. Its threads spin for milliseconds after each operator of the host, and a second
//! set of threads would compete with them for the cores. So loops leave the team only for as long as it loses time:
//!
//! ```text
//! team --(stalls cost more than a share of the work)--> own threads --(a while later)--> team, on probation
//! ```
//!
//! A team that stalls on probation is left at once, and for twice as long as before.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::fork::Process;
use super::openmp::{OpenMp, Times};
use super::{Task, lock, own};
use inrush_base::Result;

/// Sets of our own threads that are kept. Threads of the host may each have another limit.
const MAX_SETS: usize = 4;
/// A wait for the team that is no stall: a thread that sleeps takes this long to wake.
const PROMPT: Duration = Duration::from_micros(200);
/// Regions of which one is measured while nothing is lost: a tiny region takes a fifth longer to measure.
const SAMPLE: u64 = 16;
/// Work that makes up for a unit of time lost. A team that loses less than a fourth of its time is not left.
const WORTH: u64 = 4;
/// Lost time that makes a pool leave the team: more than one time slice of the scheduler, so that a single hiccup does not.
const PATIENCE: Duration = Duration::from_millis(5);
/// The first time without the team. A stall is a few milliseconds, so that the probe at its end costs little of it.
const FIRST_LEAVE: Duration = Duration::from_millis(100);
/// The longest time without the team, and so the longest time until its return to a machine that has become quiet.
const LONGEST_LEAVE: Duration = Duration::from_millis(1600);

/// A pool on the host's OpenMP runtime, with threads of our own as the fallback.
pub(super) struct Hosted {
    runtime: OpenMp,
    policy: Policy,
    began: Instant,
    /// One for each number of threads that loops have asked for, the oldest first.
    own: Mutex<Vec<Own>>,
}

/// Threads of our own, and the process that they were made in.
struct Own {
    threads: Arc<own::Threads>,
    process: Process,
}

impl Hosted {
    pub(super) fn new(runtime: OpenMp) -> Hosted {
        Hosted {
            runtime,
            policy: Policy::default(),
            began: Instant::now(),
            own: Mutex::default(),
        }
    }

    pub(super) fn threads(&self) -> usize {
        self.runtime.threads()
    }

    pub(super) fn check_fork(&self) -> Result<()> {
        self.runtime.check_fork()
    }

    pub(super) fn wake(&self) {
        if self.policy.is_away(|| self.now()) {
            let threads = self.runtime.threads();
            if threads > 1 {
                self.own(threads).wake();
            }
        }
    }

    /// Runs a loop; `None`, with nothing done, where there is one thread, or the threads are in use.
    pub(super) fn run(&self, units: usize, grain: usize, task: Task<'_>) -> Option<Result<()>> {
        let threads = self.runtime.threads();
        if threads == 1 {
            return None;
        }
        if let Err(e) = self.runtime.check_fork() {
            return Some(Err(e));
        }
        if self.policy.is_away(|| self.now()) {
            return self.own(threads).run(units, grain, task);
        }
        let timed = self.policy.is_timed();
        let (result, times) = self.runtime.run(threads, units, grain, task, timed);
        if let Some(times) = times {
            self.policy.observe(times, || self.now());
        }
        Some(result)
    }

    /// Returns nanoseconds since the pool was made.
    fn now(&self) -> u64 {
        nanos(self.began.elapsed())
    }

    /// Returns `threads` threads of our own in this process. Loops that run on others go on.
    fn own(&self, threads: usize) -> Arc<own::Threads> {
        let process = Process::watched();
        let mut sets = lock(&self.own);
        if let Some(own) =
            (sets.iter()).find(|o| o.threads.count() == threads && o.process == process)
        {
            return own.threads.clone();
        }
        if sets.len() == MAX_SETS {
            sets.remove(0);
        }
        let made = Arc::new(own::Threads::new(threads));
        sets.push(Own {
            threads: made.clone(),
            process,
        });
        made
    }
}

/// Decides between the team and our own threads by the time that the team has lost. Times are nanoseconds of a clock of the caller's.
///
/// Threads that call at the same time may overwrite each other's counts. That delays a decision by a loop.
#[derive(Default)]
struct Policy {
    /// The end of the time without the team; 0 while it is used.
    back_at: AtomicU64,
    /// Regions of the team, for samples of them.
    regions: AtomicU64,
    /// Time lost by stalls and not made up for by work since.
    lost: AtomicU64,
    /// The last time without the team; 0 after the team has proved itself.
    leave: AtomicU64,
}

impl Policy {
    /// Returns true while loops should run on our own threads.
    fn is_away(&self, now: impl FnOnce() -> u64) -> bool {
        let back_at = self.back_at.load(Relaxed);
        if back_at == 0 {
            return false;
        }
        if now() < back_at {
            return true;
        }
        self.back_at.store(0, Relaxed);
        false
    }

    /// Returns true if the next region of the team should be measured: some while nothing is lost, all others.
    fn is_timed(&self) -> bool {
        let regions = self.regions.load(Relaxed).wrapping_add(1);
        self.regions.store(regions, Relaxed);
        regions.is_multiple_of(SAMPLE) || self.lost.load(Relaxed) > 0
    }

    /// Takes the times of a region of the team into account.
    fn observe(&self, times: Times, now: impl FnOnce() -> u64) {
        let waited = if times.waited > PROMPT {
            nanos(times.waited)
        } else {
            0
        };
        let lost = self.lost.load(Relaxed);
        if waited == 0 && lost == 0 {
            return;
        }
        let lost = (lost + waited).saturating_sub(nanos(times.worked) / WORTH);
        self.lost.store(lost, Relaxed);
        if lost == 0 {
            self.leave.store(0, Relaxed);
        }
        if lost < nanos(PATIENCE) {
            return;
        }
        let leave = match self.leave.load(Relaxed) {
            0 => nanos(FIRST_LEAVE),
            before => (2 * before).min(nanos(LONGEST_LEAVE)),
        };
        self.leave.store(leave, Relaxed);
        // One stall more is enough when the team is tried again.
        self.lost.store(nanos(PATIENCE - PROMPT), Relaxed);
        self.back_at.store(now() + leave, Relaxed);
    }
}

fn nanos(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Returns the times of a region in microseconds.
    fn times(waited: u64, worked: u64) -> Times {
        Times {
            waited: Duration::from_micros(waited),
            worked: Duration::from_micros(worked),
        }
    }

    #[test]
    fn a_prompt_team_is_never_left() {
        let policy = Policy::default();
        for now in 0..100_000 {
            policy.observe(times(150, 10), || now * MS);
            assert!(!policy.is_away(|| now * MS));
        }
    }

    #[test]
    fn a_hiccup_is_forgiven() {
        let policy = Policy::default();
        for now in 0..1000 {
            // A stall of 4 ms among a hundred regions of 200 us.
            let waited = if now % 100 == 0 { 4000 } else { 2 };
            policy.observe(times(waited, 200), || now * MS);
            assert!(!policy.is_away(|| now * MS), "at {now} ms");
        }
    }

    #[test]
    fn every_region_is_measured_while_time_is_lost_and_some_are_otherwise() {
        let policy = Policy::default();
        let timed = |n: u64| (0..n).filter(|_| policy.is_timed()).count() as u64;
        assert_eq!(timed(10 * SAMPLE), 10);
        policy.observe(times(1000, 10), || 0);
        assert_eq!(timed(10 * SAMPLE), 10 * SAMPLE);
        policy.observe(times(1, 10_000), || 0);
        assert_eq!(timed(10 * SAMPLE), 10);
    }

    #[test]
    fn a_team_that_stalls_is_left_for_longer_each_time_and_comes_back() {
        let policy = Policy::default();
        policy.observe(times(3000, 100), || 0);
        assert!(!policy.is_away(|| 1));
        policy.observe(times(3000, 100), || 3 * MS);
        let mut now = 3 * MS;
        for leave in [100, 200, 400, 800, 1600, 1600] {
            assert!(policy.is_away(|| now), "after {now}");
            assert!(policy.is_away(|| now + leave * MS - 1));
            now += leave * MS;
            assert!(!policy.is_away(|| now), "after {leave} ms");
            // On probation one stall is enough.
            policy.observe(times(3000, 100), || now);
        }
        // Quiet again: the work makes up for what was lost, and the next leave is a short one.
        now += 1600 * MS;
        for _ in 0..100 {
            policy.observe(times(1, 300), || now);
            assert!(!policy.is_away(|| now));
        }
        policy.observe(times(9000, 100), || now);
        assert!(policy.is_away(|| now + 100 * MS - 1) && !policy.is_away(|| now + 100 * MS));
    }
}
