//! An attention as one block program: an online softmax over tiles of scores, which never reach memory.
//!
//! A program takes a tile of rows `x` (queries) of one batch and head `y`, and walks the keys `r` in steps. Each step makes a
//! tile of scores, and corrects the sums so far by how much the greatest score rose:
//!
//! ```text
//! for r in keys step RBLOCK                     or in the blocks of keys that a block mask lists
//!     score = scores(query @ key^T)             the loop's items
//!     new = max(max, score);  f = exp(max - new);  p = exp(score - new)
//!     sum = sum * f + p;  out = out * f + p @ value;  max = new
//! store out / sum, log(sum) + max, max
//! ```
//!
//! A causal mask ends the loop at the last row of the tile; it is known by its form, a comparison of two positions.
//!
//! The scores are a body over rows and keys, so any pointwise function of the product and of positions is part of the tile.
//!
//! Gradients (Dao, "FlashAttention-2", 2023) are two programs of one form. Both compute the scores again, walk as above, and
//! keep sums of what they load for each step, with weights that the items compute of two products:
//!
//! ```text
//! for r in keys step RBLOCK                     x: queries              x: keys, r: queries
//!     product = query @ key^T
//!     grad_product = grad @ value^T
//!     by_key += first @ key                     gradient of queries     of keys
//!     by_value += second @ value                                        of values
//! ```

use super::axes::{linearize, set_shared};
use super::plan::{check_powers, exact, finish, set_arguments};
use super::renumber::renumber;
use super::sizes::{self, AttentionShape};
use super::{Block, BlockItem, Context, Dim, DimRole, Operand, Tile};
use crate::build::{Builder, Reuse};
use crate::finish::origins;
use crate::flatten::Flat;
use crate::{BufRole, Def, KBufId, KernelBuf, ValId, index_expr};
use inrush_base::{DType, Error, Result, Scalar};
use inrush_expr::{Expr, Exprs, Sym};
use inrush_loops::{Access, Attended, Axis, BlockMask, Body, BufId, ScalarOp, Stmt, Tables};

/// Operands of an attention, and the blocks of keys that its loop walks.
#[derive(Clone, PartialEq, Debug)]
pub struct Attention {
    /// Summed in the product of queries and keys.
    pub d: Side,
    /// Columns of values and results.
    pub n: Side,
    /// Over y, x and d.
    pub query: Operand,
    /// Over y, r and d.
    pub key: Operand,
    /// Over y, r and n.
    pub value: Operand,
    pub results: Results,
    pub blocks: Option<Blocks>,
    /// Keys up to a row's own position plus this are kept, later ones are not. The loop ends at the last row's, and steps
    /// before the first row's need no mask.
    pub causal: Option<i64>,
}

impl Attention {
    /// The dimension of rows among the block's.
    pub const ROWS: usize = 1;
    /// The dimension of keys among the block's.
    pub const KEYS: usize = 2;
}

/// The use that the program makes of the values that its items compute.
#[derive(Clone, PartialEq, Debug)]
pub enum Results {
    /// A softmax of one value, the score.
    Softmax {
        /// Over y, x and n.
        out: Operand,
        /// Over y and x: the logarithm of the sum of exponentials, base 2.
        logsumexp: Operand,
        /// Over y and x: the greatest score times log2(e).
        max: Operand,
    },
    /// Sums of keys and of values with one or two weights.
    Gradients {
        /// Over y, x and n: a factor of the second product.
        grad: Operand,
        /// Over y, x and d.
        by_key: Operand,
        /// Over y, x and n.
        by_value: Option<Operand>,
    },
}

/// An axis that only operands have, held whole by each program.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Side {
    pub sym: Sym,
    pub extent: Expr,
    /// A power of two, at least the extent.
    pub block: i64,
    /// The block is the extent: no mask is needed.
    pub exact: bool,
}

/// Blocks of keys that rows attend to. A program's rows are of one row of blocks.
#[derive(Clone, PartialEq, Debug)]
pub struct Blocks {
    pub rows: i64,
    pub keys: i64,
    /// Blocks of which the scores tell which keys are kept.
    pub partial: List,
    /// Blocks that are kept whole.
    pub full: Option<List>,
}

/// How many blocks a row of blocks has, and which.
#[derive(Clone, PartialEq, Debug)]
pub struct List {
    /// Over y and x.
    pub count: Operand,
    /// Over y, x and `position`.
    pub index: Operand,
    pub position: Sym,
    pub extent: Expr,
}

impl Attention {
    /// Returns what the program reads and writes apart from the items.
    pub fn operands(&self) -> Vec<&Operand> {
        let mut out = vec![&self.query, &self.key, &self.value];
        out.extend(self.grad());
        for l in self.blocks.iter().flat_map(Blocks::lists) {
            out.extend([&l.count, &l.index]);
        }
        out.extend(self.results());
        out
    }

    /// Returns the factor of the second product that gradients have.
    pub fn grad(&self) -> Option<&Operand> {
        match &self.results {
            Results::Gradients { grad, .. } => Some(grad),
            Results::Softmax { .. } => None,
        }
    }

    /// Returns what the program writes.
    pub fn results(&self) -> Vec<&Operand> {
        match &self.results {
            Results::Softmax {
                out,
                logsumexp,
                max,
            } => vec![out, logsumexp, max],
            Results::Gradients {
                by_key, by_value, ..
            } => [by_key].into_iter().chain(by_value).collect(),
        }
    }
}

impl Blocks {
    /// Returns the lists: partial blocks first.
    pub fn lists(&self) -> impl Iterator<Item = &List> {
        [&self.partial].into_iter().chain(&self.full)
    }
}

/// Makes the block program of an attention. `choose` may take another tile than that of the rules.
///
/// # Errors
/// Refuses `f64`, sizes of heads that are unknown or too large, and scores that read the product from memory.
pub fn block_attention(
    tables: Tables,
    a: &inrush_loops::Attention,
    context: &Context,
    choose: &dyn Fn(Tile) -> Tile,
) -> Result<Block> {
    let ex = tables.exprs;
    let Some(gpu) = &context.caps.gpu else {
        return Err(Error::internal("block programs are for GPUs"));
    };
    if a.products().iter().any(Option::is_some) {
        return Err(Error::unsupported(
            "an attention whose scores read the product of other rows or keys",
        ));
    }
    let dtype = tables.buffers[a.query.buf.index()].dtype;
    if !matches!(dtype, DType::F16 | DType::BF16 | DType::F32) {
        return Err(Error::unsupported(format!(
            "an attention of {dtype} on a GPU"
        )));
    }
    let size = |axis: Axis| {
        (ex.as_int(axis.size))
            .ok_or_else(|| Error::unsupported("an attention of unknown head sizes"))
    };
    let mut shape = AttentionShape {
        batch: (a.batch.iter()).fold(1, |n, x| n.saturating_mul(ex.hint(x.size).max(1))),
        rows: ex.hint(a.m.size).max(1),
        keys: ex.hint(a.k.size).max(1),
        features: size(a.d)?,
        columns: size(a.n)?,
        bytes: dtype.size() as i64,
        block: a.blocks.as_ref().map(|b| (b.rows, b.keys)),
        shared: i64::from(gpu.shared_bytes),
        units: i64::from(gpu.multiprocessors),
        loads_tiles: false,
        gradients: a.gradients().map(|g| 1 + g.by_value.iter().count() as i64),
    };
    let mut rule = sizes::attention(&shape)?;
    let mut block = with_tile(tables, a, context, &shape, rule)?;
    let tile = 1 << Attention::ROWS | 1 << Attention::KEYS;
    let mut values = block.values.iter().zip(&block.shapes);
    shape.loads_tiles =
        values.any(|(v, shape)| matches!(v.def, Def::Load { .. }) && shape & tile == tile);
    if shape.loads_tiles {
        rule = sizes::attention(&shape)?;
        block = with_tile(tables, a, context, &shape, rule)?;
    }
    let chosen = choose(rule);
    if chosen != rule {
        check_powers(chosen)?;
        sizes::check_attention(&shape, &chosen)?;
        block = with_tile(tables, a, context, &shape, chosen)?;
    }
    Ok(block)
}

/// Makes the block program with a tile.
fn with_tile(
    tables: Tables,
    a: &inrush_loops::Attention,
    context: &Context,
    shape: &AttentionShape,
    tile: Tile,
) -> Result<Block> {
    let ex = tables.exprs;
    let flattened = flatten(tables, a)?;
    let builder = Builder::with(&flattened.flat, &[], Reuse::Streamed)?;
    let dim = |axis: Axis, role: DimRole, block: i64| Dim {
        sym: axis.sym,
        extent: axis.size,
        role,
        block,
        exact: exact(ex, axis.size, block, role),
    };
    // The last listed block may reach beyond the last key by several steps.
    let keys = a.blocks.as_ref().map_or(tile.r, |b| b.keys);
    let dims = vec![
        dim(flattened.batch, DimRole::Grid, 1),
        dim(a.m, DimRole::Grid, tile.x),
        Dim {
            exact: exact(ex, a.k.size, keys, DimRole::Looped),
            ..dim(a.k, DimRole::Looped, tile.r)
        },
    ];
    let own = origins(std::slice::from_ref(&a.scores));
    let mut block = finish(&builder, dims, own, tile.warps, context)?;
    attend(&mut block, a.values())?;
    let mut offsets = flattened.offsets.into_iter();
    let mut next = |block: &mut Block, role: BufRole| -> Operand {
        let (buf, offset) = offsets.next().expect("one for each access");
        let buf = argument(tables, block, buf, role);
        Operand { buf, offset }
    };
    let [query, key, value] = [0; 3].map(|_| next(&mut block, BufRole::In));
    let grad = a.gradients().map(|_| next(&mut block, BufRole::In));
    let mut list = |block: &mut Block, position: Axis| List {
        count: next(block, BufRole::In),
        index: next(block, BufRole::In),
        position: position.sym,
        extent: position.size,
    };
    let blocks = a.blocks.as_ref().map(|b| Blocks {
        rows: b.rows,
        keys: b.keys,
        partial: list(&mut block, b.partial.position),
        full: b.full.as_ref().map(|l| list(&mut block, l.position)),
    });
    let results = match (&a.results, grad) {
        (Attended::Gradients(g), Some(grad)) => Results::Gradients {
            grad,
            by_key: next(&mut block, BufRole::Out),
            by_value: (g.by_value).map(|_| next(&mut block, BufRole::Out)),
        },
        _ => Results::Softmax {
            out: next(&mut block, BufRole::Out),
            logsumexp: next(&mut block, BufRole::Out),
            max: next(&mut block, BufRole::Out),
        },
    };
    let side = |axis: Axis, n: i64, block: i64| Side {
        sym: axis.sym,
        extent: axis.size,
        block,
        exact: block == n,
    };
    let (features, columns) = (shape.features, shape.columns);
    let causal = match (&a.blocks, &a.results) {
        (None, Attended::Softmax { .. }) => causal(ex, &block),
        _ => None,
    };
    block.attention = Some(Attention {
        d: side(a.d, features, sizes::features(shape)),
        n: side(a.n, columns, sizes::columns(shape)),
        query,
        key,
        value,
        results,
        blocks,
        causal,
    });
    block.stages = tile.stages;
    block.chosen = Some(tile);
    set_arguments(ex, &mut block);
    renumber(&mut block);
    Ok(block)
}

/// The scores and accesses of an attention over flat memory.
struct Flattened<'a> {
    flat: Flat<'a>,
    /// The only axis of the batch.
    batch: Axis,
    /// Buffers and offsets of operands, lists and results.
    offsets: Vec<(BufId, Expr)>,
}

/// Makes one index of the batch axes. Accesses are bodies meanwhile, so that all see the same indices.
fn flatten<'a>(tables: Tables<'a>, a: &inrush_loops::Attention) -> Result<Flattened<'a>> {
    let ex = tables.exprs;
    let outer: Vec<Axis> = a.batch.iter().chain([&a.m]).copied().collect();
    let positions = a
        .blocks
        .iter()
        .flat_map(BlockMask::lists)
        .map(|l| l.position);
    let all: Vec<Axis> = (outer.iter().copied())
        .chain([a.k, a.d, a.n])
        .chain(positions)
        .collect();
    let at = |axes: &[Axis]| axes.iter().map(|x| ex.sym_expr(x.sym)).collect();
    let result = |buf: BufId, axes: &[Axis]| Access {
        buf,
        coords: at(axes),
    };
    let with = |axis: Axis| outer.iter().copied().chain([axis]).collect::<Vec<_>>();
    let results = match &a.results {
        Attended::Softmax {
            out,
            logsumexp,
            max,
        } => vec![
            result(*out, &with(a.n)),
            result(*logsumexp, &outer),
            result(*max, &outer),
        ],
        Attended::Gradients(g) => [result(g.by_key, &with(a.d))]
            .into_iter()
            .chain(g.by_value.map(|b| result(b, &with(a.n))))
            .collect(),
    };
    let accesses: Vec<&Access> = a.accesses().chain(&results).collect();
    let mut bodies = vec![a.scores.clone()];
    bodies.extend(accesses.iter().map(|x| Body {
        axes: all.clone(),
        outer: outer.len(),
        stmts: vec![Stmt::Load {
            buf: x.buf,
            coords: x.coords.clone(),
            mask: None,
            fill: Scalar::Int(0),
        }],
        origins: Default::default(),
    }));
    let mut flat = Flat::new(tables, &outer, &bodies)?;
    let batch = match a.batch.as_slice() {
        [] => flat.fresh(ex.int(1)),
        axes => linearize(&mut flat, axes, &|_| true),
    };
    set_shared(&mut flat, vec![batch, a.m]);
    let offsets = (flat.bodies[1..].iter())
        .map(|b| match &b.stmts[0] {
            Stmt::Load { buf, coords, .. } => (*buf, coords[0]),
            _ => unreachable!("made above"),
        })
        .collect();
    flat.bodies.truncate(1);
    Ok(Flattened {
        flat,
        batch,
        offsets,
    })
}

/// Replaces the stores of `values` values and a mask, which are names only, by the item that takes them in.
fn attend(block: &mut Block, values: usize) -> Result<()> {
    let mut stored: Vec<(KBufId, ValId)> = Vec::new();
    let mut body = Vec::new();
    for item in std::mem::take(&mut block.items) {
        let items = match item {
            BlockItem::Loop(w) => w.body,
            BlockItem::Let(_) => {
                block.items.push(item);
                continue;
            }
            item => vec![item],
        };
        for item in items {
            match item {
                BlockItem::Store(s) => stored.push((s.buf, s.value)),
                item => body.push(item),
            }
        }
    }
    let of = |at: usize| stored.get(at).map(|s| s.1);
    let score = of(0).ok_or_else(|| Error::internal("an attention without a score"))?;
    body.push(BlockItem::Attend {
        score,
        second: of(1).filter(|_| values > 1),
        keep: of(values),
    });
    block
        .items
        .push(BlockItem::Loop(super::Walk { body, back: false }));
    // The stored buffers are names only: others move up.
    let gone: Vec<usize> = stored.iter().map(|s| s.0.index()).collect();
    for v in &mut block.values {
        if let Def::Load { buf, .. } = &mut v.def {
            let at = buf.index();
            if gone.contains(&at) {
                return Err(Error::internal("scores that are read from memory"));
            }
            *buf = KBufId::from_index(at - gone.iter().filter(|g| **g < at).count());
        }
    }
    let mut at = 0;
    block.buffers.retain(|_| {
        at += 1;
        !gone.contains(&(at - 1))
    });
    Ok(())
}

/// Returns by how much keys may be after rows, if the mask is a comparison of their positions and nothing else.
fn causal(ex: &Exprs, block: &Block) -> Option<i64> {
    let BlockItem::Loop(walk) = block.items.last()? else {
        return None;
    };
    let &BlockItem::Attend { keep: Some(k), .. } = walk.body.last()? else {
        return None;
    };
    let Def::Op { op, args } = &block.values[k.index()].def else {
        return None;
    };
    let [a, b] = args.as_slice() else {
        return None;
    };
    let (a, b) = (
        index_expr(ex, &block.values, *a)?,
        index_expr(ex, &block.values, *b)?,
    );
    // What is at least zero where a key is kept.
    let room = match op {
        ScalarOp::Le => ex.sub(b, a),
        ScalarOp::Lt => ex.sub(ex.sub(b, a), ex.int(1)),
        ScalarOp::Ge => ex.sub(a, b),
        ScalarOp::Gt => ex.sub(ex.sub(a, b), ex.int(1)),
        _ => return None,
    };
    let [x, r] = [Attention::ROWS, Attention::KEYS].map(|d| ex.sym_expr(block.dims[d].sym));
    let after = ex.as_int(ex.add(ex.sub(room, x), r))?;
    // Beyond this, the sums of the walk could overflow.
    (after.abs() <= 1 << 20).then_some(after)
}

/// Returns the argument for a buffer that the program accesses apart from its items.
fn argument(tables: Tables, block: &mut Block, buf: BufId, role: BufRole) -> KBufId {
    if let Some(at) = block.buffers.iter().position(|b| b.buf == buf) {
        return KBufId::from_index(at);
    }
    block.buffers.push(KernelBuf {
        buf,
        dtype: tables.buffers[buf.index()].dtype,
        role,
    });
    KBufId::from_index(block.buffers.len() - 1)
}
