//! Write conflicts of combining stores: along which axes two points may combine into the same element.
//!
//! A scatter such as `out[index[i]] += x[i]` must not run on several threads, nor in any order, along `i`. Offsets are read as
//! numbers in a mixed radix: `16*i + index` with `index < 16` tells `i` apart, so different `i` never meet.

use crate::build::Builder;
use crate::nest::{Effect, EffectKind, Nest};
use crate::{Def, Item, KBufId, Kernel, Kind};
use inrush_base::tally::{Way, reached};
use inrush_expr::{Expr, Exprs, Sym};
use inrush_loops::{Axis, StoreMode};

/// Which axes of a group threads and lanes may share, given the stores that combine.
pub(crate) struct Conflicts {
    /// Some store combines in memory.
    pub combining: bool,
    /// Axes without conflicts.
    free: Vec<Sym>,
    /// Of the axes with conflicts the position of the last one.
    last: Option<usize>,
    /// By position, whether the axis has conflicts.
    conflicting: Vec<bool>,
}

impl Conflicts {
    /// Finds the axes with conflicts.
    pub fn new(b: &Builder, shared: &[Axis]) -> Conflicts {
        let combining = stores(b).any(|(_, _, mode)| mode != StoreMode::Set);
        let free = if combining {
            conflict_free_axes(b, shared)
        } else {
            Vec::new()
        };
        if !free.is_empty() {
            reached(Way::Apart);
        }
        let conflicting: Vec<bool> = (shared.iter())
            .map(|a| combining && !free.contains(&a.sym))
            .collect();
        Conflicts {
            combining,
            free,
            last: conflicting.iter().rposition(|c| *c),
            conflicting,
        }
    }

    /// Returns true if stores combine and points along the axis never meet.
    pub fn is_free(&self, axis: Sym) -> bool {
        self.free.contains(&axis)
    }

    /// Returns true if points along the axis may meet: one unit then takes all of them.
    pub fn stays(&self, axis: Sym) -> bool {
        self.combining && !self.is_free(axis)
    }

    /// Returns true if the shared axis at this position may become the innermost loop. Of those with conflicts only the last
    /// may: what is combined keeps its order.
    pub fn may_be_innermost(&self, at: usize) -> bool {
        self.last == Some(at) || !self.conflicting[at]
    }
}

/// Returns those of the group's axes whose points combine into elements of their own, whatever the other axes and the indices
/// that are read from memory are. What combines into one element then does so in one unit, in the order of the loops.
fn conflict_free_axes(b: &Builder, shared: &[Axis]) -> Vec<Sym> {
    let mut out: Vec<Sym> = shared.iter().map(|a| a.sym).collect();
    let all: Vec<_> = stores(b).collect();
    for (buf, _, _) in all.iter().filter(|(_, _, mode)| *mode != StoreMode::Set) {
        let read = |d: &Def| matches!(d, Def::Load { buf: from, .. } if from == buf);
        if b.values.iter().any(|v| read(&v.def)) {
            return Vec::new();
        }
        let told = distinguished(b.tables.exprs, &all, *buf);
        out.retain(|s| told.contains(s));
    }
    out
}

/// Iterates over all stores of the group.
fn stores<'b>(b: &'b Builder) -> impl Iterator<Item = (KBufId, Expr, StoreMode)> + 'b {
    b.nests.iter().flat_map(|n| of_effects(&n.effects))
}

/// Iterates over buffer, offset and mode of the stores among effects.
fn of_effects(effects: &[Effect]) -> impl Iterator<Item = (KBufId, Expr, StoreMode)> {
    effects.iter().filter_map(|e| match &e.kind {
        EffectKind::Store {
            buf, offset, mode, ..
        } => Some((*buf, *offset, *mode)),
        EffectKind::Update { .. } | EffectKind::Check { .. } => None,
    })
}

/// Returns true if a nest may do several points of `axis` at once: one store for all of them, then the next store, where its
/// loops go from point to point. Sums of sums come to the same; a product of a sum does not, nor does what is read between.
/// Then the points must have elements of their own.
pub(crate) fn can_run_in_lanes(b: &Builder, nest: &Nest, axis: Sym) -> bool {
    let stores: Vec<_> = of_effects(&nest.effects).collect();
    let mut reads = None;
    (stores.iter().filter(|s| s.2 != StoreMode::Set)).all(|&(buf, _, mode)| {
        let storage = b.storage_of(buf);
        let reads = reads.get_or_insert_with(|| b.loads_of(nest));
        let stored = stores.iter().filter(|s| b.storage_of(s.0) == storage);
        let mut read = reads.iter().filter(|r| r.0 == storage).peekable();
        if read.peek().is_none() && stored.clone().all(|s| s.2 == mode) {
            return true;
        }
        // Offsets into other views of the storage may count in other units.
        let all = (0..b.buffers.len()).map(KBufId::from_index);
        // A store through another view may hit the same element at another offset.
        let views = all.filter(|v| b.storage_of(*v) == storage).count();
        let places = stored.map(|s| s.1).chain(read.map(|r| r.1));
        let all: Vec<_> = places.map(|at| (buf, at, mode)).collect();
        views == 1 && distinguished(b.tables.exprs, &all, buf).contains(&axis)
    })
}

/// Returns true if units of a grid may combine with the same element: then one thread has to do all of them.
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
    all.iter().any(|(buf, _, mode)| {
        *mode != StoreMode::Set && !axes.is_empty() && {
            let told = distinguished(exprs, &all, *buf);
            !axes.iter().all(|a| told.contains(&a.sym)) || read(*buf)
        }
    })
}

/// Collects all stores in these items.
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

/// An index in an offset: what it is multiplied by, where it starts, how many steps it makes.
#[derive(PartialEq, Eq)]
struct Digit {
    factor: i64,
    first: i64,
    steps: i128,
}

/// Returns the indices that the offsets of all stores into a buffer distinguish. Several stores have to count in the same
/// digits: then offsets that are equal are so digit by digit, and an index that is the same digit of all of them is distinguished.
fn distinguished(exprs: &Exprs, all: &[(KBufId, Expr, StoreMode)], buf: KBufId) -> Vec<Sym> {
    let mut stores = all.iter().filter(|s| s.0 == buf);
    let Some((_, first, mode)) = stores.next() else {
        return Vec::new();
    };
    let Some((digits, syms, rest)) = digits_of(exprs, *first) else {
        return Vec::new();
    };
    let mut told: Vec<Option<Sym>> = syms.into_iter().map(Some).collect();
    for (_, offset, other) in stores {
        match digits_of(exprs, *offset) {
            Some((d, syms, r)) if d == digits && r == rest && other == mode => {
                for (told, s) in told.iter_mut().zip(syms) {
                    *told = told.filter(|t| *t == s);
                }
            }
            _ => return Vec::new(),
        }
    }
    told.into_iter().flatten().collect()
}

/// Splits an offset into a sum of multiples of indices, each larger than the smaller ones reach together, as digits of a number
/// are. Returns the digits, smallest first, their indices, and what else is added.
fn digits_of(exprs: &Exprs, offset: Expr) -> Option<(Vec<Digit>, Vec<Sym>, Expr)> {
    let mut syms = exprs.free_syms(offset);
    syms.retain(|s| exprs.is_index(*s));
    let (factors, rest) = exprs.affine(offset, &syms)?;
    let mut digits: Vec<(Digit, Sym)> = Vec::new();
    for (f, s) in factors.iter().zip(&syms) {
        let range = exprs.range(exprs.sym_expr(*s));
        let digit = Digit {
            factor: exprs.as_int(*f)?,
            first: range.lo,
            steps: i128::from(range.hi) - i128::from(range.lo),
        };
        digits.push((digit, *s));
    }
    // From the smallest factor on, each has to exceed what the digits below reach together.
    digits.sort_unstable_by_key(|(d, s)| (d.factor.unsigned_abs(), *s));
    let mut reach = 0i128;
    for (d, _) in &digits {
        let factor = i128::from(d.factor.unsigned_abs());
        if factor <= reach || factor == 0 {
            return None;
        }
        reach = reach.saturating_add(factor.saturating_mul(d.steps));
    }
    let (digits, syms) = digits.into_iter().unzip();
    Some((digits, syms, rest))
}

#[cfg(test)]
mod tests {
    use super::units_meet;

    /// Returns true if units meet where 8 rows are shared out and a store arrives at `offset`.
    fn meet(store: &str, offset: &str) -> bool {
        meet_of(&format!("store.{store} b2[{offset}], v2"))
    }

    /// The same of several stores.
    fn meet_of(stores: &str) -> bool {
        let text = format!(
            "kernel k {{\n  index [i0: 8, i1: 4, j0: 16]\n  sizes []\n  units 8 cost 4\n  b0 = i64 b0 in\n  \
             b1 = f32 b1 in\n  b2 = f32 b2 inout\n  check index \"index\"\n  grid i0 < 8 {{\n    for i1 < 4 {{\n      \
             i64 v0 = load b0[4*i0 + i1]\n      i64 v1 = indirect v0 as j0 < 16 check 0\n      \
             f32 v2 = load b1[4*i0 + i1]\n      {stores}\n    }}\n  }}\n}}\n"
        );
        let (exprs, kernels) = crate::text::parse(&text).expect("a kernel");
        crate::verify(&exprs, &kernels[0]).expect("a kernel by the rules");
        units_meet(&exprs, &kernels[0])
    }

    #[test]
    fn rows_meet_where_their_places_overlap() {
        assert!(!meet("add", "16*i0 + j0"), "a row of its own");
        assert!(!meet("max", "16*i0 + j0"), "whatever it combines by");
        assert!(
            meet("add", "15*i0 + j0"),
            "the last place is the next row's first"
        );
        assert!(meet("add", "j0"), "all rows in one");
        assert!(meet("mul", "8*j0 + i1"), "rows do not count");
        assert!(!meet("add", "8*j0 + i0"), "a column of its own");
        assert!(!meet("set", "j0"), "nothing is combined");
    }

    #[test]
    fn several_stores_count_in_the_same_digits() {
        let two = |a: &str, b: &str| meet_of(&format!("{a}, v2\n      {b}, v2"));
        assert!(!two("store.add b2[16*i0 + j0]", "store.add b2[16*i0 + j0]"));
        assert!(two("store.add b2[16*i0 + j0]", "store.add b2[17*i0 + j0]"));
        assert!(
            two("store.add b2[16*i0 + j0]", "store.add b2[16*i0 + j0 + 1]"),
            "the next row"
        );
        assert!(two("store.add b2[16*i0 + j0]", "store.max b2[16*i0 + j0]"));
        assert!(two("store.add b2[8*j0 + i0]", "store.add b2[16*i0 + j0]"));
        assert!(
            two("store.add b2[16*i0 + j0]", "store.add b2[16*i1 + j0]"),
            "another row"
        );
    }
}
