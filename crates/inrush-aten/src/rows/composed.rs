//! Operators that are a few calls of others and belong to no larger family.

use super::decomposed as row;
use crate::{Args, Builder, Row};
use inrush_base::{Error, Result};
use inrush_graph::{Arg, ValueId};

/// `x > 0 ? x : weight * x`, one weight or one for each channel (dimension 1).
fn prelu(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let (x, mut w) = (args.value("self")?, args.value("weight")?);
    let rank = b.rank(x)?;
    if b.rank(w)? == 1 && rank != 1 {
        let mut sizes = vec![1i64; rank];
        if rank > 1 {
            sizes[1] = -1;
        }
        let sizes = b.ints(&sizes);
        w = b.call("aten.view.default", &[w.into(), sizes])?;
    }
    let zero = b.int(0);
    let above = b.call("aten.gt.Scalar", &[x.into(), zero])?;
    let below = b.call("aten.mul.Tensor", &[w.into(), x.into()])?;
    Ok(vec![b.call(
        "aten.where.self",
        &[above.into(), x.into(), below.into()],
    )?])
}

/// A quarter turn is a flip and a transpose.
fn rot90(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let x = args.value("self")?;
    let dims = args.dims("dims", b.rank(x)?)?;
    let [d0, d1] = dims[..] else {
        return Err(Error::input("a rotation is in a plane of two dimensions"));
    };
    let (d0, d1) = (d0 as i64, d1 as i64);
    let flip = |b: &mut Builder, x: ValueId, dims: &[i64]| {
        let dims = b.ints(dims);
        b.call("aten.flip.default", &[x.into(), dims])
    };
    let turn = |b: &mut Builder, x: ValueId| {
        let (d0, d1) = (b.int(d0), b.int(d1));
        b.call("aten.transpose.int", &[x.into(), d0, d1])
    };
    let out = match args.const_int("k")?.rem_euclid(4) {
        0 => b.call("aten.clone.default", &[x.into()])?,
        1 => {
            let y = flip(b, x, &[d1])?;
            turn(b, y)?
        }
        2 => flip(b, x, &[d0, d1])?,
        _ => {
            let y = flip(b, x, &[d0])?;
            turn(b, y)?
        }
    };
    Ok(vec![out])
}

/// Of a matrix its diagonal, of a vector the matrix that has it.
fn diag(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let x = args.value("self")?;
    let offset: Arg = args.arg("diagonal")?.clone();
    let op = match b.rank(x)? {
        1 => "aten.diag_embed.default",
        2 => "aten.diagonal.default",
        n => {
            return Err(Error::input(format!(
                "diag of {n} dimensions, not of 1 or 2"
            )));
        }
    };
    Ok(vec![b.call(op, &[x.into(), offset])?])
}

pub const ROWS: &[Row] = &[
    row(
        "aten.prelu.default",
        "(Tensor self, Tensor weight) -> Tensor",
        prelu,
        "(f32[2,3,4], f32[3])",
    ),
    row(
        "aten.rot90.default",
        "(Tensor self, int k=1, int[] dims=[0,1]) -> Tensor",
        rot90,
        "(f32[2,3], 3, [0,1])",
    ),
    row(
        "aten.diag.default",
        "(Tensor self, int diagonal=0) -> Tensor",
        diag,
        "(f32[3,4], 1)",
    ),
];
