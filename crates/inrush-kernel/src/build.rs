//! From flat bodies to numbered values and nests: equal values are one, what a body writes and a later one reads at the same
//! point is handed over in a register, and bodies over equal axes share their loops where no dependency forbids it.
//!
//! Three things happen in one walk over the bodies:
//!
//! - *Value numbering.* Equal definitions become one value. Loads count as equal only if nothing
//!   was stored to the storage in between, which a version for each storage tells.
//! - *Store-to-load forwarding.* A load at the offset of an earlier store takes the stored value,
//!   rounded to the buffer's dtype ([`Reuse`] says when that is right). A local that nothing else
//!   loads is dead then, and `live.rs` drops its stores.
//! - *Loop fusion.* A body joins the latest nest over equal axes that it does not depend on other
//!   than point by point.
//!
//! ```text
//! body 0: t[i, r] = exp(x[i, r])               v0 = load x[..]     v1 = exp v0
//! body 1: s[i] = sum over r of t[i, r]    ->   nest 0 over r: store t, v1; update a0, v1
//! body 2: y[i, r] = t[i, r] / s[i]             nest 1 over r: v2 = load t; store y, v2 / final a0
//! ```

use crate::flatten::Flat;
use crate::fold::{Folded, fold, scaled};
use crate::nest::{EffectKind, Nest};
use crate::{Acc, BufRole, Check, Def, KBufId, KernelBuf, ValId, Value};
use inrush_base::{DType, Error, Lookup, Result, Scalar, Vacant};
use inrush_expr::{Expr, Exprs, Sym, SymMap};
use inrush_loops::{Axis, Body, BufId, ScalarOp, Stmt, StoreMode, Tables};
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;
use std::cell::LazyCell;

mod lowering;

use lowering::Lowering;

/// Properties of a value besides its definition.
#[derive(Copy, Clone, Default, Debug)]
pub(crate) struct Info {
    /// Axes that it depends on, as bits of [`Builder::bits`].
    pub bits: u64,
    /// It is evaluated after the loops of a reduction: the nest, and the number of its axes that are still open.
    pub after: Option<(usize, usize)>,
    /// It must not be evaluated outside of the innermost loop of the group.
    pub pinned: bool,
    /// Of a load, how often what it reads had been written before.
    version: u32,
}

/// Values that an expression needs.
pub(crate) type Uses = SmallVec<[ValId; 3]>;

/// A store, for later loads of the same place.
struct Written {
    value: ValId,
    /// Nest of the store and whether it happens at every point of it.
    nest: usize,
    at_points: bool,
    /// Where only some lanes were stored: a load of the same lanes alone takes the value.
    mask: Option<ValId>,
}

/// How a value that was stored reaches a later load of the same place.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Reuse {
    /// In a register within the same loop, through memory otherwise.
    Nest,
    /// All bodies see one tile of their own axes, which is held whole: always as a value.
    Whole,
    /// All bodies walk their own axis in the same steps: a local's value is computed again, a buffer is read back.
    Streamed,
}

pub(crate) struct Builder<'a> {
    pub tables: Tables<'a>,
    reuse: Reuse,
    pub values: Vec<Value>,
    pub infos: Vec<Info>,
    /// Operands of each value, one list after the other, and where the lists end.
    needs: Vec<ValId>,
    needs_end: Vec<u32>,
    pub accs: Vec<Acc>,
    pub buffers: Vec<KernelBuf>,
    pub nests: Vec<Nest>,
    pub checks: Vec<Check>,
    /// One bit for each axis; of an indirect symbol the bits of its value.
    pub bits: FxHashMap<Sym, u64>,
    /// Which value defines an indirect symbol.
    pub indirect: FxHashMap<Sym, ValId>,
    /// Number of the group's axes, which have the lowest bits.
    shared: usize,
    next_bit: u32,
    /// Buffers of the group's own, which live within one of its points.
    locals: FxHashSet<BufId>,
    /// Storages that some body writes: loads of these are not hoisted.
    stored: FxHashSet<BufId>,
    /// How often a storage has been written so far: loads of different versions differ.
    versions: FxHashMap<BufId, u32>,
    /// Positions in `values`, of values and their versions.
    lookup: Lookup,
    /// Storages that have been read so far.
    loaded: FxHashSet<BufId>,
    /// Values that plain stores left, by place, as far as they are still there.
    written: FxHashMap<(KBufId, Expr), Written>,
    /// Numbers of buffers, by the plan's.
    by_buf: FxHashMap<BufId, KBufId>,
}

impl<'a> Builder<'a> {
    /// Builds the values and nests of loops for a CPU.
    pub fn new(flat: &Flat<'a>, locals: &[BufId]) -> Result<Builder<'a>> {
        Builder::with(flat, locals, Reuse::Nest)
    }

    /// Builds values and nests for a way of reuse. `locals` are the buffers that live within a
    /// point.
    pub fn with(flat: &Flat<'a>, locals: &[BufId], reuse: Reuse) -> Result<Builder<'a>> {
        let tables = flat.tables;
        let stmts = flat.bodies.iter().map(|b| b.stmts.len()).sum();
        let mut b = Builder {
            tables,
            reuse,
            values: Vec::with_capacity(stmts),
            infos: Vec::with_capacity(stmts),
            needs: Vec::with_capacity(2 * stmts),
            needs_end: Vec::with_capacity(stmts),
            accs: Vec::new(),
            buffers: Vec::new(),
            nests: Vec::new(),
            checks: Vec::new(),
            bits: FxHashMap::default(),
            indirect: FxHashMap::default(),
            shared: flat.shared.len(),
            next_bit: 0,
            locals: locals.iter().copied().collect(),
            stored: FxHashSet::default(),
            versions: FxHashMap::default(),
            lookup: Lookup::with_capacity(stmts),
            loaded: FxHashSet::default(),
            written: FxHashMap::default(),
            by_buf: FxHashMap::default(),
        };
        for axis in &flat.shared {
            b.axis_bit(axis)?;
        }
        for body in &flat.bodies {
            b.stored
                .extend(body.writes().into_iter().map(|w| tables.storage(w)));
        }
        for body in &flat.bodies {
            b.body(body)?;
        }
        Ok(b)
    }

    fn exprs(&self) -> &'a Exprs {
        self.tables.exprs
    }

    /// Gives an axis the next bit. Sets of axes are words of 64 bits, which bounds their number.
    fn axis_bit(&mut self, axis: &Axis) -> Result<()> {
        if self.bits.contains_key(&axis.sym) {
            return Ok(());
        }
        if self.next_bit == 64 {
            return Err(Error::unsupported("a kernel over more than 64 axes"));
        }
        self.bits.insert(axis.sym, 1 << self.next_bit);
        self.next_bit += 1;
        Ok(())
    }

    /// Returns the number of a buffer, and widens its role by this access.
    fn buffer(&mut self, buf: BufId, writes: bool) -> KBufId {
        let local = self.locals.contains(&buf);
        let id = *self.by_buf.entry(buf).or_insert_with(|| {
            let buffer = &self.tables.buffers[buf.index()];
            let role = if local {
                BufRole::Local {
                    len: self.tables.exprs.product(buffer.sizes.iter().copied()),
                    per_lane: false,
                }
            } else if writes {
                BufRole::Out
            } else {
                BufRole::In
            };
            self.buffers.push(KernelBuf {
                buf,
                dtype: buffer.dtype,
                role,
            });
            KBufId::from_index(self.buffers.len() - 1)
        });
        let role = &mut self.buffers[id.index()].role;
        match (&*role, writes) {
            (BufRole::In, true) | (BufRole::Out, false) => *role = BufRole::InOut,
            _ => {}
        }
        id
    }

    /// Returns the buffer whose memory this one is a view of.
    pub fn storage_of(&self, buf: KBufId) -> BufId {
        self.tables.storage(self.buffers[buf.index()].buf)
    }

    /// Places one body: into an earlier nest where that is right, else into a new one.
    fn body(&mut self, body: &Body) -> Result<()> {
        let own: Vec<Axis> = body.axes[self.shared..].to_vec();
        let outer = body.outer - self.shared;
        let (nest, rename) = match self.find_nest(body, &own, outer) {
            Some(found) => found,
            None => {
                for axis in &own {
                    self.axis_bit(axis)?;
                }
                self.nests.push(Nest {
                    axes: own.clone(),
                    ..Nest::default()
                });
                (self.nests.len() - 1, SymMap::default())
            }
        };
        if outer < own.len() && !self.nests[nest].splits.contains(&outer) {
            self.nests[nest].splits.push(outer);
        }
        let exprs = self.exprs();
        let empty = |a: &Axis| exprs.is_int(a.size, 0);
        Lowering {
            b: self,
            body,
            nest,
            outer,
            rename,
            vals: vec![None; body.stmts.len()],
            nowhere: body.axes[..body.outer].iter().any(empty),
            hollow: body.axes.iter().any(empty),
        }
        .run()
    }

    /// The latest nest whose loops this body may share, and how its axes are called there.
    fn find_nest(&self, body: &Body, own: &[Axis], outer: usize) -> Option<(usize, SymMap)> {
        let exprs = self.exprs();
        let storage = |b: BufId| self.tables.storage(b);
        let scan = Stmt::is_along_row;
        // From the latest nest back, as far as the body commutes with what it passes.
        for at in (0..self.nests.len()).rev() {
            let nest = &self.nests[at];
            let mut rename = SymMap::default();
            for (a, b) in own.iter().zip(&nest.axes) {
                if a.sym != b.sym {
                    rename.insert(a.sym, exprs.sym_expr(b.sym));
                }
            }
            let same = own.len() == nest.axes.len()
                && own.iter().zip(&nest.axes).all(|(a, b)| a.size == b.size);
            // What the nest touches: (storage, offset, store at every point, reads).
            let mut stores: Vec<(BufId, Expr, bool)> = Vec::new();
            for e in &nest.effects {
                if let EffectKind::Store {
                    buf,
                    offset,
                    mode,
                    mask,
                    ..
                } = &e.kind
                {
                    let plain =
                        *mode == StoreMode::Set && mask.is_none() && e.depth == nest.axes.len();
                    stores.push((self.storage_of(*buf), *offset, plain));
                }
            }
            // Only bodies that store ask for it.
            let reads = LazyCell::new(|| self.loads_of(nest));
            let mut conflict = false;
            let mut mergeable = same
                && !own.is_empty()
                && !nest.scans
                && !body.stmts.iter().any(scan)
                && (outer == own.len() || nest.splits.is_empty() || nest.splits.contains(&outer));
            for stmt in &body.stmts {
                match stmt {
                    Stmt::Load { buf, coords, .. } => {
                        let at_point = exprs.subst(coords[0], &rename);
                        for (s, offset, plain) in &stores {
                            if *s == storage(*buf) {
                                conflict = true;
                                mergeable &= *plain
                                    && *offset == at_point
                                    && self.is_known(*buf, at_point, at);
                            }
                        }
                    }
                    Stmt::Store {
                        buf, coords, mode, ..
                    } => {
                        let at_point = exprs.subst(coords[0], &rename);
                        if stores.iter().any(|(s, ..)| *s == storage(*buf)) {
                            (conflict, mergeable) = (true, false);
                        }
                        // Reads of the nest's own bodies must see the old contents. Points that combine may share a place.
                        if !self.loaded.contains(&storage(*buf)) {
                            continue;
                        }
                        for (b, offset) in reads.iter() {
                            if *b == storage(*buf) {
                                conflict = true;
                                mergeable &= *mode == StoreMode::Set && *offset == at_point;
                            }
                        }
                    }
                    _ => {}
                }
            }
            if mergeable {
                return Some((at, rename));
            }
            if conflict {
                return None;
            }
        }
        None
    }

    /// Returns true if a load gets what a nest stored there as a value. At each point of a nest all loads come before all stores.
    fn is_known(&self, buf: BufId, offset: Expr, nest: usize) -> bool {
        let stored = (self.by_buf.get(&buf)).and_then(|b| self.written.get(&(*b, offset)));
        stored.is_some_and(|w| w.nest == nest && w.at_points && w.mask.is_none())
    }

    /// Adds the values that an effect needs directly.
    pub fn effect_needs(&self, kind: &EffectKind, out: &mut Vec<ValId>) {
        match kind {
            EffectKind::Update { value, .. } | EffectKind::Check { value } => out.push(*value),
            EffectKind::Store {
                offset,
                value,
                mask,
                ..
            } => {
                out.push(*value);
                out.extend(*mask);
                out.extend_from_slice(&self.expr_values(*offset));
            }
        }
    }

    /// Storage and offset of every load that the effects of a nest need.
    pub fn loads_of(&self, nest: &Nest) -> Vec<(BufId, Expr)> {
        let mut seen = vec![false; self.values.len()];
        let mut todo: Vec<ValId> = Vec::new();
        for e in &nest.effects {
            self.effect_needs(&e.kind, &mut todo);
        }
        let mut out = Vec::new();
        while let Some(v) = todo.pop() {
            if std::mem::replace(&mut seen[v.index()], true) {
                continue;
            }
            if let Def::Load { buf, offset, .. } = &self.values[v.index()].def {
                out.push((self.storage_of(*buf), *offset));
            }
            todo.extend_from_slice(self.uses(v));
        }
        out
    }

    /// Indirect values inside an expression.
    pub fn expr_values(&self, e: Expr) -> Uses {
        if self.indirect.is_empty() {
            return Uses::new();
        }
        let syms = self.exprs().free_syms(e);
        syms.iter()
            .filter_map(|s| self.indirect.get(s).copied())
            .collect()
    }

    /// Every value that `v` needs directly.
    pub fn uses(&self, v: ValId) -> &[ValId] {
        let start = match v.index() {
            0 => 0,
            k => self.needs_end[k - 1],
        };
        &self.needs[start as usize..self.needs_end[v.index()] as usize]
    }

    /// Returns the axes that an expression depends on, those of indices read from memory included.
    pub fn expr_bits(&self, e: Expr) -> u64 {
        let mut bits = 0;
        let mut add = |s| bits |= self.bits.get(&s).copied().unwrap_or(0);
        self.exprs().each_sym(e, &mut add);
        bits
    }

    /// The value that equals this one, or the place for it.
    fn find(&self, value: &Value, version: u32) -> Result<ValId, Vacant> {
        let is = |k: usize| self.infos[k].version == version && self.values[k] == *value;
        let at = self.lookup.find((version, value), is)?;
        Ok(ValId::from_index(at))
    }

    /// Returns the id of a value: an earlier equal one, what it folds to, or a new one.
    pub fn value(&mut self, value: Value) -> ValId {
        let mut value = match fold(self.exprs(), &self.values, &value) {
            Folded::Is(v) => return v,
            Folded::To(v) => v,
            Folded::Scaled(v, c) => {
                let c = self.constant(c, value.dtype);
                return self.value(scaled(v, c, value.dtype));
            }
            Folded::No => value,
        };
        self.shorten(&mut value);
        let version = match &value.def {
            Def::Load { buf, .. } => {
                let storage = self.storage_of(*buf);
                self.versions.get(&storage).copied().unwrap_or(0)
            }
            _ => 0,
        };
        let place = match self.find(&value, version) {
            Ok(v) => return v,
            Err(place) => place,
        };
        let id = ValId::from_index(self.values.len());
        let mut info = Info {
            version,
            ..Info::default()
        };
        let start = self.needs.len();
        value.def.each_operand(|v| self.needs.push(v));
        if let Some(e) = value.def.expr() {
            info.bits |= self.expr_bits(e);
            let inside = self.expr_values(e);
            self.needs.extend_from_slice(&inside);
        }
        for u in &self.needs[start..] {
            let of = self.infos[u.index()];
            info.bits |= of.bits;
            info.pinned |= of.pinned;
            info.after = of.after.or(info.after);
        }
        // A pinned load is evaluated in order with the stores of its point.
        if let Def::Load { buf, .. } = &value.def {
            let storage = self.storage_of(*buf);
            info.pinned |= self.stored.contains(&storage);
            self.loaded.insert(storage);
        }
        self.needs_end.push(self.needs.len() as u32);
        self.values.push(value);
        self.infos.push(info);
        self.lookup.insert(place, id.index());
        id
    }

    /// Indices that are compared with each other have half of their bits where these are enough: tests then have as many lanes
    /// as what they are for.
    fn shorten(&mut self, value: &mut Value) {
        let Def::Op {
            op:
                ScalarOp::Lt | ScalarOp::Le | ScalarOp::Gt | ScalarOp::Ge | ScalarOp::Eq | ScalarOp::Ne,
            args,
        } = &mut value.def
        else {
            return;
        };
        if self.reuse != Reuse::Nest {
            return;
        }
        let short = |v: &ValId| {
            let of = &self.values[v.index()];
            let (lo, hi) = match &of.def {
                Def::Index(e) => {
                    let r = self.exprs().range(*e);
                    (r.lo, r.hi)
                }
                Def::Const(Scalar::Int(n)) => (*n, *n),
                _ => return None,
            };
            let fits = lo >= i32::MIN.into() && hi <= i32::MAX.into();
            (of.dtype == DType::I64 && fits).then(|| Value {
                def: of.def.clone(),
                dtype: DType::I32,
            })
        };
        let all: Option<SmallVec<[Value; 3]>> = args.iter().map(short).collect();
        let Some(all) = all else { return };
        let new = all.into_iter().map(|v| self.value(v)).collect();
        *args = new;
    }

    /// Returns the value of a constant, converted to the dtype.
    pub fn constant(&mut self, value: Scalar, dtype: DType) -> ValId {
        self.value(Value {
            def: Def::Const(value.convert(dtype)),
            dtype,
        })
    }
}
