//! The stages in order: each has its function, its printer and its verifier here, and nowhere else.
//!
//! ```text
//! planar -> normalize -> rewrite -> decompose -> lower -> fuse -> tile -> emit -> wrap
//! ```
//!
//! A graph of repeated blocks takes another way through decompose, lower and fuse (`repeat/`), which gives the same plan. With
//! [`Options::verify`] the output of every stage is checked before the next one sees it.

use crate::functions::{self, Functions, Kernels};
use crate::gpu::{self, Blocks, GpuKernels};
use crate::signature::{self, Signature};
use crate::{Code, Observer, Options, Refusals, Request, Retile, Unit, repeat, wrap};
use inrush_aten::Processor;
use inrush_base::{Caps, Result, with_helpers};
use inrush_expr::Exprs;
use inrush_graph::{Graph, Guard, NodeId};
use inrush_kernel::Kernel;
use inrush_loops::Loops;
use inrush_passes::{Context, Pass, Source};
use inrush_program::Program;
use inrush_sched::Plan;

/// The stages in order, as `inrush inspect --stage` names them. Archives are imported before the pipeline begins.
pub const STAGES: &[&str] = &[
    "import",
    "planar",
    "normalize",
    "rewrite",
    "decompose",
    "lower",
    "fuse",
    "tile",
    "emit",
    "wrap",
];

/// Runs stages for a device. Each stage can be run alone, as file tests do, which enter at any of them.
pub struct Pipeline<'a> {
    caps: &'a Caps,
    options: &'a Options,
    observer: &'a mut dyn Observer,
}

impl<'a> Pipeline<'a> {
    pub fn new(caps: &'a Caps, options: &'a Options, observer: &'a mut dyn Observer) -> Self {
        Pipeline {
            caps,
            options,
            observer,
        }
    }

    /// Runs a stage: `print` shows its output, `verify` checks it.
    fn stage<T>(
        &mut self,
        name: &'static str,
        work: impl FnOnce() -> Result<T>,
        print: impl Fn(&T) -> String,
        verify: impl Fn(&T) -> Result<()>,
    ) -> Result<T> {
        self.observer.begin(name);
        let out = work().map_err(|e| e.in_stage(name))?;
        self.observer.end(name, &|| print(&out));
        if self.options.verify {
            verify(&out).map_err(|e| e.in_stage(name))?;
        }
        Ok(out)
    }

    /// Replaces complex values by their parts. Only whole programs that are compiled ahead of time go through it: inside PyTorch
    /// complex operators are called.
    ///
    /// # Errors
    /// An operator that has no rule for complex numbers, with the stage's name.
    pub fn planar(&mut self, graph: Graph) -> Result<Graph> {
        let work = || inrush_passes::planar(graph);
        self.stage("planar", work, |g| g.print(), inrush_graph::verify::verify)
    }

    /// Makes a graph functional.
    ///
    /// # Errors
    /// As all stages: what is not supported, or a broken invariant, with the stage's name.
    pub fn normalize(&mut self, graph: Graph) -> Result<Graph> {
        self.normalize_by(|| inrush_aten::normalize(graph))
    }

    /// Makes a whole graph functional that is cut around calls afterwards.
    ///
    /// # Errors
    /// As [`Pipeline::normalize`].
    pub fn normalize_whole(&mut self, graph: Graph) -> Result<Graph> {
        self.normalize_by(|| inrush_aten::normalize_whole(graph))
    }

    fn normalize_by(&mut self, work: impl FnOnce() -> Result<Graph>) -> Result<Graph> {
        self.stage(
            "normalize",
            work,
            |g| g.print(),
            inrush_graph::verify::verify,
        )
    }

    /// Rewrites a functional graph by [`inrush_passes::SEGMENT`].
    pub fn rewrite(&mut self, graph: Graph) -> Result<Graph> {
        let cx = Context::segment(self.caps);
        self.passes(inrush_passes::SEGMENT, graph, &cx)
    }

    /// Rewrites a whole graph for a GPU by [`inrush_passes::CALLS`], before it is cut around called operators. Returns the graph
    /// and the source of each of its nodes.
    pub fn rewrite_calls(
        &mut self,
        graph: Graph,
        request: &Request,
    ) -> Result<(Graph, Vec<Option<Source>>)> {
        let before = graph.nodes.clone();
        let outs = |n: &NodeId| before[n.index()].outs.clone();
        let kept = request.called.keys().flat_map(outs).collect();
        let pure = request.pure.iter().flat_map(outs).collect();
        let libraries = self.options.libraries;
        let cx = Context {
            caps: self.caps,
            serves: &|op| libraries.serve(op),
            inference: request.inference,
            kept,
            pure,
        };
        let graph = self.passes(inrush_passes::CALLS, graph, &cx)?;
        let sources = inrush_passes::sources(&before, &graph).map_err(|e| e.in_stage("rewrite"))?;
        Ok((graph, sources))
    }

    /// Runs a list of passes as one stage. The passes verify in between.
    fn passes(&mut self, list: &[Pass], mut graph: Graph, cx: &Context) -> Result<Graph> {
        let verify = self.options.verify;
        let work = || inrush_passes::rewrite(list, &mut graph, cx, verify).map(|()| graph);
        self.stage("rewrite", work, |g| g.print(), |_| Ok(()))
    }

    /// Replaces operators by simpler ones.
    pub fn decompose(&mut self, graph: Graph) -> Result<Graph> {
        let processor = Processor::of(self.caps);
        let work = || {
            inrush_aten::numbers::check(&graph, processor)?;
            inrush_aten::decompose(graph)
        };
        self.stage(
            "decompose",
            work,
            |g| g.print(),
            inrush_graph::verify::verify,
        )
    }

    /// Builds loops.
    pub fn lower(&mut self, graph: Graph) -> Result<Loops> {
        let processor = Processor::of(self.caps);
        let work = || inrush_aten::lower(graph, processor);
        self.stage("lower", work, |l| l.print(), inrush_loops::verify::verify)
    }

    /// Builds the plan, but for the memory, which kernels do not ask for.
    fn fuse(&mut self, loops: Loops) -> Result<Plan> {
        let (caps, sched) = (self.caps, self.sched());
        let work = || fuse(loops, caps, &sched);
        self.stage("fuse", work, print_plan, inrush_sched::verify)
    }

    /// Builds the plan, with its memory.
    pub fn plan(&mut self, loops: Loops) -> Result<Plan> {
        let mut plan = self.fuse(loops)?;
        inrush_sched::plan_memory(&mut plan).map_err(|e| e.in_stage("fuse"))?;
        self.verify_memory(&plan)?;
        Ok(plan)
    }

    /// The memory of a plan belongs to stage fuse, though it is planned while kernels are tiled.
    fn verify_memory(&self, plan: &Plan) -> Result<()> {
        match self.options.verify {
            true => inrush_sched::verify(plan).map_err(|e| e.in_stage("fuse")),
            false => Ok(()),
        }
    }

    /// Returns the options of stage fuse, with the threads of the compilation.
    fn sched(&self) -> inrush_sched::Options {
        inrush_sched::Options {
            threads: self.options.threads,
            ..self.options.sched.clone()
        }
    }

    /// Tiles every step for a CPU, equal ones again, those at load first.
    pub fn kernels(&mut self, plan: &Plan) -> Result<Vec<Kernel>> {
        let (tables, caps) = (plan.loops.tables(), self.caps);
        let steps = plan.load_steps.iter().chain(&plan.steps);
        let work = || {
            steps
                .map(|s| functions::tile_step(tables, s, caps))
                .collect()
        };
        let (print, verify) = (
            |all: &Vec<Kernel>| inrush_kernel::text::print_all(tables.exprs, all),
            |all: &Vec<Kernel>| {
                (all.iter()).try_for_each(|k| inrush_kernel::verify(tables.exprs, k))
            },
        );
        self.stage("tile", work, print, verify)
    }

    /// Tiles the distinct steps of a plan for a GPU. With a tuner tiles are measured.
    pub fn blocks(&mut self, plan: &Plan) -> Result<Blocks> {
        self.observer.begin("tile");
        let tuner = self.observer.tuner();
        let blocks = gpu::tile(plan, self.caps, self.options.pointers, tuner);
        let blocks = blocks.map_err(|e| e.in_stage("tile"))?;
        self.observer.end("tile", &|| blocks.print(plan));
        if self.options.verify {
            blocks.verify(plan).map_err(|e| e.in_stage("tile"))?;
        }
        Ok(blocks)
    }

    /// Writes block programs as Triton source.
    pub fn triton(&mut self, plan: &Plan, blocks: &Blocks) -> Result<GpuKernels> {
        let work = || gpu::emit(plan, blocks, self.caps);
        self.stage("emit", work, |k| gpu::show(plan, k), |_| Ok(()))
    }

    /// Runs all stages, up to the distinct functions of the kernels.
    pub(crate) fn unit(&mut self, graph: Graph) -> Result<Unit> {
        let helpers = self.options.threads.saturating_sub(1);
        with_helpers(helpers, || self.stages(graph))
    }

    fn stages(&mut self, graph: Graph) -> Result<Unit> {
        let graph = self.normalize(graph)?;
        let mut graph = self.rewrite(graph)?;
        let signature = signature::signature(&graph).map_err(|e| e.in_stage("normalize"))?;
        let (mut plan, guards) = match repeat::fold_blocks(&mut graph) {
            Some((short, folded)) => self.folded(graph, short, &folded)?,
            None => self.straight(graph)?,
        };
        let (program, code, retile) = match self.caps.gpu {
            None => {
                let (program, code) = self.c(&guards, &signature, &mut plan)?;
                (program, code, None)
            }
            Some(_) => self.gpu(&guards, &signature, &mut plan)?,
        };
        let refusals = Refusals(vec![(plan.refusals, plan.loops.origins)]);
        Ok(Unit {
            program,
            code,
            refusals,
            retile,
        })
    }

    /// Runs decompose, lower and fuse. The plan has no memory yet.
    pub(crate) fn straight(&mut self, graph: Graph) -> Result<(Plan, Vec<Guard>)> {
        let graph = self.decompose(graph)?;
        let guards = graph.guards.clone();
        let loops = self.lower(graph)?;
        Ok((self.fuse(loops)?, guards))
    }

    /// Runs decompose, lower and fuse over the short graph that [`repeat::fold_blocks`] gave. The whole graph is
    /// printed all the same.
    fn folded(
        &mut self,
        whole: Graph,
        short: Graph,
        folded: &repeat::Folded,
    ) -> Result<(Plan, Vec<Guard>)> {
        let with = |exprs: &Exprs| Graph {
            exprs: exprs.clone(),
            ..whole.clone()
        };
        let decomposed = |exprs: &Exprs| inrush_aten::decompose(with(exprs));
        let (caps, sched) = (self.caps, self.sched());
        let processor = Processor::of(caps);
        let lowered =
            |exprs: &Exprs| decomposed(exprs).and_then(|g| inrush_aten::lower(g, processor));
        let print = |text: Result<String>| text.unwrap_or_else(|e| e.to_string());
        let mut marks = folded.marks();
        let short = self.stage(
            "decompose",
            || {
                inrush_aten::numbers::check(&short, processor)?;
                inrush_aten::decompose_marked(short, &mut marks)
            },
            |g| print(decomposed(&g.exprs).map(|g| g.print())),
            inrush_graph::verify::verify,
        )?;
        let guards = short.guards.clone();
        let (loops, marks) = self.stage(
            "lower",
            || inrush_aten::lower_marked(short, processor, &marks),
            |(l, _)| print(lowered(&l.exprs).map(|l| l.print())),
            |(l, _)| inrush_loops::verify::verify(l),
        )?;
        let plan = self.stage(
            "fuse",
            || {
                let plan = fuse(loops, caps, &sched)?;
                match repeat::expand_blocks(&whole, folded, &marks, plan) {
                    Ok(plan) => Ok(plan),
                    // Blocks that do not repeat in the plan are compiled one by one.
                    Err(plan) => {
                        let exprs = plan.loops.exprs;
                        let whole = inrush_aten::decompose(Graph { exprs, ..whole })?;
                        fuse(inrush_aten::lower(whole, processor)?, caps, &sched)
                    }
                }
            },
            print_plan,
            inrush_sched::verify,
        )?;
        Ok((plan, guards))
    }

    /// Runs the stages after the plan for a CPU. What does not wait for kernels or their text, memory and most of the program,
    /// is made in parallel with them.
    pub(crate) fn c(
        &mut self,
        guards: &[Guard],
        signature: &Signature,
        plan: &mut Plan,
    ) -> Result<(Program, Code)> {
        let (caps, threads) = (self.caps, self.options.threads);
        let shared = &*plan;
        let (kernels, memory) = self.stage(
            "tile",
            || functions::tile(shared, caps, threads, || inrush_sched::memory(shared)),
            |(k, _)| functions::show(shared, k, caps),
            |(k, _): &(Kernels, _)| k.verify(shared),
        )?;
        plan.memory = memory.map_err(|e| e.in_stage("fuse"))?;
        self.verify_memory(plan)?;
        let plan = &*plan;
        let wrap = || wrap::wrap(guards, signature, plan, &wrap::Code::C(&kernels));
        let (emitted, program) = self.stage(
            "emit",
            || functions::emit(plan, &kernels, caps, wrap),
            |(e, _): &(Functions, _)| functions::spread(&e.functions, 1).join("\n"),
            |_| Ok(()),
        )?;
        let work = || {
            let mut program = program?;
            wrap::name(&mut program, &emitted);
            Ok(program)
        };
        let program = self.stage("wrap", work, |p| p.to_string(), |p: &Program| p.verify())?;
        Ok((program, Code::C(emitted.functions)))
    }

    /// Runs the stages after the plan for a GPU.
    fn gpu(
        &mut self,
        guards: &[Guard],
        signature: &Signature,
        plan: &mut Plan,
    ) -> Result<(Program, Code, Option<Retile>)> {
        inrush_sched::plan_memory(plan).map_err(|e| e.in_stage("fuse"))?;
        self.verify_memory(plan)?;
        let plan = &*plan;
        // Memory first: which buffers share bytes decides about barriers in block programs.
        let blocks = self.blocks(plan)?;
        let kernels = self.triton(plan, &blocks)?;
        let work = || wrap::wrap(guards, signature, plan, &wrap::Code::Gpu(&kernels));
        let program = self.stage("wrap", work, |p| p.to_string(), |p: &Program| p.verify())?;
        let options = self.options;
        let retile =
            (options.retile).then(|| Retile::of(plan, self.caps, options.pointers, &kernels));
        Ok((program, Code::Gpu(kernels.kernels), retile))
    }
}

/// Runs the parts of stage fuse that kernels wait for: fusion, then layouts.
fn fuse(loops: Loops, caps: &Caps, options: &inrush_sched::Options) -> Result<Plan> {
    let mut plan = inrush_sched::fuse(loops, caps, options)?;
    inrush_sched::layout(&mut plan, caps, options)?;
    Ok(plan)
}

/// Prints a plan with the memory that it will have.
fn print_plan(plan: &Plan) -> String {
    let mut plan = plan.clone();
    match inrush_sched::plan_memory(&mut plan) {
        Ok(()) => plan.print(),
        Err(e) => e.to_string(),
    }
}
