//! Axes along which combining stores never meet: their points may run side by side.

use crate::build::Builder;
use crate::nest::EffectKind;
use crate::{Def, Item, KBufId, Kernel, Kind};
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

/// Whether units of a grid may meet in an element that both of them combine with: then one thread has to do all of them.
/// Stage tile makes no such kernels, but a kernel may be written by hand.
pub fn units_meet(exprs: &Exprs, kernel: &Kernel) -> bool {
    let Kind::Grid(axes) = &kernel.kind else {
        return false;
    };
    let mut all = Vec::new();
    collect(&kernel.body, &mut all);
    let read = |buf: KBufId| {
        let mut defs = kernel.values.iter().map(|v| &v.def);
        defs.any(|d| matches!(d, Def::Load { buf: from, .. } if *from == buf))
    };
    all.iter().any(|(buf, offset, mode)| {
        *mode != StoreMode::Set && !axes.is_empty() && {
            let told = told_by(exprs, *offset);
            !axes.iter().all(|a| told.contains(&a.sym))
                || all.iter().filter(|s| s.0 == *buf).count() > 1
                || read(*buf)
        }
    })
}

/// All stores in these items.
fn collect(items: &[Item], out: &mut Vec<(KBufId, Expr, StoreMode)>) {
    for item in items {
        match item {
            Item::Loop(l) => collect(&l.body, out),
            Item::Store {
                buf, offset, mode, ..
            } => out.push((*buf, *offset, *mode)),
            Item::Let(_) | Item::Acc(_) | Item::Update { .. } => {}
        }
    }
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

#[cfg(test)]
mod tests {
    use super::units_meet;

    /// Whether units meet where 8 rows are shared out and a store arrives at `offset`.
    fn meet(store: &str, offset: &str) -> bool {
        let text = format!(
            "kernel k {{\n  index [i0: 8, i1: 4, i1000: 16]\n  sizes []\n  units 8 cost 4\n  b0 = i64 b0 in\n  \
             b1 = f32 b1 in\n  b2 = f32 b2 inout\n  check \"index\"\n  grid i0 < 8 {{\n    for i1 < 4 {{\n      \
             i64 v0 = load b0[4*i0 + i1]\n      i64 v1 = indirect v0 as i1000 < 16 check 0\n      \
             f32 v2 = load b1[4*i0 + i1]\n      store.{store} b2[{offset}], v2\n    }}\n  }}\n}}\n"
        );
        let (exprs, kernels) = crate::text::parse(&text).expect("a kernel");
        crate::verify(&exprs, &kernels[0]).expect("a kernel by the rules");
        units_meet(&exprs, &kernels[0])
    }

    #[test]
    fn rows_meet_where_their_places_overlap() {
        assert!(!meet("add", "16*i0 + i1000"), "a row of its own");
        assert!(!meet("max", "16*i0 + i1000"), "whatever it combines by");
        assert!(
            meet("add", "15*i0 + i1000"),
            "the last place is the next row's first"
        );
        assert!(meet("add", "i1000"), "all rows in one");
        assert!(meet("mul", "8*i1000 + i1"), "rows do not count");
        assert!(!meet("add", "8*i1000 + i0"), "a column of its own");
        assert!(!meet("set", "i1000"), "nothing is combined");
    }
}
