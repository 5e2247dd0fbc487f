//! Stage import: the archive's graph becomes a [`Graph`], its calls bound to schemas.

use crate::schema::{
    self, Argument, OptionalTensor, SymBoolArgument, SymFloatArgument, SymInt, SymIntArgument,
};
use crate::{signature, srepr};
use inrush_aten::NamedArg;
use inrush_base::{Error, Result};
use inrush_expr::{Expr, Exprs, Sym, SymKind};
use inrush_graph::{
    Arg, Graph, Guard, LineId, MemoryFormat, Node, Relation, TensorType, Type, ValueId,
};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;

/// Submodules in submodules that are followed.
const MAX_DEPTH: usize = 32;

/// Names of one graph (a submodule has its own).
#[derive(Default)]
pub(crate) struct Scope<'a> {
    pub values: FxHashMap<&'a str, ValueId>,
    ints: FxHashMap<&'a str, Expr>,
    bools: FxHashMap<&'a str, Option<(Relation, Expr, Expr)>>,
    metas: Option<&'a BTreeMap<std::borrow::Cow<'a, str>, schema::TensorMeta<'a>>>,
}

pub(crate) struct Importer<'a> {
    pub graph: Graph,
    program: &'a schema::ExportedProgram<'a>,
    lines: FxHashMap<String, LineId>,
    unknown: BTreeMap<String, Unknown>,
    hints: BTreeMap<String, i64>,
}

#[derive(Default)]
struct Unknown {
    count: usize,
    lines: Vec<String>,
}

/// Converts a program; also gives the values that symbols had at export.
pub(crate) fn import<'a>(
    program: &'a schema::ExportedProgram<'a>,
    name: &str,
    weights: &crate::Weights,
) -> Result<(Graph, Vec<(String, i64)>)> {
    let mut im = Importer {
        graph: Graph {
            name: name.to_string(),
            ..Graph::default()
        },
        program,
        lines: FxHashMap::default(),
        unknown: BTreeMap::new(),
        hints: BTreeMap::new(),
    };
    let source = &program.graph_module.graph;
    im.declare_sizes(source)?;
    let mut scope = Scope {
        metas: Some(&source.tensor_values),
        ..Scope::default()
    };
    im.symbolic_values(source, &mut scope)?;
    signature::inputs(
        &mut im,
        &program.graph_module.signature,
        &mut scope,
        weights,
    )?;
    im.nodes(source, &mut scope, 0)?;
    im.refuse_unknown()?;
    signature::outputs(&mut im, &program.graph_module.signature, &scope)?;
    let specs = program
        .graph_module
        .module_call_graph
        .iter()
        .find(|m| m.fqn.is_empty());
    if let Some(s) = specs.and_then(|m| m.signature.as_ref()) {
        im.graph.in_tree = Some(s.in_spec.to_string());
        im.graph.out_tree = Some(s.out_spec.to_string());
    }
    Ok((im.graph, im.hints.into_iter().collect()))
}

impl<'a> Importer<'a> {
    /// Declares every symbol of the input sizes as a size, in order of appearance.
    fn declare_sizes(&mut self, source: &'a schema::Graph<'a>) -> Result<()> {
        let inputs: Vec<&str> = source
            .inputs
            .iter()
            .filter_map(|a| match a {
                Argument::AsTensor(n) => Some(&*n.name),
                Argument::AsSymInt(SymIntArgument::AsName(n)) => Some(&**n),
                _ => None,
            })
            .collect();
        for name in inputs {
            if let Some(meta) = source.tensor_values.get(name) {
                for s in meta.sizes.iter().chain(&meta.strides) {
                    self.size(s, true)?;
                }
            } else if let Some(s) = source.sym_int_values.get(name) {
                self.size(s, true)?;
            }
        }
        Ok(())
    }

    fn symbol(&self, name: &str, of_input: bool) -> Sym {
        let exprs = &self.graph.exprs;
        if let Some(s) = exprs.sym_by_name(name) {
            return s;
        }
        let range = self.program.range_constraints.get(name);
        let lower =
            range
                .and_then(|r| r.min_val)
                .unwrap_or(if of_input { 0 } else { i64::MIN + 1 });
        let upper = range.and_then(|r| r.max_val).unwrap_or(i64::MAX);
        if of_input {
            exprs.size_sym(name, lower.max(0), upper)
        } else {
            exprs.unbacked_sym(name, lower, upper)
        }
    }

    fn size(&mut self, s: &SymInt, of_input: bool) -> Result<Expr> {
        match s {
            SymInt::AsInt(v) => Ok(self.graph.exprs.int(*v)),
            SymInt::AsExpr(e) => {
                let expr = srepr::parse(&self.graph.exprs, &e.expr_str, &mut |name| {
                    self.symbol(name, of_input)
                })?;
                if let (Some(schema::Hint::AsInt(h)), Some(sym)) =
                    (&e.hint, self.graph.exprs.as_sym(expr))
                {
                    self.graph.exprs.set_hint(sym, *h);
                    self.hints.insert(self.graph.exprs.sym_info(sym).name, *h);
                }
                Ok(expr)
            }
        }
    }

    fn sizes(&mut self, list: &[SymInt]) -> Result<Vec<Expr>> {
        list.iter().map(|s| self.size(s, false)).collect()
    }

    fn symbolic_values(
        &mut self,
        source: &'a schema::Graph<'a>,
        scope: &mut Scope<'a>,
    ) -> Result<()> {
        for (name, value) in &source.sym_int_values {
            let e = self
                .size(value, false)
                .map_err(|e| e.at_node(name.to_string()))?;
            scope.ints.insert(name, e);
        }
        Ok(())
    }

    /// The type of a named tensor of this scope.
    pub fn tensor_type(&mut self, scope: &Scope<'a>, name: &str) -> Result<TensorType> {
        let meta = scope
            .metas
            .and_then(|m| m.get(name))
            .ok_or_else(|| Error::input(format!("no tensor metadata for `{name}`")))?;
        let dtype = schema::dtype(meta.dtype)
            .ok_or_else(|| Error::unsupported(format!("`{name}` has dtype code {}", meta.dtype)))?;
        if meta.layout != 7 {
            return Err(Error::unsupported(format!(
                "`{name}` is not a strided tensor (layout code {})",
                meta.layout
            )));
        }
        let (sizes, strides) = (self.sizes(&meta.sizes)?, self.sizes(&meta.strides)?);
        if sizes.len() != strides.len() {
            return Err(Error::input(format!(
                "`{name}` has {} sizes and {} strides",
                sizes.len(),
                strides.len()
            )));
        }
        if sizes
            .iter()
            .any(|s| self.graph.exprs.as_int(*s).is_some_and(|v| v < 0))
        {
            return Err(Error::input(format!("`{name}` has a negative size")));
        }
        Ok(TensorType {
            dtype,
            sizes,
            strides,
        })
    }

    pub fn define(&mut self, scope: &mut Scope<'a>, name: &'a str, ty: Type) -> Result<ValueId> {
        let id = self.graph.add_value(name, ty);
        if scope.values.insert(name, id).is_some() {
            return Err(Error::input(format!("two values are called `{name}`")));
        }
        Ok(id)
    }

    pub fn int_value(&self, scope: &Scope<'a>, name: &str) -> Result<Expr> {
        scope
            .ints
            .get(name)
            .copied()
            .ok_or_else(|| Error::input(format!("no symbolic integer `{name}`")))
    }

    fn nodes(
        &mut self,
        source: &'a schema::Graph<'a>,
        scope: &mut Scope<'a>,
        depth: usize,
    ) -> Result<()> {
        for n in &source.nodes {
            let line = n.metadata.get("stack_trace").and_then(|t| last_frame(t));
            self.node(n, scope, line.as_deref(), depth).map_err(|e| {
                let e = e
                    .in_op(op_name(&n.target))
                    .at_node(n.name.as_deref().unwrap_or("?").to_string());
                match &line {
                    Some(l) => e.at_line(l.clone()),
                    None => e,
                }
            })?;
        }
        Ok(())
    }

    fn node(
        &mut self,
        n: &'a schema::Node<'a>,
        scope: &mut Scope<'a>,
        line: Option<&str>,
        depth: usize,
    ) -> Result<()> {
        let op = op_name(&n.target);
        if self.symbolic_node(&op, n, scope)? {
            return Ok(());
        }
        if let Some(graph) = n.inputs.iter().find_map(|i| match &i.arg {
            Argument::AsGraph(g) => Some(g),
            _ => None,
        }) {
            return self.submodule(&op, n, graph, scope, depth);
        }
        let mut given = Vec::with_capacity(n.inputs.len());
        for i in &n.inputs {
            let arg = self
                .argument(&i.arg, scope)
                .map_err(|e| e.context(format!("argument `{}`", i.name)))?;
            given.push(NamedArg {
                name: i.name.to_string(),
                arg,
                keyword: i.kind == Some(2),
            });
        }
        let args = match inrush_aten::bind(&self.graph.exprs, &op, &given) {
            Some(args) => args?,
            None => {
                let u = self.unknown.entry(op.clone()).or_default();
                u.count += 1;
                if let Some(l) = line.filter(|_| u.lines.len() < 3)
                    && !u.lines.iter().any(|k| k == l)
                {
                    u.lines.push(l.to_string());
                }
                given.into_iter().map(|g| g.arg).collect()
            }
        };
        let mut outs = Vec::with_capacity(n.outputs.len());
        for o in &n.outputs {
            self.results(o, scope, &mut outs)?;
        }
        let line = line.map(|l| self.line(l));
        self.graph.nodes.push(Node {
            op,
            args,
            outs,
            line,
        });
        Ok(())
    }

    fn line(&mut self, text: &str) -> LineId {
        let lines = &mut self.graph.lines;
        *self.lines.entry(text.to_string()).or_insert_with(|| {
            lines.push(text.to_string());
            LineId::from_index(lines.len() - 1)
        })
    }

    fn results(
        &mut self,
        o: &'a Argument<'a>,
        scope: &mut Scope<'a>,
        outs: &mut Vec<ValueId>,
    ) -> Result<()> {
        match o {
            Argument::AsTensor(n) | Argument::AsOptionalTensor(OptionalTensor::AsTensor(n)) => {
                let ty = Type::Tensor(self.tensor_type(scope, &n.name)?);
                outs.push(self.define(scope, &n.name, ty)?);
            }
            Argument::AsTensors(list) => {
                for n in list {
                    let ty = Type::Tensor(self.tensor_type(scope, &n.name)?);
                    outs.push(self.define(scope, &n.name, ty)?);
                }
            }
            Argument::AsNone(_) | Argument::AsOptionalTensor(OptionalTensor::AsNone(_)) => {
                outs.push(self.graph.add_value("none", Type::None));
            }
            Argument::AsSymInt(SymIntArgument::AsName(n)) => {
                let e = self.int_value(scope, n)?;
                outs.push(self.define(scope, n, Type::Int(e))?);
            }
            Argument::AsSymFloat(SymFloatArgument::AsName(n)) => {
                outs.push(self.define(scope, n, Type::Float)?)
            }
            Argument::AsSymBool(SymBoolArgument::AsName(n)) => {
                outs.push(self.define(scope, n, Type::Bool)?)
            }
            other => {
                return Err(Error::unsupported(format!(
                    "a result of kind `{}`",
                    other.kind()
                )));
            }
        }
        Ok(())
    }

    /// Arithmetic on sizes whose values are known as expressions needs no node; asserts on them become guards.
    fn symbolic_node(
        &mut self,
        op: &str,
        n: &'a schema::Node<'a>,
        scope: &mut Scope<'a>,
    ) -> Result<bool> {
        if op == "aten._assert_scalar.default" {
            let Some(Argument::AsSymBool(SymBoolArgument::AsName(name))) =
                n.inputs.first().map(|i| &i.arg)
            else {
                return Ok(false);
            };
            let Some(Some((relation, left, right))) = scope.bools.get(&**name).copied() else {
                return Ok(false);
            };
            if self.backed(left) && self.backed(right) {
                let why = format!(
                    "the model's assertion on `{}` and `{}`",
                    self.graph.exprs.show(left),
                    self.graph.exprs.show(right)
                );
                self.graph.guards.push(Guard {
                    relation,
                    left,
                    right,
                    why,
                });
                return Ok(true);
            }
            return Ok(false);
        }
        match n.outputs.as_slice() {
            [Argument::AsSymInt(SymIntArgument::AsName(name))] => {
                let e = self.int_value(scope, name)?;
                Ok(self.backed(e))
            }
            [Argument::AsSymBool(SymBoolArgument::AsName(name))] => {
                let sides: Vec<Option<Expr>> = n
                    .inputs
                    .iter()
                    .map(|i| match &i.arg {
                        Argument::AsInt(v) | Argument::AsSymInt(SymIntArgument::AsInt(v)) => {
                            Some(self.graph.exprs.int(*v))
                        }
                        Argument::AsSymInt(SymIntArgument::AsName(n)) => {
                            scope.ints.get(&**n).copied()
                        }
                        _ => None,
                    })
                    .collect();
                let relation = match (op, sides.as_slice()) {
                    ("sym.eq", [Some(a), Some(b)]) => Some((Relation::Eq, *a, *b)),
                    ("sym.ne", [Some(a), Some(b)]) => Some((Relation::Ne, *a, *b)),
                    ("sym.le", [Some(a), Some(b)]) => Some((Relation::Le, *a, *b)),
                    ("sym.lt", [Some(a), Some(b)]) => Some((Relation::Lt, *a, *b)),
                    ("sym.ge", [Some(a), Some(b)]) => Some((Relation::Le, *b, *a)),
                    ("sym.gt", [Some(a), Some(b)]) => Some((Relation::Lt, *b, *a)),
                    _ => None,
                };
                let known = relation.is_some_and(|(_, a, b)| self.backed(a) && self.backed(b));
                scope.bools.insert(name, relation);
                Ok(known)
            }
            _ => Ok(false),
        }
    }

    /// Every symbol is a size of an input.
    fn backed(&self, e: Expr) -> bool {
        let exprs: &Exprs = &self.graph.exprs;
        exprs
            .free_syms(e)
            .iter()
            .all(|s| exprs.sym_info(*s).kind == SymKind::Size)
    }

    /// A call of a submodule that only sets a mode: its nodes join the graph.
    fn submodule(
        &mut self,
        op: &str,
        n: &'a schema::Node<'a>,
        g: &'a schema::GraphArgument<'a>,
        scope: &mut Scope<'a>,
        depth: usize,
    ) -> Result<()> {
        if !op.starts_with("higher_order.wrap_with_") {
            return Err(Error::unsupported(format!(
                "a higher-order operator (submodule `{}`)",
                g.name
            )));
        }
        if depth >= MAX_DEPTH {
            return Err(Error::input("submodules are nested too deeply"));
        }
        let after = n
            .inputs
            .iter()
            .position(|i| matches!(i.arg, Argument::AsGraph(_)))
            .map_or(0, |p| p + 1);
        let given: Vec<&Argument> = n.inputs[after..].iter().map(|i| &i.arg).collect();
        if given.len() != g.graph.inputs.len() {
            return Err(Error::input(
                "a submodule is called with another number of arguments than it has",
            ));
        }
        let mut inner = Scope {
            metas: Some(&g.graph.tensor_values),
            ..Scope::default()
        };
        self.symbolic_values(&g.graph, &mut inner)?;
        for (formal, actual) in g.graph.inputs.iter().zip(given) {
            if let (Argument::AsTensor(f), Argument::AsTensor(a)) = (formal, actual) {
                inner.values.insert(&f.name, self.named(scope, &a.name)?);
            }
        }
        self.nodes(&g.graph, &mut inner, depth + 1)?;
        // One output may stand for a list of all results.
        let names = |args: &'a [Argument<'a>]| -> Vec<&'a str> {
            args.iter()
                .flat_map(|a| match a {
                    Argument::AsTensor(n) => vec![&*n.name],
                    Argument::AsTensors(l) => l.iter().map(|n| &*n.name).collect(),
                    _ => Vec::new(),
                })
                .collect()
        };
        let (results, outputs) = (names(&g.graph.outputs), names(&n.outputs));
        if results.len() != outputs.len() {
            return Err(Error::input(
                "a submodule has another number of results than its call",
            ));
        }
        for (r, o) in results.into_iter().zip(outputs) {
            let v = self.named(&inner, r)?;
            if scope.values.insert(o, v).is_some() {
                return Err(Error::input(format!("two values are called `{o}`")));
            }
        }
        Ok(())
    }

    pub fn named(&self, scope: &Scope<'a>, name: &str) -> Result<ValueId> {
        scope
            .values
            .get(name)
            .copied()
            .ok_or_else(|| Error::input(format!("`{name}` is used before it is defined")))
    }

    fn sym_int(&self, a: &SymIntArgument, scope: &Scope<'a>) -> Result<Expr> {
        match a {
            SymIntArgument::AsInt(v) => Ok(self.graph.exprs.int(*v)),
            SymIntArgument::AsName(n) => self.int_value(scope, n),
        }
    }

    fn argument(&self, a: &Argument, scope: &Scope<'a>) -> Result<Arg> {
        let ex = &self.graph.exprs;
        let optional = |t: &OptionalTensor| match t {
            OptionalTensor::AsTensor(n) => self.named(scope, &n.name).map(Some),
            OptionalTensor::AsNone(_) => Ok(None),
        };
        Ok(match a {
            Argument::AsNone(_) => Arg::None,
            Argument::AsTensor(n) => Arg::Value(self.named(scope, &n.name)?),
            Argument::AsTensors(l) => Arg::Values(
                l.iter()
                    .map(|n| self.named(scope, &n.name).map(Some))
                    .collect::<Result<_>>()?,
            ),
            Argument::AsOptionalTensor(t) => optional(t)?.map_or(Arg::None, Arg::Value),
            Argument::AsOptionalTensors(l) => {
                Arg::Values(l.iter().map(optional).collect::<Result<_>>()?)
            }
            Argument::AsInt(v) => Arg::Int(ex.int(*v)),
            Argument::AsInts(l) => Arg::Ints(l.iter().map(|v| ex.int(*v)).collect()),
            Argument::AsSymInt(s) => match s {
                // An integer read from data is a value, not yet an expression.
                SymIntArgument::AsName(n) if scope.values.contains_key(&**n) => {
                    Arg::Value(self.named(scope, n)?)
                }
                s => Arg::Int(self.sym_int(s, scope)?),
            },
            Argument::AsSymInts(l) => Arg::Ints(
                l.iter()
                    .map(|s| self.sym_int(s, scope))
                    .collect::<Result<_>>()?,
            ),
            Argument::AsFloat(v) => Arg::Float(v.0),
            Argument::AsFloats(l) => Arg::Floats(l.iter().map(|v| v.0).collect()),
            Argument::AsSymFloat(SymFloatArgument::AsFloat(v)) => Arg::Float(v.0),
            Argument::AsSymFloat(SymFloatArgument::AsName(n)) => Arg::Value(self.named(scope, n)?),
            Argument::AsBool(b) | Argument::AsSymBool(SymBoolArgument::AsBool(b)) => Arg::Bool(*b),
            Argument::AsSymBool(SymBoolArgument::AsName(n)) => Arg::Value(self.named(scope, n)?),
            Argument::AsBools(l) => Arg::Bools(l.clone()),
            Argument::AsString(s) => Arg::Str(s.to_string()),
            Argument::AsScalarType(c) => Arg::DType(
                schema::dtype(*c).ok_or_else(|| Error::unsupported(format!("dtype code {c}")))?,
            ),
            Argument::AsMemoryFormat(c) => Arg::MemoryFormat(match c {
                1 => MemoryFormat::Contiguous,
                2 => MemoryFormat::ChannelsLast,
                3 => MemoryFormat::ChannelsLast3d,
                4 => MemoryFormat::Preserve,
                c => return Err(Error::unsupported(format!("memory format code {c}"))),
            }),
            Argument::AsLayout(c) => Arg::Other(format!("layout {c}")),
            Argument::AsDevice(d) => Arg::Other(d.kind.to_string()),
            other => {
                return Err(Error::unsupported(format!(
                    "an argument of kind `{}`",
                    other.kind()
                )));
            }
        })
    }

    /// All operators that no row describes, in one error.
    fn refuse_unknown(&self) -> Result<()> {
        if self.unknown.is_empty() {
            return Ok(());
        }
        let mut message = format!("{} operators are not supported:", self.unknown.len());
        for (op, u) in &self.unknown {
            message.push_str(&format!("\n  {op} ({} times)", u.count));
            for l in &u.lines {
                message.push_str(&format!("\n    at {l}"));
            }
        }
        Err(Error::unsupported(message))
    }
}

/// `torch.ops.aten.add.Tensor` -> `aten.add.Tensor`; `_operator.add`, `torch.sym_max` -> `sym.add`, `sym.max`.
fn op_name(target: &str) -> String {
    if let Some(rest) = target.strip_prefix("torch.ops.") {
        return rest.to_string();
    }
    for prefix in ["_operator.", "torch.sym_", "math."] {
        if let Some(rest) = target.strip_prefix(prefix) {
            return format!("sym.{}", rest.trim_matches('_'));
        }
    }
    target.to_string()
}

/// The innermost frame of a Python stack trace: `file.py:12 in forward`.
fn last_frame(trace: &str) -> Option<String> {
    let at = trace.rfind("File \"")?;
    let rest = &trace[at + 6..];
    let (file, rest) = rest.split_once("\", line ")?;
    let digits = rest
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(rest.len());
    let (line, rest) = rest.split_at(digits);
    let mut out = format!("{file}:{line}");
    let mut lines = rest.lines();
    if let Some(function) = lines
        .next()
        .and_then(|l| l.trim_start_matches(", in ").split_whitespace().next())
    {
        out.push_str(&format!(" in {function}"));
    }
    if let Some(code) = lines.next().map(str::trim).filter(|c| !c.is_empty()) {
        out.push_str(&format!(": {code}"));
    }
    Some(out)
}
