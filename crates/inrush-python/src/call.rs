//! Called operators: an FX node's target with its arguments, as it runs inside a compiled graph.

use crate::fx::{Imported, Source, key};
use inrush_expr::Expr;
use inrush_graph::ValueId;
use inrush_program::SizeId;
use pyo3::exceptions::{PyRecursionError, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PySlice, PyTuple};
use rustc_hash::FxHashMap;

/// An argument, with places where values of the call go.
enum Template {
    Slot(usize),
    Size(SizeId),
    Constant(Py<PyAny>),
    Tuple(Vec<Template>),
    List(Vec<Template>),
    Dict(Vec<(Py<PyAny>, Template)>),
    Slice(Box<[Template; 3]>),
}

/// What tells an FX node's place among the values of a call.
pub struct Slots<'a> {
    pub imported: &'a Imported,
    pub ints: &'a FxHashMap<Expr, SizeId>,
    pub slot: &'a mut dyn FnMut(ValueId) -> usize,
}

/// A called operator.
pub struct CalledOp {
    target: Py<PyAny>,
    args: Vec<Template>,
    kwargs: Vec<(Py<PyAny>, Template)>,
    /// The operator gives a tuple or list, whose items are the results.
    unpack: bool,
    /// Slots of the results; those in nested lists follow one another.
    outs: Vec<usize>,
}

/// Values of a call by slot, and its sizes.
pub trait Frame {
    fn slot(&self, slot: usize) -> Option<&Py<PyAny>>;
    fn size(&self, id: SizeId) -> PyResult<i64>;
    fn set(&mut self, slot: usize, value: Py<PyAny>);
}

impl CalledOp {
    /// Reads an FX node. `target` is what to call, which is not always the node's own.
    pub fn new(
        node: &Bound<'_, PyAny>,
        target: Bound<'_, PyAny>,
        slots: &mut Slots<'_>,
        outs: Vec<usize>,
    ) -> PyResult<CalledOp> {
        let py = node.py();
        let mut reader = Reader {
            fx_node: py.import("torch.fx")?.getattr("Node")?,
            slots,
        };
        let val = node.getattr("meta")?.call_method1("get", ("val",))?;
        let mut args = Vec::new();
        for a in node.getattr("args")?.try_iter()? {
            args.push(reader.read(&a?, 0)?);
        }
        let mut kwargs = Vec::new();
        for (k, v) in node.getattr("kwargs")?.cast::<PyDict>()?.iter() {
            kwargs.push((k.unbind(), reader.read(&v, 0)?));
        }
        Ok(CalledOp {
            target: target.unbind(),
            args,
            kwargs,
            unpack: val.is_instance_of::<PyTuple>() || val.is_instance_of::<PyList>(),
            outs,
        })
    }

    /// Calls the operator and stores its results.
    pub fn run(&self, py: Python<'_>, frame: &mut dyn Frame) -> PyResult<()> {
        let args = self
            .args
            .iter()
            .map(|a| a.fill(py, frame))
            .collect::<PyResult<Vec<_>>>()?;
        let args = PyTuple::new(py, args)?;
        let kwargs = match self.kwargs.is_empty() {
            true => None,
            false => {
                let d = PyDict::new(py);
                for (k, v) in &self.kwargs {
                    d.set_item(k, v.fill(py, frame)?)?;
                }
                Some(d)
            }
        };
        let result = self.target.bind(py).call(args, kwargs.as_ref())?;
        if !self.unpack {
            if let Some(slot) = self.outs.first() {
                frame.set(*slot, result.unbind());
            }
            return Ok(());
        }
        let mut leaves = Vec::with_capacity(self.outs.len());
        flatten(result, &mut leaves, 0)?;
        if leaves.len() != self.outs.len() {
            return Err(PyRuntimeError::new_err(format!(
                "{} gave {} results, its metadata says {}",
                self.target,
                leaves.len(),
                self.outs.len()
            )));
        }
        for (leaf, slot) in leaves.into_iter().zip(&self.outs) {
            frame.set(*slot, leaf.unbind());
        }
        Ok(())
    }
}

/// The items of nested tuples and lists in order.
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

/// Arguments nest no deeper than this.
const MAX_DEPTH: usize = 32;

struct Reader<'a, 'b, 'py> {
    fx_node: Bound<'py, PyAny>,
    slots: &'a mut Slots<'b>,
}

impl Reader<'_, '_, '_> {
    /// What an FX node stands for.
    fn source(&mut self, py: Python<'_>, source: &Source) -> PyResult<Template> {
        Ok(match source {
            Source::Value(v) => Template::Slot((self.slots.slot)(*v)),
            Source::Int(e) => match self.slots.ints.get(e) {
                Some(id) => Template::Size(*id),
                None => {
                    return Err(PyRuntimeError::new_err(
                        "an operator takes an integer that nothing determines",
                    ));
                }
            },
            Source::Float(f) => Template::Constant(f.into_pyobject(py)?.into_any().unbind()),
            Source::Bool(b) => {
                Template::Constant(b.into_pyobject(py)?.to_owned().into_any().unbind())
            }
            Source::None => Template::Constant(py.None()),
            Source::List(l) => Template::Tuple(
                l.iter()
                    .map(|s| self.source(py, s))
                    .collect::<PyResult<_>>()?,
            ),
            Source::Object(o) => Template::Constant(o.clone_ref(py)),
        })
    }

    fn read(&mut self, a: &Bound<'_, PyAny>, depth: usize) -> PyResult<Template> {
        if depth > MAX_DEPTH {
            return Err(PyRecursionError::new_err(
                "arguments of an operator are nested too deeply",
            ));
        }
        if a.is_instance(&self.fx_node)? {
            let imported = self.slots.imported;
            return match imported.sources.get(&key(a)) {
                Some(source) => self.source(a.py(), source),
                None => Err(PyRuntimeError::new_err(format!(
                    "{a} has no value where an operator needs it"
                ))),
            };
        }
        let mut all = |items: &Bound<'_, PyAny>| -> PyResult<Vec<Template>> {
            items
                .try_iter()?
                .map(|i| self.read(&i?, depth + 1))
                .collect()
        };
        // Subclasses of tuple and dict (named tuples, FX's immutable lists) are handed on as what they are made of.
        Ok(if a.is_instance_of::<PyTuple>() {
            Template::Tuple(all(a)?).fold(a)
        } else if a.is_instance_of::<PyList>() {
            Template::List(all(a)?).fold(a)
        } else if let Ok(d) = a.cast::<PyDict>() {
            let items = d
                .iter()
                .map(|(k, v)| Ok((k.unbind(), self.read(&v, depth + 1)?)))
                .collect::<PyResult<Vec<_>>>()?;
            Template::Dict(items)
        } else if a.is_instance_of::<PySlice>() {
            let mut part = |name: &str| self.read(&a.getattr(name)?, depth + 1);
            Template::Slice(Box::new([part("start")?, part("stop")?, part("step")?]))
        } else {
            Template::Constant(a.clone().unbind())
        })
    }
}

impl Template {
    /// A sequence of constants is a constant: nothing has to be built at a call. Lists stay, since an operator could change them.
    fn fold(self, original: &Bound<'_, PyAny>) -> Template {
        match &self {
            Template::Tuple(items) if items.iter().all(|i| matches!(i, Template::Constant(_))) => {
                Template::Constant(original.clone().unbind())
            }
            _ => self,
        }
    }

    fn fill<'py>(&self, py: Python<'py>, frame: &dyn Frame) -> PyResult<Bound<'py, PyAny>> {
        let all = |items: &[Template]| {
            items
                .iter()
                .map(|i| i.fill(py, frame))
                .collect::<PyResult<Vec<_>>>()
        };
        Ok(match self {
            Template::Slot(s) => match frame.slot(*s) {
                Some(v) => v.bind(py).clone(),
                None => py.None().into_bound(py),
            },
            Template::Size(id) => frame.size(*id)?.into_pyobject(py)?.into_any(),
            Template::Constant(c) => c.bind(py).clone(),
            Template::Tuple(items) => PyTuple::new(py, all(items)?)?.into_any(),
            Template::List(items) => PyList::new(py, all(items)?)?.into_any(),
            Template::Dict(items) => {
                let d = PyDict::new(py);
                for (k, v) in items {
                    d.set_item(k, v.fill(py, frame)?)?;
                }
                d.into_any()
            }
            Template::Slice(parts) => {
                let parts = parts
                    .iter()
                    .map(|p| p.fill(py, frame))
                    .collect::<PyResult<Vec<_>>>()?;
                py.get_type::<PySlice>().call1(PyTuple::new(py, parts)?)?
            }
        })
    }
}
