//! How operators take the numbers among their arguments: rounded to the tensors' dtype or kept, and whether a number that
//! does not fit is refused. `numbers.txt` has a line for each operator, parameter and device.
//!
//! Eager's kernels do not agree on this. `bf16 * 0.1` multiplies by 0.1 as `f32`,
//! `f16 == 0.1` compares with 0.1 rounded to `f16`, and a GPU's kernel may keep what a CPU's
//! rounds. The difference shows in the last bit of a result, or in a comparison. The table
//! was measured against PyTorch, parameter by parameter; each line reads
//!
//! ```text
//! aten.add.Scalar other tensor compute       operator, parameter, on CPUs, on GPUs
//! ```
//!
//! where a device's word is `tensor`, `compute` or `double`, followed by `!` if a number that
//! does not fit is refused, or by `~` if only integer dtypes refuse it.

use crate::{Args, Call, Processor, lookup};
use inrush_base::{DType, DTypeClass, Error, Result, Scalar};
use inrush_graph::{Arg, Graph, Node, Type};
use rustc_hash::FxHashMap;
use std::sync::LazyLock;

/// The dtype that a number is rounded to before an operator uses it.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Precision {
    /// The dtype of the tensors.
    Tensor,
    /// The dtype that the tensors are computed in: `f32` for halves.
    Compute,
    /// Keep double precision.
    Double,
}

/// The dtypes in which a number that does not fit is refused.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Fits {
    Never,
    Integers,
    Always,
}

/// How one parameter takes a number.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Number {
    pub precision: Precision,
    /// Private, since only `check` refuses numbers.
    fits: Fits,
}

/// Operands and parameters without a line: what kernels get when both operands are converted to their common dtype.
const CONVERTED: Number = Number {
    precision: Precision::Tensor,
    fits: Fits::Never,
};

/// By operator, then parameter: on CPUs and on GPUs.
type Table = FxHashMap<&'static str, Vec<(&'static str, [Number; 2])>>;

static TABLE: LazyLock<Table> = LazyLock::new(|| {
    let mut table = Table::default();
    for line in lines() {
        let words: Vec<&'static str> = line.split(' ').collect();
        if let [op, parameter, cpu, gpu] = words[..]
            && let (Some(cpu), Some(gpu)) = (Number::parse(cpu), Number::parse(gpu))
        {
            table.entry(op).or_default().push((parameter, [cpu, gpu]));
        }
    }
    table
});

/// Lines of the table without comments, in alphabetical order.
fn lines() -> impl Iterator<Item = &'static str> {
    let lines = include_str!("numbers.txt").lines();
    lines.filter(|l| !l.starts_with('#'))
}

impl Number {
    /// Reads a device's word; `None` for one that is not understood, which a test reports.
    fn parse(word: &str) -> Option<Number> {
        let (name, fits) = match word.as_bytes().last()? {
            b'!' => (&word[..word.len() - 1], Fits::Always),
            b'~' => (&word[..word.len() - 1], Fits::Integers),
            _ => (word, Fits::Never),
        };
        let precision = match name {
            "tensor" => Precision::Tensor,
            "compute" => Precision::Compute,
            "double" => Precision::Double,
            _ => return None,
        };
        Some(Number { precision, fits })
    }

    /// Returns how the parameter of an operator takes a number.
    pub fn of(op: &str, parameter: &str, processor: Processor) -> Number {
        let lines = TABLE.get(op).map_or(&[][..], Vec::as_slice);
        let line = lines.iter().find(|(name, _)| *name == parameter);
        line.map_or(CONVERTED, |(_, devices)| {
            devices[usize::from(processor == Processor::Gpu)]
        })
    }

    /// Returns the number as kernels for tensors of `dtype` see it.
    pub fn round(self, value: Scalar, dtype: DType) -> Scalar {
        match self.precision {
            Precision::Tensor => value.convert(dtype),
            Precision::Compute => value.convert(dtype.compute()),
            Precision::Double => value,
        }
    }

    /// Returns the dtype that a number must fit into, if there is one.
    fn limit(self, dtype: DType) -> Option<DType> {
        let checked = match self.fits {
            Fits::Never => false,
            Fits::Integers => dtype.is_int(),
            Fits::Always => true,
        };
        let limit = match self.precision {
            Precision::Tensor => dtype,
            Precision::Compute => dtype.compute(),
            Precision::Double => DType::F64,
        };
        checked.then_some(limit)
    }
}

/// Returns an error if a number among the arguments does not fit into the dtype that its operator converts it to.
/// Runs on the whole graph before it is lowered, since eager raises even if the result is not
/// used.
pub fn check(graph: &Graph, processor: Processor) -> Result<()> {
    for node in &graph.nodes {
        if TABLE.contains_key(node.op.as_str()) {
            check_node(graph, node, processor).map_err(|e| graph.locate(node, e))?;
        }
    }
    Ok(())
}

fn check_node(graph: &Graph, node: &Node, processor: Processor) -> Result<()> {
    let (Some(op), Some(out)) = (lookup(&node.op), node.outs.first()) else {
        return Ok(());
    };
    // The limit is that of the result's dtype, to which the operator converts.
    let Type::Tensor(out) = &graph.value(*out).ty else {
        return Ok(());
    };
    for (parameter, arg) in op.schema().params.iter().zip(&node.args) {
        let value = match arg {
            Arg::Float(f) => Scalar::Float(*f),
            Arg::Int(e) => match graph.exprs.as_int(*e) {
                Some(i) => Scalar::Int(i),
                // A symbolic integer is a size, which fits.
                None => continue,
            },
            _ => continue,
        };
        let number = Number::of(&node.op, &parameter.name, processor);
        if let Some(limit) = number.limit(out.dtype)
            && !fits(value, limit)
        {
            return Err(Error::input(format!(
                "argument `{}` = {value} does not fit into {limit}",
                parameter.name
            )));
        }
    }
    Ok(())
}

/// Returns whether eager converts a number to this dtype without an overflow. Negative integers wrap around in unsigned dtypes.
fn fits(value: Scalar, dtype: DType) -> bool {
    let integral = !matches!(value, Scalar::Float(_));
    match dtype.class() {
        DTypeClass::Bool | DTypeClass::Complex => true,
        DTypeClass::Float => {
            let v = value.as_f64();
            // Infinities and NaN convert to themselves.
            !v.is_finite() || v.abs() <= largest(dtype)
        }
        _ => {
            let (low, high) = range(dtype);
            let v = match value {
                // NaN fails both comparisons. So does a fraction below zero in an unsigned
                // dtype.
                Scalar::Float(f) => return f >= low as f64 && f <= high as f64,
                other => i128::from(other.as_i64()),
            };
            // PyTorch lets `-1` stand for 255 of `u8`, down to minus the greatest number.
            let low = if integral && low == 0 { -high } else { low };
            (low..=high).contains(&v)
        }
    }
}

/// The largest finite number of a float dtype.
pub fn largest(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => f64::MAX,
        DType::F16 => 65504.0,
        // 0x7f7f as `bf16`: (2 - 2^-7) * 2^127.
        DType::BF16 => f64::from_bits(0x47ef_e000_0000_0000),
        _ => f64::from(f32::MAX),
    }
}

/// Least and greatest number of an integer dtype.
fn range(dtype: DType) -> (i128, i128) {
    let bits = 8 * dtype.size() as u32;
    if dtype.is_unsigned() {
        (0, (1 << bits) - 1)
    } else {
        (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
    }
}

impl Args<'_> {
    /// Returns how the parameter takes a number on this processor.
    pub fn number_of(&self, name: &str, processor: Processor) -> Number {
        Number::of(self.op.row.name, name, processor)
    }
}

impl Call<'_> {
    /// Returns the number among the arguments as kernels for tensors of `dtype` see it.
    pub fn rounded(&self, name: &str, dtype: DType, processor: Processor) -> Result<Scalar> {
        let value = self.scalar(name)?;
        Ok(self.number_of(name, processor).round(value, dtype))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Route, rows};

    #[test]
    fn lines_are_sorted_and_name_parameters() {
        let all: Vec<&str> = lines().collect();
        assert!(all.len() > 100);
        assert!(all.is_sorted(), "lines of numbers.txt are sorted");
        for line in all {
            let words: Vec<&str> = line.split(' ').collect();
            let [op, parameter, cpu, gpu] = words[..] else {
                panic!("{line}: four words");
            };
            let op = lookup(op).unwrap_or_else(|| panic!("{line}: no such operator"));
            assert!(op.schema().position(parameter).is_some(), "{line}");
            assert!(
                Number::parse(cpu).is_some() && Number::parse(gpu).is_some(),
                "{line}"
            );
        }
    }

    #[test]
    fn every_pointwise_operator_that_takes_a_number_has_a_line() {
        use crate::schema::Kind;
        for row in rows().filter(|r| matches!(r.route, Route::Pointwise(_))) {
            let op = lookup(row.name).expect("a row");
            for p in &op.schema().params {
                if matches!(p.kind, Kind::Scalar | Kind::Float) {
                    let lines = TABLE.get(row.name).map_or(&[][..], Vec::as_slice);
                    assert!(
                        lines.iter().any(|(name, _)| *name == p.name),
                        "numbers.txt says nothing of `{}` of {}",
                        p.name,
                        row.name
                    );
                }
            }
        }
    }

    #[test]
    fn numbers_are_rounded_as_the_lines_say() {
        let third = Scalar::Float(1.0 / 3.0);
        let of = |op, parameter| Number::of(op, parameter, Processor::Cpu);
        assert_eq!(
            of("aten.eq.Scalar", "other").round(third, DType::F16),
            Scalar::Float(0.333251953125)
        );
        assert_eq!(
            of("aten.mul.Scalar", "other").round(third, DType::BF16),
            Scalar::Float(f64::from(1.0f32 / 3.0))
        );
        assert_ne!(
            Number::of("aten.add.Scalar", "other", Processor::Gpu),
            of("aten.add.Scalar", "other")
        );
    }

    #[test]
    fn numbers_fit_as_in_eager() {
        let (int, float) = (Scalar::Int, Scalar::Float);
        let cases = [
            (int(255), DType::U8, true),
            (int(256), DType::U8, false),
            (int(-255), DType::U8, true),
            (int(-256), DType::U8, false),
            (float(-0.5), DType::U8, false),
            (float(254.5), DType::U8, true),
            (int(1 << 31), DType::I32, false),
            (int(i64::MAX), DType::I64, true),
            (float(f64::NAN), DType::I32, false),
            (float(1e10), DType::Bool, true),
            (float(65504.0), DType::F16, true),
            (float(65519.0), DType::F16, false),
            (float(f64::INFINITY), DType::F16, true),
            (float(1e39), DType::F32, false),
            (float(1e39), DType::F64, true),
        ];
        for (value, dtype, want) in cases {
            assert_eq!(fits(value, dtype), want, "{value} in {dtype}");
        }
    }
}
