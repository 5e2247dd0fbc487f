//! Kernels of packages that hold source: found among records, or built by Triton's workers while the model is loaded.
//!
//! Source is code that Triton's Python runs, so that nothing is built unless the caller allows it. A kernel's first launch waits for
//! that kernel alone. What is built is kept as a record: a process that finds the records of all kernels starts nothing.

use super::model::Options;
use crate::devices;
use crate::gpu::build;
use crate::gpu::driver::Driver;
use crate::gpu::{Builds, Provided};
use crate::program::{Device, Lowered, StepKind};
use inrush_base::{Error, Result};
use inrush_package::{SourceKernel, is_launchable};
use inrush_program::{GpuKernel, GpuTarget};
use inrush_runtime::triton::record::{Machine, Records, Search, key};
use inrush_runtime::triton::{Binary, Pool, Python};
use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Set to 1, kernels of any package are built.
const ALLOWED: &str = "INRUSH_BUILD_KERNELS";

/// Builds that are under way or done.
pub(super) struct Building {
    jobs: Vec<Job>,
    /// By kernel of the program: its job. Kernels that differ in names only share one.
    of: Vec<usize>,
    /// Jobs that no thread has begun.
    queue: Mutex<VecDeque<usize>>,
    /// The model is gone: what was not begun is not built.
    stopped: AtomicBool,
    /// The workers, until all is built: an idle one holds Triton's library.
    pool: Mutex<Option<Arc<Pool>>>,
    /// Jobs that are not done.
    left: AtomicUsize,
    release: String,
    records: Records,
    target: GpuTarget,
    notes: Mutex<Vec<String>>,
    /// By kernel that was chosen among several: how.
    chosen: Mutex<Vec<String>>,
}

/// The build of a kernel, or of a candidate of one.
struct Job {
    kernel: GpuKernel,
    /// Jobs of the candidates, while none is chosen.
    candidates: Vec<usize>,
    /// Name of its records; `None` for a candidate.
    key: Option<String>,
    /// The operators that it computes.
    title: String,
    state: Mutex<State>,
    done: Condvar,
}

enum State {
    Waiting,
    Built(Binary),
    Failed(Error),
}

/// The builds of a model, which end with it.
pub(super) struct Builder {
    building: Arc<Building>,
    /// A call has come to its end.
    has_run: AtomicBool,
}

impl Drop for Builder {
    fn drop(&mut self) {
        self.building.stopped.store(true, Ordering::Release);
    }
}

impl Builder {
    /// Says for each kernel that was chosen among several how that was done.
    pub(super) fn chosen(&self) -> Vec<String> {
        lock(&self.building.chosen).clone()
    }

    /// Returns true if a call has come to its end.
    pub(super) fn has_run(&self) -> bool {
        self.has_run.load(Ordering::Acquire)
    }

    /// Notes the end of a call.
    pub(super) fn note_run(&self) {
        self.has_run.store(true, Ordering::Release);
    }

    /// Says which records were not used, and what could not be written.
    pub(super) fn notes(&self) -> Vec<String> {
        lock(&self.building.notes).clone()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns true if the options or the environment allow builds of a package's source.
///
/// # Errors
/// An input error for a value of the environment that says neither.
fn is_allowed(options: &Options) -> Result<bool> {
    let told = std::env::var_os(ALLOWED);
    match told.as_ref().map(|v| v.to_str()) {
        None | Some(Some("" | "0")) => Ok(options.build_kernels),
        Some(Some("1")) => Ok(true),
        Some(_) => Err(Error::input(format!("{ALLOWED} is neither 0 nor 1"))),
    }
}

/// Returns what records of a device are for.
fn machine(driver: &Driver, device: Device, target: &GpuTarget) -> Result<Machine> {
    let p = driver.properties()?;
    let kind = devices::by_torch_number(device.kind).map_or("", |k| k.device.name);
    Ok(Machine {
        device: format!(
            "{kind} {} with {} multiprocessors, {} bytes of shared memory, {} of cache",
            p.arch, p.multiprocessors, p.shared_bytes, p.l2_bytes
        ),
        driver: driver.version()?,
        target: target.clone(),
    })
}

/// Returns the kernels of a package's target: from records, or by builds that this starts.
///
/// # Errors
/// An unsupported error where a record is missing and builds are not allowed; a machine error where there is no Triton. Both name the
/// first kernel without a record.
pub(super) fn provide(
    sources: Vec<SourceKernel>,
    (lowered, target): (&Lowered, &GpuTarget),
    (driver, device): (&Driver, Device),
    options: &Options,
) -> Result<(Vec<Provided>, Option<Builder>)> {
    let machine = machine(driver, device, target)?;
    let records = Records::new(machine, options.records.clone());
    let keys: Vec<String> = (sources.iter())
        .map(|s| key(&s.kernel, &s.candidates, target))
        .collect::<Result<_>>()?;
    let found: Vec<Search> = keys.iter().map(|k| records.find(k, None)).collect();
    let missing = found.iter().position(|f| matches!(f, Search::Missing(_)));
    let Some(missing) = missing else {
        let all = found.into_iter().filter_map(|f| match f {
            Search::Found(binary) => Some(Provided::Built(binary)),
            Search::Missing(_) => None,
        });
        return Ok((all.collect(), None));
    };
    let titles = titles(lowered);
    let title = |s: &SourceKernel| titles.get(&s.kernel.symbol).cloned().unwrap_or_default();
    let why = match &found[missing] {
        Search::Missing(why) if !why.is_empty() => format!("; {}", why.join("; ")),
        _ => String::new(),
    };
    let none = format!(
        "the package holds the source of its kernels, and `{}` ({}) has no record here{why}",
        sources[missing].kernel.function,
        title(&sources[missing])
    );
    if !is_allowed(options)? {
        return Err(Error::unsupported(format!(
            "{none}: building it has Triton run code of the package, which is not allowed. If you trust the package, allow it \
             (`--build-kernels`, `build_kernels`, or {ALLOWED}=1)"
        )));
    }
    let python = Python::at(options.python.as_deref()).map_err(|e| e.context(none))?;
    let pool = python.pool(false)?;
    let mut building = Building {
        jobs: Vec::new(),
        of: Vec::new(),
        queue: Mutex::default(),
        stopped: AtomicBool::new(false),
        release: python.release().to_string(),
        target: target.clone(),
        notes: Mutex::default(),
        chosen: Mutex::default(),
        pool: Mutex::new(Some(Arc::new(pool))),
        left: AtomicUsize::new(0),
        records,
    };
    let mut by_key: BTreeMap<String, usize> = BTreeMap::new();
    for (source, key) in sources.into_iter().zip(keys) {
        let job = *by_key.entry(key.clone()).or_insert(building.jobs.len());
        if job == building.jobs.len() {
            let title = title(&source);
            building.add(source, key, title);
        }
        building.of.push(job);
    }
    let count = building.of.len();
    building.fill();
    let building = Arc::new(building);
    start(&building)?;
    let later = |k| Provided::Later(building.clone() as Arc<dyn Builds>, k);
    let all = (0..count).map(later).collect();
    let builder = Builder {
        building,
        has_run: AtomicBool::new(false),
    };
    Ok((all, Some(builder)))
}

/// Returns the operators that kernels compute, by symbol.
fn titles(lowered: &Lowered) -> BTreeMap<String, String> {
    let mut titles = BTreeMap::new();
    for l in lowered.programs() {
        for step in &l.program.steps {
            match &step.kind {
                StepKind::Segment(s) => {
                    let named = s.program.kernels.iter();
                    titles.extend(named.map(|k| (k.symbol.clone(), k.title.clone())));
                }
                StepKind::Kernel(k) => {
                    let gpu = l.program.gpu.as_ref();
                    let kernel = gpu.and_then(|g| g.kernels.get(k.kernel));
                    titles.extend(kernel.map(|g| (g.symbol.clone(), k.title.clone())));
                }
                _ => {}
            }
        }
    }
    titles
}

/// Starts the threads that build, as many as there are workers.
fn start(building: &Arc<Building>) -> Result<()> {
    let waiting = lock(&building.queue).len();
    let workers = lock(&building.pool).as_ref().map_or(0, |p| p.workers());
    let threads = workers.min(waiting);
    for k in 0..threads {
        let mine = building.clone();
        let thread = std::thread::Builder::new().name("inrush-build".into());
        let started = thread.spawn(move || mine.work());
        if let (Err(e), 0) = (started, k) {
            return Err(Error::machine(format!("no thread for builds: {e}")));
        }
    }
    Ok(())
}

impl Building {
    /// Adds a kernel with its candidates, unless it has a record of this release of Triton.
    fn add(&mut self, source: SourceKernel, key: String, title: String) {
        let at = self.jobs.len();
        let found = self.records.find(&key, Some(&self.release));
        let mut job = Job::new(source.kernel, Some(key), title.clone());
        match found {
            Search::Found(binary) => {
                job.state = Mutex::new(State::Built(binary));
                self.jobs.push(job);
            }
            Search::Missing(why) => {
                lock(&self.notes).extend(why);
                job.candidates = (at + 1..=at + source.candidates.len()).collect();
                self.jobs.push(job);
                let others = source.candidates.into_iter();
                (self.jobs).extend(others.map(|k| Job::new(k, None, title.clone())));
            }
        }
    }

    /// Puts what is to be built into the queue, the rules' choices first.
    fn fill(&self) {
        let waiting = |at: &usize| matches!(*lock(&self.jobs[*at].state), State::Waiting);
        let mut order: Vec<usize> = (0..self.jobs.len()).filter(waiting).collect();
        order.sort_by_key(|at| self.jobs[*at].key.is_none());
        self.left.store(order.len(), Ordering::Release);
        *lock(&self.queue) = order.into();
    }

    /// Builds what no other thread builds, until nothing is left.
    fn work(&self) {
        while !self.stopped.load(Ordering::Acquire) {
            let pool = lock(&self.pool).clone();
            let (Some(pool), Some(at)) = (pool, lock(&self.queue).pop_front()) else {
                return;
            };
            let job = &self.jobs[at];
            // Whoever waits must not wait for a thread that is gone.
            let made = catch_unwind(AssertUnwindSafe(|| self.build(job, &pool)))
                .unwrap_or_else(|_| Err(Error::internal("the build of a kernel panicked")));
            *lock(&job.state) = match made {
                Ok(binary) => State::Built(binary),
                Err(e) => State::Failed(e),
            };
            job.done.notify_all();
            if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
                lock(&self.pool).take();
            }
        }
        // Nothing waits for the others: calls hold the model.
    }

    /// Builds a kernel and keeps its record.
    fn build(&self, job: &Job, pool: &Pool) -> Result<Binary> {
        let kernel = &job.kernel;
        let built = pool.build(kernel, &self.target);
        let binary = built.map_err(|e| e.context(format!("a kernel of `{}`", job.title)))?;
        build::check_launchable(kernel, &binary)?;
        if !is_launchable(&binary.info, &self.target) {
            return Err(Error::unsupported(format!(
                "the kernel `{}` asks for more than a launch gives",
                kernel.function
            )));
        }
        if job.candidates.is_empty() {
            self.record(job, &binary, "the only one");
        }
        Ok(binary)
    }

    /// Keeps the record of a kernel.
    fn record(&self, job: &Job, binary: &Binary, choice: &str) {
        if let Some(key) = &job.key {
            let notes = (self.records).keep(key, binary, &self.release, choice);
            lock(&self.notes).extend(notes);
        }
    }

    fn job(&self, kernel: usize) -> Option<usize> {
        self.of.get(kernel).copied()
    }

    /// Waits for a job, which comes first from now on.
    fn wait_for(&self, at: usize) -> Result<Binary> {
        {
            let mut queue = lock(&self.queue);
            if let Some(place) = queue.iter().position(|j| *j == at) {
                queue.remove(place);
                queue.push_front(at);
            }
        }
        let job = &self.jobs[at];
        let mut state = lock(&job.state);
        loop {
            match &*state {
                State::Built(binary) => return Ok(binary.clone()),
                State::Failed(e) => return Err(e.clone()),
                State::Waiting => {}
            }
            state = job.done.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Job {
    fn new(kernel: GpuKernel, key: Option<String>, title: String) -> Job {
        Job {
            kernel,
            candidates: Vec::new(),
            key,
            title,
            state: Mutex::new(State::Waiting),
            done: Condvar::new(),
        }
    }
}

impl Builds for Building {
    fn wait(&self, kernel: usize) -> Result<Binary> {
        let at = self.job(kernel);
        self.wait_for(at.ok_or_else(|| Error::internal("a kernel that is not built"))?)
    }

    fn is_chosen_later(&self, kernel: usize) -> bool {
        self.job(kernel)
            .is_some_and(|at| !self.jobs[at].candidates.is_empty())
    }

    fn candidates(&self, kernel: usize) -> Vec<(String, Result<Binary>)> {
        let jobs = self.job(kernel).map(|at| &self.jobs[at].candidates);
        let made = |(n, at): (usize, &usize)| {
            let k = &self.jobs[*at].kernel;
            let sizes = k.constants.iter().map(|(n, v)| format!(" {n}={v}"));
            let name = format!(
                "candidate {n} of {} warps, {} stages{}",
                k.warps,
                k.stages,
                sizes.collect::<String>()
            );
            (name, self.wait_for(*at))
        };
        jobs.into_iter().flatten().enumerate().map(made).collect()
    }

    fn keep(&self, kernel: usize, chosen: Option<usize>, choice: String) {
        let Some(job) = self.job(kernel).map(|at| &self.jobs[at]) else {
            return;
        };
        let from = match chosen {
            None => Some(job),
            Some(k) => job.candidates.get(k).map(|at| &self.jobs[*at]),
        };
        let state = from.map(|j| lock(&j.state));
        if let Some(State::Built(binary)) = state.as_deref() {
            self.record(job, binary, &choice);
        }
        let title = format!("`{}`: {choice}", job.title);
        lock(&self.chosen).push(title);
    }
}
