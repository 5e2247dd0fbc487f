//! Products with a bias, on GPUs: the bias is added by the kernel that reads the sum, where there is one.

use super::target::{Role, Target};
use super::{Importer, meta};
use inrush_graph::{Arg, LineId, Node, Type, ValueId};
use pyo3::intern;
use pyo3::prelude::*;

/// The operator.
pub const ADDMM: &str = "aten.addmm.default";
/// What it is made of.
pub const MM: &str = "aten.mm.default";
const ADD: &str = "aten.add.Tensor";

/// Operators that only look at their argument, by the part of the name that says so.
const LOOKS: &[&str] = &[
    "aten.view.",
    "aten._unsafe_view.",
    "aten.permute.",
    "aten.transpose.",
    "aten.t.",
    "aten.split",
    "aten.unsqueeze.",
    "aten.squeeze.",
    "aten.expand.",
    "aten.select.",
    "aten.slice.",
    "aten.detach.",
    "aten.alias.",
    "aten.unbind.",
];
/// How far readers are looked for behind views.
const MAX_VIEWS: usize = 8;

impl<'py> Importer<'py> {
    /// Splits `bias + a @ b` into a product of its own and an addition, whose arguments are given back, where some reader is
    /// compiled. A product alone is the cheaper call too.
    pub(super) fn unfuse(
        &mut self,
        node: &Bound<'py, PyAny>,
        args: Vec<Arg>,
        op: &mut String,
        outs: &mut [ValueId],
        line: Option<LineId>,
    ) -> PyResult<Vec<Arg>> {
        let (&[out], [Arg::Value(bias), a @ Arg::Value(_), b @ Arg::Value(_), ..]) =
            (&*outs, args.as_slice())
        else {
            return Ok(args);
        };
        let graph = &self.out.graph;
        let row = matches!(&graph.value(*bias).ty, Type::Tensor(t) if t.rank() == 1);
        let known = [a, b]
            .iter()
            .all(|x| matches!(x, Arg::Value(v) if matches!(graph.value(*v).ty, Type::Tensor(_))));
        if !row || !known || !self.is_compiled_into(node, 0)? {
            return Ok(args);
        }
        let Type::Tensor(ty) = graph.value(out).ty.clone() else {
            return Ok(args);
        };
        let name = format!("{}.product", graph.value(out).name);
        let (a, b, bias) = (a.clone(), b.clone(), *bias);
        let product = self.out.graph.add_value(&name, Type::Tensor(ty));
        self.out.graph.nodes.push(Node {
            op: MM.into(),
            args: vec![a, b],
            outs: vec![product],
            line,
            made_for: None,
        });
        self.out.nodes.push(Some(node.clone().unbind()));
        self.out.called.push(None);
        *op = ADD.into();
        let exprs = &self.out.graph.exprs;
        Ok(vec![
            Arg::Value(product),
            Arg::Value(bias),
            Arg::Int(exprs.int(1)),
        ])
    }

    /// Whether something that is compiled reads the node, through views.
    fn is_compiled_into(&self, node: &Bound<'py, PyAny>, depth: usize) -> PyResult<bool> {
        let py = node.py();
        for user in node.getattr(intern!(py, "users"))?.try_iter()? {
            let user = user?;
            let target = Target::of(self.names, &user.getattr(intern!(py, "target"))?)?;
            let looks =
                target.role == Role::Item || LOOKS.iter().any(|l| target.name.starts_with(l));
            let reads = match looks {
                true => depth < MAX_VIEWS && self.is_compiled_into(&user, depth + 1)?,
                false => {
                    target.role == Role::Operator
                        && !inrush_compile::is_library(&target.name)
                        && meta(&user, intern!(py, "val"))?.is_some()
                }
            };
            if reads {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
