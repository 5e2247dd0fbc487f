//! Complex inputs and outputs of a program.
//!
//! Stages after planar see a complex tensor as pairs of real numbers, with a last dimension of 2. Its memory is the same, so a
//! program keeps real buffers, and gives its inputs and outputs the complex type again that callers see:
//!
//! ```text
//! input z: f32[s0, 4, 2] strides [8, 2, 1]   =>   input z: c64[s0, 4] strides [4, 1]
//! ```

use inrush_base::{DType, DTypeClass, Error, Result};
use inrush_graph::{Graph, InputKind, OutputValue, Type, ValueId};
use inrush_program::{Dt, InputType, Output, Program, Size, SizeId};

/// Positions of complex inputs of the user and of complex outputs, with their dtypes.
pub struct Boundary {
    pub inputs: Vec<(usize, DType)>,
    pub outputs: Vec<(usize, DType)>,
}

impl Boundary {
    /// Reads the types of a graph ahead of stage planar.
    pub fn of(graph: &Graph) -> Boundary {
        let complex = |v: ValueId| match &graph.value(v).ty {
            Type::Tensor(t) if t.dtype.class() == DTypeClass::Complex => Some(t.dtype),
            _ => None,
        };
        let input = |i: &inrush_graph::Input| match i.kind {
            InputKind::User { index } => Some((index, complex(i.value)?)),
            _ => None,
        };
        let output = |(k, o): (usize, &inrush_graph::Output)| match o.value {
            OutputValue::Value(v) => Some((k, complex(v)?)),
            _ => None,
        };
        Boundary {
            inputs: graph.inputs.iter().filter_map(input).collect(),
            outputs: graph
                .outputs
                .iter()
                .enumerate()
                .filter_map(output)
                .collect(),
        }
    }

    /// Returns true if no input and no output is complex.
    pub(crate) fn is_empty(&self) -> bool {
        self.inputs.is_empty() && self.outputs.is_empty()
    }

    /// Gives inputs and outputs of the program their complex types.
    ///
    /// # Errors
    /// An internal error for a tensor that is no pairs of numbers.
    pub(crate) fn restore(&self, program: &mut Program) -> Result<()> {
        let lines = &mut program.sizes;
        for (at, complex) in &self.inputs {
            if let Some(InputType::Tensor {
                dtype,
                sizes,
                strides,
            }) = program.inputs.get_mut(*at).map(|i| &mut i.ty)
            {
                pairs(lines, sizes, strides)?;
                *dtype = Dt(*complex);
            }
        }
        for (at, complex) in &self.outputs {
            if let Some(Output::Tensor {
                dtype,
                sizes,
                strides,
                ..
            }) = program.outputs.get_mut(*at)
            {
                pairs(lines, sizes, strides)?;
                *dtype = Dt(*complex);
            }
        }
        Ok(())
    }
}

/// Drops the last dimension, which holds the parts, and counts strides in pairs.
fn pairs(lines: &mut Vec<Size>, sizes: &mut Vec<SizeId>, strides: &mut Vec<SizeId>) -> Result<()> {
    if sizes.pop().is_none() || strides.pop().is_none() {
        return Err(Error::internal(
            "a complex tensor without a dimension of parts",
        ));
    }
    for s in strides {
        *s = half(lines, *s)?;
    }
    Ok(())
}

/// Returns a line of half the value.
fn half(lines: &mut Vec<Size>, of: SizeId) -> Result<SizeId> {
    let line = match lines.get(of.0 as usize) {
        Some(Size::Const(v)) => Size::Const(v / 2),
        Some(_) => {
            let two = push(lines, Size::Const(2))?;
            Size::FloorDiv(of, two)
        }
        None => return Err(Error::internal("a stride without a line")),
    };
    push(lines, line)
}

fn push(lines: &mut Vec<Size>, line: Size) -> Result<SizeId> {
    let known = lines.iter().position(|l| *l == line);
    let at = known.unwrap_or_else(|| {
        lines.push(line);
        lines.len() - 1
    });
    match u32::try_from(at) {
        Ok(at) => Ok(SizeId(at)),
        Err(_) => Err(Error::internal("too many sizes")),
    }
}
