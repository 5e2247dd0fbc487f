//! Calls that no kernel does: functions of the library, control flow. What they take are slots and sizes, for executors of any
//! device.

use super::control::Control;
use crate::partition::Held;
use crate::{Call, Slots};
use inrush_aten::dynamic::{self, Dynamic};
use inrush_base::schema::{Kind, Operator};
use inrush_base::{Error, Result, Scalar};
use inrush_expr::Expr;
use inrush_graph::{Arg, Graph, Guard, Type, ValueId};
use inrush_program::host::Layout;
use inrush_program::parts::{self, Argument, Custom, Param, Work};
use inrush_program::{Dt, Num, SizeId};
use rustc_hash::FxHashMap;

/// Compiles graphs that control flow calls.
pub trait Bodies {
    /// A compiled body.
    type Program;

    /// Compiles a body. Its inputs are the user's, and weights of the whole program that it holds itself.
    ///
    /// # Errors
    /// Those of the compiler; an unsupported error for a body that writes its inputs or buffers.
    fn body(&mut self, graph: Graph) -> Result<Self::Program>;
}

/// The calls of a sequence in the making.
pub struct Calls<'a> {
    pub(super) graph: &'a Graph,
    pub slots: Slots,
    /// Lines of integers that calls take.
    ints: FxHashMap<Expr, SizeId>,
}

impl<'a> Calls<'a> {
    /// Begins with the integers that the sequence was asked for: [`super::integers`].
    pub fn new(graph: &'a Graph, ints: Vec<(Expr, SizeId)>) -> Calls<'a> {
        Calls {
            graph,
            slots: Slots::default(),
            ints: ints.into_iter().collect(),
        }
    }

    /// Returns the work of a call; `None` for an operator that is neither control flow, nor the user's, nor a function that
    /// allocates its results.
    /// Bodies hold the weights in `held` themselves.
    ///
    /// # Errors
    /// Those of bodies; an unsupported error for arguments of a form that is not known, with the node.
    pub fn work<B: Bodies>(
        &mut self,
        c: &Call,
        held: &Held,
        bodies: &mut B,
    ) -> Result<Option<Work<B::Program>>> {
        if dynamic::is_control(&c.op) {
            let node = &self.graph.nodes[c.node.index()];
            let origin = self.origin(c);
            let mut control = Control { held, bodies };
            let work = control.work(self, c, origin);
            return work.map(Some).map_err(|e| self.graph.locate(node, e));
        }
        if let Some(o) = self.graph.operator(&c.op) {
            let node = &self.graph.nodes[c.node.index()];
            let custom = self.custom(c, o).map_err(|e| self.graph.locate(node, e))?;
            return Ok(Some(Work::Custom(custom)));
        }
        match dynamic::find(&c.op).filter(|d| !d.function.is_empty()) {
            Some(d) => Ok(Some(Work::Dynamic(self.dynamic(c, d)?))),
            None => Ok(None),
        }
    }

    /// Returns the call of an operator of the user's.
    fn custom(&mut self, c: &Call, operator: &Operator) -> Result<Custom> {
        let graph = self.graph;
        let node = &graph.nodes[c.node.index()];
        let params = &operator.schema.params;
        let args = (params.iter().zip(&node.args))
            .map(|(p, a)| {
                let argument = self.custom_argument(p.kind, a);
                argument.map_err(|e| e.context(format!("the argument `{}`", p.name)))
            })
            .collect::<Result<Vec<_>>>()?;
        let written = params.iter().zip(&args);
        let written = written.filter(|(p, a)| p.written && matches!(a, Argument::Tensor(_)));
        let count = node.outs.len().checked_sub(written.count());
        let results = count.and_then(|n| node.outs.get(..n));
        let results = (results
            .ok_or_else(|| Error::internal("a call without results"))?
            .iter())
        .map(|v| {
            let t = graph.tensor(*v)?;
            if graph.exprs.overlaps(&t.sizes, &t.strides) {
                return Err(Error::unsupported(
                    "a custom operator whose result has several elements in one place",
                ));
            }
            self.layout(*v)
        })
        .collect::<Result<_>>()?;
        Ok(Custom {
            operator: operator.to_string(),
            args,
            outs: self.slots.all(&node.outs),
            results,
            origin: self.origin(c),
        })
    }

    fn custom_argument(&mut self, kind: Kind, arg: &Arg) -> Result<Argument> {
        let graph = self.graph;
        let tensor = |v: &ValueId| match graph.value(*v).ty {
            Type::Tensor(_) => Ok(*v),
            _ => Err(Error::unsupported("a number that is read from data")),
        };
        let num = |s: Scalar| Argument::Num(s.into());
        Ok(match arg {
            Arg::None => Argument::None,
            Arg::Value(v) => Argument::Tensor(self.slots.of(tensor(v)?)),
            Arg::Values(all) => Argument::Tensors(
                (all.iter())
                    .map(|v| {
                        v.as_ref()
                            .map(|v| Ok(self.slots.of(tensor(v)?)))
                            .transpose()
                    })
                    .collect::<Result<_>>()?,
            ),
            Arg::Int(_) | Arg::Float(_) | Arg::Bool(_) if kind == Kind::Tensor => {
                return Err(Error::unsupported("a number in place of a tensor"));
            }
            Arg::Int(e) => match graph.exprs.as_int(*e) {
                Some(v) => num(Scalar::Int(v)),
                None => Argument::Size(self.int(*e)?),
            },
            Arg::Ints(all) => {
                let known: Option<Vec<i64>> = all.iter().map(|e| graph.exprs.as_int(*e)).collect();
                match known {
                    Some(all) => Argument::Nums(all.into_iter().map(Num::Int).collect()),
                    None => {
                        Argument::Sizes(all.iter().map(|e| self.int(*e)).collect::<Result<_>>()?)
                    }
                }
            }
            Arg::Float(v) => num(Scalar::Float(*v)),
            Arg::Floats(all) => {
                Argument::Nums(all.iter().map(|v| Scalar::Float(*v).into()).collect())
            }
            Arg::Bool(v) => num(Scalar::Bool(*v)),
            Arg::Bools(all) => Argument::Nums(all.iter().map(|v| Num::Bool(*v)).collect()),
            Arg::Str(s) => Argument::Text(s.clone()),
            Arg::DType(d) => Argument::DType(Dt(*d)),
            Arg::Complex(..) | Arg::MemoryFormat(_) | Arg::Body(_) | Arg::Other(_) => {
                return Err(Error::unsupported(format!("{arg:?}")));
            }
        })
    }

    /// Returns the layout of a tensor that a call makes.
    pub(super) fn layout(&self, v: ValueId) -> Result<Layout> {
        let t = self.graph.tensor(v)?;
        let all = |es: &[Expr]| es.iter().map(|e| self.int(*e)).collect::<Result<_>>();
        Ok(Layout {
            dtype: Dt(t.dtype),
            sizes: all(&t.sizes)?,
            strides: all(&t.strides)?,
        })
    }

    /// Returns a condition on sizes; `None` where a side is nothing that a call knows.
    pub fn guard(&self, g: &Guard) -> Option<inrush_program::Guard> {
        Some(inrush_program::Guard {
            relation: crate::wrap::relation(g.relation),
            left: *self.ints.get(&g.left)?,
            right: *self.ints.get(&g.right)?,
            why: g.why.clone(),
        })
    }

    /// Returns the call of a function of the library.
    fn dynamic(&mut self, c: &Call, d: &Dynamic) -> Result<parts::Dynamic> {
        let graph = self.graph;
        let node = &graph.nodes[c.node.index()];
        let schema =
            dynamic::schema(&c.op).ok_or_else(|| Error::internal("an operator is gone"))?;
        let is_tensor = |v: &ValueId| matches!(graph.value(*v).ty, Type::Tensor(_));
        let (mut inputs, mut params) = (Vec::new(), Vec::new());
        for (p, arg) in schema.params.iter().zip(&node.args) {
            if d.params.contains(&p.name.as_str()) {
                params.push((
                    p.name.clone(),
                    self.param(arg).map_err(|e| graph.locate(node, e))?,
                ));
                continue;
            }
            match arg {
                Arg::Value(v) if is_tensor(v) => inputs.push(Some(self.slots.of(*v))),
                Arg::None => inputs.push(None),
                _ => {}
            }
        }
        // In the order of the function.
        let params = (d.params.iter())
            .filter_map(|name| {
                let at = params.iter().position(|(n, _)| n == name)?;
                Some(params[at].1.clone())
            })
            .collect();
        Ok(parts::Dynamic {
            function: d.function.to_string(),
            params,
            inputs,
            outs: self.slots.all(&c.outs),
            origin: self.origin(c),
        })
    }

    /// Names a call and its Python line, for errors.
    pub fn origin(&self, c: &Call) -> String {
        let node = &self.graph.nodes[c.node.index()];
        let line = (self.graph.line_of(node)).map_or(String::new(), |l| format!("\n  at {l}"));
        let name = (node.outs.first()).map_or("", |v| self.graph.value(*v).name.as_str());
        format!(
            "node `{}` ({}){line}",
            inrush_graph::source_name(name),
            c.op
        )
    }

    /// Returns the line of an integer that a call takes.
    pub fn int(&self, e: Expr) -> Result<SizeId> {
        let missing = || {
            Error::unsupported(format!(
                "the number {}, which is not known here",
                self.graph.exprs.show(e)
            ))
        };
        self.ints.get(&e).copied().ok_or_else(missing)
    }

    fn param(&self, arg: &Arg) -> Result<Param> {
        Ok(match arg {
            Arg::Int(e) => match self.graph.exprs.as_int(*e) {
                Some(v) => Param::Num(Num::Int(v)),
                None => Param::Size(self.int(*e)?),
            },
            Arg::Bool(b) => Param::Num(Num::Bool(*b)),
            Arg::Float(v) => Param::Num(inrush_base::Scalar::Float(*v).into()),
            Arg::None => Param::None,
            other => {
                return Err(Error::unsupported(format!("the argument {other:?}")));
            }
        })
    }
}
