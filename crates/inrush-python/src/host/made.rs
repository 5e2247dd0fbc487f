//! Calls that a pass made: no FX node stands for them, so that they are read from the graph.
//!
//! Rewrites of whole graphs on GPUs replace operators by others (a convolution by a product, say).
//! Such a node has a row, so its schema tells which arguments are passed by keyword.

use super::call::Reader;
use crate::errors::raise;
use inrush_base::Error;
use inrush_graph::{Arg, Graph, MemoryFormat, Node, Type, ValueId};
use inrush_host::program::{Call, Template};
use pyo3::prelude::*;

impl<'py> Reader<'_, 'py> {
    /// Builds the call of a node of the graph: an ATen operator with its arguments in schema order.
    pub fn made(
        &mut self,
        py: Python<'py>,
        graph: &Graph,
        node: &Node,
        outs: Vec<usize>,
    ) -> PyResult<Call> {
        let unknown = || raise(Error::internal(format!("`{}` has no row", node.op)));
        let op = inrush_aten::lookup(&node.op).ok_or_else(unknown)?;
        let mut target = py.import("torch")?.getattr("ops")?;
        for part in node.op.split('.') {
            target = target.getattr(part)?;
        }
        let (mut args, mut kwargs) = (Vec::new(), Vec::new());
        for (param, arg) in op.schema().params.iter().zip(&node.args) {
            let template = self.argument(py, graph, arg)?;
            if param.keyword_only {
                kwargs.push((param.name.clone(), template));
            } else {
                args.push(template);
            }
        }
        Ok(Call {
            target: self.hold(target.unbind()),
            args,
            kwargs,
            unpack: op.schema().returns.len() > 1,
            outs,
        })
    }

    /// Returns the template of an argument of the graph.
    fn argument(&mut self, py: Python<'py>, graph: &Graph, arg: &Arg) -> PyResult<Template> {
        let torch = || py.import("torch");
        let object = match arg {
            Arg::Value(v) => return self.value(graph, *v),
            Arg::Values(all) => {
                let none = Template::Constant(self.hold(py.None()));
                let items = (all.iter()).map(|v| match v {
                    Some(v) => self.value(graph, *v),
                    None => Ok(none.clone()),
                });
                return Ok(Template::List(items.collect::<PyResult<_>>()?));
            }
            Arg::Int(e) => return self.int(py, graph, *e),
            Arg::Ints(all) => {
                let items = all.iter().map(|e| self.int(py, graph, *e));
                return Ok(Template::List(items.collect::<PyResult<_>>()?));
            }
            Arg::None => py.None(),
            Arg::Float(f) => f.into_pyobject(py)?.into_any().unbind(),
            Arg::Floats(all) => all.into_pyobject(py)?.into_any().unbind(),
            Arg::Complex(re, im) => pyo3::types::PyComplex::from_doubles(py, *re, *im)
                .into_any()
                .unbind(),
            Arg::Bool(b) => b.into_pyobject(py)?.to_owned().into_any().unbind(),
            Arg::Bools(all) => all.into_pyobject(py)?.into_any().unbind(),
            Arg::Str(s) => s.into_pyobject(py)?.into_any().unbind(),
            Arg::DType(d) => torch()?.getattr(d.torch_name())?.unbind(),
            Arg::MemoryFormat(f) => torch()?.getattr(format_name(*f))?.unbind(),
            Arg::Body(_) => {
                let e = Error::internal("a graph as an argument of a call that a pass made");
                return Err(raise(e));
            }
            Arg::Other(text) => {
                let what = format!("a call that a pass made has the argument `{text}`");
                return Err(raise(Error::internal(what)));
            }
        };
        Ok(Template::Constant(self.hold(object)))
    }

    /// Returns the slot of a value.
    fn value(&mut self, graph: &Graph, v: ValueId) -> PyResult<Template> {
        match graph.value(v).ty {
            Type::None => Err(raise(Error::internal(
                "a call reads a value without a type",
            ))),
            _ => Ok(Template::Slot(self.slot(v))),
        }
    }

    /// Returns an integer: a constant, or a line of the size arithmetic that the sequence
    /// determines.
    fn int(&mut self, py: Python<'py>, graph: &Graph, e: inrush_expr::Expr) -> PyResult<Template> {
        match (graph.exprs.as_int(e), self.ints.get(&e)) {
            (Some(i), _) => Ok(Template::Constant(
                self.hold(i.into_pyobject(py)?.into_any().unbind()),
            )),
            (None, Some(id)) => Ok(Template::Size(*id)),
            (None, None) => Err(raise(Error::internal(
                "a call that a pass made takes an integer that nothing determines",
            ))),
        }
    }
}

/// Returns PyTorch's name of a memory format.
fn format_name(f: MemoryFormat) -> &'static str {
    match f {
        MemoryFormat::Contiguous => "contiguous_format",
        MemoryFormat::ChannelsLast => "channels_last",
        MemoryFormat::ChannelsLast3d => "channels_last_3d",
        MemoryFormat::Preserve => "preserve_format",
    }
}
