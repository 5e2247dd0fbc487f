//! Programs in parts, for graphs whose data decide about sizes: compiled segments, and calls of the runtime's library between them.
//!
//! ```text
//! graph -> planar -> expand masks -> normalize -> cut and compile (sequence.rs) -> interface + steps
//! ```
//!
//! Symbols that are read from data are sizes here: a condition on one of them is a guard that is checked once it is known. A graph
//! without such symbols is compiled as one program, see [`crate::compile`].

mod interface;
mod lower;

use crate::{Compiled, Observer, Options, Pipeline, Request, compile_sequence};
use inrush_base::{Caps, Error, Result};
use inrush_expr::SymKind;
use inrush_graph::Graph;

/// Returns true if the graph cannot be one program.
pub(crate) fn are_needed(graph: &Graph) -> bool {
    let ex = &graph.exprs;
    let unbacked = |s| ex.sym_info(s).kind == SymKind::Unbacked;
    ex.symbols().into_iter().any(unbacked)
        || (graph.nodes.iter()).any(|n| inrush_aten::dynamic::find(&n.op).is_some())
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
        return Err(Error::unsupported(
            "sizes that depend on data, which packages for GPUs do not have",
        ));
    }
    graph.exprs.unbacked_as_sizes();
    if !crate::complex::Boundary::of(&graph).is_empty() {
        return Err(Error::unsupported(
            "complex inputs or outputs of a program whose data decide about sizes",
        ));
    }
    let mut pipeline = Pipeline::new(caps, options, observer);
    let graph = pipeline.planar(graph)?;
    let graph = inrush_passes::expand_masks(graph)?;
    let graph = pipeline.normalize(graph)?;
    let signature = crate::signature::signature(&graph).map_err(|e| e.in_stage("normalize"))?;
    let request = Request {
        alone: true,
        inference: true,
        ..Request::default()
    };
    let mut sequence = compile_sequence(graph, &request, caps, options, observer)?;
    let graph = std::mem::take(&mut sequence.graph);
    let (pieces, refusals) = (
        std::mem::take(&mut sequence.pieces),
        std::mem::take(&mut sequence.refusals),
    );
    let mut program = interface::interface(&graph, &signature, &sequence.symbols)?;
    program.parts = Some(Box::new(lower::lower(&graph, sequence)?));
    (program.verify()).map_err(|e| Error::internal(e.message().to_string()))?;
    Ok(Compiled {
        program,
        pieces,
        kernels: Vec::new(),
        refusals,
    })
}
