//! The inputs of a call: checks of their kinds and sizes, the values of symbols, copies with other strides, and drawn inputs.

use super::dtype;
use super::kernels::quoted;
use super::model::{Printer, list, number};
use crate::Unit;
use crate::names::plain;
use crate::sizes::{Sizes, cpp_literal};
use inrush_base::{DType, Error, Result};
use inrush_program::host::{Read, Segment};
use inrush_program::{InputType, Num, Reads, SizeId};
use std::fmt::Write;

/// Value of a symbol that inputs are drawn with, if its range has it.
const SAMPLE: i64 = 8;

/// An input of the call: its name, its position in the segment, and its kind.
pub(super) struct Given<'a> {
    pub(super) name: &'a str,
    pub(super) in_segment: Option<usize>,
    pub(super) kind: Kind<'a>,
}

/// The kind of an input.
pub(super) enum Kind<'a> {
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

/// Returns the inputs of the call.
pub(super) fn inputs<'a>(unit: &'a Unit<'a>, s: &'a Segment) -> Result<Vec<Given<'a>>> {
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

impl<'a> Printer<'a> {
    /// Prints checks of the inputs' kinds.
    pub(super) fn expect_inputs(&mut self) -> Result<()> {
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
    pub(super) fn bind_symbols(&mut self) -> Result<()> {
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
    pub(super) fn check_sizes(&mut self) -> Result<()> {
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
        if self
            .inputs
            .iter()
            .any(|i| matches!(i.kind, Kind::Tensor { .. }))
        {
            self.line(format!("const auto known = [&] {{ return {known}; }};"));
        }
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

    /// Prints the copies of tensors with other strides.
    pub(super) fn lay_out(&mut self) -> Result<()> {
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
    pub(super) fn write_back(&mut self) {
        for (k, written) in self.p().written_inputs().into_iter().enumerate() {
            if let (true, Some((given, read))) = (written, self.tensors[k].clone()) {
                self.line(format!(
                    "if ({read}.data != {given}.data) copy({given}, {read});"
                ));
            }
        }
    }

    /// Prints the list of inputs, and the function that draws them.
    pub(super) fn print_inputs(&mut self, text: &mut String) -> Result<()> {
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
