//! Programs in parts, for graphs whose data decide about sizes or about what runs: compiled segments, and between them calls of the
//! runtime's library and control flow, whose bodies are programs too.
//!
//! ```text
//! graph -> planar -> expand masks -> normalize -> cut and compile (sequence.rs) -> interface + steps, bodies likewise
//! ```
//!
//! Symbols that are read from data are sizes here: a condition on one of them is a guard that is checked once it is known. A graph
//! without such symbols and without control flow is compiled as one program, see [`crate::compile`].

mod calls;
mod control;
mod interface;
mod library;
mod lower;

pub use crate::partition::Held;
pub use calls::{Bodies, Calls};
pub use control::integers;
pub use inrush_aten::decompose_library;
pub use library::library_segment;

use crate::functions::spread;
use crate::sequence::held;
use crate::{Code, Compiled, Observer, Options, Pipeline, Refusals, Request, compile_sequence};
use inrush_base::{Caps, Error, Result};
use inrush_c::Function;
use inrush_expr::SymKind;
use inrush_graph::Graph;
use inrush_program::parts::MOST_NESTED;
use inrush_program::{Output, Program};
use rustc_hash::FxHashSet;

/// Returns true if the graph cannot be one program.
pub fn are_needed(graph: &Graph) -> bool {
    let ex = &graph.exprs;
    let unbacked = |s| ex.sym_info(s).kind == SymKind::Unbacked;
    let called = |op: &str| {
        inrush_aten::dynamic::find(op).is_some()
            || inrush_aten::dynamic::is_control(op)
            || graph.operator(op).is_some()
    };
    ex.symbols().into_iter().any(unbacked) || graph.nodes.iter().any(|n| called(&n.op))
}

/// The compilation of a graph and of the graphs that it calls.
pub(crate) struct Build<'a> {
    caps: &'a Caps,
    options: &'a Options,
    observer: &'a mut dyn Observer,
    /// Functions of all programs.
    functions: Vec<Function>,
    refusals: Refusals,
    /// Programs around the one that is compiled.
    depth: usize,
}

/// Compiles a graph for a CPU as a program in parts.
///
/// # Errors
/// As [`crate::compile`]; an unsupported error that lists the operators which are neither compiled nor functions of the runtime's
/// library.
pub(crate) fn compile(
    graph: Graph,
    caps: &Caps,
    options: &Options,
    observer: &mut dyn Observer,
) -> Result<Compiled> {
    if caps.gpu.is_some() {
        // A host program holds them: `inrush_host::native::compile`.
        return Err(Error::unsupported(
            "control flow and sizes that depend on data, which one program for a GPU does not have",
        ));
    }
    let mut build = Build {
        caps,
        options,
        observer,
        functions: Vec::new(),
        refusals: Refusals::default(),
        depth: 0,
    };
    let program = build.in_parts(graph)?;
    (program.verify()).map_err(|e| Error::internal(e.message().to_string()))?;
    // Programs share functions by name: a name is a digest of the text.
    let mut seen = FxHashSet::default();
    (build.functions).retain(|f| seen.insert(f.name.clone()));
    let pieces = if build.functions.is_empty() {
        Vec::new()
    } else {
        spread(&build.functions, options.pieces.max(1))
    };
    Ok(Compiled {
        program,
        pieces,
        kernels: Vec::new(),
        refusals: build.refusals,
    })
}

impl Bodies for Build<'_> {
    type Program = Program;

    fn body(&mut self, graph: Graph) -> Result<Program> {
        let program = self.compiled(graph)?;
        if program.outputs.contains(&Output::Mutation) {
            return Err(writes());
        }
        Ok(program)
    }
}

/// Returns the error for a body that writes.
pub fn writes() -> Error {
    Error::unsupported("control flow that writes its inputs or buffers in place")
}

impl Build<'_> {
    /// Compiles a graph that another one calls.
    fn compiled(&mut self, graph: Graph) -> Result<Program> {
        if are_needed(&graph) {
            if self.depth + 1 >= MOST_NESTED {
                return Err(Error::unsupported(format!(
                    "control flow within control flow, {MOST_NESTED} levels deep"
                )));
            }
            self.depth += 1;
            let program = self.in_parts(graph);
            self.depth -= 1;
            return program;
        }
        refuse_complex(&graph)?;
        let mut pipeline = Pipeline::new(self.caps, self.options, self.observer);
        let graph = pipeline.planar(graph)?;
        let unit = pipeline.unit(graph)?;
        let Code::C(functions) = unit.code else {
            return Err(Error::internal("a body has kernels for a GPU"));
        };
        self.functions.extend(functions);
        self.refusals.extend(unit.refusals);
        Ok(unit.program)
    }

    /// Compiles a graph as a program in parts.
    fn in_parts(&mut self, graph: Graph) -> Result<Program> {
        refuse_complex(&graph)?;
        let mut pipeline = Pipeline::new(self.caps, self.options, self.observer);
        let graph = expanded(pipeline.planar(graph)?)?;
        let graph = pipeline.normalize_whole(graph)?;
        let signature = crate::signature::signature(&graph).map_err(|e| e.in_stage("normalize"))?;
        let request = Request {
            alone: true,
            inference: true,
            ints: control::integers(&graph),
            ..Request::default()
        };
        let held = held(&graph);
        let mut sequence =
            compile_sequence(graph, &request, self.caps, self.options, self.observer)?;
        let graph = std::mem::take(&mut sequence.graph);
        self.functions.append(&mut sequence.functions);
        (self.refusals).extend(std::mem::take(&mut sequence.refusals));
        let mut program = interface::interface(&graph, &signature, &sequence.symbols)?;
        program.parts = Some(Box::new(lower::lower(&graph, held, sequence, self)?));
        Ok(program)
    }
}

/// Makes sizes of the symbols that are read from data, and replaces masks and repeats by coordinates.
///
/// # Errors
/// An unsupported error for several masks in one read.
pub fn expanded(graph: Graph) -> Result<Graph> {
    graph.exprs.unbacked_as_sizes();
    let graph = inrush_passes::expand_masks(graph)?;
    inrush_passes::expand_repeats(graph)
}

/// Refuses complex inputs and outputs.
///
/// # Errors
/// An unsupported error.
pub fn refuse_complex(graph: &Graph) -> Result<()> {
    if crate::complex::Boundary::of(graph).is_empty() {
        return Ok(());
    }
    Err(Error::unsupported(
        "complex inputs or outputs of a program whose data decide about sizes or about what runs, or of its control flow",
    ))
}
