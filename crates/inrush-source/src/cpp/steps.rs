//! A program of several steps, and each one for a GPU, as a struct of C++: weights are members, segments and the steps of a call are
//! functions.

use super::control;
use super::kernels::{Kernels, quoted};
use super::model::{Needs, Printed, Printer, guard, list, number};
use super::segments::{Member, Shared, function, print_members_of_cpu};
use super::{CppWeight, dtype};
use crate::host::{is_foreign, reads, slot_names, symbol_names};
use crate::inputs::{Spec, sample, spec};
use crate::kernels::segments;
use crate::names::{Names, plain};
use crate::segment::tensors;
use crate::sizes::{Sizes, cpp_literal};
use crate::{Object, Unit};
use inrush_base::{DType, Error, Result};
use inrush_program::host::{Out, Read, Segment, StepKind, View};
use inrush_program::{InputType, Output, Place, Reads, SEED, SizeId, Weight};
use std::fmt::Write;

/// The state of printing a call.
pub(super) struct Call<'a> {
    pub(super) unit: &'a Unit<'a>,
    pub(super) kernels: &'a Kernels,
    /// Names of values, by slot.
    pub(super) slots: Vec<String>,
    /// By slot: the name of the input as it was given.
    given: Vec<Option<String>>,
    symbols: Vec<String>,
    /// By slot: a later step or an output reads it.
    pub(super) read: Vec<bool>,
    pub(super) sizes: Sizes<'a>,
    pub(super) names: Names,
    pub(super) needs: Needs,
    /// Weights that segments read themselves, with their members.
    weights: Vec<(&'a Weight, DType, String)>,
    /// Control flow calls it.
    body: bool,
    lines: Vec<Line>,
}

/// A line of a body, or the place of the size arithmetic that is known after a step.
enum Line {
    Text(String),
    Sizes(usize),
}

/// Prints a unit's program.
///
/// # Errors
/// An unsupported error that names what has no source, an input error for a damaged program.
pub(super) fn print(unit: &Unit<'_>, kernels: &Kernels, names: &mut Names) -> Result<Printed> {
    let mut names = names.clone();
    let mut weights: Vec<(&Weight, DType, String)> = Vec::new();
    for s in segments(unit.program) {
        for b in &s.program.buffers {
            let Place::Weight(w) = &b.place else { continue };
            if !weights.iter().any(|m| m.0 == w && m.1 == b.dtype.0) {
                weights.push((w, b.dtype.0, names.fresh(&w.name)));
            }
        }
    }
    let mut shared = Shared {
        kernels,
        weights,
        names,
        loaded: String::new(),
        load: String::new(),
        functions: String::new(),
        needs: Needs::default(),
    };
    let (mut call, functions) = Call::new(unit, false, &mut shared)?;
    let members = call.members()?;
    let mut of_call = String::new();
    call.print("call", &functions, &mut of_call)?;
    shared.needs.add(call.needs);
    let mut text = if kernels.on_gpu() {
        call.print_members(&members, &shared)?
    } else {
        print_members_of_cpu(&members, &shared)?
    };
    text.push_str(&shared.functions);
    text.push_str(&of_call);
    text.push_str("};\n\n");
    call.print_inputs(&mut text)?;
    let mut weights: Vec<CppWeight> = (members.into_iter())
        .filter(|m| m.name != SEED)
        .map(|m| CppWeight {
            name: m.name,
            dtype: m.dtype,
            sizes: m.sizes,
        })
        .collect();
    weights.sort();
    weights.dedup();
    Ok(Printed {
        text,
        weights,
        needs: shared.needs,
    })
}

fn damaged(what: &str) -> Error {
    Error::input(format!("the program is damaged: {what}"))
}

impl<'a> Call<'a> {
    /// Begins to print a program. Functions that it calls are printed: gives their names, by step.
    pub(super) fn new<'s: 'a>(
        unit: &'a Unit<'a>,
        body: bool,
        shared: &mut Shared<'s>,
    ) -> Result<(Call<'a>, Vec<Vec<String>>)> {
        let program = unit.program;
        let mut functions = Vec::with_capacity(program.steps.len());
        let read = reads(unit);
        for step in &program.steps {
            functions.push(match &step.kind {
                StepKind::Segment(s) => vec![function(unit, s, &read, shared)?],
                StepKind::Work(w) => control::bodies(unit, w, &read, shared)?,
                _ => Vec::new(),
            });
        }
        let mut names = shared.names.clone();
        let symbols = symbol_names(unit, &mut names);
        let slots = slot_names(unit, &mut names);
        if !body {
            // Weights in slots are members.
            for (slot, _) in &program.constants {
                shared.names.take(&slots[*slot]);
            }
        }
        let known: Vec<(String, usize)> = (symbols.iter().zip(&program.symbols))
            .map(|(name, s)| (name.clone(), s.after.map_or(0, |a| a + 1)))
            .collect();
        let call = Call {
            unit,
            kernels: shared.kernels,
            given: vec![None; slots.len()],
            slots,
            sizes: Sizes::cpp_after(&program.sizes, &known)?,
            symbols,
            read,
            names,
            needs: Needs::default(),
            weights: shared.weights.clone(),
            body,
            lines: Vec::new(),
        };
        Ok((call, functions))
    }

    pub(super) fn line(&mut self, text: String) {
        self.lines.push(Line::Text(text));
    }

    /// Returns the weights that slots of the call begin with.
    fn members(&self) -> Result<Vec<Member>> {
        let program = self.unit.program;
        let mut out: Vec<Member> = (self.weights.iter())
            .map(|(w, d, member)| Member {
                member: member.clone(),
                name: w.name.clone(),
                dtype: *d,
                sizes: w.sizes.clone(),
                strides: w.strides.clone(),
            })
            .collect();
        for (slot, object) in &program.constants {
            let Some(Object::Weight(name)) = self.unit.objects.get(*object) else {
                if self.read[*slot] {
                    return Err(Error::unsupported(
                        "a constant of the graph is not printed as C++",
                    ));
                }
                continue;
            };
            let layout = self.unit.layout(*slot);
            let layout = layout.ok_or_else(|| damaged("a weight without a layout"))?;
            let numbers = |ids: &[SizeId]| -> Result<Vec<i64>> {
                let all = ids.iter().map(|id| self.sizes.constant(*id));
                all.collect::<Option<_>>()
                    .ok_or_else(|| damaged("a weight of no fixed size"))
            };
            out.push(Member {
                member: self.slots[*slot].clone(),
                name: name.clone(),
                dtype: layout.dtype.0,
                sizes: numbers(&layout.sizes)?,
                strides: numbers(&layout.strides)?,
            });
        }
        Ok(out)
    }

    /// Prints the beginning of the struct: its members, and how they are made.
    fn print_members(&self, members: &[Member], shared: &Shared<'_>) -> Result<String> {
        let mut text = String::from(
            "// The model: its weights and the memory of its calls, on one device.\nstruct Model {\n    int device;\n",
        );
        for m in members {
            let (shown, d) = (plain(&m.name), m.dtype.torch_name());
            let name = &m.member;
            _ = writeln!(text, "    Tensor {name};  // `{shown}`, {d} {:?}", m.sizes);
        }
        text.push_str(&shared.loaded);
        text.push_str("    std::shared_ptr<char> arena;\n    i64 arena_bytes = -1;\n\n");
        let has_file = members.iter().any(|m| m.name != SEED);
        let parameter = if has_file { " &weights" } else { " &" };
        _ = writeln!(
            text,
            "    // Copies the weights to a device.\n    \
             Model(const std::string{parameter}, i64 index) : device(static_cast<int>(index)) {{\n        enter(device);"
        );
        if has_file {
            text.push_str("        TensorFile file(weights);\n");
        }
        for m in members {
            let all = |v: &[i64]| list(&v.iter().map(|n| cpp_literal(*n)).collect::<Vec<_>>());
            let name = &m.member;
            let layout = format!(
                "{}, {}, {}",
                dtype(m.dtype)?,
                all(&m.sizes),
                all(&m.strides)
            );
            if m.name == SEED {
                _ = writeln!(
                    text,
                    "        // The seed of the next call's random numbers.\n        {name} = empty_tensor({layout});\n        \
                     std::memset({name}.data, 0, sizeof(i64));\n        {name} = on_device({name});"
                );
            } else {
                _ = writeln!(
                    text,
                    "        {name} = on_device(file.read_weight({}, {layout}));",
                    quoted(&m.name)
                );
            }
        }
        if !shared.load.is_empty() {
            _ = write!(
                text,
                "        load();\n    }}\n\n    // Runs the steps that depend on weights alone; to be called again after a change of weights.\n    \
                 void load() {{\n{}",
                shared.load
            );
        }
        text.push_str(
            "    }\n\n    // Returns memory for the values of a call; later calls use it again.\n    char *reserve(Size bytes) {\n        \
             if (bytes.value > arena_bytes) arena = device_memory(bytes), arena_bytes = bytes.value;\n        return arena.get();\n    }\n\n",
        );
        Ok(text)
    }

    /// Prints the function `call`, or one of a program that control flow calls.
    pub(super) fn print(
        &mut self,
        name: &str,
        functions: &[Vec<String>],
        text: &mut String,
    ) -> Result<()> {
        let program = self.unit.program;
        let parameters = if self.body {
            self.body_parameters()?
        } else {
            self.enter()?;
            "const Values &inputs".into()
        };
        self.bind_symbols(None)?;
        self.lines.push(Line::Sizes(0));
        self.check_guards(0)?;
        self.expect_ints()?;
        self.lay_out_inputs()?;
        for (at, (step, called)) in program.steps.iter().zip(functions).enumerate() {
            match &step.kind {
                StepKind::Segment(s) => self.segment(s, called.first().map_or("", |n| n)),
                StepKind::View(v) => self.view(v)?,
                StepKind::Work(w) => self.work(w, called)?,
                other => {
                    return Err(Error::unsupported(format!(
                        "{} is not printed as C++",
                        self.what(other)
                    )));
                }
            }
            if step.binds_symbols {
                self.bind_symbols(Some(at))?;
            }
            self.lines.push(Line::Sizes(at + 1));
            self.check_guards(at + 1)?;
            if let StepKind::Work(w) = &step.kind {
                self.conform(w, at + 1)?;
            }
        }
        self.outputs()?;
        let shown: Vec<String> = (0..program.inputs.len()).map(|k| self.shown(k)).collect();
        let what = match shown.as_slice() {
            [] => "which takes no inputs".to_string(),
            all => format!("with the inputs {}", all.join(", ")),
        };
        let place = if self.kernels.on_gpu() {
            ", on the host or the device. Outputs are on the device, but for inputs"
        } else {
            ". Steps write into inputs where the graph does"
        };
        _ = if self.body {
            writeln!(text, "    // A program that control flow calls.")
        } else {
            writeln!(text, "    // Runs the graph, {what}{place}.")
        };
        _ = writeln!(text, "    Values {name}({parameters}) {{");
        self.finish(text);
        text.push_str(if self.body { "    }\n\n" } else { "    }\n" });
        Ok(())
    }

    /// Prints the checks of the inputs.
    fn enter(&mut self) -> Result<()> {
        let shown: Vec<String> = (0..self.unit.program.inputs.len())
            .map(|k| self.shown(k))
            .collect();
        let count = shown.len();
        let takes = format!(
            "the model takes {count} inputs ({}), got ",
            shown.join(", ")
        );
        self.line(format!(
            "if (inputs.size() != {count}) throw InputError({} + std::to_string(inputs.size()));",
            quoted(&takes)
        ));
        if self.kernels.on_gpu() {
            self.line("enter(device);".into());
        }
        self.expect_inputs()
    }

    /// Returns the parameters of a program that control flow calls.
    fn body_parameters(&mut self) -> Result<String> {
        let mut all = Vec::new();
        for (at, slot) in self.unit.program.inputs.clone().into_iter().enumerate() {
            let name = self.slots[slot].clone();
            all.push(match spec(self.unit, &self.read, at) {
                Spec::Tensor { .. } if self.unit.expected.is_some() => {
                    let given = self.names.fresh(&format!("{name}_given"));
                    self.given[slot] = Some(given.clone());
                    format!("const Tensor &{given}")
                }
                Spec::Tensor { .. } | Spec::Unknown => {
                    format!("[[maybe_unused]] const Tensor &{name}")
                }
                Spec::Int(_) | Spec::OuterInt(_) => format!("[[maybe_unused]] Size {name}"),
                Spec::Constant(_) | Spec::Ignored => "const Value &".into(),
            });
        }
        Ok(all.join(", "))
    }

    /// Prints the tensors that a program in parts reads of its inputs: themselves, or copies with other strides.
    fn lay_out_inputs(&mut self) -> Result<()> {
        let Some(expected) = self.unit.expected else {
            return Ok(());
        };
        for (input, slot) in expected.inputs.iter().zip(&self.unit.program.inputs) {
            let (InputType::Tensor { sizes, strides, .. }, Some(given)) =
                (&input.ty, self.given[*slot].clone())
            else {
                continue;
            };
            let (sizes, strides) = (
                list(&self.sizes.all(sizes)?),
                list(&self.sizes.all(strides)?),
            );
            let reads = match input.reads {
                Reads::Elements => "",
                Reads::Memory => ", Reads::memory",
                Reads::Storage => ", Reads::storage",
            };
            let (name, shown) = (self.slots[*slot].clone(), quoted(&input.name));
            self.line(format!(
                "const Tensor {name} = resident({shown}, {given}, {sizes}, {strides}{reads});"
            ));
        }
        Ok(())
    }

    /// Prints the checks of the relations of sizes that are known after a step.
    fn check_guards(&mut self, known: usize) -> Result<()> {
        for g in self.unit.guards {
            let of = |id| self.sizes.known(id);
            if of(g.left).max(of(g.right)) == known {
                let (left, right) = (self.sizes.get(g.left)?, self.sizes.get(g.right)?);
                self.line(guard(g, &left, &right));
            }
        }
        Ok(())
    }

    /// Names a step without source.
    fn what(&self, kind: &StepKind) -> String {
        match kind {
            StepKind::Call(c) => match self.unit.objects.get(c.target) {
                Some(Object::Expression(e)) => format!("a call of `{e}`"),
                _ => "a call of an operator of PyTorch".into(),
            },
            StepKind::Library(_) => "a call of a library (leave it out with --no-libraries)".into(),
            StepKind::Kernel(_) => "a Triton kernel of the user".into(),
            _ => "work of the host".into(),
        }
    }

    /// Moves the lines to the text, with the size arithmetic where it is known.
    fn finish(&mut self, text: &mut String) {
        for line in std::mem::take(&mut self.lines) {
            match line {
                Line::Text(t) => _ = writeln!(text, "        {t}"),
                Line::Sizes(known) => {
                    for d in self.sizes.definitions(known) {
                        _ = writeln!(text, "        {d}");
                    }
                }
            }
        }
    }

    /// Returns the name of an input as users know it.
    fn shown(&self, at: usize) -> String {
        let named = self.unit.inputs.get(at).cloned();
        plain(&named.unwrap_or_else(|| self.slots[self.unit.program.inputs[at]].clone()))
    }

    /// Prints checks of the inputs' kinds, and copies to the device.
    fn expect_inputs(&mut self) -> Result<()> {
        for (at, slot) in self.unit.program.inputs.clone().into_iter().enumerate() {
            let (shown, name) = (quoted(&self.shown(at)), self.slots[slot].clone());
            match spec(self.unit, &self.read, at) {
                Spec::Tensor {
                    dtype: d, sizes, ..
                } => {
                    let (d, rank) = (dtype(d)?, sizes.len());
                    let checked = format!("expect_tensor({shown}, inputs[{at}], {d}, {rank})");
                    if self.unit.expected.is_some() {
                        let given = self.names.fresh(&format!("{name}_given"));
                        self.line(format!("const Tensor &{given} = {checked};"));
                        self.given[slot] = Some(given);
                    } else if self.kernels.on_gpu() {
                        let given = self.names.fresh(&format!("{name}_given"));
                        self.line(format!("const Tensor &{given} = {checked};"));
                        self.line(format!("const Tensor {name} = on_device({given});"));
                        self.given[slot] = Some(given);
                    } else {
                        self.line(format!(
                            "[[maybe_unused]] const Tensor &{name} = {checked};"
                        ));
                    }
                }
                Spec::Constant(value) => {
                    let spelled = quoted(&inrush_base::Scalar::from(value).to_string());
                    self.line(format!(
                        "expect_constant({shown}, inputs[{at}], {}, {spelled});",
                        number(value)
                    ));
                }
                Spec::Int(_) | Spec::OuterInt(_) => self.line(format!(
                    "[[maybe_unused]] const Size {name} = expect_int({shown}, inputs[{at}]);"
                )),
                Spec::Ignored => {}
                Spec::Unknown if self.kernels.on_gpu() => {
                    let given = self.names.fresh(&format!("{name}_given"));
                    let checked = format!("expect_some_tensor({shown}, inputs[{at}])");
                    self.line(format!("const Tensor &{given} = {checked};"));
                    self.line(format!("const Tensor {name} = on_device({given});"));
                    self.given[slot] = Some(given);
                }
                Spec::Unknown => {
                    let checked = format!("expect_some_tensor({shown}, inputs[{at}])");
                    self.line(format!(
                        "[[maybe_unused]] const Tensor &{name} = {checked};"
                    ));
                }
            }
        }
        Ok(())
    }

    /// Prints the reads of the symbols that become known after a step.
    fn bind_symbols(&mut self, after: Option<usize>) -> Result<()> {
        for (k, s) in self.unit.program.symbols.iter().enumerate() {
            if s.after != after {
                continue;
            }
            let at = self.unit.program.inputs.iter().position(|x| *x == s.slot);
            let symbol = self.symbols[k].clone();
            let value = self.given[s.slot]
                .clone()
                .unwrap_or_else(|| self.slots[s.slot].clone());
            let shown = match (at, after) {
                (Some(at), _) => quoted(&self.shown(at)),
                (None, Some(_)) => quoted(&plain(&symbol)),
                (None, None) => return Err(damaged("a symbol of no input")),
            };
            let text = match s.read {
                Read::Int if after.is_some() => format!("expect_int({shown}, {value})"),
                Read::Int => value,
                Read::Dim {
                    dim,
                    factor,
                    offset,
                } => format!(
                    "solve({shown}, {value}, {dim}, {}, {}, {})",
                    cpp_literal(factor),
                    cpp_literal(offset),
                    quoted(&symbol)
                ),
            };
            self.line(format!("[[maybe_unused]] const Size {symbol} = {text};"));
            if let Some(b) = self.unit.bounds.get(k)
                && (b.lower > i64::MIN || b.upper < i64::MAX)
            {
                let upper = match b.upper {
                    i64::MAX => "std::numeric_limits<i64>::max()".to_string(),
                    n => cpp_literal(n),
                };
                let lower = cpp_literal(b.lower);
                self.line(format!(
                    "within(\"a size\", {}, {symbol}, {lower}, {upper});",
                    quoted(&b.name)
                ));
            }
        }
        Ok(())
    }

    /// Prints the comparison of integers with the sizes that they must equal.
    fn expect_ints(&mut self) -> Result<()> {
        for at in 0..self.unit.program.inputs.len() {
            let Spec::Int(Some((s, value))) = spec(self.unit, &self.read, at) else {
                continue;
            };
            let mut sizes = self.sizes_of(s)?;
            let (wanted, formula) = (sizes.get(value)?, quoted(&s.program.show_size(value)));
            let name = self.slots[self.unit.program.inputs[at]].clone();
            let shown = quoted(&self.shown(at));
            self.line("{".into());
            for line in sizes.definitions(0) {
                self.line(format!("    {line}"));
            }
            self.line(format!(
                "    expect_value({shown}, {name}, {wanted}, {formula});"
            ));
            self.line("}".into());
        }
        Ok(())
    }

    /// Returns the sizes of a segment by the names of the call's symbols.
    fn sizes_of(&self, s: &'a Segment) -> Result<Sizes<'a>> {
        let symbols: Vec<String> = (s.symbols.iter())
            .map(|k| self.symbols[*k as usize].clone())
            .collect();
        Sizes::cpp(&s.program.sizes, &symbols)
    }

    pub(super) fn segment(&mut self, s: &Segment, function: &str) {
        let mut arguments: Vec<String> = (tensors(s).into_iter())
            .map(|k| self.slots[s.inputs[k]].clone())
            .collect();
        arguments.extend(s.symbols.iter().map(|k| self.symbols[*k as usize].clone()));
        let call = format!("{function}({})", arguments.join(", "));
        if !s.outputs.iter().any(|slot| self.read[*slot]) {
            return self.line(format!("{call};"));
        }
        let results = self.names.fresh("results");
        self.line(format!("const Values {results} = {call};"));
        for (k, slot) in s.outputs.iter().enumerate() {
            if !self.read[*slot] {
                continue;
            }
            let ty = match s.program.outputs[k] {
                Output::Tensor { .. } => "Tensor",
                _ => "Value",
            };
            let value = match ty {
                "Tensor" => format!("std::get<Tensor>({results}[{k}])"),
                _ => format!("{results}[{k}]"),
            };
            self.line(format!("const {ty} {} = {value};", self.slots[*slot]));
        }
    }

    fn view(&mut self, v: &View) -> Result<()> {
        let mut base = self.slots[v.base].clone();
        if let Some((sizes, strides)) = &v.base_layout {
            let (sizes, strides) = (
                list(&self.sizes.all(sizes)?),
                list(&self.sizes.all(strides)?),
            );
            base = format!("resident({}, {base}, {sizes}, {strides})", quoted(&base));
        }
        let sizes = list(&self.sizes.all(&v.sizes)?);
        let strides = list(&self.sizes.all(&v.strides)?);
        let offset = self.sizes.get(v.offset)?;
        let value = self.slots[v.value].clone();
        let of = match v.dtype {
            Some(d) => dtype(d.0)?,
            None => format!("{}.dtype", self.slots[v.base]),
        };
        self.line(format!(
            "const Tensor {value} = view({base}, {of}, {offset}, {sizes}, {strides});"
        ));
        Ok(())
    }

    /// Prints the new contents of inputs and weights, and the results. What writes may change is copied before the first of them.
    fn outputs(&mut self) -> Result<()> {
        let program = self.unit.program;
        let mut written: Vec<usize> = (program.outputs.iter())
            .filter_map(|o| match o {
                Out::Mutation { into, .. } => Some(*into),
                _ => None,
            })
            .collect();
        let mut results = Vec::new();
        let mut writes = Vec::new();
        for o in &program.outputs {
            match o {
                Out::Slot(s) => {
                    let untouched = program.inputs.contains(s) && !written.contains(s);
                    if let Some(at) = self.number_input(*s) {
                        results.push(if self.body {
                            format!("{}.value", self.slots[*s])
                        } else {
                            format!("inputs[{at}]")
                        });
                        continue;
                    }
                    let name = self.slots[*s].clone();
                    results.push(match self.given[*s].clone() {
                        Some(given) if self.kernels.on_gpu() => given,
                        _ if self.body => name,
                        _ if !written.is_empty() && is_foreign(self.unit, *s) && !untouched => {
                            self.copied(&name)
                        }
                        _ => name,
                    });
                }
                Out::Size(id) => results.push(format!("Size({}).value", self.sizes.get(*id)?)),
                Out::Constant(at) => results.push(super::constant(self.unit, *at)?),
                Out::Mutation { value, into } => {
                    let name = self.slots[*value].clone();
                    let value = if is_foreign(self.unit, *value) {
                        self.copied(&name)
                    } else {
                        name
                    };
                    writes.push(format!("assign({}, {value});", self.slots[*into]));
                }
            }
        }
        for w in writes {
            self.line(w);
        }
        // Inputs of the host get what was written into their copies.
        for step in &program.steps {
            let StepKind::Segment(s) = &step.kind else {
                continue;
            };
            let places = s.program.written_inputs();
            let named = places.into_iter().zip(&s.inputs).filter(|(w, _)| *w);
            written.extend(named.map(|(_, slot)| *slot));
        }
        written.sort_unstable();
        written.dedup();
        for slot in written {
            if let Some(given) = self.given[slot].clone() {
                let name = self.slots[slot].clone();
                let elsewhere = if self.kernels.on_gpu() {
                    format!("!{given}.on_device")
                } else {
                    format!("{name}.data != {given}.data")
                };
                self.line(format!("if ({elsewhere}) assign({given}, {name});"));
            }
        }
        self.line("Values outputs;".into());
        for r in results {
            self.line(format!("outputs.push_back({r});"));
        }
        self.line("return outputs;".into());
        Ok(())
    }

    /// Returns the position of the input in a slot, if it is no tensor.
    fn number_input(&self, slot: usize) -> Option<usize> {
        let at = self.unit.program.inputs.iter().position(|s| *s == slot)?;
        let spec = spec(self.unit, &self.read, at);
        (!matches!(spec, Spec::Tensor { .. } | Spec::Unknown)).then_some(at)
    }

    /// Prints a copy of a value and returns its name.
    fn copied(&mut self, value: &str) -> String {
        let name = self.names.fresh(&format!("{value}_now"));
        self.line(format!("const Tensor {name} = clone({value});"));
        name
    }

    /// Prints the list of inputs, and the function that draws them.
    fn print_inputs(&mut self, text: &mut String) -> Result<()> {
        let program = self.unit.program;
        let mut kinds = Vec::new();
        let given = program.symbols.iter().map(|s| s.after.is_none());
        let shown: Vec<String> = (self.symbols.iter().zip(given))
            .filter(|(_, given)| *given)
            .map(|(s, _)| quoted(s))
            .collect();
        let mut body = vec![format!("expect_names(given, {});", list(&shown))];
        for (k, name) in self.symbols.iter().enumerate() {
            if program.symbols[k].after.is_some() {
                continue;
            }
            let value = cpp_literal(sample(self.unit, k));
            body.push(format!(
                "[[maybe_unused]] const Size {name} = size_of(given, {}, {value});",
                quoted(name)
            ));
        }
        body.push("Values inputs;".into());
        for at in 0..program.inputs.len() {
            let name = self.shown(at);
            let (kind, value, lines) = match spec(self.unit, &self.read, at) {
                Spec::Tensor {
                    segment,
                    dtype: d,
                    sizes,
                    strides,
                } => {
                    let mut own = match segment {
                        Some(s) => self.sizes_of(s)?,
                        None => Sizes::cpp(&program.sizes, &self.symbols)?,
                    };
                    let (n, by) = (list(&own.all(sizes)?), list(&own.all(strides)?));
                    let made = format!("drawn({}, {n}, {by})", dtype(d)?);
                    ("tensor", made, own.definitions(0))
                }
                Spec::Int(Some((s, value))) => {
                    let mut own = self.sizes_of(s)?;
                    let value = format!("Size({}).value", own.get(value)?);
                    ("integer", value, own.definitions(0))
                }
                Spec::OuterInt(value) => {
                    let mut own = Sizes::cpp(&program.sizes, &self.symbols)?;
                    let value = format!("Size({}).value", own.get(value)?);
                    ("integer", value, own.definitions(0))
                }
                Spec::Int(None) => {
                    let slot = program.inputs[at];
                    let mut pairs = program.symbols.iter().zip(&self.symbols);
                    let found = pairs.find(|(s, _)| s.slot == slot && s.read == Read::Int);
                    let value = found.map_or("0".into(), |(_, n)| format!("{n}.value"));
                    ("integer", format!("i64({value})"), Vec::new())
                }
                Spec::Unknown => {
                    let why =
                        format!("nothing tells the shape of the input `{name}`: pass --inputs");
                    body.push(format!("throw InputError({});", quoted(&why)));
                    ("tensor", "Value()".into(), Vec::new())
                }
                _ => ("ignored", "Value()".into(), Vec::new()),
            };
            kinds.push(format!("{{{}, Kind::{kind}}}", quoted(&name)));
            if lines.is_empty() {
                body.push(format!("inputs.push_back({value});  // {name}"));
            } else {
                body.push("{".into());
                body.extend(lines.iter().map(|l| format!("    {l}")));
                body.push(format!("    inputs.push_back({value});  // {name}"));
                body.push("}".into());
            }
        }
        body.push("return inputs;".into());
        _ = writeln!(
            text,
            "const std::vector<Input> INPUTS = {};\n\n\
             // Draws inputs of the right shapes. Sizes can be given by name.\n\
             inline Values drawn_inputs(const std::map<std::string, i64> &given) {{",
            list(&kinds)
        );
        for line in body {
            _ = writeln!(text, "    {line}");
        }
        text.push_str("}\n");
        Ok(())
    }
}

impl Printer<'_> {
    /// Prints the tensor that kernels read of an input that may be elsewhere or have other strides.
    pub(super) fn resident(&mut self, at: usize) -> Result<()> {
        let Some((given, read)) = self.tensors[at].clone().filter(|(g, r)| g != r) else {
            return Ok(());
        };
        let input = &self.p().inputs[at];
        let InputType::Tensor { sizes, strides, .. } = &input.ty else {
            return Err(damaged("a tensor that is none"));
        };
        let (sizes, strides) = (
            list(&self.sizes.all(sizes)?),
            list(&self.sizes.all(strides)?),
        );
        let reads = match input.reads {
            Reads::Elements => "",
            Reads::Memory => ", Reads::memory",
            Reads::Storage => ", Reads::storage",
        };
        let shown = quoted(&input.name);
        self.line(format!(
            "const Tensor {read} = resident({shown}, {given}, {sizes}, {strides}{reads});"
        ));
        Ok(())
    }
}
