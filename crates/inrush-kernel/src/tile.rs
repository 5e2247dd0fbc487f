//! A group becomes a kernel: lanes and grid are chosen, every statement is placed as far out as it may stand.

use crate::apart;
use crate::beneath;
use crate::build::Builder;
use crate::flatten::Flat;
use crate::lanes::{self, Lanes, Live, OwnAxis};
use crate::nest::{Effect, EffectKind};
use crate::{BufRole, Def, GridAxis, Item, Kernel, Kind, Loop, Param, Range, Role, ValId, cost};
use inrush_base::tally::{Way, reached};
use inrush_base::{Caps, Error, Result};
use inrush_expr::{Expr, Sym, SymMap};
use inrush_loops::scalar::OpClass;
use inrush_loops::{Axis, Body, BufId, OriginId, StoreMode, Tables};
use smallvec::{SmallVec, smallvec};

/// Elements that one unit of the grid should cover at least, so that the decomposition of its number costs nothing.
const UNIT_POINTS: i64 = 4096;
/// Elements up to which one unit covers more, where it would cover fewer than these.
const MOST_POINTS: i64 = 16 * UNIT_POINTS;
const LEAST_POINTS: i64 = UNIT_POINTS / 4;
/// Vectors of channels that a unit takes along a row of pixels, some of which are computed side by side.
const PIXELS_VECTORS: i64 = 4;
/// Units that are enough for the threads.
const MANY_UNITS: i64 = 64;
/// Points of a tile that is transposed: a cache line of `f32`.
const TILE: i64 = 16;
/// Position of the index symbol that stands for the length of a flat kernel.
const LENGTH_POSITION: u32 = 1 << 24;
/// Results from this many bytes on are stored past the caches: what reads them would find little of them there.
const STREAM_BYTES: i64 = 32 << 20;
/// Locals that fit into this many bytes live on the stack.
const STACK_BYTES: i64 = 32 << 10;

/// Makes a kernel of a fused group: for each point of `axes`, `bodies` in order, with `locals` living within one point.
pub fn tile(
    tables: Tables,
    axes: &[Axis],
    bodies: &[Body],
    locals: &[BufId],
    caps: &Caps,
) -> Result<Kernel> {
    let mut flat = Flat::new(tables, axes, bodies)?;
    if let [body] = flat.bodies.as_slice() {
        // A lone body keeps nothing between its points: all its parallel axes may be shared out.
        flat.shared = body.axes[..body.outer].to_vec();
    }
    flat.drop_unit_axes();
    flat.join_axes();
    let builder = Builder::new(&flat, locals)?;
    let live = liveness(&builder);
    let combining = builder
        .nests
        .iter()
        .flat_map(|n| &n.effects)
        .any(|e| matches!(&e.kind, EffectKind::Store { mode, .. } if *mode != StoreMode::Set));
    // What combines in memory stays within a unit: only axes that keep their places apart are shared out.
    let apart = match combining {
        true => apart::apart(&builder, &flat.shared),
        false => Vec::new(),
    };
    if !apart.is_empty() {
        reached(Way::Apart);
    }
    let stays = |s: Sym| combining && !apart.contains(&s);
    // Of the axes that stay only the last may become the innermost loop: what is combined keeps its order.
    let shared = flat.shared.clone();
    let last = shared.iter().rposition(|a| stays(a.sym));
    let in_order = |at: usize| last == Some(at) || !stays(shared[at].sym);
    let (mut choice, own) = lanes::choose(&builder, &live, &shared, in_order, caps);
    if matches!(choice, Lanes::None)
        && let Some(beside) = lanes::beside(&builder, &live, &shared, &apart, caps)
    {
        choice = beside;
    }
    let exprs = tables.exprs;

    // Work of one point of the group, in points of its nests.
    let point: i64 = builder
        .nests
        .iter()
        .map(|n| (n.axes.iter()).fold(1i64, |a, x| a.saturating_mul(exprs.hint(x.size).max(1))))
        .fold(0i64, i64::saturating_add)
        .max(1);
    let mut grid: Vec<Axis> = shared.clone();
    let mut inner: Vec<GroupLoop> = Vec::new();
    let mut work = point;
    let mut block = 1;
    let mut tiles_sym: Option<Sym> = None;
    let mut pixels: Option<Sym> = None;
    if let Lanes::Shared { axis, width } = choice {
        let lane = grid.remove(axis);
        let across = lanes::transposed(&builder, &live, &shared, &lane);
        let place = |a: &Axis| shared.iter().position(|s| s.sym == a.sym);
        if let Some(across) = across.filter(|a| place(a).is_some_and(in_order)) {
            reached(Way::TransposedTile);
            // The grid counts tiles of the other axis; a loop inside the lanes runs over one.
            let tiles = flat.fresh(exprs.ceildiv(across.size, exprs.int(TILE)));
            for a in grid.iter_mut().filter(|a| a.sym == across.sym) {
                *a = tiles;
            }
            inner.push(GroupLoop {
                axis: across,
                range: Range::Tile {
                    start: exprs.mul(exprs.sym_expr(tiles.sym), exprs.int(TILE)),
                    step: TILE,
                    extent: across.size,
                },
                role: Role::Serial,
            });
            tiles_sym = Some(tiles.sym);
        }
        let mut beneath: Option<i64> = None;
        if tiles_sym.is_none()
            && !combining
            && let Some(at) = beneath::beneath(&builder, &live, &shared, &lane, in_order)
        {
            reached(Way::Beneath);
            let axis = shared[at];
            let all = exprs.as_int(axis.size).filter(|n| *n <= 2 * beneath::STEP);
            let range = match all {
                Some(_) => {
                    grid.retain(|a| a.sym != axis.sym);
                    Range::Full(axis.size)
                }
                None => {
                    let step = beneath::STEP;
                    let tiles = flat.fresh(exprs.ceildiv(axis.size, exprs.int(step)));
                    for a in grid.iter_mut().filter(|a| a.sym == axis.sym) {
                        *a = tiles;
                    }
                    Range::Tile {
                        start: exprs.mul(exprs.sym_expr(tiles.sym), exprs.int(step)),
                        step,
                        extent: axis.size,
                    }
                }
            };
            beneath = Some(all.unwrap_or(beneath::STEP));
            inner.push(GroupLoop {
                axis,
                range,
                role: Role::Serial,
            });
        }
        let point = match (tiles_sym, beneath) {
            (Some(_), _) => TILE * point,
            (None, Some(n)) => n * point,
            _ => point,
        };
        let total = exprs.hint(lane.size).max(1).saturating_mul(point);
        // A few vectors of channels for a row of pixels: their filters and what lies under these stay in the nearest cache.
        let strip = PIXELS_VECTORS * width as i64;
        if let Some((row, others)) = grid.split_last()
            && tiles_sym.is_none()
            && beneath.is_none()
            && !combining
        {
            let units = (others.iter()).map(|a| exprs.hint(a.size).max(1));
            let strips = (exprs.hint(lane.size).max(1) - 1) / strip + 1;
            let many = units.fold(strips, i64::saturating_mul) >= 2 * caps.threads as i64;
            let fits = many && lanes::pixels_beside(&builder, &live, &lane, row, caps);
            pixels = fits.then_some(row.sym);
            if fits {
                reached(Way::Pixels);
            }
        }
        let within: i64 = (grid.iter().filter(|a| stays(a.sym)))
            .fold(total, |n, a| n.saturating_mul(exprs.hint(a.size).max(1)));
        let blocked = !stays(lane.sym) && within > 2 * UNIT_POINTS;
        // Whole cache lines of a transposed tile.
        let unroll = if pixels.is_some() {
            1
        } else if tiles_sym.is_some() && TILE % width as i64 == 0 {
            (TILE / width as i64).clamp(1, 4) as u32
        } else {
            let copies = lanes::copies(&builder, &live, width);
            // Wide columns only where there are still enough of them for the threads.
            let wide = 8 * width as i64 * 4 * caps.threads as i64;
            if copies == 8 && exprs.hint(lane.size) < wide {
                4
            } else {
                copies
            }
        };
        if blocked && combining {
            // Each unit reads all indices: a few units for each thread, of whole cache lines.
            let line = 4 * width as i64;
            let share = exprs.hint(lane.size).max(1) / (4 * caps.threads.max(1) as i64);
            block = (share + line - 1).max(line) / line * line;
        } else if blocked && tiles_sym.is_some() {
            // A few tiles a unit: the next unit reads on where these rows ended, and so do the prefetchers.
            block = (4 * TILE).max(width as i64);
        } else if blocked && pixels.is_some() {
            block = strip;
        } else if blocked {
            let step = (unroll as i64).max(4) * width as i64;
            block = ((2 * UNIT_POINTS / point) / step * step).max(step);
        }
        work = if blocked {
            block.saturating_mul(point)
        } else {
            total
        };
        inner.insert(
            0,
            GroupLoop {
                axis: lane,
                range: if blocked {
                    Range::Block {
                        extent: lane.size,
                        block,
                    }
                } else {
                    Range::Full(lane.size)
                },
                role: Role::Lanes { width, unroll },
            },
        );
    }
    // Axes that stay come first, then small ones from the last on.
    while let Some(at) = (grid.iter().rposition(|a| stays(a.sym))).or(grid.len().checked_sub(1)) {
        let last = grid[at];
        let more = work.saturating_mul(exprs.hint(last.size).max(1));
        // A unit that does next to nothing takes a whole row, if there are many rows.
        let rows = grid[..at].iter().map(|a| exprs.hint(a.size).max(1));
        let rows = rows.fold(1, i64::saturating_mul);
        let room = match work < LEAST_POINTS && rows >= MANY_UNITS {
            true => MOST_POINTS,
            false => UNIT_POINTS,
        };
        let slides = inner.len() == 1
            && (pixels == Some(last.sym)
                || lanes::rows_beside(&builder, &live, &inner[0], &last, caps)
                    && rows >= caps.threads as i64 * 4);
        if more > room && !stays(last.sym) && !slides {
            break;
        }
        grid.remove(at);
        work = more;
        inner.insert(
            0,
            GroupLoop {
                axis: last,
                range: Range::Full(last.size),
                role: Role::Serial,
            },
        );
    }
    let mut axes: Vec<GridAxis> = grid
        .iter()
        .map(|a| GridAxis {
            sym: a.sym,
            extent: a.size,
            block: 1,
        })
        .collect();
    if let Some(GroupLoop {
        axis,
        range: Range::Block { extent, block },
        ..
    }) = inner
        .iter()
        .find(|l| matches!(l.range, Range::Block { .. }))
    {
        // Tiles of one block follow each other: they read the same pages.
        let at = (axes.iter())
            .position(|a| Some(a.sym) == tiles_sym)
            .unwrap_or(axes.len());
        axes.insert(
            at,
            GridAxis {
                sym: axis.sym,
                extent: *extent,
                block: *block,
            },
        );
    }
    let units = exprs.product(
        axes.iter()
            .map(|a| exprs.ceildiv(a.extent, exprs.int(a.block))),
    );
    // How long a flat kernel runs is an argument: one function serves tensors of all sizes.
    let mut length = None;
    if let ([a], true) = (
        shared.as_slice(),
        builder.nests.iter().all(|n| n.axes.is_empty()),
    ) && exprs.as_int(a.size).is_some_and(|n| n > 16)
    {
        reached(Way::FlatLength);
        let sym = exprs.index_sym(LENGTH_POSITION, exprs.int(i64::MAX));
        let extent = exprs.sym_expr(sym);
        for g in &mut axes {
            g.extent = extent;
        }
        for l in &mut inner {
            l.range = match l.range {
                Range::Full(_) => Range::Full(extent),
                Range::Block { block, .. } => Range::Block { extent, block },
                other => other,
            };
        }
        length = Some(Param { sym, value: a.size });
    }
    reached(match choice {
        Lanes::None => Way::NoLanes,
        Lanes::Own => Way::OwnLanes,
        Lanes::Shared { .. } => Way::SharedLanes,
    });
    let own = matches!(choice, Lanes::Own).then_some(own.as_slice());
    let tree = Placer::new(&builder, &live, &grid, &inner, own).run()?;
    let origins = origins(bodies);
    let pixels = pixels.map(|p| (p, lanes::side_by_side(caps.isa)));
    let kind = Kind::Grid(axes);
    let mut kernel = finish(builder, tree, kind, origins, units, choice, pixels)?;
    if let Some(p) = length {
        kernel.cost_per_unit =
            exprs.subst(kernel.cost_per_unit, &SymMap::from_iter([(p.sym, p.value)]));
        kernel.sizes.push(p);
    }
    Ok(kernel)
}

pub(crate) fn origins(bodies: &[Body]) -> Vec<OriginId> {
    let mut out = Vec::new();
    for o in bodies.iter().flat_map(|b| &b.origins) {
        if !out.contains(o) {
            out.push(*o);
        }
    }
    out
}

/// A loop over an axis of the group inside a unit.
pub(crate) struct GroupLoop {
    pub axis: Axis,
    pub range: Range,
    pub role: Role,
}

/// Values and effects that reach memory or may fail. Stores into locals that nobody reads any more go.
pub(crate) fn liveness(b: &Builder) -> Live {
    let mut live = Live {
        values: vec![false; b.values.len()],
        effects: b
            .nests
            .iter()
            .map(|n| vec![false; n.effects.len()])
            .collect(),
    };
    let mut todo: Vec<ValId> = Vec::new();
    let local = |buf: crate::KBufId| matches!(b.buffers[buf.index()].role, BufRole::Local { .. });
    let wake = |live: &mut Live, todo: &mut Vec<ValId>, which: &dyn Fn(&EffectKind) -> bool| {
        for (n, nest) in b.nests.iter().enumerate() {
            for (i, e) in nest.effects.iter().enumerate() {
                if live.effects[n][i] || !which(&e.kind) {
                    continue;
                }
                live.effects[n][i] = true;
                b.effect_needs(&e.kind, todo);
            }
        }
    };
    // Where each accumulator is updated.
    let mut updates = vec![None; b.accs.len()];
    for (n, nest) in b.nests.iter().enumerate() {
        for (i, e) in nest.effects.iter().enumerate() {
            if let EffectKind::Update { acc, .. } = &e.kind {
                updates[acc.index()] = Some((n, i));
            }
        }
    }
    wake(&mut live, &mut todo, &|k| match k {
        EffectKind::Store { buf, .. } => !local(*buf),
        EffectKind::Check { .. } => true,
        EffectKind::Update { .. } => false,
    });
    while let Some(v) = todo.pop() {
        if std::mem::replace(&mut live.values[v.index()], true) {
            continue;
        }
        todo.extend_from_slice(b.uses(v));
        match &b.values[v.index()].def {
            Def::Load { buf, .. } if local(*buf) => wake(
                &mut live,
                &mut todo,
                &|k| matches!(k, EffectKind::Store { buf: s, .. } if s == buf),
            ),
            Def::Final(a) => {
                if let Some((n, i)) = updates[a.index()]
                    && !std::mem::replace(&mut live.effects[n][i], true)
                {
                    b.effect_needs(&b.nests[n].effects[i].kind, &mut todo);
                }
            }
            // The definition itself updates the accumulator.
            Def::Running { .. } => {}
            _ => {}
        }
    }
    live
}

/// Head and body of a kernel.
#[derive(Default)]
pub(crate) struct Tree {
    pub head: Vec<Item>,
    pub body: Vec<Item>,
}

/// Puts values and effects into loops.
pub(crate) struct Placer<'p, 'a> {
    b: &'p Builder<'a>,
    live: &'p Live,
    inner: &'p [GroupLoop],
    /// Where each nest has a lanes loop of its own: the axis by nest.
    own: Option<&'p [Option<OwnAxis>]>,
    /// Axes known at each level outside of the nests: none, those of the grid, one more for each group loop.
    level_bits: Vec<u64>,
    lists: Vec<Vec<Item>>,
    defined: Vec<bool>,
    /// By value, while a nest is placed: [`LATE`], [`SCAN`] and [`SEEN`].
    marks: Vec<u8>,
    /// By accumulator, whether a scan reads it as it stands.
    scanned: Vec<bool>,
    /// What a nest places, kept for the next one.
    placed: Vec<(usize, bool, ValId)>,
}

/// It waits for a reduction over all axes of the nest.
const LATE: u8 = 1;
/// A scan over an axis of one point, or something that reads it: it stays behind its accumulator.
const SCAN: u8 = 2;
/// The nest needs it.
const SEEN: u8 = 4;

impl<'p, 'a> Placer<'p, 'a> {
    pub fn new(
        b: &'p Builder<'a>,
        live: &'p Live,
        grid: &[Axis],
        inner: &'p [GroupLoop],
        own: Option<&'p [Option<OwnAxis>]>,
    ) -> Self {
        // The number of a tile is no axis of a body.
        let bit = |a: &Axis| b.bits.get(&a.sym).copied().unwrap_or(0);
        let mut bits = grid.iter().fold(0, |acc, a| acc | bit(a));
        let mut level_bits = vec![0, bits];
        for l in inner {
            bits |= bit(&l.axis);
            level_bits.push(bits);
        }
        let mut scanned = vec![false; b.accs.len()];
        for v in &b.values {
            if let Def::Running { acc, .. } = &v.def {
                reached(Way::Scan);
                scanned[acc.index()] = true;
            }
        }
        Placer {
            b,
            live,
            inner,
            own,
            lists: vec![Vec::new(); level_bits.len()],
            level_bits,
            defined: vec![false; b.values.len()],
            marks: vec![0; b.values.len()],
            scanned,
            placed: Vec::new(),
        }
    }

    pub fn run(mut self) -> Result<Tree> {
        for n in 0..self.b.nests.len() {
            self.nest(n)?;
        }
        let mut items = self.lists.pop().unwrap_or_default();
        for l in self.inner.iter().rev() {
            let looped = Item::Loop(Box::new(Loop {
                sym: l.axis.sym,
                range: l.range,
                role: l.role,
                body: items,
            }));
            items = self.lists.pop().unwrap_or_default();
            items.push(looped);
        }
        Ok(Tree {
            head: self.lists.pop().unwrap_or_default(),
            body: items,
        })
    }

    fn innermost(&mut self) -> &mut Vec<Item> {
        self.lists.last_mut().expect("at least head and grid")
    }

    /// Evaluates a value of the group, as far out as it may stand.
    fn place(&mut self, v: ValId) {
        if std::mem::replace(&mut self.defined[v.index()], true) {
            return;
        }
        let info = self.b.infos[v.index()];
        let last = self.lists.len() - 1;
        let level = if info.pinned {
            last
        } else {
            (self.level_bits.iter())
                .position(|bits| info.bits & !bits == 0)
                .unwrap_or(last)
        };
        self.lists[level].push(Item::Let(v));
    }

    fn nest(&mut self, at: usize) -> Result<()> {
        let b = self.b;
        let nest = &b.nests[at];
        let effects: SmallVec<[&Effect; 8]> = (nest.effects.iter().zip(&self.live.effects[at]))
            .filter(|(_, l)| **l)
            .map(|(e, _)| e)
            .collect();
        if effects.is_empty() {
            return Ok(());
        }
        let lane = self.own.and_then(|axes| axes[at]);
        let (order, lane_at) = nest.order(lane.map(|l| l.0));
        let n = order.len();
        let mut position: SmallVec<[usize; 4]> = smallvec![0; n];
        for (p, axis) in order.iter().enumerate() {
            position[*axis] = p;
        }
        let own_bits: SmallVec<[u64; 4]> = nest.axes.iter().map(|a| b.bits[&a.sym]).collect();
        let all_own = own_bits.iter().fold(0, |a, x| a | x);
        // Everything that this nest evaluates, operands first.
        let needed = self.needed(&effects);
        let starts: SmallVec<[(crate::AccId, usize); 4]> = effects
            .iter()
            .filter_map(|e| match e.kind {
                EffectKind::Update { acc, start, .. } => Some((acc, start)),
                EffectKind::Store { .. } | EffectKind::Check { .. } => None,
            })
            .chain(self.running(&needed, n))
            .collect();
        // How many axes are open where a value stands, and whether that is behind the next loop.
        let mut placed = std::mem::take(&mut self.placed);
        placed.clear();
        let mut late_list: Vec<ValId> = Vec::new();
        for &v in &needed {
            let info = b.infos[v.index()];
            let of = |m: u8, u: &ValId| m | self.marks[u.index()];
            let mut mark = b.uses(v).iter().fold(0, of) & (LATE | SCAN);
            match &b.values[v.index()].def {
                Def::Final(a) if starts.iter().any(|s| s.0 == *a && s.1 == 0) => mark |= LATE,
                Def::Running { .. } => mark |= SCAN,
                _ => {}
            }
            self.marks[v.index()] |= mark;
            let after = info.after.filter(|(nest, _)| *nest == at);
            if mark & LATE != 0 {
                late_list.push(v);
            } else if mark & SCAN != 0 && n == 0 {
                placed.push((0, false, v));
            } else if info.bits & all_own == 0 && after.is_none() {
                self.place(v);
            } else {
                let depth = (0..n)
                    .filter(|axis| info.bits & own_bits[*axis] != 0)
                    .map(|axis| position[axis] + 1)
                    .max()
                    .unwrap_or(0);
                match after {
                    Some((_, d)) if depth <= d => placed.push((d, true, v)),
                    Some(_) => {
                        return Err(Error::unsupported(
                            "a value that depends on the result of a reduction and on its axes",
                        ));
                    }
                    None => placed.push((depth, false, v)),
                }
            }
        }

        for v in needed {
            self.marks[v.index()] = 0;
        }

        let store = |e: &Effect| match &e.kind {
            EffectKind::Store {
                buf,
                offset,
                value,
                mode,
                mask,
            } => Some(Item::Store {
                buf: *buf,
                offset: *offset,
                value: *value,
                mode: *mode,
                mask: *mask,
            }),
            // An index that is checked stands where it is known.
            EffectKind::Check { .. } | EffectKind::Update { .. } => None,
        };
        let update = |e: &Effect| match e.kind {
            // The value of a scan updates its accumulator itself.
            EffectKind::Update { acc, value, .. } if !self.scanned[acc.index()] => {
                Some(Item::Update { acc, value })
            }
            _ => None,
        };
        let stores = |d: usize| {
            let at = effects.iter().filter(move |e| e.depth == d);
            at.filter_map(|e| store(e))
        };
        let values = |d: usize, behind: bool| {
            let at = placed.iter().filter(move |p| p.0 == d && p.1 == behind);
            at.map(|p| Item::Let(p.2))
        };

        // Innermost first.
        let mut items: Vec<Item> = Vec::new();
        for d in (0..=n).rev() {
            // Accumulators come first: a scan without axes reads its own among the values of this level.
            let count = placed.iter().filter(|p| p.0 == d).count();
            let mut level: Vec<Item> = Vec::with_capacity(count + starts.len() + effects.len() + 1);
            let at = starts.iter().filter(|(_, start)| *start == d);
            level.extend(at.map(|(acc, _)| Item::Acc(*acc)));
            level.extend(values(d, false));
            if d < n && !items.is_empty() {
                let axis = nest.axes[order[d]];
                let role = match lane {
                    Some((_, width, _)) if lane_at == Some(d) => Role::Lanes {
                        width,
                        unroll: self.unroll(&items, &starts, d),
                    },
                    _ => Role::Serial,
                };
                level.push(Item::Loop(Box::new(Loop {
                    sym: axis.sym,
                    range: Range::Full(axis.size),
                    role,
                    body: items,
                })));
            }
            if d == n {
                level.extend(effects.iter().filter_map(|e| update(e)));
            }
            level.extend(values(d, true));
            if d > 0 {
                level.extend(stores(d));
            }
            items = level;
        }
        let last: SmallVec<[Item; 4]> = stores(0).collect();
        self.placed = placed;
        self.innermost().append(&mut items);
        for v in late_list {
            self.place(v);
        }
        self.innermost().extend(last);
        Ok(())
    }

    /// Accumulators of live scans, which start before the last axis.
    fn running(&self, needed: &[ValId], n: usize) -> Vec<(crate::AccId, usize)> {
        needed
            .iter()
            .filter_map(|v| match self.b.values[v.index()].def {
                Def::Running { acc, .. } => Some((acc, n.saturating_sub(1))),
                _ => None,
            })
            .collect()
    }

    /// Values that the effects need and that no enclosing scope has yet, operands first.
    fn needed(&mut self, effects: &[&Effect]) -> Vec<ValId> {
        let b = self.b;
        let mut todo: Vec<ValId> = Vec::new();
        for e in effects {
            b.effect_needs(&e.kind, &mut todo);
        }
        let mut wanted = Vec::with_capacity(16);
        while let Some(v) = todo.pop() {
            if self.defined[v.index()] || self.marks[v.index()] == SEEN {
                continue;
            }
            self.marks[v.index()] = SEEN;
            wanted.push(v);
            todo.extend_from_slice(b.uses(v));
        }
        wanted.sort_unstable();
        wanted
    }

    /// Vectors that a lanes loop handles at once: cheap bodies wait for the latency of the accumulators' updates, functions
    /// for that of their own steps; others do not.
    fn unroll(&self, items: &[Item], starts: &[(crate::AccId, usize)], d: usize) -> u32 {
        let mut ops = 0;
        let (mut chains, mut stores) = (false, false);
        for item in items {
            match item {
                Item::Let(v) if lanes::chained(self.b, *v) => chains = true,
                Item::Let(v) => {
                    ops += match &self.b.values[v.index()].def {
                        Def::Op { op, .. } if op.class() == OpClass::Math => 16,
                        Def::Op { .. } | Def::Cast { .. } => 1,
                        Def::Load { .. } => 1,
                        _ => 0,
                    }
                }
                Item::Update { .. } => ops += 1,
                Item::Acc(_) => {}
                Item::Store { .. } => stores = true,
                Item::Loop(_) => return 1,
            }
        }
        if chains {
            return match ops {
                0..=12 => 4,
                13..=lanes::BESIDE_CHAINS => 2,
                _ => 1,
            };
        }
        if stores || !starts.iter().any(|(_, s)| *s <= d) {
            return 1;
        }
        match ops {
            0..=6 => 4,
            7..=12 => 2,
            _ => 1,
        }
    }
}

/// Renumbers what is left in order of appearance, so that equal kernels are equal, and fills in the rest. `pixels`: the axis whose
/// points are to be computed side by side, and how many of them.
pub(crate) fn finish(
    b: Builder,
    tree: Tree,
    kind: Kind,
    origins: Vec<OriginId>,
    units: Expr,
    choice: Lanes,
    pixels: Option<(Sym, &[i64])>,
) -> Result<Kernel> {
    let exprs = b.tables.exprs;
    let mut kernel = Kernel {
        name: name(b.tables, &origins),
        origins,
        kind,
        buffers: b.buffers,
        sizes: Vec::new(),
        values: b.values,
        accs: b.accs,
        head: tree.head,
        body: tree.body,
        checks: b.checks,
        units,
        cost_per_unit: exprs.int(1),
        scratch_bytes: None,
    };
    crate::moments::in_one_walk(exprs, &mut kernel);
    if matches!(kernel.kind, Kind::Grid(_)) {
        crate::bends::straighten(exprs, &mut kernel);
        if let Some((row, fitting)) = pixels {
            crate::edges::cut_row(exprs, &mut kernel, row, fitting);
        }
        crate::edges::cut(exprs, &mut kernel);
    }
    crate::cost::renumber(&mut kernel);
    // Sizes, in order of appearance.
    let mut syms: Vec<Sym> = Vec::new();
    cost::each_expr(&kernel, &mut |e| exprs.collect_syms(e, &mut syms));
    kernel.sizes = syms
        .into_iter()
        .filter(|s| !exprs.is_index(*s))
        .map(|sym| Param {
            sym,
            value: exprs.sym_expr(sym),
        })
        .collect();
    // Locals: on the stack, or in scratch that the caller brings.
    let lane_width = match choice {
        Lanes::Shared { width, .. } => Some(width as i64),
        _ => None,
    };
    let mut bytes = exprs.int(0);
    let grid = matches!(kernel.kind, Kind::Grid(_));
    for buf in &mut kernel.buffers {
        let size = buf.dtype.size() as i64;
        if grid && buf.role == BufRole::Out {
            let sizes = &b.tables.buffer(buf.buf).sizes;
            let total = sizes
                .iter()
                .fold(size, |p, s| p.saturating_mul(exprs.hint(*s)));
            if total >= STREAM_BYTES {
                buf.role = BufRole::Stream;
            }
        }
        if let BufRole::Local { len, per_lane } = &mut buf.role {
            *per_lane = lane_width.is_some();
            let each = exprs.mul(*len, exprs.int(size * lane_width.unwrap_or(1)));
            let padded = exprs.mul(exprs.ceildiv(each, exprs.int(64)), exprs.int(64));
            bytes = exprs.add(bytes, padded);
        }
    }
    if exprs.as_int(bytes).is_none_or(|b| b > STACK_BYTES) {
        kernel.scratch_bytes = Some(bytes);
    }
    kernel.cost_per_unit = cost::per_unit(exprs, &kernel);
    Ok(kernel)
}

/// Words of a title.
const WORDS: usize = 6;

/// A title from the operators: `add_gelu_mul`.
pub(crate) fn name(tables: Tables, origins: &[OriginId]) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for o in origins {
        let Some(origin) = tables.origins.get(o.index()) else {
            continue;
        };
        let op = origin.op.strip_prefix("aten.").unwrap_or(&origin.op);
        let word = op.split('.').next().unwrap_or(op).trim_start_matches('_');
        if parts.last() != Some(&word) {
            parts.push(word);
        }
        if parts.len() == WORDS {
            break;
        }
    }
    if parts.is_empty() {
        "kernel".into()
    } else {
        parts.join("_")
    }
}
