//! Called operators: from an FX node to a [`Call`] with a template of its arguments, and the call
//! itself.
//!
//! A template is the tree of an FX node's arguments with values replaced by slots, symbolic
//! integers by ids of the size arithmetic, and all else by positions in the list of objects:
//!
//! ```text
//! aten.cat.default([x, y], s0 - 1)  ->  List[Slot 0, Slot 1], Size 3
//! ```
//!
//! It contains no Python object, so it can be stored; a call builds the arguments from it anew.

use crate::errors::raise;
use crate::fx::{Imported, Source, key};
use inrush_base::Error;
use inrush_compile::Slots;
use inrush_expr::Expr;
use inrush_graph::ValueId;
use inrush_host::program::{Call, ObjectId, Template};
use inrush_program::SizeId;
use pyo3::exceptions::{PyRecursionError, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PySlice, PyTuple};
use rustc_hash::FxHashMap;

/// Arguments and results nest no deeper than this.
const MAX_DEPTH: usize = 32;

/// Values of a call by slot, its sizes, and the graph's objects.
/// The state of a call that templates are filled from.
pub trait Frame {
    fn slot(&self, slot: usize) -> Option<&Py<PyAny>>;
    fn size(&self, id: SizeId) -> PyResult<i64>;
    fn object(&self, id: ObjectId) -> &Py<PyAny>;
    fn set(&mut self, slot: usize, value: Py<PyAny>);
}

/// Reads FX nodes as calls. Slots are numbered in the order in which values are first asked for.
pub struct Reader<'a, 'py> {
    fx_node: Bound<'py, PyAny>,
    sym_int: Bound<'py, PyAny>,
    pub imported: &'a Imported,
    /// Lines of the size arithmetic that were asked for in the request.
    pub ints: &'a FxHashMap<Expr, SizeId>,
    /// Slots so far, by value.
    pub slots: &'a mut Slots,
    /// Objects of the program so far; an id is a position. Equal objects are not merged.
    pub objects: &'a mut Vec<Py<PyAny>>,
    /// Operands that the call which is read takes instead of those that its FX node names.
    pub instead: Vec<(ValueId, ValueId)>,
}

impl<'a, 'py> Reader<'a, 'py> {
    pub fn new(
        py: Python<'py>,
        imported: &'a Imported,
        ints: &'a FxHashMap<Expr, SizeId>,
        slots: &'a mut Slots,
        objects: &'a mut Vec<Py<PyAny>>,
    ) -> PyResult<Self> {
        Ok(Reader {
            fx_node: py.import("torch.fx")?.getattr("Node")?,
            sym_int: py.import("torch")?.getattr("SymInt")?,
            imported,
            ints,
            slots,
            objects,
            instead: Vec::new(),
        })
    }

    /// Returns the slot of a value, a new one at the first request.
    pub fn slot(&mut self, v: ValueId) -> usize {
        self.slots.of(v)
    }

    /// Returns the FX node that a call is read from, whose operands are from now on those of the call; `None` for a call that a
    /// pass made, and for an operator with a row in a graph of no FX graph.
    pub fn fx_node_of(
        &mut self,
        source: &Option<inrush_compile::Source>,
        op: &str,
    ) -> PyResult<Option<&'a Py<PyAny>>> {
        let Some(source) = source else {
            return Ok(None);
        };
        self.instead = source.operands.clone();
        match &self.imported.nodes[source.node.index()] {
            Some(node) => Ok(Some(node)),
            None if inrush_aten::lookup(op).is_some() => Ok(None),
            None => Err(raise(Error::internal(format!("`{op}` cannot be called")))),
        }
    }

    /// Returns the call of an FX node. `target` is the function to call, which is not always the node's own.
    pub fn call(
        &mut self,
        node: &Bound<'py, PyAny>,
        target: Bound<'py, PyAny>,
        outs: Vec<usize>,
    ) -> PyResult<Call> {
        let val = node.getattr("meta")?.call_method1("get", ("val",))?;
        let mut args = Vec::new();
        for a in node.getattr("args")?.try_iter()? {
            args.push(self.read(&a?, 0)?);
        }
        let mut kwargs = Vec::new();
        for (k, v) in node.getattr("kwargs")?.cast::<PyDict>()?.iter() {
            kwargs.push((k.extract()?, self.read(&v, 0)?));
        }
        Ok(Call {
            target: self.hold(target.unbind()),
            args,
            kwargs,
            // Metadata decides: an operator that returns one tensor must not be iterated over.
            unpack: val.is_instance_of::<PyTuple>() || val.is_instance_of::<PyList>(),
            outs,
        })
    }

    /// Returns a call that draws a seed from PyTorch's default generator, so that `torch.manual_seed` determines it. On a GPU it
    /// is that device's generator, and the host does not wait.
    pub fn seed(&mut self, outs: Vec<usize>, device: &str) -> PyResult<Call> {
        let torch = self.fx_node.py().import("torch")?;
        let target = torch
            .getattr("ops")?
            .getattr("aten")?
            .getattr("randint")?
            .getattr("low")?;
        let args = (i64::MIN, i64::MAX, vec![1i64]).into_pyobject(torch.py())?;
        let args = args
            .iter()
            .map(|a| self.read(&a, 0))
            .collect::<PyResult<_>>()?;
        let mut kwargs = Vec::new();
        for (k, v) in [
            ("dtype", torch.getattr("int64")?),
            ("device", device.into_pyobject(torch.py())?.into_any()),
        ] {
            kwargs.push((k.to_string(), self.read(&v, 0)?));
        }
        Ok(Call {
            target: self.hold(target.unbind()),
            args,
            kwargs,
            unpack: false,
            outs,
        })
    }

    /// Adds an object to the program's list, and returns its id.
    pub fn hold(&mut self, object: Py<PyAny>) -> ObjectId {
        self.objects.push(object);
        self.objects.len() - 1
    }

    fn constant(&mut self, object: Py<PyAny>) -> Template {
        Template::Constant(self.hold(object))
    }

    /// Returns the template of what an FX node stands for. Operands that a pass replaced come from
    /// [`Reader::instead`].
    fn source(&mut self, py: Python<'py>, source: &Source) -> PyResult<Template> {
        Ok(match source {
            Source::Value(v) => {
                let instead = self.instead.iter().find(|(from, _)| from == v);
                let v = instead.map_or(*v, |(_, to)| *to);
                Template::Slot(self.slot(v))
            }
            Source::Int(e) => match self.ints.get(e) {
                Some(id) => Template::Size(*id),
                None => {
                    return Err(PyRuntimeError::new_err(
                        "an operator takes an integer that nothing determines",
                    ));
                }
            },
            Source::Float(f) => self.constant(f.into_pyobject(py)?.into_any().unbind()),
            Source::Bool(b) => self.constant(b.into_pyobject(py)?.to_owned().into_any().unbind()),
            Source::None => self.constant(py.None()),
            Source::List(l) => Template::Tuple(
                l.iter()
                    .map(|s| self.source(py, s))
                    .collect::<PyResult<_>>()?,
            ),
            Source::Object(o) => self.constant(o.clone_ref(py)),
        })
    }

    /// Returns the template of an argument.
    fn read(&mut self, a: &Bound<'py, PyAny>, depth: usize) -> PyResult<Template> {
        if depth > MAX_DEPTH {
            return Err(PyRecursionError::new_err(
                "arguments of an operator are nested too deeply",
            ));
        }
        if a.is_instance(&self.fx_node)? || a.is_instance(&self.sym_int)? {
            let imported = self.imported;
            return match imported.sources.get(&key(a)) {
                Some(source) => self.source(a.py(), source),
                None => Err(PyRuntimeError::new_err(format!(
                    "{a} has no value where an operator needs it"
                ))),
            };
        }
        // Subclasses of tuple, list and dict (named tuples, FX's immutable lists) are handed on as what they derive from.
        Ok(if a.is_instance_of::<PyTuple>() {
            Template::Tuple(self.all(a, depth)?)
        } else if a.is_instance_of::<PyList>() {
            Template::List(self.all(a, depth)?)
        } else if let Ok(d) = a.cast::<PyDict>() {
            let mut items = Vec::new();
            for (k, v) in d.iter() {
                let k = self.hold(k.unbind());
                items.push((k, self.read(&v, depth + 1)?));
            }
            Template::Dict(items)
        } else if a.is_instance_of::<PySlice>() {
            let mut part = |name: &str| self.read(&a.getattr(name)?, depth + 1);
            Template::Slice(Box::new([part("start")?, part("stop")?, part("step")?]))
        } else {
            self.constant(a.clone().unbind())
        })
    }

    fn all(&mut self, items: &Bound<'py, PyAny>, depth: usize) -> PyResult<Vec<Template>> {
        items
            .try_iter()?
            .map(|i| self.read(&i?, depth + 1))
            .collect()
    }
}

/// Calls the operator and stores its results.
///
/// # Errors
/// Python's exception, or one for results in another number than the metadata of the trace says.
pub fn run(c: &Call, py: Python<'_>, frame: &mut dyn Frame) -> PyResult<()> {
    let args = c
        .args
        .iter()
        .map(|a| fill(a, py, frame))
        .collect::<PyResult<Vec<_>>>()?;
    let args = PyTuple::new(py, args)?;
    let kwargs = match c.kwargs.is_empty() {
        true => None,
        false => {
            let d = PyDict::new(py);
            for (k, v) in &c.kwargs {
                d.set_item(k, fill(v, py, frame)?)?;
            }
            Some(d)
        }
    };
    let target = frame.object(c.target).bind(py).clone();
    let result = target.call(args, kwargs.as_ref())?;
    if !c.unpack {
        if let Some(slot) = c.outs.first() {
            frame.set(*slot, result.unbind());
        }
        return Ok(());
    }
    let mut leaves = Vec::with_capacity(c.outs.len());
    flatten(result, &mut leaves, 0)?;
    if leaves.len() != c.outs.len() {
        return Err(PyRuntimeError::new_err(format!(
            "{target} gave {} results, its metadata says {}",
            leaves.len(),
            c.outs.len()
        )));
    }
    for (leaf, slot) in leaves.into_iter().zip(&c.outs) {
        frame.set(*slot, leaf.unbind());
    }
    Ok(())
}

/// Collects the leaves of nested tuples and lists in order, as the importer numbers results.
fn flatten<'py>(
    value: Bound<'py, PyAny>,
    out: &mut Vec<Bound<'py, PyAny>>,
    depth: usize,
) -> PyResult<()> {
    let nested = value.is_instance_of::<PyTuple>() || value.is_instance_of::<PyList>();
    if !nested || depth > MAX_DEPTH {
        out.push(value);
        return Ok(());
    }
    value
        .try_iter()?
        .try_for_each(|item| flatten(item?, out, depth + 1))
}

/// Builds an argument from its template.
fn fill<'py>(
    template: &Template,
    py: Python<'py>,
    frame: &dyn Frame,
) -> PyResult<Bound<'py, PyAny>> {
    let all = |items: &[Template]| {
        items
            .iter()
            .map(|i| fill(i, py, frame))
            .collect::<PyResult<Vec<_>>>()
    };
    Ok(match template {
        Template::Slot(s) => match frame.slot(*s) {
            Some(v) => v.bind(py).clone(),
            None => py.None().into_bound(py),
        },
        Template::Size(id) => frame.size(*id)?.into_pyobject(py)?.into_any(),
        Template::Constant(c) => frame.object(*c).bind(py).clone(),
        Template::Tuple(items) => PyTuple::new(py, all(items)?)?.into_any(),
        Template::List(items) => PyList::new(py, all(items)?)?.into_any(),
        Template::Dict(items) => {
            let d = PyDict::new(py);
            for (k, v) in items {
                d.set_item(frame.object(*k), fill(v, py, frame)?)?;
            }
            d.into_any()
        }
        Template::Slice(parts) => {
            let parts = parts
                .iter()
                .map(|p| fill(p, py, frame))
                .collect::<PyResult<Vec<_>>>()?;
            py.get_type::<PySlice>().call1(PyTuple::new(py, parts)?)?
        }
    })
}
