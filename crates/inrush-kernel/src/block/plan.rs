//! From a group to a block program: axes, sizes of the tile, warps.
//!
//! The sizes were chosen by sweeps on an H200 over 16384 x 4096 and odd sizes: whole rows, 64 bytes of one for each thread,
//! several short ones to a warp; column sums in tiles of 16 x 64, of few rows with a thread for each column; norms of odd rows with
//! a warp for 128 elements.

use super::axes::{self, Strides};
use super::exponentials;
use super::moments;
use super::place::Placer;
use super::renumber::renumber;
use super::{Block, BlockItem, Context, Dim, DimRole, Pointers, Tile};
use crate::build::{Builder, Reuse};
use crate::flatten::Flat;
use crate::tile::{liveness, name, origins};
use crate::{BufRole, Def, Param};
use inrush_base::{Error, Result};
use inrush_expr::{Expr, Exprs, Sym};
use inrush_loops::{Axis, Body, BufId, Stmt, Tables};
use rustc_hash::FxHashMap;

/// Longest row that a program holds whole.
const WHOLE: i64 = 16384;
/// Elements of a tile whose rows a program holds whole.
const ROWS: i64 = 4096;
/// Rows that one warp takes.
const SHORT: i64 = 512;
/// Elements of a pointwise tile.
const FLAT: i64 = 1024;
/// Columns of a tile of column reductions.
const COLUMNS: i64 = 64;
/// Rows of which one thread takes a whole column.
const FEW_ROWS: i64 = 16;

/// Programs for each multiprocessor up to which sums are taken for parts of one.
const WAVES: i64 = 32;

/// Deepest pipeline of a loop over rows.
pub(crate) const STAGES: u32 = 4;

/// What the sizes depend on.
struct Work {
    /// Bytes of the widest element that whole tiles of load or store.
    bytes: i64,
    /// Distinct loads along the own axis.
    loads: usize,
    /// Rows start at multiples of 16 bytes.
    aligned: bool,
    /// Some rows do, such as weights, and others do not.
    mixed: bool,
    /// Rows are reduced, and written as long as they are.
    again: bool,
    /// What is read lies along another axis than what is written.
    turned: bool,
    /// Nothing but one reduction of what one load brings.
    lone: bool,
}

pub(crate) fn group(
    tables: Tables,
    shared: &[Axis],
    bodies: &[Body],
    locals: &[BufId],
    context: &Context,
    choose: &dyn Fn(Tile) -> Tile,
) -> Result<Block> {
    let ex = tables.exprs;
    let mut flat = Flat::new(tables, shared, bodies)?;
    axes::share_all(&mut flat);
    flat.drop_unit_axes();
    flat.join_axes();
    let strides = Strides::new(&flat, locals);
    let has_own = flat.bodies.iter().any(|b| b.axes.len() > flat.shared.len());
    let work = work(&flat, locals);
    let gpu = context.caps.gpu.as_ref();
    let units = gpu.map_or(1, |g| g.multiprocessors as i64);
    let all = |_: usize| true;

    // Axes.
    let (x, y, columns);
    if has_own {
        let rows: f64 = (flat.bodies.iter())
            .flat_map(|b| &b.axes[flat.shared.len()..])
            .map(|a| strides.of(a))
            .sum();
        let fastest = (flat.shared.iter().copied())
            .max_by(|a, b| strides.of(a).total_cmp(&strides.of(b)))
            .filter(|a| strides.of(a) > rows && ex.hint(a.size) > 1);
        columns = fastest.is_some();
        let list = flat.shared.clone();
        match fastest {
            Some(f) => {
                let others: Vec<Axis> = list.into_iter().filter(|a| *a != f).collect();
                y = (!others.is_empty()).then(|| axes::linearize(&mut flat, &others, &all));
                x = Some(f);
            }
            None => {
                y = None;
                x = (!list.is_empty()).then(|| axes::linearize(&mut flat, &list, &all));
            }
        }
    } else {
        columns = false;
        let tiles = axes::pointwise(&flat, &strides);
        x = (!tiles.x.is_empty()).then(|| axes::linearize(&mut flat, &tiles.x, &all));
        y = (tiles.both).then(|| axes::linearize(&mut flat, &tiles.y, &all));
    }
    axes::set_shared(&mut flat, y.iter().chain(x.iter()).copied().collect());
    let own = axes::own(&mut flat)?;
    let tile = choose(sizes(ex, x, y, own, columns, &work, units));
    let powers = [tile.x, tile.y, tile.r, tile.warps as i64];
    if powers.iter().any(|n| n.count_ones() != 1)
        || tile.warps > 32
        || !(1..=STAGES).contains(&tile.stages)
    {
        return Err(Error::input(format!("a tile of {tile}: not powers of two")));
    }
    if own.is_some_and(|a| !tile.streamed && tile.r < ex.range(a.size).hi) {
        return Err(Error::input(format!(
            "a tile of {tile} does not hold rows whole"
        )));
    }

    // Values.
    let (role, reuse) = match tile.streamed {
        true => (DimRole::Streamed, Reuse::Streamed),
        false => (DimRole::Whole, Reuse::Whole),
    };
    let builder = Builder::with(&flat, locals, reuse)?;
    let mut dims: Vec<Dim> = Vec::new();
    let mut add = |axis: Option<Axis>, role: DimRole, block: i64| {
        dims.extend(axis.map(|a| Dim {
            sym: a.sym,
            extent: a.size,
            role,
            block,
            exact: exact(ex, a.size, block, role),
        }));
    };
    add(y, DimRole::Grid, tile.y);
    add(x, DimRole::Grid, tile.x);
    add(own, role, tile.r);
    let mut block = finish(&builder, dims, origins(bodies), tile.warps, context)?;
    block.chosen = Some(tile);
    block.stages = tile.stages;
    if tile.streamed {
        moments::one_pass(ex, &mut block);
        exponentials::one_pass(&mut block);
        turn(&mut block);
    }
    if tile.early && !tile.streamed {
        early(ex, &mut block, context.storage);
    }
    renumber(&mut block);
    Ok(block)
}

/// Has every second walk go back, where order does not matter: the end of what it reads again is still in the caches.
fn turn(block: &mut Block) {
    let mut items = std::mem::take(&mut block.items);
    let mut last = true;
    for item in &mut items {
        if let BlockItem::Loop(w) = item {
            w.back = !last && w.body.iter().all(|i| any_order(block, i));
            last = w.back;
        }
    }
    block.items = items;
}

/// Whether steps of a walk may do this in any order. Moments count their steps, running reductions go on from the step before.
fn any_order(block: &Block, item: &BlockItem) -> bool {
    match item {
        BlockItem::Let(v) => !matches!(block.value(*v).def, Def::Running { .. }),
        BlockItem::Update { .. } | BlockItem::Exponentials { .. } | BlockItem::Store(_) => true,
        _ => false,
    }
}

/// Moves loads that nothing has to come before to the front.
fn early(ex: &Exprs, block: &mut Block, storage: &[BufId]) {
    let owner = |b: BufId| storage.get(b.index()).copied().unwrap_or(b);
    let written: Vec<BufId> = (block.buffers.iter())
        .filter(|b| b.role != BufRole::In)
        .map(|b| owner(b.buf))
        .collect();
    let axes: Vec<Sym> = block.dims.iter().map(|d| d.sym).collect();
    let first = |item: &BlockItem| {
        let BlockItem::Let(v) = item else {
            return false;
        };
        let Def::Load {
            buf, offset, mask, ..
        } = &block.value(*v).def
        else {
            return false;
        };
        // Symbols that are no sizes and no axes of the tile were read from memory.
        let known = |s: &Sym| axes.contains(s) || !ex.is_index(*s);
        mask.is_none()
            && ex.free_syms(*offset).iter().all(known)
            && !written.contains(&owner(block.buffers[buf.index()].buf))
    };
    let (mut items, rest): (Vec<BlockItem>, Vec<BlockItem>) =
        (block.items.iter().cloned()).partition(first);
    items.extend(rest);
    block.items = items;
}

/// Orders the program and gathers what belongs to it.
pub(crate) fn finish(
    builder: &Builder,
    dims: Vec<Dim>,
    origins: Vec<inrush_loops::OriginId>,
    warps: u32,
    context: &Context,
) -> Result<Block> {
    let tables = builder.tables;
    let ex = tables.exprs;
    let live = liveness(builder);
    let mut bits: FxHashMap<Sym, u32> = FxHashMap::default();
    let (mut streamed, mut own, mut grid) = (0, 0, 0);
    for (i, d) in dims.iter().enumerate() {
        if !d.is_tile() {
            continue;
        }
        bits.insert(d.sym, 1 << i);
        match d.role {
            DimRole::Grid => grid |= 1 << i,
            DimRole::Whole => own = 1 << i,
            DimRole::Streamed => {
                own = 1 << i;
                streamed = own;
            }
        }
    }
    let placer = Placer::new(builder, &live, context, &bits, streamed, own, grid);
    let (items, shapes) = placer.run()?;
    let programs = ex.product(
        (dims.iter())
            .filter(|d| d.role == DimRole::Grid)
            .map(|d| ex.ceildiv(d.extent, ex.int(d.block))),
    );
    let mut block = Block {
        name: name(tables, &origins),
        origins,
        dims,
        programs,
        buffers: builder.buffers.clone(),
        sizes: Vec::new(),
        values: builder.values.clone(),
        shapes,
        accs: builder.accs.clone(),
        checks: builder.checks.clone(),
        items,
        product: None,
        wide: false,
        warps,
        stages: 1,
        chosen: None,
    };
    settle(ex, &mut block);
    Ok(block)
}

/// Width of offsets, integer arguments.
pub(crate) fn settle(ex: &Exprs, block: &mut Block) {
    let mut exprs: Vec<Expr> = block.dims.iter().map(|d| d.extent).collect();
    let mut values: Vec<Expr> = Vec::new();
    walk(block, &block.items, &mut exprs, &mut values);
    if let Some(p) = &block.product {
        exprs.extend([p.a.offset, p.b.offset, p.extent]);
    }
    let limit = i32::MAX as i64 - (1 << 20);
    block.wide = (exprs.iter().map(|e| ex.range(*e))).any(|r| r.hi > limit || r.lo < -limit);
    let mut syms: Vec<Sym> = Vec::new();
    for e in exprs.iter().chain(&values) {
        ex.collect_syms(*e, &mut syms);
    }
    block.sizes = (syms.into_iter())
        .filter(|s| !ex.is_index(*s))
        .map(|sym| Param {
            sym,
            value: ex.sym_expr(sym),
        })
        .collect();
}

/// Expressions that become offsets, and those that become values.
fn walk(block: &Block, items: &[BlockItem], offsets: &mut Vec<Expr>, values: &mut Vec<Expr>) {
    for item in items {
        match item {
            BlockItem::Loop(w) => walk(block, &w.body, offsets, values),
            BlockItem::Let(v) => match &block.value(*v).def {
                Def::Load { offset, .. } => offsets.push(*offset),
                Def::Index(e) => values.push(*e),
                Def::Indirect { size, .. } => values.push(*size),
                _ => {}
            },
            BlockItem::Store(s) => offsets.push(s.offset),
            BlockItem::Update { acc, .. } => values.extend(block.accs[acc.index()].index),
            _ => {}
        }
    }
}

pub(crate) fn exact(ex: &Exprs, extent: Expr, block: i64, role: DimRole) -> bool {
    match role {
        DimRole::Whole => ex.is_int(extent, block),
        _ => ex.is_int(ex.modulo(extent, ex.int(block)), 0),
    }
}

fn work(flat: &Flat, locals: &[BufId]) -> Work {
    let ex = flat.exprs();
    let shared = flat.shared.len();
    let mut out = Work {
        bytes: 1,
        loads: 0,
        aligned: true,
        mixed: false,
        again: false,
        turned: false,
        lone: false,
    };
    let mut first: Option<Sym> = None;
    let (mut reductions, mut written, mut some) = (0, false, false);
    let mut seen: Vec<(BufId, Expr)> = Vec::new();
    for body in &flat.bodies {
        let own: Vec<Sym> = body.axes[shared..].iter().map(|a| a.sym).collect();
        for s in &body.stmts {
            match s {
                Stmt::Load { buf, coords, .. } | Stmt::Store { buf, coords, .. } => {
                    let along =
                        own.is_empty() || own.iter().any(|s| ex.contains_sym(coords[0], *s));
                    if locals.contains(buf) || !along {
                        continue;
                    }
                    if let Some(axis) = fastest(ex, body, coords[0]) {
                        out.turned |= first.is_some_and(|f| f != axis);
                        first = Some(axis);
                    }
                    let size = flat.tables.buffers[buf.index()].dtype.size() as i64;
                    out.bytes = out.bytes.max(size);
                    let fits = aligned(ex, body, coords[0], 16 / size);
                    (out.aligned, some) = (out.aligned && fits, some || fits);
                    let load = matches!(s, Stmt::Load { .. });
                    written |= !load && !own.is_empty();
                    if load && !seen.contains(&(*buf, coords[0])) {
                        seen.push((*buf, coords[0]));
                    }
                }
                Stmt::Reduce { .. } => reductions += 1,
                _ => {}
            }
        }
    }
    out.again = reductions > 0 && written;
    out.mixed = some && !out.aligned;
    out.loads = seen.len();
    out.lone = reductions == 1 && seen.len() == 1 && !written;
    out
}

/// The axis along which an access of all elements goes from one to the next.
fn fastest(ex: &Exprs, body: &Body, offset: Expr) -> Option<Sym> {
    let syms: Vec<Sym> = body.axes.iter().map(|a| a.sym).collect();
    let coefs = ex.coefficients(offset, &syms)?;
    if coefs.iter().any(|c| ex.is_int(*c, 0)) {
        return None;
    }
    let at = coefs.iter().position(|c| ex.is_int(*c, 1))?;
    Some(syms[at])
}

/// Whether rows that `offset` walks element by element start at multiples of `lanes`.
fn aligned(ex: &Exprs, body: &Body, offset: Expr, lanes: i64) -> bool {
    let syms: Vec<Sym> = body.axes.iter().map(|a| a.sym).collect();
    let Some(coefs) = ex.coefficients(offset, &syms) else {
        return true;
    };
    !coefs.iter().any(|c| ex.is_int(*c, 1))
        || (coefs.iter()).all(|c| ex.is_int(*c, 1) || ex.is_int(ex.modulo(*c, ex.int(lanes)), 0))
}

fn power(n: i64) -> i64 {
    (n.max(1) as u64).next_power_of_two() as i64
}

/// Warps for a tile in which a thread has about this many elements.
fn warps(tile: i64, each: i64) -> u32 {
    let by_elements = power(tile / (32 * each));
    let at_least = match tile {
        ..512 => 1,
        512..1024 => 2,
        _ => 4,
    };
    by_elements.clamp(at_least, 16) as u32
}

fn sizes(
    ex: &Exprs,
    x: Option<Axis>,
    y: Option<Axis>,
    own: Option<Axis>,
    columns: bool,
    work: &Work,
    units: i64,
) -> Tile {
    let hint = |a: Option<Axis>| a.map_or(1, |a| ex.hint(a.size).max(1));
    let (nx, ny) = (hint(x), hint(y));
    let Some(own) = own else {
        if y.is_some() {
            // Where rows start anywhere, elements move one at a time: more threads have more of them under way.
            let (bx, by, most) = match (work.bytes <= 2, work.aligned, nx.min(ny) < SHORT) {
                (true, true, _) => (64, 128, 8),
                (false, true, _) => (32, 64, 8),
                (true, false, false) => (128, 64, 16),
                (true, false, true) => (64, 128, 16),
                (false, false, false) => (64, 32, 16),
                (false, false, true) => (32, 128, 16),
            };
            let whole: i64 = bx * by;
            let (mut bx, mut by): (i64, i64) = (power(nx).min(bx), power(ny).min(by));
            // A side of a few elements leaves its share to the other one.
            if bx.min(by) < 32 && nx.max(ny) > SHORT {
                let long = (whole / bx.min(by)).min(256);
                (bx, by) = if nx < ny { (bx, long) } else { (long, by) };
            }
            // Programs that are few are smaller, and their threads have more under way.
            let mut each = 64 / most as i64;
            while bx * by > 256 && (nx / bx).max(1) * (ny / by).max(1) < 2 * units {
                (bx, by) = if bx < by { (bx, by / 2) } else { (bx / 2, by) };
                each = 8;
            }
            return Tile {
                x: bx,
                y: by,
                r: 1,
                streamed: false,
                stages: 1,
                early: false,
                pointers: Pointers::Plain,
                warps: warps(bx * by, each).min(most),
            };
        }
        // Of few programs each has more threads; of very few there are more, unless accesses jump.
        let (each, most, mut b) = match nx / FLAT {
            n if n < 4 * units && !work.turned => (2, 8, FLAT / 2),
            n if n < 16 * units => (4, 8, FLAT),
            _ => (8, 4, FLAT),
        };
        while b > 128 && nx / b < 2 * units {
            b /= 2;
        }
        let b = b.min(power(nx));
        return Tile {
            x: b,
            y: 1,
            r: 1,
            streamed: false,
            stages: 1,
            early: false,
            pointers: Pointers::Plain,
            warps: (warps(b.max(512), each).min(most)).min((b / 32).max(1) as u32),
        };
    };
    let known = ex.range(own.size).hi;
    let length = ex.hint(own.size).max(1);
    // A length that varies is held whole only if its bound is near.
    let whole = match ex.as_int(own.size) {
        Some(n) => power(n),
        None if known <= 2 * length.min(2048) => power(known),
        None => i64::MAX,
    };
    if columns {
        let short = whole <= FEW_ROWS;
        let mut bx = if short { 4 * COLUMNS } else { COLUMNS }.min(power(nx));
        while bx > 16 && ny * (nx / bx) < units {
            bx /= 2;
        }
        if whole <= ROWS / bx {
            return Tile {
                x: bx,
                y: 1,
                r: whole,
                streamed: false,
                stages: 1,
                early: false,
                pointers: Pointers::Plain,
                warps: match short {
                    true => (bx / 32).max(1) as u32,
                    false => warps(bx * whole, 16),
                },
            };
        }
        // Programs that are few take longer steps, each of which waits for the memory.
        let step = if ny * (nx / bx) < 2 * units {
            2048
        } else {
            1024
        };
        let mut br = (step / bx).clamp(16, 512).min(power(length));
        let (mut each, mut most) = (8, 8);
        // Where rows start anywhere and programs abound: small tiles of many threads. Long columns have up to 16 bytes for each.
        if !work.aligned && ny * (nx / bx) >= 2 * units {
            (bx, br, each) = match (y.is_some(), work.bytes <= 2) {
                // A warp for each tile, where few of its columns lie beyond the end.
                (true, false) if nx >= 8 * COLUMNS => {
                    most = 1;
                    (bx, br.min(8), 16)
                }
                (true, _) => (bx.min(COLUMNS / 2), br.min(16), 2),
                (false, true) if length >= 1024 => (bx, 32, 8),
                (false, true) => (bx, 8, 2),
                (false, false) => (bx, 16, 4),
            };
        }
        return Tile {
            x: bx,
            y: 1,
            r: br,
            streamed: true,
            stages: 1,
            early: false,
            pointers: Pointers::Plain,
            warps: warps(bx * br, each).min(most),
        };
    }
    let limit = match work.loads {
        0..=2 => WHOLE,
        3..=4 => WHOLE / 2,
        _ => WHOLE / 4,
    };
    if whole <= limit {
        // Short rows stay within one warp each, so that their sums need no shared memory.
        let target = match whole <= SHORT {
            true if work.bytes >= 4 && work.loads > 1 => 512,
            true => 1024,
            false => ROWS,
        };
        let mut rows = (target / whole).clamp(1, 128).min(power(nx));
        while rows > 1 && nx / rows < 4 * units {
            rows /= 2;
        }
        let tile = rows * whole;
        let each = if work.bytes <= 2 && !work.mixed || whole <= SHORT {
            32
        } else {
            16
        };
        // Where programs are few, each has a multiprocessor of its own.
        let few = nx / rows < units;
        // Programs that only sum are short: as many as are to run at once.
        let sums = work.lone && work.aligned && whole > SHORT && nx < WAVES * units;
        let each = match few {
            _ if sums => 16,
            true => each / 4,
            false => each,
        };
        let warps = match whole <= SHORT {
            true => power(tile / (32 * each)).clamp(1, 4) as u32,
            false if few && !sums => power(tile / (32 * each)).clamp(4, 32) as u32,
            false => warps(tile, each),
        };
        return Tile {
            x: rows,
            y: 1,
            r: whole,
            streamed: false,
            stages: 1,
            early: false,
            pointers: Pointers::Plain,
            warps,
        };
    }
    // Few programs: each has all of a multiprocessor's threads for what is under way.
    if nx < units {
        let (r, warps) = if work.bytes >= 4 {
            (4096, 32)
        } else {
            (8192, 16)
        };
        return Tile {
            x: 1,
            y: 1,
            r: power(length).min(r),
            streamed: true,
            stages: 1,
            early: false,
            pointers: Pointers::Plain,
            warps,
        };
    }
    // Of rows that are gone over again, few are under way at once, so that they stay in the caches.
    let (step, warps) = match (work.again, work.bytes <= 2) {
        (true, true) if !work.mixed => (4096, 16),
        (true, _) => (4096, 32),
        (false, true) if work.loads <= 2 => (4096, 8),
        (false, _) => (2048, 8),
    };
    Tile {
        x: 1,
        y: 1,
        r: step.min(power(length)),
        streamed: true,
        stages: 1,
        early: false,
        pointers: Pointers::Plain,
        warps,
    }
}

/// Contractions cannot keep values of their own.
pub(crate) fn refuse_locals(builder: &Builder) -> Result<()> {
    let local = |b: &crate::KernelBuf| matches!(b.role, BufRole::Local { .. });
    match builder.buffers.iter().any(local) {
        true => Err(Error::internal("an epilogue with values of its own")),
        false => Ok(()),
    }
}
