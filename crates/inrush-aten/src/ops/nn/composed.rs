//! Operators that are a few calls of others and belong to no larger family.

use crate::ops::decomposed as row;
use crate::{Args, Builder, Processor, Row};
use inrush_base::{DType, Error, Result, Scalar};
use inrush_graph::{Arg, ValueId};

/// `x > 0 ? x : weight * x`, one weight or one for each channel (dimension 1).
fn prelu(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let (x, mut w) = (args.value("self")?, args.value("weight")?);
    let rank = b.rank(x)?;
    if b.rank(w)? == 1 && rank != 1 {
        let mut sizes = vec![1i64; rank];
        // All sizes but that of the channels are 1, so that the weights broadcast.
        if rank > 1 {
            sizes[1] = -1;
        }
        let sizes = b.ints(&sizes);
        w = b.call("aten.view.default", &[w.into(), sizes])?;
    }
    let zero = b.int(0);
    // NaN takes the product, which is NaN.
    let above = b.call("aten.gt.Scalar", &[x.into(), zero])?;
    let below = b.mul(w, x)?;
    Ok(vec![b.call(
        "aten.where.self",
        &[above.into(), x.into(), below.into()],
    )?])
}

/// A quarter turn is a flip and a transpose.
/// `k` counts quarter turns from the first dimension of `dims` towards the second; it wraps at 4.
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

/// `dy/dx` is 1 or the weight, `dy/dweight` 0 or `x`.
/// The weight's gradient has the input's sizes here; autograd sums it to the weight's.
fn prelu_backward(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let (g, x, w) = (
        args.value("grad_output")?,
        args.value("self")?,
        args.value("weight")?,
    );
    let above = b.by("aten.gt.Scalar", x, 0.0)?;
    let scaled = b.mul(w, g)?;
    let to_input = b.select(above, g, scaled)?;
    let below = b.unary("aten.logical_not.default", above)?;
    let product = b.mul(x, g)?;
    Ok(vec![to_input, b.select_or(below, product, 0.0)?])
}

/// With `y = a sigmoid(c)`: `s g` to the first half and `a g s (1 - s)` to the second.
fn glu_backward(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let (g, x) = (args.value("grad_output")?, args.value("self")?);
    let t = b.tensor(x)?;
    let dim = args.dim("dim", t.rank())?;
    let two = b.exprs.int(2);
    let half = t
        .sizes
        .get(dim)
        .and_then(|s| b.exprs.divide_exact(*s, two))
        .ok_or_else(|| Error::input("the dimension must have an even size"))?;
    let (g, x) = (b.widen(g)?, b.widen(x)?);
    let a = b.narrow(x, dim, b.exprs.int(0), half)?;
    let c = b.narrow(x, dim, half, half)?;
    let s = b.unary("aten.sigmoid.default", c)?;
    let first = b.mul(s, g)?;
    let rest = b.call("aten.rsub.Scalar", &[s.into(), Arg::Float(1.0)])?;
    let slope = b.mul(rest, first)?;
    let second = b.mul(slope, a)?;
    let both = Arg::Values(vec![Some(first), Some(second)]);
    let out = b.call("aten.cat.default", &[both, b.int(dim as i64)])?;
    Ok(vec![b.cast(out, t.dtype)?])
}

/// `log_sigmoid` and the `exp(-|x|)` that its gradient may use; on some devices that is left empty.
fn log_sigmoid_forward(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let x = args.value("self")?;
    let y = b.unary("aten.log_sigmoid.default", x)?;
    let (numel, dtype) = (b.exprs.product(b.sizes(x)?), b.dtype(x)?);
    let empty = b
        .declared(1)
        .map(|t| t.sizes.clone())
        .filter(|s| b.exprs.product(s.iter().copied()) != numel);
    let buffer = match empty {
        Some(sizes) => b.full(&sizes, 0.0, dtype)?,
        None => {
            let size = b.unary("aten.abs.default", x)?;
            let minus = b.unary("aten.neg.default", size)?;
            b.unary("aten.exp.default", minus)?
        }
    };
    Ok(vec![y, buffer])
}

/// The gradient where the mask kept it, scaled; the scale is rounded to the gradient's dtype.
fn dropout_backward(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let (g, mask) = (args.value("grad_output")?, args.value("mask")?);
    let dtype = b.dtype(g)?;
    let kept = b.cast(mask, dtype)?;
    let kept = b.mul(g, kept)?;
    Ok(vec![b.scale(kept, args.float("scale")?)?])
}

/// Sum of the diagonal of a matrix.
fn trace(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let x = args.value("self")?;
    if b.rank(x)? != 2 {
        return Err(Error::input("the trace of a matrix"));
    }
    let d = b.unary("aten.diagonal.default", x)?;
    Ok(vec![b.unary("aten.sum.default", d)?])
}

/// The `p`-norm of the difference.
fn dist(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let d = b.sub(args.value("self")?, args.value("other")?)?;
    let p = args.arg("p")?.clone();
    Ok(vec![b.call("aten.norm.Scalar", &[d.into(), p])?])
}

/// `x 2^n`.
/// The power is a float, so that integers promote.
fn ldexp(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let (x, n) = (args.value("self")?, args.value("other")?);
    let two = b.call("aten.pow.Scalar", &[Arg::Float(2.0), n.into()])?;
    Ok(vec![b.mul(x, two)?])
}

/// The sum of products of three factors, each with dimensions of size 1 put in.
/// The `expand` lists name dimensions of the expanded factor. They are inserted in ascending order,
/// so that each name is right when its turn comes.
fn trilinear(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let mut product: Option<ValueId> = None;
    let mut dtype = DType::F32;
    for (name, expand) in [("i1", "expand1"), ("i2", "expand2"), ("i3", "expand3")] {
        let x = args.value(name)?;
        dtype = b.dtype(x)?;
        let mut x = b.widen(x)?;
        let mut dims = args.const_ints(expand)?;
        dims.sort_unstable();
        for d in dims {
            let d = b.int(d);
            x = b.call("aten.unsqueeze.default", &[x.into(), d])?;
        }
        product = Some(match product {
            Some(p) => b.mul(p, x)?,
            None => x,
        });
    }
    let product = product.ok_or_else(|| Error::internal("no factors"))?;
    let sum = b.sum(product, &args.const_ints("sumdim")?, false)?;
    Ok(vec![b.cast(sum, dtype)?])
}

/// `beta self + alpha vec1 vec2^T`.
/// With `beta = 0` the input is not read, so its NaN do not count.
fn addr(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let (x, u, v) = (
        args.value("self")?,
        args.value("vec1")?,
        args.value("vec2")?,
    );
    let dtype = b.dtype(x)?;
    // All devices take both in the same way.
    let number = |name| -> Result<Scalar> {
        let number = args.number_of(name, Processor::Cpu);
        Ok(number.round(args.scalar(name)?, dtype))
    };
    let (alpha, beta) = (number("alpha")?, number("beta")?);
    let mut outer = b.call("aten.outer.default", &[u.into(), v.into()])?;
    if [x, outer]
        .iter()
        .all(|v| b.dtype(*v).is_ok_and(|d| d == DType::Bool))
    {
        // A number is a bool as well here.
        // Products of bools are conjunctions, sums disjunctions.
        let both = |b: &mut Builder, x: ValueId, number: Scalar| {
            b.call(
                "aten.logical_and.default",
                &[x.into(), b.scalar(Scalar::Bool(number.as_bool()))],
            )
        };
        let (x, outer) = (both(b, x, beta)?, both(b, outer, alpha)?);
        return Ok(vec![
            b.call("aten.logical_or.default", &[x.into(), outer.into()])?,
        ]);
    }
    if alpha.as_f64() != 1.0 {
        // Eager multiplies the column first, which matters where products are rounded.
        let u = b.cast(u, b.dtype(outer)?)?;
        let u = b.call("aten.mul.Tensor", &[u.into(), b.scalar(alpha)])?;
        outer = b.call("aten.outer.default", &[u.into(), v.into()])?;
    }
    if beta.as_f64() == 0.0 {
        return Ok(vec![outer]);
    }
    let scaled = match beta.as_f64() {
        1.0 => x,
        _ => b.call("aten.mul.Tensor", &[x.into(), b.scalar(beta)])?,
    };
    Ok(vec![b.add(scaled, outer)?])
}

/// `start + i * step` counted from the nearer end, for ends that only a call knows.
fn linspace(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let dtype = args.dtype("dtype")?.unwrap_or(DType::F32);
    // Integers lie between whole ends.
    let whole = (!dtype.is_float()).then_some(dtype);
    let wide = match whole {
        Some(_) => DType::F64,
        None => dtype.compute(),
    };
    let v = spaced(b, args, whole, wide)?;
    Ok(vec![b.cast(v, dtype)?])
}

/// `steps` numbers from `start` to `end` in `wide`; ends are converted to the integers `whole` first.
/// Counting from the nearer end makes both ends exact and the sequence symmetric.
fn spaced(b: &mut Builder, args: &Args, whole: Option<DType>, wide: DType) -> Result<ValueId> {
    let steps = args.const_int("steps")?;
    let end = |b: &mut Builder, name: &str| match (args.arg(name)?, whole) {
        (Arg::Value(v), _) if b.tensor(*v).is_ok() => {
            let v = match whole {
                Some(dtype) => b.cast(*v, dtype)?,
                None => *v,
            };
            b.cast(v, wide)
        }
        (_, Some(DType::U8)) if args.float(name)? < 0.0 => {
            Err(args.unsupported(name, "negative, of unsigned numbers"))
        }
        (_, Some(_)) => b.full(&[], args.float(name)?.trunc(), wide),
        (_, None) => b.full(&[], args.float(name)?, wide),
    };
    let (first, last) = (end(b, "start")?, end(b, "end")?);
    let here = b.call("aten.arange.default", &[b.int(steps), wide.into()])?;
    let half = b.by("aten.lt.Scalar", here, (steps / 2) as f64)?;
    // A single number is `start`, but `0 < 1 / 2` is false with integers.
    let half = match steps {
        1 => b.unary("aten.logical_not.default", half)?,
        _ => half,
    };
    let span = b.sub(last, first)?;
    // One step more than none keeps the divisor above zero; it is multiplied by 0 then.
    let step = b.by("aten.div.Scalar", span, (steps - 1).max(1) as f64)?;
    let up = b.mul(here, step)?;
    let up = b.add(first, up)?;
    let back = b.call(
        "aten.rsub.Scalar",
        &[here.into(), Arg::Float((steps - 1) as f64)],
    )?;
    let down = b.mul(back, step)?;
    let down = b.sub(last, down)?;
    b.select(half, up, down)
}

/// Powers of `base` with exponents as evenly spaced as `linspace` has them.
fn logspace(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let dtype = args.dtype("dtype")?.unwrap_or(DType::F32);
    let base = Arg::Float(args.float("base")?);
    // Integers are powers between whole exponents, but for a single one.
    let integers = !dtype.is_float();
    let whole = (integers && args.const_int("steps")? != 1).then_some(dtype);
    let exponents = spaced(b, args, whole, DType::F64)?;
    let mut v = b.call("aten.pow.Scalar", &[base, exponents.into()])?;
    if integers {
        // A power that is an integer has to come out as one before the rest is cut off: vector functions are a few digits off.
        let near = b.unary("aten.round.default", v)?;
        let off = b.sub(v, near)?;
        let off = b.unary("aten.abs.default", off)?;
        let least = b.by("aten.mul.Scalar", near, 1e-15)?;
        let close = b.call("aten.le.Tensor", &[off.into(), least.into()])?;
        v = b.select(close, near, v)?;
    }
    Ok(vec![b.cast(v, dtype)?])
}

/// The cross product along a dimension of three elements.
/// Element `i` is `x[i+1] y[i+2] - x[i+2] y[i+1]`, indices modulo 3: rolls by -1 and -2.
fn cross(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let (x, y) = (args.value("self")?, args.value("other")?);
    let dim = args.dim("dim", b.rank(x)?)? as i64;
    let roll = |b: &mut Builder, v: ValueId, by: i64| {
        let (by, at) = (b.ints(&[by]), b.ints(&[dim]));
        b.call("aten.roll.default", &[v.into(), by, at])
    };
    let (x1, y2) = (roll(b, x, -1)?, roll(b, y, -2)?);
    let (x2, y1) = (roll(b, x, -2)?, roll(b, y, -1)?);
    let (p, q) = (b.mul(x1, y2)?, b.mul(x2, y1)?);
    Ok(vec![b.sub(p, q)?])
}

/// Matrices along a diagonal of zeros.
/// Each block is padded to the full width, then rows of blocks are joined: one body per block.
fn block_diag(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let list = args.list("tensors")?;
    let mut blocks = Vec::new();
    for v in list {
        let mut sizes = b.sizes(v)?;
        if sizes.len() > 2 {
            return Err(Error::input("blocks have two dimensions at most"));
        }
        while sizes.len() < 2 {
            sizes.insert(0, b.exprs.int(1));
        }
        blocks.push((b.view(v, &sizes)?, sizes[0], sizes[1]));
    }
    let total = b.exprs.sum(blocks.iter().map(|x| x.2));
    let mut left = b.exprs.int(0);
    let mut rows = Vec::new();
    for (v, _, width) in blocks {
        // Zeros on either side of the block.
        let right = b.exprs.sub(total, b.exprs.add(left, width));
        let pad = Arg::Ints(vec![left, right]);
        let v = b.call("aten.constant_pad_nd.default", &[v.into(), pad])?;
        rows.push(Some(v));
        left = b.exprs.add(left, width);
    }
    Ok(vec![b.call("aten.cat.default", &[Arg::Values(rows)])?])
}

pub const ROWS: &[Row] = &[
    row(
        "aten._prelu_kernel_backward.default",
        "(Tensor grad_output, Tensor self, Tensor weight) -> (Tensor, Tensor)",
        prelu_backward,
        "(f32[2,3,4], f32[2,3,4], f32[1,3,1])",
    ),
    row(
        "aten.glu_backward.default",
        "(Tensor grad_output, Tensor self, int dim) -> Tensor",
        glu_backward,
        "(f32[2,3], f32[2,6], 1)",
    ),
    row(
        "aten.log_sigmoid_forward.default",
        "(Tensor self) -> (Tensor output, Tensor buffer)",
        log_sigmoid_forward,
        "(f32[4])",
    ),
    row(
        "aten.native_dropout_backward.default",
        "(Tensor grad_output, Tensor mask, float scale) -> Tensor",
        dropout_backward,
        "(f32[4], bool[4], 1.25)",
    ),
    row(
        "aten.trace.default",
        "(Tensor self) -> Tensor",
        trace,
        "(f32[3,4])",
    ),
    row(
        "aten.dist.default",
        "(Tensor self, Tensor other, Scalar p=2) -> Tensor",
        dist,
        "(f32[3,4], f32[4], 3)",
    ),
    row(
        "aten.ldexp.Tensor",
        "(Tensor self, Tensor other) -> Tensor",
        ldexp,
        "(f32[4], i32[4])",
    ),
    row(
        "aten._trilinear.default",
        "(Tensor i1, Tensor i2, Tensor i3, int[] expand1, int[] expand2, int[] expand3, int[] sumdim, int unroll_dim=1) -> Tensor",
        trilinear,
        "(f32[5,3], f32[2,3,4], f32[5,4], [1,3], [0], [1,2], [2,3])",
    ),
    row(
        "aten.addr.default",
        "(Tensor self, Tensor vec1, Tensor vec2, *, Scalar beta=1, Scalar alpha=1) -> Tensor",
        addr,
        "(f32[3,4], f32[3], f32[4], beta=0.5, alpha=2.0)",
    ),
    row(
        "aten.linspace.Tensor_Tensor",
        "(Tensor start, Tensor end, int steps, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
        linspace,
        "(f32[], f32[], 7)",
    ),
    row(
        "aten.linspace.Tensor_Scalar",
        "(Tensor start, Scalar end, int steps, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
        linspace,
        "(f32[], 2, 7)",
    ),
    row(
        "aten.linspace.Scalar_Tensor",
        "(Scalar start, Tensor end, int steps, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
        linspace,
        "(-1.5, f32[], 1)",
    ),
    row(
        "aten.logspace.default",
        "(Scalar start, Scalar end, int steps, float base=10.0, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
        logspace,
        "(-1, 2, 7)",
    ),
    row(
        "aten.logspace.Tensor_Tensor",
        "(Tensor start, Tensor end, int steps, float base=10.0, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
        logspace,
        "(f32[], f32[], 7, 2.0)",
    ),
    row(
        "aten.logspace.Tensor_Scalar",
        "(Tensor start, Scalar end, int steps, float base=10.0, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
        logspace,
        "(f32[], 2, 7)",
    ),
    row(
        "aten.logspace.Scalar_Tensor",
        "(Scalar start, Tensor end, int steps, float base=10.0, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
        logspace,
        "(-1.5, f32[], 5)",
    ),
    row(
        "aten.linalg_cross.default",
        "(Tensor self, Tensor other, *, int dim=-1) -> Tensor",
        cross,
        "(f32[2,3], f32[2,3])",
    ),
    row(
        "aten.block_diag.default",
        "(Tensor[] tensors) -> Tensor",
        block_diag,
        "([f32[2,3], f32[4], f32[3,1]])",
    ),
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
