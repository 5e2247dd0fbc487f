//! From a sequence of segments and library calls to a host program without an interpreter.

use super::user_kernels::{self, Chosen};
use crate::program::{
    Bounds, Call, Complex, Device, Gpu, HostProgram, Library, LibraryOp, Lowered, Object, Out,
    Step, StepKind,
};
use inrush_base::{Caps, DType, Error, ErrorKind, Result};
use inrush_compile::parts::{self, Bodies, Calls, Held};
use inrush_compile::{
    Boundary, Observer, Options, Part, Pipeline, Request, Retile, Sequence, SequenceOutput, Slots,
    SymbolDef, What, compile_sequence, user_kernel,
};
use inrush_graph::{Graph, InputKind, OutputKind, Type, ValueId};
use inrush_program::parts::{MOST_NESTED, Work};
use inrush_program::{Dt, GpuKernel, GpuTarget};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// Compiles a graph without launches of users' Triton kernels for a device: [`compile_with`].
///
/// # Errors
/// Those of [`compile_with`].
pub fn compile(
    graph: Graph,
    target: (&Caps, &GpuTarget),
    device: Device,
    options: &Options,
    watch: &mut dyn Observer,
) -> Result<Lowered> {
    compile_with(graph, target, device, options, &[], watch)
}

/// Compiles a graph for a device: segments as kernels, products by a library if the options say so, control flow and functions whose
/// data decide about sizes as work of the host, users' Triton kernels as launches. The graph names those by position among `kernels`.
///
/// # Errors
/// Those of the compiler; an unsupported error that lists the operators which are neither compiled nor done otherwise.
pub fn compile_with(
    graph: Graph,
    target: (&Caps, &GpuTarget),
    device: Device,
    options: &Options,
    kernels: &[Chosen<'_>],
    watch: &mut dyn Observer,
) -> Result<Lowered> {
    compile_tunable(graph, target, device, options, kernels, watch).map(|made| made.0)
}

/// As [`compile_with`]; with [`Options::retile`] also gives for each kernel, in the order of [`Lowered::kernels`], others that take its
/// launches.
///
/// # Errors
/// Those of [`compile_with`].
pub fn compile_tunable(
    graph: Graph,
    (caps, target): (&Caps, &GpuTarget),
    device: Device,
    options: &Options,
    kernels: &[Chosen<'_>],
    watch: &mut dyn Observer,
) -> Result<(Lowered, Vec<Vec<GpuKernel>>)> {
    let mut graph = graph;
    user_kernel::note_layouts(&mut graph);
    // What a call draws depends on a buffer of the model, which each call leaves one higher.
    inrush_compile::seed_by_state(&mut graph);
    let graph = inrush_compile::expand_early(graph)?;
    let boundary = Boundary::of(&graph);
    let mut programs = Programs {
        caps,
        target,
        device,
        options,
        kernels,
        watch,
        depth: 0,
        alternatives: BTreeMap::new(),
    };
    let mut lowered = programs.program(graph)?;
    let alternatives = programs.alternatives;
    let dtypes = |all: &[(usize, DType)]| all.iter().map(|(at, d)| (*at, Dt(*d))).collect();
    lowered.complex = Complex {
        inputs: dtypes(&boundary.inputs),
        outputs: dtypes(&boundary.outputs),
    };
    let of = |k: &GpuKernel| alternatives.get(&k.symbol).cloned().unwrap_or_default();
    let candidates = lowered.kernels().into_iter().map(of).collect();
    Ok((lowered, candidates))
}

/// The compilation of a graph and of those that its control flow calls.
struct Programs<'a> {
    caps: &'a Caps,
    target: &'a GpuTarget,
    device: Device,
    options: &'a Options,
    /// Triton kernels of users.
    kernels: &'a [Chosen<'a>],
    watch: &'a mut dyn Observer,
    /// Programs around the one that is compiled.
    depth: usize,
    /// By symbol of a kernel: others that take its launches, wherever these are.
    alternatives: BTreeMap<String, Vec<GpuKernel>>,
}

impl Bodies for Programs<'_> {
    type Program = Lowered;

    fn body(&mut self, graph: Graph) -> Result<Lowered> {
        if self.depth + 1 >= MOST_NESTED {
            return Err(Error::unsupported(format!(
                "control flow within control flow, {MOST_NESTED} levels deep"
            )));
        }
        parts::refuse_complex(&graph)?;
        self.depth += 1;
        let lowered = self.program(graph);
        self.depth -= 1;
        match lowered? {
            lowered if lowered.writes() => Err(parts::writes()),
            lowered => Ok(lowered),
        }
    }
}

impl Programs<'_> {
    /// Compiles a graph.
    fn program(&mut self, graph: Graph) -> Result<Lowered> {
        let (caps, options) = (self.caps, self.options);
        let in_parts = parts::are_needed(&graph);
        let mut graph = Pipeline::new(caps, options, self.watch).planar(graph)?;
        if in_parts {
            graph = parts::expanded(graph)?;
        }
        let graph = functional(graph, caps, options, self.watch)?;
        let graph = parts::decompose_library(graph)?;
        let request = Request {
            // Nothing here asks for gradients, so passes may drop what only they read.
            inference: true,
            ints: parts::integers(&graph),
            ..Request::default()
        };
        let sequence = compile_sequence(graph, &request, caps, options, self.watch)?;
        for (symbol, found) in sequence.retiles.iter().flat_map(Retile::alternatives) {
            match self.alternatives.entry(symbol) {
                Entry::Vacant(e) => _ = e.insert(found),
                Entry::Occupied(mut e) => e.get_mut().retain(|k| found.contains(k)),
            }
        }
        self.lower(sequence)
    }

    /// Builds the host program of a graph's sequence.
    fn lower(&mut self, mut sequence: Sequence) -> Result<Lowered> {
        let graph = &std::mem::take(&mut sequence.graph);
        let mut calls = Calls::new(graph, std::mem::take(&mut sequence.ints));
        let Entries {
            inputs,
            constants,
            mut objects,
        } = entries(graph, &mut calls.slots);
        let parts = std::mem::take(&mut sequence.parts);
        let (symbols, kernels) = (&sequence.symbols, &mut sequence.kernels);
        let mut steps = self.steps(graph, parts, &mut calls, symbols, kernels)?;
        for s in &sequence.symbols {
            if let Some(step) = s.after.and_then(|at| steps.get_mut(at)) {
                step.binds_symbols = true;
            }
        }
        let outputs = outputs(graph, &sequence.outputs, &mut calls.slots, &mut objects)?;
        let symbols = (sequence.symbols.iter())
            .map(|s| calls.slots.symbol(s))
            .collect();
        let layouts = calls.slots.layouts(sequence.layouts);
        let program = HostProgram {
            steps,
            symbols,
            sizes: sequence.sizes,
            slots: calls.slots.count(),
            inputs: inputs.iter().map(|i| i.0).collect(),
            constants,
            outputs,
            pieces: Vec::new(),
            isa: self.caps.isa.name().into(),
            vector_math: false,
            gpu: Some(Gpu {
                graphs: false,
                keeps_arguments: true,
                target: self.target.clone(),
                device: self.device,
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
            guards: graph.guards.iter().filter_map(|g| calls.guard(g)).collect(),
            bounds: bounds(graph, &sequence.symbols)?,
            expected: Default::default(),
        })
    }

    /// Returns the work of the host for a call; `None` for an operator that nothing does.
    fn work(
        &mut self,
        graph: &Graph,
        c: &inrush_compile::Call,
        calls: &mut Calls<'_>,
        symbols: &[SymbolDef],
    ) -> Result<Option<Work<Lowered>>> {
        if let Some(work) = calls.work(c, &Held::default(), self)? {
            return Ok(Some(work));
        }
        let origin = calls.origin(c);
        let segment = parts::library_segment(graph, c, symbols)?;
        Ok(segment.map(|s| Work::Library {
            segment: calls.slots.segment(s),
            origin,
        }))
    }

    /// Returns the launch of a user's kernel, or the work of the host, for a call; `None` for an operator that nothing does.
    fn other(
        &mut self,
        graph: &Graph,
        c: &inrush_compile::Call,
        calls: &mut Calls<'_>,
        symbols: &[SymbolDef],
        kernels: &mut Vec<GpuKernel>,
    ) -> Result<Option<StepKind>> {
        if let Some(launch) = user_kernels::step(graph, c, calls, self.kernels, kernels)? {
            return Ok(Some(StepKind::Kernel(launch)));
        }
        let work = self.work(graph, c, calls, symbols)?;
        Ok(work.map(|w| StepKind::Work(Box::new(w))))
    }

    /// Turns parts into steps.
    ///
    /// # Errors
    /// An unsupported error that lists the operators which are neither compiled nor done otherwise.
    fn steps(
        &mut self,
        graph: &Graph,
        parts: Vec<Part>,
        calls: &mut Calls<'_>,
        symbols: &[SymbolDef],
        kernels: &mut Vec<GpuKernel>,
    ) -> Result<Vec<Step>> {
        let (mut steps, mut refused) = (Vec::new(), Vec::new());
        for part in parts {
            let kind = match part.what {
                What::Segment(s) => StepKind::Segment(calls.slots.segment(s)),
                What::View(v) => StepKind::View(calls.slots.view(v)),
                What::Call(c) => match product(graph, &c) {
                    Some(op) => {
                        let reads = graph.nodes[c.node.index()].reads();
                        StepKind::Library(Library {
                            op,
                            inputs: reads.map(|v| Some(calls.slots.of(v))).collect(),
                            outs: calls.slots.all(&c.outs),
                            call: None::<Call>,
                        })
                    }
                    // Weights are values of the whole program, which bodies get like others.
                    None => match self.other(graph, &c, calls, symbols, kernels)? {
                        Some(step) => step,
                        None => {
                            refused.push(format!("`{}` ({})", c.op, c.reason));
                            continue;
                        }
                    },
                },
            };
            steps.push(Step {
                kind,
                frees: calls.slots.all(&part.frees),
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
            self.caps,
            refused.join(", ")
        )))
    }
}

/// Returns the names and bounds of symbols.
fn bounds(graph: &Graph, symbols: &[SymbolDef]) -> Result<Vec<Bounds>> {
    let of = |s: &SymbolDef| {
        let sym = graph.exprs.sym_by_name(&s.name);
        let info = graph.exprs.sym_info(sym?);
        Some(Bounds {
            name: info.name,
            lower: info.lower,
            upper: info.upper,
        })
    };
    let all: Option<Vec<Bounds>> = symbols.iter().map(of).collect();
    all.ok_or_else(|| Error::internal("a symbol is gone"))
}

/// Functionalizes a graph, which passes over whole graphs require. Returns a graph with unknown operators unchanged, so that
/// [`lower`] lists them with all others that do not run.
fn functional(
    graph: Graph,
    caps: &Caps,
    options: &Options,
    watch: &mut dyn Observer,
) -> Result<Graph> {
    match Pipeline::new(caps, options, watch).normalize_whole(graph.clone()) {
        Err(e) if e.kind() == ErrorKind::Unsupported => Ok(graph),
        normalized => normalized,
    }
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
fn product(graph: &Graph, c: &inrush_compile::Call) -> Option<LibraryOp> {
    let op = match c.op.as_str() {
        "aten.mm.default" => LibraryOp::Mm,
        "aten.bmm.default" => LibraryOp::Bmm,
        _ => return None,
    };
    let reads: Vec<ValueId> = graph.nodes[c.node.index()].reads().collect();
    let done = c.library && reads.len() == 2 && reads.iter().all(|v| has_products(graph, *v));
    done.then_some(op)
}

/// Returns true for tensors of types that cuBLAS multiplies.
fn has_products(graph: &Graph, v: ValueId) -> bool {
    let float = |d: DType| matches!(d, DType::F32 | DType::F16 | DType::BF16);
    matches!(&graph.value(v).ty, Type::Tensor(t) if float(t.dtype))
}
