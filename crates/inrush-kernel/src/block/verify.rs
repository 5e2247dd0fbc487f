//! Verifier of block programs: axes and tiles fit, masks cover what a block does not divide, values and accumulators
//! are known where they are used and span the dimensions that they say, and barriers stand between accesses of different
//! threads to the same memory.

mod memory;

use super::text::{Place, print_with_notes};
use super::{
    Block, BlockItem, BlockStore, DimRole, Operand, Piece, Pointers, Results, Tile, Walk, plan,
};
use crate::verify::Rules;
use crate::{Acc, AccId, BufRole, Def, KBufId, KernelBuf, ValId};
use inrush_base::{DType, Error, Result};
use inrush_expr::{Expr, Exprs, Sym};
use inrush_loops::{BufId, ReduceOp, StoreMode, Tables};
use memory::Hazards;

/// Checks a block program; the error names the first thing that is wrong, under its line. With `tables` its buffers are
/// compared with the plan's; `storage` gives for each buffer of the plan the one whose bytes it shares, those that it does not
/// know share none.
pub fn verify(
    exprs: &Exprs,
    block: &Block,
    tables: Option<Tables>,
    storage: &[BufId],
) -> Result<()> {
    let mut v = Verifier {
        exprs,
        block,
        outer: vec![false; block.values.len()],
        inner: None,
        accs: vec![State::Unknown; block.accs.len()],
        syms: block.sizes.iter().map(|p| p.sym).collect(),
        hazards: Hazards::new(block, storage),
        items: 0,
        at: Place::Block,
    };
    v.run(tables).map_err(|e| {
        let message = e.message().to_string();
        Error::internal(format!(
            "the block program `{}` breaks a rule: {message}\n{}",
            block.name,
            print_with_notes(exprs, block, &[(v.at, message.clone())])
        ))
    })
}

/// Checks the parts of one launch: they run in any order, so none may write what another touches.
pub fn verify_launch(parts: &[Piece], overlap: &dyn Fn(BufId, BufId) -> bool) -> Result<()> {
    for (i, a) in parts.iter().enumerate() {
        for b in &parts[i + 1..] {
            if super::horizontal_fusion::clash(a, b, overlap) {
                return Err(Error::internal(format!(
                    "one launch joins `{}` and `{}`, of which one writes what the other touches",
                    a.block.name, b.block.name
                )));
            }
        }
    }
    Ok(())
}

/// How far a reduction has come.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum State {
    Unknown,
    Started,
    /// Takes part in a one-pass variance or softmax with this accumulator.
    Paired(AccId),
    Done,
}

struct Verifier<'a> {
    exprs: &'a Exprs,
    block: &'a Block,
    /// Values known from here on.
    outer: Vec<bool>,
    /// Values known in the open loop, and whether it goes back.
    inner: Option<(Vec<bool>, bool)>,
    accs: Vec<State>,
    syms: Vec<Sym>,
    hazards: Hazards<'a>,
    /// Items so far, and the place of what is being checked.
    items: usize,
    at: Place,
}

fn broken<T>(message: impl Into<String>) -> Result<T> {
    Err(Error::internal(message.into()))
}

impl Verifier<'_> {
    fn run(&mut self, tables: Option<Tables>) -> Result<()> {
        self.dims()?;
        self.launch()?;
        self.tile()?;
        self.buffers(tables)?;
        self.product()?;
        self.attention()?;
        if self.block.shapes.len() != self.block.values.len() {
            return broken("a value without a shape");
        }
        self.list(&self.block.items)?;
        if let Some(tables) = tables {
            self.at = Place::Block;
            memory::in_bounds(tables, self.block)?;
        }
        Ok(())
    }

    /// Checks the axes: blocks, roles, and masks that a block makes necessary.
    fn dims(&mut self) -> Result<()> {
        let (ex, dims) = (self.exprs, &self.block.dims);
        for (i, d) in dims.iter().enumerate() {
            self.at = Place::Dim(i);
            self.expr(d.extent)?;
            if d.block < 1 || d.block.count_ones() != 1 {
                return broken(format!("a block of {} points is no power of two", d.block));
            }
            if d.role != DimRole::Grid && i + 1 != dims.len() {
                return broken("the axis that is reduced comes last, and there is one at most");
            }
            if i > 2 && d.role == DimRole::Grid {
                return broken("a grid of more than three axes");
            }
            if d.exact && !plan::exact(ex, d.extent, d.block, d.role) {
                let (n, extent) = (d.block, ex.show(d.extent));
                return broken(format!(
                    "a mask is missing: {n} is not known to divide {extent}"
                ));
            }
            if d.role == DimRole::Persistent && d.block < ex.range(d.extent).hi {
                let most = ex.range(d.extent).hi;
                return broken(format!("{} points do not hold all of {most}", d.block));
            }
            self.syms.push(d.sym);
        }
        Ok(())
    }

    /// Checks the number of programs, warps and stages.
    fn launch(&mut self) -> Result<()> {
        self.at = Place::Launch;
        let (ex, b) = (self.exprs, self.block);
        let grid = b.dims.iter().filter(|d| d.role == DimRole::Grid);
        let programs = ex.product(grid.map(|d| ex.ceildiv(d.extent, ex.int(d.block))));
        if !ex.prove_eq(programs, b.programs) {
            return broken(format!("the grid has {} programs", ex.show(programs)));
        }
        if !(1..=32).contains(&b.warps) || b.warps.count_ones() != 1 {
            return broken(format!("{} warps", b.warps));
        }
        if !(1..=plan::STAGES).contains(&b.stages) {
            return broken(format!("a pipeline of {} stages", b.stages));
        }
        Ok(())
    }

    /// The tile that was chosen is the one that the axes have.
    fn tile(&mut self) -> Result<()> {
        self.at = Place::Tile;
        let b = self.block;
        let Some(chosen) = b.chosen else {
            return Ok(());
        };
        let points = |letter: &str| {
            let at = (0..b.dims.len()).find(|i| b.letter(*i) == letter);
            at.map(|i| b.dims[i].block)
        };
        let looped = b.dims.iter().any(|d| d.role == DimRole::Looped);
        if let Some(p) = &b.product {
            let by_maps = chosen.pointers == Pointers::Map;
            if (p.block, p.persistent) != (chosen.r, by_maps) {
                return broken(format!(
                    "a product in steps of {}, persistent: {}",
                    p.block, p.persistent
                ));
            }
        }
        let has = Tile {
            x: points("x").unwrap_or(chosen.x),
            y: points("y").unwrap_or(chosen.y),
            r: points("r").unwrap_or(chosen.r),
            looped: if points("r").is_some() {
                looped
            } else {
                chosen.looped
            },
            warps: b.warps,
            stages: b.stages,
            ..chosen
        };
        if has != chosen {
            return broken(format!("the program has a tile of {has}"));
        }
        Ok(())
    }

    fn buffers(&mut self, tables: Option<Tables>) -> Result<()> {
        let Some(tables) = tables else {
            return Ok(());
        };
        for (i, b) in self.block.buffers.iter().enumerate() {
            self.at = Place::Buffer(KBufId::from_index(i));
            match tables.buffers.get(b.buf.index()) {
                None => return broken(format!("the plan has no buffer {}", b.buf)),
                Some(have) if have.dtype != b.dtype => {
                    return broken(format!("{} is {}", b.buf, have.dtype));
                }
                Some(_) => {}
            }
        }
        Ok(())
    }

    /// Checks the operands of a product: each depends on its own side of the tile and on `k`.
    fn product(&mut self) -> Result<()> {
        self.at = Place::Product;
        let (ex, b) = (self.exprs, self.block);
        let Some(p) = &b.product else {
            return Ok(());
        };
        self.expr(p.extent)?;
        let grid = b.dims.iter().all(|d| d.role == DimRole::Grid);
        let (rows, columns) = match b.dims.as_slice() {
            [.., y, x] if grid && y.is_tile() && x.is_tile() => (y.sym, x.sym),
            _ => return broken("a product needs a tile of rows and columns"),
        };
        if p.block < 1 || p.block.count_ones() != 1 {
            return broken(format!("a block of {} points is no power of two", p.block));
        }
        if p.exact && !plan::exact(ex, p.extent, p.block, DimRole::Looped) {
            let (n, extent) = (p.block, ex.show(p.extent));
            return broken(format!(
                "a mask is missing: {n} is not known to divide {extent}"
            ));
        }
        self.syms.push(p.k);
        for (o, other, what) in [(&p.a, columns, "columns"), (&p.b, rows, "rows")] {
            self.expr(o.offset)?;
            let held = self.buf(o.buf)?;
            if !held.dtype.is_float() {
                return broken(format!("a product of {}", held.dtype));
            }
            if ex.contains_sym(o.offset, other) {
                return broken(format!("{} depends on the {what} of the result", o.buf));
            }
        }
        if self.buf(p.a.buf)?.dtype != self.buf(p.b.buf)?.dtype {
            return broken("a product of two dtypes");
        }
        if p.persistent && p.matrices(ex, b).is_none() {
            return broken("a persistent product with operands that tensor maps do not describe");
        }
        // The items see the sum only.
        self.syms.pop();
        Ok(())
    }

    /// Checks the operands of an attention: each depends on its own sides, results are written, blocks hold whole steps.
    fn attention(&mut self) -> Result<()> {
        self.at = Place::Attention;
        let (ex, b) = (self.exprs, self.block);
        let Some(a) = &b.attention else {
            return Ok(());
        };
        let (y, x, r) = match b.dims.as_slice() {
            [y, x, r] if r.role == DimRole::Looped && !y.is_tile() && x.is_tile() => (y, x, r),
            _ => return broken("an attention needs a batch, a tile of rows and a loop over keys"),
        };
        if b.product.is_some() {
            return broken("an attention and a product");
        }
        for s in [&a.d, &a.n] {
            self.expr(s.extent)?;
            let n = ex.as_int(s.extent).unwrap_or(i64::MAX);
            if s.block < n || s.block.count_ones() != 1 || s.exact != (s.block == n) {
                return broken(format!("a block of {} points does not hold {n}", s.block));
            }
        }
        let dtype = self.buf(a.query.buf)?.dtype;
        if !dtype.is_float() || dtype == DType::F64 {
            return broken(format!("an attention of {dtype}"));
        }
        let (features, columns) = ([y.sym, x.sym, a.d.sym], [y.sym, x.sym, a.n.sym]);
        let mut sides = vec![
            (&a.query, features),
            (&a.key, [y.sym, r.sym, a.d.sym]),
            (&a.value, [y.sym, r.sym, a.n.sym]),
        ];
        match &a.results {
            Results::Softmax {
                out,
                logsumexp,
                max,
            } => {
                sides.push((out, columns));
                for o in [logsumexp, max] {
                    self.spans(o, &[y.sym, x.sym])?;
                }
            }
            Results::Gradients {
                grad,
                by_key,
                by_value,
            } => {
                sides.push((grad, columns));
                // Sums that another kernel adds up are of `f32`.
                for (o, own) in [(by_key, features)]
                    .into_iter()
                    .chain(by_value.iter().map(|o| (o, columns)))
                {
                    self.spans(o, &own)?;
                    let of = self.buf(o.buf)?.dtype;
                    if of != dtype && of != DType::F32 {
                        return broken(format!("sums of {of}"));
                    }
                }
            }
        }
        for (o, own) in sides {
            self.spans(o, &own)?;
            if self.buf(o.buf)?.dtype != dtype {
                return broken("an attention of two dtypes");
            }
        }
        for o in a.results() {
            if self.buf(o.buf)?.role == BufRole::In {
                return broken(format!("{} is written", o.buf));
            }
        }
        if a.causal.is_some() && (a.blocks.is_some() || a.grad().is_some()) {
            return broken("a causal mask and lists of blocks, or gradients");
        }
        let Some(blocks) = &a.blocks else {
            return Ok(());
        };
        if blocks.rows % x.block != 0 || blocks.keys % r.block != 0 {
            return broken("a step or a tile of rows has keys or rows of two blocks");
        }
        for l in blocks.lists() {
            self.spans(&l.count, &[y.sym, x.sym])?;
            self.spans(&l.index, &[y.sym, x.sym, l.position])?;
            let ints = [l.count.buf, l.index.buf].map(|b| self.buf(b).map(|b| b.dtype.is_int()));
            if ints.into_iter().any(|i| !matches!(i, Ok(true))) {
                return broken("lists of blocks that are no integers");
            }
        }
        Ok(())
    }

    /// Checks that an offset uses these indices only.
    fn spans(&self, o: &Operand, own: &[Sym]) -> Result<()> {
        self.buf(o.buf)?;
        for s in self.exprs.free_syms(o.offset) {
            if !own.contains(&s) && !self.syms.contains(&s) || self.is_other_axis(s, own) {
                let name = self.exprs.sym_info(s).name;
                return broken(format!(
                    "the offset in {} uses `{name}`, which is not its own",
                    o.buf
                ));
            }
        }
        Ok(())
    }

    /// Returns true for an axis of the tile that is none of `own`.
    fn is_other_axis(&self, s: Sym, own: &[Sym]) -> bool {
        self.block.dims.iter().any(|d| d.sym == s) && !own.contains(&s)
    }

    /// Checks the item that takes scores in.
    fn attend(&mut self, score: ValId, second: Option<ValId>, keep: Option<ValId>) -> Result<()> {
        let Some(a) = self
            .block
            .attention
            .as_ref()
            .filter(|_| self.inner.is_some())
        else {
            return broken("scores outside of an attention's loop");
        };
        let weighs = matches!(
            a.results,
            Results::Gradients {
                by_value: Some(_),
                ..
            }
        );
        if second.is_some() != weighs {
            return broken("as many weights as sums");
        }
        for v in [Some(score), second].into_iter().flatten() {
            self.used(v, Some(DType::F32))?;
        }
        keep.map_or(Ok(()), |k| self.used(k, Some(DType::Bool)))
    }

    fn list(&mut self, items: &[BlockItem]) -> Result<()> {
        for item in items {
            self.at = Place::Item(self.items);
            self.items += 1;
            self.item(item)?;
        }
        Ok(())
    }

    fn item(&mut self, item: &BlockItem) -> Result<()> {
        match item {
            BlockItem::Let(v) => self.define(*v),
            BlockItem::Loop(w) => self.walk(w),
            BlockItem::Acc(a) => {
                self.acc(*a)?;
                self.reduced()?;
                if self.inner.is_some() {
                    return broken(format!("{a} starts anew with every step"));
                }
                self.accs[a.index()] = State::Started;
                Ok(())
            }
            BlockItem::Update { acc, value } => self.update(*acc, *value),
            BlockItem::Finish(a) => self.finish(*a),
            BlockItem::Moments {
                sum,
                squares,
                value,
            } => self.pair([*sum, *squares], ReduceOp::Sum, *value),
            BlockItem::FinishMoments { sum, squares } => self.finish_pair([*sum, *squares]),
            BlockItem::Exponentials { max, sum, value } => {
                self.pair([*max, *sum], ReduceOp::Max, *value)
            }
            BlockItem::FinishExponentials { max, sum, shift } => {
                let dtype = self.acc(*sum)?.dtype;
                self.used(*shift, Some(dtype))?;
                self.uniform(*shift)?;
                match (self.accs[max.index()], self.accs[sum.index()]) {
                    (State::Done, State::Paired(with)) if with == *max && self.inner.is_none() => {
                        self.accs[sum.index()] = State::Done;
                        Ok(())
                    }
                    _ => broken(format!("{sum} needs {max}, finished, and their loop")),
                }
            }
            BlockItem::Attend {
                score,
                second,
                keep,
            } => self.attend(*score, *second, *keep),
            BlockItem::Store(s) => self.store(s),
            BlockItem::Barrier => {
                if self.inner.is_some() {
                    return broken("a barrier in a loop");
                }
                self.hazards.barrier();
                Ok(())
            }
        }
    }

    /// Checks a walk. Values from inside are not known after it, since they are those of its last
    /// step.
    fn walk(&mut self, w: &Walk) -> Result<()> {
        if !self.block.dims.iter().any(|d| d.role == DimRole::Looped) {
            return broken("a loop over an axis that is held whole");
        }
        self.inner = Some((vec![false; self.block.values.len()], w.back));
        let syms = self.syms.clone();
        self.hazards.open();
        self.list(&w.body)?;
        self.hazards.close();
        self.syms = syms;
        self.inner = None;
        Ok(())
    }

    /// The reduced axis, as a bit of shapes.
    fn reduced(&self) -> Result<u32> {
        match self.block.reduced() {
            Some(at) => Ok(1 << at),
            None => broken("a reduction without an axis"),
        }
    }

    fn is_looped(&self, shape: u32) -> bool {
        let dims = self.block.dims.iter().enumerate();
        dims.filter(|(_, d)| d.role == DimRole::Looped)
            .any(|(i, _)| shape & (1 << i) != 0)
    }

    /// The dimensions of the tile, without the reduced one.
    fn grid(&self) -> u32 {
        let dims = self.block.dims.iter().enumerate();
        dims.filter(|(_, d)| d.role == DimRole::Grid && d.is_tile())
            .fold(0, |m, (i, _)| m | 1 << i)
    }

    fn uniform(&self, v: ValId) -> Result<()> {
        let shape = self.block.shapes[v.index()];
        match shape & !self.grid() {
            0 => Ok(()),
            _ => broken(format!("{v} is not one number for each row")),
        }
    }

    fn update(&mut self, acc: AccId, value: ValId) -> Result<()> {
        let a = self.acc(acc)?.clone();
        self.reduced()?;
        self.used(value, Some(a.dtype))?;
        if a.op.is_arg() != a.index.is_some() {
            return broken(format!("{acc} seeks a position, or has one for nothing"));
        }
        if let Some(e) = a.index {
            self.expr(e)?;
        }
        let state = &mut self.accs[acc.index()];
        match (self.inner.is_some(), *state) {
            (true, State::Started) => Ok(()),
            (false, State::Unknown) if !self.is_looped(self.block.shapes[value.index()]) => {
                self.accs[acc.index()] = State::Done;
                Ok(())
            }
            (true, _) => broken(format!("{acc} is not started")),
            (false, _) => broken(format!("{acc} has been started or finished before")),
        }
    }

    fn finish(&mut self, acc: AccId) -> Result<()> {
        let op = self.acc(acc)?.op;
        if self.inner.is_some() {
            return broken(format!("{acc} is finished with every step"));
        }
        // The lanes' maxima of a softmax are combined like any others.
        match self.accs[acc.index()] {
            State::Started => {}
            State::Paired(_) if op == ReduceOp::Max => {}
            State::Paired(with) => {
                return broken(format!("{acc} and {with} are finished together"));
            }
            _ => return broken(format!("{acc} is not started")),
        }
        self.accs[acc.index()] = State::Done;
        Ok(())
    }

    /// A step of two reductions at once, of which the first one has the operation `op` and the second one is a sum.
    fn pair(&mut self, pair: [AccId; 2], op: ReduceOp, value: ValId) -> Result<()> {
        let [first, second] = pair;
        let (a, b) = (self.acc(first)?.clone(), self.acc(second)?.clone());
        if a.op != op || b.op != ReduceOp::Sum || a.dtype != b.dtype || !a.dtype.is_float() {
            return broken(format!("{first} and {second} are no such pair"));
        }
        self.used(value, Some(a.dtype))?;
        match &self.inner {
            None => return broken("two reductions in one outside of a loop"),
            Some((_, true)) if op == ReduceOp::Sum => {
                return broken("moments count the steps, which go back here");
            }
            Some(_) => {}
        }
        for (acc, with) in [(first, second), (second, first)] {
            match self.accs[acc.index()] {
                State::Started => self.accs[acc.index()] = State::Paired(with),
                _ => return broken(format!("{acc} is not started")),
            }
        }
        Ok(())
    }

    fn finish_pair(&mut self, pair: [AccId; 2]) -> Result<()> {
        let [first, second] = pair;
        self.acc(first)?;
        self.acc(second)?;
        let with = |a: AccId| self.accs[a.index()];
        if self.inner.is_some()
            || with(first) != State::Paired(second)
            || with(second) != State::Paired(first)
        {
            return broken(format!("{first} and {second} have not been taken together"));
        }
        pair.iter().for_each(|a| self.accs[a.index()] = State::Done);
        Ok(())
    }

    fn store(&mut self, s: &BlockStore) -> Result<()> {
        self.expr(s.offset)?;
        let b = self.buf(s.buf)?;
        if matches!(b.role, BufRole::In | BufRole::Local { .. }) {
            return broken(format!("a store into {}, which is not written", s.buf));
        }
        let want = b.dtype.compute();
        self.used(s.value, Some(want))?;
        if let Some(m) = s.mask {
            self.used(m, Some(DType::Bool))?;
        }
        let shape_of = |v: ValId| self.block.shapes[v.index()];
        let spans = self.expr_shape(s.offset) | shape_of(s.value) | s.mask.map_or(0, shape_of);
        if spans & !s.shape != 0 || s.shape & !self.full() != 0 {
            return broken(format!("the store spans {}", self.show_shape(spans)));
        }
        if s.mode != StoreMode::Set && s.shape & self.grid() != self.grid() {
            return broken("a store that combines happens once for each point of the tile");
        }
        if self.is_looped(s.shape) && self.inner.is_none() {
            return broken("a store along the looped axis outside of its loop");
        }
        self.hazards.store(s.buf, s.offset, s.shape, self.full())
    }

    fn full(&self) -> u32 {
        let dims = self.block.dims.iter().enumerate();
        dims.filter(|(_, d)| d.is_tile())
            .fold(0, |m, (i, _)| m | 1 << i)
    }

    fn show_shape(&self, shape: u32) -> String {
        let dims: Vec<&str> = (0..self.block.dims.len())
            .filter(|i| shape & (1 << i) != 0)
            .map(|i| self.block.letter(i))
            .collect();
        format!("[{}]", dims.join(", "))
    }

    fn buf(&self, b: KBufId) -> Result<&KernelBuf> {
        match self.block.buffers.get(b.index()) {
            Some(buffer) => Ok(buffer),
            None => broken(format!("{b} is no buffer")),
        }
    }

    fn acc(&self, a: AccId) -> Result<&Acc> {
        match self.block.accs.get(a.index()) {
            Some(acc) => Ok(acc),
            None => broken(format!("{a} is no accumulator")),
        }
    }

    fn known(&self, v: ValId) -> Result<()> {
        let known = |list: &Vec<bool>| list.get(v.index()).copied().unwrap_or(false);
        match known(&self.outer) || self.inner.as_ref().is_some_and(|i| known(&i.0)) {
            true => Ok(()),
            false => broken(format!("{v} is not known here")),
        }
    }

    fn used(&self, v: ValId, dtype: Option<DType>) -> Result<()> {
        self.known(v)?;
        self.rules().operand(v, dtype)
    }

    fn rules(&self) -> Rules<'_> {
        Rules {
            values: &self.block.values,
            buffers: &self.block.buffers,
            checks: self.block.checks.len(),
        }
    }

    fn expr(&self, e: Expr) -> Result<()> {
        for s in self.exprs.free_syms(e) {
            if !self.syms.contains(&s) {
                return broken(format!(
                    "the symbol `{}` of `{}` is not known here",
                    self.exprs.sym_info(s).name,
                    self.exprs.show(e)
                ));
            }
        }
        Ok(())
    }

    /// Dimensions of an expression.
    fn expr_shape(&self, e: Expr) -> u32 {
        let b = self.block;
        self.exprs.free_syms(e).iter().fold(0, |m, s| {
            let dim = b.dims.iter().position(|d| d.sym == *s && d.is_tile());
            let index = (b.values.iter().zip(&b.shapes))
                .find(|(v, _)| matches!(v.def, Def::Indirect { sym, .. } if sym == *s));
            m | dim.map_or(0, |i| 1 << i) | index.map_or(0, |(_, shape)| *shape)
        })
    }

    fn define(&mut self, v: ValId) -> Result<()> {
        let Some(value) = self.block.values.get(v.index()) else {
            return broken(format!("{v} is no value"));
        };
        if let Some(e) = value.def.expr() {
            self.expr(e)?;
        }
        let operands = value.def.operands();
        operands.iter().try_for_each(|o| self.known(*o))?;
        self.rules().value(v)?;
        let shape_of = |v: ValId| self.block.shapes[v.index()];
        let of_operands = operands.iter().fold(0, |m, o| m | shape_of(*o));
        let (shape, grid) = (shape_of(v), self.grid());
        let spans = match &value.def {
            Def::Sum(_) if self.block.attention.is_some() => grid | self.reduced()?,
            Def::Sum(_) | Def::Final(_) => grid,
            Def::Running { .. } | Def::Sorted { .. } => of_operands | self.reduced()? | grid,
            def => def.expr().map_or(0, |e| self.expr_shape(e)) | of_operands,
        };
        // A load at one place may be masked by an axis that may be empty.
        let masked = match &value.def {
            Def::Load { .. } => self.full() & !grid,
            _ => 0,
        };
        if spans & !shape != 0 || shape & !(spans | masked) != 0 {
            return broken(format!("{v} spans {}", self.show_shape(spans)));
        }
        if self.is_looped(shape) && self.inner.is_none() {
            return broken(format!("{v} spans the looped axis outside of its loop"));
        }
        match &value.def {
            Def::Sum(1..) if (self.block.attention.as_ref()).is_none_or(|a| a.grad().is_none()) => {
                return broken("a second product without gradients");
            }
            Def::Sum(_) if self.block.product.is_none() && self.block.attention.is_none() => {
                return broken("a sum of products without a product");
            }
            Def::Load { buf, offset, .. } => {
                if matches!(self.buf(*buf)?.role, BufRole::Local { .. }) {
                    return broken(format!("{buf} never reaches memory"));
                }
                self.hazards.load(*buf, *offset, shape)?;
            }
            Def::Indirect { sym, size, .. } => {
                self.expr(*size)?;
                self.syms.push(*sym);
            }
            Def::Final(acc) => self.total(*acc, value.dtype)?,
            Def::Running { acc, value: of } => self.running(*acc, *of)?,
            Def::Sorted { .. } if self.is_looped(self.reduced()?) => {
                return broken("a sort of rows that are not held whole");
            }
            _ => {}
        }
        match &mut self.inner {
            Some((inner, _)) => inner[v.index()] = true,
            None => self.outer[v.index()] = true,
        }
        Ok(())
    }

    fn total(&self, acc: AccId, dtype: DType) -> Result<()> {
        let a = self.acc(acc)?;
        if self.accs[acc.index()] != State::Done {
            return broken(format!("{acc} is not finished"));
        }
        let want = if a.op.is_arg() { DType::I64 } else { a.dtype };
        match want == dtype {
            true => Ok(()),
            false => broken(format!("the result of {acc} is {want}")),
        }
    }

    fn running(&self, acc: AccId, value: ValId) -> Result<()> {
        let a = self.acc(acc)?;
        self.rules().operand(value, Some(a.dtype))?;
        match (&self.inner, self.accs[acc.index()]) {
            (Some((_, true)), _) => broken("a running reduction in a loop that goes back"),
            (Some(_), State::Started) | (None, _) => Ok(()),
            (Some(_), _) => broken(format!("{acc} is not started")),
        }
    }
}
