//! Steps of control flow: bodies are compiled as programs of their own.
//!
//! ```text
//! z = cond(p, then, otherwise, [y, w])      then(y) and otherwise(y) are programs that hold the weight `w`
//! ```
//!
//! A weight that no call writes is a weight of the bodies that take it, packed and folded at load; others are arguments.

use super::calls::{Bodies, Calls};
use crate::Call;
use crate::partition::Held;
use inrush_aten::dynamic::is_control;
use inrush_aten::user_kernel;
use inrush_base::{Error, Result};
use inrush_expr::Expr;
use inrush_graph::{Arg, Graph, Input, InputKind, Type, ValueId};
use inrush_program::parts::{Body, Cond, Operand, Scan, While, Work};

/// Returns the integers that calls take: parameters of functions, operands of bodies, sizes of what scans stack and custom operators
/// give, numbers and grids of users' Triton kernels, sides of conditions.
pub fn integers(graph: &Graph) -> Vec<Expr> {
    let mut all = Vec::new();
    for node in &graph.nodes {
        let control = is_control(&node.op) || graph.operator(&node.op).is_some();
        let launch = node.op == user_kernel::OPERATOR;
        if inrush_aten::dynamic::find(&node.op).is_none() && !control && !launch {
            continue;
        }
        for a in &node.args {
            match a {
                Arg::Int(e) => all.push(*e),
                Arg::Ints(es) => all.extend(es),
                Arg::Body(k) => {
                    let body = &graph.bodies[*k];
                    all.extend(body.inputs.iter().filter_map(|i| passed(graph, body, i)));
                }
                _ => {}
            }
        }
        let values = node.outs.iter().copied().chain(node.reads());
        for v in values.filter(|_| control) {
            match &graph.value(v).ty {
                Type::Tensor(t) => all.extend(t.sizes.iter().chain(&t.strides)),
                Type::Int(e) => all.push(*e),
                _ => {}
            }
        }
    }
    all.extend(graph.guards.iter().flat_map(|g| [g.left, g.right]));
    all.sort();
    all.dedup();
    all
}

/// Returns the symbol of the graph around a body whose name an integer input of the body has.
fn passed(graph: &Graph, body: &Graph, input: &Input) -> Option<Expr> {
    let Type::Int(e) = body.value(input.value).ty else {
        return None;
    };
    let name = body.exprs.sym_info(body.exprs.as_sym(e)?).name;
    Some(graph.exprs.sym_expr(graph.exprs.sym_by_name(&name)?))
}

/// A value that a body is given.
#[derive(Copy, Clone)]
enum Given {
    Value(ValueId),
    Int(Expr),
    /// By the loop.
    Loop(Operand),
}

/// Returns the entries of a list of operands.
fn given(arg: &Arg) -> Result<Vec<Given>> {
    match arg {
        Arg::Values(all) => (all.iter())
            .map(|v| {
                v.map(Given::Value)
                    .ok_or_else(|| Error::unsupported("a tensor that is left out"))
            })
            .collect(),
        Arg::Ints(all) => Ok(all.iter().map(|e| Given::Int(*e)).collect()),
        _ => Err(Error::unsupported("operands that are no list")),
    }
}

/// The compilation of a graph's control flow.
pub(super) struct Control<'a, B> {
    /// Weights that bodies hold themselves.
    pub held: &'a Held,
    pub bodies: &'a mut B,
}

impl<B: Bodies> Control<'_, B> {
    /// Returns the work of a node.
    pub fn work(
        &mut self,
        l: &mut Calls<'_>,
        c: &Call,
        origin: String,
    ) -> Result<Work<B::Program>> {
        let node = &l.graph.nodes[c.node.index()];
        match (node.op.as_str(), &node.args[..]) {
            ("higher_order.cond", [predicate, Arg::Body(then), Arg::Body(otherwise), operands]) => {
                let operands = given(operands)?;
                let branch = match predicate {
                    Arg::Value(v) => *v,
                    _ => return Err(Error::unsupported("a choice that is known")),
                };
                Ok(Work::Cond(Cond {
                    predicate: l.slots.of(branch),
                    then: self.body(l, *then, &operands)?,
                    otherwise: self.body(l, *otherwise, &operands)?,
                    outs: l.slots.all(&c.outs),
                    origin,
                }))
            }
            (
                "higher_order.while_loop",
                [Arg::Body(condition), Arg::Body(body), carried, operands],
            ) => {
                let carried = given(carried)?;
                let mut all = handed(Operand::Carried, carried.len());
                all.extend(given(operands)?);
                Ok(Work::While(While {
                    condition: self.body(l, *condition, &all)?,
                    body: self.body(l, *body, &all)?,
                    carried: self.operands(l, &carried)?,
                    outs: l.slots.all(&c.outs),
                    origin,
                }))
            }
            ("higher_order.scan", [Arg::Body(body), carried, sliced, operands]) => {
                let lists = (given(carried)?, given(sliced)?, given(operands)?);
                self.scan(l, *body, lists, c, origin)
            }
            ("higher_order.map_impl", [Arg::Body(body), sliced, operands]) => {
                let lists = (Vec::new(), given(sliced)?, given(operands)?);
                self.scan(l, *body, lists, c, origin)
            }
            _ => Err(Error::unsupported("arguments of this form")),
        }
    }

    fn scan(
        &mut self,
        l: &mut Calls<'_>,
        body: usize,
        (carried, sliced, operands): (Vec<Given>, Vec<Given>, Vec<Given>),
        c: &Call,
        origin: String,
    ) -> Result<Work<B::Program>> {
        let mut all = handed(Operand::Carried, carried.len());
        all.extend(handed(Operand::Slice, sliced.len()));
        all.extend(operands);
        let tensors = (sliced.iter())
            .map(|g| match g {
                Given::Value(v) => Ok(l.slots.of(*v)),
                _ => Err(Error::unsupported("a scan over numbers")),
            })
            .collect::<Result<_>>()?;
        let stacked = (c.outs.iter().skip(carried.len()))
            .map(|v| l.layout(*v))
            .collect::<Result<_>>()?;
        Ok(Work::Scan(Scan {
            body: self.body(l, body, &all)?,
            carried: self.operands(l, &carried)?,
            sliced: tensors,
            outs: l.slots.all(&c.outs),
            stacked,
            origin,
        }))
    }

    fn operands(&self, l: &mut Calls<'_>, given: &[Given]) -> Result<Vec<Operand>> {
        given.iter().map(|g| self.operand(l, *g)).collect()
    }

    fn operand(&self, l: &mut Calls<'_>, given: Given) -> Result<Operand> {
        Ok(match given {
            Given::Value(v) => match l.graph.value(v).ty {
                Type::Int(e) => Operand::Size(l.int(e)?),
                _ => Operand::Slot(l.slots.of(v)),
            },
            Given::Int(e) => Operand::Size(l.int(e)?),
            Given::Loop(o) => o,
        })
    }

    /// Compiles a body for its operands. Integers that it takes after them are symbols of the graph around.
    fn body(
        &mut self,
        l: &mut Calls<'_>,
        body: usize,
        given: &[Given],
    ) -> Result<Body<B::Program>> {
        let mut graph = l.graph.bodies[body].clone();
        if let Some(n) = (graph.nodes.iter()).find(|n| inrush_aten::random::draws(n)) {
            let e = Error::unsupported("random numbers within control flow");
            return Err(graph.locate(n, e));
        }
        let mut inputs = Vec::new();
        for at in 0..graph.inputs.len() {
            let InputKind::User { index } = graph.inputs[at].kind else {
                return Err(Error::internal("a body has weights"));
            };
            let operand = match given.get(index) {
                Some(Given::Value(v)) if self.held.contains_key(v) => {
                    let weight = &self.held[v];
                    graph.inputs[at].kind = weight.kind.clone();
                    graph.inputs[at].begin = weight.begin;
                    continue;
                }
                Some(g) => self.operand(l, *g)?,
                None => {
                    let e = passed(l.graph, &graph, &graph.inputs[at]);
                    let missing = || Error::input("a body takes more than it is given");
                    Operand::Size(l.int(e.ok_or_else(missing)?)?)
                }
            };
            graph.inputs[at].kind = InputKind::User {
                index: inputs.len(),
            };
            inputs.push(operand);
        }
        // Weights come first, as importers have them.
        (graph.inputs).sort_by_key(|i| matches!(i.kind, InputKind::User { .. }));
        let program = self.bodies.body(graph)?;
        Ok(Body { program, inputs })
    }
}

/// Returns the values that a loop hands to its body.
fn handed(operand: impl Fn(usize) -> Operand, count: usize) -> Vec<Given> {
    (0..count).map(|k| Given::Loop(operand(k))).collect()
}
