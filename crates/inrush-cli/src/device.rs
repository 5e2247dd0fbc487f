//! `inrush run --device`: a model on a GPU. Python builds kernels that are not in the cache, and
//! takes no part in calls.
//!
//! ```text
//! archive -> compile_sequence -> native::lower -> Triton in worker processes -> Model -> calls
//! ```
//!
//! `inrush-host` runs the sequence in this process, with the driver and, for matrix products, with
//! cuBLAS. The latter is looked for in the folders of Python packages; without it products are
//! compiled.

use crate::args::RunArgs;
use crate::io;
use crate::out::say;
use crate::progress::Progress;
use crate::run::{Check, measure_calls, write_outputs};
use crate::session::{self, ArchiveWeights, Times, Watch};
use inrush_base::{Error, Result};
use inrush_compile::{Libraries, Options, Request, compile_sequence};
use inrush_host::gpu::{build, cublas};
use inrush_host::native::{self, Model, Process};
use inrush_host::program::StepKind;
use inrush_program::GpuTarget;
use inrush_runtime::cache::Cache;
use inrush_runtime::triton::{Pool, Setup};
use inrush_runtime::{Tensor, Value};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

/// The process that builds kernels.
const WORKER: &str = include_str!("../../../python/inrush/triton/worker.py");
/// Longest build of one kernel.
const PATIENCE: Duration = Duration::from_secs(300);
/// Workers at most; each holds Triton's library, some 100 MB.
const MAX_WORKERS: usize = 16;
/// Prints the release of Triton, then the folders of NVIDIA's libraries that Python packages bring.
const FIND: &str = "\
import glob, importlib.metadata, os, sysconfig
print(importlib.metadata.version('triton'))
roots = {sysconfig.get_path('purelib'), sysconfig.get_path('platlib')}
for root in sorted(roots):
    for folder in sorted(glob.glob(os.path.join(root, 'nvidia', '*', 'lib'))):
        print(folder)
";

/// A Python interpreter with Triton.
struct Python {
    path: PathBuf,
    /// Release of Triton.
    triton: String,
    /// Folders with libraries of NVIDIA's.
    folders: Vec<PathBuf>,
}

impl Python {
    /// Asks the interpreter once for everything: starting an interpreter is slow.
    fn find() -> Result<Python> {
        let path = std::env::var_os("INRUSH_PYTHON").unwrap_or_else(|| "python3".into());
        let path = PathBuf::from(path);
        let failed = |why: String| {
            Error::machine(format!(
                "kernels for GPUs are built by the Python package `triton`: `{}` does not import it ({why}); \
                 INRUSH_PYTHON names another interpreter",
                path.display()
            ))
        };
        let out = Command::new(&path)
            .args(["-c", FIND])
            .output()
            .map_err(|e| failed(e.to_string()))?;
        if !out.status.success() {
            let text = String::from_utf8_lossy(&out.stderr);
            return Err(failed(text.lines().last().unwrap_or_default().to_string()));
        }
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        let mut lines = text.lines();
        Ok(Python {
            triton: lines.next().unwrap_or_default().to_string(),
            folders: lines.map(PathBuf::from).collect(),
            path,
        })
    }

    /// Returns what builds kernels. The workers' script is written to the cache.
    fn pool(&self) -> Result<Pool> {
        let folder = Cache::default_dir().join("triton");
        let script = folder.join("worker.py");
        if std::fs::read(&script).ok().as_deref() != Some(WORKER.as_bytes()) {
            // Written to a temporary file and renamed: another process may read the script
            // meanwhile.
            let write = || -> std::io::Result<()> {
                std::fs::create_dir_all(&folder)?;
                let mut file = tempfile::NamedTempFile::new_in(&folder)?;
                file.write_all(WORKER.as_bytes())?;
                file.persist(&script).map_err(|e| e.error)?;
                Ok(())
            };
            write().map_err(|e| Error::machine(format!("{}: {e}", script.display())))?;
        }
        Ok(Pool::new(Setup {
            python: self.path.clone(),
            script,
            folder,
            version: self.triton.clone(),
            workers: std::thread::available_parallelism().map_or(1, |n| n.get().min(MAX_WORKERS)),
            patience: PATIENCE,
        }))
    }
}

/// A model that is ready to run, and what it took.
struct Session {
    model: Model,
    /// Names of the inputs, by position.
    inputs: Vec<String>,
    /// Inputs that came with the archive.
    samples: Option<Vec<Value>>,
    times: Times,
    cached: bool,
    target: GpuTarget,
    /// Operators that a library does.
    libraries: Libraries,
}

/// Runs a model on the device that `--device` names.
pub fn run(a: &RunArgs) -> Result<ExitCode> {
    let given = a.inputs.as_deref().map(io::read).transpose()?;
    let expect = a.expect.as_deref().map(io::read).transpose()?;
    let s = open(a)?;
    let inputs = match (given, &s.samples) {
        (Some(tensors), _) => bind(&s.inputs, tensors).map_err(|e| match &a.inputs {
            Some(path) => e.in_file(path.display().to_string()),
            None => e,
        })?,
        (None, Some(samples)) => samples.clone(),
        (None, None) => {
            return Err(Error::input(
                "the archive has no sample inputs: pass --inputs",
            ));
        }
    };
    let outputs = s.model.run(&inputs)?;
    let report = Check::new(&outputs, expect.as_ref())?;
    write_outputs(a, &outputs)?;
    let limit = Duration::from_secs_f64(a.seconds);
    let latency = measure_calls(&mut || s.model.run(&inputs), limit)?;
    let ms = |d: Duration| d.as_secs_f64() * 1e3;
    let (launches, products) = count(&s.model);
    let device = format!("{}, {}", a.device, s.target.arch);
    if a.json {
        let line = serde_json::json!({
            "model": a.model.display().to_string(),
            "device": device,
            "libraries": format!("{:?}", s.libraries),
            "compile_ms": ms(s.times.compile()),
            "cached": s.cached,
            "load_ms": ms(s.times.load),
            "run_ms": ms(latency.median),
            "launches": launches,
            "products": products,
            "max_rel_err": report.max_rel_err,
            "accuracy": report.accuracy.map(|(r, n)| r as f64 / n as f64),
        });
        say!("{line}")?;
    } else {
        say!("{}  on {device}", a.model.display())?;
        let cached = if s.cached { ", from the cache" } else { "" };
        say!("  compile  {:.1} ms{cached}", ms(s.times.compile()))?;
        say!("  load     {:.1} ms", ms(s.times.load))?;
        say!(
            "  run      {:.3} ms (median of {}, best {:.3}), copies of inputs and outputs included",
            ms(latency.median),
            latency.count,
            ms(latency.best)
        )?;
        say!("  kernels  {launches} launches, {products} products of cuBLAS")?;
        report.print(a.tolerance)?;
    }
    Ok(report.exit_code(a))
}

/// Compiles an archive for the device and loads it.
fn open(a: &RunArgs) -> Result<Session> {
    let device = native::device::parse(&a.device)?;
    let in_file = |e: Error| e.in_file(a.model.display().to_string());
    if !a.model.exists() {
        return Err(in_file(Error::input("no such file")));
    }
    if inrush_package::Package::is_package(&a.model) {
        return Err(in_file(Error::unsupported("packages run on CPUs only")));
    }
    let (caps, target) = native::device::caps(device)?;
    let python = Python::find()?;
    let blas = if a.no_libraries {
        None
    } else {
        cublas::find(&python.folders)
    };
    if blas.is_none() && !a.no_libraries {
        eprintln!("inrush: cuBLAS is not found: matrix products are compiled");
    }
    let progress = Progress::new(a.json);
    progress.watch();
    let mut times = Times::default();
    let start = Instant::now();
    progress.step("import".into());
    let mut archive = session::open_archive(&a.model)?;
    let samples = session::sample_values(&archive);
    let graph = std::mem::take(&mut archive.graph);
    times.stages.push(("import", start.elapsed()));
    let libraries = match blas {
        Some(_) => Libraries::Products,
        None => Libraries::None,
    };
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    let options = Options {
        threads: threads.min(8),
        libraries,
        ..Options::default()
    };
    let mut watch = Watch {
        times: &mut times,
        progress: &progress,
        start: Instant::now(),
    };
    let request = Request {
        // Nothing here asks for gradients, so passes may drop what only they read.
        inference: true,
        ..Request::default()
    };
    let sequence =
        compile_sequence(graph, &request, &caps, &options, &mut watch).map_err(in_file)?;
    let lowered = native::lower(sequence, &caps, device, target.clone()).map_err(in_file)?;
    let start = Instant::now();
    progress.step("build: Triton".into());
    let gpu = (lowered.program.gpu.as_ref()).ok_or_else(|| Error::internal("no kernels"))?;
    let (binaries, cached) = build::build(&python.pool()?, gpu)?;
    times.stages.push(("build", start.elapsed()));
    let start = Instant::now();
    progress.step("load".into());
    archive.weights.check().map_err(in_file)?;
    let inputs = lowered.inputs.clone();
    let weights = ArchiveWeights(archive.weights);
    let model = Model::new(lowered, binaries, &weights, Process::new(blas)?).map_err(in_file)?;
    times.load = start.elapsed();
    Ok(Session {
        model,
        inputs,
        samples,
        times,
        cached,
        target,
        libraries,
    })
}

/// Returns the number of launches and of products in a call.
fn count(model: &Model) -> (usize, usize) {
    let (mut launches, mut products) = (0, 0);
    for step in &model.program().steps {
        match &step.kind {
            StepKind::Segment(s) => launches += s.program.steps.len(),
            StepKind::Library(_) => products += 1,
            _ => {}
        }
    }
    (launches, products)
}

/// Returns tensors of a file as inputs: by name, else by position.
fn bind(names: &[String], mut tensors: BTreeMap<String, Tensor>) -> Result<Vec<Value>> {
    let mut out = Vec::with_capacity(names.len());
    for (i, name) in names.iter().enumerate() {
        let found = (tensors.remove(name)).or_else(|| tensors.remove(&i.to_string()));
        let t = found.ok_or_else(|| {
            Error::input(format!(
                "no tensor for input `{name}`, under that key or `{i}`"
            ))
        })?;
        out.push(Value::Tensor(t));
    }
    if let Some(extra) = tensors.keys().next() {
        return Err(Error::input(format!(
            "the tensor `{extra}` belongs to no input"
        )));
    }
    Ok(out)
}
