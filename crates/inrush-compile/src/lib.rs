//! The pipeline: a graph goes in, a program and the C source of its kernels come out.
//!
//! [`compile`] is a pure function of the graph, the options and the device's capabilities: the same input gives the same
//! bytes on any machine. An [`Observer`] sees each stage begin and end; timing and printing are its affair.
//!
//! Does not know: files, clocks, Python, devices by name.

mod functions;
mod signature;
mod sizes;
mod wrap;

use inrush_base::{Caps, Result};
use inrush_graph::Graph;
use inrush_program::Program;

/// The stages in order, as `inrush inspect --stage` names them.
pub const STAGES: &[&str] = &[
    "import",
    "normalize",
    "decompose",
    "lower",
    "fuse",
    "tile",
    "emit",
    "wrap",
];

/// Sees the stages go by.
pub trait Observer {
    /// A stage of this name begins.
    fn begin(&mut self, _stage: &'static str) {}
    /// It ended; `text` prints its output.
    fn end(&mut self, _stage: &'static str, _text: &dyn Fn() -> String) {}
}

/// An observer that looks away.
impl Observer for () {}

/// How to compile.
#[derive(Clone, Debug, Default)]
pub struct Options {
    pub sched: inrush_sched::Options,
    /// Number of translation units that the kernels are spread over, so that they compile side by side.
    pub pieces: usize,
}

/// The result of a compilation.
#[derive(Clone, Debug)]
pub struct Compiled {
    pub program: Program,
    /// Translation units of the shared object.
    pub pieces: Vec<String>,
    /// Fusions that were considered and refused, printed.
    pub refusals: Vec<String>,
}

/// Compiles a graph for a device.
///
/// # Errors
/// An error with the stage's name: an operator or argument that is not supported, or a broken invariant.
pub fn compile(
    graph: Graph,
    caps: &Caps,
    options: &Options,
    observer: &mut dyn Observer,
) -> Result<Compiled> {
    let mut run = Run { observer };
    let graph = run.stage("normalize", || inrush_aten::normalize(graph), |g| g.print())?;
    let signature = signature::signature(&graph).map_err(|e| e.in_stage("normalize"))?;
    let graph = run.stage("decompose", || inrush_aten::decompose(graph), |g| g.print())?;
    let guards = graph.guards.clone();
    let loops = run.stage("lower", || inrush_aten::lower(graph), |l| l.print())?;
    let plan = run.stage(
        "fuse",
        || inrush_sched::schedule(loops, caps, &options.sched),
        |p| p.print(),
    )?;
    let kernels = run.stage(
        "tile",
        || functions::tile(&plan, caps),
        |k| functions::show(&plan, k),
    )?;
    let emitted = run.stage(
        "emit",
        || functions::emit(&plan, kernels, caps, options.pieces.max(1)),
        |e| e.pieces.join("\n"),
    )?;
    let program = run.stage(
        "wrap",
        || {
            wrap::wrap(
                &guards,
                &signature,
                &plan,
                &emitted.functions,
                &emitted.load_steps,
                &emitted.steps,
            )
        },
        |p| p.to_string(),
    )?;
    let refusals = plan.refusals.iter().map(|r| plan.show_refusal(r)).collect();
    Ok(Compiled {
        program,
        pieces: emitted.pieces,
        refusals,
    })
}

struct Run<'a> {
    observer: &'a mut dyn Observer,
}

impl Run<'_> {
    fn stage<T>(
        &mut self,
        name: &'static str,
        work: impl FnOnce() -> Result<T>,
        show: impl Fn(&T) -> String,
    ) -> Result<T> {
        self.observer.begin(name);
        let out = work().map_err(|e| e.in_stage(name))?;
        self.observer.end(name, &|| show(&out));
        Ok(out)
    }
}
