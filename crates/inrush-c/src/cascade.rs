//! Two-level (cascaded) summation: long sums and products of `f32` run for [`TURNS`] terms in `f32`, then the partial result is
//! added to an `f64` and starts anew.
//!
//! A running sum of n terms loses up to log2(n) bits, and eager PyTorch, which sums in a cascade, almost none. Two conversions and
//! an addition in [`TURNS`] turns cost nothing that can be measured; adding everything in `f64` would halve a sum's speed. Products
//! do not pass the smallest numbers of `f32` on their way to zero, which the machine multiplies slowly.
//!
//! Running sums and products have to show every step, so that they stay in an `f64`, as eager's do: one step waits for the other
//! either way.
//!
//! ```text
//! f32 a = 0; f64 w = 0; i64 turns = 0;
//! for (..) {
//!   a = a + x;
//!   if (++turns == 32) { turns = 0; w = w + (f64)a; a = 0; }
//! }
//! result = (f32)(w + (f64)a);
//! ```
//!
//! An accumulator in several vectors has an `f64` vector for each. Accumulators that one loop body
//! feeds share the counter of the first of them. Chains of [`TURNS`] terms or fewer need none of
//! it.

use crate::helpers::Name;
use crate::kernel::Emitter;
use crate::text::joined;
use crate::types::CType;
use crate::unroll_jam::{FEW_TURNS, can_split_sums, unroll_count};
use inrush_base::{DType, Result};
use inrush_expr::{Exprs, Sym};
use inrush_kernel::{AccId, Def, Item, Kernel, Loop, Range, Role, ValId};
use inrush_loops::ReduceOp;

/// Terms of a chain that are added in `f32`.
pub(crate) const TURNS: i64 = 32;

/// Precision of each accumulator.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cascade {
    /// True if it has an `f64` into which its `f32` is flushed.
    long: Vec<bool>,
    /// True if it is kept in `f64` alone, because a scan shows every step.
    scans: Vec<bool>,
    /// True if it counts the turns of some loop.
    counts: Vec<bool>,
}

impl Cascade {
    /// Decides for each accumulator of a kernel. The maps stay empty if none is long, which most
    /// kernels' are.
    pub(crate) fn find(exprs: &Exprs, kernel: &Kernel) -> Self {
        let mut long: Vec<bool> = (kernel.accs.iter())
            .map(|a| matches!(a.op, ReduceOp::Sum | ReduceOp::Prod) && a.dtype == DType::F32)
            .collect();
        let mut scans = vec![false; long.len()];
        for v in &kernel.values {
            if let Def::Running { acc, value } = v.def {
                // A scan has no plain form: it is wide, or stays in `f32`.
                let wide = std::mem::take(&mut long[acc.index()]);
                // What halves show of it are their own few digits.
                let halves = match kernel.value(value).def {
                    Def::Load { buf, .. } => kernel.buffer(buf).dtype.size() == 2,
                    _ => false,
                };
                scans[acc.index()] = wide && !halves;
            }
        }
        if !long.contains(&true) && !scans.contains(&true) {
            return Self::default();
        }
        let mut walk = Walk {
            exprs,
            kernel,
            lanes: None,
            started: vec![None; long.len()],
            open: Vec::new(),
            turns: vec![0; long.len()],
        };
        walk.items(&kernel.head);
        walk.items(&kernel.body);
        for (long, turns) in long.iter_mut().zip(walk.turns) {
            *long &= turns > TURNS;
        }
        let mut found = Self {
            counts: vec![false; long.len()],
            long,
            scans,
        };
        found.find_counters(&kernel.head);
        found.find_counters(&kernel.body);
        found
    }

    /// Returns true if an `f32` is flushed into an `f64`.
    pub(crate) fn is_long(&self, a: AccId) -> bool {
        self.long.get(a.index()) == Some(&true)
    }

    /// Returns true if it is an `f64` alone.
    pub(crate) fn is_scan(&self, a: AccId) -> bool {
        self.scans.get(a.index()) == Some(&true)
    }

    /// Returns true if the counter of a loop has this accumulator's number.
    pub(crate) fn counts(&self, a: AccId) -> bool {
        self.counts.get(a.index()) == Some(&true)
    }

    /// The long sums and products that these items themselves feed, each once.
    fn fed_by(&self, items: &[Item]) -> Vec<AccId> {
        let mut fed = Vec::new();
        for item in items {
            if let Item::Update { acc, .. } = item
                && self.is_long(*acc)
                && !fed.contains(acc)
            {
                fed.push(*acc);
            }
        }
        fed
    }

    /// Gives each loop that feeds long accumulators directly a counter: that of the first of them.
    fn find_counters(&mut self, items: &[Item]) {
        for item in items {
            if let Item::Loop(l) = item {
                if let Some(first) = self.fed_by(&l.body).first() {
                    self.counts[first.index()] = true;
                }
                self.find_counters(&l.body);
            }
        }
    }
}

/// Counts the terms of each chain: the turns of the loops between an accumulator's start and what it is fed by.
struct Walk<'a> {
    exprs: &'a Exprs,
    kernel: &'a Kernel,
    /// The open lanes loop, and how many loops were open around it.
    lanes: Option<(Sym, usize)>,
    /// How many loops were open at the start.
    started: Vec<Option<usize>>,
    /// Most turns of each open loop, outermost first.
    open: Vec<i64>,
    /// Most terms of each accumulator, sums over all its updates; saturates.
    turns: Vec<i64>,
}

impl Walk<'_> {
    fn items(&mut self, items: &[Item]) {
        for item in items {
            match item {
                Item::Loop(l) => {
                    let outside = self.lanes;
                    if let Role::Vector { .. } = l.role {
                        self.lanes = Some((l.sym, self.open.len()));
                    }
                    self.open.push(self.turns_of(l));
                    self.items(&l.body);
                    self.open.pop();
                    self.lanes = outside;
                }
                Item::Acc(a) => self.started[a.index()] = Some(self.open.len()),
                Item::Update { acc, .. } => {
                    if let Some(outside) = self.started[acc.index()] {
                        let turns = self.open[outside..].iter();
                        let turns = turns.fold(1i64, |n, t| n.saturating_mul(*t));
                        let all = &mut self.turns[acc.index()];
                        *all = all.saturating_add(turns);
                    }
                }
                _ => {}
            }
        }
    }

    /// At most so many turns; very many where nothing is known.
    fn turns_of(&self, l: &Loop) -> i64 {
        // What is added up apart is one term.
        if let (Some((lane, depth)), Role::Serial) = (self.lanes, l.role)
            && unroll_count(self.exprs, self.kernel, l, lane).is_some_and(|n| n >= FEW_TURNS)
            && can_split_sums(self.kernel, l, |a| self.started[a.index()] > Some(depth))
        {
            return 1;
        }
        let most = match l.range {
            Range::Full(e) => self.exprs.range(e).hi,
            Range::Block { block, .. } => block,
            Range::Tile { step, .. } => step,
            // Of an epilogue: pieces of a row.
            Range::Rows | Range::Columns | Range::Pieces(_) | Range::Piece(_) => 1,
        };
        match l.role {
            Role::Serial => most,
            Role::Vector { width, unroll } => most / (width as i64 * unroll as i64).max(1) + 1,
        }
    }
}

impl Emitter<'_> {
    /// Ends a turn of a loop: counts it, and after [`TURNS`] of them flushes the accumulators that the body feeds.
    pub(crate) fn fold(&mut self, body: &[Item]) {
        let fed = self.facts.cascade.fed_by(body);
        let Some(first) = fed.first() else { return };
        self.open(format_args!(
            "if (__builtin_expect(++turns{} == {TURNS}, 0))",
            first.0
        ));
        self.line(format_args!("turns{} = 0;", first.0));
        for a in fed {
            self.empty(a);
        }
        self.close();
    }

    /// Flushes the `f32` of `a` into its `f64` and restarts it.
    fn empty(&mut self, a: AccId) {
        let lanes = self.acc_lanes(a);
        let neutral = self.neutral(self.kernel.accs[a.index()].op, DType::F32);
        let neutral = match lanes {
            None => neutral,
            Some((w, _)) => joined!(self.helpers.broadcast(CType::F32, w), "(", neutral, ")"),
        };
        for copy in copies(lanes) {
            let (acc, wide) = self.acc_and_wide(a, copy);
            let all = self.emptied(a, copy);
            self.line([&*wide, " = ", &all, "; ", &acc, " = ", &neutral, ";"]);
        }
    }

    /// Width and copies of an accumulator that is kept in vectors.
    pub(crate) fn acc_lanes(&self, a: AccId) -> Option<(u32, u32)> {
        let copies = self.state.lane.as_ref().map_or(1, |l| l.copies);
        let own = self.facts.started[a.index()].map(|w| (w, copies));
        self.facts.acc_vectors[a.index()].or(own)
    }

    /// Returns the operator between two terms of a long sum or product.
    pub(crate) fn sign(&self, a: AccId) -> &'static str {
        match self.kernel.accs[a.index()].op {
            ReduceOp::Prod => " * ",
            _ => " + ",
        }
    }

    /// Declares the `f64` of a long sum or product.
    pub(crate) fn start_wide(&mut self, a: AccId) {
        let lanes = self.acc_lanes(a);
        let neutral = self.neutral(self.kernel.accs[a.index()].op, DType::F64);
        for copy in copies(lanes) {
            let (_, wide) = self.acc_and_wide(a, copy);
            match lanes {
                None => self.line(["f64 ", &wide, " = ", &neutral, ";"]),
                Some((w, _)) => {
                    let ty = self.helpers.vector(CType::F64, w);
                    let bc = self.helpers.broadcast(CType::F64, w);
                    self.line([&*ty, " ", &wide, " = ", &bc, "(", &neutral, ");"]);
                }
            }
        }
        if self.facts.cascade.counts(a) {
            self.line(format_args!("i64 turns{} = 0;", a.0));
        }
    }

    /// All that `a` holds in `f64`: of a scan that alone, else with what its `f32` holds.
    pub(crate) fn emptied(&mut self, a: AccId, copy: Option<u32>) -> String {
        let (acc, wide) = self.acc_and_wide(a, copy);
        if self.facts.cascade.is_scan(a) {
            return wide.to_string();
        }
        let acc = self.widened(a, &acc);
        joined!("(", wide, self.sign(a), acc, ")")
    }

    /// An `f32` of as many lanes as `a` has, as `f64`.
    fn widened(&mut self, a: AccId, x: &str) -> String {
        match self.acc_lanes(a) {
            None => joined!("(f64)", x),
            Some((w, _)) => self
                .helpers
                .convert(x, CType::F32, CType::F64, w, self.caps),
        }
    }

    /// One step of a scan, and `v` as what it shows then.
    pub(crate) fn step(&mut self, v: ValId, a: AccId, value: ValId) -> Result<()> {
        let lanes = self.acc_lanes(a).is_some();
        let copy = lanes.then(|| self.copy());
        let wide = self.wide(a, copy);
        let x = if !lanes {
            self.var(value)?.0
        } else {
            self.vector(value)?
        };
        let x = self.widened(a, &x);
        self.line([&*wide, " = ", &wide, self.sign(a), &x, ";"]);
        self.declare_narrow(v, a, &wide);
        Ok(())
    }

    /// `v` is this `f64` of the accumulator `a`, as `f32`.
    pub(crate) fn declare_narrow(&mut self, v: ValId, a: AccId, all: &str) {
        let lanes = self.acc_lanes(a);
        let text = match lanes {
            None => joined!("(f32)", all),
            Some((w, _)) => self
                .helpers
                .convert(all, CType::F64, CType::F32, w, self.caps),
        };
        self.declare(v, &*text, lanes.is_some());
    }

    fn acc_and_wide(&mut self, a: AccId, copy: Option<u32>) -> (Name, Name) {
        let acc = self.helpers.variable('a', a.0, copy);
        (acc, self.wide(a, copy))
    }

    /// The `f64` of a long sum or product.
    pub(crate) fn wide(&mut self, a: AccId, copy: Option<u32>) -> Name {
        self.helpers.variable('w', a.0, copy)
    }
}

/// The numbers of an accumulator's vectors.
fn copies(lanes: Option<(u32, u32)>) -> impl Iterator<Item = Option<u32>> {
    let (scalar, several) = match lanes {
        None => (Some(None), 0),
        Some((_, n)) => (None, n),
    };
    scalar.into_iter().chain((0..several).map(Some))
}
