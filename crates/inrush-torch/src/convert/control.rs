//! Control flow: `cond`, `while_loop`, `scan` and `map`, whose graphs become bodies of the graph.
//!
//! ```text
//! cond        predicate, body, body, operands
//! while_loop  body (condition), body, carried, operands
//! scan        body, carried, sliced, operands
//! map_impl    body, sliced, operands
//! ```
//!
//! A body is a graph of its own, with its own expressions. Its inputs are those of the archive's graph, in order, then an integer
//! for each symbol that is known where the operator stands and that the body mentions: a caller finds these by name.

use super::symbols::{Meeting, unknown};
use super::{Bound, Importer, Scope};
use crate::arith::Relations;
use crate::schema::{self, Argument, SymBoolArgument, SymIntArgument};
use inrush_base::{DType, Error, Result};
use inrush_graph::{
    Arg, Graph, Input, InputKind, Node, Output, OutputKind, Relation, TensorType, Type, ValueId,
};
use rustc_hash::{FxHashMap, FxHashSet};

/// Returns true for higher-order operators that call their graphs once, never or often.
pub(super) fn is_control(op: &str) -> bool {
    matches!(op, "cond" | "while_loop" | "scan" | "map_impl")
}

impl<'a> Importer<'a, '_> {
    /// Converts a node of control flow with its graphs.
    pub(super) fn control(
        &mut self,
        scope: &mut Scope<'a>,
        n: &'a schema::Node<'a>,
        op: String,
    ) -> Result<()> {
        let mut args = Vec::with_capacity(n.inputs.len());
        for a in n.inputs.iter().filter(|a| a.kind != Some(schema::KEYWORD)) {
            args.push(match &a.arg {
                Argument::Graph(g) => {
                    let body =
                        (self.body(g)).map_err(|e| e.context(format!("graph `{}`", g.name)))?;
                    self.graph.bodies.push(body);
                    Arg::Body(self.graph.bodies.len() - 1)
                }
                Argument::SymBool(SymBoolArgument::Name(name)) => match scope.find(name)?.clone() {
                    Bound::Relations(r) => Arg::Value(self.condition(name, &r)),
                    _ => self.arg(scope, &a.arg)?,
                },
                // An empty list has no type of its own.
                Argument::Ints(v) if v.is_empty() => Arg::Values(Vec::new()),
                other => self.arg(scope, other)?,
            });
        }
        self.push(scope, n, op, args)
    }

    /// Returns a tensor that holds whether all relations hold.
    fn condition(&mut self, name: &str, relations: &Relations) -> ValueId {
        let mut all: Option<ValueId> = None;
        for (k, (relation, a, b)) in relations.iter().enumerate() {
            let [a, b] = [(a, "left"), (b, "right")].map(|(e, side)| {
                let args = vec![Arg::Int(*e), Arg::DType(DType::I64)];
                let name = format!("{name}.{side}{k}");
                self.scalar(&name, "aten.scalar_tensor.default", args, DType::I64)
            });
            let op = match relation {
                Relation::Eq => "aten.eq.Tensor",
                Relation::Ne => "aten.ne.Tensor",
                Relation::Le => "aten.le.Tensor",
                Relation::Lt => "aten.lt.Tensor",
            };
            let args = vec![a.into(), b.into()];
            let holds = self.scalar(&format!("{name}.{k}"), op, args, DType::Bool);
            all = Some(match all {
                None => holds,
                Some(before) => {
                    let args = vec![before.into(), holds.into()];
                    let name = format!("{name}.all{k}");
                    self.scalar(&name, "aten.logical_and.default", args, DType::Bool)
                }
            });
        }
        // A conjunction without parts is known to hold, and is a constant.
        all.unwrap_or_else(|| {
            let args = vec![Arg::Bool(true), Arg::DType(DType::Bool)];
            self.scalar(name, "aten.scalar_tensor.default", args, DType::Bool)
        })
    }

    /// Adds a node whose result is a tensor of no dimension.
    fn scalar(&mut self, name: &str, op: &str, args: Vec<Arg>, dtype: DType) -> ValueId {
        let ty = TensorType {
            dtype,
            sizes: Vec::new(),
            strides: Vec::new(),
        };
        let v = self.graph.add_value(name, Type::Tensor(ty));
        self.graph.nodes.push(Node {
            op: op.into(),
            args,
            outs: vec![v],
            line: None,
            made_for: None,
        });
        v
    }

    /// Converts the graph of a node. Operators that nothing describes are noted with the whole graph's.
    fn body(&mut self, body: &'a schema::GraphArgument<'a>) -> Result<Graph> {
        let mut inner = Importer {
            graph: Graph {
                name: format!("{}.{}", self.graph.name, body.name),
                ..Graph::default()
            },
            symbols: self.symbols.of_body(),
            bind: self.bind,
            operators: self.operators,
            traces: FxHashMap::default(),
            lines: FxHashMap::default(),
            unknown: std::mem::take(&mut self.unknown),
            notes: std::mem::take(&mut self.notes),
        };
        let given = inner.known_outside(&self.graph);
        let converted = inner.body_graph(body);
        self.unknown = inner.unknown;
        self.notes = inner.notes;
        converted?;
        let mut graph = inner.graph;
        pass_symbols(&mut graph, &given);
        Ok(graph)
    }

    /// Declares the symbols of the graph around a body. Returns their names.
    fn known_outside(&self, around: &Graph) -> Vec<String> {
        let mut names = Vec::new();
        for s in around.exprs.symbols() {
            let info = around.exprs.sym_info(s);
            let here = (self.graph.exprs).size_sym(&info.name, info.lower, info.upper);
            if let Some(hint) = info.hint {
                self.graph.exprs.set_hint(here, hint);
            }
            names.push(info.name);
        }
        names
    }

    fn body_graph(&mut self, body: &'a schema::GraphArgument<'a>) -> Result<()> {
        let mut scope = Scope::new(&body.graph, String::new())?;
        for (index, input) in body.graph.inputs.iter().enumerate() {
            let value = match input {
                Argument::Tensor(t) => self.define_tensor(&mut scope, &t.name)?,
                Argument::SymInt(SymIntArgument::Name(n)) => {
                    self.symbols.meeting = Meeting::InputInteger;
                    let e = self.described_int(&scope, n)?;
                    self.symbols.meeting = Meeting::InputSize;
                    scope.define(n, Bound::Int(e))?;
                    self.graph.add_value(n, Type::Int(e))
                }
                Argument::Unknown(k) => return Err(unknown("input", k)),
                _ => {
                    return Err(Error::unsupported(format!(
                        "input {index}: only tensors and integers are taken"
                    )));
                }
            };
            (self.graph.inputs).push(Input::new(value, InputKind::User { index }));
        }
        self.symbols.meeting = Meeting::Body;
        self.nodes(&mut scope)?;
        for (index, o) in body.graph.outputs.iter().enumerate() {
            let value =
                (self.user_output(&scope, o)).map_err(|e| e.context(format!("output {index}")))?;
            let kind = OutputKind::User { index };
            self.graph.outputs.push(Output { value, kind });
        }
        Ok(())
    }
}

/// Adds an integer input for each symbol of the graph around that the body mentions and takes no integer for.
fn pass_symbols(body: &mut Graph, around: &[String]) {
    let ex = &body.exprs;
    let mut used = Vec::new();
    for v in &body.values {
        match &v.ty {
            Type::Tensor(t) => {
                (t.sizes.iter().chain(&t.strides)).for_each(|e| ex.collect_syms(*e, &mut used));
            }
            Type::Int(e) => ex.collect_syms(*e, &mut used),
            _ => {}
        }
    }
    for a in body.nodes.iter().flat_map(|n| &n.args) {
        match a {
            Arg::Int(e) => ex.collect_syms(*e, &mut used),
            Arg::Ints(es) => es.iter().for_each(|e| ex.collect_syms(*e, &mut used)),
            _ => {}
        }
    }
    for g in &body.guards {
        ex.collect_syms(g.left, &mut used);
        ex.collect_syms(g.right, &mut used);
    }
    let integer = |g: &Graph, i: &Input| match g.value(i.value).ty {
        Type::Int(e) => Some(g.exprs.sym_info(g.exprs.as_sym(e)?).name),
        _ => None,
    };
    let mut names: FxHashSet<String> = used.into_iter().map(|s| ex.sym_info(s).name).collect();
    for b in &body.bodies {
        names.extend(b.inputs.iter().filter_map(|i| integer(b, i)));
    }
    for i in &body.inputs {
        if let Some(name) = integer(body, i) {
            names.remove(&name);
        }
    }
    // In the order in which the graph around has them.
    for name in around.iter().filter(|n| names.contains(*n)) {
        let Some(sym) = body.exprs.sym_by_name(name) else {
            continue;
        };
        let ty = Type::Int(body.exprs.sym_expr(sym));
        let value = body.add_value(&format!("size_{name}"), ty);
        let index = body.inputs.len();
        (body.inputs).push(Input::new(value, InputKind::User { index }));
    }
}
