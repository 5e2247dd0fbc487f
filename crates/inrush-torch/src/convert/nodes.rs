//! Nodes: calls of operators, arithmetic on sizes, subgraphs.
//!
//! Most nodes become one node of the graph, with arguments bound to the operator's schema. The
//! others:
//!
//! ```text
//! sym_size, _operator.mul, ..  result is described   dropped; the name means the expression
//! _operator.ge, ..             condition on sizes    dropped; the name means relations
//! aten._assert_scalar          of such a condition   a guard
//! higher_order.wrap_..         call of a graph       inlined, names prefixed
//! higher_order.cond, ..        control flow          a node that names bodies (control.rs)
//! mylib.scale                  declared by the user  a node like any other; the host has its function
//! no row                                             noted in `unknown`, converted on
//! ```
//!
//! An operator that reads an integer from data (`item`) stays: its node defines the unbacked
//! symbol. Arithmetic on that symbol is an expression like any other, and is dropped.

use super::args::optional;
use super::control::is_control;
use super::symbols::{known_at_call, unknown};
use super::{Bound, Importer, Scope};
use crate::schema::{
    self, Argument, KEYWORD, SymBool, SymBoolArgument, SymFloat, SymFloatArgument, SymIntArgument,
};
use inrush_aten::NamedArg;
use inrush_aten::bind::bind_schema;
use inrush_aten::props::{ASSERT_SCALAR, asserts, reads_metadata};
use inrush_base::{Error, Result};
use inrush_expr::Expr;
use inrush_graph::{Arg, LineId, Node, Type, ValueId};

impl<'a> Importer<'a, '_> {
    /// Converts all nodes of the scope's graph. An error names operator, node and Python line.
    pub(super) fn nodes(&mut self, scope: &mut Scope<'a>) -> Result<()> {
        let graph = scope.graph;
        for (k, n) in graph.nodes.iter().enumerate() {
            self.node(scope, n).map_err(|e| {
                let name = match (&n.name, result_name(n)) {
                    (Some(name), _) => name.to_string(),
                    (None, Some(name)) => name.to_string(),
                    (None, None) => format!("node {k}"),
                };
                let e = e.in_op(op_name(&n.target)).at_node(name);
                match n.line() {
                    Some(line) => e.at_line(line),
                    None => e,
                }
            })?;
        }
        Ok(())
    }

    /// Returns the node's Python line. Two memo tables, since many traces end in one line and
    /// many nodes have one trace.
    pub(super) fn line(&mut self, n: &'a schema::Node<'a>) -> Option<LineId> {
        let trace = n.metadata.stack_trace?;
        if let Some(id) = self.traces.get(trace.0) {
            return *id;
        }
        let id = trace.last_frame().map(|text| {
            *self.lines.entry(text).or_insert_with_key(|text| {
                self.graph.lines.push(text.clone());
                LineId::from_index(self.graph.lines.len() - 1)
            })
        });
        self.traces.insert(trace.0, id);
        id
    }

    /// Converts one node: drops it, makes a guard of it, inlines its graph, or appends it.
    fn node(&mut self, scope: &mut Scope<'a>, n: &'a schema::Node<'a>) -> Result<()> {
        let op = op_name(&n.target);
        if let Some(higher) = op.strip_prefix("higher_order.") {
            if inlined(higher) {
                return self.inline(scope, n);
            }
            if is_control(higher) {
                return self.control(scope, n, op);
            }
            // Results are defined, so that later nodes convert and their unknown operators are
            // found too.
            self.unknown.add(&op, n.line().as_deref());
            self.results(scope, n)?;
            return Ok(());
        }
        // The archive describes the integer results of arithmetic on sizes and of `sym_size` and
        // the like, so such a node need not run.
        let arithmetic = op.starts_with("sym.");
        if (arithmetic || reads_metadata(&op))
            && (self.known_integers(scope, n)? || self.known_condition(scope, n)?)
        {
            return Ok(());
        }
        // An assertion about data stays a node.
        if op == ASSERT_SCALAR && self.assertion(scope, n)? {
            return Ok(());
        }
        let mut given = Vec::with_capacity(n.inputs.len());
        for a in &n.inputs {
            let arg = self
                .arg(scope, &a.arg)
                .map_err(|e| e.context(format!("argument `{}`", a.name)))?;
            given.push(NamedArg {
                name: a.name.to_string(),
                arg,
                keyword: a.kind == Some(KEYWORD),
            });
        }
        let positional = |given: Vec<NamedArg>| given.into_iter().map(|a| a.arg).collect();
        let args = if arithmetic {
            positional(given)
        } else {
            match (self.bind)(&self.graph.exprs, &op, &given) {
                Some(bound) => bound?,
                None if let Some(o) = self.operators.iter().find(|o| o.name == op) => {
                    if self.graph.operator(&op).is_none() {
                        self.graph.operators.push(o.clone());
                        self.graph.operators.sort_by(|a, b| a.name.cmp(&b.name));
                    }
                    bind_schema(&self.graph.exprs, &o.schema, &given)?
                }
                // Kept with its arguments as written, if no row describes it.
                None if asserts(&op) => positional(given),
                None => {
                    self.unknown.add(&op, n.line().as_deref());
                    self.unknown.suggest(&op, n);
                    Vec::new()
                }
            }
        };
        self.push(scope, n, op, args)
    }

    /// Adds a call with the results of a node of the archive, at its Python line.
    pub(super) fn push(
        &mut self,
        scope: &mut Scope<'a>,
        n: &'a schema::Node<'a>,
        op: String,
        args: Vec<Arg>,
    ) -> Result<()> {
        let line = self.line(n);
        let outs = self.results(scope, n)?;
        self.graph.nodes.push(Node {
            op,
            args,
            outs,
            line,
            made_for: None,
        });
        Ok(())
    }

    /// Binds the results of a node whose results are all integers with known expressions; such a node is dropped.
    fn known_integers(&mut self, scope: &mut Scope<'a>, n: &'a schema::Node<'a>) -> Result<bool> {
        let integers = |a: &Argument| matches!(a, Argument::SymInt(_) | Argument::Int(_));
        if n.outputs.is_empty() || !n.outputs.iter().all(integers) {
            return Ok(false);
        }
        for out in &n.outputs {
            if let Argument::SymInt(SymIntArgument::Name(name)) = out {
                let e = self.described_int(scope, name)?;
                scope.define(name, Bound::Int(e))?;
            }
        }
        Ok(true)
    }

    /// Returns the expression that the archive gives for an integer.
    pub(super) fn described_int(&mut self, scope: &Scope<'a>, name: &str) -> Result<Expr> {
        let s = scope.ints.get(name).copied();
        let s = s.ok_or_else(|| {
            Error::input(format!(
                "the archive does not describe the integer `{name}`"
            ))
        })?;
        self.symbols.int(&self.graph.exprs, s)
    }

    /// Binds the result of a node that is a condition on sizes alone; such a node is dropped.
    fn known_condition(&mut self, scope: &mut Scope<'a>, n: &'a schema::Node<'a>) -> Result<bool> {
        let [Argument::SymBool(SymBoolArgument::Name(name))] = &n.outputs[..] else {
            return Ok(false);
        };
        let bound = match scope.bools.get(&**name).copied() {
            Some(SymBool::Bool(v)) => Bound::Bool(*v),
            Some(SymBool::Expr(e)) => match self.symbols.relations(&self.graph.exprs, e)? {
                // The condition holds for all sizes. The order of cases matters: an empty
                // conjunction is known at a call too.
                Some(r) if r.is_empty() => Bound::Bool(true),
                Some(r) if known_at_call(&self.graph.exprs, &r) => Bound::Relations(r),
                // A disjunction, a condition that never holds or one on data: the node computes
                // it.
                _ => return Ok(false),
            },
            Some(SymBool::Unknown(k)) => return Err(unknown("symbolic condition", k)),
            None => {
                return Err(Error::input(format!(
                    "the archive does not describe the condition `{name}`"
                )));
            }
        };
        scope.define(name, bound)?;
        Ok(true)
    }

    /// Turns an assertion about sizes into a guard; `false` when it is about data.
    /// The assertion's message becomes the guard's reason.
    fn assertion(&mut self, scope: &Scope<'a>, n: &'a schema::Node<'a>) -> Result<bool> {
        let Some(first) = n.inputs.first() else {
            return Ok(false);
        };
        let relations = match &first.arg {
            Argument::Bool(true) => return Ok(true),
            Argument::SymBool(SymBoolArgument::Bool(true)) => return Ok(true),
            Argument::SymBool(SymBoolArgument::Name(name)) => match scope.find(name)? {
                Bound::Bool(true) => return Ok(true),
                Bound::Relations(r) => r.clone(),
                _ => return Ok(false),
            },
            _ => return Ok(false),
        };
        let why = n.inputs.iter().find_map(|a| match &a.arg {
            Argument::Str(s) => Some(s.to_string()),
            _ => None,
        });
        self.demand(relations, &why.unwrap_or_else(|| "assertion".into()));
        Ok(true)
    }

    /// Defines the results of a node and gives their values in order; lists are flattened.
    pub(super) fn results(
        &mut self,
        scope: &mut Scope<'a>,
        n: &'a schema::Node<'a>,
    ) -> Result<Vec<ValueId>> {
        let mut outs = Vec::with_capacity(n.outputs.len());
        for out in &n.outputs {
            match out {
                Argument::Tensor(t) => outs.push(self.define_tensor(scope, &t.name)?),
                Argument::Tensors(v) => {
                    for t in v {
                        outs.push(self.define_tensor(scope, &t.name)?);
                    }
                }
                Argument::OptionalTensor(o) => outs.push(self.optional_result(scope, o)?),
                Argument::OptionalTensors(v) => {
                    for o in v {
                        outs.push(self.optional_result(scope, o)?);
                    }
                }
                // Results keep their positions: an absent one is a value of type none.
                Argument::None(_) => outs.push(self.graph.add_value("none", Type::None)),
                Argument::SymInt(SymIntArgument::Name(name)) => {
                    let e = self.described_int(scope, name)?;
                    let full = format!("{}{name}", scope.prefix);
                    outs.push(self.graph.add_value(&full, Type::Int(e)));
                    scope.define(name, Bound::Int(e))?;
                }
                Argument::SymInt(SymIntArgument::Int(v)) | Argument::Int(v) => {
                    let e = self.graph.exprs.int(*v);
                    outs.push(self.graph.add_value("constant", Type::Int(e)));
                }
                Argument::SymBool(SymBoolArgument::Name(name)) => {
                    outs.push(self.define_value(scope, name, Type::Bool)?);
                }
                Argument::SymFloat(SymFloatArgument::Name(name)) => {
                    let constant = match scope.floats.get(&**name) {
                        Some(SymFloat::Float(v)) => Some(v.0),
                        _ => None,
                    };
                    match constant {
                        Some(v) => {
                            outs.push(self.graph.add_value(name, Type::Float));
                            scope.define(name, Bound::Float(v))?;
                        }
                        None => outs.push(self.define_value(scope, name, Type::Float)?),
                    }
                }
                Argument::Unknown(k) => return Err(unknown("result", k)),
                _ => return Err(Error::unsupported("a result of this kind")),
            }
        }
        Ok(outs)
    }

    /// Defines a result that may be absent; `as_none` is one that the operator does not give.
    fn optional_result(
        &mut self,
        scope: &mut Scope<'a>,
        o: &'a schema::OptionalTensor<'a>,
    ) -> Result<ValueId> {
        match optional(o)? {
            Some(t) => self.define_tensor(scope, &t.name),
            None => Ok(self.graph.add_value("none", Type::None)),
        }
    }

    /// Replaces a call of `wrap_…(…, graph, operands…)` by the nodes of the graph.
    fn inline(&mut self, scope: &mut Scope<'a>, n: &'a schema::Node<'a>) -> Result<()> {
        if op_name(&n.target) == "higher_order.wrap_with_autocast" {
            // Its casts are not in the graph: where they matter, results disagree with what their operators give.
            let note = "an autocast region was inlined; its casts are not applied".to_string();
            if !self.notes.contains(&note) {
                self.notes.push(note);
            }
        }
        // Arguments before the graph configure the wrapper (gradient mode, autocast) and are
        // ignored.
        let at = n
            .inputs
            .iter()
            .position(|a| matches!(a.arg, Argument::Graph(_)));
        let at = at.ok_or_else(|| Error::input("no graph to call"))?;
        let Argument::Graph(body) = &n.inputs[at].arg else {
            return Err(Error::internal("the argument changed"));
        };
        let operands: Vec<_> = (n.inputs[at + 1..].iter())
            .filter(|a| a.kind != Some(KEYWORD))
            .collect();
        if operands.len() != body.graph.inputs.len() {
            return Err(Error::input(format!(
                "the graph `{}` takes {} arguments, not {}",
                body.name,
                body.graph.inputs.len(),
                operands.len()
            )));
        }
        // The node's results are unique in the graph, unlike the names of graphs.
        let unique = n
            .name
            .as_deref()
            .or_else(|| result_name(n))
            .unwrap_or(&body.name);
        let prefix = format!("{}{unique}.", scope.prefix);
        let mut inner = Scope::new(&body.graph, prefix)?;
        for (input, operand) in body.graph.inputs.iter().zip(operands) {
            // An input of the graph that is a constant has no name to bind.
            let Some(name) = name_of(input) else {
                continue;
            };
            let bound = match name_of(&operand.arg) {
                Some(outer) => scope.find(outer)?.clone(),
                None => match self.arg(scope, &operand.arg)? {
                    Arg::Int(e) => Bound::Int(e),
                    Arg::Float(v) => Bound::Float(v),
                    Arg::Bool(v) => Bound::Bool(v),
                    Arg::None => Bound::Nothing,
                    _ => {
                        return Err(Error::unsupported(format!(
                            "a list as the argument `{name}` of the graph `{}`",
                            body.name
                        )));
                    }
                },
            };
            inner.define(name, bound)?;
        }
        // Depth of nesting is that of the JSON, which its reader bounds.
        self.nodes(&mut inner)?;
        let results = names_of(&n.outputs)?;
        let values = names_of(&body.graph.outputs)?;
        if results.len() != values.len() {
            return Err(Error::input(format!(
                "the graph `{}` has {} results, not {}",
                body.name,
                values.len(),
                results.len()
            )));
        }
        for (result, value) in results.into_iter().zip(values) {
            if let (Some(result), Some(value)) = (result, value) {
                let bound = inner.find(value)?.clone();
                scope.define(result, bound)?;
            }
        }
        Ok(())
    }

    /// Returns a value that holds `e`, defined by a node.
    pub(super) fn int_value(&mut self, e: Expr) -> ValueId {
        let v = self
            .graph
            .add_value(&format!("int_{}", self.graph.nodes.len()), Type::Int(e));
        self.graph.nodes.push(Node {
            op: "sym.int".into(),
            args: vec![Arg::Int(e)],
            outs: vec![v],
            line: None,
            made_for: None,
        });
        v
    }
}

/// Returns the name of a call's target: `torch.ops.aten.add.Tensor` becomes `aten.add.Tensor`, and
/// Python's operators and math functions on sizes become names such as `sym.floordiv`.
fn op_name(target: &str) -> String {
    if let Some(op) = target.strip_prefix("torch.ops.") {
        return op.to_string();
    }
    for prefix in [
        "_operator.",
        "math.",
        "torch.sym_",
        "torch._sym_",
        "builtins.",
    ] {
        if let Some(op) = target.strip_prefix(prefix) {
            return format!("sym.{}", op.trim_matches('_'));
        }
    }
    target.to_string()
}

/// Returns true for higher-order operators that only call their graph.
fn inlined(op: &str) -> bool {
    matches!(
        op,
        "wrap"
            | "wrap_with_set_grad_enabled"
            | "wrap_with_autocast"
            | "wrap_activation_checkpoint"
            | "tag_activation_checkpoint"
            | "invoke_subgraph"
    )
}

/// Returns the name of a single tensor or symbolic scalar; `None` for constants and lists.
fn name_of<'a>(a: &'a Argument<'a>) -> Option<&'a str> {
    match a {
        Argument::Tensor(t) => Some(&t.name),
        Argument::SymInt(SymIntArgument::Name(n)) => Some(n),
        Argument::SymBool(SymBoolArgument::Name(n)) => Some(n),
        Argument::SymFloat(SymFloatArgument::Name(n)) => Some(n),
        _ => None,
    }
}

/// Returns the names of results, lists flattened; `None` for those without one.
fn names_of<'a>(args: &'a [Argument<'a>]) -> Result<Vec<Option<&'a str>>> {
    let mut out = Vec::new();
    for a in args {
        match a {
            Argument::Tensors(v) => out.extend(v.iter().map(|t| Some(&*t.name))),
            Argument::OptionalTensors(v) => {
                for o in v {
                    out.push(optional(o)?.map(|t| &*t.name));
                }
            }
            Argument::OptionalTensor(o) => out.push(optional(o)?.map(|t| &*t.name)),
            Argument::Unknown(k) => return Err(unknown("result", k)),
            other => out.push(name_of(other)),
        }
    }
    Ok(out)
}

/// Returns the name of the node's first result that has one.
fn result_name<'a>(n: &'a schema::Node<'a>) -> Option<&'a str> {
    names_of(&n.outputs).ok()?.into_iter().flatten().next()
}
