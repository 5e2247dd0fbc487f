//! The table of stages: what a block of this language must hold, given the test's first block.

use crate::{Block, run};
use inrush_base::{Caps, Isa, Result};
use inrush_graph::Graph;
use inrush_loops::Loops;
use inrush_sched::Plan;

/// A stage by its name.
pub struct Stage {
    pub name: &'static str,
    /// The text of its output for a program.
    pub show: fn(&Program, &Caps) -> Result<String>,
}

/// A program at the level at which a test enters.
pub enum Program {
    Graph(Graph),
    Loops(Loops),
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
        show: |p, _| Ok(p.loops()?.print()),
    },
    Stage {
        name: "unproven",
        show: |p, _| p.unproven(),
    },
    Stage {
        name: "fuse",
        show: |p, caps| Ok(p.plan(caps)?.print()),
    },
    Stage {
        name: "refusals",
        show: |p, caps| {
            let plan = p.plan(caps)?;
            Ok((plan.refusals.iter())
                .map(|r| plan.show_refusal(r) + "\n")
                .collect())
        },
    },
    Stage {
        name: "tile",
        show: |p, caps| {
            p.kernels(caps, |plan, k, _| {
                Ok(inrush_kernel::print(&plan.loops.exprs, k))
            })
        },
    },
    Stage {
        name: "emit",
        show: |p, caps| {
            p.kernels(caps, |plan, k, caps| {
                Ok(inrush_c::emit(&plan.loops.exprs, k, caps)?.text)
            })
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
    (stage.show)(&program, &caps(block))
        .map(Some)
        .map_err(|e| e.to_string())
}

/// The device that a block asks for (`avx512`), AVX2 with two threads otherwise: the same on every machine.
fn caps(block: &Block) -> Caps {
    let isa = block.settings.iter().find_map(|s| Isa::parse(s));
    Caps::cpu(isa.unwrap_or(Isa::Avx2), 2)
}

impl Program {
    pub fn read(block: &Block) -> Result<Program> {
        match block.language.as_str() {
            "graph" => Ok(Program::Graph(inrush_graph::text::parse(&block.text)?)),
            "loops" => Ok(Program::Loops(inrush_loops::text::parse(&block.text)?)),
            other => Err(inrush_base::Error::input(format!(
                "a test cannot start with a block `{other}`"
            ))),
        }
    }

    fn print(&self) -> String {
        match self {
            Program::Graph(g) => g.print(),
            Program::Loops(l) => l.print(),
        }
    }

    pub fn verify(&self) -> Result<()> {
        match self {
            Program::Graph(g) => inrush_graph::verify::verify(g),
            Program::Loops(l) => inrush_loops::verify::verify(l),
        }
    }

    fn normalized(&self) -> Result<Graph> {
        match self {
            Program::Graph(g) => {
                inrush_graph::verify::verify(g)?;
                let g = inrush_aten::normalize(g.clone()).map_err(|e| e.in_stage("normalize"))?;
                inrush_graph::verify::verify(&g)?;
                Ok(g)
            }
            Program::Loops(_) => Err(inrush_base::Error::input("the test starts below the graph")),
        }
    }

    pub fn decomposed(&self) -> Result<Graph> {
        let g = inrush_aten::decompose(self.normalized()?).map_err(|e| e.in_stage("decompose"))?;
        inrush_graph::verify::verify(&g)?;
        Ok(g)
    }

    pub fn loops(&self) -> Result<Loops> {
        let l = match self {
            Program::Loops(l) => l.clone(),
            Program::Graph(_) => {
                inrush_aten::lower(self.decomposed()?).map_err(|e| e.in_stage("lower"))?
            }
        };
        inrush_loops::verify::verify(&l)?;
        Ok(l)
    }

    pub fn plan(&self, caps: &Caps) -> Result<Plan> {
        inrush_sched::schedule(self.loops()?, caps, &inrush_sched::Options::default())
            .map_err(|e| e.in_stage("fuse"))
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

    /// Text of every kernel of the plan.
    fn kernels(
        &self,
        caps: &Caps,
        show: impl Fn(&Plan, &inrush_kernel::Kernel, &Caps) -> Result<String>,
    ) -> Result<String> {
        let plan = self.plan(caps)?;
        let mut out = String::new();
        for step in plan.load_steps.iter().chain(&plan.steps) {
            let kernel = match step {
                inrush_sched::Step::Kernel(g) => {
                    inrush_kernel::tile(&plan.loops, &g.axes, &g.bodies, &g.locals, caps)
                }
                inrush_sched::Step::Contraction(c) => {
                    inrush_kernel::tile_epilogue(&plan.loops, c, caps)
                }
            }
            .map_err(|e| e.in_stage("tile"))?;
            inrush_kernel::verify(&plan.loops.exprs, &kernel)?;
            out.push_str(show(&plan, &kernel, caps)?.trim_end());
            out.push('\n');
        }
        Ok(out)
    }

    /// The first error on the way down.
    fn error(&self, caps: &Caps) -> Result<()> {
        self.verify()?;
        self.plan(caps).map(|_| ())
    }
}
