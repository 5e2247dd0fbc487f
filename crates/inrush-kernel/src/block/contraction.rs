//! A contraction as one block program: tiles of products summed over `k`, with the epilogue on the finished tile. A convolution
//! is an implicit product (im2col without the copy): several axes in one index.
//!
//! ```text
//! conv2d      m = (i, y, x) over images and pixels, n = c, k = (ci, ky, kx)
//! a[m, k]     offset of in[i, ci, y + ky, x + kx], quotients and remainders of m and k
//! b[k, n]     offset of weight[c, ci, ky, kx]
//! ```

use super::axes::{linearize, set_shared};
use super::plan::{exact, finish, refuse_locals, set_arguments};
use super::renumber::renumber;
use super::sizes;
use super::{Block, Context, Dim, DimRole, Operand, Product};
use crate::build::Builder;
use crate::finish::origins;
use crate::flatten::Flat;
use crate::{BufRole, KBufId, KernelBuf};
use inrush_base::{Error, Result, Scalar};
use inrush_expr::Expr;
use inrush_loops::{Access, Axis, Body, BufId, Contraction, Stmt, Tables};

/// Makes the block program of a contraction.
pub fn block_contraction(tables: Tables, c: &Contraction, context: &Context) -> Result<Block> {
    let ex = tables.exprs;
    let Some(gpu) = &context.caps.gpu else {
        return Err(Error::internal("block programs are for GPUs"));
    };
    let Indexed {
        flat,
        axes: [batch, m, n, k],
        a,
        b,
    } = index(tables, c)?;
    let dtype = tables.buffers[a.0.index()].dtype;
    let other = tables.buffers[b.0.index()].dtype;
    if dtype != other || !dtype.is_float() {
        return Err(Error::unsupported(format!(
            "a product of {dtype} with {other} on a GPU"
        )));
    }
    let hint = |a: Axis| ex.hint(a.size).max(1);
    let points = [batch, m, n, k].map(hint);
    let device = sizes::Device {
        units: gpu.multiprocessors as i64,
        shared: gpu.shared_bytes as i64,
    };
    let plain = c.k.len() <= 1 && c.m.len() <= 1;
    let tile = sizes::contraction(points, dtype.size(), plain, &device);

    let builder = Builder::new(&flat, &[])?;
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
        a: operand(a),
        b: operand(b),
        k: k.sym,
        extent: k.size,
        block: tile.r,
        exact: exact(ex, k.size, tile.r, DimRole::Looped),
        dtype: c.dtype,
        group: 8,
    });
    block.stages = tile.stages;
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
