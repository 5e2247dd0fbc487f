//! A program in parts: compiled programs, and between them calls whose data decide the sizes of what follows.
//!
//! ```text
//! segment   mask = x > 0                     a program of its own
//! dynamic   at[u0, 2] = nonzero(mask)        a function of the library allocates its result: u0 is known from here on
//! segment   y[u0] = x[at] * 2                a program that takes u0 as an integer
//! ```
//!
//! The [`Program`] that holds a [`Sequence`] has no steps of its own. It says what a caller sees: inputs, weights, outputs,
//! symbols, guards. Symbols of both are the same, in the same order; those that the sequence reads from data have the source
//! [`SymbolSource::Data`](crate::SymbolSource::Data). Values are held in *slots*, one for each value of the graph.

use crate::host::{Read, Segment, Symbol, View};
use crate::{InputType, Num, Output, Place, Program, Size, SizeId, SymbolSource};
use inrush_base::{Error, Result};
use serde::{Deserialize, Serialize};

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

/// A parameter of a function.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Param {
    Num(Num),
    Size(SizeId),
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
            StepKind::Write(all) => all.iter().flat_map(|w| [w.from, w.to]).collect(),
        }
    }

    /// Slots that the step fills.
    pub fn fills(&self) -> &[usize] {
        match self {
            StepKind::Segment(s) => &s.outputs,
            StepKind::View(v) => std::slice::from_ref(&v.value),
            StepKind::Dynamic(d) => &d.outs,
            StepKind::Write(_) => &[],
        }
    }
}

/// Turns a broken rule into an error.
fn need(holds: bool, what: &str) -> Result<()> {
    if holds {
        Ok(())
    } else {
        Err(Error::input(format!("the program is damaged: {what}")))
    }
}

impl Sequence {
    /// Checks the sequence of a program: references are within their lists, slots are filled before they are read, programs of
    /// segments keep their own rules.
    ///
    /// # Errors
    /// An input error: the compiler's own output is right, so a broken rule means a damaged file.
    pub fn verify(&self, program: &Program) -> Result<()> {
        need(
            program.steps.is_empty() && program.kernels.is_empty(),
            "a program in parts has steps of its own",
        )?;
        self.verify_lists(program)?;
        let filled = self.verify_steps()?;
        for o in &self.outputs {
            match o {
                Out::Slot(s) => need(filled.get(*s) == Some(&true), "an output is never made")?,
                Out::Size(id) => self.size(*id)?,
                Out::Scalar(_) | Out::None => {}
            }
        }
        Ok(())
    }

    fn size(&self, id: SizeId) -> Result<()> {
        need((id.0 as usize) < self.sizes.len(), "a size is missing")
    }

    fn all_sizes<'a>(&self, ids: impl IntoIterator<Item = &'a SizeId>) -> Result<()> {
        ids.into_iter().try_for_each(|id| self.size(*id))
    }

    fn verify_lists(&self, program: &Program) -> Result<()> {
        need(self.slots <= 1 << 24, "too many slots")?;
        for (at, line) in self.sizes.iter().enumerate() {
            let back = line.operands().iter().all(|o| (o.0 as usize) < at);
            let known = !matches!(line, Size::Sym(s) if *s as usize >= self.symbols.len());
            need(back && known, "a size refers forward")?;
        }
        need(
            self.symbols.len() == program.symbols.len(),
            "its parts have other symbols",
        )?;
        for (here, outer) in self.symbols.iter().zip(&program.symbols) {
            let solved = !matches!(here.read, Read::Dim { factor: 0, .. });
            need(here.slot < self.slots && solved, "a symbol has no source")?;
            let data = outer.source == SymbolSource::Data;
            need(data == here.after.is_some(), "a symbol has two sources")?;
            let after = here.after.is_none_or(|at| at < self.steps.len());
            need(after, "a symbol is read after a step that is missing")?;
        }
        need(
            self.inputs.len() == program.inputs.len(),
            "its parts have other inputs",
        )?;
        need(
            self.outputs.len() == program.outputs.len(),
            "its parts have other outputs",
        )?;
        for (o, outer) in self.outputs.iter().zip(&program.outputs) {
            let same = match outer {
                Output::Tensor { .. } => matches!(o, Out::Slot(_)),
                Output::Int { .. } => matches!(o, Out::Size(_) | Out::Slot(_)),
                Output::Scalar { .. } => matches!(o, Out::Scalar(_)),
                Output::Mutation | Output::None => matches!(o, Out::None),
            };
            need(same, "its parts have other outputs")?;
        }
        for (_, name) in &self.weights {
            let there = (program.buffers.iter())
                .any(|b| matches!(&b.place, Place::Weight(w) if w.name == *name));
            need(there, "a weight is missing")?;
        }
        Ok(())
    }

    /// Checks the steps. Returns which slots are filled at the end.
    fn verify_steps(&self) -> Result<Vec<bool>> {
        let mut filled = vec![false; self.slots];
        let starts = self.inputs.iter().chain(self.weights.iter().map(|w| &w.0));
        for s in starts {
            need(*s < self.slots, "a slot is missing")?;
            filled[*s] = true;
        }
        let mut seen = vec![false; self.symbols.len()];
        for (k, s) in self.symbols.iter().enumerate() {
            seen[k] = s.after.is_none();
        }
        for (at, step) in self.steps.iter().enumerate() {
            let there = (step.kind.reads().iter()).all(|s| filled.get(*s) == Some(&true));
            need(there, "a step reads what was not made")?;
            self.verify_step(&step.kind, &seen)?;
            for s in step.kind.fills() {
                need(*s < self.slots, "a slot is missing")?;
                filled[*s] = true;
            }
            for (k, s) in self.symbols.iter().enumerate() {
                if s.after == Some(at) {
                    need(filled[s.slot], "a symbol is read from nothing")?;
                    seen[k] = true;
                }
            }
            for s in &step.frees {
                need(*s < self.slots, "a slot is missing")?;
                filled[*s] = false;
            }
        }
        Ok(filled)
    }

    fn verify_step(&self, step: &StepKind, seen: &[bool]) -> Result<()> {
        match step {
            StepKind::Segment(s) => {
                let p = &s.program;
                need(p.parts.is_none(), "a segment is in parts")?;
                p.verify()?;
                let ints = p.inputs.iter().skip(s.inputs.len());
                let tensors = p.inputs.iter().take(s.inputs.len());
                let same = s.inputs.len() <= p.inputs.len()
                    && s.outputs.len() == p.outputs.len()
                    && s.symbols.len() == p.symbols.len();
                need(same, "a segment has other inputs or outputs")?;
                for i in tensors {
                    let ok = matches!(i.ty, InputType::Tensor { .. });
                    need(ok, "a segment takes what is no tensor")?;
                }
                for i in ints {
                    let InputType::Int { value } = &i.ty else {
                        return need(false, "a segment takes a tensor that is missing");
                    };
                    let symbol = matches!(p.sizes[value.0 as usize], Size::Sym(_));
                    need(symbol, "a segment takes an integer that is no symbol")?;
                }
                let known = |k: &u32| seen.get(*k as usize) == Some(&true);
                need(
                    s.symbols.iter().all(known),
                    "a segment takes an integer that is not known yet",
                )
            }
            StepKind::View(v) => {
                need(v.sizes.len() == v.strides.len(), "a view is damaged")?;
                self.size(v.offset)?;
                self.all_sizes(v.sizes.iter().chain(&v.strides))?;
                if let Some((sizes, strides)) = &v.base_layout {
                    need(sizes.len() == strides.len(), "a view is damaged")?;
                    self.all_sizes(sizes.iter().chain(strides))?;
                }
                Ok(())
            }
            StepKind::Dynamic(d) => (d.params.iter()).try_for_each(|p| match p {
                Param::Size(id) => self.size(*id),
                Param::Num(_) => Ok(()),
            }),
            StepKind::Write(all) => all.iter().try_for_each(|w| {
                let held = self.inputs.contains(&w.to) || self.weights.iter().any(|s| s.0 == w.to);
                need(held, "a step writes what is no input and no weight")
            }),
        }
    }
}
