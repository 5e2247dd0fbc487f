//! Machine code for a program: built in a thread, through a cache that is keyed by content.

use super::report::Report;
use crate::errors::raise;
use crate::host::run::{Loaded, MachineCode, Runner};
use crate::host::{Engine, triton};
use inrush_base::Error;
use inrush_host::gpu::build;
use inrush_host::program::{self, HostProgram};
use inrush_runtime::cache::Cache;
use inrush_runtime::cc::{Built, Compiler, Target};
use inrush_runtime::watch::Cancel;
use inrush_runtime::{MemoryWeights, Model, Parts, Pool};
use pyo3::prelude::*;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// A graph whose kernels are being built, or will be.
pub struct Pending {
    pub program: HostProgram,
    /// Constants and called operators, by the program's ids.
    pub objects: Vec<Py<PyAny>>,
    pub report: Report,
    pool: Arc<Pool>,
    /// `None` if the graph has no kernels, and once the build has started.
    code: Option<Code>,
    build: Option<Build>,
}

impl Pending {
    /// Collects what a build needs, and starts none.
    pub fn new(
        py: Python<'_>,
        mut program: HostProgram,
        objects: Vec<Py<PyAny>>,
        report: Report,
        pool: Arc<Pool>,
    ) -> PyResult<Pending> {
        // A library call that becomes a call from Python changes the program that is stored.
        Engine::adapt(py, &mut program)?;
        Ok(Pending {
            code: Code::of(py, &program)?,
            program,
            objects,
            report,
            pool,
            build: None,
        })
    }

    /// Starts the build in a thread, unless it runs.
    ///
    /// # Errors
    /// A machine error if the process may have no more threads.
    pub fn start(&mut self) -> Result<(), Error> {
        if let Some(code) = self.code.take() {
            self.build = Some(Build::start(code)?);
        }
        Ok(())
    }

    /// Starts the build if need be, waits up to 50 ms, and returns true if all is built.
    ///
    /// # Errors
    /// Those of [`Pending::start`].
    pub fn is_built(&mut self) -> Result<bool, Error> {
        self.start()?;
        Ok(self.build.as_mut().is_none_or(Build::is_done))
    }

    /// Loads what was built, without the interpreter's lock.
    pub fn finish(self) -> PyResult<(Runner, Report)> {
        let (made, took) = match self.build {
            Some(build) => {
                let (made, took) = build.result().map_err(raise)?;
                (Some(made), took)
            }
            None => (None, Duration::ZERO),
        };
        let start = Instant::now();
        let mut report = self.report;
        let (code, cached) = machine_code(&self.program, &self.pool, made)?;
        report.cached = cached;
        (report.stages).push(("build".into(), took + start.elapsed()));
        Ok((Runner::new(self.program, self.objects, code), report))
    }
}

/// Returns machine code for a program, built unless it is in the cache, and true if it was there.
/// Waits for the build, and answers signals meanwhile.
pub fn load(
    py: Python<'_>,
    program: &mut HostProgram,
    pool: &Arc<Pool>,
) -> PyResult<(MachineCode, Option<bool>)> {
    // As in `Pending::new`.
    Engine::adapt(py, program)?;
    let made = match Code::of(py, program)? {
        Some(code) => {
            let mut build = Build::start(code).map_err(raise)?;
            while !py.detach(|| build.is_done()) {
                py.check_signals()?;
            }
            Some(build.result().map_err(raise)?.0)
        }
        None => None,
    };
    py.detach(|| machine_code(program, pool, made))
}

/// Loads what was built for a program, if anything was. Called without the interpreter's lock.
fn machine_code(
    program: &HostProgram,
    pool: &Arc<Pool>,
    made: Option<Made>,
) -> PyResult<(MachineCode, Option<bool>)> {
    let Some(g) = &program.gpu else {
        let object = match made {
            Some(Made::Object(object)) => Some(object),
            _ => None,
        };
        let (segments, cached) = load_segments(program, pool, object).map_err(raise)?;
        return Ok((MachineCode::Cpu(segments), cached));
    };
    let (binaries, cached) = match made {
        Some(Made::Binaries(binaries, cached)) => (binaries, Some(cached)),
        _ => (Vec::new(), None),
    };
    let engine = Python::attach(|py| Engine::new(py, program, binaries, g.graphs))?;
    Ok((MachineCode::Gpu(Box::new(engine)), cached))
}

/// Everything that a background build needs. Collected by the caller, because reading the
/// environment is not thread-safe.
#[derive(Clone)]
pub enum Code {
    /// C source.
    C {
        pieces: Vec<String>,
        target: Target,
        compiler: Compiler,
        cache: Cache,
    },
    /// Triton source.
    Triton {
        workers: &'static inrush_runtime::triton::Pool,
        gpu: program::Gpu,
    },
}

/// Machine code that was built; for binaries true if all were in the cache.
pub enum Made {
    Object(Built),
    Binaries(Vec<inrush_runtime::triton::Binary>, bool),
}

impl Code {
    /// Returns `None` where there are no kernels, or where they are interpreted.
    pub fn of(py: Python<'_>, program: &HostProgram) -> PyResult<Option<Code>> {
        if let Some(g) = &program.gpu {
            if !g.device.is_gpu() || g.kernels.is_empty() {
                return Ok(None);
            }
            return Ok(Some(Code::Triton {
                workers: triton::pool(py)?,
                gpu: g.clone(),
            }));
        }
        if program.pieces.iter().all(|p| p.is_empty()) {
            return Ok(None);
        }
        let target = Target {
            isa: program.isa().map_err(raise)?,
            vector_math: program.vector_math,
        };
        Ok(Some(Code::C {
            pieces: program.pieces.clone(),
            target,
            compiler: Compiler::find().map_err(raise)?,
            cache: Cache::open_default(),
        }))
    }

    /// Returns the machine code, from the cache or built.
    fn build(&self, cancel: &Cancel) -> Result<Made, Error> {
        match self {
            Code::C {
                pieces,
                target,
                compiler,
                cache,
            } => (compiler.build_unless(pieces, target, cache, Some(cancel))).map(Made::Object),
            Code::Triton { workers, gpu } => {
                let (binaries, cached) = build::build(workers, gpu)?;
                Ok(Made::Binaries(binaries, cached))
            }
        }
    }
}

/// A build that runs in a thread of its own, so that its waiter can answer signals. Dropping it
/// stops the C compiler; kernels of Triton are built to their end.
pub struct Build {
    code: Code,
    /// The process that started the thread. A fork inherits the memory but not the thread.
    process: u32,
    /// Set by `drop`, polled by the wait for the C compiler.
    cancel: Cancel,
    done: Receiver<BuildResult>,
    /// Received from the thread, until [`Build::result`] takes it.
    result: Option<BuildResult>,
}

type BuildResult = Result<(Made, Duration), Error>;

impl Build {
    /// Starts the thread.
    ///
    /// # Errors
    /// A machine error if the process may have no more threads.
    pub fn start(code: Code) -> Result<Build, Error> {
        let (tell, done) = std::sync::mpsc::channel();
        let cancel = Cancel::default();
        let (own, asked) = (code.clone(), cancel.clone());
        std::thread::Builder::new()
            .name("inrush build".into())
            .spawn(move || {
                let start = Instant::now();
                let built = own.build(&asked).map(|b| (b, start.elapsed()));
                // The receiver may be gone: its graph was dropped.
                let _ = tell.send(built);
            })
            .map_err(|e| Error::machine(format!("cannot start a thread: {e}")))?;
        Ok(Build {
            code,
            process: std::process::id(),
            cancel,
            done,
            result: None,
        })
    }

    /// Waits up to 50 ms, which bounds the delay of Ctrl-C, and returns true if the build is done.
    fn is_done(&mut self) -> bool {
        if self.result.is_none() && self.process != std::process::id() {
            // A fork has no thread but the one that forked, so nothing would ever be sent. Build
            // here.
            let start = Instant::now();
            let built = self.code.build(&Cancel::default());
            self.result = Some(built.map(|b| (b, start.elapsed())));
        }
        if self.result.is_none() {
            self.result = match self.done.recv_timeout(Duration::from_millis(50)) {
                Ok(built) => Some(built),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => {
                    let what = "the thread that builds kernels panicked";
                    Some(Err(Error::internal(what)))
                }
            };
        }
        self.result.is_some()
    }

    /// Waits until the build is done, and returns what came of it.
    fn result(mut self) -> BuildResult {
        loop {
            if self.is_done() {
                // Taken once: this is the end of the build.
                let none = || Err(Error::internal("a build without a result"));
                return self.result.take().unwrap_or_else(none);
            }
        }
    }
}

impl Drop for Build {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

/// Loads the machine code of a program's segments on the CPU.
fn load_segments(
    program: &HostProgram,
    pool: &Arc<Pool>,
    object: Option<Built>,
) -> Result<(Vec<Option<Loaded>>, Option<bool>), Error> {
    let segments = program
        .steps
        .iter()
        .map(|step| match (&step.kind, &object) {
            (program::StepKind::Segment(s), Some(built)) => Model::from_parts(Parts {
                program: s.program.clone(),
                object: &built.path,
                weights: Box::new(MemoryWeights::default()),
                pool: pool.clone(),
            })
            .map(|m| Some(Loaded::new(m))),
            (program::StepKind::Segment(_), None) => {
                Err(Error::internal("a segment without kernels"))
            }
            _ => Ok(None),
        })
        .collect::<Result<_, Error>>()?;
    Ok((segments, object.map(|o| o.cached)))
}
