//! From a sequence of segments and calls to the steps of a program in parts.

use super::Build;
use super::control::Control;
use crate::partition::Held;
use crate::{Call, Part, Sequence, SequenceOutput, Slots, What};
use inrush_aten::dynamic::{self, Dynamic};
use inrush_base::{Error, Result};
use inrush_expr::Expr;
use inrush_graph::{Arg, Graph, InputKind, OutputKind, Type, ValueId};
use inrush_program::parts::{self, Out, Param, Step, StepKind, Write};
use inrush_program::{Num, Size, SizeId};
use rustc_hash::FxHashMap;
use std::fmt::Write as _;

/// Steps in the making.
pub(super) struct Lower<'a> {
    graph: &'a Graph,
    pub slots: Slots,
    /// Size arithmetic; parameters of functions add constants.
    sizes: Vec<Size>,
    /// Lines of integers that calls take.
    ints: FxHashMap<Expr, SizeId>,
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
        slots: Slots::default(),
        sizes: sequence.sizes,
        ints: sequence.ints.into_iter().collect(),
        refused: Vec::new(),
    };
    let inputs = l.inputs();
    let mut steps: Vec<Step> = Vec::with_capacity(sequence.parts.len() + 1);
    for part in sequence.parts {
        let control = Control {
            graph,
            held: &held,
            build,
        };
        steps.extend(l.step(part, control)?);
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
        .map(|s| l.slots.symbol(s))
        .collect();
    let weights = l.weights(&steps, &outputs);
    Ok(parts::Sequence {
        steps,
        symbols,
        sizes: l.sizes,
        slots: l.slots.count(),
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
                InputKind::User { index } => Some((index, self.slots.of(i.value))),
                _ => None,
            })
            .collect();
        inputs.sort_unstable();
        inputs.into_iter().map(|(_, slot)| slot).collect()
    }

    /// Returns slots and names of the weights that steps read or outputs name.
    fn weights(&self, steps: &[Step], outputs: &[Out]) -> Vec<(usize, String)> {
        let mut used = vec![false; self.slots.count()];
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
                let slot = self.slots.get(i.value)?;
                used[slot].then(|| (slot, name.clone()))
            }
        };
        self.graph.inputs.iter().filter_map(weight).collect()
    }

    /// Turns a part into a step; none where it is refused.
    fn step(&mut self, part: Part, mut control: Control<'_, '_, '_>) -> Result<Option<Step>> {
        let kind = match part.what {
            What::Segment(s) => StepKind::Segment(self.slots.segment(s)),
            What::View(v) => StepKind::View(self.slots.view(v)),
            What::Call(c) if dynamic::is_control(&c.op) => {
                let node = &self.graph.nodes[c.node.index()];
                let origin = self.origin(&c);
                (control.step(self, &c, origin)).map_err(|e| self.graph.locate(node, e))?
            }
            What::Call(c) => match dynamic::find(&c.op) {
                Some(d) => StepKind::Dynamic(self.dynamic(&c, d)?),
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
            frees: self.slots.all(&part.frees),
        }))
    }

    /// Returns the call of a function of the library.
    fn dynamic(&mut self, c: &Call, d: &Dynamic) -> Result<parts::Dynamic> {
        let graph = self.graph;
        let node = &graph.nodes[c.node.index()];
        let schema =
            dynamic::schema(&c.op).ok_or_else(|| Error::internal("an operator is gone"))?;
        let is_tensor = |v: &ValueId| matches!(graph.value(*v).ty, Type::Tensor(_));
        let (mut inputs, mut params) = (Vec::new(), Vec::new());
        for (p, arg) in schema.params.iter().zip(&node.args) {
            if d.params.contains(&p.name.as_str()) {
                params.push((
                    p.name.clone(),
                    self.param(arg).map_err(|e| graph.locate(node, e))?,
                ));
                continue;
            }
            match arg {
                Arg::Value(v) if is_tensor(v) => inputs.push(Some(self.slots.of(*v))),
                Arg::None => inputs.push(None),
                _ => {}
            }
        }
        // In the order of the function.
        let params = (d.params.iter())
            .filter_map(|name| {
                let at = params.iter().position(|(n, _)| n == name)?;
                Some(params[at].1.clone())
            })
            .collect();
        Ok(parts::Dynamic {
            function: d.function.to_string(),
            params,
            inputs,
            outs: self.slots.all(&c.outs),
            origin: self.origin(c),
        })
    }

    /// Names a call and its Python line, for errors.
    fn origin(&self, c: &Call) -> String {
        let node = &self.graph.nodes[c.node.index()];
        let line = (self.graph.line_of(node)).map_or(String::new(), |l| format!("\n  at {l}"));
        let name = (node.outs.first()).map_or("", |v| self.graph.value(*v).name.as_str());
        format!(
            "node `{}` ({}){line}",
            inrush_graph::source_name(name),
            c.op
        )
    }

    /// Returns the line of an integer that a call takes.
    pub fn int(&self, e: Expr) -> Result<SizeId> {
        let missing = || {
            Error::unsupported(format!(
                "the number {}, which is not known here",
                self.graph.exprs.show(e)
            ))
        };
        self.ints.get(&e).copied().ok_or_else(missing)
    }

    fn param(&self, arg: &Arg) -> Result<Param> {
        Ok(match arg {
            Arg::Int(e) => match self.graph.exprs.as_int(*e) {
                Some(v) => Param::Num(Num::Int(v)),
                None => Param::Size(self.int(*e)?),
            },
            Arg::Bool(b) => Param::Num(Num::Bool(*b)),
            Arg::Float(v) => Param::Num(inrush_base::Scalar::Float(*v).into()),
            Arg::None => Param::None,
            other => {
                return Err(Error::unsupported(format!("the argument {other:?}")));
            }
        })
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
                    from: self.slots.of(*v),
                    to: self.slots.of(self.graph.inputs[input].value),
                });
                all.push(Out::None);
                continue;
            }
            all.push(match o {
                SequenceOutput::Value(v) => match self.graph.value(*v).ty {
                    Type::Tensor(_) => Out::Slot(self.slots.of(*v)),
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
