//! The start of a call: reads symbols from the inputs, evaluates sizes, checks types and guards.

use crate::tensor::{Tensor, Value, Writes};
use inrush_base::{Error, Result, Scalar};
use inrush_program::{
    Guard, Input, InputType, Program, Reads, Relation, SizeId, Symbol, SymbolSource, evaluate,
    evaluate_known, solve,
};

/// Reads the values of the program's symbols for this call into `out`.
///
/// # Errors
/// An input error that names the input, when one is missing, has the wrong kind or rank, or a size out of its range.
pub fn symbols(program: &Program, inputs: &[Value], out: &mut Vec<i64>) -> Result<()> {
    out.clear();
    check_inputs(program, inputs)?;
    for s in &program.symbols {
        out.push(symbol_in_range(program, s, inputs)?);
    }
    Ok(())
}

/// Reads a symbol's value from the input that defines it, and checks its range.
pub(crate) fn symbol_in_range(program: &Program, s: &Symbol, inputs: &[Value]) -> Result<i64> {
    let value = symbol(program, s, inputs)?;
    if value < s.lower || value > s.upper {
        return Err(out_of_range(program, s, value));
    }
    Ok(value)
}

/// Checks that every input has the kind, dtype and rank that the program expects.
pub(crate) fn check_inputs(program: &Program, inputs: &[Value]) -> Result<()> {
    if inputs.len() != program.inputs.len() {
        let names: Vec<&str> = program.inputs.iter().map(|i| i.name.as_str()).collect();
        return Err(Error::input(format!(
            "the model takes {} inputs ({}), got {}",
            names.len(),
            names.join(", "),
            inputs.len()
        )));
    }
    for (spec, value) in program.inputs.iter().zip(inputs) {
        match (&spec.ty, value) {
            (InputType::Tensor { dtype, sizes, .. }, Value::Tensor(t)) => {
                if t.dtype != dtype.0 {
                    return Err(Error::input(format!(
                        "input `{}` must be {}, got {}",
                        spec.name,
                        dtype.0.torch_name(),
                        t.dtype.torch_name()
                    )));
                }
                if t.sizes.len() != sizes.len() {
                    return Err(Error::input(format!(
                        "input `{}` must have {} dimensions, got sizes {:?}",
                        spec.name,
                        sizes.len(),
                        t.sizes
                    )));
                }
            }
            (InputType::Tensor { .. }, other) => {
                return Err(Error::input(format!(
                    "input `{}` must be a tensor, got {}",
                    spec.name,
                    kind(other)
                )));
            }
            (InputType::Int { .. }, Value::Int(_))
            | (InputType::Constant { .. } | InputType::Ignored, _) => {}
            (InputType::Int { .. }, other) => {
                return Err(Error::input(format!(
                    "input `{}` must be an integer, got {}",
                    spec.name,
                    kind(other)
                )));
            }
        }
        if let (InputType::Constant { value }, given) = (&spec.ty, value) {
            check_constant(&spec.name, (*value).into(), given)?;
        }
    }
    Ok(())
}

/// Reads a symbol's value from the input that defines it.
fn symbol(program: &Program, s: &Symbol, inputs: &[Value]) -> Result<i64> {
    match s.source {
        SymbolSource::Dim {
            input,
            dim,
            factor,
            offset,
        } => {
            let Value::Tensor(t) = &inputs[input as usize] else {
                return Err(Error::internal("a symbol's input is no tensor"));
            };
            let size = t.sizes[dim as usize];
            solve(size, factor, offset).ok_or_else(|| {
                let name = &program.inputs[input as usize].name;
                Error::input(format!(
                    "input `{name}`: size {size} of dimension {dim} must be {factor}*{} + {offset}",
                    s.name
                ))
            })
        }
        SymbolSource::Int { input } => match &inputs[input as usize] {
            Value::Int(v) => Ok(*v),
            _ => Err(Error::internal("a symbol's input is no integer")),
        },
        SymbolSource::Data => Err(Error::internal("a symbol is read ahead of its step")),
    }
}

/// Refuses a symbol's value and names the input that it came from.
pub(crate) fn out_of_range(program: &Program, s: &Symbol, value: i64) -> Error {
    let name = |input: u32| &program.inputs[input as usize].name;
    let place = match s.source {
        SymbolSource::Dim { input, dim, .. } => {
            format!("dimension {dim} of input `{}`", name(input))
        }
        SymbolSource::Int { input } => format!("input `{}`", name(input)),
        SymbolSource::Data => "a size that depends on data".to_string(),
    };
    let upper = if s.upper == i64::MAX {
        "any".to_string()
    } else {
        s.upper.to_string()
    };
    Error::input(format!(
        "{place}: `{}` is {value}, outside the range {}..={upper} that the model was exported for",
        s.name, s.lower
    ))
}

fn check_constant(name: &str, want: Scalar, given: &Value) -> Result<()> {
    let same = match given {
        Value::Int(i) => want == Scalar::Int(*i),
        Value::Scalar(s) => want == *s,
        Value::None => true,
        Value::Tensor(_) => false,
    };
    if same {
        return Ok(());
    }
    Err(Error::input(format!(
        "input `{name}` was exported as the constant {want}; the model is valid for no other value"
    )))
}

fn kind(v: &Value) -> String {
    match v {
        Value::Tensor(t) => format!("a {} tensor of sizes {:?}", t.dtype.torch_name(), t.sizes),
        Value::Int(i) => format!("the integer {i}"),
        Value::Scalar(s) => format!("the number {s}"),
        Value::None => "None".into(),
    }
}

/// Evaluates all sizes for the given symbols.
pub fn sizes(program: &Program, symbols: &[i64]) -> Result<Vec<i64>> {
    let mut out = Vec::new();
    match evaluate(&program.sizes, symbols, &mut out) {
        Ok(()) => Ok(out),
        Err(at) => Err(Error::input(format!(
            "the size {} overflows or divides by zero for these inputs",
            program.show_size(SizeId(at as u32))
        ))),
    }
}

/// Checks that every tensor has the sizes that the program expects, and that every guard holds.
pub fn check(program: &Program, sizes: &[i64], symbols: &[i64], inputs: &[Value]) -> Result<()> {
    check_tensors(program, sizes, symbols, inputs)?;
    for g in &program.guards {
        check_guard(g, sizes[g.left.0 as usize], sizes[g.right.0 as usize])?;
    }
    Ok(())
}

/// Checks that a guard holds for the values of its sides.
///
/// # Errors
/// An input error with the condition and both values.
pub fn check_guard(g: &Guard, l: i64, r: i64) -> Result<()> {
    let holds = match g.relation {
        Relation::Eq => l == r,
        Relation::Ne => l != r,
        Relation::Le => l <= r,
        Relation::Lt => l < r,
    };
    if holds {
        return Ok(());
    }
    Err(Error::input(format!(
        "{} does not hold: the sides are {l} and {r}",
        g.why
    )))
}

/// Checks that every tensor has the sizes that the program expects.
pub(crate) fn check_tensors(
    program: &Program,
    sizes: &[i64],
    symbols: &[i64],
    inputs: &[Value],
) -> Result<()> {
    for (spec, value) in program.inputs.iter().zip(inputs) {
        match (&spec.ty, value) {
            (
                InputType::Tensor {
                    sizes: want,
                    strides,
                    ..
                },
                Value::Tensor(t),
            ) => {
                check_sizes(program, &spec.name, want, sizes, symbols, t)?;
                check_memory(spec, strides, sizes, t)?;
            }
            (InputType::Int { value }, Value::Int(given)) if sizes[value.0 as usize] != *given => {
                return Err(Error::input(format!(
                    "input `{}` must be {}, got {given}",
                    spec.name,
                    program.show_size(*value)
                )));
            }
            _ => {}
        }
    }
    Ok(())
}

fn check_sizes(
    program: &Program,
    name: &str,
    want: &[SizeId],
    sizes: &[i64],
    symbols: &[i64],
    t: &Tensor,
) -> Result<()> {
    for (d, (id, got)) in want.iter().zip(&t.sizes).enumerate() {
        let expected = sizes[id.0 as usize];
        if expected == *got {
            continue;
        }
        let formula = program.show_size(*id);
        let because = if formula == expected.to_string() {
            String::new()
        } else {
            let known: Vec<String> = program
                .symbols
                .iter()
                .zip(symbols)
                .map(|(s, v)| format!("{} = {v}", s.name))
                .collect();
            format!(" ({formula} with {})", known.join(", "))
        };
        return Err(Error::input(format!(
            "input `{name}`: dimension {d} must be {expected}{because}, got {got}"
        )));
    }
    Ok(())
}

/// Refuses an input in another layout than the program's, where the program addresses its memory by position (`as_strided`):
/// a copy in the right layout would be other memory.
fn check_memory(spec: &Input, strides: &[SizeId], sizes: &[i64], t: &Tensor) -> Result<()> {
    if spec.reads == Reads::Elements {
        return Ok(());
    }
    let want: Vec<i64> = strides.iter().map(|s| sizes[s.0 as usize]).collect();
    if !t.lies_as(&want) {
        return Err(other_strides(&spec.name, &want, &t.strides));
    }
    if spec.reads == Reads::Storage && t.offset != 0 {
        Err(begins_later(&spec.name, t.offset))
    } else {
        Ok(())
    }
}

/// Refuses to write a tensor whose owner would not see it, or forbids it.
pub fn check_writes(name: &dyn std::fmt::Display, t: &Tensor) -> Result<()> {
    let why = match t.storage.writes() {
        Writes::Seen => return Ok(()),
        Writes::Forbidden => "its memory is read-only",
        Writes::Lost => "it has negative strides, or elements that are not aligned to their size",
    };
    Err(Error::input(format!(
        "the model writes into `{name}`: {why}"
    )))
}

/// Refuses a tensor in whose memory a program counts positions, as `as_strided` does.
pub fn other_strides(name: &str, want: &[i64], got: &[i64]) -> Error {
    Error::input(format!(
        "input `{name}` must have strides {want:?}, got {got:?}: the program counts positions in its memory (`as_strided`)"
    ))
}

/// Likewise one that does not begin its storage.
fn begins_later(name: &str, offset: usize) -> Error {
    Error::input(format!(
        "input `{name}` must begin its storage, its offset is {offset}: the program counts positions in the storage (`as_strided`)"
    ))
}

/// Evaluates the sizes that depend on no symbol; `None` for all others. Load steps use these.
pub fn constant_sizes(program: &Program) -> Vec<Option<i64>> {
    evaluate_known(&program.sizes, &[])
}
