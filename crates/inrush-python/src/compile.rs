//! From an FX graph to a callable: import, the compiler's stages, the C compiler, and what a call needs.

use crate::call::{CalledOp, Slots};
use crate::errors::raise;
use crate::fx::{self, Imported, Source};
use crate::run::{self, Out, Read, Runner, Step};
use inrush_base::{Caps, Error, Isa};
use inrush_compile::{
    Observer, Options, Request, Sequence, SequenceOutput, SymbolFrom, What, compile_sequence,
};
use inrush_cpu::OpenMp;
use inrush_graph::{InputKind, NodeId, ValueId};
use inrush_program::{Place, Size};
use inrush_runtime::cache::Cache;
use inrush_runtime::cc::{Compiler, Target};
use inrush_runtime::{MemoryWeights, Model, Parts, Pool};
use pyo3::prelude::*;
use rustc_hash::FxHashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

/// How a graph is compiled, from the user's options.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    pub strict: bool,
    /// Threads; PyTorch's number where left out.
    pub threads: Option<usize>,
    /// A folder that gets the text of every stage.
    pub trace: Option<PathBuf>,
}

/// What compiling did.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Milliseconds by stage, in order; stages of several segments are added up.
    pub stages: Vec<(&'static str, Duration)>,
    /// Kernels by what is fused in them.
    pub kernels: Vec<String>,
    /// Matrix products and convolutions.
    pub contractions: usize,
    pub segments: usize,
    /// Called operators with the reason and the Python line.
    pub calls: Vec<(String, String, Option<String>)>,
    /// Whether the machine code came from the cache; `None` when there is none.
    pub cached: Option<bool>,
    /// Fusions that were refused.
    pub refusals: Vec<String>,
}

/// Times the stages, and keeps their text where it is wanted.
struct Watch {
    start: Instant,
    report: Report,
    trace: Option<FxHashMap<&'static str, String>>,
}

impl Watch {
    fn add(&mut self, stage: &'static str, took: Duration) {
        let stages = &mut self.report.stages;
        match stages.iter_mut().find(|s| s.0 == stage) {
            Some(s) => s.1 += took,
            None => stages.push((stage, took)),
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
}

/// Compiles an FX graph module of ATen operators. `resolve` tells what to call for an FX node; by default its target.
pub fn compile(
    py: Python<'_>,
    gm: &Bound<'_, PyAny>,
    settings: &Settings,
    resolve: Option<&Bound<'_, PyAny>>,
) -> PyResult<(Runner, Report)> {
    let mut watch = Watch {
        start: Instant::now(),
        report: Report::default(),
        trace: settings.trace.is_some().then(FxHashMap::default),
    };
    let mut imported = fx::import(py, gm)?;
    let graph = std::mem::take(&mut imported.graph);
    let text = || graph.print();
    watch.end("import", &text);
    let mut request = Request::default();
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

    let pool = pool(py, settings)?;
    let caps = caps(pool.threads());
    let options = Options {
        pieces: std::thread::available_parallelism()
            .map_or(1, |n| n.get())
            .min(8),
        strict: settings.strict,
        ..Options::default()
    };
    // Without the interpreter's lock: other threads go on while this one compiles.
    let (graph, request, mut watch, built) = py.detach(move || {
        let built = build(&graph, &request, &caps, &options, &mut watch, &pool);
        (graph, request, watch, built)
    });
    if let (Some(dir), Some(texts)) = (&settings.trace, &watch.trace) {
        write_trace(dir, texts).map_err(raise)?;
    }
    let (sequence, models, cached) = built.map_err(raise)?;
    let start = Instant::now();
    watch.report.cached = cached;
    watch.report.refusals = sequence.refusals.clone();
    describe(&mut watch.report, &sequence, &graph);
    let runner = assemble(py, &graph, &imported, &request, sequence, models, resolve)?;
    watch.add("bind", start.elapsed());
    Ok((runner, watch.report))
}

type Built = (Sequence, Vec<Option<Model>>, Option<bool>);

/// Everything that needs no Python.
fn build(
    graph: &inrush_graph::Graph,
    request: &Request,
    caps: &Caps,
    options: &Options,
    watch: &mut Watch,
    pool: &Arc<Pool>,
) -> Result<Built, Error> {
    let sequence = compile_sequence(graph, request, caps, options, watch)?;
    let start = Instant::now();
    let object = match sequence.pieces.iter().all(|p| p.is_empty()) {
        true => None,
        false => {
            let target = Target {
                isa: caps.isa,
                vector_math: caps.vector_math,
            };
            Some(Compiler::find()?.build(&sequence.pieces, &target, &Cache::open_default())?)
        }
    };
    watch.add("build", start.elapsed());
    let start = Instant::now();
    let models = sequence
        .parts
        .iter()
        .map(|p| match (&p.what, &object) {
            (What::Segment(s), Some(built)) => Model::from_parts(Parts {
                program: s.program.clone(),
                object: &built.path,
                weights: Box::new(MemoryWeights::default()),
                pool: pool.clone(),
            })
            .map(Some),
            (What::Segment(_), None) => Err(Error::internal("a segment without kernels")),
            _ => Ok(None),
        })
        .collect::<Result<Vec<_>, Error>>()?;
    watch.add("load", start.elapsed());
    Ok((sequence, models, object.map(|o| o.cached)))
}

fn assemble(
    py: Python<'_>,
    graph: &inrush_graph::Graph,
    imported: &Imported,
    request: &Request,
    sequence: Sequence,
    models: Vec<Option<Model>>,
    resolve: Option<&Bound<'_, PyAny>>,
) -> PyResult<Runner> {
    let _ = request;
    let ints: FxHashMap<_, _> = sequence.ints.iter().copied().collect();
    let mut slots: FxHashMap<ValueId, usize> = FxHashMap::default();
    let mut slot = |v: ValueId| {
        let next = slots.len();
        *slots.entry(v).or_insert(next)
    };
    let mut inputs = Vec::new();
    let mut constants = Vec::new();
    let mut attributes = imported.constants.iter();
    for i in &graph.inputs {
        match i.kind {
            InputKind::User { .. } => inputs.push(Some(slot(i.value))),
            _ => {
                if let Some(c) = attributes.next() {
                    constants.push((slot(i.value), c.clone_ref(py)));
                }
            }
        }
    }
    let learns: Vec<usize> = sequence.symbols.iter().filter_map(|s| s.after).collect();
    let mut steps = Vec::new();
    for (at, (part, model)) in sequence.parts.into_iter().zip(models).enumerate() {
        let what = match (part.what, model) {
            (What::Segment(s), Some(model)) => run::What::Segment(run::Segment {
                mutates: (model.program().buffers.iter())
                    .any(|b| b.written && matches!(b.place, Place::Input { .. })),
                model,
                inputs: s.inputs.iter().map(|v| slot(*v)).collect(),
                symbols: s.symbols,
                outputs: s.outputs.iter().map(|v| slot(*v)).collect(),
                plans: Mutex::default(),
            }),
            (What::View(v), _) => run::What::View(run::View {
                base: slot(v.base),
                value: slot(v.value),
                sizes: v.sizes,
                strides: v.strides,
                offset: v.offset,
            }),
            (What::Call(c), _) => {
                let node = imported.nodes[c.node.index()].as_ref().ok_or_else(|| {
                    raise(Error::internal(format!("`{}` cannot be called", c.op)))
                })?;
                let node = node.bind(py);
                let target = match resolve {
                    Some(f) => f.call1((node,))?,
                    None => node.getattr("target")?,
                };
                let outs: Vec<usize> = c.outs.iter().map(|v| slot(*v)).collect();
                let mut names = Slots {
                    imported,
                    ints: &ints,
                    slot: &mut slot,
                };
                run::What::Call(CalledOp::new(node, target, &mut names, outs)?)
            }
            (What::Segment(_), None) => {
                return Err(raise(Error::internal("a segment was not loaded")));
            }
        };
        steps.push(Step {
            what,
            frees: part.frees.iter().map(|v| slot(*v)).collect(),
            learns: learns.contains(&at),
        });
    }
    let outputs = sequence
        .outputs
        .iter()
        .map(|o| {
            Ok(match o {
                SequenceOutput::Value(v) => Out::Slot(slot(*v)),
                SequenceOutput::Int(id) => Out::Size(*id),
                SequenceOutput::Scalar(s) => Out::Constant(run::scalar(py, *s)?),
                SequenceOutput::None => Out::Constant(py.None()),
            })
        })
        .collect::<PyResult<Vec<_>>>()?;
    let symbols: Vec<run::Symbol> = sequence
        .symbols
        .iter()
        .map(|s| {
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
            run::Symbol {
                slot: slot(value),
                read,
                after: s.after,
            }
        })
        .collect();
    let fixed = (!sequence.sizes.iter().any(|l| matches!(l, Size::Sym(_))) && symbols.is_empty())
        .then(|| run::evaluate(&sequence.sizes, &[]));
    Ok(Runner {
        steps,
        symbols,
        sizes: sequence.sizes,
        slots: slots.len(),
        inputs,
        constants,
        outputs,
        fixed,
    })
}

/// Fills in what the report says of the program.
fn describe(report: &mut Report, sequence: &Sequence, graph: &inrush_graph::Graph) {
    for part in &sequence.parts {
        match &part.what {
            What::Segment(s) => {
                report.segments += 1;
                for step in &s.program.steps {
                    match step {
                        inrush_program::Step::Launch(l) => report
                            .kernels
                            .push(s.program.kernels[l.kernel as usize].title.clone()),
                        inrush_program::Step::Contract(_) => report.contractions += 1,
                    }
                }
            }
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

/// The threads that all compiled graphs of the process share: those of PyTorch's own OpenMP runtime, so that there is one
/// set of threads, of the size that `torch.set_num_threads` says. Threads of inrush's own where the user asks for a
/// number, or where there is no such runtime.
fn pool(py: Python<'_>, settings: &Settings) -> PyResult<Arc<Pool>> {
    static POOL: OnceLock<Arc<Pool>> = OnceLock::new();
    if settings.threads.is_some() {
        return Ok(Arc::new(Pool::new(settings.threads).map_err(raise)?));
    }
    if let Some(p) = POOL.get() {
        return Ok(p.clone());
    }
    let pool = match OpenMp::of_process() {
        Some(runtime) => Pool::openmp(runtime),
        None => Pool::new(crate::shim::shims(py)?.threads()).map_err(raise)?,
    };
    Ok(POOL.get_or_init(|| Arc::new(pool)).clone())
}

/// The properties of this machine's processor.
fn caps(threads: usize) -> Caps {
    let mut caps = Caps::cpu(inrush_cpu::detect(), threads);
    caps.vector_math &= has_vector_math(caps.isa);
    caps
}

fn has_vector_math(_isa: Isa) -> bool {
    static FOUND: OnceLock<bool> = OnceLock::new();
    *FOUND.get_or_init(|| {
        cfg!(all(target_os = "linux", target_env = "gnu", target_arch = "x86_64"))
            // SAFETY: loading the C library's own companion runs no code of others; only a symbol's presence is read.
            && unsafe { inrush_runtime::has_symbol("libmvec.so.1", b"_ZGVdN8v_erff\0") }
    })
}

/// One file for each stage, `00-import.txt` and so on.
fn write_trace(
    dir: &std::path::Path,
    texts: &FxHashMap<&'static str, String>,
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
            let ending = if *stage == "emit" { "c" } else { "txt" };
            std::fs::write(dir.join(format!("{k:02}-{stage}.{ending}")), text).map_err(fail)?;
        }
    }
    Ok(())
}
