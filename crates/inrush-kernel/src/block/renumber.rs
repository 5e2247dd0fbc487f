//! Numbers the values of a finished block program by first appearance, so that its text reads back to itself.

use super::{Block, BlockItem};
use crate::{Def, ValId, Value};

/// Numbers values by first appearance; what no item evaluates goes.
pub(crate) fn renumber(block: &mut Block) {
    let mut items = std::mem::take(&mut block.items);
    let mut order = Order {
        new: vec![None; block.values.len()],
        old: Vec::new(),
    };
    order.items(&mut items);
    let values = order.old.iter().map(|v| order.value(block.value(*v)));
    let values: Vec<Value> = values.collect();
    block.shapes = (order.old.iter())
        .map(|v| block.shapes[v.index()])
        .collect();
    block.values = values;
    block.items = items;
}

struct Order {
    /// The new number of each old one.
    new: Vec<Option<ValId>>,
    /// The old number of each new one.
    old: Vec<ValId>,
}

impl Order {
    fn id(&mut self, v: &mut ValId) {
        let old = &mut self.old;
        *v = *self.new[v.index()].get_or_insert_with(|| {
            old.push(*v);
            ValId::from_index(old.len() - 1)
        });
    }

    fn items(&mut self, items: &mut [BlockItem]) {
        for item in items {
            match item {
                BlockItem::Let(v) => self.id(v),
                BlockItem::Loop(w) => self.items(&mut w.body),
                BlockItem::Update { value, .. }
                | BlockItem::Moments { value, .. }
                | BlockItem::Exponentials { value, .. }
                | BlockItem::FinishExponentials { shift: value, .. } => self.id(value),
                BlockItem::Attend {
                    score,
                    second,
                    keep,
                } => {
                    let rest = second.iter_mut().chain(keep);
                    [score].into_iter().chain(rest).for_each(|v| self.id(v));
                }
                BlockItem::Store(s) => {
                    self.id(&mut s.value);
                    if let Some(m) = &mut s.mask {
                        self.id(m);
                    }
                }
                BlockItem::Acc(_)
                | BlockItem::Finish(_)
                | BlockItem::FinishMoments { .. }
                | BlockItem::Barrier => {}
            }
        }
    }

    /// A value with the new numbers of what it uses, which comes before it.
    fn value(&self, value: &Value) -> Value {
        let mut value = value.clone();
        let renumbered = |v: &mut ValId| *v = self.new[v.index()].unwrap_or(*v);
        match &mut value.def {
            Def::Const(_) | Def::Index(_) | Def::Sum(_) | Def::Final(_) => {}
            Def::Load { mask, .. } => mask.iter_mut().for_each(renumbered),
            Def::Op { args, .. } => args.iter_mut().for_each(renumbered),
            Def::Cast { arg, .. } | Def::Bitcast { arg, .. } => renumbered(arg),
            Def::Running { value, .. } | Def::Sorted { value } => renumbered(value),
            Def::Indirect { value, mask, .. } => {
                renumbered(value);
                mask.iter_mut().for_each(renumbered);
            }
        }
        value
    }
}
