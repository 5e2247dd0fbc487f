//! Windows that slide along a row of pixels, a pixel for each lane: taps that are written out, their sums apart, several rows side by
//! side.

use crate::cascade::TURNS;
use crate::function::{Emitter, Lane};
use crate::helpers::Name;
use crate::types;
use crate::values::Var;
use inrush_base::tally::{Way, reached};
use inrush_base::{DType, Result, digits};
use inrush_expr::{Expr, Exprs, Sym};
use inrush_kernel::{
    AccId, Access, BufRole, Def, Item, KBufId, Kernel, Loop, Range, Role, ValId, access,
    side_by_side,
};
use inrush_loops::{ReduceOp, ScalarOp};

/// Turns up to which an innermost loop over the taps of a window is written out, and items that its body may have then: what is
/// known of each tap's place in its row becomes a constant.
const TAPS: i64 = 11;
/// Taps from which on sums are added up apart.
pub(crate) const FEW: i64 = 6;
const TAP_ITEMS: usize = 16;
/// Items up to which a loop of few turns is written out: the steps of a search, written out for each of four rows, took the C
/// compiler four times as long and saved four jumps in hundreds of operations.
const WRITTEN: i64 = 256;
/// Rows side by side where their number tells no better one: each has a sum of its own and part of one, and what they share is
/// loaded once.
const ROWS: i64 = 4;

/// Whether this loop inside of lanes is written out: it goes over a few points of a window, or over more taps, none with a loop of
/// its own, each of which has every lane at another place in its row.
pub(crate) fn written_out(exprs: &Exprs, kernel: &Kernel, l: &Loop, lane: Sym) -> Option<i64> {
    let Range::Full(extent) = l.range else {
        return None;
    };
    let n = exprs.as_int(extent)?;
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
    (matches!(n, 2..FEW) && n * items(&l.body) <= WRITTEN || matches!(n, FEW..=TAPS) && short())
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

/// Whether all that this loop, which is written out, adds to are sums that it may add up apart.
pub(crate) fn sums_apart(kernel: &Kernel, l: &Loop, inside: impl Fn(AccId) -> bool) -> bool {
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

/// Rows beside each other.
pub(crate) struct Beside {
    lanes: Loop,
    /// The loop over the taps of a column, if that is the innermost one, and the one over rows.
    down: Option<(Sym, Sym)>,
}

impl Emitter<'_> {
    /// Sums to which a loop that is written out adds start anew in front of it: the chains of two turns of the loops around it do
    /// not wait for each other.
    pub(crate) fn start_apart(&mut self, l: &Loop) {
        if !sums_apart(self.kernel, l, |a| self.started[a.index()].is_some()) {
            return;
        }
        for item in &l.body {
            if let Item::Update { acc, .. } = item
                && !self.apart.contains(acc)
            {
                self.apart.push(*acc);
            }
        }
        for acc in self.apart.clone() {
            let elem = types::scalar(self.kernel.accs[acc.index()].dtype);
            let ty = self.helpers.vector(elem, self.width());
            let bc = self.helpers.broadcast(elem, self.width());
            for copy in 0..self.all_copies() {
                let name = self.helpers.variable('p', acc.0, Some(copy));
                self.line([&*ty, " ", &name, " = ", &bc, "(0);"]);
            }
        }
    }

    /// Behind the loop: adds what [`start_apart`](Self::start_apart) began.
    pub(crate) fn join_apart(&mut self) {
        for a in std::mem::take(&mut self.apart) {
            for copy in 0..self.all_copies() {
                let sum = self.helpers.variable('a', a.0, Some(copy));
                let part = self.helpers.variable('p', a.0, Some(copy));
                self.line([&*sum, " = (", &part, " + ", &sum, ");"]);
            }
        }
    }

    /// The lanes loop inside of a loop over rows, as it is to be written with several rows beside each other: where lanes are pixels
    /// under a window and rows differ in nothing but the places of their pixels. If rows share nothing, only where a row has so few
    /// pixels that there is a single vector to wait for.
    pub(crate) fn rows_beside(&self, rows: &Loop) -> Option<Beside> {
        let [Item::Loop(lanes)] = rows.body.as_slice() else {
            return None;
        };
        let (Role::Serial, Role::Lanes { width, .. }) = (rows.role, lanes.role) else {
            return None;
        };
        let Range::Full(_) = rows.range else {
            return None;
        };
        let slides = |i: &Item| matches!(i, Item::Loop(l) if l.role == Role::Serial);
        let fits = self.lane.is_none() && lanes.body.iter().any(slides);
        if !fits {
            return None;
        }
        let one = Role::Lanes { width, unroll: 1 };
        let places = (rows.sym, lanes.sym);
        if let Some(tap) = self.slides_along(lanes, rows.sym)
            && self.differ_in_places(&lanes.body, places, true)
        {
            let mut lanes = Loop::clone(lanes);
            lanes.role = one;
            let down = Some((tap, rows.sym));
            return Some(Beside { lanes, down });
        }
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
            return Some(Beside { lanes, down });
        }
        let lanes = Loop::clone(lanes);
        (self.cut(&lanes).unroll == 1).then_some(Beside { lanes, down: None })
    }

    /// Whether all that depends on the row are offsets of what lies along the lanes and, with `tests`, indices that are the same for
    /// all lanes.
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

    /// The innermost of the loops inside of the lanes, each in the one before, if it goes over taps that slide along `row`: lanes are
    /// channels then, and what one pixel of the row reads for a tap another one reads for another tap.
    fn slides_along(&self, lanes: &Loop, row: Sym) -> Option<Sym> {
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
                    let times = |a: i64, b: i64| (a.checked_rem(b) == Some(0)).then(|| a / b);
                    times(r, t).is_some_and(|k| k < n) || times(t, r).is_some_and(|k| k < TAPS)
                }
                _ => false,
            }
        });
        again.then_some(taps.sym)
    }

    /// How many of a loop's items come before one that is all there is left to do, if the pixels of a row are side by side.
    pub(crate) fn guarded(&self, body: &[Item]) -> usize {
        let several = self.lane.as_ref().is_some_and(|l| l.rows.is_some());
        match body.split_last() {
            Some((Item::Loop(_), first)) if several => first.len(),
            _ => body.len(),
        }
    }

    /// In front of a loop over taps: goes on with the next row of the window where this one is not in the image, since all that the
    /// loop would add are zeros then.
    pub(crate) fn guard(&mut self, rest: &[Item], before: &[Item]) -> Result<()> {
        let [Item::Loop(taps)] = rest else {
            return Ok(());
        };
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

    /// Whether these items add nothing but zeros unless the condition holds.
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

    /// Whether a value is zero unless the condition holds: what is loaded, and its products. Eager leaves out what lies outside of
    /// the image, whatever the filter's elements are.
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

    /// Whether a mask holds only where the condition does.
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

    /// The lanes loop with the taps of a column innermost: what one row reads for a tap the row above it reads for the next one, and
    /// once they are written out the compiler sees that these are one load.
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
        let others = taps(along)?;
        let again = along.body.iter().any(|i| {
            let Item::Let(v) = i else { return false };
            let Def::Load { offset, .. } = self.kernel.value(*v).def else {
                return false;
            };
            let step = |s| (self.exprs.coefficient(offset, s)).and_then(|c| self.exprs.as_int(c));
            matches!((step(row), step(down.sym)), (Some(r), Some(t)) if t != 0 && r != 0 && r % t == 0)
        });
        let long_enough = n >= FEW || n * others <= TURNS;
        if !again || n > TAPS || !long_enough || along.role != Role::Serial {
            return None;
        }
        std::mem::swap(&mut down.sym, &mut along.sym);
        std::mem::swap(&mut down.range, &mut along.range);
        let sym = along.sym;
        Some((out, sym))
    }

    /// In front of the loop over the taps of a column: where the first row's first tap finds its pixels. Distances from there are
    /// constants.
    pub(crate) fn start_column(&mut self, l: &Loop) -> Result<()> {
        let Some((tap, row)) = self.down.filter(|d| d.0 == l.sym) else {
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
            let name = self.helpers.variable('q', v.0, None);
            let first = self
                .exprs
                .add(rest, self.exprs.mul(steps[1], self.exprs.sym_expr(row)));
            let elem = types::memory(self.kernel.buffer(buf).dtype);
            let copies = self
                .lane
                .as_mut()
                .map(|l| std::mem::replace(&mut l.copies, 1));
            let at = self.expr(first, false);
            if let (Some(lane), Some(copies)) = (&mut self.lane, copies) {
                lane.copies = copies;
            }
            let (buf, at) = (self.buffer_name(buf), at?);
            self.line([
                "const ", elem, " *const ", &name, " = ", &buf, " + ", &at, ";",
            ]);
            self.columns.insert(*v, (name, by_tap, by_row));
        }
        Ok(())
    }

    /// The place of a load that lies along the lanes, as a pointer and what to add to it.
    pub(crate) fn place(&mut self, v: ValId, buf: KBufId, offset: Expr) -> Result<(Name, String)> {
        if let (Some((name, by_tap, by_row)), Some((tap, _))) = (self.columns.get(&v), self.down)
            && let Some((tap, _)) = self.names.get(&tap)
        {
            let ahead = by_row * i64::from(self.copy());
            return Ok((name.clone(), format!("({by_tap}*{tap}+{ahead})")));
        }
        Ok((self.buffer_name(buf), self.expr(offset, false)?))
    }

    /// A loop over rows, some of them side by side and then what is left.
    pub(crate) fn rows(&mut self, rows: &Loop, beside: Beside, name: &Name) -> Result<()> {
        let Range::Full(extent) = rows.range else {
            return Ok(());
        };
        let count = crate::text::parens(self.expr(extent, false)?);
        let known = self.exprs.as_int(extent);
        let Beside { lanes, down } = beside;
        self.down = down;
        self.names.insert(rows.sym, (name.clone(), false));
        self.open("");
        self.line(["i64 ", name, " = 0;"]);
        // Few enough for the registers, and none left over if that can be.
        let fitting = side_by_side(self.caps.isa);
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
            self.rows = Some((rows.sym, beside as u32));
            self.loop_item(&lanes)?;
            self.rows = None;
            self.columns.clear();
            self.close();
        }
        // A single row fills no group: it is left for this loop, although one divides any extent.
        if beside == 1 || known.is_none_or(|n| n % beside != 0) {
            self.open(["for (; ", name, " < ", &count, "; ", name, "++)"]);
            self.loop_item(&lanes)?;
            self.columns.clear();
            self.close();
        }
        self.down = None;
        self.close();
        Ok(())
    }
}

impl Lane {
    /// Whether a symbol differs from copy to copy.
    pub(crate) fn copied(&self, s: Sym) -> bool {
        self.copies > 1 && s == self.rows.unwrap_or(self.sym)
    }
}
