//! The steps of a call as the function `call`, and what a caller needs besides: inputs of the right shapes.

use crate::kernels::Kernels;
use crate::names::{Names, is_keyword, quote, tuple};
use crate::segment::{self, dtype, number, tensors};
use crate::sizes::Sizes;
use crate::{Code, Object, Unit};
use inrush_base::{DType, Error, Result};
use inrush_program::host::{Call, LibraryOp, Out, Read, Segment, StepKind, Template, View};
use inrush_program::{InputType, SizeId};

/// Value of a symbol that inputs are drawn with, if its range has it.
const SAMPLE: i64 = 8;

/// The printed call.
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
struct Printer<'a> {
    unit: &'a Unit<'a>,
    /// Names of values, by slot.
    slots: Vec<String>,
    symbols: Vec<String>,
    /// By slot: a later step or an output reads it.
    read: Vec<bool>,
    sizes: Sizes<'a>,
    lines: Vec<Line>,
    names: Names,
    has_weights: bool,
}

/// Facts that are known of an input.
enum Spec<'a> {
    /// A tensor, with sizes of a segment or of the host.
    Tensor {
        segment: Option<&'a Segment>,
        dtype: DType,
        sizes: &'a [SizeId],
        strides: &'a [SizeId],
    },
    /// An integer, with a size of a segment that it must equal.
    Int(Option<(&'a Segment, SizeId)>),
    Constant(inrush_program::Num),
    Ignored,
    Unknown,
}

/// Prints the call of a unit's program.
///
/// # Errors
/// An unsupported error that names what has no source.
pub(crate) fn call(unit: &Unit<'_>, kernels: &Kernels<'_>, module: &mut Names) -> Result<Printed> {
    let program = unit.program;
    let mut printed = Printed {
        segments: String::new(),
        loads: Vec::new(),
        call: String::new(),
        inputs: String::new(),
        weights: Vec::new(),
        has_weights: false,
    };
    let count = (program.steps.iter())
        .filter(|s| matches!(s.kind, StepKind::Segment(_)))
        .count();
    let read = reads(unit);
    // Names of functions are taken before those of values.
    let mut functions = Vec::new();
    for (at, step) in program.steps.iter().enumerate() {
        let StepKind::Segment(s) = &step.kind else {
            functions.push(String::new());
            continue;
        };
        let wanted = match count {
            1 => "segment".to_string(),
            _ => format!("segment_{at}"),
        };
        let name = module.fresh(&wanted);
        let outputs: Vec<usize> = (0..s.outputs.len())
            .filter(|k| read[s.outputs[*k]])
            .collect();
        let foreign: Vec<bool> = s
            .inputs
            .iter()
            .map(|slot| is_foreign(unit, *slot))
            .collect();
        let results = (outputs.as_slice(), foreign.as_slice());
        let function = segment::function(s, &name, results, kernels, module)?;
        printed.segments.push_str(&function.text);
        printed.weights.extend(function.weights);
        if let Some(load) = function.load {
            (printed.loads).push(format!("LOADED[{}] = {load}()", quote(&name)));
        }
        functions.push(name);
    }
    let mut names = module.clone();
    let symbols = symbol_names(unit, &mut names);
    let known: Vec<(String, usize)> = (symbols.iter().zip(&program.symbols))
        .map(|(name, s)| (name.clone(), s.after.map_or(0, |a| a + 1)))
        .collect();
    let mut printer = Printer {
        slots: slot_names(unit, &mut names),
        sizes: Sizes::new(&program.sizes, &known)?,
        unit,
        symbols,
        read,
        lines: Vec::new(),
        names,
        has_weights: !printed.weights.is_empty(),
    };
    printed.call = printer.print(&functions, !printed.loads.is_empty())?;
    printed.inputs = printer.print_inputs()?;
    printed.has_weights = printer.has_weights;
    Ok(printed)
}

/// Returns true if a tensor may have another layout than the program says: it comes from the caller, from an operator, or is in
/// the memory of another one.
fn is_foreign(unit: &Unit<'_>, slot: usize) -> bool {
    let program = unit.program;
    let weight = |c: &(usize, usize)| {
        c.0 == slot && matches!(unit.objects.get(c.1), Some(Object::Weight(_)))
    };
    let made = |kind: &StepKind| match kind {
        StepKind::Segment(s) => {
            let at = s.outputs.iter().position(|o| *o == slot);
            at.is_some_and(|k| segment::is_alone(&s.program, k))
        }
        StepKind::Library(l) => l.call.is_none() && l.outs.contains(&slot),
        _ => false,
    };
    let own = program.constants.iter().any(weight) || program.steps.iter().any(|s| made(&s.kind));
    !own
}

/// Returns for each slot if a step or an output reads it.
fn reads(unit: &Unit<'_>) -> Vec<bool> {
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
            // Refused when it is printed.
            StepKind::Work(_) => {}
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
fn symbol_names(unit: &Unit<'_>, names: &mut Names) -> Vec<String> {
    let mut wanted: Vec<Option<&str>> = vec![None; unit.program.symbols.len()];
    for step in &unit.program.steps {
        if let StepKind::Segment(s) = &step.kind {
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
fn slot_names(unit: &Unit<'_>, names: &mut Names) -> Vec<String> {
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
        let StepKind::Segment(s) = &step.kind else {
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
    fn line(&mut self, text: String) {
        self.lines.push(Line::Text(text));
    }

    fn print(&mut self, functions: &[String], has_loads: bool) -> Result<String> {
        let program = self.unit.program;
        let inputs: Vec<String> = (program.inputs.iter())
            .map(|s| self.slots[*s].clone())
            .collect();
        let count = inputs.len();
        self.line(format!("if len(inputs) != {count}:"));
        self.line(format!(
            "    raise InputError(f\"the graph takes {count} inputs, got {{len(inputs)}}\")"
        ));
        match inputs.as_slice() {
            [] => {}
            [one] => self.line(format!("({one},) = inputs")),
            all => self.line(format!("{} = inputs", all.join(", "))),
        }
        self.constants()?;
        self.expect_inputs();
        self.bind_symbols(None);
        // Integers of segments have lines of the segments' size arithmetic, under the same names.
        self.expect_ints()?;
        self.lines.push(Line::Sizes(0));
        if self.has_weights {
            self.line("if not WEIGHTS:".into());
            self.line("    load_weights()".into());
        }
        if has_loads {
            self.line("if not LOADED:".into());
            self.line("    load()".into());
        }
        for (at, step) in program.steps.iter().enumerate() {
            match &step.kind {
                StepKind::Segment(s) => self.segment(s, &functions[at]),
                StepKind::Call(c) => self.call(c)?,
                StepKind::View(v) => self.view(v)?,
                StepKind::Library(l) => match &l.call {
                    Some(c) => self.call(c)?,
                    None => self.library(&l.op, &l.inputs, &l.outs)?,
                },
                StepKind::Work(_) => {
                    return Err(Error::unsupported(
                        "work of the host (control flow, functions of the library) is not printed as source yet",
                    ));
                }
                StepKind::Kernel(_) => {
                    return Err(Error::unsupported(
                        "a Triton kernel of the user is not printed as source yet",
                    ));
                }
            }
            if step.binds_symbols {
                self.bind_symbols(Some(at));
            }
            self.lines.push(Line::Sizes(at + 1));
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
        Ok(self.finish(&inputs))
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
            StepKind::Work(_) => false,
        };
        given || program.steps[..=at].iter().any(|s| made(&s.kind))
    }

    /// Returns true if a slot gets new contents at the end of the call.
    fn is_written(&self, slot: usize) -> bool {
        let writes = |o: &Out| matches!(o, Out::Mutation { into, .. } if *into == slot);
        self.unit.program.outputs.iter().any(writes)
    }

    /// Joins the lines of the body, with the size arithmetic where it is known.
    fn finish(&mut self, inputs: &[String]) -> String {
        let mut body = Vec::new();
        for line in std::mem::take(&mut self.lines) {
            match line {
                Line::Text(t) => body.push(t),
                Line::Sizes(known) => body.extend(self.sizes.definitions(known)),
            }
        }
        let doc = match inputs {
            [] => "Runs the graph, which takes no inputs.".to_string(),
            names => format!("Runs the graph. Inputs: {}.", names.join(", ")),
        };
        let mut text = format!("@torch.no_grad()\ndef call(*inputs):\n    \"\"\"{doc}\"\"\"\n");
        let indent = match self.unit.code {
            Code::C { .. } => "    ",
            Code::Gpu(_) => {
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
            let is_weight = matches!(self.unit.objects.get(*object), Some(Object::Weight(_)));
            if is_weight && !self.has_weights {
                self.has_weights = true;
                self.line("if not WEIGHTS:".into());
                self.line("    load_weights()".into());
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

    /// Returns what is known of the input at a position.
    fn spec(&self, at: usize) -> Spec<'a> {
        let program = self.unit.program;
        let slot = program.inputs[at];
        for step in &program.steps {
            let StepKind::Segment(s) = &step.kind else {
                continue;
            };
            let found = s.inputs.iter().position(|x| *x == slot);
            match found.map(|k| &s.program.inputs[k].ty) {
                Some(InputType::Tensor {
                    dtype,
                    sizes,
                    strides,
                }) => {
                    return Spec::Tensor {
                        segment: Some(s),
                        dtype: dtype.0,
                        sizes,
                        strides,
                    };
                }
                Some(InputType::Int { value }) => return Spec::Int(Some((s, *value))),
                Some(InputType::Constant { value }) => return Spec::Constant(*value),
                Some(InputType::Ignored) => return Spec::Ignored,
                None => {}
            }
        }
        if (program.symbols.iter()).any(|s| s.slot == slot && s.read == Read::Int) {
            return Spec::Int(None);
        }
        match program.gpu.as_ref().and_then(|g| g.layouts[slot].as_ref()) {
            Some(l) => Spec::Tensor {
                segment: None,
                dtype: l.dtype.0,
                sizes: &l.sizes,
                strides: &l.strides,
            },
            None if self.read[slot] => Spec::Unknown,
            None => Spec::Ignored,
        }
    }

    /// Prints checks of the inputs' kinds.
    fn expect_inputs(&mut self) {
        for at in 0..self.unit.program.inputs.len() {
            let name = self.slots[self.unit.program.inputs[at]].clone();
            let shown = quote(&name);
            match self.spec(at) {
                Spec::Tensor {
                    dtype: d, sizes, ..
                } => {
                    let (d, rank) = (dtype(d), sizes.len());
                    self.line(format!("expect({shown}, {name}, {d}, {rank})"));
                }
                Spec::Constant(value) => {
                    let value = number(value);
                    self.line(format!("expect_constant({shown}, {name}, {value})"));
                }
                Spec::Int(_) => self.line(format!("expect_int({shown}, {name})")),
                Spec::Ignored | Spec::Unknown => {}
            }
        }
    }

    /// Prints the comparison of integers with the sizes that they must equal.
    fn expect_ints(&mut self) -> Result<()> {
        for at in 0..self.unit.program.inputs.len() {
            let Spec::Int(Some((s, value))) = self.spec(at) else {
                continue;
            };
            let name = self.slots[self.unit.program.inputs[at]].clone();
            let mut sizes = self.sizes_of(s)?;
            let wanted = sizes.get(value)?;
            if self.symbols.contains(&wanted) {
                continue;
            }
            for line in sizes.definitions(0) {
                self.line(line);
            }
            self.line(format!("if {name} != {wanted}:"));
            let text = format!("input `{name}` must be {{{wanted}}}, got {{{name}}}");
            self.line(format!("    raise InputError(f{})", quote(&text)));
        }
        Ok(())
    }

    /// Returns the sizes of a segment by the names of the call's symbols.
    fn sizes_of(&self, s: &'a Segment) -> Result<Sizes<'a>> {
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
            self.line(text);
        }
    }

    fn segment(&mut self, s: &Segment, function: &str) {
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
                    writes.push(format!("{}.copy_({value})", self.slots[*into]));
                }
            }
        }
        for w in writes {
            self.line(w);
        }
        self.line(format!("return {}", tuple(&results)));
        Ok(())
    }

    /// Prints a copy of a value and returns its name.
    fn copied(&mut self, slot: usize) -> String {
        let value = self.slots[slot].clone();
        let name = self.names.fresh(&format!("{value}_now"));
        self.line(format!("{name} = {value}.clone()"));
        name
    }

    /// Prints the function that draws inputs.
    fn print_inputs(&mut self) -> Result<String> {
        let mut body = vec![
            "\"\"\"Returns inputs of the right shapes, with drawn elements.\"\"\"".to_string(),
        ];
        for (k, s) in self.unit.program.symbols.iter().enumerate() {
            if s.after.is_none() {
                let value = self.sample(k);
                body.push(format!("{} = {value}", self.symbols[k]));
            }
        }
        let mut values = Vec::new();
        for (at, slot) in self.unit.program.inputs.iter().enumerate() {
            let name = &self.slots[*slot].clone();
            let value = match self.spec(at) {
                Spec::Tensor {
                    segment,
                    dtype: d,
                    sizes,
                    strides,
                } => {
                    let mut own = match segment {
                        Some(s) => self.sizes_of(s)?,
                        None => Sizes::new(&self.unit.program.sizes, &self.known())?,
                    };
                    let (n, by) = (tuple(&own.all(sizes)?), tuple(&own.all(strides)?));
                    let made = format!("drawn({}, {n}, {by})", dtype(d));
                    self.defined(name, made, own.definitions(0), &mut body)
                }
                Spec::Int(Some((s, value))) => {
                    let mut own = self.sizes_of(s)?;
                    let value = own.get(value)?;
                    self.defined(name, value, own.definitions(0), &mut body)
                }
                Spec::Int(None) => {
                    let symbols = self.unit.program.symbols.iter();
                    let of = symbols.zip(&self.symbols).find(|(s, _)| s.slot == *slot);
                    of.map_or("0".into(), |(_, name)| name.clone())
                }
                Spec::Constant(value) => number(value),
                Spec::Ignored => "None".into(),
                Spec::Unknown => {
                    body.push(format!(
                        "raise InputError({})",
                        quote(&format!(
                            "nothing tells the shape of the input `{name}`: pass inputs to `call`"
                        ))
                    ));
                    "None".into()
                }
            };
            values.push(format!("{value},  # {name}"));
        }
        let mut text = String::from("def inputs():\n");
        for line in body {
            text.push_str(&format!("    {line}\n"));
        }
        text.push_str("    return [\n");
        for v in values {
            text.push_str(&format!("        {v}\n"));
        }
        text.push_str("    ]\n\n\n");
        Ok(text)
    }

    /// Returns an expression over `lines`. The next input may define lines of the same names, so it becomes a variable where there are
    /// some.
    fn defined(
        &mut self,
        name: &str,
        value: String,
        lines: Vec<String>,
        body: &mut Vec<String>,
    ) -> String {
        if lines.is_empty() {
            return value;
        }
        body.extend(lines);
        let drawn = self.names.fresh(name);
        body.push(format!("{drawn} = {value}"));
        drawn
    }

    fn known(&self) -> Vec<(String, usize)> {
        (self.symbols.iter().zip(&self.unit.program.symbols))
            .map(|(name, s)| (name.clone(), s.after.map_or(0, |a| a + 1)))
            .collect()
    }

    /// Returns a value of a symbol that all segments take.
    fn sample(&self, symbol: usize) -> i64 {
        let (mut lower, mut upper) = (i64::MIN, i64::MAX);
        for step in &self.unit.program.steps {
            if let StepKind::Segment(s) = &step.kind {
                for (k, own) in s.symbols.iter().zip(&s.program.symbols) {
                    if *k as usize == symbol {
                        lower = lower.max(own.lower);
                        upper = upper.min(own.upper);
                    }
                }
            }
        }
        SAMPLE.min(upper).max(lower)
    }
}
