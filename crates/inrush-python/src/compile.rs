//! From an FX graph to a callable: import, the compiler's stages, the C compiler, and what a call
//! needs.
//!
//! ```text
//! GraphModule --import--> Graph + Request --compile_sequence--> Sequence
//!             --host_program--> HostProgram + objects --build, load--> Runner
//! ```
//!
//! 1. *import* ([`fx::import`]) needs the interpreter. It gives the graph, and a [`Request`] that
//!    says which nodes have to be called and which integers these calls take.
//! 2. The stages (`inrush-compile`) run without the interpreter's lock. Their result is a sequence
//!    of segments, views and called operators.
//! 3. *bind* turns values into slots, FX nodes into argument templates, and integers into ids of
//!    the size arithmetic. Python objects move into one list; the program names them by position,
//!    so that it can be serialized.
//! 4. *build* compiles C pieces or Triton kernels through a cache that is keyed by content. It runs
//!    in a thread ([`Build`]), either awaited here or, with [`Settings::later`], by the first call.

use crate::errors::raise;
use crate::fx::{self, Imported, Source};
use crate::host::call::Reader;
use crate::host::run::{self, Loaded, MachineCode, Runner};
use crate::host::{self, Engine, device, triton};
use inrush_aten::random::SEED_OPERATOR;
use inrush_base::{Caps, Error};
use inrush_compile::{
    Observer, Options, Request, Sequence, SequenceOutput, SymbolFrom, Tuner, What, compile_sequence,
};
use inrush_cpu::OpenMp;
use inrush_graph::{InputKind, NodeId, Type, ValueId};
use inrush_host::devices;
use inrush_host::gpu::build;
use inrush_host::gpu::tune::{AtCall, Bench};
use inrush_host::program::{self, Device, HostProgram, Out, Read, Step};
use inrush_program::{Dt, GpuTarget};
use inrush_runtime::cache::Cache;
use inrush_runtime::cc::{Built, Compiler, Target};
use inrush_runtime::watch::Cancel;
use inrush_runtime::{MemoryWeights, Model, Parts, Pool};
use pyo3::prelude::*;
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// How a graph is compiled, from the user's options.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// A broken invariant in a stage is an error; otherwise the operators of its segment are
    /// called.
    pub strict: bool,
    /// Nothing of the graph is kept for gradients.
    pub inference: bool,
    /// Threads; PyTorch's number where left out.
    pub threads: Option<usize>,
    /// Random operators are called, so that they follow eager's stream.
    pub fallback_random: bool,
    /// A folder that gets the text of every stage.
    pub trace: Option<PathBuf>,
    /// Calls on a GPU are captured and replayed.
    pub graphs: bool,
    /// How kernels for a GPU name the elements of strided tiles.
    pub pointers: inrush_compile::Pointers,
    /// Tiles of kernels for a GPU are measured.
    pub tune: Tune,
    /// A preset by the name of its device and its own: it stands for the properties of devices, so that a machine without one can
    /// compile.
    pub gpu: Option<String>,
    /// Compile graphs of the CPU for that preset, and run their kernels in Triton's interpreter: for tests.
    pub interpret: bool,
    /// The C compiler, or Triton, works while the caller goes on; what it finds is told later.
    pub later: bool,
}

/// When tiles are measured.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub enum Tune {
    #[default]
    Never,
    /// While compiling.
    Now,
    /// At the first call, on its memory.
    AtCall,
    /// Never, but what won before is taken.
    Known,
}

/// What compiling did.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// Time by stage, in the order of their first run; several segments of one stage are added up.
    pub stages: Vec<(String, Duration)>,
    /// Kernels by what is fused in them.
    pub kernels: Vec<String>,
    /// Matrix products and convolutions.
    pub contractions: usize,
    /// Compiled parts of the graph.
    pub segments: usize,
    /// Operators that a vendor's library does.
    #[serde(default)]
    pub libraries: Vec<String>,
    /// Kernels whose tiles were measured: what the rules chose, what won, with microseconds.
    #[serde(default)]
    pub tuned: Vec<String>,
    /// The first call will measure tiles; what wins is for those who compile again.
    #[serde(default)]
    pub untuned: bool,
    /// Called operators with the reason and the Python line.
    pub calls: Vec<(String, String, Option<String>)>,
    /// True if the machine code came from the cache; `None` when there is none.
    pub cached: Option<bool>,
    /// Fusions that were refused.
    pub refusals: Vec<String>,
}

/// Times the stages, and keeps their text where it is wanted.
struct Watch {
    /// Begin of the stage that runs.
    start: Instant,
    report: Report,
    /// Text by stage; `None` unless a trace was asked for, since printing takes time.
    trace: Option<FxHashMap<&'static str, String>>,
    /// Measures tiles; moved out when the stages are done.
    tuner: Option<Bench>,
}

impl Watch {
    fn add(&mut self, stage: &'static str, took: Duration) {
        let stages = &mut self.report.stages;
        match stages.iter_mut().find(|s| s.0 == stage) {
            Some(s) => s.1 += took,
            None => stages.push((stage.to_string(), took)),
        }
    }
}

impl Observer for Watch {
    fn begin(&mut self, _stage: &'static str) {
        self.start = Instant::now();
    }
    fn end(&mut self, stage: &'static str, text: &dyn Fn() -> String) {
        self.add(stage, self.start.elapsed());
        if let Some(t) = &mut self.trace {
            let all = t.entry(stage).or_default();
            all.push_str(&text());
            all.push('\n');
        }
    }
    fn tuner(&mut self) -> Option<&mut dyn Tuner> {
        self.tuner.as_mut().map(|t| t as &mut dyn Tuner)
    }
}

/// What compiling gives.
pub enum Outcome {
    Ready(Runner, Report),
    /// With [`Settings::later`].
    Pending(Box<Pending>),
}

/// A graph whose kernels are being built.
pub struct Pending {
    pub program: HostProgram,
    /// Constants and called operators, by the program's ids.
    objects: Vec<Py<PyAny>>,
    report: Report,
    pool: Arc<Pool>,
    /// `None` if the graph has no kernels.
    build: Option<Build>,
}

impl Pending {
    /// Waits up to 50 ms, and returns true if all is built.
    pub fn is_built(&mut self) -> bool {
        self.build.as_mut().is_none_or(Build::is_done)
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

/// Compiles an FX graph module of ATen operators. `resolve` tells what to call for an FX node; by default its target.
pub fn compile(
    py: Python<'_>,
    gm: &Bound<'_, PyAny>,
    settings: &Settings,
    resolve: Option<&Bound<'_, PyAny>>,
) -> PyResult<Outcome> {
    let mut watch = Watch {
        start: Instant::now(),
        report: Report::default(),
        trace: settings.trace.is_some().then(FxHashMap::default),
        tuner: None,
    };
    // The device decides which tensors the graph can hold, so it is found before the import.
    let place = Place::of(py, gm, settings)?;
    if settings.tune != Tune::Never {
        watch.tuner = place.bench(py, settings.tune != Tune::Now)?;
    }
    let mut imported = fx::import(py, gm, place.device, place.gpu.is_some())?;
    // Either way random operators are fixed before the stages run: they become calls, which advance
    // PyTorch's generator as eager does, or read a seed that the first node draws.
    match settings.fallback_random {
        true => imported.call_draws(),
        false => imported.draw(),
    }
    let graph = std::mem::take(&mut imported.graph);
    let text = || graph.print();
    watch.end("import", &text);
    let mut request = Request {
        inference: settings.inference,
        ..Request::default()
    };
    let pure = (0..imported.pure.len()).filter(|n| imported.pure[*n]);
    request.pure = pure.map(NodeId::from_index).collect();
    for (n, why) in imported.called.iter().enumerate() {
        if let Some(why) = why {
            request.called.insert(NodeId::from_index(n), why.clone());
        }
    }
    for s in imported.sources.values() {
        s.ints(&mut request.ints);
    }
    // Sources are in no order; expressions are numbered in the order of the graph.
    request.ints.sort();
    request.ints.dedup();

    let pool = pool(py, settings.threads)?;
    let caps = match &place.gpu {
        Some((caps, _)) => caps.clone(),
        None => caps(pool.threads()),
    };
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    let options = Options {
        pieces: threads.min(8),
        threads: threads.min(8),
        strict: settings.strict,
        verify: inrush_runtime::verify_is_asked_for(),
        pointers: settings.pointers,
        retile: settings.tune == Tune::AtCall && watch.tuner.is_some(),
        ..Options::default()
    };
    // Without the interpreter's lock: other threads go on while this one compiles.
    let (caps, mut watch, sequence) = py.detach(move || {
        let sequence = compile_sequence(graph, &request, &caps, &options, &mut watch);
        (caps, watch, sequence)
    });
    if let (Some(dir), Some(texts)) = (&settings.trace, &watch.trace) {
        write_trace(dir, texts, place.gpu.is_some()).map_err(raise)?;
    }
    let mut sequence = sequence.map_err(raise)?;
    // Kernels that a call could tune. Measuring at the first call pays off only if some of
    // them were never measured on this device.
    let retiles = std::mem::take(&mut sequence.retiles);
    let unknown = watch.tuner.as_ref().map_or(0, |t| t.unknown);
    watch.report.refusals = sequence.refusals.lines();
    watch.report.tuned = (watch.tuner.take()).map_or_else(Vec::new, |t| t.done);
    let tuning = match retiles.is_empty() || unknown == 0 {
        true => None,
        false => (place.bench(py, false)?).map(|b| AtCall::new(b, retiles)),
    };
    describe(&mut watch.report, &sequence);
    let start = Instant::now();
    let (mut program, objects) =
        host_program(py, &imported, sequence, &caps, &place, settings, resolve)?;
    watch.add("bind", start.elapsed());
    // Before the build: a library call that becomes a call from Python changes the program that is
    // stored.
    Engine::adapt(py, &mut program)?;
    // A call that tunes swaps kernels of a loaded engine, which a pending graph does not have.
    if settings.later && tuning.is_none() {
        let code = Code::of(py, &program)?;
        let build = code.map(Build::start).transpose().map_err(raise)?;
        return Ok(Outcome::Pending(Box::new(Pending {
            program,
            objects,
            report: watch.report,
            pool,
            build,
        })));
    }
    let start = Instant::now();
    let (code, cached) = load(py, &mut program, &pool)?;
    watch.report.cached = cached;
    watch.report.untuned = tuning.is_some();
    if let (MachineCode::Gpu(engine), Some(tuning)) = (&code, tuning) {
        engine.tune_at_call(tuning);
    }
    watch.add("build", start.elapsed());
    let runner = Runner::new(program, objects, code);
    Ok(Outcome::Ready(runner, watch.report))
}

/// Where a graph runs.
struct Place {
    /// The GPU whose tensors are the graph's.
    device: Option<Device>,
    /// Set for graphs on GPUs, interpreted ones too.
    gpu: Option<(Caps, GpuTarget)>,
}

impl Place {
    /// Finds the device of a graph. A preset takes the place of the device's own properties;
    /// without `interpret` a graph of the CPU stays one.
    fn of(py: Python<'_>, gm: &Bound<'_, PyAny>, settings: &Settings) -> PyResult<Place> {
        let cpu = Place {
            device: None,
            gpu: None,
        };
        let preset = settings.gpu.as_deref();
        // Builds of PyTorch without GPUs skip the scan of the graph.
        if preset.is_none() && !device::built(py)? {
            return Ok(cpu);
        }
        let device = fx::device(py, gm)?;
        let gpu = match (device, preset) {
            (None, Some(preset)) if settings.interpret => {
                Some(devices::preset(preset).map_err(raise)?)
            }
            (None, _) => None,
            (Some(_), Some(preset)) => Some(devices::preset(preset).map_err(raise)?),
            (Some(device), None) => Some(device::caps(py, device)?),
        };
        Ok(Place { device, gpu })
    }

    /// Returns what measures kernels, or `None` where there is no GPU to measure on. With
    /// `known_only` it looks up earlier measurements and makes none.
    fn bench(&self, py: Python<'_>, known_only: bool) -> PyResult<Option<Bench>> {
        let (Some(gpu), Some((_, target))) = (self.device, &self.gpu) else {
            return Ok(None);
        };
        if !device::present(py, gpu)? {
            return Ok(None);
        }
        device::bench(py, gpu, target.clone(), known_only).map(Some)
    }

    /// Returns PyTorch's name of the device.
    fn name(&self) -> String {
        devices::torch_name(self.device())
    }

    fn device(&self) -> Device {
        self.device.unwrap_or(Device::CPU)
    }
}

/// Returns machine code for a program, built unless it is in the cache, and true if it was there.
/// Waits for the build, and answers signals meanwhile.
pub fn load(
    py: Python<'_>,
    program: &mut HostProgram,
    pool: &Arc<Pool>,
) -> PyResult<(MachineCode, Option<bool>)> {
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
enum Code {
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

/// What was built, and whether it was there already.
enum Made {
    Object(Built),
    Binaries(Vec<inrush_runtime::triton::Binary>, bool),
}

impl Code {
    /// Returns `None` where there are no kernels, or where they are interpreted.
    fn of(py: Python<'_>, program: &HostProgram) -> PyResult<Option<Code>> {
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

    /// What is built, from the cache or anew.
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
struct Build {
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
    fn start(code: Code) -> Result<Build, Error> {
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

/// Machine code for a program's segments on the CPU.
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

/// Returns the host program of a sequence, and its objects.
fn host_program(
    py: Python<'_>,
    imported: &Imported,
    sequence: Sequence,
    caps: &Caps,
    place: &Place,
    settings: &Settings,
    resolve: Option<&Bound<'_, PyAny>>,
) -> PyResult<(HostProgram, Vec<Py<PyAny>>)> {
    let graph = &sequence.graph;
    let ints: FxHashMap<_, _> = sequence.ints.iter().copied().collect();
    let mut slots = FxHashMap::default();
    let mut objects = Vec::new();
    let mut r = Reader::new(py, imported, &ints, &mut slots, &mut objects)?;
    let mut inputs = Vec::new();
    let mut constants = Vec::new();
    // Inputs of the graph are placeholders, then attributes in the order in which they were
    // imported.
    let mut attributes = imported.constants.iter();
    for i in &graph.inputs {
        match i.kind {
            InputKind::User { .. } => inputs.push(r.slot(i.value)),
            _ => {
                if let Some(c) = attributes.next() {
                    constants.push((r.slot(i.value), r.hold(c.clone_ref(py))));
                }
            }
        }
    }
    // Steps after which symbols become known: sizes that depend on data.
    let binds_symbols: Vec<usize> = sequence.symbols.iter().filter_map(|s| s.after).collect();
    let mut steps = Vec::new();
    let mut kernels = sequence.kernels;
    for (at, part) in sequence.parts.into_iter().enumerate() {
        let kind = match part.what {
            What::Segment(s) => program::StepKind::Segment(program::Segment {
                program: s.program,
                inputs: s.inputs.iter().map(|v| r.slot(*v)).collect(),
                symbols: s.symbols,
                outputs: s.outputs.iter().map(|v| r.slot(*v)).collect(),
            }),
            What::View(v) => program::StepKind::View(program::View {
                base: r.slot(v.base),
                value: r.slot(v.value),
                sizes: v.sizes,
                strides: v.strides,
                offset: v.offset,
                dtype: v.dtype.map(Dt),
                base_layout: v.lies,
            }),
            What::Call(c) if c.op == SEED_OPERATOR => {
                let outs = c.outs.iter().map(|v| r.slot(*v)).collect();
                program::StepKind::Call(r.seed(outs, &place.name())?)
            }
            // A Triton kernel of the user that can be launched without Python.
            What::Call(c) if c.reason == fx::kernels::NATIVE => {
                let node = r.fx_node_of(&sequence.sources[c.node.index()], &c.op)?;
                let node = node.ok_or_else(|| {
                    raise(Error::internal(format!("`{}` cannot be launched", c.op)))
                })?;
                let outs = c.outs.iter().map(|v| r.slot(*v)).collect();
                let node = node.bind(py);
                program::StepKind::Kernel(fx::kernels::launch(&mut r, node, outs, &mut kernels)?)
            }
            What::Call(c) => {
                let outs: Vec<usize> = c.outs.iter().map(|v| r.slot(*v)).collect();
                let call = match r.fx_node_of(&sequence.sources[c.node.index()], &c.op)? {
                    Some(node) => {
                        let node = node.bind(py);
                        // The caller may name another function to call for this node.
                        let target = match resolve {
                            Some(f) => f.call1((node,))?,
                            None => node.getattr("target")?,
                        };
                        r.call(node, target, outs)?
                    }
                    None => r.made(py, graph, &graph.nodes[c.node.index()], outs)?,
                };
                // Values that only PyTorch can hold, complex ones above all, have no layout here.
                let node = &graph.nodes[c.node.index()];
                let held = |v: ValueId| {
                    !matches!(graph.value(v).ty, Type::Tensor(_) | Type::Opaque(_))
                        || sequence.layouts.iter().any(|(l, _)| *l == v)
                };
                let all = node.reads().chain(node.outs.first().copied()).all(held);
                // PyTorch's C functions take tensors by handle, which skips the dispatch from
                // Python.
                let native = match place.gpu {
                    Some(_) if c.library && all => host::of_call(py, &c.op, &call, r.objects),
                    _ => None,
                };
                match native {
                    Some(l) => program::StepKind::Library(l),
                    None => program::StepKind::Call(call),
                }
            }
        };
        steps.push(Step {
            kind,
            frees: part.frees.iter().map(|v| r.slot(*v)).collect(),
            binds_symbols: binds_symbols.contains(&at),
        });
    }
    let mut outputs = Vec::new();
    for o in &sequence.outputs {
        outputs.push(match o {
            SequenceOutput::Value(v) => Out::Slot(r.slot(*v)),
            SequenceOutput::Int(id) => Out::Size(*id),
            SequenceOutput::Scalar(s) => Out::Constant(r.hold(run::scalar(py, *s)?)),
            SequenceOutput::None => Out::Constant(r.hold(py.None())),
        });
    }
    let mut symbols = Vec::new();
    for s in &sequence.symbols {
        let (value, read) = match s.source {
            SymbolFrom::Int(v) => (v, Read::Int),
            SymbolFrom::Dim {
                value,
                dim,
                factor,
                offset,
            } => (
                value,
                Read::Dim {
                    dim: dim as usize,
                    factor,
                    offset,
                },
            ),
        };
        symbols.push(program::Symbol {
            slot: r.slot(value),
            read,
            after: s.after,
        });
    }
    let gpu = match &place.gpu {
        None => None,
        Some((_, target)) => {
            // Native steps make tensors of a slot from these; the CPU reads shapes from its tensors
            // instead.
            let mut layouts = vec![None; slots.len()];
            for (v, l) in sequence.layouts {
                if let Some(slot) = slots.get(&v) {
                    layouts[*slot] = Some(program::Layout {
                        dtype: Dt(l.dtype),
                        sizes: l.sizes,
                        strides: l.strides,
                    });
                }
            }
            Some(program::Gpu {
                graphs: settings.graphs,
                target: target.clone(),
                device: place.device(),
                kernels,
                layouts,
            })
        }
    };
    let program = HostProgram {
        steps,
        symbols,
        sizes: sequence.sizes,
        slots: slots.len(),
        inputs,
        constants,
        outputs,
        pieces: sequence.pieces,
        isa: caps.isa.name().to_string(),
        vector_math: caps.vector_math,
        gpu,
    };
    program
        .check(objects.len())
        .map_err(|e| raise(Error::internal(e.message().to_string())))?;
    Ok((program, objects))
}

/// Appends a kernel's title to a joined launch's line in the report, counting repetitions:
/// `mul_add, sum` and `sum` give `mul_add, sum * 2`.
fn beside(kernels: &mut String, title: &str) {
    let from = kernels.rfind(", ").map_or(0, |at| at + 2);
    let (last, times) = match kernels[from..].split_once(" * ") {
        Some((last, n)) => (last, n.parse().unwrap_or(1)),
        None => (&kernels[from..], 1u32),
    };
    if last == title {
        let more = format!("{title} * {}", times + 1);
        kernels.truncate(from);
        *kernels += &more;
    } else {
        *kernels += ", ";
        *kernels += title;
    }
}

/// Fills in what the report says of the program.
fn describe(report: &mut Report, sequence: &Sequence) {
    let graph = &sequence.graph;
    for part in &sequence.parts {
        match &part.what {
            What::Segment(s) => {
                report.segments += 1;
                for step in &s.program.steps {
                    match step {
                        inrush_program::Step::Launch(l) => {
                            let title = &s.program.kernels[l.kernel as usize].title;
                            match report.kernels.last_mut() {
                                Some(k) if l.beside => beside(k, title),
                                _ => report.kernels.push(title.clone()),
                            }
                        }
                        inrush_program::Step::Contract(_) => report.contractions += 1,
                        // Inside PyTorch its operators are called instead; see inrush-compile.
                        inrush_program::Step::Library(_) => {}
                    }
                }
            }
            What::Call(c) if c.library => report.libraries.push(c.op.clone()),
            What::Call(c) if c.reason == fx::kernels::NATIVE => report.kernels.push(c.op.clone()),
            What::Call(c) => {
                let node = &graph.nodes[c.node.index()];
                let line = graph.line_of(node).map(str::to_string);
                report.calls.push((c.op.clone(), c.reason.clone(), line));
            }
            What::View(_) => {}
        }
    }
}

impl Source {
    /// Every integer expression in it.
    fn ints(&self, out: &mut Vec<inrush_expr::Expr>) {
        match self {
            Source::Int(e) => out.push(*e),
            Source::List(l) => l.iter().for_each(|s| s.ints(out)),
            _ => {}
        }
    }
}

/// Returns the threads that all compiled graphs of the process share: those of PyTorch's own OpenMP
/// runtime, so that there is one set of threads, of the size that `torch.set_num_threads` says. A
/// second set would compete for the cores with the operators that are called in between. Threads of
/// inrush's own where the user asks for a number, or where there is no such runtime.
pub fn pool(py: Python<'_>, threads: Option<usize>) -> PyResult<Arc<Pool>> {
    static POOL: OnceLock<Arc<Pool>> = OnceLock::new();
    if threads.is_some() {
        return Ok(Arc::new(Pool::new(threads).map_err(raise)?));
    }
    if let Some(p) = POOL.get() {
        return Ok(p.clone());
    }
    let pool = match OpenMp::of_process() {
        Some(runtime) => Pool::openmp(runtime),
        None => Pool::new(crate::host::shim::shims(py)?.threads()).map_err(raise)?,
    };
    Ok(POOL.get_or_init(|| Arc::new(pool)).clone())
}

/// The properties of this machine's processor.
pub fn caps(threads: usize) -> Caps {
    let mut caps = Caps::cpu(inrush_cpu::detect(), threads);
    caps.vector_math &= inrush_runtime::cc::has_vector_math();
    caps
}

/// Writes one file for each stage, `00-import.txt` and so on. Numbers are those of the list of
/// stages, so that files sort in the order of the pipeline; stages that did not run leave gaps.
fn write_trace(
    dir: &std::path::Path,
    texts: &FxHashMap<&'static str, String>,
    gpu: bool,
) -> Result<(), Error> {
    let fail = |e: std::io::Error| {
        Error::machine(format!(
            "cannot write the trace to `{}`: {e}",
            dir.display()
        ))
    };
    std::fs::create_dir_all(dir).map_err(fail)?;
    for (k, stage) in inrush_compile::STAGES.iter().enumerate() {
        if let Some(text) = texts.get(stage) {
            let ending = match *stage {
                "emit" if gpu => "py",
                "emit" => "c",
                _ => "txt",
            };
            std::fs::write(dir.join(format!("{k:02}-{stage}.{ending}")), text).map_err(fail)?;
        }
    }
    Ok(())
}
