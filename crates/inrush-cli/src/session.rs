//! From a model file to a model that runs, with the time of every step.
//!
//! ```text
//! .pt2     import -> stages -> +- C compiler ----------+-> load
//!                              '- check, bind weights -'
//! package  load
//! ```
//!
//! The C compiler runs in processes of its own, so weights are checked and packed at the same time.

use crate::args::TargetArgs;
use crate::progress::Progress;
use inrush_base::{Caps, Error, Isa, Result, Scalar};
use inrush_compile::{Compiled, Observer, Options};
use inrush_graph::Graph;
use inrush_package::Package;
use inrush_runtime::cache::Cache;
use inrush_runtime::cc::{Compiler, Target};
use inrush_runtime::{Bound, Model, Pool, Tensor, Value, WeightSource, WeightView, cpu_target};
use inrush_torch::Sample;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The machine's properties, for the level that the user asked for.
pub fn caps(target: &TargetArgs) -> Result<Caps> {
    let native = inrush_cpu::detect();
    let isa = match target.target.as_str() {
        "native" => native,
        name => Isa::parse(name).ok_or_else(|| {
            Error::input(format!(
                "unknown target `{name}`: native, scalar, avx2, avx512 or neon"
            ))
        })?,
    };
    let threads = match target.threads {
        Some(0) => return Err(Error::input("--threads must be at least 1")),
        Some(n) => n,
        None => std::thread::available_parallelism().map_or(1, |n| n.get()),
    };
    let mut caps = Caps::cpu(isa, threads);
    caps.vector_math &= inrush_runtime::cc::has_vector_math();
    Ok(caps)
}

/// Returns true if `INRUSH_VERIFY` asks for every stage's output to be verified.
pub fn verify() -> bool {
    inrush_runtime::verify_is_asked_for()
}

/// The time of each step.
#[derive(Clone, Debug, Default)]
pub struct Times {
    /// Stages by name: import, normalize, …, build.
    pub stages: Vec<(&'static str, Duration)>,
    /// Time from the built object to a model that runs. Weights are packed in parallel with the
    /// build.
    pub load: Duration,
}

impl Times {
    /// Everything from the file to the built object.
    pub fn compile(&self) -> Duration {
        self.stages.iter().map(|s| s.1).sum()
    }
    /// Returns the time that the C compiler took.
    pub fn build(&self) -> Duration {
        self.stages
            .iter()
            .filter(|s| s.0 == "build")
            .map(|s| s.1)
            .sum()
    }
}

/// A model that is ready to run.
pub struct Session {
    pub model: Model,
    pub times: Times,
    /// The processor that the model was compiled for.
    pub caps: Caps,
    /// The shared object came from the cache; `None` for a package.
    pub cached: Option<bool>,
    /// Inputs that came with the archive.
    pub samples: Option<Vec<Value>>,
    /// Values of symbols that the archive's example had, by name.
    pub hints: Vec<(String, i64)>,
}

/// Times the stages and names them in the progress line.
pub(crate) struct Watch<'a> {
    pub(crate) times: &'a mut Times,
    pub(crate) progress: &'a Progress,
    pub(crate) start: Instant,
}

impl Observer for Watch<'_> {
    fn begin(&mut self, stage: &'static str) {
        self.progress.step(stage.to_string());
        self.start = Instant::now();
    }
    fn end(&mut self, stage: &'static str, _text: &dyn Fn() -> String) {
        self.times.stages.push((stage, self.start.elapsed()));
    }
}

/// A compiled archive, with the times of its stages.
pub struct CompiledArchive {
    /// Weights and samples; its graph was consumed.
    pub archive: inrush_torch::Model,
    pub compiled: Compiled,
    pub times: Times,
}

/// Imports and compiles an archive for `caps`, up to C source.
pub fn compile_archive(path: &Path, caps: &Caps, progress: &Progress) -> Result<CompiledArchive> {
    let mut times = Times::default();
    let start = Instant::now();
    progress.step("import".into());
    let mut archive = open_archive(path)?;
    times.stages.push(("import", start.elapsed()));
    let graph = std::mem::take(&mut archive.graph);
    let compiled = compile_graph(graph, caps, progress, &mut times)
        .map_err(|e| e.in_file(path.display().to_string()))?;
    Ok(CompiledArchive {
        archive,
        compiled,
        times,
    })
}

/// Compiles a graph for `caps`, up to C source.
pub(crate) fn compile_graph(
    graph: Graph,
    caps: &Caps,
    progress: &Progress,
    times: &mut Times,
) -> Result<Compiled> {
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    let options = Options {
        pieces: threads.min(8),
        threads: threads.min(8),
        verify: verify(),
        ..Options::default()
    };
    let mut watch = Watch {
        times,
        progress,
        start: Instant::now(),
    };
    inrush_compile::compile(graph, caps, &options, &mut watch)
}

/// Opens a `.pt2` archive.
pub fn open_archive(path: &Path) -> Result<inrush_torch::Model> {
    let options = inrush_torch::Options {
        operators: &crate::operators::declared(),
        ..inrush_torch::Options::default()
    };
    inrush_torch::open_with(path, &options)
}

/// Returns the shared object, how long it took, and when it was there.
pub(crate) fn build_pieces(
    pieces: &[String],
    caps: &Caps,
    cache: &Cache,
) -> Result<(inrush_runtime::cc::Built, Duration, Instant)> {
    let start = Instant::now();
    let target = Target {
        isa: caps.isa,
        vector_math: caps.vector_math,
    };
    let built = Compiler::find()?.build(pieces, &target, cache)?;
    let end = Instant::now();
    Ok((built, end - start, end))
}

/// Opens a model of either kind and makes it ready to run.
pub fn open(path: &Path, target: &TargetArgs, cache: &Cache, quiet: bool) -> Result<Session> {
    let caps = caps(target)?;
    let progress = Progress::new(quiet);
    progress.watch();
    if !path.exists() {
        return Err(Error::input("no such file").in_file(path.display().to_string()));
    }
    let pool = Arc::new(Pool::new(Some(caps.threads))?);
    if Package::is_package(path) {
        return open_package(path, caps, pool, &progress);
    }
    if !inrush_cpu::available().contains(&caps.isa) {
        return Err(Error::machine(format!(
            "this processor cannot run {} code (it can run {})",
            caps.isa.name(),
            inrush_cpu::available()
                .iter()
                .map(|i| i.name())
                .collect::<Vec<_>>()
                .join(", ")
        )));
    }
    let CompiledArchive {
        archive,
        compiled,
        mut times,
    } = compile_archive(path, &caps, &progress)?;
    let hints = archive.hints();
    let samples = sample_values(&archive);
    let (pieces, program) = (compiled.pieces, compiled.program);
    progress.step("build: C compiler".into());
    // Weights are checked and laid out while the C compiler works, which is in processes of its own.
    let (built, bound) = std::thread::scope(|s| {
        let building = s.spawn(|| build_pieces(&pieces, &caps, cache));
        // Loading reads every weight anyway; what it reads is compared with the archive's checksums first.
        let bound = archive.weights.check().and_then(|()| {
            let weights = Box::new(ArchiveWeights(archive.weights));
            Bound::new(program, weights, pool)
        });
        let built = building.join();
        (built, bound)
    });
    let bound = bound.map_err(|e| e.in_file(path.display().to_string()))?;
    let (built, took, ended) = built.map_err(|_| Error::internal("the build panicked"))??;
    times.stages.push(("build", took));
    progress.step("load".into());
    let model = (bound.load(&built.path)).map_err(|e| e.in_file(path.display().to_string()))?;
    times.load = ended.elapsed();
    Ok(Session {
        model,
        times,
        caps,
        cached: Some(built.cached),
        samples,
        hints,
    })
}

/// Loads a package. It has no stages, samples or hints.
fn open_package(
    path: &Path,
    mut caps: Caps,
    pool: Arc<Pool>,
    progress: &Progress,
) -> Result<Session> {
    let start = Instant::now();
    progress.step("load".into());
    let package = Package::open(path)?;
    let isa = cpu_target(&package).map_err(|e| e.in_file(path.display().to_string()))?;
    let isa = Isa::parse(&isa.cpu.isa);
    let model =
        Model::from_package(package, pool).map_err(|e| e.in_file(path.display().to_string()))?;
    // A package was compiled for a level of its own.
    caps.isa = isa.unwrap_or(caps.isa);
    let times = Times {
        load: start.elapsed(),
        ..Times::default()
    };
    Ok(Session {
        model,
        times,
        caps,
        cached: None,
        samples: None,
        hints: Vec::new(),
    })
}

/// Returns the archive's sample inputs as values of a call; `None` if it has none, or one that no
/// tensor here can hold.
pub(crate) fn sample_values(archive: &inrush_torch::Model) -> Option<Vec<Value>> {
    let samples = archive.samples.as_ref().ok()?;
    samples
        .iter()
        .map(|s| match s {
            Sample::Tensor(t) => Tensor::from_bytes(t.dtype, t.sizes.clone(), &t.bytes)
                .ok()
                .map(Value::Tensor),
            Sample::Scalar(Scalar::Int(i)) => Some(Value::Int(*i)),
            Sample::Scalar(s) => Some(Value::Scalar(*s)),
            Sample::None => Some(Value::None),
        })
        .collect()
}

/// Weights of a mapped archive as the runtime reads them.
pub(crate) struct ArchiveWeights(pub(crate) inrush_torch::Weights);

impl WeightSource for ArchiveWeights {
    fn weight(&self, name: &str) -> Option<WeightView<'_>> {
        self.0.view(name).map(|w| WeightView {
            dtype: w.dtype,
            sizes: w.sizes,
            strides: w.strides,
            bytes: w.bytes,
        })
    }
}
