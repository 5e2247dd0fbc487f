//! Split scans for GPUs: running reductions of few long rows, by reduce, then scan.
//!
//! A program that walks a row alone reads it at a hundredth of the memory's rate. Chunks of the row are reduced at once, a scan of
//! these results says what precedes each chunk, and chunks are then scanned at once:
//!
//! ```text
//!                                 for c in chunks (parallel)
//! acc = neutral                     total[c] = op over k of x[c*length + k]
//! for k in 0..n                   acc = neutral
//!   acc = op(acc, x[k])    ->     for c in chunks
//!   y[k] = acc                      acc = op(acc, total[c]); until[c] = acc
//!                                 for c in chunks (parallel)
//!                                   before = until[c - 1] if c > 0 else neutral
//!                                   for k in 0..length: y[..] = op(before, scan of x[c*length + k])
//! ```
//!
//! The row is read twice. Reduce-then-scan: Merrill and Grimshaw, "Parallel scan for stream architectures", 2009.

use inrush_base::{Caps, DType, Scalar};
use inrush_expr::{Expr, Exprs};
use inrush_loops::builder::sweep;
use inrush_loops::eval::{combiner, neutral};
use inrush_loops::{Axis, Body, BufId, Level, Loops, ReduceOp, ScalarOp, Stmt, StmtId, StoreMode};
use smallvec::smallvec;

use super::gpu::{
    COLUMN, COLUMNS, ROW, WAVES, cut, cut_axis, points, reduces_columns, steps, whole_tiles,
};
use super::{NOTHING, late, temp};

/// Elements of a row from which three launches take less time than one program.
const LEAST: i64 = 8 * ROW;

/// Rows that were scanned in chunks.
#[derive(Default)]
pub(super) struct Scanned {
    rows: Vec<Row>,
}

/// A buffer of rows along a dimension, written in chunks.
struct Row {
    buf: BufId,
    dim: usize,
    size: Expr,
    length: i64,
    /// Points of the body that writes it.
    points: i64,
}

impl Scanned {
    /// Returns the three bodies that a scan of few long rows becomes, or `None` where it stays one.
    pub(super) fn split(
        &mut self,
        loops: &mut Loops,
        body: &Body,
        caps: &Caps,
    ) -> Option<[Body; 3]> {
        let length = chunk_length(loops, body, caps)?;
        let axis = body.reduction_axes()[0];
        self.note(loops, body, axis, length);
        let mut body = body.clone();
        let ragged = !divides(&loops.exprs, length, axis.size);
        cut(loops, &mut body, 0, length, ragged);
        reduce_then_scan(loops, &body)
    }

    /// Notes what a body writes along an axis that is cut into chunks.
    fn note(&mut self, loops: &Loops, body: &Body, axis: Axis, length: i64) {
        for s in &body.stmts {
            if let Stmt::Store { buf, coords, .. } = s
                && let Some(dim) = dimension(loops, coords, axis)
            {
                self.rows.push(Row {
                    buf: *buf,
                    dim,
                    size: axis.size,
                    length,
                    points: points(&loops.exprs, &body.axes),
                });
            }
        }
    }

    /// Cuts a pointwise body that reads such rows into the same chunks, so that it joins the kernel that writes them. Chunks that
    /// divide the row are left to fusion. A body of more points, which broadcasts the rows, needs more programs.
    pub(super) fn follow(&mut self, loops: &Loops, body: &mut Body) {
        if self.rows.is_empty() || body.is_reduction() || !sets_all(body) {
            return;
        }
        let Some((at, length)) = self.chunks_of(loops, body) else {
            return;
        };
        let axis = body.axes[at];
        self.note(loops, body, axis, length);
        let levels = vec![Level::Point; body.stmts.len()];
        let chunk = cut_axis(loops, body, at, length, Some(&levels));
        body.axes.insert(at, chunk);
        body.outer += 1;
    }

    /// Returns the axis along which a body reads rows in ragged chunks, and the length of these.
    fn chunks_of(&self, loops: &Loops, body: &Body) -> Option<(usize, i64)> {
        let ex = &loops.exprs;
        let mut found = None;
        for s in &body.stmts {
            let Stmt::Load { buf, coords, .. } = s else {
                continue;
            };
            let Some(row) = self.rows.iter().find(|r| r.buf == *buf) else {
                continue;
            };
            let reads = |a: &Axis| dimension(loops, coords, *a) == Some(row.dim);
            let at = body.axes.iter().position(reads)?;
            let here = (at, row.length);
            let other = body.axes[at].size != row.size || points(ex, &body.axes) > row.points;
            if other || found.is_some_and(|f| f != here) {
                return None;
            }
            found = Some(here);
        }
        found.filter(|(at, length)| !divides(ex, *length, body.axes[*at].size))
    }
}

/// Returns the dimension whose coordinate is the axis itself; `None` where another coordinate depends on the axis too.
fn dimension(loops: &Loops, coords: &[Expr], axis: Axis) -> Option<usize> {
    let ex = &loops.exprs;
    let mut counts = (0..coords.len()).filter(|d| ex.contains_sym(coords[*d], axis.sym));
    let dim = counts.next()?;
    (counts.next().is_none() && coords[dim] == ex.sym_expr(axis.sym)).then_some(dim)
}

/// Returns true if all stores are plain.
fn sets_all(body: &Body) -> bool {
    let plain = |s: &Stmt| !matches!(s, Stmt::Store { mode, .. } if *mode != StoreMode::Set);
    body.stmts.iter().all(plain)
}

fn divides(ex: &Exprs, length: i64, n: Expr) -> bool {
    ex.is_int(ex.modulo(n, ex.int(length)), 0)
}

/// Returns how many elements a chunk has; `None` where splitting does not pay or is not possible.
fn chunk_length(loops: &Loops, body: &Body, caps: &Caps) -> Option<i64> {
    let ex = &loops.exprs;
    let [axis] = body.reduction_axes() else {
        return None;
    };
    if body.indirect(axis.sym).is_some() || !splittable(ex, body) {
        return None;
    }
    let (rows, n) = (points(ex, body.outer_axes()).max(1), ex.hint(axis.size));
    let columns = reduces_columns(loops, body);
    let programs = if columns {
        (rows / COLUMNS).max(1)
    } else {
        rows
    };
    let units = caps.threads as i64;
    if n < LEAST || programs >= units / 2 {
        return None;
    }
    let most = (WAVES * units / programs).max(1);
    Some(if columns {
        COLUMN * steps(steps(n, most), COLUMN)
    } else {
        even_chunks(ex.as_int(axis.size), most).unwrap_or_else(|| whole_tiles(n, most))
    })
}

/// Returns the length of chunks that divide a row and nearly fill their tiles. Pointwise kernels that read the row then join the last of the
/// three: fusion splits their axis in the same way.
fn even_chunks(n: Option<i64>, most: i64) -> Option<i64> {
    let n = n.filter(|n| *n <= most * ROW)?;
    let mut whole_vectors = (3 * ROW / 4..=ROW).rev().filter(|l| l % 8 == 0);
    whole_vectors.find(|l| n % l == 0)
}

/// Returns true if the body is scans of values that depend on no other scan, statements at points, and stores of these.
fn splittable(ex: &Exprs, body: &Body) -> bool {
    let levels = body.levels(ex);
    let mut late = vec![false; body.stmts.len()];
    let mut scans = 0;
    for (k, s) in body.stmts.iter().enumerate() {
        late[k] = s.operands().iter().any(|o| late[o.index()]);
        let fits = match s {
            Stmt::Scan { op, dtype, .. } => {
                scans += 1;
                let before = late[k];
                late[k] = true;
                !before && combining(*op, *dtype).is_some()
            }
            Stmt::Store { mode, .. } => levels[k] == Level::Point && *mode == StoreMode::Set,
            Stmt::Reduce { .. } | Stmt::Sort { .. } => false,
            // An index that a scan gives names an element for other statements.
            Stmt::Indirect { .. } => !late[k],
            _ => true,
        };
        if !fits {
            return false;
        }
    }
    scans > 0
}

/// Returns the operation that combines results of chunks; `None` where they may not be. A chunk's product of floats may be infinite
/// where that of the row is zero.
fn combining(op: ReduceOp, dtype: DType) -> Option<ScalarOp> {
    let overflows = op == ReduceOp::Prod && dtype.is_float();
    combiner(op).filter(|_| !overflows)
}

/// Makes the bodies of a scan whose first reduction axis, the last of the outer ones from now on, is that of chunks.
fn reduce_then_scan(loops: &mut Loops, body: &Body) -> Option<[Body; 3]> {
    let outer = body.outer + 1;
    let over: Vec<Axis> = body.axes[..outer].to_vec();
    let sizes: Vec<Expr> = over.iter().map(|a| a.size).collect();
    let at: Vec<Expr> = over.iter().map(|a| loops.exprs.sym_expr(a.sym)).collect();
    let mut before = at.clone();
    before[body.outer] = loops.exprs.sub(at[body.outer], loops.exprs.int(1));

    let mut totals = body.clone();
    for s in &mut totals.stmts {
        match s {
            Stmt::Store { .. } => *s = NOTHING,
            Stmt::Scan { op, value, dtype } => {
                let (op, value, dtype) = (*op, *value, *dtype);
                *s = Stmt::Reduce { op, value, dtype };
            }
            _ => {}
        }
    }
    // What is computed of a scan's values has no place here.
    let late = late(&totals, &loops.exprs);
    let mut reduce = totals.stmts;
    for (s, _) in reduce.iter_mut().zip(late).filter(|(_, late)| *late) {
        *s = NOTHING;
    }
    let (mut between, mut scan) = (Vec::new(), Vec::new());
    let after_first = first_chunk(loops, &mut scan, at[body.outer]);
    let mut new: Vec<StmtId> = Vec::with_capacity(body.stmts.len());
    for (k, s) in body.stmts.iter().enumerate() {
        let mut s = s.clone();
        s.map_operands(|o| new[o.index()]);
        let mut id = push(&mut scan, s);
        if let Stmt::Scan { op, dtype, .. } = &body.stmts[k] {
            let (op, dtype) = (*op, *dtype);
            let total = temp(loops, dtype, sizes.clone());
            let until = temp(loops, dtype, sizes.clone());
            reduce.push(store(total, &at, StmtId::from_index(k)));
            let value = push(&mut between, load(total, &at, None, op, dtype));
            let running = push(&mut between, Stmt::Scan { op, value, dtype });
            between.push(store(until, &at, running));
            let base = push(
                &mut scan,
                load(until, &before, Some(after_first), op, dtype),
            );
            let (op, args) = (combining(op, dtype)?, smallvec![base, id]);
            id = push(&mut scan, Stmt::Op { op, args, dtype });
        }
        new.push(id);
    }
    let made = |axes: &[Axis], outer: usize, stmts: Vec<Stmt>| {
        let mut made = Body {
            axes: axes.to_vec(),
            outer,
            stmts,
            origins: body.origins.clone(),
        };
        sweep(&loops.exprs, &mut made);
        made
    };
    Some([
        made(&body.axes, outer, reduce),
        made(&over, body.outer, between),
        made(&body.axes, outer, scan),
    ])
}

/// Pushes statements that say if `chunk` is not the first one.
fn first_chunk(loops: &Loops, stmts: &mut Vec<Stmt>, chunk: Expr) -> StmtId {
    let dtype = DType::I64;
    let zero = push(
        stmts,
        Stmt::Index {
            expr: loops.exprs.int(0),
            dtype,
        },
    );
    let expr = chunk;
    let chunk = push(stmts, Stmt::Index { expr, dtype });
    push(
        stmts,
        Stmt::Op {
            op: ScalarOp::Lt,
            args: smallvec![zero, chunk],
            dtype,
        },
    )
}

fn push(stmts: &mut Vec<Stmt>, s: Stmt) -> StmtId {
    stmts.push(s);
    StmtId::from_index(stmts.len() - 1)
}

fn store(buf: BufId, at: &[Expr], value: StmtId) -> Stmt {
    Stmt::Store {
        buf,
        coords: at.iter().copied().collect(),
        value,
        mode: StoreMode::Set,
        mask: None,
    }
}

/// A load that gives the neutral element where the mask is false.
fn load(buf: BufId, at: &[Expr], mask: Option<StmtId>, op: ReduceOp, dtype: DType) -> Stmt {
    let fill: Scalar = neutral(op, dtype);
    Stmt::Load {
        buf,
        coords: at.iter().copied().collect(),
        mask,
        fill,
    }
}
