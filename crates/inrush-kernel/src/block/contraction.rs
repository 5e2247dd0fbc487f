//! A contraction as one block program: tiles of products summed over `k`, with the epilogue on the finished tile. A
//! convolution is the same with several axes in one index.

use super::axes::{linearize, set_shared};
use super::plan::{exact, finish, refuse_locals, set_arguments};
use super::renumber::renumber;
use super::{Block, Context, Dim, DimRole, Operand, Product};
use crate::build::Builder;
use crate::finish::origins;
use crate::flatten::Flat;
use crate::{BufRole, KBufId, KernelBuf};
use inrush_base::{Error, Result, Scalar};
use inrush_loops::{Access, Axis, Body, BufId, Contraction, Stmt, Tables};

/// Makes the block program of a contraction.
pub fn block_contraction(tables: Tables, c: &Contraction, context: &Context) -> Result<Block> {
    let ex = tables.exprs;
    let Some(gpu) = &context.caps.gpu else {
        return Err(Error::internal("block programs are for GPUs"));
    };
    // The operands ride along as bodies, so that all three see the same indices.
    let outer: Vec<Axis> = (c.batch.iter().chain(&c.m).chain(&c.n)).copied().collect();
    let all: Vec<Axis> = outer.iter().chain(&c.k).copied().collect();
    let operand = |access: &Access, outer: usize| Body {
        axes: all.clone(),
        outer,
        stmts: vec![Stmt::Load {
            buf: access.buf,
            coords: access.coords.clone(),
            mask: None,
            fill: Scalar::Int(0),
        }],
        origins: Default::default(),
    };
    let bodies = [
        c.epilogue.clone(),
        operand(&c.a, outer.len()),
        operand(&c.b, outer.len()),
    ];
    let mut flat = Flat::new(tables, &outer, &bodies)?;
    let every = |_: usize| true;
    let unit = |flat: &mut Flat, axes: &[Axis]| -> Axis {
        match axes {
            [] => flat.fresh(ex.int(1)),
            _ => linearize(flat, axes, &every),
        }
    };
    let batch = unit(&mut flat, &c.batch);
    let m = unit(&mut flat, &c.m);
    let n = unit(&mut flat, &c.n);
    let k = unit(&mut flat, &c.k);
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

    let types = (
        tables.buffers[a.0.index()].dtype,
        tables.buffers[b.0.index()].dtype,
    );
    if types.0 != types.1 || !types.0.is_float() {
        return Err(Error::unsupported(format!(
            "a product of {} with {} on a GPU",
            types.0, types.1
        )));
    }
    let hint = |a: Axis| ex.hint(a.size).max(1);
    let power = |v: i64| (v.max(16) as u64).next_power_of_two() as i64;
    let narrow = types.0.size() <= 2;
    // Large tiles where they still fill the device.
    let (mut bm, mut bn) = if narrow { (128, 128) } else { (64, 64) };
    (bm, bn) = (power(hint(m)).min(bm), power(hint(n)).min(bn));
    let programs = |bm: i64, bn: i64| {
        let (pm, pn) = ((hint(m) + bm - 1) / bm, (hint(n) + bn - 1) / bn);
        pm * pn * hint(batch)
    };
    while programs(bm, bn) < gpu.multiprocessors as i64 && bm * bn > 1024 {
        if bm >= bn && bm > 16 {
            bm /= 2;
        } else if bn > 16 {
            bn /= 2;
        } else {
            break;
        }
    }
    let bk = power(hint(k)).min(match types.0.size() {
        1 | 2 => 64,
        4 => 32,
        _ => 16,
    });
    let warps = if bm * bn >= 128 * 128 { 8 } else { 4 };

    let builder = Builder::new(&flat, &[])?;
    refuse_locals(&builder)?;
    let dim = |axis: Axis, block: i64| Dim {
        sym: axis.sym,
        extent: axis.size,
        role: DimRole::Grid,
        block,
        exact: exact(ex, axis.size, block, DimRole::Grid),
    };
    let dims = vec![dim(batch, 1), dim(m, bm), dim(n, bn)];
    let mut block = finish(
        &builder,
        dims,
        origins(std::slice::from_ref(&c.epilogue)),
        warps,
        context,
    )?;
    let mut operand = |(buf, offset): (BufId, inrush_expr::Expr)| Operand {
        buf: argument(tables, &mut block, buf),
        offset,
    };
    block.product = Some(Product {
        a: operand(a),
        b: operand(b),
        k: k.sym,
        extent: k.size,
        block: bk,
        exact: exact(ex, k.size, bk, DimRole::Looped),
        dtype: c.dtype,
        group: 8,
    });
    block.stages = if narrow { 3 } else { 2 };
    set_arguments(ex, &mut block);
    renumber(&mut block);
    Ok(block)
}

/// The argument for a buffer that the product reads.
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
