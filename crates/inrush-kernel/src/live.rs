//! Liveness: which values and effects of a group reach memory, or may fail.
//!
//! Marking from the roots: stores to memory and checks. Store-to-load forwarding leaves most locals
//! without a load, and the stores into these without a purpose. Liveness walks operands once, so
//! that it is linear in the values.

use crate::build::Builder;
use crate::nest::EffectKind;
use crate::{BufRole, Def, KBufId, ValId};

/// Live values, and live effects by nest and position.
pub(crate) struct Live {
    /// By value: something live needs it.
    pub values: Vec<bool>,
    pub effects: Vec<Vec<bool>>,
}

impl Live {
    /// Returns the live values, in order.
    pub fn alive(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.values.len()).filter(|v| self.values[*v])
    }
}

/// Computes liveness from stores to memory and from checks. A store into a local is dead unless a live value loads the local.
pub(crate) fn liveness(b: &Builder) -> Live {
    let mut live = Live {
        values: vec![false; b.values.len()],
        effects: (b.nests.iter())
            .map(|n| vec![false; n.effects.len()])
            .collect(),
    };
    let mut todo: Vec<ValId> = Vec::new();
    let local = |buf: KBufId| matches!(b.buffers[buf.index()].role, BufRole::Local { .. });
    // Where each accumulator is updated.
    let mut updates = vec![None; b.accs.len()];
    for (n, nest) in b.nests.iter().enumerate() {
        for (i, e) in nest.effects.iter().enumerate() {
            if let EffectKind::Update { acc, .. } = &e.kind {
                updates[acc.index()] = Some((n, i));
            }
        }
    }
    wake(b, &mut live, &mut todo, &|k| match k {
        EffectKind::Store { buf, .. } => !local(*buf),
        EffectKind::Check { .. } => true,
        EffectKind::Update { .. } => false,
    });
    while let Some(v) = todo.pop() {
        if std::mem::replace(&mut live.values[v.index()], true) {
            continue;
        }
        todo.extend_from_slice(b.uses(v));
        match &b.values[v.index()].def {
            // Any store into a local may be the one that this load reads.
            Def::Load { buf, .. } if local(*buf) => wake(
                b,
                &mut live,
                &mut todo,
                &|k| matches!(k, EffectKind::Store { buf: s, .. } if s == buf),
            ),
            Def::Final(a) => {
                if let Some((n, i)) = updates[a.index()]
                    && !std::mem::replace(&mut live.effects[n][i], true)
                {
                    b.effect_needs(&b.nests[n].effects[i].kind, &mut todo);
                }
            }
            // The definition of a running value itself updates the accumulator.
            _ => {}
        }
    }
    live
}

/// Marks the effects of a kind as live, and queues what they need.
fn wake(b: &Builder, live: &mut Live, todo: &mut Vec<ValId>, which: &dyn Fn(&EffectKind) -> bool) {
    for (nest, live) in b.nests.iter().zip(&mut live.effects) {
        for (e, live) in nest.effects.iter().zip(live) {
            if !*live && which(&e.kind) {
                *live = true;
                b.effect_needs(&e.kind, todo);
            }
        }
    }
}
