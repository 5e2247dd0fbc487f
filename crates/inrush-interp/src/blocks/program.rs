//! One block program: its items over the lanes of its tile.
//!
//! A value spans some dimensions of the tile (its *shape*, as bits of positions in `Block::dims`)
//! and has one scalar for each lane of these. Reading it in a lane of more dimensions is a
//! broadcast: the other coordinates are ignored.
//!
//! ```text
//! dims: y (grid, block 4), r (looped, block 8)
//! x = load(..)     shape {y, r}   32 lanes, fewer at the ends of the axes
//! m = reduce(x)    shape {y}      4 lanes
//! x - m            shape {y, r}   lane (2, 5) reads x at (2, 5) and m at (2)
//! ```
//!
//! Lanes beyond the end of an axis are left out by `present`, and not masked: a program whose
//! masks are right computes the same.

use super::Run;
use super::reduce::Partial;
use crate::index::{Index, size};
use inrush_base::{DType, Error, Result, Scalar};
use inrush_expr::{Expr, Sym};
use inrush_kernel::block::{Block, BlockItem, BlockStore, DimRole, Operand, Piece, Product, Walk};
use inrush_kernel::{AccId, Def, KBufId, ValId};
use inrush_loops::{BufId, ScalarOp, eval};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

/// Axes of a tile.
/// Capacity of the arrays by axis. A block with more axes is an error.
const DIMS: usize = 4;

/// Runs all programs of a part of a launch, from the last to the first.
pub(super) fn run(run: &mut Run, part: &Piece) -> Result<()> {
    let block = part.block;
    if block.dims.len() > DIMS {
        return Err(Error::internal("a tile of too many axes"));
    }
    let mut extents = Vec::new();
    for d in &block.dims {
        extents.push(size(&run.p.exprs, d.extent, &run.symbols)?);
    }
    let mut p = Program {
        code: Code::new(run, part)?,
        run,
        block,
        buffers: part.buffers,
        extents,
        start: [0; DIMS],
        lanes: [1; DIMS],
        slots: Vec::new(),
        values: vec![Vec::new(); block.values.len()],
        accs: vec![Partial::default(); block.accs.len()],
        sums: Vec::new(),
        steps: 0,
    };
    p.slots = vec![0; p.code.slots.len()];
    let programs = size(&p.run.p.exprs, block.programs, &p.run.symbols)?;
    // Programs run in no order that another program may rely on.
    for number in (0..programs).rev() {
        p.place(number);
        p.product()?;
        match &block.attention {
            Some(a) => p.attention(a)?,
            None => p.items(&block.items)?,
        }
    }
    Ok(())
}

/// Compiled expressions and sizes, which are the same for all programs.
struct Code {
    /// Symbols whose values change: those of the axes, of the product's axis, of indices that are looked up.
    slots: Vec<Sym>,
    /// The compiled expressions of offsets and values.
    exprs: FxHashMap<Expr, Index>,
    /// Of each looked-up index: its slot and the size of its dimension.
    indirect: FxHashMap<ValId, (usize, i64)>,
    /// Values that slots take their numbers from.
    looked_up: Vec<(usize, ValId)>,
    /// Elements along the axis of the product.
    depth: i64,
}

impl Code {
    /// Compiles all expressions of a part. Slots must be complete first: axes, the product's
    /// axis, looked-up indices.
    fn new(run: &Run, part: &Piece) -> Result<Code> {
        let block = part.block;
        let mut code = Code {
            slots: block.dims.iter().map(|d| d.sym).collect(),
            exprs: FxHashMap::default(),
            indirect: FxHashMap::default(),
            looked_up: Vec::new(),
            depth: 0,
        };
        code.slots.extend(block.product.iter().map(|p| p.k));
        if let Some(a) = &block.attention {
            let lists = a.blocks.iter().flat_map(|b| b.lists());
            code.slots.extend([a.d.sym, a.n.sym]);
            code.slots.extend(lists.map(|l| l.position));
        }
        for (k, v) in block.values.iter().enumerate() {
            if let Def::Indirect { sym, size: of, .. } = v.def {
                let (v, slot) = (ValId::from_index(k), code.slots.len());
                code.indirect
                    .insert(v, (slot, size(&run.p.exprs, of, &run.symbols)?));
                code.looked_up.push((slot, v));
                code.slots.push(sym);
            }
        }
        for v in &block.values {
            v.def.expr().map_or(Ok(()), |e| code.compile(run, e))?;
        }
        for e in block.accs.iter().filter_map(|a| a.index) {
            code.compile(run, e)?;
        }
        code.stores(run, &block.items)?;
        if let Some(a) = &block.attention {
            let mut operands = a.operands().into_iter();
            operands.try_for_each(|o| code.compile(run, o.offset))?;
        }
        if let Some(p) = &block.product {
            code.compile(run, p.a.offset)?;
            code.compile(run, p.b.offset)?;
            code.depth = size(&run.p.exprs, p.extent, &run.symbols)?;
        }
        Ok(code)
    }

    /// Compiles the offsets of stores, which are in items and not in values.
    fn stores(&mut self, run: &Run, items: &[BlockItem]) -> Result<()> {
        for item in items {
            match item {
                BlockItem::Store(s) => self.compile(run, s.offset)?,
                BlockItem::Loop(w) => self.stores(run, &w.body)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Compiles an expression once; expressions are interned, so equal ones have one key.
    fn compile(&mut self, run: &Run, e: Expr) -> Result<()> {
        if !self.exprs.contains_key(&e) {
            let slot = |s: Sym| self.slots.iter().position(|t| *t == s);
            let index = Index::new(&run.p.exprs, e, &run.symbols, &slot)?;
            self.exprs.insert(e, index);
        }
        Ok(())
    }
}

/// A lane: its position along each axis of the tile.
pub(super) type Lane = [usize; DIMS];

/// The state of one program, used again for each program of a part.
pub(super) struct Program<'p, 'a> {
    pub run: &'p mut Run<'a>,
    pub block: &'p Block,
    /// The buffers of the plan, by the block's own numbers of them.
    buffers: &'p [BufId],
    code: Code,
    /// Points of each axis.
    pub extents: Vec<i64>,
    /// The first point of the tile along each axis, and how many there are.
    pub start: [i64; DIMS],
    pub lanes: [usize; DIMS],
    /// Numbers of `Code::slots` in the lane that is evaluated.
    pub slots: Vec<i64>,
    /// For each lane of the dimensions that the value spans.
    /// Empty until the value is evaluated.
    values: Vec<Vec<Scalar>>,
    pub accs: Vec<Partial>,
    /// Sums of products, for each lane of the grid's dimensions.
    sums: Vec<Scalar>,
    /// Steps of the open loop that are done.
    pub steps: i64,
}

impl Program<'_, '_> {
    /// Sets the tile of a program, which knows nothing of the one before.
    fn place(&mut self, number: i64) {
        self.values.iter_mut().for_each(Vec::clear);
        self.accs.fill(Partial::default());
        let mut rest = number;
        // The number of a program is mixed radix over the tiles of the grid axes, last axis
        // fastest.
        for (i, d) in self.block.dims.iter().enumerate().rev() {
            self.start[i] = 0;
            if d.role == DimRole::Grid {
                let tiles = (self.extents[i] + d.block - 1) / d.block;
                self.start[i] = rest % tiles * d.block;
                rest /= tiles;
            }
            self.lanes[i] = self.present(i);
        }
    }

    /// Points of an axis that the tile has: all of the block where it is called exact.
    pub(super) fn present(&self, i: usize) -> usize {
        let d = &self.block.dims[i];
        let left = self.extents[i] - self.start[i];
        if d.exact {
            d.block as usize
        } else {
            left.clamp(0, d.block) as usize
        }
    }

    /// Returns the shape of the grid's dimensions: that of totals and sums.
    pub(super) fn grid(&self) -> u32 {
        let dims = self.block.dims.iter().enumerate();
        dims.filter(|(_, d)| d.role == DimRole::Grid && d.is_tile())
            .fold(0, |m, (i, _)| m | 1 << i)
    }

    /// The reduced axis.
    pub(super) fn axis(&self) -> Result<usize> {
        (self.block.reduced()).ok_or_else(|| Error::internal("a reduction without an axis"))
    }

    /// All lanes of a shape, row-major.
    pub(super) fn lanes_of(&self, shape: u32) -> Vec<Lane> {
        // Dimensions are added outermost first, so the last one changes fastest.
        let mut out: Vec<Lane> = vec![[0; DIMS]];
        for i in (0..self.block.dims.len()).filter(|i| shape & (1 << i) != 0) {
            out = (out.iter())
                .flat_map(|lane| {
                    (0..self.lanes[i]).map(|at| {
                        let mut lane = *lane;
                        lane[i] = at;
                        lane
                    })
                })
                .collect();
        }
        out
    }

    /// The number of a lane among those of a shape.
    pub(super) fn number(&self, shape: u32, lane: &Lane) -> usize {
        let dims = (0..self.block.dims.len()).filter(|i| shape & (1 << i) != 0);
        dims.fold(0, |n, i| n * self.lanes[i] + lane[i])
    }

    /// The value of `v` in a lane.
    pub(super) fn value(&self, v: ValId, lane: &Lane) -> Result<Scalar> {
        let at = self.number(self.block.shapes[v.index()], lane);
        let value = self.values[v.index()].get(at).copied();
        value.ok_or_else(|| Error::internal(format!("{v} is used before it is evaluated")))
    }

    /// Returns true if there is no mask or it is true in this lane.
    pub(super) fn holds(&self, mask: Option<ValId>, lane: &Lane) -> Result<bool> {
        mask.map_or(Ok(true), |m| Ok(self.value(m, lane)?.as_bool()))
    }

    /// An expression in a lane.
    pub(super) fn index(&mut self, e: Expr, lane: &Lane) -> Result<i64> {
        let dims = self.block.dims.len();
        for (slot, (start, at)) in self.slots[..dims]
            .iter_mut()
            .zip(self.start.iter().zip(lane))
        {
            *slot = start + *at as i64;
        }
        // Indices that are not evaluated yet keep a stale number. The verifier excludes that an
        // offset reads one.
        for (slot, v) in &self.code.looked_up {
            let at = self.number(self.block.shapes[v.index()], lane);
            if let Some(value) = self.values[v.index()].get(at) {
                self.slots[*slot] = value.as_i64();
            }
        }
        self.code.exprs[&e].eval(&self.slots)
    }

    /// Returns the plan's buffer for one of the block.
    pub(super) fn buffer(&self, b: KBufId) -> Result<BufId> {
        let buffer = self.buffers.get(b.index()).copied();
        buffer.ok_or_else(|| Error::internal(format!("{b} is not passed")))
    }

    /// Runs items in order, each over all lanes.
    pub(super) fn items(&mut self, items: &[BlockItem]) -> Result<()> {
        for item in items {
            match item {
                BlockItem::Let(v) => self.define(*v).map_err(|e| e.context(v))?,
                BlockItem::Loop(w) => self.walk(w)?,
                BlockItem::Acc(a) => self.begin(*a)?,
                BlockItem::Update { acc, value } => {
                    // An accumulator that `Acc` started belongs to a loop. Otherwise the row is
                    // persistent and this tile is all of it.
                    let inside = !self.accs[acc.index()].lanes.is_empty();
                    if !inside {
                        self.begin(*acc)?;
                    }
                    self.update(*acc, *value)?;
                    if !inside {
                        self.finish(*acc)?;
                    }
                }
                BlockItem::Finish(a) => self.finish(*a)?,
                BlockItem::Moments {
                    sum,
                    squares,
                    value,
                } => self.moments(*sum, *squares, *value)?,
                BlockItem::FinishMoments { sum, squares } => {
                    self.finish_moments(*sum, *squares)?;
                }
                BlockItem::Exponentials { max, sum, value } => {
                    self.exponentials(*max, *sum, *value)?;
                }
                BlockItem::FinishExponentials { max, sum, shift } => {
                    self.finish_exponentials(*max, *sum, *shift)?;
                }
                BlockItem::Attend { .. } => {
                    return Err(Error::internal("scores outside of an attention"));
                }
                BlockItem::Store(s) => self.store(s)?,
                // Tiles are taken as a whole, so threads wait for each other anyway.
                BlockItem::Barrier => {}
            }
        }
        Ok(())
    }

    /// Runs the body for each tile along the looped axis.
    fn walk(&mut self, w: &Walk) -> Result<()> {
        let at = self.axis()?;
        let block = self.block.dims[at].block;
        let steps = (self.extents[at] + block - 1) / block;
        for step in 0..steps {
            self.steps = step;
            let step = if w.back { steps - 1 - step } else { step };
            self.start[at] = step * block;
            self.lanes[at] = self.present(at);
            self.items(&w.body)?;
        }
        Ok(())
    }

    /// Evaluates a value in all lanes of its shape.
    fn define(&mut self, v: ValId) -> Result<()> {
        let block = self.block;
        let shape = block.shapes[v.index()];
        if let Def::Running { acc, value } = block.value(v).def {
            self.values[v.index()] = self.running(acc, value)?;
            return Ok(());
        }
        if let Def::Sorted { value } = block.value(v).def {
            self.values[v.index()] = self.sorted(value)?;
            return Ok(());
        }
        let mut out = Vec::new();
        for lane in self.lanes_of(shape) {
            out.push(self.element(v, &lane)?);
        }
        self.values[v.index()] = out;
        Ok(())
    }

    /// A value in one lane.
    fn element(&mut self, v: ValId, lane: &Lane) -> Result<Scalar> {
        let block = self.block;
        let value = block.value(v);
        Ok(match &value.def {
            Def::Const(c) => *c,
            Def::Index(e) => Scalar::Int(self.index(*e, lane)?).convert(value.dtype),
            Def::Load {
                buf,
                offset,
                mask,
                fill,
            } => {
                if !self.holds(*mask, lane)? {
                    return Ok(*fill);
                }
                let at = self.index(*offset, lane)?;
                self.run.memory.load(self.buffer(*buf)?, at)?
            }
            Def::Op { op, args } => {
                // Operations are typed by their first operand; that of `where` is the condition,
                // so its second one counts.
                let of = block.value(args[usize::from(*op == ScalarOp::Where)]).dtype;
                let args: Result<SmallVec<[Scalar; 3]>> =
                    args.iter().map(|a| self.value(*a, lane)).collect();
                eval::op(*op, of, &args?)?
            }
            Def::Cast { arg, to } => {
                eval::cast(self.value(*arg, lane)?, block.value(*arg).dtype, *to)
            }
            Def::Bitcast { arg, from, to } => eval::bitcast(self.value(*arg, lane)?, *from, *to)?,
            Def::Indirect { .. } => self.look_up(v, lane)?,
            Def::Final(acc) => {
                let at = self.number(self.grid(), lane);
                let total = self.accs[acc.index()].totals.get(at).copied();
                let total = total.ok_or_else(|| {
                    Error::internal(format!("{acc} is used before it is finished"))
                })?;
                total.convert(value.dtype)
            }
            Def::Sum(of) => {
                if let Some(a) = &block.attention {
                    return self.query_by_key(a, *of, lane);
                }
                let at = self.number(self.grid(), lane);
                let sum = self.sums.get(at).copied();
                sum.ok_or_else(|| Error::internal("a sum without a product"))?
            }
            Def::Running { .. } => return Err(Error::internal("a scan of one lane")),
            Def::Sorted { .. } => return Err(Error::internal("a sort of one lane")),
        })
    }

    /// Returns an index read from data, wrapped and checked as in the interpreter of loops.
    fn look_up(&self, v: ValId, lane: &Lane) -> Result<Scalar> {
        let Def::Indirect {
            value,
            wrap,
            check,
            mask,
            ..
        } = self.block.value(v).def
        else {
            return Err(Error::internal("no index"));
        };
        let (_, n) = self.code.indirect[&v];
        let given = self.value(value, lane)?;
        let mut i = given.as_i64();
        if wrap && i < 0 {
            i = i.saturating_add(n);
        }
        if check.is_some() && self.holds(mask, lane)? && !(0..n).contains(&i) {
            return Err(Error::input(format!(
                "index {given} is out of range for a dimension of size {n}"
            )));
        }
        Ok(Scalar::Int(i))
    }

    /// Writes the lanes of a store's shape for which the mask holds.
    fn store(&mut self, s: &BlockStore) -> Result<()> {
        let buf = self.buffer(s.buf)?;
        let dtype = self.block.value(s.value).dtype;
        for lane in self.lanes_of(s.shape) {
            if !self.holds(s.mask, &lane)? {
                continue;
            }
            let at = self.index(s.offset, &lane)?;
            let mut new = self.value(s.value, &lane)?;
            // Atomics on the machine: the order in which lanes add does not matter to the result
            // but for rounding.
            if let Some(op) = eval::store_op(s.mode) {
                let old = self.run.memory.load(buf, at)?;
                new = eval::op(op, dtype, &[old, new])?;
            }
            self.run.memory.store(buf, at, new)?;
        }
        Ok(())
    }

    /// The sums of products. Those of `f32` are summed in `f64` and rounded once: a tile adds in no order of its own.
    fn product(&mut self) -> Result<()> {
        let Some(p) = &self.block.product else {
            return Ok(());
        };
        let mut sums = Vec::new();
        for lane in self.lanes_of(self.grid()) {
            sums.push(self.dot(p, &lane)?);
        }
        self.sums = sums;
        Ok(())
    }

    /// Returns the sum of products of one lane.
    fn dot(&mut self, p: &Product, lane: &Lane) -> Result<Scalar> {
        let slot = self.block.dims.len();
        let mut sum = 0f64;
        for k in 0..self.code.depth {
            self.slots[slot] = k;
            let (a, b) = (self.operand(&p.a, lane)?, self.operand(&p.b, lane)?);
            sum += match p.dtype {
                // A product of halves is exact in `f32`; one of `f32` is rounded as the machine's
                // units may do.
                DType::F32 => f64::from(a as f32 * b as f32),
                _ => a * b,
            };
        }
        Ok(Scalar::Float(sum).convert(p.dtype))
    }

    /// Returns an operand's element; it has no mask, as lanes beyond the ends do not exist here.
    fn operand(&mut self, o: &Operand, lane: &Lane) -> Result<f64> {
        let at = self.index(o.offset, lane)?;
        Ok(self.run.memory.load(self.buffer(o.buf)?, at)?.as_f64())
    }

    /// Returns the dtype in which an accumulator computes.
    pub(super) fn dtype(&self, acc: AccId) -> DType {
        self.block.accs[acc.index()].dtype
    }
}
