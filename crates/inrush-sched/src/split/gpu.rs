//! Split reductions for GPUs: enough programs to fill the device, chunks of any length. The last chunk may be shorter;
//! elements beyond the end are neutral.
//!
//! ```text
//! n = 10000 in chunks of 4096             c in 0..3, k in 0..4096
//!   sum of x[i]                    ->       sum of (x[4096*c + k] if 4096*c + k < 10000 else 0)
//! ```
//!
//! A program is a chunk of a row, or of [`COLUMNS`] neighbouring columns. A device wants [`WAVES`]
//! of them for each multiprocessor, and each wants enough elements to be worth its launch.

use inrush_base::{Caps, DType, Result, Scalar};
use inrush_expr::{Expr, Exprs, Sym};
use inrush_loops::eval::neutral;
use inrush_loops::{Axis, Body, BufId, Bufs, Level, Loops, Node, ReduceOp, ScalarOp, Stmt, StmtId};
use rustc_hash::FxHashMap;
use smallvec::{SmallVec, smallvec};

/// Columns that one program takes when neighbouring results are neighbours in memory.
pub(super) const COLUMNS: i64 = 64;
/// Programs for each multiprocessor that keep the memory busy.
pub(super) const WAVES: i64 = 16;
/// Elements of a row, and rows of a column, that a chunk should have at least.
pub(super) const ROW: i64 = 4096;
pub(super) const COLUMN: i64 = 128;
/// Chunks of an axis of varying size are a multiple of this long.
const STEP: i64 = 64;

/// Points of a body.
pub(super) fn points(ex: &Exprs, axes: &[Axis]) -> i64 {
    (axes.iter()).fold(1i64, |p, a| p.saturating_mul(ex.hint(a.size).max(0)))
}

/// Results of reductions that a body of as many points needs, by itself or through what is computed of them: normalisations go
/// over their rows again.
pub(super) fn read_again(loops: &Loops) -> Bufs {
    let ex = &loops.exprs;
    // By buffer the reductions that it comes from, with the points of each.
    let mut from: FxHashMap<BufId, SmallVec<[(BufId, i64); 2]>> = FxHashMap::default();
    let mut found = Bufs::new();
    for node in &loops.nodes {
        let Node::Body(b) = node else { continue };
        let all = points(ex, &b.axes);
        if !b.reduction_axes().is_empty() {
            for w in b.writes() {
                from.insert(w, smallvec![(w, all)]);
            }
            continue;
        }
        let reads = b.reads();
        let mut passed: SmallVec<[(BufId, i64); 2]> = SmallVec::new();
        for (root, points) in reads.iter().filter_map(|r| from.get(r)).flatten() {
            if all >= *points {
                found.push(*root)
            } else {
                passed.push((*root, *points))
            }
        }
        if !passed.is_empty() {
            for w in b.writes() {
                from.insert(w, passed.clone());
            }
        }
    }
    found
}

/// Returns true if a reduction of long rows has so few of them that it will be split, although a second pass over the rows then
/// takes a launch of its own.
pub(crate) fn has_few_rows(loops: &Loops, body: &Body, units: i64) -> bool {
    let ex = &loops.exprs;
    !body.reduction_axes().is_empty()
        && points(ex, body.outer_axes()) < units / 2
        && points(ex, body.reduction_axes()) >= 4 * ROW
        && super::splittable(ex, body)
        && !reduces_columns(loops, body)
}

/// Makes the node's first reduction axis one of chunks, when that pays; how many elements a chunk has. `again` are results of
/// [`read_again`].
pub(super) fn chunks(
    loops: &Loops,
    node: &mut Node,
    caps: &Caps,
    again: &Bufs,
) -> Result<Option<Expr>> {
    let ex = &loops.exprs;
    let Node::Body(body) = &mut *node else {
        return Ok(None);
    };
    if body.reduction_axes().is_empty() || !super::splittable(ex, body) {
        return Ok(None);
    }
    let (outer, inner) = (
        points(ex, body.outer_axes()),
        points(ex, body.reduction_axes()),
    );
    let columns = reduces_columns(loops, body);
    let least = if columns { COLUMN } else { ROW };
    let programs = if columns {
        (outer / COLUMNS).max(1)
    } else {
        outer.max(1)
    };
    let units = caps.threads as i64;
    // What goes over its rows again is one launch if it is not split, for which half of the device is enough.
    let enough = if !columns && body.writes().iter().any(|w| again.contains(w)) {
        units / 2
    } else {
        2 * units
    };
    if programs >= enough || inner < 4 * least {
        return Ok(None);
    }
    let most = (WAVES * units / programs).max(1);
    let wanted = most.min(inner / least) as u64;
    let wanted = if wanted.is_power_of_two() {
        wanted
    } else {
        wanted.next_power_of_two() / 2
    } as i64;
    if wanted < 2 {
        return Ok(None);
    }
    let ordered = (body.stmts.iter()).any(|s| matches!(s, Stmt::Reduce { op, .. } if op.is_arg()));
    join(loops, body, ordered);
    // The longest reduction axis is cut where order does not count, else the first one.
    let at = if ordered {
        0
    } else {
        let sizes = body.reduction_axes().iter().map(|a| ex.hint(a.size));
        let longest = sizes.enumerate().max_by_key(|(k, n)| (*n, usize::MAX - k));
        longest.map_or(0, |(k, _)| k)
    };
    let axis = body.reduction_axes()[at];
    let n = axis.size;
    let wanted = wanted.min(ex.hint(n) / 2);
    if wanted < 2 || body.indirect(axis.sym).is_some() {
        return Ok(None);
    }
    let alone = body.reduction_axes().len() == 1;
    let length = match ex.as_int(n) {
        // Chunks of rows are whole tiles; of a length that varies also where rows start anywhere.
        known if alone && (in_lines(loops, body, axis.sym) || known.is_none() && !columns) => {
            whole_tiles(ex.hint(n), most)
        }
        Some(n) => {
            // A number of chunks that divides the axis needs no masks.
            let exact = (wanted..=2 * wanted).find(|c| n % c == 0);
            steps(n, exact.unwrap_or(wanted))
        }
        // The length is a number also where that of the axis varies: then the number of chunks does.
        None => STEP * steps(steps(ex.hint(n), wanted), STEP),
    };
    // An empty axis has no chunk that could hold an extreme.
    if ordered && ex.range(n).lo < 1 {
        return Ok(None);
    }
    let ragged = !ex.is_int(ex.modulo(n, ex.int(length)), 0);
    cut(loops, body, at, length, ragged);
    let chunk = &body.axes[body.outer];
    let left = ex.sub(n, ex.mul(ex.sym_expr(chunk.sym), ex.int(length)));
    let along = if ragged {
        ex.min(ex.int(length), left)
    } else {
        ex.int(length)
    };
    let others = (body.axes[body.outer + 1..].iter().enumerate())
        .filter(|(k, _)| *k != at)
        .map(|(_, a)| a.size);
    Ok(Some(ex.mul(along, ex.product(others))))
}

/// Returns true if neighbouring results read neighbouring elements.
pub(super) fn reduces_columns(loops: &Loops, body: &Body) -> bool {
    let ex = &loops.exprs;
    let (mut rows, mut columns) = (0i64, 0i64);
    for s in &body.stmts {
        let Stmt::Load { buf, coords, .. } = s else {
            continue;
        };
        let b = loops.buffer(*buf);
        // The dimension whose neighbours are neighbours in memory.
        let last = match &b.layout {
            Some(l) => l.strides.iter().rposition(|s| ex.is_int(*s, 1)),
            None => coords.len().checked_sub(1),
        };
        let Some(d) = last else { continue };
        let weight = (b.sizes.iter()).fold(1i64, |p, s| p.saturating_mul(ex.hint(*s).max(1)));
        let has = |axes: &[Axis]| axes.iter().any(|a| ex.contains_sym(coords[d], a.sym));
        if has(body.reduction_axes()) {
            rows = rows.saturating_add(weight);
        } else if has(body.outer_axes()) {
            columns = columns.saturating_add(weight);
        }
    }
    columns > rows
}

/// Length of the chunks of a row of `n` elements that starts at a multiple of 16 bytes: so does every chunk, and its tile has no
/// lanes to spare. More programs than `most` take several tiles each.
pub(super) fn whole_tiles(n: i64, most: i64) -> i64 {
    if n <= most * ROW {
        ROW
    } else {
        2 * ROW * steps(steps(n, most), 2 * ROW)
    }
}

/// Divides, rounding up.
pub(super) fn steps(n: i64, each: i64) -> i64 {
    (n + each - 1) / each
}

/// Returns the offset of an element, in a dense row-major buffer if there is no layout.
fn offset(loops: &Loops, buf: BufId, coords: &[Expr]) -> Expr {
    let (ex, b) = (&loops.exprs, loops.buffer(buf));
    match &b.layout {
        Some(l) => ex.add(l.offset, ex.dot(&l.strides, coords)),
        None => ex.dot(&ex.contiguous_strides(&b.sizes), coords),
    }
}

/// Returns true if reads along `axis` are contiguous, in rows that start at multiples of 16 bytes.
fn in_lines(loops: &Loops, body: &Body, axis: Sym) -> bool {
    let ex = &loops.exprs;
    let (mut some, mut all) = (false, true);
    for s in &body.stmts {
        let Stmt::Load { buf, coords, .. } = s else {
            continue;
        };
        let offset = offset(loops, *buf, coords);
        if !ex.contains_sym(offset, axis) {
            continue;
        }
        let syms: Vec<Sym> = body.axes.iter().map(|a| a.sym).collect();
        let lanes = ex.int(16 / (loops.buffer(*buf).dtype.size() as i64).clamp(1, 16));
        let lines = ex.affine(offset, &syms).is_some_and(|(coefs, rest)| {
            let starts = |e: Expr| ex.is_int(ex.modulo(e, lanes), 0);
            (syms.iter().zip(&coefs)).all(|(s, c)| {
                if *s == axis {
                    ex.is_int(*c, 1)
                } else {
                    starts(*c)
                }
            }) && starts(rest)
        });
        (some, all) = (true, all && lines);
    }
    some && all
}

/// Makes one axis of neighbouring reduction axes that walk all that is read without a gap.
fn join(loops: &Loops, body: &mut Body, ordered: bool) {
    let ex = &loops.exprs;
    let mut k = body.axes.len();
    while k > body.outer + 1 {
        k -= 1;
        let (a, b) = (body.axes[k - 1], body.axes[k]);
        let turned = (b, a);
        let (slow, fast) = match (gapless(loops, body, a, b), ordered) {
            (true, _) => (a, b),
            (false, false) if gapless(loops, body, b, a) => turned,
            _ => continue,
        };
        let size = ex.mul(slow.size, fast.size);
        let axis = fresh(ex, body, size, None);
        let at = ex.sym_expr(axis.sym);
        let map = [
            (slow.sym, ex.floordiv(at, fast.size)),
            (fast.sym, ex.modulo(at, fast.size)),
        ];
        let map = map.into_iter().collect();
        for s in &mut body.stmts {
            for e in s.exprs_mut() {
                *e = ex.subst(*e, &map);
            }
        }
        body.axes[k - 1] = axis;
        body.axes.remove(k);
    }
}

/// Returns true if a step of `slow` equals all steps of `fast` in every load.
fn gapless(loops: &Loops, body: &Body, slow: Axis, fast: Axis) -> bool {
    let ex = &loops.exprs;
    // Places of the joined axis are divided by this size.
    if ex.range(fast.size).lo < 1 {
        return false;
    }
    let counts = |e: Expr| ex.contains_sym(e, slow.sym) || ex.contains_sym(e, fast.sym);
    body.stmts.iter().all(|s| match s {
        Stmt::Load { buf, coords, .. } => {
            let offset = offset(loops, *buf, coords);
            let coefs = ex.coefficients(offset, &[slow.sym, fast.sym]);
            !coords.iter().any(|c| counts(*c))
                || coefs.is_some_and(|c| c[0] == ex.mul(c[1], fast.size))
        }
        s => !s.exprs().iter().any(|e| counts(*e)),
    })
}

/// An axis that no other has the name of.
fn fresh(ex: &Exprs, body: &Body, size: Expr, not: Option<Sym>) -> Axis {
    let taken = |s: Sym| body.axes.iter().any(|a| a.sym == s) || super::defines(&body.stmts, s);
    let sym = (0..)
        .map(|p| ex.index_sym(p, size))
        .find(|s| !taken(*s) && Some(*s) != not)
        .expect("positions are endless");
    Axis { sym, size }
}

/// Cuts reduction axis `at` into chunks of `length`, the last of which is shorter if `ragged`; the axis of chunks becomes the first
/// one.
pub(super) fn cut(loops: &Loops, body: &mut Body, at: usize, length: i64, ragged: bool) {
    let levels = body.levels(&loops.exprs);
    let outer = body.outer;
    let chunk = cut_axis(loops, body, outer + at, length, ragged.then_some(&levels));
    body.axes.insert(outer, chunk);
}

/// Has axis `at` go over the places of a chunk of `length`, and returns the axis of chunks. Where the last chunk is shorter, `ragged`
/// tells which statements are of points.
pub(super) fn cut_axis(
    loops: &Loops,
    body: &mut Body,
    at: usize,
    length: i64,
    ragged: Option<&[Level]>,
) -> Axis {
    let ex = &loops.exprs;
    let old = body.axes[at];
    let count = ex.ceildiv(old.size, ex.int(length));
    let chunk = fresh(ex, body, count, None);
    let place = fresh(ex, body, ex.int(length), Some(chunk.sym));
    let index = ex.add(
        ex.mul(ex.sym_expr(chunk.sym), ex.int(length)),
        ex.sym_expr(place.sym),
    );
    let map = [(old.sym, index)].into_iter().collect();
    for s in &mut body.stmts {
        for e in s.exprs_mut() {
            *e = ex.subst(*e, &map);
        }
    }
    body.axes[at] = place;
    if let Some(levels) = ragged {
        guard(loops, body, levels, index, old.size);
    }
    chunk
}

/// Reads, writes and reduces only where `index < n`.
fn guard(loops: &Loops, body: &mut Body, levels: &[Level], index: Expr, n: Expr) {
    let dtypes = body.dtypes(loops);
    let old = std::mem::take(&mut body.stmts);
    let mut out: Vec<Stmt> = Vec::with_capacity(old.len() + 8);
    let mut map: Vec<StmtId> = Vec::with_capacity(old.len());
    let push = |out: &mut Vec<Stmt>, s: Stmt| {
        out.push(s);
        StmtId::from_index(out.len() - 1)
    };
    let at = push(
        &mut out,
        Stmt::Index {
            expr: index,
            dtype: DType::I64,
        },
    );
    let end = push(
        &mut out,
        Stmt::Index {
            expr: n,
            dtype: DType::I64,
        },
    );
    let inside = push(
        &mut out,
        Stmt::Op {
            op: ScalarOp::Lt,
            args: smallvec![at, end],
            dtype: DType::I64,
        },
    );
    // Statements of results stay unmasked: they run after the reduction.
    for (k, mut s) in old.into_iter().enumerate() {
        s.map_operands(|o| map[o.index()]);
        let point = levels[k] == Level::Point;
        match &mut s {
            Stmt::Load { mask, .. } | Stmt::Indirect { mask, .. } | Stmt::Store { mask, .. }
                if point =>
            {
                *mask = Some(match *mask {
                    None => inside,
                    Some(m) => push(
                        &mut out,
                        Stmt::Op {
                            op: ScalarOp::And,
                            args: smallvec![m, inside],
                            dtype: DType::Bool,
                        },
                    ),
                });
            }
            Stmt::Reduce { op, value, .. } | Stmt::Scan { op, value, .. } => {
                let d = value_dtype(&dtypes, &map, *value);
                let least: Scalar = match op {
                    ReduceOp::ArgMax => neutral(ReduceOp::Max, d),
                    ReduceOp::ArgMin => neutral(ReduceOp::Min, d),
                    op => neutral(*op, d),
                };
                let nothing = push(
                    &mut out,
                    Stmt::Const {
                        value: least,
                        dtype: d,
                    },
                );
                *value = push(
                    &mut out,
                    Stmt::Op {
                        op: ScalarOp::Where,
                        args: smallvec![inside, *value, nothing],
                        dtype: d,
                    },
                );
            }
            _ => {}
        }
        map.push(push(&mut out, s));
    }
    body.stmts = out;
}

/// dtype of a statement by its new id.
fn value_dtype(dtypes: &[DType], map: &[StmtId], new: StmtId) -> DType {
    let old = map.iter().position(|m| *m == new);
    old.map_or(DType::F32, |k| dtypes[k])
}
