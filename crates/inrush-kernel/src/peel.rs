//! Loop peeling: cuts a loop over output positions where windows leave the image. Inside nothing is tested, and masked loads
//! become plain ones; the parts at the edges keep the tests.
//!
//! A window of 3 with padding 1 over a row of 64:
//!
//! ```text
//! before                                     after
//! for x in 0..64                             for x in 0..1     acc += in[x - 1 + k] if x - 1 + k >= 0
//!   for k in 0..3                            for x in 0..62    acc += in[x + k]                             no mask
//!     acc += in[x - 1 + k]                   for x in 0..1     acc += in[x + 62 + k] if x + 62 + k < 64
//!            if 0 <= x - 1 + k < 64
//! ```
//!
//! [`peel`] does so for innermost loops, at whole vectors where lanes run over `x`. [`peel_row`] does so for a row of jammed
//! pixels, and gives the inner part a length that a jam factor divides.

use crate::fold::{Folded, fold};
use crate::{AccId, Def, Item, Kernel, Loop, Range, Role, ValId, Value};
use inrush_base::Scalar;
use inrush_base::tally::{Way, reached};
use inrush_expr::{Expr, Exprs, Position, Sym, SymMap};
use inrush_loops::ScalarOp;
use rustc_hash::{FxHashMap, FxHashSet};

/// Points of the shortest loop that is worth being cut.
const LEAST_POINTS: i64 = 16;

/// Peels the innermost loops for which it pays.
pub(crate) fn peel(exprs: &Exprs, kernel: &mut Kernel) {
    let mut body = std::mem::take(&mut kernel.body);
    items(exprs, kernel, &mut body);
    kernel.body = body;
}

/// Peels the loop over the pixels of a row that are jammed by one of the factors `fitting`. The peeled parts are as long as one
/// jam, so that the C compiler writes them out and knows what each pixel reads.
pub(crate) fn peel_row(exprs: &Exprs, kernel: &mut Kernel, row: Sym, fitting: &[i64]) {
    let mut body = std::mem::take(&mut kernel.body);
    pixels(exprs, kernel, &mut body, row, fitting);
    kernel.body = body;
}

/// Finds the loop over the row, and peels it.
fn pixels(exprs: &Exprs, kernel: &mut Kernel, list: &mut Vec<Item>, row: Sym, fitting: &[i64]) {
    for at in 0..list.len() {
        let Item::Loop(l) = &mut list[at] else {
            continue;
        };
        if l.sym != row {
            pixels(exprs, kernel, &mut l.body, row, fitting);
            continue;
        }
        let Some((position, extent, bounds)) = ends(exprs, kernel, l, fitting) else {
            return;
        };
        reached(Way::RowEdges);
        let parts = parts(exprs, kernel, l, position, extent, bounds);
        list.splice(at..at + 1, parts);
        return;
    }
}

/// Returns the position of a row's index, its extent, and the bounds of pixels whose windows stay in the image, or of some of them.
fn ends(
    exprs: &Exprs,
    kernel: &Kernel,
    l: &Loop,
    fitting: &[i64],
) -> Option<(Position, i64, (i64, i64))> {
    let (position, extent) = counted(exprs, l)?;
    let mut found = Found::default();
    if !found.items(exprs, kernel, l.sym, &l.body, true) || !found.masked {
        return None;
    }
    let most = fitting.iter().copied().max()?;
    let (lo, hi) = found
        .tests
        .iter()
        .fold((0, extent), |(lo, hi), t| (lo.max(t.0), hi.min(t.1)));
    if (lo, hi) == (0, extent) || extent <= most {
        return None;
    }
    // Some jam factor leaves no pixel over.
    let even = |n: i64| n == 0 || fitting.iter().any(|f| n % f == 0);
    // As few parts as there may be, and none left over.
    let (before, behind) = (lo.min(extent), extent.saturating_sub(hi).max(0));
    let choices = || (before..=most.max(before)).rev();
    let rest = |from: i64| {
        (behind..=most.max(behind))
            .rev()
            .map(move |end| (from, extent - end))
    };
    let cut = choices()
        .flat_map(rest)
        .find(|(from, to)| from <= to && even(to - from))
        .or_else(|| (before < extent - behind).then_some((before, extent - behind)))?;
    Some((position, extent, cut))
}

/// Builds loops over the points before, between and after two bounds.
fn parts(
    exprs: &Exprs,
    kernel: &mut Kernel,
    l: &Loop,
    position: Position,
    extent: i64,
    (lo, hi): (i64, i64),
) -> Vec<Item> {
    let bounds = [(0, lo), (lo, hi), (hi, extent)];
    (bounds.into_iter())
        .filter(|(from, to)| from < to)
        .map(|(from, to)| {
            // Each part counts from zero, as the loop did, by an index symbol of its own extent.
            let index = exprs.sym_at(position, exprs.int(to - from));
            let place = exprs.add(exprs.sym_expr(index), exprs.int(from));
            let mut copy = Copy {
                exprs,
                map: SymMap::from_iter([(l.sym, place)]),
                values: FxHashMap::default(),
                accs: FxHashMap::default(),
            };
            let mut body = copy.items(kernel, &l.body);
            // Tests that became constants leave their operands without a use.
            prune(kernel, &mut body);
            Item::Loop(Box::new(Loop {
                sym: index,
                range: Range::Full(exprs.int(to - from)),
                role: l.role,
                body,
            }))
        })
        .collect()
}

/// Returns position and number of a loop's points, if these are known.
fn counted(exprs: &Exprs, l: &Loop) -> Option<(Position, i64)> {
    let Range::Full(extent) = l.range else {
        return None;
    };
    let (position, _) = exprs.index_of(l.sym)?;
    Some((position, exprs.as_int(extent)?))
}

/// Peels the loops of a list. Returns true if any was peeled.
fn items(exprs: &Exprs, kernel: &mut Kernel, list: &mut Vec<Item>) -> bool {
    let mut any = false;
    let mut at = 0;
    while at < list.len() {
        let Item::Loop(l) = &mut list[at] else {
            at += 1;
            continue;
        };
        if items(exprs, kernel, &mut l.body) {
            any = true;
            at += 1;
            continue;
        }
        let Some((position, extent, lo, hi)) = inside(exprs, kernel, l) else {
            at += 1;
            continue;
        };
        reached(Way::Edges);
        let parts = parts(exprs, kernel, l, position, extent, (lo, hi));
        let count = parts.len();
        list.splice(at..at + 1, parts);
        at += count;
        any = true;
    }
    any
}

/// Returns position of a loop's index, extent, and the bounds between which all tests hold that hold for most points.
fn inside(exprs: &Exprs, kernel: &Kernel, l: &Loop) -> Option<(Position, i64, i64, i64)> {
    let (position, extent) = counted(exprs, l).filter(|(_, n)| *n >= LEAST_POINTS)?;
    let mut found = Found::default();
    if !found.items(exprs, kernel, l.sym, &l.body, false) || !found.masked {
        return None;
    }
    let (mut lo, mut hi) = (0, extent);
    for (first, end) in found.tests {
        let (first, end) = (first.max(0), end.min(extent));
        // Tests that hold for less than half of the points say nothing about windows at an edge.
        if 2 * (end - first) >= extent {
            (lo, hi) = (lo.max(first), hi.min(end));
        }
    }
    if let Role::Vector { width, .. } = l.role {
        // Whole vectors on either side of a cut.
        let w = i64::from(width);
        lo = (lo + w - 1) / w * w;
        if hi < extent {
            hi = hi / w * w;
        }
    }
    if 2 * (hi - lo) < extent || (lo, hi) == (0, extent) {
        return None;
    }
    Some((position, extent, lo, hi))
}

/// The items of a loop, as far as peeling depends on them.
#[derive(Default)]
struct Found {
    masked: bool,
    accs: FxHashSet<AccId>,
    /// For each test the first point where it holds, and the first where it does not any more.
    tests: Vec<(i64, i64)>,
}

impl Found {
    /// Looks at items. Returns true if all of them may be copied: no accumulator outlives the loop, and no symbol is defined. With
    /// `blocks` lanes may be those of a unit's block.
    fn items(
        &mut self,
        exprs: &Exprs,
        kernel: &Kernel,
        sym: Sym,
        list: &[Item],
        blocks: bool,
    ) -> bool {
        list.iter().all(|item| match item {
            Item::Loop(l) => {
                let block = blocks && matches!(l.range, Range::Block { .. });
                (block || matches!(l.range, Range::Full(_)))
                    && self.items(exprs, kernel, sym, &l.body, blocks)
            }
            Item::Acc(a) => {
                self.accs.insert(*a);
                true
            }
            // An accumulator from outside of the loop would be fed by several copies of it.
            Item::Update { acc, .. } => self.accs.contains(acc),
            Item::Store { .. } => true,
            Item::Let(v) => match &kernel.value(*v).def {
                Def::Load { mask, .. } => {
                    self.masked |= mask.is_some();
                    true
                }
                Def::Op { op, args } => {
                    let of = |k: usize| integer(exprs, kernel.value(args[k]));
                    if let ScalarOp::Ge | ScalarOp::Lt = op
                        && let (Some(e), Some(bound)) = (of(0), of(1))
                    {
                        let places = exprs.sub(e, bound);
                        self.tests.extend(holds(exprs, places, sym, *op));
                    }
                    true
                }
                Def::Final(a) => self.accs.contains(a),
                Def::Running { .. } | Def::Sorted { .. } | Def::Indirect { .. } | Def::Sum(_) => {
                    false
                }
                Def::Const(_) | Def::Index(_) | Def::Cast { .. } | Def::Bitcast { .. } => true,
            },
        })
    }
}

/// Returns the integer expression that a value is.
fn integer(exprs: &Exprs, v: &Value) -> Option<Expr> {
    match &v.def {
        Def::Index(e) => Some(*e),
        Def::Const(Scalar::Int(n)) => Some(exprs.int(*n)),
        _ => None,
    }
}

/// Returns the points where `e >= 0`, or `e < 0`, whatever the indices other than `sym` are.
fn holds(exprs: &Exprs, e: Expr, sym: Sym, op: ScalarOp) -> Option<(i64, i64)> {
    let (step, rest) = exprs.affine(e, &[sym])?;
    let step = exprs.as_int(step[0]).filter(|c| *c != 0)?;
    let range = exprs.range(rest);
    // `step * i + rest` has to be at least 0, with the least rest; turned round for the other test.
    let (step, rest) = match op {
        ScalarOp::Ge => (step, range.lo),
        _ => (step.checked_neg()?, range.hi.checked_neg()?.checked_sub(1)?),
    };
    if !(-i64::from(i32::MAX)..=i64::from(i32::MAX)).contains(&rest) {
        return None;
    }
    // Rising: `i >= ceil(-rest / size)`. Falling: `i <= floor(rest / size)`.
    let size = step.checked_abs()?;
    Some(match step > 0 {
        true => (
            rest.checked_neg()?.checked_add(size - 1)?.div_euclid(size),
            i64::MAX,
        ),
        false => (i64::MIN, rest.div_euclid(size) + 1),
    })
}

/// A copy of a loop's items for some of its points.
struct Copy<'a> {
    exprs: &'a Exprs,
    map: SymMap,
    values: FxHashMap<ValId, ValId>,
    accs: FxHashMap<AccId, AccId>,
}

impl Copy<'_> {
    /// Returns the copy of a value.
    fn value(&self, v: ValId) -> ValId {
        self.values.get(&v).copied().unwrap_or(v)
    }

    /// Returns the copy of an accumulator.
    fn acc(&self, a: AccId) -> AccId {
        self.accs.get(&a).copied().unwrap_or(a)
    }

    /// Replaces the loop's index.
    fn expr(&self, e: Expr) -> Expr {
        self.exprs.subst(e, &self.map)
    }

    /// Returns the mask in the copy: `None` for one that always holds, `Err(())` for one that never does.
    fn mask(&self, kernel: &Kernel, mask: Option<ValId>) -> Result<Option<ValId>, ()> {
        let mask = mask.map(|m| self.value(m));
        match mask.map(|m| &kernel.value(m).def) {
            Some(Def::Const(c)) if c.as_bool() => Ok(None),
            Some(Def::Const(_)) => Err(()),
            _ => Ok(mask),
        }
    }

    fn items(&mut self, kernel: &mut Kernel, list: &[Item]) -> Vec<Item> {
        let mut out = Vec::with_capacity(list.len());
        for item in list {
            match item {
                Item::Let(v) => {
                    if let Some(new) = self.define(kernel, *v) {
                        out.push(Item::Let(new));
                    }
                }
                Item::Acc(a) => {
                    let mut acc = kernel.accs[a.index()].clone();
                    acc.index = acc.index.map(|e| self.expr(e));
                    kernel.accs.push(acc);
                    let new = AccId::from_index(kernel.accs.len() - 1);
                    self.accs.insert(*a, new);
                    out.push(Item::Acc(new));
                }
                Item::Update { acc, value } => out.push(Item::Update {
                    acc: self.acc(*acc),
                    value: self.value(*value),
                }),
                Item::Store {
                    buf,
                    offset,
                    value,
                    mode,
                    mask,
                } => {
                    if let Ok(mask) = self.mask(kernel, *mask) {
                        out.push(Item::Store {
                            buf: *buf,
                            offset: self.expr(*offset),
                            value: self.value(*value),
                            mode: *mode,
                            mask,
                        });
                    }
                }
                Item::Loop(l) => {
                    let body = self.items(kernel, &l.body);
                    out.push(Item::Loop(Box::new(Loop { body, ..**l })));
                }
            }
        }
        out
    }

    /// Defines the value of these points. Returns `None` where there is one already.
    fn define(&mut self, kernel: &mut Kernel, v: ValId) -> Option<ValId> {
        let mut value = kernel.value(v).clone();
        match &mut value.def {
            Def::Index(e) => *e = self.expr(*e),
            Def::Load {
                offset, mask, fill, ..
            } => match self.mask(kernel, *mask) {
                Ok(m) => {
                    *offset = self.expr(*offset);
                    *mask = m;
                }
                Err(()) => value.def = Def::Const(fill.convert(value.dtype)),
            },
            Def::Op { args, .. } => args.iter_mut().for_each(|a| *a = self.value(*a)),
            Def::Cast { arg, .. } | Def::Bitcast { arg, .. } => *arg = self.value(*arg),
            Def::Final(a) => *a = self.acc(*a),
            Def::Const(_)
            | Def::Sum(_)
            | Def::Running { .. }
            | Def::Sorted { .. }
            | Def::Indirect { .. } => {}
        }
        let value = match fold(self.exprs, &kernel.values, &value) {
            Folded::Is(new) => {
                self.values.insert(v, new);
                return None;
            }
            Folded::To(value) => value,
            // A copy keeps to one value for each: the rules scaled it when it was built.
            Folded::Scaled(..) | Folded::No => value,
        };
        kernel.values.push(value);
        let new = ValId::from_index(kernel.values.len() - 1);
        self.values.insert(v, new);
        Some(new)
    }
}

/// Drops values that no item uses any more (dead code).
fn prune(kernel: &Kernel, list: &mut Vec<Item>) {
    fn walk(kernel: &Kernel, list: &mut Vec<Item>, used: &mut FxHashSet<ValId>) {
        let mut kept = Vec::with_capacity(list.len());
        for mut item in std::mem::take(list).into_iter().rev() {
            match &mut item {
                Item::Let(v) if !used.contains(v) => continue,
                Item::Let(v) => kernel.value(*v).def.each_operand(|u| _ = used.insert(u)),
                Item::Update { value, .. } => _ = used.insert(*value),
                Item::Store { value, mask, .. } => {
                    used.insert(*value);
                    used.extend(*mask);
                }
                Item::Loop(l) => walk(kernel, &mut l.body, used),
                Item::Acc(_) => {}
            }
            kept.push(item);
        }
        kept.reverse();
        *list = kept;
    }
    walk(kernel, list, &mut FxHashSet::default());
}
