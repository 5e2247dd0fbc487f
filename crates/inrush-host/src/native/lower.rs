//! From a sequence of segments and library calls to a host program without an interpreter.

use crate::program::{
    Call, Complex, Device, Gpu, HostProgram, Library, LibraryOp, Lowered, Object, Out, Step,
    StepKind,
};
use inrush_base::{Caps, DType, Error, ErrorKind, Result};
use inrush_compile::{
    Boundary, Observer, Options, Part, Pipeline, Request, Sequence, SequenceOutput, Slots, What,
    compile_sequence,
};
use inrush_graph::{Graph, InputKind, OutputKind, Type, ValueId};
use inrush_program::{Dt, GpuTarget};

/// Compiles a graph for a device: segments as kernels, products by a library if the options say so.
///
/// # Errors
/// Those of the compiler and of [`lower`].
pub fn compile(
    graph: Graph,
    (caps, target): (&Caps, &GpuTarget),
    device: Device,
    options: &Options,
    watch: &mut dyn Observer,
) -> Result<Lowered> {
    let mut graph = graph;
    // What a call draws depends on a buffer of the model, which each call leaves one higher.
    inrush_compile::seed_by_state(&mut graph);
    let graph = inrush_compile::expand_early(graph)?;
    let boundary = Boundary::of(&graph);
    let graph = Pipeline::new(caps, options, watch).planar(graph)?;
    let graph = functional(graph, caps, options, watch)?;
    let request = Request {
        // Nothing here asks for gradients, so passes may drop what only they read.
        inference: true,
        ..Request::default()
    };
    let sequence = compile_sequence(graph, &request, caps, options, watch)?;
    let mut lowered = lower(sequence, caps, device, target.clone())?;
    let dtypes = |all: &[(usize, DType)]| all.iter().map(|(at, d)| (*at, Dt(*d))).collect();
    lowered.complex = Complex {
        inputs: dtypes(&boundary.inputs),
        outputs: dtypes(&boundary.outputs),
    };
    Ok(lowered)
}

/// Functionalizes a graph, which passes over whole graphs require. Returns a graph with unknown operators unchanged, so that
/// [`lower`] lists them with all others that do not run.
fn functional(
    graph: Graph,
    caps: &Caps,
    options: &Options,
    watch: &mut dyn Observer,
) -> Result<Graph> {
    match Pipeline::new(caps, options, watch).normalize(graph.clone()) {
        Err(e) if e.kind() == ErrorKind::Unsupported => Ok(graph),
        normalized => normalized,
    }
}

/// Builds the host program of a graph's sequence.
///
/// # Errors
/// An unsupported error that lists the operators which are neither compiled nor products, or whose results have sizes that depend
/// on data.
pub fn lower(
    mut sequence: Sequence,
    caps: &Caps,
    device: Device,
    target: GpuTarget,
) -> Result<Lowered> {
    let graph = &std::mem::take(&mut sequence.graph);
    refuse_sizes_from_data(graph, &sequence)?;
    let mut slots = Slots::default();
    let Entries {
        inputs,
        constants,
        mut objects,
    } = entries(graph, &mut slots);
    let steps = steps(graph, sequence.parts, &mut slots, caps)?;
    let outputs = outputs(graph, &sequence.outputs, &mut slots, &mut objects)?;
    let symbols = (sequence.symbols.iter()).map(|s| slots.symbol(s)).collect();
    let layouts = slots.layouts(sequence.layouts);
    let program = HostProgram {
        steps,
        symbols,
        sizes: sequence.sizes,
        slots: slots.count(),
        inputs: inputs.iter().map(|i| i.0).collect(),
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
        inputs: inputs.into_iter().map(|i| i.1).collect(),
        complex: Complex::default(),
    })
}

/// Refuses sizes that depend on data, and names the operators that give them.
fn refuse_sizes_from_data(graph: &Graph, sequence: &Sequence) -> Result<()> {
    let mut operators: Vec<String> = (sequence.symbols.iter())
        .filter_map(|s| {
            let part = &sequence.parts.get(s.after?)?.what;
            Some(match part {
                What::Call(c) => format!("`{}`", graph.nodes[c.node.index()].op),
                What::Segment(_) | What::View(_) => format!("the size `{}`", s.name),
            })
        })
        .collect();
    operators.sort();
    operators.dedup();
    if operators.is_empty() {
        return Ok(());
    }
    Err(Error::unsupported(format!(
        "operators whose results have sizes that depend on data: {}",
        operators.join(", ")
    )))
}

/// Slots and objects that a call begins with.
struct Entries {
    /// Slots and names of the user's inputs, in call order.
    inputs: Vec<(usize, String)>,
    /// Slots of weights, each with its object.
    constants: Vec<(usize, usize)>,
    objects: Vec<Object>,
}

/// Gives a graph's inputs and weights their slots.
fn entries(graph: &Graph, slots: &mut Slots) -> Entries {
    let mut inputs: Vec<(usize, usize, String)> = Vec::new();
    let (mut constants, mut objects) = (Vec::new(), Vec::new());
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
    Entries {
        inputs: (inputs.into_iter())
            .map(|(_, slot, name)| (slot, name))
            .collect(),
        constants,
        objects,
    }
}

/// Turns parts into steps.
///
/// # Errors
/// An unsupported error that lists the operators which are neither compiled nor products.
fn steps(graph: &Graph, parts: Vec<Part>, slots: &mut Slots, caps: &Caps) -> Result<Vec<Step>> {
    let (mut steps, mut refused) = (Vec::new(), Vec::new());
    for part in parts {
        let kind = match part.what {
            What::Segment(s) => StepKind::Segment(slots.segment(s)),
            What::View(v) => StepKind::View(slots.view(v)),
            What::Call(c) => {
                let reads: Vec<ValueId> = graph.nodes[c.node.index()].reads().collect();
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
            frees: slots.all(&part.frees),
            binds_symbols: false,
        });
    }
    if refused.is_empty() {
        return Ok(steps);
    }
    refused.sort();
    refused.dedup();
    Err(Error::unsupported(format!(
        "operators that {} does not run outside of PyTorch: {}",
        caps,
        refused.join(", ")
    )))
}

/// Says where outputs are found, and what new contents of inputs and weights are. Those that are no tensors become objects.
fn outputs(
    graph: &Graph,
    outputs: &[SequenceOutput],
    slots: &mut Slots,
    objects: &mut Vec<Object>,
) -> Result<Vec<Out>> {
    let mut object = |o: Object| {
        objects.push(o);
        Out::Constant(objects.len() - 1)
    };
    (outputs.iter().zip(&graph.outputs))
        .map(|(o, of)| match (o, &of.kind) {
            (SequenceOutput::Value(v), OutputKind::Mutation { input }) => Ok(Out::Mutation {
                value: slots.of(*v),
                into: slots.of(graph.inputs[*input].value),
            }),
            (_, OutputKind::Mutation { .. }) => {
                Err(Error::unsupported("new contents that are no tensor"))
            }
            (SequenceOutput::Value(v), _) => Ok(Out::Slot(slots.of(*v))),
            (SequenceOutput::Int(id), _) => Ok(Out::Size(*id)),
            (SequenceOutput::Scalar(s), _) => Ok(object(Object::Scalar((*s).into()))),
            (SequenceOutput::None, _) => Ok(object(Object::None)),
        })
        .collect()
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
