//! The pipeline: a graph goes in, a program and the C source of its kernels come out.
//!
//! [`compile`] is a pure function of the graph, the options and the device's capabilities: the same input gives the same
//! bytes on any machine. An [`Observer`] sees each stage begin and end; timing and printing are its affair.
//!
//! Does not know: files, clocks, Python, devices by name.

#![forbid(unsafe_code)]

mod complex;
mod functions;
mod fusible;
mod gpu;
mod library;
mod no_kernels;
mod partition;
pub mod parts;
pub mod pipeline;
mod repeat;
mod same;
mod sequence;
mod signature;
mod sizes;
mod slots;
mod together;
mod tune;
mod wrap;

use inrush_base::{Caps, Result};
use inrush_c::Function;
use inrush_graph::Graph;
use inrush_loops::Origin;
use inrush_program::{GpuKernel, Program};
use inrush_sched::Refusal;

pub use complex::Boundary;
pub use fusible::{Fusible, fusible};
pub use gpu::{Blocks, GpuKernels, Retile};
pub use inrush_aten::user_kernel;
pub use inrush_kernel::block::{Pointers, Tile};
pub use inrush_passes::{Source, may_write};
pub use library::Libraries;
pub use pipeline::{Pipeline, STAGES};
pub use sequence::{
    Call, Layout, Part, Request, Segment, Sequence, SequenceOutput, SymbolDef, SymbolFrom, View,
    What, compile_sequence,
};
pub use slots::Slots;
pub use tune::{Candidate, TunedBuffer, Tuner};

/// Sees the stages go by.
pub trait Observer {
    /// A stage of this name begins.
    fn begin(&mut self, _stage: &'static str) {}
    /// It ended; `text` prints its output.
    fn end(&mut self, _stage: &'static str, _text: &dyn Fn() -> String) {}
    /// Returns the tuner that measures kernels, if tiles are to be tuned.
    fn tuner(&mut self) -> Option<&mut dyn Tuner> {
        None
    }
}

/// An observer that looks away.
impl Observer for () {}

/// How to compile.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Options of stage fuse; its threads are taken from [`Options::threads`].
    pub sched: inrush_sched::Options,
    /// Number of translation units that the kernels are spread over, so that they compile side by side.
    pub pieces: usize,
    /// Number of threads that stages may use; 0 counts as 1. What comes out does not depend on it.
    pub threads: usize,
    /// Every stage's output is verified; a broken invariant is an error that names the stage.
    pub verify: bool,
    /// A broken invariant is an error even where calling the operators would do instead.
    pub strict: bool,
    /// How kernels for GPUs name the elements of strided tiles.
    pub pointers: Pointers,
    /// Keep what tuning at a call needs.
    pub retile: bool,
    /// Libraries that sequences for GPUs may call.
    pub libraries: Libraries,
}

/// The result of a compilation.
#[derive(Clone, Debug)]
pub struct Compiled {
    pub program: Program,
    /// Translation units of the shared object, on a CPU.
    pub pieces: Vec<String>,
    /// The kernels, on a GPU.
    pub kernels: Vec<GpuKernel>,
    /// Fusions that were considered and refused.
    pub refusals: Refusals,
}

/// Has a graph that draws random numbers draw them by a buffer of the model, [`inrush_program::SEED`], which each call leaves one
/// higher. Does nothing for others.
pub fn seed_by_state(graph: &mut Graph) {
    inrush_aten::random::seed_by_state(graph, inrush_program::SEED);
}

/// Replaces writes by masks and numbers of floats that are read from data by ordinary operators: what is compiled ahead of time
/// needs no parts for them.
///
/// # Errors
/// Those of the passes.
pub fn expand_early(graph: Graph) -> Result<Graph> {
    let graph = inrush_passes::expand_numbers(graph)?;
    inrush_passes::expand_masked_writes(graph)
}

/// Compiles a graph for a device.
///
/// # Errors
/// An error with the stage's name: an operator or argument that is not supported, or a broken invariant.
pub fn compile(
    mut graph: Graph,
    caps: &Caps,
    options: &Options,
    observer: &mut dyn Observer,
) -> Result<Compiled> {
    if caps.gpu.is_none() {
        user_kernel::refuse(&graph)?;
    }
    seed_by_state(&mut graph);
    let graph = expand_early(graph)?;
    if parts::are_needed(&graph) {
        return parts::compile(graph, caps, options, observer);
    }
    let boundary = complex::Boundary::of(&graph);
    let mut pipeline = Pipeline::new(caps, options, observer);
    let graph = pipeline.planar(graph)?;
    let mut unit = pipeline.unit(graph)?;
    boundary.restore(&mut unit.program)?;
    let (pieces, kernels) = match unit.code {
        Code::C(functions) => (
            functions::spread(&functions, options.pieces.max(1)),
            Vec::new(),
        ),
        Code::Gpu(kernels) => (Vec::new(), kernels),
    };
    Ok(Compiled {
        program: unit.program,
        pieces,
        kernels,
        refusals: unit.refusals,
    })
}

/// Fusions that were considered and refused. Few callers want to read them, so they become words when they are asked for.
#[derive(Clone, Debug, Default)]
pub struct Refusals(Vec<(Vec<Refusal>, Vec<Origin>)>);

impl Refusals {
    /// `producer -> consumer: reason`, one for each.
    pub fn lines(&self) -> Vec<String> {
        let all = self.0.iter();
        all.flat_map(|(refusals, origins)| refusals.iter().map(|r| r.show(origins)))
            .collect()
    }

    /// Adds those of another graph.
    pub(crate) fn extend(&mut self, more: Refusals) {
        self.0.extend(more.0);
    }
}

/// The result of one graph.
pub(crate) struct Unit {
    pub program: Program,
    pub code: Code,
    pub refusals: Refusals,
    pub retile: Option<Retile>,
}

/// Source of a program's kernels.
pub(crate) enum Code {
    C(Vec<Function>),
    Gpu(Vec<GpuKernel>),
}
