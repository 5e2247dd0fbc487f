//! Inputs and results of calls: values are defined from the metadata of FX nodes.

use super::types::is_exactly;
use super::{Importer, Source, key, name_of};
use crate::errors::raise;
use inrush_base::Error;
use inrush_graph::{Type, ValueId};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyFloat, PyInt, PyList, PyTuple};

/// Nesting of results that is accepted.
const MAX_DEPTH: usize = 8;

impl<'py> Importer<'py> {
    /// Defines an input's value.
    pub(super) fn input(
        &mut self,
        name: &str,
        val: &Bound<'py, PyAny>,
    ) -> PyResult<(ValueId, Source)> {
        let (ty, source) = self.describe(val)?;
        let v = self.out.graph.add_value(name, ty);
        Ok((v, source.unwrap_or(Source::Value(v))))
    }

    /// Returns the type of a value and, for numbers that are known, its source. The order of the
    /// tests matters: a Python bool is an int as well.
    fn describe(&mut self, val: &Bound<'py, PyAny>) -> PyResult<(Type, Option<Source>)> {
        let names = self.names;
        if names.is_tensor(val)? {
            return Ok((self.tensor(val)?, None));
        }
        if is_exactly(val, &names.sym_int) {
            let node = val.getattr("node")?;
            if node.call_method0("is_nested_int")?.is_truthy()? {
                // Names the lengths of a nested tensor's rows; it has no value.
                return Ok((self.opaque(val), None));
            }
            return Ok(match self.symbols.int(&self.out.graph.exprs, val)? {
                Some(e) => (Type::Int(e), Some(Source::Int(e))),
                None => (self.opaque(val), None),
            });
        }
        Ok(if is_exactly(val, &names.sym_float) {
            (Type::Float, None)
        } else if is_exactly(val, &names.sym_bool) {
            (Type::Bool, None)
        } else if val.is_instance_of::<PyBool>() {
            (Type::Bool, Some(Source::Bool(val.extract()?)))
        } else if val.is_instance_of::<PyInt>() {
            match val.extract() {
                Ok(i) => {
                    let e = self.out.graph.exprs.int(i);
                    (Type::Int(e), Some(Source::Int(e)))
                }
                Err(_) => (self.opaque(val), None),
            }
        } else if val.is_instance_of::<PyFloat>() {
            (Type::Float, Some(Source::Float(val.extract()?)))
        } else {
            (self.opaque(val), None)
        })
    }

    /// Defines the results of a call; lists are flattened into `outs` and kept as they are in the source.
    pub(super) fn results(
        &mut self,
        name: &str,
        val: &Bound<'py, PyAny>,
        outs: &mut Vec<ValueId>,
        depth: usize,
    ) -> PyResult<Source> {
        if val.is_none() {
            // A place in a list counts as a result even if it is empty, so that positions agree
            // with eager.
            if depth > 0 {
                outs.push(self.out.graph.add_value(name, Type::None));
            }
            return Ok(Source::None);
        }
        let items: Option<Vec<Bound<'py, PyAny>>> = if let Ok(t) = val.cast::<PyTuple>() {
            Some(t.iter().collect())
        } else if let Ok(l) = val.cast::<PyList>() {
            Some(l.iter().collect())
        } else {
            None
        };
        if let Some(items) = items {
            if depth > MAX_DEPTH {
                return Err(raise(Error::unsupported("results nested this deeply")));
            }
            let mut list = Vec::with_capacity(items.len());
            for (k, item) in items.iter().enumerate() {
                list.push(self.results(&format!("{name}.{k}"), item, outs, depth + 1)?);
            }
            return Ok(Source::List(list));
        }
        let (v, source) = self.input(name, val)?;
        outs.push(v);
        Ok(source)
    }

    /// Returns the source of `node[k]`; `None` when it is no constant position in a known list. The
    /// value takes the name of the node that reads it first.
    pub(super) fn item(
        &mut self,
        node: &Bound<'py, PyAny>,
        args: &Bound<'py, PyTuple>,
    ) -> PyResult<Option<Source>> {
        if args.len() != 2 || !self.names.is_node(&args.get_item(0)?) {
            return Ok(None);
        }
        let Ok(k) = args.get_item(1)?.extract::<isize>() else {
            return Ok(None);
        };
        let Some(Source::List(list)) = self.out.sources.get(&key(&args.get_item(0)?)) else {
            return Ok(None);
        };
        let at = if k < 0 { k + list.len() as isize } else { k };
        let Some(source) = usize::try_from(at).ok().and_then(|k| list.get(k)) else {
            return Err(raise(Error::input(format!("there is no result {k}"))));
        };
        let source = source.share(node.py());
        if let Source::Value(v) = source {
            let value = &mut self.out.graph.values[v.index()];
            // A dot marks the names that the importer made up.
            if value.name.contains('.') {
                value.name = name_of(node)?;
            }
        }
        Ok(Some(source))
    }

    /// Returns the source of a number whose value follows from sizes, so that its node is dropped.
    /// `None` keeps the node, which then defines the symbol.
    pub(super) fn known_integer(&mut self, val: &Bound<'py, PyAny>) -> PyResult<Option<Source>> {
        if is_exactly(val, &self.names.sym_int) {
            let e = self.symbols.known(&self.out.graph.exprs, val)?;
            return Ok(e.map(Source::Int));
        }
        Ok(match self.describe(val)? {
            (Type::Int(_) | Type::Float | Type::Bool, Some(source)) => Some(source),
            _ => None,
        })
    }
}

impl Source {
    /// Clones a source.
    pub fn share(&self, py: Python<'_>) -> Source {
        match self {
            Source::Value(v) => Source::Value(*v),
            Source::Int(e) => Source::Int(*e),
            Source::Float(f) => Source::Float(*f),
            Source::Bool(b) => Source::Bool(*b),
            Source::None => Source::None,
            Source::List(l) => Source::List(l.iter().map(|s| s.share(py)).collect()),
            Source::Object(o) => Source::Object(o.clone_ref(py)),
        }
    }
}
