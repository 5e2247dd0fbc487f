//! Loop IR: a graph whose operators have become loop nests over scalar operations, or contractions.
//!
//! Bodies are data: a [`Body`] is an arena of a few kinds of statements. Dependencies, ranges,
//! dtypes, cost, printing and interpretation are plain functions over it.
//!
//! Accesses use *logical coordinates*, one expression per dimension of the buffer. The strides of a
//! buffer ([`Buffer::layout`]) are chosen after lowering and applied in stage tile. So a view is a
//! substitution of coordinates, inlining a producer is a substitution of its axes, and a change of
//! memory format touches no body.
//!
//! An example: `y = (x.t() + 1).sum(1)` for `x: f32[4, s0]`. The transposition is in the
//! coordinates.
//!
//! ```text
//! b0 x: f32[4, s0] = input 0
//! b1 y: f32[s0] = temp
//! body [i0: s0] reduce [i1: 4] from o0 {
//!   v0: f32 = load b0[i1, i0]
//!   v1: f32 = const 1.0
//!   v2: f32 = add v0, v1
//!   v3: f32 = reduce.sum v2
//!   store b1[i0] = v3
//! }
//! ```
//!
//! Does not know: the graph, devices.

#![forbid(unsafe_code)]

pub mod builder;
pub mod eval;
mod query;
pub mod scalar;
pub mod simplify;
pub mod text;
pub mod verify;

use inrush_base::{DType, Scalar, id_type};
use inrush_expr::{Expr, Exprs, Sym};
pub use query::{Cost, Level, MATH_OPS, Phase};
pub use scalar::{MOST_STEPS, ScalarOp};
use smallvec::SmallVec;

id_type!(
    /// A buffer.
    BufId,
    "b"
);
id_type!(
    /// A statement of one body: the value that it defines.
    StmtId,
    "v"
);
id_type!(
    /// Where a body comes from: an operator of the source graph.
    OriginId,
    "o"
);

/// A program of loop nests in execution order.
#[derive(Clone, Debug, Default)]
pub struct Loops {
    pub name: String,
    pub exprs: Exprs,
    pub buffers: Vec<Buffer>,
    /// Nodes in an order in which every buffer is written before it is read.
    pub nodes: Vec<Node>,
    pub outputs: Vec<Output>,
    pub origins: Vec<Origin>,
    /// Number of the user's inputs (tensors and integers), in call order.
    pub num_inputs: usize,
}

/// The tables that ids in bodies index. The expressions may be a fork of the program's arena, so
/// that threads can share the other tables.
#[derive(Copy, Clone)]
pub struct Tables<'a> {
    pub exprs: &'a Exprs,
    pub buffers: &'a [Buffer],
    pub origins: &'a [Origin],
}

/// The operator that a body was lowered from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Origin {
    /// `aten.softmax.int`.
    pub op: String,
    /// Name of the value in the graph.
    pub name: String,
    /// Python source line.
    pub line: Option<String>,
}

/// A buffer: a tensor in memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Buffer {
    pub name: String,
    pub dtype: DType,
    /// Logical sizes; coordinates of accesses run below them.
    pub sizes: Vec<Expr>,
    /// Strides in elements; `None` while the compiler is free to choose.
    pub layout: Option<Layout>,
    pub kind: BufferKind,
}

/// Position of the element at coordinates `c`: `offset + sum(c[d] * strides[d])`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Layout {
    pub strides: Vec<Expr>,
    pub offset: Expr,
}

/// The origin of a buffer's memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum BufferKind {
    /// The user's input of this position.
    Input { index: usize },
    /// A weight, buffer or constant tensor of the model, by fully qualified name.
    Weight { name: String },
    /// Written by a node, lives within the call.
    Temp,
    /// Another buffer's storage seen through this buffer's own sizes and layout (which must be set).
    Alias { of: BufId },
}

/// One output of the program.
#[derive(Clone, PartialEq, Debug)]
pub enum Output {
    /// A new tensor: the buffer, which must have a layout.
    Tensor {
        buffer: BufId,
    },
    /// The new contents of `input` are those of `buffer` (same sizes).
    Mutation {
        input: BufId,
        buffer: BufId,
    },
    Int(Expr),
    Scalar(Scalar),
    None,
}

/// A unit of work.
#[derive(Clone, PartialEq, Debug)]
pub enum Node {
    Body(Body),
    /// Boxed: bodies are far more frequent, and lists of nodes are moved often.
    Contraction(Box<Contraction>),
    Library(Box<LibraryCall>),
    Attention(Box<Attention>),
}

/// The error that a value of a [`Stmt::Indirect`] out of range stands for.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Hash)]
pub enum Check {
    /// None: the value is always in range.
    None,
    /// An index out of range. Carries its operator, because bodies of several operators are fused.
    Index(Option<OriginId>),
    /// An integer division by zero. The value is 0 where the divisor is not zero; the extent is 2,
    /// so that the symbol is not simplified away.
    Divisor(Option<OriginId>),
    /// An element of an argument that the operator does not accept. Encoded as [`Check::Divisor`].
    Value(Option<OriginId>),
}

impl Check {
    /// Returns the operator that an error names.
    pub fn origin(self) -> Option<OriginId> {
        match self {
            Check::None => None,
            Check::Index(o) | Check::Divisor(o) | Check::Value(o) => o,
        }
    }

    /// Returns the operator that an error names, mutably.
    pub fn origin_mut(&mut self) -> Option<&mut OriginId> {
        match self {
            Check::None => None,
            Check::Index(o) | Check::Divisor(o) | Check::Value(o) => o.as_mut(),
        }
    }

    /// Returns the check with `origin` as its operator if it has none.
    pub fn or(self, origin: Option<OriginId>) -> Check {
        match self {
            Check::None => Check::None,
            Check::Index(o) => Check::Index(o.or(origin)),
            Check::Divisor(o) => Check::Divisor(o.or(origin)),
            Check::Value(o) => Check::Value(o.or(origin)),
        }
    }
}

/// One loop nest. `axes[..outer]` are parallel axes, `axes[outer..]` reduction axes.
///
/// A statement that depends on a reduction axis is evaluated for every point of the nest; a statement that depends on a
/// [`Stmt::Reduce`] only is evaluated once for each point of the outer axes ([`Body::levels`]). A statement that needs both
/// would need a second pass over the reduction: that is a second body. Each body stores into one buffer or more.
#[derive(PartialEq, Debug, Default)]
pub struct Body {
    pub axes: Vec<Axis>,
    /// Number of parallel axes.
    pub outer: usize,
    /// Statements in an order in which operands come first. Each has a value, but for stores and
    /// indirect indices.
    pub stmts: Vec<Stmt>,
    /// Operators that are fused in the body, each once; the last is its own.
    pub origins: Origins,
}

/// An axis: its index symbol (made by [`Exprs::index_sym`]) and how far it runs.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Hash)]
pub struct Axis {
    pub sym: Sym,
    pub size: Expr,
}

/// Coordinates of an access, one per dimension of the buffer.
pub type Coords = SmallVec<[Expr; 4]>;

/// Where a body comes from.
pub type Origins = SmallVec<[OriginId; 4]>;

/// A few buffers, each once.
pub type Bufs = SmallVec<[BufId; 8]>;

/// A statement; its id is its position. Operands come before it.
///
/// Values have *compute* dtypes ([`DType::compute`]): a load of `f16` gives `f32`, a store into `f16` rounds.
#[derive(PartialEq, Eq, Hash, Debug)]
pub enum Stmt {
    /// A constant of the given compute dtype.
    Const { value: Scalar, dtype: DType },
    /// The value of an index expression.
    Index { expr: Expr, dtype: DType },
    /// Reads `buf` at `coords`. With a mask (a bool value), lanes where it is false give `fill` and read nothing.
    Load {
        buf: BufId,
        coords: Coords,
        mask: Option<StmtId>,
        fill: Scalar,
    },
    /// A row of the scalar-operation table. `dtype` is that of the operands ([`ScalarOp::Where`]: of the second and third);
    /// the value's is [`ScalarOp::result`] of it, so a comparison of floats has `f32` here and gives `bool`.
    Op {
        op: ScalarOp,
        args: SmallVec<[StmtId; 3]>,
        dtype: DType,
    },
    /// Conversion to `to` with ATen's meaning (float to int truncates, to bool is `!= 0`, to a narrow float rounds and
    /// stays an `f32` value). The result's dtype is `to.compute()`.
    Cast { arg: StmtId, to: DType },
    /// The bits of `arg` (which has storage dtype `from`) read as `to`, of equal size.
    Bitcast { arg: StmtId, from: DType, to: DType },
    /// Makes an integer value usable in coordinates as `sym` (an index symbol with extent `size`). Negative values wrap by
    /// `size` when `wrap`; a value out of range that is checked for is a run-time error, unless the mask is false there.
    Indirect {
        value: StmtId,
        sym: Sym,
        size: Expr,
        wrap: bool,
        check: Check,
        mask: Option<StmtId>,
    },
    /// Reduces `value` over all reduction axes of the body, in row-major order where order matters. `dtype` is that of the
    /// result: `i64` for the arg kinds, that of `value` otherwise.
    Reduce {
        op: ReduceOp,
        value: StmtId,
        dtype: DType,
    },
    /// Running reduction along the last reduction axis; a value for every point. The arg kinds give the position along that
    /// axis, of the last extreme among equals (as ATen's `cummax`).
    Scan {
        op: ReduceOp,
        value: StmtId,
        dtype: DType,
    },
    /// Sort along the only reduction axis, ascending: the value at position `p` is the `p`-th least of the row. Of `i32` or
    /// `i64`, for GPUs alone. Whoever needs the places packs them into the low bits of the keys.
    Sort { value: StmtId, dtype: DType },
    /// The value of the contraction at this point; only in its epilogue. In the scores of an attention, the product of
    /// number `of` at this point.
    Acc { dtype: DType, of: u8 },
    /// Writes `value` at `coords`. With a mask, only where it is true.
    Store {
        buf: BufId,
        coords: Coords,
        value: StmtId,
        mode: StoreMode,
        mask: Option<StmtId>,
    },
}

/// Kinds of reduction. The neutral element is what an empty reduction gives (none for the extremes of an empty set: the
/// importer has refused those).
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum ReduceOp {
    Sum,
    Prod,
    /// Extremes; NaN wins.
    Max,
    Min,
    Any,
    All,
    XorSum,
    /// Logarithm of a sum of exponentials, of floats: `log(exp(a) + exp(b))` of two values ([`ScalarOp::Logaddexp`]).
    LogSumExp,
    /// Index (`i64`, row-major over the reduction axes) of the first extreme; NaN counts as the extreme.
    ArgMax,
    ArgMin,
}

/// How a store combines with what is there. The combining kinds are atomic where iterations may collide.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum StoreMode {
    Set,
    Add,
    Mul,
    Max,
    Min,
}

/// A tensor contraction: `out[batch, m, n] = epilogue(sum over k of a[batch, m, k] * b[batch, k, n])`.
///
/// Matrix products and convolutions alike: a convolution has several `m` axes (image, output row, output column) and
/// several `k` axes (kernel row, kernel column, channel), with affine coordinates in `a`. Inputs outside the buffer are
/// never read: padding is a body before it.
#[derive(Clone, PartialEq, Debug)]
pub struct Contraction {
    /// Axes that both operands and the result have.
    pub batch: Vec<Axis>,
    pub m: Vec<Axis>,
    pub n: Vec<Axis>,
    /// Axes that are summed over, which the result does not have.
    pub k: Vec<Axis>,
    /// Coordinates over batch, m and k axes.
    pub a: Access,
    /// Coordinates over batch, k and n axes.
    pub b: Access,
    /// dtype in which products are summed (`f32` for halves).
    pub dtype: DType,
    /// A body without reduction axes over batch, m, n axes in this order, in which [`Stmt::Acc`] stands for the sum.
    /// It does the store(s).
    pub epilogue: Body,
}

/// Attention: a softmax over keys of scores that are computed from a product, and the sum of values weighted by it.
///
/// ```text
/// score[batch, m, k] = scores(sum over d of query[batch, m, d] * key[batch, k, d])
/// out[batch, m, n]   = sum over k of softmax over k of score[batch, m, k] * value[batch, k, n]
/// ```
///
/// Keys that are not kept have weight 0, and so has every key of a row without kept keys.
#[derive(Clone, PartialEq, Debug)]
pub struct Attention {
    /// Axes that all operands have: batch and head.
    pub batch: Vec<Axis>,
    /// Rows: queries.
    pub m: Axis,
    /// Keys: the softmax runs over them.
    pub k: Axis,
    /// Summed in the product of queries and keys.
    pub d: Axis,
    /// Columns of the values.
    pub n: Axis,
    /// Coordinates over batch, m, d.
    pub query: Access,
    /// Coordinates over batch, k, d.
    pub key: Access,
    /// Coordinates over batch, k, n.
    pub value: Access,
    /// Until stage fuse has inlined it: the buffer of the product over batch, m, k, which the scores read.
    pub product: Option<BufId>,
    /// A body without reduction axes over batch, m, k. [`Stmt::Acc`] is the product in `f32`. Its first stores are what
    /// [`Attended`] says; one more, if any, tells whether the key is kept. None reaches memory: their buffers are names only.
    pub scores: Body,
    pub blocks: Option<BlockMask>,
    pub results: Attended,
}

/// The use that an attention makes of the values of its scores.
#[derive(Clone, PartialEq, Debug)]
pub enum Attended {
    /// One value, the score: its softmax weighs the values.
    Softmax {
        /// Over batch, m, n.
        out: BufId,
        /// Logarithm of the sum of exponentials of kept scores, over batch and m; base 2.
        logsumexp: BufId,
        /// The greatest kept score of a row, over batch and m; times log2(e).
        max: BufId,
    },
    /// One or two values, weights of keys and of values.
    Gradients(Gradients),
}

/// Sums of keys and of values with weights that are computed from two products: the gradients of an attention.
///
/// ```text
/// first, second = scores(sum over d of query * key, sum over n of grad * value)
/// by_key[batch, m, d]   = sum over k of first * key[batch, k, d]
/// by_value[batch, m, n] = sum over k of second * value[batch, k, n]
/// ```
///
/// The gradient of queries is `by_key`, with the weights d(score). The roles are exchanged for those of keys and values: the
/// rows m are keys, k runs over queries; `query` is the keys' tensor, `grad` that of the values, `key` the queries' and `value`
/// the gradient of the result. Weights of keys that are not kept are 0.
#[derive(Clone, PartialEq, Debug)]
pub struct Gradients {
    /// Coordinates over batch, m, n.
    pub grad: Access,
    /// As [`Attention::product`], for the product of `grad` and `value`: [`Stmt::Acc`] of number 1.
    pub product: Option<BufId>,
    /// The roles are exchanged: the buffers of products are over batch, k, m.
    pub exchanged: bool,
    /// Over batch, m, d.
    pub by_key: BufId,
    /// Over batch, m, n.
    pub by_value: Option<BufId>,
}

/// Blocks of keys that rows attend to: a sparse matrix of blocks by rows. Others are skipped.
#[derive(Clone, PartialEq, Debug)]
pub struct BlockMask {
    /// Rows and keys of a block.
    pub rows: i64,
    pub keys: i64,
    /// Blocks of which the scores tell which keys are kept.
    pub partial: BlockList,
    /// Blocks that are kept whole.
    pub full: Option<BlockList>,
}

/// For each row of blocks, how many blocks it has, and which. Coordinates are over batch and m; those of `index` use
/// `position`, the place in the list, too.
#[derive(Clone, PartialEq, Debug)]
pub struct BlockList {
    pub count: Access,
    pub index: Access,
    pub position: Axis,
}

impl BlockMask {
    /// Returns the lists: partial blocks first.
    pub fn lists(&self) -> impl Iterator<Item = &BlockList> {
        [&self.partial].into_iter().chain(&self.full)
    }
}

/// A call of a function of the runtime's library over whole tensors: what no loop nest does well, such as Fourier transforms and
/// factorisations of matrices.
///
/// It is a barrier: nothing is fused into it. All its buffers are row-major, and it writes every element of its outputs.
#[derive(Clone, PartialEq, Debug)]
pub struct LibraryCall {
    /// The function's name in the library: `fft.r2c`.
    pub function: String,
    /// Its parameters, as the library documents them.
    pub params: Vec<Scalar>,
    pub inputs: Vec<BufId>,
    pub outputs: Vec<BufId>,
    /// A body without axes and statements, which holds the origins.
    pub site: Body,
}

/// A read of a buffer at coordinates.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Access {
    pub buf: BufId,
    pub coords: Coords,
}
