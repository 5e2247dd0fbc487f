//! The steps of a call as the function `call`, and what a caller needs besides: inputs of the right shapes.

use crate::kernels::{Kernels, map_type, segment_of};
use crate::names::{Names, is_keyword, plain, quote, tuple};
use crate::segment::{self, dtype, number, tensors};
use crate::sizes::Sizes;
use crate::{Code, Object, Unit};
use inrush_base::{Error, Result};
use inrush_program::host::{
    Argument, Call, LibraryOp, Out, Read, Segment, Step, StepKind, Template, UserKernel, View,
};
use std::fmt::Write;

/// The printed call.
#[derive(Default)]
pub(crate) struct Printed {
    /// Functions of the segments.
    pub(crate) segments: String,
    /// Lines that fill `LOADED`.
    pub(crate) loads: Vec<String>,
    /// The function `call`.
    pub(crate) call: String,
    /// The function `inputs`.
    pub(crate) inputs: String,
    /// Weights with the expressions of their layouts, in order.
    pub(crate) weights: Vec<(String, String)>,
    /// Weights are read.
    pub(crate) has_weights: bool,
}

/// A text of a body, or the place of the size arithmetic that is known after a step.
enum Line {
    Text(String),
    Sizes(usize),
}

/// The state of printing a call.
pub(crate) struct Printer<'a> {
    pub(crate) unit: &'a Unit<'a>,
    kernels: &'a Kernels<'a>,
    /// Names of values, by slot.
    pub(crate) slots: Vec<String>,
    /// By slot: the name of a written input as the caller gave it, where it may have been copied.
    pub(crate) given: Vec<Option<String>>,
    pub(crate) symbols: Vec<String>,
    /// By slot: a later step or an output reads it.
    pub(crate) read: Vec<bool>,
    pub(crate) sizes: Sizes<'a>,
    lines: Vec<Line>,
    pub(crate) names: Names,
    /// Control flow calls it.
    body: bool,
}

/// Prints the call of a unit's program, with the functions that it calls.
///
/// # Errors
/// An unsupported error that names what has no source.
pub(crate) fn call<'a>(
    unit: &Unit<'a>,
    kernels: &Kernels<'a>,
    module: &mut Names,
) -> Result<Printed> {
    let mut printed = Printed::default();
    printed.call = function(unit, "call", false, kernels, module, &mut printed)?;
    Ok(printed)
}

/// Prints a program as the function `name`. What it calls is added to what is printed. A `body` is called by control flow; the other
/// program is the file's.
fn function(
    unit: &Unit<'_>,
    name: &str,
    body: bool,
    kernels: &Kernels<'_>,
    module: &mut Names,
    printed: &mut Printed,
) -> Result<String> {
    let program = unit.program;
    let read = reads(unit);
    let prefix = if body {
        format!("{name}_")
    } else {
        String::new()
    };
    let alone = program.steps.iter().filter_map(segment_of).count() == 1;
    // Names of functions are taken before those of values.
    let mut functions: Vec<Vec<String>> = Vec::with_capacity(program.steps.len());
    for (at, step) in program.steps.iter().enumerate() {
        let mut of_step = Vec::new();
        if let Some(s) = segment_of(step) {
            let wanted = if alone {
                format!("{prefix}segment")
            } else {
                format!("{prefix}segment_{at}")
            };
            let name = module.fresh(&wanted);
            print_segment(unit, s, &name, &read, (kernels, module), printed)?;
            of_step.push(name);
        }
        if let StepKind::Work(w) = &step.kind {
            for (role, called) in w.bodies() {
                let name = module.fresh(&format!("{prefix}{role}_{at}"));
                let objects: Vec<Object> =
                    called.program.objects.iter().map(Object::from).collect();
                let of_body = unit.of_body(&called.program, &objects);
                match only_segment(&of_body) {
                    Some(s) => {
                        let read = reads(&of_body);
                        print_segment(&of_body, s, &name, &read, (kernels, module), printed)?;
                    }
                    None => {
                        let text = function(&of_body, &name, true, kernels, module, printed)?;
                        printed.segments.push_str(&text);
                    }
                }
                of_step.push(name);
            }
        }
        functions.push(of_step);
    }
    let mut names = module.clone();
    let symbols = symbol_names(unit, &mut names);
    let known: Vec<(String, usize)> = (symbols.iter().zip(&program.symbols))
        .map(|(name, s)| (name.clone(), s.after.map_or(0, |a| a + 1)))
        .collect();
    let slots = slot_names(unit, &mut names);
    let mut printer = Printer {
        given: vec![None; slots.len()],
        slots,
        kernels,
        sizes: Sizes::new(&program.sizes, &known)?,
        unit,
        symbols,
        read,
        lines: Vec::new(),
        names,
        body,
    };
    let weight = |c: &(usize, usize)| {
        printer.read[c.0] && matches!(unit.objects.get(c.1), Some(Object::Weight(_)))
    };
    if program.constants.iter().any(weight) {
        printed.has_weights = true;
        printed.weights.extend(weights_of(unit)?);
    }
    let text = printer.print(name, &functions, printed)?;
    if !body {
        printed.inputs = printer.print_inputs()?;
    }
    Ok(text)
}

/// Returns the segment that is all of a program: its function takes what the program takes, and gives what it gives.
fn only_segment<'a>(unit: &Unit<'a>) -> Option<&'a Segment> {
    let program = unit.program;
    let [Step { kind, .. }] = program.steps.as_slice() else {
        return None;
    };
    let StepKind::Segment(s) = kind else {
        return None;
    };
    let inputs: Vec<usize> = tensors(s).into_iter().map(|k| s.inputs[k]).collect();
    let outputs: Vec<Out> = s.outputs.iter().map(|slot| Out::Slot(*slot)).collect();
    let plain = program.symbols.is_empty()
        && program.constants.is_empty()
        && unit.expected.is_none()
        && unit.guards.is_empty()
        && inputs == program.inputs
        && outputs == program.outputs;
    plain.then_some(s)
}

/// Prints the program of a segment as a function.
fn print_segment(
    unit: &Unit<'_>,
    s: &Segment,
    name: &str,
    read: &[bool],
    (kernels, module): (&Kernels<'_>, &mut Names),
    printed: &mut Printed,
) -> Result<()> {
    let outputs: Vec<usize> = (0..s.outputs.len())
        .filter(|k| read[s.outputs[*k]])
        .collect();
    let foreign: Vec<bool> = (s.inputs.iter())
        .map(|slot| is_foreign(unit, *slot) && !is_laid_out(unit, *slot))
        .collect();
    let results = (outputs.as_slice(), foreign.as_slice());
    let function = segment::function(s, name, results, kernels, module)?;
    printed.segments.push_str(&function.text);
    printed.has_weights |= !function.weights.is_empty();
    printed.weights.extend(function.weights);
    if let Some(load) = function.load {
        (printed.loads).push(format!("LOADED[{}] = {load}()", quote(name)));
    }
    Ok(())
}

/// Returns the layouts of the weights that slots of a call begin with.
fn weights_of(unit: &Unit<'_>) -> Result<Vec<(String, String)>> {
    let mut out = Vec::new();
    for (slot, object) in &unit.program.constants {
        let Some(Object::Weight(name)) = unit.objects.get(*object) else {
            continue;
        };
        let layout = unit
            .layout(*slot)
            .ok_or_else(|| Error::input("the program is damaged: a weight without a layout"))?;
        // Sizes of weights have no symbols.
        let symbols = vec![("n".to_string(), 0); unit.program.symbols.len()];
        let mut sizes = Sizes::new(&unit.program.sizes, &symbols)?;
        let n = tuple(&sizes.all(&layout.sizes)?);
        let by = tuple(&sizes.all(&layout.strides)?);
        out.push((
            name.clone(),
            format!("({}, {n}, {by})", dtype(layout.dtype.0)),
        ));
    }
    Ok(out)
}

/// Returns true if the call lays out the tensor in a slot when it begins.
fn is_laid_out(unit: &Unit<'_>, slot: usize) -> bool {
    unit.expected.is_some() && unit.program.inputs.contains(&slot)
}

/// Returns true if a tensor may have another layout than the program says: it comes from the caller, from an operator, or is in
/// the memory of another one.
pub(crate) fn is_foreign(unit: &Unit<'_>, slot: usize) -> bool {
    let program = unit.program;
    let weight = |c: &(usize, usize)| {
        c.0 == slot && matches!(unit.objects.get(c.1), Some(Object::Weight(_)))
    };
    let made = |step: &Step| match (&step.kind, segment_of(step)) {
        (_, Some(s)) => {
            let at = s.outputs.iter().position(|o| *o == slot);
            at.is_some_and(|k| segment::is_alone(&s.program, k))
        }
        (StepKind::Library(l), _) => l.call.is_none() && l.outs.contains(&slot),
        _ => false,
    };
    let own = program.constants.iter().any(weight) || program.steps.iter().any(made);
    !own
}

/// Returns for each slot if a step or an output reads it.
pub(crate) fn reads(unit: &Unit<'_>) -> Vec<bool> {
    let program = unit.program;
    let mut read = vec![false; program.slots];
    let mut mark = |slots: &[usize]| slots.iter().for_each(|s| read[*s] = true);
    for step in &program.steps {
        match &step.kind {
            StepKind::Segment(s) => mark(&s.inputs),
            StepKind::Call(c) => mark(&c.reads()),
            StepKind::View(v) => mark(&[v.base]),
            StepKind::Library(l) => {
                l.inputs.iter().flatten().for_each(|s| mark(&[*s]));
                l.call.iter().for_each(|c| mark(&c.reads()));
            }
            StepKind::Kernel(k) => k.tensors.iter().flatten().for_each(|s| mark(&[*s])),
            StepKind::Work(w) => mark(&w.reads()),
        }
    }
    for o in &program.outputs {
        match o {
            Out::Slot(s) => mark(&[*s]),
            Out::Mutation { value, into } => mark(&[*value, *into]),
            Out::Size(_) | Out::Constant(_) => {}
        }
    }
    program.symbols.iter().for_each(|s| mark(&[s.slot]));
    read
}

/// Names symbols as the segments do.
pub(crate) fn symbol_names(unit: &Unit<'_>, names: &mut Names) -> Vec<String> {
    let mut wanted: Vec<Option<&str>> = vec![None; unit.program.symbols.len()];
    for step in &unit.program.steps {
        if let Some(s) = segment_of(step) {
            for (at, symbol) in s.symbols.iter().zip(&s.program.symbols) {
                wanted[*at as usize].get_or_insert(&symbol.name);
            }
        }
    }
    (wanted.into_iter())
        .map(|w| names.fresh(w.unwrap_or("n")))
        .collect()
}

/// Names slots as the inputs, or as segments do.
pub(crate) fn slot_names(unit: &Unit<'_>, names: &mut Names) -> Vec<String> {
    let program = unit.program;
    let mut wanted: Vec<Option<&str>> = vec![None; program.slots];
    for (slot, name) in program.inputs.iter().zip(unit.inputs) {
        wanted[*slot] = Some(name);
    }
    for (slot, object) in &program.constants {
        if let Some(Object::Weight(name)) = unit.objects.get(*object) {
            wanted[*slot] = Some(name);
        }
    }
    for step in &program.steps {
        let Some(s) = segment_of(step) else {
            continue;
        };
        for (slot, input) in s.inputs.iter().zip(&s.program.inputs) {
            wanted[*slot].get_or_insert(&input.name);
        }
        for (slot, output) in s.outputs.iter().zip(&s.program.outputs) {
            if let inrush_program::Output::Tensor { buffer, .. } = output {
                wanted[*slot].get_or_insert(&s.program.buffers[*buffer as usize].name);
            }
        }
    }
    (wanted.into_iter())
        .map(|w| names.fresh(w.unwrap_or("value")))
        .collect()
}

impl<'a> Printer<'a> {
    pub(crate) fn line(&mut self, text: String) {
        self.lines.push(Line::Text(text));
    }

    fn print(
        &mut self,
        name: &str,
        functions: &[Vec<String>],
        printed: &Printed,
    ) -> Result<String> {
        let program = self.unit.program;
        let inputs: Vec<String> = (program.inputs.iter())
            .map(|s| self.slots[*s].clone())
            .collect();
        if !self.body {
            self.unpack(&inputs);
            self.expect_inputs();
        }
        self.bind_symbols(None);
        // Integers of segments have lines of the segments' size arithmetic, under the same names.
        self.expect_ints()?;
        self.lines.push(Line::Sizes(0));
        self.guards(0)?;
        self.lay_out_inputs()?;
        if printed.has_weights && !self.body {
            self.line("if not WEIGHTS:".into());
            self.line("    load_weights()".into());
        }
        if !printed.loads.is_empty() && !self.body {
            self.line("if not LOADED:".into());
            self.line("    load()".into());
        }
        self.constants()?;
        for (at, step) in program.steps.iter().enumerate() {
            match &step.kind {
                StepKind::Segment(s) => self.segment(s, &functions[at]),
                StepKind::Call(c) => self.call(c)?,
                StepKind::View(v) => self.view(v)?,
                StepKind::Library(l) => match &l.call {
                    Some(c) => self.call(c)?,
                    None => self.library(&l.op, &l.inputs, &l.outs)?,
                },
                StepKind::Work(w) => self.work(w, &functions[at])?,
                StepKind::Kernel(k) => self.user_kernel(k)?,
            }
            if step.binds_symbols {
                self.bind_symbols(Some(at));
            }
            self.lines.push(Line::Sizes(at + 1));
            self.guards(at + 1)?;
            if let StepKind::Work(w) = &step.kind {
                self.conform(w, at + 1)?;
            }
            // A value that nothing reads has no name in the text.
            let frees: Vec<String> = (step.frees.iter())
                .filter(|s| self.read[**s] && self.is_named(**s, at) && !self.is_written(**s))
                .map(|s| self.slots[*s].clone())
                .collect();
            if !frees.is_empty() {
                self.line(format!("del {}", frees.join(", ")));
            }
        }
        self.outputs()?;
        Ok(self.finish(name, &inputs))
    }

    /// Prints the assignment of the inputs to their names.
    fn unpack(&mut self, inputs: &[String]) {
        let count = inputs.len();
        self.line(format!("if len(inputs) != {count}:"));
        self.line(format!(
            "    raise InputError(f\"the graph takes {count} inputs, got {{len(inputs)}}\")"
        ));
        match inputs {
            [] => {}
            [one] => self.line(format!("({one},) = inputs")),
            all => self.line(format!("{} = inputs", all.join(", "))),
        }
    }

    /// Prints the checks of the relations of sizes that are known after a step.
    fn guards(&mut self, known: usize) -> Result<()> {
        for g in self.unit.guards {
            let of = |id| self.sizes.known(id);
            if of(g.left).max(of(g.right)) == known {
                let (left, right) = (self.sizes.get(g.left)?, self.sizes.get(g.right)?);
                self.line(segment::guard(g, &left, &right));
            }
        }
        Ok(())
    }

    /// Returns true if a slot has a value after a step.
    fn is_named(&self, slot: usize, at: usize) -> bool {
        let program = self.unit.program;
        let given = program.inputs.contains(&slot) || program.constants.iter().any(|c| c.0 == slot);
        let made = |kind: &StepKind| match kind {
            StepKind::Segment(s) => s.outputs.contains(&slot),
            StepKind::Call(c) => c.outs.contains(&slot),
            StepKind::View(v) => v.value == slot,
            StepKind::Library(l) => l.outs.contains(&slot),
            StepKind::Kernel(k) => k.outs.contains(&slot),
            StepKind::Work(w) => w.fills().contains(&slot),
        };
        given || program.steps[..=at].iter().any(|s| made(&s.kind))
    }

    /// Returns true if a slot gets new contents at the end of the call.
    pub(crate) fn is_written(&self, slot: usize) -> bool {
        let writes = |o: &Out| matches!(o, Out::Mutation { into, .. } if *into == slot);
        self.unit.program.outputs.iter().any(writes)
    }

    /// Joins the lines of the body, with the size arithmetic where it is known.
    fn finish(&mut self, name: &str, inputs: &[String]) -> String {
        let mut body = Vec::new();
        for line in std::mem::take(&mut self.lines) {
            match line {
                Line::Text(t) => body.push(t),
                Line::Sizes(known) => body.extend(self.sizes.definitions(known)),
            }
        }
        let doc = match inputs {
            _ if self.body => "A program that control flow calls.".to_string(),
            [] => "Runs the graph, which takes no inputs.".to_string(),
            names => format!("Runs the graph. Inputs: {}.", names.join(", ")),
        };
        let mut text = if self.body {
            format!("def {name}({}):\n", inputs.join(", "))
        } else {
            format!("@torch.no_grad()\ndef {name}(*inputs):\n")
        };
        _ = writeln!(text, "    \"\"\"{doc}\"\"\"");
        let indent = match self.unit.code {
            _ if self.body => "    ",
            Code::C { .. } => "    ",
            Code::Gpu(_) | Code::Built(..) => {
                text.push_str("    with on_device():\n");
                "        "
            }
        };
        for line in body {
            text.push_str(indent);
            text.push_str(&line);
            text.push('\n');
        }
        text.push_str("\n\n");
        text
    }

    /// Prints what slots begin with: weights and constants.
    fn constants(&mut self) -> Result<()> {
        for (slot, object) in &self.unit.program.constants {
            if !self.read[*slot] {
                continue;
            }
            let value = self.object(*object)?;
            let name = self.slots[*slot].clone();
            self.line(format!("{name} = {value}"));
        }
        Ok(())
    }

    /// Returns the expression of an object.
    fn object(&self, at: usize) -> Result<String> {
        match self.unit.objects.get(at) {
            Some(Object::Expression(e)) => Ok(e.clone()),
            Some(Object::Weight(name)) => Ok(format!("WEIGHTS[{}]", quote(name))),
            Some(Object::Missing(what)) => Err(Error::unsupported(format!(
                "{what} has no source, so the graph is not printed"
            ))),
            None => Err(Error::input("the program is damaged: no such object")),
        }
    }

    /// Returns the sizes of a segment by the names of the call's symbols.
    pub(crate) fn sizes_of(&self, s: &'a Segment) -> Result<Sizes<'a>> {
        let symbols: Vec<(String, usize)> = (s.symbols.iter())
            .map(|k| (self.symbols[*k as usize].clone(), 0))
            .collect();
        Sizes::new(&s.program.sizes, &symbols)
    }

    /// Prints the reads of the symbols that become known after a step.
    fn bind_symbols(&mut self, after: Option<usize>) {
        for (k, s) in self.unit.program.symbols.iter().enumerate() {
            if s.after != after {
                continue;
            }
            let (symbol, value) = (&self.symbols[k], &self.slots[s.slot]);
            let text = match s.read {
                Read::Int => format!("{symbol} = int({value})"),
                Read::Dim {
                    dim,
                    factor: 1,
                    offset: 0,
                } => {
                    format!("{symbol} = solve({}, {value}, {dim})", quote(value))
                }
                Read::Dim {
                    dim,
                    factor,
                    offset,
                } => format!(
                    "{symbol} = solve({}, {value}, {dim}, {factor}, {offset})",
                    quote(value)
                ),
            };
            let bounds = self.unit.bounds.get(k);
            let check =
                bounds.and_then(|b| segment::within(&self.symbols[k], &b.name, b.lower, b.upper));
            self.line(text);
            check.into_iter().for_each(|c| self.line(c));
        }
    }

    pub(crate) fn segment(&mut self, s: &Segment, function: &[String]) {
        let function = function.first().map_or("", String::as_str);
        let tensors = tensors(s).into_iter().map(|k| s.inputs[k]);
        let mut arguments: Vec<String> = tensors.map(|slot| self.slots[slot].clone()).collect();
        arguments.extend(s.symbols.iter().map(|k| self.symbols[*k as usize].clone()));
        let results: Vec<String> = (s.outputs.iter())
            .filter(|slot| self.read[**slot])
            .map(|slot| self.slots[*slot].clone())
            .collect();
        let call = format!("{function}({})", arguments.join(", "));
        self.line(if results.is_empty() {
            call
        } else {
            format!("{} = {call}", results.join(", "))
        });
    }

    fn call(&mut self, c: &Call) -> Result<()> {
        let mut arguments = Vec::new();
        for a in &c.args {
            arguments.push(self.template(a)?);
        }
        for (name, value) in &c.kwargs {
            let value = self.template(value)?;
            arguments.push(if is_keyword(name) {
                format!("**{{{}: {value}}}", quote(name))
            } else {
                format!("{name}={value}")
            });
        }
        let call = format!("{}({})", self.object(c.target)?, arguments.join(", "));
        let outs: Vec<String> = c.outs.iter().map(|s| self.slots[*s].clone()).collect();
        self.line(match (c.unpack, outs.as_slice()) {
            (_, []) => call,
            (false, [first, ..]) => format!("{first} = {call}"),
            (true, [one]) => format!("({one},) = flat({call})"),
            (true, all) => format!("{} = flat({call})", all.join(", ")),
        });
        Ok(())
    }

    fn template(&mut self, t: &Template) -> Result<String> {
        let mut all = |items: &[Template]| -> Result<Vec<String>> {
            items.iter().map(|i| self.template(i)).collect()
        };
        Ok(match t {
            Template::Slot(s) => self.slots[*s].clone(),
            Template::Size(id) => self.sizes.get(*id)?,
            Template::Constant(o) => self.object(*o)?,
            Template::Tuple(items) => tuple(&all(items)?),
            Template::List(items) => format!("[{}]", all(items)?.join(", ")),
            Template::Slice(parts) => format!("slice({})", all(parts.as_slice())?.join(", ")),
            Template::Dict(items) => {
                let mut out = Vec::new();
                for (key, value) in items {
                    out.push(format!("{}: {}", self.object(*key)?, self.template(value)?));
                }
                format!("{{{}}}", out.join(", "))
            }
        })
    }

    fn view(&mut self, v: &View) -> Result<()> {
        let mut base = self.slots[v.base].clone();
        if let Some((sizes, strides)) = &v.base_layout {
            let sizes = tuple(&self.sizes.all(sizes)?);
            let strides = tuple(&self.sizes.all(strides)?);
            base = format!("as_base({base}, {sizes}, {strides})");
        }
        let sizes = tuple(&self.sizes.all(&v.sizes)?);
        let strides = tuple(&self.sizes.all(&v.strides)?);
        let offset = self.sizes.get(v.offset)?;
        let value = self.slots[v.value].clone();
        let cast = match v.dtype {
            Some(d) => format!(".view({})", dtype(d.0)),
            None => String::new(),
        };
        self.line(format!(
            "{value} = view({base}{cast}, {offset}, {sizes}, {strides})"
        ));
        Ok(())
    }

    /// Prints a product of a host without operators.
    fn library(&mut self, op: &LibraryOp, inputs: &[Option<usize>], outs: &[usize]) -> Result<()> {
        let function = match op {
            LibraryOp::Mm => "torch.mm",
            LibraryOp::Bmm => "torch.bmm",
            other => {
                return Err(Error::unsupported(format!(
                    "the library call {other:?} is not printed as source yet"
                )));
            }
        };
        let damaged = || Error::input("the program is damaged: a library call");
        let [Some(a), Some(b)] = inputs else {
            return Err(damaged());
        };
        let [out] = outs else {
            return Err(damaged());
        };
        let layouts = self.unit.program.gpu.as_ref().map(|g| &g.layouts);
        let layout = layouts.and_then(|l| l.get(*out)?.as_ref());
        let layout = layout.ok_or_else(damaged)?;
        let sizes = tuple(&self.sizes.all(&layout.sizes)?);
        let strides = tuple(&self.sizes.all(&layout.strides)?);
        let (a, b, out) = (&self.slots[*a], &self.slots[*b], &self.slots[*out]);
        let d = dtype(layout.dtype.0);
        let make = format!("{out} = strided_memory({sizes}, {strides}, {d})");
        let call = format!("{function}({a}, {b}, out={out})");
        self.line(make);
        self.line(call);
        Ok(())
    }

    /// Prints a launch of a kernel of the user's, which writes into copies.
    fn user_kernel(&mut self, k: &UserKernel) -> Result<()> {
        let damaged = || Error::input("the program is damaged: a kernel of the user's");
        let gpu = self.unit.program.gpu.as_ref().ok_or_else(damaged)?;
        let kernel = gpu.kernels.get(k.kernel).ok_or_else(damaged)?;
        let name = self.kernels.user(kernel).ok_or_else(damaged)?.to_string();
        let signature = &kernel.signature;
        let mut tensors = Vec::with_capacity(k.tensors.len());
        // The layouts of the tensors, for descriptors.
        let mut layouts = Vec::with_capacity(k.tensors.len());
        for (at, slot) in k.tensors.iter().enumerate() {
            let written = k.written.iter().position(|w| *w == at);
            let out = written.and_then(|w| k.outs.get(w)).copied();
            let of = out.or(*slot).ok_or_else(damaged)?;
            let layout = [Some(of), *slot].into_iter().flatten();
            let layout = layout
                .into_iter()
                .find_map(|s| gpu.layouts.get(s)?.as_ref());
            layouts.push(layout);
            let Some(out) = out else {
                let value = self.slots[of].clone();
                tensors.push(if k.aligned.contains(&at) {
                    format!("aligned({value})")
                } else {
                    value
                });
                continue;
            };
            let to = self.slots[out].clone();
            let text = match (layout, slot) {
                (_, Some(from)) => format!("copied({})", self.slots[*from]),
                (None, None) => return Err(damaged()),
                (Some(layout), None) => {
                    let sizes = tuple(&self.sizes.all(&layout.sizes)?);
                    let strides = tuple(&self.sizes.all(&layout.strides)?);
                    format!(
                        "strided_memory({sizes}, {strides}, {})",
                        dtype(layout.dtype.0)
                    )
                }
            };
            self.line(format!("{to} = {text}"));
            tensors.push(to);
        }
        let grid = [&k.grid[0], &k.grid[1], &k.grid[2]].map(|a| self.argument(a, &tensors));
        let grid: Vec<String> = grid.into_iter().collect::<Result<_>>()?;
        let mut arguments = vec![tuple(&grid)];
        for (a, (_, ty)) in k.arguments.iter().zip(signature) {
            let Argument::Descriptor(at) = a else {
                arguments.push(self.argument(a, &tensors)?);
                continue;
            };
            let layout = layouts.get(*at).copied().flatten().ok_or_else(damaged)?;
            let (_, block) = map_type(ty).ok_or_else(damaged)?;
            let (sizes, strides) = (
                self.sizes.all(&layout.sizes)?,
                self.sizes.all(&layout.strides)?,
            );
            arguments.push(format!(
                "tensor_map({}, 0, {}, {}, {}, [{}])",
                tensors.get(*at).ok_or_else(damaged)?,
                dtype(layout.dtype.0),
                tuple(&sizes),
                tuple(&strides),
                block.join(", ")
            ));
        }
        if !k.origin.is_empty() {
            self.line(format!("# {}", plain(&k.origin)));
        }
        self.line(format!("{name}({})", arguments.join(", ")));
        Ok(())
    }

    /// Returns what a kernel of the user's takes, other than a descriptor.
    fn argument(&mut self, a: &Argument, tensors: &[String]) -> Result<String> {
        Ok(match a {
            Argument::Tensor(at) | Argument::Descriptor(at) => (tensors.get(*at).cloned())
                .ok_or_else(|| Error::input("the program is damaged: an argument of a kernel"))?,
            Argument::Size(id) => self.sizes.get(*id)?,
            Argument::Int(i) => i.to_string(),
            Argument::Float(f) => number(inrush_program::Num::FloatBits(f.to_bits())),
        })
    }

    /// Prints the new contents of inputs and weights, and the results. What writes may change is copied before the first of them.
    fn outputs(&mut self) -> Result<()> {
        let program = self.unit.program;
        let mut results = Vec::new();
        let mut writes = Vec::new();
        let written: Vec<usize> = (program.outputs.iter())
            .filter_map(|o| match o {
                Out::Mutation { into, .. } => Some(*into),
                _ => None,
            })
            .collect();
        let changes = |slot: usize| {
            let untouched = program.inputs.contains(&slot) && !written.contains(&slot);
            !written.is_empty() && is_foreign(self.unit, slot) && !untouched
        };
        let changing: Vec<bool> = (program.outputs.iter())
            .map(|o| matches!(o, Out::Slot(s) if changes(*s)))
            .collect();
        for (o, changes) in program.outputs.iter().zip(changing) {
            match o {
                Out::Slot(s) if changes => {
                    let name = self.copied(*s);
                    results.push(name);
                }
                Out::Slot(s) => results.push(self.slots[*s].clone()),
                Out::Size(id) => results.push(self.sizes.get(*id)?),
                Out::Constant(o) => results.push(self.object(*o)?),
                Out::Mutation { value, into } => {
                    let value = if is_foreign(self.unit, *value) {
                        self.copied(*value)
                    } else {
                        self.slots[*value].clone()
                    };
                    let into = self.given[*into].as_ref().unwrap_or(&self.slots[*into]);
                    writes.push(format!("{into}.copy_({value})"));
                }
            }
        }
        for w in writes {
            self.line(w);
        }
        self.line(match results.as_slice() {
            [_, ..] if self.body => format!("return {}", results.join(", ")),
            all => format!("return {}", tuple(all)),
        });
        Ok(())
    }

    /// Prints a copy of a value and returns its name.
    fn copied(&mut self, slot: usize) -> String {
        let value = self.slots[slot].clone();
        let name = self.names.fresh(&format!("{value}_now"));
        self.line(format!("{name} = {value}.clone()"));
        name
    }

    /// Returns the names of the symbols, and the step after which each is known.
    pub(crate) fn known(&self) -> Vec<(String, usize)> {
        (self.symbols.iter().zip(&self.unit.program.symbols))
            .map(|(name, s)| (name.clone(), s.after.map_or(0, |a| a + 1)))
            .collect()
    }
}
