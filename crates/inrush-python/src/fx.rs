//! FX graphs of ATen operators, as AOTAutograd hands them to a compiler, to [`Graph`].
//!
//! One pass over the FX nodes, in their order. Each node becomes a [`Source`]: a value of the
//! graph, or something that is known without one. Only operators become nodes of the graph:
//!
//! ```text
//! FX                                        Graph
//! x = placeholder                           input x: f32[s0, 4]
//! n = sym_size.int(x, 0)                    (none: the source of n is the expression s0)
//! p = aten.max.dim(x, 1)                    p.0, p.1 = aten.max.dim(x, 1, false)
//! v = operator.getitem(p, 0)                (none: the source of v is p.0, which is renamed v)
//! ```
//!
//! Values that the graph cannot hold do not stop the import. A tensor of another device, a complex
//! or sparse one becomes an opaque value; a call with an unusual argument is marked with the
//! reason, and later made through its FX node. The side tables of [`Imported`] keep the way back to
//! FX.
//!
//! Each attribute of a Python object costs a call into the interpreter. So what repeats is looked
//! up by identity: targets, symbols, lines of stack traces.

mod args;
mod device;
mod host_scalars;
pub mod kernels;
mod results;
mod symbols;
mod target;
mod types;

use crate::compile::special::Near;
use crate::errors::raise;
pub use device::device;
use host_scalars::HostScalars;
use inrush_aten::{NamedArg, bind, random};
use inrush_base::{Error, Scalar};
use inrush_compile::may_write;
use inrush_expr::{Expr, SymKind};
use inrush_graph::{
    Arg, Graph, Input, InputKind, LineId, Node, Output, OutputKind, OutputValue, Type, ValueId,
};
use inrush_host::program::Device;
use inrush_torch::last_frame;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple};
use rustc_hash::FxHashMap;
use symbols::Symbols;
use target::{Role, Target};
use types::Names;

/// Returns true if an expression of sizes represents a SymInt: see [`Symbols::expressible`].
pub fn expressible(size: &Bound<'_, PyAny>) -> PyResult<bool> {
    Symbols::expressible(size)
}

/// A graph and what it does not hold.
pub struct Imported {
    pub graph: Graph,
    /// The FX node that each graph node was imported from, in order; `None` for those that import made (`sym.int`).
    pub nodes: Vec<Option<Py<PyAny>>>,
    /// For each graph node why it has to be called through its FX node even where a row describes its operator: an
    /// argument that the graph cannot hold.
    pub called: Vec<Option<String>>,
    /// True, by graph node, if its schema shows that it writes nothing although its name does not.
    pub pure: Vec<bool>,
    /// Attributes of the module that the graph takes as inputs (`InputKind::Constant`), after the placeholders.
    pub constants: Vec<Py<PyAny>>,
    /// The value of each FX node, by its address ([`key`]).
    pub sources: FxHashMap<usize, Source>,
}

/// The value of an FX node.
pub enum Source {
    /// A value of the graph: an input, or a result of a node.
    Value(ValueId),
    /// An integer that is known from sizes and integer inputs, or is a symbol that a node or a tensor defines.
    Int(Expr),
    /// A float whose value is part of the trace.
    Float(f64),
    Bool(bool),
    None,
    /// Results of an operator that returns several.
    List(Vec<Source>),
    /// An attribute of the module that is no tensor: a subgraph, an object.
    Object(Py<PyAny>),
}

impl Source {
    /// Appends every integer expression in it.
    pub fn ints(&self, out: &mut Vec<Expr>) {
        match self {
            Source::Int(e) => out.push(*e),
            Source::List(l) => l.iter().for_each(|s| s.ints(out)),
            _ => {}
        }
    }
}

/// A Python object's identity; objects of a graph live as long as it.
pub fn key(object: &Bound<'_, PyAny>) -> usize {
    object.as_ptr() as usize
}

/// How symbolic sizes are imported.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Sizes<'a> {
    /// As symbols: the graph is for all sizes in their ranges.
    Symbolic,
    /// As the sizes of the call that was traced. Those without such a value stay symbols.
    Known,
    /// As symbols, some of which are a factor times a new symbol, within bounds.
    Near(&'a [Near]),
}

/// Imports a GraphModule. Tensors on `device` (a GPU, else the CPU) are the graph's, all others are
/// values that only PyTorch can hold. `gpu` is true for kernels of a GPU, interpreted ones too.
///
/// # Errors
/// `Unsupported` for FX nodes other than functions, placeholders and attributes (`call_module`,
/// say), and for outputs that are neither values nor numbers.
pub fn import<'py>(
    py: Python<'py>,
    gm: &Bound<'py, PyAny>,
    device: Option<Device>,
    gpu: bool,
    sizes: Sizes<'_>,
) -> PyResult<Imported> {
    let mut importer = Importer {
        names: Names::get(py)?,
        device,
        gpu,
        joins: false,
        host: HostScalars::default(),
        gm: gm.clone(),
        out: Imported {
            graph: Graph {
                name: "fx".into(),
                foreign_inputs: true,
                ..Graph::default()
            },
            nodes: Vec::new(),
            called: Vec::new(),
            pure: Vec::new(),
            constants: Vec::new(),
            sources: FxHashMap::default(),
        },
        symbols: Symbols::new(sizes),
        lines: FxHashMap::default(),
        traces: FxHashMap::default(),
        attributes: FxHashMap::default(),
        users: 0,
    };
    let nodes = gm
        .getattr(intern!(py, "graph"))?
        .getattr(intern!(py, "nodes"))?;
    if device.is_some() {
        importer.host = HostScalars::of(importer.names, &nodes)?;
    }
    for node in nodes.try_iter()? {
        importer.fx_node(&node?)?;
    }
    Ok(importer.out)
}

impl Imported {
    /// Has kernels draw the random numbers of a graph that needs some: its first node becomes the one that gives the seed.
    pub fn draw(&mut self) {
        if random::needed(&self.graph) {
            random::seed_by_call(&mut self.graph);
            self.nodes.insert(0, None);
            let why = "the seed of kernels that draw random numbers";
            self.called.insert(0, Some(why.into()));
            self.pure.insert(0, false);
        }
    }

    /// Has random operators called, also where nothing reads what they draw: PyTorch's generator moves on by it.
    pub fn call_draws(&mut self) {
        for (node, why) in self.graph.nodes.iter().zip(&mut self.called) {
            if random::draws(node) {
                why.get_or_insert_with(|| "random numbers without a seed".into());
            }
        }
    }
}

struct Importer<'py> {
    names: &'static Names,
    /// The GPU whose tensors are the graph's; `None` for the CPU.
    device: Option<Device>,
    /// Results that nothing reads are nothing: what an operator gives there differs between devices.
    gpu: bool,
    /// True while a value is described that may join a graph on a GPU although it is a scalar tensor of the host: inputs,
    /// attributes, and some results.
    joins: bool,
    /// The results that may.
    host: HostScalars,
    gm: Bound<'py, PyAny>,
    out: Imported,
    symbols: Symbols,
    /// Ids by the text of a line.
    lines: FxHashMap<String, LineId>,
    /// Lines by the identity of the stack trace's string, which nodes of one line share.
    traces: FxHashMap<usize, LineId>,
    /// Attributes that were met, by name.
    attributes: FxHashMap<String, ValueId>,
    /// Placeholders so far.
    users: usize,
}

impl<'py> Importer<'py> {
    /// Imports one node, and records its source.
    fn fx_node(&mut self, node: &Bound<'py, PyAny>) -> PyResult<()> {
        let py = node.py();
        let op = node.getattr(intern!(py, "op"))?;
        let op = op.cast::<PyString>()?.to_str()?;
        let source = match op {
            "call_function" => Some(self.call(node)?),
            "placeholder" => Some(self.placeholder(node)?),
            "get_attr" => Some(self.attribute(node)?),
            "output" => {
                self.outputs(node)?;
                None
            }
            _ => return Err(raise(Error::unsupported(format!("an FX node `{op}`")))),
        };
        if let Some(source) = source {
            self.out.sources.insert(key(node), source);
        }
        Ok(())
    }

    fn placeholder(&mut self, node: &Bound<'py, PyAny>) -> PyResult<Source> {
        let name = name_of(node)?;
        let val = meta(node, intern!(node.py(), "val"))?;
        self.joins = true;
        let (value, source) = match val {
            Some(val) if !val.is_none() => self.input(&name, &val)?,
            _ => {
                // No metadata: an input that nothing reads, or one whose type the graph does not need to know.
                let ty = Type::Opaque("input without metadata".into());
                let v = self.out.graph.add_value(&name, ty);
                (v, Source::Value(v))
            }
        };
        self.joins = false;
        let kind = InputKind::User { index: self.users };
        self.out.graph.inputs.push(Input::new(value, kind));
        self.users += 1;
        Ok(source)
    }

    /// Imports an attribute of the module. A tensor becomes an input of kind constant, once for
    /// each name.
    fn attribute(&mut self, node: &Bound<'py, PyAny>) -> PyResult<Source> {
        let py = node.py();
        let target = node.getattr(intern!(py, "target"))?;
        let target = target.cast::<PyString>()?.to_str()?;
        if let Some(v) = self.attributes.get(target) {
            return Ok(Source::Value(*v));
        }
        let mut object = self.gm.clone();
        for part in target.split('.') {
            object = object.getattr(part)?;
        }
        if !self.names.is_tensor(&object)? {
            return Ok(Source::Object(object.unbind()));
        }
        let name = name_of(node)?;
        self.joins = true;
        let ty = self.tensor(&object)?;
        self.joins = false;
        let value = self.out.graph.add_value(&name, ty);
        let kind = InputKind::Constant {
            name: target.to_string(),
        };
        self.out.graph.inputs.push(Input::new(value, kind));
        self.out.constants.push(object.unbind());
        self.attributes.insert(target.to_string(), value);
        Ok(Source::Value(value))
    }

    /// Returns true if a node reads the storage offset of a tensor that was cut at an index read
    /// from data. No size determines it, so the node stays and its call defines the symbol.
    fn reads_data(&self, target: &Target, source: &Source) -> bool {
        let x = &self.out.graph.exprs;
        &*target.name == inrush_aten::props::STORAGE_OFFSET
            && matches!(source, Source::Int(e) if x.as_sym(*e).is_some_and(|s| x.sym_info(s).kind == SymKind::Unbacked))
    }

    /// Imports a call. Items of known lists, and integers that sizes determine, need no node.
    fn call(&mut self, node: &Bound<'py, PyAny>) -> PyResult<Source> {
        let py = node.py();
        let callee = node.getattr(intern!(py, "target"))?;
        let target = Target::of(self.names, &callee)?;
        let args = node.getattr(intern!(py, "args"))?.cast_into::<PyTuple>()?;
        match target.role {
            Role::Item => {
                if let Some(source) = self.item(node, &args)? {
                    return Ok(source);
                }
            }
            Role::Size => {
                let val = meta(node, intern!(py, "val"))?;
                if let Some(source) = val.map(|v| self.known_integer(&v)).transpose()?.flatten()
                    && !self.reads_data(&target, &source)
                {
                    return Ok(source);
                }
            }
            Role::Operator | Role::Other => {}
        }
        let kwargs = node.getattr(intern!(py, "kwargs"))?.cast_into::<PyDict>()?;
        let own = match &*target.name == kernels::LAUNCH {
            true => Some(kernels::describe(&args, self.gpu)?),
            false => None,
        };
        let (args, mut why) = self.arguments(&target, &args, &kwargs)?;
        let line = self.line(node)?;
        let mut outs = Vec::new();
        let name = name_of(node)?;
        self.joins = why.is_none() && self.host.joins(node);
        let source = match meta(node, intern!(py, "val"))? {
            Some(val) => self.results(&name, &val, &mut outs, 0)?,
            // Operators around others (random states, say) are traced without metadata; what reads them has some again.
            None if node.getattr(intern!(py, "users"))?.is_truthy()? => {
                let ty = Type::Opaque("result without metadata".into());
                outs.push(self.out.graph.add_value(&name, ty));
                Source::Value(outs[0])
            }
            None => Source::None,
        };
        self.joins = false;
        // Nested lists are not looked into: their items are read by chains of `getitem`.
        let flat = matches!(&source, Source::List(l)
            if l.len() == outs.len() && !l.iter().any(|s| matches!(s, Source::List(_))));
        if self.gpu && flat {
            self.drop_unread(node, &outs)?;
        }
        let mut op = target.name.to_string();
        // Names tell most operators apart without their schema, which is slow to read.
        let pure = target.role == Role::Operator && may_write(&op) && !is_mutable(&callee)?;
        if let Some((name, reason)) = own {
            (op, why) = (name, Some(reason));
        }
        self.out.graph.nodes.push(Node {
            op,
            args,
            outs,
            line,
            made_for: None,
        });
        self.out.nodes.push(Some(node.clone().unbind()));
        self.out.called.push(why);
        self.out.pure.push(pure);
        Ok(source)
    }

    /// Takes the type from results whose item no node reads. Operators give other values there on
    /// other devices, and a kernel need not compute them.
    fn drop_unread(&mut self, node: &Bound<'py, PyAny>, outs: &[ValueId]) -> PyResult<()> {
        let py = node.py();
        let mut read = vec![false; outs.len()];
        for user in node.getattr(intern!(py, "users"))?.try_iter()? {
            let user = user?;
            let target = Target::of(self.names, &user.getattr(intern!(py, "target"))?)?;
            let args = user.getattr(intern!(py, "args"))?.cast_into::<PyTuple>()?;
            let item = match target.role {
                Role::Item if args.len() == 2 => args.get_item(1)?.extract::<usize>().ok(),
                _ => None,
            };
            match item.and_then(|k| read.get_mut(k)) {
                Some(r) => *r = true,
                // The list as a whole, or counted from its end.
                None => return Ok(()),
            }
        }
        for (v, read) in outs.iter().zip(read) {
            let value = &mut self.out.graph.values[v.index()];
            if !read && matches!(value.ty, Type::Tensor(_) | Type::Opaque(_)) {
                value.ty = Type::None;
            }
        }
        Ok(())
    }

    /// Returns arguments in schema order if a row describes the operator, else as they are; and why the call cannot be compiled.
    fn arguments(
        &mut self,
        target: &Target,
        args: &Bound<'py, PyTuple>,
        kwargs: &Bound<'py, PyDict>,
    ) -> PyResult<(Vec<Arg>, Option<String>)> {
        let mut given = Vec::with_capacity(args.len());
        let mut why = None;
        for a in args.iter_borrowed() {
            match self.arg(&a, 0)? {
                Some(arg) => given.push(NamedArg {
                    name: String::new(),
                    arg,
                    keyword: false,
                }),
                None => {
                    why.get_or_insert_with(|| format!("argument {} is {}", given.len(), what(&a)));
                    given.push(self.loose(&a, "")?);
                }
            }
        }
        for (k, a) in kwargs.iter() {
            let name = k.cast::<PyString>()?.to_str()?;
            match self.arg(&a, 0)? {
                Some(arg) => given.push(NamedArg {
                    name: name.to_string(),
                    arg,
                    keyword: true,
                }),
                None => {
                    why.get_or_insert_with(|| format!("argument `{name}` is {}", what(&a)));
                    given.push(self.loose(&a, name)?);
                }
            }
        }
        // A function without a schema may do anything with its arguments.
        if target.role == Role::Other {
            why = Some(match target.name.starts_with("higher_order.") {
                true => "a higher-order operator".to_string(),
                false => "a Python function".to_string(),
            });
        }
        if target.role == Role::Operator && why.is_none() {
            match bind(&self.out.graph.exprs, &target.name, &given) {
                Some(Ok(bound)) => return Ok((bound, None)),
                Some(Err(e)) => why = Some(e.message().to_string()),
                None => {}
            }
        }
        Ok((given.into_iter().map(|a| a.arg).collect(), why))
    }

    /// Returns the Python line of a node: the innermost frame of its stack trace.
    fn line(&mut self, node: &Bound<'py, PyAny>) -> PyResult<Option<LineId>> {
        let Some(trace) = meta(node, intern!(node.py(), "stack_trace"))? else {
            return Ok(None);
        };
        if let Some(id) = self.traces.get(&key(&trace)) {
            return Ok(Some(*id));
        }
        let Ok(text) = trace.cast::<PyString>() else {
            return Ok(None);
        };
        let Some(line) = last_frame(text.to_str()?) else {
            return Ok(None);
        };
        let lines = &mut self.out.graph.lines;
        let id = *self.lines.entry(line).or_insert_with_key(|line| {
            lines.push(line.clone());
            LineId::from_index(lines.len() - 1)
        });
        self.traces.insert(key(&trace), id);
        Ok(Some(id))
    }

    fn outputs(&mut self, node: &Bound<'py, PyAny>) -> PyResult<()> {
        let py = node.py();
        let args = node.getattr(intern!(py, "args"))?.cast_into::<PyTuple>()?;
        let all = args.get_item(0)?;
        let list: Vec<Bound<'py, PyAny>> = match self.names.is_node(&all) {
            true => vec![all],
            false => all.try_iter()?.collect::<PyResult<_>>()?,
        };
        for (index, o) in list.iter().enumerate() {
            let value = self.output(o)?;
            let kind = OutputKind::User { index };
            self.out.graph.outputs.push(Output { value, kind });
        }
        Ok(())
    }

    /// Returns an output. An integer that depends on sizes gets a value, since outputs hold no
    /// expressions.
    fn output(&mut self, o: &Bound<'py, PyAny>) -> PyResult<OutputValue> {
        Ok(match self.arg(o, 0)? {
            Some(Arg::None) => OutputValue::None,
            Some(Arg::Value(v)) => OutputValue::Value(v),
            Some(Arg::Int(e)) => match self.out.graph.exprs.as_int(e) {
                Some(v) => OutputValue::Scalar(Scalar::Int(v)),
                None => OutputValue::Value(self.int_value(e)),
            },
            Some(Arg::Float(f)) => OutputValue::Scalar(Scalar::Float(f)),
            Some(Arg::Bool(b)) => OutputValue::Scalar(Scalar::Bool(b)),
            _ => {
                return Err(raise(Error::unsupported(format!(
                    "{} as an output",
                    what(o)
                ))));
            }
        })
    }

    /// Returns a value that holds `e`, defined by a new node.
    fn int_value(&mut self, e: Expr) -> ValueId {
        let g = &mut self.out.graph;
        let v = g.add_value(&format!("int.{}", g.nodes.len()), Type::Int(e));
        g.nodes.push(Node {
            op: "sym.int".into(),
            args: vec![Arg::Int(e)],
            outs: vec![v],
            line: None,
            made_for: None,
        });
        self.out.nodes.push(None);
        self.out.called.push(None);
        self.out.pure.push(false);
        v
    }
}

/// Returns true if an operator's schema says that it writes arguments.
fn is_mutable(overload: &Bound<'_, PyAny>) -> PyResult<bool> {
    let schema = overload.getattr(intern!(overload.py(), "_schema"))?;
    schema
        .getattr(intern!(overload.py(), "is_mutable"))?
        .extract()
}

/// Returns a node's name.
fn name_of(node: &Bound<'_, PyAny>) -> PyResult<String> {
    node.getattr(intern!(node.py(), "name"))?.extract()
}

/// Returns an entry of the node's metadata.
fn meta<'py>(
    node: &Bound<'py, PyAny>,
    entry: &Bound<'py, PyString>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let meta = node.getattr(intern!(node.py(), "meta"))?;
    match meta.cast::<PyDict>() {
        Ok(d) => d.get_item(entry),
        Err(_) => Ok(None),
    }
}

/// Describes an object for messages: its type.
fn what(object: &Bound<'_, PyAny>) -> String {
    let name = object.get_type().name();
    name.map_or("an object".into(), |n| format!("a `{n}`"))
}
