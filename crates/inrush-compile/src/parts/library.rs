//! Functions of the runtime's library that a program for a GPU has its host call.
//!
//! The operator is compiled for a CPU by itself, on row-major tensors. What is left are calls of the library and the copies into
//! their operands, which row-major inputs need not:
//!
//! ```text
//! k0 = copy of x; linalg.inv k0 -> y, info    =>    linalg.inv x -> y, info
//! ```

use crate::{Call, Options, Pipeline, Segment, SymbolDef, partition, signature};
use inrush_base::{Caps, ErrorKind, Isa, Result};
use inrush_graph::{Graph, OutputValue, Type};
use inrush_loops::{BufId, Loops, Stmt, StoreMode};
use inrush_program::{BufferId, Output, Program, Step};
use inrush_sched::{Group, Plan};
use rustc_hash::{FxHashMap, FxHashSet};

/// Returns the segment of a called node that consists of calls of the library alone; `None` where it takes kernels too. Its tensors
/// are row-major.
///
/// # Errors
/// A broken invariant in a stage.
pub fn library_segment(graph: &Graph, c: &Call, symbols: &[SymbolDef]) -> Result<Option<Segment>> {
    let mut cut = partition::alone(graph, c.node);
    row_major(&mut cut.graph);
    // Which level does not matter: no kernel is left.
    let caps = Caps::cpu(Isa::Scalar, 1);
    let (options, mut watch) = (Options::default(), ());
    let mut pipeline = Pipeline::new(&caps, &options, &mut watch);
    let found = signature::signature(&cut.graph)
        .and_then(|s| Ok((s, pipeline.straight(cut.graph)?)))
        .and_then(|(s, (mut plan, guards))| {
            let (program, _) = pipeline.c(&guards, &s, &mut plan)?;
            Ok((program, plan))
        });
    let (program, plan) = match found {
        Ok(found) => found,
        Err(e) if e.kind() == ErrorKind::Unsupported => return Ok(None),
        Err(e) => return Err(e),
    };
    let Some(program) = without_copies(program, &plan) else {
        return Ok(None);
    };
    let position = |s: &inrush_program::Symbol| {
        let at = symbols.iter().position(|d| d.name == s.name);
        at.and_then(|at| u32::try_from(at).ok())
    };
    let positions: Option<Vec<u32>> = program.symbols.iter().map(position).collect();
    Ok(positions.map(|symbols| Segment {
        program,
        inputs: cut.inputs,
        symbols,
        outputs: cut.outputs,
    }))
}

/// Makes inputs and outputs row-major.
fn row_major(graph: &mut Graph) {
    let outputs = graph.outputs.iter().filter_map(|o| match o.value {
        OutputValue::Value(v) => Some(v),
        _ => None,
    });
    let ends: Vec<_> = graph
        .inputs
        .iter()
        .map(|i| i.value)
        .chain(outputs)
        .collect();
    for v in ends {
        if let Type::Tensor(t) = &mut graph.values[v.index()].ty {
            t.strides = graph.exprs.contiguous_strides(&t.sizes);
        }
    }
}

/// Returns a program whose library calls read what they got copies of; `None` for one with other steps.
fn without_copies(mut program: Program, plan: &Plan) -> Option<Program> {
    if !program.load_steps.is_empty() || program.steps.len() != plan.steps.len() {
        return None;
    }
    let mut source: FxHashMap<BufferId, BufferId> = FxHashMap::default();
    let mut given: FxHashSet<BufferId> = FxHashSet::default();
    let mut steps = Vec::with_capacity(program.steps.len());
    for (step, planned) in program.steps.into_iter().zip(&plan.steps) {
        match (step, planned) {
            (Step::Launch(_), inrush_sched::Step::Kernel(g)) => {
                let (from, to) = copied(&plan.loops, g)?;
                let from = from.index() as BufferId;
                source.insert(
                    to.index() as BufferId,
                    source.get(&from).copied().unwrap_or(from),
                );
            }
            (Step::Library(mut call), _) => {
                for o in &mut call.inputs {
                    o.buffer = source.get(&o.buffer).copied().unwrap_or(o.buffer);
                }
                given.extend(call.outputs.iter().map(|o| o.buffer));
                steps.push(Step::Library(call));
            }
            _ => return None,
        }
    }
    let is_given = |o: &Output| match o {
        Output::Tensor { buffer, .. } => given.contains(buffer),
        _ => true,
    };
    if steps.is_empty() || !program.outputs.iter().all(is_given) {
        return None;
    }
    program.steps = steps;
    program.kernels.clear();
    Some(program)
}

/// Returns the buffers of a kernel that copies one to another of the same sizes.
fn copied(loops: &Loops, g: &Group) -> Option<(BufId, BufId)> {
    let [body] = &g.bodies[..] else { return None };
    let [
        Stmt::Load {
            buf: from,
            coords: read,
            mask: None,
            ..
        },
        Stmt::Store {
            buf: to,
            coords: written,
            value,
            mode: StoreMode::Set,
            mask: None,
        },
    ] = &body.stmts[..]
    else {
        return None;
    };
    let (a, b) = (loops.buffer(*from), loops.buffer(*to));
    let same = value.index() == 0 && read == written && a.sizes == b.sizes && a.dtype == b.dtype;
    same.then_some((*from, *to))
}
