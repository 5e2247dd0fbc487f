//! Which axis runs over vector lanes.

use crate::apart::at_once;
use crate::build::Builder;
use crate::nest::{EffectKind, Nest};
use crate::tile::GroupLoop;
use crate::{BufRole, Def, KBufId, Role, ValId};
use inrush_base::{Caps, DType, Isa};
use inrush_expr::{Expr, Exprs, Sym};
use inrush_loops::Axis;
use inrush_loops::scalar::OpClass;
use inrush_loops::{ScalarOp, StoreMode};
use smallvec::SmallVec;

/// How an offset moves with a lane index.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Access {
    /// The same place for all lanes.
    Uniform,
    /// Consecutive elements.
    Contiguous,
    /// A constant distance.
    Strided(Expr),
    /// Anywhere.
    Gather,
}

/// Classifies `offset` for lanes over `lane`; `varies` tells of other symbols whether they differ between lanes.
pub fn access(exprs: &Exprs, offset: Expr, lane: Sym, varies: impl Fn(Sym) -> bool) -> Access {
    let (mut gathers, mut moves) = (false, false);
    exprs.each_sym(offset, |s| {
        gathers |= varies(s);
        moves |= s == lane;
    });
    if gathers {
        return Access::Gather;
    }
    if !moves {
        return Access::Uniform;
    }
    match exprs.coefficient(offset, lane) {
        Some(c) if exprs.is_int(c, 1) => Access::Contiguous,
        Some(c) => Access::Strided(c),
        None => Access::Gather,
    }
}

/// The chosen loop.
#[derive(Copy, Clone, Debug)]
pub(crate) enum Lanes {
    None,
    /// An axis of the group: everything runs inside the lanes loop.
    Shared {
        axis: usize,
        width: u32,
    },
    /// Each nest has its own, by position of the axis.
    Own,
}

/// What of a kernel is alive: values, and effects by nest and position.
pub(crate) struct Live {
    pub values: Vec<bool>,
    pub effects: Vec<Vec<bool>>,
}

/// Lanes of a loop over the axes of `bits`: a vector register of the widest type that does real work.
pub(crate) fn width(caps: &Caps, kinds: &[(u64, DType)], bits: u64) -> u32 {
    let (mut float, mut other) = (0, 1);
    for (_, d) in kinds.iter().filter(|k| k.0 & bits != 0) {
        if d.is_float() {
            float = float.max(d.compute().size());
        } else {
            other = other.max(d.size());
        }
    }
    let bytes = if float > 0 { float } else { other };
    caps.lanes(bytes) as u32
}

/// Bits of the axes that live values and stores depend on, with their dtypes: each pair once, and they are few.
pub(crate) fn kinds(b: &Builder, live: &Live) -> Vec<(u64, DType)> {
    // Random bits are most of the work of what draws them, and they are words of 32.
    let draws = (b.values.iter().enumerate())
        .filter(|(v, x)| live.values[*v] && is_random(&x.def))
        .fold(0, |bits, (v, _)| bits | b.infos[v].bits);
    let mut out = Vec::new();
    let mut add = |bits: u64, dtype: DType| {
        let dtype = match dtype {
            DType::I64 if bits & draws != 0 => DType::I32,
            d => d,
        };
        if !out.contains(&(bits, dtype)) {
            out.push((bits, dtype));
        }
    };
    for (nest, live) in b.nests.iter().zip(&live.effects) {
        for (e, _) in nest.effects.iter().zip(live).filter(|(_, l)| **l) {
            if let EffectKind::Store { offset, value, .. } = &e.kind {
                add(b.expr_bits(*offset), b.values[value.index()].dtype);
            }
        }
    }
    for (v, value) in b.values.iter().enumerate() {
        // Indices and masks follow the width of what they serve.
        if live.values[v] && !matches!(value.def, Def::Indirect { .. } | Def::Index(_)) {
            add(b.infos[v].bits, value.dtype);
        }
    }
    out
}

fn is_random(def: &Def) -> bool {
    matches!(
        def,
        Def::Op {
            op: ScalarOp::Philox,
            ..
        }
    )
}

/// Whether a value is a function that targets spell out instead of calling: a chain of dependent operations, which leaves
/// room for a second one beside it.
pub(crate) fn chained(b: &Builder, v: ValId) -> bool {
    let value = &b.values[v.index()];
    matches!(&value.def, Def::Op { op: ScalarOp::Exp | ScalarOp::Exp2 | ScalarOp::Erf | ScalarOp::Tanh, .. }
        if value.dtype.compute() == DType::F32)
}

/// Operations beside chained functions up to which a lanes loop handles two vectors at once.
pub(crate) const BESIDE_CHAINS: u32 = 24;

/// Operations and loads up to which a body is little more than a copy.
const LIKE_A_COPY: usize = 10;
/// Bytes of a cache line.
const LINE: u32 = 64;

/// Whether a body waits for memory alone: then both halves of a cache line are best read before either is written, as
/// stores between two loads of a line cost a fifth of the rate.
fn copies_lines(b: &Builder, live: &Live, width: u32) -> bool {
    let effects = || {
        let lists = b.nests.iter().zip(&live.effects);
        lists.flat_map(|(n, alive)| n.effects.iter().zip(alive).filter(|(_, a)| **a))
    };
    let half_a_line = effects().all(|(e, _)| match &e.kind {
        EffectKind::Store { buf, mode, .. } => {
            *mode == StoreMode::Set && b.buffers[buf.index()].dtype.size() as u32 * width < LINE
        }
        _ => true,
    });
    let alive = (0..b.values.len()).filter(|v| live.values[*v]);
    let mut work = 0;
    for v in alive {
        match &b.values[v].def {
            Def::Op { op, .. } if op.class() == OpClass::Math => return false,
            Def::Indirect { .. } => return false,
            Def::Op { .. } | Def::Cast { .. } | Def::Load { .. } => work += 1,
            _ => {}
        }
    }
    half_a_line && work <= LIKE_A_COPY && b.nests.iter().all(|n| n.axes.is_empty())
}

/// Vectors that a lanes loop around reductions, chained functions or next to nothing handles at once: their accumulators are
/// independent, and more of each cache line is used at a time. Divides 8.
pub(crate) fn copies(b: &Builder, live: &Live, width: u32) -> u32 {
    let reduces = b.nests.iter().any(|n| !n.splits.is_empty());
    let local = |v: usize| match &b.values[v].def {
        Def::Load { buf, .. } => matches!(b.buffers[buf.index()].role, BufRole::Local { .. }),
        Def::Running { .. } => true,
        _ => false,
    };
    let alive = || (0..b.values.len()).filter(|v| live.values[*v]);
    if alive().any(local) {
        return 1;
    }
    if !reduces {
        let chains = alive().any(|v| chained(b, ValId::from_index(v)));
        let short = alive()
            .filter(|v| matches!(b.values[*v].def, Def::Op { .. }))
            .count();
        let beside = chains && short as u32 <= BESIDE_CHAINS;
        return if beside || copies_lines(b, live, width) {
            2
        } else {
            1
        };
    }
    let ops: u32 = alive()
        .map(|v| match &b.values[v].def {
            Def::Op { op, .. } if op.class() == OpClass::Math => 16,
            Def::Const(_) | Def::Final(_) => 0,
            _ => 1,
        })
        .sum();
    let accs = alive()
        .filter(|v| matches!(b.values[*v].def, Def::Final(_)))
        .count() as u32;
    let copies = match ops {
        // Little more than loads: what counts is how much of each row comes at a time.
        0..=4 => 8,
        5..=12 => 4,
        13..=24 => 2,
        _ => 1,
    };
    // All accumulators in half of the registers.
    let room = 8 / accs.clamp(1, 8);
    copies.min(1 << room.ilog2())
}

/// The axis along which loads are contiguous that lanes over `lane` would gather: its tiles are to be transposed. Only where
/// all work of the group is at the points of its own axes.
pub(crate) fn transposed(b: &Builder, live: &Live, shared: &[Axis], lane: &Axis) -> Option<Axis> {
    let exprs = b.tables.exprs;
    if b.nests.iter().any(|n| !n.axes.is_empty()) || exprs.hint(lane.size) < 4 {
        return None;
    }
    (0..b.values.len())
        .filter(|v| live.values[*v])
        .find_map(|v| match &b.values[v].def {
            Def::Load {
                buf,
                offset,
                mask: None,
                ..
            } if matches!(b.buffers[buf.index()].role, BufRole::In) => shared
                .iter()
                .find(|a| exprs.hint(a.size) >= 4 && transposes(b, *offset, lane, a))
                .copied(),
            _ => None,
        })
}

/// Strided over `lane` and contiguous along `axis`.
fn transposes(b: &Builder, offset: Expr, lane: &Axis, axis: &Axis) -> bool {
    let exprs = b.tables.exprs;
    axis.sym != lane.sym
        && b.expr_values(offset).is_empty()
        && exprs
            .coefficients(offset, &[lane.sym, axis.sym])
            .is_some_and(|c| {
                exprs.is_int(c[1], 1) && !exprs.is_int(c[0], 1) && !exprs.is_int(c[0], 0)
            })
}

/// What contiguous accesses gain.
const LOAD: f64 = 1.0;
const STORE: f64 = 2.0;
/// What lanes cost that are added by an index each, under a mask.
const ADD_BY_INDEX: f64 = -0.5;

/// How much lanes over `axis` gain in one point of the nest, by accesses and operations. `shared` are the group's axes if
/// `axis` is one of them.
fn score(b: &Builder, live: &Live, at: usize, axis: &Axis, shared: &[Axis], caps: &Caps) -> f64 {
    let exprs = b.tables.exprs;
    let bit = b.bits[&axis.sym];
    let some = !b.indirect.is_empty();
    let varies = |s: Sym| some && b.indirect.contains_key(&s) && b.bits[&s] & bit != 0;
    // Locals of a group that runs inside the lanes hold whole vectors.
    let own_vectors = |buf: KBufId| {
        !shared.is_empty() && matches!(b.buffers[buf.index()].role, BufRole::Local { .. })
    };
    // Indices that a kernel makes of floats need half of their bits, where an instruction makes such of them.
    let halved = |arg: ValId| match b.values[arg.index()].dtype {
        DType::F64 => caps.isa == Isa::Avx512,
        d => d.is_float(),
    };
    let short = |buf: KBufId, offset: Expr| {
        matches!(b.buffers[buf.index()].dtype, DType::F32 | DType::F64)
            && (b.expr_values(offset).iter()).all(|v| match &b.values[v.index()].def {
                Def::Indirect {
                    value, check: None, ..
                } => matches!(&b.values[value.index()].def, Def::Cast { arg, .. } if halved(*arg)),
                _ => true,
            })
    };
    // One instruction for all lanes.
    let gathers = |buf: KBufId, offset: Expr| caps.isa == Isa::Avx512 && short(buf, offset);
    let weigh = |buf: KBufId, offset: Expr, weight: f64| {
        if own_vectors(buf) {
            return weight;
        }
        match access(exprs, offset, axis.sym, varies) {
            Access::Uniform => 0.0,
            Access::Contiguous => weight,
            Access::Gather if gathers(buf, offset) && weight == LOAD => -0.5,
            Access::Strided(_) | Access::Gather => -1.5 * weight,
        }
    };
    // Two vectors and a permutation.
    let every_second = |buf: KBufId, offset: Expr| {
        let access = access(exprs, offset, axis.sym, varies);
        matches!(access, Access::Strided(c) if exprs.is_int(c, 2))
            && b.buffers[buf.index()].dtype.size() >= 4
            && !own_vectors(buf)
    };
    let masks = |buf: KBufId| {
        matches!(caps.isa, Isa::Avx2 | Isa::Avx512)
            && matches!(b.buffers[buf.index()].dtype.size(), 4 | 8)
            && !own_vectors(buf)
    };
    // Transposing a tile costs a few shuffles.
    let tiled = |offset: Expr| {
        b.nests.iter().all(|n| n.axes.is_empty())
            && shared.iter().any(|a| transposes(b, offset, axis, a))
    };
    let nest = &b.nests[at];
    // How often something that depends on these axes is evaluated in one point of the group.
    let axes: SmallVec<[(u64, f64); 4]> = (nest.axes.iter())
        .map(|a| (b.bits[&a.sym], exprs.hint(a.size).max(1) as f64))
        .collect();
    let times = |bits: u64| -> f64 {
        let of = axes.iter().filter(|a| a.0 & bits != 0);
        of.map(|a| a.1).product()
    };
    // Behind a reduction inside the lanes everything varies, whatever it is made of.
    let varying = |v: ValId| {
        let info = b.infos[v.index()];
        info.bits & bit != 0 || (!shared.is_empty() && info.pinned)
    };
    let again = read_again(b, nest, axis);
    // What loads gain that all lanes share, and whether other accesses take each lane on its own.
    let (mut copied, mut apart) = (0.0, false);
    let mut total = 0.0;
    let mut seen = vec![false; b.values.len()];
    let mut todo: Vec<ValId> = Vec::new();
    for (e, _) in (nest.effects.iter().zip(&live.effects[at])).filter(|(_, l)| **l) {
        b.effect_needs(&e.kind, &mut todo);
        total += match &e.kind {
            EffectKind::Update { .. } => 0.3 * points(exprs, &nest.axes),
            EffectKind::Store {
                buf,
                offset,
                mode,
                mask,
                ..
            } => {
                let masked = mask.is_some_and(varying);
                let weight = match access(exprs, *offset, axis.sym, varies) {
                    // An element after the other in any case; lanes come to them through memory.
                    Access::Gather
                        if *mode == StoreMode::Add
                            && masked
                            && masks(*buf)
                            && short(*buf, *offset) =>
                    {
                        ADD_BY_INDEX
                    }
                    _ => weigh(*buf, *offset, STORE),
                };
                weight * points(exprs, &nest.axes[..e.depth])
            }
            EffectKind::Check { .. } => 0.0,
        };
    }
    while let Some(v) = todo.pop() {
        if std::mem::replace(&mut seen[v.index()], true) {
            continue;
        }
        if !varying(v) {
            // One load and copies of it to all lanes are one instruction where a point at a time has a load for each.
            let bits = b.infos[v.index()].bits;
            if bits & again != 0 {
                if let Def::Load { .. } = b.values[v.index()].def {
                    copied += LOAD * times(bits);
                }
                todo.extend_from_slice(b.uses(v));
            }
            continue;
        }
        let weight = match &b.values[v.index()].def {
            Def::Load {
                offset, mask: None, ..
            } if tiled(*offset) => -0.2,
            // Masks that differ between lanes are tried lane by lane where the machine has no loads under a mask.
            Def::Load {
                buf,
                offset,
                mask: Some(m),
                ..
            } if varying(*m) => match access(exprs, *offset, axis.sym, varies) {
                Access::Contiguous if masks(*buf) => 0.4,
                Access::Strided(_) if masks(*buf) && every_second(*buf, *offset) => 0.1,
                Access::Gather if gathers(*buf, *offset) => -0.5,
                _ => -1.0,
            },
            Def::Load { buf, offset, .. } if every_second(*buf, *offset) => 0.3,
            Def::Load { buf, offset, .. } => weigh(*buf, *offset, LOAD),
            Def::Op { op, .. } if op.class() == OpClass::Math => 2.0,
            Def::Op { .. } => 0.2,
            _ => 0.0,
        };
        apart |= weight < 0.0;
        total += weight * times(b.infos[v.index()].bits);
        todo.extend_from_slice(b.uses(v));
    }
    match apart || copied == 0.0 {
        true => total,
        false => total + copied + ACROSS,
    }
}

/// What it is worth that no sum over a vector ends each point, as it would where lanes lie along what is reduced.
const ACROSS: f64 = 64.0 * LOAD;

/// Bits of the axes over which a nest reduces, if lanes over `axis` keep sums of their own: what depends on them and is the
/// same for all lanes is read in every turn.
fn read_again(b: &Builder, nest: &Nest, axis: &Axis) -> u64 {
    let first = nest.splits.iter().copied().min();
    let reduced = first.map_or(&[][..], |at| &nest.axes[at..]);
    match reduced.iter().any(|a| a.sym == axis.sym) {
        true => 0,
        false => reduced.iter().fold(0, |bits, a| bits | b.bits[&a.sym]),
    }
}

/// Lanes over an axis that vectors of `full` lanes would leave half empty: half or a quarter of them, if the axis is that of
/// pixels under a filter, single floats whose every product takes a filter's element along. Rows of small images are such.
fn fitting(b: &Builder, live: &Live, at: usize, axis: &Axis, full: u32, caps: &Caps) -> u32 {
    let fits = match b.tables.exprs.as_int(axis.size) {
        Some(4) => 4,
        Some(5..=8) => 8,
        _ => return full,
    };
    let again = read_again(b, &b.nests[at], axis);
    if !matches!(caps.isa, Isa::Avx2 | Isa::Avx512) || fits >= full || again == 0 {
        return full;
    }
    let exprs = b.tables.exprs;
    let bit = b.bits[&axis.sym];
    let varies = |s: Sym| b.indirect.contains_key(&s) && b.bits[&s] & bit != 0;
    let near = |def: &Def| match def {
        Def::Load { offset, .. } => match access(exprs, *offset, axis.sym, varies) {
            Access::Strided(c) => exprs.is_int(c, 2),
            found => found != Access::Gather,
        },
        _ => true,
    };
    let mut under_filter = false;
    let plain = (0..b.values.len()).filter(|v| live.values[*v]).all(|v| {
        let bits = b.infos[v].bits;
        let load = matches!(b.values[v].def, Def::Load { .. });
        under_filter |= load && bits & again != 0 && bits & bit == 0;
        let dtype = b.values[v].dtype;
        bits & bit == 0
            || near(&b.values[v].def) && matches!(dtype, DType::F32 | DType::I32 | DType::Bool)
    });
    if plain && under_filter { fits } else { full }
}

/// Whether lanes are pixels under a filter, and rows of such pixels differ in nothing but the places of what they read: a unit takes
/// all rows then, so that some of them can be computed side by side.
pub(crate) fn rows_beside(
    b: &Builder,
    live: &Live,
    lanes: &GroupLoop,
    rows: &Axis,
    caps: &Caps,
) -> bool {
    let exprs = b.tables.exprs;
    let (Role::Lanes { .. }, Some(pixels), Some(count)) = (
        lanes.role,
        exprs.as_int(lanes.axis.size),
        exprs.as_int(rows.size),
    ) else {
        return false;
    };
    let again = b
        .nests
        .iter()
        .fold(0, |bits, n| bits | read_again(b, n, &lanes.axis));
    let few = pixels <= MOST_ROWS && (2..=MOST_ROWS).contains(&count);
    if again == 0 || !few || !matches!(caps.isa, Isa::Avx2 | Isa::Avx512) {
        return false;
    }
    let (lane, row) = (b.bits[&lanes.axis.sym], b.bits[&rows.sym]);
    let varies = |s: Sym| b.indirect.contains_key(&s);
    let mut under_filter = false;
    let alike = (0..b.values.len()).filter(|v| live.values[*v]).all(|v| {
        let bits = b.infos[v].bits;
        match b.values[v].def {
            Def::Load { offset, .. } => {
                under_filter |= bits & again != 0 && bits & (lane | row) == 0;
                bits & row == 0
                    || access(exprs, offset, lanes.axis.sym, varies) == Access::Contiguous
            }
            Def::Index(_) | Def::Indirect { .. } => bits & row == 0,
            _ => true,
        }
    });
    alike && under_filter
}

/// Rows or pixels that are computed side by side where that leaves none over: few enough for the registers.
pub fn side_by_side(isa: Isa) -> &'static [i64] {
    match isa {
        Isa::Avx512 => &[7, 6, 5, 4],
        _ => &[4, 3],
    }
}

/// Whether lanes are channels under a filter that slides along `row`, each of them under its own: some pixels of the row can be
/// computed side by side then, which read a filter's elements once and share what lies under several of them.
pub(crate) fn pixels_beside(
    b: &Builder,
    live: &Live,
    lane: &Axis,
    row: &Axis,
    caps: &Caps,
) -> bool {
    let exprs = b.tables.exprs;
    let wide = matches!(caps.isa, Isa::Avx2 | Isa::Avx512);
    let [nest] = b.nests.as_slice() else {
        return false;
    };
    let again = read_again(b, nest, lane);
    let Some(tap) = nest.axes.last().filter(|_| wide && again != 0) else {
        return false;
    };
    let known = exprs.as_int(row.size);
    if exprs.hint(row.size) < 2 {
        return false;
    }
    let varies = |s: Sym| b.indirect.contains_key(&s);
    let along = |at: Expr| access(exprs, at, lane.sym, varies) == Access::Contiguous;
    let step = |at: Expr, s: Sym| exprs.coefficient(at, s).and_then(|c| exprs.as_int(c));
    let (channel, pixel) = (b.bits[&lane.sym], b.bits[&row.sym]);
    let (mut slides, mut under_filter) = (false, false);
    let alike = (0..b.values.len()).filter(|v| live.values[*v]).all(|v| {
        let bits = b.infos[v].bits;
        match b.values[v].def {
            Def::Load { offset, .. } => {
                let whole = match (step(offset, row.sym), step(offset, tap.sym)) {
                    (Some(r), Some(t)) => {
                        t != 0 && r != 0 && (r.wrapping_rem(t) == 0 || t.wrapping_rem(r) == 0)
                    }
                    _ => false,
                };
                slides |= whole;
                under_filter |= bits & again != 0 && bits & channel != 0 && bits & pixel == 0;
                bits & pixel == 0 || along(offset)
            }
            // Where a pixel is tells whether a tap lies in the image, if that is known of the places of the row.
            Def::Index(_) => bits & pixel == 0 || bits & channel == 0 && known.is_some(),
            Def::Indirect { .. } | Def::Running { .. } => false,
            _ => true,
        }
    });
    let effects = nest.effects.iter().zip(&live.effects[0]);
    let stores = (effects.filter(|(_, alive)| **alive)).all(|(e, _)| match &e.kind {
        EffectKind::Store { offset, .. } => along(*offset),
        EffectKind::Update { .. } => true,
        EffectKind::Check { .. } => false,
    });
    alike && stores && slides && under_filter
}

/// Rows of a plane that a unit takes at most, and pixels of each.
const MOST_ROWS: i64 = 64;

/// Share of full vectors when `extent` points run in vectors of `width`.
fn efficiency(exprs: &Exprs, extent: Expr, width: u32) -> f64 {
    let n = exprs.hint(extent).max(1) as f64;
    let w = width as f64;
    if n * 2.0 <= w {
        return 0.0;
    }
    n / ((n / w).ceil() * w)
}

fn points(exprs: &Exprs, axes: &[Axis]) -> f64 {
    axes.iter()
        .map(|a| exprs.hint(a.size).max(1) as f64)
        .product()
}

/// An axis of a nest's own: its position, lanes, worth.
pub(crate) type OwnAxis = (usize, u32, f64);

/// Whether all of a nest's ordered accumulators are running extremes of numbers.
fn running_extremes(b: &Builder, nest: &Nest) -> bool {
    nest.effects.iter().all(|e| match e.kind {
        EffectKind::Update { acc, .. } => {
            let acc = &b.accs[acc.index()];
            acc.op.is_extreme() && acc.dtype != DType::Bool
        }
        _ => true,
    })
}

/// The best axis of a nest's own.
fn own_axis(
    b: &Builder,
    live: &Live,
    kinds: &[(u64, DType)],
    at: usize,
    caps: &Caps,
) -> Option<OwnAxis> {
    let nest: &Nest = &b.nests[at];
    let exprs = b.tables.exprs;
    let first_reduction = nest.splits.iter().copied().min().unwrap_or(nest.axes.len());
    let mut best: Option<OwnAxis> = None;
    let last = nest.axes.len().saturating_sub(1);
    for (i, axis) in nest.axes.iter().enumerate() {
        // Lanes would change the order. Running extremes are the same in any, and are found along a vector.
        let along = i == last && (first_reduction == last) && running_extremes(b, nest);
        if nest.ordered && i >= first_reduction && !along {
            continue;
        }
        if !at_once(b, nest, axis.sym) {
            continue;
        }
        let w = width(caps, kinds, b.bits[&axis.sym]);
        let w = fitting(b, live, at, axis, w, caps);
        let worth = if w < 2 {
            0.0
        } else {
            score(b, live, at, axis, &[], caps) * efficiency(exprs, axis.size, w)
        };
        if worth > best.map_or(0.0, |x| x.2) {
            best = Some((i, w, worth));
        }
    }
    best
}

/// Of the axes that keep what is combined `apart` the one along which all that is read lies beside each other, and what is
/// combined as well: its lanes read whole vectors, where another order would take one element of each.
pub(crate) fn beside(
    b: &Builder,
    live: &Live,
    shared: &[Axis],
    apart: &[Sym],
    caps: &Caps,
) -> Option<Lanes> {
    let exprs = b.tables.exprs;
    if b.nests.iter().any(|n| !n.axes.is_empty()) {
        return None;
    }
    let kinds = kinds(b, live);
    shared.iter().enumerate().find_map(|(at, axis)| {
        let bit = b.bits[&axis.sym];
        let varies = |s: Sym| b.indirect.contains_key(&s) && b.bits[&s] & bit != 0;
        let mut contiguous = false;
        let all = (0..b.values.len()).filter(|v| live.values[*v]).all(|v| {
            let Def::Load { offset, .. } = b.values[v].def else {
                return true;
            };
            let access = access(exprs, offset, axis.sym, varies);
            contiguous |= access == Access::Contiguous;
            matches!(access, Access::Contiguous | Access::Uniform)
        });
        let effects = b.nests.iter().flat_map(|n| &n.effects);
        let all = all
            && effects.into_iter().all(|e| match &e.kind {
                EffectKind::Store { offset, .. } => exprs
                    .coefficient(*offset, axis.sym)
                    .is_some_and(|c| exprs.is_int(c, 1)),
                EffectKind::Update { .. } | EffectKind::Check { .. } => true,
            });
        let width = width(caps, &kinds, bit);
        let filled = width > 1 && efficiency(exprs, axis.size, width) > 0.5;
        (apart.contains(&axis.sym) && all && contiguous && filled)
            .then_some(Lanes::Shared { axis: at, width })
    })
}

/// Chooses between an axis of the group, of those that may be innermost, and axes of the nests, which it gives by nest.
pub(crate) fn choose(
    b: &Builder,
    live: &Live,
    shared: &[Axis],
    innermost: impl Fn(usize) -> bool,
    caps: &Caps,
) -> (Lanes, Vec<Option<OwnAxis>>) {
    let exprs = b.tables.exprs;
    let kinds = kinds(b, live);
    let axes: Vec<Option<OwnAxis>> = (0..b.nests.len())
        .map(|n| own_axis(b, live, &kinds, n, caps))
        .collect();
    let own: f64 = axes.iter().flatten().map(|x| x.2).sum();
    let mut best = (Lanes::None, 0.0);
    if own > 0.0 {
        best = (Lanes::Own, own);
    }
    for (i, axis) in shared.iter().enumerate() {
        let w = width(caps, &kinds, b.bits[&axis.sym]);
        if w < 2 || !innermost(i) || !b.nests.iter().all(|n| at_once(b, n, axis.sym)) {
            continue;
        }
        let w = (0..b.nests.len())
            .map(|n| fitting(b, live, n, axis, w, caps))
            .min()
            .unwrap_or(w);
        let worth: f64 = (0..b.nests.len())
            .map(|n| score(b, live, n, axis, shared, caps))
            .sum::<f64>()
            * efficiency(exprs, axis.size, w);
        // Between equals the group's last axis wins: it lies closest in most layouts.
        if worth > best.1 || (worth == best.1 && matches!(best.0, Lanes::Shared { .. })) {
            best = (Lanes::Shared { axis: i, width: w }, worth);
        }
    }
    (best.0, axes)
}
