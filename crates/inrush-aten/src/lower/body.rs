//! Builds one loop body statement by statement, keeping the dtype of every value.
//!
//! Axes have positions: outer (parallel) axes first, then reduction axes in the order of
//! their declaration. A statement is identified by its place in the arena and may use only
//! earlier ones, so a body is in SSA form by construction. Statements are kept as they are
//! pushed: sharing and folding are the scheduler's work, which sees fused bodies.
//!
//! ```text
//! let mut body = lw.body(&[n]);                body [i0: n] reduce [i1: m] {
//! let k = body.reduce_axes(&[m])[0];
//! let v = body.load(&x, &[i, k]);                v0: f32 = load b0[i0, i1]
//! let s = body.reduce(ReduceOp::Sum, v);         v1: f32 = reduce.sum v0
//! body.store(out, &[i], s);                      store b1[i0] = v1
//! lw.push(body);                               }
//! ```
//!
//! Values have compute dtypes: halves are `f32` between load and store. `cast` to a half
//! rounds and stays in `f32`.

use crate::Tensor;
use crate::view::index;
use inrush_base::{DType, Scalar};
use inrush_expr::{Expr, Exprs, Position};
use inrush_loops::builder::Typed;
use inrush_loops::{Axis, Body, BufId, Check, Coords, ReduceOp, ScalarOp, Stmt, StmtId, StoreMode};
use smallvec::SmallVec;

/// Statements that most bodies have room for.
const STMTS: usize = 8;

/// A body in the making. Outer axes are fixed at the start; reduction axes are added with [`BodyBuilder::reduce_axes`].
pub struct BodyBuilder<'g> {
    pub exprs: &'g Exprs,
    axes: Vec<Axis>,
    /// Number of parallel axes; those from here on are reduced or scanned.
    outer: usize,
    stmts: Typed,
}

impl<'g> BodyBuilder<'g> {
    /// A body over parallel axes of these sizes.
    pub fn new(exprs: &'g Exprs, sizes: &[Expr]) -> Self {
        let axes: Vec<Axis> = sizes
            .iter()
            .enumerate()
            .map(|(d, size)| Axis {
                sym: exprs.index_sym(d as u32, *size),
                size: *size,
            })
            .collect();
        BodyBuilder {
            exprs,
            outer: axes.len(),
            axes,
            stmts: Typed::with_capacity(STMTS),
        }
    }

    /// Adds reduction axes; they follow the axes that are there.
    pub fn reduce_axes(&mut self, sizes: &[Expr]) -> Vec<Expr> {
        let first = self.axes.len();
        for (k, size) in sizes.iter().enumerate() {
            self.axes.push(Axis {
                sym: self.exprs.index_sym((first + k) as u32, *size),
                size: *size,
            });
        }
        (first..first + sizes.len())
            .map(|p| self.index(p))
            .collect()
    }

    /// The index of the axis at `position`; 0 for an axis of size 1.
    pub fn index(&self, position: usize) -> Expr {
        index(self.exprs, position, self.axes[position].size)
    }

    /// Indices of the outer axes.
    pub fn outer(&self) -> Vec<Expr> {
        (0..self.outer).map(|p| self.index(p)).collect()
    }

    /// Returns the dtype of a value. That of a half is `f32`.
    pub fn dtype(&self, v: StmtId) -> DType {
        self.stmts.dtype(v)
    }

    /// Adds a statement that loads nothing.
    fn push(&mut self, stmt: Stmt) -> StmtId {
        self.stmts
            .push(stmt, |b| unreachable!("{b} is loaded by `load_coords`"))
    }

    /// A constant converted to the compute dtype of `dtype`; a half is not rounded to 16
    /// bits.
    pub fn constant(&mut self, value: Scalar, dtype: DType) -> StmtId {
        let dtype = dtype.compute();
        let value = value.convert(dtype);
        self.push(Stmt::Const { value, dtype })
    }

    pub fn float(&mut self, value: f64, dtype: DType) -> StmtId {
        self.constant(Scalar::Float(value), dtype)
    }

    /// The value of an index expression as `i64`.
    pub fn index_value(&mut self, expr: Expr) -> StmtId {
        let dtype = DType::I64;
        self.push(Stmt::Index { expr, dtype })
    }

    /// The value of an index expression as `dtype`, wrapped when that is narrower.
    pub fn index_as(&mut self, expr: Expr, dtype: DType) -> StmtId {
        self.push(Stmt::Index { expr, dtype })
    }

    /// Reads `t` at the given index of each of its dimensions.
    pub fn load(&mut self, t: &Tensor, at: &[Expr]) -> StmtId {
        let coords = t.at(self.exprs, at);
        self.load_coords(t.buf, t.dtype, coords, None, Scalar::Int(0))
    }

    /// Reads `t` where `mask` is true and gives `fill` elsewhere.
    pub fn load_masked(&mut self, t: &Tensor, at: &[Expr], mask: StmtId, fill: Scalar) -> StmtId {
        let coords = t.at(self.exprs, at);
        self.load_coords(t.buf, t.dtype, coords, Some(mask), fill)
    }

    /// Reads `t` broadcast over the outer axes: its last dimension meets the last outer axis.
    pub fn load_broadcast(&mut self, t: &Tensor) -> StmtId {
        let outer: Coords = (0..self.outer).map(|p| self.index(p)).collect();
        let at = broadcast_index(self.exprs, t, &outer);
        self.load(t, &at)
    }

    /// `fill` is what lanes get where the mask is false; without a mask it is not used.
    fn load_coords(
        &mut self,
        buf: BufId,
        dtype: DType,
        coords: Coords,
        mask: Option<StmtId>,
        fill: Scalar,
    ) -> StmtId {
        let dtype = dtype.compute();
        let fill = fill.convert(dtype);
        let load = Stmt::Load {
            buf,
            coords,
            mask,
            fill,
        };
        self.stmts.push(load, |_| dtype)
    }

    /// Applies a scalar operation. The dtype is that of the operands; of a selection, whose
    /// first operand is bool, that of the second.
    pub fn op(&mut self, op: ScalarOp, args: &[StmtId]) -> StmtId {
        let operand = args.get((op == ScalarOp::Where) as usize);
        // The statement says the operands' dtype.
        let dtype = operand.map_or(DType::F32, |a| self.dtype(*a));
        let args = SmallVec::from_slice(args);
        self.push(Stmt::Op { op, args, dtype })
    }

    /// `v` added to the sum of what came before it, if anything did.
    pub fn add_to(&mut self, sum: Option<StmtId>, v: StmtId) -> StmtId {
        sum.map_or(v, |s| self.op(ScalarOp::Add, &[s, v]))
    }

    /// `v` converted to `to` (rounded when `to` is a narrow float); `v` itself when nothing changes.
    pub fn cast(&mut self, v: StmtId, to: DType) -> StmtId {
        if self.dtype(v) == to {
            return v;
        }
        self.push(Stmt::Cast { arg: v, to })
    }

    /// `v` as a value that a buffer of dtype `to` can store, without a rounding that the store does itself.
    pub fn cast_for_store(&mut self, v: StmtId, to: DType) -> StmtId {
        self.cast(v, to.compute())
    }

    /// Reads the bits of `arg` as another dtype of the same size.
    pub fn bitcast(&mut self, arg: StmtId, from: DType, to: DType) -> StmtId {
        self.push(Stmt::Bitcast { arg, from, to })
    }

    /// `cond ? a : b`. Both sides are evaluated, so neither may depend on `cond` to be safe.
    pub fn select(&mut self, cond: StmtId, a: StmtId, b: StmtId) -> StmtId {
        self.op(ScalarOp::Where, &[cond, a, b])
    }

    /// An integer value as an index below `size`. The result stands in coordinates.
    /// With `wrap` negative values count from the end. With `check` a value out of range
    /// makes the call fail; without it the caller vouches for the range. Where `mask` is
    /// false the value is not checked, and what it indexes must not be accessed.
    pub fn indirect(
        &mut self,
        value: StmtId,
        size: Expr,
        wrap: bool,
        check: bool,
        mask: Option<StmtId>,
    ) -> Expr {
        let check = if check {
            Check::Index(None)
        } else {
            Check::None
        };
        self.checked(value, size, wrap, check, mask)
    }

    /// The integer `b` as a divisor: where it is zero a call fails.
    pub fn divisor(&mut self, b: StmtId) -> StmtId {
        // A constant other than zero needs no check.
        if let Stmt::Const { value, .. } = self.stmts.stmt(b)
            && value.as_i64() != 0
        {
            return b;
        }
        let dtype = self.dtype(b);
        let zero = self.constant(Scalar::Int(0), dtype);
        let bad = self.op(ScalarOp::Eq, &[b, zero]);
        self.unless(bad, b, Check::Divisor(None))
    }

    /// `x`; a call fails where `holds` is false.
    pub fn assured(&mut self, x: StmtId, holds: StmtId) -> StmtId {
        let bad = self.op(ScalarOp::Not, &[holds]);
        self.unless(bad, x, Check::Value(None))
    }

    /// `x`; a call fails with the message of `check` where `bad` is true.
    /// The check is an index in disguise: 2 is out of range of an extent of 2, and 0 is in
    /// range. Checks of indices are the one kind of run-time error that loops have, and so
    /// they need no other.
    fn unless(&mut self, bad: StmtId, x: StmtId, check: Check) -> StmtId {
        let (two, none) = (
            self.constant(Scalar::Int(2), DType::I64),
            self.constant(Scalar::Int(0), DType::I64),
        );
        let v = self.select(bad, two, none);
        let checked = self.checked(v, self.exprs.int(2), false, check, None);
        // It is zero wherever the call goes on; adding it makes the check a part of the value.
        let v = self.index_value(checked);
        let dtype = self.dtype(x);
        let v = self.cast(v, dtype);
        self.op(ScalarOp::Add, &[x, v])
    }

    /// Numbers indirect symbols `j0, j1, ..` in order of appearance. Their role tells them
    /// apart from axes.
    fn checked(
        &mut self,
        value: StmtId,
        size: Expr,
        wrap: bool,
        check: Check,
        mask: Option<StmtId>,
    ) -> Expr {
        let taken = (self.stmts.stmts().iter())
            .filter(|s| matches!(s, Stmt::Indirect { .. }))
            .count();
        let sym = self.exprs.sym_at(Position::Indirect(taken as u32), size);
        self.push(Stmt::Indirect {
            value,
            sym,
            size,
            wrap,
            check,
            mask,
        });
        self.exprs.sym_expr(sym)
    }

    /// Reduces over all reduction axes. Without any (a 0-dimensional source) there is one element to reduce.
    pub fn reduce(&mut self, op: ReduceOp, value: StmtId) -> StmtId {
        let value = self.started(op, value);
        if self.outer == self.axes.len() {
            return match op.is_arg() {
                true => self.constant(Scalar::Int(0), DType::I64),
                false => value,
            };
        }
        let dtype = match op {
            // The result is a place in the row, whatever is compared.
            ReduceOp::ArgMax | ReduceOp::ArgMin => DType::I64,
            ReduceOp::Any | ReduceOp::All => DType::Bool,
            _ => self.dtype(value),
        };
        self.push(Stmt::Reduce { op, value, dtype })
    }

    /// Running reduction along the last reduction axis.
    pub fn scan(&mut self, op: ReduceOp, value: StmtId) -> StmtId {
        let value = self.started(op, value);
        let dtype = self.dtype(value);
        self.push(Stmt::Scan { op, value, dtype })
    }

    /// Sorts keys along the only reduction axis, ascending. Of `i32` or `i64`, for GPUs.
    pub fn sort(&mut self, value: StmtId) -> StmtId {
        let dtype = self.dtype(value);
        self.push(Stmt::Sort { value, dtype })
    }

    /// Returns a summand that is the only one as the sum of it and zero. Eager's sums start from zero, so that the sum of -0 is
    /// +0; the loop of a single step, which would do the same, is left out later.
    /// Holds for floats only: integers have one zero.
    fn started(&mut self, op: ReduceOp, value: StmtId) -> StmtId {
        let single = self.axes[self.outer..]
            .iter()
            .all(|axis| self.exprs.is_int(axis.size, 1));
        let dtype = self.dtype(value);
        if op != ReduceOp::Sum || !dtype.is_float() || !single {
            return value;
        }
        let zero = self.float(0.0, dtype);
        self.op(ScalarOp::Add, &[value, zero])
    }

    /// The accumulator of a contraction; only in an epilogue.
    pub fn acc(&mut self, dtype: DType) -> StmtId {
        self.push(Stmt::Acc { dtype, of: 0 })
    }

    pub fn store(&mut self, buf: BufId, coords: &[Expr], value: StmtId) {
        self.store_with(buf, coords, value, StoreMode::Set, None);
    }

    /// Stores in a mode other than `Set` read, combine and write; points that share a place
    /// then need care when they run in parallel.
    pub fn store_with(
        &mut self,
        buf: BufId,
        coords: &[Expr],
        value: StmtId,
        mode: StoreMode,
        mask: Option<StmtId>,
    ) {
        let coords = SmallVec::from_slice(coords);
        self.push(Stmt::Store {
            buf,
            coords,
            value,
            mode,
            mask,
        });
    }

    /// Origins are empty here; `Lower::push` adds them.
    pub fn finish(self) -> Body {
        Body {
            axes: self.axes,
            outer: self.outer,
            stmts: self.stmts.into_stmts(),
            ..Body::default()
        }
    }
}

/// For each dimension of `t` the outer index that it meets when it is broadcast.
/// Aligns at the last dimension; a dimension of size 1 is read at 0. Further outer indices in
/// front are not used.
pub fn broadcast_index(exprs: &Exprs, t: &Tensor, outer: &[Expr]) -> Coords {
    let lead = outer.len().saturating_sub(t.sizes.len());
    t.sizes
        .iter()
        .enumerate()
        .map(|(d, s)| {
            if exprs.is_int(*s, 1) {
                exprs.int(0)
            } else {
                outer[lead + d]
            }
        })
        .collect()
}
