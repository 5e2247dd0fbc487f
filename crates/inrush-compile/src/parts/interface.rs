//! The side of a program in parts that a caller sees: a program without steps.

use crate::signature::Signature;
use crate::sizes::Sizes;
use crate::{SymbolDef, wrap};
use inrush_base::{Error, Result};
use inrush_expr::Sym;
use inrush_graph::{Graph, InputKind, OutputKind, OutputValue, Type, ValueId};
use inrush_program::{Buffer, Dt, InputType, Output, Place, Program, Symbol, SymbolSource, Weight};
use rustc_hash::FxHashSet;

/// Builds the program of a normalised graph's inputs, weights and outputs. `known` are its symbols in the order of the sequence.
pub(super) fn interface(
    graph: &Graph,
    signature: &Signature,
    known: &[SymbolDef],
) -> Result<Program> {
    let ex = &graph.exprs;
    let mut order: Vec<Sym> = Vec::with_capacity(known.len());
    let mut symbols = Vec::with_capacity(known.len());
    for def in known {
        let missing = || Error::internal(format!("the symbol `{}` is gone", def.name));
        let sym = ex.sym_by_name(&def.name).ok_or_else(missing)?;
        let at = signature.syms.iter().position(|s| *s == sym);
        symbols.push(match (at, def.after) {
            (Some(at), None) => signature.symbols[at].clone(),
            (None, Some(_)) => {
                let info = ex.sym_info(sym);
                Symbol {
                    name: info.name,
                    lower: info.lower,
                    upper: info.upper,
                    source: SymbolSource::Data,
                }
            }
            _ => return Err(missing()),
        });
        order.push(sym);
    }
    let mut sizes = Sizes::new(ex, &order);
    let zero = sizes.int(0);
    let mut out = Program {
        name: graph.name.clone(),
        symbols,
        arena_bytes: zero,
        load_bytes: zero,
        ..Program::default()
    };
    for i in &signature.inputs {
        out.inputs.push(wrap::input(&mut sizes, i)?);
    }
    for g in &graph.guards {
        out.guards.push(wrap::guard(&mut sizes, g)?);
    }
    out.buffers = inputs(graph, &out, &mut sizes)?;
    for (k, o) in graph.outputs.iter().enumerate() {
        let output = output(graph, k, o, &mut out.buffers, &mut sizes)?;
        out.outputs.push(output);
    }
    out.sizes = sizes.finish();
    Ok(out)
}

/// Returns the buffers of weights that the graph reads or writes, and of inputs that it writes.
fn inputs(graph: &Graph, out: &Program, sizes: &mut Sizes) -> Result<Vec<Buffer>> {
    let read: FxHashSet<ValueId> = (graph.nodes.iter().flat_map(|n| n.reads()))
        .chain(graph.outputs.iter().filter_map(|o| match o.value {
            OutputValue::Value(v) => Some(v),
            _ => None,
        }))
        .collect();
    let written: FxHashSet<usize> = (graph.outputs.iter())
        .filter_map(|o| match o.kind {
            OutputKind::Mutation { input } => Some(input),
            OutputKind::User { .. } => None,
        })
        .collect();
    let mut buffers = Vec::new();
    for (at, i) in graph.inputs.iter().enumerate() {
        let written = written.contains(&at);
        let Type::Tensor(t) = &graph.value(i.value).ty else {
            continue;
        };
        let place = match &i.kind {
            InputKind::User { index } => {
                let tensor = matches!(out.inputs[*index].ty, InputType::Tensor { .. });
                if !written || !tensor {
                    continue;
                }
                Place::Input {
                    input: *index as u32,
                }
            }
            InputKind::Parameter { name }
            | InputKind::Buffer { name, .. }
            | InputKind::Constant { name } => {
                if !written && !read.contains(&i.value) {
                    continue;
                }
                let ints = |es: &[inrush_expr::Expr]| {
                    let all = es.iter().map(|e| graph.exprs.as_int(*e));
                    (all.collect::<Option<Vec<i64>>>()).ok_or_else(|| {
                        Error::internal(format!("weight `{name}` has symbolic sizes"))
                    })
                };
                Place::Weight(Weight {
                    name: name.clone(),
                    sizes: ints(&t.sizes)?,
                    strides: ints(&t.strides)?,
                })
            }
        };
        buffers.push(Buffer {
            name: graph.value(i.value).name.clone(),
            dtype: Dt(t.dtype),
            place,
            bytes: sizes.int(0),
            written,
        });
    }
    Ok(buffers)
}

/// Returns an output. Tensors have a buffer each.
fn output(
    graph: &Graph,
    k: usize,
    o: &inrush_graph::Output,
    buffers: &mut Vec<Buffer>,
    sizes: &mut Sizes,
) -> Result<Output> {
    if matches!(o.kind, OutputKind::Mutation { .. }) {
        return Ok(Output::Mutation);
    }
    let v = match &o.value {
        OutputValue::Value(v) => graph.value(*v),
        OutputValue::Scalar(s) => return Ok(Output::Scalar { value: (*s).into() }),
        OutputValue::None => return Ok(Output::None),
    };
    match &v.ty {
        Type::Tensor(t) => {
            buffers.push(Buffer {
                name: v.name.clone(),
                dtype: Dt(t.dtype),
                place: Place::Output { output: k as u32 },
                bytes: sizes.int(0),
                written: true,
            });
            Ok(Output::Tensor {
                buffer: buffers.len() as u32 - 1,
                dtype: Dt(t.dtype),
                sizes: sizes.all(&t.sizes)?,
                strides: sizes.all(&t.strides)?,
            })
        }
        Type::Int(e) => Ok(Output::Int {
            value: sizes.of(*e)?,
        }),
        Type::Constant(s) => Ok(Output::Scalar { value: (*s).into() }),
        Type::None => Ok(Output::None),
        other => Err(Error::unsupported(format!(
            "the output `{}` is of a type that a program cannot give: {other:?}",
            v.name
        ))),
    }
}
