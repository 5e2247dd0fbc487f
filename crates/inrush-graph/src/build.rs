//! Small queries and constructors over a graph.

use crate::*;
use inrush_base::schema::Operator;
use inrush_base::{Error, Result};

impl Graph {
    pub fn value(&self, v: ValueId) -> &Value {
        &self.values[v.index()]
    }

    /// Returns the tensor type of `v`, or an error that names the value.
    pub fn tensor(&self, v: ValueId) -> Result<&TensorType> {
        match &self.value(v).ty {
            Type::Tensor(t) => Ok(t),
            other => Err(Error::input(format!(
                "`{}` is not a tensor but {other:?}",
                self.value(v).name
            ))),
        }
    }

    /// Adds a value. The name is taken as it is: callers choose one that no other value has.
    pub fn add_value(&mut self, name: &str, ty: Type) -> ValueId {
        let id = ValueId::from_index(self.values.len());
        self.values.push(Value {
            name: name.to_string(),
            ty,
        });
        id
    }

    /// Returns the declaration of an operator of the user's.
    pub fn operator(&self, op: &str) -> Option<&Operator> {
        // Few at most: a search by bisection would rely on the order that text gives.
        self.operators.iter().find(|o| o.name == op)
    }

    /// Returns the Python line of a node, for errors and reports.
    pub fn line_of(&self, node: &Node) -> Option<&str> {
        node.line
            .and_then(|l| self.lines.get(l.index()))
            .map(String::as_str)
    }

    /// Adds the node's place to an error. A node that a stage made is named by the source node it
    /// was made from.
    pub fn locate(&self, node: &Node, e: Error) -> Error {
        let name = node
            .outs
            .first()
            .map(|v| source_name(&self.value(*v).name).to_string())
            .unwrap_or_default();
        let e = e.in_op(&node.op).at_node(name);
        match self.line_of(node) {
            Some(l) => e.at_line(l),
            None => e,
        }
    }
}

/// Returns the value of the source graph that a value was made for: stages name theirs
/// `source.suffix`.
pub fn source_name(name: &str) -> &str {
    name.split('.').next().unwrap_or(name)
}

impl TensorType {
    /// Returns a row-major tensor.
    pub fn contiguous(exprs: &Exprs, dtype: DType, sizes: Vec<Expr>) -> TensorType {
        let strides = exprs.contiguous_strides(&sizes);
        TensorType {
            dtype,
            sizes,
            strides,
        }
    }

    pub fn rank(&self) -> usize {
        self.sizes.len()
    }

    /// Returns the number of elements.
    pub fn numel(&self, exprs: &Exprs) -> Expr {
        exprs.product(self.sizes.iter().copied())
    }
}

impl Node {
    /// Returns the values that the node reads, in argument order.
    pub fn reads(&self) -> impl Iterator<Item = ValueId> + '_ {
        self.args.iter().flat_map(|a| {
            let (one, several): (Option<ValueId>, &[Option<ValueId>]) = match a {
                Arg::Value(v) => (Some(*v), &[]),
                Arg::Values(vs) => (None, vs),
                _ => (None, &[]),
            };
            one.into_iter().chain(several.iter().flatten().copied())
        })
    }

    /// Returns the values that the node reads, mutably.
    pub fn reads_mut(&mut self) -> impl Iterator<Item = &mut ValueId> {
        self.args.iter_mut().flat_map(|a| {
            let (one, several): (Option<&mut ValueId>, &mut [Option<ValueId>]) = match a {
                Arg::Value(v) => (Some(v), &mut []),
                Arg::Values(vs) => (None, vs),
                _ => (None, &mut []),
            };
            one.into_iter().chain(several.iter_mut().flatten())
        })
    }
}

macro_rules! arg_from {
    ($($from:ty => $variant:ident),*) => {
        $(impl From<$from> for Arg {
            fn from(v: $from) -> Arg {
                Arg::$variant(v)
            }
        })*
    };
}
arg_from!(ValueId => Value, Expr => Int, Vec<Expr> => Ints, f64 => Float, bool => Bool, String => Str, DType => DType);

impl From<Option<ValueId>> for Arg {
    fn from(v: Option<ValueId>) -> Arg {
        v.map_or(Arg::None, Arg::Value)
    }
}

impl From<Vec<ValueId>> for Arg {
    fn from(v: Vec<ValueId>) -> Arg {
        Arg::Values(v.into_iter().map(Some).collect())
    }
}
