//! From a group to a block program: axes, sizes of the tile, values, order, and what is rewritten afterwards.
//!
//! | step | result | file |
//! |---|---|---|
//! | flatten | bodies with one offset an access | `../flatten.rs` |
//! | axes | `y`, `x` and the own axis `r` of all bodies | `axes.rs` |
//! | sizes | points of a tile, warps | `sizes.rs` |
//! | build | values and nests, by the tile's way of reuse | `../build.rs` |
//! | place | items in order, with barriers | `place.rs` |
//! | rewrite | one-pass forms, directions of walks, preloads | `online_*.rs`, here |
//! | renumber | values by first appearance | `renumber.rs` |

use super::axes::{self, Strides};
use super::online_softmax;
use super::online_variance;
use super::place::Placer;
use super::renumber::renumber;
use super::sizes::{self, TileAxes, Work};
use super::{Block, BlockItem, Context, Dim, DimRole, Tile};
use crate::build::{Builder, Reuse};
use crate::finish::{name, origins};
use crate::flatten::Flat;
use crate::live::liveness;
use crate::{BufRole, Def, Param};
use inrush_base::{Error, Result};
use inrush_expr::{Expr, Exprs, Sym};
use inrush_loops::{Axis, Body, BufId, Tables};
use rustc_hash::FxHashMap;

/// Deepest pipeline of a loop.
pub(crate) const STAGES: u32 = 6;

/// Makes the block program of a group; `choose` has the last word on its tile.
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
    let work = Work::new(&flat, locals);
    let gpu = context.caps.gpu.as_ref();
    let units = gpu.map_or(1, |g| g.multiprocessors as i64);
    let axes = tile_axes(&mut flat, locals)?;
    let mut tile = choose(sizes::choose(ex, &axes, &work, units));
    // Warps of 64 threads reach the most threads of a program sooner.
    let most_warps = gpu.map_or(1, |g| g.max_threads / g.warp.max(1));
    tile.warps = tile.warps.min(most_warps.max(1));
    check_tile(ex, tile, axes.own, &work)?;

    let (role, reuse) = if tile.looped {
        (DimRole::Looped, Reuse::Streamed)
    } else {
        (DimRole::Persistent, Reuse::Whole)
    };
    let builder = Builder::with(&flat, locals, reuse)?;
    let dims = [
        (axes.y, DimRole::Grid, tile.y),
        (axes.x, DimRole::Grid, tile.x),
        (axes.own, role, tile.r),
    ];
    let dims = dims.into_iter().filter_map(|(axis, role, block)| {
        let a = axis?;
        Some(Dim {
            sym: a.sym,
            extent: a.size,
            role,
            block,
            exact: exact(ex, a.size, block, role),
        })
    });
    let mut block = finish(
        &builder,
        dims.collect(),
        origins(bodies),
        tile.warps,
        context,
    )?;
    block.chosen = Some(tile);
    block.stages = tile.stages;
    if tile.looped {
        online_variance::rewrite(ex, &mut block);
        online_softmax::rewrite(&mut block);
        alternate_directions(&mut block);
    } else if tile.preload {
        preload(ex, &mut block, context.storage);
    }
    renumber(&mut block);
    Ok(block)
}

/// Turns the group's axes into those of the tile, in all bodies. With an own axis, `x` is a shared one along which more bytes
/// are contiguous than along the own one; all others become one axis.
fn tile_axes(flat: &mut Flat, locals: &[BufId]) -> Result<TileAxes> {
    let ex = flat.exprs();
    let strides = Strides::new(flat, locals);
    let has_own = flat.bodies.iter().any(|b| b.axes.len() > flat.shared.len());
    let all = |_: usize| true;
    let linear = |flat: &mut Flat, axes: &[Axis]| {
        (!axes.is_empty()).then(|| axes::linearize(flat, axes, &all))
    };
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
        let mut rest = flat.shared.clone();
        rest.retain(|a| Some(*a) != fastest);
        let rest = linear(flat, &rest);
        (x, y) = if columns {
            (fastest, rest)
        } else {
            (rest, None)
        };
    } else {
        columns = false;
        let tiles = axes::pointwise(flat, &strides);
        x = linear(flat, &tiles.x);
        y = (tiles.both).then(|| axes::linearize(flat, &tiles.y, &all));
    }
    axes::set_shared(flat, y.iter().chain(x.iter()).copied().collect());
    let own = axes::own(flat)?;
    Ok(TileAxes { x, y, own, columns })
}

/// Refuses a tile that is cut otherwise than by powers of two, and numbers of warps and stages that no program has.
pub(super) fn check_powers(tile: Tile) -> Result<()> {
    let powers = [tile.x, tile.y, tile.r, tile.warps as i64];
    if powers.iter().any(|n| *n < 1 || n.count_ones() != 1)
        || tile.warps > 32
        || !(1..=STAGES).contains(&tile.stages)
    {
        return Err(Error::input(format!("a tile of {tile}: not powers of two")));
    }
    Ok(())
}

/// Refuses sizes that a caller asks for and that no program can have.
fn check_tile(ex: &Exprs, tile: Tile, own: Option<Axis>, work: &Work) -> Result<()> {
    check_powers(tile)?;
    if own.is_some_and(|a| !tile.looped && tile.r < ex.range(a.size).hi) {
        return Err(Error::input(format!(
            "a tile of {tile} does not hold rows whole"
        )));
    }
    if work.sorts && tile.looped {
        return Err(Error::input(format!(
            "a tile of {tile} does not hold the rows that are sorted"
        )));
    }
    Ok(())
}

/// Has every second loop run backwards, where order does not matter: the end of what it reads again is still in the caches.
fn alternate_directions(block: &mut Block) {
    let mut items = std::mem::take(&mut block.items);
    // The first walk runs forwards; each later one turns round what its predecessor did.
    let mut last = true;
    for item in &mut items {
        if let BlockItem::Loop(w) = item {
            w.back = !last && w.body.iter().all(|i| any_order(block, i));
            last = w.back;
        }
    }
    block.items = items;
}

/// Returns true if steps of a loop may do this in any order. Moments count their steps, running reductions go on from the step
/// before.
fn any_order(block: &Block, item: &BlockItem) -> bool {
    match item {
        BlockItem::Let(v) => !matches!(block.value(*v).def, Def::Running { .. }),
        BlockItem::Update { .. } | BlockItem::Exponentials { .. } | BlockItem::Store(_) => true,
        _ => false,
    }
}

/// Moves loads that do not depend on anything stored or computed to the front, so that they overlap with the reduction.
fn preload(ex: &Exprs, block: &mut Block, storage: &[BufId]) {
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
    let (mut looped, mut own, mut grid) = (0, 0, 0);
    let mut may_be_empty = false;
    for (i, d) in dims.iter().enumerate() {
        if !d.is_tile() {
            continue;
        }
        bits.insert(d.sym, 1 << i);
        may_be_empty |= d.role != DimRole::Grid && ex.range(d.extent).lo < 1;
        match d.role {
            DimRole::Grid => grid |= 1 << i,
            DimRole::Persistent => own = 1 << i,
            DimRole::Looped => {
                own = 1 << i;
                looped = own;
            }
        }
    }
    let placer = Placer::new(
        builder,
        &live,
        context,
        &bits,
        looped,
        own,
        grid,
        may_be_empty,
    );
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
        attention: None,
        wide: false,
        warps,
        stages: 1,
        chosen: None,
    };
    set_arguments(ex, &mut block);
    Ok(block)
}

/// Sets the width of offsets and the integer arguments.
pub(crate) fn set_arguments(ex: &Exprs, block: &mut Block) {
    let mut exprs: Vec<Expr> = block.dims.iter().map(|d| d.extent).collect();
    let mut values: Vec<Expr> = Vec::new();
    walk(block, &block.items, &mut exprs, &mut values);
    if let Some(p) = &block.product {
        exprs.extend([p.a.offset, p.b.offset, p.extent]);
    }
    if let Some(a) = &block.attention {
        exprs.extend(a.operands().into_iter().map(|o| o.offset));
        exprs.extend([a.d.extent, a.n.extent]);
    }
    // A tile reaches beyond the end of its axis: masked lanes compute offsets too, which must not
    // overflow.
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

/// Collects expressions that become offsets, and those that become values.
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

/// Returns true if blocks divide the extent, so that no mask is needed. A persistent axis has one block.
pub(crate) fn exact(ex: &Exprs, extent: Expr, block: i64, role: DimRole) -> bool {
    match role {
        DimRole::Persistent => ex.is_int(extent, block),
        _ => ex.is_int(ex.modulo(extent, ex.int(block)), 0),
    }
}

/// Refuses locals: contractions cannot keep values of their own.
pub(crate) fn refuse_locals(builder: &Builder) -> Result<()> {
    let local = |b: &crate::KernelBuf| matches!(b.role, BufRole::Local { .. });
    match builder.buffers.iter().any(local) {
        true => Err(Error::internal("an epilogue with values of its own")),
        false => Ok(()),
    }
}
