//! Reductions over the tile's last dimension, in one go or step by step, and running reductions.
//!
//! | form | lines |
//! |---|---|
//! | persistent | `a0 = tile`, then `a0 = tl.sum(a0, axis)` |
//! | looped | `a0 = tl.full(..)`, in the loop `a0 += tile`, then `a0 = tl.sum(a0, axis)` |
//! | running | `tl.associative_scan(tile, axis, f)`; in a loop combined with a carry |
//! | sort | `tl.sort(tile, axis)`, which is bitonic; keys past the end are the greatest |
//!
//! In a loop each lane of the tile accumulates on its own: the lanes are combined once, after the
//! last step. Elements past the end count as the neutral element.

use crate::function::Emitter;
use crate::types;
use inrush_base::{DType, Error, Result};
use inrush_kernel::{AccId, ValId};
use inrush_loops::ReduceOp;
use inrush_loops::eval::neutral;

/// The helper that combines two values.
/// Floats have helpers where NaN must win.
fn combiner(op: ReduceOp, d: DType) -> &'static str {
    let float = d.is_float();
    match op {
        ReduceOp::Sum => "add",
        ReduceOp::Prod => "multiply",
        ReduceOp::Max if float => "nan_max",
        ReduceOp::Min if float => "nan_min",
        ReduceOp::Max => "int_max",
        ReduceOp::Min => "int_min",
        ReduceOp::Any => "bit_or",
        ReduceOp::All => "bit_and",
        ReduceOp::XorSum => "bit_xor",
        ReduceOp::LogSumExp => "logaddexp",
        ReduceOp::ArgMax => "first_max",
        ReduceOp::ArgMin => "first_min",
    }
}

/// The dtype in which an accumulator is kept: booleans and short integers as 32-bit integers.
fn kept(d: DType) -> DType {
    match d {
        DType::Bool | DType::I8 | DType::I16 => DType::I32,
        DType::U8 | DType::U16 => DType::U32,
        d => d,
    }
}

/// Beyond every position.
const NOWHERE: i64 = i64::MAX;

impl Emitter<'_> {
    /// Returns the reduced axis: its position, and its bit in shapes.
    fn axis(&self) -> Result<(usize, u32)> {
        let at =
            (self.block.reduced()).ok_or_else(|| Error::internal("a reduction without an axis"))?;
        Ok((at, 1 << at))
    }

    /// Position of the reduced dimension among those of the tile.
    pub(crate) fn tile_axis(&self) -> Result<usize> {
        let (at, _) = self.axis()?;
        let dims = self.tile_dims();
        let axis = dims.iter().position(|i| *i == at);
        axis.ok_or_else(|| Error::internal("a reduction over no dimension of the tile"))
    }

    /// Bits of all dimensions.
    fn full(&self) -> u32 {
        self.tile_dims().iter().fold(0, |m, i| m | 1 << i)
    }

    /// Returns the neutral element as a literal. An arg reduction starts at that of its extreme.
    fn neutral(&self, acc: AccId) -> String {
        let a = &self.block.accs[acc.index()];
        let (op, d) = match a.op {
            ReduceOp::ArgMax => (ReduceOp::Max, a.dtype),
            ReduceOp::ArgMin => (ReduceOp::Min, a.dtype),
            op => (op, a.dtype),
        };
        let value = neutral(op, d);
        match d {
            DType::Bool => (value.as_bool() as i64).to_string(),
            d => types::literal(value, d),
        }
    }

    /// A value as a whole tile of the accumulator's dtype, neutral beyond the end.
    pub(crate) fn taken(&mut self, acc: AccId, value: ValId) -> Result<String> {
        let d = self.block.accs[acc.index()].dtype;
        let full = self.full();
        let mut text = self.text(value)?;
        if kept(d) != d {
            text = format!("{text}.to(tl.{})", types::name(kept(d))?);
        }
        let text = self.spread(text, self.block.shapes[value.index()], full);
        let (_, bit) = self.axis()?;
        Ok(match self.mask(bit) {
            Some(m) => format!("tl.where({m}, {text}, {})", self.neutral(acc)),
            None => text,
        })
    }

    /// Positions of a tile, beyond every one past the end.
    fn positions(&mut self, acc: AccId) -> Result<String> {
        let index = self.block.accs[acc.index()].index;
        let index = index.ok_or_else(|| Error::internal("an extreme without a position"))?;
        let (text, _) = self.wide_expr(index)?;
        let have = self.expr_shape(index);
        let full = self.full();
        let text = match self.exprs.as_int(index) {
            Some(v) => format!("tl.full({}, {v}, tl.int64)", self.shape(full)),
            None => self.spread(format!("({text}).to(tl.int64)"), have, full),
        };
        let (_, bit) = self.axis()?;
        Ok(match self.mask(bit) {
            Some(m) => format!("tl.where({m}, {text}, {NOWHERE})"),
            None => text,
        })
    }

    /// Declares an accumulator: a tile of its neutral element, without the looped axis where it carries a running reduction.
    pub(crate) fn start(&mut self, acc: AccId) -> Result<()> {
        let a = self.block.accs[acc.index()].clone();
        let name = format!("a{}", acc.index());
        let ty = types::name(kept(a.dtype))?;
        let neutral = self.neutral(acc);
        let full = self.full();
        let (_, bit) = self.axis()?;
        let shape = match (self.facts.carries.contains(&acc), self.facts.runs.get(&acc)) {
            (true, _) if full == bit => "[]".to_string(),
            (true, _) => self.shape(full & !bit),
            (false, Some(run)) => format!("[RBLOCK // {run}]"),
            (false, None) => self.shape(full),
        };
        self.line(format!("{name} = tl.full({shape}, {neutral}, tl.{ty})"));
        if a.op.is_arg() {
            self.line(format!("{name}_at = tl.full({shape}, {NOWHERE}, tl.int64)"));
        }
        self.names.accs.insert(acc, name);
        Ok(())
    }

    /// Takes a tile into an accumulator.
    pub(crate) fn update(&mut self, acc: AccId, value: ValId) -> Result<()> {
        let a = self.block.accs[acc.index()].clone();
        let f = combiner(a.op, a.dtype);
        let tile = self.taken(acc, value)?;
        if !self.state.in_loop {
            let name = format!("a{}", acc.index());
            if a.op.is_arg() {
                let at = self.positions(acc)?;
                self.line(format!("{name} = {tile}"));
                self.line(format!("{name}_at = {at}"));
            } else {
                self.line(format!("{name} = {tile}"));
            }
            self.names.accs.insert(acc, name);
            return self.finish(acc);
        }
        let name = self.names.accs[&acc].clone();
        match a.op {
            ReduceOp::Sum => self.line(format!("{name} += {tile}")),
            op if op.is_arg() => {
                let at = self.positions(acc)?;
                self.line(format!(
                    "{name}, {name}_at = {f}({name}, {name}_at, {tile}, {at})"
                ));
            }
            _ => self.line(format!("{name} = {f}({name}, {tile})")),
        }
        Ok(())
    }

    /// Combines the lanes: from here on the accumulator has the grid's dimensions only.
    pub(crate) fn finish(&mut self, acc: AccId) -> Result<()> {
        let a = self.block.accs[acc.index()].clone();
        let name = self.names.accs[&acc].clone();
        let axis = self.tile_axis()?;
        let back = self.back()?;
        if a.op.is_arg() {
            let f = combiner(a.op, a.dtype);
            self.line(format!(
                "{name}, {name}_at = tl.reduce(({name}, {name}_at), {axis}, {f})"
            ));
            if !back.is_empty() {
                self.line(format!("{name}_at = {name}_at{back}"));
            }
            return Ok(());
        }
        let text = self.reduced(a.op, a.dtype, &name, axis);
        let whole = match self.state.kept.contains(&acc) {
            true => format!("{name}_all"),
            false => name,
        };
        self.line(format!("{whole} = {text}{back}"));
        self.names.accs.insert(acc, whole);
        Ok(())
    }

    /// One step of means and squares: every lane has seen as many elements as there were steps, but for the last.
    pub(crate) fn moments(&mut self, sum: AccId, squares: AccId, value: ValId) -> Result<()> {
        let (mean, square) = (
            self.names.accs[&sum].clone(),
            self.names.accs[&squares].clone(),
        );
        let seen = "(roffset // RBLOCK + 1)";
        let share = match self.block.accs[sum.index()].dtype {
            DType::F64 => format!("/ {seen}"),
            // One division for all lanes.
            _ => format!("* (1.0 / {seen})"),
        };
        let tile = self.taken(sum, value)?;
        let (v, d, step) = (self.fresh(), self.fresh(), self.fresh());
        self.line(format!("{v} = {tile}"));
        self.line(format!("{d} = {v} - {mean}"));
        self.line(format!("{step} = {mean} + {d} {share}"));
        // Lanes past the end of the row keep what they have: they have seen one element less.
        let next = format!("{square} + {d} * ({v} - {step})");
        let (_, bit) = self.axis()?;
        match self.mask(bit) {
            Some(m) => {
                self.line(format!("{square} = tl.where({m}, {next}, {square})"));
                self.line(format!("{mean} = tl.where({m}, {step}, {mean})"));
            }
            None => {
                self.line(format!("{square} = {next}"));
                self.line(format!("{mean} = {step}"));
            }
        }
        Ok(())
    }

    /// The sum of all, and the squares of distances to its mean, from those of the lanes.
    pub(crate) fn finish_moments(&mut self, sum: AccId, squares: AccId) -> Result<()> {
        let (at, _) = self.axis()?;
        let ty = types::name(self.block.accs[sum.index()].dtype)?;
        let extent = self.block.dims[at].extent;
        let count = match self.exprs.as_int(extent) {
            Some(n) => n.to_string(),
            None => format!("({})", self.offset(extent)?),
        };
        let (mean, square) = (
            self.names.accs[&sum].clone(),
            self.names.accs[&squares].clone(),
        );
        let (axis, along, back) = (self.tile_axis()?, self.along(at), self.back()?);
        let (seen, total, d) = (self.fresh(), self.fresh(), self.fresh());
        // Elements that each lane has seen.
        self.line(format!(
            "{seen} = (({count} + RBLOCK - 1 - tl.arange(0, RBLOCK){along}) // RBLOCK).to(tl.{ty})"
        ));
        self.line(format!("{total} = tl.sum({mean} * {seen}, {axis}){back}"));
        self.line(format!("{d} = {mean} - {total} / {count}"));
        self.line(format!(
            "{square} = tl.sum({square} + {seen} * {d} * {d}, {axis}){back}"
        ));
        self.line(format!("{mean} = {total}"));
        Ok(())
    }

    /// Spells the combination of all lanes along an axis. `tl.max` drops NaN, so that floats go by
    /// a helper.
    fn reduced(&self, op: ReduceOp, d: DType, tile: &str, axis: usize) -> String {
        let integer = !d.is_float();
        match op {
            ReduceOp::Sum => format!("tl.sum({tile}, {axis})"),
            ReduceOp::Max | ReduceOp::Any if integer => format!("tl.max({tile}, {axis})"),
            ReduceOp::Min | ReduceOp::All if integer => format!("tl.min({tile}, {axis})"),
            op => format!("tl.reduce({tile}, {axis}, {})", combiner(op, d)),
        }
    }

    /// Puts the reduced dimension back, with one element.
    pub(crate) fn back(&self) -> Result<String> {
        let (at, _) = self.axis()?;
        let dims = self.tile_dims();
        if dims.len() < 2 {
            return Ok(String::new());
        }
        let parts: Vec<&str> = (dims.iter())
            .map(|i| if *i == at { "None" } else { ":" })
            .collect();
        Ok(format!("[{}]", parts.join(", ")))
    }

    /// Spells the result of a finished accumulator: a position, or the value in its own dtype.
    pub(crate) fn final_value(&mut self, acc: AccId, dtype: DType) -> Result<String> {
        let a = &self.block.accs[acc.index()];
        let name = (self.names.accs.get(&acc))
            .ok_or_else(|| Error::internal("a reduction is used before it is done"))?;
        if a.op.is_arg() {
            return Ok(format!("{name}_at"));
        }
        restored(name, a.dtype, dtype)
    }

    /// A running reduction; across steps of a loop the accumulator carries what came before.
    pub(crate) fn running(&mut self, acc: AccId, value: ValId, dtype: DType) -> Result<String> {
        let a = self.block.accs[acc.index()].clone();
        if a.op.is_arg() {
            return Err(Error::unsupported("a running argmax or argmin"));
        }
        let f = combiner(a.op, a.dtype);
        let axis = self.tile_axis()?;
        let tile = self.fresh();
        let taken = self.taken(acc, value)?;
        self.line(format!("{tile} = {taken}"));
        let scan = format!("tl.associative_scan({tile}, {axis}, {f})");
        if !self.state.in_loop {
            return restored(&scan, a.dtype, dtype);
        }
        let carry = self.names.accs[&acc].clone();
        let out = self.fresh();
        self.line(format!("{out} = {f}({carry}, {scan})"));
        let back = self.back()?;
        let step = self.reduced(a.op, a.dtype, &tile, axis);
        self.line(format!("{carry} = {f}({carry}, {step}{back})"));
        restored(&out, a.dtype, dtype)
    }

    /// A row in ascending order. Keys past the end are greater than all others, so that they stay there.
    pub(crate) fn sorted(&mut self, value: ValId, dtype: DType) -> Result<String> {
        let greatest = match dtype {
            DType::I32 => i32::MAX.into(),
            DType::I64 => i64::MAX,
            _ => return Err(Error::internal(format!("a sort of {dtype}"))),
        };
        let (full, axis) = (self.full(), self.tile_axis()?);
        let mut keys = self.spread(self.text(value)?, self.block.shapes[value.index()], full);
        if let Some(mask) = self.mask(self.axis()?.1) {
            keys = format!("tl.where({mask}, {keys}, {greatest})");
        }
        Ok(format!("tl.sort({keys}, {axis})"))
    }
}

/// An accumulated value in its own dtype again.
fn restored(text: &str, from: DType, to: DType) -> Result<String> {
    Ok(match (kept(from) == from, to) {
        (true, _) if from == to => text.into(),
        (_, DType::Bool) => format!("({text} != 0)"),
        _ => format!("{text}.to(tl.{})", types::name(to)?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn booleans_come_back_as_booleans() {
        assert_eq!(restored("a", DType::Bool, DType::Bool).unwrap(), "(a != 0)");
        assert_eq!(
            restored("a", DType::I8, DType::I8).unwrap(),
            "a.to(tl.int8)"
        );
        assert_eq!(restored("a", DType::F32, DType::F32).unwrap(), "a");
    }
}
