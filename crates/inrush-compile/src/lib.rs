//! The pipeline: a graph goes in, a program and the C source of its kernels come out.
//!
//! [`compile`] is a pure function of the graph, the options and the device's capabilities: the same input gives the same
//! bytes on any machine. An [`Observer`] sees each stage begin and end; timing and printing are its affair.
//!
//! Does not know: files, clocks, Python, devices by name.

#![forbid(unsafe_code)]

mod functions;
mod gpu;
mod library;
mod no_kernels;
mod operands;
mod partition;
mod roll;
mod same;
mod sequence;
mod signature;
mod sizes;
mod split_linear;
mod together;
mod tune;
mod wrap;

use inrush_aten::Processor;
use inrush_base::{Caps, Result, with_helpers};
use inrush_c::Function;
use inrush_expr::Exprs;
use inrush_graph::{Graph, Guard};
use inrush_loops::{Loops, Origin};
use inrush_program::{GpuKernel, Program};
use inrush_sched::{Plan, Refusal};
use signature::Signature;

pub use gpu::{Blocks, GpuKernels, Retile, emit as emit_blocks, tile as tile_blocks};
pub use inrush_kernel::block::{Pointers, Tile};
pub use library::{Libraries, serves as is_library};
pub use operands::{SharedOperands, share_operands};
pub use sequence::{
    Call, Layout, Part, Request, Segment, Sequence, SequenceOutput, SymbolDef, SymbolFrom, View,
    What, compile_sequence,
};
pub use split_linear::split_linear;
pub use tune::{Candidate, TunedBuffer, Tuner};

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
    /// What measures kernels, where tiles are to be tuned.
    fn tuner(&mut self) -> Option<&mut dyn Tuner> {
        None
    }
}

/// An observer that looks away.
impl Observer for () {}

/// How to compile.
#[derive(Clone, Debug, Default)]
pub struct Options {
    pub sched: inrush_sched::Options,
    /// Number of translation units that the kernels are spread over, so that they compile side by side.
    pub pieces: usize,
    /// Number of threads that stages may use; 0 counts as 1. What comes out does not depend on it.
    pub threads: usize,
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
    inrush_aten::random::seed_by_state(&mut graph, inrush_program::SEED);
    let unit = Run { observer }.unit(graph, caps, options)?;
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

/// What one graph gives.
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

/// Stage fuse, but for the memory, which kernels do not ask for.
fn fuse(loops: Loops, caps: &Caps, options: &inrush_sched::Options) -> Result<Plan> {
    let mut plan = inrush_sched::fuse(loops, caps, options)?;
    inrush_sched::layout(&mut plan, caps, options)?;
    Ok(plan)
}

/// A plan as text, with the memory that it will have.
fn print_plan(plan: &Plan) -> String {
    let mut plan = plan.clone();
    match inrush_sched::plan_memory(&mut plan) {
        Ok(()) => plan.print(),
        Err(e) => e.to_string(),
    }
}

struct Run<'a> {
    observer: &'a mut dyn Observer,
}

impl Run<'_> {
    /// All stages, up to the distinct functions of the kernels.
    fn unit(&mut self, graph: Graph, caps: &Caps, options: &Options) -> Result<Unit> {
        let helpers = options.threads.saturating_sub(1);
        with_helpers(helpers, || self.stages(graph, caps, options))
    }

    fn stages(&mut self, graph: Graph, caps: &Caps, options: &Options) -> Result<Unit> {
        let graph = self.stage("normalize", || inrush_aten::normalize(graph), |g| g.print())?;
        let signature = signature::signature(&graph).map_err(|e| e.in_stage("normalize"))?;
        let mut graph = graph;
        let sched = inrush_sched::Options {
            threads: options.threads,
            ..options.sched.clone()
        };
        let (mut plan, guards) = match roll::cut(&mut graph) {
            Some((short, cut)) => self.rolled(graph, short, &cut, caps, &sched)?,
            None => self.straight(graph, caps, &sched)?,
        };
        let (program, code, retile) = match caps.gpu {
            None => {
                let (program, code) =
                    self.c(&guards, &signature, &mut plan, caps, options.threads)?;
                (program, code, None)
            }
            Some(_) => self.gpu(&guards, &signature, &mut plan, caps, options)?,
        };
        let refusals = Refusals(vec![(plan.refusals, plan.loops.origins)]);
        Ok(Unit {
            program,
            code,
            refusals,
            retile,
        })
    }

    /// From the normalized graph to the plan, still without memory, and the guards.
    fn straight(
        &mut self,
        graph: Graph,
        caps: &Caps,
        sched: &inrush_sched::Options,
    ) -> Result<(Plan, Vec<Guard>)> {
        let processor = Processor::of(caps);
        let graph = self.stage(
            "decompose",
            || {
                inrush_aten::numbers::check(&graph, processor)?;
                inrush_aten::decompose(graph)
            },
            |g| g.print(),
        )?;
        let guards = graph.guards.clone();
        let loops = self.stage(
            "lower",
            || inrush_aten::lower(graph, processor),
            |l| l.print(),
        )?;
        let plan = self.stage("fuse", || fuse(loops, caps, sched), print_plan)?;
        Ok((plan, guards))
    }

    /// The same through the short graph that [`roll::cut`] gave. What is printed is the whole graph all the same.
    fn rolled(
        &mut self,
        whole: Graph,
        short: Graph,
        cut: &roll::Cut,
        caps: &Caps,
        sched: &inrush_sched::Options,
    ) -> Result<(Plan, Vec<Guard>)> {
        let with = |exprs: &Exprs| Graph {
            exprs: exprs.clone(),
            ..whole.clone()
        };
        let decomposed = |exprs: &Exprs| inrush_aten::decompose(with(exprs));
        let processor = Processor::of(caps);
        let lowered =
            |exprs: &Exprs| decomposed(exprs).and_then(|g| inrush_aten::lower(g, processor));
        let print = |text: Result<String>| text.unwrap_or_else(|e| e.to_string());
        let mut marks = cut.marks();
        let short = self.stage(
            "decompose",
            || {
                inrush_aten::numbers::check(&short, processor)?;
                inrush_aten::decompose_marked(short, &mut marks)
            },
            |g| print(decomposed(&g.exprs).map(|g| g.print())),
        )?;
        let guards = short.guards.clone();
        let (loops, marks) = self.stage(
            "lower",
            || inrush_aten::lower_marked(short, processor, &marks),
            |(l, _)| print(lowered(&l.exprs).map(|l| l.print())),
        )?;
        let plan = self.stage(
            "fuse",
            || {
                let plan = fuse(loops, caps, sched)?;
                match roll::unroll(&whole, cut, &marks, plan) {
                    Ok(plan) => Ok(plan),
                    // Blocks that do not repeat in the plan are compiled one by one.
                    Err(plan) => {
                        let exprs = plan.loops.exprs;
                        let whole = inrush_aten::decompose(Graph { exprs, ..whole })?;
                        fuse(inrush_aten::lower(whole, processor)?, caps, sched)
                    }
                }
            },
            print_plan,
        )?;
        Ok((plan, guards))
    }

    /// The stages behind the plan, for a CPU. What does not wait for kernels or their text, memory and most of the program, is
    /// made beside them.
    fn c(
        &mut self,
        guards: &[Guard],
        signature: &Signature,
        plan: &mut Plan,
        caps: &Caps,
        threads: usize,
    ) -> Result<(Program, Code)> {
        let (kernels, memory) = self.stage(
            "tile",
            || functions::tile(plan, caps, threads, || inrush_sched::memory(plan)),
            |(k, _)| functions::show(plan, k, caps),
        )?;
        plan.memory = memory.map_err(|e| e.in_stage("fuse"))?;
        let plan = &*plan;
        let wrap = || wrap::wrap(guards, signature, plan, &wrap::Code::C(&kernels));
        let (emitted, program) = self.stage(
            "emit",
            || functions::emit(plan, &kernels, caps, wrap),
            |(e, _)| functions::spread(&e.functions, 1).join("\n"),
        )?;
        let program = self.stage(
            "wrap",
            || {
                let mut program = program?;
                wrap::name(&mut program, &emitted);
                Ok(program)
            },
            |p: &Program| p.to_string(),
        )?;
        Ok((program, Code::C(emitted.functions)))
    }

    /// The stages behind the plan, for a GPU.
    fn gpu(
        &mut self,
        guards: &[Guard],
        signature: &Signature,
        plan: &mut Plan,
        caps: &Caps,
        options: &Options,
    ) -> Result<(Program, Code, Option<Retile>)> {
        inrush_sched::plan_memory(plan).map_err(|e| e.in_stage("fuse"))?;
        let plan = &*plan;
        self.observer.begin("tile");
        let blocks = gpu::tile(plan, caps, options.pointers, self.observer.tuner());
        let blocks = blocks.map_err(|e| e.in_stage("tile"))?;
        self.observer.end("tile", &|| blocks.print(plan));
        let kernels = self.stage("emit", || gpu::emit(plan, blocks), gpu::show)?;
        let program = self.stage(
            "wrap",
            || wrap::wrap(guards, signature, plan, &wrap::Code::Gpu(&kernels)),
            |p| p.to_string(),
        )?;
        let retile = (options.retile).then(|| Retile::of(plan, caps, options.pointers, &kernels));
        Ok((program, Code::Gpu(kernels.kernels), retile))
    }

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
