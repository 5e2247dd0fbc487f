//! Axes along which combining stores never meet: their points may run side by side.

use crate::build::Builder;
use crate::nest::EffectKind;
use crate::{Def, KBufId};
use inrush_expr::{Expr, Exprs, Sym};
use inrush_loops::{Axis, StoreMode};

/// Of the group's axes those whose points combine into places of their own, wherever the other axes and the indices that are
/// read from memory are. What combines into one place then does so in one unit, in the order of the loops.
pub(crate) fn apart(b: &Builder, shared: &[Axis]) -> Vec<Sym> {
    let mut out: Vec<Sym> = shared.iter().map(|a| a.sym).collect();
    for (buf, offset, _) in stores(b).filter(|(_, _, mode)| *mode != StoreMode::Set) {
        let alone = stores(b).filter(|s| s.0 == buf).count() == 1;
        let read = |d: &Def| matches!(d, Def::Load { buf: from, .. } if *from == buf);
        if !alone || b.values.iter().any(|v| read(&v.def)) {
            return Vec::new();
        }
        let told = told_by(b.tables.exprs, offset);
        out.retain(|s| told.contains(s));
    }
    out
}

fn stores<'b>(b: &'b Builder) -> impl Iterator<Item = (KBufId, Expr, StoreMode)> + 'b {
    let effects = b.nests.iter().flat_map(|n| &n.effects);
    effects.filter_map(|e| match &e.kind {
        EffectKind::Store {
            buf, offset, mode, ..
        } => Some((*buf, *offset, *mode)),
        EffectKind::Update { .. } | EffectKind::Check { .. } => None,
    })
}

/// The indices that an offset tells apart: it is a sum of multiples of all of them, each further than the smaller ones reach
/// together, as digits of a number are.
fn told_by(exprs: &Exprs, offset: Expr) -> Vec<Sym> {
    let mut syms = exprs.free_syms(offset);
    syms.retain(|s| exprs.is_index(*s));
    let Some(factors) = exprs.coefficients(offset, &syms) else {
        return Vec::new();
    };
    let mut digits: Vec<(u64, i128, Sym)> = Vec::new();
    for (f, s) in factors.iter().zip(&syms) {
        let range = exprs.range(exprs.sym_expr(*s));
        let steps = i128::from(range.hi) - i128::from(range.lo);
        match exprs.as_int(*f) {
            Some(f) => digits.push((f.unsigned_abs(), steps, *s)),
            None => return Vec::new(),
        }
    }
    digits.sort_unstable_by_key(|d| d.0);
    let mut reach = 0i128;
    for (factor, steps, _) in &digits {
        if i128::from(*factor) <= reach || *factor == 0 {
            return Vec::new();
        }
        reach = reach.saturating_add(i128::from(*factor).saturating_mul(*steps));
    }
    digits.into_iter().map(|d| d.2).collect()
}
