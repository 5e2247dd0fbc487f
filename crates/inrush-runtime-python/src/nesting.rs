//! How the exported module nested its inputs and outputs: tuples, lists and dicts around flat lists of values.
//!
//! `inrush.aot_compile` stores the nesting as PyTorch writes it, in an entry of the package. The command line stores none.

use crate::array::type_name;
use crate::errors::InputError;
use inrush_base::{Error, Result};
use inrush_runtime::{Package, TREES as ENTRY};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};
use serde_json::Value as Json;

/// The version of PyTorch's text.
const PROTOCOL: i64 = 1;

/// The nesting of a call.
pub(crate) struct Nesting {
    /// A tuple of positional arguments and a dict of the others.
    pub(crate) inputs: Node,
    pub(crate) outputs: Node,
}

/// A value, or a container of values.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Node {
    Leaf,
    Tuple(Vec<Node>),
    List(Vec<Node>),
    Dict {
        /// An `OrderedDict`.
        ordered: bool,
        items: Vec<(Key, Node)>,
    },
}

/// A key of a dict.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Key {
    Text(String),
    Int(i64),
}

impl Nesting {
    /// Reads the nesting of a package, if it has one.
    ///
    /// # Errors
    /// An input error for a damaged text, an unsupported error for containers of a type that only PyTorch knows.
    pub(crate) fn of(package: &Package) -> Result<Option<Nesting>> {
        let Some(bytes) = package.entry(ENTRY)? else {
            return Ok(None);
        };
        let whole: Json = serde_json::from_slice(bytes).map_err(damaged)?;
        let read = |name: &str| {
            let text = whole[name].as_str().ok_or_else(|| damaged(name))?;
            let tree: Json = serde_json::from_str(text).map_err(damaged)?;
            if tree[0].as_i64() != Some(PROTOCOL) {
                return Err(damaged(format!("version {}", tree[0])));
            }
            node(&tree[1])
        };
        Ok(Some(Nesting {
            inputs: read("inputs")?,
            outputs: read("outputs")?,
        }))
    }
}

fn damaged(what: impl std::fmt::Display) -> Error {
    Error::input(format!("damaged `{ENTRY}`: {what}"))
}

/// Reads a node of PyTorch's text.
fn node(json: &Json) -> Result<Node> {
    let empty = Vec::new();
    let parts = json["children_spec"].as_array().unwrap_or(&empty);
    let parts: Vec<Node> = parts.iter().map(node).collect::<Result<_>>()?;
    let keys = |list: &Json| -> Result<Vec<(Key, Node)>> {
        let list = list.as_array().filter(|l| l.len() == parts.len());
        let list = list.ok_or_else(|| damaged("keys of a dict"))?;
        let key = |k: &Json| match (k.as_str(), k.as_i64()) {
            (Some(text), _) => Ok(Key::Text(text.into())),
            (_, Some(n)) => Ok(Key::Int(n)),
            _ => Err(damaged(format!("the key {k}"))),
        };
        list.iter()
            .map(key)
            .zip(parts.iter().cloned())
            .map(|(k, n)| Ok((k?, n)))
            .collect()
    };
    let named_keys = |text: &Json| -> Result<Vec<(Key, Node)>> {
        let list = text.as_str().ok_or_else(|| damaged("keys of a dict"))?;
        keys(&serde_json::from_str(list).map_err(damaged)?)
    };
    let dict = |ordered, items| Node::Dict { ordered, items };
    let Some(name) = json["type"].as_str() else {
        return Ok(Node::Leaf);
    };
    Ok(match name {
        "builtins.tuple" => Node::Tuple(parts),
        "builtins.list" | "torch.fx.immutable_collections.immutable_list" => Node::List(parts),
        "builtins.dict" | "torch.fx.immutable_collections.immutable_dict" => {
            dict(false, named_keys(&json["context"])?)
        }
        "collections.OrderedDict" => dict(true, named_keys(&json["context"])?),
        "collections.defaultdict" => dict(false, keys(&json["context"]["dict_context"])?),
        other => {
            return Err(Error::unsupported(format!(
                "values are nested in `{other}`, a type of Python that is not known here: `load(.., flat=True)` takes and gives them in order"
            )));
        }
    })
}

impl Node {
    /// Returns the number of values.
    pub(crate) fn leaves(&self) -> usize {
        match self {
            Node::Leaf => 1,
            Node::Tuple(parts) | Node::List(parts) => parts.iter().map(Node::leaves).sum(),
            Node::Dict { items, .. } => items.iter().map(|(_, n)| n.leaves()).sum(),
        }
    }

    /// Appends the values of an object that is nested like this.
    ///
    /// # Errors
    /// An input error that names the place, for an object that is not.
    pub(crate) fn flatten<'py>(
        &self,
        obj: &Bound<'py, PyAny>,
        place: &str,
        out: &mut Vec<Bound<'py, PyAny>>,
    ) -> PyResult<()> {
        let wrong = |wanted: String| {
            InputError::new_err(format!(
                "{place} must be {wanted}, as exported, not {}",
                type_name(obj)
            ))
        };
        match self {
            Node::Leaf => out.push(obj.clone()),
            Node::Tuple(parts) | Node::List(parts) => {
                let is_list = matches!(self, Node::List(_));
                let name = if is_list { "list" } else { "tuple" };
                let wrong = || wrong(format!("a {name} of {}", parts.len()));
                let right = if is_list {
                    obj.is_instance_of::<PyList>()
                } else {
                    obj.is_instance_of::<PyTuple>()
                };
                if !right || obj.len()? != parts.len() {
                    return Err(wrong());
                }
                for (k, (part, item)) in parts.iter().zip(obj.try_iter()?).enumerate() {
                    part.flatten(&item?, &format!("{place}[{k}]"), out)?;
                }
            }
            Node::Dict { items, .. } => {
                let keys: Vec<String> = items.iter().map(|(k, _)| k.to_string()).collect();
                let wrong = || wrong(format!("a dict of {}", keys.join(", ")));
                let dict = obj.cast::<PyDict>().map_err(|_| wrong())?;
                if dict.len() != items.len() {
                    return Err(wrong());
                }
                for (key, part) in items {
                    let item = dict.get_item(key.object(obj.py())?)?.ok_or_else(wrong)?;
                    part.flatten(&item, &format!("{place}[{key}]"), out)?;
                }
            }
        }
        Ok(())
    }

    /// Nests values, which are taken in order.
    ///
    /// # Errors
    /// An input error where there are too few.
    pub(crate) fn build<'py>(
        &self,
        py: Python<'py>,
        values: &mut impl Iterator<Item = Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        match self {
            Node::Leaf => values
                .next()
                .ok_or_else(|| InputError::new_err("the package's nesting has too many values")),
            Node::Tuple(parts) | Node::List(parts) => {
                let mut made = Vec::with_capacity(parts.len());
                for part in parts {
                    made.push(part.build(py, values)?);
                }
                Ok(match self {
                    Node::List(_) => PyList::new(py, made)?.into_any(),
                    _ => PyTuple::new(py, made)?.into_any(),
                })
            }
            Node::Dict { ordered, items } => {
                let dict = PyDict::new(py);
                for (key, part) in items {
                    dict.set_item(key.object(py)?, part.build(py, values)?)?;
                }
                if *ordered {
                    let class = py.import("collections")?.getattr("OrderedDict")?;
                    return class.call1((dict,));
                }
                Ok(dict.into_any())
            }
        }
    }
}

impl Key {
    fn object<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(match self {
            Key::Text(s) => s.into_pyobject(py)?.into_any(),
            Key::Int(n) => n.into_pyobject(py)?.into_any(),
        })
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Key::Text(s) => write!(f, "'{s}'"),
            Key::Int(n) => write!(f, "{n}"),
        }
    }
}
