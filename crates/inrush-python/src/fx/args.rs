//! Python arguments as arguments of the graph.
//!
//! The graph holds what operators' schemas name: values, integers, floats, flags, strings, dtypes,
//! formats, and flat lists of one kind. For anything else (slices, dicts, subgraphs, mixed lists)
//! the call is made through its FX node, and the graph's node keeps only the values inside the
//! argument. These keep dependencies and lifetimes right.

use super::types::is_exactly;
use super::{Importer, Source, key, name_of, what};
use inrush_aten::NamedArg;
use inrush_expr::Expr;
use inrush_graph::{Arg, ValueId};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PySlice, PyString, PyTuple};

/// Nesting of arguments that is looked into.
const MAX_DEPTH: usize = 16;

impl<'py> Importer<'py> {
    /// The argument, or `None` when the graph cannot hold it.
    pub(super) fn arg(&mut self, a: &Bound<'py, PyAny>, depth: usize) -> PyResult<Option<Arg>> {
        let names = self.names;
        if names.is_node(a) {
            return Ok(self.out.sources.get(&key(a)).and_then(held));
        }
        if a.is_none() {
            return Ok(Some(Arg::None));
        }
        // Before integers: `bool` derives from `int`.
        if a.is_instance_of::<PyBool>() {
            return Ok(Some(Arg::Bool(a.extract()?)));
        }
        if a.is_instance_of::<PyInt>() {
            // An integer beyond 64 bits is held by nothing here.
            let i: Option<i64> = a.extract().ok();
            return Ok(i.map(|i| Arg::Int(self.out.graph.exprs.int(i))));
        }
        if a.is_instance_of::<PyFloat>() {
            return Ok(Some(Arg::Float(a.extract()?)));
        }
        if let Ok(s) = a.cast::<PyString>() {
            return Ok(Some(Arg::Str(s.to_str()?.to_string())));
        }
        if let Ok(l) = a.cast::<PyList>() {
            return self.list(l.iter(), depth);
        }
        if let Ok(t) = a.cast::<PyTuple>() {
            return self.list(t.iter(), depth);
        }
        if let Some(d) = names.dtypes.get(&key(a)) {
            return Ok(Some(Arg::DType(*d)));
        }
        if let Some(f) = names.formats.get(&key(a)) {
            return Ok(Some(Arg::MemoryFormat(*f)));
        }
        if is_exactly(a, &names.sym_int) {
            let e = self.symbols.int(&self.out.graph.exprs, a)?;
            if let Some(e) = e {
                // A call needs its value.
                self.out.sources.insert(key(a), Source::Int(e));
            }
            return Ok(e.map(Arg::Int));
        }
        if is_exactly(a, &names.device) || is_exactly(a, &names.layout) {
            return Ok(Some(Arg::Other(
                a.str()?.to_str()?.trim_start_matches("torch.").to_string(),
            )));
        }
        Ok(None)
    }

    /// Returns a list as one argument; `None` if the graph cannot hold an item or the mixture.
    fn list(
        &mut self,
        items: impl ExactSizeIterator<Item = Bound<'py, PyAny>>,
        depth: usize,
    ) -> PyResult<Option<Arg>> {
        if depth > MAX_DEPTH {
            return Ok(None);
        }
        let mut args = Vec::with_capacity(items.len());
        for item in items {
            match self.arg(&item, depth + 1)? {
                Some(arg) => args.push(arg),
                None => return Ok(None),
            }
        }
        Ok(join(args, &|e| self.out.graph.exprs.as_int(e)))
    }

    /// Reduces an argument that the graph cannot hold to the values in it, so that these stay
    /// alive.
    pub(super) fn loose(&mut self, a: &Bound<'py, PyAny>, name: &str) -> PyResult<NamedArg> {
        let mut values = Vec::new();
        self.values_in(a, &mut values, 0)?;
        let arg = match values.is_empty() {
            // A subgraph, most often.
            true if self.names.is_node(a) => Arg::Other(name_of(a)?),
            true => Arg::Other(what(a)),
            false => Arg::from(values),
        };
        Ok(NamedArg {
            name: name.to_string(),
            arg,
            keyword: !name.is_empty(),
        })
    }

    /// Collects the values in an argument, also in dicts and slices.
    fn values_in(
        &self,
        a: &Bound<'py, PyAny>,
        out: &mut Vec<ValueId>,
        depth: usize,
    ) -> PyResult<()> {
        if depth > MAX_DEPTH {
            return Ok(());
        }
        if self.names.is_node(a) {
            if let Some(s) = self.out.sources.get(&key(a)) {
                s.values(out);
            }
        } else if let Ok(l) = a.cast::<PyList>() {
            for item in l.iter() {
                self.values_in(&item, out, depth + 1)?;
            }
        } else if let Ok(t) = a.cast::<PyTuple>() {
            for item in t.iter() {
                self.values_in(&item, out, depth + 1)?;
            }
        } else if let Ok(d) = a.cast::<PyDict>() {
            for (_, item) in d.iter() {
                self.values_in(&item, out, depth + 1)?;
            }
        } else if a.is_instance_of::<PySlice>() {
            let py = a.py();
            for part in [
                intern!(py, "start"),
                intern!(py, "stop"),
                intern!(py, "step"),
            ] {
                self.values_in(&a.getattr(part)?, out, depth + 1)?;
            }
        }
        Ok(())
    }
}

impl Source {
    /// Appends every value in it.
    pub fn values(&self, out: &mut Vec<ValueId>) {
        match self {
            Source::Value(v) => out.push(*v),
            Source::List(l) => l.iter().for_each(|s| s.values(out)),
            _ => {}
        }
    }
}

/// A source as an argument.
fn held(source: &Source) -> Option<Arg> {
    Some(match source {
        Source::Value(v) => Arg::Value(*v),
        Source::Int(e) => Arg::Int(*e),
        Source::Float(f) => Arg::Float(*f),
        Source::Bool(b) => Arg::Bool(*b),
        Source::None => Arg::None,
        Source::List(l) => {
            let items: Option<Vec<Arg>> = l.iter().map(held).collect();
            return join(items?, &|_| None);
        }
        Source::Object(_) => return None,
    })
}

/// Joins items to a list of one kind; `None` for other mixtures. An empty list counts as one of
/// integers, and an integer constant among floats is converted. `constant` evaluates an expression.
fn join(items: Vec<Arg>, constant: &dyn Fn(Expr) -> Option<i64>) -> Option<Arg> {
    let all = |f: fn(&Arg) -> bool| items.iter().all(f);
    if all(|a| matches!(a, Arg::Int(_))) {
        let ints = items.into_iter().filter_map(|a| match a {
            Arg::Int(e) => Some(e),
            _ => None,
        });
        return Some(Arg::Ints(ints.collect()));
    }
    if all(|a| matches!(a, Arg::Value(_) | Arg::None)) {
        let values = items.into_iter().map(|a| match a {
            Arg::Value(v) => Some(v),
            _ => None,
        });
        return Some(Arg::Values(values.collect()));
    }
    if all(|a| matches!(a, Arg::Bool(_))) {
        let bools = items.iter().map(|a| matches!(a, Arg::Bool(true)));
        return Some(Arg::Bools(bools.collect()));
    }
    let floats = items.iter().map(|a| match a {
        Arg::Float(f) => Some(*f),
        Arg::Int(e) => constant(*e).map(|i| i as f64),
        _ => None,
    });
    floats.collect::<Option<Vec<f64>>>().map(Arg::Floats)
}
