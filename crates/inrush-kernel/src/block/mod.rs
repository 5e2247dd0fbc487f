//! Stage `tile` for GPUs: a fused group becomes a *block program*, straight-line code over tiles that one program of a grid
//! runs.
//!
//! The parallel axes of a group become one or two tile axes: `x`, the fastest in memory, and `y`. Axes that bodies have besides
//! these become one axis `r`. An axis of which a program takes one point is a number, the others are dimensions of the tile. A
//! reduction is *persistent* if a program holds `r` whole, and *looped* if it walks `r` in steps:
//!
//! ```text
//! persistent                              looped
//! x = load(row, 0..1024)                  for r in 0..65536 step 4096
//! sum = reduce(x)                           x = load(row, r..r + 4096);  acc += x
//! store(x / sum)                          sum = reduce(acc)
//!                                         for r in 0..65536 step 4096, from the last step to the first
//!                                           x = load(row, r..r + 4096);  store(x / sum)
//! ```
//!
//! Does not know: how Triton is spelled.

mod attention;
mod axes;
mod contraction;
mod horizontal_fusion;
mod neighbours;
mod online_softmax;
mod online_variance;
mod persistent;
mod place;
mod plan;
mod renumber;
mod sizes;
pub mod text;
mod verify;

use crate::{Acc, AccId, Check, Def, KBufId, KernelBuf, Param, ValId, Value};
use inrush_base::{Caps, DType, Error, Result};
use inrush_expr::{Expr, Sym};
use inrush_loops::{Axis, Body, BufId, OriginId, StoreMode, Tables};

pub use attention::{Attention, Blocks, List, Results, Side, block_attention};
pub use contraction::block_contraction;
pub use horizontal_fusion::{Piece, fuse_horizontally};
pub use neighbours::TileOf;
pub use persistent::Matrix;
pub use verify::{verify, verify_launch};

/// A block program.
#[derive(Clone, PartialEq, Debug)]
pub struct Block {
    /// For people: the fused operators.
    pub name: String,
    pub origins: Vec<OriginId>,
    /// Axes of the tile, outermost first; the reduction axis, if any, comes last.
    pub dims: Vec<Dim>,
    /// Programs of the grid.
    pub programs: Expr,
    /// Pointer arguments, in order.
    pub buffers: Vec<KernelBuf>,
    /// Integer arguments.
    pub sizes: Vec<Param>,
    pub values: Vec<Value>,
    /// Dimensions of each value, as bits of positions in `dims`; scalar axes do not count.
    pub shapes: Vec<u32>,
    pub accs: Vec<Acc>,
    pub checks: Vec<Check>,
    /// In the order in which every program runs them. There are no branches.
    pub items: Vec<BlockItem>,
    /// A matrix product whose sum the items use.
    pub product: Option<Product>,
    /// Operands of an attention, whose loop gives scores.
    pub attention: Option<Attention>,
    /// Offsets need 64 bits.
    pub wide: bool,
    pub warps: u32,
    /// Depth of the software pipeline of loops.
    pub stages: u32,
    /// The sizes that were chosen, by the rules or by tuning.
    pub chosen: Option<Tile>,
}

/// Sizes of a tile, powers of two, and who works on it.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub struct Tile {
    pub x: i64,
    pub y: i64,
    /// Along the reduction axis, if there is one.
    pub r: i64,
    /// The reduction axis is walked in steps of `r` instead of held whole.
    pub looped: bool,
    pub warps: u32,
    /// Steps of the walk that are under way at once: loads run ahead where it is more than one.
    pub stages: u32,
    /// Of rows that are held whole, what is needed after a reduction is loaded before it: more bytes are under way, and more
    /// registers are taken.
    pub preload: bool,
    pub pointers: Pointers,
}

/// How a program names the elements of a strided tile. What cannot be named so (indirect indices, masks of values, odd strides)
/// is accessed by plain pointers whatever is chosen.
#[derive(Copy, Clone, Default, PartialEq, Eq, Hash, Debug)]
pub enum Pointers {
    /// An address for each element.
    #[default]
    Plain,
    /// A base, sizes and strides: a block pointer.
    Block,
    /// As blocks, through the machine's copy engine where it has one: a tensor descriptor that each program makes.
    Descriptor,
    /// A tensor descriptor that the executor makes and passes: a tensor map. Elsewhere as [`Pointers::Descriptor`].
    Map,
}

impl Pointers {
    pub const ALL: [Pointers; 4] = [
        Pointers::Plain,
        Pointers::Block,
        Pointers::Descriptor,
        Pointers::Map,
    ];

    /// Returns the word by which options and text forms call it.
    pub fn name(self) -> &'static str {
        match self {
            Pointers::Plain => "plain",
            Pointers::Block => "block",
            Pointers::Descriptor => "descriptor",
            Pointers::Map => "map",
        }
    }
}

impl std::str::FromStr for Pointers {
    type Err = Error;
    fn from_str(text: &str) -> Result<Pointers> {
        let found = Pointers::ALL.into_iter().find(|p| p.name() == text);
        found.ok_or_else(|| {
            Error::input(format!(
                "pointers are `plain`, `block`, `descriptor` or `map`, not `{text}`"
            ))
        })
    }
}

impl std::str::FromStr for Tile {
    type Err = Error;

    /// Reads a tile as it prints: `x64y1r512w4`.
    /// `s` instead of `r` tells that the reduction axis is walked in steps. Then follow, as far as
    /// they are not the default, the depth of the pipeline (`k3`), `e` for a preload, and the
    /// pointers: `b`lock, `d`escriptor or `m`ap.
    fn from_str(text: &str) -> Result<Tile> {
        let read = (|| {
            let (_, x, rest) = lettered(text, &['x'])?;
            let (_, y, rest) = lettered(rest, &['y'])?;
            let (kind, r, rest) = lettered(rest, &['r', 's'])?;
            let (_, warps, rest) = lettered(rest, &['w'])?;
            let (_, stages, rest) = lettered(rest, &['k']).unwrap_or(('k', 1, rest));
            let preload = rest.starts_with('e');
            let pointers = match &rest[preload as usize..] {
                "" => Pointers::Plain,
                "b" => Pointers::Block,
                "d" => Pointers::Descriptor,
                "m" => Pointers::Map,
                _ => return None,
            };
            Some(Tile {
                x,
                y,
                r,
                looped: kind == 's',
                warps: u32::try_from(warps).ok()?,
                stages: u32::try_from(stages).ok()?,
                preload,
                pointers,
            })
        })();
        read.ok_or_else(|| Error::input(format!("`{text}` is no tile such as `x64y1r512w4`")))
    }
}

/// Takes one of `letters` and the number after it from the front of a text.
fn lettered<'t>(text: &'t str, letters: &[char]) -> Option<(char, i64, &'t str)> {
    let letter = text.chars().next().filter(|c| letters.contains(c))?;
    let digits = text[1..].find(|c: char| !c.is_ascii_digit());
    let (number, rest) = text[1..].split_at(digits.unwrap_or(text.len() - 1));
    Some((letter, number.parse().ok()?, rest))
}

impl std::fmt::Display for Tile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = if self.looped { "s" } else { "r" };
        write!(f, "x{}y{}{kind}{}w{}", self.x, self.y, self.r, self.warps)?;
        match self.stages {
            1 => {}
            n => write!(f, "k{n}")?,
        }
        if self.preload {
            write!(f, "e")?;
        }
        match self.pointers {
            Pointers::Plain => Ok(()),
            Pointers::Block => write!(f, "b"),
            Pointers::Descriptor => write!(f, "d"),
            Pointers::Map => write!(f, "m"),
        }
    }
}

/// An axis of the tile.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Dim {
    pub sym: Sym,
    pub extent: Expr,
    pub role: DimRole,
    /// Points that a program takes at once, a power of two. An axis with one point is a number, not a dimension.
    pub block: i64,
    /// The block divides the extent: no mask is needed.
    pub exact: bool,
}

/// How an axis is covered.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum DimRole {
    /// Shared out over the grid.
    Grid,
    /// Held whole by each program.
    Persistent,
    /// Walked in steps by each program.
    Looped,
}

impl Dim {
    /// Returns true if the axis is a dimension of the tile.
    pub fn is_tile(&self) -> bool {
        self.block > 1 || self.role != DimRole::Grid
    }
}

/// A loop over the looped axis in steps.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Walk {
    pub body: Vec<BlockItem>,
    /// From the last step to the first: what the walk before read last is still in the caches.
    pub back: bool,
}

/// A step of a block program.
#[derive(Clone, PartialEq, Debug)]
pub enum BlockItem {
    /// Evaluates a value.
    Let(ValId),
    /// Walks the looped axis.
    Loop(Walk),
    /// Starts an accumulator.
    Acc(AccId),
    /// Takes a tile in. Outside of a loop this is the whole reduction.
    Update {
        acc: AccId,
        value: ValId,
    },
    /// Combines the lanes of an accumulator after its loop.
    Finish(AccId),
    /// Takes a tile into two accumulators at once: the means of lanes, and the squares of distances to them.
    Moments {
        sum: AccId,
        squares: AccId,
        value: ValId,
    },
    /// Combines the lanes of both after their loop: the sum, and the squares of distances to the mean of all.
    FinishMoments {
        sum: AccId,
        squares: AccId,
    },
    /// Takes a tile into two accumulators at once: the greatest of each lane, and the sum of exponentials of distances to it.
    Exponentials {
        max: AccId,
        sum: AccId,
        value: ValId,
    },
    /// Combines the lanes' sums after their loop, as exponentials of distances to `shift`. The maximum has been combined.
    FinishExponentials {
        max: AccId,
        sum: AccId,
        shift: ValId,
    },
    /// Takes a tile of scores into the softmax and the weighted sum of values; keys that are not kept have weight 0. Of
    /// gradients, a tile of weights of keys, and a second one of weights of values.
    Attend {
        score: ValId,
        second: Option<ValId>,
        keep: Option<ValId>,
    },
    Store(BlockStore),
    /// Waits until memory accesses of all threads of the program are done.
    Barrier,
}

/// A store of a tile, or an atomic combination with memory.
#[derive(Clone, PartialEq, Debug)]
pub struct BlockStore {
    pub buf: KBufId,
    pub offset: Expr,
    pub value: ValId,
    pub mode: StoreMode,
    pub mask: Option<ValId>,
    /// Dimensions of the tile over which the store happens.
    pub shape: u32,
}

/// `sum over k of a * b` over a tile: `a` spans the dimensions (y, k), `b` (k, x).
#[derive(Clone, PartialEq, Debug)]
pub struct Product {
    pub a: Operand,
    pub b: Operand,
    pub k: Sym,
    pub extent: Expr,
    pub block: i64,
    pub exact: bool,
    /// dtype in which products are summed.
    pub dtype: DType,
    /// Rows of tiles that run at the same time, so that they share what they read in the caches.
    pub group: i64,
    /// Each multiprocessor runs one program, which takes pairs of tiles side by side until none is left. Operands are tensor maps.
    pub persistent: bool,
}

/// One side of a product: its elements at an offset in the symbols of the tile and of `k`.
#[derive(Clone, PartialEq, Debug)]
pub struct Operand {
    pub buf: KBufId,
    pub offset: Expr,
}

/// The target, and storages that a caller knows of.
#[derive(Copy, Clone)]
pub struct Context<'a> {
    pub caps: &'a Caps,
    /// For each buffer a representative of those that share its bytes.
    pub storage: &'a [BufId],
}

impl Context<'_> {
    pub(crate) fn storage(&self, tables: Tables, buf: BufId) -> BufId {
        let b = tables.storage(buf);
        self.storage.get(b.index()).copied().unwrap_or(b)
    }
}

/// Makes a block program of a fused group: for each point of `axes`, `bodies` in order.
pub fn block(
    tables: Tables,
    axes: &[Axis],
    bodies: &[Body],
    locals: &[BufId],
    context: &Context,
) -> Result<Block> {
    block_with(tables, axes, bodies, locals, context, &|t| t)
}

/// [`block`] with the last word on the tile: `choose` gets what the rules say.
///
/// # Errors
/// Also a tile that does not fit.
pub fn block_with(
    tables: Tables,
    axes: &[Axis],
    bodies: &[Body],
    locals: &[BufId],
    context: &Context,
    choose: &dyn Fn(Tile) -> Tile,
) -> Result<Block> {
    if context.caps.gpu.is_none() {
        return Err(Error::internal("block programs are for GPUs"));
    }
    plan::group(tables, axes, bodies, locals, context, choose)
}

impl Block {
    pub fn value(&self, v: ValId) -> &Value {
        &self.values[v.index()]
    }
    /// The axis that reductions run over.
    pub fn reduced(&self) -> Option<usize> {
        (self.dims.iter()).position(|d| d.role != DimRole::Grid)
    }
    /// The letter of an axis: `x` is the last one of the grid, `r` the one that reductions run over.
    pub fn letter(&self, at: usize) -> &'static str {
        if self.dims[at].role != DimRole::Grid {
            return "r";
        }
        let after = self.dims[at + 1..]
            .iter()
            .filter(|d| d.role == DimRole::Grid);
        ["x", "y", "z"][after.count().min(2)]
    }
    /// Elements of a tile.
    pub fn tile(&self) -> i64 {
        self.dims.iter().map(|d| d.block).product()
    }
}

/// Calls `f` on every expression of a block program.
fn each_expr(block: &Block, f: &mut dyn FnMut(Expr)) {
    block.dims.iter().for_each(|d| f(d.extent));
    f(block.programs);
    for b in &block.buffers {
        if let crate::BufRole::Local { len, .. } = b.role {
            f(len);
        }
    }
    block.sizes.iter().for_each(|p| f(p.value));
    block.accs.iter().filter_map(|a| a.index).for_each(&mut *f);
    if let Some(p) = &block.product {
        [p.a.offset, p.b.offset, p.extent]
            .into_iter()
            .for_each(&mut *f);
    }
    if let Some(a) = &block.attention {
        a.operands().into_iter().for_each(|o| f(o.offset));
        [a.d, a.n].into_iter().for_each(|s| f(s.extent));
        let lists = a.blocks.iter().flat_map(Blocks::lists);
        lists.for_each(|l| f(l.extent));
    }
    for v in &block.values {
        v.def.expr().into_iter().for_each(&mut *f);
        if let Def::Indirect { size, .. } = v.def {
            f(size);
        }
    }
    each_store(&block.items, &mut |s| f(s.offset));
}

/// Calls `f` on every store, those in loops too.
fn each_store(items: &[BlockItem], f: &mut dyn FnMut(&BlockStore)) {
    for item in items {
        match item {
            BlockItem::Loop(w) => each_store(&w.body, f),
            BlockItem::Store(s) => f(s),
            _ => {}
        }
    }
}
