//! Adds calls in the place of one.

use inrush_base::DType;
use inrush_expr::Expr;
use inrush_graph::{Arg, Graph, LineId, Node, TensorType, Type, ValueId};

/// Adds calls that replace one. They have its Python line, and values are named after its result.
pub(crate) struct Builder<'a> {
    pub graph: &'a mut Graph,
    pub line: Option<LineId>,
    pub name: &'a str,
}

impl Builder<'_> {
    /// Adds a call with the results `outs`.
    pub(crate) fn add(&mut self, op: &str, args: Vec<Arg>, outs: Vec<ValueId>) {
        self.graph.nodes.push(Node {
            op: op.into(),
            args,
            outs,
            line: self.line,
            made_for: None,
        });
    }

    /// Returns a new value, named after the result and `part`.
    pub(crate) fn value(&mut self, part: &str, ty: TensorType) -> ValueId {
        let name = format!("{}.{part}", self.name);
        self.graph.add_value(&name, Type::Tensor(ty))
    }

    /// Adds a call with one new result.
    pub(crate) fn push(&mut self, op: &str, args: Vec<Arg>, part: &str, ty: TensorType) -> ValueId {
        let out = self.value(part, ty);
        self.add(op, args, vec![out]);
        out
    }

    /// Returns the type of a row-major tensor.
    pub(crate) fn contiguous(&self, dtype: DType, sizes: Vec<Expr>) -> TensorType {
        TensorType {
            dtype,
            strides: self.graph.exprs.contiguous_strides(&sizes),
            sizes,
        }
    }

    /// Adds a view of a row-major tensor.
    pub(crate) fn view(
        &mut self,
        of: ValueId,
        part: &str,
        dtype: DType,
        sizes: Vec<Expr>,
    ) -> ValueId {
        let ty = self.contiguous(dtype, sizes.clone());
        let args = vec![Arg::Value(of), Arg::Ints(sizes)];
        self.push("aten.view.default", args, part, ty)
    }
}
