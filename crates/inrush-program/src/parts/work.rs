//! Work between the segments of a program that no kernel does, for executors of any kind.

use super::{Body, Cond, Custom, Dynamic, MOST_NESTED, Operand, Param, Scan, While};
use crate::host::{Lowered, Segment};
use crate::{InputType, Program, SizeId, Step};
use inrush_base::{Error, Result};
use serde::{Deserialize, Serialize};

/// Work that a host does between segments. Bodies of control flow are programs of the form `P`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[allow(clippy::large_enum_variant)] // Boxed where steps are held.
pub enum Work<P = Program> {
    /// A function that allocates its results, on the host.
    Dynamic(Dynamic),
    /// Functions of the library whose results have known sizes, on the host: the segment's steps are calls of the library alone.
    Library {
        segment: Segment,
        /// The operator and its Python line, for errors.
        origin: String,
    },
    /// An operator of the user's, whose function the host registered for the device.
    Custom(Custom),
    Cond(Cond<P>),
    While(While<P>),
    Scan(Scan<P>),
}

impl<P> Work<P> {
    /// Slots that the work reads.
    pub fn reads(&self) -> Vec<usize> {
        match self {
            Work::Dynamic(d) => d.inputs.iter().flatten().copied().collect(),
            Work::Library { segment, .. } => segment.inputs.clone(),
            Work::Custom(c) => c.reads(),
            Work::Cond(c) => c.reads(),
            Work::While(w) => w.reads(),
            Work::Scan(s) => s.reads(),
        }
    }

    /// Slots that the work fills.
    pub fn fills(&self) -> &[usize] {
        match self {
            Work::Dynamic(d) => &d.outs,
            Work::Library { segment, .. } => &segment.outputs,
            Work::Custom(c) => &c.outs,
            Work::Cond(c) => &c.outs,
            Work::While(w) => &w.outs,
            Work::Scan(s) => &s.outs,
        }
    }

    /// Programs that the work calls, with their names.
    pub fn bodies(&self) -> Vec<(&'static str, &Body<P>)> {
        match self {
            Work::Dynamic(_) | Work::Library { .. } | Work::Custom(_) => Vec::new(),
            Work::Cond(c) => vec![("then", &c.then), ("otherwise", &c.otherwise)],
            Work::While(w) => vec![("condition", &w.condition), ("body", &w.body)],
            Work::Scan(s) => vec![("body", &s.body)],
        }
    }

    /// Returns the same programs, to be changed.
    pub fn bodies_mut(&mut self) -> Vec<&mut Body<P>> {
        match self {
            Work::Dynamic(_) | Work::Library { .. } | Work::Custom(_) => Vec::new(),
            Work::Cond(c) => vec![&mut c.then, &mut c.otherwise],
            Work::While(w) => vec![&mut w.condition, &mut w.body],
            Work::Scan(s) => vec![&mut s.body],
        }
    }

    /// Returns the operator and its Python line.
    pub fn origin(&self) -> &str {
        match self {
            Work::Dynamic(d) => &d.origin,
            Work::Library { origin, .. } => origin,
            Work::Custom(c) => &c.origin,
            Work::Cond(c) => &c.origin,
            Work::While(w) => &w.origin,
            Work::Scan(s) => &s.origin,
        }
    }

    /// Returns a word for the kind of work: `nonzero`, `cond`.
    pub fn title(&self) -> String {
        match self {
            Work::Dynamic(d) => d.function.clone(),
            Work::Library { .. } => self.host_functions().join(", "),
            Work::Custom(c) => c.name().into(),
            Work::Cond(_) => "cond".into(),
            Work::While(_) => "while".into(),
            Work::Scan(_) => "scan".into(),
        }
    }

    /// Returns the names of the library's functions that run on the host; empty for other work.
    pub fn host_functions(&self) -> Vec<&str> {
        match self {
            Work::Dynamic(d) => vec![&d.function],
            Work::Library { segment, .. } => (segment.program.steps.iter())
                .filter_map(|s| match s {
                    Step::Library(c) => Some(c.function.as_str()),
                    _ => None,
                })
                .collect(),
            Work::Custom(_) | Work::Cond(_) | Work::While(_) | Work::Scan(_) => Vec::new(),
        }
    }
}

impl Work<Lowered> {
    /// Checks work of a program for a device, which may come from a file: slots, sizes and symbols are among so many. `depth`
    /// programs are around the one with the work.
    ///
    /// # Errors
    /// An input error.
    pub(crate) fn verify(
        &self,
        (slots, sizes, symbols): (usize, usize, usize),
        depth: usize,
    ) -> Result<()> {
        let slot = |s: &usize| need(*s < slots, "a slot is missing");
        let size = |id: &SizeId| need((id.0 as usize) < sizes, "a size is missing");
        self.reads().iter().try_for_each(slot)?;
        self.fills().iter().try_for_each(slot)?;
        let carries = |all: &[Operand]| {
            all.iter().try_for_each(|o| match o {
                Operand::Slot(_) => Ok(()),
                Operand::Size(id) => size(id),
                Operand::Carried(_) | Operand::Slice(_) => need(false, "a loop begins with a turn"),
            })
        };
        let body = |b: &Body<Lowered>, (carried, sliced): (usize, usize), outs: usize| {
            need(depth < MOST_NESTED, "too many programs within programs")?;
            b.program.check_within(depth + 1)?;
            let p = &b.program.program;
            need(p.constants.is_empty(), "a body has weights")?;
            need(p.inputs.len() == b.inputs.len(), "a body has other inputs")?;
            need(p.outputs.len() == outs, "a body has other outputs")?;
            need(!b.program.writes(), "a body writes what is not its own")?;
            b.inputs.iter().try_for_each(|o| match o {
                Operand::Slot(_) => Ok(()),
                Operand::Size(id) => size(id),
                Operand::Carried(k) => need(*k < carried, "a body has other inputs"),
                Operand::Slice(k) => need(*k < sliced, "a body has other inputs"),
            })
        };
        match self {
            Work::Dynamic(d) => d.params.iter().try_for_each(|p| match p {
                Param::Size(id) => size(id),
                Param::Num(_) | Param::None => Ok(()),
            }),
            Work::Library { segment, .. } => verify_library(segment, symbols),
            Work::Custom(c) => c.verify(sizes),
            Work::Cond(c) => {
                body(&c.then, (0, 0), c.outs.len())?;
                body(&c.otherwise, (0, 0), c.outs.len())
            }
            Work::While(w) => {
                carries(&w.carried)?;
                need(
                    w.outs.len() == w.carried.len(),
                    "a loop carries other values",
                )?;
                body(&w.condition, (w.carried.len(), 0), 1)?;
                body(&w.body, (w.carried.len(), 0), w.outs.len())
            }
            Work::Scan(s) => {
                carries(&s.carried)?;
                need(!s.sliced.is_empty(), "a scan has nothing to slice")?;
                let count = s.carried.len() + s.stacked.len();
                need(s.outs.len() == count, "a scan carries other values")?;
                for l in &s.stacked {
                    need(
                        !l.sizes.is_empty() && l.sizes.len() == l.strides.len(),
                        "a scan stacks other values",
                    )?;
                    l.sizes.iter().chain(&l.strides).try_for_each(size)?;
                }
                body(&s.body, (s.carried.len(), s.sliced.len()), count)
            }
        }
    }
}

fn need(holds: bool, what: &str) -> Result<()> {
    if holds {
        return Ok(());
    }
    Err(Error::input(format!("a host program is damaged: {what}")))
}

/// Checks a segment of calls of the library.
fn verify_library(s: &Segment, symbols: usize) -> Result<()> {
    let p = &s.program;
    p.verify()?;
    let known = (s.symbols.iter()).all(|k| usize::try_from(*k).is_ok_and(|k| k < symbols));
    need(known, "a size is missing")?;
    let alone = p.parts.is_none()
        && p.load_steps.is_empty()
        && p.kernels.is_empty()
        && p.steps.iter().all(|s| matches!(s, Step::Library(_)));
    need(alone, "work of the library has other steps")?;
    let counts = s.inputs.len() <= p.inputs.len()
        && s.outputs.len() == p.outputs.len()
        && s.symbols.len() == p.symbols.len();
    need(counts, "work of the library has other inputs")?;
    let kinds = p.inputs.iter().enumerate().all(|(at, i)| match i.ty {
        InputType::Tensor { .. } => at < s.inputs.len(),
        InputType::Int { .. } => at >= s.inputs.len(),
        _ => false,
    });
    need(kinds, "work of the library has other inputs")
}
