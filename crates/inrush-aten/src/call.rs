//! A call's arguments by name, with the checks that every row needs.
//!
//! A row asks for arguments by parameter name and gets them checked and in Rust's types. A
//! relation between sizes that neither holds nor fails for sure is collected as a demand,
//! which becomes a guard of the graph:
//!
//! ```text
//! row: same(s0, s1, "the batch")   proved equal    -> nothing
//!                                  proved unequal  -> error now
//!                                  otherwise       -> guard s0 == s1, checked at each call
//! ```
//!
//! `opt_x` returns `None` for an argument that is none, where `x` fails; a list that is none
//! is empty. `const_x` fails for integers that are symbolic.

use crate::Op;
use crate::normalize::require;
use inrush_base::{DType, Error, Result, Scalar};
use inrush_expr::{Expr, Exprs};
use inrush_graph::{Arg, Guard, MemoryFormat, Relation, TensorType, Type, Value, ValueId};
use std::cell::RefCell;

/// Relations between sizes that rows ask for and that nothing proves: they are to be checked at each call.
/// A `RefCell`, because rows see a call through shared references.
#[derive(Default)]
pub struct Demands(RefCell<Vec<Guard>>);

impl Demands {
    /// Adds what was asked for to the guards of a graph.
    pub fn drain_into(&self, exprs: &Exprs, guards: &mut Vec<Guard>) -> Result<()> {
        for g in self.0.take() {
            require(exprs, guards, g.relation, g.left, g.right, &g.why)?;
        }
        Ok(())
    }
}

/// Bound arguments of a call.
#[derive(Copy, Clone)]
pub struct Args<'a> {
    pub exprs: &'a Exprs,
    /// Collects what the row asks for. Stages that only ask again what was asked before drop
    /// it.
    pub demands: &'a Demands,
    pub op: &'static Op,
    /// One argument for each parameter of the schema, in its order.
    pub args: &'a [Arg],
}

/// Bound arguments with the types of the values that they name.
#[derive(Copy, Clone)]
pub struct Call<'a> {
    args: Args<'a>,
    /// All values of the graph, indexed by `ValueId`.
    values: &'a [Value],
    /// The results, where the call stands in a graph; empty while their types are being found.
    pub outs: &'a [ValueId],
}

impl<'a> std::ops::Deref for Call<'a> {
    type Target = Args<'a>;
    fn deref(&self) -> &Args<'a> {
        &self.args
    }
}

/// A pointwise operand.
#[derive(Copy, Clone, PartialEq, Debug)]
pub enum Operand {
    Tensor(ValueId),
    Scalar(Scalar),
    /// A symbolic integer.
    Int(Expr),
}

impl<'a> Args<'a> {
    /// The argument of this name. A name that the schema does not have is a mistake in a row.
    pub fn arg(&self, name: &str) -> Result<&'a Arg> {
        self.op
            .schema()
            .position(name)
            .and_then(|p| self.args.get(p))
            .ok_or_else(|| {
                Error::internal(format!("`{}` has no parameter `{name}`", self.op.row.name))
            })
    }

    /// Returns the error for an argument of another kind than the row wants.
    fn wrong(&self, name: &str, want: &str) -> Error {
        match self.arg(name) {
            Ok(a) => Error::unsupported(format!("argument `{name}` must be {want}, is {a:?}")),
            Err(e) => e,
        }
    }

    /// Two sizes must be equal: what is not proved is checked at each call.
    pub fn same(&self, a: Expr, b: Expr, what: &str) -> Result<()> {
        if self.exprs.prove_eq(a, b) {
            return Ok(());
        }
        self.demand(Relation::Eq, a, b, what, self.exprs.prove_ne(a, b))
    }

    /// `a` must be at most `b`.
    pub fn at_most(&self, a: Expr, b: Expr, what: &str) -> Result<()> {
        if self.exprs.prove_le(a, b) {
            return Ok(());
        }
        self.demand(Relation::Le, a, b, what, self.exprs.prove_lt(b, a))
    }

    /// Two lists of sizes must be equal.
    pub fn same_sizes(&self, a: &[Expr], b: &[Expr], what: &str) -> Result<()> {
        if a.len() != b.len() {
            return Err(Error::input(format!(
                "{what}: sizes {} and {} differ",
                self.exprs.show_list(a),
                self.exprs.show_list(b)
            )));
        }
        a.iter()
            .zip(b)
            .try_for_each(|(x, y)| self.same(*x, *y, what))
    }

    /// Refuses a relation that never holds; records any other for a check at each call.
    fn demand(&self, relation: Relation, a: Expr, b: Expr, what: &str, never: bool) -> Result<()> {
        if never {
            return Err(Error::input(format!(
                "{what}: sizes {} and {} do not fit",
                self.exprs.show(a),
                self.exprs.show(b)
            )));
        }
        self.demands.0.borrow_mut().push(Guard {
            relation,
            left: a,
            right: b,
            why: format!("{what} of {}", self.op.row.name),
        });
        Ok(())
    }

    /// True when the schema has the parameter and the call gives something for it.
    pub fn given(&self, name: &str) -> bool {
        !matches!(self.arg(name), Ok(Arg::None) | Err(_))
    }

    /// Returns the value of a tensor argument. A number in its place is an error; `operand`
    /// takes both.
    pub fn value(&self, name: &str) -> Result<ValueId> {
        match self.arg(name)? {
            Arg::Value(v) => Ok(*v),
            _ => Err(self.wrong(name, "a tensor")),
        }
    }

    pub fn opt_value(&self, name: &str) -> Result<Option<ValueId>> {
        match self.arg(name)? {
            Arg::None => Ok(None),
            _ => self.value(name).map(Some),
        }
    }

    /// A list of tensors without gaps.
    pub fn list(&self, name: &str) -> Result<Vec<ValueId>> {
        self.opt_list(name)?
            .into_iter()
            .map(|v| v.ok_or_else(|| self.wrong(name, "a list of tensors")))
            .collect()
    }

    /// Returns a list of tensors in which entries may be none, as the indices of `x[:, i]`.
    pub fn opt_list(&self, name: &str) -> Result<Vec<Option<ValueId>>> {
        match self.arg(name)? {
            Arg::Values(v) => Ok(v.clone()),
            _ => Err(self.wrong(name, "a list of tensors")),
        }
    }

    /// An integer, possibly symbolic.
    pub fn int(&self, name: &str) -> Result<Expr> {
        match self.arg(name)? {
            Arg::Int(e) => Ok(*e),
            Arg::Bool(b) => Ok(self.exprs.int(*b as i64)),
            _ => Err(self.wrong(name, "an integer")),
        }
    }

    pub fn opt_int(&self, name: &str) -> Result<Option<Expr>> {
        match self.arg(name)? {
            Arg::None => Ok(None),
            _ => self.int(name).map(Some),
        }
    }

    /// An integer that is known now.
    pub fn const_int(&self, name: &str) -> Result<i64> {
        self.exprs
            .as_int(self.int(name)?)
            .ok_or_else(|| self.wrong(name, "a constant integer"))
    }

    /// Returns a list of integers, possibly symbolic. None is the empty list: `dim=None` of
    /// reductions.
    pub fn ints(&self, name: &str) -> Result<&'a [Expr]> {
        match self.arg(name)? {
            Arg::Ints(v) => Ok(v),
            Arg::None => Ok(&[]),
            _ => Err(self.wrong(name, "a list of integers")),
        }
    }

    pub fn const_ints(&self, name: &str) -> Result<Vec<i64>> {
        self.ints(name)?
            .iter()
            .map(|e| {
                self.exprs
                    .as_int(*e)
                    .ok_or_else(|| self.wrong(name, "a list of constant integers"))
            })
            .collect()
    }

    /// A dimension of a tensor of rank `rank`; negative ones count from the end. Rank 0 has dimension 0.
    pub fn dim(&self, name: &str, rank: usize) -> Result<usize> {
        wrap_dim(self.const_int(name)?, rank).map_err(|e| e.context(name))
    }

    /// Dimensions, each at most once, in the order given.
    pub fn dims(&self, name: &str, rank: usize) -> Result<Vec<usize>> {
        let mut out = Vec::new();
        for d in self.const_ints(name)? {
            let d = wrap_dim(d, rank).map_err(|e| e.context(name))?;
            if out.contains(&d) {
                return Err(Error::input(format!(
                    "argument `{name}` names dimension {d} twice"
                )));
            }
            out.push(d);
        }
        Ok(out)
    }

    pub fn float(&self, name: &str) -> Result<f64> {
        self.scalar(name).map(Scalar::as_f64)
    }

    pub fn floats(&self, name: &str) -> Result<&'a [f64]> {
        match self.arg(name)? {
            Arg::Floats(v) => Ok(v),
            Arg::None => Ok(&[]),
            _ => Err(self.wrong(name, "a list of floats")),
        }
    }

    pub fn bool(&self, name: &str) -> Result<bool> {
        match self.arg(name)? {
            Arg::Bool(b) => Ok(*b),
            _ => Err(self.wrong(name, "a bool")),
        }
    }

    /// Returns a string argument, which lives as long as the graph.
    pub fn str(&self, name: &str) -> Result<&'a str> {
        match self.arg(name)? {
            Arg::Str(s) => Ok(s),
            _ => Err(self.wrong(name, "a string")),
        }
    }

    pub fn opt_str(&self, name: &str) -> Result<Option<&'a str>> {
        match self.arg(name)? {
            Arg::None => Ok(None),
            _ => self.str(name).map(Some),
        }
    }

    /// Returns the dtype that a call asks for; `None` leaves the choice to promotion.
    pub fn dtype(&self, name: &str) -> Result<Option<DType>> {
        match self.arg(name)? {
            Arg::None => Ok(None),
            Arg::DType(d) => Ok(Some(*d)),
            _ => Err(self.wrong(name, "a dtype")),
        }
    }

    pub fn memory_format(&self, name: &str) -> Result<Option<MemoryFormat>> {
        match self.arg(name)? {
            Arg::None => Ok(None),
            Arg::MemoryFormat(m) => Ok(Some(*m)),
            _ => Err(self.wrong(name, "a memory format")),
        }
    }

    /// A number that is known now.
    pub fn scalar(&self, name: &str) -> Result<Scalar> {
        match self.operand(name)? {
            Some(Operand::Scalar(s)) => Ok(s),
            _ => Err(self.wrong(name, "a constant number")),
        }
    }

    pub fn opt_scalar(&self, name: &str) -> Result<Option<Scalar>> {
        match self.arg(name)? {
            Arg::None => Ok(None),
            _ => self.scalar(name).map(Some),
        }
    }

    /// A tensor or a number; `None` when left out.
    pub fn operand(&self, name: &str) -> Result<Option<Operand>> {
        Ok(Some(match self.arg(name)? {
            Arg::None => return Ok(None),
            Arg::Value(v) => Operand::Tensor(*v),
            Arg::Int(e) => match self.exprs.as_int(*e) {
                Some(i) => Operand::Scalar(Scalar::Int(i)),
                None => Operand::Int(*e),
            },
            Arg::Float(f) => Operand::Scalar(Scalar::Float(*f)),
            Arg::Bool(b) => Operand::Scalar(Scalar::Bool(*b)),
            _ => return Err(self.wrong(name, "a tensor or a number")),
        }))
    }

    /// The error for a case that the row does not cover.
    pub fn unsupported(&self, name: &str, why: &str) -> Error {
        match self.arg(name) {
            Ok(a) => Error::unsupported(format!("argument `{name}` = {a:?}: {why}")),
            Err(e) => e,
        }
    }
}

impl<'a> Call<'a> {
    /// Joins arguments with the types of a graph's values. `outs` is empty while types are
    /// inferred.
    pub fn new(args: Args<'a>, values: &'a [Value], outs: &'a [ValueId]) -> Self {
        Call { args, values, outs }
    }

    /// The type of a value as a tensor.
    pub fn type_of(&self, v: ValueId) -> Result<&'a TensorType> {
        let value = &self.values[v.index()];
        match &value.ty {
            Type::Tensor(t) => Ok(t),
            other => Err(Error::input(format!(
                "`{}` is not a tensor but {other:?}",
                value.name
            ))),
        }
    }

    /// The type of a tensor argument.
    pub fn tensor(&self, name: &str) -> Result<&'a TensorType> {
        self.type_of(self.value(name)?)
    }

    pub fn opt_tensor(&self, name: &str) -> Result<Option<&'a TensorType>> {
        match self.opt_value(name)? {
            Some(v) => self.type_of(v).map(Some),
            None => Ok(None),
        }
    }

    /// All values of the graph.
    pub fn values(&self) -> &'a [Value] {
        self.values
    }

    /// The tensor that a view operator looks at: its first argument.
    pub fn viewed(&self) -> Result<&'a TensorType> {
        match self.args.args.first() {
            Some(Arg::Value(v)) => self.type_of(*v),
            _ => Err(Error::input("the first argument must be a tensor")),
        }
    }

    /// The declared type of a result; only for calls in a graph.
    pub fn out(&self, k: usize) -> Result<&'a TensorType> {
        match self.outs.get(k) {
            Some(v) => self.type_of(*v),
            None => Err(Error::internal(format!("no result {k}"))),
        }
    }
}

/// Dimension `d` of a tensor of rank `rank`.
/// A tensor without dimensions accepts 0 and -1, as in PyTorch; callers find no size there.
pub fn wrap_dim(d: i64, rank: usize) -> Result<usize> {
    let n = rank.max(1) as i64;
    if (-n..n).contains(&d) {
        Ok(if d < 0 { d + n } else { d } as usize)
    } else {
        Err(Error::input(format!(
            "dimension {d} is out of range for a tensor of rank {rank}"
        )))
    }
}
