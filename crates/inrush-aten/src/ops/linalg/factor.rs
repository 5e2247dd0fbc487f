//! Linear algebra by the runtime's library: factorisations, solutions, determinants.
//!
//! The rows with names that PyTorch's own functions call (`linalg_inv_ex`, `_linalg_svd`) are calls of library functions.
//! Those that users call are decompositions over them, with eager's errors for matrices without a result.

use crate::ops::{B, decomposed, lowered};
use crate::props::Prop;
use crate::{Args, Builder, Call, Lower, Row, Tensor, meta};
use inrush_base::{DType, Result, Scalar};
use inrush_expr::Expr;
use inrush_graph::{Arg, TensorType, Type, ValueId};

/// A matrix, or a batch of them: `[.., rows, columns]`.
struct Matrix {
    dtype: DType,
    batch: Vec<Expr>,
    rows: Expr,
    cols: Expr,
}

impl Matrix {
    /// Reads the type of an argument, which must hold matrices of `f32` or `f64`.
    fn of(call: &Call, name: &str) -> Result<Matrix> {
        let t = call.tensor(name)?;
        let float = matches!(t.dtype, DType::F32 | DType::F64);
        let [batch @ .., rows, cols] = t.sizes.as_slice() else {
            return Err(call.unsupported(name, "not a matrix"));
        };
        if !float {
            return Err(call.unsupported(name, "matrices of other dtypes than f32 and f64"));
        }
        Ok(Matrix {
            dtype: t.dtype,
            batch: batch.to_vec(),
            rows: *rows,
            cols: *cols,
        })
    }

    /// Reads a square one.
    fn square(call: &Call, name: &str) -> Result<Matrix> {
        let m = Matrix::of(call, name)?;
        call.same(m.rows, m.cols, "rows and columns")?;
        Ok(m)
    }

    /// Returns a type with these dimensions after those of the batch.
    fn with(&self, call: &Call, sizes: &[Expr]) -> Type {
        meta::tensor(call.exprs, self.dtype, [&self.batch, sizes].concat())
    }

    /// Returns such a type of pivots or codes.
    fn ints(&self, call: &Call, sizes: &[Expr]) -> Type {
        meta::tensor(call.exprs, DType::I32, [&self.batch, sizes].concat())
    }

    /// Returns the smaller of the two sizes.
    fn least(&self, call: &Call) -> Expr {
        call.exprs.min(self.rows, self.cols)
    }
}

/// Refuses a call that is to fail where its code is not 0: these rows return the code.
fn without_checks(call: &Call) -> Result<()> {
    if call.bool("check_errors")? {
        return Err(call.unsupported("check_errors", "an error instead of a code"));
    }
    Ok(())
}

/// Calls a function with these tensor arguments, for results of these types.
fn run<'g>(
    lw: &mut Lower<'g>,
    call: &Call<'g>,
    function: &str,
    inputs: &[&str],
    params: &[bool],
    types: &[Type],
) -> Result<Vec<Tensor>> {
    let inputs: Vec<Tensor> = (inputs.iter())
        .map(|name| lw.arg(call, name))
        .collect::<Result<_>>()?;
    let params = params.iter().map(|p| Scalar::Bool(*p)).collect();
    Ok(lw.library(function, params, &inputs, types))
}

/// Defines the types of a library function's results, and the call with its inputs and parameters.
macro_rules! function {
    ($name:ident, $types:ident, |$call:ident| $results:expr, $function:expr, $inputs:expr, $params:expr) => {
        fn $types($call: &Call) -> Result<Vec<Type>> {
            Ok($results)
        }
        fn $name<'g>(lw: &mut Lower<'g>, $call: &Call<'g>) -> Result<Vec<Tensor>> {
            let types = $types($call)?;
            run(lw, $call, $function, &$inputs, &$params, &types)
        }
    };
}

function!(
    inv_ex,
    inv_ex_types,
    |call| {
        let m = Matrix::square(call, "A")?;
        without_checks(call)?;
        vec![m.with(call, &[m.rows, m.cols]), m.ints(call, &[])]
    },
    "linalg.inv",
    ["A"],
    []
);

function!(
    cholesky_ex,
    cholesky_ex_types,
    |call| {
        let m = Matrix::square(call, "self")?;
        without_checks(call)?;
        vec![m.with(call, &[m.rows, m.cols]), m.ints(call, &[])]
    },
    "linalg.cholesky",
    ["self"],
    [call.bool("upper")?]
);

function!(
    triangular,
    triangular_types,
    |call| {
        Matrix::square(call, "self")?;
        let b = Matrix::of(call, "B")?;
        vec![b.with(call, &[b.rows, b.cols])]
    },
    "linalg.solve_triangular",
    ["self", "B"],
    [
        call.bool("upper")?,
        call.bool("left")?,
        call.bool("unitriangular")?
    ]
);

function!(
    lu_factor_ex,
    lu_factor_ex_types,
    |call| {
        let m = Matrix::of(call, "A")?;
        without_checks(call)?;
        if !call.bool("pivot")? {
            return Err(call.unsupported("pivot", "factorisation without pivots"));
        }
        vec![
            m.with(call, &[m.rows, m.cols]),
            m.ints(call, &[m.least(call)]),
            m.ints(call, &[]),
        ]
    },
    "linalg.lu_factor",
    ["A"],
    []
);

function!(
    lu_unpack,
    lu_unpack_types,
    |call| {
        let m = Matrix::of(call, "LU_data")?;
        let k = m.least(call);
        vec![
            m.with(call, &[m.rows, m.rows]),
            m.with(call, &[m.rows, k]),
            m.with(call, &[k, m.cols]),
        ]
    },
    "linalg.lu_unpack",
    ["LU_data", "LU_pivots"],
    []
);

function!(
    eigh,
    eigh_types,
    |call| {
        let m = Matrix::square(call, "A")?;
        vec![m.with(call, &[m.rows]), m.with(call, &[m.rows, m.cols])]
    },
    "linalg.eigh",
    ["A"],
    [call.str("UPLO")?.eq_ignore_ascii_case("U")]
);

function!(
    eigvalsh,
    eigvalsh_types,
    |call| {
        let m = Matrix::square(call, "A")?;
        vec![m.with(call, &[m.rows])]
    },
    "linalg.eigvalsh",
    ["A"],
    [call.str("UPLO")?.eq_ignore_ascii_case("U")]
);

function!(
    svdvals,
    svdvals_types,
    |call| {
        let m = Matrix::of(call, "A")?;
        vec![m.with(call, &[m.least(call)])]
    },
    "linalg.svdvals",
    ["A"],
    []
);

function!(
    svd,
    svd_types,
    |call| {
        let m = Matrix::of(call, "A")?;
        let k = m.least(call);
        let full = call.bool("full_matrices")?;
        let (u, v) = if full { (m.rows, m.cols) } else { (k, k) };
        vec![
            m.with(call, &[m.rows, u]),
            m.with(call, &[k]),
            m.with(call, &[v, m.cols]),
        ]
    },
    "linalg.svd",
    ["A"],
    [call.bool("full_matrices")?]
);

function!(
    qr_of,
    qr_types,
    |call| {
        let m = Matrix::of(call, "A")?;
        let complete = match call.str("mode")? {
            "complete" => true,
            "reduced" => false,
            _ => return Err(call.unsupported("mode", "a mode without Q")),
        };
        let k = if complete { m.rows } else { m.least(call) };
        vec![m.with(call, &[m.rows, k]), m.with(call, &[k, m.cols])]
    },
    "linalg.qr",
    ["A"],
    [call.str("mode")? == "complete"]
);

function!(
    matrix_exp,
    matrix_exp_types,
    |call| {
        let m = Matrix::square(call, "self")?;
        vec![m.with(call, &[m.rows, m.cols])]
    },
    "linalg.matrix_exp",
    ["self"],
    []
);

function!(
    solve_ex,
    solve_ex_types,
    |call| {
        Matrix::square(call, "A")?;
        let b = Matrix::of(call, "B")?;
        vec![b.with(call, &[b.rows, b.cols]), b.ints(call, &[])]
    },
    "linalg.solve",
    ["A", "B"],
    [call.bool("left")?]
);

function!(
    det_of,
    det_types,
    |call| {
        let m = Matrix::square(call, "A")?;
        vec![m.with(call, &[])]
    },
    "linalg.det",
    ["A"],
    []
);

function!(
    slogdet_of,
    slogdet_types,
    |call| {
        let m = Matrix::square(call, "A")?;
        vec![m.with(call, &[]), m.with(call, &[])]
    },
    "linalg.slogdet",
    ["A"],
    []
);

/// Returns `x` with a check that `info` is 0 everywhere, as eager's functions do.
fn checked(b: B, x: ValueId, info: ValueId) -> Result<ValueId> {
    let rank = b.rank(x)?;
    let mut holds = b.call("aten.eq.Scalar", &[info.into(), b.int(0)])?;
    while b.rank(holds)? < rank {
        holds = b.call("aten.unsqueeze.default", &[holds.into(), b.int(-1)])?;
    }
    b.assured(x, holds)
}

/// The matrix that a function takes, under one of its two names.
fn matrix(args: &Args) -> Result<ValueId> {
    args.value(if args.given("A") { "A" } else { "self" })
}

fn inv(b: B, args: &Args) -> Result<Vec<ValueId>> {
    let out = b.call_multi("aten.linalg_inv_ex.default", &[matrix(args)?.into()])?;
    Ok(vec![checked(b, out[0], out[1])?])
}

fn cholesky(b: B, args: &Args) -> Result<Vec<ValueId>> {
    let given = [args.value("self")?.into(), args.bool("upper")?.into()];
    let out = b.call_multi("aten.linalg_cholesky_ex.default", &given)?;
    Ok(vec![checked(b, out[0], out[1])?])
}

/// `(P, L, U)` with pivots that are given.
fn lu(b: B, args: &Args) -> Result<Vec<ValueId>> {
    let given = [args.value("A")?.into(), args.bool("pivot")?.into()];
    let out = b.call_multi("aten.linalg_lu_factor_ex.default", &given)?;
    b.call_multi("aten.lu_unpack.default", &[out[0].into(), out[1].into()])
}

fn lu_factor(b: B, args: &Args) -> Result<Vec<ValueId>> {
    let given = [args.value("A")?.into(), args.bool("pivot")?.into()];
    let out = b.call_multi("aten.linalg_lu_factor_ex.default", &given)?;
    Ok(vec![checked(b, out[0], out[2])?, out[1]])
}

fn det(b: B, args: &Args) -> Result<Vec<ValueId>> {
    b.call_multi("inrush.linalg_det.default", &[matrix(args)?.into()])
}

fn slogdet(b: B, args: &Args) -> Result<Vec<ValueId>> {
    b.call_multi("inrush.linalg_slogdet.default", &[matrix(args)?.into()])
}

/// The logarithm of a determinant: NaN where that is negative.
fn logdet(b: B, args: &Args) -> Result<Vec<ValueId>> {
    let out = slogdet(b, args)?;
    let negative = b.call("aten.lt.Scalar", &[out[0].into(), Arg::Float(0.0)])?;
    let nan = b.call(
        "aten.full_like.default",
        &[out[1].into(), Arg::Float(f64::NAN)],
    )?;
    Ok(vec![b.select(negative, nan, out[1])?])
}

/// Expands two operands to one batch.
fn in_one_batch(b: B, operands: [ValueId; 2]) -> Result<[ValueId; 2]> {
    let [x, y] = operands.map(|v| b.sizes(v));
    let sizes = [x?, y?];
    let ahead = |s: &[Expr]| s[..s.len().saturating_sub(2)].to_vec();
    let batch = meta::broadcast(b.exprs, &ahead(&sizes[0]), &ahead(&sizes[1]))?;
    let mut out = operands;
    for (v, s) in out.iter_mut().zip(&sizes) {
        let wanted = [&batch, &s[s.len().saturating_sub(2)..]].concat();
        if *s != wanted {
            *v = b.call("aten.expand.default", &[(*v).into(), wanted.into()])?;
        }
    }
    Ok(out)
}

/// Solves `A X = B` or `X A = B`. A vector, or a batch of them, on the right is one column.
fn solve(b: B, args: &Args) -> Result<Vec<ValueId>> {
    let (x, y) = (args.value("A")?, args.value("B")?);
    let left = args.bool("left")?;
    let (a_sizes, b_sizes) = (b.sizes(x)?, b.sizes(y)?);
    // PyTorch takes a right side for vectors if it has one dimension, or if its sizes are those of A without the last.
    let vectors = b_sizes.len() == 1
        || (b_sizes.len() + 1 == a_sizes.len() && b_sizes[..] == a_sizes[..a_sizes.len() - 1]);
    let y = if vectors {
        b.call("aten.unsqueeze.default", &[y.into(), b.int(-1)])?
    } else {
        y
    };
    let [x, y] = in_one_batch(b, [x, y])?;
    let out = b.call_multi(
        "inrush.linalg_solve.default",
        &[x.into(), y.into(), left.into()],
    )?;
    let solution = checked(b, out[0], out[1])?;
    Ok(vec![if vectors {
        b.call("aten.squeeze.dim", &[solution.into(), b.int(-1)])?
    } else {
        solution
    }])
}

/// Solves with a triangular matrix, with equal batches.
fn solve_triangular(b: B, args: &Args) -> Result<Vec<ValueId>> {
    let [x, y] = in_one_batch(b, [args.value("self")?, args.value("B")?])?;
    let flags = ["upper", "left", "unitriangular"].map(|f| args.bool(f));
    let [upper, left, unit] = flags;
    let given = [
        x.into(),
        y.into(),
        upper?.into(),
        left?.into(),
        unit?.into(),
    ];
    b.call_multi("inrush.linalg_solve_triangular.default", &given)
}

fn user_svd(b: B, args: &Args) -> Result<Vec<ValueId>> {
    let given = [args.value("A")?.into(), args.bool("full_matrices")?.into()];
    b.call_multi("inrush.linalg_svd.default", &given)
}

fn user_eigh(b: B, args: &Args) -> Result<Vec<ValueId>> {
    let given = [matrix(args)?.into(), Arg::Str(args.str("UPLO")?.into())];
    b.call_multi("inrush.linalg_eigh.default", &given)
}

fn user_eigvalsh(b: B, args: &Args) -> Result<Vec<ValueId>> {
    let given = [
        args.value("self")?.into(),
        Arg::Str(args.str("UPLO")?.into()),
    ];
    b.call_multi("inrush.linalg_eigvalsh.default", &given)
}

/// The Moore-Penrose inverse from the singular values above the tolerance.
fn pinv(b: B, args: &Args) -> Result<Vec<ValueId>> {
    if args.bool("hermitian")? {
        return Err(args.unsupported("hermitian", "inverses of hermitian matrices"));
    }
    let x = args.value("self")?;
    let t: TensorType = b.tensor(x)?;
    let [.., rows, cols] = t.sizes.as_slice() else {
        return Err(args.unsupported("self", "not a matrix"));
    };
    let usv = b.call_multi("inrush.linalg_svd.default", &[x.into(), false.into()])?;
    let (u, s, vh) = (usv[0], usv[1], usv[2]);
    let largest = b.call("aten.amax.default", &[s.into(), b.ints(&[-1]), true.into()])?;
    let epsilon = if t.dtype == DType::F64 {
        f64::EPSILON
    } else {
        f64::from(f32::EPSILON)
    };
    let longest = b.exprs.as_int(b.exprs.max(*rows, *cols));
    let tolerance = match (args.opt_value("atol")?, args.opt_value("rtol")?) {
        (None, None) => {
            let n = longest.ok_or_else(|| args.unsupported("rtol", "none for a symbolic size"))?;
            b.scale(largest, epsilon * n as f64)?
        }
        (None, Some(rtol)) => {
            let rtol = b.call("aten.unsqueeze.default", &[rtol.into(), b.int(-1)])?;
            b.mul(largest, rtol)?
        }
        _ => return Err(args.unsupported("atol", "an absolute tolerance")),
    };
    let counts = b.call("aten.gt.Tensor", &[s.into(), tolerance.into()])?;
    let inverse = b.unary("aten.reciprocal.default", s)?;
    let inverse = b.select_or(counts, inverse, 0.0)?;
    let inverse = b.call("aten.unsqueeze.default", &[inverse.into(), b.int(-2)])?;
    let v = b.call("aten.transpose.int", &[vh.into(), b.int(-2), b.int(-1)])?;
    let ut = b.call("aten.transpose.int", &[u.into(), b.int(-2), b.int(-1)])?;
    let scaled = b.mul(v, inverse)?;
    Ok(vec![b.call(
        "aten.matmul.default",
        &[scaled.into(), ut.into()],
    )?])
}

/// Products of many matrices, from the left; the first and last may be vectors.
fn multi_dot(b: B, args: &Args) -> Result<Vec<ValueId>> {
    let all = args.list("tensors")?;
    let Some((first, rest)) = all.split_first() else {
        return Err(args.unsupported("tensors", "no tensor"));
    };
    let mut out = *first;
    for v in rest {
        out = b.call("aten.matmul.default", &[out.into(), (*v).into()])?;
    }
    Ok(vec![out])
}

fn vecdot(b: B, args: &Args) -> Result<Vec<ValueId>> {
    let product = b.mul(args.value("x")?, args.value("y")?)?;
    b.sum(product, &[args.const_int("dim")?], false)
        .map(|v| vec![v])
}

/// Powers by repeated squaring.
fn matrix_power(b: B, args: &Args) -> Result<Vec<ValueId>> {
    let mut x = args.value("self")?;
    let n = args.const_int("n")?;
    if n < 0 {
        x = b.call("aten.linalg_inv.default", &[x.into()])?;
    }
    let mut left = n.unsigned_abs();
    if left == 0 {
        let sizes = b.sizes(x)?;
        let (rows, dtype) = (sizes[sizes.len() - 1], b.dtype(x)?);
        let eye = b.call("aten.eye.default", &[rows.into(), dtype.into()])?;
        let eye = b.call("aten.expand.default", &[eye.into(), sizes.into()])?;
        return Ok(vec![b.unary("aten.clone.default", eye)?]);
    }
    let mut out = None;
    loop {
        if left & 1 == 1 {
            out = Some(match out {
                Some(o) => b.call("aten.matmul.default", &[Arg::Value(o), x.into()])?,
                None => x,
            });
        }
        left >>= 1;
        if left == 0 {
            break;
        }
        x = b.call("aten.matmul.default", &[x.into(), x.into()])?;
    }
    Ok(out.into_iter().collect())
}

/// A row of a library function.
const fn function(
    name: &'static str,
    schema: &'static str,
    types: fn(&Call) -> Result<Vec<Type>>,
    f: for<'g> fn(&mut Lower<'g>, &Call<'g>) -> Result<Vec<Tensor>>,
    example: &'static str,
) -> Row {
    lowered(name, schema, types, f, example).with(&[Prop::LibraryFunction])
}

/// A row of calls of library functions.
const fn composed(
    name: &'static str,
    schema: &'static str,
    f: fn(&mut Builder, &Args) -> Result<Vec<ValueId>>,
    example: &'static str,
) -> Row {
    decomposed(name, schema, f, example).with(&[Prop::LibraryFunction])
}

pub const ROWS: &[Row] = &[
    function(
        "aten.linalg_inv_ex.default",
        "(Tensor A, *, bool check_errors=False) -> (Tensor inverse, Tensor info)",
        inv_ex_types,
        inv_ex,
        "(f32[2,4,4])",
    ),
    function(
        "aten.linalg_cholesky_ex.default",
        "(Tensor self, *, bool upper=False, bool check_errors=False) -> (Tensor L, Tensor info)",
        cholesky_ex_types,
        cholesky_ex,
        "(f64[1,1]{1:2})",
    ),
    function(
        "aten.linalg_lu_factor_ex.default",
        "(Tensor A, *, bool pivot=True, bool check_errors=False) -> (Tensor LU, Tensor pivots, Tensor info)",
        lu_factor_ex_types,
        lu_factor_ex,
        "(f32[3,5,4])",
    ),
    function(
        "aten.lu_unpack.default",
        "(Tensor LU_data, Tensor LU_pivots, bool unpack_data=True, bool unpack_pivots=True) -> (Tensor P, Tensor L, Tensor U)",
        lu_unpack_types,
        lu_unpack,
        "(f32[3,4], i32[3]{3:3})",
    ),
    function(
        "inrush.linalg_solve.default",
        "(Tensor A, Tensor B, bool left) -> (Tensor result, Tensor info)",
        solve_ex_types,
        solve_ex,
        "(f64[3,4,4], f64[3,4,2], true)",
    ),
    function(
        "inrush.linalg_solve_triangular.default",
        "(Tensor self, Tensor B, bool upper, bool left, bool unitriangular) -> Tensor",
        triangular_types,
        triangular,
        "(f64[4,4]{1:2}, f64[4,2], true, true, false)",
    ),
    function(
        "inrush.linalg_det.default",
        "(Tensor A) -> Tensor",
        det_types,
        det_of,
        "(f32[2,3,3])",
    ),
    function(
        "inrush.linalg_slogdet.default",
        "(Tensor A) -> (Tensor sign, Tensor logabsdet)",
        slogdet_types,
        slogdet_of,
        "(f32[2,3,3])",
    ),
    function(
        "aten.linalg_qr.default",
        "(Tensor A, str mode='reduced') -> (Tensor Q, Tensor R)",
        qr_types,
        qr_of,
        "(f64[5,3])",
    ),
    function(
        "inrush.linalg_svd.default",
        "(Tensor A, bool full_matrices) -> (Tensor U, Tensor S, Tensor Vh)",
        svd_types,
        svd,
        "(f64[4,3], false)",
    ),
    function(
        "aten.linalg_svdvals.default",
        "(Tensor A, *, str? driver=None) -> Tensor",
        svdvals_types,
        svdvals,
        "(f64[2,4,3])",
    ),
    function(
        "inrush.linalg_eigh.default",
        "(Tensor A, str UPLO) -> (Tensor eigenvalues, Tensor eigenvectors)",
        eigh_types,
        eigh,
        "(f64[3,3], \"L\")",
    ),
    function(
        "inrush.linalg_eigvalsh.default",
        "(Tensor A, str UPLO) -> Tensor",
        eigvalsh_types,
        eigvalsh,
        "(f64[3,3], \"U\")",
    ),
    function(
        "aten.linalg_matrix_exp.default",
        "(Tensor self) -> Tensor",
        matrix_exp_types,
        matrix_exp,
        "(f64[2,3,3]{-0.5:0.5})",
    ),
    function(
        "aten.matrix_exp.default",
        "(Tensor self) -> Tensor",
        matrix_exp_types,
        matrix_exp,
        "(f64[3,3]{-0.5:0.5})",
    ),
    composed(
        "aten.linalg_inv.default",
        "(Tensor A) -> Tensor",
        inv,
        "(f64[3,4,4])",
    ),
    composed(
        "aten.inverse.default",
        "(Tensor self) -> Tensor",
        inv,
        "(f64[4,4])",
    ),
    composed(
        "aten.linalg_cholesky.default",
        "(Tensor self, *, bool upper=False) -> Tensor",
        cholesky,
        "(f64[1,1]{1:2}, upper=true)",
    ),
    composed(
        "aten.cholesky.default",
        "(Tensor self, bool upper=False) -> Tensor",
        cholesky,
        "(f64[1,1]{1:2})",
    ),
    composed(
        "aten.linalg_lu.default",
        "(Tensor A, *, bool pivot=True) -> (Tensor P, Tensor L, Tensor U)",
        lu,
        "(f64[4,3])",
    ),
    composed(
        "aten.linalg_lu_factor.default",
        "(Tensor A, *, bool pivot=True) -> (Tensor LU, Tensor pivots)",
        lu_factor,
        "(f64[3,3])",
    ),
    composed(
        "aten.linalg_det.default",
        "(Tensor A) -> Tensor",
        det,
        "(f64[2,3,3])",
    ),
    composed(
        "aten.det.default",
        "(Tensor self) -> Tensor",
        det,
        "(f64[3,3])",
    ),
    composed(
        "aten.linalg_slogdet.default",
        "(Tensor A) -> (Tensor sign, Tensor logabsdet)",
        slogdet,
        "(f64[2,3,3])",
    ),
    composed(
        "aten.slogdet.default",
        "(Tensor self) -> (Tensor sign, Tensor logabsdet)",
        slogdet,
        "(f64[3,3])",
    ),
    composed(
        "aten.logdet.default",
        "(Tensor self) -> Tensor",
        logdet,
        "(f64[1,1]{1:2})",
    ),
    composed(
        "aten.linalg_solve.default",
        "(Tensor A, Tensor B, *, bool left=True) -> Tensor",
        solve,
        "(f64[4,4], f64[2,4,3])",
    ),
    composed(
        "aten.linalg_solve_triangular.default",
        "(Tensor self, Tensor B, *, bool upper, bool left=True, bool unitriangular=False) -> Tensor",
        solve_triangular,
        "(f64[4,4]{1:2}, f64[2,4,3], upper=false)",
    ),
    composed(
        "aten.linalg_svd.default",
        "(Tensor A, bool full_matrices=True, *, str? driver=None) -> (Tensor U, Tensor S, Tensor Vh)",
        user_svd,
        "(f64[1,1]{1:2})",
    ),
    composed(
        "aten.linalg_eigh.default",
        "(Tensor self, str UPLO='L') -> (Tensor eigenvalues, Tensor eigenvectors)",
        user_eigh,
        "(f64[1,1]{1:2})",
    ),
    composed(
        "aten.linalg_eigvalsh.default",
        "(Tensor self, str UPLO='L') -> Tensor",
        user_eigvalsh,
        "(f64[3,3])",
    ),
    composed(
        "aten.linalg_pinv.atol_rtol_tensor",
        "(Tensor self, *, Tensor? atol=None, Tensor? rtol=None, bool hermitian=False) -> Tensor",
        pinv,
        "(f64[5,3])",
    ),
    decomposed(
        "aten.linalg_multi_dot.default",
        "(Tensor[] tensors) -> Tensor",
        multi_dot,
        "([f32[2,3], f32[3,4], f32[4]])",
    ),
    decomposed(
        "aten.linalg_vecdot.default",
        "(Tensor x, Tensor y, *, int dim=-1) -> Tensor",
        vecdot,
        "(f32[2,3], f32[3])",
    ),
    decomposed(
        "aten.linalg_matrix_power.default",
        "(Tensor self, int n) -> Tensor",
        matrix_power,
        "(f64[3,3], 5)",
    ),
    decomposed(
        "aten.matrix_power.default",
        "(Tensor self, int n) -> Tensor",
        matrix_power,
        "(f64[3,3], -2)",
    ),
];
