//! From a sequence of segments and calls to the steps of a program in parts.

use super::Build;
use super::calls::Calls;
use crate::partition::Held;
use crate::{Part, Sequence, SequenceOutput, What};
use inrush_base::{Error, Result};
use inrush_graph::{Graph, InputKind, OutputKind, Type};
use inrush_program::parts::{self, Out, Step, StepKind, Work, Write};
use std::fmt::Write as _;

/// Steps in the making.
pub(super) struct Lower<'a> {
    graph: &'a Graph,
    calls: Calls<'a>,
    /// Operators that nothing runs.
    refused: Vec<Refused>,
}

/// An operator that is refused, with the reason and its Python line.
struct Refused {
    op: String,
    reason: String,
    line: Option<String>,
}

/// Builds the steps of a sequence. Bodies of control flow hold the weights in `held` themselves.
///
/// # Errors
/// An unsupported error that lists all operators which are neither compiled nor functions of the library.
pub(super) fn lower(
    graph: &Graph,
    held: Held,
    sequence: Sequence,
    build: &mut Build<'_>,
) -> Result<parts::Sequence> {
    let mut l = Lower {
        graph,
        calls: Calls::new(graph, sequence.ints),
        refused: Vec::new(),
    };
    let inputs = l.inputs();
    let mut steps: Vec<Step> = Vec::with_capacity(sequence.parts.len() + 1);
    for part in sequence.parts {
        steps.extend(l.step(part, &held, build)?);
    }
    if !l.refused.is_empty() {
        return Err(refuse(&l.refused));
    }
    let (outputs, writes) = l.outputs(&sequence.outputs)?;
    // Sources of writes are read at the end, so that nothing frees them.
    if !writes.is_empty() {
        let target = |slot: &usize| writes.iter().any(|w| w.to == *slot);
        (steps.iter_mut()).for_each(|s| s.frees.retain(|f| !target(f)));
        steps.push(Step {
            kind: StepKind::Write(writes),
            frees: Vec::new(),
        });
    }
    let symbols = (sequence.symbols.iter())
        .map(|s| l.calls.slots.symbol(s))
        .collect();
    let weights = l.weights(&steps, &outputs);
    Ok(parts::Sequence {
        steps,
        symbols,
        sizes: sequence.sizes,
        slots: l.calls.slots.count(),
        inputs,
        weights,
        outputs,
    })
}

impl Lower<'_> {
    /// Gives the user's inputs their slots, in call order.
    fn inputs(&mut self) -> Vec<usize> {
        let mut inputs: Vec<(usize, usize)> = (self.graph.inputs.iter())
            .filter_map(|i| match i.kind {
                InputKind::User { index } => Some((index, self.calls.slots.of(i.value))),
                _ => None,
            })
            .collect();
        inputs.sort_unstable();
        inputs.into_iter().map(|(_, slot)| slot).collect()
    }

    /// Returns slots and names of the weights that steps read or outputs name.
    fn weights(&self, steps: &[Step], outputs: &[Out]) -> Vec<(usize, String)> {
        let mut used = vec![false; self.calls.slots.count()];
        for s in steps {
            s.kind.reads().into_iter().for_each(|s| used[s] = true);
        }
        for o in outputs {
            if let Out::Slot(s) = o {
                used[*s] = true;
            }
        }
        let weight = |i: &inrush_graph::Input| match &i.kind {
            InputKind::User { .. } => None,
            InputKind::Parameter { name }
            | InputKind::Buffer { name, .. }
            | InputKind::Constant { name } => {
                let slot = self.calls.slots.get(i.value)?;
                used[slot].then(|| (slot, name.clone()))
            }
        };
        self.graph.inputs.iter().filter_map(weight).collect()
    }

    /// Turns a part into a step; none where it is refused.
    fn step(&mut self, part: Part, held: &Held, build: &mut Build<'_>) -> Result<Option<Step>> {
        let kind = match part.what {
            What::Segment(s) => StepKind::Segment(self.calls.slots.segment(s)),
            What::View(v) => StepKind::View(self.calls.slots.view(v)),
            What::Call(c) => match self.calls.work(&c, held, build)? {
                Some(Work::Dynamic(d)) => StepKind::Dynamic(d),
                Some(Work::Custom(c)) => StepKind::Custom(c),
                Some(Work::Cond(c)) => StepKind::Cond(c),
                Some(Work::While(w)) => StepKind::While(w),
                Some(Work::Scan(s)) => StepKind::Scan(s),
                Some(Work::Library { .. }) => {
                    return Err(Error::internal("a call that segments compile"));
                }
                None => {
                    let node = &self.graph.nodes[c.node.index()];
                    self.refused.push(Refused {
                        line: self.graph.line_of(node).map(str::to_string),
                        op: c.op,
                        reason: c.reason,
                    });
                    return Ok(None);
                }
            },
        };
        Ok(Some(Step {
            kind,
            frees: self.calls.slots.all(&part.frees),
        }))
    }

    /// Returns the outputs, and the writes of new contents.
    fn outputs(&mut self, outputs: &[SequenceOutput]) -> Result<(Vec<Out>, Vec<Write>)> {
        let (mut all, mut writes) = (Vec::new(), Vec::new());
        for (o, given) in outputs.iter().zip(&self.graph.outputs) {
            if let OutputKind::Mutation { input } = given.kind {
                let SequenceOutput::Value(v) = o else {
                    return Err(Error::internal("new contents are no tensor"));
                };
                writes.push(Write {
                    from: self.calls.slots.of(*v),
                    to: self.calls.slots.of(self.graph.inputs[input].value),
                });
                all.push(Out::None);
                continue;
            }
            all.push(match o {
                SequenceOutput::Value(v) => match self.graph.value(*v).ty {
                    Type::Tensor(_) => Out::Slot(self.calls.slots.of(*v)),
                    Type::Constant(s) => Out::Scalar(s.into()),
                    _ => Out::None,
                },
                SequenceOutput::Int(id) => Out::Size(*id),
                SequenceOutput::Scalar(s) => Out::Scalar((*s).into()),
                SequenceOutput::None => Out::None,
            });
        }
        Ok((all, writes))
    }
}

/// Lists operators that are refused, each once with its lines.
fn refuse(all: &[Refused]) -> Error {
    let mut text = match all.len() {
        1 => "an operator is not supported:".to_string(),
        n => format!("{n} calls of operators are not supported:"),
    };
    for r in all {
        _ = write!(text, "\n  {} ({})", r.op, r.reason);
        if let Some(line) = &r.line {
            _ = write!(text, "\n    {line}");
        }
    }
    Error::unsupported(text)
}
