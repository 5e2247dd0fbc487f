//! Sources of kernels, and the object that launches each.

use crate::names::{Names, plain, quote};
use crate::{Code, Unit};
use inrush_base::{Error, ErrorKind, Result};
use inrush_program::host::{HostProgram, Segment, Step as HostStep, StepKind, UserKernel};
use inrush_program::parts::Work;
use inrush_program::{GpuKernel, Kernel, Step};
use std::collections::BTreeMap;
use std::fmt::Write;

/// A kernel of the file.
pub(crate) struct Named<'a> {
    /// The object that launches it.
    pub(crate) name: String,
    /// For a kernel of a GPU.
    pub(crate) gpu: Option<&'a GpuKernel>,
}

/// The kernels of a file.
pub(crate) struct Kernels<'a> {
    by_symbol: BTreeMap<&'a str, Named<'a>>,
    /// The text of their sources and objects.
    pub(crate) text: String,
    /// Some kernel takes the sums of products.
    pub(crate) has_epilogues: bool,
    /// Some kernel takes tensor maps.
    pub(crate) has_maps: bool,
    /// Some kernel is the user's.
    pub(crate) has_users: bool,
    /// Kernels of the user's, each with the name of the object that launches it.
    users: Vec<(&'a GpuKernel, String)>,
}

impl<'a> Kernels<'a> {
    /// Prints the kernels of all segments.
    ///
    /// # Errors
    /// An input error for a kernel without source.
    pub(crate) fn new(unit: &Unit<'a>, names: &mut Names) -> Result<Kernels<'a>> {
        let mut kernels = Kernels {
            by_symbol: BTreeMap::new(),
            text: String::new(),
            has_epilogues: false,
            has_maps: false,
            has_users: false,
            users: Vec::new(),
        };
        match unit.code {
            Code::C { flags, libraries } => kernels.print_c(unit, flags, libraries, names),
            Code::Gpu(_) | Code::Built(..) => {
                kernels.print_gpu(unit, names)?;
                kernels.print_users(unit, names)?;
            }
        }
        Ok(kernels)
    }

    /// Returns a kernel by its symbol.
    ///
    /// # Errors
    /// An input error if there is none.
    pub(crate) fn get(&self, symbol: &str) -> Result<&Named<'a>> {
        let found = self.by_symbol.get(symbol);
        found.ok_or_else(|| Error::input(format!("the program is damaged: no kernel `{symbol}`")))
    }

    fn print_c(&mut self, unit: &Unit<'a>, flags: &[&str], libraries: &[&str], names: &mut Names) {
        let list = |items: &[&str]| -> String {
            let items: Vec<String> = items.iter().map(|i| quote(i)).collect();
            items.join(", ")
        };
        let text = &mut self.text;
        _ = writeln!(text, "FLAGS = [{}]", list(flags));
        _ = writeln!(text, "LIBRARIES = [{}]", list(libraries));
        text.push_str("PIECES = [\n");
        for piece in &unit.program.pieces {
            let is_raw =
                !piece.contains("'''") && !piece.contains(['\r', '\0']) && piece.ends_with('\n');
            _ = if is_raw {
                writeln!(text, "    r'''{piece}''',")
            } else {
                writeln!(text, "    {},", quote(piece))
            };
        }
        text.push_str("]\nLIBRARY = build(PIECES)\n\n");
        for (kernel, takes_sums) in used(unit) {
            if self.by_symbol.contains_key(kernel.symbol.as_str()) {
                continue;
            }
            let name = names.fresh(&format!("{}_kernel", kernel.title));
            let symbol = quote(&kernel.symbol);
            if takes_sums {
                self.has_epilogues = true;
                _ = writeln!(self.text, "{name} = Epilogue({symbol})");
            } else {
                let checks = checks(kernel);
                _ = writeln!(self.text, "{name} = Kernel({symbol}{checks})");
            }
            let named = Named { name, gpu: None };
            self.by_symbol.insert(&kernel.symbol, named);
        }
    }

    fn print_gpu(&mut self, unit: &Unit<'a>, names: &mut Names) -> Result<()> {
        let mut sources: BTreeMap<&str, &GpuKernel> = BTreeMap::new();
        for p in programs(unit.program) {
            let gpu = (p.gpu.as_ref())
                .ok_or_else(|| Error::input("the program is damaged: it has no GPU"))?;
            sources.extend(gpu.kernels.iter().map(|k| (k.symbol.as_str(), k)));
        }
        // Definitions that stand in the file, by name.
        let mut defined: BTreeMap<String, String> = BTreeMap::new();
        for (kernel, _) in used(unit) {
            if self.by_symbol.contains_key(kernel.symbol.as_str()) {
                continue;
            }
            let source = *(sources.get(kernel.symbol.as_str())).ok_or_else(|| {
                Error::input(format!(
                    "the program is damaged: no source of `{}`",
                    kernel.symbol
                ))
            })?;
            let function = self.print_source(source, &mut defined, names);
            let name = names.fresh(&format!("{}_kernel", kernel.title));
            let pairs = |items: &mut dyn Iterator<Item = (&String, String)>| {
                let items: Vec<String> = items.map(|(n, t)| format!("{}: {t}", quote(n))).collect();
                format!("{{{}}}", items.join(", "))
            };
            let signature = pairs(&mut source.signature.iter().map(|(n, t)| (n, quote(t))));
            let constants = pairs(&mut source.constants.iter().map(|(n, v)| (n, v.to_string())));
            let divisible: Vec<String> = source.divisible.iter().map(usize::to_string).collect();
            let debug = if source.debug { "True" } else { "False" };
            _ = writeln!(
                self.text,
                "{name} = Kernel(\n    {function},\n    {signature},\n    {constants},\n    divisible=[{}],\n    num_warps={},\n    num_stages={},\n    debug={debug},\n)\n\n",
                divisible.join(", "),
                source.warps,
                source.stages,
            );
            self.has_maps |= source.signature.iter().any(|(_, t)| map_type(t).is_some());
            let gpu = Some(source);
            self.by_symbol.insert(&kernel.symbol, Named { name, gpu });
        }
        Ok(())
    }

    /// Prints kernels of the user's, each as a module of its own: what they name may have the same name in another.
    fn print_users(&mut self, unit: &Unit<'a>, names: &mut Names) -> Result<()> {
        for (program, k) in launches(unit.program) {
            let kernels = program.gpu.as_ref().map(|g| g.kernels.as_slice());
            let source = kernels.and_then(|all| all.get(k.kernel)).ok_or_else(|| {
                Error::input("the program is damaged: a kernel of the user's without source")
            })?;
            if self.user(source).is_some() {
                continue;
            }
            let is_digest = |l: &&str| l.starts_with("DIGEST = ");
            let constants = source
                .text
                .lines()
                .find_map(|l| l.strip_prefix("CONSTANTS = "));
            let text: Vec<&str> = (source.text.lines())
                .filter(|l| !is_digest(l) && !l.starts_with("CONSTANTS = "))
                .collect();
            let text = text.join("\n");
            let text = if text.contains("'''") || text.contains('\r') {
                quote(&text)
            } else {
                format!("r'''{}\n'''", text.trim_end())
            };
            let name = names.fresh(&format!("{}_kernel", source.function));
            let pairs = |items: &[(String, String)]| {
                let all = items.iter().map(|(n, t)| format!("{}: {t}", quote(n)));
                all.collect::<Vec<_>>().join(", ")
            };
            let quoted: Vec<(String, String)> = (source.signature.iter())
                .map(|(n, t)| (n.clone(), quote(t)))
                .collect();
            let numbers: Vec<(String, String)> = (source.constants.iter())
                .map(|(n, v)| (n.clone(), v.to_string()))
                .collect();
            let constants = match constants {
                Some(more) => format!("{{**{}, {}}}", more.trim(), pairs(&numbers)),
                None => format!("{{{}}}", pairs(&numbers)),
            };
            let divisible: Vec<String> = source.divisible.iter().map(usize::to_string).collect();
            _ = writeln!(
                self.text,
                "# {}\n{name} = UserKernel(\n    user_function({}, {text}),\n    {{{}}},\n    {constants},\n    \
                 divisible=[{}],\n    num_warps={},\n    num_stages={},\n)\n\n",
                plain(&k.title),
                quote(&source.function),
                pairs(&quoted),
                divisible.join(", "),
                source.warps,
                source.stages,
            );
            self.has_users = true;
            self.has_maps |= source.signature.iter().any(|(_, t)| map_type(t).is_some());
            self.users.push((source, name));
        }
        Ok(())
    }

    /// Returns the object that launches a kernel of the user's. Programs that control flow calls number their kernels by
    /// themselves, so that symbols of equal kernels may differ, and those of different ones agree.
    pub(crate) fn user(&self, kernel: &GpuKernel) -> Option<&str> {
        let is_same = |other: &GpuKernel| {
            let symbol = other.symbol.clone();
            let kernel = kernel.clone();
            GpuKernel { symbol, ..kernel } == *other
        };
        let found = self.users.iter().find(|(other, _)| is_same(other));
        found.map(|(_, name)| name.as_str())
    }

    /// Prints a kernel's module without its imports and without definitions that are there. Returns the name of its function.
    fn print_source(
        &mut self,
        source: &GpuKernel,
        defined: &mut BTreeMap<String, String>,
        names: &mut Names,
    ) -> String {
        let mut blocks = blocks(&source.text);
        let mut function = source.function.clone();
        for at in 0..blocks.len() {
            let Some(name) = defines(&blocks[at]).map(str::to_string) else {
                continue;
            };
            if defined.get(&name) == Some(&blocks[at]) {
                blocks[at].clear();
                continue;
            }
            // Another kernel's module, or a helper of this file, defines the name otherwise.
            if !names.take(&name) {
                let other = names.fresh(&name);
                for b in &mut blocks {
                    *b = renamed(b, &name, &other);
                }
                if function == name {
                    function = other.clone();
                }
                defined.insert(other, blocks[at].clone());
            } else {
                defined.insert(name, blocks[at].clone());
            }
        }
        for b in blocks.iter().filter(|b| !b.is_empty()) {
            _ = writeln!(self.text, "{b}\n\n");
        }
        function
    }
}

/// Returns the kernels that steps name, in order, each with true if it takes the sums of products.
pub(crate) fn used<'a>(unit: &Unit<'a>) -> Vec<(&'a Kernel, bool)> {
    let mut out = Vec::new();
    for s in segments(unit.program) {
        let p = &s.program;
        for step in p.load_steps.iter().chain(&p.steps) {
            match step {
                Step::Launch(l) => out.push((&p.kernels[l.kernel as usize], false)),
                Step::Contract(c) => out.push((&p.kernels[c.epilogue as usize], true)),
                Step::Library(_) => {}
            }
        }
    }
    out
}

/// Returns a program and those that its control flow calls, in the order of the steps.
pub(crate) fn programs(program: &HostProgram) -> Vec<&HostProgram> {
    let mut all = vec![program];
    for step in &program.steps {
        if let StepKind::Work(w) = &step.kind {
            let bodies = w.bodies().into_iter();
            all.extend(bodies.flat_map(|(_, b)| programs(&b.program.program)));
        }
    }
    all
}

/// Returns the launches of the user's kernels, each with the program that it is a step of.
fn launches(program: &HostProgram) -> Vec<(&HostProgram, &UserKernel)> {
    let mut all = Vec::new();
    for p in programs(program) {
        all.extend(p.steps.iter().filter_map(|step| match &step.kind {
            StepKind::Kernel(k) => Some((p, k)),
            _ => None,
        }));
    }
    all
}

/// Returns the segments of these programs.
pub(crate) fn segments(program: &HostProgram) -> Vec<&Segment> {
    let programs = programs(program).into_iter();
    programs
        .flat_map(|p| p.steps.iter().filter_map(segment_of))
        .collect()
}

/// Returns the segment that a step runs; calls of the library alone are one too.
pub(crate) fn segment_of(step: &HostStep) -> Option<&Segment> {
    match &step.kind {
        StepKind::Segment(s) => Some(s),
        StepKind::Work(w) => match &**w {
            Work::Library { segment, .. } => Some(segment),
            _ => None,
        },
        _ => None,
    }
}

/// Returns the errors of a kernel's checks.
fn checks(kernel: &Kernel) -> String {
    if kernel.checks.is_empty() {
        return String::new();
    }
    let errors: Vec<String> = (kernel.checks.iter())
        .map(|c| {
            let class = match c.kind.error() {
                ErrorKind::OutOfRange => "OutOfRange",
                _ => "RuntimeError",
            };
            format!("({class}, {})", quote(&c.message))
        })
        .collect();
    format!(", [{}]", errors.join(", "))
}

/// Splits a module into its definitions, each with the comments above it, without imports.
fn blocks(text: &str) -> Vec<String> {
    let mut out: Vec<String> = vec![String::new()];
    let mut blank = true;
    for line in text.lines() {
        if line.starts_with("import ") || line.starts_with("from triton.") {
            continue;
        }
        if blank && !line.is_empty() && !line.starts_with(char::is_whitespace) {
            out.push(String::new());
        }
        blank = line.is_empty();
        if let Some(block) = out.last_mut() {
            block.push_str(line);
            block.push('\n');
        }
    }
    (out.iter())
        .map(|b| b.trim_end().to_string())
        .filter(|b| !b.is_empty())
        .collect()
}

/// Returns the name that a block defines.
fn defines(block: &str) -> Option<&str> {
    let line = block.lines().find(|l| l.starts_with("def "))?;
    line.strip_prefix("def ")?.split('(').next()
}

/// Replaces an identifier by another one.
pub(crate) fn renamed(text: &str, from: &str, to: &str) -> String {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut out = String::with_capacity(text.len());
    let mut done = 0;
    for (at, _) in text.match_indices(from) {
        let end = at + from.len();
        if text[..at].ends_with(|c| word(c) || c == '.') || text[end..].starts_with(word) {
            continue;
        }
        out.push_str(&text[done..at]);
        out.push_str(to);
        done = end;
    }
    out.push_str(&text[done..]);
    out
}

/// Returns element type and tile of a parameter that is a tensor map: `tensordesc<bf16[64, 32]>`.
pub(crate) fn map_type(ty: &str) -> Option<(&str, Vec<&str>)> {
    let inside = ty.strip_prefix("tensordesc<")?.strip_suffix("]>")?;
    let (element, block) = inside.split_once('[')?;
    Some((element, block.split(',').map(str::trim).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_split_at_definitions() {
        let text = "import triton\nimport triton.language as tl\n\n\n@triton.jit\ndef f(x):\n    return x\n\n\n# Two.\n@triton.jit\ndef g(x):\n    y = f(x)\n\n    return y\n";
        let blocks = blocks(text);
        assert_eq!(blocks.len(), 2, "{blocks:?}");
        assert_eq!(defines(&blocks[0]), Some("f"));
        assert_eq!(defines(&blocks[1]), Some("g"));
        assert!(blocks[1].starts_with("# Two."));
    }

    #[test]
    fn whole_identifiers_are_renamed() {
        let text = "f(x) + ff(f) - tl.f(x) + f_1 + f";
        assert_eq!(renamed(text, "f", "g"), "g(x) + ff(g) - tl.f(x) + f_1 + g");
    }

    #[test]
    fn maps_have_elements_and_tiles() {
        let expected = Some(("bf16", vec!["64", "32"]));
        assert_eq!(map_type("tensordesc<bf16[64, 32]>"), expected);
        assert_eq!(map_type("*bf16"), None);
    }
}
