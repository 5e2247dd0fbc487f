//! Checks of host programs that packages hold.
//!
//! [`HostProgram::check`](crate::host::HostProgram::check) holds that numbers name what is there. An executor without an
//! interpreter asks for more: nothing that an interpreter does, every value defined once and before it is read, and kernels
//! for all launches.

use crate::host::{
    Argument, Gpu, LibraryOp, Lowered, Object, Out, Segment, Step, StepKind, UserKernel,
};
use crate::parts::{Custom, Work};
use crate::{Buffer, Dt, GpuKernel, Guard, Place, Step as Launched};
use inrush_base::{Error, Result};
use std::collections::BTreeSet;

impl Lowered {
    /// Checks all that an executor without an interpreter relies on: the program may come from a file.
    ///
    /// # Errors
    /// An input error.
    pub fn check(&self) -> Result<()> {
        self.check_within(0)
    }

    /// Checks a program that `depth` programs are around.
    pub(crate) fn check_within(&self, depth: usize) -> Result<()> {
        let p = &self.program;
        let damaged = |what: &str| Error::input(format!("a host program is damaged: {what}"));
        let need = |ok: bool, what: &str| if ok { Ok(()) } else { Err(damaged(what)) };
        p.check(self.objects.len())?;
        let gpu = p.gpu.as_ref().ok_or_else(|| damaged("it has no GPU"))?;
        need(
            gpu.device.is_gpu() && !gpu.graphs,
            "it needs an interpreter",
        )?;
        need(self.inputs.len() == p.inputs.len(), "names of inputs")?;
        self.check_complex(gpu)?;
        let kernels: BTreeSet<&str> = gpu.kernels.iter().map(|k| k.symbol.as_str()).collect();
        let mut defined = vec![false; p.slots];
        let define = |defined: &mut [bool], slot: usize| {
            need(!defined[slot], "a value that is defined twice")?;
            defined[slot] = true;
            Ok::<(), Error>(())
        };
        for slot in &p.inputs {
            define(&mut defined, *slot)?;
        }
        for (slot, object) in &p.constants {
            let weight = matches!(self.objects[*object], Object::Weight(_));
            need(weight, "a constant that is no weight")?;
            define(&mut defined, *slot)?;
        }
        for step in &p.steps {
            let work = matches!(step.kind, StepKind::Work(_));
            need(work || !step.binds_symbols, "a size that depends on data")?;
            let (reads, outs): (Vec<usize>, &[usize]) = match &step.kind {
                StepKind::Segment(s) => {
                    check_segment(s, &kernels)?;
                    (s.inputs.clone(), &s.outputs)
                }
                StepKind::View(v) => (vec![v.base], std::slice::from_ref(&v.value)),
                StepKind::Library(l) => {
                    let product = matches!(l.op, LibraryOp::Mm | LibraryOp::Bmm);
                    let operands = l.inputs.len() == 2 && l.outs.len() == 1;
                    let reads: Option<Vec<usize>> = l.inputs.iter().copied().collect();
                    let reads = reads.filter(|_| product && operands && l.call.is_none());
                    let reads = reads.ok_or_else(|| damaged("a library call"))?;
                    let known = |s: &usize| gpu.layouts[*s].is_some();
                    need(
                        reads.iter().chain(&l.outs).all(known),
                        "a value without a layout",
                    )?;
                    (reads, &l.outs)
                }
                StepKind::Work(w) => {
                    w.verify((p.slots, p.sizes.len(), p.symbols.len()), depth)?;
                    (w.reads(), w.fills())
                }
                StepKind::Kernel(k) => {
                    check_user_kernel(k, gpu)?;
                    (k.tensors.iter().flatten().copied().collect(), &k.outs)
                }
                StepKind::Call(_) => return Err(damaged("a step that needs an interpreter")),
            };
            need(
                reads.iter().all(|s| defined[*s]),
                "a value that is read before it is defined",
            )?;
            for slot in outs {
                define(&mut defined, *slot)?;
            }
        }
        for s in &p.symbols {
            let known = match s.after {
                None => p.inputs.contains(&s.slot),
                Some(at) => p.steps.get(at).is_some_and(|step| {
                    let made = |w: &Work<Lowered>| w.fills().contains(&s.slot);
                    step.binds_symbols && matches!(&step.kind, StepKind::Work(w) if made(w))
                }),
            };
            need(known, "a size that is read from nothing")?;
        }
        let guarded = |g: &Guard| {
            [g.left, g.right]
                .iter()
                .all(|id| (id.0 as usize) < p.sizes.len())
        };
        need(self.guards.iter().all(guarded), "a condition on sizes")?;
        let bounded = self.bounds.is_empty() || self.bounds.len() == p.symbols.len();
        need(bounded, "bounds of sizes")?;
        let mut written = BTreeSet::new();
        for o in &p.outputs {
            let ok = match o {
                Out::Mutation { value, into } => {
                    let tensor = |s: &usize| gpu.layouts[*s].is_some();
                    need(tensor(value) && tensor(into), "new contents of no tensor")?;
                    need(written.insert(*into), "two new contents of one tensor")?;
                    defined[*value]
                }
                Out::Slot(s) => defined[*s],
                Out::Size(_) => true,
                Out::Constant(o) => !matches!(self.objects[*o], Object::Weight(_)),
            };
            need(ok, "an output that nothing defines")?;
        }
        Ok(())
    }

    /// Returns true if a call writes an argument or a weight.
    pub fn writes(&self) -> bool {
        let changes = |o: &Out| matches!(o, Out::Mutation { .. });
        let written = |s: &Segment| {
            let outer = |b: &Buffer| matches!(b.place, Place::Input { .. } | Place::Weight(_));
            s.program.buffers.iter().any(|b| b.written && outer(b))
        };
        self.program.outputs.iter().any(changes)
            || (self.program.steps.iter())
                .any(|s| matches!(&s.kind, StepKind::Segment(s) if written(s)))
    }

    /// Returns the work of the steps that no kernel does.
    fn works(&self) -> impl Iterator<Item = &Work<Lowered>> {
        self.program.steps.iter().filter_map(|s| match &s.kind {
            StepKind::Work(w) => Some(&**w),
            _ => None,
        })
    }

    /// Returns the program, then those that its control flow calls, in the order of the steps.
    pub fn programs(&self) -> Vec<&Lowered> {
        let mut all = vec![self];
        for w in self.works() {
            for (_, body) in w.bodies() {
                all.extend(body.program.programs());
            }
        }
        all
    }

    /// Returns the kernels of these programs, in order.
    pub fn kernels(&self) -> Vec<&GpuKernel> {
        (self.programs().into_iter())
            .flat_map(|l| l.program.gpu.iter().flat_map(|g| &g.kernels))
            .collect()
    }

    /// Applies a function to these programs.
    pub fn change(&mut self, f: &mut dyn FnMut(&mut Gpu)) {
        if let Some(gpu) = &mut self.program.gpu {
            f(gpu);
        }
        for step in &mut self.program.steps {
            if let StepKind::Work(w) = &mut step.kind {
                w.bodies_mut().into_iter().for_each(|b| b.program.change(f));
            }
        }
    }

    /// Returns the number of launches of kernels, in all programs.
    pub fn launches(&self) -> usize {
        let of = |step: &Step| match &step.kind {
            StepKind::Segment(s) => s.program.steps.len(),
            StepKind::Kernel(_) => 1,
            _ => 0,
        };
        (self.programs().into_iter())
            .flat_map(|l| l.program.steps.iter().map(of))
            .sum()
    }

    /// Returns the number of matrix products that a library does, in all programs.
    pub fn products(&self) -> usize {
        let library = |s: &&Step| matches!(s.kind, StepKind::Library(_));
        let of = |l: &Lowered| l.program.steps.iter().filter(library).count();
        self.programs().into_iter().map(of).sum()
    }

    /// Returns the names of functions that run on the host, sorted, each once, in all programs.
    pub fn host_functions(&self) -> Vec<&str> {
        let mut names: Vec<&str> = (self.programs().into_iter())
            .flat_map(|l| l.works().flat_map(Work::host_functions))
            .collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// Returns the calls of operators of the user's, in all programs.
    pub fn operator_calls(&self) -> Vec<&Custom> {
        (self.programs().into_iter())
            .flat_map(|l| l.works())
            .filter_map(|w| match w {
                Work::Custom(c) => Some(c),
                _ => None,
            })
            .collect()
    }

    /// Returns true if a call waits for data of the device, which decide about sizes or about what runs.
    pub fn reads_data(&self) -> bool {
        self.works().next().is_some()
    }

    /// Checks that complex inputs and outputs are pairs of real numbers in the program.
    fn check_complex(&self, gpu: &Gpu) -> Result<()> {
        let pairs = |slot: Option<usize>, dtype: Dt| {
            let layout = slot.and_then(|s| gpu.layouts.get(s)?.as_ref());
            layout.is_some_and(|l| dtype.0.part() == Some(l.dtype.0) && !l.sizes.is_empty())
        };
        let p = &self.program;
        let input = |(at, dtype): &(usize, Dt)| pairs(p.inputs.get(*at).copied(), *dtype);
        let output = |(at, dtype): &(usize, Dt)| match p.outputs.get(*at) {
            Some(Out::Slot(s)) => pairs(Some(*s), *dtype),
            _ => false,
        };
        let c = &self.complex;
        if c.inputs.iter().all(input) && c.outputs.iter().all(output) {
            return Ok(());
        }
        Err(Error::input(
            "a host program is damaged: a complex value without parts",
        ))
    }
}

/// Checks the launch of a user's kernel, whose numbers name what is there: tensors have layouts, and each argument is of its
/// parameter's kind.
fn check_user_kernel(k: &UserKernel, gpu: &Gpu) -> Result<()> {
    let fits = |(ty, a): (&str, &Argument)| match a {
        Argument::Tensor(_) => ty.starts_with('*'),
        Argument::Descriptor(_) => ty.starts_with("tensordesc<"),
        Argument::Float(_) => ty == "fp32",
        Argument::Size(_) | Argument::Int(_) => {
            matches!(ty, "i1" | "i32" | "u32" | "i64" | "u64" | "fp32")
        }
    };
    let signature = gpu.kernels[k.kernel].signature.iter();
    let mut arguments = (signature.map(|(_, ty)| ty.as_str())).zip(&k.arguments);
    let mut tensors = k.tensors.iter().flatten().chain(&k.outs);
    let written: BTreeSet<usize> = k.written.iter().copied().collect();
    let count = |a: &Argument| matches!(a, Argument::Size(_) | Argument::Int(_));
    if tensors.all(|s| gpu.layouts[*s].is_some())
        && written.len() == k.written.len()
        && arguments.all(fits)
        && k.grid.iter().all(count)
    {
        return Ok(());
    }
    Err(Error::input(
        "a host program is damaged: a launch of a user's kernel",
    ))
}

/// Checks the program of a segment: all of it is launches of known kernels.
fn check_segment(s: &Segment, kernels: &BTreeSet<&str>) -> Result<()> {
    s.program.verify()?;
    for step in s.program.load_steps.iter().chain(&s.program.steps) {
        let Launched::Launch(l) = step else {
            return Err(Error::input(
                "a host program is damaged: a step that GPUs do not run",
            ));
        };
        let symbol = s.program.kernels[l.kernel as usize].symbol.as_str();
        if !kernels.contains(symbol) {
            return Err(Error::input(format!(
                "a host program is damaged: there is no kernel `{symbol}`"
            )));
        }
    }
    Ok(())
}
