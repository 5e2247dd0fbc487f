//! The tensor graph: single-assignment operator calls whose values carry dtype, sizes, strides.
//!
//! Does not know: any ATen operator. An operator here is a name with arguments; what it means is
//! said by the rows of `inrush-aten`.
//!
//! Nodes, values and inputs are arenas, and ids are positions in them. Sizes and strides are
//! expressions of one [`Exprs`] arena, so equal sizes are equal handles. A graph that has just been
//! imported may still mutate: stage normalize replaces writes by new values, and from then on only
//! [`OutputKind::Mutation`] tells which inputs get new contents at the end of a call.

#![forbid(unsafe_code)]

pub mod alike;
mod build;
pub mod text;
pub mod verify;

pub use build::source_name;

use inrush_base::schema::Operator;
use inrush_base::{DType, Scalar, id_type};
use inrush_expr::{Expr, Exprs};

id_type!(
    /// A value: an input or a result of a node.
    ValueId,
    "%"
);
id_type!(
    /// A node's position in [`Graph::nodes`].
    NodeId,
    "n"
);
id_type!(
    /// A Python source line, index into [`Graph::lines`].
    LineId,
    "line"
);

/// A whole graph. Nodes stand in execution order; each value is defined before it is used.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    pub name: String,
    pub exprs: Exprs,
    /// All values, in order of definition as importers add them.
    pub values: Vec<Value>,
    pub inputs: Vec<Input>,
    pub nodes: Vec<Node>,
    /// Results in call order, and new contents of inputs.
    pub outputs: Vec<Output>,
    /// Relations between input sizes that must hold at a call, beyond what the input types say.
    pub guards: Vec<Guard>,
    /// True if inputs may begin anywhere in their storage, as PyTorch's tensors do, without the
    /// graph saying where.
    pub foreign_inputs: bool,
    /// Python source lines (`model.py:12 in forward`), referred to by nodes.
    pub lines: Vec<String>,
    /// Operators of the user's that nodes call, sorted by name. The host has their functions.
    pub operators: Vec<Operator>,
    /// Graphs that nodes of control flow call; arguments name them by position.
    pub bodies: Vec<Graph>,
    /// Python's nesting of inputs and outputs (`torch.export`'s tree specs), kept for the surfaces that need it.
    pub in_tree: Option<String>,
    pub out_tree: Option<String>,
}

/// A value's name (from the exporter; unique) and type.
#[derive(Clone, Debug)]
pub struct Value {
    pub name: String,
    pub ty: Type,
}

/// Type of a value.
#[derive(Clone, PartialEq, Debug)]
pub enum Type {
    Tensor(TensorType),
    /// A symbolic integer; its value is the expression.
    Int(Expr),
    /// A float or bool scalar computed in the graph (runtime asserts, `.item()`).
    Float,
    Bool,
    /// An input that was specialised at export: it always has this value.
    Constant(Scalar),
    /// An output that an operator declares but does not produce here.
    None,
    /// Something that only PyTorch can hold, in words: a sparse tensor, a generator.
    Opaque(String),
}

/// Metadata of a tensor: sizes and strides in elements.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TensorType {
    pub dtype: DType,
    pub sizes: Vec<Expr>,
    pub strides: Vec<Expr>,
}

/// An input of the graph, in call order: parameters, buffers, constants, then the user's inputs.
#[derive(Clone, Debug)]
pub struct Input {
    pub value: ValueId,
    pub kind: InputKind,
    /// Elements of its storage before its first one. Zero where the importer does not know.
    pub begin: i64,
    pub reads: Reads,
}

impl Input {
    /// Returns an input that begins its storage and whose elements are read by their coordinates.
    pub fn new(value: ValueId, kind: InputKind) -> Input {
        Input {
            value,
            kind,
            begin: 0,
            reads: Reads::default(),
        }
    }
}

/// The assumption that a graph makes about the memory of an input, weakest first.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Reads {
    /// Elements by coordinates: a copy with other strides does as well.
    #[default]
    Elements,
    /// Positions counted from its first element: its strides are those of its type.
    Memory,
    /// Positions counted from the beginning of its storage: it begins there, too.
    Storage,
}

/// The origin of an input.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum InputKind {
    /// The user's input of this position (tensors and symbolic integers; in flattened order).
    User {
        index: usize,
    },
    /// A weight by its fully qualified name. The importer knows where its bytes are.
    Parameter {
        name: String,
    },
    Buffer {
        name: String,
        persistent: bool,
    },
    Constant {
        name: String,
    },
}

/// One output, in call order.
#[derive(Clone, Debug)]
pub struct Output {
    pub value: OutputValue,
    pub kind: OutputKind,
}

/// The value of an output; numbers that are known need no node.
#[derive(Clone, PartialEq, Debug)]
pub enum OutputValue {
    Value(ValueId),
    Scalar(Scalar),
    None,
}

/// The receiver of an output.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OutputKind {
    /// The user's output of this position.
    User { index: usize },
    /// The new contents of the input (buffer, parameter or user input) at this position in [`Graph::inputs`].
    Mutation { input: usize },
}

/// A call of an operator.
#[derive(Clone, Debug)]
pub struct Node {
    /// `aten.add.Tensor`, `sym.floordiv`.
    pub op: String,
    /// Arguments in schema order, defaults filled in, once the importer has bound them.
    pub args: Vec<Arg>,
    /// Results in schema order. One that the operator does not produce here has type
    /// [`Type::None`].
    pub outs: Vec<ValueId>,
    pub line: Option<LineId>,
    /// The operator that errors name instead of `op`. A decomposition checks on behalf of the
    /// operator that it replaces.
    pub made_for: Option<Box<str>>,
}

/// An argument of a call.
#[derive(Clone, PartialEq, Debug)]
pub enum Arg {
    None,
    Value(ValueId),
    /// A tensor list; `None` entries are allowed (as in `aten.index.Tensor`).
    Values(Vec<Option<ValueId>>),
    /// An integer, possibly symbolic.
    Int(Expr),
    Ints(Vec<Expr>),
    Float(f64),
    Floats(Vec<f64>),
    /// A complex number: real and imaginary part.
    Complex(f64, f64),
    Bool(bool),
    Bools(Vec<bool>),
    Str(String),
    DType(DType),
    MemoryFormat(MemoryFormat),
    /// A graph that the operator calls: a position in [`Graph::bodies`].
    Body(usize),
    /// A device, layout or other thing that has no meaning for compilation; kept as text.
    Other(String),
}

/// PyTorch's memory formats: orders of the dimensions of a new tensor.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum MemoryFormat {
    Contiguous,
    ChannelsLast,
    ChannelsLast3d,
    Preserve,
}

/// A relation between sizes, checked at each call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Guard {
    pub relation: Relation,
    pub left: Expr,
    pub right: Expr,
    /// Where the condition comes from, for the message.
    pub why: String,
}

/// The relation of a guard's sides.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Relation {
    Eq,
    Ne,
    Le,
    Lt,
}
