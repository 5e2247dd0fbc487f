//! Queries over bodies: operands, dtypes, levels, reads and writes, cost.
//!
//! A body with reduction axes is one loop nest in three phases per outer point:
//!
//! ```text
//! for i0 in outer axes:
//!     Before: what depends on neither the reduction axes nor a reduction   (hoisted)
//!     for i1 in reduction axes:
//!         Inside: what depends on a reduction axis
//!     After: the reductions' results and what depends on them
//! ```
//!
//! A statement's phase follows from its operands and from the symbols of its coordinates
//! ([`Body::phases`]). A statement that depends on both a reduction axis and a reduction's result
//! would need a second pass over the reduction, which is a second body; the verifier refuses it.

use crate::*;
use inrush_expr::SymKind;

/// How often a statement of a body is evaluated.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Level {
    /// Once for each point of the outer axes: depends on no reduction axis, or on a reduction's result.
    Outer,
    /// For each point of the whole nest.
    Point,
}

/// When a statement of a body with reduction axes is evaluated, within one point of the outer axes.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Phase {
    /// Before the reduction loop: depends on neither a reduction axis nor a reduction's result.
    Before,
    /// For each point of the reduction axes.
    Inside,
    /// After the loop: a reduction's result, and what depends on one.
    After,
}

/// A rough cost for decisions of the scheduler, at the hints of the symbols. Never for correctness.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug)]
pub struct Cost {
    /// Bytes of distinct elements read, each buffer counted once for each access pattern.
    pub read_bytes: i64,
    /// Bytes of distinct elements written.
    pub written_bytes: i64,
    /// Scalar operations, a math function counted as [`MATH_OPS`].
    pub ops: i64,
}

/// Weight of one math function in [`Cost::ops`].
pub const MATH_OPS: i64 = 16;

/// Weight of a sort for each element in [`Cost::ops`]: exchanges of a bitonic network over rows of 1,024.
const SORT_OPS: i64 = 55;

impl Cost {
    /// Returns the bytes read and written.
    pub fn bytes(&self) -> i64 {
        self.read_bytes.saturating_add(self.written_bytes)
    }
    fn add(&mut self, o: Cost) {
        self.read_bytes = self.read_bytes.saturating_add(o.read_bytes);
        self.written_bytes = self.written_bytes.saturating_add(o.written_bytes);
        self.ops = self.ops.saturating_add(o.ops);
    }
}

impl Clone for Stmt {
    /// Copies lists as bytes. The derived code clones element by element, and cloning statements is
    /// a large part of compile time.
    fn clone(&self) -> Stmt {
        match self {
            Stmt::Const { value, dtype } => Stmt::Const {
                value: *value,
                dtype: *dtype,
            },
            Stmt::Index { expr, dtype } => Stmt::Index {
                expr: *expr,
                dtype: *dtype,
            },
            Stmt::Load {
                buf,
                coords,
                mask,
                fill,
            } => Stmt::Load {
                buf: *buf,
                coords: Coords::from_slice(coords),
                mask: *mask,
                fill: *fill,
            },
            Stmt::Op { op, args, dtype } => Stmt::Op {
                op: *op,
                args: SmallVec::from_slice(args),
                dtype: *dtype,
            },
            Stmt::Cast { arg, to } => Stmt::Cast { arg: *arg, to: *to },
            Stmt::Bitcast { arg, from, to } => Stmt::Bitcast {
                arg: *arg,
                from: *from,
                to: *to,
            },
            Stmt::Indirect {
                value,
                sym,
                size,
                wrap,
                check,
                mask,
            } => Stmt::Indirect {
                value: *value,
                sym: *sym,
                size: *size,
                wrap: *wrap,
                check: *check,
                mask: *mask,
            },
            Stmt::Reduce { op, value, dtype } => Stmt::Reduce {
                op: *op,
                value: *value,
                dtype: *dtype,
            },
            Stmt::Scan { op, value, dtype } => Stmt::Scan {
                op: *op,
                value: *value,
                dtype: *dtype,
            },
            Stmt::Sort { value, dtype } => Stmt::Sort {
                value: *value,
                dtype: *dtype,
            },
            Stmt::Acc { dtype, of } => Stmt::Acc {
                dtype: *dtype,
                of: *of,
            },
            Stmt::Store {
                buf,
                coords,
                value,
                mode,
                mask,
            } => Stmt::Store {
                buf: *buf,
                coords: Coords::from_slice(coords),
                value: *value,
                mode: *mode,
                mask: *mask,
            },
        }
    }
}

impl Clone for Body {
    /// Copies lists as bytes, as for statements.
    fn clone(&self) -> Body {
        Body {
            axes: self.axes.clone(),
            outer: self.outer,
            stmts: self.stmts.clone(),
            origins: Origins::from_slice(&self.origins),
        }
    }
}

impl Stmt {
    /// Returns the statements whose values this one uses, masks included.
    pub fn operands(&self) -> SmallVec<[StmtId; 4]> {
        let mut out = SmallVec::new();
        self.each_operand(|o| out.push(o));
        out
    }

    /// Calls `f` with each of [`Stmt::operands`].
    #[inline]
    pub fn each_operand(&self, mut f: impl FnMut(StmtId)) {
        match self {
            Stmt::Const { .. } | Stmt::Index { .. } | Stmt::Acc { .. } => {}
            Stmt::Load { mask, .. } => mask.iter().for_each(|m| f(*m)),
            Stmt::Op { args, .. } => args.iter().for_each(|a| f(*a)),
            Stmt::Cast { arg, .. } | Stmt::Bitcast { arg, .. } => f(*arg),
            Stmt::Reduce { value, .. } | Stmt::Scan { value, .. } | Stmt::Sort { value, .. } => {
                f(*value)
            }
            Stmt::Indirect { value, mask, .. } | Stmt::Store { value, mask, .. } => {
                f(*value);
                mask.iter().for_each(|m| f(*m));
            }
        }
    }

    /// Replaces each operand by `f` of it.
    pub fn map_operands(&mut self, mut f: impl FnMut(StmtId) -> StmtId) {
        let mask_of = |mask: &mut Option<StmtId>, f: &mut dyn FnMut(StmtId) -> StmtId| {
            if let Some(m) = mask {
                *m = f(*m);
            }
        };
        match self {
            Stmt::Const { .. } | Stmt::Index { .. } | Stmt::Acc { .. } => {}
            Stmt::Load { mask, .. } => mask_of(mask, &mut f),
            Stmt::Op { args, .. } => args.iter_mut().for_each(|a| *a = f(*a)),
            Stmt::Cast { arg, .. } | Stmt::Bitcast { arg, .. } => *arg = f(*arg),
            Stmt::Reduce { value, .. } | Stmt::Scan { value, .. } | Stmt::Sort { value, .. } => {
                *value = f(*value)
            }
            Stmt::Indirect { value, mask, .. } | Stmt::Store { value, mask, .. } => {
                *value = f(*value);
                mask_of(mask, &mut f);
            }
        }
    }

    /// Returns the index expressions of the statement: coordinates, the value of [`Stmt::Index`].
    pub fn exprs(&self) -> &[Expr] {
        match self {
            Stmt::Index { expr, .. } => std::slice::from_ref(expr),
            Stmt::Load { coords, .. } | Stmt::Store { coords, .. } => coords,
            _ => &[],
        }
    }

    /// Returns the index expressions of the statement, mutably.
    pub fn exprs_mut(&mut self) -> &mut [Expr] {
        match self {
            Stmt::Index { expr, .. } => std::slice::from_mut(expr),
            Stmt::Load { coords, .. } | Stmt::Store { coords, .. } => coords,
            _ => &mut [],
        }
    }

    pub fn mask(&self) -> Option<StmtId> {
        match self {
            Stmt::Load { mask, .. } | Stmt::Store { mask, .. } | Stmt::Indirect { mask, .. } => {
                *mask
            }
            _ => None,
        }
    }

    /// Returns the dtype of the value: a store has that of its value, an [`Stmt::Indirect`] has
    /// `i64`. `loaded` gives the compute dtype of a buffer, `of` the dtype of an operand.
    pub fn dtype(
        &self,
        loaded: impl FnOnce(BufId) -> DType,
        of: impl FnOnce(StmtId) -> DType,
    ) -> DType {
        match self {
            Stmt::Const { dtype, .. }
            | Stmt::Index { dtype, .. }
            | Stmt::Acc { dtype, .. }
            | Stmt::Reduce { dtype, .. }
            | Stmt::Scan { dtype, .. }
            | Stmt::Sort { dtype, .. } => *dtype,
            Stmt::Load { buf, .. } => loaded(*buf),
            Stmt::Op { op, dtype, .. } => op.result(*dtype),
            Stmt::Cast { to, .. } | Stmt::Bitcast { to, .. } => to.compute(),
            Stmt::Indirect { .. } => DType::I64,
            Stmt::Store { value, .. } => of(*value),
        }
    }

    /// Returns true if the statement has a value that others may use as an operand.
    pub fn has_value(&self) -> bool {
        !matches!(self, Stmt::Store { .. } | Stmt::Indirect { .. })
    }

    /// Returns true for scans and sorts: their value at a point depends on other points of the last reduction axis, which stays
    /// whole and in order.
    pub fn is_along_row(&self) -> bool {
        matches!(self, Stmt::Scan { .. } | Stmt::Sort { .. })
    }
}

impl ReduceOp {
    pub const ALL: [ReduceOp; 10] = [
        ReduceOp::Sum,
        ReduceOp::Prod,
        ReduceOp::Max,
        ReduceOp::Min,
        ReduceOp::Any,
        ReduceOp::All,
        ReduceOp::XorSum,
        ReduceOp::LogSumExp,
        ReduceOp::ArgMax,
        ReduceOp::ArgMin,
    ];

    /// Name in text forms.
    pub fn text(self) -> &'static str {
        match self {
            ReduceOp::Sum => "sum",
            ReduceOp::Prod => "prod",
            ReduceOp::Max => "max",
            ReduceOp::Min => "min",
            ReduceOp::Any => "any",
            ReduceOp::All => "all",
            ReduceOp::XorSum => "xor_sum",
            ReduceOp::LogSumExp => "logsumexp",
            ReduceOp::ArgMax => "argmax",
            ReduceOp::ArgMin => "argmin",
        }
    }

    pub fn parse(text: &str) -> Option<ReduceOp> {
        Self::ALL.into_iter().find(|r| r.text() == text)
    }

    /// Returns true if the result is an index (`i64`) and not a value.
    pub fn is_arg(self) -> bool {
        matches!(self, ReduceOp::ArgMax | ReduceOp::ArgMin)
    }

    /// Returns true if the result is the greatest or the least value.
    pub fn is_extreme(self) -> bool {
        matches!(self, ReduceOp::Max | ReduceOp::Min)
    }
}

impl StoreMode {
    pub const ALL: [StoreMode; 5] = [
        StoreMode::Set,
        StoreMode::Add,
        StoreMode::Mul,
        StoreMode::Max,
        StoreMode::Min,
    ];

    /// Name in text forms.
    pub fn text(self) -> &'static str {
        match self {
            StoreMode::Set => "set",
            StoreMode::Add => "add",
            StoreMode::Mul => "mul",
            StoreMode::Max => "max",
            StoreMode::Min => "min",
        }
    }
}

impl Body {
    /// Gives checks without an operator the body's own, the last of its origins.
    pub fn name_checks(&mut self) {
        let own = self.origins.last().copied();
        for s in &mut self.stmts {
            if let Stmt::Indirect { check, .. } = s {
                *check = check.or(own);
            }
        }
    }

    pub fn stmt(&self, s: StmtId) -> &Stmt {
        &self.stmts[s.index()]
    }

    /// Returns the ids of all statements in order.
    pub fn ids(&self) -> impl Iterator<Item = StmtId> + use<> {
        (0..self.stmts.len()).map(StmtId::from_index)
    }

    pub fn outer_axes(&self) -> &[Axis] {
        &self.axes[..self.outer]
    }

    pub fn reduction_axes(&self) -> &[Axis] {
        &self.axes[self.outer..]
    }

    /// Returns the dtype of every statement's value. A store has the dtype of its value, an
    /// [`Stmt::Indirect`] has `i64`.
    pub fn dtypes(&self, loops: &Loops) -> Vec<DType> {
        let mut out: Vec<DType> = Vec::with_capacity(self.stmts.len());
        for stmt in &self.stmts {
            let loaded = |b| loops.buffer(b).dtype.compute();
            out.push(stmt.dtype(loaded, |s| out[s.index()]));
        }
        out
    }

    /// Returns how often each statement is evaluated.
    pub fn levels(&self, exprs: &Exprs) -> Vec<Level> {
        let of = |p| match p {
            Phase::Inside => Level::Point,
            _ => Level::Outer,
        };
        self.phases(exprs).into_iter().map(of).collect()
    }

    /// Returns the phase of each statement. In a body without reduction axes everything is
    /// [`Phase::Before`].
    pub fn phases(&self, exprs: &Exprs) -> Vec<Phase> {
        self.phases_from(exprs, self.outer)
    }

    /// Returns the phases as if the axes from `outer` on were the reduction axes.
    pub fn phases_from(&self, exprs: &Exprs, outer: usize) -> Vec<Phase> {
        if outer == self.axes.len() {
            return vec![Phase::Before; self.stmts.len()];
        }
        // There are few symbols, and a list is searched faster than a hash table.
        let mut of_sym: SmallVec<[(Sym, Phase); 8]> = self.axes[outer..]
            .iter()
            .map(|a| (a.sym, Phase::Inside))
            .collect();
        let mut out: Vec<Phase> = Vec::with_capacity(self.stmts.len());
        for stmt in &self.stmts {
            let phase = match stmt {
                Stmt::Reduce { .. } => Phase::After,
                Stmt::Scan { .. } | Stmt::Sort { .. } => Phase::Inside,
                _ => {
                    let mut phase = Phase::Before;
                    let mut meet = |p: Phase| {
                        // Inside wins; the verifier refuses a mix of Inside and After.
                        phase = match (phase, p) {
                            (Phase::Inside, _) | (_, Phase::Inside) => Phase::Inside,
                            (a, b) => a.max(b),
                        };
                    };
                    for e in stmt.exprs() {
                        let held = of_sym.iter().filter(|(s, _)| exprs.contains_sym(*e, *s));
                        held.for_each(|(_, p)| meet(*p));
                    }
                    stmt.each_operand(|o| meet(out[o.index()]));
                    phase
                }
            };
            if let Stmt::Indirect { sym, .. } = stmt {
                // The latest definition of a symbol counts.
                of_sym.retain(|(s, _)| s != sym);
                of_sym.push((*sym, phase));
            }
            out.push(phase);
        }
        out
    }

    /// Returns the buffers that the body loads, each once, in order of first load. Combining stores
    /// do not count as loads.
    pub fn reads(&self) -> Bufs {
        unique(self.stmts.iter().filter_map(|s| match s {
            Stmt::Load { buf, .. } => Some(*buf),
            _ => None,
        }))
    }

    /// Returns the buffers that the body writes, each once, in order of first write.
    pub fn writes(&self) -> Bufs {
        unique(self.stmts.iter().filter_map(|s| match s {
            Stmt::Store { buf, .. } => Some(*buf),
            _ => None,
        }))
    }

    /// Returns true if the body has reduction axes.
    pub fn is_reduction(&self) -> bool {
        self.outer < self.axes.len()
    }

    /// Returns the statement that defines the index symbol `sym`, if it is not an axis.
    pub fn indirect(&self, sym: Sym) -> Option<StmtId> {
        self.ids()
            .find(|s| matches!(self.stmt(*s), Stmt::Indirect { sym: t, .. } if *t == sym))
    }

    /// Returns a rough cost of the whole body.
    pub fn cost(&self, loops: &Loops) -> Cost {
        let ex = &loops.exprs;
        let points = |axes: &[Axis]| hint_product(ex, axes.iter().map(|a| a.size));
        let (outer, all) = (points(self.outer_axes()), points(&self.axes));
        let levels = self.levels(ex);
        let mut cost = Cost::default();
        for (stmt, level) in self.stmts.iter().zip(levels) {
            let times = match (stmt, level) {
                (Stmt::Reduce { .. }, _) | (_, Level::Point) => all,
                (_, Level::Outer) => outer,
            };
            match stmt {
                Stmt::Op { op, .. } => {
                    let weight = match op.class() {
                        scalar::OpClass::Core => 1,
                        scalar::OpClass::Math => MATH_OPS,
                    };
                    cost.ops = cost.ops.saturating_add(times.saturating_mul(weight));
                }
                Stmt::Reduce { .. } | Stmt::Scan { .. } => {
                    cost.ops = cost.ops.saturating_add(times)
                }
                Stmt::Sort { .. } => {
                    cost.ops = cost.ops.saturating_add(times.saturating_mul(SORT_OPS))
                }
                Stmt::Load { buf, coords, .. } => {
                    cost.read_bytes = cost
                        .read_bytes
                        .saturating_add(loops.access_bytes(*buf, coords, times))
                }
                Stmt::Store { buf, coords, .. } => {
                    cost.written_bytes = cost
                        .written_bytes
                        .saturating_add(loops.access_bytes(*buf, coords, times))
                }
                _ => {}
            }
        }
        cost
    }
}

impl Contraction {
    /// Returns the axes in the order batch, m, n, k.
    pub fn axes(&self) -> impl Iterator<Item = &Axis> {
        (self.batch.iter())
            .chain(&self.m)
            .chain(&self.n)
            .chain(&self.k)
    }
}

impl Attention {
    /// Returns the axes in the order batch, m, k, d, n.
    pub fn axes(&self) -> impl Iterator<Item = &Axis> {
        (self.batch.iter()).chain([&self.m, &self.k, &self.d, &self.n])
    }

    /// Returns the part that gradients have besides.
    pub fn gradients(&self) -> Option<&Gradients> {
        match &self.results {
            Attended::Gradients(g) => Some(g),
            Attended::Softmax { .. } => None,
        }
    }

    /// Returns what is read besides the loads of the scores: operands, then lists of blocks.
    pub fn accesses(&self) -> impl Iterator<Item = &Access> {
        let lists = self.blocks.iter().flat_map(BlockMask::lists);
        [&self.query, &self.key, &self.value]
            .into_iter()
            .chain(self.gradients().map(|g| &g.grad))
            .chain(lists.flat_map(|l| [&l.count, &l.index]))
    }

    /// Returns [`Attention::accesses`], mutably.
    pub fn accesses_mut(&mut self) -> impl Iterator<Item = &mut Access> {
        let lists = self.blocks.iter_mut().flat_map(|b| {
            [Some(&mut b.partial), b.full.as_mut()]
                .into_iter()
                .flatten()
        });
        let grad = match &mut self.results {
            Attended::Gradients(g) => Some(&mut g.grad),
            Attended::Softmax { .. } => None,
        };
        [&mut self.query, &mut self.key, &mut self.value]
            .into_iter()
            .chain(grad)
            .chain(lists.flat_map(|l| [&mut l.count, &mut l.index]))
    }

    /// Returns the buffers of products that are in memory, by number.
    pub fn products(&self) -> [Option<BufId>; 2] {
        [self.product, self.gradients().and_then(|g| g.product)]
    }

    /// Returns the buffers of the results.
    pub fn results(&self) -> Bufs {
        match &self.results {
            Attended::Softmax {
                out,
                logsumexp,
                max,
            } => Bufs::from_slice(&[*out, *logsumexp, *max]),
            Attended::Gradients(g) => [g.by_key].into_iter().chain(g.by_value).collect(),
        }
    }

    /// Returns the buffers of the results and of products in memory, mutably.
    pub fn buffers_mut(&mut self) -> impl Iterator<Item = &mut BufId> {
        let results: SmallVec<[&mut BufId; 3]> = match &mut self.results {
            Attended::Softmax {
                out,
                logsumexp,
                max,
            } => SmallVec::from_iter([out, logsumexp, max]),
            Attended::Gradients(g) => [&mut g.by_key]
                .into_iter()
                .chain(&mut g.by_value)
                .chain(&mut g.product)
                .collect(),
        };
        self.product.iter_mut().chain(results)
    }

    /// Returns how many values the body of the scores stores before the one that tells which keys are kept.
    pub fn values(&self) -> usize {
        match &self.results {
            Attended::Softmax { .. } => 1,
            Attended::Gradients(g) => 1 + g.by_value.iter().count(),
        }
    }
}

impl Node {
    /// Returns the body, the contraction's epilogue, or the scores of an attention. That of a library call is empty but for its origins.
    pub fn body(&self) -> &Body {
        match self {
            Node::Body(b) => b,
            Node::Contraction(c) => &c.epilogue,
            Node::Library(c) => &c.site,
            Node::Attention(a) => &a.scores,
        }
    }

    pub fn body_mut(&mut self) -> &mut Body {
        match self {
            Node::Body(b) => b,
            Node::Contraction(c) => &mut c.epilogue,
            Node::Library(c) => &mut c.site,
            Node::Attention(a) => &mut a.scores,
        }
    }

    /// Returns the buffers that the node reads, each once.
    pub fn reads(&self) -> Bufs {
        match self {
            Node::Body(b) => b.reads(),
            Node::Contraction(c) => {
                unique([c.a.buf, c.b.buf].into_iter().chain(c.epilogue.reads()))
            }
            Node::Library(c) => unique(c.inputs.iter().copied()),
            Node::Attention(a) => unique(a.accesses().map(|x| x.buf).chain(a.scores.reads())),
        }
    }

    /// Returns the buffers that the node writes, each once.
    pub fn writes(&self) -> Bufs {
        match self {
            Node::Library(c) => unique(c.outputs.iter().copied()),
            Node::Attention(a) => a.results(),
            _ => self.body().writes(),
        }
    }

    /// Returns [`Node::reads`] and [`Node::writes`] in one pass.
    pub fn uses(&self) -> (Bufs, Bufs) {
        let (mut reads, mut writes) = (Bufs::new(), Bufs::new());
        match self {
            Node::Contraction(c) => {
                add(&mut reads, c.a.buf);
                add(&mut reads, c.b.buf);
            }
            Node::Library(_) | Node::Attention(_) => return (self.reads(), self.writes()),
            Node::Body(_) => {}
        }
        for s in &self.body().stmts {
            match s {
                Stmt::Load { buf, .. } => add(&mut reads, *buf),
                Stmt::Store { buf, .. } => add(&mut writes, *buf),
                _ => {}
            }
        }
        (reads, writes)
    }

    pub fn cost(&self, loops: &Loops) -> Cost {
        let mut cost = self.body().cost(loops);
        if let Node::Library(c) = self {
            let bytes = |buffers: &[BufId]| {
                let all = buffers.iter().map(|b| {
                    let b = loops.buffer(*b);
                    hint_product(&loops.exprs, b.sizes.iter().copied())
                        .saturating_mul(b.dtype.size() as i64)
                });
                all.fold(0, i64::saturating_add)
            };
            cost.add(Cost {
                read_bytes: bytes(&c.inputs),
                written_bytes: bytes(&c.outputs),
                // Unknown, but more than one for each byte.
                ops: bytes(&c.inputs),
            });
        }
        if let Node::Attention(a) = self {
            let points = hint_product(&loops.exprs, a.scores.axes.iter().map(|x| x.size));
            let depth = |x: Axis| hint_product(&loops.exprs, [x.size].into_iter());
            let (d, n) = (depth(a.d), depth(a.n));
            let steps = match &a.results {
                Attended::Softmax { .. } => d.saturating_add(n),
                Attended::Gradients(g) => {
                    let sums = if g.by_value.is_some() { n } else { 0 };
                    (d.saturating_mul(2)).saturating_add(n.saturating_add(sums))
                }
            };
            let operands = [&a.query, &a.key, &a.value].into_iter();
            let operands = operands.chain(a.gradients().map(|g| &g.grad));
            cost.add(Cost {
                read_bytes: operands
                    .map(|x| loops.access_bytes(x.buf, &x.coords, points))
                    .fold(0, i64::saturating_add),
                written_bytes: 0,
                ops: points.saturating_mul(steps).saturating_mul(2),
            });
        }
        if let Node::Contraction(c) = self {
            let points = hint_product(&loops.exprs, c.axes().map(|a| a.size));
            cost.add(Cost {
                read_bytes: loops
                    .access_bytes(c.a.buf, &c.a.coords, points)
                    .saturating_add(loops.access_bytes(c.b.buf, &c.b.coords, points)),
                written_bytes: 0,
                ops: points.saturating_mul(2),
            });
        }
        cost
    }
}

impl<'a> Tables<'a> {
    pub fn buffer(self, b: BufId) -> &'a Buffer {
        &self.buffers[b.index()]
    }

    /// Returns the buffer whose storage `b` shares: itself unless it is an alias.
    pub fn storage(self, mut b: BufId) -> BufId {
        // An alias refers to an earlier buffer (the verifier says so), so this ends.
        while let BufferKind::Alias { of } = self.buffer(b).kind {
            b = of;
        }
        b
    }
}

impl Loops {
    /// Returns the tables that ids in nodes index.
    pub fn tables(&self) -> Tables<'_> {
        Tables {
            exprs: &self.exprs,
            buffers: &self.buffers,
            origins: &self.origins,
        }
    }

    pub fn buffer(&self, b: BufId) -> &Buffer {
        &self.buffers[b.index()]
    }

    /// Returns [`Tables::storage`].
    pub fn storage(&self, b: BufId) -> BufId {
        self.tables().storage(b)
    }

    /// Returns the bytes of distinct elements that an access touches at the hints: the extents of
    /// the indices that occur in it, at most the whole buffer and at most one element for each
    /// evaluation.
    fn access_bytes(&self, buf: BufId, coords: &[Expr], times: i64) -> i64 {
        let buffer = self.buffer(buf);
        let mut syms = Vec::new();
        for c in coords {
            self.exprs.collect_syms(*c, &mut syms);
        }
        let extents = syms
            .iter()
            .filter_map(|s| match self.exprs.sym_info(*s).kind {
                SymKind::Index { extent, .. } => Some(extent),
                _ => None,
            });
        let touched = hint_product(&self.exprs, extents)
            .min(hint_product(&self.exprs, buffer.sizes.iter().copied()))
            .min(times);
        touched.saturating_mul(buffer.dtype.size() as i64)
    }
}

fn hint_product(exprs: &Exprs, sizes: impl Iterator<Item = Expr>) -> i64 {
    sizes.fold(1i64, |a, e| a.saturating_mul(exprs.hint(e).max(0)))
}

fn unique(items: impl Iterator<Item = BufId>) -> Bufs {
    let mut out = Bufs::new();
    items.for_each(|b| add(&mut out, b));
    out
}

#[inline]
fn add(out: &mut Bufs, b: BufId) {
    if !out.contains(&b) {
        out.push(b);
    }
}
