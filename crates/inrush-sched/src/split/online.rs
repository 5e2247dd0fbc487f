//! Variances of split rows in one pass over memory.
//!
//! A sum of squared distances `(e - c)^2` needs its center `c`, which is known only after a first reduction over all of `e`.
//! Where sums of `e` over the same chunks exist, each chunk sums the distances to its own mean at once, and what the chunks'
//! means are away from the center is added at the end: `sum (e - c)^2 = sum over chunks of (q + n * (mean - c)^2)`.
//!
//! A sum of exponentials `exp(e - c)`, as a softmax has it, waits for its greatest element in the same way. Each chunk takes its
//! own: `sum exp(e - c) = sum over chunks of exp(greatest - c) * (sum exp(e - greatest))`.

use inrush_base::{DType, Scalar};
use inrush_expr::{Expr, SymMap};
use inrush_loops::{Body, BufId, Coords, Level, Loops, ReduceOp, ScalarOp, Stmt, StmtId};
use smallvec::{SmallVec, smallvec};

/// Reductions that were split: their bodies, cut into chunks, and where the partial results are.
#[derive(Default)]
pub(super) struct Known {
    bodies: Vec<(Body, Vec<(StmtId, BufId)>)>,
}

/// The summed function of the distances to the center.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Of {
    Squares,
    Exponentials,
}

/// A reduction that is a sum of squared distances, or of exponentials of distances.
pub(super) struct Spread {
    of: Of,
    pub reduce: StmtId,
    /// The center: a value of the outer points.
    pub center: StmtId,
    /// The elements `e`.
    value: StmtId,
    /// True for elements inside of a ragged chunk, and what others count.
    guard: Option<(StmtId, StmtId)>,
    /// Sums of the values over chunks, or the greatest ones.
    parts: BufId,
    /// Elements of a chunk.
    length: Expr,
    dtype: DType,
}

impl Known {
    /// Remembers a reduction that was split.
    pub(super) fn add(&mut self, body: Body, sums: Vec<(StmtId, BufId)>) {
        self.bodies.push((body, sums));
    }

    /// Returns true if nothing is remembered.
    pub(super) fn is_empty(&self) -> bool {
        self.bodies.is_empty()
    }

    /// Drops what reads storage that has been written anew.
    pub(super) fn forget(&mut self, loops: &Loops, writes: &[BufId]) {
        let written: Vec<BufId> = writes.iter().map(|b| loops.storage(*b)).collect();
        self.bodies.retain(|(body, _)| {
            let mut reads = body.reads().into_iter();
            !reads.any(|b| written.contains(&loops.storage(b)))
        });
    }

    /// Finds the sum of distances among the reductions of `body`, if the chunks of its values have been reduced.
    pub(super) fn spread(&self, loops: &Loops, body: &Body, length: Expr) -> Option<Spread> {
        let levels = body.levels(&loops.exprs);
        body.stmts.iter().enumerate().find_map(|(k, s)| {
            let Stmt::Reduce {
                op: ReduceOp::Sum,
                value,
                dtype,
            } = s
            else {
                return None;
            };
            let (inner, guard) = unguarded(body, *value);
            let (of, d) = match body.stmt(inner) {
                Stmt::Op {
                    op: ScalarOp::Mul,
                    args,
                    ..
                } if args[0] == args[1] => (Of::Squares, args[0]),
                Stmt::Op {
                    op: ScalarOp::Exp,
                    args,
                    ..
                } => (Of::Exponentials, args[0]),
                _ => return None,
            };
            let [e, c] = args(body, d, ScalarOp::Sub)?;
            let float = matches!(dtype, DType::F32 | DType::F64);
            if levels[c.index()] == Level::Point || !float {
                return None;
            }
            let by = match of {
                Of::Squares => ReduceOp::Sum,
                Of::Exponentials => ReduceOp::Max,
            };
            let mut bodies = self.bodies.iter();
            let parts = bodies.find_map(|(a, parts)| reduced(loops, by, a, parts, body, e))?;
            Some(Spread {
                of,
                reduce: StmtId::from_index(k),
                center: c,
                value: e,
                guard,
                parts,
                length,
                dtype: *dtype,
            })
        })
    }
}

/// Where the chunks of `e`, a value of `body`, have been reduced by `a`.
fn reduced(
    loops: &Loops,
    by: ReduceOp,
    a: &Body,
    parts: &[(StmtId, BufId)],
    body: &Body,
    e: StmtId,
) -> Option<BufId> {
    let sizes = |b: &Body| b.axes.iter().map(|x| x.size).collect::<Vec<_>>();
    if a.outer != body.outer || sizes(a) != sizes(body) {
        return None;
    }
    let ex = &loops.exprs;
    let rename: SymMap = (a.axes.iter().zip(&body.axes))
        .map(|(x, y)| (x.sym, ex.sym_expr(y.sym)))
        .collect();
    (a.stmts.iter().enumerate()).find_map(|(k, s)| {
        let Stmt::Reduce { op, value, .. } = s else {
            return None;
        };
        if *op != by {
            return None;
        }
        let (value, _) = unguarded(a, *value);
        let (_, buf) = parts.iter().find(|(r, _)| r.index() == k)?;
        same(loops, &rename, (a, value), (body, e), 0).then_some(*buf)
    })
}

/// Returns true if two values are equal at equal points.
fn same(
    loops: &Loops,
    rename: &SymMap,
    (a, x): (&Body, StmtId),
    (b, y): (&Body, StmtId),
    depth: usize,
) -> bool {
    // Terms are compared without a memo: a bound keeps shared subterms from being walked too often.
    if depth > 16 {
        return false;
    }
    let ex = &loops.exprs;
    let (s, t) = (a.stmt(x), b.stmt(y));
    let alike = match (s, t) {
        (
            Stmt::Load {
                buf, coords, fill, ..
            },
            Stmt::Load {
                buf: buf2,
                coords: coords2,
                fill: fill2,
                ..
            },
        ) => {
            buf == buf2
                && fill == fill2
                && coords.len() == coords2.len()
                && (coords.iter().zip(coords2)).all(|(p, q)| ex.subst(*p, rename) == *q)
        }
        (Stmt::Index { expr, dtype }, Stmt::Index { expr: q, dtype: d }) => {
            ex.subst(*expr, rename) == *q && dtype == d
        }
        (Stmt::Const { .. }, Stmt::Const { .. }) => s == t,
        (
            Stmt::Op { op, dtype, .. },
            Stmt::Op {
                op: o, dtype: d, ..
            },
        ) => op == o && dtype == d,
        (Stmt::Cast { to, .. }, Stmt::Cast { to: t, .. }) => to == t,
        _ => false,
    };
    let (p, q) = (s.operands(), t.operands());
    alike
        && p.len() == q.len()
        && (p.iter().zip(&q)).all(|(p, q)| same(loops, rename, (a, *p), (b, *q), depth + 1))
}

/// Returns a reduced value without the selection that masks elements beyond a chunk's end.
fn unguarded(body: &Body, value: StmtId) -> (StmtId, Option<(StmtId, StmtId)>) {
    match body.stmt(value) {
        Stmt::Op {
            op: ScalarOp::Where,
            args,
            ..
        } => (args[1], Some((args[0], args[2]))),
        _ => (value, None),
    }
}

/// Returns the operands of a binary operation of the wanted kind.
fn args(body: &Body, of: StmtId, wanted: ScalarOp) -> Option<[StmtId; 2]> {
    match body.stmt(of) {
        Stmt::Op { op, args, .. } if *op == wanted => Some([args[0], args[1]]),
        _ => None,
    }
}

impl Spread {
    fn push(&self, stmts: &mut Vec<Stmt>, s: Stmt) -> StmtId {
        stmts.push(s);
        StmtId::from_index(stmts.len() - 1)
    }

    fn op(&self, stmts: &mut Vec<Stmt>, op: ScalarOp, x: StmtId, y: StmtId) -> StmtId {
        let dtype = self.dtype;
        let args = smallvec![x, y];
        self.push(stmts, Stmt::Op { op, args, dtype })
    }

    fn constant(&self, stmts: &mut Vec<Stmt>, value: f64) -> StmtId {
        let (value, dtype) = (Scalar::Float(value).convert(self.dtype), self.dtype);
        self.push(stmts, Stmt::Const { value, dtype })
    }

    fn choice(&self, stmts: &mut Vec<Stmt>, of: [StmtId; 3]) -> StmtId {
        let (op, dtype) = (ScalarOp::Where, self.dtype);
        self.push(
            stmts,
            Stmt::Op {
                op,
                args: SmallVec::from_slice(&of),
                dtype,
            },
        )
    }

    /// Loads the chunk's partial result.
    fn part(&self, stmts: &mut Vec<Stmt>, chunk: &Coords) -> StmtId {
        self.push(
            stmts,
            Stmt::Load {
                buf: self.parts,
                coords: chunk.clone(),
                mask: None,
                fill: Scalar::Int(0).convert(self.dtype),
            },
        )
    }

    /// Elements of the chunk, and their mean.
    fn mean(&self, stmts: &mut Vec<Stmt>, chunk: &Coords) -> (StmtId, StmtId) {
        let sum = self.part(stmts, chunk);
        let count = self.push(
            stmts,
            Stmt::Index {
                expr: self.length,
                dtype: DType::I64,
            },
        );
        let count = self.push(
            stmts,
            Stmt::Cast {
                arg: count,
                to: self.dtype,
            },
        );
        let mean = self.op(stmts, ScalarOp::Div, sum, count);
        (count, mean)
    }

    /// The sum over a chunk by itself.
    pub(super) fn within(&self, stmts: &mut Vec<Stmt>, chunk: &Coords) -> StmtId {
        let dtype = self.dtype;
        let mut value = match self.of {
            Of::Squares => {
                let (_, mean) = self.mean(stmts, chunk);
                let d = self.op(stmts, ScalarOp::Sub, self.value, mean);
                self.op(stmts, ScalarOp::Mul, d, d)
            }
            Of::Exponentials => {
                // Infinite elements have no distance to an infinite one.
                let greatest = self.part(stmts, chunk);
                let args = smallvec![greatest];
                let op = ScalarOp::IsInf;
                let infinite = self.push(stmts, Stmt::Op { op, args, dtype });
                let zero = self.constant(stmts, 0.0);
                let from = self.choice(stmts, [infinite, zero, greatest]);
                let d = self.op(stmts, ScalarOp::Sub, self.value, from);
                let (op, args) = (ScalarOp::Exp, smallvec![d]);
                self.push(stmts, Stmt::Op { op, args, dtype })
            }
        };
        if let Some((inside, nothing)) = self.guard {
            value = self.choice(stmts, [inside, value, nothing]);
        }
        self.push(
            stmts,
            Stmt::Reduce {
                op: ReduceOp::Sum,
                value,
                dtype,
            },
        )
    }

    /// Returns a chunk's correction of the whole sum.
    pub(super) fn between(
        &self,
        stmts: &mut Vec<Stmt>,
        within: StmtId,
        center: StmtId,
        chunk: &Coords,
    ) -> StmtId {
        let dtype = self.dtype;
        match self.of {
            Of::Squares => {
                let (count, mean) = self.mean(stmts, chunk);
                let d = self.op(stmts, ScalarOp::Sub, mean, center);
                let square = self.op(stmts, ScalarOp::Mul, d, d);
                let away = self.op(stmts, ScalarOp::Mul, square, count);
                self.op(stmts, ScalarOp::Add, within, away)
            }
            Of::Exponentials => {
                // Of a chunk with infinity the exponentials are of the elements themselves; of one with nothing else than
                // minus infinity they are zero, whatever these are scaled by.
                let greatest = self.part(stmts, chunk);
                let infinity = self.constant(stmts, f64::INFINITY);
                let infinite = self.op(stmts, ScalarOp::Eq, greatest, infinity);
                let zero = self.constant(stmts, 0.0);
                let from = self.choice(stmts, [infinite, zero, greatest]);
                let d = self.op(stmts, ScalarOp::Sub, from, center);
                let (op, args) = (ScalarOp::Exp, smallvec![d]);
                let scale = self.push(stmts, Stmt::Op { op, args, dtype });
                self.op(stmts, ScalarOp::Mul, within, scale)
            }
        }
    }
}
