//! Operators on lists of tensors, as optimisers call them: the same operator for each, which the scheduler groups.
//!
//! A graph with `_foreach_add` of 100 parameters becomes 100 calls of `add`. Nothing is lost:
//! horizontal fusion joins independent kernels into one launch, and each call fuses with what made
//! its operand.

use crate::ops::decomposed;
use crate::{Args, Builder, Row};
use inrush_base::{Error, Result};
use inrush_graph::{Arg, ValueId};

/// Returns the argument for element `k` of a list: the same for all, or an entry per element.
/// Fails if a list is shorter than `k + 1`.
fn nth(arg: &Arg, k: usize) -> Result<Arg> {
    let short = || Error::input("lists of different lengths");
    Ok(match arg {
        Arg::Values(v) => Arg::Value(v.get(k).copied().flatten().ok_or_else(short)?),
        Arg::Floats(v) => Arg::Float(*v.get(k).ok_or_else(short)?),
        Arg::Ints(v) => Arg::Int(*v.get(k).ok_or_else(short)?),
        Arg::Bools(v) => Arg::Bool(*v.get(k).ok_or_else(short)?),
        one => one.clone(),
    })
}

/// The operator on tensors that `_foreach_<base>.<overload>` stands for.
/// Lists against a number map to the overload that takes one: `maximum` has none, so a number
/// becomes the bound of `clamp_min`.
fn single(base: &str, overload: &str) -> String {
    let overload = match (base, overload) {
        ("maximum", "Scalar" | "ScalarList") => return "aten.clamp_min.default".into(),
        ("minimum", "Scalar" | "ScalarList") => return "aten.clamp_max.default".into(),
        ("norm", _) => return "aten.linalg_vector_norm.default".into(),
        (_, "default") | ("maximum" | "minimum" | "addcmul" | "addcdiv", _) => "default",
        ("clamp_min" | "clamp_max", "List") => "Tensor",
        ("clamp_min" | "clamp_max", _) => "default",
        ("pow", "List") => "Tensor_Tensor",
        ("pow", "ScalarAndTensor") => "Scalar",
        ("pow", _) => "Tensor_Scalar",
        ("lerp", "List") => "Tensor",
        (_, "List" | "Tensor") => "Tensor",
        _ => "Scalar",
    };
    format!("aten.{base}.{overload}")
}

/// Calls the operator once for each entry of the lists, which all have one length.
/// The operator's name is taken from the row, so that one function serves all rows of the table.
fn each(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let name = args.op.row.name;
    let (base, overload) = name
        .strip_prefix("aten._foreach_")
        .and_then(|n| n.split_once('.'))
        .ok_or_else(|| Error::internal("not an operator on lists"))?;
    let op = single(base, overload);
    let lists = args.args.iter().filter_map(|a| match a {
        Arg::Values(v) => Some(v.len()),
        Arg::Floats(v) => Some(v.len()),
        _ => None,
    });
    let lengths: Vec<usize> = lists.collect();
    let Some(&length) = lengths.first().filter(|n| lengths.iter().all(|m| m == *n)) else {
        return Err(Error::input("lists of different lengths"));
    };
    // A norm's dtype is the last of more parameters.
    let fixed: Vec<Arg> = match base {
        "norm" => {
            let none = Arg::Ints(Vec::new());
            let dtype = args.arg("dtype")?.clone();
            vec![
                Arg::None,
                args.arg("ord")?.clone(),
                none,
                false.into(),
                dtype,
            ]
        }
        _ => args.args.to_vec(),
    };
    (0..length)
        .map(|k| {
            let mut call = Vec::with_capacity(fixed.len());
            for (p, arg) in fixed.iter().enumerate() {
                call.push(match (base, p) {
                    ("norm", 0) => nth(&args.args[0], k)?,
                    ("norm", _) => arg.clone(),
                    _ => nth(arg, k)?,
                });
            }
            b.call(&op, &call)
        })
        .collect()
}

/// Rows of one line each: name, schema and example.
macro_rules! foreach {
    ($($name:literal $schema:literal $example:literal;)*) => {
        pub const ROWS: &[Row] = &[$(decomposed(
            concat!("aten._foreach_", $name),
            $schema,
            each,
            $example,
        ),)*];
    };
}

foreach! {
    "abs.default" "(Tensor[] self) -> Tensor[]" "([f32[3], f32[2,2]])";
    "acos.default" "(Tensor[] self) -> Tensor[]" "([f32[3]{-1:1}, f32[2,2]{-1:1}])";
    "asin.default" "(Tensor[] self) -> Tensor[]" "([f32[3]{-1:1}, f32[2,2]{-1:1}])";
    "atan.default" "(Tensor[] self) -> Tensor[]" "([f32[3], f32[2,2]])";
    "ceil.default" "(Tensor[] self) -> Tensor[]" "([f32[3], f32[2,2]])";
    "cos.default" "(Tensor[] self) -> Tensor[]" "([f32[3], f32[2,2]])";
    "cosh.default" "(Tensor[] self) -> Tensor[]" "([f32[3], f32[2,2]])";
    "erf.default" "(Tensor[] self) -> Tensor[]" "([f32[3], f32[2,2]])";
    "erfc.default" "(Tensor[] self) -> Tensor[]" "([f32[3], f32[2,2]])";
    "exp.default" "(Tensor[] self) -> Tensor[]" "([f32[3], f32[2,2]])";
    "expm1.default" "(Tensor[] self) -> Tensor[]" "([f32[3], f32[2,2]])";
    "floor.default" "(Tensor[] self) -> Tensor[]" "([f32[3], f32[2,2]])";
    "frac.default" "(Tensor[] self) -> Tensor[]" "([f32[3], f32[2,2]])";
    "lgamma.default" "(Tensor[] self) -> Tensor[]" "([f32[3]{1:3}, f32[2,2]{1:3}])";
    "log.default" "(Tensor[] self) -> Tensor[]" "([f32[3]{0.5:2}, f32[2,2]{0.5:2}])";
    "log10.default" "(Tensor[] self) -> Tensor[]" "([f32[3]{0.5:2}, f32[2,2]{0.5:2}])";
    "log1p.default" "(Tensor[] self) -> Tensor[]" "([f32[3]{0.5:2}, f32[2,2]{0.5:2}])";
    "log2.default" "(Tensor[] self) -> Tensor[]" "([f32[3]{0.5:2}, f32[2,2]{0.5:2}])";
    "max.default" "(Tensor[] self) -> Tensor[]" "([f32[3], f32[2,2]])";
    "neg.default" "(Tensor[] self) -> Tensor[]" "([f32[3], f32[2,2]])";
    "reciprocal.default" "(Tensor[] self) -> Tensor[]" "([f32[3]{0.5:2}, f32[2,2]{0.5:2}])";
    "round.default" "(Tensor[] self) -> Tensor[]" "([f32[3], f32[2,2]])";
    "rsqrt.default" "(Tensor[] self) -> Tensor[]" "([f32[3]{0.5:2}, f32[2,2]{0.5:2}])";
    "sigmoid.default" "(Tensor[] self) -> Tensor[]" "([f32[3], f32[2,2]])";
    "sign.default" "(Tensor[] self) -> Tensor[]" "([f32[3], f32[2,2]])";
    "sin.default" "(Tensor[] self) -> Tensor[]" "([f32[3], f32[2,2]])";
    "sinh.default" "(Tensor[] self) -> Tensor[]" "([f32[3], f32[2,2]])";
    "sqrt.default" "(Tensor[] self) -> Tensor[]" "([f32[3]{0.5:2}, f32[2,2]{0.5:2}])";
    "tan.default" "(Tensor[] self) -> Tensor[]" "([f32[3]{-1:1}, f32[2,2]{-1:1}])";
    "tanh.default" "(Tensor[] self) -> Tensor[]" "([f32[3], f32[2,2]])";
    "trunc.default" "(Tensor[] self) -> Tensor[]" "([f32[3], f32[2,2]])";
    "zero.default" "(Tensor[] self) -> Tensor[]" "([f32[3], f32[2,2]])";
    "copy.default" "(Tensor[] self, Tensor[] src, bool non_blocking=False) -> Tensor[]" "([f32[3], f32[2,2]], [bf16[3], f32[2]])";
    "norm.Scalar" "(Tensor[] self, Scalar ord=2, ScalarType? dtype=None) -> Tensor[]" "([f32[3], f32[2,2]])";
    "add.Scalar" "(Tensor[] self, Scalar scalar) -> Tensor[]" "([f32[3], i64[2,2]], 2)";
    "add.List" "(Tensor[] self, Tensor[] other, *, Scalar alpha=1) -> Tensor[]" "([f32[3], f32[2,2]], [f32[3], f32[2,2]], alpha=0.5)";
    "add.ScalarList" "(Tensor[] self, Scalar[] scalars) -> Tensor[]" "([f32[3], f32[2,2]], [0.5, 2.0])";
    "add.Tensor" "(Tensor[] self, Tensor other, *, Scalar alpha=1) -> Tensor[]" "([f32[3], f32[2,2]], f32[], alpha=0.5)";
    "sub.Scalar" "(Tensor[] self, Scalar scalar) -> Tensor[]" "([f32[3], f32[2,2]], 2)";
    "sub.List" "(Tensor[] self, Tensor[] other, *, Scalar alpha=1) -> Tensor[]" "([f32[3], f32[2,2]], [f32[3], f32[2,2]], alpha=0.5)";
    "sub.ScalarList" "(Tensor[] self, Scalar[] scalars) -> Tensor[]" "([f32[3], f32[2,2]], [0.5, 2.0])";
    "mul.Scalar" "(Tensor[] self, Scalar scalar) -> Tensor[]" "([f32[3], f32[2,2]], 0.9)";
    "mul.List" "(Tensor[] self, Tensor[] other) -> Tensor[]" "([f32[3], f32[2,2]], [f32[], f32[2,2]])";
    "mul.ScalarList" "(Tensor[] self, Scalar[] scalars) -> Tensor[]" "([f32[3], f32[2,2]], [0.5, 2.0])";
    "mul.Tensor" "(Tensor[] self, Tensor other) -> Tensor[]" "([f32[3], f32[2,2]], f32[])";
    "div.Scalar" "(Tensor[] self, Scalar scalar) -> Tensor[]" "([f32[3], f32[2,2]], 3)";
    "div.List" "(Tensor[] self, Tensor[] other) -> Tensor[]" "([f32[3], f32[2,2]], [f32[]{1:2}, f32[2,2]{1:2}])";
    "div.ScalarList" "(Tensor[] self, Scalar[] scalars) -> Tensor[]" "([f32[3], f32[2,2]], [0.5, 3.0])";
    "div.Tensor" "(Tensor[] self, Tensor other) -> Tensor[]" "([f32[3], f32[2,2]], f32[]{1:2})";
    "maximum.Scalar" "(Tensor[] self, Scalar scalar) -> Tensor[]" "([f32[3], f32[2,2]], 0.5)";
    "maximum.List" "(Tensor[] self, Tensor[] other) -> Tensor[]" "([f32[3], f32[2,2]], [f32[3], f32[2,2]])";
    "maximum.ScalarList" "(Tensor[] self, Scalar[] scalars) -> Tensor[]" "([f32[3], f32[2,2]], [0.5, -0.5])";
    "minimum.Scalar" "(Tensor[] self, Scalar scalar) -> Tensor[]" "([f32[3], f32[2,2]], 0.5)";
    "minimum.List" "(Tensor[] self, Tensor[] other) -> Tensor[]" "([f32[3], f32[2,2]], [f32[3], f32[2,2]])";
    "minimum.ScalarList" "(Tensor[] self, Scalar[] scalars) -> Tensor[]" "([f32[3], f32[2,2]], [0.5, -0.5])";
    "clamp_min.Scalar" "(Tensor[] self, Scalar scalar) -> Tensor[]" "([f32[3], f32[2,2]], 0.5)";
    "clamp_min.List" "(Tensor[] self, Tensor[] other) -> Tensor[]" "([f32[3], f32[2,2]], [f32[3], f32[2,2]])";
    "clamp_min.ScalarList" "(Tensor[] self, Scalar[] scalars) -> Tensor[]" "([f32[3], f32[2,2]], [0.5, -0.5])";
    "clamp_max.Scalar" "(Tensor[] self, Scalar scalar) -> Tensor[]" "([f32[3], f32[2,2]], 0.5)";
    "clamp_max.List" "(Tensor[] self, Tensor[] other) -> Tensor[]" "([f32[3], f32[2,2]], [f32[3], f32[2,2]])";
    "clamp_max.ScalarList" "(Tensor[] self, Scalar[] scalars) -> Tensor[]" "([f32[3], f32[2,2]], [0.5, -0.5])";
    "pow.Scalar" "(Tensor[] self, Scalar exponent) -> Tensor[]" "([f32[3]{0.5:2}, f32[2,2]{0.5:2}], 0.75)";
    "pow.List" "(Tensor[] self, Tensor[] exponent) -> Tensor[]" "([f32[3]{0.5:2}, f32[2,2]{0.5:2}], [f32[3], f32[2,2]])";
    "pow.ScalarList" "(Tensor[] self, Scalar[] exponent) -> Tensor[]" "([f32[3]{0.5:2}, f32[2,2]{0.5:2}], [0.5, 3.0])";
    "pow.ScalarAndTensor" "(Scalar self, Tensor[] exponent) -> Tensor[]" "(0.9, [f32[], f32[]])";
    "lerp.Scalar" "(Tensor[] self, Tensor[] tensors1, Scalar weight) -> Tensor[]" "([f32[3], f32[2,2]], [f32[3], f32[2,2]], 0.1)";
    "lerp.List" "(Tensor[] self, Tensor[] tensors1, Tensor[] weights) -> Tensor[]" "([f32[3], f32[2,2]], [f32[3], f32[2,2]], [f32[3]{0:1}, f32[2,2]{0:1}])";
    "lerp.ScalarList" "(Tensor[] self, Tensor[] tensors1, Scalar[] weight) -> Tensor[]" "([f32[3], f32[2,2]], [f32[3], f32[2,2]], [0.1, 0.6])";
    "addcmul.Scalar" "(Tensor[] self, Tensor[] tensor1, Tensor[] tensor2, Scalar value=1) -> Tensor[]" "([f32[3], f32[2,2]], [f32[3], f32[2,2]], [f32[3], f32[2,2]], 0.5)";
    "addcmul.ScalarList" "(Tensor[] self, Tensor[] tensor1, Tensor[] tensor2, Scalar[] scalars) -> Tensor[]" "([f32[3], f32[2,2]], [f32[3], f32[2,2]], [f32[3], f32[2,2]], [0.5, 2.0])";
    "addcdiv.Scalar" "(Tensor[] self, Tensor[] tensor1, Tensor[] tensor2, Scalar value=1) -> Tensor[]" "([f32[3], f32[2,2]], [f32[3], f32[2,2]], [f32[3]{1:2}, f32[2,2]{1:2}], -0.5)";
    "addcdiv.ScalarList" "(Tensor[] self, Tensor[] tensor1, Tensor[] tensor2, Scalar[] scalars) -> Tensor[]" "([f32[3], f32[2,2]], [f32[3], f32[2,2]], [f32[3]{1:2}, f32[2,2]{1:2}], [-0.5, 2.0])";
}
