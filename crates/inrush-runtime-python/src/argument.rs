//! Arguments of a call: by position and name, nested as the module was exported, to values in the program's order.

use crate::array::{self, type_name};
use crate::errors::InputError;
use crate::nesting::{Key, Nesting, Node};
use inrush_base::{Error, Result, Scalar};
use inrush_host::native::{Argument, Stream};
use inrush_runtime::dlpack::Borrow;
use inrush_runtime::{InputKind, InputSpec, Value};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyTuple};

/// The arguments that a model takes.
pub(crate) struct Arguments {
    entries: Vec<Entry>,
    /// Entries that a call may give by position: the first ones.
    positional: usize,
    inputs: Vec<InputSpec>,
}

/// An argument: one input or several that are nested.
struct Entry {
    name: Option<String>,
    node: Node,
    /// The first of its inputs.
    first: usize,
}

/// Arguments by input, as far as they are given.
type Given<'py> = Vec<Option<Bound<'py, PyAny>>>;

impl Arguments {
    /// Lists the arguments of a model with these inputs.
    ///
    /// # Errors
    /// An input error where the nesting is not that of the inputs.
    pub(crate) fn new(inputs: Vec<InputSpec>, nesting: Option<&Nesting>) -> Result<Arguments> {
        let mut entries = Vec::new();
        let mut first = 0;
        let mut add = |name: Option<String>, node: &Node| {
            let leaf = (*node == Node::Leaf).then(|| inputs.get(first).map(|i| i.name.clone()));
            entries.push(Entry {
                name: name.or(leaf.flatten()),
                node: node.clone(),
                first,
            });
            first += node.leaves();
        };
        let mut positional = inputs.len();
        match nesting.map(|n| &n.inputs) {
            None => inputs.iter().for_each(|_| add(None, &Node::Leaf)),
            Some(Node::Tuple(parts)) => {
                let [Node::Tuple(args), Node::Dict { items, .. }] = parts.as_slice() else {
                    return Err(Error::input("the package's nesting is not that of a call"));
                };
                positional = args.len();
                args.iter().for_each(|node| add(None, node));
                for (key, node) in items {
                    match key {
                        Key::Text(name) => add(Some(name.clone()), node),
                        Key::Int(_) => add(None, node),
                    }
                }
            }
            Some(_) => return Err(Error::input("the package's nesting is not that of a call")),
        }
        if first != inputs.len() {
            return Err(Error::input(format!(
                "the package's nesting has {first} inputs, its program {}",
                inputs.len()
            )));
        }
        Ok(Arguments {
            entries,
            positional,
            inputs,
        })
    }

    /// Returns true if an argument or an input has this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        let entry = |e: &Entry| e.name.as_deref() == Some(name);
        self.entries.iter().any(entry) || self.inputs.iter().any(|i| i.name == name)
    }

    /// Converts the arguments of a call. With `stream`, tensors of GPUs come after what that stream waits for.
    ///
    /// # Errors
    /// An input error that names the argument.
    pub(crate) fn bind(
        &self,
        args: &Bound<'_, PyTuple>,
        kwargs: Option<&Bound<'_, PyDict>>,
        stream: Option<Stream>,
    ) -> PyResult<Vec<Argument>> {
        let mut given: Given<'_> = vec![None; self.inputs.len()];
        if args.len() > self.positional {
            return Err(InputError::new_err(format!(
                "the model takes {} arguments by position ({}), got {}",
                self.positional,
                self.names(),
                args.len()
            )));
        }
        for (entry, value) in self.entries.iter().zip(args) {
            self.give(entry, &value, &mut given)?;
        }
        for (name, value) in kwargs.into_iter().flatten() {
            self.give_by_name(name.extract()?, &value, &mut given)?;
        }
        let py = args.py();
        (self.inputs.iter().zip(given))
            .map(|(spec, obj)| {
                value(spec, obj.as_ref(), stream)
                    .map_err(|e| array::at(py, &format!("input `{}`", spec.name), e))
            })
            .collect()
    }

    fn names(&self) -> String {
        let names: Vec<&str> = self.inputs.iter().map(|i| i.name.as_str()).collect();
        names.join(", ")
    }

    /// Stores the values of an argument.
    fn give<'py>(
        &self,
        entry: &Entry,
        value: &Bound<'py, PyAny>,
        given: &mut Given<'py>,
    ) -> PyResult<()> {
        if entry.node == Node::Leaf {
            given[entry.first] = Some(value.clone());
            return Ok(());
        }
        let place = match &entry.name {
            Some(name) => format!("argument `{name}`"),
            None => format!(
                "the argument of `{}`",
                self.inputs[entry.first..][..1][0].name
            ),
        };
        let mut values = Vec::new();
        entry.node.flatten(value, &place, &mut values)?;
        for (slot, value) in given[entry.first..].iter_mut().zip(values) {
            *slot = Some(value);
        }
        Ok(())
    }

    /// Stores an argument that is given by the name of an argument, or of an input within one.
    fn give_by_name<'py>(
        &self,
        name: String,
        value: &Bound<'py, PyAny>,
        given: &mut Given<'py>,
    ) -> PyResult<()> {
        let entry = (self.entries.iter()).find(|e| e.name.as_ref() == Some(&name));
        let input = self.inputs.iter().position(|i| i.name == name);
        let first = match (entry, input) {
            (Some(e), _) => e.first,
            (None, Some(at)) => at,
            (None, None) => {
                return Err(InputError::new_err(format!(
                    "the model has no input `{name}`; its inputs are {}",
                    self.names()
                )));
            }
        };
        if given.get(first).is_some_and(Option::is_some) {
            return Err(InputError::new_err(format!(
                "the argument `{name}` is given twice"
            )));
        }
        match entry {
            Some(e) => self.give(e, value, given),
            None => {
                given[first] = Some(value.clone());
                Ok(())
            }
        }
    }
}

/// Converts the value of an input.
fn value(
    spec: &InputSpec,
    obj: Option<&Bound<'_, PyAny>>,
    stream: Option<Stream>,
) -> PyResult<Argument> {
    let Some(obj) = obj else {
        return match spec.kind {
            InputKind::Constant(_) | InputKind::Ignored => Ok(Argument::Value(Value::None)),
            _ => Err(InputError::new_err("it is missing")),
        };
    };
    let value = match spec.kind {
        InputKind::Tensor { .. } => return array::argument(obj, Borrow::Input, stream),
        InputKind::Int => obj.extract().map(Value::Int).map_err(|_| {
            InputError::new_err(format!("an integer is needed, not {}", type_name(obj)))
        })?,
        InputKind::Constant(_) => number(obj)?,
        InputKind::Ignored => Value::None,
    };
    Ok(Argument::Value(value))
}

/// Converts a number, or `None`.
fn number(obj: &Bound<'_, PyAny>) -> PyResult<Value> {
    if obj.is_none() {
        return Ok(Value::None);
    }
    if let Ok(b) = obj.cast::<PyBool>() {
        return Ok(Value::Scalar(Scalar::Bool(b.is_true())));
    }
    if obj.is_instance_of::<PyFloat>() {
        return Ok(Value::Scalar(Scalar::Float(obj.extract()?)));
    }
    if obj.is_instance_of::<PyInt>() {
        return Ok(Value::Int(obj.extract()?));
    }
    Err(InputError::new_err(format!(
        "a number is needed, not {}",
        type_name(obj)
    )))
}
