//! The program as a struct of C++: weights are members, load steps and the steps of a call are functions.
//!
//! A buffer is a pointer to bytes. Values of a call are in one memory at the places of the program's memory plan.

use super::kernels::{Kernels, quoted};
use super::{CppWeight, dtype};
use crate::Unit;
use crate::names::{Names, plain};
use crate::segment::root;
use crate::sizes::{Sizes, cpp_literal};
use inrush_base::{DType, Error, Result};
use inrush_program::host::{Out, Read, Segment};
use inrush_program::{
    BufferId, Contract, InputType, Launch, Num, Output, Place, Program, Reads, Relation, SEED,
    SizeId, Step, Weight,
};
use std::fmt::Write;

/// Value of a symbol that inputs are drawn with, if its range has it.
const SAMPLE: i64 = 8;

/// A printed model.
pub(crate) struct Printed {
    /// The struct, the list of inputs, and the function that draws them.
    pub(crate) text: String,
    /// Weights that it reads from the file, in order.
    pub(crate) weights: Vec<CppWeight>,
    /// Some step is a product.
    pub(crate) has_products: bool,
}

/// An input of the call: its name, its position in the segment, and its kind.
struct Given<'a> {
    name: &'a str,
    in_segment: Option<usize>,
    kind: Kind<'a>,
}

/// The kind of an input.
enum Kind<'a> {
    Tensor {
        dtype: DType,
        sizes: &'a [SizeId],
        strides: &'a [SizeId],
        reads: Reads,
    },
    /// An integer, and the size that it must equal.
    Int(Option<SizeId>),
    Constant(Num),
    Ignored,
}

/// The state of printing a model.
struct Printer<'a> {
    unit: &'a Unit<'a>,
    s: &'a Segment,
    kernels: &'a Kernels,
    sizes: Sizes<'a>,
    symbols: Vec<String>,
    names: Names,
    inputs: Vec<Given<'a>>,
    /// By position in the segment: the names of the tensor as it was given and as steps read it.
    tensors: Vec<Option<(String, String)>>,
    /// Names of the members that hold weights.
    members: Vec<(&'a Weight, DType, String)>,
    /// Expressions of the buffers that are there.
    buffers: Vec<Option<String>>,
    /// Names of the outputs' memory.
    storages: Vec<Option<String>>,
    lines: Vec<String>,
    /// The steps are those of a call, which have an arena, inputs and outputs.
    in_call: bool,
    has_products: bool,
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
    let symbols: Vec<String> = p.symbols.iter().map(|s| names.fresh(&s.name)).collect();
    let mut printer = Printer {
        unit,
        s,
        kernels,
        sizes: Sizes::cpp(&p.sizes, &symbols)?,
        inputs: inputs(unit, s)?,
        symbols,
        names,
        tensors: vec![None; p.inputs.len()],
        members,
        buffers: vec![None; p.buffers.len()],
        storages: vec![None; p.outputs.len()],
        lines: Vec::new(),
        in_call: false,
        has_products: false,
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
        has_products: printer.has_products,
    })
}

/// Returns the inputs of the call.
fn inputs<'a>(unit: &'a Unit<'a>, s: &'a Segment) -> Result<Vec<Given<'a>>> {
    let program = unit.program;
    if let Some(slot) = s.inputs.iter().find(|slot| !program.inputs.contains(slot)) {
        let object = program.constants.iter().find(|c| c.0 == *slot);
        let what = match object.and_then(|c| unit.objects.get(c.1)) {
            Some(crate::Object::Weight(name)) => {
                format!("the weight `{name}` as an input of a segment")
            }
            _ => "a constant of the graph".to_string(),
        };
        return Err(Error::unsupported(format!("{what} is not printed as C++")));
    }
    let mut out = Vec::with_capacity(program.inputs.len());
    for (at, slot) in program.inputs.iter().enumerate() {
        let in_segment = s.inputs.iter().position(|x| x == slot);
        let input = in_segment.and_then(|k| s.program.inputs.get(k));
        let is_symbol = || (program.symbols.iter()).any(|s| s.slot == *slot && s.read == Read::Int);
        let kind = match input.map(|i| (&i.ty, i.reads)) {
            Some((
                InputType::Tensor {
                    dtype,
                    sizes,
                    strides,
                },
                reads,
            )) => Kind::Tensor {
                dtype: dtype.0,
                sizes,
                strides,
                reads,
            },
            Some((InputType::Int { value }, _)) => Kind::Int(Some(*value)),
            Some((InputType::Constant { value }, _)) => Kind::Constant(*value),
            None if is_symbol() => Kind::Int(None),
            Some((InputType::Ignored, _)) | None => Kind::Ignored,
        };
        let named = unit.inputs.get(at).map(String::as_str);
        let name = named.or(input.map(|i| i.name.as_str())).unwrap_or("input");
        out.push(Given {
            name,
            in_segment,
            kind,
        });
    }
    Ok(out)
}

/// Returns a list in braces.
fn list(items: &[String]) -> String {
    format!("{{{}}}", items.join(", "))
}

/// Returns a number as a literal.
fn number(n: Num) -> String {
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
    fn p(&self) -> &'a Program {
        &self.s.program
    }

    fn line(&mut self, text: String) {
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
    fn finish(&mut self, text: &mut String, at: usize) {
        let definitions = self.sizes.definitions(0);
        let mut lines = std::mem::take(&mut self.lines);
        let body = lines.split_off(at.min(lines.len()));
        for line in lines.into_iter().chain(definitions).chain(body) {
            _ = writeln!(text, "        {line}");
        }
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
        self.steps(&p.steps)?;
        self.write_back();
        self.outputs()?;
        self.finish(text, at);
        text.push_str("    }\n");
        Ok(())
    }

    /// Prints checks of the inputs' kinds.
    fn expect_inputs(&mut self) -> Result<()> {
        for at in 0..self.inputs.len() {
            let Given {
                name,
                in_segment,
                ref kind,
            } = self.inputs[at];
            let shown = quoted(name);
            match kind {
                Kind::Tensor {
                    dtype: d, sizes, ..
                } => {
                    let (d, rank) = (dtype(*d)?, sizes.len());
                    let read = self.names.fresh(name);
                    let given = self.names.fresh(&format!("{read}_given"));
                    self.line(format!(
                        "const Tensor &{given} = expect_tensor({shown}, inputs[{at}], {d}, {rank});"
                    ));
                    if let Some(k) = in_segment {
                        self.tensors[k] = Some((given, read));
                    }
                }
                Kind::Int(_) => self.line(format!("expect_int({shown}, inputs[{at}]);")),
                Kind::Constant(value) => {
                    let spelled = quoted(&inrush_base::Scalar::from(*value).to_string());
                    let value = number(*value);
                    self.line(format!(
                        "expect_constant({shown}, inputs[{at}], {value}, {spelled});"
                    ));
                }
                Kind::Ignored => {}
            }
        }
        Ok(())
    }

    /// Prints the reads of the symbols, and the checks of their ranges.
    fn bind_symbols(&mut self) -> Result<()> {
        let program = self.unit.program;
        for (k, own) in self.p().symbols.iter().enumerate() {
            let damaged = || Error::input("the program is damaged: a symbol of no input");
            let symbol = self
                .s
                .symbols
                .get(k)
                .and_then(|at| program.symbols.get(*at as usize));
            let symbol = symbol.filter(|s| s.after.is_none()).ok_or_else(damaged)?;
            let at = program.inputs.iter().position(|slot| *slot == symbol.slot);
            let at = at.ok_or_else(damaged)?;
            let input = &self.inputs[at];
            let (shown, name) = (quoted(input.name), self.symbols[k].clone());
            let (value, place) = match symbol.read {
                Read::Int => (
                    format!("expect_int({shown}, inputs[{at}])"),
                    format!("input `{}`", input.name),
                ),
                Read::Dim {
                    dim,
                    factor,
                    offset,
                } => {
                    let tensor = input.in_segment.and_then(|k| self.tensors[k].clone());
                    let (given, _) = tensor.ok_or_else(damaged)?;
                    (
                        format!(
                            "solve({shown}, {given}, {dim}, {}, {}, {})",
                            cpp_literal(factor),
                            cpp_literal(offset),
                            quoted(&own.name)
                        ),
                        format!("dimension {dim} of input `{}`", input.name),
                    )
                }
            };
            self.line(format!("const Size {name} = {value};"));
            if own.lower > i64::MIN || own.upper < i64::MAX {
                let upper = match own.upper {
                    i64::MAX => "std::numeric_limits<i64>::max()".to_string(),
                    n => cpp_literal(n),
                };
                self.line(format!(
                    "within({}, {}, {name}, {}, {upper});",
                    quoted(&place),
                    quoted(&own.name),
                    cpp_literal(own.lower)
                ));
            }
        }
        Ok(())
    }

    /// Prints the comparison of inputs with the sizes that they must have.
    fn check_sizes(&mut self) -> Result<()> {
        let p = self.p();
        let known: Vec<String> = (p.symbols.iter().zip(&self.symbols))
            .map(|(s, name)| {
                format!(
                    "{} + std::to_string({name}.value)",
                    quoted(&format!("{} = ", s.name))
                )
            })
            .collect();
        let known = match known.as_slice() {
            [] => "std::string()".to_string(),
            all => format!("std::string() + {}", all.join(" + \", \" + ")),
        };
        self.line(format!("const auto known = [&] {{ return {known}; }};"));
        for at in 0..self.inputs.len() {
            let Given {
                name,
                in_segment,
                ref kind,
            } = self.inputs[at];
            let shown = quoted(name);
            match *kind {
                Kind::Tensor { sizes, .. } => {
                    let Some((given, _)) = in_segment.and_then(|k| self.tensors[k].clone()) else {
                        continue;
                    };
                    let wanted = list(&self.sizes.all(sizes)?);
                    let formulas: Vec<String> =
                        sizes.iter().map(|n| quoted(&p.show_size(*n))).collect();
                    let formulas = list(&formulas);
                    self.line(format!(
                        "expect_sizes({shown}, {given}, {wanted}, {formulas}, known);"
                    ));
                }
                Kind::Int(Some(value)) => {
                    let (wanted, formula) = (self.sizes.get(value)?, quoted(&p.show_size(value)));
                    self.line(format!(
                        "expect_value({shown}, expect_int({shown}, inputs[{at}]), {wanted}, {formula});"
                    ));
                }
                Kind::Int(None) | Kind::Constant(_) | Kind::Ignored => {}
            }
        }
        Ok(())
    }

    fn guards(&mut self) -> Result<()> {
        for g in &self.p().guards {
            let (left, right) = (self.sizes.get(g.left)?, self.sizes.get(g.right)?);
            let relation = match g.relation {
                Relation::Eq => "==",
                Relation::Ne => "!=",
                Relation::Le => "<=",
                Relation::Lt => "<",
            };
            let why = quoted(&g.why);
            self.line(format!(
                "guard({left} {relation} {right}, {why}, {left}, {right});"
            ));
        }
        Ok(())
    }

    /// Prints the copies of tensors with other strides.
    fn lay_out(&mut self) -> Result<()> {
        for at in 0..self.inputs.len() {
            let Given {
                name,
                in_segment,
                kind: Kind::Tensor { strides, reads, .. },
            } = self.inputs[at]
            else {
                continue;
            };
            let Some((given, read)) = in_segment.and_then(|k| self.tensors[k].clone()) else {
                continue;
            };
            let strides = list(&self.sizes.all(strides)?);
            let reads = match reads {
                Reads::Elements => "",
                Reads::Memory => ", Reads::memory",
                Reads::Storage => ", Reads::storage",
            };
            self.line(format!(
                "const Tensor {read} = laid_out({}, {given}, {strides}{reads});",
                quoted(name)
            ));
        }
        Ok(())
    }

    /// Prints the copies back into inputs that were laid out otherwise and that steps write.
    fn write_back(&mut self) {
        for (k, written) in self.p().written_inputs().into_iter().enumerate() {
            if let (true, Some((given, read))) = (written, self.tensors[k].clone()) {
                self.line(format!(
                    "if ({read}.data != {given}.data) copy({given}, {read});"
                ));
            }
        }
    }

    fn steps(&mut self, steps: &'a [Step]) -> Result<()> {
        for step in steps {
            for b in buffers_of(step) {
                self.buffer(b)?;
            }
            match step {
                Step::Launch(l) => self.launch(l)?,
                Step::Contract(c) => self.contract(c)?,
                Step::Library(c) => {
                    return Err(Error::unsupported(format!(
                        "the library function `{}` ({}) is not printed as C++",
                        c.function,
                        c.origins.join(", ")
                    )));
                }
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
                format!("at(loaded.get(), {})", self.sizes.get(*offset)?)
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
            "const std::shared_ptr<char> {name} = allocate({bytes});"
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

    fn contract(&mut self, c: &Contract) -> Result<()> {
        self.has_products = true;
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

    /// Prints the results.
    fn outputs(&mut self) -> Result<()> {
        let mut results = Vec::new();
        for o in &self.unit.program.outputs {
            let Out::Slot(slot) = o else {
                return Err(Error::unsupported(
                    "an output that is a size or a constant, or new contents of an argument, is not printed as C++",
                ));
            };
            let own = self.s.outputs.iter().position(|s| s == slot);
            results.push(match own {
                Some(k) => self.output(k)?,
                None => {
                    let at = self.unit.program.inputs.iter().position(|s| s == slot);
                    let at = at.ok_or_else(|| {
                        Error::input("the program is damaged: an output of no step")
                    })?;
                    format!("inputs[{at}]")
                }
            });
        }
        // An initializer list of one `Values` would be a copy of it.
        self.line("Values outputs;".into());
        for r in results {
            self.line(format!("outputs.push_back({r});"));
        }
        self.line("return outputs;".into());
        Ok(())
    }

    /// Returns the expression of an output.
    fn output(&mut self, at: usize) -> Result<String> {
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
        Ok(format!(
            "Tensor{{{}, {sizes}, {strides}, {data}, {memory}}}",
            dtype(d)?
        ))
    }

    /// Prints the list of inputs, and the function that draws them.
    fn print_inputs(&mut self, text: &mut String) -> Result<()> {
        let kinds: Vec<String> = (self.inputs.iter())
            .map(|i| {
                let kind = match i.kind {
                    Kind::Tensor { .. } => "tensor",
                    Kind::Int(_) => "integer",
                    Kind::Constant(_) | Kind::Ignored => "ignored",
                };
                format!("{{{}, Kind::{kind}}}", quoted(i.name))
            })
            .collect();
        _ = writeln!(
            text,
            "const std::vector<Input> INPUTS = {};\n",
            list(&kinds)
        );
        // Lines of its own.
        self.sizes = Sizes::cpp(&self.p().sizes, &self.symbols)?;
        let shown: Vec<String> = self.p().symbols.iter().map(|s| quoted(&s.name)).collect();
        self.line(format!("expect_names(given, {});", list(&shown)));
        for (s, name) in self.p().symbols.iter().zip(&self.symbols.clone()) {
            let sample = cpp_literal(SAMPLE.min(s.upper).max(s.lower));
            self.line(format!(
                "const Size {name} = size_of(given, {}, {sample});",
                quoted(&s.name)
            ));
        }
        let at = self.lines.len();
        self.line("Values inputs;".into());
        let inputs = std::mem::take(&mut self.inputs);
        for (position, input) in inputs.iter().enumerate() {
            let value = match input.kind {
                Kind::Tensor {
                    dtype: d,
                    sizes,
                    strides,
                    ..
                } => {
                    let (n, by) = (
                        list(&self.sizes.all(sizes)?),
                        list(&self.sizes.all(strides)?),
                    );
                    format!("drawn({}, {n}, {by})", dtype(d)?)
                }
                Kind::Int(Some(value)) => format!("Size({}).value", self.sizes.get(value)?),
                Kind::Int(None) => format!("Size({}).value", self.symbol_of(position)),
                Kind::Constant(_) | Kind::Ignored => "Value()".into(),
            };
            let name = plain(input.name);
            self.line(format!("inputs.push_back({value});  // {name}"));
        }
        self.line("return inputs;".into());
        text.push_str("// Draws inputs of the right shapes. Sizes can be given by name.\ninline Values drawn_inputs(const std::map<std::string, i64> &given) {\n");
        let mut body = String::new();
        self.finish(&mut body, at);
        for line in body.lines() {
            _ = writeln!(text, "{}", line.strip_prefix("    ").unwrap_or(line));
        }
        text.push_str("}\n");
        Ok(())
    }

    /// Returns the name of the symbol that an integer input is.
    fn symbol_of(&self, position: usize) -> String {
        let program = self.unit.program;
        let slot = program.inputs[position];
        let mut pairs = self.s.symbols.iter().zip(&self.symbols);
        let found = pairs.find(|(k, _)| {
            let symbol = program.symbols.get(**k as usize);
            symbol.is_some_and(|s| s.slot == slot && s.read == Read::Int)
        });
        found.map_or("0".into(), |(_, name)| name.clone())
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
        other => {
            return Err(Error::unsupported(format!(
                "a product of {} is not printed as C++",
                other.torch_name()
            )));
        }
    })
}
