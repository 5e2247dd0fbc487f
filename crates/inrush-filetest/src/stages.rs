//! The table of stages: what a block of this language must hold, given the test's first block.

use crate::{Block, run};
use inrush_aten::Processor;
use inrush_base::{Caps, Error, Isa, Result};
use inrush_expr::Exprs;
use inrush_graph::Graph;
use inrush_kernel::Kernel;
use inrush_loops::Loops;
use inrush_sched::{Plan, Step};

/// A stage by its name.
pub struct Stage {
    pub name: &'static str,
    /// The text of its output for a program.
    pub show: fn(&Program, &Setup) -> Result<String>,
}

/// What a block asks for: the device (`avx512`, `h100`; AVX2 with two threads otherwise, the same on every machine) and the
/// scheduler's limits (`max_stmts=8`).
pub struct Setup {
    pub caps: Caps,
    pub options: inrush_sched::Options,
}

/// A program at the level at which a test enters.
pub enum Program {
    Graph(Graph),
    Loops(Loops),
    Plan(Plan),
    Kernels(Exprs, Vec<Kernel>),
    Program(inrush_program::Program),
}

/// Every stage that a block can be about. A crate joins by a row.
pub const STAGES: &[Stage] = &[
    Stage {
        name: "normalize",
        show: |p, _| Ok(p.normalized()?.print()),
    },
    Stage {
        name: "decompose",
        show: |p, _| Ok(p.decomposed()?.print()),
    },
    Stage {
        name: "lower",
        show: |p, setup| Ok(p.loops_for(Processor::of(&setup.caps))?.print()),
    },
    Stage {
        name: "unproven",
        show: |p, _| p.unproven(),
    },
    Stage {
        name: "fuse",
        show: |p, setup| Ok(p.plan_within(setup)?.print()),
    },
    Stage {
        name: "refusals",
        show: |p, setup| {
            let plan = p.plan_within(setup)?;
            Ok((plan.refusals.iter())
                .map(|r| plan.show_refusal(r) + "\n")
                .collect())
        },
    },
    Stage {
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
            let (exprs, kernels) = p.kernels(&setup.caps)?;
            Ok(inrush_kernel::text::print_all(&exprs, &kernels))
        },
    },
    Stage {
        name: "emit",
        show: |p, setup| {
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
    if block.language == "run" {
        return run::agree(&program, block)
            .map(Some)
            .map_err(|e| e.to_string());
    }
    let stage = (STAGES.iter().find(|s| s.name == block.language))
        .ok_or_else(|| format!("there is no stage `{}`", block.language))?;
    let setup = Setup {
        caps: caps(block),
        options: options(block)?,
    };
    (stage.show)(&program, &setup)
        .map(Some)
        .map_err(|e| e.to_string())
}

fn caps(block: &Block) -> Caps {
    let preset = |s: &String| {
        inrush_cuda::CUDA
            .presets
            .iter()
            .find(|p| p.name == s.as_str())
    };
    if let Some(gpu) = block.settings.iter().find_map(preset) {
        return (gpu.caps)();
    }
    let isa = block.settings.iter().find_map(|s| Isa::parse(s));
    Caps::cpu(isa.unwrap_or(Isa::Avx2), 2)
}

fn options(block: &Block) -> Result<inrush_sched::Options, String> {
    let mut out = inrush_sched::Options::default();
    for word in &block.settings {
        let Some((name, value)) = word.split_once('=') else {
            continue;
        };
        let bad = || format!("the setting `{word}` has no meaning");
        let value: u32 = value.parse().map_err(|_| bad())?;
        match name {
            "max_stmts" => out.max_stmts = value as usize,
            "max_buffers" => out.max_buffers = value as usize,
            "split_elements" => out.split_elements = value as i64,
            _ => return Err(bad()),
        }
    }
    Ok(out)
}

impl Program {
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
            "program" => Ok(Program::Program(inrush_program::text::parse(text)?)),
            other => Err(Error::input(format!(
                "a test cannot start with a block `{other}`"
            ))),
        }
    }

    pub fn print(&self) -> String {
        match self {
            Program::Graph(g) => g.print(),
            Program::Loops(l) => l.print(),
            Program::Plan(p) => p.print(),
            Program::Kernels(exprs, k) => inrush_kernel::text::print_all(exprs, k),
            Program::Program(p) => p.print(),
        }
    }

    pub fn verify(&self) -> Result<()> {
        match self {
            Program::Graph(g) => inrush_graph::verify::verify(g),
            Program::Loops(l) => inrush_loops::verify::verify(l),
            Program::Plan(p) => inrush_sched::verify(p),
            Program::Kernels(exprs, kernels) => {
                (kernels.iter()).try_for_each(|k| inrush_kernel::verify(exprs, k))
            }
            Program::Program(p) => p.verify(),
        }
    }

    pub fn normalized(&self) -> Result<Graph> {
        match self {
            Program::Graph(g) => {
                inrush_graph::verify::verify(g)?;
                let g = inrush_aten::normalize(g.clone()).map_err(|e| e.in_stage("normalize"))?;
                inrush_graph::verify::verify(&g)?;
                Ok(g)
            }
            _ => Err(below("the graph")),
        }
    }

    pub fn decomposed(&self) -> Result<Graph> {
        let g = inrush_aten::decompose(self.normalized()?).map_err(|e| e.in_stage("decompose"))?;
        inrush_graph::verify::verify(&g)?;
        Ok(g)
    }

    pub fn loops(&self) -> Result<Loops> {
        self.loops_for(Processor::Cpu)
    }

    pub fn loops_for(&self, processor: Processor) -> Result<Loops> {
        let l = match self {
            Program::Loops(l) => l.clone(),
            Program::Graph(_) => inrush_aten::lower(self.decomposed()?, processor)
                .map_err(|e| e.in_stage("lower"))?,
            _ => return Err(below("loops")),
        };
        inrush_loops::verify::verify(&l)?;
        Ok(l)
    }

    pub fn plan(&self, caps: &Caps) -> Result<Plan> {
        self.plan_within(&Setup {
            caps: caps.clone(),
            options: inrush_sched::Options::default(),
        })
    }

    fn plan_within(&self, setup: &Setup) -> Result<Plan> {
        let plan = match self {
            Program::Graph(_) | Program::Loops(_) => {
                let loops = self.loops_for(Processor::of(&setup.caps))?;
                inrush_sched::schedule(loops, &setup.caps, &setup.options)
                    .map_err(|e| e.in_stage("fuse"))?
            }
            Program::Plan(p) => p.clone(),
            _ => return Err(below("the plan")),
        };
        inrush_sched::verify(&plan)?;
        Ok(plan)
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
        let (exprs, kernels) = match self {
            Program::Kernels(exprs, kernels) => (exprs.clone(), kernels.clone()),
            Program::Program(_) => return Err(below("kernels")),
            _ => {
                let plan = self.plan(caps)?;
                let steps = plan.load_steps.iter().chain(&plan.steps);
                let one = |step: &Step| match step {
                    Step::Kernel(g) => inrush_kernel::tile(
                        plan.loops.tables(),
                        &g.axes,
                        &g.bodies,
                        &g.locals,
                        caps,
                    ),
                    Step::Contraction(c) => {
                        inrush_kernel::tile_epilogue(plan.loops.tables(), c, caps)
                    }
                };
                let kernels: Result<Vec<Kernel>> = steps.map(one).collect();
                let kernels = kernels.map_err(|e| e.in_stage("tile"))?;
                (plan.loops.exprs, kernels)
            }
        };
        (kernels.iter()).try_for_each(|k| inrush_kernel::verify(&exprs, k))?;
        Ok((exprs, kernels))
    }

    /// The program that an executor runs.
    pub fn program(&self, caps: &Caps) -> Result<inrush_program::Program> {
        let program = match self {
            Program::Program(p) => p.clone(),
            Program::Graph(g) => {
                let options = inrush_compile::Options {
                    pieces: 1,
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
    fn error(&self, caps: &Caps) -> Result<()> {
        self.verify()?;
        match self {
            Program::Program(_) => Ok(()),
            Program::Plan(_) | Program::Kernels(..) => {
                let (exprs, kernels) = self.kernels(caps)?;
                (kernels.iter()).try_for_each(|k| inrush_c::emit(&exprs, k, caps).map(|_| ()))
            }
            Program::Graph(_) | Program::Loops(_) => self.plan(caps).map(|_| ()),
        }
    }
}

fn below(level: &str) -> Error {
    Error::input(format!("the test starts below {level}"))
}
