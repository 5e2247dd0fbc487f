//! Items of a block program in order: loops over the looped axis, code that is written twice.

use super::{Emitter, TWICE};
use inrush_base::{Error, Result};
use inrush_kernel::block::{BlockItem, Walk};

impl Emitter<'_> {
    /// The items for programs inside, of which `known` says what needs no mask, and again for the last one.
    pub(super) fn twice(&mut self, inside: &str, known: impl FnOnce(&mut Self)) -> Result<()> {
        let items = &self.block.items;
        let loads = self.state.loads_left.clone();
        self.line(format!("if {inside}:"));
        known(self);
        self.indented(|e| e.items(items))?;
        (self.state.unmasked, self.state.tail_mask) = (false, None);
        // Values of the first branch are not known in the second.
        self.names.values.clear();
        self.state.loads_left = loads;
        self.line("else:");
        self.indented(|e| e.items(items))
    }

    /// Writes items in order.
    pub(crate) fn items(&mut self, items: &[BlockItem]) -> Result<()> {
        for item in items {
            match item {
                BlockItem::Let(v) => self.define(*v)?,
                BlockItem::Loop(w) => self.walk(w)?,
                BlockItem::Acc(a) => self.start(*a)?,
                BlockItem::Update { acc, value } => self.update(*acc, *value)?,
                BlockItem::Finish(a) => self.finish(*a)?,
                BlockItem::Moments {
                    sum,
                    squares,
                    value,
                } => self.moments(*sum, *squares, *value)?,
                BlockItem::FinishMoments { sum, squares } => {
                    self.finish_moments(*sum, *squares)?;
                }
                BlockItem::Exponentials { max, sum, value } => {
                    self.exponentials(*max, *sum, *value)?;
                }
                BlockItem::FinishExponentials { max, sum, shift } => {
                    self.finish_exponentials(*max, *sum, *shift)?;
                }
                BlockItem::Attend { .. } => {
                    return Err(Error::internal("scores outside of an attention"));
                }
                BlockItem::Store(s) => self.store(s)?,
                BlockItem::Barrier => self.line("tl.debug_barrier()"),
            }
        }
        Ok(())
    }

    /// Positions along a row, of which a thread has no more side by side than it can move at once.
    pub(super) fn neighbours(&self, positions: String) -> String {
        match self.facts.contiguous {
            Some(n) => format!("tl.max_contiguous({positions}, {n})"),
            None => positions,
        }
    }

    /// Writes the loop over the looped axis. Where elements move one at a time, full steps need no mask, and the last one is peeled.
    fn walk(&mut self, walk: &Walk) -> Result<()> {
        let at = (self.block.reduced())
            .ok_or_else(|| Error::internal("a loop without an axis to walk"))?;
        let d = self.block.dims[at];
        let extent = self.offset(d.extent)?;
        let apart = self.facts.contiguous.is_some()
            && !d.exact
            && self.block.stages == 1
            && self.descriptors.is_empty()
            && (self.exprs.as_int(d.extent)).is_some_and(|n| n > d.block)
            && walk.body.len() <= TWICE
            && !walk.body.iter().any(|i| self.checks(i));
        let inside = match apart {
            true => format!("{extent} // RBLOCK * RBLOCK"),
            false => extent.clone(),
        };
        let loads = self.state.loads_left.clone();
        if apart && walk.back {
            self.last_step(walk, &inside)?;
            self.state.loads_left.clone_from(&loads);
        }
        let step = if walk.back { "rback" } else { "roffset" };
        self.line(match self.block.stages {
            1 => format!("for {step} in range(0, {inside}, RBLOCK):"),
            // Said of the loop, it holds for all loads, not only for those of products.
            n => format!("for {step} in tl.range(0, {inside}, RBLOCK, num_stages={n}):"),
        });
        self.writer.indent += 1;
        match (walk.back, apart) {
            (false, _) => {}
            (true, true) => self.line(format!("roffset = {inside} - RBLOCK - rback")),
            // The last step may be partial: steps go back from the one that holds the last element.
            (true, false) => self.line(format!(
                "roffset = ({extent} - 1) // RBLOCK * RBLOCK - rback"
            )),
        }
        self.state.unmasked = apart;
        self.step(walk)?;
        self.state.unmasked = false;
        self.writer.indent -= 1;
        if apart && !walk.back {
            self.state.loads_left = loads;
            self.last_step(walk, &inside)?;
        }
        Ok(())
    }

    /// The step of a walk that reaches beyond the end.
    fn last_step(&mut self, walk: &Walk, inside: &str) -> Result<()> {
        self.line(format!("roffset = {inside}"));
        self.step(walk)
    }

    /// Writes the positions of one step and its items.
    fn step(&mut self, walk: &Walk) -> Result<()> {
        let at = (self.block.reduced())
            .ok_or_else(|| Error::internal("a loop without an axis to walk"))?;
        let d = self.block.dims[at];
        let along = self.along(at);
        let positions = self.neighbours("roffset + tl.arange(0, RBLOCK)".into());
        let range = self.widened(match self.facts.contiguous {
            Some(_) => format!("{positions}{along}"),
            None => format!("({positions}{along})"),
        });
        self.line(format!("r = {range}"));
        if !self.state.unmasked {
            self.mask_line(at, &d)?;
        }
        self.state.in_loop = true;
        self.items(&walk.body)?;
        self.state.in_loop = false;
        Ok(())
    }
}
