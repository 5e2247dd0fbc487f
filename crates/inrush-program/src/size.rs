//! Size arithmetic as a straight-line program.
//!
//! A call evaluates every line once, in order, into a vector: no recursion and no table of names.
//! All arithmetic is checked, since sizes come from users. An overflow is an error of the call,
//! never a wrapped value that an allocation could trust.

use serde::{Deserialize, Serialize};

/// A line of [`crate::Program::sizes`].
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SizeId(pub u32);

/// One line; operands are earlier lines.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Size {
    Const(i64),
    /// A symbol of the call by position.
    Sym(u32),
    Add(SizeId, SizeId),
    Mul(SizeId, SizeId),
    /// Toward minus infinity.
    FloorDiv(SizeId, SizeId),
    Mod(SizeId, SizeId),
    Min(SizeId, SizeId),
    Max(SizeId, SizeId),
}

/// Solves `size = factor * symbol + offset` for the symbol; `None` where no integer does. The terms may come from files and users.
pub fn solve(size: i64, factor: i64, offset: i64) -> Option<i64> {
    let rest = size.checked_sub(offset)?;
    (rest.checked_rem(factor)? == 0).then(|| rest / factor)
}

impl Size {
    /// Earlier lines that the line reads.
    pub fn operands(&self) -> Vec<SizeId> {
        match *self {
            Size::Const(_) | Size::Sym(_) => vec![],
            Size::Add(a, b)
            | Size::Mul(a, b)
            | Size::FloorDiv(a, b)
            | Size::Mod(a, b)
            | Size::Min(a, b)
            | Size::Max(a, b) => vec![a, b],
        }
    }
}

/// Evaluates all lines into `out`. `symbols` are the values by position.
///
/// # Errors
/// The number of the line that overflows, divides by zero, or names a symbol without a value.
pub fn evaluate(lines: &[Size], symbols: &[i64], out: &mut Vec<i64>) -> Result<(), usize> {
    out.clear();
    out.reserve(lines.len());
    for (at, line) in lines.iter().enumerate() {
        let symbol = |s: u32| symbols.get(s as usize).copied();
        let value = line.value(symbol, |id| Some(out[id.0 as usize]));
        out.push(value.ok_or(at)?);
    }
    Ok(())
}

/// Returns the value of every line; `None` for one that depends on an unknown symbol or overflows.
/// Used while sizes that come from data are still missing.
pub fn evaluate_known(lines: &[Size], symbols: &[Option<i64>]) -> Vec<Option<i64>> {
    let mut out: Vec<Option<i64>> = Vec::with_capacity(lines.len());
    for line in lines {
        let symbol = |s: u32| symbols.get(s as usize).copied().flatten();
        let value = line.value(symbol, |id| out[id.0 as usize]);
        out.push(value);
    }
    out
}

impl Size {
    /// The line's value, from those of symbols and of earlier lines.
    #[inline(always)]
    fn value(
        &self,
        symbol: impl Fn(u32) -> Option<i64>,
        get: impl Fn(SizeId) -> Option<i64>,
    ) -> Option<i64> {
        match *self {
            Size::Const(v) => Some(v),
            Size::Sym(s) => symbol(s),
            Size::Add(a, b) => get(a)?.checked_add(get(b)?),
            Size::Mul(a, b) => get(a)?.checked_mul(get(b)?),
            Size::FloorDiv(a, b) => floor_div(get(a)?, get(b)?),
            Size::Mod(a, b) => {
                let (a, b) = (get(a)?, get(b)?);
                a.checked_sub(floor_div(a, b)?.checked_mul(b)?)
            }
            Size::Min(a, b) => Some(get(a)?.min(get(b)?)),
            Size::Max(a, b) => Some(get(a)?.max(get(b)?)),
        }
    }
}

/// Divides toward minus infinity, as Python does; `None` for a zero divisor or an overflow.
fn floor_div(a: i64, b: i64) -> Option<i64> {
    let q = a.checked_div(b)?;
    Some(if a % b != 0 && ((a < 0) != (b < 0)) {
        q - 1
    } else {
        q
    })
}
