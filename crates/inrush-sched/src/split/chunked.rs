//! Variances of split rows in one pass over memory.
//!
//! A sum of squared distances `(e - c)^2` needs its center `c`, which is known only after a first reduction over all of `e`.
//! Where sums of `e` over the same chunks exist, each chunk sums the distances to its own mean at once, and what the chunks'
//! means are away from the center is added at the end: `sum (e - c)^2 = sum over chunks of (q + n * (mean - c)^2)`.

use inrush_base::DType;
use inrush_expr::{Expr, SymMap};
use inrush_loops::{Body, BufId, Coords, Level, Loops, ReduceOp, ScalarOp, Stmt, StmtId};
use smallvec::smallvec;

/// Reductions that were split: their bodies, cut into chunks, and where the partial results are.
#[derive(Default)]
pub(super) struct Known {
    bodies: Vec<(Body, Vec<(StmtId, BufId)>)>,
}

/// A reduction that is a sum of squared distances.
pub(super) struct Spread {
    pub reduce: StmtId,
    /// The center: a value of the outer points.
    pub center: StmtId,
    value: StmtId,
    /// True for elements inside of a ragged chunk, and what others count.
    guard: Option<(StmtId, StmtId)>,
    /// Sums of the values over chunks.
    sums: BufId,
    /// Elements of a chunk.
    length: Expr,
    dtype: DType,
}

impl Known {
    pub fn add(&mut self, body: Body, sums: Vec<(StmtId, BufId)>) {
        self.bodies.push((body, sums));
    }

    pub fn is_empty(&self) -> bool {
        self.bodies.is_empty()
    }

    /// Drops what reads storage that has been written anew.
    pub fn forget(&mut self, loops: &Loops, writes: &[BufId]) {
        let written: Vec<BufId> = writes.iter().map(|b| loops.storage(*b)).collect();
        self.bodies.retain(|(body, _)| {
            let mut reads = body.reads().into_iter();
            !reads.any(|b| written.contains(&loops.storage(b)))
        });
    }

    /// Whether a reduction of `body` is a sum of squared distances of values whose chunks have been summed.
    pub fn spread(&self, loops: &Loops, body: &Body, length: Expr) -> Option<Spread> {
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
            let [d, same] = args(body, inner, ScalarOp::Mul)?;
            let [e, c] = args(body, d, ScalarOp::Sub)?;
            let float = matches!(dtype, DType::F32 | DType::F64);
            if d != same || levels[c.index()] == Level::Point || !float {
                return None;
            }
            let sums =
                (self.bodies.iter()).find_map(|(a, sums)| summed(loops, a, sums, body, e))?;
            Some(Spread {
                reduce: StmtId::from_index(k),
                center: c,
                value: e,
                guard,
                sums,
                length,
                dtype: *dtype,
            })
        })
    }
}

/// Where the chunks of `e`, a value of `body`, have been summed by `a`.
fn summed(
    loops: &Loops,
    a: &Body,
    sums: &[(StmtId, BufId)],
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
        let Stmt::Reduce {
            op: ReduceOp::Sum,
            value,
            ..
        } = s
        else {
            return None;
        };
        let (value, _) = unguarded(a, *value);
        let (_, buf) = sums.iter().find(|(r, _)| r.index() == k)?;
        same(loops, &rename, (a, value), (body, e), 0).then_some(*buf)
    })
}

/// Whether two values are equal at equal points.
fn same(
    loops: &Loops,
    rename: &SymMap,
    (a, x): (&Body, StmtId),
    (b, y): (&Body, StmtId),
    depth: usize,
) -> bool {
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

/// A reduced value without the choice that leaves out what lies beyond a chunk's end.
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

    /// Elements of the chunk, and their mean.
    fn mean(&self, stmts: &mut Vec<Stmt>, chunk: &Coords) -> (StmtId, StmtId) {
        let sum = self.push(
            stmts,
            Stmt::Load {
                buf: self.sums,
                coords: chunk.clone(),
                mask: None,
                fill: inrush_base::Scalar::Int(0).convert(self.dtype),
            },
        );
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

    /// The sum of squared distances to the chunk's own mean.
    pub fn within(&self, stmts: &mut Vec<Stmt>, chunk: &Coords) -> StmtId {
        let (_, mean) = self.mean(stmts, chunk);
        let d = self.op(stmts, ScalarOp::Sub, self.value, mean);
        let mut value = self.op(stmts, ScalarOp::Mul, d, d);
        if let Some((inside, nothing)) = self.guard {
            let args = smallvec![inside, value, nothing];
            let dtype = self.dtype;
            value = self.push(
                stmts,
                Stmt::Op {
                    op: ScalarOp::Where,
                    args,
                    dtype,
                },
            );
        }
        self.push(
            stmts,
            Stmt::Reduce {
                op: ReduceOp::Sum,
                value,
                dtype: self.dtype,
            },
        )
    }

    /// What a chunk adds to the whole sum.
    pub fn between(
        &self,
        stmts: &mut Vec<Stmt>,
        within: StmtId,
        center: StmtId,
        chunk: &Coords,
    ) -> StmtId {
        let (count, mean) = self.mean(stmts, chunk);
        let d = self.op(stmts, ScalarOp::Sub, mean, center);
        let square = self.op(stmts, ScalarOp::Mul, d, d);
        let away = self.op(stmts, ScalarOp::Mul, square, count);
        self.op(stmts, ScalarOp::Add, within, away)
    }
}
