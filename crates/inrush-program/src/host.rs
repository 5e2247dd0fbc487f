//! The steps of a compiled graph's call, as data: it is written to caches and read back. Objects of the host (constants,
//! operators that it calls) are in a list of its own, and are named by position.

use crate::parts::Work;
use crate::{
    Dt, GpuKernel, GpuTarget, Guard, Input, Num, Output, Program, Size, SizeId, SymbolSource,
};
use inrush_base::{Error, Isa, Result};
use serde::{Deserialize, Serialize};

/// The prefix of names of kernels that users wrote; the kernel's own name follows.
pub const USER_KERNEL: &str = "triton.";

/// A position among the host's objects.
pub type ObjectId = usize;

/// A host program that needs no interpreter, with the objects that it names: what a package holds.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Lowered {
    pub program: HostProgram,
    pub objects: Vec<Object>,
    /// Names of the user's inputs, in call order.
    pub inputs: Vec<String>,
    /// Complex inputs and outputs of callers.
    #[serde(default, skip_serializing_if = "Complex::is_empty")]
    pub complex: Complex,
    /// Conditions on sizes that are known before the call or read from data.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub guards: Vec<Guard>,
    /// Names and bounds of the symbols; empty where the segments tell them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bounds: Vec<Bounds>,
    /// Inputs and layouts of a program for a CPU, which is printed and not stored.
    #[serde(skip)]
    pub expected: Expected,
}

/// Inputs and layouts of a program for a CPU; that of a GPU has them in [`Gpu::layouts`].
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Expected {
    /// The user's inputs, in call order. A tensor with other strides is copied when a call begins.
    pub inputs: Vec<Input>,
    /// By slot: layouts of weights, and those that callers are promised of outputs.
    pub layouts: Vec<Option<Layout>>,
}

/// The name of a symbol and its inclusive bounds.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Bounds {
    pub name: String,
    pub lower: i64,
    pub upper: i64,
}

/// Inputs and outputs that are complex for callers, by position, with their dtypes. The program sees pairs of real numbers: the same
/// memory with a last dimension of 2.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Complex {
    pub inputs: Vec<(usize, Dt)>,
    pub outputs: Vec<(usize, Dt)>,
}

impl Complex {
    /// Returns true if no input and no output is complex.
    pub fn is_empty(&self) -> bool {
        self.inputs.is_empty() && self.outputs.is_empty()
    }

    /// Returns the complex dtype of an input.
    pub fn input(&self, at: usize) -> Option<Dt> {
        self.inputs.iter().find(|c| c.0 == at).map(|c| c.1)
    }

    /// Returns the complex dtype of an output.
    pub fn output(&self, at: usize) -> Option<Dt> {
        self.outputs.iter().find(|c| c.0 == at).map(|c| c.1)
    }
}

/// An object of a host without an interpreter.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Object {
    /// A weight by its name.
    Weight(String),
    Scalar(Num),
    None,
}

/// The steps of a call with all that it needs but machine code and objects of the host.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct HostProgram {
    pub steps: Vec<Step>,
    pub symbols: Vec<Symbol>,
    /// Size arithmetic over the symbols.
    pub sizes: Vec<Size>,
    pub slots: usize,
    /// Slot of each argument.
    pub inputs: Vec<usize>,
    /// Attributes of the graph module, by slot.
    pub constants: Vec<(usize, ObjectId)>,
    pub outputs: Vec<Out>,
    /// C source of the kernels, and what it was written for.
    pub pieces: Vec<String>,
    pub isa: String,
    pub vector_math: bool,
    /// Kernels and layouts of a graph on a GPU, which has no C source.
    pub gpu: Option<Gpu>,
}

/// Kernels for a GPU, and what native calls there must know of tensors.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Gpu {
    /// Calls are captured and replayed.
    pub graphs: bool,
    /// The caller holds arguments until the call ends: a call that drops one releases no memory.
    #[serde(default)]
    pub keeps_arguments: bool,
    pub target: GpuTarget,
    pub device: Device,
    pub kernels: Vec<GpuKernel>,
    /// By slot; `None` for what is no tensor, or is on another device.
    pub layouts: Vec<Option<Layout>>,
}

/// The CPU's number among [`Device::kind`]s.
pub const CPU: i32 = 0;

/// A device by PyTorch's numbers.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Device {
    pub kind: i32,
    pub index: i32,
}

impl Device {
    pub const CPU: Device = Device {
        kind: CPU,
        index: 0,
    };

    /// Returns true unless this is the CPU.
    pub fn is_gpu(self) -> bool {
        self.kind != CPU
    }
}

/// The layout of a tensor in memory.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Layout {
    pub dtype: Dt,
    pub sizes: Vec<SizeId>,
    pub strides: Vec<SizeId>,
}

/// A symbol and where a call reads it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Symbol {
    pub slot: usize,
    pub read: Read,
    /// The step after which it can be read; `None` for arguments.
    pub after: Option<usize>,
}

#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Read {
    /// The value is the integer.
    Int,
    /// Size `dim` of the tensor is `factor * symbol + offset`.
    Dim {
        dim: usize,
        factor: i64,
        offset: i64,
    },
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Step {
    pub kind: StepKind,
    /// Slots that nothing reads any more.
    pub frees: Vec<usize>,
    /// True if symbols become known after it.
    pub binds_symbols: bool,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum StepKind {
    Segment(Segment),
    Call(Call),
    View(View),
    Library(Library),
    Kernel(UserKernel),
    /// Work of a host without an interpreter: control flow, functions of the runtime's library.
    Work(Box<Work<Lowered>>),
}

/// A kernel that the user wrote, launched like those of segments. It writes into copies of its arguments, or into these
/// themselves where nothing reads them any more.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct UserKernel {
    /// Position among the kernels.
    pub kernel: usize,
    pub grid: [Argument; 3],
    /// By position in the kernel's signature.
    pub arguments: Vec<Argument>,
    /// Slots of its tensors; `None` for memory that it is the first to write, which it gets as it is.
    pub tensors: Vec<Option<usize>>,
    /// Positions among the tensors of those that it writes.
    pub written: Vec<usize>,
    /// Slots of these after it.
    pub outs: Vec<usize>,
    /// Positions among the tensors of those whose addresses the kernel takes for multiples of 16 bytes. One that begins elsewhere is
    /// copied.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub aligned: Vec<usize>,
    /// The kernel's name and configuration, for reports.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub title: String,
    /// The launch and its Python line, for reports.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub origin: String,
}

#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Argument {
    /// The tensor at this position.
    Tensor(usize),
    /// A descriptor of the tensor at this position, with its sizes and strides. The block is in the parameter's type.
    Descriptor(usize),
    Size(SizeId),
    Int(i64),
    Float(f64),
}

/// An operator that a library does, without an interpreter.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Library {
    pub op: LibraryOp,
    /// Slots of its tensors, `None` for those left out.
    pub inputs: Vec<Option<usize>>,
    /// Slots of its results.
    pub outs: Vec<usize>,
    /// The same as a call of the host's operator: where the library is not there, or fails and must say why. `None` for hosts
    /// without operators.
    pub call: Option<Call>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum LibraryOp {
    Mm,
    Bmm,
    Addmm {
        beta: f64,
        alpha: f64,
    },
    Baddbmm {
        beta: f64,
        alpha: f64,
    },
    Convolution {
        stride: Vec<i64>,
        padding: Vec<i64>,
        dilation: Vec<i64>,
        transposed: bool,
        output_padding: Vec<i64>,
        groups: i64,
    },
    ConvolutionBackward {
        bias_sizes: Option<Vec<i64>>,
        stride: Vec<i64>,
        padding: Vec<i64>,
        dilation: Vec<i64>,
        transposed: bool,
        output_padding: Vec<i64>,
        groups: i64,
        /// Which of the three gradients are wanted.
        wanted: Vec<bool>,
    },
    FlashAttention {
        dropout: f64,
        causal: bool,
        debug_mask: bool,
        scale: Option<f64>,
    },
    EfficientAttention {
        log_sum: bool,
        dropout: f64,
        causal: bool,
        scale: Option<f64>,
    },
    CudnnAttention {
        log_sum: bool,
        dropout: f64,
        causal: bool,
        debug_mask: bool,
        scale: Option<f64>,
    },
    /// A product with a bias, and `relu` of that, or `gelu` by `tanh`.
    AddmmActivation {
        beta: f64,
        alpha: f64,
        gelu: bool,
    },
}

impl LibraryOp {
    /// Returns true if its one result goes to memory that the caller brings.
    pub fn writes_out(&self) -> bool {
        matches!(
            self,
            LibraryOp::Mm | LibraryOp::Bmm | LibraryOp::Addmm { .. } | LibraryOp::Baddbmm { .. }
        )
    }
}

/// A compiled program.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Segment {
    pub program: Program,
    /// Slots of its tensors.
    pub inputs: Vec<usize>,
    /// Positions of its symbols.
    pub symbols: Vec<u32>,
    /// Slots of its outputs; outputs after them are mutations.
    pub outputs: Vec<usize>,
}

/// A called operator.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Call {
    pub target: ObjectId,
    pub args: Vec<Template>,
    pub kwargs: Vec<(String, Template)>,
    /// The operator gives a tuple or list, whose items are the results.
    pub unpack: bool,
    /// Slots of the results; those in nested lists follow one another.
    pub outs: Vec<usize>,
}

impl Call {
    /// Slots of the values that it takes.
    pub fn reads(&self) -> Vec<usize> {
        let mut out = Vec::new();
        let mut all: Vec<&Template> = self.args.iter().collect();
        all.extend(self.kwargs.iter().map(|k| &k.1));
        while let Some(t) = all.pop() {
            match t {
                Template::Slot(s) => out.push(*s),
                Template::Tuple(v) | Template::List(v) => all.extend(v),
                Template::Dict(v) => all.extend(v.iter().map(|i| &i.1)),
                Template::Slice(v) => all.extend(v.iter()),
                Template::Size(_) | Template::Constant(_) => {}
            }
        }
        out
    }
}

/// An argument, with places where values of the call go.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Template {
    Slot(usize),
    Size(SizeId),
    Constant(ObjectId),
    Tuple(Vec<Template>),
    List(Vec<Template>),
    /// Keys are objects.
    Dict(Vec<(ObjectId, Template)>),
    Slice(Box<[Template; 3]>),
}

/// A tensor over another's storage.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct View {
    pub base: usize,
    pub value: usize,
    pub sizes: Vec<SizeId>,
    pub strides: Vec<SizeId>,
    /// Elements from the base's first to the view's first.
    pub offset: SizeId,
    /// The dtype that elements are read as, if not as the base's.
    pub dtype: Option<Dt>,
    /// Sizes and strides of the base that the view relies on.
    pub base_layout: Option<(Vec<SizeId>, Vec<SizeId>)>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Out {
    Slot(usize),
    Size(SizeId),
    Constant(ObjectId),
    /// No output of the caller's: the value in the slot becomes the new contents of what the slot `into` brought, an argument or
    /// a weight, at the end of the call. For executors without an interpreter.
    Mutation {
        value: usize,
        into: usize,
    },
}

impl HostProgram {
    /// Returns a host program whose only step is the program. Inputs take the first slots, outputs those after.
    pub fn of(program: Program) -> HostProgram {
        let inputs = program.inputs.len();
        let slots = inputs + program.outputs.len();
        let symbols = (program.symbols.iter())
            .map(|s| {
                let (slot, read) = match s.source {
                    SymbolSource::Int { input } => (input, Read::Int),
                    SymbolSource::Dim {
                        input,
                        dim,
                        factor,
                        offset,
                    } => {
                        let dim = dim as usize;
                        (
                            input,
                            Read::Dim {
                                dim,
                                factor,
                                offset,
                            },
                        )
                    }
                    // Only programs in parts have them.
                    SymbolSource::Data => (0, Read::Int),
                };
                Symbol {
                    slot: slot as usize,
                    read,
                    after: None,
                }
            })
            .collect();
        // New contents of an input or weight are no output of the caller's.
        let outputs = (program.outputs.iter().enumerate())
            .filter(|(_, o)| !matches!(o, Output::Mutation))
            .map(|(k, _)| Out::Slot(inputs + k))
            .collect();
        HostProgram {
            symbols,
            sizes: Vec::new(),
            slots,
            inputs: (0..inputs).collect(),
            constants: Vec::new(),
            outputs,
            pieces: Vec::new(),
            isa: String::new(),
            vector_math: false,
            gpu: None,
            steps: vec![Step {
                frees: Vec::new(),
                binds_symbols: false,
                kind: StepKind::Segment(Segment {
                    symbols: (0..program.symbols.len() as u32).collect(),
                    inputs: (0..inputs).collect(),
                    outputs: (inputs..slots).collect(),
                    program,
                }),
            }],
        }
    }

    /// Returns true if a call enters an interpreter.
    pub fn enters_interpreter(&self) -> bool {
        // Kernels of a GPU on the CPU are interpreted; captures are made by the interpreter.
        let interpreted = (self.gpu.as_ref()).is_some_and(|g| !g.device.is_gpu() || g.graphs);
        interpreted
            || self
                .steps
                .iter()
                .any(|s| matches!(s.kind, StepKind::Call(_)))
    }

    /// Checks that every number in it names something that is there: it may come from a file.
    ///
    /// # Errors
    /// An input error; programs are verified where they are loaded.
    pub fn check(&self, objects: usize) -> Result<()> {
        let damaged = || Error::input("a stored graph is damaged");
        let need = |ok: bool| if ok { Ok(()) } else { Err(damaged()) };
        let slots = |all: &[usize]| need(all.iter().all(|s| *s < self.slots));
        let size = |id: &SizeId| need((id.0 as usize) < self.sizes.len());
        let object = |id: &ObjectId| need(*id < objects);
        need(self.slots <= 1 << 24)?;
        for (at, line) in self.sizes.iter().enumerate() {
            need(line.operands().iter().all(|o| (o.0 as usize) < at))?;
            if let Size::Sym(s) = line {
                need((*s as usize) < self.symbols.len())?;
            }
        }
        for s in &self.symbols {
            slots(&[s.slot])?;
            need(!matches!(s.read, Read::Dim { factor: 0, .. }))?;
        }
        slots(&self.inputs)?;
        for (slot, o) in &self.constants {
            slots(&[*slot])?;
            object(o)?;
        }
        for o in &self.outputs {
            match o {
                Out::Slot(s) => slots(&[*s])?,
                Out::Size(id) => size(id)?,
                Out::Constant(o) => object(o)?,
                Out::Mutation { value, into } => {
                    slots(&[*value, *into])?;
                    let mut brought =
                        (self.inputs.iter()).chain(self.constants.iter().map(|c| &c.0));
                    need(brought.any(|s| s == into))?;
                }
            }
        }
        if let Some(gpu) = &self.gpu {
            need(gpu.layouts.len() == self.slots)?;
            for l in gpu.layouts.iter().flatten() {
                need(l.sizes.len() == l.strides.len())?;
                l.sizes.iter().chain(&l.strides).try_for_each(size)?;
            }
        }
        for step in &self.steps {
            slots(&step.frees)?;
            match &step.kind {
                StepKind::Segment(s) => {
                    slots(&s.inputs)?;
                    slots(&s.outputs)?;
                    need(s.inputs.len() <= s.program.inputs.len())?;
                    need(s.outputs.len() <= s.program.outputs.len())?;
                    need(s.symbols.len() == s.program.symbols.len())?;
                    need(s.symbols.iter().all(|k| (*k as usize) < self.symbols.len()))?;
                }
                StepKind::Call(c) => self.check_call(c, objects)?,
                StepKind::Library(l) => {
                    if let Some(call) = &l.call {
                        self.check_call(call, objects)?;
                    }
                    slots(&l.outs)?;
                    need(l.inputs.iter().flatten().all(|s| *s < self.slots))?;
                    need(self.gpu.is_some())?;
                }
                StepKind::Kernel(k) => {
                    need(k.tensors.iter().flatten().all(|s| *s < self.slots))?;
                    slots(&k.outs)?;
                    need(k.written.len() == k.outs.len())?;
                    let mut named = k.written.iter().chain(&k.aligned);
                    need(named.all(|w| *w < k.tensors.len()))?;
                    let given = |t: usize| k.tensors[t].is_some() || k.written.contains(&t);
                    need((0..k.tensors.len()).all(given))?;
                    let kernel = self.gpu.as_ref().and_then(|g| g.kernels.get(k.kernel));
                    need(kernel.is_some_and(|x| x.signature.len() == k.arguments.len()))?;
                    for a in k.arguments.iter().chain(&k.grid) {
                        match a {
                            Argument::Tensor(t) | Argument::Descriptor(t) => {
                                need(*t < k.tensors.len())?
                            }
                            Argument::Size(id) => size(id)?,
                            Argument::Int(_) | Argument::Float(_) => {}
                        }
                    }
                }
                // [`Lowered::check`] checks more: only executors without an interpreter do it.
                StepKind::Work(w) => {
                    slots(&w.reads())?;
                    slots(w.fills())?;
                }
                StepKind::View(v) => {
                    slots(&[v.base, v.value])?;
                    size(&v.offset)?;
                    need(v.sizes.len() == v.strides.len())?;
                    v.sizes.iter().chain(&v.strides).try_for_each(size)?;
                    if let Some((sizes, strides)) = &v.base_layout {
                        need(sizes.len() == strides.len())?;
                        sizes.iter().chain(strides).try_for_each(size)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn check_call(&self, c: &Call, objects: usize) -> Result<()> {
        let damaged = || Error::input("a stored graph is damaged");
        let need = |ok: bool| if ok { Ok(()) } else { Err(damaged()) };
        let slots = |all: &[usize]| need(all.iter().all(|s| *s < self.slots));
        let size = |id: &SizeId| need((id.0 as usize) < self.sizes.len());
        let object = |id: &ObjectId| need(*id < objects);
        object(&c.target)?;
        slots(&c.outs)?;
        let mut all: Vec<&Template> = c.args.iter().collect();
        all.extend(c.kwargs.iter().map(|k| &k.1));
        while let Some(t) = all.pop() {
            match t {
                Template::Slot(s) => slots(&[*s])?,
                Template::Size(id) => size(id)?,
                Template::Constant(o) => object(o)?,
                Template::Tuple(v) | Template::List(v) => all.extend(v),
                Template::Dict(v) => {
                    for (k, t) in v {
                        object(k)?;
                        all.push(t);
                    }
                }
                Template::Slice(v) => all.extend(v.iter()),
            }
        }
        Ok(())
    }

    /// The processor level that the source was written for.
    pub fn isa(&self) -> Result<Isa> {
        Isa::parse(&self.isa)
            .ok_or_else(|| Error::input(format!("unknown processor level `{}`", self.isa)))
    }
}
