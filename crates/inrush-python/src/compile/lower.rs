//! From a compiled sequence to a host program: values become slots, FX nodes become templates of
//! arguments, integers become ids of the size arithmetic.
//!
//! Python objects move into one list. The program names them by position, so it can be serialized.

use super::place::Place;
use super::settings::Settings;
use crate::errors::raise;
use crate::fx::{self, Imported};
use crate::host::call::Reader;
use crate::host::{self, run};
use inrush_aten::random::SEED_OPERATOR;
use inrush_base::{Caps, Error};
use inrush_compile::{Sequence, SequenceOutput, Slots, What};
use inrush_graph::{Graph, InputKind, Type, ValueId};
use inrush_host::program::{self, HostProgram, ObjectId, Out, Step, StepKind};
use inrush_program::GpuKernel;
use pyo3::prelude::*;
use rustc_hash::FxHashMap;

/// Everything but the sequence that a host program is made of.
pub struct Lowering<'a, 'py> {
    pub py: Python<'py>,
    pub imported: &'a Imported,
    pub caps: &'a Caps,
    pub place: &'a Place,
    pub settings: &'a Settings,
    /// Names the function to call for an FX node; by default the node's target.
    pub resolve: Option<&'a Bound<'py, PyAny>>,
}

impl<'py> Lowering<'_, 'py> {
    /// Returns the host program of a sequence, and its objects.
    pub fn host_program(&self, mut sequence: Sequence) -> PyResult<(HostProgram, Vec<Py<PyAny>>)> {
        let ints: FxHashMap<_, _> = sequence.ints.iter().copied().collect();
        let mut slots = Slots::default();
        let mut objects = Vec::new();
        let mut r = Reader::new(self.py, self.imported, &ints, &mut slots, &mut objects)?;
        let (inputs, constants) = self.inputs(&mut r, &sequence.graph);
        // Steps after which symbols become known: sizes that depend on data.
        let binds_symbols: Vec<usize> = sequence.symbols.iter().filter_map(|s| s.after).collect();
        let mut kernels = std::mem::take(&mut sequence.kernels);
        let mut steps = Vec::new();
        for (at, part) in std::mem::take(&mut sequence.parts).into_iter().enumerate() {
            let kind = match part.what {
                What::Segment(s) => StepKind::Segment(r.slots.segment(s)),
                What::View(v) => StepKind::View(r.slots.view(v)),
                What::Call(c) => self.call(&mut r, &sequence, &mut kernels, &c)?,
            };
            steps.push(Step {
                kind,
                frees: part.frees.iter().map(|v| r.slot(*v)).collect(),
                binds_symbols: binds_symbols.contains(&at),
            });
        }
        let outputs = (sequence.outputs.iter())
            .map(|o| self.output(&mut r, o))
            .collect::<PyResult<_>>()?;
        let symbols = sequence.symbols.iter().map(|s| r.slots.symbol(s)).collect();
        let gpu = self.gpu(&slots, std::mem::take(&mut sequence.layouts), kernels);
        let program = HostProgram {
            steps,
            symbols,
            sizes: sequence.sizes,
            slots: slots.count(),
            inputs,
            constants,
            outputs,
            pieces: sequence.pieces,
            isa: self.caps.isa.name().to_string(),
            vector_math: self.caps.vector_math,
            gpu,
        };
        program
            .check(objects.len())
            .map_err(|e| raise(Error::internal(e.message().to_string())))?;
        Ok((program, objects))
    }

    /// Returns the slots of arguments, and slots with the objects that they hold: attributes of the
    /// module. The graph's inputs are placeholders, then attributes in the order of their import.
    fn inputs(
        &self,
        r: &mut Reader<'_, 'py>,
        graph: &Graph,
    ) -> (Vec<usize>, Vec<(usize, ObjectId)>) {
        let (mut inputs, mut constants) = (Vec::new(), Vec::new());
        let mut attributes = self.imported.constants.iter();
        for i in &graph.inputs {
            match i.kind {
                InputKind::User { .. } => inputs.push(r.slot(i.value)),
                _ => {
                    if let Some(c) = attributes.next() {
                        constants.push((r.slot(i.value), r.hold(c.clone_ref(self.py))));
                    }
                }
            }
        }
        (inputs, constants)
    }

    /// Returns the step for a node that is not compiled.
    fn call(
        &self,
        r: &mut Reader<'_, 'py>,
        sequence: &Sequence,
        kernels: &mut Vec<GpuKernel>,
        c: &inrush_compile::Call,
    ) -> PyResult<StepKind> {
        let outs: Vec<usize> = c.outs.iter().map(|v| r.slot(*v)).collect();
        if c.op == SEED_OPERATOR {
            return Ok(StepKind::Call(r.seed(outs, &self.place.name())?));
        }
        let node = r.fx_node_of(&sequence.sources[c.node.index()], &c.op)?;
        // A Triton kernel of the user that can be launched without Python.
        if c.reason == fx::kernels::NATIVE {
            let node = node
                .ok_or_else(|| raise(Error::internal(format!("`{}` cannot be launched", c.op))))?;
            let launch = fx::kernels::launch(r, node.bind(self.py), outs, kernels)?;
            return Ok(StepKind::Kernel(launch));
        }
        let call = match node {
            Some(node) => {
                let node = node.bind(self.py);
                let target = match self.resolve {
                    Some(f) => f.call1((node,))?,
                    None => node.getattr("target")?,
                };
                r.call(node, target, outs)?
            }
            None => {
                let graph = &sequence.graph;
                r.made(self.py, graph, &graph.nodes[c.node.index()], outs)?
            }
        };
        // PyTorch's C functions take tensors by handle, which skips the dispatch from Python.
        let native = match self.place.gpu {
            Some(_) if c.library && has_layouts(sequence, c) => {
                host::of_call(self.py, &c.op, &call, r.objects)
            }
            _ => None,
        };
        Ok(match native {
            Some(l) => StepKind::Library(l),
            None => StepKind::Call(call),
        })
    }

    fn output(&self, r: &mut Reader<'_, 'py>, o: &SequenceOutput) -> PyResult<Out> {
        Ok(match o {
            SequenceOutput::Value(v) => Out::Slot(r.slot(*v)),
            SequenceOutput::Int(id) => Out::Size(*id),
            SequenceOutput::Scalar(s) => Out::Constant(r.hold(run::scalar(self.py, *s)?)),
            SequenceOutput::None => Out::Constant(r.hold(self.py.None())),
        })
    }

    /// Returns what the program holds for its GPU. Native steps make the tensor of a slot by its
    /// layout; the CPU reads shapes from its tensors instead.
    fn gpu(
        &self,
        slots: &Slots,
        by_value: Vec<(ValueId, inrush_compile::Layout)>,
        kernels: Vec<GpuKernel>,
    ) -> Option<program::Gpu> {
        let (_, target) = self.place.gpu.as_ref()?;
        Some(program::Gpu {
            graphs: self.settings.graphs,
            keeps_arguments: self.settings.keeps_arguments,
            target: target.clone(),
            device: self.place.device(),
            kernels,
            layouts: slots.layouts(by_value),
        })
    }
}

/// Returns true if all tensors of a call have layouts. Values that only PyTorch can hold, complex
/// ones above all, have none.
fn has_layouts(sequence: &Sequence, c: &inrush_compile::Call) -> bool {
    let graph = &sequence.graph;
    let node = &graph.nodes[c.node.index()];
    let has_layout = |v: ValueId| {
        !matches!(graph.value(v).ty, Type::Tensor(_) | Type::Opaque(_))
            || sequence.layouts.iter().any(|(l, _)| *l == v)
    };
    (node.reads().chain(node.outs.first().copied())).all(has_layout)
}
