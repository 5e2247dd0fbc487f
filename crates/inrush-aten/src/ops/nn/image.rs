//! Channels and pixels: rearrangements, gates, patches, similarities.
//!
//! Rearrangements are views and permutations only, which cost nothing until something reads them in
//! an order of its own. A division that is not exact at compile time is an error of the input.

use crate::ops::B;
use crate::ops::decomposed as row;
use crate::{Args, Builder, Row};
use inrush_base::{DType, Error, Result};
use inrush_expr::Expr;
use inrush_graph::{Arg, ValueId};

fn view(b: B, x: ValueId, sizes: Vec<Expr>) -> Result<ValueId> {
    b.call("aten.view.default", &[x.into(), sizes.into()])
}

/// Returns `size / by`; fails if it is not proved to be an integer.
fn exact(b: &Builder, what: &str, size: Expr, by: Expr) -> Result<Expr> {
    b.exprs
        .divide_exact(size, by)
        .ok_or_else(|| Error::input(format!("{what} is not a multiple of {}", b.exprs.show(by))))
}

/// Splits sizes into leading ones and channels, height and width.
fn image_sizes(b: &Builder, x: ValueId) -> Result<(Vec<Expr>, [Expr; 3])> {
    let sizes = b.sizes(x)?;
    match sizes.as_slice() {
        [lead @ .., c, h, w] => Ok((lead.to_vec(), [*c, *h, *w])),
        _ => Err(Error::input("an image must have three dimensions or more")),
    }
}

/// Permutes dimensions: the first `lead` stay, the others follow in the order `order`.
fn permute_tail(b: B, x: ValueId, lead: usize, order: &[usize]) -> Result<ValueId> {
    let mut dims: Vec<i64> = (0..lead as i64).collect();
    dims.extend(order.iter().map(|d| (lead + d) as i64));
    b.call("aten.permute.default", &[x.into(), b.ints(&dims)])
}

/// `[.., c * r * r, h, w] -> [.., c, h * r, w * r]`: pixel `(y, x)` of a block comes from channel
/// `y * r + x`.
fn pixel_shuffle(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let x = args.value("self")?;
    let r = args.int("upscale_factor")?;
    let (lead, [c, h, w]) = image_sizes(b, x)?;
    let channels = exact(b, "the number of channels", c, b.exprs.mul(r, r))?;
    let n = lead.len();
    let x = view(b, x, [&lead[..], &[channels, r, r, h, w]].concat())?;
    let x = permute_tail(b, x, n, &[0, 3, 1, 4, 2])?;
    let (h, w) = (b.exprs.mul(h, r), b.exprs.mul(w, r));
    Ok(vec![view(b, x, [&lead[..], &[channels, h, w]].concat())?])
}

/// Inverse of `pixel_shuffle`: `[.., c, h * r, w * r] -> [.., c * r * r, h, w]`.
fn pixel_unshuffle(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let x = args.value("self")?;
    let r = args.int("downscale_factor")?;
    let (lead, [c, h, w]) = image_sizes(b, x)?;
    let (h, w) = (exact(b, "the height", h, r)?, exact(b, "the width", w, r)?);
    let n = lead.len();
    let x = view(b, x, [&lead[..], &[c, h, r, w, r]].concat())?;
    let x = permute_tail(b, x, n, &[0, 2, 4, 1, 3])?;
    let channels = b.exprs.mul(c, b.exprs.mul(r, r));
    Ok(vec![view(b, x, [&lead[..], &[channels, h, w]].concat())?])
}

/// Transposes channels seen as `[groups, channels of a group]`.
fn channel_shuffle(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let x = args.value("self")?;
    let groups = args.int("groups")?;
    let sizes = b.sizes(x)?;
    let [n, c, rest @ ..] = sizes.as_slice() else {
        return Err(Error::input("the input must have two dimensions or more"));
    };
    let each = exact(b, "the number of channels", *c, groups)?;
    let x = view(b, x, [&[*n, groups, each], rest].concat())?;
    let x = b.call("aten.transpose.int", &[x.into(), b.int(1), b.int(2)])?;
    Ok(vec![view(b, x, sizes)?])
}

/// The first half of a dimension times the sigmoid of the second.
/// Computed in `f32` for halves and rounded once.
fn glu(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let x = args.value("self")?;
    let t = b.tensor(x)?;
    let dim = args.dim("dim", t.rank())?;
    let size = *t
        .sizes
        .get(dim)
        .ok_or_else(|| Error::input("a tensor without dimensions has no halves"))?;
    let half = exact(b, "the dimension", size, b.exprs.int(2))?;
    let d = b.int(dim as i64);
    let part = |b: B, x: ValueId, from: Expr, to: Expr| {
        b.call(
            "aten.slice.Tensor",
            &[x.into(), d.clone(), from.into(), to.into()],
        )
    };
    let zero = b.exprs.int(0);
    let x = b.widen(x)?;
    let (value, gate) = (part(b, x, zero, half)?, part(b, x, half, size)?);
    let gate = b.call("aten.sigmoid.default", &[gate.into()])?;
    let y = b.mul(value, gate)?;
    Ok(vec![b.cast(y, t.dtype)?])
}

/// Patches as columns: `[n, c * kernel, positions]`.
/// Windows are `unfold` views of the padded image, one spatial dimension after the other.
fn im2col(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let x = args.value("self")?;
    let sizes = b.sizes(x)?;
    let &[n, c, _, _] = sizes.as_slice() else {
        return Err(Error::unsupported(
            "patches of other than a batch of images",
        ));
    };
    let two = |name: &str| -> Result<[i64; 2]> {
        match args.const_ints(name)?.as_slice() {
            [a] => Ok([*a, *a]),
            [a, b] => Ok([*a, *b]),
            _ => Err(args.unsupported(name, "two numbers are needed")),
        }
    };
    let (kernel, dilation) = (two("kernel_size")?, two("dilation")?);
    let (padding, stride) = (two("padding")?, two("stride")?);
    if padding.iter().any(|p| *p < 0) {
        return Err(args.unsupported("padding", "must not be negative"));
    }
    let pads = b.ints(&[padding[1], padding[1], padding[0], padding[0]]);
    let mut x = b.call("aten.constant_pad_nd.default", &[x.into(), pads])?;
    // A window of the dilated kernel's span at each position, then every `dilation`th of its elements.
    for d in 0..2 {
        let span = (kernel[d] - 1) * dilation[d] + 1;
        let at = b.int(2 + d as i64);
        x = b.call(
            "aten.unfold.default",
            &[x.into(), at, b.int(span), b.int(stride[d])],
        )?;
        let last = b.int(-1);
        x = b.call(
            "aten.slice.Tensor",
            &[x.into(), last, b.int(0), b.int(span), b.int(dilation[d])],
        )?;
    }
    // [n, c, rows, columns, kernel row, kernel column]
    let x = b.call(
        "aten.permute.default",
        &[x.into(), b.ints(&[0, 1, 4, 5, 2, 3])],
    )?;
    let t = b.sizes(x)?;
    let taps = b.exprs.product([c, t[2], t[3]]);
    let places = b.exprs.mul(t[4], t[5]);
    Ok(vec![view(b, x, vec![n, taps, places])?])
}

/// Sum of `x * y` along `dim`.
fn dot(b: B, x: ValueId, y: ValueId, dim: &Arg) -> Result<ValueId> {
    let product = b.mul(x, y)?;
    b.call(
        "aten.sum.dim_IntList",
        &[product.into(), dim.clone(), false.into()],
    )
}

/// The dot product of both inputs, each divided by its norm, which counts as `eps` at least.
/// The divisions come before the product: a product of two norms could overflow where neither does.
fn cosine_similarity(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let (x, y) = (args.value("x1")?, args.value("x2")?);
    let dtype = inrush_base::promote(b.dtype(x)?, b.dtype(y)?);
    let sizes = crate::meta::broadcast(b.exprs, &b.sizes(x)?, &b.sizes(y)?)?;
    let dim = b.ints(&[args.dim("dim", sizes.len())? as i64]);
    let eps = args.float("eps")?;
    let mut unit = Vec::new();
    for v in [x, y] {
        // Norms of halves are taken in `f32`.
        let v = b.cast(v, dtype.compute())?;
        let v = b.call("aten.expand.default", &[v.into(), sizes.clone().into()])?;
        let square = b.mul(v, v)?;
        let sum = b.call(
            "aten.sum.dim_IntList",
            &[square.into(), dim.clone(), true.into()],
        )?;
        let norm = b.call("aten.sqrt.default", &[sum.into()])?;
        let norm = b.call("aten.clamp_min.default", &[norm.into(), Arg::Float(eps)])?;
        unit.push(b.div(v, norm)?);
    }
    let y = dot(b, unit[0], unit[1], &dim)?;
    Ok(vec![b.cast(y, dtype)?])
}

/// The `p`-norm of `x1 - x2 + eps` along the last dimension.
/// `eps` is added to the difference, not to the norm.
fn pairwise_distance(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let (x, y) = (args.value("x1")?, args.value("x2")?);
    let d = b.sub(x, y)?;
    let d = b.call(
        "aten.add.Tensor",
        &[d.into(), Arg::Float(args.float("eps")?)],
    )?;
    let norm = b.call(
        "aten.linalg_vector_norm.default",
        &[
            d.into(),
            Arg::Float(args.float("p")?),
            b.ints(&[-1]),
            args.bool("keepdim")?.into(),
        ],
    )?;
    Ok(vec![norm])
}

/// `sum over i, j of x1[.., i] * weight[o, i, j] * x2[.., j] + bias[o]`.
fn bilinear(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let (x, y, w) = (
        args.value("input1")?,
        args.value("input2")?,
        args.value("weight")?,
    );
    let mut out = b.call(
        "aten.einsum.default",
        &[
            Arg::Str("...i,oij,...j->...o".into()),
            Arg::Values(vec![Some(x), Some(w), Some(y)]),
        ],
    )?;
    if let Some(c) = args.opt_value("bias")? {
        out = b.add(out, c)?;
    }
    Ok(vec![out])
}

/// Every element of the first times all of the second.
/// Dimensions of both alternate, `[a0, 1, a1, 1]` times `[1, c0, 1, c1]`, and pairs are merged.
fn kron(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let (x, y) = (args.value("self")?, args.value("other")?);
    let (mut a, mut c) = (b.sizes(x)?, b.sizes(y)?);
    let one = b.exprs.int(1);
    let rank = a.len().max(c.len());
    // Missing dimensions are leading ones of size 1.
    a.splice(0..0, vec![one; rank - a.len()]);
    c.splice(0..0, vec![one; rank - c.len()]);
    let apart = |s: &[Expr], first: bool| -> Vec<Expr> {
        s.iter()
            .flat_map(|s| if first { [*s, one] } else { [one, *s] })
            .collect()
    };
    let x = view(b, x, apart(&a, true))?;
    let y = view(b, y, apart(&c, false))?;
    let product = b.mul(x, y)?;
    let sizes = a.iter().zip(&c).map(|(p, q)| b.exprs.mul(*p, *q)).collect();
    Ok(vec![view(b, product, sizes)?])
}

/// Distances between all rows of two matrices, by differences.
/// `[.., r1, f]` and `[.., r2, f]` give `[.., r1, r2]`. Eager may use a matrix product for `p = 2`,
/// which is faster and loses digits; `compute_mode` is not read.
fn cdist(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let (x, y) = (args.value("x1")?, args.value("x2")?);
    if b.dtype(x)? == DType::F16 {
        return Err(Error::unsupported("distances of dtype f16"));
    }
    let column = b.call("aten.unsqueeze.default", &[x.into(), b.int(-2)])?;
    let row = b.call("aten.unsqueeze.default", &[y.into(), b.int(-3)])?;
    let d = b.sub(column, row)?;
    let norm = b.call(
        "aten.linalg_vector_norm.default",
        &[d.into(), Arg::Float(args.float("p")?), b.ints(&[-1])],
    )?;
    Ok(vec![norm])
}

pub const ROWS: &[Row] = &[
    row(
        "aten.pixel_shuffle.default",
        "(Tensor self, int upscale_factor) -> Tensor",
        pixel_shuffle,
        "(f32[2,8,3,3], 2)",
    ),
    row(
        "aten.pixel_unshuffle.default",
        "(Tensor self, int downscale_factor) -> Tensor",
        pixel_unshuffle,
        "(f32[2,2,4,6], 2)",
    ),
    row(
        "aten.channel_shuffle.default",
        "(Tensor self, SymInt groups) -> Tensor",
        channel_shuffle,
        "(f32[2,6,3,3], 2)",
    ),
    row(
        "aten.glu.default",
        "(Tensor self, int dim=-1) -> Tensor",
        glu,
        "(f32[2,6], 1)",
    ),
    row(
        "aten.im2col.default",
        "(Tensor self, int[2] kernel_size, int[2] dilation, int[2] padding, int[2] stride) -> Tensor",
        im2col,
        "(f32[2,3,6,5], [2,3], [2,1], [1,0], [1,2])",
    ),
    row(
        "aten.cosine_similarity.default",
        "(Tensor x1, Tensor x2, int dim=1, float eps=1e-08) -> Tensor",
        cosine_similarity,
        "(f32[3,4], f32[3,4])",
    ),
    row(
        "aten.pairwise_distance.default",
        "(Tensor x1, Tensor x2, float p=2.0, float eps=1e-06, bool keepdim=False) -> Tensor",
        pairwise_distance,
        "(f32[3,4], f32[3,4])",
    ),
    row(
        "aten.bilinear.default",
        "(Tensor input1, Tensor input2, Tensor weight, Tensor? bias=None) -> Tensor",
        bilinear,
        "(f32[3,4], f32[3,5], f32[2,4,5], f32[2])",
    ),
    row(
        "aten.kron.default",
        "(Tensor self, Tensor other) -> Tensor",
        kron,
        "(f32[2,3], f32[4])",
    ),
    row(
        "aten.cdist.default",
        "(Tensor x1, Tensor x2, float p=2.0, int? compute_mode=None) -> Tensor",
        cdist,
        "(f32[2,3,4], f32[2,5,4])",
    ),
];
