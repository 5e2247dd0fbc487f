//! Split reductions: a long reduction with few results becomes partial results over chunks and a reduction of these.
//!
//! Outer points are the only parallelism of a reduction. If there are fewer of them than threads (or programs of a GPU), the reduced
//! axis is split in two, and the outer half of it becomes parallel:
//!
//! ```text
//! for i in rows (parallel)              for i in rows, c in chunks (parallel)
//!   acc = neutral                         acc = neutral
//!   for k in 0..n                         for k in 0..n/chunks
//!     acc = op(acc, x[i, k])      ->        acc = op(acc, x[i, c*(n/chunks) + k])
//!   y[i] = f(acc)                         partial[i, c] = acc
//!                                       for i in rows (parallel)
//!                                         acc = neutral
//!                                         for c in chunks: acc = op(acc, partial[i, c])
//!                                         y[i] = f(acc)
//! ```
//!
//! Scans are split likewise for GPUs ([`scans`]). On CPUs the chunk count divides the axis. GPUs take chunks of any length ([`gpu`]). A sum of distances to a mean that was itself
//! split takes its partial results in the same pass ([`online`]).

use inrush_base::tally::{Way, reached};
use inrush_base::{Caps, DType, Result, Scalar};
use inrush_expr::{Expr, Exprs, Position};
use inrush_loops::{
    Axis, Body, BufId, Buffer, BufferKind, Bufs, Check, Coords, Level, Loops, Node, ReduceOp,
    ScalarOp, Stmt, StmtId, StoreMode,
};
use smallvec::smallvec;

use crate::Options;
use crate::mixed_radix::{Split, split_axis};
use inrush_loops::builder::sweep;

mod columns;
mod gpu;
mod online;
mod scans;

pub(crate) use columns::split_columns;
pub(crate) use gpu::has_few_rows;
use online::{Known, Spread};
use scans::Scanned;

/// Splits every reduction for which it pays. Nodes stay in a valid order.
pub(crate) fn split_reductions(loops: &mut Loops, caps: &Caps, options: &Options) -> Result<()> {
    let again = match caps.gpu {
        Some(_) => gpu::read_again(loops),
        None => Bufs::new(),
    };
    let nodes = std::mem::take(&mut loops.nodes);
    loops.nodes.reserve(nodes.len());
    let (mut known, mut scanned) = (Known::default(), Scanned::default());
    for mut node in nodes {
        if caps.gpu.is_some()
            && let Node::Body(body) = &mut node
        {
            if let Some(bodies) = scanned.split(loops, body, caps) {
                reached(Way::SplitScan);
                known.forget(loops, &body.writes());
                loops.nodes.extend(bodies.map(Node::Body));
                continue;
            }
            scanned.follow(loops, body);
        }
        let length = match caps.gpu {
            Some(_) => {
                let chunks = gpu::chunks(loops, &mut node, caps, &again)?;
                chunks.map(|length| (1, Some(length)))
            }
            None => chunks(loops, &mut node, caps, options)?.map(|count| (count, None)),
        };
        let writes = if length.is_some() || !known.is_empty() {
            node.writes()
        } else {
            Bufs::new()
        };
        match (length, node) {
            (Some((count, length)), Node::Body(body)) => {
                reached(Way::Split);
                let spread = length.and_then(|n| known.spread(loops, &body, n));
                if spread.is_some() {
                    reached(Way::SplitOnline);
                }
                let (partial, last, sums) = split(loops, &body, count, spread);
                loops.nodes.extend([Node::Body(partial), Node::Body(last)]);
                if length.is_some() {
                    known.add(body, sums);
                }
            }
            (_, node) => loops.nodes.push(node),
        }
        known.forget(loops, &writes);
    }
    Ok(())
}

/// Returns how many leading reduction axes become parallel. Splits an axis of the node if that gives the right number of chunks.
fn chunks(loops: &Loops, node: &mut Node, caps: &Caps, options: &Options) -> Result<Option<usize>> {
    let ex = &loops.exprs;
    let Node::Body(body) = &*node else {
        return Ok(None);
    };
    let outer = gpu::points(ex, body.outer_axes());
    let all = outer.saturating_mul(gpu::points(ex, body.reduction_axes()));
    if body.reduction_axes().is_empty() || all < options.split_elements {
        return Ok(None);
    }
    // Neighbouring columns are lanes of one unit, in four vectors.
    let columns = gpu::reduces_columns(loops, body);
    let together = if columns { 4 * caps.lanes(4) as i64 } else { 1 };
    let threads = caps.threads as i64;
    let units = outer.saturating_add(together - 1) / together;
    let few = units < threads && all / units.max(1) >= options.split_elements;
    let broken =
        columns && breaks_rows(ex, body, threads) && all / threads >= options.split_elements;
    if !(few || broken) || !splittable(ex, body) {
        return Ok(None);
    }
    chunk_axes(ex, node, threads)
}

/// Returns how many leading reduction axes of a body give chunks for the threads. Splits an axis if that gives the right number.
fn chunk_axes(ex: &Exprs, node: &mut Node, threads: i64) -> Result<Option<usize>> {
    let Node::Body(body) = &*node else {
        return Ok(None);
    };
    let target = 4 * threads;
    let at = body.outer;
    let first = body.axes[at];
    let size = ex.hint(first.size);
    let args = body
        .stmts
        .iter()
        .any(|s| matches!(s, Stmt::Reduce { op, .. } if op.is_arg()));
    // The leading axis already has a good number of points: it becomes the chunks as it is.
    if size >= target && size <= 16 * target && body.reduction_axes().len() > 1 {
        return Ok(Some(1));
    }
    if size < target {
        // Several short leading axes together, when positions need not be counted.
        let mut count = 1;
        let mut have = size;
        while have < target && count + 1 < body.reduction_axes().len() && !args {
            have = have.saturating_mul(ex.hint(body.axes[at + count].size));
            count += 1;
        }
        let fits = have >= threads && count < body.reduction_axes().len();
        return Ok(fits.then_some(count));
    }
    let Some(n) = ex.as_int(first.size) else {
        return Ok(None);
    };
    // The fewest chunks that keep the threads busy and divide the axis.
    let counts = || (target..=(16 * target).min(n / 2)).filter(|c| n % c == 0);
    let Some(high) = counts().next() else {
        return Ok(None);
    };
    let split = Split {
        axis: first.sym,
        sizes: smallvec![ex.int(high), ex.int(n / high)],
    };
    split_axis(ex, node, &split)?;
    Ok(Some(1))
}

/// Returns true if threads that share the columns of a reduction down columns would each read a piece of every row. Such pieces
/// are one row apart, which for rows of a power of two is a fraction of a cache's sets; whole rows use all of it and are prefetched, and for
/// this many rows a thread's partial results cost next to nothing.
fn breaks_rows(ex: &Exprs, body: &Body, threads: i64) -> bool {
    const ROWS: i64 = 16;
    let above = body
        .outer_axes()
        .split_last()
        .map_or(1, |(_, above)| gpu::points(ex, above));
    let rows = ex.hint(body.axes[body.outer].size);
    threads > 1 && above < threads && rows >= ROWS * 4 * threads
}

/// Returns true if the body is pointwise statements, reductions, and statements on their results.
fn splittable(ex: &Exprs, body: &Body) -> bool {
    let levels = body.levels(ex);
    body.stmts.iter().zip(levels).all(|(s, level)| match s {
        Stmt::Scan { .. } | Stmt::Sort { .. } => false,
        Stmt::Store { mode, .. } => level == Level::Outer && *mode == StoreMode::Set,
        _ => true,
    })
}

/// Statements that depend on a reduction's result.
fn late(body: &Body, ex: &Exprs) -> Vec<bool> {
    let mut late: Vec<bool> = Vec::with_capacity(body.stmts.len());
    let mut syms = Vec::new();
    for s in &body.stmts {
        let l = s
            .operands()
            .iter()
            .any(|o| late[o.index()] || matches!(body.stmt(*o), Stmt::Reduce { .. }))
            || s.exprs()
                .iter()
                .any(|e| ex.free_syms(*e).iter().any(|s| syms.contains(s)));
        if l && let Stmt::Indirect { sym, .. } = s {
            syms.push(*sym);
        }
        late.push(l);
    }
    late
}

/// Stands where a statement belongs to the other half only, so that the numbers of statements stay.
/// Sweeping removes it.
const NOTHING: Stmt = Stmt::Const {
    value: Scalar::Int(0),
    dtype: DType::I64,
};

/// Adds a temporary for partial results.
fn temp(loops: &mut Loops, dtype: DType, sizes: Vec<Expr>) -> BufId {
    let b = BufId::from_index(loops.buffers.len());
    loops.buffers.push(Buffer {
        name: format!("partial{}", b.0),
        dtype,
        sizes,
        layout: None,
        kind: BufferKind::Temp,
    });
    b
}

/// Returns the body of partial results over the first `count` reduction axes, the body that reduces them, and where each
/// reduction's partial results are. With a `spread` one of the reductions is a sum of distances to a center: chunks have centers of
/// their own.
fn split(
    loops: &mut Loops,
    body: &Body,
    count: usize,
    spread: Option<Spread>,
) -> (Body, Body, Vec<(StmtId, BufId)>) {
    let late = late(body, &loops.exprs);
    let levels = body.levels(&loops.exprs);
    let dtypes = body.dtypes(loops);
    let mut halves = Halves::new(loops, body, count, &late);
    for (k, stmt) in body.stmts.iter().enumerate() {
        let this = StmtId::from_index(k);
        let id = match stmt {
            Stmt::Reduce { op, value, dtype } if op.is_arg() => {
                halves.position(this, *op, *value, dtypes[value.index()], *dtype)
            }
            Stmt::Reduce { op, dtype, .. } => {
                let apart = spread.as_ref().filter(|s| s.reduce == this);
                halves.value(this, *op, *dtype, apart)
            }
            // Points of the reduction exist in the first body only.
            _ if levels[k] == Level::Point => halves.push(NOTHING),
            stmt => {
                let mut stmt = stmt.clone();
                stmt.map_operands(|o| halves.new[o.index()]);
                halves.push(stmt)
            }
        };
        halves.new.push(id);
    }
    halves.finish()
}

/// The two bodies of a split reduction under construction.
struct Halves<'a> {
    loops: &'a mut Loops,
    body: &'a Body,
    /// Axes of the partial results: the outer ones and those of chunks.
    over: Vec<Axis>,
    sizes: Vec<Expr>,
    coords: Coords,
    /// Points of a chunk.
    rest: Expr,
    partial: Vec<Stmt>,
    last: Vec<Stmt>,
    /// By statement of the body: its value in `last`.
    new: Vec<StmtId>,
    /// Where the partial results of reductions are.
    sums: Vec<(StmtId, BufId)>,
}

impl<'a> Halves<'a> {
    fn new(loops: &'a mut Loops, body: &'a Body, count: usize, late: &[bool]) -> Halves<'a> {
        let cut = body.outer + count;
        let over: Vec<Axis> = body.axes[..cut].to_vec();
        let rest = loops.exprs.product(body.axes[cut..].iter().map(|a| a.size));
        let early = |(stmt, late): (&Stmt, &bool)| match stmt {
            Stmt::Store { .. } => NOTHING,
            _ if *late => NOTHING,
            stmt => stmt.clone(),
        };
        Halves {
            sizes: over.iter().map(|a| a.size).collect(),
            coords: over.iter().map(|a| loops.exprs.sym_expr(a.sym)).collect(),
            over,
            rest,
            partial: body.stmts.iter().zip(late).map(early).collect(),
            last: Vec::new(),
            new: Vec::with_capacity(body.stmts.len()),
            sums: Vec::new(),
            loops,
            body,
        }
    }

    /// Adds a statement to the last body.
    fn push(&mut self, stmt: Stmt) -> StmtId {
        self.last.push(stmt);
        StmtId::from_index(self.last.len() - 1)
    }

    /// Adds an operation of `i64` to the last body.
    fn op(&mut self, op: ScalarOp, a: StmtId, b: StmtId) -> StmtId {
        self.push(Stmt::Op {
            op,
            args: smallvec![a, b],
            dtype: DType::I64,
        })
    }

    /// Loads a partial result in the last body.
    fn load(&mut self, buf: BufId, coords: Coords, dtype: DType) -> StmtId {
        self.push(Stmt::Load {
            buf,
            coords,
            mask: None,
            fill: Scalar::Int(0).convert(dtype),
        })
    }

    /// Stores a value of the first body as a partial result.
    fn store(&mut self, value: StmtId, dtype: DType) -> BufId {
        let buf = temp(self.loops, dtype, self.sizes.clone());
        self.partial.push(Stmt::Store {
            buf,
            coords: self.coords.clone(),
            value,
            mode: StoreMode::Set,
            mask: None,
        });
        buf
    }

    /// Splits the position of an extreme: each chunk stores its extreme and where it is; the position of the extreme among chunks
    /// then tells the chunk to read back. `of` is the dtype of the values.
    fn position(
        &mut self,
        this: StmtId,
        op: ReduceOp,
        value: StmtId,
        of: DType,
        dtype: DType,
    ) -> StmtId {
        let extreme = match op {
            ReduceOp::ArgMax => ReduceOp::Max,
            _ => ReduceOp::Min,
        };
        self.partial.push(Stmt::Reduce {
            op: extreme,
            value,
            dtype: of,
        });
        let best = StmtId::from_index(self.partial.len() - 1);
        let values = self.store(best, of);
        let places = self.store(this, dtype);
        let value = self.load(values, self.coords.clone(), of);
        // Of equal extremes the first chunk wins, as the first place within each chunk did.
        let chunk = self.push(Stmt::Reduce { op, value, dtype });
        let outer = self.body.outer;
        let size = self.sizes[outer];
        let sym = (0..)
            .map(|k| self.loops.exprs.sym_at(Position::Indirect(k), size))
            .find(|s| !defines(&self.body.stmts, *s) && !defines(&self.last, *s))
            .expect("positions are endless");
        self.push(Stmt::Indirect {
            value: chunk,
            sym,
            size,
            wrap: false,
            check: Check::None,
            mask: None,
        });
        let mut at = self.coords.clone();
        at[outer] = self.loops.exprs.sym_expr(sym);
        let place = self.load(places, at, dtype);
        let length = self.push(Stmt::Index {
            expr: self.rest,
            dtype: DType::I64,
        });
        let start = self.op(ScalarOp::Mul, chunk, length);
        self.op(ScalarOp::Add, start, place)
    }

    /// Splits a reduction that gives a value. With a spread `apart`, distances are to the center of each chunk, and the last body
    /// adds those between centers.
    fn value(
        &mut self,
        this: StmtId,
        op: ReduceOp,
        dtype: DType,
        apart: Option<&Spread>,
    ) -> StmtId {
        let result = match apart {
            Some(s) => s.within(&mut self.partial, &self.coords),
            None => this,
        };
        let buf = self.store(result, dtype);
        self.sums.push((this, buf));
        let mut value = self.load(buf, self.coords.clone(), dtype);
        if let Some(s) = apart {
            let center = self.new[s.center.index()];
            value = s.between(&mut self.last, value, center, &self.coords);
        }
        self.push(Stmt::Reduce { op, value, dtype })
    }

    /// Returns both bodies, without statements that nothing needs, and where the partial results are.
    fn finish(self) -> (Body, Body, Vec<(StmtId, BufId)>) {
        let (ex, body) = (&self.loops.exprs, self.body);
        let make = |axes: Vec<Axis>, outer: usize, stmts: Vec<Stmt>| {
            let mut made = Body {
                axes,
                outer,
                stmts,
                origins: body.origins.clone(),
            };
            sweep(ex, &mut made);
            made
        };
        let cut = self.over.len();
        (
            make(body.axes.clone(), cut, self.partial),
            make(self.over, body.outer, self.last),
            self.sums,
        )
    }
}

/// Returns true if a statement defines this index symbol.
fn defines(stmts: &[Stmt], sym: inrush_expr::Sym) -> bool {
    stmts
        .iter()
        .any(|s| matches!(s, Stmt::Indirect { sym: t, .. } if *t == sym))
}
