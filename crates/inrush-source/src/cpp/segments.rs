//! Segments as functions of the struct, with the steps that run at load.

use super::dtype;
use super::kernels::{Kernels, quoted};
use super::model::{Needs, Printer, list};
use crate::Unit;
use crate::host::is_foreign;
use crate::names::{Names, plain};
use crate::segment::tensors;
use crate::sizes::cpp_literal;
use inrush_base::{DType, Error, Result};
use inrush_program::host::Segment;
use inrush_program::{SEED, Weight};
use std::fmt::Write;

/// A weight: its member, its name, its layout.
pub(super) struct Member {
    pub(super) member: String,
    pub(super) name: String,
    pub(super) dtype: DType,
    pub(super) sizes: Vec<i64>,
    pub(super) strides: Vec<i64>,
}

/// Facts that the functions of a file share while it is printed.
pub(super) struct Shared<'a> {
    pub(super) kernels: &'a Kernels,
    /// Weights that segments read themselves, with their members.
    pub(super) weights: Vec<(&'a Weight, DType, String)>,
    /// Names of functions and members.
    pub(super) names: Names,
    /// Members for what load steps fill.
    pub(super) loaded: String,
    /// Load steps.
    pub(super) load: String,
    /// Functions that are called.
    pub(super) functions: String,
    pub(super) needs: Needs,
}

impl Shared<'_> {
    /// Returns a name for a function.
    pub(super) fn fresh(&mut self, wanted: &str) -> String {
        self.names.fresh(wanted)
    }

    /// Adds a function.
    pub(super) fn add(&mut self, text: &str) {
        self.functions.push_str(text);
    }
}

/// Prints a segment as a function of tensors and symbols. Returns its name.
pub(super) fn function<'a, 's: 'a>(
    unit: &'a Unit<'a>,
    s: &'a Segment,
    read: &[bool],
    shared: &mut Shared<'s>,
) -> Result<String> {
    let p = &s.program;
    let name = shared.names.fresh("segment");
    if p.parts.is_some() {
        return Err(Error::unsupported(
            "a segment in parts is not printed as C++",
        ));
    }
    let loaded = load(unit, s, &name, shared)?;
    let mut printer = printer(unit, s, &loaded, shared)?;
    printer.in_call = true;
    let mut parameters = Vec::new();
    for at in tensors(s) {
        let read = printer.names.fresh(&p.inputs[at].name);
        let given = if is_foreign(unit, s.inputs[at]) {
            printer.names.fresh(&format!("{read}_given"))
        } else {
            read.clone()
        };
        parameters.push(format!("[[maybe_unused]] const Tensor &{given}"));
        printer.tensors[at] = Some((given, read));
    }
    parameters.extend(
        printer
            .symbols
            .iter()
            .map(|s| format!("[[maybe_unused]] Size {s}")),
    );
    for (own, name) in p.symbols.iter().zip(printer.symbols.clone()) {
        if own.lower > i64::MIN || own.upper < i64::MAX {
            let (shown, lower) = (quoted(&own.name), cpp_literal(own.lower));
            let upper = cpp_literal(own.upper);
            printer.line(format!(
                "within(\"a size\", {shown}, {name}, {lower}, {upper});"
            ));
        }
    }
    printer.guards()?;
    for at in tensors(s) {
        printer.resident(at)?;
    }
    printer.reserve()?;
    printer.steps(&p.steps)?;
    for (at, written) in p.written_inputs().into_iter().enumerate() {
        if let (true, Some((given, read))) = (written, printer.tensors[at].clone())
            && given != read
        {
            printer.line(format!(
                "if ({read}.data != {given}.data) assign({given}, {read});"
            ));
        }
    }
    printer.line("Values outputs;".into());
    for k in 0..p.outputs.len() {
        let value = if read[s.outputs[k]] {
            printer.output(k)?
        } else {
            "Value()".into()
        };
        printer.line(format!("outputs.push_back({value});"));
    }
    printer.line("return outputs;".into());
    shared.needs.add(printer.needs);
    let what = match p.name.as_str() {
        "" => "Runs kernels.".to_string(),
        name => format!("Runs the kernels of `{}`.", plain(name)),
    };
    let mut text = format!(
        "    // {what}\n    Values {name}({}) {{\n",
        parameters.join(", ")
    );
    printer.finish(&mut text, 0);
    text.push_str("    }\n\n");
    shared.functions.push_str(&text);
    Ok(name)
}

/// Begins to print a segment.
fn printer<'a, 's: 'a>(
    unit: &'a Unit<'a>,
    s: &'a Segment,
    loaded: &str,
    shared: &Shared<'s>,
) -> Result<Printer<'a>> {
    let mut printer = Printer::new(unit, s, shared.kernels, shared.names.clone())?;
    printer.members = shared.weights.clone();
    printer.loaded = loaded.to_string();
    Ok(printer)
}

/// Prints the load steps of a segment. Returns the name of the memory that they fill.
fn load<'a, 's: 'a>(
    unit: &'a Unit<'a>,
    s: &'a Segment,
    name: &str,
    shared: &mut Shared<'s>,
) -> Result<String> {
    if s.program.load_steps.is_empty() {
        return Ok(String::new());
    }
    let loaded = shared.names.fresh(&format!("{name}_loaded"));
    _ = writeln!(shared.loaded, "    std::shared_ptr<char> {loaded};");
    let mut printer = printer(unit, s, &loaded, shared)?;
    let bytes = printer.sizes.get(s.program.load_bytes)?;
    let allocate = if shared.kernels.on_gpu() {
        "device_memory"
    } else {
        "allocate"
    };
    printer.line(format!("{loaded} = {allocate}({bytes});"));
    printer.steps(&s.program.load_steps)?;
    shared.needs.add(printer.needs);
    let mut body = String::new();
    printer.finish(&mut body, 0);
    shared.load.push_str("        {\n");
    for line in body.lines() {
        _ = writeln!(shared.load, "    {line}");
    }
    shared.load.push_str("        }\n");
    Ok(loaded)
}

/// Prints the beginning of the struct for a CPU.
pub(super) fn print_members_of_cpu(members: &[Member], shared: &Shared<'_>) -> Result<String> {
    let mut text = String::from(
        "// The model: its weights, what load steps make of them, the memory of its calls.\nstruct Model {\n    Team team;\n",
    );
    for m in members {
        let (shown, d) = (plain(&m.name), m.dtype.torch_name());
        _ = writeln!(
            text,
            "    Tensor {};  // `{shown}`, {d} {:?}",
            m.member, m.sizes
        );
    }
    text.push_str(&shared.loaded);
    text.push_str("    std::shared_ptr<char> arena;\n    i64 arena_bytes = -1;\n\n");
    let has_file = members.iter().any(|m| m.name != SEED);
    let parameter = if has_file { " &weights" } else { " &" };
    _ = writeln!(
        text,
        "    // Reads the weights, and runs the steps that depend on them alone.\n    \
         Model(const std::string{parameter}, i64 threads) : team(threads) {{"
    );
    if has_file {
        text.push_str("        TensorFile file(weights);\n");
    }
    for m in members {
        let all = |v: &[i64]| list(&v.iter().map(|n| cpp_literal(*n)).collect::<Vec<_>>());
        let layout = format!(
            "{}, {}, {}",
            dtype(m.dtype)?,
            all(&m.sizes),
            all(&m.strides)
        );
        let name = &m.member;
        if m.name == SEED {
            _ = writeln!(
                text,
                "        // The seed of the next call's random numbers.\n        {name} = empty_tensor({layout});\n        \
                 std::memset({name}.data, 0, sizeof(i64));"
            );
        } else {
            let shown = quoted(&m.name);
            _ = writeln!(
                text,
                "        {name} = file.read_weight({shown}, {layout});"
            );
        }
    }
    _ = write!(
        text,
        "        load();\n    }}\n\n    // Runs the steps that depend on weights alone; to be called again after a change of weights.\n    \
         void load() {{\n{}    }}\n\n    \
         // Returns memory for the values of a segment; later ones use it again.\n    char *reserve(Size bytes) {{\n        \
         if (bytes.value > arena_bytes) arena = allocate(bytes), arena_bytes = bytes.value;\n        return arena.get();\n    }}\n\n",
        shared.load
    );
    Ok(text)
}
