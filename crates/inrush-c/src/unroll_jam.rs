//! Unroll-and-jam of stencils: convolution windows whose output pixels are vector lanes.
//!
//! A window's loop nest reads the same input pixel for several output rows, and each accumulator is one dependency chain of
//! additions. Three transformations, all on the text that is written:
//!
//! - *Full unrolling* of short tap loops ([`unroll_count`]), so that the offset of each tap is a constant.
//! - *Partial sums* ([`Emitter::start_partial_sums`]): an unrolled loop of [`FEW_TURNS`] taps or more adds to an accumulator of its
//!   own, so that the chains of consecutive outer turns overlap.
//! - *Unroll-and-jam* of the row loop ([`Emitter::jam_rows`]): `B` output rows go through the vector loop together, each with an
//!   accumulator of its own. The tap loop of a column is *interchanged* innermost, because the pixel that row `y` reads for tap `t`
//!   is the one that row `y + 1` reads for tap `t - 1` (at stride 1): unrolled, the C compiler sees one load.
//!
//! ```text
//! for y                                  for y step B                     B from the registers of the target
//!   for x by vectors                       for x by vectors
//!     acc = 0                                acc[0..B] = 0
//!     for ty, tx              ->             for tx
//!       acc += in[y+ty, x+tx] * w              for ty (unrolled)          B + taps - 1 loads instead of B * taps
//!     out[y, x] = acc                            acc[b] += in[y+b+ty, x+tx] * w   for b in 0..B
//!                                            out[y+b, x] = acc[b]                 for b in 0..B
//! ```
//!
//! Rows may be jammed if they differ in nothing but the offsets of contiguous accesses ([`Emitter::differ_in_places`]): loop
//! ranges, masks and conditions are then shared. Rows that no group of `B` takes are written by a second, plain loop.

use crate::cascade::TURNS;
use crate::helpers::Name;
use crate::kernel::Emitter;
use crate::loops::{Lane, split_vector};
use crate::types;
use crate::values::Var;
use inrush_base::tally::{Way, reached};
use inrush_base::{DType, Result, digits};
use inrush_expr::{Expr, Exprs, Sym};
use inrush_kernel::{
    AccId, Access, BufRole, Def, Item, KBufId, Kernel, Loop, Range, Role, ValId, access,
    jam_factors,
};
use inrush_loops::{ReduceOp, ScalarOp};

/// Most taps of an innermost loop that is fully unrolled. The offset of each tap in its row becomes a constant.
const TAPS: i64 = 11;
/// Fewest taps of an unrolled loop that keeps partial sums.
pub(crate) const FEW_TURNS: i64 = 6;
/// Most items in the body of an unrolled tap loop.
const TAP_ITEMS: usize = 16;
/// Most items of a loop of few turns after unrolling: the steps of a search, written out for each of four rows, took the C
/// compiler four times as long and saved four jumps in hundreds of operations.
const WRITTEN: i64 = 256;
/// Jam factor if the number of rows suggests no better one. Each row takes an accumulator and a partial sum.
const ROWS: i64 = 4;

/// Returns the number of turns if this loop inside a vector loop is to be fully unrolled: it has few turns, or it is an innermost
/// loop over taps whose accesses move with both the lane and the tap.
pub(crate) fn unroll_count(exprs: &Exprs, kernel: &Kernel, l: &Loop, lane: Sym) -> Option<i64> {
    let Range::Full(extent) = l.range else {
        return None;
    };
    let n = exprs.as_int(extent)?;
    // An access at a window's element: pixel plus tap.
    let along = |v: ValId| {
        let (mut lanes, mut taps) = (false, false);
        if let Def::Index(at) | Def::Load { offset: at, .. } = kernel.value(v).def {
            exprs.each_sym(at, |s| {
                lanes |= s == lane;
                taps |= s == l.sym;
            });
        }
        lanes && taps
    };
    let short = || {
        l.body.len() <= TAP_ITEMS
            && !l.body.iter().any(|i| matches!(i, Item::Loop(_)))
            && l.body
                .iter()
                .any(|i| matches!(i, Item::Let(v) if along(*v)))
    };
    (matches!(n, 2..FEW_TURNS) && n * items(&l.body) <= WRITTEN
        || matches!(n, FEW_TURNS..=TAPS) && short())
    .then_some(n)
}

/// Returns how many items a body has, those of inner loops included.
fn items(body: &[Item]) -> i64 {
    let of = |i: &Item| match i {
        Item::Loop(l) => items(&l.body),
        _ => 1,
    };
    body.iter().map(of).sum()
}

/// Returns true if every accumulator of this unrolled loop is a float sum and may use independent partial sums.
pub(crate) fn can_split_sums(kernel: &Kernel, l: &Loop, inside: impl Fn(AccId) -> bool) -> bool {
    let mut any = false;
    let all = l.body.iter().all(|i| match i {
        Item::Update { acc, .. } => {
            any = true;
            let known = &kernel.accs[acc.index()];
            known.op == ReduceOp::Sum && known.dtype.is_float() && inside(*acc)
        }
        _ => true,
    });
    any && all
}

/// A row loop that is to be jammed.
pub(crate) struct JammedRows {
    /// The vector loop inside of it, tap loops interchanged.
    lanes: Loop,
    /// The loop over the taps of a column, if it is innermost, and the row loop.
    down: Option<(Sym, Sym)>,
}

impl Emitter<'_> {
    /// Starts partial sums ahead of an unrolled loop: the dependency chains of two turns of the loops around it become
    /// independent.
    pub(crate) fn start_partial_sums(&mut self, l: &Loop) {
        if !can_split_sums(self.kernel, l, |a| self.facts.started[a.index()].is_some()) {
            return;
        }
        for item in &l.body {
            if let Item::Update { acc, .. } = item
                && !self.state.partial_sums.contains(acc)
            {
                self.state.partial_sums.push(*acc);
            }
        }
        for acc in self.state.partial_sums.clone() {
            let elem = types::scalar(self.kernel.accs[acc.index()].dtype);
            let ty = self.helpers.vector(elem, self.width());
            let bc = self.helpers.broadcast(elem, self.width());
            for copy in 0..self.all_copies() {
                let name = self.helpers.variable('p', acc.0, Some(copy));
                self.line([&*ty, " ", &name, " = ", &bc, "(0);"]);
            }
        }
    }

    /// Adds the partial sums to their accumulators after the loop.
    pub(crate) fn add_partial_sums(&mut self) {
        for a in std::mem::take(&mut self.state.partial_sums) {
            for copy in 0..self.all_copies() {
                let sum = self.helpers.variable('a', a.0, Some(copy));
                let part = self.helpers.variable('p', a.0, Some(copy));
                self.line([&*sum, " = (", &part, " + ", &sum, ");"]);
            }
        }
    }

    /// Returns how to jam a row loop, if its body is a stencil vectorised over pixels and rows differ in offsets only. Rows that
    /// share no loads are jammed only if a row is a single vector, to overlap the chains of several rows.
    pub(crate) fn jam_rows(&self, rows: &Loop) -> Option<JammedRows> {
        let [Item::Loop(lanes)] = rows.body.as_slice() else {
            return None;
        };
        let (Role::Serial, Role::Vector { width, .. }) = (rows.role, lanes.role) else {
            return None;
        };
        let Range::Full(_) = rows.range else {
            return None;
        };
        let slides = |i: &Item| matches!(i, Item::Loop(l) if l.role == Role::Serial);
        let fits = self.state.lane.is_none() && lanes.body.iter().any(slides);
        if !fits {
            return None;
        }
        // Rows take the place of the copies of a vector loop.
        let one = Role::Vector { width, unroll: 1 };
        let places = (rows.sym, lanes.sym);
        // Channels in lanes: what is jammed are pixels of a row, which may test where they are in
        // the image.
        if let Some(tap) = self.slides_along(lanes, rows.sym)
            && self.differ_in_places(&lanes.body, places, true)
        {
            let mut lanes = Loop::clone(lanes);
            lanes.role = one;
            let down = Some((tap, rows.sym));
            return Some(JammedRows { lanes, down });
        }
        // Pixels in lanes: what is jammed are rows of the image.
        let Range::Full(pixels) = lanes.range else {
            return None;
        };
        self.exprs.as_int(pixels)?;
        if !self.differ_in_places(&lanes.body, places, false) {
            return None;
        }
        if let Some((mut lanes, tap)) = self.turned(lanes, rows.sym) {
            lanes.role = one;
            let down = Some((tap, rows.sym));
            return Some(JammedRows { lanes, down });
        }
        let lanes = Loop::clone(lanes);
        (split_vector(self.exprs, &lanes).unroll == 1).then_some(JammedRows { lanes, down: None })
    }

    /// Returns true if nothing depends on the row but offsets of contiguous accesses and, with `tests`, indices that are uniform
    /// over lanes.
    fn differ_in_places(&self, items: &[Item], (row, lane): (Sym, Sym), tests: bool) -> bool {
        let moves = |e| {
            let mut found = false;
            self.exprs.each_sym(e, |s| found |= s == row);
            found
        };
        let along = |e| access(self.exprs, e, lane, |_| false) == Access::Contiguous;
        items.iter().all(|item| match item {
            Item::Loop(l) => {
                l.role == Role::Serial
                    && matches!(l.range, Range::Full(e) if !moves(e))
                    && self.differ_in_places(&l.body, (row, lane), tests)
            }
            Item::Let(v) => match &self.kernel.value(*v).def {
                Def::Indirect { .. } | Def::Running { .. } => false,
                Def::Load { buf, offset, .. } => {
                    let local = matches!(self.kernel.buffer(*buf).role, BufRole::Local { .. });
                    !local && (!moves(*offset) || along(*offset))
                }
                Def::Index(e) if tests => !self.exprs.contains_sym(*e, lane) || !moves(*e),
                def => !def.expr().is_some_and(moves),
            },
            Item::Acc(a) => !self.kernel.accs[a.index()].op.is_arg(),
            Item::Update { .. } => true,
            Item::Store { buf, offset, .. } => {
                let local = matches!(self.kernel.buffer(*buf).role, BufRole::Local { .. });
                !local && moves(*offset) && along(*offset)
            }
        })
    }

    /// Returns the innermost loop of a perfect nest inside the vector loop, if its taps slide along `row`: lanes are channels, and
    /// the load of one pixel for a tap is that of another pixel for another tap.
    fn slides_along(&self, lanes: &Loop, row: Sym) -> Option<Sym> {
        // Goes down a nest that has one loop at each level.
        let mut taps: Option<&Loop> = None;
        let mut body = lanes.body.as_slice();
        loop {
            let mut loops = body.iter().filter_map(|i| match i {
                Item::Loop(l) => Some(l),
                _ => None,
            });
            match (loops.next(), loops.next()) {
                (Some(l), None) if l.role == Role::Serial => (taps, body) = (Some(&**l), &l.body),
                (None, _) => break,
                _ => return None,
            }
        }
        let taps = taps?;
        let Range::Full(extent) = taps.range else {
            return None;
        };
        let n = self.exprs.as_int(extent).filter(|n| *n <= TAPS)?;
        let again = taps.body.iter().any(|i| {
            let Item::Let(v) = i else { return false };
            let Def::Load { offset, .. } = self.kernel.value(*v).def else {
                return false;
            };
            let step = |s| (self.exprs.coefficient(offset, s)).and_then(|c| self.exprs.as_int(c));
            match (step(row), step(taps.sym)) {
                (Some(r), Some(t)) if r != 0 && t != 0 => {
                    // One stride is a multiple of the other: some tap of one pixel is a tap of its
                    // neighbour.
                    let times = |a: i64, b: i64| (a.checked_rem(b) == Some(0)).then(|| a / b);
                    times(r, t).is_some_and(|k| k < n) || times(t, r).is_some_and(|k| k < TAPS)
                }
                _ => false,
            }
        });
        again.then_some(taps.sym)
    }

    /// Returns how many items precede a loop that ends the body, if rows are jammed: [`guard`](Self::guard) may skip that loop.
    pub(crate) fn guarded(&self, body: &[Item]) -> usize {
        let several = self.state.lane.as_ref().is_some_and(|l| l.rows.is_some());
        match body.split_last() {
            Some((Item::Loop(_), first)) if several => first.len(),
            _ => body.len(),
        }
    }

    /// Skips the tap loop if its row of the window is outside of the image, because it would add zeros only.
    pub(crate) fn guard(&mut self, rest: &[Item], before: &[Item]) -> Result<()> {
        let [Item::Loop(taps)] = rest else {
            return Ok(());
        };
        // The nearest condition first: the loads of the tap loop are masked by it.
        let condition = before.iter().rev().find_map(|i| match i {
            Item::Let(v) if self.kernel.value(*v).dtype == DType::Bool => {
                let alike = matches!(self.vars[v.index()], Some(Var::Uniform(_)));
                (alike && self.adds_nothing(&taps.body, *v)).then_some(*v)
            }
            _ => None,
        });
        if let Some(v) = condition {
            let (name, _) = self.var(v)?;
            self.line(["if (!", &name, ") continue;"]);
        }
        Ok(())
    }

    /// Returns true if these items add nothing but zeros unless the condition holds.
    fn adds_nothing(&self, items: &[Item], unless: ValId) -> bool {
        let mut any = false;
        let all = items.iter().all(|i| match i {
            Item::Let(v) => !matches!(
                self.kernel.value(*v).def,
                Def::Indirect { .. } | Def::Running { .. }
            ),
            Item::Update { acc, value } => {
                any = true;
                self.kernel.accs[acc.index()].op == ReduceOp::Sum && self.vanishes(*value, unless)
            }
            _ => false,
        });
        any && all
    }

    /// Returns true if a value is zero unless the condition holds: a masked load, or a product with one. Eager skips pixels outside
    /// of the image, even where the filter is infinite or NaN.
    fn vanishes(&self, v: ValId, unless: ValId) -> bool {
        match &self.kernel.value(v).def {
            Def::Load {
                mask: Some(m),
                fill,
                ..
            } => fill.as_f64() == 0.0 && self.needs(*m, unless),
            Def::Op {
                op: ScalarOp::Mul,
                args,
            } => args.iter().any(|a| self.vanishes(*a, unless)),
            Def::Cast { arg, .. } => self.vanishes(*arg, unless),
            _ => false,
        }
    }

    /// Returns true if a mask implies the condition.
    fn needs(&self, mask: ValId, condition: ValId) -> bool {
        mask == condition
            || match &self.kernel.value(mask).def {
                Def::Op {
                    op: ScalarOp::And,
                    args,
                } => args.iter().any(|a| self.needs(*a, condition)),
                _ => false,
            }
    }

    /// Interchanges the two tap loops so that the taps of a column are innermost. A row's load for a tap is the load of the row
    /// above for the next tap, and after unrolling the C compiler merges them.
    fn turned(&self, lanes: &Loop, row: Sym) -> Option<(Loop, Sym)> {
        let mut out = lanes.clone();
        let mut loops = out.body.iter_mut().filter_map(|i| match i {
            Item::Loop(l) => Some(l),
            _ => None,
        });
        let (Some(down), None) = (loops.next(), loops.next()) else {
            return None;
        };
        let taps = |l: &Loop| match l.range {
            Range::Full(e) => self.exprs.as_int(e),
            _ => None,
        };
        let n = taps(down)?;
        let [Item::Loop(along)] = down.body.as_mut_slice() else {
            return None;
        };
        // The same test as in `slides_along`, on the outer loop: at stride 1 a row is the next
        // row's tap.
        let others = taps(along)?;
        let again = along.body.iter().any(|i| {
            let Item::Let(v) = i else { return false };
            let Def::Load { offset, .. } = self.kernel.value(*v).def else {
                return false;
            };
            let step = |s| (self.exprs.coefficient(offset, s)).and_then(|c| self.exprs.as_int(c));
            matches!((step(row), step(down.sym)), (Some(r), Some(t)) if t != 0 && r != 0 && r % t == 0)
        });
        // A loop too short for partial sums may be innermost only if all taps fit one chain of the
        // cascade.
        let long_enough = n >= FEW_TURNS || n * others <= TURNS;
        if !again || n > TAPS || !long_enough || along.role != Role::Serial {
            return None;
        }
        // Both loops have constant extents that do not depend on each other, so that symbols and
        // ranges trade places.
        std::mem::swap(&mut down.sym, &mut along.sym);
        std::mem::swap(&mut down.range, &mut along.range);
        let sym = along.sym;
        Some((out, sym))
    }

    /// Declares, ahead of the loop over the taps of a column, a pointer to the first row's first tap. Other taps and rows are at
    /// constant distances from it.
    pub(crate) fn start_column(&mut self, l: &Loop) -> Result<()> {
        let Some((tap, row)) = self.state.tap_column.filter(|d| d.0 == l.sym) else {
            return Ok(());
        };
        for item in &l.body {
            let Item::Let(v) = item else { continue };
            let Def::Load { buf, offset, .. } = self.kernel.value(*v).def else {
                continue;
            };
            let Some((steps, rest)) = self.exprs.affine(offset, &[tap, row]) else {
                continue;
            };
            let int = |e| self.exprs.as_int(e);
            let (Some(by_tap), Some(by_row @ 1..)) = (int(steps[0]), int(steps[1])) else {
                continue;
            };
            // The pointer is written once for all rows: the first copy's, whose row is the loop's
            // own index.
            let name = self.helpers.variable('q', v.0, None);
            let first = self
                .exprs
                .add(rest, self.exprs.mul(steps[1], self.exprs.sym_expr(row)));
            let elem = types::memory(self.kernel.buffer(buf).dtype);
            let copies = self
                .state
                .lane
                .as_mut()
                .map(|l| std::mem::replace(&mut l.copies, 1));
            let at = self.expr(first, false);
            if let (Some(lane), Some(copies)) = (&mut self.state.lane, copies) {
                lane.copies = copies;
            }
            let (buf, at) = (self.buffer_name(buf), at?);
            self.line([
                "const ",
                elem.name(),
                " *const ",
                &name,
                " = ",
                &buf,
                " + ",
                &at,
                ";",
            ]);
            self.state.columns.insert(*v, (name, by_tap, by_row));
        }
        Ok(())
    }

    /// Returns a pointer and an offset for a load that is contiguous along the lanes.
    pub(crate) fn place(&mut self, v: ValId, buf: KBufId, offset: Expr) -> Result<(Name, String)> {
        if let (Some((name, by_tap, by_row)), Some((tap, _))) =
            (self.state.columns.get(&v), self.state.tap_column)
            && let Some((tap, _)) = self.names.get(&tap)
        {
            // A constant after unrolling: the C compiler finds equal addresses of different rows by
            // it.
            let ahead = by_row * i64::from(self.copy());
            return Ok((name.clone(), format!("({by_tap}*{tap}+{ahead})")));
        }
        Ok((self.buffer_name(buf), self.expr(offset, false)?))
    }

    /// Writes a jammed row loop: groups of rows, then the remaining rows one by one.
    pub(crate) fn jammed_rows(&mut self, rows: &Loop, jam: JammedRows, name: &Name) -> Result<()> {
        let Range::Full(extent) = rows.range else {
            return Ok(());
        };
        let count = crate::text::parens(self.expr(extent, false)?);
        let known = self.exprs.as_int(extent);
        let JammedRows { lanes, down } = jam;
        self.state.tap_column = down;
        self.names.insert(rows.sym, (name.clone(), false));
        self.open("");
        self.line(["i64 ", name, " = 0;"]);
        // Few enough for the registers, and none left over if that can be.
        let fitting = jam_factors(self.caps.isa);
        let beside = known.and_then(|n| fitting.iter().copied().find(|b| n % b == 0));
        let beside = beside.or(known.filter(|n| *n < ROWS)).unwrap_or(ROWS);
        if beside > 1 {
            reached(Way::Rows);
            let step = digits(beside as u64);
            if known == Some(beside) {
                self.open("")
            } else {
                self.open([
                    "for (; ", name, " + ", &step, " <= ", &count, "; ", name, " += ", &step, ")",
                ])
            }
            self.name_copies(name, beside as u32, 1);
            self.state.jam = Some((rows.sym, beside as u32));
            self.loop_item(&lanes)?;
            self.state.jam = None;
            self.state.columns.clear();
            self.close();
        }
        // A single row fills no group: it is left for this loop, although one divides any extent.
        if beside == 1 || known.is_none_or(|n| n % beside != 0) {
            self.open(["for (; ", name, " < ", &count, "; ", name, "++)"]);
            self.loop_item(&lanes)?;
            self.state.columns.clear();
            self.close();
        }
        self.state.tap_column = None;
        self.close();
        Ok(())
    }
}

impl Lane {
    /// Returns true if a symbol differs from copy to copy.
    pub(crate) fn copied(&self, s: Sym) -> bool {
        self.copies > 1 && s == self.rows.unwrap_or(self.sym)
    }
}
