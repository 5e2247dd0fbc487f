//! Wall time and processor time. On a busy machine the latter is the steadier figure.
//!
//! Processor time adds up all threads of the process, so it measures work rather than waiting.
//! Compilers are child processes, whose time the system tells once they have been waited for.

use std::time::{Duration, Instant};

/// A point in time, on the wall and as processor time.
#[derive(Copy, Clone, Debug)]
pub struct Mark {
    /// Monotonic: not set back when the clock is.
    wall: Instant,
    /// `None` where the system has no such clock.
    used: Option<Used>,
}

/// Processor time so far.
#[derive(Copy, Clone, Debug)]
struct Used {
    process: Duration,
    /// Of child processes that have ended and been waited for.
    children: Duration,
}

/// The time since a [`Mark`]. Processor times are missing if the system has no such clock.
#[derive(Copy, Clone, Debug, Default)]
pub struct Span {
    /// Time on the wall.
    pub wall: Duration,
    /// Processor time of this process, and of its children that have ended.
    pub process: Option<Duration>,
    /// Processor time of children that ended in between.
    pub children: Option<Duration>,
}

impl Span {
    /// Processor time of this process, else wall time.
    pub fn busy(&self) -> Duration {
        self.process.unwrap_or(self.wall)
    }
}

/// Returns the present.
pub fn mark() -> Mark {
    Mark {
        wall: Instant::now(),
        used: system::used(),
    }
}

impl Mark {
    /// Returns the time since then.
    pub fn span(&self) -> Span {
        let used = system::used().zip(self.used);
        Span {
            wall: self.wall.elapsed(),
            process: used.map(|(now, then)| now.process - then.process),
            children: used.map(|(now, then)| now.children - then.children),
        }
    }
}

/// The middle element; zero of nothing.
pub fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// One line about the machine and how busy it is.
pub fn machine(threads: usize) -> String {
    let read = |p: &str| std::fs::read_to_string(p).unwrap_or_default();
    let cpus = read("/proc/cpuinfo");
    let name = cpus
        .lines()
        .find(|l| l.starts_with("model name"))
        .and_then(|l| l.split_once(": "))
        .map_or(std::env::consts::ARCH, |(_, n)| n);
    let load = read("/proc/loadavg");
    let load = load.split(' ').next().filter(|l| !l.is_empty());
    format!(
        "{name}, {}, {threads} threads{}",
        inrush_cpu::detect().name(),
        load.map_or(String::new(), |l| format!(
            "; load average {l} before this run"
        ))
    )
}

#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
mod system {
    use super::Used;
    use std::time::Duration;

    /// `struct rusage` of 64-bit Linux: two `timeval` and fourteen counters.
    #[repr(C)]
    struct Usage {
        user: [i64; 2],
        system: [i64; 2],
        rest: [i64; 14],
    }

    unsafe extern "C" {
        fn clock_gettime(clock: i32, time: *mut [i64; 2]) -> i32;
        fn getrusage(who: i32, usage: *mut Usage) -> i32;
    }
    // `CLOCK_PROCESS_CPUTIME_ID` and `RUSAGE_CHILDREN` of Linux.
    const PROCESS: i32 = 2;
    const CHILDREN: i32 = -1;

    fn clock(which: i32) -> Option<Duration> {
        let mut t = [0i64; 2];
        // SAFETY: `timespec` is two 64-bit integers here, and `t` is one.
        let ok = unsafe { clock_gettime(which, &mut t) } == 0;
        ok.then(|| Duration::new(t[0] as u64, t[1] as u32))
    }

    pub fn used() -> Option<Used> {
        let mut u = Usage {
            user: [0; 2],
            system: [0; 2],
            rest: [0; 14],
        };
        // SAFETY: `Usage` has the layout of `struct rusage` on this system.
        let ok = unsafe { getrusage(CHILDREN, &mut u) } == 0;
        let time = |t: [i64; 2]| Duration::new(t[0] as u64, t[1] as u32 * 1000);
        Some(Used {
            process: clock(PROCESS)?,
            children: ok.then(|| time(u.user) + time(u.system))?,
        })
    }
}

#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
mod system {
    pub fn used() -> Option<super::Used> {
        None
    }
}
