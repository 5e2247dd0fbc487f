//! Short forms of the calls that decompositions are made of.
//!
//! Each adds a node and returns its value. Arguments that are left out get the schema's
//! defaults. Types follow from promotion, as if the call stood in the user's graph: a
//! decomposition that wants `f32` for halves widens its operands first.

use crate::Builder;
use inrush_base::{DType, Result, Scalar};
use inrush_expr::Expr;
use inrush_graph::{Arg, ValueId};

impl Builder<'_> {
    /// `x + y`; the second operand of these four is a tensor or a number.
    pub(super) fn add(&mut self, x: ValueId, y: impl Into<Arg>) -> Result<ValueId> {
        self.call("aten.add.Tensor", &[x.into(), y.into()])
    }

    pub(super) fn sub(&mut self, x: ValueId, y: impl Into<Arg>) -> Result<ValueId> {
        self.call("aten.sub.Tensor", &[x.into(), y.into()])
    }

    pub(super) fn mul(&mut self, x: ValueId, y: impl Into<Arg>) -> Result<ValueId> {
        self.call("aten.mul.Tensor", &[x.into(), y.into()])
    }

    pub(super) fn div(&mut self, x: ValueId, y: impl Into<Arg>) -> Result<ValueId> {
        self.call("aten.div.Tensor", &[x.into(), y.into()])
    }

    /// `op(x, c)` for a number.
    pub(super) fn by(&mut self, op: &str, x: ValueId, c: f64) -> Result<ValueId> {
        self.call(op, &[x.into(), Arg::Float(c)])
    }

    /// `c * x`, with `c` rounded as eager rounds a factor of a product.
    pub(super) fn scale(&mut self, x: ValueId, c: f64) -> Result<ValueId> {
        self.by("aten.mul.Tensor", x, c)
    }

    /// Calls an operator whose further parameters have defaults.
    pub(super) fn unary(&mut self, op: &str, x: ValueId) -> Result<ValueId> {
        self.call(op, &[x.into()])
    }

    /// `mask ? x : y`.
    pub(super) fn select(&mut self, mask: ValueId, x: ValueId, y: ValueId) -> Result<ValueId> {
        self.call("aten.where.self", &[mask.into(), x.into(), y.into()])
    }

    /// Returns `x` with a check that each element is from `low` to `high`.
    pub(super) fn between(&mut self, x: ValueId, low: Arg, high: Arg) -> Result<ValueId> {
        let above = self.call("aten.ge.Scalar", &[x.into(), low])?;
        let below = self.call("aten.le.Scalar", &[x.into(), high])?;
        let holds = self.call("aten.logical_and.default", &[above.into(), below.into()])?;
        self.assured(x, holds)
    }

    /// `x`; a call fails where `holds` is false, and names the operator that is being decomposed.
    pub(super) fn assured(&mut self, x: ValueId, holds: ValueId) -> Result<ValueId> {
        self.call("inrush.assured.default", &[x.into(), holds.into()])
    }

    /// `mask ? x : c` in the dtype of `x`.
    pub(super) fn select_or(&mut self, mask: ValueId, x: ValueId, c: f64) -> Result<ValueId> {
        // A float constant would promote an integer `x`.
        let c = Scalar::Float(c).convert(self.dtype(x)?);
        let c = self.scalar(c);
        self.call("aten.where.ScalarOther", &[mask.into(), x.into(), c])
    }

    /// Sum over `dims`; `x` itself without any.
    pub(super) fn sum(&mut self, x: ValueId, dims: &[i64], keep: bool) -> Result<ValueId> {
        if dims.is_empty() {
            return Ok(x);
        }
        let dims = self.ints(dims);
        self.call("aten.sum.dim_IntList", &[x.into(), dims, keep.into()])
    }

    /// Sum of all elements.
    pub(super) fn total(&mut self, x: ValueId) -> Result<ValueId> {
        let dims: Vec<i64> = (0..self.rank(x)? as i64).collect();
        let dims = self.ints(&dims);
        self.call("aten.sum.dim_IntList", &[x.into(), dims])
    }

    /// Mean over `dims`; `x` itself without any.
    pub(super) fn mean(&mut self, x: ValueId, dims: &[i64], keep: bool) -> Result<ValueId> {
        if dims.is_empty() {
            return Ok(x);
        }
        let dims = self.ints(dims);
        self.call("aten.mean.dim", &[x.into(), dims, keep.into()])
    }

    /// `x` under other sizes with as many elements.
    pub(super) fn view(&mut self, x: ValueId, sizes: &[Expr]) -> Result<ValueId> {
        self.call("aten.view.default", &[x.into(), sizes.to_vec().into()])
    }

    /// A tensor of one number.
    pub(super) fn full(&mut self, sizes: &[Expr], value: f64, dtype: DType) -> Result<ValueId> {
        self.call(
            "aten.full.default",
            &[sizes.to_vec().into(), Arg::Float(value), dtype.into()],
        )
    }

    /// Indices `start..start + len` of dimension `dim`.
    pub(super) fn narrow(
        &mut self,
        x: ValueId,
        dim: usize,
        start: Expr,
        len: Expr,
    ) -> Result<ValueId> {
        let end = self.exprs.add(start, len);
        let dim = self.int(dim as i64);
        self.call(
            "aten.slice.Tensor",
            &[x.into(), dim, start.into(), end.into()],
        )
    }
}
