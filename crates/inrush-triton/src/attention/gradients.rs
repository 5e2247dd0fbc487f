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
        let key = ("key", &a.key, &a.d, "d[None, :]", "[RBLOCK, DBLOCK]");
        let value = ("value", &a.value, &a.n, "n[None, :]", "[RBLOCK, NBLOCK]");
        self.load_along_rows(step, &[key, value])?;
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
            let weight = self.kept(weight, keep, "0.0")?;
            self.line(format!(
                "{sum} = tl.dot(({weight}).to(tl.{dtype}), {operand}, {sum}{precision})"
            ));
        }
        Ok(())
    }
}
