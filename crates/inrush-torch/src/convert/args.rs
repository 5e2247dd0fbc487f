//! Arguments of calls.
//!
//! `schema::Argument` has one case per type of PyTorch's schema language. They become the fewer
//! cases of `inrush_graph::Arg`: constants and symbolic integers are both expressions, optional
//! tensors are values or `None`, and what no kernel reads (layouts, devices, lists of strings) is
//! kept as text.

use super::symbols::unknown;
use super::{Bound, Importer, Scope};
use crate::codes;
use crate::schema::{
    Argument, Named, OptionalTensor, SymBoolArgument, SymFloatArgument, SymIntArgument,
};
use inrush_base::{Error, Result};
use inrush_expr::Expr;
use inrush_graph::{Arg, ValueId};

impl<'a> Importer<'a, '_> {
    /// Returns an argument as the graph holds it.
    pub(super) fn arg(&self, scope: &Scope<'a>, a: &'a Argument<'a>) -> Result<Arg> {
        let x = &self.graph.exprs;
        Ok(match a {
            Argument::None(_) => Arg::None,
            Argument::Tensor(n) => Arg::Value(scope.value(&n.name)?),
            Argument::Tensors(v) => Arg::Values(
                (v.iter().map(|n| scope.value(&n.name).map(Some))).collect::<Result<_>>()?,
            ),
            Argument::OptionalTensor(o) => match optional(o)? {
                Some(n) => Arg::Value(scope.value(&n.name)?),
                None => Arg::None,
            },
            Argument::OptionalTensors(v) => {
                let one = |o| optional(o)?.map(|n| scope.value(&n.name)).transpose();
                Arg::Values(v.iter().map(one).collect::<Result<_>>()?)
            }
            Argument::Int(v) => Arg::Int(x.int(*v)),
            Argument::Ints(v) => Arg::Ints(v.iter().map(|v| x.int(*v)).collect()),
            Argument::Float(v) => Arg::Float(v.0),
            Argument::Floats(v) => Arg::Floats(v.iter().map(|v| v.0).collect()),
            Argument::Complex(v) => Arg::Complex(v.real.0, v.imag.0),
            Argument::Bool(v) => Arg::Bool(*v),
            Argument::Bools(v) => Arg::Bools(v.clone()),
            Argument::Str(v) => Arg::Str(v.to_string()),
            Argument::SymInt(s) => Arg::Int(self.sym_int(scope, s)?),
            Argument::SymInts(v) => {
                Arg::Ints((v.iter().map(|s| self.sym_int(scope, s))).collect::<Result<_>>()?)
            }
            Argument::SymBool(SymBoolArgument::Bool(v)) => Arg::Bool(*v),
            Argument::SymBool(SymBoolArgument::Name(n)) => match scope.find(n)? {
                Bound::Bool(v) => Arg::Bool(*v),
                Bound::Value(v) => Arg::Value(*v),
                Bound::Relations(_) => {
                    return Err(Error::unsupported(format!(
                        "the condition `{n}` on sizes as an argument"
                    )));
                }
                _ => return Err(Error::input(format!("`{n}` is no condition"))),
            },
            Argument::SymFloat(SymFloatArgument::Float(v)) => Arg::Float(v.0),
            Argument::SymFloat(SymFloatArgument::Name(n)) => match scope.find(n)? {
                Bound::Float(v) => Arg::Float(*v),
                Bound::Value(v) => Arg::Value(*v),
                _ => return Err(Error::input(format!("`{n}` is no float"))),
            },
            Argument::SymBool(SymBoolArgument::Unknown(k))
            | Argument::SymFloat(SymFloatArgument::Unknown(k)) => {
                return Err(unknown("symbolic argument", k));
            }
            Argument::SymBools(v) => Arg::Bools(
                v.iter()
                    .map(|s| match s {
                        SymBoolArgument::Bool(v) => Ok(*v),
                        _ => Err(Error::unsupported("a list of computed conditions")),
                    })
                    .collect::<Result<_>>()?,
            ),
            Argument::SymFloats(v) => Arg::Floats(
                v.iter()
                    .map(|s| match s {
                        SymFloatArgument::Float(v) => Ok(v.0),
                        _ => Err(Error::unsupported("a list of computed floats")),
                    })
                    .collect::<Result<_>>()?,
            ),
            Argument::ScalarType(code) => Arg::DType(codes::dtype(*code)?),
            Argument::MemoryFormat(code) => Arg::MemoryFormat(codes::memory_format(*code)?),
            Argument::Layout(code) => Arg::Other(codes::layout(*code)?.into()),
            Argument::Device(d) => Arg::Other(match d.index {
                Some(i) => format!("{}:{i}", d.kind),
                None => d.kind.to_string(),
            }),
            Argument::Strs(v) => Arg::Other(format!(
                "[{}]",
                v.iter().map(|s| &**s).collect::<Vec<_>>().join(", ")
            )),
            Argument::Operator(v) => Arg::Other(v.to_string()),
            Argument::Graph(g) => {
                return Err(Error::unsupported(format!(
                    "the graph `{}` as an argument",
                    g.name
                )));
            }
            Argument::CustomObject(o) => {
                return Err(Error::unsupported(format!(
                    "the object `{}` of class `{}` as an argument",
                    o.name, o.class_fqn
                )));
            }
            Argument::Unknown(k) => return Err(unknown("argument", k)),
        })
    }

    pub(super) fn sym_int(&self, scope: &Scope<'a>, s: &SymIntArgument) -> Result<Expr> {
        match s {
            SymIntArgument::Int(v) => Ok(self.graph.exprs.int(*v)),
            SymIntArgument::Name(n) => match scope.find(n)? {
                Bound::Int(e) => Ok(*e),
                _ => Err(Error::input(format!("`{n}` is no integer"))),
            },
            SymIntArgument::Unknown(k) => Err(unknown("symbolic integer argument", k)),
        }
    }
}

/// Returns the tensor's name, or `None`.
pub(super) fn optional<'a>(o: &'a OptionalTensor<'a>) -> Result<Option<&'a Named<'a>>> {
    match o {
        OptionalTensor::Tensor(n) => Ok(Some(n)),
        OptionalTensor::None(_) => Ok(None),
        OptionalTensor::Unknown(k) => Err(unknown("optional tensor", k)),
    }
}

impl Scope<'_> {
    /// Returns the binding of a name in this scope.
    pub(super) fn find(&self, name: &str) -> Result<&Bound> {
        (self.names.get(name))
            .ok_or_else(|| Error::input(format!("`{name}` is used before it is defined")))
    }

    pub(super) fn value(&self, name: &str) -> Result<ValueId> {
        match self.find(name)? {
            Bound::Value(v) => Ok(*v),
            _ => Err(Error::input(format!("`{name}` is no tensor"))),
        }
    }
}
