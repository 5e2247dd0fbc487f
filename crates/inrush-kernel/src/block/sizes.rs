//! Sizes of a block program's tile, by the kind of work.
//!
//! | kind | when | tile |
//! |---|---|---|
//! | pointwise | no own axis, one tile axis | a run of `x` |
//! | transpose | no own axis, contiguous along two axes | `x` by `y` |
//! | column reduction | memory is contiguous across the reduced axis | `x` columns by `r` rows |
//! | persistent reduction | a row fits a program | `x` rows, each whole |
//! | looped reduction | it does not | a step of one row |
//! | sort | rows are sorted | `x` rows, each whole, 2 to 32 keys to a thread |
//!
//! The sizes were chosen by sweeps on an H200 over 16384 x 4096 and odd sizes: whole rows, 64 bytes of one for each thread,
//! several short ones to a warp; column sums in tiles of 16 x 64, of few rows with a thread for each column; norms of odd rows
//! with a warp for 128 elements.

use super::{Pointers, Tile};
use crate::flatten::Flat;
use inrush_base::Gpu;
use inrush_expr::{Expr, Exprs, Sym};
use inrush_loops::{Axis, Body, BufId, Stmt};

/// Elements of the longest row that a program holds whole.
const WHOLE: i64 = 16384;
/// Elements of a tile whose rows a program holds whole.
const ROWS: i64 = 4096;
/// Elements of a row up to which one warp takes it.
const SHORT: i64 = 512;
/// Elements of a pointwise tile.
const FLAT: i64 = 1024;
/// Columns of a tile of column reductions.
const COLUMNS: i64 = 64;
/// Rows up to which one thread takes a whole column.
const FEW_ROWS: i64 = 16;
/// Programs for each multiprocessor up to which the rows of a lone sum take fewer registers, so that all of them run at once.
const WAVES: i64 = 32;
/// Elements of a step that is not made shorter, however many lanes are past the end of a row.
const SHORT_STEP: i64 = 1024;
/// Elements of a step at least where the length of rows varies: a warp's.
const LEAST_STEP: i64 = 128;
/// Elements of the longest row that a program sorts.
const SORTED: i64 = 4096;
/// Keys that a thread holds of rows that are sorted, times 1/4 to 4 by how many rows there are. Exchanges among them need no other
/// thread, but all of them are instructions of their own: with 16 a row of 4,096 is 690 KB of machine code for an H100, with 8 half of that.
const KEYS: i64 = 8;

impl Tile {
    /// One point, one warp: what the kinds of work start from.
    const PLAIN: Tile = Tile {
        x: 1,
        y: 1,
        r: 1,
        looped: false,
        warps: 1,
        stages: 1,
        preload: false,
        pointers: Pointers::Plain,
    };
}

/// The axes of a tile.
pub(super) struct TileAxes {
    /// The fastest one in memory.
    pub x: Option<Axis>,
    pub y: Option<Axis>,
    /// The axis that bodies have besides the group's: what is reduced.
    pub own: Option<Axis>,
    /// Memory is contiguous along `x` and not along `own`.
    pub columns: bool,
}

/// Chooses the sizes for a device of `units` multiprocessors.
pub(super) fn choose(ex: &Exprs, axes: &TileAxes, work: &Work, units: i64) -> Tile {
    let hint = |a: Option<Axis>| a.map_or(1, |a| ex.hint(a.size).max(1));
    let points = Points {
        nx: hint(axes.x),
        ny: hint(axes.y),
        has_y: axes.y.is_some(),
        units,
    };
    let Some(own) = axes.own else {
        return if points.has_y {
            transpose(&points, work)
        } else {
            pointwise(&points, work)
        };
    };
    if work.sorts {
        return sort(&points, ex.range(own.size).hi, axes.columns);
    }
    let row = Row::new(ex, own);
    // Each load of a whole row takes registers until the reduction is done.
    let limit = match work.loads {
        0..=2 => WHOLE,
        3..=4 => WHOLE / 2,
        _ => WHOLE / 4,
    };
    if axes.columns {
        column_reduction(&points, work, &row)
    } else if row.whole <= limit {
        persistent_reduction(&points, work, &row)
    } else {
        looped_reduction(&points, work, &row)
    }
}

/// Number of points to share out, at the hints.
struct Points {
    nx: i64,
    ny: i64,
    has_y: bool,
    /// Multiprocessors of the device.
    units: i64,
}

/// The reduced axis.
struct Row {
    /// Elements, at the hint.
    length: i64,
    /// The power of two that holds it for certain; `i64::MAX` where its bound is far from the hint.
    whole: i64,
    varies: bool,
}

impl Row {
    fn new(ex: &Exprs, own: Axis) -> Row {
        let bound = ex.range(own.size).hi;
        let length = ex.hint(own.size).max(1);
        // A length that varies is held whole only if its bound is near.
        let whole = match ex.as_int(own.size) {
            Some(n) => power(n),
            None if bound <= 2 * length.min(2048) || power(bound) == power(length) => power(bound),
            None => i64::MAX,
        };
        Row {
            length,
            whole,
            varies: ex.as_int(own.size).is_none(),
        }
    }

    /// Returns the step along it, of at most `most` elements. A length that varies takes shorter steps where a quarter of the lanes
    /// would be past its end, and longer ones than a short hint asks for.
    fn step(&self, most: i64) -> i64 {
        let mut step = power(self.length).min(most);
        if !self.varies {
            return step;
        }
        let idle = |step: i64| step - 1 - (self.length - 1) % step;
        while step > SHORT_STEP && 4 * idle(step) > self.length {
            step /= 2;
        }
        step.max(LEAST_STEP)
    }
}

/// Sizes a tile of two axes, each of which some access walks element by element.
fn transpose(points: &Points, work: &Work) -> Tile {
    let &Points { nx, ny, units, .. } = points;
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
    Tile {
        x: bx,
        y: by,
        warps: warps(bx * by, each).min(most),
        ..Tile::PLAIN
    }
}

/// Sizes a run of points. Of few programs each has more threads; of very few there are more, unless accesses jump.
fn pointwise(points: &Points, work: &Work) -> Tile {
    let &Points { nx, units, .. } = points;
    let (each, most, mut b) = match nx / FLAT {
        n if n < 4 * units && !work.turned => (2, 8, FLAT / 2),
        n if n < 16 * units => (4, 8, FLAT),
        _ => (8, 4, FLAT),
    };
    while b > 128 && nx / b < 2 * units {
        b /= 2;
    }
    let b = b.min(power(nx));
    Tile {
        x: b,
        warps: (warps(b.max(512), each).min(most)).min((b / 32).max(1) as u32),
        ..Tile::PLAIN
    }
}

/// Sizes a tile of columns: held whole where they are short, else walked in steps of rows.
fn column_reduction(points: &Points, work: &Work, row: &Row) -> Tile {
    let &Points { nx, ny, units, .. } = points;
    let &Row { length, whole, .. } = row;
    let short = whole <= FEW_ROWS;
    let mut bx = if short { 4 * COLUMNS } else { COLUMNS }.min(power(nx));
    while bx > 16 && ny * (nx / bx) < units {
        bx /= 2;
    }
    if whole <= ROWS / bx {
        return Tile {
            x: bx,
            r: whole,
            warps: if short {
                (bx / 32).max(1) as u32
            } else {
                warps(bx * whole, 16)
            },
            ..Tile::PLAIN
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
        (bx, br, each) = match (points.has_y, work.bytes <= 2) {
            // A warp for each tile, where few of its columns are past the end.
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
    Tile {
        x: bx,
        r: br,
        looped: true,
        warps: warps(bx * br, each).min(most),
        ..Tile::PLAIN
    }
}

/// Sizes a tile of whole rows. Short rows stay within one warp each, so that their sums need no shared memory.
fn persistent_reduction(points: &Points, work: &Work, row: &Row) -> Tile {
    let &Points { nx, units, .. } = points;
    let whole = row.whole;
    let short = whole <= SHORT;
    let target = match short {
        true if work.bytes >= 4 && work.loads > 1 => 512,
        true => 1024,
        false => ROWS,
    };
    let mut rows = (target / whole).clamp(1, 128).min(power(nx));
    while rows > 1 && nx / rows < 4 * units {
        rows /= 2;
    }
    let tile = rows * whole;
    let each = if work.bytes <= 2 && !work.mixed || short {
        32
    } else {
        16
    };
    // Where programs are few, each has a multiprocessor of its own.
    let few = nx / rows < units;
    // Programs that only sum are short: as many as are to run at once.
    let sums = work.lone && work.aligned && !short && nx < WAVES * units;
    let each = match few {
        _ if sums => 16,
        true => each / 4,
        false => each,
    };
    let warps = if short {
        power(tile / (32 * each)).clamp(1, 4) as u32
    } else if few && !sums {
        power(tile / (32 * each)).clamp(4, 32) as u32
    } else {
        warps(tile, each)
    };
    Tile {
        x: rows,
        r: whole,
        warps,
        ..Tile::PLAIN
    }
}

/// Sizes a tile of rows that are sorted, of at most `bound` elements. Where rows abound, a warp sorts one by shuffles, or several short
/// ones; of columns there are some side by side, which fill a sector of memory. Where rows are few, more warps share each.
fn sort(points: &Points, bound: i64, columns: bool) -> Tile {
    let &Points { nx, ny, units, .. } = points;
    let whole = power(bound.min(SORTED));
    let few = nx * ny < Gpu::FEW_SORTED_ROWS * units;
    // Keys of a tile, rows at least, and keys of a thread.
    let (keys, least, each) = match (columns, few) {
        (true, true) => (128, 2, KEYS / 2),
        (true, false) => (SHORT, 2, 2 * KEYS),
        (false, true) if whole > SHORT => (32 * KEYS, 1, KEYS / 4),
        (false, true) => (32 * KEYS, 1, KEYS / 2),
        (false, false) => (32 * KEYS, 1, 4 * KEYS),
    };
    let mut rows = (keys / whole).clamp(least, 16).min(power(nx));
    while rows > least && ny * (nx / rows) < 4 * units {
        rows /= 2;
    }
    Tile {
        x: rows,
        r: whole,
        warps: power(rows * whole / (32 * each)).clamp(1, 16) as u32,
        ..Tile::PLAIN
    }
}

/// Sizes a step along a row that is too long to be held.
fn looped_reduction(points: &Points, work: &Work, row: &Row) -> Tile {
    let (step, warps) = if points.nx < points.units {
        // Few programs: each has all of a multiprocessor's threads for what is under way.
        match work.bytes >= 4 {
            true => (4096, 32),
            false => (8192, 16),
        }
    } else {
        // Of rows that are walked again, few are under way at once, so that they stay in the caches.
        match (work.again, work.bytes <= 2) {
            (true, true) if !work.mixed => (4096, 16),
            (true, _) => (4096, 32),
            (false, true) if work.loads <= 2 => (4096, 8),
            (false, _) => (2048, 8),
        }
    };
    let r = row.step(step);
    Tile {
        r,
        looped: true,
        // Short steps leave each thread 4 elements.
        warps: if row.varies {
            warps.min((r / 128) as u32)
        } else {
            warps
        },
        ..Tile::PLAIN
    }
}

/// Sizes the tile of a product of batch x m x n points summed over k: `y` rows, `x` columns, steps of `r`. Tiles are large where
/// they still fill the device. `bytes` is the size of an element; `plain`: operands are matrices, no windows of images.
pub(super) fn contraction(points: [i64; 4], bytes: usize, plain: bool, device: &Device) -> Tile {
    let [batch, m, n, k] = points;
    let units = device.units;
    let side = |v: i64| power(v.max(16));
    let narrow = bytes <= 2;
    if plain && narrow && m <= SKINNY_ROWS && k >= SKINNY_STEP {
        return skinny(n * batch, k, device);
    }
    if plain && narrow && m > SKINNY_ROWS && n >= 64 && k >= 128 && device.shared >= DEEP {
        let products = |x: i64| batch * ((m + 63) / 64) * ((n + x - 1) / x);
        if 2 * products(128) <= 3 * units {
            return short(&products, k, device);
        }
    }
    let most = if narrow { 128 } else { 64 };
    let (mut bm, mut bn) = (side(m).min(most), side(n).min(most));
    let programs = |bm: i64, bn: i64| {
        let (pm, pn) = ((m + bm - 1) / bm, (n + bn - 1) / bn);
        pm * pn * batch
    };
    while programs(bm, bn) < units && bm * bn > 1024 {
        if bm >= bn && bm > 16 {
            bm /= 2;
        } else if bn > 16 {
            bn /= 2;
        } else {
            break;
        }
    }
    let step = match bytes {
        1 | 2 => 64,
        4 => 32,
        _ => 16,
    };
    Tile {
        x: bn,
        y: bm,
        r: side(k).min(step),
        looped: true,
        warps: if bm * bn >= 128 * 128 { 8 } else { 4 },
        stages: if narrow { 3 } else { 2 },
        ..Tile::PLAIN
    }
}

/// Sizes the tile of a persistent product with operands of `bytes` bytes an element. The epilogue takes `staged` bytes of shared memory
/// for each point of a tile; nothing if they leave less than two stages of the operands.
pub(super) fn persistent(bytes: i64, staged: i64, device: &Device) -> Option<Tile> {
    const STEP: i64 = 64;
    const MOST: i64 = 4;
    // Barriers, one for each stage and more.
    const BARRIERS: i64 = 1 << 10;
    let (rows, columns) = Gpu::PAIR;
    let stage = (rows + columns) * STEP * bytes;
    let left = device.shared - BARRIERS - staged * rows * columns / 2;
    let stages = (left / stage).min(MOST);
    (stages >= 2).then_some(Tile {
        x: columns / 2,
        y: rows,
        r: STEP,
        looped: true,
        warps: 8,
        stages: stages as u32,
        pointers: Pointers::Map,
        ..Tile::PLAIN
    })
}

/// Shared memory from which on pipelines of long steps are under way in two programs of a multiprocessor.
const DEEP: i64 = 200 << 10;

/// Sizes the tile of a product of halves that leaves multiprocessors without work if tiles are large: 64 rows, the fewest that a
/// group of warps multiplies on Hopper, and as many columns as leave three quarters of the device a program. `products` tells how many
/// tiles so many columns give. Few programs take long steps. Chosen on an H200 by tuning some 80 shapes of 32 to 2048 rows; for up to
/// 1024 terms the best tile was 5 % faster at most. To change a number, measure with `python/bench/gpu_products.py --tune`.
fn short(products: &dyn Fn(i64) -> i64, k: i64, device: &Device) -> Tile {
    let mut sides = [64, 32].into_iter();
    let fills = |x: &i64| 4 * products(*x) >= 3 * device.units;
    let x = sides.find(fills).unwrap_or(16);
    let programs = products(x);
    let (r, stages) = match programs {
        n if n <= device.units && x <= 32 && k >= 2048 => (256, 4),
        n if n <= device.units => (128, 4),
        n if n <= 2 * device.units => (128, 3),
        _ => (64, 4),
    };
    Tile {
        x,
        y: 64,
        r,
        looped: true,
        warps: 4,
        stages,
        ..Tile::PLAIN
    }
}

/// Most rows of a product that memory bounds: those of the smallest tile of tensor cores.
const SKINNY_ROWS: i64 = 16;
/// Elements of a step along `k` then: 512 bytes of each column of halves are read at once.
const SKINNY_STEP: i64 = 256;

/// Sizes the tile of a product with few rows, whose right operand is read once. Programs are narrow, so that they fill the device,
/// and pipelines deep, as far as `shared` bytes allow. To change a size, measure with `python/bench/gpu_few_rows.py`.
fn skinny(columns: i64, k: i64, device: &Device) -> Tile {
    let (x, warps, stages) = match columns {
        n if n >= 64 * device.units => (32, 4, 3),
        // One program for each multiprocessor has few steps under way.
        n if n <= 16 * device.units && k >= 8192 => (16, 4, 6),
        _ => (16, 2, 4),
    };
    let stage = (x + SKINNY_ROWS) * SKINNY_STEP * 2;
    Tile {
        x,
        y: SKINNY_ROWS,
        r: SKINNY_STEP,
        looped: true,
        warps,
        stages: stages.min((device.shared / stage).max(1)) as u32,
        ..Tile::PLAIN
    }
}

/// Properties of a device that the tile of a product depends on.
pub(super) struct Device {
    pub units: i64,
    /// Bytes of shared memory of a program.
    pub shared: i64,
}

/// Numbers that the sizes of an attention depend on.
pub(super) struct AttentionShape {
    /// Batches and heads, queries and keys, at the hints.
    pub batch: i64,
    pub rows: i64,
    pub keys: i64,
    /// Sizes of a head of queries and keys, and of values.
    pub features: i64,
    pub columns: i64,
    /// Bytes of an element.
    pub bytes: i64,
    /// Rows and keys of a block of the mask.
    pub block: Option<(i64, i64)>,
    /// Bytes of shared memory.
    pub shared: i64,
    /// Multiprocessors.
    pub units: i64,
    /// The scores load an element for each row and key.
    pub loads_tiles: bool,
    /// Of gradients, how many sums a program keeps.
    pub gradients: Option<i64>,
}

/// The largest head that a program holds.
const HEAD: i64 = 256;

/// Points of a side that a program holds whole: tensor cores take 16 at least.
pub(super) fn side(n: i64) -> i64 {
    power(n.max(16))
}

/// The block of an attention's columns: at least that of the features, up to 64.
///
/// Triton 3.6 gives wrong sums on NVIDIA GPUs from Hopper on where 64 or more rows meet fewer columns than features in the second
/// of two products: seen for blocks of 16 and 32 columns, with 32 to 128 features.
pub(super) fn columns(s: &AttentionShape) -> i64 {
    side(s.columns).max(side(s.features).min(64))
}

/// The block of an attention's features. Gradients sum over both sides, so that what [`columns`] says holds for features too.
pub(super) fn features(s: &AttentionShape) -> i64 {
    match s.gradients {
        Some(_) => side(s.features).max(side(s.columns).min(64)),
        None => side(s.features),
    }
}

/// Tiles of gradients: the greatest head of a row, rows, keys of a step, warps, depth of the pipeline. To change one, edit its
/// line and measure with `python/bench/gpu_attention.py --gradients`. A program holds two operands of its rows and one or two
/// sums in `f32`, so tiles are smaller than forward ones.
const GRADIENTS_OF_HALVES: [(i64, [i64; 2], u32, u32); 3] = [
    (64, [128, 64], 8, 3),
    (128, [128, 64], 8, 3),
    (HEAD, [64, 32], 8, 2),
];
const GRADIENTS_OF_F32: [(i64, [i64; 2], u32, u32); 3] = [
    (64, [64, 32], 8, 2),
    (128, [32, 32], 8, 2),
    (HEAD, [16, 16], 8, 1),
];

/// Sizes of an attention: `x` rows, `r` keys at a time.
///
/// For halves with heads of 128: 128 by 128, 8 warps, 3 stages, the fastest on an H200. What does not fit in shared memory
/// takes shallower pipelines, then fewer keys, then fewer rows. Where there are fewer programs than multiprocessors, programs
/// take fewer rows.
pub(super) fn attention(s: &AttentionShape) -> inrush_base::Result<Tile> {
    let refuse = |what: String| Err(inrush_base::Error::unsupported(what));
    let head = features(s).max(columns(s));
    if head > HEAD {
        return refuse(format!("an attention with heads of more than {HEAD}"));
    }
    let table = match s.bytes {
        ..=2 => &GRADIENTS_OF_HALVES,
        _ => &GRADIENTS_OF_F32,
    };
    let chosen = (table.iter().copied())
        .find(|t| head <= t.0)
        .filter(|_| s.gradients.is_some());
    let forward = match (s.bytes, head) {
        (..=2, ..=64) => (128, 64, 3),
        (..=2, ..=128) => (128, 128, 3),
        (..=2, _) => (128, 64, 2),
        (_, ..=64) => (64, 64, 2),
        _ => (64, 32, 2),
    };
    let (mut x, mut r, mut stages) =
        chosen.map_or(forward, |(_, [x, r], _, stages)| (x, r, i64::from(stages)));
    x = side(s.rows).min(x);
    r = side(s.keys).min(r);
    while x > 16 && s.batch.saturating_mul((s.rows + x - 1) / x) < s.units {
        x /= 2;
    }
    if let Some((rows, keys)) = s.block {
        // Rows of a program are of one block, and so are the keys of a step.
        let most = |n: i64| 1 << n.trailing_zeros().min(30);
        (x, r) = (x.min(most(rows)), r.min(most(keys)));
        if x < 16 || r < 16 {
            return refuse(format!("a mask with blocks of {rows} by {keys}"));
        }
    }
    while attention_bytes(s, x, r, stages) > s.shared {
        if stages > 2 {
            stages -= 1;
        } else if r > 32 {
            r /= 2;
        } else if x > 16 {
            x /= 2;
        } else if r > 16 {
            r /= 2;
        } else if stages > 1 {
            stages = 1;
        } else {
            return refuse("an attention whose tiles do not fit in shared memory".into());
        }
    }
    Ok(Tile {
        x,
        r,
        looped: true,
        // The warps of two products in a row each have rows of their own, 16 or more.
        warps: match (chosen, x) {
            // Fewer rows than the table has, fewer warps.
            (Some((_, [most, _], warps, _)), _) => (warps / (most / x) as u32).max(1),
            (None, 128..) if head >= 128 => 8,
            (None, ..64) if s.bytes <= 2 => (x / 16) as u32,
            _ => 4,
        },
        stages: stages as u32,
        ..Tile::PLAIN
    })
}

/// Returns the bytes of shared memory of an attention with `x` rows, steps of `r` keys and so many of them under way.
fn attention_bytes(s: &AttentionShape, x: i64, r: i64, stages: i64) -> i64 {
    const BARRIERS: i64 = 1024;
    let own = features(s) + s.gradients.map_or(0, |_| columns(s));
    let operands = x * own + stages * r * (features(s) + columns(s));
    // Such a tile goes through shared memory, padded, from the threads that load it to those that have its scores.
    let exchanged = if s.loads_tiles { x * r * 9 / 2 } else { 0 };
    operands * s.bytes + exchanged + BARRIERS
}

/// Refuses tiles of an attention that a caller asks for and that no program can have.
pub(super) fn check_attention(s: &AttentionShape, tile: &Tile) -> inrush_base::Result<()> {
    let cuts = |n: i64, block: i64| n % block == 0;
    let of_one_block = s
        .block
        .is_none_or(|(rows, keys)| cuts(rows, tile.x) && cuts(keys, tile.r));
    let fits = attention_bytes(s, tile.x, tile.r, i64::from(tile.stages)) <= s.shared;
    match tile.x.min(tile.r) >= 16 && of_one_block && fits {
        true => Ok(()),
        false => Err(inrush_base::Error::unsupported(format!(
            "an attention with a tile of {tile}"
        ))),
    }
}

/// The work of a group, as far as the sizes depend on it.
pub(super) struct Work {
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
    /// Loads are contiguous along another axis than stores.
    turned: bool,
    /// There is nothing but one reduction of what one load brings.
    lone: bool,
    /// Rows are sorted.
    pub sorts: bool,
}

impl Work {
    /// Reads it off the bodies.
    pub fn new(flat: &Flat, locals: &[BufId]) -> Work {
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
            sorts: false,
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
                    Stmt::Sort { .. } => out.sorts = true,
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
}

/// Returns the axis along which an access of all elements goes from one to the next.
fn fastest(ex: &Exprs, body: &Body, offset: Expr) -> Option<Sym> {
    let syms: Vec<Sym> = body.axes.iter().map(|a| a.sym).collect();
    let coefs = ex.coefficients(offset, &syms)?;
    if coefs.iter().any(|c| ex.is_int(*c, 0)) {
        return None;
    }
    let at = coefs.iter().position(|c| ex.is_int(*c, 1))?;
    Some(syms[at])
}

/// Returns true if rows that `offset` walks element by element start at multiples of `lanes`.
fn aligned(ex: &Exprs, body: &Body, offset: Expr, lanes: i64) -> bool {
    let syms: Vec<Sym> = body.axes.iter().map(|a| a.sym).collect();
    let Some(coefs) = ex.coefficients(offset, &syms) else {
        return true;
    };
    !coefs.iter().any(|c| ex.is_int(*c, 1))
        || (coefs.iter()).all(|c| ex.is_int(*c, 1) || ex.is_int(ex.modulo(*c, ex.int(lanes)), 0))
}

/// Returns the least power of two that is not below `n`; the greatest one for a product of sizes that is beyond `i64`.
fn power(n: i64) -> i64 {
    (n.clamp(1, 1 << 62) as u64).next_power_of_two() as i64
}

/// Returns the number of warps for a tile in which a thread has about this many elements.
fn warps(tile: i64, each: i64) -> u32 {
    let by_elements = power(tile / (32 * each));
    let at_least = match tile {
        ..512 => 1,
        512..1024 => 2,
        _ => 4,
    };
    by_elements.clamp(at_least, 16) as u32
}
