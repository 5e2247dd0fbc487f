//! The kernels of a C++ file: C functions with names, and the operators in them as comments.
//!
//! C source comes in pieces, each with the helpers that its kernels need. They are split into definitions, so that a helper that
//! several pieces have stands in the file once. The functions are C that compiles as C++.

use crate::kernels::{map_type, programs, renamed, segments, used};
use crate::names::{Names, plain, quote};
use crate::{Built, Unit, segment};
use inrush_base::{Error, Result};
use inrush_program::Step;
use inrush_program::{BinaryInfo, GpuKernel};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// The kernels of a file.
pub(crate) struct Kernels {
    /// Expressions of the kernels, by symbol.
    by_symbol: BTreeMap<String, String>,
    /// Helpers and functions, to be compiled for the processor.
    pub(crate) functions: String,
    /// Objects of kernels that have checks.
    pub(crate) objects: String,
    /// For a GPU: machine code.
    pub(crate) code: String,
    /// For a GPU: parameters and their types, by symbol.
    signatures: Option<BTreeMap<String, Vec<(String, String)>>>,
}

impl Kernels {
    /// Prints the kernels of a unit whose only step is a segment.
    ///
    /// # Errors
    /// An input error for a kernel without source.
    pub(crate) fn new(unit: &Unit<'_>, names: &mut Names) -> Result<Kernels> {
        let mut helpers = String::new();
        let mut functions: BTreeMap<String, String> = BTreeMap::new();
        let mut seen = BTreeSet::new();
        for piece in &unit.program.pieces {
            for block in blocks(piece)? {
                if !seen.insert(block.clone()) {
                    continue;
                }
                match function(&block) {
                    Some(symbol) => _ = functions.insert(symbol.to_string(), block),
                    None => helpers.push_str(&block),
                }
            }
        }
        let origins = origins(unit);
        let mut out = Kernels {
            by_symbol: BTreeMap::new(),
            functions: helpers,
            objects: String::new(),
            code: String::new(),
            signatures: None,
        };
        for (kernel, takes_sums) in used(unit) {
            let symbol = &kernel.symbol;
            if out.by_symbol.contains_key(symbol) {
                continue;
            }
            let text = functions.get(symbol).ok_or_else(|| {
                Error::input(format!("the program is damaged: no source of `{symbol}`"))
            })?;
            let name = names.fresh(&format!("{}_kernel", kernel.title));
            let operators = origins.get(symbol.as_str()).map_or("", String::as_str);
            let kind = if takes_sums {
                "Takes sums of products: "
            } else {
                ""
            };
            let text = renamed(text, symbol, &name);
            _ = writeln!(
                out.functions,
                "\n// {kind}{}\n{}",
                plain(operators),
                text.trim_end()
            );
            let mut expression = format!("kernels::{name}");
            if !takes_sums {
                let checks: Vec<String> =
                    kernel.checks.iter().map(|c| quoted(&c.message)).collect();
                expression = if checks.is_empty() {
                    format!("{{{expression}, {{}}}}")
                } else {
                    _ = writeln!(
                        out.objects,
                        "const Kernel {name} = {{{expression}, {{{}}}}};",
                        checks.join(", ")
                    );
                    name
                };
            }
            out.by_symbol.insert(symbol.clone(), expression);
        }
        Ok(out)
    }

    /// Prints the kernels of a unit for a GPU: their sources as comments, objects, and machine code. Those that are built are in the
    /// order of the programs, what control flow calls after what calls it.
    ///
    /// # Errors
    /// An input error for a kernel that is not built, an unsupported one for launches that are not printed.
    pub(crate) fn built(unit: &Unit<'_>, built: &[Built], names: &mut Names) -> Result<Kernels> {
        let damaged = |what: &str| Error::input(format!("the program is damaged: {what}"));
        let gpu = (unit.program.gpu.as_ref()).ok_or_else(|| damaged("it has no GPU"))?;
        let origins = origins(unit);
        let mut out = Kernels {
            by_symbol: BTreeMap::new(),
            functions: String::new(),
            objects: String::new(),
            code: String::new(),
            signatures: None,
        };
        let all = programs(unit.program).into_iter();
        let kernels = all.flat_map(|p| p.gpu.iter().flat_map(|g| &g.kernels));
        let sources: Vec<_> = kernels.zip(built).collect();
        let mut signatures = BTreeMap::new();
        for (kernel, _) in used(unit) {
            let symbol = &kernel.symbol;
            if out.by_symbol.contains_key(symbol) {
                continue;
            }
            let source = sources.iter().find(|(k, _)| k.symbol == *symbol);
            let (source, built) = *source.ok_or_else(|| damaged("a kernel that is not built"))?;
            can_launch(source, &built.info)?;
            let name = names.fresh(&format!("{}_kernel", kernel.title));
            let code = names.fresh(&format!("{name}_code"));
            let operators = origins.get(symbol.as_str()).map_or("", String::as_str);
            _ = writeln!(out.objects, "// {}\n//", plain(operators));
            for line in source.text.trim().lines() {
                _ = writeln!(
                    out.objects,
                    "{}",
                    format!("//     {}", line.replace('\\', "/")).trim_end()
                );
            }
            let constants: Vec<String> = (source.constants.iter())
                .map(|(n, v)| format!("{n}={v}"))
                .collect();
            if !constants.is_empty() {
                _ = writeln!(out.objects, "//\n// With {}.", constants.join(", "));
            }
            _ = writeln!(
                out.objects,
                "extern const unsigned char {code}[];\nKernel {name}(Code{{{}, {code}, {}, {}, {}, {}}});\n",
                quoted(&built.info.symbol),
                built.code.len(),
                built.info.warps,
                gpu.target.warp,
                built.info.shared,
            );
            _ = writeln!(out.code, "alignas(64) const unsigned char {code}[] = {{");
            for row in built.code.chunks(32) {
                let bytes: Vec<String> = row.iter().map(u8::to_string).collect();
                _ = writeln!(out.code, "    {},", bytes.join(", "));
            }
            out.code.push_str("};\n\n");
            signatures.insert(symbol.clone(), source.signature.clone());
            out.by_symbol.insert(symbol.clone(), name);
        }
        out.signatures = Some(signatures);
        Ok(out)
    }

    /// Returns true if the kernels are a GPU's.
    pub(crate) fn on_gpu(&self) -> bool {
        self.signatures.is_some()
    }

    /// Returns the expression of the threads that functions of the library run on.
    pub(crate) fn threads(&self) -> &'static str {
        if self.on_gpu() { "0" } else { "team.size()" }
    }

    /// Returns the parameters of a kernel of a GPU and their types.
    pub(crate) fn signature(&self, symbol: &str) -> &[(String, String)] {
        let all = self.signatures.as_ref();
        all.and_then(|s| s.get(symbol)).map_or(&[], Vec::as_slice)
    }

    /// Returns the expression of a kernel.
    ///
    /// # Errors
    /// An input error if there is none.
    pub(crate) fn get(&self, symbol: &str) -> Result<&str> {
        let found = self.by_symbol.get(symbol).map(String::as_str);
        found.ok_or_else(|| Error::input(format!("the program is damaged: no kernel `{symbol}`")))
    }
}

/// Checks that a kernel can be launched by its pointers and numbers alone.
///
/// # Errors
/// An unsupported error that names the kernel.
fn can_launch(kernel: &GpuKernel, info: &BinaryInfo) -> Result<()> {
    let what =
        if !info.maps.is_empty() || kernel.signature.iter().any(|(_, t)| map_type(t).is_some()) {
            "descriptors of tensors"
        } else if info.scratch > 0 {
            "scratch space"
        } else if info.cooperative || info.ctas != 1 {
            "programs that work together"
        } else {
            return Ok(());
        };
    Err(Error::unsupported(format!(
        "the kernel `{}` with {what} is not printed as C++",
        kernel.function
    )))
}

/// Returns a string literal of C++.
pub(crate) fn quoted(text: &str) -> String {
    let text: String = (text.chars())
        .map(|c| if c.is_control() && c != '\n' { ' ' } else { c })
        .collect();
    // A trigraph is a character in some modes of compilers.
    quote(&text).replace("??", "?\\?")
}

/// Returns the operators of each kernel, of its first step.
fn origins<'a>(unit: &Unit<'a>) -> BTreeMap<&'a str, String> {
    let mut out = BTreeMap::new();
    for s in segments(unit.program) {
        for step in segment::all_steps(&s.program) {
            let (kernel, origins) = match step {
                Step::Launch(l) => (l.kernel, &l.origins),
                Step::Contract(c) => (c.epilogue, &c.origins),
                Step::Library(_) => continue,
            };
            let symbol = s.program.kernels[kernel as usize].symbol.as_str();
            out.entry(symbol).or_insert_with(|| origins.join(", "));
        }
    }
    out
}

/// Returns the symbol of the kernel that a definition is.
fn function(block: &str) -> Option<&str> {
    let rest = block
        .strip_prefix("i32 ")
        .or_else(|| block.strip_prefix("void "))?;
    let (name, rest) = rest.split_once('(')?;
    (rest.starts_with("char *const *bufs,") && block.contains('{')).then_some(name)
}

/// Splits C source into its definitions.
///
/// # Errors
/// An internal error for source that ends within one.
fn blocks(text: &str) -> Result<Vec<String>> {
    let mut out = Vec::new();
    let mut block = String::new();
    let (mut braces, mut conditions) = (0i64, 0i64);
    for line in text.lines() {
        block.push_str(line.trim_end());
        block.push('\n');
        let start = line.trim_start();
        if start.starts_with("#if") {
            conditions += 1;
        } else if start.starts_with("#endif") {
            conditions -= 1;
        } else {
            braces += line.matches('{').count() as i64 - line.matches('}').count() as i64;
        }
        let ends = line.trim_end().ends_with([';', '}']) || start.starts_with('#');
        if braces == 0 && conditions == 0 && ends {
            out.push(std::mem::take(&mut block));
        }
    }
    if !block.trim().is_empty() {
        return Err(Error::internal("C source that ends within a definition"));
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_is_split_into_definitions() {
        let text = "typedef int i32; typedef float f32;\nstatic i32 f(i32 x) { \n#ifdef A\nreturn x;\n#else\nreturn -x;\n#endif\n }\nf32 expf(f32);\ni32 k1(char *const *bufs, const i64 *sizes, i64 begin, i64 end) {\n for (;;) {\n }\n return 0;\n}\n";
        let blocks = blocks(text).unwrap();
        let found: Vec<Option<&str>> = blocks.iter().map(|b| function(b)).collect();
        assert_eq!(found, [None, None, None, Some("k1")], "{blocks:?}");
        assert_eq!(blocks.concat(), text.replace(" \n", "\n"));
        assert!(super::blocks("int f() {\n").is_err());
    }

    #[test]
    fn literals_have_no_trigraphs_and_no_control_characters() {
        assert_eq!(quoted("a??/\"\u{1}\n"), "\"a?\\?/\\\" \\n\"");
    }
}
