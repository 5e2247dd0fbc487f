//! The rules that a program keeps. An executor may rely on them, so a program read from disk is
//! verified first.
//!
//! They are about references: positions are within their lists, size lines and aliases refer
//! backwards (so a single pass evaluates them, and there are no cycles), lists that belong together
//! are equally long. That buffers do not overlap, and that kernels stay within them, is not checked
//! here: the plan's verifier holds the former, and poisoned memory tests the latter.

use crate::text::Place as Line;
use crate::*;
use inrush_base::{Error, Result};
use std::collections::BTreeSet;

/// A broken rule and the line of the text form that it stands on.
struct Problem {
    line: Line,
    message: String,
}

type Checked = std::result::Result<(), Problem>;

fn rule(holds: bool, line: Line, message: impl FnOnce() -> String) -> Checked {
    if holds {
        Ok(())
    } else {
        Err(Problem {
            line,
            message: message(),
        })
    }
}

impl Program {
    /// Checks all rules. The error shows the line of the text form that breaks one.
    ///
    /// # Errors
    /// An input error: the compiler's own output is right, so a broken rule means a damaged file.
    pub fn verify(&self) -> Result<()> {
        self.verify_within(0)
    }

    /// Checks all rules of a program that `depth` others are around.
    pub(crate) fn verify_within(&self, depth: usize) -> Result<()> {
        self.verify_own()?;
        match &self.parts {
            Some(parts) => parts.verify(self, depth),
            None => Ok(()),
        }
    }

    /// Checks the rules of all but the parts.
    fn verify_own(&self) -> Result<()> {
        self.rules().map_err(|p| {
            let line = self.print_place(p.line).unwrap_or_default();
            Error::input(format!(
                "the program is damaged: {}\n  {line}\n  ^",
                p.message
            ))
        })
    }

    fn size(&self, line: Line, id: SizeId) -> Checked {
        rule((id.0 as usize) < self.sizes.len(), line, || {
            format!("there is no size z{}", id.0)
        })
    }

    fn each_size<'a>(&self, line: Line, ids: impl IntoIterator<Item = &'a SizeId>) -> Checked {
        ids.into_iter().try_for_each(|id| self.size(line, *id))
    }

    fn buffer(&self, line: Line, id: BufferId) -> Checked {
        rule((id as usize) < self.buffers.len(), line, || {
            format!("there is no buffer b{id}")
        })
    }

    fn each_buffer(&self, line: Line, ids: &[BufferId]) -> Checked {
        ids.iter().try_for_each(|id| self.buffer(line, *id))
    }

    fn kernel(&self, line: Line, id: u32) -> Checked {
        rule((id as usize) < self.kernels.len(), line, || {
            format!("there is no kernel k{id}")
        })
    }

    /// Checks all rules, in the order of the text form.
    fn rules(&self) -> Checked {
        self.size_lines()?;
        self.size(Line::Arena, self.arena_bytes)?;
        self.size(Line::LoadArena, self.load_bytes)?;
        self.symbol_sources()?;
        for (k, i) in self.inputs.iter().enumerate() {
            let line = Line::Input(k);
            match &i.ty {
                InputType::Tensor { sizes, strides, .. } => {
                    self.tensor(line, sizes, strides)?;
                }
                InputType::Int { value } => self.size(line, *value)?,
                InputType::Constant { .. } | InputType::Ignored => {}
            }
        }
        for (k, g) in self.guards.iter().enumerate() {
            self.each_size(Line::Guard(k), [&g.left, &g.right])?;
        }
        self.buffer_places()?;
        let mut before: Option<&Step> = None;
        for (k, s) in self.load_steps.iter().chain(&self.steps).enumerate() {
            // A launch of a call cannot run with one at load.
            if k == self.load_steps.len() {
                before = None;
            }
            match s {
                Step::Launch(l) => {
                    self.launch(Line::Step(k), l)?;
                    rule(
                        !l.beside || matches!(before, Some(Step::Launch(_))),
                        Line::Step(k),
                        || "there is no launch beside which this one could run".into(),
                    )?;
                }
                Step::Contract(c) => self.contract(Line::Step(k), c)?,
                Step::Library(c) => {
                    for o in c.inputs.iter().chain(&c.outputs) {
                        self.buffer(Line::Step(k), o.buffer)?;
                        self.each_size(Line::Step(k), &o.sizes)?;
                    }
                }
            }
            before = Some(s);
        }
        for (k, o) in self.outputs.iter().enumerate() {
            let line = Line::Output(k);
            match o {
                Output::Tensor {
                    buffer,
                    sizes,
                    strides,
                    ..
                } => {
                    self.buffer(line, *buffer)?;
                    self.tensor(line, sizes, strides)?;
                }
                Output::Int { value } => self.size(line, *value)?,
                Output::Scalar { .. } | Output::Mutation | Output::None => {}
            }
        }
        Ok(())
    }

    /// Checks that lines refer backwards.
    fn size_lines(&self) -> Checked {
        for (k, s) in self.sizes.iter().enumerate() {
            let line = Line::Size(k);
            let back = s.operands().iter().all(|o| (o.0 as usize) < k);
            rule(back, line, || "a size refers forward".into())?;
            let known = !matches!(s, Size::Sym(s) if *s as usize >= self.symbols.len());
            rule(known, line, || {
                "a size names a symbol that does not exist".into()
            })?;
        }
        Ok(())
    }

    /// Checks that each symbol can be read from its input: a factor of 0 could not be solved.
    fn symbol_sources(&self) -> Checked {
        let mut names = BTreeSet::new();
        for (k, s) in self.symbols.iter().enumerate() {
            let line = Line::Symbol(k);
            rule(names.insert(&s.name), line, || {
                format!("a second symbol `{}`", s.name)
            })?;
            let ok = match s.source {
                SymbolSource::Dim {
                    input, dim, factor, ..
                } => {
                    let rank = match self.inputs.get(input as usize).map(|i| &i.ty) {
                        Some(InputType::Tensor { sizes, .. }) => sizes.len(),
                        _ => 0,
                    };
                    factor != 0 && (dim as usize) < rank
                }
                // Kernels of a plain program would take its value.
                SymbolSource::Data => self.parts.is_some(),
                SymbolSource::Int { input } => self
                    .inputs
                    .get(input as usize)
                    .is_some_and(|i| matches!(i.ty, InputType::Int { .. })),
            };
            rule(ok, line, || format!("symbol `{}` has no source", s.name))?;
        }
        Ok(())
    }

    fn tensor(&self, line: Line, sizes: &[SizeId], strides: &[SizeId]) -> Checked {
        rule(sizes.len() == strides.len(), line, || {
            format!("{} strides for {} sizes", strides.len(), sizes.len())
        })?;
        self.each_size(line, sizes.iter().chain(strides))
    }

    /// Checks places. An alias of an earlier buffer cannot form a cycle.
    fn buffer_places(&self) -> Checked {
        for (k, b) in self.buffers.iter().enumerate() {
            let line = Line::Buffer(k);
            self.size(line, b.bytes)?;
            match &b.place {
                Place::Input { input } => {
                    let ty = self.inputs.get(*input as usize).map(|i| &i.ty);
                    let ok = matches!(ty, Some(InputType::Tensor { .. }));
                    rule(ok, line, || format!("input {input} is no tensor"))?;
                }
                Place::Weight(w) => rule(w.sizes.len() == w.strides.len(), line, || {
                    format!("{} strides for {} sizes", w.strides.len(), w.sizes.len())
                })?,
                Place::Persistent { offset } | Place::Arena { offset } => {
                    self.size(line, *offset)?;
                }
                Place::Output { output } => {
                    rule((*output as usize) < self.outputs.len(), line, || {
                        format!("there is no output {output}")
                    })?;
                }
                Place::Alias { of, offset } => {
                    rule((*of as usize) < k, line, || {
                        format!("an alias of b{of}, which is not an earlier buffer")
                    })?;
                    self.size(line, *offset)?;
                }
            }
        }
        Ok(())
    }

    fn launch(&self, line: Line, l: &Launch) -> Checked {
        self.kernel(line, l.kernel)?;
        self.each_buffer(line, &l.buffers)?;
        self.each_size(line, &l.sizes)?;
        self.each_size(line, [&l.units, &l.unit_cost, &l.scratch_bytes])
    }

    fn contract(&self, line: Line, c: &Contract) -> Checked {
        self.kernel(line, c.epilogue)?;
        self.each_buffer(line, &[c.a, c.b])?;
        self.each_buffer(line, &c.buffers)?;
        self.each_size(line, &c.sizes)?;
        self.each_size(line, [&c.a_offset, &c.b_offset])?;
        for l in &c.batch {
            self.each_size(line, [&l.size, &l.a_stride, &l.b_stride])?;
        }
        for l in &c.k {
            self.each_size(line, [&l.size, &l.a_stride, &l.b_stride])?;
        }
        for l in c.m.iter().chain(&c.n) {
            self.each_size(line, [&l.size, &l.stride])?;
        }
        if let Some(s) = &c.store {
            self.each_size(line, [&s.offset])?;
            self.each_size(line, s.batch.iter().chain(&s.m).chain(&s.n))?;
            let strides = (s.batch.len(), s.m.len(), s.n.len());
            let levels = (c.batch.len(), c.m.len(), c.n.len());
            rule(strides == levels && c.buffers.len() == 1, line, || {
                "a store has a stride for each level, and one buffer".to_string()
            })?;
        }
        Ok(())
    }
}
