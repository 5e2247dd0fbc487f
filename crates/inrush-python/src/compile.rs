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
//! 3. *bind* ([`lower`]) turns values into slots, FX nodes into argument templates, and integers into ids of
//!    the size arithmetic. Python objects move into one list; the program names them by position,
//!    so that it can be serialized.
//! 4. *build* compiles C pieces or Triton kernels through a cache that is keyed by content. It runs
//!    in a thread ([`Build`]), either awaited here or, with [`Settings::later`], by the first call.

mod build;
mod lower;
mod place;
mod products;
mod report;
mod settings;
pub mod special;

pub use self::build::{Pending, load};
use self::lower::Lowering;
use self::place::Place;
pub use self::place::{caps, pool};
pub use self::report::Report;
use self::report::{Watch, describe, write_trace};
pub use self::settings::{Settings, Tune};
use crate::errors::raise;
use crate::fx::{self, Imported, Sizes};
use crate::host::run::{MachineCode, Runner};
use inrush_compile::{Observer, Options, Request, compile_sequence};
use inrush_graph::NodeId;
use inrush_host::gpu::tune::{AtCall, Measures};
use pyo3::prelude::*;
use std::time::Instant;

/// The result of compiling.
pub struct Outcome {
    /// The program for all sizes.
    pub general: State,
    /// Specialised programs, each with the checks that a call must pass. A call tries them in this order. The first is for the sizes
    /// of the traced call.
    pub special: Vec<(Vec<special::Check>, State)>,
}

/// A compiled program.
pub enum State {
    Ready(Runner, Report),
    /// Its kernels are being built, or will be when they are needed.
    Pending(Box<Pending>),
}

impl State {
    fn report(&mut self) -> &mut Report {
        match self {
            State::Ready(_, report) => report,
            State::Pending(p) => &mut p.report,
        }
    }
}

/// When kernels are built.
#[derive(Copy, Clone, PartialEq, Eq)]
enum When {
    /// While the caller waits.
    Now,
    /// In a thread that starts now.
    Later,
    /// In a thread that [`Pending::start`] starts.
    AtNeed,
}

/// Compiles an FX graph module of ATen operators. `resolve` tells what to call for an FX node; by default its target.
/// `of_traced_sizes` is what the program for the sizes of the traced call is made of.
pub fn compile(
    py: Python<'_>,
    gm: &Bound<'_, PyAny>,
    of_traced_sizes: &Bound<'_, PyAny>,
    settings: &Settings,
    resolve: Option<&Bound<'_, PyAny>>,
) -> PyResult<Outcome> {
    let watch = Watch::new(settings.trace.is_some());
    // The device decides which tensors the graph can hold, so it is found before the import.
    let place = Place::of(py, gm, settings)?;
    let gpu = place.gpu.is_some();
    let imported = fx::import(py, gm, place.device, gpu, Sizes::Symbolic)?;
    let checks = match gpu {
        true => special::known(&imported),
        false => Vec::new(),
    };
    let when = match settings.later {
        true => When::Later,
        false => When::Now,
    };
    if checks.is_empty() {
        let general = program(py, imported, &place, settings, resolve, watch, when)?;
        return Ok(Outcome {
            general,
            special: Vec::new(),
        });
    }
    // Measuring is for sizes that are known.
    let mut for_all = settings.clone();
    if for_all.tune != Tune::Never {
        for_all.tune = Tune::Known;
    }
    let (near, of_near) = special::near(&imported);
    let mut general = program(py, imported, &place, &for_all, resolve, watch, When::AtNeed)?;
    let for_some = |sizes: Sizes<'_>, settings: &Settings, folder: &str, when: When| {
        let mut settings = settings.clone();
        if let Some(all) = &mut settings.trace {
            all.push(folder);
        }
        let watch = Watch::new(settings.trace.is_some());
        let gm = match sizes {
            Sizes::Known => of_traced_sizes,
            Sizes::Symbolic | Sizes::Near(_) => gm,
        };
        let imported = fx::import(py, gm, place.device, gpu, sizes)?;
        program(py, imported, &place, &settings, resolve, watch, when)
    };
    let known = for_some(Sizes::Known, settings, "known_sizes", when)?;
    let mut special = vec![(checks, known)];
    if !near.is_empty() {
        match for_some(Sizes::Near(&near), &for_all, "near_sizes", When::AtNeed) {
            Ok(program) => special.push((of_near, program)),
            // The program for all sizes runs these, too.
            Err(e) => (general.report().refusals).push(format!("a program for near sizes: {e}")),
        }
    }
    Ok(Outcome { general, special })
}

/// Compiles an imported graph.
fn program(
    py: Python<'_>,
    mut imported: Imported,
    place: &Place,
    settings: &Settings,
    resolve: Option<&Bound<'_, PyAny>>,
    mut watch: Watch,
    when: When,
) -> PyResult<State> {
    if settings.tune != Tune::Never {
        watch.tuner = place.bench(py, measures(settings.tune))?;
    }
    // Either way random operators are fixed before the stages run: they become calls, which advance
    // PyTorch's generator as eager does, or read a seed that the first node draws.
    match settings.fallback_random {
        true => imported.call_draws(),
        false => imported.draw(),
    }
    let graph = std::mem::take(&mut imported.graph);
    let text = || graph.print();
    watch.end("import", &text);
    let request = request(&imported, settings);
    let pool = pool(py, settings.threads)?;
    let mut caps = match &place.gpu {
        Some((caps, _)) => caps.clone(),
        None => caps(pool.threads()),
    };
    if let (Some(gpu), Some(products)) = (&mut caps.gpu, settings.products) {
        gpu.persistent_products = products;
    }
    let options = options(settings, watch.tuner.is_some());
    if let (Some(bench), None) = (&mut watch.tuner, settings.products) {
        products::choose(py, (&graph, &request), (place, settings), &mut caps, bench)?;
    }
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
    watch.report.untuned = settings.tune == Tune::Known && unknown > 0;
    let tuning = match retiles.is_empty() || unknown == 0 {
        true => None,
        false => (place.bench(py, Measures::Now)?).map(|b| AtCall::new(b, retiles)),
    };
    describe(&mut watch.report, &sequence);
    let start = Instant::now();
    let lowering = Lowering {
        py,
        imported: &imported,
        caps: &caps,
        place,
        settings,
        resolve,
    };
    let (mut program, objects) = lowering.host_program(sequence)?;
    watch.add("bind", start.elapsed());
    // A call that tunes swaps kernels of a loaded engine, which a pending graph does not have.
    if when != When::Now && tuning.is_none() {
        let mut pending = Pending::new(py, program, objects, watch.report, pool)?;
        if when == When::Later {
            pending.start().map_err(raise)?;
        }
        return Ok(State::Pending(Box::new(pending)));
    }
    let start = Instant::now();
    let (code, cached) = load(py, &mut program, &pool)?;
    watch.report.cached = cached;
    watch.report.untuned |= tuning.is_some();
    if let (MachineCode::Gpu(engine), Some(tuning)) = (&code, tuning) {
        engine.tune_at_call(tuning);
    }
    watch.add("build", start.elapsed());
    let runner = Runner::new(program, objects, code);
    Ok(State::Ready(runner, watch.report))
}

/// Returns when kernels are measured while a graph is compiled.
fn measures(tune: Tune) -> Measures {
    match tune {
        Tune::Now => Measures::Now,
        Tune::Background => Measures::InBackground,
        Tune::Never | Tune::AtCall | Tune::Known => Measures::Nothing,
    }
}

/// Returns what the stages are told of the graph's nodes and integers.
fn request(imported: &Imported, settings: &Settings) -> Request {
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
    request
}

/// Returns the options of the stages; `tunes` if kernels can be measured.
fn options(settings: &Settings, tunes: bool) -> Options {
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    Options {
        pieces: threads.min(8),
        threads: threads.min(8),
        strict: settings.strict,
        verify: inrush_runtime::verify_is_asked_for(),
        pointers: settings.pointers,
        retile: settings.tune == Tune::AtCall && tunes,
        ..Options::default()
    }
}
