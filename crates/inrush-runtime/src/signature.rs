//! Inputs and outputs of a model, for a caller that only has the package.

use inrush_base::{DType, Scalar};
use inrush_program::{InputType, Output, Program, Size, SizeId, evaluate_known};

/// The inputs and outputs of a model, in call order, flattened.
#[derive(Clone, PartialEq, Debug)]
pub struct Signature {
    pub inputs: Vec<InputSpec>,
    pub outputs: Vec<OutputSpec>,
}

/// An input of a call.
#[derive(Clone, PartialEq, Debug)]
pub struct InputSpec {
    pub name: String,
    pub kind: InputKind,
    /// Calls write into it.
    pub written: bool,
}

/// Requirements of an input.
#[derive(Clone, PartialEq, Debug)]
pub enum InputKind {
    Tensor {
        dtype: DType,
        sizes: Vec<Dim>,
    },
    Int,
    /// The number that the model was exported with, and no other.
    Constant(Scalar),
    /// Takes a place; any value will do.
    Ignored,
}

/// An output of a call.
#[derive(Clone, PartialEq, Debug)]
pub enum OutputSpec {
    Tensor {
        dtype: DType,
        sizes: Vec<Dim>,
    },
    Int,
    Scalar(Scalar),
    /// Nothing: the new contents of an input or weight, which are where that is.
    Mutation,
    /// `None`.
    None,
}

/// A size of a tensor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Dim {
    Fixed(i64),
    /// A symbol, whose value a call decides within inclusive bounds.
    Symbol {
        name: String,
        lower: i64,
        upper: i64,
    },
    /// A function of symbols, as text.
    Formula(String),
}

impl Signature {
    /// Reads the signature of a program.
    pub fn of(program: &Program) -> Signature {
        let known = evaluate_known(&program.sizes, &[]);
        let dims = |sizes: &[SizeId]| sizes.iter().map(|s| dim(program, &known, *s)).collect();
        let written = program.written_inputs();
        let input = |(k, i): (usize, &inrush_program::Input)| InputSpec {
            name: i.name.clone(),
            written: written[k],
            kind: match &i.ty {
                InputType::Tensor { dtype, sizes, .. } => InputKind::Tensor {
                    dtype: dtype.0,
                    sizes: dims(sizes),
                },
                InputType::Int { .. } => InputKind::Int,
                InputType::Constant { value } => InputKind::Constant((*value).into()),
                InputType::Ignored => InputKind::Ignored,
            },
        };
        let output = |o: &Output| match o {
            Output::Tensor { dtype, sizes, .. } => OutputSpec::Tensor {
                dtype: dtype.0,
                sizes: dims(sizes),
            },
            Output::Int { .. } => OutputSpec::Int,
            Output::Scalar { value } => OutputSpec::Scalar((*value).into()),
            Output::Mutation => OutputSpec::Mutation,
            Output::None => OutputSpec::None,
        };
        Signature {
            inputs: program.inputs.iter().enumerate().map(input).collect(),
            outputs: program.outputs.iter().map(output).collect(),
        }
    }
}

fn dim(program: &Program, known: &[Option<i64>], id: SizeId) -> Dim {
    if let Some(value) = known[id.0 as usize] {
        return Dim::Fixed(value);
    }
    let symbol = match program.sizes[id.0 as usize] {
        Size::Sym(s) => program.symbols.get(s as usize),
        _ => None,
    };
    match symbol {
        Some(s) => Dim::Symbol {
            name: s.name.clone(),
            lower: s.lower,
            upper: s.upper,
        },
        None => Dim::Formula(program.show_size(id)),
    }
}

impl std::fmt::Display for Dim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Dim::Fixed(v) => write!(f, "{v}"),
            Dim::Symbol { name, .. } => f.write_str(name),
            Dim::Formula(text) => f.write_str(text),
        }
    }
}
