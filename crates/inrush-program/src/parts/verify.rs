//! Rules of programs in parts.

use super::{Body, Cond, MOST_NESTED, Operand, Out, Param, Scan, Sequence, StepKind, While};
use crate::host::{Read, Segment};
use crate::{InputType, Output, Place, Program, Size, SizeId, SymbolSource};
use inrush_base::{DType, Error, Result};

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
    /// segments and of control flow keep their own rules. `depth` programs are around this one.
    ///
    /// # Errors
    /// An input error: the compiler's own output is right, so a broken rule means a damaged file.
    pub(crate) fn verify(&self, program: &Program, depth: usize) -> Result<()> {
        need(
            program.steps.is_empty() && program.kernels.is_empty(),
            "a program in parts has steps of its own",
        )?;
        self.verify_lists(program)?;
        let filled = self.verify_steps(depth)?;
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
        // A call has a value for each slot: no more than the file names.
        let named = |s: &super::Step| s.kind.fills().len() + s.frees.len();
        let named: usize = self.steps.iter().map(named).sum();
        let most = self.inputs.len() + self.weights.len() + named;
        need(self.slots <= most, "too many slots")?;
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
            let solved = match here.read {
                Read::Int => true,
                Read::Dim { dim, factor, .. } => factor != 0 && u32::try_from(dim).is_ok(),
            };
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
    fn verify_steps(&self, depth: usize) -> Result<Vec<bool>> {
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
            self.verify_step(&step.kind, &seen, depth)?;
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

    fn verify_step(&self, step: &StepKind, seen: &[bool], depth: usize) -> Result<()> {
        match step {
            StepKind::Segment(s) => verify_segment(s, seen),
            StepKind::Cond(c) => self.verify_cond(c, depth),
            StepKind::While(w) => self.verify_while(w, depth),
            StepKind::Scan(s) => self.verify_scan(s, depth),
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
                Param::Num(_) | Param::None => Ok(()),
            }),
            StepKind::Custom(c) => c.verify(self.sizes.len()),
            StepKind::Write(all) => all.iter().try_for_each(|w| {
                let held = self.inputs.contains(&w.to) || self.weights.iter().any(|s| s.0 == w.to);
                need(held, "a step writes what is no input and no weight")
            }),
        }
    }

    /// Checks a body's program and arguments. `carried` and `sliced` count what a loop hands over.
    fn verify_body(
        &self,
        body: &Body,
        (carried, sliced): (usize, usize),
        depth: usize,
    ) -> Result<()> {
        need(depth < MOST_NESTED, "too many programs within programs")?;
        body.program.verify_within(depth + 1)?;
        let p = &body.program;
        need(
            p.inputs.len() == body.inputs.len(),
            "a body has other inputs",
        )?;
        let writes = p.written_inputs().contains(&true)
            || (p.buffers.iter()).any(|b| b.written && matches!(b.place, Place::Weight(_)))
            || p.outputs.contains(&Output::Mutation);
        need(!writes, "a body writes what is not its own")?;
        for (i, o) in p.inputs.iter().zip(&body.inputs) {
            let fits = match o {
                Operand::Slot(_) => true,
                Operand::Size(id) => {
                    self.size(*id)?;
                    !matches!(i.ty, InputType::Tensor { .. })
                }
                Operand::Carried(k) => *k < carried,
                Operand::Slice(k) => *k < sliced && matches!(i.ty, InputType::Tensor { .. }),
            };
            need(fits, "a body has other inputs")?;
        }
        Ok(())
    }

    /// Checks a choice: both programs give values of the same kinds, dtypes and ranks.
    fn verify_cond(&self, c: &Cond, depth: usize) -> Result<()> {
        self.verify_body(&c.then, (0, 0), depth)?;
        self.verify_body(&c.otherwise, (0, 0), depth)?;
        let (a, b) = (&c.then.program.outputs, &c.otherwise.program.outputs);
        let same = a.len() == c.outs.len()
            && b.len() == c.outs.len()
            && a.iter().zip(b).all(|(a, b)| Kind::of(a) == Kind::of(b));
        need(same, "the branches of a choice give other values")
    }

    /// Checks a loop: its body gives what it carries.
    fn verify_while(&self, w: &While, depth: usize) -> Result<()> {
        self.verify_carried(&w.carried)?;
        let handed = (w.carried.len(), 0);
        self.verify_body(&w.condition, handed, depth)?;
        self.verify_body(&w.body, handed, depth)?;
        let one = match &w.condition.program.outputs[..] {
            [Output::Tensor { dtype, sizes, .. }] => dtype.0 == DType::Bool && sizes.is_empty(),
            [Output::Int { .. } | Output::Scalar { .. }] => true,
            _ => false,
        };
        need(one, "the condition of a loop is no bool")?;
        need(
            w.outs.len() == w.carried.len() && w.body.program.outputs.len() == w.carried.len(),
            "a loop carries other values",
        )?;
        verify_turn(&w.condition, &w.body.program.outputs)?;
        verify_turn(&w.body, &w.body.program.outputs)
    }

    /// Checks a scan: its body gives what it carries, and slices of the stacked results.
    fn verify_scan(&self, s: &Scan, depth: usize) -> Result<()> {
        self.verify_carried(&s.carried)?;
        need(!s.sliced.is_empty(), "a scan has nothing to slice")?;
        self.verify_body(&s.body, (s.carried.len(), s.sliced.len()), depth)?;
        let given = &s.body.program.outputs;
        let count = s.carried.len() + s.stacked.len();
        need(
            given.len() == count && s.outs.len() == count,
            "a scan carries other values",
        )?;
        verify_turn(&s.body, &given[..s.carried.len()])?;
        for (o, l) in given[s.carried.len()..].iter().zip(&s.stacked) {
            self.all_sizes(l.sizes.iter().chain(&l.strides))?;
            let rank = l.sizes.len();
            let slice = rank > 0
                && rank == l.strides.len()
                && Kind::of(o) == Kind::Tensor(l.dtype.0, rank - 1);
            need(slice, "a scan stacks other values")?;
        }
        Ok(())
    }

    fn verify_carried(&self, carried: &[Operand]) -> Result<()> {
        carried.iter().try_for_each(|o| match o {
            Operand::Slot(_) => Ok(()),
            Operand::Size(id) => self.size(*id),
            Operand::Carried(_) | Operand::Slice(_) => need(false, "a loop begins with a turn"),
        })
    }
}

/// The kind of a value, as known ahead of a call.
#[derive(PartialEq, Eq)]
enum Kind {
    /// Its dtype and number of dimensions.
    Tensor(DType, usize),
    Number,
    None,
}

impl Kind {
    fn of(o: &Output) -> Kind {
        match o {
            Output::Tensor { dtype, sizes, .. } => Kind::Tensor(dtype.0, sizes.len()),
            Output::Int { .. } | Output::Scalar { .. } => Kind::Number,
            Output::Mutation | Output::None => Kind::None,
        }
    }
}

/// Checks that a body takes the values that a turn gives it.
fn verify_turn(body: &Body, given: &[Output]) -> Result<()> {
    for (i, o) in body.program.inputs.iter().zip(&body.inputs) {
        let Operand::Carried(k) = o else { continue };
        let fits = match (&i.ty, given.get(*k).map(Kind::of)) {
            (InputType::Tensor { dtype, sizes, .. }, Some(given)) => {
                given == Kind::Tensor(dtype.0, sizes.len())
            }
            (InputType::Int { .. } | InputType::Constant { .. }, Some(given)) => {
                given == Kind::Number
            }
            (InputType::Ignored, Some(_)) => true,
            (_, None) => false,
        };
        need(fits, "a loop carries other values than its body takes")?;
    }
    Ok(())
}

/// Checks a segment. `seen` are the symbols that are known.
fn verify_segment(s: &Segment, seen: &[bool]) -> Result<()> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Dt, Input, Num, Reads};

    /// A program that gives a constant.
    fn constant(v: i64) -> Program {
        Program {
            sizes: vec![Size::Const(0)],
            arena_bytes: SizeId(0),
            load_bytes: SizeId(0),
            outputs: vec![Output::Scalar { value: Num::Int(v) }],
            ..Program::default()
        }
    }

    fn body(program: Program) -> Body {
        Body {
            program,
            inputs: Vec::new(),
        }
    }

    /// A program that takes a bool and chooses between two others.
    fn choice(then: Program, otherwise: Program) -> Program {
        let steps = vec![super::super::Step {
            kind: StepKind::Cond(Cond {
                predicate: 0,
                then: body(then),
                otherwise: body(otherwise),
                outs: vec![1],
                origin: String::new(),
            }),
            frees: Vec::new(),
        }];
        Program {
            inputs: vec![Input {
                name: "p".into(),
                ty: InputType::Tensor {
                    dtype: Dt(DType::Bool),
                    sizes: Vec::new(),
                    strides: Vec::new(),
                },
                reads: Reads::default(),
            }],
            outputs: vec![Output::Int { value: SizeId(0) }],
            parts: Some(Box::new(Sequence {
                steps,
                slots: 2,
                inputs: vec![0],
                outputs: vec![Out::Slot(1)],
                ..Sequence::default()
            })),
            ..constant(0)
        }
    }

    #[test]
    fn branches_give_values_of_the_same_kinds() {
        choice(constant(1), constant(2)).verify().expect("a choice");
        let mut none = constant(2);
        none.outputs[0] = Output::None;
        assert!(choice(constant(1), none).verify().is_err());
        let mut two = constant(2);
        two.outputs.push(Output::None);
        assert!(choice(constant(1), two).verify().is_err());
    }

    #[test]
    fn bodies_take_what_they_are_given() {
        // A body that takes a bool, and is given nothing or a value that no loop carries.
        let inner = choice(constant(1), constant(2));
        assert!(choice(inner.clone(), constant(2)).verify().is_err());
        let mut p = choice(constant(1), constant(2));
        let parts = p.parts.as_mut().expect("parts");
        let StepKind::Cond(c) = &mut parts.steps[0].kind else {
            panic!("a choice");
        };
        c.then.program = inner;
        c.then.inputs = vec![Operand::Slot(0)];
        p.verify().expect("a choice within a choice");
        for damaged in [
            Operand::Carried(0),
            Operand::Slice(0),
            Operand::Size(SizeId(9)),
            Operand::Slot(1),
        ] {
            let mut p = p.clone();
            let parts = p.parts.as_mut().expect("parts");
            let StepKind::Cond(c) = &mut parts.steps[0].kind else {
                panic!("a choice");
            };
            c.then.inputs = vec![damaged];
            assert!(p.verify().is_err(), "{damaged:?}");
        }
    }

    #[test]
    fn loops_carry_what_their_bodies_give() {
        let turn = |condition: Program, program: Program, carried: usize| {
            let mut p = choice(constant(1), constant(2));
            let parts = p.parts.as_mut().expect("parts");
            parts.steps[0].kind = StepKind::While(While {
                condition: body(condition),
                body: body(program),
                carried: vec![Operand::Slot(0); carried],
                outs: vec![1],
                origin: String::new(),
            });
            p
        };
        turn(constant(0), constant(1), 1).verify().expect("a loop");
        assert!(turn(constant(0), constant(1), 2).verify().is_err());
        let mut none = constant(0);
        none.outputs.clear();
        assert!(turn(none.clone(), constant(1), 1).verify().is_err());
        assert!(turn(constant(0), none, 1).verify().is_err());
    }

    #[test]
    fn programs_nest_to_a_bound() {
        let within = |inner: Program| {
            let mut p = choice(constant(1), constant(2));
            let parts = p.parts.as_mut().expect("parts");
            let StepKind::Cond(c) = &mut parts.steps[0].kind else {
                panic!("a choice");
            };
            c.then.program = inner;
            c.then.inputs = vec![Operand::Slot(0)];
            p
        };
        let mut p = choice(constant(1), constant(2));
        for _ in 1..MOST_NESTED {
            p = within(p);
        }
        p.verify().expect("as deep as it may be");
        let e = within(p).verify().expect_err("too deep");
        assert!(e.to_string().contains("too many programs"), "{e}");
    }
}
