//! Size arithmetic as a straight-line program.

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

/// Evaluates all lines into `out`. `None` on overflow or a division by zero, with the line that failed.
pub fn evaluate(lines: &[Size], symbols: &[i64], out: &mut Vec<i64>) -> Result<(), usize> {
    out.clear();
    out.reserve(lines.len());
    for (at, line) in lines.iter().enumerate() {
        let get = |id: SizeId| out[id.0 as usize];
        let value = match *line {
            Size::Const(v) => Some(v),
            Size::Sym(s) => symbols.get(s as usize).copied(),
            Size::Add(a, b) => get(a).checked_add(get(b)),
            Size::Mul(a, b) => get(a).checked_mul(get(b)),
            Size::FloorDiv(a, b) => floor_div(get(a), get(b)),
            Size::Mod(a, b) => {
                let (a, b) = (get(a), get(b));
                floor_div(a, b).and_then(|q| a.checked_sub(q.checked_mul(b)?))
            }
            Size::Min(a, b) => Some(get(a).min(get(b))),
            Size::Max(a, b) => Some(get(a).max(get(b))),
        };
        out.push(value.ok_or(at)?);
    }
    Ok(())
}

fn floor_div(a: i64, b: i64) -> Option<i64> {
    let q = a.checked_div(b)?;
    Some(if a % b != 0 && ((a < 0) != (b < 0)) {
        q - 1
    } else {
        q
    })
}
