//! The program as a struct of C++: weights are members, load steps and the steps of a call are functions.
//!
//! A buffer is a pointer to bytes. Values of a call are in one memory at the places of the program's memory plan.

use super::inputs::{Given, inputs};
use super::kernels::{Kernels, quoted};
use super::{CppWeight, dtype};
use crate::Unit;
use crate::host::is_foreign;
use crate::names::{Names, plain};
use crate::segment::root;
use crate::sizes::{Sizes, cpp_literal};
use inrush_base::{DType, Error, Result};
use inrush_program::host::{Out, Segment};
use inrush_program::{
    BufferId, Contract, Guard, InputType, Launch, LibraryCall, Num, Operand, Output, Place,
    Program, Relation, SEED, SizeId, Step, Weight,
};
use std::fmt::Write;

/// A printed model.
pub(crate) struct Printed {
    /// The struct, the list of inputs, and the function that draws them.
    pub(crate) text: String,
    /// Weights that it reads from the file, in order.
    pub(crate) weights: Vec<CppWeight>,
    pub(crate) needs: Needs,
}

/// Parts of a file that only some programs need.
#[derive(Copy, Clone, Default)]
pub(crate) struct Needs {
    /// Some step is a product.
    pub(crate) products: bool,
    /// Some step calls a function of the library.
    pub(crate) library: bool,
}

impl Needs {
    /// Adds those of another program.
    pub(super) fn add(&mut self, other: Needs) {
        self.products |= other.products;
        self.library |= other.library;
    }
}

/// The state of printing a model.
pub(super) struct Printer<'a> {
    pub(super) unit: &'a Unit<'a>,
    pub(super) s: &'a Segment,
    kernels: &'a Kernels,
    pub(super) sizes: Sizes<'a>,
    pub(super) symbols: Vec<String>,
    pub(super) names: Names,
    pub(super) inputs: Vec<Given<'a>>,
    /// By position in the segment: the names of the tensor as it was given and as steps read it.
    pub(super) tensors: Vec<Option<(String, String)>>,
    /// Names of the members that hold weights.
    pub(super) members: Vec<(&'a Weight, DType, String)>,
    /// Name of the memory that load steps fill.
    pub(super) loaded: String,
    /// Expressions of the buffers that are there.
    pub(super) buffers: Vec<Option<String>>,
    /// Names of the outputs' memory.
    storages: Vec<Option<String>>,
    pub(super) lines: Vec<String>,
    /// The steps are those of a call, which have an arena, inputs and outputs.
    pub(super) in_call: bool,
    pub(super) needs: Needs,
}

/// Prints a segment that is all of a unit's program.
///
/// # Errors
/// An unsupported error that names what has no source, an input error for a damaged program.
pub(super) fn print(
    unit: &Unit<'_>,
    s: &Segment,
    kernels: &Kernels,
    names: &mut Names,
) -> Result<Printed> {
    let p = &s.program;
    if p.parts.is_some() {
        return Err(Error::unsupported(
            "a program in parts is not printed as source yet",
        ));
    }
    let mut names = names.clone();
    let mut members: Vec<(&Weight, DType, String)> = Vec::new();
    for b in &p.buffers {
        let Place::Weight(w) = &b.place else { continue };
        match members.iter().find(|m| m.0.name == w.name) {
            None => members.push((w, b.dtype.0, names.fresh(&w.name))),
            Some((same, d, _)) if *same == w && *d == b.dtype.0 => {}
            Some(_) => {
                return Err(Error::input(format!(
                    "the program is damaged: the weight `{}` has two layouts",
                    w.name
                )));
            }
        }
    }
    let mut printer = Printer {
        inputs: inputs(unit, s)?,
        members,
        ..Printer::new(unit, s, kernels, names)?
    };
    let text = printer.print()?;
    let mut weights: Vec<CppWeight> = (printer.members.iter())
        .filter(|m| m.0.name != SEED)
        .map(|(w, d, _)| CppWeight {
            name: w.name.clone(),
            dtype: *d,
            sizes: w.sizes.clone(),
        })
        .collect();
    weights.sort();
    Ok(Printed {
        text,
        weights,
        needs: printer.needs,
    })
}

/// Returns a list in braces.
pub(super) fn list(items: &[String]) -> String {
    format!("{{{}}}", items.join(", "))
}

/// Returns the check of a relation of sizes.
pub(super) fn guard(g: &Guard, left: &str, right: &str) -> String {
    let relation = match g.relation {
        Relation::Eq => "==",
        Relation::Ne => "!=",
        Relation::Le => "<=",
        Relation::Lt => "<",
    };
    let why = quoted(&g.why);
    format!("guard({left} {relation} {right}, {why}, {left}, {right});")
}

/// Returns a number as a literal.
pub(super) fn number(n: Num) -> String {
    match n {
        Num::Bool(b) => b.to_string(),
        Num::Int(i) => format!("i64({})", cpp_literal(i)),
        Num::FloatBits(bits) => match f64::from_bits(bits) {
            f if f.is_finite() => format!("{f:?}"),
            f if f.is_nan() => "std::numeric_limits<double>::quiet_NaN()".into(),
            f if f > 0.0 => "std::numeric_limits<double>::infinity()".into(),
            _ => "-std::numeric_limits<double>::infinity()".into(),
        },
    }
}

impl<'a> Printer<'a> {
    /// Begins to print a segment. Symbols take names first.
    pub(super) fn new(
        unit: &'a Unit<'a>,
        s: &'a Segment,
        kernels: &'a Kernels,
        mut names: Names,
    ) -> Result<Printer<'a>> {
        let p = &s.program;
        let symbols: Vec<String> = p.symbols.iter().map(|s| names.fresh(&s.name)).collect();
        Ok(Printer {
            unit,
            s,
            kernels,
            sizes: Sizes::cpp(&p.sizes, &symbols)?,
            inputs: Vec::new(),
            symbols,
            names,
            tensors: vec![None; p.inputs.len()],
            members: Vec::new(),
            loaded: "loaded".into(),
            buffers: vec![None; p.buffers.len()],
            storages: vec![None; p.outputs.len()],
            lines: Vec::new(),
            in_call: false,
            needs: Needs::default(),
        })
    }

    pub(super) fn p(&self) -> &'a Program {
        &self.s.program
    }

    pub(super) fn line(&mut self, text: String) {
        self.lines.push(text);
    }

    fn print(&mut self) -> Result<String> {
        let p = self.p();
        let mut text = String::from(
            "// The model: its weights, what load steps make of them, the memory of its calls.\nstruct Model {\n    Team team;\n",
        );
        for (w, d, name) in &self.members {
            let shown = plain(&w.name);
            _ = writeln!(
                text,
                "    Tensor {name};  // `{shown}`, {} {:?}",
                d.torch_name(),
                w.sizes
            );
        }
        text.push_str("    std::shared_ptr<char> loaded, arena;\n    i64 arena_bytes = -1;\n\n");
        let has_file = self.members.iter().any(|m| m.0.name != SEED);
        let parameter = if has_file { " &weights" } else { " &" };
        _ = writeln!(
            text,
            "    // Reads the weights, and runs the steps that depend on them alone."
        );
        _ = writeln!(
            text,
            "    Model(const std::string{parameter}, i64 threads) : team(threads) {{"
        );
        if has_file {
            text.push_str("        TensorFile file(weights);\n");
        }
        for (w, d, name) in &self.members {
            let all = |v: &[i64]| list(&v.iter().map(|n| cpp_literal(*n)).collect::<Vec<_>>());
            let layout = format!("{}, {}, {}", dtype(*d)?, all(&w.sizes), all(&w.strides));
            if w.name == SEED {
                _ = writeln!(
                    text,
                    "        // The seed of the next call's random numbers.\n        {name} = empty_tensor({layout});"
                );
                _ = writeln!(text, "        std::memset({name}.data, 0, sizeof(i64));");
            } else {
                _ = writeln!(
                    text,
                    "        {name} = file.read_weight({}, {layout});",
                    quoted(&w.name)
                );
            }
        }
        text.push_str("        load();\n    }\n\n");
        text.push_str("    // Runs the steps that depend on weights alone; to be called again after a change of weights.\n    void load() {\n");
        let names = self.names.clone();
        if !p.load_steps.is_empty() {
            let bytes = self.sizes.get(p.load_bytes)?;
            self.line(format!("loaded = allocate({bytes});"));
            self.steps(&p.load_steps)?;
        }
        self.finish(&mut text, 0);
        self.names = names;
        self.buffers.fill(None);
        self.in_call = true;
        text.push_str(
            "    }\n\n    // Returns memory for the values of a call; later calls use it again.\n    char *reserve(Size bytes) {\n        \
             if (bytes.value > arena_bytes) arena = allocate(bytes), arena_bytes = bytes.value;\n        return arena.get();\n    }\n\n",
        );
        self.print_call(&mut text)?;
        text.push_str("};\n\n");
        self.print_inputs(&mut text)?;
        Ok(text)
    }

    /// Moves the body of a function to the text, with its size arithmetic before the line at `at`.
    pub(super) fn finish(&mut self, text: &mut String, at: usize) {
        let definitions = self.sizes.definitions(0);
        let mut lines = std::mem::take(&mut self.lines);
        let body = lines.split_off(at.min(lines.len()));
        for line in lines.into_iter().chain(definitions).chain(body) {
            _ = writeln!(text, "        {line}");
        }
    }

    /// Prints the pointer to the memory of values of the call, if steps use any.
    pub(super) fn reserve(&mut self) -> Result<()> {
        let p = self.p();
        let uses_arena = p
            .steps
            .iter()
            .flat_map(buffers_of)
            .any(|b| matches!(root(p, b).1, Place::Arena { .. }));
        if uses_arena {
            let bytes = self.sizes.get(p.arena_bytes)?;
            self.line(format!("char *const memory = reserve({bytes});"));
        }
        Ok(())
    }

    fn print_call(&mut self, text: &mut String) -> Result<()> {
        let names: Vec<String> = self.inputs.iter().map(|i| plain(i.name)).collect();
        let what = match names.as_slice() {
            [] => "which takes no inputs".to_string(),
            all => format!("with the inputs {}", all.join(", ")),
        };
        _ = writeln!(
            text,
            "    // Runs the graph, {what}. Steps write into inputs where the graph does."
        );
        text.push_str("    Values call(const Values &inputs) {\n");
        let count = names.len();
        let takes = format!(
            "the model takes {count} inputs ({}), got ",
            names.join(", ")
        );
        self.line(format!(
            "if (inputs.size() != {count}) throw InputError({} + std::to_string(inputs.size()));",
            quoted(&takes)
        ));
        self.expect_inputs()?;
        self.bind_symbols()?;
        let at = self.lines.len();
        self.check_sizes()?;
        self.guards()?;
        self.lay_out()?;
        self.reserve()?;
        self.steps(&self.p().steps)?;
        self.write_back();
        self.outputs()?;
        self.finish(text, at);
        text.push_str("    }\n");
        Ok(())
    }

    pub(super) fn guards(&mut self) -> Result<()> {
        for g in &self.p().guards {
            let (left, right) = (self.sizes.get(g.left)?, self.sizes.get(g.right)?);
            self.line(guard(g, &left, &right));
        }
        Ok(())
    }

    pub(super) fn steps(&mut self, steps: &'a [Step]) -> Result<()> {
        for step in steps {
            for b in buffers_of(step) {
                self.buffer(b)?;
            }
            match step {
                Step::Launch(l) => self.launch(l)?,
                Step::Contract(c) => self.contract(c)?,
                Step::Library(c) => self.library(c)?,
            }
        }
        Ok(())
    }

    /// Returns the expression of a buffer's address. A pointer is made if it is not there.
    fn buffer(&mut self, id: BufferId) -> Result<String> {
        if let Some(name) = &self.buffers[id as usize] {
            return Ok(name.clone());
        }
        let b = &self.p().buffers[id as usize];
        let outside = || {
            Error::input(format!(
                "the program is damaged: a load step names `{}`, which is of a call",
                b.name
            ))
        };
        let place = match &b.place {
            Place::Weight(w) => {
                let found = self.members.iter().find(|m| m.0.name == w.name);
                let member = found.map(|m| format!("{}.data", m.2));
                let member = member.ok_or_else(|| Error::internal("a weight without a member"))?;
                self.buffers[id as usize] = Some(member.clone());
                return Ok(member);
            }
            Place::Persistent { offset } => {
                let offset = self.sizes.get(*offset)?;
                format!("at({}.get(), {offset})", self.loaded)
            }
            Place::Alias { of, offset } => {
                let base = self.buffer(*of)?;
                format!("at({base}, {})", self.sizes.get(*offset)?)
            }
            _ if !self.in_call => return Err(outside()),
            Place::Input { input } => {
                let tensor = self.tensors.get(*input as usize).cloned().flatten();
                let (_, read) = tensor.ok_or_else(|| {
                    Error::input("the program is damaged: a buffer of an input that is no tensor")
                })?;
                let data = format!("{read}.data");
                self.buffers[id as usize] = Some(data.clone());
                return Ok(data);
            }
            Place::Arena { offset } => format!("at(memory, {})", self.sizes.get(*offset)?),
            Place::Output { output } => {
                let memory = self.storage(*output as usize, id)?;
                format!("{memory}.get()")
            }
        };
        let name = self.names.fresh(&b.name);
        self.line(format!(
            "char *const {name} = {place};  // {}",
            b.dtype.0.torch_name()
        ));
        self.buffers[id as usize] = Some(name.clone());
        Ok(name)
    }

    /// Returns the name of an output's memory, which is made if it is not there.
    fn storage(&mut self, output: usize, buffer: BufferId) -> Result<String> {
        let known = self.storages.get(output);
        let known = known.ok_or_else(|| Error::input("the program is damaged: no such output"))?;
        if let Some(name) = known {
            return Ok(name.clone());
        }
        let b = &self.p().buffers[buffer as usize];
        let of_output = |b: &&inrush_program::Buffer| matches!(b.place, Place::Output { output: o } if o as usize == output);
        if self.p().buffers.iter().filter(of_output).count() > 1 {
            return Err(Error::input(format!(
                "the program is damaged: output {output} has several buffers"
            )));
        }
        let name = self.names.fresh(&format!("{}_memory", b.name));
        let bytes = self.sizes.get(b.bytes)?;
        self.line(format!(
            "const std::shared_ptr<char> {name} = {}({bytes});",
            if self.kernels.on_gpu() {
                "device_memory"
            } else {
                "allocate"
            }
        ));
        self.storages[output] = Some(name.clone());
        Ok(name)
    }

    /// Prints the comment above a step: the operators in it.
    fn comment(&mut self, origins: &[String]) {
        if !origins.is_empty() {
            self.line(format!("// {}", plain(&origins.join(", "))));
        }
    }

    fn addresses(&mut self, buffers: &[BufferId]) -> Result<String> {
        let all: Vec<String> = buffers
            .iter()
            .map(|b| self.buffer(*b))
            .collect::<Result<_>>()?;
        Ok(list(&all))
    }

    fn launch(&mut self, l: &Launch) -> Result<()> {
        if self.kernels.on_gpu() {
            return self.launch_on_gpu(l);
        }
        let buffers = self.addresses(&l.buffers)?;
        let kernel = self
            .kernels
            .get(&self.p().kernels[l.kernel as usize].symbol)?;
        let sizes = list(&self.sizes.all(&l.sizes)?);
        let (units, cost) = (self.sizes.get(l.units)?, self.sizes.get(l.unit_cost)?);
        let has_scratch = self.sizes.constant(l.scratch_bytes) != Some(0);
        let mut more = String::new();
        if has_scratch || l.serial {
            _ = write!(more, ", {}", self.sizes.get(l.scratch_bytes)?);
        }
        if l.serial {
            more.push_str(", true");
        }
        self.comment(&l.origins);
        self.line(format!(
            "launch(team, {kernel}, {buffers}, {sizes}, {units}, {cost}{more});"
        ));
        Ok(())
    }

    /// Prints a launch of a kernel of a GPU: pointers, then numbers.
    fn launch_on_gpu(&mut self, l: &Launch) -> Result<()> {
        let symbol = &self.p().kernels[l.kernel as usize].symbol;
        let kernel = self.kernels.get(symbol)?;
        let signature = self.kernels.signature(symbol);
        let mut arguments = Vec::new();
        for b in &l.buffers {
            arguments.push(self.buffer(*b)?);
        }
        let numbers = signature.get(arguments.len()..).unwrap_or_default();
        if numbers.len() != l.sizes.len() {
            return Err(Error::input(
                "the program is damaged: arguments of a kernel",
            ));
        }
        for ((name, ty), id) in numbers.iter().zip(&l.sizes) {
            let size = self.sizes.get(*id)?;
            arguments.push(match ty.as_str() {
                "i32" => format!("int32({}, {size})", quoted(name)),
                "i64" => format!("Size({size})"),
                other => {
                    return Err(Error::input(format!(
                        "the program is damaged: an argument of type `{other}`"
                    )));
                }
            });
        }
        let programs = self.sizes.get(l.units)?;
        self.comment(&l.origins);
        self.line(format!(
            "launch({kernel}, {programs}, {});",
            arguments.join(", ")
        ));
        Ok(())
    }

    fn contract(&mut self, c: &Contract) -> Result<()> {
        self.needs.products = true;
        let p = self.p();
        let (a, b) = (self.buffer(c.a)?, self.buffer(c.b)?);
        let element = |id: BufferId| element(p.buffers[id as usize].dtype.0);
        let (of_a, of_b) = (element(c.a)?, element(c.b)?);
        let sum = match c.acc.0 {
            DType::F32 => "float",
            DType::F64 => "double",
            other => {
                return Err(Error::unsupported(format!(
                    "a product with sums of {} is not printed as C++",
                    other.torch_name()
                )));
            }
        };
        let buffers = self.addresses(&c.buffers)?;
        let kernel = self.kernels.get(&p.kernels[c.epilogue as usize].symbol)?;
        let sizes = list(&self.sizes.all(&c.sizes)?);
        let (from_a, from_b) = (self.sizes.get(c.a_offset)?, self.sizes.get(c.b_offset)?);
        let three = |l: [Option<SizeId>; 3]| -> [Option<SizeId>; 3] { l };
        let batch = self.levels(
            c.batch
                .iter()
                .map(|l| three([Some(l.size), Some(l.a_stride), Some(l.b_stride)])),
        )?;
        let m = self.levels(
            c.m.iter()
                .map(|l| three([Some(l.size), Some(l.stride), None])),
        )?;
        let n = self.levels(
            c.n.iter()
                .map(|l| three([Some(l.size), None, Some(l.stride)])),
        )?;
        let k = self.levels(
            c.k.iter()
                .map(|l| three([Some(l.size), Some(l.a_stride), Some(l.b_stride)])),
        )?;
        self.comment(&c.origins);
        self.line(format!("contract<{of_a}, {of_b}, {sum}>("));
        self.line(format!(
            "    team, {{{a}, {b}, {from_a}, {from_b}, /* batch */ {batch}, /* m */ {m}, /* n */ {n}, /* k */ {k}}},"
        ));
        self.line(format!("    {kernel}, {buffers}, {sizes});"));
        Ok(())
    }

    /// Prints a call of a function of the library.
    fn library(&mut self, c: &LibraryCall) -> Result<()> {
        self.needs.library = true;
        let inputs = self.operands(&c.inputs)?;
        let outputs = self.operands(&c.outputs)?;
        let numbers: Vec<String> = (c.params.iter())
            .map(|n| format!("parameter({})", number(*n)))
            .collect();
        self.comment(&c.origins);
        self.line(format!(
            "library({}, {}, {}, {inputs}, {outputs}, {});",
            quoted(&c.function),
            quoted(&c.origins.join(", ")),
            self.kernels.threads(),
            list(&numbers)
        ));
        Ok(())
    }

    /// Returns the list of a library call's tensors.
    fn operands(&mut self, all: &[Operand]) -> Result<String> {
        let mut items = Vec::with_capacity(all.len());
        for o in all {
            let of = dtype(self.p().buffers[o.buffer as usize].dtype.0)?;
            let (data, sizes) = (self.buffer(o.buffer)?, list(&self.sizes.all(&o.sizes)?));
            items.push(format!("{{{data}, {of}, {sizes}}}"));
        }
        Ok(list(&items))
    }

    /// Returns levels of a product: sizes with strides in both operands.
    fn levels(&mut self, levels: impl Iterator<Item = [Option<SizeId>; 3]>) -> Result<String> {
        let mut out = Vec::new();
        for level in levels {
            let mut items = Vec::new();
            for id in level {
                items.push(id.map_or(Ok("0".to_string()), |id| self.sizes.get(id))?);
            }
            out.push(list(&items));
        }
        Ok(list(&out))
    }

    /// Prints the new contents of inputs, and the results.
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
        for o in &program.outputs {
            match o {
                Out::Slot(slot) => {
                    let is_written = written.contains(slot);
                    let untouched = program.inputs.contains(slot) && !is_written;
                    if !written.is_empty() && is_foreign(self.unit, *slot) && !untouched {
                        return Err(Error::unsupported(
                            "an output in memory that gets new contents is not printed as C++",
                        ));
                    }
                    results.push(self.value(*slot)?);
                }
                Out::Size(id) => results.push(self.size_output(*id)?),
                Out::Constant(at) => results.push(super::constant(self.unit, *at)?),
                Out::Mutation { value, into } => {
                    let at = program.inputs.iter().position(|s| s == into);
                    let own = at.and_then(|at| self.inputs[at].in_segment);
                    let given = match (own.and_then(|k| self.tensors[k].clone()), at) {
                        (Some((given, _)), _) => given,
                        (None, Some(at)) => format!("std::get<Tensor>(inputs[{at}])"),
                        (None, None) => {
                            return Err(Error::unsupported(
                                "new contents of a constant are not printed as C++",
                            ));
                        }
                    };
                    let value = self.value(*value)?;
                    writes.push(format!("copy({given}, {value});"));
                }
            }
        }
        // An initializer list of one `Values` would be a copy of it.
        self.line("Values outputs;".into());
        for r in results {
            self.line(format!("outputs.push_back({r});"));
        }
        for w in writes {
            self.line(w);
        }
        self.line("return outputs;".into());
        Ok(())
    }

    /// Returns the expression of a value at the end of a call.
    fn value(&mut self, slot: usize) -> Result<String> {
        if let Some(k) = self.s.outputs.iter().position(|s| *s == slot) {
            return self.output(k);
        }
        let at = self.unit.program.inputs.iter().position(|s| *s == slot);
        let at = at.ok_or_else(|| Error::input("the program is damaged: an output of no step"))?;
        Ok(format!("inputs[{at}]"))
    }

    /// Returns the expression of an output that is a size of the call.
    fn size_output(&mut self, id: SizeId) -> Result<String> {
        let symbols: Vec<String> = (0..self.unit.program.symbols.len())
            .map(|k| {
                let own = self.s.symbols.iter().position(|s| *s as usize == k);
                own.map_or_else(String::new, |own| self.symbols[own].clone())
            })
            .collect();
        let mut sizes = Sizes::cpp(&self.unit.program.sizes, &symbols)?;
        let text = sizes.get(id)?;
        let lines = sizes.definitions(0);
        // Definitions have names of the segment's: they stand in a function of their own.
        let body: String = lines.iter().map(|l| format!("{l} ")).collect();
        if symbols.iter().any(String::is_empty) {
            return Err(Error::unsupported(
                "an output that is a size of no segment is not printed as C++",
            ));
        }
        Ok(format!(
            "[&]() -> i64 {{ {body}return Size({text}).value; }}()"
        ))
    }

    /// Returns the expression of an output.
    pub(super) fn output(&mut self, at: usize) -> Result<String> {
        let (buffer, d, sizes, strides) = match &self.p().outputs[at] {
            Output::Tensor {
                buffer,
                dtype,
                sizes,
                strides,
            } => (*buffer, dtype.0, sizes, strides),
            Output::Int { value } => return Ok(format!("Size({}).value", self.sizes.get(*value)?)),
            Output::Scalar { value } => return Ok(number(*value)),
            Output::None | Output::Mutation => return Ok("Value()".into()),
        };
        let (base, place) = root(self.p(), buffer);
        let memory = match place {
            Place::Input { input } => {
                let k = *input as usize;
                let tensor = self.tensors.get(k).cloned().flatten();
                let (given, read) = tensor.ok_or_else(|| {
                    Error::input("the program is damaged: an output in an input that is no tensor")
                })?;
                if let InputType::Tensor {
                    sizes: n,
                    strides: s,
                    dtype,
                } = &self.p().inputs[k].ty
                    && buffer == base
                    && (n, s, dtype.0) == (sizes, strides, d)
                {
                    return Ok(given);
                }
                format!("{read}.memory")
            }
            Place::Output { output } => self.storage(*output as usize, base)?,
            _ => {
                return Err(Error::internal(format!(
                    "output {at} has no storage of its own"
                )));
            }
        };
        let data = self.buffer(buffer)?;
        let (sizes, strides) = (
            list(&self.sizes.all(sizes)?),
            list(&self.sizes.all(strides)?),
        );
        let place = if self.kernels.on_gpu() { ", true" } else { "" };
        Ok(format!(
            "Tensor{{{}, {sizes}, {strides}, {data}, {memory}{place}}}",
            dtype(d)?
        ))
    }
}

/// Returns the buffers that a step names, those of operands first.
fn buffers_of(step: &Step) -> Vec<BufferId> {
    match step {
        Step::Launch(l) => l.buffers.clone(),
        Step::Contract(c) => [c.a, c.b]
            .into_iter()
            .chain(c.buffers.iter().copied())
            .collect(),
        Step::Library(c) => c
            .inputs
            .iter()
            .chain(&c.outputs)
            .map(|o| o.buffer)
            .collect(),
    }
}

/// Returns the type of an operand's elements.
///
/// # Errors
/// An unsupported error for a dtype that products do not read.
fn element(d: DType) -> Result<&'static str> {
    Ok(match d {
        DType::F32 => "Plain<float>",
        DType::F64 => "Plain<double>",
        DType::F16 => "Half",
        DType::BF16 => "Brain",
        DType::I8 => "Plain<std::int8_t>",
        DType::U8 => "Plain<std::uint8_t>",
        DType::I16 => "Plain<std::int16_t>",
        DType::I32 => "Plain<std::int32_t>",
        DType::I64 => "Plain<i64>",
        DType::F8E4M3FN => "Eight<3, 7, Special::ones>",
        DType::F8E5M2 => "Eight<2, 15, Special::exponent>",
        DType::F8E4M3FNUZ => "Eight<3, 8, Special::minus_zero>",
        DType::F8E5M2FNUZ => "Eight<2, 16, Special::minus_zero>",
        other => {
            return Err(Error::unsupported(format!(
                "a product of {} is not printed as C++",
                other.torch_name()
            )));
        }
    })
}
