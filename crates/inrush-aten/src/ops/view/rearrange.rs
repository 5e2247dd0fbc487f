//! The same elements in another arrangement, which eager PyTorch copies for: flips, rolls, repetitions, padding by
//! neighbours. Here they are coordinate maps as any view.
//!
//! ```text
//! flip      y[i] = x[n - 1 - i]                 roll     y[i] = x[(i - shift) % n]
//! repeat    y[i] = x[i % n]                     repeat_interleave   y[i] = x[i // repeats]
//! reflect   y[i] = x[|i - before|] ...          replicate           y[i] = x[clamp(i - before)]
//! ```
//!
//! None of these has strides that PyTorch could return, so eager copies; a consumer here reads the
//! source through the map. Constant padding is the exception: it has elements that are no element
//! of the source, so it is a masked load in a body of its own.

use crate::ops::view::shape::view;
use crate::view::{index, indices};
use crate::{Args, Builder, Call, Lower, Meta, Route, Row, Tensor, View, meta};
use inrush_base::{Error, Result};
use inrush_expr::{Expr, Exprs};
use inrush_graph::{Arg, Type, ValueId};
use inrush_loops::{ScalarOp as S, StmtId};

/// Reverses `dims`. Those beyond the rank are ignored: a number has nothing to flip.
fn flip_dims(c: &Call, dims: &[usize]) -> Result<Vec<View>> {
    let (e, t) = (c.exprs, c.viewed()?);
    let mut map = indices(e, &t.sizes);
    for d in dims.iter().filter(|d| **d < t.rank()) {
        map[*d] = e.sub(e.sub(t.sizes[*d], e.int(1)), map[*d]);
    }
    Ok(vec![View {
        sizes: t.sizes.clone(),
        map,
    }])
}

/// Reverses dimension `dim`, which the tensor must have: `fliplr` of a vector is an error.
fn flip_dim(c: &Call, dim: usize) -> Result<Vec<View>> {
    let rank = c.viewed()?.rank();
    if rank <= dim {
        return Err(Error::input(format!(
            "the tensor must have at least {} dimensions, has {rank}",
            dim + 1
        )));
    }
    flip_dims(c, &[dim])
}

/// Reverses the dimensions that the call names.
fn flip(c: &Call) -> Result<Vec<View>> {
    let dims = c.dims("dims", c.viewed()?.rank())?;
    flip_dims(c, &dims)
}

/// `i - shift` around a dimension of this size.
/// The shift is made non-negative first, so that the remainder's operand is.
fn rolled(e: &Exprs, i: Expr, shift: Expr, size: Expr) -> Expr {
    if e.is_int(size, 0) || e.is_int(size, 1) {
        return i;
    }
    let back = e.modulo(e.neg(shift), size);
    e.modulo(e.add(i, back), size)
}

/// Without dimensions the flattened tensor is rolled.
fn roll(c: &Call) -> Result<Vec<View>> {
    let (e, t) = (c.exprs, c.viewed()?);
    let (shifts, dims) = (c.ints("shifts")?, c.const_ints("dims")?);
    let mut map = indices(e, &t.sizes);
    if dims.is_empty() {
        let [shift] = shifts else {
            return Err(Error::input("roll without dimensions takes one shift"));
        };
        // Elements move across rows: the whole tensor is one row.
        let linear = rolled(e, View::ravel(e, &map, &t.sizes), *shift, t.numel(e));
        map = View::unravel(e, linear, &t.sizes);
    } else if shifts.len() != dims.len() {
        return Err(Error::input("roll: shifts and dims differ in length"));
    } else {
        for (shift, d) in shifts.iter().zip(dims) {
            let d = crate::call::wrap_dim(d, t.rank())?;
            if d < t.rank() {
                map[d] = rolled(e, map[d], *shift, t.sizes[d]);
            }
        }
    }
    Ok(vec![View {
        sizes: t.sizes.clone(),
        map,
    }])
}

/// `repeat` and `tile`: copies along each dimension; new dimensions come in front.
/// `repeats` has one number for each dimension of the result.
fn repeat_with(c: &Call, repeats: &[Expr]) -> Result<Vec<View>> {
    let (e, t) = (c.exprs, c.viewed()?);
    let lead = repeats
        .len()
        .checked_sub(t.rank())
        .ok_or_else(|| Error::input("fewer repeats than dimensions"))?;
    let sizes: Vec<Expr> = repeats
        .iter()
        .enumerate()
        .map(|(d, r)| match d.checked_sub(lead) {
            Some(k) => e.mul(t.sizes[k], *r),
            None => *r,
        })
        .collect();
    let map = (0..t.rank())
        .map(|k| {
            let (d, size) = (lead + k, t.sizes[k]);
            // A remainder by 0 would mean nothing; no point exists that could read.
            if e.is_int(size, 0) {
                e.int(0)
            } else {
                e.modulo(index(e, d, sizes[d]), size)
            }
        })
        .collect();
    Ok(vec![View { sizes, map }])
}

/// As `repeat`, but missing numbers are 1.
fn tile(c: &Call) -> Result<Vec<View>> {
    let dims = c.ints("dims")?;
    let missing = c.viewed()?.rank().saturating_sub(dims.len());
    let mut repeats = vec![c.exprs.int(1); missing];
    repeats.extend(dims);
    repeat_with(c, &repeats)
}

/// Without `dim` the flattened tensor is repeated.
fn repeat_interleave(c: &Call) -> Result<Vec<View>> {
    let (e, t) = (c.exprs, c.viewed()?);
    let repeats = c.int("repeats")?;
    if c.given("dim") && t.rank() > 0 {
        let d = c.dim("dim", t.rank())?;
        let mut sizes = t.sizes.clone();
        sizes[d] = e.mul(sizes[d], repeats);
        let mut map = indices(e, &sizes);
        map[d] = e.floordiv(map[d], repeats);
        return Ok(vec![View { sizes, map }]);
    }
    let sizes = vec![e.mul(t.numel(e), repeats)];
    // Without `dim` the result has one dimension, and positions are row-major.
    let linear = e.floordiv(index(e, 0, sizes[0]), repeats);
    Ok(vec![View {
        map: View::unravel(e, linear, &t.sizes),
        sizes,
    }])
}

/// How a coordinate outside the tensor is brought inside.
#[derive(Copy, Clone, PartialEq)]
enum Pad {
    /// Mirrored at the outermost element, which is not repeated.
    Reflect,
    /// The outermost element.
    Replicate,
    /// The element at the other end.
    Circular,
}

/// Amounts before and after each dimension; the argument names the last dimension first.
fn pad_amounts(c: &Call, rank: usize) -> Result<Vec<(Expr, Expr)>> {
    let pad = c.ints("pad").or_else(|_| c.ints("padding"))?;
    if pad.len() % 2 != 0 || pad.len() / 2 > rank {
        return Err(Error::input("padding of more dimensions than there are"));
    }
    let zero = c.exprs.int(0);
    let mut out = vec![(zero, zero); rank];
    for (k, pair) in pad.chunks(2).enumerate() {
        out[rank - 1 - k] = (pair[0], pair[1]);
    }
    Ok(out)
}

/// Negative amounts cut.
fn padded_sizes(e: &Exprs, sizes: &[Expr], amounts: &[(Expr, Expr)]) -> Vec<Expr> {
    sizes
        .iter()
        .zip(amounts)
        .map(|(s, (a, b))| e.add(e.add(*s, *a), *b))
        .collect()
}

/// Amounts must be proved at most what one fold or one round brings inside: `size - 1` for a
/// reflection, `size` for a circle.
fn pad_by(c: &Call, mode: Pad) -> Result<Vec<View>> {
    let (e, t) = (c.exprs, c.viewed()?);
    let amounts = pad_amounts(c, t.rank())?;
    let sizes = padded_sizes(e, &t.sizes, &amounts);
    let one = e.int(1);
    let mut map = indices(e, &sizes);
    for (d, (before, after)) in amounts.iter().enumerate() {
        let (size, last) = (t.sizes[d], e.sub(t.sizes[d], one));
        // Leaves the coordinate a plain index, which later passes analyse best.
        if e.is_int(*before, 0) && e.is_int(*after, 0) {
            continue;
        }
        let i = e.sub(map[d], *before);
        let largest = match mode {
            Pad::Reflect => last,
            Pad::Circular => size,
            // No bound, and small enough for sums not to overflow.
            Pad::Replicate => e.int(i64::MAX / 4),
        };
        if !e.prove_le(*before, largest) || !e.prove_le(*after, largest) || e.is_int(size, 0) {
            return Err(Error::input(format!(
                "padding {} and {} of a dimension of size {}",
                e.show(*before),
                e.show(*after),
                e.show(size)
            )));
        }
        let abs = |x: Expr| e.max(x, e.neg(x));
        map[d] = match mode {
            Pad::Reflect => {
                // Mirrors at 0 first, then at the last element; each only where there is padding.
                let left = if e.is_int(*before, 0) { i } else { abs(i) };
                if e.is_int(*after, 0) {
                    left
                } else {
                    e.sub(last, abs(e.sub(last, left)))
                }
            }
            Pad::Replicate => e.min(e.max(i, e.int(0)), last),
            // One more round keeps the operand of the remainder positive.
            Pad::Circular => e.modulo(e.add(i, size), size),
        };
    }
    Ok(vec![View { sizes, map }])
}

/// Amounts may cut a dimension down to 0, not below.
fn constant_pad_meta(c: &Call) -> Result<Vec<Type>> {
    let t = c.tensor("self")?;
    let sizes = padded_sizes(c.exprs, &t.sizes, &pad_amounts(c, t.rank())?);
    for s in &sizes {
        if c.exprs.range(*s).hi < 0 {
            return Err(Error::input("padding leaves a negative size"));
        }
    }
    meta::one(c.exprs, t.dtype, sizes)
}

/// Reads under a mask that is true inside the tensor.
/// Tests that ranges prove, as on a side without padding, are left out of the mask.
fn constant_pad<'g>(lw: &mut Lower<'g>, call: &Call<'g>) -> Result<Vec<Tensor>> {
    let t = lw.arg(call, "self")?;
    let amounts = pad_amounts(call, t.sizes.len())?;
    let fill = call.scalar("value")?;
    let sizes = call.out(0)?.sizes.clone();
    let mut body = lw.body(&sizes);
    let e = body.exprs;
    let mut at = body.outer();
    let mut inside: Option<StmtId> = None;
    for (d, (before, _)) in amounts.iter().enumerate() {
        // Negative amounts move the start into the tensor.
        at[d] = e.sub(at[d], *before);
        let mut require = |body: &mut crate::BodyBuilder, op: S, bound: Expr| {
            let (x, y) = (body.index_value(at[d]), body.index_value(bound));
            let m = body.op(op, &[x, y]);
            inside = Some(match inside {
                Some(i) => body.op(S::And, &[i, m]),
                None => m,
            });
        };
        if !e.prove_nonneg(at[d]) {
            require(&mut body, S::Ge, e.int(0));
        }
        if !e.prove_lt(at[d], t.sizes[d]) {
            require(&mut body, S::Lt, t.sizes[d]);
        }
    }
    let v = match inside {
        Some(mask) => body.load_masked(&t, &at, mask, fill.convert(t.dtype)),
        None => body.load(&t, &at),
    };
    Ok(vec![lw.store_new(body, v, t.dtype, &sizes)])
}

/// `torch.nn.functional.pad`: dispatches on mode and number of dimensions.
fn pad(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let (x, pad) = (args.value("self")?, args.ints("pad")?.to_vec());
    let dims = pad.len() / 2;
    let op = match (args.str("mode")?, dims) {
        ("constant", _) => {
            let value = match args.opt_scalar("value")? {
                Some(s) => b.scalar(s),
                None => b.int(0),
            };
            return Ok(vec![b.call(
                "aten.constant_pad_nd.default",
                &[x.into(), pad.into(), value],
            )?]);
        }
        ("reflect", 1) => "aten.reflection_pad1d.default",
        ("reflect", 2) => "aten.reflection_pad2d.default",
        ("reflect", 3) => "aten.reflection_pad3d.default",
        ("replicate", 1) => "aten.replication_pad1d.default",
        ("replicate", 2) => "aten.replication_pad2d.default",
        ("replicate", 3) => "aten.replication_pad3d.default",
        ("circular", _) => "aten._pad_circular.default",
        _ => return Err(args.unsupported("mode", "with this number of dimensions")),
    };
    Ok(vec![b.call(op, &[x.into(), Arg::Ints(pad)])?])
}

const PAD_SCHEMA: &str = "(Tensor self, SymInt[] padding) -> Tensor";

pub const ROWS: &[Row] = &[
    view(
        "aten.flip.default",
        "(Tensor self, int[] dims) -> Tensor",
        flip,
        "(f32[2,3], [0,-1])",
    ),
    view(
        "aten.fliplr.default",
        "(Tensor self) -> Tensor",
        |c| flip_dim(c, 1),
        "(f32[2,3])",
    ),
    view(
        "aten.flipud.default",
        "(Tensor self) -> Tensor",
        |c| flip_dim(c, 0),
        "(f32[2,3])",
    ),
    view(
        "aten.roll.default",
        "(Tensor self, SymInt[1] shifts, int[1] dims=[]) -> Tensor",
        roll,
        "(f32[4,5], [1,-2], [0,1])",
    ),
    view(
        "aten.repeat.default",
        "(Tensor self, SymInt[] repeats) -> Tensor",
        |c| repeat_with(c, c.ints("repeats")?),
        "(f32[2,3], [2,1,3])",
    ),
    view(
        "aten.tile.default",
        "(Tensor self, SymInt[] dims) -> Tensor",
        tile,
        "(f32[2,3], [2])",
    ),
    view(
        "aten.repeat_interleave.self_int",
        "(Tensor self, SymInt repeats, int? dim=None, *, SymInt? output_size=None) -> Tensor",
        repeat_interleave,
        "(f32[2,3], 2, 1)",
    ),
    view(
        "aten.reflection_pad1d.default",
        PAD_SCHEMA,
        |c| pad_by(c, Pad::Reflect),
        "(f32[2,5], [2,1])",
    ),
    view(
        "aten.reflection_pad2d.default",
        PAD_SCHEMA,
        |c| pad_by(c, Pad::Reflect),
        "(f32[2,4,5], [1,1,2,0])",
    ),
    view(
        "aten.reflection_pad3d.default",
        PAD_SCHEMA,
        |c| pad_by(c, Pad::Reflect),
        "(f32[2,3,4,5], [1,1,2,0,1,1])",
    ),
    view(
        "aten.replication_pad1d.default",
        PAD_SCHEMA,
        |c| pad_by(c, Pad::Replicate),
        "(f32[2,5], [2,7])",
    ),
    view(
        "aten.replication_pad2d.default",
        PAD_SCHEMA,
        |c| pad_by(c, Pad::Replicate),
        "(f32[2,4,5], [1,1,2,0])",
    ),
    view(
        "aten.replication_pad3d.default",
        PAD_SCHEMA,
        |c| pad_by(c, Pad::Replicate),
        "(f32[2,3,4,5], [1,1,2,0,1,1])",
    ),
    view(
        "aten._pad_circular.default",
        "(Tensor self, SymInt[] pad) -> Tensor",
        |c| pad_by(c, Pad::Circular),
        "(f32[2,5], [2,3])",
    ),
    Row {
        name: "aten.constant_pad_nd.default",
        schema: "(Tensor self, SymInt[] pad, Scalar value=0) -> Tensor",
        meta: Meta::Fn(constant_pad_meta),
        route: Route::Lower(constant_pad),
        example: "(f32[3,4], [1,-1,2,0], 0.5)",
        props: &[],
    },
    Row {
        name: "aten.pad.default",
        schema: "(Tensor self, SymInt[] pad, str mode='constant', float? value=None) -> Tensor",
        meta: Meta::Route,
        route: Route::Decompose(pad),
        example: "(f32[2,3,4], [1,2], \"reflect\")",
        props: &[],
    },
];
