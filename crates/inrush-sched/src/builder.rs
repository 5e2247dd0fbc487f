//! Builds bodies: common-subexpression elimination, constant folding, dead-code elimination.

use inrush_base::{DType, Scalar};
use inrush_expr::{Expr, Exprs, Position, Sym};
use inrush_loops::{
    Body, BufId, Buffer, Check, Coords, ReduceOp, ScalarOp, Stmt, StmtId, StoreMode,
};
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::{SmallVec, smallvec};

pub(crate) use inrush_expr::SymMap;

/// Decides what becomes of a load, a store, or the contraction's sum while a body is copied.
pub(crate) trait LoadHook {
    /// A value that stands for the load, `None` to load.
    fn load(&mut self, _: &mut Builder, _: &Load) -> Option<StmtId> {
        None
    }
    /// Called for each store that was copied.
    fn stored(&mut self, _: &mut Builder, _: BufId, _: &Coords, _: StmtId) {}
}

/// A load whose coordinates and mask are those of the body under construction.
pub(crate) struct Load {
    pub buf: BufId,
    pub coords: Coords,
    pub mask: Option<StmtId>,
    pub fill: Scalar,
}

/// Maps statements of a body to those of the body that is being built.
pub(crate) type StmtIds = SmallVec<[StmtId; 32]>;

/// Copies as it is.
pub(crate) struct Plain;
impl LoadHook for Plain {}

/// A body under construction.
pub(crate) struct Builder<'a> {
    pub ex: &'a Exprs,
    pub buffers: &'a [Buffer],
    pub stmts: Vec<Stmt>,
    dtypes: Vec<DType>,
    /// Statements by value, up to the position `known`; short bodies are searched instead.
    memo: FxHashMap<Stmt, StmtId>,
    known: usize,
    /// Defining statement, without its symbol, to the symbol.
    indirect: FxHashMap<(StmtId, Expr, bool, Check, Option<StmtId>), Sym>,
    /// Buffers that the body writes: their loads are not shared.
    volatile: SmallVec<[BufId; 2]>,
    used: SmallVec<[Sym; 8]>,
}

impl<'a> Builder<'a> {
    /// A body that will run over axes with the given symbols.
    pub(crate) fn new(
        ex: &'a Exprs,
        buffers: &'a [Buffer],
        axes: impl Iterator<Item = Sym>,
    ) -> Self {
        Builder {
            ex,
            buffers,
            stmts: Vec::new(),
            dtypes: Vec::new(),
            memo: FxHashMap::default(),
            known: 0,
            indirect: FxHashMap::default(),
            volatile: SmallVec::new(),
            used: axes.collect(),
        }
    }

    /// Makes room for this many statements.
    pub(crate) fn make_room(&mut self, stmts: usize) {
        self.stmts.reserve_exact(stmts);
        self.dtypes.reserve_exact(stmts);
    }

    pub(crate) fn dtype(&self, s: StmtId) -> DType {
        self.dtypes[s.index()]
    }

    /// Adds a statement, or gives the equal or simpler one that is there. Not for [`Stmt::Indirect`].
    pub(crate) fn push(&mut self, stmt: Stmt) -> StmtId {
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
        let dtype = match &stmt {
            Stmt::Const { dtype, .. }
            | Stmt::Index { dtype, .. }
            | Stmt::Acc { dtype }
            | Stmt::Reduce { dtype, .. }
            | Stmt::Scan { dtype, .. } => *dtype,
            Stmt::Load { buf, .. } => self.buffers[buf.index()].dtype.compute(),
            Stmt::Op { op, dtype, .. } => op.result(*dtype),
            Stmt::Cast { to, .. } | Stmt::Bitcast { to, .. } => to.compute(),
            Stmt::Indirect { .. } => DType::I64,
            Stmt::Store { value, .. } => self.dtype(*value),
        };
        let id = StmtId::from_index(self.stmts.len());
        self.stmts.push(stmt);
        self.dtypes.push(dtype);
        id
    }

    /// Begins with the statements of a body that a builder has made, under their numbers: copying them by
    /// [`Builder::splice`] would change nothing.
    pub(crate) fn resume(&mut self, body: &Body) {
        self.make_room(body.stmts.len());
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

    /// An equal statement that came before.
    fn find(&mut self, stmt: &Stmt) -> Option<StmtId> {
        const SEARCHED: usize = 24;
        if self.stmts.len() <= SEARCHED {
            return (self.stmts.iter().position(|s| s == stmt)).map(StmtId::from_index);
        }
        for k in self.known..self.stmts.len() {
            let id = StmtId::from_index(k);
            self.memo.entry(self.stmts[k].clone()).or_insert(id);
        }
        self.known = self.stmts.len();
        self.memo.get(stmt).copied()
    }

    pub(crate) fn constant(&mut self, value: Scalar, dtype: DType) -> StmtId {
        let value = value.convert(dtype);
        self.push(Stmt::Const { value, dtype })
    }

    pub(crate) fn op(&mut self, op: ScalarOp, args: &[StmtId], dtype: DType) -> StmtId {
        self.push(Stmt::Op {
            op,
            args: args.into(),
            dtype,
        })
    }

    pub(crate) fn and(&mut self, a: Option<StmtId>, b: Option<StmtId>) -> Option<StmtId> {
        match (a, b) {
            (Some(a), Some(b)) => Some(self.op(ScalarOp::And, &[a, b], DType::Bool)),
            (a, b) => a.or(b),
        }
    }

    /// `value` as a store into and a load from a buffer of `dtype` would give it.
    pub(crate) fn through_memory(&mut self, value: StmtId, dtype: DType) -> StmtId {
        if dtype.is_narrow_float() {
            self.push(Stmt::Cast {
                arg: value,
                to: dtype,
            })
        } else {
            value
        }
    }

    /// `value` under a mask: what a masked load of it would give.
    pub(crate) fn masked(&mut self, value: StmtId, mask: Option<StmtId>, fill: Scalar) -> StmtId {
        let Some(m) = mask else { return value };
        if let Stmt::Load {
            buf,
            coords,
            mask: Some(own),
            ..
        } = &self.stmts[value.index()]
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
    pub(crate) fn reserve(&mut self, sym: Sym) {
        self.claim(sym);
    }

    /// Takes a symbol; whether it was free.
    fn claim(&mut self, sym: Sym) -> bool {
        let free = !self.used.contains(&sym);
        if free {
            self.used.push(sym);
        }
        free
    }

    /// Announces the buffers that the coming statements write.
    pub(crate) fn will_write(&mut self, buffers: &[BufId]) {
        self.volatile.extend_from_slice(buffers);
    }

    /// Copies the statements of `body` that `wanted` needs (all, when `None`), with symbols substituted by `map` and
    /// loads guarded by `mask` too. Gives the new id of each old statement.
    pub(crate) fn splice(
        &mut self,
        body: &Body,
        wanted: Option<StmtId>,
        map: &SymMap,
        mask: Option<StmtId>,
        hook: &mut dyn LoadHook,
    ) -> StmtIds {
        let live = wanted.map(|w| live_from(self.ex, &body.stmts, std::iter::once(w)));
        if live.is_none() {
            self.make_room(body.stmts.len());
        }
        let mut map = std::borrow::Cow::Borrowed(map);
        let mut ids = StmtIds::with_capacity(body.stmts.len());
        for (k, stmt) in body.stmts.iter().enumerate() {
            if live.as_ref().is_some_and(|l| !l[k]) {
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
            let id = match stmt {
                Stmt::Load {
                    buf,
                    coords,
                    mask: own,
                    fill,
                } => {
                    let load = Load {
                        buf,
                        coords,
                        mask: self.and(mask, own),
                        fill,
                    };
                    match hook.load(self, &load) {
                        Some(v) => v,
                        None => self.push(Stmt::Load {
                            buf,
                            coords: load.coords,
                            mask: load.mask,
                            fill,
                        }),
                    }
                }
                Stmt::Indirect {
                    value,
                    sym,
                    size,
                    wrap,
                    check,
                    mask: own,
                } => {
                    let own = self.and(mask, own);
                    let key = (value, size, wrap, check, own);
                    let new = match self.indirect.get(&key) {
                        Some(s) => *s,
                        None => {
                            let new = if self.claim(sym) {
                                sym
                            } else {
                                self.fresh(size)
                            };
                            self.indirect.insert(key, new);
                            self.stmts.push(Stmt::Indirect {
                                value,
                                sym: new,
                                size,
                                wrap,
                                check,
                                mask: own,
                            });
                            self.dtypes.push(DType::I64);
                            new
                        }
                    };
                    if new != sym || map.get(sym).is_some() {
                        map.to_mut().insert(sym, self.ex.sym_expr(new));
                    }
                    // Nothing refers to the statement but through its symbol.
                    StmtId::from_index(self.stmts.len().saturating_sub(1))
                }
                Stmt::Store {
                    buf,
                    coords,
                    value,
                    mode,
                    mask: own,
                } => {
                    let at = Coords::from_slice(&coords);
                    let own = self.and(mask, own);
                    let id = self.push(Stmt::Store {
                        buf,
                        coords,
                        value,
                        mode,
                        mask: own,
                    });
                    if mode == StoreMode::Set && own.is_none() {
                        hook.stored(self, buf, &at, value);
                    }
                    id
                }
                stmt => self.push(stmt),
            };
            ids.push(id);
        }
        ids
    }

    /// The body, without statements that reach no store.
    pub(crate) fn finish(self, mut body: Body) -> Body {
        body.stmts = self.stmts;
        sweep(self.ex, &mut body);
        body
    }

    fn as_const(&self, s: StmtId) -> Option<Scalar> {
        match &self.stmts[s.index()] {
            Stmt::Const { value, .. } => Some(*value),
            _ => None,
        }
    }

    /// The statement's value as an index expression.
    fn as_expr(&self, s: StmtId) -> Option<Expr> {
        match &self.stmts[s.index()] {
            Stmt::Index { expr, dtype } if dtype.is_int() => Some(*expr),
            Stmt::Const {
                value: Scalar::Int(v),
                ..
            } => Some(self.ex.int(*v)),
            _ => None,
        }
    }

    /// A known statement that stands for `stmt`, or `stmt` itself, perhaps changed.
    fn simplify(&mut self, stmt: Stmt) -> Result<StmtId, Stmt> {
        match stmt {
            Stmt::Load {
                buf,
                coords,
                mask: Some(m),
                fill,
            } => match self.as_const(m) {
                Some(Scalar::Bool(true)) => Err(Stmt::Load {
                    buf,
                    coords,
                    mask: None,
                    fill: Scalar::Int(0).convert(self.buffers[buf.index()].dtype.compute()),
                }),
                Some(Scalar::Bool(false)) => {
                    let dtype = self.buffers[buf.index()].dtype.compute();
                    Ok(self.constant(fill, dtype))
                }
                _ => Err(Stmt::Load {
                    buf,
                    coords,
                    mask: Some(m),
                    fill,
                }),
            },
            // Without a mask the fill means nothing; one spelling lets equal loads be shared.
            Stmt::Load {
                buf,
                coords,
                mask: None,
                ..
            } => Err(Stmt::Load {
                buf,
                coords,
                mask: None,
                fill: Scalar::Int(0).convert(self.buffers[buf.index()].dtype.compute()),
            }),
            Stmt::Index { expr, dtype } => match self.ex.as_int(expr) {
                Some(v) => Ok(self.constant(Scalar::Int(v), dtype)),
                None => Err(Stmt::Index { expr, dtype }),
            },
            Stmt::Cast { arg, to } => {
                if let Some(c) = self.as_const(arg)
                    && self.exact_cast(c, to)
                {
                    return Ok(self.constant(c.convert(to), to.compute()));
                }
                if self.dtype(arg) == to
                    || matches!(&self.stmts[arg.index()], Stmt::Cast { to: t, .. } if *t == to)
                {
                    return Ok(arg);
                }
                Err(Stmt::Cast { arg, to })
            }
            Stmt::Op { op, args, dtype } => self.simplify_op(op, args, dtype),
            stmt => Err(stmt),
        }
    }

    /// Returns true if folding the conversion gives the machine's result.
    fn exact_cast(&self, c: Scalar, to: DType) -> bool {
        match (c, to) {
            (_, DType::Bool) => true,
            (Scalar::Float(f), d) if d.is_int() => f.is_finite() && f.abs() < 2f64.powi(31),
            (_, d) => d.is_int() || matches!(d, DType::F16 | DType::BF16 | DType::F32 | DType::F64),
        }
    }

    fn simplify_op(
        &mut self,
        op: ScalarOp,
        args: SmallVec<[StmtId; 3]>,
        dtype: DType,
    ) -> Result<StmtId, Stmt> {
        use ScalarOp::*;
        let mut consts = [None; 3];
        for (c, a) in consts.iter_mut().zip(&args) {
            *c = self.as_const(*a);
        }
        // Nothing is known of functions of more operands.
        let consts = consts.get(..args.len()).unwrap_or_default();
        let same = |args| Err(Stmt::Op { op, args, dtype });
        match (op, args.as_slice(), consts) {
            (Where, [_, a, b], _) if a == b => return Ok(*a),
            (Where, [_, a, b], [Some(c), ..]) => return Ok(if c.as_bool() { *a } else { *b }),
            (And | Or, [a, b], _) if a == b => return Ok(*a),
            (And, [a, b], [x, y]) if dtype == DType::Bool => {
                for (c, v, o) in [(x, a, b), (y, b, a)] {
                    if let Some(c) = c {
                        return Ok(if c.as_bool() { *o } else { *v });
                    }
                }
            }
            (Or, [a, b], [x, y]) if dtype == DType::Bool => {
                for (c, v, o) in [(x, a, b), (y, b, a)] {
                    if let Some(c) = c {
                        return Ok(if c.as_bool() { *v } else { *o });
                    }
                }
            }
            (Not, [a], _) => {
                if let Stmt::Op {
                    op: Not, args: x, ..
                } = &self.stmts[a.index()]
                {
                    return Ok(x[0]);
                }
            }
            (Lt | Le | Gt | Ge | Eq | Ne, [a, b], _) if dtype.is_int() => {
                if let (Some(x), Some(y)) = (self.as_expr(*a), self.as_expr(*b))
                    && let Some(known) = self.compare(op, x, y)
                {
                    return Ok(self.constant(Scalar::Bool(known), DType::Bool));
                }
            }
            // x * 1, x / 1, x - 0 are exact; x + 0 is not (-0).
            (Mul, [a, b], [x, y]) => {
                for (c, o) in [(x, b), (y, a)] {
                    if c.is_some_and(is_one) {
                        return Ok(*o);
                    }
                }
            }
            (Sub, [a, _], [_, Some(c)]) if c.as_f64() == 0.0 && !is_neg_zero(*c) => return Ok(*a),
            (Add, [a, b], [x, y]) if dtype.is_int() => {
                for (c, o) in [(x, b), (y, a)] {
                    if c.is_some_and(|c| c.as_i64() == 0) {
                        return Ok(*o);
                    }
                }
            }
            (Div, [a, b], [_, Some(c)]) => {
                if is_one(*c) {
                    return Ok(*a);
                }
                // The reciprocal of a power of two is exact.
                let r = 1.0 / c.as_f64();
                if power_of_two(c.as_f64()) && power_of_two(r) && r.abs() > 1e-30 && r.abs() < 1e30
                {
                    let (a, r) = (*a, self.constant(Scalar::Float(r), dtype));
                    debug_assert!(*b != r);
                    return Err(Stmt::Op {
                        op: Mul,
                        args: smallvec![a, r],
                        dtype,
                    });
                }
            }
            _ => {}
        }
        if let Some(v) = fold(op, consts, dtype) {
            return Ok(self.constant(v, op.result(dtype)));
        }
        same(args)
    }

    fn compare(&self, op: ScalarOp, a: Expr, b: Expr) -> Option<bool> {
        let ex = self.ex;
        let lt = |a, b| {
            if ex.prove_lt(a, b) {
                Some(true)
            } else if ex.prove_le(b, a) {
                Some(false)
            } else {
                None
            }
        };
        match op {
            ScalarOp::Lt => lt(a, b),
            ScalarOp::Gt => lt(b, a),
            ScalarOp::Ge => lt(a, b).map(|r| !r),
            ScalarOp::Le => lt(b, a).map(|r| !r),
            ScalarOp::Eq if ex.prove_eq(a, b) => Some(true),
            ScalarOp::Eq if ex.prove_ne(a, b) => Some(false),
            ScalarOp::Ne if ex.prove_eq(a, b) => Some(false),
            ScalarOp::Ne if ex.prove_ne(a, b) => Some(true),
            _ => None,
        }
    }
}

fn is_one(c: Scalar) -> bool {
    match c {
        Scalar::Bool(_) => false,
        Scalar::Int(v) => v == 1,
        Scalar::Float(v) => v == 1.0,
    }
}

fn is_neg_zero(c: Scalar) -> bool {
    matches!(c, Scalar::Float(f) if f == 0.0 && f.is_sign_negative())
}

fn power_of_two(v: f64) -> bool {
    v.is_normal() && v.to_bits() << 12 == 0
}

/// Operations on constants where `f64` arithmetic followed by one rounding is what the machine gives.
fn fold(op: ScalarOp, args: &[Option<Scalar>], dtype: DType) -> Option<Scalar> {
    use ScalarOp::*;
    let args: SmallVec<[Scalar; 3]> = args.iter().copied().collect::<Option<_>>()?;
    if dtype == DType::F32 || dtype == DType::F64 {
        let a = args.first()?.as_f64();
        let b = args.get(1).map_or(0.0, |b| b.as_f64());
        let v = match op {
            Add => a + b,
            Sub => a - b,
            Mul => a * b,
            Div => a / b,
            Neg => -a,
            Reciprocal => 1.0 / a,
            Sqrt => a.sqrt(),
            Eq => return Some(Scalar::Bool(a == b)),
            Ne => return Some(Scalar::Bool(a != b)),
            Lt => return Some(Scalar::Bool(a < b)),
            Le => return Some(Scalar::Bool(a <= b)),
            Gt => return Some(Scalar::Bool(a > b)),
            Ge => return Some(Scalar::Bool(a >= b)),
            _ => return None,
        };
        return Some(Scalar::Float(v).convert(dtype));
    }
    if dtype.is_int() && dtype.size() <= 8 && dtype != DType::U64 {
        let a = args.first()?.as_i64();
        let b = args.get(1).map_or(0, |b| b.as_i64());
        let v = match op {
            Add => a.wrapping_add(b),
            Sub => a.wrapping_sub(b),
            Mul => a.wrapping_mul(b),
            Neg => a.wrapping_neg(),
            Eq => return Some(Scalar::Bool(a == b)),
            Ne => return Some(Scalar::Bool(a != b)),
            Lt => return Some(Scalar::Bool(a < b)),
            Le => return Some(Scalar::Bool(a <= b)),
            Gt => return Some(Scalar::Bool(a > b)),
            Ge => return Some(Scalar::Bool(a >= b)),
            _ => return None,
        };
        return Some(Scalar::Int(v).convert(dtype));
    }
    if dtype == DType::Bool && op == Not {
        return Some(Scalar::Bool(!args.first()?.as_bool()));
    }
    None
}

/// Which statements the `roots` need, through operands and index symbols. Checks are roots as well: where a dimension has one
/// element, or was expanded, no coordinate holds the index.
pub(crate) fn live_from(
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
pub(crate) fn sweep(ex: &Exprs, body: &mut Body) {
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
pub(crate) fn ordered_reduction(body: &Body) -> bool {
    body.stmts.iter().any(|s| match s {
        Stmt::Scan { .. } => true,
        Stmt::Reduce { op, .. } => matches!(op, ReduceOp::ArgMax | ReduceOp::ArgMin),
        _ => false,
    })
}
