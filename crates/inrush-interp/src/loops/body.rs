//! Runs one loop nest: phase Before, then every point of the reduction axes, then phase After.
//!
//! ```text
//! for each point of the outer axes
//!     Before     statements that depend on no reduction axis
//!     for each point of the reduction axes
//!         Inside     loads, arithmetic, scans
//!         accumulate the values of reductions
//!     After      results of reductions, and statements that depend on one
//! ```
//!
//! Statements run in their order within a phase; which phase is a fact about the statement's
//! dependences that `Body::phases` gives. Values live in one list by statement, so a value of
//! phase Before is still there in the later ones.
//!
//! A reduction keeps a partial result between points and has no value before phase After. A scan
//! has one at each point and starts anew with each row along the last reduction axis. The keys of a
//! sort are computed at all points of its row before the points run, without stores.

use super::{Run, for_each_point};
use crate::index::{Index, size, sizes};
use inrush_base::{DType, Error, ErrorKind, Result, Scalar};
use inrush_expr::Sym;
use inrush_loops::{Body, Check, Phase, ReduceOp, ScalarOp, Stmt, StmtId, eval};

/// Values of a contraction's sum, or of an attention's products, by outer point in row-major order.
pub(super) type Sums<'a> = [Option<&'a [Scalar]>; 2];

/// Those of one point.
type SumsHere = [Option<Scalar>; 2];

/// A body compiled for running: expressions with slots, statements with phases.
struct Prepared<'b> {
    body: &'b Body,
    dtypes: Vec<DType>,
    phases: Vec<Phase>,
    /// Compiled expressions of each statement.
    /// Coordinates of loads and stores, or the expression of an index.
    exprs: Vec<Vec<Index>>,
    /// Size and slot of each [`Stmt::Indirect`].
    indirect: Vec<Option<(i64, usize)>>,
    /// Values of axes, outer ones first, then of indirect indices in the order of their
    /// statements.
    slots: Vec<i64>,
    /// By statement; those without a value (stores, indirect indices) keep a zero.
    values: Vec<Scalar>,
    /// Running state of reductions and scans: value (in the wide format when asked) and index of an extreme.
    state: Vec<Partial>,
    /// By statement: the row that a sort gives, empty for all others.
    sorted: Vec<Vec<Scalar>>,
}

/// The partial result of a reduction or scan. `at` is meaningful for the arg kinds.
#[derive(Copy, Clone)]
struct Partial {
    value: Scalar,
    at: i64,
    /// No element has been seen. The first element is taken as it is, and not combined with a
    /// neutral one: `-0.0` then stays `-0.0` in a sum of one element.
    empty: bool,
}

const EMPTY: Partial = Partial {
    value: Scalar::Int(0),
    at: 0,
    empty: true,
};

impl Run<'_> {
    /// Runs a body; `sums` are the results of the contraction whose epilogue it is.
    pub(super) fn body(&mut self, body: &Body, sums: Sums) -> Result<()> {
        let extents: Vec<i64> = body
            .axes
            .iter()
            .map(|a| size(&self.p.exprs, a.size, &self.symbols))
            .collect::<Result<_>>()?;
        let mut pre = self.prepare(body)?;
        let (outer, inner) = extents.split_at(body.outer);
        let n_inner = inner.len();
        let mut point = 0usize;
        for_each_point(outer, |at| {
            pre.slots[..at.len()].copy_from_slice(at);
            let sum = sums.map(|s| s.and_then(|s| s.get(point)).copied());
            point += 1;
            self.phase(&mut pre, Phase::Before, sum)?;
            // Without reduction axes all statements are of phase Before.
            if n_inner == 0 {
                return Ok(());
            }
            self.sort_rows(&mut pre, at.len(), inner, sum)?;
            pre.state.fill(EMPTY);
            let mut k = 0;
            for_each_point(inner, |r| {
                pre.slots[at.len()..at.len() + n_inner].copy_from_slice(r);
                // A row begins.
                if r[n_inner - 1] == 0 {
                    pre.restart_scans();
                }
                self.phase(&mut pre, Phase::Inside, sum)?;
                self.accumulate(&mut pre, k)?;
                k += 1;
                Ok(())
            })?;
            self.phase(&mut pre, Phase::After, sum)
        })
    }

    /// Compiles expressions and sizes of a body.
    fn prepare<'b>(&self, body: &'b Body) -> Result<Prepared<'b>> {
        let exprs = &self.p.exprs;
        let mut slots: Vec<Sym> = body.axes.iter().map(|a| a.sym).collect();
        let mut compiled = Vec::new();
        let mut indirect = Vec::new();
        for s in body.ids() {
            let stmt = body.stmt(s);
            // An indirect index has its slot from its statement on, so that a use before it is an
            // error.
            let slot = |y: Sym| slots.iter().position(|t| *t == y);
            compiled.push(
                (stmt.exprs().iter())
                    .map(|e| Index::new(exprs, *e, &self.symbols, &slot))
                    .collect::<Result<Vec<_>>>()?,
            );
            indirect.push(match stmt {
                Stmt::Indirect { sym, size, .. } => {
                    let n = sizes(exprs, &[*size], &self.symbols)?[0];
                    slots.push(*sym);
                    Some((n, slots.len() - 1))
                }
                _ => None,
            });
        }
        Ok(Prepared {
            body,
            dtypes: body.dtypes(self.p),
            phases: body.phases(exprs),
            exprs: compiled,
            indirect,
            slots: vec![0; slots.len()],
            values: vec![Scalar::Int(0); body.stmts.len()],
            state: vec![EMPTY; body.stmts.len()],
            sorted: vec![Vec::new(); body.stmts.len()],
        })
    }

    /// Sorts the row of each sort, in the order of the statements, so that a later one may use an earlier one. Evaluates what
    /// stands before a sort at all points of the row, but for stores.
    fn sort_rows(
        &mut self,
        pre: &mut Prepared,
        outer: usize,
        inner: &[i64],
        sum: SumsHere,
    ) -> Result<()> {
        for (k, s) in pre.body.stmts.iter().enumerate() {
            let Stmt::Sort { value, .. } = s else {
                continue;
            };
            let mut row = Vec::new();
            for_each_point(inner, |r| {
                pre.slots[outer..outer + r.len()].copy_from_slice(r);
                if r[r.len() - 1] == 0 {
                    pre.restart_scans();
                }
                for j in 0..k {
                    let stores = matches!(pre.body.stmts[j], Stmt::Store { .. });
                    if pre.phases[j] == Phase::Inside && !stores {
                        self.stmt(pre, j, sum)
                            .map_err(|e| e.context(StmtId::from_index(j)))?;
                    }
                }
                row.push(pre.values[value.index()]);
                Ok(())
            })?;
            row.sort_by_key(|v| v.as_i64());
            pre.sorted[k] = row;
        }
        Ok(())
    }

    /// Evaluates the statements of a phase. An error names the statement.
    fn phase(&mut self, pre: &mut Prepared, phase: Phase, sum: SumsHere) -> Result<()> {
        for k in 0..pre.body.stmts.len() {
            if pre.phases[k] == phase {
                self.stmt(pre, k, sum)
                    .map_err(|e| e.context(StmtId::from_index(k)))?;
            }
        }
        Ok(())
    }

    /// Evaluates statement `k` at the current point.
    fn stmt(&mut self, pre: &mut Prepared, k: usize, sum: SumsHere) -> Result<()> {
        let v = |s: StmtId| pre.values[s.index()];
        let coords = |pre: &Prepared| -> Result<Vec<i64>> {
            pre.exprs[k].iter().map(|e| e.eval(&pre.slots)).collect()
        };
        let body = pre.body;
        let value = match &body.stmts[k] {
            Stmt::Const { value, .. } => *value,
            Stmt::Index { dtype, .. } => {
                Scalar::Int(pre.exprs[k][0].eval(&pre.slots)?).convert(*dtype)
            }
            Stmt::Load {
                mask: Some(m),
                fill,
                ..
            // The coordinates of a load that is masked off are not evaluated: they may be out of
            // bounds, or divide by zero.
            } if !v(*m).as_bool() => *fill,
            Stmt::Load { buf, .. } => self.memory.load(buf.index(), &coords(pre)?)?,
            Stmt::Op { op, args, dtype } => {
                let args: smallvec::SmallVec<[Scalar; 3]> = args.iter().map(|a| v(*a)).collect();
                eval::op(*op, *dtype, &args)?
            }
            Stmt::Cast { arg, to } => eval::cast(v(*arg), pre.dtypes[arg.index()], *to),
            Stmt::Bitcast { arg, from, to } => eval::bitcast(v(*arg), *from, *to)?,
            Stmt::Indirect {
                value,
                wrap,
                check,
                mask,
                ..
            } => {
                // Only the check is masked. The index gets a value in any case, and masked
                // accesses do not use it.
                let active = mask.is_none_or(|m| v(m).as_bool());
                let (n, slot) = pre.indirect[k].expect("prepared with the statement");
                let mut i = v(*value).as_i64();
                if *wrap && i < 0 {
                    // Data may hold the smallest integer.
                    i = i.saturating_add(n);
                }
                if *check != Check::None && active && !(0..n).contains(&i) {
                    // Checks of divisors and of values are encoded as indices: 0 where all is
                    // well, out of range otherwise.
                    let (kind, message) = match check {
                        Check::Divisor(_) => {
                            let message = "an integer is divided by zero".into();
                            (ErrorKind::ZeroDivision, message)
                        }
                        Check::Value(_) => {
                            let message = "a value that the operator does not take".into();
                            (ErrorKind::InvalidValue, message)
                        }
                        _ => {
                            let v = v(*value);
                            let message =
                                format!("index {v} is out of range for a dimension of size {n}");
                            (ErrorKind::OutOfRange, message)
                        }
                    };
                    return Err(Error::new(kind, message));
                }
                pre.slots[slot] = i;
                return Ok(());
            }
            Stmt::Reduce { op, dtype, .. } => match (op.is_arg(), pre.state[k]) {
                (true, p) => Scalar::Int(p.at),
                // Only an empty reduction has the neutral element as its result.
                (false, p) if p.empty => eval::neutral(*op, *dtype),
                // Rounds a wide sum.
                (false, p) => p.value.convert(*dtype),
            },
            Stmt::Scan { op, value, dtype } => {
                let last = body.axes.len() - 1;
                let (value, d) = (v(*value), pre.dtypes[value.index()]);
                // The position of an extreme is that along the last axis, unlike a reduction's.
                let next = self.step(*op, d, pre.state[k], value, pre.slots[last], true)?;
                pre.state[k] = next;
                if op.is_arg() {
                    Scalar::Int(next.at)
                } else {
                    next.value.convert(*dtype)
                }
            }
            Stmt::Sort { .. } => {
                let at = pre.slots[body.axes.len() - 1];
                let key = usize::try_from(at).ok().and_then(|i| pre.sorted[k].get(i));
                *key.ok_or_else(|| Error::internal("a sort of another row"))?
            }
            Stmt::Acc { of, .. } => {
                (sum.get(usize::from(*of)).copied().flatten()).ok_or_else(|| Error::internal("`acc` outside a contraction's epilogue"))?
            }
            Stmt::Store { mask: Some(m), .. } if !v(*m).as_bool() => return Ok(()),
            Stmt::Store {
                buf, value, mode, ..
            } => {
                let at = coords(pre)?;
                let mut new = v(*value);
                // A store that accumulates reads first. Points run one after another, so no
                // atomics are needed.
                if let Some(op) = eval::store_op(*mode) {
                    let old = self.memory.load(buf.index(), &at)?;
                    new = eval::op(op, pre.dtypes[value.index()], &[old, new])?;
                }
                return self.memory.store(buf.index(), &at, new);
            }
        };
        pre.values[k] = value;
        Ok(())
    }

    /// Feeds every reduction with the values of this point, whose row-major number over the reduction axes is `point`.
    fn accumulate(&self, pre: &mut Prepared, point: i64) -> Result<()> {
        for k in 0..pre.body.stmts.len() {
            if let Stmt::Reduce { op, value, .. } = &pre.body.stmts[k] {
                let (v, d) = (pre.values[value.index()], pre.dtypes[value.index()]);
                pre.state[k] = self.step(*op, d, pre.state[k], v, point, false)?;
            }
        }
        Ok(())
    }

    /// Returns the partial result with one more element. `last_wins` decides between equal
    /// extremes: reductions keep the first, scans the last, as `argmax` and `cummax` of PyTorch
    /// do.
    fn step(
        &self,
        op: ReduceOp,
        d: DType,
        p: Partial,
        v: Scalar,
        at: i64,
        last_wins: bool,
    ) -> Result<Partial> {
        if p.empty {
            return Ok(Partial {
                value: v,
                at,
                empty: false,
            });
        }
        let Some(combine) = eval::combiner(op) else {
            let better = if !last_wins {
                eval::beats(op, d, v, p.value)
            } else {
                // The new element wins unless the old one is strictly better. An old NaN stays
                // against a number and gives way to a later NaN.
                !eval::beats(op, d, p.value, v)
            };
            return Ok(if better {
                Partial { value: v, at, ..p }
            } else {
                p
            });
        };
        // Extremes are exact in any format, and integers must wrap in theirs.
        let wide = self.options.wide_sums
            && d == DType::F32
            && matches!(combine, ScalarOp::Add | ScalarOp::Mul);
        let d = if wide { DType::F64 } else { d };
        Ok(Partial {
            value: eval::op(combine, d, &[p.value, v])?,
            at,
            empty: false,
        })
    }
}

impl Prepared<'_> {
    /// Restarts scans for each row along the last reduction axis.
    fn restart_scans(&mut self) {
        for (k, s) in self.body.stmts.iter().enumerate() {
            if matches!(s, Stmt::Scan { .. }) {
                self.state[k] = EMPTY;
            }
        }
    }
}
