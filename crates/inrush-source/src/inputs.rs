//! The inputs of a call: what is known of them, checks of their kinds, and the function that draws some.

use crate::Unit;
use crate::host::Printer;
use crate::kernels::segment_of;
use crate::names::{quote, tuple};
use crate::segment::{dtype, number};
use crate::sizes::Sizes;
use inrush_base::{DType, Result};
use inrush_program::host::{Read, Segment};
use inrush_program::{InputType, Reads, SizeId};

/// Value of a symbol that inputs are drawn with, if its range has it.
const SAMPLE: i64 = 8;

/// Facts that are known of an input.
pub(crate) enum Spec<'a> {
    /// A tensor, with sizes of a segment or of the host.
    Tensor {
        segment: Option<&'a Segment>,
        dtype: DType,
        sizes: &'a [SizeId],
        strides: &'a [SizeId],
    },
    /// An integer, with a size of a segment that it must equal.
    Int(Option<(&'a Segment, SizeId)>),
    /// An integer, with a size of the host that it must equal.
    OuterInt(SizeId),
    Constant(inrush_program::Num),
    Ignored,
    Unknown,
}

/// Returns what is known of the input at a position.
pub(crate) fn spec<'a>(unit: &Unit<'a>, read: &[bool], at: usize) -> Spec<'a> {
    let program = unit.program;
    let slot = program.inputs[at];
    if let Some(input) = unit.expected.and_then(|e| e.inputs.get(at)) {
        return match &input.ty {
            InputType::Tensor {
                dtype,
                sizes,
                strides,
            } => Spec::Tensor {
                segment: None,
                dtype: dtype.0,
                sizes,
                strides,
            },
            InputType::Int { value } => Spec::OuterInt(*value),
            InputType::Constant { value } => Spec::Constant(*value),
            InputType::Ignored => Spec::Ignored,
        };
    }
    for step in &program.steps {
        let Some(s) = segment_of(step) else {
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
        None if read[slot] => Spec::Unknown,
        None => Spec::Ignored,
    }
}

/// Returns the line that lays an input out.
pub(crate) fn laid_out(
    name: &str,
    shown: &str,
    d: DType,
    (sizes, strides): (&str, &str),
    reads: Reads,
) -> String {
    let reads = match reads {
        Reads::Elements => "",
        Reads::Memory => ", \"memory\"",
        Reads::Storage => ", \"storage\"",
    };
    format!(
        "{name} = laid_out({}, {name}, {}, {sizes}, {strides}{reads})",
        quote(shown),
        dtype(d)
    )
}

impl<'a> Printer<'a> {
    /// Prints checks of the inputs' kinds.
    pub(crate) fn expect_inputs(&mut self) {
        for at in 0..self.unit.program.inputs.len() {
            let name = self.slots[self.unit.program.inputs[at]].clone();
            let shown = quote(&name);
            match spec(self.unit, &self.read, at) {
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
                Spec::Int(_) | Spec::OuterInt(_) => {
                    self.line(format!("expect_int({shown}, {name})"));
                }
                Spec::Ignored | Spec::Unknown => {}
            }
        }
    }

    /// Prints the comparison of integers with the sizes that they must equal.
    pub(crate) fn expect_ints(&mut self) -> Result<()> {
        for at in 0..self.unit.program.inputs.len() {
            let Spec::Int(Some((s, value))) = spec(self.unit, &self.read, at) else {
                continue;
            };
            let mut sizes = self.sizes_of(s)?;
            let wanted = sizes.get(value)?;
            if self.symbols.contains(&wanted) {
                continue;
            }
            for line in sizes.definitions(0) {
                self.line(line);
            }
            self.must_be(at, &wanted);
        }
        Ok(())
    }

    /// Prints the comparison of an integer with a size.
    fn must_be(&mut self, at: usize, wanted: &str) {
        let name = self.slots[self.unit.program.inputs[at]].clone();
        self.line(format!("if {name} != {wanted}:"));
        let text = format!("input `{name}` must be {{{wanted}}}, got {{{name}}}");
        self.line(format!("    raise InputError(f{})", quote(&text)));
    }

    /// Prints what the program around the steps expects of inputs: their layouts, and integers. New contents go to the tensors that
    /// the caller gave.
    pub(crate) fn lay_out_inputs(&mut self) -> Result<()> {
        let Some(expected) = self.unit.expected else {
            return Ok(());
        };
        for (at, input) in expected.inputs.iter().enumerate() {
            let slot = self.unit.program.inputs[at];
            let name = self.slots[slot].clone();
            match &input.ty {
                InputType::Int { value } => {
                    let wanted = self.sizes.get(*value)?;
                    if !self.symbols.contains(&wanted) {
                        self.must_be(at, &wanted);
                    }
                }
                InputType::Tensor {
                    dtype: d,
                    sizes,
                    strides,
                } => {
                    if self.is_written(slot) {
                        let given = self.names.fresh(&format!("{name}_given"));
                        self.line(format!("{given} = {name}"));
                        self.given[slot] = Some(given);
                    }
                    let sizes = tuple(&self.sizes.all(sizes)?);
                    let strides = tuple(&self.sizes.all(strides)?);
                    self.line(laid_out(
                        &name,
                        &input.name,
                        d.0,
                        (&sizes, &strides),
                        input.reads,
                    ));
                }
                InputType::Constant { .. } | InputType::Ignored => {}
            }
        }
        Ok(())
    }

    /// Prints the function that draws inputs.
    pub(crate) fn print_inputs(&mut self) -> Result<String> {
        let mut body = vec![
            "\"\"\"Returns inputs of the right shapes, with drawn elements.\"\"\"".to_string(),
        ];
        for (k, s) in self.unit.program.symbols.iter().enumerate() {
            if s.after.is_none() {
                let value = sample(self.unit, k);
                body.push(format!("{} = {value}", self.symbols[k]));
            }
        }
        let mut values = Vec::new();
        for (at, slot) in self.unit.program.inputs.iter().enumerate() {
            let name = &self.slots[*slot].clone();
            let value = match spec(self.unit, &self.read, at) {
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
                Spec::OuterInt(value) => {
                    let mut own = Sizes::new(&self.unit.program.sizes, &self.known())?;
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
}

/// Returns a value of a symbol that all segments take.
pub(crate) fn sample(unit: &Unit<'_>, symbol: usize) -> i64 {
    let (mut lower, mut upper) = (i64::MIN, i64::MAX);
    for step in &unit.program.steps {
        if let Some(s) = segment_of(step) {
            for (k, own) in s.symbols.iter().zip(&s.program.symbols) {
                if *k as usize == symbol {
                    lower = lower.max(own.lower);
                    upper = upper.min(own.upper);
                }
            }
        }
    }
    if let Some(b) = unit.bounds.get(symbol) {
        lower = lower.max(b.lower);
        upper = upper.min(b.upper);
    }
    SAMPLE.min(upper).max(lower)
}
