//! From a sequence of segments and library calls to a host program without an interpreter.

use crate::program::{
    Call, Device, Gpu, HostProgram, Layout, Library, LibraryOp, Out, Read, Segment, Step, StepKind,
    Symbol, View,
};
use inrush_base::{Caps, DType, Error, Result, Scalar};
use inrush_compile::{Sequence, SequenceOutput, SymbolFrom, What};
use inrush_graph::{Graph, InputKind, OutputKind, Type, ValueId};
use inrush_program::{Dt, GpuTarget};
use rustc_hash::FxHashMap;

/// An object of the host.
#[derive(Clone, PartialEq, Debug)]
pub enum Object {
    /// A weight by its name.
    Weight(String),
    Scalar(Scalar),
    None,
}

/// A host program with its objects.
#[derive(Clone, Debug)]
pub struct Lowered {
    pub program: HostProgram,
    pub objects: Vec<Object>,
    /// Names of the user's inputs, in call order.
    pub inputs: Vec<String>,
}

/// Slots of values, numbered as they are met.
#[derive(Default)]
struct Slots(FxHashMap<ValueId, usize>);

impl Slots {
    fn of(&mut self, v: ValueId) -> usize {
        let next = self.0.len();
        *self.0.entry(v).or_insert(next)
    }

    fn all(&mut self, values: &[ValueId]) -> Vec<usize> {
        values.iter().map(|v| self.of(*v)).collect()
    }
}

/// Builds the host program of a graph's sequence.
///
/// # Errors
/// An unsupported error that lists the operators which are neither compiled nor products, and graphs that write their inputs
/// or weights.
pub fn lower(
    mut sequence: Sequence,
    caps: &Caps,
    device: Device,
    target: GpuTarget,
) -> Result<Lowered> {
    let graph = &std::mem::take(&mut sequence.graph);
    if (graph.outputs.iter()).any(|o| matches!(o.kind, OutputKind::Mutation { .. })) {
        return Err(Error::unsupported(
            "the model writes its inputs or buffers, which executors on GPUs do inside PyTorch only",
        ));
    }
    let mut slots = Slots::default();
    let mut objects = Vec::new();
    let mut inputs: Vec<(usize, usize, String)> = Vec::new();
    let mut constants = Vec::new();
    for i in &graph.inputs {
        let slot = slots.of(i.value);
        match &i.kind {
            InputKind::User { index } => {
                inputs.push((*index, slot, graph.value(i.value).name.clone()));
            }
            InputKind::Parameter { name }
            | InputKind::Buffer { name, .. }
            | InputKind::Constant { name } => {
                constants.push((slot, objects.len()));
                objects.push(Object::Weight(name.clone()));
            }
        }
    }
    inputs.sort();
    let binds: Vec<usize> = sequence.symbols.iter().filter_map(|s| s.after).collect();
    if !binds.is_empty() {
        return Err(Error::unsupported("a size that depends on data"));
    }
    let mut steps = Vec::new();
    let mut refused = Vec::new();
    for part in sequence.parts {
        let kind = match part.what {
            What::Segment(s) => StepKind::Segment(Segment {
                inputs: slots.all(&s.inputs),
                outputs: slots.all(&s.outputs),
                symbols: s.symbols,
                program: s.program,
            }),
            What::View(v) => StepKind::View(View {
                base: slots.of(v.base),
                value: slots.of(v.value),
                sizes: v.sizes,
                strides: v.strides,
                offset: v.offset,
                dtype: v.dtype.map(Dt),
                base_layout: v.lies,
            }),
            What::Call(c) => {
                let node = &graph.nodes[c.node.index()];
                let reads: Vec<ValueId> = node.reads().collect();
                let op = product(&c.op).filter(|_| c.library && reads.len() == 2);
                let Some(op) = op.filter(|_| reads.iter().all(|v| has_products(graph, *v))) else {
                    refused.push(format!("`{}` ({})", c.op, c.reason));
                    continue;
                };
                StepKind::Library(Library {
                    op,
                    inputs: reads.iter().map(|v| Some(slots.of(*v))).collect(),
                    outs: slots.all(&c.outs),
                    call: None::<Call>,
                })
            }
        };
        steps.push(Step {
            kind,
            frees: part.frees.iter().map(|v| slots.of(*v)).collect(),
            binds_symbols: false,
        });
    }
    if !refused.is_empty() {
        refused.sort();
        refused.dedup();
        return Err(Error::unsupported(format!(
            "operators that {} does not run outside of PyTorch: {}",
            caps,
            refused.join(", ")
        )));
    }
    let mut object = |o: Object| {
        objects.push(o);
        Out::Constant(objects.len() - 1)
    };
    let outputs = (sequence.outputs.iter())
        .map(|o| match o {
            SequenceOutput::Value(v) => Out::Slot(slots.of(*v)),
            SequenceOutput::Int(id) => Out::Size(*id),
            SequenceOutput::Scalar(s) => object(Object::Scalar(*s)),
            SequenceOutput::None => object(Object::None),
        })
        .collect();
    let symbols = (sequence.symbols.iter())
        .map(|s| {
            let (value, read) = match s.source {
                SymbolFrom::Int(v) => (v, Read::Int),
                SymbolFrom::Dim {
                    value,
                    dim,
                    factor,
                    offset,
                } => {
                    let dim = dim as usize;
                    (
                        value,
                        Read::Dim {
                            dim,
                            factor,
                            offset,
                        },
                    )
                }
            };
            Symbol {
                slot: slots.of(value),
                read,
                after: None,
            }
        })
        .collect();
    let mut layouts = vec![None; slots.0.len()];
    for (v, l) in sequence.layouts {
        if let Some(slot) = slots.0.get(&v) {
            layouts[*slot] = Some(Layout {
                dtype: Dt(l.dtype),
                sizes: l.sizes,
                strides: l.strides,
            });
        }
    }
    let program = HostProgram {
        steps,
        symbols,
        sizes: sequence.sizes,
        slots: slots.0.len(),
        inputs: inputs.iter().map(|i| i.1).collect(),
        constants,
        outputs,
        pieces: Vec::new(),
        isa: caps.isa.name().into(),
        vector_math: false,
        gpu: Some(Gpu {
            graphs: false,
            target,
            device,
            kernels: sequence.kernels,
            layouts,
        }),
    };
    program
        .check(objects.len())
        .map_err(|e| Error::internal(e.message().to_string()))?;
    Ok(Lowered {
        program,
        objects,
        inputs: inputs.into_iter().map(|i| i.2).collect(),
    })
}

/// Returns the library call of an operator, if this host has it.
fn product(op: &str) -> Option<LibraryOp> {
    match op {
        "aten.mm.default" => Some(LibraryOp::Mm),
        "aten.bmm.default" => Some(LibraryOp::Bmm),
        _ => None,
    }
}

/// Returns true for tensors of types that cuBLAS multiplies.
fn has_products(graph: &Graph, v: ValueId) -> bool {
    let float = |d: DType| matches!(d, DType::F32 | DType::F16 | DType::BF16);
    matches!(&graph.value(v).ty, Type::Tensor(t) if float(t.dtype))
}
