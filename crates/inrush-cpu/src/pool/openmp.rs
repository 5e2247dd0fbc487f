//! Loops on the OpenMP runtime that another library brought into the process.
//!
//! Nothing is linked: the entry points are looked up among the libraries that are loaded. GNU's runtime has them, and
//! LLVM's and Intel's offer the same ones for programs that GCC compiled.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::fork::{self, Process};
use super::{Share, Task, deal, drain, lock, panicked, wait_until};
use inrush_base::Result;

type Parallel = unsafe extern "C" fn(
    f: extern "C" fn(*mut c_void),
    data: *mut c_void,
    n: c_uint,
    flags: c_uint,
);
type Count = unsafe extern "C" fn() -> c_int;

/// Shares on the stack; more threads than this cost a loop an allocation.
const ON_STACK: usize = 32;

/// The entry points of a loaded OpenMP runtime.
#[derive(Debug)]
pub struct OpenMp {
    parallel: Parallel,
    max_threads: Count,
    thread_num: Count,
    in_parallel: Count,
    /// The runtime makes new threads in a fork, as LLVM's does. GNU's waits for those that stayed in the parent.
    survives_forks: bool,
    /// The process of the first region, as [`Process::number`]; 0 before it.
    used_in: AtomicU64,
}

impl OpenMp {
    /// The entry points as `find` gives them (null for none), where it has all.
    ///
    /// # Safety
    /// Pointers that `find` returns are the functions of these names of one OpenMP runtime, which stays loaded.
    pub unsafe fn with(find: impl Fn(&CStr) -> *const c_void) -> Option<OpenMp> {
        let get = |name: &CStr| Some(find(name)).filter(|p| !p.is_null());
        // SAFETY: the caller says that they have these types.
        unsafe {
            let count = |name| get(name).map(|p| std::mem::transmute::<*const c_void, Count>(p));
            Some(OpenMp {
                parallel: std::mem::transmute::<*const c_void, Parallel>(get(c"GOMP_parallel")?),
                max_threads: count(c"omp_get_max_threads")?,
                thread_num: count(c"omp_get_thread_num")?,
                in_parallel: count(c"omp_in_parallel")?,
                survives_forks: get(c"__kmpc_fork_call").is_some(),
                used_in: AtomicU64::new(0),
            })
        }
    }

    /// The runtime that this process has loaded, if any: first what any library of the process would find by name, then
    /// what only the libraries find that depend on it.
    pub fn of_process() -> Option<OpenMp> {
        #[cfg(unix)]
        {
            // SAFETY: the names belong to OpenMP; libraries found here are never closed.
            let all = unsafe { Self::with(|name| dlsym(std::ptr::null_mut(), name.as_ptr())) };
            all.or_else(loaded)
        }
        #[cfg(not(unix))]
        None
    }

    /// The same with the number of threads from `max_threads` instead of `omp_get_max_threads`: for hosts that set it
    /// for each of their threads late, when that thread first needs it.
    ///
    /// # Safety
    /// `max_threads` may be called from any thread while the runtime is used.
    pub unsafe fn with_max_threads(self, max_threads: Count) -> OpenMp {
        OpenMp {
            max_threads,
            ..self
        }
    }

    /// Returns the threads that a region begun here gets, the caller's included.
    pub(super) fn threads(&self) -> usize {
        // SAFETY: as promised when the entry points were found.
        let (n, nested) = unsafe { ((self.max_threads)(), (self.in_parallel)() != 0) };
        if nested { 1 } else { n.clamp(1, 4096) as usize }
    }

    /// Checks that a region that begins here finds its threads: it does with one thread, and before the process forked.
    pub(super) fn check_fork(&self) -> Result<()> {
        let used = self.used_in.load(Ordering::Relaxed);
        let forked = used != 0 && used != Process::current().number();
        if forked && !self.survives_forks && self.threads() > 1 {
            return Err(fork::forked());
        }
        Ok(())
    }

    /// Runs a loop in a region of `threads` threads, more than one, after [`OpenMp::check_fork`]. Returns its times if it
    /// is to be `timed`, which costs half a microsecond.
    pub(super) fn run(
        &self,
        threads: usize,
        units: usize,
        grain: usize,
        task: Task<'_>,
        timed: bool,
    ) -> (Result<()>, Option<Times>) {
        if self.used_in.load(Ordering::Relaxed) == 0 {
            self.used_in
                .store(Process::watched().number(), Ordering::Relaxed);
        }
        let stack: [Share; ON_STACK];
        let heap: Vec<Share>;
        let shares = if threads <= ON_STACK {
            stack = [const { Share::new() }; ON_STACK];
            &stack[..threads]
        } else {
            heap = (0..threads).map(|_| Share::new()).collect();
            &heap
        };
        let clock = timed.then(Clock::start);
        let region = Region {
            shares,
            task,
            chunk: deal(shares, units, grain),
            thread_num: self.thread_num,
            clock: clock.as_ref(),
            panic: Mutex::new(None),
        };
        let data = std::ptr::from_ref(&region).cast_mut().cast();
        // Always the whole team, as runtimes end the threads that a smaller one leaves out. Where fewer come than were
        // asked for, those take the others' shares.
        // SAFETY: the region ends before the call does.
        unsafe { (self.parallel)(enter, data, threads as c_uint, 0) };
        let times = clock.as_ref().map(Clock::times);
        let result = match lock(&region.panic).take() {
            Some(what) => Err(panicked(&what)),
            None => Ok(()),
        };
        (result, times)
    }
}

/// Times of a region as its caller saw them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    /// Spent in the barriers at begin and end, while no thread of the team had work.
    pub waited: Duration,
    /// Spent in between.
    pub worked: Duration,
}

/// Measures a region.
struct Clock {
    begin: Instant,
    /// Threads that have come, and those of them that have no work any more.
    entered: AtomicUsize,
    left: AtomicUsize,
    /// When the caller came, and when all work was done: nanoseconds after `begin`.
    first: AtomicU64,
    last: AtomicU64,
}

impl Clock {
    fn start() -> Clock {
        Clock {
            begin: Instant::now(),
            entered: AtomicUsize::new(0),
            left: AtomicUsize::new(0),
            first: AtomicU64::new(0),
            last: AtomicU64::new(0),
        }
    }

    /// Returns nanoseconds since the caller began the region.
    fn now(&self) -> u64 {
        u64::try_from(self.begin.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn times(&self) -> Times {
        let [first, last] = [&self.first, &self.last].map(|t| t.load(Ordering::Relaxed));
        Times {
            waited: Duration::from_nanos(first + self.now().saturating_sub(last)),
            worked: Duration::from_nanos(last.saturating_sub(first)),
        }
    }

    /// Notes that a thread has come.
    fn enter(&self, me: usize) {
        if me == 0 {
            self.first.store(self.now(), Ordering::Relaxed);
        }
        self.entered.fetch_add(1, Ordering::AcqRel);
    }

    /// Notes that a thread has no work. Thread 0, which is the caller, waits until this is true of all that have come.
    fn leave(&self, me: usize) {
        self.left.fetch_add(1, Ordering::AcqRel);
        if me == 0 {
            wait_until(|| {
                // In this order: who leaves in between is counted as one who works, not the other way around.
                let left = self.left.load(Ordering::Acquire);
                left == self.entered.load(Ordering::Acquire)
            });
            self.last.store(self.now(), Ordering::Relaxed);
        }
    }
}

/// A loop as its threads see it. What they read comes first and shares a cache line, as each line that a thread fetches from the
/// caller's core costs a tenth of a microsecond.
#[repr(C, align(64))]
struct Region<'a> {
    shares: &'a [Share],
    task: Task<'a>,
    chunk: usize,
    thread_num: Count,
    /// Set in regions that are measured.
    clock: Option<&'a Clock>,
    panic: Mutex<Option<String>>,
}

impl Region<'_> {
    /// Takes part in the loop.
    fn run(&self, me: usize) {
        if let Some(clock) = self.clock {
            clock.enter(me);
        }
        let share = me % self.shares.len();
        drain(self.shares, share, self.chunk, self.task, &self.panic);
        if let Some(clock) = self.clock {
            clock.leave(me);
        }
    }
}

extern "C" fn enter(data: *mut c_void) {
    // SAFETY: `run` passes a region that outlives the call.
    let region = unsafe { &*data.cast::<Region>() };
    // SAFETY: a function of the runtime.
    let me = unsafe { (region.thread_num)() }.max(0) as usize;
    region.run(me);
}

#[cfg(unix)]
unsafe extern "C" {
    fn dlsym(library: *mut c_void, name: *const c_char) -> *const c_void;
    fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void;
}

/// A runtime whose symbols are not visible to every library, by its file.
#[cfg(target_os = "linux")]
fn loaded() -> Option<OpenMp> {
    const LAZY: c_int = 1;
    const NOLOAD: c_int = 4;
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let files = maps.lines().filter_map(|l| l.find('/').map(|at| &l[at..]));
    let runtimes = files.filter(|path| {
        let name = path.rsplit('/').next().unwrap_or(path);
        ["libgomp", "libomp", "libiomp"]
            .iter()
            .any(|r| name.starts_with(r))
    });
    for path in runtimes {
        let Ok(path) = std::ffi::CString::new(path) else {
            continue;
        };
        // SAFETY: a library that is loaded already; the handle is kept, so it stays so.
        let library = unsafe { dlopen(path.as_ptr(), LAZY | NOLOAD) };
        if library.is_null() {
            continue;
        }
        // SAFETY: symbols of that library or of those it depends on.
        let found = unsafe { OpenMp::with(|name| dlsym(library, name.as_ptr())) };
        if found.is_some() {
            return found;
        }
    }
    None
}

#[cfg(all(unix, not(target_os = "linux")))]
fn loaded() -> Option<OpenMp> {
    None
}
