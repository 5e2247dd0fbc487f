//! The table of stages: what a block of this language must hold, given the test's first block.
//!
//! `give` is the one entry: it reads the program of a test at its level, runs the pipeline to the
//! stage that a block names, and prints. A program enters at any of six levels, and all later
//! stages can be asked for:
//!
//! ```text
//! graph -> normalize -> rewrite -> decompose -> lower -> fuse -> tile -> emit
//!                                   loops ------^       ^       ^      ^
//!                                                plan --'  kernels, blocks
//! graph -> wrap -> program
//! ```
//!
//! Stages run through `inrush_compile::Pipeline` with verification on, so tests see what users
//! get. Each block runs its stages from the start, without a memo between blocks.

use crate::tiles::OtherTiles;
use crate::{Block, blocks, run};
use inrush_base::{Caps, Error, Isa, Result};
use inrush_compile::{Libraries, Pipeline, Pointers, Request};
use inrush_expr::Exprs;
use inrush_graph::Graph;
use inrush_kernel::Kernel;
use inrush_kernel::block;
use inrush_loops::Loops;
use inrush_sched::Plan;

/// A stage by its name.
pub struct Stage {
    pub name: &'static str,
    /// The text of its output for a program.
    pub show: fn(&Program, &Setup) -> Result<String>,
}

/// The settings of a block: the device (`avx512`, `h100`; AVX2 with two threads otherwise, the same on every machine), the
/// scheduler's limits (`max_stmts=8`), and for GPUs how strided tiles are named (`pointers=map`), other tiles than those of the rules
/// (`tiles=1`), and what libraries compute (`libraries=products`; all that PyTorch's do otherwise).
pub struct Setup {
    pub caps: Caps,
    pub options: inrush_sched::Options,
    pub pointers: Pointers,
    /// Kernels of GPUs have other tiles than those of the rules.
    pub tiles: Option<u64>,
    pub libraries: Libraries,
    /// Values of the graph are kept for gradients (`training`).
    pub training: bool,
}

impl Setup {
    /// A device with default options.
    pub fn of(caps: Caps) -> Setup {
        Setup {
            caps,
            options: inrush_sched::Options::default(),
            pointers: Pointers::Plain,
            tiles: None,
            libraries: Libraries::All,
            training: false,
        }
    }

    /// Runs stages of the pipeline, verified.
    pub fn run<T>(&self, stages: impl FnOnce(&mut Pipeline) -> Result<T>) -> Result<T> {
        let options = inrush_compile::Options {
            sched: self.options.clone(),
            pointers: self.pointers,
            libraries: self.libraries,
            verify: true,
            ..Default::default()
        };
        let mut tiles = OtherTiles(self.tiles);
        stages(&mut Pipeline::new(&self.caps, &options, &mut tiles))
    }
}

/// A program at the level at which a test enters.
/// Kernels and block programs are parts of a plan; alone they have no buffers of a plan, and
/// their expressions come with them.
pub enum Program {
    Graph(Graph),
    Loops(Loops),
    Plan(Plan),
    Kernels(Exprs, Vec<Kernel>),
    Blocks(Exprs, Vec<block::Block>),
    Program(inrush_program::Program),
}

/// Every stage that a block can be about. A crate joins by a row.
pub const STAGES: &[Stage] = &[
    Stage {
        // Ahead of time only; a graph without complex values is as it was.
        name: "planar",
        show: |p, _| Ok(p.planar()?.print()),
    },
    Stage {
        name: "normalize",
        show: |p, _| Ok(p.normalized()?.print()),
    },
    Stage {
        name: "rewrite",
        show: |p, setup| Ok(p.rewritten(setup)?.print()),
    },
    Stage {
        name: "decompose",
        show: |p, _| Ok(p.decomposed()?.print()),
    },
    Stage {
        name: "lower",
        show: |p, setup| Ok(p.loops_within(setup)?.print()),
    },
    Stage {
        // Not a stage of the pipeline: accesses of loops that ranges do not prove to be in
        // bounds.
        name: "unproven",
        show: |p, _| p.unproven(),
    },
    Stage {
        name: "fuse",
        show: |p, setup| Ok(p.plan_within(setup)?.print()),
    },
    Stage {
        // Fusions that were considered and not done, with their reasons.
        name: "refusals",
        show: |p, setup| {
            let plan = p.plan_within(setup)?;
            Ok((plan.refusals.iter())
                .map(|r| plan.show_refusal(r) + "\n")
                .collect())
        },
    },
    Stage {
        // The lines of a plan that are about memory, for tests in which the rest would be noise.
        name: "memory",
        show: |p, setup| {
            let text = p.plan_within(setup)?.print();
            let about = |l: &&str| {
                ["arena ", "load arena ", "place "]
                    .iter()
                    .any(|w| l.starts_with(w))
            };
            Ok(text
                .lines()
                .filter(about)
                .map(|l| format!("{l}\n"))
                .collect())
        },
    },
    Stage {
        name: "tile",
        show: |p, setup| {
            if setup.caps.gpu.is_some() || matches!(p, Program::Blocks(..)) {
                return blocks::tile(p, setup);
            }
            let (exprs, kernels) = p.kernels(&setup.caps)?;
            Ok(inrush_kernel::text::print_all(&exprs, &kernels))
        },
    },
    Stage {
        name: "emit",
        show: |p, setup| {
            if setup.caps.gpu.is_some() || matches!(p, Program::Blocks(..)) {
                return blocks::emit(p, setup);
            }
            let (exprs, kernels) = p.kernels(&setup.caps)?;
            let mut out = String::new();
            for k in &kernels {
                let function =
                    inrush_c::emit(&exprs, k, &setup.caps).map_err(|e| e.in_stage("emit"))?;
                out.push_str(function.text.trim_end());
                out.push('\n');
            }
            Ok(out)
        },
    },
    Stage {
        name: "wrap",
        show: |p, setup| {
            let mut program = p.program(&setup.caps)?;
            // Names of functions are digests of their source, which is not what a test of programs is about.
            for (k, kernel) in program.kernels.iter_mut().enumerate() {
                kernel.symbol = format!("function{k}");
            }
            Ok(program.print())
        },
    },
];

/// The text that `block` must have in a test whose first block is `program`; `None` where there is nothing to compare.
pub fn give(program: &Block, block: &Block) -> Result<Option<String>, String> {
    let read = Program::read(program);
    if block.line == program.line {
        // The program itself stands in canonical form, unless it is there to be refused.
        // A program that cannot be read has an `error` block in its section, which compares the
        // message.
        return match read {
            Ok(p) => Ok(Some(p.print())),
            Err(_) => Ok(None),
        };
    }
    if block.language == "error" {
        return match read.and_then(|p| p.error(&caps(block))) {
            Err(e) => Ok(Some(e.to_string())),
            Ok(()) => Err("there is no error".into()),
        };
    }
    let program = read.map_err(|e| e.to_string())?;
    let setup = setup(block)?;
    if block.language == "run" {
        return run::agree(&program, block, &setup)
            .map(Some)
            .map_err(|e| e.to_string());
    }
    let stage = (STAGES.iter().find(|s| s.name == block.language))
        .ok_or_else(|| format!("there is no stage `{}`", block.language))?;
    (stage.show)(&program, &setup)
        .map(Some)
        .map_err(|e| e.to_string())
}

/// Returns the device of a block: a GPU's preset, a level of the CPU, or AVX2. Always two
/// threads, so that plans do not depend on the machine.
pub(crate) fn caps(block: &Block) -> Caps {
    if let Some(caps) = block.settings.iter().find_map(|s| inrush_devices::model(s)) {
        return caps;
    }
    let isa = block.settings.iter().find_map(|s| Isa::parse(s));
    Caps::cpu(isa.unwrap_or(Isa::Avx2), 2)
}

/// Settings of the scheduler.
const SCHEDULING: [&str; 3] = ["max_stmts", "max_buffers", "split_elements"];

/// Reads the settings of a block. A word without `=` that is not known is no error here: `run`
/// has words of its own, and reads them itself.
pub(crate) fn setup(block: &Block) -> Result<Setup, String> {
    let mut setup = Setup::of(caps(block));
    setup.training = block.settings.iter().any(|w| w == "training");
    let out = &mut setup.options;
    for word in &block.settings {
        let Some((name, value)) = word.split_once('=') else {
            continue;
        };
        let bad = || format!("the setting `{word}` has no meaning");
        if name == "pointers" {
            setup.pointers = value.parse().map_err(|_| bad())?;
            continue;
        }
        if name == "tiles" {
            setup.tiles = Some(value.parse().map_err(|_| bad())?);
            continue;
        }
        if name == "libraries" {
            setup.libraries = match value {
                "products" => Libraries::Products,
                "none" => Libraries::None,
                _ => return Err(bad()),
            };
            continue;
        }
        // Those of `run` are sizes and ranges as well.
        if block.language == "run" && !SCHEDULING.contains(&name) {
            continue;
        }
        let value: u32 = value.parse().map_err(|_| bad())?;
        match name {
            "max_stmts" => out.max_stmts = value as usize,
            "max_buffers" => out.max_buffers = value as usize,
            "split_elements" => out.split_elements = value as i64,
            _ => return Err(bad()),
        }
    }
    Ok(setup)
}

impl Program {
    /// Reads the program of a test's first block.
    pub fn read(block: &Block) -> Result<Program> {
        Program::parse(&block.language, &block.text)
    }

    /// Reads a program of the level that has this name.
    pub fn parse(language: &str, text: &str) -> Result<Program> {
        match language {
            "graph" => Ok(Program::Graph(inrush_graph::text::parse(text)?)),
            "loops" => Ok(Program::Loops(inrush_loops::text::parse(text)?)),
            "plan" => Ok(Program::Plan(inrush_sched::text::parse(text)?)),
            "kernels" => {
                let (exprs, kernels) = inrush_kernel::text::parse(text)?;
                Ok(Program::Kernels(exprs, kernels))
            }
            "blocks" => {
                let (exprs, blocks) = block::text::parse(text)?;
                Ok(Program::Blocks(exprs, blocks))
            }
            "program" => Ok(Program::Program(inrush_program::text::parse(text)?)),
            other => Err(Error::input(format!(
                "a test cannot start with a block `{other}`"
            ))),
        }
    }

    /// Returns the canonical text.
    pub fn print(&self) -> String {
        match self {
            Program::Graph(g) => g.print(),
            Program::Loops(l) => l.print(),
            Program::Plan(p) => p.print(),
            Program::Kernels(exprs, k) => inrush_kernel::text::print_all(exprs, k),
            Program::Blocks(exprs, b) => block::text::print_all(exprs, b),
            Program::Program(p) => p.print(),
        }
    }

    /// Runs the verifier of the program's level.
    pub fn verify(&self) -> Result<()> {
        match self {
            Program::Graph(g) => inrush_graph::verify::verify(g),
            Program::Loops(l) => inrush_loops::verify::verify(l),
            Program::Plan(p) => inrush_sched::verify(p),
            Program::Kernels(exprs, kernels) => {
                (kernels.iter()).try_for_each(|k| inrush_kernel::verify(exprs, k))
            }
            Program::Blocks(exprs, blocks) => {
                (blocks.iter()).try_for_each(|b| block::verify(exprs, b, None, &[]))
            }
            Program::Program(p) => p.verify(),
        }
    }

    /// Returns the graph without complex values. Fails for programs that start below the graph.
    pub fn planar(&self) -> Result<Graph> {
        match self {
            Program::Graph(g) => {
                inrush_graph::verify::verify(g)?;
                Setup::of(Caps::cpu(Isa::Avx2, 2)).run(|p| p.planar(g.clone()))
            }
            _ => Err(below("the graph")),
        }
    }

    /// Returns the graph of real numbers, which interpreters know, for a graph of complex ones.
    pub fn parts(&self) -> Result<Option<Program>> {
        let complex = |v: &inrush_graph::Value| match &v.ty {
            inrush_graph::Type::Tensor(t) => t.dtype.class() == inrush_base::DTypeClass::Complex,
            _ => false,
        };
        match self {
            Program::Graph(g) if g.values.iter().any(complex) => {
                self.planar().map(|g| Some(Program::Graph(g)))
            }
            _ => Ok(None),
        }
    }

    /// Returns the functional graph. Fails for programs that start below the graph.
    pub fn normalized(&self) -> Result<Graph> {
        let g = self.planar()?;
        Setup::of(Caps::cpu(Isa::Avx2, 2)).run(|p| p.normalize(g))
    }

    /// Returns the graph after stage rewrite: for a GPU the whole graph before it is cut, else the functional graph.
    pub fn rewritten(&self, setup: &Setup) -> Result<Graph> {
        match self {
            Program::Graph(g) if setup.caps.gpu.is_some() => {
                inrush_graph::verify::verify(g)?;
                let request = Request {
                    inference: !setup.training,
                    ..Request::default()
                };
                setup
                    .run(|p| p.rewrite_calls(g.clone(), &request))
                    .map(|r| r.0)
            }
            _ => {
                let g = self.normalized()?;
                setup.run(|p| p.rewrite(g))
            }
        }
    }

    /// Returns the graph after stage decompose, for a CPU.
    pub fn decomposed(&self) -> Result<Graph> {
        self.decomposed_for(&Setup::of(Caps::cpu(Isa::Avx2, 2)))
    }

    fn decomposed_for(&self, setup: &Setup) -> Result<Graph> {
        let g = self.normalized()?;
        setup.run(|p| {
            let g = p.rewrite(g)?;
            p.decompose(g)
        })
    }

    /// Returns the loops, one body or contraction per operator, for a CPU.
    pub fn loops(&self) -> Result<Loops> {
        self.loops_within(&Setup::of(Caps::cpu(Isa::Avx2, 2)))
    }

    pub(crate) fn loops_within(&self, setup: &Setup) -> Result<Loops> {
        match self {
            Program::Loops(l) => {
                inrush_loops::verify::verify(l)?;
                Ok(l.clone())
            }
            Program::Graph(_) => {
                let g = self.decomposed_for(setup)?;
                setup.run(|p| p.lower(g))
            }
            // A plan is not turned back into loops for this: stages run downwards only.
            _ => Err(below("loops")),
        }
    }

    /// Returns the plan with default options.
    pub fn plan(&self, caps: &Caps) -> Result<Plan> {
        self.plan_within(&Setup::of(caps.clone()))
    }

    /// The plan, verified.
    pub fn plan_within(&self, setup: &Setup) -> Result<Plan> {
        match self {
            Program::Graph(_) | Program::Loops(_) => {
                let loops = self.loops_within(setup)?;
                setup.run(|p| p.plan(loops))
            }
            Program::Plan(p) => {
                inrush_sched::verify(p)?;
                Ok(p.clone())
            }
            _ => Err(below("the plan")),
        }
    }

    /// Accesses that ranges do not prove to be in bounds, one a line.
    fn unproven(&self) -> Result<String> {
        let l = self.loops()?;
        let line = |u: &inrush_loops::verify::Unproven| {
            let c = l.exprs.show(u.coord);
            format!("{:?}: dimension {} of {} at {c}\n", u.place, u.dim, u.buf)
        };
        Ok(inrush_loops::verify::unproven(&l)
            .iter()
            .map(line)
            .collect())
    }

    /// Every kernel, those that run at load first.
    pub fn kernels(&self, caps: &Caps) -> Result<(Exprs, Vec<Kernel>)> {
        match self {
            Program::Kernels(exprs, kernels) => {
                (kernels.iter()).try_for_each(|k| inrush_kernel::verify(exprs, k))?;
                Ok((exprs.clone(), kernels.clone()))
            }
            Program::Program(_) | Program::Blocks(..) => Err(below("kernels")),
            _ => {
                let plan = self.plan(caps)?;
                let kernels = Setup::of(caps.clone()).run(|p| p.kernels(&plan))?;
                Ok((plan.loops.exprs, kernels))
            }
        }
    }

    /// Prints the block programs for a GPU by name.
    pub fn block_text(&self, name: &str) -> Result<String> {
        let caps =
            inrush_devices::model(name).ok_or_else(|| Error::input(format!("no GPU `{name}`")))?;
        blocks::tile(self, &Setup::of(caps))
    }

    /// The program that an executor runs.
    pub fn program(&self, caps: &Caps) -> Result<inrush_program::Program> {
        let program = match self {
            Program::Program(p) => p.clone(),
            Program::Graph(g) => {
                // The whole compiler instead of the pipeline's stages: guards and inputs are the
                // graph's.
                let options = inrush_compile::Options {
                    pieces: 1,
                    verify: true,
                    ..Default::default()
                };
                inrush_compile::compile(g.clone(), caps, &options, &mut ())?.program
            }
            _ => {
                return Err(Error::input(
                    "a program needs the graph's inputs and guards",
                ));
            }
        };
        program.verify()?;
        Ok(program)
    }

    /// The first error on the way down.
    /// An error block tests the first stage that refuses, from the verifier on; graphs and loops
    /// go down to the plan, and lower levels to source.
    fn error(&self, caps: &Caps) -> Result<()> {
        self.verify()?;
        match self {
            Program::Program(_) => Ok(()),
            Program::Blocks(exprs, list) => list
                .iter()
                .try_for_each(|b| blocks::emit_one(exprs, b, caps).map(|_| ())),
            Program::Plan(_) | Program::Kernels(..) => {
                let (exprs, kernels) = self.kernels(caps)?;
                (kernels.iter()).try_for_each(|k| inrush_c::emit(&exprs, k, caps).map(|_| ()))
            }
            Program::Graph(_) | Program::Loops(_) => self.plan(caps).map(|_| ()),
        }
    }
}

/// Returns the error about a stage that precedes the program's level.
fn below(level: &str) -> Error {
    Error::input(format!("the test starts below {level}"))
}
