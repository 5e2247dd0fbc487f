//! Drawn graphs: a seed gives a graph of operators as models use them, with sizes, strides, dtypes and neighbours by chance.
//!
//! [`draw`] makes one, [`Drawn::check`] compiles it for a level of the CPU, or for a GPU whose block programs are interpreted, and
//! compares it with the interpreter, [`shrink()`] makes one that fails smaller. What is drawn prints as a file test.
//!
//! Algorithms are chosen by sizes, strides and neighbours, and written tests cover a few of their
//! combinations. A family (`families`) draws the core of a graph, such as a convolution with its
//! window; up to three followers read it (pointwise operators, views, reductions), and some
//! values in between become outputs too. `make` has inputs with layouts and calls whose types
//! fit; a draw that does not fit together starts again.
//!
//! ```text
//! seed -> Make -> family -> followers -> Graph
//! Graph -> compiled or block programs  <-> interpreter        check
//! numbers among sizes -> names with hints and bounds          symbols
//! failure -> candidates of less weight, while they fail       shrink -> file test
//! counts of ways -> families of ways that were not taken      ways, drive
//! ```
//!
//! A seed gives the same graph on every machine. Changes of the generator change the graphs of
//! all seeds, so a failure is kept as a file test and not as a seed.

mod drive;
mod families;
mod level;
mod make;
mod rare;
mod rows;
mod shrink;
mod symbols;
mod ways;
mod windows;

pub use drive::main;
pub use level::Level;
pub use shrink::shrink;

use crate::random::Random;
use crate::{Block, Program, run};
use inrush_base::{Error, Result};
use inrush_graph::Graph;
use make::Make;

/// A graph and how it is run.
#[derive(Clone)]
pub struct Drawn {
    pub graph: Graph,
    /// The name of its family.
    pub family: &'static str,
    /// Settings of the `run` block besides level and threads.
    /// Seed, ranges of inputs, offset; always `brief` and `ordinary`.
    pub settings: Vec<String>,
    pub threads: usize,
    /// Values of the sizes that are names in the graph.
    pub sizes: Vec<(String, i64)>,
    /// How kernels of GPUs name strided tiles, by its name.
    pub pointers: &'static str,
    /// Kernels of GPUs have other tiles than those of the rules, by this number.
    pub tiles: Option<u64>,
}

/// Returns true if a family's name contains `only`.
pub fn has_family(only: &str) -> bool {
    families::names().any(|n| n.contains(only))
}

/// The graph of a seed, of a family whose name contains `only`.
/// With `only` empty, any family. Does not end if no family has such a name: ask [`has_family`].
pub fn draw(seed: u64, only: &str) -> Drawn {
    draw_with(seed, only, Some(false))
}

/// As [`draw`], with sizes by name where that is possible, or in a third of the graphs (`None`).
fn draw_with(seed: u64, only: &str, named: Option<bool>) -> Drawn {
    let mut m = Make::new(seed);
    let family = loop {
        match families::draw(&mut m, only) {
            Some(f) => break f,
            None => m.again(),
        }
    };
    let threads = 1 + m.r.below(3);
    let mut settings = vec![format!("seed={seed}"), "brief".into(), "ordinary".into()];
    if m.whole {
        settings.push("whole".into());
    }
    if m.r.odds(1, 3) {
        // Inputs that begin at an odd element meet code that assumes aligned vectors.
        settings.push(format!("offset={}", 1 + m.r.below(9)));
    }
    // Indices are in range, gradients fit their inputs, and windows find elements, for the sizes that they were drawn for.
    let kinds = ["backward", "pool", "conv", "fold"];
    let fixed = |n: &inrush_graph::Node| kinds.iter().any(|k| n.op.contains(k));
    let free = m.ranges.is_empty() && !m.g.nodes.iter().any(fixed);
    settings.extend(std::mem::take(&mut m.ranges));
    let pointers = m.r.of(&["plain", "plain", "descriptor", "block", "map"]);
    let mut graph = m.finish(&format!("drawn{seed}"));
    let mut sizes = Vec::new();
    if named.unwrap_or_else(|| m.r.odds(1, 3))
        && let Some((with_names, values)) = symbols::name_sizes(&graph, &mut m.r, free)
    {
        (graph, sizes) = (with_names, values);
    }
    let tiles = m.r.odds(1, 2).then(|| m.r.below(1000) as u64);
    Drawn {
        graph,
        family,
        settings,
        threads,
        sizes,
        pointers,
        tiles,
    }
}

impl Drawn {
    /// Returns the `run` block of this graph for a level.
    fn block(&self, level: Level) -> Block {
        let mut settings = self.settings.clone();
        settings.extend(self.sizes.iter().map(|(name, n)| format!("{name}={n}")));
        if !self.graph.nodes.iter().all(|n| inrush_interp::knows(&n.op)) {
            // The interpreter of graphs knows fewer operators than there are rows; the
            // interpreter of loops is the reference then.
            settings.push("lowered".into());
        }
        match level {
            Level::Gpu(name) => {
                settings.push(name.into());
                if self.pointers != "plain" {
                    settings.push(format!("pointers={}", self.pointers));
                }
                settings.extend(self.tiles.map(|n| format!("tiles={n}")));
            }
            Level::Cpu(isa) => {
                settings.push(format!("level={}", isa.name()));
                settings.push(format!("threads={}", self.threads));
            }
        }
        Block {
            language: "run".into(),
            settings,
            ..Block::default()
        }
    }

    /// Compiles for a level, runs, and compares with the interpreter of graphs or loops.
    ///
    /// # Errors
    /// A difference, a refusal, or a panic of the compiler.
    pub fn check(&self, level: Level) -> Result<()> {
        let collides = |n: &inrush_graph::Node| n.op.starts_with("aten.max_unpool");
        let in_order = level == Level::Cpu(inrush_base::Isa::Scalar) && self.threads == 1;
        if !in_order && self.graph.nodes.iter().any(collides) {
            // Positions are drawn, so some are equal: there is no one right result, and eager's is any of them too.
            return Err(Error::unsupported(
                "unpooling stores at equal positions in any order",
            ));
        }
        let block = self.block(level);
        let program = Program::Graph(self.graph.clone());
        let setup = crate::stages::setup(&block).map_err(Error::internal)?;
        // A panic of the compiler is a failure of this graph, and shrinks like any other.
        let run = std::panic::AssertUnwindSafe(|| run::agree(&program, &block, &setup));
        match std::panic::catch_unwind(run) {
            Ok(r) => r.map(|_| ()),
            Err(p) => {
                let text = (p.downcast_ref::<String>().cloned())
                    .or_else(|| p.downcast_ref::<&str>().map(|s| s.to_string()));
                let text = text.unwrap_or_default();
                Err(Error::internal(format!("a panic: {text}")))
            }
        }
    }

    /// The file test that says that it agrees.
    pub fn print(&self, level: Level) -> String {
        let settings = self.block(level).settings.join(" ");
        let who = if settings.contains("lowered") {
            "loops"
        } else {
            "graph"
        };
        let what = match level {
            Level::Cpu(_) => "compiled",
            Level::Gpu(_) => "blocks",
        };
        format!(
            "## A drawn graph ({})\n\n```graph\n{}```\n\n```run {settings}\n{who}, {what} agree\n```\n",
            self.family,
            self.graph.print()
        )
    }
}

/// Random choices of the generator.
impl Random {
    /// Below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        self.int(0, n.max(1) as i64 - 1) as usize
    }

    /// True `n` times of `of`.
    pub fn odds(&mut self, n: usize, of: usize) -> bool {
        self.below(of) < n
    }

    /// One of them.
    pub fn of<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }
}
