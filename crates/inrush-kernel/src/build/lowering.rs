//! Statements of one body to values and effects of its nest: loads, indices that are read, reductions and scans, stores.

use super::{Builder, Info, Reuse, Written};
use crate::nest::{Effect, EffectKind};
use crate::{Acc, AccId, Check, Def, KBufId, ValId, Value, index_expr};
use inrush_base::{CheckKind, DType, Error, Result, Scalar};
use inrush_expr::{Expr, Position, Sym, SymMap};
use inrush_loops::{self as loops, Axis, Body, BufId, Stmt, StmtId, StoreMode};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

/// One body on its way into a nest.
pub(super) struct Lowering<'b, 'a> {
    pub b: &'b mut Builder<'a>,
    pub body: &'b Body,
    pub nest: usize,
    /// Number of own axes outside of the reduction.
    pub outer: usize,
    pub rename: SymMap,
    pub vals: Vec<Option<ValId>>,
    /// The body has no point. Its loads and checks, which need no index then, must not be taken out of its loops.
    pub nowhere: bool,
    /// It has none within its reduction, at least: what is checked there is never met.
    pub hollow: bool,
}

impl Lowering<'_, '_> {
    /// Returns the value of a statement, which an earlier one has to be.
    fn val(&self, s: StmtId) -> Result<ValId> {
        self.vals[s.index()]
            .ok_or_else(|| Error::internal(format!("statement {s} is used but has no value")))
    }

    fn expr(&self, e: Expr) -> Expr {
        self.b.exprs().subst(e, &self.rename)
    }

    /// A mask that is proven true goes; `Err(())` for one that is proven false.
    fn mask(&self, mask: Option<StmtId>) -> Result<Result<Option<ValId>, ()>> {
        let Some(m) = mask else { return Ok(Ok(None)) };
        let v = self.val(m)?;
        Ok(match self.b.values[v.index()].def {
            Def::Const(c) if c.as_bool() => Ok(None),
            Def::Const(_) => Err(()),
            _ => Ok(Some(v)),
        })
    }

    /// Builds the body's statements in order; each has its value before it is used.
    pub fn run(mut self) -> Result<()> {
        for at in 0..self.body.stmts.len() {
            let stmt = &self.body.stmts[at];
            self.vals[at] = self.stmt(stmt)?;
        }
        Ok(())
    }

    fn stmt(&mut self, stmt: &Stmt) -> Result<Option<ValId>> {
        let def = match stmt {
            Stmt::Const { value, dtype } => return Ok(Some(self.b.constant(*value, *dtype))),
            Stmt::Index { expr, dtype } => {
                let def = Def::Index(self.expr(*expr));
                return Ok(Some(self.b.value(Value { def, dtype: *dtype })));
            }
            Stmt::Load {
                buf,
                coords,
                mask,
                fill,
            } => return self.load(*buf, coords[0], *mask, *fill).map(Some),
            Stmt::Op { op, args, dtype } => {
                let mut of = SmallVec::with_capacity(args.len());
                for a in args {
                    of.push(self.val(*a)?);
                }
                let def = Def::Op { op: *op, args: of };
                return Ok(Some(self.b.value(Value {
                    def,
                    dtype: op.result(*dtype),
                })));
            }
            Stmt::Cast { arg, to } => Def::Cast {
                arg: self.val(*arg)?,
                to: *to,
            },
            Stmt::Bitcast { arg, from, to } => Def::Bitcast {
                arg: self.val(*arg)?,
                from: *from,
                to: *to,
            },
            Stmt::Indirect { .. } => return self.indirect(stmt),
            Stmt::Reduce { op, value, dtype } => {
                return self.accumulate(*op, *value, *dtype, false).map(Some);
            }
            Stmt::Scan { op, value, dtype } => {
                return self.accumulate(*op, *value, *dtype, true).map(Some);
            }
            Stmt::Sort { value, dtype } => return self.sort(*value, *dtype).map(Some),
            Stmt::Acc { dtype, of } => {
                let id = self.b.value(Value {
                    def: Def::Sum(*of),
                    dtype: *dtype,
                });
                // It differs at every point of the tile.
                self.b.infos[id.index()].bits = (1u64 << self.b.shared) - 1;
                return Ok(Some(id));
            }
            Stmt::Store { .. } => {
                self.store(stmt)?;
                return Ok(None);
            }
        };
        let dtype = match &def {
            Def::Cast { to, .. } | Def::Bitcast { to, .. } => to.compute(),
            _ => return Err(Error::internal("unexpected statement")),
        };
        Ok(Some(self.b.value(Value { def, dtype })))
    }

    /// Returns true if a load is never reached: the body has no point, or there is nothing in the buffer, and no index that would have
    /// to be refused for that.
    fn reads_nothing(&self, buf: BufId, offset: Expr) -> bool {
        let exprs = self.b.exprs();
        let mut sizes = self.b.tables.buffers[buf.index()].sizes.iter();
        let indirect = |e: Expr| {
            let syms = exprs.free_syms(e);
            syms.iter().any(|s| self.b.indirect.contains_key(s))
        };
        self.nowhere
            || sizes.any(|s| exprs.is_int(*s, 0)) && (self.hollow || !indirect(self.expr(offset)))
    }

    /// Returns the value of a load: the stored one where it can be forwarded, the fill where
    /// nothing is read, else an access.
    fn load(
        &mut self,
        buf: BufId,
        offset: Expr,
        mask: Option<StmtId>,
        fill: Scalar,
    ) -> Result<ValId> {
        let dtype = self.b.tables.buffers[buf.index()].dtype;
        let mask = match self.mask(mask)? {
            Ok(m) if !self.reads_nothing(buf, offset) => m,
            _ => return Ok(self.b.constant(fill, dtype.compute())),
        };
        let offset = self.expr(offset);
        let kbuf = self.b.buffer(buf, false);
        if let Some(w) = self.b.written.get(&(kbuf, offset))
            && (w.mask.is_none() || w.mask == mask)
        {
            let info = self.b.infos[w.value.index()];
            // Known at every point of the group, or made in this very point: no memory in between.
            let own = !((1u64 << self.b.shared) - 1);
            let everywhere = info.bits & own == 0 && info.after.is_none_or(|(_, depth)| depth == 0);
            let here = w.nest == self.nest && w.at_points;
            let value = w.value;
            let local = self.b.locals.contains(&buf);
            let forward = match self.b.reuse {
                Reuse::Nest => everywhere || here,
                Reuse::Whole => true,
                Reuse::Streamed => local || everywhere || here,
            };
            if forward {
                let stored = self.stored_value(value, dtype);
                let Some(mask) = mask else {
                    return Ok(stored);
                };
                let fill = self.b.constant(fill, dtype.compute());
                return Ok(self.b.value(Value {
                    def: Def::Op {
                        op: inrush_loops::ScalarOp::Where,
                        args: smallvec::smallvec![mask, stored, fill],
                    },
                    dtype: dtype.compute(),
                }));
            }
        }
        Ok(self.b.value(Value {
            def: Def::Load {
                buf: kbuf,
                offset,
                mask,
                fill: fill.convert(dtype.compute()),
            },
            dtype: dtype.compute(),
        }))
    }

    /// Returns what a load gives after a store of `value` into a buffer of `dtype`.
    fn stored_value(&mut self, value: ValId, dtype: DType) -> ValId {
        if dtype.compute() == dtype {
            return value;
        }
        self.b.value(Value {
            def: Def::Cast {
                arg: value,
                to: dtype,
            },
            dtype: dtype.compute(),
        })
    }

    /// Makes an index that is read from memory known as a symbol. An equal one that exists already
    /// lends its symbol.
    fn indirect(&mut self, stmt: &Stmt) -> Result<Option<ValId>> {
        let Stmt::Indirect {
            value,
            sym,
            size,
            wrap,
            check,
            mask,
        } = stmt
        else {
            return Ok(None);
        };
        let value = self.val(*value)?;
        if let Some(e) = self.index_in_bounds(value, *size) {
            self.rename.insert(*sym, e);
            return Ok(None);
        }
        let mask = match self.mask(*mask)? {
            Ok(m) if !self.nowhere => m,
            _ => {
                self.rename.insert(*sym, self.b.exprs().int(0));
                return Ok(None);
            }
        };
        // Checks name the operator that indexes; lowering knows it, or the body's last operator has
        // to do.
        let origin = check.origin().or(self.body.origins.last().copied());
        let check = self.check(check, *size);
        let earlier = self.equal_index(value, *size, *wrap, mask, check.as_ref());
        if let Some(s) = earlier {
            if s != *sym {
                self.rename.insert(*sym, self.b.exprs().sym_expr(s));
            }
            return Ok(None);
        }
        // Bodies number their indirect indices on their own. So that equal expressions mean equal values in the kernel, each
        // gets a symbol that no other one has.
        let position = Position::Indirect(self.b.indirect.len() as u32);
        let name = self.b.exprs().sym_at(position, *size);
        self.rename.insert(*sym, self.b.exprs().sym_expr(name));
        let check = check.map(|(kind, message)| {
            self.b.checks.push(Check {
                kind,
                origin,
                message,
            });
            (self.b.checks.len() - 1) as u32
        });
        let id = self.b.value(Value {
            def: Def::Indirect {
                value,
                sym: name,
                size: *size,
                wrap: *wrap,
                check,
                mask,
            },
            dtype: DType::I64,
        });
        let bits = self.b.infos[id.index()].bits;
        self.b.bits.insert(name, bits);
        self.b.indirect.insert(name, id);
        if check.is_some() {
            let depth = self.depth(bits);
            self.b.nests[self.nest].effects.push(Effect {
                depth,
                at: id.index(),
                kind: EffectKind::Check { value: id },
            });
        }
        Ok(None)
    }

    /// Returns an index as an expression if it is one that is always in bounds, such as a position: nothing is read then.
    fn index_in_bounds(&self, value: ValId, size: Expr) -> Option<Expr> {
        let ex = self.b.exprs();
        let e = index_expr(ex, &self.b.values, value)?;
        let below = ex.range(ex.sub(size, e)).lo >= 1;
        (ex.range(e).lo >= 0 && below && ex.range(e).hi <= i64::from(i32::MAX)).then_some(e)
    }

    /// Returns kind and message of a check; `None` where nothing is to be checked.
    fn check(&self, check: &loops::Check, size: Expr) -> Option<(CheckKind, String)> {
        match check {
            loops::Check::None => None,
            _ if self.hollow => None,
            loops::Check::Index(_) => Some((
                CheckKind::Index,
                format!(
                    "index out of range for a dimension of size {}",
                    self.b.exprs().show(size)
                ),
            )),
            // On GPUs eager does not raise either, or stops the device: the result means nothing there.
            loops::Check::Divisor(_) | loops::Check::Value(_) if self.b.reuse != Reuse::Nest => {
                None
            }
            loops::Check::Value(_) => Some((
                CheckKind::Value,
                "RuntimeError: a value that the operator does not take".into(),
            )),
            // The text of eager's error.
            loops::Check::Divisor(_) => Some((
                CheckKind::Divisor,
                "ZeroDivisionError: an integer is divided by zero".into(),
            )),
        }
    }

    /// Finds the symbol of an equal index.
    fn equal_index(
        &self,
        value: ValId,
        size: Expr,
        wrap: bool,
        mask: Option<ValId>,
        check: Option<&(CheckKind, String)>,
    ) -> Option<Sym> {
        let of = |c: u32| {
            let c = &self.b.checks[c as usize];
            (c.kind, &c.message)
        };
        let mut known = self.b.indirect.iter();
        known.find_map(|(s, v)| match &self.b.values[v.index()].def {
            Def::Indirect {
                value: v2,
                size: s2,
                wrap: w2,
                check: c2,
                mask: m2,
                ..
            } if (*v2, *s2, *w2, *m2) == (value, size, wrap, mask)
                && c2.map(of) == check.map(|(kind, message)| (*kind, message)) =>
            {
                Some(*s)
            }
            _ => None,
        })
    }

    /// Adds a reduction or scan to the nest, and returns the value of its result.
    fn accumulate(
        &mut self,
        op: inrush_loops::ReduceOp,
        value: StmtId,
        dtype: DType,
        scan: bool,
    ) -> Result<ValId> {
        let value = self.val(value)?;
        let axes = self.b.nests[self.nest].axes.clone();
        let exprs = self.b.exprs();
        // The row-major position among the reduced axes, as eager counts.
        let index = op.is_arg().then(|| {
            axes[self.outer..].iter().fold(exprs.int(0), |acc, a| {
                exprs.add(exprs.mul(acc, a.size), exprs.sym_expr(a.sym))
            })
        });
        let input = self.b.values[value.index()].dtype;
        let acc = AccId::from_index(self.b.accs.len());
        self.b.accs.push(Acc {
            op,
            dtype: input,
            index,
        });
        let at = self.b.values.len();
        let nest = &mut self.b.nests[self.nest];
        nest.ordered |= scan || op.is_arg();
        nest.scans |= scan;
        if scan && op.is_arg() {
            return Err(Error::unsupported("a running argmax or argmin"));
        }
        let own_bits = |axes: &[Axis], bits: &FxHashMap<Sym, u64>| {
            axes.iter().fold(0, |acc, a| acc | bits[&a.sym])
        };
        if scan {
            nest.effects.push(Effect {
                depth: axes.len(),
                at,
                kind: EffectKind::Update {
                    acc,
                    value,
                    // A scan runs along the last axis, anew for each point of the others.
                    start: axes.len().saturating_sub(1),
                },
            });
            let id = self.b.value(Value {
                def: Def::Running { acc, value },
                dtype,
            });
            let bits = own_bits(&axes, &self.b.bits);
            let info = &mut self.b.infos[id.index()];
            info.bits |= bits;
            info.pinned = true;
            return Ok(id);
        }
        nest.effects.push(Effect {
            depth: axes.len(),
            at,
            kind: EffectKind::Update {
                acc,
                value,
                start: self.outer,
            },
        });
        let id = self.b.value(Value {
            def: Def::Final(acc),
            dtype,
        });
        let reduced = own_bits(&axes[self.outer..], &self.b.bits);
        let outer = own_bits(&axes[..self.outer], &self.b.bits);
        let bits = self.b.infos[value.index()].bits;
        self.b.infos[id.index()] = Info {
            version: 0,
            // The result is known once for each point of the outer axes, whether it differs there or not.
            bits: (bits & !reduced) | outer,
            after: (self.outer > 0).then_some((self.nest, self.outer)),
            pinned: true,
        };
        Ok(id)
    }

    /// Returns the value of a sort, which a program does that holds the row.
    fn sort(&mut self, value: StmtId, dtype: DType) -> Result<ValId> {
        if self.b.reuse != Reuse::Whole {
            return Err(Error::unsupported("a sort of rows that no program holds"));
        }
        let value = self.val(value)?;
        let nest = &mut self.b.nests[self.nest];
        (nest.ordered, nest.scans) = (true, true);
        let own = nest.axes.iter().map(|a| a.sym).collect::<Vec<Sym>>();
        let id = self.b.value(Value {
            def: Def::Sorted { value },
            dtype,
        });
        let bits = own.iter().fold(0, |acc, s| acc | self.b.bits[s]);
        let info = &mut self.b.infos[id.index()];
        info.bits |= bits;
        info.pinned = true;
        Ok(id)
    }

    /// Inside how many axes of the nest something happens that depends on the axes `bits`: at every point where it differs along
    /// a reduction, else once for each point of the outer axes.
    fn depth(&self, bits: u64) -> usize {
        let axes = &self.b.nests[self.nest].axes;
        let points = (axes[self.outer..].iter()).fold(0, |acc, a| acc | self.b.bits[&a.sym]);
        match bits & points {
            0 => self.outer,
            _ => axes.len(),
        }
    }

    /// Returns what a local holds after a combining store at a place that each point of the nest has for itself: no other thread sees
    /// it, and in block programs it is a value, not memory.
    fn combined(
        &mut self,
        buf: BufId,
        offset: Expr,
        value: ValId,
        mode: StoreMode,
        mask: Option<ValId>,
    ) -> Result<Option<ValId>> {
        let Some(op) = inrush_loops::eval::store_op(mode) else {
            return Ok(None);
        };
        let exprs = self.b.exprs();
        let told = exprs.free_syms(offset);
        let alone = |a: &Axis| exprs.is_int(a.size, 1) || told.contains(&a.sym);
        let axes = &self.b.nests[self.nest].axes;
        if !self.b.locals.contains(&buf) || !axes.iter().all(alone) {
            return Ok(None);
        }
        let old = self.load(buf, offset, None, Scalar::Int(0))?;
        let dtype = self.b.values[value.index()].dtype;
        let new = |b: &mut Builder, op, args: &[ValId]| {
            b.value(Value {
                def: Def::Op {
                    op,
                    args: SmallVec::from_slice(args),
                },
                dtype,
            })
        };
        let sum = new(self.b, op, &[old, value]);
        Ok(Some(match mask {
            Some(m) => new(self.b, inrush_loops::ScalarOp::Where, &[m, sum, old]),
            None => sum,
        }))
    }

    /// Adds a store to the nest, and remembers what it leaves for later loads.
    fn store(&mut self, stmt: &Stmt) -> Result<()> {
        let Stmt::Store {
            buf,
            coords,
            value,
            mode,
            mask,
        } = stmt
        else {
            return Ok(());
        };
        let value = self.val(*value)?;
        let Ok(mask) = self.mask(*mask)? else {
            return Ok(());
        };
        let offset = self.expr(coords[0]);
        let kbuf = self.b.buffer(*buf, true);
        let (value, mode, mask) = match self.combined(*buf, offset, value, *mode, mask)? {
            Some(v) => (v, StoreMode::Set, None),
            None => (value, *mode, mask),
        };
        if mode != StoreMode::Set {
            self.b.buffer(*buf, false);
        }
        let own = |v: ValId, b: &Builder| b.infos[v.index()].bits;
        let bits =
            own(value, self.b) | self.b.expr_bits(offset) | mask.map_or(0, |m| own(m, self.b));
        // A scan stores at every point, a reduction once after its loops.
        let depth = self.depth(bits);
        let axes = self.b.nests[self.nest].axes.len();
        let storage = self.b.storage_of(kbuf);
        let at = self.b.values.len();
        let version = self.b.versions.entry(storage).or_insert(0);
        *version += 1;
        if *version > 1 {
            // Other places of the same storage are unknown now.
            let (tables, buffers) = (self.b.tables, &self.b.buffers);
            let of = |b: &KBufId| tables.storage(buffers[b.index()].buf);
            self.b.written.retain(|(b, _), _| of(b) != storage);
        }
        if mode == StoreMode::Set {
            self.b.written.insert(
                (kbuf, offset),
                Written {
                    value,
                    nest: self.nest,
                    at_points: depth == axes,
                    mask,
                },
            );
        }
        self.b.nests[self.nest].effects.push(Effect {
            depth,
            at,
            kind: EffectKind::Store {
                buf: kbuf,
                offset,
                value,
                mode,
                mask,
            },
        });
        Ok(())
    }
}
