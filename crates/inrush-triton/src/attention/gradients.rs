//! The steps of gradients: two products, the items, sums of what the step loaded.
//!
//! ```text
//! key = tl.load(in_ptr1 + ..)                          [RBLOCK, DBLOCK]
//! value = tl.load(in_ptr2 + ..)                        [RBLOCK, NBLOCK]
//! product = tl.dot(query, tl.trans(key))
//! grad_product = tl.dot(grad, tl.trans(value))
//! t0 = tl.exp2(..)                                     the items of the loop
//! by_key = tl.dot(t1, key, by_key)
//! by_value = tl.dot(t0, value, by_value)               of keys and values alone
//! ```

use super::Step;
use crate::function::Emitter;
use crate::types;
use inrush_base::{Error, Result};
use inrush_kernel::ValId;
use inrush_kernel::block::{Attention, BlockItem, Operand};

impl Emitter<'_> {
    /// Loads the rows of the second product, and starts the sums.
    pub(super) fn start_gradients(
        &mut self,
        a: &Attention,
        grad: &Operand,
        by_value: bool,
    ) -> Result<()> {
        self.name(a.n.sym, "n[None, :]");
        let masks = [
            self.mask(1 << Attention::ROWS),
            self.below(&a.n, "n[None, :]")?,
        ];
        self.tile_load("grad", grad, "[XBLOCK, NBLOCK]", &masks)?;
        self.line("by_key = tl.zeros([XBLOCK, DBLOCK], tl.float32)");
        if by_value {
            self.line("by_value = tl.zeros([XBLOCK, NBLOCK], tl.float32)");
        }
        Ok(())
    }

    /// Writes one step, after its indices.
    pub(super) fn gradient_step(
        &mut self,
        a: &Attention,
        body: &[BlockItem],
        step: Step,
        by_value: bool,
    ) -> Result<()> {
        self.step_operands(a, step)?;
        let precision = self.precision(a);
        for (name, rows, keys) in [
            ("product", "query", "key"),
            ("grad_product", "grad", "value"),
        ] {
            self.line(format!(
                "{name} = tl.dot({rows}, tl.trans({keys}){precision})"
            ));
        }
        let Some(BlockItem::Attend {
            score,
            second,
            keep,
        }) = body.last()
        else {
            return Err(Error::internal("gradients without weights"));
        };
        let keep = keep.filter(|_| !step.full);
        let weights = [Some(*score), second.filter(|_| by_value)];
        let todo = weights.iter().flatten().copied().chain(keep);
        self.define_needed(body, todo.collect())?;
        let dtype = types::name(self.block.buffers[a.value.buf.index()].dtype)?;
        for (weight, (sum, operand)) in weights
            .into_iter()
            .zip([("by_key", "key"), ("by_value", "value")])
        {
            let Some(weight) = weight else { continue };
            let weight = self.weight(weight, keep)?;
            self.line(format!(
                "{sum} = tl.dot(({weight}).to(tl.{dtype}), {operand}, {sum}{precision})"
            ));
        }
        Ok(())
    }

    /// Loads a step of both operands, keys along the first axis.
    fn step_operands(&mut self, a: &Attention, step: Step) -> Result<()> {
        let r = self.block.dims[Attention::KEYS];
        let wide = if self.block.wide { ".to(tl.int64)" } else { "" };
        self.line(format!(
            "rt = (roffset + tl.arange(0, RBLOCK)[:, None]){wide}"
        ));
        let before = self.names.symbols.insert(r.sym, "rt".into());
        let of_r = if step.whole {
            None
        } else {
            Some(format!("(rt < {})", self.offset(r.extent)?))
        };
        for (name, operand, side, index, shape) in [
            ("key", &a.key, &a.d, "d[None, :]", "[RBLOCK, DBLOCK]"),
            ("value", &a.value, &a.n, "n[None, :]", "[RBLOCK, NBLOCK]"),
        ] {
            self.name(side.sym, index);
            let masks = [of_r.clone(), self.below(side, index)?];
            self.tile_load(name, operand, shape, &masks)?;
        }
        if let Some(name) = before {
            self.names.symbols.insert(r.sym, name);
        }
        Ok(())
    }

    /// Returns the tile of a weight: 0 beyond the last key and where a key is not kept.
    fn weight(&mut self, weight: ValId, keep: Option<ValId>) -> Result<String> {
        let shape = 1 << Attention::ROWS | 1 << Attention::KEYS;
        let have = self.block.shapes[weight.index()];
        let text = self.spread(self.text(weight)?, have, shape);
        let mut masks: Vec<String> = self.mask(1 << Attention::KEYS).into_iter().collect();
        if let Some(k) = keep {
            masks.push(self.text(k)?);
        }
        if masks.is_empty() {
            return Ok(text);
        }
        Ok(format!("tl.where({}, {text}, 0.0)", masks.join(" & ")))
    }
}
