//! Calls of operators that users define. Their functions are the host's, registered by name.

use super::StepKind;
use crate::host::Layout;
use crate::{Dt, Num, Program, SizeId};
use inrush_base::schema::{Kind, Operator, Param, Schema};
use inrush_base::{Error, Result};
use serde::{Deserialize, Serialize};

/// A call of an operator of the user's.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Custom {
    /// Its declaration: `mylib::scale(Tensor x, float by=2.0) -> Tensor`.
    pub operator: String,
    /// One for each parameter of the declaration.
    pub args: Vec<Argument>,
    /// Slots of the results, lists of tensors flattened, then of the new contents of the arguments that are written.
    pub outs: Vec<usize>,
    /// Layouts of the results. Where a size is not known before the call, the function decides it.
    pub results: Vec<Layout>,
    /// The operator and its Python line, for errors.
    pub origin: String,
}

/// An argument of an operator of the user's.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Argument {
    None,
    Tensor(usize),
    Tensors(Vec<Option<usize>>),
    Size(SizeId),
    Sizes(Vec<SizeId>),
    Num(Num),
    Nums(Vec<Num>),
    Text(String),
    DType(Dt),
}

/// Dimensions that a result has at most.
const MOST_DIMENSIONS: usize = 64;

/// Returns the calls of operators of a program and of those that it calls.
pub fn operator_calls(program: &Program) -> Vec<&Custom> {
    let mut all = Vec::new();
    collect(program, &mut all);
    all
}

fn collect<'a>(program: &'a Program, all: &mut Vec<&'a Custom>) {
    for step in program.parts.iter().flat_map(|p| &p.steps) {
        if let StepKind::Custom(c) = &step.kind {
            all.push(c);
        }
        (step.kind.programs().into_iter()).for_each(|p| collect(p, all));
    }
}

impl Custom {
    /// Slots that the call reads.
    pub fn reads(&self) -> Vec<usize> {
        let slots = |a: &Argument| match a {
            Argument::Tensor(s) => vec![*s],
            Argument::Tensors(all) => all.iter().flatten().copied().collect(),
            _ => Vec::new(),
        };
        self.args.iter().flat_map(slots).collect()
    }

    /// Returns the name of the operator as C++ writes it: `mylib::scale`.
    pub fn name(&self) -> &str {
        self.operator.split('(').next().unwrap_or_default()
    }

    /// Returns the declaration.
    ///
    /// # Errors
    /// An input error for a malformed one.
    pub fn declaration(&self) -> Result<Operator> {
        Operator::parse(&self.operator)
    }

    /// Returns the position of the new contents of an argument among `outs`; `None` for one that is not written.
    pub fn written(&self, schema: &Schema, argument: usize) -> Option<usize> {
        let is_written = |at: usize| {
            schema.params.get(at).is_some_and(|p| p.written)
                && matches!(self.args.get(at), Some(Argument::Tensor(_)))
        };
        let before = (0..argument).filter(|at| is_written(*at)).count();
        is_written(argument).then_some(self.results.len() + before)
    }

    /// Checks a call that may come from a file. `sizes` counts the lines of size arithmetic around it.
    ///
    /// # Errors
    /// An input error.
    pub(crate) fn verify(&self, sizes: usize) -> Result<()> {
        let need = |holds: bool, what: &str| {
            if holds {
                Ok(())
            } else {
                Err(Error::input(format!("a custom operator's {what}")))
            }
        };
        let schema = self.declaration()?.schema;
        need(self.args.len() == schema.params.len(), "arguments")?;
        let size = |id: &SizeId| need((id.0 as usize) < sizes, "sizes");
        for (a, p) in self.args.iter().zip(&schema.params) {
            need(a.fits(p), "arguments")?;
            match a {
                Argument::Size(id) => size(id)?,
                Argument::Sizes(all) => all.iter().try_for_each(size)?,
                _ => {}
            }
        }
        let written = |at: &usize| self.written(&schema, *at).is_some();
        let written = (0..self.args.len()).filter(written).count();
        let lists = schema.returns.iter().filter(|r| r.list).count();
        let single = schema.returns.len() - lists;
        let counted = match lists {
            0 => self.results.len() == single,
            _ => self.results.len() >= single,
        };
        need(counted, "results")?;
        need(self.outs.len() == self.results.len() + written, "results")?;
        for l in &self.results {
            let ranks = l.sizes.len() == l.strides.len() && l.sizes.len() <= MOST_DIMENSIONS;
            need(ranks, "results")?;
            l.sizes.iter().chain(&l.strides).try_for_each(size)?;
        }
        Ok(())
    }
}

impl Argument {
    /// Returns true if a parameter of this kind takes the argument.
    fn fits(&self, param: &Param) -> bool {
        let kind = param.kind;
        let counts = |n: usize| !matches!(kind, Kind::Ints(Some(wanted)) if wanted != n);
        match self {
            Argument::None => param.optional,
            Argument::Tensor(_) => kind == Kind::Tensor,
            Argument::Tensors(all) => {
                kind == Kind::Tensors && (param.nullable || all.iter().all(Option::is_some))
            }
            Argument::Size(_) => matches!(kind, Kind::Int | Kind::Scalar),
            Argument::Sizes(all) => matches!(kind, Kind::Ints(_)) && counts(all.len()),
            Argument::Num(Num::Int(_)) => matches!(kind, Kind::Int | Kind::Scalar),
            Argument::Num(Num::Bool(_)) => matches!(kind, Kind::Bool | Kind::Scalar),
            Argument::Num(Num::FloatBits(_)) => matches!(kind, Kind::Float | Kind::Scalar),
            Argument::Nums(all) => match kind {
                Kind::Ints(_) => counts(all.len()) && all.iter().all(|n| matches!(n, Num::Int(_))),
                Kind::Bools => all.iter().all(|n| matches!(n, Num::Bool(_))),
                Kind::Floats => all.iter().all(|n| matches!(n, Num::FloatBits(_))),
                _ => false,
            },
            Argument::Text(_) => kind == Kind::Str,
            Argument::DType(_) => kind == Kind::DType,
        }
    }
}
