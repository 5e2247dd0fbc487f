//! A contraction as one block program: tiles of products summed over `k`, with the epilogue on the finished tile. A convolution
//! is an implicit product (im2col without the copy): several axes in one index.
//!
//! ```text
//! conv2d      m = (i, y, x) over images and pixels, n = c, k = (ci, ky, kx)
//! a[m, k]     offset of in[i, ci, y + ky, x + kx], quotients and remainders of m and k
//! b[k, n]     offset of weight[c, ci, ky, kx]
//! ```

use super::axes::{linearize, set_shared};
use super::plan::{check_powers, exact, finish, refuse_locals, set_arguments};
use super::renumber::renumber;
use super::sizes;
use super::{Block, Context, Dim, DimRole, Operand, Pointers, Product, Tile};
use crate::build::Builder;
use crate::finish::origins;
use crate::flatten::Flat;
use crate::{BufRole, KBufId, KernelBuf};
use inrush_base::{Error, Result, Scalar};
use inrush_expr::Expr;
use inrush_loops::{Access, Axis, Body, BufId, Contraction, Stmt, Tables};

/// Makes the block program of a contraction. Large products whose operands are matrices that tensor maps describe are persistent;
/// with `pointers` of that kind all of them are. `choose` may take another tile than that of the rules, which has pointers by tensor
/// maps where the product is persistent.
///
/// # Errors
/// Refuses tiles that do not fit in shared memory, and persistent products of what tensor maps do not describe.
pub fn block_contraction(
    tables: Tables,
    c: &Contraction,
    context: &Context,
    pointers: Pointers,
    choose: &dyn Fn(Tile) -> Tile,
) -> Result<Block> {
    let ex = tables.exprs;
    let Some(gpu) = &context.caps.gpu else {
        return Err(Error::internal("block programs are for GPUs"));
    };
    let indexed = index(tables, c)?;
    let [a, b] = [&indexed.a, &indexed.b].map(|o| tables.buffers[o.0.index()].dtype);
    if a != b || !a.is_float() {
        return Err(Error::unsupported(format!(
            "a product of {a} with {b} on a GPU"
        )));
    }
    let points = indexed.axes.map(|a| ex.hint(a.size).max(1));
    let device = sizes::Device {
        units: gpu.multiprocessors as i64,
        shared: gpu.shared_bytes as i64,
    };
    let maps = gpu.tensor_maps && pointers == Pointers::Map;
    let [batch, m, n, terms] = points;
    let largest = (batch == 1)
        .then(|| sizes::persistent(a.size() as i64, staged_bytes(tables, c), &device))
        .flatten();
    let make = |tile: Tile| build(tables, c, context, &indexed, tile);
    let by_maps = |b: &Block| (b.product.as_ref()).is_some_and(|p| p.matrices(ex, b).is_some());
    let prefers = maps || gpu.prefers_persistent(m, n, terms);
    let persistent = largest.filter(|_| prefers).map(make).transpose()?;
    let persistent = persistent.filter(by_maps);
    let plain = c.k.len() <= 1 && c.m.len() <= 1;
    let rule = (persistent.as_ref().and_then(|b| b.chosen))
        .unwrap_or_else(|| sizes::contraction(points, a.size(), plain, &device));
    let tile = choose(rule);
    check_powers(tile)?;
    match persistent {
        Some(block) if tile == rule => return Ok(block),
        _ if tile.pointers == Pointers::Map => {
            let fits = |l: &Tile| {
                tile == Tile {
                    stages: tile.stages,
                    ..*l
                } && tile.stages <= l.stages
            };
            let known = largest.filter(|l| gpu.tensor_maps && fits(l));
            let block = known.map(make).transpose()?.filter(by_maps);
            return block.ok_or_else(|| Error::unsupported("such a tile of a persistent product"));
        }
        _ => {}
    }
    let staged = (tile.x + tile.y) * tile.r * a.size() as i64 * i64::from(tile.stages);
    if tile != rule && (tile.x.min(tile.y).min(tile.r) < 16 || staged > device.shared) {
        return Err(Error::unsupported("such a tile of a product"));
    }
    make(tile)
}

/// Returns the bytes of shared memory that an epilogue takes for each point of its tile: what is stored waits there for the copy
/// engine, in one place for all tiles of a dtype, and what is loaded comes there, one tile after the other.
fn staged_bytes(tables: Tables, c: &Contraction) -> i64 {
    let dtype = |b: BufId| tables.buffers[b.index()].dtype;
    let spans = |coords: &[Expr], axes: &[Axis]| {
        (axes.iter()).any(|a| coords.iter().any(|e| tables.exprs.contains_sym(*e, a.sym)))
    };
    let (mut stored, mut loaded) = (Vec::new(), 0);
    for s in &c.epilogue.stmts {
        match s {
            Stmt::Store { buf, .. } if !stored.contains(&dtype(*buf)) => stored.push(dtype(*buf)),
            Stmt::Load { buf, coords, .. } if spans(coords, &c.m) && spans(coords, &c.n) => {
                loaded = loaded.max(dtype(*buf).size());
            }
            _ => {}
        }
    }
    let stored: usize = stored.iter().map(|d| d.size()).sum();
    (stored + loaded) as i64
}

/// Makes the block program with a tile; a persistent one if it has pointers by tensor maps.
fn build(
    tables: Tables,
    c: &Contraction,
    context: &Context,
    indexed: &Indexed,
    tile: Tile,
) -> Result<Block> {
    let ex = tables.exprs;
    let [batch, m, n, k] = indexed.axes;
    let builder = Builder::new(&indexed.flat, &[])?;
    refuse_locals(&builder)?;
    let dim = |axis: Axis, block: i64| Dim {
        sym: axis.sym,
        extent: axis.size,
        role: DimRole::Grid,
        block,
        exact: exact(ex, axis.size, block, DimRole::Grid),
    };
    let dims = vec![dim(batch, 1), dim(m, tile.y), dim(n, tile.x)];
    let mut block = finish(
        &builder,
        dims,
        origins(std::slice::from_ref(&c.epilogue)),
        tile.warps,
        context,
    )?;
    let mut operand = |(buf, offset): (BufId, Expr)| Operand {
        buf: argument(tables, &mut block, buf),
        offset,
    };
    block.product = Some(Product {
        a: operand(indexed.a),
        b: operand(indexed.b),
        k: k.sym,
        extent: k.size,
        block: tile.r,
        exact: exact(ex, k.size, tile.r, DimRole::Looped),
        dtype: c.dtype,
        group: 8,
        persistent: tile.pointers == Pointers::Map,
    });
    block.stages = tile.stages;
    block.chosen = Some(tile);
    set_arguments(ex, &mut block);
    renumber(&mut block);
    Ok(block)
}

/// A contraction with one index of each kind.
struct Indexed<'a> {
    /// The epilogue.
    flat: Flat<'a>,
    /// batch, m, n, k.
    axes: [Axis; 4],
    /// Buffers and offsets of the operands.
    a: (BufId, Expr),
    b: (BufId, Expr),
}

/// Makes one index of the axes of each kind. The operands are bodies meanwhile, so that all three see the same indices.
fn index<'a>(tables: Tables<'a>, c: &Contraction) -> Result<Indexed<'a>> {
    let outer: Vec<Axis> = (c.batch.iter().chain(&c.m).chain(&c.n)).copied().collect();
    let all: Vec<Axis> = outer.iter().chain(&c.k).copied().collect();
    let operand = |access: &Access| Body {
        axes: all.clone(),
        outer: outer.len(),
        stmts: vec![Stmt::Load {
            buf: access.buf,
            coords: access.coords.clone(),
            mask: None,
            fill: Scalar::Int(0),
        }],
        origins: Default::default(),
    };
    let bodies = [c.epilogue.clone(), operand(&c.a), operand(&c.b)];
    let mut flat = Flat::new(tables, &outer, &bodies)?;
    let every = |_: usize| true;
    let axes = [&c.batch, &c.m, &c.n, &c.k].map(|axes| match axes.as_slice() {
        [] => flat.fresh(tables.exprs.int(1)),
        axes => linearize(&mut flat, axes, &every),
    });
    let [batch, m, n, _] = axes;
    for body in &mut flat.bodies {
        body.axes.truncate(outer.len());
    }
    set_shared(&mut flat, vec![batch, m, n]);
    let offset = |at: usize| match &flat.bodies[at].stmts[0] {
        Stmt::Load { buf, coords, .. } => (*buf, coords[0]),
        _ => unreachable!("made above"),
    };
    let (a, b) = (offset(1), offset(2));
    flat.bodies.truncate(1);
    Ok(Indexed { flat, axes, a, b })
}

/// Returns the argument for a buffer that the product reads.
fn argument(tables: Tables, block: &mut Block, buf: BufId) -> KBufId {
    let at = block.buffers.iter().position(|b| b.buf == buf);
    if let Some(at) = at {
        let role = &mut block.buffers[at].role;
        if *role == BufRole::Out {
            *role = BufRole::InOut;
        }
        return KBufId::from_index(at);
    }
    block.buffers.push(KernelBuf {
        buf,
        dtype: tables.buffers[buf.index()].dtype,
        role: BufRole::In,
    });
    KBufId::from_index(block.buffers.len() - 1)
}
