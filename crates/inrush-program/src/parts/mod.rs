//! A program in parts: compiled programs, and between them calls whose data decide the sizes of what follows.
//!
//! ```text
//! segment   mask = x > 0                     a program of its own
//! dynamic   at[u0, 2] = nonzero(mask)        a function of the library allocates its result: u0 is known from here on
//! segment   y[u0] = x[at] * 2                a program that takes u0 as an integer
//! custom    w = mylib::scale(y, 2.0)         a function that the host registered
//! cond      z = p ? then(y) : otherwise(y)   one of two programs, which may be in parts themselves
//! ```
//!
//! The [`Program`] that holds a [`Sequence`] has no steps of its own. It says what a caller sees: inputs, weights, outputs,
//! symbols, guards. Symbols of both are the same, in the same order; those that the sequence reads from data have the source
//! [`SymbolSource::Data`](crate::SymbolSource::Data). Values are held in *slots*, one for each value of the graph.

use crate::host::{Layout, Segment, Symbol, View};
use crate::{Num, Program, Size, SizeId};
use serde::{Deserialize, Serialize};

mod custom;
pub mod outline;
mod verify;
mod work;

pub use custom::{Argument, Custom, operator_calls};
pub use work::Work;

/// Levels of programs within programs. Bounds recursion over packages, which are untrusted.
pub const MOST_NESTED: usize = 8;

/// The steps of a call.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Sequence {
    pub steps: Vec<Step>,
    /// Where each symbol is read, in the order of the program's symbols.
    pub symbols: Vec<Symbol>,
    /// Size arithmetic over the symbols.
    pub sizes: Vec<Size>,
    pub slots: usize,
    /// Slot of each of the user's inputs.
    pub inputs: Vec<usize>,
    /// Slots of weights that steps read or write as tensors; segments hold all others themselves.
    pub weights: Vec<(usize, String)>,
    /// By position of the program's outputs.
    pub outputs: Vec<Out>,
}

/// Where an output is found.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Out {
    Slot(usize),
    Size(SizeId),
    Scalar(Num),
    /// Nothing: `None`, or new contents that a step has written.
    None,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Step {
    pub kind: StepKind,
    /// Slots that nothing reads any more.
    pub frees: Vec<usize>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[allow(clippy::large_enum_variant)] // Held in one list, and never moved.
pub enum StepKind {
    Segment(Segment),
    View(View),
    Dynamic(Dynamic),
    Custom(Custom),
    Cond(Cond),
    While(While),
    Scan(Scan),
    /// New contents of inputs and weights: sources are read before any target is written.
    Write(Vec<Write>),
}

/// A call of a function of the runtime's library that allocates its results.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Dynamic {
    /// The function's name: `nonzero`.
    pub function: String,
    pub params: Vec<Param>,
    /// Slots of its tensors; `None` for those left out.
    pub inputs: Vec<Option<usize>>,
    /// Slots of its results.
    pub outs: Vec<usize>,
    /// The operator and its Python line, for errors.
    pub origin: String,
}

/// A program that control flow calls, in the form `P` in which its executor takes programs.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Body<P = Program> {
    pub program: P,
    /// Its arguments, by position among the program's inputs.
    pub inputs: Vec<Operand>,
}

/// An argument of a body.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Operand {
    Slot(usize),
    Size(SizeId),
    /// The value that a loop carries at this position.
    Carried(usize),
    /// This turn's slice, along dimension 0, of the tensor that a scan slices at this position.
    Slice(usize),
}

/// Calls one of two programs.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Cond<P = Program> {
    /// Slot of a bool of one element.
    pub predicate: usize,
    pub then: Body<P>,
    pub otherwise: Body<P>,
    /// Slots of the results of either.
    pub outs: Vec<usize>,
    /// The operator and its Python line, for errors.
    pub origin: String,
}

/// Calls a program as long as another one says so.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct While<P = Program> {
    /// Gives a bool of one element.
    pub condition: Body<P>,
    /// Gives the next values that the loop carries.
    pub body: Body<P>,
    /// Values that the loop carries at first: slots and sizes.
    pub carried: Vec<Operand>,
    /// Slots of what it carries at last.
    pub outs: Vec<usize>,
    /// The operator and its Python line, for errors.
    pub origin: String,
}

/// Calls a program for each slice of tensors along dimension 0.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Scan<P = Program> {
    /// Gives the next values that the scan carries, then this turn's slices of the stacked results.
    pub body: Body<P>,
    /// Values that the scan carries at first: slots and sizes.
    pub carried: Vec<Operand>,
    /// Slots of the tensors that are sliced; one at least.
    pub sliced: Vec<usize>,
    /// Slots of what it carries at last, then of the stacked results.
    pub outs: Vec<usize>,
    /// Layouts of the stacked results.
    pub stacked: Vec<Layout>,
    /// The operator and its Python line, for errors.
    pub origin: String,
}

/// A parameter of a function.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Param {
    Num(Num),
    Size(SizeId),
    /// Left out.
    None,
}

/// New contents of an input or a weight.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Write {
    pub from: usize,
    pub to: usize,
}

impl StepKind {
    /// Slots that the step reads.
    pub fn reads(&self) -> Vec<usize> {
        match self {
            StepKind::Segment(s) => s.inputs.clone(),
            StepKind::View(v) => vec![v.base],
            StepKind::Dynamic(d) => d.inputs.iter().flatten().copied().collect(),
            StepKind::Custom(c) => c.reads(),
            StepKind::Cond(c) => c.reads(),
            StepKind::While(w) => w.reads(),
            StepKind::Scan(s) => s.reads(),
            StepKind::Write(all) => all.iter().flat_map(|w| [w.from, w.to]).collect(),
        }
    }

    /// Slots that the step fills.
    pub fn fills(&self) -> &[usize] {
        match self {
            StepKind::Segment(s) => &s.outputs,
            StepKind::View(v) => std::slice::from_ref(&v.value),
            StepKind::Dynamic(d) => &d.outs,
            StepKind::Custom(c) => &c.outs,
            StepKind::Cond(c) => &c.outs,
            StepKind::While(w) => &w.outs,
            StepKind::Scan(s) => &s.outs,
            StepKind::Write(_) => &[],
        }
    }

    /// Programs that the step calls.
    pub fn programs(&self) -> Vec<&Program> {
        match self {
            StepKind::Segment(s) => vec![&s.program],
            StepKind::Cond(c) => vec![&c.then.program, &c.otherwise.program],
            StepKind::While(w) => vec![&w.condition.program, &w.body.program],
            StepKind::Scan(s) => vec![&s.body.program],
            StepKind::View(_) | StepKind::Dynamic(_) | StepKind::Custom(_) | StepKind::Write(_) => {
                Vec::new()
            }
        }
    }
}

impl<P> Cond<P> {
    /// Slots that the step reads.
    pub fn reads(&self) -> Vec<usize> {
        let inputs = self.then.inputs.iter().chain(&self.otherwise.inputs);
        std::iter::once(self.predicate)
            .chain(slots(inputs))
            .collect()
    }
}

impl<P> While<P> {
    /// Slots that the step reads.
    pub fn reads(&self) -> Vec<usize> {
        let inputs = self.condition.inputs.iter().chain(&self.body.inputs);
        slots(inputs.chain(&self.carried)).collect()
    }
}

impl<P> Scan<P> {
    /// Slots that the step reads.
    pub fn reads(&self) -> Vec<usize> {
        let inputs = slots(self.body.inputs.iter().chain(&self.carried));
        inputs.chain(self.sliced.iter().copied()).collect()
    }
}

/// Slots among operands.
fn slots<'a>(all: impl Iterator<Item = &'a Operand>) -> impl Iterator<Item = usize> {
    all.filter_map(|o| match o {
        Operand::Slot(s) => Some(*s),
        _ => None,
    })
}
