//! Inputs and outputs of a program, for a caller that only has the package.

use super::weights::{layout, written};
use crate::program::{Layout, Lowered, Object, Out, Read, StepKind};
use inrush_program::{Dt, Output, Program, Size, SizeId, Symbol, SymbolSource, evaluate_known};
use inrush_runtime::{Dim, InputKind, InputSpec, OutputSpec, Signature};

/// Reads the signature of a program.
pub(super) fn of(lowered: &Lowered) -> Signature {
    let program = &lowered.program;
    let known = evaluate_known(&program.sizes, &vec![None; program.symbols.len()]);
    let written = written(program);
    let symbols = bounds(lowered);
    // The sizes as a program that has nothing else, which prints them.
    let shown = Program {
        sizes: program.sizes.clone(),
        symbols: (symbols.iter().enumerate())
            .map(|(k, s)| {
                let unknown = || (format!("s{k}"), 0, i64::MAX);
                let (name, lower, upper) = s.clone().unwrap_or_else(unknown);
                Symbol {
                    name,
                    lower,
                    upper,
                    source: SymbolSource::Data,
                }
            })
            .collect(),
        ..Program::default()
    };
    let dim = |id: &SizeId| match (known[id.0 as usize], &program.sizes[id.0 as usize]) {
        (Some(n), _) => Dim::Fixed(n),
        (None, Size::Sym(k)) => {
            let s = &shown.symbols[*k as usize];
            Dim::Symbol {
                name: s.name.clone(),
                lower: s.lower,
                upper: s.upper,
            }
        }
        (None, _) => Dim::Formula(shown.show_size(*id)),
    };
    // Complex tensors without their dimension of parts.
    let tensor = |l: &Layout, complex: Option<Dt>| {
        let rank = l.sizes.len() - usize::from(complex.is_some() && !l.sizes.is_empty());
        let sizes = l.sizes[..rank].iter().map(dim).collect();
        (complex.unwrap_or(l.dtype).0, sizes)
    };
    let input = |(at, (slot, name)): (usize, (&usize, &String))| {
        let int = |s: &crate::program::Symbol| s.slot == *slot && s.read == Read::Int;
        let kind = match layout(program, *slot) {
            Some(l) => {
                let (dtype, sizes) = tensor(l, lowered.complex.input(at));
                InputKind::Tensor { dtype, sizes }
            }
            None if program.symbols.iter().any(int) => InputKind::Int,
            None => InputKind::Ignored,
        };
        InputSpec {
            name: name.clone(),
            kind,
            written: written[*slot],
        }
    };
    let output = |(at, o): (usize, &Out)| match o {
        Out::Slot(s) => match layout(program, *s) {
            Some(l) => {
                let (dtype, sizes) = tensor(l, lowered.complex.output(at));
                OutputSpec::Tensor { dtype, sizes }
            }
            None => number(lowered, *s),
        },
        Out::Size(_) => OutputSpec::Int,
        Out::Constant(k) => match &lowered.objects[*k] {
            Object::Scalar(s) => OutputSpec::Scalar((*s).into()),
            Object::None | Object::Weight(_) => OutputSpec::None,
        },
        Out::Mutation { .. } => OutputSpec::Mutation,
    };
    Signature {
        inputs: (program.inputs.iter().zip(&lowered.inputs).enumerate())
            .map(input)
            .collect(),
        outputs: program.outputs.iter().enumerate().map(output).collect(),
    }
}

/// Returns the name and the inclusive bounds of each symbol, where the program or its segments tell them.
pub(super) fn bounds(lowered: &Lowered) -> Vec<Option<(String, i64, i64)>> {
    if !lowered.bounds.is_empty() {
        let all = lowered.bounds.iter();
        return all
            .map(|b| Some((b.name.clone(), b.lower, b.upper)))
            .collect();
    }
    (0..lowered.program.symbols.len())
        .map(|k| symbol(lowered, k).map(|s| (s.name.clone(), s.lower, s.upper)))
        .collect()
}

/// Returns what the segments know of a symbol: its name and bounds.
fn symbol(lowered: &Lowered, k: usize) -> Option<&Symbol> {
    lowered.program.steps.iter().find_map(|step| {
        let StepKind::Segment(s) = &step.kind else {
            return None;
        };
        let at = s.symbols.iter().position(|x| *x as usize == k)?;
        s.program.symbols.get(at)
    })
}

/// Returns what a segment says of an output that is no tensor.
fn number(lowered: &Lowered, slot: usize) -> OutputSpec {
    let found = lowered.program.steps.iter().find_map(|step| {
        let StepKind::Segment(s) = &step.kind else {
            return None;
        };
        let at = s.outputs.iter().position(|x| *x == slot)?;
        s.program.outputs.get(at)
    });
    match found {
        Some(Output::Scalar { value }) => OutputSpec::Scalar((*value).into()),
        Some(Output::Int { .. }) => OutputSpec::Int,
        _ => OutputSpec::None,
    }
}
