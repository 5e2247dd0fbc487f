//! Builds bodies: common-subexpression elimination, simplification, dead-code elimination.
//!
//! [`Typed`] is a list of statements with the dtype of each; lowering writes its bodies with it. A
//! [`Builder`] adds the rewrites on top: stage schedule copies bodies into it, one into another.
//!
//! Copying ([`Builder::splice`]) is how producers are inlined. At a load of the producer's buffer a
//! hook splices the producer's body with its axes replaced by the coordinates of the load:
//!
//! ```text
//! producer  i0:  t[i0] = exp(x[i0])          consumer  i0, i1:  y[i0, i1] = t[i1] * w[i0]
//! spliced   i0, i1:  y[i0, i1] = exp(x[i1]) * w[i0]
//! ```
//!
//! Rewrites happen when a statement is added, in one pass: operands are final by then, and rules
//! look only at operands. Dead statements are swept once, at the end.

use crate::simplify::{self, Known, Simple, Values};
use crate::{Body, BufId, Buffer, Check, Coords, ReduceOp, ScalarOp, Stmt, StmtId, StoreMode};
use inrush_base::{DType, Scalar};
use inrush_expr::{Expr, Exprs, Position, Sym, SymMap};
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;
use std::borrow::Cow;

/// Decides what becomes of a load, a store, or the contraction's sum while a body is copied.
pub trait LoadHook {
    /// Returns a value that stands for the load, `None` to load.
    fn load(&mut self, _: &mut Builder, _: &Load) -> Option<StmtId> {
        None
    }
    /// Called for each store that was copied.
    fn stored(&mut self, _: &mut Builder, _: BufId, _: &Coords, _: StmtId) {}
}

/// A load whose coordinates and mask are those of the body under construction.
pub struct Load<'a> {
    pub buf: BufId,
    pub coords: &'a Coords,
    pub mask: Option<StmtId>,
    pub fill: Scalar,
}

/// Maps statements of a body to those of the body that is being built.
pub type StmtIds = SmallVec<[StmtId; 32]>;

/// Copies loads and stores as they are.
pub struct Plain;
impl LoadHook for Plain {}

/// Statements and the dtypes of their values.
#[derive(Debug, Default)]
pub struct Typed {
    stmts: Vec<Stmt>,
    dtypes: Vec<DType>,
}

impl Typed {
    /// Returns an empty list with room for this many statements.
    pub fn with_capacity(stmts: usize) -> Typed {
        Typed {
            stmts: Vec::with_capacity(stmts),
            dtypes: Vec::with_capacity(stmts),
        }
    }

    /// Makes room for this many statements.
    fn make_room(&mut self, stmts: usize) {
        self.stmts.reserve_exact(stmts);
        self.dtypes.reserve_exact(stmts);
    }

    /// Adds a statement as it is. `loaded` is the compute dtype of a buffer, for loads.
    pub fn push(&mut self, stmt: Stmt, loaded: impl FnOnce(BufId) -> DType) -> StmtId {
        let dtype = stmt.dtype(loaded, |s| self.dtype(s));
        let id = StmtId::from_index(self.stmts.len());
        self.stmts.push(stmt);
        self.dtypes.push(dtype);
        id
    }

    pub fn stmts(&self) -> &[Stmt] {
        &self.stmts
    }

    pub fn stmt(&self, s: StmtId) -> &Stmt {
        &self.stmts[s.index()]
    }

    pub fn dtype(&self, s: StmtId) -> DType {
        self.dtypes[s.index()]
    }

    pub fn into_stmts(self) -> Vec<Stmt> {
        self.stmts
    }
}

/// A body under construction, in which every value is simplified and exists once.
pub struct Builder<'a> {
    pub ex: &'a Exprs,
    pub buffers: &'a [Buffer],
    /// The statements so far.
    list: Typed,
    /// Statements by value, up to the position `known`; short bodies are searched instead.
    memo: FxHashMap<Stmt, StmtId>,
    /// Number of statements that `memo` holds.
    known: usize,
    /// Defining statement, without its symbol, to the symbol.
    indirect: FxHashMap<(StmtId, Expr, bool, Check, Option<StmtId>), Sym>,
    /// Buffers that the body writes: their loads are not shared.
    volatile: SmallVec<[BufId; 2]>,
    /// Index symbols that are taken: axes, and indirect indices of the body.
    used: SmallVec<[Sym; 8]>,
}

impl<'a> Builder<'a> {
    /// Returns a builder of a body over axes with the given symbols.
    pub fn new(ex: &'a Exprs, buffers: &'a [Buffer], axes: impl Iterator<Item = Sym>) -> Self {
        Builder {
            ex,
            buffers,
            list: Typed::default(),
            memo: FxHashMap::default(),
            known: 0,
            indirect: FxHashMap::default(),
            volatile: SmallVec::new(),
            used: axes.collect(),
        }
    }

    pub fn dtype(&self, s: StmtId) -> DType {
        self.list.dtype(s)
    }

    /// Makes room for this many statements.
    pub fn make_room(&mut self, stmts: usize) {
        self.list.make_room(stmts);
    }

    /// Returns the statements so far.
    pub fn stmts(&self) -> &[Stmt] {
        self.list.stmts()
    }

    /// Adds a statement, or returns the equal or simpler one that is there. Not for [`Stmt::Indirect`].
    pub fn push(&mut self, stmt: Stmt) -> StmtId {
        let stmt = match self.simplify(stmt) {
            Ok(known) => return known,
            Err(stmt) => stmt,
        };
        let shared = match &stmt {
            Stmt::Store { .. } | Stmt::Indirect { .. } => false,
            Stmt::Load { buf, .. } => !self.volatile.contains(buf),
            _ => true,
        };
        if shared && let Some(s) = self.find(&stmt) {
            return s;
        }
        self.add(stmt)
    }

    /// Adds a statement as it is.
    fn add(&mut self, stmt: Stmt) -> StmtId {
        let buffers = self.buffers;
        self.list.push(stmt, |b| buffers[b.index()].dtype.compute())
    }

    /// Begins with the statements of a body that a builder has made, under their numbers: copying them by
    /// [`Builder::splice`] would change nothing.
    pub fn resume(&mut self, body: &Body) {
        self.list.make_room(body.stmts.len());
        for stmt in &body.stmts {
            if let Stmt::Indirect {
                value,
                sym,
                size,
                wrap,
                check,
                mask,
            } = stmt
            {
                self.claim(*sym);
                self.indirect
                    .insert((*value, *size, *wrap, *check, *mask), *sym);
            }
            self.add(stmt.clone());
        }
    }

    /// Returns an equal statement that came before.
    fn find(&mut self, stmt: &Stmt) -> Option<StmtId> {
        // Up to so many statements a search is faster than hashing each of them.
        const SEARCHED: usize = 24;
        let stmts = self.list.stmts();
        if stmts.len() <= SEARCHED {
            return (stmts.iter().position(|s| s == stmt)).map(StmtId::from_index);
        }
        for (k, s) in stmts.iter().enumerate().skip(self.known) {
            let id = StmtId::from_index(k);
            self.memo.entry(s.clone()).or_insert(id);
        }
        self.known = stmts.len();
        self.memo.get(stmt).copied()
    }

    /// Adds a constant, converted to `dtype`.
    pub fn constant(&mut self, value: Scalar, dtype: DType) -> StmtId {
        let value = value.convert(dtype);
        self.push(Stmt::Const { value, dtype })
    }

    /// Adds an operation of operand dtype `dtype`.
    pub fn op(&mut self, op: ScalarOp, args: &[StmtId], dtype: DType) -> StmtId {
        self.push(Stmt::Op {
            op,
            args: args.into(),
            dtype,
        })
    }

    /// Returns the conjunction of two masks, `None` for one that is always true.
    pub fn and(&mut self, a: Option<StmtId>, b: Option<StmtId>) -> Option<StmtId> {
        match (a, b) {
            (Some(a), Some(b)) => Some(self.op(ScalarOp::And, &[a, b], DType::Bool)),
            (a, b) => a.or(b),
        }
    }

    /// Returns `value` as a store into and a load from a buffer of `dtype` would give it.
    pub fn through_memory(&mut self, value: StmtId, dtype: DType) -> StmtId {
        if dtype.is_narrow_float() {
            self.push(Stmt::Cast {
                arg: value,
                to: dtype,
            })
        } else {
            value
        }
    }

    /// Returns `value` under a mask, as a masked load of it would give it.
    pub fn masked(&mut self, value: StmtId, mask: Option<StmtId>, fill: Scalar) -> StmtId {
        let Some(m) = mask else { return value };
        if let Stmt::Load {
            buf,
            coords,
            mask: Some(own),
            ..
        } = self.list.stmt(value)
            && *own == m
        {
            let (buf, coords) = (*buf, coords.clone());
            return self.push(Stmt::Load {
                buf,
                coords,
                mask,
                fill,
            });
        }
        let dtype = self.dtype(value);
        let fill = self.constant(fill, dtype);
        self.op(ScalarOp::Where, &[m, value, fill], dtype)
    }

    /// Returns an indirect index of extent `size` that this body does not use yet.
    fn fresh(&mut self, size: Expr) -> Sym {
        let mut number = 0;
        loop {
            let s = self.ex.sym_at(Position::Indirect(number), size);
            if self.claim(s) {
                return s;
            }
            number += 1;
        }
    }

    /// Keeps `sym` from being given out.
    pub fn reserve(&mut self, sym: Sym) {
        self.claim(sym);
    }

    /// Takes a symbol. Returns true if it was free.
    fn claim(&mut self, sym: Sym) -> bool {
        let free = !self.used.contains(&sym);
        if free {
            self.used.push(sym);
        }
        free
    }

    /// Announces the buffers that the coming statements write.
    pub fn will_write(&mut self, buffers: &[BufId]) {
        self.volatile.extend_from_slice(buffers);
    }

    /// Copies the statements of `body` that `wanted` needs (all, when `None`), with symbols
    /// substituted by `map` and loads guarded by `mask` too. Returns the new id of each old statement.
    pub fn splice(
        &mut self,
        body: &Body,
        wanted: Option<StmtId>,
        map: &SymMap,
        mask: Option<StmtId>,
        hook: &mut dyn LoadHook,
    ) -> StmtIds {
        let live = wanted.map(|w| live_from(self.ex, &body.stmts, std::iter::once(w)));
        if live.is_none() {
            self.list.make_room(body.stmts.len());
        }
        let mut map = Cow::Borrowed(map);
        let mut ids = StmtIds::with_capacity(body.stmts.len());
        for (k, stmt) in body.stmts.iter().enumerate() {
            if live.as_ref().is_some_and(|l| !l[k]) {
                // No live statement has it as an operand.
                ids.push(StmtId(u32::MAX));
                continue;
            }
            let mut stmt = stmt.clone();
            stmt.map_operands(|s| ids[s.index()]);
            if !map.is_empty() {
                for e in stmt.exprs_mut() {
                    *e = self.ex.subst(*e, &map);
                }
            }
            let id = match &stmt {
                Stmt::Load { .. } => self.splice_load(stmt, mask, hook),
                Stmt::Indirect { .. } => self.splice_indirect(stmt, mask, &mut map),
                Stmt::Store { .. } => self.splice_store(stmt, mask, hook),
                _ => self.push(stmt),
            };
            ids.push(id);
        }
        ids
    }

    /// Adds a load under `mask`, or what the hook puts in its place.
    fn splice_load(
        &mut self,
        mut stmt: Stmt,
        mask: Option<StmtId>,
        hook: &mut dyn LoadHook,
    ) -> StmtId {
        let Stmt::Load {
            buf,
            coords,
            mask: own,
            fill,
        } = &mut stmt
        else {
            unreachable!("called for loads")
        };
        *own = self.and(mask, *own);
        let load = Load {
            buf: *buf,
            coords,
            mask: *own,
            fill: *fill,
        };
        match hook.load(self, &load) {
            Some(v) => v,
            None => self.push(stmt),
        }
    }

    /// Adds an indirect index under `mask`, unless an equal one is there; `map` renames its symbol
    /// from now on.
    fn splice_indirect(
        &mut self,
        mut stmt: Stmt,
        mask: Option<StmtId>,
        map: &mut Cow<SymMap>,
    ) -> StmtId {
        let Stmt::Indirect {
            value,
            sym,
            size,
            wrap,
            check,
            mask: own,
        } = &mut stmt
        else {
            unreachable!("called for indirect indices")
        };
        *own = self.and(mask, *own);
        let (old, size) = (*sym, *size);
        let key = (*value, size, *wrap, *check, *own);
        let new = match self.indirect.get(&key) {
            Some(s) => *s,
            None => {
                let new = if self.claim(old) {
                    old
                } else {
                    self.fresh(size)
                };
                self.indirect.insert(key, new);
                *sym = new;
                self.add(stmt);
                new
            }
        };
        if new != old || map.get(old).is_some() {
            map.to_mut().insert(old, self.ex.sym_expr(new));
        }
        // Nothing refers to the statement but through its symbol.
        StmtId::from_index(self.stmts().len().saturating_sub(1))
    }

    /// Adds a store under `mask` and tells the hook of it.
    fn splice_store(
        &mut self,
        mut stmt: Stmt,
        mask: Option<StmtId>,
        hook: &mut dyn LoadHook,
    ) -> StmtId {
        let Stmt::Store {
            buf,
            coords,
            value,
            mode,
            mask: own,
        } = &mut stmt
        else {
            unreachable!("called for stores")
        };
        *own = self.and(mask, *own);
        // Only such a store says what a later load at these coordinates gives.
        let everywhere = *mode == StoreMode::Set && own.is_none();
        let (buf, at, value) = (*buf, Coords::from_slice(coords), *value);
        let id = self.push(stmt);
        if everywhere {
            hook.stored(self, buf, &at, value);
        }
        id
    }

    /// Returns the body, without statements that reach no store.
    pub fn finish(self, mut body: Body) -> Body {
        body.stmts = self.list.into_stmts();
        sweep(self.ex, &mut body);
        body
    }

    /// Returns a known statement that stands for `stmt`, or `stmt` itself, perhaps changed.
    fn simplify(&mut self, stmt: Stmt) -> Result<StmtId, Stmt> {
        let simple = match &stmt {
            Stmt::Load { .. } => return self.simplify_load(stmt),
            Stmt::Index { expr, dtype } => simplify::index(self.ex, *expr, *dtype),
            Stmt::Cast { arg, to } => simplify::cast(self, *arg, *to),
            Stmt::Op { op, args, dtype } => simplify::op(self, *op, args, *dtype),
            _ => None,
        };
        match simple {
            None => Err(stmt),
            Some(Simple::Is(s)) => Ok(s),
            Some(Simple::Const(value, dtype)) => Ok(self.constant(value, dtype)),
            Some(Simple::Index(expr, dtype)) => Ok(self.push(Stmt::Index { expr, dtype })),
            Some(Simple::Scaled(s, c)) => {
                let dtype = self.dtype(s);
                let c = self.constant(c, dtype);
                Ok(self.op(ScalarOp::Mul, &[s, c], dtype))
            }
        }
    }

    /// Drops a mask that is true; a load under a mask that is false is its fill. Without a mask the
    /// fill means nothing: one spelling lets equal loads be shared.
    fn simplify_load(&mut self, mut stmt: Stmt) -> Result<StmtId, Stmt> {
        let Stmt::Load {
            buf, mask, fill, ..
        } = &mut stmt
        else {
            return Err(stmt);
        };
        let dtype = self.buffers[buf.index()].dtype.compute();
        match mask.map(|m| self.list.stmt(m)) {
            Some(Stmt::Const { value, .. }) if !value.as_bool() => {
                let fill = *fill;
                return Ok(self.constant(fill, dtype));
            }
            None | Some(Stmt::Const { .. }) => {
                *mask = None;
                *fill = Scalar::Int(0).convert(dtype);
            }
            Some(_) => {}
        }
        Err(stmt)
    }
}

impl Values for Builder<'_> {
    type Id = StmtId;

    fn exprs(&self) -> &Exprs {
        self.ex
    }

    fn dtype(&self, s: StmtId) -> DType {
        self.list.dtype(s)
    }

    fn known(&self, s: StmtId) -> Known<'_, StmtId> {
        match self.list.stmt(s) {
            Stmt::Const { value, .. } => Known::Const(*value),
            Stmt::Index { expr, .. } => Known::Index(*expr),
            Stmt::Op { op, args, .. } => Known::Op(*op, args),
            Stmt::Cast { to, .. } => Known::Cast(*to),
            _ => Known::Other,
        }
    }
}
/// Returns which statements the `roots` need, through operands and index symbols. Checks are roots as
/// well: where a dimension has one element, or was expanded, no coordinate holds the index.
pub fn live_from(
    ex: &Exprs,
    stmts: &[Stmt],
    roots: impl Iterator<Item = StmtId>,
) -> SmallVec<[bool; 64]> {
    let mut live: SmallVec<[bool; 64]> = SmallVec::from_elem(false, stmts.len());
    let mut wanted: FxHashSet<Sym> = FxHashSet::default();
    let has_indirect = stmts.iter().any(|s| matches!(s, Stmt::Indirect { .. }));
    for r in roots {
        live[r.index()] = true;
    }
    // Operands come first, and so does the definition of a symbol: one backward sweep is enough.
    for k in (0..stmts.len()).rev() {
        if let Stmt::Indirect { sym, check, .. } = &stmts[k] {
            live[k] |= *check != Check::None || wanted.contains(sym);
        }
        if !live[k] {
            continue;
        }
        stmts[k].each_operand(|o| live[o.index()] = true);
        if has_indirect {
            for e in stmts[k].exprs() {
                wanted.extend(ex.free_syms(*e));
            }
        }
    }
    live
}

/// Drops statements that reach no store and check nothing.
pub fn sweep(ex: &Exprs, body: &mut Body) {
    let stores = body
        .ids()
        .filter(|s| matches!(body.stmt(*s), Stmt::Store { .. }));
    let live = live_from(ex, &body.stmts, stores);
    if live.iter().all(|l| *l) {
        return;
    }
    let mut new = StmtIds::from_elem(StmtId(u32::MAX), live.len());
    let mut kept = Vec::with_capacity(live.len());
    for (k, mut stmt) in std::mem::take(&mut body.stmts).into_iter().enumerate() {
        if live[k] {
            stmt.map_operands(|s| new[s.index()]);
            new[k] = StmtId::from_index(kept.len());
            kept.push(stmt);
        }
    }
    body.stmts = kept;
}

/// Returns true if a reduction of the body depends on the order of its axes.
pub fn ordered_reduction(body: &Body) -> bool {
    body.stmts.iter().any(|s| match s {
        Stmt::Scan { .. } | Stmt::Sort { .. } => true,
        Stmt::Reduce { op, .. } => matches!(op, ReduceOp::ArgMax | ReduceOp::ArgMin),
        _ => false,
    })
}
