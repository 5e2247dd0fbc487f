//! The program that an executor runs: buffers with their places, steps in order, guards, size
//! arithmetic. All of it is data.
//!
//! Does not know: what is inside a kernel. A kernel is a name, a list of buffers and sizes, and a
//! number of units.
//!
//! A call goes through a program in this order:
//!
//! 1. *Symbols* are solved from the sizes of the inputs.
//! 2. *Sizes* are evaluated, one line after the other.
//! 3. *Inputs* are compared with their types, *guards* are checked.
//! 4. *Buffers* get addresses: inputs, weights, new outputs, offsets in the arena.
//! 5. *Steps* run in order: launches of kernels and contractions.
//! 6. *Outputs* are handed over.
//!
//! Sizes, guards and offsets depend on the values of the symbols only, so executors keep them for
//! the next call of the same sizes.
//!
//! References are positions in lists. Programs come from disk too, so [`Program::verify`] checks
//! them.

#![forbid(unsafe_code)]

mod gpu;
pub mod host;
mod lowered;
pub mod parts;
mod size;
pub mod text;
mod verify;

use inrush_base::{CheckKind, Scalar};
use serde::{Deserialize, Serialize};

pub use gpu::{BinaryInfo, GpuKernel, GpuTarget, MapLayout};
pub use size::{Size, SizeId, evaluate, evaluate_known, solve};

/// The weight that holds the seed of a model's next call, one `i64`: no file has it. It is 0 when a model is loaded, and each
/// call of a program that draws random numbers leaves it one higher.
pub const SEED: &str = "inrush.seed";

/// A position in [`Program::buffers`].
pub type BufferId = u32;

/// Everything that an executor needs besides code and weights.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Program {
    pub name: String,
    /// Integers that a call brings along: sizes of its inputs and integer inputs.
    pub symbols: Vec<Symbol>,
    /// Size arithmetic, evaluated once a call in order; a [`SizeId`] names a line. Lines refer to earlier ones.
    pub sizes: Vec<Size>,
    /// The user's inputs in call order.
    pub inputs: Vec<Input>,
    /// Relations of sizes that must hold at a call.
    pub guards: Vec<Guard>,
    /// Tensors in memory. An alias comes after its storage.
    pub buffers: Vec<Buffer>,
    /// Bytes of the arena that holds the temporaries of a call.
    pub arena_bytes: SizeId,
    /// Bytes of the block that the load steps fill.
    pub load_bytes: SizeId,
    /// Kernels by position; steps refer to them.
    pub kernels: Vec<Kernel>,
    /// Steps that run once when the model is loaded (they read weights only) and again after a change of weights.
    pub load_steps: Vec<Step>,
    pub steps: Vec<Step>,
    /// Results in call order, mutations included.
    pub outputs: Vec<Output>,
    /// Steps that a call runs instead of `steps`, for a program whose data decide about sizes or steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parts: Option<Box<parts::Sequence>>,
}

impl Program {
    /// Adds the symbols that sizes depend on.
    pub fn symbols_of(&self, sizes: &[SizeId], out: &mut Vec<u32>) {
        let mut open: Vec<SizeId> = sizes.to_vec();
        let mut seen = vec![false; self.sizes.len()];
        while let Some(id) = open.pop() {
            if std::mem::replace(&mut seen[id.0 as usize], true) {
                continue;
            }
            let line = &self.sizes[id.0 as usize];
            if let Size::Sym(s) = line {
                out.push(*s);
            }
            open.extend(line.operands());
        }
    }

    /// Returns for each input whether calls write it.
    pub fn written_inputs(&self) -> Vec<bool> {
        let mut written = vec![false; self.inputs.len()];
        for b in self.buffers.iter().filter(|b| b.written) {
            if let Place::Input { input } = b.place
                && let Some(w) = written.get_mut(input as usize)
            {
                *w = true;
            }
        }
        written
    }
}

/// A symbolic integer of a call.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Symbol {
    pub name: String,
    /// Inclusive bounds that a call's value must keep.
    pub lower: i64,
    pub upper: i64,
    /// Where the value is read.
    pub source: SymbolSource,
}

/// The place of a call's inputs that a symbol is read from.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum SymbolSource {
    /// Solved from size `dim` of input `input`, which is `factor * symbol + offset`.
    Dim {
        input: u32,
        dim: u32,
        factor: i64,
        offset: i64,
    },
    /// The integer input itself.
    Int { input: u32 },
    /// A step of the call: only programs in parts have such symbols, and say where they are read.
    Data,
}

/// The user's input of one position.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Input {
    pub name: String,
    pub ty: InputType,
    pub reads: Reads,
}

/// The assumption that steps make about the memory of a call's tensor, weakest first.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
pub enum Reads {
    /// Elements by index: an executor copies a tensor with other strides.
    #[default]
    Elements,
    /// Positions counted from its first element: a tensor with other strides is refused.
    Memory,
    /// Positions counted from the beginning of its storage: so is one that begins elsewhere.
    Storage,
}

/// The type of an input.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum InputType {
    /// A tensor. Kernels read it with these strides; [`Reads`] says what becomes of a tensor with others.
    Tensor {
        dtype: Dt,
        sizes: Vec<SizeId>,
        strides: Vec<SizeId>,
    },
    Int {
        value: SizeId,
    },
    /// An input that nothing depends on must still equal the value that the model was exported with.
    Constant {
        value: Num,
    },
    /// Takes a place among the inputs; any value will do.
    Ignored,
}

/// A relation between sizes that must hold at a call.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Guard {
    pub relation: Relation,
    pub left: SizeId,
    pub right: SizeId,
    /// The relation in the user's terms.
    pub why: String,
}

/// An ordering of two sizes.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Relation {
    Eq,
    Ne,
    Le,
    Lt,
}

/// A tensor in memory.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Buffer {
    pub name: String,
    pub dtype: Dt,
    pub place: Place,
    /// Bytes from the first to the last element, both included.
    pub bytes: SizeId,
    /// A step of a call writes it. For an input or a weight that is a mutation the caller sees.
    pub written: bool,
}

/// Where a buffer lives.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Place {
    /// The user's input of this position.
    Input { input: u32 },
    /// A tensor of the model.
    Weight(Weight),
    /// Computed by the load steps, in a block that is kept with the weights.
    Persistent { offset: SizeId },
    /// In the arena of a call.
    Arena { offset: SizeId },
    /// The output of this position, allocated for the caller.
    Output { output: u32 },
    /// Another buffer's storage, `offset` bytes in.
    Alias { of: BufferId, offset: SizeId },
}

/// A tensor of the model by its fully qualified name, with its strides.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Weight {
    pub name: String,
    pub sizes: Vec<i64>,
    pub strides: Vec<i64>,
}

/// A compiled function.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Kernel {
    /// The symbol in the shared object.
    pub symbol: String,
    /// Operators fused in it, for reports: `add_gelu_mul`.
    pub title: String,
    /// Its run-time checks; the function returns a position + 1.
    pub checks: Vec<Check>,
}

/// A run-time check of a kernel.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Check {
    #[serde(with = "check_kind")]
    pub kind: CheckKind,
    /// The message of the error where the check fails, with the operator that asked for it.
    pub message: String,
}

/// Stores the kind of a check by its name.
mod check_kind {
    use inrush_base::CheckKind;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(kind: &CheckKind, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(kind.name())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<CheckKind, D::Error> {
        let name = <std::borrow::Cow<'de, str>>::deserialize(d)?;
        CheckKind::parse(&name)
            .ok_or_else(|| serde::de::Error::custom(format!("unknown check `{name}`")))
    }
}

/// One step of a call.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Step {
    Launch(Launch),
    Contract(Contract),
    Library(LibraryCall),
}

/// A kernel over a range of units.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Launch {
    /// Position in [`Program::kernels`].
    pub kernel: u32,
    pub buffers: Vec<BufferId>,
    /// Symbol values that the kernel takes.
    pub sizes: Vec<SizeId>,
    /// Units of work; zero means nothing to do.
    pub units: SizeId,
    /// Estimated work of one unit, in bytes moved or their equivalent.
    pub unit_cost: SizeId,
    /// Bytes of scratch that each thread passes as a last buffer; zero for none.
    pub scratch_bytes: SizeId,
    /// Must run on one thread: its stores may collide.
    pub serial: bool,
    /// Runs side by side with the launch before it, on which it does not depend.
    #[serde(default)]
    pub beside: bool,
    /// Names of the operators in it.
    pub origins: Vec<String>,
}

/// A call of a function of the runtime's library. Its tensors are row-major, and it writes every element of its outputs.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct LibraryCall {
    /// The function's name: `fft.r2c`.
    pub function: String,
    /// Its parameters, as the library documents them.
    pub params: Vec<Num>,
    pub inputs: Vec<Operand>,
    pub outputs: Vec<Operand>,
    /// Names of the operators in it.
    pub origins: Vec<String>,
}

/// A row-major tensor of a library call.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Operand {
    pub buffer: BufferId,
    pub sizes: Vec<SizeId>,
}

/// A matrix product or convolution. Strides are in elements; `a` and `b` start at `a_offset`, `b_offset` elements.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Contract {
    pub a: BufferId,
    pub b: BufferId,
    /// Elements from the operand's start to its first element.
    pub a_offset: SizeId,
    pub b_offset: SizeId,
    /// Levels of batch, m, n and k, outermost first. Several levels of a kind are one dimension
    /// whose index is split: a convolution's m is image, row and column.
    pub batch: Vec<BatchLevel>,
    pub m: Vec<Level>,
    pub n: Vec<Level>,
    pub k: Vec<KLevel>,
    /// Type of the products' sum: `f32` or `f64`.
    pub acc: Dt,
    /// Kernel that takes tiles of the sum and stores them.
    pub epilogue: u32,
    pub buffers: Vec<BufferId>,
    pub sizes: Vec<SizeId>,
    /// The positions of sums in the epilogue's only buffer, if the epilogue only stores them.
    pub store: Option<Store>,
    pub origins: Vec<String>,
}

/// Strides of what is stored, in elements: for each level of `batch`, `m` and `n`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Store {
    pub offset: SizeId,
    pub batch: Vec<SizeId>,
    pub m: Vec<SizeId>,
    pub n: Vec<SizeId>,
}

/// An axis that only `a` (for `m`) or only `b` (for `n`) follows; outermost first.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Level {
    pub size: SizeId,
    pub stride: SizeId,
}

/// An axis that both operands follow and that is not summed over.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct BatchLevel {
    pub size: SizeId,
    pub a_stride: SizeId,
    pub b_stride: SizeId,
}

/// An axis that is summed over: of the reduction, or a tap of a filter.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct KLevel {
    pub size: SizeId,
    pub a_stride: SizeId,
    pub b_stride: SizeId,
}

/// One result of a call.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Output {
    Tensor {
        buffer: BufferId,
        dtype: Dt,
        sizes: Vec<SizeId>,
        strides: Vec<SizeId>,
    },
    Int {
        value: SizeId,
    },
    Scalar {
        value: Num,
    },
    /// A step has written the new contents into an input or weight; the caller gets nothing at this position.
    Mutation,
    None,
}

/// A dtype by its short name, so that a stored program reads well.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Dt(pub inrush_base::DType);

impl Serialize for Dt {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(self.0.name())
    }
}

impl<'de> Deserialize<'de> for Dt {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let name = <std::borrow::Cow<'de, str>>::deserialize(d)?;
        inrush_base::DType::parse(&name)
            .map(Dt)
            .ok_or_else(|| serde::de::Error::custom(format!("unknown dtype `{name}`")))
    }
}

/// A number; floats are kept by bits so that infinities and NaN survive every encoding.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Num {
    Bool(bool),
    Int(i64),
    FloatBits(u64),
}

impl From<Scalar> for Num {
    fn from(s: Scalar) -> Num {
        match s {
            Scalar::Bool(b) => Num::Bool(b),
            Scalar::Int(i) => Num::Int(i),
            Scalar::Float(f) => Num::FloatBits(f.to_bits()),
        }
    }
}

impl From<Num> for Scalar {
    fn from(n: Num) -> Scalar {
        match n {
            Num::Bool(b) => Scalar::Bool(b),
            Num::Int(i) => Scalar::Int(i),
            Num::FloatBits(b) => Scalar::Float(f64::from_bits(b)),
        }
    }
}
