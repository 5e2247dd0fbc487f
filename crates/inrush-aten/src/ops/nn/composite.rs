//! Operators that PyTorch composes of others before a backend sees them, as exported programs without decompositions hold them.
//!
//! Each function follows PyTorch's composition, including its rules for arguments that are left
//! out: a missing `dim` means the first dimension of size 3 to `cross`, and all of them to
//! `fftshift`.

use crate::ops::decomposed as row;
use crate::{Args, Builder, Row};
use inrush_base::{DType, Error, Result, Scalar};
use inrush_expr::Expr;
use inrush_graph::{Arg, ValueId};

/// Returns the sizes that all tensors broadcast to.
/// A size of 1 gives way to any other; that sizes fit is left to the `expand` that follows.
fn broadcast_sizes(b: &Builder, list: &[ValueId]) -> Result<Vec<Expr>> {
    let mut sizes: Vec<Expr> = Vec::new();
    for v in list {
        let own = b.sizes(*v)?;
        if own.len() > sizes.len() {
            let mut longer = vec![b.exprs.int(1); own.len() - sizes.len()];
            longer.append(&mut sizes);
            sizes = longer;
        }
        let lead = sizes.len() - own.len();
        for (size, n) in sizes[lead..].iter_mut().zip(own) {
            // A symbolic size is not known to be 1, so it is never replaced.
            if b.exprs.is_int(*size, 1) {
                *size = n;
            }
        }
    }
    Ok(sizes)
}

/// Expands each tensor to the sizes of all; `expand` refuses one that does not fit.
fn broadcast_tensors(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let list = args.list("tensors")?;
    let sizes = broadcast_sizes(b, &list)?;
    let expand = |v: ValueId| b.call("aten.expand.default", &[v.into(), sizes.clone().into()]);
    list.into_iter().map(expand).collect()
}

/// Sums over leading dimensions and over those that `size` has once.
/// The inverse of broadcasting, as gradients need it.
fn sum_to_size(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let x = args.value("self")?;
    let (own, size) = (b.sizes(x)?, args.ints("size")?.to_vec());
    let lead = own
        .len()
        .checked_sub(size.len())
        .ok_or_else(|| Error::input("sum_to_size of fewer dimensions than it gives"))?;
    let mut dims: Vec<i64> = (0..lead as i64).collect();
    for (d, n) in size.iter().enumerate() {
        let from = own[lead + d];
        if from == *n {
            continue;
        }
        if !b.exprs.is_int(*n, 1) {
            let (from, to) = (b.exprs.show_list(&own), b.exprs.show_list(&size));
            return Err(Error::input(format!("sum_to_size of {from} to {to}")));
        }
        dims.push((lead + d) as i64);
    }
    let sum = b.sum(x, &dims, true)?;
    Ok(vec![match lead {
        0 => sum,
        _ => b.view(sum, &size)?,
    }])
}

/// The powers `x^0 .. x^(n - 1)` of each element, along a new last dimension.
fn powers(b: &mut Builder, x: ValueId, n: Expr) -> Result<ValueId> {
    let dtype = match b.dtype(x)? {
        d if d.is_float() => d,
        _ => DType::I64,
    };
    let mut sizes = b.sizes(x)?;
    let rank = sizes.len() as i64;
    let x = b.cast(x, dtype)?;
    sizes.push(b.exprs.int(1));
    if b.exprs.is_int(n, 0) {
        let none = b.exprs.int(0);
        *sizes.last_mut().expect("a size was pushed") = none;
        return b.full(&sizes, 0.0, dtype);
    }
    let ones = b.full(&sizes, 1.0, dtype)?;
    if b.exprs.is_int(n, 1) {
        return Ok(ones);
    }
    let x = b.call("aten.unsqueeze.default", &[x.into(), b.int(-1)])?;
    sizes[rank as usize] = b.exprs.sub(n, b.exprs.int(1));
    let x = b.call("aten.expand.default", &[x.into(), sizes.into()])?;
    let dim = b.int(rank);
    let x = b.call("aten.cumprod.default", &[x.into(), dim.clone()])?;
    let parts = Arg::Values(vec![Some(ones), Some(x)]);
    b.call("aten.cat.default", &[parts, dim])
}

/// Number of powers of a Vandermonde matrix: as many as elements if it is left out.
fn count_of_powers(b: &Builder, args: &Args, x: ValueId) -> Result<Expr> {
    match args.arg("N")? {
        Arg::None => b
            .sizes(x)?
            .last()
            .copied()
            .ok_or_else(|| Error::input("a Vandermonde matrix of a tensor without dimensions")),
        _ => args.int("N"),
    }
}

/// Powers ascend from left to right; integers are computed as such.
fn linalg_vander(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let x = args.value("x")?;
    let n = count_of_powers(b, args, x)?;
    Ok(vec![powers(b, x, n)?])
}

/// Powers descend from left to right, unless asked otherwise.
fn vander(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let x = args.value("x")?;
    if b.rank(x)? != 1 {
        return Err(Error::input("vander of a tensor that is no vector"));
    }
    let n = count_of_powers(b, args, x)?;
    let y = powers(b, x, n)?;
    if args.bool("increasing")? {
        return Ok(vec![y]);
    }
    let dims = b.ints(&[1]);
    Ok(vec![b.call("aten.flip.default", &[y.into(), dims])?])
}

/// The cross product along `dim`, by default the first dimension of size 3.
fn cross(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let (x, y) = (args.value("self")?, args.value("other")?);
    let dim = match args.arg("dim")? {
        Arg::None => {
            let sizes = broadcast_sizes(b, &[x, y])?;
            let three = sizes.iter().position(|n| b.exprs.is_int(*n, 3));
            let three = three.ok_or_else(|| Error::input("no dimension of size 3"))?;
            b.int(three as i64)
        }
        given => given.clone(),
    };
    Ok(vec![b.call(
        "aten.linalg_cross.default",
        &[x.into(), y.into(), dim],
    )?])
}

/// All rows that take one element of each vector.
/// The last vector varies fastest. A single vector is returned as it is, without a second
/// dimension.
fn cartesian_prod(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let list = args.list("tensors")?;
    if let [one] = list[..] {
        return Ok(vec![one]);
    }
    let all: Vec<Option<ValueId>> = list.into_iter().map(Some).collect();
    let grids = b.call_multi("aten.meshgrid.default", &[Arg::Values(all)])?;
    let mut columns = Vec::with_capacity(grids.len());
    for grid in grids {
        let numel = b.exprs.product(b.sizes(grid)?);
        columns.push(Some(b.view(grid, &[numel])?));
    }
    let at = b.int(1);
    Ok(vec![
        b.call("aten.stack.default", &[Arg::Values(columns), at])?,
    ])
}

/// The tensor with at least `rank` dimensions, those that are missing of size 1: before the others, after them where two of
/// three are there, on both sides of a single one.
fn at_least(b: &mut Builder, args: &Args, rank: usize) -> Result<Vec<ValueId>> {
    let x = args.value("self")?;
    let (sizes, one) = (b.sizes(x)?, b.exprs.int(1));
    let wide = match (sizes.len(), rank) {
        (0, _) => vec![one; rank],
        (1, 2) => vec![one, sizes[0]],
        (1, 3) => vec![one, sizes[0], one],
        (2, 3) => vec![sizes[0], sizes[1], one],
        _ => sizes,
    };
    Ok(vec![b.view(x, &wide)?])
}

/// The elements as the diagonal of a matrix that is zero elsewhere.
fn diagflat(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let x = args.value("self")?;
    let numel = b.exprs.product(b.sizes(x)?);
    let flat = b.view(x, &[numel])?;
    let offset = args.arg("offset")?.clone();
    Ok(vec![
        b.call("aten.diag_embed.default", &[flat.into(), offset])?,
    ])
}

/// Rolls dimensions, by default all, by half of their size, which is rounded down or up.
/// `fftshift` rounds down and `ifftshift` up, so that each undoes the other for odd sizes too.
fn shifted(b: &mut Builder, args: &Args, up: bool) -> Result<Vec<ValueId>> {
    let x = args.value("self")?;
    let sizes = b.sizes(x)?;
    let dims = match args.given("dim") {
        true => args.dims("dim", sizes.len())?,
        false => (0..sizes.len()).collect(),
    };
    // `roll` without dimensions would roll the flattened tensor.
    if dims.is_empty() {
        return Ok(vec![b.unary("aten.clone.default", x)?]);
    }
    let e = b.exprs;
    // Sizes may be symbolic: shifts are expressions.
    let half = |d: &usize| e.floordiv(e.add(sizes[*d], e.int(i64::from(up))), e.int(2));
    let shifts: Vec<Expr> = dims.iter().map(half).collect();
    let dims = b.ints(&dims.iter().map(|d| *d as i64).collect::<Vec<_>>());
    Ok(vec![b.call(
        "aten.roll.default",
        &[x.into(), Arg::Ints(shifts), dims],
    )?])
}

/// Returns true for each element: these are all real numbers.
fn isreal(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let sizes = b.sizes(args.value("self")?)?;
    let shape: Arg = sizes.into();
    Ok(vec![b.call(
        "aten.full.default",
        &[shape, Arg::Bool(true), DType::Bool.into()],
    )?])
}

/// Vectors as columns, and matrices, joined along the second dimension.
fn column_stack(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let mut parts = Vec::new();
    for v in args.list("tensors")? {
        let sizes = b.sizes(v)?;
        parts.push(Some(match sizes.len() {
            0 | 1 => {
                let numel = b.exprs.product(sizes);
                b.view(v, &[numel, b.exprs.int(1)])?
            }
            _ => v,
        }));
    }
    let at = b.int(1);
    Ok(vec![b.call("aten.cat.default", &[Arg::Values(parts), at])?])
}

/// A power of `float64`.
/// Both operands are converted before the power: integers to a negative power are fine here.
fn float_power(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let wide = |b: &mut Builder, name: &str| match args.arg(name)? {
        Arg::Value(v) if b.tensor(*v).is_ok() => Ok(b.cast(*v, DType::F64)?.into()),
        _ => Ok::<Arg, Error>(Arg::Float(args.scalar(name)?.as_f64())),
    };
    let (x, exponent) = (wide(b, "self")?, wide(b, "exponent")?);
    let op = match (&x, &exponent) {
        (Arg::Value(_), Arg::Value(_)) => "aten.pow.Tensor_Tensor",
        (Arg::Value(_), _) => "aten.pow.Tensor_Scalar",
        _ => "aten.pow.Scalar",
    };
    Ok(vec![b.call(op, &[x, exponent])?])
}

/// All indices of dimension `dim` but the last, and all but the first.
fn neighbours(b: &mut Builder, x: ValueId, dim: usize) -> Result<(ValueId, ValueId)> {
    let (size, zero, one) = (b.sizes(x)?[dim], b.exprs.int(0), b.exprs.int(1));
    let len = b.exprs.sub(size, one);
    Ok((b.narrow(x, dim, zero, len)?, b.narrow(x, dim, one, len)?))
}

/// Of each two neighbours along `dim` twice the area of the trapezoid below them.
/// Halving is left to the caller, who does it once after the sum. `x` gives the positions of the
/// points, `dx` a constant distance.
fn twice_trapezoids(b: &mut Builder, args: &Args, dim: usize) -> Result<ValueId> {
    let y = args.value("y")?;
    let rank = b.rank(y)?;
    let (left, right) = neighbours(b, y, dim)?;
    let heights = b.add(left, right)?;
    if args.arg("x").is_err() {
        return b.call(
            "aten.mul.Tensor",
            &[heights.into(), args.arg("dx")?.clone()],
        );
    }
    let mut x = args.value("x")?;
    let own = b.sizes(x)?;
    if own.len() < rank {
        let mut sizes = vec![b.exprs.int(1); rank];
        // A vector of positions is along `dim`; other shapes align with the last dimensions, as
        // broadcasting does.
        match own[..] {
            [points] => sizes[dim] = points,
            _ => sizes[rank - own.len()..].copy_from_slice(&own),
        }
        x = b.view(x, &sizes)?;
    }
    let (left, right) = neighbours(b, x, dim)?;
    let widths = b.sub(right, left)?;
    b.mul(heights, widths)
}

/// The integral along `dim` by the trapezoidal rule.
fn trapezoid(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let dim = args.dim("dim", b.rank(args.value("y")?)?)?;
    let areas = twice_trapezoids(b, args, dim)?;
    let sum = b.sum(areas, &[dim as i64], false)?;
    Ok(vec![b.by("aten.div.Scalar", sum, 2.0)?])
}

/// Integrals up to each point but the first.
fn cumulative_trapezoid(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let dim = args.dim("dim", b.rank(args.value("y")?)?)?;
    let areas = twice_trapezoids(b, args, dim)?;
    let at = b.int(dim as i64);
    let sum = b.call("aten.cumsum.default", &[areas.into(), at])?;
    Ok(vec![b.by("aten.div.Scalar", sum, 2.0)?])
}

/// The parts of a norm of a matrix.
/// Those that need singular values (nuclear, spectral) are not among them.
enum MatrixNorm {
    Frobenius,
    /// The largest or the smallest sum of absolute values, of columns or of rows.
    /// Order 1 sums columns and order `inf` rows; a negative order takes the smallest sum.
    Sums {
        of_columns: bool,
        largest: bool,
    },
}

/// Returns the norm that `ord` names; `None` is Frobenius'.
fn matrix_norm_kind(args: &Args) -> Result<MatrixNorm> {
    let ord = match args.arg("ord")? {
        Arg::None => return Ok(MatrixNorm::Frobenius),
        Arg::Str(s) if s.as_str() == "fro" => return Ok(MatrixNorm::Frobenius),
        Arg::Str(_) => return Err(args.unsupported("ord", "needs singular values")),
        _ => args.scalar("ord")?.as_f64(),
    };
    if ord.abs() == 1.0 || ord.is_infinite() {
        return Ok(MatrixNorm::Sums {
            of_columns: ord.is_finite(),
            largest: ord > 0.0,
        });
    }
    Err(args.unsupported("ord", "needs singular values"))
}

/// A norm of matrices in the two dimensions `dims`.
/// The dimensions are kept until the end, so that `dims` stay valid after the first reduction.
fn matrix_norm(b: &mut Builder, args: &Args, x: ValueId, dims: [usize; 2]) -> Result<ValueId> {
    let keep = args.bool("keepdim")?;
    let x = match args.dtype("dtype")? {
        Some(dtype) => b.cast(x, dtype)?,
        None => x,
    };
    let (of_columns, largest) = match matrix_norm_kind(args)? {
        MatrixNorm::Frobenius => {
            let dims = b.ints(&dims.map(|d| d as i64));
            let two = b.scalar(Scalar::Int(2));
            let args = [x.into(), two, dims, keep.into()];
            return b.call("aten.linalg_vector_norm.default", &args);
        }
        MatrixNorm::Sums {
            of_columns,
            largest,
        } => (of_columns, largest),
    };
    let [rows, columns] = dims;
    // A column's sum runs over the rows.
    let (summed, compared) = match of_columns {
        true => (rows, columns),
        false => (columns, rows),
    };
    let size = b.unary("aten.abs.default", x)?;
    let sums = b.sum(size, &[summed as i64], true)?;
    let op = match largest {
        true => "aten.amax.default",
        false => "aten.amin.default",
    };
    let at = b.ints(&[compared as i64]);
    let norm = b.call(op, &[sums.into(), at, true.into()])?;
    if keep {
        return Ok(norm);
    }
    let sizes = b.sizes(norm)?;
    let kept = sizes.iter().enumerate().filter(|(d, _)| !dims.contains(d));
    let kept: Vec<Expr> = kept.map(|(_, n)| *n).collect();
    b.view(norm, &kept)
}

/// The norm of a vector, or of a matrix where two dimensions are meant.
/// `ord` with two dimensions is a matrix norm and with one a vector norm. Without `ord` the 2-norm
/// of all elements of `dim`, however many dimensions that are.
fn linalg_norm(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let x = args.value("self")?;
    let rank = b.rank(x)?;
    let (has_ord, has_dim) = (args.given("ord"), args.given("dim"));
    let dims = match has_dim {
        true => args.dims("dim", rank)?,
        false => (0..rank).collect(),
    };
    // Names are of matrix norms.
    let named = matches!(args.arg("ord")?, Arg::Str(_));
    if has_ord && dims.len() == 2 {
        return Ok(vec![matrix_norm(b, args, x, [dims[0], dims[1]])?]);
    }
    if named || (has_ord && dims.len() != 1) {
        return Err(Error::input("a norm of neither a vector nor a matrix"));
    }
    let ord = match has_ord {
        true => args.arg("ord")?.clone(),
        false => b.int(2),
    };
    let at = match has_dim {
        true => b.ints(&dims.iter().map(|d| *d as i64).collect::<Vec<_>>()),
        false => Arg::None,
    };
    let mut call = vec![x.into(), ord, at, args.bool("keepdim")?.into()];
    if let Some(dtype) = args.dtype("dtype")? {
        call.push(dtype.into());
    }
    Ok(vec![b.call("aten.linalg_vector_norm.default", &call)?])
}

/// Dimensions default to the last two.
fn linalg_matrix_norm(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let x = args.value("self")?;
    let dims = args.dims("dim", b.rank(x)?)?;
    let [rows, columns] = dims[..] else {
        return Err(Error::input("a matrix has two dimensions"));
    };
    Ok(vec![matrix_norm(b, args, x, [rows, columns])?])
}

pub const ROWS: &[Row] = &[
    row(
        "aten.vander.default",
        "(Tensor x, int? N=None, bool increasing=False) -> Tensor",
        vander,
        "(f32[5], 3)",
    ),
    row(
        "aten.linalg_vander.default",
        "(Tensor x, *, SymInt? N=None) -> Tensor",
        linalg_vander,
        "(i64[2,4])",
    ),
    row(
        "aten.broadcast_tensors.default",
        "(Tensor[] tensors) -> Tensor[]",
        broadcast_tensors,
        "([f32[3,1], f32[4], f32[2,1,1]])",
    ),
    row(
        "aten.sum_to_size.default",
        "(Tensor self, SymInt[] size) -> Tensor",
        sum_to_size,
        "(f32[2,3,4], [3,1])",
    ),
    row(
        "aten.cross.default",
        "(Tensor self, Tensor other, int? dim=None) -> Tensor",
        cross,
        "(f32[4,3,2], f32[4,3,2])",
    ),
    row(
        "aten.cartesian_prod.default",
        "(Tensor[] tensors) -> Tensor",
        cartesian_prod,
        "([f32[3], f32[2]])",
    ),
    row(
        "aten.atleast_1d.default",
        "(Tensor self) -> Tensor",
        |b, a| at_least(b, a, 1),
        "(f32[])",
    ),
    row(
        "aten.atleast_2d.default",
        "(Tensor self) -> Tensor",
        |b, a| at_least(b, a, 2),
        "(f32[3])",
    ),
    row(
        "aten.atleast_3d.default",
        "(Tensor self) -> Tensor",
        |b, a| at_least(b, a, 3),
        "(f32[3,4])",
    ),
    row(
        "aten.diagflat.default",
        "(Tensor self, int offset=0) -> Tensor",
        diagflat,
        "(f32[2,2], 1)",
    ),
    row(
        "aten.fft_fftshift.default",
        "(Tensor self, int[1]? dim=None) -> Tensor",
        |b, a| shifted(b, a, false),
        "(f32[3,4], [0])",
    ),
    row(
        "aten.fft_ifftshift.default",
        "(Tensor self, int[1]? dim=None) -> Tensor",
        |b, a| shifted(b, a, true),
        "(f32[3,4])",
    ),
    row(
        "aten.isreal.default",
        "(Tensor self) -> Tensor",
        isreal,
        "(f32[3])",
    ),
    row(
        "aten.column_stack.default",
        "(Tensor[] tensors) -> Tensor",
        column_stack,
        "([f32[3], f32[3,2]])",
    ),
    row(
        "aten.float_power.Tensor_Tensor",
        "(Tensor self, Tensor exponent) -> Tensor",
        float_power,
        "(f32[4]{0.1:2}, i64[4]{0:3})",
    ),
    row(
        "aten.float_power.Tensor_Scalar",
        "(Tensor self, Scalar exponent) -> Tensor",
        float_power,
        "(f32[4]{0.1:2}, 1.5)",
    ),
    row(
        "aten.float_power.Scalar",
        "(Scalar self, Tensor exponent) -> Tensor",
        float_power,
        "(2, f32[4])",
    ),
    row(
        "aten.trapz.x",
        "(Tensor y, Tensor x, *, int dim=-1) -> Tensor",
        trapezoid,
        "(f32[2,5], f32[5])",
    ),
    row(
        "aten.trapz.dx",
        "(Tensor y, *, float dx=1, int dim=-1) -> Tensor",
        trapezoid,
        "(f32[2,5], dx=0.5, dim=0)",
    ),
    row(
        "aten.trapezoid.x",
        "(Tensor y, Tensor x, *, int dim=-1) -> Tensor",
        trapezoid,
        "(f32[2,5], f32[5])",
    ),
    row(
        "aten.trapezoid.dx",
        "(Tensor y, *, Scalar dx=1, int dim=-1) -> Tensor",
        trapezoid,
        "(f32[2,5], dx=0.5, dim=0)",
    ),
    row(
        "aten.cumulative_trapezoid.x",
        "(Tensor y, Tensor x, *, int dim=-1) -> Tensor",
        cumulative_trapezoid,
        "(f32[2,5], f32[2,5])",
    ),
    row(
        "aten.cumulative_trapezoid.dx",
        "(Tensor y, *, Scalar dx=1, int dim=-1) -> Tensor",
        cumulative_trapezoid,
        "(f32[2,5], dx=0.5)",
    ),
    row(
        "aten.linalg_norm.default",
        "(Tensor self, Scalar? ord=None, int[1]? dim=None, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor",
        linalg_norm,
        "(f32[2,3,4], inf, [1,2])",
    ),
    row(
        "aten.linalg_norm.ord_str",
        "(Tensor self, str ord, int[1]? dim=None, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor",
        linalg_norm,
        "(f32[3,4], \"fro\")",
    ),
    row(
        "aten.linalg_matrix_norm.default",
        "(Tensor self, Scalar ord, int[] dim=[-2,-1], bool keepdim=False, *, ScalarType? dtype=None) -> Tensor",
        linalg_matrix_norm,
        "(f32[2,3,4], -1, keepdim=true)",
    ),
    row(
        "aten.linalg_matrix_norm.str_ord",
        "(Tensor self, str ord=\"fro\", int[] dim=[-2,-1], bool keepdim=False, *, ScalarType? dtype=None) -> Tensor",
        linalg_matrix_norm,
        "(f32[2,3,4])",
    ),
];
