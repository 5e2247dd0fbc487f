//! Stage `tile`: a fused group of loop bodies becomes a [`Kernel`], a tree of loops over flat memory offsets.
//!
//! What is decided here: which axes form the grid that threads share, which loop runs over vector lanes, where each statement
//! stands (as far out as it may), which buffers never reach memory. What is left to a language: how a vector, a tail or a
//! reduction over lanes is spelled. A value *varies* when it depends on the index of an open lanes loop; all others are
//! uniform, one number for all lanes.
//!
//! Does not know: how C or Triton is spelled.

#![forbid(unsafe_code)]

mod access;
pub mod block;
mod build;
mod conflicts;
mod cost;
mod epilogue;
mod finish;
mod flatten;
mod fold;
mod grid;
pub mod group;
mod live;
mod nest;
mod online_variance;
mod peel;
mod place;
mod split_piecewise;
pub mod text;
mod tile;
mod vectorize;
mod verify;

use inrush_base::{CheckKind, DType, Scalar, id_type};
use inrush_expr::{Expr, Exprs, Sym};
use inrush_loops::{BufId, OriginId, ReduceOp, ScalarOp, StoreMode};
use smallvec::SmallVec;

pub use access::{Access, access};
pub use conflicts::units_meet;
pub use epilogue::tile_epilogue;
pub use text::print;
pub use tile::tile;
pub use vectorize::{INTERLEAVED, jam_factors};
pub use verify::verify;

id_type!(
    /// A value of a kernel.
    ValId,
    "v"
);
id_type!(
    /// A buffer argument of a kernel, by position.
    KBufId,
    "b"
);
id_type!(
    /// An accumulator.
    AccId,
    "a"
);

/// A kernel: one function over a range of grid units, or over a tile of a contraction's result.
#[derive(Clone, PartialEq, Debug)]
pub struct Kernel {
    /// For people: the fused operators. What a language names the function is its own affair.
    pub name: String,
    pub origins: Vec<OriginId>,
    pub kind: Kind,
    pub buffers: Vec<KernelBuf>,
    /// Integer arguments, evaluated by the caller before each launch.
    pub sizes: Vec<Param>,
    /// Numbered by first appearance among the items, which may evaluate one in several loops.
    pub values: Vec<Value>,
    /// Accumulators, which an [`Item::Acc`] starts each.
    pub accs: Vec<Acc>,
    /// Items that are evaluated once per call of the function.
    pub head: Vec<Item>,
    /// Items that are done for each unit, with the grid's symbols set.
    pub body: Vec<Item>,
    /// Run-time checks; a kernel stops at the first that fails.
    pub checks: Vec<Check>,
    /// Number of units of the whole launch; 1 for an epilogue.
    pub units: Expr,
    /// Bytes touched plus weighted operations of one unit: what an executor needs to share units among threads.
    pub cost_per_unit: Expr,
    /// Bytes of scratch that each thread must bring, as the last buffer, aligned to 64; `None` when there is no need.
    pub scratch_bytes: Option<Expr>,
}

/// An integer argument: the symbol that the kernel's expressions use for it, and what the caller passes.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Param {
    pub sym: Sym,
    pub value: Expr,
}

/// How the points of a kernel come about, and who calls it.
#[derive(Clone, PartialEq, Debug)]
pub enum Kind {
    /// Units are the row-major points of the grid.
    Grid(Vec<GridAxis>),
    /// A tile of a contraction's result: linear indices of the batch, the rows `m0..m1` and the columns `n0..n1`. Where rows come
    /// in `pieces`, `m` is the number of a piece.
    Epilogue {
        batch: Sym,
        m: Sym,
        n: Sym,
        pieces: Option<Pieces>,
    },
}

/// Rows of an epilogue in pieces of `length`, each of them one run of memory; `row` counts within a piece.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Pieces {
    pub row: Sym,
    pub length: Expr,
}

/// One axis of the grid: `extent` points in blocks of `block`.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct GridAxis {
    /// The axis' index where `block` is 1; where it is not, a [`Range::Block`] loop runs over the block.
    pub sym: Sym,
    pub extent: Expr,
    pub block: i64,
}

/// A buffer argument, or a buffer of the kernel's own.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KernelBuf {
    pub buf: BufId,
    pub dtype: DType,
    pub role: BufRole,
}

/// The part that a buffer plays: read, written, both, or of the kernel's own.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum BufRole {
    In,
    Out,
    /// [`BufRole::Out`] of a buffer larger than the caches: its stores should go past them.
    Stream,
    InOut,
    /// Lives within one point of the group's axes. With `per_lane` the group runs inside a lanes loop: an offset counts whole
    /// vectors, one element for each lane.
    Local {
        len: Expr,
        per_lane: bool,
    },
}

/// A value: what defines it and its compute dtype.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Value {
    pub def: Def,
    pub dtype: DType,
}

/// The definition of a value. Offsets count elements.
///
/// A load whose mask does not hold reads nothing, and its value is `fill`, a number of the compute
/// dtype.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Def {
    Const(Scalar),
    /// An integer expression over indices and sizes, as a number of the value's dtype.
    Index(Expr),
    Load {
        buf: KBufId,
        offset: Expr,
        mask: Option<ValId>,
        fill: Scalar,
    },
    /// An operation on values of one compute dtype; the result's may differ, as that of comparisons
    /// does.
    Op {
        op: ScalarOp,
        args: SmallVec<[ValId; 3]>,
    },
    /// A conversion. The value has the compute dtype of `to`: a cast to a half rounds and stays in
    /// `f32`.
    Cast {
        arg: ValId,
        to: DType,
    },
    /// The bits of `arg` as stored in `from`, read as `to`: types of one size.
    Bitcast {
        arg: ValId,
        from: DType,
        to: DType,
    },
    /// An integer made usable in offsets as `sym`; see [`inrush_loops::Stmt::Indirect`]. `check` is a position in
    /// [`Kernel::checks`].
    Indirect {
        value: ValId,
        sym: Sym,
        size: Expr,
        wrap: bool,
        check: Option<u32>,
        mask: Option<ValId>,
    },
    /// The result of a finished accumulator.
    Final(AccId),
    /// An accumulator as it stands, this point included: a scan.
    Running {
        acc: AccId,
        value: ValId,
    },
    /// The value at this position of the row in ascending order: a sort along the own axis, of block programs alone.
    Sorted {
        value: ValId,
    },
    /// The contraction's sum at this point; of an attention, the product of this number.
    Sum(u8),
}

/// Returns an integer value as an expression, if it is one: indices and sizes, a constant, or a conversion of one that keeps it.
pub(crate) fn index_expr(ex: &Exprs, values: &[Value], v: ValId) -> Option<Expr> {
    let v = &values[v.index()];
    let e = match v.def {
        Def::Index(e) => e,
        Def::Const(Scalar::Int(n)) => ex.int(n),
        Def::Cast {
            arg,
            to: DType::I64 | DType::I32,
        } => index_expr(ex, values, arg)?,
        _ => return None,
    };
    // A value of a narrower dtype wraps where it does not fit.
    let (low, high) = match v.dtype {
        DType::I64 => (i64::MIN, i64::MAX),
        DType::I32 => (i64::from(i32::MIN), i64::from(i32::MAX)),
        _ => return None,
    };
    let range = ex.range(e);
    (range.lo >= low && range.hi <= high).then_some(e)
}

/// An accumulator of a reduction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Acc {
    pub op: ReduceOp,
    /// dtype of the values that go in.
    pub dtype: DType,
    /// For an arg reduction the row-major index of a point.
    pub index: Option<Expr>,
}

/// A node of the tree. An update takes a value into an accumulator that an enclosing list has
/// started. A store writes an element, or combines with it, where its mask holds.
#[derive(Clone, PartialEq, Debug)]
pub enum Item {
    /// Boxed, since most items are single values.
    Loop(Box<Loop>),
    /// Evaluates a value; it is known to the items after it in this list and inside their loops.
    Let(ValId),
    /// Starts an accumulator at its neutral element.
    Acc(AccId),
    Update {
        acc: AccId,
        value: ValId,
    },
    Store {
        buf: KBufId,
        offset: Expr,
        value: ValId,
        mode: StoreMode,
        mask: Option<ValId>,
    },
}

/// A loop: its index takes the points of `range` in order, or several at once.
#[derive(Clone, PartialEq, Debug)]
pub struct Loop {
    pub sym: Sym,
    pub range: Range,
    pub role: Role,
    pub body: Vec<Item>,
}

/// The points of a loop.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Range {
    /// `0..extent`.
    Full(Expr),
    /// The current block of the grid axis of the same symbol.
    Block { extent: Expr, block: i64 },
    /// `start..min(start + step, extent)`: one tile of an axis that another loop walks in steps. Inside a lanes loop, loads
    /// that are contiguous along this axis and strided over the lanes are a transposition of the tile.
    Tile {
        start: Expr,
        step: i64,
        extent: Expr,
    },
    /// The rows of an epilogue's tile.
    Rows,
    /// The pieces, of this length, that rows of the tile belong to.
    Pieces(Expr),
    /// The rows of the tile in the current piece of this length.
    Piece(Expr),
    /// The columns of an epilogue's tile.
    Columns,
}

/// How the points of a loop run.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Role {
    Serial,
    /// `width` consecutive points at once; accumulators of an enclosing scope are kept per lane, in `unroll` copies that
    /// hide the latency of the update, and combined at the end.
    Vector {
        width: u32,
        unroll: u32,
    },
}

/// A run-time check.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Check {
    pub kind: CheckKind,
    /// The operator that asks for it.
    pub origin: Option<OriginId>,
    /// The message of the error where it fails, without the operator.
    pub message: String,
}

impl Def {
    /// Calls `f` for the values that this one uses.
    #[inline]
    pub fn each_operand(&self, mut f: impl FnMut(ValId)) {
        match self {
            Def::Const(_) | Def::Index(_) | Def::Final(_) | Def::Sum(_) => {}
            Def::Load { mask, .. } => mask.iter().for_each(|m| f(*m)),
            Def::Op { args, .. } => args.iter().for_each(|a| f(*a)),
            Def::Cast { arg, .. } | Def::Bitcast { arg, .. } => f(*arg),
            Def::Running { value, .. } | Def::Sorted { value } => f(*value),
            Def::Indirect { value, mask, .. } => {
                f(*value);
                mask.iter().for_each(|m| f(*m));
            }
        }
    }

    /// Values that this one uses.
    pub fn operands(&self) -> SmallVec<[ValId; 3]> {
        let mut out = SmallVec::new();
        self.each_operand(|v| out.push(v));
        out
    }

    /// The expression that it evaluates, if any.
    pub fn expr(&self) -> Option<Expr> {
        match self {
            Def::Index(e) | Def::Load { offset: e, .. } => Some(*e),
            _ => None,
        }
    }
}

impl Kernel {
    pub fn value(&self, v: ValId) -> &Value {
        &self.values[v.index()]
    }
    pub fn buffer(&self, b: KBufId) -> &KernelBuf {
        &self.buffers[b.index()]
    }
    /// Buffers that the caller passes, in order.
    pub fn arguments(&self) -> impl Iterator<Item = (KBufId, &KernelBuf)> {
        self.buffers
            .iter()
            .enumerate()
            .filter(|(_, b)| !matches!(b.role, BufRole::Local { .. }))
            .map(|(i, b)| (KBufId::from_index(i), b))
    }
}
